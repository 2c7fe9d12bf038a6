/* The only door to libmicrohttpd: connections in, whole requests out, answers and streams back.
 * What is malformed, too large, too slow or without a key is answered here, before any route.
 *
 * A handler runs on an HTTP thread once the body is there. It answers at once, or keeps the request
 * (http_hold) and answers later from any one thread; the connection sleeps meanwhile. Exactly one
 * answer per request: http_reply, or http_stream_begin .. http_stream_end. Answering a client that
 * has gone is fine and does nothing.
 *
 * Lost wake-ups: each request has one lock. "Nothing to send, so suspend" and "push, so resume"
 * both happen under it. It is the innermost of our locks; only libmicrohttpd's own are taken below
 * it. No callback of ours runs under it. */
#ifndef TESSERA_SERVER_HTTP_HTTP_H
#define TESSERA_SERVER_HTTP_HTTP_H

#include "config/base.h"
#include "config/buf.h"
#include "server/api/api_error.h"
#include "server/http/http_limits.h"
#include "server/http/http_route.h"

struct http;
struct keys;

#define HTTP_ADDRESS_MAX 46 /* of a numeric address */

struct http_config {
    const char *host; /* numeric address */
    int32_t port;     /* 0: any free one */
    int32_t threads;
    struct http_limits limits;
    struct keys *keys;             /* NULL: nobody needs one. The caller's */
    const char *const *open_paths; /* need no key; ends with NULL; static */
    const char *page;              /* path of what browsers get for "/"; NULL: no such. Static */
    const char *cors_origins;      /* as of --cors-origins; NULL: none. Static */
    const char *allowed_hosts;     /* as of http_host_allows; NULL: any. Static */
    struct http_routes routes;
    void *ctx; /* of the handlers, and of answered */
    void (*answered)(void *ctx,
                     int32_t status); /* an answer begins; any thread; NULL: nobody asks */
};

/* ERR_USAGE when the address is not one or is taken. */
enum status http_open(const struct http_config *config, struct http **out,
                      struct err *err) MUST_USE;
int32_t http_port(const struct http *h);
/* Drops what is unanswered (its on_end runs), closes all connections and joins all threads. Held
 * requests stay valid until released. NULL is fine. */
void http_close(struct http *h);

/* ---- the request; valid in the handler and while held; text is valid in the handler only ---- */

/* Of the route. Static. */
const char *http_path(const struct http_request *r);
/* Where the client is. Only in the handler. */
void http_address(const struct http_request *r, char out[HTTP_ADDRESS_MAX]);
/* Path after the route's prefix; "" for an exact route. */
const char *http_rest(const struct http_request *r);
/* The client's X-Request-Id, or one of ours. Valid while held. */
const char *http_id(const struct http_request *r);
/* Whose request this is: that of the key (0 without keys), and who is to be treated fairly, which
 * is the key's owner, else the address. Valid while held. */
uint64_t http_key(const struct http_request *r);
uint64_t http_client(const struct http_request *r);
/* The body becomes the caller's; *body must be initialised afterwards by nobody else. */
void http_take_body(struct http_request *r, struct buf *body);
/* Calls end(user, sent) exactly once, on an HTTP thread, when the exchange is over: the answer is
 * sent (true), or the client has gone (false). Only in the handler. */
void http_on_end(struct http_request *r, void (*end)(void *user, bool sent), void *user);
void http_hold(struct http_request *r);
void http_release(struct http_request *r);

/* ---- answers: any thread ---- */

/* Room for an answer, or a piece of a stream, until it is sent; to be asked first where it may be
 * large. False: there is none, so answer with http_no_room. */
bool http_reserve(struct http_request *r, size_t n) MUST_USE;
void http_no_room(struct api_error *e);
/* body is emptied. content_type is static. */
void http_reply(struct http_request *r, int32_t status, const char *content_type, struct buf *body);
/* The same with status 200 for a page in a browser, or a part of one: with headers that let it load
 * and ask nothing but this server. */
void http_reply_page(struct http_request *r, const char *content_type, struct buf *body);
void http_reply_error(struct http_request *r, const struct api_error *e);
/* Headers of an event stream with status 200. */
void http_stream_begin(struct http_request *r);
/* Copies n bytes. False when the client has gone or reads too slowly: it is being dropped. */
bool http_stream_push(struct http_request *r, const void *bytes, size_t n);
/* The same for a buffer, whose memory may be taken: then it is empty. by_right: one of the few
 * pieces that may be large, such as the last: its own size makes no reader slow. */
bool http_stream_push_buf(struct http_request *r, struct buf *piece, bool by_right);
/* Ends the stream; with ok = false the connection is cut, so that nobody takes it for complete. */
void http_stream_end(struct http_request *r, bool ok);

#endif
