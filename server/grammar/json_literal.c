#include "server/grammar/json_literal.h"

#include "config/buf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* With as few digits as tell it from others. */
static void write_real(double value, struct buf *out)
{
    char text[40];
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    buf_puts(out, text);
    if (!strpbrk(text, ".e"))
        buf_puts(out, ".0");
}

/* A value without parts. */
static int32_t scalar(const struct json_text *t, const struct jdoc *v, int32_t next)
{
    struct buf text;
    buf_init(&text, (size_t)1 << 20);
    if (jdoc_type(v) == JDOC_REAL)
        write_real(jdoc_number(v), &text);
    else
        jdoc_write(v, &text);
    if (text.failed)
        grammar_break(t->g, &text);
    else
        next = grammar_text(t->g, text.data, text.len, next);
    buf_free(&text);
    return next;
}

/* What stands behind one of several: a comma and the next one, or the end. */
static int32_t join(const struct json_text *t, bool last, int32_t next)
{
    return last ? grammar_call(t->g, t->space, next) : json_text_word(t, ",", next);
}

/* The elements, then the bracket at `next`. */
static int32_t elements(const struct json_text *t, const struct jdoc *list, int32_t next)
{
    const size_t n = jdoc_size(list);
    for (size_t i = n; i-- > 0 && !grammar_failed(t->g);)
        next = json_literal(t, jdoc_at(list, i), join(t, i + 1 == n, next));
    return next;
}

struct member {
    const char *name;
    const struct jdoc *value;
};

/* The members in their order, then the brace at `next`. */
static int32_t members(const struct json_text *t, const struct jdoc *object, int32_t next)
{
    size_t n = 0;
    struct member m, *list = calloc(jdoc_size(object) + 1, sizeof *list);
    if (!list)
        return GRAMMAR_NEVER;
    for (void *i = jdoc_iter(object, NULL, &m.name, &m.value); i;
         i = jdoc_iter(object, i, &m.name, &m.value))
        list[n++] = m;
    for (size_t i = n; i-- > 0 && !grammar_failed(t->g);)
        next = json_text_name(t, list[i].name,
                              json_literal(t, list[i].value, join(t, i + 1 == n, next)));
    free(list);
    return next;
}

/* A value that is given, with its members in their order. */
int32_t json_literal(const struct json_text *t, const struct jdoc *v, int32_t next)
{
    if (jdoc_type(v) == JDOC_ARRAY)
        return json_text_word(t, "[", elements(t, v, grammar_text(t->g, "]", 1, next)));
    if (jdoc_type(v) == JDOC_OBJECT)
        return json_text_word(t, "{", members(t, v, grammar_text(t->g, "}", 1, next)));
    return scalar(t, v, next);
}
