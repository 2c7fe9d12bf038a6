/* The only way into the HTTP library for bytes of clients. libmicrohttpd has no hook on its
 * sockets; it reads them with recv(), which this file defines for the whole program. On a socket
 * that was opened here it hands over whole heads that the guard has passed, and bodies framed as
 * their heads say; what is refused the library never sees. On all others it is the kernel's recv().
 *
 * All calls for one socket come from the connection's HTTP thread. */
#ifndef TESSERA_SERVER_HTTP_HTTP_INTAKE_H
#define TESSERA_SERVER_HTTP_HTTP_INTAKE_H

#include "config/base.h"
#include "server/http/http_limits.h"
#include "server/http/http_peer.h"
#include "server/http/http_route.h"

#define HTTP_INTAKE_HEAD_MAX 16384 /* the most that limits->header_bytes may be */

/* From now on what is read from fd is judged. limits, routes (by which errors are written) and peer
 * are borrowed until the close. False without memory, or for a descriptor beyond a million. */
bool http_intake_open(int fd, const struct http_limits *limits, const struct http_routes *routes,
                      struct http_peer *peer) MUST_USE;
/* Before the socket is closed; one that was not opened is fine. */
void http_intake_close(int fd);

/* True while a request that was handed over is unanswered. A request of which this is not true came
 * past this file. */
bool http_intake_has_request(int fd);
/* The oldest of them is over; is_last: the connection is being closed. The peer waits for the next
 * one, or a later request, refused meanwhile, is told so. */
void http_intake_done(int fd, bool is_last);

#endif
