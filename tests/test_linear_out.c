/* Products in 16 bits, and what act_mul makes of them; and act_by, which is it. A device says for
 * which products it writes them so (linear_out); then each is the one in fp32, rounded once: near
 * ref by that rounding and what the product may be off anyway and, on the emulated device, to the
 * last bit. */
#include "tests/emulate/calls.h"
#include "tests/made_weight.h"
#include "tests/only.h"

/* The largest relative error of one rounding. */
static double roundoff(enum dtype dtype)
{
    return dtype == DTYPE_BF16 ? 0x1p-8 : 0;
}

static const double f16_small = 0x1p-25;

static void widened(float *to, const void *from, enum dtype dtype, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] = dtype_load(from, dtype, i);
}

static bool is_emulated(void)
{
    return device != NULL &&
           emulated_calls_of((const void *)((struct staged *)device)->inner->ops) != NULL;
}

/* ---- linear ---- */

struct out_case {
    int32_t rows, in, out;
    enum dtype dtype, result; /* result: of a device */
    int32_t scale_cols;
};

static const struct out_case cases[] = {
    {16, 96, 64, DTYPE_BF16, DTYPE_F32, 0}, /* few rows are our own kernels' */
    {17, 96, 64, DTYPE_BF16, DTYPE_BF16, 0},
    {17, 96, 64, DTYPE_F16, DTYPE_F32, 0}, /* whose range is too small */
    {300, 96, 64, DTYPE_F16, DTYPE_F32, 0},
    {70, 96, 64, DTYPE_F32, DTYPE_F32, 0},
    {70, 129, 64, DTYPE_BF16, DTYPE_BF16, 0},  /* tails of rows of w */
    {33, 300, 37, DTYPE_BF16, DTYPE_BF16, 0},  /* rows of y begin anywhere */
    {35, 520, 200, DTYPE_BF16, DTYPE_BF16, 0}, /* the algorithm of 64 rows does not suit */
    {100, 2900, 24, DTYPE_BF16, DTYPE_BF16, 0},
    {19, 0, 24, DTYPE_BF16, DTYPE_BF16, 0},
    {19, 24, 0, DTYPE_BF16, DTYPE_BF16, 0},
    {0, 24, 16, DTYPE_BF16, DTYPE_F32, 0},
    {256, 96, 64, DTYPE_F8_E4M3, DTYPE_F32, 0},
    {257, 96, 64, DTYPE_F8_E4M3, DTYPE_BF16, 0},    /* a scale per row, */
    {257, 520, 200, DTYPE_F8_E4M3, DTYPE_BF16, 0},  /* and where fp8 has no kernel; */
    {257, 520, 360, DTYPE_F8_E4M3, DTYPE_BF16, 64}, /* per block: widened, in tiles */
    {256, 64, 40, DTYPE_I8, DTYPE_F32, BACKEND_GROUP},
    {257, 520, 360, DTYPE_I8, DTYPE_BF16, BACKEND_GROUP},
    {258, 520, 360, DTYPE_I4, DTYPE_BF16, BACKEND_GROUP},
    {270, 96, 40, DTYPE_U4, DTYPE_BF16, BACKEND_GROUP},
    {257, 96, 33, DTYPE_F4_E2M1, DTYPE_BF16, BACKEND_GROUP},
};

/* In that type, then widened. */
static void multiply(struct backend *b, const struct out_case *c, enum dtype dtype, float *out)
{
    const size_t n = (size_t)c->rows * (size_t)c->out, x_words = (size_t)c->rows * (size_t)c->in;
    void *storage;
    struct weight *w = made_whole(b, c->out, c->in, c->dtype, c->scale_cols, &storage);
    float *x = generated(3, x_words);
    void *y = guarded(words_of(n, dtype));
    const struct cview from = {x, DTYPE_F32, c->rows, c->in};
    ok(backend_linear(b, (struct view){y, dtype, c->rows, c->out}, from, w, &err));
    widened(out, y, dtype, n);
    guarded_free(y, words_of(n, dtype));
    guarded_free(x, x_words);
    b->ops->weight_close(w);
    free(storage);
}

static enum dtype asked(struct backend *b, const struct out_case *c)
{
    void *storage;
    struct weight *w = made_whole(b, c->out, c->in, c->dtype, c->scale_cols, &storage);
    const enum dtype dtype = b->ops->linear_out(b, w, c->rows);
    b->ops->weight_close(w);
    free(storage);
    return dtype;
}

static void product_case(struct backend *b, const struct out_case *c)
{
    const size_t n = (size_t)c->rows * (size_t)c->out;
    float *want = guarded(n), *plain = guarded(n), *got = guarded(n);
    const double u = roundoff(c->result), exact = 1e-6 + 6e-8 * c->in;
    const double near = device_bound(c->rows, c->in, c->dtype, exact) * (1 + u) + f16_small;
    char what[96];
    snprintf(what, sizeof what, "%s: %dx%dx%d %s", b->ops->name, c->rows, c->in, c->out,
             dtype_name(c->dtype));
    multiply(ref, c, DTYPE_F32, want);
    multiply(b, c, DTYPE_F32, plain); /* its algorithm is not that of the other */
    multiply(b, c, c->result, got);
    assert_near(what, got, want, n, near, u + 1e-6);
    for (size_t i = 0; i < n && is_emulated(); i++) {
        float rounded;
        dtype_store(&rounded, c->result, 0, plain[i]);
        plain[i] = dtype_load(&rounded, c->result, 0);
    }
    if (is_emulated())
        assert_bits(what, got, plain, n);
    guarded_free(want, n);
    guarded_free(plain, n);
    guarded_free(got, n);
}

static void test_products(void **state UNUSED)
{
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const struct out_case *c = &cases[i];
        for (int k = 0; nth_backend(k) != NULL; k++)
            assert_int_equal(asked(nth_backend(k), c),
                             nth_backend(k) == device ? c->result : DTYPE_F32);
        if (device != NULL)
            product_case(device, c);
    }
}

/* ---- act_mul ---- */

struct act_case {
    int32_t rows, cols;
    enum dtype dtype;
};

/* The CPU, which is never given 16 bits, has the same values in fp32. */
static void act_case(struct backend *b, const void *arg, float *out)
{
    const struct act_case *c = arg;
    const size_t n = 2 * (size_t)c->rows * (size_t)c->cols, each = n / 2;
    const bool narrow = b == ref || b == device || b == invariant;
    void *gu = guarded(words_of(n, c->dtype));
    float *wide = guarded(n);
    for (size_t i = 0; i < n; i++)
        dtype_store(gu, c->dtype, i, gen(14, i) * (i % 7 == 0 ? 95.0f : 5.0f));
    widened(wide, gu, c->dtype, n);
    const struct cview v = {narrow ? gu : (const void *)wide, narrow ? c->dtype : DTYPE_F32,
                            c->rows, 2 * c->cols};
    for (int32_t act = 0; act < ACT_COUNT; act++)
        ok(backend_act_mul(b, view_f32(out + (size_t)act * each, c->rows, c->cols), v,
                           (enum activation)act, &err));
    guarded_free(gu, words_of(n, c->dtype));
    guarded_free(wide, n);
}

static void test_activations(void **state UNUSED)
{
    static const int32_t shapes[][2] = {{1, 1},  {3, 8},    {2, 12},    {5, 100}, {0, 8},
                                        {4, 17}, {7, 2047}, {40, 4096}, {2, 2056}};
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
        const struct act_case c = {shapes[i][0], shapes[i][1], DTYPE_BF16};
        run_case("act_mul", act_case, &c, ACT_COUNT * (size_t)c.rows * (size_t)c.cols, 1e-6, 2e-6);
    }
}

/* ---- act_by ---- */

struct by_case {
    int32_t rows, cols, stride, first; /* `by` is columns [first, first + cols) of `stride` */
};

/* With both activations, beside x and in its place; and as act_mul has it. */
static void by_case(struct backend *b, const void *arg, float *out)
{
    const struct by_case *c = arg;
    const size_t rows = (size_t)c->rows, cols = (size_t)c->cols, stride = (size_t)c->stride;
    const size_t n = rows * cols;
    float *x = generated(18, n), *wide = guarded(rows * stride), *gu = guarded(2 * n);
    const float *by = wide + c->first;
    for (size_t t = 0; t < rows; t++) { /* beside `by` are canaries */
        for (size_t i = 0; i < cols; i++) {
            x[t * cols + i] *= i % 7 == 0 ? 95.0f : 5.0f;
            wide[t * stride + (size_t)c->first + i] = gen(19, t * cols + i);
        }
        memcpy(gu + 2 * t * cols, x + t * cols, cols * sizeof *gu);
        memcpy(gu + (2 * t + 1) * cols, by + t * stride, cols * sizeof *gu);
    }
    const struct cview from = {x, DTYPE_F32, c->rows, c->cols},
                       both = {gu, DTYPE_F32, c->rows, 2 * c->cols};
    for (int act = 0; act < 2; act++, out += 2 * n) {
        const enum activation a = act == 0 ? ACT_SILU : ACT_GELU_TANH;
        const struct view y = view_f32(out, c->rows, c->cols);
        const struct view again = view_f32(out + n, c->rows, c->cols);
        ok(backend_act_mul(b, y, both, a, &err));
        memcpy(again.data, x, n * sizeof *x);
        ok(backend_act_by(b, again, cview_of(again), by, stride, a, &err));
        assert_bits("act_by in place", again.data, y.data, n);
        ok(backend_act_by(b, y, from, by, stride, a, &err));
        assert_bits("act_by", y.data, again.data, n);
    }
    guarded_free(x, n);
    guarded_free(wide, rows * stride);
    guarded_free(gu, 2 * n);
}

static void test_act_by(void **state UNUSED)
{
    static const struct by_case slices[] = {
        {1, 1, 1, 0},       {3, 8, 24, 8},  {5, 8, 24, 7},         {4, 8, 26, 8},
        {0, 8, 24, 8},      {4, 17, 51, 0}, {7, 256, 2560, 2304},  {40, 256, 256, 0},
        {2, 1028, 2056, 0}, {3, 0, 8, 8},   {5, 2047, 4094, 2047}, {300, 64, 192, 128}};
    for (size_t i = 0; i < ARRAY_LEN(slices); i++)
        run_case("act_by", by_case, &slices[i], 4 * (size_t)(slices[i].rows * slices[i].cols), 1e-6,
                 2e-6);
}

static void act_by_is_refused(struct backend *b, float *y, const float *x, const float *by,
                              size_t stride, enum activation act)
{
    const struct cview from = {x, DTYPE_F32, 2, 8};
    assert_int_equal(backend_act_by(b, view_f32(y, 2, 8), from, by, stride, act, &err),
                     ERR_INTERNAL);
    assert_non_null(strstr(err.text, "act_by"));
}

/* ---- arguments ---- */

static void expect_refused(struct backend *b, int32_t rows, enum dtype weight, enum dtype y)
{
    const struct out_case c = {rows, 16, 16, weight, y, 0};
    float x[20 * 16] = {0}, to[20 * 16];
    void *storage;
    struct weight *w = made_whole(b, c.out, c.in, c.dtype, c.scale_cols, &storage);
    const struct cview from = {x, DTYPE_F32, rows, 16};
    assert_int_equal(backend_linear(b, (struct view){to, y, rows, 16}, from, w, &err),
                     ERR_INTERNAL);
    b->ops->weight_close(w);
    free(storage);
}

static void test_arguments(void **state UNUSED)
{
    float x[64] = {0}, y[32];
    const struct cview codes = {x, DTYPE_F8_E4M3, 2, 16};
    for (int k = 0; nth_backend(k) != NULL; k++) {
        struct backend *b = nth_backend(k);
        expect_refused(b, 3, DTYPE_BF16, DTYPE_BF16);
        expect_refused(b, 20, DTYPE_BF16, DTYPE_F16);
        expect_refused(b, 20, DTYPE_F32, DTYPE_BF16);
        if (b != device)
            expect_refused(b, 20, DTYPE_BF16, DTYPE_BF16);
        assert_int_equal(backend_act_mul(b, view_f32(y, 2, 8), codes, ACT_SILU, &err),
                         ERR_INTERNAL);
        act_by_is_refused(b, y, x, x + 16, 16, ACT_SWIGLU_PAIRS);
        act_by_is_refused(b, y, x, x + 16, 7, ACT_SILU);
        act_by_is_refused(b, y, x, NULL, 16, ACT_SILU);
        act_by_is_refused(b, x + 4, x, y, 16, ACT_SILU);
        act_by_is_refused(b, x + 20, x, x + 16, 8, ACT_SILU);
        act_by_is_refused(b, x + 48, x, x + 16, 32, ACT_SILU);
        ok(backend_act_by(b, view_f32(y, 2, 8), (struct cview){x, DTYPE_F32, 2, 8}, x + 16, 16,
                          ACT_GELU_TANH, &err));
        ok(backend_act_by(b, view_f32(x + 48, 2, 8), (struct cview){x, DTYPE_F32, 2, 8}, x + 16, 24,
                          ACT_SILU, &err)); /* right behind the last row */
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products), cmocka_unit_test(test_activations),
        cmocka_unit_test(test_act_by), cmocka_unit_test(test_arguments)};
    only(argc, argv);
    return cmocka_run_group_tests(tests, open_invariant_too, close_subjects);
}
