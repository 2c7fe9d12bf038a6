/* What goes back to the client of /v1/chat/completions: the response object and the frames of a
 * stream. Pure. All text must be valid UTF-8. */
#ifndef TESSERA_SERVER_API_CHAT_REPLY_H
#define TESSERA_SERVER_API_CHAT_REPLY_H

#include "server/api/completion_reply.h"

extern const struct reply chat_reply;

#endif
