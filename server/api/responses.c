/* DESIGN: the rows store into what a chat's rows store into, and what is written otherwise (tools,
 * the choice of one, messages) is written once more as a chat has it; the rest is chat.c's. The
 * answer repeats much of the request: that is written here, while the request is at hand, and is
 * carried along as text. */
#include "server/api/responses.h"

#include "config/utf8.h"
#include "server/api/responses_input.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What the rows store into. */
struct raw {
    struct chat_values chat;
    struct field_string instructions, truncation, format_name, format_description;
    const struct jdoc *input, *tools, *tool_choice, *include, *metadata;
};

#define AT(member) .offset = offsetof(struct raw, member)
#include "server/api/field_row.h"

#define REPEATED_BYTES_MAX ((size_t)64 << 20)
#define DIGITS_OF(number) #number
#define DIGITS(macro) DIGITS_OF(macro)

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

#define ENTRIES_MAX DIGITS(RESPONSES_METADATA_MAX)
#define KEY_MAX DIGITS(RESPONSES_METADATA_KEY_MAX)
#define VALUE_MAX DIGITS(RESPONSES_METADATA_VALUE_MAX)
#define METADATA_SCHEMA                                                                            \
    "\"type\":[\"object\",\"null\"],\"maxProperties\":" ENTRIES_MAX                                \
    ",\"propertyNames\":{\"maxLength\":" KEY_MAX "},\"additionalProperties\":"                     \
    "{\"type\":\"string\",\"maxLength\":" VALUE_MAX "}"

static const struct field reasoning_rows[] = {
    {.name = "effort", .kind = FIELD_STRING, .int_max = 64, AT(chat.conversation.reasoning_effort)},
    IGNORED(summary),
    IGNORED(generate_summary),
};

static const struct field format_rows[] = {
    {.name = "type",
     .kind = FIELD_CHOICE,
     .choices = "text|json_object|json_schema",
     .required = true,
     AT(chat.sampling.format.type)},
    {.name = "name", .kind = FIELD_STRING, .int_max = CONVERSATION_NAME_BYTES_MAX, AT(format_name)},
    {.name = "description",
     .kind = FIELD_STRING,
     .int_max = CONVERSATION_TEXT_BYTES_MAX,
     AT(format_description)},
    IGNORED(strict), /* always */
    {.name = "schema", .kind = FIELD_MAP, .int_max = INT32_MAX, AT(chat.sampling.format.schema)},
};

static const struct field text_rows[] = {
    {.name = "format",
     .kind = FIELD_OBJECT,
     .members = format_rows,
     .member_count = ARRAY_LEN(format_rows)},
    IGNORED(verbosity),
};

static const struct field stream_rows[] = {
    IGNORED(include_obfuscation),
    IGNORED(include_usage), /* it is always there */
    UNSUPPORTED(continuous_usage_stats, FIELD_BOOL, 0),
};

struct tool {
    struct field_string type, name, description;
    const struct jdoc *parameters;
    bool strict;
};

#define TOOL_AT(member) .offset = offsetof(struct tool, member)

static const struct field tool_rows[] = {
    {.name = "type", .kind = FIELD_CHOICE, .choices = "function", .required = true, TOOL_AT(type)},
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
    {.name = "parameters", .kind = FIELD_MAP, .int_max = INT32_MAX, TOOL_AT(parameters)},
    {.name = "strict", .kind = FIELD_BOOL, .no_default = true, TOOL_AT(strict)},
};

static const struct field tool_row = {
    .name = "tools", .members = tool_rows, .member_count = ARRAY_LEN(tool_rows)};

static const char *const included[] = {"message.output_text.logprobs",
                                       "reasoning.encrypted_content"};

static const struct field rows[] = {
    {.name = "input",
     .kind = FIELD_ANY,
     .required = true,
     .schema = responses_input_schema,
     AT(input)},
    STRING(instructions, 0, CONVERSATION_TEXT_BYTES_MAX),
    {.name = "max_output_tokens",
     .kind = FIELD_INT,
     .int_min = 1,
     .int_max = INT32_MAX,
     .no_default = true,
     AT(chat.sampling.max_tokens)},
    {.name = "top_logprobs",
     .kind = FIELD_INT,
     .int_max = ENGINE_LOGPROBS_MAX,
     .no_default = true,
     AT(chat.top_logprobs)},
    {.name = "include",
     .kind = FIELD_ANY,
     .schema = "\"type\":[\"array\",\"null\"],\"items\":{\"enum\":["
               "\"message.output_text.logprobs\",\"reasoning.encrypted_content\"]}",
     AT(include)},
    {.name = "tools",
     .kind = FIELD_OBJECTS,
     .int_max = CONVERSATION_TOOLS_MAX,
     .members = tool_rows,
     .member_count = ARRAY_LEN(tool_rows),
     AT(tools)},
    {.name = "tool_choice",
     .kind = FIELD_ANY,
     .schema = "\"type\":[\"string\",\"object\",\"null\"]",
     AT(tool_choice)},
    CHAT_BOOL(parallel_tool_calls),
    {.name = "text",
     .kind = FIELD_OBJECT,
     .members = text_rows,
     .member_count = ARRAY_LEN(text_rows)},
    {.name = "reasoning",
     .kind = FIELD_OBJECT,
     .members = reasoning_rows,
     .member_count = ARRAY_LEN(reasoning_rows)},
    {.name = "stream_options",
     .kind = FIELD_OBJECT,
     .members = stream_rows,
     .member_count = ARRAY_LEN(stream_rows)},
    {.name = "truncation", .kind = FIELD_CHOICE, .choices = "disabled", AT(truncation)},
    {.name = "metadata", .kind = FIELD_ANY, .schema = METADATA_SCHEMA, AT(metadata)},
    IGNORED(store),          /* the answer says that it is not */
    IGNORED(max_tool_calls), /* of tools that the server would call */
    /* of vLLM, as in a chat */
    CHAT_BOOL(add_special_tokens),
    CHAT_BOOL(include_reasoning),
    {.name = "chat_template_kwargs",
     .kind = FIELD_MAP,
     .int_max = CONVERSATION_KWARGS_MAX,
     AT(chat.conversation.chat_template_kwargs)},
    UNSUPPORTED(chat_template, FIELD_STRING, 0),
    REFUSED(previous_response_id, RESPONSES_STATELESS),
    REFUSED(conversation, RESPONSES_STATELESS),
    REFUSED(prompt, "this server keeps no prompts: send it as instructions and input"),
    UNSUPPORTED(background, FIELD_BOOL, 0),
    UNSUPPORTED(n, FIELD_INT, 1),
    UNSUPPORTED(return_token_ids, FIELD_BOOL, 0),
    REFUSED(prompt_logprobs, "leave it out"),
    REFUSED(logprobs, "say include and top_logprobs"),
    REFUSED(messages, "say input"),
    REFUSED(max_tokens, "say max_output_tokens"),
    REFUSED(max_completion_tokens, "say max_output_tokens"),
    REFUSED(response_format, "say text.format"),
    REFUSED(reasoning_effort, "say reasoning.effort"),
};

struct field_set responses_fields(int32_t vocab)
{
    return (struct field_set){
        .parts = {{rows, ARRAY_LEN(rows), 0},
                  sampling_rows_of_one(offsetof(struct raw, chat.sampling))},
        .vocab = vocab,
    };
}

static struct raw defaults_of(const struct generation_defaults *d)
{
    struct raw raw = {.chat = chat_defaults(d)};
    raw.chat.sampling.format.name = "text.format";
    return raw;
}

void responses_schema(const struct completion_rules *rules, struct buf *out)
{
    const struct field_set set = responses_fields(rules->vocab);
    const struct raw raw = defaults_of(&rules->defaults);
    field_schema(&set, &raw, out);
}

/* ---- what rows cannot say ---- */

static bool is_string(const struct jdoc *v, const char *text)
{
    return v && jdoc_type(v) == JDOC_STRING && jdoc_string_len(v) == strlen(text) &&
           strcmp(jdoc_string(v), text) == 0;
}

static enum status check_include(struct raw *raw, struct api_error *e)
{
    const struct jdoc *v = raw->include;
    char shown[80];
    if (v && jdoc_type(v) != JDOC_ARRAY)
        return field_wrong_type("include", v, "a list", e);
    for (size_t i = 0; v && i < jdoc_size(v); i++) {
        const struct jdoc *word = jdoc_at(v, i);
        if (is_string(word, included[0]))
            raw->chat.logprobs = true;
        else if (!is_string(word, included[1]))
            return api_error_field(e, "include", "include[%zu] must be %s or %s, got %s", i,
                                   included[0], included[1], field_text(word, shown, sizeof shown));
    }
    if (raw->chat.top_logprobs > 0 && !raw->chat.logprobs)
        return api_error_field(e, "top_logprobs", "top_logprobs needs \"include\": [\"%s\"]",
                               included[0]);
    return OK;
}

static enum status check_metadata(const struct jdoc *v, struct api_error *e)
{
    const char *key;
    const struct jdoc *value;
    if (!v)
        return OK;
    if (jdoc_type(v) != JDOC_OBJECT)
        return field_wrong_type("metadata", v, "an object of strings", e);
    if (jdoc_size(v) > RESPONSES_METADATA_MAX)
        return api_error_field(e, "metadata", "metadata may hold at most %d entries, got %zu",
                               RESPONSES_METADATA_MAX, jdoc_size(v));
    for (void *i = jdoc_iter(v, NULL, &key, &value); i; i = jdoc_iter(v, i, &key, &value)) {
        size_t count = utf8_count(key, strlen(key));
        if (count > RESPONSES_METADATA_KEY_MAX)
            return api_error_field(e, "metadata",
                                   "metadata: a key may have at most %d characters, got %zu",
                                   RESPONSES_METADATA_KEY_MAX, count);
        if (jdoc_type(value) != JDOC_STRING)
            return field_wrong_type("metadata", value, "an object of strings", e);
        count = utf8_count(jdoc_string(value), jdoc_string_len(value));
        if (count > RESPONSES_METADATA_VALUE_MAX)
            return api_error_field(e, "metadata",
                                   "metadata: a value may have at most %d characters, got %zu",
                                   RESPONSES_METADATA_VALUE_MAX, count);
    }
    return OK;
}

static enum status check(struct raw *raw, struct api_error *e)
{
    const struct sampling *s = &raw->chat.sampling;
    enum status st = OK;
    TRY(check_include(raw, e));
    TRY(check_metadata(raw->metadata, e));
    if (s->format.type.bytes && field_string_is(&s->format.type, "json_schema") &&
        raw->format_name.len == 0)
        return api_error_field(e, "text.format.name", "text.format.name is missing");
    if (s->max_tokens > 0 && s->min_tokens > s->max_tokens)
        st = api_error_field(e, "min_tokens",
                             "min_tokens must be at most max_output_tokens (%lld), got %lld",
                             (long long)s->max_tokens, (long long)s->min_tokens);
out:
    return st;
}

/* ---- as a chat has it ---- */

/* {"type":"function","name":...} to {"type":"function","function":{"name":...}} */
static void write_tool(const struct jdoc *tool, struct buf *out)
{
    const char *key, *separator = "";
    const struct jdoc *value;
    buf_puts(out, "{\"type\":\"function\",\"function\":{");
    for (void *i = jdoc_iter(tool, NULL, &key, &value); i; i = jdoc_iter(tool, i, &key, &value)) {
        if (strcmp(key, "type") == 0 || jdoc_type(value) == JDOC_NULL)
            continue;
        buf_puts(out, separator);
        buf_json(out, key, strlen(key));
        buf_puts(out, ":");
        jdoc_write(value, out);
        separator = ",";
    }
    buf_puts(out, "}}");
}

static enum status write_choice(const struct jdoc *choice, struct buf *out, struct api_error *e)
{
    char shown[80];
    if (!choice || jdoc_type(choice) == JDOC_STRING) {
        if (choice)
            jdoc_write(choice, out);
        else
            buf_puts(out, "null");
        return OK;
    }
    if (jdoc_type(choice) != JDOC_OBJECT)
        return field_wrong_type("tool_choice", choice, "a string or an object", e);
    const struct jdoc *type = jdoc_get_value(choice, "type"),
                      *name = jdoc_get_value(choice, "name");
    if (!is_string(type, "function"))
        return api_error_field(e, "tool_choice", "tool_choice.type must be \"function\", got %s",
                               type ? field_text(type, shown, sizeof shown) : "nothing");
    if (!name || jdoc_type(name) != JDOC_STRING || jdoc_string_len(name) == 0)
        return api_error_field(e, "tool_choice",
                               "tool_choice.name must be the name of a tool, got %s",
                               name ? field_text(name, shown, sizeof shown) : "nothing");
    buf_puts(out, "{\"type\":\"function\",\"function\":{\"name\":");
    jdoc_write(name, out);
    buf_puts(out, "}}");
    return OK;
}

/* Of the tools that there are elsewhere, those that a client calls. */
static enum status check_tool_type(const struct jdoc *tool, size_t i, struct api_error *e)
{
    char shown[80];
    const struct jdoc *type = jdoc_get_value(tool, "type");
    if (!type || jdoc_type(type) != JDOC_STRING || is_string(type, "function"))
        return OK; /* rows say the rest */
    const enum status st = api_error_field(
        e, "type",
        "type must be \"function\", got %s: this server has no tools of its own, only "
        "functions of the client can be called",
        field_text(type, shown, sizeof shown));
    field_prefix(e, "tools", i);
    return st;
}

/* Tools and choice into q->own_tools, of which the values are. */
static enum status convert_tools(struct raw *raw, struct completion_request *q, struct api_error *e)
{
    enum status st = OK;
    struct tool tool;
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
    TRY(write_choice(raw->tool_choice, &text, e));
    buf_puts(&text, "}");
    st = chat_take_tools(&text, q, &raw->chat, e);
out:
    buf_free(&text);
    return st;
}

/* ---- what the answer repeats ---- */

/* The fewest digits that read back as the same; a model's own defaults are floats. */
static void write_number(const char *key, double x, struct buf *out)
{
    const bool is_float = (double)(float)x == x;
    char text[32];
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, x);
        if (strtod(text, NULL) == x || (is_float && strtof(text, NULL) == (float)x))
            break;
    }
    buf_printf(out, ",\"%s\":%s", key, text);
}

/* v NULL: what is said where the request says nothing. */
static void write_value(const char *key, const struct jdoc *v, const char *nothing, struct buf *out)
{
    buf_printf(out, ",\"%s\":", key);
    if (v)
        jdoc_write(v, out);
    else
        buf_puts(out, nothing);
}

/* An object's members of these names: what nobody reads is not worth saying again. */
static void write_known(const struct jdoc *v, const char *const names[], struct buf *out)
{
    const char *separator = "";
    buf_puts(out, "{");
    for (size_t i = 0; names[i]; i++) {
        const struct jdoc *value = jdoc_get(v, names[i]);
        if (!value)
            continue;
        buf_printf(out, "%s\"%s\":", separator, names[i]);
        jdoc_write(value, out);
        separator = ",";
    }
    buf_puts(out, "}");
}

static void write_tools_again(const struct raw *raw, struct buf *out)
{
    static const char *const tool[] = {"type", "name", "description", "parameters", "strict", NULL};
    static const char *const choice[] = {"type", "name", NULL};
    buf_puts(out, ",\"tools\":[");
    for (size_t i = 0; raw->tools && i < jdoc_size(raw->tools); i++) {
        buf_puts(out, i ? "," : "");
        write_known(jdoc_at(raw->tools, i), tool, out);
    }
    buf_puts(out, "],\"tool_choice\":");
    if (raw->tool_choice && jdoc_type(raw->tool_choice) == JDOC_OBJECT)
        write_known(raw->tool_choice, choice, out);
    else if (raw->tool_choice)
        jdoc_write(raw->tool_choice, out);
    else
        buf_puts(out, "\"auto\"");
}

static void write_repeated(const struct raw *raw, const struct jdoc *doc, struct buf *out)
{
    static const char *const format[] = {"type", "name", "description", "schema", "strict", NULL};
    const struct jdoc *text = jdoc_get_value(doc, "text"),
                      *reasoning = jdoc_get_value(doc, "reasoning");
    const struct sampling *s = &raw->chat.sampling;
    buf_init(out, REPEATED_BYTES_MAX);
    buf_puts(out, ",\"error\":null,\"background\":false,\"previous_response_id\":null,"
                  "\"store\":false,\"truncation\":\"disabled\",\"user\":null");
    write_value("instructions", jdoc_get_value(doc, "instructions"), "null", out);
    write_value("metadata", raw->metadata, "{}", out);
    write_value("max_output_tokens", jdoc_get_value(doc, "max_output_tokens"), "null", out);
    write_number("temperature", s->temperature, out);
    write_number("top_p", s->top_p, out);
    buf_printf(out, ",\"top_logprobs\":%lld,\"parallel_tool_calls\":%s",
               raw->chat.top_logprobs > 0 ? (long long)raw->chat.top_logprobs : 0,
               raw->chat.parallel_tool_calls ? "true" : "false");
    write_tools_again(raw, out);
    buf_puts(out, ",\"text\":{\"format\":");
    if (text && jdoc_get_value(text, "format"))
        write_known(jdoc_get_value(text, "format"), format, out);
    else
        buf_puts(out, "{\"type\":\"text\"}");
    buf_puts(out, "},\"reasoning\":{\"summary\":null");
    write_value("effort", reasoning ? jdoc_get_value(reasoning, "effort") : NULL, "null", out);
    buf_puts(out, "}");
}

/* ---- the request ---- */

/* "tools[0].function" of a chat is "tools[0]" here. */
static void forget_function(char *text)
{
    static const char member[] = ".function";
    char *end = strncmp(text, "tools[", 6) == 0 ? strchr(text, ']') : NULL;
    if (end && strncmp(end + 1, member, sizeof member - 1) == 0)
        memmove(end + 1, end + sizeof member, strlen(end + sizeof member) + 1);
}

static enum status make(void *values, const struct completion_rules *rules, struct chat_request *r,
                        struct api_error *e)
{
    enum status st = OK;
    struct raw *raw = values;
    struct completion_request *q = &r->completion;
    struct chat_input in = {.messages = NULL};
    TRY(check(raw, e));
    TRY(convert_tools(raw, q, e));
    TRY(responses_input_read(raw->input, &raw->instructions, &in, &q->unknown, e));
    write_repeated(raw, q->doc, &q->repeated);
    if (q->repeated.failed) {
        st = ERR_NOMEM;
        goto out;
    }
    raw->chat.conversation.messages = in.messages;
    st = chat_make(&raw->chat, rules, r, e);
    if (st == ERR_INPUT) {
        chat_input_blame(&in, "input", e);
        forget_function(e->param);
        forget_function(e->message);
    }
out:
    chat_input_free(&in);
    return st;
}

enum status responses_parse(const char *text, size_t n, const struct completion_rules *rules,
                            struct chat_request *out, struct api_error *e)
{
    static const struct chat_form form = {"input", false, responses_fields, make};
    struct raw raw = defaults_of(&rules->defaults);
    return chat_parse_form(&form, &raw, text, n, rules, out, e);
}
