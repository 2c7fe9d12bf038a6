/* DESIGN: what is not yet known is counted, not waited for: `pending` tokens are sampled in flight,
 * so a sequence's next row follows from length + pending, and only an end token is found late (its
 * one row too many is dropped when it is answered). A sequence that leaves its slot, ended or
 * preempted, keeps its blocks until the last step that names it is answered.
 *
 * No livelock: all sequences stand in one order, by priority and arrival. One preempts only those
 * behind it in its home, and each fits a home alone, so the first of those that run in a home
 * always gets its blocks, a step later at most, and is never preempted. It ends, and then the next
 * one is first. While a preempted sequence waits for its place nobody new is admitted.
 *
 * No starvation: every step computes at least one row of a prompt that can have it, and turns go
 * round by client. So the k-th request of a client is taken up after at most k turns of the line of
 * each other client, however long that is; only requests of the same client with a lower priority
 * number pass it. Whoever's turn it is takes the first home that has room, whichever that is. While
 * none has, nobody is admitted anywhere, so it waits no longer than until one home has run empty.
 *
 * A home runs at most as many sequences as it has rows in a step: each decodes in every step, and a
 * prompt always finds a row. */
#include "engine/sched_state.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static enum status open_homes(struct sched *s, struct err *err)
{
    const struct step_limits *l = &s->config.limits;
    s->homes = calloc((size_t)l->homes, sizeof *s->homes);
    for (int32_t i = 0; s->homes && i < l->homes; i++) {
        enum status st = kv_open(l->blocks, s->config.secret, &s->homes[i].kv, err);
        if (st != OK)
            return st;
        s->homes[i].rows = calloc((size_t)l->home_rows, sizeof *s->homes[i].rows);
        if (!s->homes[i].rows)
            return base_fail(err, ERR_NOMEM, "scheduler: no memory for %d rows", l->home_rows);
    }
    return s->homes ? OK : base_fail(err, ERR_NOMEM, "scheduler: no memory for %d homes", l->homes);
}

static void free_homes(struct sched *s)
{
    for (int32_t i = 0; s->homes && i < s->config.limits.homes; i++) {
        kv_close(s->homes[i].kv);
        free(s->homes[i].rows);
    }
    free(s->homes);
}

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
        s->flights[i].samples = calloc((size_t)c->limits.samples, sizeof(struct sequence *));
        s->flights[i].named = calloc(slots, sizeof(struct sequence *));
        complete = complete && s->flights[i].samples && s->flights[i].named;
    }
    if (!complete || !s->slots || !s->order || !s->closed) {
        st = base_fail(err, ERR_NOMEM, "scheduler: no memory for %zu slots", slots);
        goto out;
    }
    TRY(open_homes(s, err));
    CHECK(!c->limits.recurs || (c->limits.homes == 1 && c->limits.groups.slide == 0));
    if (c->prefix_caching && c->limits.recurs)
        TRY(states_open(c->limits.states, s->homes[0].kv, c->limits.blocks, &s->states, err));
    TRY(queue_open(sched_requests_max(c), &s->queue, err));
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
    states_close(s->states);
    free_homes(s);
    free(s->slots);
    free(s->order);
    free(s->closed);
    queue_close(s->queue);
    free(s);
}

/* ---- coming ---- */

static void wait_begin(struct sched *s, const struct sequence *q)
{
    s->stats.waiting++;
    s->stats.waiting_tokens += q->prompt_len;
}

void sched_wait_end(struct sched *s, const struct sequence *q)
{
    s->stats.waiting--;
    s->stats.waiting_tokens -= q->prompt_len;
}

void sched_submit(struct sched *s, struct sequence *q)
{
    CHECK(s->stats.running + s->stats.waiting < sched_requests_max(&s->config));
    q->arrival = ++s->arrivals;
    q->older = s->newest;
    *(s->newest ? &s->newest->newer : &s->oldest) = q;
    s->newest = q;
    wait_begin(s, q);
    queue_push(s->queue, q);
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
                                              .right = q->right,
                                              .wrong = q->wrong,
                                              .admitted_ns = q->admitted_ns};
}

/* No step in flight names it: its blocks return, and it is freed or waits again. */
static void settle(struct sched *s, struct sequence *q)
{
    struct sched_home *home = &s->homes[q->home];
    home->leaving -= q->leaving;
    q->leaving = false;
    sequence_release(q, home->kv, s->states);
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
    s->homes[q->home].running--;
    s->homes[q->home].leaving++;
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
    sched_wait_end(s, q);
    if (q->flights == 0)
        settle(s, q);
}

void sched_end_cancelled(struct sched *s, struct token_event *events, int32_t *count)
{
    for (struct sequence *q = s->oldest, *newer; q && s->cancelled > 0; q = newer) {
        newer = q->newer;
        if (!q->cancelled || q->ended)
            continue;
        emit(q, -1, FINISH_CANCELLED, events, count);
        end(s, q);
    }
}

void sched_give_way(struct sched *s, struct sequence *q)
{
    wait_begin(s, q);
    if (!q->queued || q->returned) { /* else it keeps its place in its line */
        q->preempted = true;
        s->preempted++;
    }
    leave(s, q);
}

/* ---- answers ---- */

void sched_publish(struct sched *s, struct sequence *q)
{
    if (s->config.prefix_caching)
        sequence_publish(q, s->homes[q->home].kv, s->states, s->steps);
}

static enum finish_reason finish_of(const struct sched *s, struct sequence *q, int32_t token)
{
    /* the bans are the end tokens, then the stop ids */
    for (int32_t i = q->params.ignore_eos ? s->config.eos_count : 0; i < q->rules->bans; i++)
        if (token == q->rules->ban[i])
            return FINISH_STOP;
    const enum finish_reason guided = sequence_follow(q);
    if (guided != FINISH_NONE)
        return guided;
    return q->length - q->prompt_len >= q->params.max_tokens ? FINISH_LENGTH : FINISH_NONE;
}

/* The token that q draws, where it has a row for a guess: is it that one? If not, that row and
 * those after it were for another text; their positions are computed again. */
static void check_guess(struct sched *s, struct sequence *q, int32_t token)
{
    if (q->checking == 0)
        return;
    if (q->tokens[q->length] == token) {
        s->stats.accepted[q->checked++]++;
        q->checking--;
        q->right++;
    } else {
        q->wrong += q->checking;
        q->checking = 0;
        q->computed = q->length;
    }
}

/* The vector of q, which ends with it. */
static void take_vector(struct sched *s, struct sequence *q, const float *vector, int32_t columns,
                        struct token_event *events, int32_t *count)
{
    bool finite = true;
    for (int32_t i = 0; i < columns; i++)
        finite = finite && isfinite(vector[i]);
    emit(q, -1, finite ? FINISH_STOP : FINISH_FAILED, events, count);
    if (finite) {
        events[*count - 1].vector = vector;
        events[*count - 1].columns = columns;
    }
    end(s, q);
}

/* Sample i of the step, of sequence q: its event, and its token when it was drawn. */
static void take(struct sched *s, struct sequence *q, const struct step *step,
                 const struct step_result *result, int32_t i, struct token_event *events,
                 int32_t *count)
{
    const bool drawn = step->target[i] < 0, wanted = step->top[i] >= 0;
    const int32_t token = result->ids[i];
    if (result->vector) {
        take_vector(s, q, result->vector + (ptrdiff_t)i * result->columns, result->columns, events,
                    count);
        return;
    }
    if (token < 0 || (wanted && isnan(result->logprob[i]))) {
        emit(q, -1, FINISH_FAILED, events, count);
        events[*count - 1].stuck = token < 0 && sequence_is_stuck(q);
        end(s, q);
        return;
    }
    if (drawn) {
        check_guess(s, q, token);
        q->tokens[q->length++] = token;
        sched_publish(s, q);
        if (q->ngram)
            ngram_follow(q->ngram, q->tokens, q->length);
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
    const struct sched_flight *f =
        &s->flights[(s->steps - (uint64_t)--s->in_flight) % SCHED_FLIGHTS];
    for (int32_t i = 0; i < step->samples; i++) {
        struct sequence *q = f->samples[i];
        q->pending -= step->target[i] < 0;
        const bool valid = step->position[step->sample[i]] < q->computed; /* else a wrong guess */
        if (valid && !q->ended && !q->cancelled) /* else it ends when the next step is built */
            take(s, q, step, result, i, events, count);
    }
    for (int32_t i = 0; i < f->named_count; i++)
        land(s, f->named[i], events, count);
}

static void forget_all(struct sched *s)
{
    for (int32_t i = 0; i < s->config.limits.homes; i++)
        kv_forget(s->homes[i].kv);
    if (s->states)
        states_forget_all(s->states);
}

/* Nothing is in flight any more, of q either. */
static void restart(struct sched *s, struct sequence *q, struct token_event *events, int32_t *count)
{
    q->losses += q->flights > 0;
    q->flights = 0;
    q->pending = q->checking = 0;
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
        sched_give_way(s, s->slots[s->order[i]]);
    s->closed_count = 0; /* new ranks have no slots open */
    forget_all(s);
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
    forget_all(s);
}

int32_t sched_requests_max(const struct sched_config *c)
{
    return c->limits.slots + c->waiting_max;
}

int32_t sched_events_max(const struct sched_config *c)
{
    return c->limits.samples + sched_requests_max(c);
}

int32_t sched_in_flight(const struct sched *s)
{
    return s->in_flight;
}

struct sched_stats sched_stats(const struct sched *s)
{
    struct sched_stats stats = s->stats;
    for (int32_t i = 0; i < s->config.limits.homes; i++)
        stats.blocks_used += kv_used(s->homes[i].kv);
    stats.states_kept = s->states ? states_kept(s->states) : 0;
    return stats;
}

const struct kv_pool *sched_kv(const struct sched *s, int32_t home)
{
    CHECK(home >= 0);
    CHECK(home < s->config.limits.homes);
    return s->homes[home].kv;
}

const struct states *sched_states(const struct sched *s)
{
    return s->states;
}
