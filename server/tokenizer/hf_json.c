#include "server/tokenizer/hf_json.h"

#include <stdio.h>

struct hf_json_place hf_json_place(const char *fmt, ...)
{
    struct hf_json_place place;
    va_list args;
    va_start(args, fmt);
    vsnprintf(place.text, sizeof place.text, fmt, args);
    va_end(args);
    return place;
}

enum status hf_json_bad(const struct hf_json *j, const char *place, const char *fmt, ...)
{
    char text[300];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return base_fail(j->err, ERR_MODEL, "%s: %s: %s", j->where, place, text);
}

enum status hf_json_unsupported(const struct hf_json *j, const char *place, const char *what)
{
    return hf_json_bad(j, place, "%.60s is not supported", what);
}

enum status hf_json_check(const struct hf_json *j, const struct jdoc *v, const char *place,
                          enum jdoc_type type)
{
    if (jdoc_type(v) == type)
        return OK;
    return hf_json_bad(j, place, "%s, expected %s", jdoc_type_name(jdoc_type(v)),
                       jdoc_type_name(type));
}

enum status hf_json_optional(const struct hf_json *j, const struct jdoc *object, const char *place,
                             const char *key, enum jdoc_type type, const struct jdoc **out)
{
    const struct jdoc *v = jdoc_get_value(object, key);
    enum status st = OK;
    if (v)
        st = hf_json_check(j, v, hf_json_place("%s.%s", place, key).text, type);
    if (v && st == OK)
        *out = v;
    return st;
}

enum status hf_json_member(const struct hf_json *j, const struct jdoc *object, const char *place,
                           const char *key, enum jdoc_type type, const struct jdoc **out)
{
    if (!jdoc_get_value(object, key))
        return hf_json_bad(j, place, "has no %s", key);
    return hf_json_optional(j, object, place, key, type, out);
}

enum status hf_json_bool(const struct hf_json *j, const struct jdoc *object, const char *place,
                         const char *key, bool *out)
{
    const struct jdoc *v = NULL;
    enum status st = hf_json_optional(j, object, place, key, JDOC_BOOL, &v);
    if (v)
        *out = jdoc_bool(v);
    return st;
}

enum status hf_json_string(const struct hf_json *j, const struct jdoc *object, const char *place,
                           const char *key, const char **out)
{
    const struct jdoc *v = NULL;
    enum status st = hf_json_member(j, object, place, key, JDOC_STRING, &v);
    if (v)
        *out = jdoc_string(v);
    return st;
}
