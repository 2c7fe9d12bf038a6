/* A value of an argument that a model writes without quotes, as JSON. Pure. */
#ifndef TESSERA_SERVER_ANSWER_CALL_VALUE_H
#define TESSERA_SERVER_ANSWER_CALL_VALUE_H

#include "config/buf.h"
#include "server/answer/call_types.h"

/* Appends it: what is no JSON, or has to be a text by its type, is one. Constants may be Python's.
 * text: valid UTF-8. no_memory: set when there is none. */
void call_value_add(struct buf *out, enum call_type type, const char *text, size_t n,
                    bool *no_memory);

#endif
