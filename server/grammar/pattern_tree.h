/* The tree of a regular expression (ECMA-262), whose sets of characters are ranges of code points.
 * For pattern.c. */
#ifndef TESSERA_SERVER_GRAMMAR_PATTERN_TREE_H
#define TESSERA_SERVER_GRAMMAR_PATTERN_TREE_H

#include "config/buf.h"

#define PATTERN_CODE_MAX 0x10ffffu

enum pattern_kind {
    PATTERN_SET,
    PATTERN_SEQUENCE,
    PATTERN_CHOICE,
    PATTERN_REPEAT,
    PATTERN_BEGIN, /* ^ */
    PATTERN_END,   /* $ */
};

struct pattern_part {
    enum pattern_kind kind;
    int32_t child, sibling; /* the first below it, and the next beside it; -1: none */
    int32_t min, max;       /* of a repeat; max < 0: any number */
    int32_t first, count;   /* of a set: its ranges */
    size_t at;              /* in the text */
};

struct pattern_range {
    uint32_t lo, hi;
};

struct pattern_tree {
    const char *text; /* borrowed, valid UTF-8 */
    size_t n;
    struct buf parts, ranges;
    int32_t root;
};

/* ERR_INPUT: what is wrong or not supported, and at which character. *t is to be closed either way.
 */
enum status pattern_tree_open(const char *text, size_t n, struct pattern_tree *t,
                              struct err *err) MUST_USE;
void pattern_tree_close(struct pattern_tree *t);
const struct pattern_part *pattern_tree_part(const struct pattern_tree *t, int32_t i);
struct pattern_range pattern_tree_range(const struct pattern_tree *t, int32_t i);
/* ERR_INPUT about what is at this place of the text. */
enum status pattern_tree_fail(const struct pattern_tree *t, size_t at, const char *what,
                              struct err *err);

#endif
