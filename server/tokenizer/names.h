/* Tokens that are looked for in a text by their whole spelling, before anything else is made of it:
 * control tokens and tokens that were added to a vocabulary. */
#ifndef TESSERA_SERVER_TOKENIZER_NAMES_H
#define TESSERA_SERVER_TOKENIZER_NAMES_H

#include "config/base.h"

struct name {
    const char *text; /* borrowed; UTF-8 */
    int32_t len, id;
    bool control;                   /* found only where control tokens may be spelt out */
    bool takes_before, takes_after; /* the spaces beside it belong to it */
};

/* <...>: templates mark turns by such names, also where a file calls them text. Not so tags of
 * HTML, which are in messages as they are in other texts. */
bool names_is_mark(const char *text, int32_t len);

struct names; /* immutable: any thread */

/* Copies the list. Of the same text twice the first counts. ERR_NOMEM. */
enum status names_open(const struct name *list, int32_t count, struct names **out,
                       struct err *err) MUST_USE;
void names_close(struct names *n); /* NULL is fine */

/* Where control tokens may be spelt out in a text. */
struct names_allow {
    bool control;        /* at all */
    const char *foreign; /* [length]; not where one of its bytes is not 0; NULL: anywhere */
};

/* A text or a token, in the order of the text. */
struct names_sink {
    enum status (*text)(void *ctx, const char *text, size_t n, bool first, struct err *err);
    enum status (*token)(void *ctx, int32_t id, struct err *err);
    void *ctx;
};

/* Cuts a text at the names in it: the leftmost, of those the longest. Control tokens that are not
 * allowed stay text, and no name is looked for inside them. first: given on with a text that begins
 * where this one does. Texts are never empty. */
enum status names_cut(const struct names *n, const char *text, size_t length,
                      struct names_allow allow, bool first, const struct names_sink *sink,
                      struct err *err) MUST_USE;

#endif
