/* DESIGN: a browser takes what ends in a number for an IPv4 address or for a fault (the URL
 * standard, "ends in a number checker"), so a last label of digits is enough to know one. */
#include "server/http/http_host.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

size_t http_host_of_target(const char *target, size_t n, const char **host, size_t *host_n)
{
    static const char *const schemes[] = {"http://", "https://"};
    *host = NULL;
    *host_n = 0;
    for (size_t i = 0; i < ARRAY_LEN(schemes); i++) {
        const size_t k = strlen(schemes[i]);
        if (n < k || strncasecmp(target, schemes[i], k) != 0)
            continue;
        *host = target + k;
        while (k + *host_n < n && !strchr("/?#", (*host)[*host_n]))
            ++*host_n;
        return k + *host_n;
    }
    return 0;
}

/* One entry of --allowed-hosts; commas and blanks are between them. */
static const char *next_entry(const char *at, size_t *n)
{
    at += strspn(at, ", ");
    *n = strcspn(at, ", ");
    return at;
}

static bool is_name(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)text[i]) && !strchr("-._", text[i]))
            return false;
    return n > 0 && text[0] != '.';
}

enum status http_host_check(const char *hosts, struct err *err)
{
    size_t n = 0;
    if (!hosts)
        return OK;
    const char *at = next_entry(hosts, &n);
    if (n == 0)
        return base_fail(err, ERR_USAGE, "--allowed-hosts: no name; expected NAME, *.NAME or *");
    for (; n > 0; at = next_entry(at + n, &n)) {
        const bool below = n > 2 && at[0] == '*' && at[1] == '.';
        if (!(n == 1 && *at == '*') && !is_name(below ? at + 2 : at, below ? n - 2 : n))
            return base_fail(err, ERR_USAGE,
                             "--allowed-hosts: \"%.*s\" is no name of a host; expected NAME, "
                             "*.NAME or *, several with commas between, without http:// or a port",
                             n < 100 ? (int)n : 100, at);
    }
    return OK;
}

/* "127.0.0.1"; no NAME.1 is one of a host. */
static bool is_address(const char *host, size_t n)
{
    size_t digits = 0;
    while (digits < n && isdigit((unsigned char)host[n - digits - 1]))
        digits++;
    return digits > 0 && (digits == n || host[n - digits - 1] == '.');
}

static bool is_below(const char *host, size_t n, const char *domain, size_t domain_n)
{
    return n > domain_n && strncasecmp(host + n - domain_n, domain, domain_n) == 0;
}

static bool matches(const char *entry, size_t entry_n, const char *host, size_t n)
{
    if (entry[0] == '*')
        return entry_n == 1 || is_below(host, n, entry + 1, entry_n - 1);
    return n == entry_n && strncasecmp(host, entry, n) == 0;
}

bool http_host_allows(const char *hosts, const char *host, size_t n)
{
    if (!hosts || n == 0 || host[0] == '[') /* [::1]:80 */
        return true;
    const char *colon = memchr(host, ':', n);
    n = colon ? (size_t)(colon - host) : n;
    if (n > 0 && host[n - 1] == '.') /* the same name, from the root */
        n--;
    if (n == 0 || !memchr(host, '.', n) || is_address(host, n))
        return true;
    size_t k = 0;
    for (const char *at = next_entry(hosts, &k); k > 0; at = next_entry(at + k, &k))
        if (matches(at, k, host, n))
            return true;
    return false;
}
