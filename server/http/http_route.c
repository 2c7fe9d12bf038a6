/* DESIGN: a handful of routes, so a walk over the table; it finds the methods of the path too. */
#include "server/http/http_route.h"

#include "server/http/http_host.h"

#include <stdio.h>
#include <string.h>

#define ALLOW_GET 1
#define ALLOW_POST 2
#define PATH_BYTES 256 /* more than any route has that is no prefix */

static bool matches(const struct http_route *route, const char *path, const char **rest)
{
    size_t n = strlen(route->path);
    bool prefix = n > 1 && route->path[n - 1] == '/';
    if (prefix ? strncmp(route->path, path, n) != 0 : strcmp(route->path, path) != 0)
        return false;
    *rest = path + n;
    return true;
}

const struct http_route *http_route_find(const struct http_routes *routes, const char *method,
                                         const char *path, const char **rest, int *allowed)
{
    const char *wanted = strcmp(method, "HEAD") == 0 ? "GET" : method;
    const struct http_route *found = NULL;
    *allowed = 0;
    for (int32_t i = 0; i < routes->count; i++) {
        const struct http_route *route = &routes->list[i];
        const char *tail;
        if (!matches(route, path, &tail))
            continue;
        *allowed |= strcmp(route->method, "GET") == 0 ? ALLOW_GET : ALLOW_POST;
        if (!found && strcmp(route->method, wanted) == 0) {
            found = route;
            *rest = tail;
        }
    }
    return found;
}

static const struct http_route *first_of(const struct http_routes *routes, const char *path)
{
    const char *rest;
    for (int32_t i = 0; i < routes->count; i++)
        if (matches(&routes->list[i], path, &rest))
            return &routes->list[i];
    return NULL;
}

enum api_error_form http_route_errors(const struct http_routes *routes, const char *path)
{
    const struct http_route *route = first_of(routes, path);
    return route ? route->errors : API_ERROR_OPENAI;
}

const struct http_route *http_route_of_head(const struct http_routes *routes, const char *head,
                                            size_t n)
{
    char path[PATH_BYTES];
    size_t length = 0;
    const char *space = memchr(head, ' ', n), *end = head + n, *host;
    size_t host_n;
    const char *at = space ? space + 1 : end;
    at += http_host_of_target(at, (size_t)(end - at), &host, &host_n);
    while (at + length < end && !strchr(" ?\r\n", at[length]))
        length++;
    if (at + length == end || length >= sizeof path)
        return NULL;
    snprintf(path, sizeof path, "%.*s", (int)length, at);
    return first_of(routes, path);
}

const char *http_route_allow(int allowed)
{
    static const char *const texts[] = {"OPTIONS", "GET, HEAD, OPTIONS", "POST, OPTIONS",
                                        "GET, HEAD, POST, OPTIONS"};
    return texts[allowed & (ALLOW_GET | ALLOW_POST)];
}
