/* Whom a request is meant for: the host of its target or of its Host header. Pure.
 *
 * A page of any site can have its own name resolved to an address of its reader's machine ("DNS
 * rebinding"), and is then a page of that server, which may ask and read what it likes. The name
 * still stands in the Host header. */
#ifndef TESSERA_SERVER_HTTP_HTTP_HOST_H
#define TESSERA_SERVER_HTTP_HTTP_HOST_H

#include "config/base.h"

#include <stdbool.h>

/* Names which nobody can have outside this machine and its network. */
#define HTTP_HOST_LOCAL "*.localhost,*.internal"

/* What of a target is before its path: "http://x:80" of "http://x:80/v1" (the absolute form, RFC
 * 9112 section 3.2.2), 0 of "/v1". *host, *host_n: what of that is the host and port. */
size_t http_host_of_target(const char *target, size_t n, const char **host, size_t *host_n);

/* Could each of --allowed-hosts be the name of a host? ERR_USAGE names one that could not. */
enum status http_host_check(const char *hosts, struct err *err) MUST_USE;

/* host: HOST or HOST:PORT. Always allowed are numeric addresses, names without a dot, and no host
 * at all, none of which a page of another site can have; besides, hosts: NAME, *.NAME (all below
 * it) or *, separated by commas. Letters compare without case. NULL: any. */
bool http_host_allows(const char *hosts, const char *host, size_t n);

#endif
