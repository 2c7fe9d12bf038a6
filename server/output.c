/* DESIGN: two batches of events: the engine fills one, this thread works off the other, and they
 * swap under a lock that nobody holds for longer than a copy. A request's tokens thus never wait
 * for another's text, and the engine never for either. The arrays grow only if this thread falls
 * behind by more than EVENTS_START events; they are bounded by what the engine can have in flight.
 *
 * Streams are a list: workers add at its head under the lock, only this thread removes, so it may
 * walk the list without. Every submitted choice has an event to come, which keeps its job alive;
 * the last of them takes it off the list. */
#include "server/output.h"

#include "server/job.h"
#include "server/utf8.h"

#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#define EVENTS_START 65536
#define TOPS_START 1024
#define TICK_NS 1000000000 /* how often waiting streams are looked at */
#define PIECE_BYTES_MAX ((size_t)1 << 20)

struct batch {
    struct token_event *events;
    size_t count, capacity;
    struct token_top *tops; /* of all events, one after the other */
    size_t top_count, top_capacity;
};

struct output {
    struct service *service;
    pthread_t thread;
    bool started;
    /* the output thread's */
    struct batch work;
    struct buf piece, scratch; /* text of one token; a chunk */
    int64_t now_ns, looked_ns;

    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t wake;
    struct batch queue;
    struct job *waiting;
    bool stop;
};

/* ---- one event; the job is locked ---- */

static void measure(struct output *o, struct choice *c, const struct token_event *event)
{
    struct metrics *m = o->service->metrics;
    if (c->tokens == 0) {
        c->admitted_ns = event->admitted_ns;
        c->first_token_ns = o->now_ns;
        metrics_observe(m, METRICS_FIRST_TOKEN, (double)(o->now_ns - c->job->arrived_ns) / 1e9);
    } else {
        metrics_observe(m, METRICS_INTER_TOKEN, (double)(o->now_ns - c->last_token_ns) / 1e9);
    }
    c->last_token_ns = o->now_ns;
}

/* Puts the piece through the stop strings, which count from min_tokens on; a match ends the choice.
 */
static void add_piece(struct output *o, struct choice *c)
{
    const struct completion_request *q = &c->job->request;
    const char *text = o->piece.data ? o->piece.data : "";
    size_t n;
    c->characters += (int32_t)utf8_count(text, o->piece.len);
    if (c->tokens <= q->params.min_tokens && q->params.min_tokens > 0) {
        buf_add(&c->text, text, o->piece.len);
        return;
    }
    int32_t matched = stop_push(&c->stop, text, o->piece.len, &c->text);
    if (matched < 0)
        return;
    if (q->include_stop) {
        text = stop_set_string(c->job->stops, matched, &n);
        buf_add(&c->text, text, n);
    }
    job_end_choice(c, "stop", matched);
}

static void add_logprob(struct choice *c, const struct token_event *event)
{
    int32_t i = logprobs_count(&c->logprobs);
    logprobs_add(&c->logprobs, event->token, c->characters);
    logprobs_score(&c->logprobs, i, event->logprob, event->top, event->top_count);
}

static void add_prompt_logprob(struct choice *c, const struct token_event *event)
{
    if (c->prompt_scored + 1 < logprobs_count(&c->prompt_logprobs))
        logprobs_score(&c->prompt_logprobs, ++c->prompt_scored, event->logprob, event->top,
                       event->top_count);
}

static bool is_stop_id(const struct completion_request *q, int32_t token)
{
    for (int32_t i = 0; i < q->params.stop_id_count; i++)
        if (q->stop_ids[i] == token)
            return true;
    return false;
}

static void add_token(struct output *o, struct choice *c, const struct token_event *event)
{
    const struct completion_request *q = &c->job->request;
    measure(o, c, event);
    c->tokens++;
    if (q->return_token_ids)
        buf_add(&c->ids, &event->token, sizeof event->token);
    if (q->logprobs >= 0)
        add_logprob(c, event);
    if (event->finish == FINISH_STOP && is_stop_id(q, event->token))
        c->stop_token = event->token;
    if (event->finish == FINISH_STOP && !q->include_stop)
        return; /* it ends the text and is no part of it */
    buf_clear(&o->piece);
    detok_push(&c->detok, event->token, &o->piece);
    add_piece(o, c);
    if (c->ended && event->finish == FINISH_NONE)
        engine_cancel(service_engine(o->service), c->engine_id);
}

/* The engine says that this was all. */
static void end_text(struct output *o, struct choice *c, const char *reason)
{
    const bool failed = o->piece.failed; /* the last token's */
    buf_clear(&o->piece);
    detok_finish(&c->detok, &o->piece);
    o->piece.failed = o->piece.failed || failed;
    add_piece(o, c);
    if (c->ended)
        return;
    stop_finish(&c->stop, &c->text);
    job_end_choice(c, reason, -1);
}

static void fail_job(struct job *j, enum finish_reason finish)
{
    struct api_error e = {0};
    if (finish == FINISH_FAILED)
        api_error_set(&e, 500, "not_finite",
                      "no token could be chosen: the model computed NaN or infinity, since its "
                      "weights are damaged or their values need another --dtype, or this request "
                      "forbids every token that the form of its answer leaves, or that form is too "
                      "ambiguous");
    else if (finish == FINISH_ERROR)
        api_error_set(&e, 503, "rank_lost", "a rank was lost while this request was running");
    else
        api_error_set(&e, 503, "draining", "the server is shutting down");
    job_fail(j, &e);
}

static bool out_of_memory(const struct output *o, const struct choice *c)
{
    return c->text.failed || c->ids.failed || o->piece.failed || logprobs_failed(&c->logprobs) ||
           logprobs_failed(&c->prompt_logprobs) || (c->answer && answer_failed(c->answer));
}

static void handle_live(struct output *o, struct choice *c, const struct token_event *event)
{
    struct job *j = c->job;
    if (event->cached > c->cached)
        c->cached = event->cached;
    c->right = event->right;
    c->wrong = event->wrong;
    if (event->prompt) {
        add_prompt_logprob(c, event);
        return;
    }
    if (event->token >= 0)
        add_token(o, c, event);
    switch (event->finish) {
    case FINISH_NONE:
        break;
    case FINISH_STOP:
    case FINISH_LENGTH:
    case FINISH_COMPLETE:
        if (!c->ended)
            end_text(o, c, event->finish == FINISH_LENGTH ? "length" : "stop");
        break;
    case FINISH_CANCELLED:
    case FINISH_FAILED:
    case FINISH_ERROR:
        if (!c->ended) {
            fail_job(j, event->finish);
            return;
        }
        break;
    }
    job_take_parts(c, event->token >= 0);
    if (out_of_memory(o, c)) {
        struct api_error e = {0};
        api_error_from_status(&e, ERR_NOMEM, &(struct err){""});
        job_fail(j, &e);
        return;
    }
    job_send_chunk(c, &o->scratch);
    job_complete(j, &o->scratch);
}

static void unwatch(struct output *o, struct job *j)
{
    if (!j->waiting)
        return;
    j->waiting = false;
    pthread_mutex_lock(&o->lock);
    *j->waiting_link = j->waiting_next;
    if (j->waiting_next)
        j->waiting_next->waiting_link = j->waiting_link;
    pthread_mutex_unlock(&o->lock);
}

static bool is_running(const struct job *j)
{
    for (int32_t i = 0; i < j->choice_count; i++)
        if (j->choices[i].submitted)
            return true;
    return false;
}

static void handle(struct output *o, const struct token_event *event)
{
    struct choice *c = event->user;
    struct job *j = c->job;
    pthread_mutex_lock(&j->lock);
    if (event->finish != FINISH_NONE)
        c->submitted = false; /* the engine has let go */
    if (!c->ended && !j->over)
        handle_live(o, c, event);
    if (event->finish != FINISH_NONE && (j->over || !is_running(j)))
        unwatch(o, j);
    pthread_mutex_unlock(&j->lock);
    if (event->finish != FINISH_NONE)
        job_release(j);
}

/* ---- the queue ---- */

/* Room for need items of this size in an array that has room for *capacity. A lost event would be a
 * request that never ends, so there is no going on without memory. */
static void *grow(void *array, size_t need, size_t *capacity, size_t size)
{
    if (need <= *capacity)
        return array;
    void *more = realloc(array, 2 * need * size);
    CHECK(more != NULL);
    *capacity = 2 * need;
    return more;
}

void output_push(struct output *o, const struct token_event *events, int32_t count)
{
    pthread_mutex_lock(&o->lock);
    struct batch *q = &o->queue;
    bool was_empty = q->count == 0;
    q->events = grow(q->events, q->count + (size_t)count, &q->capacity, sizeof *q->events);
    memcpy(q->events + q->count, events, (size_t)count * sizeof *events);
    q->count += (size_t)count;
    for (int32_t i = 0; i < count; i++) {
        size_t n = (size_t)events[i].top_count;
        if (n == 0)
            continue;
        q->tops = grow(q->tops, q->top_count + n, &q->top_capacity, sizeof *q->tops);
        memcpy(q->tops + q->top_count, events[i].top, n * sizeof *q->tops);
        q->top_count += n;
    }
    if (was_empty)
        pthread_cond_signal(&o->wake);
    pthread_mutex_unlock(&o->lock);
}

void output_watch(struct output *o, struct job *j)
{
    j->waiting = true;
    j->pinged_ns = base_now_ns();
    pthread_mutex_lock(&o->lock);
    j->waiting_next = o->waiting;
    if (o->waiting)
        o->waiting->waiting_link = &j->waiting_next;
    else
        pthread_cond_signal(&o->wake); /* from now on there are ticks */
    j->waiting_link = &o->waiting;
    o->waiting = j;
    pthread_mutex_unlock(&o->lock);
}

static void ping_waiting(struct output *o)
{
    static const char ping[] = ": ping\n\n";
    const int64_t pause = (int64_t)(o->service->ping_s * 1e9);
    pthread_mutex_lock(&o->lock);
    struct job *first = o->waiting;
    pthread_mutex_unlock(&o->lock);
    for (struct job *j = first; j; j = j->waiting_next) {
        pthread_mutex_lock(&j->lock);
        if (!j->over && o->now_ns - j->pinged_ns >= pause) {
            http_stream_push(j->http, ping, sizeof ping - 1);
            j->pinged_ns = o->now_ns;
        }
        pthread_mutex_unlock(&j->lock);
    }
    o->looked_ns = o->now_ns;
}

/* Swaps the batches when there is something to do, at the latest when waiting streams want to be
 * looked at; false when there never will be. */
static bool take_batch(struct output *o)
{
    int64_t until = base_now_ns() + TICK_NS;
    const struct timespec tick = {(time_t)(until / 1000000000), (long)(until % 1000000000)};
    int rc = 0;
    pthread_mutex_lock(&o->lock);
    while (o->queue.count == 0 && !o->stop && rc == 0)
        rc = o->waiting ? pthread_cond_timedwait(&o->wake, &o->lock, &tick)
                        : pthread_cond_wait(&o->wake, &o->lock);
    struct batch taken = o->queue;
    o->queue = o->work;
    o->queue.count = o->queue.top_count = 0;
    o->work = taken;
    bool more = o->work.count > 0 || !o->stop;
    pthread_mutex_unlock(&o->lock);
    return more;
}

static void *output_loop(void *arg)
{
    struct output *o = arg;
    prctl(PR_SET_NAME, "tessera-output");
    while (take_batch(o)) {
        const struct token_top *top = o->work.tops;
        o->now_ns = base_now_ns();
        for (size_t i = 0; i < o->work.count; i++) {
            struct token_event *event = &o->work.events[i];
            event->top = top;
            top += event->top_count;
            handle(o, event);
        }
        if (o->now_ns - o->looked_ns >= TICK_NS)
            ping_waiting(o);
    }
    return NULL;
}

static bool batch_open(struct batch *b)
{
    b->events = malloc(EVENTS_START * sizeof *b->events);
    b->capacity = EVENTS_START;
    b->tops = malloc(TOPS_START * sizeof *b->tops);
    b->top_capacity = TOPS_START;
    return b->events && b->tops;
}

enum status output_open(struct service *s, struct output **out, struct err *err)
{
    enum status st = OK;
    pthread_condattr_t attr;
    struct output *o = calloc(1, sizeof *o);
    if (!o)
        return base_fail(err, ERR_NOMEM, "output: no memory");
    o->service = s;
    buf_init(&o->piece, PIECE_BYTES_MAX);
    buf_init(&o->scratch, (size_t)1 << 30);
    pthread_mutex_init(&o->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&o->wake, &attr);
    pthread_condattr_destroy(&attr);
    if (!batch_open(&o->queue) || !batch_open(&o->work))
        st = base_fail(err, ERR_NOMEM, "output: no memory");
    else if (pthread_create(&o->thread, NULL, output_loop, o) != 0)
        st = base_fail(err, ERR_NOMEM, "output: no thread");
    o->started = st == OK;
    if (st == OK)
        *out = o;
    else
        output_close(o);
    return st;
}

void output_close(struct output *o)
{
    if (!o)
        return;
    if (o->started) {
        pthread_mutex_lock(&o->lock);
        o->stop = true;
        pthread_cond_signal(&o->wake);
        pthread_mutex_unlock(&o->lock);
        pthread_join(o->thread, NULL);
    }
    free(o->queue.events);
    free(o->queue.tops);
    free(o->work.events);
    free(o->work.tops);
    buf_free(&o->piece);
    buf_free(&o->scratch);
    pthread_mutex_destroy(&o->lock);
    pthread_cond_destroy(&o->wake);
    free(o);
}
