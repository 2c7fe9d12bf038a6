/* DESIGN: a body goes on as it came, byte by byte, so that no number changes: the parsed tree says
 * what is there and that it is right, and two small walks over text that is known to be JSON find
 * where the body lies. An answer is written as it came, too; a newline can only be a blank there.
 */
#include "server/bench/batch_line.h"

#include "config/jdoc.h"
#include "config/utf8.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const struct jdoc_limits request_limits = {.bytes_max = BATCH_LINE_REQUEST_BYTES_MAX,
                                                  .depth_max = 66,
                                                  .tokens_max = 1000000,
                                                  .nul = true,
                                                  .big = true};
static const struct jdoc_limits result_limits = {.bytes_max = BATCH_LINE_RESULT_BYTES_MAX,
                                                 .depth_max = 256,
                                                 .tokens_max = 20000000,
                                                 .nul = true,
                                                 .big = true,
                                                 .repeats = true};

/* So that what is accepted can be read again inside a line of the output. */
static const struct jdoc_limits answer_limits = {.bytes_max = BATCH_LINE_ANSWER_BYTES_MAX,
                                                 .depth_max = 250,
                                                 .tokens_max = 19999000,
                                                 .nul = true,
                                                 .big = true,
                                                 .repeats = true};

static const char *const paths[] = {"/chat/completions", "/completions", "/embeddings",
                                    "/responses", "/messages"};

/* ---- the input ---- */

/* Of valid JSON: the closing quote of the string that begins here. */
static const char *end_of_string(const char *at)
{
    while (*++at != '"')
        at += *at == '\\';
    return at;
}

/* Of valid JSON: behind the object that begins here. */
static const char *end_of_object(const char *at)
{
    int depth = 0;
    do {
        if (*at == '"')
            at = end_of_string(at);
        depth += (*at == '{') - (*at == '}');
        at++;
    } while (depth > 0);
    return at;
}

/* Of valid JSON: the value of the object's member of that number, which is an object as well. */
static const char *member_object(const char *at, size_t number)
{
    int depth = 0;
    for (;; at++) {
        if (*at == '"')
            at = end_of_string(at);
        depth += (*at == '{' || *at == '[') - (*at == '}' || *at == ']');
        if (*at == ':' && depth == 1 && number-- == 0)
            return at + 1 + strspn(at + 1, " \t\r\n");
    }
}

static void copy_body(const char *line, const struct jdoc *doc, const char *model, struct buf *out)
{
    size_t number = 0;
    const char *key;
    const struct jdoc *body;
    void *iter = jdoc_iter(doc, NULL, &key, &body);
    for (; strcmp(key, "body") != 0; number++)
        iter = jdoc_iter(doc, iter, &key, &body);
    const char *begin = member_object(line, number);
    const size_t n = (size_t)(end_of_object(begin) - begin);
    buf_init(out, n + 8192);
    if (jdoc_get(body, "model")) {
        buf_add(out, begin, n);
        return;
    }
    buf_puts(out, "{\"model\": ");
    buf_json(out, model, strlen(model));
    buf_puts(out, jdoc_size(body) > 0 ? ", " : "");
    buf_add(out, begin + 1, n - 1);
}

/* NULL: it must be there, and be of that type. */
static const struct jdoc *wanted(const struct jdoc *doc, const char *name, enum jdoc_type type,
                                 struct err *err)
{
    const struct jdoc *v = jdoc_get(doc, name);
    if (v && jdoc_type(v) == type)
        return v;
    base_fail(err, ERR_INPUT, "%s must be %s, got %s", name,
              type == JDOC_STRING ? "a string" : "an object",
              v ? jdoc_type_name(jdoc_type(v)) : "nothing");
    return NULL;
}

/* With the NUL that it ends with; NULL: no memory. */
static char *copy_string(const struct jdoc *s)
{
    const size_t n = jdoc_string_len(s) + 1;
    char *copy = malloc(n);
    if (copy)
        memcpy(copy, jdoc_string(s), n);
    return copy;
}

static enum status take_id(const struct jdoc *doc, struct batch_request *r, struct err *err)
{
    const struct jdoc *id = wanted(doc, "custom_id", JDOC_STRING, err);
    if (!id)
        return ERR_INPUT;
    r->custom_id_len = jdoc_string_len(id);
    r->custom_id = copy_string(id);
    return r->custom_id ? OK : base_fail(err, ERR_NOMEM, "no memory for a request");
}

static enum status take_url(const struct jdoc *doc, struct batch_request *r, struct err *err)
{
    const struct jdoc *method = wanted(doc, "method", JDOC_STRING, err);
    const struct jdoc *url = method ? wanted(doc, "url", JDOC_STRING, err) : NULL;
    if (!url)
        return ERR_INPUT;
    if (strcmp(jdoc_string(method), "POST") != 0)
        return base_fail(err, ERR_INPUT, "method must be POST, got \"%.40s\"", jdoc_string(method));
    for (size_t i = 0; i < ARRAY_LEN(paths); i++)
        if (strncmp(jdoc_string(url), "/v1", 3) == 0 && strcmp(jdoc_string(url) + 3, paths[i]) == 0)
            r->path = paths[i];
    if (!r->path)
        return base_fail(err, ERR_INPUT,
                         "url must be /v1/chat/completions, /v1/completions, /v1/embeddings, "
                         "/v1/responses or /v1/messages, got \"%.80s\"",
                         jdoc_string(url));
    return OK;
}

static enum status take_body(const char *line, const struct jdoc *doc, const char *model,
                             struct batch_request *r, struct err *err)
{
    const struct jdoc *body = wanted(doc, "body", JDOC_OBJECT, err);
    if (!body)
        return ERR_INPUT;
    const struct jdoc *stream = jdoc_get_value(body, "stream");
    if (stream && (jdoc_type(stream) != JDOC_BOOL || jdoc_bool(stream)))
        return base_fail(err, ERR_INPUT, "stream must be false: an answer of a batch is one line");
    copy_body(line, doc, model, &r->body);
    return r->body.failed ? base_fail(err, ERR_NOMEM, "no memory for a request") : OK;
}

enum status batch_line_request(const char *line, size_t n, const char *model,
                               struct batch_request *out, struct err *err)
{
    enum status st = OK;
    struct jdoc *doc = NULL;
    *out = (struct batch_request){.path = NULL};
    buf_init(&out->body, 0);
    st = jdoc_parse(line, n, &request_limits, "no request", &doc, err);
    if (st != OK)
        return st == ERR_NOMEM ? st : ERR_INPUT;
    if (jdoc_type(doc) != JDOC_OBJECT)
        TRY(base_fail(err, ERR_INPUT, "a request is an object, got %s",
                      jdoc_type_name(jdoc_type(doc))));
    TRY(take_id(doc, out, err));
    TRY(take_url(doc, out, err));
    TRY(take_body(line, doc, model, out, err));
out:
    jdoc_close(doc);
    return st;
}

void batch_line_free(struct batch_request *r)
{
    free(r->custom_id);
    buf_free(&r->body);
    *r = (struct batch_request){.path = NULL};
}

/* ---- the output ---- */

/* A message may have been cut within a character, and quote bytes that are none. */
static void add_message(struct buf *out, const char *text)
{
    struct buf valid;
    buf_init(&valid, 2048);
    for (size_t left = strlen(text); left > 0;) {
        const size_t n = utf8_char(text, left);
        if (n > 0)
            buf_add(&valid, text, n);
        text += n > 0 ? n : 1;
        left -= n > 0 ? n : 1;
    }
    buf_json(out, valid.data ? valid.data : "", valid.len);
    buf_free(&valid);
}

static void add_answer(const struct batch_result *r, struct buf *out)
{
    buf_printf(out, "{\"status_code\": %d, \"request_id\": ", r->http_status);
    buf_json(out, r->request_id, strlen(r->request_id));
    buf_puts(out, ", \"body\": ");
    const size_t begin = out->len;
    if (r->body)
        buf_add(out, r->body->data, r->body->len);
    else
        buf_puts(out, "null");
    for (size_t i = begin; i < out->len; i++)
        if (out->data[i] == '\n' || out->data[i] == '\r')
            out->data[i] = ' ';
    buf_puts(out, "}");
}

void batch_line_write(const struct batch_result *r, struct buf *out)
{
    buf_printf(out, BATCH_LINE_BEGIN "%016" PRIx64 "\", \"custom_id\": ", r->id);
    if (r->custom_id)
        buf_json(out, r->custom_id, r->custom_id_len);
    else
        buf_puts(out, "null");
    buf_puts(out, ", \"response\": ");
    if (r->http_status)
        add_answer(r, out);
    else
        buf_puts(out, "null");
    buf_puts(out, ", \"error\": ");
    if (r->code) {
        buf_printf(out, "{\"code\": \"%s\", \"message\": ", r->code);
        add_message(out, r->message);
        if (r->line > 0)
            buf_printf(out, ", \"line\": %" PRId64, r->line);
        buf_puts(out, "}");
    } else
        buf_puts(out, "null");
    buf_puts(out, "}\n");
}

/* Of a usage object, under either of the names that APIs give it. */
static int64_t tokens(const struct jdoc *usage, const char *name, const char *other)
{
    const struct jdoc *n = jdoc_member(usage, name, JDOC_INT);
    n = n ? n : jdoc_member(usage, other, JDOC_INT);
    return n && jdoc_int(n) > 0 ? jdoc_int(n) : 0;
}

bool batch_line_answer(const struct buf *body, struct batch_answer *out)
{
    struct jdoc *doc = NULL;
    struct err ignored;
    *out = (struct batch_answer){.message = ""};
    if (body->len == 0 ||
        jdoc_parse(body->data, body->len, &answer_limits, "", &doc, &ignored) != OK)
        return false;
    const struct jdoc *usage = jdoc_member(doc, "usage", JDOC_OBJECT);
    const struct jdoc *message =
        jdoc_member(jdoc_member(doc, "error", JDOC_OBJECT), "message", JDOC_STRING);
    out->prompt_tokens = tokens(usage, "prompt_tokens", "input_tokens");
    out->completion_tokens = tokens(usage, "completion_tokens", "output_tokens");
    if (message) {
        const size_t n = jdoc_string_len(message), most = sizeof out->message - 1;
        memcpy(out->message, jdoc_string(message), n < most ? n : most);
    }
    jdoc_close(doc);
    return true;
}

bool batch_line_result(const char *line, size_t n, char **custom_id, size_t *custom_id_len,
                       bool *answered)
{
    struct jdoc *doc = NULL;
    struct err ignored;
    if (jdoc_parse(line, n, &result_limits, "", &doc, &ignored) != OK)
        return false;
    const bool object = jdoc_type(doc) == JDOC_OBJECT;
    const struct jdoc *id = jdoc_member(doc, "custom_id", JDOC_STRING);
    const struct jdoc *code =
        jdoc_member(jdoc_member(doc, "response", JDOC_OBJECT), "status_code", JDOC_INT);
    const bool is_result =
        object && jdoc_get(doc, "custom_id") && jdoc_get(doc, "response") && jdoc_get(doc, "error");
    char *name = is_result && id ? copy_string(id) : NULL;
    const bool good = is_result && (name || !id);
    if (good) {
        *answered = id && code && jdoc_int(code) == 200 && !jdoc_get_value(doc, "error");
        *custom_id = name;
        *custom_id_len = id ? jdoc_string_len(id) : 0;
    }
    jdoc_close(doc);
    return good;
}
