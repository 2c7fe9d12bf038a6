/* DESIGN: what needs neither memory nor a render. Whatever walks through containers can go deep: it
 * needs the render's count of the depth, and stands with what it does, such as comparing. */
#include "server/template/jinja_value.h"

#include "config/utf8.h"

#include <string.h>

struct value jinja_bool(bool b)
{
    return (struct value){.kind = VALUE_BOOL, .b = b};
}

struct value jinja_int(int64_t i)
{
    return (struct value){.kind = VALUE_INT, .i = i};
}

struct value jinja_float(double f)
{
    return (struct value){.kind = VALUE_FLOAT, .f = f};
}

struct value jinja_literal(const char *text)
{
    return (struct value){.kind = VALUE_STRING, .s = {.bytes = text, .n = strlen(text)}};
}

struct value jinja_slice(const struct value *s, size_t from, size_t n)
{
    struct value v = *s;
    v.s.bytes += from;
    if (v.s.marks)
        v.s.marks += from;
    v.s.n = n;
    return v;
}

const char *jinja_type_name(const struct value *v)
{
    static const char *const names[VALUE_KINDS] = {
        [VALUE_ABSENT] = "nothing", [VALUE_UNDEFINED] = "Undefined",
        [VALUE_NONE] = "None",      [VALUE_BOOL] = "bool",
        [VALUE_INT] = "int",        [VALUE_FLOAT] = "float",
        [VALUE_STRING] = "str",     [VALUE_LIST] = "list",
        [VALUE_TUPLE] = "tuple",    [VALUE_RANGE] = "range",
        [VALUE_VIEW] = "dict view", [VALUE_ITERATOR] = "generator",
        [VALUE_DICT] = "dict",      [VALUE_NAMESPACE] = "namespace",
        [VALUE_LOOP] = "loop",      [VALUE_FUNCTION] = "function",
        [VALUE_METHOD] = "method",  [VALUE_MACRO] = "macro",
    };
    return names[v->kind];
}

bool jinja_truth(const struct value *v)
{
    switch (v->kind) {
    case VALUE_ABSENT:
    case VALUE_UNDEFINED:
    case VALUE_NONE:
        return false;
    case VALUE_BOOL:
        return v->b;
    case VALUE_INT:
        return v->i != 0;
    case VALUE_FLOAT:
        return v->f != 0;
    case VALUE_STRING:
        return v->s.n > 0;
    case VALUE_LIST:
    case VALUE_TUPLE:
    case VALUE_RANGE:
    case VALUE_VIEW:
        return v->list->n > 0;
    case VALUE_DICT:
        return v->dict->n > 0;
    case VALUE_ITERATOR: /* true even when it will give nothing */
    case VALUE_NAMESPACE:
    case VALUE_LOOP:
    case VALUE_FUNCTION:
    case VALUE_METHOD:
    case VALUE_MACRO:
    case VALUE_KINDS:
        break;
    }
    return true;
}

bool jinja_is_whole(const struct value *v)
{
    return v->kind == VALUE_BOOL || v->kind == VALUE_INT;
}

bool jinja_is_number(const struct value *v)
{
    return jinja_is_whole(v) || v->kind == VALUE_FLOAT;
}

int64_t jinja_as_int(const struct value *v)
{
    return v->kind == VALUE_BOOL ? v->b : v->i;
}

double jinja_as_float(const struct value *v)
{
    return v->kind == VALUE_FLOAT ? v->f : (double)jinja_as_int(v);
}

bool jinja_is_list(const struct value *v)
{
    return v->kind == VALUE_LIST || v->kind == VALUE_TUPLE || v->kind == VALUE_RANGE ||
           v->kind == VALUE_VIEW;
}

bool jinja_same_text(const struct value *a, const struct value *b)
{
    return a->s.n == b->s.n && (a->s.n == 0 || memcmp(a->s.bytes, b->s.bytes, a->s.n) == 0);
}

bool jinja_is(const struct value *s, const char *text)
{
    return s->kind == VALUE_STRING && s->s.n == strlen(text) &&
           memcmp(s->s.bytes, text, s->s.n) == 0;
}

/* An int64_t fits a long double, so that 2**53 + 1 is not 2.0**53. */
static bool same_number(const struct value *a, const struct value *b)
{
    if (jinja_is_whole(a) && jinja_is_whole(b))
        return jinja_as_int(a) == jinja_as_int(b);
    const long double x = a->kind == VALUE_FLOAT ? (long double)a->f : (long double)jinja_as_int(a);
    const long double y = b->kind == VALUE_FLOAT ? (long double)b->f : (long double)jinja_as_int(b);
    return x == y;
}

bool jinja_identical(const struct value *a, const struct value *b)
{
    if (a->kind != b->kind)
        return false;
    if (jinja_is_list(a))
        return a->list == b->list;
    return a->kind == VALUE_DICT ? a->dict == b->dict : jinja_equal_plain(a, b);
}

bool jinja_equal_plain(const struct value *a, const struct value *b)
{
    if (jinja_is_number(a) && jinja_is_number(b))
        return same_number(a, b);
    if (a->kind != b->kind)
        return false;
    if (a->kind == VALUE_STRING)
        return jinja_same_text(a, b);
    if (a->kind == VALUE_UNDEFINED || a->kind == VALUE_NONE)
        return true;
    if (a->kind == VALUE_NAMESPACE)
        return a->dict == b->dict;
    if (a->kind == VALUE_ITERATOR)
        return a->list == b->list;
    if (a->kind == VALUE_FUNCTION)
        return a->function == b->function;
    return a->kind == VALUE_MACRO && a->macro == b->macro;
}

/* ---- characters ---- */

size_t jinja_char(const char *s, size_t n)
{
    const unsigned char c = (unsigned char)s[0];
    size_t width = c < 0xc0 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
    if (width > n)
        return 1;
    for (size_t i = 1; i < width; i++)
        if (((unsigned char)s[i] & 0xc0) != 0x80)
            return 1;
    return width;
}

static bool is_space(uint32_t code)
{
    return (code >= 0x09 && code <= 0x0d) || (code >= 0x1c && code <= 0x20) || code == 0x85 ||
           code == 0xa0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 ||
           code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000;
}

uint32_t jinja_decode(const char *s, size_t width)
{
    if (width == 1 && (unsigned char)s[0] >= 0x80)
        return 0xfffd; /* a stray byte */
    return utf8_code(s, width);
}

size_t jinja_space(const char *s, size_t n)
{
    const size_t width = n > 0 ? jinja_char(s, n) : 0;
    return width > 0 && is_space(jinja_decode(s, width)) ? width : 0;
}

size_t jinja_char_before(const char *s, size_t n)
{
    size_t width = 1;
    while (width < n && width < 4 && ((unsigned char)s[n - width] & 0xc0) == 0x80)
        width++;
    return width <= n && jinja_char(s + n - width, width) == width ? width : n > 0;
}

size_t jinja_space_before(const char *s, size_t n)
{
    const size_t width = jinja_char_before(s, n);
    return jinja_space(s + n - width, width);
}

size_t jinja_chars(const char *s, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i += jinja_char(s + i, n - i))
        count++;
    return count;
}

size_t jinja_offset(const char *s, size_t n, size_t i)
{
    size_t at = 0;
    for (; at < n && i > 0; i--)
        at += jinja_char(s + at, n - at);
    return at;
}

size_t jinja_encode(uint32_t code, char *out)
{
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    const size_t width = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    static const unsigned char first[] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (size_t i = width - 1; i > 0; i--, code >>= 6)
        out[i] = (char)(0x80 | (code & 0x3f));
    out[0] = (char)(first[width] | code);
    return width;
}
