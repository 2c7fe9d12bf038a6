/* DESIGN: a request is a pure function of (seed, round, index), made when it is sent: nothing is
 * kept per request, and two runs send the same bytes. */
#include "server/bench/workload.h"

#include "config/jdoc.h"
#include "kernels/numerics.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINES_MAX = 1 << 20, LINE_BYTES_MAX = 4 << 20, FIRST_ID = 3 };

/* A line of the file: its prompt as JSON, ready to be sent. */
struct line {
    char *prompt;
    bool is_text;
    int32_t output_len;
};

struct workload {
    struct workload_config config;
    struct line *lines;
    int32_t count, cap;
};

/* splitmix64: good enough to choose prompts and times, and the same everywhere. */
static uint64_t next(uint64_t *state)
{
    return numerics_mix(*state += 0x9e3779b97f4a7c15ull);
}

static uint64_t key(int64_t seed, uint64_t round, uint64_t i)
{
    uint64_t state = (uint64_t)seed;
    state = next(&state) ^ round;
    state = next(&state) ^ i;
    return next(&state);
}

static enum status parse_line(struct workload *w, const char *text, size_t n, const char *where,
                              struct err *err)
{
    enum status st = OK;
    struct jdoc *doc = NULL;
    struct buf json;
    buf_init(&json, LINE_BYTES_MAX);
    TRY(jdoc_parse(text, n, &jdoc_limits_request, where, &doc, err));
    bool is_object = jdoc_type(doc) == JDOC_OBJECT;
    const struct jdoc *prompt = is_object ? jdoc_get(doc, "prompt") : NULL;
    const struct jdoc *tokens = is_object ? jdoc_get_value(doc, "max_tokens") : NULL;
    size_t len;
    struct line line = {.output_len = w->config.output_len};
    if (prompt && jdoc_type(prompt) == JDOC_STRING) {
        line.is_text = true;
        buf_json(&json, jdoc_string(prompt), jdoc_string_len(prompt));
    } else if (prompt && jdoc_type(prompt) == JDOC_ARRAY && jdoc_size(prompt) > 0) {
        for (size_t i = 0; i < jdoc_size(prompt) && st == OK; i++)
            if (jdoc_type(jdoc_at(prompt, i)) == JDOC_INT)
                buf_printf(&json, "%c%lld", i ? ',' : '[', (long long)jdoc_int(jdoc_at(prompt, i)));
            else
                st = ERR_USAGE;
        buf_puts(&json, "]");
    } else {
        st = ERR_USAGE;
    }
    if (tokens &&
        (jdoc_type(tokens) != JDOC_INT || jdoc_int(tokens) < 1 || jdoc_int(tokens) > 1 << 20))
        st = ERR_USAGE;
    else if (tokens)
        line.output_len = (int32_t)jdoc_int(tokens);
    line.prompt = st == OK ? buf_take(&json, &len) : NULL;
    if (!line.prompt)
        st = base_fail(err, ERR_USAGE,
                       "%s: expected {\"prompt\": text or token ids, \"max_tokens\": number}",
                       where);
    else
        w->lines[w->count++] = line;
out:
    jdoc_close(doc);
    buf_free(&json);
    return st == OK ? OK : ERR_USAGE;
}

static enum status grow(struct workload *w, struct err *err)
{
    if (w->count < w->cap)
        return OK;
    int32_t cap = w->cap ? 2 * w->cap : 64;
    struct line *lines =
        w->count < LINES_MAX ? realloc(w->lines, (size_t)cap * sizeof *lines) : NULL;
    if (!lines)
        return base_fail(err, ERR_NOMEM, "%s: more than %d prompts", w->config.file, w->count);
    w->lines = lines;
    w->cap = cap;
    return OK;
}

static enum status load_file(struct workload *w, struct err *err)
{
    enum status st = OK;
    char *text = NULL, where[300];
    size_t cap = 0;
    ssize_t n;
    FILE *f = fopen(w->config.file, "re");
    if (!f)
        return base_fail_errno(err, ERR_USAGE, "--prompts %s", w->config.file);
    for (int32_t number = 1; (n = getline(&text, &cap, f)) > 0; number++) {
        snprintf(where, sizeof where, "%.250s:%d", w->config.file, number);
        if (strspn(text, " \t\r\n") == (size_t)n)
            continue;
        TRY(grow(w, err));
        TRY(parse_line(w, text, (size_t)n, where, err));
    }
    if (ferror(f))
        st = base_fail_errno(err, ERR_USAGE, "--prompts %s", w->config.file);
    else if (w->count == 0)
        st = base_fail(err, ERR_USAGE, "--prompts %s: no prompt in it", w->config.file);
out:
    free(text);
    fclose(f);
    return st;
}

enum status workload_open(const struct workload_config *config, struct workload **out,
                          struct err *err)
{
    struct workload *w = calloc(1, sizeof *w);
    if (!w)
        return base_fail(err, ERR_NOMEM, "workload");
    w->config = *config;
    enum status st = config->file ? load_file(w, err) : OK;
    if (st != OK) {
        workload_close(w);
        return st;
    }
    *out = w;
    return OK;
}

void workload_close(struct workload *w)
{
    for (int32_t i = 0; w && i < w->count; i++)
        free(w->lines[i].prompt);
    if (w)
        free(w->lines);
    free(w);
}

int32_t workload_output_len(const struct workload *w, int64_t i)
{
    return w->count > 0 ? w->lines[i % w->count].output_len : w->config.output_len;
}

/* Nearly all of a body: printf would be most of what a request costs the client. */
static void write_id(char before, uint64_t id, struct buf *out)
{
    char text[24], *at = text + sizeof text;
    do
        *--at = (char)('0' + id % 10);
    while ((id /= 10) > 0);
    *--at = before;
    buf_add(out, at, (size_t)(text + sizeof text - at));
}

static void write_ids(const struct workload *w, uint64_t state, struct buf *out)
{
    uint64_t choices = (uint64_t)(w->config.vocab > FIRST_ID ? w->config.vocab - FIRST_ID : 1);
    for (int32_t k = 0; k < w->config.input_len; k++)
        write_id(k ? ',' : '[', FIRST_ID + next(&state) % choices, out);
    buf_puts(out, "]");
}

/* Short common words: about one token each. */
static void write_words(const struct workload *w, uint64_t state, struct buf *out)
{
    static const char *const words[] = {
        "the",  "a",   "one",  "day",  "and",  "to",   "was",  "in",  "it",  "she", "he",
        "that", "on",  "of",   "with", "they", "said", "have", "not", "but", "up",  "you",
        "very", "all", "went", "big",  "had",  "so",   "his",  "her", "for", "like"};
    for (int32_t k = 0; k < w->config.input_len; k++)
        buf_printf(out, "%s%s", k ? " " : "\"", words[next(&state) % ARRAY_LEN(words)]);
    buf_puts(out, "\"");
}

void workload_body(const struct workload *w, bool is_chat, int32_t round, int64_t i,
                   struct buf *out)
{
    const struct workload_config *c = &w->config;
    uint64_t state = key(c->seed, (uint64_t)round, (uint64_t)i);
    buf_puts(out, "{\"model\":");
    buf_json(out, c->model, strlen(c->model));
    buf_puts(out, is_chat ? ",\"messages\":[{\"role\":\"user\",\"content\":" : ",\"prompt\":");
    if (w->count > 0)
        buf_puts(out, w->lines[i % w->count].prompt);
    else if (c->form == PROMPT_IDS && !is_chat)
        write_ids(w, state, out);
    else
        write_words(w, state, out);
    buf_puts(out, is_chat ? "}]" : "");
    buf_printf(out, ",\"max_tokens\":%d,\"temperature\":0,\"stream\":true",
               workload_output_len(w, i));
    buf_puts(out, ",\"stream_options\":{\"include_usage\":true}");
    buf_puts(out, c->ignore_eos ? ",\"ignore_eos\":true}" : "}");
}

void workload_schedule(int64_t seed, double rate, int32_t count, int64_t *due_ns)
{
    uint64_t state = key(seed, UINT64_MAX, 0);
    double at = 0;
    for (int32_t i = 0; i < count; i++) {
        due_ns[i] = (int64_t)at;
        double u = ((double)(next(&state) >> 11) + 0.5) * 0x1p-53; /* 0 < u < 1 */
        at += isinf(rate) ? 0 : -log(u) * 1e9 / rate;
    }
}

enum status workload_rates(const char *text, double *rates, int32_t cap, int32_t *count,
                           struct err *err)
{
    int32_t n = 0;
    for (const char *at = text;; at++) {
        char *end;
        double rate = strtod(at, &end);
        if (end == at || !(rate > 0) || (*end && *end != ',') || (!isinf(rate) && rate > 1e6))
            return base_fail(err, ERR_USAGE,
                             "--request-rate (or --rates): got \"%.80s\", expected requests per "
                             "second above 0 (or inf), several with commas between",
                             text);
        if (n == cap)
            return base_fail(err, ERR_USAGE, "--request-rate (or --rates): more than %d of them",
                             cap);
        rates[n++] = rate;
        at = end;
        if (!*end)
            break;
    }
    *count = n;
    return OK;
}
