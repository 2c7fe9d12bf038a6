/* Ranks whose memory is a device's, emulated or real (the CUDA module beside the test): what is
 * planned is what is taken, nothing is taken later, and steps that are replayed are those that
 * run op by op. */
#include "tests/device_ranks.h"

/* ---- memory ---- */

/* The front end only asks: on every device it leaves all memory, and its place, to the ranks. */
static void test_asking_takes_nothing(void **state)
{
    (void)state;
    struct module_report report;
    struct emulated_calls calls;
    struct err err;
    size_t bytes;
    const struct module *m = module_here(&report);
    if (!m || !count_calls(m, &calls))
        skip();
    assert_true(calls.contexts > 0); /* of the report, whose process ends */
    assert_int_equal(m->find("cuda")->probe(report.devices, &bytes, &err), OK);
    count_calls(m, &calls);
    assert_int_equal(calls.contexts, 0);
}

static size_t taken(const struct cluster *c, size_t before)
{
    struct err err;
    size_t now = 0;
    assert_int_equal(c->setup.ops->probe(c->footprint.ranks, &now, &err), OK);
    return before - now;
}

static void test_memory_is_as_planned(void **state)
{
    (void)state;
    struct module_report report;
    const struct module *m = module_here(&report);
    if (!m)
        skip();
    const bool exact = strcmp(report.device[0].name, "emulated device") == 0;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct err err;
        size_t before = 0, planned = 0;
        const int32_t ranks = ranks_here(m, i);
        if (ranks == 0)
            continue;
        assert_int_equal(m->find("cuda")->probe(ranks, &before, &err), OK);
        struct cluster *c = open_case(i, ranks, false);
        for (int32_t r = 0; r < c->footprint.ranks; r++) {
            const size_t n = c->footprint.rank[r].weights + c->footprint.rank[r].kv +
                             c->footprint.rank[r].activations + c->footprint.rank[r].scratch +
                             c->footprint.comm_bytes;
            planned = n > planned ? n : planned;
        }
        const size_t opened = taken(c, before);
        if (exact)
            assert_int_equal(opened, planned);
        else /* pages of 2 MiB; the driver's own state of a process */
            assert_in_range(opened, planned, planned + planned / 50 + ((size_t)768 << 20));
        int32_t at[SLOTS];
        begin(at);
        prefill(c);
        for (int32_t n = 0; n < 6; n++)
            decode(c, 1 + n % 2, at);
        if (exact)
            assert_int_equal(taken(c, before), opened);
        cluster_close(c);
        if (exact) {
            size_t after = 0;
            assert_int_equal(m->find("cuda")->probe(ranks, &after, &err), OK);
            assert_int_equal(after, before);
        }
    }
}

/* ---- replay ---- */

static int32_t padded(int32_t rows)
{
    return rows <= 2 ? rows : rows <= 4 ? 4 : SLOTS;
}

static bool oneshots_are_used; /* set before the ranks start */

/* Bytes that a rank receives for the sums of a pass over so many rows: NCCL's ring, or everything
 * of all others, once for the embedding and twice in each layer, or with experts beside an MLP once
 * more. */
static uint64_t bytes_of_sums(const struct cluster *c, int32_t rows)
{
    const uint64_t n = (uint64_t)rows * (uint64_t)c->setup.model.hidden;
    const uint64_t ranks = (uint64_t)c->footprint.ranks;
    const uint64_t received = oneshots_are_used ? (ranks - 1) * n : 2 * (n - n / ranks);
    const uint64_t sums = 2 + (uint64_t)mixture_is_beside(&c->setup.model.mixture);
    return (sums * (uint64_t)c->setup.model.layers + 1) * 4 * received;
}

/* added: bytes of sums that b has moved for padding. */
static void assert_same_traffic(const struct comm_stats *a, const struct comm_stats *b,
                                uint64_t added)
{
    for (int32_t op = 0; op < COMM_OP_COUNT; op++) {
        assert_int_equal(atomic_load(&a->op[op].calls), atomic_load(&b->op[op].calls));
        assert_int_equal(atomic_load(&a->op[op].bytes) + (op == COMM_ALL_REDUCE ? added : 0),
                         atomic_load(&b->op[op].bytes));
    }
}

static void assert_same_step(const struct cluster *a, const struct cluster *b, int32_t rows,
                             uint64_t added)
{
    assert_int_equal(a->result[0].count, rows);
    assert_int_equal(b->result[0].count, rows);
    assert_memory_equal(a->result[0].ids, b->result[0].ids, (size_t)rows * sizeof(int32_t));
    for (int32_t r = 0; r < a->footprint.ranks; r++) {
        const struct board_rank *x = a->memory[r].board, *y = b->memory[r].board;
        const size_t bytes = (size_t)a->logits[r].rows * (size_t)a->logits[r].cols * sizeof(float);
        assert_int_equal(a->logits[r].rows, b->logits[r].rows);
        if (strcmp(a->setup.options.sampler, "gather") == 0)
            assert_memory_equal(a->logits[r].data, b->logits[r].data, bytes);
        assert_true(atomic_load(&y->progress) >= atomic_load(&x->progress)); /* recording is some */
        assert_same_traffic(&x->comm, &y->comm, added);
        for (int32_t i = 0; i < MESH_AXES_MAX; i++)
            assert_same_traffic(&x->axis[i], &y->axis[i], 0);
    }
}

/* Batches come and go, so that the same recording meets other positions, slots and blocks, with
 * padding and without, and steps of the same size with guesses, for which it is not. refused: no
 * rank replays, and a size whose recording failed, with its second step, is padded no more. whole:
 * all batches, not the first ones only. Returns how many steps a rank may have replayed. */
static uint64_t compare(struct cluster *plain, struct cluster *other, bool pads, bool refused,
                        bool whole)
{
    static const struct {
        int32_t slots, guesses; /* guesses: of each */
    } batches[] = {{1, 0}, {1, 0}, {1, 0}, {3, 0}, {3, 0}, {2, 0}, {2, 1}, {4, 0},
                   {2, 1}, {6, 0}, {5, 0}, {1, 0}, {3, 1}, {7, 0}, {2, 0}, {2, 0},
                   {1, 1}, {3, 0}, {2, 1}, {1, 0}, {6, 0}, {1, 1}};
    int32_t at[2][SLOTS];
    uint64_t seen[2][SLOTS + 1] = {{0}}, expected = 0, added = 0;
    begin(at[0]);
    begin(at[1]);
    prefill(plain);
    prefill(other);
    for (size_t n = 0; n < (whole ? ARRAY_LEN(batches) : 13); n++) {
        const int32_t slots = batches[n].slots, guesses = batches[n].guesses;
        const int32_t rows = slots * (1 + guesses), size = padded(rows);
        uint64_t *of_kind = seen[guesses > 0];
        const int32_t run = pads && !(refused && of_kind[size] > 1) ? size : rows;
        decode_guesses(plain, slots, guesses, at[0]);
        decode_guesses(other, slots, guesses, at[1]);
        added += bytes_of_sums(plain, run) - bytes_of_sums(plain, rows);
        assert_same_step(plain, other, rows, added);
        expected += pads && of_kind[size]++ > 0; /* all but the first of a size */
    }
    return expected;
}

static void compare_case(size_t i, int32_t ranks)
{
    const bool split = strncmp(cases[i].options[0], "--p", 3) == 0;
    struct cluster *plain = open_case(i, ranks, true);
    struct cluster *replayed = open_case(i, ranks, false);
    const uint64_t expected = compare(plain, replayed, !split, false, i % 4 == 0);
    for (int32_t r = 0; r < plain->footprint.ranks; r++) {
        assert_int_equal(atomic_load(&plain->board->rank[r].replays), 0);
        assert_int_equal(atomic_load(&replayed->board->rank[r].replays), expected);
    }
    cluster_close(plain);
    cluster_close(replayed);
}

static void test_replayed_steps_are_the_same(void **state)
{
    (void)state;
    struct module_report report;
    const struct module *m = module_here(&report);
    if (!m)
        skip();
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        if (ranks_here(m, i) > 0)
            compare_case(i, ranks_here(m, i));
}

/* The rounds of one-shot sums are counted by replayed kernels, too. */
static void test_oneshot_sums_are_replayed(void **state)
{
    (void)state;
    struct module_report report;
    struct emulated_calls calls;
    const size_t i = 1;
    const int32_t ranks = cases[i].ranks;
    const struct module *m = module_here(&report);
    if (!m || !count_calls(m, &calls) || ranks_here(m, i) != ranks)
        skip();
    setenv("EMULATED_PEERS", "fast", 1);
    oneshots_are_used = true;
    compare_case(i, ranks);
    oneshots_are_used = false;
    unsetenv("EMULATED_PEERS");
}

/* Kernels that a step of decodes launches on all ranks; *logits: those of the first. */
static uint64_t launches_of(const struct module *m, struct cluster *c, struct cview *logits)
{
    struct emulated_calls before, after;
    int32_t at[SLOTS];
    begin(at);
    prefill(c);
    (void)count_calls(m, &before);
    decode(c, 3, at);
    (void)count_calls(m, &after);
    *logits = c->logits[0];
    return after.launches - before.launches;
}

/* Sums with the norm behind them: two launches less in each layer, and logits that are near those
 * of before, but for what they are rounded to; replayed, they are the same. */
static void test_norms_behind_sums(void **state)
{
    static const size_t with[] = {1, 9}; /* a model, a mixture */
    (void)state;
    struct module_report report;
    struct emulated_calls calls;
    const struct module *m = module_here(&report);
    if (!m || !count_calls(m, &calls) || ranks_here(m, 1) != cases[1].ranks)
        skip();
    setenv("EMULATED_PEERS", "fast", 1);
    for (size_t k = 0; k < ARRAY_LEN(with); k++) {
        const size_t i = with[k];
        const int32_t ranks = cases[i].ranks;
        struct cview x, y;
        struct cluster *apart = open_case(i, ranks, true);
        const uint64_t before = launches_of(m, apart, &x);
        setenv("EMULATED_NORMS", "apart_is_slow", 1);
        struct cluster *together = open_case(i, ranks, true);
        const uint64_t after = launches_of(m, together, &y);
        assert_int_equal(before - after, 2 * ranks * apart->setup.model.layers);
        assert_true(x.rows == 3 && y.rows == 3 && x.cols == y.cols);
        for (int32_t e = 0; e < x.rows * x.cols; e++)
            assert_true(fabsf(((const float *)x.data)[e] - ((const float *)y.data)[e]) < 1e-4f);
        cluster_close(apart);
        cluster_close(together);
        oneshots_are_used = true;
        compare_case(i, ranks);
        oneshots_are_used = false;
        unsetenv("EMULATED_NORMS");
    }
    unsetenv("EMULATED_PEERS");
}

/* What each rank's host asks of the driver in a step of decodes that is replayed. */
static void test_replayed_step_is_few_calls(void **state)
{
    (void)state;
    struct module_report report;
    struct emulated_calls before, after;
    const struct module *m = module_here(&report);
    if (!m || !count_calls(m, &before))
        skip();
    for (size_t i = 0; i < 2; i++) {
        struct cluster *c = open_case(i, ranks_here(m, i), false);
        const uint64_t ranks = (uint64_t)c->footprint.ranks;
        int32_t at[SLOTS];
        begin(at);
        prefill(c);
        for (int n = 0; n < 3; n++)
            decode(c, 4, at);
        for (int32_t s = 0; s < 4; s++)
            cluster_row(c, s, at[s], STEP_TOKEN_FROM_SLOT, true);
        count_calls(m, &before);
        cluster_run(c, false);
        count_calls(m, &after);
        assert_int_equal(after.graphs - before.graphs, ranks);
        /* resolve, four that sample; logits of several ranks side by side */
        assert_int_equal(after.launches - before.launches, ranks * (ranks > 1 ? 6 : 5));
        assert_int_equal(after.copies - before.copies,
                         ranks * 2); /* the step's arrays, its tokens */
        assert_int_equal(after.records - before.records, ranks);
        assert_int_equal(after.waits - before.waits, 0);
        assert_int_equal(after.allocations - before.allocations, 0);
        cluster_close(c);
    }
}

/* One rank's device takes no graph, or spoils its capture: nobody replays then, and all go on. The
 * emulated NCCL refuses collectives that only some of the ranks have captured, and fails for good
 * when it is called while a spoilt capture goes on. */
static void test_all_ranks_replay_or_none(void **state)
{
    static const char *const reasons[] = {"EMULATED_DEVICE_WITHOUT_GRAPHS",
                                          "EMULATED_DEVICE_SPOILS_GRAPHS"};
    (void)state;
    struct module_report report;
    struct emulated_calls calls;
    const size_t i = 1;
    const int32_t ranks = cases[i].ranks;
    const struct module *m = module_here(&report);
    if (!m || !count_calls(m, &calls) || ranks_here(m, i) != ranks)
        skip();
    for (size_t n = 0; n < ARRAY_LEN(reasons); n++) {
        setenv(reasons[n], "2", 1);
        struct cluster *plain = open_case(i, ranks, true), *refused = open_case(i, ranks, false);
        (void)compare(plain, refused, true, true, true);
        for (int32_t r = 0; r < refused->footprint.ranks; r++)
            assert_int_equal(atomic_load(&refused->board->rank[r].replays), 0);
        unsetenv(reasons[n]);
        cluster_close(plain);
        cluster_close(refused);
    }
}

/* A recorded step of 24 rows, three of them padding, has the results of its 21 rows run op by op:
 * the products of qkv and of gate and up are in 16 bits in both. */
static void test_narrow_products_are_replayed(void **state)
{
    static const char *const options[][2] = {{"--max-num-seqs=24", "--enforce-eager"},
                                             {"--max-num-seqs=24"}};
    (void)state;
    struct module_report report;
    struct emulated_calls before, after;
    struct cluster *c[2];
    int32_t at[2][SLOTS];
    const struct module *m = module_here(&report);
    if (!m || !count_calls(m, &before))
        skip();
    for (int k = 0; k < 2; k++) {
        c[k] = open_with(1, cases[1].ranks, options[k]);
        prefill(c[k]);
        begin(at[k]);
    }
    for (int n = 0; n < 4; n++) {
        (void)count_calls(m, &before);
        decode_guesses(c[0], SLOTS, 2, at[0]);
        (void)count_calls(m, &after);
        assert_int_equal(after.narrow - before.narrow,
                         2 * cases[1].ranks * c[0]->setup.model.layers);
        decode_guesses(c[1], SLOTS, 2, at[1]);
        assert_same_step(c[0], c[1], 3 * SLOTS, bytes_of_sums(c[0], 3) * (uint64_t)(n + 1));
    }
    assert_int_equal(atomic_load(&c[1]->board->rank[0].replays), 3);
    cluster_close(c[0]);
    cluster_close(c[1]);
}

/* ---- failures ---- */

/* One line that names the device, again at every step, and the rank can still close. */
static void test_broken_device_is_told(void **state)
{
    (void)state;
    struct module_report report;
    struct emulated_calls calls;
    struct step_result result;
    struct err err;
    const struct module *m = module_here(&report);
    if (!m || !count_calls(m, &calls))
        skip();
    struct cluster *c = open_case(0, 1, false);
    int32_t at[SLOTS];
    begin(at);
    prefill(c);
    setenv("EMULATED_DEVICE_BROKEN", "1", 1);
    for (int i = 0; i < 2; i++) {
        cluster_row(c, 0, at[0]++, STEP_TOKEN_FROM_SLOT, true);
        err.text[0] = '\0';
        assert_int_equal(rank_step(c->ranks[0], c->step, &result, NULL, &err), ERR_DEVICE);
        assert_int_equal(strncmp(err.text, "device 0: ", 10), 0);
        assert_null(strchr(err.text, '\n'));
        step_clear(c->step);
    }
    unsetenv("EMULATED_DEVICE_BROKEN");
    cluster_close(c);
}

static void test_old_driver_is_told(void **state)
{
    (void)state;
    struct module_report report;
    struct emulated_calls calls;
    struct err err;
    size_t bytes;
    const struct module *m = module_here(&report);
    if (!m || !count_calls(m, &calls))
        skip();
    setenv("EMULATED_DRIVER", "12040", 1);
    assert_int_equal(m->find("cuda")->probe(1, &bytes, &err), ERR_DEVICE);
    assert_non_null(strstr(err.text, "driver is for CUDA 12.4, the module was built with 13.0"));
    setenv("EMULATED_DRIVER", "0", 1);
    assert_int_equal(m->find("cuda")->probe(1, &bytes, &err), ERR_DEVICE);
    assert_non_null(strstr(err.text, "no NVIDIA driver"));
    unsetenv("EMULATED_DRIVER");
}

/* ---- steps that are launched while others run ---- */

struct flown {
    struct cluster *c;
    int32_t rank;
    struct step *step[BACKEND_FLIGHTS];
    int32_t ids[BACKEND_FLIGHTS][SLOTS];
    float logprob[BACKEND_FLIGHTS][SLOTS];
};

static void *fly(void *arg)
{
    struct flown *f = arg;
    struct rank *r = f->c->ranks[f->rank];
    struct err err;
    for (int32_t i = 0; i < BACKEND_FLIGHTS; i++)
        CHECK(rank_launch(r, f->step[i], NULL, &err) == OK);
    for (int32_t i = 0; i < BACKEND_FLIGHTS; i++) {
        struct step_result result;
        CHECK(rank_land(r, &result, &err) == OK);
        memcpy(f->ids[i], result.ids, (size_t)result.count * sizeof(int32_t));
        if (result.logprob)
            memcpy(f->logprob[i], result.logprob, (size_t)result.count * sizeof(float));
    }
    CHECK(rank_landed(r));
    return NULL;
}

static void build(struct cluster *c, int32_t rows, int32_t *at)
{
    for (int32_t s = 0; s < rows; s++)
        cluster_row(c, s, at[s]++, STEP_TOKEN_FROM_SLOT, true);
    for (int32_t s = 0; s < rows; s++)
        c->step->top[s] = 0; /* the logprob of the token itself */
}

/* Two decodes on all ranks, the second launched before the first has landed. */
static void decode_ahead(struct cluster *c, const int32_t *rows, int32_t *at, struct flown *out)
{
    pthread_t threads[COMM_RANKS_MAX];
    struct flown flown[COMM_RANKS_MAX];
    struct step *own = c->step, *step[BACKEND_FLIGHTS];
    struct err err;
    for (int32_t i = 0; i < BACKEND_FLIGHTS; i++) {
        assert_int_equal(step_open_new(&c->footprint.limits, &step[i], &err), OK);
        c->step = step[i];
        build(c, rows[i], at);
    }
    c->step = own;
    for (int32_t r = 0; r < c->footprint.ranks; r++) {
        flown[r] = (struct flown){.c = c, .rank = r};
        memcpy(flown[r].step, step, sizeof step);
        assert_int_equal(pthread_create(&threads[r], NULL, fly, &flown[r]), 0);
    }
    for (int32_t r = 0; r < c->footprint.ranks; r++) {
        pthread_join(threads[r], NULL);
        assert_memory_equal(flown[r].ids, flown[0].ids, sizeof flown[0].ids);
    }
    *out = flown[0];
    for (int32_t i = 0; i < BACKEND_FLIGHTS; i++)
        step_free(step[i]);
}

static void test_steps_ahead_are_the_same(void **state)
{
    (void)state;
    static const int32_t batches[][BACKEND_FLIGHTS] = {{2, 2}, {5, 3}, {2, 5}, {6, 2}};
    struct module_report report;
    const struct module *m = module_here(&report);
    if (!m)
        skip();
    const size_t i = 1;
    const int32_t ranks = ranks_here(m, i);
    struct cluster *plain = open_case(i, ranks, true), *ahead = open_case(i, ranks, false);
    int32_t at[2][SLOTS];
    begin(at[0]);
    begin(at[1]);
    prefill(plain);
    prefill(ahead);
    assert_true(rank_flies(ahead->ranks[0]));
    for (size_t n = 0; n < ARRAY_LEN(batches); n++) {
        struct flown got;
        decode_ahead(ahead, batches[n], at[1], &got);
        for (int32_t k = 0; k < BACKEND_FLIGHTS; k++) {
            const size_t rows = (size_t)batches[n][k];
            build(plain, batches[n][k], at[0]);
            cluster_step(plain);
            assert_memory_equal(got.ids[k], plain->result[0].ids, rows * sizeof(int32_t));
            assert_memory_equal(got.logprob[k], plain->result[0].logprob, rows * sizeof(float));
        }
    }
    cluster_close(plain);
    cluster_close(ahead);
}

/* Decodes before, between and behind chunks of prompts, of which the host tells where they are,
 * have the logits that they have in steps of their own, and so have the chunks: with weights in
 * fp32, whose products never make norms, so that the bits of a row are those of a row alone. */
static void test_decodes_beside_chunks(void **state)
{
    (void)state;
    enum { MIXED = 4 };
    static const int32_t rows[][MIXED] = {{1, 1, 3, 2}, {2, 1, 1, 3}, {3, 2, 1, 1},
                                          {1, 2, 1, 1}, {2, 2, 2, 1}, {1, 2, 2, 2}};
    struct module_report report;
    if (!module_here(&report))
        skip();
    struct cluster *mixed = open_case(0, 1, true), *apart = open_case(0, 1, true);
    int32_t at[2][SLOTS];
    begin(at[0]);
    begin(at[1]);
    prefill(mixed);
    prefill(apart);
    for (size_t n = 0; n < ARRAY_LEN(rows); n++) {
        for (int32_t s = 0; s < MIXED; s++)
            for (int32_t i = 0; i < rows[n][s]; i++)
                cluster_row(mixed, s, at[0][s]++, 5 + s + i, true);
        cluster_step(mixed);
        const float *got = mixed->logits[0].data;
        for (int32_t s = 0; s < MIXED; s++) {
            for (int32_t i = 0; i < rows[n][s]; i++)
                cluster_row(apart, s, at[1][s]++, 5 + s + i, true);
            cluster_step(apart);
            const size_t words = (size_t)rows[n][s] * (size_t)apart->logits[0].cols;
            assert_memory_equal(got, apart->logits[0].data, words * sizeof(float));
            got += words;
        }
    }
    cluster_close(mixed);
    cluster_close(apart);
}

/* On the host there is nothing to record, and an option that would do nothing is refused. */
static void test_host_has_no_graphs(void **state)
{
    (void)state;
    struct err err;
    struct backend *b = NULL;
    assert_int_equal(backend_open("cpu", 1, &b, &err), OK);
    assert_false(b->ops->record(b));
    assert_int_equal(b->ops->scratch_bytes(64, 1024, 32000), 0);
    backend_close(b);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_asking_takes_nothing),
        cmocka_unit_test(test_memory_is_as_planned),
        cmocka_unit_test(test_replayed_steps_are_the_same),
        cmocka_unit_test(test_oneshot_sums_are_replayed),
        cmocka_unit_test(test_norms_behind_sums),
        cmocka_unit_test(test_replayed_step_is_few_calls),
        cmocka_unit_test(test_all_ranks_replay_or_none),
        cmocka_unit_test(test_narrow_products_are_replayed),
        cmocka_unit_test(test_broken_device_is_told),
        cmocka_unit_test(test_old_driver_is_told),
        cmocka_unit_test(test_steps_ahead_are_the_same),
        cmocka_unit_test(test_decodes_beside_chunks),
        cmocka_unit_test(test_host_has_no_graphs),
    };
    only(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
