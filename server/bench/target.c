#include "server/bench/target.h"

#include "config/jdoc.h"
#include "config/utf8.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#define HEAD_BYTES_MAX 4096 /* of a request, without its key */

static enum status bad_url(const char *url, const char *why, struct err *err)
{
    return base_fail(err, ERR_USAGE, "\"%.200s\" %s; expected http://HOST[:PORT][/v1]", url, why);
}

/* The path of the endpoint and of the API's root, from whatever path was given. */
static void set_paths(struct target *t, const char *path, size_t n)
{
    while (n > 0 && path[n - 1] == '/')
        n--;
    snprintf(t->path, sizeof t->path, "%.*s", (int)n, path);
    t->is_chat = base_ends_with(t->path, "/chat/completions");
    if (!base_ends_with(t->path, "/completions"))
        snprintf(t->path, sizeof t->path, "%.*s/completions", (int)n, n > 0 ? path : "/v1");
    if (n == 0)
        snprintf(t->path, sizeof t->path, "/v1/completions");
    size_t tail = strlen(t->is_chat ? "/chat/completions" : "/completions");
    snprintf(t->base, sizeof t->base, "%.*s", (int)(strlen(t->path) - tail), t->path);
}

/* The resolver would cut a larger number to 16 bits, and another server be asked. */
static bool is_port(const char *text)
{
    const size_t digits = strspn(text, "0123456789");
    const long port = digits <= 5 ? strtol(text, NULL, 10) : 0;
    return text[digits] == '\0' && port >= 1 && port <= 65535;
}

/* "host", "host:port", "[v6]", "[v6]:port" */
static bool split_host(const char *from, char *host, size_t cap, const char **port)
{
    const char *close = from[0] == '[' ? strchr(from, ']') : NULL;
    const char *colon = strrchr(close ? close : from, ':');
    const char *begin = close ? from + 1 : from;
    size_t n = close ? (size_t)(close - begin) : colon ? (size_t)(colon - from) : strlen(from);
    *port = colon ? colon + 1 : "80";
    if (n == 0 || n >= cap || (from[0] == '[' && !close) || !is_port(*port))
        return false;
    memcpy(host, begin, n);
    host[n] = '\0';
    return true;
}

bool target_is_url(const char *word)
{
    const size_t n = strcspn(word, "/");
    size_t port = n;
    while (port > 0 && isdigit((unsigned char)word[port - 1]))
        port--;
    return strstr(word, "://") ||
           (port > 1 && port < n && word[port - 1] == ':' && access(word, F_OK) != 0);
}

enum status target_parse(const char *url, struct target *out, struct err *err)
{
    struct target t = {.is_chat = false};
    char name[sizeof t.host];
    const char *port;
    if (strncmp(url, "https://", 8) == 0)
        return bad_url(url,
                       "needs TLS, which this client does not speak: name the server itself, "
                       "or a local proxy",
                       err);
    const bool full = strncmp(url, "http://", 7) == 0;
    if (!full && (strstr(url, "://") || !target_is_url(url)))
        return bad_url(url, "is not a URL of a server", err);
    const char *host = full ? url + 7 : url;
    size_t n = strcspn(host, "/");
    const char *path = host + n;
    if (n == 0 || n >= sizeof t.host || memchr(host, '@', n))
        return bad_url(url, "names no host", err);
    if (strlen(path) + sizeof "/v1/chat/completions" > sizeof t.path)
        return bad_url(url, "has a long path", err);
    for (const char *c = host; *c; c++)
        if (!isgraph((unsigned char)*c) || strchr("?#\\\"", *c))
            return bad_url(url, "has a query, a fragment, or a character that no URL has", err);
    memcpy(t.host, host, n);
    if (!split_host(t.host, name, sizeof name, &port))
        return bad_url(url, "names no host, or no port from 1 to 65535", err);
    set_paths(&t, path, strlen(path));
    *out = t;
    return OK;
}

void target_chat(struct target *t)
{
    const size_t n = strlen(t->base); /* target_parse has left room */
    memcpy(t->path, t->base, n);
    snprintf(t->path + n, sizeof t->path - n, "/chat/completions");
    t->is_chat = true;
}

enum status target_check(const char *model, const char *api_key, struct err *err)
{
    if (model && (strlen(model) >= TARGET_NAME_MAX || !utf8_is_plain(model)))
        return base_fail(err, ERR_USAGE, "--model: not a name, or too long");
    for (const char *c = api_key; c && *c; c++)
        if (!isgraph((unsigned char)*c))
            return base_fail(err, ERR_USAGE, "--api-key: blanks and controls cannot be sent");
    return OK;
}

static void set_timeout(int fd, double seconds)
{
    struct timeval t = {.tv_sec = (time_t)seconds,
                        .tv_usec = (suseconds_t)((seconds - floor(seconds)) * 1e6)};
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
}

/* A connected blocking socket, or -1 with errno. */
static int dial(const struct sockaddr *address, socklen_t len, double timeout_s)
{
    int fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    set_timeout(fd, timeout_s);
    if (connect(fd, address, len) == 0)
        return fd;
    int saved = errno == EINPROGRESS ? ETIMEDOUT : errno;
    close(fd);
    errno = saved;
    return -1;
}

enum status target_resolve(struct target *t, double timeout_s, struct err *err)
{
    char host[sizeof t->host];
    const char *port;
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    CHECK(split_host(t->host, host, sizeof host, &port)); /* as target_parse did */
    int rc = getaddrinfo(host, port, &hints, &found);
    if (rc != 0)
        return base_fail(err, ERR_PEER, "cannot find %s: %s", t->host, gai_strerror(rc));
    int fd = -1;
    for (const struct addrinfo *a = found; a && fd < 0; a = a->ai_next) {
        fd = dial(a->ai_addr, a->ai_addrlen, timeout_s);
        if (fd >= 0) {
            memcpy(&t->address, a->ai_addr, a->ai_addrlen);
            t->address_len = a->ai_addrlen;
        }
    }
    int saved = errno;
    freeaddrinfo(found);
    errno = saved;
    if (fd < 0)
        return base_fail_errno(err, ERR_PEER, "no server answers at http://%s", t->host);
    close(fd);
    return OK;
}

void target_write_head(const struct target *t, const char *method, const char *path,
                       size_t body_bytes, bool keep, struct buf *out)
{
    buf_printf(out, "%s %s HTTP/1.1\r\nHost: %s\r\n", method, path, t->host);
    if (!keep)
        buf_puts(out, "Connection: close\r\n");
    buf_puts(out, "User-Agent: tessera/" TESSERA_VERSION "\r\n");
    if (t->api_key)
        buf_printf(out, "Authorization: Bearer %s\r\n", t->api_key);
    if (body_bytes > 0)
        buf_printf(out, "Content-Type: application/json\r\nContent-Length: %zu\r\n", body_bytes);
    buf_puts(out, "\r\n");
}

static enum status send_all(int fd, const struct buf *b)
{
    for (size_t sent = 0; sent < b->len;) {
        ssize_t n = send(fd, b->data + sent, b->len - sent, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return ERR_PEER;
        sent += (size_t)n;
    }
    return OK;
}

bool target_is_stopped(const struct target *t)
{
    struct pollfd stop = {.fd = t->stop_fd, .events = POLLIN};
    return t->stop_fd > 0 && poll(&stop, 1, 0) == 1;
}

/* Until bytes have come, or the end of them; ERR_PEER: not in time, or stopped. */
static enum status await(const struct target *t, int fd, double end, struct err *err)
{
    struct pollfd in[] = {{.fd = fd, .events = POLLIN}, {.fd = t->stop_fd, .events = POLLIN}};
    const nfds_t count = t->stop_fd > 0 ? 2 : 1;
    for (;;) {
        const double left = end - base_now();
        if (left <= 0)
            return base_fail(err, ERR_PEER, "no whole answer in time");
        const int ready = poll(in, count, (int)(left * 1e3) + 1);
        if (ready < 0 && errno != EINTR)
            return base_fail_errno(err, ERR_PEER, "no answer");
        if (ready > 0 && count == 2 && in[1].revents)
            return base_fail(err, ERR_PEER, "stopped");
        if (ready > 0)
            return OK;
    }
}

static enum status receive(const struct target *t, int fd, double end, struct reply *r,
                           struct err *err)
{
    enum status st = OK;
    char bytes[16384];
    while (!reply_is_complete(r)) {
        TRY(await(t, fd, end, err));
        ssize_t n = recv(fd, bytes, sizeof bytes, 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            TRY(base_fail_errno(err, ERR_PEER, "no answer"));
        if ((n == 0 ? reply_close(r, err) : reply_feed(r, bytes, (size_t)n, err)) != OK)
            return ERR_PEER;
    }
out:
    return st;
}

static void ignore_event(void *ctx, const char *data, size_t n)
{
    (void)ctx;
    (void)data;
    (void)n;
}

struct exchange {
    const char *method, *path;
    const struct buf *body;
    double timeout_s;
};

static enum status exchange(const struct target *t, const struct exchange *x, struct reply *r,
                            struct err *err)
{
    enum status st = OK;
    struct buf request;
    struct err cause = {""};
    double end = base_now() + x->timeout_s;
    buf_init(&request,
             HEAD_BYTES_MAX + (t->api_key ? strlen(t->api_key) : 0) + (x->body ? x->body->len : 0));
    int fd = dial((const struct sockaddr *)&t->address, t->address_len, x->timeout_s);
    target_write_head(t, x->method, x->path, x->body ? x->body->len : 0, false, &request);
    if (x->body)
        buf_add(&request, x->body->data, x->body->len);
    if (request.failed)
        st = base_fail(&cause, ERR_NOMEM, "no memory for the request");
    else if (fd < 0 || send_all(fd, &request) != OK)
        st = base_fail_errno(&cause, ERR_PEER, "cannot send");
    TRY(st);
    TRY(receive(t, fd, end, r, &cause));
out:
    if (st != OK)
        base_fail(err, st, "%s http://%s%s: %s", x->method, t->host, x->path, cause.text);
    if (fd >= 0)
        close(fd);
    buf_free(&request);
    return st;
}

enum status target_exchange(const struct target *t, const char *method, const char *path,
                            const struct buf *request_body, double timeout_s, int32_t *http_status,
                            struct buf *body, struct err *err)
{
    const struct exchange x = {method, path, request_body, timeout_s};
    struct reply r;
    reply_init(&r, ignore_event, NULL);
    enum status st = exchange(t, &x, &r, err);
    if (st == OK) {
        *http_status = r.http_status;
        buf_add(body, r.body.data, r.body.len);
    }
    reply_free(&r);
    return st;
}

enum status target_post(const struct target *t, const char *path, const struct buf *request_body,
                        double timeout_s, struct reply *r, struct err *err)
{
    const struct exchange x = {"POST", path, request_body, timeout_s};
    return exchange(t, &x, r, err);
}

enum status target_stream(const struct target *t, const struct buf *request_body, double timeout_s,
                          reply_event *on_event, void *ctx, int32_t *http_status, struct buf *body,
                          struct err *err)
{
    struct reply r;
    reply_init(&r, on_event, ctx);
    enum status st = target_post(t, t->path, request_body, timeout_s, &r, err);
    if (st == OK) {
        *http_status = r.http_status;
        buf_add(body, r.body.data, r.body.len);
    }
    reply_free(&r);
    return st;
}

enum status target_model(const struct target *t, double timeout_s, char *name, size_t cap,
                         struct err *err)
{
    enum status st = OK;
    char path[sizeof t->base + 8];
    struct buf body;
    struct jdoc *doc = NULL;
    int32_t http_status = 0;
    struct err ignored;
    buf_init(&body, REPLY_BODY_BYTES_MAX);
    snprintf(path, sizeof path, "%s/models", t->base);
    TRY(target_exchange(t, "GET", path, NULL, timeout_s, &http_status, &body, err));
    const bool is_json =
        http_status == 200 && body.len > 0 &&
        jdoc_parse(body.data, body.len, &jdoc_limits_request, path, &doc, &ignored) == OK;
    const struct jdoc *data = is_json ? jdoc_member(doc, "data", JDOC_ARRAY) : NULL;
    const struct jdoc *first = data && jdoc_size(data) > 0 ? jdoc_at(data, 0) : NULL;
    const struct jdoc *id = jdoc_member(first, "id", JDOC_STRING);
    if (http_status == 401 || http_status == 403)
        st = base_fail(err, ERR_PEER,
                       "http://%s%s: HTTP %d: the server wants a key%s: give --api-key KEY or set "
                       "TESSERA_API_KEY",
                       t->host, path, http_status, t->api_key ? ", and not this one" : "");
    else if (!id || jdoc_string_len(id) >= cap)
        st = base_fail(err, ERR_PEER,
                       "http://%s%s names no model (HTTP %d): is this an OpenAI-style server? "
                       "--model NAME skips the question",
                       t->host, path, http_status);
    else
        snprintf(name, cap, "%s", jdoc_string(id));
out:
    jdoc_close(doc);
    buf_free(&body);
    return st;
}
