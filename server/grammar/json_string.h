/* Strings of a length, a pattern or a format as grammars. */
#ifndef TESSERA_SERVER_GRAMMAR_JSON_STRING_H
#define TESSERA_SERVER_GRAMMAR_JSON_STRING_H

#include "server/grammar/json_scope.h"

/* What the keywords about strings of the schema allow, with its quotes; ends in GRAMMAR_END. */
enum status json_string_build(const struct json_scope *s, const struct jdoc *v, int32_t *first,
                              struct err *err) MUST_USE;

#endif
