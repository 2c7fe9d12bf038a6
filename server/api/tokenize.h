/* POST /tokenize, of a text or of a conversation, and /detokenize: bytes to checked requests, and
 * what goes back. Field names are vLLM's; llama.cpp's `content` and `add_special` are understood
 * too. Pure. */
#ifndef TESSERA_SERVER_API_TOKENIZE_H
#define TESSERA_SERVER_API_TOKENIZE_H

#include "server/api/completion.h"
#include "server/api/conversation.h"
#include "server/api/logprobs.h"

#define TOKENIZE_IDS_MAX 200000

struct tokenize_request {
    struct jdoc *doc;                 /* owns the text */
    struct field_string text;         /* or */
    struct conversation conversation; /* vars NULL: a text */
    bool add_special_tokens, parse_special, return_token_strs;
    struct field_unknown unknown;
};

struct detokenize_request {
    int32_t *ids; /* owned; NULL when there are none */
    int32_t count;
    struct field_unknown unknown;
};

/* On failure (ERR_INPUT, ERR_NOMEM) *e says why and *out is untouched. The bytes may go away. */
enum status tokenize_parse(const char *text, size_t n, const struct completion_rules *rules,
                           struct tokenize_request *out, struct api_error *e) MUST_USE;
void tokenize_free(struct tokenize_request *r);
enum status tokenize_parse_ids(const char *text, size_t n, const struct completion_rules *rules,
                               struct detokenize_request *out, struct api_error *e) MUST_USE;
void tokenize_free_ids(struct detokenize_request *r);

/* names NULL: "token_strs": null. */
void tokenize_reply(const int32_t *ids, int32_t count, int32_t max_model_len,
                    const struct logprobs_names *names, struct buf *out);
void tokenize_reply_text(const char *text, size_t n, struct buf *out);

struct field_set tokenize_fields(int32_t vocab);
struct field_set tokenize_id_fields(int32_t vocab);
void tokenize_schema(int32_t vocab, struct buf *out);
void tokenize_id_schema(int32_t vocab, struct buf *out);

#endif
