/* tokenizer.model read by our own hand: a bounded protobuf reader that refuses what SentencePiece
 * would trust, and that knows the pieces as data. Pure. */
#ifndef TESSERA_SERVER_TOKENIZER_SPM_FILE_H
#define TESSERA_SERVER_TOKENIZER_SPM_FILE_H

#include "config/base.h"

#define SPM_FILE_PIECES_MAX (1 << 20)
#define SPM_FILE_PIECE_BYTES_MAX 1024

/* Numbers of the format. */
enum spm_piece_type {
    SPM_NORMAL = 1,
    SPM_UNKNOWN = 2,
    SPM_CONTROL = 3,
    SPM_USER_DEFINED = 4,
    SPM_UNUSED = 5,
    SPM_BYTE = 6,
};

struct spm_piece {
    const char *text; /* not terminated; points into the file's bytes */
    int32_t len;
    enum spm_piece_type type;
    size_t type_at; /* where the file says so; 0: it does not */
};

struct spm_file {
    struct spm_piece *pieces; /* owned */
    int32_t count;
    int32_t unk, bos, eos;   /* -1: none */
    const char *unk_surface; /* what the unknown token reads as */
    size_t unk_surface_len;
    bool add_dummy_prefix, remove_extra_whitespaces;
};

/* Checks: lengths within their parent, varints of at most 10 bytes, 1..2^20 pieces of 1..1024 bytes
 * of valid UTF-8, no piece twice, finite scores, byte pieces of the form <0xNN>, one unknown piece,
 * bos and eos in range, and no walk through the normalisation map that leaves it.
 * ERR_MODEL with `where` in front. The bytes must outlive *out. */
enum status spm_file_parse(const void *bytes, size_t n, const char *where, struct spm_file *out,
                           struct err *err) MUST_USE;
void spm_file_free(struct spm_file *f);

/* Makes a control token, to which no text leads, of a piece that the file says a type of. bytes: a
 * copy of the file. */
void spm_file_make_control(const struct spm_piece *piece, char *bytes);

#endif
