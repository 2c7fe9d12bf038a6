/* DESIGN: the functions that templates of transformers have, and no others. */
#include "server/template/jinja_run.h"

#include <string.h>
#include <time.h>

#define RANGE_ITEMS_MAX 100000 /* Jinja2's sandbox has the same */
#define DATE_BYTES_MAX 512

const struct function *jinja_function_find(const struct function *rows, size_t count,
                                           const char *name, size_t n)
{
    for (size_t i = 0; i < count; i++)
        if (strlen(rows[i].name) == n && memcmp(rows[i].name, name, n) == 0)
            return &rows[i];
    return NULL;
}

static enum status range_length(struct run *r, int64_t start, int64_t stop, int64_t step,
                                size_t *out)
{
    const uint64_t stride = step < 0 ? 0 - (uint64_t)step : (uint64_t)step;
    const bool any = step > 0 ? start < stop : start > stop;
    const uint64_t distance =
        step > 0 ? (uint64_t)stop - (uint64_t)start : (uint64_t)start - (uint64_t)stop;
    const uint64_t n = any ? (distance - 1) / stride + 1 : 0;
    if (n > RANGE_ITEMS_MAX)
        return jinja_fail(r, "range: more than %d items", RANGE_ITEMS_MAX);
    *out = (size_t)n;
    return OK;
}

static enum status range(struct run *r, const struct call *c, struct value *out)
{
    int64_t bounds[3] = {0, 0, 1};
    size_t n = 0;
    enum status st = OK;
    for (size_t i = 0; i < 3 && c->arg[i].kind != VALUE_ABSENT; i++) {
        if (!jinja_is_whole(&c->arg[i]))
            return jinja_fail(r, "range: whole numbers are needed");
        bounds[i] = jinja_as_int(&c->arg[i]);
    }
    if (c->arg[1].kind == VALUE_ABSENT) {
        bounds[1] = bounds[0];
        bounds[0] = 0;
    }
    if (bounds[2] == 0)
        return jinja_fail(r, "range: the step is zero");
    TRY(range_length(r, bounds[0], bounds[1], bounds[2], &n));
    TRY(jinja_new_list(r, VALUE_RANGE, n, out));
    for (size_t i = 0; i < n; i++)
        out->list->items[i] = jinja_int((int64_t)((uint64_t)bounds[0] + i * (uint64_t)bounds[2]));
out:
    return st;
}

/* Pairs out of the first argument, then what has a name. */
static enum status fill(struct run *r, const struct call *c, struct dict *d)
{
    struct list *items = NULL;
    enum status st = OK;
    if (c->given_n > 1)
        return jinja_fail(r, "at most one argument without a name is expected");
    if (c->given_n == 1 && c->given[0].kind == VALUE_DICT)
        for (size_t i = 0; i < c->given[0].dict->n; i++)
            TRY(jinja_put(r, d, &c->given[0].dict->pairs[i].key,
                          &c->given[0].dict->pairs[i].value));
    else if (c->given_n == 1)
        TRY(jinja_items(r, &c->given[0], &items));
    while (items && items->taken < items->n) {
        struct list *two = NULL;
        TRY(jinja_items(r, &items->items[items->taken++], &two));
        if (two->n - two->taken != 2)
            return jinja_fail(r, "a key and a value are needed");
        TRY(jinja_put(r, d, &two->items[two->taken], &two->items[two->taken + 1]));
    }
    for (size_t i = 0; i < c->named_n; i++)
        TRY(jinja_put(r, d, &c->named[i].key, &c->named[i].value));
out:
    return st;
}

static enum status make_dict(struct run *r, const struct call *c, struct value *out)
{
    struct value v = {.kind = VALUE_DICT};
    enum status st = OK;
    TAKE(r, v.dict, 1);
    TRY(fill(r, c, v.dict));
    *out = v;
out:
    return st;
}

static enum status make_namespace(struct run *r, const struct call *c, struct value *out)
{
    struct value v;
    enum status st = make_dict(r, c, &v);
    if (st != OK)
        return st;
    for (size_t i = 0; i < v.dict->n; i++) {
        const struct value *key = &v.dict->pairs[i].key;
        if (key->kind == VALUE_STRING && key->s.n > 0 && key->s.bytes[0] == '_')
            return jinja_fail(r, "a namespace has no members that begin with an underscore");
    }
    v.kind = VALUE_NAMESPACE;
    *out = v;
    return OK;
}

/* The message is the template's own, for the client to read: nothing is put before it. */
static enum status raise_exception(struct run *r, const struct call *c, struct value *out)
{
    struct value text;
    enum status st = jinja_to_string(r, &c->arg[0], &text);
    if (st != OK)
        return st;
    size_t n = 0;
    for (size_t width; n < text.s.n; n += width) {
        width = jinja_char(text.s.bytes + n, text.s.n - n);
        if (n + width >= sizeof r->err->text)
            break;
    }
    (void)out;
    return base_fail(r->err, ERR_INPUT, "%.*s", (int)n, text.s.bytes);
}

/* By a pointer, because compilers ask for a format that they can read. */
static size_t (*const format_time)(char *, size_t, const char *, const struct tm *) = strftime;

static enum status strftime_now(struct run *r, const struct call *c, struct value *out)
{
    char format[DATE_BYTES_MAX], text[DATE_BYTES_MAX];
    const struct value *f = &c->arg[0];
    const time_t now = time(NULL);
    struct tm local;
    const size_t mark = jinja_mark(r);
    if (f->kind != VALUE_STRING || f->s.n + 1 >= sizeof format ||
        memchr(f->s.bytes, '\0', f->s.n) || !localtime_r(&now, &local))
        return jinja_fail(r, "strftime_now: a short format is needed");
    memcpy(format, f->s.bytes, f->s.n);
    format[f->s.n] = '.'; /* for a date that may be empty: 0 bytes mean that it does not fit */
    format[f->s.n + 1] = '\0';
    const size_t n = format_time(text, sizeof text, format, &local);
    if (n == 0)
        return jinja_fail(r, "strftime_now: the date becomes too long");
    enum status st = jinja_add(r, text, n - 1, f->foreign || f->s.marks);
    return st == OK ? jinja_cut(r, mark, out) : st;
}

const struct function *jinja_global(const char *name, size_t n)
{
    static const struct function rows[] = {
        {"dict", make_dict, 0, {"*"}},
        {"namespace", make_namespace, 0, {"*"}},
        {"raise_exception", raise_exception, 1, {"message"}},
        {"range", range, 1, {"/start", "/stop", "/step"}},
        {"strftime_now", strftime_now, 1, {"format"}},
    };
    return jinja_function_find(rows, ARRAY_LEN(rows), name, n);
}
