/* DESIGN: the expression becomes a tree, since grammars are built from their end. In JSON strings
 * some characters have another spelling, so a set of characters is cut into those and the rest.
 * Anchors are taken off the alternatives that they stand around: all others get any text before and
 * behind them, where a part of the text is to match. */
#include "server/grammar/pattern.h"

#include "server/grammar/pattern_tree.h"

#include <stdio.h>
#include <string.h>

struct builder {
    const struct pattern_tree *tree;
    struct grammar *g;
    enum pattern_form form;
    bool whole;
    struct err *err;
};

/* How JSON spells a character that cannot stand for itself; empty: it can. */
static void spell(uint32_t code, char text[8])
{
    static const char codes[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
    const char *at = code > 0 && code < 0x80 ? strchr(codes, (int)code) : NULL;
    text[0] = '\0';
    if (at)
        snprintf(text, 8, "\\%c", letters[at - codes]);
    else if (code < 0x20)
        snprintf(text, 8, "\\u%04x", code & 0xffu);
}

static int32_t build_range(const struct builder *b, struct pattern_range r, int32_t next)
{
    int32_t all = GRAMMAR_NEVER;
    uint32_t from = r.lo > 0 ? r.lo : 1;
    for (uint32_t code = from; b->form == PATTERN_JSON && code <= r.hi && code <= '\\'; code++) {
        char text[8];
        spell(code, text);
        if (!*text)
            continue;
        if (code > from)
            all = grammar_either(b->g, all, grammar_chars(b->g, from, code - 1, next));
        all = grammar_either(b->g, all, grammar_text(b->g, text, strlen(text), next));
        from = code + 1;
    }
    if (from <= r.hi)
        all = grammar_either(b->g, all, grammar_chars(b->g, from, r.hi, next));
    return all;
}

static int32_t build(const struct builder *b, int32_t part, int32_t next);

static int32_t build_repeat(const struct builder *b, const struct pattern_part *t, int32_t next)
{
    struct grammar *g = b->g;
    if (t->max < 0 && t->min <= 1) {
        const int32_t loop = grammar_fork(g), body = build(b, t->child, loop);
        grammar_fork_set(g, loop, body, next);
        return t->min == 0 ? loop : body;
    }
    if (t->min == 0 && t->max == 1)
        return grammar_either(g, build(b, t->child, next), next);
    const int32_t rule = grammar_rule(g); /* once, however often */
    grammar_define(g, rule, build(b, t->child, GRAMMAR_END));
    return grammar_repeat(g, rule, t->min, t->max, next);
}

/* The children from this one on, the last first. */
static int32_t build_sequence(const struct builder *b, int32_t child, int32_t next)
{
    if (child < 0)
        return next;
    return build(b, child, build_sequence(b, pattern_tree_part(b->tree, child)->sibling, next));
}

/* Anchors are no part of it any more, or they say what is so anyway. */
static int32_t build(const struct builder *b, int32_t part, int32_t next)
{
    const struct pattern_part *t = pattern_tree_part(b->tree, part);
    int32_t all = GRAMMAR_NEVER;
    switch (t->kind) {
    case PATTERN_SET:
        for (int32_t i = 0; i < t->count && !grammar_failed(b->g); i++)
            all = grammar_either(b->g, all,
                                 build_range(b, pattern_tree_range(b->tree, t->first + i), next));
        return all;
    case PATTERN_SEQUENCE:
        return build_sequence(b, t->child, next);
    case PATTERN_CHOICE:
        for (int32_t i = t->child; i >= 0; i = pattern_tree_part(b->tree, i)->sibling)
            all = grammar_either(b->g, all, build(b, i, next));
        return all;
    case PATTERN_REPEAT:
        return grammar_failed(b->g) ? GRAMMAR_NEVER : build_repeat(b, t, next);
    case PATTERN_BEGIN:
    case PATTERN_END:
        break;
    }
    return next;
}

/* Any text, then next. */
static int32_t build_any(const struct builder *b, int32_t next)
{
    const int32_t loop = grammar_fork(b->g);
    grammar_fork_set(b->g, loop, build_range(b, (struct pattern_range){0, PATTERN_CODE_MAX}, loop),
                     next);
    return loop;
}

/* An anchor that is in there; -1: none is. */
static int32_t find_anchor(const struct pattern_tree *tree, int32_t part)
{
    const struct pattern_part *t = pattern_tree_part(tree, part);
    if (t->kind == PATTERN_BEGIN || t->kind == PATTERN_END)
        return part;
    for (int32_t i = t->child; i >= 0; i = pattern_tree_part(tree, i)->sibling) {
        const int32_t found = find_anchor(tree, i);
        if (found >= 0)
            return found;
    }
    return -1;
}

/* All alternatives share what is before and behind those that have no anchor there: a text can be
 * at any character of it at once. */
struct ways {
    int32_t next, after; /* behind $, and behind any text; GRAMMAR_NEVER until it is wanted */
    int32_t bound, free; /* with ^, and without */
};

/* A sequence, whose anchors are around it. */
static enum status build_bound(const struct builder *b, const struct pattern_part *t,
                               struct ways *w)
{
    bool begins = b->whole, ends = b->whole;
    for (int32_t i = t->child; i >= 0; i = pattern_tree_part(b->tree, i)->sibling) {
        const struct pattern_part *one = pattern_tree_part(b->tree, i);
        const bool is_first = i == t->child, is_last = one->sibling < 0;
        begins = begins || (one->kind == PATTERN_BEGIN && is_first);
        ends = ends || (one->kind == PATTERN_END && is_last);
        if ((one->kind == PATTERN_BEGIN && is_first) || (one->kind == PATTERN_END && is_last))
            continue;
        const int32_t anchor = find_anchor(b->tree, i);
        if (anchor >= 0)
            return pattern_tree_fail(b->tree, pattern_tree_part(b->tree, anchor)->at,
                                     "an anchor that is not around a whole alternative", b->err);
    }
    if (!ends && w->after == GRAMMAR_NEVER)
        w->after = build_any(b, w->next);
    int32_t *ways = begins ? &w->bound : &w->free;
    *ways = grammar_either(b->g, *ways, build_sequence(b, t->child, ends ? w->next : w->after));
    return OK;
}

static enum status build_top(const struct builder *b, int32_t part, struct ways *w)
{
    enum status st = OK;
    const struct pattern_part *t = pattern_tree_part(b->tree, part);
    if (t->kind == PATTERN_SEQUENCE) { /* of one group is that group */
        const struct pattern_part *only =
            t->child >= 0 ? pattern_tree_part(b->tree, t->child) : NULL;
        if (!only || only->sibling >= 0 || only->kind != PATTERN_CHOICE)
            return build_bound(b, t, w);
        return build_top(b, t->child, w);
    }
    for (int32_t i = t->child; i >= 0; i = pattern_tree_part(b->tree, i)->sibling)
        TRY(build_top(b, i, w));
out:
    return st;
}

enum status pattern_build(struct grammar *g, const char *text, size_t n, enum pattern_form form,
                          bool whole, int32_t next, int32_t *first, struct err *err)
{
    enum status st = OK;
    struct pattern_tree tree;
    const struct builder b = {&tree, g, form, whole, err};
    TRY(pattern_tree_open(text, n, &tree, err));
    struct ways w = {next, GRAMMAR_NEVER, GRAMMAR_NEVER, GRAMMAR_NEVER};
    TRY(build_top(&b, tree.root, &w));
    *first = w.free == GRAMMAR_NEVER ? w.bound : grammar_either(g, w.bound, build_any(&b, w.free));
out:
    pattern_tree_close(&tree);
    return st;
}
