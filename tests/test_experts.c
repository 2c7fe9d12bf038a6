/* DESIGN: the ops of a mixture of experts, by the rules of subjects.h: routing by the definition,
 * products against ref; a row must have the bits it has alone, and parts of ranks must fold to the
 * bits of the whole. */
#include "tests/made_weight.h"
#include "tests/only.h"

/* ---- routing ---- */

struct route_case {
    int32_t rows, experts, chosen;
    bool among, ties;
    bool sigmoid, corrects, gated;
    int32_t shared, groups, kept;
    bool scales; /* each expert's share by its own */
};

static const struct routing_rules parts_of_all = {.scale = 1};
static const struct routing_rules parts_of_chosen = {.scale = 1, .among = true};

static size_t logits_of(const struct route_case *c)
{
    return (size_t)c->rows * (size_t)(c->experts - c->shared + c->gated);
}

static float *route_logits(const struct route_case *c)
{
    const size_t n = logits_of(c);
    float *logits = generated(11, n);
    for (size_t i = 0; i < n; i++)
        if (!c->ties)
            logits[i] *= 9;
        else if (logits[i] > 0) /* many are the largest, of either sign */
            logits[i] = i % 3 == 0 ? 0.0f : -0.0f;
        else
            logits[i] = floorf(logits[i] * 3);
    return logits;
}

/* Routes all rows by the rules of the case. */
static void route_rows(struct backend *b, const struct route_case *c, const float *logits,
                       const struct routing *r)
{
    const size_t routed = (size_t)(c->experts - c->shared);
    float *correction = generated(15, routed), *scale = generated(17, routed);
    const struct routing_rules rules = {.sigmoid = c->sigmoid,
                                        .among = c->among,
                                        .scale = c->sigmoid ? 2.5f : 1,
                                        .correction = c->corrects ? correction : NULL,
                                        .expert_scale = c->scales ? scale : NULL,
                                        .groups = c->groups,
                                        .kept = c->kept,
                                        .shared = c->shared,
                                        .gated = c->gated};
    const int32_t cols = backend_route_logits(c->experts, &rules);
    ok(backend_route(b, r, (struct cview){logits, DTYPE_F32, c->rows, cols}, &rules, &err));
    guarded_free(correction, routed);
    guarded_free(scale, routed);
}

/* Experts and shares of all rows, as floats. */
static void route_case(struct backend *b, const void *arg, float *out)
{
    const struct route_case *c = arg;
    const size_t n = (size_t)c->rows * (size_t)c->chosen;
    float *logits = route_logits(c);
    int32_t *expert = guarded(n);
    const struct routing r = {c->experts, c->chosen, expert, out + n};
    route_rows(b, c, logits, &r);
    for (size_t i = 0; i < n; i++) {
        out[i] = (float)expert[i];
        assert_true(i % (size_t)c->chosen == 0 || expert[i] > expert[i - 1]);
    }
    guarded_free(expert, n);
    guarded_free(logits, logits_of(c));
}

static void check_route(const struct route_case *c)
{
    char what[96];
    snprintf(what, sizeof what, "route %d of %d, %d rows, %d of %d groups", c->chosen, c->experts,
             c->rows, c->kept, c->groups);
    run_case(what, route_case, c, 2 * (size_t)c->rows * (size_t)c->chosen, 1e-7, 2e-6);
}

static void test_route(void **state UNUSED)
{
    static const struct route_case cases[] = {
        {1, 8, 2, true, .ties = false},
        {5, 8, 2, false, .ties = false},
        {7, 128, 8, true, .ties = false},
        {33, 60, 4, false, .ties = true},
        {3, 1, 1, true, .ties = false},
        {2, 64, 64, false, .ties = false},
        {9, 16, 3, true, .ties = true},
        {0, 8, 2, true, .ties = false},
        {2, 1024, 64, true, .ties = false},
        {4, 100, 10, true, .ties = true},
        {300, 128, 8, true, .ties = false},
        {5, 8, 2, .sigmoid = true},
        {5, 8, 2, true, .sigmoid = true, .corrects = true},
        {33, 60, 4, .sigmoid = true, .corrects = true},
        {70, 129, 9, true, .sigmoid = true, .corrects = true, .shared = 1},
        {7, 161, 9, true, true, .sigmoid = true, .corrects = true, .shared = 1},
        {9, 40, 7, .shared = 3},
        {70, 64, 8, .shared = 4, .gated = true},
        {3, 72, 16, true, .shared = 8, .gated = true},
        {2, 3, 3, true, .shared = 2, .gated = true},
        {2, 1024, 64, .sigmoid = true, .corrects = true, .shared = 63, .gated = true},
        {5, 8, 2, true, .corrects = true},
        {33, 60, 4, .corrects = true},
        {70, 130, 8, true, .corrects = true, .shared = 2},
        {7, 1024, 64, true, .ties = true, .corrects = true},
        {7, 128, 8, true, .scales = true},
        {33, 60, 4, .ties = true, .scales = true},
        {70, 129, 9, true, .sigmoid = true, .corrects = true, .shared = 1, .scales = true},
        {5, 70, 8, .shared = 4, .gated = true, .scales = true},
        {9, 66, 6, true, .groups = 11, .kept = 2, .scales = true}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        check_route(&cases[i]);
}

/* Groups, of one expert, too; kept ones that have just as many experts as are chosen. */
static void test_route_groups(void **state UNUSED)
{
    static const struct route_case cases[] = {
        {50, 32, 4, true, .groups = 8, .kept = 2},
        {50, 32, 8, .groups = 8, .kept = 2},
        {40, 32, 5, .ties = true, .groups = 8, .kept = 3},
        {9, 12, 3, true, .groups = 1, .kept = 1},
        {30, 4, 2, true, .sigmoid = true, .corrects = true, .groups = 2, .kept = 1},
        {30, 8, 3, .sigmoid = true, .corrects = true, .groups = 8, .kept = 4},
        {50, 34, 6, .sigmoid = true, .shared = 2, .groups = 8, .kept = 2},
        {50, 65, 7, true, true, true, true, .shared = 1, .groups = 8, .kept = 3},
        {20, 66, 8, true, false, true, true, true, .shared = 2, .groups = 8, .kept = 2},
        {60, 257, 9, true, false, true, true, .shared = 1, .groups = 8, .kept = 4},
        {20, 162, 8, .shared = 2, .groups = 8, .kept = 3},
        {50, 32, 4, true, .corrects = true, .groups = 8, .kept = 2},
        {3, 1024, 64, .sigmoid = true, .corrects = true, .groups = 512, .kept = 32}};
    struct backend *const devices[] = {device, invariant};
    device = invariant = NULL; /* where groups are still to come */
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        check_route(&cases[i]);
    device = devices[0];
    invariant = devices[1];
}

/* Spelt out. The largest logits lie in groups 0 and 2 of three, so that 1 is chosen and not 2,
 * which has a larger one; a tie is the lowest group's; and with corrections it is the two largest
 * of a group that count, so that 4 and 5 are chosen and not 0, the best of all. */
static void test_route_kept(void **state UNUSED)
{
    static const float logits[2][6] = {{5, -9, 3, 3, 4, -9}, {3, 1, 2, 0, 0, 2}};
    static const int32_t want[2][3] = {{0, 1, 4}, {0, 1, 2}};
    const float ln3 = 1.0986123f, scores[6] = {ln3, -9, 0, -ln3, 0, 0};
    float correction[6] = {0.1f, 0, 0, 0, 0.2f, 0.1f}, share[2 * 3];
    int32_t expert[2 * 3];
    const struct routing r = {6, 3, expert, share}, two = {6, 2, expert, share};
    for (int i = 0; i <= subject_count; i++) {
        struct routing_rules rules = {.among = true, .scale = 1, .groups = 3, .kept = 2};
        ok(backend_route(nth_backend(i), &r, (struct cview){logits, DTYPE_F32, 2, 6}, &rules,
                         &err));
        assert_memory_equal(expert, want, sizeof want);
        rules = (struct routing_rules){.sigmoid = true, .scale = 1, .groups = 3, .kept = 1};
        rules.correction = correction;
        ok(backend_route(nth_backend(i), &two, (struct cview){scores, DTYPE_F32, 1, 6}, &rules,
                         &err));
        assert_int_equal(expert[0], 4);
        assert_int_equal(expert[1], 5);
        rules.kept = 4;
        assert_int_equal(backend_route(nth_backend(i), &two,
                                       (struct cview){scores, DTYPE_F32, 1, 6}, &rules, &err),
                         ERR_INTERNAL);
    }
}

/* What is not a number comes first where it is the first of its group, and is never before others.
 */
static void test_route_groups_nan(void **state UNUSED)
{
    enum { ROWS = 4, EXPERTS = 12, CHOSEN = 3, PAIRS = ROWS * CHOSEN };
    float logits[ROWS][EXPERTS], correction[EXPERTS] = {0}, share[PAIRS];
    int32_t first[PAIRS], expert[PAIRS];
    for (size_t e = 0; e < EXPERTS; e++) {
        const float some = gen(16, e);
        logits[0][e] = e % 3 == 0 ? NAN : some;
        logits[1][e] = NAN;
        logits[2][e] = e == 5 ? NAN : some;
        logits[3][e] = e == 8 || e == 1 ? NAN : some;
    }
    for (int corrects = 0; corrects < 2; corrects++)
        for (int i = 0; i <= subject_count; i++) {
            const struct routing_rules rules = {.sigmoid = true,
                                                .scale = 1,
                                                .groups = 3,
                                                .kept = 2,
                                                .correction = corrects ? correction : NULL};
            const struct routing r = {EXPERTS, CHOSEN, i == 0 ? first : expert, share};
            ok(backend_route(nth_backend(i), &r, (struct cview){logits, DTYPE_F32, ROWS, EXPERTS},
                             &rules, &err));
            for (int n = 0; n < PAIRS; n++) {
                assert_true(n % CHOSEN == 0 || r.expert[n] > r.expert[n - 1]);
                assert_int_equal(r.expert[n], first[n]);
            }
        }
}

/* Spelt out: by sigmoids 0.5, 0.75, 0.25 and 0.75 less 0.5 the corrections choose experts 0 and 2,
 * whose shares are those of 0.5 and 0.25 without them; and two shared experts follow, with the
 * sigmoid of the last logit. */
static void test_route_rules(void **state UNUSED)
{
    const float ln3 = 1.0986123f, logits[] = {0, ln3, -ln3, ln3, -ln3};
    float correction[] = {0, -0.5f, 0.25f, -0.5f}, share[4];
    int32_t expert[4];
    const struct routing r = {6, 4, expert, share};
    struct routing_rules rules = {.sigmoid = true,
                                  .among = true,
                                  .scale = 1.5f,
                                  .correction = correction,
                                  .shared = 2,
                                  .gated = true};
    for (int i = 0; nth_backend(i) != NULL; i++) {
        static const int32_t want[] = {0, 2, 4, 5};
        static const float shares[] = {1, 0.5f, 0.25f, 0.25f};
        ok(backend_route(nth_backend(i), &r, (struct cview){logits, DTYPE_F32, 1, 5}, &rules,
                         &err));
        for (int n = 0; n < 4; n++) {
            assert_int_equal(expert[n], want[n]);
            assert_float_equal(share[n], shares[n], 1e-6);
        }
    }
    rules = (struct routing_rules){.scale = 1, .shared = 4};
    assert_int_equal(
        backend_route(nth_backend(0), &r, (struct cview){logits, DTYPE_F32, 1, 2}, &rules, &err),
        ERR_INTERNAL);
}

/* Spelt out: of the parts 0.4, 0.1, 0.3 and 0.2 corrections choose the second and the third; and
 * two whose parts are as good as none, of which shares are none then. */
static void test_route_corrected_parts(void **state UNUSED)
{
    static const float logits[2][4] = {{-0.9162907f, -2.3025851f, -1.2039728f, -1.6094379f},
                                       {0, -300, -250, -1}};
    static const float shares[2][4] = {{0.25f, 0.75f, 0, 0}, {0.1f, 0.3f, 0, 0}};
    float correction[] = {-0.75f, 0.5f, 0.25f, -0.25f}, share[4];
    int32_t expert[4];
    const struct routing r = {4, 2, expert, share};
    for (int i = 0; nth_backend(i) != NULL; i++)
        for (int all = 0; all < 2; all++) {
            const struct routing_rules rules = {
                .among = all == 0, .scale = 1, .correction = correction};
            ok(backend_route(nth_backend(i), &r, (struct cview){logits, DTYPE_F32, 2, 4}, &rules,
                             &err));
            for (int n = 0; n < 4; n++) {
                assert_int_equal(expert[n], 1 + n % 2);
                assert_float_equal(share[n], shares[all][n], 1e-6);
            }
        }
}

/* Biases of each row's experts one after the other, and by their shares, beside x and in its place.
 */
static void bias_case(struct backend *b, const void *arg, float *out)
{
    enum { OUT = 37 };
    const struct route_case *c = arg;
    const size_t pairs = (size_t)c->rows * (size_t)c->chosen, rows = (size_t)c->rows;
    const size_t biases = (size_t)c->experts * OUT;
    float *logits = route_logits(c), *share = guarded(pairs);
    float *bias = generated(12, biases), *x = generated(13, pairs * OUT);
    int32_t *expert = guarded(pairs);
    const struct routing r = {c->experts, c->chosen, expert, share};
    const struct cview of_rows = {x, DTYPE_F32, c->rows, OUT};
    float *sum = out + pairs * OUT, *again = sum + rows * OUT;
    route_rows(b, c, logits, &r);
    memcpy(out, x, pairs * OUT * sizeof *out);
    memcpy(again, x, rows * OUT * sizeof *out);
    ok(backend_expert_bias(b, view_f32(out, c->rows, c->chosen * OUT), bias, &r, &err));
    ok(backend_expert_bias_sum(b, view_f32(sum, c->rows, OUT), of_rows, bias, &r, &err));
    ok(backend_expert_bias_sum(b, view_f32(again, c->rows, OUT),
                               (struct cview){again, DTYPE_F32, c->rows, OUT}, bias, &r, &err));
    guarded_free(expert, pairs);
    guarded_free(x, pairs * OUT);
    guarded_free(bias, biases);
    guarded_free(share, pairs);
    guarded_free(logits, logits_of(c));
}

static void test_biases(void **state UNUSED)
{
    static const struct route_case cases[] = {
        {1, 8, 2, true, .ties = false},    {5, 8, 2, false, .ties = false},
        {7, 32, 4, true, .ties = false},   {0, 8, 2, true, .ties = false},
        {130, 32, 4, true, .ties = false}, {3, 1, 1, true, .ties = false}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        run_case("biases of experts", bias_case, &cases[i],
                 (size_t)cases[i].rows * (size_t)(cases[i].chosen + 2) * 37, 1e-6, 1e-6);
}

/* Whatever the logits are, experts are different ones, everywhere the same, and shares of NaN say
 * so. */
static void test_route_nan(void **state UNUSED)
{
    enum { ROWS = 6, EXPERTS = 70, CHOSEN = 5, PAIRS = ROWS * CHOSEN };
    float logits[ROWS][EXPERTS];
    int32_t first[PAIRS], expert[PAIRS];
    for (size_t e = 0; e < EXPERTS; e++) {
        const float some = gen(14, e);
        logits[0][e] = e % 2 == 0 ? NAN : some;
        logits[1][e] = e == 0 ? -INFINITY : e == 1 ? INFINITY : some;
        logits[2][e] = NAN;
        logits[3][e] = e < 3 || e == 40 ? NAN : some;
        logits[4][e] = e == 0 ? 2 : e == 1 ? NAN : some; /* comes first when 0 is taken */
        logits[5][e] = -INFINITY;
    }
    for (int i = 0; nth_backend(i) != NULL; i++) {
        float share[PAIRS];
        const struct routing r = {EXPERTS, CHOSEN, i == 0 ? first : expert, share};
        ok(backend_route(nth_backend(i), &r, (struct cview){logits, DTYPE_F32, ROWS, EXPERTS},
                         &parts_of_chosen, &err));
        for (int n = 0; n < PAIRS; n++) {
            assert_true(r.expert[n] >= 0 && r.expert[n] < EXPERTS);
            assert_true(n % CHOSEN == 0 || r.expert[n] > r.expert[n - 1]);
            assert_int_equal(r.expert[n], first[n]);
            assert_true(isnan(share[n]));
        }
    }
}

/* ---- products ---- */

struct experts_case {
    int32_t rows, experts, chosen, in, out, leaves;
    enum dtype dtype;
    bool sums, crowded; /* crowded: few experts are taken */
    int32_t scale_cols, scale_skip;
};

static struct weight_spec experts_spec(const struct experts_case *c)
{
    struct weight_spec s = {.out = c->out, .in = c->in, .leaves = c->leaves, .dtype = c->dtype};
    s.scale_cols = c->scale_cols;
    s.scale_skip = c->scale_skip;
    s.scales_f32 = c->dtype == DTYPE_U4 || (dtype_is_int(c->dtype) && c->scale_skip % 5 == 0 &&
                                            c->dtype != DTYPE_F4_E2M1 && c->rows % 2 == 0);
    for (int32_t l = 0; l <= c->leaves; l++)
        s.cut[l] = c->in * l / c->leaves;
    return s;
}

/* The same on every backend, whatever route says there. */
static void choose(const struct experts_case *c, int32_t *expert, float *share)
{
    for (int32_t t = 0; t < c->rows; t++) {
        const int32_t some = c->crowded ? c->chosen + 1 : c->experts;
        const int32_t last = some < c->experts ? some : c->experts;
        int32_t e = 0;
        for (int32_t i = 0; i < c->chosen; i++, e++) {
            const int32_t room = last - c->chosen + i - e; /* how many may be left out */
            e += (int32_t)((gen(12, (size_t)(t * 64 + i)) + 1) * (float)(room + 1) / 2) /
                 (c->crowded ? 1 : 2);
            expert[t * c->chosen + i] = e;
            share[t * c->chosen + i] = (gen(13, (size_t)(t * 64 + i)) + 1) / 2;
        }
        assert_true(e <= c->experts);
    }
}

struct made_experts {
    struct experts *experts;
    const struct weight **weight;
    void **storage;
    int32_t count;
};

static struct made_experts make(struct backend *b, const struct experts_case *c)
{
    const struct weight_spec spec = experts_spec(c);
    struct made_experts m = {.count = c->experts};
    m.weight = must(calloc((size_t)m.count, sizeof(void *)));
    m.storage = must(calloc((size_t)m.count, sizeof(void *)));
    for (int32_t e = 0; e < m.count; e++)
        m.weight[e] = made(b, &spec, 100 + (uint64_t)e, put_dtype(c->dtype), 0, &m.storage[e]);
    ok(backend_experts_open(b, m.weight, m.count, c->chosen, c->rows, &m.experts, &err));
    return m;
}

static void unmake(struct backend *b, struct made_experts *m)
{
    b->ops->experts_close(m->experts);
    for (int32_t e = 0; e < m->count; e++) {
        b->ops->weight_close((struct weight *)(uintptr_t)m->weight[e]);
        free(m->storage[e]);
    }
    free(m->weight);
    free(m->storage);
}

static void multiply(struct backend *b, const struct experts_case *c, const struct made_experts *m,
                     const float *x, int32_t row, int32_t rows, struct routing r, float *y)
{
    const int32_t x_cols = c->in * (c->sums ? c->chosen : 1);
    const int32_t y_cols = c->out * (c->sums ? 1 : c->chosen);
    const struct cview in = {x + (ptrdiff_t)row * x_cols, DTYPE_F32, rows, x_cols};
    r.expert += (ptrdiff_t)row * c->chosen;
    r.share += (ptrdiff_t)row * c->chosen;
    const enum status st =
        c->sums ? backend_expert_sum(b, view_f32(y, rows, y_cols), in, m->experts, &r, &err)
                : backend_expert_linear(b, view_f32(y, rows, y_cols), in, m->experts, &r, &err);
    ok(st);
}

static size_t y_words(const struct experts_case *c)
{
    return (size_t)c->rows * (size_t)c->out * (size_t)(c->sums ? 1 : c->chosen);
}

static void experts_case(struct backend *b, const void *arg, float *out)
{
    const struct experts_case *c = arg;
    const size_t pairs = (size_t)c->rows * (size_t)c->chosen;
    const size_t words = (size_t)c->rows * (size_t)c->in * (size_t)(c->sums ? c->chosen : 1);
    float *x = generated(3, words), *share = guarded(pairs);
    int32_t *expert = guarded(pairs);
    struct made_experts m = make(b, c);
    const struct routing r = {c->experts, c->chosen, expert, share};
    choose(c, expert, share);
    multiply(b, c, &m, x, 0, c->rows, r, out);
    const size_t row_words = c->rows > 0 ? y_words(c) / (size_t)c->rows : 0;
    for (int32_t t = 0; t < c->rows; t += 1 + c->rows / 3) { /* the same bits */
        float *y = guarded(row_words);
        multiply(b, c, &m, x, t, 1, r, y);
        assert_bits("row alone", y, out + (size_t)t * row_words, row_words);
        guarded_free(y, row_words);
    }
    unmake(b, &m);
    guarded_free(expert, pairs);
    guarded_free(share, pairs);
    guarded_free(x, words);
}

static const struct experts_case shapes[] = {
    {.rows = 1, .experts = 8, .chosen = 2, .in = 64, .out = 96},
    {.rows = 1, .experts = 128, .chosen = 8, .in = 200, .out = 64},
    {.rows = 3, .experts = 5, .chosen = 3, .in = 77, .out = 130},
    {.rows = 4, .experts = 4, .chosen = 4, .in = 40, .out = 33},
    {.rows = 5, .experts = 16, .chosen = 2, .in = 96, .out = 200, .crowded = true},
    {.rows = 16, .experts = 6, .chosen = 2, .in = 129, .out = 50},
    {.rows = 40, .experts = 16, .chosen = 1, .in = 72, .out = 48, .crowded = true},
    {.rows = 70, .experts = 8, .chosen = 2, .in = 130, .out = 64},
    {.rows = 90, .experts = 3, .chosen = 1, .in = 33, .out = 40, .crowded = true},
    {.rows = 300, .experts = 12, .chosen = 3, .in = 48, .out = 40},
    {.rows = 600, .experts = 4, .chosen = 2, .in = 17, .out = 31},
    {.rows = 2, .experts = 3, .chosen = 1, .in = 0, .out = 20},
    {.rows = 2, .experts = 3, .chosen = 1, .in = 20, .out = 0},
    {.rows = 0, .experts = 3, .chosen = 2, .in = 20, .out = 8},
};

static void run_shapes(bool sums, enum dtype dtype, int32_t scale_cols, int32_t scale_skip)
{
    static const int32_t leaves[] = {8, 1, 4, 3};
    for (size_t s = 0; s < ARRAY_LEN(shapes); s++) {
        struct experts_case c = shapes[s];
        char what[96];
        c.sums = sums;
        c.leaves = sums ? leaves[s % ARRAY_LEN(leaves)] : 1;
        c.dtype = dtype;
        c.scale_cols = dtype_is_int(dtype) ? BACKEND_GROUP : scale_cols;
        c.scale_skip = scale_skip;
        const int32_t in = c.in * (sums ? c.chosen : 1);
        const double abs = 1e-6 + 6e-8 * in;
        snprintf(what, sizeof what, "%s %d rows, %d of %d, %dx%d/%d %s", sums ? "sum" : "linear",
                 c.rows, c.chosen, c.experts, c.in, c.out, c.leaves, dtype_name(dtype));
        run_case_loose(what, experts_case, &c, y_words(&c), abs, 1e-6,
                       device_bound(c.rows, in, dtype, abs));
    }
}

static const struct weight_type {
    enum dtype dtype;
    int32_t scale_cols, scale_skip;
} types[] = {{DTYPE_F32, 0, 0},      {DTYPE_F16, 0, 0},      {DTYPE_BF16, 0, 0},
             {DTYPE_F8_E4M3, 0, 0},  {DTYPE_F8_E4M3, 64, 0}, {DTYPE_F8_E4M3, 64, 5},
             {DTYPE_I8, 32, 0},      {DTYPE_I8, 32, 7},      {DTYPE_I4, 32, 0},
             {DTYPE_I4, 32, 30},     {DTYPE_U4, 32, 21},     {DTYPE_F4_E2M1, 32, 0},
             {DTYPE_F4_E2M1, 32, 11}};

static void test_linear(void **state UNUSED)
{
    for (size_t t = 0; t < ARRAY_LEN(types); t++)
        run_shapes(false, types[t].dtype, types[t].scale_cols, types[t].scale_skip);
}

static void test_sum(void **state UNUSED)
{
    for (size_t t = 0; t < ARRAY_LEN(types); t++)
        run_shapes(true, types[t].dtype, types[t].scale_cols, types[t].scale_skip);
}

/* Ascending over a row's experts: (2^27 - 2^27) + 1, which in any other order is 0. */
static void test_sum_order(void **state UNUSED)
{
    static const float value[3] = {0x1p27f, -0x1p27f, 1}, x[3] = {1, 1, 1};
    const struct weight_spec spec = {
        .out = 1, .in = 1, .dtype = DTYPE_F32, .leaves = 1, .cut = {0, 1}};
    for (int i = 0; nth_backend(i); i++) {
        struct backend *b = nth_backend(i);
        const struct weight *w[3];
        void *storage[3];
        int32_t expert[3] = {0, 1, 2};
        float share[3] = {1, 1, 1}, y = 0;
        const struct routing r = {3, 3, expert, share};
        struct experts *e = NULL;
        for (int n = 0; n < 3; n++) {
            storage[n] = aligned_bytes(b->ops->weight_bytes(&spec), 0);
            struct weight *made = must(b->ops->weight_open(b, &spec, storage[n]));
            b->ops->weight_put(made, 0, 1, &value[n], DTYPE_F32, sizeof value[n]);
            w[n] = made;
        }
        ok(backend_experts_open(b, w, 3, 3, 1, &e, &err));
        ok(backend_expert_sum(b, view_f32(&y, 1, 1), (struct cview){x, DTYPE_F32, 1, 3}, e, &r,
                              &err));
        assert_true(y == 1);
        b->ops->experts_close(e);
        for (int n = 0; n < 3; n++) {
            b->ops->weight_close((struct weight *)(uintptr_t)w[n]);
            free(storage[n]);
        }
    }
}

/* ---- parts of ranks ---- */

/* The sums of rank r, which has some leaves of every expert. */
static float *rank_sums(struct backend *b, const struct experts_case *c, const float *x,
                        const struct routing *routing, int32_t ranks, int32_t r)
{
    const struct weight_spec whole = experts_spec(c);
    struct made_experts m = {.count = c->experts};
    const int32_t pairs = c->rows * c->chosen, at = whole.cut[whole.leaves / ranks * r];
    m.weight = must(calloc((size_t)m.count, sizeof(void *)));
    m.storage = must(calloc((size_t)m.count, sizeof(void *)));
    for (int32_t e = 0; e < m.count; e++)
        m.weight[e] = made_part(b, &whole, 100 + (uint64_t)e, ranks, r, &m.storage[e]);
    ok(backend_experts_open(b, m.weight, m.count, c->chosen, c->rows, &m.experts, &err));
    struct experts_case mine = *c;
    mine.in = backend_weight_spec(m.weight[0])->in;
    float *part = guarded((size_t)pairs * (size_t)mine.in), *y = guarded(y_words(c));
    for (int32_t i = 0; i < pairs; i++)
        memcpy(part + (ptrdiff_t)i * mine.in, x + (ptrdiff_t)i * c->in + at, (size_t)mine.in * 4);
    multiply(b, &mine, &m, part, 0, c->rows, *routing, y);
    guarded_free(part, (size_t)pairs * (size_t)mine.in);
    unmake(b, &m);
    return y;
}

/* Sums of two or eight ranks, added up as a collective does, have the bits of one. */
static void parts_case(struct backend *b, const struct experts_case *c)
{
    const size_t pairs = (size_t)c->rows * (size_t)c->chosen, words = pairs * (size_t)c->in;
    float *x = generated(3, words), *share = guarded(pairs), *want = guarded(y_words(c));
    int32_t *expert = guarded(pairs);
    float *got = guarded(y_words(c)), *sums[8];
    const struct routing r = {c->experts, c->chosen, expert, share};
    struct made_experts m = make(b, c);
    choose(c, expert, share);
    multiply(b, c, &m, x, 0, c->rows, r, want);
    for (int32_t ranks = 2; ranks <= 8; ranks *= 4) {
        for (int32_t i = 0; i < ranks; i++)
            sums[i] = rank_sums(b, c, x, &r, ranks, i);
        b->ops->sum_tree(b, got, (const float *const *)sums, ranks, y_words(c));
        assert_bits(dtype_name(c->dtype), got, want, y_words(c));
        for (int32_t i = 0; i < ranks; i++)
            guarded_free(sums[i], y_words(c));
    }
    unmake(b, &m);
    guarded_free(expert, pairs);
    guarded_free(share, pairs);
    guarded_free(x, words);
    guarded_free(want, y_words(c));
    guarded_free(got, y_words(c));
}

/* With rows for all kernels of a device, and scales that change where leaves do or elsewhere. */
static void test_parts(void **state UNUSED)
{
    static const int32_t shapes_of_parts[][2] = {{2, 512}, {19, 301}, {120, 264}};
    for (size_t t = 0; t < ARRAY_LEN(types); t++)
        for (size_t i = 0; i < ARRAY_LEN(shapes_of_parts); i++) {
            const struct experts_case c = {.rows = shapes_of_parts[i][0],
                                           .experts = 6,
                                           .chosen = 2,
                                           .in = shapes_of_parts[i][1],
                                           .out = 40,
                                           .leaves = 8,
                                           .dtype = types[t].dtype,
                                           .sums = true,
                                           .scale_cols = types[t].scale_cols};
            parts_case(subjects[0], &c);
            if (invariant != NULL)
                parts_case(invariant, &c);
        }
}

/* ---- recordings of a device ---- */

/* A layer's ops, whose arrays lie on the device. */
struct layer {
    struct backend *b;
    const struct experts *up, *down;
    struct routing routing;
    struct cview logits, x;
    struct view h, y;
};

static struct view array(struct backend *b, int32_t rows, int32_t cols)
{
    return view_f32(must(b->ops->alloc(b, (size_t)rows * (size_t)cols * 4)), rows, cols);
}

static void run_layer(const struct layer *l)
{
    ok(backend_route(l->b, &l->routing, l->logits, &parts_of_all, &err));
    ok(backend_expert_linear(l->b, l->h, l->x, l->up, &l->routing, &err));
    ok(backend_expert_sum(l->b, l->y, cview_of(l->h), l->down, &l->routing, &err));
}

static void upload_logits(const struct layer *l, uint64_t seed)
{
    const size_t n = (size_t)l->logits.rows * (size_t)l->logits.cols;
    float *logits = generated(seed, n);
    l->b->ops->upload(l->b, (void *)(uintptr_t)l->logits.data, logits, n * 4);
    guarded_free(logits, n);
}

static float *download_sums(const struct layer *l)
{
    float *y = guarded((size_t)l->y.rows * (size_t)l->y.cols);
    ok(l->b->ops->download(l->b, y, l->y.data, (size_t)l->y.rows * (size_t)l->y.cols * 4, &err));
    return y;
}

/* A replay finds the experts that rows take then. */
static void recorded_case(struct backend *staged, int32_t rows)
{
    const struct experts_case c = {rows, 8, 2, 64, 48, 1, DTYPE_BF16, false, false, 0, 0};
    const struct experts_case d = {rows, 8, 2, 48, 32, 4, DTYPE_BF16, true, false, 0, 0};
    struct backend *b = staged_of(staged)->inner;
    struct made_experts up = make(staged, &c), down = make(staged, &d);
    const struct view expert = array(b, rows, c.chosen), share = array(b, rows, c.chosen);
    const struct view logits = array(b, rows, c.experts), x = array(b, rows, c.in);
    float *words = generated(7, (size_t)rows * (size_t)c.in);
    const struct layer l = {b,
                            ((struct staged_experts *)up.experts)->inner,
                            ((struct staged_experts *)down.experts)->inner,
                            {c.experts, c.chosen, expert.data, share.data},
                            cview_of(logits),
                            cview_of(x),
                            array(b, rows, c.chosen * c.out),
                            array(b, rows, d.out)};
    b->ops->upload(b, x.data, words, (size_t)rows * (size_t)c.in * 4);
    guarded_free(words, (size_t)rows * (size_t)c.in);
    upload_logits(&l, 20);
    run_layer(&l);
    assert_true(b->ops->record(b));
    run_layer(&l);
    struct recording *r = must(b->ops->record_end(b));
    for (uint64_t seed = 20; seed < 23; seed++) {
        upload_logits(&l, seed);
        b->ops->replay(b, r);
        float *got = download_sums(&l);
        run_layer(&l);
        float *want = download_sums(&l);
        assert_bits("replayed", got, want, y_words(&d));
        guarded_free(got, y_words(&d));
        guarded_free(want, y_words(&d));
    }
    b->ops->recording_close(r);
    const struct view arrays[] = {expert, share, logits, x, l.h, l.y};
    for (size_t i = 0; i < ARRAY_LEN(arrays); i++)
        b->ops->free(b, arrays[i].data);
    unmake(staged, &up);
    unmake(staged, &down);
}

static void test_recorded(void **state UNUSED)
{
    for (int i = subject_count + 1; nth_backend(i) != NULL; i++) {
        recorded_case(nth_backend(i), 3);
        recorded_case(nth_backend(i), 40);
        recorded_case(nth_backend(i), 200);
    }
}

/* ---- arguments ---- */

static void test_arguments(void **state UNUSED)
{
    const struct experts_case c = {
        .rows = 2, .experts = 4, .chosen = 2, .in = 8, .out = 8, .leaves = 1, .dtype = DTYPE_F32};
    struct backend *b = subjects[0];
    struct made_experts m = make(b, &c);
    int32_t expert[8] = {0, 1, 2, 3};
    float share[8] = {0}, x[64] = {0}, y[64];
    struct routing r = {4, 2, expert, share}, more = {4, 3, expert, share};
    const struct cview in = {x, DTYPE_F32, 2, 8};
    struct experts *e = NULL;
    ok(backend_expert_linear(b, view_f32(y, 2, 16), in, m.experts, &r, &err));
    assert_int_equal(backend_expert_linear(b, view_f32(y, 2, 8), in, m.experts, &r, &err),
                     ERR_INTERNAL);
    assert_int_equal(backend_expert_linear(b, view_f32(y, 2, 24), in, m.experts, &more, &err),
                     ERR_INTERNAL);
    assert_int_equal(backend_expert_sum(b, view_f32(y, 2, 8), in, m.experts, &r, &err),
                     ERR_INTERNAL);
    const struct cview many = {x, DTYPE_F32, 3, 8}; /* there is scratch for two rows */
    assert_int_equal(backend_expert_linear(b, view_f32(y, 3, 16), many, m.experts, &r, &err),
                     ERR_INTERNAL);
    assert_non_null(strstr(err.text, "expert_linear"));
    assert_int_equal(backend_experts_open(b, m.weight, 4, 5, 1, &e, &err), ERR_INTERNAL);
    assert_int_equal(backend_experts_open(b, m.weight, 0, 1, 1, &e, &err), ERR_INTERNAL);
    r.expert = NULL;
    assert_int_equal(backend_route(b, &r, (struct cview){x, DTYPE_F32, 2, 4}, &parts_of_all, &err),
                     ERR_INTERNAL);
    assert_null(e);
    unmake(b, &m);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_route),
        cmocka_unit_test(test_route_rules),
        cmocka_unit_test(test_route_corrected_parts),
        cmocka_unit_test(test_route_nan),
        cmocka_unit_test(test_biases),
        cmocka_unit_test(test_route_groups),
        cmocka_unit_test(test_route_kept),
        cmocka_unit_test(test_route_groups_nan),
        cmocka_unit_test(test_linear),
        cmocka_unit_test(test_sum),
        cmocka_unit_test(test_sum_order),
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_recorded),
        cmocka_unit_test(test_arguments),
    };
    only(argc, argv);
    return cmocka_run_group_tests(tests, open_invariant_too, close_subjects);
}
