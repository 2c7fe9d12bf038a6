/* Board: one shared page set per group, written by the ranks with relaxed atomics and read by the
 * front end whenever it likes: progress words, loading, what was read, collective counters. */
#ifndef TESSERA_ENGINE_BOARD_H
#define TESSERA_ENGINE_BOARD_H

#include "engine/comm/comm.h"
#include "engine/parallel/mesh.h"
#include "weights/loader.h"

struct board_rank {
    _Atomic uint64_t progress; /* bumped per layer; the hang deadline counts from its last change */
    struct load_progress load;
    _Atomic uint64_t weight_bytes, read_bytes;
    _Atomic uint64_t sampler_fallbacks; /* rows the distributed sampler could not decide */
    _Atomic uint64_t replays;           /* steps that ran as one piece (replay.h) */
    struct comm_stats comm;             /* of all ranks */
    struct comm_stats axis[MESH_AXES_MAX];
} __attribute__((aligned(128)));

struct board {
    struct board_rank rank[COMM_RANKS_MAX];
};

#endif
