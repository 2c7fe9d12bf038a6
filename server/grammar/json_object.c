#include "server/grammar/json_object.h"

#include "config/buf.h"
#include "config/utf8.h"

#include <stdlib.h>
#include <string.h>

/* ---- names that are not given ones ---- */

enum { NAME_CHARACTERS_MAX = 256 };

struct name {
    const uint32_t *characters;
    int32_t count;
};

struct names {
    const struct json_text *t;
    int32_t rest; /* the plain characters of a name that is another already, and its quote */
    int32_t end;  /* what follows the quote */
};

static int by_characters(const void *a, const void *b)
{
    const struct name *x = a, *y = b;
    for (int32_t i = 0; i < x->count && i < y->count; i++)
        if (x->characters[i] != y->characters[i])
            return x->characters[i] < y->characters[i] ? -1 : 1;
    return (x->count > y->count) - (x->count < y->count);
}

/* Names of which the first `depth` characters are those of the n given ones, which are sorted. */
static int32_t other_names(const struct names *s, const struct name *given, int32_t n,
                           int32_t depth)
{
    struct grammar *g = s->t->g;
    const bool ends = n > 0 && given[0].count == depth;
    int32_t all = ends ? GRAMMAR_NEVER : grammar_text(g, "\"", 1, s->end), i = 0;
    uint32_t from = 0;
    while (i < n && given[i].count == depth)
        i++;
    while (i < n && !grammar_failed(g)) {
        const uint32_t c = given[i].characters[depth];
        int32_t same = 1;
        while (i + same < n && given[i + same].characters[depth] == c)
            same++;
        if (c > from)
            all = grammar_either(g, all, json_text_plain(s->t, from, c - 1, s->rest));
        const int32_t way = other_names(s, given + i, same, depth + 1);
        all = grammar_either(g, all, json_text_plain(s->t, c, c, way));
        from = c + 1;
        i += same;
    }
    return grammar_either(g, all, json_text_plain(s->t, from, 0x10ffff, s->rest));
}

static enum status read_name(const char *text, struct buf *characters, struct name *out,
                             struct err *err)
{
    *out = (struct name){NULL, 0};
    for (size_t n = strlen(text), k; n > 0; text += k, n -= k) {
        k = utf8_char(text, n);
        const uint32_t c = utf8_code(text, k);
        buf_add(characters, &c, sizeof c);
        if (++out->count > NAME_CHARACTERS_MAX)
            return base_fail(err, ERR_INPUT,
                             "a name of more than %d characters beside additionalProperties is not "
                             "supported",
                             NAME_CHARACTERS_MAX);
    }
    return OK;
}

/* A name that is none of the members', from its first quote to its last, then `end`. */
static enum status build_other_name(const struct json_text *t, const struct json_member *members,
                                    int32_t count, int32_t end, int32_t *first, struct err *err)
{
    enum status st = OK;
    struct grammar *g = t->g;
    struct buf characters;
    buf_init(&characters, (size_t)1 << 24);
    struct name *names = calloc((size_t)count + 1, sizeof *names);
    if (!names)
        return base_fail(err, ERR_NOMEM, "no memory for a schema");
    for (int32_t i = 0; i < count; i++)
        TRY(read_name(members[i].name, &characters, &names[i], err));
    if (characters.failed) {
        st = base_fail(err, ERR_NOMEM, "no memory for a schema");
        goto out;
    }
    const uint32_t *at = (const uint32_t *)(const void *)characters.data;
    for (int32_t i = 0; i < count; at += names[i++].count)
        names[i].characters = at;
    qsort(names, (size_t)count, sizeof *names, by_characters);
    const int32_t loop = grammar_fork(g);
    grammar_fork_set(g, loop, grammar_text(g, "\"", 1, end), json_text_plain(t, 0, 0x10ffff, loop));
    const struct names s = {t, loop, end};
    *first = grammar_text(g, "\"", 1, other_names(&s, names, count, 0));
out:
    buf_free(&characters);
    free(names);
    return st;
}

/* ---- objects ---- */

/* The rule of a member with another name. */
static enum status build_other(const struct json_text *t, const struct json_member *members,
                               int32_t count, int32_t other, int32_t *rule, struct err *err)
{
    enum status st = OK;
    const int32_t value = json_text_word(t, ":", grammar_call(t->g, other, GRAMMAR_END));
    int32_t first = grammar_call(t->g, t->string, value);
    if (count > 0)
        TRY(build_other_name(t, members, count, value, &first, err));
    *rule = grammar_rule(t->g);
    grammar_define(t->g, *rule, first);
out:
    return st;
}

enum status json_object_build(const struct json_text *t, const struct json_member *members,
                              int32_t count, int32_t other, int32_t *first, struct err *err)
{
    enum status st = OK;
    struct grammar *g = t->g;
    const int32_t close = grammar_text(g, "}", 1, GRAMMAR_END);
    const int32_t last = grammar_call(g, t->space, close);
    int32_t key = GRAMMAR_NEVER; /* the members from number i on, the first of which comes next */
    int32_t rest = last;         /* what may follow the member before */
    bool may_end = true;
    if (other >= 0) {
        int32_t rule;
        TRY(build_other(t, members, count, other, &rule, err));
        rest = grammar_fork(g);
        key = grammar_call(g, rule, rest);
        grammar_fork_set(g, rest, last, json_text_word(t, ",", key));
    }
    for (int32_t i = count - 1; i >= 0 && !grammar_failed(g); i--) {
        const int32_t value = grammar_call(g, members[i].rule, rest);
        const int32_t one = json_text_name(t, members[i].name, value);
        key = members[i].required ? one : grammar_either(g, one, key);
        may_end = may_end && !members[i].required;
        rest = grammar_either(g, json_text_word(t, ",", key), may_end ? last : GRAMMAR_NEVER);
    }
    *first = json_text_word(t, "{", grammar_either(g, key, may_end ? close : GRAMMAR_NEVER));
out:
    return st;
}
