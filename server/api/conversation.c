/* DESIGN: messages are checked by rows like any other field, and written once more as the object
 * that templates expect: texts instead of parts, but for thoughts where the template knows these as
 * parts alone, and tool calls with decoded arguments. Writing JSON to parse it again costs little
 * beside tokenizing, and spares a second kind of tree. What a template would drop without a word
 * (images, unknown roles) is refused here, but for thoughts, which many leave out on purpose.
 *
 * Where the last message is to be continued, its content ends with a mark that the rendered text is
 * cut at, as transformers does it: templates may trim what they are given. */
#include "server/api/conversation.h"

#include "server/api/content.h"

#include <stdio.h>
#include <string.h>

#define AT(member) .offset = offsetof(struct message, member)
#include "server/api/field_row.h"

/* The space shows whether a template trims the ends of contents. */
#define MARK "END_OF_MESSAGE_TO_CONTINUE "
#define DIGITS_OF(number) #number
#define DIGITS(macro) DIGITS_OF(macro)
#define VARS_BYTES_MAX ((size_t)64 << 20)
#define PARTS DIGITS(CONVERSATION_PARTS_MAX)
#define TEXT_PART                                                                                  \
    "{\"type\":\"object\",\"properties\":{\"type\":{\"const\":\"text\"},\"text\":{\"type\":"       \
    "\"string\"}},"                                                                                \
    "\"required\":[\"type\",\"text\"]}"

/* A request's own limits, and room for what decoded arguments add. */
static const struct jdoc_limits limits = {
    .bytes_max = VARS_BYTES_MAX, .depth_max = 160, .tokens_max = 600000, .nul = true};

/* ---- tables ---- */

struct message {
    struct field_string role, name, tool_call_id, reasoning, reasoning_content;
    const struct jdoc *content, *tool_calls;
    struct {
        size_t begin, end;
    } calls; /* those that are written */
};

struct tool_call {
    struct field_string id, type, name;
    const struct jdoc *arguments;
};

static const struct field function_rows[] = {
    {.name = "name",
     .kind = FIELD_STRING,
     .int_min = 1,
     .int_max = CONVERSATION_NAME_BYTES_MAX,
     .required = true,
     .offset = offsetof(struct tool_call, name)},
    {.name = "arguments",
     .kind = FIELD_ANY,
     .schema = "\"type\":[\"string\",\"object\",\"null\"]",
     .offset = offsetof(struct tool_call, arguments)},
};

static const struct field tool_call_rows[] = {
    {.name = "id",
     .kind = FIELD_STRING,
     .int_max = CONVERSATION_NAME_BYTES_MAX,
     .offset = offsetof(struct tool_call, id)},
    {.name = "type",
     .kind = FIELD_CHOICE,
     .choices = "function",
     .offset = offsetof(struct tool_call, type)},
    {.name = "function",
     .kind = FIELD_OBJECT,
     .required = true,
     .members = function_rows,
     .member_count = ARRAY_LEN(function_rows)},
};

const struct field conversation_message_rows[CONVERSATION_MESSAGE_ROWS] = {
    {.name = "role",
     .kind = FIELD_CHOICE,
     .choices = "system|developer|user|assistant|tool|function",
     .required = true,
     AT(role)},
    {.name = "content",
     .kind = FIELD_ANY,
     .schema =
         "\"anyOf\":[{\"type\":[\"string\",\"null\"]},{\"type\":\"array\",\"maxItems\":" PARTS
         ",\"items\":{\"anyOf\":[" TEXT_PART ",{\"type\":\"object\",\"properties\":{\"type\":{"
         "\"const\":\"thinking\"},\"thinking\":{\"anyOf\":[{\"type\":\"string\"},{\"type\":"
         "\"array\",\"maxItems\":" PARTS ",\"items\":" TEXT_PART "}]},\"closed\":{\"enum\":"
         "[true,null]}},\"required\":[\"type\",\"thinking\"]}]}}]",
     AT(content)},
    STRING(name, 0, CONVERSATION_NAME_BYTES_MAX),
    STRING(tool_call_id, 0, CONVERSATION_NAME_BYTES_MAX),
    {.name = "tool_calls",
     .kind = FIELD_OBJECTS,
     .int_max = CONVERSATION_TOOL_CALLS_MAX,
     .members = tool_call_rows,
     .member_count = ARRAY_LEN(tool_call_rows),
     AT(tool_calls)},
    STRING(reasoning, 0, CONVERSATION_TEXT_BYTES_MAX),
    STRING(reasoning_content, 0, CONVERSATION_TEXT_BYTES_MAX),
    UNSUPPORTED(function_call, FIELD_ANY, NAN),
    UNSUPPORTED(audio, FIELD_ANY, NAN),
    IGNORED(refusal),
    IGNORED(annotations),
};

struct tool {
    struct field_string type;
    const struct jdoc *function;
};

static const struct field tool_rows[] = {
    {.name = "type",
     .kind = FIELD_CHOICE,
     .choices = "function",
     .required = true,
     .offset = offsetof(struct tool, type)},
    {.name = "function",
     .kind = FIELD_MAP,
     .int_max = CONVERSATION_KWARGS_MAX,
     .required = true,
     .offset = offsetof(struct tool, function)},
};

static const struct field tool_row = {
    .name = "tools", .members = tool_rows, .member_count = ARRAY_LEN(tool_rows)};

static const struct field tool_call_row = {
    .name = "tool_calls", .members = tool_call_rows, .member_count = ARRAY_LEN(tool_call_rows)};

#undef AT
#define AT(member) .offset = offsetof(struct conversation_fields, member)

static const struct field rows[] = {
    BOOL(add_generation_prompt),
    BOOL(continue_final_message),
    {.name = "tools",
     .kind = FIELD_OBJECTS,
     .int_max = CONVERSATION_TOOLS_MAX,
     .members = tool_rows,
     .member_count = ARRAY_LEN(tool_rows),
     AT(tools)},
    {.name = "documents",
     .kind = FIELD_OBJECTS,
     .int_max = CONVERSATION_DOCUMENTS_MAX,
     AT(documents)},
    LIST(chat_template_kwargs, FIELD_MAP, CONVERSATION_KWARGS_MAX),
    STRING(reasoning_effort, 0, 64),
    UNSUPPORTED(chat_template, FIELD_STRING, 0),
    UNSUPPORTED(mm_processor_kwargs, FIELD_OBJECT, 0),
};

struct field_rows conversation_rows(size_t base)
{
    return (struct field_rows){rows, ARRAY_LEN(rows), base};
}

struct conversation_fields conversation_defaults(void)
{
    return (struct conversation_fields){.add_generation_prompt = true};
}

/* ---- one message ---- */

static void write_string(const char *key, const struct field_string *s, struct buf *out)
{
    if (!s->bytes)
        return;
    buf_printf(out, ",\"%s\":", key);
    buf_json(out, s->bytes, s->len);
}

static bool is_instruction(const struct message *m)
{
    return field_string_is(&m->role, "system") || field_string_is(&m->role, "developer");
}

static enum status read_content(const struct message *m, const struct conversation_fields *f,
                                struct content *content, struct field_unknown *unknown,
                                struct api_error *e)
{
    const bool assistant = field_string_is(&m->role, "assistant");
    const enum content_thoughts may = assistant ? CONTENT_THOUGHTS_LEADING
                                      : f->system_thoughts && is_instruction(m)
                                          ? CONTENT_THOUGHTS_ANYWHERE
                                          : CONTENT_THOUGHTS_NONE;
    if (!m->content)
        return assistant ? OK : api_error_field(e, "content", "content is missing");
    return content_read(m->content, may, content, unknown, e);
}

/* Members may repeat and integers be of any size where they have to be. */
enum status conversation_arguments(const char *name, const char *text, size_t n, struct jdoc **out,
                                   struct api_error *e)
{
    struct jdoc_limits repeats = jdoc_limits_request;
    repeats.repeats = true;
    const struct jdoc_limits *const all[] = {&jdoc_limits_request, &repeats, &jdoc_limits_call};
    struct err err = {""};
    enum status st = ERR_INPUT;
    for (size_t i = 0; i < ARRAY_LEN(all) && st == ERR_INPUT; i++)
        st = jdoc_parse(text, n, all[i], name, out, &err);
    if (st == ERR_INPUT)
        return api_error_field(e, name, "%s must be a JSON object: %.300s", name, err.text);
    if (st == OK && jdoc_type(*out) != JDOC_OBJECT) {
        st = field_wrong_type(name, *out, "a JSON object", e);
        jdoc_close(*out);
    }
    return st;
}

/* A string that holds a JSON object, as models write it, or the object itself. */
static enum status write_arguments(const struct jdoc *v, struct buf *out, struct api_error *e)
{
    static const char name[] = "function.arguments";
    struct jdoc *decoded = NULL;
    enum status st = OK;
    if (v && jdoc_type(v) == JDOC_STRING && jdoc_string_len(v) > 0) {
        st = conversation_arguments(name, jdoc_string(v), jdoc_string_len(v), &decoded, e);
        if (st != OK)
            return st;
        v = decoded;
    } else if (!v || jdoc_type(v) == JDOC_STRING) {
        buf_puts(out, "{}");
        return OK;
    }
    if (jdoc_type(v) == JDOC_OBJECT)
        jdoc_write(v, out);
    else
        st = field_wrong_type(name, v, "a JSON object", e);
    if (decoded)
        jdoc_close(decoded);
    return st;
}

static enum status write_tool_calls(const struct message *m, struct buf *out,
                                    struct field_unknown *unknown, struct api_error *e)
{
    enum status st = OK;
    buf_puts(out, ",\"tool_calls\":[");
    for (size_t i = m->calls.begin; i < m->calls.end; i++) {
        struct tool_call call = {.arguments = NULL};
        TRY(field_apply_item(&tool_call_row, m->tool_calls, i, &call, unknown, e));
        buf_puts(out, i > m->calls.begin ? ",{\"type\":\"function\"" : "{\"type\":\"function\"");
        write_string("id", &call.id, out);
        buf_puts(out, ",\"function\":{\"name\":");
        buf_json(out, call.name.bytes, call.name.len);
        buf_puts(out, ",\"arguments\":");
        st = write_arguments(call.arguments, out, e);
        if (st == ERR_INPUT)
            field_prefix(e, "tool_calls", i);
        if (st != OK)
            goto out;
        buf_puts(out, "}}");
    }
    buf_puts(out, "]");
out:
    return st;
}

/* Under every name that templates look for it. */
static void write_reasoning(const struct field_string *text, struct buf *out)
{
    write_string("reasoning_content", text, out);
    write_string("reasoning", text, out);
    write_string("thinking", text, out);
}

/* In the harmony format what is said before a call is one message: its template takes reasoning or
 * content, and asks in it for marks, so that there has to be a text. */
static void join_reasoning(struct field_string *reasoning, struct buf *joined, struct buf *text)
{
    if (!reasoning->bytes || reasoning->len == 0 || text->len == 0)
        return;
    buf_add(joined, reasoning->bytes, reasoning->len);
    buf_puts(joined, "\n");
    buf_add(joined, text->data, text->len);
    joined->failed |= text->failed; /* which is forgotten there */
    buf_clear(text);
    *reasoning = (struct field_string){joined->data, joined->len};
}

/* What an assistant thought, wherever a client has put it. */
static enum status find_reasoning(const struct message *m, const struct content *c,
                                  struct field_string *out, struct api_error *e)
{
    *out = m->reasoning_content.bytes ? m->reasoning_content : m->reasoning;
    if (!c->thinks || is_instruction(m))
        return OK;
    if (out->bytes && out->len > 0)
        return api_error_field(e, "content",
                               "content has thoughts, and so has %s: only one of them may",
                               m->reasoning_content.bytes ? "reasoning_content" : "reasoning");
    *out = (struct field_string){c->thoughts.data ? c->thoughts.data : "", c->thoughts.len};
    return OK;
}

/* As Mistral's templates take thoughts, which know no other form. */
static void write_thoughts(const struct field_string *reasoning, const struct buf *text,
                           struct buf *out)
{
    buf_puts(out, "[{\"type\":\"thinking\",\"thinking\":");
    buf_json(out, reasoning->bytes, reasoning->len);
    buf_puts(out, ",\"closed\":true}");
    if (text->len > 0) {
        buf_puts(out, ",{\"type\":\"text\",\"text\":");
        buf_json(out, text->data, text->len);
        buf_puts(out, "}");
    }
    buf_puts(out, "]");
}

/* mark: the content goes on after it. Templates know `developer` by its older name; and most ask
 * whether a message that calls tools has no content, while others fail at that. */
static enum status write_message(const struct message *m, const char *mark,
                                 const struct conversation_fields *f, struct buf *out,
                                 struct field_unknown *unknown, struct api_error *e)
{
    const bool developer = field_string_is(&m->role, "developer");
    const bool calls = m->calls.end > 0;
    struct field_string reasoning;
    enum status st = OK;
    struct content c;
    struct buf joined;
    content_init(&c, VARS_BYTES_MAX);
    buf_init(&joined, VARS_BYTES_MAX);
    TRY(read_content(m, f, &c, unknown, e));
    TRY(find_reasoning(m, &c, &reasoning, e));
    if (f->harmony && calls && !mark)
        join_reasoning(&reasoning, &joined, &c.text);
    const bool whole = content_end(&c, mark);
    const bool listed = f->thought_parts && field_string_is(&m->role, "assistant") &&
                        reasoning.bytes && reasoning.len > 0;
    buf_printf(out, "{\"role\":\"%s\",\"content\":", developer ? "system" : m->role.bytes);
    if (is_instruction(m) && c.thinks)
        buf_printf(out, "[%s]", c.parts.data ? c.parts.data : "");
    else if (listed)
        write_thoughts(&reasoning, &c.text, out);
    else if (c.says || mark || !calls || f->harmony || f->no_null)
        buf_json(out, c.text.data ? c.text.data : "", c.text.len);
    else
        buf_puts(out, "null");
    out->failed = out->failed || !whole || joined.failed;
    write_string("name", &m->name, out);
    write_string("tool_call_id", &m->tool_call_id, out);
    if (!listed)
        write_reasoning(&reasoning, out);
    if (calls)
        TRY(write_tool_calls(m, out, unknown, e));
    buf_puts(out, "}");
out:
    content_free(&c);
    buf_free(&joined);
    return st;
}

/* ---- all of them ---- */

struct writer {
    const struct conversation_fields *f;
    const char *mark; /* of the last message; NULL: it is whole */
    struct buf *out;
    struct field_unknown *unknown;
    struct api_error *e;
    bool begun;
};

static enum status read_message(struct writer *w, size_t i, struct message *m)
{
    static const struct field row = CONVERSATION_MESSAGES(true, messages);
    *m = (struct message){.content = NULL};
    const enum status st = field_apply_item(&row, w->f->messages, i, m, w->unknown, w->e);
    m->calls.end = m->tool_calls ? jdoc_size(m->tool_calls) : 0;
    return st;
}

static enum status put_message(struct writer *w, size_t i, const struct message *m)
{
    const bool last = i + 1 == jdoc_size(w->f->messages);
    buf_puts(w->out, w->begun ? "," : "");
    w->begun = true;
    const enum status st = write_message(m, last ? w->mark : NULL, w->f, w->out, w->unknown, w->e);
    if (st == ERR_INPUT)
        field_prefix(w->e, "messages", i);
    return st;
}

static enum status write_messages(struct writer *w)
{
    const size_t count = jdoc_size(w->f->messages);
    struct message m;
    enum status st = OK;
    for (size_t i = 0; i < count; i++) {
        TRY(read_message(w, i, &m));
        TRY(put_message(w, i, &m));
    }
out:
    return st;
}

/* ---- as the template of the harmony format takes them ---- */

/* The instructions at the beginning as one message, since the template takes one. *next: behind
 * them. */
static enum status put_instructions(struct writer *w, size_t *next)
{
    enum status st = OK;
    struct message m;
    struct content c;
    content_init(&c, VARS_BYTES_MAX);
    for (*next = 0; *next < jdoc_size(w->f->messages); ++*next) {
        TRY(read_message(w, *next, &m));
        if (!is_instruction(&m))
            break;
        buf_puts(&c.text, *next ? "\n\n" : "");
        c.says = false;
        st = read_content(&m, w->f, &c, w->unknown, w->e);
        if (st == ERR_INPUT)
            field_prefix(w->e, "messages", *next);
        if (st != OK)
            goto out;
    }
    if (*next > 0) {
        buf_puts(w->out, "{\"role\":\"system\",\"content\":");
        buf_json(w->out, c.text.data ? c.text.data : "", c.text.len);
        buf_puts(w->out, "}");
        w->begun = true;
    }
    w->out->failed = w->out->failed || c.text.failed;
out:
    content_free(&c);
    return st;
}

static bool has_id(const struct message *m, size_t call, const struct field_string *id)
{
    const struct jdoc *v = jdoc_get(jdoc_at(m->tool_calls, call), "id");
    return id->bytes && v && jdoc_type(v) == JDOC_STRING && jdoc_string_len(v) == id->len &&
           memcmp(jdoc_string(v), id->bytes, id->len) == 0;
}

/* Is it of this call? Results of no call are of the last one. */
static bool is_result_of(const struct message *m, size_t call, const struct field_string *id)
{
    const bool last = call + 1 == m->calls.end;
    if (!last && !has_id(m, call, id))
        return false;
    for (size_t i = 0; i < call; i++)
        if (has_id(m, i, id))
            return false;
    return true;
}

/* Several calls as a message each, with its results behind it: the template shows the first call of
 * a message, and says of results that they are of the last call before them. *next: behind them. */
static enum status put_calls(struct writer *w, size_t i, struct message *m, size_t *next)
{
    enum status st = OK;
    const size_t count = jdoc_size(w->f->messages), calls = m->calls.end;
    struct message result;
    for (*next = i + 1; *next < count; ++*next) {
        TRY(read_message(w, *next, &result));
        if (!field_string_is(&result.role, "tool"))
            break;
    }
    for (size_t call = 0; call < calls; call++) {
        struct message one = *m;
        one.calls.begin = call;
        one.calls.end = call + 1;
        TRY(put_message(w, i, &one));
        m->content = NULL; /* it has been said */
        m->reasoning = m->reasoning_content = (struct field_string){.bytes = NULL};
        for (size_t r = i + 1; r < *next; r++) {
            TRY(read_message(w, r, &result));
            if (is_result_of(m, call, &result.tool_call_id))
                TRY(put_message(w, r, &result));
        }
    }
out:
    return st;
}

static enum status write_harmony(struct writer *w)
{
    enum status st = OK;
    struct message m;
    size_t i;
    TRY(put_instructions(w, &i));
    while (i < jdoc_size(w->f->messages)) {
        TRY(read_message(w, i, &m));
        if (is_instruction(&m) || field_string_is(&m.role, "function")) {
            st = api_error_field(w->e, "role",
                                 "role must not be %s here, since this model's template would "
                                 "leave the message out: %s",
                                 m.role.bytes,
                                 is_instruction(&m) ? "instructions come before all other messages"
                                                    : "results of tools have the role tool");
            field_prefix(w->e, "messages", i);
            goto out;
        }
        if (m.calls.end > 1 && !(w->mark && i + 1 == jdoc_size(w->f->messages))) {
            TRY(put_calls(w, i, &m, &i));
        } else {
            TRY(put_message(w, i, &m));
            i++;
        }
    }
out:
    return st;
}

/* ---- the variables ---- */

/* null where there is none: templates ask `is not none`. */
static void write_list(const char *key, const struct jdoc *v, struct buf *out)
{
    buf_printf(out, ",\"%s\":", key);
    if (v && jdoc_size(v) > 0)
        jdoc_write(v, out);
    else
        buf_puts(out, "null");
}

/* Each with a description, because the harmony format's template wants one. */
static void write_described(const struct jdoc *tools, struct buf *out)
{
    buf_puts(out, ",\"tools\":[");
    for (size_t i = 0; i < jdoc_size(tools); i++) {
        const struct jdoc *function = jdoc_get(jdoc_at(tools, i), "function"), *value;
        const bool described = jdoc_get_value(function, "description") != NULL;
        const char *key, *separator = described ? "" : ",";
        buf_puts(out, i ? ",{" : "{");
        buf_puts(out, "\"type\":\"function\",\"function\":{");
        buf_puts(out, described ? "" : "\"description\":\"\"");
        for (void *k = jdoc_iter(function, NULL, &key, &value); k;
             k = jdoc_iter(function, k, &key, &value)) {
            if (!described && strcmp(key, "description") == 0)
                continue;
            buf_puts(out, separator);
            buf_json(out, key, strlen(key));
            buf_puts(out, ":");
            jdoc_write(value, out);
            separator = ",";
        }
        buf_puts(out, "}}");
    }
    buf_puts(out, "]");
}

static enum status check_tools(const struct jdoc *tools, struct field_unknown *unknown,
                               struct api_error *e)
{
    enum status st = OK;
    struct tool tool;
    for (size_t i = 0; tools && i < jdoc_size(tools) && st == OK; i++)
        st = field_apply_item(&tool_row, tools, i, &tool, unknown, e);
    return st;
}

/* Variables of the client's own; the others cannot be overruled. */
static enum status write_kwargs(const struct jdoc *kwargs, struct buf *out, struct api_error *e)
{
    static const char *const taken[] = {
        "messages",      "tools",   "documents", "add_generation_prompt", "continue_final_message",
        "chat_template", "tokenize"};
    const char *key;
    const struct jdoc *value;
    for (void *i = kwargs ? jdoc_iter(kwargs, NULL, &key, &value) : NULL; i;
         i = jdoc_iter(kwargs, i, &key, &value)) {
        bool bad = base_ends_with(key, "_token");
        for (size_t k = 0; k < ARRAY_LEN(taken); k++)
            bad = bad || strcmp(taken[k], key) == 0;
        if (bad)
            return api_error_field(e, "chat_template_kwargs",
                                   "chat_template_kwargs may not set \"%.40s\"", key);
        buf_puts(out, ",");
        buf_json(out, key, strlen(key));
        buf_puts(out, ":");
        jdoc_write(value, out);
    }
    return OK;
}

/* What the client's own variables say counts. */
static bool is_kwarg(const struct conversation_fields *f, const char *name)
{
    return f->chat_template_kwargs && jdoc_get(f->chat_template_kwargs, name);
}

static enum status check_together(const struct conversation_fields *f, const struct jdoc *doc,
                                  struct api_error *e)
{
    if (f->continue_final_message && f->add_generation_prompt &&
        jdoc_get_value(doc, "add_generation_prompt"))
        return api_error_field(e, "continue_final_message",
                               "continue_final_message and add_generation_prompt cannot both be "
                               "true");
    return OK;
}

static enum status write_vars(const struct conversation_fields *f, const struct jdoc *doc,
                              const char *mark, struct buf *out, struct field_unknown *unknown,
                              struct api_error *e)
{
    const bool prompt = f->add_generation_prompt && !f->continue_final_message;
    enum status st = OK;
    TRY(check_together(f, doc, e));
    TRY(check_tools(f->tools, unknown, e));
    buf_puts(out, "{");
    struct writer w = {.f = f, .mark = mark, .out = out, .unknown = unknown, .e = e};
    buf_puts(out, "\"messages\":[");
    TRY(f->harmony ? write_harmony(&w) : write_messages(&w));
    buf_puts(out, "]");
    if (f->harmony && f->tools && jdoc_size(f->tools) > 0)
        write_described(f->tools, out);
    else
        write_list("tools", f->tools, out);
    write_list("documents", f->documents, out);
    buf_printf(out, ",\"add_generation_prompt\":%s", prompt ? "true" : "false");
    TRY(write_kwargs(f->chat_template_kwargs, out, e));
    if (!is_kwarg(f, "reasoning_effort"))
        write_string("reasoning_effort", &f->reasoning_effort, out);
    if (f->thinking != CONVERSATION_THINKING_UNSAID && !is_kwarg(f, "enable_thinking"))
        buf_printf(out, ",\"enable_thinking\":%s",
                   f->thinking == CONVERSATION_THINKING_ON ? "true" : "false");
    buf_puts(out, "}");
out:
    return st;
}

enum status conversation_make(const struct conversation_fields *f, const struct jdoc *doc,
                              struct conversation *out, struct api_error *e)
{
    struct err err = {""};
    struct conversation c = {.mark = f->continue_final_message ? MARK : NULL};
    struct buf text;
    enum status st = OK;
    buf_init(&text, VARS_BYTES_MAX);
    TRY(write_vars(f, doc, c.mark, &text, &c.unknown, e));
    st = text.failed ? ERR_NOMEM
                     : jdoc_parse(text.data, text.len, &limits, "messages", &c.vars, &err);
    if (st == ERR_INPUT)
        api_error_field(e, "messages", "messages: %.400s", err.text);
    if (st == OK)
        *out = c;
out:
    if (st == ERR_NOMEM)
        api_error_from_status(e, st, &err);
    buf_free(&text);
    return st;
}

void conversation_free(struct conversation *c)
{
    if (c->vars)
        jdoc_close(c->vars);
    *c = (struct conversation){0};
}
