/* DESIGN: a cursor walks the text once. object() calls a function per member, which takes the value
 * or skips it; skip() counts brackets instead of recursing. Strings are compared raw: no name this
 * reads is ever written with escapes. */
#include "server/bench/chunk.h"

#include <string.h>

struct cursor {
    const char *at, *end;
};

struct text {
    const char *at;
    size_t n;
};

struct choice {
    int64_t ids; /* -1: no token_ids */
    bool has_text, finished;
};

typedef bool take_member(struct cursor *c, struct text key, void *out);

static char peek(struct cursor *c)
{
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\t' || *c->at == '\n' || *c->at == '\r'))
        c->at++;
    return c->at < c->end ? *c->at : '\0';
}

static bool take(struct cursor *c, char wanted)
{
    if (peek(c) != wanted)
        return false;
    c->at++;
    return true;
}

static bool take_string(struct cursor *c, struct text *out)
{
    if (!take(c, '"'))
        return false;
    const char *begin = c->at;
    for (; c->at < c->end && *c->at != '"'; c->at++)
        if (*c->at == '\\' && c->at + 1 < c->end)
            c->at++;
    if (c->at >= c->end)
        return false;
    *out = (struct text){begin, (size_t)(c->at++ - begin)};
    return true;
}

/* A number or literal: up to what cannot belong to one. */
static bool skip_word(struct cursor *c)
{
    const char *begin = c->at;
    while (c->at < c->end && !memchr(",:]}[{\" \t\r\n", *c->at, 11))
        c->at++;
    return c->at > begin;
}

/* One value of any kind. */
static bool skip(struct cursor *c)
{
    struct text ignored;
    size_t depth = 0;
    do {
        char next = peek(c);
        if (next == '"') {
            if (!take_string(c, &ignored))
                return false;
        } else if (next == '{' || next == '[') {
            c->at++;
            depth++;
        } else if (next == '}' || next == ']') {
            if (depth == 0)
                return false;
            c->at++;
            depth--;
        } else if ((next == ',' || next == ':') && depth > 0) {
            c->at++;
        } else if (!skip_word(c)) {
            return false;
        }
    } while (depth > 0);
    return true;
}

/* A value of another kind (null, mostly) says nothing and is skipped. */
static bool object(struct cursor *c, take_member *member, void *out)
{
    struct text key;
    if (!take(c, '{'))
        return skip(c);
    while (take_string(c, &key)) {
        if (!take(c, ':') || !member(c, key, out))
            return false;
        if (!take(c, ','))
            break;
    }
    return take(c, '}');
}

static bool is(struct text key, const char *name)
{
    return key.n == strlen(name) && memcmp(key.at, name, key.n) == 0;
}

/* Sets *said unless the value is null or an empty string. */
static bool take_presence(struct cursor *c, bool *said)
{
    struct text text;
    if (peek(c) == '"') {
        bool ok = take_string(c, &text);
        *said |= ok && text.n > 0;
        return ok;
    }
    *said |= peek(c) != 'n';
    return skip(c);
}

static bool take_count(struct cursor *c, int64_t *out)
{
    int64_t v = 0;
    bool digits = false;
    for (char d = peek(c); d >= '0' && d <= '9' && v < (INT64_C(1) << 50); d = *c->at) {
        v = 10 * v + (d - '0');
        digits = true;
        if (++c->at == c->end)
            break;
    }
    if (digits)
        *out = v;
    return digits || skip(c);
}

static bool take_length(struct cursor *c, int64_t *out)
{
    if (!take(c, '['))
        return skip(c);
    *out = 0;
    while (peek(c) != ']') {
        if (!skip(c))
            return false;
        ++*out;
        if (!take(c, ','))
            break;
    }
    return take(c, ']');
}

static bool delta_member(struct cursor *c, struct text key, void *out)
{
    struct choice *choice = out;
    if (is(key, "content") || is(key, "reasoning_content") || is(key, "reasoning") ||
        is(key, "tool_calls"))
        return take_presence(c, &choice->has_text);
    return skip(c);
}

static bool choice_member(struct cursor *c, struct text key, void *out)
{
    struct choice *choice = out;
    if (is(key, "text"))
        return take_presence(c, &choice->has_text);
    if (is(key, "delta") || is(key, "message"))
        return object(c, delta_member, choice);
    if (is(key, "finish_reason"))
        return take_presence(c, &choice->finished);
    if (is(key, "token_ids"))
        return take_length(c, &choice->ids);
    return skip(c);
}

static bool choices(struct cursor *c, struct chunk *out)
{
    if (!take(c, '['))
        return skip(c);
    while (peek(c) != ']') {
        struct choice choice = {.ids = -1};
        if (!object(c, choice_member, &choice))
            return false;
        out->tokens += choice.ids >= 0 ? choice.ids : choice.has_text;
        out->finished |= choice.finished;
        if (!take(c, ','))
            break;
    }
    return take(c, ']');
}

static bool usage_member(struct cursor *c, struct text key, void *out)
{
    struct chunk *chunk = out;
    if (is(key, "prompt_tokens"))
        return take_count(c, &chunk->prompt_tokens);
    if (is(key, "completion_tokens"))
        return take_count(c, &chunk->completion_tokens);
    return skip(c);
}

static bool chunk_member(struct cursor *c, struct text key, void *out)
{
    struct chunk *chunk = out;
    if (is(key, "choices"))
        return choices(c, chunk);
    if (is(key, "usage"))
        return object(c, usage_member, chunk);
    if (is(key, "error"))
        return take_presence(c, &chunk->is_error);
    return skip(c);
}

bool chunk_read(const char *json, size_t n, struct chunk *out)
{
    struct cursor c = {json, json + n};
    struct chunk chunk = {.prompt_tokens = -1, .completion_tokens = -1};
    if (peek(&c) != '{' || !object(&c, chunk_member, &chunk))
        return false;
    *out = chunk;
    return true;
}
