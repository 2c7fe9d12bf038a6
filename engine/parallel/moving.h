/* Moving weights: linears whose weights are split over the mesh and travel to the products that
 * need them, because for many rows that is less than what activations would move.
 *
 * summa (2d, 2.5d; axes row i, col j, size q each):
 *   x(i,j) = rows i, inputs j; w(i,j) = inputs i, outputs j; y(i,j) = rows i, outputs j.
 *   For t = 0 .. q-1: x(i,t) is broadcast along col, w(t,j) along row, and their products are added
 *   in the order in which a collective adds q ranks' (backend.h, sum_tree): the bits of a linear
 *   whose weight stays.
 * gathered (3d; axis i): w(i) = a block of outputs in whole tiles; the blocks are gathered along
 *   the axis and y = x w for all of them, with the bits of a weight that is held whole.
 * A weight travels as the backend stores it: the padding of a tile travels too. */
#ifndef TESSERA_ENGINE_PARALLEL_MOVING_H
#define TESSERA_ENGINE_PARALLEL_MOVING_H

#include "engine/parallel/groups.h"
#include "engine/parallel/spread.h"

#define MOVING_PIECES_MAX 8 /* q */

/* The largest parts that will be handled; 0: none. */
struct moving_sizes {
    struct {
        size_t weight_bytes; /* of a stored block */
        size_t x, y;         /* elements of a panel and of a product */
        int32_t rounds;      /* q */
    } summa;
    struct {
        size_t part_bytes, whole_bytes; /* of a stored block, and of the weight */
    } gathered;
};

struct moving;
struct moving_weight;

size_t moving_arena_bytes(const struct moving_sizes *sizes);
/* Memory a rank keeps outside of it. */
size_t moving_local_bytes(const struct moving_sizes *sizes);
/* g and b are borrowed. One thread (the rank's) calls. */
enum status moving_open(struct groups *g, struct backend *b, const struct moving_sizes *sizes,
                        struct moving **out, struct err *err) MUST_USE;
void moving_close(struct moving *m);

/* A weight of which this rank stores one block (storage borrowed, as backend weight_put filled it).
 * summa: its inputs are cut along `row`, its outputs along `col`; blocks[t] is what the rank with
 * coordinate t along `row` stores. */
enum status moving_summa_open(struct moving *m, const void *storage, int32_t row, int32_t col,
                              const struct weight_spec *blocks, struct moving_weight **weight,
                              struct err *err) MUST_USE;
/* gathered: this rank stores those outputs of the whole that placement_tiles gives its coordinate.
 * ERR_USAGE: the backend stores weights of this type in another way than tile by tile. */
enum status moving_gathered_open(struct moving *m, const void *storage, int32_t axis,
                                 const struct weight_spec *whole, struct moving_weight **weight,
                                 struct err *err) MUST_USE;
void moving_weight_close(struct moving_weight *w);

/* y: any memory; x: contiguous, any memory. Collective. Allocates nothing. */
enum status moving_linear(struct moving *m, struct view y, struct cview x,
                          const struct moving_weight *w, struct err *err) MUST_USE;

#endif
