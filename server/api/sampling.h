/* The fields that all routes which answer with text have in common: how tokens are chosen, where an
 * answer ends, how it is sent. Pure. */
#ifndef TESSERA_SERVER_API_SAMPLING_H
#define TESSERA_SERVER_API_SAMPLING_H

#include "server/api/completion.h"
#include "server/api/response_format.h"

/* What the rows store into. */
struct sampling {
    struct field_string model, cache_salt;
    const struct jdoc *stop, *bad_words, *stop_token_ids, *logit_bias;
    int64_t max_tokens, min_tokens, n, top_k, seed, prompt_logprobs;
    int64_t truncate_prompt_tokens, priority;
    double temperature, top_p, min_p;
    double presence_penalty, frequency_penalty, repetition_penalty;
    bool stream, include_usage, continuous_usage_stats;
    bool ignore_eos, include_stop_str_in_output, skip_special_tokens;
    bool return_token_ids, return_tokens_as_token_ids;
    struct response_format format;
};

struct field_rows sampling_rows(size_t base);
/* Without those that /v1/responses and /v1/messages have rows of their own for, or refuse: n,
 * prompt_logprobs, return_token_ids, stream_options, response_format, metadata, store. */
struct field_rows sampling_rows_of_one(size_t base);
/* Order: the request, then the model's generation_config.json, then OpenAI's. max_tokens and
 * whatever else is not the same for all requests is the caller's. */
struct sampling sampling_defaults(const struct generation_defaults *d);
/* What rows cannot say, of two fields or of the model. ERR_INPUT. */
enum status sampling_check(const struct sampling *s, const struct jdoc *doc,
                           const struct completion_rules *rules, struct api_error *e) MUST_USE;
/* Into *r, whose doc is set. ERR_INPUT. */
enum status sampling_convert(const struct sampling *s, const struct completion_rules *rules,
                             struct completion_request *r, struct api_error *e) MUST_USE;

#endif
