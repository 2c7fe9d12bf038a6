/* DESIGN: recursive descent with one token of look-ahead. The first failure sticks: from then on
 * the lexer gives nothing but the end, so every loop stops and callers only look for NULL. This
 * half reads statements; jinja_expr.c reads what stands in them. */
#include "server/template/jinja_parse.h"

#include "server/template/jinja_function.h"

#include <stdio.h>
#include <string.h>

/* ---- tokens and nodes ---- */

void *jinja_wrong(struct parser *p, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    if (p->st == OK)
        p->st = jinja_refuse_v(p->t, p->now.at, p->err, ERR_MODEL, fmt, ap);
    va_end(ap);
    p->now.kind = p->ahead.kind = TOKEN_END;
    return NULL;
}

void jinja_next(struct parser *p)
{
    p->now = p->ahead;
    if (p->st == OK)
        p->st = jinja_lex(&p->lexer, &p->ahead);
    if (p->st != OK)
        p->now.kind = p->ahead.kind = TOKEN_END;
}

bool jinja_at(const struct parser *p, const char *op)
{
    return p->now.kind == TOKEN_OPERATOR && strcmp(p->now.bytes, op) == 0;
}

static bool is_word(const struct token *t, const char *word)
{
    return t->kind == TOKEN_NAME && t->n == strlen(word) && memcmp(t->bytes, word, t->n) == 0;
}

bool jinja_at_word(const struct parser *p, const char *word)
{
    return is_word(&p->now, word);
}

bool jinja_skip(struct parser *p, const char *op)
{
    const bool here = jinja_at(p, op);
    if (here)
        jinja_next(p);
    return here;
}

bool jinja_skip_word(struct parser *p, const char *word)
{
    const bool here = jinja_at_word(p, word);
    if (here)
        jinja_next(p);
    return here;
}

static void expected(struct parser *p, const char *what)
{
    if (p->now.kind == TOKEN_END)
        jinja_wrong(p, "the template ends where %s is expected", what);
    else if (p->now.kind == TOKEN_NAME || p->now.kind == TOKEN_OPERATOR)
        jinja_wrong(p, "%s is expected, not \"%.*s\"", what, (int)(p->now.n < 40 ? p->now.n : 40),
                    p->now.bytes);
    else
        jinja_wrong(p, "%s is expected here", what);
}

bool jinja_expect(struct parser *p, const char *op)
{
    const bool here = jinja_skip(p, op);
    if (!here)
        expected(p, op);
    return here && p->st == OK;
}

static bool expect_kind(struct parser *p, enum token_kind kind, const char *what)
{
    const bool here = p->now.kind == kind;
    if (here)
        jinja_next(p);
    else
        expected(p, what);
    return here && p->st == OK;
}

void *jinja_parse_take(struct parser *p, size_t n)
{
    void *piece = jinja_arena_take(&p->t->arena, n);
    if (!piece && p->st == OK)
        p->st = base_fail(p->err, p->t->arena.full ? ERR_MODEL : ERR_NOMEM,
                          "%s: no memory for the template", p->t->where);
    return piece;
}

struct node *jinja_node(struct parser *p, enum node_kind kind)
{
    struct node *n = jinja_parse_take(p, sizeof *n);
    if (!n)
        return NULL;
    n->kind = kind;
    n->at = p->now.at;
    return n;
}

struct node *jinja_named(struct parser *p, enum node_kind kind)
{
    struct node *n = jinja_node(p, kind);
    if (n && p->now.kind == TOKEN_NAME)
        n->value =
            (struct value){.kind = VALUE_STRING, .s = {.bytes = p->now.bytes, .n = p->now.n}};
    return expect_kind(p, TOKEN_NAME, "a name") ? n : NULL;
}

bool jinja_deeper(struct parser *p)
{
    if (++p->depth > PARSE_DEPTH_MAX)
        jinja_wrong(p, "nested deeper than %d", PARSE_DEPTH_MAX);
    return p->st == OK;
}

/* ---- statements ---- */

static struct node *statement(struct parser *p);

/* Is the tag here one of these words, separated by spaces? */
static bool at_end_word(const struct parser *p, const char *words)
{
    for (const char *w = words; w && *w; w += strspn(w, " ")) {
        const size_t n = strcspn(w, " ");
        if (p->now.kind == TOKEN_NAME && p->now.n == n && memcmp(p->now.bytes, w, n) == 0)
            return true;
        w += n;
    }
    return false;
}

static struct node *print_or_text(struct parser *p)
{
    struct node *n = jinja_node(p, p->now.kind == TOKEN_DATA ? NODE_TEXT : NODE_PRINT);
    if (!n)
        return NULL;
    if (n->kind == NODE_TEXT) {
        n->value =
            (struct value){.kind = VALUE_STRING, .s = {.bytes = p->now.bytes, .n = p->now.n}};
        jinja_next(p);
        return n;
    }
    jinja_next(p);
    n->a = jinja_tuple(p, true);
    return n->a && expect_kind(p, TOKEN_PRINT_END, "}}") ? n : NULL;
}

/* Statements up to a tag whose first word is one of `ends`, which is here afterwards; NULL: up to
 * the end of the template. An empty list is success with *out NULL. */
static bool statements(struct parser *p, const char *ends, struct node **out)
{
    struct node **tail = out;
    if (!jinja_deeper(p))
        return false;
    for (*tail = NULL; p->now.kind != TOKEN_END; tail = &(*tail)->next) {
        if (p->now.kind == TOKEN_BLOCK_BEGIN) {
            jinja_next(p);
            if (at_end_word(p, ends))
                break;
            *tail = statement(p);
        } else {
            *tail = print_or_text(p);
        }
        if (!*tail)
            return false;
    }
    p->depth--;
    if (ends && p->now.kind == TOKEN_END)
        expected(p, ends);
    return p->st == OK;
}

/* What a tag holds: the rest of the tag before, statements, and the word that ends them. */
static bool body(struct parser *p, const char *end, struct node **out)
{
    jinja_skip(p, ":");
    if (!expect_kind(p, TOKEN_BLOCK_END, "%}") || !statements(p, end, out))
        return false;
    jinja_next(p);
    return p->st == OK;
}

static bool finish_tag(struct parser *p)
{
    return expect_kind(p, TOKEN_BLOCK_END, "%}");
}

static struct node *if_statement(struct parser *p)
{
    struct node *first = jinja_node(p, NODE_IF), *n = first;
    jinja_next(p);
    while (n) {
        n->a = jinja_tuple(p, false);
        jinja_skip(p, ":");
        if (!n->a || !expect_kind(p, TOKEN_BLOCK_END, "%}") ||
            !statements(p, "elif else endif", &n->d))
            return NULL;
        if (jinja_skip_word(p, "elif")) {
            struct node *next = jinja_node(p, NODE_IF);
            n->e = next;
            if (next)
                next->flags = IF_ELIF;
            n = next;
            continue;
        }
        if (jinja_skip_word(p, "else"))
            return body(p, "endif", &n->e) && finish_tag(p) ? first : NULL;
        jinja_next(p);
        return finish_tag(p) ? first : NULL;
    }
    return NULL;
}

static struct node *for_statement(struct parser *p)
{
    struct node *n = jinja_node(p, NODE_FOR);
    jinja_next(p);
    if (!n || !(n->a = jinja_target(p, false)))
        return NULL;
    if (!jinja_skip_word(p, "in")) {
        expected(p, "in");
        return NULL;
    }
    n->b = jinja_tuple(p, false);
    if (n->b && jinja_skip_word(p, "if"))
        n->c = jinja_expression(p);
    if (jinja_at_word(p, "recursive"))
        return jinja_wrong(p, "recursive loops are not supported");
    jinja_skip(p, ":");
    p->loops++;
    if (!n->b || !expect_kind(p, TOKEN_BLOCK_END, "%}") || !statements(p, "endfor else", &n->d))
        return NULL;
    p->loops--;
    if (jinja_skip_word(p, "else"))
        return body(p, "endfor", &n->e) && finish_tag(p) ? n : NULL;
    jinja_next(p);
    return finish_tag(p) ? n : NULL;
}

static struct node *set_statement(struct parser *p)
{
    struct node *n = jinja_node(p, NODE_SET);
    jinja_next(p);
    if (!n || !(n->a = jinja_target(p, true)))
        return NULL;
    if (jinja_skip(p, "=")) {
        n->b = jinja_tuple(p, true);
        return n->b && finish_tag(p) ? n : NULL;
    }
    n->kind = NODE_SET_BLOCK;
    if (jinja_at(p, "|") && !(n->b = jinja_filters(p, NULL, false)))
        return NULL;
    return body(p, "endset", &n->d) && finish_tag(p) ? n : NULL;
}

/* Parameters (none where there is no bracket) and body of what can be called. A loop around it is
 * not around its body. */
static bool macro_rest(struct parser *p, struct node *macro, const char *end)
{
    struct node *const outer = p->macro;
    const int32_t loops = p->loops;
    p->macro = macro;
    p->loops = 0;
    const bool good = body(p, end, &macro->d);
    p->macro = outer;
    p->loops = loops;
    if (outer)
        outer->flags |= macro->flags;
    return good && finish_tag(p);
}

static struct node *macro_statement(struct parser *p)
{
    jinja_next(p);
    struct node *n = jinja_named(p, NODE_MACRO);
    return n && jinja_parameters(p, &n->a) && macro_rest(p, n, "endmacro") ? n : NULL;
}

static struct node *call_statement(struct parser *p)
{
    struct node *n = jinja_node(p, NODE_CALL_BLOCK), *caller = jinja_node(p, NODE_MACRO);
    jinja_next(p);
    if (!n || !caller || (jinja_at(p, "(") && !jinja_parameters(p, &caller->a)))
        return NULL;
    n->a = caller;
    caller->value = VALUE_NOTHING; /* it has no name */
    n->b = jinja_expression(p);
    if (n->b && n->b->kind != NODE_CALL)
        return jinja_wrong(p, "a call is expected");
    return n->b && macro_rest(p, caller, "endcall") ? n : NULL;
}

static struct node *filter_statement(struct parser *p)
{
    struct node *n = jinja_node(p, NODE_FILTER_BLOCK);
    jinja_next(p);
    if (!n || !(n->b = jinja_filters(p, NULL, true)))
        return NULL;
    return body(p, "endfilter", &n->d) && finish_tag(p) ? n : NULL;
}

static struct node *with_statement(struct parser *p)
{
    struct node *n = jinja_node(p, NODE_SCOPE), **tail = n ? &n->a : NULL;
    jinja_next(p);
    while (n && p->now.kind == TOKEN_NAME) {
        *tail = jinja_named(p, NODE_KEYWORD);
        if (!*tail || !jinja_expect(p, "=") || !((*tail)->a = jinja_expression(p)))
            return NULL;
        tail = &(*tail)->next;
        if (!jinja_skip(p, ","))
            break;
    }
    return n && body(p, "endwith", &n->d) && finish_tag(p) ? n : NULL;
}

/* What transformers marks as the model's own text: nothing to be done about it here. */
static struct node *generation_statement(struct parser *p)
{
    struct node *n = jinja_node(p, NODE_SCOPE);
    const int32_t loops = p->loops;
    jinja_next(p);
    p->loops = 0;
    const bool good = n && body(p, "endgeneration", &n->d) && finish_tag(p);
    p->loops = loops;
    return good ? n : NULL;
}

static struct node *loop_control(struct parser *p)
{
    struct node *n = jinja_node(p, jinja_at_word(p, "break") ? NODE_BREAK : NODE_CONTINUE);
    if (p->loops == 0)
        return jinja_wrong(p, "there is no loop around this");
    jinja_next(p);
    return n && finish_tag(p) ? n : NULL;
}

static struct node *statement(struct parser *p)
{
    static const struct {
        const char *word;
        struct node *(*parse)(struct parser *p);
    } rows[] = {
        {"if", if_statement},     {"for", for_statement},
        {"set", set_statement},   {"macro", macro_statement},
        {"call", call_statement}, {"filter", filter_statement},
        {"with", with_statement}, {"generation", generation_statement},
        {"break", loop_control},  {"continue", loop_control},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        if (jinja_at_word(p, rows[i].word))
            return rows[i].parse(p);
    if (p->now.kind != TOKEN_NAME) {
        expected(p, "a tag's name");
        return NULL;
    }
    return jinja_wrong(p, "the tag \"%.*s\" is not supported or not expected here",
                       (int)(p->now.n < 40 ? p->now.n : 40), p->now.bytes);
}

enum status jinja_parse(struct jinja *t, struct err *err)
{
    struct parser p = {.t = t, .err = err, .lexer = {.t = t, .line_starting = true, .err = err}};
    struct node *first = NULL;
    jinja_next(&p);
    jinja_next(&p);
    if (statements(&p, NULL, &first))
        t->body = first;
    return p.st;
}
