/* DESIGN: stricter than RFC 9112 asks where leniency is how requests are smuggled: lines end in
 * CRLF, nothing is folded, a header that decides something comes once, one header says how long
 * the body is. */
#include "server/http/http_guard.h"

#include "server/http/http_host.h"

#include <string.h>
#include <strings.h>

#define METHOD_BYTES_MAX 32
#define LENGTH_DIGITS_MAX 18 /* of any int64_t */
#define CHUNK_DIGITS_MAX 15  /* the same in hexadecimal */

enum single {
    HOST,
    LENGTH,
    CODING,
    COMPRESSION,
    EXPECT,
    AUTHORIZATION,
    API_KEY,
    CONTENT_TYPE,
    ORIGIN
};

static const char *const singles[] = {
    [HOST] = "Host",
    [LENGTH] = "Content-Length",
    [CODING] = "Transfer-Encoding",
    [COMPRESSION] = "Content-Encoding",
    [EXPECT] = "Expect",
    [AUTHORIZATION] = "Authorization",
    [API_KEY] = "X-Api-Key",
    [CONTENT_TYPE] = "Content-Type",
    [ORIGIN] = "Origin",
};

struct guard {
    const struct http_limits *limits;
    struct api_error *error;
    bool has_body_method, is_old;
    int32_t headers;
    uint64_t length;
    bool seen[ARRAY_LEN(singles)];
};

/* Pieces of text are not NUL-terminated. Each function returns false when the head is refused, with
 * the answer in *error; the first fault stands and the caller stops there. */

static bool refuse(struct guard *g, int32_t status, const char *code, const char *text)
{
    api_error_set(g->error, status, code, "%s", text);
    return false;
}

static bool malformed(struct guard *g, const char *text)
{
    return refuse(g, 400, "malformed_request", text);
}

static bool too_large(struct guard *g)
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

static bool read_length(const char *text, size_t n, uint64_t *length)
{
    *length = 0;
    for (size_t i = 0; i < n; i++) {
        if (text[i] < '0' || text[i] > '9')
            return false;
        *length = *length * 10 + (uint64_t)(text[i] - '0');
    }
    return n > 0 && n <= LENGTH_DIGITS_MAX;
}

static bool equals(const char *text, size_t n, const char *word)
{
    return n == strlen(word) && strncasecmp(text, word, n) == 0;
}

/* ---- the rules ---- */

static bool judge_target(struct guard *g, const char *target, size_t n)
{
    if (n > g->limits->target_bytes)
        return refuse(g, 414, "target_too_long", "the request target is too long");
    const char *host;
    size_t host_n;
    const size_t before = http_host_of_target(target, n, &host, &host_n);
    if (n == 0 || (target[0] != '/' && !(n == 1 && target[0] == '*') && before == 0))
        return malformed(g, "the request target must begin with '/' or 'http://'");
    if (before > 0 && (host_n == 0 || !is_host(host, host_n)))
        return malformed(g, "the host in the request target is not a host");
    for (size_t i = 0; i < n; i++) {
        if (target[i] <= ' ' || target[i] >= 0x7f) /* a char may be signed: negative is <= ' ' */
            return malformed(g, "the request target has a byte that must be percent-encoded");
        if (n - i >= 3 && memcmp(target + i, "%00", 3) == 0)
            return malformed(g, "the request target has a NUL");
    }
    return true;
}

static bool judge_method(struct guard *g, const char *method, size_t n)
{
    static const char *const known[] = {"GET",    "HEAD",    "POST",    "PUT",  "PATCH",
                                        "DELETE", "OPTIONS", "CONNECT", "TRACE"};
    if (!is_token(method, n))
        return malformed(g, "the request does not begin with a method; is this plain HTTP?");
    for (size_t i = 0; i < ARRAY_LEN(known); i++)
        if (n == strlen(known[i]) && memcmp(method, known[i], n) == 0) {
            g->has_body_method = method[0] == 'P';
            return true;
        }
    return refuse(g, 501, "unknown_method", "the request method is not known here");
}

static bool judge_version(struct guard *g, const char *version, size_t n)
{
    g->is_old = n == 8 && memcmp(version, "HTTP/1.0", 8) == 0;
    if (g->is_old || (n == 8 && memcmp(version, "HTTP/1.1", 8) == 0))
        return true;
    return refuse(g, 505, "unknown_version", "only HTTP/1.1 and HTTP/1.0 are spoken here");
}

static bool judge_single(struct guard *g, enum single which, const char *value, size_t n)
{
    if (g->seen[which])
        return which == LENGTH || which == CODING
                   ? malformed(g, "more than one header says how long the body is")
                   : malformed(g, "a header that may come once comes twice");
    g->seen[which] = true;
    if (which == HOST && !is_host(value, n))
        return malformed(g, "the Host header is not a host");
    if (which == LENGTH && !read_length(value, n, &g->length))
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

static bool judge_header(struct guard *g, const char *name, size_t name_n, const char *value,
                         size_t value_n)
{
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

static bool judge_end(struct guard *g, size_t head_bytes, struct http_guard_head *out)
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
    *out = (struct http_guard_head){
        .head_bytes = head_bytes,
        .body_bytes = g->length,
        .is_chunked = g->seen[CODING],
    };
    return true;
}

/* ---- raw bytes ---- */

/* "METHOD target HTTP/1.1", one space each. The version first: other protocols are told so. */
static bool judge_request_line(struct guard *g, const char *line, size_t n)
{
    const char *target = memchr(line, ' ', n), *end = line + n;
    const char *version = target ? memchr(target + 1, ' ', (size_t)(end - target - 1)) : NULL;
    size_t method_n = target ? (size_t)(target - line) : n;
    if (!is_token(line, method_n))
        return judge_method(g, line, method_n);
    if (!version)
        return judge_version(g, "", 0);
    if (memchr(version + 1, ' ', (size_t)(end - version - 1)))
        return malformed(g, "the request line has more than two spaces");
    return judge_version(g, version + 1, (size_t)(end - version - 1)) &&
           judge_method(g, line, method_n) &&
           judge_target(g, target + 1, (size_t)(version - target - 1));
}

static bool judge_header_line(struct guard *g, const char *line, size_t n)
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
    return judge_header(g, line, (size_t)(colon - line), value, (size_t)(end - value));
}

/* What can be said of a line before its end has come, and is then said whether it has or not. */
static bool judge_part(struct guard *g, bool is_first, const char *line, size_t n)
{
    const char *space = memchr(line, ' ', n);
    const size_t method_n = space ? (size_t)(space - line) : n;
    const size_t judged_n = method_n > METHOD_BYTES_MAX ? METHOD_BYTES_MAX + 1 : method_n;
    if (is_first && judged_n > 0 && !is_token(line, judged_n))
        return judge_method(g, line, judged_n);
    if (is_first && method_n > METHOD_BYTES_MAX)
        return refuse(g, 501, "unknown_method", "the request method is not known here");
    if (is_first && n > method_n + g->limits->target_bytes + sizeof "  HTTP/1.1")
        return refuse(g, 414, "target_too_long", "the request target is too long");
    return true;
}

enum http_guard_verdict http_guard_head(const struct http_limits *limits, const char *bytes,
                                        size_t n, struct http_guard_head *out,
                                        struct api_error *error)
{
    struct guard g = {.limits = limits, .error = error};
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
        else if (length > 1)
            good = judge_header_line(&g, line, length - 1);
        else if (judge_end(&g, at, out))
            return HTTP_GUARD_PASS;
        else
            good = false;
        if (!good)
            return HTTP_GUARD_REFUSE;
    }
}

/* ---- what the library shall not see ---- */

static void tidy_target(char *line, size_t n)
{
    char *query = memchr(line, '?', n);
    for (char *at = query; at && at < line + n; at++)
        if (*at == '&')
            *at = '.';
}

static void tidy_header(char *line, size_t n)
{
    char *value = (char *)memchr(line, ':', n) + 1;
    size_t all = (size_t)(line + n - value), left = all;
    while (left > 0 && (value[left - 1] == ' ' || value[left - 1] == '\t'))
        left--;
    memmove(value + all - left, value, left);
    memset(value, ' ', all - left);
    if (equals(line, (size_t)(value - 1 - line), "Cookie"))
        line[0] = 'X';
}

void http_guard_tidy(char *head, size_t n)
{
    for (char *line = head, *end; (end = memchr(line, '\r', (size_t)(head + n - line))) != line;
         line = end + 2) {
        if (line == head)
            tidy_target(line, (size_t)(end - line));
        else
            tidy_header(line, (size_t)(end - line));
    }
}

/* ---- chunks (RFC 9112 section 7.1) ---- */

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c = (char)(c | 0x20);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static enum http_guard_verdict refuse_chunk(struct api_error *error, const char *text)
{
    api_error_set(error, 400, "malformed_request", "%s", text);
    return HTTP_GUARD_REFUSE;
}

/* Steps over a CRLF, which must come next; refuses with the text. */
static enum http_guard_verdict step_crlf(const char *bytes, size_t n, size_t *at,
                                         struct api_error *error, const char *text)
{
    for (int i = 0; i < 2; i++, (*at)++) {
        if (*at == n)
            return HTTP_GUARD_MORE;
        if (bytes[*at] != "\r\n"[i])
            return refuse_chunk(error, text);
    }
    return HTTP_GUARD_PASS;
}

enum http_guard_verdict http_guard_chunk(bool is_first, const char *bytes, size_t n,
                                         struct http_guard_chunk *out, struct api_error *error)
{
    enum http_guard_verdict v = HTTP_GUARD_PASS;
    size_t at = 0, digits = 0;
    uint64_t size = 0;
    if (!is_first)
        v = step_crlf(bytes, n, &at, error, "a chunk's data is not as long as its size says");
    if (v != HTTP_GUARD_PASS)
        return v;
    for (; at < n && hex_digit(bytes[at]) >= 0 && digits <= CHUNK_DIGITS_MAX; at++, digits++)
        size = size * 16 + (uint64_t)hex_digit(bytes[at]);
    if (digits > CHUNK_DIGITS_MAX || (at < n && digits == 0))
        return refuse_chunk(error, "a chunk's size is not a hexadecimal number");
    v = step_crlf(bytes, n, &at, error, "only CRLF may follow a chunk's size: no extensions");
    if (v == HTTP_GUARD_PASS && size == 0)
        v = step_crlf(bytes, n, &at, error, "only CRLF may follow the last chunk: no trailers");
    if (v == HTTP_GUARD_PASS)
        *out = (struct http_guard_chunk){.line_bytes = at, .data_bytes = size};
    return v;
}
