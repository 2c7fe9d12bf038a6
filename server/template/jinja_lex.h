/* Template text into tokens, one by one. Strings and names live in the template's arena. */
#ifndef TESSERA_SERVER_TEMPLATE_JINJA_LEX_H
#define TESSERA_SERVER_TEMPLATE_JINJA_LEX_H

#include "server/template/jinja_tree.h"

#define LEX_BRACKETS_MAX 128

enum token_kind {
    TOKEN_END,
    TOKEN_DATA, /* text outside of tags, white space already removed as asked */
    TOKEN_PRINT_BEGIN,
    TOKEN_PRINT_END,
    TOKEN_BLOCK_BEGIN,
    TOKEN_BLOCK_END,
    TOKEN_NAME,
    TOKEN_LITERAL, /* string or number: value */
    TOKEN_OPERATOR
};

struct token {
    enum token_kind kind;
    uint32_t at;
    const char *bytes;
    size_t n;
    struct value value;
};

struct lexer {
    struct jinja *t;
    size_t at;
    enum token_kind closes; /* PRINT_END, BLOCK_END, or END: outside of tags */
    bool line_starting;     /* nothing but the start of a line is before `at` */
    char open[LEX_BRACKETS_MAX];
    int32_t open_count;
    struct token pending; /* what follows the DATA just given, unless END */
    struct err *err;
};

enum status jinja_lex(struct lexer *l, struct token *out) MUST_USE;

#endif
