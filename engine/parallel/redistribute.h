/* Redistribute: moves a matrix from one spread over the mesh to another, each move by the
 * collective that carries the least: partial -> copy    all-reduce            shard -> copy
 * all-gather partial -> shard   reduce-scatter        shard -> shard    all-to-all copy -> shard a
 * local slice         copy -> partial   kept by coordinate 0, zeros elsewhere two sharding axes
 * change places          a permutation (an all-to-all over all ranks) The moves of a transition are
 * the cheapest sequence, found on numbers every rank knows; uneven and empty blocks take part.
 * shard -> partial is refused: a part would count as an addend. */
#ifndef TESSERA_ENGINE_PARALLEL_REDISTRIBUTE_H
#define TESSERA_ENGINE_PARALLEL_REDISTRIBUTE_H

#include "engine/parallel/groups.h"
#include "engine/parallel/spread.h"

/* A dimension: so many units (rows, heads, columns) of `unit` elements each; units are not cut. */
struct extent {
    int64_t units;
    int32_t unit;
};

struct matrix {
    struct extent dim[SPREAD_DIMS]; /* of the whole matrix, the same on every rank */
};

enum move_kind {
    MOVE_REDUCE,  /* partial -> copy */
    MOVE_SCATTER, /* partial -> shard(to) */
    MOVE_GATHER,  /* shard(from) -> copy */
    MOVE_TURN,    /* shard(from) -> shard(to) */
    MOVE_SLICE,   /* copy -> shard(to) */
    MOVE_CLAIM,   /* copy -> partial */
    MOVE_SWAP,    /* axes `axis` and `other` change places */
};

struct move {
    enum move_kind kind;
    int32_t axis, other;
    int32_t from, to;            /* dimensions */
    struct spread before, after; /* of the matrix */
};

#define REDISTRIBUTE_MOVES_MAX 12

struct route {
    struct spread from, to;
    int32_t count;
    struct move move[REDISTRIBUTE_MOVES_MAX];
};

/* Pure. ERR_USAGE names the axis when a shard would have to become an addend. */
enum status redistribute_route(const struct mesh *m, const struct matrix *x, struct spread from,
                               struct spread to, struct route *out, struct err *err) MUST_USE;
/* "all-reduce(b)", "all-to-all(row: rows to cols)"; returns buf. */
#define REDISTRIBUTE_TEXT_MAX 96
const char *redistribute_text(const struct mesh *m, const struct move *v,
                              char buf[REDISTRIBUTE_TEXT_MAX]);
/* Elements a rank receives in one move. */
int64_t redistribute_received(const struct mesh *m, const struct matrix *x, const struct move *v,
                              int32_t rank);

struct redistribute;

/* Communicator arena it takes on a mesh of these axes for matrices of up to `elements` locally. */
size_t redistribute_arena_bytes(const struct mesh *m, size_t elements);
/* g and b are borrowed. One thread (the rank's) calls. ERR_LIMIT: the arena is too small. */
enum status redistribute_open(struct groups *g, struct backend *b, size_t elements,
                              struct redistribute **out, struct err *err) MUST_USE;
void redistribute_close(struct redistribute *r);

/* dst and src: contiguous local parts, any memory, dst != src. Collective over the axes the route
 * names; all ranks pass the same route and matrix. Allocates nothing. ERR_INTERNAL when a part on
 * the way is larger than `elements`. */
enum status redistribute_run(struct redistribute *r, float *dst, const float *src,
                             const struct matrix *x, const struct route *route,
                             struct err *err) MUST_USE;

#endif
