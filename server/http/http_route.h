/* The table of routes. Pure. */
#ifndef TESSERA_SERVER_HTTP_HTTP_ROUTE_H
#define TESSERA_SERVER_HTTP_HTTP_ROUTE_H

#include "config/base.h"
#include "server/api/api_error.h"

struct http_request;

struct http_route {
    const char *method; /* "GET" (HEAD comes with it) or "POST" */
    const char *path;   /* exact; one that ends in '/' and is longer than that: a prefix */
    void (*handler)(void *ctx, struct http_request *r);
    enum api_error_form errors; /* of whatever goes wrong on the path, with any method */
};

struct http_routes {
    const struct http_route *list; /* static */
    int32_t count;
};

/* The route, and what of the path comes after its prefix; NULL when there is none. *allowed gets
 * the methods that the path has; 0: the path is unknown. */
const struct http_route *http_route_find(const struct http_routes *routes, const char *method,
                                         const char *path, const char **rest, int *allowed);
/* How errors on a path are written: as its first route says; as OpenAI has them where there is
 * none. */
enum api_error_form http_route_errors(const struct http_routes *routes, const char *path);
/* The first route of the path that a head names, which is as it came: cut off or bad. NULL: it
 * names none, or has not come as far. */
const struct http_route *http_route_of_head(const struct http_routes *routes, const char *head,
                                            size_t n);
/* The value of an Allow header. Static. */
const char *http_route_allow(int allowed);

#endif
