#include "config/buf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void buf_init(struct buf *b, size_t max)
{
    *b = (struct buf){.max = max};
}

void buf_free(struct buf *b)
{
    free(b->data);
    *b = (struct buf){.max = b->max};
}

void buf_clear(struct buf *b)
{
    b->len = 0;
    b->failed = b->no_memory = false;
    if (b->data)
        b->data[0] = '\0';
}

/* Room for n more bytes and the terminator. */
static bool reserve(struct buf *b, size_t n)
{
    if (b->failed || n > b->max - b->len) {
        b->failed = true;
        return false;
    }
    size_t need = b->len + n + 1;
    if (need <= b->cap)
        return true;
    size_t cap = b->cap ? b->cap : 256;
    while (cap < need)
        cap *= 2;
    char *data = realloc(b->data, cap);
    if (!data) {
        b->failed = b->no_memory = true;
        return false;
    }
    b->data = data;
    b->cap = cap;
    return true;
}

void buf_add(struct buf *b, const void *bytes, size_t n)
{
    if (!reserve(b, n))
        return;
    if (n > 0)
        memcpy(b->data + b->len, bytes, n);
    b->len += n;
    b->data[b->len] = '\0';
}

void buf_puts(struct buf *b, const char *text)
{
    buf_add(b, text, strlen(text));
}

void buf_printf(struct buf *b, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    /* straight into the room there is; only what does not fit is formatted twice */
    const size_t room = b->failed ? 0 : b->cap - b->len;
    int n = vsnprintf(room > 0 ? b->data + b->len : NULL, room, fmt, ap);
    va_end(ap);
    if (n < 0) {
        b->failed = true;
    } else if (reserve(b, (size_t)n)) {
        if ((size_t)n >= room)
            vsnprintf(b->data + b->len, (size_t)n + 1, fmt, again);
        b->len += (size_t)n;
    }
    if (b->failed && room > 0)
        b->data[b->len] = '\0';
    va_end(again);
}

void buf_json(struct buf *b, const char *text, size_t n)
{
    static const char *const shorts = "\b\f\n\r\t\"\\";
    static const char letters[] = "bfnrt\"\\";
    buf_add(b, "\"", 1);
    size_t start = 0;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c >= 0x20 && c != '"' && c != '\\' && c != 0x7f)
            continue;
        buf_add(b, text + start, i - start);
        start = i + 1;
        const char *found = c ? strchr(shorts, c) : NULL;
        if (found)
            buf_printf(b, "\\%c", letters[found - shorts]);
        else
            buf_printf(b, "\\u%04x", c);
    }
    buf_add(b, text + start, n - start);
    buf_add(b, "\"", 1);
}

char *buf_take(struct buf *b, size_t *len)
{
    char *data = NULL;
    if (!b->failed && reserve(b, 0)) {
        data = b->data;
        data[b->len] = '\0';
        *len = b->len;
        b->data = NULL;
    }
    buf_free(b);
    return data;
}

enum status buf_write(const struct buf *b, FILE *f, const char *name, struct err *err)
{
    if (b->failed)
        return base_fail(err, ERR_NOMEM, "%s: no memory for a text of more than %zu bytes", name,
                         b->len);
    if ((b->len > 0 && fwrite(b->data, 1, b->len, f) != b->len) || fflush(f) != 0)
        return base_fail_errno(err, ERR_OUTPUT, "%s", name);
    return OK;
}

void buf_consume(struct buf *b, size_t n)
{
    if (n >= b->len) {
        b->len = 0;
    } else {
        memmove(b->data, b->data + n, b->len - n);
        b->len -= n;
    }
    if (b->data)
        b->data[b->len] = '\0';
}
