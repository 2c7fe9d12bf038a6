/* DESIGN: one table; each row a small function over what the call holds. Filters that go through
 * items are in jinja_filter_items.c. */
#include "server/template/jinja_filter_items.h"
#include "server/template/jinja_string.h"
#include "server/template/jinja_tojson.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DIGITS_MAX 400

/* ---- text ---- */

static enum status filter_string(struct run *r, const struct call *c, struct value *out)
{
    return jinja_to_string(r, &c->self, out);
}

static enum status change_case(struct run *r, const struct call *c, enum string_case how,
                               struct value *out)
{
    struct value s;
    enum status st = jinja_to_string(r, &c->self, &s);
    return st == OK ? jinja_string_case(r, &s, how, out) : st;
}

static enum status filter_upper(struct run *r, const struct call *c, struct value *out)
{
    return change_case(r, c, CASE_UPPER, out);
}

static enum status filter_lower(struct run *r, const struct call *c, struct value *out)
{
    return change_case(r, c, CASE_LOWER, out);
}

static enum status filter_capitalize(struct run *r, const struct call *c, struct value *out)
{
    return change_case(r, c, CASE_CAPITAL, out);
}

static enum status filter_title(struct run *r, const struct call *c, struct value *out)
{
    return change_case(r, c, CASE_WORDS, out);
}

static enum status filter_trim(struct run *r, const struct call *c, struct value *out)
{
    struct value s;
    enum status st = jinja_to_string(r, &c->self, &s);
    return st == OK ? jinja_string_strip(r, &s, &c->arg[0], STRIP_LEFT | STRIP_RIGHT, out) : st;
}

static enum status filter_replace(struct run *r, const struct call *c, struct value *out)
{
    struct value s, old, new;
    int64_t count = -1;
    enum status st = OK;
    TRY(jinja_to_string(r, &c->self, &s));
    TRY(jinja_to_string(r, &c->arg[0], &old));
    TRY(jinja_to_string(r, &c->arg[1], &new));
    if (jinja_is_whole(&c->arg[2]))
        count = jinja_as_int(&c->arg[2]);
    else if (c->arg[2].kind != VALUE_ABSENT && c->arg[2].kind != VALUE_NONE)
        return jinja_fail(r, "replace: the count must be a whole number");
    st = jinja_string_replace(r, &s, &old, &new, count, out);
out:
    return st;
}

static enum status filter_escape(struct run *r, const struct call *c, struct value *out)
{
    static const char *const rows[][2] = {
        {"&", "&amp;"}, {">", "&gt;"}, {"<", "&lt;"}, {"'", "&#39;"}, {"\"", "&#34;"}};
    struct value s;
    enum status st = jinja_to_string(r, &c->self, &s);
    for (size_t i = 0; i < ARRAY_LEN(rows) && st == OK; i++) {
        const struct value old = jinja_literal(rows[i][0]), new = jinja_literal(rows[i][1]);
        st = jinja_string_replace(r, &s, &old, &new, -1, &s);
    }
    *out = s;
    return st;
}

static enum status filter_wordcount(struct run *r, const struct call *c, struct value *out)
{
    struct value s;
    int64_t words = 0;
    bool inside = false;
    enum status st = OK;
    TRY(jinja_to_string(r, &c->self, &s));
    TRY(jinja_spend(r, s.s.n));
    for (size_t i = 0; i < s.s.n; i++) {
        const unsigned char b = (unsigned char)s.s.bytes[i];
        if (b >= 0x80)
            return jinja_fail(r, "wordcount of text beyond ASCII is not supported");
        words += !inside && (isalnum(b) || b == '_');
        inside = isalnum(b) || b == '_';
    }
    *out = jinja_int(words);
out:
    return st;
}

static enum status indentation(struct run *r, const struct value *width, struct value *out)
{
    const struct value space = jinja_literal(" "), four = jinja_int(4);
    if (width->kind != VALUE_STRING)
        return jinja_operate(r, OP_MUL, &space, width->kind == VALUE_ABSENT ? &four : width, out);
    *out = *width;
    return OK;
}

static enum status filter_indent(struct run *r, const struct call *c, struct value *out)
{
    const struct value newline = jinja_literal("\n");
    const bool first = jinja_truth(&c->arg[1]), blank = jinja_truth(&c->arg[2]);
    struct value margin, text, lines;
    enum status st = OK;
    TRY(indentation(r, &c->arg[0], &margin));
    TRY(jinja_operate(r, OP_ADD, &c->self, &newline, &text));
    TRY(jinja_string_lines(r, &text, &lines));
    const size_t mark = jinja_mark(r);
    for (size_t i = 0; i < lines.list->n; i++) {
        const struct value *line = &lines.list->items[i];
        if (i > 0)
            TRY(jinja_add_string(r, &newline));
        if (i > 0 ? blank || line->s.n > 0 : first)
            TRY(jinja_add_string(r, &margin));
        TRY(jinja_add_string(r, line));
    }
    st = jinja_cut(r, mark, out);
out:
    return st;
}

/* ---- numbers ---- */

/* The value without white space around it where it is a string. */
static enum status stripped(struct run *r, const struct value *v, struct value *out)
{
    const struct value nothing = VALUE_NOTHING;
    *out = *v;
    return v->kind == VALUE_STRING
               ? jinja_string_strip(r, v, &nothing, STRIP_LEFT | STRIP_RIGHT, out)
               : OK;
}

/* Without Python's underscores, which stand between two of what is_digit takes. */
static bool copy_digits(const struct value *s, int (*is_digit)(int), char text[DIGITS_MAX])
{
    size_t n = 0;
    if (s->s.n == 0 || s->s.n >= DIGITS_MAX || memchr(s->s.bytes, '\0', s->s.n))
        return false;
    for (size_t i = 0; i < s->s.n; i++) {
        const char *b = s->s.bytes + i;
        if (*b != '_')
            text[n++] = *b;
        else if (i == 0 || i + 1 == s->s.n || !is_digit((unsigned char)b[-1]) ||
                 !is_digit((unsigned char)b[1]))
            return false;
    }
    text[n] = '\0';
    return true;
}

/* Reads all of a stripped string as strtod does, but without C's extras. */
static bool read_float(const struct value *s, double *out)
{
    char text[DIGITS_MAX], *end = NULL;
    if (!copy_digits(s, isdigit, text) || strpbrk(text, "xX("))
        return false;
    *out = strtod(text, &end);
    return *end == '\0';
}

static bool read_int(const struct value *s, int base, int64_t *out)
{
    char text[DIGITS_MAX], *end = NULL;
    if (!copy_digits(s, isalnum, text))
        return false;
    errno = 0;
    *out = strtoll(text, &end, base);
    return *end == '\0' && errno == 0;
}

static bool to_whole(double f, int64_t *out)
{
    if (!(f > -0x1p63 && f < 0x1p63))
        return false;
    *out = (int64_t)f;
    return true;
}

/* *fits: is there a whole number, whatever its size? */
static bool float_to_int(double f, int64_t *out, bool *fits)
{
    *fits = to_whole(f, out);
    return isfinite(f);
}

static bool string_to_int(const struct value *s, int base, int64_t *out, bool *fits)
{
    double f = 0;
    *fits = read_int(s, base, out);
    return *fits || (read_float(s, &f) && float_to_int(f, out, fits));
}

static enum status filter_int(struct run *r, const struct call *c, struct value *out)
{
    const struct value *v = &c->self;
    const int64_t base = jinja_is_whole(&c->arg[1]) ? jinja_as_int(&c->arg[1]) : 10;
    struct value text;
    int64_t i = 0;
    bool found = true, fits = true;
    enum status st = OK;
    if (base != 10 && base != 16)
        return jinja_fail(r, "int: a base other than 10 and 16 is not supported");
    TRY(stripped(r, v, &text));
    if (v->kind == VALUE_UNDEFINED)
        return jinja_say_undefined(r, v);
    if (v->kind == VALUE_FLOAT && isinf(v->f))
        return jinja_fail(r, "int: infinity has no whole number");
    if (v->kind == VALUE_STRING)
        found = string_to_int(&text, (int)base, &i, &fits);
    else if (v->kind == VALUE_FLOAT)
        found = float_to_int(v->f, &i, &fits);
    else if (jinja_is_whole(v))
        i = jinja_as_int(v);
    else
        found = false;
    if (found && !fits)
        return jinja_fail(r, RUN_TOO_LARGE);
    *out = found || c->arg[0].kind == VALUE_ABSENT ? jinja_int(i) : c->arg[0];
    out->foreign |= v->foreign;
out:
    return st;
}

static enum status filter_float(struct run *r, const struct call *c, struct value *out)
{
    const struct value *v = &c->self;
    struct value text;
    double f = 0;
    enum status st = OK;
    TRY(stripped(r, v, &text));
    *out = c->arg[0].kind == VALUE_ABSENT ? jinja_float(0) : c->arg[0];
    if (v->kind == VALUE_UNDEFINED)
        return jinja_say_undefined(r, v);
    if (jinja_is_number(v))
        *out = jinja_float(jinja_as_float(v));
    else if (v->kind == VALUE_STRING && read_float(&text, &f))
        *out = jinja_float(f);
    out->foreign |= v->foreign;
out:
    return st;
}

static enum status filter_abs(struct run *r, const struct call *c, struct value *out)
{
    const struct value *v = &c->self, zero = jinja_int(0);
    if (v->kind == VALUE_UNDEFINED)
        return jinja_say_undefined(r, v);
    if (!jinja_is_number(v))
        return jinja_fail(r, "abs: a %s is no number", jinja_type_name(v));
    *out = v->kind == VALUE_FLOAT ? jinja_float(fabs(v->f)) : jinja_int(jinja_as_int(v));
    out->foreign = v->foreign;
    return out->kind == VALUE_INT && out->i < 0 ? jinja_operate(r, OP_SUB, &zero, v, out) : OK;
}

/* To so many digits, exactly halfway to even, as Python's round(): through decimal text. */
static double round_common(double f, int64_t digits)
{
    char text[DIGITS_MAX];
    if (digits > 300 || !isfinite(f))
        return f;
    if (digits < -308)
        return copysign(0, f);
    if (digits < 0) {
        const double scale = pow(10, (double)-digits);
        return rint(f / scale) * scale;
    }
    snprintf(text, sizeof text, "%.*f", (int)digits, f);
    return strtod(text, NULL);
}

static enum status filter_round(struct run *r, const struct call *c, struct value *out)
{
    const struct value *v = &c->self, common = jinja_literal("common");
    const struct value *method = c->arg[1].kind == VALUE_ABSENT ? &common : &c->arg[1];
    const int64_t digits = jinja_is_whole(&c->arg[0]) ? jinja_as_int(&c->arg[0]) : 0;
    const bool ceiling = jinja_is(method, "ceil");
    if (v->kind == VALUE_UNDEFINED)
        return jinja_say_undefined(r, v);
    if (!jinja_is_number(v) || (c->arg[0].kind != VALUE_ABSENT && !jinja_is_whole(&c->arg[0])))
        return jinja_fail(r, "round: numbers are needed");
    if (!ceiling && !jinja_is(method, "floor") && !jinja_is(method, "common"))
        return jinja_fail(r, "round: the method must be common, ceil or floor");
    if (jinja_is(method, "common")) {
        if (v->kind != VALUE_FLOAT && digits < 0)
            return jinja_fail(r, "round: a whole number to fewer digits is not supported");
        *out = v->kind == VALUE_FLOAT ? jinja_float(round_common(v->f, digits))
                                      : jinja_int(jinja_as_int(v));
    } else {
        const double scale = pow(10, (double)digits), x = jinja_as_float(v) * scale;
        *out = jinja_float((ceiling ? ceil(x) : floor(x)) / scale);
    }
    out->foreign = v->foreign;
    return OK;
}

/* ---- any value ---- */

static enum status filter_default(struct run *r, const struct call *c, struct value *out)
{
    const bool missing =
        c->self.kind == VALUE_UNDEFINED || (jinja_truth(&c->arg[1]) && !jinja_truth(&c->self));
    (void)r;
    *out = c->self;
    if (missing)
        *out = c->arg[0].kind == VALUE_ABSENT ? jinja_literal("") : c->arg[0];
    return OK;
}

const struct function *jinja_filter(const char *name, size_t n)
{
    static const struct function rows[] = {
        {"abs", filter_abs, 0, {NULL}},
        {"batch", jinja_filter_batch, 1, {"linecount", "fill_with"}},
        {"capitalize", filter_capitalize, 0, {NULL}},
        {"count", jinja_filter_length, 0, {NULL}},
        {"d", filter_default, 0, {"default_value", "boolean"}},
        {"default", filter_default, 0, {"default_value", "boolean"}},
        {"dictsort", jinja_filter_dictsort, 0, {"case_sensitive", "by", "reverse"}},
        {"e", filter_escape, 0, {NULL}},
        {"escape", filter_escape, 0, {NULL}},
        {"first", jinja_filter_first, 0, {NULL}},
        {"float", filter_float, 0, {"default"}},
        {"indent", filter_indent, 0, {"width", "first", "blank"}},
        {"int", filter_int, 0, {"default", "base"}},
        {"items", jinja_filter_items, 0, {NULL}},
        {"join", jinja_filter_join, 0, {"d", "attribute"}},
        {"last", jinja_filter_last, 0, {NULL}},
        {"length", jinja_filter_length, 0, {NULL}},
        {"list", jinja_filter_list, 0, {NULL}},
        {"lower", filter_lower, 0, {NULL}},
        {"map", jinja_filter_map, 0, {"*"}},
        {"max", jinja_filter_max, 0, {"case_sensitive", "attribute"}},
        {"min", jinja_filter_min, 0, {"case_sensitive", "attribute"}},
        {"reject", jinja_filter_reject, 0, {"*"}},
        {"rejectattr", jinja_filter_rejectattr, 0, {"*"}},
        {"replace", filter_replace, 2, {"old", "new", "count"}},
        {"reverse", jinja_filter_reverse, 0, {NULL}},
        {"round", filter_round, 0, {"precision", "method"}},
        {"safe", filter_string, 0, {NULL}},
        {"select", jinja_filter_select, 0, {"*"}},
        {"selectattr", jinja_filter_selectattr, 0, {"*"}},
        {"sort", jinja_filter_sort, 0, {"reverse", "case_sensitive", "attribute"}},
        {"string", filter_string, 0, {NULL}},
        {"sum", jinja_filter_sum, 0, {"attribute", "start"}},
        {"title", filter_title, 0, {NULL}},
        {"tojson", jinja_tojson, 0, {"ensure_ascii", "indent", "separators", "sort_keys"}},
        {"trim", filter_trim, 0, {"chars"}},
        {"unique", jinja_filter_unique, 0, {"case_sensitive", "attribute"}},
        {"upper", filter_upper, 0, {NULL}},
        {"wordcount", filter_wordcount, 0, {NULL}},
    };
    return jinja_function_find(rows, ARRAY_LEN(rows), name, n);
}
