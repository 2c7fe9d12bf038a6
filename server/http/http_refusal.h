/* An error answer written straight to a socket: for clients that the HTTP library never sees, or
 * that it still waits for. */
#ifndef TESSERA_SERVER_HTTP_HTTP_REFUSAL_H
#define TESSERA_SERVER_HTTP_HTTP_REFUSAL_H

#include "server/api/api_error.h"
#include "server/http/http_route.h"

/* route: of the path that was asked for, by which the error is written; NULL: none is known. Never
 * blocks; what the socket does not take at once is lost. Says "Connection: close", and leaves the
 * closing to the caller. */
void http_refusal_send(int fd, const struct api_error *e, const struct http_route *route);
/* Who is told of each that is sent, in this process, by the thread that sends it; NULL: nobody.
 * While nothing is sent. */
void http_refusal_observe(void (*fn)(void *ctx, int32_t status), void *ctx);

#endif
