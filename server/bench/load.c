/* DESIGN: the arrival schedule is fixed before the first request and latency counts from it, so a
 * slow server cannot slow its own measurement down ("coordinated omission"). A timerfd wakes the
 * loop for the next arrival; arrivals, answers, the stop signal and the second's tick are events of
 * one epoll set. Records, gaps and connections are allocated once.
 *
 * A request goes over the connection that became free last, if its peer kept it. A peer may close
 * one that is idle at any time; when it did so just as a request was sent, not one byte of an
 * answer comes, and the request is sent once more over a new connection. */
#include "server/bench/load.h"

#include "engine/quota.h"
#include "server/bench/chunk.h"
#include "server/bench/reply.h"
#include "server/bench/target.h"
#include "server/bench/workload.h"

#include <ctype.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define SECOND INT64_C(1000000000)
#define GAPS_MAX ((size_t)1 << 27) /* a gigabyte */
enum { EVENTS = 256, READ_BYTES = 64 << 10 };
enum { FILES_RESERVED = 16 }; /* descriptors for everything but connections */

struct load;

struct conn {
    struct load *load;
    int fd;          /* -1: not connected */
    uint32_t events; /* that epoll waits for on it */
    bool busy;       /* has a request */
    bool used;       /* has carried another one before */
    bool answered;   /* bytes of an answer have come */
    int32_t request;
    struct buf out; /* request bytes not yet sent */
    struct reply reply;
    int64_t counted;      /* tokens seen in chunks */
    bool done, finished;  /* [DONE] or a finish reason came */
    enum outcome verdict; /* found inside an event; OUTCOME_UNFINISHED: none */
};

struct load {
    const struct load_config *config;
    struct load_result *result;
    int epoll, timer;
    struct conn *conns;
    int32_t *idle; /* stack of free connections */
    int32_t conn_count, idle_count;
    int32_t next, ended; /* requests begun and over */
    struct buf body;
    char *bytes;   /* what was just read */
    int64_t now;   /* when it was read */
    int64_t tick;  /* next time to look at timeouts and show progress */
    int64_t armed; /* when the timer wakes us */
    int64_t shown_chunks;
};

const char *load_outcome_name(enum outcome o)
{
    static const char *const names[OUTCOME_COUNT] = {
        [OUTCOME_UNFINISHED] = "unfinished", [OUTCOME_OK] = "ok",
        [OUTCOME_CONNECT] = "connect",       [OUTCOME_HTTP] = "http",
        [OUTCOME_STREAM] = "stream_error",   [OUTCOME_CUT] = "cut",
        [OUTCOME_MALFORMED] = "malformed",   [OUTCOME_TIMEOUT] = "timeout",
        [OUTCOME_EMPTY] = "empty",
    };
    return names[o];
}

size_t load_gaps(const struct load_result *r, int32_t i)
{
    size_t room = r->gaps_at[i + 1] - r->gaps_at[i];
    size_t count = r->records[i].chunks > 1 ? (size_t)r->records[i].chunks - 1 : 0;
    return count < room ? count : room;
}

static struct record *record_of(struct conn *c)
{
    return &c->load->result->records[c->request];
}

static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- one request ---- */

static void note_error(struct load *l, const char *text, size_t n)
{
    char *out = l->result->first_error;
    size_t cap = sizeof l->result->first_error;
    if (out[0])
        return;
    for (size_t i = 0; i < n && i + 1 < cap; i++)
        out[i] = isprint((unsigned char)text[i]) ? text[i] : '?';
}

static void disconnect(struct conn *c)
{
    if (c->fd >= 0)
        close(c->fd); /* leaves the epoll set, too */
    c->fd = -1;
}

static void end_request(struct conn *c, enum outcome outcome)
{
    struct load *l = c->load;
    struct record *r = record_of(c);
    const bool is_whole = reply_is_complete(&c->reply) && c->out.len == 0;
    r->outcome = (uint8_t)outcome;
    r->http_status = (int16_t)c->reply.http_status;
    r->ended = l->now;
    if (r->tokens < 0)
        r->tokens = c->counted;
    if (outcome != OUTCOME_OK)
        note_error(l, load_outcome_name(outcome), strlen(load_outcome_name(outcome)));
    if (!is_whole || !c->reply.keeps)
        disconnect(c);
    c->busy = false;
    l->idle[l->idle_count++] = (int32_t)(c - l->conns);
    l->ended++;
}

/* A chunk that carries tokens. */
static void take_tokens(struct conn *c, struct record *r)
{
    struct load_result *result = c->load->result;
    size_t gap = result->gaps_at[c->request] + (size_t)(r->chunks > 0 ? r->chunks - 1 : 0);
    if (r->chunks == 0)
        r->first = c->load->now;
    else if (gap < result->gaps_at[c->request + 1])
        result->gaps[gap] = (double)(c->load->now - r->last) * 1e-6;
    r->last = c->load->now;
    r->chunks++;
    result->chunks++;
}

static void on_event(void *ctx, const char *data, size_t n)
{
    struct conn *c = ctx;
    struct record *r = record_of(c);
    struct chunk chunk;
    if (c->verdict != OUTCOME_UNFINISHED || c->done)
        return;
    if (n == 6 && memcmp(data, "[DONE]", 6) == 0) {
        c->done = true;
        return;
    }
    if (!chunk_read(data, n, &chunk) || chunk.is_error) {
        c->verdict = chunk_read(data, n, &chunk) ? OUTCOME_STREAM : OUTCOME_MALFORMED;
        note_error(c->load, data, n);
        return;
    }
    c->counted += chunk.tokens;
    if (chunk.tokens > 0)
        take_tokens(c, r);
    if (chunk.finished) {
        c->finished = true;
        r->last = c->load->now;
    }
    if (chunk.completion_tokens >= 0)
        r->tokens = chunk.completion_tokens;
    if (chunk.prompt_tokens >= 0)
        r->prompt_tokens = chunk.prompt_tokens;
}

/* The whole response has come. */
static enum outcome judge(struct conn *c)
{
    const struct reply *r = &c->reply;
    if (r->http_status != 200) {
        note_error(c->load, r->body.data ? r->body.data : "", r->body.len);
        return OUTCOME_HTTP;
    }
    if (c->verdict != OUTCOME_UNFINISHED)
        return c->verdict;
    if (!r->is_stream) {
        static const char text[] = "the answer is not an event stream";
        note_error(c->load, text, sizeof text - 1);
        return OUTCOME_MALFORMED;
    }
    if (!c->done && !c->finished)
        return OUTCOME_CUT;
    return record_of(c)->chunks > 0 ? OUTCOME_OK : OUTCOME_EMPTY;
}

static void watch(struct conn *c, uint32_t events)
{
    struct epoll_event e = {.events = events, .data.ptr = c};
    if (c->events != events)
        CHECK(epoll_ctl(c->load->epoll, c->events ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, c->fd, &e) == 0);
    c->events = events;
}

static bool begin_connection(struct conn *c)
{
    const struct target *t = c->load->config->target;
    int one = 1;
    c->used = false;
    c->events = 0;
    c->fd = socket(t->address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (c->fd < 0)
        return false;
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (connect(c->fd, (const struct sockaddr *)&t->address, t->address_len) != 0 &&
        errno != EINPROGRESS)
        return false;
    watch(c, EPOLLOUT);
    return true;
}

/* The request's bytes; false without memory for them. */
static bool write_request(struct conn *c)
{
    struct load *l = c->load;
    const struct load_config *config = l->config;
    buf_clear(&l->body);
    workload_body(config->workload, config->target->is_chat, config->round, c->request, &l->body);
    buf_clear(&c->out);
    target_write_head(config->target, "POST", config->target->path, l->body.len, true, &c->out);
    buf_add(&c->out, l->body.data, l->body.len);
    return !l->body.failed && !c->out.failed;
}

/* The peer has closed an idle connection before it saw what came over it: tries a new one. */
static bool try_again(struct conn *c)
{
    if (!c->used || c->answered)
        return false;
    disconnect(c);
    return write_request(c) && begin_connection(c);
}

static void receive(struct conn *c)
{
    struct load *l = c->load;
    struct err err = {""};
    ssize_t n = recv(c->fd, l->bytes, READ_BYTES, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (!c->busy) { /* the peer closes it, or says what nobody asked for */
        disconnect(c);
        return;
    }
    if (n <= 0 && try_again(c))
        return;
    c->answered = true;
    l->now = base_now_ns();
    if (n <= 0) {
        bool whole = reply_close(&c->reply, &err) == OK && n == 0;
        /* a peer that says all and then drops the connection has said all */
        whole |= c->done || c->verdict != OUTCOME_UNFINISHED;
        end_request(c, whole ? judge(c) : OUTCOME_CUT);
    } else if (reply_feed(&c->reply, l->bytes, (size_t)n, &err) != OK) {
        note_error(l, err.text, strlen(err.text));
        end_request(c, OUTCOME_MALFORMED);
    } else if (reply_is_complete(&c->reply) || c->verdict != OUTCOME_UNFINISHED) {
        end_request(c, judge(c));
    }
}

/* Connected, or the buffer has room. */
static void transmit(struct conn *c)
{
    ssize_t n = send(c->fd, c->out.data, c->out.len, MSG_NOSIGNAL);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        watch(c, EPOLLOUT);
        return;
    }
    if (n < 0 && errno == EPIPE) { /* it answered and closed without reading all */
        buf_clear(&c->out);
        watch(c, EPOLLIN);
        return;
    }
    if (n < 0 && try_again(c))
        return;
    if (n < 0) {
        const char *why = strerror(errno);
        note_error(c->load, why, strlen(why));
        end_request(c, OUTCOME_CONNECT);
        return;
    }
    buf_consume(&c->out, (size_t)n);
    watch(c, c->out.len == 0 ? EPOLLIN : EPOLLOUT);
}

static void begin_request(struct load *l)
{
    const struct load_config *config = l->config;
    struct conn *c = &l->conns[l->idle[--l->idle_count]];
    c->request = l->next++;
    c->busy = true;
    c->used = c->fd >= 0;
    c->answered = false;
    c->counted = 0;
    c->done = c->finished = false;
    c->verdict = OUTCOME_UNFINISHED;
    reply_reset(&c->reply);
    struct record *r = record_of(c);
    r->sent = base_now_ns();
    if (config->rate <= 0)
        r->due = r->sent;
    r->tokens = r->prompt_tokens = -1;
    const bool fits = write_request(c);
    if (fits && c->used) {
        transmit(c);
    } else if (!fits || !begin_connection(c)) {
        const char *why = fits ? strerror(errno) : "the request is too long";
        note_error(l, why, strlen(why));
        end_request(c, OUTCOME_CONNECT);
    }
}

/* ---- the loop ---- */

/* Begins what is due and sets the timer for the next arrival. */
static void begin_due(struct load *l)
{
    const struct load_config *c = l->config;
    int64_t now = base_now_ns();
    while (l->next < c->count && l->idle_count > 0) {
        int64_t due = c->rate > 0 ? l->result->records[l->next].due : now;
        if (due > now && due != l->armed) {
            struct itimerspec t = {.it_value = {due / SECOND, due % SECOND}};
            CHECK(timerfd_settime(l->timer, TFD_TIMER_ABSTIME, &t, NULL) == 0);
            l->armed = due;
        }
        if (due > now)
            return;
        begin_request(l);
    }
}

static void show_progress(struct load *l)
{
    static const int64_t sparse = 10;
    int64_t second = (l->now - l->result->started) / SECOND;
    bool terminal = isatty(STDERR_FILENO);
    if (!terminal && (second == 0 || second % sparse != 0))
        return;
    double rate = (double)(l->result->chunks - l->shown_chunks) / (terminal ? 1 : (double)sparse);
    l->shown_chunks = l->result->chunks;
    fprintf(stderr, "%s%3lld s: %d of %d requests over, %d running, %.0f tokens/s%s",
            terminal ? "\r" : "", (long long)second, l->ended, l->config->count, l->next - l->ended,
            rate, terminal ? "\033[K" : "\n");
}

/* Once per second. */
static void tick(struct load *l)
{
    const int64_t limit = (int64_t)(l->config->timeout_s * 1e9);
    l->now = base_now_ns();
    if (l->now < l->tick)
        return;
    l->tick += SECOND;
    for (int32_t i = 0; i < l->conn_count; i++)
        if (l->conns[i].busy && l->now - record_of(&l->conns[i])->sent > limit)
            end_request(&l->conns[i], OUTCOME_TIMEOUT);
    show_progress(l);
}

static void handle(struct load *l, const struct epoll_event *e)
{
    struct conn *c = e->data.ptr;
    if (e->data.ptr == l)
        l->result->interrupted = true;
    else if (e->data.ptr == &l->timer)
        return; /* it has woken us */
    else if (c->busy && c->out.len > 0)
        transmit(c);
    else
        receive(c);
}

static void loop(struct load *l)
{
    struct epoll_event events[EVENTS];
    while (l->ended < l->config->count && !l->result->interrupted) {
        begin_due(l);
        int64_t wait_ms = (l->tick - base_now_ns()) / 1000000 + 1;
        int n = epoll_wait(l->epoll, events, EVENTS, wait_ms > 0 ? (int)wait_ms : 0);
        for (int i = 0; i < n; i++)
            handle(l, &events[i]);
        tick(l);
    }
    if (isatty(STDERR_FILENO))
        fputs("\r\033[K", stderr);
}

/* ---- beginning and end ---- */

static enum status make_result(const struct load_config *c, struct load_result *r, struct err *err)
{
    size_t n = (size_t)c->count, total = 0;
    *r = (struct load_result){.count = c->count};
    r->records = calloc(n, sizeof *r->records);
    r->gaps_at = calloc(n + 1, sizeof *r->gaps_at);
    int64_t *due = calloc(n, sizeof *due);
    for (size_t i = 0; i < n && r->gaps_at; i++)
        total = r->gaps_at[i + 1] = total + (size_t)workload_output_len(c->workload, (int64_t)i);
    if (total <= GAPS_MAX)
        r->gaps = calloc(total, sizeof *r->gaps);
    if (!r->records || !r->gaps_at || !due || !r->gaps) {
        free(due);
        return base_fail(err, ERR_NOMEM,
                         "%d requests of so many tokens need more memory than there is, or more "
                         "than 1 GiB: take fewer or shorter ones",
                         c->count);
    }
    if (c->rate > 0)
        workload_schedule(c->seed + c->round, c->rate, c->count, due);
    for (size_t i = 0; i < n; i++)
        r->records[i].due = due[i];
    free(due);
    return OK;
}

/* As many connections as the load and the process's file limit allow. */
static enum status connections(const struct load_config *c, int32_t *out, struct err *err)
{
    const int32_t wanted =
        c->concurrency > 0 && c->concurrency < c->count ? c->concurrency : c->count;
    const int64_t needed = (int64_t)wanted + FILES_RESERVED, files = quota_files(needed);
    *out = (int32_t)(files - FILES_RESERVED);
    if (files >= needed)
        return OK;
    if (files <= FILES_RESERVED)
        return base_fail(err, ERR_LIMIT,
                         "only %d files may be open (ulimit -n), which is too few for a connection",
                         (int)files);
    base_log(LOG_WARN, "at most %d connections at once instead of %d: only %d files may be open",
             *out, wanted, (int)files);
    return OK;
}

static enum status open_load(struct load *l, struct err *err)
{
    enum status st = connections(l->config, &l->conn_count, err);
    if (st != OK)
        return st;
    l->conns = calloc((size_t)l->conn_count, sizeof *l->conns);
    l->idle = calloc((size_t)l->conn_count, sizeof *l->idle);
    l->bytes = malloc(READ_BYTES);
    l->epoll = epoll_create1(EPOLL_CLOEXEC);
    l->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (!l->conns || !l->idle || !l->bytes || l->epoll < 0 || l->timer < 0)
        return base_fail_errno(err, ERR_NOMEM, "%d connections", l->conn_count);
    struct epoll_event timer = {.events = EPOLLIN | EPOLLET, .data.ptr = &l->timer};
    struct epoll_event stop = {.events = EPOLLIN, .data.ptr = l};
    CHECK(epoll_ctl(l->epoll, EPOLL_CTL_ADD, l->timer, &timer) == 0);
    if (l->config->stop_fd >= 0)
        CHECK(epoll_ctl(l->epoll, EPOLL_CTL_ADD, l->config->stop_fd, &stop) == 0);
    for (int32_t i = l->conn_count; i-- > 0;) {
        struct conn *c = &l->conns[i];
        c->load = l;
        c->fd = -1;
        buf_init(&c->out, 8u << 20);
        reply_init(&c->reply, on_event, c);
        l->idle[l->idle_count++] = i;
    }
    return OK;
}

static void close_load(struct load *l)
{
    for (int32_t i = 0; l->conns && i < l->conn_count; i++) {
        struct conn *c = &l->conns[i];
        if (c->load && c->fd >= 0)
            close(c->fd);
        buf_free(&c->out);
        reply_free(&c->reply);
    }
    free(l->conns);
    free(l->idle);
    free(l->bytes);
    buf_free(&l->body);
    if (l->epoll >= 0)
        close(l->epoll);
    if (l->timer >= 0)
        close(l->timer);
}

enum status load_run(const struct load_config *config, struct load_result *out, struct err *err)
{
    enum status st = OK;
    struct load_result result = {0};
    struct load l = {.config = config, .result = &result, .epoll = -1, .timer = -1};
    CHECK(config->rate > 0 || config->concurrency > 0);
    buf_init(&l.body, 8u << 20);
    TRY(make_result(config, &result, err));
    TRY(open_load(&l, err));
    double cpu = cpu_seconds();
    result.started = l.now = base_now_ns();
    l.tick = result.started + SECOND;
    for (int32_t i = 0; i < config->count; i++)
        result.records[i].due += result.started;
    loop(&l);
    result.ended = base_now_ns();
    result.cpu_seconds = cpu_seconds() - cpu;
    *out = result;
out:
    close_load(&l);
    if (st != OK)
        load_free(&result);
    return st;
}

void load_free(struct load_result *r)
{
    free(r->records);
    free(r->gaps);
    free(r->gaps_at);
    *r = (struct load_result){0};
}
