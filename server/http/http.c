/* DESIGN: libmicrohttpd with internal epoll threads moves bytes; whatever needs time runs elsewhere
 * while the connection is suspended. An answer given by another thread is only stored; the access
 * handler, called again after the resume, queues it, because responses belong to the connection's
 * own thread. A request has two owners, the connection and whoever holds it, hence the count.
 * Bodies that are refused are read and dropped up to a bound, since closing with unread bytes would
 * reset the connection and take our answer with it. */
#include "server/http/http.h"

#include "server/http/http_listen.h"
#include "server/http/http_watch.h"

#include <inttypes.h>
#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#define STREAM_BLOCK_BYTES 8192
#define DROP_FACTOR 8 /* of a refused body, this many times the limit is read */
#define REQUEST_ID_MAX 128

struct http {
    struct http_config config;
    struct MHD_Daemon *daemon;
    struct http_watch *watch;
    int32_t port;
    pthread_mutex_t lock; /* guards what follows */
    struct http_request *requests;
    bool closing;
};

enum phase {
    PHASE_OPEN,     /* no answer yet */
    PHASE_ANSWERED, /* stored, to be queued by the HTTP thread */
    PHASE_QUEUED,
};

struct http_request {
    struct http *http;
    struct http_request *prev, *next; /* under http->lock */
    _Atomic int32_t refs;
    char id[REQUEST_ID_MAX + 1];

    /* the HTTP thread's, until an answer is queued */
    const struct http_route *route;
    const char *rest;
    struct buf body;
    size_t dropped; /* bytes of a body that is not wanted */
    bool refused, handled;
    char allow[32];
    bool close;
    void (*end)(void *user, bool sent);
    void *end_user;
    uint64_t ticket;

    pthread_mutex_t lock;              /* guards what follows */
    struct MHD_Connection *connection; /* NULL: the exchange is over */
    enum phase phase;
    bool suspended, gone;
    bool streaming, stream_ended, stream_ok;
    int32_t status, retry_after_s;
    const char *content_type;
    struct buf out; /* the answer, or unsent bytes of the stream */
};

/* ---- life of a request ---- */

static void make_id(struct http_request *r, const char *from_client)
{
    size_t n = from_client ? strlen(from_client) : 0;
    bool good = n > 0 && n <= REQUEST_ID_MAX;
    for (size_t i = 0; i < n && good; i++)
        good = from_client[i] > ' ' && from_client[i] < 0x7f;
    uint64_t random = 0;
    if (good)
        memcpy(r->id, from_client, n + 1);
    else if (getrandom(&random, sizeof random, 0) == (ssize_t)sizeof random)
        snprintf(r->id, sizeof r->id, "req-%016" PRIx64, random);
}

static struct http_request *request_open(struct http *h, struct MHD_Connection *connection)
{
    struct http_request *r = calloc(1, sizeof *r);
    if (!r)
        return NULL;
    r->http = h;
    r->connection = connection;
    atomic_init(&r->refs, 1);
    buf_init(&r->body, h->config.body_bytes_max);
    buf_init(&r->out, h->config.stream_bytes_max);
    pthread_mutex_init(&r->lock, NULL);
    make_id(r, MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "X-Request-Id"));
    pthread_mutex_lock(&h->lock);
    r->gone = h->closing;
    r->next = h->requests;
    if (r->next)
        r->next->prev = r;
    h->requests = r;
    pthread_mutex_unlock(&h->lock);
    return r;
}

static void request_unlink(struct http_request *r)
{
    struct http *h = r->http;
    pthread_mutex_lock(&h->lock);
    if (r->prev)
        r->prev->next = r->next;
    else
        h->requests = r->next;
    if (r->next)
        r->next->prev = r->prev;
    pthread_mutex_unlock(&h->lock);
}

void http_hold(struct http_request *r)
{
    atomic_fetch_add(&r->refs, 1);
}

void http_release(struct http_request *r)
{
    if (atomic_fetch_sub(&r->refs, 1) != 1)
        return;
    buf_free(&r->body);
    buf_free(&r->out);
    pthread_mutex_destroy(&r->lock);
    free(r);
}

const char *http_rest(const struct http_request *r)
{
    return r->rest;
}

const char *http_id(const struct http_request *r)
{
    return r->id;
}

void http_take_body(struct http_request *r, struct buf *body)
{
    *body = r->body;
    buf_init(&r->body, body->max);
}

void http_on_end(struct http_request *r, void (*end)(void *user, bool sent), void *user)
{
    r->end = end;
    r->end_user = user;
}

/* ---- answers from any thread ---- */

/* Under r->lock. */
static void wake(struct http_request *r)
{
    if (r->suspended && r->connection) {
        r->suspended = false;
        MHD_resume_connection(r->connection);
    }
}

/* Under r->lock: the connection ends as soon as its thread looks at it. */
static void drop(struct http_request *r)
{
    r->gone = true;
    wake(r);
}

static void answer(struct http_request *r, int32_t status, const char *content_type,
                   int32_t retry_after_s, struct buf *body)
{
    pthread_mutex_lock(&r->lock);
    if (r->phase == PHASE_OPEN) {
        r->phase = PHASE_ANSWERED;
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

void http_reply(struct http_request *r, int32_t status, const char *content_type, struct buf *body)
{
    answer(r, status, content_type, 0, body);
}

void http_reply_error(struct http_request *r, const struct api_error *e)
{
    struct buf body;
    buf_init(&body, 4096);
    api_error_write(e, &body);
    answer(r, e->http_status, "application/json", e->retry_after_s, &body);
}

void http_stream_begin(struct http_request *r)
{
    answer(r, 200, "text/event-stream; charset=utf-8", 0, NULL);
}

bool http_stream_push(struct http_request *r, const void *bytes, size_t n)
{
    pthread_mutex_lock(&r->lock);
    bool good = r->connection && !r->gone && r->streaming && !r->stream_ended;
    if (good) {
        buf_add(&r->out, bytes, n);
        good = !r->out.failed;
        if (good) {
            wake(r);
        } else {
            /* it does not read: its thread would never look at it */
            const union MHD_ConnectionInfo *info =
                MHD_get_connection_info(r->connection, MHD_CONNECTION_INFO_CONNECTION_FD);
            if (info)
                shutdown(info->connect_fd, SHUT_RDWR);
            drop(r);
        }
    }
    pthread_mutex_unlock(&r->lock);
    return good;
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

static ssize_t read_stream(void *cls, uint64_t pos, char *to, size_t max)
{
    struct http_request *r = cls;
    ssize_t n = 0;
    (void)pos;
    pthread_mutex_lock(&r->lock);
    if (r->gone || !r->connection) {
        n = MHD_CONTENT_READER_END_WITH_ERROR;
    } else if (r->out.len > 0) {
        size_t k = r->out.len < max ? r->out.len : max;
        memcpy(to, r->out.data, k);
        buf_consume(&r->out, k);
        n = (ssize_t)k;
    } else if (r->stream_ended) {
        n = r->stream_ok ? MHD_CONTENT_READER_END_OF_STREAM : MHD_CONTENT_READER_END_WITH_ERROR;
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

static void add_headers(const struct http_request *r, struct MHD_Response *response)
{
    char text[16];
    if (r->content_type)
        MHD_add_response_header(response, "Content-Type", r->content_type);
    if (r->id[0])
        MHD_add_response_header(response, "X-Request-Id", r->id);
    if (r->allow[0])
        MHD_add_response_header(response, "Allow", r->allow);
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
}

/* The answer is stored: nobody else writes its fields any more. */
static enum MHD_Result queue_answer(struct http_request *r, struct MHD_Connection *connection)
{
    struct MHD_Response *response = make_response(r);
    if (!response)
        return MHD_NO;
    add_headers(r, response);
    enum MHD_Result result = MHD_queue_response(connection, (unsigned int)r->status, response);
    MHD_destroy_response(response);
    return result;
}

/* Queues the answer, or puts the connection to sleep until there is one. */
static enum MHD_Result proceed(struct http_request *r, struct MHD_Connection *connection)
{
    bool answered, gone;
    if (r->ticket == 0) {
        const union MHD_ConnectionInfo *info =
            MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
        if (info)
            r->ticket = http_watch_add(r->http->watch, info->connect_fd, r);
    }
    pthread_mutex_lock(&r->lock);
    gone = r->gone;
    answered = r->phase == PHASE_ANSWERED;
    if (answered) {
        r->phase = PHASE_QUEUED;
    } else if (!gone) {
        r->suspended = true;
        MHD_suspend_connection(connection);
    }
    pthread_mutex_unlock(&r->lock);
    if (gone)
        return MHD_NO;
    return answered ? queue_answer(r, connection) : MHD_YES;
}

/* ---- receiving: HTTP threads ---- */

struct framing {
    int lengths, encodings;
    bool chunked, compressed;
};

static enum MHD_Result count_framing(void *cls, enum MHD_ValueKind kind, const char *key,
                                     const char *value)
{
    struct framing *f = cls;
    (void)kind;
    if (strcasecmp(key, "Content-Length") == 0)
        f->lengths++;
    if (strcasecmp(key, "Transfer-Encoding") == 0) {
        f->encodings++;
        f->chunked = value && strcasecmp(value, "chunked") == 0;
    }
    if (strcasecmp(key, "Content-Encoding") == 0)
        f->compressed = !value || strcasecmp(value, "identity") != 0;
    return MHD_YES;
}

/* A body whose length two parties could read differently is how requests are smuggled. */
static bool framing_is_bad(struct MHD_Connection *connection, struct framing *f,
                           struct api_error *e)
{
    *f = (struct framing){0};
    MHD_get_connection_values(connection, MHD_HEADER_KIND, count_framing, f);
    if (f->lengths > 1 || f->encodings > 1 || (f->lengths && f->encodings))
        api_error_set(e, 400, NULL, "more than one header says how long the body is");
    else if (f->encodings && !f->chunked)
        api_error_set(e, 501, NULL, "the only Transfer-Encoding known here is chunked");
    else
        return false;
    return true;
}

/* Bytes that the client announces; 0 for none or a chunked body. */
static uint64_t announced(struct MHD_Connection *connection)
{
    const char *text =
        MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_CONTENT_LENGTH);
    return text ? strtoull(text, NULL, 10) : 0;
}

static void too_large(struct http_request *r)
{
    struct api_error e = {0};
    api_error_set(&e, 413, NULL, "the request body is larger than %zu bytes",
                  r->http->config.body_bytes_max);
    r->refused = true;
    http_reply_error(r, &e);
}

static void refuse(struct http_request *r, int32_t status, const char *code, const char *text)
{
    struct api_error e = {0};
    api_error_set(&e, status, code, "%s", text);
    r->refused = true;
    http_reply_error(r, &e);
}

/* Decides what can be decided from the header alone. */
static void judge_header(struct http_request *r, const char *path, const char *method,
                         const struct framing *f)
{
    struct buf empty;
    const struct http_config *c = &r->http->config;
    int allowed;
    r->route = http_route_find(c->routes, c->route_count, method, path, &r->rest, &allowed);
    if (!r->route && allowed)
        snprintf(r->allow, sizeof r->allow, "%s", http_route_allow(allowed));
    if (allowed && strcmp(method, "OPTIONS") == 0) {
        buf_init(&empty, 0);
        r->refused = true;
        http_reply(r, 204, NULL, &empty);
    } else if (!allowed) {
        refuse(r, 404, "not_found", "no such path");
    } else if (!r->route) {
        refuse(r, 405, "method_not_allowed", "this path does not have that method");
    } else if (f->compressed) {
        refuse(r, 415, NULL, "compressed request bodies are not accepted");
    } else if (strcmp(method, "POST") == 0 && !f->lengths && !f->encodings) {
        refuse(r, 411, NULL, "a POST needs Content-Length or Transfer-Encoding: chunked");
    }
}

static enum MHD_Result first_call(struct http *h, struct MHD_Connection *connection,
                                  const char *path, const char *method, void **con_cls)
{
    struct framing framing;
    struct api_error e = {0};
    struct http_request *r = request_open(h, connection);
    if (!r)
        return MHD_NO;
    *con_cls = r;
    if (framing_is_bad(connection, &framing, &e)) {
        r->refused = r->close = true;
        http_reply_error(r, &e);
        return proceed(r, connection);
    }
    judge_header(r, path, method, &framing);
    uint64_t length = announced(connection);
    if (!r->refused && length > h->config.body_bytes_max)
        too_large(r);
    /* the client waits for our word, or would send for long: say it now, then close */
    bool waits = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Expect") != NULL;
    if (r->refused && (waits || length > DROP_FACTOR * (uint64_t)h->config.body_bytes_max)) {
        r->close = true;
        return proceed(r, connection);
    }
    return MHD_YES;
}

static enum MHD_Result collect(struct http_request *r, const char *data, size_t n)
{
    if (!r->refused) {
        buf_add(&r->body, data, n);
        if (!r->body.failed)
            return MHD_YES;
        buf_free(&r->body);
        too_large(r);
    }
    r->dropped += n;
    return r->dropped <= DROP_FACTOR * r->http->config.body_bytes_max ? MHD_YES : MHD_NO;
}

static enum MHD_Result on_access(void *cls, struct MHD_Connection *connection, const char *path,
                                 const char *method, const char *version, const char *data,
                                 size_t *n, void **con_cls)
{
    struct http_request *r = *con_cls;
    (void)version;
    if (!r)
        return first_call(cls, connection, path, method, con_cls);
    if (*n > 0) {
        enum MHD_Result result = collect(r, data, *n);
        *n = 0;
        return result;
    }
    if (!r->handled && !r->refused) {
        r->handled = true;
        r->route->handler(r->http->config.ctx, r);
    }
    return proceed(r, connection);
}

static void on_completed(void *cls, struct MHD_Connection *connection, void **con_cls,
                         enum MHD_RequestTerminationCode why)
{
    struct http_request *r = *con_cls;
    (void)cls;
    (void)connection;
    if (!r)
        return;
    *con_cls = NULL;
    pthread_mutex_lock(&r->lock);
    r->connection = NULL;
    r->suspended = false;
    bool sent = r->phase == PHASE_QUEUED && !r->gone &&
                why == MHD_REQUEST_TERMINATED_COMPLETED_OK && (!r->streaming || r->stream_ended);
    pthread_mutex_unlock(&r->lock);
    http_watch_remove(r->http->watch, r->ticket);
    request_unlink(r);
    if (r->end)
        r->end(r->end_user, sent);
    http_release(r);
}

/* On the watch thread. */
static void on_hangup(void *user)
{
    struct http_request *r = user;
    pthread_mutex_lock(&r->lock);
    if (r->connection)
        drop(r);
    pthread_mutex_unlock(&r->lock);
}

/* ---- opening and closing ---- */

enum status http_open(const struct http_config *config, struct http **out, struct err *err)
{
    enum status st = OK;
    int fd = -1;
    struct http *h = calloc(1, sizeof *h);
    if (!h)
        return base_fail(err, ERR_NOMEM, "http: no memory");
    h->config = *config;
    pthread_mutex_init(&h->lock, NULL);
    TRY(http_listen_on(config->host, config->port, &fd, &h->port, err));
    TRY(http_watch_open(on_hangup, &h->watch, err));
    struct MHD_OptionItem options[] = {
        {MHD_OPTION_LISTEN_SOCKET, fd, NULL},
        {MHD_OPTION_CONNECTION_LIMIT, config->connections_max, NULL},
        {MHD_OPTION_CONNECTION_TIMEOUT, config->idle_timeout_s, NULL},
        {MHD_OPTION_NOTIFY_COMPLETED, (intptr_t)on_completed, NULL},
        /* the library wants no pool of one */
        {config->threads > 1 ? MHD_OPTION_THREAD_POOL_SIZE : MHD_OPTION_END, config->threads, NULL},
        {MHD_OPTION_END, 0, NULL},
    };
    h->daemon = MHD_start_daemon(MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME, 0, NULL,
                                 NULL, on_access, h, MHD_OPTION_ARRAY, options, MHD_OPTION_END);
    if (!h->daemon) {
        st = base_fail(err, ERR_INTERNAL, "http: the server did not start");
        goto out;
    }
    fd = -1; /* the daemon's */
    *out = h;
    h = NULL;
out:
    if (fd >= 0)
        close(fd);
    http_close(h);
    return st;
}

int32_t http_port(const struct http *h)
{
    return h->port;
}

void http_close(struct http *h)
{
    if (!h)
        return;
    pthread_mutex_lock(&h->lock);
    h->closing = true;
    for (struct http_request *r = h->requests; r; r = r->next) {
        pthread_mutex_lock(&r->lock);
        if (r->connection)
            drop(r);
        pthread_mutex_unlock(&r->lock);
    }
    pthread_mutex_unlock(&h->lock);
    if (h->daemon)
        MHD_stop_daemon(h->daemon);
    http_watch_close(h->watch);
    pthread_mutex_destroy(&h->lock);
    free(h);
}
