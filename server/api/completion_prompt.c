/* DESIGN: the four forms are told apart by the first element; every further one must be like it. */
#include "server/api/completion.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum status empty(const struct completion_request *r, struct api_error *e)
{
    return api_error_field(e, r->source, "%s must not be empty", r->source);
}

static enum status parse_ids(const struct jdoc *array, const struct completion_rules *rules,
                             const struct completion_request *r, struct completion_prompt *p,
                             struct api_error *e)
{
    size_t count = jdoc_size(array);
    if (count == 0)
        return empty(r, e);
    p->ids = malloc(count * sizeof *p->ids);
    if (!p->ids)
        return ERR_NOMEM;
    p->count = (int32_t)count; /* bounded by the tokens of a document */
    return field_tokens(r->source, array, (int64_t)count, rules->vocab, p->ids, e);
}

static enum status parse_text(const struct jdoc *v, const struct completion_rules *rules,
                              const struct completion_request *r, struct completion_prompt *p,
                              struct api_error *e)
{
    if (jdoc_type(v) != JDOC_STRING)
        return api_error_field(e, r->source, "%s must not mix strings with other values",
                               r->source);
    if (!rules->has_tokenizer)
        return api_error_field(
            e, r->source, "%s must be token ids: this model came without a tokenizer", r->source);
    if (jdoc_string_len(v) == 0)
        return empty(r, e);
    p->text = (struct field_string){jdoc_string(v), jdoc_string_len(v)};
    return OK;
}

/* A list of prompts, all texts or all lists of ids. */
static enum status parse_list(const struct jdoc *list, const struct completion_rules *rules,
                              struct completion_request *r, struct api_error *e)
{
    size_t count = jdoc_size(list);
    enum jdoc_type type = jdoc_type(jdoc_at(list, 0));
    enum status st = OK;
    if (count > COMPLETION_PROMPTS_MAX)
        return api_error_field(e, r->source, "%s may hold at most %d prompts, got %zu", r->source,
                               COMPLETION_PROMPTS_MAX, count);
    r->prompts = calloc(count, sizeof *r->prompts);
    if (!r->prompts)
        return ERR_NOMEM;
    for (size_t i = 0; i < count && st == OK; i++) {
        const struct jdoc *v = jdoc_at(list, i);
        struct completion_prompt *p = &r->prompts[r->prompt_count++];
        if (type == JDOC_STRING)
            st = parse_text(v, rules, r, p, e);
        else if (jdoc_type(v) == JDOC_ARRAY)
            st = parse_ids(v, rules, r, p, e);
        else
            st =
                api_error_field(e, r->source, "%s must not mix lists with other values", r->source);
    }
    return st;
}

enum status completion_prompt_parse(const struct jdoc *v, const struct completion_rules *rules,
                                    struct completion_request *r, struct api_error *e)
{
    char text[80];
    bool array = jdoc_type(v) == JDOC_ARRAY;
    if (!array && jdoc_type(v) != JDOC_STRING)
        return api_error_field(e, r->source,
                               "%s must be a string, token ids, or a list of either, got %s",
                               r->source, field_text(v, text, sizeof text));
    if (array && jdoc_size(v) == 0)
        return empty(r, e);
    enum jdoc_type first = array ? jdoc_type(jdoc_at(v, 0)) : JDOC_STRING;
    if (array && (first == JDOC_STRING || first == JDOC_ARRAY))
        return parse_list(v, rules, r, e);
    r->prompts = calloc(1, sizeof *r->prompts);
    if (!r->prompts)
        return ERR_NOMEM;
    r->prompt_count = 1;
    return array ? parse_ids(v, rules, r, r->prompts, e) : parse_text(v, rules, r, r->prompts, e);
}

/* ---- length ---- */

/* The one that says how long the answer may be. */
static const char *answer_field(const struct completion_request *r)
{
    static const char *const names[] = {"max_output_tokens", "max_completion_tokens"};
    for (size_t i = 0; r->doc && i < ARRAY_LEN(names); i++)
        if (jdoc_get_value(r->doc, names[i]))
            return names[i];
    return "max_tokens";
}

/* It is the answer's fault where the prompt has room for one token of it. */
static enum status too_long(const struct completion_request *r, int32_t max_model_len,
                            const char *about, int64_t prompt, struct api_error *e)
{
    const int64_t completion = r->params.max_tokens;
    const char *answer = answer_field(r);
    const bool fits = prompt < max_model_len && !r->params.pooled;
    enum status st;
    if (r->params.pooled)
        st = api_error_set(e, 400, "context_length_exceeded",
                           "This model's maximum context length is %d tokens. However, you "
                           "requested %s%lld tokens in the %s. Please reduce it, or cut it with "
                           "truncate_prompt_tokens.",
                           max_model_len, about, (long long)prompt, r->source);
    else if (r->caps_answer)
        st = api_error_set(e, 400, "context_length_exceeded",
                           "prompt is too long: %s%lld tokens > %d maximum", about,
                           (long long)prompt, max_model_len - 1);
    else
        st = api_error_set(
            e, 400, "context_length_exceeded",
            "This model's maximum context length is %d tokens. However, you requested %s%lld "
            "tokens (%lld in the %s, %lld for the completion). Please reduce the %s or %s.",
            max_model_len, about, (long long)(prompt + completion), (long long)prompt, r->source,
            (long long)completion, r->source, answer);
    snprintf(e->param, sizeof e->param, "%s", fits ? answer : r->source);
    return st;
}

/* The last of a prompt that is to go on; of a text whose vector is wanted the first, and what was
 * added to its end. */
static void truncate(const struct completion_request *r, struct completion_prompt *p, int32_t keep)
{
    const int32_t first = r->params.pooled && p->after < keep ? keep - p->after : 0;
    const int32_t rest = keep - first;
    memmove(p->ids + first, p->ids + p->count - rest, (size_t)rest * sizeof *p->ids);
    p->count = keep;
}

enum status completion_prompt_fit(const struct completion_request *r, struct completion_prompt *p,
                                  int32_t max_model_len, struct api_error *e)
{
    const int32_t answer = r->caps_answer ? 1 : r->params.max_tokens;
    int32_t keep = r->truncate < 0 ? max_model_len - answer : r->truncate;
    if (r->truncate != 0 && keep > 0 && p->count > keep)
        truncate(r, p, keep);
    if ((int64_t)p->count + answer <= (int64_t)max_model_len)
        return OK;
    return too_long(r, max_model_len, "", p->count, e);
}

enum status completion_prompt_fit_text(const struct completion_request *r, size_t tokens_min,
                                       int32_t max_model_len, struct api_error *e)
{
    if (tokens_min <= (size_t)max_model_len || r->truncate != 0)
        return OK;
    return too_long(r, max_model_len, "at least ", (int64_t)tokens_min, e);
}

enum status completion_fill(struct completion_request *r, int32_t max_model_len,
                            struct api_error *e)
{
    const int32_t left = max_model_len - r->prompts[0].count;
    r->capped = r->caps_answer && r->params.max_tokens > left;
    if (!r->fills_context && !r->capped)
        return OK;
    if (r->params.min_tokens > left)
        return api_error_field(e, "min_tokens",
                               "min_tokens must be at most max_tokens (%d are left), got %d", left,
                               r->params.min_tokens);
    r->params.max_tokens = left;
    return OK;
}

enum status completion_prompt_check_scores(const struct completion_request *r, struct api_error *e)
{
    const char *field = r->prompt_logprobs >= 0 ? "prompt_logprobs" : "logprobs";
    const int64_t each = r->params.prompt_logprobs + 1; /* the token itself comes with its rivals */
    int64_t tokens = 0;
    for (int32_t i = 0; i < r->prompt_count; i++)
        tokens += r->prompts[i].count;
    if (each * tokens * r->n <= COMPLETION_SCORES_MAX)
        return OK;
    return api_error_field(e, field,
                           "%s: %lld prompt tokens with %lld values each, for each of n, are more "
                           "than %d; ask for fewer, or send the prompts one by one",
                           field, (long long)tokens, (long long)each, COMPLETION_SCORES_MAX);
}
