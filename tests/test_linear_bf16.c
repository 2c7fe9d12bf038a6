/* DESIGN: what is the weights' of BF16 own among the ops, by the rules of subjects.h: what becomes
 * of activations, and every sum spelled out, to the last bit. Products of all shapes are
 * test_kernels.c's. */
#include "tests/made_weight.h"
#include "tests/only.h"

#include <float.h>

enum { OUT = 37, IN_MAX = 397, ROWS_MAX = 27 };

/* Numbers below the smallest normal one are zeros. */
static float flushed(float f)
{
    return fabsf(f) < FLT_MIN ? copysignf(0, f) : f;
}

static float rounded(float f)
{
    return flushed(dtype_from_bf16(dtype_to_bf16(f)));
}

/* x * w + t, rounded as if exponents had no end, then a zero where that is too small. */
static float multiply_add(float x, float w, float t)
{
    const double sum = (double)x * (double)w + (double)t; /* the product is exact */
    return fabs(sum) < 0x1p-126 - 0x1p-151 ? copysignf(0, fmaf(x, w, t)) : fmaf(x, w, t);
}

/* Some value whose size is about 2^about, the more so the smaller `spread` is. */
static float value(uint64_t seed, size_t i, int about, int spread)
{
    return ldexpf(gen(seed, i), about + (int)(gen(seed + 100, i) * (float)spread));
}

struct sizes {
    int about_x, about_w, spread;
};

/* Leaves that begin and end between the columns of a pair, and one that is empty. */
static struct weight_spec spec_of(int32_t in, int32_t leaves)
{
    struct weight_spec spec = {.out = OUT, .in = in, .leaves = leaves, .dtype = DTYPE_BF16};
    for (int32_t l = 0; l <= leaves; l++)
        spec.cut[l] = leaves > 2 && l == 2 ? spec.cut[1] : in * l / leaves;
    return spec;
}

/* Chains and tree of one output. */
static float expected(const struct weight_spec *spec, const float *x, const float *w)
{
    float t[BACKEND_LEAVES_MAX] = {0};
    for (int32_t l = 0; l < spec->leaves; l++)
        for (int32_t k = spec->cut[l]; k < spec->cut[l + 1]; k++)
            t[l] = multiply_add(rounded(x[k]), rounded(w[k]), t[l]);
    for (int32_t s = 1; s < spec->leaves; s *= 2)
        for (int32_t l = 0; l + s < spec->leaves; l += 2 * s)
            t[l] += t[l + s];
    return t[0];
}

static void expect_sums(struct backend *b, const struct weight_spec *spec, struct sizes about,
                        int32_t rows)
{
    static float x[ROWS_MAX * IN_MAX], w[OUT * IN_MAX];
    uint16_t stored[OUT * IN_MAX];
    const size_t in = (size_t)spec->in, n = (size_t)rows * OUT;
    float *got = guarded(n);
    for (size_t i = 0; i < (size_t)rows * in; i++)
        x[i] = value(3, i, about.about_x, about.spread);
    for (size_t i = 0; i < OUT * in; i++) {
        stored[i] = dtype_to_bf16(value(7, i, about.about_w, about.spread));
        w[i] = dtype_from_bf16(stored[i]);
    }
    void *storage = aligned_bytes(b->ops->weight_bytes(spec), 0xff);
    struct weight *weight = must(b->ops->weight_open(b, spec, storage));
    b->ops->weight_put(weight, 0, OUT, stored, DTYPE_BF16, in * sizeof *stored);
    const struct cview view = {x, DTYPE_F32, rows, spec->in};
    ok(backend_linear(b, view_f32(got, rows, OUT), view, weight, &err));
    for (int32_t t = 0; t < rows; t++)
        for (int32_t o = 0; o < OUT; o++) {
            const float want = expected(spec, x + (size_t)t * in, w + (size_t)o * in);
            assert_bits(b->ops->name, got + t * OUT + o, &want, 1);
        }
    guarded_free(got, n);
    b->ops->weight_close(weight);
    free(storage);
}

/* Every variant adds one product after the other, in the order of columns, with activations in
 * bf16; whether numbers are as usual, or products and sums are about as small as numbers can be. */
static void test_order(void **state UNUSED)
{
    static const struct sizes sizes[] = {{0, 0, 0}, {-63, -62, 3}, {-124, 0, 4}, {0, -125, 4}};
    static const int32_t in[] = {1, 2, 63, 97, 300, IN_MAX}, leaves[] = {1, 6, 8, 3};
    for (int i = 0; i < subject_count; i++)
        for (size_t s = 0; s < ARRAY_LEN(sizes); s++)
            for (size_t k = 0; k < ARRAY_LEN(in); k++) {
                const struct weight_spec spec = spec_of(in[k], leaves[(s + k) % 4]);
                for (int32_t rows = 1; rows <= ROWS_MAX; rows += rows < 5 ? 1 : 11)
                    expect_sums(subjects[i], &spec, sizes[s], rows);
            }
}

/* Only products are made so: the mode of the thread is as before. */
static void test_mode(void **state UNUSED)
{
    const struct weight_spec spec = spec_of(8, 1);
    volatile float small = FLT_MIN;
    expect_sums(subjects[0], &spec, (struct sizes){0, 0, 0}, 1);
    small *= 0.5f;
    assert_true(small > 0);
}

/* A row that is not finite spoils itself alone, whichever column of a pair it is in; a column of
 * another leaf spoils nothing, even where it shares a pair. */
static void test_spoiled(void **state UNUSED)
{
    enum { IN = 70, ROWS = 13 };
    for (int i = 0; i < subject_count * 2; i++) {
        struct backend *b = subjects[i / 2];
        struct weight_spec spec = spec_of(IN, 2);
        static float x[ROWS * IN], y[ROWS * OUT];
        uint16_t w[OUT * IN];
        for (size_t n = 0; n < ARRAY_LEN(x); n++)
            x[n] = gen(3, n);
        for (size_t n = 0; n < ARRAY_LEN(w); n++)
            w[n] = dtype_to_bf16(1);
        spec.cut[1] = 33;
        x[5 * IN + 32 + i % 2] = INFINITY;
        w[9 * IN + 33 - i % 2] = dtype_to_bf16(INFINITY);
        for (int32_t t = 0; t < ROWS; t++)
            x[t * IN + 33 - i % 2] = t == 5 ? 1 : fabsf(x[t * IN + 33 - i % 2]);
        void *storage = aligned_bytes(b->ops->weight_bytes(&spec), 0xff);
        struct weight *weight = must(b->ops->weight_open(b, &spec, storage));
        b->ops->weight_put(weight, 0, OUT, w, DTYPE_BF16, sizeof w / OUT);
        const struct cview view = {x, DTYPE_F32, ROWS, IN};
        ok(backend_linear(b, view_f32(y, ROWS, OUT), view, weight, &err));
        for (int32_t n = 0; n < ROWS * OUT; n++)
            assert_true(n / OUT == 5 || n % OUT == 9 ? y[n] == INFINITY : isfinite(y[n]));
        b->ops->weight_close(weight);
        free(storage);
    }
}

struct rounded_case {
    int32_t rows, in, leaves;
};

static void rounded_case(struct backend *b, const void *arg, float *out)
{
    const struct rounded_case *c = arg;
    const struct weight_spec spec = spec_of(c->in, c->leaves);
    const size_t words = (size_t)c->rows * (size_t)c->in;
    float *x = generated(3, words);
    void *storage;
    struct weight *w = made(b, &spec, 7, DTYPE_BF16, 0, &storage);
    for (size_t i = 0; i < words; i++)
        x[i] = rounded(x[i]);
    const struct cview view = {x, DTYPE_F32, c->rows, c->in};
    ok(backend_linear(b, view_f32(out, c->rows, OUT), view, w, &err));
    b->ops->weight_close(w);
    guarded_free(x, words);
    free(storage);
}

/* Where activations are of bf16 already, a device's sums are those of ref, too. */
static void test_rounded(void **state UNUSED)
{
    static const struct rounded_case cases[] = {{1, 777, 8},  {3, 520, 1},  {9, 301, 5},
                                                {16, 264, 8}, {70, 300, 1}, {1, 64, 1}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const double abs = 1e-6 + 6e-8 * cases[i].in;
        run_case_loose("bf16 times bf16", rounded_case, &cases[i], (size_t)cases[i].rows * OUT, abs,
                       1e-6, sqrt(cases[i].in) * 0x1p-16);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_order), cmocka_unit_test(test_mode),
                                       cmocka_unit_test(test_spoiled),
                                       cmocka_unit_test(test_rounded)};
    only(argc, argv);
    return cmocka_run_group_tests(tests, open_invariant_too, close_subjects);
}
