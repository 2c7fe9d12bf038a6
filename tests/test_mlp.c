/* The example of the layouts' literature: an MLP 256 -> 1024 -> 256 with GELU and biases on a batch
 * of 16, in 1d, 2d, 2.5d and 3d. Local shapes are those the seed programs print. With --table MODE
 * it prints what tests/blackbox/test_layouts.py compares with numpy: the bytes of each rank and the
 * result. */
#include "engine/parallel/moving.h"
#include "engine/parallel/redistribute.h"
#include "tests/ranks.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define BATCH 16
#define HIDDEN 256
#define WIDE 1024
#define ARENA (16 << 20)

enum mode { ONE, TWO, TWO_HALF, THREE, MODES };

/* What the seeds print per rank, [in, out] and [rows, columns]. */
struct shapes {
    int64_t input[2], first[2], second[2], middle[2], output[2];
};

static const struct layout_case {
    const char *name;
    struct mesh mesh;
    struct shapes shapes;
} cases[MODES] = {
    {"1d", {1, false, {{"tp", 2}}}, {{16, 256}, {256, 512}, {512, 256}, {16, 512}, {16, 256}}},
    {"2d",
     {2, false, {{"row", 2}, {"col", 2}}},
     {{8, 128}, {128, 512}, {512, 128}, {8, 512}, {8, 128}}},
    {"2.5d",
     {3, false, {{"dep", 2}, {"row", 2}, {"col", 2}}},
     {{4, 128}, {128, 512}, {512, 128}, {4, 512}, {4, 128}}},
    {"3d",
     {3, true, {{"w", 2}, {"a", 2}, {"b", 2}}},
     {{4, 128}, {128, 256}, {512, 64}, {4, 512}, {4, 128}}},
};

/* In [-1, 1), multiples of 2^-11: the same in numpy. */
static float value(uint32_t tensor, int64_t row, int64_t col)
{
    uint32_t x = tensor * 0x9e3779b1u + (uint32_t)row * 0x85ebca6bu + (uint32_t)col * 0xc2b2ae35u;
    x = (x ^ x >> 15) * 0x2c1b3c6du;
    x ^= x >> 13;
    return (float)((int32_t)(x & 4095u) - 2048) / 2048;
}

enum { X, W1, B1, W2, B2 };

struct run {
    const struct layout_case *c;
    float result[BATCH][HIDDEN];
    uint64_t bytes[COMM_RANKS_MAX];
    struct shapes shapes[COMM_RANKS_MAX];
};

/* One linear of the network on this rank. */
struct dense {
    struct spread weight; /* [outputs, inputs] */
    struct span out, in;
    void *storage;
    struct weight *local;
    struct moving_weight *moving;
    uint32_t tensor, bias;
};

static void fill_dense(struct ranks_member *m, struct dense *d, int64_t out, int64_t in)
{
    struct weight_spec s = {.dtype = DTYPE_F32, .leaves = 1};
    d->out = spread_span(m->mesh, &d->weight, SPREAD_ROWS, out, m->rank);
    d->in = spread_span(m->mesh, &d->weight, SPREAD_COLS, in, m->rank);
    s.out = (int32_t)span_len(d->out);
    s.in = s.cut[1] = (int32_t)span_len(d->in);
    const size_t bytes = base_align(m->backend->ops->weight_bytes(&s), 64);
    float *row = calloc((size_t)s.in, sizeof *row);
    d->storage = aligned_alloc(64, bytes);
    CHECK(row != NULL);
    CHECK(d->storage != NULL);
    memset(d->storage, 0, bytes);
    d->local = m->backend->ops->weight_open(m->backend, &s, d->storage);
    for (int32_t o = 0; o < s.out; o++) {
        for (int32_t i = 0; i < s.in; i++) /* over 16: keeps the GELU in its bend */
            row[i] = value(d->tensor, d->in.begin + i, d->out.begin + o) / 16;
        m->backend->ops->weight_put(d->local, o, 1, row, DTYPE_F32, (size_t)s.in * sizeof *row);
    }
    free(row);
}

static void free_dense(struct ranks_member *m, struct dense *d)
{
    moving_weight_close(d->moving);
    m->backend->ops->weight_close(d->local);
    free(d->storage);
}

static void add_bias(struct view y, uint32_t tensor, int64_t first, bool gelu)
{
    float *at = y.data;
    for (int32_t r = 0; r < y.rows; r++) {
        for (int32_t c = 0; c < y.cols; c++, at++) {
            *at += value(tensor, 0, first + c);
            if (gelu)
                *at = *at * 0.5f * (1 + erff(*at * 0.70710678f));
        }
    }
}

static void keep_shape(int64_t kept[2], int64_t rows, int64_t cols)
{
    kept[0] = rows;
    kept[1] = cols;
}

/* ---- the layouts ---- */

struct network {
    struct dense first, second;
    struct spread x, middle, y; /* activations at rest */
};

static struct spread of(int32_t rows, const int32_t *row_axes, int32_t cols,
                        const int32_t *col_axes)
{
    struct spread s = {0};
    for (int32_t i = 0; i < rows; i++)
        s = spread_shard(s, SPREAD_ROWS, row_axes[i]);
    for (int32_t i = 0; i < cols; i++)
        s = spread_shard(s, SPREAD_COLS, col_axes[i]);
    return s;
}
#define AXES(...) (int32_t)(sizeof((int32_t[]){__VA_ARGS__}) / 4), ((int32_t[]){__VA_ARGS__})
#define NONE 0, NULL

static struct network network_of(enum mode mode)
{
    struct network n = {.first = {.tensor = W1, .bias = B1}, .second = {.tensor = W2, .bias = B2}};
    if (mode == ONE) {
        n.first.weight = of(AXES(0), NONE);
        n.second.weight = of(NONE, AXES(0));
        n.middle = of(NONE, AXES(0));
    } else if (mode == THREE) { /* A(l,j,i): in-block l, out-block (j, then i) */
        n.first.weight = of(AXES(1, 0), AXES(2));
        n.second.weight = of(AXES(2, 0), AXES(1));
        n.x = n.y = of(AXES(0, 1), AXES(2));
        n.middle = of(AXES(0, 2), AXES(1));
    } else {
        const int32_t row = mode == TWO ? 0 : 1, col = row + 1;
        n.first.weight = n.second.weight = of(AXES(col), AXES(row));
        n.x = mode == TWO ? of(AXES(row), AXES(col)) : of(AXES(0, row), AXES(col));
        n.middle = n.y = n.x;
    }
    return n;
}

struct tools {
    struct redistribute *redistribute;
    struct moving *moving;
};

static struct matrix activations(int64_t cols)
{
    return (struct matrix){{{.units = BATCH, .unit = 1}, {.units = cols, .unit = 1}}};
}

/* 1d: the local product; the second one's partial outputs are summed. 3d: inputs gathered over the
 * one axis, weights over w, outputs reduce-scattered over the other. */
static enum status by_product(struct ranks_member *m, struct tools *t, enum mode mode,
                              const struct dense *d, struct spread from, struct spread to,
                              struct cview x, int64_t in, int64_t out, struct view y,
                              struct err *err)
{
    enum status st = OK;
    const struct matrix xs = activations(in), ys = activations(out);
    struct route gather, resolve;
    struct spread uses = from, made;
    const float *got;
    if (mode == THREE) /* the innermost row axis is the one whose rows are gathered */
        uses = spread_copy(from, from.axis[SPREAD_ROWS][1]);
    made = uses;
    for (int32_t i = 0; i < d->weight.count[SPREAD_COLS]; i++)
        made = spread_partial(spread_copy(made, d->weight.axis[SPREAD_COLS][i]),
                              d->weight.axis[SPREAD_COLS][i]);
    if (d->weight.count[SPREAD_ROWS] > 0)
        made = spread_shard(made, SPREAD_COLS, d->weight.axis[SPREAD_ROWS][0]);
    TRY(redistribute_route(m->mesh, &xs, from, uses, &gather, err));
    TRY(redistribute_route(m->mesh, &ys, made, to, &resolve, err));
    TRY(redistribute_run(t->redistribute, &xs, &gather, x.data, &got, err));
    const int32_t rows =
        (int32_t)span_len(spread_span(m->mesh, &made, SPREAD_ROWS, BATCH, m->rank));
    const int32_t cols = (int32_t)span_len(spread_span(m->mesh, &made, SPREAD_COLS, out, m->rank));
    float elsewhere[BATCH * WIDE], *source = redistribute_source(t->redistribute, &resolve);
    struct view product = view_f32(source ? source : elsewhere, rows, cols);
    const struct cview input = {got, DTYPE_F32, rows, x.cols};
    if (d->moving)
        TRY(moving_linear(t->moving, product, input, d->moving, err));
    else
        TRY(backend_linear(m->backend, product, input, d->local, err));
    TRY(redistribute_run(t->redistribute, &ys, &resolve, product.data, &got, err));
    memcpy(y.data, got, (size_t)y.rows * (size_t)y.cols * sizeof(float));
out:
    return st;
}

static enum status dense_forward(struct ranks_member *m, struct tools *t, enum mode mode,
                                 const struct dense *d, struct spread from, struct spread to,
                                 struct cview x, int64_t in, int64_t out, struct view y,
                                 struct err *err)
{
    enum status st = mode == TWO || mode == TWO_HALF
                         ? moving_linear(t->moving, y, x, d->moving, err)
                         : by_product(m, t, mode, d, from, to, x, in, out, y, err);
    if (st == OK) /* once, after the sum */
        add_bias(y, d->bias, spread_span(m->mesh, &to, SPREAD_COLS, out, m->rank).begin,
                 d->tensor == W1);
    return st;
}

static enum status open_moving(struct tools *t, enum mode mode, struct dense *d, int64_t in,
                               struct err *err)
{
    const int32_t row = mode == TWO ? 0 : 1;
    if (mode == THREE) {
        struct weight_spec whole = {.out = 2 * (int32_t)span_len(d->out),
                                    .in = (int32_t)span_len(d->in),
                                    .leaves = 1,
                                    .dtype = DTYPE_F32};
        whole.cut[1] = whole.in;
        return moving_gathered_open(t->moving, d->storage, 0, &whole, &d->moving, err);
    }
    struct weight_spec block = {
        .out = (int32_t)span_len(d->out), .in = (int32_t)(in / 2), .leaves = 1, .dtype = DTYPE_F32};
    block.cut[1] = block.in;
    const struct weight_spec blocks[] = {block, block};
    return moving_summa_open(t->moving, d->storage, row, row + 1, blocks, &d->moving, err);
}

static void note(struct ranks_member *m, const struct network *n, const struct view act[3])
{
    struct run *run = m->arg;
    struct shapes *s = &run->shapes[m->rank];
    keep_shape(s->input, act[0].rows, act[0].cols);
    keep_shape(s->first, span_len(n->first.in), span_len(n->first.out));
    keep_shape(s->second, span_len(n->second.in), span_len(n->second.out));
    keep_shape(s->middle, act[1].rows, act[1].cols);
    keep_shape(s->output, act[2].rows, act[2].cols);
    const struct span rows = spread_span(m->mesh, &n->y, SPREAD_ROWS, BATCH, m->rank);
    const struct span cols = spread_span(m->mesh, &n->y, SPREAD_COLS, HIDDEN, m->rank);
    const float *at = act[2].data;
    bool first = true; /* of those that hold the same: 1d */
    for (int32_t axis = 0; axis < m->mesh->axes; axis++)
        first = first && (m->mesh->axes > 1 || m->rank == 0);
    for (int64_t r = rows.begin; first && r < rows.end; r++, at += span_len(cols))
        memcpy(&run->result[r][cols.begin], at, (size_t)span_len(cols) * sizeof *at);
}

static struct view local(struct ranks_member *m, const struct spread *s, int64_t cols)
{
    const int32_t r = (int32_t)span_len(spread_span(m->mesh, s, SPREAD_ROWS, BATCH, m->rank));
    const int32_t c = (int32_t)span_len(spread_span(m->mesh, s, SPREAD_COLS, cols, m->rank));
    float *data = calloc((size_t)r * (size_t)c, sizeof *data);
    CHECK(data != NULL);
    return view_f32(data, r, c);
}

static enum status forward(struct ranks_member *m, struct err *err)
{
    enum status st = OK;
    struct run *run = m->arg;
    const enum mode mode = (enum mode)(run->c - cases);
    const struct redistribute_sizes sizes = {
        {{BATCH * WIDE, BATCH * WIDE}, {BATCH * WIDE, BATCH * WIDE}, {BATCH * WIDE, BATCH * WIDE}},
        BATCH * WIDE,
        BATCH * WIDE};
    const struct moving_sizes moving = {
        {HIDDEN * WIDE, BATCH * WIDE, BATCH * WIDE, MOVING_PIECES_MAX},
        {HIDDEN * WIDE, 2 * HIDDEN * WIDE}};
    struct network n = network_of(mode);
    struct tools t = {0};
    struct view act[3] = {local(m, &n.x, HIDDEN), local(m, &n.middle, WIDE),
                          local(m, &n.y, HIDDEN)};
    fill_dense(m, &n.first, WIDE, HIDDEN);
    fill_dense(m, &n.second, HIDDEN, WIDE);
    TRY(redistribute_open(&m->groups, m->backend, &sizes, &t.redistribute, err));
    TRY(moving_open(&m->groups, m->backend, &moving, &t.moving, err));
    if (mode != ONE) {
        TRY(open_moving(&t, mode, &n.first, HIDDEN, err));
        TRY(open_moving(&t, mode, &n.second, WIDE, err));
    }
    const struct span rows = spread_span(m->mesh, &n.x, SPREAD_ROWS, BATCH, m->rank);
    const struct span cols = spread_span(m->mesh, &n.x, SPREAD_COLS, HIDDEN, m->rank);
    float *at = act[0].data;
    for (int64_t r = rows.begin; r < rows.end; r++)
        for (int64_t c = cols.begin; c < cols.end; c++)
            *at++ = value(X, r, c);
    TRY(dense_forward(m, &t, mode, &n.first, n.x, n.middle, cview_of(act[0]), HIDDEN, WIDE, act[1],
                      err));
    TRY(dense_forward(m, &t, mode, &n.second, n.middle, n.y, cview_of(act[1]), WIDE, HIDDEN, act[2],
                      err));
    run->bytes[m->rank] = ranks_bytes_all(m);
    note(m, &n, act);
out:
    free_dense(m, &n.first);
    free_dense(m, &n.second);
    redistribute_close(t.redistribute);
    moving_close(t.moving);
    for (int i = 0; i < 3; i++)
        free(act[i].data);
    return st;
}

static bool run_mode(enum mode mode, struct run *run)
{
    struct ranks_member members[COMM_RANKS_MAX];
    memset(run, 0, sizeof *run);
    run->c = &cases[mode];
    return ranks_run(&run->c->mesh, ARENA, forward, run, members);
}

/* ---- tests ---- */

static void test_shapes(void **state)
{
    (void)state;
    static struct run run;
    for (int mode = 0; mode < MODES; mode++) {
        assert_true(run_mode((enum mode)mode, &run));
        for (int32_t r = 0; r < mesh_ranks(&run.c->mesh); r++)
            assert_memory_equal(&run.shapes[r], &run.c->shapes, sizeof run.c->shapes);
    }
}

/* All layouts compute the same network, up to the order of additions. */
static void test_modes_agree(void **state)
{
    (void)state;
    static struct run one, other;
    assert_true(run_mode(ONE, &one));
    for (int mode = TWO; mode < MODES; mode++) {
        double worst = 0, size = 0;
        assert_true(run_mode((enum mode)mode, &other));
        for (int r = 0; r < BATCH; r++) {
            for (int c = 0; c < HIDDEN; c++) {
                const double is = (double)one.result[r][c], was = (double)other.result[r][c];
                worst = fabs(is - was) > worst ? fabs(is - was) : worst;
                size = fabs(is) > size ? fabs(is) : size;
            }
        }
        assert_true(size > 0.5);
        assert_true(worst < 1e-5);
    }
}

static int print_run(const char *mode)
{
    static struct run run;
    for (int i = 0; i < MODES; i++) {
        if (strcmp(cases[i].name, mode) != 0 || !run_mode((enum mode)i, &run))
            continue;
        for (int32_t r = 0; r < mesh_ranks(&run.c->mesh); r++)
            printf("%llu ", (unsigned long long)run.bytes[r]);
        printf("\n");
        for (int r = 0; r < BATCH; r++) {
            for (int c = 0; c < HIDDEN; c++)
                printf("%.9g ", (double)run.result[r][c]);
            printf("\n");
        }
        return 0;
    }
    return 1;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_shapes),
                                       cmocka_unit_test(test_modes_agree)};
    if (argc == 3 && strcmp(argv[1], "--table") == 0)
        return print_run(argv[2]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
