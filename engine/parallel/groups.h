/* Groups: for one rank, a communicator along each axis of its mesh. */
#ifndef TESSERA_ENGINE_PARALLEL_GROUPS_H
#define TESSERA_ENGINE_PARALLEL_GROUPS_H

#include "engine/comm/comm.h"
#include "engine/parallel/mesh.h"

struct groups {
    const struct mesh *mesh; /* borrowed */
    int32_t rank;
    struct comm *world;               /* borrowed; all ranks */
    struct comm *axis[MESH_AXES_MAX]; /* member x has coordinate x; owned unless it is the world */
};

/* Collective over world, which must have the mesh's ranks and outlive the result. stats: one per
 * axis, borrowed; that of an axis which spans all ranks stays untouched, its traffic is the
 * world's. */
enum status groups_open(const struct mesh *m, struct comm *world,
                        struct comm_stats stats[MESH_AXES_MAX], struct groups *out,
                        struct err *err) MUST_USE;
void groups_close(struct groups *g);

#endif
