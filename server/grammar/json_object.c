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
    for (int32_t i = 0; i < count; i++) {
        if (names[i].count == 0) /* and there may be no characters at all */
            continue;
        names[i].characters = at;
        at += names[i].count;
    }
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

enum status json_object_other(const struct json_text *t, const struct json_member *members,
                              int32_t count, int32_t value, int32_t *rule, struct err *err)
{
    enum status st = OK;
    const int32_t behind = json_text_word(t, ":", grammar_call(t->g, value, GRAMMAR_END));
    int32_t first = grammar_call(t->g, t->string, behind);
    if (count > 0)
        TRY(build_other_name(t, members, count, behind, &first, err));
    *rule = grammar_rule(t->g);
    grammar_define(t->g, *rule, first);
out:
    return st;
}

/* What is built so far, from the end: by how many members are written before. Where only the least
 * number counts, all from there on are the same. */
struct counted {
    const struct json_text *t;
    const struct json_members *m;
    int32_t most;  /* the last number that is told from others */
    int32_t last;  /* the end behind a member */
    int32_t *key;  /* [most + 1] the members from here on, the first of which comes next */
    int32_t *rest; /* [most + 1] what may follow the member before */
    bool may_end;  /* none of the members from here on is required */
};

static int32_t end_at(const struct counted *c, int32_t n)
{
    return c->may_end && n >= c->m->min ? c->last : GRAMMAR_NEVER;
}

/* What follows one more member, by `rests` that are for as many as are written then. */
static int32_t after_one(const struct counted *c, int32_t n)
{
    if (n < c->most)
        return c->rest[n + 1];
    return c->m->max < 0 ? c->rest[n] : GRAMMAR_NEVER;
}

static void count_others(struct counted *c)
{
    struct grammar *g = c->t->g;
    for (int32_t n = c->most; n >= 0 && !grammar_failed(g); n--) {
        c->key[n] = GRAMMAR_NEVER;
        if (c->m->other < 0) {
            c->rest[n] = end_at(c, n);
            continue;
        }
        const int32_t fork = c->rest[n] = grammar_fork(g);
        c->key[n] = grammar_call(g, c->m->other, after_one(c, n));
        grammar_fork_set(g, fork, end_at(c, n), json_text_word(c->t, ",", c->key[n]));
    }
}

/* Another member before all that are there. */
static void count_member(struct counted *c, const struct json_member *one)
{
    struct grammar *g = c->t->g;
    for (int32_t n = 0; n <= c->most && !grammar_failed(g); n++) {
        const int32_t value = grammar_call(g, one->rule, after_one(c, n));
        const int32_t way = json_text_name(c->t, one->name, value);
        c->key[n] = one->required ? way : grammar_either(g, way, c->key[n]);
    }
    c->may_end = c->may_end && !one->required;
    for (int32_t n = 0; n <= c->most && !grammar_failed(g); n++)
        c->rest[n] = grammar_either(g, json_text_word(c->t, ",", c->key[n]), end_at(c, n));
}

/* Counts that cannot be otherwise are not looked at. */
static int64_t most_of(struct json_members *m)
{
    int32_t required = 0;
    for (int32_t i = 0; i < m->count; i++)
        required += m->list[i].required;
    if (m->min <= required)
        m->min = 0;
    if (m->other < 0 && m->max >= m->count)
        m->max = -1;
    return m->max >= 0 ? m->max : m->min;
}

enum status json_object_build(const struct json_text *t, const struct json_members *members,
                              int32_t *first, struct err *err)
{
    struct grammar *g = t->g;
    struct json_members m = *members;
    const int64_t most = most_of(&m);
    const bool can = (m.max < 0 || m.max >= m.min) && (m.other >= 0 || m.min <= m.count);
    *first = GRAMMAR_NEVER;
    if (!can)
        return OK;
    if (most > GRAMMAR_NODES_MAX)
        return base_fail(err, ERR_INPUT, "it needs more than %d states", GRAMMAR_NODES_MAX);
    int32_t *nodes = calloc(2 * ((size_t)most + 1), sizeof *nodes);
    if (!nodes)
        return base_fail(err, ERR_NOMEM, "no memory for a schema");
    const int32_t close = grammar_text(g, "}", 1, GRAMMAR_END);
    struct counted c = {
        t, &m, (int32_t)most, grammar_call(g, t->space, close), nodes, nodes + most + 1, true};
    count_others(&c);
    for (int32_t i = m.count - 1; i >= 0 && !grammar_failed(g); i--)
        count_member(&c, &m.list[i]);
    const bool may_be_empty = c.may_end && m.min <= 0;
    *first =
        json_text_word(t, "{", grammar_either(g, c.key[0], may_be_empty ? close : GRAMMAR_NEVER));
    free(nodes);
    return OK;
}
