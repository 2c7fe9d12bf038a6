#include "config/speculation.h"

#include "config/jdoc.h"

#include <stddef.h>
#include <string.h>

#define OPTION "--speculative-config"

/* What is guessed unless the user says otherwise: two tokens are found again by chance often
 * enough, but the scheduler counts how often guesses come true, for each length (engine/ngram.h).
 */
static const struct speculation usual = {.tokens = 7, .shortest = 2, .longest = 8};

static const struct {
    const char *name;
    size_t offset;
    int32_t max;
} members[] = {
    {"num_speculative_tokens", offsetof(struct speculation, tokens), SPECULATION_TOKENS_MAX},
    {"prompt_lookup_min", offsetof(struct speculation, shortest), SPECULATION_GRAM_MAX},
    {"prompt_lookup_max", offsetof(struct speculation, longest), SPECULATION_GRAM_MAX},
};

static enum status unknown(const char *key, struct err *err)
{
    const char *near = "method";
    for (size_t i = 0; i < ARRAY_LEN(members); i++)
        if (base_edit_distance(key, members[i].name) < base_edit_distance(key, near))
            near = members[i].name;
    return base_fail(err, ERR_USAGE, OPTION ": unknown member \"%.80s\"; did you mean %s?", key,
                     near);
}

static enum status check_method(const struct jdoc *value, struct err *err)
{
    if (jdoc_type(value) == JDOC_STRING && strcmp(jdoc_string(value), "ngram") == 0)
        return OK;
    return base_fail(err, ERR_USAGE, OPTION ": method is %s%.40s%s, expected \"ngram\"",
                     jdoc_type(value) == JDOC_STRING ? "\"" : "",
                     jdoc_type(value) == JDOC_STRING ? jdoc_string(value)
                                                     : jdoc_type_name(jdoc_type(value)),
                     jdoc_type(value) == JDOC_STRING ? "\"" : "");
}

static enum status read_member(const char *key, const struct jdoc *value, struct speculation *out,
                               struct err *err)
{
    if (strcmp(key, "method") == 0)
        return check_method(value, err);
    for (size_t i = 0; i < ARRAY_LEN(members); i++) {
        int64_t n = 0;
        if (strcmp(key, members[i].name) != 0)
            continue;
        if (!jdoc_whole(value, &n) || n < 1 || n > members[i].max)
            return base_fail(err, ERR_USAGE, OPTION ": %s: expected a whole number from 1 to %d",
                             key, members[i].max);
        *(int32_t *)((char *)out + members[i].offset) = (int32_t)n;
        return OK;
    }
    return unknown(key, err);
}

static enum status read_object(const struct jdoc *root, struct speculation *out, struct err *err)
{
    enum status st = OK;
    struct speculation s = usual;
    const char *key;
    const struct jdoc *value;
    for (void *i = NULL; (i = jdoc_iter(root, i, &key, &value));)
        TRY(read_member(key, value, &s, err));
    /* one that is given alone takes the other along */
    if (s.shortest > s.longest && !jdoc_get(root, "prompt_lookup_max"))
        s.longest = s.shortest;
    if (s.shortest > s.longest && !jdoc_get(root, "prompt_lookup_min"))
        s.shortest = s.longest;
    if (s.shortest > s.longest) {
        st =
            base_fail(err, ERR_USAGE, OPTION ": prompt_lookup_min %d is above prompt_lookup_max %d",
                      s.shortest, s.longest);
        goto out;
    }
    *out = s;
out:
    return st;
}

enum status speculation_parse(const char *text, struct speculation *out, struct err *err)
{
    struct jdoc *root = NULL;
    if (strcmp(text, "none") == 0) {
        *out = (struct speculation){0};
        return OK;
    }
    if (strcmp(text, "ngram") == 0) {
        *out = usual;
        return OK;
    }
    if (text[strspn(text, " \t\r\n")] != '{')
        return base_fail(err, ERR_USAGE,
                         OPTION ": got \"%.80s\", expected none, ngram or a JSON object with "
                                "method, num_speculative_tokens, prompt_lookup_min and "
                                "prompt_lookup_max",
                         text);
    enum status st = jdoc_parse(text, strlen(text), &jdoc_limits_config, OPTION, &root, err);
    if (st == OK)
        st = read_object(root, out, err);
    jdoc_close(root);
    return st == OK ? OK : ERR_USAGE;
}
