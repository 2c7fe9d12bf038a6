/* DESIGN: a render writes into one pair of buffers. Strings that it makes on the way grow at the
 * end of the same pair and are then cut off into the arena, so that there is one way to make text
 * and nothing to free. Steps bound the time, and through the bytes they pay for also the memory. */
#include "server/template/jinja_run.h"

#include "config/jdoc.h"

#include <string.h>

/* ---- limits and failures ---- */

enum status jinja_fail(struct run *r, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    enum status st = jinja_refuse_v(r->t, r->at, r->err, ERR_INPUT, fmt, ap);
    va_end(ap);
    return st;
}

enum status jinja_lack(struct run *r, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    enum status st = jinja_refuse_v(r->t, r->at, r->err, ERR_MODEL, fmt, ap);
    va_end(ap);
    return st;
}

enum status jinja_over(struct run *r, const char *what)
{
    return base_fail(r->err, ERR_LIMIT, "%.80s: %s", r->t->where, what);
}

static enum status pay(struct run *r, size_t bytes)
{
    if (bytes > RUN_BYTES_MAX - r->bytes)
        return jinja_over(r, "rendering takes too many steps");
    r->bytes += bytes;
    return OK;
}

enum status jinja_spend(struct run *r, size_t bytes)
{
    return bytes > RUN_BYTES_MAX ? jinja_over(r, "rendering takes too many steps")
                                 : pay(r, RUN_STEP_BYTES + bytes);
}

static enum status no_memory(struct run *r)
{
    return base_fail(r->err, ERR_NOMEM, "%.80s: no memory to render", r->t->where);
}

void *jinja_take(struct run *r, size_t count, size_t size)
{
    return jinja_arena_array(&r->arena, count ? count : 1, size);
}

enum status jinja_no_room(struct run *r)
{
    return r->arena.full ? jinja_over(r, "rendering takes too much memory") : no_memory(r);
}

/* ---- text ---- */

size_t jinja_mark(const struct run *r)
{
    return r->text->bytes.len;
}

/* n marks of their own, or all of them `foreign` where marks is NULL. */
static enum status add_marked(struct run *r, const char *bytes, const char *marks, size_t n,
                              bool foreign)
{
    char same[256];
    struct buf *out = &r->text->bytes, *out_marks = &r->text->foreign;
    if (n > out->max - out->len)
        return jinja_over(r, "the text becomes too long");
    enum status st = pay(r, n + RUN_PIECE_BYTES);
    if (st != OK)
        return st;
    buf_add(out, bytes, n);
    if (marks)
        buf_add(out_marks, marks, n);
    else
        memset(same, foreign, n < sizeof same ? n : sizeof same);
    for (size_t left = marks ? 0 : n, piece; left > 0; left -= piece) {
        piece = left < sizeof same ? left : sizeof same;
        buf_add(out_marks, same, piece);
    }
    return out->failed || out_marks->failed ? no_memory(r) : OK;
}

enum status jinja_add(struct run *r, const char *bytes, size_t n, bool foreign)
{
    return add_marked(r, bytes, NULL, n, foreign);
}

enum status jinja_puts(struct run *r, const char *text, bool foreign)
{
    return add_marked(r, text, NULL, strlen(text), foreign);
}

enum status jinja_add_string(struct run *r, const struct value *s)
{
    return add_marked(r, s->s.bytes, s->s.marks, s->s.n, s->foreign);
}

enum status jinja_cut(struct run *r, size_t mark, struct value *out)
{
    const size_t n = jinja_mark(r) - mark;
    char *bytes = NULL, *marks = NULL;
    enum status st = OK;
    *out = (struct value){.kind = VALUE_STRING, .s = {.bytes = ""}};
    if (n == 0)
        return OK;
    TRY(jinja_spend(r, n));
    TAKE(r, bytes, n);
    memcpy(bytes, r->text->bytes.data + mark, n);
    const char *from = r->text->foreign.data + mark;
    out->s = (struct string){.bytes = bytes, .n = n};
    out->foreign = from[0];
    if (memchr(from, !from[0], n)) {
        TAKE(r, marks, n);
        memcpy(marks, from, n);
        out->s.marks = marks;
    }
    r->text->bytes.len = r->text->foreign.len = mark;
out:
    return st;
}

bool jinja_mark_of(const struct value *s, size_t i)
{
    return s->s.marks ? s->s.marks[i] : s->foreign;
}

/* ---- containers ---- */

enum status jinja_new_list(struct run *r, enum value_kind kind, size_t n, struct value *out)
{
    struct list *list = NULL;
    enum status st = OK;
    TRY(jinja_spend(r, n * 8));
    TAKE(r, list, 1);
    TAKE(r, list->items, n);
    list->n = n;
    *out = (struct value){.kind = kind, .list = list};
out:
    return st;
}

enum status jinja_find(struct run *r, const struct dict *d, const struct value *key,
                       struct value **out)
{
    enum status st = OK;
    *out = NULL;
    TRY(jinja_spend(r, d->n * 2));
    if (key->kind == VALUE_LIST || key->kind == VALUE_DICT)
        return jinja_fail(r, "a %s cannot be a key of a dict", jinja_type_name(key));
    for (size_t i = 0; i < d->n && !*out; i++) {
        const struct value *other = &d->pairs[i].key;
        bool same = false;
        if (key->kind != VALUE_STRING || other->kind != VALUE_STRING) {
            TRY(jinja_equal(r, key, other, &same));
        } else if (key->s.n == other->s.n) {
            TRY(pay(r, key->s.n / 8));
            same = jinja_same_text(key, other);
        }
        if (same)
            *out = &d->pairs[i].value;
    }
out:
    return st;
}

enum status jinja_put(struct run *r, struct dict *d, const struct value *key,
                      const struct value *value)
{
    struct value *old = NULL;
    enum status st = OK;
    TRY(jinja_find(r, d, key, &old));
    if (old) {
        *old = *value;
        return OK;
    }
    if (d->n == d->cap) {
        struct pair *more = NULL;
        const size_t cap = d->cap ? 2 * d->cap : 4;
        TAKE(r, more, cap);
        if (d->n > 0)
            memcpy(more, d->pairs, d->n * sizeof *more);
        d->pairs = more;
        d->cap = cap;
    }
    d->pairs[d->n++] = (struct pair){*key, *value};
out:
    return st;
}

static enum status pair_tuple(struct run *r, const struct pair *p, bool foreign, struct value *out)
{
    enum status st = jinja_new_list(r, VALUE_TUPLE, 2, out);
    if (st != OK)
        return st;
    out->foreign = foreign;
    out->list->items[0] = p->key;
    out->list->items[1] = p->value;
    return OK;
}

enum status jinja_view(struct run *r, const struct value *dict, const char *name, struct value *out)
{
    const struct dict *d = dict->dict;
    struct value view;
    enum status st = OK;
    TRY(jinja_new_list(r, VALUE_VIEW, d->n, &view));
    view.list->name = name;
    view.foreign = dict->foreign;
    for (size_t i = 0; i < d->n; i++) {
        if (strcmp(name, "dict_items") == 0)
            TRY(pair_tuple(r, &d->pairs[i], dict->foreign, &view.list->items[i]));
        else
            view.list->items[i] =
                strcmp(name, "dict_keys") == 0 ? d->pairs[i].key : d->pairs[i].value;
    }
    *out = view;
out:
    return st;
}

static enum status characters(struct run *r, const struct value *s, struct list **out)
{
    struct value list;
    size_t at = 0;
    enum status st = OK;
    TRY(jinja_spend(r, s->s.n));
    TRY(jinja_new_list(r, VALUE_LIST, jinja_chars(s->s.bytes, s->s.n), &list));
    for (size_t i = 0; i < list.list->n; i++) {
        const size_t width = jinja_char(s->s.bytes + at, s->s.n - at);
        list.list->items[i] = jinja_slice(s, at, width);
        at += width;
    }
    *out = list.list;
out:
    return st;
}

enum status jinja_items(struct run *r, const struct value *v, struct list **out)
{
    struct value view = *v;
    enum status st = OK;
    if (v->kind == VALUE_ITERATOR) {
        *out = v->list;
        return OK;
    }
    if (v->kind == VALUE_STRING)
        return characters(r, v, out);
    if (v->kind == VALUE_DICT)
        TRY(jinja_view(r, v, "dict_keys", &view));
    else if (v->kind == VALUE_UNDEFINED)
        TRY(jinja_new_list(r, VALUE_LIST, 0, &view));
    else if (!jinja_is_list(v))
        return jinja_fail(r, "a %s has no items", jinja_type_name(v));
    TAKE(r, *out, 1);
    **out = *view.list;
out:
    return st;
}

/* ---- from JSON ---- */

static enum status from_array(struct run *r, const struct jdoc *v, bool foreign, int32_t depth,
                              struct value *out)
{
    enum status st = OK;
    TRY(jinja_new_list(r, VALUE_LIST, jdoc_size(v), out));
    for (size_t i = 0; i < out->list->n; i++)
        TRY(jinja_from_json(r, jdoc_at(v, i), foreign, depth + 1, &out->list->items[i]));
out:
    return st;
}

/* The keys of JSON differ, so none is looked for. */
static enum status from_object(struct run *r, const struct jdoc *v, bool foreign, int32_t depth,
                               struct value *out)
{
    const char *key;
    const struct jdoc *member;
    enum status st = OK;
    struct dict *d = NULL;
    TAKE(r, d, 1);
    d->cap = jdoc_size(v);
    TAKE(r, d->pairs, d->cap);
    for (void *i = jdoc_iter(v, NULL, &key, &member); i; i = jdoc_iter(v, i, &key, &member)) {
        struct pair *p = &d->pairs[d->n++];
        p->key = jinja_literal(key);
        p->key.foreign = foreign;
        TRY(jinja_from_json(r, member, foreign, depth + 1, &p->value));
    }
    *out = (struct value){.kind = VALUE_DICT, .dict = d};
out:
    return st;
}

enum status jinja_from_json(struct run *r, const struct jdoc *v, bool foreign, int32_t depth,
                            struct value *out)
{
    enum status st = jinja_spend(r, 0);
    if (st == OK && depth > RUN_DATA_DEPTH_MAX)
        st = jinja_over(r, "the variables are nested too deep");
    if (st != OK)
        return st;
    switch (jdoc_type(v)) {
    case JDOC_NULL:
        *out = VALUE_NOTHING;
        break;
    case JDOC_BOOL:
        *out = jinja_bool(jdoc_bool(v));
        break;
    case JDOC_INT:
        *out = jinja_int(jdoc_int(v));
        break;
    case JDOC_REAL:
        *out = jinja_float(jdoc_number(v));
        break;
    case JDOC_STRING:
        *out = (struct value){.kind = VALUE_STRING,
                              .s = {.bytes = jdoc_string(v), .n = jdoc_string_len(v)}};
        break;
    case JDOC_ARRAY:
        st = from_array(r, v, foreign, depth, out);
        break;
    case JDOC_OBJECT:
        st = from_object(r, v, foreign, depth, out);
        break;
    }
    out->foreign = foreign;
    return st;
}
