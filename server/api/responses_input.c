/* DESIGN: items are checked by rows, and written as the pieces of messages that chat_input.h puts
 * together. What conversation.c would refuse in words of its own is refused here in the client's.
 */
#include "server/api/responses_input.h"

#include <stdio.h>
#include <string.h>

#define AT(member) .offset = offsetof(struct item, member)
#include "server/api/field_row.h"

#define DIGITS_OF(number) #number
#define DIGITS(macro) DIGITS_OF(macro)

/* ---- tables ---- */

struct item {
    struct field_string type, role, call_id, name, arguments;
    const struct jdoc *content, *output, *summary, *encrypted_content;
};

/* Of all types of items; which of them an item needs is checked by its type. */
static const struct field item_rows[] = {
    {.name = "type",
     .kind = FIELD_CHOICE,
     .choices = "message|function_call|function_call_output|reasoning",
     AT(type)},
    {.name = "role", .kind = FIELD_CHOICE, .choices = "user|system|developer|assistant", AT(role)},
    {.name = "content", .kind = FIELD_ANY, AT(content)},
    STRING(call_id, 1, CONVERSATION_NAME_BYTES_MAX),
    STRING(name, 1, CONVERSATION_NAME_BYTES_MAX),
    STRING(arguments, 0, CONVERSATION_TEXT_BYTES_MAX),
    {.name = "output", .kind = FIELD_ANY, AT(output)},
    {.name = "summary", .kind = FIELD_ANY, AT(summary)},
    {.name = "encrypted_content", .kind = FIELD_ANY, AT(encrypted_content)},
    IGNORED(id),
    IGNORED(status),
    IGNORED(phase),
};

static const struct field item_row = {
    .name = "input", .members = item_rows, .member_count = ARRAY_LEN(item_rows)};

struct part {
    struct field_string type;
    const struct jdoc *text, *refusal;
};

#undef AT
#define AT(member) .offset = offsetof(struct part, member)

static const struct field part_rows[] = {
    {.name = "type",
     .kind = FIELD_STRING,
     .int_max = CONVERSATION_NAME_BYTES_MAX,
     .required = true,
     AT(type)},
    {.name = "text", .kind = FIELD_ANY, AT(text)},
    {.name = "refusal", .kind = FIELD_ANY, AT(refusal)},
    IGNORED(annotations),
    IGNORED(logprobs),
    IGNORED(image_url),
    IGNORED(detail),
    IGNORED(file_id),
    IGNORED(file_url),
    IGNORED(file_data),
    IGNORED(filename),
    IGNORED(input_audio),
};

/* A member that is made of parts, and what types they may have. */
struct place {
    const char *field, *wanted;
    const char *types[3];
    bool list; /* a text will not do */
};
static const struct place content_place = {"content",
                                           "\"input_text\", \"output_text\" or \"refusal\"",
                                           {"input_text", "output_text", "refusal"},
                                           false};
static const struct place output_place = {
    "output", "\"input_text\"", {"input_text", "output_text", NULL}, false};
static const struct place thought_place = {
    "content", "\"reasoning_text\"", {"reasoning_text", NULL, NULL}, true};
static const struct place summary_place = {
    "summary", "\"summary_text\"", {"summary_text", NULL, NULL}, true};

/* What the schema is made of. */
#define NAME_BYTES DIGITS(CONVERSATION_NAME_BYTES_MAX)
#define PARTS DIGITS(CONVERSATION_PARTS_MAX)
#define ITEMS DIGITS(CONVERSATION_MESSAGES_MAX)
#define A_TEXT "{\"type\":\"string\"}"
#define A_NAME "{\"type\":\"string\",\"minLength\":1,\"maxLength\":" NAME_BYTES "}"
#define AN_ITEM(type) "{\"type\":\"object\",\"properties\":{\"type\":" type
#define A_PART(types, member)                                                                      \
    AN_ITEM("{\"enum\":[" types "]}")                                                              \
    ",\"" member "\":" A_TEXT "},\"required\":[\"type\",\"" member "\"]}"
#define OR_NULL(schema) "{\"anyOf\":[{\"type\":\"null\"}," schema "]}"
#define A_LIST(part) "{\"type\":\"array\",\"maxItems\":" PARTS ",\"items\":" part "}"
#define A_TEXT_PART A_PART("\"input_text\",\"output_text\"", "text")
#define A_REFUSAL A_PART("\"refusal\"", "refusal")
#define A_SUMMARY A_PART("\"summary_text\"", "text")
#define A_THOUGHT A_PART("\"reasoning_text\"", "text")
#define A_CONTENT_PART "{\"anyOf\":[" A_TEXT_PART "," A_REFUSAL "]}"
#define A_CONTENT "{\"anyOf\":[" A_TEXT "," A_LIST(A_CONTENT_PART) "]}"
#define AN_OUTPUT "{\"anyOf\":[" A_TEXT "," A_LIST(A_TEXT_PART) "]}"
#define A_ROLE "{\"enum\":[\"user\",\"system\",\"developer\",\"assistant\"]}"
#define A_MESSAGE                                                                                  \
    AN_ITEM("{\"enum\":[\"message\",null]}")                                                       \
    ",\"role\":" A_ROLE ",\"content\":" A_CONTENT "},\"required\":[\"role\",\"content\"]}"
#define A_CALL                                                                                     \
    AN_ITEM("{\"const\":\"function_call\"}")                                                       \
    ",\"call_id\":" A_NAME ",\"name\":" A_NAME ",\"arguments\":" A_TEXT "},"                       \
    "\"required\":[\"type\",\"call_id\",\"name\",\"arguments\"]}"
#define A_RESULT                                                                                   \
    AN_ITEM("{\"const\":\"function_call_output\"}")                                                \
    ",\"call_id\":" A_NAME ",\"output\":" AN_OUTPUT "},"                                           \
    "\"required\":[\"type\",\"call_id\",\"output\"]}"
#define A_REASONING                                                                                \
    AN_ITEM("{\"const\":\"reasoning\"}")                                                           \
    ",\"summary\":" OR_NULL(A_LIST(A_SUMMARY)) ",\"content\":" OR_NULL(                            \
        A_LIST(A_THOUGHT)) ",\"encrypted_content\":{\"type\":[\"string\",\"null\"]}},"             \
                           "\"required\":[\"type\"]}"

const char responses_input_schema[] =
    "\"anyOf\":[" A_TEXT ",{\"type\":\"array\",\"minItems\":1,\"maxItems\":" ITEMS
    ",\"items\":{\"anyOf\":[" A_MESSAGE "," A_CALL "," A_RESULT "," A_REASONING "]}}]";

/* ---- parts ---- */

static bool goes_in(const struct place *p, const struct field_string *type)
{
    for (size_t i = 0; i < ARRAY_LEN(p->types) && p->types[i]; i++)
        if (field_string_is(type, p->types[i]))
            return true;
    return false;
}

static enum status read_part(const struct place *p, const struct jdoc *parts, size_t i,
                             struct buf *text, struct field_unknown *unknown, struct api_error *e)
{
    const struct field row = {
        .name = p->field, .members = part_rows, .member_count = ARRAY_LEN(part_rows)};
    struct part part = {.text = NULL};
    char name[64], shown[80];
    enum status st = OK;
    if (jdoc_type(jdoc_at(parts, i)) != JDOC_OBJECT) {
        snprintf(name, sizeof name, "%s[%zu]", p->field, i);
        return field_wrong_type(name, jdoc_at(parts, i), "an object", e);
    }
    st = field_apply_item(&row, parts, i, &part, unknown, e);
    if (st != OK)
        return st;
    const bool refusal = field_string_is(&part.type, "refusal");
    const struct jdoc *v = refusal ? part.refusal : part.text;
    if (!goes_in(p, &part.type)) {
        st = api_error_field(e, "type",
                             "type must be %s, got \"%.40s\": this server reads text only",
                             p->wanted, part.type.bytes);
    } else if (!v || jdoc_type(v) != JDOC_STRING) {
        const char *member = refusal ? "refusal" : "text";
        st = api_error_field(e, member, "%s must be a string, got %s", member,
                             v ? field_text(v, shown, sizeof shown) : "nothing");
    } else {
        buf_puts(text, i ? "\n" : "");
        buf_add(text, jdoc_string(v), jdoc_string_len(v));
    }
    if (st != OK)
        field_prefix(e, p->field, i);
    return st;
}

/* A text, or the texts of the parts, a line each, as in a chat. */
static enum status read_text(const struct place *p, const struct jdoc *v, struct buf *text,
                             struct field_unknown *unknown, struct api_error *e)
{
    enum status st = OK;
    if (!v)
        return api_error_field(e, p->field, "%s is missing", p->field);
    if (jdoc_type(v) == JDOC_STRING && !p->list) {
        buf_add(text, jdoc_string(v), jdoc_string_len(v));
        return OK;
    }
    if (jdoc_type(v) != JDOC_ARRAY)
        return field_wrong_type(p->field, v,
                                p->list ? "a list of parts" : "a string or a list of parts", e);
    if (jdoc_size(v) > CONVERSATION_PARTS_MAX)
        return api_error_field(e, p->field, "%s may hold at most %d parts, got %zu", p->field,
                               CONVERSATION_PARTS_MAX, jdoc_size(v));
    for (size_t i = 0; i < jdoc_size(v) && st == OK; i++)
        st = read_part(p, v, i, text, unknown, e);
    return st;
}

/* ---- messages ---- */

struct writer {
    struct chat_input_writer out; /* an open message of the system is the instructions: those of the
                                   * request, and of the items at the beginning */
    bool any;                     /* an item said something */
    bool answered; /* the assistant's message has a content or calls: reasoning would belong to the
                    * next */
    struct field_unknown *unknown;
    struct api_error *e;
    int32_t item; /* that is being read */
};

/* The assistant's message, that items are being added to. */
static void open_answer(struct writer *w)
{
    if (!chat_input_open(&w->out, "assistant", w->item))
        return;
    w->any = true;
    w->answered = false;
}

/* Each is a paragraph. */
static enum status add_instructions(struct writer *w, const struct item *item)
{
    struct buf text;
    enum status st = OK;
    buf_init(&text, CHAT_INPUT_BYTES_MAX);
    TRY(read_text(&content_place, item->content, &text, w->unknown, w->e));
    buf_puts(&w->out.content, text.len > 0 ? "\n\n" : "");
    buf_add(&w->out.content, text.data, text.len);
    w->out.content.failed = w->out.content.failed || text.failed;
out:
    buf_free(&text);
    return st;
}

static enum status add_message(struct writer *w, const struct item *item)
{
    struct chat_input_writer *out = &w->out;
    enum status st = OK;
    if (!item->role.bytes)
        return api_error_field(w->e, "role", "role is missing");
    if (field_string_is(&item->role, "assistant")) {
        if (out->said)
            chat_input_close(out);
        open_answer(w);
        w->answered = out->said = true;
        return read_text(&content_place, item->content, &out->content, w->unknown, w->e);
    }
    w->any = true;
    if (out->role && strcmp(out->role, "system") == 0 && !field_string_is(&item->role, "user"))
        return add_instructions(w, item);
    chat_input_close(out);
    chat_input_open(out, item->role.bytes, w->item);
    TRY(read_text(&content_place, item->content, &out->content, w->unknown, w->e));
    chat_input_close(out);
out:
    return st;
}

static enum status check_arguments(const struct field_string *s, struct api_error *e)
{
    struct jdoc *v = NULL;
    if (!s->bytes)
        return api_error_field(e, "arguments", "arguments is missing");
    if (s->len == 0)
        return OK;
    const enum status st = conversation_arguments("arguments", s->bytes, s->len, &v, e);
    if (st == OK)
        jdoc_close(v);
    return st;
}

static enum status add_call(struct writer *w, const struct item *item)
{
    enum status st = OK;
    if (!item->call_id.bytes || !item->name.bytes) {
        const char *name = item->call_id.bytes ? "name" : "call_id";
        return api_error_field(w->e, name, "%s is missing", name);
    }
    TRY(check_arguments(&item->arguments, w->e));
    open_answer(w);
    w->answered = true;
    TRY(chat_input_begin_call(&w->out, &item->call_id, &item->name, "function_call", w->e));
    buf_json(&w->out.call_list, item->arguments.bytes, item->arguments.len);
    chat_input_end_call(&w->out);
out:
    return st;
}

static enum status add_result(struct writer *w, const struct item *item)
{
    enum status st = OK;
    struct buf text;
    if (!item->call_id.bytes)
        return api_error_field(w->e, "call_id", "call_id is missing");
    buf_init(&text, CHAT_INPUT_BYTES_MAX);
    TRY(read_text(&output_place, item->output, &text, w->unknown, w->e));
    chat_input_add_result(&w->out, &item->call_id, &text, w->item);
    w->any = true;
out:
    buf_free(&text);
    return st;
}

/* What was thought; where only a summary of it is left, that. What another server has encrypted
 * says nothing here. */
static enum status add_reasoning(struct writer *w, const struct item *item)
{
    enum status st = OK;
    struct buf text;
    if (item->encrypted_content && jdoc_type(item->encrypted_content) != JDOC_STRING)
        return field_wrong_type("encrypted_content", item->encrypted_content, "a string", w->e);
    buf_init(&text, CHAT_INPUT_BYTES_MAX);
    if (item->summary)
        TRY(read_text(&summary_place, item->summary, &text, w->unknown, w->e));
    if (item->content) {
        const size_t summary = text.len;
        TRY(read_text(&thought_place, item->content, &text, w->unknown, w->e));
        if (text.len > summary)
            buf_consume(&text, summary);
    }
    if (w->answered)
        chat_input_close(&w->out);
    if (text.len > 0) {
        open_answer(w);
        chat_input_add_reasoning(&w->out, text.data, text.len);
    }
    w->out.reasoning.failed = w->out.reasoning.failed || text.failed;
out:
    buf_free(&text);
    return st;
}

static bool is_reference(const struct jdoc *type)
{
    return type && jdoc_type(type) == JDOC_STRING &&
           strcmp(jdoc_string(type), "item_reference") == 0;
}

static enum status add_item(struct writer *w, const struct jdoc *input, size_t i)
{
    static const struct {
        const char *type;
        enum status (*add)(struct writer *w, const struct item *item);
    } types[] = {
        {"message", add_message},
        {"function_call", add_call},
        {"function_call_output", add_result},
        {"reasoning", add_reasoning},
    };
    struct item item = {.content = NULL};
    size_t type = 0;
    enum status st = OK;
    if (jdoc_type(jdoc_at(input, i)) != JDOC_OBJECT) {
        char name[32];
        snprintf(name, sizeof name, "input[%zu]", i);
        return field_wrong_type(name, jdoc_at(input, i), "an object", w->e);
    }
    if (is_reference(jdoc_get_value(jdoc_at(input, i), "type"))) {
        st = api_error_field(w->e, "type", "type must not be item_reference: %s",
                             RESPONSES_STATELESS);
        field_prefix(w->e, "input", i);
        return st;
    }
    st = field_apply_item(&item_row, input, i, &item, w->unknown, w->e);
    if (st != OK)
        return st;
    while (item.type.bytes && !field_string_is(&item.type, types[type].type))
        type++;
    w->item = (int32_t)i;
    st = types[type].add(w, &item);
    if (st == ERR_INPUT)
        field_prefix(w->e, "input", i);
    return st;
}

static enum status add_items(struct writer *w, const struct jdoc *input)
{
    enum status st = OK;
    if (jdoc_type(input) == JDOC_STRING) {
        chat_input_open(&w->out, "user", CHAT_INPUT_NO_PIECE);
        chat_input_add_text(&w->out, jdoc_string(input), jdoc_string_len(input));
        return OK;
    }
    if (jdoc_type(input) != JDOC_ARRAY)
        return field_wrong_type("input", input, "a string or a list of items", w->e);
    if (jdoc_size(input) > RESPONSES_ITEMS_MAX)
        return api_error_field(w->e, "input", "input may have at most %d items, got %zu",
                               RESPONSES_ITEMS_MAX, jdoc_size(input));
    for (size_t i = 0; i < jdoc_size(input); i++)
        TRY(add_item(w, input, i));
    if (!w->any)
        st = api_error_field(w->e, "input", "input: no message is in it");
out:
    return st;
}

enum status responses_input_read(const struct jdoc *input, const struct field_string *instructions,
                                 struct chat_input *out, struct field_unknown *unknown,
                                 struct api_error *e)
{
    struct writer w = {.unknown = unknown, .e = e};
    enum status st = OK;
    chat_input_init(&w.out);
    if (instructions->bytes && instructions->len > 0) {
        chat_input_open(&w.out, "system", CHAT_INPUT_NO_PIECE);
        chat_input_add_text(&w.out, instructions->bytes, instructions->len);
    }
    TRY(add_items(&w, input));
    st = chat_input_finish(&w.out, "input", out, e);
out:
    chat_input_clear(&w.out);
    return st;
}
