/* DESIGN: what a server has slots for is measured as the decodes that it will be, so that a device
 * has recorded some sizes of them when it serves. Every row is sampled, so a prompt's rows come out
 * a little dearer than they are and steps a little shorter than they may be. A step that is over
 * quickly is timed more than once and the best counts; so is one of twice the rows that takes more
 * than twice the time: the first of a size may load kernels, as GPUs do (on an H200 five of 64
 * streams decoded at a time for it). All homes have as many rows: what ranks do for theirs they do
 * at the same time and wait for each other, so a step with fewer rows in some takes no less for
 * that. */
#include "engine/costs.h"

#include "engine/comm/comm.h"
#include "engine/kv.h"

#include <math.h>
#include <stdlib.h>

enum { REPEATS = 3, FAR_POSITIONS = 1024 };
#define QUICK_SECONDS 0.02

double costs_of(const struct costs *c, int32_t rows, int64_t keys)
{
    if (c->count == 0)
        return 0;
    if (c->count == 1)
        return c->seconds[0] + c->per_key * (double)keys;
    int32_t i = 1;
    while (i < c->count - 1 && rows > c->rows[i])
        i++;
    const double slope =
        (c->seconds[i] - c->seconds[i - 1]) / (double)(c->rows[i] - c->rows[i - 1]);
    return c->seconds[i] + slope * (double)(rows - c->rows[i]) + c->per_key * (double)keys;
}

struct bench {
    struct link_set *links;
    link_patience *patience;
    void *ctx;
    struct step *step;
    void *message;
    int32_t *zeros; /* [history_max] */
};

/* Homes that have sequences. */
static int32_t homes_of(const struct step_limits *l)
{
    return base_min32(l->homes, l->slots);
}

/* What rows [position, end) see, in blocks from `first` on. Groups of layers have the same blocks
 * here: what is in them does not matter, and layers run one after the other. */
static void append_seen(struct step *s, int32_t slot, int32_t first, int32_t position, int32_t end)
{
    const struct kv_groups *groups = &s->limits.groups;
    for (int32_t g = 0; g < kv_groups_count(groups); g++) {
        int32_t i = g < groups->keep ? 0 : kv_groups_first(groups, position);
        for (; i < kv_blocks_for(end); i++)
            s->append[s->appends++] =
                (struct step_append){slot, g, i, (first + i) % s->limits.blocks};
    }
}

/* Adds rows of a sequence of zeros from `position` on, the i-th of a home that has n. */
static void add(struct bench *b, int32_t home, int32_t i, int32_t n, int32_t position, int32_t rows)
{
    struct step *s = b->step;
    const int32_t slot = home * n + i, end = position + rows, past = s->rows + rows;
    s->open[s->opens++] = (struct step_open){.slot = slot,
                                             .history = end,
                                             .home = home,
                                             .state = -1,
                                             .tokens = b->zeros,
                                             .params = {.top_p = 1},
                                             .rules = {.repetition = 1, .prompt = end}};
    append_seen(s, slot, i, position, end);
    for (; s->rows < past; s->rows++) {
        s->position[s->rows] = position++;
        s->slot[s->rows] = slot;
        s->token[s->rows] = 0;
        s->keep[s->rows] = -1;
        if (s->samples == s->limits.samples)
            continue;
        s->sample[s->samples] = s->rows;
        s->target[s->samples] = s->limits.columns > 0 ? 0 : STEP_TARGET_SAMPLE;
        s->top[s->samples++] = -1;
    }
}

/* Whether each home has slots and blocks for a sequence of each row. */
static bool fits_apart(const struct step_limits *l, int32_t rows)
{
    return homes_of(l) * rows <= l->slots && rows <= l->blocks;
}

/* A step of so many rows from `position` on in each home: of a sequence each, as decodes are, or of
 * one. */
static void fill(struct bench *b, bool apart, int32_t position, int32_t rows)
{
    const int32_t homes = homes_of(&b->step->limits), sequences = apart ? rows : 1;
    step_clear(b->step);
    for (int32_t i = 0; i < homes * sequences; i++)
        add(b, i / sequences, i % sequences, sequences, position, rows / sequences);
}

/* Seconds of the step that is filled. */
static enum status time_step(struct bench *b, double *seconds, struct err *err)
{
    enum status st = OK;
    struct link_answer answers[COMM_RANKS_MAX];
    const double start = base_now();
    b->step->seq++;
    TRY(link_exchange(b->links, b->message, step_encode(b->step, b->message), b->patience, b->ctx,
                      answers, err));
    *seconds = base_now() - start;
out:
    return st;
}

/* expected: more than this is doubted. Only the first step opens slots, as decodes do not. */
static enum status time_rows(struct bench *b, bool apart, int32_t position, int32_t rows,
                             double expected, double *best, struct err *err)
{
    enum status st = OK;
    double seconds = 0;
    for (int32_t i = 0; i < REPEATS; i++) {
        if (i > 0 && *best >= QUICK_SECONDS && *best <= expected)
            break;
        fill(b, apart, position, rows);
        if (i > 0)
            b->step->opens = b->step->appends = 0;
        TRY(time_step(b, &seconds, err));
        if (i == 0 || seconds < *best)
            *best = seconds;
    }
out:
    return st;
}

/* Most rows that all homes can have. */
static int32_t rows_max(const struct step_limits *l)
{
    const int32_t share = base_min32(l->home_rows, l->rows / homes_of(l));
    const int32_t most = base_min32(share, l->history_max - 1);
    if (most > 1 && kv_blocks_for(most) >= l->blocks) /* no two rows write the same position */
        return l->blocks > 1 ? (l->blocks - 1) * BACKEND_BLOCK_TOKENS : 1;
    return most;
}

/* What each earlier position adds to a step with so many rows of one sequence. */
static enum status measure_keys(struct bench *b, int32_t rows, double expected, double *per_key,
                                struct err *err)
{
    enum status st = OK;
    double near = 0, far = 0;
    const int32_t last = b->step->limits.history_max - 1 - rows;
    const int32_t position = base_min32(last, FAR_POSITIONS);
    if (position <= 0)
        return OK;
    TRY(time_rows(b, false, 0, rows, expected, &near, err));
    TRY(time_rows(b, false, position, rows, expected, &far, err));
    *per_key = far > near ? (far - near) / ((double)position * rows) : 0;
out:
    return st;
}

static enum status measure(struct bench *b, struct costs *c, struct err *err)
{
    enum status st = OK;
    const struct step_limits *l = &b->step->limits;
    const int32_t most = rows_max(l);
    double seconds = 0;
    TRY(time_rows(b, fits_apart(l, 1), 0, 1, INFINITY, &seconds, err)); /* finds caches cold */
    for (int32_t rows = 1; rows <= most && c->count < COSTS_MAX; rows *= 2) {
        const int32_t i = c->count;
        TRY(time_rows(b, fits_apart(l, rows), 0, rows, 2 * seconds, &seconds, err));
        c->rows[i] = rows;
        c->seconds[i] = i > 0 && c->seconds[i - 1] > seconds ? c->seconds[i - 1] : seconds;
        c->count++;
        if (i > 1 && c->seconds[i] > 2 * c->seconds[0])
            break;
    }
    st = measure_keys(b, c->rows[c->count - 1], 2 * seconds, &c->per_key, err);
out:
    return st;
}

enum status costs_measure(struct link_set *links, const struct step_limits *limits, uint32_t epoch,
                          uint64_t *seq, link_patience *patience, void *ctx, struct costs *out,
                          struct err *err)
{
    enum status st = OK;
    struct bench b = {.links = links, .patience = patience, .ctx = ctx};
    *out = (struct costs){0};
    TRY(step_open_new(limits, &b.step, err));
    b.message = malloc(step_bytes_max(limits));
    b.zeros = calloc((size_t)limits->history_max, sizeof *b.zeros);
    if (!b.message || !b.zeros) {
        st = base_fail(err, ERR_NOMEM, "no memory to measure steps");
        goto out;
    }
    b.step->epoch = epoch;
    b.step->seq = *seq;
    st = measure(&b, out, err);
    *seq = b.step->seq;
out:
    step_free(b.step);
    free(b.message);
    free(b.zeros);
    return st;
}
