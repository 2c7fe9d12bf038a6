/* DESIGN: an allowed origin is echoed rather than answered with a star, so that one rule serves
 * lists and stars alike; hence Vary: Origin. */
#include "server/http/http_cors.h"

#include <ctype.h>
#include <string.h>

/* "scheme://host" or "scheme://host:port" and no more, in small letters; or "null", which is what
 * local files have. */
static bool is_origin(const char *text, size_t n)
{
    const char *host = memmem(text, n, "://", 3);
    for (size_t i = 0; i < n; i++)
        if (!isgraph((unsigned char)text[i]) || isupper((unsigned char)text[i]))
            return false;
    if (!host)
        return (n == 1 && *text == '*') || (n == 4 && memcmp(text, "null", 4) == 0);
    host += 3;
    const size_t left = n - (size_t)(host - text);
    return host > text + 3 && left > 0 && !memchr(host, '/', left);
}

enum status http_cors_check(const char *origins, struct err *err)
{
    for (const char *at = origins; at && *at;) {
        const size_t n = strcspn(at, ", ");
        if (!is_origin(at, n))
            return base_fail(err, ERR_USAGE,
                             "--cors-origins: \"%.*s\" is no origin; expected *, or "
                             "http://HOST[:PORT] as browsers send it, several with commas between",
                             n < 100 ? (int)n : 100, at);
        at += n;
        at += strspn(at, " ");
        if (*at == ',')
            at += 1 + strspn(at + 1, " ");
    }
    return OK;
}

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
