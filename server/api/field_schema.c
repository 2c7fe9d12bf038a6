/* DESIGN: the schema is written from the rows that check, and its defaults are read from a target
 * as a request starts with, so the document cannot say anything else than the server does. */
#include "server/api/field.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void write_properties(const struct field_set *set, const void *defaults, struct buf *out);

/* null is as good as absent, unless the field must be there. */
static void write_type(const struct field *row, const char *type, struct buf *out)
{
    buf_printf(out, row->required ? "\"type\":\"%s\"" : "\"type\":[\"%s\",\"null\"]", type);
}

/* Defaults are floats: the fewest digits that read back as the same, as a model's file has them. */
static void write_float(float x, struct buf *out)
{
    char text[32];
    for (int digits = 6; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)x);
        if (strtof(text, NULL) == x)
            break;
    }
    buf_puts(out, text);
}

static void write_default(const struct field *row, const void *target, struct buf *out)
{
    const char *at = (const char *)target + row->offset;
    if (row->no_default || row->use != FIELD_USED)
        return;
    if (row->kind == FIELD_INT) {
        buf_printf(out, ",\"default\":%" PRId64, *(const int64_t *)(const void *)at);
    } else if (row->kind == FIELD_NUMBER) {
        buf_puts(out, ",\"default\":");
        write_float((float)*(const double *)(const void *)at, out);
    } else if (row->kind == FIELD_BOOL) {
        buf_printf(out, ",\"default\":%s", *(const bool *)at ? "true" : "false");
    }
}

static void write_range(const struct field *row, struct buf *out)
{
    buf_printf(out, ",\"%s\":%.17g,\"maximum\":%.17g",
               row->above_min ? "exclusiveMinimum" : "minimum", row->min, row->max);
}

/* Lengths of strings are left to the server: JSON schema counts characters, we count bytes. */
static void write_word(struct buf *out)
{
    buf_printf(out, "{\"type\":\"string\",\"minLength\":1,\"maxLength\":%d}", FIELD_WORD_BYTES_MAX);
}

static void write_ids(int64_t min, int64_t max, int32_t vocab, struct buf *out)
{
    buf_printf(out,
               "\"minItems\":%" PRId64 ",\"maxItems\":%" PRId64
               ",\"items\":{\"type\":\"integer\",\"minimum\":0,\"maximum\":%d}",
               min, max, vocab - 1);
}

static void write_prompt(const struct field_set *set, const struct field *row, struct buf *out)
{
    const int64_t most =
        set->prompts_max > 0 && set->prompts_max < row->int_max ? set->prompts_max : row->int_max;
    const int64_t ids_max = (int64_t)jdoc_limits_request.tokens_max;
    buf_puts(out, "\"anyOf\":[{\"type\":\"string\",\"minLength\":1},{\"type\":\"array\",");
    write_ids(1, ids_max, set->vocab, out);
    buf_printf(out,
               "},{\"type\":\"array\",\"minItems\":1,\"maxItems\":%" PRId64
               ",\"items\":{\"type\":\"string\",\"minLength\":1}},{\"type\":\"array\","
               "\"minItems\":1,\"maxItems\":%" PRId64 ",\"items\":{\"type\":\"array\",",
               most, most);
    write_ids(1, ids_max, set->vocab, out);
    buf_puts(out, "}}]");
}

static void write_choices(const struct field *row, struct buf *out)
{
    buf_puts(out, "\"enum\":[");
    for (const char *word = row->choices;; word++) {
        const size_t len = strcspn(word, "|");
        buf_json(out, word, len);
        word += len;
        if (!*word)
            break;
        buf_puts(out, ",");
    }
    buf_puts(out, row->required ? "]" : ",null]");
}

static void write_bias(const struct field *row, struct buf *out)
{
    write_type(row, "object", out);
    buf_printf(out, ",\"maxProperties\":%" PRId64 ",\"propertyNames\":{\"pattern\":\"%s\"}",
               row->int_max, "^(0|[1-9][0-9]{0,8})$");
    buf_puts(out, ",\"additionalProperties\":{\"type\":\"number\"");
    write_range(row, out);
    buf_puts(out, "}");
}

static void write_used(const struct field_set *set, const struct field *row, const void *target,
                       struct buf *out)
{
    const struct field_set members = {.parts = {{row->members, row->member_count, 0}},
                                      .vocab = set->vocab};
    switch (row->kind) {
    case FIELD_INT:
        write_type(row, "integer", out);
        buf_printf(out, ",\"minimum\":%" PRId64 ",\"maximum\":%" PRId64, row->int_min,
                   field_int_max(set, row));
        break;
    case FIELD_NUMBER:
        write_type(row, "number", out);
        write_range(row, out);
        break;
    case FIELD_BOOL:
        write_type(row, "boolean", out);
        break;
    case FIELD_STRING:
        write_type(row, "string", out);
        buf_printf(out, ",\"minLength\":%d,\"maxLength\":%" PRId64, row->int_min > 0, row->int_max);
        break;
    case FIELD_CHOICE:
        write_choices(row, out);
        break;
    case FIELD_STRINGS:
        buf_puts(out, "\"anyOf\":[{\"type\":\"null\"},");
        write_word(out);
        buf_printf(out, ",{\"type\":\"array\",\"maxItems\":%" PRId64 ",\"items\":", row->int_max);
        write_word(out);
        buf_puts(out, "}]");
        break;
    case FIELD_TOKENS:
        write_type(row, "array", out);
        buf_puts(out, ",");
        write_ids(0, row->int_max, set->vocab, out);
        break;
    case FIELD_BIAS:
        write_bias(row, out);
        break;
    case FIELD_PROMPT:
        write_prompt(set, row, out);
        break;
    case FIELD_OBJECT:
        write_type(row, "object", out);
        buf_puts(out, ",");
        write_properties(&members, target, out);
        break;
    case FIELD_OBJECTS:
        write_type(row, "array", out);
        buf_printf(out,
                   ",\"minItems\":%" PRId64 ",\"maxItems\":%" PRId64
                   ",\"items\":{\"type\":\"object\",",
                   row->int_min, row->int_max);
        write_properties(&members, target, out);
        buf_puts(out, "}");
        break;
    case FIELD_MAP:
        write_type(row, "object", out);
        buf_printf(out, ",\"maxProperties\":%" PRId64, row->int_max);
        break;
    case FIELD_ARRAY:
        write_type(row, "array", out);
        break;
    case FIELD_ANY:
        buf_puts(out, row->schema ? row->schema : "");
        break;
    }
    write_default(row, target, out);
}

/* The one value that an unsupported field may have; "" when there is none. */
static const char *neutral_text(const struct field *row, char *text, size_t cap)
{
    text[0] = '\0';
    if (row->kind == FIELD_BOOL)
        return row->neutral != 0 ? "true" : "false";
    if (row->kind == FIELD_ARRAY)
        return "[]";
    if (row->kind == FIELD_OBJECT)
        return "{}";
    if (row->kind == FIELD_STRING)
        snprintf(text, cap, "\"%s\"", row->neutral_text ? row->neutral_text : "");
    else if (!isnan(row->neutral))
        snprintf(text, cap, "%g", row->neutral);
    return text;
}

/* null is as good as absent. */
static void write_neutral(const struct field *row, struct buf *out)
{
    char buffer[80];
    const char *text = neutral_text(row, buffer, sizeof buffer);
    buf_printf(out, "\"description\":\"nothing else is supported\",\"enum\":[%s%s%s]",
               row->required ? "" : "null", row->required || !*text ? "" : ",", text);
}

static void write_property(const struct field_set *set, const struct field *row,
                           const void *defaults, struct buf *out)
{
    buf_printf(out, "\"%s\":{", row->name);
    if (row->use == FIELD_USED)
        write_used(set, row, defaults, out);
    else if (row->use == FIELD_UNSUPPORTED)
        write_neutral(row, out);
    else
        buf_puts(out, "\"description\":\"accepted, without effect\"");
    buf_puts(out, "}");
}

static void write_properties(const struct field_set *set, const void *defaults, struct buf *out)
{
    const char *separator = "";
    const struct field *row;
    buf_puts(out, "\"properties\":{");
    for (size_t part = 0; part < FIELD_PARTS_MAX; part++)
        for (size_t i = 0; i < set->parts[part].count; i++) {
            buf_puts(out, separator);
            separator = ",";
            write_property(set, &set->parts[part].rows[i],
                           (const char *)defaults + set->parts[part].base, out);
        }
    buf_puts(out, "}");
    separator = ",\"required\":[";
    for (size_t i = 0; (row = field_at(set, i)); i++)
        if (row->required) {
            buf_printf(out, "%s\"%s\"", separator, row->name);
            separator = ",";
        }
    if (strcmp(separator, ",") == 0)
        buf_puts(out, "]");
}

void field_schema(const struct field_set *set, const void *defaults, struct buf *out)
{
    buf_puts(out, "{\"type\":\"object\",");
    write_properties(set, defaults, out);
    buf_puts(out, "}");
}
