/* DESIGN: kernels read everything that differs between steps of one size (ids, positions, slots,
 * tables) from arrays at fixed places, so a recording is right for all of them, if they are alike
 * in whether sequences have one row each; padding rows are nothing but zeros to every op
 * (backend.h). A size is run once as it is, which opens what the
 * libraries below open lazily, and recorded the second time. Every rank sees the same steps, so all
 * try to record the same one; whether that succeeds is a rank's own luck, and a captured collective
 * must not meet one that is not, so all replay a size or none does. */
#include "engine/replay.h"

#include <stdlib.h>

/* At most a quarter of a step's rows, or 7, is padding. */
static const int32_t sizes[REPLAY_SIZES] = {
    1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, REPLAY_ROWS_MAX};

enum { GROUPS = 1 + MESH_AXES_MAX };

struct traffic {
    uint64_t calls[GROUPS][COMM_OP_COUNT], bytes[GROUPS][COMM_OP_COUNT];
};

/* Steps of one size. */
struct size {
    bool seen, refused;
    struct recording *recording;
    struct cview logits;
    struct traffic traffic; /* of one pass */
};

struct replay {
    bool enabled;
    struct replay_parts parts;
    struct size size[2][REPLAY_SIZES]; /* of steps where a sequence has several rows, or none has */
    /* 1: this rank could record. What peers may still read is not written: two in turns. */
    int32_t *mine[2], *all;
    int32_t agreed; /* so often */
};

static enum status open_verdicts(struct replay *r, struct err *err)
{
    struct comm *c = r->parts.bootstrap;
    r->mine[0] = comm_buffer(c, sizeof *r->mine[0]);
    r->mine[1] = comm_buffer(c, sizeof *r->mine[1]);
    r->all = comm_buffer(c, (size_t)c->ranks * sizeof *r->all);
    if (!r->mine[0] || !r->mine[1] || !r->all)
        return base_fail(err, ERR_LIMIT, "replay: the bootstrap communicator's arena is too small");
    return OK;
}

enum status replay_open(bool enabled, const struct replay_parts *parts, struct replay **out,
                        struct err *err)
{
    enum status st = OK;
    struct replay *r = calloc(1, sizeof *r);
    if (!r)
        return base_fail(err, ERR_NOMEM, "replay: no memory");
    r->enabled = enabled && parallel_is_recordable(model_parallel(parts->model));
    r->parts = *parts;
    if (r->enabled)
        TRY(open_verdicts(r, err));
    *out = r;
    r = NULL;
out:
    replay_close(r);
    return st;
}

void replay_close(struct replay *r)
{
    for (int32_t i = 0; r && i < 2 * REPLAY_SIZES; i++)
        if (r->size[i / REPLAY_SIZES][i % REPLAY_SIZES].recording)
            r->parts.backend->ops->recording_close(
                r->size[i / REPLAY_SIZES][i % REPLAY_SIZES].recording);
    free(r);
}

/* Of the smallest size for so many rows; REPLAY_SIZES: none is. */
static int32_t size_index(int32_t rows)
{
    int32_t i = 0;
    while (i < REPLAY_SIZES && sizes[i] < rows)
        i++;
    return i;
}

bool replay_records(const struct replay *r, int32_t rows, int32_t samples)
{
    return r->enabled && rows > 0 && rows == samples && size_index(rows) < REPLAY_SIZES;
}

int32_t replay_rows(const struct replay *r, int32_t rows, int32_t samples, bool apart)
{
    const int32_t i = size_index(rows);
    if (!replay_records(r, rows, samples) || r->size[apart][i].refused)
        return rows;
    return sizes[i] < r->parts.rows_max ? sizes[i] : r->parts.rows_max;
}

/* ---- counters ---- */

static struct comm_stats *stats_of(struct replay *r, int32_t group)
{
    return group == 0 ? &r->parts.board->comm : &r->parts.board->axis[group - 1];
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
            if (t->calls[g][op] == 0)
                continue;
            atomic_fetch_add(&stats_of(r, g)->op[op].calls, sign * t->calls[g][op]);
            atomic_fetch_add(&stats_of(r, g)->op[op].bytes, sign * t->bytes[g][op]);
        }
}

/* ---- a step ---- */

static void run(struct replay *r, const struct size *s, int32_t rows, struct cview *logits)
{
    struct backend *b = r->parts.backend;
    parallel_begin(model_parallel(r->parts.model), rows, NULL);
    b->ops->replay(b, s->recording);
    count_traffic(r, &s->traffic, 1);
    atomic_fetch_add(&r->parts.board->replays, 1);
    atomic_fetch_add_explicit(&r->parts.board->progress, (uint64_t)r->parts.layers,
                              memory_order_relaxed);
    *logits = s->logits;
}

/* Nothing of the pass has run afterwards: what it counted is taken back. */
static enum status record(struct replay *r, struct size *s, const struct model_input *in,
                          struct err *err)
{
    struct backend *b = r->parts.backend;
    if (!b->ops->record(b))
        return OK;
    read_traffic(r, &s->traffic);
    const enum status st = model_forward(r->parts.model, in, &s->logits, err);
    s->recording = b->ops->record_end(b);
    take_difference(r, &s->traffic);
    count_traffic(r, &s->traffic, UINT64_MAX);
    return st;
}

/* Whether every rank has a recording; where one has none, all drop theirs. */
static enum status agree(struct replay *r, struct size *s, int32_t rows, struct err *err)
{
    enum status st = OK;
    struct comm *c = r->parts.bootstrap;
    int32_t *mine = r->mine[r->agreed++ % 2], one[COMM_RANKS_MAX];
    for (int32_t i = 0; i < c->ranks; i++)
        one[i] = 1;
    *mine = s->recording != NULL;
    if (!*mine)
        base_log(LOG_WARN,
                 "rank %d could not record a step of %d rows as a graph: such steps launch their "
                 "kernels one by one, here and on all other ranks",
                 (int)c->rank, (int)rows);
    TRY(comm_all_gather(c, r->all, mine, 1, one, err));
    for (int32_t i = 0; i < c->ranks; i++)
        s->refused = s->refused || !r->all[i];
    if (s->refused && s->recording) {
        r->parts.backend->ops->recording_close(s->recording);
        s->recording = NULL;
    }
out:
    return st;
}

enum status replay_forward(struct replay *r, const struct model_input *in, struct cview *logits,
                           struct err *err)
{
    enum status st = OK;
    const int32_t rows = in->rows.count, i = size_index(rows);
    if (!replay_records(r, rows, in->samples))
        return model_forward(r->parts.model, in, logits, err);
    struct size *s = &r->size[in->rows.apart][i];
    if (s->seen && !s->recording && !s->refused) {
        TRY(record(r, s, in, err));
        TRY(agree(r, s, rows, err));
    }
    s->seen = true;
    if (s->recording)
        run(r, s, rows, logits);
    else
        TRY(model_forward(r->parts.model, in, logits, err));
out:
    return st;
}
