/* DESIGN: rows decide about every field that has a type and a range; what depends on two fields, on
 * the model or on the forms of `prompt` is checked after them. A field that OpenAI or vLLM know and
 * we do not honour is refused unless it asks for nothing: an option accepted and ignored is a wrong
 * answer nobody sees. */
#include "server/api/completion.h"

#include "server/api/body.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What the rows store into. */
struct raw {
    struct field_string model, cache_salt;
    const struct jdoc *prompt, *stop, *bad_words, *stop_token_ids, *logit_bias;
    int64_t max_tokens, min_tokens, n, best_of, top_k, seed, logprobs, prompt_logprobs;
    int64_t truncate_prompt_tokens, priority;
    double temperature, top_p, min_p;
    double presence_penalty, frequency_penalty, repetition_penalty;
    bool stream, include_usage, continuous_usage_stats;
    bool echo, ignore_eos, include_stop_str_in_output, skip_special_tokens;
    bool add_special_tokens, return_token_ids, return_tokens_as_token_ids;
};

#define AT(member) .offset = offsetof(struct raw, member)
#define INT(field, low, high)                                                                      \
    {                                                                                              \
        .name = #field, .kind = FIELD_INT, .int_min = (low), .int_max = (high), AT(field)          \
    }
#define OPTIONAL_INT(field, low, high)                                                             \
    {                                                                                              \
        .name = #field, .kind = FIELD_INT, .int_min = (low), .int_max = (high),                    \
        .no_default = true, AT(field)                                                              \
    }
#define NUMBER(field, low, high, open)                                                             \
    {                                                                                              \
        .name = #field, .kind = FIELD_NUMBER, .min = (low), .max = (high), .above_min = (open),    \
        AT(field)                                                                                  \
    }
#define BOOL(field)                                                                                \
    {                                                                                              \
        .name = #field, .kind = FIELD_BOOL, AT(field)                                              \
    }
#define LIST(field, field_kind, count)                                                             \
    {                                                                                              \
        .name = #field, .kind = (field_kind), .int_max = (count), AT(field)                        \
    }
#define STRING(field, low, high)                                                                   \
    {                                                                                              \
        .name = #field, .kind = FIELD_STRING, .int_min = (low), .int_max = (high), AT(field)       \
    }
#define UNSUPPORTED(field, field_kind, nothing)                                                    \
    {                                                                                              \
        .name = #field, .kind = (field_kind), .use = FIELD_UNSUPPORTED, .int_min = INT64_MIN,      \
        .int_max = INT64_MAX, .min = -HUGE_VAL, .max = HUGE_VAL, .neutral = (nothing)              \
    }
#define IGNORED(field)                                                                             \
    {                                                                                              \
        .name = #field, .use = FIELD_IGNORED                                                       \
    }

static const struct field stream_rows[] = {
    BOOL(include_usage),
    BOOL(continuous_usage_stats),
    IGNORED(include_obfuscation),
};

static const struct field format_rows[] = {
    {.name = "type",
     .kind = FIELD_STRING,
     .use = FIELD_UNSUPPORTED,
     .int_max = 64,
     .required = true,
     .neutral_text = "text"},
};

static const struct field rows[] = {
    STRING(model, 0, 1024),
    {.name = "prompt",
     .kind = FIELD_PROMPT,
     .int_max = COMPLETION_PROMPTS_MAX,
     .required = true,
     AT(prompt)},
    INT(max_tokens, 0, INT32_MAX),
    INT(min_tokens, 0, INT32_MAX),
    INT(n, 1, COMPLETION_N_MAX),
    OPTIONAL_INT(best_of, 1, COMPLETION_N_MAX),
    NUMBER(temperature, 0, 2, false),
    NUMBER(top_p, 0, 1, true),
    NUMBER(min_p, 0, 1, false),
    INT(top_k, -1, INT32_MAX),
    NUMBER(presence_penalty, -2, 2, false),
    NUMBER(frequency_penalty, -2, 2, false),
    NUMBER(repetition_penalty, 0, 100, true),
    OPTIONAL_INT(seed, INT64_MIN, INT64_MAX),
    {.name = "logit_bias",
     .kind = FIELD_BIAS,
     .int_max = ENGINE_BIAS_MAX,
     .min = -100,
     .max = 100,
     AT(logit_bias)},
    LIST(bad_words, FIELD_STRINGS, COMPLETION_BAD_WORDS_MAX),
    LIST(stop, FIELD_STRINGS, COMPLETION_STOP_MAX),
    LIST(stop_token_ids, FIELD_TOKENS, ENGINE_STOP_IDS_MAX),
    BOOL(ignore_eos),
    BOOL(include_stop_str_in_output),
    BOOL(skip_special_tokens),
    BOOL(add_special_tokens),
    OPTIONAL_INT(truncate_prompt_tokens, -1, INT32_MAX),
    BOOL(echo),
    OPTIONAL_INT(logprobs, 0, ENGINE_LOGPROBS_MAX),
    OPTIONAL_INT(prompt_logprobs, 0, ENGINE_LOGPROBS_MAX),
    BOOL(return_token_ids),
    BOOL(return_tokens_as_token_ids),
    BOOL(stream),
    {.name = "stream_options",
     .kind = FIELD_OBJECT,
     .members = stream_rows,
     .member_count = ARRAY_LEN(stream_rows)},
    INT(priority, INT32_MIN, INT32_MAX),
    STRING(cache_salt, 1, COMPLETION_SALT_BYTES_MAX),
    {.name = "response_format",
     .kind = FIELD_OBJECT,
     .members = format_rows,
     .member_count = ARRAY_LEN(format_rows)},
    UNSUPPORTED(suffix, FIELD_STRING, 0),
    UNSUPPORTED(structured_outputs, FIELD_OBJECT, 0),
    UNSUPPORTED(guided_json, FIELD_ANY, NAN),
    UNSUPPORTED(guided_regex, FIELD_STRING, 0),
    UNSUPPORTED(guided_grammar, FIELD_STRING, 0),
    UNSUPPORTED(guided_choice, FIELD_ARRAY, 0),
    UNSUPPORTED(prompt_embeds, FIELD_ANY, NAN),
    UNSUPPORTED(allowed_token_ids, FIELD_ARRAY, 0),
    UNSUPPORTED(logits_processors, FIELD_ARRAY, 0),
    UNSUPPORTED(kv_transfer_params, FIELD_OBJECT, 0),
    UNSUPPORTED(use_beam_search, FIELD_BOOL, 0),
    UNSUPPORTED(length_penalty, FIELD_NUMBER, 1),
    UNSUPPORTED(typical_p, FIELD_NUMBER, 1),
    UNSUPPORTED(spaces_between_special_tokens, FIELD_BOOL, 1),
    IGNORED(user),
    IGNORED(metadata),
    IGNORED(store),
    IGNORED(service_tier),
    IGNORED(safety_identifier),
    IGNORED(prompt_cache_key),
};

struct field_set completion_fields(int32_t vocab)
{
    return (struct field_set){rows, ARRAY_LEN(rows), vocab};
}

/* Order: the request, then the model's generation_config.json, then OpenAI's. */
static struct raw defaults_of(const struct generation_defaults *d)
{
    return (struct raw){
        .max_tokens = 16,
        .n = 1,
        .best_of = -1,
        .logprobs = -1,
        .prompt_logprobs = -1,
        .top_k = d->top_k > 0 ? d->top_k : 0,
        .temperature = isnan(d->temperature) ? 1 : (double)d->temperature,
        .top_p = isnan(d->top_p) ? 1 : (double)d->top_p,
        .min_p = isnan(d->min_p) ? 0 : (double)d->min_p,
        .repetition_penalty = isnan(d->repetition_penalty) ? 1 : (double)d->repetition_penalty,
        .skip_special_tokens = true,
        .add_special_tokens = true,
    };
}

void completion_schema(const struct completion_rules *rules, struct buf *out)
{
    const struct field_set set = completion_fields(rules->vocab);
    const struct raw raw = defaults_of(&rules->defaults);
    field_schema(&set, &raw, out);
}

/* ---- what rows cannot say ---- */

enum status completion_check_model(const struct completion_rules *rules,
                                   const struct field_string *name, struct api_error *e)
{
    for (int32_t i = 0; i < rules->model_name_count; i++)
        if (!name->bytes || field_string_is(name, rules->model_names[i]))
            return OK;
    enum status st =
        api_error_set(e, 404, "model_not_found",
                      "the model \"%.200s\" does not exist; this server has \"%.200s\"",
                      name->bytes, rules->model_names[0]);
    snprintf(e->param, sizeof e->param, "model");
    return st;
}

static enum status check_together(const struct raw *raw, const struct jdoc *doc,
                                  const struct completion_rules *rules, struct api_error *e)
{
    if (raw->best_of >= 0 && raw->best_of != raw->n) {
        enum status st =
            api_error_field(e, "best_of", "best_of is not supported unless equal to n");
        e->code = "unsupported_parameter";
        return st;
    }
    if (!raw->stream && jdoc_get_value(doc, "stream_options"))
        return api_error_field(e, "stream_options", "stream_options needs \"stream\": true");
    if (raw->stream && raw->prompt_logprobs >= 0)
        return api_error_field(e, "prompt_logprobs",
                               "prompt_logprobs is not possible with \"stream\": true");
    if (raw->min_tokens > raw->max_tokens)
        return api_error_field(e, "min_tokens",
                               "min_tokens must be at most max_tokens (%lld), got %lld",
                               (long long)raw->max_tokens, (long long)raw->min_tokens);
    if (raw->truncate_prompt_tokens == 0 && jdoc_get_value(doc, "truncate_prompt_tokens"))
        return api_error_field(e, "truncate_prompt_tokens",
                               "truncate_prompt_tokens must be -1 or at least 1, got 0");
    if (raw->stop && !rules->has_tokenizer)
        return api_error_field(e, "stop", "stop needs text: this model came without a tokenizer");
    if (raw->bad_words && !rules->has_tokenizer)
        return api_error_field(e, "bad_words",
                               "bad_words needs text: this model came without a tokenizer");
    return completion_check_model(rules, &raw->model, e);
}

/* ---- the request ---- */

static void convert_params(const struct raw *raw, struct request_params *p)
{
    *p = request_params_default();
    p->max_tokens = (int32_t)raw->max_tokens;
    p->min_tokens = (int32_t)raw->min_tokens;
    /* below this a division by it overflows; vLLM draws the same line */
    p->temperature = raw->temperature < 1e-5 ? 0 : (float)raw->temperature;
    p->top_p = fmaxf((float)raw->top_p, 1e-30f);
    p->min_p = (float)raw->min_p;
    p->top_k = raw->top_k > 0 ? (int32_t)raw->top_k : 0;
    p->presence_penalty = (float)raw->presence_penalty;
    p->frequency_penalty = (float)raw->frequency_penalty;
    p->repetition_penalty = fmaxf((float)raw->repetition_penalty, 1e-6f);
    p->seed = (uint64_t)raw->seed;
    p->ignore_eos = raw->ignore_eos;
    p->logprobs = (int32_t)raw->logprobs;
    p->prompt_logprobs = (int32_t)raw->prompt_logprobs;
    if (raw->echo && p->prompt_logprobs < p->logprobs) /* both are cut from the longer list */
        p->prompt_logprobs = p->logprobs;
    p->priority = (int32_t)raw->priority;
}

static void convert(const struct raw *raw, struct completion_request *r)
{
    convert_params(raw, &r->params);
    r->n = (int32_t)raw->n;
    r->logprobs = (int32_t)raw->logprobs;
    r->prompt_logprobs = (int32_t)raw->prompt_logprobs;
    r->truncate = (int32_t)raw->truncate_prompt_tokens;
    r->has_seed = jdoc_get_value(r->doc, "seed") != NULL;
    r->echo = raw->echo;
    r->stream = raw->stream;
    r->include_usage = raw->include_usage;
    r->continuous_usage = raw->include_usage && raw->continuous_usage_stats;
    r->include_stop = raw->include_stop_str_in_output;
    r->skip_special = raw->skip_special_tokens;
    r->return_token_ids = raw->return_token_ids;
    r->tokens_as_ids = raw->return_tokens_as_token_ids;
    r->add_special_tokens = raw->add_special_tokens;
}

/* A string or a list of them, which the row has checked. */
static int32_t list_strings(const struct jdoc *v, struct field_string *out)
{
    if (!v)
        return 0;
    bool list = jdoc_type(v) == JDOC_ARRAY;
    int32_t count = list ? (int32_t)jdoc_size(v) : 1;
    for (int32_t i = 0; i < count; i++) {
        const struct jdoc *s = list ? jdoc_at(v, (size_t)i) : v;
        out[i] = (struct field_string){jdoc_string(s), jdoc_string_len(s)};
    }
    return count;
}

static enum status list_tokens(const struct raw *raw, int32_t vocab, struct completion_request *r,
                               struct api_error *e)
{
    const char *key;
    const struct jdoc *value;
    if (raw->logit_bias)
        for (void *i = jdoc_iter(raw->logit_bias, NULL, &key, &value); i;
             i = jdoc_iter(raw->logit_bias, i, &key, &value)) {
            struct token_bias *b = &r->bias[r->params.bias_count];
            b->value = (float)jdoc_number(value);
            if (field_token_key(key, vocab, &b->token))
                r->params.bias_count++;
        }
    if (!raw->stop_token_ids)
        return OK;
    r->params.stop_id_count = (int32_t)jdoc_size(raw->stop_token_ids);
    return field_tokens("stop_token_ids", raw->stop_token_ids, ENGINE_STOP_IDS_MAX, vocab,
                        r->stop_ids, e);
}

/* More than can ever wait is no matter of trying again. */
static enum status check_choices(const struct completion_request *r,
                                 const struct completion_rules *rules, struct api_error *e)
{
    const int32_t choices = r->prompt_count * r->n;
    if (rules->choices_max == 0 || choices <= rules->choices_max)
        return OK;
    return api_error_field(e, r->n > 1 ? "n" : "prompt",
                           "prompt and n ask for %d answers at once, this server takes at most %d",
                           choices, rules->choices_max);
}

enum status completion_parse(const char *text, size_t n, const struct completion_rules *rules,
                             struct completion_request *out, struct api_error *e)
{
    enum status st = OK;
    const struct field_set set = completion_fields(rules->vocab);
    struct completion_request r = {0};
    struct raw raw = defaults_of(&rules->defaults);
    TRY(body_parse(text, n, &r.doc, e));
    TRY(field_apply(&set, r.doc, &raw, &r.unknown, e));
    TRY(check_together(&raw, r.doc, rules, e));
    convert(&raw, &r);
    r.stop_count = list_strings(raw.stop, r.stop);
    r.bad_word_count = list_strings(raw.bad_words, r.bad_words);
    if (raw.cache_salt.bytes)
        r.params.cache_salt = base_hash(rules->salt_key, raw.cache_salt.bytes, raw.cache_salt.len);
    TRY(list_tokens(&raw, rules->vocab, &r, e));
    TRY(completion_prompt_parse(raw.prompt, rules, &r, e));
    TRY(check_choices(&r, rules, e));
    *out = r;
    return OK;
out:
    completion_free(&r);
    if (st == ERR_NOMEM)
        api_error_from_status(e, st, &(struct err){""});
    return st;
}

struct request_params completion_params(const struct completion_request *r)
{
    struct request_params p = r->params;
    p.bias = r->bias;
    p.stop_ids = r->stop_ids;
    p.bad_ids = r->bad_ids;
    p.bad_ends = r->bad_ends;
    return p;
}

enum status completion_forbid(struct completion_request *r, const int32_t *ids, int32_t count,
                              struct api_error *e)
{
    int32_t *words = &r->params.bad_count;
    int32_t used = *words > 0 ? r->bad_ends[*words - 1] : 0;
    if (count > ENGINE_BAD_IDS_MAX - used)
        return api_error_field(e, "bad_words", "bad_words may have at most %d tokens in all",
                               ENGINE_BAD_IDS_MAX);
    memcpy(r->bad_ids + used, ids, (size_t)count * sizeof *ids);
    r->bad_ends[(*words)++] = used + count;
    return OK;
}

void completion_forget_text(struct completion_request *r)
{
    for (int32_t i = 0; i < r->prompt_count; i++)
        r->prompts[i].text = (struct field_string){NULL, 0};
    r->stop_count = r->bad_word_count = 0;
    jdoc_close(r->doc);
    r->doc = NULL;
}

void completion_free(struct completion_request *r)
{
    for (int32_t i = 0; i < r->prompt_count; i++)
        free(r->prompts[i].ids);
    free(r->prompts);
    if (r->doc)
        jdoc_close(r->doc);
    *r = (struct completion_request){0};
}
