/* DESIGN: every op but attention (test_attend.c) and sampling (test_sample.c), by the rules of
 * subjects.h; and a row alone must give the bits it has among many. */
#include "tests/only.h"
#include "tests/made_weight.h"

#include "kernels/cpu/pool.h"

/* ---- generator, exp, table ------------------------------------------------------------------- */

static void test_generator(void **state UNUSED)
{
    int negative = 0, equal = 0;
    for (size_t i = 0; i < 1000; i++) {
        negative += gen(1, i) < 0;
        equal += gen(1, i) == gen(1, i + 1) || gen(1, i) == gen(2, i);
        assert_true(gen(1, i) >= -1 && gen(1, i) < 1);
    }
    assert_in_range(negative, 400, 600);
    assert_int_equal(equal, 0);
}

static void test_exp(void **state UNUSED)
{
    double worst = 0;
    for (int32_t i = -872500; i < 887000; i++) {
        const float x = (float)i * 1e-4f;
        double want = exp((double)x), ulp = ldexp(1, ilogb(want) - 23);
        double error = fabs((double)numerics_exp(x) - want) / ulp;
        worst = error > worst ? error : worst;
    }
    print_message("exp: worst error %.3f ulp\n", worst);
    assert_true(worst < 1.1);
    assert_true(numerics_exp(0.0f) == 1.0f && numerics_exp(-0.0f) == 1.0f);
    assert_true(numerics_exp(-INFINITY) == 0.0f && numerics_exp(-88.0f) == 0.0f);
    assert_true(numerics_exp(100.0f) == numerics_exp(88.7f) && isfinite(numerics_exp(INFINITY)));
    const uint32_t ones = 0x7fffffff; /* a GPU's NaN */
    float nan;
    memcpy(&nan, &ones, sizeof nan);
    assert_true(isnan(numerics_exp(NAN)) && isnan(numerics_exp(nan)));
}

static void test_tables(void **state UNUSED)
{
    static const char *const names[] = {"ref", "cpu", "cpu-generic"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        const struct backend_ops *ops = backend_find(names[i]);
        void *members[sizeof *ops / sizeof(void *)];
        assert_non_null(ops);
        memcpy(members, ops, sizeof members);
        for (size_t m = 0; m < ARRAY_LEN(members); m++)
            assert_non_null(members[m]);
    }
    struct backend *b = NULL;
    assert_null(backend_find("cpu-mmx"));
    assert_int_equal(backend_open("abacus", 1, &b, &err), ERR_DEVICE);
    assert_int_equal(backend_open("cpu", 0, &b, &err), ERR_INTERNAL);
    assert_null(b);
    assert_string_equal(backend_find("cpu")->name, backend_cpu_variant());
}

/* ---- weights --------------------------------------------------------------------------------- */

static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_F8_E4M3};

struct weight_case {
    struct weight_spec spec;
    enum dtype src;
    int32_t seam; /* rows of the first weight_put */
};

static void weight_case(struct backend *b, const void *arg, float *out)
{
    const struct weight_case *c = arg;
    void *storage;
    struct weight *w = made(b, &c->spec, 7, c->src, c->seam, &storage);
    assert_int_equal(backend_weight_spec(w)->out, c->spec.out);
    for (int32_t r = 0; r < c->spec.out; r++)
        b->ops->weight_get(w, r, out + (size_t)r * (size_t)c->spec.in);
    b->ops->weight_close(w);
    free(storage);
}

static void test_weight_put(void **state UNUSED)
{
    static const int32_t shapes[][3] = {{1, 1, 0},     {32, 16, 0},    {33, 17, 32}, {70, 129, 64},
                                        {64, 300, 32}, {96, 128, 33},  {40, 31, 7},  {0, 8, 0},
                                        {8, 0, 0},     {100, 150, 99}, {65, 257, 64}};
    for (size_t s = 0; s < ARRAY_LEN(shapes); s++) {
        for (size_t t = 0; t < 9; t++) {
            struct weight_case c = {.src = dtypes[t % 3], .seam = shapes[s][2]};
            c.spec = (struct weight_spec){.out = shapes[s][0], .in = shapes[s][1], .leaves = 1};
            c.spec.dtype = dtypes[t / 3];
            c.spec.cut[1] = c.spec.in;
            run_case("weight_put", weight_case, &c, (size_t)c.spec.out * (size_t)c.spec.in, 0, 0);
        }
    }
}

/* What an E4M3 code means, by its definition. */
static float code_value(uint8_t c)
{
    const double m = c & 7, v = c & 0x78 ? ldexp(8 + m, (c >> 3 & 15) - 10) : ldexp(m, -9);
    return (float)(c & 0x80 ? -v : v);
}

/* Every code, and scales that begin before the weight does, against the definition. */
static void test_weight_f8(void **state UNUSED)
{
    struct weight_spec spec = {.out = 40, .in = 300, .leaves = 1, .dtype = DTYPE_F8_E4M3};
    spec.cut[1] = spec.in;
    for (spec.scale_cols = 0; spec.scale_cols <= 256; spec.scale_cols += 128) {
        spec.scale_skip = spec.scale_cols / 2 + (spec.scale_cols > 0);
        float *scale = scales_of(&spec), got[300];
        uint8_t codes[40][300];
        for (int32_t r = 0; r < spec.out; r++)
            for (int32_t k = 0; k < spec.in; k++)
                codes[r][k] = (uint8_t)(r + k) % 0x7f | (uint8_t)(k % 2 * 0x80);
        for (int i = 0; nth_backend(i); i++) {
            struct backend *b = nth_backend(i);
            void *storage = aligned_bytes(b->ops->weight_bytes(&spec), 0);
            struct weight *w = must(b->ops->weight_open(b, &spec, storage));
            b->ops->weight_put(w, 0, spec.out, codes, spec.dtype, sizeof codes[0]);
            b->ops->weight_scale(w, 0, spec.out, scale);
            for (int32_t r = 0; r < spec.out; r++) {
                b->ops->weight_get(w, r, got);
                for (int32_t k = 0; k < spec.in; k++) {
                    const int32_t group =
                        spec.scale_cols ? (spec.scale_skip + k) / spec.scale_cols : 0;
                    const float s = scale[r * backend_scales(&spec) + group];
                    assert_true(got[k] == code_value(codes[r][k]) * s);
                }
            }
            b->ops->weight_close(w);
            free(storage);
        }
        free(scale);
    }
}

/* ---- linear ---------------------------------------------------------------------------------- */

struct linear_case {
    int32_t rows, in, out, leaves;
    enum dtype dtype;
    int32_t scale_cols, scale_skip;
    bool scales_f32;
};

static struct weight_spec linear_spec(const struct linear_case *c)
{
    struct weight_spec spec = {.out = c->out, .in = c->in, .leaves = c->leaves, .dtype = c->dtype};
    spec.scale_cols = c->scale_cols;
    spec.scale_skip = c->scale_skip;
    spec.scales_f32 = c->scales_f32;
    for (int32_t l = 0; l <= c->leaves; l++) /* leaf 1 of several is empty */
        spec.cut[l] = c->leaves > 2 && l == 2 ? spec.cut[1] : c->in * l / c->leaves;
    return spec;
}

static void linear_case(struct backend *b, const void *arg, float *out)
{
    const struct linear_case *c = arg;
    void *storage;
    struct weight_spec spec = linear_spec(c);
    struct weight *w = made(b, &spec, 7, put_dtype(c->dtype), 0, &storage);
    const size_t x_words = (size_t)c->rows * (size_t)c->in;
    float *x = generated(3, x_words);
    struct cview view = {x, DTYPE_F32, c->rows, c->in};
    ok(backend_linear(b, view_f32(out, c->rows, c->out), view, w, &err));
    const int32_t alone = b == device && c->rows > DEVICE_FEW_ROWS ? 0 : c->rows;
    for (int32_t r = 0; r < alone; r += 1 + c->rows / 3) { /* the same bits */
        float *y = guarded((size_t)c->out);
        struct cview row = {x + (size_t)r * (size_t)c->in, DTYPE_F32, 1, c->in};
        ok(backend_linear(b, view_f32(y, 1, c->out), row, w, &err));
        assert_bits("row alone", y, out + (size_t)r * (size_t)c->out, (size_t)c->out);
        guarded_free(y, (size_t)c->out);
    }
    guarded_free(x, x_words);
    b->ops->weight_close(w);
    free(storage);
}

static void test_linear(void **state UNUSED)
{
    static const int32_t shapes[][4] = {
        {1, 64, 32, 1},   {1, 777, 333, 8},    {1, 2048, 160, 3}, {2, 300, 129, 5},
        {3, 513, 97, 1},  {4, 40, 31, 8},      {5, 257, 65, 2},   {12, 1100, 64, 8},
        {13, 64, 33, 6},  {25, 259, 70, 7},    {7, 0, 40, 8},     {6, 16, 0, 1},
        {0, 16, 16, 1},   {3, 1, 1, 1},        {100, 96, 34, 4},  {490, 30, 40, 1},
        {11, 530, 32, 1}, {9, 130, 64, 1},     {8, 130, 64, 3},   {10, 700, 20, 1},
        {2, 9, 1000, 1},  {1, 520, 32 * 9, 1}, {33, 300, 48, 1},  {70, 129, 64, 2},
        {20, 7, 16, 1},   {66, 520, 200, 1},   {17, 4104, 16, 1}, {18, 2900, 24, 1},
        {1, 5632, 40, 1}, {1, 3072, 90, 1},    {3, 3072, 40, 1},  {6, 3072, 40, 1}};
    /* blocks of any width that begin before the weight does, as a rank's part of one has them; of
     * whole steps of a device's kernels, and not */
    static const struct linear_case types[] = {
        {.dtype = DTYPE_F32},
        {.dtype = DTYPE_F16},
        {.dtype = DTYPE_BF16},
        {.dtype = DTYPE_F8_E4M3},
        {.dtype = DTYPE_F8_E4M3, .scale_cols = 16, .scale_skip = 5},
        {.dtype = DTYPE_F8_E4M3, .scale_cols = 128, .scale_skip = 42},
        {.dtype = DTYPE_F8_E4M3, .scale_cols = 128, .scale_skip = 48},
        {.dtype = DTYPE_F8_E4M3, .scale_cols = 128, .scale_skip = 64},
        {.dtype = DTYPE_F8_E4M3, .scale_cols = 64},
        {.dtype = DTYPE_I8, .scale_cols = BACKEND_GROUP},
        {.dtype = DTYPE_I8, .scale_cols = BACKEND_GROUP, .scale_skip = 7},
        {.dtype = DTYPE_I4, .scale_cols = BACKEND_GROUP},
        {.dtype = DTYPE_I4, .scale_cols = BACKEND_GROUP, .scale_skip = 30},
        {.dtype = DTYPE_I8, .scale_cols = BACKEND_GROUP, .scales_f32 = true},
        {.dtype = DTYPE_I4, .scale_cols = BACKEND_GROUP, .scales_f32 = true},
        {.dtype = DTYPE_U4, .scale_cols = BACKEND_GROUP, .scales_f32 = true},
        {.dtype = DTYPE_U4, .scale_cols = BACKEND_GROUP, .scale_skip = 13},
        {.dtype = DTYPE_F4_E2M1, .scale_cols = BACKEND_GROUP},
        {.dtype = DTYPE_F4_E2M1, .scale_cols = BACKEND_GROUP, .scale_skip = 19}};
    struct backend *const all_rows = invariant;
    for (size_t s = 0; s < ARRAY_LEN(shapes); s++) {
        /* few rows are those of test_leaves */
        invariant = shapes[s][0] > DEVICE_FEW_ROWS ? all_rows : NULL;
        for (size_t t = 0; t < ARRAY_LEN(types); t++) {
            struct linear_case c = types[t];
            char what[96];
            if (shapes[s][1] > 2048 && shapes[s][0] > DEVICE_FEW_ROWS && !dtype_is_compute(c.dtype))
                continue; /* rows that the emulated device has no room to widen */
            c.rows = shapes[s][0];
            c.in = shapes[s][1];
            c.out = shapes[s][2];
            c.leaves = shapes[s][3];
            snprintf(what, sizeof what, "linear %dx%dx%d/%d %s/%d-%d", c.rows, c.in, c.out,
                     c.leaves, dtype_name(c.dtype), c.scale_cols, c.scale_skip);
            const double abs = 1e-6 + 6e-8 * c.in;
            run_case_loose(what, linear_case, &c, (size_t)c.rows * (size_t)c.out, abs, 1e-6,
                           device_bound(c.rows, c.in, c.dtype, abs));
        }
    }
    invariant = all_rows;
}

/* That rank's sums. */
static float *rank_sums(struct backend *b, const struct linear_case *c,
                        const struct weight_spec *whole, const float *x, int32_t ranks, int32_t r)
{
    void *storage;
    struct weight *w = made_part(b, whole, 7, ranks, r, &storage);
    const int32_t in = backend_weight_spec(w)->in, at = whole->cut[whole->leaves / ranks * r];
    const size_t words = (size_t)c->rows * (size_t)in;
    float *mine = guarded(words), *y = guarded((size_t)c->rows * (size_t)c->out);
    for (int32_t t = 0; t < c->rows; t++)
        memcpy(mine + (ptrdiff_t)t * in, x + (ptrdiff_t)t * c->in + at, (size_t)in * 4);
    const struct cview view = {mine, DTYPE_F32, c->rows, in};
    ok(backend_linear(b, view_f32(y, c->rows, c->out), view, w, &err));
    guarded_free(mine, words);
    b->ops->weight_close(w);
    free(storage);
    return y;
}

/* The leaves of a weight on two or eight ranks, summed up as a collective does, give the bits
 * that one rank has: with rows for both kernels of a device, and leaves as uneven as ranks have
 * them.
 */
static void leaves_case(struct backend *b, const struct linear_case *c)
{
    const struct weight_spec spec = linear_spec(c);
    const size_t n = (size_t)c->rows * (size_t)c->out, x_words = (size_t)c->rows * (size_t)c->in;
    float *x = generated(3, x_words), *want = guarded(n), *got = guarded(n);
    void *storage;
    struct weight *w = made(b, &spec, 7, put_dtype(c->dtype), 0, &storage);
    const struct cview all = {x, DTYPE_F32, c->rows, c->in};
    ok(backend_linear(b, view_f32(want, c->rows, c->out), all, w, &err));
    for (int32_t ranks = 2; ranks <= 8; ranks *= 4) {
        float *sums[8];
        for (int32_t r = 0; r < ranks; r++)
            sums[r] = rank_sums(b, c, &spec, x, ranks, r);
        b->ops->sum_tree(b, got, (const float *const *)sums, ranks, n);
        assert_bits(b->ops->name, got, want, n);
        for (int32_t r = 0; r < ranks; r++)
            guarded_free(sums[r], n);
    }
    guarded_free(x, x_words);
    guarded_free(want, n);
    guarded_free(got, n);
    b->ops->weight_close(w);
    free(storage);
}

static void test_leaves(void **state UNUSED)
{
    static const struct linear_case types[] = {
        {.dtype = DTYPE_F32},
        {.dtype = DTYPE_F16},
        {.dtype = DTYPE_BF16},
        {.dtype = DTYPE_F8_E4M3},
        {.dtype = DTYPE_F8_E4M3, .scale_cols = 64},
        {.dtype = DTYPE_F8_E4M3, .scale_cols = 24},
        {.dtype = DTYPE_I8, .scale_cols = BACKEND_GROUP},
        {.dtype = DTYPE_I4, .scale_cols = BACKEND_GROUP},
        {.dtype = DTYPE_U4, .scale_cols = BACKEND_GROUP, .scales_f32 = true},
        {.dtype = DTYPE_F4_E2M1, .scale_cols = BACKEND_GROUP}};
    static const int32_t shapes[][3] = {{2, 776, 40}, {19, 301, 33}, {70, 264, 130}};
    for (size_t t = 0; t < ARRAY_LEN(types); t++)
        for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
            struct linear_case c = types[t];
            c.rows = shapes[i][0];
            c.in = shapes[i][1];
            c.out = shapes[i][2];
            c.leaves = 8;
            leaves_case(subjects[0], &c);
            if (invariant != NULL)
                leaves_case(invariant, &c);
        }
}

/* F8_E4M3 gives the bits of the same values held in F32. */
static void test_linear_f8(void **state UNUSED)
{
    for (int i = 0; i < subject_count; i++) {
        struct backend *b = subjects[i];
        for (int32_t rows = 1; rows < 15; rows++) {
            const struct linear_case c = {rows,          291,           70,   6, DTYPE_F8_E4M3,
                                          rows % 3 * 64, rows % 3 * 21, false};
            struct weight_spec spec = linear_spec(&c), same = spec;
            void *storage, *plain;
            struct weight *w = made(b, &spec, 7, c.dtype, 0, &storage);
            same.dtype = DTYPE_F32;
            plain = aligned_bytes(b->ops->weight_bytes(&same), 0);
            struct weight *v = must(b->ops->weight_open(b, &same, plain));
            float values[70][291], *x = generated(3, 15 * 291), got[15 * 70], want[15 * 70];
            for (int32_t r = 0; r < c.out; r++)
                b->ops->weight_get(w, r, values[r]);
            b->ops->weight_put(v, 0, c.out, values, DTYPE_F32, sizeof values[0]);
            struct cview view = {x, DTYPE_F32, rows, c.in};
            ok(backend_linear(b, view_f32(got, rows, c.out), view, w, &err));
            ok(backend_linear(b, view_f32(want, rows, c.out), view, v, &err));
            assert_bits(b->ops->name, got, want, (size_t)(rows * c.out));
            guarded_free(x, 15 * 291);
            b->ops->weight_close(w);
            b->ops->weight_close(v);
            free(storage);
            free(plain);
        }
    }
}

/* What a GPU makes of codes and scales, which ref has as they are: bf16. */
static void expect_values(const struct weight *w, const struct weight *plain, int32_t o,
                          float *values)
{
    float all[512];
    const struct weight_spec *spec = backend_weight_spec(w);
    ref->ops->weight_get(plain, o, all);
    w->backend->ops->weight_get(w, o, values);
    for (int32_t k = 0; k < spec->in; k++) {
        assert_true(fabsf(values[k] - all[k]) <= (spec->scales_f32 ? fabsf(all[k]) * 0x1p-11f : 0));
        values[k] = dtype_from_bf16(dtype_to_bf16(values[k]));
    }
}

/* A GPU's products with integers are as near the sum of doubles as those with bf16, also of many
 * rows, whatever group a rank's part begins in: x has 16 bits, of bf16 pieces, or, of many rows, is
 * rounded to bf16. */
static void ints_case(struct backend *b, const struct linear_case *c, const float *x)
{
    const struct weight_spec spec = linear_spec(c);
    const double near = b == device && c->rows > 16 ? 0x1p-8 : 0x1p-15;
    float *got = guarded((size_t)(c->rows * c->out)), values[512];
    void *storage, *other;
    struct weight *plain = made(ref, &spec, 7, DTYPE_I8, 0, &other);
    struct weight *w = made(b, &spec, 7, DTYPE_I8, 40, &storage);
    const struct cview view = {x, DTYPE_F32, c->rows, c->in};
    ok(backend_linear(b, view_f32(got, c->rows, c->out), view, w, &err));
    for (int32_t o = 0; o < c->out; o++) {
        expect_values(w, plain, o, values);
        for (int32_t t = 0; t < c->rows; t++) {
            double sum = 0, size = 0;
            for (int32_t n = 0; n < c->in; n++) {
                sum += (double)values[n] * (double)x[t * c->in + n];
                size += fabs((double)values[n] * (double)x[t * c->in + n]);
            }
            if (!(fabs((double)got[t * c->out + o] - sum) <= size * near))
                fail_msg("%s, %d rows of %d: %.9g, wanted %.9g", dtype_name(c->dtype), c->rows,
                         c->in, (double)got[t * c->out + o], sum);
        }
    }
    b->ops->weight_close(w);
    ref->ops->weight_close(plain);
    guarded_free(got, (size_t)(c->rows * c->out));
    free(storage);
    free(other);
}

static void test_linear_ints(void **state UNUSED)
{
    enum { IN = 393 };
    static const int32_t rows[] = {1, 3, 9, 16, 17, 33, 70, 130, 257};
    static const int32_t skips[] = {0, 11, 16, 96};
    static const enum dtype types[] = {DTYPE_I8, DTYPE_I4, DTYPE_U4, DTYPE_F4_E2M1};
    struct backend *const both[] = {device, invariant};
    float *x = generated(3, 257 * IN);
    for (size_t i = 0; i < ARRAY_LEN(rows) * 4 * ARRAY_LEN(types) * 2; i++) {
        const int32_t nth = (int32_t)(i % 4);
        struct linear_case c = {.rows = rows[i / 4 % 9],
                                .in = IN - 9 * nth,
                                .out = 70,
                                .leaves = 1 + 5 * (int32_t)(i % 2),
                                .dtype = types[i / 36 % 4],
                                .scale_cols = BACKEND_GROUP,
                                .scale_skip = skips[nth]};
        c.scales_f32 = i / 144 == 1 && c.dtype != DTYPE_F4_E2M1;
        for (size_t k = 0; k < ARRAY_LEN(both) && both[k] != NULL; k++)
            ints_case(both[k], &c, x);
    }
    guarded_free(x, 257 * IN);
}

/* Rows that are 1 in one place and 0 else find each code times its scale, however small or large:
 * by few rows at a time and by many. */
static void test_codes_f8(void **state UNUSED)
{
    enum { IN = 255, OUT = 66, ROWS = 40 };
    static const float some[] = {1, 0.1f, BACKEND_SCALE_MAX, 0x1p-140f, 0, 1e-5f, 0x1.8p-120f};
    static const int32_t steps[] = {1, 2, 3, 4, 7, 12, 13, ROWS};
    static float x[ROWS * IN], y[ROWS * OUT], scale[OUT];
    static uint8_t codes[OUT][IN];
    struct weight_spec spec = {.out = OUT, .in = IN, .leaves = 2, .dtype = DTYPE_F8_E4M3};
    spec.cut[1] = 101;
    spec.cut[2] = IN;
    for (int32_t r = 0; r < OUT; r++) {
        scale[r] = some[(size_t)r % ARRAY_LEN(some)];
        for (int32_t k = 0; k < IN; k++)
            codes[r][k] = (uint8_t)((r + k) % 0x7f | (r + k) / 0x7f % 2 * 0x80);
    }
    for (int i = 0; i < subject_count; i++) {
        struct backend *b = subjects[i];
        void *storage = aligned_bytes(b->ops->weight_bytes(&spec), 0);
        struct weight *w = must(b->ops->weight_open(b, &spec, storage));
        b->ops->weight_put(w, 0, OUT, codes, spec.dtype, sizeof codes[0]);
        b->ops->weight_scale(w, 0, OUT, scale);
        for (size_t s = 0; s < ARRAY_LEN(steps); s++) {
            for (int32_t k = 0; k < IN; k += steps[s]) {
                const int32_t rows = IN - k < steps[s] ? IN - k : steps[s];
                memset(x, 0, sizeof x);
                for (int32_t n = 0; n < rows; n++)
                    x[n * IN + k + n] = 1;
                struct cview view = {x, DTYPE_F32, rows, IN};
                ok(backend_linear(b, view_f32(y, rows, OUT), view, w, &err));
                for (int32_t n = 0; n < rows; n++)
                    for (int32_t r = 0; r < OUT; r++)
                        assert_true(y[n * OUT + r] == code_value(codes[r][k + n]) * scale[r]);
            }
        }
        b->ops->weight_close(w);
        free(storage);
    }
}

/* ---- ops on rows ----------------------------------------------------------------------------- */

struct row_case {
    int32_t rows, cols;
};

static void norm_case(struct backend *b, const void *arg, float *out)
{
    const struct row_case *c = arg;
    const size_t n = (size_t)c->rows * (size_t)c->cols;
    float *x = generated(11, n), *gain = generated(12, (size_t)c->cols);
    float *delta = generated(13, n);
    struct view vx = view_f32(x, c->rows, c->cols), vd = view_f32(delta, c->rows, c->cols);
    ok(backend_rmsnorm(b, view_f32(out, c->rows, c->cols), cview_of(vx), gain, 1e-5f, &err));
    ok(backend_add_rmsnorm(b, vd, vx, cview_of(vd), gain, 1e-6f, &err));
    memcpy(out + n, x, n * 4);
    memcpy(out + 2 * n, delta, n * 4);
    ok(backend_rmsnorm(b, vx, cview_of(vx), gain, 1e-5f, &err));
    memcpy(out + 3 * n, x, n * 4);
    guarded_free(x, n);
    guarded_free(delta, n);
    guarded_free(gain, (size_t)c->cols);
}

/* Columns in parts of one piece and of three, as ranks hold them, are normed as the whole. */
static void split_norm_case(struct backend *b, const void *arg, float *out)
{
    const struct row_case *c = arg;
    const int32_t cut[] = {0, c->cols / 4, c->cols};
    float *gain = generated(12, (size_t)c->cols), sums[2][64], total[64];
    for (int p = 0; p < 2; p++) {
        const int32_t cols = cut[p + 1] - cut[p];
        const size_t n = (size_t)c->rows * (size_t)cols;
        const struct pieces pieces = {c->cols, 4, p, 1 + 2 * p};
        float *x = generated(11 + (uint32_t)p, n), *delta = generated(13, n);
        struct view vx = view_f32(x, c->rows, cols);
        struct cview none = {0}, vd = {delta, DTYPE_F32, c->rows, cols};
        ok(backend_square_sum(b, sums[p], vx, none, pieces, &err));
        ok(backend_square_sum(b, sums[p], vx, vd, pieces, &err));
        memcpy(out + (size_t)c->rows * (size_t)cut[p], x, n * 4);
        guarded_free(x, n);
        guarded_free(delta, n);
    }
    for (int32_t t = 0; t < c->rows; t++)
        total[t] = sums[0][t] + sums[1][t];
    for (int p = 0; p < 2; p++) {
        struct view v =
            view_f32(out + (size_t)c->rows * (size_t)cut[p], c->rows, cut[p + 1] - cut[p]);
        ok(backend_rms_scale(b, v, cview_of(v), total, c->cols, gain + cut[p], 1e-5f, &err));
    }
    guarded_free(gain, (size_t)c->cols);
}

static void act_case(struct backend *b, const void *arg, float *out)
{
    const struct row_case *c = arg;
    const size_t n = 2 * (size_t)c->rows * (size_t)c->cols, each = n / 2;
    float *gu = generated(14, n);
    for (size_t i = 0; i < n; i++)
        gu[i] *= i % 7 == 0 ? 95.0f : 5.0f;
    struct cview v = {gu, DTYPE_F32, c->rows, 2 * c->cols};
    for (int32_t act = 0; act < ACT_COUNT; act++)
        ok(backend_act_mul(b, view_f32(out + (size_t)act * each, c->rows, c->cols), v,
                           (enum activation)act, &err));
    guarded_free(gu, n);
}

/* Beside x, and in its place. */
static void bias_case(struct backend *b, const void *arg, float *out)
{
    const struct row_case *c = arg;
    const size_t n = (size_t)c->rows * (size_t)c->cols;
    float *x = generated(16, n), *bias = generated(17, (size_t)c->cols);
    const struct view y = view_f32(out, c->rows, c->cols),
                      again = view_f32(out + n, c->rows, c->cols);
    ok(backend_add_bias(b, y, (struct cview){x, DTYPE_F32, c->rows, c->cols}, bias, &err));
    memcpy(out + n, x, n * sizeof *x);
    ok(backend_add_bias(b, again, cview_of(again), bias, &err));
    guarded_free(x, n);
    guarded_free(bias, (size_t)c->cols);
}

/* Into a place of its own, and in place. */
static void scale_case(struct backend *b, const void *arg, float *out)
{
    const struct row_case *c = arg;
    const size_t n = (size_t)c->rows * (size_t)c->cols;
    float *x = generated(15, n);
    const struct view y = view_f32(out, c->rows, c->cols), v = view_f32(x, c->rows, c->cols);
    ok(backend_scale(b, y, cview_of(v), 0.22f, &err));
    ok(backend_scale(b, v, cview_of(v), 0.22f, &err));
    assert_bits("scale in place", x, out, n);
    guarded_free(x, n);
}

/* From hardly any effect of the cap to hardly anything left of the logit. */
static void softcap_case(struct backend *b, const void *arg, float *out)
{
    const struct row_case *c = arg;
    const size_t n = (size_t)c->rows * (size_t)c->cols;
    float *x = generated(15, n);
    for (size_t i = 0; i < n; i++)
        out[i] = x[i] * (i % 5 == 0 ? 1e-3f : i % 5 == 1 ? 1e4f : 40.0f);
    ok(backend_softcap(b, view_f32(out, c->rows, c->cols), 30, &err));
    guarded_free(x, n);
}

/* Of positions before the first change, at it and far behind it; keys and values stay. */
static void query_case(struct backend *b, const void *arg, float *out)
{
    const struct row_case *c = arg;
    static const int32_t kv_of[3];
    const struct heads h = {.heads = 3, .kv_heads = 1, .head_dim = c->cols, .kv_of = kv_of};
    const size_t n = (size_t)c->rows * 5 * (size_t)c->cols;
    float *x = generated(15, n);
    int32_t position[40];
    for (int32_t t = 0; t < c->rows; t++)
        position[t] = t < 3 ? 15 + t : t * t * 1000;
    memcpy(out, x, n * sizeof *x);
    ok(backend_scale_queries(b, view_f32(out, c->rows, 5 * c->cols), &h, position, 0.1f, 16, &err));
    for (int32_t t = 0; t < c->rows; t++) {
        const size_t row = (size_t)t * 5 * (size_t)c->cols, end = row + 5 * (size_t)c->cols;
        const size_t same = row + (t == 0 ? 0 : 3 * (size_t)c->cols);
        assert_memory_equal(out + same, x + same, (end - same) * sizeof *x);
    }
    guarded_free(x, n);
}

static void test_rows(void **state UNUSED)
{
    static const struct row_case cases[] = {{1, 1},   {1, 16},   {3, 17},    {5, 100}, {0, 8},
                                            {1, 768}, {7, 2047}, {40, 4096}, {2, 31}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const size_t n = (size_t)cases[i].rows * (size_t)cases[i].cols;
        run_case("norm", norm_case, &cases[i], 4 * n, 1e-6, 2e-6);
        run_case("split norm", split_norm_case, &cases[i], n, 1e-6, 2e-6);
        run_case("act_mul", act_case, &cases[i], ACT_COUNT * n, 1e-6, 2e-6);
        run_case("add_bias", bias_case, &cases[i], 2 * n, 0, 0);
        run_case("scale", scale_case, &cases[i], n, 0, 0);
        run_case("softcap", softcap_case, &cases[i], n, 4e-6, 1e-6);
    }
    static const struct row_case heads[] = {{1, 2}, {5, 24}, {0, 8}, {40, 128}, {4, 130}};
    for (size_t i = 0; i < ARRAY_LEN(heads); i++)
        run_case("scale_queries", query_case, &heads[i],
                 5 * (size_t)heads[i].rows * (size_t)heads[i].cols, 0, 4e-7);
}

static void sum_case(struct backend *b, const void *arg, float *out)
{
    const struct row_case *c = arg;
    const size_t n = (size_t)c->cols;
    float *data = generated(20, (size_t)c->rows * n);
    const float *addends[BACKEND_PEERS_MAX];
    for (int32_t i = 0; i < c->rows; i++)
        addends[i] = data + (size_t)i * n;
    b->ops->sum_tree(b, out, addends, c->rows, n);
    b->ops->sum_tree(b, data, addends, c->rows, n); /* y may be addends[0] */
    assert_bits("sum_tree in place", data, out, n);
    guarded_free(data, (size_t)c->rows * n);
}

static void test_sum_tree(void **state UNUSED)
{
    static const struct row_case cases[] = {{1, 5},  {2, 16},    {3, 100},
                                            {7, 33}, {8, 40000}, {64, 17}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        run_case("sum_tree", sum_case, &cases[i], (size_t)cases[i].cols, 2e-6, 1e-6);
    for (int i = 0; nth_backend(i); i++) { /* (1 + 2^-24) + (2^-24 + 2^-24): the shape shows */
        const float a[] = {1, 0x1p-24f, 0x1p-24f, 0x1p-24f};
        const float *const addends[] = {&a[0], &a[1], &a[2], &a[3]};
        float y;
        if (nth_backend(i) == ref) /* adds in doubles */
            continue;
        nth_backend(i)->ops->sum_tree(nth_backend(i), &y, addends, 4, 1);
        assert_true(y == 1 + 0x1p-23f);
    }
}

static void copy_case(struct backend *b, const void *arg, float *out)
{
    const struct row_case *c = arg;
    const size_t cols = (size_t)c->cols, n = (size_t)c->rows * cols, stride = cols + 5;
    float *data = generated(21, (size_t)c->rows * stride);
    b->ops->copy(b, out, cols, data, stride, c->rows, c->cols);
    b->ops->copy(b, out + n, cols, NULL, 0, c->rows, c->cols);
    b->ops->sync(b);
    for (size_t i = 0; i < n; i++) {
        assert_true(out[i] == data[i / cols * stride + i % cols]);
        assert_true(out[n + i] == 0);
    }
    guarded_free(data, (size_t)c->rows * stride);
}

static void test_copy(void **state UNUSED)
{
    static const struct row_case cases[] = {{1, 1},    {0, 5},    {40, 100}, {1, 4095},
                                            {1, 4096}, {3, 4097}, {2, 20000}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        run_case("copy", copy_case, &cases[i], 2 * (size_t)cases[i].rows * (size_t)cases[i].cols,
                 1e-6, 1e-6);
}

static void lookup_case(struct backend *b, const void *arg, float *out)
{
    const struct row_case *c = arg;
    void *storage;
    struct weight_spec spec = {.out = 70, .in = c->cols, .leaves = 1, .dtype = DTYPE_F16};
    spec.cut[1] = spec.in;
    if (c->cols % 2 == 1) { /* that of a head with 8 bits */
        spec.dtype = DTYPE_I8;
        spec.scale_cols = BACKEND_GROUP;
        spec.scale_skip = c->cols % 3;
    }
    const enum dtype src = spec.dtype == DTYPE_I8 ? DTYPE_I8 : DTYPE_F32;
    struct weight *w = made(b, &spec, 7, src, 0, &storage);
    const int32_t token[] = {30, -1, 99, 100, 29, 35, -1}, slot[] = {0, 1, 2, 3, 0, -1, 2};
    const int32_t position[] = {0, 2, 1, 0, 1, 0, 0}, index[] = {6, 0, 0, 3, 2, 1, 6};
    int32_t history[4][3] = {{1, 2, 3}, {4, 5, 64}, {31, 7, 8}, {0, 9, 10}}, ids[7];
    const struct rows rows = {c->rows, slot, position, history[0], 0, false, 0, 0};
    const struct sample_slots slots = {.history = history[0], .history_cols = 3};
    b->ops->resolve(b, ids, token, &rows, &slots);
    b->ops->sync(b);
    static const int32_t wanted[4][3] = {{30, 29, 3}, {4, 5, 64}, {31, 99, 8}, {100, 9, 10}};
    assert_memory_equal(history, wanted, sizeof wanted); /* what was given is known from here on */
    struct view y = view_f32(out, c->rows, c->cols);
    ok(backend_embed(b, y, ids, w, 30, c->cols == 130 ? 7.75f : 1, &err));
    const size_t n = (size_t)c->rows * (size_t)c->cols;
    ok(backend_select(b, view_f32(out + n, c->rows, c->cols), cview_of(y), index, &err));
    b->ops->weight_close(w);
    free(storage);
}

static void test_lookup(void **state UNUSED)
{
    static const struct row_case cases[] = {{7, 1}, {7, 130}, {7, 1000}, {7, 95}, {7, 131}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        run_case("resolve, embed, select", lookup_case, &cases[i], 14 * (size_t)cases[i].cols, 0,
                 0);
}

/* ---- arguments and pool ---------------------------------------------------------------------- */

static void test_arguments(void **state UNUSED)
{
    struct backend *b = subjects[0];
    float x[64] = {0}, y[64];
    void *storage;
    struct weight_spec spec = {.out = 8, .in = 4, .dtype = DTYPE_F32, .leaves = 1, .cut = {0, 4}};
    struct weight *w = made(b, &spec, 7, DTYPE_F32, 0, &storage);
    struct cview v = {x, DTYPE_F32, 2, 4};
    assert_int_equal(backend_linear(b, view_f32(y, 2, 8), v, w, &err), OK);
    assert_int_equal(backend_linear(b, view_f32(y, 2, 7), v, w, &err), ERR_INTERNAL);
    assert_non_null(strstr(err.text, "linear"));
    assert_non_null(strstr(err.text, "[2, 7]"));
    assert_int_equal(backend_linear(b, view_f32(y, 3, 8), v, w, &err), ERR_INTERNAL);
    assert_int_equal(backend_linear(b, view_f32(x + 4, 2, 8), v, w, &err), ERR_INTERNAL);
    assert_int_equal(backend_linear(b, view_f32(NULL, 2, 8), v, w, &err), ERR_INTERNAL);
    v.dtype = DTYPE_BF16;
    assert_int_equal(backend_linear(b, view_f32(y, 2, 8), v, w, &err), ERR_INTERNAL);
    assert_int_equal(backend_act_mul(b, view_f32(y, 2, 8), v, ACT_SILU, &err), ERR_INTERNAL);
    assert_int_equal(backend_softcap(b, view_f32(y, 2, 8), 0, &err), ERR_INTERNAL);
    assert_int_equal(backend_scale(b, view_f32(y, 2, 8), v, 1, &err), ERR_INTERNAL);
    assert_int_equal(backend_add_bias(b, view_f32(y, 2, 8), v, y, &err), ERR_INTERNAL);
    assert_int_equal(backend_reserve(b, -1, 0, 0, &err), ERR_INTERNAL);
    assert_int_equal(backend_reserve(b, 1000, 4096, 100000, &err), OK);
    b->ops->weight_close(w);
    free(storage);
}

static unsigned char hits[1000];

static void hit(void *arg, int64_t begin, int64_t end)
{
    assert_ptr_equal(arg, hits);
    for (int64_t i = begin; i < end; i++)
        hits[i]++;
}

static void test_parallel(void **state UNUSED)
{
    for (int s = 0; s < subject_count; s++) {
        for (int64_t n = 0; n < 1000; n += 1 + n / 7) {
            memset(hits, 0, sizeof hits);
            backend_parallel(subjects[s], n, n % 5, hit, hits);
            for (int64_t i = 0; i < 1000; i++)
                assert_int_equal(hits[i], i < n);
        }
    }
}

static void count_chunk(void *arg, int32_t worker, int64_t begin, int64_t end)
{
    int64_t *counts = arg; /* [worker][8], so that each has a cache line */
    counts[8 * worker] += end - begin;
}

/* Many more threads than cores, many small jobs, with pauses long enough to sleep. */
static void test_pool(void **state UNUSED)
{
    enum { THREADS = 13, JOBS = 3000 };
    struct pool *p = NULL;
    int64_t counts[THREADS * 8] = {0}, sum = 0;
    ok(pool_open(THREADS, &p, &err));
    assert_int_equal(pool_threads(p), THREADS);
    for (int i = 0; i < JOBS; i++) {
        pool_run(p, 40, 1, count_chunk, counts);
        for (int64_t until = base_now_ns() + (i % 500 == 0 ? 3000000 : 0); base_now_ns() < until;)
            continue;
    }
    pool_close(p);
    pool_close(NULL);
    for (int i = 0; i < THREADS; i++)
        sum += counts[8 * i];
    assert_int_equal(sum, 40 * JOBS);
}

#define T2(a, b) cmocka_unit_test(test_##a), cmocka_unit_test(test_##b)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        T2(generator, exp),     T2(tables, arguments),    T2(pool, parallel),
        T2(weight_put, linear), T2(weight_f8, linear_f8), T2(linear_ints, rows),
        T2(sum_tree, lookup),   T2(codes_f8, leaves),     cmocka_unit_test(test_copy)};
    only(argc, argv);
    return cmocka_run_group_tests(tests, open_invariant_too, close_subjects);
}
