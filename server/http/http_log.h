/* The log's lines about answers that are nobody else's: of requests that were refused before they
 * became work, and of the small ones. At debug level only, or a flood of them would fill disks. */
#ifndef TESSERA_SERVER_HTTP_HTTP_LOG_H
#define TESSERA_SERVER_HTTP_HTTP_LOG_H

#include "config/base.h"

struct sockaddr;

struct http_log_answer {
    const char *id;
    int32_t status;
    const char *path;              /* as it was asked for: any bytes; NULL: not known */
    const struct sockaddr *client; /* NULL: not known */
    const char *error;             /* code; NULL: none */
};

void http_log_answer(const struct http_log_answer *a);

#endif
