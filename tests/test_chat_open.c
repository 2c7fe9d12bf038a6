/* What a prompt has begun of its answer, and what ends that where something else has to come. */
#include "server/chat_template.h"
#include "tests/only.h"

#include <stdio.h>
#include <string.h>

/* foreign: a 1 for each byte that is the client's; what is behind it is the template's. */
static struct jinja_text text_of(const char *bytes, const char *foreign)
{
    const size_t marked = strlen(foreign);
    struct jinja_text t;
    buf_init(&t.bytes, 256);
    buf_init(&t.foreign, 256);
    buf_puts(&t.bytes, bytes);
    for (size_t i = 0; i < strlen(bytes); i++)
        buf_add(&t.foreign, i < marked && foreign[i] == '1' ? "\1" : "\0", 1);
    return t;
}

/* A mark at the end, of the template's or of a client who is to be continued; not one of another
 * model. */
static void test_opens_reasoning(void **state)
{
    static const struct {
        const char *text, *foreign; /* 1: the client's */
        bool goes_on, opens;
    } cases[] = {
        {"", "", true, false},
        {"a<think>", "10000001", false, false},
        {"a<think>", "10000000", false, true},
        {"a<think>\n\n", "1000000000", false, true},
        {"<think>a", "00000000", false, false},
        {"<think>", "1111111", false, false},
        {"<think>\n", "11111111", true, true},
        {"<think>", "0011111", true, false},
        {"think>", "000000", true, false},
    };
    (void)state;
    for (size_t i = 0; i < 2 * ARRAY_LEN(cases); i++) {
        const size_t k = i / 2;
        const enum answer_thoughts own = i % 2 ? ANSWER_THOUGHTS_MISTRAL : ANSWER_THOUGHTS_TAGS,
                                   other = i % 2 ? ANSWER_THOUGHTS_TAGS : ANSWER_THOUGHTS_MISTRAL;
        struct answer_form f = {.reasoning = true, .thoughts = other};
        char text[32];
        snprintf(text, sizeof text, "%s", cases[k].text);
        char *mark = strstr(text, "<think>");
        if (mark)
            memcpy(mark, answer_thought(own)->begin, 7);
        struct jinja_text t = text_of(text, cases[k].foreign);
        chat_template_find_open(&t, cases[k].goes_on, &f);
        assert_false(f.reasoning_open);
        f.thoughts = own;
        chat_template_find_open(&t, cases[k].goes_on, &f);
        assert_int_equal(f.reasoning_open, cases[k].opens);
        chat_template_add(&t, answer_thought(own)->begin, 7);
        chat_template_find_open(&t, false, &f);
        assert_true(f.reasoning_open && !f.content_open);
        assert_int_equal(t.bytes.len, t.foreign.len);
        jinja_text_free(&t);
    }
}

/* Behind Gemma's mark a prompt says what the channel is. */
static void test_opens_labelled(void **state)
{
    static const struct {
        const char *text, *foreign; /* 1: the client's */
        bool goes_on, opens;
    } cases[] = {
        {"<|channel>thought\n", "", false, true},
        {"<|channel>thought", "", false, true},
        {"<|channel>\n", "", false, true},
        {"<|channel>thought\n<channel|>", "", false, false},
        {"<|channel>thought\nHm", "", false, false},
        {"thought\n", "", false, false},
        {"<|channel>thought\n", "000000000011111111", false, false},
        {"<|channel>thought\n", "000000000011111111", true, true},
        {"<|channel>thought\n", "111111111111111111", false, false},
        {"<|channel>thought\n", "111111111111111111", true, true},
        {"<|channel|>thought\n", "", false, false},
        {"<think>\n", "", false, false},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct jinja_text t = text_of(cases[i].text, cases[i].foreign);
        struct answer_form f = {.reasoning = true, .thoughts = ANSWER_THOUGHTS_GEMMA4};
        chat_template_find_open(&t, cases[i].goes_on, &f);
        if (f.reasoning_open != cases[i].opens)
            fail_msg("%s %s: %d", cases[i].text, cases[i].foreign, f.reasoning_open);
        jinja_text_free(&t);
    }
}

/* A message that the prompt has begun and not ended, by the template's own marks. */
static void test_opens_message(void **state)
{
    static const struct {
        const char *text, *foreign;
        bool reasoning, content;
    } cases[] = {
        {"", "", false, false},
        {"<|start|>assistant", "", false, false},
        {"<|start|>user<|message|>a", "", false, false},
        {"<|start|>assistant<|channel|>final<|message|>", "", false, true},
        {"<|start|>assistant<|channel|>final<|message|>a", "", false, true},
        {"<|start|>assistant<|channel|>final<|message|>a<|end|>", "", false, false},
        {"<|start|>assistant<|channel|>final<|message|><|end|>",
         "000000000000000000000000000000000000000000000"
         "1111111",
         false, true},
        {"<|start|>assistant<|channel|>analysis<|message|>a", "", true, false},
        {"<|start|>assistant<|channel|>final<|message|>a<|end|><|start|>assistant", "", false,
         false},
        {"<|start|>assistant to=functions.f<|channel|>commentary<|message|>{", "", false, false},
        {"<|start|>assistant<|channel|>final<|message|>", "1", false, false},
        {"<|start|>assistant<|channel|>final<|message|><|start|>assistant",
         "000000000000000000000000000000000000000000000"
         "111111111"
         "111111111",
         false, true},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct jinja_text t = text_of(cases[i].text, cases[i].foreign);
        struct answer_form f = {.harmony = true, .reasoning_open = true, .content_open = true};
        chat_template_find_open(&t, false, &f);
        if (f.reasoning_open != cases[i].reasoning || f.content_open != cases[i].content)
            fail_msg("%s: %d %d", cases[i].text, f.reasoning_open, f.content_open);
        jinja_text_free(&t);
    }
}

/* As templates write it: around thoughts of Mistral's models there are no blanks. */
static void test_close(void **state)
{
    static const struct {
        struct answer_form form;
        const char *close;
    } cases[] = {
        {{.reasoning = true}, ""},
        {{.reasoning = true, .reasoning_open = true}, "\n</think>\n\n"},
        {{.thoughts = ANSWER_THOUGHTS_MISTRAL}, ""},
        {{.thoughts = ANSWER_THOUGHTS_MISTRAL, .reasoning_open = true}, "[/THINK]"},
        {{.thoughts = ANSWER_THOUGHTS_GEMMA4, .reasoning_open = true}, "<channel|>"},
        {{.harmony = true}, ""},
        {{.harmony = true, .content_open = true}, "<|end|><|start|>assistant"},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        assert_string_equal(answer_form_close(&cases[i].form), cases[i].close);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_opens_reasoning),
        cmocka_unit_test(test_opens_labelled),
        cmocka_unit_test(test_opens_message),
        cmocka_unit_test(test_close),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
