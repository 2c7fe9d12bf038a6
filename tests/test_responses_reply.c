/* /v1/responses: the object that goes back, and the events of a stream. */
#include "config/buf.h"
#include "config/jdoc.h"
#include "server/api/responses_reply.h"
#include "tests/only.h"

#include <stdio.h>
#include <string.h>

static char repeated_members[] = ",\"store\":false";
static const struct buf repeated = {.data = repeated_members, .len = sizeof repeated_members - 1};
static const struct completion_meta meta = {
    .id = "resp_ab", .created = 5, .model = "m", .repeated = &repeated};
static const struct completion_usage usage = {3, 4, 2, .reasoning_tokens = 1};

/* An answer that comes in pieces, and what has been sent of it. */
struct talk {
    struct answer *answer;
    struct logprobs logprobs;
    struct completion_choice choice;
    struct buf sent;
};

static void begin_talk(struct talk *t, bool parts, int32_t logprobs_top)
{
    const struct answer_form form = {.calls = ANSWER_CALLS_HERMES, .reasoning = true};
    *t = (struct talk){.answer = parts ? answer_open(&form, 7) : NULL};
    t->choice = (struct completion_choice){.answer = t->answer,
                                           .state = responses_reply.open(),
                                           .logprobs = &t->logprobs,
                                           .logprobs_top = logprobs_top,
                                           .stop_token = -1};
    logprobs_init(&t->logprobs, 1 << 16);
    buf_init(&t->sent, 1 << 20);
    assert_non_null(t->choice.state);
    responses_reply.start(&meta, t->choice.state, &usage, &t->sent);
}

/* A token with this text; then, with a reason, the end. */
static void say(struct talk *t, const char *text, const char *finish_reason)
{
    struct completion_choice *c = &t->choice;
    logprobs_clear(&t->logprobs);
    logprobs_add(&t->logprobs, 40 + (int32_t)strlen(text), 0);
    logprobs_score(&t->logprobs, 0, -0.5F, NULL, 0);
    c->text = text;
    c->text_len = strlen(text);
    if (t->answer) {
        const bool before = answer_reasons(t->answer);
        answer_push(t->answer, text, strlen(text));
        if (finish_reason)
            answer_finish(t->answer, true);
        c->reasons = before || answer_reasons(t->answer);
        c->text = answer_content(t->answer)->data;
        c->text_len = answer_content(t->answer)->len;
    }
    c->finish_reason = finish_reason;
    responses_reply.chunk(&meta, c, false, NULL, &t->sent);
    if (t->answer)
        answer_clear(t->answer);
}

static void finish_talk(struct talk *t)
{
    responses_reply.finish(&meta, &t->choice, &usage, &t->sent);
    assert_false(t->sent.failed);
}

static void end_talk(struct talk *t)
{
    responses_reply.close(t->choice.state);
    answer_close(t->answer);
    logprobs_free(&t->logprobs);
    buf_free(&t->sent);
}

/* Event i of those that were sent: name and data; false: there is none. Closed by the caller. */
static bool event_at(const struct buf *sent, int i, char name[64], struct jdoc **data)
{
    const char *at = sent->data, *end;
    struct err err = {""};
    for (; i > 0 && at; i--) {
        at = strstr(at, "\n\n");
        at = at ? at + 2 : NULL;
    }
    if (!at || sscanf(at, "event: %63s", name) != 1)
        return false;
    at = strstr(at, "\ndata: ") + strlen("\ndata: ");
    end = strstr(at, "\n\n");
    if (jdoc_parse(at, (size_t)(end - at), &jdoc_limits_request, "event", data, &err) != OK)
        fail_msg("%s: %s", name, err.text);
    return true;
}

/* Names without "response."; of each item its output_index. Numbers go up, and types are names. */
static void check_events(const struct buf *sent, const char *wanted)
{
    struct buf got;
    struct jdoc *data;
    char name[64];
    buf_init(&got, 1 << 16);
    for (int i = 0; event_at(sent, i, name, &data); i++) {
        const struct jdoc *index = jdoc_get(data, "output_index");
        assert_int_equal(jdoc_int(jdoc_get(data, "sequence_number")), i);
        assert_string_equal(jdoc_string(jdoc_get(data, "type")), name);
        buf_printf(&got, "%s%s", i ? " " : "", strncmp(name, "response.", 9) ? name : name + 9);
        if (index)
            buf_printf(&got, ":%d", (int)jdoc_int(index));
        jdoc_close(data);
    }
    assert_string_equal(got.data, wanted);
    buf_free(&got);
}

/* The texts of a member of all events of a name, one after the other. */
static void check_joined(const struct buf *sent, const char *event, const char *member,
                         const char *wanted)
{
    struct buf got;
    struct jdoc *data;
    char name[64];
    buf_init(&got, 1 << 16);
    buf_puts(&got, "");
    for (int i = 0; event_at(sent, i, name, &data); i++) {
        if (strcmp(name, event) == 0)
            buf_puts(&got, jdoc_string(jdoc_get(data, member)));
        jdoc_close(data);
    }
    assert_string_equal(got.data ? got.data : "", wanted);
    buf_free(&got);
}

static void check_object(const struct talk *t, const char *wanted)
{
    struct buf b;
    buf_init(&b, 1 << 16);
    responses_reply.begin(&meta, &t->choice, &b);
    responses_reply.choice(&meta, &t->choice, &b);
    responses_reply.end(&usage, &b);
    assert_string_equal(b.data, wanted);
    /* a stream ends with the same */
    const size_t tail = strlen("}\n\n");
    assert_memory_equal(t->sent.data + t->sent.len - tail - b.len, b.data, b.len);
    buf_free(&b);
}

#define OBJECT(status, details, output)                                                            \
    "{\"id\":\"resp_ab\",\"object\":\"response\",\"created_at\":5,\"model\":\"m\",\"store\":false" \
    ",\"status\":\"" status "\",\"incomplete_details\":" details ",\"output\":[" output "],"       \
    "\"usage\":{\"input_tokens\":3,\"input_tokens_details\":{\"cached_tokens\":2,"                 \
    "\"cache_write_tokens\":0},\"output_tokens\":4,\"output_tokens_details\":{"                    \
    "\"reasoning_tokens\":1},\"total_tokens\":7}}"
#define MESSAGE_ITEM(id, status, text, logprobs)                                                   \
    "{\"id\":\"msg_ab" id "\",\"type\":\"message\",\"status\":\"" status "\",\"role\":"            \
    "\"assistant\",\"content\":[{\"type\":\"output_text\",\"text\":\"" text "\",\"annotations\":"  \
    "[],\"logprobs\":[" logprobs "]}]}"
#define LOGPROB(token)                                                                             \
    "{\"token\":\"token_id:" token "\",\"logprob\":-0.5,\"bytes\":[],\"top_logprobs\":[]}"
#define MESSAGE_EVENTS(i, deltas)                                                                  \
    "output_item.added:" i " content_part.added:" i " " deltas "output_text.done:" i               \
    " content_part.done:" i " output_item.done:" i " "
#define REASONING_EVENTS(i, deltas)                                                                \
    "output_item.added:" i " content_part.added:" i " " deltas "reasoning_text.done:" i            \
    " content_part.done:" i " output_item.done:" i " "
#define CALL_EVENTS(i)                                                                             \
    "output_item.added:" i " function_call_arguments.delta:" i " function_call_arguments.done:" i  \
    " output_item.done:" i " "

static void test_text(void **state)
{
    struct talk t;
    (void)state;
    begin_talk(&t, false, 0);
    say(&t, "a\\\"", NULL);
    say(&t, "", NULL); /* is held back */
    say(&t, "bc", NULL);
    say(&t, "", "length");
    finish_talk(&t);
    check_events(
        &t.sent,
        "created in_progress " MESSAGE_EVENTS(
            "0", "output_text.delta:0 output_text.delta:0 output_text.delta:0 ") "incomplete");
    check_joined(&t.sent, "response.output_text.delta", "delta", "a\\\"bc");
    check_joined(&t.sent, "response.output_text.done", "text", "a\\\"bc");
    check_object(
        &t,
        OBJECT("incomplete", "{\"reason\":\"max_output_tokens\"}",
               MESSAGE_ITEM("00", "incomplete", "a\\\\\\\"bc",
                            LOGPROB("43") "," LOGPROB("40") "," LOGPROB("42") "," LOGPROB("40"))));
    end_talk(&t);
}

static void test_nothing(void **state)
{
    struct talk t;
    (void)state;
    begin_talk(&t, false, -1);
    say(&t, "", "stop");
    finish_talk(&t);
    check_events(&t.sent, "created in_progress " MESSAGE_EVENTS("0", "") "completed");
    check_object(&t, OBJECT("completed", "null", MESSAGE_ITEM("00", "completed", "", "")));
    end_talk(&t);
}

#define REASONING_ITEM(id, status, text)                                                           \
    "{\"id\":\"rs_ab" id "\",\"type\":\"reasoning\",\"status\":\"" status "\",\"summary\":[],"     \
    "\"content\":[{\"type\":\"reasoning_text\",\"text\":\"" text "\"}]}"
#define CALL_OF(status, id, call, name, arguments)                                                 \
    "{\"id\":\"fc_ab" id "\",\"type\":\"function_call\",\"status\":\"" status "\",\"call_id\":"    \
    "\"" call "\",\"name\":\"" name "\",\"arguments\":\"" arguments "\"}"
#define CALL_ITEM(id, call, name, arguments) CALL_OF("completed", id, call, name, arguments)

/* Every kind of item; logprobs are those of the message's tokens. */
static void test_items(void **state)
{
    struct talk t;
    (void)state;
    begin_talk(&t, true, 0);
    say(&t, "<think>", NULL);
    say(&t, "r", NULL);
    say(&t, "s", NULL);
    say(&t, "</think>", NULL);
    say(&t, "a", NULL);
    say(&t, "bcd", NULL);
    say(&t, "\n<tool_call>", NULL);
    say(&t, "{\"name\": \"f\", \"arguments\": {\"x\": 1}}", NULL);
    say(&t, "</tool_call><tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call>", NULL);
    say(&t, "", "tool_calls");
    finish_talk(&t);
    check_events(&t.sent, "created in_progress " REASONING_EVENTS(
                              "0", "reasoning_text.delta:0 reasoning_text.delta:0 ")
                              MESSAGE_EVENTS("1", "output_text.delta:1 output_text.delta:1 ")
                                  CALL_EVENTS("2") CALL_EVENTS("3") "completed");
    check_joined(&t.sent, "response.reasoning_text.delta", "delta", "rs");
    check_joined(&t.sent, "response.output_text.delta", "delta", "abcd");
    check_joined(&t.sent, "response.function_call_arguments.delta", "delta", "{\"x\": 1}{}");
    check_joined(&t.sent, "response.function_call_arguments.done", "arguments", "{\"x\": 1}{}");
    check_object(
        &t, OBJECT("completed", "null",
                   REASONING_ITEM("00", "completed", "rs") "," MESSAGE_ITEM(
                       "01", "completed", "abcd",
                       LOGPROB("41") "," LOGPROB(
                           "43")) "," CALL_ITEM("02", "HAAAAAAAA", "f",
                                                "{\\\"x\\\": 1}") "," CALL_ITEM("03", "IAAAAAAAA",
                                                                                "g", "{}")));
    end_talk(&t);
}

/* A call that the prompt has begun, as far as it came. */
static void test_cut_call(void **state)
{
    struct talk t;
    (void)state;
    begin_talk(&t, true, -1);
    answer_begin(t.answer, "<tool_call>\n{\"name\": \"", 22);
    say(&t, "f\", \"arguments\": {\"x\"", NULL);
    say(&t, ": ", "length");
    finish_talk(&t);
    check_events(&t.sent, "created in_progress " CALL_EVENTS("0") "incomplete");
    check_joined(&t.sent, "response.function_call_arguments.done", "arguments", "{\"x\": ");
    check_object(&t, OBJECT("incomplete", "{\"reason\":\"max_output_tokens\"}",
                            CALL_OF("incomplete", "00", "HAAAAAAAA", "f", "{\\\"x\\\": ")));
    end_talk(&t);
}

/* Text behind a call is another message, which does not have the call's log-probabilities. */
static void test_text_behind_a_call(void **state)
{
    struct talk t;
    (void)state;
    begin_talk(&t, true, 0);
    say(&t, "a", NULL);
    say(&t, "<tool_call>", NULL);
    say(&t, "{\"name\": \"f\", \"arguments\": {}}", NULL);
    say(&t, "b", "tool_calls");
    finish_talk(&t);
    check_events(&t.sent,
                 "created in_progress " MESSAGE_EVENTS("0", "output_text.delta:0 ") CALL_EVENTS("1")
                     MESSAGE_EVENTS("2", "output_text.delta:2 ") "completed");
    check_object(&t, OBJECT("completed", "null",
                            MESSAGE_ITEM("00", "completed", "a", LOGPROB("41")) "," CALL_ITEM(
                                "01", "HAAAAAAAA", "f",
                                "{}") "," MESSAGE_ITEM("02", "completed", "b", LOGPROB("41"))));
    end_talk(&t);
}

#define CALLS_AND_TEXT                                                                             \
    "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>c"                                 \
    "<tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call>d"
#define ITEMS_AT_ONCE                                                                              \
    MESSAGE_ITEM("00", "completed", "b", LOGPROB("40"))                                            \
    "," CALL_ITEM("01", "HAAAAAAAA", "f", "{}") "," MESSAGE_ITEM(                                  \
        "02", "completed", "c",                                                                    \
        "") "," CALL_ITEM("03", "IAAAAAAAA", "g",                                                  \
                          "{}") "," MESSAGE_ITEM("04", "completed", "d\\n",                        \
                                                 LOGPROB("149") "," LOGPROB("41"))

/* What comes at once is in its order, too. The token that brought it counts as its end, those that
 * have waited for it as its beginning. */
static void test_several_at_once(void **state)
{
    struct talk t;
    (void)state;
    begin_talk(&t, true, 0);
    say(&t, "", NULL); /* is held back */
    say(&t, "b" CALLS_AND_TEXT, NULL);
    say(&t, "\n", "tool_calls");
    finish_talk(&t);
    check_events(&t.sent,
                 "created in_progress " MESSAGE_EVENTS("0", "output_text.delta:0 ") CALL_EVENTS("1")
                     MESSAGE_EVENTS("2", "output_text.delta:2 ") CALL_EVENTS("3") MESSAGE_EVENTS(
                         "4", "output_text.delta:4 output_text.delta:4 ") "completed");
    check_object(&t, OBJECT("completed", "null", ITEMS_AT_ONCE));
    end_talk(&t);
}

/* What is cut off while it thinks has thought. */
static void test_cut_off(void **state)
{
    struct talk t;
    (void)state;
    begin_talk(&t, true, -1);
    say(&t, "<think>", NULL);
    say(&t, "r", "length");
    finish_talk(&t);
    check_events(&t.sent, "created in_progress " REASONING_EVENTS(
                              "0", "reasoning_text.delta:0 ") "incomplete");
    check_object(&t, OBJECT("incomplete", "{\"reason\":\"max_output_tokens\"}",
                            REASONING_ITEM("00", "incomplete", "r")));
    end_talk(&t);
}

/* Headers and thoughts are no message's tokens, and an item does not begin with the line break that
 * a chat has there. */
static void test_messages_of_harmony(void **state)
{
    const struct answer_form form = {
        .calls = ANSWER_CALLS_OPENAI, .reasoning = true, .harmony = true};
    struct talk t;
    (void)state;
    begin_talk(&t, false, 0);
    t.answer = answer_open(&form, 7);
    t.choice.answer = t.answer;
    static const char *const texts[] = {
        "<|channel|>", "analysis",   "<|message|>", "rr",  "<|end|>", "<|start|>", "assistant",
        "<|channel|>", "commentary", "<|message|>", "abc", "<|end|>", "<|start|>", "assistant",
        "<|channel|>", "analysis",   "<|message|>", "ss",  "<|end|>", "<|start|>", "assistant",
        "<|channel|>", "final",      "<|message|>", "bcde"};
    for (size_t i = 0; i < ARRAY_LEN(texts); i++)
        say(&t, texts[i], NULL);
    say(&t, "", "stop");
    finish_talk(&t);
    check_object(
        &t,
        OBJECT(
            "completed", "null",
            REASONING_ITEM("00", "completed", "rr") "," MESSAGE_ITEM(
                "01", "completed", "abc",
                LOGPROB("43")) "," REASONING_ITEM("02", "completed",
                                                  "ss") "," MESSAGE_ITEM("03", "completed", "bcde",
                                                                         LOGPROB("44") "," LOGPROB(
                                                                             "40"))));
    end_talk(&t);
}

/* A thought behind an answer, at once. */
static void test_harmony_at_once(void **state)
{
    const struct answer_form form = {
        .calls = ANSWER_CALLS_OPENAI, .reasoning = true, .harmony = true};
    struct talk t;
    (void)state;
    begin_talk(&t, false, -1);
    t.answer = answer_open(&form, 7);
    t.choice.answer = t.answer;
    say(&t,
        "<|channel|>commentary<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>r"
        "<|end|><|start|>assistant<|channel|>final<|message|>b",
        "stop");
    finish_talk(&t);
    check_object(&t,
                 OBJECT("completed", "null",
                        MESSAGE_ITEM("00", "completed", "a", "") "," REASONING_ITEM(
                            "01", "completed", "r") "," MESSAGE_ITEM("02", "completed", "b", "")));
    end_talk(&t);
}

static void test_error(void **state)
{
    struct talk t;
    struct api_error e = {0};
    (void)state;
    begin_talk(&t, false, -1);
    say(&t, "a", NULL);
    api_error_set(&e, 503, "rank_lost", "a rank was lost");
    buf_clear(&t.sent);
    responses_reply.error(t.choice.state, &e, &t.sent);
    assert_string_equal(t.sent.data,
                        "event: error\ndata: {\"type\":\"error\",\"sequence_number\":5,\"code\":"
                        "\"rank_lost\",\"message\":\"a rank was lost\",\"param\":null}\n\n");
    end_talk(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_nothing),
        cmocka_unit_test(test_items),
        cmocka_unit_test(test_cut_call),
        cmocka_unit_test(test_text_behind_a_call),
        cmocka_unit_test(test_cut_off),
        cmocka_unit_test(test_messages_of_harmony),
        cmocka_unit_test(test_error),
        cmocka_unit_test(test_several_at_once),
        cmocka_unit_test(test_harmony_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
