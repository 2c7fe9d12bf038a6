#include "server/bench/batch_ask.h"

#include <math.h>
#include <poll.h>
#include <stdio.h>

enum { LOST_MAX = 5, SALTS = 16 }; /* a server that starts again has some seconds */
static const double pause_first = 0.2, pause_most = 5, retry_after_most = 60; /* seconds */

static bool is_busy(int32_t http_status)
{
    return http_status == 429 || http_status == 503;
}

/* Seconds until the next try. */
static double pause_of(const struct reply *r, int tries, uint64_t salt)
{
    const double grown = fmin(pause_first * exp2(tries), pause_most);
    const double told = fmin(r->retry_after_s, retry_after_most);
    return fmax(grown, told) + grown * (double)(salt % SALTS) / SALTS;
}

static void wait_for(const struct target *t, double seconds)
{
    struct pollfd stop = {.fd = t->stop_fd, .events = POLLIN};
    poll(&stop, 1, (int)(seconds * 1e3) + 1);
}

enum batch_ask_end batch_ask(const struct target *target, const struct batch_request *request,
                             double timeout_s, uint64_t salt, struct reply *r, struct err *err)
{
    char path[sizeof target->base + 32];
    const double end = base_now() + timeout_s;
    int lost = 0;
    snprintf(path, sizeof path, "%s%s", target->base, request->path);
    for (int tries = 0;; tries++) {
        reply_reset(r);
        const double left = fmax(end - base_now(), 0.01);
        const enum status st = target_post(target, path, &request->body, left, r, err);
        if (st == OK && !is_busy(r->http_status))
            return BATCH_ASK_ANSWERED;
        lost += st != OK;
        const double now = base_now(), pause = pause_of(r, tries, salt);
        if (target_is_stopped(target))
            return BATCH_ASK_STOPPED;
        if (lost == LOST_MAX || now + pause >= end)
            return st == OK ? BATCH_ASK_ANSWERED : now >= end ? BATCH_ASK_LATE : BATCH_ASK_LOST;
        wait_for(target, pause);
    }
}
