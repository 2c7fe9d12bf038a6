/* DESIGN: blocks are copied into a buffer peers can read, two in turn, as everywhere (comm.h, reuse
 * rule); the two broadcasts of a round run on two communicators, so each has its own. Handles over
 * the destinations are made when a weight is opened: a
 * round allocates nothing. */
#include "engine/parallel/moving.h"

#include <stdlib.h>
#include <string.h>

struct lane {
    float *src[2], *dst;
    int32_t turn;
};

struct moving {
    struct groups *g;
    struct backend *b;
    struct moving_sizes sizes;
    struct lane x, w, all; /* input panels, weight blocks, gathered weights */
    float *parts;          /* of summa: products and sums that are not added up yet */
};

struct moving_weight {
    struct backend *b;
    const void *storage;
    int32_t row, col; /* axes; gathered: col = -1 */
    int32_t rounds;
    union {
        size_t block[MOVING_PIECES_MAX]; /* summa: bytes of each round's */
        int32_t part[COMM_RANKS_MAX];    /* gathered: words of each rank's */
    };
    int32_t width[MOVING_PIECES_MAX];     /* inputs of each round */
    struct weight *at[MOVING_PIECES_MAX]; /* over the destinations */
};

static bool take(struct groups *g, struct lane *l, size_t src, size_t dst)
{
    if (src + dst == 0)
        return true;
    for (int32_t k = 0; k < 2; k++)
        l->src[k] = comm_buffer(g->world, src);
    l->dst = comm_buffer(g->world, dst);
    return l->src[0] && l->src[1] && l->dst;
}

static size_t rounded(size_t bytes)
{
    return base_align(bytes, 64);
}

size_t moving_arena_bytes(const struct moving_sizes *s)
{
    return 3 * rounded(s->summa.weight_bytes) + 3 * rounded(4 * s->summa.x) +
           2 * rounded(s->gathered.part_bytes) + rounded(s->gathered.whole_bytes);
}

/* Beside y: of 8 rounds the first four, two more and one are sums when the last product comes. */
size_t moving_local_bytes(const struct moving_sizes *s)
{
    size_t parts = 0;
    for (int32_t n = s->summa.rounds; n > 1; n /= 2)
        parts++;
    return rounded(4 * parts * s->summa.y);
}

enum status moving_open(struct groups *g, struct backend *b, const struct moving_sizes *sizes,
                        struct moving **out, struct err *err)
{
    struct moving *m = calloc(1, sizeof *m);
    if (!m)
        return base_fail(err, ERR_NOMEM, "moving weights: no memory");
    *m = (struct moving){.g = g, .b = b, .sizes = *sizes};
    const size_t bytes = moving_local_bytes(sizes);
    if (bytes > 0)
        m->parts = b->ops->alloc(b, bytes);
    if (bytes > 0 && !m->parts) {
        moving_close(m);
        return base_fail(err, ERR_NOMEM, "moving weights: no memory for %zu bytes", bytes);
    }
    if (!take(g, &m->w, sizes->summa.weight_bytes, sizes->summa.weight_bytes) ||
        !take(g, &m->x, 4 * sizes->summa.x, 4 * sizes->summa.x) ||
        !take(g, &m->all, sizes->gathered.part_bytes, sizes->gathered.whole_bytes)) {
        moving_close(m);
        return base_fail(err, ERR_LIMIT, "moving weights: the communicator's arena is too small");
    }
    *out = m;
    return OK;
}

void moving_close(struct moving *m)
{
    if (!m)
        return;
    if (m->parts)
        m->b->ops->free(m->b, m->parts);
    free(m);
}

static enum status finish_open(struct moving_weight *w, struct moving_weight **out, struct err *err)
{
    for (int32_t t = 0; t < w->rounds; t++) {
        if (!w->at[t]) {
            moving_weight_close(w);
            return base_fail(err, ERR_NOMEM, "moving weights: no memory for a handle");
        }
    }
    *out = w;
    return OK;
}

enum status moving_summa_open(struct moving *m, const void *storage, int32_t row, int32_t col,
                              const struct weight_spec *blocks, struct moving_weight **weight,
                              struct err *err)
{
    const struct mesh *mesh = m->g->mesh;
    const int32_t q = mesh->axis[row].size;
    struct moving_weight *w = calloc(1, sizeof *w);
    if (!w)
        return base_fail(err, ERR_NOMEM, "moving weights: no memory");
    CHECK(q == mesh->axis[col].size);
    CHECK(q <= MOVING_PIECES_MAX);
    *w = (struct moving_weight){.b = m->b, .storage = storage, .row = row, .col = col, .rounds = q};
    for (int32_t t = 0; t < q; t++) {
        w->width[t] = blocks[t].in;
        w->block[t] = m->b->ops->weight_bytes(&blocks[t]);
        CHECK(w->block[t] <= m->sizes.summa.weight_bytes);
        w->at[t] = m->b->ops->weight_open(m->b, &blocks[t], m->w.dst);
    }
    return finish_open(w, weight, err);
}

enum status moving_gathered_open(struct moving *m, const void *storage, int32_t axis,
                                 const struct weight_spec *whole, struct moving_weight **weight,
                                 struct err *err)
{
    const int32_t n = m->g->mesh->axis[axis].size;
    const size_t bytes = m->b->ops->weight_bytes(whole);
    size_t sum = 0;
    struct moving_weight *w = calloc(1, sizeof *w);
    if (!w)
        return base_fail(err, ERR_NOMEM, "moving weights: no memory");
    *w = (struct moving_weight){.b = m->b, .storage = storage, .row = axis, .col = -1, .rounds = 1};
    for (int32_t t = 0; t < n; t++) {
        struct weight_spec part = *whole;
        part.out = (int32_t)span_len(placement_tiles(whole->out, n, t));
        const size_t stored = m->b->ops->weight_bytes(&part);
        CHECK(stored <= m->sizes.gathered.part_bytes);
        w->part[t] = (int32_t)(stored / 4);
        sum += 4 * (size_t)w->part[t];
    }
    CHECK(bytes <= m->sizes.gathered.whole_bytes);
    if (sum != bytes || dtype_is_scaled(whole->dtype)) { /* scales may lie behind all codes */
        moving_weight_close(w);
        return base_fail(err, ERR_USAGE,
                         "weights of type %s cannot be gathered on %s; choose another layout",
                         dtype_name(whole->dtype), m->b->ops->name);
    }
    w->at[0] = m->b->ops->weight_open(m->b, whole, m->all.dst);
    return finish_open(w, weight, err);
}

void moving_weight_close(struct moving_weight *w)
{
    if (!w)
        return;
    for (int32_t t = 0; t < MOVING_PIECES_MAX; t++)
        if (w->at[t])
            w->b->ops->weight_close(w->at[t]);
    free(w);
}

/* Broadcasts n elements of `own` from coordinate `root` of an axis. */
static enum status spread_out(struct moving *m, struct lane *l, int32_t axis, int32_t root,
                              const void *own, size_t n, struct err *err)
{
    struct comm *c = m->g->axis[axis];
    const int32_t t = l->turn ^= 1;
    if (c->rank == root)
        m->b->ops->copy(m->b, l->src[t], n, own, n, 1, (int32_t)n);
    return comm_broadcast(c, l->dst, l->src[t], n, root, err);
}

/* Sums of products, the oldest first: the first is y itself. */
static float *sum_at(const struct moving *m, struct view y, int32_t i)
{
    return i == 0 ? y.data : m->parts + (size_t)(i - 1) * m->sizes.summa.y;
}

/* Adds the last of `count` sums to the one before. */
static int32_t fold(struct moving *m, struct view y, int32_t count)
{
    const float *const both[] = {sum_at(m, y, count - 2), sum_at(m, y, count - 1)};
    m->b->ops->sum_tree(m->b, sum_at(m, y, count - 2), both, 2, (size_t)y.rows * (size_t)y.cols);
    return count - 1;
}

/* Sums of equally many products are added at once, as the carry of a binary counter. */
static enum status summa(struct moving *m, struct view y, struct cview x,
                         const struct moving_weight *w, struct err *err)
{
    enum status st = OK;
    int32_t sums = 0;
    CHECK((size_t)y.rows * (size_t)y.cols <= m->sizes.summa.y);
    CHECK(w->rounds <= m->sizes.summa.rounds);
    for (int32_t t = 0; t < w->rounds; t++) {
        const size_t panel = (size_t)x.rows * (size_t)w->width[t];
        CHECK(panel <= m->sizes.summa.x);
        TRY(spread_out(m, &m->x, w->col, t, x.data, panel, err));
        TRY(spread_out(m, &m->w, w->row, t, w->storage, w->block[t] / 4, err));
        const struct cview in = {m->x.dst, DTYPE_F32, x.rows, w->width[t]};
        TRY(backend_linear(m->b, view_f32(sum_at(m, y, sums++), y.rows, y.cols), in, w->at[t],
                           err));
        for (int32_t n = t + 1; n % 2 == 0; n /= 2)
            sums = fold(m, y, sums);
    }
    while (sums > 1)
        sums = fold(m, y, sums);
out:
    return st;
}

static enum status gathered(struct moving *m, struct view y, struct cview x,
                            const struct moving_weight *w, struct err *err)
{
    enum status st = OK;
    struct comm *c = m->g->axis[w->row];
    const int32_t t = m->all.turn ^= 1, mine = w->part[c->rank];
    m->b->ops->copy(m->b, m->all.src[t], (size_t)mine, w->storage, (size_t)mine, 1, mine);
    TRY(comm_all_gather(c, m->all.dst, m->all.src[t], 1, w->part, err));
    TRY(backend_linear(m->b, y, x, w->at[0], err));
out:
    return st;
}

enum status moving_linear(struct moving *m, struct view y, struct cview x,
                          const struct moving_weight *w, struct err *err)
{
    return w->col < 0 ? gathered(m, y, x, w, err) : summa(m, y, x, w, err);
}
