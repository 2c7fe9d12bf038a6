/* DESIGN: these run on the request workers like completions, because a long text takes its time,
 * but they ask nothing of the engine. */
#include "server/route.h"

#include "server/api/tokenize.h"
#include "server/chat_template.h"
#include "server/task.h"
#include "server/tokenizer/detok.h"

#include <stdlib.h>
#include <string.h>

#define REPLY_BYTES_MAX ((size_t)1 << 30)

/* ---- on a request worker ---- */

static enum status encode_text(const struct service *s, const struct tokenize_request *r,
                               int32_t **ids, int32_t *count, struct api_error *e)
{
    struct err err = {""};
    enum status st = (r->parse_special ? tokenizer_encode_named : tokenizer_encode)(
        s->tokenizer, r->text.bytes, r->text.len, r->add_special_tokens, ids, count, &err);
    if (st == ERR_INPUT)
        return api_error_field(e, "prompt", "prompt: %s", err.text);
    if (st != OK)
        api_error_from_status(e, st, &err);
    return st;
}

static enum status encode_messages(const struct service *s, const struct tokenize_request *r,
                                   int32_t **ids, int32_t *count, struct api_error *e)
{
    struct jinja_text text;
    enum status st = chat_template_render(s->chat_template, &r->conversation, &text, e);
    if (st != OK)
        return st;
    st = chat_template_encode(s->chat_template, &text, r->add_special_tokens, ids, count, e);
    jinja_text_free(&text);
    return st;
}

static enum status answer_tokenize(struct task *t, struct api_error *e)
{
    const struct service *s = t->service;
    const struct logprobs_names names = {.tokenizer = s->tokenizer};
    struct tokenize_request r = {0};
    int32_t *ids = NULL, count = 0;
    enum status st = OK;
    TRY(tokenize_parse(t->body.data ? t->body.data : "", t->body.len, &s->rules, &r, e));
    service_log_unknown(t->service, &r.unknown);
    service_log_unknown(t->service, &r.conversation.unknown);
    TRY((r.conversation.vars ? encode_messages : encode_text)(s, &r, &ids, &count, e));
    tokenize_reply(ids, count, s->rules.max_model_len, r.return_token_strs ? &names : NULL,
                   &t->reply);
out:
    free(ids);
    tokenize_free(&r);
    return st;
}

static enum status answer_detokenize(struct task *t, struct api_error *e)
{
    const struct service *s = t->service;
    struct detokenize_request r = {0};
    struct detok detok;
    struct buf text;
    enum status st = OK;
    buf_init(&text, REPLY_BYTES_MAX);
    TRY(tokenize_parse_ids(t->body.data ? t->body.data : "", t->body.len, &s->rules, &r, e));
    service_log_unknown(t->service, &r.unknown);
    detok_init(&detok, s->tokenizer, NULL, 0);
    detok.show_hidden = true;
    for (int32_t i = 0; i < r.count; i++)
        detok_push(&detok, r.ids[i], &text);
    detok_finish(&detok, &text);
    tokenize_reply_text(text.data ? text.data : "", text.len, &t->reply);
    t->reply.failed = t->reply.failed || text.failed;
out:
    buf_free(&text);
    tokenize_free_ids(&r);
    return st;
}

/* ---- on an HTTP thread ---- */

static bool has_tokenizer(const struct service *s, struct http_request *r)
{
    struct api_error e = {0};
    if (s->tokenizer)
        return true;
    api_error_set(&e, 501, "no_tokenizer", "this model came without a tokenizer");
    http_reply_error(r, &e);
    return false;
}

void route_tokenize(void *ctx, struct http_request *r)
{
    if (has_tokenizer(ctx, r))
        task_start(ctx, r, answer_tokenize);
}

void route_detokenize(void *ctx, struct http_request *r)
{
    if (has_tokenizer(ctx, r))
        task_start(ctx, r, answer_detokenize);
}

void route_tokenizer_info(void *ctx, struct http_request *r)
{
    const struct service *s = ctx;
    struct buf body;
    if (!has_tokenizer(s, r))
        return;
    const char *info = tokenizer_info(s->tokenizer);
    buf_init(&body, REPLY_BYTES_MAX);
    buf_puts(&body, info);
    http_reply(r, 200, "application/json", &body);
}
