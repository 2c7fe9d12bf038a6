/* POST /v1/embeddings: bytes to a checked request whose prompts are the inputs, and the answer: a
 * vector of each. As OpenAI has it, with vLLM's fields. Pure. */
#ifndef TESSERA_SERVER_API_EMBEDDING_H
#define TESSERA_SERVER_API_EMBEDDING_H

#include "server/api/completion.h"
#include "server/api/completion_reply.h"

/* As completion_parse. */
enum status embedding_parse(const char *text, size_t n, const struct completion_rules *rules,
                            struct completion_request *out, struct api_error *e) MUST_USE;
/* The rows, and their schema, for GET /openapi.json. */
struct field_set embedding_fields(const struct completion_rules *rules);
void embedding_schema(const struct completion_rules *rules, struct buf *out);

/* Of v[n] the first numbers that are wanted, and what of them: returns how many. Where they are to
 * have length 1 and are all zero, they stay so. */
int32_t embedding_finish(const struct completion_vector *wanted, float *v, int32_t n);
/* v[n] as it stands in the answer: the text of a choice. */
void embedding_write(const struct completion_vector *wanted, const float *v, int32_t n,
                     struct buf *out);

extern const struct reply embedding_reply;

#endif
