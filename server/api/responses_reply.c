/* DESIGN: an answer is a list of items (reasoning, message, calls), in the order in which they
 * come. One is open while its text comes; closed it is JSON, which the last event says again. An
 * answer that is no stream is put together by the same steps, so that both are the same.
 *
 * Log-probabilities are those of the tokens of messages. What a token belongs to may be known only
 * later (it may begin a call), so they wait for the text. */
#include "server/api/responses_reply.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define BYTES_MAX ((size_t)1 << 30)

enum kind { NOTHING, REASONING, MESSAGE };

struct reply_state {
    int32_t sequence;       /* of the next event */
    int32_t index;          /* of the open item, else of the next */
    enum kind open;         /* what the open item is */
    bool said[MESSAGE + 1]; /* of this kind there were items, or there is one */
    struct buf items;       /* those that are closed, commas between */
    struct buf text;        /* of the open one */
    struct buf logprobs;    /* of its text, and */
    struct buf held;        /* of tokens whose text has not come; commas between */
};

static const struct form {
    const char *type, *prefix, *part, *events;
} forms[] = {
    [REASONING] = {"reasoning", "rs", "reasoning_text", "response.reasoning_text"},
    [MESSAGE] = {"message", "msg", "output_text", "response.output_text"},
};

static struct reply_state *open_state(void)
{
    struct reply_state *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    buf_init(&s->items, BYTES_MAX);
    buf_init(&s->text, BYTES_MAX);
    buf_init(&s->logprobs, BYTES_MAX);
    buf_init(&s->held, BYTES_MAX);
    return s;
}

static void close_state(struct reply_state *s)
{
    if (!s)
        return;
    buf_free(&s->items);
    buf_free(&s->text);
    buf_free(&s->logprobs);
    buf_free(&s->held);
    free(s);
}

/* Empties one of them. That something is missing is remembered by what is never emptied. */
static void empty(struct reply_state *s, struct buf *b)
{
    s->items.failed = s->items.failed || b->failed;
    buf_clear(b);
}

/* ---- the object ---- */

static void begin(const struct completion_meta *meta, const struct completion_choice *choice,
                  struct buf *out)
{
    (void)choice;
    buf_puts(out, "{\"id\":");
    buf_json(out, meta->id, strlen(meta->id));
    buf_printf(out,
               ",\"object\":\"response\",\"created_at\":%" PRId64 ",\"model\":", meta->created);
    buf_json(out, meta->model, strlen(meta->model));
    buf_add(out, meta->repeated->data, meta->repeated->len);
}

static bool is_cut_off(const struct completion_choice *c)
{
    return strcmp(c->finish_reason, "length") == 0;
}

static void write_choice(const struct completion_meta *meta, const struct completion_choice *c,
                         struct buf *out)
{
    const struct reply_state *s = c->state;
    (void)meta;
    buf_puts(out, is_cut_off(c) ? ",\"status\":\"incomplete\",\"incomplete_details\":{\"reason\":"
                                  "\"max_output_tokens\"}"
                                : ",\"status\":\"completed\",\"incomplete_details\":null");
    buf_puts(out, ",\"output\":[");
    buf_add(out, s->items.data, s->items.len);
    buf_puts(out, "]");
    out->failed =
        out->failed || s->items.failed || s->text.failed || s->logprobs.failed || s->held.failed;
}

/* Nobody pays for what is written to a cache. */
static void end(const struct completion_usage *u, struct buf *out)
{
    buf_printf(out,
               ",\"usage\":{\"input_tokens\":%" PRId64
               ",\"input_tokens_details\":{\"cached_tokens\":%" PRId64 ",\"cache_write_tokens\":0}"
               ",\"output_tokens\":%" PRId64 ",\"output_tokens_details\":{\"reasoning_tokens\":"
               "%" PRId64 "},\"total_tokens\":%" PRId64 "}}",
               u->prompt_tokens, u->cached_tokens, u->completion_tokens,
               u->reasoning_tokens > 0 ? u->reasoning_tokens : 0,
               u->prompt_tokens + u->completion_tokens);
}

/* ---- events ---- */

static void begin_event(struct reply_state *s, const char *name, const char *what, struct buf *out)
{
    buf_printf(out, "event: %s%s\ndata: {\"type\":\"%s%s\",\"sequence_number\":%" PRId32, name,
               what, name, what, s->sequence++);
}

static void end_event(struct buf *out)
{
    buf_puts(out, "}\n\n");
}

static void write_start(const struct completion_meta *meta, struct reply_state *s,
                        const struct completion_usage *usage, struct buf *out)
{
    (void)usage;
    static const char *const names[] = {"response.created", "response.in_progress"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        begin_event(s, names[i], "", out);
        buf_puts(out, ",\"response\":");
        begin(meta, NULL, out);
        buf_puts(out, ",\"status\":\"in_progress\",\"incomplete_details\":null,\"output\":[],"
                      "\"usage\":null}");
        end_event(out);
    }
}

/* ---- items ---- */

static void write_id(const struct reply_state *s, const struct completion_meta *meta,
                     const char *prefix, struct buf *out)
{
    const char *own = strchr(meta->id, '_');
    buf_printf(out, "\"%s_%s%02" PRIx32 "\"", prefix, own ? own + 1 : meta->id, (uint32_t)s->index);
}

static void write_place(const struct reply_state *s, const struct completion_meta *meta,
                        const char *prefix, struct buf *out)
{
    buf_puts(out, ",\"item_id\":");
    write_id(s, meta, prefix, out);
    buf_printf(out, ",\"output_index\":%" PRId32, s->index);
}

static void write_list(const char *key, const struct buf *list, struct buf *out)
{
    buf_printf(out, ",\"%s\":[", key);
    buf_add(out, list->data, list->len);
    buf_puts(out, "]");
}

static void write_string(const char *key, const char *text, size_t n, struct buf *out)
{
    buf_printf(out, ",\"%s\":", key);
    buf_json(out, text ? text : "", n);
}

/* What the open item has said so far. */
static void write_part(const struct reply_state *s, struct buf *out)
{
    buf_printf(out, "{\"type\":\"%s\"", forms[s->open].part);
    write_string("text", s->text.data, s->text.len, out);
    if (s->open == MESSAGE) {
        buf_puts(out, ",\"annotations\":[]");
        write_list("logprobs", &s->logprobs, out);
    }
    buf_puts(out, "}");
}

/* The open item; begun: nothing is in it. */
static void write_item(const struct reply_state *s, const struct completion_meta *meta,
                       const char *status, bool begun, struct buf *out)
{
    buf_puts(out, "{\"id\":");
    write_id(s, meta, forms[s->open].prefix, out);
    buf_printf(out, ",\"type\":\"%s\",\"status\":\"%s\",%s,\"content\":[", forms[s->open].type,
               status, s->open == MESSAGE ? "\"role\":\"assistant\"" : "\"summary\":[]");
    if (!begun)
        write_part(s, out);
    buf_puts(out, "]}");
}

static void write_item_event(struct reply_state *s, const char *what, const char *item, size_t n,
                             struct buf *out)
{
    begin_event(s, "response.output_item.", what, out);
    buf_printf(out, ",\"output_index\":%" PRId32 ",\"item\":", s->index);
    buf_add(out, item, n);
    end_event(out);
}

static void write_part_event(struct reply_state *s, const struct completion_meta *meta,
                             const char *what, struct buf *out)
{
    begin_event(s, "response.content_part.", what, out);
    write_place(s, meta, forms[s->open].prefix, out);
    buf_puts(out, ",\"content_index\":0,\"part\":");
    write_part(s, out);
    end_event(out);
}

/* Text of the open item, or all of it. */
static void write_text_event(struct reply_state *s, const struct completion_meta *meta,
                             const char *what, const char *text, size_t n,
                             const struct buf *logprobs, struct buf *out)
{
    begin_event(s, forms[s->open].events, what, out);
    write_place(s, meta, forms[s->open].prefix, out);
    buf_puts(out, ",\"content_index\":0");
    write_string(strcmp(what, ".delta") == 0 ? "delta" : "text", text, n, out);
    if (s->open == MESSAGE)
        write_list("logprobs", logprobs, out);
    end_event(out);
}

/* Appends the item that text holds, and says that it is done. */
static void add_item(struct reply_state *s, const char *item, size_t n, struct buf *out)
{
    write_item_event(s, "done", item, n, out);
    buf_puts(&s->items, s->index > 0 ? "," : "");
    buf_add(&s->items, item, n);
    s->index++;
}

static void close_item(struct reply_state *s, const struct completion_meta *meta,
                       const char *status, struct buf *out)
{
    struct buf item;
    if (s->open == NOTHING)
        return;
    write_text_event(s, meta, ".done", s->text.data, s->text.len, &s->logprobs, out);
    write_part_event(s, meta, "done", out);
    buf_init(&item, BYTES_MAX);
    write_item(s, meta, status, false, &item);
    add_item(s, item.data, item.len, out);
    s->items.failed = s->items.failed || item.failed;
    buf_free(&item);
    s->open = NOTHING;
    empty(s, &s->text);
    empty(s, &s->logprobs);
}

static void open_item(struct reply_state *s, const struct completion_meta *meta, enum kind kind,
                      struct buf *out)
{
    struct buf item;
    if (s->open == kind)
        return;
    if (s->open == MESSAGE)
        empty(s, &s->held);
    s->said[kind] = true;
    close_item(s, meta, "completed", out);
    s->open = kind;
    buf_init(&item, BYTES_MAX);
    write_item(s, meta, "in_progress", true, &item);
    write_item_event(s, "added", item.data, item.len, out);
    s->items.failed = s->items.failed || item.failed;
    buf_free(&item);
    write_part_event(s, meta, "added", out);
}

/* In a chat what comes later is a new line of one text; here it is an item of its own. The tokens
 * before a thought are no message's. */
static void add_text(struct reply_state *s, const struct completion_meta *meta, enum kind kind,
                     const char *text, size_t n, struct buf *out)
{
    if (s->open != kind && s->said[kind] && n > 0 && *text == '\n') {
        text++;
        n--;
    }
    open_item(s, meta, kind, out);
    if (kind == REASONING)
        empty(s, &s->held);
    buf_add(&s->text, text, n);
    write_text_event(s, meta, ".delta", text, n, &s->held, out);
    if (kind == REASONING)
        return;
    buf_puts(&s->logprobs, s->logprobs.len > 0 && s->held.len > 0 ? "," : "");
    buf_add(&s->logprobs, s->held.data, s->held.len);
    empty(s, &s->held);
}

/* ---- calls, which come whole ---- */

static void write_call(const struct reply_state *s, const struct completion_meta *meta,
                       const struct answer_call *call, bool begun, struct buf *out)
{
    buf_puts(out, "{\"id\":");
    write_id(s, meta, "fc", out);
    buf_printf(out, ",\"type\":\"function_call\",\"status\":\"%s\",\"call_id\":\"%s\"",
               begun       ? "in_progress"
               : call->cut ? "incomplete"
                           : "completed",
               call->id);
    write_string("name", call->name, call->name_len, out);
    write_string("arguments", call->arguments, begun ? 0 : call->arguments_len, out);
    buf_puts(out, "}");
}

static void write_arguments(struct reply_state *s, const struct completion_meta *meta,
                            const struct answer_call *call, bool done, struct buf *out)
{
    begin_event(s, "response.function_call_arguments.", done ? "done" : "delta", out);
    write_place(s, meta, "fc", out);
    if (done)
        write_string("name", call->name, call->name_len, out);
    write_string(done ? "arguments" : "delta", call->arguments, call->arguments_len, out);
    end_event(out);
}

static void add_call(struct reply_state *s, const struct completion_meta *meta,
                     const struct answer_call *call, struct buf *out)
{
    struct buf item;
    close_item(s, meta, "completed", out);
    empty(s, &s->held);
    buf_init(&item, BYTES_MAX);
    write_call(s, meta, call, true, &item);
    write_item_event(s, "added", item.data, item.len, out);
    write_arguments(s, meta, call, false, out);
    write_arguments(s, meta, call, true, out);
    buf_clear(&item);
    write_call(s, meta, call, false, &item);
    add_item(s, item.data, item.len, out);
    s->items.failed = s->items.failed || item.failed;
    buf_free(&item);
}

/* ---- what has come ---- */

static void hold_logprobs(struct reply_state *s, const struct completion_meta *meta,
                          const struct completion_choice *c)
{
    if (c->logprobs_top < 0 || c->reasons || logprobs_count(c->logprobs) == 0)
        return;
    buf_puts(&s->held, s->held.len > 0 ? "," : "");
    logprobs_write_items(c->logprobs, c->logprobs_top, &meta->names, "[]", &s->held);
}

/* An answer of nothing is an empty message. */
static void finish_items(struct reply_state *s, const struct completion_meta *meta, bool cut_off,
                         struct buf *out)
{
    if (s->open == NOTHING && s->index == 0)
        open_item(s, meta, MESSAGE, out);
    if (s->open == MESSAGE && s->held.len > 0)
        add_text(s, meta, MESSAGE, "", 0, out);
    close_item(s, meta, cut_off ? "incomplete" : "completed", out);
}

static void add_part(struct reply_state *s, const struct completion_meta *meta,
                     const struct answer *answer, int32_t i, struct buf *out)
{
    const struct answer_part part = answer_part(answer, i);
    if (part.kind == ANSWER_CALL) {
        const struct answer_call call = answer_call(answer, part.call);
        add_call(s, meta, &call, out);
    } else {
        const enum kind kind = part.kind == ANSWER_REASONING ? REASONING : MESSAGE;
        add_text(s, meta, kind, part.text, part.len, out);
    }
}

/* Where a token brings several parts, what has waited is the first one's and the token is the last
 * one's: nobody knows better, and so a message does not have the tokens of a call before it. */
static void write_chunk(const struct completion_meta *meta, const struct completion_choice *c,
                        bool with_usage, const struct completion_usage *so_far, struct buf *out)
{
    struct reply_state *s = c->state;
    const int32_t last = (c->answer ? answer_part_count(c->answer) : 0) - 1;
    (void)with_usage;
    (void)so_far;
    for (int32_t i = 0; i < last; i++)
        add_part(s, meta, c->answer, i, out);
    hold_logprobs(s, meta, c);
    if (c->answer && answer_headed(c->answer) && c->text_len == 0)
        empty(s, &s->held);
    if (last >= 0)
        add_part(s, meta, c->answer, last, out);
    if (!c->answer && c->text_len > 0)
        add_text(s, meta, MESSAGE, c->text, c->text_len, out);
    if (c->finish_reason)
        finish_items(s, meta, is_cut_off(c), out);
}

static void write_finish(const struct completion_meta *meta, const struct completion_choice *c,
                         const struct completion_usage *usage, struct buf *out)
{
    begin_event(c->state, "response.", is_cut_off(c) ? "incomplete" : "completed", out);
    buf_puts(out, ",\"response\":");
    begin(meta, c, out);
    write_choice(meta, c, out);
    end(usage, out);
    end_event(out);
}

static void write_error(struct reply_state *s, const struct api_error *e, struct buf *out)
{
    begin_event(s, "error", "", out);
    buf_puts(out, ",");
    api_error_write_members(e, out);
    end_event(out);
}

const struct reply responses_reply = {
    .id_prefix = "resp_",
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
