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
    {&open, "Hm.\n<channel|>Yes<|channel>No", "Hm.\nNo|Yes"},
    {&open, "thought\nHm.<channel|>Yes", "Hm.|Yes"},
    {&shows, "<|channel>thought\na<channel|>b", "|<|channel>thought\na<channel|>b"},
    /* they may come again, wherever that is */
    {&thinks, "<|channel>thought\n<channel|><|channel>thought\na<channel|>\n<|channel>b<channel|>c",
     "a\nb|c"},
    {&thinks, "a\n<|channel>thought\nb\n<channel|>\nc <|chan", "b|a\nc <|chan"},
    {&thinks, "<|channel>a<tool_call>b<channel|>c<|channel>d<channel|>", "a<tool_call>b\nd|c"},
    {&mixed, "<|channel>thought\na<channel|>\n" HERMES "<|channel>b<channel|>c", "a\nb|c|f {}"},
    /* or end with a call */
    {&mixed, "<|channel>thought\nHm.\n" HERMES, "Hm.||f {}"},
    {&mixed, "<|channel>thought\nHm <tool_call>no<channel|>", "Hm |<tool_call>no<channel|>"},
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
        {&mixed, "<|channel>", "a<channel|><tool_call>b<|channel>", 13},
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
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_examples),
        cmocka_unit_test(test_at_once),
        cmocka_unit_test(test_linear),
        cmocka_unit_test(test_forms),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
