/* Values that are given as grammars: each is written in one way but for its spaces. */
#ifndef TESSERA_SERVER_GRAMMAR_JSON_LITERAL_H
#define TESSERA_SERVER_GRAMMAR_JSON_LITERAL_H

#include "config/jdoc.h"
#include "server/grammar/json_text.h"

/* The value, with its members in their order, then `next`. */
int32_t json_literal(const struct json_text *t, const struct jdoc *v, int32_t next);

#endif
