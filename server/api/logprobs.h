/* Log-probabilities of a row of tokens: collected as they come, written as OpenAI's objects for
 * completions and for chat, or as vLLM's prompt_logprobs. Used by one thread at a time. */
#ifndef TESSERA_SERVER_API_LOGPROBS_H
#define TESSERA_SERVER_API_LOGPROBS_H

#include "config/buf.h"
#include "engine/engine.h"
#include "server/tokenizer/tokenizer.h"

struct logprobs {
    struct buf entries, tops;
};

/* How tokens are spelt in an answer. */
struct logprobs_names {
    const struct tokenizer *tokenizer; /* NULL: as ids */
    bool as_ids;                       /* "token_id:123" */
};

void logprobs_init(struct logprobs *l, size_t bytes_max);
void logprobs_free(struct logprobs *l);
void logprobs_clear(struct logprobs *l); /* keeps the memory */
int32_t logprobs_count(const struct logprobs *l);
bool logprobs_failed(const struct logprobs *l);

/* The next token. offset: characters of the answer's text before it. */
void logprobs_add(struct logprobs *l, int32_t token, int32_t offset);
/* What is known of token i: its own and the best ones, descending. Without it: null. */
void logprobs_score(struct logprobs *l, int32_t i, float logprob, const struct token_top *top,
                    int32_t top_count);

/* A token's text as a JSON string; one without text of its own is spelt "token_id:123". */
void logprobs_write_name(const struct logprobs_names *names, int32_t token, struct buf *out);
/* {"tokens":[],"token_logprobs":[],"top_logprobs":[],"text_offset":[]} over the lists one after the
 * other; of each token its own and its k best. Equal floats print equally, and -inf as -9999.0. */
void logprobs_write(const struct logprobs *const *lists, int32_t list_count, int32_t k,
                    const struct logprobs_names *names, struct buf *out);
/* {"content":[{"token","logprob","bytes","top_logprobs":[the same three of each of the k best]}]}
 */
void logprobs_write_chat(const struct logprobs *l, int32_t k, const struct logprobs_names *names,
                         struct buf *out);
/* The same without what is around the tokens. no_bytes: what "bytes" of a token without text is. */
void logprobs_write_items(const struct logprobs *l, int32_t k, const struct logprobs_names *names,
                          const char *no_bytes, struct buf *out);
/* [null, {"ID":{"logprob","rank","decoded_token"}, ...}, ...] */
void logprobs_write_prompt(const struct logprobs *l, int32_t k, const struct logprobs_names *names,
                           struct buf *out);

#endif
