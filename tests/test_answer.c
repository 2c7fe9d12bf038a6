/* What an answer is made of: the same parts whatever pieces its text comes in. How models write
 * calls is from the cards and chat templates of Qwen2.5, Qwen3, Llama 3.1 and Mistral, and from the
 * harmony format's own description (harmony.h). */
#include "server/answer/answer.h"

#include "server/answer/call.h"
#include "server/answer/harmony.h"
#include "tests/scratch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HERMES                                                                                     \
    {                                                                                              \
        .calls = ANSWER_CALLS_HERMES                                                               \
    }
#define LLAMA3                                                                                     \
    {                                                                                              \
        .calls = ANSWER_CALLS_LLAMA3                                                               \
    }
#define MISTRAL                                                                                    \
    {                                                                                              \
        .calls = ANSWER_CALLS_MISTRAL                                                              \
    }
#define HARMONY                                                                                    \
    {                                                                                              \
        .calls = ANSWER_CALLS_OPENAI, .harmony = true, .reasoning = true                           \
    }
#define CONTROLS                                                                                   \
    {                                                                                              \
        .calls = ANSWER_CALLS_OPENAI, .harmony = true, .reasoning = true, .controls = true         \
    }
#define THINKS                                                                                     \
    {                                                                                              \
        .reasoning = true                                                                          \
    }
#define BRACKETS                                                                                   \
    {                                                                                              \
        .calls = ANSWER_CALLS_MISTRAL_ARGS, .reasoning = true, .thoughts = ANSWER_THOUGHTS_MISTRAL \
    }
#define THINKS_AT_ONCE                                                                             \
    {                                                                                              \
        .reasoning = true, .reasoning_open = true                                                  \
    }

static const struct example {
    struct answer_form form;
    const char *text;
    const char *parts; /* reasoning | content | name arguments | ... */
} examples[] = {
    {{.calls = ANSWER_CALLS_NONE}, "a <tool_call> {\n", "|a <tool_call> {\n"},
    {HERMES, "", "|"},
    {HERMES, "\n", "|\n"},
    {HERMES, "a\n\nb\n", "|a\n\nb\n"},
    {HERMES, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1.10}}\n</tool_call>",
     "||f {\"x\": 1.10}"},
    {HERMES, "Well.\n\n<tool_call>{\"arguments\":{ } ,\"name\":\"f\"}</tool_call>\n",
     "|Well.|f { }"},
    {HERMES,
     "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>\n<tool_call>\n{\"name\": "
     "\"g\", "
     "\"arguments\": {\"a\": [{\"b\": \"}]\\\"{\"}]}}\n</tool_call>",
     "||f {}|g {\"a\": [{\"b\": \"}]\\\"{\"}]}"},
    {{.calls = ANSWER_CALLS_HERMES, .one_call = true},
     "<tool_call>{\"name\": \"f\"}</tool_call><tool_call>{\"name\": \"g\"}</tool_call>",
     "||f {}"},
    {HERMES, "<tool_call>{\"name\": \"f\", \"arguments\": null}", "||f {}"},
    {HERMES, "<tool_call>{\"name\": \"f\"}</tool_call>\nand more\n", "|and more\n|f {}"},
    {HERMES, "<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": \"</tool_call>\"}}</tool_call>",
     "||f {\"s\": \"</tool_call>\"}"},
    {HERMES, "<tool_call>{\"name\": \"f\", \"arguments\": {\"name\": \"g\", \"arguments\": 1}}}",
     "|}|f {\"name\": \"g\", \"arguments\": 1}"},
    {HERMES, "<tool_call>{\"name\": \"\xc3\xa9\\u00e9\"}", "||\xc3\xa9\xc3\xa9 {}"},
    {HERMES, "<tool_call>{\"name\": \"f\", \"parameters\": {\"y\": 2}}</tool_call>",
     "||f {\"y\": 2}"},
    /* not calls: content, byte for byte */
    {HERMES, "a\n<tool_call>", "|a\n<tool_call>"},
    {HERMES, "a\n<tool_ca", "|a\n<tool_ca"},
    {HERMES, "<tool_call> \n", "|<tool_call> \n"},
    {HERMES, "<tool_call>f(1)</tool_call>", "|<tool_call>f(1)</tool_call>"},
    {HERMES, "\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\"",
     "|\n<tool_call>\n{\"name\": \"f\", "
     "\"arguments\": {\"x\""},
    {HERMES, "<tool_call>{\"name\": \"f\", \"arguments\": {x: 1}}</tool_call>",
     "|<tool_call>{\"name\": \"f\", \"arguments\": {x: 1}}</tool_call>"},
    {HERMES, "<tool_call>{\"name\": 1}</tool_call>", "|<tool_call>{\"name\": 1}</tool_call>"},
    {HERMES, "<tool_call>{\"name\": \"\"}", "|<tool_call>{\"name\": \"\"}"},
    {HERMES, "<tool_call>{\"name\": \"a\\u0000\"}", "|<tool_call>{\"name\": \"a\\u0000\"}"},
    {HERMES, "<tool_call>{\"name\": \"f\", \"arguments\": \"{}\"}",
     "|<tool_call>{\"name\": \"f\", \"arguments\": \"{}\"}"},
    {HERMES, "<tool_call>{\"name\": \"f\", \"argument\\u0073\": {}}",
     "|<tool_call>{\"name\": \"f\", \"argument\\u0073\": {}}"},
    {HERMES, "<tool_call>{\"name\": \"f\", \"name\": \"g\"}",
     "|<tool_call>{\"name\": \"f\", \"name\": \"g\"}"},
    {HERMES, "<tool_call>{\"name\": \"f\", \"arguments\": [1], \"parameters\": {}}",
     "|<tool_call>{\"name\": \"f\", \"arguments\": [1], \"parameters\": {}}"},
    {HERMES, "<tool_call>{]}<tool_call>{\"name\": \"f\"}", "|<tool_call>{]}|f {}"},
    {HERMES, "<tool_call>{\"name\": \"f\"\n</tool_call>\n<tool_call>{\"name\": \"g\"}",
     "|<tool_call>{\"name\": \"f\"\n</tool_call>|g {}"},
    {HERMES, "<tool_call>{\"name\": \"f\", \"arguments\": {\"n\": 18446744073709551616}}",
     "||f {\"n\": 18446744073709551616}"},
    {HERMES, "<tool_call>{\"name\": \"f\", \"parameters\": {\"b\": 2}, \"arguments\": {\"a\": 1}}",
     "||f {\"a\": 1}"},
    {HERMES, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}, \"parameters\": null }",
     "||f {\"a\": 1}"},

    {LLAMA3, "{\"name\": \"f\", \"parameters\": {\"x\": \"1\"}}", "||f {\"x\": \"1\"}"},
    {LLAMA3, "\n <|python_tag|> {\"name\": \"f\", \"parameters\": {}}", "||f {}"},
    {LLAMA3,
     "{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\", \"arguments\": {\"a\": {}}}\n",
     "||f {}|g {\"a\": {}}"},
    {LLAMA3, "{\"name\": \"f\", \"parameters\": {}}\n{\"name\": \"g\", \"parameters\": {}} done",
     "|done|f {}|g {}"},
    {LLAMA3, "<|python_tag|>{\"name\": \"f\"} ; ; {\"name\": \"g\"};; {", "|{|f {}|g {}"},
    {LLAMA3, "{\"name\": \"Alice\", \"age\": 30}", "|{\"name\": \"Alice\", \"age\": 30}"},
    {LLAMA3, "Use {\"name\": \"f\"}", "|Use {\"name\": \"f\"}"},
    {LLAMA3, " {\"temperature\": 7}\n{\"name\": \"f\"}",
     "| {\"temperature\": 7}\n{\"name\": \"f\"}"},
    {LLAMA3, "<|python_tag|>print(1)", "|<|python_tag|>print(1)"},
    {LLAMA3, "<|pyth", "|<|pyth"},
    {LLAMA3, " \n", "| \n"},

    {MISTRAL, "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"x\": 1}}]", "||f {\"x\": 1}"},
    {MISTRAL, "Sure.[TOOL_CALLS] [{\"name\": \"f\"}, {\"name\": \"g\", \"arguments\": {}}] ",
     "|Sure.|f {}|g {}"},
    {MISTRAL, "[TOOL_CALLS]get_it[ARGS]{\"x\": {\"name\": 1}}", "||get_it {\"x\": {\"name\": 1}}"},
    {MISTRAL, "[TOOL_CALLS]a.b-c{}[TOOL_CALLS]d [ARGS] {\"y\": []}", "||a.b-c {}|d {\"y\": []}"},
    {MISTRAL, "[TOOL_CALLS]f[CALL_ID]a1B2c3D4e[ARGS]{\"x\": 1}", "||f {\"x\": 1}"},
    {MISTRAL, "[TOOL_CALLS]f[CALL_ID]a{}", "||f {}"},
    {MISTRAL, "[TOOL_CALLS]f[CALL_ID]", "|[TOOL_CALLS]f[CALL_ID]"},
    {MISTRAL, "[TOOL_CALLS][{\"name\": \"f\"}, 3]", "|3]|f {}"},
    {MISTRAL, "[TOOL_CALLS][[{\"name\": \"f\"}]]", "|[TOOL_CALLS][[{\"name\": \"f\"}]]"},
    {MISTRAL, "[TOOL_CALLS][3] [TOOL_CALLS]f{}", "|[TOOL_CALLS][3] |f {}"},
    {MISTRAL, "[TOOL_CALLS]f{x}[TOOL_CALLS][{\"name\": \"g\"}]", "|[TOOL_CALLS]f{x}|g {}"},
    {MISTRAL, "[TOOL_CALLS]f{}[TOOL_CALLS]{\"name\": \"g\"}", "||f {}|g {}"},
    {MISTRAL, "[TOOL_CALLS]two words", "|[TOOL_CALLS]two words"},
    {MISTRAL, "[TOOL_CALLS]f[ARGS]", "|[TOOL_CALLS]f[ARGS]"},
    {MISTRAL, "[TOOL_CALLS]f[ARGS]{\"x\"}", "|[TOOL_CALLS]f[ARGS]{\"x\"}"},
    {MISTRAL, "[TOOL_CALLS]\xc3\xa9{}", "|[TOOL_CALLS]\xc3\xa9{}"},
    {MISTRAL, "[1, 2] [TOOL", "|[1, 2] [TOOL"},

    {THINKS, "<think>\nHm.\n\nYes.\n</think>\n\nIt is.\n", "Hm.\n\nYes.|It is.\n"},
    {THINKS, "\n<think>a</think>b", "a|b"},
    {THINKS, "<think>\n\n</think>\n\n  indented", "|  indented"},
    {THINKS, "No <think>thought</think>", "|No <think>thought</think>"},
    {THINKS, "<thinks>", "|<thinks>"},
    {THINKS, "<thi", "|<thi"},
    {THINKS, " \n", "| \n"},
    {THINKS, "<think>\ncut off </thin\n", "cut off </thin\n|"},
    {THINKS, "<think>a</think>b<think>c</think>", "a|b<think>c</think>"},
    {THINKS_AT_ONCE, "\nHm.\n</think>\nYes", "Hm.|Yes"},
    {THINKS_AT_ONCE, "Hm", "Hm|"},
    {BRACKETS, "[THINK]Hm.\n\nYes.[/THINK]It is.\n", "Hm.\n\nYes.|It is.\n"},
    {BRACKETS, "\n[THINK]\na\n[/THINK]\n\nb[THINK]c[/THINK]", "a|b[THINK]c[/THINK]"},
    {BRACKETS, "[THINK]<think>a</think>[THI[TOOL_CALLS]f[ARGS]{}[/THINK]b",
     "<think>a</think>[THI[TOOL_CALLS]f[ARGS]{}|b"},
    {BRACKETS, "[THINK]a[/THINK][TOOL_CALLS]f[ARGS]{\"x\": 1}[TOOL_CALLS]g[ARGS]{}",
     "a||f {\"x\": 1}|g {}"},
    {BRACKETS, "<think>a</think>b", "|<think>a</think>b"},
    {BRACKETS, "[THINKS]", "|[THINKS]"},
    {BRACKETS, "[THINK", "|[THINK"},
    {BRACKETS, "[THINK]cut off [/THIN", "cut off [/THIN|"},
    {{.reasoning = true, .reasoning_open = true, .thoughts = ANSWER_THOUGHTS_MISTRAL},
     "Hm.</think>[/THINK]Yes",
     "Hm.</think>|Yes"},
    {THINKS, "[THINK]a[/THINK]b", "|[THINK]a[/THINK]b"},
    {{.reasoning = true, .reasoning_open = true, .drop_reasoning = true}, "Hm</think>Yes", "|Yes"},
    {{.reasoning = true, .calls = ANSWER_CALLS_HERMES},
     "<think>\n<tool_call>{\"name\": \"f\"}\n</think>\n\n<tool_call>{\"name\": \"g\"}</tool_call>",
     "<tool_call>{\"name\": \"f\"}||g {}"},
    {HARMONY,
     "<|channel|>analysis<|message|>Hm.\n\nYes.<|end|><|start|>assistant<|channel|>final<|message|>"
     "It is.\n",
     "Hm.\n\nYes.|It is.\n"},
    {HARMONY, " to=functions.f <|constrain|>json<|message|>{}", "||f {}"},
    {HARMONY, " to=functions.f<|message|>{}<|call|>", "||f {}"},
    {HARMONY,
     "<|channel|>analysis<|message|>a<|end|>\n<|start|>assistant<|channel|>final<|message|>b<|end|>"
     " ",
     "a|b"},
    {HARMONY,
     "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis to=python "
     "code<|message|>print(1)<|call|><|start|>assistant<|channel|>final<|message|>b",
     "a\nprint(1)|b"},
    {HARMONY, "<|channel|>final<|message|>Say <|channel|>banana", "|Say <|channel|>banana"},
    {HARMONY, "<|channel|>final<|message|>Say <|channel|>fin", "|Say "},
    {HARMONY,
     "<|channel|>commentary<|message|>Let me.<|end|><|start|>assistant<|channel|>commentary "
     "to=functions.f <|constrain|>json<|message|>{} and more",
     "|Let me.\nand more|f {}"},
    {HARMONY, "<|channel|>final<|message|>It is.", "|It is."},
    {HARMONY, "<|channel|>fin<|message|>a", "|<|channel|>fin<|message|>a"},
    {HARMONY,
     "<|channel|>final<|message|>a<|end|><|start|>assistant<|channel|>final<|message|><|end|><|"
     "start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>[1]",
     "|a\n[1]"},
    {HARMONY,
     "<|channel|>commentary to=functions.f "
     "<|constrain|>json<|message|>{x}<|call|><|start|>assistant<|channel|>final<|message|>a",
     "|{x}\na"},
    {HARMONY, "<|channel|>final<|message|>It is.<|return|>", "|It is."},
    {HARMONY, "", "|"},
    {HARMONY, "<|channel|>analysis<|message|>", "|"},
    {HARMONY, "<|channel|>analysis<|message|>Hm", "Hm|"},
    {HARMONY, "<|channel|>analysis<|message|><|end|><|start|>assistant<|channel|>final<|message|>",
     "|"},
    {HARMONY, "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"x\": 1.10}",
     "||f {\"x\": 1.10}"},
    {HARMONY,
     "<|channel|>commentary to=functions.f <|constrain|>json<|message|> {\"s\": "
     "\"<|call|><|end|>\"}\n<|call|>",
     "||f {\"s\": \"<|call|><|end|>\"}"},
    {HARMONY,
     "<|channel|>analysis<|message|>I must.<|end|><|start|>assistant<|channel|>commentary "
     "to=functions.f <|constrain|>json<|message|>{\"a\": [{\"b\": \"}]\\\"{\"}]}<|call|>",
     "I must.||f {\"a\": [{\"b\": \"}]\\\"{\"}]}"},
    {HARMONY, " to=functions.f<|channel|>commentary json<|message|>{}", "||f {}"},
    {HARMONY,
     "<|channel|>analysis<|message|>a<|end|><|start|>assistant to=functions.g<|channel|>analysis "
     "<|constrain|>application/json<|message|>{\"y\":2}<|call|>",
     "a||g {\"y\":2}"},
    {HARMONY, "<|channel|>commentary to=browser.search code<|message|>{\"q\": \"x\"}<|call|>",
     "{\"q\": \"x\"}|"},
    {HARMONY, "<|channel|>final to=user<|message|>a", "|a"},
    {HARMONY,
     "<|channel|>commentary<|message|>Let me see.<|end|><|start|>assistant<|channel|>commentary "
     "to=functions.f <|constrain|>json<|message|>{}<|call|><|start|>assistant<|channel|>commentary "
     "to=functions.g<|message|>{}<|call|><|start|>assistant<|channel|>final<|message|>Done",
     "|Let me see.\nDone|f {}|g {}"},
    {HARMONY,
     "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b<|end|"
     "><|start|>assistant<|channel|>commentary<|message|>c<|end|><|start|>assistant<|channel|>"
     "analysis<|message|>d",
     "a\nb\nd|c"},
    {HARMONY,
     "<|channel|>commentary<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>"
     "commentary to=assistant<|channel|>final<|message|>b",
     "a|b"},
    {HARMONY,
     "<|channel|>final<|message|>a<|channel|>analysis<|message|>b<|start|>assistant<|message|>c<|"
     "start|>assistant<|channel|>final <|constrain|>json<|message|>{}",
     "b|a\nc\n{}"},
    {HARMONY, "<|channel|>commentary to=functions.f <|constrain|>json<|message|>", "||f {}"},
    {HARMONY,
     "<|channel|>commentary to=functions.f <|constrain|>json<|message|> "
     "\n<|call|><|start|>assistant<|channel|>final<|message|>x",
     "|x|f {}"},
    {HARMONY, "Hello, <b>.", "|Hello, <b>."},
    {HARMONY, " \n", "| \n"},
    {HARMONY, " to be", "| to be"},
    {HARMONY, " to", "| to"},
    {HARMONY, "to=x", "|to=x"},
    {HARMONY, "<|channel|>banana<|message|>a", "|<|channel|>banana<|message|>a"},
    {HARMONY, "<|channel|>final|<|channel|>final<|message|>a", "|<|channel|>final|\na"},
    {HARMONY, "<|start|>user<|message|>a", "|<|start|>user<|message|>a"},
    {HARMONY,
     "<|channel|>analysis<|message|>the mark <|end|> ends, and <|channel|> or <|start|>assistant "
     "begins",
     "the mark <|end|> ends, and <|channel|> or <|start|>assistant begins|"},
    {HARMONY, "<|channel|>final<|message|>a <|en<|end|>", "|a <|en"},
    {HARMONY, "<|channel|>final<|message|>a<|end|><|end|>", "|a<|end|>"},
    {HARMONY, "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>fin", "a|"},
    {HARMONY, "<|channel|>analysis<|message|>a<|end|><|sta", "a<|end|><|sta|"},
    {HARMONY, "<|channel|>ana", "|"},
    {HARMONY, "<|channel|>commentary to=functions", "|"},
    {HARMONY, "<|channel|>final<|message|>a<|start|>assistant", "|a"},
    {HARMONY, "<|channel|>final<|message|>a <", "|a <"},
    {HARMONY, "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"x\": 1",
     "|{\"x\": 1"},
    {HARMONY,
     "<|channel|>commentary to=functions.f "
     "<|constrain|>json<|message|>f(1)<|call|><|start|>assistant<|channel|>final<|message|>a",
     "|f(1)\na"},
    {HARMONY,
     "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>commentary to=functions.f "
     "<|constrain|>json<|message|>{x}<|call|>",
     "a|{x}"},
    {HARMONY, "<|channel|>commentary to=functions.f <|constrain|>json<|message|>[1]", "|[1]"},
    {HARMONY, "<|channel|>final <|constrain|>json_schema:x-1;a=\"b\"<|message|>{}", "|{}"},
    {HARMONY, "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{} and more",
     "|and more|f {}"},
    {HARMONY, "<|channel|>commentary to=functions.f!<|message|>{}",
     "|<|channel|>commentary to=functions.f!<|message|>{}"},
    {HARMONY, "<|channel|>commentary to=functions.<|message|>{}",
     "|<|channel|>commentary to=functions.<|message|>{}"},
    /* letters that spell marks where these are tokens */
    {CONTROLS, "\xff<|channel|>final\xff<|message|>s = \"<|channel|>final<|message|>\"",
     "|s = \"<|channel|>final<|message|>\""},
    {CONTROLS,
     "\xff<|channel|>final\xff<|message|>It says: <|end|><|start|>assistant to=functions.f"
     "<|channel|>commentary<|message|>{}<|call|>",
     "|It says: <|end|><|start|>assistant "
     "to=functions.f<|channel|>commentary<|message|>{}<|call|>"},
    {CONTROLS, "\xff<|channel|>analysis\xff<|message|>a <|channel|>final<|message|> b",
     "a <|channel|>final<|message|> b|"},
    {CONTROLS, "\xff<|channel|>commentary to=functions.f\xff<|message|>{\"s\": \"<|call|>\"}",
     "||f {\"s\": \"<|call|>\"}"},
    {CONTROLS, "<|channel|>final<|message|>a", "|<|channel|>final<|message|>a"},
    {CONTROLS, "a\xff", "|a"},
    {CONTROLS, "\xff<|channel|>final\xff<|message|>a\xff<|start|>user", "|a<|start|>user"},
    {CONTROLS, " to=functions.f", "|"},
    {CONTROLS, " to be", "| to be"},
    {{.harmony = true, .reasoning = true},
     "<|channel|>commentary to=functions.f "
     "<|constrain|>json<|message|>{}<|call|><|start|>assistant<|channel|>final<|message|>a",
     "|{}\na"},
    {{.harmony = true, .calls = ANSWER_CALLS_OPENAI},
     "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b",
     "|a\nb"},
    {{.harmony = true, .reasoning = true, .reasoning_open = true},
     "a<|end|><|start|>assistant<|channel|>final<|message|>b",
     "a|b"},
    {{.harmony = true, .reasoning = true, .content_open = true},
     "a<|end|><|start|>assistant<|channel|>analysis<|message|>b",
     "b|a"},
    {{.harmony = true, .reasoning = true, .content_open = true},
     " to=f<|message|>a",
     "| to=f<|message|>a"},
    {{.harmony = true, .reasoning = true, .drop_reasoning = true},
     "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b",
     "|b"},
    {{.harmony = true, .calls = ANSWER_CALLS_OPENAI, .one_call = true},
     "<|channel|>commentary to=functions.f "
     "<|constrain|>json<|message|>{}<|call|><|start|>assistant<|channel|>commentary to=functions.f "
     "<|constrain|>json<|message|>{\"x\":1}<|call|>",
     "||f {}"},
    {{.reasoning = true, .reasoning_open = true, .calls = ANSWER_CALLS_LLAMA3},
     "Hm</think>\n\n{\"name\": \"g\", \"parameters\": {}}",
     "Hm||g {}"},
};

/* What has come, of several rounds. */
struct seen {
    char reasoning[512], content[1024], calls[512], ids[8][ANSWER_ID_BYTES + 1];
    int32_t count;
};

static void take(struct answer *a, struct seen *s)
{
    const struct buf *r = answer_reasoning(a), *c = answer_content(a);
    strncat(s->reasoning, r->len ? r->data : "", r->len);
    strncat(s->content, c->len ? c->data : "", c->len);
    for (int32_t i = 0; i < answer_call_count(a); i++) {
        const struct answer_call call = answer_call(a, i);
        const size_t n = strlen(s->calls);
        assert_int_equal(call.index, s->count);
        assert_int_equal(strlen(call.id), ANSWER_ID_BYTES);
        memcpy(s->ids[s->count++], call.id, sizeof call.id);
        snprintf(s->calls + n, sizeof s->calls - n, "|%.*s %.*s", (int)call.name_len, call.name,
                 (int)call.arguments_len, call.arguments);
    }
    answer_clear(a);
}

/* In pieces of `size` bytes after one of `first`; parts are taken after each piece, or at the end.
 */
static void run(const struct example *x, size_t first, size_t size, bool often, struct seen *out)
{
    struct answer *a = answer_open(&x->form, 7);
    const size_t n = strlen(x->text);
    *out = (struct seen){.count = 0};
    assert_non_null(a);
    for (size_t i = 0, step = first; i < n; i += step, step = size) {
        step = step < n - i ? step : n - i;
        answer_push(a, x->text + i, step);
        if (often)
            take(a, out);
        if (step == 0)
            break;
    }
    answer_finish(a, true);
    take(a, out);
    assert_false(answer_failed(a));
    assert_int_equal(answer_calls_total(a), out->count);
    answer_close(a);
}

static void check_example(const struct example *x)
{
    const size_t n = strlen(x->text);
    struct seen seen;
    char parts[2048];
    for (size_t first = 1; first <= n + 1; first++)
        for (size_t size = 1; size <= 3; size++)
            for (int often = 0; often < 2; often++) {
                run(x, first, size == 3 ? n + 1 : size, often, &seen);
                snprintf(parts, sizeof parts, "%s|%s%s", seen.reasoning, seen.content, seen.calls);
                if (strcmp(parts, x->parts) != 0)
                    fail_msg("%s\nfirst %zu, size %zu: %s\nwanted: %s", x->text, first, size, parts,
                             x->parts);
            }
}

static void test_examples(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(examples); i++)
        check_example(&examples[i]);
}

/* Marks outside of strings become control tokens. */
static void write_controls(const struct answer_form *form, const char *text, char *to)
{
    const char *marks[ANSWER_MARKS_MAX];
    bool quoted = false;
    answer_form_marks(form, marks);
    for (; *text; *to++ = *text++) {
        if (*text == '\\' && text[1] != '\0')
            *to++ = *text++;
        else
            quoted = quoted != (*text == '"');
        for (size_t m = 0; marks[m] && !quoted; m++)
            if (strncmp(text, marks[m], strlen(marks[m])) == 0)
                *to++ = ANSWER_CONTROL;
    }
    *to = '\0';
}

/* The examples written in letters are the same where marks are tokens. */
static void test_controls(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(examples); i++) {
        struct example x = examples[i];
        char text[2048];
        if (!x.form.harmony || x.form.controls || !strstr(x.text, "<|"))
            continue;
        write_controls(&x.form, x.text, text);
        x.form.controls = true;
        x.text = text;
        check_example(&x);
    }
}

/* What is surely content is not held back. */
static void test_at_once(void **state)
{
    static const struct answer_form forms[] = {HERMES, LLAMA3,         MISTRAL, HARMONY,
                                               THINKS, THINKS_AT_ONCE, BRACKETS};
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(forms); i++) {
        struct answer *a = answer_open(&forms[i], 0);
        answer_push(a, "some words", 10);
        const struct buf *out = i == 5 ? answer_reasoning(a) : answer_content(a);
        assert_int_equal(out->len, 10);
        answer_clear(a);
        answer_push(a, i == 6 ? "[T" : "<t", 2);
        answer_push(a, "d>", 2);
        assert_int_equal(out->len, 4);
        assert_int_equal(answer_reasons(a), i == 5);
        answer_close(a);
    }
}

/* Blanks wait for what follows them, but not many, and in the same way whatever the pieces. */
static void test_blanks(void **state)
{
    static const struct {
        struct answer_form form;
        const char *before, *blank, *after;
    } cases[] = {
        {THINKS, "", " ", "<think>a</think>b"},
        {HARMONY, "<|channel|>commentary to=functions.f<|message|>", " ", "{}"},
        {THINKS, "<think>a", "\n", "</think>b"},
        {LLAMA3, "", " ", "{\"name\": \"f\", \"parameters\": {}}"},
        {HERMES, "<tool_call>", " ", "{\"name\": \"f\"}"},
        {HERMES, "a", "\n", "<tool_call>{\"name\": \"f\"}"},
        {MISTRAL, "[TOOL_CALLS]f", " ", "{}"},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        for (int n = 250; n < 262; n++) {
            char text[512];
            struct example x = {cases[i].form, text, NULL};
            struct seen one, other;
            char *end = stpcpy(text, cases[i].before);
            for (int k = 0; k < n; k++)
                end = stpcpy(end, cases[i].blank);
            stpcpy(end, cases[i].after);
            run(&x, 1, 1, true, &one);
            run(&x, sizeof text, sizeof text, false, &other);
            assert_memory_equal(&one, &other, sizeof one);
            const bool seen = one.count > 0 || one.reasoning[0];
            assert_int_equal(seen, n <= 256 || i == 2 || i == 5);
        }
}

/* Headers wait for their end, but not for ever. */
static void test_long_headers(void **state)
{
    (void)state;
    for (int n = HARMONY_HEADER_BYTES_MAX - 2; n < HARMONY_HEADER_BYTES_MAX + 3; n++) {
        const size_t before = strlen("<|channel|>final"), mark = strlen("<|message|>");
        char text[1024];
        struct example x = {HARMONY, text, NULL};
        struct seen one, other;
        memset(text, ' ', sizeof text);
        memcpy(text, "<|channel|>final", before);
        stpcpy(text + n - mark, "<|message|>a");
        run(&x, 1, 1, true, &one);
        run(&x, sizeof text, sizeof text, false, &other);
        assert_memory_equal(&one, &other, sizeof one);
        assert_string_equal(one.content, n <= HARMONY_HEADER_BYTES_MAX ? "a" : text);
    }
}

/* What the prompt has said is not said again, when the model makes no call of it. */
static void test_begun(void **state)
{
    static const struct {
        struct answer_form form;
        const char *begun, *text, *content;
    } cases[] = {
        {HERMES, "<tool_call>\n{\"name\": 1", "}", "}"},
        {HARMONY, "<|channel|>commentary to=functions.", "!<|message|>", "!<|message|>"},
        {CONTROLS, "<|channel|>commentary to=functions.f<|message|>", "{x}", "{x}"},
        {HARMONY, "<|channel|>commentary to=functions.f<|message|>", "No.", "No."},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct answer *a = answer_open(&cases[i].form, 0);
        answer_begin(a, cases[i].begun, strlen(cases[i].begun));
        answer_push(a, cases[i].text, strlen(cases[i].text));
        answer_finish(a, false);
        const struct buf *out = answer_content(a);
        assert_int_equal(answer_calls_total(a), 0);
        assert_int_equal(out->len, strlen(cases[i].content));
        assert_memory_equal(out->data, cases[i].content, out->len);
        answer_close(a);
    }
}

/* No text takes longer than its length allows: these would take minutes. */
static void test_linear(void **state)
{
    static const struct {
        struct answer_form form;
        const char *before, *piece;
    } cases[] = {
        {THINKS, "", "                                "},
        {HARMONY, "<|channel|>final<|message|>", "<|start|>assistant<|channel|>final <"},
        {CONTROLS, "\xff<|channel|>final\xff<|message|>", "\xff<|start|>assistant a !"},
        {CONTROLS, "\xff<|channel|>final\xff<|message|>", "\xff\xff\xff\xff<|end|>"},
        {CONTROLS, "\xff<|channel|>final", " aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"},
        {HARMONY, "<|channel|>final<|message|>", "<|end|><|start|>assistant to=!"},
        {HARMONY, "<|channel|>commentary to=functions.f<|message|>", "                        "},
        {THINKS, "<think>a", "\n\n\n\n\n\n\n\n"},
        {BRACKETS, "[THINK]a", "[/THINK[/THINK"},
        {LLAMA3, "", "                                "},
        {HERMES, "a", "\n\n\n\n\n\n\n\n"},
        {HERMES, "<tool_call>", "                        "},
        {HERMES, "", "<tool_call>{"},
        {HERMES, "<tool_call>{\"a\":", "[[[["},
        {MISTRAL, "[TOOL_CALLS]", "aaaaaaaaaaaaaaaaaaaaaaaa"},
        {MISTRAL, "[TOOL_CALLS]f", "                     "},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct answer *a = answer_open(&cases[i].form, 0);
        const size_t n = strlen(cases[i].piece);
        size_t seen = 0, signs = 0;
        for (size_t k = 0; k < n; k++)
            signs += cases[i].piece[k] == ANSWER_CONTROL;
        answer_push(a, cases[i].before, strlen(cases[i].before));
        for (int k = 0; k < 100000; k++) {
            answer_push(a, cases[i].piece, n);
            seen += answer_content(a)->len + answer_reasoning(a)->len;
            answer_clear(a);
        }
        answer_finish(a, true);
        seen += answer_content(a)->len + answer_reasoning(a)->len;
        /* but for the last piece, which may be an end */
        assert_in_range(seen, 99999 * (n - signs), 100000 * n + strlen(cases[i].before));
        answer_close(a);
    }
}

/* Nor in one piece; and a final message that is held to a form has no marks. */
static void test_at_once_and_guided(void **state)
{
    static const char piece[] = "<|channel|>final a ", begin[] = "<|channel|>final<|message|>";
    enum { N = sizeof piece - 1, TIMES = 200000 };
    (void)state;
    char *text = malloc((size_t)N * TIMES);
    assert_non_null(text);
    for (size_t i = 0; i < TIMES; i++)
        memcpy(text + i * N, piece, N);
    for (int guided = 0; guided < 2; guided++) {
        struct answer_form form = HARMONY;
        form.guided = guided;
        struct answer *a = answer_open(&form, 0);
        answer_push(a, begin, sizeof begin - 1);
        answer_push(a, text, (size_t)N * TIMES);
        answer_push(a, "<|end|><|start|>assistant", 25);
        answer_push(a, begin, sizeof begin - 1);
        answer_finish(a, true);
        assert_int_equal(answer_content(a)->len,
                         (size_t)N * TIMES + (guided ? 25 + sizeof begin - 1 : 0));
        answer_close(a);
    }
    free(text);
}

/* With a form to keep to, messages before the last end by <|end|> only, as its grammar has it. */
static void test_guided_messages(void **state)
{
    static const struct answer_form form = {
        .calls = ANSWER_CALLS_OPENAI, .harmony = true, .reasoning = true, .guided = true};
    static const char *const texts[] = {
        "a<|start|>assistant<|channel|>final<|message|>b",
        "a<|return|><|start|>assistant<|channel|>final<|message|>b",
        "a<|call|><|start|>assistant<|channel|>commentary to=functions.f<|message|>{}"};
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        char text[512];
        const struct example x = {form, text, NULL};
        struct seen seen;
        snprintf(text, sizeof text,
                 "<|channel|>analysis<|message|>%s<|end|><|start|>assistant<|channel|>final"
                 "<|message|>{}",
                 texts[i]);
        run(&x, 1, 1, true, &seen);
        assert_string_equal(seen.reasoning, texts[i]);
        assert_true(strcmp(seen.content, "{}") == 0 && seen.count == 0);
    }
}

/* Calls beyond the bound are content. */
static void test_many(void **state)
{
    static const char call[] = "<tool_call>{\"name\": \"f\"}</tool_call>";
    const struct answer_form form = HERMES;
    struct answer *a = answer_open(&form, 0);
    (void)state;
    for (int i = 0; i < ANSWER_CALLS_MAX + 2; i++)
        answer_push(a, call, sizeof call - 1);
    answer_finish(a, true);
    assert_int_equal(answer_call_count(a), ANSWER_CALLS_MAX);
    assert_int_equal(answer_content(a)->len, 2 * (sizeof call - 1));
    answer_close(a);
}

static void test_ids_differ(void **state)
{
    const struct example x = {
        HERMES, "<tool_call>{\"name\":\"f\"}<tool_call>{\"name\":\"f\"}<tool_call>{\"name\":\"f\"}",
        ""};
    struct seen seen;
    (void)state;
    run(&x, 9, 9, true, &seen);
    assert_int_equal(seen.count, 3);
    assert_string_not_equal(seen.ids[0], seen.ids[1]);
    assert_string_not_equal(seen.ids[1], seen.ids[2]);
    for (int i = 0; i < 3; i++)
        assert_int_equal(strspn(seen.ids[i], "abcdefghijklmnopqrstuvwxyz"
                                             "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"),
                         ANSWER_ID_BYTES);
}

static void test_forms(void **state)
{
    static const struct {
        const char *template;
        enum answer_calls calls;
        bool reasoning;
    } cases[] = {
        {"{{ messages }}", ANSWER_CALLS_NONE, false},
        {"...within <tool_call></tool_call> XML tags", ANSWER_CALLS_HERMES, false},
        {"<function=name>{...}</function>", ANSWER_CALLS_NONE, false},
        {"<tool_call>\\n<function=name>\\n<parameter=", ANSWER_CALLS_QWEN3_CODER, false},
        {"<tool_call>{name}\\n<arg_key>", ANSWER_CALLS_GLM45, false},
        {"{{ '<minimax:tool_call>' }}<invoke name=\"", ANSWER_CALLS_MINIMAX_M2, false},
        {"'<｜tool▁call▁begin｜>' + name + '<｜tool▁sep｜>' </think>", ANSWER_CALLS_DEEPSEEK_V31,
         true},
        {"'<｜tool▁call▁begin｜>' + type + '<｜tool▁sep｜>' + name + '\\n```json'",
         ANSWER_CALLS_DEEPSEEK_V3, false},
        {"<minimax:tool_call>...</minimax:tool_call>", ANSWER_CALLS_NONE, false},
        {"{{ '[TOOL_CALLS][' }}", ANSWER_CALLS_MISTRAL, false},
        {"{{ '[TOOL_CALLS]' + name + '[ARGS]' }}", ANSWER_CALLS_MISTRAL_ARGS, false},
        {"Respond in the format {\"name\": function name, \"parameters\": dictionary of ...}",
         ANSWER_CALLS_LLAMA3, false},
        {"content.split('</think>')[-1] ... <tool_call>", ANSWER_CALLS_HERMES, true},
        {"{{ '<|start|>assistant<|channel|>final<|message|>' }}", ANSWER_CALLS_OPENAI, true},
        {"<|channel>thought", ANSWER_CALLS_NONE, true},
        {"'[THINK]' + thinking + '[/THINK]' ... '[TOOL_CALLS]' + name + '[ARGS]'",
         ANSWER_CALLS_MISTRAL_ARGS, true},
    };
    static const char *const names[] = {"none", "hermes", "llama3_json", "mistral"};
    enum answer_calls calls;
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const size_t n = strlen(cases[i].template);
        const struct answer_form f = answer_form_of_template(cases[i].template, n);
        assert_int_equal(f.calls, cases[i].calls);
        assert_int_equal(f.reasoning, cases[i].reasoning);
        assert_int_equal(f.harmony, f.calls == ANSWER_CALLS_OPENAI);
    }
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        assert_true(answer_calls_named(names[i], &calls));
        assert_int_equal(calls, i);
        assert_string_equal(answer_calls_name(calls), names[i]);
    }
    assert_false(answer_calls_named("auto", &calls));
    assert_true(answer_calls_named("openai", &calls) && calls == ANSWER_CALLS_OPENAI);
    assert_string_equal(answer_calls_name(ANSWER_CALLS_MISTRAL_ARGS), "mistral");
    assert_string_equal(answer_calls_name(ANSWER_CALLS_OPENAI), "openai");
}

/* What the operator says goes before what the template shows. */
static void test_choices(void **state)
{
    static const struct answer_form plain = {0}, harmony = HARMONY,
                                    mistral = {.calls = ANSWER_CALLS_MISTRAL_ARGS},
                                    qwen = {.calls = ANSWER_CALLS_HERMES, .reasoning = true};
    static const struct {
        const struct answer_form *shown;
        const char *tools, *reasoning;
        enum answer_calls calls;
        bool reasons, harmony;
    } cases[] = {
        {&plain, "auto", "auto", ANSWER_CALLS_NONE, false, false},
        {&plain, "hermes", "think", ANSWER_CALLS_HERMES, true, false},
        {&plain, "openai", "auto", ANSWER_CALLS_OPENAI, true, true},
        {&plain, "auto", "openai_gptoss", ANSWER_CALLS_OPENAI, true, true},
        {&qwen, "auto", "auto", ANSWER_CALLS_HERMES, true, false},
        {&qwen, "none", "none", ANSWER_CALLS_NONE, false, false},
        {&qwen, "mistral", "auto", ANSWER_CALLS_MISTRAL, true, false},
        {&qwen, "none", "openai_gptoss", ANSWER_CALLS_NONE, true, true},
        {&mistral, "mistral", "auto", ANSWER_CALLS_MISTRAL_ARGS, false, false},
        {&harmony, "auto", "auto", ANSWER_CALLS_OPENAI, true, true},
        {&harmony, "openai", "openai_gptoss", ANSWER_CALLS_OPENAI, true, true},
        {&harmony, "none", "auto", ANSWER_CALLS_NONE, true, true},
        {&harmony, "none", "none", ANSWER_CALLS_NONE, false, true},
        {&harmony, "openai", "none", ANSWER_CALLS_OPENAI, false, true},
        {&harmony, "hermes", "auto", ANSWER_CALLS_HERMES, false, false},
        {&harmony, "auto", "qwen3", ANSWER_CALLS_NONE, true, false},
        {&qwen, "mistral", "mistral", ANSWER_CALLS_MISTRAL, true, false},
    };
    struct answer_form f;
    struct err err;
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        assert_int_equal(
            answer_form_choose(cases[i].shown, cases[i].tools, cases[i].reasoning, &f, &err), OK);
        if (f.calls != cases[i].calls || f.reasoning != cases[i].reasons ||
            f.harmony != cases[i].harmony)
            fail_msg("case %zu: calls %d, reasoning %d, harmony %d", i, f.calls, f.reasoning,
                     f.harmony);
    }
    assert_int_equal(answer_form_choose(&harmony, "hermes", "openai_gptoss", &f, &err), ERR_USAGE);
    assert_int_equal(answer_form_choose(&harmony, "openai", "think", &f, &err), ERR_USAGE);
    assert_int_equal(answer_form_choose(&harmony, "openai", "mistral", &f, &err), ERR_USAGE);
    assert_non_null(strstr(err.text, "--tool-call-parser openai"));
}

/* The marks around reasoning, as the template has them or the operator says. */
static void test_thoughts(void **state)
{
    static const struct {
        const char *template, *parser;
        bool reasons;
        enum answer_thoughts thoughts;
    } cases[] = {
        {"", "auto", false, ANSWER_THOUGHTS_TAGS},
        {"<think>", "auto", true, ANSWER_THOUGHTS_TAGS},
        {"[THINK]", "auto", true, ANSWER_THOUGHTS_MISTRAL},
        {"content.split('[/THINK]')[-1]", "auto", true, ANSWER_THOUGHTS_MISTRAL},
        {"<think>[THINK]</think>", "auto", true, ANSWER_THOUGHTS_MISTRAL},
        {"[THINK]", "none", false, ANSWER_THOUGHTS_MISTRAL}, /* a prompt may end with it */
        {"[THINK]", "think", true, ANSWER_THOUGHTS_TAGS},
        {"<think>", "mistral", true, ANSWER_THOUGHTS_MISTRAL},
        {"", "mistral", true, ANSWER_THOUGHTS_MISTRAL},
        {"<|channel|><|message|>", "mistral", true, ANSWER_THOUGHTS_MISTRAL},
    };
    struct answer_form f;
    struct err err;
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const struct answer_form shown =
            answer_form_of_template(cases[i].template, strlen(cases[i].template));
        assert_int_equal(answer_form_choose(&shown, "auto", cases[i].parser, &f, &err), OK);
        if (f.reasoning != cases[i].reasons || f.thoughts != cases[i].thoughts || f.harmony)
            fail_msg("case %zu: %d, marks %d", i, f.reasoning, f.thoughts);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_examples),        cmocka_unit_test(test_controls),
        cmocka_unit_test(test_at_once),         cmocka_unit_test(test_many),
        cmocka_unit_test(test_ids_differ),      cmocka_unit_test(test_forms),
        cmocka_unit_test(test_blanks),          cmocka_unit_test(test_linear),
        cmocka_unit_test(test_choices),         cmocka_unit_test(test_thoughts),
        cmocka_unit_test(test_long_headers),    cmocka_unit_test(test_at_once_and_guided),
        cmocka_unit_test(test_guided_messages), cmocka_unit_test(test_begun),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
