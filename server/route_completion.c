/* DESIGN: each prompt by itself: text is checked for length before it is tokenized, because a body
 * holds more text than any context, and ids after. */
#include "server/route.h"

#include "server/api/embedding.h"
#include "server/job_start.h"

#include <stdlib.h>
#include <string.h>

/* ---- on a request worker ---- */

/* Which ids are the text's own: control tokens among them are shown where the prompt is. */
static enum status find_own(struct job *j, struct completion_prompt *p, struct api_error *e)
{
    const struct completion_request *q = &j->request;
    enum status st = OK;
    struct err err = {""};
    int32_t *own = NULL, count = p->count;
    if (!q->echo || !q->parse_special)
        return OK;
    if (q->add_special_tokens) /* there may be none but what was added */
        st = tokenizer_encode_named(j->service->tokenizer, p->text.bytes, p->text.len, false, &own,
                                    &count, &err);
    if (st != OK) {
        api_error_from_status(e, st, &err);
        return st;
    }
    p->own_begin = 0;
    while (own && p->own_begin + count < p->count &&
           memcmp(p->ids + p->own_begin, own, (size_t)count * sizeof *own) != 0)
        p->own_begin++;
    p->own_end = p->own_begin + count;
    free(own);
    return OK;
}

static enum status encode_prompt(struct job *j, struct completion_prompt *p, struct api_error *e)
{
    const int32_t max = j->service->rules.max_model_len;
    const struct field_string *text = &p->text;
    enum status st = OK;
    if (text->bytes) {
        size_t tokens_min = tokenizer_tokens_min(j->service->tokenizer, text->len);
        TRY(completion_prompt_fit_text(&j->request, tokens_min, max, e));
        TRY((j->request.parse_special ? job_start_encode_named : job_start_encode)(
            j, j->request.source, text->bytes, text->len, j->request.add_special_tokens, &p->ids,
            &p->count, e));
        TRY(find_own(j, p, e));
        p->after =
            j->request.add_special_tokens ? tokenizer_added_behind(j->service->tokenizer) : 0;
    }
    const int32_t before = p->count;
    st = completion_prompt_fit(&j->request, p, max, e);
    const int32_t cut = before - p->count; /* the first ones, where there is an echo */
    p->own_begin = p->own_begin > cut ? p->own_begin - cut : 0;
    p->own_end = p->own_end > cut ? p->own_end - cut : 0;
out:
    return st;
}

static enum status parse(struct job *j, struct api_error *e)
{
    return completion_parse(j->body.data ? j->body.data : "", j->body.len, &j->service->rules,
                            &j->request, e);
}

static enum status encode(struct job *j, struct api_error *e)
{
    enum status st = OK;
    for (int32_t i = 0; i < j->request.prompt_count && st == OK; i++)
        st = encode_prompt(j, &j->request.prompts[i], e);
    return st;
}

/* Its inputs are encoded as prompts are, but for what truncation keeps. */
static enum status parse_embedding(struct job *j, struct api_error *e)
{
    return embedding_parse(j->body.data ? j->body.data : "", j->body.len, &j->service->rules,
                           &j->request, e);
}

static const struct job_kind embeddings = {
    .reply = &embedding_reply, .pools = true, .parse = parse_embedding, .encode = encode};

static const struct job_kind completions = {
    .reply = &completion_reply, .parse = parse, .encode = encode};

/* ---- on an HTTP thread ---- */

void route_completions(void *ctx, struct http_request *r)
{
    job_start(ctx, &completions, r);
}

void route_embeddings(void *ctx, struct http_request *r)
{
    job_start(ctx, &embeddings, r);
}
