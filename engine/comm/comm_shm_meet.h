/* Private to comm_shm: the shared region, and how the ranks of a communicator meet in it. */
#ifndef TESSERA_ENGINE_COMM_COMM_SHM_MEET_H
#define TESSERA_ENGINE_COMM_COMM_SHM_MEET_H

#include "config/base.h"
#include "engine/comm/comm.h"

#include <stdatomic.h>

#define COMM_SHM_MAGIC 0x6d686d6d6f635354ull
#define COMM_SHM_VERSION 1u
/* Op number of comm_split, which is not counted. */
#define COMM_SHM_SPLIT ((uint32_t)COMM_OP_COUNT)
#define COMM_SHM_CPU_WORDS 16

/* The phase and the counter of arrivals start shortly before they wrap around, so that every run of
 * the program exercises the wrap. */
#define COMM_SHM_PHASE_FIRST (0u - 1000u)
#define COMM_SHM_COUNT_FIRST (0u - 3001u)

/* What a rank is about to do, as its peers see it. */
struct comm_shm_call {
    uint32_t op;
    int32_t color, key; /* of a split */
    uint64_t n, check;  /* equal on all ranks, or the ranks have diverged */
    uint64_t src, dst;  /* offsets from the start of the region; split: groups used so far */
};

/* One cache line: the stamp and what it announces travel together. */
struct comm_shm_post {
    _Atomic uint32_t stamp; /* the phase the call belongs to; stored last */
    _Atomic int32_t cpu;    /* where the rank ran when it arrived; a hint */
    struct comm_shm_call call;
} ALIGNED64;

/* Where ranks of one communicator are counted and sleep. */
struct comm_shm_door {
    _Atomic uint32_t count; /* arrivals of all members in all phases; the futex word */
    _Atomic uint32_t waiters;
} ALIGNED64;

/* Of one rank in one communicator. The door of a communicator is that of its first member's seat.
 * Posts and counts are indexed by the parity of the phase. */
struct comm_shm_seat {
    struct comm_shm_door door;
    struct comm_shm_post post[2];
    uint64_t counts[2][COMM_RANKS_MAX]; /* all_to_all: what this rank sends to each */
};

struct comm_shm_region {
    uint64_t magic;
    uint32_t version;
    int32_t ranks;
    uint64_t arena_bytes, arena_start; /* the arena of rank r starts r * bytes after start */
    _Atomic uint64_t opened;           /* bit per rank */
    _Atomic uint64_t cpus[COMM_SHM_CPU_WORDS]; /* union of the ranks' allowed CPUs */
    ALIGNED64 _Atomic uint32_t aborted;        /* 1 + the rank that aborted, 0 while well */
    struct comm_shm_seat seats[];              /* [1 + COMM_GROUPS_MAX][ranks] */
};

/* This rank's state, shared by its top communicator (the owner) and those split from it. */
struct comm_shm_home {
    struct comm_shm_region *region;
    struct backend *backend;
    int32_t rank;
    int32_t groups; /* split communicators made so far */
    size_t arena_used;
    bool met;       /* all ranks have opened: the union of CPUs is complete */
    bool crowded;   /* fewer CPUs than ranks: do not spin */
    int32_t sleeps; /* when crowded: waits that do not yield first, since yields were slow */
};

struct comm_shm {
    struct comm base;
    struct comm_shm_home *home;
    bool top;
    struct comm_shm_seat *seats; /* of this communicator, by rank in the region */
    struct comm_shm_door *door;
    int32_t member[COMM_RANKS_MAX]; /* rank here to rank in the region */
    uint32_t phase;                 /* of the last meeting */
    uint32_t target;                /* value of the door's count when all have arrived in it */
};

/* Announces the call, waits until every member has announced its own, and compares them. When it
 * returns, everything the members wrote before their meeting is visible here, and all of them have
 * finished with the phase before. counts: what to publish for all_to_all, else NULL. */
enum status comm_shm_meet(struct comm_shm *c, const struct comm_shm_call *call,
                          const size_t *counts, struct err *err) MUST_USE;
/* What a member announced in the last meeting; valid until this rank enters the next. */
const struct comm_shm_call *comm_shm_meet_call(const struct comm_shm *c, int32_t rank);
const uint64_t *comm_shm_meet_counts(const struct comm_shm *c, int32_t rank);
/* Poisons the region and wakes every sleeper. Any thread. */
void comm_shm_meet_abort(struct comm_shm *c);
/* Poisons the region and reports that two members do not agree. */
enum status comm_shm_meet_diverged(struct comm_shm *c, int32_t peer, const char *what,
                                   struct err *err) MUST_USE;

#endif
