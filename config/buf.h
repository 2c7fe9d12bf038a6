/* A bounded, growing byte buffer; its maximum is part of its birth. Not thread-safe.
 * Appending past the maximum, or failing to allocate, sets `failed` and keeps what is there:
 * writers need no check per call, the reader checks once at the end. */
#ifndef TESSERA_CONFIG_BUF_H
#define TESSERA_CONFIG_BUF_H

#include "config/base.h"

#include <stdio.h>

struct buf {
    char *data; /* NUL-terminated when not NULL */
    size_t len, cap, max;
    bool failed;
    bool no_memory; /* that is why it failed: not by its maximum */
};

void buf_init(struct buf *b, size_t max);
void buf_free(struct buf *b);
void buf_clear(struct buf *b); /* keeps the memory */
void buf_add(struct buf *b, const void *bytes, size_t n);
void buf_puts(struct buf *b, const char *text);
void buf_printf(struct buf *b, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* A JSON string with quotes. The bytes must be valid UTF-8. */
void buf_json(struct buf *b, const char *text, size_t n);
/* The caller becomes the owner (free()); the buffer is empty afterwards. NULL when failed. */
char *buf_take(struct buf *b, size_t *len);
/* All of it into f and on to the system; name is what messages call it. ERR_NOMEM: the text had
 * failed, and nothing is written; ERR_OUTPUT. */
enum status buf_write(const struct buf *b, FILE *f, const char *name, struct err *err) MUST_USE;
/* Drops the first n bytes. */
void buf_consume(struct buf *b, size_t n);

#endif
