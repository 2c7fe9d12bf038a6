/* JSON Schema (2020-12) into a grammar. Everything that the grammar allows fulfils the schema; not
 * everything that fulfils the schema is allowed: members come in the order of `properties`, others
 * only where additionalProperties says so or there are no properties, white space and numbers are
 * those of json_text.h. What cannot be kept to is refused, never ignored. */
#ifndef TESSERA_SERVER_GRAMMAR_JSON_SCHEMA_H
#define TESSERA_SERVER_GRAMMAR_JSON_SCHEMA_H

#include "config/jdoc.h"
#include "server/grammar/json_text.h"

/* The rule of a value that fulfils the schema, which is borrowed during the call. ERR_INPUT: where
 * in the schema is what that is not supported or wrong. */
enum status json_schema_build(const struct json_text *t, const struct jdoc *schema, int32_t *rule,
                              struct err *err) MUST_USE;

#endif
