/* DESIGN: Python's json.dumps with its defaults, except that text stays UTF-8, as transformers has
 * its tojson; that of Jinja2 itself escapes for HTML. */
#include "server/template/jinja_tojson.h"

#include "server/template/jinja_sort.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

struct writer {
    struct run *r;
    struct value indent, item_separator, key_separator; /* indent: NONE for one line */
    bool ascii, sort_keys;
};

static enum status write(const struct writer *w, const struct value *v, int32_t level);

/* ---- strings ---- */

static enum status write_unicode(struct run *r, uint32_t code, bool foreign)
{
    char text[16];
    if (code < 0x10000) {
        snprintf(text, sizeof text, "\\u%04" PRIx32, code);
    } else {
        const uint32_t rest = code - 0x10000;
        snprintf(text, sizeof text, "\\u%04" PRIx32 "\\u%04" PRIx32, 0xd800 | rest >> 10,
                 0xdc00 | (rest & 0x3ff));
    }
    return jinja_puts(r, text, foreign);
}

static enum status write_escape(struct run *r, uint32_t code, bool foreign)
{
    static const char letters[] = "bfnrt\"\\", means[] = "\b\f\n\r\t\"\\";
    const char *letter = code && code < 0x80 ? strchr(means, (int)code) : NULL;
    if (!letter)
        return write_unicode(r, code, foreign);
    const char text[] = {'\\', letters[letter - means], '\0'};
    return jinja_puts(r, text, foreign);
}

static enum status write_string(const struct writer *w, const struct value *s)
{
    size_t plain = 0;
    enum status st = OK;
    TRY(jinja_puts(w->r, "\"", s->foreign));
    for (size_t i = 0, width; i < s->s.n; i += width) {
        width = jinja_char(s->s.bytes + i, s->s.n - i);
        const uint32_t code = jinja_decode(s->s.bytes + i, width);
        if (code >= 0x20 && code != '"' && code != '\\' && (!w->ascii || code < 0x7f))
            continue;
        const struct value before = jinja_slice(s, plain, i - plain);
        TRY(jinja_add_string(w->r, &before));
        TRY(write_escape(w->r, code, jinja_mark_of(s, i)));
        plain = i + width;
    }
    const struct value last = jinja_slice(s, plain, s->s.n - plain);
    TRY(jinja_add_string(w->r, &last));
    TRY(jinja_puts(w->r, "\"", s->foreign));
out:
    return st;
}

/* ---- numbers ---- */

static enum status write_number(const struct writer *w, const struct value *v)
{
    char text[32];
    enum status st = OK;
    if (v->kind == VALUE_INT)
        snprintf(text, sizeof text, "%" PRId64, v->i);
    else if (isnan(v->f))
        snprintf(text, sizeof text, "NaN");
    else if (isinf(v->f))
        snprintf(text, sizeof text, "%sInfinity", v->f < 0 ? "-" : "");
    else
        st = jinja_float_text(w->r, v->f, text);
    return st == OK ? jinja_puts(w->r, text, v->foreign) : st;
}

static enum status write_plain(const struct writer *w, const struct value *v)
{
    if (v->kind == VALUE_STRING)
        return write_string(w, v);
    if (v->kind == VALUE_INT || v->kind == VALUE_FLOAT)
        return write_number(w, v);
    if (v->kind == VALUE_BOOL)
        return jinja_puts(w->r, v->b ? "true" : "false", v->foreign);
    if (v->kind == VALUE_NONE)
        return jinja_puts(w->r, "null", v->foreign);
    if (v->kind == VALUE_UNDEFINED)
        return jinja_say_undefined(w->r, v);
    return jinja_fail(w->r, "a %s is nothing that JSON has", jinja_type_name(v));
}

/* ---- containers ---- */

static enum status new_line(const struct writer *w, int32_t level, bool foreign)
{
    enum status st = OK;
    if (w->indent.kind == VALUE_NONE)
        return OK;
    TRY(jinja_puts(w->r, "\n", foreign));
    for (int32_t i = 0; i < level; i++)
        TRY(jinja_add_string(w->r, &w->indent));
out:
    return st;
}

/* What stands before an item: a separator unless it is the first, and a new line. */
static enum status begin_item(const struct writer *w, bool first, int32_t level, bool foreign)
{
    struct value separator = w->item_separator;
    separator.foreign |= foreign;
    enum status st = first ? OK : jinja_add_string(w->r, &separator);
    return st == OK ? new_line(w, level, foreign) : st;
}

static enum status write_list(const struct writer *w, const struct value *v, int32_t level)
{
    enum status st = OK;
    if (v->list->n == 0)
        return jinja_puts(w->r, "[]", v->foreign);
    TRY(jinja_puts(w->r, "[", v->foreign));
    for (size_t i = 0; i < v->list->n; i++) {
        TRY(begin_item(w, i == 0, level + 1, v->foreign));
        TRY(write(w, &v->list->items[i], level + 1));
    }
    TRY(new_line(w, level, v->foreign));
    TRY(jinja_puts(w->r, "]", v->foreign));
out:
    return st;
}

/* A key that is no string is written as one. */
static enum status write_key(const struct writer *w, const struct value *key)
{
    enum status st = OK;
    if (key->kind == VALUE_STRING)
        return write_string(w, key);
    if (key->kind == VALUE_TUPLE || key->kind == VALUE_UNDEFINED)
        return jinja_fail(w->r, "a %s is no key that JSON has", jinja_type_name(key));
    TRY(jinja_puts(w->r, "\"", key->foreign));
    TRY(write_plain(w, key));
    TRY(jinja_puts(w->r, "\"", key->foreign));
out:
    return st;
}

static enum status sorted(const struct writer *w, const struct value *v, struct pair **out)
{
    struct pair *pairs = NULL;
    const size_t n = v->dict->n;
    enum status st = OK;
    TAKE(w->r, pairs, n);
    if (n > 0)
        memcpy(pairs, v->dict->pairs, n * sizeof *pairs);
    if (w->sort_keys)
        TRY(jinja_sort_pairs(w->r, pairs, n, false));
    *out = pairs;
out:
    return st;
}

static enum status write_dict(const struct writer *w, const struct value *v, int32_t level)
{
    struct pair *pairs = NULL;
    struct value colon = w->key_separator;
    enum status st = OK;
    if (v->dict->n == 0)
        return jinja_puts(w->r, "{}", v->foreign);
    colon.foreign |= v->foreign;
    TRY(sorted(w, v, &pairs));
    TRY(jinja_puts(w->r, "{", v->foreign));
    for (size_t i = 0; i < v->dict->n; i++) {
        TRY(begin_item(w, i == 0, level + 1, v->foreign));
        TRY(write_key(w, &pairs[i].key));
        TRY(jinja_add_string(w->r, &colon));
        TRY(write(w, &pairs[i].value, level + 1));
    }
    TRY(new_line(w, level, v->foreign));
    TRY(jinja_puts(w->r, "}", v->foreign));
out:
    return st;
}

static enum status write(const struct writer *w, const struct value *v, int32_t level)
{
    enum status st = OK;
    if (++w->r->depth > RUN_DEPTH_MAX)
        return jinja_over(w->r, "values are nested too deep");
    if (v->kind == VALUE_DICT)
        st = write_dict(w, v, level);
    else if (v->kind == VALUE_LIST || v->kind == VALUE_TUPLE)
        st = write_list(w, v, level);
    else
        st = write_plain(w, v);
    w->r->depth--;
    return st;
}

/* ---- the filter ---- */

static enum status set_indent(struct writer *w, const struct value *indent)
{
    const struct value space = jinja_literal(" ");
    if (indent->kind == VALUE_ABSENT || indent->kind == VALUE_NONE)
        return OK;
    w->item_separator = jinja_literal(",");
    if (indent->kind == VALUE_STRING) {
        w->indent = *indent;
        return OK;
    }
    return jinja_operate(w->r, OP_MUL, &space, indent, &w->indent);
}

static enum status set_separators(struct writer *w, const struct value *pair)
{
    if (pair->kind == VALUE_ABSENT || pair->kind == VALUE_NONE)
        return OK;
    if (!jinja_is_list(pair) || pair->list->n != 2 || pair->list->items[0].kind != VALUE_STRING ||
        pair->list->items[1].kind != VALUE_STRING)
        return jinja_fail(w->r, "tojson: separators must be two strings");
    w->item_separator = pair->list->items[0];
    w->key_separator = pair->list->items[1];
    return OK;
}

enum status jinja_tojson(struct run *r, const struct call *c, struct value *out)
{
    struct writer w = {.r = r,
                       .indent = VALUE_NOTHING,
                       .item_separator = jinja_literal(", "),
                       .key_separator = jinja_literal(": "),
                       .ascii = jinja_truth(&c->arg[0]),
                       .sort_keys = jinja_truth(&c->arg[3])};
    enum status st = OK;
    TRY(set_indent(&w, &c->arg[1]));
    TRY(set_separators(&w, &c->arg[2]));
    const size_t mark = jinja_mark(r);
    TRY(write(&w, &c->self, 0));
    st = jinja_cut(r, mark, out);
out:
    return st;
}
