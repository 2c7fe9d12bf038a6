/* DESIGN: an answer is a few hundred bytes into an empty socket buffer, so one send will do. */
#include "server/http/http_refusal.h"

#include "config/log.h"
#include "server/http/http_id.h"
#include "server/http/http_log.h"

#include <microhttpd.h>
#include <sys/socket.h>

/* Of the process, as the descriptors are: who sends knows of no more than one of them. */
static void (*observe)(void *ctx, int32_t status);
static void *observe_ctx;

void http_refusal_observe(void (*fn)(void *ctx, int32_t status), void *ctx)
{
    observe = fn;
    observe_ctx = ctx;
}

/* Only a path that is one of ours is told: what is malformed may be the middle of anything, such as
 * of a prompt. */
static void tell(int fd, const struct api_error *e, const struct http_route *route, const char *id)
{
    union {
        struct sockaddr any;
        struct sockaddr_storage room;
    } peer;
    socklen_t size = sizeof peer;
    if (!log_shows(LOG_DEBUG))
        return;
    const bool known = getpeername(fd, &peer.any, &size) == 0;
    http_log_answer(&(struct http_log_answer){.id = id,
                                              .status = e->http_status,
                                              .path = route ? route->path : NULL,
                                              .client = known ? &peer.any : NULL,
                                              .error = api_error_code(e)});
}

void http_refusal_send(int fd, const struct api_error *e, const struct http_route *route)
{
    const enum api_error_form form = route ? route->errors : API_ERROR_OPENAI;
    struct buf body, all;
    char id[HTTP_ID_MAX + 1];
    buf_init(&body, 4096);
    buf_init(&all, 8192);
    http_id_choose(NULL, id);
    if (form == API_ERROR_ANTHROPIC)
        api_error_write_anthropic(e, id, &body);
    else
        api_error_write(e, &body);
    buf_printf(&all, "HTTP/1.1 %d %s\r\n", e->http_status,
               MHD_get_reason_phrase_for((unsigned int)e->http_status));
    buf_printf(&all, "Content-Type: application/json\r\nContent-Length: %zu\r\n", body.len);
    if (e->retry_after_s > 0)
        buf_printf(&all, "Retry-After: %d\r\n", e->retry_after_s);
    if (form == API_ERROR_ANTHROPIC) /* whose clients look for it under this name */
        buf_printf(&all, "Request-Id: %s\r\n", id);
    buf_printf(&all, "X-Request-Id: %s\r\nConnection: close\r\n\r\n", id);
    buf_add(&all, body.data, body.len);
    if (!body.failed && !all.failed)
        (void)!send(fd, all.data, all.len, MSG_DONTWAIT | MSG_NOSIGNAL);
    buf_free(&body);
    buf_free(&all);
    if (observe)
        observe(observe_ctx, e->http_status);
    tell(fd, e, route, id);
}
