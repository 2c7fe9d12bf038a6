#include "server/grammar/json_string.h"

#include "server/grammar/json_format.h"
#include "server/grammar/pattern.h"

#include <string.h>

static enum status build_pattern(const struct json_scope *s, const char *pattern, size_t n,
                                 bool whole, int32_t *first, struct err *err)
{
    struct err why;
    const int32_t end = grammar_text(s->t.g, "\"", 1, GRAMMAR_END);
    const enum status st = pattern_build(s->t.g, pattern, n, PATTERN_JSON, whole, end, first, &why);
    if (st != OK)
        return json_scope_fail(s, st, &why, err);
    *first = grammar_text(s->t.g, "\"", 1, *first);
    return OK;
}

enum status json_string_build(const struct json_scope *s, const struct jdoc *v, int32_t *first,
                              struct err *err)
{
    enum status st = OK;
    int64_t min = 0, max = -1;
    const struct jdoc *pattern = jdoc_get(v, "pattern"), *format = jdoc_get(v, "format");
    TRY(json_scope_count(s, v, "minLength", &min, err));
    TRY(json_scope_count(s, v, "maxLength", &max, err));
    const bool counts = min > 0 || max >= 0;
    if ((pattern && jdoc_type(pattern) != JDOC_STRING) ||
        (format && jdoc_type(format) != JDOC_STRING))
        return JSON_SCOPE_FAIL(s, err, "%s must be a string", pattern ? "pattern" : "format");
    if ((pattern || format) && counts)
        return JSON_SCOPE_FAIL(s, err, "%s cannot be combined with minLength or maxLength",
                               pattern ? "pattern" : "format");
    if (pattern) /* a format beside it is an annotation */
        return build_pattern(s, jdoc_string(pattern), jdoc_string_len(pattern), false, first, err);
    if (format) {
        const char *known = json_format_pattern(jdoc_string(format));
        const char *near = known ? NULL : json_format_nearest(jdoc_string(format));
        if (!known)
            return JSON_SCOPE_FAIL(s, err, "format %.40s is not supported%s%s%s",
                                   jdoc_string(format), near ? "; did you mean " : "",
                                   near ? near : "", near ? "?" : "");
        return build_pattern(s, known, strlen(known), true, first, err);
    }
    const int32_t end = grammar_text(s->t.g, "\"", 1, GRAMMAR_END);
    *first = counts ? grammar_text(s->t.g, "\"", 1,
                                   grammar_repeat(s->t.g, s->t.character, min, max, end))
                    : grammar_call(s->t.g, s->t.string, GRAMMAR_END);
out:
    return st;
}
