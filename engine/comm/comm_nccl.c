/* DESIGN: a collective is an NCCL call, or a group of them, on the stream of the backend; several
 * where rows or addends are gathered piece by piece. Nothing but the barrier waits here, and that
 * in the backend. The waiting is the backend's, which asks watch() meanwhile: an error that
 * NCCL reports later, or comm_abort from any thread, aborts all communicators of this rank, so that
 * kernels that wait for a peer end. A peer that is gone without NCCL noticing is the front end's to
 * notice. Small sums of all ranks need no NCCL where a kernel of ours is faster. The group's id,
 * and what ranks find of such ways at start, travel over the bootstrap communicator. */
#include "engine/comm/comm.h"

#include "engine/comm/comm_nccl_oneshot.h"
#include "engine/comm/comm_nccl_window.h"
#include "kernels/cuda/entry.h"
#include "kernels/cuda/report.h"

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#ifndef GATHER_BYTES
#define GATHER_BYTES COMM_DEVICE_STAGING_BYTES
#endif

/* What the communicators of a rank share. */
struct home {
    struct backend *backend;
    cudaStream_t stream;
    char *arena;
    size_t arena_bytes, arena_used;
    /* Rows that come to lie side by side, and addends, are gathered rank by rank in the staging's
     * first bytes, so many at a time; its last may be the inbox of oneshot. */
    char *staging;
    size_t gather_bytes;
    struct comm_window window; /* where it is good, the arena is there */
    struct comm_oneshot oneshot;
    bool fixed_order;
    ncclComm_t group[1 + COMM_GROUPS_MAX];
    int32_t groups;
    struct ending {
        pthread_t thread; /* aborts it, */
        ncclComm_t group;
        int device; /* which is current there */
    } ending[1 + COMM_GROUPS_MAX];
    int32_t endings;
    int device;
    _Atomic bool aborted;
    enum status failed; /* and what failed: every later call tells it again */
    struct err failure;
};

struct comm_nccl {
    struct comm base;
    struct home *home;
    int32_t group; /* 0: the first, which owns home */
};

static struct comm_nccl *nccl_of(struct comm *c)
{
    return (struct comm_nccl *)c;
}

static ncclComm_t handle(const struct comm_nccl *c)
{
    return c->home->group[c->group];
}

/* ---- failures ---- */

static void *end_group(void *arg)
{
    const struct ending *e = arg;
    (void)cudaSetDevice(e->device); /* a thread begins with the first */
    (void)ncclCommAbort(e->group);
    return NULL;
}

/* An abort waits until the communicator's graphs are closed, which this thread does, and later. */
static void give_up(struct home *h, const char *what, ncclResult_t r)
{
    h->failed = base_fail(&h->failure, ERR_COMM, "NCCL %s: %s: %.160s", what, ncclGetErrorString(r),
                          ncclGetLastError(NULL));
    for (int32_t i = 0; i < h->groups; i++) {
        struct ending *e = &h->ending[h->endings];
        e->group = h->group[i];
        e->device = h->device;
        if (e->group != NULL && pthread_create(&e->thread, NULL, end_group, e) == 0)
            h->endings++;
    }
    h->groups = 0;
    comm_oneshot_stop(&h->oneshot);
}

/* Called by the backend while it waits, and before every collective. */
static enum status watch(void *arg, struct err *err)
{
    struct home *h = arg;
    if (h->failed == OK && atomic_load(&h->aborted))
        give_up(h, "collective", ncclInvalidUsage);
    for (int32_t i = 0; i < h->groups; i++) {
        ncclResult_t now = ncclSuccess;
        ncclResult_t asked = ncclCommGetAsyncError(h->group[i], &now);
        if (asked != ncclSuccess || (now != ncclSuccess && now != ncclInProgress))
            give_up(h, "peer", asked != ncclSuccess ? asked : now);
    }
    if (h->failed != OK)
        *err = h->failure;
    return h->failed;
}

/* ---- every collective ---- */

/* Something has spoilt the recording that goes on: nothing of it will run, and NCCL would take it
 * for a failure of its own. */
static bool is_spoilt(const struct home *h)
{
    enum cudaStreamCaptureStatus recording;
    return cudaStreamIsCapturing(h->stream, &recording) == cudaSuccess &&
           recording == cudaStreamCaptureStatusInvalidated;
}

/* False: there is nothing to do. *st then is what the collective returns: an error, or OK where the
 * recording that it would be a part of is spoilt. */
static bool enter(struct comm_nccl *c, int64_t *start, enum status *st, struct err *err)
{
    *start = base_now_ns();
    *st = watch(c->home, err);
    return *st == OK && !is_spoilt(c->home);
}

/* The next call of a collective, unless one before it failed. */
#define NEXT(result, call)                                                                         \
    do {                                                                                           \
        if ((result) == ncclSuccess)                                                               \
            (result) = (call);                                                                     \
    } while (0)

/* Ends a group that has begun, whatever of it failed: the next call would be taken for a part of
 * it.
 */
static ncclResult_t end_calls(ncclResult_t begun, ncclResult_t result)
{
    const ncclResult_t ended = begun == ncclSuccess ? ncclGroupEnd() : begun;
    return result == ncclSuccess ? ended : result;
}

/* `elements` came from peers. The time is the host's: work on the device goes on. */
static enum status finish(struct comm_nccl *c, enum comm_op op, int64_t start, size_t elements,
                          ncclResult_t r, struct err *err)
{
    if (r != ncclSuccess) {
        give_up(c->home, comm_op_name(op), r);
        *err = c->home->failure;
        return c->home->failed;
    }
    comm_count(&c->base, op, start, elements);
    return OK;
}

static size_t sum_of(const size_t *counts, int32_t n)
{
    size_t sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += counts[i];
    return sum;
}

/* ---- pieces of collectives ---- */

/* dst = the ranks' src[n[rank]] one after the other. */
static ncclResult_t gather_blocks(struct comm_nccl *c, char *dst, const void *src, const size_t *n)
{
    bool even = true;
    for (int32_t r = 1; r < c->base.ranks; r++)
        even = even && n[r] == n[0];
    if (even)
        return ncclAllGather(src, dst, n[0], ncclFloat32, handle(c), c->home->stream);
    const ncclResult_t begun = ncclGroupStart();
    ncclResult_t result = begun;
    for (int32_t r = 0; r < c->base.ranks; r++) {
        if (n[r] > 0)
            NEXT(result, ncclBroadcast(src, dst, n[r], ncclFloat32, r, handle(c), c->home->stream));
        dst += n[r] * 4;
    }
    return end_calls(begun, result);
}

/* ---- sums in the order of the ranks ---- */

/* dst[n] = the tree of the ranks' addends, which have been gathered. */
static void fold(struct comm_nccl *c, float *dst, size_t n)
{
    struct backend *b = c->home->backend;
    const float *of[COMM_RANKS_MAX];
    for (int32_t r = 0; r < c->base.ranks; r++)
        of[r] = (const float *)(const void *)c->home->staging + (size_t)r * n;
    b->ops->sum_tree(b, dst, of, c->base.ranks, n);
}

/* Elements of each rank for which there is room at a time. */
static size_t fold_room(const struct comm_nccl *c)
{
    return c->home->gather_bytes / sizeof(float) / (size_t)c->base.ranks;
}

static size_t rest_of(size_t n, size_t done, size_t most)
{
    return n <= done ? 0 : n - done < most ? n - done : most;
}

/* Every rank gathers and sums everything. */
static ncclResult_t sum_whole(struct comm_nccl *c, float *dst, const float *src, size_t n)
{
    ncclResult_t r = ncclSuccess;
    const size_t room = fold_room(c);
    for (size_t at = 0; at < n && r == ncclSuccess; at += room) {
        const size_t part = rest_of(n, at, room);
        r = ncclAllGather(src + at, c->home->staging, part, ncclFloat32, handle(c),
                          c->home->stream);
        fold(c, dst + at, part);
    }
    return r;
}

/* Each rank gathers and sums its block of src[sum(counts)], into dst[counts[rank]]. */
static ncclResult_t sum_blocks(struct comm_nccl *c, float *dst, const float *src,
                               const size_t *counts)
{
    ncclResult_t r = ncclSuccess;
    const size_t room = fold_room(c);
    size_t longest = 0;
    for (int32_t peer = 0; peer < c->base.ranks; peer++)
        longest = counts[peer] > longest ? counts[peer] : longest;
    for (size_t at = 0; at < longest && r == ncclSuccess; at += room) {
        const size_t own = rest_of(counts[c->base.rank], at, room);
        const float *block = src;
        float *from = (float *)(void *)c->home->staging;
        const ncclResult_t begun = ncclGroupStart();
        r = begun;
        for (int32_t peer = 0; peer < c->base.ranks; peer++) {
            const size_t theirs = rest_of(counts[peer], at, room);
            if (theirs > 0)
                NEXT(r,
                     ncclSend(block + at, theirs, ncclFloat32, peer, handle(c), c->home->stream));
            if (own > 0)
                NEXT(r, ncclRecv(from, own, ncclFloat32, peer, handle(c), c->home->stream));
            block += counts[peer];
            from += own;
        }
        r = end_calls(begun, r);
        if (own > 0)
            fold(c, dst + at, own);
    }
    return r;
}

/* In one or two shots, by the rule of comm.h. */
static ncclResult_t reduce_in_order(struct comm_nccl *c, float *dst, const float *src, size_t n)
{
    const int32_t ranks = c->base.ranks;
    size_t block[COMM_RANKS_MAX];
    if (ranks <= 2 || n * sizeof(float) <= COMM_ONESHOT_MAX_BYTES)
        return sum_whole(c, dst, src, n);
    for (int32_t r = 0; r < ranks; r++)
        block[r] = comm_block_begin(n, ranks, r + 1) - comm_block_begin(n, ranks, r);
    float *own = dst + comm_block_begin(n, ranks, c->base.rank);
    ncclResult_t r = sum_blocks(c, own, src, block);
    NEXT(r, gather_blocks(c, (char *)dst, own, block));
    return r;
}

/* ---- collectives ---- */

/* By NCCL, in its order or in ours. */
static ncclResult_t reduce(struct comm_nccl *c, float *dst, const float *src, size_t n)
{
    return c->home->fixed_order
               ? reduce_in_order(c, dst, src, n)
               : ncclAllReduce(src, dst, n, ncclFloat32, ncclSum, handle(c), c->home->stream);
}

/* Bytes of NCCL's as in a ring: each rank receives all blocks but one, twice. */
static enum status nccl_all_reduce(struct comm *comm, float *dst, const float *src, size_t n,
                                   struct err *err)
{
    enum status st;
    struct comm_nccl *c = nccl_of(comm);
    int64_t start;
    if (!enter(c, &start, &st, err))
        return st;
    const bool oneshot = c->group == 0 && n <= c->home->oneshot.max;
    const size_t received = oneshot || c->home->fixed_order
                                ? comm_all_reduce_bytes(comm->ranks, comm->rank, n) / sizeof(float)
                                : 2 * (n - n / (size_t)comm->ranks);
    ncclResult_t r = ncclSuccess;
    if (oneshot)
        comm_oneshot_sum(&c->home->oneshot, c->home->backend, dst, src, n);
    else
        r = reduce(c, dst, src, n);
    return finish(c, COMM_ALL_REDUCE, start, received, r, err);
}

static bool nccl_has_norm(const struct comm *comm, int32_t rows, int32_t cols)
{
    const struct comm_nccl *c = (const struct comm_nccl *)comm;
    return c->group == 0 && comm_oneshot_has_norm(&c->home->oneshot, rows, cols);
}

static enum status nccl_all_reduce_norm(struct comm *comm, const struct add_norm *to,
                                        const float *src, struct err *err)
{
    enum status st;
    struct comm_nccl *c = nccl_of(comm);
    int64_t start;
    const size_t n = (size_t)to->x.rows * (size_t)to->x.cols;
    if (!enter(c, &start, &st, err))
        return st;
    comm_oneshot_norm(&c->home->oneshot, c->home->backend, to, src);
    return finish(c, COMM_ALL_REDUCE, start,
                  comm_all_reduce_bytes(comm->ranks, comm->rank, n) / sizeof(float), ncclSuccess,
                  err);
}

/* Some rows: into the gather buffer, then side by side; what is a single row, or of a single rank,
 * needs only the first. */
static ncclResult_t gather_rows(struct comm_nccl *c, char *dst, const char *src, size_t rows,
                                const int32_t *cols)
{
    const int32_t ranks = c->base.ranks;
    struct home *h = c->home;
    size_t blocks[COMM_RANKS_MAX];
    for (int32_t r = 0; r < ranks; r++)
        blocks[r] = rows * (size_t)cols[r];
    if (rows == 1 || ranks == 1)
        return gather_blocks(c, dst, src, blocks);
    const ncclResult_t result = gather_blocks(c, h->staging, src, blocks);
    if (result == ncclSuccess)
        rowops_interleave(h->backend, (float *)dst, (const float *)h->staging, (int32_t)rows, cols,
                          ranks);
    return result;
}

static enum status nccl_all_gather(struct comm *comm, void *dst, const void *src, int32_t rows,
                                   const int32_t *cols, struct err *err)
{
    enum status st;
    struct comm_nccl *c = nccl_of(comm);
    int64_t start;
    const size_t own = (size_t)cols[comm->rank], height = (size_t)rows;
    ncclResult_t r = ncclSuccess;
    size_t total = 0;
    for (int32_t i = 0; i < comm->ranks; i++)
        total += (size_t)cols[i];
    if (!enter(c, &start, &st, err))
        return st;
    const size_t fit = comm->ranks > 1 && total > 0 ? c->home->gather_bytes / (total * 4) : height;
    const size_t most = fit > 1 ? fit : 1;
    for (size_t at = 0, n; at < height && total > 0 && r == ncclSuccess; at += n) {
        n = height - at < most ? height - at : most;
        r = gather_rows(c, (char *)dst + at * total * 4, (const char *)src + at * own * 4, n, cols);
    }
    return finish(c, COMM_ALL_GATHER, start, height * (total - own), r, err);
}

/* By NCCL: a sum for each rank. */
static ncclResult_t reduce_blocks(struct comm_nccl *c, float *dst, const float *src,
                                  const size_t *counts)
{
    const ncclResult_t begun = ncclGroupStart();
    ncclResult_t r = begun;
    for (int32_t to = 0; to < c->base.ranks; to++) {
        if (counts[to] > 0)
            NEXT(r, ncclReduce(src, dst, counts[to], ncclFloat32, ncclSum, to, handle(c),
                               c->home->stream));
        src += counts[to];
    }
    return end_calls(begun, r);
}

static enum status nccl_reduce_scatter(struct comm *comm, float *dst, const float *src,
                                       const size_t *counts, struct err *err)
{
    enum status st;
    struct comm_nccl *c = nccl_of(comm);
    int64_t start;
    if (!enter(c, &start, &st, err))
        return st;
    const ncclResult_t r =
        c->home->fixed_order ? sum_blocks(c, dst, src, counts) : reduce_blocks(c, dst, src, counts);
    const size_t others = (size_t)comm->ranks - 1;
    return finish(c, COMM_REDUCE_SCATTER, start, others * counts[comm->rank], r, err);
}

static enum status nccl_broadcast(struct comm *comm, void *dst, const void *src, size_t n,
                                  int32_t root, struct err *err)
{
    enum status st;
    struct comm_nccl *c = nccl_of(comm);
    int64_t start;
    if (!enter(c, &start, &st, err))
        return st;
    const ncclResult_t r =
        ncclBroadcast(src, dst, n, ncclFloat32, root, handle(c), c->home->stream);
    return finish(c, COMM_BROADCAST, start, comm->rank == root ? 0 : n, r, err);
}

static enum status nccl_all_to_all(struct comm *comm, void *dst, const size_t *recv_counts,
                                   const void *src, const size_t *send_counts, struct err *err)
{
    enum status st;
    struct comm_nccl *c = nccl_of(comm);
    int64_t start;
    const char *from = src;
    char *to = dst;
    if (!enter(c, &start, &st, err))
        return st;
    const ncclResult_t begun = ncclGroupStart();
    ncclResult_t r = begun;
    for (int32_t peer = 0; peer < comm->ranks; peer++) {
        if (send_counts[peer] > 0)
            NEXT(r,
                 ncclSend(from, send_counts[peer], ncclFloat32, peer, handle(c), c->home->stream));
        if (recv_counts[peer] > 0)
            NEXT(r, ncclRecv(to, recv_counts[peer], ncclFloat32, peer, handle(c), c->home->stream));
        from += send_counts[peer] * 4;
        to += recv_counts[peer] * 4;
    }
    r = end_calls(begun, r);
    const size_t received = sum_of(recv_counts, comm->ranks) - recv_counts[comm->rank];
    return finish(c, COMM_ALL_TO_ALL, start, received, r, err);
}

/* A sum nobody needs, in the order of the stream, and the host waits for it. */
static enum status nccl_barrier(struct comm *comm, struct err *err)
{
    enum status st = OK;
    struct comm_nccl *c = nccl_of(comm);
    const int64_t start = base_now_ns();
    TRY(watch(c->home, err));
    const ncclResult_t r = ncclAllReduce(c->home->staging, c->home->staging, 1, ncclFloat32,
                                         ncclSum, handle(c), c->home->stream);
    c->home->backend->ops->sync(c->home->backend);
    TRY(watch(c->home, err));
    st = finish(c, COMM_BARRIER, start, 0, r, err);
out:
    return st;
}

/* ---- life ---- */

static void *nccl_buffer(struct comm *comm, size_t bytes)
{
    struct home *h = nccl_of(comm)->home;
    const size_t room = h->arena_bytes - h->arena_used;
    if (bytes > room || base_align(bytes, 64) > room)
        return NULL;
    void *p = h->arena + h->arena_used;
    h->arena_used += base_align(bytes, 64);
    return p;
}

static void nccl_abort(struct comm *comm)
{
    atomic_store(&nccl_of(comm)->home->aborted, true);
}

static void home_close(struct home *h)
{
    const bool own_arena = h->arena != NULL && h->arena != h->window.memory;
    cuda_watch(h->backend, NULL, NULL);
    while (h->endings > 0)
        pthread_join(h->ending[--h->endings].thread, NULL);
    comm_oneshot_close(&h->oneshot);
    comm_window_close(&h->window, h->groups > 0 ? h->group[0] : NULL);
    for (int32_t i = h->groups; i-- > 0;)
        if (h->group[i] != NULL)
            (void)ncclCommDestroy(h->group[i]);
    if (own_arena) /* after NCCL, which may have shown it to peers */
        h->backend->ops->free(h->backend, h->arena);
    if (h->staging != NULL)
        h->backend->ops->free(h->backend, h->staging);
    free(h);
}

static void nccl_close(struct comm *comm)
{
    struct comm_nccl *c = nccl_of(comm);
    if (c->group == 0)
        home_close(c->home);
    free(c);
}

static enum status nccl_split(struct comm *comm, int32_t color, int32_t key, const char *name,
                              struct comm_stats *stats, struct comm **out, struct err *err)
{
    enum status st = OK;
    struct comm_nccl *c = nccl_of(comm), *made = NULL;
    struct home *h = c->home;
    TRY(watch(h, err));
    if (h->groups == (int32_t)ARRAY_LEN(h->group)) {
        st = base_fail(err, ERR_LIMIT, "split %s: more than %d groups", name, COMM_GROUPS_MAX);
        goto out;
    }
    made = calloc(1, sizeof *made);
    if (made == NULL) {
        st = base_fail(err, ERR_NOMEM, "split %s: out of memory", name);
        goto out;
    }
    int rank = 0, ranks = 0;
    ncclComm_t *group = &h->group[h->groups];
    /* a negative color means none there */
    ncclResult_t r = ncclCommSplit(handle(c), color & INT32_MAX, key, group, NULL);
    NEXT(r, ncclCommUserRank(*group, &rank));
    NEXT(r, ncclCommCount(*group, &ranks));
    if (r != ncclSuccess) {
        give_up(h, "split", r);
        *err = h->failure;
        st = h->failed;
        goto out;
    }
    *made = (struct comm_nccl){{comm->ops, rank, ranks, stats}, h, h->groups++};
    (void)snprintf(stats->group, sizeof stats->group, "%s", name);
    *out = &made->base;
    made = NULL;
out:
    free(made);
    return st;
}

static const struct comm_ops nccl_ops = {
    .name = "nccl",
    .buffer = nccl_buffer,
    .all_reduce = nccl_all_reduce,
    .has_norm = nccl_has_norm,
    .all_reduce_norm = nccl_all_reduce_norm,
    .all_gather = nccl_all_gather,
    .reduce_scatter = nccl_reduce_scatter,
    .broadcast = nccl_broadcast,
    .all_to_all = nccl_all_to_all,
    .barrier = nccl_barrier,
    .split = nccl_split,
    .abort = nccl_abort,
    .close = nccl_close,
};

/* NCCL reads its settings from the environment, once. What the user set holds. All ranks are on one
 * host, so its sockets have no business outside. Two ranks on one device are refused within a host:
 * there each rank says that it is a host of its own. */
static void set_environment(int32_t rank, uint32_t how)
{
    char host[32];
    setenv("NCCL_SOCKET_IFNAME", "lo", 0);
    /* while a graph is recorded ranks would wait for each other there, and one may have failed */
    setenv("NCCL_GRAPH_REGISTER", "0", 0);
    if (!(how & COMM_SHARED_DEVICE))
        return;
    (void)snprintf(host, sizeof host, "tessera-rank-%d", (int)rank);
    setenv("NCCL_HOSTID", host, 1);
    setenv("NCCL_NET", "Socket", 0);
    setenv("NCCL_P2P_DISABLE", "1", 0);
    setenv("NCCL_SHM_DISABLE", "1", 0);
    setenv("NCCL_MNNVL_ENABLE", "0", 0); /* hosts that NVLink joins would share memory, too */
}

/* The group's id, made by the first rank. */
static enum status share_id(struct comm *bootstrap, ncclUniqueId *id, struct err *err)
{
    enum status st = OK;
    ncclUniqueId *made = comm_buffer(bootstrap, sizeof *made);
    ncclUniqueId *got = comm_buffer(bootstrap, sizeof *got);
    if (made == NULL || got == NULL)
        return base_fail(err, ERR_INTERNAL, "the bootstrap communicator has no room for NCCL's id");
    ncclResult_t r = bootstrap->rank == 0 ? ncclGetUniqueId(made) : ncclSuccess;
    if (r != ncclSuccess)
        return base_fail(err, ERR_COMM, "NCCL: %s: %.160s", ncclGetErrorString(r),
                         ncclGetLastError(NULL));
    TRY(comm_broadcast(bootstrap, got, made, sizeof *got / 4, 0, err));
    *id = *got;
out:
    return st;
}

static enum status join(struct home *h, struct comm *bootstrap, struct err *err)
{
    ncclUniqueId id;
    enum status st = share_id(bootstrap, &id, err);
    if (st != OK)
        return st;
    ncclResult_t r = ncclCommInitRank(&h->group[0], bootstrap->ranks, id, bootstrap->rank);
    if (r != ncclSuccess)
        return base_fail(err, ERR_COMM, "NCCL: rank %d of %d cannot join: %s: %.160s",
                         (int)bootstrap->rank, (int)bootstrap->ranks, ncclGetErrorString(r),
                         ncclGetLastError(NULL));
    h->groups = 1;
    return OK;
}

static enum status open_arena(struct home *h, struct err *err)
{
    struct backend *b = h->backend;
    h->arena = h->window.is_good ? h->window.memory : NULL;
    if (h->arena == NULL && h->arena_bytes > 0)
        h->arena = b->ops->alloc(b, h->arena_bytes);
    if (h->arena == NULL && h->arena_bytes > 0)
        return base_fail(err, ERR_NOMEM, "no device memory for %zu bytes of collectives",
                         h->arena_bytes);
    return OK;
}

static enum status open_staging(struct home *h, struct err *err)
{
    h->gather_bytes = GATHER_BYTES;
    h->staging = h->backend->ops->alloc(h->backend, COMM_DEVICE_STAGING_BYTES);
    if (h->staging == NULL)
        return base_fail(err, ERR_NOMEM, "no device memory for %zu bytes of collectives",
                         COMM_DEVICE_STAGING_BYTES);
    return OK;
}

static bool way_of_all(void *arg, float *dst, const float *src, size_t n)
{
    const struct comm_nccl *c = arg;
    return c->home->failed == OK && reduce(arg, dst, src, n) == ncclSuccess;
}

/* How this machine adds up fastest, found by sums in memory that becomes the arena. */
static enum status find_ways(struct comm_nccl *c, struct comm *bootstrap, uint32_t how,
                             struct err *err)
{
    enum status st = OK;
    struct home *h = c->home;
    struct comm_trial *trial = NULL;
    const struct comm_way by_nccl = {way_of_all, c};
    const size_t space = h->arena_bytes / 2 / 64 * 64 / sizeof(float);
    const size_t inbox = comm_oneshot_bytes(bootstrap->ranks);
    if (space > 0)
        TRY(comm_trial_open(bootstrap, h->backend, space, &trial, err));
    if (trial != NULL && !(how & (COMM_NO_WINDOWS | COMM_FIXED_ORDER)))
        TRY(comm_window_open(trial, h->group[0], &by_nccl, h->arena_bytes, &h->window, err));
    if (!h->window.is_good && h->groups > 0) /* else it is closed when they have been aborted */
        comm_window_close(&h->window, h->group[0]);
    TRY(open_arena(h, err));
    if (trial != NULL && !(how & COMM_NO_ONESHOT) && inbox > 0) {
        comm_trial_use(trial, (float *)(void *)h->arena);
        if (h->gather_bytes > COMM_DEVICE_STAGING_BYTES - inbox)
            h->gather_bytes = COMM_DEVICE_STAGING_BYTES - inbox;
        TRY(comm_oneshot_open(trial, &by_nccl, h->staging, COMM_DEVICE_STAGING_BYTES,
                              !h->fixed_order, &h->oneshot, err));
        if (h->oneshot.max == 0)
            h->gather_bytes = GATHER_BYTES;
        if (cudaMemsetAsync(h->arena, 0, h->arena_bytes, h->stream) != cudaSuccess)
            st = base_fail(err, ERR_DEVICE, "device memory cannot be cleared");
    }
out:
    comm_trial_close(trial);
    return st;
}

static enum status open_comm(struct comm *bootstrap, struct backend *b, size_t arena_bytes,
                             uint32_t how, struct comm_stats *stats, struct comm **out,
                             struct err *err)
{
    enum status st = OK;
    struct home *h = calloc(1, sizeof *h);
    struct comm_nccl *c = calloc(1, sizeof *c);
    if (h == NULL || c == NULL) {
        free(h);
        free(c);
        return base_fail(err, ERR_NOMEM, "no memory for the communicator");
    }
    set_environment(bootstrap->rank, how);
    h->backend = b;
    h->stream = cuda_stream(b);
    h->arena_bytes = arena_bytes;
    h->fixed_order = (how & COMM_FIXED_ORDER) != 0;
    if (cudaGetDevice(&h->device) != cudaSuccess) {
        st = base_fail(err, ERR_DEVICE, "the communicator's device is not known");
        goto out;
    }
    TRY(join(h, bootstrap, err));
    cuda_watch(b, watch, h);
    *c = (struct comm_nccl){{&nccl_ops, bootstrap->rank, bootstrap->ranks, stats}, h, 0};
    TRY(open_staging(h, err));
    if (!(how & COMM_SHARED_DEVICE)) /* there they are kept from each other's */
        TRY(find_ways(c, bootstrap, how, err));
    else
        TRY(open_arena(h, err));
    if (stats->group[0] == '\0')
        (void)snprintf(stats->group, sizeof stats->group, "world");
    *out = &c->base;
    return OK;
out:
    home_close(h);
    free(c);
    return st;
}

/* ---- the module ---- */

static enum status report(struct module_report *out, struct err *err)
{
    int version = 0;
    *out = (struct module_report){0};
    if (ncclGetVersion(&version) == ncclSuccess)
        out->nccl = version;
    return report_devices(out, err);
}

const struct plugin *module_entry(void)
{
    static const struct module module = {
        {sizeof(struct module), TESSERA_BUILD}, cuda_find, cuda_open, open_comm, report};
    return &module.head;
}
