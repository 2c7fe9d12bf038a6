/* DESIGN: pieces come shortest first with falling scores, so that BPE can reach long words by
 * merging shorter ones. */
#include "weights/synth.h"

#include "config/buf.h"
#include "weights/spm_proto.h"

#include <stdio.h>
#include <string.h>

#define SPACE "\xe2\x96\x81" /* U+2581, how SentencePiece writes a blank */
#define FIRST_BYTE 3
#define FIRST_PRINTABLE (FIRST_BYTE + 256)
#define WORD_MAX 64

static void put_piece(struct buf *b, struct buf *message, const char *text, float score,
                      enum spm_proto_type type)
{
    spm_proto_piece(b, message, text, strlen(text), score, type);
}

/* Word n of the list of all words of one syllable, then of two, ... Distinct by construction. */
static void make_word(int32_t n, char word[WORD_MAX])
{
    static const char consonants[] = "bcdfghjklmnpqrstvwxyz", vowels[] = "aeiou";
    enum { SYLLABLES = (sizeof consonants - 1) * (sizeof vowels - 1) };
    size_t length = 1;
    for (int64_t words = SYLLABLES; n >= words; words *= SYLLABLES, length++)
        n -= (int32_t)words;
    word[2 * length] = '\0';
    for (size_t i = length; i-- > 0; n /= SYLLABLES) {
        int32_t syllable = n % SYLLABLES;
        word[2 * i] = consonants[syllable / (int32_t)(sizeof vowels - 1)];
        word[2 * i + 1] = vowels[syllable % (int32_t)(sizeof vowels - 1)];
    }
}

/* Printable piece number n: the blank, the ASCII characters, then words without and with a blank.
 */
static void make_printable(int32_t n, char text[WORD_MAX])
{
    enum { CHARACTERS = '~' - '!' + 1 };
    if (n == 0) {
        snprintf(text, WORD_MAX, SPACE);
    } else if (n <= CHARACTERS) {
        snprintf(text, WORD_MAX, "%c", '!' + n - 1);
    } else {
        char word[WORD_MAX];
        make_word((n - CHARACTERS - 1) / 2, word);
        snprintf(text, WORD_MAX, "%s%.32s", (n - CHARACTERS - 1) % 2 ? SPACE : "", word);
    }
}

static void put_pieces(struct buf *b, struct buf *message, int32_t vocab)
{
    char text[WORD_MAX];
    put_piece(b, message, "<unk>", 0, SPM_PROTO_UNKNOWN);
    put_piece(b, message, "<s>", 0, SPM_PROTO_CONTROL);
    put_piece(b, message, "</s>", 0, SPM_PROTO_CONTROL);
    for (int32_t i = 0; i < 256; i++) {
        snprintf(text, sizeof text, "<0x%02X>", (unsigned)i);
        put_piece(b, message, text, 0, SPM_PROTO_BYTE);
    }
    for (int32_t i = 0; i < vocab - FIRST_PRINTABLE; i++) {
        make_printable(i, text);
        put_piece(b, message, text, (float)-i, SPM_PROTO_NORMAL);
    }
}

enum status synth_tokenizer(int32_t vocab, struct buf *out, struct err *err)
{
    struct buf message;
    const struct spm_proto_settings settings = {
        /* as the Llama tokenizer has them */
        .count = vocab,           .bos = 1, .eos = 2, .pad = -1, .byte_fallback = true,
        .add_dummy_prefix = true,
    };
    if (vocab <= FIRST_PRINTABLE)
        return base_fail(err, ERR_INTERNAL, "a tokenizer of %d pieces: expected more than %d",
                         vocab, FIRST_PRINTABLE);
    buf_init(&message, 4096);
    put_pieces(out, &message, vocab);
    spm_proto_settings(out, &message, &settings);
    bool failed = out->failed;
    buf_free(&message);
    return failed ? base_fail(err, ERR_NOMEM, "no memory for a tokenizer of %d pieces", vocab) : OK;
}
