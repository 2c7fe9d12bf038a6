/* A client's side of HTTP over a connected socket: whole texts out, whole answers in. */
#ifndef TESSERA_TESTS_HTTP_TALK_H
#define TESSERA_TESTS_HTTP_TALK_H

#include "config/buf.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

static inline void say(int fd, const char *text, size_t n)
{
    while (n > 0) {
        ssize_t k = send(fd, text, n, MSG_NOSIGNAL);
        if (k <= 0)
            return;
        text += k;
        n -= (size_t)k;
    }
}

/* Until the server closes, or `until` has come. The caller frees. */
static inline char *listen_until(int fd, const char *until)
{
    struct buf b;
    char part[16384];
    size_t n, seen = 0; /* that can be no part of it any more: a slow reader would be dropped */
    buf_init(&b, 64 << 20);
    for (;;) {
        ssize_t k = recv(fd, part, sizeof part, 0);
        if (k <= 0)
            break;
        buf_add(&b, part, (size_t)k);
        if (until && strstr(b.data + seen, until))
            break;
        seen = until && b.len > strlen(until) ? b.len - strlen(until) : 0;
    }
    return buf_take(&b, &n);
}

/* The body of an answer in chunks, in place, without what is between them. */
static inline void join_chunks(char *answer)
{
    char *to = strstr(answer, "\r\n\r\n");
    CHECK(to != NULL);
    char *from = to + 4;
    const char *const end = from + strlen(from);
    for (to = from; from < end;) {
        char *bytes = NULL;
        size_t n = strtoul(from, &bytes, 16);
        if (bytes == from || strncmp(bytes, "\r\n", 2) != 0)
            break; /* there is no more of it */
        bytes += 2;
        if (n > (size_t)(end - bytes))
            n = (size_t)(end - bytes);
        memmove(to, bytes, n);
        to += n;
        from = bytes + n;
        from += strncmp(from, "\r\n", 2) == 0 ? 2 : 0;
    }
    *to = '\0';
}

static inline void say_text(int fd, const char *text)
{
    say(fd, text, strlen(text));
}

static inline void say_post(int fd, const char *body, const char *more)
{
    struct buf b;
    buf_init(&b, 16 << 20);
    buf_printf(&b, "POST /v1/completions HTTP/1.1\r\nHost: x\r\n%sContent-Length: %zu\r\n\r\n%s",
               more, strlen(body), body);
    say(fd, b.data, b.len);
    buf_free(&b);
}

#endif
