/* DESIGN: what is the integers' own among the ops, by the rules of subjects.h: codes and scales as
 * they are stored, and what becomes of activations. Products of all shapes are test_kernels.c's. */
#include "tests/made_weight.h"
#include "tests/only.h"

static const struct {
    enum dtype dtype;
    int32_t top;
} types[] = {{DTYPE_I8, 127}, {DTYPE_I4, 7}, {DTYPE_U4, 15}, {DTYPE_F4_E2M1, 12}};
enum { TYPES = ARRAY_LEN(types) };

/* All of a type come up; of U4 with every zero from 0 to 15. */
static int8_t nth_code(const struct weight_spec *spec, int32_t top, int32_t n, int32_t k)
{
    const int32_t group = (spec->scale_skip + k) / BACKEND_GROUP;
    if (spec->dtype == DTYPE_F4_E2M1)
        return e2m1[n % 15];
    if (spec->dtype == DTYPE_U4)
        return (int8_t)(n % 16 - (n - k + 3 * group) % 16);
    return (int8_t)(n % (2 * top + 1) - top - (top != 12 && k % 3 == 0));
}

/* Every code, parts of panels, and groups that begin before the weight does. */
static void test_weights(void **state UNUSED)
{
    enum { OUT = 70, IN = 261 };
    static int8_t codes[OUT][IN];
    for (int t = 0; t < 8 * TYPES; t++) {
        struct weight_spec spec = {.out = OUT, .in = IN, .leaves = 1, .scale_cols = BACKEND_GROUP};
        const int32_t top = types[t % TYPES].top, seam = t < 4 * TYPES ? 64 : 37;
        spec.dtype = types[t % TYPES].dtype;
        spec.cut[1] = IN;
        spec.scale_skip = t / TYPES % 4 * 9;
        spec.scales_f32 = spec.dtype != DTYPE_F4_E2M1 && t / TYPES % 3 == 1;
        float got[IN], scale[OUT * (IN / BACKEND_GROUP + 2)];
        for (size_t i = 0; i < ARRAY_LEN(scale); i++)
            scale[i] = spec.dtype == DTYPE_F4_E2M1
                           ? ldexpf(1, (int)(gen(8, i) * 126)) /* any that there may be */
                       : spec.scales_f32 ? gen(8, i)
                                         : dtype_from_bf16(dtype_to_bf16(gen(8, i)));
        for (int32_t r = 0; r < OUT; r++)
            for (int32_t k = 0; k < IN; k++)
                codes[r][k] = nth_code(&spec, top, r + k, k);
        for (int i = 0; nth_backend(i); i++) {
            struct backend *b = nth_backend(i);
            void *storage = aligned_bytes(b->ops->weight_bytes(&spec), 0);
            struct weight *w = must(b->ops->weight_open(b, &spec, storage));
            b->ops->weight_put(w, seam, OUT - seam, codes[seam], DTYPE_I8, IN);
            b->ops->weight_put(w, 0, seam, codes, DTYPE_I8, IN);
            b->ops->weight_scale(w, 0, OUT, scale);
            for (int32_t r = 0; r < OUT; r++) {
                b->ops->weight_get(w, r, got);
                for (int32_t k = 0; k < IN; k++) {
                    const int32_t group = (spec.scale_skip + k) / BACKEND_GROUP;
                    const float s = scale[r * backend_scales(&spec) + group];
                    assert_true(got[k] == (float)codes[r][k] * kept_scale(b, &spec, s));
                }
            }
            b->ops->weight_close(w);
            free(storage);
        }
    }
}

/* What they make of x, by the definition in numerics.h: codes that fit are exact, a run of
 * zeros or of next to nothing is zeros, and what is not finite spoils its own row alone. */
static void test_activations(void **state UNUSED)
{
    enum { IN = 96, OUT = 40, ROWS = 6 };
    static const float special[ROWS] = {1, 0, 0x1p-120f, NAN, INFINITY, 1};
    static int8_t codes[OUT][IN];
    static float x[ROWS * IN], y[ROWS * OUT], scale[OUT * 4];
    for (int t = 0; t < 2 * TYPES * subject_count; t++) {
        struct backend *b = subjects[t / (2 * TYPES)];
        struct weight_spec spec = {.out = OUT, .in = IN, .leaves = 2, .scale_cols = BACKEND_GROUP};
        spec.dtype = types[t % TYPES].dtype;
        spec.scale_skip = t / TYPES % 2 * 5;
        spec.cut[1] = 41;
        spec.cut[2] = IN;
        const int32_t top = types[t % TYPES].top;
        for (size_t i = 0; i < ARRAY_LEN(scale); i++)
            scale[i] = i % 2 == 0 ? 0.5f : top == 12 ? 0.25f : -0.25f;
        for (int32_t r = 0; r < OUT; r++)
            for (int32_t k = 0; k < IN; k++)
                codes[r][k] = (int8_t)((r % 3 - 1) * top);
        for (int32_t r = 0; r < ROWS; r++)
            for (int32_t k = 0; k < IN; k++) /* 127 in each run, so the scale of x is 1 */
                x[r * IN + k] = special[r] * (k % 2 == 0 ? 127.0f : (float)(k % 30 - 15));
        void *storage = aligned_bytes(b->ops->weight_bytes(&spec), 0);
        struct weight *w = must(b->ops->weight_open(b, &spec, storage));
        b->ops->weight_put(w, 0, OUT, codes, DTYPE_I8, IN);
        b->ops->weight_scale(w, 0, OUT, scale);
        const struct cview view = {x, DTYPE_F32, ROWS, IN};
        ok(backend_linear(b, view_f32(y, ROWS, OUT), view, w, &err));
        for (int32_t o = 0; o < ROWS * OUT; o++) {
            const int32_t row = o / OUT, out = o % OUT;
            double want = 0;
            for (int32_t k = 0; k < IN; k++) {
                const int32_t group = (spec.scale_skip + k) / BACKEND_GROUP;
                want += (double)x[k] * codes[out][k] *
                        (double)scale[out * backend_scales(&spec) + group];
            }
            if (isfinite(special[row]))
                assert_true((double)y[o] == (special[row] == 1 ? want : 0));
            else
                assert_true(isnan(y[o]));
        }
        b->ops->weight_close(w);
        free(storage);
    }
}

/* The same codes and scales give the same bits, however many bits hold them. */
static void test_same_codes(void **state UNUSED)
{
    enum { IN = 301, OUT = 70, ROWS = 13, SKIP = 11 };
    static const int32_t rows[] = {1, 3, ROWS};
    float *x = generated(3, (size_t)ROWS * IN);
    static float y[2][ROWS * OUT];
    for (int t = 0; t < (int)ARRAY_LEN(rows) * subject_count; t++) {
        struct backend *b = subjects[t / (int)ARRAY_LEN(rows)];
        const int32_t n = rows[t % (int)ARRAY_LEN(rows)];
        for (int narrow = 0; narrow < 2; narrow++) {
            struct weight_spec spec = {.out = OUT, .in = IN, .leaves = 2, .cut = {0, 140, IN}};
            spec.scale_cols = BACKEND_GROUP;
            spec.scale_skip = SKIP;
            spec.dtype = narrow ? DTYPE_F4_E2M1 : DTYPE_I8;
            void *storage = aligned_bytes(b->ops->weight_bytes(&spec), 0);
            struct weight *w = must(b->ops->weight_open(b, &spec, storage));
            spec.dtype = DTYPE_F4_E2M1; /* powers of two */
            float *scale = scales_of(&spec);
            spec.dtype = narrow ? DTYPE_F4_E2M1 : DTYPE_I8;
            for (int32_t o = 0; o < OUT; o++) {
                int8_t codes[IN];
                for (int32_t k = 0; k < IN; k++)
                    codes[k] = e2m1[(o * 7 + k * k) % 15];
                b->ops->weight_put(w, o, 1, codes, DTYPE_I8, IN);
            }
            b->ops->weight_scale(w, 0, OUT, scale);
            const struct cview view = {x, DTYPE_F32, n, IN};
            ok(backend_linear(b, view_f32(y[narrow], n, OUT), view, w, &err));
            b->ops->weight_close(w);
            free(storage);
            free(scale);
        }
        assert_bits("4 and 8 bits", y[1], y[0], (size_t)(n * OUT));
    }
    guarded_free(x, (size_t)ROWS * IN);
}

enum { ONES_IN = 161, ONES_OUT = 40, ONES_ROWS = 80 };

/* Scales of 8, 11 and 24 bits: those of bf16, which the types without scales_f32 take, fp16, fp32.
 */
static float *some_scales(const struct weight_spec *spec)
{
    const size_t n = (size_t)spec->out * (size_t)backend_scales(spec);
    float *scale =
        spec->dtype == DTYPE_F4_E2M1 ? scales_of(spec) : aligned_bytes(n * sizeof *scale, 0xff);
    for (size_t i = 0; i < n && spec->dtype != DTYPE_F4_E2M1; i++)
        scale[i] = !spec->scales_f32 ? dtype_from_bf16(dtype_to_bf16(gen(8, i)))
                   : i % 2 == 0      ? dtype_from_f16(dtype_to_f16(gen(8, i)))
                                     : gen(8, i);
    return scale;
}

/* y[t] = column `first + t` of the weight, for some rows at a time. */
static void take_columns(struct backend *b, struct weight *w, int32_t first, int32_t rows, float *y)
{
    static float x[ONES_ROWS * ONES_IN];
    memset(x, 0, sizeof x);
    for (int32_t t = 0; t < rows && first + t < ONES_IN; t++)
        x[t * ONES_IN + first + t] = 1;
    ok(backend_linear(b, view_f32(y, rows, ONES_OUT), (struct cview){x, DTYPE_F32, rows, ONES_IN},
                      w, &err));
    b->ops->sync(b);
}

/* Rows that are 1 in one place and 0 else find what a GPU multiplies with: a code times its scale,
 * rounded to bf16 once, by few rows at a time, by some and by many. */
static void ones_case(struct backend *b, const struct weight_spec *spec, int32_t top)
{
    static const int32_t steps[] = {1, 7, 16, 40, ONES_ROWS};
    static int8_t codes[ONES_OUT][ONES_IN];
    static float y[ONES_ROWS * ONES_OUT];
    void *storage = aligned_bytes(b->ops->weight_bytes(spec), 0);
    struct weight *w = must(b->ops->weight_open(b, spec, storage));
    float *scale = some_scales(spec);
    for (int32_t r = 0; r < ONES_OUT; r++)
        for (int32_t k = 0; k < ONES_IN; k++)
            codes[r][k] = nth_code(spec, top, r + k, k);
    b->ops->weight_put(w, 0, ONES_OUT, codes, DTYPE_I8, ONES_IN);
    b->ops->weight_scale(w, 0, ONES_OUT, scale);
    for (size_t s = 0; s < ARRAY_LEN(steps); s++)
        for (int32_t k = 0; k < ONES_IN; k += steps[s]) {
            take_columns(b, w, k, steps[s], y);
            for (int32_t i = 0; i < steps[s] * ONES_OUT && k + i / ONES_OUT < ONES_IN; i++) {
                const int32_t col = k + i / ONES_OUT, out = i % ONES_OUT;
                const int32_t group = out * backend_scales(spec) + backend_scale_of(spec, col);
                const float of = kept_scale(b, spec, scale[group]);
                const float want = dtype_from_bf16(dtype_to_bf16((float)codes[out][col] * of));
                if (y[i] != want)
                    fail_msg("%s, %d rows: [%d, %d] is %.9g, wanted %.9g", dtype_name(spec->dtype),
                             steps[s], out, col, (double)y[i], (double)want);
            }
        }
    b->ops->weight_close(w);
    free(storage);
    free(scale);
}

static void test_ones(void **state UNUSED)
{
    static const int32_t skips[] = {0, 16, 27};
    struct backend *const both[] = {device, invariant};
    for (size_t i = 0; i < 12 * TYPES && device != NULL; i++) {
        struct weight_spec spec = {.out = ONES_OUT, .in = ONES_IN, .leaves = 2};
        spec.dtype = types[i / 2 % TYPES].dtype;
        spec.scale_cols = BACKEND_GROUP;
        spec.scale_skip = skips[i / 2 / TYPES % 3];
        spec.scales_f32 = i / 6 / TYPES == 1 && spec.dtype != DTYPE_F4_E2M1;
        spec.cut[1] = spec.scale_skip == 0 ? 64 : 75;
        spec.cut[2] = ONES_IN;
        ones_case(both[i % 2], &spec, types[i / 2 % TYPES].top);
    }
}

enum { NIBBLES_IN = 301, NIBBLES_OUT = 70 };

/* y = x w^T, where w has the same values in all types of 4 bits. */
static void nibbles(struct backend *b, enum dtype dtype, bool scales_f32, const float *x,
                    int32_t rows, float *y)
{
    struct weight_spec spec = {.out = NIBBLES_OUT, .in = NIBBLES_IN, .leaves = 2};
    spec.cut[1] = 128;
    spec.cut[2] = NIBBLES_IN;
    spec.scale_cols = BACKEND_GROUP;
    spec.dtype = DTYPE_F4_E2M1; /* powers of two */
    float *scale = scales_of(&spec);
    spec.dtype = dtype;
    spec.scales_f32 = scales_f32;
    void *storage = aligned_bytes(b->ops->weight_bytes(&spec), 0);
    struct weight *w = must(b->ops->weight_open(b, &spec, storage));
    for (int32_t o = 0; o < NIBBLES_OUT; o++) {
        int8_t codes[NIBBLES_IN];
        for (int32_t k = 0; k < NIBBLES_IN; k++)
            codes[k] = e2m1[1 + (o * 7 + k * k) % 12]; /* -8 to 6 */
        b->ops->weight_put(w, o, 1, codes, DTYPE_I8, NIBBLES_IN);
    }
    b->ops->weight_scale(w, 0, NIBBLES_OUT, scale);
    ok(backend_linear(b, view_f32(y, rows, NIBBLES_OUT),
                      (struct cview){x, DTYPE_F32, rows, NIBBLES_IN}, w, &err));
    b->ops->sync(b);
    b->ops->weight_close(w);
    free(storage);
    free(scale);
}

/* On a GPU, too: among types of 4 bits, whose sums have one order. */
static void test_same_nibbles(void **state UNUSED)
{
    enum { ROWS = 40 };
    static const int32_t rows[] = {1, 3, 13, ROWS};
    static const enum dtype held[] = {DTYPE_I4, DTYPE_I4, DTYPE_U4, DTYPE_U4};
    static float want[ROWS * NIBBLES_OUT], got[ROWS * NIBBLES_OUT];
    struct backend *const both[] = {device, invariant};
    float *x = generated(3, (size_t)ROWS * NIBBLES_IN);
    for (size_t i = 0; i < 2 * ARRAY_LEN(rows) && both[i % 2] != NULL; i++) {
        const int32_t n = rows[i / 2];
        nibbles(both[i % 2], DTYPE_F4_E2M1, false, x, n, want);
        for (size_t t = 0; t < ARRAY_LEN(held); t++) {
            nibbles(both[i % 2], held[t], t % 2 == 1, x, n, got);
            assert_bits(dtype_name(held[t]), got, want, (size_t)(n * NIBBLES_OUT));
        }
    }
    guarded_free(x, (size_t)ROWS * NIBBLES_IN);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_weights), cmocka_unit_test(test_activations),
        cmocka_unit_test(test_same_codes), cmocka_unit_test(test_same_nibbles),
        cmocka_unit_test(test_ones)};
    only(argc, argv);
    return cmocka_run_group_tests(tests, open_invariant_too, close_subjects);
}
