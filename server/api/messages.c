/* DESIGN: the rows store into what a chat's rows store into, and what is written otherwise (tools,
 * the choice of one, messages) is written once more as a chat has it; the rest is chat.c's. Names
 * and shapes are those of https://docs.claude.com/en/api/messages and of Anthropic's Python client.
 *
 * What costs a client nothing but a promise is ignored: cache_control, because every prefix is
 * found again anyway; budget_tokens, because templates know reasoning as on or off; service_tier
 * and its like. What another answer would be expected for is refused. */
#include "server/api/messages.h"

#include "server/api/messages_input.h"

#include <string.h>

/* What the rows store into. */
struct raw {
    struct chat_values chat;
    const struct jdoc *messages, *system, *tools;
    struct field_string choice, tool, thinking, display;
    bool one_call;
};

#define AT(member) .offset = offsetof(struct raw, member)
#include "server/api/field_row.h"

/* ---- tables ---- */

#define CHAT_BOOL(field)                                                                           \
    {                                                                                              \
        .name = #field, .kind = FIELD_BOOL, AT(chat.field)                                         \
    }
#define REFUSED(field, reason)                                                                     \
    {                                                                                              \
        .name = #field, .kind = FIELD_ANY, .use = FIELD_UNSUPPORTED, .neutral = NAN,               \
        .why = (reason)                                                                            \
    }
#define CHOICE(field, words, must, member)                                                         \
    {                                                                                              \
        .name = #field, .kind = FIELD_CHOICE, .choices = (words), .required = (must), AT(member)   \
    }
#define OBJECT(field, rows)                                                                        \
    {                                                                                              \
        .name = #field, .kind = FIELD_OBJECT, .members = (rows), .member_count = ARRAY_LEN(rows)   \
    }
#define MAX_TOKENS(must)                                                                           \
    {                                                                                              \
        .name = "max_tokens", .kind = FIELD_INT, .int_min = 1, .int_max = INT32_MAX,               \
        .no_default = true, .required = (must), AT(chat.sampling.max_tokens)                       \
    }

static const struct field choice_rows[] = {
    CHOICE(type, "auto|any|tool|none", true, choice),
    {.name = "name", .kind = FIELD_STRING, .int_max = CONVERSATION_NAME_BYTES_MAX, AT(tool)},
    {.name = "disable_parallel_tool_use", .kind = FIELD_BOOL, AT(one_call)},
};

static const struct field thinking_rows[] = {
    CHOICE(type, "enabled|disabled|adaptive|between_tools", true, thinking),
    IGNORED(budget_tokens),
    CHOICE(display, "summarized|omitted", false, display),
};

static const struct field format_rows[] = {
    CHOICE(type, "json_schema", true, chat.sampling.format.type),
    {.name = "schema", .kind = FIELD_MAP, .int_max = INT32_MAX, AT(chat.sampling.format.schema)},
};

static const struct field output_rows[] = {
    {.name = "effort", .kind = FIELD_STRING, .int_max = 64, AT(chat.conversation.reasoning_effort)},
    OBJECT(format, format_rows),
};

struct tool {
    struct field_string type, name, description;
    const struct jdoc *input_schema;
    bool strict;
};

#define TOOL_AT(member) .offset = offsetof(struct tool, member)

static const struct field tool_rows[] = {
    {.name = "type", .kind = FIELD_CHOICE, .choices = "custom", TOOL_AT(type)},
    {.name = "name",
     .kind = FIELD_STRING,
     .int_min = 1,
     .int_max = CONVERSATION_NAME_BYTES_MAX,
     .required = true,
     TOOL_AT(name)},
    {.name = "description",
     .kind = FIELD_STRING,
     .int_max = CONVERSATION_TEXT_BYTES_MAX,
     TOOL_AT(description)},
    {.name = "input_schema",
     .kind = FIELD_MAP,
     .int_max = INT32_MAX,
     .required = true,
     TOOL_AT(input_schema)},
    {.name = "strict", .kind = FIELD_BOOL, .no_default = true, TOOL_AT(strict)},
    UNSUPPORTED(defer_loading, FIELD_BOOL, 0),
    IGNORED(cache_control),
    IGNORED(allowed_callers), /* of tools of the server */
    IGNORED(eager_input_streaming),
    IGNORED(input_examples),
};

static const struct field tool_row = {
    .name = "tools", .members = tool_rows, .member_count = ARRAY_LEN(tool_rows)};

/* What is not the same of a message and of one whose tokens are counted. */
static const struct field message_rows[] = {
    MAX_TOKENS(true),
    REFUSED(compaction, "this server makes no summaries: leave it out"),
};
static const struct field count_rows[] = {
    MAX_TOKENS(false),
    IGNORED(compaction),
};

static const struct field rows[] = {
    {.name = "messages",
     .kind = FIELD_ANY,
     .required = true,
     .schema = messages_input_schema,
     AT(messages)},
    {.name = "system", .kind = FIELD_ANY, .schema = messages_input_system_schema, AT(system)},
    {.name = "stop_sequences",
     .kind = FIELD_STRINGS,
     .int_max = COMPLETION_STOP_MAX,
     AT(chat.sampling.stop)},
    {.name = "tools",
     .kind = FIELD_OBJECTS,
     .int_max = CONVERSATION_TOOLS_MAX,
     .members = tool_rows,
     .member_count = ARRAY_LEN(tool_rows),
     AT(tools)},
    OBJECT(tool_choice, choice_rows),
    OBJECT(thinking, thinking_rows),
    OBJECT(output_config, output_rows),
    IGNORED(metadata),
    IGNORED(cache_control),
    IGNORED(context_management), /* nothing is taken out of the conversation */
    IGNORED(diagnostics),
    IGNORED(fallbacks), /* there is one model */
    IGNORED(fallback_credit_token),
    IGNORED(billing_policy),
    IGNORED(speed),
    IGNORED(user_profile_id),
    IGNORED(workspace_id),
    /* of vLLM, as in a chat */
    CHAT_BOOL(add_special_tokens),
    CHAT_BOOL(include_reasoning),
    {.name = "chat_template_kwargs",
     .kind = FIELD_MAP,
     .int_max = CONVERSATION_KWARGS_MAX,
     AT(chat.conversation.chat_template_kwargs)},
    UNSUPPORTED(chat_template, FIELD_STRING, 0),
    UNSUPPORTED(mcp_servers, FIELD_ARRAY, 0),
    REFUSED(thread, "this server keeps nothing: send the whole conversation as messages"),
    REFUSED(container, "this server runs nothing and keeps nothing: leave it out"),
    REFUSED(inference_geo, "leave it out: the server is where it is"),
    UNSUPPORTED(n, FIELD_INT, 1),
    UNSUPPORTED(return_token_ids, FIELD_BOOL, 0),
    REFUSED(logprobs, "answers of this API have no place for them"),
    REFUSED(prompt_logprobs, "answers of this API have no place for them"),
    REFUSED(stream_options, "leave it out: usage is always there"),
    REFUSED(output_format, "say output_config.format"),
    REFUSED(response_format, "say output_config.format"),
    REFUSED(reasoning_effort, "say output_config.effort"),
    REFUSED(max_completion_tokens, "say max_tokens"),
    REFUSED(parallel_tool_calls, "say tool_choice.disable_parallel_tool_use"),
    REFUSED(add_generation_prompt, "a last message of the assistant is continued"),
    REFUSED(continue_final_message, "a last message of the assistant is continued"),
};

static struct field_set fields_with(const struct field *own, size_t count, int32_t vocab)
{
    return (struct field_set){
        .parts = {{own, count, 0},
                  {rows, ARRAY_LEN(rows), 0},
                  sampling_rows_of_one(offsetof(struct raw, chat.sampling))},
        .vocab = vocab,
    };
}

struct field_set messages_fields(int32_t vocab)
{
    return fields_with(message_rows, ARRAY_LEN(message_rows), vocab);
}

struct field_set messages_count_fields(int32_t vocab)
{
    return fields_with(count_rows, ARRAY_LEN(count_rows), vocab);
}

static struct raw defaults_of(const struct generation_defaults *d)
{
    struct raw raw = {.chat = chat_defaults(d)};
    raw.chat.sampling.format.name = "output_config.format";
    return raw;
}

void messages_schema(const struct completion_rules *rules, struct buf *out)
{
    const struct field_set set = messages_fields(rules->vocab);
    const struct raw raw = defaults_of(&rules->defaults);
    field_schema(&set, &raw, out);
}

void messages_count_schema(const struct completion_rules *rules, struct buf *out)
{
    const struct field_set set = messages_count_fields(rules->vocab);
    const struct raw raw = defaults_of(&rules->defaults);
    field_schema(&set, &raw, out);
}

/* ---- tools, as a chat has them ---- */

/* {"name":...,"input_schema":...} to {"type":"function","function":{"name":...,"parameters":...}}
 */
static void write_tool(const struct jdoc *tool, struct buf *out)
{
    static const char *const members[][2] = {{"name", "name"},
                                             {"description", "description"},
                                             {"input_schema", "parameters"},
                                             {"strict", "strict"}};
    const char *separator = "";
    buf_puts(out, "{\"type\":\"function\",\"function\":{");
    for (size_t i = 0; i < ARRAY_LEN(members); i++) {
        const struct jdoc *value = jdoc_get_value(tool, members[i][0]);
        if (!value)
            continue;
        buf_printf(out, "%s\"%s\":", separator, members[i][1]);
        jdoc_write(value, out);
        separator = ",";
    }
    buf_puts(out, "}}");
}

static enum status write_choice(const struct raw *raw, struct buf *out, struct api_error *e)
{
    static const char *const words[][2] = {
        {"auto", "\"auto\""}, {"any", "\"required\""}, {"none", "\"none\""}};
    if (!raw->choice.bytes) {
        buf_puts(out, "null");
        return OK;
    }
    for (size_t i = 0; i < ARRAY_LEN(words); i++)
        if (field_string_is(&raw->choice, words[i][0]))
            buf_puts(out, words[i][1]);
    if (!field_string_is(&raw->choice, "tool"))
        return OK;
    if (!raw->tool.bytes || raw->tool.len == 0)
        return api_error_field(e, "tool_choice", "tool_choice.name must be the name of a tool");
    buf_puts(out, "{\"type\":\"function\",\"function\":{\"name\":");
    buf_json(out, raw->tool.bytes, raw->tool.len);
    buf_puts(out, "}}");
    return OK;
}

/* Of the tools that there are elsewhere, those that a client calls. */
static enum status check_tool_type(const struct jdoc *tool, size_t i, struct api_error *e)
{
    char shown[80];
    const struct jdoc *type = jdoc_get_value(tool, "type");
    if (!type || jdoc_type(type) != JDOC_STRING || strcmp(jdoc_string(type), "custom") == 0)
        return OK; /* rows say the rest */
    const enum status st = api_error_field(
        e, "type",
        "type must be \"custom\" or missing, got %s: this server has no tools of its own and knows "
        "none by its type, only tools with an input_schema can be called",
        field_text(type, shown, sizeof shown));
    field_prefix(e, "tools", i);
    return st;
}

static enum status convert_tools(struct raw *raw, struct completion_request *q, struct api_error *e)
{
    enum status st = OK;
    struct tool tool; /* is checked; the JSON is what is written */
    struct buf text;
    buf_init(&text, CHAT_TOOLS_BYTES_MAX);
    buf_puts(&text, "{\"tools\":[");
    for (size_t i = 0; raw->tools && i < jdoc_size(raw->tools); i++) {
        TRY(check_tool_type(jdoc_at(raw->tools, i), i, e));
        TRY(field_apply_item(&tool_row, raw->tools, i, &tool, &q->unknown, e));
        buf_puts(&text, i ? "," : "");
        write_tool(jdoc_at(raw->tools, i), &text);
    }
    buf_puts(&text, "],\"tool_choice\":");
    TRY(write_choice(raw, &text, e));
    buf_puts(&text, "}");
    st = chat_take_tools(&text, q, &raw->chat, e);
out:
    buf_free(&text);
    return st;
}

/* ---- the request ---- */

/* A model that may decide how much it thinks may think. */
static void convert_thinking(const struct raw *raw, struct chat_values *chat)
{
    if (raw->thinking.bytes)
        chat->conversation.thinking = field_string_is(&raw->thinking, "disabled")
                                          ? CONVERSATION_THINKING_OFF
                                          : CONVERSATION_THINKING_ON;
    if (raw->display.bytes && field_string_is(&raw->display, "omitted"))
        chat->include_reasoning = false;
}

static enum status make(void *values, const struct completion_rules *rules, struct chat_request *r,
                        struct api_error *e)
{
    enum status st = OK;
    struct raw *raw = values;
    struct completion_request *q = &r->completion;
    struct chat_input in = {.messages = NULL};
    if (jdoc_get_value(q->doc, "stop") && jdoc_get_value(q->doc, "stop_sequences"))
        return api_error_field(e, "stop", "stop and stop_sequences are the same: give only one");
    raw->chat.parallel_tool_calls = !raw->one_call;
    q->caps_answer = true;
    convert_thinking(raw, &raw->chat);
    TRY(convert_tools(raw, q, e));
    TRY(messages_input_read(raw->messages, raw->system, &in,
                            &raw->chat.conversation.continue_final_message, &q->unknown, e));
    raw->chat.conversation.messages = in.messages;
    st = chat_make(&raw->chat, rules, r, e);
    if (st == ERR_INPUT)
        chat_input_blame(&in, "messages", e);
out:
    chat_input_free(&in);
    return st;
}

/* Where calls that models have made are, and schemas. */
static const char *const big[] = {"messages", "tools", "output_config", NULL};

enum status messages_parse(const char *text, size_t n, const struct completion_rules *rules,
                           struct chat_request *out, struct api_error *e)
{
    static const struct chat_form form = {"messages", big, messages_fields, make};
    struct raw raw = defaults_of(&rules->defaults);
    return chat_parse_form(&form, &raw, text, n, rules, out, e);
}

enum status messages_parse_count(const char *text, size_t n, const struct completion_rules *rules,
                                 struct chat_request *out, struct api_error *e)
{
    static const struct chat_form form = {"messages", big, messages_count_fields, make};
    struct raw raw = defaults_of(&rules->defaults);
    return chat_parse_form(&form, &raw, text, n, rules, out, e);
}
