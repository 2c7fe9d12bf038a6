/* DESIGN: whatever is called, its arguments are first evaluated into a `struct call`; then a
 * table's row says what they are called, or a macro's parameters do. */
#include "server/template/jinja_run.h"

#include <string.h>

/* ---- arguments ---- */

static enum status eval_arguments(struct run *r, const struct node *list, struct call *c)
{
    struct value *given = NULL;
    struct pair *named = NULL;
    size_t count = 0;
    enum status st = OK;
    for (const struct node *a = list; a; a = a->next)
        count++;
    TAKE(r, given, count);
    TAKE(r, named, count);
    for (const struct node *a = list; a; a = a->next) {
        if (a->kind != NODE_KEYWORD) {
            TRY(jinja_eval(r, a, &given[c->given_n++]));
            continue;
        }
        named[c->named_n].key = a->value;
        TRY(jinja_eval(r, a->a, &named[c->named_n++].value));
    }
    c->given = given;
    c->named = named;
out:
    return st;
}

static int param_index(const struct function *f, const struct value *name)
{
    for (int i = 0; i < FUNCTION_PARAMS_MAX && f->params[i]; i++)
        if (jinja_is(name, f->params[i]))
            return i;
    return -1;
}

/* The arguments by their places. */
static enum status place_arguments(struct run *r, const struct function *f, struct call *c)
{
    size_t params = 0;
    while (params < FUNCTION_PARAMS_MAX && f->params[params])
        params++;
    memset(c->arg, 0, sizeof c->arg);
    CHECK(c->given || c->given_n == 0);
    if (c->given_n > params)
        return jinja_fail(r, "%s takes at most %zu arguments", f->name, params);
    for (size_t i = 0; i < c->given_n; i++)
        c->arg[i] = c->given[i];
    for (size_t i = 0; i < c->named_n; i++) {
        const struct value *name = &c->named[i].key;
        const int at = param_index(f, name);
        if (at < 0 || c->arg[at].kind != VALUE_ABSENT)
            return jinja_fail(r, "%s takes no argument \"%.*s\" here", f->name,
                              (int)(name->s.n < 40 ? name->s.n : 40), name->s.bytes);
        c->arg[at] = c->named[i].value;
    }
    for (int i = 0; i < f->needed; i++)
        if (c->arg[i].kind == VALUE_ABSENT)
            return jinja_fail(r, "%s needs the argument \"%s\"", f->name,
                              f->params[i] + (f->params[i][0] == '/'));
    return OK;
}

enum status jinja_call_function(struct run *r, const struct function *f, struct call *c,
                                struct value *out)
{
    const bool any = f->params[0] && strcmp(f->params[0], "*") == 0;
    enum status st = any ? OK : place_arguments(r, f, c);
    if (st != OK)
        return st;
    if (++r->depth > RUN_DEPTH_MAX)
        return jinja_over(r, "rendering goes too deep");
    st = f->body(r, c, out);
    r->depth--;
    return st;
}

/* ---- macros ---- */

static const struct value *find_named(const struct call *c, const struct value *name)
{
    for (size_t i = 0; i < c->named_n; i++)
        if (jinja_same_text(&c->named[i].key, name))
            return &c->named[i].value;
    return NULL;
}

static bool is_param(const struct node *macro, const struct value *name)
{
    for (const struct node *k = macro->a; k; k = k->next)
        if (jinja_same_text(&k->value, name))
            return true;
    return false;
}

/* What is given first: a default can use any other parameter. */
static enum status bind_params(struct run *r, const struct node *macro, const struct call *c)
{
    size_t i = 0;
    enum status st = OK;
    for (const struct node *k = macro->a; k; k = k->next, i++) {
        const struct value *v = find_named(c, &k->value),
                           nothing = jinja_undefined(NULL, &k->value);
        if (v && i < c->given_n)
            return jinja_fail(r, "an argument is given twice");
        TRY(jinja_bind(r, &k->value, i < c->given_n ? &c->given[i] : v ? v : &nothing));
    }
    i = 0;
    for (const struct node *k = macro->a; k; k = k->next, i++) {
        struct value v;
        if (!k->a || i < c->given_n || find_named(c, &k->value))
            continue;
        TRY(jinja_eval(r, k->a, &v));
        TRY(jinja_bind(r, &k->value, &v));
    }
out:
    return st;
}

/* Arguments beyond the parameters: allowed where the body mentions varargs or kwargs. */
static enum status bind_extra_given(struct run *r, const struct node *macro, const struct call *c)
{
    const struct value name = jinja_literal("varargs");
    struct value list;
    size_t params = 0;
    enum status st = OK;
    for (const struct node *k = macro->a; k; k = k->next)
        params++;
    const size_t extra = c->given_n > params ? c->given_n - params : 0;
    if (!(macro->flags & MACRO_VARARGS))
        return extra == 0 ? OK : jinja_fail(r, "this macro takes at most %zu arguments", params);
    TRY(jinja_new_list(r, VALUE_TUPLE, extra, &list));
    for (size_t i = 0; i < extra; i++)
        list.list->items[i] = c->given[params + i];
    st = jinja_bind(r, &name, &list);
out:
    return st;
}

static enum status bind_extra_named(struct run *r, const struct node *macro, const struct call *c)
{
    const struct value name = jinja_literal("kwargs");
    struct value rest = {.kind = VALUE_DICT};
    enum status st = OK;
    TAKE(r, rest.dict, 1);
    for (size_t i = 0; i < c->named_n; i++) {
        const struct value *key = &c->named[i].key;
        if (is_param(macro, key) || ((macro->flags & MACRO_CALLER) && jinja_is(key, "caller")))
            continue;
        if (!(macro->flags & MACRO_KWARGS))
            return jinja_fail(r, "this macro takes no argument \"%.*s\"",
                              (int)(key->s.n < 40 ? key->s.n : 40), key->s.bytes);
        TRY(jinja_put(r, rest.dict, key, &c->named[i].value));
    }
    if (macro->flags & MACRO_KWARGS)
        TRY(jinja_bind(r, &name, &rest));
out:
    return st;
}

static enum status call_macro(struct run *r, const struct macro *m, const struct call *c,
                              struct value *out)
{
    const struct value caller = jinja_literal("caller"), none = jinja_undefined(NULL, &caller);
    struct scope *const outside = r->scope;
    enum status st = OK;
    TRY(jinja_push_scope(r, m->scope));
    if ((m->node->flags & MACRO_CALLER) && !is_param(m->node, &caller)) {
        const struct value *given = find_named(c, &caller);
        TRY(jinja_bind(r, &caller, given ? given : &none));
    }
    TRY(bind_params(r, m->node, c));
    TRY(bind_extra_given(r, m->node, c));
    TRY(bind_extra_named(r, m->node, c));
    const size_t mark = jinja_mark(r);
    TRY(jinja_exec(r, m->node->d));
    TRY(jinja_cut(r, mark, out));
    r->scope = outside;
out:
    return st;
}

/* ---- calls ---- */

static enum status call_value(struct run *r, const struct value *callee, struct call *c,
                              struct value *out)
{
    if (callee->kind == VALUE_FUNCTION)
        return jinja_call_function(r, callee->function, c, out);
    if (callee->kind == VALUE_MACRO)
        return call_macro(r, callee->macro, c, out);
    if (callee->kind == VALUE_UNDEFINED)
        return jinja_say_undefined(r, callee);
    if (callee->kind != VALUE_METHOD)
        return jinja_fail(r, "a %s cannot be called", jinja_type_name(callee));
    c->self = callee->method->self;
    return jinja_call_function(r, callee->method->function, c, out);
}

/* caller: what a call block passes on, or NULL. */
static enum status call_with(struct run *r, const struct node *n, const struct value *caller,
                             struct value *out)
{
    struct value callee;
    struct call c = {.given_n = 0};
    enum status st = OK;
    TRY(jinja_eval(r, n->a, &callee));
    TRY(eval_arguments(r, n->b, &c));
    if (caller) {
        const struct pair more = {jinja_literal("caller"), *caller};
        struct pair *named = NULL;
        TAKE(r, named, c.named_n + 1);
        memcpy(named, c.named, c.named_n * sizeof *named);
        named[c.named_n++] = more;
        c.named = named;
    }
    st = call_value(r, &callee, &c, out);
out:
    return st;
}

enum status jinja_call_node(struct run *r, const struct node *n, struct value *out)
{
    return call_with(r, n, NULL, out);
}

enum status jinja_call_block(struct run *r, const struct node *n)
{
    struct value caller = {.kind = VALUE_MACRO}, text;
    enum status st = OK;
    TAKE(r, caller.macro, 1);
    *caller.macro = (struct macro){n->a, r->scope};
    TRY(call_with(r, n->b, &caller, &text));
    st = jinja_print(r, &text);
out:
    return st;
}

enum status jinja_call_filter(struct run *r, const struct node *n, struct value *out)
{
    struct call c = {.self = r->piped};
    enum status st = OK;
    if (n->a)
        TRY(jinja_eval(r, n->a, &c.self));
    TRY(eval_arguments(r, n->b, &c));
    st = jinja_call_function(r, n->function, &c, out);
out:
    return st;
}
