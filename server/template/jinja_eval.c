/* DESIGN: one small function per kind of node, in a table. Whatever can go round in circles counts
 * the depth: evaluating here, statements in jinja_exec, what is built in in jinja_call_function
 * ("map" calls filters), and what walks through values. */
#include "server/template/jinja_run.h"

#include <string.h>

/* ---- what is not there ---- */

struct value jinja_undefined(const char *owner, const struct value *name)
{
    struct value v = {.kind = VALUE_UNDEFINED};
    v.missing.owner = owner;
    v.missing.name = name->kind == VALUE_STRING ? name->s.bytes : "this item";
    v.missing.n = name->kind == VALUE_STRING ? name->s.n : strlen(v.missing.name);
    return v;
}

enum status jinja_say_undefined(struct run *r, const struct value *v)
{
    const int n = (int)(v->missing.n < 80 ? v->missing.n : 80);
    if (v->missing.owner)
        return jinja_fail(r, "this %s has no \"%.*s\"", v->missing.owner, n, v->missing.name);
    return jinja_fail(r, "\"%.*s\" is undefined", n, v->missing.name);
}

/* ---- names ---- */

enum status jinja_push_scope(struct run *r, struct scope *outer)
{
    struct scope *s = NULL;
    enum status st = OK;
    TAKE(r, s, 1);
    s->outer = outer;
    r->scope = s;
out:
    return st;
}

/* *seen counts how many names were looked at. */
static struct binding *find_binding(const struct scope *s, const struct value *name, size_t *seen)
{
    for (struct binding *b = s->names; b; b = b->next, ++*seen)
        if (jinja_same_text(&b->name, name))
            return b;
    return NULL;
}

enum status jinja_bind(struct run *r, const struct value *name, const struct value *v)
{
    size_t seen = 0;
    struct binding *b = find_binding(r->scope, name, &seen);
    enum status st = OK;
    TRY(jinja_spend(r, seen * 8));
    if (!b) {
        TAKE(r, b, 1);
        b->name = *name;
        b->next = r->scope->names;
        r->scope->names = b;
    }
    b->value = *v;
out:
    return st;
}

static enum status eval_name(struct run *r, const struct node *n, struct value *out)
{
    struct value *found = NULL;
    size_t seen = 0;
    enum status st = OK;
    for (struct scope *s = r->scope; s; s = s->outer, seen++) {
        const struct binding *b = find_binding(s, &n->value, &seen);
        if (b) {
            *out = b->value;
            return jinja_spend(r, seen * 8);
        }
    }
    TRY(jinja_spend(r, seen * 8));
    TRY(jinja_find(r, &r->vars, &n->value, &found));
    if (!found)
        TRY(jinja_find(r, &r->own, &n->value, &found));
    const struct function *f = jinja_global(n->value.s.bytes, n->value.s.n);
    if (found)
        *out = *found;
    else if (f)
        *out = (struct value){.kind = VALUE_FUNCTION, .function = f};
    else
        *out = jinja_undefined(NULL, &n->value);
out:
    return st;
}

static enum status assign_items(struct run *r, const struct node *target, const struct value *v)
{
    struct list *items = NULL;
    const struct node *t = target->a;
    enum status st = OK;
    TRY(jinja_items(r, v, &items));
    for (; t && items->taken < items->n; t = t->next)
        TRY(jinja_assign(r, t, &items->items[items->taken++]));
    if (t || items->taken < items->n)
        return jinja_fail(r, "the number of names is not that of the values");
out:
    return st;
}

enum status jinja_assign(struct run *r, const struct node *target, const struct value *v)
{
    struct value space;
    enum status st = OK;
    if (target->kind == NODE_NAME)
        return jinja_bind(r, &target->value, v);
    if (target->kind == NODE_TUPLE)
        return assign_items(r, target, v);
    TRY(jinja_eval(r, target->a, &space));
    if (space.kind != VALUE_NAMESPACE)
        return jinja_fail(r, "only a namespace's members can be set");
    if (target->value.s.bytes[0] == '_')
        return jinja_fail(r, "a namespace has no members that begin with an underscore");
    st = jinja_put(r, space.dict, &target->value, v);
out:
    return st;
}

/* ---- literals ---- */

static enum status eval_const(struct run *r, const struct node *n, struct value *out)
{
    (void)r;
    *out = n->value;
    return OK;
}

static enum status eval_items(struct run *r, const struct node *n, struct value *out)
{
    struct value list;
    size_t count = 0;
    enum status st = OK;
    for (const struct node *i = n->a; i; i = i->next)
        count++;
    TRY(jinja_new_list(r, n->kind == NODE_LIST ? VALUE_LIST : VALUE_TUPLE, count, &list));
    count = 0;
    for (const struct node *i = n->a; i; i = i->next)
        TRY(jinja_eval(r, i, &list.list->items[count++]));
    *out = list;
out:
    return st;
}

static enum status eval_dict(struct run *r, const struct node *n, struct value *out)
{
    struct value key, value;
    struct dict *d = NULL;
    enum status st = OK;
    TAKE(r, d, 1);
    for (const struct node *i = n->a; i; i = i->next->next) {
        TRY(jinja_eval(r, i, &key));
        TRY(jinja_eval(r, i->next, &value));
        TRY(jinja_put(r, d, &key, &value));
    }
    *out = (struct value){.kind = VALUE_DICT, .dict = d};
out:
    return st;
}

/* ---- operators ---- */

static enum status eval_not(struct run *r, const struct node *n, struct value *out)
{
    struct value v;
    enum status st = jinja_eval(r, n->a, &v);
    if (st == OK)
        *out = jinja_bool(!jinja_truth(&v));
    return st;
}

static enum status eval_sign(struct run *r, const struct node *n, struct value *out)
{
    struct value v;
    const struct value zero = jinja_int(0);
    enum status st = OK;
    TRY(jinja_eval(r, n->a, &v));
    if (v.kind == VALUE_FLOAT) {
        *out = v;
        out->f = n->kind == NODE_NEGATE ? -v.f : v.f;
        return OK;
    }
    if (v.kind == VALUE_UNDEFINED)
        return jinja_say_undefined(r, &v);
    if (!jinja_is_whole(&v))
        return jinja_fail(r, "a %s has no sign", jinja_type_name(&v));
    st = jinja_operate(r, n->kind == NODE_NEGATE ? OP_SUB : OP_ADD, &zero, &v, out);
out:
    return st;
}

static enum status eval_either(struct run *r, const struct node *n, struct value *out)
{
    struct value left;
    enum status st = jinja_eval(r, n->a, &left);
    if (st != OK)
        return st;
    if (jinja_truth(&left) == (n->kind == NODE_AND))
        return jinja_eval(r, n->b, out);
    *out = left;
    return OK;
}

static enum status eval_binary(struct run *r, const struct node *n, struct value *out)
{
    struct value a, b;
    enum status st = OK;
    TRY(jinja_eval(r, n->a, &a));
    TRY(jinja_eval(r, n->b, &b));
    st = jinja_operate(r, (enum operation)n->flags, &a, &b, out);
out:
    return st;
}

static enum status eval_concat(struct run *r, const struct node *n, struct value *out)
{
    struct value a, b;
    enum status st = OK;
    TRY(jinja_eval(r, n->a, &a));
    TRY(jinja_eval(r, n->b, &b));
    const size_t mark = jinja_mark(r);
    TRY(jinja_print(r, &a));
    TRY(jinja_print(r, &b));
    st = jinja_cut(r, mark, out);
out:
    return st;
}

static enum status compare(struct run *r, enum comparison cmp, const struct value *a,
                           const struct value *b, bool *out)
{
    int order = 0;
    bool same = false;
    enum status st = OK;
    if (cmp == CMP_EQ || cmp == CMP_NE) {
        TRY(jinja_equal(r, a, b, &same));
        *out = same == (cmp == CMP_EQ);
    } else if (cmp == CMP_IN || cmp == CMP_NOT_IN) {
        TRY(jinja_contains(r, b, a, &same));
        *out = same == (cmp == CMP_IN);
    } else {
        TRY(jinja_order(r, a, b, &order));
        *out = (cmp == CMP_LT && order == -1) || (cmp == CMP_GT && order == 1) ||
               (cmp == CMP_LE && order <= 0) || (cmp == CMP_GE && (order == 0 || order == 1));
    }
out:
    return st;
}

static enum status eval_compare(struct run *r, const struct node *n, struct value *out)
{
    struct value left, right;
    bool good = true;
    enum status st = OK;
    TRY(jinja_eval(r, n->a, &left));
    for (const struct node *term = n->b; term && good; term = term->next) {
        TRY(jinja_eval(r, term->a, &right));
        TRY(compare(r, (enum comparison)term->flags, &left, &right, &good));
        left = right;
    }
    *out = jinja_bool(good);
out:
    return st;
}

static enum status eval_choice(struct run *r, const struct node *n, struct value *out)
{
    static const struct value nothing = {.kind = VALUE_STRING,
                                         .s = {.bytes = "an inline if without else", .n = 25}};
    struct value condition;
    enum status st = jinja_eval(r, n->a, &condition);
    if (st != OK)
        return st;
    if (jinja_truth(&condition))
        return jinja_eval(r, n->b, out);
    if (n->c)
        return jinja_eval(r, n->c, out);
    *out = jinja_undefined(NULL, &nothing);
    return OK;
}

/* ---- members and items ---- */

static enum status own_attribute(struct run *r, const struct value *object,
                                 const struct value *name, struct value *out)
{
    const struct function *f = jinja_method(object, name->s.bytes, name->s.n);
    struct method *m = NULL;
    enum status st = OK;
    if (object->kind == VALUE_LOOP)
        TRY(jinja_loop_attribute(r, object, name, out));
    if (!f)
        return OK;
    if (!f->body)
        return jinja_fail(r, "%s.%s is not supported", jinja_type_name(object), f->name);
    TAKE(r, m, 1);
    *m = (struct method){*object, f};
    *out = (struct value){.kind = VALUE_METHOD, .method = m};
out:
    return st;
}

/* Like own_attribute, *out stays as it is where there is no such member. */
static enum status own_item(struct run *r, const struct value *object, const struct value *name,
                            struct value *out)
{
    struct value *found = NULL;
    enum status st = OK;
    if (object->kind == VALUE_DICT || object->kind == VALUE_NAMESPACE)
        TRY(jinja_find(r, object->dict, name, &found));
    if (found)
        *out = *found;
out:
    return st;
}

/* object.name: what the type has, then what the dict holds. */
static enum status attribute(struct run *r, const struct value *object, const struct value *name,
                             struct value *out)
{
    struct value v = jinja_undefined(jinja_type_name(object), name);
    enum status st = OK;
    if (object->kind == VALUE_UNDEFINED)
        return jinja_say_undefined(r, object);
    TRY(own_attribute(r, object, name, &v));
    if (v.kind == VALUE_UNDEFINED)
        TRY(own_item(r, object, name, &v));
    *out = v;
out:
    return st;
}

static enum status nth(struct run *r, const struct value *object, int64_t i, struct value *out)
{
    const bool text = object->kind == VALUE_STRING;
    const char *s = object->s.bytes;
    enum status st = jinja_spend(r, text ? object->s.n : 0);
    if (st != OK)
        return st;
    const int64_t n = (int64_t)(text ? jinja_chars(s, object->s.n) : object->list->n);
    if (i < 0)
        i += n;
    if (i < 0 || i >= n)
        return OK;
    if (!text) {
        *out = object->list->items[i];
        return OK;
    }
    const size_t at = jinja_offset(s, object->s.n, (size_t)i);
    *out = jinja_slice(object, at, jinja_char(s + at, object->s.n - at));
    return OK;
}

/* object[index]: what it holds, then, by a name, what the type has. */
enum status jinja_item(struct run *r, const struct value *object, const struct value *index,
                       struct value *out)
{
    struct value v = jinja_undefined(jinja_type_name(object), index);
    const bool listed = jinja_is_list(object) && object->kind != VALUE_VIEW;
    enum status st = OK;
    if (object->kind == VALUE_UNDEFINED)
        return jinja_say_undefined(r, object);
    if ((listed || object->kind == VALUE_STRING) && jinja_is_whole(index))
        TRY(nth(r, object, jinja_as_int(index), &v));
    else if (index->kind != VALUE_LIST && index->kind != VALUE_DICT)
        TRY(own_item(r, object, index, &v));
    if (v.kind == VALUE_UNDEFINED && index->kind == VALUE_STRING)
        TRY(own_attribute(r, object, index, &v));
    *out = v;
out:
    return st;
}

static enum status eval_attribute(struct run *r, const struct node *n, struct value *out)
{
    struct value object;
    enum status st = jinja_eval(r, n->a, &object);
    return st == OK ? attribute(r, &object, &n->value, out) : st;
}

/* Start, stop and step as Python's slice.indices() makes them for a length. */
static enum status slice_bounds(struct run *r, const struct value part[3], int64_t n,
                                int64_t bounds[3])
{
    for (int i = 0; i < 3; i++)
        if (part[i].kind == VALUE_UNDEFINED)
            return jinja_say_undefined(r, &part[i]);
        else if (part[i].kind != VALUE_NONE && !jinja_is_whole(&part[i]))
            return jinja_fail(r, "a %s cannot bound a slice", jinja_type_name(&part[i]));
    const int64_t step = part[2].kind == VALUE_NONE ? 1 : jinja_as_int(&part[2]);
    if (step == 0)
        return jinja_fail(r, "a slice's step is zero");
    const int64_t low = step < 0 ? -1 : 0, high = step < 0 ? n - 1 : n;
    const int64_t whole[2] = {step < 0 ? high : low, step < 0 ? low : high};
    for (int i = 0; i < 2; i++) {
        bounds[i] = whole[i];
        if (part[i].kind == VALUE_NONE)
            continue;
        int64_t x = jinja_as_int(&part[i]);
        if (x < 0)
            x = x < -n ? low : x + n;
        bounds[i] = x < low ? low : x > high ? high : x;
    }
    /* longer steps than the length are all the same */
    bounds[2] = step > n + 1 ? n + 1 : step < -n - 1 ? -n - 1 : step;
    return OK;
}

/* Character by character only where the step is not 1. */
static enum status slice_string(struct run *r, const struct value *s, const int64_t b[3],
                                struct value *out)
{
    const size_t n = s->s.n, mark = jinja_mark(r);
    size_t *at = NULL, count = 0;
    enum status st = OK;
    if (b[2] == 1) {
        const size_t from = jinja_offset(s->s.bytes, n, (size_t)b[0]);
        const size_t chars = b[1] > b[0] ? (size_t)(b[1] - b[0]) : 0;
        *out = jinja_slice(s, from, jinja_offset(s->s.bytes + from, n - from, chars));
        return OK;
    }
    TAKE(r, at, n + 1);
    for (size_t i = 0; i < n; i += jinja_char(s->s.bytes + i, n - i))
        at[count++] = i;
    at[count] = n;
    for (int64_t i = b[0]; b[2] > 0 ? i < b[1] : i > b[1]; i += b[2]) {
        const struct value piece = jinja_slice(s, at[i], at[i + 1] - at[i]);
        TRY(jinja_add_string(r, &piece));
    }
    st = jinja_cut(r, mark, out);
out:
    return st;
}

enum status jinja_index_slice(struct run *r, const struct value *object, const struct value part[3],
                              struct value *out)
{
    const bool text = object->kind == VALUE_STRING;
    int64_t b[3] = {0, 0, 1};
    struct value list;
    enum status st = OK;
    if (object->kind == VALUE_UNDEFINED)
        return jinja_say_undefined(r, object);
    if (!text && (!jinja_is_list(object) || object->kind == VALUE_VIEW))
        return jinja_fail(r, "slicing a %s is not supported", jinja_type_name(object));
    TRY(jinja_spend(r, text ? object->s.n : 0));
    const size_t n = text ? jinja_chars(object->s.bytes, object->s.n) : object->list->n;
    TRY(slice_bounds(r, part, (int64_t)n, b));
    if (text)
        return slice_string(r, object, b, out);
    size_t count = 0;
    for (int64_t i = b[0]; b[2] > 0 ? i < b[1] : i > b[1]; i += b[2])
        count++;
    TRY(jinja_new_list(r, object->kind, count, &list));
    for (size_t i = 0; i < count; i++)
        list.list->items[i] = object->list->items[b[0] + (int64_t)i * b[2]];
    list.foreign = object->foreign;
    *out = list;
out:
    return st;
}

static enum status eval_item(struct run *r, const struct node *n, struct value *out)
{
    struct value object, index, part[3] = {VALUE_NOTHING, VALUE_NOTHING, VALUE_NOTHING};
    enum status st = OK;
    TRY(jinja_eval(r, n->a, &object));
    if (n->b->kind != NODE_SLICE) {
        TRY(jinja_eval(r, n->b, &index));
        return jinja_item(r, &object, &index, out);
    }
    const struct node *const parts[] = {n->b->a, n->b->b, n->b->c};
    for (int i = 0; i < 3; i++)
        if (parts[i])
            TRY(jinja_eval(r, parts[i], &part[i]));
    st = jinja_index_slice(r, &object, part, out);
out:
    return st;
}

/* ---- any node ---- */

enum status jinja_eval(struct run *r, const struct node *n, struct value *out)
{
    static enum status (*const evaluate[NODE_KINDS])(struct run *, const struct node *,
                                                     struct value *) = {
        [NODE_CONST] = eval_const,
        [NODE_NAME] = eval_name,
        [NODE_LIST] = eval_items,
        [NODE_TUPLE] = eval_items,
        [NODE_DICT] = eval_dict,
        [NODE_ATTR] = eval_attribute,
        [NODE_ITEM] = eval_item,
        [NODE_CALL] = jinja_call_node,
        [NODE_FILTER] = jinja_call_filter,
        [NODE_TEST] = jinja_call_filter,
        [NODE_NOT] = eval_not,
        [NODE_NEGATE] = eval_sign,
        [NODE_PLUS] = eval_sign,
        [NODE_AND] = eval_either,
        [NODE_OR] = eval_either,
        [NODE_BINARY] = eval_binary,
        [NODE_CONCAT] = eval_concat,
        [NODE_COMPARE] = eval_compare,
        [NODE_CHOICE] = eval_choice,
    };
    const uint32_t at = r->at;
    *out = (struct value){.kind = VALUE_ABSENT};
    enum status st = jinja_spend(r, 0);
    if (st != OK)
        return st;
    r->at = n->at;
    if (++r->depth > RUN_DEPTH_MAX)
        return jinja_over(r, "rendering goes too deep");
    st = evaluate[n->kind](r, n, out);
    if (st != OK)
        return st;
    r->at = at;
    r->depth--;
    return OK;
}
