/* Groups of layers: against counting position by position, and the layers of published models. */
#include "engine/kv_groups.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { BLOCK = BACKEND_BLOCK_TOKENS, ROWS = 64 };
static const size_t alike[MODEL_KINDS] = {1, 1};

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
        {32, 1, 0, 0, 8192, {1, 0, 32, 0, 0}},         /* Llama 3.1 8B */
        {32, 0, 0, 4096, 32768, {0, 1, 32, 4096, 0}},  /* Mistral 7B 0.1 */
        {32, 0, 0, 4096, 4096, {1, 0, 32, 0, 0}},      /* ... no text of which slides */
        {26, 2, 1, 4096, 8192, {1, 1, 13, 4096, 0}},   /* Gemma 2 2B */
        {24, 2, 1, 128, 131072, {1, 1, 12, 128, 0}},   /* gpt-oss 20b */
        {26, 6, 5, 512, 32768, {1, 6, 4, 512, 0}},     /* Gemma 3 1B */
        {34, 6, 5, 1024, 131072, {1, 6, 5, 1024, 0}},  /* 4B */
        {48, 6, 5, 1024, 131072, {1, 5, 8, 1024, 0}},  /* 12B */
        {62, 6, 5, 1024, 131072, {1, 6, 10, 1024, 0}}, /* 27B */
        {62, 6, 5, 1024, 1100, {1, 0, 62, 0, 0}}, /* ... where padding is more than what slides */
        {9, 9, 0, 4, 200, {1, 4, 2, 16, 0}},      /* a window of less than a block */
        {40, 40, 7, 64, 1000, {1, 7, 6, 64, 0}},  /* one layer alone: no more groups than that */
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct model_config *m =
            model(cases[i].layers, cases[i].period, cases[i].shift, cases[i].window);
        if (cases[i].period == 1)
            memset(m->slides, 0, sizeof m->slides);
        const struct kv_groups g = kv_groups_find(m, alike, cases[i].context, ROWS);
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
                const struct kv_groups g = kv_groups_find(m, alike, context, ROWS);
                const int64_t found = kv_groups_need(&g, context, ROWS) * g.layers;
                assert_true(found <= (int64_t)kv_blocks_for(context) * layers);
                for (int32_t n = 1; n <= layers; n++) {
                    const struct kv_groups other = kv_groups_of(m, n, 0);
                    if (kv_groups_count(&other) <= KV_GROUPS_ALIKE)
                        assert_true(found <= kv_groups_need(&other, context, ROWS) * n);
                }
                free(m);
            }
}

/* The bytes of a text, and for each table a 256th of them. */
static int64_t price(const struct kv_groups *g, const size_t *bytes, int32_t context)
{
    const int64_t need = kv_groups_need(g, context, ROWS) * (int64_t)kv_groups_bytes(g, bytes);
    return need + need / 256 * kv_groups_count(g);
}

/* Of layers with other heads: no groups of two sizes take less, and published models waste little.
 */
static void test_two_sizes(void **state)
{
    (void)state;
    const struct {
        int32_t layers, context;
        size_t bytes[MODEL_KINDS];
        int32_t waste; /* in a hundred, at most */
    } cases[] = {
        {60, 131072, {4096, 2048}, 7},  /* Gemma 4 31B */
        {48, 131072, {2048, 512}, 3},   /* 12B on one rank, */
        {48, 131072, {1024, 512}, 3},   /* and on two */
        {30, 131072, {2048, 1024}, 10}, /* 26B, on one rank, */
        {30, 131072, {512, 512}, 20},   /* and on four, on each of which is a KV head of either */
        {30, 131072, {256, 512}, 20},   /* on eight */
        {12, 700, {4096, 512}, 40},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const size_t *bytes = cases[i].bytes;
        struct model_config *m = model(cases[i].layers, 6, 5, 512);
        const int32_t slide = model_config_sliding(m), keep = m->layers - slide;
        m->global.head_dim = 512;
        const struct kv_groups g = kv_groups_find(m, bytes, cases[i].context, ROWS);
        const size_t block = kv_groups_bytes(&g, bytes);
        const int64_t found = kv_groups_need(&g, cases[i].context, ROWS) * (int64_t)block;
        assert_true(block >= (size_t)g.layers * bytes[0]);
        assert_true(block >= (size_t)g.keep_layers * bytes[1]);
        assert_true(g.keep * g.keep_layers >= keep && g.slide * g.layers >= slide);
        assert_in_range(kv_groups_count(&g), 2, KV_GROUPS_MAX);
        for (int32_t a = 1; a <= slide; a++)
            for (int32_t b = 1; b <= keep; b++) {
                const struct kv_groups other = kv_groups_of(m, a, b);
                if (kv_groups_count(&other) <= KV_GROUPS_MAX)
                    assert_true(price(&g, bytes, cases[i].context) <=
                                price(&other, bytes, cases[i].context));
            }
        const int64_t least =
            kv_blocks_for(cases[i].context) * (int64_t)(keep * (int32_t)bytes[1]) +
            kv_groups_need(&(struct kv_groups){.slide = 1, .window = 512}, cases[i].context, ROWS) *
                (int64_t)(slide * (int32_t)bytes[0]);
        if ((found - least) * 100 > cases[i].waste * found)
            fail_msg("%d layers: %lld bytes, of which %lld are used", (int)m->layers,
                     (long long)found, (long long)least);
        free(m);
    }
}

/* Where none slides, though layers that did would have other heads, blocks are as large as those
 * of the layers that there are. */
static void test_other_size(void **state)
{
    (void)state;
    const size_t bytes[MODEL_KINDS] = {512, 4096};
    struct model_config *m = model(6, 1, 0, 100);
    m->global.head_dim = 512;
    const struct kv_groups g = kv_groups_find(m, bytes, 5000, ROWS);
    const struct kv_groups told = kv_groups_of(m, g.layers, g.keep_layers);
    assert_memory_equal(&told, &g, sizeof g);
    assert_int_equal(kv_groups_count(&g), 1);
    assert_int_equal(kv_groups_bytes(&g, bytes), 6 * 4096);
    for (int32_t i = 0; i < 6; i++) {
        const struct kv_group_place p = kv_groups_place(&g, m, i);
        assert_int_equal(p.group, 0);
        assert_int_equal(p.layer, i);
    }
    free(m);
}

/* Every layer has a place of its own, in a group of its kind; ranks find the same ones. */
static void test_places(void **state)
{
    (void)state;
    for (int32_t layers = 1; layers < 70; layers++)
        for (int32_t period = 0; period < 8; period++) {
            struct model_config *m = model(layers, period, period / 2, 100);
            const struct kv_groups g = kv_groups_find(m, alike, 5000, ROWS);
            const struct kv_groups told = kv_groups_of(m, g.slide > 0 ? g.layers : 0, 0);
            bool used[KV_GROUPS_MAX][70] = {{false}};
            assert_in_range(kv_groups_count(&g), 1, KV_GROUPS_ALIKE);
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
    const struct kv_groups cases[] = {{.keep = 1},
                                      {.slide = 1, .window = 16},
                                      {1, 1, 1, 17, 0},
                                      {2, 3, 1, 40, 0},
                                      {1, 6, 1, 31, 0}};
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
        cmocka_unit_test(test_two_sizes),  cmocka_unit_test(test_other_size),
        cmocka_unit_test(test_first),      cmocka_unit_test(test_need),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
