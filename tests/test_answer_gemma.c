/* Answers as Gemma 4 writes them (its chat template, and Google's page of its prompts): the same
 * parts whatever pieces the text comes in. */
#include "server/answer/answer.h"
#include "tests/scratch.h"

#include <stdio.h>
#include <string.h>

/* With calls of another model, whose marks are no part of Gemma's. */
static const struct answer_form thinks = {.reasoning = true, .thoughts = ANSWER_THOUGHTS_GEMMA4},
                                mixed = {.calls = ANSWER_CALLS_HERMES,
                                         .reasoning = true,
                                         .thoughts = ANSWER_THOUGHTS_GEMMA4},
                                open = {.reasoning = true,
                                        .reasoning_open = true,
                                        .thoughts = ANSWER_THOUGHTS_GEMMA4},
                                shows = {.thoughts = ANSWER_THOUGHTS_GEMMA4};

/* f's x is a text, its y a text or null. */
static const char types[] = "f\0x\0t"
                            "f\0y\0n";
static const struct answer_form
    calls = {.calls = ANSWER_CALLS_GEMMA4, .types = types, .types_len = sizeof types - 1},
    gemma = {.calls = ANSWER_CALLS_GEMMA4, .reasoning = true, .thoughts = ANSWER_THOUGHTS_GEMMA4},
    formed = {.reasoning = true, .guided = true, .thoughts = ANSWER_THOUGHTS_GEMMA4},
    one_call = {.calls = ANSWER_CALLS_GEMMA4, .one_call = true};

#define CALL(text) "<|tool_call>call:" text "<tool_call|>"
#define Q(text) "<|\"|>" text "<|\"|>"
#define HERMES "<tool_call>{\"name\": \"f\"}</tool_call>"

static const struct example {
    const struct answer_form *form;
    const char *text, *parts; /* reasoning | content | name arguments | ... */
} examples[] = {
    /* a line behind the mark that is no thought, and thoughts that are none */
    {&thinks, "<|channel>thought\nHm.\n\nYes.\n<channel|>It is.\n", "Hm.\n\nYes.|It is.\n"},
    {&thinks, "<|channel>thought\n<channel|>It is.", "|It is."},
    {&thinks, "<|channel>thought<channel|>\nIt is.", "|It is."},
    {&thinks, "<|channel>\n\nthought\n\n\n<channel|>", "|"},
    {&thinks, "<|channel>thought", "|"},
    {&thinks, "<|channel>thou", "|"},
    {&thinks, "<|channel>thoughtful", "thoughtful|"},
    {&thinks, "<|channel>thoughts<channel|>a", "thoughts|a"},
    {&thinks, "<|channel>thought <channel|>a", "thought |a"},
    {&thinks, "<|channel>a thought\n<channel|>b", "a thought|b"},
    {&thinks, "<|channel>thought\nthought\n<channel|>b", "thought|b"},
    {&thinks, "<|channel>thought\ncut off <chan\n", "cut off <chan\n|"},
    {&thinks, "<|chan", "|<|chan"},
    {&thinks, "<channel|>a <think>b</think>", "|<channel|>a <think>b</think>"},
    {&open, "Hm.\n<channel|>Yes<|channel>thought\nNo", "Hm.\nNo|Yes"},
    {&open, "thought\nHm.<channel|>Yes", "Hm.|Yes"},
    {&shows, "<|channel>thought\na<channel|>b", "|<|channel>thought\na<channel|>b"},
    /* they may come again, wherever that is */
    {&thinks, "<|channel>thought\n<channel|><|channel>thought\na<channel|>\n<|channel>b<channel|>c",
     "a\nb|c"},
    {&thinks, "a\n<|channel>thought\nb\n<channel|>\nc <|chan", "b|a\nc <|chan"},
    {&thinks, "<|channel>a<tool_call>b<channel|>c<|channel>thought\nd<channel|>",
     "a<tool_call>b\nd|c"},
    {&mixed, "<|channel>thought\na<channel|>\n" HERMES "<|channel>thought\nb<channel|>c",
     "a\nb|c|f {}"},
    /* or end with a call */
    {&mixed, "<|channel>thought\nHm.\n" HERMES, "Hm.||f {}"},
    {&mixed, "<|channel>thought\nHm.\n" HERMES " and <channel|>more", "Hm.|and more|f {}"},
    /* but not with what is none */
    {&mixed, "<|channel>thought\nHm <tool_call>no<channel|>", "Hm <tool_call>no|"},
    {&mixed, "<|channel>thought\nHm <tool_call>no", "Hm <tool_call>no|"},
    {&mixed, "<|channel>thought\nHm <tool_call>no " HERMES "<channel|>so",
     "Hm <tool_call>no |so|f {}"},
    /* what speaks of marks, or is held to a form, is content */
    {&mixed, "The mark <|channel>, then more.", "|The mark <|channel>, then more."},
    {&mixed, "a<|channel>thought\nb<channel|>c", "b|ac"},
    {&formed, "<|channel>thought\nb<channel|>{\"a\": \"<|channel>thought\"}",
     "b|{\"a\": \"<|channel>thought\"}"},

    {&calls, CALL("f{}"), "||f {}"},
    {&calls, "Well.\n\n" CALL("f{n:1.10,t:" Q("a") "}"), "|Well.|f {\"n\": 1.10, \"t\": \"a\"}"},
    {&calls, CALL("f{}") "\n" CALL("a.b-c{n:-2e5}") "and more\n",
     "|and more\n|f {}|a.b-c {\"n\": -2e5}"},
    {&one_call, CALL("f{}") CALL("g{}"), "||f {}"},
    {&calls, "<|tool_call>call:f{on:true,off:false,no:null}",
     "||f {\"on\": true, \"off\": false, \"no\": null}"},
    {&calls, CALL("f{on:True,no:None}"), "||f {\"on\": true, \"no\": null}"},
    /* texts are what they are, */
    {&calls, CALL("f{t:" Q("say \"hi\", {a:[b]}\\n\n<tool_call|> é") "}"),
     "||f {\"t\": \"say \\\"hi\\\", {a:[b]}\\\\n\\n<tool_call|> é\"}"},
    {&calls, CALL("f{t:" Q("") ",u:" Q("<|\"|") ",v:" Q("5") "}"),
     "||f {\"t\": \"\", \"u\": \"<|\\\"|\", \"v\": \"5\"}"},
    /* and so are names, with quotes and without */
    {&calls, CALL("f{a b:1," Q("c,:}") ":2,\"d\\n\":3,é.$-/:4}"),
     "||f {\"a b\": 1, \"c,:}\": 2, \"d\\n\": 3, \"é.$-/\": 4}"},
    {&calls, CALL("f{o:{k:{},l:[1,[" Q("a") ",{m:null}],[]]},p:2}"),
     "||f {\"o\": {\"k\": {}, \"l\": [1, [\"a\", {\"m\": null}], []]}, \"p\": 2}"},
    {&calls, CALL(" f {\n a : 1 ,\n b : [ 1 , " Q("c") " ] , d : { e : two words } }"),
     "|" CALL(" f {\n a : 1 ,\n b : [ 1 , " Q("c") " ] , d : { e : two words } }")},
    {&calls, CALL("f {\n a : 1 ,\n b : [ 1 , " Q("c") " ] , d : { e : two words } }\n"),
     "||f {\"a\": 1, \"b\": [1, \"c\"], \"d\": {\"e\": \"two words\"}}"},
    /* without quotes a value is JSON, or what the schema says */
    {&calls, CALL("f{x:5,y:null,z:5}"), "||f {\"x\": \"5\", \"y\": null, \"z\": 5}"},
    {&calls, CALL("f{y:5,o:{x:5}}"), "||f {\"y\": \"5\", \"o\": {\"x\": 5}}"},
    {&calls, CALL("f{" Q("x") ":5,\"y\":7}"), "||f {\"x\": \"5\", \"y\": \"7\"}"},
    {&calls, CALL("f{at:10:30,d:1.,n:0x1}"),
     "||f {\"at\": \"10:30\", \"d\": \"1.\", \"n\": \"0x1\"}"},
    /* JSON is read, too */
    {&calls, CALL("f{\"a\": \"say \\\"}\\\"\", \"b\": [1, {\"c\": \"<|tool_call>\"}]}"),
     "||f {\"a\": \"say \\\"}\\\"\", \"b\": [1, {\"c\": \"<|tool_call>\"}]}"},
    {&calls, "<|tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}<tool_call|>",
     "||f {\"a\": 1}"},
    {&gemma, "<|channel>thought\nHm.\n<channel|>" CALL("f{t:" Q("<channel|>") "}"),
     "Hm.||f {\"t\": \"<channel|>\"}"},
    {&gemma, "<|channel>thought\nHm.\n" CALL("f{}") "<|channel>thought\n<channel|>Done.",
     "Hm.|Done.|f {}"},
    /* not calls: content, byte for byte */
    {&calls, "a\n<|tool_ca", "|a\n<|tool_ca"},
    {&calls, "a\n<|tool_call>", "|a\n<|tool_call>"},
    {&calls, "<|tool_call>cal", "|<|tool_call>cal"},
    {&calls, "<|tool_call>call:f", "|<|tool_call>call:f"},
    {&calls, CALL("{}"), "|" CALL("{}")},
    {&calls, CALL("two words{}"), "|" CALL("two words{}")},
    {&calls, CALL("f(a=1)"), "|" CALL("f(a=1)")},
    {&calls, "<|tool_call>f{}<tool_call|>" CALL("g{}"), "|<|tool_call>f{}<tool_call|>|g {}"},
    {&calls, CALL("f[1]"), "|" CALL("f[1]")},
    {&calls, CALL("f{a}"), "|" CALL("f{a}")},
    {&calls, CALL("f{a:}"), "|" CALL("f{a:}")},
    {&calls, CALL("f{:1}"), "|" CALL("f{:1}")},
    {&calls, CALL("f{a:1,}"), "|" CALL("f{a:1,}")},
    {&calls, CALL("f{,a:1}"), "|" CALL("f{,a:1}")},
    {&calls, CALL("f{a:[1,]}"), "|" CALL("f{a:[1,]}")},
    {&calls, CALL("f{a:[1}]"), "|" CALL("f{a:[1}]")},
    {&calls, CALL("f{a:" Q("b") " c}"), "|" CALL("f{a:" Q("b") " c}")},
    {&calls, CALL("f{a:b" Q("c") "}"), "|" CALL("f{a:b" Q("c") "}")},
    {&calls, CALL("f{\"a:1}"), "|" CALL("f{\"a:1}")},
    {&calls, CALL("f{a:\"\\x\"}") CALL("g{}"), "|" CALL("f{a:\"\\x\"}") "|g {}"},
    {&calls, "<|tool_call>call:f{a:" CALL("g{b:1}"), "|<|tool_call>call:f{a:|g {\"b\": 1}"},
    {&calls, "<|tool_call>call:f{a" CALL("g{b:1}"), "|<|tool_call>call:f{a|g {\"b\": 1}"},
    {&calls,
     CALL("f{a:"
          "<|\"|>b}"),
     "|" CALL("f{a:"
              "<|\"|>b}")},
    {&calls, CALL("f{a:1}}"), "|}<tool_call|>|f {\"a\": 1}"},
    {&calls, "call:f{a:1}", "|call:f{a:1}"},
};

/* What has come, of several rounds. */
struct seen {
    char reasoning[256], content[512], calls[512];
};

static void take(struct answer *a, struct seen *s)
{
    const struct buf *r = answer_reasoning(a), *c = answer_content(a);
    strncat(s->reasoning, r->len ? r->data : "", r->len);
    strncat(s->content, c->len ? c->data : "", c->len);
    for (int32_t i = 0; i < answer_call_count(a); i++) {
        const struct answer_call call = answer_call(a, i);
        const size_t n = strlen(s->calls);
        snprintf(s->calls + n, sizeof s->calls - n, "|%.*s %.*s", (int)call.name_len, call.name,
                 (int)call.arguments_len, call.arguments);
    }
    answer_clear(a);
}

/* In pieces of `size` bytes after one of `first`. */
static void check(const struct example *x, size_t first, size_t size)
{
    struct answer *a = answer_open(x->form, 7);
    struct seen s = {"", "", ""};
    const size_t n = strlen(x->text);
    char parts[1400];
    assert_non_null(a);
    answer_push(a, x->text, first);
    for (size_t i = first, len; i < n; i += len, take(a, &s)) {
        len = size < n - i ? size : n - i;
        answer_push(a, x->text + i, len);
    }
    answer_finish(a, true);
    take(a, &s);
    assert_false(answer_failed(a));
    answer_close(a);
    snprintf(parts, sizeof parts, "%s|%s%s", s.reasoning, s.content, s.calls);
    if (strcmp(parts, x->parts) != 0)
        fail_msg("%s\nfirst %zu, size %zu: %s\nwanted: %s", x->text, first, size, parts, x->parts);
}

static void test_examples(void **state)
{
    (void)state;
    for (size_t e = 0; e < ARRAY_LEN(examples); e++) {
        const size_t n = strlen(examples[e].text);
        for (size_t first = 0; first <= n; first++)
            for (size_t size = 1; size <= n + 1; size += n)
                check(&examples[e], first, size);
    }
}

/* What is surely a thought, or content, is not held back. */
static void test_at_once(void **state)
{
    struct answer *a = answer_open(&thinks, 7);
    (void)state;
    answer_push(a, "<|channel>thought\nHm <", 22);
    assert_int_equal(answer_reasoning(a)->len, 3);
    assert_true(answer_reasons(a));
    answer_push(a, "a<channel|>b<|", 14);
    assert_int_equal(answer_reasoning(a)->len, 5);
    assert_int_equal(answer_content(a)->len, 1);
    assert_false(answer_reasons(a));
    answer_push(a, "channels", 8);
    assert_int_equal(answer_content(a)->len, 11);
    answer_close(a);
}

/* No text takes longer than its length allows: these would take minutes. */
static void test_linear(void **state)
{
    static const struct {
        const struct answer_form *form;
        const char *before, *piece;
        size_t kept; /* bytes of each that are in a part */
    } cases[] = {
        {&thinks, "<|channel>thought\na", "<channel|<channel|", 18},
        {&thinks, "a", "<|channel<|channel", 18},
        {&thinks, "<|channel>", "\n\n\n\n\n\n\n\n", 0},
        {&thinks, "a", "b<|channel>thought\n<channel|>", 1},
        {&mixed, "<|channel>", "a<channel|><tool_call>b<|channel>thought\n", 13},
        {&calls, "", "<|tool_call>call:", 17},
        {&calls, "", "<|tool_call>call:f{a:", 21},
        {&calls, "<|tool_call>call:", "aaaaaaaaaaaaaaaaaaaa", 20},
        {&calls, "<|tool_call>call:f{a:", "aaaaaaaaaaaaaaaaaaaa", 20},
        {&calls, "<|tool_call>call:f{a:", "                    ", 20},
        {&calls,
         "<|tool_call>call:f{a:"
         "<|\"|>",
         "<|\"|<|\"|}<tool_call|>", 21},
        {&calls, "<|tool_call>call:f{a:[0", ",[],{},1,\"a\",b", 14},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct answer *a = answer_open(cases[i].form, 0);
        const size_t n = strlen(cases[i].piece);
        size_t seen = 0;
        answer_push(a, cases[i].before, strlen(cases[i].before));
        for (int k = 0; k < 100000; k++) {
            answer_push(a, cases[i].piece, n);
            seen += answer_content(a)->len + answer_reasoning(a)->len;
            answer_clear(a);
        }
        answer_finish(a, true);
        seen += answer_content(a)->len + answer_reasoning(a)->len;
        assert_in_range(seen, 99999 * cases[i].kept, 100001 * (cases[i].kept + 1));
        answer_close(a);
    }
}

/* As the template has it, or as the operator says. */
static void test_forms(void **state)
{
    static const struct {
        const char *template, *reasoning;
        bool reasons;
        enum answer_thoughts thoughts;
    } cases[] = {
        {"<|channel>thought", "auto", true, ANSWER_THOUGHTS_GEMMA4},
        {"text.split('<channel|>')", "auto", true, ANSWER_THOUGHTS_GEMMA4},
        {"<|channel>", "think", true, ANSWER_THOUGHTS_TAGS},
        {"<|channel>", "none", false, ANSWER_THOUGHTS_GEMMA4}, /* a prompt may end with it */
        {"<think>", "gemma4", true, ANSWER_THOUGHTS_GEMMA4},
        {"<|channel|>analysis<|message|>", "gemma4", true, ANSWER_THOUGHTS_GEMMA4},
    };
    static const char template[] = "{{ '<|tool_call>call:' + name }}<tool_call|><|tool_response>";
    struct answer_form f;
    struct err err;
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const char *text = cases[i].template;
        const struct answer_form shown = answer_form_of_template(text, strlen(text));
        assert_int_equal(answer_form_choose(&shown, "auto", cases[i].reasoning, &f, &err), OK);
        if (f.reasoning != cases[i].reasons || f.thoughts != cases[i].thoughts || f.harmony)
            fail_msg("case %zu: %d, marks %d", i, f.reasoning, f.thoughts);
    }
    f = answer_form_of_template(template, sizeof template - 1);
    assert_int_equal(f.calls, ANSWER_CALLS_GEMMA4);
    assert_false(f.reasoning);
    assert_int_equal(answer_form_choose(&shows, "gemma4", "auto", &f, &err), OK);
    assert_string_equal(answer_calls_name(f.calls), "gemma4");
}

/* What a prompt has begun is a call as far as it goes, once the name is whole. */
static void test_begun(void **state)
{
    static const struct {
        const char *begun, *text, *call; /* NULL: none */
        bool cut;
    } cases[] = {
        {"<|tool_call>", "", NULL, false},
        {"<|tool_call>", "cal", NULL, false},
        {"<|tool_call>call:", "", NULL, false},
        {"<|tool_call>call:", "f", NULL, false},
        {"<|tool_call>call:f", "", "f ", true},
        {"<|tool_call>call:", "f ", "f ", true},
        {"<|tool_call>call:f", " ", "f ", true},
        {"<|tool_call>call:", "f {\"a\": ", "f {\"a\": ", true},
        {"<|tool_call>call:f", "{\"a\": {\"b\": 1.10}}", "f {\"a\": {\"b\": 1.10}}", false},
        {"<|tool_call>call:f", "{}<tool_ca", "f {}", false},
        {"<|tool_call>call:f", "{}<tool_call|><|tool_call>call:g", "f {}", false},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char seen[64] = "";
        struct answer *a = answer_open(&calls, 0);
        answer_begin(a, cases[i].begun, strlen(cases[i].begun));
        answer_push(a, cases[i].text, strlen(cases[i].text));
        answer_finish(a, false);
        assert_int_equal(answer_content(a)->len, 0);
        assert_int_equal(answer_call_count(a), cases[i].call != NULL);
        if (cases[i].call) {
            const struct answer_call call = answer_call(a, 0);
            snprintf(seen, sizeof seen, "%.*s %.*s", (int)call.name_len, call.name,
                     (int)call.arguments_len, call.arguments);
            assert_string_equal(seen, cases[i].call);
            assert_int_equal(call.cut, cases[i].cut);
        }
        answer_close(a);
    }
}

/* As deep as JSON is read, and names and white space of bounded lengths. */
static void test_bounds(void **state)
{
    static const struct {
        const char *before, *piece, *after;
        int most; /* so many pieces are still part of a call */
    } cases[] = {
        {"f{a:", "[", "", 63},    {"f{a:", " ", "1}", 256}, {"f{a", " ", ":1}", 1023},
        {"f{", "a", ":1}", 1024}, {"f{a:", "1", "}", 1024}, {"f", " ", "{}", 256},
        {"", "f", "{}", 256},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        for (int count = cases[i].most; count <= cases[i].most + 1; count++) {
            struct answer *a = answer_open(&gemma, 0);
            answer_push(a, "<|tool_call>call:", 17);
            answer_push(a, cases[i].before, strlen(cases[i].before));
            for (int k = 0; k < count; k++)
                answer_push(a, cases[i].piece, 1);
            for (int k = 0; k < count && *cases[i].piece == '['; k++)
                answer_push(a, "]", 1);
            answer_push(a, *cases[i].piece == '[' ? "}" : cases[i].after,
                        *cases[i].piece == '[' ? 1 : strlen(cases[i].after));
            answer_finish(a, true);
            if (answer_call_count(a) != (count == cases[i].most))
                fail_msg("case %zu, %d", i, count);
            answer_close(a);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_examples), cmocka_unit_test(test_at_once),
        cmocka_unit_test(test_linear),   cmocka_unit_test(test_forms),
        cmocka_unit_test(test_begun),    cmocka_unit_test(test_bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
