/* The lines of a file or a pipe, one after the other; what is kept is one line of bounded length.
 * For one thread at a time. */
#ifndef TESSERA_SERVER_BENCH_LINES_H
#define TESSERA_SERVER_BENCH_LINES_H

#include "config/buf.h"

enum { LINES_PIECE_BYTES = 64 << 10 };

enum lines_kind {
    LINES_WHOLE,
    LINES_LAST, /* bytes without a newline behind them */
    LINES_LONG, /* beyond the bound; its text is not there, and the next line is as usual */
    LINES_END,
    LINES_STOPPED,
};

struct lines {
    struct buf text; /* of the line that was read last, without its newline */
    int64_t number;  /* of that line, from 1 */
    int64_t end;     /* bytes read so far, up to and with that line */
    /* private */
    int fd, stop_fd;
    size_t at, have;
    char piece[LINES_PIECE_BYTES];
};

/* fd is borrowed. When something is to be read from stop_fd (-1: none), waiting for lines ends. */
void lines_init(struct lines *l, int fd, int stop_fd, size_t bytes_max);
void lines_free(struct lines *l);
/* ERR_IO: it cannot be read. */
enum status lines_next(struct lines *l, enum lines_kind *kind, struct err *err) MUST_USE;

#endif
