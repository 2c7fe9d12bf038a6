/* DESIGN: a list of (tool, its length ended by NUL; argument, the same; a letter for the type) that
 * is walked from its beginning: a request is asked once per argument that the model has written,
 * which takes the model much longer. */
#include "server/answer/call_types.h"

#include "server/answer/call.h"

#include <string.h>

enum { HAS_TEXT = 1, HAS_NULL = 2, HAS_OTHER = 4, DEPTH_MAX = 8 };

static bool is(const struct jdoc *v, const char *text)
{
    return jdoc_string_len(v) == strlen(text) && memcmp(jdoc_string(v), text, strlen(text)) == 0;
}

static int of_name(const struct jdoc *v)
{
    if (jdoc_type(v) != JDOC_STRING)
        return HAS_OTHER;
    return is(v, "string") ? HAS_TEXT : is(v, "null") ? HAS_NULL : HAS_OTHER;
}

static int of_value(const struct jdoc *v)
{
    return jdoc_type(v) == JDOC_STRING ? HAS_TEXT
           : jdoc_type(v) == JDOC_NULL ? HAS_NULL
                                       : HAS_OTHER;
}

/* Of all that a list has. */
static int of_each(const struct jdoc *list, int (*of)(const struct jdoc *v))
{
    int all = 0;
    for (size_t i = 0; i < jdoc_size(list); i++)
        all |= of(jdoc_at(list, i));
    return all ? all : HAS_OTHER;
}

/* What a schema lets through; of keywords that leave it open HAS_OTHER. */
static int of_schema(const struct jdoc *schema, int depth)
{
    static const char *const unions[] = {"anyOf", "oneOf"};
    if (jdoc_type(schema) != JDOC_OBJECT || depth == DEPTH_MAX)
        return HAS_OTHER;
    const struct jdoc *type = jdoc_get_value(schema, "type");
    const struct jdoc *values = jdoc_get_value(schema, "enum");
    const struct jdoc *value = jdoc_get_value(schema, "const");
    if (type)
        return jdoc_type(type) == JDOC_ARRAY ? of_each(type, of_name) : of_name(type);
    if (values && jdoc_type(values) == JDOC_ARRAY)
        return of_each(values, of_value);
    if (value)
        return of_value(value);
    for (size_t i = 0; i < ARRAY_LEN(unions); i++) {
        const struct jdoc *list = jdoc_get_value(schema, unions[i]);
        int all = 0;
        if (!list || jdoc_type(list) != JDOC_ARRAY)
            continue;
        for (size_t j = 0; j < jdoc_size(list); j++)
            all |= of_schema(jdoc_at(list, j), depth + 1);
        return all ? all : HAS_OTHER;
    }
    return HAS_OTHER;
}

static void add_tool(const struct jdoc *function, struct buf *out)
{
    const struct jdoc *name = jdoc_member(function, "name", JDOC_STRING);
    const struct jdoc *properties =
        jdoc_member(jdoc_member(function, "parameters", JDOC_OBJECT), "properties", JDOC_OBJECT);
    const struct jdoc *schema;
    const char *key;
    if (!properties || !name || !call_is_name(jdoc_string(name), jdoc_string_len(name)))
        return;
    for (void *at = NULL; (at = jdoc_iter(properties, at, &key, &schema)) != NULL;) {
        const int has = of_schema(schema, 0);
        if ((has & HAS_TEXT) == 0 || (has & HAS_OTHER) != 0)
            continue;
        buf_add(out, jdoc_string(name), jdoc_string_len(name) + 1);
        buf_add(out, key, strlen(key) + 1);
        buf_puts(out, (has & HAS_NULL) != 0 ? "n" : "t");
    }
}

void call_types_add(const struct jdoc *tools, struct buf *out)
{
    for (size_t i = 0; tools && i < jdoc_size(tools); i++)
        add_tool(jdoc_member(jdoc_at(tools, i), "function", JDOC_OBJECT), out);
}

enum call_type call_types_find(const char *types, size_t n, const char *tool, const char *key,
                               size_t key_len)
{
    for (size_t i = 0; i < n;) {
        const char *own = types + i, *argument = own + strlen(own) + 1;
        const size_t len = strlen(argument);
        if (strcmp(own, tool) == 0 && len == key_len && memcmp(argument, key, len) == 0)
            return argument[len + 1] == 'n' ? CALL_TYPE_TEXT_OR_NULL : CALL_TYPE_TEXT;
        i = (size_t)(argument + len + 2 - types);
    }
    return CALL_TYPE_ANY;
}
