/* DESIGN: libmicrohttpd with internal epoll threads moves bytes; whatever needs time runs elsewhere
 * while the connection is suspended. A request has two owners, the connection and whoever holds it,
 * hence the count. The intake lets only well-formed requests through, so the library never finds a
 * fault by itself. What can be decided from the head alone is, in this order: host, key, route,
 * size. Bodies that are refused are read and dropped up to a bound, since closing with unread bytes
 * would reset the connection and take our answer with it. */
#include "server/http/http_accept.h"
#include "server/http/http_cors.h"
#include "server/http/http_host.h"
#include "server/http/http_intake.h"
#include "server/http/http_listen.h"
#include "server/http/http_refusal.h"
#include "server/http/http_request.h"
#include "server/keys.h"

#include <errno.h>
#include <microhttpd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define DROP_FACTOR 8           /* of a refused body, this many times the limit is read */
#define MEMORY_USUAL (32 << 10) /* of a connection in the library: room for the largest head */
#define HEADERS_USUAL 100       /* of so many headers */
#define HEADER_MEMORY 80        /* for each more; 56 in its version 0.9.75 */

/* ---- life of a request ---- */

/* NULL without memory. */
static struct http_request *request_open(struct http *h, struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    struct http_peer *peer = info ? info->socket_context : NULL;
    struct http_request *r = peer ? calloc(1, sizeof *r) : NULL;
    if (!r)
        return NULL;
    r->http = h;
    r->connection = connection;
    atomic_init(&r->refs, 1);
    r->peer = peer;
    buf_init(&r->body, h->config.limits.body_bytes);
    r->unsent_max = h->config.limits.unsent_bytes;
    buf_init(&r->out, r->unsent_max);
    pthread_mutex_init(&r->lock, NULL);
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

const char *http_path(const struct http_request *r)
{
    return r->route->path;
}

const struct sockaddr *http_request_peer(struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    return info ? info->client_addr : NULL;
}

void http_address(const struct http_request *r, char out[HTTP_ADDRESS_MAX])
{
    const struct sockaddr *peer = http_request_peer(r->connection);
    _Static_assert(HTTP_ADDRESS_MAX == HTTP_LISTEN_ADDRESS_MAX, "of one kind");
    snprintf(out, HTTP_ADDRESS_MAX, "?");
    if (peer)
        http_listen_address(peer, out);
}

const char *http_rest(const struct http_request *r)
{
    return r->rest;
}

const char *http_id(const struct http_request *r)
{
    return r->id;
}

uint64_t http_key(const struct http_request *r)
{
    return r->key;
}

uint64_t http_client(const struct http_request *r)
{
    return r->client;
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

/* ---- receiving: HTTP threads ---- */

static void refuse(struct http_request *r, const struct api_error *e)
{
    r->refused = true;
    http_reply_error(r, e);
}

static void refuse_as(struct http_request *r, int32_t status, const char *code, const char *text)
{
    struct api_error e = {0};
    api_error_set(&e, status, code, "%s", text);
    refuse(r, &e);
}

static void refuse_body(struct http_request *r)
{
    struct api_error e = {0};
    api_error_set(&e, 413, "body_too_large", "the request body is larger than %zu bytes",
                  r->http->config.limits.body_bytes);
    refuse(r, &e);
}

static const char *header_of(const struct http_request *r, const char *name)
{
    return MHD_lookup_connection_value(r->connection, MHD_HEADER_KIND, name);
}

static uint64_t hash_of_address(struct MHD_Connection *connection)
{
    const struct sockaddr *peer = http_request_peer(connection);
    return peer ? http_listen_hash(peer) : 0;
}

static bool is_open(const struct http_config *c, const char *path)
{
    for (const char *const *open = c->open_paths; *open; open++)
        if (strcmp(*open, path) == 0)
            return true;
    return false;
}

/* Before routing, so that a path forgotten anywhere is a path denied. */
static bool has_key(struct http_request *r, const char *path)
{
    const struct http_config *c = &r->http->config;
    if (c->keys)
        r->key = keys_check(c->keys, header_of(r, "Authorization"), header_of(r, "X-Api-Key"));
    r->client = r->key ? r->key : hash_of_address(r->connection);
    return !c->keys || r->key || is_open(c, path);
}

static bool is_preflight(const struct http_request *r, const char *method)
{
    return strcmp(method, "OPTIONS") == 0 && header_of(r, "Origin") &&
           header_of(r, "Access-Control-Request-Method");
}

static void reply_nothing(struct http_request *r)
{
    struct buf empty;
    buf_init(&empty, 0);
    r->refused = true;
    http_reply(r, 204, NULL, &empty);
}

static void refuse_method(struct http_request *r, const char *method)
{
    struct api_error e = {0};
    api_error_set(&e, 405, "method_not_allowed",
                  "this path does not have the method %.32s: it has %s", method, r->allow);
    refuse(r, &e);
}

static void find_route(struct http_request *r, const char *path, const char *method)
{
    const struct http_config *c = &r->http->config;
    int allowed;
    r->route = http_route_find(&c->routes, method, path, &r->rest, &allowed);
    if (!r->route && allowed)
        snprintf(r->allow, sizeof r->allow, "%s", http_route_allow(allowed));
    if (allowed && strcmp(method, "OPTIONS") == 0)
        reply_nothing(r);
    else if (!allowed)
        refuse_as(r, 404, "not_found", "no such path; GET / lists those that there are");
    else if (!r->route)
        refuse_method(r, method);
}

/* Bytes that the client announces; 0 for none or a chunked body. The guard has seen that it is a
 * number. */
static uint64_t announced(const struct http_request *r)
{
    const char *text = header_of(r, "Content-Length");
    return text ? strtoull(text, NULL, 10) : 0;
}

/* "application/json", "application/problem+json; charset=utf-8". No type at all is fine, but from a
 * web page, which can send that and other types to a server on its reader's machine without asking.
 */
static bool is_json(const struct http_request *r)
{
    const char *type = header_of(r, "Content-Type");
    size_t n = type ? strcspn(type, "; \t") : 0;
    if (!type)
        return !header_of(r, "Origin");
    return (n == 16 && strncasecmp(type, "application/json", n) == 0) ||
           (n > 5 && strncasecmp(type + n - 5, "+json", 5) == 0);
}

/* The library has read this request in a way that we do not know of: anything may be in it. */
static void refuse_unseen(struct http_request *r)
{
    base_log(LOG_ERROR,
             "http: libmicrohttpd %s reads connections past the guard: every request is "
             "refused. Use a version that calls recv()",
             MHD_get_version());
    r->close = true;
    refuse_as(r, 500, "internal_error", "the server cannot check requests");
}

/* The client's wish, or its way: HTTP/1.0 keeps a connection only when asked to. */
static bool is_last(const struct http_request *r, const char *version)
{
    const char *wish = header_of(r, "Connection");
    return strcmp(version, "HTTP/1.0") == 0 ? !wish || !strcasestr(wish, "keep-alive")
                                            : wish && strcasestr(wish, "close");
}

/* The path that is meant: browsers get a page where others get a text. */
static const char *choose_path(const struct http_request *r, const char *path, const char *method)
{
    const char *page = r->http->config.page;
    const bool reads = strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0;
    const bool page_meant =
        page && reads && strcmp(path, "/") == 0 && http_accept_html(header_of(r, "Accept"));
    return page_meant ? page : path;
}

/* Is the request meant for this server? What its target says counts before its header (RFC 9112
 * section 3.2.2). */
static bool is_ours(struct http_request *r, const char *host, size_t n)
{
    const char *header = header_of(r, "Host");
    if (!host && header) {
        host = header;
        n = strlen(header);
    }
    if (!host || http_host_allows(r->http->config.allowed_hosts, host, n))
        return true;
    struct api_error e = {0};
    api_error_set(&e, 421, "misdirected_request",
                  "this server does not answer as \"%.*s\": start it with --allowed-hosts NAME if "
                  "that is a name of it, or with keys",
                  n < 100 ? (int)n : 100, host);
    refuse(r, &e);
    return false;
}

/* Decides what can be decided from the head alone. */
static void judge_head(struct http_request *r, const char *target, const char *method)
{
    const struct http_config *c = &r->http->config;
    const char *host;
    size_t host_n;
    target += http_host_of_target(target, strlen(target), &host, &host_n);
    r->path = *target ? target : "/";
    const char *path = choose_path(r, r->path, method);
    http_id_choose(header_of(r, "X-Request-Id"), r->id);
    r->errors = http_route_errors(&c->routes, path);
    if (!http_intake_has_request(http_peer_fd(r->peer))) {
        refuse_unseen(r);
    } else if (!is_ours(r, host, host_n)) {
        return;
    } else if (is_preflight(r, method)) {
        r->preflight = true;
        reply_nothing(r);
    } else if (!has_key(r, path)) {
        refuse_as(
            r, 401, "invalid_api_key",
            "this server wants one of its keys: Authorization: Bearer KEY, or X-Api-Key: KEY");
    } else {
        find_route(r, path, method);
    }
    if (!r->refused && strcmp(method, "POST") == 0 && !is_json(r))
        refuse_as(r, 415, "not_json",
                  "the request body must be JSON: send Content-Type: application/json");
    if (!r->refused && announced(r) > c->limits.body_bytes)
        refuse_body(r);
}

static enum MHD_Result first_call(struct http_request *r, const char *path, const char *method,
                                  const char *version)
{
    judge_head(r, path, method);
    r->last = is_last(r, version);
    /* the client waits for our word, or would send for long: say it now, then close */
    bool at_once = r->close || header_of(r, "Expect") ||
                   announced(r) > DROP_FACTOR * (uint64_t)r->http->config.limits.body_bytes;
    if (r->refused && at_once)
        r->close = true;
    else
        at_once = false;
    if (!http_peer_move(r->peer, at_once ? HTTP_PEER_BUSY : HTTP_PEER_BODY))
        return MHD_NO;
    return !at_once || http_answer_proceed(r) ? MHD_YES : MHD_NO;
}

/* Adds to the body, which counts until the exchange ends: what is made of it is as large. */
static void keep(struct http_request *r, const char *data, size_t n)
{
    struct http *h = r->http;
    size_t was = r->body.cap;
    bool large = n > h->config.limits.body_bytes - r->body.len;
    buf_add(&r->body, data, n);
    size_t more = r->body.cap - was;
    r->held += more;
    const size_t all = atomic_fetch_add(&h->bodies, more) + more;
    const bool fits = all <= h->config.limits.bodies_bytes || all == r->held; /* one always does */
    if (large)
        refuse_body(r);
    else if (!fits || r->body.failed)
        refuse_as(r, 503, "out_of_capacity", "too many large requests at once, try again later");
    if (r->refused) {
        buf_free(&r->body);
        atomic_fetch_sub(&h->bodies, r->held);
        r->held = 0;
    }
}

static enum MHD_Result collect(struct http_request *r, const char *data, size_t n)
{
    if (!r->refused)
        keep(r, data, n);
    if (!r->refused)
        return MHD_YES;
    r->dropped += n;
    return r->dropped <= DROP_FACTOR * r->http->config.limits.body_bytes ? MHD_YES : MHD_NO;
}

static enum MHD_Result on_access(void *cls, struct MHD_Connection *connection, const char *path,
                                 const char *method, const char *version, const char *data,
                                 size_t *n, void **con_cls)
{
    struct http_request *r = *con_cls;
    if (!r) {
        *con_cls = r = request_open(cls, connection);
        return r ? first_call(r, path, method, version) : MHD_NO;
    }
    if (*n > 0) {
        enum MHD_Result result = collect(r, data, *n);
        *n = 0;
        return result;
    }
    if (!r->handled) {
        r->handled = true;
        if (!http_peer_move(r->peer, HTTP_PEER_BUSY))
            return MHD_NO;
        if (!r->refused)
            r->route->handler(r->http->config.ctx, r);
    }
    return http_answer_proceed(r) ? MHD_YES : MHD_NO;
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
    http_answer_unreserve(r);
    bool sent = r->phase == HTTP_QUEUED && !r->gone && why == MHD_REQUEST_TERMINATED_COMPLETED_OK &&
                (!r->streaming || r->stream_ended);
    pthread_mutex_unlock(&r->lock);
    http_watch_remove(r->http->watch, r->ticket);
    http_intake_done(http_peer_fd(r->peer),
                     r->close || r->last || why != MHD_REQUEST_TERMINATED_COMPLETED_OK);
    atomic_fetch_sub(&r->http->bodies, r->held);
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
        http_answer_drop(r);
    pthread_mutex_unlock(&r->lock);
}

/* ---- connections ---- */

/* On the gate's thread. */
static bool on_admit(void *ctx, int fd, const struct sockaddr *address, socklen_t size)
{
    struct http *h = ctx;
    return MHD_add_connection(h->daemon, fd, address, size) == MHD_YES; /* closes fd if not */
}

/* On the gate's thread. */
static void on_tick(void *ctx, int64_t now_ns)
{
    struct http *h = ctx;
    http_peer_expire(h->peers, now_ns, http_gate_is_crowded(h->gate));
}

/* NULL without memory: nothing of that connection is answered. */
static struct http_peer *welcome(struct http *h, int fd)
{
    struct http_peer *peer = http_peer_enter(h->peers, fd);
    if (!peer || http_intake_open(fd, &h->config.limits, &h->config.routes, peer))
        return peer;
    http_peer_leave(h->peers, peer);
    return NULL;
}

static void on_connection(void *cls, struct MHD_Connection *connection, void **socket_context,
                          enum MHD_ConnectionNotificationCode what)
{
    struct http *h = cls;
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        http_gate_arrived(h->gate);
        const union MHD_ConnectionInfo *info =
            MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
        *socket_context = info ? welcome(h, info->connect_fd) : NULL;
        return;
    }
    if (*socket_context) {
        http_intake_close(http_peer_fd(*socket_context));
        http_peer_leave(h->peers, *socket_context);
    }
    http_gate_left(h->gate);
}

/* ---- opening and closing ---- */

/* What the library may take of a connection: its usual, and more where there may be many headers.
 */
static size_t memory_of(const struct http_limits *l)
{
    const int32_t more = l->headers > HEADERS_USUAL ? l->headers - HEADERS_USUAL : 0;
    return MEMORY_USUAL + (size_t)more * HEADER_MEMORY;
}

static enum status start_daemon(struct http *h, struct err *err)
{
    const struct http_config *c = &h->config;
    struct MHD_OptionItem options[] = {
        {MHD_OPTION_CONNECTION_MEMORY_LIMIT, (intptr_t)memory_of(&c->limits), NULL},
        /* the gate is what limits; each thread of the pool has a share of this */
        {MHD_OPTION_CONNECTION_LIMIT, c->limits.connections + c->threads, NULL},
        /* inactivity: for a client that does not read its answer */
        {MHD_OPTION_CONNECTION_TIMEOUT, (intptr_t)c->limits.idle_s + 1, NULL},
        {MHD_OPTION_NOTIFY_COMPLETED, (intptr_t)on_completed, NULL},
        {MHD_OPTION_NOTIFY_CONNECTION, (intptr_t)on_connection, h},
        /* the library wants no pool of one */
        {c->threads > 1 ? MHD_OPTION_THREAD_POOL_SIZE : MHD_OPTION_END, c->threads, NULL},
        {MHD_OPTION_END, 0, NULL},
    };
    errno = 0; /* what the library leaves there is all that it says */
    h->daemon =
        MHD_start_daemon(MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME |
                             MHD_USE_NO_LISTEN_SOCKET | MHD_USE_ITC,
                         0, NULL, NULL, on_access, h, MHD_OPTION_ARRAY, options, MHD_OPTION_END);
    if (h->daemon)
        return OK;
    return errno ? base_fail_start(err, errno, "http: the server did not start")
                 : base_fail(err, ERR_INTERNAL, "http: the server did not start");
}

enum status http_open(const struct http_config *config, struct http **out, struct err *err)
{
    enum status st = OK;
    struct http *h = calloc(1, sizeof *h);
    if (!h)
        return base_fail(err, ERR_NOMEM, "http: no memory");
    h->config = *config;
    h->listener = -1;
    pthread_mutex_init(&h->lock, NULL);
    h->config.limits.connections = http_listen_capacity(config->limits.connections);
    TRY(http_listen_on(config->host, config->port, &h->listener, &h->port, err));
    TRY(http_watch_open(on_hangup, &h->watch, err));
    TRY(http_peer_open(&h->config.limits, &h->peers, err));
    const struct http_gate_config gate = {
        .listener = h->listener,
        .limits = &h->config.limits,
        .routes = &h->config.routes,
        .admit = on_admit,
        .tick = on_tick,
        .ctx = h,
    };
    http_refusal_observe(config->answered, config->ctx);
    TRY(start_daemon(h, err));
    TRY(http_gate_open(&gate, &h->gate, err));
    *out = h;
    h = NULL;
out:
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
    http_gate_stop(h->gate);
    if (h->listener >= 0)
        close(h->listener);
    pthread_mutex_lock(&h->lock);
    h->closing = true;
    for (struct http_request *r = h->requests; r; r = r->next) {
        pthread_mutex_lock(&r->lock);
        if (r->connection)
            http_answer_drop(r);
        pthread_mutex_unlock(&r->lock);
    }
    pthread_mutex_unlock(&h->lock);
    if (h->daemon)
        MHD_stop_daemon(h->daemon);
    http_watch_close(h->watch);
    http_peer_close(h->peers);
    http_gate_close(h->gate);
    http_refusal_observe(NULL, NULL);
    pthread_mutex_destroy(&h->lock);
    free(h);
}
