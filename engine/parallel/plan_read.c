/* The words and keys of a plan file. */
#include "engine/parallel/plan_rules.h"

#include <stdio.h>
#include <string.h>

int plan_read_index(const char *const *names, size_t count, const char *word)
{
    for (size_t i = 0; word && i < count; i++)
        if (strcmp(names[i], word) == 0)
            return (int)i;
    return -1;
}

const char *plan_read_member(const struct jdoc *o, const char *key)
{
    const struct jdoc *v = jdoc_type(o) == JDOC_OBJECT ? jdoc_get_value(o, key) : NULL;
    return v && jdoc_type(v) == JDOC_STRING ? jdoc_string(v) : NULL;
}

/* "|a|b|c|" as "a, b or c"; returns buf. */
#define CHOICES_MAX 160
static const char *in_words(const char *allowed, char buf[CHOICES_MAX])
{
    int at = 0;
    buf[0] = '\0';
    for (const char *word = allowed + 1; *word && at < CHOICES_MAX;) {
        const int n = (int)strcspn(word, "|");
        const bool last = word[n + 1] == '\0';
        at += snprintf(buf + at, CHOICES_MAX - (size_t)at, "%s%.*s",
                       word == allowed + 1 ? ""
                       : last              ? " or "
                                           : ", ",
                       n, word);
        word += n + 1;
    }
    return buf;
}

enum status plan_read_word(const struct plan_at *at, const struct jdoc *o, const char *key,
                           const char *allowed, const char *fallback, const char **out,
                           struct err *err)
{
    const struct jdoc *v = jdoc_get_value(o, key);
    char bars[64];
    *out = v ? plan_read_member(o, key) : fallback;
    if (*out) {
        snprintf(bars, sizeof bars, "|%.60s|", *out);
        if (!strchr(*out, '|') && strstr(allowed, bars))
            return OK;
    }
    char choices[CHOICES_MAX];
    return base_fail(err, ERR_USAGE, "%s: %s is %s%.60s%s, expected %s", at->where, key,
                     *out ? "\"" : "",
                     *out ? *out
                     : v  ? "not a word"
                          : "missing",
                     *out ? "\"" : "", in_words(allowed, choices));
}

enum status plan_read_keys(const struct jdoc *o, const char *allowed, const char *where,
                           struct err *err)
{
    const char *key = NULL;
    const struct jdoc *value = NULL;
    if (jdoc_type(o) != JDOC_OBJECT)
        return base_fail(err, ERR_USAGE, "%s: expected a JSON object", where);
    for (void *it = jdoc_iter(o, NULL, &key, &value); it; it = jdoc_iter(o, it, &key, &value)) {
        char bars[64], choices[CHOICES_MAX];
        snprintf(bars, sizeof bars, "|%.60s|", key);
        if (strchr(key, '|') || !strstr(allowed, bars))
            return base_fail(err, ERR_USAGE, "%s: key \"%.60s\" is not known, expected %s", where,
                             key, in_words(allowed, choices));
    }
    return OK;
}
