/* DESIGN: grammars and guides against what they stand for, asked token by token and character by
 * character; and what a guide has forgotten does not show. */
#include "engine/grammar/guide.h"

#include "kernels/backend.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static struct err err;

static struct guide *open_guide(struct grammar *g, int32_t rule, const struct vocabulary *v)
{
    struct guide *guide = NULL;
    if (grammar_close_rules(g, rule, &err) != OK || guide_open(g, v, &guide, &err) != OK)
        fail_msg("%s", err.text);
    return guide;
}

static bool allows(const uint32_t *mask, int32_t id)
{
    return (mask[id / 32] >> (id % 32) & 1) != 0;
}

static const char *byte_text(const void *ctx, int32_t id, int32_t *n)
{
    static char text;
    (void)ctx;
    text = (char)id;
    *n = 1;
    return &text;
}

static struct vocabulary *bytes(void)
{
    struct vocabulary *v = NULL;
    assert_int_equal(vocabulary_open(256, byte_text, NULL, &v, &err), OK);
    return v;
}

/* Is the text whole, with tokens that are bytes? */
static bool fits(struct guide *g, const char *text, size_t n)
{
    int32_t tokens[64];
    struct guide_place place = {0};
    bool whole = false;
    for (size_t i = 0; i < n; i++)
        tokens[i] = (uint8_t)text[i];
    return guide_mask(g, &place, tokens, (int32_t)n, &whole) != NULL && whole;
}

/* ---- characters ---- */

/* RFC 3629, section 3. */
static size_t encode(uint32_t code, char out[4])
{
    const size_t n = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    static const uint8_t marks[] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (size_t i = n; i-- > 1; code >>= 6)
        out[i] = (char)(0x80 | (code & 0x3f));
    out[0] = (char)(marks[n] | code);
    return n;
}

static void test_characters(void **state)
{
    (void)state;
    static const uint32_t ranges[][2] = {
        {0, 0x10ffff},      {'a', 'z'},          {0x7f, 0x80},       {0x7ff, 0x800},
        {0xe9, 0xe9},       {0x3b1, 0x3c9},      {0x800, 0xffff},    {0xd000, 0xe100},
        {0x1234, 0x5678},   {0xfffe, 0x10001},   {0x1f600, 0x1f64f}, {0x10000, 0x10ffff},
        {0x40000, 0x40fff}, {0x10fffe, 0x10ffff}};
    struct vocabulary *v = bytes();
    for (size_t r = 0; r < ARRAY_LEN(ranges); r++) {
        const uint32_t lo = ranges[r][0], hi = ranges[r][1];
        struct grammar *g = grammar_new();
        const int32_t rule = grammar_rule(g);
        grammar_define(g, rule, grammar_chars(g, lo, hi, GRAMMAR_END));
        struct guide *guide = open_guide(g, rule, v);
        for (uint32_t code = 0; code <= 0x10ffff; code += code < 0x1000 ? 1 : 61) {
            char text[4];
            const size_t n = encode(code, text);
            const bool is = code >= lo && code <= hi && (code < 0xd800 || code > 0xdfff);
            if (fits(guide, text, n) != is)
                fail_msg("U+%04X in %04X to %04X", code, lo, hi);
        }
        for (uint32_t i = 0; i < 4; i++) { /* the ends, to the character */
            const uint32_t code = i < 2 ? lo - 1 + i : hi - 2 + i;
            char text[4];
            if (code <= 0x10ffff && (code < 0xd800 || code > 0xdfff))
                assert_int_equal(fits(guide, text, encode(code, text)), code >= lo && code <= hi);
        }
        assert_false(fits(guide, "\xc0\xaf", 2)); /* overlong */
        assert_false(fits(guide, "\xf4\x90\x80\x80", 4));
        guide_unref(guide);
    }
    vocabulary_close(v);
}

/* ---- tokens ---- */

static const char *const words[] = {"a",  "b",   "ab", "",    "abc", "b",  "ba", "abab", "c",   "",
                                    "cb", "aba", "bb", "abc", "a",   "ca", "é",  "\xc3", "\xa9"};

static const char *word_text(const void *ctx, int32_t id, int32_t *n)
{
    static char huge[VOCABULARY_TOKEN_BYTES_MAX + 1];
    (void)ctx;
    if (id == (int32_t)ARRAY_LEN(words)) { /* left out, though it would fit */
        memset(huge, 'a', sizeof huge);
        *n = sizeof huge;
        return huge;
    }
    *n = (int32_t)strlen(words[id]);
    return words[id];
}

/* (ab|c|é)*a+ by hand: 0 at the start, 1 in ab, 2 in é, 3 in the last a's; -1: no. An a may be that
 * of ab or the first of the end, so states are sets, as bits. */
static uint32_t by_hand(uint32_t set, uint8_t byte)
{
    uint32_t to = 0;
    if ((set & 1) != 0)
        to |= byte == 'a' ? 2u | 8u : byte == 'c' ? 1u : byte == 0xc3 ? 4u : 0;
    if ((set & 2) != 0 && byte == 'b')
        to |= 1;
    if ((set & 4) != 0 && byte == 0xa9)
        to |= 1;
    if ((set & 8) != 0 && byte == 'a')
        to |= 8;
    return to;
}

static uint32_t by_hand_all(uint32_t set, int32_t token)
{
    int32_t n;
    const char *text = word_text(NULL, token, &n);
    for (int32_t i = 0; i < n && set != 0; i++)
        set = by_hand(set, (uint8_t)text[i]);
    return n > 0 && n <= VOCABULARY_TOKEN_BYTES_MAX ? set : 0;
}

static int32_t build_words(struct grammar *g)
{
    const int32_t rule = grammar_rule(g), loop = grammar_fork(g), end = grammar_fork(g);
    const int32_t last = grammar_text(g, "a", 1, end);
    grammar_fork_set(g, end, last, GRAMMAR_END);
    const int32_t c = grammar_text(g, "c", 1, loop), e = grammar_chars(g, 0xe9, 0xe9, loop);
    const int32_t any = grammar_either(g, grammar_text(g, "ab", 2, loop), grammar_either(g, c, e));
    grammar_fork_set(g, loop, any, last);
    grammar_define(g, rule, loop);
    return rule;
}

/* Every token of the mask and no other leads on, along random texts. */
static void test_masks(void **state)
{
    (void)state;
    enum { V = ARRAY_LEN(words) + 1 };
    struct vocabulary *v = NULL;
    assert_int_equal(vocabulary_open(V, word_text, NULL, &v, &err), OK);
    struct grammar *g = grammar_new();
    const int32_t rule = build_words(g);
    struct guide *guide = open_guide(g, rule, v);
    uint32_t dice = 1;
    for (int32_t round = 0; round < 300; round++) {
        int32_t tokens[20], count = 0;
        struct guide_place place = {0};
        for (uint32_t set = 1; count < 20; count++) {
            bool whole;
            const uint32_t *mask = guide_mask(guide, &place, tokens, count, &whole);
            assert_non_null(mask);
            assert_int_equal(whole, (set & 8) != 0);
            for (int32_t id = 0; id < V; id++)
                assert_int_equal(allows(mask, id), by_hand_all(set, id) != 0);
            do
                tokens[count] = (int32_t)((dice = dice * 1103515245 + 12345) >> 16) % V;
            while (!allows(mask, tokens[count]));
            set = by_hand_all(set, tokens[count]);
        }
    }
    struct guide_place place = {0};
    assert_int_equal(guide_move(guide, &place, (int32_t[]){1}, 1), GUIDE_LOST); /* "b" */
    place = (struct guide_place){0};
    assert_int_equal(guide_move(guide, &place, (int32_t[]){3}, 1), GUIDE_LOST); /* no text */
    guide_unref(guide);
    vocabulary_close(v);
}

/* ---- depth ---- */

/* r = "(" r* ")": as deep as may be, and never deeper than there is a way back from. */
static void test_depth(void **state)
{
    (void)state;
    struct vocabulary *v = bytes();
    struct grammar *g = grammar_new();
    const int32_t rule = grammar_rule(g), loop = grammar_fork(g);
    grammar_fork_set(g, loop, grammar_call(g, rule, loop), grammar_text(g, ")", 1, GRAMMAR_END));
    grammar_define(g, rule, grammar_text(g, "(", 1, loop));
    struct guide *guide = open_guide(g, rule, v);
    struct guide_place place = {0};
    int32_t tokens[4 * GRAMMAR_DEPTH_MAX], count = 0, deepest = 0, depth = 0;
    bool whole;
    for (; count < 3 * GRAMMAR_DEPTH_MAX; count++) {
        const uint32_t *mask = guide_mask(guide, &place, tokens, count, &whole);
        assert_non_null(mask);
        tokens[count] = allows(mask, '(') ? '(' : ')';
        depth += tokens[count] == '(' ? 1 : -1;
        deepest = depth > deepest ? depth : deepest;
        assert_true(allows(mask, tokens[count]));
    }
    assert_int_equal(deepest, GRAMMAR_DEPTH_MAX + 1);
    for (; depth > 0; depth--)
        tokens[count++] = ')';
    assert_int_equal(guide_move(guide, &place, tokens, count), GUIDE_COMPLETE);
    guide_unref(guide);
    vocabulary_close(v);
}

/* r = "(x" s ")", s = "[" r? "]": who may begin one must have room for the other, more than a byte
 * ahead. */
static void test_no_dead_end(void **state)
{
    (void)state;
    struct vocabulary *v = bytes();
    struct grammar *g = grammar_new();
    const int32_t r = grammar_rule(g), s = grammar_rule(g);
    const int32_t close = grammar_text(g, "]", 1, GRAMMAR_END);
    const int32_t inner = grammar_either(g, close, grammar_call(g, r, close));
    const int32_t end = grammar_text(g, ")", 1, GRAMMAR_END);
    grammar_define(g, s, grammar_text(g, "[", 1, inner));
    grammar_define(g, r, grammar_text(g, "(x", 2, grammar_call(g, s, end)));
    struct guide *guide = open_guide(g, r, v);
    struct guide_place place = {0};
    int32_t tokens[4 * GRAMMAR_DEPTH_MAX], count = 0;
    static const char order[] = "(x[])"; /* deeper where that may be */
    while (guide_move(guide, &place, tokens, count) == GUIDE_OPEN) {
        bool whole;
        const uint32_t *mask = guide_mask(guide, &place, tokens, count, &whole);
        size_t i = 0;
        while (i < strlen(order) && !allows(mask, order[i]))
            i++;
        assert_true(i < strlen(order));
        tokens[count++] = order[i];
    }
    assert_int_equal(guide_move(guide, &place, tokens, count), GUIDE_COMPLETE);
    assert_in_range(count, 5 * GRAMMAR_DEPTH_MAX / 2 - 5, 5 * GRAMMAR_DEPTH_MAX / 2 + 5);
    guide_unref(guide);
    vocabulary_close(v);
}

static void test_nothing_fits(void **state)
{
    (void)state;
    struct grammar *g = grammar_new(); /* r = "a" r */
    const int32_t rule = grammar_rule(g);
    grammar_define(g, rule, grammar_text(g, "a", 1, grammar_call(g, rule, GRAMMAR_END)));
    assert_int_equal(grammar_close_rules(g, rule, &err), ERR_INPUT);
    assert_non_null(strstr(err.text, "nothing can fulfil it"));
    grammar_free(g);
    g = grammar_new(); /* too large */
    const int32_t many = grammar_rule(g);
    grammar_define(g, many, grammar_range(g, 'a', 'a', GRAMMAR_END));
    const int32_t all = grammar_rule(g);
    grammar_define(g, all, grammar_repeat(g, many, 0, INT64_MAX, GRAMMAR_END));
    assert_true(grammar_failed(g));
    assert_int_equal(grammar_close_rules(g, all, &err), ERR_INPUT);
    assert_non_null(strstr(err.text, "states"));
    grammar_free(g);
    struct vocabulary *v = NULL; /* no token begins it */
    struct guide *guide;
    assert_int_equal(vocabulary_open(ARRAY_LEN(words), word_text, NULL, &v, &err), OK);
    g = grammar_new();
    const int32_t x = grammar_rule(g);
    grammar_define(g, x, grammar_text(g, "x", 1, GRAMMAR_END));
    assert_int_equal(grammar_close_rules(g, x, &err), OK);
    assert_int_equal(guide_open(g, v, &guide, &err), ERR_INPUT);
    assert_non_null(strstr(err.text, "no token of the model can begin it"));
    vocabulary_close(v);
}

/* ---- memory ---- */

/* Counting to a great number takes more states than are kept: others take their place, and all
 * texts go on where they were. */
static void test_what_is_forgotten(void **state)
{
    (void)state;
    enum { COUNT = 60000 };
    struct vocabulary *v = bytes();
    struct grammar *g = grammar_new();
    const int32_t one = grammar_rule(g), all = grammar_rule(g);
    grammar_define(g, one, grammar_range(g, '0', '1', GRAMMAR_END));
    grammar_define(g, all, grammar_repeat(g, one, COUNT, COUNT, GRAMMAR_END));
    struct guide *guide = open_guide(g, all, v);
    int32_t *tokens = malloc(COUNT * sizeof *tokens);
    assert_non_null(tokens);
    struct guide_place near_start = {0}, place = {0};
    bool whole;
    for (int32_t i = 0; i < COUNT; i++)
        tokens[i] = '0' + i % 2;
    assert_int_equal(guide_move(guide, &near_start, tokens, 10), GUIDE_OPEN);
    for (int32_t i = 0; i < COUNT; i += 97) {
        const uint32_t *mask = guide_mask(guide, &place, tokens, i, &whole);
        assert_non_null(mask);
        assert_true(!whole && allows(mask, '0') && allows(mask, '1') && !allows(mask, '2'));
    }
    assert_int_equal(guide_move(guide, &place, tokens, COUNT), GUIDE_COMPLETE);
    assert_true(near_start.era < place.era);
    tokens[3] = 'x'; /* would not fit, but nobody goes through the answer again */
    assert_non_null(guide_mask(guide, &near_start, tokens, 11, &whole));
    assert_int_equal(near_start.count, 11);
    tokens[3] = '1';
    assert_int_equal(guide_move(guide, &near_start, tokens, COUNT), GUIDE_COMPLETE);
    free(tokens);
    guide_unref(guide);
    vocabulary_close(v);
}

/* ((0|1)*1(0|1){16}) has 2^17 states, of which each text needs another. */
static void test_many_states(void **state)
{
    (void)state;
    enum { BITS = 16, TEXT = 40000 };
    struct vocabulary *v = bytes();
    struct grammar *g = grammar_new();
    const int32_t bit = grammar_rule(g), all = grammar_rule(g), loop = grammar_fork(g);
    grammar_define(g, bit, grammar_range(g, '0', '1', GRAMMAR_END));
    const int32_t rest = grammar_repeat(g, bit, BITS, BITS, GRAMMAR_END);
    grammar_fork_set(g, loop, grammar_range(g, '0', '1', loop), grammar_text(g, "1", 1, rest));
    grammar_define(g, all, loop);
    struct guide *guide = open_guide(g, all, v);
    int32_t *tokens = malloc(TEXT * sizeof *tokens);
    assert_non_null(tokens);
    struct guide_place place = {0};
    uint32_t dice = 7;
    for (int32_t i = 0; i < TEXT; i++) {
        bool whole;
        dice = dice * 1664525 + 1013904223;
        tokens[i] = '0' + (int32_t)(dice >> 31);
        assert_non_null(guide_mask(guide, &place, tokens, i + 1, &whole));
        assert_int_equal(whole, i >= BITS && tokens[i - BITS] == '1');
    }
    free(tokens);
    guide_unref(guide);
    vocabulary_close(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_characters),   cmocka_unit_test(test_masks),
        cmocka_unit_test(test_depth),        cmocka_unit_test(test_no_dead_end),
        cmocka_unit_test(test_nothing_fits), cmocka_unit_test(test_what_is_forgotten),
        cmocka_unit_test(test_many_states),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
