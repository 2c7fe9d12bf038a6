#include "server/answer/harmony.h"

/* A header as far as it has been read. */
struct header {
    const char *text;
    size_t n, at;
    bool finished, whole;
    bool marked;                     /* a mark has come */
    const char *channel, *recipient; /* NULL: none so far */
    size_t channel_len, recipient_len;
};

static bool is_word_byte(char c)
{
    return call_is_name_byte(c) || c == '=' || c == '/' || c == '+';
}

static bool is(const char *word, size_t n, const char *other)
{
    return n == strlen(other) && memcmp(word, other, n) == 0;
}

static enum mark_match read_mark(struct header *h, const char *mark)
{
    const enum mark_match m = mark_match(h->text + h->at, h->n - h->at, mark, h->finished);
    if (m == MARK_YES) {
        h->at += strlen(mark);
        h->marked = true;
    }
    return m;
}

/* Words end where another byte has come. */
static enum mark_match read_word(struct header *h, const char **word, size_t *n)
{
    *word = h->text + h->at;
    while (h->at < h->n && is_word_byte(h->text[h->at]))
        h->at++;
    *n = (size_t)(h->text + h->at - *word);
    return h->at == h->n ? MARK_PERHAPS : *n > 0 ? MARK_YES : MARK_NO;
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
    if (m == MARK_YES && may_be_to && n > 3) {
        h->recipient = word + 3;
        h->recipient_len = n - 3;
    }
    return m;
}

static enum mark_match read_part(struct header *h)
{
    while (h->at < h->n && call_is_space(h->text[h->at]))
        h->at++;
    if (h->at == h->n)
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
    const enum mark_match m = read_mark(h, HARMONY_START);
    if (m == MARK_NO)
        return first ? MARK_YES : mark_match(h->text, h->n, HARMONY_CHANNEL, h->finished);
    const size_t left = h->n - h->at, len = left < strlen(role) ? left : strlen(role);
    if (m != MARK_YES)
        return m;
    if (memcmp(h->text + h->at, role, len) != 0)
        return MARK_NO;
    h->at += len;
    return len == strlen(role) ? MARK_YES : MARK_PERHAPS;
}

/* What a header says that is whole. Whoever else it is to, the message is part of the text. */
static bool interpret(const struct header *h, struct harmony_header *out)
{
    static const char functions[] = "functions.";
    const size_t before = sizeof functions - 1;
    const bool reasons = h->channel && is(h->channel, h->channel_len, "analysis");
    out->kind = reasons ? HARMONY_REASONING : HARMONY_CONTENT;
    out->final = h->channel && is(h->channel, h->channel_len, "final");
    out->name[0] = '\0';
    if (h->recipient_len < before || memcmp(h->recipient, functions, before) != 0)
        return true;
    const size_t n = h->recipient_len - before;
    if (!call_is_name(h->recipient + before, n))
        return false;
    memcpy(out->name, h->recipient + before, n);
    out->name[n] = '\0';
    return true;
}

enum mark_match harmony_read_header(const char *text, size_t n, bool first, bool finished,
                                    struct harmony_header *out)
{
    struct header h = {.text = text, .n = n, .finished = finished};
    enum mark_match m = read_beginning(&h, first);
    while (m == MARK_YES && !h.whole && h.at <= HARMONY_HEADER_BYTES_MAX)
        m = read_part(&h);
    if (m == MARK_NO || h.at > HARMONY_HEADER_BYTES_MAX)
        return MARK_NO;
    out->len = h.at;
    if (m == MARK_YES)
        return interpret(&h, out) ? MARK_YES : MARK_NO;
    if (!finished)
        return MARK_PERHAPS;
    out->kind = HARMONY_CUT;
    return h.marked ? MARK_YES : MARK_NO;
}

/* Does the message end here? skip: bytes of the mark that says so, and of blanks behind it. */
static enum mark_match read_end(const char *text, size_t n, bool by_mark, bool finished,
                                size_t *skip)
{
    static const char *const marks[] = {HARMONY_END, HARMONY_CALL, HARMONY_RETURN};
    struct harmony_header next;
    *skip = 0;
    for (size_t i = 0; i < ARRAY_LEN(marks) && *skip == 0; i++) {
        const enum mark_match m = mark_match(text, n, marks[i], finished);
        if (m == MARK_PERHAPS)
            return m;
        if (m == MARK_YES)
            *skip = strlen(marks[i]);
    }
    if (by_mark && *skip == 0)
        return MARK_NO;
    while (*skip > 0 && *skip < n && *skip < HARMONY_HEADER_BYTES_MAX && call_is_space(text[*skip]))
        ++*skip;
    if (*skip == n)
        return finished ? MARK_YES : MARK_PERHAPS;
    return harmony_read_header(text + *skip, n - *skip, false, finished, &next);
}

enum mark_match harmony_find_end(const char *text, size_t n, bool by_mark, bool finished,
                                 size_t *end, size_t *next)
{
    for (const char *p = text; (p = memchr(p, '<', (size_t)(text + n - p))); p++) {
        size_t skip;
        *end = (size_t)(p - text);
        const enum mark_match m = read_end(p, n - *end, by_mark, finished, &skip);
        *next = *end + skip;
        if (m != MARK_NO)
            return m;
    }
    *end = *next = n;
    return MARK_NO;
}
