/* An engine without a model, for tests of the HTTP layer: one thread, one "step" every `pause_us`,
 * one letter per request and step: a, b, c, ... as byte tokens of tests/corpus/tokenizer/bytes.
 * The token at a position has logprob -(position + 1) / 4, prompt and answer counted together; the
 * best ones are the token after it in the alphabet of ids, itself, and the one before. A stop id
 * ends a request as an end token does; every prompt has one cached token. The vector of a prompt is
 * its first token, and that plus a half, plus one, and so on; token 13 makes it fail. */
#ifndef TESSERA_TESTS_FAKE_ENGINE_H
#define TESSERA_TESTS_FAKE_ENGINE_H

#include "engine/engine.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FAKE_REQUESTS_MAX 256
#define FAKE_BYTE_ID 3 /* of byte 0 */
#define FAKE_TOP_MAX 3 /* of each token, as many are known */
#define FAKE_COLUMNS 4 /* of vectors */

struct fake_request {
    uint64_t id;
    void *user;
    struct request_params params;
    int32_t *prompt;
    int32_t prompt_len, scored, made;
    bool cancelled;
};

struct engine {
    engine_sink *sink;
    void *sink_ctx;
    pthread_t thread;
    _Atomic int32_t pause_us;
    _Atomic bool lost, stop;
    _Atomic int32_t running, cancels, submits;
    _Atomic int32_t places; /* how many requests may run */
    _Atomic int32_t stalled_s;
    pthread_mutex_t lock; /* guards what follows */
    struct fake_request requests[FAKE_REQUESTS_MAX];
    uint64_t last_id;
    uint64_t seeds[FAKE_REQUESTS_MAX]; /* of all submitted, in order */
    int32_t choices[FAKE_REQUESTS_MAX];
    struct request_params last; /* of the latest; arrays copied: */
    struct token_bias last_bias[ENGINE_BIAS_MAX];
    int32_t last_bad_ids[ENGINE_BAD_IDS_MAX], last_bad_ends[ENGINE_BAD_IDS_MAX];
};

const double engine_step_bounds[ENGINE_STEP_BOUNDS] = {0.001, 0.01};
const double engine_row_bounds[ENGINE_ROW_BOUNDS] = {1, 8};

/* The arrays of params are the caller's, and only until engine_submit returns. */
static bool fake_keep(struct engine *e, struct fake_request *r, const struct request_params *params)
{
    const int32_t stops = params->stop_id_count, bads = params->bad_count;
    int32_t *stop_ids = malloc((size_t)stops * sizeof *stop_ids + 1);
    if (!stop_ids)
        return false;
    memcpy(stop_ids, params->stop_ids, (size_t)stops * sizeof *stop_ids);
    r->params.stop_ids = stop_ids;
    e->last = *params;
    memcpy(e->last_bias, params->bias, (size_t)params->bias_count * sizeof *params->bias);
    if (bads > 0) {
        memcpy(e->last_bad_ends, params->bad_ends, (size_t)bads * sizeof *params->bad_ends);
        memcpy(e->last_bad_ids, params->bad_ids,
               (size_t)params->bad_ends[bads - 1] * sizeof *params->bad_ids);
    }
    return true;
}

enum status engine_submit(struct engine *e, const struct request_params *params,
                          const int32_t *prompt, int32_t prompt_len, void *user, uint64_t *id,
                          struct err *err)
{
    enum status st = base_fail(err, ERR_LIMIT, "no place left");
    CHECK(prompt_len > 0);
    CHECK(params->max_tokens >= 0);
    if (atomic_load(&e->lost))
        return base_fail(err, ERR_COMM, "the ranks are lost");
    pthread_mutex_lock(&e->lock);
    if (atomic_load(&e->stop))
        st = base_fail(err, ERR_COMM, "the engine has stopped");
    for (int32_t i = 0; i < atomic_load(&e->places) && st == ERR_LIMIT; i++) {
        struct fake_request *r = &e->requests[i];
        if (r->id)
            continue;
        *r = (struct fake_request){
            .id = ++e->last_id, .user = user, .params = *params, .prompt_len = prompt_len};
        r->prompt = malloc((size_t)prompt_len * sizeof *prompt);
        if (!r->prompt || !fake_keep(e, r, params)) {
            free(r->prompt);
            r->id = 0;
            st = base_fail(err, ERR_NOMEM, "no memory");
            break;
        }
        memcpy(r->prompt, prompt, (size_t)prompt_len * sizeof *prompt);
        *id = r->id;
        int32_t n = atomic_fetch_add(&e->submits, 1) % FAKE_REQUESTS_MAX;
        e->seeds[n] = params->seed;
        e->choices[n] = params->choice;
        atomic_fetch_add(&e->running, 1);
        st = OK;
    }
    pthread_mutex_unlock(&e->lock);
    return st;
}

enum status engine_check_room(const struct engine *e, struct err *err)
{
    return atomic_load(&e->running) < atomic_load(&e->places)
               ? OK
               : base_fail(err, ERR_LIMIT, "no place at all");
}

void engine_cancel(struct engine *e, uint64_t id)
{
    pthread_mutex_lock(&e->lock);
    for (int32_t i = 0; i < FAKE_REQUESTS_MAX; i++)
        if (e->requests[i].id == id)
            e->requests[i].cancelled = true;
    pthread_mutex_unlock(&e->lock);
}

double engine_stalled_s(const struct engine *e)
{
    return atomic_load(&e->stalled_s);
}

void engine_metrics(const struct engine *e, struct engine_metrics *out)
{
    *out =
        (struct engine_metrics){.running = atomic_load(&e->running), .ranks = 2, .group = {"tp"}};
}

static void fake_forget(struct fake_request *r)
{
    union {
        const int32_t *in;
        int32_t *out;
    } stop_ids = {r->params.stop_ids};
    free(r->prompt);
    free(stop_ids.out);
}

static void fake_score(int32_t position, int32_t wanted, struct token_top *top,
                       struct token_event *event)
{
    float own = -0.25F * (float)(position + 1);
    if (wanted < 0)
        return;
    top[0] = (struct token_top){event->token + 1, own / 2};
    top[1] = (struct token_top){event->token, own};
    top[2] = (struct token_top){event->token - 1, -HUGE_VALF};
    event->logprob = own;
    event->top = top;
    event->top_count = wanted < FAKE_TOP_MAX ? wanted : FAKE_TOP_MAX;
}

static bool fake_ends(const struct fake_request *r, int32_t token)
{
    for (int32_t i = 0; i < r->params.stop_id_count; i++)
        if (r->params.stop_ids[i] == token && r->made > r->params.min_tokens)
            return true;
    return false;
}

static void fake_produce(struct fake_request *r, struct token_top *top, struct token_event *event)
{
    if (r->params.prompt_logprobs >= 0 && r->scored + 1 < r->prompt_len) {
        event->prompt = true;
        event->token = r->prompt[++r->scored];
        fake_score(r->scored, r->params.prompt_logprobs, top, event);
        return;
    }
    event->cached = 1;
    if (r->params.max_tokens > 0) {
        event->token = FAKE_BYTE_ID + 'a' + r->made % 26;
        fake_score(r->prompt_len + r->made, r->params.logprobs, top, event);
        r->made++;
    }
    if (event->token >= 0 && fake_ends(r, event->token))
        event->finish = FINISH_STOP;
    else
        event->finish = r->made == r->params.max_tokens ? FINISH_LENGTH : FINISH_NONE;
}

static void fake_pool(const struct fake_request *r, float *vector, struct token_event *event)
{
    event->cached = 1;
    event->finish = r->prompt[0] == 13 ? FINISH_FAILED : FINISH_STOP;
    if (event->finish == FINISH_FAILED)
        return;
    for (int32_t i = 0; i < FAKE_COLUMNS; i++)
        vector[i] = (float)r->prompt[0] + 0.5F * (float)i;
    event->vector = vector;
    event->columns = FAKE_COLUMNS;
}

static struct token_event fake_step(struct engine *e, struct fake_request *r, struct token_top *top,
                                    float *vector)
{
    struct token_event event = {.request = r->id, .user = r->user, .token = -1};
    if (r->cancelled) {
        event.finish = FINISH_CANCELLED;
        atomic_fetch_add(&e->cancels, 1);
    } else if (atomic_load(&e->lost)) {
        event.finish = FINISH_ERROR;
    } else if (atomic_load(&e->stop)) {
        event.finish = FINISH_CANCELLED;
    } else if (r->params.pooled) {
        fake_pool(r, vector, &event);
    } else {
        fake_produce(r, top, &event);
    }
    if (event.finish != FINISH_NONE) {
        r->id = 0;
        fake_forget(r);
        atomic_fetch_sub(&e->running, 1);
    }
    return event;
}

/* Until the next step, which may be made to come sooner. */
static inline void fake_pause(struct engine *e)
{
    int32_t slept = 0;
    do {
        const int32_t left = atomic_load(&e->pause_us) - slept;
        usleep(left <= 0 ? 0 : left < 1000 ? (useconds_t)left : 1000);
        slept += 1000;
    } while (slept < atomic_load(&e->pause_us) && !atomic_load(&e->stop));
}

static void *fake_loop(void *arg)
{
    struct engine *e = arg;
    struct token_event events[FAKE_REQUESTS_MAX];
    struct token_top tops[FAKE_REQUESTS_MAX][FAKE_TOP_MAX];
    float vectors[FAKE_REQUESTS_MAX][FAKE_COLUMNS]; /* of the last step only */
    for (bool last = false; !last;) {
        int32_t count = 0;
        last = atomic_load(&e->stop);
        pthread_mutex_lock(&e->lock);
        for (int32_t i = 0; i < FAKE_REQUESTS_MAX; i++)
            if (e->requests[i].id)
                events[count++] = fake_step(e, &e->requests[i], tops[i], vectors[i]);
        pthread_mutex_unlock(&e->lock);
        if (count > 0)
            e->sink(e->sink_ctx, events, count);
        fake_pause(e);
    }
    return NULL;
}

static inline void fake_engine_start(struct engine *e, engine_sink *sink, void *ctx)
{
    memset(e, 0, sizeof *e);
    e->sink = sink;
    e->sink_ctx = ctx;
    atomic_store(&e->pause_us, 200);
    atomic_store(&e->places, FAKE_REQUESTS_MAX);
    pthread_mutex_init(&e->lock, NULL);
    CHECK(pthread_create(&e->thread, NULL, fake_loop, e) == 0);
}

/* Ends what runs; the sink is not called any more. */
static inline void fake_engine_stop(struct engine *e)
{
    atomic_store(&e->stop, true);
    pthread_join(e->thread, NULL);
}

#endif
