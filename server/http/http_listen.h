/* A listening socket. */
#ifndef TESSERA_SERVER_HTTP_HTTP_LISTEN_H
#define TESSERA_SERVER_HTTP_HTTP_LISTEN_H

#include "config/base.h"

/* host is a numeric address, port 0 any free one; *bound is the port taken. ERR_USAGE naming both
 * when the address is wrong or taken. The caller closes *fd. */
enum status http_listen_on(const char *host, int32_t port, int *fd, int32_t *bound,
                           struct err *err) MUST_USE;

#endif
