/* DESIGN: statements write to the text as they go. A macro, a block that is set and a filtered
 * block write there too, and take back what they wrote. break and continue are a mark in the render
 * that every list of statements looks at. */
#include "server/template/jinja_run.h"

#include <string.h>

/* ---- loops ---- */

static enum status passes(struct run *r, const struct loop *l, const struct value *item, bool *out)
{
    struct scope *const inside = r->scope;
    struct value v;
    enum status st = OK;
    *out = true;
    if (!l->node->c)
        return OK;
    TRY(jinja_push_scope(r, l->scope));
    TRY(jinja_assign(r, l->node->a, item));
    TRY(jinja_eval(r, l->node->c, &v));
    *out = jinja_truth(&v);
    r->scope = inside;
out:
    return st;
}

/* The next item that passes the filter; ABSENT: there is none. Filtering waits until an item is
 * wanted, because the body can change what the filter sees. */
static enum status advance(struct run *r, struct loop *l, struct value *out)
{
    bool found = l->ahead_n > 0;
    enum status st = OK;
    *out = (struct value){.kind = VALUE_ABSENT};
    if (found) {
        *out = *l->ahead++;
        l->ahead_n--;
    }
    while (!found && l->from->taken < l->from->n) {
        const struct value item = l->from->items[l->from->taken++];
        TRY(jinja_spend(r, 0));
        TRY(passes(r, l, &item, &found));
        if (found)
            *out = item;
    }
out:
    return st;
}

/* Looks at the next item (ABSENT: there is none), which stays the next. */
static enum status peek(struct run *r, struct loop *l, struct value *out)
{
    enum status st = OK;
    if (l->ahead_n == 0) {
        TRY(advance(r, l, out));
        if (out->kind == VALUE_ABSENT)
            return OK;
        TAKE(r, l->ahead, 1);
        *l->ahead = *out;
        l->ahead_n = 1;
    }
    *out = *l->ahead;
out:
    return st;
}

/* How many rounds there are in all; whatever passes the filter is found out now. */
static enum status count_rounds(struct run *r, struct loop *l, int64_t *out)
{
    struct value *all = NULL;
    size_t n = 0;
    enum status st = OK;
    if (l->from->taken < l->from->n) {
        TAKE(r, all, l->ahead_n + l->from->n - l->from->taken + 1); /* and an ABSENT */
        for (;; n++) {
            TRY(advance(r, l, &all[n]));
            if (all[n].kind == VALUE_ABSENT)
                break;
        }
        l->ahead = all;
        l->ahead_n = n;
    }
    *out = l->index + 1 + (int64_t)l->ahead_n;
out:
    return st;
}

enum loop_member {
    LOOP_INDEX,
    LOOP_INDEX0,
    LOOP_FIRST,
    LOOP_LAST,
    LOOP_LENGTH,
    LOOP_REVINDEX,
    LOOP_REVINDEX0,
    LOOP_PREVITEM,
    LOOP_NEXTITEM,
    LOOP_DEPTH,
    LOOP_DEPTH0
};

static enum status loop_member(struct run *r, struct loop *l, enum loop_member m,
                               const struct value *name, struct value *out)
{
    struct value next = {.kind = VALUE_ABSENT};
    int64_t rounds = 0;
    enum status st = OK;
    if (m == LOOP_LAST || m == LOOP_NEXTITEM)
        TRY(peek(r, l, &next));
    else if (m == LOOP_LENGTH || m == LOOP_REVINDEX || m == LOOP_REVINDEX0)
        TRY(count_rounds(r, l, &rounds));
    switch (m) {
    case LOOP_INDEX:
    case LOOP_INDEX0:
        *out = jinja_int(l->index + (m == LOOP_INDEX));
        break;
    case LOOP_FIRST:
        *out = jinja_bool(l->index == 0);
        break;
    case LOOP_LAST:
        *out = jinja_bool(next.kind == VALUE_ABSENT);
        break;
    case LOOP_LENGTH:
        *out = jinja_int(rounds);
        break;
    case LOOP_REVINDEX:
    case LOOP_REVINDEX0:
        *out = jinja_int(rounds - l->index - (m == LOOP_REVINDEX0));
        break;
    case LOOP_PREVITEM:
    case LOOP_NEXTITEM:
        *out = m == LOOP_PREVITEM ? l->before : next;
        if (out->kind == VALUE_ABSENT)
            *out = jinja_undefined("loop", name);
        break;
    case LOOP_DEPTH:
    case LOOP_DEPTH0:
        *out = jinja_int(m == LOOP_DEPTH);
        break;
    }
out:
    return st;
}

enum status jinja_loop_attribute(struct run *r, const struct value *loop, const struct value *name,
                                 struct value *out)
{
    static const char *const names[] = {
        [LOOP_INDEX] = "index",         [LOOP_INDEX0] = "index0",     [LOOP_FIRST] = "first",
        [LOOP_LAST] = "last",           [LOOP_LENGTH] = "length",     [LOOP_REVINDEX] = "revindex",
        [LOOP_REVINDEX0] = "revindex0", [LOOP_PREVITEM] = "previtem", [LOOP_NEXTITEM] = "nextitem",
        [LOOP_DEPTH] = "depth",         [LOOP_DEPTH0] = "depth0"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (jinja_is(name, names[i]))
            return loop_member(r, loop->loop, (enum loop_member)i, name, out);
    return OK;
}

static enum status exec_round(struct run *r, struct loop *l, const struct value *item)
{
    static const struct value loop_name = {.kind = VALUE_STRING, .s = {.bytes = "loop", .n = 4}};
    const struct value self = {.kind = VALUE_LOOP, .loop = l};
    enum status st = OK;
    l->index++;
    l->before = l->now;
    l->now = *item;
    TRY(jinja_push_scope(r, l->scope));
    TRY(jinja_assign(r, l->node->a, item));
    TRY(jinja_bind(r, &loop_name, &self));
    TRY(jinja_exec(r, l->node->d));
out:
    return st;
}

static enum status exec_for(struct run *r, const struct node *n)
{
    struct scope *const outside = r->scope;
    struct value from, item;
    struct loop *l = NULL;
    bool finished_one = false;
    enum status st = OK;
    TRY(jinja_eval(r, n->b, &from));
    TAKE(r, l, 1);
    *l = (struct loop){.node = n, .scope = outside, .index = -1};
    TRY(jinja_items(r, &from, &l->from));
    for (;;) {
        TRY(advance(r, l, &item));
        if (item.kind == VALUE_ABSENT)
            break;
        TRY(exec_round(r, l, &item));
        const enum leaving leaving = r->leaving;
        r->leaving = LEAVING_NOTHING;
        /* as in Jinja2: a round that was left early does not keep "else" from being rendered */
        finished_one |= leaving == LEAVING_NOTHING;
        if (leaving == LEAVING_LOOP)
            break;
    }
    r->scope = outside;
    if (!finished_one && n->e) {
        TRY(jinja_push_scope(r, outside));
        TRY(jinja_exec(r, n->e));
        r->scope = outside;
    }
out:
    return st;
}

/* ---- other statements ---- */

static enum status exec_text(struct run *r, const struct node *n)
{
    return jinja_add_string(r, &n->value);
}

static enum status exec_print(struct run *r, const struct node *n)
{
    struct value v;
    enum status st = jinja_eval(r, n->a, &v);
    return st == OK ? jinja_print(r, &v) : st;
}

static enum status exec_if(struct run *r, const struct node *n)
{
    struct value v;
    enum status st = OK;
    for (;;) {
        TRY(jinja_eval(r, n->a, &v));
        if (jinja_truth(&v))
            return jinja_exec(r, n->d);
        if (!n->e || n->e->kind != NODE_IF || !n->e->flags)
            return jinja_exec(r, n->e);
        n = n->e;
    }
out:
    return st;
}

static enum status exec_set(struct run *r, const struct node *n)
{
    struct value v;
    enum status st = jinja_eval(r, n->b, &v);
    return st == OK ? jinja_assign(r, n->a, &v) : st;
}

static enum status exec_scope(struct run *r, const struct node *n)
{
    struct scope *const outside = r->scope;
    struct value v;
    enum status st = OK;
    TRY(jinja_push_scope(r, outside));
    struct scope *const inside = r->scope;
    for (const struct node *k = n->a; k; k = k->next) {
        r->scope = outside; /* the values do not see the names */
        TRY(jinja_eval(r, k->a, &v));
        r->scope = inside;
        TRY(jinja_bind(r, &k->value, &v));
    }
    TRY(jinja_exec(r, n->d));
    r->scope = outside;
out:
    return st;
}

/* What the block's body writes, through its filters. */
static enum status exec_captured(struct run *r, const struct node *n, struct value *out)
{
    const size_t mark = jinja_mark(r);
    enum status st = OK;
    TRY(exec_scope(r, &(struct node){.kind = NODE_SCOPE, .d = n->d}));
    TRY(jinja_cut(r, mark, out));
    if (n->b && r->leaving == LEAVING_NOTHING) {
        r->piped = *out;
        TRY(jinja_eval(r, n->b, out));
    }
out:
    return st;
}

static enum status exec_block(struct run *r, const struct node *n)
{
    struct value v;
    enum status st = exec_captured(r, n, &v);
    if (st != OK || r->leaving != LEAVING_NOTHING)
        return st;
    return n->kind == NODE_SET_BLOCK ? jinja_assign(r, n->a, &v) : jinja_print(r, &v);
}

static enum status exec_macro(struct run *r, const struct node *n)
{
    struct value v = {.kind = VALUE_MACRO};
    enum status st = OK;
    TAKE(r, v.macro, 1);
    *v.macro = (struct macro){n, r->scope};
    st = jinja_bind(r, &n->value, &v);
out:
    return st;
}

static enum status exec_leave(struct run *r, const struct node *n)
{
    r->leaving = n->kind == NODE_BREAK ? LEAVING_LOOP : LEAVING_ROUND;
    return OK;
}

enum status jinja_exec(struct run *r, const struct node *list)
{
    static enum status (*const execute[NODE_KINDS])(struct run *, const struct node *) = {
        [NODE_TEXT] = exec_text,
        [NODE_PRINT] = exec_print,
        [NODE_IF] = exec_if,
        [NODE_FOR] = exec_for,
        [NODE_SET] = exec_set,
        [NODE_SET_BLOCK] = exec_block,
        [NODE_FILTER_BLOCK] = exec_block,
        [NODE_SCOPE] = exec_scope,
        [NODE_MACRO] = exec_macro,
        [NODE_CALL_BLOCK] = jinja_call_block,
        [NODE_BREAK] = exec_leave,
        [NODE_CONTINUE] = exec_leave,
    };
    enum status st = OK;
    if (++r->depth > RUN_DEPTH_MAX)
        return jinja_over(r, "rendering goes too deep");
    for (const struct node *n = list; n && r->leaving == LEAVING_NOTHING; n = n->next) {
        r->at = n->at;
        TRY(jinja_spend(r, 0));
        TRY(execute[n->kind](r, n));
    }
    r->depth--;
out:
    return st;
}
