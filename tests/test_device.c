/* Ranks whose memory is a device's, emulated or real (the CUDA module beside the test): what is
 * planned is what is taken, nothing is taken later, and steps that are replayed are those that
 * run op by op. */
#include "kernels/module.h"
#include "tests/cluster.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

/* Of steps that are replayed the sizes are 1, 2, 4 and, for want of slots, 7. */
enum { SLOTS = 7, PROMPT = 5, POSITIONS = 48 };

static const struct {
    const char *name;
    int32_t ranks;
    const char *option;
    const char *more[2]; /* with homes */
} cases[] = {
    {"tied_gqa2_f32", 1, "--sampler=gather", {NULL}},
    {"untied_mha_bf16", 3, "--sampler=gather", {NULL}},
    {"headdim_bf16", 2, "--sampler=distributed", {NULL}},
    {"tied_gqa2_f32", 4, "--parallel-mode=1d_sp", {NULL}},
    {"untied_mha_bf16", 4, "--parallel-mode=2d", {NULL}},
    {"headdim_bf16", 6, "--parallel-mode=3d", {"--mesh=1,2,3", "--kv-placement=home"}},
};

static const struct module *module_here(struct module_report *report)
{
    struct err err;
    const struct module *m = NULL;
    if (module_find(&m, &err) != OK || m->report(report, &err) != OK) {
        print_message("%s\n", err.text);
        return NULL;
    }
    return m;
}

static struct cluster *open_case(size_t i, bool eager)
{
    char path[1024];
    const char *args[] = {"--device=cuda",
                          "--threads-per-rank=1",
                          "--max-num-seqs=7",
                          "--max-num-batched-tokens=64",
                          "--kv-cache-memory=1M",
                          cases[i].option,
                          NULL,
                          NULL,
                          NULL,
                          NULL};
    size_t n = 6;
    if (eager)
        args[n++] = "--enforce-eager";
    for (size_t k = 0; k < 2 && cases[i].more[k]; k++)
        args[n++] = cases[i].more[k];
    snprintf(path, sizeof path, "%s/golden/%s", TEST_DATA_DIR, cases[i].name);
    return cluster_open(path, cases[i].ranks, args);
}

/* Prompts of all slots in one step. */
static void prefill(struct cluster *c)
{
    static int32_t prompt[SLOTS][PROMPT];
    for (int32_t s = 0; s < SLOTS; s++) {
        const struct sample_params p = {.temperature = 0.8f, .top_p = 0.9f, .seed = (uint64_t)s};
        for (int32_t i = 0; i < PROMPT; i++)
            prompt[s][i] = 3 + 7 * s + i;
        c->home = s * c->footprint.limits.homes / SLOTS;
        cluster_open_slot(c, s, prompt[s], PROMPT, POSITIONS, p);
        for (int32_t i = 0; i < PROMPT; i++)
            cluster_row(c, s, i, prompt[s][i], i + 1 == PROMPT);
    }
    cluster_step(c);
}

static void begin(int32_t *at)
{
    for (int32_t s = 0; s < SLOTS; s++)
        at[s] = PROMPT;
}

/* A decode of the first `rows` slots; *at: positions so far. */
static void decode(struct cluster *c, int32_t rows, int32_t *at)
{
    for (int32_t s = 0; s < rows; s++)
        cluster_row(c, s, at[s]++, STEP_TOKEN_FROM_SLOT, true);
    cluster_step(c);
}

/* ---- memory ---- */

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
        if (m->ops->probe(cases[i].ranks, &before, &err) != OK) {
            print_message("%s\n", err.text);
            continue;
        }
        struct cluster *c = open_case(i, false);
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
            assert_int_equal(m->ops->probe(cases[i].ranks, &after, &err), OK);
            assert_int_equal(after, before);
        }
    }
}

/* ---- replay ---- */

static int32_t padded(int32_t rows)
{
    return rows <= 2 ? rows : rows <= 4 ? 4 : SLOTS;
}

/* Bytes that a rank receives for the sums of a pass over so many rows: NCCL's ring, once for the
 * embedding and twice in each layer. */
static uint64_t bytes_of_sums(const struct cluster *c, int32_t rows)
{
    const uint64_t n = (uint64_t)rows * (uint64_t)c->setup.model.hidden;
    const uint64_t ranks = (uint64_t)c->footprint.ranks;
    return (2 * (uint64_t)c->setup.model.layers + 1) * 4 * 2 * (n - n / ranks);
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
 * padding and without. Returns how many steps a rank may have replayed. */
static uint64_t compare(struct cluster *plain, struct cluster *other, bool pads)
{
    static const int32_t batches[] = {1, 1, 1, 3, 3, 2, 4, 6, 5, 1, 7, 2, 2, 3, 1, 6};
    int32_t at[2][SLOTS];
    uint64_t seen[SLOTS + 1] = {0}, expected = 0, added = 0;
    begin(at[0]);
    begin(at[1]);
    prefill(plain);
    prefill(other);
    for (size_t n = 0; n < ARRAY_LEN(batches); n++) {
        const int32_t rows = batches[n], run = pads ? padded(rows) : rows;
        decode(plain, rows, at[0]);
        decode(other, rows, at[1]);
        added += bytes_of_sums(plain, run) - bytes_of_sums(plain, rows);
        assert_same_step(plain, other, rows, added);
        expected += pads && seen[run]++ > 0; /* all but the first of a size */
    }
    return expected;
}

static void test_replayed_steps_are_the_same(void **state)
{
    (void)state;
    struct module_report report;
    const struct module *m = module_here(&report);
    if (!m)
        skip();
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct err err;
        size_t bytes;
        if (m->ops->probe(cases[i].ranks, &bytes, &err) != OK)
            continue;
        const bool split = strncmp(cases[i].option, "--parallel-mode", 15) == 0;
        struct cluster *plain = open_case(i, true), *replayed = open_case(i, false);
        const uint64_t expected = compare(plain, replayed, !split);
        for (int32_t r = 0; r < plain->footprint.ranks; r++) {
            assert_int_equal(atomic_load(&plain->board->rank[r].replays), 0);
            assert_int_equal(atomic_load(&replayed->board->rank[r].replays), expected);
        }
        cluster_close(plain);
        cluster_close(replayed);
    }
}

/* One rank's device takes no graph: nobody replays then, and all go on. The emulated NCCL refuses
 * collectives that only some of the ranks have captured. */
static void test_all_ranks_replay_or_none(void **state)
{
    (void)state;
    struct module_report report;
    if (!module_here(&report) || strcmp(report.device[0].name, "emulated device") != 0)
        skip();
    const size_t i = 1;
    setenv("EMULATED_DEVICE_WITHOUT_GRAPHS", "2", 1);
    struct cluster *plain = open_case(i, true), *refused = open_case(i, false);
    (void)compare(plain, refused, true);
    for (int32_t r = 0; r < refused->footprint.ranks; r++)
        assert_int_equal(atomic_load(&refused->board->rank[r].replays), 0);
    unsetenv("EMULATED_DEVICE_WITHOUT_GRAPHS");
    cluster_close(plain);
    cluster_close(refused);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_is_as_planned),
        cmocka_unit_test(test_replayed_steps_are_the_same),
        cmocka_unit_test(test_all_ranks_replay_or_none),
        cmocka_unit_test(test_host_has_no_graphs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
