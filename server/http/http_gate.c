/* DESIGN: a head is peeked at, not read, because the library must read it again; a connection whose
 * head has come with the handshake, which is nearly every one, costs one system call more than
 * without a gate. Each phase of waiting has one time limit, so a queue per phase is in order of
 * deadlines by itself. Events are edge-triggered, or a half-sent head would keep us awake.
 *
 * Who is let in arrives in the library within milliseconds, or never, when that has no memory left.
 * So of those on their way, as many are lost as there were at the least whenever we looked for a
 * while. Should it be a mistake, since they arrive late, fewer than none are on their way by that
 * number, and the same rule takes it back. */
#include "server/http/http_gate.h"

#include "server/http/http_guard.h"
#include "server/http/http_refusal.h"

#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define LEAVING_S 1.0 /* for the client to read why it was refused */
#define TICK_NS 250000000
#define LOOKS 8            /* ticks until those who did not arrive are lost */
#define PAUSE_NS 100000000 /* without room; then the listener is looked at again */
#define FAIR_NS 1000000000 /* to say something, before another one gets the place */
#define DISCARD_BYTES ((size_t)1 << 20)

enum phase {
    LEAVING,  /* refused: what it still sends is thrown away until it closes */
    SILENT,   /* has sent nothing */
    SPEAKING, /* has sent a part of a head */
    PHASES,
};

struct waiter {
    struct waiter *prev, *next;
    enum phase phase;
    int64_t until_ns;
    int fd;
    socklen_t size;
    union {
        struct sockaddr any;
        struct sockaddr_in6 v6; /* the largest */
    } address;
};

struct http_gate {
    struct http_gate_config config;
    int epoll, stop;
    pthread_t thread;
    bool started;
    char *head; /* limits->header_bytes + 1 */
    int64_t limit_ns[PHASES];
    struct waiter *first[PHASES], *last[PHASES];
    int32_t waiting;
    int64_t paused_until_ns; /* 0: connections are accepted */
    int64_t ticked_ns;
    _Atomic int32_t inside;
    _Atomic int32_t arriving; /* of those inside: on their way to the library */
    bool forgot;              /* some were given up, who may come yet */
    int32_t looks, least;     /* since when, and the least that were on their way */
};

/* ---- queues ---- */

static void unlink_waiter(struct http_gate *g, struct waiter *w)
{
    *(w->prev ? &w->prev->next : &g->first[w->phase]) = w->next;
    *(w->next ? &w->next->prev : &g->last[w->phase]) = w->prev;
}

static void append(struct http_gate *g, struct waiter *w, enum phase phase)
{
    w->phase = phase;
    w->until_ns = base_now_ns() + g->limit_ns[phase];
    w->next = NULL;
    w->prev = g->last[phase];
    *(w->prev ? &w->prev->next : &g->first[phase]) = w;
    g->last[phase] = w;
}

static void enter_phase(struct http_gate *g, struct waiter *w, enum phase phase)
{
    unlink_waiter(g, w);
    append(g, w, phase);
}

/* The socket is somebody else's from now on, or closed. */
static void forget(struct http_gate *g, struct waiter *w)
{
    unlink_waiter(g, w);
    g->waiting--;
    free(w);
}

static void drop(struct http_gate *g, struct waiter *w)
{
    close(w->fd);
    forget(g, w);
}

/* ---- what a client sent ---- */

/* Closing with unread bytes would reset the connection and take our answer with it. */
static void discard(struct http_gate *g, struct waiter *w)
{
    ssize_t n = recv(w->fd, NULL, DISCARD_BYTES, MSG_TRUNC | MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
        drop(g, w);
}

static void refuse(struct http_gate *g, struct waiter *w, const struct api_error *e,
                   const struct http_route *route)
{
    http_refusal_send(w->fd, e, route);
    shutdown(w->fd, SHUT_WR);
    enter_phase(g, w, LEAVING);
    discard(g, w);
}

static void admit(struct http_gate *g, struct waiter *w)
{
    epoll_ctl(g->epoll, EPOLL_CTL_DEL, w->fd, NULL);
    atomic_fetch_add(&g->inside, 1); /* first: it may leave before we are told */
    atomic_fetch_add(&g->arriving, 1);
    if (!g->config.admit(g->config.ctx, w->fd, &w->address.any, w->size)) {
        atomic_fetch_sub(&g->arriving, 1);
        atomic_fetch_sub(&g->inside, 1);
    }
    forget(g, w);
}

static void look(struct http_gate *g, struct waiter *w, bool hangs_up)
{
    struct api_error e = {0};
    struct http_guard_head head;
    const struct http_limits *limits = g->config.limits;
    if (w->phase == LEAVING) {
        discard(g, w);
        return;
    }
    ssize_t n = recv(w->fd, g->head, limits->header_bytes + 1, MSG_PEEK | MSG_DONTWAIT);
    bool nothing_yet = n < 0 && (errno == EAGAIN || errno == EINTR);
    if (n <= 0) {
        if (hangs_up || !nothing_yet)
            drop(g, w);
        return;
    }
    switch (http_guard_head(limits, g->head, (size_t)n, &head, &e)) {
    case HTTP_GUARD_PASS:
        admit(g, w);
        break;
    case HTTP_GUARD_REFUSE:
        refuse(g, w, &e, http_route_of_head(g->config.routes, g->head, (size_t)n));
        break;
    case HTTP_GUARD_MORE:
        if (hangs_up)
            drop(g, w);
        else if (w->phase == SILENT)
            enter_phase(g, w, SPEAKING);
        break;
    }
}

/* ---- accepting ---- */

/* Drops who has waited longest; false when nobody has waited for at least so long. */
static bool make_room(struct http_gate *g, int64_t waited_ns)
{
    const int64_t now = base_now_ns();
    for (int phase = 0; phase < PHASES; phase++) {
        struct waiter *w = g->first[phase];
        if (w && now - (w->until_ns - g->limit_ns[phase]) >= waited_ns) {
            drop(g, w);
            return true;
        }
    }
    return false;
}

static bool is_full(const struct http_gate *g)
{
    return g->waiting + atomic_load(&g->inside) >= g->config.limits->connections;
}

static void listen_again(struct http_gate *g, bool on)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    epoll_ctl(g->epoll, on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, g->config.listener, &event);
    g->paused_until_ns = on ? 0 : base_now_ns() + PAUSE_NS;
}

static void welcome(struct http_gate *g, int fd, const struct waiter *from)
{
    struct waiter *w = malloc(sizeof *w);
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP | EPOLLET, .data.ptr = w};
    if (!w || epoll_ctl(g->epoll, EPOLL_CTL_ADD, fd, &event) != 0) {
        free(w);
        close(fd);
        return;
    }
    *w = *from;
    w->fd = fd;
    append(g, w, SILENT);
    g->waiting++;
    look(g, w, false);
}

/* All who stand before the door, or as many as there is room for. */
static void accept_all(struct http_gate *g)
{
    for (;;) {
        struct waiter from = {.size = sizeof from.address};
        if (is_full(g) && !make_room(g, FAIR_NS))
            break;
        int fd = accept4(g->config.listener, &from.address.any, &from.size,
                         SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0)
            welcome(g, fd, &from);
        else if (errno == EAGAIN)
            return;
        else if (errno != ECONNABORTED && errno != EINTR && !make_room(g, FAIR_NS))
            break; /* no descriptors, no memory */
    }
    listen_again(g, false);
}

/* ---- time ---- */

/* Whether anybody may be inside, whom only ticks drop. Who was given up may have come all the same,
 * and nobody would wake us then. */
static bool anybody_inside(const struct http_gate *g)
{
    return g->forgot || atomic_load(&g->inside) > 0;
}

static void forget_lost(struct http_gate *g)
{
    const int32_t arriving = atomic_load(&g->arriving);
    if (g->looks++ == 0 || arriving < g->least)
        g->least = arriving;
    if (g->looks < LOOKS)
        return;
    g->forgot = g->forgot || g->least > 0;
    atomic_fetch_sub(&g->arriving, g->least);
    atomic_fetch_sub(&g->inside, g->least);
    g->looks = 0;
}

static void expire(struct http_gate *g, int64_t now)
{
    struct api_error e = {0};
    struct waiter *w;
    while ((w = g->first[LEAVING]) && w->until_ns <= now)
        drop(g, w);
    while ((w = g->first[SILENT]) && w->until_ns <= now)
        drop(g, w);
    while ((w = g->first[SPEAKING]) && w->until_ns <= now) {
        api_error_set(&e, 408, "request_timeout", "the request's head did not come in time");
        refuse(g, w, &e, NULL);
    }
    if (anybody_inside(g) && now - g->ticked_ns >= TICK_NS) {
        g->ticked_ns = now;
        g->config.tick(g->config.ctx, now);
        forget_lost(g);
    }
    if (g->paused_until_ns && g->paused_until_ns <= now)
        listen_again(g, true);
}

/* Milliseconds until something is to be done without an event; -1: never. */
static int patience(const struct http_gate *g)
{
    int64_t next = INT64_MAX, now = base_now_ns();
    for (int phase = 0; phase < PHASES; phase++)
        if (g->first[phase] && g->first[phase]->until_ns < next)
            next = g->first[phase]->until_ns;
    if (g->paused_until_ns && g->paused_until_ns < next)
        next = g->paused_until_ns;
    if (anybody_inside(g) && g->ticked_ns + TICK_NS < next)
        next = g->ticked_ns + TICK_NS;
    if (next == INT64_MAX)
        return -1;
    return next <= now ? 0 : (int)((next - now) / 1000000) + 1;
}

static void *gate_loop(void *arg)
{
    struct http_gate *g = arg;
    struct epoll_event events[64];
    for (;;) {
        bool knock = false;
        int n = epoll_wait(g->epoll, events, (int)ARRAY_LEN(events), patience(g));
        for (int i = 0; i < n; i++) {
            if (events[i].data.ptr == g)
                return NULL;
            if (events[i].data.ptr)
                look(g, events[i].data.ptr, events[i].events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR));
            else
                knock = true;
        }
        /* these drop waiters, so not before the last event is looked at */
        expire(g, base_now_ns());
        if (knock)
            accept_all(g);
    }
}

/* ---- opening and closing ---- */

enum status http_gate_open(const struct http_gate_config *config, struct http_gate **out,
                           struct err *err)
{
    enum status st = OK;
    struct http_gate *g = calloc(1, sizeof *g);
    if (!g)
        return base_fail(err, ERR_NOMEM, "http: no memory");
    struct epoll_event stop = {.events = EPOLLIN, .data.ptr = g};
    g->config = *config;
    g->limit_ns[LEAVING] = (int64_t)(LEAVING_S * 1e9);
    g->limit_ns[SILENT] = (int64_t)(config->limits->idle_s * 1e9);
    g->limit_ns[SPEAKING] = (int64_t)(config->limits->header_s * 1e9);
    g->head = malloc(config->limits->header_bytes + 1);
    g->epoll = epoll_create1(EPOLL_CLOEXEC);
    g->stop = eventfd(0, EFD_CLOEXEC);
    if (!g->head) {
        st = base_fail(err, ERR_NOMEM, "http: no memory");
        goto out;
    }
    if (g->epoll < 0 || g->stop < 0 || epoll_ctl(g->epoll, EPOLL_CTL_ADD, g->stop, &stop) != 0) {
        st = base_fail_errno(err, ERR_IO, "http: epoll");
        goto out;
    }
    listen_again(g, true);
    *out = g; /* first: the thread's callbacks may use it */
    const int failed = pthread_create(&g->thread, NULL, gate_loop, g);
    if (failed) {
        *out = NULL;
        st = base_fail_start(err, failed, "http: a thread");
        goto out;
    }
    g->started = true;
    g = NULL;
out:
    http_gate_close(g);
    return st;
}

void http_gate_stop(struct http_gate *g)
{
    if (!g || !g->started)
        return;
    eventfd_write(g->stop, 1);
    pthread_join(g->thread, NULL);
    g->started = false;
}

void http_gate_close(struct http_gate *g)
{
    if (!g)
        return;
    http_gate_stop(g);
    while (make_room(g, 0))
        ;
    if (g->epoll >= 0)
        close(g->epoll);
    if (g->stop >= 0)
        close(g->stop);
    free(g->head);
    free(g);
}

void http_gate_arrived(struct http_gate *g)
{
    atomic_fetch_sub(&g->arriving, 1);
}

void http_gate_left(struct http_gate *g)
{
    atomic_fetch_sub(&g->inside, 1);
}

bool http_gate_is_crowded(const struct http_gate *g)
{
    const int32_t limit = g->config.limits->connections;
    return atomic_load(&g->inside) >= limit - limit / 10;
}
