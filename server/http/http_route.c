/* DESIGN: a handful of routes, so a walk over the table; it finds the methods of the path too. */
#include "server/http/http_route.h"

#include <string.h>

#define ALLOW_GET 1
#define ALLOW_POST 2

static bool matches(const struct http_route *route, const char *path, const char **rest)
{
    size_t n = strlen(route->path);
    bool prefix = n > 1 && route->path[n - 1] == '/';
    if (prefix ? strncmp(route->path, path, n) != 0 : strcmp(route->path, path) != 0)
        return false;
    *rest = path + n;
    return true;
}

const struct http_route *http_route_find(const struct http_route *routes, int32_t count,
                                         const char *method, const char *path, const char **rest,
                                         int *allowed)
{
    const char *wanted = strcmp(method, "HEAD") == 0 ? "GET" : method;
    const struct http_route *found = NULL;
    *allowed = 0;
    for (int32_t i = 0; i < count; i++) {
        const char *tail;
        if (!matches(&routes[i], path, &tail))
            continue;
        *allowed |= strcmp(routes[i].method, "GET") == 0 ? ALLOW_GET : ALLOW_POST;
        if (!found && strcmp(routes[i].method, wanted) == 0) {
            found = &routes[i];
            *rest = tail;
        }
    }
    return found;
}

enum api_error_form http_route_errors(const struct http_route *routes, int32_t count,
                                      const char *path)
{
    const char *rest;
    for (int32_t i = 0; i < count; i++)
        if (matches(&routes[i], path, &rest))
            return routes[i].errors;
    return API_ERROR_OPENAI;
}

const char *http_route_allow(int allowed)
{
    static const char *const texts[] = {"OPTIONS", "GET, HEAD, OPTIONS", "POST, OPTIONS",
                                        "GET, HEAD, POST, OPTIONS"};
    return texts[allowed & (ALLOW_GET | ALLOW_POST)];
}
