/* DESIGN: products of rows that are large, small or no numbers, by the rules of subjects.h: what
 * kernels do to rows before they multiply may not show. */
#include "tests/made_weight.h"
#include "tests/only.h"

#include <math.h>

enum { OUT = 20, IN_MAX = 192, ROWS = 20 };

static const struct weight_spec weights[] = {
    {.dtype = DTYPE_F32},
    {.dtype = DTYPE_F16},
    {.dtype = DTYPE_BF16},
    {.dtype = DTYPE_F8_E4M3},
    {.dtype = DTYPE_F8_E4M3, .scale_cols = 64},
    {.dtype = DTYPE_F8_E4M3, .scale_cols = 24},
    {.dtype = DTYPE_I4, .scale_cols = BACKEND_GROUP},
};

/* A weight of OUT outputs, and what is multiplied by it. */
struct subject {
    struct backend *b;
    struct weight *w;
    struct weight_spec spec;
    float *x; /* [ROWS, in] */
};

static void multiply(const struct subject *s, float *y, const float *x, int32_t rows)
{
    const struct cview view = {x, DTYPE_F32, rows, s->spec.in};
    ok(backend_linear(s->b, view_f32(y, rows, OUT), view, s->w, &err));
}

/* Of `in` columns in two leaves, the second from `cut` on. */
static void each(int32_t in, int32_t cut, void (*run)(const struct subject *s))
{
    for (int i = 0; nth_backend(i) != NULL; i++)
        for (size_t t = 0; t < ARRAY_LEN(weights); t++) {
            struct subject s = {.b = nth_backend(i), .spec = weights[t]};
            void *storage;
            s.spec.out = OUT, s.spec.in = in, s.spec.leaves = 2;
            s.spec.cut[1] = cut, s.spec.cut[2] = in;
            s.x = generated(3, (size_t)(ROWS * in));
            s.w = made(s.b, &s.spec, 7, put_dtype(s.spec.dtype), 0, &storage);
            run(&s);
            s.b->ops->weight_close(s.w);
            guarded_free(s.x, (size_t)(ROWS * in));
            free(storage);
        }
}

/* Rows of which all bits are those that each has alone. */
static int32_t rows_alike(const struct subject *s)
{
    return s->b == device ? DEVICE_FEW_ROWS : ROWS;
}

/* Rows times a power of two give as much more, to the bit: whatever a kernel does to them before it
 * multiplies leaves room for large ones and small ones. */
static void powers(const struct subject *s)
{
    static const int32_t some[] = {1, 3, 8, 9};
    const int32_t in = s->spec.in;
    float more[ROWS * IN_MAX], y[ROWS * OUT], got[ROWS * OUT];
    for (size_t n = 0; n < ARRAY_LEN(some); n++) {
        multiply(s, y, s->x, some[n]);
        for (int power = -40; power <= 40; power += 80) {
            for (int32_t k = 0; k < some[n] * in; k++)
                more[k] = ldexpf(s->x[k], power);
            multiply(s, got, more, some[n]);
            for (int32_t k = 0; k < some[n] * OUT; k++)
                got[k] = ldexpf(got[k], -power);
            assert_bits(s->b->ops->name, got, y, (size_t)(some[n] * OUT));
        }
    }
}

static void test_powers(void **state UNUSED)
{
    each(192, 96, powers);
}

/* Rows of different sizes, with large and small numbers beside each other, have the bits that each
 * has alone. */
static void mixed(const struct subject *s)
{
    static const int32_t some[] = {2, 3, 4, 8, 9, 16, ROWS};
    const int32_t in = s->spec.in, rows = rows_alike(s);
    float more[ROWS * IN_MAX], y[OUT], got[ROWS * OUT];
    for (int32_t k = 0; k < rows * in; k++)
        more[k] = ldexpf(s->x[k], k / in * 13 % 61 - 30 - k * 7 % 47);
    for (size_t i = 0; i < ARRAY_LEN(some) && some[i] <= rows; i++) {
        multiply(s, got, more, some[i]);
        for (int32_t r = 0; r < some[i]; r++) {
            multiply(s, y, more + r * in, 1);
            assert_bits(s->b->ops->name, got + r * OUT, y, OUT);
        }
    }
}

static void test_mixed(void **state UNUSED)
{
    each(192, 96, mixed);
    each(176, 64, mixed);
    each(157, 50, mixed);
}

/* Columns of a weight from `cut` on become zeros. */
static void clear_behind(const struct subject *s, int32_t cut)
{
    const enum dtype dtype = put_dtype(s->spec.dtype);
    unsigned char row[IN_MAX * sizeof(float)];
    for (int32_t r = 0; r < OUT; r++) {
        for (int32_t k = 0; k < s->spec.in; k++) {
            const float value = put_value(s->spec.dtype, gen(7, (size_t)r * 100003 + (size_t)k));
            dtype_store(row, dtype, (size_t)k, k < cut ? value : 0);
        }
        s->b->ops->weight_put(s->w, r, 1, row, dtype, sizeof row);
    }
}

/* What another rank has may be as large as it likes: a leaf's bits do not show it. */
static void behind(const struct subject *s)
{
    const int32_t in = s->spec.in, cut = s->spec.cut[1];
    float more[ROWS * IN_MAX], y[ROWS * OUT], got[ROWS * OUT];
    if (s->b == device) /* which knows no leaves */
        return;
    clear_behind(s, cut);
    for (int32_t k = 0; k < ROWS * in; k++) {
        s->x[k] = ldexpf(s->x[k], -(k * 7 % 47));
        more[k] = k % in < cut ? s->x[k] : ldexpf(s->x[k], 80);
    }
    for (int32_t n = 1; n <= ROWS; n++) {
        multiply(s, y, s->x, n);
        multiply(s, got, more, n);
        for (int32_t i = 0; i < n * OUT; i++)
            assert_true(got[i] == y[i]);
    }
}

static void test_behind(void **state UNUSED)
{
    each(192, 96, behind);
    each(157, 50, behind);
}

/* An infinity leaves no number of its own row, and all of the others. */
static void infinite(const struct subject *s)
{
    const int32_t in = s->spec.in;
    float y[ROWS * OUT], got[ROWS * OUT];
    if (s->spec.dtype == DTYPE_I4) /* a CPU's integers have none */
        return;
    for (int32_t rows = 1; rows <= ROWS; rows += rows < 9 ? 1 : 11) {
        const int32_t which = rows / 2, at = which * in + rows * 17 % in;
        const float before = s->x[at];
        multiply(s, y, s->x, rows);
        s->x[at] = INFINITY;
        multiply(s, got, s->x, rows);
        s->x[at] = before;
        for (int32_t o = 0; o < OUT; o++) {
            assert_true(!isfinite(got[which * OUT + o]));
            got[which * OUT + o] = y[which * OUT + o];
        }
        assert_bits(s->b->ops->name, got, y, (size_t)(rows * OUT));
    }
}

static void test_infinite(void **state UNUSED)
{
    each(192, 96, infinite);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_powers), cmocka_unit_test(test_mixed),
                                       cmocka_unit_test(test_behind),
                                       cmocka_unit_test(test_infinite)};
    only(argc, argv);
    return cmocka_run_group_tests(tests, open_invariant_too, close_subjects);
}
