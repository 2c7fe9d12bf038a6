/* A vocabulary whose token t reads "t." in decimal, and a guide of texts of a certain number of
 * tokens: every token may follow, but no end before the last. */
#ifndef TESSERA_TESTS_GUIDED_H
#define TESSERA_TESTS_GUIDED_H

#include "engine/grammar/guide.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

struct guided {
    struct vocabulary *vocabulary;
    struct guide *guide;
};

static inline const char *guided_text(const void *ctx, int32_t id, int32_t *n)
{
    static char text[16];
    (void)ctx;
    *n = snprintf(text, sizeof text, "%d.", id);
    return text;
}

static inline void guided_open(struct guided *g, int32_t vocab, int32_t tokens)
{
    struct err err;
    struct grammar *grammar = grammar_new();
    assert_non_null(grammar);
    const int32_t token = grammar_rule(grammar), all = grammar_rule(grammar);
    const int32_t loop = grammar_fork(grammar);
    grammar_fork_set(grammar, loop, grammar_range(grammar, '0', '9', loop),
                     grammar_text(grammar, ".", 1, GRAMMAR_END));
    grammar_define(grammar, token, grammar_range(grammar, '0', '9', loop));
    grammar_define(grammar, all, grammar_repeat(grammar, token, tokens, tokens, GRAMMAR_END));
    assert_int_equal(grammar_close_rules(grammar, all, &err), OK);
    assert_int_equal(vocabulary_open(vocab, guided_text, NULL, &g->vocabulary, &err), OK);
    assert_int_equal(guide_open(grammar, g->vocabulary, &g->guide, &err), OK);
}

static inline void guided_close(struct guided *g)
{
    assert_false(guide_is_shared(g->guide)); /* whoever had one has given it back */
    guide_unref(g->guide);
    vocabulary_close(g->vocabulary);
}

#endif
