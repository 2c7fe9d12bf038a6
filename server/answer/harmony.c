#include "server/answer/harmony.h"

/* A header as far as it has been read. */
struct header {
    const struct harmony_text *text;
    size_t at;
    bool whole, marked;              /* it is; a mark has come */
    const char *channel, *recipient; /* NULL: none so far */
    size_t channel_len, recipient_len;
};

static bool is_word_byte(char c)
{
    return c != '<' && c != ANSWER_CONTROL && !call_is_space(c);
}

static bool is(const char *word, size_t n, const char *other)
{
    return n == strlen(other) && memcmp(word, other, n) == 0;
}

/* *end: behind the mark, where it is one. */
static enum mark_match mark_at(const struct harmony_text *t, size_t at, const char *mark,
                               size_t *end)
{
    if (t->controls && at < t->n && t->bytes[at++] != ANSWER_CONTROL)
        return MARK_NO;
    *end = at + strlen(mark);
    return mark_match(t->bytes + at, t->n - at, mark, t->finished);
}

static enum mark_match read_mark(struct header *h, const char *mark)
{
    size_t end;
    const enum mark_match m = mark_at(h->text, h->at, mark, &end);
    if (m == MARK_YES) {
        h->at = end;
        h->marked = true;
    }
    return m;
}

/* Words end where another byte has come. */
static enum mark_match read_word(struct header *h, const char **word, size_t *n)
{
    const struct harmony_text *t = h->text;
    *word = t->bytes + h->at;
    while (h->at < t->n && is_word_byte(t->bytes[h->at]))
        h->at++;
    *n = (size_t)(t->bytes + h->at - *word);
    return h->at == t->n ? MARK_PERHAPS : *n > 0 ? MARK_YES : MARK_NO;
}

static const char *const channels[] = {"analysis", "commentary", "final"};

/* Of two channels, which models write now and then, the second counts. */
static enum mark_match read_channel(struct header *h)
{
    const enum mark_match m = read_word(h, &h->channel, &h->channel_len);
    const size_t n = h->channel_len;
    for (size_t i = 0; i < ARRAY_LEN(channels); i++)
        if (strncmp(channels[i], h->channel, n) == 0 &&
            (m == MARK_PERHAPS || strlen(channels[i]) == n))
            return m;
    return MARK_NO;
}

/* A word outside of marks: the recipient. Others may follow it or the channel, such as the type of
 * the text, and do not matter. */
static enum mark_match read_outside(struct header *h)
{
    static const char to[] = "to=";
    const char *word;
    size_t n;
    const enum mark_match m = read_word(h, &word, &n);
    const bool may_be_to = memcmp(word, to, n < 3 ? n : 3) == 0;
    if (!may_be_to && !h->channel && !h->recipient)
        return MARK_NO;
    if (m != MARK_NO && may_be_to && n > 3) {
        h->recipient = word + 3;
        h->recipient_len = n - 3;
    }
    return m;
}

static enum mark_match read_part(struct header *h)
{
    const struct harmony_text *t = h->text;
    while (h->at < t->n && call_is_space(t->bytes[h->at]))
        h->at++;
    if (h->at == t->n)
        return MARK_PERHAPS;
    enum mark_match m = read_mark(h, HARMONY_MESSAGE);
    h->whole = m == MARK_YES;
    if (m == MARK_NO)
        m = read_mark(h, HARMONY_CONSTRAIN);
    if (m != MARK_NO)
        return m;
    m = read_mark(h, HARMONY_CHANNEL);
    return m == MARK_YES ? read_channel(h) : m == MARK_NO ? read_outside(h) : m;
}

static enum mark_match read_beginning(struct header *h, bool first)
{
    static const char role[] = "assistant";
    const struct harmony_text *t = h->text;
    size_t end;
    const enum mark_match m = read_mark(h, HARMONY_START);
    if (m == MARK_NO)
        return first ? MARK_YES : mark_at(t, 0, HARMONY_CHANNEL, &end);
    const size_t left = t->n - h->at, len = left < strlen(role) ? left : strlen(role);
    if (m != MARK_YES)
        return m;
    if (memcmp(t->bytes + h->at, role, len) != 0)
        return MARK_NO;
    h->at += len;
    return len == strlen(role) ? MARK_YES : MARK_PERHAPS;
}

/* What a header says that is whole. */
static bool interpret(const struct header *h, struct harmony_header *out)
{
    static const char functions[] = "functions.";
    const size_t before = sizeof functions - 1;
    out->final = h->channel && is(h->channel, h->channel_len, "final");
    out->kind = h->channel && is(h->channel, h->channel_len, "analysis") ? HARMONY_REASONING
                                                                         : HARMONY_CONTENT;
    out->name[0] = '\0';
    if (h->recipient_len < before || memcmp(h->recipient, functions, before) != 0) {
        if (h->recipient && !out->final)
            out->kind = HARMONY_REASONING;
        return true;
    }
    const size_t n = h->recipient_len - before;
    if (!call_is_name(h->recipient + before, n))
        return false;
    memcpy(out->name, h->recipient + before, n);
    out->name[n] = '\0';
    return true;
}

enum mark_match harmony_read_header(const struct harmony_text *t, bool first,
                                    struct harmony_header *out)
{
    struct header h = {.text = t};
    enum mark_match m = read_beginning(&h, first);
    while (m == MARK_YES && !h.whole && h.at <= HARMONY_HEADER_BYTES_MAX)
        m = read_part(&h);
    if (m == MARK_NO || h.at > HARMONY_HEADER_BYTES_MAX)
        return MARK_NO;
    out->len = h.at;
    if (m == MARK_YES)
        return interpret(&h, out) ? MARK_YES : MARK_NO;
    if (!t->finished)
        return MARK_PERHAPS;
    out->kind = HARMONY_CUT;
    return h.marked || (h.recipient && t->controls) ? MARK_YES : MARK_NO;
}

/* Does the message end here? *next: behind the mark that says so, and blanks behind it. */
static enum mark_match read_end(const struct harmony_text *t, size_t at, size_t *next)
{
    static const char *const marks[] = {HARMONY_END, HARMONY_CALL, HARMONY_RETURN};
    const size_t count = t->by_end ? 1 : ARRAY_LEN(marks);
    enum mark_match m = MARK_NO;
    struct harmony_header header;
    size_t end = at;
    for (size_t i = 0; i < count && m == MARK_NO; i++)
        m = mark_at(t, at, marks[i], &end);
    if (m == MARK_PERHAPS || (m == MARK_NO && t->by_end))
        return m;
    *next = m == MARK_YES ? end : at;
    while (m == MARK_YES && *next < t->n && *next - end < HARMONY_HEADER_BYTES_MAX &&
           call_is_space(t->bytes[*next]))
        ++*next;
    if (*next == t->n)
        return t->finished ? MARK_YES : MARK_PERHAPS;
    const struct harmony_text rest = {t->bytes + *next, t->n - *next, t->controls, t->finished,
                                      t->by_end};
    return harmony_read_header(&rest, false, &header);
}

enum mark_match harmony_find_end(const struct harmony_text *t, size_t *end, size_t *next)
{
    const char begin = t->controls ? ANSWER_CONTROL : HARMONY_END[0];
    for (const char *p = t->bytes; (p = memchr(p, begin, (size_t)(t->bytes + t->n - p))); p++) {
        *end = (size_t)(p - t->bytes);
        const enum mark_match m = read_end(t, *end, next);
        if (m != MARK_NO)
            return m;
    }
    *end = *next = t->n;
    return MARK_NO;
}
