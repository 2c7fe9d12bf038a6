/* POST /v1/responses: bytes to the request that a chat would be. Nothing is kept between requests:
 * what refers to an earlier one is refused. Pure. */
#ifndef TESSERA_SERVER_API_RESPONSES_H
#define TESSERA_SERVER_API_RESPONSES_H

#include "server/api/chat.h"

#define RESPONSES_METADATA_MAX 16
#define RESPONSES_METADATA_KEY_MAX 64 /* characters, and */
#define RESPONSES_METADATA_VALUE_MAX 512

/* On failure (ERR_INPUT, ERR_NOMEM) *e says why and *out is untouched. The bytes may go away.
 * completion.repeated has the members of the answer that say the request again. */
enum status responses_parse(const char *text, size_t n, const struct completion_rules *rules,
                            struct chat_request *out, struct api_error *e) MUST_USE;

struct field_set responses_fields(int32_t vocab);
void responses_schema(const struct completion_rules *rules, struct buf *out);

#endif
