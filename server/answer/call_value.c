#include "server/answer/call_value.h"

#include "server/answer/call.h"

#include <string.h>

static bool is_word(const char *text, size_t n, const char *word)
{
    return n == strlen(word) && memcmp(text, word, n) == 0;
}

/* As JSON, or NULL: it is none. */
static const char *as_json(const char *text, size_t *n, bool *no_memory)
{
    static const char *const words[][2] = {{"True", "true"}, {"False", "false"}, {"None", "null"}};
    struct jdoc_limits within = jdoc_limits_call; /* the object of all arguments */
    struct jdoc *v = NULL;
    struct err err;
    for (; *n > 0 && call_is_space(*text); text++)
        --*n;
    while (*n > 0 && call_is_space(text[*n - 1]))
        --*n;
    for (size_t i = 0; i < ARRAY_LEN(words); i++)
        if (is_word(text, *n, words[i][0])) {
            *n = strlen(words[i][1]);
            return words[i][1];
        }
    within.depth_max--;
    const enum status st = jdoc_parse(text, *n, &within, "value", &v, &err);
    jdoc_close(v);
    *no_memory |= st == ERR_NOMEM;
    return st == OK ? text : NULL;
}

void call_value_add(struct buf *out, enum call_type type, const char *text, size_t n,
                    bool *no_memory)
{
    size_t len = n;
    const char *json = type == CALL_TYPE_TEXT ? NULL : as_json(text, &len, no_memory);
    if (json && type == CALL_TYPE_TEXT_OR_NULL && !is_word(json, len, "null"))
        json = NULL;
    if (json)
        buf_add(out, json, len);
    else
        buf_json(out, text, n);
}
