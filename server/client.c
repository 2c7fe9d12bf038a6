#include "server/client.h"

#include "config/file.h"
#include "config/jdoc.h"
#include "config/utf8.h"
#include "server/bench/child.h"
#include "server/bench/chunk.h"
#include "server/bench/reply.h"
#include "server/bench/target.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const double ask_timeout = 60; /* for the model's name */

struct client {
    const struct options *o;
    bool chat;
    struct child *child; /* NULL: somebody else's server */
    struct target target;
    char model[TARGET_NAME_MAX];
};

struct reply_text {
    FILE *out;   /* content goes to stdout, reasoning to stderr */
    bool masked; /* stdout is a terminal, which must not obey what a model says */
    bool dims;   /* stderr is one */
    char last;   /* byte that was printed; 0: none */
    int64_t tokens;
    bool finished, cut; /* cut: by the limit of tokens */
    double first_at;    /* 0: nothing has come */
    struct buf *text;   /* NULL: is not kept */
    struct err failed;  /* what the stream says went wrong; "": nothing */
};

/* ---- the request ---- */

/* Options that are fields of a request; the API's own table knows their types and limits. */
static const struct {
    const char *field;
    size_t offset;
    bool is_text;
} fields[] = {
    {"max_tokens", offsetof(struct options, complete.max_tokens), false},
    {"temperature", offsetof(struct options, complete.temperature), false},
    {"top_p", offsetof(struct options, complete.top_p), false},
    {"top_k", offsetof(struct options, complete.top_k), false},
    {"min_p", offsetof(struct options, complete.min_p), false},
    {"presence_penalty", offsetof(struct options, complete.presence_penalty), false},
    {"frequency_penalty", offsetof(struct options, complete.frequency_penalty), false},
    {"repetition_penalty", offsetof(struct options, complete.repetition_penalty), false},
    {"seed", offsetof(struct options, complete.seed), false},
    {"stop", offsetof(struct options, complete.stop), true},
};

/* As JSON writes them. */
static bool is_number(const char *text)
{
    struct jdoc *doc = NULL;
    struct err ignored;
    const size_t n = strlen(text);
    if (strspn(text, "-+.0123456789eE") != n ||
        jdoc_parse(text, n, &jdoc_limits_request, "", &doc, &ignored) != OK)
        return false;
    jdoc_close(doc);
    return true;
}

void client_add_sampling(const struct options *o, struct buf *out)
{
    for (size_t i = 0; i < ARRAY_LEN(fields); i++) {
        const char *value = *(const char *const *)((const char *)o + fields[i].offset);
        if (!value)
            continue;
        buf_printf(out, ", \"%s\": ", fields[i].field);
        if (!fields[i].is_text && is_number(value))
            buf_puts(out, value);
        else
            buf_json(out, value, strlen(value)); /* where a number is wanted, the table says so */
    }
    if (o->bench.ignore_eos)
        buf_puts(out, ", \"ignore_eos\": true");
}

struct completion_rules client_rules(void)
{
    static const char *const any = "";
    return (struct completion_rules){.model_names = &any,
                                     .model_name_count = 1,
                                     .vocab = INT32_MAX,
                                     .max_model_len = INT32_MAX,
                                     .has_tokenizer = true,
                                     .defaults = model_config_no_defaults()};
}

enum status client_read_text(const struct options *o, char **text, size_t *n, struct err *err)
{
    enum status st = OK;
    const struct file_spec in = {.path = "/dev/stdin",
                                 .what =
                                     o->command == COMMAND_CHAT ? "the message: " : "the prompt: ",
                                 .bytes_max = CLIENT_TEXT_BYTES_MAX,
                                 .failure = ERR_USAGE,
                                 .pipes = true};
    char *read = NULL;
    const char *word = o->complete.prompt;
    if (word) {
        *n = strlen(word);
        read = strdup(word);
        if (!read)
            return base_fail(err, ERR_NOMEM, "no memory for what is to be said");
    } else
        TRY(file_read(&in, &read, n, err));
    *text = read;
out:
    return st;
}

/* ---- the answer ---- */

/* Where the text goes from now on; what has begun elsewhere ends its line there. */
static void turn_to(struct reply_text *a, FILE *out)
{
    if (a->out == out)
        return;
    if (a->last && a->last != '\n')
        putc('\n', a->out);
    a->last = 0;
    if (a->dims)
        fputs(out == stderr ? "\033[2m" : "\033[0m", stderr);
    fflush(a->out);
    a->out = out;
}

static void print(struct reply_text *a, const char *text, size_t n)
{
    const bool masked = a->out == stdout ? a->masked : a->dims;
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)text[i];
        const unsigned char next = i + 1 < n ? (unsigned char)text[i + 1] : 0;
        const bool high = c == 0xc2 && next >= 0x80 && next < 0xa0; /* U+0080 to U+009F */
        const bool control = (c < ' ' && c != '\n' && c != '\t') || c == 0x7f || high;
        putc(masked && control ? '?' : c, a->out);
        i += masked && high;
    }
    if (n > 0)
        a->last = text[n - 1];
    fflush(a->out);
}

static const struct jdoc *first_choice(const struct jdoc *chunk)
{
    const struct jdoc *choices = jdoc_member(chunk, "choices", JDOC_ARRAY);
    return choices && jdoc_size(choices) > 0 ? jdoc_at(choices, 0) : NULL;
}

/* The text of a choice, of a chat or not; NULL when it has none. */
static const struct jdoc *text_of(const struct jdoc *choice)
{
    const struct jdoc *delta = jdoc_member(choice, "delta", JDOC_OBJECT);
    return delta ? jdoc_member(delta, "content", JDOC_STRING)
                 : jdoc_member(choice, "text", JDOC_STRING);
}

/* What the model says to itself, under the two names that servers give it. */
static const struct jdoc *reasoning_of(const struct jdoc *choice)
{
    const struct jdoc *delta = jdoc_member(choice, "delta", JDOC_OBJECT);
    const struct jdoc *text = jdoc_member(delta, "reasoning", JDOC_STRING);
    return text ? text : jdoc_member(delta, "reasoning_content", JDOC_STRING);
}

static void take_text(struct reply_text *a, const struct jdoc *text, FILE *out)
{
    if (!text)
        return;
    if (a->first_at == 0)
        a->first_at = base_now();
    if (jdoc_string_len(text) > 0)
        turn_to(a, out);
    print(a, jdoc_string(text), jdoc_string_len(text));
    if (a->text && out == stdout)
        buf_add(a->text, jdoc_string(text), jdoc_string_len(text));
}

static void take_event(void *ctx, const char *data, size_t n)
{
    struct reply_text *a = ctx;
    struct chunk c;
    struct jdoc *doc = NULL;
    struct err ignored;
    if (n == 6 && memcmp(data, "[DONE]", 6) == 0)
        return;
    if (!chunk_read(data, n, &c) ||
        jdoc_parse(data, n, &jdoc_limits_request, "", &doc, &ignored) != OK) {
        base_fail(&a->failed, ERR_PEER, "an event is not JSON: %.*s", (int)(n < 100 ? n : 100),
                  data);
        return;
    }
    if (c.is_error)
        base_fail(&a->failed, ERR_PEER, "the stream ended with an error: %.*s",
                  (int)(n < 300 ? n : 300), data);
    a->finished |= c.finished;
    if (c.completion_tokens >= 0)
        a->tokens = c.completion_tokens;
    const struct jdoc *choice = first_choice(doc);
    const struct jdoc *reason = jdoc_member(choice, "finish_reason", JDOC_STRING);
    a->cut |= reason && strcmp(jdoc_string(reason), "length") == 0;
    take_text(a, reasoning_of(choice), stderr);
    take_text(a, text_of(choice), stdout);
    jdoc_close(doc);
}

static void end_line(struct reply_text *a)
{
    turn_to(a, stdout);
    if (a->last && a->last != '\n')
        putchar('\n');
    fflush(stdout);
}

/* The end of the text, and what can have gone wrong until then. */
static enum status end_answer(struct reply_text *a, const struct target *t, double began,
                              struct err *err)
{
    end_line(a);
    if (a->failed.text[0])
        return base_fail(err, ERR_PEER, "%s", a->failed.text);
    if (!a->finished)
        return base_fail(err, ERR_PEER, "http://%s%s: the answer was cut off", t->host, t->path);
    const double now = base_now();
    base_log(LOG_INFO, "%" PRId64 " tokens in %.2f s, the first after %.2f s%s", a->tokens,
             now - began, (a->first_at > 0 ? a->first_at : now) - began,
             a->cut ? "; --max-tokens or the context ended it" : "");
    return OK;
}

static enum status refusal(const struct target *t, int32_t http_status, const struct buf *body,
                           struct err *err)
{
    struct jdoc *doc = NULL;
    struct err ignored;
    const struct jdoc *message = NULL;
    const char *why = body->data ? body->data : "";
    if (body->len > 0 &&
        jdoc_parse(body->data, body->len, &jdoc_limits_request, "", &doc, &ignored) == OK)
        message = jdoc_member(jdoc_member(doc, "error", JDOC_OBJECT), "message", JDOC_STRING);
    if (message)
        why = jdoc_string(message);
    enum status st =
        base_fail(err, http_status == 400 ? ERR_USAGE : ERR_PEER,
                  "http://%s%s answers HTTP %d: %.300s", t->host, t->path, http_status, why);
    jdoc_close(doc);
    return st;
}

static enum status post(struct client *c, const struct buf *body, struct reply_text *a,
                        struct err *err)
{
    enum status st = OK;
    int32_t http_status = 0;
    struct buf other;
    const double began = base_now();
    buf_init(&other, REPLY_BODY_BYTES_MAX + 1);
    st = target_stream(&c->target, body, c->o->bench.timeout, take_event, a, &http_status, &other,
                       err);
    if (st != OK && target_is_stopped(&c->target)) {
        end_line(a);
        st = OK;
    } else if (st == OK)
        st = http_status == 200 ? end_answer(a, &c->target, began, err)
                                : refusal(&c->target, http_status, &other, err);
    turn_to(a, stdout);
    buf_free(&other);
    return st;
}

enum status client_ask(struct client *c, const struct buf *members, int stop_fd, struct buf *text,
                       struct err *err)
{
    enum status st = OK;
    struct buf body;
    struct reply_text a = {.out = stdout,
                           .masked = isatty(STDOUT_FILENO) == 1,
                           .dims = isatty(STDERR_FILENO) == 1,
                           .text = text};
    c->target.stop_fd = stop_fd;
    buf_init(&body, members->max + 4096);
    buf_puts(&body, "{\"model\": ");
    buf_json(&body, c->model, strlen(c->model));
    buf_printf(&body, ", \"stream\": true, \"stream_options\": {\"include_usage\": true}, %s}",
               members->data);
    if (body.failed)
        TRY(base_fail(err, ERR_NOMEM, "no memory for the request"));
    TRY(post(c, &body, &a, err));
out:
    buf_free(&body);
    return st;
}

/* ---- the server ---- */

enum status client_open(const struct options *o, bool chat, struct client **out, struct err *err)
{
    enum status st = OK;
    const bool remote = target_is_url(o->model);
    struct client *c = calloc(1, sizeof *c);
    if (!c)
        return base_fail(err, ERR_NOMEM, "no memory to ask a server");
    c->o = o;
    c->chat = chat;
    if (remote)
        TRY(target_parse(o->model, &c->target, err));
    if (c->target.is_chat && !chat)
        TRY(base_fail(err, ERR_USAGE, "%s is for chats; give the server's URL, or tessera chat",
                      o->model));
    if (remote && o->bench.rest_count > 0)
        TRY(base_fail(err, ERR_USAGE, "%s is a server's URL: options after -- are for a MODEL",
                      o->model));
    TRY(target_check(o->bench.model, o->bench.api_key, err));
    *out = c;
    return OK;
out:
    client_close(c);
    return st;
}

enum status client_start(struct client *c, struct err *err)
{
    enum status st = OK;
    const struct options *o = c->o;
    char url[256];
    if (!target_is_url(o->model)) {
        const double began = base_now();
        base_log(LOG_INFO, "loading %s", o->model);
        TRY(child_open(o->model, o->bench.rest_count, o->bench.rest, &c->child, url, sizeof url,
                       err));
        base_log(LOG_INFO, "ready after %.1f s", base_now() - began);
        TRY(target_parse(url, &c->target, err));
    }
    TRY(target_resolve(&c->target, ask_timeout, err));
    c->target.api_key = o->bench.api_key;
    if (o->bench.model)
        snprintf(c->model, sizeof c->model, "%s", o->bench.model);
    else
        TRY(target_model(&c->target, ask_timeout, c->model, sizeof c->model, err));
    if (c->chat)
        target_chat(&c->target);
out:
    return st;
}

const struct target *client_target(const struct client *c)
{
    return &c->target;
}

const char *client_model(const struct client *c)
{
    return c->model;
}

void client_close(struct client *c)
{
    if (c)
        child_close(c->child);
    free(c);
}
