/* Rows in 16 bits on their way between products. A product of rows of the type that linear_in names
 * is that of the same numbers in fp32, and an op that writes rows so writes its results in fp32,
 * rounded once. What linear_out names is read as the same numbers in fp32 would be. So each
 * expected value is that of the same op in fp32; test_kernels.c, test_linear_*.c and test_attend.c
 * compare these with ref. */
#include "tests/made_weight.h"
#include "tests/only.h"

static const enum dtype narrow[] = {DTYPE_BF16, DTYPE_F16};
#define NARROW ARRAY_LEN(narrow)

/* n numbers of a type, and the same in fp32. */
struct numbers {
    void *data;
    float *wide;
    size_t n;
    enum dtype dtype;
};

static struct numbers empty(size_t n, enum dtype dtype)
{
    return (struct numbers){guarded(words_of(n, dtype)), guarded(n), n, dtype};
}

/* Of `wide`. */
static void fill(struct numbers *x)
{
    for (size_t i = 0; i < x->n; i++) {
        dtype_store(x->data, x->dtype, i, x->wide[i]);
        x->wide[i] = dtype_load(x->data, x->dtype, i);
    }
}

static struct numbers made_of(uint64_t seed, size_t n, enum dtype dtype)
{
    struct numbers x = empty(n, dtype);
    for (size_t i = 0; i < n; i++)
        x.wide[i] = gen(seed, i) * (i % 11 == 0 ? 40.0f : 3.0f);
    fill(&x);
    return x;
}

static void closed(struct numbers *x)
{
    guarded_free(x->data, words_of(x->n, x->dtype));
    guarded_free(x->wide, x->n);
}

static struct view view_of(const struct numbers *x, int32_t rows, int32_t cols)
{
    return (struct view){x->data, x->dtype, rows, cols};
}

/* got is `plain`, fp32, rounded. */
static void assert_rounded(const char *what, const struct numbers *got, const float *plain)
{
    struct numbers want = empty(got->n, got->dtype);
    memcpy(want.wide, plain, got->n * sizeof *plain);
    fill(&want);
    for (size_t i = 0; i < got->n; i++)
        got->wide[i] = dtype_load(got->data, got->dtype, i);
    assert_bits(what, got->wide, want.wide, got->n);
    closed(&want);
}

static void need_device(void)
{
    if (device == NULL)
        skip();
}

/* ---- linear ---- */

struct in_case {
    int32_t rows, in, out;
    enum dtype dtype, factor; /* factor: what a device names */
    int32_t scale_cols;
};

static const struct in_case cases[] = {
    {16, 96, 64, DTYPE_BF16, DTYPE_F32, 0}, /* few rows are our own kernels' */
    {17, 96, 64, DTYPE_BF16, DTYPE_BF16, 0},
    {300, 96, 64, DTYPE_F16, DTYPE_F16, 0},
    {70, 96, 64, DTYPE_F32, DTYPE_F32, 0},
    {70, 129, 64, DTYPE_BF16, DTYPE_F32, 0}, /* rows that get a tail of zeros */
    {33, 304, 37, DTYPE_BF16, DTYPE_BF16, 0},
    {35, 520, 200, DTYPE_F16, DTYPE_F16, 0}, /* the algorithm of 64 rows does not suit */
    {19, 24, 0, DTYPE_BF16, DTYPE_BF16, 0},
    {0, 24, 16, DTYPE_BF16, DTYPE_F32, 0},
    {256, 96, 64, DTYPE_F8_E4M3, DTYPE_F32, 0},
    {257, 96, 64, DTYPE_F8_E4M3, DTYPE_BF16, 0},    /* a scale per row, */
    {257, 4112, 16, DTYPE_F8_E4M3, DTYPE_BF16, 0},  /* which threads hold in part, */
    {257, 8208, 16, DTYPE_F8_E4M3, DTYPE_BF16, 0},  /* more of it, */
    {257, 16400, 16, DTYPE_F8_E4M3, DTYPE_BF16, 0}, /* or read twice, */
    {257, 520, 200, DTYPE_F8_E4M3, DTYPE_BF16, 0},  /* and where fp8 has no kernel; */
    {257, 520, 360, DTYPE_F8_E4M3, DTYPE_BF16, 64}, /* per block: widened, in tiles */
    {256, 64, 40, DTYPE_I8, DTYPE_F32, BACKEND_GROUP},
    {257, 520, 360, DTYPE_I4, DTYPE_BF16, BACKEND_GROUP},
    {270, 68, 40, DTYPE_U4, DTYPE_F32, BACKEND_GROUP},
};

static void linear_case(struct backend *b, const struct in_case *c, bool narrow_too)
{
    const size_t n = (size_t)c->rows * (size_t)c->out;
    char what[96];
    void *storage;
    struct weight *w = made_whole(b, c->out, c->in, c->dtype, c->scale_cols, &storage);
    const enum dtype named = b->ops->linear_in(b, w, c->rows);
    assert_int_equal(named, narrow_too ? c->factor : DTYPE_F32);
    snprintf(what, sizeof what, "linear of %dx%dx%d %s", c->rows, c->in, c->out,
             dtype_name(c->dtype));
    if (named != DTYPE_F32) {
        struct numbers x = made_of(3, (size_t)c->rows * (size_t)c->in, named);
        float *got = guarded(n), *want = guarded(n);
        const struct cview from = cview_of(view_of(&x, c->rows, c->in));
        const struct view plain = view_f32(x.wide, c->rows, c->in);
        ok(backend_linear(b, view_f32(got, c->rows, c->out), from, w, &err));
        ok(backend_linear(b, view_f32(want, c->rows, c->out), cview_of(plain), w, &err));
        assert_bits(what, got, want, n);
        guarded_free(got, n);
        guarded_free(want, n);
        closed(&x);
    }
    b->ops->weight_close(w);
    free(storage);
}

static void test_products(void **state UNUSED)
{
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        for (int k = 0; nth_backend(k) != NULL; k++)
            linear_case(nth_backend(k), &cases[i], nth_backend(k) == device);
}

/* ---- norms ---- */

/* y in each type, of x + delta, delta in fp32 and in bf16; x becomes the same. */
static void norm_case(int32_t rows, int32_t cols, enum dtype type, bool plus)
{
    const size_t n = (size_t)rows * (size_t)cols;
    struct numbers delta = made_of(5, n, DTYPE_BF16), y = empty(n, type);
    float *gain = generated(6, (size_t)cols), *want = guarded(n), *x[2];
    for (int k = 0; k < 2; k++)
        x[k] = generated(4, n);
    const struct view plain = view_f32(x[0], rows, cols), other = view_f32(x[1], rows, cols);
    const struct view to = view_of(&y, rows, cols), wide = view_f32(want, rows, cols);
    if (plus) {
        const struct cview same = cview_of(view_f32(delta.wide, rows, cols));
        ok(backend_add_rmsnorm(device, wide, plain, same, gain, 1e-5f, &err));
        ok(backend_add_rmsnorm(device, to, other, cview_of(view_of(&delta, rows, cols)), gain,
                               1e-5f, &err));
    } else {
        ok(backend_rmsnorm(device, wide, cview_of(plain), gain, 1e-5f, &err));
        ok(backend_rmsnorm(device, to, cview_of(other), gain, 1e-5f, &err));
    }
    assert_rounded("norm", &y, want);
    assert_bits("x of a norm", x[1], x[0], n);
    guarded_free(x[0], n);
    guarded_free(x[1], n);
    guarded_free(gain, (size_t)cols);
    guarded_free(want, n);
    closed(&delta);
    closed(&y);
}

static void test_norms(void **state UNUSED)
{
    static const int32_t shapes[][2] = {{1, 8},     {3, 100},  {5, 33},  {2, 4096},
                                        {300, 256}, {2, 5120}, {0, 16},  {4, 0},
                                        {2, 20004}, {3, 4099}, {40, 64}, {270, 4}};
    need_device();
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++)
        for (size_t t = 0; t < NARROW; t++)
            for (int plus = 0; plus < 2; plus++)
                norm_case(shapes[i][0], shapes[i][1], narrow[t], plus);
}

/* ---- activations ---- */

static void act_case(int32_t rows, int32_t cols, enum dtype type, enum dtype from)
{
    const size_t n = (size_t)rows * (size_t)cols;
    struct numbers gu = made_of(8, 2 * n, from), y = empty(n, type);
    float *want = guarded(n);
    const struct cview v = cview_of(view_of(&gu, rows, 2 * cols));
    for (int32_t act = 0; act < ACT_COUNT; act++) {
        ok(backend_act_mul(device, view_f32(want, rows, cols), v, (enum activation)act, &err));
        ok(backend_act_mul(device, view_of(&y, rows, cols), v, (enum activation)act, &err));
        assert_rounded("act_mul", &y, want);
    }
    guarded_free(want, n);
    closed(&gu);
    closed(&y);
}

static void test_activations(void **state UNUSED)
{
    static const int32_t shapes[][2] = {{1, 1},  {3, 8},    {2, 12},    {5, 100}, {0, 8},
                                        {4, 17}, {7, 2047}, {40, 4096}, {2, 2056}};
    need_device();
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++)
        for (size_t t = 0; t < NARROW; t++)
            for (int k = 0; k < 2; k++)
                act_case(shapes[i][0], shapes[i][1], narrow[t], k == 0 ? DTYPE_F32 : DTYPE_BF16);
}

/* ---- attention ---- */

#define SLOTS 3
#define TOKENS 90 /* of the longest slot */
#define ROWS (TOKENS + TOKENS / 3 + 1 + SLOTS)
#define BLOCKS (TOKENS / BACKEND_BLOCK_TOKENS + 1)

struct shape {
    int32_t heads, kv_heads, dim;
    enum dtype dtype; /* of keys and values */
    int32_t rotary;
    bool bias, norm, interleaved;
    int32_t window;
};

static const struct shape shapes[] = {
    {4, 2, 64, DTYPE_BF16, 64, false, false, false, 0},
    {4, 1, 128, DTYPE_BF16, 128, true, true, false, 0},
    {4, 2, 128, DTYPE_F16, 64, true, false, true, 40},
    {3, 1, 80, DTYPE_BF16, 80, false, false, false, 0},
    {2, 2, 256, DTYPE_F8_E4M3, 256, false, true, false, 0},
    {4, 2, 24, DTYPE_F32, 16, true, true, true, 0},   /* rows and heads for which there is no */
    {2, 1, 20, DTYPE_BF16, 20, true, true, false, 0}, /* kernel of tensor cores; odd places */
    {2, 1, 6, DTYPE_BF16, 2, true, false, true, 0},
};

/* A step, and what it has been given and has made. */
struct step {
    int32_t slot[ROWS], position[ROWS], table[SLOTS * BLOCKS], kv_of[8];
    struct rows rows;
    struct heads heads;
    struct attention how;
};

/* Prompts with padding between them; or, apart, the token behind each. */
static void step_init(struct step *m, const struct shape *c, bool apart)
{
    static const int32_t lengths[SLOTS] = {TOKENS / 3, TOKENS - 1, 1};
    int32_t n = 0;
    for (int32_t i = 0; i < SLOTS * BLOCKS; i++)
        m->table[i] = (i * 5 + 3) % (SLOTS * BLOCKS);
    for (int32_t s = 0; s < SLOTS; s++) {
        for (int32_t p = apart ? lengths[s] : 0; p < lengths[s] + apart; p++, n++) {
            m->slot[n] = s;
            m->position[n] = p;
        }
        m->slot[n] = -1;
        m->position[n++] = 1 << 30;
    }
    for (int32_t h = 0; h < c->heads; h++)
        m->kv_of[h] = h * c->kv_heads / c->heads;
    m->rows = (struct rows){n, m->slot, m->position, m->table, BLOCKS, apart, 0, 0};
    m->heads = (struct heads){c->heads, c->kv_heads, c->dim, m->kv_of, 0, false};
    m->how = (struct attention){1.0f / sqrtf((float)c->dim), 0, c->window, NULL};
}

/* One of two that do the same: of qkv in fp32, and in bf16. */
struct side {
    struct kv_cache *kv;
    void *storage;
};

static struct side side_open(const struct shape *c)
{
    const struct kv_spec spec = {1, c->kv_heads, c->dim, 0, SLOTS * BLOCKS, c->dtype, 0};
    void *storage = aligned_bytes(device->ops->kv_bytes(&spec), 0xff);
    return (struct side){must(device->ops->kv_open(device, &spec, storage)), storage};
}

static void side_close(struct side *s)
{
    device->ops->kv_close(s->kv);
    free(s->storage);
}

static void rotate(const struct shape *c, const struct step *m, struct side *s, struct view qkv)
{
    const size_t cols = (size_t)qkv.cols, n = (size_t)m->rows.count * (size_t)c->rotary;
    float *bias = generated(35, cols), *gain = generated(36, (size_t)(2 * c->dim));
    float *turns = generated(37, n);
    const struct qkv_rules rules = {
        c->bias ? bias : NULL, c->norm ? gain : NULL, c->norm ? gain + c->dim : NULL, NULL, 1e-5f,
        c->interleaved};
    const struct view table = view_f32(turns, m->rows.count, c->rotary);
    ok(backend_rope_kv(device, qkv, &rules, cview_of(table), &m->heads, &m->rows, s->kv, 0, &err));
    guarded_free(bias, cols);
    guarded_free(gain, (size_t)(2 * c->dim));
    guarded_free(turns, n);
}

static void attended(const struct step *m, const struct side *s, struct view out, struct cview qkv)
{
    ok(backend_attend(device, out, qkv, &m->heads, &m->how, &m->rows, s->kv, 0, &err));
}

/* The rotation of rows in bf16; from what it stores and gives, attention, in each type. */
static void attention_step(const struct shape *c, bool apart, struct side *plain,
                           struct side *other)
{
    struct step m;
    step_init(&m, c, apart);
    const int32_t rows = m.rows.count, cols = (c->heads + 2 * c->kv_heads) * c->dim;
    const size_t n = (size_t)rows * (size_t)cols, out = (size_t)(rows * c->heads * c->dim);
    struct numbers qkv = made_of(31 + apart, n, DTYPE_BF16);
    float *want = guarded(out), *got = guarded(out);
    const struct view wide = view_f32(qkv.wide, rows, cols), to = view_of(&qkv, rows, cols);
    rotate(c, &m, other, to);
    rotate(c, &m, plain, wide);
    float *turned = guarded(n);
    memcpy(turned, qkv.wide, n * sizeof *turned);
    assert_rounded("rope_kv", &qkv, turned); /* qkv.wide is in fp32 what qkv is now */
    guarded_free(turned, n);
    const int32_t width = c->heads * c->dim;
    attended(&m, plain, view_f32(want, rows, width), cview_of(wide));
    attended(&m, other, view_f32(got, rows, width), cview_of(wide));
    assert_bits("what rope_kv stores", got, want, out);
    attended(&m, other, view_f32(got, rows, width), cview_of(to));
    assert_bits("attention of rows in 16 bits", got, want, out);
    for (size_t t = 0; t < NARROW; t++) {
        struct numbers y = empty(out, narrow[t]);
        attended(&m, other, view_of(&y, rows, width), cview_of(to));
        assert_rounded("attention", &y, want);
        closed(&y);
    }
    guarded_free(want, out);
    guarded_free(got, out);
    closed(&qkv);
}

static void test_attention(void **state UNUSED)
{
    need_device();
    ok(backend_reserve(device, 64, 2048, 0, &err));
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
        struct side plain = side_open(&shapes[i]), other = side_open(&shapes[i]);
        attention_step(&shapes[i], false, &plain, &other);
        attention_step(&shapes[i], true, &plain, &other);
        side_close(&plain);
        side_close(&other);
    }
}

/* ---- arguments ---- */

static enum status linear_of(struct backend *b, int32_t rows, enum dtype weight, enum dtype x)
{
    const struct in_case c = {rows, 16, 16, weight, x, 0};
    float from[20 * 16] = {0}, to[20 * 16];
    void *storage;
    struct weight *w = made_whole(b, c.out, c.in, c.dtype, c.scale_cols, &storage);
    const enum status st =
        backend_linear(b, view_f32(to, rows, 16), (struct cview){from, x, rows, 16}, w, &err);
    b->ops->weight_close(w);
    free(storage);
    return st;
}

static void test_arguments(void **state UNUSED)
{
    float x[64] = {0}, y[64], gain[16] = {0};
    const struct view rows = view_f32(x, 2, 16), codes = {y, DTYPE_F8_E4M3, 2, 16};
    const struct view over = {x + 32, DTYPE_BF16, 2, 16};
    const struct cview delta = {x + 32, DTYPE_F32, 2, 16};
    for (int k = 0; nth_backend(k) != NULL; k++) {
        struct backend *b = nth_backend(k);
        assert_int_equal(linear_of(b, 3, DTYPE_BF16, DTYPE_BF16), ERR_INTERNAL);
        assert_int_equal(linear_of(b, 20, DTYPE_BF16, DTYPE_F16), ERR_INTERNAL);
        assert_int_equal(linear_of(b, 20, DTYPE_F32, DTYPE_BF16), ERR_INTERNAL);
        if (b != device)
            assert_int_equal(linear_of(b, 20, DTYPE_BF16, DTYPE_BF16), ERR_INTERNAL);
        assert_int_equal(backend_rmsnorm(b, codes, cview_of(rows), gain, 1e-5f, &err),
                         ERR_INTERNAL);
        assert_int_equal(backend_add_rmsnorm(b, over, rows, delta, gain, 1e-5f, &err),
                         ERR_INTERNAL); /* y would overwrite what others have yet to read */
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products), cmocka_unit_test(test_norms),
        cmocka_unit_test(test_activations), cmocka_unit_test(test_attention),
        cmocka_unit_test(test_arguments)};
    only(argc, argv);
    return cmocka_run_group_tests(tests, open_invariant_too, close_subjects);
}
