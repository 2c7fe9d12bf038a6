#include "server/grammar/json_array.h"

static int32_t rule_at(const struct json_elements *e, int64_t i)
{
    return i < e->prefix_count ? e->prefix[i] : e->item;
}

/* From the end: what may come after i elements, and the element that follows them. */
int32_t json_array_build(const struct json_text *t, const struct json_elements *e)
{
    struct grammar *g = t->g;
    const int32_t close = grammar_text(g, "]", 1, GRAMMAR_END);
    const int32_t last = grammar_call(g, t->space, close);
    if (e->max >= 0 && e->max < e->min)
        return GRAMMAR_NEVER;
    int64_t count = e->max;
    int32_t after = last; /* `count` elements */
    if (count < 0) {
        count = base_max64(base_max64(e->prefix_count, e->min), 1);
        const int32_t loop = grammar_fork(g);
        grammar_fork_set(g, loop, last, json_text_word(t, ",", grammar_call(g, e->item, loop)));
        after = loop;
    }
    int32_t element = GRAMMAR_NEVER; /* number `count` and those after it */
    for (int64_t i = count - 1; i >= 0 && !grammar_failed(g); i--) {
        element = grammar_call(g, rule_at(e, i), after);
        after =
            grammar_either(g, i >= e->min ? last : GRAMMAR_NEVER, json_text_word(t, ",", element));
    }
    const int32_t empty = e->min <= 0 ? close : GRAMMAR_NEVER;
    return json_text_word(t, "[", grammar_either(g, empty, element));
}
