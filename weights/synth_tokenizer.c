/* DESIGN: a SentencePiece model is a protocol buffer of three messages; the few fields that matter
 * are written by hand, which is shorter than a protobuf library's build rules. Pieces come shortest
 * first with falling scores, so that BPE can reach long words by merging shorter ones.
 * Field numbers: sentencepiece_model.proto of the SentencePiece project. */
#include "weights/synth.h"

#include "config/buf.h"

#include <stdio.h>
#include <string.h>

enum piece_type { PIECE_NORMAL = 1, PIECE_UNKNOWN = 2, PIECE_CONTROL = 3, PIECE_BYTE = 6 };
enum wire_type { WIRE_VARINT = 0, WIRE_BYTES = 2, WIRE_FLOAT = 5 };

#define SPACE "\xe2\x96\x81" /* U+2581, how SentencePiece writes a blank */
#define FIRST_BYTE 3
#define FIRST_PRINTABLE (FIRST_BYTE + 256)
#define WORD_MAX 64

static void put_varint(struct buf *b, uint64_t v)
{
    do {
        unsigned char byte = (unsigned char)((v & 0x7f) | (v > 0x7f ? 0x80 : 0));
        buf_add(b, &byte, 1);
        v >>= 7;
    } while (v > 0);
}

static void put_tag(struct buf *b, uint32_t field, enum wire_type type)
{
    put_varint(b, (uint64_t)field << 3 | type);
}

static void put_int(struct buf *b, uint32_t field, uint64_t v)
{
    put_tag(b, field, WIRE_VARINT);
    put_varint(b, v);
}

static void put_bytes(struct buf *b, uint32_t field, const void *bytes, size_t n)
{
    put_tag(b, field, WIRE_BYTES);
    put_varint(b, n);
    buf_add(b, bytes, n);
}

static void put_float(struct buf *b, uint32_t field, float v)
{
    uint32_t u;
    memcpy(&u, &v, sizeof u);
    put_tag(b, field, WIRE_FLOAT);
    for (int i = 0; i < 4; i++) {
        unsigned char byte = (unsigned char)(u >> (8 * i));
        buf_add(b, &byte, 1);
    }
}

/* ModelProto.SentencePiece: piece = 1, score = 2, type = 3; `message` is scratch. */
static void put_piece(struct buf *b, struct buf *message, const char *text, float score,
                      enum piece_type type)
{
    buf_clear(message);
    put_bytes(message, 1, text, strlen(text));
    put_float(message, 2, score);
    put_int(message, 3, type);
    put_bytes(b, 1, message->data, message->len);
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
    put_piece(b, message, "<unk>", 0, PIECE_UNKNOWN);
    put_piece(b, message, "<s>", 0, PIECE_CONTROL);
    put_piece(b, message, "</s>", 0, PIECE_CONTROL);
    for (int32_t i = 0; i < 256; i++) {
        snprintf(text, sizeof text, "<0x%02X>", (unsigned)i);
        put_piece(b, message, text, 0, PIECE_BYTE);
    }
    for (int32_t i = 0; i < vocab - FIRST_PRINTABLE; i++) {
        make_printable(i, text);
        put_piece(b, message, text, (float)-i, PIECE_NORMAL);
    }
}

/* TrainerSpec: model_type = 3 (BPE = 2), vocab_size = 4, byte_fallback = 35, unk_id = 40,
 * bos_id = 41, eos_id = 42, pad_id = 43 (-1 = none). */
static void put_trainer(struct buf *b, struct buf *message, int32_t vocab)
{
    buf_clear(message);
    put_int(message, 3, 2);
    put_int(message, 4, (uint64_t)vocab);
    put_int(message, 35, 1);
    put_int(message, 40, 0);
    put_int(message, 41, 1);
    put_int(message, 42, 2);
    put_int(message, 43, UINT64_MAX);
    put_bytes(b, 2, message->data, message->len);
}

/* NormalizerSpec: name = 1, add_dummy_prefix = 3, remove_extra_whitespaces = 4,
 * escape_whitespaces = 5; as the Llama tokenizer has them. */
static void put_normalizer(struct buf *b, struct buf *message)
{
    buf_clear(message);
    put_bytes(message, 1, "identity", strlen("identity"));
    put_int(message, 3, 1);
    put_int(message, 4, 0);
    put_int(message, 5, 1);
    put_bytes(b, 3, message->data, message->len);
}

enum status synth_tokenizer(int32_t vocab, struct buf *out, struct err *err)
{
    struct buf message;
    if (vocab <= FIRST_PRINTABLE)
        return base_fail(err, ERR_INTERNAL, "a tokenizer of %d pieces: expected more than %d",
                         vocab, FIRST_PRINTABLE);
    buf_init(&message, 4096);
    put_pieces(out, &message, vocab);
    put_trainer(out, &message, vocab);
    put_normalizer(out, &message);
    bool failed = out->failed || message.failed;
    buf_free(&message);
    return failed ? base_fail(err, ERR_NOMEM, "no memory for a tokenizer of %d pieces", vocab) : OK;
}
