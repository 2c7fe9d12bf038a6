/* POST /v1/completions: bytes to a checked request. Pure: no clock, no log, no tokenizer. */
#ifndef TESSERA_SERVER_API_COMPLETION_H
#define TESSERA_SERVER_API_COMPLETION_H

#include "config/base.h"
#include "config/jdoc.h"
#include "config/model_config.h"
#include "server/api/api_error.h"

#define COMPLETION_PROMPTS_MAX 64
#define COMPLETION_N_MAX 8
#define COMPLETION_STOP_MAX 16
#define COMPLETION_STOP_BYTES_MAX 256
#define COMPLETION_UNKNOWN_MAX 4

/* What the server is, as far as a request must fit it. */
struct completion_rules {
    const char *model_name;
    int32_t vocab, max_model_len;
    bool has_tokenizer;
    struct generation_defaults defaults;
};

struct completion_text {
    const char *bytes; /* borrowed from the request's document; NUL-terminated */
    size_t len;
};

/* Either text, or count ids. Ids are owned. */
struct completion_prompt {
    struct completion_text text;
    int32_t *ids;
    int32_t count;
};

struct completion_request {
    struct jdoc *doc; /* owns all text below */
    struct completion_prompt *prompts;
    int32_t prompt_count;
    struct completion_text stop[COMPLETION_STOP_MAX];
    int32_t stop_count;
    int32_t max_tokens; /* 0: nothing is generated */
    int32_t n;
    float temperature, top_p, min_p;
    int32_t top_k; /* 0: off */
    bool has_seed;
    uint64_t seed;
    bool stream, include_usage, ignore_eos, return_token_ids, add_special_tokens;
    /* fields nobody knows: ignored, and worth one line in the log */
    char unknown[COMPLETION_UNKNOWN_MAX][48];
    int32_t unknown_count;
};

/* On failure (ERR_INPUT, ERR_NOMEM) *e says why and *out is untouched. The bytes may go away. */
enum status completion_parse(const char *text, size_t n, const struct completion_rules *rules,
                             struct completion_request *out, struct api_error *e) MUST_USE;
/* Room for prompt and answer? ERR_INPUT with code context_length_exceeded, in the words that
 * clients look for. */
enum status completion_check_length(const struct completion_request *r, int32_t prompt_tokens,
                                    int32_t max_model_len, struct api_error *e) MUST_USE;
/* The same for text that is too long to be worth tokenizing: it has at least tokens_min tokens. */
enum status completion_check_bytes(const struct completion_request *r, size_t tokens_min,
                                   int32_t max_model_len, struct api_error *e) MUST_USE;
/* Frees the document: texts of prompts and stop strings are gone, ids stay. */
void completion_forget_text(struct completion_request *r);
void completion_free(struct completion_request *r); /* zeroed memory is fine */

#endif
