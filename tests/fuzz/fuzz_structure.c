/* Any bytes as a JSON Schema or a regular expression. What is accepted never comes to a dead end,
 * and a text that is whole is JSON where JSON was asked for. Input: a byte for the kind, one for
 * the way through the grammar, then the text. */
#include "config/utf8.h"
#include "engine/grammar/guide.h"
#include "kernels/backend.h"
#include "server/grammar/pattern.h"
#include "server/grammar/structure.h"
#include "tests/fuzz/fuzz.h"

#include <string.h>

enum { STEPS = 300 };

static const char *byte_text(const void *ctx, int32_t id, int32_t *n)
{
    static char text;
    (void)ctx;
    text = (char)id;
    *n = 1;
    return &text;
}

static int32_t choose(const uint32_t *mask, uint32_t *dice)
{
    *dice = *dice * 1664525 + 1013904223;
    const int32_t from = (int32_t)(*dice >> 24);
    for (int32_t i = 0; i < 256; i++) {
        const int32_t id = (from + i) % 256;
        if ((mask[id / 32] >> (id % 32) & 1) != 0)
            return id;
    }
    return -1;
}

static void walk(struct guide *g, bool json, uint32_t dice)
{
    int32_t tokens[STEPS];
    char text[STEPS];
    struct guide_place place = {0};
    for (int32_t n = 0; n < STEPS; n++) {
        bool whole;
        struct jdoc *doc = NULL;
        struct err err;
        const enum guide_move move = guide_move(g, &place, tokens, n);
        CHECK(move != GUIDE_LOST);
        const uint32_t *mask = guide_mask(g, &place, tokens, n, &whole);
        if (!mask) /* too ambiguous from here on */
            return;
        CHECK(move == GUIDE_OPEN || whole);
        if (whole && json) {
            const enum status st = jdoc_parse(text, (size_t)n, &jdoc_limits_call, "", &doc, &err);
            CHECK(st == OK || strstr(err.text, "duplicate") || strstr(err.text, "nest"));
            jdoc_close(doc);
        }
        if (move == GUIDE_COMPLETE)
            return;
        tokens[n] = choose(mask, &dice);
        CHECK(tokens[n] >= 0);
        text[n] = (char)tokens[n];
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct vocabulary *v = NULL;
    struct grammar *grammar = NULL;
    struct guide *g = NULL;
    struct jdoc *doc = NULL;
    struct err err;
    if (size < 2)
        return 0;
    const char *text = (const char *)data + 2;
    const bool json = data[0] % 2 == 0;
    struct structure s = {.kind = json ? STRUCTURE_SCHEMA : STRUCTURE_PATTERN, .name = ""};
    struct buf quoted;
    buf_init(&quoted, (size_t)1 << 20);
    if (json)
        buf_add(&quoted, text, size - 2);
    else if (utf8_is_valid(text, size - 2))
        buf_json(&quoted, text, size - 2);
    if (jdoc_parse(quoted.data ? quoted.data : "", quoted.len, &jdoc_limits_request, "", &doc,
                   &err) == OK) {
        s.value = doc;
        CHECK(vocabulary_open(256, byte_text, NULL, &v, &err) == OK);
        if (structure_build(&s, &grammar, &err) == OK && guide_open(grammar, v, &g, &err) == OK)
            walk(g, json, data[1]);
    }
    guide_unref(g);
    vocabulary_close(v);
    jdoc_close(doc);
    buf_free(&quoted);
    return 0;
}
