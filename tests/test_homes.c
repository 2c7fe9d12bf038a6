/* Homes of sequences: what a rank makes of the rows of each, and refuses. For the black-box tests
 * it prints what ranks receive in a step of so many rows of each home, some of them sampled:
 *   test_homes --received MODEL RANKS ROWS,ROWS,.. ROW,ROW,.. OPTION.. */
#include "engine/rank_state.h"
#include "tests/cluster.h"
#include "tests/scratch.h"

enum { SLOTS = 6, HOMES = 4, HOME_ROWS = 3 };

static struct rank_state *open_state(struct backend **b, struct step **step)
{
    const struct step_limits limits = {.slots = SLOTS,
                                       .samples = SLOTS,
                                       .rows = HOMES * HOME_ROWS,
                                       .groups = {.keep = 1},
                                       .table_cols = 2,
                                       .vocab = 32,
                                       .blocks = 8,
                                       .history_max = 32,
                                       .homes = HOMES,
                                       .home_rows = HOME_ROWS};
    struct rank_state *s;
    struct err err;
    assert_int_equal(backend_open("cpu-generic", 1, b, &err), OK);
    assert_int_equal(rank_state_open(*b, &limits, &s, &err), OK);
    assert_int_equal(step_open_new(&limits, step, &err), OK);
    return s;
}

/* A step whose rows are of these slots; slot x is opened at home homes[x]. */
static enum status change(const int32_t homes[SLOTS], const int32_t *slots, int32_t rows,
                          int64_t cut[HOMES + 1], struct err *err)
{
    static const int32_t token = 5;
    struct backend *b;
    struct step *step;
    struct rank_state *s = open_state(&b, &step);
    const struct rank_arrays *arrays;
    for (int32_t i = 0; i < SLOTS; i++)
        step->open[step->opens++] = (struct step_open){.slot = i,
                                                       .history = 1,
                                                       .home = homes[i],
                                                       .state = -1,
                                                       .tokens = &token,
                                                       .rules = {.prompt = 1}};
    for (int32_t i = 0; i < rows; i++)
        step->slot[step->rows++] = slots[i];
    const enum status st = rank_state_change(s, step, 0, &arrays, err);
    if (st == OK)
        memcpy(cut, rank_state_cut(s), (HOMES + 1) * sizeof *cut);
    step_free(step);
    rank_state_close(s);
    backend_close(b);
    return st;
}

static void test_rows_are_cut(void **state)
{
    (void)state;
    static const int32_t homes[SLOTS] = {3, 0, 1, 1, 0, 3};
    static const struct {
        int32_t slots[8], rows;
        int64_t cut[HOMES + 1];
    } steps[] = {
        {.rows = 0, .cut = {0, 0, 0, 0, 0}},
        {{1, 4, 2, 0}, 4, {0, 2, 3, 3, 4}},
        {{4, 1, 1, 3, 2, 5, 0, 5}, 8, {0, 3, 5, 5, 8}},
        {{2, 3, 2}, 3, {0, 0, 3, 3, 3}},
        {{0}, 1, {0, 0, 0, 0, 1}},
        {{-1, 2, -1, 0}, 4, {0, 1, 3, 3, 4}}, /* padding goes with the row before */
    };
    for (size_t i = 0; i < ARRAY_LEN(steps); i++) {
        int64_t cut[HOMES + 1];
        struct err err;
        assert_int_equal(change(homes, steps[i].slots, steps[i].rows, cut, &err), OK);
        assert_memory_equal(cut, steps[i].cut, sizeof cut);
    }
}

static void test_wrong_rows_are_refused(void **state)
{
    (void)state;
    static const int32_t homes[SLOTS] = {3, 0, 1, 1, 0, 3};
    static const struct {
        int32_t slots[8], rows;
        const char *text;
    } steps[] = {
        {{1, 2, 4}, 3, "row 2 is of home 0 and comes after one of home 1"},
        {{0, -1, 3}, 3, "row 2 is of home 1 and comes after one of home 3"},
        {{1, 2, 2, 3, 3}, 5, "4 rows of home 1, at most are 3"},
        {{0, 5, 0, 5}, 4, "4 rows of home 3, at most are 3"},
    };
    for (size_t i = 0; i < ARRAY_LEN(steps); i++) {
        int64_t cut[HOMES + 1];
        struct err err = {""};
        assert_int_equal(change(homes, steps[i].slots, steps[i].rows, cut, &err), ERR_COMM);
        if (!strstr(err.text, steps[i].text))
            fail_msg("\"%s\" does not say \"%s\"", err.text, steps[i].text);
    }
}

/* ---- for the black-box tests ---- */

static uint64_t received(const struct board_rank *b)
{
    uint64_t n = 0;
    for (int op = 0; op < COMM_OP_COUNT; op++) {
        n += atomic_load(&b->comm.op[op].bytes);
        for (int axis = 0; axis < MESH_AXES_MAX; axis++)
            n += atomic_load(&b->axis[axis].op[op].bytes);
    }
    return n;
}

static void print_received(char **argv, int args)
{
    static int32_t tokens[4096];
    const struct sample_params greedy = {.temperature = 0, .top_p = 1};
    uint64_t before[COMM_RANKS_MAX];
    const char *options[32] = {NULL};
    char *rows = argv[2], *sampled = argv[3];
    const int32_t ranks = (int32_t)strtol(argv[1], NULL, 10);
    for (int i = 4; i < args; i++)
        options[i - 4] = argv[i];
    struct cluster *c = cluster_open(argv[0], ranks, options);
    for (int32_t r = 0; r < ranks; r++)
        before[r] = received(&c->board->rank[r]);
    for (; *rows; rows += *rows == ',', c->home++) {
        const int32_t count = (int32_t)strtol(rows, &rows, 10), home = c->home;
        if (count > 0)
            cluster_open_slot(c, home, tokens, count, count + 1, greedy);
        for (int32_t i = 0; i < count; i++) {
            if (*sampled && c->step->rows == strtol(sampled, NULL, 10)) {
                cluster_row(c, home, i, 0, true);
                sampled += strcspn(sampled, ",");
                sampled += *sampled == ',';
            } else {
                cluster_row(c, home, i, 0, false);
            }
        }
    }
    cluster_step(c);
    for (int32_t r = 0; r < ranks; r++)
        printf("%llu\n", (unsigned long long)(received(&c->board->rank[r]) - before[r]));
    cluster_close(c);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_are_cut),
        cmocka_unit_test(test_wrong_rows_are_refused),
    };
    if (argc > 6 && strcmp(argv[1], "--received") == 0) {
        print_received(argv + 2, argc - 2);
        return 0;
    }
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
