/* DESIGN: every way a request can end (finished, failed, client gone) sets `over` once, under the
 * job's lock; whoever comes later finds it set and only gives its reference back. So there is one
 * answer, and the engine's late events need no special case.
 *
 * The end of the exchange is left as a note, `exchange`, for whoever comes to have the lock next or
 * has it now: the HTTP thread that brings it serves others, too, and must not wait. Both look after
 * they have written, with a fence between, so one of them sees the other. */
#include "server/job.h"

#include "config/utf8.h"
#include "server/output.h"
#include "server/request_log.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#define REPLY_BYTES_MAX ((size_t)1 << 30)

static uint64_t random_word(void)
{
    uint64_t x = 0;
    if (getrandom(&x, sizeof x, 0) != (ssize_t)sizeof x)
        x = (uint64_t)base_now_ns();
    return x;
}

/* What has not ended by itself ends so. Under j->lock. */
static void count_ends(const struct job *j, enum metrics_end how)
{
    for (int32_t i = 0; i < j->choice_count; i++)
        if (!j->choices[i].ended)
            metrics_count_end(j->service->metrics, how);
}

/* The engine works for nobody any more. Under j->lock. */
static void cancel_choices(struct job *j)
{
    struct engine *engine = service_engine(j->service);
    for (int32_t i = 0; i < j->choice_count; i++) {
        struct choice *c = &j->choices[i];
        if (c->submitted && !c->ended)
            engine_cancel(engine, c->engine_id);
        c->ended = true;
    }
}

enum exchange { EXCHANGE_RUNS, EXCHANGE_SENT, EXCHANGE_LEFT, EXCHANGE_SETTLED };

/* Nobody waits for it any more. Under j->lock. */
static void abandon(struct job *j)
{
    count_ends(j, METRICS_ABORT);
    cancel_choices(j);
    j->status = JOB_CLIENT_LEFT;
    j->over = true;
}

/* The answer has been sent, or the client has gone. Under j->lock. */
static void end_exchange(struct job *j, bool sent)
{
    if (!sent && !j->over)
        abandon(j);
    j->over = true;
    if (j->status != JOB_REFUSED) /* as one that was refused unread: a line each would be a flood */
        request_log(j);
}

static bool has_note(struct job *j)
{
    const int note = atomic_load(&j->exchange);
    return note == EXCHANGE_SENT || note == EXCHANGE_LEFT;
}

/* Does what the note says, unless somebody has the lock, who will. */
static void settle(struct job *j)
{
    int note = EXCHANGE_RUNS;
    atomic_thread_fence(memory_order_seq_cst);
    while (has_note(j) && pthread_mutex_trylock(&j->lock) == 0) {
        if (has_note(j)) {
            note = atomic_exchange(&j->exchange, EXCHANGE_SETTLED);
            end_exchange(j, note == EXCHANGE_SENT);
        }
        pthread_mutex_unlock(&j->lock);
        atomic_thread_fence(memory_order_seq_cst);
    }
    if (note != EXCHANGE_RUNS)
        job_release(j); /* the exchange's */
}

void job_unlock(struct job *j)
{
    pthread_mutex_unlock(&j->lock);
    settle(j);
}

/* On an HTTP thread. */
static void on_end(void *user, bool sent)
{
    struct job *j = user;
    atomic_fetch_add(&j->refs, 1); /* ours: another thread may give the exchange's back */
    atomic_store(&j->exchange, sent ? EXCHANGE_SENT : EXCHANGE_LEFT);
    settle(j);
    job_release(j);
}

struct job *job_open(struct service *s, const struct job_kind *kind, struct http_request *r)
{
    struct job *j = calloc(1, sizeof *j);
    if (!j)
        return NULL;
    atomic_init(&j->refs, 2);
    atomic_init(&j->exchange, EXCHANGE_RUNS);
    pthread_mutex_init(&j->lock, NULL);
    j->service = s;
    j->kind = kind;
    j->http = r;
    j->arrived_ns = base_now_ns();
    snprintf(j->meta.id, sizeof j->meta.id, "%s%016" PRIx64 "%016" PRIx64, kind->reply->id_prefix,
             random_word(), random_word());
    j->meta.created = (int64_t)time(NULL);
    j->meta.model = s->names[0];
    j->meta.fingerprint = s->fingerprint;
    j->meta.names.tokenizer = s->tokenizer;
    j->meta.repeated = &j->request.repeated;
    service_enter(s);
    http_hold(r);
    http_address(r, j->client);
    http_take_body(r, &j->body);
    http_on_end(r, on_end, j);
    return j;
}

void job_release(struct job *j)
{
    if (atomic_fetch_sub(&j->refs, 1) != 1)
        return;
    for (int32_t i = 0; i < j->choice_count; i++) {
        buf_free(&j->choices[i].text);
        buf_free(&j->choices[i].ids);
        answer_close(j->choices[i].answer);
        if (j->kind->reply->close)
            j->kind->reply->close(j->choices[i].state);
        logprobs_free(&j->choices[i].logprobs);
        logprobs_free(&j->choices[i].prompt_logprobs);
    }
    free(j->choices);
    buf_free(&j->body);
    completion_free(&j->request);
    conversation_free(&j->conversation);
    stop_set_close(j->stops);
    http_release(j->http);
    pthread_mutex_destroy(&j->lock);
    service_leave(j->service);
    free(j);
}

/* ---- submitting ---- */

/* What of the prompt is part of the answer; its logprobs come from the engine one by one. */
static void begin_prompt(struct choice *c)
{
    const struct completion_request *q = &c->job->request;
    const struct completion_prompt *p = &q->prompts[c->prompt];
    detok_init(&c->detok, c->job->service->tokenizer, p->ids, q->echo ? 0 : p->count);
    for (int32_t i = 0; i < p->count; i++) {
        if (q->params.prompt_logprobs >= 0)
            logprobs_add(&c->prompt_logprobs, p->ids[i], c->characters);
        if (!q->echo)
            continue;
        size_t before = c->text.len;
        c->detok.show_hidden = !q->skip_special || (i >= p->own_begin && i < p->own_end);
        detok_push(&c->detok, p->ids[i], &c->text);
        if (c->text.len > before)
            c->characters += (int32_t)utf8_count(c->text.data + before, c->text.len - before);
    }
    c->detok.show_hidden = !q->skip_special;
}

static enum status make_choices(struct job *j)
{
    const struct completion_request *q = &j->request;
    int32_t count = q->prompt_count * q->n;
    j->choices = calloc((size_t)count, sizeof *j->choices);
    if (!j->choices)
        return ERR_NOMEM;
    j->choice_count = count;
    answer_form_marks(&q->answer, j->marks);
    for (int32_t i = 0; i < count; i++) {
        struct choice *c = &j->choices[i];
        c->job = j;
        c->index = i;
        c->prompt = i / q->n;
        c->stop_index = c->stop_token = -1;
        buf_init(&c->text, REPLY_BYTES_MAX);
        buf_init(&c->ids, REPLY_BYTES_MAX);
        logprobs_init(&c->logprobs, REPLY_BYTES_MAX);
        logprobs_init(&c->prompt_logprobs, REPLY_BYTES_MAX);
        stop_init(&c->stop, j->stops);
        begin_prompt(c);
        j->bytes += c->text.len;
        if (q->return_token_ids)
            j->bytes += JOB_ID_BYTES * (size_t)q->prompts[c->prompt].count;
        if (j->kind->reply->open)
            c->state = j->kind->reply->open();
        if (j->kind->reply->open && !c->state)
            return ERR_NOMEM;
        if (!answer_form_parts(&q->answer))
            continue;
        c->answer = answer_open(&q->answer, random_word());
        if (!c->answer)
            return ERR_NOMEM;
        answer_begin(c->answer, q->answer_begin.data, q->answer_begin.len);
        c->detok.shown = j->marks;
        c->detok.sign = q->answer.controls ? ANSWER_CONTROL : '\0';
    }
    j->meta.names.as_ids = q->tokens_as_ids;
    for (int32_t i = 0; i < q->prompt_count; i++)
        j->prompt_tokens += q->prompts[i].count;
    return OK;
}

static enum status submit_choice(struct job *j, struct choice *c, const struct request_params *base,
                                 struct err *err)
{
    const struct completion_prompt *p = &j->request.prompts[c->prompt];
    struct request_params params = *base;
    /* a seed gives a prompt the answers it has alone; without one equal prompts differ, too */
    params.choice = j->request.has_seed ? c->index % j->request.n : c->index;
    atomic_fetch_add(&j->refs, 1); /* the engine's, until the terminal event */
    c->submitted = true;
    enum status st =
        engine_submit(service_engine(j->service), &params, p->ids, p->count, c, &c->engine_id, err);
    if (st != OK) {
        c->submitted = false;
        atomic_fetch_sub(&j->refs, 1); /* never the last: the worker has one */
    }
    return st;
}

/* Of a stream; a client that has gone, or reads too slowly, ends it. */
static void push(struct job *j, struct buf *frames, bool by_right)
{
    if (frames->len == 0)
        return;
    if (!http_reserve(j->http, frames->len)) {
        struct api_error e = {0};
        http_no_room(&e);
        job_fail(j, &e);
        return;
    }
    j->pinged_ns = base_now_ns();
    if (http_stream_push_buf(j->http, frames, by_right))
        return;
    abandon(j);
}

static struct completion_usage count_usage(const struct job *j)
{
    struct completion_usage u = {.prompt_tokens = j->prompt_tokens,
                                 .reasoning_tokens = j->request.answer.reasoning ? 0 : -1,
                                 .predicted = j->request.prediction_count > 0};
    for (int32_t i = 0; i < j->choice_count; i++) {
        u.completion_tokens += j->choices[i].tokens;
        u.reasoning_tokens += j->choices[i].reasoning_tokens;
        u.right_guesses += j->choices[i].right;
        u.wrong_guesses += j->choices[i].wrong;
        if (i % j->request.n == 0) /* a prompt counts once */
            u.cached_tokens += j->choices[i].cached;
    }
    return u;
}

/* ERR_NOMEM: nothing has been sent. */
static enum status begin_stream(struct job *j)
{
    const struct reply *reply = j->kind->reply;
    const struct completion_usage usage = count_usage(j);
    struct buf frames;
    buf_init(&frames, REPLY_BYTES_MAX);
    if (reply->start)
        reply->start(&j->meta, j->choices[0].state, &usage, &frames);
    const enum status st = frames.failed ? ERR_NOMEM : OK;
    if (st == OK) {
        http_stream_begin(j->http);
        j->streaming = true;
        output_watch(j->service->output, j);
        push(j, &frames, true);
    }
    buf_free(&frames);
    return st;
}

/* Under the lock, so that no event is looked at before all choices are known to the engine. */
static enum status submit_choices(struct job *j, struct err *err)
{
    const struct completion_request *q = &j->request;
    enum status st = OK;
    struct request_params params = completion_params(q);
    if (!q->has_seed)
        params.seed = random_word();
    params.client = http_client(j->http);
    if (!j->service->shared_prefix_cache)
        params.cache_salt ^= http_key(j->http);
    for (int32_t i = 0; i < j->choice_count && st == OK; i++)
        st = submit_choice(j, &j->choices[i], &params, err);
    return st;
}

void job_submit(struct job *j)
{
    struct err err = {""};
    struct api_error e = {0};
    pthread_mutex_lock(&j->lock);
    if (!j->over) {
        enum status st = make_choices(j);
        if (st == OK)
            st = submit_choices(j, &err);
        if (st == OK && j->request.stream)
            st = begin_stream(j);
        if (st != OK) {
            api_error_from_status(&e, st, &err);
            job_fail(j, &e);
        }
    }
    job_unlock(j);
}

/* ---- ending ---- */

static void observe_choice(const struct choice *c)
{
    const struct job *j = c->job;
    const struct metrics_choice seen = {
        .arrived_ns = j->arrived_ns,
        .admitted_ns = c->admitted_ns,
        .first_token_ns = c->first_token_ns,
        .last_token_ns = c->last_token_ns,
        .ended_ns = base_now_ns(),
        .prompt_tokens = j->request.prompts[c->prompt].count,
        .tokens = c->tokens,
        .max_tokens = j->request.params.max_tokens,
    };
    metrics_observe_choice(j->service->metrics, &seen);
}

void job_end_choice(struct choice *c, const char *finish_reason, int32_t stop_index)
{
    struct job *j = c->job;
    CHECK(j != NULL);
    c->ended = true;
    c->finish_reason = finish_reason;
    c->stop_index = stop_index;
    j->ended_count++;
    metrics_count_end(j->service->metrics,
                      strcmp(finish_reason, "stop") == 0 ? METRICS_STOP : METRICS_LENGTH);
    observe_choice(c);
}

void job_take_parts(struct choice *c, bool token)
{
    if (!c->answer)
        return;
    const bool before = answer_reasons(c->answer);
    const bool failed = c->text.failed;
    answer_push(c->answer, c->text.data, c->text.len);
    if (c->ended)
        answer_finish(c->answer, strcmp(c->finish_reason, "stop") == 0 && c->stop_index < 0);
    c->reasons = before || answer_reasons(c->answer);
    c->reasoning_tokens += token && c->reasons;
    buf_clear(&c->text);
    c->text.failed = failed;
}

/* A choice that ended by itself and has calls ended in order to make them. */
const char *job_finish_reason(const struct choice *c)
{
    const bool calls = c->answer && answer_calls_total(c->answer) > 0;
    return calls && c->finish_reason && strcmp(c->finish_reason, "stop") == 0 ? "tool_calls"
                                                                              : c->finish_reason;
}

static struct completion_choice describe(const struct choice *c)
{
    const struct job *j = c->job;
    const struct completion_request *q = &j->request;
    const struct completion_prompt *p = &q->prompts[c->prompt];
    const struct buf *text = c->answer ? answer_content(c->answer) : &c->text;
    struct completion_choice out = {
        .index = c->index,
        .first = c->chunks == 0,
        .text = text->data,
        .text_len = text->len,
        .answer = c->answer,
        .state = c->state,
        .reasons = c->reasons,
        .finish_reason = job_finish_reason(c),
        .capped = q->capped,
        .stop_token = c->stop_token,
        .with_token_ids = q->return_token_ids,
        .token_ids = (const int32_t *)(const void *)c->ids.data,
        .token_count = (int32_t)(c->ids.len / sizeof(int32_t)),
        .prompt_ids = c->chunks == 0 ? p->ids : NULL,
        .prompt_count = p->count,
        .echoed = q->echo && c->chunks == 0 ? &c->prompt_logprobs : NULL,
        .logprobs = &c->logprobs,
        .logprobs_top = q->logprobs,
        .prompt_logprobs = q->prompt_logprobs >= 0 ? &c->prompt_logprobs : NULL,
        .prompt_logprobs_top = q->prompt_logprobs,
    };
    if (c->stop_index >= 0)
        out.stop_reason = stop_set_string(j->stops, c->stop_index, &out.stop_reason_len);
    return out;
}

void job_send_chunk(struct choice *c, struct buf *scratch)
{
    struct job *j = c->job;
    if (j->over || (!j->streaming && !c->state))
        return;
    struct completion_choice view = describe(c);
    struct completion_usage usage = count_usage(j);
    buf_clear(scratch);
    j->kind->reply->chunk(&j->meta, &view, j->request.include_usage,
                          j->request.continuous_usage ? &usage : NULL, scratch);
    buf_clear(&c->text);
    if (c->answer)
        answer_clear(c->answer);
    buf_clear(&c->ids);
    logprobs_clear(&c->logprobs);
    c->chunks++;
    if (!j->streaming)
        return;
    if (scratch->failed) {
        struct api_error e = {0};
        api_error_no_memory(&e);
        job_fail(j, &e);
        return;
    }
    if (j->ended_count < j->choice_count)
        push(j, scratch, false);
}

static void note_fault(struct job *j, const struct api_error *e)
{
    j->fault.code = api_error_code(e);
    if (!e->is_quoted)
        snprintf(j->fault.param, sizeof j->fault.param, "%s", e->param);
}

/* Ends it with what went wrong, which is no end that looks whole. */
static void break_stream(struct job *j, const struct api_error *e)
{
    struct buf frame;
    buf_init(&frame, 4096);
    if (j->kind->reply->error)
        j->kind->reply->error(j->choices[0].state, e, &frame);
    else
        completion_reply_error(e, &frame);
    http_stream_push(j->http, frame.data, frame.len);
    http_stream_end(j->http, false);
    buf_free(&frame);
}

/* scratch: the frames that the last token has made. */
static void complete_stream(struct job *j, struct buf *scratch)
{
    const struct reply *reply = j->kind->reply;
    const struct completion_usage usage = count_usage(j);
    const struct completion_choice view = describe(&j->choices[0]);
    if (reply->finish) {
        reply->finish(&j->meta, &view, &usage, scratch);
    } else {
        if (j->request.include_usage)
            reply->usage(&j->meta, &usage, scratch);
        completion_reply_done(scratch);
    }
    struct api_error e = {0};
    if (scratch->failed)
        api_error_no_memory(&e);
    else if (!http_reserve(j->http, scratch->len))
        http_no_room(&e);
    if (e.http_status)
        note_fault(j, &e);
    if (e.http_status)
        break_stream(j, &e);
    else
        http_stream_end(j->http, http_stream_push_buf(j->http, scratch, true));
}

/* What an answer was made of: its reader may be slow. */
static void drop_texts(struct job *j)
{
    for (int32_t i = 0; i < j->choice_count; i++) {
        buf_free(&j->choices[i].text);
        buf_free(&j->choices[i].ids);
        logprobs_free(&j->choices[i].logprobs);
        logprobs_free(&j->choices[i].prompt_logprobs);
    }
}

/* Returns the status of the answer. */
static int32_t complete_object(struct job *j)
{
    struct api_error e = {0};
    const struct reply *reply = j->kind->reply;
    const struct completion_usage usage = count_usage(j);
    struct buf body;
    buf_init(&body, REPLY_BYTES_MAX);
    for (int32_t i = 0; i < j->choice_count; i++) {
        struct completion_choice view = describe(&j->choices[i]);
        if (i == 0)
            reply->begin(&j->meta, &view, &body);
        else
            buf_puts(&body, ",");
        reply->choice(&j->meta, &view, &body);
    }
    reply->end(&usage, &body);
    drop_texts(j);
    if (body.failed)
        api_error_no_memory(&e);
    else if (!http_reserve(j->http, body.len))
        http_no_room(&e);
    if (!e.http_status) {
        http_reply(j->http, 200, "application/json", &body);
        return 200;
    }
    buf_free(&body);
    note_fault(j, &e);
    http_reply_error(j->http, &e);
    return e.http_status;
}

void job_complete(struct job *j, struct buf *scratch)
{
    if (j->over || j->ended_count < j->choice_count)
        return;
    /* before the answer: who has it finds it counted */
    metrics_observe(j->service->metrics, METRICS_N, j->request.n);
    if (j->streaming)
        complete_stream(j, scratch);
    j->status = j->streaming ? 200 : complete_object(j);
    j->over = true;
}

void job_fail(struct job *j, const struct api_error *e)
{
    if (j->over)
        return;
    if (e->http_status != JOB_REFUSED) /* which is counted as an answer (metrics_count_answer) */
        count_ends(j, METRICS_ERROR);
    cancel_choices(j);
    j->over = true;
    j->status = j->streaming ? 200 : e->http_status;
    note_fault(j, e);
    if (j->streaming)
        break_stream(j, e);
    else
        http_reply_error(j->http, e);
}
