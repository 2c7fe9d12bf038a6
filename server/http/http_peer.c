/* DESIGN: phase and start of the phase are one atomic word, so that the thread that cuts and the
 * thread that serves agree without a lock: whoever changes the word first has won. The lock only
 * keeps the list, and with it the sockets, in place while they are looked at. */
#include "server/http/http_peer.h"

#include "server/http/http_refusal.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/socket.h>

#define PHASE_BITS 3
#define HANGUP_MS 1000 /* how often hang-ups are looked for */
#define LEAVING_MS 1000
#define HURRY 10 /* limits are so many times shorter when there is hardly any room */

struct http_peer {
    struct http_peer *prev, *next;
    int fd;
    _Atomic uint64_t word; /* milliseconds << PHASE_BITS | phase */
};

struct http_peers {
    uint64_t limit_ms[HTTP_PEER_CUT + 1]; /* 0: none */
    uint64_t looked_ms;
    pthread_mutex_t lock; /* guards the list */
    struct http_peer *first;
};

static uint64_t word_of(enum http_peer_phase phase, int64_t now_ns)
{
    return (uint64_t)(now_ns / 1000000) << PHASE_BITS | phase;
}

static enum http_peer_phase phase_of(uint64_t word)
{
    return (enum http_peer_phase)(word & ((1u << PHASE_BITS) - 1));
}

/* For its next request, or the rest of one. */
static bool waits_for_client(enum http_peer_phase phase)
{
    return phase == HTTP_PEER_IDLE || phase == HTTP_PEER_HEAD || phase == HTTP_PEER_BODY;
}

static uint64_t milliseconds(double seconds)
{
    return (uint64_t)(seconds * 1000);
}

enum status http_peer_open(const struct http_limits *limits, struct http_peers **out,
                           struct err *err)
{
    struct http_peers *all = calloc(1, sizeof *all);
    if (!all)
        return base_fail(err, ERR_NOMEM, "http: no memory");
    all->limit_ms[HTTP_PEER_IDLE] = milliseconds(limits->idle_s);
    all->limit_ms[HTTP_PEER_HEAD] = milliseconds(limits->header_s);
    all->limit_ms[HTTP_PEER_BODY] = milliseconds(limits->body_s);
    all->limit_ms[HTTP_PEER_SENDING] = milliseconds(limits->send_s);
    all->limit_ms[HTTP_PEER_LEAVING] = LEAVING_MS;
    pthread_mutex_init(&all->lock, NULL);
    *out = all;
    return OK;
}

void http_peer_close(struct http_peers *all)
{
    if (!all)
        return;
    CHECK(all->first == NULL);
    pthread_mutex_destroy(&all->lock);
    free(all);
}

struct http_peer *http_peer_enter(struct http_peers *all, int fd)
{
    struct http_peer *p = calloc(1, sizeof *p);
    if (!p)
        return NULL;
    p->fd = fd;
    atomic_init(&p->word, word_of(HTTP_PEER_HEAD, base_now_ns()));
    pthread_mutex_lock(&all->lock);
    p->next = all->first;
    if (p->next)
        p->next->prev = p;
    all->first = p;
    pthread_mutex_unlock(&all->lock);
    return p;
}

void http_peer_leave(struct http_peers *all, struct http_peer *p)
{
    pthread_mutex_lock(&all->lock);
    if (p->prev)
        p->prev->next = p->next;
    else
        all->first = p->next;
    if (p->next)
        p->next->prev = p->prev;
    pthread_mutex_unlock(&all->lock);
    free(p);
}

bool http_peer_move(struct http_peer *p, enum http_peer_phase to)
{
    uint64_t next = word_of(to, base_now_ns()), was = atomic_load(&p->word);
    do {
        if (phase_of(was) == HTTP_PEER_CUT)
            return false;
    } while (!atomic_compare_exchange_weak(&p->word, &was, next));
    return true;
}

int http_peer_fd(const struct http_peer *p)
{
    return p->fd;
}

/* False when the phase that `word` tells of has ended meanwhile. */
static bool claim(struct http_peer *p, uint64_t word)
{
    return atomic_compare_exchange_strong(&p->word, &word, HTTP_PEER_CUT);
}

static void cut(const struct http_peer *p, enum http_peer_phase phase)
{
    struct api_error e = {0};
    if (phase == HTTP_PEER_HEAD || phase == HTTP_PEER_BODY) {
        api_error_set(&e, 408, "request_timeout", "the request's %s did not come in time",
                      phase == HTTP_PEER_HEAD ? "head" : "body");
        http_refusal_send(p->fd, &e, NULL);
    }
    shutdown(p->fd, SHUT_RDWR);
}

static void cut_hangups(struct pollfd *polls, struct http_peer *const *peers, const uint64_t *words,
                        nfds_t n)
{
    if (n == 0 || poll(polls, n, 0) <= 0)
        return;
    for (nfds_t i = 0; i < n; i++)
        if (polls[i].revents && claim(peers[i], words[i]))
            shutdown(peers[i]->fd, SHUT_RDWR);
}

/* The library reads no more once a read was short, and so misses a hang-up that came with data.
 * What waits for the client and has done so for a while is looked at here. Under the lock. */
static void find_hangups(struct http_peers *all, uint64_t now_ms)
{
    struct pollfd polls[128];
    struct http_peer *peers[ARRAY_LEN(polls)];
    uint64_t words[ARRAY_LEN(polls)];
    nfds_t n = 0;
    for (struct http_peer *p = all->first; p; p = p->next) {
        uint64_t word = atomic_load(&p->word);
        if (!waits_for_client(phase_of(word)) || (word >> PHASE_BITS) + HANGUP_MS > now_ms)
            continue;
        polls[n] = (struct pollfd){.fd = p->fd, .events = POLLRDHUP};
        peers[n] = p;
        words[n++] = word;
        if (n == ARRAY_LEN(polls)) {
            cut_hangups(polls, peers, words, n);
            n = 0;
        }
    }
    cut_hangups(polls, peers, words, n);
}

/* Of a phase; 0: none. */
static uint64_t limit_of(const struct http_peers *all, enum http_peer_phase phase, bool hurry)
{
    return hurry && waits_for_client(phase) ? all->limit_ms[phase] / HURRY : all->limit_ms[phase];
}

void http_peer_expire(struct http_peers *all, int64_t now_ns, bool hurry)
{
    uint64_t now_ms = (uint64_t)(now_ns / 1000000);
    pthread_mutex_lock(&all->lock);
    for (struct http_peer *p = all->first; p; p = p->next) {
        uint64_t word = atomic_load(&p->word);
        enum http_peer_phase phase = phase_of(word);
        uint64_t since = word >> PHASE_BITS, limit = limit_of(all, phase, hurry);
        if (limit > 0 && since + limit <= now_ms && claim(p, word))
            cut(p, phase);
    }
    if (all->looked_ms + HANGUP_MS <= now_ms) {
        all->looked_ms = now_ms;
        find_hangups(all, now_ms);
    }
    pthread_mutex_unlock(&all->lock);
}
