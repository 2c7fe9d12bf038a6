/* /v1/messages: which chat a request becomes; what is refused and where. */
#include "config/buf.h"
#include "server/api/messages.h"
#include "server/api/messages_input.h"
#include "tests/only.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const model_names[] = {"demo"};
static const struct completion_rules rules = {
    .model_names = model_names,
    .model_name_count = 1,
    .vocab = 100,
    .max_model_len = 64,
    .has_tokenizer = true,
    .answer = {.calls = ANSWER_CALLS_HERMES},
    .defaults = {NAN, NAN, NAN, NAN, -1},
};

static void parse_good(const char *text, const struct completion_rules *with,
                       struct chat_request *r)
{
    struct api_error e = {0};
    if (messages_parse(text, strlen(text), with, r, &e) != OK)
        fail_msg("%s: %s", text, e.message);
}

static void check_refused(const char *text, const struct completion_rules *with, const char *param,
                          const char *message)
{
    struct chat_request r;
    struct api_error e = {0};
    if (messages_parse(text, strlen(text), with, &r, &e) != ERR_INPUT)
        fail_msg("%s is accepted", text);
    assert_string_equal(e.message, message);
    assert_string_equal(e.param, param);
    assert_int_equal(e.http_status, 400);
}

/* ---- messages ---- */

#define SAYS(role, content) "{\"role\":\"" role "\",\"content\":" content "}"
#define USER SAYS("user", "\"a\"")
#define TEXT(text) "{\"type\":\"text\",\"text\":\"" text "\"}"
#define THINKS(text) "{\"type\":\"thinking\",\"thinking\":\"" text "\",\"signature\":\"s\"}"
#define CALLS(id) "{\"type\":\"tool_use\",\"id\":\"" id "\",\"name\":\"f\",\"input\":{\"x\":[1]}}"
#define GAVE(id, more) "{\"type\":\"tool_result\",\"tool_use_id\":\"" id "\"" more "}"
#define CHAT_CALL(id)                                                                              \
    "{\"type\":\"function\",\"id\":\"" id "\",\"function\":{\"name\":\"f\",\"arguments\":{\"x\":[" \
    "1]}}}"
#define CHAT_THINKS(text)                                                                          \
    ",\"reasoning_content\":\"" text "\",\"reasoning\":\"" text "\",\"thinking\":\"" text "\""
#define CHAT_GAVE(id, text)                                                                        \
    "{\"role\":\"tool\",\"content\":\"" text "\",\"tool_call_id\":\"" id "\"}"

static const struct {
    const char *members, *wanted;
} good_messages[] = {
    {"\"messages\":[" SAYS("user", "\"a\\u0000\"") "]", "[" SAYS("user", "\"a\\u0000\"") "]"},
    /* texts are lines; messages of one role are one, whatever is in them */
    {"\"messages\":[" SAYS("user", "[" TEXT("a") "," TEXT("") "]") "," SAYS(
         "user", "\"\"") "," SAYS("user", "[" TEXT("b") "]") "]",
     "[" SAYS("user", "\"a\\n\\n\\nb\"") "]"},
    {"\"messages\":[" SAYS("user", "[]") "," SAYS("user", "\"a\"") "]", "[" USER "]"},
    {"\"messages\":[" SAYS("user", "[]") "]", "[" SAYS("user", "\"\"") "]"},
    /* instructions */
    {"\"system\":\"s\",\"messages\":[" USER "]", "[" SAYS("system", "\"s\"") "," USER "]"},
    {"\"system\":\"\",\"messages\":[" USER "]", "[" USER "]"},
    {"\"system\":null,\"messages\":[" USER "]", "[" USER "]"},
    {"\"system\":[],\"messages\":[" USER "]", "[" USER "]"},
    {"\"system\":[" TEXT("s") "," TEXT("t") "],\"messages\":[" SAYS(
         "system", "\"u\"") "," USER "," SAYS("system", "[" TEXT("v") "]") "]",
     "[" SAYS("system", "\"s\\nt\\nu\"") "," USER "," SAYS("system", "\"v\"") "]"},
    {"\"system\":[" TEXT("x-anthropic-billing-header: c=1;") "," TEXT("s") "],\"messages\":[" USER
                                                                           "]",
     "[" SAYS("system", "\"s\"") "," USER "]"},
    {"\"system\":\"x-anthropic-billing-header: c\",\"messages\":[" SAYS(
         "user", "[" TEXT("x-anthropic-billing-header: c") "]") "]",
     "[" SAYS("user", "\"x-anthropic-billing-header: c\"") "]"},
    {"\"system\":\"x-anthropic-billing-header: c\\nBe.\\nx-anthropic-billing-header: d\","
     "\"messages\":[" USER "]",
     "[" SAYS("system", "\"Be.\\nx-anthropic-billing-header: d\"") "," USER "]"},
    {"\"system\":[" TEXT("x-anthropic-billing-header: c\\nBe.") "," TEXT("") "],\"messages\":[" USER
                                                                             "]",
     "[" SAYS("system", "\"Be.\\n\"") "," USER "]"},
    /* what was one answer is one message, with ids as templates know them */
    {"\"messages\":[" USER
     "," SAYS("assistant",
              "[" THINKS("r") "," TEXT("s") "," CALLS("toolu_1") "," TEXT(
                  "t") "]") "," SAYS("assistant",
                                     "[" THINKS("q") "," CALLS(
                                         "2") "]") "," SAYS("user",
                                                            "[" GAVE("2", "") "," GAVE(
                                                                "toolu_1",
                                                                ",\"content\":"
                                                                "\"x\"") "," TEXT("b") "]") "]",
     "[" USER ",{\"role\":\"assistant\",\"content\":\"s\\nt\"" CHAT_THINKS(
         "r\\nq") ",\"tool_calls\":"
                  "[" CHAT_CALL("1") "," CHAT_CALL("2") "]}," CHAT_GAVE("2", "") "," CHAT_GAVE(
                      "1", "x") "," SAYS("user", "\"b\"") "]"},
    {"\"messages\":[" SAYS("assistant", "[" CALLS("toolu_") "]") "," SAYS(
         "user",
         "[" TEXT("b") "," GAVE("toolu_", ",\"is_error\":true,\"content\":[" TEXT("x") "," TEXT(
                                              "y") "]") "," TEXT("c") "]") "]",
     "[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[" CHAT_CALL("toolu_") "]}," SAYS(
         "user", "\"b\"") "," CHAT_GAVE("toolu_", "x\\ny") "," SAYS("user", "\"c\"") "]"},
    {"\"messages\":[" USER "," SAYS(
         "user", "[" GAVE("1", ",\"content\":[" TEXT("x-anthropic-billing-header: c") "]") "]") "]",
     "[" USER "," CHAT_GAVE("1", "x-anthropic-billing-header: c") "]"},
    /* as answers may have it: numbers of any size */
    {"\"messages\":[" SAYS("assistant",
                           "[{\"type\":\"tool_use\",\"id\":\"1\",\"name\":\"f\",\"input\":"
                           "{\"x\":[123456789012345678901234567890,5,-9223372036854775808,"
                           "-9223372036854775809],\"99999999999999999999\":1}}]") "," USER "]",
     "[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"type\":\"function\",\"id\":"
     "\"1\",\"function\":{\"name\":\"f\",\"arguments\":{\"x\":[1.2345678901234568e29,5,"
     "-9223372036854775808,-9.2233720368547758e18],\"99999999999999999999\":1}}}]}," USER "]"},
    {"\"messages\":[" SAYS("assistant",
                           "[{\"type\":\"redacted_thinking\",\"data\":\"d\"}]") "," USER "]",
     "[" SAYS("assistant", "\"\"") "," USER "]"},
    {"\"messages\":[" SAYS("assistant", "[" THINKS("") "," TEXT("s") "]") "," USER "]",
     "[" SAYS("assistant", "\"s\"") "," USER "]"},
};

static void test_messages(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(good_messages); i++) {
        char text[2048];
        struct chat_request r;
        struct buf b;
        snprintf(text, sizeof text, "{\"max_tokens\":9,%s}", good_messages[i].members);
        parse_good(text, &rules, &r);
        buf_init(&b, 1 << 16);
        jdoc_write(jdoc_get(r.conversation.vars, "messages"), &b);
        assert_string_equal(b.data, good_messages[i].wanted);
        assert_string_equal(r.completion.source, "messages");
        assert_null(r.conversation.mark);
        assert_int_equal(r.conversation.unknown.count + r.completion.unknown.count, 0);
        buf_free(&b);
        chat_free(&r);
    }
}

/* The assistant's words at the end are to be continued. */
static void test_prefill(void **state)
{
    static const char *const contents[] = {"\"b\"", "\"\"", "[" TEXT("b") "]", "[]"};
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(contents); i++) {
        char text[256];
        struct chat_request r;
        snprintf(text, sizeof text,
                 "{\"max_tokens\":9,\"messages\":[" USER ",{\"role\":\"assistant\",\"content\":%s}"
                 "]}",
                 contents[i]);
        parse_good(text, &rules, &r);
        assert_non_null(r.conversation.mark);
        assert_false(jdoc_bool(jdoc_get(r.conversation.vars, "add_generation_prompt")));
        chat_free(&r);
    }
    check_refused("{\"max_tokens\":9,\"messages\":[" USER
                  "," SAYS("assistant", "[" CALLS("1") "]") "]}",
                  &rules, "messages",
                  "messages must not end with tool_use: what the tool gave comes next, as a "
                  "tool_result");
}

static void test_refused_blocks(void **state)
{
    static const char user[] = "\"text\" or \"tool_result\"";
    static const char only[] = ": this server reads text only, and has no tools of its own";
    char wrong_user[256], wrong_assistant[256], wrong_text[256];
    snprintf(wrong_user, sizeof wrong_user, ".content[1].type must be %s, got \"image\"%s", user,
             only);
    snprintf(wrong_assistant, sizeof wrong_assistant,
             ".content[0].type must be \"text\", \"thinking\", \"redacted_thinking\" or "
             "\"tool_use\", got \"tool_result\"%s",
             only);
    snprintf(wrong_text, sizeof wrong_text,
             ".content[0].content[1].type must be \"text\", got \"document\"%s", only);
    const struct {
        const char *message, *param, *text; /* behind the path of the message */
    } cases[] = {
        {"5", "", " must be an object, got 5"},
        {"{\"content\":\"a\"}", ".role", ".role is missing"},
        {"{\"role\":\"tool\",\"content\":\"a\"}", ".role",
         ".role must be one of user|assistant|system, got \"tool\""},
        {"{\"role\":\"user\"}", ".content", ".content is missing"},
        {SAYS("user", "5"), ".content", ".content must be a string or a list of blocks, got 5"},
        {SAYS("user", "[\"a\"]"), ".content[0]", ".content[0] must be an object, got \"a\""},
        {SAYS("user", "[{}]"), ".content[0].type", ".content[0].type is missing"},
        {SAYS("user", "[{\"type\":\"text\"}]"), ".content[0].text", ".content[0].text is missing"},
        {SAYS("user", "[{\"type\":\"text\",\"text\":5}]"), ".content[0].text",
         ".content[0].text must be a string, got 5"},
        {SAYS("user", "[" TEXT("a") ",{\"type\":\"image\"}]"), ".content[1].type", wrong_user},
        {SAYS("assistant", "[" GAVE("1", "") "]"), ".content[0].type", wrong_assistant},
        {SAYS("assistant", "[{\"type\":\"thinking\"}]"), ".content[0].thinking",
         ".content[0].thinking is missing"},
        {SAYS("assistant", "[{\"type\":\"tool_use\",\"name\":\"f\",\"input\":{}}]"),
         ".content[0].id", ".content[0].id is missing"},
        {SAYS("assistant", "[{\"type\":\"tool_use\",\"id\":\"1\",\"input\":{}}]"),
         ".content[0].name", ".content[0].name is missing"},
        {SAYS("assistant", "[{\"type\":\"tool_use\",\"id\":\"1\",\"name\":\"f\"}]"),
         ".content[0].input", ".content[0].input is missing"},
        {SAYS("assistant",
              "[{\"type\":\"tool_use\",\"id\":\"1\",\"name\":\"f\",\"input\":\"{}\"}]"),
         ".content[0].input", ".content[0].input must be an object, got \"{}\""},
        {SAYS("user", "[{\"type\":\"tool_result\"}]"), ".content[0].tool_use_id",
         ".content[0].tool_use_id is missing"},
        {SAYS("user", "[" GAVE("1", ",\"content\":5") "]"), ".content[0].content",
         ".content[0].content must be a string or a list of blocks, got 5"},
        {SAYS("user", "[" GAVE("1", ",\"content\":[" TEXT("a") ",{\"type\":\"document\"}]") "]"),
         ".content[0].content[1].type", wrong_text},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char text[1024], param[64], message[480];
        snprintf(text, sizeof text, "{\"max_tokens\":9,\"messages\":[" USER "," USER ",%s]}",
                 cases[i].message);
        snprintf(param, sizeof param, "messages[2]%s", cases[i].param);
        snprintf(message, sizeof message, "messages[2]%s", cases[i].text);
        check_refused(text, &rules, param, message);
    }
}

/* A list of so many of one item, as a request. */
static void write_many(struct buf *b, const char *before, const char *item, int count,
                       const char *after)
{
    buf_init(b, 1 << 20);
    buf_puts(b, before);
    for (int i = 0; i < count; i++) {
        buf_puts(b, i ? "," : "");
        buf_puts(b, item);
    }
    buf_puts(b, after);
}

static void test_counts(void **state)
{
    static const struct {
        const char *before, *item, *after;
        int most;
        const char *param, *message;
    } cases[] = {
        {"{\"max_tokens\":9,\"messages\":[", USER, "]}", 4096, "messages",
         "messages must have 1 to 4096 entries, got 4097"},
        {"{\"max_tokens\":9,\"messages\":[" USER ",{\"role\":\"user\",\"content\":[", TEXT("a"),
         "]}]}", 1024, "messages[1].content",
         "messages[1].content may hold at most 1024 blocks, got 1025"},
        {"{\"max_tokens\":9,\"messages\":[" USER "],\"system\":[", TEXT("a"), "]}", 1024, "system",
         "system may hold at most 1024 blocks, got 1025"},
        {"{\"max_tokens\":9,\"messages\":[{\"role\":\"assistant\",\"content\":[", CALLS("1"),
         "]}," USER "]}", 128, "messages[0].content[128].type",
         "messages[0].content[128].type must not be tool_use here: one message may have at most "
         "128 "
         "calls"},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct chat_request r;
        struct buf b;
        write_many(&b, cases[i].before, cases[i].item, cases[i].most, cases[i].after);
        parse_good(b.data, &rules, &r);
        chat_free(&r);
        buf_free(&b);
        write_many(&b, cases[i].before, cases[i].item, cases[i].most + 1, cases[i].after);
        check_refused(b.data, &rules, cases[i].param, cases[i].message);
        buf_free(&b);
    }
}

/* What only the making of a conversation finds is told by the client's own messages, of which one
 * may be several of a chat. */
static void test_paths_of_messages(void **state)
{
    struct completion_rules known = rules;
    (void)state;
    known.answer = (struct answer_form){.calls = ANSWER_CALLS_OPENAI, .harmony = true};
    check_refused(
        "{\"max_tokens\":9,\"system\":\"s\",\"messages\":[" USER
        "," SAYS("assistant", "[" CALLS("1") "," CALLS("2") "]") "," SAYS(
            "user", "[" GAVE("1", "") "," GAVE("2", "") "]") "," SAYS("system", "\"b\"") "]}",
        &known, "messages[3].role",
        "messages[3].role must not be system here, since this model's template would leave "
        "the message out: instructions come before all other messages");
}

static void test_blame(void **state)
{
    struct api_error e = {0};
    (void)state;
    api_error_field(&e, "continue_final_message", "continue_final_message is not possible");
    messages_input_blame(&e);
    assert_string_equal(e.param, "messages");
    assert_non_null(strstr(e.message, "messages must not end with one of the assistant"));
    api_error_field(&e, "stop", "stop it");
    messages_input_blame(&e);
    assert_string_equal(e.message, "stop it");
}

/* ---- other fields ---- */

#define TOOL "{\"name\":\"f\",\"input_schema\":{\"type\":\"object\"}}"

static const struct {
    const char *members, *param, *message;
} refused_fields[] = {
    {"\"messages\":null", "messages", "messages is missing"},
    {"\"messages\":[]", "messages", "messages must have 1 to 4096 entries, got 0"},
    {"\"messages\":\"a\"", "messages", "messages must be a list of messages, got \"a\""},
    {"\"max_tokens\":null", "max_tokens", "max_tokens is missing"},
    {"\"max_tokens\":0", "max_tokens", "max_tokens must be between 1 and 2147483647, got 0"},
    {"\"min_tokens\":10", "min_tokens", "min_tokens must be at most max_tokens (9), got 10"},
    {"\"system\":5", "system", "system must be a string or a list of blocks, got 5"},
    {"\"system\":[" TEXT("a") ",{\"type\":\"image\"}]", "system[1].type",
     "system[1].type must be \"text\", got \"image\": this server reads text only, and has no "
     "tools "
     "of its own"},
    {"\"system\":[{\"type\":\"text\"}]", "system[0].text", "system[0].text is missing"},
    {"\"stop_sequences\":[\"\"]", "stop_sequences",
     "stop_sequences: each string must have 1 to 256 bytes, got 0"},
    {"\"stop\":\"a\",\"stop_sequences\":[\"b\"]", "stop",
     "stop and stop_sequences are the same: give only one"},
    {"\"tools\":[" TOOL ",{\"type\":\"bash_20250124\",\"name\":\"bash\"}]", "tools[1].type",
     "tools[1].type must be \"custom\" or missing, got \"bash_20250124\": this server has no tools "
     "of its own and knows none by its type, only tools with an input_schema can be called"},
    {"\"tools\":[{\"type\":5}]", "tools[0].type", "tools[0].type must be a string, got 5"},
    {"\"tools\":[{\"input_schema\":{}}]", "tools[0].name", "tools[0].name is missing"},
    {"\"tools\":[{\"name\":\"f\"}]", "tools[0].input_schema", "tools[0].input_schema is missing"},
    {"\"tools\":[{\"name\":\"f\",\"input_schema\":{},\"defer_loading\":true}]",
     "tools[0].defer_loading", "tools[0].defer_loading is not supported, got true; leave it out"},
    {"\"tool_choice\":{\"type\":\"any\"}", "tool_choice", "tool_choice needs tools"},
    {"\"tool_choice\":{\"type\":\"required\"}", "tool_choice",
     "tool_choice.type must be one of auto|any|tool|none, got \"required\""},
    {"\"tool_choice\":\"auto\"", "tool_choice", "tool_choice must be an object, got \"auto\""},
    {"\"tools\":[" TOOL "],\"tool_choice\":{\"type\":\"tool\"}", "tool_choice",
     "tool_choice.name must be the name of a tool"},
    {"\"tools\":[" TOOL "],\"tool_choice\":{\"type\":\"tool\",\"name\":\"g\"}", "tool_choice",
     "tool_choice is none of the tools: \"g\""},
    {"\"thinking\":{}", "thinking", "thinking.type is missing"},
    {"\"thinking\":{\"type\":\"on\"}", "thinking",
     "thinking.type must be one of enabled|disabled|adaptive|between_tools, got \"on\""},
    {"\"output_config\":{\"format\":{\"type\":\"json_schema\"}}", "output_config.format",
     "output_config.format.schema is required"},
    {"\"output_config\":{\"format\":{\"type\":\"json_schema\",\"schema\":{}}},\"guided_json\":{}",
     "guided_json", "output_config.format and guided_json cannot both say what the answer is"},
    {"\"container\":\"c\"", "container",
     "container is not supported, got \"c\"; this server runs nothing and keeps nothing: leave it "
     "out"},
    {"\"mcp_servers\":[{}]", "mcp_servers",
     "mcp_servers is not supported, got an array; leave it out"},
    {"\"response_format\":{}", "response_format",
     "response_format is not supported, got an object; say output_config.format"},
    {"\"n\":2", "n", "n is not supported, got 2; leave it out"},
    {"\"seed\":9223372036854775808", "seed", "seed has an integer of more than 64 bits"},
};

static void test_refused_fields(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(refused_fields); i++) {
        char text[512];
        const char *own = refused_fields[i].members;
        snprintf(text, sizeof text, "{%s%s%s}", own,
                 strncmp(own, "\"max_tokens", 11) ? ",\"max_tokens\":9" : "",
                 strncmp(own, "\"messages", 9) ? ",\"messages\":[" USER "]" : "");
        check_refused(text, &rules, refused_fields[i].param, refused_fields[i].message);
    }
}

static void test_unknown_calls(void **state)
{
    struct completion_rules unknown = rules;
    (void)state;
    unknown.answer.calls = ANSWER_CALLS_NONE;
    check_refused("{\"max_tokens\":9,\"messages\":[" USER "],\"tools\":[" TOOL "]}", &unknown,
                  "tool_choice",
                  "tool_choice \"auto\" (which tools stand for) is not supported: how this model "
                  "writes calls is not known (--tool-call-parser says it); with \"none\" the tools "
                  "still go to the chat template");
}

static void test_values(void **state)
{
    struct chat_request r;
    (void)state;
    parse_good("{\"messages\":[" USER "],\"max_tokens\":7,\"temperature\":0.25,\"top_p\":0.5,"
               "\"top_k\":4,\"min_p\":0.125,\"seed\":3,\"stream\":true,\"stop_sequences\":[\"x\","
               "\"y\"],\"metadata\":{\"user_id\":\"u\"},\"cache_control\":{\"type\":\"ephemeral\"},"
               "\"service_tier\":\"auto\",\"context_management\":{\"edits\":[]},"
               "\"chat_template_kwargs\":{\"k\":1},\"output_config\":{\"effort\":\"low\","
               "\"format\":{\"type\":\"json_schema\",\"schema\":{\"type\":\"object\"}}}}",
               &rules, &r);
    const struct completion_request *q = &r.completion;
    assert_int_equal(q->params.max_tokens, 7);
    assert_true(!q->fills_context && q->caps_answer && !q->capped);
    assert_true(q->params.temperature == 0.25F && q->params.top_p == 0.5F);
    assert_true(q->params.top_k == 4 && q->params.min_p == 0.125F);
    assert_true(q->has_seed && q->params.seed == 3 && q->stream && q->n == 1);
    assert_int_equal(q->stop_count, 2);
    assert_int_equal(q->logprobs, -1);
    assert_int_equal(q->unknown.count, 0);
    assert_int_equal(q->structure.kind, STRUCTURE_SCHEMA);
    assert_string_equal(q->structure.field, "output_config.format");
    assert_string_equal(jdoc_string(jdoc_get(r.conversation.vars, "reasoning_effort")), "low");
    assert_int_equal(jdoc_int(jdoc_get(r.conversation.vars, "k")), 1);
    assert_null(jdoc_get(r.conversation.vars, "enable_thinking"));
    assert_false(q->answer.drop_reasoning);
    chat_free(&r);
}

static void test_thinking(void **state)
{
    static const struct {
        const char *members;
        bool enabled, dropped;
    } cases[] = {
        {"\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":1}", true, false},
        {"\"thinking\":{\"type\":\"adaptive\",\"display\":\"summarized\"}", true, false},
        {"\"thinking\":{\"type\":\"disabled\"}", false, false},
        {"\"thinking\":{\"type\":\"enabled\",\"display\":\"omitted\"}", true, true},
        {"\"thinking\":{\"type\":\"enabled\"},\"include_reasoning\":false", true, true},
        {"\"thinking\":{\"type\":\"enabled\"},\"chat_template_kwargs\":{\"enable_thinking\":false}",
         false, false},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char text[256];
        struct chat_request r;
        snprintf(text, sizeof text, "{\"max_tokens\":9,\"messages\":[" USER "],%s}",
                 cases[i].members);
        parse_good(text, &rules, &r);
        const struct jdoc *said = jdoc_get(r.conversation.vars, "enable_thinking");
        assert_int_equal(jdoc_type(said), JDOC_BOOL);
        assert_int_equal(jdoc_bool(said), cases[i].enabled);
        assert_int_equal(r.completion.answer.drop_reasoning, cases[i].dropped);
        chat_free(&r);
    }
}

static void check_tools(const char *choice, const char *begin, bool one_call, bool none)
{
    char text[512];
    struct chat_request r;
    struct buf b;
    snprintf(text, sizeof text,
             "{\"max_tokens\":9,\"messages\":[" USER "],\"tools\":[{\"type\":\"custom\",\"name\":"
             "\"f\",\"description\":\"d\",\"input_schema\":{\"type\":\"object\"},\"strict\":true,"
             "\"cache_control\":null,\"input_examples\":[]}," TOOL "]%s}",
             choice);
    parse_good(text, &rules, &r);
    buf_init(&b, 1 << 16);
    jdoc_write(jdoc_get(r.conversation.vars, "tools"), &b);
    assert_string_equal(b.data, "[{\"type\":\"function\",\"function\":{\"name\":\"f\","
                                "\"description\":\"d\",\"parameters\":{\"type\":\"object\"},"
                                "\"strict\":true}},{\"type\":\"function\",\"function\":{\"name\":"
                                "\"f\",\"parameters\":{\"type\":\"object\"}}}]");
    assert_string_equal(r.completion.answer_begin.data ? r.completion.answer_begin.data : "",
                        begin);
    assert_int_equal(r.completion.answer.one_call, one_call);
    assert_int_equal(r.completion.answer.calls == ANSWER_CALLS_NONE, none);
    buf_free(&b);
    chat_free(&r);
}

static void test_tools(void **state)
{
    (void)state;
    check_tools("", "", false, false);
    check_tools(",\"tool_choice\":null", "", false, false);
    check_tools(",\"tool_choice\":{\"type\":\"auto\",\"disable_parallel_tool_use\":true}", "", true,
                false);
    check_tools(",\"tool_choice\":{\"type\":\"none\"}", "", false, true);
    check_tools(",\"tool_choice\":{\"type\":\"any\"}", "<tool_call>\n{\"name\": \"", false, false);
    check_tools(",\"tool_choice\":{\"type\":\"tool\",\"name\":\"f\"}",
                "<tool_call>\n{\"name\": \"f\", \"arguments\":", true, false);
}

/* Integers of any size in schemas, wherever they come, but not in fields of the server's own. */
static void test_huge_integers(void **state)
{
#define HUGE_TOOL                                                                                  \
    "\"tools\":[{\"name\":\"f\",\"input_schema\":{\"enum\":[1],\"maximum\":18446744073709551615}}" \
    "]"
    static const char *const texts[] = {"{\"messages\":[" USER "]," HUGE_TOOL ",\"max_tokens\":9}",
                                        "{" HUGE_TOOL ",\"max_tokens\":9,\"messages\":[" USER "]}"};
    struct chat_request r;
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        parse_good(texts[i], &rules, &r);
        const struct jdoc *tool = jdoc_at(jdoc_get(r.completion.own_tools, "tools"), 0);
        const struct jdoc *schema = jdoc_get(jdoc_get(tool, "function"), "parameters");
        assert_int_equal(jdoc_type(jdoc_at(jdoc_get(schema, "enum"), 0)), JDOC_INT);
        assert_int_equal(jdoc_type(jdoc_get(schema, "maximum")), JDOC_REAL);
        chat_free(&r);
    }
    check_refused("{\"messages\":[" USER "]," HUGE_TOOL ",\"max_tokens\":18446744073709551615}",
                  &rules, "max_tokens", "max_tokens has an integer of more than 64 bits");
}

/* An answer that could be longer than the context is as long as fits. */
static void test_capped(void **state)
{
    static const struct {
        int32_t max_tokens, prompt, left;
    } cases[] = {{9, 55, 9}, {10, 55, 9}, {2000000000, 55, 9}, {9, 63, 1}};
    struct api_error e = {0};
    struct chat_request r;
    char text[200];
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        snprintf(text, sizeof text, "{\"messages\":[" USER "],\"max_tokens\":%d}",
                 cases[i].max_tokens);
        parse_good(text, &rules, &r);
        struct completion_request *q = &r.completion;
        q->prompts[0].count = cases[i].prompt;
        assert_int_equal(completion_prompt_fit(q, &q->prompts[0], 64, &e), OK);
        assert_int_equal(completion_fill(q, 64, &e), OK);
        assert_int_equal(q->params.max_tokens, cases[i].left);
        assert_int_equal(q->capped, cases[i].max_tokens > cases[i].left);
        q->prompts[0].count = 64;
        assert_int_equal(completion_prompt_fit(q, &q->prompts[0], 64, &e), ERR_INPUT);
        assert_string_equal(e.message, "prompt is too long: 64 tokens > 63 maximum");
        chat_free(&r);
    }
}

/* For a count nobody has to say how long the answer may be. */
static void test_count(void **state)
{
    static const char *const texts[] = {"{\"messages\":[" USER "]}",
                                        "{\"messages\":[" USER "],\"max_tokens\":null}",
                                        "{\"messages\":[" USER "],\"max_tokens\":9}"};
    struct chat_request r;
    struct api_error e = {0};
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        assert_int_equal(messages_parse_count(texts[i], strlen(texts[i]), &rules, &r, &e), OK);
        assert_int_equal(r.completion.fills_context, i < 2);
        chat_free(&r);
    }
    assert_int_equal(messages_parse_count("{\"max_tokens\":9}", 16, &rules, &r, &e), ERR_INPUT);
    assert_string_equal(e.message, "messages is missing");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_prefill),
        cmocka_unit_test(test_huge_integers),
        cmocka_unit_test(test_capped),
        cmocka_unit_test(test_refused_blocks),
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_paths_of_messages),
        cmocka_unit_test(test_blame),
        cmocka_unit_test(test_refused_fields),
        cmocka_unit_test(test_unknown_calls),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_thinking),
        cmocka_unit_test(test_tools),
        cmocka_unit_test(test_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
