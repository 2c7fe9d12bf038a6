/* What goes back to the client of /v1/messages: the message, and the events of a stream, which has
 * no more than its client can put together. Of a call that a limit has cut off a stream says what
 * there is; the message, where `input` has to be an object, has an empty one. Pure. All text must
 * be valid UTF-8. */
#ifndef TESSERA_SERVER_API_MESSAGES_REPLY_H
#define TESSERA_SERVER_API_MESSAGES_REPLY_H

#include "server/api/completion_reply.h"

/* Answers have one choice, which has a state. */
extern const struct reply messages_reply;
/* {"input_tokens": ...} */
void messages_reply_count(int64_t tokens, struct buf *out);

#endif
