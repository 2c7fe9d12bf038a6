/* Spread: how a matrix lies over a mesh. Along each axis it is copied (every coordinate holds the
 * same), sharded in one of its two dimensions, or partial (coordinates hold addends of the sum).
 * Axes that shard the same dimension are listed outermost first, because their order decides who
 * holds what. Pure functions on plain data.
 *
 * Split rule: the axes of a dimension, outermost first, number n = product of sizes blocks, and
 * block x gets units [floor(N x / n), floor(N (x+1) / n)). The blocks of the outer axes alone begin
 * where groups of these blocks do: gathering the innermost axis always gives a whole outer block.
 */
#ifndef TESSERA_ENGINE_PARALLEL_SPREAD_H
#define TESSERA_ENGINE_PARALLEL_SPREAD_H

#include "engine/parallel/mesh.h"
#include "weights/placement.h"

enum { SPREAD_ROWS, SPREAD_COLS, SPREAD_DIMS }; /* rows: tokens, outputs; columns: features */

struct spread {
    uint8_t partial;                         /* bit per axis */
    int8_t count[SPREAD_DIMS];               /* axes that shard the dimension */
    int8_t axis[SPREAD_DIMS][MESH_AXES_MAX]; /* outermost first; unused entries are 0 */
};

enum spread_kind { SPREAD_COPY, SPREAD_SHARD, SPREAD_PARTIAL };
/* What the spread is along an axis; for SPREAD_SHARD *dim and *place (0 = outermost) say where. */
enum spread_kind spread_along(const struct spread *s, int32_t axis, int32_t *dim, int32_t *place);

/* Adds the axis as the innermost one of the dimension; it must shard nothing and not be partial. */
struct spread spread_shard(struct spread s, int32_t dim, int32_t axis);
struct spread spread_partial(struct spread s, int32_t axis);
/* Copied along the axis, whatever it was. */
struct spread spread_copy(struct spread s, int32_t axis);
bool spread_equal(const struct spread *a, const struct spread *b);

/* Which of the pieces of a dimension a rank holds. */
int32_t spread_index(const struct mesh *m, const struct spread *s, int32_t dim, int32_t rank);
/* The units of a dimension of `units` that a rank holds: global offset and local size. */
struct span spread_span(const struct mesh *m, const struct spread *s, int32_t dim, int64_t units,
                        int32_t rank);
/* In how many pieces the dimension is cut. */
int32_t spread_pieces(const struct mesh *m, const struct spread *s, int32_t dim);

/* "rows(w,a) cols(b)", "cols(tp)", "partial(b)", "copy"; returns buf. */
#define SPREAD_TEXT_MAX 160
const char *spread_text(const struct mesh *m, const struct spread *s, char buf[SPREAD_TEXT_MAX]);

#endif
