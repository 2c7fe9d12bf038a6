/* DESIGN: two batches of events: the engine fills one, this thread works off the other, and they
 * swap under a lock that nobody holds for longer than a copy. A request's tokens thus never wait
 * for another's text, and the engine never for either. The arrays grow only if this thread falls
 * behind by more than EVENTS_START events; they are bounded by what the engine can have in flight.
 *
 * There are two such lanes. All events come to the quick one; once so much of an answer is there
 * that writing it takes time that others would notice, its job goes on in the slow one, for good,
 * and the quick one passes its events on, so that they keep their order.
 *
 * Streams are a list in each lane: anybody adds at its head under the lock, only the lane's thread
 * removes, so it may walk the list without. Every submitted choice has an event to come, which
 * keeps its job alive; the last of them takes it off the list. */
#include "server/output.h"

#include "config/utf8.h"
#include "server/api/embedding.h"
#include "server/job.h"

#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#define EVENTS_START 65536
#define TOPS_START 1024
#define TICK_NS 1000000000 /* how often waiting streams are looked at */
#define PIECE_BYTES_MAX ((size_t)1 << 20)
#define SCRATCH_BYTES ((size_t)1 << 20) /* that are kept for the next chunk */
#define SCORE_BYTES 64                  /* of JSON for a log-probability, about */
#define LARGE_BYTES (512 << 10)         /* of an answer; a few milliseconds to write */

struct batch {
    struct token_event *events;
    size_t count, capacity;
    struct token_top *tops; /* of all events, one after the other */
    size_t top_count, top_capacity;
    float *numbers; /* of their vectors, likewise */
    size_t number_count, number_capacity;
};

struct lane {
    struct service *service;
    struct lane *slow; /* where large answers go on; NULL: this is it */
    pthread_t thread;
    bool started;
    /* the thread's */
    struct batch work;
    struct buf piece, scratch; /* text of one token; a chunk */
    int64_t now_ns, looked_ns;

    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t wake;
    struct batch queue;
    struct job *waiting;
    bool stop;
};

struct output {
    struct lane quick, slow;
};

/* ---- one event; the job is locked ---- */

static void measure(struct lane *l, struct choice *c, const struct token_event *event)
{
    struct metrics *m = l->service->metrics;
    if (c->tokens == 0) {
        c->admitted_ns = event->admitted_ns;
        c->first_token_ns = l->now_ns;
        metrics_observe(m, METRICS_FIRST_TOKEN, (double)(l->now_ns - c->job->arrived_ns) / 1e9);
    } else {
        metrics_observe(m, METRICS_INTER_TOKEN, (double)(l->now_ns - c->last_token_ns) / 1e9);
    }
    c->last_token_ns = l->now_ns;
}

/* Is more of it kept than the last token's, to be written at once? */
static bool gathers(const struct choice *c)
{
    return !c->job->streaming || c->state;
}

/* Puts the piece through the stop strings, which count from min_tokens on; a match ends the choice.
 */
static void add_piece(struct lane *l, struct choice *c)
{
    const struct completion_request *q = &c->job->request;
    const char *text = l->piece.data ? l->piece.data : "";
    size_t n;
    c->characters += (int32_t)utf8_count(text, l->piece.len);
    if (gathers(c))
        c->job->bytes += l->piece.len;
    if (c->tokens <= q->params.min_tokens && q->params.min_tokens > 0) {
        buf_add(&c->text, text, l->piece.len);
        return;
    }
    int32_t matched = stop_push(&c->stop, text, l->piece.len, &c->text);
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
    if (gathers(c))
        c->job->bytes += SCORE_BYTES * (1 + (size_t)event->top_count);
}

static void add_prompt_logprob(struct choice *c, const struct token_event *event)
{
    if (c->prompt_scored + 1 >= logprobs_count(&c->prompt_logprobs))
        return;
    logprobs_score(&c->prompt_logprobs, ++c->prompt_scored, event->logprob, event->top,
                   event->top_count);
    c->job->bytes += SCORE_BYTES * (1 + (size_t)event->top_count);
}

static bool is_stop_id(const struct completion_request *q, int32_t token)
{
    for (int32_t i = 0; i < q->params.stop_id_count; i++)
        if (q->stop_ids[i] == token)
            return true;
    return false;
}

static void add_token(struct lane *l, struct choice *c, const struct token_event *event)
{
    const struct completion_request *q = &c->job->request;
    measure(l, c, event);
    c->tokens++;
    if (q->return_token_ids) {
        buf_add(&c->ids, &event->token, sizeof event->token);
        c->job->bytes += gathers(c) ? JOB_ID_BYTES : 0;
    }
    if (q->logprobs >= 0)
        add_logprob(c, event);
    if (event->finish == FINISH_STOP && is_stop_id(q, event->token))
        c->stop_token = event->token;
    buf_clear(&l->piece);
    if (event->finish == FINISH_STOP && !q->include_stop)
        return; /* it ends the text and is no part of it */
    detok_push(&c->detok, event->token, &l->piece);
    add_piece(l, c);
    if (c->ended && event->finish == FINISH_NONE)
        engine_cancel(service_engine(l->service), c->engine_id);
}

/* What a request for vectors ends with: its text is the vector's JSON, made here so that no answer
 * of many takes long to write. The numbers are the lane's own copy. */
static void take_vector(struct choice *c, const struct token_event *event)
{
    const struct completion_vector *wanted = &c->job->request.vector;
    float *v = (float *)(uintptr_t)event->vector;
    const int32_t n = embedding_finish(wanted, v, event->columns);
    embedding_write(wanted, v, n, &c->text);
    c->job->bytes += c->text.len;
    c->admitted_ns = event->admitted_ns;
    job_end_choice(c, "stop", -1);
}

/* The engine says that this was all. */
static void end_text(struct lane *l, struct choice *c, const char *reason)
{
    const bool failed = l->piece.failed; /* the last token's */
    buf_clear(&l->piece);
    detok_finish(&c->detok, &l->piece);
    l->piece.failed = l->piece.failed || failed;
    add_piece(l, c);
    if (c->ended)
        return;
    stop_finish(&c->stop, &c->text);
    job_end_choice(c, reason, -1);
}

static void fail_job(struct job *j, const struct token_event *event)
{
    const enum finish_reason finish = event->finish;
    struct api_error e = {0};
    if (finish == FINISH_FAILED && j->request.params.pooled)
        api_error_set(&e, 500, "not_finite",
                      "the model computed NaN or infinity for one of the texts: its weights are "
                      "damaged, or their values need another --dtype");
    else if (finish == FINISH_FAILED && event->stuck)
        api_error_set(&e, 400, "no_token_left",
                      "no token can follow here: this request (bad_words, min_tokens) forbids "
                      "every token that the form of its answer leaves, or that form is too "
                      "ambiguous");
    else if (finish == FINISH_FAILED)
        api_error_set(&e, 500, "not_finite",
                      "no token could be chosen: the model computed NaN or infinity, since its "
                      "weights are damaged or their values need another --dtype");
    else if (finish == FINISH_ERROR)
        api_error_set(&e, 503, "rank_lost", "a rank was lost while this request was running");
    else
        api_error_set(&e, 503, "draining", "the server is shutting down");
    job_fail(j, &e);
}

static bool out_of_memory(const struct lane *l, const struct choice *c)
{
    return c->text.failed || c->ids.failed || l->piece.failed || logprobs_failed(&c->logprobs) ||
           logprobs_failed(&c->prompt_logprobs) || (c->answer && answer_failed(c->answer));
}

static void handle_live(struct lane *l, struct choice *c, const struct token_event *event)
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
        add_token(l, c, event);
    if (event->vector)
        take_vector(c, event);
    switch (event->finish) {
    case FINISH_NONE:
        break;
    case FINISH_STOP:
    case FINISH_LENGTH:
    case FINISH_COMPLETE:
        if (!c->ended)
            end_text(l, c, event->finish == FINISH_LENGTH ? "length" : "stop");
        break;
    case FINISH_CANCELLED:
    case FINISH_FAILED:
    case FINISH_ERROR:
        if (!c->ended) {
            fail_job(j, event);
            return;
        }
        break;
    }
    job_take_parts(c, event->token >= 0);
    if (out_of_memory(l, c)) {
        struct api_error e = {0};
        api_error_no_memory(&e);
        job_fail(j, &e);
        return;
    }
    job_send_chunk(c, &l->scratch);
    job_complete(j, &l->scratch);
}

static void unwatch(struct lane *l, struct job *j)
{
    if (!j->waiting)
        return;
    j->waiting = false;
    pthread_mutex_lock(&l->lock);
    *j->waiting_link = j->waiting_next;
    if (j->waiting_next)
        j->waiting_next->waiting_link = j->waiting_link;
    pthread_mutex_unlock(&l->lock);
}

static bool is_running(const struct job *j)
{
    for (int32_t i = 0; i < j->choice_count; i++)
        if (j->choices[i].submitted)
            return true;
    return false;
}

static void watch(struct lane *l, struct job *j)
{
    pthread_mutex_lock(&l->lock);
    j->waiting_next = l->waiting;
    if (l->waiting)
        l->waiting->waiting_link = &j->waiting_next;
    else
        pthread_cond_signal(&l->wake); /* from now on there are ticks */
    j->waiting_link = &l->waiting;
    j->waiting = true;
    l->waiting = j;
    pthread_mutex_unlock(&l->lock);
}

static void make_slow(struct lane *l, struct job *j)
{
    const bool waiting = j->waiting;
    unwatch(l, j);
    j->slow = true;
    if (waiting)
        watch(l->slow, j);
}

/* False when the event is the slow lane's. */
static bool handle_here(struct lane *l, struct choice *c, const struct token_event *event)
{
    struct job *j = c->job;
    if (l->slow && j->slow) /* set by this thread: nobody has to be asked */
        return false;
    pthread_mutex_lock(&j->lock);
    const bool here = !l->slow || j->bytes <= LARGE_BYTES;
    if (!here)
        make_slow(l, j);
    if (here && event->finish != FINISH_NONE)
        c->submitted = false; /* the engine has let go */
    if (here && !c->ended && !j->over)
        handle_live(l, c, event);
    if (here && event->finish != FINISH_NONE && (j->over || !is_running(j)))
        unwatch(l, j);
    job_unlock(j);
    return here;
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

/* What is only lent with an event. */
static void keep_lists(struct batch *q, const struct token_event *event)
{
    const size_t tops = (size_t)event->top_count, numbers = (size_t)event->columns;
    if (tops > 0) {
        q->tops = grow(q->tops, q->top_count + tops, &q->top_capacity, sizeof *q->tops);
        memcpy(q->tops + q->top_count, event->top, tops * sizeof *q->tops);
        q->top_count += tops;
    }
    if (numbers > 0) {
        q->numbers =
            grow(q->numbers, q->number_count + numbers, &q->number_capacity, sizeof *q->numbers);
        memcpy(q->numbers + q->number_count, event->vector, numbers * sizeof *q->numbers);
        q->number_count += numbers;
    }
}

static void push(struct lane *l, const struct token_event *events, int32_t count)
{
    pthread_mutex_lock(&l->lock);
    struct batch *q = &l->queue;
    bool was_empty = q->count == 0;
    q->events = grow(q->events, q->count + (size_t)count, &q->capacity, sizeof *q->events);
    memcpy(q->events + q->count, events, (size_t)count * sizeof *events);
    q->count += (size_t)count;
    for (int32_t i = 0; i < count; i++)
        keep_lists(q, &events[i]);
    if (was_empty)
        pthread_cond_signal(&l->wake);
    pthread_mutex_unlock(&l->lock);
}

static void handle(struct lane *l, const struct token_event *event)
{
    struct choice *c = event->user;
    if (!handle_here(l, c, event)) {
        push(l->slow, event, 1);
        return;
    }
    if (event->finish != FINISH_NONE)
        job_release(c->job);
    if (l->scratch.cap > SCRATCH_BYTES)
        buf_free(&l->scratch);
}

void output_push(struct output *o, const struct token_event *events, int32_t count)
{
    push(&o->quick, events, count);
}

void output_watch(struct output *o, struct job *j)
{
    j->pinged_ns = base_now_ns();
    watch(&o->quick, j);
}

static void ping_waiting(struct lane *l)
{
    static const char ping[] = ": ping\n\n";
    const int64_t pause = (int64_t)(l->service->ping_s * 1e9);
    pthread_mutex_lock(&l->lock);
    struct job *first = l->waiting;
    pthread_mutex_unlock(&l->lock);
    for (struct job *j = first; j; j = j->waiting_next) {
        pthread_mutex_lock(&j->lock);
        if (!j->over && l->now_ns - j->pinged_ns >= pause) {
            http_stream_push(j->http, ping, sizeof ping - 1);
            j->pinged_ns = l->now_ns;
        }
        job_unlock(j);
    }
    l->looked_ns = l->now_ns;
}

/* Swaps the batches when there is something to do, at the latest when waiting streams want to be
 * looked at; false when there never will be. */
static bool take_batch(struct lane *l)
{
    int64_t until = base_now_ns() + TICK_NS;
    const struct timespec tick = {(time_t)(until / 1000000000), (long)(until % 1000000000)};
    int rc = 0;
    pthread_mutex_lock(&l->lock);
    while (l->queue.count == 0 && !l->stop && rc == 0)
        rc = l->waiting ? pthread_cond_timedwait(&l->wake, &l->lock, &tick)
                        : pthread_cond_wait(&l->wake, &l->lock);
    struct batch taken = l->queue;
    l->queue = l->work;
    l->queue.count = l->queue.top_count = l->queue.number_count = 0;
    l->work = taken;
    bool more = l->work.count > 0 || !l->stop;
    pthread_mutex_unlock(&l->lock);
    return more;
}

static void *output_loop(void *arg)
{
    struct lane *l = arg;
    prctl(PR_SET_NAME, "tessera-output");
    while (take_batch(l)) {
        const struct token_top *top = l->work.tops;
        const float *number = l->work.numbers;
        l->now_ns = base_now_ns();
        for (size_t i = 0; i < l->work.count; i++) {
            struct token_event *event = &l->work.events[i];
            event->top = top;
            top += event->top_count;
            event->vector = NULL;
            if (event->columns > 0) {
                event->vector = number;
                number += event->columns;
            }
            handle(l, event);
        }
        if (l->now_ns - l->looked_ns >= TICK_NS)
            ping_waiting(l);
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

/* Whatever it returns, lane_close has to follow. */
static enum status lane_open(struct lane *l, struct service *s, struct lane *slow, struct err *err)
{
    pthread_condattr_t attr;
    l->service = s;
    l->slow = slow;
    buf_init(&l->piece, PIECE_BYTES_MAX);
    buf_init(&l->scratch, (size_t)1 << 30);
    pthread_mutex_init(&l->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&l->wake, &attr);
    pthread_condattr_destroy(&attr);
    if (!batch_open(&l->queue) || !batch_open(&l->work))
        return base_fail(err, ERR_NOMEM, "output: no memory");
    const int failed = pthread_create(&l->thread, NULL, output_loop, l);
    if (failed)
        return base_fail_start(err, failed, "output: a thread");
    l->started = true;
    return OK;
}

static void lane_close(struct lane *l)
{
    if (!l->service)
        return;
    if (l->started) {
        pthread_mutex_lock(&l->lock);
        l->stop = true;
        pthread_cond_signal(&l->wake);
        pthread_mutex_unlock(&l->lock);
        pthread_join(l->thread, NULL);
    }
    free(l->queue.events);
    free(l->queue.tops);
    free(l->queue.numbers);
    free(l->work.events);
    free(l->work.tops);
    free(l->work.numbers);
    buf_free(&l->piece);
    buf_free(&l->scratch);
    pthread_mutex_destroy(&l->lock);
    pthread_cond_destroy(&l->wake);
}

enum status output_open(struct service *s, struct output **out, struct err *err)
{
    struct output *o = calloc(1, sizeof *o);
    if (!o)
        return base_fail(err, ERR_NOMEM, "output: no memory");
    enum status st = lane_open(&o->slow, s, NULL, err);
    if (st == OK)
        st = lane_open(&o->quick, s, &o->slow, err);
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
    lane_close(&o->quick); /* first: it passes events on */
    lane_close(&o->slow);
    free(o);
}
