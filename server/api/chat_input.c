/* DESIGN: pieces are written as messages that conversation.c reads like any others, so that what a
 * message may say, and what of it may be a control token, is decided in one place. What
 * conversation.c would refuse in words of its own is refused by those who add pieces, in the
 * client's. */
#include "server/api/chat_input.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A request's own limits, and room for what is written around its pieces. */
static const struct jdoc_limits limits = {
    .bytes_max = CHAT_INPUT_BYTES_MAX, .depth_max = 96, .tokens_max = 1000000, .nul = true};

/* ---- messages ---- */

void chat_input_init(struct chat_input_writer *w)
{
    *w = (struct chat_input_writer){.role = NULL};
    struct buf *const all[] = {&w->list, &w->origins, &w->content, &w->reasoning, &w->call_list};
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        buf_init(all[i], CHAT_INPUT_BYTES_MAX);
    buf_puts(&w->list, "[");
}

void chat_input_clear(struct chat_input_writer *w)
{
    buf_free(&w->list);
    buf_free(&w->origins);
    buf_free(&w->content);
    buf_free(&w->reasoning);
    buf_free(&w->call_list);
}

static void begin(struct chat_input_writer *w, const char *role, int32_t piece)
{
    buf_puts(&w->list, w->origins.len > 0 ? "," : "");
    buf_printf(&w->list, "{\"role\":\"%s\"", role);
    buf_add(&w->origins, &piece, sizeof piece);
}

static void write_text(struct chat_input_writer *w, const char *key, const struct buf *text)
{
    buf_printf(&w->list, ",\"%s\":", key);
    buf_json(&w->list, text->data ? text->data : "", text->len);
    w->list.failed = w->list.failed || text->failed;
}

/* A message that calls, and has no content of its own, has none in a chat either. */
void chat_input_close(struct chat_input_writer *w)
{
    if (!w->role)
        return;
    begin(w, w->role, w->begun);
    if (w->content.len > 0 || w->calls == 0)
        write_text(w, "content", &w->content);
    if (w->reasoning.len > 0)
        write_text(w, "reasoning_content", &w->reasoning);
    if (w->calls > 0) {
        buf_puts(&w->list, ",\"tool_calls\":[");
        buf_add(&w->list, w->call_list.data, w->call_list.len);
        buf_puts(&w->list, "]");
    }
    buf_puts(&w->list, "}");
    w->list.failed =
        w->list.failed || w->content.failed || w->reasoning.failed || w->call_list.failed;
    buf_clear(&w->content);
    buf_clear(&w->reasoning);
    buf_clear(&w->call_list);
    w->role = NULL;
    w->said = false;
    w->calls = 0;
}

bool chat_input_open(struct chat_input_writer *w, const char *role, int32_t piece)
{
    if (w->role && strcmp(w->role, role) == 0)
        return false;
    chat_input_close(w);
    w->role = role;
    w->begun = piece;
    return true;
}

void chat_input_add_text(struct chat_input_writer *w, const char *text, size_t n)
{
    buf_puts(&w->content, w->said ? "\n" : "");
    buf_add(&w->content, text, n);
    w->said = true;
}

void chat_input_add_reasoning(struct chat_input_writer *w, const char *text, size_t n)
{
    buf_puts(&w->reasoning, w->reasoning.len > 0 ? "\n" : "");
    buf_add(&w->reasoning, text, n);
}

enum status chat_input_begin_call(struct chat_input_writer *w, const struct field_string *id,
                                  const struct field_string *name, const char *type,
                                  struct api_error *e)
{
    struct buf *out = &w->call_list;
    if (w->calls == CONVERSATION_TOOL_CALLS_MAX)
        return api_error_field(e, "type",
                               "type must not be %s here: one message may have at most %d calls",
                               type, CONVERSATION_TOOL_CALLS_MAX);
    buf_puts(out, w->calls++ > 0 ? ",{\"id\":" : "{\"id\":");
    buf_json(out, id->bytes, id->len);
    buf_puts(out, ",\"type\":\"function\",\"function\":{\"name\":");
    buf_json(out, name->bytes, name->len);
    buf_puts(out, ",\"arguments\":");
    return OK;
}

void chat_input_end_call(struct chat_input_writer *w)
{
    buf_puts(&w->call_list, "}}");
}

void chat_input_add_result(struct chat_input_writer *w, const struct field_string *id,
                           const struct buf *text, int32_t piece)
{
    chat_input_close(w);
    begin(w, "tool", piece);
    buf_puts(&w->list, ",\"tool_call_id\":");
    buf_json(&w->list, id->bytes, id->len);
    write_text(w, "content", text);
    buf_puts(&w->list, "}");
}

enum status chat_input_finish(struct chat_input_writer *w, const char *field,
                              struct chat_input *out, struct api_error *e)
{
    struct err err = {""};
    struct jdoc *messages = NULL;
    chat_input_close(w);
    buf_puts(&w->list, "]");
    if (w->list.failed || w->origins.failed)
        return ERR_NOMEM;
    const enum status st = jdoc_parse(w->list.data, w->list.len, &limits, field, &messages, &err);
    if (st == ERR_INPUT)
        return api_error_field(e, field, "%s: %.400s", field, err.text);
    if (st == OK) {
        *out = (struct chat_input){messages, w->origins};
        buf_init(&w->origins, 0);
    }
    return st;
}

void chat_input_free(struct chat_input *in)
{
    jdoc_close(in->messages);
    buf_free(&in->origins);
    *in = (struct chat_input){0};
}

/* ---- errors ---- */

/* Where the path of a message ends: "messages", or "messages[3]" with *index. NULL: it is none. */
static const char *behind_path(const char *text, long *index)
{
    static const char name[] = "messages";
    char *end;
    *index = -1;
    if (strncmp(text, name, sizeof name - 1) != 0)
        return NULL;
    text += sizeof name - 1;
    if (*text != '[')
        return *text == '\0' || *text == ':' || *text == ' ' ? text : NULL;
    *index = strtol(text + 1, &end, 10);
    return *end == ']' ? end + 1 : NULL;
}

static void replace_path(const struct chat_input *in, const char *field, char *text, size_t cap)
{
    char path[32], copy[sizeof((struct api_error *)0)->message];
    long index;
    const char *rest = behind_path(text, &index);
    if (!rest)
        return;
    snprintf(path, sizeof path, "%.16s", field);
    if (in && index >= 0 && (size_t)index < in->origins.len / sizeof(int32_t)) {
        const int32_t *origins = (const int32_t *)(const void *)in->origins.data;
        if (origins[index] != CHAT_INPUT_NO_PIECE)
            snprintf(path, sizeof path, "%.16s[%d]", field, origins[index]);
    }
    const bool made = *rest == ' ' && strcmp(field, "messages") != 0;
    snprintf(copy, sizeof copy, "%s%s%s", made ? "messages made of " : "", path, rest);
    snprintf(text, cap, "%s", copy);
}

void chat_input_blame(const struct chat_input *in, const char *field, struct api_error *e)
{
    replace_path(in, field, e->param, sizeof e->param);
    replace_path(in, field, e->message, sizeof e->message);
}
