/* Costs of steps between and beyond the measured points, and which steps are measured; that they
 * can be is tested with the engine. */
#include "engine/costs.h"
#include "engine/kv.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cmocka.h>

static void test_lines(void **state)
{
    (void)state;
    const struct costs c = {
        .count = 4, .rows = {1, 2, 4, 8}, .seconds = {10, 10, 12, 20}, .per_key = 0.5};
    const struct {
        int32_t rows;
        int64_t keys;
        double seconds;
    } cases[] = {{1, 0, 10}, {2, 0, 10},  {3, 0, 11},    {4, 0, 12},  {5, 0, 14},
                 {8, 0, 20}, {16, 0, 36}, {108, 0, 220}, {1, 10, 15}, {16, 1000000, 500036}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        assert_true(costs_of(&c, cases[i].rows, cases[i].keys) == cases[i].seconds);
}

static void test_few_points(void **state)
{
    (void)state;
    const struct costs none = {0}, one = {.count = 1, .rows = {1}, .seconds = {3}, .per_key = 1};
    assert_true(costs_of(&none, 100, 100) == 0);
    assert_true(costs_of(&one, 100, 2) == 5);
}

/* ---- measuring, on a rank that only looks at the steps ---- */

enum { SLOTS_MAX = 16, ROWS_MAX = 256 };

struct looker {
    int fd;
    const struct step_limits *limits;
    uint64_t steps, opened; /* steps that open slots */
    int32_t known; /* rows: what it has not had so many of takes FIRST_USEC the first time */
    int32_t rows, slot[ROWS_MAX], position[ROWS_MAX]; /* of the last step that opened slots */
    bool apart[ROWS_MAX + 1]; /* steps of so many rows, each of its own sequence, were there */
};

enum { FIRST_USEC = 50000, USUAL_USEC = 1000 };

/* The only clock here, which steps alone move: a machine with other work takes its time for them.
 * The linker sends questions for the time here (--wrap). */
static _Atomic int64_t clock_usec;

double __wrap_base_now(void);
double __wrap_base_now(void)
{
    return (double)atomic_load(&clock_usec) * 1e-6;
}

/* In each group of layers a row's slot has a block for all that the row sees. */
static void look_at_blocks(const struct step *s, const struct step_limits *l, int32_t row)
{
    const struct kv_groups *groups = &l->groups;
    for (int32_t g = 0; g < kv_groups_count(groups); g++) {
        const int32_t last = s->position[row] / BACKEND_BLOCK_TOKENS;
        int32_t seen = 0, first = 0;
        if (g >= groups->keep && s->position[row] >= groups->window)
            first = (s->position[row] - groups->window + 1) / BACKEND_BLOCK_TOKENS;
        for (int32_t i = 0; i < s->appends; i++)
            seen += s->append[i].slot == s->slot[row] && s->append[i].group == g &&
                    s->append[i].index >= first && s->append[i].index <= last;
        CHECK(seen == last - first + 1);
    }
}

/* The block of the first group that a row writes; other groups' are the same. */
static int32_t block_of(const struct step *s, int32_t row)
{
    for (int32_t i = 0; i < s->appends; i++)
        if (s->append[i].slot == s->slot[row] && s->append[i].group == s->append[0].group &&
            s->append[i].index == s->position[row] / BACKEND_BLOCK_TOKENS)
            return s->append[i].block;
    CHECK(false);
    return -1;
}

/* No two rows of a home write the same place. */
static void look_at_places(const struct step *s, const struct step_limits *l, const int32_t *home)
{
    char *taken = calloc((size_t)l->homes * (size_t)l->blocks, BACKEND_BLOCK_TOKENS);
    CHECK(taken);
    for (int32_t i = 0; i < s->rows; i++) {
        const size_t block = (size_t)(home[s->slot[i]] * l->blocks + block_of(s, i));
        char *place =
            &taken[block * BACKEND_BLOCK_TOKENS + (size_t)(s->position[i] % BACKEND_BLOCK_TOKENS)];
        CHECK(*place == 0 || l->blocks == 1);
        *place = 1;
    }
    free(taken);
}

static int32_t homes_of(const struct step_limits *l)
{
    return l->homes < l->slots ? l->homes : l->slots;
}

/* A step that opens slots has rows in order of homes, as many of each: of a sequence each, as
 * decodes are, or at consecutive positions of one. */
static void look(const struct step *s, const struct step_limits *l)
{
    int32_t home[SLOTS_MAX], rows[SLOTS_MAX] = {0}, next[SLOTS_MAX], last = 0;
    const int32_t homes = homes_of(l), each = s->rows / homes;
    CHECK(s->rows == homes * each && each >= 1 && each <= l->home_rows);
    CHECK(s->opens == s->rows || s->opens == homes);
    CHECK(s->samples == (s->rows < l->slots ? s->rows : l->slots));
    for (int32_t i = 0; i < s->opens; i++) {
        home[s->open[i].slot] = s->open[i].home;
        next[s->open[i].slot] = s->position[0];
        CHECK(s->open[i].home == i / (s->opens / homes));
    }
    for (int32_t i = 0; i < s->rows; i++) {
        const int32_t slot = s->slot[i];
        look_at_blocks(s, l, i);
        CHECK(home[slot] >= last && s->position[i] == next[slot]);
        last = home[slot];
        next[slot]++;
        rows[slot]++;
    }
    for (int32_t i = 0; i < s->opens; i++) {
        const int32_t slot = s->open[i].slot;
        CHECK(rows[slot] == s->rows / s->opens && s->open[i].history == next[slot]);
    }
    look_at_places(s, l, home);
}

/* One that opens none is the step before once more. */
static void look_again(const struct looker *r, const struct step *s)
{
    const size_t bytes = (size_t)s->rows * sizeof(int32_t);
    CHECK(s->appends == 0 && s->rows == r->rows && s->rows > 0);
    CHECK(memcmp(s->slot, r->slot, bytes) == 0 && memcmp(s->position, r->position, bytes) == 0);
}

static void remember(struct looker *r, const struct step *s)
{
    const size_t bytes = (size_t)s->rows * sizeof(int32_t);
    r->rows = s->rows;
    memcpy(r->slot, s->slot, bytes);
    memcpy(r->position, s->position, bytes);
    r->apart[s->rows] = r->apart[s->rows] || s->opens == s->rows;
}

static void *look_at_steps(void *arg)
{
    struct looker *r = arg;
    struct step *step;
    struct err err;
    static int32_t ids[64];
    size_t n, cap = step_bytes_max(r->limits);
    void *message = malloc(cap);
    CHECK(message && step_open_new(r->limits, &step, &err) == OK);
    while (link_receive(r->fd, message, cap, &n, &err) == OK) {
        enum status st = step_decode(step, message, n, &err);
        CHECK(st == OK);
        if (step->opens > 0) {
            look(step, r->limits);
            remember(r, step);
            r->opened++;
        } else {
            look_again(r, step);
        }
        r->steps++;
        /* whatever the rows, so that all numbers of them are tried */
        atomic_fetch_add(&clock_usec, step->rows > r->known ? FIRST_USEC : USUAL_USEC);
        r->known = step->rows > r->known ? step->rows : r->known;
        const struct step_result result = {.count = step->samples, .ids = ids};
        struct step_answer head = {.magic = STEP_ANSWER_MAGIC,
                                   .epoch = step->epoch,
                                   .seq = step->seq,
                                   .hash = step_hash(ids, step->samples)};
        step_answer_counts(&head, &result);
        st = link_answer(r->fd, &head, &result, "", &err);
        CHECK(st == OK);
    }
    step_free(step);
    free(message);
    close(r->fd);
    return NULL;
}

static enum status wait_for_it(void *ctx, struct err *err)
{
    (void)ctx;
    (void)err;
    return OK;
}

/* known: see struct looker. */
static void measure_under(const struct step_limits *l, int32_t known, struct looker *rank,
                          struct costs *costs)
{
    struct link_set *links;
    struct err err;
    pthread_t thread;
    int pair[2];
    uint64_t seq = 0;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    *rank = (struct looker){.fd = pair[1], .limits = l, .known = known};
    assert_int_equal(link_open(pair, 1, l->slots, 0, &links, &err), OK);
    assert_int_equal(pthread_create(&thread, NULL, look_at_steps, rank), 0);
    enum status st = costs_measure(links, l, 1, &seq, wait_for_it, NULL, costs, &err);
    link_close(links);
    assert_int_equal(pthread_join(thread, NULL), 0);
    if (st != OK)
        fail_msg("%s", err.text);
    assert_int_equal(seq, rank->steps);
    assert_true(rank->opened < rank->steps); /* what is repeated does without, as decodes do */
    assert_int_equal(costs->rows[0], 1);
    assert_in_range(costs->count, 1, COSTS_MAX);
    for (int32_t i = 0; i < costs->count; i++) {
        const int32_t rows = homes_of(l) * costs->rows[i];
        assert_int_equal(rank->apart[rows], rows <= l->slots && costs->rows[i] <= l->blocks);
    }
}

static void test_measured_steps(void **state)
{
    (void)state;
    static const struct kv_groups groups[] = {
        {.keep = 1, .layers = 4},
        {.slide = 1, .layers = 4, .window = 40},
        {.keep = 1, .slide = 3, .layers = 1, .window = 16},
    };
    static const struct step_limits cases[] = {
        /* slots, samples, rows, columns of the table, vocabulary, blocks, groups, history, homes,
           rows of one, columns of vectors: tokens, kept states: none */
        {16, 16, 256, 32, 100, 64, {.keep = 1}, 512, 1, 256, 0, false, 0},
        {16, 16, 256, 32, 100, 64, {.keep = 1}, 512, 2, 128, 0, false, 0},
        {16, 16, 250, 32, 100, 64, {.keep = 1}, 512, 4, 63, 0, false, 0},
        {16, 16, 256, 32, 100, 3, {.keep = 1}, 512, 8, 32, 0, false, 0},
        {16, 16, 256, 3, 100, 64, {.keep = 1}, 33, 3, 86, 0, false, 0},
        {2, 2, 256, 32, 100, 64, {.keep = 1}, 512, 8, 32, 0, false, 0},
        {1, 1, 1, 32, 100, 64, {.keep = 1}, 512, 4, 1, 0, false, 0},
        {16, 16, 64, 32, 100, 1, {.keep = 1}, 512, 4, 16, 0, false, 0},
        {16, 16, 64, 1, 100, 64, {.keep = 1}, 2, 2, 32, 0, false, 0},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases) * ARRAY_LEN(groups); i++) {
        struct looker rank;
        struct costs costs;
        struct step_limits limits = cases[i / ARRAY_LEN(groups)];
        limits.groups = groups[i % ARRAY_LEN(groups)];
        measure_under(&limits, INT32_MAX, &rank, &costs);
    }
}

/* What a device loads when it first has so many rows is not taken for their cost, as long as the
 * step takes no longer than a processor's many rows do. */
static void test_first_steps(void **state)
{
    (void)state;
    const struct step_limits limits = {16,  16, 256, 32, 100,   64, {.keep = 1, .layers = 1},
                                       512, 1,  256, 0,  false, 0};
    struct looker rank;
    struct costs costs;
    measure_under(&limits, 0, &rank, &costs);
    assert_int_equal(costs.rows[costs.count - 1], 256);
    for (int32_t i = 0; i < costs.count; i++)
        assert_true(fabs(costs.seconds[i] - USUAL_USEC * 1e-6) < 1e-9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines),
        cmocka_unit_test(test_few_points),
        cmocka_unit_test(test_measured_steps),
        cmocka_unit_test(test_first_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
