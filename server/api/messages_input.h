/* The conversation of a request to /v1/messages: system and messages, as the messages that
 * /v1/chat/completions has. Pure.
 *
 * Messages of one role that follow each other are one, as Anthropic has it; texts are lines of it,
 * as in a chat. What tools gave stands in messages of the user, and is a message of its own in a
 * chat. */
#ifndef TESSERA_SERVER_API_MESSAGES_INPUT_H
#define TESSERA_SERVER_API_MESSAGES_INPUT_H

#include "server/api/chat_input.h"

/* Of the ids of calls; what is behind it is the id in a chat, and to the template: Mistral's wants
 * nine letters and digits. */
#define MESSAGES_INPUT_CALL_PREFIX "toolu_"

/* What `messages` and `system` may be, as members of a JSON schema. */
extern const char messages_input_schema[], messages_input_system_schema[];

/* Values of any type; system NULL: none. *goes_on: the last message is the assistant's, and the
 * answer is to continue it. On failure (ERR_INPUT with the path of the value, ERR_NOMEM) *e says
 * why and there is nothing to free. */
enum status messages_input_read(const struct jdoc *messages, const struct jdoc *system,
                                struct chat_input *out, bool *goes_on,
                                struct field_unknown *unknown, struct api_error *e) MUST_USE;
/* An error about what a template cannot do, in the words of this API. */
void messages_input_blame(struct api_error *e);

#endif
