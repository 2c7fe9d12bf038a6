/* DESIGN: each byte is looked at once, whatever pieces the text comes in: a search goes on where it
 * ended, less the length of what it looks for. Members go to the object as they become whole. What
 * turns out to be no call is text again from behind its last tag on, because another call may begin
 * there. That is never far back, since only values are long, and those are no reason to give up. */
#include "server/answer/call_tags.h"

#include "server/answer/call_value.h"

static void add_member(struct call_tags_reader *r, const struct call_tags_text *t, const char *text,
                       size_t end)
{
    const char *key = text + r->key, *value = text + r->begin;
    size_t n = end - r->begin;
    if (t->tags->lines && n > 0 && *value == '\n') {
        value++;
        n--;
    }
    n -= t->tags->lines && n > 0 && value[n - 1] == '\n';
    buf_puts(&r->arguments, r->arguments.len == 0 ? "{" : ", ");
    buf_json(&r->arguments, key, r->key_len);
    buf_puts(&r->arguments, ": ");
    call_value_add(&r->arguments, call_types_find(t->types, t->types_len, r->name, key, r->key_len),
                   value, n, &r->no_memory);
}

/* ---- tags ---- */

static bool go_on(struct call_tags_reader *r, enum call_tags_state state, size_t at)
{
    r->state = state;
    r->at = at;
    r->begin = at;
    return true;
}

/* Where the mark is, from r->at on. NO: it begins in none of so many bytes from r->begin on, and no
 * more of the text than that is looked at. */
static enum mark_match find(struct call_tags_reader *r, const char *mark, size_t most,
                            const char *text, size_t n, size_t *found)
{
    const size_t len = strlen(mark), rest = n - r->begin;
    const size_t end = rest > len && rest - len > most ? r->begin + most + len : n;
    const char *p = memmem(text + r->at, end - r->at, mark, len);
    if (p) {
        *found = (size_t)(p - text);
        return MARK_YES;
    }
    if (end - r->at >= len)
        r->at = end - len + 1;
    return r->at - r->begin <= most ? MARK_PERHAPS : MARK_NO;
}

/* Behind white space; at the end it is not known what follows. */
static enum mark_match skip_space(struct call_tags_reader *r, const char *text, size_t n)
{
    while (r->at < n && call_is_space(text[r->at]))
        r->at++;
    return r->at - r->begin > CALL_BLANKS_MAX ? MARK_NO : r->at == n ? MARK_PERHAPS : MARK_YES;
}

/* A tag that has to come next. */
static enum mark_match expect(struct call_tags_reader *r, const char *mark,
                              enum call_tags_state next, const char *text, size_t n)
{
    enum mark_match m = skip_space(r, text, n);
    if (m == MARK_YES)
        m = mark_match(text + r->at, n - r->at, mark, false);
    if (m == MARK_YES)
        go_on(r, next, r->at + strlen(mark));
    return m;
}

static enum mark_match read_name(struct call_tags_reader *r, const struct call_tags *tags,
                                 const char *text, size_t n)
{
    while (r->at < n && call_is_name_byte(text[r->at]) && r->at - r->begin <= CALL_NAME_BYTES_MAX)
        r->at++;
    const size_t len = r->at - r->begin;
    if (len > CALL_NAME_BYTES_MAX)
        return MARK_NO;
    if (r->at == n)
        return MARK_PERHAPS;
    const enum mark_match m = *tags->name_end
                                  ? mark_match(text + r->at, n - r->at, tags->name_end, false)
                              : call_is_space(text[r->at]) || text[r->at] == '<' ? MARK_YES
                                                                                 : MARK_NO;
    if (m != MARK_YES || len == 0)
        return len == 0 ? MARK_NO : m;
    memcpy(r->name, text + r->begin, len);
    r->name[len] = '\0';
    go_on(r, CALL_TAGS_BETWEEN, r->at + strlen(tags->name_end));
    return MARK_YES;
}

/* Another argument, or the end. */
static enum mark_match read_between(struct call_tags_reader *r, const struct call_tags_text *t,
                                    const char *text, size_t n)
{
    const char *end = t->tags->end ? t->tags->end : t->close;
    enum mark_match m = skip_space(r, text, n);
    if (m == MARK_PERHAPS && t->whole)
        go_on(r, CALL_TAGS_WHOLE, r->at);
    if (m != MARK_YES)
        return m == MARK_PERHAPS && t->whole ? MARK_YES : m;
    const enum mark_match more = mark_match(text + r->at, n - r->at, t->tags->key, false);
    m = mark_match(text + r->at, n - r->at, end, false);
    if (more == MARK_YES)
        go_on(r, CALL_TAGS_KEY, r->at + strlen(t->tags->key));
    else if (m == MARK_YES)
        go_on(r, CALL_TAGS_WHOLE, r->at + (t->tags->end ? strlen(end) : 0));
    return more == MARK_YES || m == MARK_YES           ? MARK_YES
           : more == MARK_PERHAPS || m == MARK_PERHAPS ? MARK_PERHAPS
                                                       : MARK_NO;
}

static enum mark_match read_key(struct call_tags_reader *r, const struct call_tags *tags,
                                const char *text, size_t n)
{
    size_t end;
    const enum mark_match m = find(r, tags->key_end, CALL_KEY_BYTES_MAX, text, n, &end);
    if (m != MARK_YES)
        return m;
    r->key = r->begin;
    r->key_len = end - r->begin;
    if (memchr(text + r->key, '\0', r->key_len)) /* no member of JSON is read by such a name */
        return MARK_NO;
    go_on(r, *tags->value ? CALL_TAGS_VALUE_MARK : CALL_TAGS_VALUE, end + strlen(tags->key_end));
    return MARK_YES;
}

static enum mark_match read_value(struct call_tags_reader *r, const struct call_tags_text *t,
                                  const char *text, size_t n)
{
    size_t end;
    const enum mark_match m = find(r, t->tags->value_end, SIZE_MAX, text, n, &end);
    if (m != MARK_YES)
        return m;
    add_member(r, t, text, end);
    go_on(r, CALL_TAGS_BETWEEN, end + strlen(t->tags->value_end));
    return MARK_YES;
}

static enum mark_match read_next(struct call_tags_reader *r, const struct call_tags_text *t,
                                 const char *text, size_t n)
{
    switch (r->state) {
    case CALL_TAGS_NAME_MARK:
        return expect(r, t->tags->name, CALL_TAGS_NAME, text, n);
    case CALL_TAGS_NAME:
        return read_name(r, t->tags, text, n);
    case CALL_TAGS_BETWEEN:
        return read_between(r, t, text, n);
    case CALL_TAGS_KEY:
        return read_key(r, t->tags, text, n);
    case CALL_TAGS_VALUE_MARK:
        return expect(r, t->tags->value, CALL_TAGS_VALUE, text, n);
    case CALL_TAGS_VALUE:
        return read_value(r, t, text, n);
    case CALL_TAGS_WHOLE:
        break;
    }
    return MARK_YES;
}

enum mark_match call_tags_read(struct call_tags_reader *r, const struct call_tags_text *t,
                               const char *text, size_t n)
{
    enum mark_match m = MARK_YES;
    while (m == MARK_YES && r->state != CALL_TAGS_WHOLE)
        m = read_next(r, t, text, n);
    if (m == MARK_YES)
        buf_puts(&r->arguments, r->arguments.len == 0 ? "{}" : "}");
    if (m == MARK_NO)
        r->at = r->begin; /* how far the search has come depends on the pieces */
    return m;
}
