/* POST /v1/chat/completions: bytes to a checked request. Its prompt is yet to be made of the
 * conversation. Pure. */
#ifndef TESSERA_SERVER_API_CHAT_H
#define TESSERA_SERVER_API_CHAT_H

#include "server/api/completion.h"
#include "server/api/conversation.h"

struct chat_request {
    struct completion_request completion; /* with one prompt, that has neither text nor ids */
    struct conversation conversation;
};

/* On failure (ERR_INPUT, ERR_NOMEM) *e says why and *out is untouched. The bytes may go away. */
enum status chat_parse(const char *text, size_t n, const struct completion_rules *rules,
                       struct chat_request *out, struct api_error *e) MUST_USE;
void chat_free(struct chat_request *r); /* zeroed memory is fine */

struct field_set chat_fields(int32_t vocab);
void chat_schema(const struct completion_rules *rules, struct buf *out);

#endif
