/* DESIGN: an allowed origin is echoed rather than answered with a star, so that one rule serves
 * lists and stars alike; hence Vary: Origin. */
#include "server/http/http_cors.h"

#include <string.h>

bool http_cors_allows(const char *origins, const char *origin)
{
    if (!origins || !origin || !*origin)
        return false;
    size_t n = strlen(origin);
    for (const char *at = origins; *at;) {
        at += strspn(at, ", ");
        size_t k = strcspn(at, ", ");
        if ((k == 1 && *at == '*') || (k == n && memcmp(at, origin, n) == 0))
            return true;
        at += k;
    }
    return false;
}
