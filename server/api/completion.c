/* DESIGN: rows decide about every field that has a type and a range (sampling.c has most of them);
 * what depends on two fields or on the forms of `prompt` is checked after them. */
#include "server/api/completion.h"

#include "engine/grammar/guide.h"

#include "server/api/body.h"
#include "server/api/sampling.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What the rows store into. */
struct raw {
    struct sampling sampling;
    const struct jdoc *prompt;
    int64_t best_of, logprobs;
    bool echo, add_special_tokens, parse_special;
};

#define AT(member) .offset = offsetof(struct raw, member)
#include "server/api/field_row.h"

static const struct field rows[] = {
    {.name = "prompt",
     .kind = FIELD_PROMPT,
     .int_max = COMPLETION_PROMPTS_MAX,
     .required = true,
     AT(prompt)},
    {.name = "max_tokens", .kind = FIELD_INT, .int_max = INT32_MAX, AT(sampling.max_tokens)},
    OPTIONAL_INT(best_of, 1, COMPLETION_N_MAX),
    BOOL(add_special_tokens),
    BOOL(echo),
    BOOL(parse_special),
    OPTIONAL_INT(logprobs, 0, ENGINE_LOGPROBS_MAX),
    UNSUPPORTED(suffix, FIELD_STRING, 0),
};

struct field_set completion_fields(int32_t vocab)
{
    return (struct field_set){
        .parts = {{rows, ARRAY_LEN(rows), 0}, sampling_rows(offsetof(struct raw, sampling))},
        .vocab = vocab,
    };
}

static struct raw defaults_of(const struct generation_defaults *d)
{
    struct raw raw = {
        .sampling = sampling_defaults(d),
        .best_of = -1,
        .logprobs = -1,
        .add_special_tokens = true,
        .parse_special = true,
    };
    raw.sampling.max_tokens = 16;
    return raw;
}

void completion_schema(const struct completion_rules *rules, struct buf *out)
{
    struct field_set set = completion_fields(rules->vocab);
    const struct raw raw = defaults_of(&rules->defaults);
    set.prompts_max = rules->choices_max;
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

static enum status check_best_of(const struct raw *raw, struct api_error *e)
{
    if (raw->best_of < 0 || raw->best_of == raw->sampling.n)
        return OK;
    enum status st = api_error_field(e, "best_of",
                                     "best_of %d is not supported unless equal to n, which is %d: "
                                     "ask for all of them with n, and choose",
                                     (int)raw->best_of, (int)raw->sampling.n);
    e->code = "unsupported_parameter";
    return st;
}

/* ---- the request ---- */

static void convert(const struct raw *raw, struct completion_request *r)
{
    r->params.logprobs = r->logprobs = (int32_t)raw->logprobs;
    r->echo = raw->echo;
    r->add_special_tokens = raw->add_special_tokens;
    r->parse_special = raw->parse_special;
    if (raw->echo && r->params.prompt_logprobs < r->params.logprobs)
        r->params.prompt_logprobs = r->params.logprobs; /* both are cut from the longer list */
}

/* More than can ever wait is no matter of trying again. */
enum status completion_check_choices(const struct completion_request *r,
                                     const struct completion_rules *rules, struct api_error *e)
{
    const int32_t choices = r->prompt_count * r->n;
    if (rules->choices_max == 0 || choices <= rules->choices_max)
        return OK;
    return api_error_field(e, r->n > 1 ? "n" : r->source,
                           "%s%s for %d answers at once, this server takes at most %d "
                           "(--max-num-seqs and --max-num-queued-reqs)",
                           r->source, r->n > 1 ? " and n ask" : " asks", choices,
                           rules->choices_max);
}

/* A prompt alone is taken when nothing else waits; several together never would be. */
enum status completion_check_tokens(const struct completion_request *r,
                                    const struct completion_rules *rules, struct api_error *e)
{
    int64_t tokens = 0;
    for (int32_t i = 0; i < r->prompt_count; i++)
        tokens += (int64_t)r->n * r->prompts[i].count;
    if (rules->tokens_max == 0 || tokens <= rules->tokens_max || r->prompt_count * r->n == 1)
        return OK;
    return api_error_field(e, r->n > 1 ? "n" : r->source,
                           "%s%s for answers to %lld prompt tokens at once, this server takes at "
                           "most %lld (--max-num-queued-tokens)",
                           r->source, r->n > 1 ? " and n ask" : " asks", (long long)tokens,
                           (long long)rules->tokens_max);
}

enum status completion_parse(const char *text, size_t n, const struct completion_rules *rules,
                             struct completion_request *out, struct api_error *e)
{
    enum status st = OK;
    const struct field_set set = completion_fields(rules->vocab);
    struct completion_request r = {.source = "prompt"};
    struct raw raw = defaults_of(&rules->defaults);
    TRY(body_parse(text, n, &r.doc, e));
    TRY(field_apply(&set, r.doc, &raw, &r.unknown, e));
    TRY(check_best_of(&raw, e));
    TRY(sampling_check(&raw.sampling, r.doc, rules, e));
    TRY(sampling_convert(&raw.sampling, rules, &r, e));
    convert(&raw, &r);
    TRY(completion_prompt_parse(raw.prompt, rules, &r, e));
    TRY(completion_check_choices(&r, rules, e));
    *out = r;
    return OK;
out:
    completion_free(&r);
    if (st == ERR_NOMEM)
        api_error_no_memory(e);
    return st;
}

struct request_params completion_params(const struct completion_request *r)
{
    struct request_params p = r->params;
    p.bias = r->bias;
    p.stop_ids = r->stop_ids;
    p.bad_ids = r->bad_ids;
    p.bad_ends = r->bad_ends;
    p.prediction = r->prediction_ids;
    p.prediction_count = r->prediction_count;
    return p;
}

uint64_t completion_salt(const struct completion_rules *rules, const struct field_string *salt)
{
    return salt->bytes ? base_hash(rules->salt_key, salt->bytes, salt->len) : 0;
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
    r->structure = (struct structure){.kind = STRUCTURE_NONE};
    buf_free(&r->prediction);
    jdoc_close(r->own_schema);
    jdoc_close(r->own_tools);
    jdoc_close(r->doc);
    r->own_schema = r->own_tools = r->doc = NULL;
}

void completion_free(struct completion_request *r)
{
    for (int32_t i = 0; i < r->prompt_count; i++)
        free(r->prompts[i].ids);
    free(r->prompts);
    buf_free(&r->answer_begin);
    buf_free(&r->call_types);
    buf_free(&r->prediction);
    free(r->prediction_ids);
    guide_unref(r->params.guide);
    jdoc_close(r->own_schema);
    jdoc_close(r->own_tools);
    if (r->doc)
        jdoc_close(r->doc);
    buf_free(&r->repeated);
    *r = (struct completion_request){0};
}
