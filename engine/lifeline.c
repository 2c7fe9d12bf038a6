/* DESIGN: the thread lives as long as the process, so nothing joins it; it sleeps in poll, and once
 * the rank has loaded nothing wakes it but the end of the link. */
#include "engine/lifeline.h"

#include "engine/link.h"

#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { REPORT_MS = 100 };

struct lifeline {
    int link;
    const struct board_rank *board;
    pthread_mutex_t lock; /* held while a report is written */
    bool loading;
};

static bool is_loading(struct lifeline *l)
{
    pthread_mutex_lock(&l->lock);
    const bool loading = l->loading;
    pthread_mutex_unlock(&l->lock);
    return loading;
}

static void report(struct lifeline *l)
{
    struct err err; /* the link is closed: the next poll says so */
    pthread_mutex_lock(&l->lock);
    if (l->loading)
        (void)!link_report(l->link, l->board, false, &err);
    pthread_mutex_unlock(&l->lock);
}

static bool closed_within(int link, int ms)
{
    struct pollfd p = {.fd = link, .events = POLLRDHUP};
    return poll(&p, 1, ms) > 0;
}

static void *watch(void *arg)
{
    struct lifeline *l = arg;
    while (!closed_within(l->link, is_loading(l) ? REPORT_MS : -1))
        report(l);
    if (is_loading(l)) /* there is nothing that others wait for */
        _exit(base_exit_code(ERR_CANCELLED));
    nanosleep(&(struct timespec){.tv_sec = LIFELINE_LEAVE_S}, NULL);
    base_log(LOG_ERROR, "the front end is gone for %d s and this rank still waits for its peers",
             (int)LIFELINE_LEAVE_S);
    _exit(base_exit_code(ERR_COMM));
}

enum status lifeline_open(int link, const struct board_rank *board, struct lifeline **out,
                          struct err *err)
{
    pthread_t thread;
    struct lifeline *l = calloc(1, sizeof *l);
    if (!l)
        return base_fail(err, ERR_NOMEM, "lifeline: no memory");
    *l = (struct lifeline){.link = link, .board = board, .loading = true};
    pthread_mutex_init(&l->lock, NULL);
    const int failed = pthread_create(&thread, NULL, watch, l);
    if (failed) {
        pthread_mutex_destroy(&l->lock);
        free(l);
        return base_fail_start(err, failed, "lifeline: a thread");
    }
    pthread_detach(thread);
    *out = l;
    return OK;
}

void lifeline_loaded(struct lifeline *l)
{
    if (!l)
        return;
    pthread_mutex_lock(&l->lock);
    l->loading = false;
    pthread_mutex_unlock(&l->lock);
}

bool lifeline_closed(int link, double seconds)
{
    return closed_within(link, (int)(seconds * 1000));
}
