/* The order of the parts of an answer: the same whether its text comes byte by byte or at once; and
 * what there is of a call that the prompt has begun and a limit has cut off. */
#include "server/answer/answer.h"
#include "tests/only.h"

#include <stdio.h>
#include <string.h>

#define CALL(name) "<tool_call>{\"name\": \"" name "\"}</tool_call>"
#define MESSAGE(header, text) "<|channel|>" header "<|message|>" text "<|end|><|start|>assistant"

static const struct answer_form
    hermes = {.calls = ANSWER_CALLS_HERMES},
    one_call = {.calls = ANSWER_CALLS_HERMES, .one_call = true},
    thinks = {.calls = ANSWER_CALLS_HERMES, .reasoning = true},
    llama3 = {.calls = ANSWER_CALLS_LLAMA3}, mistral = {.calls = ANSWER_CALLS_MISTRAL},
    args = {.calls = ANSWER_CALLS_MISTRAL_ARGS},
    magistral = {.calls = ANSWER_CALLS_MISTRAL_ARGS,
                 .reasoning = true,
                 .thoughts = ANSWER_THOUGHTS_MISTRAL},
    glm45 = {.calls = ANSWER_CALLS_GLM45}, coder = {.calls = ANSWER_CALLS_QWEN3_CODER},
    v3 = {.calls = ANSWER_CALLS_DEEPSEEK_V3}, v31 = {.calls = ANSWER_CALLS_DEEPSEEK_V31},
    harmony = {.calls = ANSWER_CALLS_OPENAI, .harmony = true, .reasoning = true},
    controls = {.calls = ANSWER_CALLS_OPENAI, .harmony = true, .reasoning = true, .controls = true},
    drops = {
        .calls = ANSWER_CALLS_OPENAI, .harmony = true, .reasoning = true, .drop_reasoning = true};

/* Each part has a letter in front: Reasoning, Content, or Tool with the call's index and name. */
static const struct {
    const struct answer_form *form;
    const char *text, *order;
} cases[] = {
    {&hermes, "", ""},
    {&hermes, "a", "|C:a"},
    {&hermes, "a" CALL("f") "b", "|C:a|T0:f|C:b"},
    {&hermes, CALL("f") CALL("g") "b" CALL("h"), "|T0:f|T1:g|C:b|T2:h"},
    {&hermes, "a\n" CALL("f") "\nb<tool_call>c" CALL("g"), "|C:a|T0:f|C:b<tool_call>c|T1:g"},
    {&one_call, "a" CALL("f") "b" CALL("g") "c", "|C:a|T0:f|C:bc"},
    {&thinks, "<think>r</think>a" CALL("f") "b", "|R:r|C:a|T0:f|C:b"},
    {&thinks, "<think>r</think>" CALL("f"), "|R:r|T0:f"},
    {&magistral, "[THINK]r[/THINK]a[TOOL_CALLS]f[ARGS]{}[TOOL_CALLS]g[ARGS]{}",
     "|R:r|C:a|T0:f|T1:g"},
    {&llama3, "{\"name\": \"f\", \"parameters\": {}} b", "|T0:f|C:b"},
    {&mistral, "a[TOOL_CALLS][{\"name\": \"f\"}, {\"name\": \"g\"}]b", "|C:a|T0:f|T1:g|C:b"},
    {&harmony, MESSAGE("final", "a") MESSAGE("analysis", "r") MESSAGE("final", "b"),
     "|C:a|R:r|C:\nb"},
    {&harmony,
     MESSAGE("analysis", "r") MESSAGE("commentary to=functions.f", "{}") MESSAGE("analysis", "s"),
     "|R:r|T0:f|R:\ns"},
    {&harmony,
     MESSAGE("final", "a") MESSAGE("commentary to=functions.f", "No.") MESSAGE("final", "b"),
     "|C:a\nNo.\nb"},
    {&controls, "\xff<|channel|>final\xff<|message|>a\xff", "|C:a"},
    {&drops, MESSAGE("final", "a") MESSAGE("analysis", "r") MESSAGE("final", "b"), "|C:a\nb"},
};

/* What has come, of several rounds: a text that goes on from one to the next is one part. */
struct seen {
    char order[512], last;
};

static void take(struct answer *a, struct seen *s)
{
    int32_t calls = 0;
    for (int32_t i = 0; i < answer_part_count(a); i++) {
        const struct answer_part part = answer_part(a, i);
        char *end = s->order + strlen(s->order);
        const size_t room = sizeof s->order - (size_t)(end - s->order);
        const char kind = "RCT"[part.kind];
        if (part.kind == ANSWER_CALL) {
            const struct answer_call call = answer_call(a, part.call);
            assert_int_equal(part.call, calls++);
            snprintf(end, room, "|T%d:%.*s", call.index, (int)call.name_len, call.name);
        } else {
            const char mark[] = {'|', kind, ':', '\0'};
            assert_true(part.len > 0);
            snprintf(end, room, "%s%.*s", kind == s->last ? "" : mark, (int)part.len, part.text);
        }
        s->last = kind;
    }
    assert_int_equal(calls, answer_call_count(a));
    answer_clear(a);
    assert_int_equal(answer_part_count(a), 0);
}

static void test_order(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const size_t n = strlen(cases[i].text);
        for (size_t size = 1; size <= n + 1; size++)
            for (int often = 0; often < 2; often++) {
                struct answer *a = answer_open(cases[i].form, 7);
                struct seen seen = {.order = ""};
                for (size_t at = 0; at < n; at += size) {
                    answer_push(a, cases[i].text + at, size < n - at ? size : n - at);
                    if (often)
                        take(a, &seen);
                }
                answer_finish(a, true);
                take(a, &seen);
                assert_false(answer_failed(a));
                assert_string_equal(seen.order, cases[i].order);
                answer_close(a);
            }
    }
}

/* More parts than there may be calls. */
static void test_many(void **state)
{
    static const char pair[] = MESSAGE("analysis", "r") MESSAGE("final", "c");
    enum { PAIRS = 1000 };
    struct answer *a = answer_open(&harmony, 7);
    (void)state;
    for (int i = 0; i < PAIRS; i++)
        answer_push(a, pair, sizeof pair - 1);
    assert_int_equal(answer_part_count(a), 2 * PAIRS);
    for (int32_t i = 0; i < 2 * PAIRS; i++) {
        const struct answer_part part = answer_part(a, i);
        assert_int_equal(part.kind, i % 2 ? ANSWER_CONTENT : ANSWER_REASONING);
        assert_int_equal(part.text[part.len - 1], i % 2 ? 'c' : 'r');
    }
    answer_close(a);
}

#define HERMES_BEGUN "<tool_call>\n{\"name\": \""
#define HERMES_NAMED HERMES_BEGUN "f\", \"arguments\":"
#define HERMES_ONE HERMES_BEGUN "f\", \"arguments\": {}}\n</tool_call>"
#define LLAMA3_NAMED "{\"name\": \"f\", \"parameters\":"
#define MISTRAL_NAMED "[TOOL_CALLS][{\"name\": \"f\", \"arguments\":"
#define DEEPSEEK_BEGUN "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>"
#define HARMONY_BEGUN "<|channel|>commentary to=functions."
#define HARMONY_NAMED HARMONY_BEGUN "f <|constrain|>json<|message|>"

/* A call that the prompt has begun and a limit cuts off is one as far as it goes, when its name is
 * whole: all that comes is calls or nothing. */
static const struct begun {
    const struct answer_form *form;
    const char *begun, *text;
    const char *calls; /* |name arguments|... */
    bool whole;        /* the last one */
} begun[] = {
    {&hermes, HERMES_BEGUN, "", "", true},
    {&hermes, HERMES_BEGUN, "f", "", true},
    {&hermes, HERMES_BEGUN, "f\"", "|f ", false},
    {&hermes, HERMES_BEGUN, "f\", \"argum", "|f ", false},
    {&hermes, HERMES_BEGUN, "f\", \"arguments\": ", "|f ", false},
    {&hermes, HERMES_BEGUN, "f\", \"arguments\": {\"x\": \"a \\", "|f {\"x\": \"a \\", false},
    {&hermes, HERMES_NAMED, " {\"x\": \"</tool_call> ", "|f {\"x\": \"</tool_call> ", false},
    {&hermes, HERMES_NAMED, "", "|f ", false},
    {&hermes, HERMES_NAMED, " {\"x\": {}}", "|f {\"x\": {}}", true},
    {&hermes, HERMES_NAMED, " {\"x\": {}}\n", "|f {\"x\": {}}", true},
    {&hermes, HERMES_NAMED, " {}}\n</tool_ca", "|f {}", true},
    {&hermes, HERMES_NAMED, " {}}\n</tool_call>\n<tool", "|f {}", true},
    {&hermes, HERMES_ONE, "\n<tool_call>", "|f {}", true},
    {&hermes, HERMES_ONE, "\n<tool_call>\n{\"na", "|f {}", true},
    {&hermes, HERMES_ONE, "\n<tool_call>\n{\"name\": \"g", "|f {}", true},
    {&hermes, HERMES_ONE, "\n" HERMES_BEGUN "g\", \"arguments\": {\"y\"", "|f {}|g {\"y\"", false},
    {&one_call, HERMES_ONE, "\n" HERMES_NAMED " {\"y\"", "|f {}", true},
    {&glm45, HERMES_NAMED, " {\"x\":", "|f {\"x\":", false},
    {&coder, HERMES_NAMED, " {\"x\":", "|f {\"x\":", false},
    {&llama3, "{\"name\": \"", "f", "", true},
    {&llama3, LLAMA3_NAMED, " {\"x\": 1", "|f {\"x\": 1", false},
    {&mistral, "[TOOL_CALLS][{\"name\": \"", "f", "", true},
    {&mistral, MISTRAL_NAMED, "{\"x\": [", "|f {\"x\": [", false},
    {&mistral, MISTRAL_NAMED, "{}},", "|f {}", true},
    {&mistral, MISTRAL_NAMED, "{}}, {\"name\": \"g\", \"arguments\": {", "|f {}|g {", false},
    {&args, "[TOOL_CALLS]", "", "", true},
    {&args, "[TOOL_CALLS]", "f", "", true},
    {&args, "[TOOL_CALLS]", "f[AR", "|f ", false},
    {&args, "[TOOL_CALLS]f[ARGS]", "", "|f ", false},
    {&args, "[TOOL_CALLS]f[ARGS]", "{\"x\"", "|f {\"x\"", false},
    {&args, "[TOOL_CALLS]f[ARGS]", "{}[TOOL_C", "|f {}", true},
    {&args, "[TOOL_CALLS]f[ARGS]", "{}[TOOL_CALLS]g[ARGS]{", "|f {}|g {", false},
    {&v31, DEEPSEEK_BEGUN, "", "", true},
    {&v31, DEEPSEEK_BEGUN, "f", "", true},
    {&v31, DEEPSEEK_BEGUN, "f<｜tool▁sep｜>", "|f ", false},
    {&v31, DEEPSEEK_BEGUN "f<｜tool▁sep｜>", "{\"x\"", "|f {\"x\"", false},
    {&v31, DEEPSEEK_BEGUN "f<｜tool▁sep｜>", "{}<｜tool▁call▁e", "|f {}", true},
    {&v31, DEEPSEEK_BEGUN "f<｜tool▁sep｜>", "{}<｜tool▁call▁end｜><｜tool▁call▁begin｜>g", "|f {}",
     true},
    {&v3, DEEPSEEK_BEGUN "function<｜tool▁sep｜>", "f\n``", "|f ", false},
    {&v3, DEEPSEEK_BEGUN "function<｜tool▁sep｜>f\n```json\n", "{}\n``", "|f {}", true},
    {&v3, DEEPSEEK_BEGUN "function<｜tool▁sep｜>f\n```json\n", "{}\n```<｜", "|f {}", true},
    {&v3, DEEPSEEK_BEGUN "function<｜tool▁sep｜>f\n```json\n",
     "{}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>func", "|f {}", true},
    {&harmony, HARMONY_BEGUN, "f", "", true},
    {&harmony, HARMONY_BEGUN, "f ", "", true},
    {&harmony, HARMONY_BEGUN, "f <|con", "", true},
    {&harmony, HARMONY_BEGUN, "f <|constrain|>json<|", "", true},
    {&controls, HARMONY_BEGUN, "f", "", true},
    {&controls, HARMONY_BEGUN, "f ", "", true},
    {&controls, HARMONY_BEGUN, "f \xff", "", true},
    {&harmony, HARMONY_BEGUN, "f<|message|>{", "|f {", false},
    {&controls, HARMONY_BEGUN, "f\xff<|message|>{", "|f {", false},
    {&controls, HARMONY_BEGUN, "f \xff<|constrain|>js", "", true},
    {&harmony, HARMONY_NAMED, "", "|f ", false},
    {&harmony, HARMONY_NAMED, " ", "|f ", false},
    {&harmony, HARMONY_NAMED, "{\"x\": \"", "|f {\"x\": \"", false},
    {&harmony, HARMONY_NAMED, "{\"x\": 1}", "|f {\"x\": 1}", true},
};

static void check_begun(const struct begun *x, bool by_letter)
{
    struct answer *a = answer_open(x->form, 0);
    const size_t n = strlen(x->text), step = by_letter ? 1 : n + 1;
    char calls[512] = "";
    answer_begin(a, x->begun, strlen(x->begun));
    for (size_t at = 0; at < n; at += step)
        answer_push(a, x->text + at, step < n - at ? step : n - at);
    answer_finish(a, false);
    const int32_t count = answer_call_count(a);
    for (int32_t i = 0; i < count; i++) {
        const struct answer_call call = answer_call(a, i);
        char *end = calls + strlen(calls);
        snprintf(end, sizeof calls - strlen(calls), "|%.*s %.*s", (int)call.name_len, call.name,
                 (int)call.arguments_len, call.arguments);
        assert_int_equal(call.cut, i == count - 1 && !x->whole);
    }
    if (strcmp(calls, x->calls) != 0 || answer_part_count(a) != count)
        fail_msg("%s%s: %s, and other parts: %d", x->begun, x->text, calls,
                 answer_part_count(a) - count);
    assert_int_equal(answer_calls_total(a), x->whole ? count : 0);
    answer_close(a);
}

static void test_begun(void **state)
{
    (void)state;
    for (size_t i = 0; i < 2 * ARRAY_LEN(begun); i++)
        check_begun(&begun[i / 2], i % 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_many),
        cmocka_unit_test(test_begun),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
