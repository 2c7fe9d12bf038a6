/* DESIGN: two arrays of events: the engine fills one, this thread works off the other, and they
 * swap under a lock that nobody holds for longer than a copy. A request's tokens thus never wait
 * for another's text, and the engine never for either. The arrays grow only if this thread falls
 * behind by more than EVENTS_START events; they are bounded by what the engine can have in flight.
 */
#include "server/output.h"

#include "server/job.h"

#include <stdlib.h>
#include <string.h>

#define EVENTS_START 65536
#define PIECE_BYTES_MAX ((size_t)1 << 20)

struct batch {
    struct token_event *events;
    size_t count, capacity;
};

struct output {
    struct service *service;
    pthread_t thread;
    bool started;
    /* the output thread's */
    struct batch work;
    struct buf piece, scratch; /* text of one token; a chunk */
    int64_t now_ns;

    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t wake;
    struct batch queue;
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

/* Puts the piece through the stop strings; a match ends the choice. */
static void add_piece(struct output *o, struct choice *c)
{
    int32_t matched =
        stop_push(&c->stop, o->piece.data ? o->piece.data : "", o->piece.len, &c->text);
    if (matched >= 0)
        job_end_choice(c, "stop", matched);
}

static void add_token(struct output *o, struct choice *c, const struct token_event *event)
{
    measure(o, c, event);
    c->tokens++;
    if (c->job->request.return_token_ids)
        buf_add(&c->ids, &event->token, sizeof event->token);
    if (event->finish == FINISH_STOP)
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
    buf_clear(&o->piece);
    detok_finish(&c->detok, &o->piece);
    add_piece(o, c);
    if (c->ended)
        return;
    stop_finish(&c->stop, &c->text);
    job_end_choice(c, reason, -1);
}

static void fail_job(struct job *j, enum finish_reason finish)
{
    struct api_error e = {0};
    if (finish == FINISH_ERROR)
        api_error_set(&e, 503, "rank_lost", "a rank was lost while this request was running");
    else
        api_error_set(&e, 503, "draining", "the server is shutting down");
    job_fail(j, &e);
}

static void handle_live(struct output *o, struct choice *c, const struct token_event *event)
{
    struct job *j = c->job;
    if (event->token >= 0)
        add_token(o, c, event);
    switch (event->finish) {
    case FINISH_NONE:
        break;
    case FINISH_STOP:
    case FINISH_LENGTH:
        if (!c->ended)
            end_text(o, c, event->finish == FINISH_STOP ? "stop" : "length");
        break;
    case FINISH_CANCELLED:
    case FINISH_ERROR:
        if (!c->ended) {
            fail_job(j, event->finish);
            return;
        }
        break;
    }
    if (c->text.failed || c->ids.failed || o->piece.failed) {
        struct api_error e = {0};
        api_error_from_status(&e, ERR_NOMEM, &(struct err){""});
        job_fail(j, &e);
        return;
    }
    job_send_chunk(c, &o->scratch);
    job_complete(j, &o->scratch);
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
    pthread_mutex_unlock(&j->lock);
    if (event->finish != FINISH_NONE)
        job_release(j);
}

/* ---- the queue ---- */

void output_push(struct output *o, const struct token_event *events, int32_t count)
{
    pthread_mutex_lock(&o->lock);
    struct batch *q = &o->queue;
    size_t need = q->count + (size_t)count;
    if (need > q->capacity) {
        size_t capacity = 2 * need;
        struct token_event *more = realloc(q->events, capacity * sizeof *more);
        CHECK(more != NULL); /* a lost event would be a request that never ends */
        q->events = more;
        q->capacity = capacity;
    }
    memcpy(q->events + q->count, events, (size_t)count * sizeof *events);
    if (q->count == 0)
        pthread_cond_signal(&o->wake);
    q->count = need;
    pthread_mutex_unlock(&o->lock);
}

/* Swaps the arrays when there is something to do; false when there never will be. */
static bool take_batch(struct output *o)
{
    pthread_mutex_lock(&o->lock);
    while (o->queue.count == 0 && !o->stop)
        pthread_cond_wait(&o->wake, &o->lock);
    struct batch taken = o->queue;
    o->queue = o->work;
    o->queue.count = 0;
    o->work = taken;
    pthread_mutex_unlock(&o->lock);
    return o->work.count > 0;
}

static void *output_loop(void *arg)
{
    struct output *o = arg;
    while (take_batch(o)) {
        o->now_ns = base_now_ns();
        for (size_t i = 0; i < o->work.count; i++)
            handle(o, &o->work.events[i]);
    }
    return NULL;
}

static bool batch_open(struct batch *b)
{
    b->events = malloc(EVENTS_START * sizeof *b->events);
    b->capacity = EVENTS_START;
    return b->events != NULL;
}

enum status output_open(struct service *s, struct output **out, struct err *err)
{
    enum status st = OK;
    struct output *o = calloc(1, sizeof *o);
    if (!o)
        return base_fail(err, ERR_NOMEM, "output: no memory");
    o->service = s;
    buf_init(&o->piece, PIECE_BYTES_MAX);
    buf_init(&o->scratch, (size_t)1 << 30);
    pthread_mutex_init(&o->lock, NULL);
    pthread_cond_init(&o->wake, NULL);
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
    free(o->work.events);
    buf_free(&o->piece);
    buf_free(&o->scratch);
    pthread_mutex_destroy(&o->lock);
    pthread_cond_destroy(&o->wake);
    free(o);
}
