/* DESIGN: a table instead of a parser per field, because every omission in hand-written checks has
 * been somebody's crash. Integers are compared as integers: a double cannot hold 2^63 - 1. */
#include "server/api/field.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct field *field_at(const struct field_set *set, size_t i)
{
    for (size_t part = 0; part < FIELD_PARTS_MAX; part++) {
        if (i < set->parts[part].count)
            return &set->parts[part].rows[i];
        i -= set->parts[part].count;
    }
    return NULL;
}

/* The row of a name and where its part of the target begins; NULL when there is none. */
static const struct field *find(const struct field_set *set, const char *name, size_t *base)
{
    for (size_t part = 0; part < FIELD_PARTS_MAX; part++) {
        const struct field_rows *rows = &set->parts[part];
        *base = rows->base;
        for (size_t i = 0; i < rows->count; i++)
            if (strcmp(rows->rows[i].name, name) == 0)
                return &rows->rows[i];
    }
    return NULL;
}

bool field_string_is(const struct field_string *s, const char *text)
{
    return s->len == strlen(text) && memcmp(s->bytes, text, s->len) == 0;
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

enum status field_wrong_type(const char *name, const struct jdoc *v, const char *wanted,
                             struct api_error *e)
{
    char text[80];
    return api_error_field(e, name, "%s must be %s, got %s", name, wanted,
                           field_text(v, text, sizeof text));
}

/* ---- numbers ---- */

static enum status apply_int(const struct field_set *set, const struct field *row,
                             const struct jdoc *v, int64_t *out, struct api_error *e)
{
    char text[80];
    const int64_t max = field_int_max(set, row);
    int64_t x;
    if (!jdoc_whole(v, &x))
        return field_wrong_type(row->name, v, "a whole number", e);
    if (x < row->int_min || x > max)
        return api_error_field(e, row->name,
                               "%s must be between %" PRId64 " and %" PRId64 ", got %s", row->name,
                               row->int_min, max, field_text(v, text, sizeof text));
    *out = x;
    return OK;
}

static enum status apply_number(const struct field *row, const struct jdoc *v, double *out,
                                struct api_error *e)
{
    char text[80];
    if (jdoc_type(v) != JDOC_INT && jdoc_type(v) != JDOC_REAL)
        return field_wrong_type(row->name, v, "a number", e);
    double x = jdoc_number(v);
    if (!(x >= row->min && x <= row->max) || (row->above_min && x <= row->min))
        return api_error_field(e, row->name, "%s must be %s %g and at most %g, got %s", row->name,
                               row->above_min ? "above" : "at least", row->min, row->max,
                               field_text(v, text, sizeof text));
    *out = x;
    return OK;
}

/* ---- text ---- */

static enum status apply_string(const struct field *row, const struct jdoc *v,
                                struct field_string *out, struct api_error *e)
{
    if (jdoc_type(v) != JDOC_STRING)
        return field_wrong_type(row->name, v, "a string", e);
    size_t len = jdoc_string_len(v);
    if ((int64_t)len < row->int_min || (int64_t)len > row->int_max)
        return api_error_field(e, row->name,
                               "%s must have %" PRId64 " to %" PRId64 " bytes, got %zu", row->name,
                               row->int_min, row->int_max, len);
    *out = (struct field_string){jdoc_string(v), len};
    return OK;
}

/* One of "a|b|c". */
static enum status apply_choice(const struct field *row, const struct jdoc *v,
                                struct field_string *out, struct api_error *e)
{
    char text[80];
    const char *end = row->choices;
    if (jdoc_type(v) != JDOC_STRING)
        return field_wrong_type(row->name, v, "a string", e);
    for (const char *word = row->choices; *end; word = end + 1) {
        const size_t len = strcspn(word, "|");
        end = word + len;
        if (jdoc_string_len(v) == len && memcmp(jdoc_string(v), word, len) == 0) {
            *out = (struct field_string){jdoc_string(v), len};
            return OK;
        }
    }
    return api_error_field(e, row->name, "%s must be one of %s, got %s", row->name, row->choices,
                           field_text(v, text, sizeof text));
}

static enum status check_word(const struct field *row, const struct jdoc *v, struct api_error *e)
{
    if (jdoc_type(v) != JDOC_STRING)
        return field_wrong_type(row->name, v, "a string or a list of strings", e);
    if (jdoc_string_len(v) == 0 || jdoc_string_len(v) > FIELD_WORD_BYTES_MAX)
        return api_error_field(e, row->name, "%s: each string must have 1 to %d bytes, got %zu",
                               row->name, FIELD_WORD_BYTES_MAX, jdoc_string_len(v));
    return OK;
}

static enum status check_strings(const struct field *row, const struct jdoc *v, struct api_error *e)
{
    enum status st = OK;
    if (jdoc_type(v) != JDOC_ARRAY)
        return check_word(row, v, e);
    if (jdoc_size(v) > (uint64_t)row->int_max)
        return api_error_field(e, row->name, "%s may hold at most %" PRId64 " strings, got %zu",
                               row->name, row->int_max, jdoc_size(v));
    for (size_t i = 0; i < jdoc_size(v) && st == OK; i++)
        st = check_word(row, jdoc_at(v, i), e);
    return st;
}

/* ---- tokens ---- */

enum status field_tokens(const char *name, const struct jdoc *array, int64_t max, int32_t vocab,
                         int32_t *ids, struct api_error *e)
{
    char text[80];
    if (jdoc_type(array) != JDOC_ARRAY)
        return field_wrong_type(name, array, "a list of token ids", e);
    if (jdoc_size(array) > (uint64_t)max)
        return api_error_field(e, name, "%s may hold at most %" PRId64 " token ids, got %zu", name,
                               max, jdoc_size(array));
    for (size_t i = 0; i < jdoc_size(array); i++) {
        const struct jdoc *v = jdoc_at(array, i);
        int64_t id;
        if (!jdoc_whole(v, &id) || id < 0 || id >= vocab)
            return api_error_field(e, name,
                                   "%s must hold token ids between 0 and %d, got %s at %zu", name,
                                   vocab - 1, field_text(v, text, sizeof text), i);
        if (ids)
            ids[i] = (int32_t)id;
    }
    return OK;
}

bool field_token_key(const char *key, int32_t vocab, int32_t *id)
{
    size_t digits = strspn(key, "0123456789");
    if (digits == 0 || digits > 9 || key[digits] || (key[0] == '0' && digits > 1))
        return false;
    *id = (int32_t)strtol(key, NULL, 10);
    return *id < vocab;
}

static enum status check_bias(const struct field *row, const struct jdoc *v, int32_t vocab,
                              struct api_error *e)
{
    enum status st = OK;
    const char *key;
    const struct jdoc *value;
    double x;
    int32_t id;
    if (jdoc_type(v) != JDOC_OBJECT)
        return field_wrong_type(row->name, v, "an object of token ids and numbers", e);
    if (jdoc_size(v) > (uint64_t)row->int_max)
        return api_error_field(e, row->name, "%s may hold at most %" PRId64 " entries, got %zu",
                               row->name, row->int_max, jdoc_size(v));
    for (void *i = jdoc_iter(v, NULL, &key, &value); i && st == OK;
         i = jdoc_iter(v, i, &key, &value)) {
        if (!field_token_key(key, vocab, &id))
            st = api_error_field(e, row->name, "%s must have token ids from 0 to %d, got \"%.40s\"",
                                 row->name, vocab - 1, key);
        else
            st = apply_number(row, value, &x, e);
    }
    return st;
}

/* ---- objects ---- */

static enum status check_objects(const struct field *row, const struct jdoc *v, struct api_error *e)
{
    if (jdoc_type(v) != JDOC_ARRAY)
        return field_wrong_type(row->name, v, "a list of objects", e);
    const int64_t count = (int64_t)jdoc_size(v);
    if (count < row->int_min || count > row->int_max)
        return api_error_field(e, row->name,
                               "%s must have %" PRId64 " to %" PRId64 " entries, got %" PRId64,
                               row->name, row->int_min, row->int_max, count);
    for (size_t i = 0; i < (size_t)count; i++) {
        char name[64];
        snprintf(name, sizeof name, "%.40s[%zu]", row->name, i);
        if (jdoc_type(jdoc_at(v, i)) != JDOC_OBJECT)
            return field_wrong_type(name, jdoc_at(v, i), "an object", e);
    }
    return OK;
}

static enum status check_map(const struct field *row, const struct jdoc *v, struct api_error *e)
{
    if (jdoc_type(v) != JDOC_OBJECT)
        return field_wrong_type(row->name, v, "an object", e);
    if ((int64_t)jdoc_size(v) > row->int_max)
        return api_error_field(e, row->name, "%s may hold at most %" PRId64 " entries, got %zu",
                               row->name, row->int_max, jdoc_size(v));
    return OK;
}

void field_prefix(struct api_error *e, const char *outer, size_t i)
{
    const struct api_error inner = *e;
    char path[128];
    snprintf(path, sizeof path, "%.24s[%zu]%s%s", outer, i, inner.param[0] ? "." : "", inner.param);
    snprintf(e->param, sizeof e->param, "%.63s", path);
    snprintf(e->message, sizeof e->message, "%.24s[%zu].%.400s", outer, i, inner.message);
}

/* ---- a field ---- */

static enum status apply_used(const struct field_set *set, const struct field *row,
                              const struct jdoc *v, void *at, struct api_error *e)
{
    enum status st = OK;
    switch (row->kind) {
    case FIELD_INT:
        return apply_int(set, row, v, at, e);
    case FIELD_NUMBER:
        return apply_number(row, v, at, e);
    case FIELD_STRING:
        return apply_string(row, v, at, e);
    case FIELD_CHOICE:
        return apply_choice(row, v, at, e);
    case FIELD_BOOL:
        if (jdoc_type(v) != JDOC_BOOL)
            return field_wrong_type(row->name, v, "a boolean", e);
        *(bool *)at = jdoc_bool(v);
        return OK;
    case FIELD_STRINGS:
        st = check_strings(row, v, e);
        break;
    case FIELD_TOKENS:
        st = field_tokens(row->name, v, row->int_max, set->vocab, NULL, e);
        break;
    case FIELD_BIAS:
        st = check_bias(row, v, set->vocab, e);
        break;
    case FIELD_ARRAY:
        if (jdoc_type(v) != JDOC_ARRAY)
            return field_wrong_type(row->name, v, "an array", e);
        break;
    case FIELD_OBJECT:
        if (jdoc_type(v) != JDOC_OBJECT)
            return field_wrong_type(row->name, v, "an object", e);
        break;
    case FIELD_OBJECTS:
        st = check_objects(row, v, e);
        break;
    case FIELD_MAP:
        st = check_map(row, v, e);
        break;
    case FIELD_PROMPT:
    case FIELD_ANY:
        break;
    }
    if (st == OK)
        *(const struct jdoc **)at = v;
    return st;
}

static enum status refuse(const char *name, const struct jdoc *value, const char *why,
                          struct api_error *e)
{
    char text[80];
    enum status st = api_error_field(e, name, "%s is not supported, got %s; %s", name,
                                     field_text(value, text, sizeof text), why);
    e->code = "unsupported_parameter";
    return st;
}

enum status field_unsupported(const char *name, const struct jdoc *value, struct api_error *e)
{
    return refuse(name, value, "leave it out", e);
}

/* The type is checked first, so that a misspelt value is not called unsupported. */
static enum status apply_unsupported(const struct field_set *set, const struct field *row,
                                     const struct jdoc *v, struct api_error *e)
{
    union {
        int64_t i;
        double d;
        bool b;
        const void *p;
        struct field_string s;
    } got = {0};
    bool neutral = false;
    enum status st = apply_used(set, row, v, &got, e);
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
        neutral = field_string_is(&got.s, row->neutral_text ? row->neutral_text : "");
        break;
    case FIELD_ARRAY:
    case FIELD_OBJECT:
        neutral = jdoc_size(v) == 0;
        break;
    case FIELD_CHOICE:
    case FIELD_OBJECTS:
    case FIELD_MAP:
    case FIELD_STRINGS:
    case FIELD_TOKENS:
    case FIELD_BIAS:
    case FIELD_PROMPT:
    case FIELD_ANY:
        break;
    }
    return neutral ? OK : refuse(row->name, v, row->why ? row->why : "leave it out", e);
}

/* An error inside carries the name of the outer field: that is what a client can look up. The
 * message says the whole path. */
static enum status apply_members(const struct field_set *set, const struct field *row,
                                 const struct jdoc *v, void *target, struct field_unknown *unknown,
                                 struct api_error *e)
{
    const struct field_set members = {.parts = {{row->members, row->member_count, 0}},
                                      .vocab = set->vocab};
    if (jdoc_type(v) != JDOC_OBJECT)
        return field_wrong_type(row->name, v, "an object", e);
    enum status st = field_apply(&members, v, target, unknown, e);
    if (st != OK) {
        struct api_error inner = *e;
        snprintf(e->param, sizeof e->param, "%s", row->name);
        snprintf(e->message, sizeof e->message, "%s.%.400s", row->name, inner.message);
    }
    return st;
}

static enum status apply_row(const struct field_set *set, const struct field *row,
                             const struct jdoc *v, void *target, struct field_unknown *unknown,
                             struct api_error *e)
{
    switch (row->use) {
    case FIELD_USED:
        return row->kind == FIELD_OBJECT ? apply_members(set, row, v, target, unknown, e)
                                         : apply_used(set, row, v, (char *)target + row->offset, e);
    case FIELD_UNSUPPORTED:
        return apply_unsupported(set, row, v, e);
    case FIELD_IGNORED:
        break;
    }
    return OK;
}

enum status field_apply(const struct field_set *set, const struct jdoc *object, void *target,
                        struct field_unknown *unknown, struct api_error *e)
{
    const char *name;
    const struct jdoc *value;
    const struct field *row;
    size_t base;
    enum status st = OK;
    for (void *i = jdoc_iter(object, NULL, &name, &value); i && st == OK;
         i = jdoc_iter(object, i, &name, &value)) {
        row = find(set, name, &base);
        if (row && jdoc_type(value) != JDOC_NULL)
            st = apply_row(set, row, value, (char *)target + base, unknown, e);
        else if (!row && unknown->count < FIELD_UNKNOWN_MAX)
            snprintf(unknown->names[unknown->count++], sizeof unknown->names[0], "%s", name);
    }
    for (size_t i = 0; st == OK && (row = field_at(set, i)); i++)
        if (row->required && !jdoc_get_value(object, row->name))
            st = api_error_field(e, row->name, "%s is missing", row->name);
    return st;
}

enum status field_apply_item(const struct field *row, const struct jdoc *array, size_t i,
                             void *target, struct field_unknown *unknown, struct api_error *e)
{
    const struct field_set members = {.parts = {{row->members, row->member_count, 0}}};
    enum status st = field_apply(&members, jdoc_at(array, i), target, unknown, e);
    if (st == ERR_INPUT)
        field_prefix(e, row->name, i);
    return st;
}
