#include "server/grammar/pattern_tree.h"

#include "config/utf8.h"
#include "server/grammar/pattern.h"

#include <stdlib.h>
#include <string.h>

const struct pattern_part *pattern_tree_part(const struct pattern_tree *t, int32_t i)
{
    return (const struct pattern_part *)(const void *)t->parts.data + i;
}

struct pattern_range pattern_tree_range(const struct pattern_tree *t, int32_t i)
{
    return ((const struct pattern_range *)(const void *)t->ranges.data)[i];
}

enum status pattern_tree_fail(const struct pattern_tree *t, size_t at, const char *what,
                              struct err *err)
{
    return base_fail(err, ERR_INPUT, "the regular expression has %s at character %zu", what,
                     utf8_count(t->text, at) + 1);
}

void pattern_tree_close(struct pattern_tree *t)
{
    buf_free(&t->parts);
    buf_free(&t->ranges);
}

struct parser {
    struct pattern_tree *tree;
    const char *text;
    size_t n, at;
    int32_t depth;
    struct err *err;
};

static struct pattern_part *part_of(const struct parser *p, int32_t i)
{
    return (struct pattern_part *)(void *)p->tree->parts.data + i;
}

static enum status fail_at(const struct parser *p, size_t at, const char *what)
{
    return pattern_tree_fail(p->tree, at, what, p->err);
}

static enum status fail(const struct parser *p, const char *what)
{
    return fail_at(p, p->at, what);
}

/* A list of the tree's has failed. */
static enum status fail_list(const struct parser *p, const struct buf *list, const char *what)
{
    return list->no_memory ? base_fail(p->err, ERR_NOMEM, "no memory for a regular expression")
                           : fail(p, what);
}

static enum status add_part(struct parser *p, struct pattern_part part, int32_t *out)
{
    part.sibling = -1;
    buf_add(&p->tree->parts, &part, sizeof part);
    *out = (int32_t)(p->tree->parts.len / sizeof part) - 1;
    return p->tree->parts.failed ? fail_list(p, &p->tree->parts, "too many parts") : OK;
}

static bool is_next(const struct parser *p, const char *text)
{
    const size_t n = strlen(text);
    return p->n - p->at >= n && memcmp(p->text + p->at, text, n) == 0;
}

static bool take(struct parser *p, const char *text)
{
    if (!is_next(p, text))
        return false;
    p->at += strlen(text);
    return true;
}

/* ---- sets of characters ---- */

static void add_range(struct parser *p, uint32_t lo, uint32_t hi)
{
    buf_add(&p->tree->ranges, &(struct pattern_range){lo, hi}, sizeof(struct pattern_range));
}

static int32_t range_count(const struct parser *p)
{
    return (int32_t)(p->tree->ranges.len / sizeof(struct pattern_range));
}

static struct pattern_range *range_of(const struct parser *p, int32_t i)
{
    return (struct pattern_range *)(void *)p->tree->ranges.data + i;
}

static int by_start(const void *a, const void *b)
{
    const struct pattern_range *x = a, *y = b;
    return (x->lo > y->lo) - (x->lo < y->lo);
}

/* The ranges from `first` on, in order and apart. */
static void sort_ranges(struct parser *p, int32_t first)
{
    int32_t kept = first;
    const int32_t end = range_count(p);
    if (end - first < 2)
        return;
    qsort(range_of(p, first), (size_t)(end - first), sizeof(struct pattern_range), by_start);
    for (int32_t i = first + 1; i < end; i++) {
        struct pattern_range *last = range_of(p, kept), r = *range_of(p, i);
        if (r.lo <= last->hi + 1)
            last->hi = r.hi > last->hi ? r.hi : last->hi;
        else
            *range_of(p, ++kept) = r;
    }
    p->tree->ranges.len = (size_t)(kept + 1) * sizeof(struct pattern_range);
}

/* All characters but those from `first` on take their place. */
static void invert_ranges(struct parser *p, int32_t first)
{
    uint32_t from = 0;
    sort_ranges(p, first);
    const int32_t end = range_count(p);
    for (int32_t i = first; i < end; i++) {
        const struct pattern_range r = *range_of(p, i);
        if (r.lo > from)
            add_range(p, from, r.lo - 1);
        from = r.hi + 1;
    }
    if (from <= PATTERN_CODE_MAX)
        add_range(p, from, PATTERN_CODE_MAX);
    memmove(range_of(p, first), range_of(p, end),
            (size_t)(range_count(p) - end) * sizeof(struct pattern_range));
    p->tree->ranges.len -= (size_t)(end - first) * sizeof(struct pattern_range);
}

/* \d \w \s and their opposites; false for any other letter. */
static bool add_class(struct parser *p, char letter)
{
    static const struct pattern_range digits[] = {{'0', '9'}};
    static const struct pattern_range words[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
    /* WhiteSpace and LineTerminator (ECMA-262, 12.2 and 12.3) */
    static const struct pattern_range spaces[] = {
        {0x09, 0x0d},     {0x20, 0x20},     {0xa0, 0xa0},     {0x1680, 0x1680}, {0x2000, 0x200a},
        {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000}, {0xfeff, 0xfeff}};
    const char lower = (char)(letter | 0x20);
    const struct pattern_range *set = lower == 'd' ? digits : lower == 'w' ? words : spaces;
    const size_t n = lower == 'd'   ? ARRAY_LEN(digits)
                     : lower == 'w' ? ARRAY_LEN(words)
                                    : ARRAY_LEN(spaces);
    const int32_t first = range_count(p);
    if (lower != 'd' && lower != 'w' && lower != 's')
        return false;
    for (size_t i = 0; i < n; i++)
        add_range(p, set[i].lo, set[i].hi);
    if (letter != lower)
        invert_ranges(p, first);
    return true;
}

/* `digits` hexadecimal digits. */
static enum status read_hex(struct parser *p, size_t digits, uint32_t *code)
{
    *code = 0;
    for (size_t i = 0; i < digits; i++, p->at++) {
        const char c = p->at < p->n ? p->text[p->at] : '\0', lower = (char)(c | 0x20);
        if (c >= '0' && c <= '9')
            *code = *code << 4 | (uint32_t)(c - '0');
        else if (lower >= 'a' && lower <= 'f')
            *code = *code << 4 | (uint32_t)(lower - 'a' + 10);
        else
            return fail(p, "no hexadecimal digit");
    }
    return OK;
}

/* Behind \u: four digits, twice for a pair; or {...}. */
static enum status read_unicode(struct parser *p, uint32_t *code)
{
    enum status st = OK;
    if (take(p, "{")) {
        const char *end = memchr(p->text + p->at, '}', p->n - p->at);
        const size_t digits = end ? (size_t)(end - p->text) - p->at : 0;
        if (digits < 1 || digits > 6)
            return fail(p, "no 1 to 6 hexadecimal digits in \\u{}");
        TRY(read_hex(p, digits, code));
        p->at++;
    } else {
        uint32_t low;
        TRY(read_hex(p, 4, code));
        if (*code >= 0xd800 && *code < 0xdc00 && take(p, "\\u")) {
            TRY(read_hex(p, 4, &low));
            if (low < 0xdc00 || low > 0xdfff)
                return fail(p, "half of a surrogate pair");
            *code = 0x10000 + ((*code - 0xd800) << 10) + (low - 0xdc00);
        }
    }
    if (*code > PATTERN_CODE_MAX || (*code >= 0xd800 && *code < 0xe000))
        st = fail(p, "no character");
out:
    return st;
}

/* An escape that is one character, behind its backslash. */
static enum status read_escape(struct parser *p, uint32_t *code)
{
    static const char letters[] = "tnrfv0", codes[] = "\t\n\r\f\v";
    const char c = p->at < p->n ? p->text[p->at] : '\0';
    const char *letter = c ? strchr(letters, c) : NULL;
    if (c == '\0' || (unsigned char)c >= 0x80)
        return fail(p, "nothing to escape");
    p->at++;
    if (c == '0' && p->at < p->n && p->text[p->at] >= '0' && p->text[p->at] <= '9')
        return fail(p, "an octal escape");
    if (letter) {
        *code = c == '0' ? 0 : (uint32_t)codes[letter - letters];
        return OK;
    }
    if (c == 'x')
        return read_hex(p, 2, code);
    if (c == 'u')
        return read_unicode(p, code);
    if (c == 'c' && p->at < p->n &&
        ((p->text[p->at] | 0x20) >= 'a' && (p->text[p->at] | 0x20) <= 'z')) {
        *code = (uint32_t)p->text[p->at++] & 0x1f;
        return OK;
    }
    if ((c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z')) {
        p->at--;
        return fail(p, "an escape that is not supported");
    }
    *code = (uint32_t)c;
    return OK;
}

/* A character that stands for itself. */
static uint32_t read_character(struct parser *p)
{
    const size_t k = utf8_char(p->text + p->at, p->n - p->at);
    const uint32_t code = utf8_code(p->text + p->at, k);
    p->at += k;
    return code;
}

/* One item between brackets: a set that it has added (*single false), or a character. */
static enum status read_item(struct parser *p, bool *single, uint32_t *code)
{
    *single = false;
    if (!take(p, "\\")) {
        *single = true;
        *code = read_character(p);
        return OK;
    }
    if (p->at < p->n && add_class(p, p->text[p->at])) {
        p->at++;
        return OK;
    }
    *single = true;
    if (take(p, "b")) {
        *code = '\b';
        return OK;
    }
    return read_escape(p, code);
}

/* Behind [. */
static enum status read_brackets(struct parser *p)
{
    enum status st = OK;
    const size_t at = p->at;
    const int32_t first = range_count(p);
    const bool inverted = take(p, "^");
    while (!take(p, "]")) {
        bool single, last_single;
        uint32_t lo, hi;
        if (p->at >= p->n)
            return fail_at(p, at, "a [ without its ]");
        TRY(read_item(p, &single, &lo));
        hi = lo;
        if (single && is_next(p, "-") && p->at + 1 < p->n && p->text[p->at + 1] != ']') {
            p->at++;
            TRY(read_item(p, &last_single, &hi));
            if (!last_single || hi < lo)
                return fail(p, "a range that does not ascend");
        }
        if (single)
            add_range(p, lo, hi);
    }
    if (inverted)
        invert_ranges(p, first);
    sort_ranges(p, first);
out:
    return st;
}

static enum status add_set(struct parser *p, int32_t first, size_t at, int32_t *out)
{
    return add_part(p,
                    (struct pattern_part){.kind = PATTERN_SET,
                                          .child = -1,
                                          .first = first,
                                          .count = range_count(p) - first,
                                          .at = at},
                    out);
}

/* ---- parts ---- */

static enum status read_choice(struct parser *p, int32_t *out);

/* Behind (. */
static enum status read_group(struct parser *p, int32_t *out)
{
    enum status st = OK;
    const size_t at = p->at;
    if (take(p, "?:")) {
        /* only brackets */
    } else if (is_next(p, "?<=") || is_next(p, "?<!") || is_next(p, "?=") || is_next(p, "?!")) {
        return fail(p, "a look around, which is not supported,");
    } else if (take(p, "?P<") || take(p, "?<")) {
        const char *end = memchr(p->text + p->at, '>', p->n - p->at);
        if (!end)
            return fail(p, "a name without its >");
        p->at = (size_t)(end - p->text) + 1;
    } else if (is_next(p, "?")) {
        return fail(p, "a group that is not supported");
    }
    if (++p->depth > PATTERN_DEPTH_MAX)
        return fail(p, "groups that are nested too deep");
    TRY(read_choice(p, out));
    p->depth--;
    if (!take(p, ")"))
        st = fail_at(p, at - 1, "a ( without its )");
out:
    return st;
}

static enum status read_atom(struct parser *p, int32_t *out)
{
    enum status st = OK;
    const size_t at = p->at;
    const int32_t first = range_count(p);
    uint32_t code;
    if (take(p, "("))
        return read_group(p, out);
    if (take(p, "^"))
        return add_part(p, (struct pattern_part){.kind = PATTERN_BEGIN, .child = -1, .at = at},
                        out);
    if (take(p, "$"))
        return add_part(p, (struct pattern_part){.kind = PATTERN_END, .child = -1, .at = at}, out);
    if (is_next(p, "*") || is_next(p, "+") || is_next(p, "?"))
        return fail(p, "nothing to repeat");
    if (take(p, "[")) {
        TRY(read_brackets(p));
    } else if (take(p, ".")) {
        add_range(p, '\n', '\n');
        add_range(p, '\r', '\r');
        add_range(p, 0x2028, 0x2029);
        invert_ranges(p, first);
    } else if (take(p, "\\")) {
        if (p->at < p->n && add_class(p, p->text[p->at])) {
            p->at++;
        } else {
            TRY(read_escape(p, &code));
            add_range(p, code, code);
        }
    } else {
        code = read_character(p);
        add_range(p, code, code);
    }
    if (p->tree->ranges.failed)
        return fail_list(p, &p->tree->ranges, "too many characters");
    st = add_set(p, first, at, out);
out:
    return st;
}

/* Digits; -1: none, or too many. */
static int32_t read_number(struct parser *p)
{
    int32_t value = -1;
    for (; p->at < p->n && p->text[p->at] >= '0' && p->text[p->at] <= '9'; p->at++)
        if (value <= PATTERN_COUNT_MAX)
            value = (value < 0 ? 0 : value) * 10 + (p->text[p->at] - '0');
    return value;
}

/* {m}, {m,} or {m,n}; false: a brace that is only a character. */
static enum status read_counts(struct parser *p, struct pattern_part *repeat, bool *is)
{
    const size_t at = p->at++;
    repeat->min = read_number(p);
    repeat->max = repeat->min;
    if (take(p, ","))
        repeat->max = is_next(p, "}") ? -1 : read_number(p);
    *is = repeat->min >= 0 && take(p, "}");
    if (!*is) {
        p->at = at;
        return OK;
    }
    if (repeat->min > PATTERN_COUNT_MAX || repeat->max > PATTERN_COUNT_MAX)
        return fail_at(p, at, "a count that is too large");
    if (repeat->max >= 0 && repeat->max < repeat->min)
        return fail_at(p, at, "counts in the wrong order");
    return OK;
}

/* An atom with the quantifier behind it, if there is one. */
static enum status read_term(struct parser *p, int32_t *out)
{
    enum status st = OK;
    struct pattern_part repeat = {.kind = PATTERN_REPEAT, .min = 0, .max = -1};
    TRY(read_atom(p, out));
    repeat.child = *out;
    repeat.at = p->at;
    bool is = true;
    if (take(p, "+"))
        repeat.min = 1;
    else if (take(p, "?"))
        repeat.max = 1;
    else if (is_next(p, "{"))
        TRY(read_counts(p, &repeat, &is));
    else
        is = take(p, "*");
    if (!is)
        return OK;
    if (!take(p, "?") && is_next(p, "+"))
        return fail(p, "a possessive quantifier");
    if (is_next(p, "*") || is_next(p, "+") || is_next(p, "?"))
        return fail(p, "nothing to repeat");
    const enum pattern_kind kind = part_of(p, *out)->kind;
    if (kind == PATTERN_BEGIN || kind == PATTERN_END)
        return fail_at(p, repeat.at, "an anchor to repeat");
    st = add_part(p, repeat, out);
out:
    return st;
}

static void append(struct parser *p, int32_t parent, int32_t *last, int32_t child)
{
    if (*last < 0)
        part_of(p, parent)->child = child;
    else
        part_of(p, *last)->sibling = child;
    *last = child;
}

static enum status read_sequence(struct parser *p, int32_t *out)
{
    enum status st = OK;
    int32_t last = -1, child;
    TRY(add_part(p, (struct pattern_part){.kind = PATTERN_SEQUENCE, .child = -1, .at = p->at},
                 out));
    const int32_t parent = *out;
    while (p->at < p->n && !is_next(p, "|") && !is_next(p, ")")) {
        TRY(read_term(p, &child));
        append(p, parent, &last, child);
    }
out:
    return st;
}

static enum status read_choice(struct parser *p, int32_t *out)
{
    enum status st = OK;
    int32_t last = -1, child;
    TRY(add_part(p, (struct pattern_part){.kind = PATTERN_CHOICE, .child = -1, .at = p->at}, out));
    const int32_t parent = *out;
    do {
        TRY(read_sequence(p, &child));
        append(p, parent, &last, child);
    } while (take(p, "|"));
out:
    return st;
}

enum status pattern_tree_open(const char *text, size_t n, struct pattern_tree *t, struct err *err)
{
    enum status st = OK;
    struct parser p = {.tree = t, .text = text, .n = n, .err = err};
    *t = (struct pattern_tree){.text = text, .n = n};
    buf_init(&t->parts, 8 * (PATTERN_BYTES_MAX + 1) * sizeof(struct pattern_part));
    buf_init(&t->ranges, 16 * (PATTERN_BYTES_MAX + 1) * sizeof(struct pattern_range));
    if (n > PATTERN_BYTES_MAX)
        return base_fail(err, ERR_INPUT, "the regular expression has %zu bytes, at most are %d", n,
                         PATTERN_BYTES_MAX);
    TRY(read_choice(&p, &t->root));
    if (p.at < n)
        st = fail(&p, "a ) without its (");
out:
    return st;
}
