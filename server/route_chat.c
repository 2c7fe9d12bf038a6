/* DESIGN: the conversation becomes a text by the model's template, and the text ids, of which only
 * those that the template wrote may be control tokens: what a client says cannot end its own
 * message or begin somebody else's. A request to /v1/responses or /v1/messages is one of a chat but
 * for how it is written, and how it is answered. */
#include "server/route.h"

#include "server/api/chat_input.h"
#include "server/api/chat_reply.h"
#include "server/api/messages.h"
#include "server/api/messages_input.h"
#include "server/api/messages_reply.h"
#include "server/api/responses.h"
#include "server/api/responses_reply.h"
#include "server/chat_template.h"
#include "server/job_start.h"
#include "server/task.h"

#include <string.h>

/* ---- on a request worker ---- */

typedef enum status parser(const char *text, size_t n, const struct completion_rules *rules,
                           struct chat_request *out, struct api_error *e);

static enum status parse_by(parser *read, struct job *j, struct api_error *e)
{
    struct chat_request r;
    enum status st = read(j->body.data ? j->body.data : "", j->body.len, &j->service->rules, &r, e);
    if (st != OK)
        return st;
    j->request = r.completion;
    j->conversation = r.conversation;
    return OK;
}

static enum status parse(struct job *j, struct api_error *e)
{
    return parse_by(chat_parse, j, e);
}

static enum status parse_responses(struct job *j, struct api_error *e)
{
    return parse_by(responses_parse, j, e);
}

static enum status parse_messages(struct job *j, struct api_error *e)
{
    return parse_by(messages_parse, j, e);
}

/* An answer that has to be a call does not reason. */
static void begin_answer(struct completion_request *q, struct jinja_text *text)
{
    const char *close = answer_form_close(&q->answer);
    chat_template_add(text, close, strlen(close));
    q->answer.reasoning_open = q->answer.content_open = false;
    chat_template_add(text, q->answer_begin.data, q->answer_begin.len);
}

/* What no answer can say is not worth tokenizing. */
static enum status encode_prediction(const struct job *j, struct completion_request *q,
                                     struct api_error *e)
{
    enum status st = OK;
    const int32_t max = j->service->rules.max_model_len;
    if (q->prediction.len == 0)
        return OK;
    if (tokenizer_tokens_min(j->service->tokenizer, q->prediction.len) <= (size_t)max)
        st = job_start_encode(j, "prediction", q->prediction.data, q->prediction.len, false,
                              &q->prediction_ids, &q->prediction_count, e);
    else
        q->prediction_count = INT32_MAX;
    if (st == OK && q->prediction_count > max)
        return api_error_field(e, "prediction",
                               "prediction has more tokens than the model's context: %d", max);
    return st;
}

/* The text of the prompt, which ends with what begins the answer. */
static enum status render(const struct service *s, const struct conversation *c,
                          struct completion_request *q, struct jinja_text *text,
                          struct api_error *e)
{
    const enum status st = chat_template_render(s->chat_template, c, text, e);
    if (st != OK)
        return st;
    chat_template_find_open(text, c->mark != NULL, &q->answer);
    if (q->answer_begin.len > 0)
        begin_answer(q, text);
    return OK;
}

static enum status encode_text(const struct service *s, const struct jinja_text *text,
                               struct completion_request *q, struct api_error *e)
{
    struct completion_prompt *p = &q->prompts[0];
    const enum status st =
        chat_template_encode(s->chat_template, text, q->add_special_tokens, &p->ids, &p->count, e);
    if (st == OK && p->count == 0)
        return api_error_field(e, "messages", "messages: the chat template makes no text of them");
    return st;
}

static enum status encode(struct job *j, struct api_error *e)
{
    struct completion_request *q = &j->request;
    const int32_t max = j->service->rules.max_model_len;
    struct jinja_text text = {{0}, {0}};
    enum status st = OK;
    service_log_unknown(j->service, &j->conversation.unknown);
    TRY(render(j->service, &j->conversation, q, &text, e));
    conversation_free(&j->conversation);
    const size_t tokens_min = tokenizer_tokens_min(j->service->tokenizer, text.bytes.len);
    TRY(completion_prompt_fit_text(q, tokens_min, max, e));
    TRY(encode_text(j->service, &text, q, e));
    TRY(completion_prompt_fit(q, &q->prompts[0], max, e));
    TRY(completion_fill(q, max, e));
    st = encode_prediction(j, q, e);
out:
    jinja_text_free(&text);
    return st;
}

static enum status encode_responses(struct job *j, struct api_error *e)
{
    const enum status st = encode(j, e);
    if (st == ERR_INPUT)
        chat_input_blame(NULL, "input", e);
    return st;
}

static enum status encode_messages(struct job *j, struct api_error *e)
{
    const enum status st = encode(j, e);
    if (st == ERR_INPUT)
        messages_input_blame(e);
    return st;
}

/* The tokens that the prompt of an answer would have, whether it fits or not. */
static enum status answer_count(struct task *t, struct api_error *e)
{
    struct service *s = t->service;
    struct chat_request r = {.completion = {.source = NULL}};
    struct jinja_text text = {{0}, {0}};
    struct completion_request *q = &r.completion;
    enum status st = OK;
    TRY(messages_parse_count(t->body.data ? t->body.data : "", t->body.len, &s->rules, &r, e));
    service_log_unknown(s, &q->unknown);
    service_log_unknown(s, &r.conversation.unknown);
    TRY(render(s, &r.conversation, q, &text, e));
    TRY(encode_text(s, &text, q, e));
    if (q->truncate != 0)
        TRY(completion_prompt_fit(q, &q->prompts[0], s->rules.max_model_len, e));
    messages_reply_count(q->prompts[0].count, &t->reply);
out:
    if (st == ERR_INPUT)
        messages_input_blame(e);
    jinja_text_free(&text);
    chat_free(&r);
    return st;
}

static const struct job_kind chats = {.reply = &chat_reply, .parse = parse, .encode = encode};

static const struct job_kind responses = {
    .reply = &responses_reply, .parse = parse_responses, .encode = encode_responses};

static const struct job_kind messages = {
    .reply = &messages_reply, .parse = parse_messages, .encode = encode_messages};

/* ---- on an HTTP thread ---- */

void route_chat(void *ctx, struct http_request *r)
{
    job_start(ctx, &chats, r);
}

void route_chat_responses(void *ctx, struct http_request *r)
{
    job_start(ctx, &responses, r);
}

void route_chat_messages(void *ctx, struct http_request *r)
{
    job_start(ctx, &messages, r);
}

void route_chat_count(void *ctx, struct http_request *r)
{
    task_start(ctx, r, answer_count);
}
