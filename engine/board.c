/* DESIGN: one list of the counters serves both directions, so they cannot disagree about order. */
#include "engine/board.h"

static int list_stats(struct comm_stats *s, _Atomic uint64_t **out)
{
    int n = 0;
    for (int op = 0; op < COMM_OP_COUNT; op++) {
        out[n++] = &s->op[op].calls;
        out[n++] = &s->op[op].bytes;
        out[n++] = &s->op[op].nanoseconds;
    }
    return n;
}

static void list(struct board_rank *b, _Atomic uint64_t *out[BOARD_COUNTERS])
{
    int n = 0;
    out[n++] = &b->progress;
    out[n++] = &b->weight_bytes;
    out[n++] = &b->read_bytes;
    out[n++] = &b->sampler_fallbacks;
    out[n++] = &b->replays;
    out[n++] = &b->load.bytes_done;
    for (int i = 0; i < LOADER_READERS_MAX; i++)
        out[n++] = &b->load.reading[i];
    n += list_stats(&b->comm, out + n);
    for (int i = 0; i < MESH_AXES_MAX; i++)
        n += list_stats(&b->axis[i], out + n);
    CHECK(n == BOARD_COUNTERS);
}

void board_tell(const struct board_rank *b, struct board_report *out)
{
    _Atomic uint64_t *from[BOARD_COUNTERS];
    list((struct board_rank *)(uintptr_t)b, from); /* only read here */
    out->magic = BOARD_REPORT_MAGIC;
    out->counters = BOARD_COUNTERS;
    for (int i = 0; i < BOARD_COUNTERS; i++)
        out->counter[i] = atomic_load_explicit(from[i], memory_order_relaxed);
}

enum status board_hear(struct board_rank *b, const struct board_report *r, struct err *err)
{
    _Atomic uint64_t *to[BOARD_COUNTERS];
    if (r->magic != BOARD_REPORT_MAGIC || r->counters != BOARD_COUNTERS)
        return base_fail(err, ERR_COMM, "a report of %u counters, expected %d", r->counters,
                         BOARD_COUNTERS);
    list(b, to);
    for (int i = 0; i < BOARD_COUNTERS; i++)
        atomic_store_explicit(to[i], r->counter[i], memory_order_relaxed);
    return OK;
}
