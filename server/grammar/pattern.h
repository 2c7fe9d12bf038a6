/* Regular expressions (ECMA-262, as JSON Schema's "pattern" has them) into grammars: what matches
 * is found without going back, in time that grows with the text. Not supported, and refused: look
 * around, references back, word boundaries, \p{...}, anchors but around a whole alternative. Pure.
 */
#ifndef TESSERA_SERVER_GRAMMAR_PATTERN_H
#define TESSERA_SERVER_GRAMMAR_PATTERN_H

#include "engine/grammar/grammar.h"

enum {
    PATTERN_BYTES_MAX = 4096,
    PATTERN_DEPTH_MAX = 64, /* groups in groups */
    PATTERN_COUNT_MAX = 65535,
};

enum pattern_form {
    PATTERN_TEXT, /* the text itself */
    PATTERN_JSON, /* as it stands between the quotes of a JSON string */
};

/* Nodes for the texts that the expression matches, then `next`. whole: it has to match the whole
 * text; else a part of it will do, unless ^ or $ bind it. NUL is never matched. text is valid
 * UTF-8. ERR_INPUT: what is wrong or not supported, and at which character. */
enum status pattern_build(struct grammar *g, const char *text, size_t n, enum pattern_form form,
                          bool whole, int32_t next, int32_t *first, struct err *err) MUST_USE;

#endif
