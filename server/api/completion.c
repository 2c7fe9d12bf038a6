/* DESIGN: rows decide about every field that has a type and a range; what depends on two fields, on
 * the model or on the forms of `prompt` and `stop` is checked after them. A field that OpenAI or
 * vLLM know and we do not honour is refused unless it asks for nothing: an option accepted and
 * ignored is a wrong answer nobody sees. */
#include "server/api/completion.h"

#include "server/api/field.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What the rows store into. */
struct raw {
    const char *model;
    const struct jdoc *prompt, *stop, *stream_options;
    int64_t max_tokens, n, best_of, top_k, seed;
    double temperature, top_p, min_p;
    bool stream, ignore_eos, return_token_ids, add_special_tokens;
    bool include_usage;
};

#define AT(member) .offset = offsetof(struct raw, member)
#define INT(field, low, high)                                                                      \
    {                                                                                              \
        .name = #field, .kind = FIELD_INT, .int_min = (low), .int_max = (high), AT(field)          \
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
#define LATER(field, field_kind, nothing)                                                          \
    {                                                                                              \
        .name = #field, .kind = (field_kind), .use = FIELD_UNSUPPORTED, .int_min = INT64_MIN,      \
        .int_max = INT64_MAX, .min = -HUGE_VAL, .max = HUGE_VAL, .neutral = (nothing)              \
    }
#define IGNORED(field)                                                                             \
    {                                                                                              \
        .name = #field, .use = FIELD_IGNORED                                                       \
    }

static const struct field rows[] = {
    {.name = "model", .kind = FIELD_STRING, AT(model)},
    {.name = "prompt", .kind = FIELD_ANY, AT(prompt)},
    {.name = "stop", .kind = FIELD_ANY, AT(stop)},
    {.name = "stream_options", .kind = FIELD_OBJECT, AT(stream_options)},
    INT(max_tokens, 0, INT32_MAX),
    INT(n, 1, COMPLETION_N_MAX),
    INT(best_of, 1, COMPLETION_N_MAX),
    INT(top_k, -1, INT32_MAX),
    INT(seed, INT64_MIN, INT64_MAX),
    NUMBER(temperature, 0, 2, false),
    NUMBER(top_p, 0, 1, true),
    NUMBER(min_p, 0, 1, false),
    BOOL(stream),
    BOOL(ignore_eos),
    BOOL(return_token_ids),
    BOOL(add_special_tokens),
    LATER(logprobs, FIELD_INT, NAN),
    LATER(prompt_logprobs, FIELD_INT, NAN),
    LATER(min_tokens, FIELD_INT, 0),
    LATER(truncate_prompt_tokens, FIELD_INT, NAN),
    LATER(priority, FIELD_INT, 0),
    LATER(presence_penalty, FIELD_NUMBER, 0),
    LATER(frequency_penalty, FIELD_NUMBER, 0),
    LATER(repetition_penalty, FIELD_NUMBER, 1),
    LATER(length_penalty, FIELD_NUMBER, 1),
    LATER(typical_p, FIELD_NUMBER, 1),
    LATER(echo, FIELD_BOOL, 0),
    LATER(use_beam_search, FIELD_BOOL, 0),
    LATER(include_stop_str_in_output, FIELD_BOOL, 0),
    LATER(return_tokens_as_token_ids, FIELD_BOOL, 0),
    LATER(skip_special_tokens, FIELD_BOOL, 1),
    LATER(spaces_between_special_tokens, FIELD_BOOL, 1),
    LATER(suffix, FIELD_STRING, 0),
    LATER(cache_salt, FIELD_STRING, 0),
    LATER(guided_regex, FIELD_STRING, 0),
    LATER(guided_grammar, FIELD_STRING, 0),
    LATER(prompt_embeds, FIELD_ANY, 0),
    LATER(guided_json, FIELD_ANY, 0),
    LATER(guided_choice, FIELD_ARRAY, 0),
    LATER(stop_token_ids, FIELD_ARRAY, 0),
    LATER(allowed_token_ids, FIELD_ARRAY, 0),
    LATER(bad_words, FIELD_ARRAY, 0),
    LATER(logits_processors, FIELD_ARRAY, 0),
    LATER(logit_bias, FIELD_OBJECT, 0),
    LATER(response_format, FIELD_OBJECT, 0),
    LATER(structured_outputs, FIELD_OBJECT, 0),
    LATER(kv_transfer_params, FIELD_OBJECT, 0),
    IGNORED(user),
    IGNORED(metadata),
    IGNORED(store),
    IGNORED(service_tier),
    IGNORED(safety_identifier),
    IGNORED(prompt_cache_key),
};

static const struct field stream_rows[] = {
    BOOL(include_usage),
    LATER(continuous_usage_stats, FIELD_BOOL, 0),
    IGNORED(include_obfuscation),
};

/* ---- fields of the rows ---- */

static void note_unknown(struct completion_request *r, const char *name)
{
    if (r->unknown_count < COMPLETION_UNKNOWN_MAX)
        snprintf(r->unknown[r->unknown_count++], sizeof r->unknown[0], "%s", name);
}

static enum status apply_rows(const struct field *table, size_t count, const struct jdoc *object,
                              struct raw *raw, struct completion_request *r, struct api_error *e)
{
    const char *name;
    const struct jdoc *value;
    enum status st = OK;
    for (void *iter = jdoc_iter(object, NULL, &name, &value); iter && st == OK;
         iter = jdoc_iter(object, iter, &name, &value)) {
        const struct field *row = field_find(table, count, name);
        if (!row)
            note_unknown(r, name);
        else if (jdoc_type(value) != JDOC_NULL)
            st = field_apply(row, value, raw, e);
    }
    return st;
}

static enum status apply_stream_options(struct raw *raw, struct completion_request *r,
                                        struct api_error *e)
{
    if (!raw->stream_options)
        return OK;
    if (!raw->stream)
        return api_error_field(e, "stream_options", "stream_options needs \"stream\": true");
    enum status st =
        apply_rows(stream_rows, ARRAY_LEN(stream_rows), raw->stream_options, raw, r, e);
    if (st != OK)
        snprintf(e->param, sizeof e->param, "stream_options");
    return st;
}

static void fill_defaults(const struct generation_defaults *d, struct raw *raw)
{
    *raw = (struct raw){
        .max_tokens = 16,
        .n = 1,
        .best_of = -1,
        .top_k = d->top_k > 0 ? d->top_k : 0,
        .temperature = isnan(d->temperature) ? 1 : (double)d->temperature,
        .top_p = isnan(d->top_p) ? 1 : (double)d->top_p,
        .add_special_tokens = true,
    };
}

static void convert(const struct raw *raw, const struct jdoc *doc, struct completion_request *r)
{
    r->max_tokens = (int32_t)raw->max_tokens;
    r->n = (int32_t)raw->n;
    /* below this a division by it overflows; vLLM draws the same line */
    r->temperature = raw->temperature < 1e-5 ? 0 : (float)raw->temperature;
    r->top_p = fmaxf((float)raw->top_p, 1e-30f);
    r->min_p = (float)raw->min_p;
    r->top_k = raw->top_k > 0 ? (int32_t)raw->top_k : 0;
    r->has_seed = jdoc_get_value(doc, "seed") != NULL;
    r->seed = (uint64_t)raw->seed;
    r->stream = raw->stream;
    r->include_usage = raw->include_usage;
    r->ignore_eos = raw->ignore_eos;
    r->return_token_ids = raw->return_token_ids;
    r->add_special_tokens = raw->add_special_tokens;
}

static enum status check_together(const struct raw *raw, const struct completion_rules *rules,
                                  struct api_error *e)
{
    if (raw->best_of >= 0 && raw->best_of != raw->n) {
        enum status st =
            api_error_field(e, "best_of", "best_of is not supported unless equal to n");
        e->code = "unsupported_parameter";
        return st;
    }
    if (raw->model && strcmp(raw->model, rules->model_name) != 0) {
        enum status st =
            api_error_set(e, 404, "model_not_found",
                          "the model \"%.200s\" does not exist; this server has \"%.200s\"",
                          raw->model, rules->model_name);
        snprintf(e->param, sizeof e->param, "model");
        return st;
    }
    return OK;
}

/* ---- prompt ---- */

static enum status parse_ids(const struct jdoc *array, const struct completion_rules *rules,
                             struct completion_prompt *p, struct api_error *e)
{
    char text[80];
    size_t count = jdoc_size(array);
    if (count == 0)
        return api_error_field(e, "prompt", "prompt must not be empty");
    p->ids = malloc(count * sizeof *p->ids);
    if (!p->ids)
        return ERR_NOMEM;
    p->count = (int32_t)count; /* bounded by the tokens of a document */
    for (size_t i = 0; i < count; i++) {
        int64_t id;
        if (!field_int(jdoc_at(array, i), 0, rules->vocab - 1, &id))
            return api_error_field(
                e, "prompt", "prompt must hold token ids between 0 and %d, got %s at %zu",
                rules->vocab - 1, field_text(jdoc_at(array, i), text, sizeof text), i);
        p->ids[i] = (int32_t)id;
    }
    return OK;
}

static enum status parse_text(const struct jdoc *v, const struct completion_rules *rules,
                              struct completion_prompt *p, struct api_error *e)
{
    if (jdoc_type(v) != JDOC_STRING)
        return api_error_field(e, "prompt", "prompt must not mix strings with other values");
    if (!rules->has_tokenizer)
        return api_error_field(e, "prompt",
                               "prompt must be token ids: this model came without a tokenizer");
    if (jdoc_string_len(v) == 0)
        return api_error_field(e, "prompt", "prompt must not be empty");
    p->text = (struct completion_text){jdoc_string(v), jdoc_string_len(v)};
    return OK;
}

/* A list of prompts, all texts or all lists of ids. */
static enum status parse_list(const struct jdoc *list, const struct completion_rules *rules,
                              struct completion_request *r, struct api_error *e)
{
    size_t count = jdoc_size(list);
    enum jdoc_type type = jdoc_type(jdoc_at(list, 0));
    if (count > COMPLETION_PROMPTS_MAX)
        return api_error_field(e, "prompt", "prompt may hold at most %d prompts, got %zu",
                               COMPLETION_PROMPTS_MAX, count);
    r->prompts = calloc(count, sizeof *r->prompts);
    if (!r->prompts)
        return ERR_NOMEM;
    for (size_t i = 0; i < count; i++) {
        const struct jdoc *v = jdoc_at(list, i);
        struct completion_prompt *p = &r->prompts[r->prompt_count++];
        enum status st;
        if (type == JDOC_STRING)
            st = parse_text(v, rules, p, e);
        else if (jdoc_type(v) == JDOC_ARRAY)
            st = parse_ids(v, rules, p, e);
        else
            st = api_error_field(e, "prompt", "prompt must not mix lists with other values");
        if (st != OK)
            return st;
    }
    return OK;
}

static enum status parse_prompt(const struct jdoc *v, const struct completion_rules *rules,
                                struct completion_request *r, struct api_error *e)
{
    char text[80];
    if (!v)
        return api_error_field(e, "prompt", "prompt is missing");
    bool array = jdoc_type(v) == JDOC_ARRAY;
    if (!array && jdoc_type(v) != JDOC_STRING)
        return api_error_field(e, "prompt",
                               "prompt must be a string, token ids, or a list of either, got %s",
                               field_text(v, text, sizeof text));
    if (array && jdoc_size(v) == 0)
        return api_error_field(e, "prompt", "prompt must not be empty");
    enum jdoc_type first = array ? jdoc_type(jdoc_at(v, 0)) : JDOC_STRING;
    if (array && (first == JDOC_STRING || first == JDOC_ARRAY))
        return parse_list(v, rules, r, e);
    r->prompts = calloc(1, sizeof *r->prompts);
    if (!r->prompts)
        return ERR_NOMEM;
    r->prompt_count = 1;
    return array ? parse_ids(v, rules, r->prompts, e) : parse_text(v, rules, r->prompts, e);
}

/* ---- stop ---- */

static enum status add_stop(const struct jdoc *v, struct completion_request *r, struct api_error *e)
{
    char text[80];
    if (jdoc_type(v) != JDOC_STRING)
        return api_error_field(e, "stop", "stop must be a string or a list of strings, got %s",
                               field_text(v, text, sizeof text));
    size_t len = jdoc_string_len(v);
    if (len == 0 || len > COMPLETION_STOP_BYTES_MAX)
        return api_error_field(e, "stop", "stop strings must have 1 to %d bytes, got %zu",
                               COMPLETION_STOP_BYTES_MAX, len);
    r->stop[r->stop_count++] = (struct completion_text){jdoc_string(v), len};
    return OK;
}

static enum status parse_stop(const struct jdoc *v, const struct completion_rules *rules,
                              struct completion_request *r, struct api_error *e)
{
    enum status st = OK;
    if (!v)
        return OK;
    if (jdoc_type(v) != JDOC_ARRAY) {
        st = add_stop(v, r, e);
    } else if (jdoc_size(v) > COMPLETION_STOP_MAX) {
        st = api_error_field(e, "stop", "stop may hold at most %d strings, got %zu",
                             COMPLETION_STOP_MAX, jdoc_size(v));
    } else {
        for (size_t i = 0; i < jdoc_size(v) && st == OK; i++)
            st = add_stop(jdoc_at(v, i), r, e);
    }
    if (st == OK && r->stop_count > 0 && !rules->has_tokenizer)
        st = api_error_field(e, "stop", "stop needs text: this model came without a tokenizer");
    return st;
}

/* ---- the whole ---- */

/* The top-level field that holds an integer beyond 64 bits, which the JSON parser refuses without
 * saying where. False when there is none. */
static bool huge_integer_field(const char *text, size_t n, char *name, size_t cap)
{
    size_t key = 0, key_len = 0, start = 0;
    int32_t depth = 0;
    for (size_t i = 0; i < n; i++) {
        char c = text[i];
        if (c == '"') {
            for (start = ++i; i < n && text[i] != '"'; i++)
                i += text[i] == '\\';
            if (depth == 1 && i < n) {
                key_len = i - start;
                key = start;
            }
        } else if (c == '{' || c == '[') {
            depth++;
        } else if (c == '}' || c == ']') {
            depth--;
        } else if (c >= '0' && c <= '9') {
            for (start = i; i + 1 < n && strchr("0123456789+-.eE", text[i + 1]) && text[i + 1];)
                i++;
            size_t digits = i + 1 - start;
            bool huge = digits > 19 ||
                        (digits == 19 && memcmp(text + start, "9223372036854775807", 19) > 0);
            if (huge && !memchr(text + start, '.', digits) && !memchr(text + start, 'e', digits) &&
                !memchr(text + start, 'E', digits)) {
                snprintf(name, cap, "%.*s", (int)(key_len < cap ? key_len : cap - 1), text + key);
                return key_len > 0;
            }
        }
    }
    return false;
}

static enum status parse_document(const char *text, size_t n, struct jdoc **doc,
                                  struct api_error *e)
{
    struct err err = {""};
    char name[48];
    enum status st = jdoc_parse(text, n, &jdoc_limits_request, "request body", doc, &err);
    if (st == ERR_INPUT && huge_integer_field(text, n, name, sizeof name))
        return api_error_field(e, name, "%s must be an integer of at most 64 bits", name);
    if (st == ERR_INPUT)
        return api_error_set(e, 400, "invalid_json", "%s", err.text);
    if (st != OK)
        return st;
    if (jdoc_type(*doc) != JDOC_OBJECT)
        return api_error_set(e, 400, "invalid_json", "request body: expected a JSON object, got %s",
                             jdoc_type_name(jdoc_type(*doc)));
    return OK;
}

enum status completion_parse(const char *text, size_t n, const struct completion_rules *rules,
                             struct completion_request *out, struct api_error *e)
{
    enum status st = OK;
    struct completion_request r = {0};
    struct raw raw;
    fill_defaults(&rules->defaults, &raw);
    TRY(parse_document(text, n, &r.doc, e));
    TRY(apply_rows(rows, ARRAY_LEN(rows), r.doc, &raw, &r, e));
    TRY(apply_stream_options(&raw, &r, e));
    TRY(check_together(&raw, rules, e));
    convert(&raw, r.doc, &r);
    TRY(parse_stop(raw.stop, rules, &r, e));
    TRY(parse_prompt(raw.prompt, rules, &r, e));
    *out = r;
    return OK;
out:
    completion_free(&r);
    if (st != ERR_INPUT)
        api_error_from_status(e, st, &(struct err){""});
    return st;
}

static enum status too_long(struct api_error *e, int32_t max_model_len, const char *about,
                            int64_t prompt, int64_t completion)
{
    enum status st = api_error_set(
        e, 400, "context_length_exceeded",
        "This model's maximum context length is %d tokens. However, you requested %s%lld tokens "
        "(%lld in the prompt, %lld for the completion). Please reduce the prompt or max_tokens.",
        max_model_len, about, (long long)(prompt + completion), (long long)prompt,
        (long long)completion);
    snprintf(e->param, sizeof e->param, "prompt");
    return st;
}

enum status completion_check_length(const struct completion_request *r, int32_t prompt_tokens,
                                    int32_t max_model_len, struct api_error *e)
{
    if (prompt_tokens < max_model_len &&
        (int64_t)prompt_tokens + r->max_tokens <= (int64_t)max_model_len)
        return OK;
    return too_long(e, max_model_len, "", prompt_tokens, r->max_tokens);
}

enum status completion_check_bytes(const struct completion_request *r, size_t tokens_min,
                                   int32_t max_model_len, struct api_error *e)
{
    if (tokens_min < (size_t)max_model_len)
        return OK;
    return too_long(e, max_model_len, "at least ", (int64_t)tokens_min, r->max_tokens);
}

void completion_forget_text(struct completion_request *r)
{
    for (int32_t i = 0; i < r->prompt_count; i++)
        r->prompts[i].text = (struct completion_text){NULL, 0};
    r->stop_count = 0;
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
