/* What goes back to the client of /v1/responses: the response object, and the events of a stream,
 * the last of which has that object, too. A call that a limit has cut off is an item that is
 * incomplete, with the arguments as far as they came. Pure. All text must be valid UTF-8. */
#ifndef TESSERA_SERVER_API_RESPONSES_REPLY_H
#define TESSERA_SERVER_API_RESPONSES_REPLY_H

#include "server/api/completion_reply.h"

/* Answers have one choice, which has a state; meta.repeated is set, and meta.id is "resp_...". */
extern const struct reply responses_reply;

#endif
