/* Which pages in a browser may read our answers (the Fetch standard, "CORS protocol"). Pure. */
#ifndef TESSERA_SERVER_HTTP_HTTP_CORS_H
#define TESSERA_SERVER_HTTP_HTTP_CORS_H

#include "config/base.h"

#include <stdbool.h>

/* Could each of --cors-origins be what a browser sends? ERR_USAGE names one that could not. */
enum status http_cors_check(const char *origins, struct err *err) MUST_USE;

/* origins: from --cors-origins, separated by commas; "*" is any; NULL is none. Origins compare byte
 * by byte. */
bool http_cors_allows(const char *origins, const char *origin);

#endif
