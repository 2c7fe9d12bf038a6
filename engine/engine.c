/* DESIGN: one thread owns scheduler, KV bookkeeping and links; the rest of the world reaches it
 * through a bounded mailbox under one short lock. The thread sleeps on a condition when nothing
 * runs; otherwise it builds and sends a step while the ranks run the one before, and waits for the
 * oldest answer. When the ranks are lost the thread parks, with all requests waiting, until there
 * are others; when they are lost for good it ends every request once, from here, so that exactly
 * one terminal event per request holds. */
#include "engine/engine_thread.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>

#define STOP_PATIENCE_S 2 /* how long a stop waits for the steps in flight */

const double engine_step_bounds[ENGINE_STEP_BOUNDS] = {
    0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 10};

_Static_assert((int)SCHED_FLIGHTS <= (int)LINK_POSTS_MAX, "links take every step in flight");

const double engine_row_bounds[ENGINE_ROW_BOUNDS] = {1,   8,    16,   32,   64,   128,  256,
                                                     512, 1024, 2048, 4096, 8192, 16384};

enum state {
    UP,
    DOWN, /* the ranks are lost, others may come */
    LOST, /* for good */
};

struct flight {
    struct step *step;
    void *message;
    double sent;
};

struct engine {
    struct engine_config config;
    struct sched *sched;
    struct flight flights[SCHED_FLIGHTS]; /* step seq is in [seq % SCHED_FLIGHTS] */
    struct token_event *events;
    struct link_answer answers[COMM_RANKS_MAX];
    uint64_t seq;           /* of the last step that was sent */
    double answered;        /* when the last answer had come */
    uint64_t progress_seen; /* sum of the ranks' progress words, and when it last changed */
    double progress_at;
    pthread_t thread;
    bool started;
    _Atomic int state;
    _Atomic int64_t moved_ns; /* last sign of life while there is work; 0: there is none */
    /* written under the lock */
    _Atomic int32_t requests;      /* taken, and not ended */
    _Atomic int64_t queued_tokens; /* of prompts that wait, in the mailbox or with the scheduler */

    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t wake;  /* of the engine thread */
    pthread_cond_t parks;
    bool parked; /* the thread uses neither links nor board */
    struct sequence *mail, **mail_tail;
    int32_t mail_count;
    int64_t mail_tokens; /* of the prompts in it */
    uint64_t *cancels;   /* grows: ids that have ended already may be among them */
    int32_t cancel_count, cancel_max;
    uint64_t next_id;
    bool stop;
    double stop_at;
    struct engine_metrics metrics;
};

/* ---- the outside ---- */

static bool is(const struct engine *e, enum state state)
{
    return atomic_load(&e->state) == (int)state;
}

static enum status lost(struct err *err)
{
    return base_fail(err, ERR_COMM, "the rank group is lost");
}

/* Is there room for one more prompt? Running requests count, too: of many that come at once, as
 * many fit as there are free slots and places in the queue. A prompt that is larger than the bound
 * of tokens fits when no other waits. The answer can change at once unless the lock is held. */
static enum status check_queue(const struct engine *e, int32_t prompt_len, struct err *err)
{
    const int64_t tokens = atomic_load(&e->queued_tokens);
    const int32_t requests = atomic_load(&e->requests);
    if (requests >= sched_requests_max(&e->config.sched))
        return base_fail(err, ERR_LIMIT,
                         "%d requests are running or waiting already, try again later", requests);
    if (tokens > 0 && tokens + prompt_len > e->config.queued_tokens_max)
        return base_fail(err, ERR_LIMIT,
                         "%lld prompt tokens are waiting already, with %d more there would be more "
                         "than %lld, try again later",
                         (long long)tokens, prompt_len, (long long)e->config.queued_tokens_max);
    return OK;
}

enum status engine_check_room(const struct engine *e, struct err *err)
{
    return check_queue(e, 1, err);
}

enum status engine_submit(struct engine *e, const struct request_params *params,
                          const int32_t *prompt, int32_t prompt_len, void *user, uint64_t *id,
                          struct err *err)
{
    struct sequence *s = NULL;
    if (is(e, LOST))
        return lost(err);
    enum status st = sequence_open(&e->config.sched, params, prompt, prompt_len, &s, err);
    if (st != OK)
        return st;
    s->user = user;
    pthread_mutex_lock(&e->lock);
    if (e->stop || is(e, LOST))
        st = lost(err);
    else
        st = check_queue(e, prompt_len, err);
    if (st == OK) {
        *id = s->id = ++e->next_id;
        s->next = NULL;
        *e->mail_tail = s;
        e->mail_tail = &s->next;
        e->mail_count++;
        e->mail_tokens += prompt_len;
        atomic_fetch_add(&e->requests, 1);
        atomic_fetch_add(&e->queued_tokens, prompt_len);
        s = NULL;
        if (atomic_load(&e->moved_ns) == 0 && is(e, UP)) /* an answer is owed from here on */
            atomic_store(&e->moved_ns, base_now_ns());
        pthread_cond_signal(&e->wake);
    }
    pthread_mutex_unlock(&e->lock);
    sequence_free(s);
    return st;
}

void engine_cancel(struct engine *e, uint64_t id)
{
    pthread_mutex_lock(&e->lock);
    if (e->cancel_count == e->cancel_max) {
        uint64_t *more = realloc(e->cancels, 2 * (size_t)e->cancel_max * sizeof *more);
        if (more) {
            e->cancels = more;
            e->cancel_max *= 2;
        }
    }
    if (e->cancel_count < e->cancel_max) /* else, without memory: it goes on to its max_tokens */
        e->cancels[e->cancel_count++] = id;
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->lock);
}

static void read_traffic(const struct comm_stats *stats, struct engine_traffic out[COMM_OP_COUNT])
{
    for (int op = 0; op < COMM_OP_COUNT; op++) {
        out[op].calls = atomic_load(&stats->op[op].calls);
        out[op].bytes = atomic_load(&stats->op[op].bytes);
        out[op].nanoseconds = atomic_load(&stats->op[op].nanoseconds);
    }
}

/* The groups' names are there before the ranks are ready. */
static void read_groups(const struct board_rank *b, char out[1 + MESH_AXES_MAX][16])
{
    memcpy(out[0], b->comm.group, sizeof out[0]);
    for (int32_t i = 0; i < MESH_AXES_MAX; i++)
        memcpy(out[1 + i], b->axis[i].group, sizeof out[0]);
}

static void read_board(const struct engine *e, struct engine_metrics *out)
{
    const struct board *board = e->config.group.board;
    out->sampler_fallbacks = atomic_load(&board->rank[0].sampler_fallbacks); /* as on all ranks */
    out->replays = atomic_load(&board->rank[0].replays);                     /* likewise */
    read_groups(&board->rank[0], out->group);
    for (int32_t r = 0; r < out->ranks; r++) {
        const struct board_rank *b = &board->rank[r];
        out->rank[r].up = is(e, UP);
        out->rank[r].weight_bytes = atomic_load(&b->weight_bytes);
        out->rank[r].read_bytes = atomic_load(&b->read_bytes);
        read_traffic(&b->comm, out->rank[r].comm);
        for (int32_t i = 0; i < MESH_AXES_MAX; i++)
            read_traffic(&b->axis[i], out->rank[r].axis[i]);
    }
}

void engine_metrics(const struct engine *e, struct engine_metrics *out)
{
    struct engine *w = (struct engine *)(uintptr_t)e; /* the lock is not part of what is const */
    pthread_mutex_lock(&w->lock);
    *out = e->metrics;
    out->waiting += e->mail_count;
    if (is(e, UP) || (is(e, DOWN) && !e->parked)) /* else the board may be gone */
        read_board(e, out);
    pthread_mutex_unlock(&w->lock);
}

double engine_stalled_s(const struct engine *e)
{
    const int64_t moved = atomic_load(&e->moved_ns);
    return moved ? (double)(base_now_ns() - moved) / 1e9 : 0;
}

/* ---- the engine thread ---- */

static void note_progress(struct engine *e)
{
    atomic_store(&e->moved_ns, base_now_ns());
}

/* What the scheduler counts, for those who look from outside; under the lock. */
static void show_stats(struct engine *e)
{
    struct engine_metrics *m = &e->metrics;
    const struct sched_stats stats = sched_stats(e->sched);
    m->running = stats.running;
    m->waiting = stats.waiting;
    m->prompt_tokens = stats.prompt_tokens;
    m->prefix_queries = stats.prefix_queries;
    m->prefix_hits = stats.prefix_hits;
    m->preemptions = stats.preemptions;
    m->states_kept = stats.states_kept;
    m->drafts = stats.drafts;
    m->guesses = stats.guesses;
    memcpy(m->accepted, stats.accepted, sizeof m->accepted);
    m->kv_blocks_used = stats.blocks_used;
    m->kv_usage = m->kv_blocks ? (double)m->kv_blocks_used / (double)m->kv_blocks : 0;
    atomic_store(&e->queued_tokens, e->mail_tokens + stats.waiting_tokens);
}

/* Counts before it delivers, so that whoever has seen an event finds it in the metrics. */
static void deliver(struct engine *e, int32_t count)
{
    pthread_mutex_lock(&e->lock);
    for (int32_t i = 0; i < count; i++) {
        const struct token_event *event = &e->events[i];
        e->metrics.finished[event->finish]++;
        e->metrics.generation_tokens += event->token >= 0 && !event->prompt;
        if (event->finish != FINISH_NONE)
            atomic_fetch_sub(&e->requests, 1);
    }
    show_stats(e);
    pthread_mutex_unlock(&e->lock);
    if (count > 0)
        e->config.sink(e->config.sink_ctx, e->events, count);
}

/* Moves mail and cancels to the scheduler; sleeps while there is neither work nor mail. False when
 * the engine shall stop. */
static bool collect(struct engine *e, bool idle)
{
    pthread_mutex_lock(&e->lock);
    while (idle && !e->stop && is(e, UP) && !e->mail && e->cancel_count == 0) {
        atomic_store(&e->moved_ns, 0);
        pthread_cond_wait(&e->wake, &e->lock);
    }
    note_progress(e);
    sched_set_time(e->sched, base_now_ns());
    while (e->mail) {
        struct sequence *s = e->mail;
        e->mail = s->next;
        sched_submit(e->sched, s);
    }
    e->mail_tail = &e->mail;
    e->mail_count = 0;
    e->mail_tokens = 0;
    show_stats(e);
    for (int32_t i = 0; i < e->cancel_count; i++)
        sched_cancel(e->sched, e->cancels[i]);
    e->cancel_count = 0;
    bool go_on = !e->stop && is(e, UP);
    pthread_mutex_unlock(&e->lock);
    return go_on;
}

/* While ranks work: did a layer finish within the deadline, and does anybody want us to stop? */
static enum status patience(void *ctx, struct err *err)
{
    struct engine *e = ctx;
    uint64_t sum = 0;
    for (int32_t r = 0; r < e->config.ranks; r++)
        sum += atomic_load_explicit(&e->config.group.board->rank[r].progress, memory_order_relaxed);
    double now = base_now();
    if (sum != e->progress_seen) {
        e->progress_seen = sum;
        e->progress_at = now;
        note_progress(e);
    }
    if (!is(e, UP))
        return lost(err);
    pthread_mutex_lock(&e->lock);
    bool stopping = e->stop && now > e->stop_at + STOP_PATIENCE_S;
    pthread_mutex_unlock(&e->lock);
    if (stopping)
        return base_fail(err, ERR_CANCELLED, "stopped while a step was running");
    if (now - e->progress_at > e->config.step_timeout)
        return base_fail(err, ERR_COMM, "no rank finished a layer for %.0f s (--step-timeout)",
                         e->config.step_timeout);
    return OK;
}

/* All ranks must have run step `seq` and sampled the same ids. */
static enum status check_answers(const struct engine *e, uint64_t seq, struct err *err)
{
    for (int32_t r = 0; r < e->config.ranks; r++) {
        const struct step_answer *h = &e->answers[r].head;
        if (h->epoch != e->config.group.epoch || h->seq != seq || h->rank != r)
            return base_fail(err, ERR_COMM, "rank %d answered step %llu of epoch %u, expected %llu",
                             r, (unsigned long long)h->seq, h->epoch, (unsigned long long)seq);
        if (h->hash != e->answers[0].head.hash)
            return base_fail(err, ERR_COMM, "ranks 0 and %d sampled different tokens in step %llu",
                             r, (unsigned long long)seq);
    }
    const struct step_result *result = &e->answers[0].result;
    if (e->answers[0].head.hash != step_hash(result->ids, result->count))
        return base_fail(err, ERR_COMM, "rank 0 answered tokens that are not those of its hash");
    return step_check_result(e->flights[seq % SCHED_FLIGHTS].step, e->config.sched.limits.vocab,
                             result, err);
}

/* The first bucket whose bound is not below the value; count when none is. */
static int bucket_of(const double *bounds, int count, double value)
{
    int bucket = 0;
    while (bucket < count && value > bounds[bucket])
        bucket++;
    return bucket;
}

static void account(struct engine *e, const struct step *step, double seconds)
{
    const int bucket = bucket_of(engine_step_bounds, ENGINE_STEP_BOUNDS, seconds);
    const int row_bucket = bucket_of(engine_row_bounds, ENGINE_ROW_BOUNDS, step->rows);
    pthread_mutex_lock(&e->lock);
    e->metrics.steps++;
    e->metrics.step_rows += (uint64_t)step->rows;
    e->metrics.step_seconds += seconds;
    e->metrics.step_buckets[bucket]++;
    e->metrics.row_buckets[row_bucket]++;
    pthread_mutex_unlock(&e->lock);
}

/* Builds and sends steps until as many are in flight as may be, or there is nothing to compute. */
static enum status send_steps(struct engine *e, struct err *err)
{
    enum status st = OK;
    while (sched_in_flight(e->sched) < SCHED_FLIGHTS) {
        struct flight *f = &e->flights[(e->seq + 1) % SCHED_FLIGHTS];
        int32_t count;
        bool work = sched_build(e->sched, f->step, e->events, &count);
        deliver(e, count);
        if (!work)
            break;
        f->step->epoch = e->config.group.epoch;
        f->step->seq = ++e->seq;
        f->sent = base_now();
        if (sched_in_flight(e->sched) == 1) /* the ranks were idle */
            e->progress_at = f->sent;
        TRY(link_post(e->config.group.links, f->message, step_encode(f->step, f->message), err));
    }
out:
    return st;
}

/* Waits for the oldest step in flight and hands out its tokens. */
static enum status finish_step(struct engine *e, struct err *err)
{
    enum status st = OK;
    int32_t count;
    const uint64_t seq = e->seq + 1 - (uint64_t)sched_in_flight(e->sched);
    const struct flight *f = &e->flights[seq % SCHED_FLIGHTS];
    TRY(link_await(e->config.group.links, patience, e, e->answers, err));
    TRY(check_answers(e, seq, err));
    /* it began when it was sent or, if later, when the one before had ended */
    const double now = base_now(), began = f->sent > e->answered ? f->sent : e->answered;
    e->answered = e->progress_at = now;
    account(e, f->step, now - began);
    sched_commit(e->sched, f->step, &e->answers[0].result, e->events, &count);
    deliver(e, count);
out:
    return st;
}

/* As patience, but a request to stop ends the measurement, too. */
static enum status patience_to_measure(void *ctx, struct err *err)
{
    struct engine *e = ctx;
    pthread_mutex_lock(&e->lock);
    const bool stop = e->stop;
    pthread_mutex_unlock(&e->lock);
    return stop ? base_fail(err, ERR_CANCELLED, "stopped") : patience(e, err);
}

/* Measured after the server is ready, as the first work of the ranks: a first request may have to
 * wait for it, for a moment. */
static enum status measure_costs(struct engine *e, struct err *err)
{
    const struct engine_group *g = &e->config.group;
    struct costs costs;
    if (!e->config.measure_costs)
        return OK;
    e->progress_at = base_now();
    enum status st = costs_measure(g->links, &e->config.sched.limits, g->epoch, &e->seq,
                                   patience_to_measure, e, &costs, err);
    if (st == ERR_CANCELLED)
        return OK;
    if (st == OK) {
        e->config.measure_costs = false;
        sched_set_costs(e->sched, &costs);
        base_log(LOG_INFO, "a step takes %.1f ms with 1 row, %.1f ms with %d%s",
                 costs.seconds[0] * 1e3, costs.seconds[costs.count - 1] * 1e3,
                 costs.rows[costs.count - 1],
                 e->config.sched.limits.homes > 1 ? ", in each home" : "");
    }
    return st;
}

/* Step after step, until the engine shall stop (OK, ERR_CANCELLED: in the middle of a step) or the
 * ranks are lost. */
static enum status run(struct engine *e, struct err *err)
{
    enum status st = OK;
    bool idle = false;
    TRY(measure_costs(e, err));
    while (collect(e, idle)) {
        TRY(send_steps(e, err));
        idle = sched_in_flight(e->sched) == 0;
        if (!idle)
            TRY(finish_step(e, err));
    }
    while (is(e, UP) && sched_in_flight(e->sched) > 0)
        TRY(finish_step(e, err)); /* stopped: what the ranks are at may end */
    if (!is(e, UP))
        st = lost(err);
out:
    return st;
}

/* Parks until there are other ranks (true), or never will be. */
static bool await_group(struct engine *e)
{
    pthread_mutex_lock(&e->lock);
    if (is(e, DOWN)) /* what the ranks counted is shown until there are others */
        read_board(e, &e->metrics);
    e->parked = true;
    pthread_cond_broadcast(&e->parks);
    atomic_store(&e->moved_ns, 0);
    while (is(e, DOWN) && !e->stop)
        pthread_cond_wait(&e->wake, &e->lock);
    e->parked = false;
    const bool go_on = is(e, UP) && !e->stop;
    pthread_mutex_unlock(&e->lock);
    e->seq = 0; /* ranks count from their start */
    return go_on;
}

/* The ranks are lost. True: there are others, and all that was running waits again. */
static bool survive(struct engine *e, const struct err *err)
{
    int32_t count;
    const struct engine_config *c = &e->config;
    int expected = UP;
    const bool first =
        atomic_compare_exchange_strong(&e->state, &expected, c->on_lost ? DOWN : LOST);
    if (first)
        base_log(LOG_ERROR, "rank group lost: %s", err->text);
    if (!is(e, LOST)) {
        sched_restart(e->sched, e->events, &count);
        deliver(e, count);
    }
    if (first && c->on_lost)
        c->on_lost(c->on_lost_ctx);
    return await_group(e);
}

static void *engine_loop(void *arg)
{
    struct engine *e = arg;
    struct err err;
    int32_t count;
    prctl(PR_SET_NAME, "tessera-engine");
    enum status st = run(e, &err);
    while (st != OK && st != ERR_CANCELLED && survive(e, &err))
        st = run(e, &err);
    collect(e, false);
    sched_end_all(e->sched, is(e, LOST) ? FINISH_ERROR : FINISH_CANCELLED, e->events, &count);
    deliver(e, count);
    return NULL;
}

static enum status open_sched(struct engine *e, struct err *err)
{
    uint64_t *secret = e->config.sched.secret;
    if (getrandom(secret, sizeof e->config.sched.secret, 0) != sizeof e->config.sched.secret)
        return base_fail_errno(err, ERR_INTERNAL, "engine: getrandom");
    return sched_open(&e->config.sched, &e->sched, err);
}

static enum status open_buffers(struct engine *e, struct err *err)
{
    const struct sched_config *c = &e->config.sched;
    bool complete = true;
    for (int32_t i = 0; i < SCHED_FLIGHTS; i++) {
        struct flight *f = &e->flights[i];
        const enum status st = step_open_new(&c->limits, &f->step, err);
        if (st != OK)
            return st;
        f->message = malloc(step_bytes_max(&c->limits));
        complete = complete && f->message;
    }
    e->events = calloc((size_t)sched_events_max(c), sizeof *e->events);
    e->cancel_max = sched_events_max(c);
    e->cancels = calloc((size_t)e->cancel_max, sizeof *e->cancels);
    if (!complete || !e->events || !e->cancels)
        return base_fail(err, ERR_NOMEM, "engine: no memory for its buffers");
    return OK;
}

enum status engine_open(const struct engine_config *config, struct engine **out, struct err *err)
{
    enum status st = OK;
    struct engine *e = calloc(1, sizeof *e);
    if (!e)
        return base_fail(err, ERR_NOMEM, "engine: no memory");
    e->config = *config;
    e->mail_tail = &e->mail;
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->wake, NULL);
    pthread_cond_init(&e->parks, NULL);
    e->metrics.ranks = config->ranks;
    e->metrics.block_tokens = BACKEND_BLOCK_TOKENS;
    e->metrics.states = config->sched.limits.states;
    e->metrics.kv_blocks = (int64_t)config->sched.limits.homes * config->sched.limits.blocks;
    e->metrics.kv_dtype = config->kv_dtype;
    e->metrics.speculation = config->sched.speculation.tokens;
    TRY(open_buffers(e, err));
    TRY(open_sched(e, err));
    const int failed = pthread_create(&e->thread, NULL, engine_loop, e);
    if (failed) {
        st = base_fail_start(err, failed, "engine: a thread");
        goto out;
    }
    e->started = true;
    *out = e;
    e = NULL;
out:
    engine_close(e);
    return st;
}

void engine_pause(struct engine *e)
{
    int expected = UP;
    atomic_compare_exchange_strong(&e->state, &expected, DOWN);
    pthread_mutex_lock(&e->lock);
    pthread_cond_signal(&e->wake);
    while (is(e, DOWN) && !e->parked)
        pthread_cond_wait(&e->parks, &e->lock);
    pthread_mutex_unlock(&e->lock);
}

void engine_resume(struct engine *e, const struct engine_group *group)
{
    pthread_mutex_lock(&e->lock);
    e->config.group = *group;
    e->metrics.restarts++;
    atomic_store(&e->state, UP);
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->lock);
}

void engine_lost(struct engine *e)
{
    atomic_store(&e->state, LOST);
    pthread_mutex_lock(&e->lock);
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->lock);
}

void engine_stop(struct engine *e)
{
    if (!e || !e->started)
        return;
    pthread_mutex_lock(&e->lock);
    e->stop = true;
    e->stop_at = base_now();
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->lock);
    pthread_join(e->thread, NULL);
    e->started = false;
}

void engine_close(struct engine *e)
{
    if (!e)
        return;
    engine_stop(e);
    while (e->mail) {
        struct sequence *next = e->mail->next;
        sequence_free(e->mail);
        e->mail = next;
    }
    sched_close(e->sched);
    for (int32_t i = 0; i < SCHED_FLIGHTS; i++) {
        step_free(e->flights[i].step);
        free(e->flights[i].message);
    }
    free(e->events);
    free(e->cancels);
    pthread_mutex_destroy(&e->lock);
    pthread_cond_destroy(&e->wake);
    pthread_cond_destroy(&e->parks);
    free(e);
}
