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

/* Both names are in use by clients. before: what separates the first from the member before it. */
static void write_reasoning(const struct completion_choice *c, const char *before, struct buf *out)
{
    static const char *const names[] = {"reasoning", "reasoning_content"};
    const struct buf *text = c->answer ? answer_reasoning(c->answer) : NULL;
    for (size_t i = 0; text && text->len > 0 && i < ARRAY_LEN(names); i++) {
        buf_printf(out, "%s\"%s\":", i ? "," : before, names[i]);
        buf_json(out, text->data, text->len);
    }
}

/* indexed: as streams have it, where a call may come in pieces. */
static void write_calls(const struct completion_choice *c, bool indexed, const char *before,
                        struct buf *out)
{
    const int32_t count = c->answer ? answer_call_count(c->answer) : 0;
    for (int32_t i = 0; i < count; i++) {
        const struct answer_call call = answer_call(c->answer, i);
        buf_printf(out, i ? ",{" : "%s\"tool_calls\":[{", before);
        if (indexed)
            buf_printf(out, "\"index\":%d,", call.index);
        buf_printf(out, "\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":", call.id);
        buf_json(out, call.name, call.name_len);
        buf_puts(out, ",\"arguments\":");
        buf_json(out, call.arguments, call.arguments_len);
        buf_puts(out, "}}");
    }
    if (count > 0)
        buf_puts(out, "]");
}

static bool has_more_than_content(const struct completion_choice *c)
{
    return c->answer && (answer_call_count(c->answer) > 0 || answer_reasoning(c->answer)->len > 0);
}

/* Content that is nothing because the answer is something else is null. */
static void write_content(const struct completion_choice *c, struct buf *out)
{
    buf_puts(out, "\"content\":");
    if (c->text_len == 0 && has_more_than_content(c))
        buf_puts(out, "null");
    else
        buf_json(out, c->text ? c->text : "", c->text_len);
}

static void write_choice(const struct completion_meta *meta, const struct completion_choice *c,
                         struct buf *out)
{
    buf_printf(out, "{\"index\":%d,\"message\":{\"role\":\"assistant\",", c->index);
    write_content(c, out);
    buf_puts(out, ",\"refusal\":null");
    write_reasoning(c, ",", out);
    write_calls(c, false, ",", out);
    buf_puts(out, "}");
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

/* What of the answer has come: mostly one of its parts. */
static void write_parts(const struct completion_meta *meta, const struct completion_choice *c,
                        struct buf *out)
{
    begin_frame(meta, NULL, out);
    buf_printf(out, "{\"index\":%d,\"delta\":{", c->index);
    const size_t empty = out->len;
    write_reasoning(c, "", out);
    if (c->text_len > 0) {
        buf_puts(out, out->len > empty ? "," : "");
        write_content(c, out);
    }
    write_calls(c, true, out->len > empty ? "," : "", out);
    if (out->len == empty)
        write_content(c, out);
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
static bool has_parts(const struct completion_choice *c)
{
    return c->text_len > 0 || has_more_than_content(c) ||
           (c->with_token_ids && c->token_count > 0) ||
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
        {has_parts(choice), write_parts},
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
    .id_prefix = "chatcmpl-",
    .begin = begin,
    .choice = write_choice,
    .end = end,
    .chunk = write_chunk,
    .usage = write_usage,
};
