/* DESIGN: one table per type. A row without a body is a method that Python has and this engine does
 * not, or that would change its object: better refused by name than taken for a missing key. */
#include "server/template/jinja_string.h"

#include <string.h>

/* ---- strings ---- */

/* Optional whole number; fails on anything else that is given. */
static enum status optional_int(struct run *r, const struct value *v, int64_t fallback,
                                int64_t *out)
{
    *out = fallback;
    if (jinja_is_whole(v))
        *out = jinja_as_int(v);
    else if (v->kind != VALUE_ABSENT)
        return jinja_fail(r, "a whole number is needed, not a %s", jinja_type_name(v));
    return OK;
}

static enum status strip(struct run *r, const struct call *c, struct value *out)
{
    return jinja_string_strip(r, &c->self, &c->arg[0], STRIP_LEFT | STRIP_RIGHT, out);
}

static enum status lstrip(struct run *r, const struct call *c, struct value *out)
{
    return jinja_string_strip(r, &c->self, &c->arg[0], STRIP_LEFT, out);
}

static enum status rstrip(struct run *r, const struct call *c, struct value *out)
{
    return jinja_string_strip(r, &c->self, &c->arg[0], STRIP_RIGHT, out);
}

static enum status split(struct run *r, const struct call *c, struct value *out)
{
    int64_t max = -1;
    enum status st = optional_int(r, &c->arg[1], -1, &max);
    return st == OK ? jinja_string_split(r, &c->self, &c->arg[0], max, false, out) : st;
}

static enum status rsplit(struct run *r, const struct call *c, struct value *out)
{
    int64_t max = -1;
    enum status st = optional_int(r, &c->arg[1], -1, &max);
    return st == OK ? jinja_string_split(r, &c->self, &c->arg[0], max, true, out) : st;
}

static enum status splitlines(struct run *r, const struct call *c, struct value *out)
{
    if (jinja_truth(&c->arg[0]))
        return jinja_fail(r, "splitlines: keepends is not supported");
    return jinja_string_lines(r, &c->self, out);
}

static enum status upper(struct run *r, const struct call *c, struct value *out)
{
    return jinja_string_case(r, &c->self, CASE_UPPER, out);
}

static enum status lower(struct run *r, const struct call *c, struct value *out)
{
    return jinja_string_case(r, &c->self, CASE_LOWER, out);
}

static enum status title(struct run *r, const struct call *c, struct value *out)
{
    return jinja_string_case(r, &c->self, CASE_TITLE, out);
}

static enum status capitalize(struct run *r, const struct call *c, struct value *out)
{
    return jinja_string_case(r, &c->self, CASE_CAPITAL, out);
}

static enum status replace(struct run *r, const struct call *c, struct value *out)
{
    int64_t count = -1;
    enum status st = optional_int(r, &c->arg[2], -1, &count);
    if (st != OK)
        return st;
    if (c->arg[0].kind != VALUE_STRING || c->arg[1].kind != VALUE_STRING)
        return jinja_fail(r, "replace: two strings are needed");
    return jinja_string_replace(r, &c->self, &c->arg[0], &c->arg[1], count, out);
}

static bool at_end(const struct value *s, const struct value *part, bool start)
{
    const size_t n = part->s.n;
    return n <= s->s.n &&
           (n == 0 || memcmp(s->s.bytes + (start ? 0 : s->s.n - n), part->s.bytes, n) == 0);
}

/* part: a string, or a tuple of them. */
static enum status begins_or_ends(struct run *r, const struct call *c, bool start,
                                  struct value *out)
{
    const struct value *part = &c->arg[0];
    const bool tuple = part->kind == VALUE_TUPLE;
    const size_t n = tuple ? part->list->n : 1;
    *out = jinja_bool(false);
    for (size_t i = 0; i < n && !out->b; i++) {
        const struct value *one = tuple ? &part->list->items[i] : part;
        if (one->kind != VALUE_STRING)
            return jinja_fail(r, "a string is needed, not a %s", jinja_type_name(one));
        out->b = at_end(&c->self, one, start);
    }
    return jinja_spend(r, c->self.s.n);
}

static enum status startswith(struct run *r, const struct call *c, struct value *out)
{
    return begins_or_ends(r, c, true, out);
}

static enum status endswith(struct run *r, const struct call *c, struct value *out)
{
    return begins_or_ends(r, c, false, out);
}

static enum status find(struct run *r, const struct call *c, struct value *out)
{
    if (c->arg[0].kind != VALUE_STRING)
        return jinja_fail(r, "a string is needed, not a %s", jinja_type_name(&c->arg[0]));
    const size_t at = jinja_string_find(&c->self, &c->arg[0], 0);
    *out = jinja_int(at == SIZE_MAX ? -1 : (int64_t)jinja_chars(c->self.s.bytes, at));
    return jinja_spend(r, c->self.s.n);
}

static enum status string_index(struct run *r, const struct call *c, struct value *out)
{
    enum status st = find(r, c, out);
    return st == OK && out->i < 0 ? jinja_fail(r, "index: not found") : st;
}

static enum status string_count(struct run *r, const struct call *c, struct value *out)
{
    const struct value *part = &c->arg[0];
    int64_t count = 0;
    if (part->kind != VALUE_STRING)
        return jinja_fail(r, "a string is needed, not a %s", jinja_type_name(part));
    if (part->s.n == 0)
        count = (int64_t)jinja_chars(c->self.s.bytes, c->self.s.n) + 1;
    for (size_t at = 0; part->s.n > 0; at += part->s.n, count++) {
        at = jinja_string_find(&c->self, part, at);
        if (at == SIZE_MAX)
            break;
    }
    *out = jinja_int(count);
    return jinja_spend(r, c->self.s.n);
}

static enum status join(struct run *r, const struct call *c, struct value *out)
{
    struct list *items = NULL;
    enum status st = jinja_items(r, &c->arg[0], &items);
    return st == OK ? jinja_string_join(r, &c->self, items, false, out) : st;
}

enum character { CHARACTER_DIGIT, CHARACTER_ALPHA, CHARACTER_ALNUM, CHARACTER_SPACE };

static bool is_character(const char *s, size_t width, enum character kind)
{
    const bool digit = *s >= '0' && *s <= '9';
    const bool alpha = (*s >= 'a' && *s <= 'z') || (*s >= 'A' && *s <= 'Z');
    if (kind == CHARACTER_SPACE)
        return jinja_space(s, width) > 0;
    return (digit && kind != CHARACTER_ALPHA) || (alpha && kind != CHARACTER_DIGIT);
}

static enum status all_characters(struct run *r, const struct call *c, enum character kind,
                                  struct value *out)
{
    const struct string *s = &c->self.s;
    bool all = s->n > 0;
    for (size_t i = 0, width; i < s->n && all; i += width) {
        width = jinja_char(s->bytes + i, s->n - i);
        if (kind != CHARACTER_SPACE && width > 1)
            return jinja_fail(r, "letters beyond ASCII are not supported here");
        all = is_character(s->bytes + i, width, kind);
    }
    *out = jinja_bool(all);
    return jinja_spend(r, s->n);
}

static enum status isdigit_(struct run *r, const struct call *c, struct value *out)
{
    return all_characters(r, c, CHARACTER_DIGIT, out);
}

static enum status isalpha_(struct run *r, const struct call *c, struct value *out)
{
    return all_characters(r, c, CHARACTER_ALPHA, out);
}

static enum status isalnum_(struct run *r, const struct call *c, struct value *out)
{
    return all_characters(r, c, CHARACTER_ALNUM, out);
}

static enum status isspace_(struct run *r, const struct call *c, struct value *out)
{
    return all_characters(r, c, CHARACTER_SPACE, out);
}

static const struct function string_methods[] = {
    {"capitalize", capitalize, 0, {NULL}},
    {"count", string_count, 1, {"/sub"}},
    {"endswith", endswith, 1, {"/suffix"}},
    {"find", find, 1, {"/sub"}},
    {"index", string_index, 1, {"/sub"}},
    {"isalnum", isalnum_, 0, {NULL}},
    {"isalpha", isalpha_, 0, {NULL}},
    {"isdigit", isdigit_, 0, {NULL}},
    {"isspace", isspace_, 0, {NULL}},
    {"join", join, 1, {"/iterable"}},
    {"lower", lower, 0, {NULL}},
    {"lstrip", lstrip, 0, {"/chars"}},
    {"replace", replace, 2, {"/old", "/new", "/count"}},
    {"rsplit", rsplit, 0, {"sep", "maxsplit"}},
    {"rstrip", rstrip, 0, {"/chars"}},
    {"split", split, 0, {"sep", "maxsplit"}},
    {"splitlines", splitlines, 0, {"keepends"}},
    {"startswith", startswith, 1, {"/prefix"}},
    {"strip", strip, 0, {"/chars"}},
    {"title", title, 0, {NULL}},
    {"upper", upper, 0, {NULL}},
    {.name = "casefold"},
    {.name = "center"},
    {.name = "encode"},
    {.name = "expandtabs"},
    {.name = "format"},
    {.name = "format_map"},
    {.name = "isascii"},
    {.name = "isdecimal"},
    {.name = "isidentifier"},
    {.name = "islower"},
    {.name = "isnumeric"},
    {.name = "isprintable"},
    {.name = "istitle"},
    {.name = "isupper"},
    {.name = "ljust"},
    {.name = "maketrans"},
    {.name = "partition"},
    {.name = "removeprefix"},
    {.name = "removesuffix"},
    {.name = "rfind"},
    {.name = "rindex"},
    {.name = "rjust"},
    {.name = "rpartition"},
    {.name = "swapcase"},
    {.name = "translate"},
    {.name = "zfill"},
};

/* ---- dicts ---- */

static enum status get(struct run *r, const struct call *c, struct value *out)
{
    struct value *found = NULL;
    enum status st = jinja_find(r, c->self.dict, &c->arg[0], &found);
    if (st != OK)
        return st;
    *out = c->arg[1].kind == VALUE_ABSENT ? VALUE_NOTHING : c->arg[1];
    if (found)
        *out = *found;
    return OK;
}

static enum status keys(struct run *r, const struct call *c, struct value *out)
{
    return jinja_view(r, &c->self, "dict_keys", out);
}

static enum status values(struct run *r, const struct call *c, struct value *out)
{
    return jinja_view(r, &c->self, "dict_values", out);
}

static enum status dict_items(struct run *r, const struct call *c, struct value *out)
{
    return jinja_view(r, &c->self, "dict_items", out);
}

static enum status dict_copy(struct run *r, const struct call *c, struct value *out)
{
    (void)r;
    *out = c->self; /* which nothing can change */
    return OK;
}

static const struct function dict_methods[] = {
    {"copy", dict_copy, 0, {NULL}},
    {"get", get, 1, {"/key", "/default"}},
    {"items", dict_items, 0, {NULL}},
    {"keys", keys, 0, {NULL}},
    {"values", values, 0, {NULL}},
    {.name = "clear"},
    {.name = "fromkeys"},
    {.name = "pop"},
    {.name = "popitem"},
    {.name = "setdefault"},
    {.name = "update"},
};

/* ---- lists ---- */

static enum status list_count(struct run *r, const struct call *c, struct value *out)
{
    int64_t count = 0;
    enum status st = OK;
    for (size_t i = 0; i < c->self.list->n && st == OK; i++) {
        bool same = false;
        st = jinja_equal(r, &c->self.list->items[i], &c->arg[0], &same);
        count += same;
    }
    *out = jinja_int(count);
    return st == OK ? jinja_spend(r, c->self.list->n * 8) : st;
}

static enum status list_index(struct run *r, const struct call *c, struct value *out)
{
    enum status st = jinja_spend(r, c->self.list->n * 8);
    for (size_t i = 0; i < c->self.list->n && st == OK; i++) {
        bool same = false;
        st = jinja_equal(r, &c->self.list->items[i], &c->arg[0], &same);
        *out = jinja_int((int64_t)i);
        if (same)
            return st;
    }
    return st == OK ? jinja_fail(r, "index: not found") : st;
}

static const struct function list_methods[] = {
    {"count", list_count, 1, {"/value"}},
    {"index", list_index, 1, {"/value"}},
    {.name = "append"},
    {.name = "clear"},
    {.name = "copy"},
    {.name = "extend"},
    {.name = "insert"},
    {.name = "pop"},
    {.name = "remove"},
    {.name = "reverse"},
    {.name = "sort"},
};
static const struct function tuple_methods[] = {
    {"count", list_count, 1, {"/value"}},
    {"index", list_index, 1, {"/value"}},
};

/* ---- loops ---- */

static enum status cycle(struct run *r, const struct call *c, struct value *out)
{
    if (c->given_n == 0)
        return jinja_fail(r, "cycle: there is nothing to go round");
    *out = c->given[(size_t)c->self.loop->index % c->given_n];
    return OK;
}

static const struct function loop_methods[] = {
    {"cycle", cycle, 0, {"*"}},
    {.name = "changed"},
};

const struct function *jinja_method(const struct value *self, const char *name, size_t n)
{
    static const struct {
        const struct function *rows;
        size_t count;
    } types[VALUE_KINDS] = {
        [VALUE_STRING] = {string_methods, ARRAY_LEN(string_methods)},
        [VALUE_DICT] = {dict_methods, ARRAY_LEN(dict_methods)},
        [VALUE_LIST] = {list_methods, ARRAY_LEN(list_methods)},
        [VALUE_TUPLE] = {tuple_methods, ARRAY_LEN(tuple_methods)},
        [VALUE_RANGE] = {tuple_methods, ARRAY_LEN(tuple_methods)},
        [VALUE_LOOP] = {loop_methods, ARRAY_LEN(loop_methods)},
    };
    return jinja_function_find(types[self->kind].rows, types[self->kind].count, name, n);
}
