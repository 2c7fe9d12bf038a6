/* The conversation of a request to /v1/responses: instructions and input items, as the messages
 * that /v1/chat/completions has. Pure.
 *
 * A message, its reasoning and its calls of functions are items of their own. Instructions and what
 * the first items add to them are one message: many templates take one. */
#ifndef TESSERA_SERVER_API_RESPONSES_INPUT_H
#define TESSERA_SERVER_API_RESPONSES_INPUT_H

#include "server/api/chat_input.h"

#define RESPONSES_STATELESS                                                                        \
    "this server keeps nothing of a request: send the whole conversation as input"
#define RESPONSES_ITEMS_MAX CONVERSATION_MESSAGES_MAX

/* What `input` may be, as members of a JSON schema. */
extern const char responses_input_schema[];

/* input: a value of any type; instructions: bytes NULL: none. On failure (ERR_INPUT with the path
 * of the value, ERR_NOMEM) *e says why and there is nothing to free. */
enum status responses_input_read(const struct jdoc *input, const struct field_string *instructions,
                                 struct chat_input *out, struct field_unknown *unknown,
                                 struct api_error *e) MUST_USE;

#endif
