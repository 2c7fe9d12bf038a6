/* DESIGN: plain records in two growing arrays, so that a token costs an append and JSON is made
 * once. In a dictionary keyed by text two tokens may have the same text; entries come in descending
 * order, so keeping the first keeps the larger. */
#include "server/api/logprobs.h"

#include "config/utf8.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

struct entry {
    int32_t token, offset;
    float logprob; /* NaN: not scored */
    int32_t top_begin, top_count;
};

#define DICT_MAX (ENGINE_LOGPROBS_MAX + 1)

void logprobs_init(struct logprobs *l, size_t bytes_max)
{
    buf_init(&l->entries, bytes_max);
    buf_init(&l->tops, bytes_max);
}

void logprobs_free(struct logprobs *l)
{
    buf_free(&l->entries);
    buf_free(&l->tops);
}

void logprobs_clear(struct logprobs *l)
{
    buf_clear(&l->entries);
    buf_clear(&l->tops);
}

int32_t logprobs_count(const struct logprobs *l)
{
    return (int32_t)(l->entries.len / sizeof(struct entry));
}

bool logprobs_failed(const struct logprobs *l)
{
    return l->entries.failed || l->tops.failed;
}

void logprobs_add(struct logprobs *l, int32_t token, int32_t offset)
{
    const struct entry e = {.token = token, .offset = offset, .logprob = NAN};
    buf_add(&l->entries, &e, sizeof e);
}

static struct entry *entry_at(const struct logprobs *l, int32_t i)
{
    return (struct entry *)(void *)l->entries.data + i;
}

void logprobs_score(struct logprobs *l, int32_t i, float logprob, const struct token_top *top,
                    int32_t top_count)
{
    if (logprobs_failed(l))
        return;
    CHECK(i < logprobs_count(l));
    struct entry *e = entry_at(l, i);
    e->logprob = isnan(logprob) ? -INFINITY : logprob;
    e->top_begin = (int32_t)(l->tops.len / sizeof *top);
    e->top_count = top_count;
    buf_add(&l->tops, top, (size_t)top_count * sizeof *top);
}

/* ---- writing ---- */

/* Nine digits read back as the same float; JSON has no infinity. */
static void write_float(float x, struct buf *out)
{
    char text[32];
    if (!(x > -9999.0F)) {
        buf_puts(out, "-9999.0");
        return;
    }
    snprintf(text, sizeof text, "%.9g", (double)x);
    buf_puts(out, text);
    if (!strpbrk(text, ".e"))
        buf_puts(out, ".0"); /* stays a float to a reader that tells them apart */
}

/* A token's text. Bytes that are no characters are spelt as OpenAI does. */
struct token_name {
    char spelt[24];
    const char *text; /* valid as long as the name and the tokenizer */
    size_t len;
    bool bytes; /* text is any bytes */
};

static void name_token(const struct logprobs_names *names, int32_t token, struct token_name *out)
{
    struct token_view v = {.kind = TOKEN_HIDDEN};
    if (names->tokenizer && !names->as_ids)
        v = tokenizer_view(names->tokenizer, token);
    out->text = v.text;
    out->len = (size_t)v.len;
    out->bytes = v.kind == TOKEN_BYTE && !utf8_is_valid(v.text, out->len);
    if (v.len > 0)
        return;
    snprintf(out->spelt, sizeof out->spelt, "token_id:%" PRId32, token);
    out->text = out->spelt;
    out->len = strlen(out->spelt);
}

static void write_name(const struct token_name *n, struct buf *out)
{
    if (!n->bytes) {
        buf_json(out, n->text, n->len);
        return;
    }
    buf_puts(out, "\"bytes:");
    for (size_t i = 0; i < n->len; i++) {
        const unsigned char c = (unsigned char)n->text[i];
        if (c < 0x20 || c >= 0x7f || c == '"' || c == '\\')
            buf_printf(out, "\\\\x%02x", c);
        else
            buf_add(out, &n->text[i], 1);
    }
    buf_puts(out, "\"");
}

void logprobs_write_name(const struct logprobs_names *names, int32_t token, struct buf *out)
{
    struct token_name n;
    name_token(names, token, &n);
    write_name(&n, out);
}

/* The k best and the token itself, in descending order; returns how many. */
static int32_t candidates(const struct logprobs *l, const struct entry *e, int32_t k,
                          struct token_top *out)
{
    const struct token_top *top = (const struct token_top *)(const void *)l->tops.data;
    int32_t count = 0;
    bool found = false;
    for (int32_t i = 0; i < e->top_count && i < k && i < ENGINE_LOGPROBS_MAX; i++) {
        out[count++] = top[e->top_begin + i];
        found = found || out[i].token == e->token;
    }
    if (!found)
        out[count++] = (struct token_top){e->token, e->logprob};
    return count;
}

static void write_dict(const struct logprobs *l, const struct entry *e, int32_t k,
                       const struct logprobs_names *names, struct buf *out)
{
    struct token_top top[DICT_MAX];
    struct token_name keys[DICT_MAX];
    int32_t written = 0;
    if (isnan(e->logprob)) {
        buf_puts(out, "null");
        return;
    }
    int32_t count = candidates(l, e, k, top);
    buf_puts(out, "{");
    for (int32_t i = 0; i < count; i++) {
        struct token_name *key = &keys[written];
        bool clash = false;
        name_token(names, top[i].token, key);
        for (int32_t j = 0; j < written && !clash; j++)
            clash = keys[j].len == key->len && memcmp(keys[j].text, key->text, key->len) == 0;
        if (clash)
            continue;
        buf_puts(out, written++ ? "," : "");
        write_name(key, out);
        buf_puts(out, ":");
        write_float(top[i].logprob, out);
    }
    buf_puts(out, "}");
}

enum column { TOKENS, OWN, TOP, OFFSET };

static void write_cell(const struct logprobs *l, const struct entry *e, enum column column,
                       int32_t k, const struct logprobs_names *names, struct buf *out)
{
    switch (column) {
    case TOKENS:
        logprobs_write_name(names, e->token, out);
        break;
    case OWN:
        if (isnan(e->logprob))
            buf_puts(out, "null");
        else
            write_float(e->logprob, out);
        break;
    case TOP:
        write_dict(l, e, k, names, out);
        break;
    case OFFSET:
        buf_printf(out, "%" PRId32, e->offset);
        break;
    }
}

void logprobs_write(const struct logprobs *const *lists, int32_t list_count, int32_t k,
                    const struct logprobs_names *names, struct buf *out)
{
    static const char *const titles[] = {"{\"tokens\":[", "],\"token_logprobs\":[",
                                         "],\"top_logprobs\":[", "],\"text_offset\":["};
    for (int column = TOKENS; column <= OFFSET; column++) {
        bool first = true;
        buf_puts(out, titles[column]);
        for (int32_t l = 0; l < list_count; l++)
            for (int32_t i = 0; i < logprobs_count(lists[l]); i++) {
                buf_puts(out, first ? "" : ",");
                first = false;
                write_cell(lists[l], entry_at(lists[l], i), (enum column)column, k, names, out);
            }
    }
    buf_puts(out, "]}");
}

/* bytes: those of the token's text, which may be part of a character; where it has none, no_bytes.
 */
static void write_scored(const struct logprobs_names *names, int32_t token, float logprob,
                         const char *no_bytes, struct buf *out)
{
    struct token_view v = {.kind = TOKEN_HIDDEN};
    if (names->tokenizer)
        v = tokenizer_view(names->tokenizer, token);
    buf_puts(out, "{\"token\":");
    logprobs_write_name(names, token, out);
    buf_puts(out, ",\"logprob\":");
    write_float(logprob, out);
    buf_printf(out, ",\"bytes\":%s", v.len > 0 ? "[" : no_bytes);
    for (int32_t i = 0; i < v.len; i++)
        buf_printf(out, i ? ",%d" : "%d", (unsigned char)v.text[i]);
    buf_puts(out, v.len > 0 ? "]" : "");
}

void logprobs_write_items(const struct logprobs *l, int32_t k, const struct logprobs_names *names,
                          const char *no_bytes, struct buf *out)
{
    const struct token_top *top = (const struct token_top *)(const void *)l->tops.data;
    for (int32_t i = 0; i < logprobs_count(l); i++) {
        const struct entry *e = entry_at(l, i);
        buf_puts(out, i ? "," : "");
        write_scored(names, e->token, isnan(e->logprob) ? -INFINITY : e->logprob, no_bytes, out);
        buf_puts(out, ",\"top_logprobs\":[");
        for (int32_t j = 0; j < e->top_count && j < k; j++) {
            buf_puts(out, j ? "," : "");
            write_scored(names, top[e->top_begin + j].token, top[e->top_begin + j].logprob,
                         no_bytes, out);
            buf_puts(out, "}");
        }
        buf_puts(out, "]}");
    }
}

void logprobs_write_chat(const struct logprobs *l, int32_t k, const struct logprobs_names *names,
                         struct buf *out)
{
    buf_puts(out, "{\"content\":[");
    logprobs_write_items(l, k, names, "null", out);
    buf_puts(out, "]}");
}

void logprobs_write_prompt(const struct logprobs *l, int32_t k, const struct logprobs_names *names,
                           struct buf *out)
{
    struct token_top top[DICT_MAX];
    buf_puts(out, "[");
    for (int32_t i = 0; i < logprobs_count(l); i++) {
        const struct entry *e = entry_at(l, i);
        int32_t count = isnan(e->logprob) ? 0 : candidates(l, e, k, top);
        buf_puts(out, i ? "," : "");
        buf_puts(out, count ? "{" : "null");
        for (int32_t j = 0; j < count; j++) {
            buf_printf(out, "%s\"%" PRId32 "\":{\"logprob\":", j ? "," : "", top[j].token);
            write_float(top[j].logprob, out);
            if (j < k && j < e->top_count)
                buf_printf(out, ",\"rank\":%" PRId32, j + 1);
            else
                buf_puts(out, ",\"rank\":null");
            buf_puts(out, ",\"decoded_token\":");
            logprobs_write_name(names, top[j].token, out);
            buf_puts(out, "}");
        }
        buf_puts(out, count ? "}" : "");
    }
    buf_puts(out, "]");
}
