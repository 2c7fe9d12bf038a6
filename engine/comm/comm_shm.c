/* DESIGN: every rank reads its peers' sources in place; only offsets are exchanged, because each
 * process maps the region at its own address. A collective is: meet (all sources are ready), write
 * dst from the peers' memory, return. There is no trailing barrier. Why that is safe: let a rank
 * return from collective k + 1. It has met all members in k + 1, each of which arrived there after
 * its own collective k had returned, thus after its last read of anybody's k buffers. So buffers of
 * k may be written from then on, and by k + 1 itself, which writes only after its meeting.
 * Two-shot: block x of the sum is made by rank x in its own dst (after the first meeting: nobody
 * reads that dst for k - 1 any more), then copied from there after a second meeting.
 * Sums are sum_tree over all members in rank order, own source included: equal bits everywhere. */
#include "engine/comm/comm_shm_meet.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAGE 4096
#define COPY_GRAIN_BYTES ((size_t)64 << 10) /* below this a copy is not worth a second thread */

/* ---- region ---- */

static size_t arena_start(int32_t ranks)
{
    size_t seats = (size_t)(1 + COMM_GROUPS_MAX) * (size_t)ranks * sizeof(struct comm_shm_seat);
    return base_align(sizeof(struct comm_shm_region) + seats, PAGE);
}

size_t comm_shm_bytes(int32_t ranks, size_t arena_bytes)
{
    size_t arenas, total;
    CHECK(ranks >= 1);
    CHECK(ranks <= COMM_RANKS_MAX);
    CHECK(base_mul((size_t)ranks, base_align(arena_bytes, PAGE), &arenas));
    CHECK(base_add(arena_start(ranks), arenas, &total));
    return total;
}

void comm_shm_init(void *region, int32_t ranks, size_t arena_bytes)
{
    struct comm_shm_region *r = region;
    CHECK(ranks >= 1);
    CHECK(ranks <= COMM_RANKS_MAX);
    CHECK((uintptr_t)region % PAGE == 0);
    r->version = COMM_SHM_VERSION;
    r->ranks = ranks;
    r->arena_bytes = base_align(arena_bytes, PAGE);
    r->arena_start = arena_start(ranks);
    for (int32_t i = 0; i < (1 + COMM_GROUPS_MAX) * ranks; i++)
        atomic_store(&r->seats[i].door.count, COMM_SHM_COUNT_FIRST);
    r->magic = COMM_SHM_MAGIC;
}

static char *arena_of(const struct comm_shm_home *home)
{
    const struct comm_shm_region *r = home->region;
    return (char *)home->region + r->arena_start + (size_t)home->rank * r->arena_bytes;
}

/* Offset of a buffer of this rank, for the peers. */
static uint64_t offset_of(const struct comm_shm *c, const void *p, size_t bytes)
{
    if (bytes == 0)
        return 0;
    uintptr_t start = (uintptr_t)arena_of(c->home), at = (uintptr_t)p;
    CHECK(at >= start); /* buffers come from comm_buffer only */
    CHECK(at - start <= c->home->arena_used);
    CHECK(bytes <= c->home->arena_used - (at - start));
    return at - (uintptr_t)c->home->region;
}

static const float *source_of(const struct comm_shm *c, int32_t rank)
{
    return (const float *)((const char *)c->home->region + comm_shm_meet_call(c, rank)->src);
}

/* ---- copies ---- */

/* A [rows, cols] block of 4-byte elements between two strided places. */
struct block {
    char *dst;
    const char *src;
    size_t cols, dst_stride, src_stride; /* in elements */
};

static void copy_rows(void *arg, int64_t begin, int64_t end)
{
    const struct block *b = arg;
    for (int64_t i = begin; i < end; i++)
        memcpy(b->dst + (size_t)i * b->dst_stride * 4, b->src + (size_t)i * b->src_stride * 4,
               b->cols * 4);
}

static void copy_cols(void *arg, int64_t begin, int64_t end)
{
    const struct block *b = arg;
    memcpy(b->dst + begin * 4, b->src + begin * 4, (size_t)(end - begin) * 4);
}

static void copy(struct comm_shm *c, struct block b, size_t rows)
{
    if (rows == 0 || b.cols == 0)
        return;
    if (rows * b.cols * 4 <= COPY_GRAIN_BYTES)
        copy_rows(&b, 0, (int64_t)rows);
    else if (rows == 1)
        backend_parallel(c->home->backend, (int64_t)b.cols, COPY_GRAIN_BYTES / 4, copy_cols, &b);
    else
        backend_parallel(c->home->backend, (int64_t)rows,
                         (int64_t)(1 + COPY_GRAIN_BYTES / (b.cols * 4)), copy_rows, &b);
}

static void copy_flat(struct comm_shm *c, void *dst, const void *src, size_t n)
{
    copy(c, (struct block){dst, src, n, n, n}, 1);
}

/* dst[n] = sum over all members of their source[first .. first + n) */
static void sum_sources(struct comm_shm *c, float *dst, size_t first, size_t n)
{
    const float *addends[COMM_RANKS_MAX];
    if (n == 0)
        return;
    for (int32_t r = 0; r < c->base.ranks; r++)
        addends[r] = source_of(c, r) + first;
    struct backend *b = c->home->backend;
    b->ops->sum_tree(b, dst, addends, c->base.ranks, n);
    b->ops->sync(b);
}

/* ---- counters ---- */

/* Opens every collective: sources made by asynchronous ops must be in memory. Returns the time. */
static int64_t begin(struct comm_shm *c)
{
    c->home->backend->ops->sync(c->home->backend);
    return base_now_ns();
}

static enum status finish(struct comm_shm *c, int64_t start_ns, enum comm_op op, size_t elements)
{
    comm_count(&c->base, op, start_ns, elements);
    return OK;
}

/* ---- collectives ---- */

static size_t block_begin(const struct comm_shm *c, size_t n, int32_t x)
{
    return comm_block_begin(n, c->base.ranks, x);
}

static enum status reduce_two_shot(struct comm_shm *c, float *dst, struct comm_shm_call *call,
                                   struct err *err)
{
    enum status st;
    uint64_t peer_dst[COMM_RANKS_MAX];
    size_t begin_own = block_begin(c, call->n, c->base.rank);
    size_t end_own = block_begin(c, call->n, c->base.rank + 1);
    sum_sources(c, dst + begin_own, begin_own, end_own - begin_own);
    for (int32_t r = 0; r < c->base.ranks; r++)
        peer_dst[r] = comm_shm_meet_call(c, r)->dst;
    call->check = 2; /* the second half */
    TRY(comm_shm_meet(c, call, NULL, err));
    for (int32_t r = 0; r < c->base.ranks; r++) {
        size_t first = block_begin(c, call->n, r), past = block_begin(c, call->n, r + 1);
        const char *theirs = (const char *)c->home->region + peer_dst[r];
        if (r != c->base.rank)
            copy_flat(c, dst + first, theirs + first * 4, past - first);
    }
out:
    return st;
}

static enum status shm_all_reduce(struct comm *comm, float *dst, const float *src, size_t n,
                                  struct err *err)
{
    enum status st;
    struct comm_shm *c = (struct comm_shm *)comm;
    int64_t start = begin(c);
    size_t peers = (size_t)c->base.ranks - 1, received = peers * n;
    struct comm_shm_call call = {.op = COMM_ALL_REDUCE,
                                 .n = n,
                                 .src = offset_of(c, src, n * 4),
                                 .dst = offset_of(c, dst, n * 4)};
    TRY(comm_shm_meet(c, &call, NULL, err));
    if (peers <= 1 || n * 4 <= COMM_ONESHOT_MAX_BYTES) {
        sum_sources(c, dst, 0, n);
    } else {
        size_t own = block_begin(c, n, comm->rank + 1) - block_begin(c, n, comm->rank);
        received = peers * own + (n - own);
        TRY(reduce_two_shot(c, dst, &call, err));
    }
    st = finish(c, start, COMM_ALL_REDUCE, received);
out:
    return st;
}

static enum status shm_all_gather(struct comm *comm, void *dst, const void *src, int32_t rows,
                                  const int32_t *cols, struct err *err)
{
    enum status st;
    struct comm_shm *c = (struct comm_shm *)comm;
    int64_t start = begin(c);
    size_t total = 0, first = 0, own = (size_t)cols[comm->rank], height = (size_t)rows;
    for (int32_t r = 0; r < comm->ranks; r++)
        total += (size_t)cols[r];
    (void)offset_of(c, dst, height * total * 4);
    struct comm_shm_call call = {
        .op = COMM_ALL_GATHER,
        .n = height,
        .check = base_hash(BASE_HASH_INIT, cols, (size_t)comm->ranks * sizeof cols[0]),
        .src = offset_of(c, src, height * own * 4)};
    TRY(comm_shm_meet(c, &call, NULL, err));
    for (int32_t r = 0; r < comm->ranks; r++) {
        size_t width = (size_t)cols[r];
        if (width > 0)
            copy(c,
                 (struct block){(char *)dst + first * 4, (const char *)source_of(c, r), width,
                                total, width},
                 height);
        first += width;
    }
    st = finish(c, start, COMM_ALL_GATHER, height * (total - own));
out:
    return st;
}

static enum status shm_reduce_scatter(struct comm *comm, float *dst, const float *src,
                                      const size_t *counts, struct err *err)
{
    enum status st;
    struct comm_shm *c = (struct comm_shm *)comm;
    int64_t start = begin(c);
    size_t total = 0, first = 0, own = counts[comm->rank];
    for (int32_t r = 0; r < comm->ranks; r++) {
        total += counts[r];
        first += r < comm->rank ? counts[r] : 0;
    }
    (void)offset_of(c, dst, own * 4);
    struct comm_shm_call call = {
        .op = COMM_REDUCE_SCATTER,
        .n = total,
        .check = base_hash(BASE_HASH_INIT, counts, (size_t)comm->ranks * sizeof counts[0]),
        .src = offset_of(c, src, total * 4)};
    TRY(comm_shm_meet(c, &call, NULL, err));
    sum_sources(c, dst, first, own);
    st = finish(c, start, COMM_REDUCE_SCATTER, ((size_t)comm->ranks - 1) * own);
out:
    return st;
}

static enum status shm_broadcast(struct comm *comm, void *dst, const void *src, size_t n,
                                 int32_t root, struct err *err)
{
    enum status st;
    struct comm_shm *c = (struct comm_shm *)comm;
    int64_t start = begin(c);
    bool sends = comm->rank == root;
    (void)offset_of(c, dst, n * 4);
    struct comm_shm_call call = {.op = COMM_BROADCAST,
                                 .n = n,
                                 .check = (uint64_t)root,
                                 .src = sends ? offset_of(c, src, n * 4) : 0};
    TRY(comm_shm_meet(c, &call, NULL, err));
    copy_flat(c, dst, source_of(c, root), n);
    st = finish(c, start, COMM_BROADCAST, sends ? 0 : n);
out:
    return st;
}

static enum status shm_all_to_all(struct comm *comm, void *dst, const size_t *recv_counts,
                                  const void *src, const size_t *send_counts, struct err *err)
{
    enum status st;
    struct comm_shm *c = (struct comm_shm *)comm;
    int64_t start = begin(c);
    size_t sent = 0, received = 0, at = 0;
    for (int32_t r = 0; r < comm->ranks; r++) {
        sent += send_counts[r];
        received += recv_counts[r];
    }
    (void)offset_of(c, dst, received * 4);
    struct comm_shm_call call = {.op = COMM_ALL_TO_ALL, .src = offset_of(c, src, sent * 4)};
    TRY(comm_shm_meet(c, &call, send_counts, err));
    for (int32_t r = 0; r < comm->ranks; r++) {
        const uint64_t *counts = comm_shm_meet_counts(c, r);
        size_t first = 0;
        for (int32_t to = 0; to < comm->rank; to++)
            first += counts[to];
        if (counts[comm->rank] != recv_counts[r])
            return comm_shm_meet_diverged(c, r, "it sends another count than is received", err);
        copy_flat(c, (char *)dst + at * 4, source_of(c, r) + first, recv_counts[r]);
        at += recv_counts[r];
    }
    st = finish(c, start, COMM_ALL_TO_ALL, received - recv_counts[comm->rank]);
out:
    return st;
}

static enum status shm_barrier(struct comm *comm, struct err *err)
{
    enum status st;
    struct comm_shm *c = (struct comm_shm *)comm;
    int64_t start = begin(c);
    struct comm_shm_call call = {.op = COMM_BARRIER};
    TRY(comm_shm_meet(c, &call, NULL, err));
    st = finish(c, start, COMM_BARRIER, 0);
out:
    return st;
}

/* ---- life ---- */

static void *shm_buffer(struct comm *comm, size_t bytes)
{
    struct comm_shm_home *home = ((struct comm_shm *)comm)->home;
    size_t room = home->region->arena_bytes - home->arena_used;
    if (bytes > room) /* also keeps the rounding below from wrapping */
        return NULL;
    bytes = base_align(bytes > 0 ? bytes : 1, 64);
    if (bytes > room)
        return NULL;
    void *p = arena_of(home) + home->arena_used;
    home->arena_used += bytes;
    return p;
}

static void shm_abort(struct comm *comm)
{
    comm_shm_meet_abort((struct comm_shm *)comm);
}

static void shm_close(struct comm *comm)
{
    struct comm_shm *c = (struct comm_shm *)comm;
    if (c->top)
        free(c->home);
    free(c);
}

/* Fills member[] with those of equal color, by key then rank; returns how many. */
static int32_t choose_members(const struct comm_shm *c, int32_t color, int32_t *member)
{
    int32_t count = 0, keys[COMM_RANKS_MAX];
    for (int32_t r = 0; r < c->base.ranks; r++) {
        const struct comm_shm_call *call = comm_shm_meet_call(c, r);
        if (call->color != color)
            continue;
        int32_t i = count++;
        for (; i > 0 && keys[i - 1] > call->key; i--) {
            keys[i] = keys[i - 1];
            member[i] = member[i - 1];
        }
        keys[i] = call->key;
        member[i] = c->member[r];
    }
    return count;
}

static void take_seats(struct comm_shm *c, int32_t group)
{
    struct comm_shm_region *region = c->home->region;
    c->seats = region->seats + (size_t)group * (size_t)region->ranks;
    c->door = &c->seats[c->member[0]].door;
    c->phase = COMM_SHM_PHASE_FIRST;
    c->target = COMM_SHM_COUNT_FIRST;
}

/* A split takes one row of seats for all its colors: colors are disjoint, and each uses the door of
 * its own first member. The row is the first one that no member of the parent has used. */
static enum status shm_split(struct comm *comm, int32_t color, int32_t key, const char *name,
                             struct comm_stats *stats, struct comm **out, struct err *err)
{
    enum status st;
    struct comm_shm *c = (struct comm_shm *)comm, *made = calloc(1, sizeof *made);
    if (made == NULL) {
        comm_shm_meet_abort(c);
        return base_fail(err, ERR_NOMEM, "split %s: out of memory", name);
    }
    struct comm_shm_call call = {
        .op = COMM_SHM_SPLIT, .color = color, .key = key, .src = (uint64_t)c->home->groups};
    TRY(comm_shm_meet(c, &call, NULL, err));
    uint64_t used = 0;
    for (int32_t r = 0; r < comm->ranks; r++)
        used = comm_shm_meet_call(c, r)->src > used ? comm_shm_meet_call(c, r)->src : used;
    if (used >= COMM_GROUPS_MAX)
        TRY(base_fail(err, ERR_LIMIT, "split %s: more than %d groups", name, COMM_GROUPS_MAX));
    made->home = c->home;
    made->base = (struct comm){comm->ops, 0, choose_members(c, color, made->member), stats};
    while (made->member[made->base.rank] != c->home->rank)
        made->base.rank++;
    c->home->groups = (int32_t)used + 1;
    take_seats(made, c->home->groups);
    (void)snprintf(stats->group, sizeof stats->group, "%s", name);
    *out = &made->base;
    made = NULL;
out:
    free(made);
    return st;
}

static const struct comm_ops shm_ops = {
    .name = "shm",
    .buffer = shm_buffer,
    .all_reduce = shm_all_reduce,
    .has_norm = comm_no_norm,
    .all_gather = shm_all_gather,
    .reduce_scatter = shm_reduce_scatter,
    .broadcast = shm_broadcast,
    .all_to_all = shm_all_to_all,
    .barrier = shm_barrier,
    .split = shm_split,
    .abort = shm_abort,
    .close = shm_close,
};

/* Ranks may be pinned to one CPU each, so one rank's mask says nothing: the union counts. */
static void enter_cpus(struct comm_shm_region *region)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return;
    for (size_t cpu = 0; cpu < COMM_SHM_CPU_WORDS * 64 && cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &set))
            atomic_fetch_or(&region->cpus[cpu / 64], 1ull << (cpu % 64));
}

enum status comm_shm_open(void *region, int32_t rank, struct backend *b, struct comm_stats *stats,
                          struct comm **out, struct err *err)
{
    struct comm_shm_region *r = region;
    CHECK(b != NULL);
    CHECK(stats != NULL);
    if (r->magic != COMM_SHM_MAGIC || r->version != COMM_SHM_VERSION)
        return base_fail(err, ERR_COMM, "rank %d: not a collectives region of this version",
                         (int)rank);
    if (rank < 0 || rank >= r->ranks)
        return base_fail(err, ERR_COMM, "rank %d: the collectives region is for %d ranks",
                         (int)rank, (int)r->ranks);
    if ((atomic_fetch_or(&r->opened, 1ull << rank) >> rank & 1) != 0)
        return base_fail(err, ERR_COMM, "rank %d: opened twice in one region", (int)rank);
    struct comm_shm *c = calloc(1, sizeof *c);
    struct comm_shm_home *home = calloc(1, sizeof *home);
    if (c == NULL || home == NULL) {
        free(c);
        free(home);
        return base_fail(err, ERR_NOMEM, "rank %d: no memory for collectives", (int)rank);
    }
    enter_cpus(r);
    *home = (struct comm_shm_home){.region = r, .backend = b, .rank = rank, .crowded = true};
    *c = (struct comm_shm){.base = {&shm_ops, rank, r->ranks, stats}, .home = home, .top = true};
    for (int32_t i = 0; i < r->ranks; i++)
        c->member[i] = i;
    take_seats(c, 0);
    if (stats->group[0] == '\0')
        (void)snprintf(stats->group, sizeof stats->group, "world");
    *out = &c->base;
    return OK;
}
