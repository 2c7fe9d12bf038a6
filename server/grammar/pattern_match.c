/* DESIGN: a part of the expression leads from a set of places in the text to another: no way is
 * gone twice, and repeating ends where no place is new. */
#include "server/grammar/pattern_match.h"

#include "config/utf8.h"
#include "server/grammar/pattern_tree.h"

#include <stdlib.h>
#include <string.h>

enum { WORDS = PATTERN_MATCH_TEXT_MAX / 64 + 1, PART_STEPS = 16 };

/* Places between characters, as bits. */
struct places {
    uint64_t bits[WORDS];
};

struct pattern_match {
    struct pattern_tree tree;
    bool whole;
    uint32_t text[PATTERN_MATCH_TEXT_MAX]; /* the one that is looked at */
    int32_t count;
    int32_t *steps; /* that are left */
};

static bool has(const struct places *p, int32_t i)
{
    return (p->bits[i / 64] >> (i % 64) & 1) != 0;
}

static void add(struct places *p, int32_t i)
{
    p->bits[i / 64] |= (uint64_t)1 << (i % 64);
}

static bool is_empty(const struct places *p)
{
    uint64_t all = 0;
    for (int32_t i = 0; i < WORDS; i++)
        all |= p->bits[i];
    return all == 0;
}

/* Adds b to *a; which of them are new. */
static struct places join(struct places *a, const struct places *b)
{
    struct places fresh;
    for (int32_t i = 0; i < WORDS; i++) {
        fresh.bits[i] = b->bits[i] & ~a->bits[i];
        a->bits[i] |= b->bits[i];
    }
    return fresh;
}

static struct places only(const struct places *from, int32_t i)
{
    struct places to = {{0}};
    if (has(from, i))
        add(&to, i);
    return to;
}

/* False: there have been too many. */
static bool spend(const struct pattern_match *m, int64_t steps)
{
    *m->steps = steps < *m->steps ? *m->steps - (int32_t)steps : 0;
    return *m->steps > 0;
}

static struct places over_set(const struct pattern_match *m, const struct pattern_part *t,
                              const struct places *from)
{
    struct places to = {{0}};
    if (!spend(m, (int64_t)m->count * t->count))
        return to;
    for (int32_t i = 0; i < m->count; i++)
        for (int32_t k = 0; has(from, i) && k < t->count; k++) {
            const struct pattern_range r = pattern_tree_range(&m->tree, t->first + k);
            if (m->text[i] >= r.lo && m->text[i] <= r.hi)
                add(&to, i + 1);
        }
    return to;
}

static struct places over(struct pattern_match *m, int32_t part, struct places from);

/* Without its first repetitions all is the same again once nothing changes. */
static struct places over_repeat(struct pattern_match *m, const struct pattern_part *t,
                                 struct places from)
{
    for (int32_t i = 0; i < t->min && !is_empty(&from); i++) {
        const struct places before = from;
        from = over(m, t->child, from);
        if (memcmp(&before, &from, sizeof from) == 0)
            break;
    }
    struct places all = from;
    for (int32_t i = t->min; (t->max < 0 || i < t->max) && !is_empty(&from); i++) {
        const struct places to = over(m, t->child, from);
        from = join(&all, &to);
    }
    return all;
}

static struct places over(struct pattern_match *m, int32_t part, struct places from)
{
    const struct pattern_part *t = pattern_tree_part(&m->tree, part);
    struct places all = {{0}};
    if (!spend(m, PART_STEPS) || is_empty(&from))
        return all;
    switch (t->kind) {
    case PATTERN_SET:
        return over_set(m, t, &from);
    case PATTERN_SEQUENCE:
        for (int32_t i = t->child; i >= 0; i = pattern_tree_part(&m->tree, i)->sibling)
            from = over(m, i, from);
        return from;
    case PATTERN_CHOICE:
        for (int32_t i = t->child; i >= 0; i = pattern_tree_part(&m->tree, i)->sibling) {
            const struct places to = over(m, i, from);
            join(&all, &to);
        }
        return all;
    case PATTERN_REPEAT:
        return over_repeat(m, t, from);
    case PATTERN_BEGIN:
        return only(&from, 0);
    case PATTERN_END:
        return only(&from, m->count);
    }
    return all;
}

enum status pattern_match_open(const char *pattern, size_t n, bool whole,
                               struct pattern_match **out, struct err *err)
{
    struct pattern_match *m = calloc(1, sizeof *m);
    *out = NULL;
    if (!m)
        return base_fail(err, ERR_NOMEM, "no memory for a regular expression");
    m->whole = whole;
    const enum status st = pattern_tree_open(pattern, n, &m->tree, err);
    if (st == OK)
        *out = m;
    else
        pattern_match_close(m);
    return st;
}

void pattern_match_close(struct pattern_match *m)
{
    if (!m)
        return;
    pattern_tree_close(&m->tree);
    free(m);
}

enum status pattern_match_fits(struct pattern_match *m, const char *text, int32_t *steps,
                               bool *fits, struct err *err)
{
    struct places from = {{0}};
    m->count = 0;
    m->steps = steps;
    spend(m, (int64_t)PART_STEPS * (int64_t)m->tree.n); /* for reading it */
    for (size_t n = strlen(text), k; n > 0; text += k, n -= k) {
        if (m->count == PATTERN_MATCH_TEXT_MAX)
            return base_fail(err, ERR_INPUT,
                             "names of more than %d characters are not supported beside patterns",
                             PATTERN_MATCH_TEXT_MAX);
        k = utf8_char(text, n);
        m->text[m->count++] = utf8_code(text, k);
    }
    for (int32_t i = 0; i <= (m->whole ? 0 : m->count); i++)
        add(&from, i);
    const struct places to = over(m, m->tree.root, from);
    *fits = m->whole ? has(&to, m->count) : !is_empty(&to);
    if (*steps == 0)
        return base_fail(err, ERR_INPUT, "matching names with patterns takes too many steps");
    return OK;
}
