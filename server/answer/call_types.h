/* Which arguments of tools are texts, by the schemas of their parameters: where a model writes a
 * value without quotes, 5 may be a number or a text. Pure. */
#ifndef TESSERA_SERVER_ANSWER_CALL_TYPES_H
#define TESSERA_SERVER_ANSWER_CALL_TYPES_H

#include "config/buf.h"
#include "config/jdoc.h"

enum call_type {
    CALL_TYPE_ANY,          /* nothing is known, or other values may stand there, too */
    CALL_TYPE_TEXT,         /* a string */
    CALL_TYPE_TEXT_OR_NULL, /* a string or null */
};

/* What is found of those that are texts, as call_types_find reads it. tools: the request's; what is
 * none is left out. */
void call_types_add(const struct jdoc *tools, struct buf *out);
/* types: n such bytes, NULL is fine when n is 0. */
enum call_type call_types_find(const char *types, size_t n, const char *tool, const char *key,
                               size_t key_len);

#endif
