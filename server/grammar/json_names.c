#include "server/grammar/json_names.h"

#include "config/utf8.h"
#include "server/grammar/json_format.h"
#include "server/grammar/json_string.h"
#include "server/grammar/pattern_match.h"

#include <string.h>

static enum status read_written(const struct json_scope *s, const struct jdoc *v,
                                struct json_names *out, struct err *err)
{
    enum status st = OK;
    int32_t first;
    TRY(json_string_build(s, v, &first, err));
    *out = (struct json_names){JSON_NAMES_WRITTEN, v, NULL, grammar_rule(s->t.g)};
    grammar_define(s->t.g, out->rule, first);
out:
    return st;
}

static enum status read(const struct json_scope *s, const struct jdoc *v, struct json_names *out,
                        struct err *err)
{
    struct json_keywords k;
    struct err why;
    v = json_scope_follow(s, v);
    if (!v)
        return JSON_SCOPE_FAIL(s, err, "%s", "$ref must name a part of this schema");
    const struct json_names none = {.kind = JSON_NAMES_LISTED};
    if (jdoc_type(v) == JDOC_BOOL) {
        *out = jdoc_bool(v) ? (struct json_names){.kind = JSON_NAMES_ANY} : none;
        return OK;
    }
    if (json_keywords_read(v, &k, &why) != OK)
        return JSON_SCOPE_FAIL(s, err, "%s", why.text);
    const bool strings = !k.typed || (k.types & JSON_STRING) != 0;
    const bool one = k.leading && strcmp(k.leading, "const") == 0;
    if (k.leading && !one && strcmp(k.leading, "enum") != 0)
        return JSON_SCOPE_FAIL(s, err, "%s is not supported for names", k.leading);
    if (k.leading && !one && jdoc_type(jdoc_get(v, "enum")) != JDOC_ARRAY)
        return JSON_SCOPE_FAIL(s, err, "%s", "enum must be a list with at least one value");
    if (!strings)
        *out = none;
    else if (k.leading)
        *out = (struct json_names){JSON_NAMES_LISTED, v, jdoc_get(v, k.leading), 0};
    else if (jdoc_get(v, "minLength") || jdoc_get(v, "maxLength") || jdoc_get(v, "pattern") ||
             jdoc_get(v, "format"))
        return read_written(s, v, out, err);
    return OK;
}

enum status json_names_read(struct json_scope *s, const struct jdoc *property_names,
                            struct json_names *out, struct err *err)
{
    *out = (struct json_names){.kind = JSON_NAMES_ANY};
    if (!property_names)
        return OK;
    const size_t here = json_scope_enter(s, "propertyNames", NULL);
    const enum status st = read(s, property_names, out, err);
    s->path.len = here;
    return st;
}

const char *json_names_listed(const struct json_names *names, size_t i, bool *end)
{
    const bool list = names->values && jdoc_get(names->schema, "const") == NULL;
    *end = !names->values || i >= (list ? jdoc_size(names->values) : 1);
    const struct jdoc *v = *end ? NULL : list ? jdoc_at(names->values, i) : names->values;
    return v && jdoc_type(v) == JDOC_STRING && strlen(jdoc_string(v)) == jdoc_string_len(v)
               ? jdoc_string(v)
               : NULL;
}

static enum status matches(struct json_scope *s, const char *pattern, size_t n, bool whole,
                           const char *name, bool *fits, struct err *err)
{
    enum status st = OK;
    struct err why;
    struct pattern_match *m = NULL;
    st = pattern_match_open(pattern, n, whole, &m, &why);
    if (st == OK)
        st = pattern_match_fits(m, name, &s->match_steps, fits, &why);
    pattern_match_close(m);
    return st == OK ? OK : json_scope_fail(s, st, &why, err);
}

/* The keywords are of the right types, since a rule was made of them. */
static enum status is_written(struct json_scope *s, const struct jdoc *v, const char *name,
                              bool *fits, struct err *err)
{
    enum status st = OK;
    int64_t min = 0, max = INT64_MAX;
    const struct jdoc *pattern = jdoc_get(v, "pattern"), *format = jdoc_get(v, "format");
    const char *known = format ? json_format_pattern(jdoc_string(format)) : NULL;
    const int64_t length = (int64_t)utf8_count(name, strlen(name));
    if (pattern)
        return matches(s, jdoc_string(pattern), jdoc_string_len(pattern), false, name, fits, err);
    if (known)
        return matches(s, known, strlen(known), true, name, fits, err);
    TRY(json_scope_count(s, v, "minLength", &min, err));
    TRY(json_scope_count(s, v, "maxLength", &max, err));
    *fits = length >= min && length <= max;
out:
    return st;
}

enum status json_names_check(struct json_scope *s, const struct json_names *names, const char *name,
                             struct err *err)
{
    size_t i = 0;
    bool fits = names->kind == JSON_NAMES_ANY, end = names->kind != JSON_NAMES_LISTED;
    for (; !end && !fits; i++) {
        const char *one = json_names_listed(names, i, &end);
        fits = one && strcmp(one, name) == 0;
    }
    const size_t here = json_scope_enter(s, "propertyNames", NULL);
    enum status st = i > 0 ? json_scope_compare(s, (int64_t)i, err) : OK;
    if (st == OK && names->kind == JSON_NAMES_WRITTEN)
        st = is_written(s, names->schema, name, &fits, err);
    if (st == OK && !fits)
        st = JSON_SCOPE_FAIL(s, err, "the member \"%.64s\" does not fulfil it", name);
    s->path.len = here;
    return st;
}
