/* Token ids to text, one at a time: what has come out so far is always the beginning of the text of
 * all, and always whole UTF-8 characters. One per choice; used by one thread at a time. */
#ifndef TESSERA_SERVER_TOKENIZER_DETOK_H
#define TESSERA_SERVER_TOKENIZER_DETOK_H

#include "config/buf.h"
#include "server/tokenizer/tokenizer.h"

struct detok {
    const struct tokenizer *tokenizer; /* NULL: every id is without text */
    char held[4];                      /* bytes that may yet become a character */
    int32_t held_len;
    bool at_start;    /* the space that encoding puts before a text is still to be dropped */
    bool show_hidden; /* control tokens come out by their names; off after detok_init */
    const char *const *shown; /* else these names do; NULL after the last. Borrowed; NULL: none */
    char sign;                /* in front of those that are in `shown`; 0: nothing */
};

/* Continues after `prompt`: a word mark at once is a space, as it is in the text of the whole.
 * After a prompt without visible text (none at all, or control tokens only) it is dropped. */
void detok_init(struct detok *d, const struct tokenizer *t, const int32_t *prompt, int32_t count);
/* Appends the text that id completes. Bytes that cannot become a character come out as U+FFFD:
 * each, or with byte-level tokens each run that begins like one. */
void detok_push(struct detok *d, int32_t id, struct buf *out);
/* At the end: what is held comes out as U+FFFD in the same way. */
void detok_finish(struct detok *d, struct buf *out);

#endif
