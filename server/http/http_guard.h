/* What the head of a request must look like: one set of rules, so that no two parties can read a
 * request differently. Two readers feed it: the raw bytes of a connection's first head (the gate),
 * and what the HTTP library shows of every head. Pure. */
#ifndef TESSERA_SERVER_HTTP_HTTP_GUARD_H
#define TESSERA_SERVER_HTTP_HTTP_GUARD_H

#include "config/base.h"
#include "server/api/api_error.h"
#include "server/http/http_limits.h"

#define HTTP_GUARD_SINGLE 8 /* headers that may come once */

struct http_guard {
    const struct http_limits *limits;
    struct api_error *error;
    bool has_body_method, is_old;
    int32_t headers;
    size_t plain_bytes; /* of what was seen, had it been written plainly */
    bool seen[HTTP_GUARD_SINGLE];
};

/* Pieces of text are not NUL-terminated. Each function returns false when the head is refused, with
 * the answer in *error; the first fault stands and the caller stops there. */
void http_guard_start(struct http_guard *g, const struct http_limits *limits,
                      struct api_error *error);
bool http_guard_target(struct http_guard *g, const char *target, size_t n);
bool http_guard_method(struct http_guard *g, const char *method, size_t n);
bool http_guard_version(struct http_guard *g, const char *version, size_t n);
bool http_guard_header(struct http_guard *g, const char *name, size_t name_n, const char *value,
                       size_t value_n);
/* After the last header. head_bytes: of the whole head. */
bool http_guard_end(struct http_guard *g, size_t head_bytes);
/* After http_guard_end of a head that another reader took apart: true when it was written with
 * single spaces and CRLFs. Else that reader has mended something (a folded line, a NUL, a bare LF)
 * or the client is merely unusual, which cannot be told apart any more. */
bool http_guard_is_plain(const struct http_guard *g, size_t head_bytes);

enum http_guard_verdict {
    HTTP_GUARD_MORE, /* good so far, and not whole */
    HTTP_GUARD_PASS,
    HTTP_GUARD_REFUSE,
};

/* A head as it came from the socket, and whatever comes after it. */
enum http_guard_verdict http_guard_bytes(const struct http_limits *limits, const char *bytes,
                                         size_t n, struct api_error *error);

#endif
