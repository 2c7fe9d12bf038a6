#include "server/api/response_format.h"

/* One way of saying it. */
struct saying {
    const char *field;  /* static */
    const char *member; /* of the field; "": it has none */
    enum structure_kind kind;
    const struct jdoc *value; /* NULL: nothing is said, unless the kind needs no value */
};

static enum status read_format(const struct response_format *f, struct saying *out,
                               struct api_error *e)
{
    const bool any = f->type.bytes && field_string_is(&f->type, "json_object");
    const bool schema = f->type.bytes && field_string_is(&f->type, "json_schema");
    *out = (struct saying){f->name ? f->name : "response_format", "", STRUCTURE_NONE, NULL};
    if (schema && !f->schema)
        return api_error_field(e, out->field, "%s%s.schema is required", out->field,
                               f->name ? "" : ".json_schema");
    if ((f->schema && !schema) || (f->object_schema && !any))
        return api_error_field(e, out->field, "%s has a schema, but its type is not %s", out->field,
                               f->schema ? "json_schema" : "json_object");
    if (any)
        out->kind = f->object_schema ? STRUCTURE_SCHEMA : STRUCTURE_OBJECT;
    if (schema)
        out->kind = STRUCTURE_SCHEMA;
    out->value = schema ? f->schema : f->object_schema;
    return OK;
}

/* vLLM takes a schema as a text, too. */
static enum status read_text(struct structure *s, struct jdoc **own, struct api_error *e)
{
    struct err err;
    if (s->kind != STRUCTURE_SCHEMA || jdoc_type(s->value) != JDOC_STRING)
        return OK;
    const enum status st = jdoc_parse(jdoc_string(s->value), jdoc_string_len(s->value),
                                      &jdoc_limits_request, s->field, own, &err);
    if (st == ERR_INPUT)
        return api_error_field(e, s->field, "%s", err.text);
    if (st != OK)
        return st;
    s->value = *own;
    return OK;
}

enum status response_format_read(const struct response_format *f, const struct jdoc *doc,
                                 struct structure *out, struct jdoc **own, struct api_error *e)
{
    const struct jdoc *outputs = jdoc_get_value(doc, "structured_outputs");
    struct saying all[] = {
        {0},
        {"structured_outputs", ".json", STRUCTURE_SCHEMA, f->json},
        {"structured_outputs", ".json_object", f->json_object ? STRUCTURE_OBJECT : STRUCTURE_NONE,
         NULL},
        {"structured_outputs", ".regex", STRUCTURE_PATTERN,
         f->regex.bytes ? jdoc_get_value(outputs, "regex") : NULL},
        {"structured_outputs", ".choice", STRUCTURE_CHOICES, f->choice},
        {"guided_json", "", STRUCTURE_SCHEMA, f->guided_json},
        {"guided_regex", "", STRUCTURE_PATTERN, jdoc_get_value(doc, "guided_regex")},
        {"guided_choice", "", STRUCTURE_CHOICES, f->guided_choice},
    };
    const char *member = "";
    enum status st = read_format(f, &all[0], e);
    *out = (struct structure){.kind = STRUCTURE_NONE};
    for (size_t i = 0; st == OK && i < ARRAY_LEN(all); i++) {
        const struct saying *s = &all[i];
        if (s->kind == STRUCTURE_NONE || (s->kind != STRUCTURE_OBJECT && !s->value))
            continue;
        if (out->kind != STRUCTURE_NONE)
            return api_error_field(e, s->field, "%s%s and %s%s cannot both say what the answer is",
                                   out->field, member, s->field, s->member);
        member = s->member;
        *out = (struct structure){.kind = s->kind, .field = s->field, .value = s->value};
    }
    return st == OK ? read_text(out, own, e) : st;
}
