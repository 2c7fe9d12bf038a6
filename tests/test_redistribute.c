/* Redistribution of small integer matrices, whose sums are exact: every transition between any two
 * spreads on meshes of up to 16 ranks, value for value, and bytes as predicted. With --table it
 * prints what each transition moved, for tests/blackbox/test_layouts.py. */
#include "engine/parallel/redistribute.h"
#include "tests/ranks.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

/* Odd on purpose: blocks are uneven, and empty where an axis is longer. */
#define ROWS 5
#define COLS 7
#define UNIT 3
#define ELEMENTS (ROWS * COLS * UNIT)
#define ARENA (64 * 1024)
#define SPREADS_MAX 128

static const struct matrix odd = {
    .dim = {{.units = ROWS, .unit = 1}, {.units = COLS, .unit = UNIT}}};
static const struct redistribute_sizes whole_parts = {
    {{ELEMENTS, ELEMENTS}, {ELEMENTS, ELEMENTS}, {ELEMENTS, ELEMENTS}, {ELEMENTS, ELEMENTS}},
    ELEMENTS,
    ELEMENTS};

struct all_spreads {
    int32_t count;
    struct spread at[SPREADS_MAX];
};

static void add_spread(const struct mesh *m, struct spread s, void *arg)
{
    struct all_spreads *all = arg;
    (void)m;
    CHECK(all->count < SPREADS_MAX);
    all->at[all->count++] = s;
}

/* What the transitions of a mesh share. */
struct board {
    struct all_spreads all;
    int32_t stride;                       /* 1: every pair of spreads */
    FILE *table;                          /* NULL: none */
    float part[COMM_RANKS_MAX][ELEMENTS]; /* results that only their sum can judge */
    uint64_t bytes[COMM_RANKS_MAX];
};

static int32_t whole(int64_t row, int64_t col)
{
    return (int32_t)((row * 31 + col * 17) % 201) - 100;
}

/* Number of this rank among those that hold addends of the same elements; *count of them. */
static int32_t addend_index(const struct mesh *m, const struct spread *s, int32_t rank,
                            int32_t *count)
{
    int32_t index = 0;
    *count = 1;
    for (int32_t axis = 0; axis < m->axes; axis++) {
        if (s->partial >> axis & 1) {
            index = index * m->axis[axis].size + mesh_coord(m, rank, axis);
            *count *= m->axis[axis].size;
        }
    }
    return index;
}

static int32_t addend(int64_t row, int64_t col, int32_t index, int32_t count)
{
    int32_t rest = whole(row, col);
    for (int32_t i = 1; i < count; i++) {
        int32_t h = (int32_t)((row * 7 + col * 3 + 5 * i) % 11) - 5;
        if (i == index)
            return h;
        rest -= h;
    }
    return rest;
}

struct part {
    struct span rows, cols;
};

static struct part part_of(const struct mesh *m, const struct spread *s, int32_t rank)
{
    struct part p = {spread_span(m, s, SPREAD_ROWS, ROWS, rank),
                     spread_span(m, s, SPREAD_COLS, COLS, rank)};
    p.cols.begin *= UNIT;
    p.cols.end *= UNIT;
    return p;
}

static void fill(const struct mesh *m, const struct spread *s, int32_t rank, float *at)
{
    const struct part p = part_of(m, s, rank);
    int32_t count, index = addend_index(m, s, rank, &count);
    for (int64_t row = p.rows.begin; row < p.rows.end; row++)
        for (int64_t col = p.cols.begin; col < p.cols.end; col++)
            *at++ = (float)addend(row, col, index, count);
}

/* The sum of `count` parts, each for the same rectangle. */
static bool is_right(struct part p, const float *const *parts, int32_t count)
{
    size_t i = 0;
    for (int64_t row = p.rows.begin; row < p.rows.end; row++) {
        for (int64_t col = p.cols.begin; col < p.cols.end; col++, i++) {
            float sum = 0;
            for (int32_t k = 0; k < count; k++)
                sum += parts[k][i];
            if (sum != (float)whole(row, col))
                return false;
        }
    }
    return true;
}

/* Parts that are addends are shown to all; the first holder adds them up. */
static enum status judge(struct ranks_member *m, const struct spread *to, bool *right,
                         struct err *err)
{
    enum status st = OK;
    struct board *b = m->arg;
    const float *parts[COMM_RANKS_MAX];
    int32_t count, index = addend_index(m->mesh, to, m->rank, &count), found = 0;
    const struct part mine = part_of(m->mesh, to, m->rank);
    *right = true;
    if (count == 1) {
        parts[0] = b->part[m->rank];
        *right = is_right(mine, parts, 1);
        return OK;
    }
    TRY(comm_barrier(m->world, err));
    for (int32_t r = 0; index == 0 && r < m->world->ranks; r++) {
        bool same = true; /* differs along partial axes only */
        for (int32_t axis = 0; axis < m->mesh->axes; axis++)
            same = same && (to->partial >> axis & 1 ||
                            mesh_coord(m->mesh, r, axis) == mesh_coord(m->mesh, m->rank, axis));
        if (same)
            parts[found++] = b->part[r];
    }
    *right = index != 0 || (found == count && is_right(mine, parts, count));
    TRY(comm_barrier(m->world, err));
out:
    return st;
}

static void print_transition(const struct ranks_member *m, const struct route *route)
{
    const struct board *b = m->arg;
    char from[SPREAD_TEXT_MAX], to[SPREAD_TEXT_MAX], move[REDISTRIBUTE_TEXT_MAX];
    fprintf(b->table, "%s | %s |", spread_text(m->mesh, &route->from, from),
            spread_text(m->mesh, &route->to, to));
    for (int32_t i = 0; i < route->count; i++)
        fprintf(b->table, "%s %s", i ? ";" : "", redistribute_text(m->mesh, &route->move[i], move));
    fprintf(b->table, " |");
    for (int32_t r = 0; r < m->world->ranks; r++)
        fprintf(b->table, " %llu", (unsigned long long)b->bytes[r]);
    fprintf(b->table, "\n");
}

static enum status transition(struct ranks_member *m, struct redistribute *r, struct spread from,
                              struct spread to, struct err *err)
{
    enum status st = OK;
    struct board *b = m->arg;
    struct route route;
    float elsewhere[ELEMENTS];
    const float *result;
    bool right = false;
    int64_t wanted = 0;
    TRY(redistribute_route(m->mesh, &odd, from, to, &route, err));
    /* written where it is read, or copied there */
    float *src = (from.count[0] + to.count[1]) % 2 ? redistribute_source(r, &route) : NULL;
    src = src ? src : elsewhere;
    fill(m->mesh, &from, m->rank, src);
    uint64_t before = ranks_bytes_all(m);
    TRY(redistribute_run(r, &odd, &route, src, &result, err));
    const struct part mine = part_of(m->mesh, &to, m->rank);
    memcpy(b->part[m->rank], result,
           (size_t)(span_len(mine.rows) * span_len(mine.cols)) * sizeof(float));
    b->bytes[m->rank] = ranks_bytes_all(m) - before;
    for (int32_t i = 0; i < route.count; i++) {
        wanted += redistribute_received(m->mesh, &odd, &route.move[i], m->rank);
        if (m->mesh->axis[route.move[i].axis].size == 1)
            return base_fail(err, ERR_INTERNAL, "a move along an axis of one rank");
    }
    TRY(judge(m, &to, &right, err));
    char text[2][SPREAD_TEXT_MAX];
    if (!right || b->bytes[m->rank] != 4 * (uint64_t)wanted)
        return base_fail(err, ERR_INTERNAL, "%s to %s: %s, %llu bytes, predicted %lld",
                         spread_text(m->mesh, &from, text[0]), spread_text(m->mesh, &to, text[1]),
                         right ? "right" : "wrong", (unsigned long long)b->bytes[m->rank],
                         (long long)wanted * 4);
    if (b->table) {
        TRY(comm_barrier(m->world, err));
        if (m->rank == 0)
            print_transition(m, &route);
        TRY(comm_barrier(m->world, err));
    }
out:
    return st;
}

static bool refused(const struct mesh *m, const struct spread *from, const struct spread *to)
{
    int32_t dim, place;
    for (int32_t axis = 0; axis < m->axes; axis++)
        if (to->partial >> axis & 1 && spread_along(from, axis, &dim, &place) == SPREAD_SHARD)
            return true;
    return false;
}

static enum status transitions(struct ranks_member *m, struct err *err)
{
    enum status st = OK;
    struct board *b = m->arg;
    struct redistribute *r = NULL;
    TRY(redistribute_open(&m->groups, m->backend, &whole_parts, &r, err));
    for (int32_t i = 0; i < b->all.count * b->all.count; i += b->stride) {
        const struct spread from = b->all.at[i / b->all.count], to = b->all.at[i % b->all.count];
        struct route route;
        struct err why;
        if (!refused(m->mesh, &from, &to))
            TRY(transition(m, r, from, to, err));
        else if (redistribute_route(m->mesh, &odd, from, to, &route, &why) != ERR_USAGE ||
                 !strstr(why.text, "is not an addend"))
            return base_fail(err, ERR_INTERNAL, "a part may become an addend");
    }
out:
    redistribute_close(r);
    return st;
}

static void visit(const struct mesh *m, void *arg)
{
    struct ranks_member members[COMM_RANKS_MAX];
    struct board *b = arg;
    b->all.count = 0;
    ranks_spreads(m, 0, (struct spread){0}, add_spread, &b->all);
    if (!ranks_run(m, ARENA, transitions, b, members))
        fail_msg("mesh [%d, %d, %d]", m->axis[0].size, m->axis[1].size, m->axis[2].size);
}

static void test_one_axis(void **state)
{
    (void)state;
    static struct board b = {.stride = 1};
    ranks_meshes(1, 16, visit, &b);
}

static void test_two_axes(void **state)
{
    (void)state;
    static struct board b = {.stride = 1};
    ranks_meshes(2, 16, visit, &b);
}

/* All of 2 x 2 x 2, the seeds' cube; of the others pairs at a stride that meets every spread. */
static void test_three_axes(void **state)
{
    (void)state;
    static struct board b = {.stride = 1};
    const struct mesh cube = {3, true, {{"w", 2}, {"a", 2}, {"b", 2}}};
    visit(&cube, &b);
    b.stride = 97;
    ranks_meshes(3, 16, visit, &b);
}

/* redistribute_run refuses what its buffers do not hold. */
static enum status too_large(struct ranks_member *m, struct err *err)
{
    enum status st = OK;
    struct redistribute *r = NULL;
    struct route route;
    struct err why;
    struct redistribute_sizes small = {0};
    const float *result;
    float src[ELEMENTS] = {0};
    const struct spread copy = {0}, cut = spread_shard(copy, SPREAD_ROWS, 0);
    TRY(redistribute_route(m->mesh, &odd, cut, copy, &route, err));
    redistribute_measure(m->mesh, &odd, &route, &small);
    if (small.result != ELEMENTS || small.place[0].sum != 0 || small.place[1].src != 0)
        st = base_fail(err, ERR_INTERNAL, "measured %zu", small.result);
    small.result--;
    TRY(redistribute_open(&m->groups, m->backend, &small, &r, err));
    if (redistribute_run(r, &odd, &route, src, &result, &why) != ERR_INTERNAL)
        st = base_fail(err, ERR_INTERNAL, "a part too large was moved");
out:
    redistribute_close(r);
    return st;
}

static enum status no_arena(struct ranks_member *m, struct err *err)
{
    struct redistribute *r = NULL;
    struct err why;
    const struct redistribute_sizes large = {{{1 << 20, 0}}, 0, 0};
    if (redistribute_open(&m->groups, m->backend, &large, &r, &why) != ERR_LIMIT || r)
        return base_fail(err, ERR_INTERNAL, "an arena too small was taken");
    return OK;
}

static void test_limits(void **state)
{
    (void)state;
    struct ranks_member members[COMM_RANKS_MAX];
    const struct mesh line = {1, false, {{"tp", 2}}};
    assert_true(ranks_run(&line, ARENA, too_large, NULL, members));
    assert_true(ranks_run(&line, ARENA, no_arena, NULL, members));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_axis),
        cmocka_unit_test(test_two_axes),
        cmocka_unit_test(test_three_axes),
        cmocka_unit_test(test_limits),
    };
    if (argc > 2 && argc <= 2 + MESH_AXES_MAX && strcmp(argv[1], "--table") == 0) {
        static struct board b = {.stride = 1};
        struct mesh m = {argc - 2, false, {{"x", 1}, {"y", 1}, {"z", 1}}};
        b.table = stdout;
        for (int32_t i = 0; i < m.axes; i++)
            m.axis[i].size = (int32_t)strtol(argv[2 + i], NULL, 10);
        visit(&m, &b);
        return 0;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
