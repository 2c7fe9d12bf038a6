/* The OpenAPI 3.1 document of the server, made from the rows that check requests. Pure. */
#ifndef TESSERA_SERVER_API_OPENAPI_H
#define TESSERA_SERVER_API_OPENAPI_H

#include "config/buf.h"
#include "server/api/completion.h"

void openapi_write(const struct completion_rules *rules, const char *version, struct buf *out);

#endif
