/* Arrays whose elements are all different, of a few values, as grammars: the keyword uniqueItems.
 */
#ifndef TESSERA_SERVER_GRAMMAR_JSON_UNIQUE_H
#define TESSERA_SERVER_GRAMMAR_JSON_UNIQUE_H

#include "server/grammar/json_scope.h"

/* Of the schema of an array, min to max elements of it (max < 0: any number); ends in GRAMMAR_END.
 * ERR_INPUT: its items are not of a few values. */
enum status json_unique_build(const struct json_scope *s, const struct jdoc *array, int64_t min,
                              int64_t max, int32_t *first, struct err *err) MUST_USE;

#endif
