/* DESIGN: text is appended to a bounded buffer, never built as a tree: a chunk per token is the
 * busiest path of the server. The reader of the buffer checks `failed` once. */
#include "server/api/completion_reply.h"

#include <inttypes.h>
#include <string.h>

static void write_string(const char *text, struct buf *out)
{
    buf_json(out, text, strlen(text));
}

void completion_reply_meta(const struct completion_meta *meta, const char *object, struct buf *out)
{
    buf_puts(out, "{\"id\":");
    write_string(meta->id, out);
    buf_printf(out, ",\"object\":\"%s\",\"created\":%" PRId64 ",\"model\":", object, meta->created);
    write_string(meta->model, out);
    buf_puts(out, ",\"system_fingerprint\":");
    write_string(meta->fingerprint, out);
}

void completion_reply_ids(const char *name, const int32_t *ids, int32_t count, struct buf *out)
{
    buf_printf(out, ",\"%s\":[", name);
    for (int32_t i = 0; i < count; i++)
        buf_printf(out, i ? ",%d" : "%d", ids[i]);
    buf_puts(out, "]");
}

static void write_logprobs(const struct completion_meta *meta, const struct completion_choice *c,
                           struct buf *out)
{
    const struct logprobs *const lists[] = {c->echoed ? c->echoed : c->logprobs, c->logprobs};
    buf_puts(out, ",\"logprobs\":");
    if (c->logprobs_top < 0)
        buf_puts(out, "null");
    else
        logprobs_write(lists, c->echoed ? 2 : 1, c->logprobs_top, &meta->names, out);
}

static void write_stop_reason(const struct completion_choice *c, struct buf *out)
{
    buf_puts(out, ",\"stop_reason\":");
    if (c->stop_reason)
        buf_json(out, c->stop_reason, c->stop_reason_len);
    else if (c->stop_token >= 0)
        buf_printf(out, "%d", c->stop_token);
    else
        buf_puts(out, "null");
}

void completion_reply_finish(const struct completion_choice *c, struct buf *out)
{
    buf_puts(out, ",\"finish_reason\":");
    if (c->finish_reason)
        write_string(c->finish_reason, out);
    else
        buf_puts(out, "null");
    write_stop_reason(c, out);
}

static void write_details(const struct completion_usage *u, struct buf *out)
{
    const bool reasons = u->reasoning_tokens >= 0;
    if (!reasons && !u->predicted)
        return;
    buf_puts(out, ",\"completion_tokens_details\":{");
    if (reasons)
        buf_printf(out, "\"reasoning_tokens\":%" PRId64 "%s", u->reasoning_tokens,
                   u->predicted ? "," : "");
    if (u->predicted)
        buf_printf(out,
                   "\"accepted_prediction_tokens\":%" PRId64
                   ",\"rejected_prediction_tokens\":%" PRId64,
                   u->right_guesses, u->wrong_guesses);
    buf_puts(out, "}");
}

void completion_reply_totals(const struct completion_usage *u, struct buf *out)
{
    buf_printf(out,
               ",\"usage\":{\"prompt_tokens\":%" PRId64 ",\"completion_tokens\":%" PRId64
               ",\"total_tokens\":%" PRId64 ",\"prompt_tokens_details\":{\"cached_tokens\":%" PRId64
               "}",
               u->prompt_tokens, u->completion_tokens, u->prompt_tokens + u->completion_tokens,
               u->cached_tokens);
    write_details(u, out);
    buf_puts(out, "}");
}

void completion_reply_so_far(bool with_usage, const struct completion_usage *so_far,
                             struct buf *out)
{
    if (with_usage && so_far)
        completion_reply_totals(so_far, out);
    else if (with_usage)
        buf_puts(out, ",\"usage\":null");
}

/* ---- completions ---- */

static void write_choice(const struct completion_meta *meta, const struct completion_choice *c,
                         struct buf *out)
{
    buf_printf(out, "{\"index\":%d,\"text\":", c->index);
    buf_json(out, c->text ? c->text : "", c->text_len);
    write_logprobs(meta, c, out);
    completion_reply_finish(c, out);
    if (c->prompt_logprobs) {
        buf_puts(out, ",\"prompt_logprobs\":");
        logprobs_write_prompt(c->prompt_logprobs, c->prompt_logprobs_top, &meta->names, out);
    }
    if (c->with_token_ids)
        completion_reply_ids("token_ids", c->token_ids, c->token_count, out);
    if (c->with_token_ids && c->prompt_ids)
        completion_reply_ids("prompt_token_ids", c->prompt_ids, c->prompt_count, out);
    buf_puts(out, "}");
}

static void begin(const struct completion_meta *meta, const struct completion_choice *choice,
                  struct buf *out)
{
    (void)choice;
    completion_reply_meta(meta, "text_completion", out);
    buf_puts(out, ",\"choices\":[");
}

static void end(const struct completion_usage *usage, struct buf *out)
{
    buf_puts(out, "]");
    completion_reply_totals(usage, out);
    buf_puts(out, "}");
}

static void write_chunk(const struct completion_meta *meta, const struct completion_choice *choice,
                        bool with_usage, const struct completion_usage *so_far, struct buf *out)
{
    buf_puts(out, "data: ");
    begin(meta, choice, out);
    write_choice(meta, choice, out);
    buf_puts(out, "]");
    completion_reply_so_far(with_usage, so_far, out);
    buf_puts(out, "}\n\n");
}

static void write_usage(const struct completion_meta *meta, const struct completion_usage *usage,
                        struct buf *out)
{
    buf_puts(out, "data: ");
    begin(meta, NULL, out);
    end(usage, out);
    buf_puts(out, "\n\n");
}

const struct reply completion_reply = {
    .id_prefix = "cmpl-",
    .begin = begin,
    .choice = write_choice,
    .end = end,
    .chunk = write_chunk,
    .usage = write_usage,
};

/* ---- what all forms have in common ---- */

void completion_reply_error(const struct api_error *e, struct buf *out)
{
    buf_puts(out, "data: ");
    api_error_write(e, out);
    buf_puts(out, "\n\n");
}

void completion_reply_done(struct buf *out)
{
    buf_puts(out, "data: [DONE]\n\n");
}
