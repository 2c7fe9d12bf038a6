/* DESIGN: one table for the fields that several kinds of requests have, so that none of them can be
 * checked in one place and forgotten in another. What a kind has of its own (prompts or messages,
 * echo, the form of logprobs) is in its own table. A field that OpenAI or vLLM know and we do not
 * honour is refused unless it asks for nothing: an option accepted and ignored is a wrong answer
 * nobody sees. */
#include "server/api/sampling.h"

#define AT(member) .offset = offsetof(struct sampling, member)
#include "server/api/field_row.h"

static const struct field stream_rows[] = {
    BOOL(include_usage),
    BOOL(continuous_usage_stats),
    IGNORED(include_obfuscation),
};

#define SCHEMA(field, member)                                                                      \
    {                                                                                              \
        .name = (field), .kind = FIELD_ANY,                                                        \
        .schema = "\"type\":[\"object\",\"boolean\",\"string\",\"null\"]", AT(member)              \
    }
#define PATTERN(field, member)                                                                     \
    {                                                                                              \
        .name = (field), .kind = FIELD_STRING, .int_min = 1,                                       \
        .int_max = RESPONSE_FORMAT_PATTERN_BYTES_MAX, AT(member)                                   \
    }
#define CHOICES(field, member)                                                                     \
    {                                                                                              \
        .name = (field), .kind = FIELD_ARRAY, AT(member)                                           \
    }

static const struct field json_schema_rows[] = {
    IGNORED(name),
    IGNORED(description),
    IGNORED(strict), /* always */
    SCHEMA("schema", format.schema),
};

static const struct field format_rows[] = {
    {.name = "type",
     .kind = FIELD_CHOICE,
     .choices = "text|json_object|json_schema",
     .required = true,
     AT(format.type)},
    {.name = "json_schema",
     .kind = FIELD_OBJECT,
     .members = json_schema_rows,
     .member_count = ARRAY_LEN(json_schema_rows)},
    SCHEMA("schema", format.object_schema),
};

static const struct field structured_rows[] = {
    SCHEMA("json", format.json),
    {.name = "json_object", .kind = FIELD_BOOL, AT(format.json_object)},
    PATTERN("regex", format.regex),
    CHOICES("choice", format.choice),
    UNSUPPORTED(grammar, FIELD_STRING, 0),
    UNSUPPORTED(structural_tag, FIELD_ANY, NAN),
    UNSUPPORTED(whitespace_pattern, FIELD_STRING, 0),
    UNSUPPORTED(disable_additional_properties, FIELD_BOOL, 0),
    IGNORED(disable_fallback),
    IGNORED(disable_any_whitespace), /* there is little of it */
};

enum { CHOICES_ROWS = 7 };

static const struct field rows[] = {
    STRING(model, 0, 1024),
    INT(min_tokens, 0, INT32_MAX),
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
    OPTIONAL_INT(truncate_prompt_tokens, -1, INT32_MAX),
    BOOL(return_tokens_as_token_ids),
    BOOL(stream),
    INT(priority, INT32_MIN, INT32_MAX),
    STRING(cache_salt, 1, COMPLETION_SALT_BYTES_MAX),
    {.name = "structured_outputs",
     .kind = FIELD_OBJECT,
     .members = structured_rows,
     .member_count = ARRAY_LEN(structured_rows)},
    SCHEMA("guided_json", format.guided_json),
    PATTERN("guided_regex", format.guided_regex),
    CHOICES("guided_choice", format.guided_choice),
    UNSUPPORTED(guided_grammar, FIELD_STRING, 0),
    UNSUPPORTED(guided_whitespace_pattern, FIELD_STRING, 0),
    IGNORED(guided_decoding_backend),
    UNSUPPORTED(prompt_embeds, FIELD_ANY, NAN),
    UNSUPPORTED(allowed_token_ids, FIELD_ARRAY, 0),
    UNSUPPORTED(logits_processors, FIELD_ARRAY, 0),
    UNSUPPORTED(kv_transfer_params, FIELD_OBJECT, 0),
    UNSUPPORTED(use_beam_search, FIELD_BOOL, 0),
    UNSUPPORTED(length_penalty, FIELD_NUMBER, 1),
    UNSUPPORTED(typical_p, FIELD_NUMBER, 1),
    UNSUPPORTED(spaces_between_special_tokens, FIELD_BOOL, 1),
    IGNORED(user),
    IGNORED(service_tier),
    IGNORED(safety_identifier),
    IGNORED(prompt_cache_key),
    /* CHOICES_ROWS: what answers of choices have, or spell in their own way */
    INT(n, 1, COMPLETION_N_MAX),
    OPTIONAL_INT(prompt_logprobs, 0, ENGINE_LOGPROBS_MAX),
    BOOL(return_token_ids),
    {.name = "stream_options",
     .kind = FIELD_OBJECT,
     .members = stream_rows,
     .member_count = ARRAY_LEN(stream_rows)},
    {.name = "response_format",
     .kind = FIELD_OBJECT,
     .members = format_rows,
     .member_count = ARRAY_LEN(format_rows)},
    IGNORED(metadata),
    IGNORED(store),
};

struct field_rows sampling_rows(size_t base)
{
    return (struct field_rows){rows, ARRAY_LEN(rows), base};
}

struct field_rows sampling_rows_of_one(size_t base)
{
    return (struct field_rows){rows, ARRAY_LEN(rows) - CHOICES_ROWS, base};
}

struct sampling sampling_defaults(const struct generation_defaults *d)
{
    return (struct sampling){
        .n = 1,
        .prompt_logprobs = -1,
        .top_k = d->top_k > 0 ? d->top_k : 0,
        .temperature = isnan(d->temperature) ? 1 : (double)d->temperature,
        .top_p = isnan(d->top_p) ? 1 : (double)d->top_p,
        .min_p = isnan(d->min_p) ? 0 : (double)d->min_p,
        .repetition_penalty = isnan(d->repetition_penalty) ? 1 : (double)d->repetition_penalty,
        .skip_special_tokens = true,
    };
}

/* ---- what rows cannot say ---- */

enum status sampling_check(const struct sampling *s, const struct jdoc *doc,
                           const struct completion_rules *rules, struct api_error *e)
{
    if (!s->stream && jdoc_get_value(doc, "stream_options"))
        return api_error_field(e, "stream_options", "stream_options needs \"stream\": true");
    if (s->stream && s->prompt_logprobs >= 0)
        return api_error_field(e, "prompt_logprobs",
                               "prompt_logprobs is not possible with \"stream\": true");
    if (s->min_tokens > s->max_tokens)
        return api_error_field(e, "min_tokens",
                               "min_tokens must be at most max_tokens (%lld), got %lld",
                               (long long)s->max_tokens, (long long)s->min_tokens);
    if (s->truncate_prompt_tokens == 0 && jdoc_get_value(doc, "truncate_prompt_tokens"))
        return api_error_field(e, "truncate_prompt_tokens",
                               "truncate_prompt_tokens must be -1 or at least 1, got 0");
    if (s->stop && !rules->has_tokenizer)
        return api_error_field(e, "stop", "stop needs text: this model came without a tokenizer");
    if (s->bad_words && !rules->has_tokenizer)
        return api_error_field(e, "bad_words",
                               "bad_words needs text: this model came without a tokenizer");
    return completion_check_model(rules, &s->model, e);
}

/* ---- the request ---- */

static void convert_params(const struct sampling *s, struct request_params *p)
{
    *p = request_params_default();
    p->max_tokens = (int32_t)s->max_tokens;
    p->min_tokens = (int32_t)s->min_tokens;
    /* below this a division by it overflows; vLLM draws the same line */
    p->temperature = s->temperature < 1e-5 ? 0 : (float)s->temperature;
    p->top_p = fmaxf((float)s->top_p, 1e-30f);
    p->min_p = (float)s->min_p;
    p->top_k = s->top_k > 0 ? (int32_t)s->top_k : 0;
    p->presence_penalty = (float)s->presence_penalty;
    p->frequency_penalty = (float)s->frequency_penalty;
    p->repetition_penalty = fmaxf((float)s->repetition_penalty, 1e-6f);
    p->seed = (uint64_t)s->seed;
    p->ignore_eos = s->ignore_eos;
    p->prompt_logprobs = (int32_t)s->prompt_logprobs;
    p->priority = (int32_t)s->priority;
}

static void convert(const struct sampling *s, struct completion_request *r)
{
    convert_params(s, &r->params);
    r->n = (int32_t)s->n;
    r->prompt_logprobs = (int32_t)s->prompt_logprobs;
    r->truncate = (int32_t)s->truncate_prompt_tokens;
    r->has_seed = jdoc_get_value(r->doc, "seed") != NULL;
    r->stream = s->stream;
    r->include_usage = s->include_usage;
    r->continuous_usage = s->include_usage && s->continuous_usage_stats;
    r->include_stop = s->include_stop_str_in_output;
    r->skip_special = s->skip_special_tokens;
    r->return_token_ids = s->return_token_ids;
    r->tokens_as_ids = s->return_tokens_as_token_ids;
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

static enum status list_tokens(const struct sampling *s, int32_t vocab,
                               struct completion_request *r, struct api_error *e)
{
    const char *key;
    const struct jdoc *value;
    if (s->logit_bias)
        for (void *i = jdoc_iter(s->logit_bias, NULL, &key, &value); i;
             i = jdoc_iter(s->logit_bias, i, &key, &value)) {
            struct token_bias *b = &r->bias[r->params.bias_count];
            b->value = (float)jdoc_number(value);
            if (field_token_key(key, vocab, &b->token))
                r->params.bias_count++;
        }
    if (!s->stop_token_ids)
        return OK;
    r->params.stop_id_count = (int32_t)jdoc_size(s->stop_token_ids);
    return field_tokens("stop_token_ids", s->stop_token_ids, ENGINE_STOP_IDS_MAX, vocab,
                        r->stop_ids, e);
}

enum status sampling_convert(const struct sampling *s, const struct completion_rules *rules,
                             struct completion_request *r, struct api_error *e)
{
    enum status st = response_format_read(&s->format, r->doc, &r->structure, &r->own_schema, e);
    if (st != OK)
        return st;
    convert(s, r);
    r->stop_count = list_strings(s->stop, r->stop);
    r->bad_word_count = list_strings(s->bad_words, r->bad_words);
    r->params.cache_salt = completion_salt(rules, &s->cache_salt);
    return list_tokens(s, rules->vocab, r, e);
}
