/* DESIGN: what Python makes as a generator is made at once here, but stays something to be walked
 * through once: true even when empty, without a length. */
#include "server/template/jinja_filter_items.h"

#include "server/template/jinja_sort.h"
#include "server/template/jinja_string.h"

#include <string.h>

/* Items that are still to be had, as a list of its own kind. */
static enum status rest(struct run *r, struct list *from, enum value_kind kind, struct value *out)
{
    const size_t n = from->n - from->taken;
    enum status st = jinja_new_list(r, kind, n, out);
    if (st == OK && n > 0)
        memcpy(out->list->items, from->items + from->taken, n * sizeof *from->items);
    from->taken = from->n;
    return st;
}

static enum status all_items(struct run *r, const struct value *v, struct value *out)
{
    struct list *items = NULL;
    enum status st = jinja_items(r, v, &items);
    if (st == OK)
        st = rest(r, items, VALUE_LIST, out);
    out->foreign = v->foreign;
    return st;
}

/* ---- attributes of items ---- */

/* One part of "a.b.0": digits are an index. */
static enum status attribute_part(struct run *r, const struct value *part, struct value *item)
{
    struct value index = *part;
    const struct value from = *item;
    int64_t number = 0;
    bool digits = part->s.n > 0 && part->s.n < 10;
    for (size_t i = 0; i < part->s.n && digits; i++) {
        digits = part->s.bytes[i] >= '0' && part->s.bytes[i] <= '9';
        number = number * 10 + (part->s.bytes[i] - '0');
    }
    if (digits)
        index = jinja_int(number);
    return jinja_item(r, &from, &index, item);
}

/* fallback: what stands in for an undefined one, or NULL. */
static enum status get_attribute(struct run *r, const struct value *path,
                                 const struct value *fallback, struct value *item)
{
    const struct value dot = jinja_literal("."), from = *item;
    size_t at = 0;
    enum status st = OK;
    if (path->kind == VALUE_ABSENT || path->kind == VALUE_NONE)
        return OK;
    if (path->kind != VALUE_STRING)
        return jinja_item(r, &from, path, item);
    for (size_t end; at <= path->s.n; at = end + 1) {
        end = jinja_string_find(path, &dot, at);
        if (end == SIZE_MAX)
            end = path->s.n;
        const struct value part = jinja_slice(path, at, end - at);
        TRY(attribute_part(r, &part, item));
        if (item->kind == VALUE_UNDEFINED && fallback && fallback->kind != VALUE_ABSENT &&
            fallback->kind != VALUE_NONE)
            *item = *fallback;
    }
out:
    return st;
}

/* What an item is sorted or compared by. */
static enum status item_key(struct run *r, const struct value *item, const struct value *path,
                            bool case_sensitive, struct value *out)
{
    enum status st = OK;
    *out = *item;
    TRY(get_attribute(r, path, NULL, out));
    if (!case_sensitive && out->kind == VALUE_STRING) {
        const struct value s = *out;
        TRY(jinja_string_case(r, &s, CASE_LOWER, out));
    }
out:
    return st;
}

/* ---- the ends, the length, the order ---- */

enum status jinja_filter_length(struct run *r, const struct call *c, struct value *out)
{
    const struct value *v = &c->self;
    enum status st = OK;
    if (v->kind == VALUE_STRING)
        *out = jinja_int((int64_t)jinja_chars(v->s.bytes, v->s.n));
    else if (v->kind == VALUE_DICT)
        *out = jinja_int((int64_t)v->dict->n);
    else if (jinja_is_list(v))
        *out = jinja_int((int64_t)v->list->n);
    else if (v->kind == VALUE_UNDEFINED)
        *out = jinja_int(0);
    else
        st = jinja_fail(r, "a %s has no length", jinja_type_name(v));
    return st == OK && v->kind == VALUE_STRING ? jinja_spend(r, v->s.n) : st;
}

enum status jinja_filter_list(struct run *r, const struct call *c, struct value *out)
{
    return all_items(r, &c->self, out);
}

enum status jinja_filter_first(struct run *r, const struct call *c, struct value *out)
{
    const struct value name = jinja_literal("first");
    struct list *items = NULL;
    enum status st = jinja_items(r, &c->self, &items);
    if (st != OK)
        return st;
    *out =
        items->taken < items->n ? items->items[items->taken++] : jinja_undefined("sequence", &name);
    return OK;
}

enum status jinja_filter_last(struct run *r, const struct call *c, struct value *out)
{
    const struct value name = jinja_literal("last");
    struct list *items = NULL;
    enum status st = OK;
    if (c->self.kind == VALUE_ITERATOR)
        return jinja_fail(r, "last: make it a list first");
    TRY(jinja_items(r, &c->self, &items));
    *out = items->n > 0 ? items->items[items->n - 1] : jinja_undefined("sequence", &name);
out:
    return st;
}

static enum status reverse_string(struct run *r, const struct value *s, struct value *out)
{
    const struct value backwards[3] = {VALUE_NOTHING, VALUE_NOTHING, jinja_int(-1)};
    return jinja_index_slice(r, s, backwards, out);
}

enum status jinja_filter_reverse(struct run *r, const struct call *c, struct value *out)
{
    enum status st = OK;
    if (c->self.kind == VALUE_STRING)
        return reverse_string(r, &c->self, out);
    TRY(all_items(r, &c->self, out));
    struct value *items = out->list->items;
    for (size_t i = 0, n = out->list->n; i < n / 2; i++) {
        const struct value last = items[n - 1 - i];
        items[n - 1 - i] = items[i];
        items[i] = last;
    }
    /* only of what Python cannot go through backwards is the result a list */
    if (c->self.kind != VALUE_ITERATOR)
        out->kind = VALUE_ITERATOR;
out:
    return st;
}

enum status jinja_filter_items(struct run *r, const struct call *c, struct value *out)
{
    enum status st = OK;
    if (c->self.kind == VALUE_UNDEFINED)
        return jinja_new_list(r, VALUE_ITERATOR, 0, out);
    if (c->self.kind != VALUE_DICT)
        return jinja_fail(r, "items: a %s is no mapping", jinja_type_name(&c->self));
    TRY(jinja_view(r, &c->self, "dict_items", out));
    out->kind = VALUE_ITERATOR;
out:
    return st;
}

enum status jinja_filter_batch(struct run *r, const struct call *c, struct value *out)
{
    struct value all;
    enum status st = OK;
    if (!jinja_is_whole(&c->arg[0]) || jinja_as_int(&c->arg[0]) < 1)
        return jinja_fail(r, "batch: the count must be at least 1");
    const size_t size = (size_t)jinja_as_int(&c->arg[0]);
    const bool fill = c->arg[1].kind != VALUE_ABSENT && c->arg[1].kind != VALUE_NONE;
    TRY(all_items(r, &c->self, &all));
    const size_t n = all.list->n;
    TRY(jinja_new_list(r, VALUE_ITERATOR, n / size + (n % size > 0), out));
    for (size_t i = 0; i < out->list->n; i++) {
        struct value *part = &out->list->items[i];
        const size_t from = i * size, used = n - from < size ? n - from : size;
        TRY(jinja_new_list(r, VALUE_LIST, fill ? size : used, part));
        for (size_t k = 0; k < part->list->n; k++)
            part->list->items[k] = k < used ? all.list->items[from + k] : c->arg[1];
    }
out:
    return st;
}

/* ---- one value out of many ---- */

enum status jinja_filter_join(struct run *r, const struct call *c, struct value *out)
{
    struct value separator = jinja_literal(""), all;
    enum status st = OK;
    if (c->arg[0].kind != VALUE_ABSENT)
        TRY(jinja_to_string(r, &c->arg[0], &separator));
    TRY(all_items(r, &c->self, &all));
    for (size_t i = 0; i < all.list->n; i++)
        TRY(get_attribute(r, &c->arg[1], NULL, &all.list->items[i]));
    st = jinja_string_join(r, &separator, all.list, true, out);
out:
    return st;
}

enum status jinja_filter_sum(struct run *r, const struct call *c, struct value *out)
{
    struct value sum = c->arg[1].kind == VALUE_ABSENT ? jinja_int(0) : c->arg[1], all;
    enum status st = OK;
    TRY(all_items(r, &c->self, &all));
    if (sum.kind == VALUE_STRING)
        return jinja_fail(r, "sum: strings are not added up");
    for (size_t i = 0; i < all.list->n; i++) {
        const struct value before = sum;
        TRY(get_attribute(r, &c->arg[0], NULL, &all.list->items[i]));
        TRY(jinja_operate(r, OP_ADD, &before, &all.list->items[i], &sum));
    }
    *out = sum;
out:
    return st;
}

static enum status extreme(struct run *r, const struct call *c, int wanted, struct value *out)
{
    const struct value name = jinja_literal(wanted < 0 ? "min" : "max");
    struct value all, best, key;
    int order = 0;
    enum status st = OK;
    TRY(all_items(r, &c->self, &all));
    *out = jinja_undefined("sequence", &name);
    for (size_t i = 0; i < all.list->n; i++) {
        TRY(item_key(r, &all.list->items[i], &c->arg[1], jinja_truth(&c->arg[0]), &key));
        if (i > 0)
            TRY(jinja_order(r, &key, &best, &order));
        if (i > 0 && order != wanted)
            continue;
        best = key;
        *out = all.list->items[i];
    }
out:
    return st;
}

enum status jinja_filter_min(struct run *r, const struct call *c, struct value *out)
{
    return extreme(r, c, -1, out);
}

enum status jinja_filter_max(struct run *r, const struct call *c, struct value *out)
{
    return extreme(r, c, 1, out);
}

/* ---- sorting ---- */

/* With several attributes the key is a list of them. */
static enum status sort_key(struct run *r, const struct value *item, const struct value *paths,
                            bool case_sensitive, struct value *out)
{
    const struct value comma = jinja_literal(",");
    struct value split, key;
    enum status st = OK;
    if (paths->kind != VALUE_STRING || !memchr(paths->s.bytes, ',', paths->s.n))
        return item_key(r, item, paths, case_sensitive, out);
    TRY(jinja_string_split(r, paths, &comma, -1, false, &split));
    for (size_t i = 0; i < split.list->n; i++) {
        TRY(item_key(r, item, &split.list->items[i], case_sensitive, &key));
        split.list->items[i] = key;
    }
    *out = split;
out:
    return st;
}

enum status jinja_filter_sort(struct run *r, const struct call *c, struct value *out)
{
    struct value all;
    struct pair *pairs = NULL;
    enum status st = OK;
    TRY(all_items(r, &c->self, &all));
    const size_t n = all.list->n;
    TAKE(r, pairs, n);
    for (size_t i = 0; i < n; i++) {
        pairs[i].value = all.list->items[i];
        TRY(sort_key(r, &pairs[i].value, &c->arg[2], jinja_truth(&c->arg[1]), &pairs[i].key));
    }
    TRY(jinja_sort_pairs(r, pairs, n, jinja_truth(&c->arg[0])));
    for (size_t i = 0; i < n; i++)
        all.list->items[i] = pairs[i].value;
    *out = all;
out:
    return st;
}

enum status jinja_filter_dictsort(struct run *r, const struct call *c, struct value *out)
{
    const bool by_value = jinja_is(&c->arg[1], "value");
    const struct value whole = VALUE_NOTHING;
    struct value view;
    struct pair *pairs = NULL;
    enum status st = OK;
    if (c->self.kind != VALUE_DICT)
        return jinja_fail(r, "dictsort: a %s is no mapping", jinja_type_name(&c->self));
    if (c->arg[1].kind != VALUE_ABSENT && !by_value && !jinja_is(&c->arg[1], "key"))
        return jinja_fail(r, "dictsort: by must be \"key\" or \"value\"");
    TRY(jinja_view(r, &c->self, "dict_items", &view));
    const size_t n = view.list->n;
    TAKE(r, pairs, n);
    for (size_t i = 0; i < n; i++) {
        pairs[i].value = view.list->items[i];
        TRY(item_key(r, &pairs[i].value.list->items[by_value], &whole, jinja_truth(&c->arg[0]),
                     &pairs[i].key));
    }
    TRY(jinja_sort_pairs(r, pairs, n, jinja_truth(&c->arg[2])));
    for (size_t i = 0; i < n; i++)
        view.list->items[i] = pairs[i].value;
    view.kind = VALUE_LIST;
    *out = view;
out:
    return st;
}

enum status jinja_filter_unique(struct run *r, const struct call *c, struct value *out)
{
    struct value all;
    struct dict seen = {.n = 0};
    enum status st = OK;
    TRY(all_items(r, &c->self, &all));
    size_t kept = 0;
    for (size_t i = 0; i < all.list->n; i++) {
        const struct value item = all.list->items[i];
        struct value key, *found = NULL;
        TRY(item_key(r, &item, &c->arg[1], jinja_truth(&c->arg[0]), &key));
        TRY(jinja_find(r, &seen, &key, &found));
        if (found)
            continue;
        TRY(jinja_put(r, &seen, &key, &item));
        all.list->items[kept++] = item;
    }
    all.list->n = kept;
    all.kind = VALUE_ITERATOR;
    *out = all;
out:
    return st;
}

/* ---- map and select ---- */

/* The call without its first arguments, which the filter has used itself. */
static struct call without(const struct call *c, size_t used)
{
    struct call rest_call = *c;
    rest_call.given += used < c->given_n ? used : c->given_n;
    rest_call.given_n -= used < c->given_n ? used : c->given_n;
    return rest_call;
}

static const struct value *named(const struct call *c, const char *name)
{
    for (size_t i = 0; i < c->named_n; i++)
        if (jinja_is(&c->named[i].key, name))
            return &c->named[i].value;
    return NULL;
}

static enum status map_attribute(struct run *r, const struct call *c, struct value *items)
{
    const struct value *path = named(c, "attribute"), *fallback = named(c, "default");
    enum status st = OK;
    if (!path || c->named_n > 1 + (fallback != NULL))
        return jinja_fail(r, "map: needs a filter's name, or attribute and default");
    for (size_t i = 0; i < items->list->n && st == OK; i++)
        st = get_attribute(r, path, fallback, &items->list->items[i]);
    return st;
}

static enum status map_filter(struct run *r, const struct call *c, struct value *items)
{
    const struct value *name = &c->given[0];
    const struct function *f =
        name->kind == VALUE_STRING ? jinja_filter(name->s.bytes, name->s.n) : NULL;
    enum status st = OK;
    if (!f)
        return jinja_fail(r, "map: this filter is not supported");
    for (size_t i = 0; i < items->list->n && st == OK; i++) {
        struct call one = without(c, 1);
        one.self = items->list->items[i];
        st = jinja_call_function(r, f, &one, &items->list->items[i]);
    }
    return st;
}

enum status jinja_filter_map(struct run *r, const struct call *c, struct value *out)
{
    enum status st = OK;
    if (!jinja_truth(&c->self))
        return jinja_new_list(r, VALUE_ITERATOR, 0, out);
    TRY(all_items(r, &c->self, out));
    if (out->list->n > 0)
        TRY(c->given_n > 0 ? map_filter(r, c, out) : map_attribute(r, c, out));
    out->kind = VALUE_ITERATOR;
out:
    return st;
}

/* given[skip] names the test; without one, truth is tested. */
static enum status passes(struct run *r, const struct call *c, size_t skip,
                          const struct function *test, const struct value *item, bool *out)
{
    struct call one = without(c, skip + 1);
    struct value v = *item;
    enum status st = OK;
    if (skip > 0)
        TRY(get_attribute(r, &c->given[0], NULL, &v));
    if (test) {
        one.self = v;
        TRY(jinja_call_function(r, test, &one, &v));
    }
    *out = jinja_truth(&v);
out:
    return st;
}

static enum status select_items(struct run *r, const struct call *c, bool wanted, bool by_attribute,
                                struct value *out)
{
    const size_t skip = by_attribute ? 1 : 0;
    const struct value *name = c->given_n > skip ? &c->given[skip] : NULL;
    const struct function *test =
        name && name->kind == VALUE_STRING ? jinja_test(name->s.bytes, name->s.n) : NULL;
    size_t kept = 0;
    enum status st = OK;
    if (!jinja_truth(&c->self))
        return jinja_new_list(r, VALUE_ITERATOR, 0, out);
    if (c->given_n < skip || (name && !test))
        return jinja_fail(r, name ? "this test is not supported" : "an attribute is missing");
    TRY(all_items(r, &c->self, out));
    for (size_t i = 0; i < out->list->n; i++) {
        const struct value item = out->list->items[i];
        bool passed = false;
        TRY(passes(r, c, skip, test, &item, &passed));
        if (passed == wanted)
            out->list->items[kept++] = item;
    }
    out->list->n = kept;
    out->kind = VALUE_ITERATOR;
out:
    return st;
}

enum status jinja_filter_select(struct run *r, const struct call *c, struct value *out)
{
    return select_items(r, c, true, false, out);
}

enum status jinja_filter_reject(struct run *r, const struct call *c, struct value *out)
{
    return select_items(r, c, false, false, out);
}

enum status jinja_filter_selectattr(struct run *r, const struct call *c, struct value *out)
{
    return select_items(r, c, true, true, out);
}

enum status jinja_filter_rejectattr(struct run *r, const struct call *c, struct value *out)
{
    return select_items(r, c, false, true, out);
}
