/* Ranks as threads of the test process over one region of collectives: for tests of what lies
 * between the communicator and the model. A body returns a status; a failing one stops the others,
 * so that nothing hangs, and is printed. */
#ifndef TESSERA_TESTS_RANKS_H
#define TESSERA_TESTS_RANKS_H

#include "engine/parallel/groups.h"
#include "engine/parallel/spread.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ranks_member {
    int32_t rank;
    const struct mesh *mesh;
    struct backend *backend;
    struct comm *world;
    struct groups groups;
    struct comm_stats stats[1 + MESH_AXES_MAX]; /* world, then axes */
    void *arg;                                  /* of ranks_run */
    enum status (*body)(struct ranks_member *m, struct err *err);
    size_t arena_bytes;
    void *region;
    enum status st;
};

/* Bytes and calls this rank has counted for an op, over all groups. */
static inline uint64_t ranks_bytes(const struct ranks_member *m, enum comm_op op)
{
    uint64_t n = 0;
    for (int i = 0; i <= MESH_AXES_MAX; i++)
        n += atomic_load(&m->stats[i].op[op].bytes);
    return n;
}

static inline uint64_t ranks_calls(const struct ranks_member *m, enum comm_op op)
{
    uint64_t n = 0;
    for (int i = 0; i <= MESH_AXES_MAX; i++)
        n += atomic_load(&m->stats[i].op[op].calls);
    return n;
}

static inline uint64_t ranks_bytes_all(const struct ranks_member *m)
{
    uint64_t n = 0;
    for (int op = 0; op < COMM_OP_COUNT; op++)
        n += ranks_bytes(m, (enum comm_op)op);
    return n;
}

static void *ranks_main(void *arg)
{
    struct ranks_member *m = arg;
    struct err err = {""};
    enum status st = OK;
    TRY(backend_open("cpu-generic", 1, &m->backend, &err));
    TRY(comm_shm_open(m->region, m->rank, m->backend, &m->stats[0], &m->world, &err));
    TRY(groups_open(m->mesh, m->world, m->stats + 1, &m->groups, &err));
    TRY(m->body(m, &err));
out:
    m->st = st;
    if (st != OK) {
        fprintf(stderr, "rank %d: %s\n", m->rank, err.text);
        if (m->world)
            comm_abort(m->world);
    }
    groups_close(&m->groups);
    comm_close(m->world);
    backend_close(m->backend);
    return NULL;
}

/* members: room for the mesh's ranks, kept for the caller to read; false when a rank failed. */
static inline bool ranks_run(const struct mesh *mesh, size_t arena_bytes,
                             enum status (*body)(struct ranks_member *m, struct err *err),
                             void *arg, struct ranks_member *members)
{
    pthread_t threads[COMM_RANKS_MAX];
    const int32_t ranks = mesh_ranks(mesh);
    const size_t bytes = base_align(comm_shm_bytes(ranks, arena_bytes), 4096);
    void *region = aligned_alloc(4096, bytes);
    bool good = true;
    CHECK(region != NULL);
    memset(region, 0, bytes);
    comm_shm_init(region, ranks, arena_bytes);
    for (int32_t r = 0; r < ranks; r++) {
        members[r] = (struct ranks_member){.rank = r,
                                           .mesh = mesh,
                                           .arg = arg,
                                           .body = body,
                                           .arena_bytes = arena_bytes,
                                           .region = region};
        CHECK(pthread_create(&threads[r], NULL, ranks_main, &members[r]) == 0);
    }
    for (int32_t r = 0; r < ranks; r++) {
        pthread_join(threads[r], NULL);
        good = good && members[r].st == OK;
    }
    free(region);
    return good;
}

/* Calls visit for every mesh of up to three axes and ranks_max ranks, in both numberings. */
static inline void ranks_meshes(int32_t axes, int32_t ranks_max,
                                void (*visit)(const struct mesh *m, void *arg), void *arg)
{
    static const char names[MESH_AXES_MAX][2] = {"x", "y", "z"};
    struct mesh m = {.axes = axes};
    for (int32_t i = 0; i < axes; i++) {
        memcpy(m.axis[i].name, names[i], sizeof names[i]);
        m.axis[i].size = 1;
    }
    for (;;) {
        if (mesh_ranks(&m) <= ranks_max) {
            for (int order = 0; order < 2; order++) {
                m.first_fastest = order == 1;
                visit(&m, arg);
            }
        }
        int32_t i = 0;
        while (i < axes && m.axis[i].size == ranks_max)
            m.axis[i++].size = 1;
        if (i == axes)
            return;
        m.axis[i].size++;
    }
}

/* Calls visit for every way to lie over the mesh: axis by axis copied, partial, or sharded at any
 * place among those that already shard the dimension. */
static inline void ranks_spreads(const struct mesh *m, int32_t axis, struct spread s,
                                 void (*visit)(const struct mesh *m, struct spread s, void *arg),
                                 void *arg)
{
    if (axis == m->axes) {
        visit(m, s, arg);
        return;
    }
    ranks_spreads(m, axis + 1, s, visit, arg);
    ranks_spreads(m, axis + 1, spread_partial(s, axis), visit, arg);
    for (int32_t dim = 0; dim < SPREAD_DIMS; dim++) {
        for (int32_t place = 0; place <= s.count[dim]; place++) {
            struct spread t = spread_shard(s, dim, axis);
            for (int32_t i = t.count[dim] - 1; i > place; i--)
                t.axis[dim][i] = t.axis[dim][i - 1];
            t.axis[dim][place] = (int8_t)axis;
            ranks_spreads(m, axis + 1, t, visit, arg);
        }
    }
}

#endif
