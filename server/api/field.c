/* DESIGN: a table instead of a parser per field, because every omission in hand-written checks has
 * been somebody's crash. Integers are compared as integers: a double cannot hold 2^63 - 1. */
#include "server/api/field.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct field *field_find(const struct field *rows, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(rows[i].name, name) == 0)
            return &rows[i];
    return NULL;
}

/* The shortest digits that read back as the same number. */
static void number_text(double x, char *text, size_t cap)
{
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(text, cap, "%.*g", digits, x);
        if (strtod(text, NULL) == x)
            return;
    }
}

const char *field_text(const struct jdoc *v, char *text, size_t cap)
{
    switch (jdoc_type(v)) {
    case JDOC_INT:
        snprintf(text, cap, "%" PRId64, jdoc_int(v));
        break;
    case JDOC_REAL:
        number_text(jdoc_number(v), text, cap);
        break;
    case JDOC_BOOL:
        snprintf(text, cap, "%s", jdoc_bool(v) ? "true" : "false");
        break;
    case JDOC_STRING:
        snprintf(text, cap, "\"%.40s%s\"", jdoc_string(v), jdoc_string_len(v) > 40 ? "..." : "");
        break;
    case JDOC_NULL:
    case JDOC_ARRAY:
    case JDOC_OBJECT:
        snprintf(text, cap, "%s", jdoc_type_name(jdoc_type(v)));
        break;
    }
    return text;
}

/* An integer, or a real with an integral value that int64_t holds. */
static bool whole(const struct jdoc *v, int64_t *out)
{
    if (jdoc_type(v) == JDOC_INT) {
        *out = jdoc_int(v);
        return true;
    }
    if (jdoc_type(v) != JDOC_REAL)
        return false;
    double x = jdoc_number(v);
    if (!isfinite(x) || x != floor(x) || x < -0x1p63 || x >= 0x1p63)
        return false;
    *out = (int64_t)x;
    return true;
}

bool field_int(const struct jdoc *v, int64_t min, int64_t max, int64_t *out)
{
    int64_t x;
    if (!whole(v, &x) || x < min || x > max)
        return false;
    *out = x;
    return true;
}

static enum status apply_int(const struct field *row, const struct jdoc *v, int64_t *out,
                             struct api_error *e)
{
    char text[80];
    int64_t x;
    if (!whole(v, &x))
        return api_error_field(e, row->name, "%s must be a whole number, got %s", row->name,
                               field_text(v, text, sizeof text));
    if (x < row->int_min || x > row->int_max)
        return api_error_field(e, row->name,
                               "%s must be between %" PRId64 " and %" PRId64 ", got %s", row->name,
                               row->int_min, row->int_max, field_text(v, text, sizeof text));
    *out = x;
    return OK;
}

static enum status apply_number(const struct field *row, const struct jdoc *v, double *out,
                                struct api_error *e)
{
    char text[80];
    if (jdoc_type(v) != JDOC_INT && jdoc_type(v) != JDOC_REAL)
        return api_error_field(e, row->name, "%s must be a number, got %s", row->name,
                               field_text(v, text, sizeof text));
    double x = jdoc_number(v);
    if (!(x >= row->min && x <= row->max) || (row->above_min && x <= row->min))
        return api_error_field(e, row->name, "%s must be %s %g and at most %g, got %s", row->name,
                               row->above_min ? "above" : "at least", row->min, row->max,
                               field_text(v, text, sizeof text));
    *out = x;
    return OK;
}

static enum status wrong_type(const struct field *row, const struct jdoc *v, const char *wanted,
                              struct api_error *e)
{
    char text[80];
    return api_error_field(e, row->name, "%s must be %s, got %s", row->name, wanted,
                           field_text(v, text, sizeof text));
}

static enum status apply_used(const struct field *row, const struct jdoc *v, void *at,
                              struct api_error *e)
{
    enum jdoc_type type = jdoc_type(v);
    switch (row->kind) {
    case FIELD_INT:
        return apply_int(row, v, at, e);
    case FIELD_NUMBER:
        return apply_number(row, v, at, e);
    case FIELD_BOOL:
        if (type != JDOC_BOOL)
            return wrong_type(row, v, "a boolean", e);
        *(bool *)at = jdoc_bool(v);
        return OK;
    case FIELD_STRING:
        if (type != JDOC_STRING)
            return wrong_type(row, v, "a string", e);
        *(const char **)at = jdoc_string(v);
        return OK;
    case FIELD_ARRAY:
        if (type != JDOC_ARRAY)
            return wrong_type(row, v, "an array", e);
        break;
    case FIELD_OBJECT:
        if (type != JDOC_OBJECT)
            return wrong_type(row, v, "an object", e);
        break;
    case FIELD_ANY:
        break;
    }
    *(const struct jdoc **)at = v;
    return OK;
}

/* The type is checked first, so that a misspelt value is not called unsupported. */
static enum status apply_unsupported(const struct field *row, const struct jdoc *v,
                                     struct api_error *e)
{
    union {
        int64_t i;
        double d;
        bool b;
        const void *p;
    } got = {0};
    char text[80];
    bool neutral = false;
    enum status st = apply_used(row, v, &got, e);
    if (st != OK)
        return st;
    switch (row->kind) {
    case FIELD_INT:
        neutral = (double)got.i == row->neutral;
        break;
    case FIELD_NUMBER:
        neutral = got.d == row->neutral;
        break;
    case FIELD_BOOL:
        neutral = (got.b ? 1 : 0) == row->neutral;
        break;
    case FIELD_STRING:
        neutral = jdoc_string_len(v) == 0;
        break;
    case FIELD_ARRAY:
    case FIELD_OBJECT:
        neutral = jdoc_size(v) == 0;
        break;
    case FIELD_ANY:
        break;
    }
    if (neutral)
        return OK;
    st = api_error_field(e, row->name, "%s is not supported yet, got %s; leave it out", row->name,
                         field_text(v, text, sizeof text));
    e->code = "unsupported_parameter";
    return st;
}

enum status field_apply(const struct field *row, const struct jdoc *value, void *target,
                        struct api_error *e)
{
    switch (row->use) {
    case FIELD_USED:
        return apply_used(row, value, (char *)target + row->offset, e);
    case FIELD_UNSUPPORTED:
        return apply_unsupported(row, value, e);
    case FIELD_IGNORED:
        break;
    }
    return OK;
}
