/* DESIGN: sorted by bytes, so that the names that agree with a text so far are a range, and each
 * further byte narrows it by two searches. Names that begin alike are next to each other, shorter
 * ones first: the last range whose first name is used up has the longest match. */
#include "server/tokenizer/names.h"

#include "config/utf8.h"

#include <stdlib.h>
#include <string.h>

struct names {
    struct name *list; /* [count] sorted */
    int32_t count;
    bool begins[256]; /* is there a name that begins with this byte? */
};

/* Those that vocabularies have. Not <s>: others than Gemma's begin and end a text with it. */
static bool is_html_tag(const char *name, size_t n)
{
    static const char *const tags[] = {"b",      "blockquote", "caption", "code",  "em",    "h1",
                                       "h2",     "h3",         "h4",      "h5",    "h6",    "i",
                                       "strong", "sub",        "sup",     "table", "tbody", "td",
                                       "tfoot",  "th",         "thead",   "tr",    "u"};
    for (size_t i = 0; i < ARRAY_LEN(tags); i++)
        if (strlen(tags[i]) == n && memcmp(tags[i], name, n) == 0)
            return true;
    return false;
}

bool names_is_mark(const char *text, int32_t len)
{
    if (len <= 2 || text[0] != '<' || text[len - 1] != '>')
        return false;
    const int32_t begin = text[1] == '/' ? 2 : 1;
    return !is_html_tag(text + begin, (size_t)(len - 1 - begin));
}

static int compare(const void *a, const void *b)
{
    const struct name *x = a, *y = b;
    int32_t n = x->len < y->len ? x->len : y->len;
    int order = memcmp(x->text, y->text, (size_t)n);
    return order ? order : (x->len > y->len) - (x->len < y->len);
}

enum status names_open(const struct name *list, int32_t count, struct names **out, struct err *err)
{
    struct names *n = calloc(1, sizeof *n);
    if (n)
        n->list = calloc((size_t)count + 1, sizeof *n->list);
    if (!n || !n->list) {
        free(n);
        return base_fail(err, ERR_NOMEM, "tokenizer: no memory for %d names", count);
    }
    for (int32_t i = 0; i < count; i++) {
        if (list[i].len <= 0)
            continue;
        n->list[n->count++] = list[i];
        n->begins[(unsigned char)list[i].text[0]] = true;
    }
    qsort(n->list, (size_t)n->count, sizeof *n->list, compare);
    *out = n;
    return OK;
}

void names_close(struct names *n)
{
    if (n)
        free(n->list);
    free(n);
}

/* The first of list[low..high) whose byte `at` is `byte` or more; all agree up to there. */
static int32_t lower_bound(const struct names *n, int32_t low, int32_t high, int32_t at, int byte)
{
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if ((unsigned char)n->list[middle].text[at] < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The longest name that the text begins with, of control tokens none beyond `own`; NULL: none. */
static const struct name *name_at(const struct names *n, const char *text, size_t length,
                                  size_t own)
{
    const struct name *found = NULL;
    int32_t low = 0, high = n->count;
    if (!n->begins[(unsigned char)text[0]])
        return NULL;
    for (int32_t at = 0; low < high && (size_t)at < length; at++) {
        int byte = (unsigned char)text[at];
        low = lower_bound(n, low, high, at, byte);
        high = lower_bound(n, low, high, at, byte + 1);
        if (low < high && n->list[low].len == at + 1 && (!n->list[low].control || (size_t)at < own))
            found = &n->list[low];
        while (low < high && n->list[low].len == at + 1)
            low++;
    }
    return found;
}

/* Unicode's White_Space. */
static bool is_space(const char *text, size_t k)
{
    static const char *const spaces[] = {"\t",           "\n",           "\v",
                                         "\f",           "\r",           " ",
                                         "\xc2\x85",     "\xc2\xa0",     "\xe1\x9a\x80",
                                         "\xe2\x80\x80", "\xe2\x80\x81", "\xe2\x80\x82",
                                         "\xe2\x80\x83", "\xe2\x80\x84", "\xe2\x80\x85",
                                         "\xe2\x80\x86", "\xe2\x80\x87", "\xe2\x80\x88",
                                         "\xe2\x80\x89", "\xe2\x80\x8a", "\xe2\x80\xa8",
                                         "\xe2\x80\xa9", "\xe2\x80\xaf", "\xe2\x81\x9f",
                                         "\xe3\x80\x80"};
    for (size_t i = 0; i < ARRAY_LEN(spaces); i++)
        if (strlen(spaces[i]) == k && memcmp(spaces[i], text, k) == 0)
            return true;
    return false;
}

static size_t spaces_after(const char *text, size_t from, size_t n)
{
    for (size_t k; from < n; from += k) {
        k = utf8_char(text + from, n - from);
        if (k == 0 || !is_space(text + from, k))
            break;
    }
    return from;
}

static size_t spaces_before(const char *text, size_t low, size_t end)
{
    while (end > low) {
        size_t at = end - 1;
        while (at > low && ((unsigned char)text[at] & 0xc0) == 0x80)
            at--;
        if (!is_space(text + at, end - at))
            break;
        end = at;
    }
    return end;
}

/* How far the text from i on is not foreign; *end: where it was last found to end. */
static size_t own_bytes(const char *foreign, size_t i, size_t length, size_t *end)
{
    if (!foreign)
        return length - i;
    if (*end <= i)
        for (*end = i; *end < length && !foreign[*end];)
            ++*end;
    return *end - i;
}

/* How many bytes from the first on are foreign. */
static size_t foreign_bytes(const char *foreign, size_t n)
{
    size_t i = 0;
    while (i < n && foreign[i])
        i++;
    return i;
}

enum status names_cut(const struct names *n, const char *text, size_t length,
                      struct names_allow allow, bool first, const struct names_sink *sink,
                      struct err *err)
{
    enum status st = OK;
    size_t done = 0, own_end = 0;
    for (size_t i = 0; i < length;) {
        const size_t own = own_bytes(allow.foreign, i, length, &own_end);
        const struct name *name = name_at(n, text + i, length - i, own ? own : length);
        const bool allowed = name && (!name->control || (allow.control && own > 0));
        size_t begin = i;
        i += !name                ? 1
             : allowed || own > 0 ? (size_t)name->len
                                  : foreign_bytes(allow.foreign + i, (size_t)name->len);
        if (!allowed)
            continue;
        size_t end = name->takes_after ? spaces_after(text, i, length) : i;
        if (name->takes_before)
            begin = spaces_before(text, done, begin);
        if (begin > done)
            TRY(sink->text(sink->ctx, text + done, begin - done, first && done == 0, err));
        TRY(sink->token(sink->ctx, name->id, err));
        done = i = end;
    }
    if (done < length)
        TRY(sink->text(sink->ctx, text + done, length - done, first && done == 0, err));
out:
    return st;
}
