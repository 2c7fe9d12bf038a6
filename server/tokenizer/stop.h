/* Stop strings: text goes in, text goes out, and nothing of a stop string ever comes out. The match
 * is the first to be complete, whatever pieces the text comes in; of several that end at the same
 * byte, the longest. */
#ifndef TESSERA_SERVER_TOKENIZER_STOP_H
#define TESSERA_SERVER_TOKENIZER_STOP_H

#include "config/buf.h"

#define STOP_STRINGS_MAX 16
#define STOP_BYTES_MAX 256

/* The strings, shared by all choices of a request: immutable, any thread. */
struct stop_set;

/* Copies count strings of 1..STOP_BYTES_MAX bytes; count 0 is fine and gives NULL. */
enum status stop_set_open(const char *const *strings, const size_t *lens, int32_t count,
                          struct stop_set **out, struct err *err) MUST_USE;
void stop_set_close(struct stop_set *s); /* NULL is fine */
const char *stop_set_string(const struct stop_set *s, int32_t i, size_t *len);

/* One per choice; used by one thread at a time. */
struct stop {
    const struct stop_set *set;
    char held[STOP_BYTES_MAX]; /* the longest end of the text that begins a stop string */
    int32_t held_len;
    int16_t state[STOP_STRINGS_MAX]; /* bytes of each string that the text ends with */
};

void stop_init(struct stop *s, const struct stop_set *set);
/* Appends to out what can no longer become part of a stop string. Returns the index of the string
 * that is complete now, else -1. After a match nothing may be pushed. */
int32_t stop_push(struct stop *s, const char *text, size_t n, struct buf *out);
/* At the end without a match: what is held is text after all. */
void stop_finish(struct stop *s, struct buf *out);

#endif
