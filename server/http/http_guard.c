/* DESIGN: stricter than RFC 9112 asks where leniency is how requests are smuggled: lines end in
 * CRLF, nothing is folded, a header that decides something comes once, one header says how long
 * the body is. */
#include "server/http/http_guard.h"

#include <string.h>
#include <strings.h>

#define METHOD_BYTES_MAX 32
#define LENGTH_DIGITS_MAX 18 /* of any int64_t */

enum single { HOST, LENGTH, CODING, COMPRESSION, EXPECT, AUTHORIZATION, CONTENT_TYPE, ORIGIN };

static const char *const singles[] = {
    [HOST] = "Host",
    [LENGTH] = "Content-Length",
    [CODING] = "Transfer-Encoding",
    [COMPRESSION] = "Content-Encoding",
    [EXPECT] = "Expect",
    [AUTHORIZATION] = "Authorization",
    [CONTENT_TYPE] = "Content-Type",
    [ORIGIN] = "Origin",
};
_Static_assert(ARRAY_LEN(singles) == HTTP_GUARD_SINGLE, "one flag for each");

static bool refuse(struct http_guard *g, int32_t status, const char *code, const char *text)
{
    api_error_set(g->error, status, code, "%s", text);
    return false;
}

static bool malformed(struct http_guard *g, const char *text)
{
    return refuse(g, 400, "malformed_request", text);
}

static bool too_large(struct http_guard *g)
{
    return refuse(g, 431, "headers_too_large", "the request's headers are too large");
}

/* ---- characters (RFC 9110 section 5.6.2, RFC 3986) ---- */

static bool is_alnum(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static bool is_token(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!is_alnum(text[i]) && (text[i] == '\0' || !strchr("!#$%&'*+-.^_`|~", text[i])))
            return false;
    return n > 0;
}

static bool is_value(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (((unsigned char)text[i] < ' ' && text[i] != '\t') || text[i] == 0x7f)
            return false;
    return true;
}

static bool is_host(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!is_alnum(text[i]) && (text[i] == '\0' || !strchr("-._~:[]%", text[i])))
            return false;
    return true;
}

static bool is_number(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (text[i] < '0' || text[i] > '9')
            return false;
    return n > 0 && n <= LENGTH_DIGITS_MAX;
}

static bool equals(const char *text, size_t n, const char *word)
{
    return n == strlen(word) && strncasecmp(text, word, n) == 0;
}

/* ---- the rules ---- */

void http_guard_start(struct http_guard *g, const struct http_limits *limits,
                      struct api_error *error)
{
    *g = (struct http_guard){.limits = limits, .error = error};
}

bool http_guard_target(struct http_guard *g, const char *target, size_t n)
{
    g->plain_bytes += n + sizeof " " - 1;
    if (n > g->limits->target_bytes)
        return refuse(g, 414, "target_too_long", "the request target is too long");
    if (n == 0 || (target[0] != '/' && !(n == 1 && target[0] == '*')))
        return malformed(g, "the request target must begin with '/'");
    for (size_t i = 0; i < n; i++) {
        if (target[i] <= ' ' || target[i] >= 0x7f) /* a char may be signed: negative is <= ' ' */
            return malformed(g, "the request target has a byte that must be percent-encoded");
        if (n - i >= 3 && memcmp(target + i, "%00", 3) == 0)
            return malformed(g, "the request target has a NUL");
    }
    return true;
}

bool http_guard_method(struct http_guard *g, const char *method, size_t n)
{
    static const char *const known[] = {"GET",    "HEAD",    "POST",    "PUT",  "PATCH",
                                        "DELETE", "OPTIONS", "CONNECT", "TRACE"};
    g->plain_bytes += n + sizeof " " - 1;
    if (!is_token(method, n))
        return malformed(g, "the request does not begin with a method; is this plain HTTP?");
    for (size_t i = 0; i < ARRAY_LEN(known); i++)
        if (n == strlen(known[i]) && memcmp(method, known[i], n) == 0) {
            g->has_body_method = method[0] == 'P';
            return true;
        }
    return refuse(g, 501, "unknown_method", "the request method is not known here");
}

bool http_guard_version(struct http_guard *g, const char *version, size_t n)
{
    g->plain_bytes += n + sizeof "\r\n" - 1;
    g->is_old = n == 8 && memcmp(version, "HTTP/1.0", 8) == 0;
    if (g->is_old || (n == 8 && memcmp(version, "HTTP/1.1", 8) == 0))
        return true;
    return refuse(g, 505, "unknown_version", "only HTTP/1.1 and HTTP/1.0 are spoken here");
}

static bool judge_single(struct http_guard *g, enum single which, const char *value, size_t n)
{
    if (g->seen[which])
        return which == LENGTH || which == CODING
                   ? malformed(g, "more than one header says how long the body is")
                   : malformed(g, "a header that may come once comes twice");
    g->seen[which] = true;
    if (which == HOST && !is_host(value, n))
        return malformed(g, "the Host header is not a host");
    if (which == LENGTH && !is_number(value, n))
        return malformed(g, "the Content-Length is not a number");
    if (which == CODING && !equals(value, n, "chunked"))
        return refuse(g, 501, "unknown_transfer_coding",
                      "the only Transfer-Encoding known here is chunked");
    if (which == COMPRESSION && !equals(value, n, "identity"))
        return refuse(g, 415, "unsupported_encoding", "compressed request bodies are not accepted");
    if (which == EXPECT && !equals(value, n, "100-continue"))
        return refuse(g, 417, "unknown_expectation", "the only Expect known here is 100-continue");
    return true;
}

bool http_guard_header(struct http_guard *g, const char *name, size_t name_n, const char *value,
                       size_t value_n)
{
    g->plain_bytes += name_n + sizeof ": " - 1 + value_n + sizeof "\r\n" - 1;
    if (++g->headers > g->limits->headers)
        return refuse(g, 431, "headers_too_large", "the request has too many headers");
    if (!is_token(name, name_n))
        return malformed(g, "a header's name has a byte that names cannot have");
    if (!is_value(value, value_n))
        return malformed(g, "a header's value has a control character");
    for (size_t i = 0; i < ARRAY_LEN(singles); i++)
        if (equals(name, name_n, singles[i]))
            return judge_single(g, (enum single)i, value, value_n);
    return true;
}

bool http_guard_end(struct http_guard *g, size_t head_bytes)
{
    if (head_bytes > g->limits->header_bytes)
        return too_large(g);
    if (!g->seen[HOST] && !g->is_old)
        return malformed(g, "the request has no Host header");
    if (g->seen[LENGTH] && g->seen[CODING])
        return malformed(g, "more than one header says how long the body is");
    if (g->seen[CODING] && g->is_old)
        return malformed(g, "HTTP/1.0 has no Transfer-Encoding");
    if (g->has_body_method && !g->seen[LENGTH] && !g->seen[CODING])
        return refuse(g, 411, "length_required",
                      "a body needs Content-Length or Transfer-Encoding: chunked");
    return true;
}

bool http_guard_is_plain(const struct http_guard *g, size_t head_bytes)
{
    return g->plain_bytes + sizeof "\r\n" - 1 == head_bytes;
}

/* ---- raw bytes ---- */

/* "METHOD target HTTP/1.1", one space each. The version first: other protocols are told so. */
static bool judge_request_line(struct http_guard *g, const char *line, size_t n)
{
    const char *target = memchr(line, ' ', n), *end = line + n;
    const char *version = target ? memchr(target + 1, ' ', (size_t)(end - target - 1)) : NULL;
    size_t method_n = target ? (size_t)(target - line) : n;
    if (!is_token(line, method_n))
        return http_guard_method(g, line, method_n);
    if (!version)
        return http_guard_version(g, "", 0);
    if (memchr(version + 1, ' ', (size_t)(end - version - 1)))
        return malformed(g, "the request line has more than two spaces");
    return http_guard_version(g, version + 1, (size_t)(end - version - 1)) &&
           http_guard_method(g, line, method_n) &&
           http_guard_target(g, target + 1, (size_t)(version - target - 1));
}

static bool judge_header_line(struct http_guard *g, const char *line, size_t n)
{
    if (line[0] == ' ' || line[0] == '\t')
        return malformed(g, "a header is folded over two lines");
    const char *colon = memchr(line, ':', n);
    if (!colon)
        return malformed(g, "a header has no colon");
    const char *value = colon + 1, *end = line + n;
    while (value < end && (*value == ' ' || *value == '\t'))
        value++;
    while (end > value && (end[-1] == ' ' || end[-1] == '\t'))
        end--;
    return http_guard_header(g, line, (size_t)(colon - line), value, (size_t)(end - value));
}

/* What can be said of a line whose end has not come. */
static bool judge_part(struct http_guard *g, bool is_first, const char *line, size_t n)
{
    const char *space = memchr(line, ' ', n);
    size_t method_n = space ? (size_t)(space - line) : n;
    if (is_first && method_n > 0 && !is_token(line, method_n))
        return http_guard_method(g, line, method_n);
    if (is_first && method_n > METHOD_BYTES_MAX)
        return refuse(g, 501, "unknown_method", "the request method is not known here");
    if (is_first && n > method_n + g->limits->target_bytes + sizeof "  HTTP/1.1")
        return refuse(g, 414, "target_too_long", "the request target is too long");
    return true;
}

enum http_guard_verdict http_guard_bytes(const struct http_limits *limits, const char *bytes,
                                         size_t n, struct api_error *error)
{
    struct http_guard g;
    http_guard_start(&g, limits, error);
    for (size_t at = 0;;) {
        const char *line = bytes + at, *end = memchr(line, '\n', n - at);
        bool good = judge_part(&g, at == 0, line, end ? (size_t)(end - line) : n - at);
        if (!good)
            return HTTP_GUARD_REFUSE;
        if (!end && n <= limits->header_bytes)
            return HTTP_GUARD_MORE;
        if (!end) {
            too_large(&g);
            return HTTP_GUARD_REFUSE;
        }
        size_t length = (size_t)(end - line);
        bool first = at == 0;
        at += length + 1;
        if (length == 0 || line[length - 1] != '\r')
            good = malformed(&g, "a line of the head does not end in CRLF");
        else if (first)
            good = judge_request_line(&g, line, length - 1);
        else if (length == 1)
            return http_guard_end(&g, at) ? HTTP_GUARD_PASS : HTTP_GUARD_REFUSE;
        else
            good = judge_header_line(&g, line, length - 1);
        if (!good)
            return HTTP_GUARD_REFUSE;
    }
}
