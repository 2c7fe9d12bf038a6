/* Modelled times against their closed formulas, on a model whose sizes divide; what is measured is
 * plausible, for ranks that outnumber the cores too. */
#include "engine/model/layout.h"
#include "engine/parallel/price.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { LAYERS = 3, H = 64, HEADS = 8, DH = 8, F = 128, V = 256 };

static const struct model_config model = {.layers = LAYERS,
                                          .hidden = H,
                                          .heads = HEADS,
                                          .kv_heads = HEADS,
                                          .head_dim = DH,
                                          .mlp = F,
                                          .residual_scale = 1,
                                          .vocab = V};

static struct flow *flow_for(const struct model_config *m, const char *mode, const char *mesh,
                             int32_t ranks)
{
    struct err err = {""};
    struct plan *plan = NULL;
    struct flow *f = NULL;
    assert_int_equal(plan_load(mode, mesh, NULL, ranks, &plan, &err), OK);
    assert_int_equal(layout_flow(m, plan, DTYPE_F32, backend_find("ref"), &f, &err), OK);
    plan_close(plan);
    return f;
}

static struct flow *flow_of(const char *mode, const char *mesh, int32_t ranks)
{
    return flow_for(&model, mode, mesh, ranks);
}

/* Seconds of rank 0, each number of the price alone. */
static double priced(const char *mode, const char *mesh, int32_t ranks, int32_t rows,
                     struct price p)
{
    struct flow *f = flow_of(mode, mesh, ranks);
    const double seconds = price_step(&p, f, flow_phase_of(f, rows), LAYERS, rows, 0);
    flow_close(f);
    return seconds;
}

/* Per layer W weights: QKV 3h^2, O h^2, gate and up 2hf, down hf. */
static const double weights = 4.0 * H * H + 3.0 * H * F;

static void test_multiply_adds(void **state)
{
    (void)state;
    const struct price p = {.mac = 1};
    const double head = (double)H * V;
    static const struct {
        const char *mode, *mesh;
        int32_t ranks;
        double part, head; /* of the rows times weights, of the head */
    } cases[] = {
        {"1d", NULL, 1, 1, 1},
        {"1d", NULL, 4, 0.25, 0.25},
        {"1d_sp", NULL, 4, 0.25, 0.25},
        {"2d", NULL, 4, 0.25, 0.25},
        {"2.5d", "2,2,2", 8, 0.125, 0.125},
        {"3d", "1,2,2", 4, 0.25, 0.25},
        {"3d", "2,2,1", 4, 0.25, 0.25}, /* two copies of the weights, half of the rows each */
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const double got = priced(cases[i].mode, cases[i].mesh, cases[i].ranks, 16, p);
        const double layers = LAYERS * 16 * weights * cases[i].part;
        if (fabs(got - layers - head * cases[i].head) > head)
            fail_msg("%s at %d ranks: %g multiply-adds, layers have %g", cases[i].mode,
                     cases[i].ranks, got, layers);
    }
    assert_true(priced("1d", NULL, 4, 16, p) == LAYERS * 16 * weights / 4 + head / 4);
}

/* Summa's weights travel: a rank multiplies with whole panels, for its own rows. */
static void test_summa_work(void **state)
{
    (void)state;
    const struct price mac = {.mac = 1}, weight = {.weight = 1};
    const int32_t many = 1 << 20; /* far above the crossover */
    const double head = (double)H * V / 4;
    assert_true(priced("2d", NULL, 4, many, mac) == LAYERS * many * weights / 4 + head);
    /* and reads q panels of W / q^2 */
    assert_true(priced("2d", NULL, 4, many, weight) == 4 * (LAYERS * weights / 2 + head));
    assert_true(priced("2d", NULL, 4, 1, weight) == 4 * (LAYERS * weights / 4 + head));
}

static void test_meetings_and_bytes(void **state)
{
    (void)state;
    const struct price meet = {.meet = 1}, byte = {.byte = 1};
    /* around the layers: the look-up's sum, the gather of the logits; rows of the head for 1d_sp */
    assert_true(priced("1d", NULL, 4, 1, meet) == 2 * LAYERS + 2);
    assert_true(priced("1d", NULL, 1, 1, meet) == 0);
    assert_true(priced("1d_sp", NULL, 4, 1, meet) == 4 * LAYERS + 3);
    /* two one-shot all-reduces of 3 rows, at both ends one more and a gather of the logits */
    const double row = 4.0 * H * 3;
    assert_true(priced("1d", NULL, 4, 3, byte) == 3 * row * (2 * LAYERS + 1) + 4.0 * V * 3 / 4);
}

/* 2d at q = 2 in elements, on a rank off the diagonal. A row: stationary (4h + W/h) / 4 and 4 for
 * the norms of a layer, h / 4 + 2 around the layers; summa panels (2h + A + F) / 4, heads (2A + 2K)
 * / 8, transposes (A + F + 2h) / 4 and 1, h / 2 + 1/2 around the layers. Summa besides: W / 4 of
 * weights received and W / 4 more of them read, 12 more collectives, and one around
 * the layers. */
static void test_crossover(void **state)
{
    (void)state;
    static const struct price prices[] = {{.byte = 0.25},
                                          {.byte = 0.25, .meet = 100},
                                          {.byte = 0.25, .meet = 1000},
                                          {.byte = 0.25, .weight = 0.5},
                                          {.byte = 0.25, .meet = 100, .mac = 7}};
    const double saved = LAYERS * ((4. * H + weights / H) / 4 + 4 - (2. * H + H + F) / 4 -
                                   4. * H / 8 - (3. * H + F) / 4 - 1) +
                         (H / 4. + 2) - (H / 2. + 0.5);
    struct flow *f = flow_of("2d", NULL, 4);
    for (size_t i = 0; i < ARRAY_LEN(prices); i++) {
        const struct price *p = &prices[i];
        const double once =
            LAYERS * (weights / 4 + 4 * p->weight * weights / 4 + 12 * p->meet) + p->meet;
        const int32_t got = price_crossover(p, f, LAYERS);
        if (fabs(got - once / saved) > 2)
            fail_msg("price %zu: the forms cross at %d rows, not %g", i, got, once / saved);
    }
    flow_close(f);
    f = flow_of("1d", NULL, 4); /* one form: never */
    assert_int_equal(price_crossover(&prices[0], f, LAYERS), 1 << 20);
    flow_close(f);
}

static void test_measured(void **state)
{
    (void)state;
    struct err err = {""};
    struct price p;
    static const int32_t counts[] = {1, 2, 5};
    for (size_t i = 0; i < ARRAY_LEN(counts); i++) {
        bool plausible = false; /* on a busy machine not each time */
        for (int tries = 0; tries < 20 && !plausible; tries++) {
            assert_int_equal(price_measure("cpu", counts[i], 1, DTYPE_BF16, &p, &err), OK);
            assert_true(p.meet >= 0 && p.mac >= 0 && p.weight >= 0 && p.byte >= 0);
            plausible = p.meet > 0 && p.meet < 1 && p.mac > 0 && p.mac < 1e-6 && p.weight < 1e-6 &&
                        (counts[i] == 1 ? p.byte == 0 : p.byte < 1e-3);
        }
        assert_true(plausible);
    }
    assert_int_equal(price_measure("cuda", 2, 1, DTYPE_BF16, &p, &err), ERR_USAGE);
    assert_non_null(strstr(err.text, "cuda"));
}

/* What is received before and after the layers: with vectors no logits, but whole sampled rows
 * where a rank has only a part of them; and no product. */
static void test_ends_of_vectors(void **state)
{
    (void)state;
    enum { ROWS = 16, SAMPLES = 8, RANKS = 4, ALL = ROWS * H * 4, CHOSEN = SAMPLES * H * 4 };
    static const struct {
        const char *mode;
        uint64_t embed, gather;
    } cases[] = {
        {"1d", 3 * ALL, 0}, /* the addends of the others; all have whole rows */
        {"1d_sp", 3 * ALL / RANKS, CHOSEN - CHOSEN / RANKS},
    };
    struct model_config pooled = model;
    model_config_pool(&pooled);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct flow *vectors = flow_for(&pooled, cases[i].mode, NULL, RANKS);
        struct flow *tokens = flow_of(cases[i].mode, NULL, RANKS);
        for (int32_t k = 0; k < PLAN_PHASES * RANKS; k++) {
            const enum plan_phase phase = (enum plan_phase)(k / RANKS);
            const int32_t r = k % RANKS;
            const uint64_t mine = cases[i].embed + cases[i].gather;
            assert_int_equal(flow_ends_bytes(vectors, phase, ROWS, SAMPLES, r), mine);
            assert_int_equal(flow_ends_bytes(tokens, phase, ROWS, SAMPLES, r),
                             mine + SAMPLES * (V - V / RANKS) * 4);
            const struct extent out = vectors->phase[phase].linear[PLAN_HEAD].out;
            assert_int_equal(out.units * out.unit, H); /* what buffers are made for */
            const struct flow_work none = flow_work(vectors, phase, PLAN_HEAD, SAMPLES, r);
            assert_true(none.macs == 0 && none.bytes == 0);
            assert_true(flow_work(tokens, phase, PLAN_HEAD, SAMPLES, r).macs ==
                        SAMPLES * H * V / RANKS);
            assert_int_equal(flow_layer_bytes(vectors, phase, ROWS, r),
                             flow_layer_bytes(tokens, phase, ROWS, r));
        }
        flow_close(vectors);
        flow_close(tokens);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_multiply_adds),      cmocka_unit_test(test_summa_work),
        cmocka_unit_test(test_meetings_and_bytes), cmocka_unit_test(test_crossover),
        cmocka_unit_test(test_measured),           cmocka_unit_test(test_ends_of_vectors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
