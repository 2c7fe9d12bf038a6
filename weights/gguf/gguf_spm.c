/* DESIGN: SentencePiece wants exactly one unknown piece, a text for every id, and all bytes or
 * none. Converters have called several tokens unknown, and left out texts: what is no token of any
 * text becomes a control piece, to which none leads. */
#include "weights/gguf/gguf_spm.h"

#include "weights/spm_proto.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define BYTES 256
#define MESSAGE_MAX 8192

static enum status read_flag(const struct gguf_vocab *v, const char *key, bool *out,
                             struct err *err)
{
    const struct gguf_value *value = gguf_get(v->g, key);
    if (value && !gguf_bool(value, out))
        return base_fail(err, ERR_MODEL, "%s: %s: a boolean expected", gguf_path(v->g), key);
    return OK;
}

static enum status find_unknown(const struct gguf_vocab *v, int32_t *out, struct err *err)
{
    *out = v->unk;
    for (int32_t id = 0; id < v->count && *out < 0; id++)
        if (v->types[id] == GGUF_VOCAB_UNKNOWN && v->texts[id].n > 0)
            *out = id;
    if (*out < 0)
        return base_fail(err, ERR_MODEL, "%s: no token is the unknown one", gguf_path(v->g));
    return OK;
}

/* <0xNN> with upper-case digits */
static bool is_byte_form(struct gguf_string s)
{
    static const char digits[] = "0123456789ABCDEF";
    return s.n == 6 && memcmp(s.bytes, "<0x", 3) == 0 && s.bytes[5] == '>' &&
           memchr(digits, s.bytes[3], 16) && memchr(digits, s.bytes[4], 16);
}

static enum status check_bytes(const struct gguf_vocab *v, int32_t unk, int32_t *count,
                               struct err *err)
{
    *count = 0;
    for (int32_t id = 0; id < v->count; id++) {
        if (v->types[id] != GGUF_VOCAB_BYTE)
            continue;
        ++*count;
        if (!is_byte_form(v->texts[id]))
            return base_fail(err, ERR_MODEL,
                             "%s: tokenizer.ggml.tokens[%d] is a byte, but not of the form <0xNN>",
                             gguf_path(v->g), id);
    }
    if (v->types[unk] == GGUF_VOCAB_BYTE) /* which it cannot be as well */
        return base_fail(err, ERR_MODEL, "%s: token %d is a byte and the unknown one",
                         gguf_path(v->g), unk);
    if (*count != 0 && *count != BYTES)
        return base_fail(err, ERR_MODEL, "%s: %d byte tokens, all %d or none expected",
                         gguf_path(v->g), *count, BYTES);
    return OK;
}

static enum spm_proto_type type_of(const struct gguf_vocab *v, int32_t id, int32_t unk)
{
    if (id == unk)
        return SPM_PROTO_UNKNOWN;
    if (v->types[id] == GGUF_VOCAB_UNKNOWN || v->texts[id].n == 0)
        return SPM_PROTO_CONTROL;
    return (enum spm_proto_type)v->types[id];
}

static enum status put_pieces(const struct gguf_vocab *v, int32_t unk, struct buf *out,
                              struct buf *message, struct err *err)
{
    const struct gguf_value *scores = gguf_get(v->g, "tokenizer.ggml.scores");
    const size_t count = gguf_array_size(scores);
    if (count != (size_t)v->count)
        return base_fail(err, ERR_MODEL,
                         "%s: tokenizer.ggml.scores has %zu numbers, one for each of %d tokens "
                         "expected",
                         gguf_path(v->g), count, v->count);
    for (int32_t id = 0; id < v->count; id++) {
        double score = 0;
        char empty[32];
        const char *text = v->texts[id].bytes;
        size_t n = v->texts[id].n;
        if (!gguf_array_number(scores, (size_t)id, &score) || !isfinite((float)score))
            return base_fail(err, ERR_MODEL,
                             "%s: tokenizer.ggml.scores[%d]: a finite number expected",
                             gguf_path(v->g), id);
        if (n == 0) {
            n = (size_t)snprintf(empty, sizeof empty, "[EMPTY_%d]", id);
            text = empty;
            if (gguf_vocab_find(v, empty, n) >= 0)
                return base_fail(err, ERR_MODEL, "%s: tokenizer.ggml.tokens[%d] is empty",
                                 gguf_path(v->g), id);
        }
        spm_proto_piece(out, message, text, n, (float)score, type_of(v, id, unk));
    }
    return OK;
}

struct piece_name {
    char text[GGUF_VOCAB_BYTES_MAX + 1];
};

static const char *name_of(const struct gguf_vocab *v, int32_t id, struct piece_name *to)
{
    if (id < 0)
        return NULL;
    memcpy(to->text, v->texts[id].bytes, v->texts[id].n);
    to->text[v->texts[id].n] = '\0';
    return to->text;
}

static void put_settings(const struct gguf_vocab *v, struct spm_proto_settings *s, struct buf *out,
                         struct buf *message)
{
    struct piece_name unk, bos, eos, pad;
    s->count = v->count;
    s->bos = v->bos;
    s->eos = v->eos;
    s->pad = v->pad;
    s->unk_piece = name_of(v, s->unk, &unk);
    s->bos_piece = name_of(v, s->bos, &bos);
    s->eos_piece = name_of(v, s->eos, &eos);
    s->pad_piece = name_of(v, s->pad, &pad);
    spm_proto_settings(out, message, s);
}

enum status gguf_spm_write(const struct gguf_vocab *v, struct buf *out, struct err *err)
{
    struct spm_proto_settings s = {.add_dummy_prefix = true};
    struct buf message;
    int32_t bytes = 0;
    enum status st = OK;
    buf_init(&message, MESSAGE_MAX);
    TRY(read_flag(v, "tokenizer.ggml.add_space_prefix", &s.add_dummy_prefix, err));
    TRY(read_flag(v, "tokenizer.ggml.remove_extra_whitespaces", &s.remove_extra_whitespaces, err));
    TRY(find_unknown(v, &s.unk, err));
    TRY(check_bytes(v, s.unk, &bytes, err));
    s.byte_fallback = bytes > 0;
    TRY(put_pieces(v, s.unk, out, &message, err));
    put_settings(v, &s, out, &message);
    if (out->failed)
        st = base_fail(err, ERR_NOMEM, "%s: no memory for a tokenizer of %d tokens",
                       gguf_path(v->g), v->count);
out:
    buf_free(&message);
    return st;
}
