/* DESIGN: Python's str() and repr(). What a value of the client's makes is marked foreign, down to
 * the brackets of its lists. */
#include "server/template/jinja_run.h"

#include <ctype.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What finding the digits of a float counts as. */
#define FLOAT_BYTES 256
#define SUBNORMAL_BYTES 2048

static enum status print(struct run *r, const struct value *v, bool quoted);

/* ---- numbers ---- */

/* How many digits after the first are the fewest that read back as the same number. Any number
 * keeps DBL_DIG digits, so fewer than these show as zeros at their end; but not a subnormal. */
static int digits_needed(double f, bool subnormal)
{
    char text[32];
    int digits = subnormal ? 0 : DBL_DIG - 1;
    do
        snprintf(text, sizeof text, "%.*e", digits, f);
    while (strtod(text, NULL) != f && ++digits < 17);
    for (const char *end = strchr(text, 'e'); digits > 0 && end[-1] == '0'; end--)
        digits--;
    return digits;
}

/* As repr() has it: 1.0, 0.1, 1e+16. */
enum status jinja_float_text(struct run *r, double f, char out[32])
{
    const bool subnormal = fpclassify(f) == FP_SUBNORMAL;
    char text[32];
    if (!isfinite(f)) {
        snprintf(out, 32, "%s", isnan(f) ? "nan" : f < 0 ? "-inf" : "inf");
        return OK;
    }
    const int digits = digits_needed(f, subnormal);
    snprintf(text, sizeof text, "%.*e", digits, f);
    const int exponent = (int)strtol(strchr(text, 'e') + 1, NULL, 10);
    if (exponent >= -4 && exponent < 16)
        snprintf(out, 32, "%.*f", digits > exponent ? digits - exponent : 1, f);
    else
        snprintf(out, 32, "%s", text);
    return jinja_spend(r, subnormal ? SUBNORMAL_BYTES : FLOAT_BYTES);
}

/* ---- strings ---- */

/* Characters that repr() escapes: controls, separators, and what is not assigned for display. */
static bool is_hidden(uint32_t code)
{
    static const uint32_t ranges[][2] = {
        {0, 0x1f},        {0x7f, 0xa0},       {0xad, 0xad},       {0x600, 0x605},
        {0x61c, 0x61c},   {0x6dd, 0x6dd},     {0x70f, 0x70f},     {0x1680, 0x1680},
        {0x180e, 0x180e}, {0x2000, 0x200f},   {0x2028, 0x202f},   {0x205f, 0x206f},
        {0x3000, 0x3000}, {0xd800, 0xf8ff},   {0xfeff, 0xfeff},   {0xfff0, 0xfffb},
        {0xfffe, 0xffff}, {0xe0000, 0xe00ff}, {0xf0000, 0x10ffff}};
    for (size_t i = 0; i < ARRAY_LEN(ranges); i++)
        if (code >= ranges[i][0] && code <= ranges[i][1])
            return true;
    return false;
}

static enum status print_escaped(struct run *r, uint32_t code, bool foreign)
{
    static const char letters[] = "tnr\\'\"", means[] = "\t\n\r\\'\"";
    char text[12];
    const char *letter = code && code < 0x80 ? strchr(means, (int)code) : NULL;
    if (letter)
        snprintf(text, sizeof text, "\\%c", letters[letter - means]);
    else if (code < 0x100)
        snprintf(text, sizeof text, "\\x%02" PRIx32, code);
    else
        snprintf(text, sizeof text, code < 0x10000 ? "\\u%04" PRIx32 : "\\U%08" PRIx32, code);
    return jinja_puts(r, text, foreign);
}

/* In single quotes, or in double ones where it holds only single ones. */
static enum status print_quoted(struct run *r, const struct value *s)
{
    const char *bytes = s->s.bytes;
    const size_t n = s->s.n;
    const bool inside = n > 0 && memchr(bytes, '\'', n);
    const char quote = inside && !memchr(bytes, '"', n) ? '"' : '\'';
    size_t plain = 0;
    enum status st = OK;
    TRY(jinja_add(r, &quote, 1, s->foreign));
    for (size_t i = 0, width; i < n; i += width) {
        width = jinja_char(bytes + i, n - i);
        const uint32_t code = jinja_decode(bytes + i, width);
        if (code != '\\' && code != (uint32_t)quote && !is_hidden(code))
            continue;
        const struct value before = jinja_slice(s, plain, i - plain);
        TRY(jinja_add_string(r, &before));
        TRY(print_escaped(r, code, jinja_mark_of(s, i)));
        plain = i + width;
    }
    const struct value last = jinja_slice(s, plain, n - plain);
    TRY(jinja_add_string(r, &last));
    TRY(jinja_add(r, &quote, 1, s->foreign));
out:
    return st;
}

/* ---- containers ---- */

static enum status print_items(struct run *r, const struct value *v, const char *open,
                               const char *close)
{
    enum status st = OK;
    TRY(jinja_puts(r, open, v->foreign));
    for (size_t i = 0; i < v->list->n; i++) {
        if (i > 0)
            TRY(jinja_puts(r, ", ", v->foreign));
        TRY(print(r, &v->list->items[i], true));
    }
    TRY(jinja_puts(r, close, v->foreign));
out:
    return st;
}

static enum status print_view(struct run *r, const struct value *v)
{
    enum status st = OK;
    TRY(jinja_puts(r, v->list->name, v->foreign));
    TRY(print_items(r, v, "([", "])"));
out:
    return st;
}

static enum status print_dict(struct run *r, const struct value *v)
{
    enum status st = OK;
    TRY(jinja_puts(r, "{", v->foreign));
    for (size_t i = 0; i < v->dict->n; i++) {
        if (i > 0)
            TRY(jinja_puts(r, ", ", v->foreign));
        TRY(print(r, &v->dict->pairs[i].key, true));
        TRY(jinja_puts(r, ": ", v->foreign));
        TRY(print(r, &v->dict->pairs[i].value, true));
    }
    TRY(jinja_puts(r, "}", v->foreign));
out:
    return st;
}

/* ---- any value ---- */

static enum status print_number(struct run *r, const struct value *v)
{
    char text[32];
    enum status st = OK;
    if (v->kind == VALUE_INT)
        snprintf(text, sizeof text, "%" PRId64, v->i);
    else
        st = jinja_float_text(r, v->f, text);
    return st == OK ? jinja_puts(r, text, v->foreign) : st;
}

/* The one of a call block has no name. */
static enum status print_macro(struct run *r, const struct value *name)
{
    enum status st = OK;
    TRY(jinja_puts(r, "<Macro ", false));
    if (name->kind == VALUE_STRING)
        TRY(print_quoted(r, name));
    else
        TRY(jinja_puts(r, "anonymous", false));
    st = jinja_puts(r, ">", false);
out:
    return st;
}

static enum status print_plain(struct run *r, const struct value *v, bool quoted)
{
    if (v->kind == VALUE_STRING)
        return quoted ? print_quoted(r, v) : jinja_add_string(r, v);
    if (v->kind == VALUE_INT || v->kind == VALUE_FLOAT)
        return print_number(r, v);
    if (v->kind == VALUE_BOOL)
        return jinja_puts(r, v->b ? "True" : "False", v->foreign);
    if (v->kind == VALUE_NONE)
        return jinja_puts(r, "None", v->foreign);
    if (v->kind == VALUE_UNDEFINED)
        return quoted ? jinja_puts(r, "Undefined", false) : OK;
    if (v->kind == VALUE_MACRO)
        return print_macro(r, &v->macro->node->value);
    return jinja_fail(r, "printing a %s is not supported%s", jinja_type_name(v),
                      v->kind == VALUE_ITERATOR ? ": make it a list first" : "");
}

static enum status print(struct run *r, const struct value *v, bool quoted)
{
    enum status st = OK;
    if (++r->depth > RUN_DEPTH_MAX)
        return jinja_over(r, "values are nested too deep");
    if (v->kind == VALUE_LIST)
        st = print_items(r, v, "[", "]");
    else if (v->kind == VALUE_TUPLE)
        st = print_items(r, v, "(", v->list->n == 1 ? ",)" : ")");
    else if (v->kind == VALUE_VIEW)
        st = print_view(r, v);
    else if (v->kind == VALUE_DICT)
        st = print_dict(r, v);
    else
        st = print_plain(r, v, quoted);
    r->depth--;
    return st;
}

enum status jinja_print(struct run *r, const struct value *v)
{
    return print(r, v, false);
}

enum status jinja_to_string(struct run *r, const struct value *v, struct value *out)
{
    const size_t mark = jinja_mark(r);
    if (v->kind == VALUE_STRING) {
        *out = *v;
        return OK;
    }
    enum status st = jinja_print(r, v);
    return st == OK ? jinja_cut(r, mark, out) : st;
}
