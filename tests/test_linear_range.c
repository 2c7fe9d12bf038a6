/* DESIGN: products of rows that are large, small or no numbers, by the rules of subjects.h: what
 * kernels do to rows before they multiply may not show. */
#include "tests/made_weight.h"
#include "tests/only.h"

#include <math.h>

enum { OUT = 20, IN = 192, ROWS = 20 };

static const struct weight_spec weights[] = {
    {.dtype = DTYPE_F32},
    {.dtype = DTYPE_F16},
    {.dtype = DTYPE_BF16},
    {.dtype = DTYPE_F8_E4M3},
    {.dtype = DTYPE_F8_E4M3, .scale_cols = 64},
    {.dtype = DTYPE_I4, .scale_cols = BACKEND_GROUP},
};

/* A weight of OUT outputs, and what is multiplied by it. */
struct subject {
    struct backend *b;
    struct weight *w;
    float *x; /* [ROWS, IN] */
};

static void multiply(const struct subject *s, float *y, const float *x, int32_t rows)
{
    const struct cview view = {x, DTYPE_F32, rows, IN};
    ok(backend_linear(s->b, view_f32(y, rows, OUT), view, s->w, &err));
}

static void each(void (*run)(const struct subject *s, const struct weight_spec *spec))
{
    for (int i = 0; nth_backend(i) != NULL; i++)
        for (size_t t = 0; t < ARRAY_LEN(weights); t++) {
            struct subject s = {.b = nth_backend(i), .x = generated(3, ROWS * IN)};
            struct weight_spec spec = weights[t];
            void *storage;
            spec.out = OUT, spec.in = spec.cut[1] = IN, spec.leaves = 1;
            s.w = made(s.b, &spec, 7, put_dtype(spec.dtype), 0, &storage);
            run(&s, &spec);
            s.b->ops->weight_close(s.w);
            guarded_free(s.x, ROWS * IN);
            free(storage);
        }
}

/* Rows times a power of two give as much more, to the bit: whatever a kernel does to them before it
 * multiplies leaves room for large ones and small ones. Not of fp16, which many rows become. */
static void powers(const struct subject *s, const struct weight_spec *spec)
{
    static const int32_t some[] = {1, 3, 8, 9};
    float more[ROWS * IN], y[ROWS * OUT], got[ROWS * OUT];
    for (size_t n = 0; n < ARRAY_LEN(some) && spec->dtype != DTYPE_F16; n++) {
        multiply(s, y, s->x, some[n]);
        for (int power = -40; power <= 40; power += 80) {
            for (int32_t k = 0; k < some[n] * IN; k++)
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
    each(powers);
}

/* Rows of different sizes are each as accurate as it is alone. */
static void mixed(const struct subject *s, const struct weight_spec *spec)
{
    float more[ROWS * IN], y[OUT], got[ROWS * OUT];
    if (spec->dtype == DTYPE_F16)
        return;
    for (int32_t rows = 2; rows <= 9; rows++) {
        for (int32_t k = 0; k < rows * IN; k++)
            more[k] = ldexpf(s->x[k], k / IN * 13 % 61 - 30);
        multiply(s, got, more, rows);
        for (int32_t r = 0; r < rows; r++) {
            multiply(s, y, more + r * IN, 1);
            assert_bits(s->b->ops->name, got + r * OUT, y, OUT);
        }
    }
}

static void test_mixed(void **state UNUSED)
{
    each(mixed);
}

/* An infinity leaves no number of its own row, and all of the others. */
static void infinite(const struct subject *s, const struct weight_spec *spec)
{
    float y[ROWS * OUT], got[ROWS * OUT];
    if (spec->dtype == DTYPE_I4) /* a CPU's integers have none */
        return;
    for (int32_t rows = 1; rows <= ROWS; rows += rows < 9 ? 1 : 11) {
        const int32_t which = rows / 2, at = which * IN + rows * 17 % IN;
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
    each(infinite);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_powers), cmocka_unit_test(test_mixed),
                                       cmocka_unit_test(test_infinite)};
    only(argc, argv);
    return cmocka_run_group_tests(tests, open_invariant_too, close_subjects);
}
