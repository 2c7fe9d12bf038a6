/* Mesh: the ranks of a group as a grid of named axes. Pure arithmetic on plain data; the
 * communicators along its axes are groups.h, how matrices lie over it is spread.h.
 *
 * Numbering: the last axis runs fastest, or the first one (`first_fastest`). So
 *   2d   [row, col]        rank = i q + j
 *   2.5d [dep, row, col]   rank = k q^2 + i q + j
 *   3d   [w, a, b], first  rank = i + w (j + a l)
 * An axis is named after the coordinate that varies along it: the ranks that differ in `col` only
 * are one row of the grid. */
#ifndef TESSERA_ENGINE_PARALLEL_MESH_H
#define TESSERA_ENGINE_PARALLEL_MESH_H

#include "config/base.h"

#define MESH_AXES_MAX 3
#define MESH_NAME_MAX 16

struct mesh_axis {
    char name[MESH_NAME_MAX];
    int32_t size; /* >= 1 */
};

struct mesh {
    int32_t axes; /* 1 .. MESH_AXES_MAX */
    bool first_fastest;
    struct mesh_axis axis[MESH_AXES_MAX];
};

int32_t mesh_ranks(const struct mesh *m);
/* Index of an axis; -1 when no axis has this name. */
int32_t mesh_find(const struct mesh *m, const char *name);
/* Ranks that lie between two neighbours along the axis. */
int32_t mesh_stride(const struct mesh *m, int32_t axis);
int32_t mesh_coord(const struct mesh *m, int32_t rank, int32_t axis);
/* The rank with this one's coordinates, but `coord` along the axis. */
int32_t mesh_peer(const struct mesh *m, int32_t rank, int32_t axis, int32_t coord);

/* An axis size in terms of the rank count: "ranks", "ranks/N", "sqrt(ranks)" or "cbrt(ranks)".
 * ERR_USAGE when it is none of these or does not come out whole. */
enum status mesh_size(const char *text, int32_t ranks, int32_t *size, struct err *err) MUST_USE;

#endif
