/* DESIGN: one small lock for the count that threads of the front end share; nothing is called
 * under it. Whether requests are welcome takes none. */
#include "server/service.h"

#include <time.h>

enum status service_open(struct service *s, struct err *err)
{
    pthread_condattr_t attr;
    pthread_mutex_init(&s->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&s->idle, &attr);
    pthread_condattr_destroy(&attr);
    s->created = (int64_t)time(NULL);
    return metrics_open(&s->metrics, err);
}

void service_close(struct service *s)
{
    metrics_close(s->metrics);
    pthread_cond_destroy(&s->idle);
    pthread_mutex_destroy(&s->lock);
}

enum status service_check(struct service *s, struct api_error *e)
{
    return health_check(s->health, e);
}

void service_ready(struct service *s, struct engine *e)
{
    atomic_store(&s->engine, e); /* first: who finds the phase ready finds the engine */
    health_enter(s->health, HEALTH_READY);
}

struct engine *service_engine(struct service *s)
{
    return atomic_load(&s->engine);
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
