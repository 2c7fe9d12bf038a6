/* POST /v1/messages and /v1/messages/count_tokens, Anthropic's API: bytes to the request that a
 * chat would be. Nothing is kept between requests. Pure. */
#ifndef TESSERA_SERVER_API_MESSAGES_H
#define TESSERA_SERVER_API_MESSAGES_H

#include "server/api/chat.h"

/* On failure (ERR_INPUT, ERR_NOMEM) *e says why and *out is untouched. The bytes may go away. */
enum status messages_parse(const char *text, size_t n, const struct completion_rules *rules,
                           struct chat_request *out, struct api_error *e) MUST_USE;
/* The same of a request whose tokens are to be counted: max_tokens may be missing. */
enum status messages_parse_count(const char *text, size_t n, const struct completion_rules *rules,
                                 struct chat_request *out, struct api_error *e) MUST_USE;

struct field_set messages_fields(int32_t vocab);
struct field_set messages_count_fields(int32_t vocab);
void messages_schema(const struct completion_rules *rules, struct buf *out);
void messages_count_schema(const struct completion_rules *rules, struct buf *out);

#endif
