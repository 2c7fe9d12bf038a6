/* DESIGN: one bounded queue, a few threads. What a worker does for a request touches nothing shared
 * but the service's immutable part, so its only lock is the queue's. */
#include "server/request_worker.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define THREADS_MAX 64
#define KNOWN_UNKNOWNS_MAX 64

struct request_worker {
    struct service *service;
    int32_t thread_count, queue_max;
    pthread_t threads[THREADS_MAX];
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t wake;
    struct job *first, **last;
    int32_t queued;
    bool stop;
    /* fields nobody knows, each logged once */
    char unknown[KNOWN_UNKNOWNS_MAX][48];
    int32_t unknown_count;
};

/* True the first time. A bounded set: when it is full, nothing is new any more. */
static bool is_news(struct request_worker *w, const char *name)
{
    bool news = true;
    pthread_mutex_lock(&w->lock);
    for (int32_t i = 0; i < w->unknown_count && news; i++)
        news = strcmp(w->unknown[i], name) != 0;
    news = news && w->unknown_count < KNOWN_UNKNOWNS_MAX;
    if (news)
        snprintf(w->unknown[w->unknown_count++], sizeof w->unknown[0], "%s", name);
    pthread_mutex_unlock(&w->lock);
    return news;
}

/* A name from a client may hold anything: what could forge a line of the log is masked. */
static void log_unknown(struct request_worker *w, const struct completion_request *r)
{
    char text[sizeof r->unknown[0]];
    for (int32_t i = 0; i < r->unknown_count; i++) {
        snprintf(text, sizeof text, "%s", r->unknown[i]);
        for (char *c = text; *c; c++)
            if (*c < ' ' || *c > '~')
                *c = '?';
        if (is_news(w, text))
            base_log(LOG_WARN, "request field \"%s\" is not known and is ignored", text);
    }
}

static enum status open_stops(struct job *j, struct err *err)
{
    const char *strings[COMPLETION_STOP_MAX];
    size_t lens[COMPLETION_STOP_MAX];
    for (int32_t i = 0; i < j->request.stop_count; i++) {
        strings[i] = j->request.stop[i].bytes;
        lens[i] = j->request.stop[i].len;
    }
    return stop_set_open(strings, lens, j->request.stop_count, &j->stops, err);
}

static enum status tokenize(struct job *j, struct completion_prompt *p, struct api_error *e)
{
    const struct tokenizer *t = j->service->tokenizer;
    const int32_t max = j->service->rules.max_model_len;
    struct err err = {""};
    if (p->text.bytes) {
        enum status st =
            completion_check_bytes(&j->request, tokenizer_tokens_min(t, p->text.len), max, e);
        if (st != OK)
            return st;
        st = tokenizer_encode(t, p->text.bytes, p->text.len, j->request.add_special_tokens, &p->ids,
                              &p->count, &err);
        if (st == ERR_INPUT)
            return api_error_field(e, "prompt", "prompt: %s", err.text);
        if (st != OK) {
            api_error_from_status(e, st, &err);
            return st;
        }
    }
    return completion_check_length(&j->request, p->count, max, e);
}

/* From bytes to a request that is ready to be submitted. */
static enum status prepare(struct request_worker *w, struct job *j, struct api_error *e)
{
    struct err err = {""};
    enum status st = service_check(w->service, e);
    if (st != OK)
        return st;
    st = completion_parse(j->body.data ? j->body.data : "", j->body.len, &w->service->rules,
                          &j->request, e);
    buf_free(&j->body);
    if (st != OK)
        return st;
    log_unknown(w, &j->request);
    for (int32_t i = 0; i < j->request.prompt_count; i++) {
        st = tokenize(j, &j->request.prompts[i], e);
        if (st != OK)
            return st;
    }
    st = open_stops(j, &err);
    if (st != OK)
        api_error_from_status(e, st, &err);
    completion_forget_text(&j->request);
    return st;
}

static void work(struct request_worker *w, struct job *j)
{
    struct api_error e = {0};
    if (prepare(w, j, &e) == OK) {
        job_submit(j);
    } else {
        pthread_mutex_lock(&j->lock);
        job_fail(j, &e);
        pthread_mutex_unlock(&j->lock);
    }
    job_release(j);
}

static void *worker_loop(void *arg)
{
    struct request_worker *w = arg;
    pthread_mutex_lock(&w->lock);
    for (;;) {
        while (!w->first && !w->stop)
            pthread_cond_wait(&w->wake, &w->lock);
        struct job *j = w->first;
        if (!j)
            break;
        w->first = j->next;
        if (!w->first)
            w->last = &w->first;
        w->queued--;
        pthread_mutex_unlock(&w->lock);
        work(w, j);
        pthread_mutex_lock(&w->lock);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

enum status request_worker_open(struct service *s, int32_t threads, int32_t queue_max,
                                struct request_worker **out, struct err *err)
{
    enum status st = OK;
    struct request_worker *w = calloc(1, sizeof *w);
    if (!w)
        return base_fail(err, ERR_NOMEM, "request workers: no memory");
    w->service = s;
    w->queue_max = queue_max;
    w->last = &w->first;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->wake, NULL);
    for (int32_t i = 0; i < threads && i < THREADS_MAX && st == OK; i++) {
        if (pthread_create(&w->threads[i], NULL, worker_loop, w) == 0)
            w->thread_count++;
        else
            st = base_fail(err, ERR_NOMEM, "request workers: no thread");
    }
    if (st == OK)
        *out = w;
    else
        request_worker_close(w);
    return st;
}

bool request_worker_push(struct request_worker *w, struct job *j)
{
    pthread_mutex_lock(&w->lock);
    bool room = w->queued < w->queue_max && !w->stop;
    if (room) {
        j->next = NULL;
        *w->last = j;
        w->last = &j->next;
        w->queued++;
        pthread_cond_signal(&w->wake);
    }
    pthread_mutex_unlock(&w->lock);
    return room;
}

void request_worker_stop(struct request_worker *w)
{
    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    pthread_cond_broadcast(&w->wake);
    pthread_mutex_unlock(&w->lock);
    for (; w->thread_count > 0; w->thread_count--)
        pthread_join(w->threads[w->thread_count - 1], NULL);
}

void request_worker_close(struct request_worker *w)
{
    if (!w)
        return;
    request_worker_stop(w);
    pthread_mutex_destroy(&w->lock);
    pthread_cond_destroy(&w->wake);
    free(w);
}
