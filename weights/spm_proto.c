#include "weights/spm_proto.h"

#include <string.h>

enum wire_type { WIRE_VARINT = 0, WIRE_BYTES = 2, WIRE_FLOAT = 5 };

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

static void put_int(struct buf *b, uint32_t field, int64_t v)
{
    put_tag(b, field, WIRE_VARINT);
    put_varint(b, (uint64_t)v);
}

static void put_bytes(struct buf *b, uint32_t field, const void *bytes, size_t n)
{
    put_tag(b, field, WIRE_BYTES);
    put_varint(b, n);
    buf_add(b, bytes, n);
}

static void put_name(struct buf *b, uint32_t field, const char *name)
{
    if (name)
        put_bytes(b, field, name, strlen(name));
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

/* A message begins empty, failures forgotten: so that they are kept, too. */
static void put_message(struct buf *b, uint32_t field, const struct buf *message)
{
    put_bytes(b, field, message->data, message->len);
    b->failed |= message->failed;
}

/* ModelProto.SentencePiece: piece = 1, score = 2, type = 3. */
void spm_proto_piece(struct buf *b, struct buf *message, const char *text, size_t n, float score,
                     enum spm_proto_type type)
{
    buf_clear(message);
    put_bytes(message, 1, text, n);
    put_float(message, 2, score);
    put_int(message, 3, type);
    put_message(b, 1, message);
}

/* TrainerSpec: model_type = 3 (BPE = 2), vocab_size = 4, byte_fallback = 35, unk_id = 40,
 * bos_id = 41, eos_id = 42, pad_id = 43 (-1 = none), their pieces = 45 to 48. */
static void put_trainer(struct buf *b, struct buf *message, const struct spm_proto_settings *s)
{
    buf_clear(message);
    put_int(message, 3, 2);
    put_int(message, 4, s->count);
    put_int(message, 35, s->byte_fallback);
    put_int(message, 40, s->unk);
    put_int(message, 41, s->bos);
    put_int(message, 42, s->eos);
    put_int(message, 43, s->pad);
    put_name(message, 45, s->unk_piece);
    put_name(message, 46, s->bos_piece);
    put_name(message, 47, s->eos_piece);
    put_name(message, 48, s->pad_piece);
    put_message(b, 2, message);
}

/* NormalizerSpec: name = 1, add_dummy_prefix = 3, remove_extra_whitespaces = 4,
 * escape_whitespaces = 5. */
void spm_proto_settings(struct buf *b, struct buf *message, const struct spm_proto_settings *s)
{
    put_trainer(b, message, s);
    buf_clear(message);
    put_name(message, 1, "identity");
    put_int(message, 3, s->add_dummy_prefix);
    put_int(message, 4, s->remove_extra_whitespaces);
    put_int(message, 5, 1);
    put_message(b, 3, message);
}
