/* Template text into a tree. Internal to the template engine. */
#ifndef TESSERA_SERVER_TEMPLATE_JINJA_PARSE_H
#define TESSERA_SERVER_TEMPLATE_JINJA_PARSE_H

#include "server/template/jinja_lex.h"

#define PARSE_DEPTH_MAX 64

struct parser {
    struct jinja *t;
    struct lexer lexer;
    struct token now, ahead;
    int32_t depth, loops; /* loops: around this place, inside the same macro */
    struct node *macro;   /* the innermost one around this place, or NULL */
    enum status st;       /* the first failure; from then on there are only END tokens */
    struct err *err;
};

/* Sets t->body. */
enum status jinja_parse(struct jinja *t, struct err *err) MUST_USE;

/* ---- for the two halves of the parser: NULL or false means that p->st says why ---- */

struct node *jinja_expression(struct parser *p);
/* One expression, or several with commas as a TUPLE; with_choice: "a if b else c" is one too. */
struct node *jinja_tuple(struct parser *p, bool with_choice);
struct node *jinja_target(struct parser *p, bool members);
/* Filters from the "|" on, or from a name where start is true, on an input that may be NULL. */
struct node *jinja_filters(struct parser *p, struct node *input, bool start);
/* "(a, b=1)" of a macro, as KEYWORDs. */
bool jinja_parameters(struct parser *p, struct node **out);

void jinja_next(struct parser *p);
bool jinja_at(const struct parser *p, const char *op); /* is this operator here? */
bool jinja_at_word(const struct parser *p, const char *word);
bool jinja_skip(struct parser *p, const char *op); /* goes past it if it is here */
bool jinja_skip_word(struct parser *p, const char *word);
bool jinja_expect(struct parser *p, const char *op);
void *jinja_parse_take(struct parser *p, size_t n); /* zeroed, as long as the template */
/* A new node at the token that is here; NULL without memory. */
struct node *jinja_node(struct parser *p, enum node_kind kind);
struct node *jinja_named(struct parser *p, enum node_kind kind); /* takes a name as its value */
void *jinja_wrong(struct parser *p, const char *fmt, ...) PRINTF_LIKE(2, 3); /* returns NULL */
/* Between these two a construct can hold others of its kind. */
bool jinja_deeper(struct parser *p);

#endif
