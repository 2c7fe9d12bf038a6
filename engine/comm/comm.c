/* DESIGN: the door of the collectives. Arguments are checked here once for every implementation;
 * what depends on the implementation (where buffers live, how much is moved) is checked there. */
#include "engine/comm/comm.h"

const char *comm_op_name(enum comm_op op)
{
    static const char *const names[COMM_OP_COUNT] = {
        [COMM_ALL_REDUCE] = "all_reduce",         [COMM_ALL_GATHER] = "all_gather",
        [COMM_REDUCE_SCATTER] = "reduce_scatter", [COMM_BROADCAST] = "broadcast",
        [COMM_ALL_TO_ALL] = "all_to_all",         [COMM_BARRIER] = "barrier",
    };
    return (unsigned)op < COMM_OP_COUNT ? names[op] : "unknown";
}

uint64_t comm_all_reduce_bytes(int32_t ranks, int32_t rank, size_t n)
{
    const uint64_t peers = (uint64_t)ranks - 1;
    if (peers <= 1 || 4 * n <= COMM_ONESHOT_MAX_BYTES)
        return 4 * peers * n;
    const uint64_t own = comm_block_begin(n, ranks, rank + 1) - comm_block_begin(n, ranks, rank);
    return 4 * (peers * own + (n - own));
}

size_t comm_block_begin(size_t n, int32_t ranks, int32_t rank)
{
    const size_t p = (size_t)ranks, r = (size_t)rank;
    return n / p * r + n % p * r / p; /* floor(n r / p) without the product of n */
}

/* Relaxed load and store instead of an atomic addition: this rank is the only writer. */
static void bump(_Atomic uint64_t *counter, uint64_t by)
{
    const uint64_t now = atomic_load_explicit(counter, memory_order_relaxed);
    atomic_store_explicit(counter, now + by, memory_order_relaxed);
}

void comm_count(struct comm *c, enum comm_op op, int64_t start_ns, size_t elements)
{
    bump(&c->stats->op[op].calls, 1);
    bump(&c->stats->op[op].bytes, 4 * (uint64_t)elements);
    bump(&c->stats->op[op].nanoseconds, (uint64_t)(base_now_ns() - start_ns));
}

void *comm_buffer(struct comm *c, size_t bytes)
{
    return c->ops->buffer(c, bytes);
}

enum status comm_all_reduce(struct comm *c, float *dst, const float *src, size_t n, struct err *err)
{
    CHECK(n == 0 || dst != NULL);
    CHECK(n == 0 || src != NULL);
    CHECK(n == 0 || dst != src);
    return c->ops->all_reduce(c, dst, src, n, err);
}

bool comm_has_norm(const struct comm *c, int32_t rows, int32_t cols)
{
    return c->ops->has_norm(c, rows, cols);
}

bool comm_no_norm(const struct comm *c, int32_t rows, int32_t cols)
{
    (void)c, (void)rows, (void)cols;
    return false;
}

enum status comm_all_reduce_norm(struct comm *c, const struct add_norm *to, const float *src,
                                 struct err *err)
{
    CHECK(to->y.rows == to->x.rows && to->y.cols == to->x.cols);
    CHECK(c->ops->has_norm(c, to->x.rows, to->x.cols));
    CHECK(src != to->x.data && src != to->y.data && to->x.data != to->y.data);
    CHECK(to->gain != NULL);
    return c->ops->all_reduce_norm(c, to, src, err);
}

enum status comm_all_gather(struct comm *c, void *dst, const void *src, int32_t rows,
                            const int32_t *cols, struct err *err)
{
    CHECK(rows >= 0);
    CHECK(cols != NULL);
    int64_t total = 0;
    for (int32_t r = 0; r < c->ranks; r++) {
        CHECK(cols[r] >= 0);
        total += cols[r];
    }
    CHECK(rows == 0 || total == 0 || dst != NULL);
    CHECK(rows == 0 || cols[c->rank] == 0 || src != NULL);
    CHECK(rows == 0 || cols[c->rank] == 0 || dst != src);
    return c->ops->all_gather(c, dst, src, rows, cols, err);
}

enum status comm_reduce_scatter(struct comm *c, float *dst, const float *src, const size_t *counts,
                                struct err *err)
{
    CHECK(counts != NULL);
    size_t total = 0;
    for (int32_t r = 0; r < c->ranks; r++)
        CHECK(base_add(total, counts[r], &total));
    CHECK(total == 0 || src != NULL);
    CHECK(counts[c->rank] == 0 || dst != NULL);
    CHECK(counts[c->rank] == 0 || dst != src);
    return c->ops->reduce_scatter(c, dst, src, counts, err);
}

enum status comm_broadcast(struct comm *c, void *dst, const void *src, size_t n, int32_t root,
                           struct err *err)
{
    CHECK(root >= 0);
    CHECK(root < c->ranks);
    CHECK(n == 0 || dst != NULL);
    CHECK(n == 0 || c->rank != root || src != NULL);
    CHECK(n == 0 || c->rank != root || dst != src);
    return c->ops->broadcast(c, dst, src, n, root, err);
}

enum status comm_all_to_all(struct comm *c, void *dst, const size_t *recv_counts, const void *src,
                            const size_t *send_counts, struct err *err)
{
    CHECK(recv_counts != NULL);
    CHECK(send_counts != NULL);
    size_t sent = 0, received = 0;
    for (int32_t r = 0; r < c->ranks; r++) {
        CHECK(base_add(sent, send_counts[r], &sent));
        CHECK(base_add(received, recv_counts[r], &received));
    }
    CHECK(sent == 0 || src != NULL);
    CHECK(received == 0 || dst != NULL);
    CHECK(sent == 0 || dst != src);
    return c->ops->all_to_all(c, dst, recv_counts, src, send_counts, err);
}

enum status comm_barrier(struct comm *c, struct err *err)
{
    return c->ops->barrier(c, err);
}

enum status comm_split(struct comm *c, int32_t color, int32_t key, const char *name,
                       struct comm_stats *stats, struct comm **out, struct err *err)
{
    CHECK(name != NULL);
    CHECK(stats != NULL);
    CHECK(out != NULL);
    return c->ops->split(c, color, key, name, stats, out, err);
}

void comm_abort(struct comm *c)
{
    c->ops->abort(c);
}

void comm_close(struct comm *c)
{
    if (c != NULL)
        c->ops->close(c);
}
