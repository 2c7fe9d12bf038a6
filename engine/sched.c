/* DESIGN: what is not yet known is counted, not waited for: `pending` tokens are sampled in flight,
 * so a sequence's next row follows from length + pending, and only an end token is found late (its
 * one row too many is dropped when it is answered). A sequence that leaves its slot, ended or
 * preempted, keeps its blocks until the last step that names it is answered.
 *
 * No livelock: all sequences stand in one order, by priority and arrival. One preempts only those
 * behind it, and each fits the cache alone, so the first of those that run always gets its blocks,
 * a step later at most, and is never preempted. It ends, and then the next one is first. While a
 * preempted sequence waits for its place nobody new is admitted.
 *
 * No starvation: every step computes at least one row of a prompt that can have it, and turns go
 * round by client. So the k-th request of a client is taken up after at most k turns of each other
 * client, however many requests those have; only requests of the same client with a lower priority
 * number pass it. */
#include "engine/sched.h"

#include "engine/queue.h"
#include "engine/request.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PROMPTS_MAX = 7 }; /* that streams wait for at a time */

/* What a step in flight will answer to. */
struct flight {
    struct sequence **samples; /* [slots] whose each sample is */
    struct sequence **named;   /* [slots] who has rows in it */
    int32_t named_count;
};

struct sched {
    struct sched_config config;
    struct kv_pool *kv;
    struct queue *queue;
    struct sequence *oldest, *newest; /* all there are */
    struct sequence **slots;          /* [limits.slots], NULL = free */
    int32_t *order;                   /* slots, the first to be served first */
    int32_t *closed;                  /* slots to close with the next step */
    int32_t closed_count;
    struct flight flights[SCHED_FLIGHTS];
    int32_t in_flight;
    uint64_t arrivals, steps; /* so far; the step being built is number `steps` */
    int64_t now_ns;           /* for the events */
    int32_t leaving;          /* sequences whose blocks return when a step in flight is answered */
    int32_t preempted;        /* sequences that gave way and have no place yet */
    int32_t cancelled;        /* sequences to end with the next step */
    struct sched_stats stats;
    struct step *step; /* during sched_build: the one being built, */
    int32_t decodes;   /* its rows that are no prompt's, */
    int64_t keys;      /* the positions before them that its rows attend to, */
    double seconds;    /* how long it may take, */
    bool admitting;    /* and whether it may still take in others */
};

static void free_flights(struct sched *s)
{
    for (int32_t i = 0; i < SCHED_FLIGHTS; i++) {
        free(s->flights[i].samples);
        free(s->flights[i].named);
    }
}

enum status sched_open(const struct sched_config *c, struct sched **out, struct err *err)
{
    enum status st = OK;
    const size_t slots = (size_t)c->limits.slots;
    bool complete = true;
    struct sched *s = calloc(1, sizeof *s);
    if (!s)
        return base_fail(err, ERR_NOMEM, "scheduler: no memory");
    s->config = *c;
    s->slots = calloc(slots, sizeof(struct sequence *));
    s->order = calloc(slots, sizeof *s->order);
    s->closed = calloc(slots, sizeof *s->closed);
    for (int32_t i = 0; i < SCHED_FLIGHTS; i++) {
        s->flights[i].samples = calloc(slots, sizeof(struct sequence *));
        s->flights[i].named = calloc(slots, sizeof(struct sequence *));
        complete = complete && s->flights[i].samples && s->flights[i].named;
    }
    if (!complete || !s->slots || !s->order || !s->closed) {
        st = base_fail(err, ERR_NOMEM, "scheduler: no memory for %zu slots", slots);
        goto out;
    }
    TRY(kv_open(c->limits.blocks, c->secret, &s->kv, err));
    TRY(queue_open(c->waiting_max + c->limits.slots, &s->queue, err));
    *out = s;
    s = NULL;
out:
    sched_close(s);
    return st;
}

void sched_close(struct sched *s)
{
    if (!s)
        return;
    while (s->oldest) {
        struct sequence *newer = s->oldest->newer;
        sequence_free(s->oldest);
        s->oldest = newer;
    }
    free_flights(s);
    free(s->slots);
    free(s->order);
    free(s->closed);
    queue_close(s->queue);
    kv_close(s->kv);
    free(s);
}

static int32_t min32(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

/* ---- coming ---- */

static void wait_begin(struct sched *s, const struct sequence *q)
{
    s->stats.waiting++;
    s->stats.waiting_tokens += q->prompt_len;
}

static void wait_end(struct sched *s, const struct sequence *q)
{
    s->stats.waiting--;
    s->stats.waiting_tokens -= q->prompt_len;
}

bool sched_submit(struct sched *s, struct sequence *q)
{
    if (s->stats.waiting >= s->config.waiting_max)
        return false;
    q->arrival = ++s->arrivals;
    q->older = s->newest;
    *(s->newest ? &s->newest->newer : &s->oldest) = q;
    s->newest = q;
    wait_begin(s, q);
    queue_push(s->queue, q);
    return true;
}

void sched_set_time(struct sched *s, int64_t now_ns)
{
    s->now_ns = now_ns;
}

void sched_set_costs(struct sched *s, const struct costs *costs)
{
    s->config.costs = *costs;
}

void sched_cancel(struct sched *s, uint64_t id)
{
    for (struct sequence *q = s->oldest; q; q = q->newer)
        if (q->id == id && !q->cancelled && !q->ended) {
            q->cancelled = true;
            s->cancelled++;
        }
}

/* ---- leaving ---- */

static void emit(const struct sequence *q, int32_t token, enum finish_reason finish,
                 struct token_event *events, int32_t *count)
{
    events[(*count)++] = (struct token_event){.request = q->id,
                                              .user = q->user,
                                              .token = token,
                                              .finish = finish,
                                              .cached = q->cached,
                                              .admitted_ns = q->admitted_ns};
}

/* No step in flight names it: its blocks return, and it is freed or waits again. */
static void settle(struct sched *s, struct sequence *q)
{
    s->leaving -= q->leaving;
    q->leaving = false;
    sequence_release(q, s->kv);
    if (!q->ended) {
        if (!q->queued)
            queue_return(s->queue, q);
        return;
    }
    *(q->older ? &q->older->newer : &s->oldest) = q->newer;
    *(q->newer ? &q->newer->older : &s->newest) = q->older;
    sequence_free(q);
}

/* Out of its slot, which is closed with the next step. */
static void leave(struct sched *s, struct sequence *q)
{
    int32_t i = 0;
    while (s->order[i] != q->slot)
        i++;
    memmove(&s->order[i], &s->order[i + 1], (size_t)(--s->stats.running - i) * sizeof *s->order);
    s->slots[q->slot] = NULL;
    s->closed[s->closed_count++] = q->slot;
    q->slot = -1;
    q->leaving = true;
    s->leaving++;
    if (q->flights == 0)
        settle(s, q);
}

/* Its terminal event is emitted. */
static void end(struct sched *s, struct sequence *q)
{
    q->ended = true;
    s->cancelled -= q->cancelled;
    s->preempted -= q->preempted;
    if (q->queued)
        queue_remove(s->queue, q);
    if (q->slot >= 0) {
        leave(s, q);
        return;
    }
    wait_end(s, q);
    if (q->flights == 0)
        settle(s, q);
}

static void end_cancelled(struct sched *s, struct token_event *events, int32_t *count)
{
    for (struct sequence *q = s->oldest, *newer; q && s->cancelled > 0; q = newer) {
        newer = q->newer;
        if (!q->cancelled || q->ended)
            continue;
        emit(q, -1, FINISH_CANCELLED, events, count);
        end(s, q);
    }
}

/* It gives its blocks to others and is computed again later, from all its tokens. Sampling is keyed
 * by position and kernels give one row the same bits in any step, so its text does not change. */
static void give_way(struct sched *s, struct sequence *q)
{
    wait_begin(s, q);
    if (!q->queued || q->returned) { /* else it keeps its place in its line */
        q->preempted = true;
        s->preempted++;
    }
    leave(s, q);
}

/* ---- building ---- */

static void publish(struct sched *s, struct sequence *q)
{
    if (s->config.prefix_caching)
        sequence_publish(q, s->kv, s->steps);
}

/* As sequence_share, where it may: a prompt that is scored is computed whole. */
static bool share(struct sched *s, struct sequence *q)
{
    return !s->config.prefix_caching || sequence_is_scored(q) || sequence_share(q, s->kv, s->steps);
}

static struct flight *flight_built(struct sched *s)
{
    return &s->flights[s->steps % SCHED_FLIGHTS];
}

static void append(struct sched *s, struct sequence *q, int32_t index)
{
    struct step *step = s->step;
    step->append[step->appends++] = (struct step_append){q->slot, index, q->blocks[index]};
}

/* Lets the last sequence behind q in their order give way; false when there is none, or when blocks
 * are on their way already. Rows that are in the step stay there. */
static bool make_room(struct sched *s, const struct sequence *q)
{
    if (s->leaving > 0)
        return false;
    for (int32_t i = s->stats.running - 1; i >= 0; i--) {
        struct sequence *last = s->slots[s->order[i]];
        if (last == q)
            return false;
        if (last->step == s->steps)
            continue;
        s->stats.preemptions++;
        give_way(s, last);
        return true;
    }
    return false;
}

/* Sees to it that q has a block for its next position. False: not in this step. */
static bool grow(struct sched *s, struct sequence *q)
{
    int32_t block;
    if (q->computed / BACKEND_BLOCK_TOKENS < q->block_count)
        return true;
    while ((block = kv_take(s->kv)) < 0)
        if (!make_room(s, q))
            return false;
    q->blocks[q->block_count++] = block;
    append(s, q, q->block_count - 1);
    return true;
}

/* The row added last has a sample: `target` is scored there, or q's next token drawn. */
static void add_sample(struct sched *s, struct sequence *q, int32_t target, int32_t top)
{
    struct step *step = s->step;
    flight_built(s)->samples[step->samples] = q;
    step->sample[step->samples] = step->rows - 1;
    step->target[step->samples] = target;
    step->top[step->samples++] = top;
}

static void add_row(struct sched *s, struct sequence *q)
{
    struct step *step = s->step;
    const int32_t position = q->computed++, row = step->rows++;
    s->keys += position;
    step->slot[row] = q->slot;
    step->position[row] = position;
    /* what the rank sampled itself it need not be told */
    step->token[row] = position >= q->history ? STEP_TOKEN_FROM_SLOT : q->tokens[position];
    if (sequence_is_scored(q) && q->scored == position + 1 && q->scored < q->prompt_len)
        add_sample(s, q, q->tokens[q->scored++], q->params.prompt_logprobs);
}

/* Adds rows for up to n positions from `computed` on, as blocks allow; the last one samples when it
 * ends the tokens there are. Returns how many. */
static int32_t add_rows(struct sched *s, struct sequence *q, int32_t n)
{
    struct flight *f = flight_built(s);
    int32_t added = 0;
    for (; added < n && grow(s, q); added++)
        add_row(s, q);
    if (added == 0)
        return 0;
    q->step = s->steps;
    q->flights++;
    f->named[f->named_count++] = q;
    if (q->computed == q->length + q->pending && q->params.max_tokens > 0) {
        add_sample(s, q, STEP_TARGET_SAMPLE, q->params.logprobs);
        q->pending++;
    }
    publish(s, q);
    return added;
}

static int32_t free_slot(const struct sched *s)
{
    for (int32_t i = 0; i < s->config.limits.slots; i++)
        if (!s->slots[i])
            return i;
    return -1;
}

/* Is there room for all of q's tokens, for what was promised to those who came before, and for one
 * more block each of those? */
static bool has_room(const struct sched *s, const struct sequence *q)
{
    int32_t wanted = kv_blocks_for(q->length) - q->block_count + s->stats.running;
    for (int32_t i = 0; i < s->stats.running; i++) {
        const struct sequence *other = s->slots[s->order[i]];
        int32_t promised = kv_blocks_for(other->length) - other->block_count;
        wanted += promised > 0 ? promised : 0;
    }
    return wanted <= kv_total(s->kv) - kv_used(s->kv);
}

static void open_slot(struct sched *s, struct sequence *q, int32_t slot)
{
    struct step *step = s->step;
    int32_t at = s->stats.running++;
    for (; at > 0 && sequence_before(q, s->slots[s->order[at - 1]]); at--)
        s->order[at] = s->order[at - 1];
    s->order[at] = slot;
    s->slots[slot] = q;
    q->slot = slot;
    q->history = q->length;
    step->open[step->opens++] = (struct step_open){
        .slot = slot,
        .history = q->length,
        .tokens = q->tokens,
        .params = request_draw(&q->params),
        .rules = *q->rules,
    };
    for (int32_t i = 0; i < q->block_count; i++)
        append(s, q, i);
}

static void count_admission(struct sched *s, struct sequence *q)
{
    wait_end(s, q);
    s->preempted -= q->preempted;
    q->preempted = false;
    if (q->admitted)
        return;
    q->admitted = true;
    q->admitted_ns = s->now_ns;
    q->cached = q->computed;
    s->stats.prefix_queries += (uint64_t)q->prompt_len;
    s->stats.prefix_hits += (uint64_t)q->cached;
}

/* Gives q a slot and the prefix that is there. False: not now. Without room for q nobody else is
 * admitted with this step either, so that small requests do not pass a large one for ever. */
static bool admit(struct sched *s, struct sequence *q)
{
    int32_t slot = free_slot(s);
    if (!s->admitting || q->leaving || (s->preempted > 0 && !q->preempted))
        return false;
    bool ready = slot >= 0 && share(s, q);
    s->admitting = slot >= 0 && (!ready || has_room(s, q));
    if (!ready || !s->admitting) {
        sequence_release(q, s->kv);
        return false;
    }
    count_admission(s, q);
    open_slot(s, q, slot);
    return true;
}

/* Is there time for so many rows more, which attend to so many positions more? One row is always in
 * time, so that prompts do not starve. */
static bool in_time(const struct sched *s, int32_t rows, int64_t keys)
{
    const int32_t all = s->step->rows + rows;
    return all == s->decodes + 1 || costs_of(&s->config.costs, all, s->keys + keys) <= s->seconds;
}

/* Rows that q can add with the rows, the time and the sample places that the step has left: a
 * scored prompt takes a place per row. */
static int32_t rows_for(const struct sched *s, const struct sequence *q)
{
    const int32_t left = q->length - q->computed;
    const int32_t places = s->config.limits.slots - s->step->samples;
    int32_t most = min32(left, s->config.limits.rows - s->step->rows), n = 0;
    if (sequence_is_scored(q))
        most = min32(most, places);
    else if (most == left && places == 0)
        most--;
    for (int64_t keys = 0; n < most; n++) {
        keys += q->computed + n;
        if (!in_time(s, n + 1, keys))
            break;
    }
    return n;
}

/* The turn of a sequence whose prompt, or what it had when it gave way, is not computed yet. */
static enum queue_turn offer(void *ctx, struct sequence *q)
{
    struct sched *s = ctx;
    if (s->step->rows == s->config.limits.rows || !in_time(s, 1, 0))
        return QUEUE_STOP;
    if (q->step == s->steps || (q->slot < 0 && !admit(s, q)))
        return QUEUE_PASS; /* no second turn in one step */
    const int32_t rows = rows_for(s, q);
    if (rows == 0)
        return QUEUE_STOP; /* no sample place is left, and nobody shall pass it for that */
    if (add_rows(s, q, rows) == 0)
        return QUEUE_PASS;
    if (q->computed < q->length)
        return QUEUE_TAKEN;
    if (q->length == q->prompt_len)
        s->stats.prompt_tokens += (uint64_t)q->prompt_len;
    return QUEUE_DONE;
}

static void add_decodes(struct sched *s)
{
    for (int32_t i = 0; i < s->stats.running && s->step->rows < s->config.limits.rows; i++) {
        struct sequence *q = s->slots[s->order[i]];
        const int32_t made = q->length - q->prompt_len + q->pending;
        if (!q->queued && made < q->params.max_tokens)
            add_rows(s, q, 1);
    }
}

/* How long the step may take, now that it has its decodes: for each prompt that could be computed
 * they wait as long as they take themselves. */
static void limit_time(struct sched *s)
{
    const int32_t decodes = s->decodes = s->step->rows;
    const int32_t prompts = min32(queue_count(s->queue), s->config.limits.slots - decodes);
    const double alone = costs_of(&s->config.costs, decodes, s->keys);
    s->seconds = decodes > 0 ? alone * (1 + min32(prompts, PROMPTS_MAX)) : INFINITY;
}

bool sched_build(struct sched *s, struct step *step, struct token_event *events, int32_t *count)
{
    CHECK(s->in_flight < SCHED_FLIGHTS);
    *count = 0;
    step_clear(step);
    s->steps++;
    s->step = step;
    s->admitting = true;
    s->keys = 0;
    flight_built(s)->named_count = 0;
    end_cancelled(s, events, count);
    add_decodes(s);
    limit_time(s);
    queue_turns(s->queue, offer, s);
    s->step = NULL;
    if (step->rows == 0) { /* closes wait for the next step that computes */
        CHECK(step->opens == 0);
        s->steps--;
        return false;
    }
    memcpy(step->close, s->closed, (size_t)s->closed_count * sizeof *s->closed);
    step->closes = s->closed_count;
    s->closed_count = 0;
    s->in_flight++;
    return true;
}

/* ---- answers ---- */

static enum finish_reason finish_of(const struct sched *s, const struct sequence *q, int32_t token)
{
    /* the bans are the end tokens, then the stop ids */
    for (int32_t i = q->params.ignore_eos ? s->config.eos_count : 0; i < q->rules->bans; i++)
        if (token == q->rules->ban[i])
            return FINISH_STOP;
    return q->length - q->prompt_len >= q->params.max_tokens ? FINISH_LENGTH : FINISH_NONE;
}

/* Sample i of the step, of sequence q: its event, and its token when it was drawn. */
static void take(struct sched *s, struct sequence *q, const struct step *step,
                 const struct step_result *result, int32_t i, struct token_event *events,
                 int32_t *count)
{
    const bool drawn = step->target[i] < 0, wanted = step->top[i] >= 0;
    const int32_t token = result->ids[i];
    if (token < 0 || (wanted && isnan(result->logprob[i]))) {
        emit(q, -1, FINISH_FAILED, events, count);
        end(s, q);
        return;
    }
    if (drawn) {
        q->tokens[q->length++] = token;
        publish(s, q);
    } else {
        q->told++;
    }
    emit(q, token, drawn ? finish_of(s, q, token) : FINISH_NONE, events, count);
    struct token_event *e = &events[*count - 1];
    e->prompt = !drawn;
    if (wanted) {
        e->logprob = result->logprob[i];
        e->top_count = step->top[i];
        e->top = result->best + (ptrdiff_t)i * result->stride;
    }
    if (e->finish != FINISH_NONE)
        end(s, q);
}

/* One step less names q. */
static void land(struct sched *s, struct sequence *q, struct token_event *events, int32_t *count)
{
    if (--q->flights > 0)
        return;
    /* what wanted no token ends once its prompt is computed */
    if (!q->ended && !q->cancelled && q->params.max_tokens == 0 && q->computed == q->prompt_len) {
        emit(q, -1, FINISH_LENGTH, events, count);
        end(s, q);
    } else if (q->leaving) {
        settle(s, q);
    }
}

void sched_commit(struct sched *s, const struct step *step, const struct step_result *result,
                  struct token_event *events, int32_t *count)
{
    CHECK(s->in_flight > 0);
    *count = 0;
    const struct flight *f = &s->flights[(s->steps - (uint64_t)--s->in_flight) % SCHED_FLIGHTS];
    for (int32_t i = 0; i < step->samples; i++) {
        struct sequence *q = f->samples[i];
        q->pending -= step->target[i] < 0;
        if (!q->ended && !q->cancelled) /* else it ends when the next step is built */
            take(s, q, step, result, i, events, count);
    }
    for (int32_t i = 0; i < f->named_count; i++)
        land(s, f->named[i], events, count);
}

/* Nothing is in flight any more, of q either. */
static void restart(struct sched *s, struct sequence *q, struct token_event *events, int32_t *count)
{
    q->losses += q->flights > 0;
    q->flights = 0;
    q->pending = 0;
    q->scored = q->told;
    const bool ended = q->ended;
    if (q->leaving)
        settle(s, q);
    if (ended)
        return;
    if (q->losses == SCHED_LOSSES) {
        emit(q, -1, FINISH_ERROR, events, count);
        end(s, q);
    }
}

void sched_restart(struct sched *s, struct token_event *events, int32_t *count)
{
    *count = 0;
    s->in_flight = 0;
    for (struct sequence *q = s->oldest, *newer; q; q = newer) {
        newer = q->newer;
        restart(s, q, events, count);
    }
    for (int32_t i = s->stats.running - 1; i >= 0; i--) /* so that the first stand first again */
        give_way(s, s->slots[s->order[i]]);
    s->closed_count = 0; /* new ranks have no slots open */
    kv_forget(s->kv);
}

void sched_end_all(struct sched *s, enum finish_reason reason, struct token_event *events,
                   int32_t *count)
{
    *count = 0;
    s->in_flight = 0;
    for (struct sequence *q = s->oldest, *newer; q; q = newer) {
        newer = q->newer;
        q->flights = 0;
        if (q->ended) {
            settle(s, q);
            continue;
        }
        emit(q, -1, reason, events, count);
        end(s, q);
    }
    s->closed_count = 0;
    kv_forget(s->kv);
}

int32_t sched_events_max(const struct sched_config *c)
{
    return 2 * c->limits.slots + c->waiting_max;
}

int32_t sched_in_flight(const struct sched *s)
{
    return s->in_flight;
}

struct sched_stats sched_stats(const struct sched *s)
{
    return s->stats;
}

const struct kv_pool *sched_kv(const struct sched *s)
{
    return s->kv;
}
