/* Slicing arithmetic: the split rule, leaf cuts, arena layout, and the proofs against planted
 * mistakes. */
#include "tests/toy_plan.h"
#include "weights/placement.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define RANKS_MAX 8

static const struct toy models[] = {
    {20, 6, 2, 4, 29, 37}, {64, 8, 8, 8, 96, 128},   {33, 3, 1, 2, 7, 5},
    {8, 1, 1, 16, 1, 1},   {40, 12, 4, 6, 101, 259},
};

static void test_block(void **state)
{
    (void)state;
    for (int32_t parts = 1; parts <= 9; parts++) {
        for (int64_t units = 0; units < 60; units++) {
            int64_t at = 0;
            for (int32_t i = 0; i < parts; i++) {
                struct span s = placement_block(units, parts, i);
                assert_int_equal(s.begin, at);
                assert_int_equal(s.end, units * (i + 1) / parts);
                at = s.end;
            }
            assert_int_equal(at, units);
        }
    }
    /* units * parts would wrap */
    assert_int_equal(placement_block(INT64_MAX, 1000, 999).end, INT64_MAX);
    assert_int_equal(placement_block(INT64_MAX, 2, 1).begin, INT64_MAX / 2);
}

/* How often each element of a tensor is held, over all ranks. */
static void count_tensor(const struct synth_tensor *t, struct local_weight plan[][TOY_WEIGHTS],
                         int32_t ranks, unsigned char *held)
{
    int64_t width = t->cols;
    memset(held, 0, (size_t)(t->rows * width));
    for (int32_t r = 0; r < ranks; r++) {
        for (int i = 0; i < TOY_WEIGHTS; i++) {
            if (i == TOY_HEAD) /* the embedding again */
                continue;
            for (int32_t k = 0; k < plan[r][i].slice_count; k++) {
                const struct tensor_slice *s = &plan[r][i].slices[k];
                if (strcmp(s->tensor, t->name) != 0)
                    continue;
                for (int64_t row = s->rows.begin; row < s->rows.end; row++) {
                    for (int64_t col = s->cols.begin; col < s->cols.end; col++)
                        held[row * width + col]++;
                }
            }
        }
    }
}

static void check_model(const struct toy *m, int32_t ranks)
{
    struct local_weight plan[RANKS_MAX][TOY_WEIGHTS], *weights[RANKS_MAX];
    struct synth_tensor tensors[TOY_TENSORS];
    int32_t counts[RANKS_MAX];
    struct err err = {{0}};
    for (int32_t r = 0; r < ranks; r++) {
        toy_plan(m, r, ranks, DTYPE_BF16, plan[r]);
        weights[r] = plan[r];
        counts[r] = TOY_WEIGHTS;
    }
    if (placement_prove(weights, counts, ranks, &err) != OK)
        fail_msg("%d ranks: %s", ranks, err.text);
    toy_tensors(m, tensors);
    for (int i = 0; i < TOY_TENSORS; i++) {
        int64_t n = tensors[i].rows * tensors[i].cols;
        unsigned char *held = malloc((size_t)n);
        assert_non_null(held);
        count_tensor(&tensors[i], plan, ranks, held);
        bool replicated = tensors[i].ndim == 1;
        bool kv = strcmp(tensors[i].name, "l.k.weight") == 0 ||
                  strcmp(tensors[i].name, "l.v.weight") == 0;
        for (int64_t e = 0; e < n; e++) {
            if (kv) /* a KV head lives wherever its query heads do */
                assert_in_range(held[e], 1, ranks);
            else
                assert_int_equal(held[e], replicated ? ranks : 1);
        }
        free(held);
    }
}

static void test_reassemble(void **state)
{
    (void)state;
    for (size_t m = 0; m < ARRAY_LEN(models); m++) {
        for (int32_t ranks = 1; ranks <= RANKS_MAX; ranks++)
            check_model(&models[m], ranks);
    }
}

/* ---- leaves ---- */

/* An order-sensitive stand-in for the sum; 0 is the empty leaf. */
static uint64_t join(uint64_t a, uint64_t b)
{
    uint64_t both[2] = {a, b};
    if (a == 0 || b == 0)
        return a + b;
    return base_hash(BASE_HASH_INIT, both, sizeof both);
}

static uint64_t fold(uint64_t *v, int32_t n)
{
    for (int32_t stride = 1; stride < n; stride *= 2) {
        for (int32_t i = 0; i + stride < n; i += 2 * stride)
            v[i] = join(v[i], v[i + stride]);
    }
    return v[0];
}

/* Folds a rank's leaves, each named by its global columns. */
static uint64_t fold_rank(const struct weight_spec *spec, int64_t first_column)
{
    uint64_t v[BACKEND_LEAVES_MAX];
    for (int32_t i = 0; i < spec->leaves; i++) {
        int64_t range[2] = {first_column + spec->cut[i], first_column + spec->cut[i + 1]};
        v[i] = range[0] == range[1] ? 0 : base_hash(BASE_HASH_INIT, range, sizeof range);
    }
    return fold(v, spec->leaves);
}

static void check_cuts(const struct weight_spec *spec, int64_t in)
{
    assert_true(spec->leaves == 1 || spec->leaves == 2 || spec->leaves == 4 || spec->leaves == 8);
    assert_int_equal(spec->cut[0], 0);
    assert_int_equal(spec->cut[spec->leaves], in);
    for (int32_t i = 0; i < spec->leaves; i++)
        assert_true(spec->cut[i] <= spec->cut[i + 1]);
}

static void test_leaves(void **state)
{
    static const int64_t units[] = {1, 2, 3, 5, 7, 8, 12, 29, 32, 100, 14336};
    (void)state;
    for (size_t u = 0; u < ARRAY_LEN(units); u++) {
        uint64_t whole = 0;
        for (int32_t ranks = 1; ranks <= RANKS_MAX; ranks++) {
            uint64_t parts[RANKS_MAX];
            for (int32_t r = 0; r < ranks; r++) {
                struct weight_spec spec = {0};
                struct span mine = placement_block(units[u], ranks, r);
                placement_leaves(units[u], 3, mine, &spec);
                check_cuts(&spec, 3 * span_len(mine));
                parts[r] = fold_rank(&spec, 3 * mine.begin);
                if (8 % ranks == 0 && units[u] % 8 == 0) /* whole leaves of the global cut */
                    assert_int_equal(spec.leaves, 8 / ranks);
            }
            if (ranks == 1)
                whole = parts[0];
            else if (8 % ranks == 0) /* the ranks' sums are the upper part of the same tree */
                assert_int_equal(fold(parts, ranks), whole);
        }
    }
}

static void test_leaf_ranges(void **state)
{
    (void)state;
    for (int32_t ranks = 1; ranks <= 8; ranks *= 2) {
        for (int32_t leaf = 0; leaf < 8; leaf++) {
            struct span mine = placement_block(29, ranks, leaf / (8 / ranks));
            struct span want = placement_block(29, 8, leaf);
            struct weight_spec spec = {0};
            placement_leaves(29, 1, mine, &spec);
            int32_t i = leaf % (8 / ranks);
            assert_int_equal(mine.begin + spec.cut[i], want.begin);
            assert_int_equal(mine.begin + spec.cut[i + 1], want.end);
        }
    }
}

/* ---- proofs ---- */

static enum status prove(struct local_weight plan[2][TOY_WEIGHTS], struct err *err)
{
    struct local_weight *weights[2] = {plan[0], plan[1]};
    const int32_t counts[2] = {TOY_WEIGHTS, TOY_WEIGHTS};
    return placement_prove(weights, counts, 2, err);
}

static void two_ranks(struct local_weight plan[2][TOY_WEIGHTS])
{
    toy_plan(&models[0], 0, 2, DTYPE_BF16, plan[0]);
    toy_plan(&models[0], 1, 2, DTYPE_BF16, plan[1]);
}

static void refused(struct local_weight plan[2][TOY_WEIGHTS], const char *words)
{
    struct err err = {{0}};
    assert_int_equal(prove(plan, &err), ERR_INTERNAL);
    if (!strstr(err.text, words))
        fail_msg("expected \"%s\" in \"%s\"", words, err.text);
}

static void test_prove(void **state)
{
    struct local_weight plan[2][TOY_WEIGHTS];
    struct err err = {{0}};
    (void)state;
    two_ranks(plan);
    assert_int_equal(prove(plan, &err), OK);

    plan[1][TOY_EMBED].slices[0].rows.begin++; /* a row nobody has ... */
    plan[1][TOY_HEAD].slices[0].rows.begin++;
    plan[1][TOY_EMBED].spec.out--;
    plan[1][TOY_HEAD].spec.out--;
    refused(plan, "tensor embed.weight: rows [18, 19) columns [0, 20) are on no rank");
    two_ranks(plan);
    plan[0][TOY_DOWN].slices[0].cols.end--; /* ... a column */
    plan[0][TOY_DOWN].spec.in--;
    refused(plan, "tensor l.down.weight: rows [0, 20) columns [13, 14) are on no rank");
    two_ranks(plan);
    plan[1][TOY_QKV].slices[1].dst_row++; /* k's last row onto v's first */
    refused(plan, "overlap rows");
    two_ranks(plan);
    plan[1][TOY_EMBED].slices[0].dst_row++; /* ... past the end */
    refused(plan, "rank 1: weight embed: rows [1, 20) of 19");
    two_ranks(plan);
    plan[0][TOY_GATE_UP].spec.out++;
    refused(plan, "rank 0: weight l.gate_up: slices fill 28 of 29 rows");
    two_ranks(plan);
    plan[0][TOY_NORM].slices[0].cols.end--;
    refused(plan, "rank 0: weight l.norm: slices fill 19 of 20");
    two_ranks(plan);
    plan[0][TOY_GATE_UP].spec.in--;
    refused(plan, "20 columns of l.gate.weight, but its width is 19");
    two_ranks(plan);
    plan[1][TOY_HEAD].slices[0].rows.end++;
    plan[1][TOY_HEAD].spec.out++;
    refused(plan, "are outside embed.weight");
    two_ranks(plan);
    plan[1][TOY_HEAD].slices[0].shape[0]++;
    refused(plan, "tensor embed.weight: rank 0 takes it as [37, 20], rank 1 as [38, 20]");
}

static void test_covered(void **state)
{
    const struct placement_box whole = {{0, 10}, {0, 10}};
    struct placement_box gap;
    struct placement_box tiles[] = {{{0, 4}, {0, 6}},
                                    {{4, 10}, {0, 5}},
                                    {{0, 5}, {6, 10}},
                                    {{5, 10}, {5, 10}},
                                    {{4, 5}, {4, 6}}};
    (void)state;
    assert_true(placement_covered(tiles, 5, whole, &gap));
    assert_false(placement_covered(tiles, 4, whole, &gap)); /* the middle is open */
    assert_int_equal(gap.rows.begin, 4);
    assert_int_equal(gap.rows.end, 5);
    assert_int_equal(gap.cols.begin, 5);
    assert_int_equal(gap.cols.end, 6);
    assert_false(placement_covered(tiles, 0, whole, &gap));
    assert_int_equal(span_len(gap.rows) * span_len(gap.cols), 100);
    assert_true(placement_covered(NULL, 0, (struct placement_box){{0, 0}, {0, 10}}, &gap));
    assert_true(placement_covered(NULL, 0, (struct placement_box){{0, 10}, {0, 0}}, &gap));
}

/* ---- arena ---- */

static size_t fake_bytes(const struct weight_spec *spec)
{
    return (size_t)spec->out * (size_t)spec->in * dtype_size(spec->dtype);
}

static size_t huge_bytes(const struct weight_spec *spec)
{
    (void)spec;
    return SIZE_MAX / 3;
}

static void test_layout(void **state)
{
    struct local_weight plan[TOY_WEIGHTS];
    struct backend_ops ops = {.weight_bytes = fake_bytes};
    struct err err = {{0}};
    size_t arena = 0, at = 0;
    (void)state;
    toy_plan(&models[0], 1, 3, DTYPE_BF16, plan);
    assert_int_equal(placement_layout(&ops, plan, TOY_WEIGHTS, &arena, &err), OK);
    for (int i = 0; i < TOY_WEIGHTS; i++) {
        assert_int_equal(plan[i].offset % 64, 0);
        assert_true(plan[i].offset >= at);
        at = plan[i].offset + plan[i].bytes;
    }
    assert_true(arena >= at);
    assert_int_equal(plan[TOY_NORM].bytes, 20 * sizeof(float));
    assert_int_equal(placement_read_bytes(&plan[TOY_NORM], DTYPE_BF16), 40);
    assert_int_equal(placement_read_bytes(&plan[TOY_QKV], DTYPE_BF16), 2 * 20 * (8 + 8 + 8));
    ops.weight_bytes = huge_bytes;
    assert_int_equal(placement_layout(&ops, plan, TOY_WEIGHTS, &arena, &err), ERR_LIMIT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_block),  cmocka_unit_test(test_reassemble),
        cmocka_unit_test(test_leaves), cmocka_unit_test(test_leaf_ranges),
        cmocka_unit_test(test_prove),  cmocka_unit_test(test_covered),
        cmocka_unit_test(test_layout),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
