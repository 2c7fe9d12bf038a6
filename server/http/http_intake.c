/* DESIGN: what comes is read into a window, as far as a head may reach, and judged there. When a
 * head has passed and been tidied, the rest is a count of bytes that may be handed over as they
 * are, up to the next head or the next line of a chunk: a large body is read straight to its place.
 * What is not whole when a call ends is kept, so that an idle connection needs no buffer. It is not
 * left in the kernel, to be peeked at: four bytes there can hold on to a whole receive buffer,
 * which then takes no more.
 *
 * The library waits with edge-triggered epoll and takes a short read as "nothing more for now". So
 * a read ends short only when the kernel is empty (what comes then brings a new edge) or when the
 * connection is to take no more. Hence several requests in one read, and a fault may be found
 * before those ahead of it are answered: it waits for them. */
#include "server/http/http_intake.h"

#include "server/http/http_guard.h"
#include "server/http/http_refusal.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define FILES_MAX (1 << 20)
#define WASTE_ROUNDS 64 /* before other connections get their turn */

/* The function that libmicrohttpd calls. Symbols of the program come before those of libraries. */
ssize_t http_intake_recv(int fd, void *to, size_t n, int flags) __asm__("recv");

enum next { HEAD, FIRST_CHUNK, CHUNK };

struct intake {
    int fd;
    const struct http_limits *limits;
    const struct http_routes *routes;
    struct http_peer *peer;
    uint64_t left;  /* bytes that may be handed over as they are */
    enum next next; /* what must come after those */
    char *part;     /* read and not handed over; NULL: nothing */
    size_t part_bytes;
    int32_t unanswered;             /* requests handed over, the one in work included */
    struct api_error fault;         /* its http_status is 0 while there is none */
    const struct http_route *route; /* of the latest request's path; NULL: none */
    bool is_over;                   /* the fault is answered */
};

static _Atomic(struct intake *) intakes[FILES_MAX]; /* by descriptor */

/* What recv() is without us. Not recvfrom(): to a thread sanitizer that orders nothing before it.
 */
static ssize_t receive(int fd, void *to, size_t n, int flags)
{
    struct iovec piece = {.iov_base = to, .iov_len = n};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1};
    return recvmsg(fd, &message, flags);
}

static struct intake *find(int fd)
{
    return fd >= 0 && fd < FILES_MAX ? atomic_load_explicit(&intakes[fd], memory_order_acquire)
                                     : NULL;
}

bool http_intake_open(int fd, const struct http_limits *limits, const struct http_routes *routes,
                      struct http_peer *peer)
{
    CHECK(limits->header_bytes <= HTTP_INTAKE_HEAD_MAX);
    struct intake *i = fd < FILES_MAX ? calloc(1, sizeof *i) : NULL;
    if (!i)
        return false;
    i->fd = fd;
    i->limits = limits;
    i->routes = routes;
    i->peer = peer;
    CHECK(!find(fd));
    atomic_store_explicit(&intakes[fd], i, memory_order_release);
    return true;
}

void http_intake_close(int fd)
{
    struct intake *i = find(fd);
    if (!i)
        return;
    atomic_store_explicit(&intakes[fd], NULL, memory_order_release);
    free(i->part);
    free(i);
}

/* A head has begun and is not whole. */
static bool waits_for_head(const struct intake *i)
{
    return i->part && i->left == 0 && i->next == HEAD;
}

bool http_intake_has_request(int fd)
{
    const struct intake *i = find(fd);
    return i && i->unanswered > 0;
}

/* ---- refusing ---- */

/* Throws away what has come: closing with unread bytes would reset the connection and take our
 * answer with it. Returns as recv() does: 0 when the client has closed. */
static ssize_t discard(const struct intake *i)
{
    char waste[16384];
    for (int round = 0; round < WASTE_ROUNDS; round++) {
        ssize_t n = receive(i->fd, waste, sizeof waste, MSG_DONTWAIT);
        if (n <= 0)
            return n;
    }
    errno = EAGAIN;
    return -1;
}

/* Everything before the fault is answered. The client has a moment to read why, and to close. */
static void leave(struct intake *i)
{
    i->is_over = true;
    if (!http_peer_move(i->peer, HTTP_PEER_LEAVING))
        return; /* was cut */
    http_refusal_send(i->fd, &i->fault, i->route);
    shutdown(i->fd, SHUT_WR);
}

/* The request that is being read has a fault: the library gets only what was read of those ahead
 * of it, and if it knows a part of this one, no more of it. */
static ssize_t refuse(struct intake *i, size_t ahead)
{
    if (i->next != HEAD)
        i->unanswered--;
    if (i->unanswered == 0)
        leave(i);
    ssize_t n = discard(i);
    return ahead > 0 ? (ssize_t)ahead : n;
}

void http_intake_done(int fd, bool is_last)
{
    struct intake *i = find(fd);
    if (!i || i->is_over)
        return;
    i->unanswered--;
    if (i->fault.http_status && i->unanswered == 0 && !is_last)
        leave(i);
    else
        http_peer_move(i->peer, waits_for_head(i) ? HTTP_PEER_HEAD : HTTP_PEER_IDLE);
}

/* ---- judging ---- */

static enum http_guard_verdict judge_head(struct intake *i, char *bytes, size_t n)
{
    struct http_guard_head head;
    enum http_guard_verdict v = http_guard_head(i->limits, bytes, n, &head, &i->fault);
    if (v != HTTP_GUARD_MORE)
        i->route = http_route_of_head(i->routes, bytes, n);
    if (v == HTTP_GUARD_PASS) {
        http_guard_tidy(bytes, head.head_bytes);
        i->left = head.head_bytes + head.body_bytes;
        i->next = head.is_chunked ? FIRST_CHUNK : HEAD;
        i->unanswered++;
    }
    return v;
}

static enum http_guard_verdict judge_chunk(struct intake *i, const char *bytes, size_t n)
{
    struct http_guard_chunk chunk;
    enum http_guard_verdict v =
        http_guard_chunk(i->next == FIRST_CHUNK, bytes, n, &chunk, &i->fault);
    if (v == HTTP_GUARD_PASS) {
        i->left = chunk.line_bytes + chunk.data_bytes;
        i->next = chunk.data_bytes > 0 ? CHUNK : HEAD;
    }
    return v;
}

static enum http_guard_verdict judge(struct intake *i, char *bytes, size_t n)
{
    return i->next == HEAD ? judge_head(i, bytes, n) : judge_chunk(i, bytes, n);
}

/* ---- reading ---- */

/* What was read and not handed over, on the stack of one call. */
struct window {
    size_t at, end;
    bool is_empty; /* the kernel had no more */
    char bytes[HTTP_INTAKE_HEAD_MAX + 1];
};

static void resume(struct intake *i, struct window *w)
{
    w->at = 0;
    w->end = i->part_bytes;
    w->is_empty = false;
    if (i->part)
        memcpy(w->bytes, i->part, i->part_bytes);
    free(i->part);
    i->part = NULL;
    i->part_bytes = 0;
}

/* False without memory. */
static bool keep(struct intake *i, const struct window *w)
{
    const size_t n = w->end - w->at;
    i->part = n > 0 ? malloc(n) : NULL;
    if (!i->part)
        return n == 0;
    memcpy(i->part, w->bytes + w->at, n);
    i->part_bytes = n;
    return true;
}

/* As recv() does, which is not asked again once the kernel is empty. */
static ssize_t read_some(const struct intake *i, struct window *w, char *to, size_t n)
{
    if (w->is_empty) {
        errno = EAGAIN;
        return -1;
    }
    ssize_t got = receive(i->fd, to, n, MSG_DONTWAIT);
    w->is_empty = got < (ssize_t)n;
    return got;
}

static ssize_t fill(const struct intake *i, struct window *w)
{
    memmove(w->bytes, w->bytes + w->at, w->end - w->at);
    w->end -= w->at;
    w->at = 0;
    ssize_t got = read_some(i, w, w->bytes + w->end, i->limits->header_bytes + 1 - w->end);
    w->end += got > 0 ? (size_t)got : 0;
    return got;
}

/* At most n of the bytes that may be handed over. */
static ssize_t hand_over(struct intake *i, struct window *w, char *to, size_t n)
{
    const size_t seen = w->end - w->at;
    ssize_t got;
    n = i->left < n ? (size_t)i->left : n;
    if (seen > 0) {
        n = seen < n ? seen : n;
        memcpy(to, w->bytes + w->at, n);
        w->at += n;
        got = (ssize_t)n;
    } else {
        got = read_some(i, w, to, n);
    }
    i->left -= got > 0 ? (size_t)got : 0;
    return got;
}

static ssize_t take(struct intake *i, char *to, size_t n)
{
    const bool waited = waits_for_head(i);
    size_t done = 0, begun = 0; /* begun: where the request that is being read begins */
    ssize_t got = 1;
    struct window w;
    resume(i, &w);
    while (done < n && got > 0) {
        if (i->left > 0) {
            got = hand_over(i, &w, to + done, n - done);
            done += got > 0 ? (size_t)got : 0;
            continue;
        }
        const bool is_new = i->next == HEAD;
        switch (judge(i, w.bytes + w.at, w.end - w.at)) {
        case HTTP_GUARD_PASS:
            begun = is_new ? done : begun;
            break;
        case HTTP_GUARD_MORE:
            got = fill(i, &w);
            break;
        case HTTP_GUARD_REFUSE:
            return refuse(i, is_new ? done : begun);
        }
    }
    const int why = errno;
    if (!keep(i, &w)) {
        errno = ENOMEM;
        return -1;
    }
    if (!waited && waits_for_head(i) && i->unanswered == 0)
        http_peer_move(i->peer, HTTP_PEER_HEAD); /* whose time starts with its first byte */
    errno = why;
    return done > 0 ? (ssize_t)done : got;
}

ssize_t http_intake_recv(int fd, void *to, size_t n, int flags)
{
    struct intake *i = find(fd);
    if (!i || n == 0)
        return receive(fd, to, n, flags);
    return i->fault.http_status ? discard(i) : take(i, to, n);
}
