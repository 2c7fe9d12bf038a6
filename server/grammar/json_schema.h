/* JSON Schema (2020-12) into a grammar. Everything that the grammar allows fulfils the schema; not
 * everything that fulfils the schema is allowed: members come in the order of `properties` and of
 * names that an enum lists, others only where additionalProperties says so or there are neither
 * properties nor patterns of them, white space and numbers are those of json_text.h, and multiples
 * are those of decimals, as 0.3 is of 0.1. What cannot be kept to is refused, never ignored. */
#ifndef TESSERA_SERVER_GRAMMAR_JSON_SCHEMA_H
#define TESSERA_SERVER_GRAMMAR_JSON_SCHEMA_H

#include "config/jdoc.h"
#include "server/grammar/json_text.h"

/* The rule of a value that fulfils the schema, which is borrowed during the call. ERR_INPUT: where
 * in the schema is what that is not supported or wrong. */
enum status json_schema_build(const struct json_text *t, const struct jdoc *schema, int32_t *rule,
                              struct err *err) MUST_USE;

#endif
