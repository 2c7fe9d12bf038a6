/* What a request must look like on its connection, its head and what frames its body: one set of
 * rules on raw bytes, so that no two parties can read a request differently. Pure. */
#ifndef TESSERA_SERVER_HTTP_HTTP_GUARD_H
#define TESSERA_SERVER_HTTP_HTTP_GUARD_H

#include "config/base.h"
#include "server/api/api_error.h"
#include "server/http/http_limits.h"

enum http_guard_verdict {
    HTTP_GUARD_MORE, /* good so far, and not whole */
    HTTP_GUARD_PASS,
    HTTP_GUARD_REFUSE, /* with the answer in *error */
};

/* Bytes up to the end of the head, and of the body behind it. */
struct http_guard_head {
    size_t head_bytes;
    uint64_t body_bytes; /* 0 for none or a chunked one */
    bool is_chunked;
};

/* A head as it came from the socket, and whatever comes after it. *out is set when it passes. */
enum http_guard_verdict http_guard_head(const struct http_limits *limits, const char *bytes,
                                        size_t n, struct http_guard_head *out,
                                        struct api_error *error);

/* A head that has passed, of n bytes, as libmicrohttpd shall get it, which keeps blanks behind a
 * value as a part of it, and takes memory for each argument of a query and each crumb of a cookie,
 * for which nobody asks here: blanks move in front, there is one argument, and no cookie. */
void http_guard_tidy(char *head, size_t n);

/* What stands before the data of a chunk, and the data behind it. */
struct http_guard_chunk {
    size_t line_bytes;
    uint64_t data_bytes; /* 0: the body has ended */
};

/* The same for the line before a chunk's data, with the CRLF after the data of the chunk before it
 * unless it is the first, and with the empty line after the last. No extensions, no trailers. */
enum http_guard_verdict http_guard_chunk(bool is_first, const char *bytes, size_t n,
                                         struct http_guard_chunk *out, struct api_error *error);

#endif
