/* Products with what is around them in one go (linear_fused). Without a norm they have the bits of
 * the ops one by one, which test_kernels.c and test_linear_*.c compare with ref. With one they are
 * near the formula, in doubles, of the weight as it is read back; a row has the bits that it has
 * alone; and a row times a power of two, whose norm is the same, those that it had. */
#include "tests/emulate/calls.h"
#include "tests/made_weight.h"
#include "tests/only.h"

struct fused_case {
    int32_t rows, in, out;
    enum dtype dtype;
    int32_t scale_cols;
    bool fuses, norms; /* a device: without a norm, and with one */
};

static const struct fused_case cases[] = {
    {1, 96, 128, DTYPE_BF16, 0, true, true},
    {2, 512, 34, DTYPE_BF16, 0, true, true}, /* blocks whose gates are partly ups */
    {3, 1024, 2, DTYPE_BF16, 0, true, true},
    {4, 264, 8600, DTYPE_BF16, 0, true, true}, /* more blocks than fit at once */
    {5, 2048, 66, DTYPE_BF16, 0, true, false}, /* no room for a gain */
    {8, 520, 48, DTYPE_BF16, 0, true, false},
    {9, 96, 64, DTYPE_BF16, 0, false, false},
    {0, 96, 64, DTYPE_BF16, 0, false, false},
    {2, 96, 0, DTYPE_BF16, 0, false, false},
    {2, 0, 64, DTYPE_BF16, 0, false, false},
    {2, 129, 64, DTYPE_BF16, 0, false, false}, /* rows that begin anywhere */
    {1, 4096, 40, DTYPE_F16, 0, true, true},
    {4, 264, 40, DTYPE_F16, 0, true, true},
    {7, 264, 40, DTYPE_F16, 0, true, false},
    {1, 100, 40, DTYPE_F32, 0, true, false}, /* three pieces of x */
    {6, 512, 20, DTYPE_F32, 0, true, false},
    {1, 512, 46, DTYPE_F8_E4M3, 0, true, true}, /* a scale per row, */
    {2, 1040, 8600, DTYPE_F8_E4M3, 0, true, true},
    {3, 1040, 40, DTYPE_F8_E4M3, 0, true, false},
    {8, 512, 34, DTYPE_F8_E4M3, 0, true, false},
    {1, 512, 40, DTYPE_F8_E4M3, 128, true, true}, /* or in blocks, */
    {2, 384, 66, DTYPE_F8_E4M3, 64, true, true},
    {8, 512, 80, DTYPE_F8_E4M3, 128, true, false},
    {1, 512, 40, DTYPE_F8_E4M3, 24, false, false}, /* that begin within a vector */
    {1, 512, 66, DTYPE_I8, BACKEND_GROUP, true, true},
    {2, 512, 40, DTYPE_I8, BACKEND_GROUP, true, true},
    {8, 512, 40, DTYPE_I8, BACKEND_GROUP, true, false},
    {1, 4096, 66, DTYPE_I4, BACKEND_GROUP, true, true},
    {2, 4096, 24, DTYPE_I4, BACKEND_GROUP, true, false},
    {1, 512, 40, DTYPE_U4, BACKEND_GROUP, true, true},
    {8, 512, 40, DTYPE_U4, BACKEND_GROUP, true, false},
    {1, 512, 40, DTYPE_F4_E2M1, BACKEND_GROUP, true, true},
    {5, 512, 40, DTYPE_F4_E2M1, BACKEND_GROUP, true, false},
};

#define EPS 1e-5f

static const struct {
    enum linear_end end;
    enum activation act;
} ends[] = {{LINEAR_STORE, ACT_SILU},
            {LINEAR_ADD, ACT_SILU},
            {LINEAR_ACT, ACT_SILU},
            {LINEAR_ACT, ACT_GELU_TANH}};

static struct weight *weight_of(struct backend *b, const struct fused_case *c, void **storage)
{
    return made_whole(b, c->out, c->in, c->dtype, c->scale_cols, storage);
}

static int32_t cols_of(const struct fused_case *c, enum linear_end end)
{
    return end == LINEAR_ACT ? c->out / 2 : c->out;
}

static void named(char what[96], const struct backend *b, const struct fused_case *c,
                  const struct linear_fusion *f)
{
    snprintf(what, 96, "%s: %dx%dx%d %s%s, end %d, act %d", b->ops->name, c->rows, c->in, c->out,
             dtype_name(c->dtype), f->gain != NULL ? " normed" : "", (int)f->end, (int)f->act);
}

static uint64_t launches(struct backend *b)
{
    struct emulated_calls calls = {0};
    emulated_calls_fn *count = emulated_calls_of((const void *)((struct staged *)b)->inner->ops);
    if (count != NULL)
        count(&calls);
    return calls.launches;
}

/* What y holds before a product is added to it. */
static float *addends(const struct fused_case *c, enum linear_end end)
{
    return generated(12, (size_t)c->rows * (size_t)cols_of(c, end));
}

/* x: [rows, in]; one launch. */
static float *fused(struct backend *b, const struct fused_case *c, const struct weight *w, float *x,
                    const struct linear_fusion *f)
{
    const int32_t cols = cols_of(c, f->end);
    float *y = addends(c, f->end);
    const bool counts = launches(b) > 0;
    const uint64_t before = launches(b);
    ok(backend_linear_fused(b, view_f32(y, c->rows, cols),
                            (struct cview){x, DTYPE_F32, c->rows, c->in}, w, f, &err));
    if (counts)
        assert_int_equal(launches(b) - before, 1);
    return y;
}

/* ---- which ---- */

static void test_which(void **state UNUSED)
{
    float *gain = generated(5, 4096);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        for (int k = 0; nth_backend(k) != NULL; k++) {
            const struct fused_case *c = &cases[i];
            struct backend *b = nth_backend(k);
            const bool can = b == device || b == invariant;
            void *storage;
            struct weight *w = weight_of(b, c, &storage);
            for (size_t e = 0; e < ARRAY_LEN(ends); e++) {
                struct linear_fusion f = {NULL, EPS, ends[e].end, ends[e].act};
                assert_int_equal(b->ops->linear_fuses(b, w, c->rows, &f),
                                 can && c->fuses && f.end != LINEAR_STORE);
                f.gain = gain; /* which many rows' norm would not be to the bit */
                assert_int_equal(b->ops->linear_fuses(b, w, c->rows, &f), b == device && c->norms);
                f.gain = gain + 1; /* no vector begins there */
                assert_false(b->ops->linear_fuses(b, w, c->rows, &f));
            }
            const struct linear_fusion pairs = {NULL, 0, LINEAR_ACT, ACT_SWIGLU_PAIRS};
            assert_false(b->ops->linear_fuses(b, w, c->rows, &pairs)); /* which take turns */
            b->ops->weight_close(w);
            free(storage);
        }
    guarded_free(gain, 4096);
}

/* ---- without a norm ---- */

static void assert_apart(struct backend *b, const struct fused_case *c, const struct weight *w,
                         const struct linear_fusion *f)
{
    const size_t all = (size_t)c->rows * (size_t)c->out, x_words = (size_t)c->rows * (size_t)c->in;
    const int32_t cols = cols_of(c, f->end);
    const size_t n = (size_t)c->rows * (size_t)cols;
    float *x = generated(3, x_words), *got = fused(b, c, w, x, f), *want = addends(c, f->end);
    float *product = guarded(all);
    const struct view p = view_f32(product, c->rows, c->out), y = view_f32(want, c->rows, cols);
    char what[96];
    named(what, b, c, f);
    ok(backend_linear(b, p, (struct cview){x, DTYPE_F32, c->rows, c->in}, w, &err));
    if (f->end == LINEAR_ACT)
        ok(backend_act_mul(b, y, cview_of(p), f->act, &err));
    for (size_t i = 0; i < n && f->end != LINEAR_ACT; i++)
        want[i] = f->end == LINEAR_ADD ? want[i] + product[i] : product[i];
    assert_bits(what, got, want, n);
    guarded_free(x, x_words);
    guarded_free(got, n);
    guarded_free(want, n);
    guarded_free(product, all);
}

static void test_ends(void **state UNUSED)
{
    struct backend *const devices[] = {device, invariant};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        for (size_t k = 0; k < ARRAY_LEN(devices) && device != NULL; k++) {
            void *storage;
            struct weight *w = weight_of(devices[k], &cases[i], &storage);
            for (size_t e = 0; e < ARRAY_LEN(ends) && cases[i].fuses; e++) {
                if (ends[e].end == LINEAR_STORE)
                    continue; /* a product alone */
                const struct linear_fusion f = {NULL, 0, ends[e].end, ends[e].act};
                assert_apart(devices[k], &cases[i], w, &f);
            }
            devices[k]->ops->weight_close(w);
            free(storage);
        }
}

/* ---- with one ---- */

/* A sum of products, and of their magnitudes. */
struct sum {
    double of, size;
};

static struct sum dot(const float *x, const float *gain, const float *w, int32_t n)
{
    double squares = 0;
    struct sum s = {0, 0};
    for (int32_t k = 0; k < n; k++)
        squares += (double)x[k] * x[k];
    const double root = sqrt(squares / n + (double)EPS);
    for (int32_t k = 0; k < n; k++) {
        s.of += x[k] / root * gain[k] * w[k];
        s.size += fabs(x[k] / root * gain[k] * w[k]);
    }
    return s;
}

/* Of 16 bits of x at least; integers' weights are rounded to 8. */
static double off_by(const struct fused_case *c, struct sum s)
{
    return s.size * (dtype_is_int(c->dtype) ? 0x1p-8 : 0x1p-15) + 1e-6;
}

static double activated(enum activation act, double g, double u)
{
    const double cubed = 0.7978845608028654 * (g + 0.044715 * g * g * g);
    return u * (act == ACT_SILU ? g / (1 + exp(-g)) : 0.5 * g * (1 + tanh(cubed)));
}

static void assert_formula(const struct fused_case *c, const struct weight *w, const float *x,
                           const struct linear_fusion *f, const float *got)
{
    const int32_t cols = cols_of(c, f->end);
    float *before = addends(c, f->end);
    float *rows = aligned_bytes((size_t)c->out * (size_t)c->in * sizeof *rows, 0);
    for (int32_t o = 0; o < c->out; o++)
        device->ops->weight_get(w, o, rows + (ptrdiff_t)o * c->in);
    for (int32_t i = 0; i < c->rows * cols; i += 1 + cols / 97) {
        const int32_t t = i / cols, o = i % cols;
        const struct sum g = dot(x + t * c->in, f->gain, rows + (ptrdiff_t)o * c->in, c->in);
        double want = g.of, off = off_by(c, g);
        if (f->end == LINEAR_ADD)
            want += before[i];
        if (f->end == LINEAR_ACT) { /* the slope of an activation is 1.13 at most */
            const struct sum u =
                dot(x + t * c->in, f->gain, rows + (ptrdiff_t)(cols + o) * c->in, c->in);
            want = activated(f->act, g.of, u.of);
            off = 1.2 * off * (fabs(u.of) + off_by(c, u)) + (fabs(g.of) + off) * off_by(c, u);
        }
        if (!(fabs(got[i] - want) <= off + 1e-6 * fabs(want))) {
            char what[96];
            named(what, device, c, f);
            fail_msg("%s: element %d is %.9g, not %.9g, bound %.3g", what, i, (double)got[i], want,
                     off);
        }
    }
    guarded_free(before, (size_t)(c->rows * cols));
    free(rows);
}

/* Each row alone, and times `by`. */
static void assert_alike(const struct fused_case *c, const struct weight *w, const float *x,
                         const struct linear_fusion *f, float by)
{
    const size_t cols = (size_t)cols_of(c, f->end), words = (size_t)c->in;
    struct fused_case one = *c;
    struct linear_fusion same = *f;
    float *scaled = guarded((size_t)c->rows * words), *row = guarded(words);
    char what[96];
    named(what, device, c, f);
    one.rows = 1;
    same.eps = 0;
    same.end = f->end == LINEAR_ADD ? LINEAR_STORE : f->end;
    for (size_t i = 0; i < (size_t)c->rows * words; i++)
        scaled[i] = x[i] * by;
    float *all = fused(device, c, w, scaled, &same);
    for (int32_t t = 0; t < c->rows; t++) {
        memcpy(row, x + (size_t)t * words, words * sizeof *row);
        float *alone = fused(device, &one, w, row, &same);
        assert_bits(what, all + (size_t)t * cols, alone, cols);
        guarded_free(alone, cols);
    }
    guarded_free(all, (size_t)c->rows * cols);
    guarded_free(scaled, (size_t)c->rows * words);
    guarded_free(row, words);
}

static void test_norms(void **state UNUSED)
{
    for (size_t i = 0; i < ARRAY_LEN(cases) && device != NULL; i++) {
        const struct fused_case *c = &cases[i];
        const size_t words = (size_t)c->rows * (size_t)c->in;
        float *x = generated(3, words), *gain = generated(5, (size_t)c->in);
        void *storage;
        struct weight *w = weight_of(device, c, &storage);
        for (size_t k = 0; k < words; k++) /* rows of several sizes */
            x[k] *= ldexpf(1, 3 * (int)(k / (size_t)c->in) - 2);
        for (size_t e = 0; e < ARRAY_LEN(ends) && c->norms; e++) {
            const struct linear_fusion f = {gain, EPS, ends[e].end, ends[e].act};
            float *y = fused(device, c, w, x, &f);
            assert_formula(c, w, x, &f, y);
            assert_alike(c, w, x, &f, 0x1p30f);
            assert_alike(c, w, x, &f, 0x1p-30f);
            guarded_free(y, (size_t)(c->rows * cols_of(c, f.end)));
        }
        guarded_free(x, words);
        guarded_free(gain, (size_t)c->in);
        device->ops->weight_close(w);
        free(storage);
    }
}

/* ---- arguments ---- */

static void expect_refused(struct backend *b, struct view y, struct cview x, const struct weight *w,
                           enum linear_end end)
{
    const struct linear_fusion f = {NULL, 0, end, ACT_SILU};
    assert_int_equal(backend_linear_fused(b, y, x, w, &f, &err), ERR_INTERNAL);
}

static void test_arguments(void **state UNUSED)
{
    static _Alignas(64) float x[80], y[64];
    for (int k = 0; nth_backend(k) != NULL; k++) {
        struct backend *b = nth_backend(k);
        void *storage[2];
        struct weight *w = made_whole(b, 16, 16, DTYPE_BF16, 0, &storage[0]);
        struct weight *odd = made_whole(b, 15, 16, DTYPE_BF16, 0, &storage[1]);
        const struct cview from = {x, DTYPE_F32, 2, 16}, many = {x, DTYPE_F32, 9, 0};
        expect_refused(b, view_f32(y, 2, 16), from, w, LINEAR_ACT);
        expect_refused(b, view_f32(y, 2, 8), from, w, LINEAR_ADD);
        expect_refused(b, view_f32(y, 3, 16), from, w, LINEAR_STORE);
        expect_refused(b, view_f32(x + 16, 2, 16), from, w, LINEAR_ADD);
        expect_refused(b, (struct view){y, DTYPE_BF16, 2, 16}, from, w, LINEAR_ADD);
        expect_refused(b, view_f32(y, 2, 16), (struct cview){x, DTYPE_BF16, 2, 16}, w, LINEAR_ADD);
        expect_refused(b, view_f32(y, 2, 16), (struct cview){x + 1, DTYPE_F32, 2, 16}, w,
                       LINEAR_ADD);
        expect_refused(b, view_f32(y, 2, 7), from, odd, LINEAR_ACT);
        expect_refused(b, view_f32(y, 9, 16), many, w, LINEAR_ADD);
        if (b != device && b != invariant)
            expect_refused(b, view_f32(y, 2, 16), from, w, LINEAR_ADD);
        b->ops->weight_close(w);
        b->ops->weight_close(odd);
        free(storage[0]);
        free(storage[1]);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_which), cmocka_unit_test(test_ends),
                                       cmocka_unit_test(test_norms),
                                       cmocka_unit_test(test_arguments)};
    only(argc, argv);
    return cmocka_run_group_tests(tests, open_invariant_too, close_subjects);
}
