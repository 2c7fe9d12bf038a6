/* DESIGN: one small lock for the count that threads of the front end share; nothing is called
 * under it. Whether requests are welcome takes none. */
#include "server/service.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define RETRY_S_MAX 60

enum status service_open(struct service *s, struct err *err)
{
    pthread_condattr_t attr;
    pthread_mutex_init(&s->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&s->idle, &attr);
    pthread_condattr_destroy(&attr);
    s->created = (int64_t)time(NULL);
    enum status st = metrics_open(&s->metrics, err);
    if (st == OK)
        st = guides_open(s->tokenizer, s->rules.vocab, &s->rules.answer, &s->guides, err);
    if (st != OK)
        return st;
    s->rules.answer.controls = s->rules.answer.harmony && guides_has_controls(s->guides);
    const struct answer_thought *thought = answer_thought(s->rules.answer.thoughts);
    s->reasoning_begin = guides_token(s->guides, thought->begin);
    s->reasoning_end = guides_token(s->guides, thought->end);
    s->reasoning_gap = guides_token(s->guides, "\n\n");
    return OK;
}

void service_close(struct service *s)
{
    guides_close(s->guides);
    metrics_close(s->metrics);
    pthread_cond_destroy(&s->idle);
    pthread_mutex_destroy(&s->lock);
}

enum status service_check(struct service *s, struct api_error *e)
{
    return health_check(s->health, e);
}

enum status service_check_stopping(struct service *s, struct api_error *e)
{
    return health_phase(s->health) < HEALTH_DRAINING ? OK : service_check(s, e);
}

void service_refuse(struct service *s, struct api_error *e)
{
    if (service_check_stopping(s, e) == OK) /* else it is why: workers that have ended take none */
        api_error_set(e, 429, "queue_full", "too many requests are waiting, try again later");
}

enum status service_check_room(struct service *s, struct api_error *e)
{
    struct err err;
    const enum status st = engine_check_room(service_engine(s), &err);
    if (st == OK)
        return OK;
    api_error_from_status(e, st, &err);
    /* by then what waits now has had its turn */
    e->retry_after_s = (int32_t)fmin(fmax(ceil(metrics_last_wait(s->metrics)), 1), RETRY_S_MAX);
    return ERR_INPUT;
}

void service_ready(struct service *s, struct engine *e)
{
    atomic_store(&s->engine, e); /* before the phase: whoever sees it ready finds the engine */
    health_enter(s->health, HEALTH_READY);
}

struct engine *service_engine(struct service *s)
{
    return atomic_load(&s->engine);
}

/* True the first time. A bounded set: when it is full, nothing is new any more. */
static bool is_news(struct service *s, const char *name)
{
    bool news = true;
    pthread_mutex_lock(&s->lock);
    for (int32_t i = 0; i < s->unknown_count && news; i++)
        news = strcmp(s->unknown[i], name) != 0;
    news = news && s->unknown_count < SERVICE_UNKNOWN_MAX;
    if (news)
        snprintf(s->unknown[s->unknown_count++], sizeof s->unknown[0], "%s", name);
    pthread_mutex_unlock(&s->lock);
    return news;
}

/* A name from a client may hold anything: what could forge a line of the log is masked. */
void service_log_unknown(struct service *s, const struct field_unknown *unknown)
{
    char text[sizeof unknown->names[0]];
    for (int32_t i = 0; i < unknown->count; i++) {
        snprintf(text, sizeof text, "%s", unknown->names[i]);
        for (char *c = text; *c; c++)
            if (*c < ' ' || *c > '~')
                *c = '?';
        if (is_news(s, text))
            base_log(LOG_WARN, "request field \"%s\" is not known and is ignored", text);
    }
}

void service_enter(struct service *s)
{
    pthread_mutex_lock(&s->lock);
    s->in_flight++;
    pthread_mutex_unlock(&s->lock);
}

void service_leave(struct service *s)
{
    pthread_mutex_lock(&s->lock);
    if (--s->in_flight == 0)
        pthread_cond_broadcast(&s->idle);
    pthread_mutex_unlock(&s->lock);
}

bool service_wait_idle(struct service *s, double timeout_s)
{
    int64_t until = base_now_ns() + (int64_t)(timeout_s * 1e9);
    struct timespec ts = {(time_t)(until / 1000000000), (long)(until % 1000000000)};
    int rc = 0;
    pthread_mutex_lock(&s->lock);
    while (s->in_flight > 0 && rc == 0)
        rc = pthread_cond_timedwait(&s->idle, &s->lock, &ts);
    bool idle = s->in_flight == 0;
    pthread_mutex_unlock(&s->lock);
    return idle;
}
