/* DESIGN: rope_attend against rope_kv and attend of the same backend, to the bit: in what comes
 * out, and in all of the cache; and so the same where keys and values are stored first, as by
 * another layer, and the queries come alone. A cache has NaN wherever nothing is stored, the rows'
 * own places included, so that a key which is not put among the others shows. On an emulated device
 * launches are counted: decodes are to have one less where there is a kernel that does both. */
#include "tests/emulate/calls.h"
#include "tests/only.h"
#include "tests/subjects.h"

#define ROWS_MAX 48
#define HEADS_MAX 24

struct rope_case {
    int32_t heads, kv_heads, dim;
    enum dtype kv, qkv;
    const int32_t *positions; /* of rows, each of a slot of its own; ends with -2, padding is -1 */
    int32_t window;
    float softcap;
    bool sink, bias, norm, interleaved, run; /* run: the rows are of one slot, one behind another */
    int32_t rotary;                          /* 0: whole heads */
    int32_t saved;                           /* launches, on a device */
    bool values;                             /* norms of them */
    int32_t stride;                          /* bytes between blocks of all layers; 0: no stride */
};

static const int32_t starts[] = {0, 1, -1, 15, 16, 17, -2};
static const int32_t middles[] = {127, 128, -1, 129, -2};
static const int32_t longs[] = {1024, -2}, longest[] = {2047, -2}, over[] = {2048, 31, -2};
static const int32_t prompt[] = {30, 31, 32, 33, -1, -2}, many_rows[] = {0, 5, 2, 40, 33, -2};
/* of which the long ones are picked */
static const int32_t some_long[] = {0, 127, 2, 300, 33, -1, 81, -2};

/* A step, and a cache with what is before it. */
struct scene {
    const struct rope_case *c;
    int32_t slot[ROWS_MAX], position[ROWS_MAX], kv_of[HEADS_MAX], rows, slots, cols;
    int32_t *table;
    float *given, *angles, *bias, *gain, *sinks;
    struct kv_spec spec;
    struct rows step;
    struct heads heads;
};

static size_t row_cols(const struct rope_case *c)
{
    return (size_t)((c->heads + 2 * c->kv_heads) * c->dim);
}

/* Of both layers, in any backend. */
static size_t block_bytes(const struct kv_spec *s)
{
    const size_t lines = (size_t)(s->head_dim + 15) / 16 * 16 * BACKEND_BLOCK_TOKENS;
    return 4 * (size_t)s->heads * lines * dtype_size(s->dtype);
}

static void scene_open(struct scene *s, const struct rope_case *c)
{
    int32_t most = 0;
    *s = (struct scene){.c = c};
    for (; c->positions[s->rows] != -2; s->rows++) {
        const int32_t p = c->positions[s->rows];
        s->slot[s->rows] = p < 0 ? -1 : c->run ? 0 : s->slots++;
        s->position[s->rows] = p < 0 ? 1 << 30 : p;
        most = p > most ? p : most;
    }
    s->slots = c->run ? 1 : s->slots;
    s->cols = most / BACKEND_BLOCK_TOKENS + 1;
    s->table = guarded((size_t)(s->slots * s->cols));
    for (int32_t i = 0; i < s->slots * s->cols; i++) /* backwards, so scattered */
        s->table[i] = s->slots * s->cols - 1 - i;
    for (int32_t h = 0; h < c->heads; h++)
        s->kv_of[h] = h == 0 ? 0 : (h - 1) * c->kv_heads / c->heads;
    s->given = generated(51, (size_t)s->rows * row_cols(c));
    s->angles = generated(52, (size_t)(s->rows * c->dim));
    s->bias = generated(53, row_cols(c));
    s->gain = generated(54, (size_t)(2 * c->dim));
    s->sinks = generated(55, HEADS_MAX);
    s->spec = (struct kv_spec){2, c->kv_heads, c->dim, 0, s->slots * s->cols, c->kv, 0};
    if (c->stride > 0)
        s->spec.stride = block_bytes(&s->spec) + (size_t)c->stride;
    s->step = (struct rows){s->rows, s->slot, s->position, s->table, s->cols, !c->run, 0, 0};
    s->heads = (struct heads){c->heads, c->kv_heads, c->dim, s->kv_of, 0, false};
}

static void scene_close(struct scene *s)
{
    guarded_free(s->table, (size_t)(s->slots * s->cols));
    guarded_free(s->given, (size_t)s->rows * row_cols(s->c));
    guarded_free(s->angles, (size_t)(s->rows * s->c->dim));
    guarded_free(s->bias, row_cols(s->c));
    guarded_free(s->gain, (size_t)(2 * s->c->dim));
    guarded_free(s->sinks, HEADS_MAX);
}

/* Stores keys and values of all positions before those of the step. */
static void fill(struct backend *b, const struct scene *s, struct kv_cache *kv)
{
    static const struct qkv_rules nothing;
    const struct heads none = {0, s->c->kv_heads, s->c->dim, s->kv_of, 0, false};
    const int32_t cols = 2 * s->c->kv_heads * s->c->dim;
    for (int32_t t = 0; t < s->rows; t++) {
        const int32_t n = s->slot[t] < 0 || (s->c->run && t > 0) ? 0 : s->position[t];
        float *qkv = generated((uint64_t)(60 + t), (size_t)(n * cols + 1));
        int32_t *slot = guarded((size_t)(2 * n + 1)), *position = slot + n;
        for (int32_t p = 0; p < n; p++) {
            slot[p] = s->slot[t];
            position[p] = p;
        }
        const struct rows rows = {n, slot, position, s->table, s->cols, false, 0, 0};
        const struct cview table = {s->angles, DTYPE_F32, n, 0};
        if (n > 0)
            ok(backend_rope_kv(b, view_f32(qkv, n, cols), &nothing, table, &none, &rows, kv, 1,
                               &err));
        guarded_free(qkv, (size_t)(n * cols + 1));
        guarded_free(slot, (size_t)(2 * n + 1));
    }
}

static struct emulated_calls calls(struct backend *b)
{
    struct emulated_calls calls = {0};
    emulated_calls_fn *count =
        b == device || b == invariant ? emulated_calls_of(((struct staged *)b)->inner->ops) : NULL;
    if (count != NULL)
        count(&calls);
    return calls;
}

struct taken {
    uint64_t launches, meetings;
};

static void download_cache(struct backend *b, const struct kv_cache *kv, void *storage,
                           size_t bytes)
{
    if (b != device && b != invariant)
        return; /* it is there */
    struct backend *inner = ((struct staged *)b)->inner;
    ok(inner->ops->download(inner, storage, ((const struct staged_cache *)kv)->device, bytes,
                            &err));
}

static struct qkv_rules rules_of(const struct scene *s)
{
    const struct rope_case *c = s->c;
    return (struct qkv_rules){c->bias ? s->bias : NULL,
                              c->norm ? s->gain : NULL,
                              c->norm ? s->gain + c->dim : NULL,
                              c->values ? s->gain + c->dim / 2 : NULL,
                              1e-5f,
                              c->interleaved};
}

/* Columns [first, first + cols) of what is given, of the case's type. */
static struct view columns_of(const struct scene *s, int32_t first, int32_t cols)
{
    void *data = aligned_bytes((size_t)(s->rows * cols) * 4, 0);
    for (int32_t t = 0; t < s->rows; t++)
        for (int32_t i = 0; i < cols; i++)
            dtype_store(data, s->c->qkv, (size_t)(t * cols + i),
                        s->given[(size_t)t * row_cols(s->c) + (size_t)(first + i)]);
    return (struct view){data, s->c->qkv, s->rows, cols};
}

/* Stores the step's keys and values without its queries. */
static void store(struct backend *b, const struct scene *s, struct cview table, struct kv_cache *kv)
{
    const struct rope_case *c = s->c;
    const struct heads none = {0, c->kv_heads, c->dim, s->kv_of, 0, false};
    const int32_t queries = c->heads * c->dim;
    const struct view given = columns_of(s, queries, 2 * c->kv_heads * c->dim);
    struct qkv_rules rules = rules_of(s);
    if (rules.bias != NULL)
        rules.bias += queries;
    ok(backend_rope_kv(b, given, &rules, table, &none, &s->step, kv, 1, &err));
    free(given.data);
}

enum by { TWO, ONE, TWO_ALONE, ONE_ALONE }; /* ops; alone: of q, when the others are stored */

/* The step by one op or by two: what comes out, the cache behind it, what it has taken. */
static struct taken run(struct backend *b, const struct scene *s, enum by by, float *out,
                        void *storage, size_t bytes)
{
    const struct rope_case *c = s->c;
    const bool alone = by >= TWO_ALONE;
    struct kv_cache *kv = must(b->ops->kv_open(b, &s->spec, storage));
    const struct view qkv = columns_of(s, 0, alone ? c->heads * c->dim : (int32_t)row_cols(c));
    const struct view y = view_f32(out, s->rows, c->heads * c->dim);
    const struct cview table = {s->angles, DTYPE_F32, s->rows, c->rotary > 0 ? c->rotary : c->dim};
    const struct attention how = {0.37f, c->softcap, c->window, c->sink ? s->sinks : NULL};
    struct qkv_rules rules = rules_of(s);
    struct heads h = s->heads;
    h.alone = alone;
    if (alone)
        rules.k_norm = rules.v_norm = NULL;
    fill(b, s, kv);
    if (alone)
        store(b, s, table, kv);
    const struct emulated_calls before = calls(b);
    if (by == ONE || by == ONE_ALONE) {
        ok(backend_rope_attend(b, y, qkv, &rules, table, &h, &how, &s->step, kv, 1, &err));
    } else {
        ok(backend_rope_kv(b, qkv, &rules, table, &h, &s->step, kv, 1, &err));
        ok(backend_attend(b, y, cview_of(qkv), &h, &how, &s->step, kv, 1, &err));
    }
    download_cache(b, kv, storage, bytes); /* so all is done */
    const struct emulated_calls after = calls(b);
    b->ops->kv_close(kv);
    free(qkv.data);
    return (struct taken){after.launches - before.launches, after.meetings - before.meetings};
}

/* Of one op to what comes of two with all of q, k and v: of it all, or of q alone. Whether blocks
 * have met, if that is known: in both runs, or in none. */
static bool compare(struct backend *b, const struct rope_case *c, enum by by)
{
    char what[200];
    struct scene s;
    scene_open(&s, c);
    snprintf(what, sizeof what,
             "%s%s: %d/%d heads of %d from %d, %s of %s%s%s%s%s, window %d, cap %g", b->ops->name,
             by >= TWO_ALONE ? ", q alone" : "", c->heads, c->kv_heads, c->dim, c->positions[0],
             dtype_name(c->kv), dtype_name(c->qkv), c->bias ? ", bias" : "",
             c->norm ? ", norm" : "", c->interleaved ? ", interleaved" : "",
             c->run ? ", a run" : "", c->window, (double)c->softcap);
    const size_t n = (size_t)(s.rows * c->heads * c->dim), bytes = b->ops->kv_bytes(&s.spec);
    void *apart = aligned_bytes(bytes, 0xff), *together = aligned_bytes(bytes, 0xff);
    float *want = guarded(n), *got = guarded(n);
    const struct taken by_two = run(b, &s, TWO, want, apart, bytes);
    const struct taken by_one = run(b, &s, by, got, together, bytes);
    const uint64_t two = by_two.launches, one = by_one.launches;
    assert_bits(what, got, want, n);
    for (size_t i = 0; i < n; i++)
        if (isnan(want[i]))
            fail_msg("%s: nothing to compare", what);
    assert_bits(what, together, apart, bytes / 4);
    if (two > 0 && (two - one != (uint64_t)c->saved || (c->saved == 1 && two == 2 && one != 1)))
        fail_msg("%s: %d launches, of %d apart", what, (int)one, (int)two);
    if (by_two.meetings != by_one.meetings)
        fail_msg("%s: %d meetings, of %d apart", what, (int)by_one.meetings, (int)by_two.meetings);
    guarded_free(want, n);
    guarded_free(got, n);
    free(apart);
    free(together);
    scene_close(&s);
    return by_one.meetings > 0;
}

static void compare_all(const struct rope_case *cases, size_t count)
{
    for (size_t i = 0; i < count; i++)
        for (int k = 0; nth_backend(k) != NULL; k++)
            if (cases[i].qkv == DTYPE_F32 || k > subject_count)
                compare(nth_backend(k), &cases[i], ONE);
}

#define BF16 DTYPE_BF16
#define F16 DTYPE_F16
#define F8 DTYPE_F8_E4M3
#define F32 DTYPE_F32

/* Of each size and type, at beginnings and ends of cache blocks and splits. */
static void test_decodes(void **state UNUSED)
{
    static const struct rope_case cases[] = {
        {4, 1, 128, BF16, F32, starts, .saved = 1},   {4, 2, 128, BF16, BF16, starts, .saved = 1},
        {8, 1, 128, F8, F32, starts, .saved = 1},     {4, 1, 128, F8, BF16, middles, .saved = 1},
        {4, 1, 64, BF16, F32, starts, .saved = 1},    {1, 1, 64, F16, BF16, middles, .saved = 1},
        {2, 2, 64, F8, BF16, starts, .saved = 1},     {3, 1, 256, BF16, F32, starts, .saved = 1},
        {2, 1, 256, F8, BF16, middles, .saved = 1},   {1, 1, 256, F16, F32, middles, .saved = 1},
        {4, 1, 128, F16, F32, middles, .saved = 1},   {8, 2, 128, BF16, BF16, middles, .saved = 1},
        {4, 1, 128, F16, BF16, starts, .saved = 1},   {4, 1, 128, BF16, F32, longs, .saved = 1},
        {2, 1, 128, F8, F32, longs, .saved = 1},      {2, 1, 64, BF16, F32, longest, .saved = 1},
        {4, 1, 128, BF16, BF16, longest, .saved = 1}, {4, 2, 128, BF16, F32, over, .saved = 1},
        {2, 1, 256, F8, F32, over, .saved = 1},       {20, 1, 128, BF16, F32, starts, .saved = 1},
        {11, 1, 64, F8, BF16, middles, .saved = 1}};
    compare_all(cases, ARRAY_LEN(cases));
}

/* What families do; KV heads that nobody reads; rows for which there is not room in memory. */
static void test_rules(void **state UNUSED)
{
    static const struct rope_case cases[] = {
        {4, 1, 128, BF16, F32, starts, .bias = true, .saved = 1},
        {8, 1, 64, BF16, BF16, middles, 128, .sink = true, .bias = true, .saved = 1},
        {4, 2, 256, F8, F32, starts, .bias = true, .saved = 1},
        {4, 1, 128, BF16, F32, middles, 1, .saved = 1},
        {4, 1, 128, BF16, F32, middles, 17, 5, .saved = 1},
        {4, 1, 128, F8, BF16, longs, 128, 2, .sink = true, .saved = 1},
        {4, 1, 128, BF16, F32, starts, .interleaved = true, .saved = 1},
        {4, 1, 128, F8, BF16, middles, .interleaved = true, .bias = true, .saved = 1},
        {2, 1, 64, F16, F32, starts, .interleaved = true, .saved = 1},
        {2, 1, 256, BF16, F32, starts, .interleaved = true, .saved = 1},
        {2, 4, 128, BF16, F32, starts, .bias = true, .saved = 1},
        {2, 4, 256, F8, BF16, middles, .interleaved = true, .saved = 1},
        {24, 2, 128, BF16, F32, many_rows, .saved = 1},
        {24, 2, 256, F8, BF16, many_rows, .bias = true, .saved = 1},
        {24, 2, 128, BF16, F32, some_long, .saved = 1},
        {24, 2, 64, F8, BF16, some_long, .interleaved = true, .saved = 1},
        {20, 24, 128, BF16, F32, some_long, .saved = 1},
        {4, 2, 128, BF16, F32, middles, .stride = 4096, .saved = 1},
        {4, 2, 64, F8, BF16, longs, .stride = 256, .saved = 1}};
    compare_all(cases, ARRAY_LEN(cases));
}

/* Where there is no kernel that does both. */
static void test_two_launches(void **state UNUSED)
{
    static const struct rope_case cases[] = {
        {3, 1, 80, BF16, F32, starts, .saved = 0},
        {3, 1, 96, F8, BF16, middles, .saved = 0},
        {4, 2, 24, BF16, F32, starts, .saved = 0},
        {4, 2, 64, F32, F32, middles, .saved = 0},
        {4, 1, 128, BF16, F32, starts, .norm = true},
        {4, 1, 128, BF16, F32, starts, .rotary = 64},
        {4, 2, 128, BF16, F32, starts, .values = true},
        {4, 2, 64, F8, BF16, prompt, .run = true, .norm = true, .values = true},
        {4, 2, 128, BF16, BF16, prompt, .run = true, .values = true, .bias = true},
        {4, 1, 512, BF16, F32, starts, .norm = true, .values = true, .stride = 4096},
        {0, 2, 128, BF16, F32, starts, .saved = 0},
        {4, 1, 128, BF16, F32, prompt, .run = true},
        {4, 2, 64, F8, BF16, prompt, 9, .run = true, .bias = true}};
    compare_all(cases, ARRAY_LEN(cases));
}

/* Splits that blocks of a cluster have, up to eight on an emulated device, and those that are
 * merged otherwise. */
static void test_clusters(void **state UNUSED)
{
    static const int32_t one[] = {127, -2}, three[] = {300, -2}, four[] = {511, -2},
                         five[] = {512, -2}, eight[] = {1023, -2}, unlike[] = {200, 130, 31, -2};
    static const struct rope_case cases[] = {
        {4, 1, 128, BF16, F32, three, .saved = 1},
        {4, 1, 128, BF16, BF16, five, .saved = 1},
        {3, 1, 128, BF16, F32, eight, .saved = 1},
        {8, 1, 128, F8, F32, four, .saved = 1},
        {1, 1, 64, F16, F32, three, 200, 3, .sink = true, .saved = 1},
        {8, 2, 64, F8, BF16, three, .bias = true, .saved = 1},
        {3, 2, 256, BF16, F32, unlike, .saved = 1},
        {2, 1, 256, F8, F32, four, 300, .saved = 1},
        {3, 1, 80, BF16, F32, three, .saved = 0},
        {7, 1, 96, F8, F32, four, .saved = 0},
        {4, 1, 128, BF16, F32, three, .rotary = 64},
        /* one split, too many of them, or of heads, no such kernel */
        {4, 1, 128, BF16, F32, one, .saved = 1},
        {4, 1, 128, BF16, F32, longs, .saved = 1},
        {9, 1, 128, BF16, F32, three, .saved = 1},
        {4, 2, 64, F32, F32, three, .saved = 0}};
    const size_t apart = ARRAY_LEN(cases) - 4;
    compare_all(cases, ARRAY_LEN(cases));
    for (size_t i = 0; device != NULL && calls(device).launches > 0 && i < ARRAY_LEN(cases); i++)
        if (compare(device, &cases[i], ONE) != (i < apart))
            fail_msg("case %d: %s", (int)i, i < apart ? "no clusters" : "clusters");
}

/* Queries whose keys and values another layer has stored: of every kernel of attention, and of the
 * rotation. */
static void test_alone(void **state UNUSED)
{
    static const int32_t chunk[] = {14, 15, 16, 17, 18, 19, 20, 21, 22, -1, -2};
    static const struct rope_case cases[] = {
        {5, 1, 128, BF16, BF16, chunk, .run = true, .norm = true},
        {3, 2, 64, F8, BF16, chunk, .run = true, .bias = true, .interleaved = true},
        {4, 1, 128, BF16, F32, starts, .norm = true},
        {8, 2, 64, F16, BF16, middles, .bias = true},
        {3, 1, 256, F8, F32, starts, 17, 5, .norm = true},
        {4, 1, 512, BF16, BF16, middles, .norm = true, .rotary = 128, .stride = 4096},
        {2, 1, 512, F8, F32, starts, .norm = true, .values = true},
        {4, 2, 64, F32, F32, middles, .sink = true, .norm = true},
        {4, 1, 128, BF16, F32, longs, 1024, .norm = true},
        {4, 2, 128, BF16, F32, over, .interleaved = true},
        {24, 2, 128, BF16, F32, some_long, .norm = true},
        {3, 1, 80, BF16, F32, starts, .norm = true},
        {2, 4, 128, BF16, F32, starts, .bias = true},
        {4, 2, 64, F8, BF16, prompt, 9, .run = true, .norm = true},
        {8, 1, 128, BF16, BF16, prompt, .run = true, .norm = true, .values = true},
        {4, 1, 256, F16, F32, prompt, .run = true, .bias = true},
        {2, 1, 512, BF16, F32, prompt, 20, 3, .run = true, .norm = true}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        for (int k = 0; nth_backend(k) != NULL; k++)
            if (cases[i].qkv == F32 || k > subject_count) {
                compare(nth_backend(k), &cases[i], ONE_ALONE);
                compare(nth_backend(k), &cases[i], TWO_ALONE);
            }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_decodes), cmocka_unit_test(test_rules),
                                       cmocka_unit_test(test_two_launches),
                                       cmocka_unit_test(test_clusters),
                                       cmocka_unit_test(test_alone)};
    only(argc, argv);
    return cmocka_run_group_tests(tests, open_invariant_too, close_subjects);
}
