/* POST /v1/completions: bytes to a checked request; chat.h makes the same of messages. Pure: no
 * clock, no log, no tokenizer. */
#ifndef TESSERA_SERVER_API_COMPLETION_H
#define TESSERA_SERVER_API_COMPLETION_H

#include "config/base.h"
#include "config/jdoc.h"
#include "config/model_config.h"
#include "engine/engine.h"
#include "server/answer/answer.h"
#include "server/api/api_error.h"
#include "server/api/field.h"
#include "server/grammar/structure.h"

#define COMPLETION_PROMPTS_MAX 2048
#define COMPLETION_N_MAX 128
#define COMPLETION_STOP_MAX 16
#define COMPLETION_BAD_WORDS_MAX 64
#define COMPLETION_SALT_BYTES_MAX 64
/* Logprobs of prompts in one answer: some 150 MB of JSON. */
#define COMPLETION_SCORES_MAX (1 << 22)

/* What the server is, as far as a request must fit it. */
struct completion_rules {
    const char *const *model_names; /* the first is the one that answers carry */
    int32_t model_name_count;
    int32_t vocab, max_model_len;
    int32_t choices_max; /* of one request, all prompts together; 0: as many as fields allow */
    int64_t tokens_max;  /* of their prompts, if there are several; 0: any number */
    bool has_tokenizer;
    int32_t columns;           /* of the vectors that this model gives; 0: it makes texts */
    bool normalizes;           /* they have length 1 unless a request says otherwise */
    struct answer_form answer; /* how the model answers in a chat */
    struct generation_defaults defaults;
    uint64_t salt_key; /* random: no client can aim at the hash of another's cache_salt */
};

/* Either text, or count ids. Ids are owned. */
struct completion_prompt {
    struct field_string text; /* borrowed from the request's document */
    int32_t *ids;
    int32_t count;
    int32_t own_begin, own_end; /* with echo: ids that came from the text, not added around it */
    int32_t after;              /* of a vector's text: how many of the last ids were added to it */
};

/* What of a vector is wanted. */
struct completion_vector {
    int32_t dimensions; /* its first numbers; 0: all */
    bool normalize;     /* then divided by their length */
    bool base64;        /* written as the bytes of floats, little-endian */
};

struct completion_request {
    struct jdoc *doc;   /* owns all text below */
    const char *source; /* the field that the prompt came from */
    struct completion_prompt *prompts;
    int32_t prompt_count;
    struct field_string stop[COMPLETION_STOP_MAX], bad_words[COMPLETION_BAD_WORDS_MAX];
    int32_t stop_count, bad_word_count;
    int32_t n;
    int32_t logprobs, prompt_logprobs; /* how many best ones go to the client; -1: none at all */
    bool fills_context; /* max_tokens: all that is left; completion_fill says how many */
    /* A max_tokens that does not fit is as much as does; completion_fill says if that was so. */
    bool caps_answer, capped;
    int32_t truncate; /* so many of a prompt's last tokens are kept; -1: what fits; 0: all */
    bool has_seed, echo, stream, include_usage, continuous_usage, include_stop, skip_special;
    bool return_token_ids, tokens_as_ids, add_special_tokens;
    bool parse_special; /* control tokens that a prompt, or a bad word, spells out are these */
    struct answer_form answer; /* of a chat */
    struct buf answer_begin;   /* what the prompt ends with for it; empty: nothing */
    struct buf call_types;     /* answer.types */
    struct buf prediction;     /* what it will mostly say; empty: nobody knows */
    int32_t *prediction_ids, prediction_count; /* the same */
    struct structure structure;
    /* What is borrowed from beside doc; NULL: nothing. own_tools: tools and the choice of one, as
     * chat has them, of a request that says it otherwise. */
    struct jdoc *own_schema, *own_tools;
    struct completion_vector vector; /* params.pooled */
    struct buf repeated; /* what the answer says again of the request, as members of an object */
    /* for the engine: completion_params. A guide is a reference that is ours. */
    struct request_params params;
    struct token_bias bias[ENGINE_BIAS_MAX];
    int32_t stop_ids[ENGINE_STOP_IDS_MAX];
    int32_t bad_ids[ENGINE_BAD_IDS_MAX], bad_ends[ENGINE_BAD_IDS_MAX]; /* completion_forbid */
    struct field_unknown unknown;
};

/* On failure (ERR_INPUT, ERR_NOMEM) *e says why and *out is untouched. The bytes may go away. */
enum status completion_parse(const char *text, size_t n, const struct completion_rules *rules,
                             struct completion_request *out, struct api_error *e) MUST_USE;
/* What the engine is asked; still to be set: client, choice, and seed unless has_seed. Points into
 * *r. */
struct request_params completion_params(const struct completion_request *r);
/* What of the cache a request shares, by its own words; nothing: what all have. */
uint64_t completion_salt(const struct completion_rules *rules, const struct field_string *salt);
/* One more sequence of tokens that may not be produced. ERR_INPUT when there are too many. */
enum status completion_forbid(struct completion_request *r, const int32_t *ids, int32_t count,
                              struct api_error *e) MUST_USE;
/* More answers than can ever wait are no matter of trying again. */
enum status completion_check_choices(const struct completion_request *r,
                                     const struct completion_rules *rules,
                                     struct api_error *e) MUST_USE;
/* The same of prompt tokens, once all prompts are tokens. */
enum status completion_check_tokens(const struct completion_request *r,
                                    const struct completion_rules *rules,
                                    struct api_error *e) MUST_USE;
/* Drops the texts: the document and what points into it. Ids stay. */
void completion_forget_text(struct completion_request *r);
void completion_free(struct completion_request *r); /* zeroed memory is fine */

/* The rows, and their schema, for GET /openapi.json. */
struct field_set completion_fields(int32_t vocab);
void completion_schema(const struct completion_rules *rules, struct buf *out);
/* 404 unless the name is absent or one that is served. */
enum status completion_check_model(const struct completion_rules *rules,
                                   const struct field_string *name, struct api_error *e) MUST_USE;

/* ---- prompts (completion_prompt.c) ---- */

/* One of the four forms into r->prompts. */
enum status completion_prompt_parse(const struct jdoc *v, const struct completion_rules *rules,
                                    struct completion_request *r, struct api_error *e) MUST_USE;
/* Truncates the ids if the request says so, then: is there room for prompt and answer? ERR_INPUT
 * with code context_length_exceeded, in the words that clients look for. */
enum status completion_prompt_fit(const struct completion_request *r, struct completion_prompt *p,
                                  int32_t max_model_len, struct api_error *e) MUST_USE;
/* Once prompt 0 is tokens that fit: sets max_tokens where the request leaves it open, or caps it.
 * ERR_INPUT: there is less room than min_tokens. */
enum status completion_fill(struct completion_request *r, int32_t max_model_len,
                            struct api_error *e) MUST_USE;
/* Once all prompts are tokens: are their logprobs few enough to answer with? */
enum status completion_prompt_check_scores(const struct completion_request *r,
                                           struct api_error *e) MUST_USE;
/* The same as fit for text that is too long to be worth tokenizing: it has at least tokens_min
 * tokens. */
enum status completion_prompt_fit_text(const struct completion_request *r, size_t tokens_min,
                                       int32_t max_model_len, struct api_error *e) MUST_USE;

#endif
