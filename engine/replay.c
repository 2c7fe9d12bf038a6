/* DESIGN: kernels read everything that differs between steps of one size (ids, positions, slots,
 * tables) from arrays at fixed places, so a recording is right for all of them. Each size has its
 * own: padding to fewer of them would move and multiply rows that nobody asked for. A size is run
 * once as it is, which opens what the libraries below open lazily, and recorded the second time.
 * Every rank sees the same steps, so all record and replay the same ones. */
#include "engine/replay.h"

#include <stdlib.h>

enum { GROUPS = 1 + MESH_AXES_MAX };

struct traffic {
    uint64_t calls[GROUPS][COMM_OP_COUNT], bytes[GROUPS][COMM_OP_COUNT];
};

/* A number of rows, all of them sampled. */
struct size {
    bool seen, refused;
    struct recording *recording;
    struct cview logits;
    struct traffic traffic; /* of one pass */
};

struct replay {
    bool enabled;
    struct backend *b;
    struct model *model;
    struct board_rank *board;
    int32_t layers;
    struct size size[REPLAY_ROWS_MAX + 1];
};

enum status replay_open(bool enabled, struct backend *b, struct model *m, struct board_rank *board,
                        int32_t layers, struct replay **out, struct err *err)
{
    struct replay *r = calloc(1, sizeof *r);
    if (!r)
        return base_fail(err, ERR_NOMEM, "replay: no memory");
    r->enabled = enabled && parallel_is_recordable(model_parallel(m));
    r->b = b;
    r->model = m;
    r->board = board;
    r->layers = layers;
    *out = r;
    return OK;
}

void replay_close(struct replay *r)
{
    for (int32_t i = 0; r && i <= REPLAY_ROWS_MAX; i++)
        if (r->size[i].recording)
            r->b->ops->recording_close(r->size[i].recording);
    free(r);
}

/* ---- counters ---- */

static struct comm_stats *stats_of(struct replay *r, int32_t group)
{
    return group == 0 ? &r->board->comm : &r->board->axis[group - 1];
}

static void read_traffic(struct replay *r, struct traffic *t)
{
    for (int32_t g = 0; g < GROUPS; g++)
        for (int32_t op = 0; op < COMM_OP_COUNT; op++) {
            t->calls[g][op] = atomic_load(&stats_of(r, g)->op[op].calls);
            t->bytes[g][op] = atomic_load(&stats_of(r, g)->op[op].bytes);
        }
}

/* *t = what has been added since. */
static void take_difference(struct replay *r, struct traffic *t)
{
    struct traffic now;
    read_traffic(r, &now);
    for (int32_t g = 0; g < GROUPS; g++)
        for (int32_t op = 0; op < COMM_OP_COUNT; op++) {
            t->calls[g][op] = now.calls[g][op] - t->calls[g][op];
            t->bytes[g][op] = now.bytes[g][op] - t->bytes[g][op];
        }
}

/* Once more, or, with sign -1, once less. */
static void count_traffic(struct replay *r, const struct traffic *t, uint64_t sign)
{
    for (int32_t g = 0; g < GROUPS; g++)
        for (int32_t op = 0; op < COMM_OP_COUNT; op++) {
            atomic_fetch_add(&stats_of(r, g)->op[op].calls, sign * t->calls[g][op]);
            atomic_fetch_add(&stats_of(r, g)->op[op].bytes, sign * t->bytes[g][op]);
        }
}

/* ---- a step ---- */

static void run(struct replay *r, const struct size *s, int32_t rows, struct cview *logits)
{
    parallel_begin(model_parallel(r->model), rows, NULL);
    r->b->ops->replay(r->b, s->recording);
    count_traffic(r, &s->traffic, 1);
    atomic_fetch_add(&r->board->replays, 1);
    atomic_fetch_add_explicit(&r->board->progress, (uint64_t)r->layers, memory_order_relaxed);
    *logits = s->logits;
}

/* Nothing of the pass has run afterwards: what it counted is taken back. */
static enum status record(struct replay *r, struct size *s, const struct model_input *in,
                          struct err *err)
{
    read_traffic(r, &s->traffic);
    const enum status st = model_forward(r->model, in, &s->logits, err);
    s->recording = r->b->ops->record_end(r->b);
    s->refused = s->recording == NULL;
    take_difference(r, &s->traffic);
    count_traffic(r, &s->traffic, UINT64_MAX);
    return st;
}

enum status replay_forward(struct replay *r, const struct model_input *in, struct cview *logits,
                           struct err *err)
{
    enum status st = OK;
    const int32_t rows = in->rows.count;
    const bool small = rows > 0 && rows == in->samples && rows <= REPLAY_ROWS_MAX;
    struct size *s = &r->size[small ? rows : 0];
    if (!r->enabled || !small)
        return model_forward(r->model, in, logits, err);
    if (s->seen && !s->recording && !s->refused) {
        if (r->b->ops->record(r->b))
            TRY(record(r, s, in, err));
        else
            s->refused = true;
    }
    s->seen = true;
    if (s->recording)
        run(r, s, rows, logits);
    else
        st = model_forward(r->model, in, logits, err);
out:
    return st;
}
