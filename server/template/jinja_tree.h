/* A parsed template. Nodes live in the template's arena and never change after the parse. */
#ifndef TESSERA_SERVER_TEMPLATE_JINJA_TREE_H
#define TESSERA_SERVER_TEMPLATE_JINJA_TREE_H

#include "server/template/jinja_arena.h"
#include "server/template/jinja_value.h"

/* What a node's fields hold; lists of nodes hang together by `next`. */
enum node_kind {
    /* Statements: a         b          c       d      e     value */
    NODE_TEXT,  /*                                     text */
    NODE_PRINT, /* expression */
    NODE_IF,    /* condition  -          -       then   else: an IF with IF_ELIF, or statements */
    NODE_FOR,   /* target     iterable   filter  body   else */
    NODE_SET,   /* target     expression */
    NODE_SET_BLOCK,    /* target     filters    -       body */
    NODE_FILTER_BLOCK, /* -          filters    -       body */
    NODE_SCOPE,        /* KEYWORDs   -          -       body: "with", "generation" */
    NODE_MACRO,        /* KEYWORDs   -          -       body   -     name; flags MACRO_... */
    NODE_CALL_BLOCK,   /* the caller as a MACRO, call */
    NODE_BREAK,
    NODE_CONTINUE,
    /* Expressions */
    NODE_CONST,        /*                                     the value */
    NODE_NAME,         /*                                     name */
    NODE_MEMBER,       /* namespace's name as target          attribute, a: NAME */
    NODE_LIST,         /* items */
    NODE_TUPLE,        /* items */
    NODE_DICT,         /* keys and values by turns */
    NODE_ATTR,         /* object     -                        attribute */
    NODE_ITEM,         /* object     index or SLICE */
    NODE_SLICE,        /* start      stop       step; each may be NULL */
    NODE_CALL,         /* callee     arguments, the named ones as KEYWORDs */
    NODE_KEYWORD,      /* value or default (or NULL)          name */
    NODE_FILTER,       /* input (NULL: the block's), arguments; function */
    NODE_TEST,         /* input      arguments; function */
    NODE_NOT,          /* operand */
    NODE_NEGATE,       /* operand */
    NODE_PLUS,         /* operand */
    NODE_AND,          /* left       right */
    NODE_OR,           /* left       right */
    NODE_BINARY,       /* left       right; flags: enum operation */
    NODE_CONCAT,       /* left       right */
    NODE_COMPARE,      /* left       COMPARE_TERMs */
    NODE_COMPARE_TERM, /* right; flags: enum comparison */
    NODE_CHOICE,       /* condition  then       else (or NULL) */
    NODE_KINDS
};

enum operation { OP_ADD, OP_SUB, OP_MUL, OP_DIV, OP_FLOORDIV, OP_MOD, OP_POW };
enum comparison { CMP_EQ, CMP_NE, CMP_LT, CMP_LE, CMP_GT, CMP_GE, CMP_IN, CMP_NOT_IN };
enum { IF_ELIF = 1 };
enum { MACRO_CALLER = 1, MACRO_VARARGS = 2, MACRO_KWARGS = 4 }; /* names that its body mentions */

struct node {
    enum node_kind kind;
    int32_t flags;
    uint32_t at; /* byte of the template's text */
    struct node *next, *a, *b, *c, *d, *e;
    const struct function *function;
    struct value value;
};

struct jinja {
    struct arena arena;
    const char *where, *text; /* line ends are LF */
    size_t n;
    const struct node *body;
};

#define JINJA_NO_FORMATS "formatting with %% is not supported"

/* Fails with ERR_MODEL: "where:line:column: message"; line and column count from 1. */
enum status jinja_refuse(const struct jinja *t, uint32_t at, struct err *err, const char *fmt, ...)
    PRINTF_LIKE(4, 5);
/* The same for any status, of arguments already taken. */
enum status jinja_refuse_v(const struct jinja *t, uint32_t at, struct err *err, enum status st,
                           const char *fmt, va_list ap) PRINTF_LIKE(5, 0);

#endif
