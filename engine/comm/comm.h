/* Collectives between the ranks of a group: the data plane. Carries no control.
 *
 * One thread per rank calls, all ranks call the same collectives in the same order with the same
 * sizes. Elements are 4 bytes wide (fp32; ids travel as int32 in the gathers). Buffers come from
 * comm_buffer of this communicator only (shared memory, NCCL windows: peers read them in place).
 * Reuse rule, for source and destination alike: the caller may write a buffer again when the NEXT
 * collective of the same communicator has returned; that next collective itself may name it as its
 * destination. So a producer alternates between two source buffers. Destinations of collectives
 * other than all_reduce are read by their owner alone, who may write them again at once.
 *
 * Sums are fp32 in the tree of backend's sum_tree over ranks in rank order (stride 1, 2, 4, ...):
 * every rank ends with the same bits. One rank is a real implementation (a copy).
 * After comm_abort, or when a peer is gone, waiting calls of this process return ERR_COMM; a killed
 * peer is noticed by the front end, which kills the group.
 *
 * Bytes counted: what this rank receives from peers, per group and op. all_reduce of n elements:
 * one-shot (P-1) * 4n when P == 2 or 4n <= COMM_ONESHOT_MAX_BYTES; else two-shot: (P-1) * 4 len_r
 * + 4 (n - len_r), len_r = the balanced block of rank r. The words that a GPU's one-shot kernel
 * sends beside the values are not counted. */
#ifndef TESSERA_ENGINE_COMM_COMM_H
#define TESSERA_ENGINE_COMM_COMM_H

#include "config/base.h"
#include "kernels/backend.h"

#include <stdatomic.h>

#define COMM_RANKS_MAX 64
#define COMM_ONESHOT_MAX_BYTES (256u << 10)
#define COMM_GROUPS_MAX 4

enum comm_op {
    COMM_ALL_REDUCE,
    COMM_ALL_GATHER,
    COMM_REDUCE_SCATTER,
    COMM_BROADCAST,
    COMM_ALL_TO_ALL,
    COMM_BARRIER,
    COMM_OP_COUNT
};
const char *comm_op_name(enum comm_op op); /* "all_reduce", ... */

/* Lives where the owner says (a shared page), written by this rank with relaxed atomics. */
struct comm_stats {
    char group[16];
    struct {
        _Atomic uint64_t calls, bytes, nanoseconds;
    } op[COMM_OP_COUNT];
};

struct comm;

/* What all_reduce counts on member `rank` of `ranks` for n elements, by the rule above. */
uint64_t comm_all_reduce_bytes(int32_t ranks, int32_t rank, size_t n);

struct comm_ops {
    const char *name; /* "shm" */
    void *(*buffer)(struct comm *c, size_t bytes);
    enum status (*all_reduce)(struct comm *c, float *dst, const float *src, size_t n,
                              struct err *err);
    bool (*has_norm)(const struct comm *c, int32_t rows, int32_t cols);
    enum status (*all_reduce_norm)(struct comm *c, const struct add_norm *to, const float *src,
                                   struct err *err); /* NULL: has_norm is never true */
    enum status (*all_gather)(struct comm *c, void *dst, const void *src, int32_t rows,
                              const int32_t *cols, struct err *err);
    enum status (*reduce_scatter)(struct comm *c, float *dst, const float *src,
                                  const size_t *counts, struct err *err);
    enum status (*broadcast)(struct comm *c, void *dst, const void *src, size_t n, int32_t root,
                             struct err *err);
    enum status (*all_to_all)(struct comm *c, void *dst, const size_t *recv_counts, const void *src,
                              const size_t *send_counts, struct err *err);
    enum status (*barrier)(struct comm *c, struct err *err);
    enum status (*split)(struct comm *c, int32_t color, int32_t key, const char *name,
                         struct comm_stats *stats, struct comm **out, struct err *err);
    void (*abort)(struct comm *c);
    void (*close)(struct comm *c);
};

/* First member of every implementation. */
struct comm {
    const struct comm_ops *ops;
    int32_t rank, ranks;
    struct comm_stats *stats;
};

/* 64-byte aligned memory peers can read; lives as long as c. NULL when the arena is used up.
 * All ranks allocate the same sizes in the same order. */
void *comm_buffer(struct comm *c, size_t bytes);
/* dst[n] = sum over ranks of src[n]; dst != src. */
enum status comm_all_reduce(struct comm *c, float *dst, const float *src, size_t n,
                            struct err *err) MUST_USE;
/* Does comm_all_reduce_norm take a matrix of this size here? The same on all ranks. */
bool comm_has_norm(const struct comm *c, int32_t rows, int32_t cols);
/* An all_reduce of src[rows, cols] and the backend's add_rmsnorm of the sum in one go, counted as
 * the former; the sum itself is nowhere. *to is any memory of the backend but src. */
enum status comm_all_reduce_norm(struct comm *c, const struct add_norm *to, const float *src,
                                 struct err *err) MUST_USE;
/* dst[rows, sum(cols)] = the ranks' src[rows, cols[rank]] side by side. cols has `ranks` entries,
 * 0 allowed. rows = 1 is the ordinary all-gather(v). */
enum status comm_all_gather(struct comm *c, void *dst, const void *src, int32_t rows,
                            const int32_t *cols, struct err *err) MUST_USE;
/* dst[counts[rank]] = this rank's block of the sum of src[sum(counts)]. */
enum status comm_reduce_scatter(struct comm *c, float *dst, const float *src, const size_t *counts,
                                struct err *err) MUST_USE;
/* dst[n] on every rank = src[n] of root (src read on root only; dst != src). */
enum status comm_broadcast(struct comm *c, void *dst, const void *src, size_t n, int32_t root,
                           struct err *err) MUST_USE;
/* src holds one block per destination rank, dst one per source rank, both in rank order.
 * recv_counts[s] here must equal send_counts[rank] at s. */
enum status comm_all_to_all(struct comm *c, void *dst, const size_t *recv_counts, const void *src,
                            const size_t *send_counts, struct err *err) MUST_USE;
enum status comm_barrier(struct comm *c, struct err *err) MUST_USE;
/* Ranks of equal color form a new communicator, ordered by key then rank. Collective over c.
 * `name` labels its statistics. The parent must outlive it; the two are never in use at once. */
enum status comm_split(struct comm *c, int32_t color, int32_t key, const char *name,
                       struct comm_stats *stats, struct comm **out, struct err *err) MUST_USE;
/* Makes every waiting and later call of this communicator's processes fail. Any thread. */
void comm_abort(struct comm *c);
void comm_close(struct comm *c);

/* For implementations whose sums have no norm behind them. */
bool comm_no_norm(const struct comm *c, int32_t rows, int32_t cols);
/* For implementations: one more call, which began at start_ns and brought so many elements. */
void comm_count(struct comm *c, enum comm_op op, int64_t start_ns, size_t elements);
/* First element of block `rank` when n elements are cut into balanced blocks; rank `ranks`: n. */
size_t comm_block_begin(size_t n, int32_t ranks, int32_t rank);

/* ---- shared memory (comm_shm.c): ranks are processes over one memfd, or threads ---- */

/* Size of the shared region for `ranks` ranks with arena_bytes of buffers each. */
size_t comm_shm_bytes(int32_t ranks, size_t arena_bytes);
/* Once, by the creator, on zeroed memory of that size (page-aligned). */
void comm_shm_init(void *region, int32_t ranks, size_t arena_bytes);
/* By each rank, on its own mapping of the region. b does the sums (its threads); borrowed. stats
 * borrowed. Spins briefly, then futex: correct when ranks exceed cores, idle at 0 % CPU. */
enum status comm_shm_open(void *region, int32_t rank, struct backend *b, struct comm_stats *stats,
                          struct comm **out, struct err *err) MUST_USE;

/* ---- without peers (comm_alone.c) ---- */

/* Of the one rank there is. arena_bytes of b's memory are set aside for comm_buffer; collectives
 * are copies in b's order. b and stats borrowed. ERR_NOMEM. */
enum status comm_alone_open(struct backend *b, size_t arena_bytes, struct comm_stats *stats,
                            struct comm **out, struct err *err) MUST_USE;

/* ---- between machines (comm_mpi.c, in the MPI module): ranks that an MPI launcher started ---- */

/* By each rank, once per process, on the thread that calls the collectives. rank and ranks must be
 * the launcher's. Same bits and same counters as shared memory. Waits by polling, giving way to
 * others on its core. comm_abort ends the calls of this process only; the launcher ends its peers.
 * ERR_DEVICE: no module, or MPI does not start. */
enum status comm_mpi_open(int32_t rank, int32_t ranks, struct backend *b, size_t arena_bytes,
                          struct comm_stats *stats, struct comm **out, struct err *err) MUST_USE;

/* *build = the build id of the MPI module, when it opens; MPI itself is not started. ERR_DEVICE. */
enum status comm_mpi_build(const char **build, struct err *err) MUST_USE;

/* ---- between devices (comm_nccl.c, in the CUDA module): NCCL on the stream of b ---- */

/* Arena that bootstrap needs for this, per rank. */
#define COMM_BOOTSTRAP_BYTES 4096
/* Device memory that it takes besides the arena; NCCL's own buffers are not counted. A rank alone
 * takes none, and has no NCCL. */
#define COMM_DEVICE_STAGING_BYTES ((size_t)16 << 20)
/* Collective over the ranks of `bootstrap`, which carries the group's id once and is then idle. b
 * is a backend with device memory; arena_bytes of it are set aside for comm_buffer. Collectives are
 * asynchronous in b's order; a lost peer or link aborts the communicator, so that waiting ends, and
 * the next call returns ERR_COMM. Sums have the same bits on every rank: in NCCL's order, or, where
 * a kernel of ours is faster, in the tree above, and always in that with COMM_FIXED_ORDER. A rank
 * alone gets comm_alone_open's. how: 0, or of enum comm_how. All borrowed. */
enum comm_how {
    /* Several ranks use one GPU (to test function; slow): peers talk over sockets of the loopback
     * interface, as processes of different hosts would. */
    COMM_SHARED_DEVICE = 1,
    /* Nothing lies in NCCL's symmetric memory. */
    COMM_NO_WINDOWS = 2,
    /* Sums are those of the other communicators to the bit, and so is what is counted: addends are
     * exchanged and added here. */
    COMM_FIXED_ORDER = 4,
    /* Small sums do not go through the memory of peers by a kernel of ours. */
    COMM_NO_ONESHOT = 8,
};
enum status comm_device_open(struct comm *bootstrap, struct backend *b, size_t arena_bytes,
                             uint32_t how, struct comm_stats *stats, struct comm **out,
                             struct err *err) MUST_USE;

#endif
