/* Norms of all heads together, of which each rank has some: squares that ranks tell add up to those
 * of one that has them all, so that what they make of q and k has its bits; and against the formula
 * in double. */
#include "tests/only.h"
#include "tests/subjects.h"

#define RANKS_MAX 5
#define EPS 1e-5f

/* Rank r has query heads [cut[r], cut[r + 1]), and the KV heads that they read. */
struct joint_case {
    int32_t rows, heads, kv_heads, dim, ranks;
    int32_t cut[RANKS_MAX + 1];
};

struct part {
    struct joint_norm norm;
    struct heads heads;
    int32_t kv_of[64], cols;
    float *qkv;
    size_t n;
};

static int32_t all_cols(const struct joint_case *c)
{
    return (c->heads + 2 * c->kv_heads) * c->dim;
}

static void copy_heads(float *dst, const float *src, int32_t heads, int32_t dim)
{
    if (heads > 0)
        memcpy(dst, src, (size_t)heads * (size_t)dim * sizeof *dst);
}

/* What rank r has of q, k and v. */
static void part_open(struct part *p, const struct joint_case *c, int32_t r, const float *qkv,
                      const float *gain)
{
    const int32_t group = c->heads / c->kv_heads, first = c->cut[r], end = c->cut[r + 1];
    const int32_t kv = end > first ? first / group : 0, dim = c->dim;
    const int32_t own = end - first, own_kv = end > first ? (end - 1) / group + 1 - kv : 0;
    for (int32_t h = first; h < end; h++)
        p->kv_of[h - first] = h / group - kv;
    p->heads = (struct heads){own, own_kv, dim, p->kv_of, 0, false};
    p->norm = (struct joint_norm){c->heads,
                                  c->kv_heads,
                                  first,
                                  kv,
                                  own > 0 && first > kv * group,
                                  gain + (ptrdiff_t)first * dim,
                                  gain + (ptrdiff_t)(c->heads + kv) * dim,
                                  EPS};
    p->cols = (own + 2 * own_kv) * dim;
    p->n = (size_t)(c->rows * p->cols);
    p->qkv = guarded(p->n);
    for (int32_t t = 0; t < c->rows; t++) {
        const float *from = qkv + (ptrdiff_t)t * all_cols(c);
        float *to = p->qkv + (ptrdiff_t)t * p->cols;
        copy_heads(to, from + first * dim, own, dim);
        copy_heads(to + own * dim, from + (c->heads + kv) * dim, own_kv, dim);
        copy_heads(to + (own + own_kv) * dim, from + (c->heads + c->kv_heads + kv) * dim, own_kv,
                   dim);
    }
}

/* By the formula. */
static void expect(const struct joint_case *c, const float *qkv, const float *gain,
                   const float *out)
{
    const int32_t q = c->heads * c->dim, normed = q + c->kv_heads * c->dim;
    for (int32_t t = 0; t < c->rows; t++, qkv += all_cols(c), out += all_cols(c)) {
        double of_q = 0, of_k = 0;
        for (int32_t i = 0; i < normed; i++)
            *(i < q ? &of_q : &of_k) += (double)qkv[i] * (double)qkv[i];
        for (int32_t i = 0; i < all_cols(c); i++) {
            const double mean = i < q ? of_q / q : of_k / (normed - q);
            const double want = i < normed ? qkv[i] / sqrt(mean + (double)EPS) * gain[i] : qkv[i];
            if (!(fabs(out[i] - want) <= 1e-6 + fabs(want) * 2e-6))
                fail_msg("row %d, element %d is %.9g, wanted %.9g", t, i, (double)out[i], want);
        }
    }
}

/* out[T, (H + 2K) * E]: what all ranks make, from what they tell each other. */
static void joint_case(struct backend *b, const void *arg, float *out)
{
    const struct joint_case *c = arg;
    const int32_t told = c->heads + c->kv_heads, dim = c->dim;
    const size_t n = (size_t)(c->rows * all_cols(c)), sums = (size_t)(c->rows * told);
    float *qkv = generated(31, n), *gain = generated(32, (size_t)(told * dim));
    float *sum = guarded(sums), *squares = guarded(sums);
    struct part part[RANKS_MAX];
    memset(sum, 0, sums * sizeof *sum);
    memset(out, 0, n * sizeof *out);
    for (int32_t r = 0; r < c->ranks; r++) {
        struct part *p = &part[r];
        part_open(p, c, r, qkv, gain);
        const struct cview x = {p->qkv, DTYPE_F32, c->rows, p->cols};
        ok(backend_joint_squares(b, view_f32(squares, c->rows, told), x, &p->norm, &p->heads,
                                 &err));
        for (size_t i = 0; i < sums; i++) {
            assert_true(sum[i] == 0 || squares[i] == 0); /* a head's are told once */
            sum[i] += squares[i];
        }
    }
    for (int32_t r = 0; r < c->ranks; r++) {
        struct part *p = &part[r];
        const struct cview all = {sum, DTYPE_F32, c->rows, told};
        ok(backend_joint_scale(b, view_f32(p->qkv, c->rows, p->cols), all, &p->norm, &p->heads,
                               &err));
        for (int32_t t = 0; t < c->rows; t++) {
            const float *from = p->qkv + (ptrdiff_t)t * p->cols;
            float *to = out + (ptrdiff_t)t * all_cols(c);
            const int32_t own = p->heads.heads, kv = p->heads.kv_heads;
            copy_heads(to + p->norm.first * dim, from, own, dim);
            copy_heads(to + (c->heads + p->norm.first_kv) * dim, from + own * dim, kv, dim);
            copy_heads(to + (c->heads + c->kv_heads + p->norm.first_kv) * dim,
                       from + (own + kv) * dim, kv, dim);
        }
        guarded_free(p->qkv, p->n);
    }
    expect(c, qkv, gain, out);
    guarded_free(qkv, n);
    guarded_free(gain, (size_t)(told * dim));
    guarded_free(sum, sums);
    guarded_free(squares, sums);
}

/* KV heads of several ranks, ranks without heads, and the bits of a single rank. */
static void test_parts(void **state UNUSED)
{
    static const struct joint_case cases[] = {{3, 6, 2, 20, 1, {0, 6}},
                                              {3, 6, 2, 20, 3, {0, 2, 4, 6}},
                                              {1, 6, 2, 128, 4, {0, 2, 3, 5, 6}},
                                              {1, 6, 2, 128, 1, {0, 6}},
                                              {17, 5, 5, 8, 5, {0, 2, 2, 4, 4, 5}},
                                              {0, 4, 1, 64, 2, {0, 2, 4}},
                                              {40, 48, 8, 128, 2, {0, 25, 48}},
                                              {2, 7, 1, 6, 3, {0, 1, 5, 7}}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const struct joint_case *c = &cases[i], alone = {.rows = c->rows,
                                                         .heads = c->heads,
                                                         .kv_heads = c->kv_heads,
                                                         .dim = c->dim,
                                                         .ranks = 1,
                                                         .cut = {0, c->heads}};
        const size_t n = (size_t)(c->rows * all_cols(c));
        run_case("joint norm", joint_case, c, n, 1e-6, 2e-6);
        for (int k = 0; nth_backend(k) != NULL; k++) {
            float *want = guarded(n), *got = guarded(n);
            joint_case(nth_backend(k), &alone, want);
            joint_case(nth_backend(k), c, got);
            assert_bits(nth_backend(k)->ops->name, got, want, n);
            guarded_free(want, n);
            guarded_free(got, n);
        }
    }
}

struct add_case {
    int32_t rows, cols;
    bool scaled;
};

static void add_case(struct backend *b, const void *arg, float *out)
{
    const struct add_case *c = arg;
    const size_t n = (size_t)(c->rows * c->cols);
    float *x = generated(33, n), *delta = generated(34, n);
    const float scale = 0.7f;
    memcpy(out, x, n * sizeof *out);
    ok(backend_add(b, view_f32(out, c->rows, c->cols),
                   (struct cview){delta, DTYPE_F32, c->rows, c->cols}, c->scaled ? &scale : NULL,
                   &err));
    for (size_t i = 0; i < n; i++)
        assert_true(out[i] == (c->scaled ? (x[i] + delta[i]) * scale : x[i] + delta[i]));
    guarded_free(x, n);
    guarded_free(delta, n);
}

static void test_add(void **state UNUSED)
{
    static const struct add_case cases[] = {{1, 1, true},    {3, 17, false},  {0, 8, true},
                                            {1, 768, false}, {7, 2047, true}, {7, 2047, false}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        run_case("add", add_case, &cases[i], (size_t)(cases[i].rows * cases[i].cols), 0, 0);
}

/* Shapes that do not fit are refused, not computed. */
static void test_refused(void **state UNUSED)
{
    enum { DIM = 4 };
    static float data[64], gain[64];
    static const int32_t kv_of[2];
    const struct heads h = {2, 1, DIM, kv_of, 0, false};
    const struct joint_norm good = {4, 2, 2, 1, false, gain, gain, EPS};
    struct joint_norm bad[] = {good, good, good, good, good};
    const struct view qkv = view_f32(data, 1, 4 * DIM), squares = view_f32(data + 32, 1, 6);
    bad[0].first = 3;
    bad[1].first_kv = 2;
    bad[2].heads = 5; /* squares are narrower */
    bad[3].q_gain = NULL;
    bad[4].k_gain = NULL;
    ok(backend_joint_squares(ref, squares, cview_of(qkv), &good, &h, &err));
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        assert_int_equal(backend_joint_squares(ref, squares, cview_of(qkv), &bad[i], &h, &err),
                         ERR_INTERNAL);
        assert_int_equal(backend_joint_scale(ref, qkv, cview_of(squares), &bad[i], &h, &err),
                         ERR_INTERNAL);
    }
    assert_int_equal(
        backend_joint_scale(ref, view_f32(data, 1, 3 * DIM), cview_of(squares), &good, &h, &err),
        ERR_INTERNAL);
    assert_int_equal(backend_add(ref, qkv, cview_of(squares), NULL, &err), ERR_INTERNAL);
    assert_int_equal(backend_add(ref, qkv, cview_of(qkv), NULL, &err), ERR_INTERNAL);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_parts), cmocka_unit_test(test_add),
                                       cmocka_unit_test(test_refused)};
    only(argc, argv);
    return cmocka_run_group_tests(tests, open_subjects, close_subjects);
}
