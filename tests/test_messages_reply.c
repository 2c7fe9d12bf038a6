/* /v1/messages: the message that goes back, and the events of a stream. */
#include "config/buf.h"
#include "config/jdoc.h"
#include "server/api/messages_reply.h"
#include "tests/only.h"

#include <stdio.h>
#include <string.h>

static const struct completion_meta meta = {.id = "msg_ab", .created = 5, .model = "m\""};
static const struct completion_usage usage = {9, 4, 2, .reasoning_tokens = -1};

/* An answer that comes in pieces: a stream, and what it is whole. */
struct talk {
    struct answer *answer;
    struct completion_choice choice;
    struct reply_state *states[2]; /* of the stream, of the other */
    struct buf sent, dropped;
};

static void begin_talk(struct talk *t, const struct answer_form *form)
{
    *t = (struct talk){.answer = form ? answer_open(form, 7) : NULL};
    t->choice =
        (struct completion_choice){.answer = t->answer, .logprobs_top = -1, .stop_token = -1};
    buf_init(&t->sent, 1 << 20);
    buf_init(&t->dropped, 1 << 20);
    for (size_t i = 0; i < 2; i++) {
        t->states[i] = messages_reply.open();
        assert_non_null(t->states[i]);
    }
    messages_reply.start(&meta, t->states[0], &usage, &t->sent);
}

/* A token with this text; then, with a reason, the end. */
static void say(struct talk *t, const char *text, const char *finish_reason)
{
    struct completion_choice *c = &t->choice;
    struct buf *const to[] = {&t->sent, &t->dropped};
    c->text = text;
    c->text_len = strlen(text);
    if (t->answer) {
        answer_push(t->answer, text, strlen(text));
        if (finish_reason)
            answer_finish(t->answer, true);
        c->text = answer_content(t->answer)->data;
        c->text_len = answer_content(t->answer)->len;
    }
    c->finish_reason = finish_reason;
    for (size_t i = 0; i < 2; i++) {
        c->state = t->states[i];
        messages_reply.chunk(&meta, c, false, NULL, to[i]);
    }
    if (t->answer)
        answer_clear(t->answer);
}

static void end_talk(struct talk *t)
{
    messages_reply.close(t->states[0]);
    messages_reply.close(t->states[1]);
    answer_close(t->answer);
    buf_free(&t->sent);
    buf_free(&t->dropped);
}

#define MESSAGE "{\"id\":\"msg_ab\",\"type\":\"message\",\"role\":\"assistant\",\"model\":\"m\\\"\""
#define USAGE(output)                                                                              \
    "\"usage\":{\"input_tokens\":7,\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\""  \
    ":2,\"output_tokens\":" output "}"
#define STOP(reason, sequence) "\"stop_reason\":" reason ",\"stop_sequence\":" sequence
#define EVENT(name, more) "event: " name "\ndata: {\"type\":\"" name "\"" more "}\n\n"
#define START                                                                                      \
    EVENT("message_start",                                                                         \
          ",\"message\":" MESSAGE ",\"content\":[]," STOP("null", "null") "," USAGE("4") "}")
#define OPEN(i, block) EVENT("content_block_start", ",\"index\":" i ",\"content_block\":" block)
#define DELTA(i, type, member, text)                                                               \
    EVENT("content_block_delta",                                                                   \
          ",\"index\":" i ",\"delta\":{\"type\":\"" type "\",\"" member "\":\"" text "\"}")
#define CLOSE(i) EVENT("content_block_stop", ",\"index\":" i)
#define END(reason, sequence)                                                                      \
    EVENT("message_delta", ",\"delta\":{" STOP(reason, sequence) "}," USAGE("4"))                  \
    EVENT("message_stop", "")
#define TEXT(text) "{\"type\":\"text\",\"text\":\"" text "\"}"
#define THINKING(text) "{\"type\":\"thinking\",\"thinking\":\"" text "\",\"signature\":\"\"}"
#define CALL(id, name, input)                                                                      \
    "{\"type\":\"tool_use\",\"id\":\"toolu_" id "\",\"name\":\"" name "\",\"input\":" input "}"
#define SIGNED(i) DELTA(i, "signature_delta", "signature", "")

/* Both ways, byte by byte; blocks: of the message; stop: its last members but usage. */
static void check_talk(struct talk *t, const char *events, const char *blocks, const char *stop)
{
    struct buf b, wanted;
    buf_init(&b, 1 << 16);
    buf_init(&wanted, 1 << 16);
    messages_reply.finish(&meta, &t->choice, &usage, &t->sent);
    assert_false(t->sent.failed);
    assert_string_equal(t->sent.data, events);
    t->choice.state = t->states[1];
    messages_reply.begin(&meta, &t->choice, &b);
    messages_reply.choice(&meta, &t->choice, &b);
    messages_reply.end(&usage, &b);
    buf_printf(&wanted, MESSAGE ",\"content\":[%s],%s," USAGE("4") "}", blocks, stop);
    assert_string_equal(b.data, wanted.data);
    buf_free(&b);
    buf_free(&wanted);
}

static void test_text(void **state)
{
    struct talk t;
    (void)state;
    begin_talk(&t, NULL);
    say(&t, "a\\\"", NULL);
    say(&t, "", NULL); /* is held back */
    say(&t, "\n", NULL);
    say(&t, "", "length");
    check_talk(&t,
               START OPEN("0", TEXT("")) DELTA("0", "text_delta", "text", "a\\\\\\\"")
                   DELTA("0", "text_delta", "text", "\\n") CLOSE("0") END("\"max_tokens\"", "null"),
               TEXT("a\\\\\\\"\\n"), STOP("\"max_tokens\"", "null"));
    end_talk(&t);
}

static void test_nothing(void **state)
{
    struct talk t;
    (void)state;
    begin_talk(&t, NULL);
    say(&t, "", "stop");
    check_talk(&t, START OPEN("0", TEXT("")) CLOSE("0") END("\"end_turn\"", "null"), TEXT(""),
               STOP("\"end_turn\"", "null"));
    end_talk(&t);
}

static void test_stop_sequence(void **state)
{
    struct talk t;
    (void)state;
    begin_talk(&t, NULL);
    t.choice.stop_reason = "\"x";
    t.choice.stop_reason_len = 2;
    say(&t, "a", "stop");
    check_talk(&t,
               START OPEN("0", TEXT("")) DELTA("0", "text_delta", "text", "a") CLOSE("0")
                   END("\"stop_sequence\"", "\"\\\"x\""),
               TEXT("a"), STOP("\"stop_sequence\"", "\"\\\"x\""));
    end_talk(&t);
}

static const struct answer_form hermes = {.calls = ANSWER_CALLS_HERMES, .reasoning = true};

/* Of a call that the prompt has begun and a limit has cut off a stream says what there is; whole it
 * has to be an object, which is empty then. */
static void test_cut_call(void **state)
{
    struct talk t;
    (void)state;
    begin_talk(&t, &hermes);
    answer_begin(t.answer, "<tool_call>\n{\"name\": \"", 22);
    say(&t, "f\", \"arguments\": {\"x\"", NULL);
    say(&t, ": ", "length");
    check_talk(&t,
               START OPEN("0", CALL("HAAAAAAAA", "f", "{}"))
                   DELTA("0", "input_json_delta", "partial_json", "{\\\"x\\\": ") CLOSE("0")
                       END("\"max_tokens\"", "null"),
               CALL("HAAAAAAAA", "f", "{}"), STOP("\"max_tokens\"", "null"));
    end_talk(&t);
}

/* Every kind of block. A call that a stop string ended is a call. */
static void test_blocks(void **state)
{
    struct talk t;
    (void)state;
    begin_talk(&t, &hermes);
    say(&t, "<think>", NULL);
    say(&t, "r", NULL);
    say(&t, "s", NULL);
    say(&t, "</think>", NULL);
    say(&t, "a", NULL);
    say(&t, "\n<tool_call>", NULL);
    say(&t, "{\"name\": \"f\", \"arguments\": {\"x\": \"\\n\"}}", NULL);
    t.choice.stop_reason = "x";
    t.choice.stop_reason_len = 1;
    say(&t, "</tool_call><tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call>",
        "tool_calls");
    check_talk(
        &t,
        START OPEN("0", THINKING("")) DELTA("0", "thinking_delta", "thinking", "r")
            DELTA("0", "thinking_delta", "thinking", "s") SIGNED("0") CLOSE("0") OPEN("1", TEXT(""))
                DELTA("1", "text_delta", "text", "a") CLOSE("1")
                    OPEN("2", CALL("HAAAAAAAA", "f", "{}"))
                        DELTA("2", "input_json_delta", "partial_json", "{\\\"x\\\": \\\"\\\\n\\\"}")
                            CLOSE("2") OPEN("3", CALL("IAAAAAAAA", "g", "{}"))
                                DELTA("3", "input_json_delta", "partial_json", "{}") CLOSE("3")
                                    END("\"tool_use\"", "null"),
        THINKING("rs") "," TEXT("a") "," CALL("HAAAAAAAA", "f",
                                              "{\"x\": \"\\n\"}") "," CALL("IAAAAAAAA", "g", "{}"),
        STOP("\"tool_use\"", "null"));
    end_talk(&t);
}

static void test_text_behind_a_call(void **state)
{
    struct talk t;
    (void)state;
    begin_talk(&t, &hermes);
    say(&t, "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>", NULL);
    say(&t, "b", "length");
    check_talk(&t,
               START OPEN("0", CALL("HAAAAAAAA", "f", "{}"))
                   DELTA("0", "input_json_delta", "partial_json", "{}") CLOSE("0")
                       OPEN("1", TEXT("")) DELTA("1", "text_delta", "text", "b") CLOSE("1")
                           END("\"max_tokens\"", "null"),
               CALL("HAAAAAAAA", "f", "{}") "," TEXT("b"), STOP("\"max_tokens\"", "null"));
    end_talk(&t);
}

/* What comes at once is in its order, too. */
static void test_several_at_once(void **state)
{
    struct talk t;
    (void)state;
    begin_talk(&t, &hermes);
    say(&t, "a", NULL);
    say(&t,
        "b<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>c"
        "<tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call>"
        "<tool_call>{\"name\": \"h\", \"arguments\": {}}</tool_call>d",
        NULL);
    say(&t, "e", "tool_calls");
    check_talk(
        &t,
        START OPEN("0", TEXT("")) DELTA("0", "text_delta", "text", "a")
            DELTA("0", "text_delta", "text", "b") CLOSE("0") OPEN("1", CALL("HAAAAAAAA", "f", "{}"))
                DELTA("1", "input_json_delta", "partial_json", "{}") CLOSE("1") OPEN("2", TEXT(""))
                    DELTA("2", "text_delta", "text", "c") CLOSE("2")
                        OPEN("3", CALL("IAAAAAAAA", "g", "{}"))
                            DELTA("3", "input_json_delta", "partial_json", "{}") CLOSE("3")
                                OPEN("4", CALL("JAAAAAAAA", "h", "{}"))
                                    DELTA("4", "input_json_delta", "partial_json", "{}") CLOSE("4")
                                        OPEN("5", TEXT("")) DELTA("5", "text_delta", "text", "d")
                                            DELTA("5", "text_delta", "text", "e") CLOSE("5")
                                                END("\"tool_use\"", "null"),
        TEXT("ab") "," CALL("HAAAAAAAA", "f", "{}") "," TEXT("c") "," CALL(
            "IAAAAAAAA", "g", "{}") "," CALL("JAAAAAAAA", "h", "{}") "," TEXT("de"),
        STOP("\"tool_use\"", "null"));
    end_talk(&t);
}

/* What is cut off while it thinks has thought. */
static void test_cut_off(void **state)
{
    struct talk t;
    (void)state;
    begin_talk(&t, &hermes);
    say(&t, "<think>", NULL);
    say(&t, "r", "length");
    check_talk(&t,
               START OPEN("0", THINKING("")) DELTA("0", "thinking_delta", "thinking", "r")
                   SIGNED("0") CLOSE("0") END("\"max_tokens\"", "null"),
               THINKING("r"), STOP("\"max_tokens\"", "null"));
    end_talk(&t);
}

/* No block begins with the line break that a chat has there; so whether messages come one by one or
 * at once. */
static void test_messages_of_harmony(void **state)
{
    static const struct answer_form form = {
        .calls = ANSWER_CALLS_OPENAI, .reasoning = true, .harmony = true};
    static const char *const one_by_one[] = {
        "<|channel|>analysis<|message|>r<|end|>",
        "<|start|>assistant<|channel|>commentary<|message|>a<|end|>",
        "<|start|>assistant<|channel|>analysis<|message|>s<|end|>",
        "<|start|>assistant<|channel|>final<|message|>b", NULL};
    static const char *const at_once[] = {
        "<|channel|>analysis<|message|>r<|end|>"
        "<|start|>assistant<|channel|>commentary<|message|>a<|end|>"
        "<|start|>assistant<|channel|>analysis<|message|>s<|end|>"
        "<|start|>assistant<|channel|>final<|message|>b",
        NULL};
    static const char *const *const ways[] = {one_by_one, at_once};
    (void)state;
    for (size_t way = 0; way < ARRAY_LEN(ways); way++) {
        struct talk t;
        begin_talk(&t, &form);
        for (size_t i = 0; ways[way][i]; i++)
            say(&t, ways[way][i], NULL);
        say(&t, "", "stop");
        check_talk(&t,
                   START OPEN("0", THINKING("")) DELTA("0", "thinking_delta", "thinking", "r")
                       SIGNED("0") CLOSE("0") OPEN("1", TEXT(""))
                           DELTA("1", "text_delta", "text", "a") CLOSE("1") OPEN("2", THINKING(""))
                               DELTA("2", "thinking_delta", "thinking", "s") SIGNED("2") CLOSE("2")
                                   OPEN("3", TEXT("")) DELTA("3", "text_delta", "text", "b")
                                       CLOSE("3") END("\"end_turn\"", "null"),
                   THINKING("r") "," TEXT("a") "," THINKING("s") "," TEXT("b"),
                   STOP("\"end_turn\"", "null"));
        end_talk(&t);
    }
}

static void test_thinking_tokens(void **state)
{
    const struct completion_usage thought = {9, 4, 2, .reasoning_tokens = 3};
    struct buf b;
    (void)state;
    buf_init(&b, 1 << 16);
    messages_reply.end(&thought, &b);
    assert_string_equal(b.data, ",\"usage\":{\"input_tokens\":7,\"cache_creation_input_tokens\":0,"
                                "\"cache_read_input_tokens\":2,\"output_tokens\":4,"
                                "\"output_tokens_details\":{\"thinking_tokens\":3}}}");
    buf_clear(&b);
    messages_reply_count(12, &b);
    assert_string_equal(b.data, "{\"input_tokens\":12}");
    buf_free(&b);
}

/* Of every status, as its clients tell errors apart. */
static void test_errors(void **state)
{
    static const struct {
        int32_t status;
        const char *type;
    } cases[] = {{400, "invalid_request_error"},
                 {401, "authentication_error"},
                 {403, "permission_error"},
                 {404, "not_found_error"},
                 {405, "invalid_request_error"},
                 {413, "request_too_large"},
                 {415, "invalid_request_error"},
                 {429, "rate_limit_error"},
                 {500, "api_error"},
                 {501, "api_error"},
                 {503, "overloaded_error"}};
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct api_error e = {0};
        struct buf b, wanted;
        buf_init(&b, 1 << 16);
        buf_init(&wanted, 1 << 16);
        api_error_set(&e, cases[i].status, "code", "why \"\xff");
        messages_reply.error(NULL, &e, &b);
        buf_printf(&wanted,
                   "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":"
                   "\"why \\\"?\"}}\n\n",
                   cases[i].type);
        assert_string_equal(b.data, wanted.data);
        buf_clear(&b);
        api_error_write_anthropic(&e, "r1", &b);
        buf_clear(&wanted);
        buf_printf(&wanted,
                   "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":\"why \\\"?\"},"
                   "\"request_id\":\"r1\"}",
                   cases[i].type);
        assert_string_equal(b.data, wanted.data);
        buf_free(&b);
        buf_free(&wanted);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_nothing),
        cmocka_unit_test(test_stop_sequence),
        cmocka_unit_test(test_cut_call),
        cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_text_behind_a_call),
        cmocka_unit_test(test_several_at_once),
        cmocka_unit_test(test_cut_off),
        cmocka_unit_test(test_messages_of_harmony),
        cmocka_unit_test(test_thinking_tokens),
        cmocka_unit_test(test_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
