/* What the text of an answer has to be, as a request says it, and the grammar of that. Pure. */
#ifndef TESSERA_SERVER_GRAMMAR_STRUCTURE_H
#define TESSERA_SERVER_GRAMMAR_STRUCTURE_H

#include "config/jdoc.h"
#include "engine/grammar/grammar.h"
#include "server/answer/answer.h"

enum structure_kind {
    STRUCTURE_NONE,    /* anything */
    STRUCTURE_OBJECT,  /* a JSON object */
    STRUCTURE_SCHEMA,  /* JSON by a JSON Schema */
    STRUCTURE_PATTERN, /* what a regular expression matches as a whole */
    STRUCTURE_CHOICES, /* one of some texts */
};

struct structure {
    enum structure_kind kind;
    const char *field;        /* static: the field that says so; of a `begun` one: tool_choice */
    const struct jdoc *value; /* the schema, the expression, the list of texts; borrowed */
    /* In a chat the answer may be calls of tools instead (`tools` != NULL), or has to be, where the
     * prompt has begun one up to the tool's name, or to the arguments of the tool `name`. */
    const struct jdoc *tools; /* borrowed */
    struct answer_form form;  /* of a chat; harmony: in its messages, behind reasoning */
    bool begun;
    const char *name; /* "": any of the tools; borrowed */
};

/* May the answer be anything? */
bool structure_is_none(const struct structure *s);
/* Appends a text that is the same for equal structures only. */
void structure_key(const struct structure *s, struct buf *out);
/* ERR_INPUT: what is not supported, or too much. The caller frees *out. */
enum status structure_build(const struct structure *s, struct grammar **out,
                            struct err *err) MUST_USE;

#endif
