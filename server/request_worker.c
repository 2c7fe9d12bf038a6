/* DESIGN: one bounded queue, a few threads. Bounded twice: by pieces, and by the bytes that they
 * hold, because a few hundred large bodies are more than a server has. Large pieces have a lane of
 * their own that never takes all threads: a few texts of megabytes would hold up everybody for
 * seconds. What a worker does touches nothing shared but the service's immutable part, so its only
 * lock is the queue's. */
#include "server/request_worker.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/prctl.h>

#define THREADS_MAX 8
#define LARGE_BYTES ((size_t)256 << 10) /* takes so long that others would notice */

/* In order of arrival. */
struct lane {
    struct work *first, **last;
    int32_t running, running_max;
};

struct request_worker {
    int32_t thread_count, queue_max;
    size_t bytes_max;
    pthread_t threads[THREADS_MAX];
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t wake;
    struct lane small, large;
    uint64_t pushed;
    int32_t queued;
    size_t bytes;
    bool stop;
};

static bool is_ready(const struct lane *l)
{
    return l->first && l->running < l->running_max;
}

/* The oldest piece that may run, NULL when there is none. Under the lock. */
static struct work *take(struct request_worker *w, struct lane **from)
{
    struct lane *l = &w->small;
    if (is_ready(&w->large) && (!is_ready(l) || w->large.first->number < l->first->number))
        l = &w->large;
    if (!is_ready(l))
        return NULL;
    struct work *work = l->first;
    l->first = work->next;
    if (!l->first)
        l->last = &l->first;
    l->running++;
    w->queued--;
    w->bytes -= work->bytes;
    *from = l;
    return work;
}

static void *worker_loop(void *arg)
{
    struct request_worker *w = arg;
    prctl(PR_SET_NAME, "tessera-worker");
    pthread_mutex_lock(&w->lock);
    for (;;) {
        struct lane *lane;
        struct work *work = take(w, &lane);
        if (!work && w->stop)
            break; /* what is left waits for a thread that will come back for it */
        if (!work) {
            pthread_cond_wait(&w->wake, &w->lock);
            continue;
        }
        pthread_mutex_unlock(&w->lock);
        work->run(work);
        pthread_mutex_lock(&w->lock);
        lane->running--;
        pthread_cond_signal(&w->wake); /* this thread may take a piece of the other lane */
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

static void lane_init(struct lane *l, int32_t running_max)
{
    *l = (struct lane){.running_max = running_max};
    l->last = &l->first;
}

enum status request_worker_open(int32_t threads, int32_t queue_max, size_t bytes_max,
                                struct request_worker **out, struct err *err)
{
    enum status st = OK;
    CHECK(threads > 0);
    CHECK(threads <= THREADS_MAX);
    struct request_worker *w = calloc(1, sizeof *w);
    if (!w)
        return base_fail(err, ERR_NOMEM, "request workers: no memory");
    w->queue_max = queue_max;
    w->bytes_max = bytes_max;
    lane_init(&w->small, threads);
    lane_init(&w->large, threads > 1 ? threads - 1 : 1);
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->wake, NULL);
    for (int32_t i = 0; i < threads && st == OK; i++) {
        const int failed = pthread_create(&w->threads[i], NULL, worker_loop, w);
        if (failed)
            st = base_fail_start(err, failed, "request workers: a thread");
        else
            w->thread_count++;
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
    const bool fits = w->bytes == 0 || (w->bytes <= w->bytes_max && /* else it is one large piece */
                                        work->bytes <= w->bytes_max - w->bytes);
    bool room = !w->stop && w->queued < w->queue_max && fits;
    if (room) {
        struct lane *l = work->bytes < LARGE_BYTES ? &w->small : &w->large;
        work->next = NULL;
        work->number = w->pushed++;
        *l->last = work;
        l->last = &work->next;
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
