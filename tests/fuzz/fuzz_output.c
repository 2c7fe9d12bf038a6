/* Arbitrary tokens through what makes an answer's text of them: bytes to characters, stop strings.
 * The pieces put together must be what a naive reading of the whole gives, whatever the cuts, and
 * nothing but whole characters may come out at any time. Input: how many stop strings and each with
 * its length in front, a seed of the cuts, then the tokens, one per byte. */
#include "server/tokenizer/detok.h"
#include "server/tokenizer/stop.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

#define STOPS_MAX 4
#define STOP_LEN_MAX 12
#define TOKENS_MAX 512
#define TEXT_MAX ((size_t)3 * TOKENS_MAX) /* U+FFFD has three bytes */
#define BYTE_ID 3                         /* of byte 0, in tests/corpus/tokenizer/bytes */

struct text {
    char bytes[TEXT_MAX];
    size_t len;
};

/* ---- the naive reading ---- */

/* Length of the character at p by its value, 0 when there is none: no table of ranges. */
static size_t char_len(const uint8_t *p, size_t n)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t len = p[0] < 0x80       ? 1
                 : p[0] >> 5 == 6  ? 2
                 : p[0] >> 4 == 14 ? 3
                 : p[0] >> 3 == 30 ? 4
                                   : 0;
    uint32_t value = len > 1 ? p[0] & (0x7fU >> len) : p[0];
    if (len == 0 || len > n)
        return 0;
    for (size_t i = 1; i < len; i++) {
        if (p[i] >> 6 != 2)
            return 0;
        value = value << 6 | (p[i] & 0x3fU);
    }
    if (value < least[len] || value > 0x10ffff || value >> 11 == 0xd800 >> 11)
        return 0;
    return len;
}

/* One U+FFFD per byte that is part of no character. */
static void read_characters(const uint8_t *p, size_t n, struct text *out)
{
    out->len = 0;
    for (size_t i = 0; i < n;) {
        size_t len = char_len(p + i, n - i);
        const char *from = len > 0 ? (const char *)p + i : "\xef\xbf\xbd";
        size_t count = len > 0 ? len : 3;
        memcpy(out->bytes + out->len, from, count);
        out->len += count;
        i += len > 0 ? len : 1;
    }
}

/* The stop string that is complete first, of several the longest; cuts the text before it. */
static int32_t read_stop(const struct text *stops, int32_t count, struct text *whole)
{
    for (size_t end = 1; end <= whole->len; end++) {
        int32_t found = -1;
        for (int32_t i = 0; i < count; i++) {
            size_t n = stops[i].len;
            if (n <= end && memcmp(whole->bytes + end - n, stops[i].bytes, n) == 0 &&
                (found < 0 || n > stops[found].len))
                found = i;
        }
        if (found >= 0) {
            whole->len = end - stops[found].len;
            return found;
        }
    }
    return -1;
}

/* ---- ours ---- */

static struct tokenizer *open_tokenizer(void)
{
    static struct tokenizer *t;
    struct err err = {""};
    if (!t)
        CHECK(tokenizer_open(TEST_DATA_DIR "/corpus/tokenizer/bytes", 400, &t, &err) == OK);
    return t;
}

static void check_whole(const struct buf *b)
{
    const uint8_t *p = (const uint8_t *)b->data;
    for (size_t i = 0; i < b->len;) {
        size_t len = char_len(p + i, b->len - i);
        CHECK(len > 0);
        i += len;
    }
}

static void check_same(const struct buf *b, const struct text *wanted)
{
    CHECK(!b->failed);
    CHECK(b->len == wanted->len);
    CHECK(wanted->len == 0 || memcmp(b->data, wanted->bytes, wanted->len) == 0);
}

/* Token by token, as the server does it. */
static void run_tokens(const uint8_t *tokens, size_t n, const struct stop_set *set, int32_t matched,
                       const struct text *wanted)
{
    struct detok d;
    struct stop s;
    struct buf piece, out;
    int32_t found = -1;
    buf_init(&piece, TEXT_MAX);
    buf_init(&out, TEXT_MAX);
    detok_init(&d, open_tokenizer(), NULL, 0);
    stop_init(&s, set);
    for (size_t i = 0; i <= n && found < 0; i++) {
        buf_clear(&piece);
        if (i < n)
            detok_push(&d, BYTE_ID + tokens[i], &piece);
        else
            detok_finish(&d, &piece);
        if (piece.len > 0)
            found = stop_push(&s, piece.data, piece.len, &out);
        check_whole(&out);
    }
    if (found < 0)
        stop_finish(&s, &out);
    CHECK(found == matched);
    check_same(&out, wanted);
    buf_free(&piece);
    buf_free(&out);
}

/* The same text in pieces of any size, cut inside characters too. */
static void run_pieces(const struct text *whole, uint32_t seed, const struct stop_set *set,
                       int32_t matched, const struct text *wanted)
{
    struct stop s;
    struct buf out;
    int32_t found = -1;
    buf_init(&out, TEXT_MAX);
    stop_init(&s, set);
    for (size_t i = 0; i < whole->len && found < 0;) {
        seed = seed * 1664525 + 1013904223;
        size_t n = 1 + (seed >> 24) % 17;
        n = n < whole->len - i ? n : whole->len - i;
        found = stop_push(&s, whole->bytes + i, n, &out);
        i += n;
    }
    if (found < 0)
        stop_finish(&s, &out);
    CHECK(found == matched);
    check_same(&out, wanted);
    buf_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct text stops[STOPS_MAX], whole, wanted;
    const char *strings[STOPS_MAX];
    size_t lens[STOPS_MAX], at = 1;
    struct stop_set *set = NULL;
    struct err err;
    int32_t count = size > 0 ? data[0] % (STOPS_MAX + 1) : 0;
    for (int32_t i = 0; i < count; i++) {
        size_t n = at < size ? 1U + data[at] % STOP_LEN_MAX : 0;
        if (n == 0 || at + 1 + n > size)
            return 0;
        read_characters(data + at + 1, n, &stops[i]);
        strings[i] = stops[i].bytes;
        lens[i] = stops[i].len;
        at += 1 + n;
    }
    if (at + 1 >= size || size - at - 1 > TOKENS_MAX)
        return 0;
    CHECK(stop_set_open(strings, lens, count, &set, &err) == OK);
    read_characters(data + at + 1, size - at - 1, &whole);
    wanted = whole;
    int32_t matched = read_stop(stops, count, &wanted);
    run_tokens(data + at + 1, size - at - 1, set, matched, &wanted);
    run_pieces(&whole, data[at], set, matched, &wanted);
    stop_set_close(set);
    return 0;
}
