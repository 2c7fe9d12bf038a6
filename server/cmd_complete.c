/* tessera complete: one completion in the terminal, from a server or from one that it starts. Text
 * goes to stdout as it comes, everything else to stderr. */
#include "config/buf.h"
#include "config/file.h"
#include "config/jdoc.h"
#include "server/api/completion.h"
#include "server/bench/child.h"
#include "server/bench/chunk.h"
#include "server/bench/reply.h"
#include "server/bench/target.h"
#include "server/commands.h"
#include "server/utf8.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PROMPT_BYTES_MAX (1u << 20)
static const double ask_timeout = 60; /* for the model's name */

struct answer {
    bool masked; /* stdout is a terminal, which must not obey what a model says */
    char last;   /* byte that was printed; 0: none */
    int64_t tokens;
    bool finished;
    double first_at;   /* 0: nothing has come */
    struct err failed; /* what the stream says went wrong; "": nothing */
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

static void add_fields(const struct options *o, const char *prompt, size_t n, struct buf *out)
{
    buf_puts(out, "\"prompt\": ");
    buf_json(out, prompt, n);
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

/* Would our own server take these fields? Asked before anything is started. */
static enum status check_fields(const struct buf *fields_text, struct err *err)
{
    static const char *const any = "";
    const struct completion_rules rules = {.model_names = &any,
                                           .model_name_count = 1,
                                           .vocab = INT32_MAX,
                                           .max_model_len = INT32_MAX,
                                           .has_tokenizer = true,
                                           .defaults = model_config_no_defaults()};
    struct completion_request r = {0};
    struct api_error e = {0};
    struct buf body;
    buf_init(&body, fields_text->max + 2);
    buf_printf(&body, "{%s}", fields_text->data ? fields_text->data : "");
    enum status st = body.failed ? base_fail(err, ERR_NOMEM, "no memory for the request")
                                 : completion_parse(body.data, body.len, &rules, &r, &e);
    if (st == ERR_INPUT)
        st = base_fail(err, ERR_USAGE, "%s", e.message);
    completion_free(&r);
    buf_free(&body);
    return st;
}

/* The members of the request's object but for the model, from the command line and stdin. */
static enum status make_fields(const struct options *o, struct buf *out, struct err *err)
{
    enum status st = OK;
    const struct file_spec in = {.path = "/dev/stdin",
                                 .what = "the prompt: ",
                                 .bytes_max = PROMPT_BYTES_MAX,
                                 .failure = ERR_USAGE,
                                 .pipes = true};
    const char *prompt = o->complete.prompt;
    char *read = NULL;
    size_t n = prompt ? strlen(prompt) : 0;
    if (!prompt)
        TRY(file_read(&in, &read, &n, err));
    prompt = prompt ? prompt : read;
    const char *stop = o->complete.stop ? o->complete.stop : "";
    if (!utf8_is_valid(prompt, n) || !utf8_is_valid(stop, strlen(stop)))
        TRY(base_fail(err, ERR_USAGE, "the prompt or --stop is not UTF-8"));
    add_fields(o, prompt, n, out);
    TRY(check_fields(out, err));
out:
    free(read);
    return st;
}

/* ---- the answer ---- */

static void print(struct answer *a, const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)text[i];
        const bool control = (c < ' ' && c != '\n' && c != '\t') || c == 0x7f;
        putchar(a->masked && control ? '?' : c);
    }
    if (n > 0)
        a->last = text[n - 1];
    fflush(stdout);
}

/* The text of the first choice of a chunk; NULL when it has none. */
static const struct jdoc *text_of(const struct jdoc *chunk)
{
    const struct jdoc *choices =
        jdoc_type(chunk) == JDOC_OBJECT ? jdoc_get(chunk, "choices") : NULL;
    const struct jdoc *first = choices && jdoc_type(choices) == JDOC_ARRAY && jdoc_size(choices) > 0
                                   ? jdoc_at(choices, 0)
                                   : NULL;
    const struct jdoc *text =
        first && jdoc_type(first) == JDOC_OBJECT ? jdoc_get(first, "text") : NULL;
    return text && jdoc_type(text) == JDOC_STRING ? text : NULL;
}

static void take_event(void *ctx, const char *data, size_t n)
{
    struct answer *a = ctx;
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
    const struct jdoc *text = text_of(doc);
    if (text && a->first_at == 0)
        a->first_at = base_now();
    if (text)
        print(a, jdoc_string(text), jdoc_string_len(text));
    jdoc_close(doc);
}

/* The end of the text, and what can have gone wrong until then. */
static enum status end_answer(const struct answer *a, const struct target *t, double began,
                              struct err *err)
{
    if (a->last && a->last != '\n')
        putchar('\n');
    if (a->failed.text[0])
        return base_fail(err, ERR_PEER, "%s", a->failed.text);
    if (!a->finished)
        return base_fail(err, ERR_PEER, "http://%s%s: the answer was cut off", t->host, t->path);
    const double now = base_now();
    base_log(LOG_INFO, "%" PRId64 " tokens in %.2f s, the first after %.2f s", a->tokens,
             now - began, (a->first_at > 0 ? a->first_at : now) - began);
    return OK;
}

static enum status refusal(const struct target *t, int32_t http_status, const struct buf *body,
                           struct err *err)
{
    struct jdoc *doc = NULL;
    struct err ignored;
    const struct jdoc *e = NULL, *m = NULL;
    const char *why = body->data ? body->data : "";
    if (body->len > 0 &&
        jdoc_parse(body->data, body->len, &jdoc_limits_request, "", &doc, &ignored) == OK &&
        jdoc_type(doc) == JDOC_OBJECT)
        e = jdoc_get(doc, "error");
    if (e && jdoc_type(e) == JDOC_OBJECT)
        m = jdoc_get(e, "message");
    if (m && jdoc_type(m) == JDOC_STRING)
        why = jdoc_string(m);
    enum status st =
        base_fail(err, http_status == 400 ? ERR_USAGE : ERR_PEER,
                  "http://%s%s answers HTTP %d: %.300s", t->host, t->path, http_status, why);
    jdoc_close(doc);
    return st;
}

static enum status complete(const struct target *t, const char *model, const struct buf *members,
                            double timeout, struct err *err)
{
    enum status st = OK;
    int32_t http_status = 0;
    struct buf body, other;
    struct answer a = {.masked = isatty(STDOUT_FILENO) == 1};
    const double began = base_now();
    buf_init(&body, members->max + 4096);
    buf_init(&other, REPLY_BODY_BYTES_MAX + 1);
    buf_puts(&body, "{\"model\": ");
    buf_json(&body, model, strlen(model));
    buf_printf(&body, ", \"stream\": true, \"stream_options\": {\"include_usage\": true}, %s}",
               members->data);
    if (body.failed)
        TRY(base_fail(err, ERR_NOMEM, "no memory for the request"));
    TRY(target_stream(t, &body, timeout, take_event, &a, &http_status, &other, err));
    st = http_status == 200 ? end_answer(&a, t, began, err) : refusal(t, http_status, &other, err);
out:
    buf_free(&body);
    buf_free(&other);
    return st;
}

/* ---- the command ---- */

static enum status open_target(const struct options *o, struct child **child, struct target *t,
                               struct err *err)
{
    enum status st = OK;
    char url[256];
    if (strstr(o->model, "://"))
        return target_resolve(t, ask_timeout, err);
    const double began = base_now();
    base_log(LOG_INFO, "loading %s", o->model);
    TRY(child_open(o->model, o->bench.rest_count, o->bench.rest, child, url, sizeof url, err));
    base_log(LOG_INFO, "ready after %.1f s", base_now() - began);
    TRY(target_parse(url, t, err));
    TRY(target_resolve(t, ask_timeout, err));
out:
    return st;
}

enum status commands_complete(const struct options *o, struct err *err)
{
    enum status st = OK;
    const bool remote = strstr(o->model, "://") != NULL;
    struct child *child = NULL;
    struct target t = {0};
    struct buf members;
    char model[TARGET_NAME_MAX];
    buf_init(&members, 8 * PROMPT_BYTES_MAX);
    if (remote)
        TRY(target_parse(o->model, &t, err));
    if (t.is_chat || (remote && o->bench.rest_count > 0))
        TRY(base_fail(err, ERR_USAGE,
                      t.is_chat ? "%s is for chats; give the server's URL"
                                : "%s is a server's URL: options after -- are for a MODEL",
                      o->model));
    TRY(target_check(o->bench.model, o->bench.api_key, err));
    TRY(make_fields(o, &members, err));
    TRY(open_target(o, &child, &t, err));
    t.api_key = o->bench.api_key;
    if (o->bench.model)
        snprintf(model, sizeof model, "%s", o->bench.model);
    else
        TRY(target_model(&t, ask_timeout, model, sizeof model, err));
    st = complete(&t, model, &members, o->bench.timeout, err);
out:
    child_close(child);
    buf_free(&members);
    return st;
}
