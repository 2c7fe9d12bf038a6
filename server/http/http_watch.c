/* DESIGN: the kernel hands back a ticket (slot and generation), not a pointer, so an event that was
 * on its way when its socket was removed finds a different generation and is dropped. gone() runs
 * under the watch's lock, which is what makes removal final. */
#include "server/http/http_watch.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct slot {
    void *user; /* NULL: free */
    int fd;
    uint32_t generation;
    int32_t next_free;
};

struct http_watch {
    void (*gone)(void *user);
    int epoll, stop;
    pthread_t thread;
    bool started;
    pthread_mutex_t lock; /* guards what follows */
    struct slot *slots;
    int32_t count, capacity, first_free;
};

static void dispatch(struct http_watch *w, uint64_t ticket)
{
    uint64_t index = (ticket & 0xffffffffu) - 1;
    pthread_mutex_lock(&w->lock);
    if (index < (uint64_t)w->count) {
        struct slot *s = &w->slots[index];
        if (s->user && s->generation == ticket >> 32)
            w->gone(s->user);
    }
    pthread_mutex_unlock(&w->lock);
}

static void *watch_loop(void *arg)
{
    struct http_watch *w = arg;
    struct epoll_event events[64];
    for (;;) {
        int n = epoll_wait(w->epoll, events, (int)ARRAY_LEN(events), -1);
        for (int i = 0; i < n; i++) {
            if (events[i].data.u64 == 0)
                return NULL;
            dispatch(w, events[i].data.u64);
        }
    }
}

enum status http_watch_open(void (*gone)(void *user), struct http_watch **out, struct err *err)
{
    enum status st = OK;
    struct epoll_event stop = {.events = EPOLLIN, .data.u64 = 0};
    struct http_watch *w = calloc(1, sizeof *w);
    if (!w)
        return base_fail(err, ERR_NOMEM, "http: no memory");
    w->gone = gone;
    w->first_free = -1;
    pthread_mutex_init(&w->lock, NULL);
    w->epoll = epoll_create1(EPOLL_CLOEXEC);
    w->stop = eventfd(0, EFD_CLOEXEC);
    if (w->epoll < 0 || w->stop < 0 || epoll_ctl(w->epoll, EPOLL_CTL_ADD, w->stop, &stop) != 0) {
        st = base_fail_errno(err, ERR_IO, "http: epoll");
        goto out;
    }
    const int failed = pthread_create(&w->thread, NULL, watch_loop, w);
    if (failed) {
        st = base_fail_start(err, failed, "http: a thread");
        goto out;
    }
    w->started = true;
    *out = w;
    w = NULL;
out:
    http_watch_close(w);
    return st;
}

void http_watch_close(struct http_watch *w)
{
    if (!w)
        return;
    if (w->started) {
        eventfd_write(w->stop, 1);
        pthread_join(w->thread, NULL);
    }
    if (w->epoll >= 0)
        close(w->epoll);
    if (w->stop >= 0)
        close(w->stop);
    pthread_mutex_destroy(&w->lock);
    free(w->slots);
    free(w);
}

/* Index of a free slot, -1 without memory. Under the lock. */
static int32_t take_slot(struct http_watch *w)
{
    int32_t index = w->first_free;
    if (index >= 0) {
        w->first_free = w->slots[index].next_free;
        return index;
    }
    if (w->count == w->capacity) {
        int32_t capacity = w->capacity ? 2 * w->capacity : 64;
        struct slot *more = realloc(w->slots, (size_t)capacity * sizeof *more);
        if (!more)
            return -1;
        w->slots = more;
        w->capacity = capacity;
    }
    w->slots[w->count] = (struct slot){.generation = 0};
    return w->count++;
}

uint64_t http_watch_add(struct http_watch *w, int fd, void *user)
{
    uint64_t ticket = 0;
    pthread_mutex_lock(&w->lock);
    int32_t index = take_slot(w);
    if (index >= 0) {
        struct slot *s = &w->slots[index];
        ticket = (uint64_t)s->generation << 32 | ((uint64_t)index + 1);
        struct epoll_event event = {.events = EPOLLRDHUP | EPOLLONESHOT, .data.u64 = ticket};
        s->user = user;
        s->fd = fd;
        if (epoll_ctl(w->epoll, EPOLL_CTL_ADD, fd, &event) != 0) {
            s->user = NULL;
            s->next_free = w->first_free;
            w->first_free = index;
            ticket = 0;
        }
    }
    pthread_mutex_unlock(&w->lock);
    return ticket;
}

void http_watch_remove(struct http_watch *w, uint64_t ticket)
{
    if (ticket == 0)
        return;
    int32_t index = (int32_t)((ticket & 0xffffffffu) - 1);
    pthread_mutex_lock(&w->lock);
    struct slot *s = &w->slots[index];
    epoll_ctl(w->epoll, EPOLL_CTL_DEL, s->fd, NULL);
    s->user = NULL;
    s->generation++;
    s->next_free = w->first_free;
    w->first_free = index;
    pthread_mutex_unlock(&w->lock);
}
