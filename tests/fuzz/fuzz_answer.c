/* Texts of any kind as the answer of a model. The parts are the same whatever pieces it comes in,
 * what is not a call is not lost, and what is told as a call has JSON arguments. Input: a byte for
 * the form, one for the cuts, then the text. */
#include "config/jdoc.h"
#include "config/utf8.h"
#include "server/answer/answer.h"
#include "server/answer/harmony.h"
#include "tests/fuzz/fuzz.h"

#include <string.h>

#define TEXT_MAX 4096
#define PARTS 3 /* content with calls, reasoning, the order of all */
#define PARTS_MAX ((size_t)1 << 20)

static void add_calls(const struct answer *a, struct buf *out)
{
    for (int32_t i = 0; i < answer_call_count(a); i++) {
        const struct answer_call call = answer_call(a, i);
        struct jdoc *arguments = NULL;
        struct err err;
        CHECK(call.name_len > 0 && call.index < ANSWER_CALLS_MAX);
        CHECK(jdoc_parse(call.arguments, call.arguments_len, &jdoc_limits_call, "", &arguments,
                         &err) == OK);
        CHECK(jdoc_type(arguments) == JDOC_OBJECT);
        jdoc_close(arguments);
        buf_printf(out, "\n%s %d %.*s ", call.id, call.index, (int)call.name_len, call.name);
        buf_add(out, call.arguments, call.arguments_len);
    }
}

/* The order of parts; what goes on from one piece to the next is one. All that came is in it. */
static void add_order(const struct answer *a, enum answer_kind *last, struct buf *out)
{
    size_t texts = 0;
    int32_t calls = 0;
    for (int32_t i = 0; i < answer_part_count(a); i++) {
        const struct answer_part part = answer_part(a, i);
        CHECK(part.kind == ANSWER_CALL ? part.call == calls : part.len > 0);
        if (part.kind == ANSWER_CALL || out->len == 0 || part.kind != *last)
            buf_printf(out, "\n%d ", (int)part.kind);
        if (part.kind != ANSWER_CALL)
            buf_add(out, part.text, part.len);
        calls += part.kind == ANSWER_CALL;
        texts += part.len;
        *last = part.kind;
    }
    CHECK(calls == answer_call_count(a));
    CHECK(texts == answer_content(a)->len + answer_reasoning(a)->len);
}

/* Content, reasoning, order and calls of a text that comes in pieces of up to `most` bytes. */
static void read_parts(const struct answer_form *form, const char *text, size_t n, size_t most,
                       uint32_t seed, struct buf *parts)
{
    struct answer *a = answer_open(form, 1);
    enum answer_kind last = ANSWER_CONTENT;
    struct buf calls;
    CHECK(a != NULL);
    buf_init(&calls, PARTS_MAX);
    buf_init(&parts[0], PARTS_MAX);
    buf_init(&parts[1], PARTS_MAX);
    buf_init(&parts[2], PARTS_MAX);
    for (size_t i = 0; i <= n;) {
        seed = seed * 1664525 + 1013904223;
        size_t step = 1 + (seed >> 16) % most;
        step = step < n - i ? step : n - i;
        if (i == n)
            answer_finish(a, true);
        else
            answer_push(a, text + i, step);
        buf_add(&parts[0], answer_content(a)->data, answer_content(a)->len);
        buf_add(&parts[1], answer_reasoning(a)->data, answer_reasoning(a)->len);
        add_order(a, &last, &parts[2]);
        add_calls(a, &calls);
        answer_clear(a);
        i += i == n ? 1 : step;
    }
    CHECK(!answer_failed(a));
    /* messages of the harmony format are lines, also those whose header stays in the text */
    const size_t lines = form->harmony ? n / strlen(HARMONY_CHANNEL HARMONY_MESSAGE) : 0;
    CHECK(parts[0].len + parts[1].len <= n + lines);
    if (answer_calls_total(a) == 0 && !form->reasoning && !form->harmony) {
        size_t at = 0; /* of the text without ANSWER_CONTROL */
        for (size_t i = 0; i < n; i++) {
            if (text[i] == ANSWER_CONTROL)
                continue;
            CHECK(at < parts[0].len && parts[0].data[at] == text[i]);
            at++;
        }
        CHECK(at == parts[0].len);
    }
    buf_add(&parts[0], calls.data, calls.len);
    buf_free(&calls);
    answer_close(a);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct buf whole[PARTS], pieces[PARTS];
    if (size < 2 || size > TEXT_MAX)
        return 0;
    const int kind = (data[0] & 7) + (data[1] >> 4 & 8);
    const enum answer_calls calls = (enum answer_calls)(kind % ANSWER_CALLS_COUNT);
    const struct answer_form form = {.calls = calls,
                                     .harmony = calls == ANSWER_CALLS_OPENAI,
                                     .content_open = data[0] & 128,
                                     .controls = data[1] & 1,
                                     .reasoning = data[0] & 8,
                                     .thoughts = data[1] & 2   ? ANSWER_THOUGHTS_MISTRAL
                                                 : data[1] & 4 ? ANSWER_THOUGHTS_GEMMA4
                                                               : ANSWER_THOUGHTS_TAGS,
                                     .reasoning_open = data[0] & 16,
                                     .drop_reasoning = data[0] & 32,
                                     .one_call = data[0] & 64};
    const char *text = (const char *)data + 2;
    const struct answer_syntax *syntax = answer_syntax(calls);
    if ((syntax->tags || syntax->quote) && !utf8_is_valid(text, size - 2))
        return 0; /* texts without quotes become JSON, which wants them as answer_push does */
    read_parts(&form, text, size - 2, TEXT_MAX, 0, whole);
    for (size_t most = 1; most < 40; most += 13) {
        read_parts(&form, text, size - 2, most, data[1], pieces);
        for (int i = 0; i < PARTS; i++) {
            CHECK(whole[i].len == pieces[i].len);
            CHECK(whole[i].len == 0 || memcmp(whole[i].data, pieces[i].data, whole[i].len) == 0);
            buf_free(&pieces[i]);
        }
    }
    for (int i = 0; i < PARTS; i++)
        buf_free(&whole[i]);
    return 0;
}
