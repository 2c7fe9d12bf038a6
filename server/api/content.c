#include "server/api/content.h"

#include "server/api/conversation.h"

#define AT(member) .offset = offsetof(struct part, member)
#include "server/api/field_row.h"

#include <stdio.h>

struct part {
    struct field_string type;
    const struct jdoc *text, *thinking, *closed;
};

static const struct field part_rows[] = {
    {.name = "type", .kind = FIELD_STRING, .int_max = 256, .required = true, AT(type)},
    {.name = "text", .kind = FIELD_ANY, AT(text)},
    {.name = "thinking", .kind = FIELD_ANY, AT(thinking)},
    {.name = "closed", .kind = FIELD_ANY, AT(closed)},
    IGNORED(image_url),
    IGNORED(input_audio),
    IGNORED(file),
};

static const struct field content_row = {
    .name = "content", .members = part_rows, .member_count = ARRAY_LEN(part_rows)};
static const struct field thinking_row = {
    .name = "thinking", .members = part_rows, .member_count = ARRAY_LEN(part_rows)};

void content_init(struct content *c, size_t bytes_max)
{
    *c = (struct content){.thinks = false};
    buf_init(&c->text, bytes_max);
    buf_init(&c->thoughts, bytes_max);
    buf_init(&c->parts, bytes_max);
    buf_init(&c->run, bytes_max);
}

void content_free(struct content *c)
{
    buf_free(&c->text);
    buf_free(&c->thoughts);
    buf_free(&c->parts);
    buf_free(&c->run);
}

static enum status read_part(const struct field *row, const struct jdoc *parts, size_t i,
                             struct part *p, struct field_unknown *unknown, struct api_error *e)
{
    *p = (struct part){.text = NULL};
    if (jdoc_type(jdoc_at(parts, i)) == JDOC_OBJECT)
        return field_apply_item(row, parts, i, p, unknown, e);
    char name[40];
    snprintf(name, sizeof name, "%s[%zu]", row->name, i);
    return field_wrong_type(name, jdoc_at(parts, i), "an object", e);
}

static enum status too_many(const char *field, size_t count, struct api_error *e)
{
    return api_error_field(e, field, "%s may hold at most %d parts, got %zu", field,
                           CONVERSATION_PARTS_MAX, count);
}

static enum status put_text(const struct part *p, struct buf *to, struct api_error *e)
{
    char shown[80];
    if (!p->text || jdoc_type(p->text) != JDOC_STRING)
        return api_error_field(e, "text", "text must be a string, got %s",
                               p->text ? field_text(p->text, shown, sizeof shown) : "nothing");
    buf_add(to, jdoc_string(p->text), jdoc_string_len(p->text));
    return OK;
}

/* A thought is a string or, as Mistral's own clients send it, a list of texts. */
static enum status put_thought(const struct jdoc *v, struct buf *to, struct field_unknown *unknown,
                               struct api_error *e)
{
    enum status st = OK;
    struct part p;
    if (v && jdoc_type(v) == JDOC_STRING) {
        buf_add(to, jdoc_string(v), jdoc_string_len(v));
        return OK;
    }
    if (!v)
        return api_error_field(e, "thinking", "thinking is missing");
    if (jdoc_type(v) != JDOC_ARRAY)
        return field_wrong_type("thinking", v, "a string or a list of texts", e);
    if (jdoc_size(v) > CONVERSATION_PARTS_MAX)
        return too_many("thinking", jdoc_size(v), e);
    for (size_t i = 0; i < jdoc_size(v); i++) {
        TRY(read_part(&thinking_row, v, i, &p, unknown, e));
        buf_puts(to, i ? "\n" : "");
        st = field_string_is(&p.type, "text")
                 ? put_text(&p, to, e)
                 : api_error_field(e, "type", "type must be \"text\", got \"%.40s\"", p.type.bytes);
        if (st != OK) {
            field_prefix(e, "thinking", i);
            goto out;
        }
    }
out:
    return st;
}

/* Writes the run as a part. */
static void put_run(struct content *c)
{
    const char *type = c->runs_on_thought ? "thinking" : "text";
    if (c->run.len > 0) {
        buf_printf(&c->parts, "%s{\"type\":\"%s\",\"%s\":", c->parts.len > 0 ? "," : "", type,
                   type);
        buf_json(&c->parts, c->run.data, c->run.len);
        buf_puts(&c->parts, c->runs_on_thought ? ",\"closed\":true}" : "}");
    }
    c->parts.failed |= c->run.failed; /* which is forgotten there */
    buf_clear(&c->run);
}

static void go_on(struct content *c, bool thought, const char *bytes, size_t n)
{
    if (thought != c->runs_on_thought)
        put_run(c);
    c->runs_on_thought = thought;
    buf_puts(&c->run, c->run.len > 0 ? "\n" : "");
    buf_add(&c->run, bytes, n);
}

/* May a thought stand here, and is it whole? */
static enum status check_thought(const struct part *p, enum content_thoughts may,
                                 const struct content *c, struct api_error *e)
{
    if (may == CONTENT_THOUGHTS_NONE)
        return api_error_field(e, "type",
                               "type must be \"text\", got \"thinking\": thoughts are the "
                               "assistant's, or of instructions where the template takes them");
    if (may == CONTENT_THOUGHTS_LEADING && c->text.len > 0)
        return api_error_field(e, "type",
                               "type must be \"text\", got \"thinking\": thoughts stand before "
                               "the texts");
    if (p->closed && !(jdoc_type(p->closed) == JDOC_BOOL && jdoc_bool(p->closed)))
        return api_error_field(e, "closed", "closed must be true: open thoughts are not continued");
    return OK;
}

static enum status put_part(const struct part *p, enum content_thoughts may, struct content *c,
                            struct field_unknown *unknown, struct api_error *e)
{
    enum status st = OK;
    const bool thought = field_string_is(&p->type, "thinking");
    struct buf *to = thought ? &c->thoughts : &c->text;
    bool *there = thought ? &c->thinks : &c->says;
    if (!thought && !field_string_is(&p->type, "text"))
        return api_error_field(e, "type",
                               "type must be \"text\", got \"%.40s\": this server reads text only",
                               p->type.bytes);
    if (thought)
        TRY(check_thought(p, may, c, e));
    buf_puts(to, *there ? "\n" : "");
    *there = true;
    const size_t from = to->len;
    TRY(thought ? put_thought(p->thinking, to, unknown, e) : put_text(p, to, e));
    if (may == CONTENT_THOUGHTS_ANYWHERE)
        go_on(c, thought, to->data ? to->data + from : "", to->len - from);
out:
    return st;
}

enum status content_read(const struct jdoc *v, enum content_thoughts may, struct content *c,
                         struct field_unknown *unknown, struct api_error *e)
{
    enum status st = OK;
    struct part p;
    if (jdoc_type(v) == JDOC_STRING) {
        c->says = true;
        buf_add(&c->text, jdoc_string(v), jdoc_string_len(v));
        return OK;
    }
    if (jdoc_type(v) != JDOC_ARRAY)
        return field_wrong_type("content", v, "a string or a list of parts", e);
    if (jdoc_size(v) > CONVERSATION_PARTS_MAX)
        return too_many("content", jdoc_size(v), e);
    for (size_t i = 0; i < jdoc_size(v); i++) {
        TRY(read_part(&content_row, v, i, &p, unknown, e));
        st = put_part(&p, may, c, unknown, e);
        if (st == ERR_INPUT)
            field_prefix(e, "content", i);
        if (st != OK)
            goto out;
    }
out:
    return st;
}

bool content_end(struct content *c, const char *mark)
{
    buf_puts(&c->text, mark ? mark : "");
    if (c->thinks && mark) {
        if (c->runs_on_thought)
            put_run(c);
        c->runs_on_thought = false;
        buf_puts(&c->run, mark);
    }
    put_run(c);
    return !c->text.failed && !c->thoughts.failed && !c->parts.failed;
}
