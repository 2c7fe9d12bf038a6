/* DESIGN: each byte is looked at once, whatever pieces the text comes in, and what is known goes to
 * the object as JSON at once. Whether that is JSON, the library says at the end: so the reader
 * keeps to braces and quotes, and need not know what numbers or escapes look like. Nothing without
 * quotes has a < in it, since the next call may begin there. */
#include "server/answer/call_gemma.h"

#include "server/answer/call.h"
#include "server/answer/call_value.h"

#include "config/jdoc.h"

/* ---- where it is ---- */

static bool in_list(const struct call_gemma_reader *r)
{
    return r->depth > 0 && (r->lists & 1) != 0;
}

static enum mark_match go_on(struct call_gemma_reader *r, enum call_gemma_state state, size_t at)
{
    r->state = state;
    r->at = at;
    r->begin = at;
    return MARK_YES;
}

/* Behind white space; at the end it is not known what follows. */
static enum mark_match skip_space(struct call_gemma_reader *r, const char *text, size_t n)
{
    while (r->at < n && call_is_space(text[r->at]) && r->at - r->begin <= CALL_GEMMA_BLANKS_MAX)
        r->at++;
    return r->at - r->begin > CALL_GEMMA_BLANKS_MAX ? MARK_NO
           : r->at == n                             ? MARK_PERHAPS
                                                    : MARK_YES;
}

static enum mark_match open_brace(struct call_gemma_reader *r, char brace)
{
    if (r->depth == CALL_GEMMA_DEPTH_MAX)
        return MARK_NO;
    r->depth++;
    r->lists = r->lists << 1 | (brace == '[');
    buf_add(&r->arguments, &brace, 1);
    return go_on(r, CALL_GEMMA_FIRST, r->at + 1);
}

static bool is_close(const struct call_gemma_reader *r, char c)
{
    return c == (in_list(r) ? ']' : '}');
}

static enum mark_match close_brace(struct call_gemma_reader *r)
{
    buf_puts(&r->arguments, in_list(r) ? "]" : "}");
    r->lists >>= 1;
    r->depth--;
    return go_on(r, r->depth == 0 ? CALL_GEMMA_WHOLE : CALL_GEMMA_AFTER, r->at + 1);
}

/* A name or a value has been read, without quotes the `len` bytes from `inner` on; the text goes on
 * at `at`. */
static enum mark_match end_token(struct call_gemma_reader *r, size_t inner, size_t len, size_t at)
{
    if (r->names) {
        buf_puts(&r->arguments, ": ");
        if (r->depth == 1) {
            r->key = inner;
            r->key_len = len;
        }
    }
    return go_on(r, r->names ? CALL_GEMMA_COLON : CALL_GEMMA_AFTER, at);
}

/* ---- its parts ---- */

static enum mark_match read_item(struct call_gemma_reader *r, const char *text, size_t n)
{
    const enum mark_match space = skip_space(r, text, n);
    if (space != MARK_YES)
        return space;
    const char c = text[r->at];
    const bool name = r->depth > 0 && !in_list(r) && r->state != CALL_GEMMA_VALUE;
    if (r->depth == 0)
        return c == '{' ? open_brace(r, c) : MARK_NO;
    if (r->state == CALL_GEMMA_FIRST && is_close(r, c))
        return close_brace(r);
    if (!name && (c == '{' || c == '['))
        return open_brace(r, c);
    const enum mark_match quote = mark_match(text + r->at, n - r->at, CALL_GEMMA_QUOTE, false);
    if (quote == MARK_PERHAPS)
        return quote;
    r->names = name;
    r->escaped = false;
    if (quote == MARK_YES)
        return go_on(r, CALL_GEMMA_TEXT, r->at + strlen(CALL_GEMMA_QUOTE));
    go_on(r, c == '"' ? CALL_GEMMA_STRING : CALL_GEMMA_BARE, r->at);
    r->at += c == '"';
    return MARK_YES;
}

static enum mark_match read_text(struct call_gemma_reader *r, const char *text, size_t n)
{
    const size_t len = strlen(CALL_GEMMA_QUOTE);
    const char *p = memmem(text + r->at, n - r->at, CALL_GEMMA_QUOTE, len);
    if (!p) {
        r->at = n - r->at >= len ? n - len + 1 : r->at;
        return MARK_PERHAPS;
    }
    const size_t end = (size_t)(p - text);
    buf_json(&r->arguments, text + r->begin, end - r->begin);
    return end_token(r, r->begin, end - r->begin, end + len);
}

static enum mark_match read_string(struct call_gemma_reader *r, const char *text, size_t n)
{
    for (; r->at < n; r->at++) {
        const char c = text[r->at];
        if (c == '"' && !r->escaped) {
            buf_add(&r->arguments, text + r->begin, r->at + 1 - r->begin);
            return end_token(r, r->begin + 1, r->at - r->begin - 1, r->at + 1);
        }
        r->escaped = c == '\\' && !r->escaped;
    }
    return MARK_PERHAPS;
}

static enum mark_match read_bare(struct call_gemma_reader *r, const struct call_gemma_tool *tool,
                                 const char *text, size_t n)
{
    const char *end = r->names ? ":" : ",}]", *none = r->names ? "<\"{[,}]" : "<\"{[";
    while (r->at < n && !strchr(end, text[r->at]) && !strchr(none, text[r->at]) &&
           r->at - r->begin < CALL_GEMMA_BARE_BYTES_MAX)
        r->at++;
    if (r->at == n)
        return MARK_PERHAPS;
    size_t len = r->at - r->begin;
    const char *value = text + r->begin;
    while (len > 0 && call_is_space(value[len - 1]))
        len--;
    if (len == 0 || text[r->at] == '\0' || !strchr(end, text[r->at]))
        return MARK_NO;
    enum call_type type = CALL_TYPE_ANY;
    if (r->depth == 1 && !r->names)
        type = call_types_find(tool->types, tool->types_len, tool->name, text + r->key, r->key_len);
    if (r->names)
        buf_json(&r->arguments, value, len);
    else
        call_value_add(&r->arguments, type, value, len, &r->no_memory);
    return end_token(r, r->begin, len, r->at);
}

static enum mark_match read_after(struct call_gemma_reader *r, const char *text, size_t n)
{
    const enum mark_match space = skip_space(r, text, n);
    if (space != MARK_YES)
        return space;
    if (r->state == CALL_GEMMA_COLON)
        return text[r->at] == ':' ? go_on(r, CALL_GEMMA_VALUE, r->at + 1) : MARK_NO;
    if (is_close(r, text[r->at]))
        return close_brace(r);
    if (text[r->at] != ',')
        return MARK_NO;
    buf_puts(&r->arguments, ", ");
    return go_on(r, CALL_GEMMA_NEXT, r->at + 1);
}

static enum mark_match read_next(struct call_gemma_reader *r, const struct call_gemma_tool *tool,
                                 const char *text, size_t n)
{
    switch (r->state) {
    case CALL_GEMMA_VALUE:
    case CALL_GEMMA_FIRST:
    case CALL_GEMMA_NEXT:
        return read_item(r, text, n);
    case CALL_GEMMA_TEXT:
        return read_text(r, text, n);
    case CALL_GEMMA_STRING:
        return read_string(r, text, n);
    case CALL_GEMMA_BARE:
        return read_bare(r, tool, text, n);
    case CALL_GEMMA_COLON:
    case CALL_GEMMA_AFTER:
        return read_after(r, text, n);
    case CALL_GEMMA_WHOLE:
        break;
    }
    return MARK_YES;
}

/* Strings, and what names are, are as the model wrote them. */
static enum mark_match check(struct call_gemma_reader *r)
{
    struct jdoc *root = NULL;
    struct err err;
    if (r->arguments.failed)
        return MARK_NO;
    const enum status st = jdoc_parse(r->arguments.data, r->arguments.len, &jdoc_limits_call,
                                      "arguments", &root, &err);
    jdoc_close(root);
    r->no_memory |= st == ERR_NOMEM;
    return st == OK ? MARK_YES : MARK_NO;
}

enum mark_match call_gemma_read(struct call_gemma_reader *r, const struct call_gemma_tool *tool,
                                const char *text, size_t n)
{
    enum mark_match m = MARK_YES;
    while (m == MARK_YES && r->state != CALL_GEMMA_WHOLE)
        m = read_next(r, tool, text, n);
    return m == MARK_YES ? check(r) : m;
}
