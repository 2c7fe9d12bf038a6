/* Board: one shared page set per group, written by the ranks with relaxed atomics and read by the
 * front end whenever it likes: progress words, loading, what was read, collective counters. A rank
 * on another machine writes a board of its own and sends its counters over its link. */
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

/* All counters of a rank, as they travel. */
#define BOARD_REPORT_MAGIC 0x52455354u /* "TSER" */
#define BOARD_COUNTERS                                                                             \
    (5 + 1 + (int)LOADER_READERS_MAX + 3 * (int)COMM_OP_COUNT * (1 + MESH_AXES_MAX))
struct board_report {
    uint32_t magic, counters;
    uint64_t counter[BOARD_COUNTERS];
};

/* Copies all counters into a report. Any thread; each counter is consistent by itself only. */
void board_tell(const struct board_rank *b, struct board_report *out);
/* Stores a report's counters in b. ERR_COMM: it is not a report of this build. */
enum status board_hear(struct board_rank *b, const struct board_report *r,
                       struct err *err) MUST_USE;

#endif
