/* DESIGN: a namespace can hold itself, so whatever walks through containers counts its depth. */
#include "server/template/jinja_run.h"

#include <math.h>
#include <string.h>

static enum status deeper(struct run *r, size_t items)
{
    enum status st = jinja_spend(r, items * 8);
    if (st == OK && ++r->depth > RUN_DEPTH_MAX)
        st = jinja_over(r, "values are nested too deep");
    return st;
}

static enum status equal_lists(struct run *r, const struct list *a, const struct list *b, bool *out)
{
    enum status st = OK;
    *out = a->n == b->n;
    TRY(deeper(r, *out ? a->n : 0));
    for (size_t i = 0; i < a->n && *out; i++)
        TRY(jinja_equal(r, &a->items[i], &b->items[i], out));
    r->depth--;
out:
    return st;
}

static enum status equal_dicts(struct run *r, const struct dict *a, const struct dict *b, bool *out)
{
    enum status st = OK;
    *out = a->n == b->n;
    TRY(deeper(r, *out ? a->n : 0));
    for (size_t i = 0; i < a->n && *out; i++) {
        struct value *other = NULL;
        TRY(jinja_find(r, b, &a->pairs[i].key, &other));
        *out = other != NULL;
        if (other)
            TRY(jinja_equal(r, &a->pairs[i].value, other, out));
    }
    r->depth--;
out:
    return st;
}

enum status jinja_equal(struct run *r, const struct value *a, const struct value *b, bool *out)
{
    if (a->kind == b->kind && a->kind == VALUE_DICT)
        return equal_dicts(r, a->dict, b->dict, out);
    if (a->kind == b->kind && jinja_is_list(a))
        return equal_lists(r, a->list, b->list, out);
    *out = jinja_equal_plain(a, b);
    return a->kind == VALUE_STRING ? jinja_spend(r, a->s.n) : OK;
}

static int sign(bool less, bool more)
{
    return less ? -1 : more ? 1 : 0;
}

static int order_numbers(const struct value *a, const struct value *b)
{
    if (jinja_is_whole(a) && jinja_is_whole(b))
        return sign(jinja_as_int(a) < jinja_as_int(b), jinja_as_int(a) > jinja_as_int(b));
    const long double x = a->kind == VALUE_FLOAT ? (long double)a->f : (long double)jinja_as_int(a);
    const long double y = b->kind == VALUE_FLOAT ? (long double)b->f : (long double)jinja_as_int(b);
    return isnan(x) || isnan(y) ? 2 : sign(x<y, x> y);
}

/* UTF-8 sorts by its bytes as its characters do. */
static int order_strings(const struct value *a, const struct value *b)
{
    const size_t n = a->s.n < b->s.n ? a->s.n : b->s.n;
    const int order = n > 0 ? memcmp(a->s.bytes, b->s.bytes, n) : 0;
    return order != 0 ? sign(order < 0, true) : sign(a->s.n<b->s.n, a->s.n> b->s.n);
}

static enum status order_lists(struct run *r, const struct list *a, const struct list *b, int *out)
{
    const size_t n = a->n < b->n ? a->n : b->n;
    bool same = true;
    enum status st = OK;
    TRY(deeper(r, n));
    for (size_t i = 0; i < n; i++) {
        TRY(jinja_equal(r, &a->items[i], &b->items[i], &same));
        if (!same) {
            TRY(jinja_order(r, &a->items[i], &b->items[i], out));
            break;
        }
    }
    if (same)
        *out = sign(a->n<b->n, a->n> b->n);
    r->depth--;
out:
    return st;
}

enum status jinja_order(struct run *r, const struct value *a, const struct value *b, int *out)
{
    if (a->kind == VALUE_UNDEFINED || b->kind == VALUE_UNDEFINED)
        return jinja_say_undefined(r, a->kind == VALUE_UNDEFINED ? a : b);
    if (jinja_is_number(a) && jinja_is_number(b)) {
        *out = order_numbers(a, b);
        return OK;
    }
    if (a->kind == VALUE_STRING && b->kind == VALUE_STRING) {
        *out = order_strings(a, b);
        return jinja_spend(r, a->s.n);
    }
    if (a->kind == b->kind && (a->kind == VALUE_LIST || a->kind == VALUE_TUPLE))
        return order_lists(r, a->list, b->list, out);
    return jinja_fail(r, "a %s and a %s have no order", jinja_type_name(a), jinja_type_name(b));
}

static bool contains_text(const struct value *box, const struct value *item)
{
    return item->s.n == 0 || memmem(box->s.bytes, box->s.n, item->s.bytes, item->s.n) != NULL;
}

enum status jinja_contains(struct run *r, const struct value *box, const struct value *item,
                           bool *out)
{
    struct list *items = NULL;
    struct value *found = NULL;
    enum status st = OK;
    *out = false;
    if (box->kind == VALUE_STRING && item->kind != VALUE_STRING)
        return jinja_fail(r, "a %s cannot be in a str", jinja_type_name(item));
    if (box->kind == VALUE_STRING) {
        *out = contains_text(box, item);
        return jinja_spend(r, box->s.n);
    }
    if (box->kind == VALUE_DICT) {
        TRY(jinja_find(r, box->dict, item, &found));
        *out = found != NULL;
        return OK;
    }
    TRY(jinja_items(r, box, &items));
    TRY(jinja_spend(r, (items->n - items->taken) * 8));
    while (items->taken < items->n && !*out)
        TRY(jinja_equal(r, item, &items->items[items->taken++], out));
out:
    return st;
}
