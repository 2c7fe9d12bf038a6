#include "server/grammar/json_unique.h"

#include "server/grammar/json_literal.h"

#include <string.h>

enum { VALUES_MAX = 8 }; /* each set of them is a state */

/* Of two without parts: 1 is 1.0. */
static bool is_same_value(const struct jdoc *a, const struct jdoc *b)
{
    const enum jdoc_type x = jdoc_type(a), y = jdoc_type(b);
    if ((x == JDOC_REAL && (y == JDOC_REAL || y == JDOC_INT)) || (x == JDOC_INT && y == JDOC_REAL))
        return jdoc_number(a) == jdoc_number(b);
    if (x != y)
        return false;
    if (x == JDOC_STRING)
        return jdoc_string_len(a) == jdoc_string_len(b) &&
               memcmp(jdoc_string(a), jdoc_string(b), jdoc_string_len(a)) == 0;
    return x == JDOC_INT ? jdoc_int(a) == jdoc_int(b)
                         : x != JDOC_BOOL || jdoc_bool(a) == jdoc_bool(b);
}

/* Lists and objects would have to be compared in all orders. */
static bool has_no_parts(const struct jdoc *v)
{
    return jdoc_type(v) != JDOC_ARRAY && jdoc_type(v) != JDOC_OBJECT;
}

/* Rules of the different values that the schema names; *count < 0: it does not, or too many. */
static void list_values(const struct json_scope *s, const struct jdoc *items,
                        int32_t rules[VALUES_MAX], int32_t *count)
{
    struct json_keywords k;
    struct err ignored;
    const struct jdoc *v = items ? json_scope_follow(s, items) : NULL;
    const struct jdoc *seen[VALUES_MAX];
    *count = -1;
    if (!v || jdoc_type(v) != JDOC_OBJECT || json_keywords_read(v, &k, &ignored) != OK ||
        !k.leading)
        return;
    const struct jdoc *values = jdoc_get(v, k.leading);
    const bool one = strcmp(k.leading, "const") == 0;
    if (!one && (strcmp(k.leading, "enum") != 0 || jdoc_type(values) != JDOC_ARRAY))
        return;
    int32_t n = 0;
    for (size_t i = 0; i < (one ? 1 : jdoc_size(values)); i++) {
        const struct jdoc *value = one ? values : jdoc_at(values, i);
        bool known = (json_types_of_value(value) & k.types) == 0;
        for (int32_t j = 0; j < n && !known; j++)
            known = is_same_value(seen[j], value);
        if (known)
            continue;
        if (n == VALUES_MAX || !has_no_parts(value))
            return;
        seen[n] = value;
        rules[n] = grammar_rule(s->t.g);
        grammar_define(s->t.g, rules[n++], json_literal(&s->t, value, GRAMMAR_END));
    }
    *count = n;
}

/* Arrays of different ones of the rules. From the full set to the empty one: what may follow when
 * those of a set are there. */
static int32_t build(const struct json_text *t, const int32_t *rules, int32_t count, int64_t min,
                     int64_t max)
{
    struct grammar *g = t->g;
    int32_t after[1 << VALUES_MAX], element = GRAMMAR_NEVER;
    const int32_t close = grammar_text(g, "]", 1, GRAMMAR_END);
    const int32_t last = grammar_call(g, t->space, close);
    for (int32_t set = (1 << count) - 1; set >= 0 && !grammar_failed(g); set--) {
        int64_t size = 0;
        for (int32_t i = 0; i < count; i++)
            size += set >> i & 1;
        element = GRAMMAR_NEVER;
        for (int32_t i = 0; i < count && (max < 0 || size < max); i++)
            if ((set >> i & 1) == 0)
                element =
                    grammar_either(g, element, grammar_call(g, rules[i], after[set | 1 << i]));
        after[set] =
            grammar_either(g, size >= min ? last : GRAMMAR_NEVER, json_text_word(t, ",", element));
    }
    return json_text_word(t, "[", grammar_either(g, min <= 0 ? close : GRAMMAR_NEVER, element));
}

enum status json_unique_build(const struct json_scope *s, const struct jdoc *array, int64_t min,
                              int64_t max, int32_t *first, struct err *err)
{
    int32_t rules[VALUES_MAX], count;
    const struct jdoc *prefix = jdoc_get(array, "prefixItems");
    list_values(s, jdoc_get(array, "items"), rules, &count);
    if (count < 0 || (prefix && jdoc_size(prefix) > 0))
        return JSON_SCOPE_FAIL(s, err,
                               "uniqueItems is supported only where all items are of an enum with "
                               "at most %d values, no lists or objects: a grammar does not "
                               "remember others",
                               VALUES_MAX);
    *first = build(&s->t, rules, count, min, max);
    return OK;
}
