/* Calls between tags, as the chat templates of GLM-4.5, Qwen3-Coder and MiniMax-M2 have the model
 * write them: the same parts whatever pieces the text comes in. */
#include "config/jdoc.h"
#include "server/answer/answer.h"
#include "server/answer/call_types.h"
#include "tests/scratch.h"

#include <string.h>

#define GLM ANSWER_CALLS_GLM45
#define CODER ANSWER_CALLS_QWEN3_CODER
#define MINIMAX ANSWER_CALLS_MINIMAX_M2
#define MM(text) "<minimax:tool_call>" text "</minimax:tool_call>"

#define V3 ANSWER_CALLS_DEEPSEEK_V3
#define V31 ANSWER_CALLS_DEEPSEEK_V31
#define ALL "<｜tool▁calls▁begin｜>"
#define ALL_END "<｜tool▁calls▁end｜>"
#define ONE "<｜tool▁call▁begin｜>"
#define ONE_END "<｜tool▁call▁end｜>"
#define SEP "<｜tool▁sep｜>"
#define V3_CALL(name, arguments) ONE "function" SEP name "\n```json\n" arguments "\n```" ONE_END

/* f's x is a text, its y a text or null. */
static const char types[] = "f\0x\0t"
                            "f\0y\0n";

static const struct example {
    enum answer_calls calls;
    const char *text, *parts; /* content | name arguments | ... */
} examples[] = {
    {GLM, "<tool_call>f\n<arg_key>n</arg_key>\n<arg_value>1.10</arg_value>\n</tool_call>",
     "|f {\"n\": 1.10}"},
    {GLM,
     "Well.\n<tool_call>f<arg_key>n</arg_key><arg_value>[1, \"a\"]</arg_value><arg_key>m</arg_key>"
     "<arg_value>two words</arg_value></tool_call>",
     "Well.|f {\"n\": [1, \"a\"], \"m\": \"two words\"}"},
    {GLM, "<tool_call>now</tool_call>\n<tool_call>now\n</tool_call>", "|now {}|now {}"},
    {GLM, "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 5}}</tool_call>", "|f {\"x\": 5}"},
    {GLM, "<tool_call>f<arg_key>x</arg_key><arg_value>5</arg_value></tool_call> and more",
     "and more|f {\"x\": \"5\"}"},
    {GLM, "<tool_call>g<arg_key>x</arg_key><arg_value> 5\n</arg_value></tool_call>",
     "|g {\"x\": 5}"},
    {GLM, "<tool_call>f<arg_key>y</arg_key><arg_value>null</arg_value></tool_call>",
     "|f {\"y\": null}"},
    {GLM, "<tool_call>f<arg_key>y</arg_key><arg_value>5</arg_value></tool_call>",
     "|f {\"y\": \"5\"}"},
    {GLM, "<tool_call>f<arg_key>y</arg_key><arg_value></arg_value></tool_call>",
     "|f {\"y\": \"\"}"},
    {GLM, "<tool_call>f<arg_key>\"\\</arg_key><arg_value>\"\n</tool_call></arg_value></tool_call>",
     "|f {\"\\\"\\\\\": \"\\\"\\n</tool_call>\"}"},
    {GLM, "<tool_call>f<arg_key>n</arg_key><arg_value>True</arg_value>", "|f {\"n\": true}"},
    {GLM, "<tool_call>f<arg_key>n</arg_key><arg_value>{\"a\": 1</arg_value></tool_call>",
     "|f {\"n\": \"{\\\"a\\\": 1\"}"},
    /* not calls: content, byte for byte */
    {GLM, "<tool_call>f(1)</tool_call>", "<tool_call>f(1)</tool_call>"},
    {GLM, "<tool_call>two words</tool_call>", "<tool_call>two words</tool_call>"},
    {GLM, "<tool_call></tool_call>", "<tool_call></tool_call>"},
    {GLM, "<tool_call>f<arg_key>n</arg_key><arg_value>1",
     "<tool_call>f<arg_key>n</arg_key>"
     "<arg_value>1"},
    {GLM, "<tool_call>f<arg_key>n</arg_key>1</tool_call><tool_call>g</tool_call>",
     "<tool_call>f<arg_key>n</arg_key>1</tool_call>|g {}"},
    {GLM, "<tool_call>f<arg_k", "<tool_call>f<arg_k"},

    {CODER,
     "<tool_call>\n<function=f>\n<parameter=n>\n2\n</parameter>\n<parameter=x>\n\na\n\n</"
     "parameter>\n"
     "</function>\n</tool_call>",
     "|f {\"n\": 2, \"x\": \"\\na\\n\"}"},
    {CODER,
     "Hm.\n\n<tool_call>\n<function=a.b-c>\n</function>\n</tool_call>\n<tool_call><function=f>"
     "<parameter=n>None</parameter></function></tool_call>",
     "Hm.|a.b-c {}|f {\"n\": null}"},
    {CODER, "<tool_call>\n<function=f>\n<parameter=x>\n<b>\n</parameter>\n</function>",
     "|f {\"x\": \"<b>\"}"},
    {CODER, "<tool_call>{\"name\": \"f\"}</tool_call>", "|f {}"},
    {CODER, "<tool_call>f</tool_call>", "<tool_call>f</tool_call>"},
    {CODER, "<tool_call><function=>", "<tool_call><function=>"},
    {CODER, "<tool_call><function=f >", "<tool_call><function=f >"},
    {CODER, "<tool_call><function=f><parameter=n>1</function>",
     "<tool_call><function=f><parameter=n>1</function>"},
    {CODER, "<function=f></function>", "<function=f></function>"},

    {MINIMAX,
     "Hm.\n" MM("\n<invoke name=\"f\">\n<parameter name=\"x\">5\n</parameter>\n<parameter "
                "name=\"n\">[1.10, \"a\"]</parameter>\n</invoke>\n"),
     "Hm.|f {\"x\": \"5\\n\", \"n\": [1.10, \"a\"]}"},
    /* several between the same tags, and more tags */
    {MINIMAX,
     MM("\n<invoke name=\"f\">\n</invoke>\n<invoke name=\"g\"><parameter "
        "name=\"n\">2</parameter></invoke>") "\n" MM("<invoke name=\"h\"></invoke>") "\nDone.",
     "Done.|f {}|g {\"n\": 2}|h {}"},
    {MINIMAX, "<minimax:tool_call><invoke name=\"f\"></invoke><invoke name=\"g\"></invoke>",
     "|f {}|g {}"},
    {MINIMAX, MM("\n{\"name\": \"f\", \"arguments\": {\"x\": 5}}\n"), "|f {\"x\": 5}"},
    {MINIMAX, "<tool_call><invoke name=\"f\"></invoke></tool_call>",
     "<tool_call><invoke name=\"f\"></invoke></tool_call>"},
    {MINIMAX, MM("<invoke name=f></invoke>"), MM("<invoke name=f></invoke>")},
    {MINIMAX, "<minimax:tool_call><invoke name=\"f\"></invoke><invoke na", "<invoke na|f {}"},

    {V31, "Hm.\n" ALL ONE "f" SEP "{\"x\": 5}" ONE_END ONE "a.b-c" SEP "{}" ONE_END ALL_END,
     "Hm.|f {\"x\": 5}|a.b-c {}"},
    {V31, ALL ONE "f" SEP " {\"x\": \"" ONE_END "\"}\n" ONE_END "\n" ALL_END "\nDone.",
     "Done.|f {\"x\": \"" ONE_END "\"}"},
    {V31, ALL ONE "f" SEP "{}" ONE_END ALL ONE "g" SEP "{}" ONE_END, "|f {}|g {}"},
    {V31, ALL ONE "f" SEP "{}", "|f {}"},
    {V3, ALL V3_CALL("f", "{\"n\": 1.10}") "\n" V3_CALL("g", "{}") ALL_END,
     "|f {\"n\": 1.10}|g {}"},
    {V3, ALL V3_CALL("f", "{\n  \"n\": 1\n}") ALL_END "More.", "More.|f {\n  \"n\": 1\n}"},
    /* JSON in a frame's place is one, too */
    {V31, ALL "{\"name\": \"f\"}" ALL_END, "|f {}"},
    /* not calls */
    {V31, ONE "f" SEP "{}" ONE_END, ONE "f" SEP "{}" ONE_END},
    {V31, ALL "f" SEP "{}", ALL "f" SEP "{}"},
    {V31, ALL ONE SEP "{}" ONE_END, ALL ONE SEP "{}" ONE_END},
    {V31, ALL ONE "two words" SEP "{}", ALL ONE "two words" SEP "{}"},
    {V31, ALL ONE "f" SEP "[1]" ONE_END, ALL ONE "f" SEP "[1]" ONE_END},
    {V31, ALL ONE "f" SEP "{\"n\": ", ALL ONE "f" SEP "{\"n\": "},
    {V31, ALL ONE "f", ALL ONE "f"},
    {V31, ALL ONE "f" SEP "{}" ONE_END "<｜tool", "<｜tool|f {}"},
    {V3, ALL ONE "f" SEP "{}" ONE_END, ALL ONE "f" SEP "{}" ONE_END},
    {V3, ALL V3_CALL("f", "{}") "```", "```|f {}"},
};

struct seen {
    char content[512], calls[512];
};

static void take(struct answer *a, struct seen *s)
{
    strncat(s->content, answer_content(a)->data ? answer_content(a)->data : "", 500);
    for (int32_t i = 0; i < answer_call_count(a); i++) {
        const struct answer_call call = answer_call(a, i);
        const size_t n = strlen(s->calls);
        snprintf(s->calls + n, sizeof s->calls - n, "|%.*s %.*s", (int)call.name_len, call.name,
                 (int)call.arguments_len, call.arguments);
    }
    answer_clear(a);
}

static struct answer *open_form(enum answer_calls calls)
{
    const struct answer_form form = {.calls = calls, .types = types, .types_len = sizeof types - 1};
    struct answer *a = answer_open(&form, 7);
    assert_non_null(a);
    return a;
}

static void test_examples(void **state)
{
    (void)state;
    for (size_t e = 0; e < ARRAY_LEN(examples); e++) {
        const struct example *x = &examples[e];
        const size_t n = strlen(x->text);
        for (size_t first = 0; first <= n; first++)
            for (size_t size = 1; size <= n + 1; size += n) {
                char parts[1100];
                struct seen s = {"", ""};
                struct answer *a = open_form(x->calls);
                answer_push(a, x->text, first);
                for (size_t i = first, len; i < n; i += len, take(a, &s)) {
                    len = size < n - i ? size : n - i;
                    answer_push(a, x->text + i, len);
                }
                answer_finish(a, true);
                take(a, &s);
                assert_false(answer_failed(a));
                answer_close(a);
                snprintf(parts, sizeof parts, "%s%s", s.content, s.calls);
                if (strcmp(parts, x->parts) != 0)
                    fail_msg("%s\nfirst %zu: %s\nwanted: %s", x->text, first, parts, x->parts);
            }
    }
}

/* The end may only be missing where the model has ended the answer. */
static void test_cut_off(void **state)
{
    static const char text[] = "<tool_call>f<arg_key>n</arg_key><arg_value>1</arg_value>\n";
    (void)state;
    for (int whole = 0; whole < 2; whole++) {
        struct answer *a = open_form(GLM);
        answer_push(a, text, strlen(text));
        answer_finish(a, whole != 0);
        assert_int_equal(answer_call_count(a), whole);
        assert_int_equal(answer_content(a)->len, whole ? 0 : strlen(text));
        answer_close(a);
    }
}

/* No text takes longer than its length allows: these would take minutes. */
static void test_linear(void **state)
{
    static const struct {
        enum answer_calls calls;
        const char *before, *piece;
    } cases[] = {
        {GLM, "<tool_call>f<arg_key>n</arg_key><arg_value>", "<tool_call>f <arg_value>"},
        {GLM, "<tool_call>f", "                                "},
        {GLM, "<tool_call>", "ffffffffffffffffffffffffffffffff"},
        {GLM, "<tool_call>f<arg_key>", "kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk"},
        {GLM, "", "<tool_call>f<arg_key>"},
        {CODER, "", "<tool_call><function=f><parameter=n>"},
        {CODER, "<tool_call><function=f><parameter=n>", "</paramete</paramete"},
        {MINIMAX, "", "<minimax:tool_call><invoke name=\"f\"><parameter name=\"n\">"},
        {V31, "", ALL ONE "f"},
        {V3, ALL ONE "function" SEP, "ffffffffffffffffffffffffffffffff"},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct answer *a = open_form(cases[i].calls);
        const size_t n = strlen(cases[i].piece);
        size_t seen = 0;
        answer_push(a, cases[i].before, strlen(cases[i].before));
        for (int k = 0; k < 100000; k++) {
            answer_push(a, cases[i].piece, n);
            seen += answer_content(a)->len;
            answer_clear(a);
        }
        answer_finish(a, true);
        seen += answer_content(a)->len;
        assert_int_equal(seen, 100000 * n + strlen(cases[i].before));
        answer_close(a);
    }
}

/* What is told as a call is read again as JSON, whatever its names are and however deep it is. */
static void test_readable_again(void **state)
{
    static const char before[] = "<tool_call>f<arg_key>", named[] = "</arg_key><arg_value>",
                      after[] = "</arg_value></tool_call>";
    char deep[2 * 70];
    (void)state;
    for (size_t depth = 60; depth <= 70; depth++) {
        struct jdoc *arguments = NULL;
        struct err err;
        struct answer *a = open_form(GLM);
        memset(deep, '[', depth);
        memset(deep + depth, ']', depth);
        answer_push(a, before, strlen(before));
        answer_push(a, "n", 1);
        answer_push(a, named, strlen(named));
        answer_push(a, deep, 2 * depth);
        answer_push(a, after, strlen(after));
        answer_finish(a, true);
        assert_int_equal(answer_call_count(a), 1);
        const struct answer_call call = answer_call(a, 0);
        assert_int_equal(
            jdoc_parse(call.arguments, call.arguments_len, &jdoc_limits_call, "", &arguments, &err),
            OK);
        assert_int_equal(jdoc_type(jdoc_get(arguments, "n")),
                         depth < 64 ? JDOC_ARRAY : JDOC_STRING);
        jdoc_close(arguments);
        answer_close(a);
    }
    struct answer *a = open_form(GLM);
    answer_push(a, before, strlen(before));
    answer_push(a, "n\0m", 3);
    answer_push(a, named, strlen(named));
    answer_push(a, after, strlen(after));
    answer_finish(a, true);
    assert_int_equal(answer_call_count(a), 0);
    assert_int_equal(answer_content(a)->len, strlen(before) + 3 + strlen(named) + strlen(after));
    answer_close(a);
}

/* Behind the last tag of what is no call another one is found, and new lines before that are none
 * of the content, however much of the text had come by then. */
static void test_call_behind(void **state)
{
    static const struct {
        enum answer_calls calls;
        const char *before;
        size_t many;
        char fill;
        const char *after;
        size_t content;
    } cases[] = {
        {GLM, "<tool_call>f<arg_key>k\n<tool_call>g</tool_call>", 1100, 'k', "", 1122},
        {GLM, "<tool_call>f<arg_key>k\n<tool_call>g</tool_call>", 1100, 'k', "</arg_key>", 1132},
        {GLM, "<tool_call>f<arg_key>k\n<tool_call>g</tool_call>", 1, '\0', "</arg_key>", 33},
        {CODER, "<tool_call><function=f>", 300, '\n', "<tool_call><function=g></function>", 67},
        {CODER, "<tool_call><function=f>a\n", 300, '\n', "<tool_call><function=g></function>", 69},
    };
    char text[2048];
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const size_t before = strlen(cases[i].before), after = strlen(cases[i].after);
        const size_t n = before + cases[i].many + after;
        memcpy(text, cases[i].before, before);
        memset(text + before, cases[i].fill, cases[i].many);
        memcpy(text + n - after, cases[i].after, after);
        for (size_t size = 1; size <= n; size += size < 40 || size == n ? 1 : n - size) {
            struct answer *a = open_form(cases[i].calls);
            for (size_t at = 0; at < n; at += size)
                answer_push(a, text + at, size < n - at ? size : n - at);
            answer_finish(a, true);
            assert_int_equal(answer_call_count(a), 1);
            assert_int_equal(answer_call(a, 0).name_len, 1);
            assert_int_equal(*answer_call(a, 0).name, 'g');
            assert_int_equal(answer_content(a)->len, cases[i].content);
            answer_close(a);
        }
    }
}

static void test_types(void **state)
{
    static const char tools[] =
        "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{"
        "\"a\":{\"type\":\"string\"},\"b\":{\"type\":[\"string\",\"null\"]},\"c\":{\"type\":"
        "[\"string\",\"integer\"]},\"d\":{\"enum\":[\"x\",\"y\"]},\"e\":{\"enum\":[\"x\",1]},"
        "\"g\":{\"const\":\"x\"},\"h\":{\"oneOf\":[{\"type\":\"string\"},{\"anyOf\":[{\"type\":"
        "\"null\"}]}]},\"i\":true,\"j\":{\"$ref\":\"#\"},\"k\":{\"anyOf\":[]},\"\":{\"type\":"
        "\"string\"}}}}},{\"type\":\"function\",\"function\":{\"name\":\"g\"}},7,"
        "{\"function\":{\"name\":\"two words\",\"parameters\":{\"properties\":{\"a\":{\"type\":"
        "\"string\"}}}}}]";
    static const char wanted[] = "tnat" /* a to d */ "atnaaa" /* e, g to k */;
    static const char *const keys[] = {"a", "b", "c", "d", "e", "g", "h", "i", "j", "k"};
    struct jdoc *doc;
    struct err err;
    struct buf out;
    (void)state;
    assert_int_equal(jdoc_parse(tools, strlen(tools), &jdoc_limits_request, "t", &doc, &err), OK);
    buf_init(&out, SIZE_MAX);
    call_types_add(doc, &out);
    call_types_add(NULL, &out);
    for (size_t i = 0; i < ARRAY_LEN(keys); i++)
        assert_int_equal(call_types_find(out.data, out.len, "f", keys[i], 1),
                         wanted[i] == 't'   ? CALL_TYPE_TEXT
                         : wanted[i] == 'n' ? CALL_TYPE_TEXT_OR_NULL
                                            : CALL_TYPE_ANY);
    assert_int_equal(call_types_find(out.data, out.len, "f", "", 0), CALL_TYPE_TEXT);
    assert_int_equal(call_types_find(out.data, out.len, "g", "a", 1), CALL_TYPE_ANY);
    assert_int_equal(call_types_find(out.data, out.len, "two words", "a", 1), CALL_TYPE_ANY);
    assert_int_equal(call_types_find(NULL, 0, "f", "a", 1), CALL_TYPE_ANY);
    buf_free(&out);
    jdoc_close(doc);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_examples), cmocka_unit_test(test_cut_off),
        cmocka_unit_test(test_linear),   cmocka_unit_test(test_readable_again),
        cmocka_unit_test(test_types),    cmocka_unit_test(test_call_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
