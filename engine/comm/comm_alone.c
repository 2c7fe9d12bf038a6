/* DESIGN: who has no peers receives nothing: a collective is a copy by the backend, in its order.
 * So a single GPU needs no NCCL to start. */
#include "engine/comm/comm.h"

#include <stdio.h>
#include <stdlib.h>

#define ROW_MAX ((size_t)1 << 30) /* elements, of a copy */

/* What a communicator shares with those split from it. */
struct home {
    struct backend *backend;
    char *arena;
    size_t bytes, used;
    int32_t groups;
    _Atomic bool aborted;
};

struct comm_alone {
    struct comm base;
    struct home *home;
    bool top; /* owns home */
};

static struct comm_alone *alone_of(struct comm *c)
{
    return (struct comm_alone *)c;
}

/* dst[n] = src[n] */
static void move(struct backend *b, float *dst, const float *src, size_t n)
{
    for (size_t at = 0, part; at < n; at += part) {
        part = n - at < ROW_MAX ? n - at : ROW_MAX;
        b->ops->copy(b, dst + at, part, src + at, part, 1, (int32_t)part);
    }
}

/* A collective that leaves src[n] in dst, or waits for all before it. The time is the host's: a
 * device works on. */
static enum status take(struct comm *comm, enum comm_op op, void *dst, const void *src, size_t n,
                        struct err *err)
{
    struct home *h = alone_of(comm)->home;
    const int64_t start = base_now_ns();
    if (atomic_load(&h->aborted))
        return base_fail(err, ERR_COMM, "%s: the communicator was aborted", comm_op_name(op));
    if (op == COMM_BARRIER)
        h->backend->ops->sync(h->backend);
    else
        move(h->backend, dst, src, n);
    comm_count(comm, op, start, 0);
    return OK;
}

static enum status alone_all_reduce(struct comm *c, float *dst, const float *src, size_t n,
                                    struct err *err)
{
    return take(c, COMM_ALL_REDUCE, dst, src, n, err);
}

static enum status alone_all_gather(struct comm *c, void *dst, const void *src, int32_t rows,
                                    const int32_t *cols, struct err *err)
{
    return take(c, COMM_ALL_GATHER, dst, src, (size_t)rows * (size_t)cols[0], err);
}

static enum status alone_reduce_scatter(struct comm *c, float *dst, const float *src,
                                        const size_t *counts, struct err *err)
{
    return take(c, COMM_REDUCE_SCATTER, dst, src, counts[0], err);
}

static enum status alone_broadcast(struct comm *c, void *dst, const void *src, size_t n,
                                   int32_t root, struct err *err)
{
    (void)root;
    return take(c, COMM_BROADCAST, dst, src, n, err);
}

static enum status alone_all_to_all(struct comm *c, void *dst, const size_t *recv_counts,
                                    const void *src, const size_t *send_counts, struct err *err)
{
    (void)send_counts;
    return take(c, COMM_ALL_TO_ALL, dst, src, recv_counts[0], err);
}

static enum status alone_barrier(struct comm *c, struct err *err)
{
    return take(c, COMM_BARRIER, NULL, NULL, 0, err);
}

/* ---- life ---- */

static void *alone_buffer(struct comm *c, size_t bytes)
{
    struct home *h = alone_of(c)->home;
    const size_t room = h->bytes - h->used;
    if (bytes > room || base_align(bytes, 64) > room)
        return NULL;
    void *p = h->arena + h->used;
    h->used += base_align(bytes, 64);
    return p;
}

static void alone_abort(struct comm *c)
{
    atomic_store(&alone_of(c)->home->aborted, true);
}

static void alone_close(struct comm *comm)
{
    struct comm_alone *c = alone_of(comm);
    if (c->top) {
        struct backend *b = c->home->backend;
        b->ops->free(b, c->home->arena);
        free(c->home);
    }
    free(c);
}

static enum status alone_split(struct comm *comm, int32_t color, int32_t key, const char *name,
                               struct comm_stats *stats, struct comm **out, struct err *err)
{
    struct home *h = alone_of(comm)->home;
    struct comm_alone *made = NULL;
    (void)color, (void)key;
    if (atomic_load(&h->aborted))
        return base_fail(err, ERR_COMM, "split %s: the communicator was aborted", name);
    if (h->groups == COMM_GROUPS_MAX)
        return base_fail(err, ERR_LIMIT, "split %s: more than %d groups", name, COMM_GROUPS_MAX);
    made = malloc(sizeof *made);
    if (made == NULL)
        return base_fail(err, ERR_NOMEM, "split %s: out of memory", name);
    *made = (struct comm_alone){{comm->ops, 0, 1, stats}, h, false};
    h->groups++;
    (void)snprintf(stats->group, sizeof stats->group, "%s", name);
    *out = &made->base;
    return OK;
}

static const struct comm_ops alone_ops = {
    .name = "alone",
    .buffer = alone_buffer,
    .all_reduce = alone_all_reduce,
    .has_norm = comm_no_norm,
    .all_gather = alone_all_gather,
    .reduce_scatter = alone_reduce_scatter,
    .broadcast = alone_broadcast,
    .all_to_all = alone_all_to_all,
    .barrier = alone_barrier,
    .split = alone_split,
    .abort = alone_abort,
    .close = alone_close,
};

enum status comm_alone_open(struct backend *b, size_t arena_bytes, struct comm_stats *stats,
                            struct comm **out, struct err *err)
{
    enum status st = OK;
    struct home *h = calloc(1, sizeof *h);
    struct comm_alone *c = calloc(1, sizeof *c);
    if (h == NULL || c == NULL) {
        st = base_fail(err, ERR_NOMEM, "no memory for the communicator");
        goto out;
    }
    h->arena = arena_bytes > 0 ? b->ops->alloc(b, arena_bytes) : NULL;
    if (arena_bytes > 0 && h->arena == NULL) {
        st = base_fail(err, ERR_NOMEM, "no memory for %zu bytes of collectives", arena_bytes);
        goto out;
    }
    h->backend = b;
    h->bytes = arena_bytes;
    *c = (struct comm_alone){{&alone_ops, 0, 1, stats}, h, true};
    if (stats->group[0] == '\0')
        (void)snprintf(stats->group, sizeof stats->group, "world");
    *out = &c->base;
    return OK;
out:
    free(h);
    free(c);
    return st;
}
