/* DESIGN: one function per level of precedence, weakest first, as Jinja2's grammar has them: note
 * that "~" binds stronger than "+", and filters stronger than unary minus. */
#include "server/template/jinja_parse.h"

#include "server/template/jinja_function.h"

#include <string.h>

static struct node *unary(struct parser *p, bool with_filters);

static struct node *pair_of(struct parser *p, enum node_kind kind, struct node *a, struct node *b)
{
    struct node *n = a && b ? jinja_node(p, kind) : NULL;
    if (n) {
        n->at = a->at;
        n->a = a;
        n->b = b;
    }
    return n;
}

/* ---- operators ---- */

static struct node *power(struct parser *p)
{
    struct node *left = unary(p, true);
    while (left && jinja_skip(p, "**")) {
        left = pair_of(p, NODE_BINARY, left, unary(p, true));
        if (left)
            left->flags = OP_POW;
    }
    return left;
}

/* The operator of these that is here, or -1; goes past it. */
static int skip_operation(struct parser *p, const char *const *names, const int *operations)
{
    for (size_t i = 0; names[i]; i++)
        if (jinja_skip(p, names[i]))
            return operations[i];
    return -1;
}

/* A text in front of "%" is a format, which there are no renderings of. */
static bool is_format(const struct parser *p, const struct node *left)
{
    return left->kind == NODE_CONST && left->value.kind == VALUE_STRING && jinja_at(p, "%");
}

static struct node *product(struct parser *p)
{
    static const char *const names[] = {"*", "/", "//", "%", NULL};
    static const int operations[] = {OP_MUL, OP_DIV, OP_FLOORDIV, OP_MOD};
    struct node *left = power(p);
    if (left && is_format(p, left))
        return jinja_wrong(p, JINJA_NO_FORMATS);
    for (int op; left && (op = skip_operation(p, names, operations)) >= 0;) {
        left = pair_of(p, NODE_BINARY, left, power(p));
        if (left)
            left->flags = op;
    }
    return left;
}

static struct node *concatenation(struct parser *p)
{
    struct node *left = product(p);
    while (left && jinja_skip(p, "~"))
        left = pair_of(p, NODE_CONCAT, left, product(p));
    return left;
}

static struct node *sum(struct parser *p)
{
    static const char *const names[] = {"+", "-", NULL};
    static const int operations[] = {OP_ADD, OP_SUB};
    struct node *left = concatenation(p);
    for (int op; left && (op = skip_operation(p, names, operations)) >= 0;) {
        left = pair_of(p, NODE_BINARY, left, concatenation(p));
        if (left)
            left->flags = op;
    }
    return left;
}

static int skip_comparison(struct parser *p)
{
    static const char *const names[] = {"==", "!=", "<", "<=", ">", ">=", NULL};
    static const int operations[] = {CMP_EQ, CMP_NE, CMP_LT, CMP_LE, CMP_GT, CMP_GE};
    if (jinja_skip_word(p, "in"))
        return CMP_IN;
    if (jinja_at_word(p, "not") && p->ahead.kind == TOKEN_NAME && p->ahead.n == 2 &&
        memcmp(p->ahead.bytes, "in", 2) == 0) {
        jinja_next(p);
        jinja_next(p);
        return CMP_NOT_IN;
    }
    return skip_operation(p, names, operations);
}

static struct node *comparison(struct parser *p)
{
    struct node *left = sum(p), *chain = NULL, **tail = NULL;
    for (int cmp; left && (cmp = skip_comparison(p)) >= 0; tail = &(*tail)->next) {
        if (!chain) {
            chain = jinja_node(p, NODE_COMPARE);
            if (!chain)
                return NULL;
            chain->a = left;
            chain->at = left->at;
            tail = &chain->b;
        }
        *tail = jinja_node(p, NODE_COMPARE_TERM);
        if (!*tail || !((*tail)->a = sum(p)))
            return NULL;
        (*tail)->flags = cmp;
    }
    return chain ? chain : left;
}

static struct node *negation(struct parser *p)
{
    if (!jinja_at_word(p, "not"))
        return comparison(p);
    struct node *n = jinja_node(p, NODE_NOT);
    if (!n || !jinja_deeper(p))
        return NULL;
    jinja_next(p);
    n->a = negation(p);
    p->depth--;
    return n->a ? n : NULL;
}

static struct node *conjunction(struct parser *p)
{
    struct node *left = negation(p);
    while (left && jinja_skip_word(p, "and"))
        left = pair_of(p, NODE_AND, left, negation(p));
    return left;
}

static struct node *plain_expression(struct parser *p)
{
    if (!jinja_deeper(p))
        return NULL;
    struct node *left = conjunction(p);
    while (left && jinja_skip_word(p, "or"))
        left = pair_of(p, NODE_OR, left, conjunction(p));
    p->depth--;
    return left;
}

struct node *jinja_expression(struct parser *p)
{
    struct node *then = plain_expression(p);
    while (then && jinja_skip_word(p, "if")) {
        struct node *condition = plain_expression(p);
        struct node *n = pair_of(p, NODE_CHOICE, condition, then);
        if (n && jinja_skip_word(p, "else")) {
            if (!jinja_deeper(p) || !(n->c = jinja_expression(p)))
                return NULL;
            p->depth--;
        }
        then = n;
    }
    return then;
}

/* ---- lists of expressions ---- */

static bool at_tuple_end(const struct parser *p)
{
    return p->now.kind == TOKEN_PRINT_END || p->now.kind == TOKEN_BLOCK_END || jinja_at(p, ")");
}

typedef struct node *parse_item(struct parser *p);

/* One item, or several with commas as a TUPLE; empty: an empty one is one too. */
static struct node *tuple_of(struct parser *p, parse_item *item, bool empty)
{
    struct node *tuple = jinja_node(p, NODE_TUPLE), **tail = tuple ? &tuple->a : NULL;
    bool commas = false;
    while (tuple && !at_tuple_end(p) && p->now.kind != TOKEN_END) {
        *tail = item(p);
        if (!*tail)
            return NULL;
        tail = &(*tail)->next;
        if (!jinja_skip(p, ","))
            break;
        commas = true;
    }
    if (!tuple || p->st != OK)
        return NULL;
    if (tuple->a && !commas)
        return tuple->a;
    return commas || empty ? tuple : jinja_wrong(p, "an expression is expected here");
}

struct node *jinja_tuple(struct parser *p, bool with_choice)
{
    return tuple_of(p, with_choice ? jinja_expression : plain_expression, false);
}

static struct node *target_name(struct parser *p)
{
    static const char *const reserved[] = {"true", "false", "none", "True", "False", "None"};
    for (size_t i = 0; i < ARRAY_LEN(reserved); i++)
        if (jinja_at_word(p, reserved[i]))
            return jinja_wrong(p, "%s is no name to assign to", reserved[i]);
    if (!jinja_at(p, "("))
        return jinja_named(p, NODE_NAME);
    if (!jinja_deeper(p))
        return NULL;
    jinja_next(p);
    struct node *n = tuple_of(p, target_name, true);
    p->depth--;
    return n && jinja_expect(p, ")") ? n : NULL;
}

/* A name, or a member of a namespace. */
static struct node *target_member(struct parser *p)
{
    struct node *name = target_name(p);
    if (!name || name->kind != NODE_NAME || !jinja_skip(p, "."))
        return name;
    struct node *n = jinja_named(p, NODE_MEMBER);
    if (n)
        n->a = name;
    return n;
}

struct node *jinja_target(struct parser *p, bool members)
{
    return tuple_of(p, members ? target_member : target_name, false);
}

/* Items up to a closing bracket, which is taken; pairs: "key: value". */
static struct node *items(struct parser *p, enum node_kind kind, const char *close)
{
    struct node *n = jinja_node(p, kind), **tail = n ? &n->a : NULL;
    jinja_next(p);
    while (n && !jinja_at(p, close)) {
        *tail = jinja_expression(p);
        if (*tail && kind == NODE_DICT) {
            if (!jinja_expect(p, ":"))
                return NULL;
            tail = &(*tail)->next;
            *tail = jinja_expression(p);
        }
        if (!*tail)
            return NULL;
        tail = &(*tail)->next;
        if (!jinja_skip(p, ","))
            break;
    }
    return n && jinja_expect(p, close) ? n : NULL;
}

bool jinja_parameters(struct parser *p, struct node **out)
{
    bool defaults = false;
    if (!jinja_expect(p, "("))
        return false;
    while (!jinja_at(p, ")")) {
        *out = jinja_named(p, NODE_KEYWORD);
        if (!*out)
            return false;
        if (jinja_skip(p, "=")) {
            defaults = true;
            if (!((*out)->a = jinja_expression(p)))
                return false;
        } else if (defaults) {
            jinja_wrong(p, "a parameter without a default after one that has one");
        }
        out = &(*out)->next;
        if (!jinja_skip(p, ","))
            break;
    }
    return jinja_expect(p, ")");
}

/* "(...)" of a call, the bracket is here. */
static bool arguments(struct parser *p, struct node **out)
{
    bool names = false;
    jinja_next(p);
    while (!jinja_at(p, ")")) {
        if (jinja_at(p, "*") || jinja_at(p, "**"))
            jinja_wrong(p, "arguments out of a list are not supported");
        if (p->now.kind == TOKEN_NAME && p->ahead.kind == TOKEN_OPERATOR &&
            strcmp(p->ahead.bytes, "=") == 0) {
            names = true;
            *out = jinja_named(p, NODE_KEYWORD);
            jinja_next(p);
            if (!*out || !((*out)->a = jinja_expression(p)))
                return false;
        } else {
            if (names)
                jinja_wrong(p, "an argument without a name after one that has one");
            *out = jinja_expression(p);
        }
        if (!*out)
            return false;
        out = &(*out)->next;
        if (!jinja_skip(p, ","))
            break;
    }
    return jinja_expect(p, ")");
}

/* ---- what stands alone ---- */

static struct node *constant(struct parser *p, struct value v)
{
    struct node *n = jinja_node(p, NODE_CONST);
    if (n)
        n->value = v;
    jinja_next(p);
    return n;
}

/* Neighbouring strings are one, as in Python. */
static struct node *literal(struct parser *p)
{
    struct node *n = constant(p, p->now.value);
    while (n && n->value.kind == VALUE_STRING && p->now.kind == TOKEN_LITERAL &&
           p->now.value.kind == VALUE_STRING) {
        const struct string a = n->value.s, b = p->now.value.s;
        char *both = jinja_parse_take(p, a.n + b.n + 1);
        if (!both)
            return NULL;
        memcpy(both, a.bytes, a.n);
        memcpy(both + a.n, b.bytes, b.n);
        n->value.s = (struct string){.bytes = both, .n = a.n + b.n};
        jinja_next(p);
    }
    return n;
}

static struct node *name(struct parser *p)
{
    static const struct {
        const char *word;
        struct value value;
    } constants[] = {
        {"true", {.kind = VALUE_BOOL, .b = true}},
        {"True", {.kind = VALUE_BOOL, .b = true}},
        {"false", {.kind = VALUE_BOOL, .b = false}},
        {"False", {.kind = VALUE_BOOL, .b = false}},
        {"none", {.kind = VALUE_NONE}},
        {"None", {.kind = VALUE_NONE}},
    };
    static const struct {
        const char *word;
        int32_t flag;
    } implied[] = {{"caller", MACRO_CALLER}, {"varargs", MACRO_VARARGS}, {"kwargs", MACRO_KWARGS}};
    for (size_t i = 0; i < ARRAY_LEN(constants); i++)
        if (jinja_at_word(p, constants[i].word))
            return constant(p, constants[i].value);
    for (size_t i = 0; p->macro && i < ARRAY_LEN(implied); i++)
        if (jinja_at_word(p, implied[i].word))
            p->macro->flags |= implied[i].flag;
    return jinja_named(p, NODE_NAME);
}

static struct node *primary(struct parser *p)
{
    if (p->now.kind == TOKEN_NAME)
        return name(p);
    if (p->now.kind == TOKEN_LITERAL)
        return literal(p);
    if (jinja_at(p, "["))
        return items(p, NODE_LIST, "]");
    if (jinja_at(p, "{"))
        return items(p, NODE_DICT, "}");
    if (!jinja_skip(p, "("))
        return jinja_wrong(p, "an expression is expected here");
    struct node *n = tuple_of(p, jinja_expression, true);
    return n && jinja_expect(p, ")") ? n : NULL;
}

/* "[...]", the bracket is here. */
static struct node *subscript(struct parser *p, struct node *object)
{
    struct node *n = jinja_node(p, NODE_ITEM), *slice = jinja_node(p, NODE_SLICE);
    if (!n || !slice)
        return NULL;
    n->a = object;
    struct node **const parts[] = {&slice->a, &slice->b, &slice->c};
    size_t colons = 0;
    jinja_next(p);
    for (;;) {
        if (!jinja_at(p, ":") && !jinja_at(p, "]") && !(*parts[colons] = jinja_expression(p)))
            return NULL;
        if (colons == 2 || !jinja_skip(p, ":"))
            break;
        colons++;
    }
    n->b = colons > 0 ? slice : slice->a;
    if (!n->b)
        return jinja_wrong(p, "an index is expected here");
    return jinja_expect(p, "]") ? n : NULL;
}

static struct node *attribute(struct parser *p, struct node *object)
{
    struct node *n;
    jinja_next(p);
    if (p->now.kind == TOKEN_LITERAL && p->now.value.kind == VALUE_INT) {
        n = jinja_node(p, NODE_ITEM);
        if (n)
            n->b = constant(p, p->now.value);
    } else {
        n = jinja_named(p, NODE_ATTR);
    }
    if (n)
        n->a = object;
    return n;
}

static struct node *call(struct parser *p, struct node *callee)
{
    struct node *n = jinja_node(p, NODE_CALL);
    if (!n || !arguments(p, &n->b))
        return NULL;
    n->a = callee;
    return n;
}

static struct node *postfix(struct parser *p, struct node *n)
{
    while (n) {
        if (jinja_at(p, "."))
            n = attribute(p, n);
        else if (jinja_at(p, "["))
            n = subscript(p, n);
        else if (jinja_at(p, "("))
            n = call(p, n);
        else
            break;
    }
    return n;
}

/* ---- filters and tests ---- */

static struct node *filter_or_test(struct parser *p, enum node_kind kind, const char *what)
{
    struct node *n = jinja_node(p, kind);
    if (!n || p->now.kind != TOKEN_NAME)
        return jinja_wrong(p, "the name of a %s is expected here", what);
    n->function = kind == NODE_FILTER ? jinja_filter(p->now.bytes, p->now.n)
                                      : jinja_test(p->now.bytes, p->now.n);
    if (!n->function)
        return jinja_wrong(p, "the %s \"%.*s\" is not supported", what,
                           (int)(p->now.n < 40 ? p->now.n : 40), p->now.bytes);
    jinja_next(p);
    return n;
}

struct node *jinja_filters(struct parser *p, struct node *input, bool start)
{
    while (start || jinja_skip(p, "|")) {
        struct node *n = filter_or_test(p, NODE_FILTER, "filter");
        if (!n || (jinja_at(p, "(") && !arguments(p, &n->b)))
            return NULL;
        n->a = input;
        input = n;
        start = false;
    }
    return p->st == OK ? input : NULL;
}

/* Can what is here be the argument of a test without brackets? */
static bool at_test_argument(const struct parser *p)
{
    if (p->now.kind == TOKEN_NAME)
        return !jinja_at_word(p, "else") && !jinja_at_word(p, "or") && !jinja_at_word(p, "and");
    return p->now.kind == TOKEN_LITERAL || jinja_at(p, "[") || jinja_at(p, "{");
}

static struct node *test(struct parser *p, struct node *input)
{
    jinja_next(p);
    struct node *negated = jinja_at_word(p, "not") ? jinja_node(p, NODE_NOT) : NULL;
    jinja_skip_word(p, "not");
    struct node *n = filter_or_test(p, NODE_TEST, "test");
    if (!n)
        return NULL;
    n->a = input;
    if (jinja_at(p, "(")) {
        if (!arguments(p, &n->b))
            return NULL;
    } else if (at_test_argument(p)) {
        if (jinja_at_word(p, "is"))
            return jinja_wrong(p, "two tests in a row");
        n->b = postfix(p, primary(p));
        if (!n->b)
            return NULL;
    }
    if (!negated)
        return n;
    negated->a = n;
    return negated;
}

static struct node *filters_and_tests(struct parser *p, struct node *n)
{
    while (n) {
        if (jinja_at(p, "|"))
            n = jinja_filters(p, n, false);
        else if (jinja_at_word(p, "is"))
            n = test(p, n);
        else if (jinja_at(p, "("))
            n = call(p, n);
        else
            break;
    }
    return n;
}

static struct node *unary(struct parser *p, bool with_filters)
{
    struct node *n;
    if (jinja_at(p, "-") || jinja_at(p, "+")) {
        n = jinja_node(p, jinja_at(p, "-") ? NODE_NEGATE : NODE_PLUS);
        if (!n || !jinja_deeper(p))
            return NULL;
        jinja_next(p);
        n->a = unary(p, false);
        p->depth--;
        n = n->a ? n : NULL;
    } else {
        n = primary(p);
    }
    n = postfix(p, n);
    return with_filters ? filters_and_tests(p, n) : n;
}
