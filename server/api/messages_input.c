/* DESIGN: blocks are checked by rows, and written as the pieces of messages that chat_input.h puts
 * together. The shapes are those of https://docs.claude.com/en/api/messages. */
#include "server/api/messages_input.h"

#include <stdio.h>
#include <string.h>

#define AT(member) .offset = offsetof(struct block, member)
#include "server/api/field_row.h"

#define DIGITS_OF(number) #number
#define DIGITS(macro) DIGITS_OF(macro)

/* How a line begins that Claude Code writes at the beginning of `system`, and that is another in
 * each request, so that no prefix of a prompt would ever be found again. It is not meant for the
 * model. vLLM drops it, too (its pull request 36829). */
#define BILLING "x-anthropic-billing-header:"

/* ---- tables ---- */

struct message {
    struct field_string role;
    const struct jdoc *content;
};

static const struct field message_rows[] = {
    {.name = "role",
     .kind = FIELD_CHOICE,
     .choices = "user|assistant|system",
     .required = true,
     .offset = offsetof(struct message, role)},
    {.name = "content",
     .kind = FIELD_ANY,
     .required = true,
     .offset = offsetof(struct message, content)},
};

static const struct field message_row = {
    .name = "messages", .members = message_rows, .member_count = ARRAY_LEN(message_rows)};

struct block {
    struct field_string type, text, thinking, id, name, tool_use_id;
    const struct jdoc *input, *content;
};

/* Of all types of blocks; which of them a block needs is checked by its type. */
static const struct field block_rows[] = {
    {.name = "type",
     .kind = FIELD_STRING,
     .int_max = CONVERSATION_NAME_BYTES_MAX,
     .required = true,
     AT(type)},
    STRING(text, 0, CONVERSATION_TEXT_BYTES_MAX),
    STRING(thinking, 0, CONVERSATION_TEXT_BYTES_MAX),
    STRING(id, 1, CONVERSATION_NAME_BYTES_MAX),
    STRING(name, 1, CONVERSATION_NAME_BYTES_MAX),
    STRING(tool_use_id, 1, CONVERSATION_NAME_BYTES_MAX),
    LIST(input, FIELD_MAP, INT32_MAX),
    {.name = "content", .kind = FIELD_ANY, AT(content)},
    IGNORED(cache_control), /* whatever has a prefix in common is found */
    IGNORED(citations),
    IGNORED(is_error), /* templates have no place for it; the content says it */
    IGNORED(signature),
    IGNORED(data), /* of redacted_thinking: nobody here can read it */
    IGNORED(caller),
    IGNORED(toolset_name),
};

/* What the schemas are made of. */
#define NAME_BYTES DIGITS(CONVERSATION_NAME_BYTES_MAX)
#define PARTS DIGITS(CONVERSATION_PARTS_MAX)
#define MESSAGES DIGITS(CONVERSATION_MESSAGES_MAX)
#define A_TEXT "{\"type\":\"string\"}"
#define A_NAME "{\"type\":\"string\",\"minLength\":1,\"maxLength\":" NAME_BYTES "}"
#define UNUSED(name) ",\"" name "\":{\"description\":\"accepted, without effect\"}"
#define A_BLOCK(type, unused)                                                                      \
    "{\"type\":\"object\",\"properties\":{\"type\":{\"const\":\"" type "\"}" UNUSED(unused)
#define A_TEXT_BLOCK                                                                               \
    A_BLOCK("text", "cache_control")                                                               \
    UNUSED("citations") ",\"text\":" A_TEXT "},\"required\":[\"type\",\"text\"]}"
#define A_THINKING_BLOCK                                                                           \
    A_BLOCK("thinking", "signature")                                                               \
    ",\"thinking\":" A_TEXT "},\"required\":[\"type\",\"thinking\"]}"
#define A_REDACTED_BLOCK A_BLOCK("redacted_thinking", "data") "},\"required\":[\"type\"]}"
#define A_CALL_BLOCK                                                                               \
    A_BLOCK("tool_use", "cache_control")                                                           \
    ",\"id\":" A_NAME ",\"name\":" A_NAME ",\"input\":{\"type\":\"object\"}},"                     \
    "\"required\":[\"type\",\"id\",\"name\",\"input\"]}"
#define A_LIST(block) "{\"type\":\"array\",\"maxItems\":" PARTS ",\"items\":" block "}"
#define A_RESULT_BLOCK                                                                             \
    A_BLOCK("tool_result", "cache_control")                                                        \
    UNUSED("is_error")                                                                             \
    ",\"tool_use_id\":" A_NAME ",\"content\":{\"anyOf\":[{\"type\":\"null\"}," A_TEXT              \
    "," A_LIST(A_TEXT_BLOCK) "]}},\"required\":[\"type\",\"tool_use_id\"]}"
#define ANY_OF(blocks) "{\"anyOf\":[" blocks "]}"
#define A_MESSAGE(role, block)                                                                     \
    "{\"type\":\"object\",\"properties\":{\"role\":{\"const\":\"" role "\"},\"content\":"          \
    "{\"anyOf\":[" A_TEXT "," A_LIST(block) "]}},\"required\":[\"role\",\"content\"]}"
#define OF_USER ANY_OF(A_TEXT_BLOCK "," A_RESULT_BLOCK)
#define OF_ASSISTANT ANY_OF(A_TEXT_BLOCK "," A_THINKING_BLOCK "," A_REDACTED_BLOCK "," A_CALL_BLOCK)
#define FROM_USER A_MESSAGE("user", OF_USER)
#define FROM_ASSISTANT A_MESSAGE("assistant", OF_ASSISTANT)
#define FROM_SYSTEM A_MESSAGE("system", A_TEXT_BLOCK)

const char messages_input_schema[] =
    "\"type\":\"array\",\"minItems\":1,\"maxItems\":" MESSAGES ",\"items\":{\"anyOf\":[" FROM_USER
    "," FROM_ASSISTANT "," FROM_SYSTEM "]}";
const char messages_input_system_schema[] =
    "\"anyOf\":[{\"type\":\"null\"}," A_TEXT "," A_LIST(A_TEXT_BLOCK) "]";

/* ---- blocks ---- */

struct writer {
    struct chat_input_writer out;
    struct field_unknown *unknown;
    struct api_error *e;
    int32_t message; /* that is being read */
};

/* Block i of a list, of any type. */
static enum status read_block(struct writer *w, const char *list, const struct jdoc *blocks,
                              size_t i, struct block *block)
{
    const struct field row = {
        .name = list, .members = block_rows, .member_count = ARRAY_LEN(block_rows)};
    char name[64];
    *block = (struct block){.content = NULL};
    if (jdoc_type(jdoc_at(blocks, i)) == JDOC_OBJECT)
        return field_apply_item(&row, blocks, i, block, w->unknown, w->e);
    snprintf(name, sizeof name, "%s[%zu]", list, i);
    return field_wrong_type(name, jdoc_at(blocks, i), "an object", w->e);
}

static enum status check_list(struct writer *w, const char *list, const struct jdoc *v)
{
    if (jdoc_type(v) != JDOC_ARRAY)
        return field_wrong_type(list, v, "a string or a list of blocks", w->e);
    if (jdoc_size(v) > CONVERSATION_PARTS_MAX)
        return api_error_field(w->e, list, "%s may hold at most %d blocks, got %zu", list,
                               CONVERSATION_PARTS_MAX, jdoc_size(v));
    return OK;
}

static enum status wrong_block(struct writer *w, const struct block *block, const char *wanted)
{
    return api_error_field(w->e, "type",
                           "type must be %s, got \"%.40s\": this server reads text only, and has "
                           "no tools of its own",
                           wanted, block->type.bytes);
}

static enum status missing(struct writer *w, const char *name)
{
    return api_error_field(w->e, name, "%s is missing", name);
}

/* The text without such a line. */
static struct field_string without_billing(const char *text, size_t n)
{
    const size_t begin = sizeof BILLING - 1;
    if (n < begin || memcmp(text, BILLING, begin) != 0)
        return (struct field_string){text, n};
    const char *end = memchr(text, '\n', n);
    const size_t skipped = end ? (size_t)(end + 1 - text) : n;
    return (struct field_string){text + skipped, n - skipped};
}

/* A text, or the texts of a list of blocks, a line each. is_system: of instructions. */
static enum status read_texts(struct writer *w, const char *list, bool is_system,
                              const struct jdoc *v, struct buf *text)
{
    enum status st = OK;
    struct block block;
    struct field_string says;
    bool said = false;
    if (jdoc_type(v) == JDOC_STRING) {
        says = (struct field_string){jdoc_string(v), jdoc_string_len(v)};
        if (is_system)
            says = without_billing(says.bytes, says.len);
        buf_add(text, says.bytes, says.len);
        return OK;
    }
    TRY(check_list(w, list, v));
    for (size_t i = 0; i < jdoc_size(v); i++) {
        TRY(read_block(w, list, v, i, &block));
        if (!field_string_is(&block.type, "text"))
            st = wrong_block(w, &block, "\"text\"");
        else if (!block.text.bytes)
            st = missing(w, "text");
        if (st != OK) {
            field_prefix(w->e, list, i);
            goto out;
        }
        says = is_system ? without_billing(block.text.bytes, block.text.len) : block.text;
        if (says.len == 0 && block.text.len > 0)
            continue;
        buf_puts(text, said ? "\n" : "");
        buf_add(text, says.bytes, says.len);
        said = true;
    }
out:
    return st;
}

/* ---- blocks of messages ---- */

static struct field_string bare_id(const struct field_string *id)
{
    static const char prefix[] = MESSAGES_INPUT_CALL_PREFIX;
    const size_t n = sizeof prefix - 1;
    if (id->len <= n || memcmp(id->bytes, prefix, n) != 0)
        return *id;
    return (struct field_string){id->bytes + n, id->len - n};
}

static enum status add_text(struct writer *w, const struct block *block)
{
    if (!block->text.bytes)
        return missing(w, "text");
    chat_input_add_text(&w->out, block->text.bytes, block->text.len);
    return OK;
}

static enum status add_thinking(struct writer *w, const struct block *block)
{
    if (!block->thinking.bytes)
        return missing(w, "thinking");
    if (block->thinking.len > 0)
        chat_input_add_reasoning(&w->out, block->thinking.bytes, block->thinking.len);
    return OK;
}

static enum status add_nothing(struct writer *w, const struct block *block)
{
    (void)w;
    (void)block;
    return OK;
}

static enum status add_call(struct writer *w, const struct block *block)
{
    enum status st = OK;
    if (!block->id.bytes || !block->name.bytes || !block->input)
        return missing(w, !block->id.bytes ? "id" : !block->name.bytes ? "name" : "input");
    const struct field_string id = bare_id(&block->id);
    TRY(chat_input_begin_call(&w->out, &id, &block->name, "tool_use", w->e));
    jdoc_write(block->input, &w->out.call_list);
    chat_input_end_call(&w->out);
out:
    return st;
}

static enum status add_result(struct writer *w, const struct block *block)
{
    enum status st = OK;
    struct buf text;
    if (!block->tool_use_id.bytes)
        return missing(w, "tool_use_id");
    const struct field_string id = bare_id(&block->tool_use_id);
    buf_init(&text, CHAT_INPUT_BYTES_MAX);
    if (block->content)
        TRY(read_texts(w, "content", false, block->content, &text));
    chat_input_add_result(&w->out, &id, &text, w->message);
out:
    buf_free(&text);
    return st;
}

struct kind {
    const char *type;
    enum status (*add)(struct writer *w, const struct block *block);
};

/* What the messages of each role are made of. */
static const struct role {
    const char *name, *wanted;
    struct kind kinds[4];
} roles[] = {
    {"user",
     "\"text\" or \"tool_result\"",
     {{"text", add_text}, {"tool_result", add_result}, {NULL, NULL}, {NULL, NULL}}},
    {"assistant",
     "\"text\", \"thinking\", \"redacted_thinking\" or \"tool_use\"",
     {{"text", add_text},
      {"thinking", add_thinking},
      {"redacted_thinking", add_nothing},
      {"tool_use", add_call}}},
    {"system", "\"text\"", {{"text", add_text}, {NULL, NULL}, {NULL, NULL}, {NULL, NULL}}},
};

static enum status add_block(struct writer *w, const struct role *role, const struct jdoc *blocks,
                             size_t i)
{
    struct block block;
    const struct kind *kind = role->kinds, *end = kind + ARRAY_LEN(role->kinds);
    enum status st = read_block(w, "content", blocks, i, &block);
    if (st != OK)
        return st;
    while (kind < end && kind->type && !field_string_is(&block.type, kind->type))
        kind++;
    if (kind == end || !kind->type) {
        st = wrong_block(w, &block, role->wanted);
    } else {
        if (kind->add != add_result)
            chat_input_open(&w->out, role->name, w->message);
        st = kind->add(w, &block);
    }
    if (st == ERR_INPUT)
        field_prefix(w->e, "content", i);
    return st;
}

/* ---- messages ---- */

static enum status add_content(struct writer *w, const struct role *role, const struct jdoc *v)
{
    enum status st = OK;
    if (jdoc_type(v) == JDOC_STRING) {
        chat_input_open(&w->out, role->name, w->message);
        chat_input_add_text(&w->out, jdoc_string(v), jdoc_string_len(v));
        return OK;
    }
    TRY(check_list(w, "content", v));
    if (jdoc_size(v) == 0)
        chat_input_open(&w->out, role->name, w->message);
    for (size_t i = 0; i < jdoc_size(v); i++)
        TRY(add_block(w, role, v, i));
out:
    return st;
}

static enum status add_message(struct writer *w, const struct jdoc *messages, size_t i)
{
    struct message m = {.content = NULL};
    const struct role *role = roles;
    char name[32];
    enum status st = OK;
    if (jdoc_type(jdoc_at(messages, i)) != JDOC_OBJECT) {
        snprintf(name, sizeof name, "messages[%zu]", i);
        return field_wrong_type(name, jdoc_at(messages, i), "an object", w->e);
    }
    st = field_apply_item(&message_row, messages, i, &m, w->unknown, w->e);
    if (st != OK)
        return st;
    while (!field_string_is(&m.role, role->name))
        role++;
    w->message = (int32_t)i;
    st = add_content(w, role, m.content);
    if (st == ERR_INPUT)
        field_prefix(w->e, "messages", i);
    return st;
}

static enum status add_system(struct writer *w, const struct jdoc *v)
{
    enum status st = OK;
    struct buf text;
    buf_init(&text, CHAT_INPUT_BYTES_MAX);
    TRY(read_texts(w, "system", true, v, &text));
    if (text.len > 0) {
        chat_input_open(&w->out, "system", CHAT_INPUT_NO_PIECE);
        chat_input_add_text(&w->out, text.data, text.len);
    }
    w->out.content.failed = w->out.content.failed || text.failed;
out:
    buf_free(&text);
    return st;
}

static enum status add_messages(struct writer *w, const struct jdoc *v)
{
    enum status st = OK;
    if (jdoc_type(v) != JDOC_ARRAY)
        return field_wrong_type("messages", v, "a list of messages", w->e);
    if (jdoc_size(v) == 0 || jdoc_size(v) > CONVERSATION_MESSAGES_MAX)
        return api_error_field(w->e, "messages", "messages must have 1 to %d entries, got %zu",
                               CONVERSATION_MESSAGES_MAX, jdoc_size(v));
    for (size_t i = 0; i < jdoc_size(v); i++)
        TRY(add_message(w, v, i));
out:
    return st;
}

/* Is the message at the end one to be continued? One that calls tools has come to its end. */
static enum status check_end(const struct writer *w, bool *goes_on)
{
    *goes_on = w->out.role && strcmp(w->out.role, "assistant") == 0;
    if (!*goes_on || w->out.calls == 0)
        return OK;
    return api_error_field(w->e, "messages",
                           "messages must not end with tool_use: what the tool gave comes next, as "
                           "a tool_result");
}

enum status messages_input_read(const struct jdoc *messages, const struct jdoc *system,
                                struct chat_input *out, bool *goes_on,
                                struct field_unknown *unknown, struct api_error *e)
{
    struct writer w = {.unknown = unknown, .e = e};
    enum status st = OK;
    chat_input_init(&w.out);
    if (system)
        TRY(add_system(&w, system));
    TRY(add_messages(&w, messages));
    TRY(check_end(&w, goes_on));
    st = chat_input_finish(&w.out, "messages", out, e);
out:
    chat_input_clear(&w.out);
    return st;
}

void messages_input_blame(struct api_error *e)
{
    if (strcmp(e->param, "continue_final_message") == 0)
        api_error_field(e, "messages",
                        "messages must not end with one of the assistant: the model's chat "
                        "template leaves out its end, so that it cannot be continued");
}
