/* Groups of layers: against counting position by position, and the layers of published models. */
#include "engine/kv_groups.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { BLOCK = BACKEND_BLOCK_TOKENS, ROWS = 64 };

/* A model of which every `period`-th layer attends to everything, none with 0, the first with
 * `shift` before it. */
static struct model_config *model(int32_t layers, int32_t period, int32_t shift, int32_t window)
{
    struct model_config *m = calloc(1, sizeof *m);
    assert_non_null(m);
    m->layers = layers;
    m->window = window;
    for (int32_t i = 0; i < layers; i++)
        if (period == 0 || i % period != shift)
            m->slides[i / 32] |= 1u << i % 32;
    return m;
}

static void test_blocks_for(void **state)
{
    (void)state;
    int32_t blocks = 0;
    assert_int_equal(kv_blocks_for(0), 0);
    for (int32_t n = 1; n < 100; n++) {
        blocks += n % BLOCK == 1;
        assert_int_equal(kv_blocks_for(n), blocks);
    }
}

/* Blocks hold what layers there are, of either kind, and little else. */
static void test_models(void **state)
{
    (void)state;
    const struct {
        int32_t layers, period, shift, window, context;
        struct kv_groups groups;
    } cases[] = {
        {32, 1, 0, 0, 8192, {1, 0, 32, 0}},         /* Llama 3.1 8B */
        {32, 0, 0, 4096, 32768, {0, 1, 32, 4096}},  /* Mistral 7B 0.1 */
        {32, 0, 0, 4096, 4096, {1, 0, 32, 0}},      /* ... no text of which slides */
        {26, 2, 1, 4096, 8192, {1, 1, 13, 4096}},   /* Gemma 2 2B */
        {24, 2, 1, 128, 131072, {1, 1, 12, 128}},   /* gpt-oss 20b */
        {26, 6, 5, 512, 32768, {1, 6, 4, 512}},     /* Gemma 3 1B */
        {34, 6, 5, 1024, 131072, {1, 6, 5, 1024}},  /* 4B */
        {48, 6, 5, 1024, 131072, {1, 5, 8, 1024}},  /* 12B */
        {62, 6, 5, 1024, 131072, {1, 6, 10, 1024}}, /* 27B */
        {62, 6, 5, 1024, 1100, {1, 0, 62, 0}},      /* ... where padding is more than what slides */
        {9, 9, 0, 4, 200, {1, 4, 2, 16}},           /* a window of less than a block */
        {40, 40, 7, 64, 1000, {1, 7, 6, 64}},       /* one layer alone: no more groups than that */
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct model_config *m =
            model(cases[i].layers, cases[i].period, cases[i].shift, cases[i].window);
        if (cases[i].period == 1)
            memset(m->slides, 0, sizeof m->slides);
        const struct kv_groups g = kv_groups_find(m, cases[i].context, ROWS);
        assert_memory_equal(&g, &cases[i].groups, sizeof g);
        free(m);
    }
}

/* No other groups take less for a text of that length, above all not one group alone. */
static void test_least(void **state)
{
    (void)state;
    for (int32_t layers = 2; layers < 64; layers += 3)
        for (int32_t full = 0; full < layers; full += 1 + layers / 7)
            for (int32_t context = 16; context < 20000; context = context * 2 + 7) {
                struct model_config *m = model(layers, 0, 0, 500);
                for (int32_t i = 0; i < full; i++)
                    m->slides[i / 32] &= ~(1u << i % 32);
                const struct kv_groups g = kv_groups_find(m, context, ROWS);
                const int64_t found = kv_groups_need(&g, context, ROWS) * g.layers;
                assert_true(found <= (int64_t)kv_blocks_for(context) * layers);
                for (int32_t n = 1; n <= layers; n++) {
                    const struct kv_groups other = kv_groups_of(m, n);
                    if (kv_groups_count(&other) <= KV_GROUPS_MAX)
                        assert_true(found <= kv_groups_need(&other, context, ROWS) * n);
                }
                free(m);
            }
}

/* Every layer has a place of its own, in a group of its kind; ranks find the same ones. */
static void test_places(void **state)
{
    (void)state;
    for (int32_t layers = 1; layers < 70; layers++)
        for (int32_t period = 0; period < 8; period++) {
            struct model_config *m = model(layers, period, period / 2, 100);
            const struct kv_groups g = kv_groups_find(m, 5000, ROWS);
            const struct kv_groups told = kv_groups_of(m, g.slide > 0 ? g.layers : 0);
            bool used[KV_GROUPS_MAX][70] = {{false}};
            assert_in_range(kv_groups_count(&g), 1, KV_GROUPS_MAX);
            assert_memory_equal(&told, &g, sizeof g);
            for (int32_t i = 0; i < layers; i++) {
                const struct kv_group_place p = kv_groups_place(&g, m, i);
                const struct kv_group_place same = kv_groups_place(&told, m, i);
                assert_in_range(p.group, 0, kv_groups_count(&g) - 1);
                assert_in_range(p.layer, 0, g.layers - 1);
                assert_int_equal(p.group >= g.keep, g.slide > 0 && model_config_slides(m, i));
                assert_false(used[p.group][p.layer]);
                used[p.group][p.layer] = true;
                assert_memory_equal(&p, &same, sizeof p);
            }
            free(m);
        }
}

/* A row's first block is the one of the first position that it sees. */
static void test_first(void **state)
{
    (void)state;
    for (int32_t window = BLOCK; window < 5 * BLOCK; window++) {
        const struct kv_groups g = {.keep = 1, .slide = 1, .window = window};
        for (int32_t p = 0; p < 200; p++) {
            int32_t seen = p;
            while (seen > 0 && p - (seen - 1) < window)
                seen--;
            assert_int_equal(kv_groups_first(&g, p), seen / BLOCK);
        }
    }
    const struct kv_groups none = {.keep = 1};
    assert_int_equal(kv_groups_first(&none, 1000), 0);
}

/* Most blocks at a time, of a text that is computed in steps of up to `rows` from any position on:
 * those of the rows and of what the first of them sees. */
static int64_t counted_need(const struct kv_groups *g, int32_t positions, int32_t rows)
{
    int64_t most = 0;
    for (int32_t p = 0; p < positions; p++) {
        const int32_t end = p + rows < positions ? p + rows : positions;
        const int64_t all = kv_blocks_for(end);
        const int64_t blocks = g->keep * all + g->slide * (all - kv_groups_first(g, p));
        most = blocks > most ? blocks : most;
    }
    return most;
}

static void test_need(void **state)
{
    (void)state;
    const struct kv_groups cases[] = {
        {.keep = 1}, {.slide = 1, .window = 16}, {1, 1, 1, 17}, {2, 3, 1, 40}, {1, 6, 1, 31}};
    for (size_t c = 0; c < ARRAY_LEN(cases); c++)
        for (int32_t rows = 1; rows < 40; rows++) {
            for (int32_t n = 1; n < 150; n++) {
                const int64_t need = kv_groups_need(&cases[c], n, rows);
                const int64_t counted = counted_need(&cases[c], n, rows);
                /* short texts may end before the worst place to begin in a block */
                assert_true(need >= counted);
                assert_true(need - counted <= cases[c].slide);
                assert_true(n < 100 || need == counted);
            }
            for (int64_t blocks = 0; blocks < 60; blocks++) {
                const int32_t longest = kv_groups_longest(&cases[c], blocks, rows, 150);
                assert_in_range(longest, 0, 150);
                assert_true(longest == 0 || kv_groups_need(&cases[c], longest, rows) <= blocks);
                assert_true(longest == 150 ||
                            kv_groups_need(&cases[c], longest + 1, rows) > blocks);
            }
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocks_for), cmocka_unit_test(test_models),
        cmocka_unit_test(test_least),      cmocka_unit_test(test_places),
        cmocka_unit_test(test_first),      cmocka_unit_test(test_need),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
