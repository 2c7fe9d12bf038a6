/* DESIGN: an answer is a list of blocks (thinking, text, tool_use), in the order in which they
 * come. One is open while its text comes. An answer that is no stream is put together by the same
 * steps, so that both are the same; closed blocks are JSON then, which a stream has no use for.
 *
 * The shapes are those of https://docs.claude.com/en/api/messages and messages-streaming. */
#include "server/api/messages_reply.h"

#include "server/api/messages_input.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define BYTES_MAX ((size_t)1 << 30)

enum kind { NOTHING, THINKING, TEXT };

struct reply_state {
    bool streams;
    int32_t index;       /* of the open block, else of the next */
    enum kind open;      /* what the open block is */
    bool said[TEXT + 1]; /* of this kind there were blocks, or there is one */
    struct buf blocks;   /* those that are closed, commas between, and */
    struct buf text;     /* of the open one; without a stream */
};

static const struct form {
    const char *type, *delta;
} forms[] = {
    [THINKING] = {"thinking", "thinking_delta"},
    [TEXT] = {"text", "text_delta"},
};

static struct reply_state *open_state(void)
{
    struct reply_state *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    buf_init(&s->blocks, BYTES_MAX);
    buf_init(&s->text, BYTES_MAX);
    return s;
}

static void close_state(struct reply_state *s)
{
    if (!s)
        return;
    buf_free(&s->blocks);
    buf_free(&s->text);
    free(s);
}

static void write_string(const char *key, const char *text, size_t n, struct buf *out)
{
    buf_printf(out, ",\"%s\":", key);
    buf_json(out, text ? text : "", n);
}

/* ---- the message ---- */

static void begin(const struct completion_meta *meta, const struct completion_choice *choice,
                  struct buf *out)
{
    (void)choice;
    buf_puts(out, "{\"id\":");
    buf_json(out, meta->id, strlen(meta->id));
    buf_puts(out, ",\"type\":\"message\",\"role\":\"assistant\"");
    write_string("model", meta->model, strlen(meta->model), out);
}

/* Members: why the answer ended. */
static void write_stop(const struct completion_choice *c, struct buf *out)
{
    const bool stopped = strcmp(c->finish_reason, "stop") == 0;
    const bool full = strcmp(c->finish_reason, "length") == 0;
    const char *reason = full && c->capped ? "model_context_window_exceeded"
                         : full            ? "max_tokens"
                         : !stopped        ? "tool_use"
                         : c->stop_reason  ? "stop_sequence"
                                           : "end_turn";
    buf_printf(out, "\"stop_reason\":\"%s\",\"stop_sequence\":", reason);
    if (stopped && c->stop_reason)
        buf_json(out, c->stop_reason, c->stop_reason_len);
    else
        buf_puts(out, "null");
}

/* Input is the sum of three: what was read anew, what was found in the cache, and what was written
 * to it at a price, which nothing has here. */
static void write_usage(const struct completion_usage *u, struct buf *out)
{
    buf_printf(out,
               ",\"usage\":{\"input_tokens\":%" PRId64 ",\"cache_creation_input_tokens\":0,"
               "\"cache_read_input_tokens\":%" PRId64 ",\"output_tokens\":%" PRId64,
               u->prompt_tokens - u->cached_tokens, u->cached_tokens, u->completion_tokens);
    if (u->reasoning_tokens >= 0)
        buf_printf(out, ",\"output_tokens_details\":{\"thinking_tokens\":%" PRId64 "}",
                   u->reasoning_tokens);
    buf_puts(out, "}");
}

static void write_choice(const struct completion_meta *meta, const struct completion_choice *c,
                         struct buf *out)
{
    const struct reply_state *s = c->state;
    (void)meta;
    buf_puts(out, ",\"content\":[");
    buf_add(out, s->blocks.data, s->blocks.len);
    buf_puts(out, "],");
    write_stop(c, out);
    out->failed = out->failed || s->blocks.failed || s->text.failed;
}

static void end(const struct completion_usage *usage, struct buf *out)
{
    write_usage(usage, out);
    buf_puts(out, "}");
}

/* ---- events ---- */

static void begin_event(const char *name, struct buf *out)
{
    buf_printf(out, "event: %s\ndata: {\"type\":\"%s\"", name, name);
}

static void end_event(struct buf *out)
{
    buf_puts(out, "}\n\n");
}

static void begin_block_event(const struct reply_state *s, const char *name, struct buf *out)
{
    begin_event(name, out);
    buf_printf(out, ",\"index\":%" PRId32, s->index);
}

static void write_start(const struct completion_meta *meta, struct reply_state *s,
                        const struct completion_usage *usage, struct buf *out)
{
    s->streams = true;
    begin_event("message_start", out);
    buf_puts(out, ",\"message\":");
    begin(meta, NULL, out);
    buf_puts(out, ",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null");
    end(usage, out);
    end_event(out);
}

/* `member` of a delta. */
static void write_delta(const struct reply_state *s, const char *type, const char *member,
                        const char *text, size_t n, struct buf *out)
{
    begin_block_event(s, "content_block_delta", out);
    buf_printf(out, ",\"delta\":{\"type\":\"%s\"", type);
    write_string(member, text, n, out);
    buf_puts(out, "}");
    end_event(out);
}

static void write_stop_of_block(const struct reply_state *s, struct buf *out)
{
    begin_block_event(s, "content_block_stop", out);
    end_event(out);
}

/* ---- blocks ---- */

/* What was thought is signed by nobody. */
static void write_block(const struct reply_state *s, struct buf *out)
{
    const char *type = forms[s->open].type;
    buf_printf(out, "{\"type\":\"%s\"", type);
    write_string(type, s->text.data, s->text.len, out);
    buf_puts(out, s->open == THINKING ? ",\"signature\":\"\"}" : "}");
}

static void begin_closed(struct reply_state *s)
{
    buf_puts(&s->blocks, s->index > 0 ? "," : "");
}

static void close_block(struct reply_state *s, struct buf *out)
{
    if (s->open == NOTHING)
        return;
    if (s->open == THINKING)
        write_delta(s, "signature_delta", "signature", "", 0, out);
    write_stop_of_block(s, out);
    if (!s->streams) {
        begin_closed(s);
        write_block(s, &s->blocks);
        s->blocks.failed = s->blocks.failed || s->text.failed;
        buf_clear(&s->text);
    }
    s->open = NOTHING;
    s->index++;
}

static void open_block(struct reply_state *s, enum kind kind, struct buf *out)
{
    if (s->open == kind)
        return;
    close_block(s, out);
    s->open = kind;
    s->said[kind] = true;
    begin_block_event(s, "content_block_start", out);
    buf_puts(out, ",\"content_block\":");
    write_block(s, out);
    end_event(out);
}

/* In a chat what comes later is a new line of one text; here it is a block of its own. */
static void add_text(struct reply_state *s, enum kind kind, const char *text, size_t n,
                     struct buf *out)
{
    if (s->open != kind && s->said[kind] && n > 0 && *text == '\n') {
        text++;
        n--;
    }
    open_block(s, kind, out);
    write_delta(s, forms[kind].delta, forms[kind].type, text, n, out);
    if (!s->streams)
        buf_add(&s->text, text, n);
}

/* A call comes in one piece. */
static void write_call(const struct answer_call *call, const char *input, size_t n, struct buf *out)
{
    buf_printf(out, "{\"type\":\"tool_use\",\"id\":\"%s%s\"", MESSAGES_INPUT_CALL_PREFIX, call->id);
    write_string("name", call->name, call->name_len, out);
    buf_puts(out, ",\"input\":");
    buf_add(out, input, n);
    buf_puts(out, "}");
}

static void add_call(struct reply_state *s, const struct answer_call *call, struct buf *out)
{
    close_block(s, out);
    begin_block_event(s, "content_block_start", out);
    buf_puts(out, ",\"content_block\":");
    write_call(call, "{}", 2, out);
    end_event(out);
    write_delta(s, "input_json_delta", "partial_json", call->arguments, call->arguments_len, out);
    write_stop_of_block(s, out);
    if (!s->streams) {
        begin_closed(s);
        write_call(call, call->cut ? "{}" : call->arguments, call->cut ? 2 : call->arguments_len,
                   &s->blocks);
    }
    s->index++;
}

/* ---- what has come ---- */

static void add_part(struct reply_state *s, const struct answer *answer, int32_t i, struct buf *out)
{
    const struct answer_part part = answer_part(answer, i);
    if (part.kind == ANSWER_CALL) {
        const struct answer_call call = answer_call(answer, part.call);
        add_call(s, &call, out);
    } else {
        add_text(s, part.kind == ANSWER_REASONING ? THINKING : TEXT, part.text, part.len, out);
    }
}

/* An answer of nothing is an empty text. */
static void write_chunk(const struct completion_meta *meta, const struct completion_choice *c,
                        bool with_usage, const struct completion_usage *so_far, struct buf *out)
{
    struct reply_state *s = c->state;
    const int32_t count = c->answer ? answer_part_count(c->answer) : 0;
    (void)meta;
    (void)with_usage;
    (void)so_far;
    for (int32_t i = 0; i < count; i++)
        add_part(s, c->answer, i, out);
    if (!c->answer && c->text_len > 0)
        add_text(s, TEXT, c->text, c->text_len, out);
    if (!c->finish_reason)
        return;
    if (s->open == NOTHING && s->index == 0)
        open_block(s, TEXT, out);
    close_block(s, out);
}

static void write_finish(const struct completion_meta *meta, const struct completion_choice *c,
                         const struct completion_usage *usage, struct buf *out)
{
    (void)meta;
    begin_event("message_delta", out);
    buf_puts(out, ",\"delta\":{");
    write_stop(c, out);
    buf_puts(out, "}");
    write_usage(usage, out);
    end_event(out);
    begin_event("message_stop", out);
    end_event(out);
}

static void write_error(struct reply_state *s, const struct api_error *e, struct buf *out)
{
    (void)s;
    buf_puts(out, "event: error\ndata: ");
    api_error_write_anthropic(e, NULL, out);
    buf_puts(out, "\n\n");
}

const struct reply messages_reply = {
    .id_prefix = "msg_",
    .open = open_state,
    .close = close_state,
    .begin = begin,
    .choice = write_choice,
    .end = end,
    .start = write_start,
    .chunk = write_chunk,
    .finish = write_finish,
    .error = write_error,
};

void messages_reply_count(int64_t tokens, struct buf *out)
{
    buf_printf(out, "{\"input_tokens\":%" PRId64 "}", tokens);
}
