/* /v1/responses: which chat a request becomes; what is refused and where. */
#include "config/buf.h"
#include "server/api/responses.h"
#include "server/api/chat_input.h"
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

static const struct {
    const char *members, *wanted;
} good_inputs[] = {
    {"\"input\":\"a\\u0000\"", "[{\"role\":\"user\",\"content\":\"a\\u0000\"}]"},
    {"\"input\":\"a\",\"instructions\":\"i\"",
     "[{\"role\":\"system\",\"content\":\"i\"}," USER "]"},
    {"\"input\":\"a\",\"instructions\":\"\"", "[" USER "]"},
    {"\"input\":[{\"type\":\"message\",\"role\":\"developer\",\"content\":\"d\"}," USER "]",
     "[{\"role\":\"system\",\"content\":\"d\"}," USER "]"},
    /* instructions of both kinds are one message; those that come later are not */
    {"\"instructions\":\"i\",\"input\":[" LEAD("developer", "d") "," LEAD("system", "") "," LEAD(
         "system", "s") "," USER "," LEAD("system", "t") "]",
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
    {"\"input\":[{\"type\":\"reasoning\",\"summary\":[],\"encrypted_content\":\"gAA\"}," USER "]",
     "[" USER "]"},
    {"\"input\":[{\"type\":\"reasoning\",\"summary\":[{\"type\":\"summary_text\",\"text\":"
     "\"r\"}]}," SAID("s") "]",
     "[{\"role\":\"assistant\",\"content\":\"s\"" CHAT_THOUGHT("r") "}]"},
    {"\"input\":[{\"type\":\"reasoning\",\"summary\":[{\"type\":\"summary_text\",\"text\":"
     "\"x\"}],\"content\":[{\"type\":\"reasoning_text\",\"text\":\"r\"}]}," SAID("s") "]",
     "[{\"role\":\"assistant\",\"content\":\"s\"" CHAT_THOUGHT("r") "}]"},
};

static void test_messages(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(good_inputs); i++)
        check_messages(good_inputs[i].members, good_inputs[i].wanted);
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

static const struct {
    const char *members, *param, *message;
} refused_fields[] = {
    {"\"input\":null", "input", "input is missing"},
    {"\"input\":[]", "input", "input: no message is in it"},
    {"\"input\":[],\"instructions\":\"i\"", "input", "input: no message is in it"},
    {"\"input\":[{\"type\":\"reasoning\",\"summary\":[]}]", "input", "input: no message is in it"},
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
    {"\"input\":\"a\",\"text\":{\"format\":{\"type\":\"json_schema\",\"description\":5}}", "text",
     "text.format.description must be a string, got 5"},
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
     "tool_choice", "tool_choice is none of the tools: \"g\""},
    {"\"input\":\"a\",\"stream_options\":{\"include_obfuscation\":false}", "stream_options",
     "stream_options needs \"stream\": true"},
};

static void test_refused_fields(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(refused_fields); i++) {
        char text[512];
        snprintf(text, sizeof text, "{%s}", refused_fields[i].members);
        check_refused(text, &rules, refused_fields[i].param, refused_fields[i].message);
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
    chat_input_blame(NULL, "input", &e);
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
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
