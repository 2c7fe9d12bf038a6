/* A client's side of HTTP over a connected socket: whole texts out, whole answers in. */
#ifndef TESSERA_TESTS_HTTP_TALK_H
#define TESSERA_TESTS_HTTP_TALK_H

#include "config/buf.h"

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
    size_t n;
    buf_init(&b, 64 << 20);
    for (;;) {
        ssize_t k = recv(fd, part, sizeof part, 0);
        if (k <= 0)
            break;
        buf_add(&b, part, (size_t)k);
        if (until && strstr(b.data, until))
            break;
    }
    return buf_take(&b, &n);
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
