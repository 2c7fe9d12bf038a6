/* The conversation of a request to /v1/responses: instructions and input items, as the messages
 * that /v1/chat/completions has. Pure.
 *
 * A message, its reasoning and its calls of functions are items of their own; together they are
 * one message of the assistant, as chat templates want it. Instructions and what the first items
 * add to them are one message, too: many templates take one. */
#ifndef TESSERA_SERVER_API_RESPONSES_INPUT_H
#define TESSERA_SERVER_API_RESPONSES_INPUT_H

#include "server/api/conversation.h"

#define RESPONSES_STATELESS                                                                        \
    "this server keeps nothing of a request: send the whole conversation as input"
#define RESPONSES_ITEMS_MAX CONVERSATION_MESSAGES_MAX

struct responses_input {
    struct jdoc *messages; /* a list, and nothing in it points elsewhere */
    struct buf origins;    /* int32_t of each message: the item that it begins with, or */
};
enum { RESPONSES_NO_ITEM = -1 }; /* it is the instructions, or an input that is a text */

/* What `input` may be, as members of a JSON schema. */
extern const char responses_input_schema[];

/* input: a value of any type; instructions: bytes NULL: none. On failure (ERR_INPUT with the path
 * of the value, ERR_NOMEM) *e says why and there is nothing to free. */
enum status responses_input_read(const struct jdoc *input, const struct field_string *instructions,
                                 struct responses_input *out, struct field_unknown *unknown,
                                 struct api_error *e) MUST_USE;
void responses_input_free(struct responses_input *in); /* zeroed memory is fine */
/* An error about messages becomes one about what they were made of. in NULL: of all of them. */
void responses_input_blame(const struct responses_input *in, struct api_error *e);

#endif
