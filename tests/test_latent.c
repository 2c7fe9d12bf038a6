/* DESIGN: the ops of latent attention by the rules of subjects.h: matrices of heads, the split of
 * what a product makes of a row, and attention over keys that are stored once, whose last elements
 * are their values; rows on their own must give the bits they have among many, and keys and values
 * that are stored apart the same bits, too. */
#include "tests/made_weight.h"
#include "tests/only.h"

#include <unistd.h>

/* ---- matrices of heads ---- */

struct heads_case {
    int32_t rows, heads, in, out, kept, more; /* more: columns of y behind those of the heads */
};

struct made_heads {
    const struct weight *weight[128];
    void *storage[128];
    struct experts *handle;
};

static void heads_make(struct made_heads *m, struct backend *b, const struct heads_case *c,
                       enum dtype dtype)
{
    const struct weight_spec spec = {
        .out = c->out, .in = c->in, .dtype = dtype, .leaves = 1, .cut = {0, c->in}};
    for (int32_t h = 0; h < c->heads; h++)
        m->weight[h] = made(b, &spec, 40 + (uint64_t)h, dtype, 0, &m->storage[h]);
    ok(backend_experts_open(b, m->weight, c->heads, 0, c->rows, &m->handle, &err));
}

static void heads_unmake(const struct made_heads *m, struct backend *b, int32_t heads)
{
    b->ops->experts_close(m->handle);
    for (int32_t h = 0; h < heads; h++) {
        b->ops->weight_close((struct weight *)(uintptr_t)m->weight[h]);
        free(m->storage[h]);
    }
}

struct typed_heads {
    struct heads_case shape;
    enum dtype dtype;
};

static int32_t heads_cols(const struct heads_case *c)
{
    return c->heads * (c->kept + c->out) + c->more;
}

/* Each head is linear for itself, to the bit: with one leaf, the rows of its own x. */
static void heads_are_linear(struct backend *b, const struct heads_case *c,
                             const struct made_heads *m, const float *x, const float *y)
{
    const int32_t cols = c->heads * (c->in + c->kept), head = c->heads - 1;
    const size_t words = (size_t)(c->rows * c->in), results = (size_t)(c->rows * c->out);
    float *own = guarded(words), *want = guarded(results), *got = guarded(results);
    for (int32_t t = 0; t < c->rows; t++) {
        memcpy(own + (ptrdiff_t)t * c->in,
               x + (ptrdiff_t)t * cols + (ptrdiff_t)head * (c->in + c->kept),
               (size_t)c->in * sizeof *own);
        memcpy(got + (ptrdiff_t)t * c->out,
               y + (ptrdiff_t)t * heads_cols(c) + (ptrdiff_t)head * (c->kept + c->out) + c->kept,
               (size_t)c->out * sizeof *got);
    }
    ok(backend_reserve(b, c->rows, c->in, c->out, &err));
    ok(backend_linear(b, view_f32(want, c->rows, c->out),
                      (struct cview){own, DTYPE_F32, c->rows, c->in}, m->weight[head], &err));
    assert_bits("a head is linear", got, want, results);
    guarded_free(own, words);
    guarded_free(want, results);
    guarded_free(got, results);
}

static void heads_case(struct backend *b, const void *arg, float *out)
{
    const struct typed_heads *typed = arg;
    const struct heads_case *c = &typed->shape;
    const int32_t in = c->heads * (c->in + c->kept), cols = heads_cols(c);
    const size_t words = (size_t)(c->rows * in);
    float *x = generated(41, words), *row = guarded((size_t)cols);
    struct made_heads m;
    heads_make(&m, b, c, typed->dtype);
    for (int32_t i = 0; i < c->rows * cols; i++) /* what is not written stays */
        out[i] = 77;
    ok(backend_head_linear(b, view_f32(out, c->rows, cols),
                           (struct cview){x, DTYPE_F32, c->rows, in}, m.handle, c->kept, &err));
    for (int32_t t = 0; t < c->rows; t++)
        for (int32_t i = cols - c->more; i < cols; i++)
            assert_true(out[t * cols + i] == 77);
    for (int32_t t = 0; b != ref && t < c->rows; t += 1 + c->rows / 3) {
        for (int32_t i = 0; i < cols; i++)
            row[i] = 77;
        ok(backend_head_linear(b, view_f32(row, 1, cols),
                               (struct cview){x + (ptrdiff_t)t * in, DTYPE_F32, 1, in}, m.handle,
                               c->kept, &err));
        assert_bits("a row alone", row, out + (ptrdiff_t)t * cols, (size_t)cols);
    }
    if (b != ref)
        heads_are_linear(b, c, &m, x, out);
    heads_unmake(&m, b, c->heads);
    guarded_free(x, words);
    guarded_free(row, (size_t)cols);
}

static void test_head_linear(void **state UNUSED)
{
    static const struct heads_case cases[] = {
        {1, 16, 128, 512, 64, 0}, {2, 3, 192, 100, 16, 5},  {5, 1, 16, 16, 0, 3},
        {1, 20, 512, 100, 0, 7},  {17, 3, 16, 512, 16, 64}, {64, 16, 128, 100, 0, 1},
        {5, 20, 192, 16, 64, 64}, {2, 128, 16, 100, 16, 9}, {64, 1, 512, 16, 64, 0},
        {113, 2, 33, 300, 7, 2},  {3, 4, 64, 16, 8, 0},     {4, 5, 20, 0, 4, 1}};
    static const enum dtype types[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        for (size_t t = 0; t < ARRAY_LEN(types); t++) {
            const struct typed_heads c = {cases[i], types[t]};
            char what[96];
            snprintf(what, sizeof what, "head_linear %d rows, %d heads of %dx%d + %d, %s",
                     c.shape.rows, c.shape.heads, c.shape.in, c.shape.out, c.shape.kept,
                     dtype_name(c.dtype));
            const double abs = 1e-6 + 6e-8 * c.shape.in;
            run_case_loose(what, heads_case, &c, (size_t)(c.shape.rows * heads_cols(&c.shape)), abs,
                           1e-6, device_bound(c.shape.rows, c.shape.in, c.dtype, abs));
        }
}

/* ---- latents ---- */

struct latent_case {
    int32_t rows, query, value, turns, heads_cols; /* of qkv, before the key */
};

static void latent_case(struct backend *b, const void *arg, float *out)
{
    const struct latent_case *c = arg;
    const int32_t in = c->query + c->value + c->turns;
    const int32_t cols = c->heads_cols + c->value + c->turns;
    float *a = generated(51, (size_t)(c->rows * in)), *gain = generated(52, (size_t)in);
    const struct latent_rules rules = {c->query, c->value, c->turns, gain, gain + c->query, 1e-5f};
    struct view query = view_f32(out, c->rows, c->query);
    struct view qkv = view_f32(out + (ptrdiff_t)c->rows * c->query, c->rows, cols);
    for (int32_t i = 0; i < c->rows * cols; i++)
        ((float *)qkv.data)[i] = 77;
    ok(backend_latent(b, query, qkv, (struct cview){a, DTYPE_F32, c->rows, in}, &rules, &err));
    for (int32_t t = 0; t < c->rows; t++) {
        const float *row = (const float *)qkv.data + (ptrdiff_t)t * cols;
        for (int32_t i = 0; i < c->heads_cols; i++)
            assert_true(row[i] == 77);
        assert_bits("turns", row + c->heads_cols, a + t * in + c->query + c->value,
                    (size_t)c->turns);
    }
    if (b != ref && c->query > 0) { /* the bits of rmsnorm */
        float *want = guarded((size_t)c->query);
        ok(backend_rmsnorm(b, view_f32(want, 1, c->query),
                           (struct cview){a, DTYPE_F32, 1, c->query}, gain, 1e-5f, &err));
        assert_bits("rmsnorm", out, want, (size_t)c->query);
        guarded_free(want, (size_t)c->query);
    }
    guarded_free(a, (size_t)(c->rows * in));
    guarded_free(gain, (size_t)in);
}

static void test_latent(void **state UNUSED)
{
    static const struct latent_case cases[] = {{1, 0, 512, 64, 576},  {5, 1536, 512, 64, 1152},
                                               {3, 20, 32, 16, 0},    {70, 96, 48, 0, 13},
                                               {300, 0, 16, 16, 160}, {0, 8, 16, 8, 8}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const struct latent_case *c = &cases[i];
        char what[64];
        snprintf(what, sizeof what, "latent %d rows, %d + %d + %d", c->rows, c->query, c->value,
                 c->turns);
        run_case(what, latent_case, c,
                 (size_t)(c->rows * (c->query + c->heads_cols + c->value + c->turns)), 1e-6, 2e-6);
    }
}

/* ---- attention ---- */

#define SLOTS 3
#define ROWS_MAX 400

struct attend_case {
    int32_t heads, kv_heads, latent, turns, length; /* of slot 1; the others are shorter */
    enum dtype dtype;
    int32_t window;
    float softcap;
    bool sink;
};

struct batch {
    const struct attend_case *c;
    int32_t slot[ROWS_MAX], position[ROWS_MAX], kv_of[128];
    int32_t *table;
    float sink[128];
    struct rows rows;
    struct heads heads;
    struct attention how;
    int32_t cols, width;
};

/* Do rows at this position attend? All are stored. */
static bool is_asked(const struct attend_case *c, int32_t position)
{
    const int32_t at = position % 256;
    return c->length <= 40 || at < 2 || at >= 254 || at == 15 || at == 16 || position % 97 == 0 ||
           position + 1 >= c->length;
}

static const int32_t *lengths_of(const struct attend_case *c)
{
    static int32_t lengths[SLOTS];
    lengths[0] = c->length / 3;
    lengths[1] = c->length;
    lengths[2] = 1;
    return lengths;
}

static void batch_init(struct batch *m, const struct attend_case *c)
{
    const int32_t cols = c->length / 16 + 1, *lengths = lengths_of(c);
    int32_t n = 0;
    m->c = c;
    m->table = guarded((size_t)(SLOTS * cols));
    for (int32_t i = 0; i < SLOTS * cols; i++)
        m->table[i] = (i * 101 + 3) % (SLOTS * cols);
    for (int32_t s = 0; s < SLOTS; s++) {
        for (int32_t p = 0; p < lengths[s]; p++)
            if (is_asked(c, p)) {
                m->slot[n] = s;
                m->position[n++] = p;
            }
        m->slot[n] = -1;
        m->position[n++] = 1 << 30;
    }
    assert_true(n <= ROWS_MAX);
    for (int32_t h = 0; h < c->heads; h++) {
        m->kv_of[h] = h * 7 % c->kv_heads;
        m->sink[h] = 3 * gen(62, (size_t)h);
    }
    const int32_t dim = c->latent + c->turns;
    m->rows = (struct rows){n, m->slot, m->position, m->table, cols, false, 0, 0};
    m->heads = (struct heads){c->heads, c->kv_heads, dim, m->kv_of, c->latent, false};
    m->how = (struct attention){1.0f / sqrtf((float)dim), c->softcap, c->window,
                                c->sink ? m->sink : NULL};
    m->cols = (c->heads + c->kv_heads) * dim;
    m->width = c->heads * c->latent;
}

/* Stores the keys of all positions of all slots, in steps of some rows; interleaved rotation. */
static void store_all(struct backend *b, struct batch *m, struct kv_cache *kv)
{
    enum { STEP = 64 };
    const struct qkv_rules rules = {.interleaved = true};
    const size_t words = (size_t)STEP * (size_t)m->cols, turns = STEP * (size_t)m->c->turns;
    int32_t slot[STEP], position[STEP];
    for (int32_t s = 0; s < SLOTS; s++)
        for (int32_t p = 0, n; p < lengths_of(m->c)[s]; p += n) {
            n = lengths_of(m->c)[s] - p < STEP ? lengths_of(m->c)[s] - p : STEP;
            float *qkv = generated(63 + (uint64_t)(s * 5000 + p), words);
            float *table = generated(64 + (uint64_t)p, turns);
            for (int32_t i = 0; i < n; i++) {
                slot[i] = s;
                position[i] = p + i;
            }
            const struct rows rows = {n, slot, position, m->table, m->rows.table_cols, false, 0, 0};
            ok(backend_rope_kv(b, view_f32(qkv, n, m->cols), &rules,
                               (struct cview){table, DTYPE_F32, n, m->c->turns}, &m->heads, &rows,
                               kv, 1, &err));
            guarded_free(qkv, words);
            guarded_free(table, turns);
        }
}

static void attend_part(struct backend *b, const struct batch *m, const struct kv_cache *kv,
                        const float *q, int32_t begin, int32_t end, float *y)
{
    const struct rows part = {end - begin,
                              m->slot + begin,
                              m->position + begin,
                              m->table,
                              m->rows.table_cols,
                              false,
                              0,
                              0};
    const struct cview x = {q + (ptrdiff_t)begin * m->cols, DTYPE_F32, part.count, m->cols};
    ok(backend_attend(b, view_f32(y, part.count, m->width), x, &m->heads, &m->how, &part, kv, 1,
                      &err));
}

/* Rows one by one, which are split where they are long, and two by two. */
static void attend_alone(struct backend *b, const struct batch *m, const struct kv_cache *kv,
                         const float *q, const float *out)
{
    const size_t words = 2 * (size_t)m->width;
    float *y = guarded(words);
    for (int32_t t = 0, n; t < m->rows.count; t += n) {
        n = t % 3 == 1 && t + 1 < m->rows.count ? 2 : 1;
        attend_part(b, m, kv, q, t, t + n, y);
        assert_bits("rows alone", y, out + (ptrdiff_t)t * m->width, (size_t)(n * m->width));
    }
    guarded_free(y, words);
}

static void attend_case(struct backend *b, const void *arg, float *out)
{
    struct batch m;
    batch_init(&m, arg);
    const size_t words = (size_t)m.rows.count * (size_t)m.cols;
    const struct kv_spec spec = {
        2, m.c->kv_heads, m.heads.head_dim, m.c->latent, SLOTS * m.rows.table_cols, m.c->dtype, 0};
    void *storage = aligned_bytes(b->ops->kv_bytes(&spec), 0xff); /* NaN in every unused place */
    struct kv_cache *kv = must(b->ops->kv_open(b, &spec, storage));
    float *q = generated(61, words);
    for (size_t i = 0; i < words; i++)
        q[i] *= 4;                              /* so that weights differ */
    ok(backend_reserve(b, 256, 2048, 0, &err)); /* so that long rows may be split */
    store_all(b, &m, kv);
    attend_part(b, &m, kv, q, 0, m.rows.count, out);
    if (b != ref)
        attend_alone(b, &m, kv, q, out);
    b->ops->kv_close(kv);
    free(storage);
    guarded_free(q, words);
    guarded_free(m.table, (size_t)(SLOTS * m.rows.table_cols));
}

static int32_t asked_rows(const struct attend_case *c)
{
    int32_t n = SLOTS;
    for (int32_t s = 0; s < SLOTS; s++)
        for (int32_t p = 0; p < lengths_of(c)[s]; p++)
            n += is_asked(c, p);
    return n;
}

static void check_attend(const struct attend_case *c)
{
    char what[128];
    snprintf(what, sizeof what, "attend %d/%d heads of %d + %d, %d tokens, %s%s, window %d, cap %g",
             c->heads, c->kv_heads, c->turns, c->latent, c->length, dtype_name(c->dtype),
             c->sink ? ", sinks" : "", c->window, (double)c->softcap);
    const double abs = c->dtype == DTYPE_F32 ? 5e-6 : 2e-3; /* as in test_attend */
    run_case(what, attend_case, c, (size_t)asked_rows(c) * (size_t)(c->heads * c->latent), abs,
             4e-6);
}

static void test_attend(void **state UNUSED)
{
    static const struct attend_case cases[] = {
        {1, 1, 32, 16, 40, .dtype = DTYPE_F32},      {2, 1, 32, 16, 300, .dtype = DTYPE_BF16},
        {3, 1, 48, 32, 20, .dtype = DTYPE_F16},      {4, 1, 32, 16, 270, .dtype = DTYPE_F8_E4M3},
        {5, 1, 32, 16, 300, .dtype = DTYPE_F32},     {16, 1, 512, 64, 260, .dtype = DTYPE_BF16},
        {16, 1, 64, 16, 1100, .dtype = DTYPE_F32},   {20, 1, 32, 16, 1300, .dtype = DTYPE_F16},
        {128, 1, 32, 16, 258, .dtype = DTYPE_BF16},  {128, 1, 512, 64, 18, .dtype = DTYPE_F8_E4M3},
        {8, 1, 80, 16, 260, .dtype = DTYPE_F8_E4M3}, {1, 1, 512, 64, 1050, .dtype = DTYPE_BF16},
        {19, 3, 32, 16, 300, .dtype = DTYPE_F32},    {23, 2, 16, 16, 1200, .dtype = DTYPE_BF16},
        {0, 1, 32, 16, 20, .dtype = DTYPE_BF16},     {3, 1, 16, 560, 20, .dtype = DTYPE_F32},
        {16, 1, 32, 16, 2400, .dtype = DTYPE_BF16}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        check_attend(&cases[i]);
}

static void test_windows(void **state UNUSED)
{
    static const struct attend_case cases[] = {
        {5, 1, 32, 16, 40, DTYPE_F32, .window = 1},
        {16, 1, 32, 16, 300, DTYPE_BF16, .window = 16, .softcap = 2},
        {2, 1, 32, 16, 300, DTYPE_F16, .window = 250, .sink = true},
        {20, 1, 48, 16, 1400, DTYPE_F32, .window = 256, .softcap = 1.5f, .sink = true},
        {16, 1, 512, 64, 40, DTYPE_F8_E4M3, .window = 7},
        {1, 1, 32, 32, 2400, DTYPE_BF16, .window = 1100},
        {17, 2, 32, 16, 2400, DTYPE_F32, .window = 1103, .sink = true},
        {8, 1, 32, 16, 520, DTYPE_F8_E4M3, .softcap = 3, .sink = true}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        check_attend(&cases[i]);
}

/* ---- as any other attention ---- */

enum { LATENT = 32, TURNS = 16, DIM = LATENT + TURNS, BLOCKS = 40 };

/* One row. */
struct row_case {
    int32_t heads, position;
    enum dtype dtype;
    int32_t window;
    bool bad_keys, bad_query; /* NaN: keys before the window, the query of the last head */
};

/* What attend makes of the row, [heads][LATENT], whose keys are stored with latents or, with 0, as
 * keys and values of one size: keys and, filled with zeros, their latents. */
static void attend_row(struct backend *b, const struct row_case *c, int32_t latent, float *out)
{
    const int32_t heads = c->heads;
    const struct qkv_rules rules = {.bias = NULL};
    int32_t slot = 0, at = 0, kv_of[20] = {0}, blocks[BLOCKS];
    const struct heads h = {heads, 1, DIM, kv_of, latent, false};
    const struct kv_spec spec = {1, 1, DIM, latent, BLOCKS, c->dtype, 0};
    const int32_t cols = (heads + (latent > 0 ? 1 : 2)) * DIM;
    float *qkv = guarded((size_t)cols);
    for (int32_t i = 0; i < BLOCKS; i++)
        blocks[i] = BLOCKS - 1 - i;
    void *storage = aligned_bytes(b->ops->kv_bytes(&spec), 0xff);
    struct kv_cache *kv = must(b->ops->kv_open(b, &spec, storage));
    const struct rows rows = {1, &slot, &at, blocks, BLOCKS, true, 0, 0};
    for (at = 0; at <= c->position; at++) {
        for (int32_t i = 0; i < (heads + 1) * DIM; i++)
            qkv[i] = gen(70 + (uint64_t)at, (size_t)i);
        for (int32_t i = 0; c->bad_keys && at <= c->position - c->window && i < DIM; i++)
            qkv[heads * DIM + i] = NAN;
        for (int32_t i = 0; latent == 0 && i < DIM; i++) /* the value */
            qkv[(heads + 1) * DIM + i] = i < LATENT ? qkv[heads * DIM + TURNS + i] : 0;
        ok(backend_rope_kv(b, view_f32(qkv, 1, cols), &rules, (struct cview){qkv, DTYPE_F32, 1, 0},
                           &h, &rows, kv, 0, &err));
    }
    at = c->position;
    if (c->bad_query)
        qkv[heads * DIM - 1] = NAN;
    const struct attention how = {0.3f, 0, c->window, NULL};
    const int32_t dim = backend_value_dim(&h);
    float *y = guarded((size_t)(heads * dim));
    ok(backend_attend(b, view_f32(y, 1, heads * dim), (struct cview){qkv, DTYPE_F32, 1, cols}, &h,
                      &how, &rows, kv, 0, &err));
    for (int32_t i = 0; i < heads; i++)
        memcpy(out + i * LATENT, y + i * dim, LATENT * sizeof *out);
    b->ops->kv_close(kv);
    free(storage);
    guarded_free(qkv, (size_t)cols);
    guarded_free(y, (size_t)(heads * dim));
}

/* Latents have the bits of the same values stored apart. */
static void test_apart(void **state UNUSED)
{
    static const int32_t heads[] = {1, 2, 3, 5, 16, 20}, positions[] = {0, 15, 16, 255, 256, 600};
    static const enum dtype types[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_F8_E4M3};
    for (int i = 0; i < subject_count; i++)
        for (size_t h = 0; h < ARRAY_LEN(heads); h++)
            for (size_t p = 0; p < ARRAY_LEN(positions); p++) {
                const struct row_case c = {
                    heads[h], positions[p], types[(h + p) % ARRAY_LEN(types)], 0, false, false};
                float want[20 * LATENT], got[20 * LATENT];
                attend_row(subjects[i], &c, 0, want);
                attend_row(subjects[i], &c, LATENT, got);
                assert_bits("latents", got, want, (size_t)(heads[h] * LATENT));
            }
}

/* What is not a number stays in its head, and where no row sees it, no result has it. */
static void test_not_finite(void **state UNUSED)
{
    static const int32_t heads[] = {1, 2, 3, 5, 16, 20}, windows[] = {1, 9, 16, 250};
    for (int i = 0; i < subject_count; i++)
        for (size_t h = 0; h < ARRAY_LEN(heads); h++)
            for (size_t w = 0; w < ARRAY_LEN(windows); w++) {
                const int32_t last = (heads[h] - 1) * LATENT, all = heads[h] * LATENT;
                struct row_case c = {heads[h], 555, DTYPE_BF16, windows[w], false, false};
                float want[20 * LATENT], got[20 * LATENT];
                attend_row(subjects[i], &c, LATENT, want);
                c.bad_keys = true;
                attend_row(subjects[i], &c, LATENT, got);
                assert_bits("keys that are not seen", got, want, (size_t)all);
                c.bad_query = true;
                attend_row(subjects[i], &c, LATENT, got);
                assert_bits("other heads", got, want, (size_t)last);
                for (int32_t n = last; n < all; n++)
                    assert_true(isnan(got[n]));
            }
}

/* ---- arguments ---- */

static void test_arguments(void **state UNUSED)
{
    const struct heads_case c = {2, 3, 16, 16, 4, 0};
    struct backend *b = subjects[0];
    struct made_heads m;
    float x[2 * 60] = {0}, y[2 * 60];
    const struct cview in = {x, DTYPE_F32, 2, 60};
    heads_make(&m, b, &c, DTYPE_F32);
    ok(backend_head_linear(b, view_f32(y, 2, 60), in, m.handle, 4, &err));
    assert_int_equal(backend_head_linear(b, view_f32(y, 2, 59), in, m.handle, 4, &err),
                     ERR_INTERNAL);
    assert_int_equal(backend_head_linear(b, view_f32(y, 2, 60), in, m.handle, 3, &err),
                     ERR_INTERNAL);
    assert_int_equal(backend_head_linear(b, view_f32(x, 2, 60), in, m.handle, 4, &err),
                     ERR_INTERNAL);
    heads_unmake(&m, b, 3);
    struct latent_rules rules = {0, 16, 4, NULL, x, 1e-5f};
    const struct cview a = {x, DTYPE_F32, 2, 20};
    ok(backend_latent(b, view_f32(y, 2, 0), view_f32(y, 2, 24), a, &rules, &err));
    rules.turns = 3;
    assert_int_equal(backend_latent(b, view_f32(y, 2, 0), view_f32(y, 2, 24), a, &rules, &err),
                     ERR_INTERNAL);
}

/* No device yet: what it lacks it would fail for. */
static int open_without_device(void **state)
{
    setenv("TEST_WITHOUT_DEVICE", program_invocation_short_name, 1);
    return open_subjects(state);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_head_linear), cmocka_unit_test(test_latent),
        cmocka_unit_test(test_attend),      cmocka_unit_test(test_windows),
        cmocka_unit_test(test_apart),       cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_arguments)};
    only(argc, argv);
    return cmocka_run_group_tests(tests, open_without_device, close_subjects);
}
