/* Meshes: numbering, the communicators along the axes, and who holds what of a matrix. With --table
 * it prints every mesh, spread and rank for tests/blackbox/test_layouts.py, which recomputes them
 * with tests/oracle/mesh_forms.py. */
#include "tests/ranks.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static const struct mesh grid = {2, false, {{"row", 3}, {"col", 3}}};
static const struct mesh deep = {3, false, {{"dep", 2}, {"row", 2}, {"col", 2}}};
static const struct mesh cube = {3, true, {{"w", 2}, {"a", 3}, {"b", 2}}};

static void test_numbering(void **state)
{
    (void)state;
    for (int32_t r = 0; r < 9; r++) { /* r = i q + j */
        assert_int_equal(mesh_coord(&grid, r, 0), r / 3);
        assert_int_equal(mesh_coord(&grid, r, 1), r % 3);
    }
    for (int32_t k = 0; k < 2; k++)
        for (int32_t i = 0; i < 2; i++)
            for (int32_t j = 0; j < 2; j++) /* r = k q^2 + i q + j */
                assert_int_equal(
                    mesh_peer(&deep, mesh_peer(&deep, mesh_peer(&deep, 5, 0, k), 1, i), 2, j),
                    4 * k + 2 * i + j);
    for (int32_t r = 0; r < 12; r++) /* r = i + w (j + a l) */
        assert_int_equal(mesh_coord(&cube, r, 0) +
                             2 * (mesh_coord(&cube, r, 1) + 3 * mesh_coord(&cube, r, 2)),
                         r);
    assert_int_equal(mesh_stride(&cube, 2), 6);
    assert_int_equal(mesh_ranks(&cube), 12);
    assert_int_equal(mesh_find(&cube, "b"), 2);
    assert_int_equal(mesh_find(&cube, "bb"), -1);
}

static void test_sizes(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int32_t ranks, size; /* 0: refused */
    } cases[] = {{"ranks", 7, 7},       {"ranks/4", 8, 2},     {"ranks/4", 6, 0},
                 {"ranks/0", 4, 0},     {"ranks/", 4, 0},      {"ranks/8", 4, 0},
                 {"ranks/2x", 4, 0},    {"sqrt(ranks)", 9, 3}, {"sqrt(ranks)", 8, 0},
                 {"cbrt(ranks)", 8, 2}, {"cbrt(ranks)", 1, 1}, {"cbrt(ranks)", 9, 0},
                 {"two", 4, 0}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        int32_t size = 0;
        struct err err = {""};
        enum status st = mesh_size(cases[i].text, cases[i].ranks, &size, &err);
        assert_int_equal(st, cases[i].size ? OK : ERR_USAGE);
        assert_int_equal(size, cases[i].size);
        if (st != OK)
            assert_non_null(strstr(err.text, cases[i].text));
    }
}

static void test_spread_edits(void **state)
{
    (void)state;
    char text[SPREAD_TEXT_MAX];
    int32_t dim, place;
    struct spread s = {0};
    assert_string_equal(spread_text(&cube, &s, text), "copy");
    s = spread_shard(spread_shard(spread_shard(s, SPREAD_COLS, 2), SPREAD_ROWS, 1), SPREAD_COLS, 0);
    assert_string_equal(spread_text(&cube, &s, text), "rows(a) cols(b,w)");
    assert_int_equal(spread_along(&s, 0, &dim, &place), SPREAD_SHARD);
    assert_int_equal(dim, SPREAD_COLS);
    assert_int_equal(place, 1);
    assert_int_equal(spread_pieces(&cube, &s, SPREAD_COLS), 4);
    struct spread t = spread_partial(spread_copy(s, 2), 2);
    assert_string_equal(spread_text(&cube, &t, text), "rows(a) cols(w) partial(b)");
    assert_false(spread_equal(&s, &t));
    t = spread_shard(spread_copy(spread_copy(t, 2), 0), SPREAD_COLS, 2);
    t = spread_shard(t, SPREAD_COLS, 0);
    assert_true(spread_equal(&s, &t)); /* unused entries are equal too */
}

/* ---- communicators ---- */

/* Every member says its rank; each group must hear exactly the ranks that differ along its axis. */
static enum status hear_groups(struct ranks_member *m, struct err *err)
{
    enum status st = OK;
    int32_t ones[COMM_RANKS_MAX], *mine = comm_buffer(m->world, 4);
    int32_t *heard = comm_buffer(m->world, COMM_RANKS_MAX * 4);
    for (int32_t i = 0; i < COMM_RANKS_MAX; i++)
        ones[i] = 1;
    *mine = m->rank;
    for (int32_t axis = 0; axis < m->mesh->axes; axis++) {
        struct comm *c = m->groups.axis[axis];
        TRY(comm_all_gather(c, heard, mine, 1, ones, err));
        bool right = c->ranks == m->mesh->axis[axis].size;
        for (int32_t x = 0; x < c->ranks; x++)
            right = right && heard[x] == mesh_peer(m->mesh, m->rank, axis, x);
        if (!right)
            return base_fail(err, ERR_INTERNAL, "axis %d: wrong group", axis);
        TRY(comm_barrier(c, err)); /* `heard` is written again */
    }
out:
    return st;
}

static void visit_groups(const struct mesh *m, void *arg)
{
    struct ranks_member members[COMM_RANKS_MAX];
    (void)arg;
    if (!ranks_run(m, 4096, hear_groups, NULL, members))
        fail_msg("mesh of %d ranks, first axis of %d", mesh_ranks(m), m->axis[0].size);
}

static void test_groups(void **state)
{
    (void)state;
    for (int32_t axes = 1; axes <= MESH_AXES_MAX; axes++)
        ranks_meshes(axes, 16, visit_groups, NULL);
}

/* ---- the table ---- */

static void print_axes(const int8_t *axes, int32_t count)
{
    for (int32_t i = 0; i < count; i++)
        printf("%d", axes[i]);
    printf(" ");
}

static void print_spread(const struct mesh *m, struct spread s, void *arg)
{
    const int64_t units = *(const int64_t *)arg;
    for (int32_t r = 0; r < mesh_ranks(m); r++) {
        struct span rows = spread_span(m, &s, SPREAD_ROWS, units, r);
        struct span cols = spread_span(m, &s, SPREAD_COLS, units, r);
        for (int32_t i = 0; i < m->axes; i++)
            printf("%d ", m->axis[i].size);
        printf("%d %d ", m->first_fastest, r);
        for (int32_t i = 0; i < m->axes; i++)
            printf("%d ", mesh_coord(m, r, i));
        printf("R");
        print_axes(s.axis[SPREAD_ROWS], s.count[SPREAD_ROWS]);
        printf("C");
        print_axes(s.axis[SPREAD_COLS], s.count[SPREAD_COLS]);
        printf("%d %lld %lld %lld %lld\n", s.partial, (long long)rows.begin, (long long)rows.end,
               (long long)cols.begin, (long long)cols.end);
    }
}

static void visit_spreads(const struct mesh *m, void *arg)
{
    ranks_spreads(m, 0, (struct spread){0}, print_spread, arg);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbering),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_spread_edits),
        cmocka_unit_test(test_groups),
    };
    if (argc == 4 && strcmp(argv[1], "--table") == 0) {
        int64_t units = strtoll(argv[3], NULL, 10);
        ranks_meshes((int32_t)strtol(argv[2], NULL, 10), 16, visit_spreads, &units);
        return 0;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
