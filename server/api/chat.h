/* POST /v1/chat/completions: bytes to a checked request. Its prompt is yet to be made of the
 * conversation. Pure. */
#ifndef TESSERA_SERVER_API_CHAT_H
#define TESSERA_SERVER_API_CHAT_H

#include "server/api/completion.h"
#include "server/api/conversation.h"
#include "server/api/sampling.h"

#define CHAT_TOOLS_BYTES_MAX ((size_t)64 << 20)

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

/* ---- for APIs that say the same in another way: /v1/responses and /v1/messages ---- */

/* What the rows store into; they have rows of their own. */
struct chat_values {
    struct sampling sampling; /* max_tokens: -1 unless it is said */
    struct conversation_fields conversation;
    const struct jdoc *tool_choice, *modalities, *prediction;
    int64_t max_completion_tokens, top_logprobs; /* -1 unless they are said */
    bool logprobs, add_special_tokens, include_reasoning, parallel_tool_calls;
};
struct chat_values chat_defaults(const struct generation_defaults *d);
/* The request that checked values come to, into *r, whose document is set, and whose source is the
 * field that the prompt comes from. On failure *r is the caller's to free, too. */
enum status chat_make(struct chat_values *values, const struct completion_rules *rules,
                      struct chat_request *r, struct api_error *e) MUST_USE;

/* How one API says what a chat is. */
struct chat_form {
    const char *source;     /* the field that the prompt comes from */
    const char *const *big; /* fields with JSON of others: integers of any size; NULL: none */
    struct field_set (*fields)(int32_t vocab);
    /* What the rows have stored into values becomes a request; ends with chat_make. */
    enum status (*make)(void *values, const struct completion_rules *rules, struct chat_request *r,
                        struct api_error *e);
};
/* chat_parse of another form; values hold the defaults. */
enum status chat_parse_form(const struct chat_form *form, void *values, const char *text, size_t n,
                            const struct completion_rules *rules, struct chat_request *out,
                            struct api_error *e) MUST_USE;

/* Tools and the choice of one as a chat has them, {"tools": [...], "tool_choice": ...}, which are
 * q's from now on. ERR_INPUT, ERR_NOMEM. */
enum status chat_take_tools(const struct buf *text, struct completion_request *q,
                            struct chat_values *values, struct api_error *e) MUST_USE;

#endif
