/* DESIGN: ranks that differ only along an axis share the number of their first member; that number
 * is the color of the split. */
#include "engine/parallel/groups.h"

#include <string.h>

enum status groups_open(const struct mesh *m, struct comm *world,
                        struct comm_stats stats[MESH_AXES_MAX], struct groups *out, struct err *err)
{
    enum status st = OK;
    struct groups g = {.mesh = m, .rank = world->rank, .world = world};
    CHECK(world->ranks == mesh_ranks(m));
    for (int32_t i = 0; i < m->axes; i++) {
        if (m->axis[i].size == world->ranks) {
            g.axis[i] = world;
            continue;
        }
        TRY(comm_split(world, mesh_peer(m, g.rank, i, 0), mesh_coord(m, g.rank, i), m->axis[i].name,
                       &stats[i], &g.axis[i], err));
    }
    *out = g;
out:
    if (st != OK)
        groups_close(&g);
    return st;
}

void groups_close(struct groups *g)
{
    for (int32_t i = 0; i < MESH_AXES_MAX; i++)
        if (g->axis[i] != g->world)
            comm_close(g->axis[i]);
    memset(g, 0, sizeof *g);
}
