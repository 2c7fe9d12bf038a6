/* DESIGN: a state machine over spans. A line that lies whole in the bytes just read is used where
 * it is; only a line cut by the end of a read or of a chunk is copied, so the usual token costs no
 * copy and no allocation. */
#include "server/bench/reply.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { STATUS_LINE, FIELDS, BODY, CHUNK_SIZE, CHUNK, CHUNK_END, TRAILERS, COMPLETE };

static void clear_lines(struct reply_lines *l)
{
    buf_clear(&l->carry);
    l->taken = false;
}

void reply_init(struct reply *r, reply_event *on_event, void *ctx)
{
    *r = (struct reply){.on_event = on_event, .ctx = ctx};
    buf_init(&r->wire.carry, REPLY_HEAD_BYTES_MAX);
    buf_init(&r->events.carry, REPLY_LINE_BYTES_MAX);
    buf_init(&r->body, REPLY_BODY_BYTES_MAX);
}

void reply_free(struct reply *r)
{
    buf_free(&r->wire.carry);
    buf_free(&r->events.carry);
    buf_free(&r->body);
}

void reply_reset(struct reply *r)
{
    clear_lines(&r->wire);
    clear_lines(&r->events);
    buf_clear(&r->body);
    r->state = STATUS_LINE;
    r->http_status = r->retry_after_s = 0;
    r->request_id[0] = '\0';
    r->is_stream = r->chunked = r->has_length = r->keeps = false;
    r->left = 0;
    r->head_bytes = 0;
}

bool reply_is_complete(const struct reply *r)
{
    return r->state == COMPLETE;
}

/* The next line without its ending, or NULL when its end is not there yet; *at moves past what was
 * used. Check carry.failed: a line can be too long. */
static const char *take_line(struct reply_lines *l, const char **at, const char *end, size_t *n)
{
    if (l->taken)
        clear_lines(l);
    const char *begin = *at, *newline = memchr(begin, '\n', (size_t)(end - begin));
    const char *stop = newline ? newline : end;
    *at = newline ? newline + 1 : end;
    if (!newline || l->carry.len > 0) {
        buf_add(&l->carry, begin, (size_t)(stop - begin));
        if (!newline || l->carry.failed)
            return NULL;
        l->taken = true;
        begin = l->carry.data;
        stop = begin + l->carry.len;
    }
    if (stop > begin && stop[-1] == '\r')
        stop--;
    *n = (size_t)(stop - begin);
    return begin;
}

static void take_event_line(struct reply *r, const char *line, size_t n)
{
    if (n < 5 || memcmp(line, "data:", 5) != 0)
        return; /* empty, a comment, or another field */
    size_t skip = n > 5 && line[5] == ' ' ? 6 : 5;
    r->on_event(r->ctx, line + skip, n - skip);
}

/* A piece of the body, free of any framing. */
static enum status take_body(struct reply *r, const char *bytes, size_t n, struct err *err)
{
    const char *end = bytes + n, *line;
    if (!r->is_stream) {
        buf_add(&r->body, bytes, n < r->body.max - r->body.len ? n : r->body.max - r->body.len);
        return OK;
    }
    while (bytes < end && (line = take_line(&r->events, &bytes, end, &n)) != NULL)
        take_event_line(r, line, n);
    if (r->events.carry.failed)
        return base_fail(err, ERR_INPUT, "a line of the event stream is longer than %u bytes",
                         REPLY_LINE_BYTES_MAX);
    return OK;
}

static bool parse_number(const char *text, size_t n, uint64_t base, uint64_t *out)
{
    uint64_t v = 0;
    for (size_t i = 0; i < n; i++) {
        int c = tolower((unsigned char)text[i]);
        uint64_t digit = isdigit(c)             ? (uint64_t)(c - '0')
                         : c >= 'a' && c <= 'f' ? (uint64_t)(c - 'a') + 10
                                                : 16;
        if (digit >= base || v >> 48)
            return false;
        v = v * base + digit;
    }
    *out = v;
    return n > 0;
}

/* "HTTP/1.1 200 OK" */
static bool take_status_line(struct reply *r, const char *line, size_t n)
{
    uint64_t status = 0;
    if (n < 12 || memcmp(line, "HTTP/1.", 7) != 0 || line[8] != ' ' ||
        !parse_number(line + 9, 3, 10, &status) || status < 100 || status > 599 ||
        (n > 12 && line[12] != ' '))
        return false;
    r->http_status = (int32_t)status;
    r->keeps = line[7] != '0';
    return true;
}

static void take_id(struct reply *r, const char *value, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (n >= sizeof r->request_id || !isgraph((unsigned char)value[i]))
            return;
    memcpy(r->request_id, value, n);
    r->request_id[n] = '\0';
}

static void take_retry(struct reply *r, const char *value, size_t n)
{
    uint64_t seconds;
    if (parse_number(value, n, 10, &seconds))
        r->retry_after_s = (int32_t)(seconds < INT32_MAX ? seconds : INT32_MAX);
}

static bool take_field(struct reply *r, const char *line, size_t n)
{
    const char *colon = memchr(line, ':', n), *end = line + n;
    if (!colon || colon == line)
        return false;
    size_t name = (size_t)(colon - line);
    const char *value = colon + 1;
    while (value < end && (*value == ' ' || *value == '\t'))
        value++;
    while (end > value && (end[-1] == ' ' || end[-1] == '\t'))
        end--;
    size_t len = (size_t)(end - value);
    if (name == 14 && strncasecmp(line, "content-length", name) == 0) {
        r->has_length = true;
        return parse_number(value, len, 10, &r->left);
    }
    if (name == 17 && strncasecmp(line, "transfer-encoding", name) == 0)
        return r->chunked = len == 7 && strncasecmp(value, "chunked", len) == 0;
    if (name == 10 && strncasecmp(line, "connection", name) == 0)
        r->keeps = r->keeps && !(len == 5 && strncasecmp(value, "close", len) == 0);
    if (name == 12 && strncasecmp(line, "content-type", name) == 0)
        r->is_stream = len >= 17 && strncasecmp(value, "text/event-stream", 17) == 0;
    if (name == 12 && strncasecmp(line, "x-request-id", name) == 0)
        take_id(r, value, len);
    if (name == 11 && strncasecmp(line, "retry-after", name) == 0)
        take_retry(r, value, len);
    return true;
}

/* The empty line after the fields. */
static void end_head(struct reply *r)
{
    if (r->http_status < 200) { /* interim: the real one follows */
        r->http_status = 0;
        r->is_stream = r->chunked = r->has_length = false;
        r->state = STATUS_LINE;
    } else if (r->chunked) {
        r->state = CHUNK_SIZE;
    } else {
        r->state = r->has_length && r->left == 0 ? COMPLETE : BODY;
        r->keeps = r->keeps && r->has_length;
    }
}

static enum status take_wire_line(struct reply *r, const char *line, size_t n, struct err *err)
{
    bool good = true;
    const char *extension;
    switch (r->state) {
    case STATUS_LINE:
        good = take_status_line(r, line, n);
        r->state = FIELDS;
        break;
    case FIELDS:
        if (n == 0)
            end_head(r);
        else
            good = take_field(r, line, n);
        break;
    case CHUNK_SIZE:
        extension = memchr(line, ';', n);
        n = extension ? (size_t)(extension - line) : n;
        while (n > 0 && line[n - 1] == ' ')
            n--;
        good = parse_number(line, n, 16, &r->left);
        r->state = r->left > 0 ? CHUNK : TRAILERS;
        break;
    case CHUNK_END:
        good = n == 0;
        r->state = CHUNK_SIZE;
        break;
    default: /* TRAILERS */
        if (n == 0)
            r->state = COMPLETE;
    }
    return good ? OK
                : base_fail(err, ERR_INPUT, "not an HTTP/1.1 response: \"%.*s\"",
                            (int)(n < 60 ? n : 60), line);
}

/* Lines of head, chunk sizes and trailers. */
static enum status take_wire(struct reply *r, const char **at, const char *end, struct err *err)
{
    size_t n;
    const char *begin = *at, *line = take_line(&r->wire, at, end, &n);
    bool framing = r->state == CHUNK_SIZE || r->state == CHUNK_END;
    r->head_bytes = framing ? 0 : r->head_bytes + (size_t)(*at - begin);
    if (r->wire.carry.failed || r->head_bytes > REPLY_HEAD_BYTES_MAX)
        return base_fail(err, ERR_INPUT, "the head of the response is longer than %u bytes",
                         REPLY_HEAD_BYTES_MAX);
    return line ? take_wire_line(r, line, n, err) : OK;
}

enum status reply_feed(struct reply *r, const char *bytes, size_t n, struct err *err)
{
    enum status st = OK;
    const char *end = bytes + n;
    while (bytes < end && r->state != COMPLETE && st == OK) {
        if (r->state != BODY && r->state != CHUNK) {
            st = take_wire(r, &bytes, end, err);
            continue;
        }
        size_t piece = (size_t)(end - bytes);
        bool bounded = r->state == CHUNK || r->has_length;
        if (bounded && piece > r->left)
            piece = (size_t)r->left;
        st = take_body(r, bytes, piece, err);
        bytes += piece;
        r->left -= bounded ? piece : 0;
        if (bounded && r->left == 0)
            r->state = r->state == CHUNK ? CHUNK_END : COMPLETE;
    }
    r->keeps = r->keeps && bytes == end;
    return st;
}

enum status reply_close(struct reply *r, struct err *err)
{
    if (r->state == BODY && !r->has_length)
        r->state = COMPLETE;
    if (r->state == COMPLETE)
        return OK;
    return base_fail(err, ERR_INPUT, "the connection ended %s",
                     r->state <= FIELDS ? "before the response" : "within the response");
}
