/* DESIGN: the conversation becomes a text by the model's template, and the text ids, of which only
 * those that the template wrote may be control tokens: what a client says cannot end its own
 * message or begin somebody else's. A request to /v1/responses is one of a chat but for how it is
 * written, and how it is answered. */
#include "server/route.h"

#include "server/api/chat_input.h"
#include "server/api/chat_reply.h"
#include "server/api/responses.h"
#include "server/api/responses_reply.h"
#include "server/chat_template.h"
#include "server/job_start.h"

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

static enum status encode(struct job *j, struct api_error *e)
{
    struct completion_request *q = &j->request;
    struct completion_prompt *p = &q->prompts[0];
    const int32_t max = j->service->rules.max_model_len;
    const struct chat_template *template = j->service->chat_template;
    struct jinja_text text = {{0}, {0}};
    enum status st = OK;
    service_log_unknown(j->service, &j->conversation.unknown);
    TRY(chat_template_render(template, &j->conversation, &text, e));
    chat_template_find_open(&text, j->conversation.mark != NULL, &q->answer);
    conversation_free(&j->conversation);
    if (q->answer_begin.len > 0)
        begin_answer(q, &text);
    const size_t tokens_min = tokenizer_tokens_min(j->service->tokenizer, text.bytes.len);
    TRY(completion_prompt_fit_text(q, tokens_min, max, e));
    TRY(chat_template_encode(template, &text, q->add_special_tokens, &p->ids, &p->count, e));
    if (p->count == 0) {
        st = api_error_field(e, "messages", "messages: the chat template makes no text of them");
        goto out;
    }
    TRY(completion_prompt_fit(q, p, max, e));
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

static const struct job_kind chats = {.reply = &chat_reply, .parse = parse, .encode = encode};

static const struct job_kind responses = {
    .reply = &responses_reply, .parse = parse_responses, .encode = encode_responses};

/* ---- on an HTTP thread ---- */

void route_chat(void *ctx, struct http_request *r)
{
    job_start(ctx, &chats, r);
}

void route_chat_responses(void *ctx, struct http_request *r)
{
    job_start(ctx, &responses, r);
}
