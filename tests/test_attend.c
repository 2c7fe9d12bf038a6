/* DESIGN: attention and the store of keys and values, by the rules of subjects.h; and a row alone
 * must give the bits it has among many. */
#include "tests/only.h"
#include "tests/subjects.h"

#define SLOTS 3
#define ATTEND_ROWS_MAX 3200
#define APART_MOST 150 /* tokens of cases in which an emulated device takes each row by itself */

struct attend_case {
    int32_t heads, kv_heads, dim, length; /* length: tokens of slot 1; the others are shorter */
    enum dtype dtype;
    int32_t window;
    float softcap, scale; /* scale 0: the usual one */
    bool sink;
};

/* From no weight beside the keys' to nearly all. */
static const float sinks[] = {-3, 4.5f, 0.25f, 12, -90, 1, 99, -0.5f, 2};

static struct attention how_of(const struct attend_case *c)
{
    const float usual = 1.0f / sqrtf((float)c->dim);
    return (struct attention){c->scale > 0 ? c->scale : usual, c->softcap, c->window,
                              c->sink ? sinks : NULL};
}

/* A case with what a family does before the rotation. */
struct rules_case {
    struct attend_case shape;
    bool bias, norm;
    float scale;    /* of the rotation */
    int32_t rotary; /* 0: whole heads; -1: nothing */
    bool interleaved;
    bool values;    /* norms of them */
    int32_t stride; /* bytes between blocks of all layers; 0: no stride */
};
static const struct qkv_rules no_rules;

struct batch {
    int32_t slot[ATTEND_ROWS_MAX], position[ATTEND_ROWS_MAX], kv_of[16];
    int32_t *table;
    struct rows rows;
    struct heads heads;
    struct attention how;
};

/* All tokens of all slots in one step, with padding between; blocks in a scattered order. */
static void batch_init(struct batch *b, const struct attend_case *c)
{
    const int32_t lengths[SLOTS] = {c->length / 3, c->length, 1}, cols = c->length / 16 + 1;
    int32_t n = 0;
    b->table = guarded((size_t)(SLOTS * cols));
    for (int32_t i = 0; i < SLOTS * cols; i++)
        b->table[i] = (i * 101 + 3) % (SLOTS * cols);
    for (int32_t s = 0; s < SLOTS; s++) {
        for (int32_t p = 0; p < lengths[s]; p++, n++) {
            b->slot[n] = s;
            b->position[n] = p;
        }
        b->slot[n] = -1;
        b->position[n++] = 1 << 30;
    }
    for (int32_t h = 0; h < c->heads; h++) /* uneven groups */
        b->kv_of[h] = h == 0 ? 0 : (h - 1) * c->kv_heads / c->heads;
    b->rows = (struct rows){n, b->slot, b->position, b->table, cols, false, 0, 0};
    b->heads = (struct heads){c->heads, c->kv_heads, c->dim, b->kv_of, 0, false};
    b->how = how_of(c);
}

static int32_t attend_rows(const struct attend_case *c)
{
    return c->length / 3 + c->length + 1 + SLOTS;
}

/* Rows on their own, at the places where something begins or ends, give the same bits; also with
 * padding behind them and where the host knows that rows are apart. */
static void attend_alone(struct backend *b, const struct batch *m, const float *qkv, int32_t cols,
                         const struct kv_cache *kv, const float *out)
{
    const int32_t width = m->heads.heads * m->heads.head_dim;
    for (int32_t t = 0; t < m->rows.count; t++) {
        const int32_t at = m->position[t] % 256;
        if (at > 1 && at < 254 && t % 97 != 0)
            continue;
        const int32_t count = t + 1 < m->rows.count && m->slot[t + 1] < 0 ? 2 : 1;
        const size_t n = (size_t)(count * width);
        const bool known = count == 2 || t % 2 == 0;
        const struct rows rows = {
            count, m->slot + t, m->position + t, m->table, m->rows.table_cols, known, 0, 0};
        float *y = guarded(n);
        struct cview q = {qkv + (size_t)t * (size_t)cols, DTYPE_F32, count, cols};
        ok(backend_attend(b, view_f32(y, count, width), q, &m->heads, &m->how, &rows, kv, 1, &err));
        assert_bits("row alone", y, out + (size_t)t * (size_t)width, n);
        guarded_free(y, n);
    }
}

static void attend_case(struct backend *b, const void *arg, float *out)
{
    const struct rules_case *r = arg;
    const struct attend_case *c = &r->shape;
    struct batch m;
    batch_init(&m, c);
    const int32_t rows = m.rows.count, cols = (c->heads + 2 * c->kv_heads) * c->dim;
    const size_t n = (size_t)rows * (size_t)cols, width = (size_t)(c->heads * c->dim);
    struct kv_spec spec = {2, c->kv_heads, c->dim, 0, SLOTS * m.rows.table_cols, c->dtype, 0};
    if (r->stride > 0) { /* of both layers, in any backend, and more */
        const size_t lines = (size_t)(c->dim + 15) / 16 * 16 * BACKEND_BLOCK_TOKENS;
        spec.stride = 4 * (size_t)c->kv_heads * lines * dtype_size(c->dtype) + (size_t)r->stride;
    }
    void *storage = aligned_bytes(b->ops->kv_bytes(&spec), 0xff); /* NaN in every unused place */
    struct kv_cache *kv = must(b->ops->kv_open(b, &spec, storage));
    const int32_t rotary = r->rotary > 0 ? r->rotary : r->rotary < 0 ? 0 : c->dim;
    float *qkv = generated(31, n), *table = guarded((size_t)(rows * c->dim)), freq[256];
    memset(table, 0, (size_t)(rows * c->dim) * sizeof *table); /* what a part of them leaves */
    for (int32_t i = 0; i < rotary / 2; i++)
        freq[i] = (float)pow(10000, -2.0 * i / rotary);
    ok(backend_reserve(b, 64, 2048, 0, &err)); /* so that long rows may be split */
    struct view v = view_f32(qkv, rows, cols), t = view_f32(table, rows, rotary);
    ok(backend_rope_table(b, t, m.position, freq, r->scale, &err));
    float *bias = generated(35, (size_t)cols), *gain = generated(36, (size_t)(2 * c->dim));
    float *values = generated(37, (size_t)c->dim);
    const struct qkv_rules rules = {r->bias ? bias : NULL,
                                    r->norm ? gain : NULL,
                                    r->norm ? gain + c->dim : NULL,
                                    r->values ? values : NULL,
                                    1e-5f,
                                    r->interleaved};
    ok(backend_rope_kv(b, v, &rules, cview_of(t), &m.heads, &m.rows, kv, 1, &err));
    struct view y = view_f32(out, rows, c->heads * c->dim);
    ok(backend_attend(b, y, cview_of(v), &m.heads, &m.how, &m.rows, kv, 1, &err));
    if (b != ref && b != device) /* which takes another way then */
        attend_alone(b, &m, qkv, cols, kv, out);
    memcpy(out + (size_t)rows * width, qkv, n * 4);
    memcpy(out + (size_t)rows * width + n, table, (size_t)(rows * c->dim) * 4);
    b->ops->kv_close(kv);
    free(storage);
    guarded_free(qkv, n);
    guarded_free(bias, (size_t)cols);
    guarded_free(gain, (size_t)(2 * c->dim));
    guarded_free(values, (size_t)c->dim);
    guarded_free(table, (size_t)(rows * c->dim));
    guarded_free(m.table, (size_t)(SLOTS * m.rows.table_cols));
}

/* cols: what comes of a row. */
static void check(const char *op, case_fn fn, const struct rules_case *r, int32_t cols)
{
    const struct attend_case *c = &r->shape;
    char what[160];
    snprintf(what, sizeof what, "%s %d/%d heads of %d, %d tokens, %s%s%s%s%s, window %d, cap %g",
             op, c->heads, c->kv_heads, c->dim, c->length, dtype_name(c->dtype),
             r->bias ? ", bias" : "", r->norm ? ", norm" : "", c->sink ? ", sinks" : "",
             r->interleaved ? ", interleaved" : "", c->window, (double)c->softcap);
    /* Narrow keys: a last-bit difference of a rotated key may round to the other neighbour. */
    const double abs = c->dtype == DTYPE_F32 ? 3e-6 : 2e-3;
    /* A device may round queries and weights to the type of the keys, with F8_E4M3 to bf16. */
    const double rounding = c->dtype == DTYPE_F32 ? 0 : c->dtype == DTYPE_F16 ? 1e-3 : 4e-3;
    run_case_loose(what, fn, r, (size_t)attend_rows(c) * (size_t)cols, abs, 2e-6, abs + rounding);
}

static void check_attend(const struct rules_case *r)
{
    const struct attend_case *c = &r->shape;
    check("attend", attend_case, r, (2 * c->heads + 2 * c->kv_heads + 1) * c->dim);
}

static void test_attend(void **state UNUSED)
{
    static const struct attend_case cases[] = {
        {1, 1, 2, 1, .dtype = DTYPE_F32},        {4, 2, 16, 40, .dtype = DTYPE_F32},
        {6, 2, 24, 33, .dtype = DTYPE_BF16},     {3, 3, 64, 258, .dtype = DTYPE_F16},
        {9, 1, 20, 100, .dtype = DTYPE_F32},     {0, 2, 32, 17, .dtype = DTYPE_F16},
        {0, 0, 8, 5, .dtype = DTYPE_BF16},       {5, 3, 128, 70, .dtype = DTYPE_F32},
        {1, 1, 256, 20, .dtype = DTYPE_F16},     {2, 1, 8, 470, .dtype = DTYPE_F32},
        {4, 1, 64, 300, .dtype = DTYPE_BF16},    {5, 1, 6, 2310, .dtype = DTYPE_F32},
        {4, 2, 6, 1030, .dtype = DTYPE_F32},     {2, 1, 512, 40, .dtype = DTYPE_BF16},
        {3, 1, 162, 37, .dtype = DTYPE_F32},     {4, 2, 64, 300, .dtype = DTYPE_F8_E4M3},
        {3, 1, 20, 600, .dtype = DTYPE_F8_E4M3}, {9, 2, 128, 45, .dtype = DTYPE_F8_E4M3},
        {7, 2, 64, 150, .dtype = DTYPE_F16},     {3, 2, 80, 140, .dtype = DTYPE_BF16},
        {2, 1, 96, 100, .dtype = DTYPE_F8_E4M3}, {6, 1, 128, 130, .dtype = DTYPE_BF16},
        {1, 1, 256, 70, .dtype = DTYPE_BF16},    {4, 1, 128, 650, .dtype = DTYPE_BF16},
        {4, 1, 128, 650, .dtype = DTYPE_F8_E4M3}};
    struct backend *const apart = invariant;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        invariant = cases[i].length <= APART_MOST ? apart : NULL;
        check_attend(&(struct rules_case){cases[i], .scale = 1});
    }
    invariant = apart;
}

/* Windows that end in a block, in a segment, at their ends, and behind a whole segment; and scores
 * that are capped or scaled otherwise. */
static void test_windows(void **state UNUSED)
{
    static const struct attend_case cases[] = {
        {4, 2, 16, 40, DTYPE_F32, .window = 1},
        {6, 2, 24, 33, DTYPE_BF16, .window = 7, .softcap = 5},
        {3, 3, 64, 258, DTYPE_F16, .window = 16},
        {9, 1, 20, 100, DTYPE_F32, .window = 33, .scale = 0.4f},
        {4, 1, 64, 300, DTYPE_BF16, .window = 250, .softcap = 2},
        {5, 1, 6, 2310, DTYPE_F32, .window = 1100},
        {4, 2, 6, 1030, DTYPE_F32, .window = 256, .softcap = 1.5f},
        {2, 1, 8, 1470, DTYPE_F32, .window = 530},
        {2, 1, 512, 40, DTYPE_BF16, .window = 20},
        {3, 1, 162, 37, DTYPE_F32, .window = 17},
        {4, 2, 64, 300, DTYPE_F8_E4M3, .window = 65},
        {3, 1, 20, 600, DTYPE_F8_E4M3, .window = 300},
        {7, 2, 64, 150, DTYPE_F16, .softcap = 3},
        {6, 1, 128, 130, DTYPE_BF16, .window = 48, .softcap = 4},
        {2, 1, 96, 100, DTYPE_F8_E4M3, .softcap = 2, .scale = 0.3f},
        {1, 1, 256, 70, DTYPE_BF16, .window = 31, .softcap = 5, .scale = 0.1f},
        {1, 1, 256, 70, DTYPE_BF16, .window = 1000}};
    struct backend *const apart = invariant;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        invariant = cases[i].length <= APART_MOST ? apart : NULL;
        check_attend(&(struct rules_case){cases[i], .scale = 1});
    }
    invariant = apart;
}

/* Keys without a value, of every kernel, beside windows and caps. */
static void test_sinks(void **state UNUSED)
{
    static const struct attend_case cases[] = {
        {8, 1, 64, 140, DTYPE_BF16, .window = 128, .sink = true},
        {8, 2, 64, 300, .dtype = DTYPE_BF16, .sink = true},
        {9, 3, 24, 60, .dtype = DTYPE_F32, .sink = true},
        {5, 1, 6, 2310, .dtype = DTYPE_F32, .sink = true},
        {4, 2, 6, 1030, DTYPE_F32, .window = 256, .softcap = 1.5f, .sink = true},
        {7, 2, 64, 150, DTYPE_F16, .softcap = 3, .sink = true},
        {4, 1, 128, 100, .dtype = DTYPE_F8_E4M3, .sink = true},
        {1, 1, 256, 70, DTYPE_BF16, .window = 31, .sink = true}};
    struct backend *const apart = invariant;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        invariant = cases[i].length <= APART_MOST ? apart : NULL;
        check_attend(&(struct rules_case){cases[i], .scale = 1});
    }
    invariant = apart;
}

/* Biases, norms of heads, and both. */
static void test_rules(void **state UNUSED)
{
    static const struct rules_case cases[] = {
        {{5, 2, 128, 20, .dtype = DTYPE_BF16},
         .bias = true,
         .norm = true,
         .scale = 1.2f,
         .rotary = 96},
        {{3, 1, 20, 33, .dtype = DTYPE_F32}, .scale = 1, .rotary = 2},
        {{4, 2, 24, 40, .dtype = DTYPE_BF16}, true, true, 1, -1, false, false, 0},
        {{4, 2, 24, 40, .dtype = DTYPE_BF16}, true, true, 1.2f, 12, true, false, 0},
        {{5, 2, 128, 20, .dtype = DTYPE_F32}, .scale = 1, .interleaved = true},
        {{3, 1, 162, 37, .dtype = DTYPE_F32}, true, false, 1, 54, true, false, 0},
        {{5, 1, 16, 40, .dtype = DTYPE_F32}, .bias = true, .norm = false, .scale = 1.14f},
        {{4, 2, 128, 20, .dtype = DTYPE_F32}, .bias = false, .norm = true, .scale = 1},
        {{3, 3, 20, 33, .dtype = DTYPE_BF16}, .bias = true, .norm = false, .scale = 1},
        {{2, 1, 162, 37, .dtype = DTYPE_F32}, .bias = false, .norm = true, .scale = 1},
        {{6, 2, 24, 20, .dtype = DTYPE_F16}, .bias = true, .norm = true, .scale = 1.2f},
        {{1, 1, 2, 3, .dtype = DTYPE_F32}, .bias = true, .norm = true, .scale = 1},
        {{0, 1, 8, 9, .dtype = DTYPE_F32}, .bias = true, .norm = true, .scale = 1},
        {{0, 0, 8, 5, .dtype = DTYPE_F32}, .bias = true, .norm = true, .scale = 1},
        {{4, 2, 128, 40, .dtype = DTYPE_BF16}, .norm = true, .scale = 1, .values = true},
        {{4, 2, 512, 40, .dtype = DTYPE_BF16},
         .norm = true,
         .scale = 1,
         .values = true,
         .stride = 1024},
        {{5, 2, 20, 33, .dtype = DTYPE_F32}, .bias = true, .scale = 1, .values = true},
        {{4, 2, 128, 140, .dtype = DTYPE_BF16, .window = 100}, .scale = 1, .stride = 256},
        {{4, 2, 128, 140, .dtype = DTYPE_BF16}, .scale = 1, .stride = 8192},
        {{3, 1, 64, 300, .dtype = DTYPE_F16}, .scale = 1, .stride = 512},
        {{4, 2, 64, 70, .dtype = DTYPE_F8_E4M3}, .scale = 1, .stride = 256}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        check_attend(&cases[i]);
}

/* ---- steps of other rows ---- */

/* A batch whose cache is filled, and the outputs of all its rows at once. */
struct attended {
    struct batch m;
    int32_t cols, width;
    void *storage;
    struct kv_cache *kv;
    float *qkv, *out;
};

static bool is_in_run(const struct rows *r, int32_t t)
{
    const int32_t *slot = r->slot + t;
    return *slot >= 0 && ((t > 0 && slot[-1] == *slot) || (t + 1 < r->count && slot[1] == *slot));
}

/* What attend makes of rows [begin, end) of a batch in a step of their own, of which is known where
 * runs are. */
static void attend_part(struct backend *b, const struct attended *a, int32_t begin, int32_t end,
                        float *y)
{
    const struct batch *m = &a->m;
    struct rows part = {end - begin,
                        m->slot + begin,
                        m->position + begin,
                        m->table,
                        m->rows.table_cols,
                        false,
                        0,
                        0};
    while (part.head < part.count && is_in_run(&part, part.head))
        part.head++;
    while (part.tail < part.count - part.head && is_in_run(&part, part.count - 1 - part.tail))
        part.tail++;
    const struct cview q = {a->qkv + (ptrdiff_t)begin * a->cols, DTYPE_F32, part.count, a->cols};
    ok(backend_attend(b, view_f32(y, part.count, a->width), q, &m->heads, &m->how, &part, a->kv, 1,
                      &err));
}

static void attended_open(struct attended *a, struct backend *b, const struct attend_case *c)
{
    batch_init(&a->m, c);
    const int32_t rows = a->m.rows.count;
    a->cols = (c->heads + 2 * c->kv_heads) * c->dim;
    a->width = c->heads * c->dim;
    const struct kv_spec spec = {
        2, c->kv_heads, c->dim, 0, SLOTS * a->m.rows.table_cols + 1, c->dtype, 0};
    a->storage = aligned_bytes(b->ops->kv_bytes(&spec), 0xff);
    a->kv = must(b->ops->kv_open(b, &spec, a->storage));
    a->qkv = generated(33, (size_t)(rows * a->cols));
    a->out = guarded((size_t)(rows * a->width));
    float *table = generated(34, (size_t)(rows * c->dim));
    const struct cview t = {table, DTYPE_F32, rows, c->dim};
    struct view qkv = view_f32(a->qkv, rows, a->cols);
    ok(backend_rope_kv(b, qkv, &no_rules, t, &a->m.heads, &a->m.rows, a->kv, 1, &err));
    attend_part(b, a, 0, rows, a->out);
    guarded_free(table, (size_t)(rows * c->dim));
}

static void attended_close(struct attended *a, struct backend *b)
{
    const int32_t rows = a->m.rows.count;
    b->ops->kv_close(a->kv);
    free(a->storage);
    guarded_free(a->qkv, (size_t)(rows * a->cols));
    guarded_free(a->out, (size_t)(rows * a->width));
    guarded_free(a->m.table, (size_t)(SLOTS * a->m.rows.table_cols));
}

/* What no row from this one on sees is somebody else's by now: NaNs. */
static void slide(struct attended *a, int32_t row)
{
    const struct batch *m = &a->m;
    const int32_t unseen = m->position[row] + 1 - m->how.window, cols = m->rows.table_cols;
    for (int32_t i = 0; m->how.window > 0 && i < unseen / BACKEND_BLOCK_TOKENS; i++)
        m->table[m->slot[row] * cols + i] = SLOTS * cols;
}

/* Chunks of two rows or more: a row's bits do not depend on those beside it, on a device neither.
 */
static void chunks(struct backend *b, const struct attend_case *c)
{
    struct attended a;
    attended_open(&a, b, c);
    const int32_t first = c->length / 3 + 1, end = first + c->length;
    float *y = guarded((size_t)(c->length * a.width));
    for (int32_t t = first, n = 2; t < end; t += n, n = n * 3 - 1) {
        n = end - t - n >= 2 ? n : end - t;
        slide(&a, t);
        attend_part(b, &a, t, t + n, y);
        assert_bits("a chunk", y, a.out + (ptrdiff_t)t * a.width, (size_t)(n * a.width));
    }
    guarded_free(y, (size_t)(c->length * a.width));
    attended_close(&a, b);
}

/* What is not a number stays so, capped or not, and stays in its row and head. */
static void not_finite(struct backend *b, const struct attend_case *c)
{
    struct attended a;
    attended_open(&a, b, c);
    const int32_t rows = a.m.rows.count, row = c->length / 3 + 3, head = c->heads - 1;
    a.qkv[row * a.cols + head * c->dim + 1] = NAN;
    for (int alone = 0; alone < 2; alone++) {
        attend_part(b, &a, alone ? row : 0, alone ? row + 1 : rows,
                    a.out + (alone ? (ptrdiff_t)row * a.width : 0));
        for (int32_t t = 0; t < rows; t++)
            for (int32_t i = 0; i < a.width; i++)
                assert_int_equal(isnan(a.out[t * a.width + i]), t == row && i / c->dim == head);
    }
    attended_close(&a, b);
}

static void test_not_finite(void **state UNUSED)
{
    static const struct attend_case cases[] = {{4, 2, 64, 40, .dtype = DTYPE_BF16},
                                               {4, 2, 64, 40, DTYPE_BF16, .softcap = 5},
                                               {3, 1, 24, 40, DTYPE_F32, .softcap = 2},
                                               {4, 1, 64, 40, DTYPE_BF16, .sink = true}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        not_finite(subjects[0], &cases[i]);
        if (device != NULL)
            not_finite(device, &cases[i]);
        if (invariant != NULL)
            not_finite(invariant, &cases[i]);
    }
}

static void test_chunks(void **state UNUSED)
{
    static const struct attend_case cases[] = {
        {6, 2, 64, 150, .dtype = DTYPE_BF16},
        {6, 2, 64, 150, DTYPE_BF16, .window = 37},
        {3, 1, 24, 100, DTYPE_F32, .window = 18},
        {5, 1, 128, 90, DTYPE_BF16, .window = 9, .softcap = 3},
        {8, 1, 64, 150, DTYPE_BF16, .window = 37, .sink = true},
        {5, 1, 80, 70, .dtype = DTYPE_F16},
        {4, 4, 128, 90, .dtype = DTYPE_F8_E4M3},
        {3, 2, 256, 70, .dtype = DTYPE_BF16},
        {3, 1, 24, 100, .dtype = DTYPE_F32}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        chunks(subjects[0], &cases[i]);
        if (device != NULL)
            chunks(device, &cases[i]);
        if (invariant != NULL)
            chunks(invariant, &cases[i]);
    }
}

/* Decoding sequences, three in a step, and among so many that a device cannot split them all. */
static void decodes(struct backend *b, const struct attend_case *c)
{
    enum { MANY = 160 };
    struct attended a;
    attended_open(&a, b, c);
    struct attended many = a;
    const int32_t lengths[] = {c->length / 3, c->length}, first[] = {0, lengths[0] + 1};
    many.qkv = guarded((size_t)(MANY * a.cols));
    many.out = guarded((size_t)(MANY * a.width));
    for (int32_t t = 0; t < MANY; t++) { /* slots 0 and 1 in turns */
        const int32_t s = t % 2, p = t * 37 % lengths[s];
        many.m.slot[t] = s;
        many.m.position[t] = p;
        memcpy(many.qkv + (ptrdiff_t)t * a.cols, a.qkv + (ptrdiff_t)(first[s] + p) * a.cols,
               (size_t)a.cols * sizeof(float));
    }
    attend_part(b, &many, 0, MANY, many.out);
    float *y = guarded((size_t)(3 * a.width));
    for (int32_t t = 0; t + 3 <= MANY; t += 25) {
        attend_part(b, &many, t, t + 3, y);
        assert_bits("three decodes", y, many.out + (ptrdiff_t)t * a.width, (size_t)(3 * a.width));
    }
    guarded_free(y, (size_t)(3 * a.width));
    guarded_free(many.qkv, (size_t)(MANY * a.cols));
    guarded_free(many.out, (size_t)(MANY * a.width));
    attended_close(&a, b);
}

static void test_decodes(void **state UNUSED)
{
    static const struct attend_case cases[] = {
        {16, 3, 128, 90, .dtype = DTYPE_BF16},    {16, 3, 128, 90, DTYPE_BF16, .window = 21},
        {16, 2, 128, 70, .dtype = DTYPE_F8_E4M3}, {3, 1, 64, 700, .dtype = DTYPE_F16},
        {2, 1, 128, 512, .dtype = DTYPE_BF16},    {3, 1, 128, 512, .dtype = DTYPE_F8_E4M3},
        {15, 1, 80, 400, .dtype = DTYPE_F8_E4M3}, {16, 3, 48, 90, .dtype = DTYPE_BF16}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        decodes(subjects[0], &cases[i]);
        if (device != NULL)
            decodes(device, &cases[i]);
        if (invariant != NULL)
            decodes(invariant, &cases[i]);
    }
}

/* ---- keys and values of another layer ---- */

/* One stores them; the queries of the next, which has none, come alone. */
static void alone_case(struct backend *b, const void *arg, float *out)
{
    const struct rules_case *r = arg;
    const struct attend_case *c = &r->shape;
    struct attended first, a;
    ok(backend_reserve(b, 64, 2048, 0, &err)); /* so that long rows may be split */
    attended_open(&first, b, c);
    a = first;
    const int32_t rows = a.m.rows.count, rotary = r->rotary > 0 ? r->rotary : c->dim;
    const size_t n = (size_t)(rows * a.width);
    a.m.heads.alone = true;
    a.cols = a.width;
    a.qkv = generated(38, n);
    float *bias = generated(35, (size_t)a.width), *gain = generated(36, (size_t)c->dim);
    float *table = generated(39, (size_t)(rows * rotary));
    const struct qkv_rules rules = {.bias = r->bias ? bias : NULL,
                                    .q_norm = r->norm ? gain : NULL,
                                    .eps = 1e-5f,
                                    .interleaved = r->interleaved};
    const struct cview t = {table, DTYPE_F32, rows, rotary};
    ok(backend_rope_kv(b, view_f32(a.qkv, rows, a.width), &rules, t, &a.m.heads, &a.m.rows, a.kv, 1,
                       &err));
    attend_part(b, &a, 0, rows, out);
    if (b != ref && b != device)
        attend_alone(b, &a.m, a.qkv, a.cols, a.kv, out);
    memcpy(out + n, a.qkv, n * sizeof *out);
    guarded_free(a.qkv, n);
    guarded_free(bias, (size_t)a.width);
    guarded_free(gain, (size_t)c->dim);
    guarded_free(table, (size_t)(rows * rotary));
    attended_close(&first, b);
}

static void test_alone(void **state UNUSED)
{
    static const struct rules_case cases[] = {
        {{4, 2, 64, 300, .dtype = DTYPE_BF16}, .norm = true},
        {{8, 1, 128, 140, DTYPE_BF16, .window = 100, .softcap = 2}, .norm = true},
        {{4, 1, 256, 70, DTYPE_BF16, .window = 31}, .norm = true},
        {{4, 1, 512, 70, .dtype = DTYPE_BF16}, .norm = true, .rotary = 128},
        {{7, 2, 64, 150, DTYPE_F16, .softcap = 3}, .bias = true},
        {{5, 1, 512, 40, DTYPE_F16, .window = 20}, .norm = true},
        {{9, 2, 128, 45, .dtype = DTYPE_F8_E4M3}, .bias = true, .norm = true},
        {{2, 1, 256, 60, .dtype = DTYPE_F8_E4M3}, .norm = true, .interleaved = true},
        {{3, 1, 512, 40, .dtype = DTYPE_F8_E4M3}, .norm = true},
        {{5, 3, 128, 70, .dtype = DTYPE_F32, .sink = true}, .norm = true},
        {{4, 2, 256, 40, .dtype = DTYPE_F32}, .bias = true, .interleaved = true},
        {{2, 1, 512, 40, .dtype = DTYPE_F32}, .norm = true},
        {{5, 1, 6, 2310, DTYPE_F32, .window = 1100}, .norm = true},
        {{3, 1, 80, 140, .dtype = DTYPE_BF16}, .norm = true},
        {{0, 2, 32, 17, .dtype = DTYPE_F16}, .norm = true}};
    struct backend *const apart = invariant;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const struct attend_case *c = &cases[i].shape;
        invariant = c->length <= APART_MOST ? apart : NULL;
        check("q alone,", alone_case, &cases[i], 2 * c->heads * c->dim);
    }
    invariant = apart;
}

/* Widths of rows with keys and values, latents, and a norm of keys that are not there. */
static void test_alone_refused(void **state UNUSED)
{
    enum { DIM = 32 };
    const int32_t slot = 0, position = 0, block = 0, kv_of = 0;
    const struct rows rows = {1, &slot, &position, &block, 1, true, 0, 0};
    const struct kv_spec spec = {1, 1, DIM, 0, 1, DTYPE_F32, 0};
    struct backend *b = subjects[0];
    float qkv[3 * DIM] = {0}, gain[DIM] = {0}, squares[2];
    void *storage = aligned_bytes(b->ops->kv_bytes(&spec), 0);
    struct kv_cache *kv = must(b->ops->kv_open(b, &spec, storage));
    const struct cview none = {NULL, DTYPE_F32, 1, 0};
    const struct qkv_rules of_q = {.q_norm = gain};
    const struct joint_norm joint = {1, 1, 0, 0, false, gain, gain, 1e-5f};
    struct heads h = {1, 1, DIM, &kv_of, 0, true};
    const struct view q = view_f32(qkv, 1, DIM), all = view_f32(qkv, 1, 3 * DIM);
    ok(backend_rope_kv(b, q, &of_q, none, &h, &rows, kv, 0, &err));
    assert_int_equal(backend_rope_kv(b, all, &of_q, none, &h, &rows, kv, 0, &err), ERR_INTERNAL);
    assert_int_equal(
        backend_joint_squares(b, view_f32(squares, 1, 2), cview_of(q), &joint, &h, &err),
        ERR_INTERNAL);
    assert_int_equal(
        backend_joint_scale(b, q, (struct cview){squares, DTYPE_F32, 1, 2}, &joint, &h, &err),
        ERR_INTERNAL);
    h.latent = 16;
    assert_int_equal(backend_rope_kv(b, q, &no_rules, none, &h, &rows, kv, 0, &err), ERR_INTERNAL);
    h = (struct heads){1, 1, DIM, &kv_of, 0, false};
    assert_int_equal(backend_rope_kv(b, q, &no_rules, none, &h, &rows, kv, 0, &err), ERR_INTERNAL);
    assert_int_equal(backend_rope_kv(b, all, &of_q, none, &h, &rows, kv, 0, &err), ERR_INTERNAL);
    b->ops->kv_close(kv);
    free(storage);
}

/* ---- what is stored ---- */

/* One key: the output is its value as the cache has it. E4M3 has 3 bits behind the point, steps of
 * 2^-9 below 2^-6, and nothing above 448. */
static void test_attend_f8(void **state UNUSED)
{
    static const struct {
        float given, stored;
    } values[] = {{1, 1},
                  {17, 16},
                  {19, 20},
                  {-0.3f, -0.3125f},
                  {447, 448},
                  {449, 448},
                  {480, 448},
                  {1e9f, 448},
                  {-1e9f, -448},
                  {INFINITY, 448},
                  {-INFINITY, -448},
                  {NAN, NAN},
                  {0x1p-10f, 0},
                  {0x3p-10f, 0x1p-8f},
                  {-0x1p-9f, -0x1p-9f},
                  {0x1.2p-6f, 0x1.2p-6f}};
    enum { DIM = ARRAY_LEN(values) };
    const int32_t slot = 0, position = 0, block = 0, kv_of = 0;
    const struct rows rows = {1, &slot, &position, &block, 1, true, 0, 0};
    const struct heads heads = {1, 1, DIM, &kv_of, 0, false};
    const struct attention how = {0.25f, 0, 0, NULL};
    const struct kv_spec spec = {1, 1, DIM, 0, 1, DTYPE_F8_E4M3, 0};
    float table[DIM] = {1, 1, 1, 1, 1, 1, 1, 1};
    for (int i = 0; nth_backend(i); i++) {
        struct backend *b = nth_backend(i);
        float qkv[3 * DIM] = {0}, out[DIM];
        for (int e = 0; e < DIM; e++)
            qkv[2 * DIM + e] = values[e].given;
        void *storage = aligned_bytes(b->ops->kv_bytes(&spec), 0xff);
        struct kv_cache *kv = must(b->ops->kv_open(b, &spec, storage));
        struct view v = view_f32(qkv, 1, 3 * DIM);
        const struct cview t = {table, DTYPE_F32, 1, DIM};
        ok(backend_rope_kv(b, v, &no_rules, t, &heads, &rows, kv, 0, &err));
        ok(backend_attend(b, view_f32(out, 1, DIM), cview_of(v), &heads, &how, &rows, kv, 0, &err));
        for (int e = 0; e < DIM; e++)
            if (isnan(values[e].given) ? !isnan(out[e]) : out[e] != values[e].stored)
                fail_msg("%s: %g is stored as %g, not %g", b->ops->name, (double)values[e].given,
                         (double)out[e], (double)values[e].stored);
        b->ops->kv_close(kv);
        free(storage);
    }
}

/* An emulated device that lacks Hopper's instructions: what it does without them. */
static void test_not_hopper(void **state UNUSED)
{
    static const struct attend_case cases[] = {
        {4, 1, 64, 140, DTYPE_BF16, .window = 100, .softcap = 2},
        {9, 2, 128, 45, .dtype = DTYPE_F8_E4M3},
        {6, 1, 128, 130, .dtype = DTYPE_F16, .sink = true}};
    setenv("EMULATED_MAJOR", "8", 1);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        check_attend(&(struct rules_case){cases[i], .scale = 1});
    unsetenv("EMULATED_MAJOR");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attend),       cmocka_unit_test(test_windows),
        cmocka_unit_test(test_rules),        cmocka_unit_test(test_chunks),
        cmocka_unit_test(test_sinks),        cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_decodes),      cmocka_unit_test(test_attend_f8),
        cmocka_unit_test(test_not_hopper),   cmocka_unit_test(test_alone),
        cmocka_unit_test(test_alone_refused)};
    only(argc, argv);
    return cmocka_run_group_tests(tests, open_invariant_too, close_subjects);
}
