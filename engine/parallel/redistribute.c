/* DESIGN: a move has its source in a buffer peers can read, meets, and leaves the result in a
 * second one, where the next move takes it. Each axis has two sources in turn, because peers may
 * still read the previous one (comm.h, reuse rule); so it is with sums, while all other results are
 * read here alone and share one buffer. A producer may write the first source itself;
 * else it is copied there. Blocks travel contiguous: columns are packed before they are sent, and
 * laid side by side after. */
#include "engine/parallel/redistribute.h"

#include <stdlib.h>
#include <string.h>

enum { WORLD = MESH_AXES_MAX, PLACES };

struct place {
    float *src[2], *sum[2];
    int32_t turn; /* of the last move */
};

struct redistribute {
    struct groups *g;
    struct backend *b;
    struct redistribute_sizes sizes;
    struct place place[PLACES]; /* per axis, then all ranks */
    float *result;              /* of a move that is no sum */
    float *local[2];            /* results of moves that meet nobody */
};

size_t redistribute_arena_bytes(const struct redistribute_sizes *sizes)
{
    size_t bytes = base_align(sizes->result * sizeof(float), 64);
    for (int32_t i = 0; i < PLACES; i++)
        bytes += 2 * (base_align(sizes->place[i].src * sizeof(float), 64) +
                      base_align(sizes->place[i].sum * sizeof(float), 64));
    return bytes;
}

/* NULL for no elements, too. */
static bool take(struct redistribute *r, size_t elements, float **out)
{
    *out = elements > 0 ? comm_buffer(r->g->world, elements * sizeof(float)) : NULL;
    return *out || elements == 0;
}

static bool take_places(struct redistribute *r)
{
    bool all = take(r, r->sizes.result, &r->result);
    for (int32_t i = 0; i < 2 * PLACES; i++) {
        struct place *p = &r->place[i / 2];
        all = all && take(r, r->sizes.place[i / 2].src, &p->src[i % 2]);
        all = all && take(r, r->sizes.place[i / 2].sum, &p->sum[i % 2]);
    }
    return all;
}

enum status redistribute_open(struct groups *g, struct backend *b,
                              const struct redistribute_sizes *sizes, struct redistribute **out,
                              struct err *err)
{
    const size_t bytes = base_align(sizes->local * sizeof(float) + 1, 64);
    struct redistribute *r = calloc(1, sizeof *r);
    if (!r)
        return base_fail(err, ERR_NOMEM, "redistribute: no memory");
    *r = (struct redistribute){.g = g, .b = b, .sizes = *sizes};
    r->local[0] = b->ops->alloc(b, bytes);
    r->local[1] = b->ops->alloc(b, bytes);
    if (!r->local[0] || !r->local[1]) {
        redistribute_close(r);
        return base_fail(err, ERR_NOMEM, "redistribute: no memory for 2 x %zu bytes", bytes);
    }
    if (!take_places(r)) {
        redistribute_close(r);
        return base_fail(err, ERR_LIMIT, "redistribute: the communicator's arena is too small");
    }
    *out = r;
    return OK;
}

void redistribute_close(struct redistribute *r)
{
    if (!r)
        return;
    for (int32_t i = 0; i < 2; i++)
        if (r->local[i])
            r->b->ops->free(r->b, r->local[i]);
    free(r);
}

/* ---- shapes ---- */

static struct span held_of_cut(const struct mesh *m, const struct extent *e, const struct spread *s,
                               int32_t dim, int32_t rank)
{
    struct spread outer = *s;
    while (e->pieces % spread_pieces(m, &outer, dim) != 0)
        outer.count[dim]--;
    const int32_t n = spread_pieces(m, &outer, dim), first = spread_index(m, &outer, dim, rank);
    const int64_t begin = e->cut[e->pieces / n * first], end = e->cut[e->pieces / n * (first + 1)];
    const int32_t inner = spread_pieces(m, s, dim) / n;
    const struct span part =
        placement_block(end - begin, inner, spread_index(m, s, dim, rank) % inner);
    return (struct span){begin + part.begin, begin + part.end};
}

struct span redistribute_held(const struct mesh *m, const struct matrix *x, const struct spread *s,
                              int32_t dim, int32_t rank)
{
    const struct extent *e = &x->dim[dim];
    if (e->cut)
        return held_of_cut(m, e, s, dim, rank);
    const struct span units = spread_span(m, s, dim, e->units, rank);
    return (struct span){units.begin * e->unit, units.end * e->unit};
}

static int64_t length(const struct mesh *m, const struct matrix *x, const struct spread *s,
                      int32_t dim, int32_t rank)
{
    return span_len(redistribute_held(m, x, s, dim, rank));
}

static int64_t area(const struct mesh *m, const struct matrix *x, const struct spread *s,
                    int32_t rank)
{
    return length(m, x, s, SPREAD_ROWS, rank) * length(m, x, s, SPREAD_COLS, rank);
}

/* The rank whose part this rank takes over when two axes change places. */
static int32_t opposite(const struct mesh *m, const struct move *v, int32_t rank)
{
    const int32_t a = mesh_coord(m, rank, v->axis), b = mesh_coord(m, rank, v->other);
    return mesh_peer(m, mesh_peer(m, rank, v->axis, b), v->other, a);
}

int64_t redistribute_received(const struct mesh *m, const struct matrix *x, const struct move *v,
                              int32_t rank)
{
    const int32_t n = m->axis[v->axis].size, coord = mesh_coord(m, rank, v->axis);
    const struct spread *before = &v->before, *after = &v->after;
    switch (v->kind) {
    case MOVE_REDUCE:
        return (int64_t)(comm_all_reduce_bytes(n, coord, (size_t)area(m, x, before, rank)) /
                         sizeof(float));
    case MOVE_SCATTER:
        return (n - 1) * area(m, x, after, rank);
    case MOVE_GATHER:
        return area(m, x, after, rank) - area(m, x, before, rank);
    case MOVE_TURN: /* all but the block that stays */
        return area(m, x, after, rank) -
               length(m, x, after, v->to, rank) * length(m, x, before, v->from, rank);
    case MOVE_SWAP:
        return opposite(m, v, rank) == rank ? 0 : area(m, x, after, rank);
    case MOVE_SLICE:
    case MOVE_CLAIM:
        break;
    }
    return 0;
}

static int32_t place_of(const struct move *v)
{
    return v->kind == MOVE_SWAP ? (int32_t)WORLD : v->axis;
}

/* Elements of a dimension that the rank holds which holds most. */
static int64_t longest(const struct mesh *m, const struct matrix *x, const struct spread *s,
                       int32_t dim)
{
    const struct extent *e = &x->dim[dim];
    const int32_t n = spread_pieces(m, s, dim);
    int64_t most = 0;
    if (!e->cut)
        return (e->units + n - 1) / n * e->unit;
    for (int32_t rank = 0; rank < mesh_ranks(m); rank++)
        most = length(m, x, s, dim, rank) > most ? length(m, x, s, dim, rank) : most;
    return most;
}

/* Of the largest part: other axes split rows than columns, so some rank has the longest of both. */
static int64_t largest(const struct mesh *m, const struct matrix *x, const struct spread *s)
{
    return longest(m, x, s, SPREAD_ROWS) * longest(m, x, s, SPREAD_COLS);
}

static void raise(size_t *size, int64_t to)
{
    *size = *size < (size_t)to ? (size_t)to : *size;
}

void redistribute_measure(const struct mesh *m, const struct matrix *x, const struct route *route,
                          struct redistribute_sizes *sizes)
{
    for (int32_t i = 0; i < route->count; i++) {
        const struct move *v = &route->move[i];
        const int64_t before = largest(m, x, &v->before), after = largest(m, x, &v->after);
        const bool stays = v->kind == MOVE_SLICE || v->kind == MOVE_CLAIM;
        if (!stays) {
            raise(&sizes->place[place_of(v)].src, before);
            raise(v->kind == MOVE_REDUCE ? &sizes->place[place_of(v)].sum : &sizes->result, after);
        }
        if (stays || v->kind == MOVE_TURN)
            raise(&sizes->local, after);
    }
}

/* ---- moves ---- */

/* One move on one rank: the parts before and after, as [rows, cols]. */
struct job {
    struct redistribute *r;
    const struct matrix *x;
    const struct move *v;
    struct comm *c;
    struct place *p;
    int64_t rows, cols;         /* before */
    int64_t rows_out, cols_out; /* after */
};

static void copy(struct redistribute *r, float *dst, int64_t dst_stride, const float *src,
                 int64_t src_stride, int64_t rows, int64_t cols)
{
    if (rows > 0 && cols > 0)
        r->b->ops->copy(r->b, dst, (size_t)dst_stride, src, (size_t)src_stride, (int32_t)rows,
                        (int32_t)cols);
}

/* The rank that member `i` of the axis is. */
static int32_t member(const struct job *j, int32_t i)
{
    return mesh_peer(j->r->g->mesh, j->r->g->rank, j->v->axis, i);
}

/* Elements of a dimension that member i holds under a spread. */
static int64_t part(const struct job *j, const struct spread *s, int32_t dim, int32_t i)
{
    return length(j->r->g->mesh, j->x, s, dim, member(j, i));
}

/* Whether the collective reads its source as the producer wrote it. */
static bool reads_in_place(const struct move *v)
{
    const bool cuts = v->kind == MOVE_SCATTER || v->kind == MOVE_TURN;
    return v->kind != MOVE_SLICE && v->kind != MOVE_CLAIM && !(cuts && v->to == SPREAD_COLS);
}

/* src[rows, cols] to blocks of columns, one after another, as members hold them afterwards. */
static void pack_cols(const struct job *j, float *dst, const float *src)
{
    for (int32_t i = 0; i < j->c->ranks; i++) {
        const int64_t width = part(j, &j->v->after, SPREAD_COLS, i);
        copy(j->r, dst, width, src, j->cols, j->rows, width);
        dst += j->rows * width;
        src += width;
    }
}

static void pack(const struct job *j, float *dst, const float *src)
{
    if (reads_in_place(j->v))
        copy(j->r, dst, j->rows * j->cols, src, j->rows * j->cols, 1, j->rows * j->cols);
    else
        pack_cols(j, dst, src);
}

static enum status gather(const struct job *j, const float **at, float *dst, const float *src,
                          struct err *err)
{
    int32_t widths[COMM_RANKS_MAX];
    const bool side_by_side = j->v->from == SPREAD_COLS;
    for (int32_t i = 0; i < j->c->ranks; i++)
        widths[i] = (int32_t)(part(j, &j->v->before, j->v->from, i) * (side_by_side ? 1 : j->cols));
    *at = dst;
    return comm_all_gather(j->c, dst, src, side_by_side ? (int32_t)j->rows : 1, widths, err);
}

static enum status scatter(const struct job *j, const float **at, float *dst, const float *src,
                           struct err *err)
{
    size_t counts[COMM_RANKS_MAX];
    const int64_t across = j->v->to == SPREAD_COLS ? j->rows : j->cols;
    for (int32_t i = 0; i < j->c->ranks; i++)
        counts[i] = (size_t)(part(j, &j->v->after, j->v->to, i) * across);
    *at = dst;
    return comm_reduce_scatter(j->c, dst, src, counts, err);
}

static enum status turn(const struct job *j, const float **at, float *dst, const float *src,
                        struct err *err)
{
    enum status st = OK;
    size_t sent[COMM_RANKS_MAX], received[COMM_RANKS_MAX];
    const int64_t mine = j->v->from == SPREAD_ROWS ? j->rows : j->cols;
    const int64_t kept = j->v->to == SPREAD_ROWS ? j->rows_out : j->cols_out;
    for (int32_t i = 0; i < j->c->ranks; i++) {
        sent[i] = (size_t)(mine * part(j, &j->v->after, j->v->to, i));
        received[i] = (size_t)(part(j, &j->v->before, j->v->from, i) * kept);
    }
    TRY(comm_all_to_all(j->c, dst, received, src, sent, err));
    *at = dst;
    if (j->v->from == SPREAD_COLS) { /* blocks of columns, to be laid side by side */
        float *whole = j->r->local[0], *next = whole;
        for (int32_t i = 0; i < j->c->ranks; i++) {
            const int64_t width = part(j, &j->v->before, SPREAD_COLS, i);
            copy(j->r, next, j->cols_out, dst, width, j->rows_out, width);
            dst += j->rows_out * width;
            next += width;
        }
        *at = whole;
    }
out:
    return st;
}

static enum status swap(const struct job *j, const float **at, float *dst, const float *src,
                        struct err *err)
{
    size_t sent[COMM_RANKS_MAX] = {0}, received[COMM_RANKS_MAX] = {0};
    const int32_t peer = opposite(j->r->g->mesh, j->v, j->r->g->rank);
    sent[peer] = (size_t)(j->rows * j->cols);
    received[peer] = (size_t)(j->rows_out * j->cols_out);
    *at = dst;
    return comm_all_to_all(j->c, dst, received, src, sent, err);
}

/* Moves that meet nobody read src where it is. */
static void stay(const struct job *j, const float **at, const float *src)
{
    const struct mesh *m = j->r->g->mesh;
    float *dst = j->r->local[src == j->r->local[0]];
    if (j->v->kind == MOVE_CLAIM) {
        const bool mine = mesh_coord(m, j->r->g->rank, j->v->axis) == 0;
        copy(j->r, dst, j->cols, mine ? src : NULL, j->cols, j->rows, j->cols);
    } else {
        const int32_t dim = j->v->to;
        const int64_t skip = redistribute_held(m, j->x, &j->v->after, dim, j->r->g->rank).begin -
                             redistribute_held(m, j->x, &j->v->before, dim, j->r->g->rank).begin;
        copy(j->r, dst, j->cols_out, src + (dim == SPREAD_ROWS ? skip * j->cols : skip), j->cols,
             j->rows_out, j->cols_out);
    }
    *at = dst;
}

/* Whether a part, or rows of it, lies where peers read it. */
static bool lies_in(const float *at, const float *buffer, size_t elements)
{
    const uintptr_t x = (uintptr_t)at, first = (uintptr_t)buffer;
    return x >= first && x < first + elements * sizeof(float);
}

/* The next turn begins: the part, where peers read it. */
static const float *show(const struct job *j, const float *src)
{
    float *own = j->p->src[j->p->turn ^= 1];
    if (reads_in_place(j->v) && lies_in(src, own, j->r->sizes.place[place_of(j->v)].src))
        return src;
    pack(j, own, src);
    return own;
}

static enum status meet(const struct job *j, const float **at, struct err *err)
{
    const float *src = show(j, *at);
    float *dst = j->v->kind == MOVE_REDUCE ? j->p->sum[j->p->turn] : j->r->result;
    switch (j->v->kind) {
    case MOVE_GATHER:
        return gather(j, at, dst, src, err);
    case MOVE_SCATTER:
        return scatter(j, at, dst, src, err);
    case MOVE_TURN:
        return turn(j, at, dst, src, err);
    case MOVE_SWAP:
        return swap(j, at, dst, src, err);
    case MOVE_REDUCE:
    case MOVE_SLICE:
    case MOVE_CLAIM:
        break;
    }
    *at = dst;
    return comm_all_reduce(j->c, dst, src, (size_t)(j->rows * j->cols), err);
}

float *redistribute_source(struct redistribute *r, const struct route *route)
{
    if (route->count == 0 || !reads_in_place(&route->move[0]))
        return NULL;
    const struct place *p = &r->place[place_of(&route->move[0])];
    return p->src[p->turn ^ 1];
}

static bool fits(const struct redistribute *r, const struct job *j)
{
    const size_t before = (size_t)(j->rows * j->cols), after = (size_t)(j->rows_out * j->cols_out);
    const bool stays = j->v->kind == MOVE_SLICE || j->v->kind == MOVE_CLAIM;
    if ((stays || j->v->kind == MOVE_TURN) && after > r->sizes.local)
        return false;
    const size_t room =
        j->v->kind == MOVE_REDUCE ? r->sizes.place[place_of(j->v)].sum : r->sizes.result;
    return stays || (before <= r->sizes.place[place_of(j->v)].src && after <= room);
}

static enum status job_of(struct redistribute *r, const struct matrix *x, const struct move *v,
                          struct job *out, struct err *err)
{
    const struct mesh *m = r->g->mesh;
    *out = (struct job){
        .r = r,
        .x = x,
        .v = v,
        .c = v->kind == MOVE_SWAP ? r->g->world : r->g->axis[v->axis],
        .p = &r->place[place_of(v)],
        .rows = length(m, x, &v->before, SPREAD_ROWS, r->g->rank),
        .cols = length(m, x, &v->before, SPREAD_COLS, r->g->rank),
        .rows_out = length(m, x, &v->after, SPREAD_ROWS, r->g->rank),
        .cols_out = length(m, x, &v->after, SPREAD_COLS, r->g->rank),
    };
    if (!fits(r, out))
        return base_fail(err, ERR_INTERNAL, "redistribute: a part of %lld x %lld is too large",
                         (long long)out->rows, (long long)out->cols);
    return OK;
}

bool redistribute_has_norm(const struct redistribute *r, const struct matrix *x,
                           const struct route *route)
{
    const struct mesh *m = r->g->mesh;
    const struct move *v = &route->move[0];
    if (route->count != 1 || v->kind != MOVE_REDUCE)
        return false;
    return comm_has_norm(r->g->axis[v->axis],
                         (int32_t)length(m, x, &v->before, SPREAD_ROWS, r->g->rank),
                         (int32_t)length(m, x, &v->before, SPREAD_COLS, r->g->rank));
}

enum status redistribute_run_norm(struct redistribute *r, const struct matrix *x,
                                  const struct route *route, const float *src,
                                  const struct add_norm *to, struct err *err)
{
    enum status st = OK;
    struct job j;
    TRY(job_of(r, x, &route->move[0], &j, err));
    TRY(comm_all_reduce_norm(j.c, to, show(&j, src), err));
out:
    return st;
}

enum status redistribute_run(struct redistribute *r, const struct matrix *x,
                             const struct route *route, const float *src, const float **result,
                             struct err *err)
{
    enum status st = OK;
    const float *at = src;
    for (int32_t i = 0; i < route->count; i++) {
        const struct move *v = &route->move[i];
        struct job j;
        TRY(job_of(r, x, v, &j, err));
        if (v->kind == MOVE_SLICE || v->kind == MOVE_CLAIM)
            stay(&j, &at, at);
        else
            TRY(meet(&j, &at, err));
    }
    *result = at;
out:
    return st;
}
