/* The connections that the HTTP library has, and what each is about. The library's own timeout
 * starts again with every byte; these deadlines do not, so that a client that drips is cut. */
#ifndef TESSERA_SERVER_HTTP_HTTP_PEER_H
#define TESSERA_SERVER_HTTP_HTTP_PEER_H

#include "config/base.h"
#include "server/http/http_limits.h"

enum http_peer_phase {
    HTTP_PEER_IDLE,    /* between requests */
    HTTP_PEER_HEAD,    /* sends a request's head */
    HTTP_PEER_BODY,    /* sends its body */
    HTTP_PEER_BUSY,    /* waits for us: no deadline */
    HTTP_PEER_SENDING, /* has something to read that it does not take */
    HTTP_PEER_LEAVING, /* is refused, and may read why */
    HTTP_PEER_CUT,     /* is being dropped, and stays in this phase */
};

struct http_peer;
struct http_peers;

enum status http_peer_open(const struct http_limits *limits, struct http_peers **out,
                           struct err *err) MUST_USE;
void http_peer_close(struct http_peers *all); /* when all have left; NULL is fine */

/* A new connection sends a head. NULL without memory. */
struct http_peer *http_peer_enter(struct http_peers *all, int fd);
/* Before its socket is closed. */
void http_peer_leave(struct http_peers *all, struct http_peer *p);
/* Enters a phase, whose time starts now. False when the connection has been cut. Any thread. */
bool http_peer_move(struct http_peer *p, enum http_peer_phase to);
/* Cuts those whose time is over (a request that came in part is answered 408), and those who have
 * gone before their request was whole. In a hurry, those who are waited for have a tenth of the
 * time: they hold places that others need. */
void http_peer_expire(struct http_peers *all, int64_t now_ns, bool hurry);
int http_peer_fd(const struct http_peer *p);

#endif
