/* The gate: accepts connections, and looks at the first request's head while it is still in the
 * kernel. A whole and good head lets the connection in, to the HTTP library; a bad one is answered
 * here; one that does not come in time is cut here. So the library meets neither malformed first
 * requests nor connections on which nothing was asked yet.
 *
 * One thread, which sleeps in epoll. When there is no room (--max-connections, or the system has no
 * descriptors left) the one who has waited longest at the gate makes room; when nobody has
 * waited there for a second, nobody is accepted until someone has left. */
#ifndef TESSERA_SERVER_HTTP_HTTP_GATE_H
#define TESSERA_SERVER_HTTP_HTTP_GATE_H

#include "config/base.h"
#include "server/http/http_limits.h"
#include "server/http/http_route.h"

#include <sys/socket.h>

struct http_gate;

struct http_gate_config {
    int listener; /* stays the caller's */
    const struct http_limits *limits;
    const struct http_routes *routes; /* by which errors are written */
    /* The connection is let in: fd becomes the callee's. False: it could not, and fd is closed.
     * On the gate's thread. */
    bool (*admit)(void *ctx, int fd, const struct sockaddr *address, socklen_t size);
    /* Some times a second while anyone is inside. On the gate's thread. */
    void (*tick)(void *ctx, int64_t now_ns);
    void *ctx;
};

enum status http_gate_open(const struct http_gate_config *config, struct http_gate **out,
                           struct err *err) MUST_USE;
/* Nobody is let in any more, and no callback runs. NULL is fine. */
void http_gate_stop(struct http_gate *g);
void http_gate_close(struct http_gate *g); /* NULL is fine */
/* A connection that was let in has arrived in the library; then it is closed. Any thread, before
 * http_gate_close. The library may lose one before it arrives, and tells nobody. */
void http_gate_arrived(struct http_gate *g);
void http_gate_left(struct http_gate *g);
/* Hardly any room is left: connections should not be kept open without need. Any thread. */
bool http_gate_is_crowded(const struct http_gate *g);

#endif
