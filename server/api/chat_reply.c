/* DESIGN: a stream opens each choice with its role and closes it with its reason, each in a frame
 * of its own, because clients tell the first and the last frame by that; the role goes out with the
 * first token and not before, because clients take the first frame for it. */
#include "server/api/chat_reply.h"

static void begin_object(const struct completion_meta *meta, const char *object,
                         const struct completion_choice *choice, struct buf *out)
{
    completion_reply_meta(meta, object, out);
    if (choice && choice->with_token_ids && choice->prompt_ids)
        completion_reply_ids("prompt_token_ids", choice->prompt_ids, choice->prompt_count, out);
    if (choice && choice->prompt_logprobs) {
        buf_puts(out, ",\"prompt_logprobs\":");
        logprobs_write_prompt(choice->prompt_logprobs, choice->prompt_logprobs_top, &meta->names,
                              out);
    }
    buf_puts(out, ",\"choices\":[");
}

static void begin(const struct completion_meta *meta, const struct completion_choice *choice,
                  struct buf *out)
{
    begin_object(meta, "chat.completion", choice, out);
}

static void write_logprobs(const struct completion_meta *meta, const struct completion_choice *c,
                           struct buf *out)
{
    buf_puts(out, ",\"logprobs\":");
    if (c->logprobs_top < 0)
        buf_puts(out, "null");
    else
        logprobs_write_chat(c->logprobs, c->logprobs_top, &meta->names, out);
}

static void write_choice(const struct completion_meta *meta, const struct completion_choice *c,
                         struct buf *out)
{
    buf_printf(out, "{\"index\":%d,\"message\":{\"role\":\"assistant\",\"content\":", c->index);
    buf_json(out, c->text ? c->text : "", c->text_len);
    buf_puts(out, ",\"refusal\":null}");
    write_logprobs(meta, c, out);
    completion_reply_finish(c, out);
    if (c->with_token_ids)
        completion_reply_ids("token_ids", c->token_ids, c->token_count, out);
    buf_puts(out, "}");
}

static void end(const struct completion_usage *usage, struct buf *out)
{
    buf_puts(out, "]");
    completion_reply_totals(usage, out);
    buf_puts(out, "}");
}

/* ---- frames ---- */

static void begin_frame(const struct completion_meta *meta, const struct completion_choice *choice,
                        struct buf *out)
{
    buf_puts(out, "data: ");
    begin_object(meta, "chat.completion.chunk", choice, out);
}

static void write_role(const struct completion_meta *meta, const struct completion_choice *c,
                       struct buf *out)
{
    begin_frame(meta, c, out);
    buf_printf(out,
               "{\"index\":%d,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
               "\"logprobs\":null,\"finish_reason\":null}]",
               c->index);
}

static void write_content(const struct completion_meta *meta, const struct completion_choice *c,
                          struct buf *out)
{
    begin_frame(meta, NULL, out);
    buf_printf(out, "{\"index\":%d,\"delta\":{\"content\":", c->index);
    buf_json(out, c->text ? c->text : "", c->text_len);
    buf_puts(out, "}");
    write_logprobs(meta, c, out);
    buf_puts(out, ",\"finish_reason\":null");
    if (c->with_token_ids)
        completion_reply_ids("token_ids", c->token_ids, c->token_count, out);
    buf_puts(out, "}]");
}

static void write_finish(const struct completion_meta *meta, const struct completion_choice *c,
                         struct buf *out)
{
    begin_frame(meta, NULL, out);
    buf_printf(out, "{\"index\":%d,\"delta\":{},\"logprobs\":null", c->index);
    completion_reply_finish(c, out);
    buf_puts(out, "}]");
}

/* A token whose text is held back, and that nobody asked more about, makes no frame. */
static bool has_content(const struct completion_choice *c)
{
    return c->text_len > 0 || (c->with_token_ids && c->token_count > 0) ||
           (c->logprobs_top >= 0 && logprobs_count(c->logprobs) > 0);
}

static void write_chunk(const struct completion_meta *meta, const struct completion_choice *choice,
                        bool with_usage, const struct completion_usage *so_far, struct buf *out)
{
    const struct {
        bool wanted;
        void (*write)(const struct completion_meta *meta, const struct completion_choice *c,
                      struct buf *out);
    } frames[] = {
        {choice->first, write_role},
        {has_content(choice), write_content},
        {choice->finish_reason != NULL, write_finish},
    };
    for (size_t i = 0; i < ARRAY_LEN(frames); i++) {
        if (!frames[i].wanted)
            continue;
        frames[i].write(meta, choice, out);
        completion_reply_so_far(with_usage, so_far, out);
        buf_puts(out, "}\n\n");
    }
}

static void write_usage(const struct completion_meta *meta, const struct completion_usage *usage,
                        struct buf *out)
{
    begin_frame(meta, NULL, out);
    end(usage, out);
    buf_puts(out, "\n\n");
}

const struct reply chat_reply = {
    .id_prefix = "chatcmpl",
    .begin = begin,
    .choice = write_choice,
    .end = end,
    .chunk = write_chunk,
    .usage = write_usage,
};
