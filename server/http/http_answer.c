/* DESIGN: an answer given by any thread is only stored; the connection's own thread, woken for it,
 * queues it, because the library's responses belong to that thread. A stream is a callback that
 * takes what is there and suspends the connection when nothing is. */
#include "config/log.h"
#include "server/http/http_cors.h"
#include "server/http/http_log.h"
#include "server/http/http_request.h"

#include <microhttpd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define STREAM_BLOCK_BYTES 8192

/* ---- answers from any thread ---- */

/* Under r->lock. */
static void wake(struct http_request *r)
{
    if (r->suspended && r->connection) {
        r->suspended = false;
        MHD_resume_connection(r->connection);
    }
}

void http_answer_drop(struct http_request *r)
{
    r->gone = true;
    wake(r);
}

static void answer(struct http_request *r, int32_t status, const char *content_type,
                   int32_t retry_after_s, struct buf *body)
{
    pthread_mutex_lock(&r->lock);
    if (r->phase == HTTP_OPEN) {
        r->phase = HTTP_ANSWERED;
        r->status = status;
        r->content_type = content_type;
        r->retry_after_s = retry_after_s;
        r->streaming = !body;
        if (body) {
            buf_free(&r->out);
            r->out = *body;
            buf_init(body, body->max);
        }
        wake(r);
    }
    pthread_mutex_unlock(&r->lock);
    if (body)
        buf_free(body);
}

/* Adds n to what all answers have, if there is room, or if nobody has anything. */
static bool take_room(struct http *h, size_t n)
{
    size_t all = atomic_load(&h->answers);
    do {
        if (all > 0 &&
            (all > h->config.limits.output_bytes || n > h->config.limits.output_bytes - all))
            return false;
    } while (!atomic_compare_exchange_weak(&h->answers, &all, all + n));
    return true;
}

bool http_reserve(struct http_request *r, size_t n)
{
    bool fits = true;
    pthread_mutex_lock(&r->lock);
    if (n > r->unsent_max && r->connection) {
        fits = take_room(r->http, n);
        if (fits) {
            r->reserved += n;
            r->coming = n;
        }
    }
    pthread_mutex_unlock(&r->lock);
    return fits;
}

void http_no_room(struct api_error *e)
{
    api_error_set(e, 503, "out_of_capacity",
                  "too many large answers wait to be sent, try again later");
}

void http_answer_unreserve(struct http_request *r)
{
    atomic_fetch_sub(&r->http->answers, r->reserved);
    r->reserved = 0;
}

void http_reply(struct http_request *r, int32_t status, const char *content_type, struct buf *body)
{
    answer(r, status, content_type, 0, body);
}

void http_reply_page(struct http_request *r, const char *content_type, struct buf *body)
{
    r->page = true;
    answer(r, 200, content_type, 0, body);
}

void http_reply_error(struct http_request *r, const struct api_error *e)
{
    struct buf body;
    buf_init(&body, 4096);
    r->error = api_error_code(e);
    if (r->errors == API_ERROR_ANTHROPIC)
        api_error_write_anthropic(e, r->id, &body);
    else
        api_error_write(e, &body);
    answer(r, e->http_status, "application/json", e->retry_after_s, &body);
}

void http_stream_begin(struct http_request *r)
{
    answer(r, 200, "text/event-stream; charset=utf-8", 0, NULL);
}

static void forget_sent(struct http_request *r)
{
    buf_consume(&r->out, r->sent);
    r->sent = 0;
}

/* What is large is not copied if nothing waits before it. Under r->lock. */
static void append(struct http_request *r, const void *bytes, size_t n, struct buf *piece)
{
    if (!piece || r->out.len > 0 || n <= r->unsent_max) {
        buf_add(&r->out, bytes, n);
        return;
    }
    const size_t max = r->out.max;
    buf_free(&r->out);
    r->out = *piece;
    r->out.max = max;
    buf_init(piece, piece->max);
}

/* by_right: only what waits before it tells a slow reader. piece: bytes are its; NULL: nobody's
 * that can be taken. */
static bool push(struct http_request *r, const void *bytes, size_t n, bool by_right,
                 struct buf *piece)
{
    pthread_mutex_lock(&r->lock);
    bool good = r->connection && !r->gone && r->streaming && !r->stream_ended;
    if (good) {
        if (r->out.len == r->sent) {
            forget_sent(r);
            http_peer_move(r->peer, HTTP_PEER_SENDING);
            r->out.max = r->unsent_max; /* nothing waits: it is not slow */
        }
        /* what follows a large piece may wait behind it */
        if (by_right || n > r->unsent_max)
            r->out.max += n;
        if (n > r->out.max - r->out.len)
            forget_sent(r);
        append(r, bytes, n, piece);
        r->coming = 0;
        good = !r->out.failed;
        if (good) {
            wake(r);
        } else {
            /* it does not read: its thread would never look at it */
            shutdown(http_peer_fd(r->peer), SHUT_RDWR);
            http_answer_drop(r);
        }
    }
    pthread_mutex_unlock(&r->lock);
    return good;
}

bool http_stream_push(struct http_request *r, const void *bytes, size_t n)
{
    return push(r, bytes, n, false, NULL);
}

bool http_stream_push_buf(struct http_request *r, struct buf *piece, bool by_right)
{
    return push(r, piece->data, piece->len, by_right, piece);
}

void http_stream_end(struct http_request *r, bool ok)
{
    pthread_mutex_lock(&r->lock);
    if (!r->stream_ended) {
        r->stream_ended = true;
        r->stream_ok = ok;
        wake(r);
    }
    pthread_mutex_unlock(&r->lock);
}

/* ---- sending: HTTP threads ---- */

/* Ends a stream so that nobody takes it for whole: the last chunk cannot be written any more. Said
 * to the library as an error, a connection that was suspended before would be closed, but not freed
 * for as long as others are busy. */
static ssize_t cut_stream(const struct http_request *r)
{
    shutdown(http_peer_fd(r->peer), SHUT_RDWR);
    return MHD_CONTENT_READER_END_OF_STREAM;
}

static ssize_t read_stream(void *cls, uint64_t pos, char *to, size_t max)
{
    struct http_request *r = cls;
    ssize_t n = 0;
    (void)pos;
    pthread_mutex_lock(&r->lock);
    if (!r->connection) {
        n = MHD_CONTENT_READER_END_WITH_ERROR;
    } else if (r->gone) {
        n = cut_stream(r);
    } else if (r->out.len > r->sent) {
        const size_t left = r->out.len - r->sent, k = left < max ? left : max;
        memcpy(to, r->out.data + r->sent, k);
        r->sent += k;
        if (k == left && r->reserved > r->coming) {
            buf_free(&r->out); /* it was large */
            r->sent = 0;
            atomic_fetch_sub(&r->http->answers, r->reserved - r->coming);
            r->reserved = r->coming;
        } else if (r->sent >= r->out.len / 2) { /* seldom, since the others are moved */
            forget_sent(r);
        }
        http_peer_move(r->peer, k < left ? HTTP_PEER_SENDING : HTTP_PEER_BUSY);
        n = (ssize_t)k;
    } else if (r->stream_ended) {
        n = r->stream_ok ? MHD_CONTENT_READER_END_OF_STREAM : cut_stream(r);
    } else {
        r->suspended = true;
        MHD_suspend_connection(r->connection);
    }
    pthread_mutex_unlock(&r->lock);
    return n;
}

static void release_stream(void *cls)
{
    http_release(cls);
}

static struct MHD_Response *make_response(struct http_request *r)
{
    if (r->streaming) {
        struct MHD_Response *response = MHD_create_response_from_callback(
            MHD_SIZE_UNKNOWN, STREAM_BLOCK_BYTES, read_stream, r, release_stream);
        if (response)
            http_hold(r);
        return response;
    }
    size_t n = 0;
    char *data = buf_take(&r->out, &n);
    if (!data)
        return NULL;
    struct MHD_Response *response = MHD_create_response_from_buffer(n, data, MHD_RESPMEM_MUST_FREE);
    if (!response)
        free(data);
    return response;
}

static const char *header_of(const struct http_request *r, const char *name)
{
    return MHD_lookup_connection_value(r->connection, MHD_HEADER_KIND, name);
}

static void add_cors(const struct http_request *r, struct MHD_Response *response)
{
    const char *origin = header_of(r, "Origin");
    MHD_add_response_header(response, "Vary", "Origin");
    if (!http_cors_allows(r->http->config.cors_origins, origin))
        return;
    MHD_add_response_header(response, "Access-Control-Allow-Origin", origin);
    if (!r->preflight) {
        MHD_add_response_header(response, "Access-Control-Expose-Headers",
                                "X-Request-Id, Request-Id, Retry-After");
        return;
    }
    /* a star would not cover Authorization */
    const char *headers = header_of(r, "Access-Control-Request-Headers");
    if (headers && *headers)
        MHD_add_response_header(response, "Access-Control-Allow-Headers", headers);
    MHD_add_response_header(response, "Access-Control-Allow-Methods", "GET, HEAD, POST, OPTIONS");
    MHD_add_response_header(response, "Access-Control-Max-Age", "600");
}

/* What a model writes is shown as text only. Should that ever fail, it still can run nothing, and
 * send nothing to anybody. */
static void add_page_headers(struct MHD_Response *response)
{
    static const struct {
        const char *name, *value;
    } headers[] = {
        {"Content-Security-Policy",
         "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; "
         "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"},
        {"X-Content-Type-Options", "nosniff"},
        {"Referrer-Policy", "no-referrer"},
        {"Cache-Control", "no-cache"},
        {"Vary", "Accept"},
    };
    for (size_t i = 0; i < ARRAY_LEN(headers); i++)
        MHD_add_response_header(response, headers[i].name, headers[i].value);
}

static void add_headers(struct http_request *r, struct MHD_Response *response)
{
    char text[16];
    MHD_add_response_header(response, "X-Request-Id", r->id);
    if (r->errors == API_ERROR_ANTHROPIC) /* whose clients look for it under this name */
        MHD_add_response_header(response, "Request-Id", r->id);
    if (r->content_type)
        MHD_add_response_header(response, "Content-Type", r->content_type);
    if (r->allow[0])
        MHD_add_response_header(response, "Allow", r->allow);
    if (r->status == 401)
        MHD_add_response_header(response, "WWW-Authenticate", "Bearer");
    r->close |= http_gate_is_crowded(r->http->gate);
    if (r->close)
        MHD_add_response_header(response, "Connection", "close");
    if (r->retry_after_s > 0) {
        snprintf(text, sizeof text, "%d", r->retry_after_s);
        MHD_add_response_header(response, "Retry-After", text);
    }
    if (r->streaming) {
        MHD_add_response_header(response, "Cache-Control", "no-cache");
        MHD_add_response_header(response, "X-Accel-Buffering", "no");
    }
    if (r->page)
        add_page_headers(response);
    if (r->http->config.cors_origins)
        add_cors(r, response);
}

/* What became work is told of by those who did it. */
static void tell(struct http_request *r)
{
    if (r->end || !log_shows(LOG_DEBUG))
        return;
    http_log_answer(&(struct http_log_answer){.id = r->id,
                                              .status = r->status,
                                              .path = r->path,
                                              .client = http_request_peer(r->connection),
                                              .error = r->error});
}

/* The answer is stored: nobody else writes its fields any more. */
static bool queue_answer(struct http_request *r)
{
    struct MHD_Response *response = make_response(r);
    if (!response)
        return false;
    add_headers(r, response);
    bool good = MHD_queue_response(r->connection, (unsigned int)r->status, response) == MHD_YES;
    MHD_destroy_response(response);
    if (good && r->http->config.answered)
        r->http->config.answered(r->http->config.ctx, r->status);
    if (good)
        tell(r);
    return good;
}

/* A client that leaves is noticed by the watch, unless its answer is there and only to be sent. */
static void watch(struct http_request *r)
{
    pthread_mutex_lock(&r->lock);
    bool is_over = r->phase == HTTP_ANSWERED && !r->streaming;
    pthread_mutex_unlock(&r->lock);
    if (!is_over && r->ticket == 0)
        r->ticket = http_watch_add(r->http->watch, http_peer_fd(r->peer), r);
}

bool http_answer_proceed(struct http_request *r)
{
    watch(r);
    pthread_mutex_lock(&r->lock);
    bool gone = r->gone, answered = r->phase == HTTP_ANSWERED;
    if (answered) {
        r->phase = HTTP_QUEUED;
    } else if (!gone) {
        r->suspended = true;
        MHD_suspend_connection(r->connection);
    }
    pthread_mutex_unlock(&r->lock);
    return !gone && (!answered || queue_answer(r));
}
