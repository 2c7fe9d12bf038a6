/* A SentencePiece model (tokenizer.model), written: a protocol buffer of three messages, of which
 * the few fields that matter are written by hand, which is shorter than a protobuf library's build
 * rules. Whoever writes looks at the buffer's `failed` at the end.
 * Field numbers: sentencepiece_model.proto of the SentencePiece project. */
#ifndef TESSERA_WEIGHTS_SPM_PROTO_H
#define TESSERA_WEIGHTS_SPM_PROTO_H

#include "config/buf.h"

/* Numbers of the format. */
enum spm_proto_type {
    SPM_PROTO_NORMAL = 1,
    SPM_PROTO_UNKNOWN = 2,
    SPM_PROTO_CONTROL = 3,
    SPM_PROTO_USER_DEFINED = 4,
    SPM_PROTO_UNUSED = 5,
    SPM_PROTO_BYTE = 6,
};

/* Appends the next piece; `message` is scratch. */
void spm_proto_piece(struct buf *b, struct buf *message, const char *text, size_t n, float score,
                     enum spm_proto_type type);

/* Of byte pair encoding without normalisation. */
struct spm_proto_settings {
    int32_t count;              /* of pieces */
    int32_t unk, bos, eos, pad; /* -1: none */
    /* their pieces, borrowed; NULL: <unk>, <s>, </s> and <pad> */
    const char *unk_piece, *bos_piece, *eos_piece, *pad_piece;
    bool byte_fallback, add_dummy_prefix, remove_extra_whitespaces;
};

/* Appends what follows the pieces; `message` is scratch. */
void spm_proto_settings(struct buf *b, struct buf *message, const struct spm_proto_settings *s);

#endif
