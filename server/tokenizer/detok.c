/* DESIGN: only byte tokens can be part of a character, and text ends a run of them; so at most
 * three bytes are held, and bytes are given up as soon as no byte can save them. How many U+FFFD
 * they are is SentencePiece's rule, one per bad byte, or Unicode's, which Hugging Face's byte-level
 * decoder follows, one per longest run that begins like a character; applied without waiting for
 * the end. */
#include "server/tokenizer/detok.h"

#include "config/utf8.h"

#include <string.h>

#define REPLACEMENT "\xef\xbf\xbd" /* U+FFFD */

static bool has_text(const struct tokenizer *t, const int32_t *ids, int32_t count)
{
    for (int32_t i = 0; i < count; i++)
        if (tokenizer_view(t, ids[i]).kind != TOKEN_HIDDEN)
            return true;
    return false;
}

void detok_init(struct detok *d, const struct tokenizer *t, const int32_t *prompt, int32_t count)
{
    *d = (struct detok){.tokenizer = t};
    if (t)
        d->at_start = tokenizer_drops_first_space(t) && !has_text(t, prompt, count);
}

static void drop(struct detok *d, int32_t n)
{
    d->held_len -= n;
    memmove(d->held, d->held + n, (size_t)d->held_len);
}

/* Bytes at the start of what is held that are one U+FFFD. */
static int32_t lost(const struct detok *d)
{
    int32_t n = 1;
    if (!tokenizer_is_byte_level(d->tokenizer))
        return n;
    while (n < d->held_len && utf8_is_prefix(d->held, (size_t)n + 1))
        n++;
    return n;
}

/* Lets go of whole characters and of bytes that cannot become one. */
static void settle(struct detok *d, struct buf *out)
{
    while (d->held_len > 0) {
        size_t k = utf8_char(d->held, (size_t)d->held_len);
        if (k == 0 && utf8_is_prefix(d->held, (size_t)d->held_len))
            return;
        if (k > 0)
            buf_add(out, d->held, k);
        else
            buf_puts(out, REPLACEMENT);
        drop(d, k > 0 ? (int32_t)k : lost(d));
    }
}

void detok_finish(struct detok *d, struct buf *out)
{
    while (d->held_len > 0) {
        buf_puts(out, REPLACEMENT);
        drop(d, lost(d));
    }
}

static void push_text(struct detok *d, struct token_view v, struct buf *out)
{
    if (d->at_start && v.starts_word) {
        v.text++;
        v.len--;
        d->at_start = tokenizer_drops_all_first_spaces(d->tokenizer);
    }
    if (v.len > 0) {
        d->at_start = false;
        buf_add(out, v.text, (size_t)v.len);
    }
}

static bool is_shown(const struct detok *d, struct token_view v)
{
    for (size_t i = 0; d->shown && d->shown[i]; i++)
        if (strlen(d->shown[i]) == (size_t)v.len && memcmp(d->shown[i], v.text, (size_t)v.len) == 0)
            return true;
    return false;
}

void detok_push(struct detok *d, int32_t id, struct buf *out)
{
    if (!d->tokenizer)
        return;
    struct token_view v = tokenizer_view(d->tokenizer, id);
    if (v.kind == TOKEN_BYTE) {
        d->at_start = false;
        for (int32_t i = 0; i < v.len; i++) {
            d->held[d->held_len++] = v.text[i];
            settle(d, out);
        }
        return;
    }
    const bool named = v.kind == TOKEN_HIDDEN && is_shown(d, v);
    const bool shown = named || (v.kind == TOKEN_HIDDEN && d->show_hidden);
    /* A byte-level token without text leaves a character as it is. */
    if (v.kind == TOKEN_HIDDEN && !shown && tokenizer_is_byte_level(d->tokenizer))
        return;
    detok_finish(d, out);
    if (v.kind == TOKEN_TEXT)
        push_text(d, v, out);
    if (named && d->sign)
        buf_add(out, &d->sign, 1);
    if (shown)
        buf_add(out, v.text, (size_t)v.len);
}
