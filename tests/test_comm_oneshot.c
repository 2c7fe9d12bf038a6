/* Sums through the memory of peers, with the norm behind them and without, on the emulated devices:
 * bit for bit the tree of the ranks, also where NCCL adds in another order, and as many bytes as
 * the closed forms say. Only as threads, since devices of other processes are not emulated. */
#include "tests/comm_ranks.h"

#include "tests/emulate/calls.h"
#include "tests/only.h"

static bool oneshots_are_used; /* set before the ranks start */
static emulated_calls_fn *count_calls;

/* What this rank has asked NCCL for. */
static uint64_t collectives(void)
{
    struct emulated_calls calls;
    count_calls(&calls);
    return calls.collectives;
}

/* Sums of many sizes, also back to back: up to ONESHOT elements in the tree of the ranks if
 * one-shot kernels are used, else in NCCL's chain; the bytes of either. */
#define ONESHOT 65536
static void body_oneshot(struct rank *r)
{
    static const size_t sizes[] = {4096, 1,    2, 511, 512,     513,         1000,
                                   3,    4095, 7, 512, ONESHOT, ONESHOT + 1, 17};
    for (uint32_t it = 0; it < 2 * ARRAY_LEN(sizes); it++) {
        const size_t n = sizes[it % ARRAY_LEN(sizes)];
        const uint64_t before = atomic_load(&r->stats->op[COMM_ALL_REDUCE].bytes);
        const uint64_t asked = collectives();
        fill_values(r, it, n);
        if (it % 3 == 0)
            delay(r);
        GOOD(r, comm_all_reduce(r->c, r->dst, r->src[it & 1], n, &err));
        const bool used = oneshots_are_used && n <= ONESHOT;
        EXPECT(r, (collectives() == asked) == used);
        EXPECT(r, !used || sums_are(r, it, 0, n));
        const uint64_t bytes = atomic_load(&r->stats->op[COMM_ALL_REDUCE].bytes) - before;
        EXPECT(r, bytes == (used ? 4 * (size_t)(r->ranks - 1) * n : all_reduce_bytes(r, n)));
        r->hash = base_hash(r->hash, r->dst, n * 4);
    }
}

static bool norms_are_used; /* likewise */

/* Where a rank has what norms are made of, in one buffer. */
static struct add_norm norm_in(const struct rank *r, int32_t rows, int32_t cols)
{
    const struct view x = view_f32(r->dst, rows, cols), y = view_f32(r->dst + ONESHOT, rows, cols);
    return (struct add_norm){y, x, r->dst + 2 * ONESHOT, 1e-5f};
}

/* x + the tree of the addends to the bit, and its norm near that of doubles, but for what it is
 * rounded to. */
static bool is_normed(const struct add_norm *to, int32_t ranks, uint32_t it)
{
    const int32_t cols = to->x.cols;
    const float *x = to->x.data;
    const double rounding = to->y.dtype == DTYPE_F32    ? 0
                            : to->y.dtype == DTYPE_BF16 ? 0x1p-8
                                                        : 0x1p-11;
    bool good = true;
    for (int32_t t = 0; t < to->x.rows; t++) {
        double squares = 0;
        for (int32_t i = t * cols; i < (t + 1) * cols; i++) {
            float v[RANKS] = {0};
            for (int32_t k = 0; k < ranks; k++)
                v[k] = value(k, it, (size_t)i);
            const float want = value(RANKS, it, (size_t)i) + tree(v, 0, RANKS, ranks);
            good = good && memcmp(&want, &x[i], sizeof want) == 0;
            squares += (double)want * (double)want;
        }
        const double scale = 1 / sqrt(squares / cols + 1e-5);
        for (int32_t i = 0; i < cols; i++) {
            const double want = (double)x[t * cols + i] * scale * (double)to->gain[i];
            const double got = (double)dtype_load(to->y.data, to->y.dtype, (size_t)(t * cols + i));
            good = good && fabs(got - want) <= 2e-6 * (1 + fabs(want)) + rounding * fabs(want);
        }
    }
    return good;
}

/* Sums with the norm behind them, among others, so that blocks have had different numbers of
 * rounds; each counts as the sum does. */
static void body_norm(struct rank *r)
{
    static const int32_t sizes[][2] = {{1, 1},   {3, 17},   {1, 4096}, {2, 513}, {16, 4096},
                                       {7, 511}, {1, 8000}, {100, 64}, {5, 1030}};
    static const enum dtype types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    const uint64_t before = atomic_load(&r->stats->op[COMM_ALL_REDUCE].bytes);
    struct add_norm to = norm_in(r, 1, 1);
    uint64_t bytes = 0;
    EXPECT(r, comm_has_norm(r->c, 1, 5) == norms_are_used && !comm_has_norm(r->c, 0, 5));
    EXPECT(r, !comm_has_norm(r->c, 129, 1) && !comm_has_norm(r->c, 17, 4096));
    for (uint32_t it = 0; it < 2 * ARRAY_LEN(sizes) && norms_are_used; it++) {
        const int32_t *size = sizes[it % ARRAY_LEN(sizes)];
        const size_t n = (size_t)size[0] * (size_t)size[1];
        const uint64_t asked = collectives();
        if (it % 4 == 1) {
            fill_values(r, it, 100 * it);
            GOOD(r, comm_all_reduce(r->c, r->dst, r->src[it & 1], 100 * it, &err));
            bytes += 4 * (uint64_t)(r->ranks - 1) * 100 * it;
        }
        to = norm_in(r, size[0], size[1]);
        to.y.dtype = types[it / 2 % ARRAY_LEN(types)];
        fill_values(r, it, n);
        for (size_t i = 0; i < n; i++)
            r->dst[i] = value(RANKS, it, i);
        for (size_t i = 0; i < (size_t)size[1]; i++)
            r->dst[2 * ONESHOT + i] = value(RANKS + 1, it, i);
        if (it % 3 == 0)
            delay(r);
        EXPECT(r, comm_has_norm(r->c, size[0], size[1]));
        GOOD(r, comm_all_reduce_norm(r->c, &to, r->src[it & 1], &err));
        bytes += 4 * (uint64_t)(r->ranks - 1) * n;
        EXPECT(r, is_normed(&to, r->ranks, it) && collectives() == asked);
        r->hash = base_hash(r->hash, to.x.data, n * 4);
        r->hash = base_hash(r->hash, to.y.data, n * dtype_size(to.y.dtype));
    }
    EXPECT(r, atomic_load(&r->stats->op[COMM_ALL_REDUCE].bytes) - before == bytes);
}

/* What waits for peers that do not come ends with an abort, and nothing is added. */
static void body_norm_abort(struct rank *r)
{
    const struct add_norm to = norm_in(r, 2, 1000);
    struct err why = {""};
    GOOD(r, comm_all_reduce_norm(r->c, &to, r->src[0], &err));
    if (r->rank == 0) {
        fill_values(r, 0, 2000);
        r->dst[0] = 5;
        EXPECT(r, comm_all_reduce_norm(r->c, &to, r->src[0], &why) == OK);
        comm_abort(r->c);
        r->device->ops->sync(r->device);
        EXPECT(r, r->dst[0] == 5);
        EXPECT(r, comm_all_reduce_norm(r->c, &to, r->src[0], &why) == ERR_COMM);
    }
    atomic_fetch_add(&r->shared->done, 1);
    while (atomic_load(&r->shared->done) < r->ranks) /* what it sends still has a place */
        usleep(1000);
}

static void body_sums(struct rank *r)
{
    body_oneshot(r);
    body_norm(r);
}

static void check_sums(int32_t ranks)
{
    struct shared s;
    run(ranks, false, body_sums, &s);
    for (int32_t i = 1; i < ranks; i++)
        assert_int_equal(atomic_load(&s.hash[i]), atomic_load(&s.hash[0]));
}

/* What waits for peers that do not come ends with an abort. */
static void body_oneshot_abort(struct rank *r)
{
    struct err why = {""};
    fill_values(r, 0, 1000);
    GOOD(r, comm_all_reduce(r->c, r->dst, r->src[0], 1000, &err));
    if (r->rank == 0) {
        EXPECT(r, comm_all_reduce(r->c, r->dst, r->src[0], 10, &why) == OK);
        comm_abort(r->c);
        r->device->ops->sync(r->device);
        EXPECT(r, comm_all_reduce(r->c, r->dst, r->src[0], 10, &why) == ERR_COMM);
    }
    atomic_fetch_add(&r->shared->done, 1);
    while (atomic_load(&r->shared->done) < r->ranks) /* what it sends still has a place */
        usleep(1000);
}

/* Where devices reach each other and NCCL takes longer, unless all sums have to be NCCL's. */
static void test_oneshot(void **state)
{
    (void)state;
    static const struct {
        const char *emulated, *norms;
        uint32_t how;
        bool used, normed;
    } cases[] = {{NULL, NULL, 0, false, false},
                 {"fast", NULL, 0, true, false},
                 {"fast", "apart_is_slow", 0, true, true},
                 {"fast", "apart_is_slow", COMM_FIXED_ORDER, true, false},
                 {"silent", "apart_is_slow", 0, false, false},
                 {"fast", "apart_is_slow", COMM_NO_ONESHOT, false, false}};
    struct err err = {""};
    struct backend *b = NULL;
    if (backend_open("cuda:7", 1, &b, &err) != OK) {
        print_message("%s\n", err.text);
        skip();
    }
    count_calls = emulated_calls_of(b->ops);
    backend_close(b);
    if (!count_calls)
        skip(); /* real devices decide by themselves */
    between_devices = true;
    setenv("EMULATED_NCCL_CHAINS", "1", 1);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        if (cases[i].emulated != NULL)
            setenv("EMULATED_PEERS", cases[i].emulated, 1);
        if (cases[i].norms != NULL)
            setenv("EMULATED_NORMS", cases[i].norms, 1);
        device_how = cases[i].how;
        oneshots_are_used = cases[i].used;
        norms_are_used = cases[i].normed;
        for (int32_t ranks = 2; ranks <= (cases[i].used ? 8 : 3); ranks += cases[i].normed ? 3 : 1)
            check_sums(ranks);
        if (cases[i].used)
            run(3, false, cases[i].normed ? body_norm_abort : body_oneshot_abort, NULL);
        unsetenv("EMULATED_PEERS");
        unsetenv("EMULATED_NORMS");
    }
    unsetenv("EMULATED_NCCL_CHAINS");
    between_devices = false;
    device_how = COMM_SHARED_DEVICE;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_oneshot)};
    only(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
