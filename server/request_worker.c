/* DESIGN: one bounded queue, a few threads. Bounded twice: by pieces, and by the bytes that they
 * hold, because a few hundred large bodies are more than a server has. What a worker does touches
 * nothing shared but the service's immutable part, so its only lock is the queue's. */
#include "server/request_worker.h"

#include <pthread.h>
#include <stdlib.h>

#define THREADS_MAX 64

struct request_worker {
    int32_t thread_count, queue_max;
    size_t bytes_max;
    pthread_t threads[THREADS_MAX];
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t wake;
    struct work *first, **last;
    int32_t queued;
    size_t bytes;
    bool stop;
};

static void *worker_loop(void *arg)
{
    struct request_worker *w = arg;
    pthread_mutex_lock(&w->lock);
    for (;;) {
        while (!w->first && !w->stop)
            pthread_cond_wait(&w->wake, &w->lock);
        struct work *work = w->first;
        if (!work)
            break;
        w->first = work->next;
        if (!w->first)
            w->last = &w->first;
        w->queued--;
        w->bytes -= work->bytes;
        pthread_mutex_unlock(&w->lock);
        work->run(work);
        pthread_mutex_lock(&w->lock);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

enum status request_worker_open(int32_t threads, int32_t queue_max, size_t bytes_max,
                                struct request_worker **out, struct err *err)
{
    enum status st = OK;
    struct request_worker *w = calloc(1, sizeof *w);
    if (!w)
        return base_fail(err, ERR_NOMEM, "request workers: no memory");
    w->queue_max = queue_max;
    w->bytes_max = bytes_max;
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

bool request_worker_push(struct request_worker *w, struct work *work)
{
    pthread_mutex_lock(&w->lock);
    bool room = !w->stop && w->queued < w->queue_max && work->bytes <= w->bytes_max - w->bytes;
    if (room) {
        work->next = NULL;
        *w->last = work;
        w->last = &work->next;
        w->queued++;
        w->bytes += work->bytes;
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
