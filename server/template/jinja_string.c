/* DESIGN: strings are not copied to be cut: a part of one points into it. What changes is written
 * piece by piece, each with its marks. */
#include "server/template/jinja_string.h"

#include <string.h>

static bool not_given(const struct value *v)
{
    return v->kind == VALUE_ABSENT || v->kind == VALUE_NONE;
}

static enum status need_string(struct run *r, const struct value *v)
{
    return v->kind == VALUE_STRING
               ? OK
               : jinja_fail(r, "a string is needed here, not a %s", jinja_type_name(v));
}

size_t jinja_string_find(const struct value *s, const struct value *what, size_t from)
{
    if (what->s.n > s->s.n - from)
        return SIZE_MAX;
    if (what->s.n == 0)
        return from;
    const char *at = memmem(s->s.bytes + from, s->s.n - from, what->s.bytes, what->s.n);
    return at ? (size_t)(at - s->s.bytes) : SIZE_MAX;
}

static size_t find_last(const struct value *s, const struct value *what)
{
    for (size_t i = s->s.n + 1; i-- > 0;)
        if (what->s.n <= s->s.n - i && memcmp(s->s.bytes + i, what->s.bytes, what->s.n) == 0)
            return i;
    return SIZE_MAX;
}

/* ---- strip ---- */

/* Bytes of the character at s, n >= 1 bytes, when it is to go. */
static size_t goes(const char *s, size_t n, const struct value *chars)
{
    if (not_given(chars))
        return jinja_space(s, n);
    const size_t width = jinja_char(s, n);
    return memmem(chars->s.bytes, chars->s.n, s, width) ? width : 0;
}

enum status jinja_string_strip(struct run *r, const struct value *s, const struct value *chars,
                               int32_t sides, struct value *out)
{
    size_t from = 0, n = s->s.n;
    enum status st = OK;
    if (!not_given(chars))
        TRY(need_string(r, chars));
    TRY(jinja_spend(r, n * (1 + (not_given(chars) ? 0 : chars->s.n / 16))));
    for (size_t width; (sides & STRIP_LEFT) && n > 0; from += width, n -= width) {
        width = goes(s->s.bytes + from, n, chars);
        if (width == 0)
            break;
    }
    for (size_t width; (sides & STRIP_RIGHT) && n > 0; n -= width) {
        width = jinja_char_before(s->s.bytes + from, n);
        if (goes(s->s.bytes + from + n - width, width, chars) == 0)
            break;
    }
    *out = jinja_slice(s, from, n);
out:
    return st;
}

/* ---- replace ---- */

static enum status add_part(struct run *r, const struct value *s, size_t from, size_t n)
{
    const struct value part = jinja_slice(s, from, n);
    return jinja_add_string(r, &part);
}

enum status jinja_string_replace(struct run *r, const struct value *s, const struct value *old,
                                 const struct value *new, int64_t count, struct value *out)
{
    const size_t mark = jinja_mark(r);
    size_t from = 0;
    enum status st = OK;
    for (; count != 0 && from <= s->s.n; count -= count > 0) {
        size_t at = jinja_string_find(s, old, from), step = old->s.n;
        if (at == SIZE_MAX)
            break;
        TRY(add_part(r, s, from, at - from));
        TRY(jinja_add_string(r, new));
        if (step == 0 && at < s->s.n) { /* between any two characters */
            step = jinja_char(s->s.bytes + at, s->s.n - at);
            TRY(add_part(r, s, at, step));
        } else if (step == 0) {
            from = s->s.n;
            break;
        }
        from = at + step;
    }
    TRY(add_part(r, s, from, s->s.n - from));
    st = jinja_cut(r, mark, out);
out:
    return st;
}

/* ---- upper and lower case ---- */

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (unsigned char)c >= 0x80;
}

static char to_case(char c, bool upper)
{
    if (upper && c >= 'a' && c <= 'z')
        return (char)(c - 'a' + 'A');
    if (!upper && c >= 'A' && c <= 'Z')
        return (char)(c - 'A' + 'a');
    return c;
}

/* Does a word begin at byte i? */
static bool begins_word(const struct value *s, size_t i, enum string_case how)
{
    const char before = i > 0 ? s->s.bytes[i - 1] : ' ';
    if (how == CASE_TITLE)
        return !is_letter(before);
    return i == 0 || (how == CASE_WORDS && (jinja_space_before(s->s.bytes, i) > 0 ||
                                            (before && strchr("-({[<", before))));
}

enum status jinja_string_case(struct run *r, const struct value *s, enum string_case how,
                              struct value *out)
{
    const size_t mark = jinja_mark(r);
    char *bytes = NULL;
    struct value changed = *s;
    enum status st = OK;
    TAKE(r, bytes, s->s.n);
    for (size_t i = 0; i < s->s.n; i++)
        bytes[i] = to_case(s->s.bytes[i],
                           how == CASE_UPPER || (how != CASE_LOWER && begins_word(s, i, how)));
    changed.s.bytes = bytes;
    TRY(jinja_add_string(r, &changed));
    st = jinja_cut(r, mark, out);
out:
    return st;
}

/* ---- split and join ---- */

/* Parts are collected as places first: from, length. */
struct parts {
    size_t (*at)[2];
    size_t n, cap;
};

static enum status add_place(struct run *r, struct parts *p, size_t from, size_t n)
{
    size_t(*more)[2] = NULL;
    enum status st = OK;
    if (p->n == p->cap) {
        const size_t cap = p->cap ? 2 * p->cap : 8;
        TAKE(r, more, cap);
        if (p->n > 0)
            memcpy(more, p->at, p->n * sizeof *more);
        p->at = more;
        p->cap = cap;
    }
    p->at[p->n][0] = from;
    p->at[p->n++][1] = n;
    st = jinja_spend(r, 0);
out:
    return st;
}

static enum status parts_list(struct run *r, const struct value *s, const struct parts *p,
                              bool reversed, struct value *out)
{
    struct value list;
    enum status st = jinja_new_list(r, VALUE_LIST, p->n, &list);
    if (st != OK)
        return st;
    for (size_t i = 0; i < p->n; i++)
        list.list->items[reversed ? p->n - 1 - i : i] = jinja_slice(s, p->at[i][0], p->at[i][1]);
    *out = list;
    return OK;
}

static enum status split_at(struct run *r, const struct value *s, const struct value *separator,
                            int64_t max, struct parts *p)
{
    size_t from = 0;
    enum status st = OK;
    for (; max != 0; max -= max > 0) {
        const size_t at = jinja_string_find(s, separator, from);
        if (at == SIZE_MAX)
            break;
        TRY(add_place(r, p, from, at - from));
        from = at + separator->s.n;
    }
    st = add_place(r, p, from, s->s.n - from);
out:
    return st;
}

static enum status split_at_right(struct run *r, const struct value *s,
                                  const struct value *separator, int64_t max, struct parts *p)
{
    struct value left = *s;
    enum status st = OK;
    for (; max != 0; max -= max > 0) {
        const size_t at = find_last(&left, separator);
        if (at == SIZE_MAX)
            break;
        const size_t after = at + separator->s.n;
        TRY(jinja_spend(r, left.s.n - at));
        TRY(add_place(r, p, after, left.s.n - after));
        left.s.n = at;
    }
    st = add_place(r, p, 0, left.s.n);
out:
    return st;
}

static enum status split_words(struct run *r, const struct value *s, int64_t max, struct parts *p)
{
    const char *b = s->s.bytes;
    size_t i = 0, n = s->s.n;
    enum status st = OK;
    for (;; max -= max > 0) {
        for (size_t width = 1; i < n && width > 0; i += width)
            width = jinja_space(b + i, n - i);
        if (i == n)
            break;
        const size_t from = i;
        while (i < n && jinja_space(b + i, n - i) == 0)
            i += jinja_char(b + i, n - i);
        if (max == 0) { /* the rest, with the white space at its end */
            st = add_place(r, p, from, n - from);
            break;
        }
        TRY(add_place(r, p, from, i - from));
    }
out:
    return st;
}

static enum status split_words_right(struct run *r, const struct value *s, int64_t max,
                                     struct parts *p)
{
    const char *b = s->s.bytes;
    size_t n = s->s.n;
    enum status st = OK;
    for (;; max -= max > 0) {
        while (jinja_space_before(b, n) > 0)
            n -= jinja_space_before(b, n);
        if (n == 0)
            break;
        size_t from = n;
        while (from > 0 && jinja_space_before(b, from) == 0)
            from -= jinja_char_before(b, from);
        if (max == 0)
            from = 0;
        TRY(add_place(r, p, from, n - from));
        if (max == 0)
            break;
        n = from;
    }
out:
    return st;
}

enum status jinja_string_split(struct run *r, const struct value *s, const struct value *separator,
                               int64_t max, bool from_right, struct value *out)
{
    struct parts p = {.n = 0};
    enum status st = OK;
    TRY(jinja_spend(r, s->s.n));
    if (not_given(separator)) {
        TRY(from_right ? split_words_right(r, s, max, &p) : split_words(r, s, max, &p));
    } else {
        TRY(need_string(r, separator));
        if (separator->s.n == 0)
            return jinja_fail(r, "an empty separator");
        TRY(jinja_spend(r, from_right ? s->s.n * (separator->s.n / 64) : 0));
        TRY(from_right ? split_at_right(r, s, separator, max, &p)
                       : split_at(r, s, separator, max, &p));
    }
    st = parts_list(r, s, &p, from_right, out);
out:
    return st;
}

/* Bytes of the line end at s. */
static size_t line_end(const char *s, size_t n)
{
    if (n > 1 && s[0] == '\r' && s[1] == '\n')
        return 2;
    const size_t width = jinja_space(s, n);
    const uint32_t code = width > 0 ? jinja_decode(s, width) : 0;
    const bool ends = (code >= 0x0a && code <= 0x0d) || (code >= 0x1c && code <= 0x1e) ||
                      code == 0x85 || code == 0x2028 || code == 0x2029;
    return ends ? width : 0;
}

enum status jinja_string_lines(struct run *r, const struct value *s, struct value *out)
{
    struct parts p = {.n = 0};
    size_t from = 0;
    enum status st = OK;
    TRY(jinja_spend(r, s->s.n));
    for (size_t i = 0; i < s->s.n;) {
        const size_t end = line_end(s->s.bytes + i, s->s.n - i);
        if (end > 0) {
            TRY(add_place(r, &p, from, i - from));
            from = i + end;
        }
        i += end > 0 ? end : jinja_char(s->s.bytes + i, s->s.n - i);
    }
    if (from < s->s.n)
        TRY(add_place(r, &p, from, s->s.n - from));
    st = parts_list(r, s, &p, false, out);
out:
    return st;
}

enum status jinja_string_join(struct run *r, const struct value *separator, struct list *items,
                              bool convert, struct value *out)
{
    const size_t mark = jinja_mark(r);
    enum status st = OK;
    for (bool first = true; items->taken < items->n; first = false) {
        const struct value *item = &items->items[items->taken++];
        if (!first)
            TRY(jinja_add_string(r, separator));
        if (!convert)
            TRY(need_string(r, item));
        TRY(jinja_print(r, item));
    }
    st = jinja_cut(r, mark, out);
out:
    return st;
}
