/* DESIGN: link_await is one poll loop over all links, writing what is left of the posted messages
 * and reading what has come of the answers to the oldest; no link can block another. A message is
 * written once per rank from the same bytes. */
#include "engine/link.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { TEXT_MAX = sizeof((struct err *)0)->text, POLL_MS = 50 };

_Static_assert(sizeof(struct board_report) > sizeof(struct step_answer),
               "the head of an answer tells the two apart");

struct post {
    const char *message;
    size_t bytes;
};

struct end {
    int fd;
    int32_t posts; /* of those posted, sent whole */
    size_t sent;   /* of the next one */
    char *in;      /* the answer or report so far */
    size_t got;
    bool done;
    struct board_rank *board; /* where reports go; NULL: none are sent */
};

struct link_set {
    int32_t count, ids_max, columns;
    size_t in_cap;
    struct post posts[LINK_POSTS_MAX]; /* not answered, the oldest first */
    int32_t post_count;
    struct end *ends;
    struct pollfd *polls;
};

enum status link_open(const int *fds, int32_t count, int32_t ids_max, int32_t columns,
                      struct link_set **out, struct err *err)
{
    enum status st = OK;
    struct link_set *l = calloc(1, sizeof *l);
    if (!l)
        return base_fail(err, ERR_NOMEM, "links: no memory");
    l->ends = calloc((size_t)count, sizeof *l->ends);
    l->polls = calloc((size_t)count, sizeof *l->polls);
    l->count = l->ends ? count : 0;
    l->ids_max = ids_max;
    l->columns = columns;
    const struct step_answer most = {
        .ids = ids_max, .logprobs = ids_max, .stride = ENGINE_LOGPROBS_MAX, .columns = columns};
    l->in_cap = sizeof most + step_answer_bytes(&most) + TEXT_MAX + sizeof(struct board_report);
    for (int32_t i = 0; i < l->count; i++) {
        l->ends[i].fd = fds[i];
        l->ends[i].in = calloc(1, l->in_cap);
        if (!l->ends[i].in)
            st = ERR_NOMEM;
    }
    if (!l->ends || !l->polls || st != OK) {
        link_close(l);
        return base_fail(err, ERR_NOMEM, "links: no memory for %d ranks", count);
    }
    *out = l;
    return OK;
}

void link_close(struct link_set *l)
{
    if (!l)
        return;
    for (int32_t i = 0; i < l->count; i++) {
        close(l->ends[i].fd);
        free(l->ends[i].in);
    }
    free(l->ends);
    free(l->polls);
    free(l);
}

void link_hear(struct link_set *l, int32_t rank, struct board_rank *b)
{
    l->ends[rank].board = b;
}

static enum status closed(int32_t rank, struct err *err)
{
    return base_fail(err, ERR_COMM, "rank %d closed its link", rank);
}

static enum status pump_out(struct link_set *l, int32_t i, struct err *err)
{
    struct end *e = &l->ends[i];
    while (e->posts < l->post_count) {
        const struct post *p = &l->posts[e->posts];
        ssize_t n =
            send(e->fd, p->message + e->sent, p->bytes - e->sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return OK;
        if (n < 0)
            return closed(i, err);
        e->sent += (size_t)n;
        if (e->sent == p->bytes) {
            e->posts++;
            e->sent = 0;
        }
    }
    return OK;
}

/* Length of the whole answer once its head is there; 0 when the head is malformed. */
static size_t answer_bytes(const struct link_set *l, const struct step_answer *h)
{
    if (h->magic != STEP_ANSWER_MAGIC || h->ids < 0 || h->ids > l->ids_max || h->text_bytes < 0 ||
        h->text_bytes >= TEXT_MAX || (h->logprobs != 0 && h->logprobs != h->ids) || h->stride < 0 ||
        h->stride > ENGINE_LOGPROBS_MAX || (h->columns != 0 && h->columns != l->columns) ||
        h->zero != 0)
        return 0;
    return sizeof *h + step_answer_bytes(h) + (size_t)h->text_bytes;
}

static enum status malformed(int32_t rank, struct err *err)
{
    return base_fail(err, ERR_COMM, "rank %d sent a malformed answer", rank);
}

/* A failed rank's own words. */
static enum status failed(int32_t rank, char *in, struct err *err)
{
    struct step_answer h;
    memcpy(&h, in, sizeof h);
    char *text = in + sizeof h + step_answer_bytes(&h);
    text[h.text_bytes] = '\0';
    const bool known = h.status > OK && h.status <= ERR_INTERNAL && h.status != ERR_CANCELLED;
    return base_fail(err, known ? (enum status)h.status : ERR_COMM, "rank %d: %s", rank, text);
}

/* Bytes of what has begun to come in; 0 when its head is malformed. */
static size_t wanted(const struct link_set *l, const struct end *e)
{
    uint32_t magic;
    if (e->got < sizeof(struct step_answer))
        return sizeof(struct step_answer);
    memcpy(&magic, e->in, sizeof magic);
    if (magic == BOARD_REPORT_MAGIC && e->board)
        return sizeof(struct board_report);
    return answer_bytes(l, (const struct step_answer *)(const void *)e->in);
}

/* The end has all that it wanted. */
static enum status take(struct end *e, int32_t rank, struct err *err)
{
    const struct step_answer *h = (const struct step_answer *)(const void *)e->in;
    if (h->magic == STEP_ANSWER_MAGIC) {
        e->done = true;
        return h->status == OK ? OK : failed(rank, e->in, err);
    }
    e->got = 0;
    if (board_hear(e->board, (const struct board_report *)(const void *)e->in, err) != OK)
        return malformed(rank, err);
    return OK;
}

static enum status pump_in(struct link_set *l, int32_t i, struct err *err)
{
    enum status st = OK;
    struct end *e = &l->ends[i];
    while (!e->done && st == OK) {
        const size_t want = wanted(l, e);
        if (want == 0)
            return malformed(i, err);
        if (e->got == want) {
            st = take(e, i, err);
            continue;
        }
        ssize_t n = recv(e->fd, e->in + e->got, want - e->got, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return OK;
        if (n <= 0)
            return closed(i, err);
        e->got += (size_t)n;
    }
    return st;
}

static enum status pump(struct link_set *l, int32_t *left, struct err *err)
{
    enum status st = OK;
    *left = 0;
    for (int32_t i = 0; i < l->count && st == OK; i++) {
        struct end *e = &l->ends[i];
        st = pump_out(l, i, err);
        /* an answer cannot come before its question */
        const bool asked = e->posts > 0 || l->post_count == 0;
        if (st == OK && asked)
            st = pump_in(l, i, err);
        *left += !e->done;
        const int events =
            (asked && !e->done ? POLLIN : 0) | (e->posts < l->post_count ? POLLOUT : 0);
        l->polls[i] = (struct pollfd){.fd = events ? e->fd : -1, .events = (short)events};
    }
    return st;
}

enum status link_post(struct link_set *l, const void *message, size_t bytes, struct err *err)
{
    enum status st = OK;
    CHECK(l->post_count < LINK_POSTS_MAX);
    l->posts[l->post_count++] = (struct post){message, bytes};
    for (int32_t i = 0; i < l->count && st == OK; i++)
        st = pump_out(l, i, err);
    return st;
}

/* The oldest message is answered. */
static void unpost(struct link_set *l)
{
    if (l->post_count == 0)
        return;
    memmove(&l->posts[0], &l->posts[1], (size_t)--l->post_count * sizeof l->posts[0]);
    for (int32_t i = 0; i < l->count; i++)
        l->ends[i].posts--;
}

/* The parts of a whole answer. */
static struct link_answer answer_in(char *in)
{
    struct link_answer a;
    memcpy(&a.head, in, sizeof a.head);
    const struct step_answer *h = &a.head;
    char *ids = in + sizeof *h, *logprob = ids + (size_t)h->ids * sizeof(int32_t);
    char *best = logprob + (size_t)h->logprobs * sizeof(float);
    a.result = (struct step_result){.count = h->ids,
                                    .ids = (const int32_t *)(const void *)ids,
                                    .best = (const struct token_top *)(const void *)best,
                                    .stride = h->stride,
                                    .columns = h->columns};
    if (h->logprobs > 0)
        a.result.logprob = (const float *)(const void *)logprob;
    if (h->columns > 0)
        a.result.vector =
            (const float *)(const void *)(best + (size_t)h->logprobs * (size_t)h->stride *
                                                     sizeof(struct token_top));
    return a;
}

enum status link_await(struct link_set *l, link_patience *patience, void *ctx,
                       struct link_answer *answers, struct err *err)
{
    enum status st = OK;
    for (int32_t i = 0; i < l->count; i++) {
        l->ends[i].got = 0;
        l->ends[i].done = false;
    }
    for (;;) {
        int32_t left;
        TRY(pump(l, &left, err));
        if (left == 0)
            break;
        if (poll(l->polls, (nfds_t)l->count, POLL_MS) == 0 && patience)
            TRY(patience(ctx, err));
    }
    for (int32_t i = 0; i < l->count; i++)
        answers[i] = answer_in(l->ends[i].in);
    unpost(l);
out:
    return st;
}

enum status link_exchange(struct link_set *l, const void *message, size_t bytes,
                          link_patience *patience, void *ctx, struct link_answer *answers,
                          struct err *err)
{
    enum status st = bytes > 0 ? link_post(l, message, bytes, err) : OK;
    return st == OK ? link_await(l, patience, ctx, answers, err) : st;
}

/* What a rank finds when it reads or writes and the other end is closed; reset: closed with
 * something of ours unread. */
static enum status ended(ssize_t n, struct err *err)
{
    if (n == 0 || errno == EPIPE || errno == ECONNRESET)
        return base_fail(err, ERR_CANCELLED, "the front end closed the link");
    return base_fail_errno(err, ERR_COMM, "link");
}

static enum status read_all(int fd, char *dst, size_t n, struct err *err)
{
    for (size_t got = 0; got < n;) {
        ssize_t r = read(fd, dst + got, n - got);
        if (r < 0 && errno == EINTR)
            continue;
        if (r <= 0)
            return ended(r, err);
        got += (size_t)r;
    }
    return OK;
}

bool link_waits(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, 0) > 0;
}

enum status link_receive(int fd, void *buf, size_t cap, size_t *n, struct err *err)
{
    enum status st = OK;
    struct step_header h;
    TRY(read_all(fd, buf, sizeof h, err));
    memcpy(&h, buf, sizeof h);
    if (h.bytes < sizeof h || h.bytes > cap) {
        st = base_fail(err, ERR_COMM, "step message of %u bytes, room for %zu", h.bytes, cap);
        goto out;
    }
    TRY(read_all(fd, (char *)buf + sizeof h, h.bytes - sizeof h, err));
    *n = h.bytes;
out:
    return st;
}

static enum status write_all(int fd, const void *src, size_t n, int flags, struct err *err)
{
    for (size_t sent = 0; sent < n;) {
        ssize_t w = send(fd, (const char *)src + sent, n - sent, MSG_NOSIGNAL | flags);
        if (w < 0 && errno == EINTR)
            continue;
        if (w < 0)
            return ended(w, err);
        sent += (size_t)w;
    }
    return OK;
}

enum status link_answer(int fd, const struct step_answer *head, const struct step_result *result,
                        const char *text, struct err *err)
{
    enum status st = OK;
    const size_t scored = (size_t)head->logprobs;
    TRY(write_all(fd, head, sizeof *head, 0, err));
    TRY(write_all(fd, result->ids, (size_t)head->ids * sizeof *result->ids, 0, err));
    TRY(write_all(fd, result->logprob, scored * sizeof *result->logprob, 0, err));
    TRY(write_all(fd, result->best, scored * (size_t)head->stride * sizeof *result->best, 0, err));
    TRY(write_all(fd, result->vector,
                  (size_t)head->ids * (size_t)head->columns * sizeof *result->vector, 0, err));
    TRY(write_all(fd, text, (size_t)head->text_bytes, 0, err));
out:
    return st;
}

enum status link_report(int fd, const struct board_rank *b, bool more, struct err *err)
{
    struct board_report r;
    board_tell(b, &r);
    return write_all(fd, &r, sizeof r, more ? MSG_MORE : 0, err);
}
