/* Byte pair encoding: a piece of text becomes units (bytes or characters), and neighbours are
 * joined in the order of a list of merges, until none applies. */
#ifndef TESSERA_SERVER_TOKENIZER_BPE_H
#define TESSERA_SERVER_TOKENIZER_BPE_H

#include "config/buf.h"

#define BPE_PIECE_BYTES_MAX 1024

struct bpe; /* filled by one thread; then immutable, any thread */

struct bpe_settings {
    int32_t ids, merges;  /* how many there may be */
    bool units_are_bytes; /* else characters */
    bool byte_fallback;   /* a character that is no piece becomes the pieces <0xNN> of its bytes */
    bool fuse_unknown;    /* a run of what is no piece becomes one unknown token */
    bool ignore_merges;   /* a text that is a piece is that piece, whatever the merges say */
};

/* ERR_NOMEM. */
enum status bpe_open(const struct bpe_settings *s, struct bpe **out, struct err *err) MUST_USE;
void bpe_close(struct bpe *b); /* NULL is fine */

/* Each id at most once, each text at most once, 1..BPE_PIECE_BYTES_MAX bytes, which are copied.
 * False when there is no memory. */
bool bpe_add_piece(struct bpe *b, int32_t id, const char *text, size_t n) MUST_USE;
/* No text becomes this id any more, not even by a merge that is added later. */
void bpe_hide(struct bpe *b, int32_t id);
/* Units that are nothing else become it; without one they become nothing. */
void bpe_set_unknown(struct bpe *b, int32_t id);
/* The next merge. Of the same pair again the later counts. */
void bpe_add_merge(struct bpe *b, int32_t left, int32_t right, int32_t joined);

/* -1: no such piece. */
int32_t bpe_find(const struct bpe *b, const char *text, size_t n);
/* NULL: the id is no piece. Not terminated; valid until the next piece is added. */
const char *bpe_piece(const struct bpe *b, int32_t id, int32_t *len);
/* Does any text, however odd, leave something of each unit? */
bool bpe_keeps_all(const struct bpe *b);

/* Memory that calls use again; one per thread, {0} at first. */
struct bpe_work {
    struct symbol *symbols;
    struct candidate *heap;
    size_t capacity;
};
void bpe_work_free(struct bpe_work *w);

/* Appends the ids of a piece of UTF-8 text as int32_t, in time n log n. ERR_NOMEM. */
enum status bpe_encode(const struct bpe *b, struct bpe_work *w, const char *text, size_t n,
                       struct buf *ids, struct err *err) MUST_USE;

#endif
