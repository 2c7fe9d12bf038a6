#include "server/bench/lines.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

void lines_init(struct lines *l, int fd, int stop_fd, size_t bytes_max)
{
    l->number = l->end = 0;
    l->fd = fd;
    l->stop_fd = stop_fd;
    l->at = l->have = 0;
    buf_init(&l->text, bytes_max);
}

void lines_free(struct lines *l)
{
    buf_free(&l->text);
}

/* The next piece, empty at the end; *stopped: there is none, nobody wants more. */
static enum status read_piece(struct lines *l, bool *stopped, struct err *err)
{
    struct pollfd in[] = {{.fd = l->stop_fd, .events = POLLIN}, {.fd = l->fd, .events = POLLIN}};
    ssize_t n = -1;
    do {
        if (poll(in, ARRAY_LEN(in), -1) > 0 && in[0].revents) {
            *stopped = true;
            return OK;
        }
        n = read(l->fd, l->piece, sizeof l->piece);
    } while (n < 0 && (errno == EINTR || errno == EAGAIN));
    if (n < 0)
        return base_fail_errno(err, ERR_IO, "cannot read line %lld", (long long)l->number);
    l->at = 0;
    l->have = (size_t)n;
    return OK;
}

/* Adds to the line what the piece has of it. True: its newline was there. */
static bool take(struct lines *l)
{
    const char *from = l->piece + l->at;
    const size_t left = l->have - l->at;
    const char *newline = memchr(from, '\n', left);
    const size_t n = newline ? (size_t)(newline - from) : left;
    buf_add(&l->text, from, n);
    l->at += n + (newline != NULL);
    l->end += (int64_t)(n + (newline != NULL));
    return newline != NULL;
}

enum status lines_next(struct lines *l, enum lines_kind *kind, struct err *err)
{
    const int64_t begin = l->end;
    bool stopped = false, whole = false;
    buf_clear(&l->text);
    l->number++;
    while (!whole) {
        if (l->at == l->have) {
            enum status st = read_piece(l, &stopped, err);
            if (st != OK)
                return st;
            if (stopped || l->have == 0)
                break;
        }
        whole = take(l);
    }
    if (l->text.no_memory)
        return base_fail(err, ERR_NOMEM, "no memory for line %lld", (long long)l->number);
    *kind = stopped           ? LINES_STOPPED
            : l->text.failed  ? LINES_LONG
            : whole           ? LINES_WHOLE
            : l->end != begin ? LINES_LAST
                              : LINES_END;
    return OK;
}
