/* DESIGN: a guide whose tokens are bytes goes along the text. A NUL, which no expression matches,
 * says that it has ended; beside the expression all texts are let through, so that a guide that is
 * lost is one that has given up. */
#include "server/grammar/pattern_match.h"

#include "engine/grammar/guide.h"
#include "server/grammar/pattern.h"

#include <stdlib.h>
#include <string.h>

struct pattern_match {
    struct vocabulary *bytes;
    struct guide *guide;
};

static const char *byte_text(const void *all, int32_t id, int32_t *n)
{
    *n = 1;
    return (const char *)all + id;
}

static enum status open_bytes(struct vocabulary **out, struct err *err)
{
    char all[256];
    for (size_t i = 0; i < sizeof all; i++)
        all[i] = (char)i;
    return vocabulary_open(sizeof all, byte_text, all, out, err);
}

static enum status open_guide(struct pattern_match *m, const char *pattern, size_t n, bool whole,
                              struct err *err)
{
    enum status st = OK;
    int32_t first;
    struct grammar *g = grammar_new();
    if (!g)
        return base_fail(err, ERR_NOMEM, "no memory for a regular expression");
    const int32_t end = grammar_range(g, 0, 0, GRAMMAR_END), rule = grammar_rule(g);
    TRY(pattern_build(g, pattern, n, PATTERN_TEXT, whole, end, &first, err));
    const int32_t loop = grammar_fork(g);
    grammar_fork_set(g, loop, grammar_range(g, 1, 255, loop), grammar_range(g, 1, 1, GRAMMAR_END));
    grammar_define(g, rule, grammar_either(g, first, loop));
    TRY(grammar_close_rules(g, rule, err));
    st = guide_open(g, m->bytes, &m->guide, err);
    g = NULL; /* the guide's */
out:
    grammar_free(g);
    return st;
}

void pattern_match_close(struct pattern_match *m)
{
    if (!m)
        return;
    guide_unref(m->guide);
    vocabulary_close(m->bytes);
    free(m);
}

enum status pattern_match_open(const char *pattern, size_t n, bool whole,
                               struct pattern_match **out, struct err *err)
{
    enum status st = OK;
    struct pattern_match *m = calloc(1, sizeof *m);
    *out = NULL;
    if (!m)
        return base_fail(err, ERR_NOMEM, "no memory for a regular expression");
    TRY(open_bytes(&m->bytes, err));
    TRY(open_guide(m, pattern, n, whole, err));
    *out = m;
    m = NULL;
out:
    pattern_match_close(m);
    return st;
}

enum status pattern_match_fits(struct pattern_match *m, const char *text, bool *fits,
                               struct err *err)
{
    const size_t n = strlen(text);
    struct guide_place place = {0};
    bool whole;
    int32_t *tokens = calloc(n + 1, sizeof *tokens);
    if (!tokens)
        return base_fail(err, ERR_NOMEM, "no memory for a regular expression");
    for (size_t i = 0; i < n; i++)
        tokens[i] = (uint8_t)text[i];
    const uint32_t *mask = guide_mask(m->guide, &place, tokens, (int32_t)n, &whole);
    *fits = mask && (mask[0] & 1) != 0;
    free(tokens);
    return mask ? OK : base_fail(err, ERR_INPUT, "the regular expression is too ambiguous");
}
