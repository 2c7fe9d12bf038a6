#include "server/tokenizer/nfc.h"

#include <stdlib.h>
#include <utf8proc.h>

#define LEAD_0300 0xcc /* first byte of U+0300 */

bool nfc_may_change(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)text[i] >= LEAD_0300)
            return true;
    return false;
}

/* How many characters that canonical order moves about follow each other, of what the text is taken
 * apart to: a few that are no marks themselves are made of nothing else. */
static int32_t longest_marks(const char *text, size_t n)
{
    int32_t longest = 0, marks = 0;
    for (size_t i = 0; i < n;) {
        utf8proc_int32_t c = 0, parts[8];
        int boundary = 0;
        const utf8proc_ssize_t step =
            utf8proc_iterate((const utf8proc_uint8_t *)text + i, (utf8proc_ssize_t)(n - i), &c);
        CHECK(step > 0);
        const utf8proc_ssize_t count = utf8proc_decompose_char(
            c, parts, ARRAY_LEN(parts), UTF8PROC_STABLE | UTF8PROC_DECOMPOSE, &boundary);
        CHECK(count >= 0 && count <= (utf8proc_ssize_t)ARRAY_LEN(parts));
        for (utf8proc_ssize_t k = 0; k < count; k++) {
            marks = utf8proc_get_property(parts[k])->combining_class > 0 ? marks + 1 : 0;
            longest = marks > longest ? marks : longest;
        }
        i += (size_t)step;
    }
    return longest;
}

enum status nfc_add(struct buf *out, const char *text, size_t n, struct err *err)
{
    utf8proc_uint8_t *made = NULL;
    if (longest_marks(text, n) > NFC_MARKS_MAX)
        return base_fail(err, ERR_INPUT,
                         "the text has more than %d combining marks on one character",
                         NFC_MARKS_MAX);
    const utf8proc_ssize_t len = utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)n,
                                              &made, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    if (len < 0)
        return base_fail(err, ERR_NOMEM, "tokenizer: a text of %zu bytes: %s", n,
                         utf8proc_errmsg(len));
    buf_add(out, (const char *)made, (size_t)len);
    free(made);
    return OK;
}
