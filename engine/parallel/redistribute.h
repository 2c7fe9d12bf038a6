/* Redistribute: moves a matrix from one spread over the mesh to another, each move by the
 * collective that carries the least:
 *   - partial to copy: all-reduce; partial to shard: reduce-scatter
 *   - shard to copy: all-gather; shard to the other shard: all-to-all
 *   - copy to shard: a local slice; copy to partial: kept by coordinate 0, zeros elsewhere
 *   - two sharding axes change places: a permutation, as an all-to-all over all ranks
 * The moves of a transition are the cheapest sequence, found on numbers every rank knows; uneven
 * and empty blocks take part. Shard to partial is refused: a part would count as an addend. */
#ifndef TESSERA_ENGINE_PARALLEL_REDISTRIBUTE_H
#define TESSERA_ENGINE_PARALLEL_REDISTRIBUTE_H

#include "engine/parallel/groups.h"
#include "engine/parallel/spread.h"

/* A dimension: `units` units (rows, heads, columns) of `unit` elements each; no unit is cut. It is
 * split by the balanced rule (spread.h), unless `cut` gives the boundaries of `pieces` pieces of
 * other sizes, in elements. Then outer axes split it between pieces as long as their blocks are
 * whole pieces, and inner axes split a piece evenly: gathering the innermost axis gives a whole
 * outer block here, too. */
struct extent {
    int64_t units;
    int32_t unit;
    int32_t pieces;
    const int64_t *cut; /* [pieces + 1], borrowed; NULL: balanced */
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

/* None along an axis of one rank, whose part is what a move would make of it. */
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
/* The elements of a dimension that a rank holds: offset and size. */
struct span redistribute_held(const struct mesh *m, const struct matrix *x, const struct spread *s,
                              int32_t dim, int32_t rank);
/* Elements a rank receives in one move. */
int64_t redistribute_received(const struct mesh *m, const struct matrix *x, const struct move *v,
                              int32_t rank);

/* Elements of the largest parts that moves handle: before those along an axis (the last: over all
 * ranks) and sums after them, any other after a move, and those of moves that meet nobody. */
struct redistribute_sizes {
    struct {
        size_t src, sum;
    } place[MESH_AXES_MAX + 1];
    size_t result, local;
};
/* Raises *sizes to what the route needs, on any rank. Pure. */
void redistribute_measure(const struct mesh *m, const struct matrix *x, const struct route *route,
                          struct redistribute_sizes *sizes);

struct redistribute;

/* Communicator arena for matrices of these sizes. */
size_t redistribute_arena_bytes(const struct redistribute_sizes *sizes);
/* g and b are borrowed. One thread (the rank's) calls. ERR_LIMIT: the arena is too small. */
enum status redistribute_open(struct groups *g, struct backend *b,
                              const struct redistribute_sizes *sizes, struct redistribute **out,
                              struct err *err) MUST_USE;
void redistribute_close(struct redistribute *r);

/* Where a producer best writes the part that a route starts from, because the first collective
 * reads it in place; NULL: anywhere. Valid until the next run; it may be written while an older
 * result is read. */
float *redistribute_source(struct redistribute *r, const struct route *route);
/* src: this rank's contiguous part, any memory but a result of this; rows of what was written at
 * redistribute_source may be run one after another. *result: the part it becomes,
 * valid until the next run, and if it is no sum (MOVE_REDUCE) itself beyond runs of sums alone; src
 * itself when there is nothing to do. Collective over the axes of the route; all ranks pass the
 * same route and matrix. Allocates nothing. ERR_INTERNAL when a part on the way is larger than was
 * said. */
enum status redistribute_run(struct redistribute *r, const struct matrix *x,
                             const struct route *route, const float *src, const float **result,
                             struct err *err) MUST_USE;
/* Is the route one sum, which its communicator makes together with the norm behind it? */
bool redistribute_has_norm(const struct redistribute *r, const struct matrix *x,
                           const struct route *route);
/* Runs such a route, whose result goes into *to (comm_all_reduce_norm) and is nowhere else. */
enum status redistribute_run_norm(struct redistribute *r, const struct matrix *x,
                                  const struct route *route, const float *src,
                                  const struct add_norm *to, struct err *err) MUST_USE;

#endif
