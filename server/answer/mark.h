/* Marks in a text of which more may come. Pure. */
#ifndef TESSERA_SERVER_ANSWER_MARK_H
#define TESSERA_SERVER_ANSWER_MARK_H

#include "config/base.h"

#include <string.h>

enum mark_match { MARK_NO, MARK_YES, MARK_PERHAPS };

/* Do the n bytes begin with the mark? PERHAPS: they end before it does, and more may come. */
static inline enum mark_match mark_match(const char *text, size_t n, const char *mark,
                                         bool finished)
{
    const size_t len = strlen(mark);
    if (n >= len)
        return memcmp(text, mark, len) == 0 ? MARK_YES : MARK_NO;
    return finished || memcmp(text, mark, n) != 0 ? MARK_NO : MARK_PERHAPS;
}

#endif
