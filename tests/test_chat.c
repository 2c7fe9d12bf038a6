/* The request of /v1/chat/completions: what it becomes, what is refused; what goes back; and which
 * bytes of a prompt may be control tokens. */
#include "config/buf.h"
#include "config/file.h"
#include "server/api/chat.h"
#include "server/api/chat_reply.h"
#include "server/api/tokenize.h"
#include "server/chat_template.h"
#include "server/tokenizer/tokenizer.h"
#include "tests/scratch.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const model_names[] = {"demo"};
static const struct completion_rules rules = {
    .model_names = model_names,
    .model_name_count = 1,
    .vocab = 100,
    .max_model_len = 64,
    .has_tokenizer = true,
    .defaults = {NAN, NAN, NAN, NAN, -1},
};

static enum status parse(const char *text, struct chat_request *r, struct api_error *e)
{
    memset(e, 0, sizeof *e);
    return chat_parse(text, strlen(text), &rules, r, e);
}

/* The members of a request besides one message of a user. */
static void parse_good(const char *members, struct chat_request *r)
{
    char text[1024];
    struct api_error e;
    snprintf(text, sizeof text, "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]%s%s}",
             *members ? ", " : "", members);
    if (parse(text, r, &e) != OK)
        fail_msg("%s: %s", text, e.message);
}

/* ---- limits of an answer ---- */

static void test_max_tokens(void **state)
{
    static const struct {
        const char *members;
        int32_t max_tokens; /* 0: all that is left */
    } cases[] = {
        {"", 0},
        {"\"max_tokens\": null", 0},
        {"\"max_tokens\": 7", 7},
        {"\"max_completion_tokens\": 9", 9},
        {"\"max_completion_tokens\": 9, \"max_tokens\": 7", 9},
        {"\"max_tokens\": 7, \"max_completion_tokens\": null", 7},
    };
    struct api_error e = {0};
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct chat_request r;
        parse_good(cases[i].members, &r);
        struct completion_request *q = &r.completion;
        q->prompts[0].count = 60;
        assert_int_equal(completion_fill(q, 64, &e), OK);
        assert_int_equal(q->params.max_tokens, cases[i].max_tokens ? cases[i].max_tokens : 4);
        chat_free(&r);
    }
    struct chat_request r;
    parse_good("\"min_tokens\": 5", &r);
    r.completion.prompts[0].count = 60;
    assert_int_equal(completion_fill(&r.completion, 64, &e), ERR_INPUT);
    assert_string_equal(e.param, "min_tokens");
    r.completion.prompts[0].count = 64; /* no room for a token */
    assert_int_equal(completion_prompt_fit(&r.completion, r.completion.prompts, 64, &e), ERR_INPUT);
    assert_string_equal(e.param, "messages");
    assert_string_equal(e.code, "context_length_exceeded");
    chat_free(&r);
}

static void test_logprobs(void **state)
{
    static const struct {
        const char *members;
        int32_t logprobs;
    } cases[] = {
        {"", -1},
        {"\"logprobs\": false, \"top_logprobs\": 0", -1},
        {"\"logprobs\": true", 0},
        {"\"logprobs\": true, \"top_logprobs\": 20", 20},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct chat_request r;
        parse_good(cases[i].members, &r);
        assert_int_equal(r.completion.logprobs, cases[i].logprobs);
        assert_int_equal(r.completion.params.logprobs, cases[i].logprobs);
        chat_free(&r);
    }
}

/* What an answer may be, and what it begins with. */
static void test_tool_choice(void **state)
{
#define TOOLS "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f-1\"}}]"
#define FUNCTION ", \"tool_choice\": {\"type\": \"function\", \"function\": {\"name\": \"f-1\"}}"
    static const struct {
        const char *members;
        enum answer_calls form, calls;
        bool one;
        const char *begin;
    } cases[] = {
        {"\"temperature\": 1", ANSWER_CALLS_HERMES, ANSWER_CALLS_NONE, false, ""},
        {"\"tools\": []", ANSWER_CALLS_HERMES, ANSWER_CALLS_NONE, false, ""},
        {TOOLS, ANSWER_CALLS_HERMES, ANSWER_CALLS_HERMES, false, ""},
        {TOOLS ", \"tool_choice\": null", ANSWER_CALLS_LLAMA3, ANSWER_CALLS_LLAMA3, false, ""},
        {TOOLS ", \"tool_choice\": \"none\"", ANSWER_CALLS_NONE, ANSWER_CALLS_NONE, false, ""},
        {TOOLS ", \"parallel_tool_calls\": false", ANSWER_CALLS_MISTRAL, ANSWER_CALLS_MISTRAL, true,
         ""},
        {TOOLS ", \"tool_choice\": \"required\"", ANSWER_CALLS_HERMES, ANSWER_CALLS_HERMES, false,
         "<tool_call>\n{\"name\": \""},
        {TOOLS FUNCTION, ANSWER_CALLS_HERMES, ANSWER_CALLS_HERMES, true,
         "<tool_call>\n{\"name\": \"f-1\", \"arguments\":"},
        {TOOLS FUNCTION, ANSWER_CALLS_LLAMA3, ANSWER_CALLS_LLAMA3, true,
         "{\"name\": \"f-1\", \"parameters\":"},
        {TOOLS FUNCTION, ANSWER_CALLS_MISTRAL, ANSWER_CALLS_MISTRAL, true,
         "[TOOL_CALLS][{\"name\": \"f-1\", \"arguments\":"},
        {TOOLS FUNCTION, ANSWER_CALLS_MISTRAL_ARGS, ANSWER_CALLS_MISTRAL_ARGS, true,
         "[TOOL_CALLS]f-1[ARGS]"},
        {TOOLS FUNCTION, ANSWER_CALLS_OPENAI, ANSWER_CALLS_OPENAI, true,
         "<|channel|>commentary to=functions.f-1 <|constrain|>json<|message|>"},
        {TOOLS ", \"tool_choice\": \"required\"", ANSWER_CALLS_OPENAI, ANSWER_CALLS_OPENAI, false,
         "<|channel|>commentary to=functions."},
        {TOOLS ", \"tool_choice\": \"required\"", ANSWER_CALLS_MISTRAL_ARGS,
         ANSWER_CALLS_MISTRAL_ARGS, false, "[TOOL_CALLS]"},
    };
#undef TOOLS
#undef FUNCTION
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct completion_rules known = rules;
        struct chat_request r;
        struct api_error e;
        char body[512];
        known.answer.calls = cases[i].form;
        snprintf(body, sizeof body,
                 "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], %s}",
                 cases[i].members);
        if (chat_parse(body, strlen(body), &known, &r, &e) != OK)
            fail_msg("%s: %s", body, e.message);
        const struct buf *begin = &r.completion.answer_begin;
        assert_int_equal(r.completion.answer.calls, cases[i].calls);
        assert_int_equal(r.completion.answer.one_call, cases[i].one);
        assert_string_equal(begin->data ? begin->data : "", cases[i].begin);
        assert_true(r.completion.skip_special);
        chat_free(&r);
    }
}

/* ---- conversations ---- */

/* A whole body and the variables that it becomes, as JSON. */
static void test_variables(void **state)
{
    static const char end[] = "\"tools\":null,\"documents\":null,\"add_generation_prompt\":";
    static const struct {
        const char *members, *messages, *more;
    } cases[] = {
        {"\"messages\": [{\"role\": \"user\", \"content\": \"a\\u0000\"}]",
         "[{\"role\":\"user\",\"content\":\"a\\u0000\"}]", "true"},
        {"\"messages\": [{\"role\": \"developer\", \"content\": \"a\", \"name\": \"n\"}], "
         "\"add_generation_prompt\": false",
         "[{\"role\":\"system\",\"content\":\"a\",\"name\":\"n\"}]", "false"},
        {"\"messages\": [{\"role\": \"assistant\"}], \"chat_template_kwargs\": {\"k\": [1, null]}",
         "[{\"role\":\"assistant\",\"content\":\"\"}]", "true,\"k\":[1,null]"},
        {"\"messages\": [{\"content\": [{\"text\": \"a\", \"type\": \"text\"}, {\"type\": "
         "\"text\", \"text\": \"\"}], \"role\": \"user\"}], \"reasoning_effort\": \"low\"",
         "[{\"role\":\"user\",\"content\":\"a\\n\"}]", "true,\"reasoning_effort\":\"low\""},
        {"\"messages\": [{\"role\": \"assistant\", \"content\": null, \"tool_calls\": [{\"id\": "
         "\"c\", \"function\": {\"name\": \"f\", \"arguments\": \"{\\\"x\\\": [2.5]}\"}}, "
         "{\"function\": {\"name\": \"g\", \"arguments\": \"\"}}]}, "
         "{\"role\": \"tool\", \"tool_call_id\": \"c\", \"content\": \"y\"}]",
         "[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"type\":\"function\","
         "\"id\":\"c\",\"function\":{\"name\":\"f\",\"arguments\":{\"x\":[2.5]}}},"
         "{\"type\":\"function\",\"function\":{\"name\":\"g\",\"arguments\":{}}}]},"
         "{\"role\":\"tool\",\"content\":\"y\",\"tool_call_id\":\"c\"}]",
         "true"},
        {"\"messages\": [{\"role\": \"assistant\", \"content\": \"b\"}], "
         "\"continue_final_message\": true",
         "[{\"role\":\"assistant\",\"content\":\"bEND_OF_MESSAGE_TO_CONTINUE \"}]", "false"},
        {"\"messages\": [{\"role\": \"assistant\", \"content\": \"b\", \"reasoning\": \"r\"}]",
         "[{\"role\":\"assistant\",\"content\":\"b\",\"reasoning_content\":\"r\","
         "\"reasoning\":\"r\",\"thinking\":\"r\"}]",
         "true"},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char text[1024], wanted[1024];
        struct chat_request r;
        struct api_error e;
        struct buf vars;
        snprintf(text, sizeof text, "{%s}", cases[i].members);
        snprintf(wanted, sizeof wanted, "{\"messages\":%s,%s%s}", cases[i].messages, end,
                 cases[i].more);
        if (parse(text, &r, &e) != OK)
            fail_msg("%s: %s", text, e.message);
        buf_init(&vars, 1 << 16);
        jdoc_write(r.conversation.vars, &vars);
        assert_string_equal(vars.data, wanted);
        buf_free(&vars);
        chat_free(&r);
    }
}

/* What the template of the harmony format needs: a text in each message, reasoning or content
 * before a call, and tools that are described. */
static void test_harmony_variables(void **state)
{
    static const char call[] = "\"tool_calls\":[{\"type\":\"function\",\"function\":{\"name\":"
                               "\"f\",\"arguments\":{}}}]";
    static const struct {
        const char *content, *wanted;
    } cases[] = {
        {"\"content\":null", "\"content\":\"\""},
        {"\"content\":\"a\"", "\"content\":\"a\""},
        {"\"content\":\"a\",\"reasoning\":\"\"",
         "\"content\":\"a\",\"reasoning_content\":\"\",\"reasoning\":\"\",\"thinking\":\"\""},
        {"\"reasoning_content\":\"r\"", "\"content\":\"\",\"reasoning_content\":\"r\","
                                        "\"reasoning\":\"r\",\"thinking\":\"r\""},
        {"\"content\":\"a\",\"reasoning\":\"r\"",
         "\"content\":\"\",\"reasoning_content\":\"r\\na\",\"reasoning\":\"r\\na\","
         "\"thinking\":\"r\\na\""},
    };
    static const char tools[] =
        "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":null}},"
        "{\"type\":\"function\",\"function\":{\"description\":\"d\",\"name\":\"g\"}},"
        "{\"type\":\"function\",\"function\":{}}]";
    static const char described[] =
        "[{\"type\":\"function\",\"function\":{\"description\":\"\",\"name\":\"f\"}},"
        "{\"type\":\"function\",\"function\":{\"description\":\"d\",\"name\":\"g\"}},"
        "{\"type\":\"function\",\"function\":{\"description\":\"\"}}]";
    struct completion_rules known = rules;
    (void)state;
    known.answer =
        (struct answer_form){.calls = ANSWER_CALLS_OPENAI, .harmony = true, .reasoning = true};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char text[1024], wanted[1024];
        struct chat_request r;
        struct api_error e;
        struct tokenize_request t;
        struct buf vars;
        snprintf(text, sizeof text, "{\"messages\":[{\"role\":\"assistant\",%s,%s}],\"tools\":%s}",
                 cases[i].content, call, tools);
        snprintf(wanted, sizeof wanted,
                 "{\"messages\":[{\"role\":\"assistant\",%s,%s}],\"tools\":%s,\"documents\":null,"
                 "\"add_generation_prompt\":true}",
                 cases[i].wanted, call, described);
        if (chat_parse(text, strlen(text), &known, &r, &e) != OK ||
            tokenize_parse(text, strlen(text), &known, &t, &e) != OK)
            fail_msg("%s: %s", text, e.message);
        buf_init(&vars, 1 << 16);
        jdoc_write(r.conversation.vars, &vars);
        assert_string_equal(vars.data, wanted);
        buf_clear(&vars);
        jdoc_write(t.conversation.vars, &vars);
        assert_string_equal(vars.data, wanted);
        buf_free(&vars);
        chat_free(&r);
        tokenize_free(&t);
    }
}

/* The messages that a harmony template is given; "": the request is refused, with `wanted`. */
static void check_harmony_messages(const char *messages, const char *wanted, bool refused)
{
    struct completion_rules known = rules;
    char text[2048];
    struct chat_request r;
    struct api_error e = {0};
    struct buf vars;
    known.answer = (struct answer_form){.calls = ANSWER_CALLS_OPENAI, .harmony = true};
    snprintf(text, sizeof text, "{\"messages\":[%s]}", messages);
    const enum status st = chat_parse(text, strlen(text), &known, &r, &e);
    if (refused) {
        assert_int_equal(st, ERR_INPUT);
        if (!strstr(e.message, wanted))
            fail_msg("%s: %s", messages, e.message);
        return;
    }
    if (st != OK)
        fail_msg("%s: %s", messages, e.message);
    buf_init(&vars, 1 << 16);
    jdoc_write(jdoc_get(r.conversation.vars, "messages"), &vars);
    assert_string_equal(vars.data, wanted);
    buf_free(&vars);
    chat_free(&r);
}

/* One message of instructions, one call in a message, and its results behind it. */
static void test_harmony_messages(void **state)
{
#define CALL(name, id)                                                                             \
    "{\"type\":\"function\",\"id\":\"" id "\",\"function\":{\"name\":\"" name                      \
    "\",\"arguments\":{}}}"
#define SAID(role, text) "{\"role\":\"" role "\",\"content\":\"" text "\"}"
#define RESULT(id, text) "{\"role\":\"tool\",\"content\":\"" text "\",\"tool_call_id\":\"" id "\"}"
#define CALLS(content, calls)                                                                      \
    "{\"role\":\"assistant\",\"content\":\"" content "\",\"tool_calls\":[" calls "]}"
    static const struct {
        const char *messages, *wanted;
        bool refused;
    } cases[] = {
        {SAID("user", "u"), "[" SAID("user", "u") "]", false},
        {SAID("system", "a") "," SAID("developer", "b") "," SAID("user", "u"),
         "[" SAID("system", "a\\n\\nb") "," SAID("user", "u") "]", false},
        {SAID("developer", "a"), "[" SAID("system", "a") "]", false},
        {SAID("user", "u") "," SAID("system", "s"), "messages[1].role must not be system here",
         true},
        {SAID("user", "u") "," SAID("function", "s"), "results of tools have the role tool", true},
        {CALLS("c", CALL("f", "1") "," CALL("g", "2")) "," RESULT("2", "rg") "," RESULT("1", "rf"),
         "[" CALLS("c", CALL("f", "1")) "," RESULT("1", "rf") "," CALLS(
             "", CALL("g", "2")) "," RESULT("2", "rg") "]",
         false},
        {CALLS("", CALL("f", "1") "," CALL("g", "1")) "," RESULT("1", "a") "," RESULT(
             "x", "b") "," SAID("user", "u"),
         "[" CALLS("", CALL("f", "1")) "," RESULT("1", "a") "," CALLS(
             "", CALL("g", "1")) "," RESULT("x", "b") "," SAID("user", "u") "]",
         false},
        {CALLS("", CALL("f", "1")) "," RESULT("2", "a"),
         "[" CALLS("", CALL("f", "1")) "," RESULT("2", "a") "]", false},
        {CALLS("", CALL("f", "1") "," CALL("g", "2")) ",{\"role\":\"tool\",\"content\":7}",
         "messages[1].content must be", true},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        check_harmony_messages(cases[i].messages, cases[i].wanted, cases[i].refused);
}

static void test_refused(void **state)
{
    static const struct {
        const char *body, *param, *words;
    } cases[] = {
        {"{}", "messages", "missing"},
        {"{\"messages\": {}}", "messages", "list of objects"},
        {"{\"messages\": []}", "messages", "1 to 4096"},
        {"{\"messages\": [1]}", "messages[0]", "an object"},
        {"{\"messages\": [{\"role\": \"user\"}]}", "messages[0].content", "missing"},
        {"{\"messages\": [{\"role\": \"assistant\", \"tool_calls\": [{\"function\": {\"name\": "
         "\"f\", \"arguments\": \"[]\"}}]}]}",
         "messages[0].tool_calls[0].function.arguments", "got an array"},
        {"{\"messages\": [{\"role\": \"assistant\", \"tool_calls\": [{\"function\": {}}]}]}",
         "messages[0].tool_calls[0].function", "name is missing"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\"}]}]}",
         "messages[0].content[0].text", "must be a string"},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct chat_request r, before;
        struct api_error e;
        memset(&r, 0x5a, sizeof r);
        memcpy(&before, &r, sizeof r);
        assert_int_equal(parse(cases[i].body, &r, &e), ERR_INPUT);
        assert_memory_equal(&r, &before, sizeof r); /* untouched */
        if (strcmp(e.param, cases[i].param) != 0 || !strstr(e.message, cases[i].words))
            fail_msg("%s: param %s: %s", cases[i].body, e.param, e.message);
        assert_memory_equal(e.message, "messages", 8);
    }
}

static void test_counts(void **state)
{
    static const char one[] = "{\"role\": \"user\", \"content\": \"a\"}";
    (void)state;
    for (int count = 4096; count <= 4097; count++) {
        struct buf b;
        struct chat_request r;
        struct api_error e;
        buf_init(&b, 1 << 20);
        buf_puts(&b, "{\"messages\": [");
        for (int i = 0; i < count; i++)
            buf_printf(&b, "%s%s", i ? "," : "", one);
        buf_puts(&b, "]}");
        enum status st = parse(b.data, &r, &e);
        assert_int_equal(st, count == 4096 ? OK : ERR_INPUT);
        if (st == OK)
            chat_free(&r);
        else
            assert_string_equal(e.message, "messages must have 1 to 4096 entries, got 4097");
        buf_free(&b);
    }
}

/* ---- replies ---- */

static const struct completion_meta meta = {
    .id = "chatcmpl-1", .created = 5, .model = "m", .fingerprint = "f"};

static void test_object(void **state)
{
    static const int32_t ids[] = {4, 5}, prompt[] = {9};
    const struct completion_choice choice = {
        .index = 1,
        .first = true,
        .text = "a\"",
        .text_len = 2,
        .finish_reason = "stop",
        .logprobs_top = -1,
        .stop_token = 7,
        .with_token_ids = true,
        .token_ids = ids,
        .token_count = 2,
        .prompt_ids = prompt,
        .prompt_count = 1,
    };
    const struct completion_usage usage = {3, 4, 2, .reasoning_tokens = -1};
    struct buf b;
    (void)state;
    buf_init(&b, 1 << 16);
    chat_reply.begin(&meta, &choice, &b);
    chat_reply.choice(&meta, &choice, &b);
    chat_reply.end(&usage, &b);
    assert_string_equal(
        b.data,
        "{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion\",\"created\":5,\"model\":\"m\","
        "\"system_fingerprint\":\"f\",\"prompt_token_ids\":[9],\"choices\":[{\"index\":1,"
        "\"message\":{\"role\":\"assistant\",\"content\":\"a\\\"\",\"refusal\":null},"
        "\"logprobs\":null,\"finish_reason\":\"stop\",\"stop_reason\":7,\"token_ids\":[4,5]}],"
        "\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":4,\"total_tokens\":7,"
        "\"prompt_tokens_details\":{\"cached_tokens\":2}}}");
    buf_free(&b);
}

#define FRAME(delta, end, usage)                                                                   \
    "data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":5,\"model\":"   \
    "\"m\",\"system_fingerprint\":\"f\",\"choices\":[{\"index\":0,\"delta\":{" delta "},"          \
    "\"logprobs\":null,\"finish_reason\":" end "}]" usage "}\n\n"

/* The role goes out with the first token, even one whose text is held back; then a token without
 * text makes no frame. */
static void test_frames(void **state)
{
    struct completion_choice c = {.first = true, .logprobs_top = -1, .stop_token = -1};
    struct buf b;
    (void)state;
    buf_init(&b, 1 << 16);
    chat_reply.chunk(&meta, &c, false, NULL, &b);
    assert_string_equal(b.data, FRAME("\"role\":\"assistant\",\"content\":\"\"", "null", ""));
    buf_clear(&b);
    c.first = false;
    chat_reply.chunk(&meta, &c, false, NULL, &b);
    assert_int_equal(b.len, 0);
    c.text = "x";
    c.text_len = 1;
    c.finish_reason = "length";
    chat_reply.chunk(&meta, &c, true, NULL, &b);
    assert_string_equal(b.data, FRAME("\"content\":\"x\"", "null", ",\"usage\":null") FRAME(
                                    "", "\"length\",\"stop_reason\":null", ",\"usage\":null"));
    buf_clear(&b);
    c = (struct completion_choice){
        .first = true, .finish_reason = "stop", .logprobs_top = -1, .stop_token = -1};
    chat_reply.chunk(&meta, &c, false, NULL, &b); /* it ended before a token */
    assert_string_equal(b.data, FRAME("\"role\":\"assistant\",\"content\":\"\"", "null", "")
                                    FRAME("", "\"stop\",\"stop_reason\":null", ""));
    buf_free(&b);
}

/* ---- control tokens ---- */

/* config: the text of a tokenizer_config.json; NULL: none. */
static struct tokenizer *open_tokenizer(const char *path, const char *config)
{
    const struct file_spec f = {.path = path, .bytes_max = 1 << 20, .failure = ERR_MODEL};
    struct tokenizer_bytes b = {.where = path};
    struct tokenizer *t = NULL;
    struct err err = {""};
    char *json = NULL;
    if (file_read(&f, &json, &b.json_n, &err) != OK)
        fail_msg("%s", err.text);
    b.json = json;
    b.config = config;
    b.config_n = config ? strlen(config) : 0;
    if (tokenizer_open_bytes(&b, 1000, &t, &err) != OK)
        fail_msg("%s", err.text);
    free(json);
    return t;
}

/* How many tokens there are, and how many of them are control tokens. `marks`: '.' for a byte of
 * the template, 'x' for a client's. */
static int32_t tokens(const struct tokenizer *t, const char *bytes, const char *marks,
                      int32_t *controls)
{
    char foreign[64] = "";
    int32_t *ids = NULL, count = 0, found = 0;
    struct err err = {""};
    const size_t n = strlen(bytes);
    assert_int_equal(strlen(marks), n);
    for (size_t i = 0; i < n; i++)
        foreign[i] = marks[i] == 'x';
    const struct tokenizer_text text = {.bytes = bytes, .foreign = foreign, .n = n};
    assert_int_equal(tokenizer_encode_marked(t, &text, false, &ids, &count, &err), OK);
    for (int32_t i = 0; i < count; i++)
        found += tokenizer_view(t, ids[i]).kind == TOKEN_HIDDEN;
    free(ids);
    if (controls)
        *controls = found;
    return count;
}

static int32_t controls(const struct tokenizer *t, const char *bytes, const char *marks)
{
    int32_t found = 0;
    tokens(t, bytes, marks, &found);
    return found;
}

static void test_control_tokens(void **state)
{
    static const struct {
        const char *text, *marks;
        int32_t controls;
    } cases[] = {
        {"<|im_start|>a", ".............", 1},
        {"<|im_start|>a", "............x", 1},
        {"<|im_start|>a", "xxxxxxxxxxxxx", 0},
        {"<|im_start|>a", "x............", 0},
        {"<|im_start|>a", "...........x.", 0},
        {"<|im_start|>a", ".....xx......", 0},
        {"a<|im_start|>", "x............", 1},
        {"", "", 0},
        {"<|im_<|im_start|>", "xxxxx............", 1},
        {"<|im_start|><|im_start|>", "xxxxxxxxxxxx............", 1},
        {"<|im_start|><|im_start|>", "............xxxxxxxxxxxx", 1},
        {"<|im_start|><|im_start|>", "........................", 2},
    };
    struct tokenizer *t = open_tokenizer(TEST_DATA_DIR "/corpus/hf/qwen.json", NULL);
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        if (controls(t, cases[i].text, cases[i].marks) != cases[i].controls)
            fail_msg("\"%s\" %s", cases[i].text, cases[i].marks);
    tokenizer_close(t);
}

/* A normalizer comes between the text and the names of some files: still only the template's count.
 */
static void test_control_tokens_behind_a_normalizer(void **state)
{
    struct tokenizer *t = open_tokenizer(TEST_DATA_DIR "/corpus/hf/llama2_old.json", NULL);
    (void)state;
    assert_int_equal(controls(t, "<s>a b</s>", "...xxx...."), 2);
    assert_int_equal(controls(t, "<s>a b</s>", "xxxxxxxxxx"), 0);
    assert_int_equal(controls(t, "<s>a</s></s>", "...xxxxx...."), 2);
    tokenizer_close(t);
}

/* <...> may mark turns also where a file calls it text, but a tag of HTML does not: messages have
 * it as other texts do. */
static void test_marks_and_tags(void **state)
{
    static const struct {
        const char *text, *marks;
        bool one; /* token */
    } cases[] = {
        {"<start_of_turn>", "...............", true},
        {"<start_of_turn>", "xxxxxxxxxxxxxxx", false},
        {"<mask>", "......", true},
        {"<mask>", "xxxxxx", false},
        {"<unused0>", "xxxxxxxxx", false},
        {"<td>", "....", true},
        {"<td>", "xxxx", true},
        {"</table>", "xxxxxxxx", true},
        {"[@BOS@]", "xxxxxxx", true},
        {"\n\n\n", ".x.", true},
    };
    struct tokenizer *t = open_tokenizer(TEST_DATA_DIR "/corpus/hf/gemma.json", NULL);
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const int32_t count = tokens(t, cases[i].text, cases[i].marks, NULL);
        if ((count == 1) != cases[i].one)
            fail_msg("\"%s\" %s: %d tokens", cases[i].text, cases[i].marks, count);
    }
    tokenizer_close(t);
}

/* ---- templates ---- */

#define TEMPLATE                                                                                   \
    "{% for m in messages %}{{ bos_token }}{{ m.content | trim }}{{ eos_token }}{% endfor %}"      \
    "{% if messages | length > 2 %}{{ raise_exception('at most two') }}{% endif %}"
#define CONFIG(template)                                                                           \
    "{\"bos_token\": \"<|im_start|>\", \"eos_token\": {\"content\": \"<|im_end|>\"}, "             \
    "\"pad_token\": null, \"chat_template\": " template "}"

/* The text of messages; NULL where they are refused. The caller's. */
static char *render(const struct chat_template *t, const char *body, struct api_error *e)
{
    struct chat_request r;
    struct jinja_text text;
    size_t n;
    char *bytes = NULL;
    if (parse(body, &r, e) != OK)
        fail_msg("%s: %s", body, e->message);
    if (chat_template_render(t, &r.conversation, &text, e) == OK) {
        assert_int_equal(text.bytes.len, text.foreign.len);
        bytes = buf_take(&text.bytes, &n);
        jinja_text_free(&text);
    }
    chat_free(&r);
    return bytes;
}

static void test_template(void **state)
{
    static const struct {
        const char *body, *text; /* NULL: refused */
    } cases[] = {
        {"[{\"role\": \"user\", \"content\": \" a \"}]", "<|im_start|>a<|im_end|>"},
        {"[{\"role\": \"user\", \"content\": \"a \"}], \"continue_final_message\": true",
         "<|im_start|>a"},
        {"[{\"role\": \"user\", \"content\": \"a\\u3000\\u00a0\"}], \"continue_final_message\": "
         "true",
         "<|im_start|>a"},
        {"[{\"role\": \"user\", \"content\": \"\"}], \"continue_final_message\": true",
         "<|im_start|>"},
        {"[{\"role\": \"user\", \"content\": \"END_OF_MESSAGE_TO_CONTINUE b\"}], "
         "\"continue_final_message\": true",
         "<|im_start|>END_OF_MESSAGE_TO_CONTINUE b"},
        {"[{\"role\": \"user\", \"content\": \"\"}, {\"role\": \"user\", \"content\": \"\"}, "
         "{\"role\": \"user\", \"content\": \"\"}]",
         NULL},
    };
    struct tokenizer *t =
        open_tokenizer(TEST_DATA_DIR "/corpus/hf/qwen.json", CONFIG("\"" TEMPLATE "\""));
    struct chat_template *template = NULL;
    struct api_error e;
    struct err err = {""};
    (void)state;
    assert_int_equal(chat_template_open(t, NULL, &template, &err), OK);
    assert_null(chat_template_problem(template));
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char body[512];
        snprintf(body, sizeof body, "{\"messages\": %s}", cases[i].body);
        char *text = render(template, body, &e);
        if (cases[i].text && text)
            assert_string_equal(text, cases[i].text);
        else
            assert_ptr_equal(text, cases[i].text);
        free(text);
    }
    assert_non_null(strstr(e.message, "at most two"));
    assert_string_equal(e.param, "messages");
    chat_template_close(template);
    tokenizer_close(t);
}

/* What is wrong with a model's template is said when a chat comes; a file must be good. */
static void test_no_template(void **state)
{
    static const struct {
        const char *config, *problem;
    } cases[] = {
        {CONFIG("null"), "no chat template"},
        {"{}", "no chat template"},
        {CONFIG("\"{% for\""), "cannot be used"},
        {CONFIG("\"{% frobnicate %}\""), "cannot be used"},
        {CONFIG("\"{% set f = '%s' %}{{ f % 1 }}\""), NULL}, /* which only rendering shows */
    };
    static const char body[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}";
    struct api_error e;
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct tokenizer *t = open_tokenizer(TEST_DATA_DIR "/corpus/hf/qwen.json", cases[i].config);
        struct chat_template *template = NULL;
        struct err err = {""};
        assert_int_equal(chat_template_open(t, NULL, &template, &err), OK);
        const char *said = chat_template_problem(template);
        assert_true(said ? cases[i].problem && strstr(said, cases[i].problem) : !cases[i].problem);
        assert_null(render(template, body, &e));
        assert_int_equal(e.http_status, 400);
        assert_string_equal(e.message, said ? said
                                            : "this model's chat template cannot be used: "
                                              "chat_template:1:22: formatting with % is not "
                                              "supported; give another with --chat-template");
        chat_template_close(template);
        template = NULL;
        assert_int_equal(chat_template_open(t, "/nowhere/at/all", &template, &err), ERR_USAGE);
        assert_null(template);
        tokenizer_close(t);
    }
    assert_null(render(NULL, body, &e));
    assert_non_null(strstr(e.message, "without a tokenizer"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_max_tokens),
        cmocka_unit_test(test_logprobs),
        cmocka_unit_test(test_tool_choice),
        cmocka_unit_test(test_variables),
        cmocka_unit_test(test_harmony_variables),
        cmocka_unit_test(test_harmony_messages),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_object),
        cmocka_unit_test(test_frames),
        cmocka_unit_test(test_control_tokens),
        cmocka_unit_test(test_control_tokens_behind_a_normalizer),
        cmocka_unit_test(test_marks_and_tags),
        cmocka_unit_test(test_template),
        cmocka_unit_test(test_no_template),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
