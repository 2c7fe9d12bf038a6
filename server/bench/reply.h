/* One HTTP/1.1 response, byte by byte as it comes from a peer that is not trusted: Content-Length,
 * chunked or up to the end of the connection; an event stream is handed out event by event, any
 * other body is collected. All sizes are bounded. Not thread-safe. */
#ifndef TESSERA_SERVER_BENCH_REPLY_H
#define TESSERA_SERVER_BENCH_REPLY_H

#include "config/buf.h"

#define REPLY_HEAD_BYTES_MAX (64u << 10) /* status line and fields, of all interim answers too */
#define REPLY_LINE_BYTES_MAX (1u << 20)  /* one line of an event stream */
#define REPLY_BODY_BYTES_MAX (4u << 20)  /* of other bodies; what is beyond is dropped */
#define REPLY_ID_BYTES_MAX 128           /* of X-Request-Id, with the NUL */

/* A "data:" line of an event stream, without the field name; valid during the call. Lines end in
 * LF or CRLF. OpenAI-style servers write one line per event, so a line counts as an event. */
typedef void reply_event(void *ctx, const char *data, size_t n);

struct reply_lines {
    struct buf carry; /* the beginning of a line whose end has not come */
    bool taken;       /* the line in carry has been handed out */
};

struct reply {
    int32_t http_status; /* 0: not yet known */
    bool is_stream;      /* Content-Type: text/event-stream */
    bool keeps;          /* once complete: the connection may carry another exchange */
    struct buf body;     /* of anything else; its max may be changed before the first byte */
    char request_id[REPLY_ID_BYTES_MAX]; /* X-Request-Id, printable; "": none, or a longer one */
    int32_t retry_after_s;               /* Retry-After; 0: none, or a date */
    /* private */
    int state;
    bool chunked, has_length;
    uint64_t left; /* bytes of the body or of the chunk */
    size_t head_bytes;
    struct reply_lines wire, events;
    reply_event *on_event;
    void *ctx;
};

void reply_init(struct reply *r, reply_event *on_event, void *ctx);
void reply_free(struct reply *r);
/* Ready for the next response; keeps the memory. */
void reply_reset(struct reply *r);
/* ERR_INPUT when the bytes are not HTTP or exceed a limit. What follows the end is ignored, and the
 * connection not used again. */
enum status reply_feed(struct reply *r, const char *bytes, size_t n, struct err *err) MUST_USE;
/* The connection has ended. ERR_INPUT when the response had not. */
enum status reply_close(struct reply *r, struct err *err) MUST_USE;
bool reply_is_complete(const struct reply *r);

#endif
