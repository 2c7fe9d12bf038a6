/* /v1/responses: which chat a request becomes, what is refused and where; the object that goes
 * back, and the events of a stream. */
#include "config/buf.h"
#include "server/api/responses.h"
#include "server/api/responses_input.h"
#include "server/api/responses_reply.h"
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
    if (responses_parse(text, strlen(text), with, r, &e) != OK)
        fail_msg("%s: %s", text, e.message);
}

static void check_refused(const char *text, const struct completion_rules *with, const char *param,
                          const char *message)
{
    struct chat_request r;
    struct api_error e = {0};
    if (responses_parse(text, strlen(text), with, &r, &e) != ERR_INPUT)
        fail_msg("%s is accepted", text);
    assert_string_equal(e.message, message);
    assert_string_equal(e.param, param);
    assert_int_equal(e.http_status, 400);
}

/* ---- input ---- */

#define USER "{\"role\":\"user\",\"content\":\"a\"}"
#define LEAD(role, text) "{\"role\":\"" role "\",\"content\":\"" text "\"}"
#define RESULT(id) "{\"type\":\"function_call_output\",\"call_id\":\"" id "\",\"output\":\"x\"}"
#define CALL_WITH(arguments)                                                                       \
    "{\"type\":\"function_call\",\"call_id\":\"1\",\"name\":\"f\",\"arguments\":\"" arguments "\"" \
    "}"
#define CHAT_CALL_WITH(arguments)                                                                  \
    "{\"type\":\"function\",\"id\":\"1\",\"function\":{\"name\":\"f\",\"arguments\":" arguments "}}"
#define CALL(id)                                                                                   \
    "{\"type\":\"function_call\",\"call_id\":\"" id "\",\"name\":\"f\",\"arguments\":\"{}\"}"
#define CHAT_CALL(id)                                                                              \
    "{\"type\":\"function\",\"id\":\"" id "\",\"function\":{\"name\":\"f\",\"arguments\":{}}}"
#define THOUGHT(text)                                                                              \
    "{\"type\":\"reasoning\",\"id\":\"rs_1\",\"summary\":[],\"content\":[{\"type\":"               \
    "\"reasoning_text\",\"text\":\"" text "\"}],\"status\":\"completed\"}"
#define CHAT_THOUGHT(text)                                                                         \
    ",\"reasoning_content\":\"" text "\",\"reasoning\":\"" text "\",\"thinking\":\"" text "\""
#define SAID(text)                                                                                 \
    "{\"type\":\"message\",\"id\":\"msg_1\",\"role\":\"assistant\",\"status\":\"completed\","      \
    "\"content\":[{\"type\":\"output_text\",\"text\":\"" text "\",\"annotations\":[],"             \
    "\"logprobs\":[]}]}"

static void check_messages(const char *members, const char *wanted)
{
    char text[4096];
    struct chat_request r;
    struct buf b;
    snprintf(text, sizeof text, "{%s}", members);
    parse_good(text, &rules, &r);
    buf_init(&b, 1 << 16);
    jdoc_write(jdoc_get(r.conversation.vars, "messages"), &b);
    assert_string_equal(b.data, wanted);
    assert_string_equal(r.completion.source, "input");
    buf_free(&b);
    chat_free(&r);
}

static void test_messages(void **state)
{
    static const struct {
        const char *members, *wanted;
    } cases[] = {
        {"\"input\":\"a\\u0000\"", "[{\"role\":\"user\",\"content\":\"a\\u0000\"}]"},
        {"\"input\":\"a\",\"instructions\":\"i\"",
         "[{\"role\":\"system\",\"content\":\"i\"}," USER "]"},
        {"\"input\":\"a\",\"instructions\":\"\"", "[" USER "]"},
        {"\"input\":[{\"type\":\"message\",\"role\":\"developer\",\"content\":\"d\"}," USER "]",
         "[{\"role\":\"system\",\"content\":\"d\"}," USER "]"},
        /* instructions of both kinds are one message; those that come later are not */
        {"\"instructions\":\"i\",\"input\":[" LEAD("developer", "d") "," LEAD(
             "system", "") "," LEAD("system", "s") "," USER "," LEAD("system", "t") "]",
         "[" LEAD("system", "i\\n\\nd\\n\\ns") "," USER "," LEAD("system", "t") "]"},
        {"\"instructions\":\"i\",\"input\":[" LEAD("developer", "d") "]",
         "[" LEAD("system", "i\\n\\nd") "]"},
        {"\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":\"a\"},"
         "{\"type\":\"input_text\",\"text\":\"b\"}]}]",
         "[{\"role\":\"user\",\"content\":\"a\\nb\"}]"},
        {"\"input\":[{\"role\":\"assistant\",\"content\":[{\"type\":\"refusal\",\"refusal\":"
         "\"no\"}]}]",
         "[{\"role\":\"assistant\",\"content\":\"no\"}]"},
        /* what was one answer is one message */
        {"\"input\":[" USER "," THOUGHT("r") "," SAID("s") "," CALL("1") "," CALL(
             "2") ","
                  "{\"type\":\"function_call_output\",\"call_id\":\"2\",\"output\":\"x\"},"
                  "{\"type\":\"function_call_output\",\"call_id\":\"1\",\"output\":[{\"type\":"
                  "\"input_text\",\"text\":\"y\"}]}]",
         "[" USER ",{\"role\":\"assistant\",\"content\":\"s\"" CHAT_THOUGHT(
             "r") ",\"tool_calls\":[" CHAT_CALL("1") "," CHAT_CALL("2") "]},"
                                                                        "{\"role\":\"tool\","
                                                                        "\"content\":\"x\",\"tool_"
                                                                        "call_id\":\"2\"},"
                                                                        "{\"role\":\"tool\","
                                                                        "\"content\":\"y\",\"tool_"
                                                                        "call_id\":\"1\"}]"},
        {"\"input\":[" CALL("1") "]",
         "[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[" CHAT_CALL("1") "]}]"},
        /* and what was none is not */
        {"\"input\":[" SAID("s") "," SAID("t") "," CALL("1") "," SAID("u") "]",
         "[{\"role\":\"assistant\",\"content\":\"s\"},{\"role\":\"assistant\",\"content\":\"t\","
         "\"tool_calls\":[" CHAT_CALL("1") "]},{\"role\":\"assistant\",\"content\":\"u\"}]"},
        /* what is said behind calls comes before their results */
        {"\"input\":[" CALL("1") "," SAID("s") "," RESULT("1") "]",
         "[{\"role\":\"assistant\",\"content\":\"s\",\"tool_calls\":[" CHAT_CALL(
             "1") "]},{\"role\":\"tool\",\"content\":\"x\",\"tool_call_id\":\"1\"}]"},
        /* as answers may have it: of two members the last counts, numbers of any size */
        {"\"input\":[" CALL_WITH("{\\\"x\\\":1,\\\"x\\\":2}") "]",
         "[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[" CHAT_CALL_WITH(
             "{\"x\":2}") "]}]"},
        {"\"input\":[" CALL_WITH("{\\\"x\\\":123456789012345678901234567890}") "]",
         "[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[" CHAT_CALL_WITH(
             "{\"x\":1.2345678901234568e29}") "]}]"},
        {"\"input\":[" CALL("1") "," THOUGHT("r") "," CALL("2") "]",
         "[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[" CHAT_CALL(
             "1") "]},"
                  "{\"role\":\"assistant\",\"content\":null" CHAT_THOUGHT(
                      "r") ",\"tool_calls\":[" CHAT_CALL("2") "]}]"},
        /* thoughts that nothing came of; several; none; a summary only */
        {"\"input\":[" THOUGHT("r") "," USER "]",
         "[{\"role\":\"assistant\",\"content\":\"\"" CHAT_THOUGHT("r") "}," USER "]"},
        {"\"input\":[" THOUGHT("r") "," THOUGHT("q") "," SAID("s") "]",
         "[{\"role\":\"assistant\",\"content\":\"s\"" CHAT_THOUGHT("r\\nq") "}]"},
        {"\"input\":[{\"type\":\"reasoning\",\"summary\":null,\"content\":null,"
         "\"encrypted_content\":null}," USER "]",
         "[" USER "]"},
        {"\"input\":[{\"type\":\"reasoning\",\"summary\":[],\"encrypted_content\":\"gAA\"}," USER
         "]",
         "[" USER "]"},
        {"\"input\":[{\"type\":\"reasoning\",\"summary\":[{\"type\":\"summary_text\",\"text\":"
         "\"r\"}]}," SAID("s") "]",
         "[{\"role\":\"assistant\",\"content\":\"s\"" CHAT_THOUGHT("r") "}]"},
        {"\"input\":[{\"type\":\"reasoning\",\"summary\":[{\"type\":\"summary_text\",\"text\":"
         "\"x\"}],\"content\":[{\"type\":\"reasoning_text\",\"text\":\"r\"}]}," SAID("s") "]",
         "[{\"role\":\"assistant\",\"content\":\"s\"" CHAT_THOUGHT("r") "}]"},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        check_messages(cases[i].members, cases[i].wanted);
}

static void test_refused_items(void **state)
{
    static const struct {
        const char *item, *param, *message; /* behind the path of the item */
    } cases[] = {
        {"5", "", " must be an object, got 5"},
        {"{}", ".role", ".role is missing"},
        {"{\"role\":\"user\"}", ".content", ".content is missing"},
        {"{\"role\":\"tool\",\"content\":\"a\"}", ".role",
         ".role must be one of user|system|developer|assistant, got \"tool\""},
        {"{\"role\":\"user\",\"content\":5}", ".content",
         ".content must be a string or a list of parts, got 5"},
        {"{\"role\":\"user\",\"content\":[\"a\"]}", ".content[0]",
         ".content[0] must be an object, got \"a\""},
        {"{\"role\":\"user\",\"content\":[{\"text\":\"a\"}]}", ".content[0].type",
         ".content[0].type is missing"},
        {"{\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":\"a\"},{\"type\":"
         "\"input_image\",\"image_url\":\"x\"}]}",
         ".content[1].type",
         ".content[1].type must be \"input_text\", \"output_text\" or \"refusal\", got "
         "\"input_image\": this server reads text only"},
        {"{\"role\":\"user\",\"content\":[{\"type\":\"input_file\",\"file_id\":\"x\"}]}",
         ".content[0].type",
         ".content[0].type must be \"input_text\", \"output_text\" or \"refusal\", got "
         "\"input_file\": this server reads text only"},
        {"{\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":5}]}",
         ".content[0].text", ".content[0].text must be a string, got 5"},
        {"{\"role\":\"user\",\"content\":[{\"type\":\"refusal\",\"text\":\"a\"}]}",
         ".content[0].refusal", ".content[0].refusal must be a string, got nothing"},
        {"{\"type\":\"item_reference\",\"id\":\"msg_1\"}", ".type",
         ".type must not be item_reference: this server keeps nothing of a request: send the whole "
         "conversation as input"},
        {"{\"type\":\"web_search_call\"}", ".type",
         ".type must be one of message|function_call|function_call_output|reasoning, got "
         "\"web_search_call\""},
        {"{\"type\":\"function_call\",\"name\":\"f\",\"arguments\":\"{}\"}", ".call_id",
         ".call_id is missing"},
        {"{\"type\":\"function_call\",\"call_id\":\"1\",\"arguments\":\"{}\"}", ".name",
         ".name is missing"},
        {"{\"type\":\"function_call\",\"call_id\":\"1\",\"name\":\"f\"}", ".arguments",
         ".arguments is missing"},
        {"{\"type\":\"function_call\",\"call_id\":\"1\",\"name\":\"f\",\"arguments\":\"[]\"}",
         ".arguments", ".arguments must be a JSON object, got an array"},
        {"{\"type\":\"function_call\",\"call_id\":\"1\",\"name\":\"f\",\"arguments\":{}}",
         ".arguments", ".arguments must be a string, got an object"},
        {"{\"type\":\"function_call_output\",\"output\":\"a\"}", ".call_id", ".call_id is missing"},
        {"{\"type\":\"function_call_output\",\"call_id\":\"1\"}", ".output", ".output is missing"},
        {"{\"type\":\"function_call_output\",\"call_id\":\"1\",\"output\":[{\"type\":"
         "\"input_image\"}]}",
         ".output[0].type",
         ".output[0].type must be \"input_text\", got \"input_image\": this server reads text "
         "only"},
        {"{\"type\":\"reasoning\",\"summary\":\"a\"}", ".summary",
         ".summary must be a list of parts, got \"a\""},
        {"{\"type\":\"reasoning\",\"content\":[{\"type\":\"text\",\"text\":\"a\"}]}",
         ".content[0].type",
         ".content[0].type must be \"reasoning_text\", got \"text\": this server reads text only"},
        {"{\"type\":\"reasoning\",\"encrypted_content\":5}", ".encrypted_content",
         ".encrypted_content must be a string, got 5"},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char text[1024], param[64], message[480];
        snprintf(text, sizeof text, "{\"input\":[" USER "," USER ",%s]}", cases[i].item);
        snprintf(param, sizeof param, "input[2]%s", cases[i].param);
        snprintf(message, sizeof message, "input[2]%s", cases[i].message);
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
        {"{\"input\":[", USER, "]}", 4096, "input", "input may have at most 4096 items, got 4097"},
        {"{\"input\":[" USER ",{\"role\":\"user\",\"content\":[",
         "{\"type\":\"input_text\",\"text\":\"a\"}", "]}]}", 1024, "input[1].content",
         "input[1].content may hold at most 1024 parts, got 1025"},
        {"{\"input\":[" SAID("s") ",", CALL("1"), "]}", 128, "input[129].type",
         "input[129].type must not be function_call here: one message may have at most 128 calls"},
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

/* What only the making of a conversation finds is told by the client's own items, of which one
 * message may be several. */
static void test_paths_of_messages(void **state)
{
    struct completion_rules known = rules;
    static const char why[] = "role must not be developer here, since this model's template would "
                              "leave the message out: instructions come before all other messages";
    char message[480];
    (void)state;
    known.answer = (struct answer_form){.calls = ANSWER_CALLS_OPENAI, .harmony = true};
    snprintf(message, sizeof message, "input[4].%s", why);
    check_refused("{\"instructions\":\"i\",\"input\":[" USER "," THOUGHT("r") "," SAID(
                      "s") "," CALL("1") ",{\"role\":\"developer\",\"content\":\"a\"}]}",
                  &known, "input[4].role", message);
}

/* ---- other fields ---- */

static void test_refused_fields(void **state)
{
    static const struct {
        const char *members, *param, *message;
    } cases[] = {
        {"\"input\":null", "input", "input is missing"},
        {"\"input\":[]", "input", "input: no message is in it"},
        {"\"input\":[],\"instructions\":\"i\"", "input", "input: no message is in it"},
        {"\"input\":[{\"type\":\"reasoning\",\"summary\":[]}]", "input",
         "input: no message is in it"},
        {"\"input\":[{\"type\":\"reasoning\",\"summary\":[]}],\"instructions\":\"i\"", "input",
         "input: no message is in it"},
        {"\"input\":5", "input", "input must be a string or a list of items, got 5"},
        {"\"input\":\"a\",\"previous_response_id\":\"resp_1\"", "previous_response_id",
         "previous_response_id is not supported, got \"resp_1\"; this server keeps nothing of a "
         "request: send the whole conversation as input"},
        {"\"input\":\"a\",\"conversation\":{\"id\":\"c\"}", "conversation",
         "conversation is not supported, got an object; this server keeps nothing of a request: "
         "send the whole conversation as input"},
        {"\"input\":\"a\",\"prompt\":{\"id\":\"p\"}", "prompt",
         "prompt is not supported, got an object; this server keeps no prompts: send it as "
         "instructions and input"},
        {"\"input\":\"a\",\"background\":true", "background",
         "background is not supported, got true; leave it out"},
        {"\"input\":\"a\",\"truncation\":\"auto\"", "truncation",
         "truncation must be one of disabled, got \"auto\""},
        {"\"input\":\"a\",\"n\":2", "n", "n is not supported, got 2; leave it out"},
        {"\"input\":\"a\",\"max_tokens\":2", "max_tokens",
         "max_tokens is not supported, got 2; say max_output_tokens"},
        {"\"input\":\"a\",\"include\":[\"file_search_call.results\"]", "include",
         "include[0] must be message.output_text.logprobs or reasoning.encrypted_content, got "
         "\"file_search_call.results\""},
        {"\"input\":\"a\",\"include\":\"x\"", "include", "include must be a list, got \"x\""},
        {"\"input\":\"a\",\"top_logprobs\":1", "top_logprobs",
         "top_logprobs needs \"include\": [\"message.output_text.logprobs\"]"},
        {"\"input\":\"a\",\"metadata\":{\"k\":1}", "metadata",
         "metadata must be an object of strings, got 1"},
        {"\"input\":\"a\",\"max_output_tokens\":2,\"min_tokens\":3", "min_tokens",
         "min_tokens must be at most max_output_tokens (2), got 3"},
        {"\"input\":\"a\",\"text\":{\"format\":{\"type\":\"json_schema\",\"name\":\"n\"}}",
         "text.format", "text.format.schema is required"},
        {"\"input\":\"a\",\"text\":{\"format\":{\"type\":\"text\",\"schema\":{}}}", "text.format",
         "text.format has a schema, but its type is not json_schema"},
        {"\"input\":\"a\",\"text\":{\"format\":{\"type\":\"json_object\"}},\"guided_json\":{}",
         "guided_json", "text.format and guided_json cannot both say what the answer is"},
        {"\"input\":\"a\",\"tools\":[{\"type\":\"function\",\"name\":\"f\"},{\"type\":"
         "\"web_search\"}]",
         "tools[1].type",
         "tools[1].type must be \"function\", got \"web_search\": this server has no tools of its "
         "own, only functions of the client can be called"},
        {"\"input\":\"a\",\"tools\":[{\"type\":5}]", "tools[0].type",
         "tools[0].type must be a string, got 5"},
        {"\"input\":\"a\",\"logprobs\":true", "logprobs",
         "logprobs is not supported, got true; say include and top_logprobs"},
        {"\"input\":\"a\",\"chat_template\":\"x\"", "chat_template",
         "chat_template is not supported, got \"x\"; leave it out"},
        {"\"input\":\"a\",\"text\":{\"format\":{\"type\":\"json_schema\",\"schema\":{}}}",
         "text.format.name", "text.format.name is missing"},
        {"\"input\":\"a\",\"text\":{\"format\":{\"type\":\"json_schema\",\"name\":5}}", "text",
         "text.format.name must be a string, got 5"},
        {"\"input\":\"a\",\"text\":{\"format\":{\"type\":\"json_schema\",\"description\":5}}",
         "text", "text.format.description must be a string, got 5"},
        {"\"input\":\"a\",\"tools\":[{\"type\":\"function\"}]", "tools[0].name",
         "tools[0].name is missing"},
        {"\"input\":\"a\",\"tool_choice\":\"required\"", "tool_choice", "tool_choice needs tools"},
        {"\"input\":\"a\",\"tool_choice\":{\"type\":\"mcp\"}", "tool_choice",
         "tool_choice.type must be \"function\", got \"mcp\""},
        {"\"input\":\"a\",\"tool_choice\":{\"type\":\"function\"}", "tool_choice",
         "tool_choice.name must be the name of a tool, got nothing"},
        {"\"input\":\"a\",\"tool_choice\":{\"type\":\"function\",\"name\":\"\"}", "tool_choice",
         "tool_choice.name must be the name of a tool, got \"\""},
        {"\"input\":\"a\",\"tools\":[{\"type\":\"function\",\"name\":\"f\"}],\"tool_choice\":"
         "{\"type\":\"function\",\"name\":\"g\"}",
         "tool_choice", "tool_choice is none of the tools: an object"},
        {"\"input\":\"a\",\"stream_options\":{\"include_obfuscation\":false}", "stream_options",
         "stream_options needs \"stream\": true"},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char text[512];
        snprintf(text, sizeof text, "{%s}", cases[i].members);
        check_refused(text, &rules, cases[i].param, cases[i].message);
    }
}

/* A tool is told by its place here, not by its place in a chat. */
static void test_path_of_a_tool(void **state)
{
    struct buf b;
    (void)state;
    buf_init(&b, 1 << 16);
    buf_puts(&b, "{\"input\":\"a\",\"tools\":[{\"type\":\"function\",\"name\":\"f\"");
    for (int i = 0; i < CONVERSATION_KWARGS_MAX; i++)
        buf_printf(&b, ",\"k%d\":1", i);
    buf_puts(&b, "}]}");
    check_refused(b.data, &rules, "tools[0]", "tools[0] may hold at most 64 entries, got 65");
    buf_free(&b);
}

/* And that there is no way to make a prompt of them, by the client's own name. */
static void test_blame_of_all_messages(void **state)
{
    struct api_error e = {0};
    (void)state;
    api_error_field(&e, "messages", "messages do not go with the template");
    responses_input_blame(NULL, &e);
    assert_string_equal(e.param, "input");
    assert_string_equal(e.message, "messages made of input do not go with the template");
}

static void test_metadata_bounds(void **state)
{
    static const struct {
        int entries, key, value;
        const char *message; /* NULL: fine */
    } cases[] = {
        {16, 64, 512, NULL},
        {17, 3, 3, "metadata may hold at most 16 entries, got 17"},
        {1, 65, 3, "metadata: a key may have at most 64 characters, got 65"},
        {1, 3, 513, "metadata: a value may have at most 512 characters, got 513"},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct chat_request r;
        struct buf b;
        buf_init(&b, 1 << 16);
        buf_puts(&b, "{\"input\":\"a\",\"metadata\":{");
        for (int k = 0; k < cases[i].entries; k++)
            buf_printf(&b, "%s\"%0*d\":\"%0*d\"", k ? "," : "", cases[i].key, k, cases[i].value, 0);
        buf_puts(&b, "}}");
        if (cases[i].message) {
            check_refused(b.data, &rules, "metadata", cases[i].message);
        } else {
            parse_good(b.data, &rules, &r);
            chat_free(&r);
        }
        buf_free(&b);
    }
    struct chat_request r; /* of two bytes each */
    struct buf b;
    buf_init(&b, 1 << 16);
    buf_puts(&b, "{\"input\":\"a\",\"metadata\":{\"k\":\"");
    for (int i = 0; i < RESPONSES_METADATA_VALUE_MAX; i++)
        buf_puts(&b, "\xc3\xa9");
    buf_puts(&b, "\"}}");
    parse_good(b.data, &rules, &r);
    chat_free(&r);
    buf_free(&b);
}

static void test_values(void **state)
{
    struct chat_request r;
    (void)state;
    parse_good("{\"input\":\"a\",\"max_output_tokens\":7,\"temperature\":0.25,\"top_p\":0.5,"
               "\"seed\":3,\"stream\":true,\"include\":[\"reasoning.encrypted_content\","
               "\"message.output_text.logprobs\"],\"top_logprobs\":4,\"stop\":\"x\","
               "\"reasoning\":{\"effort\":\"low\",\"summary\":\"auto\"},\"chat_template_kwargs\":"
               "{\"k\":1},\"text\":{\"format\":{\"type\":\"json_schema\",\"name\":\"n\",\"schema\":"
               "{\"type\":\"object\"}},\"verbosity\":\"low\"}}",
               &rules, &r);
    const struct completion_request *q = &r.completion;
    assert_int_equal(q->params.max_tokens, 7);
    assert_false(q->fills_context);
    assert_true(q->params.temperature == 0.25F && q->params.top_p == 0.5F);
    assert_true(q->has_seed && q->params.seed == 3 && q->stream && q->n == 1);
    assert_int_equal(q->logprobs, 4);
    assert_int_equal(q->stop_count, 1);
    assert_int_equal(q->structure.kind, STRUCTURE_SCHEMA);
    assert_string_equal(q->structure.field, "text.format");
    assert_string_equal(jdoc_string(jdoc_get(r.conversation.vars, "reasoning_effort")), "low");
    assert_int_equal(jdoc_int(jdoc_get(r.conversation.vars, "k")), 1);
    chat_free(&r);
    parse_good("{\"input\":\"a\",\"n\":1,\"background\":false,\"truncation\":\"disabled\","
               "\"metadata\":null,\"store\":true,\"top_logprobs\":0,\"tools\":[],"
               "\"tool_choice\":\"auto\"}",
               &rules, &r);
    assert_true(r.completion.fills_context);
    assert_int_equal(r.completion.logprobs, -1);
    chat_free(&r);
}

static void test_tools(void **state)
{
    struct chat_request r;
    struct buf b;
    (void)state;
    buf_init(&b, 1 << 16);
    parse_good("{\"input\":\"a\",\"parallel_tool_calls\":false,\"tools\":[{\"type\":\"function\","
               "\"name\":\"f\",\"description\":\"d\",\"parameters\":{\"type\":\"object\"},"
               "\"strict\":null}],\"tool_choice\":{\"type\":\"function\",\"name\":\"f\"}}",
               &rules, &r);
    jdoc_write(jdoc_get(r.conversation.vars, "tools"), &b);
    assert_string_equal(b.data, "[{\"type\":\"function\",\"function\":{\"name\":\"f\","
                                "\"description\":\"d\",\"parameters\":{\"type\":\"object\"}}}]");
    assert_string_equal(r.completion.answer_begin.data,
                        "<tool_call>\n{\"name\": \"f\", \"arguments\":");
    assert_string_equal(r.completion.structure.name, "f");
    assert_true(r.completion.answer.one_call && r.completion.structure.begun);
    completion_forget_text(&r.completion);
    assert_null(r.completion.own_tools);
    chat_free(&r);
    buf_free(&b);
}

static void test_repeated(void **state)
{
    static const struct {
        const char *request, *repeated;
    } cases[] = {
        {"{\"input\":\"a\"}",
         "\"instructions\":null,\"metadata\":{},\"max_output_tokens\":null,\"temperature\":1,"
         "\"top_p\":1,\"top_logprobs\":0,\"parallel_tool_calls\":true,\"tools\":[],"
         "\"tool_choice\":\"auto\",\"text\":{\"format\":{\"type\":\"text\"}},\"reasoning\":{"
         "\"summary\":null,\"effort\":null}"},
        {"{\"input\":\"a\",\"instructions\":\"i\",\"metadata\":{\"k\":\"v\"},\"temperature\":0.7,"
         "\"max_output_tokens\":5,\"top_p\":0.1,\"parallel_tool_calls\":false,\"tools\":[{\"type\":"
         "\"function\",\"name\":\"f\"}],\"tool_choice\":\"none\",\"text\":{\"format\":{\"type\":"
         "\"json_object\"}},\"reasoning\":{\"effort\":\"high\"},\"store\":true}",
         "\"instructions\":\"i\",\"metadata\":{\"k\":\"v\"},\"max_output_tokens\":5,"
         "\"temperature\":0.7,\"top_p\":0.1,\"top_logprobs\":0,\"parallel_tool_calls\":false,"
         "\"tools\":[{\"type\":\"function\",\"name\":\"f\"}],\"tool_choice\":\"none\",\"text\":{"
         "\"format\":{\"type\":\"json_object\"}},\"reasoning\":{\"summary\":null,\"effort\":"
         "\"high\"}"},
        /* of objects what is known */
        {"{\"input\":\"a\",\"tools\":[{\"zz\":1,\"type\":\"function\",\"name\":\"f\",\"strict\":"
         "null}],\"tool_choice\":{\"zz\":1,\"type\":\"function\",\"name\":\"f\"},\"text\":{"
         "\"format\":{\"type\":\"text\",\"zz\":\"x\"}}}",
         "\"instructions\":null,\"metadata\":{},\"max_output_tokens\":null,\"temperature\":1,"
         "\"top_p\":1,\"top_logprobs\":0,\"parallel_tool_calls\":true,\"tools\":[{\"type\":"
         "\"function\",\"name\":\"f\",\"strict\":null}],\"tool_choice\":{\"type\":\"function\","
         "\"name\":\"f\"},\"text\":{\"format\":{\"type\":\"text\"}},\"reasoning\":{\"summary\":"
         "null,\"effort\":null}"},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char wanted[1024];
        struct chat_request r;
        parse_good(cases[i].request, &rules, &r);
        snprintf(wanted, sizeof wanted,
                 ",\"error\":null,\"background\":false,\"previous_response_id\":null,\"store\":"
                 "false,\"truncation\":\"disabled\",\"user\":null,%s",
                 cases[i].repeated);
        assert_string_equal(r.completion.repeated.data, wanted);
        chat_free(&r);
    }
}

/* ---- replies ---- */

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
    responses_reply.start(&meta, t->choice.state, &t->sent);
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
#define CALL_ITEM(id, call, name, arguments)                                                       \
    "{\"id\":\"fc_ab" id "\",\"type\":\"function_call\",\"status\":\"completed\",\"call_id\":"     \
    "\"" call "\",\"name\":\"" name "\",\"arguments\":\"" arguments "\"}"

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
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_refused_items),
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_paths_of_messages),
        cmocka_unit_test(test_refused_fields),
        cmocka_unit_test(test_path_of_a_tool),
        cmocka_unit_test(test_blame_of_all_messages),
        cmocka_unit_test(test_metadata_bounds),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_tools),
        cmocka_unit_test(test_repeated),
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_nothing),
        cmocka_unit_test(test_items),
        cmocka_unit_test(test_text_behind_a_call),
        cmocka_unit_test(test_cut_off),
        cmocka_unit_test(test_messages_of_harmony),
        cmocka_unit_test(test_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
