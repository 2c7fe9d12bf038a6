/* The vocabulary of a GGUF file as it is checked: its tokens by id, and the ids that mean
 * something. Keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md and
 * src/llama-vocab.cpp of https://github.com/ggml-org/llama.cpp, which also has the names of tokens
 * that end an answer. */
#ifndef TESSERA_WEIGHTS_GGUF_GGUF_VOCAB_H
#define TESSERA_WEIGHTS_GGUF_GGUF_VOCAB_H

#include "weights/gguf/gguf.h"

#define GGUF_VOCAB_TOKENS_MAX (1 << 20)
#define GGUF_VOCAB_BYTES_MAX 1024 /* of a token */
#define GGUF_VOCAB_ENDS_MAX 8     /* that a model may have */

/* Numbers of the format, which are SentencePiece's. */
enum gguf_vocab_type {
    GGUF_VOCAB_NORMAL = 1,
    GGUF_VOCAB_UNKNOWN = 2,
    GGUF_VOCAB_CONTROL = 3,
    GGUF_VOCAB_USER_DEFINED = 4,
    GGUF_VOCAB_UNUSED = 5,
    GGUF_VOCAB_BYTE = 6,
};

struct gguf_vocab {
    const struct gguf *g; /* borrowed */
    int32_t count;
    struct gguf_string *texts;  /* [count], borrowed: UTF-8 without NUL; n = 0: there is none */
    uint8_t *types;             /* [count], enum gguf_vocab_type */
    int32_t *table;             /* id + 1 by hash of the text, 0: free */
    size_t slots;               /* of the table, a power of two */
    int32_t bos, eos, unk, pad; /* -1: none */
    int32_t ends[GGUF_VOCAB_ENDS_MAX]; /* tokens that end an answer, eos first */
    int32_t end_count;
    bool add_bos, add_eos; /* around every text, if the file says so */
    bool add_bos_said;
};

/* What a model has where the file does not say. */
struct gguf_vocab_defaults {
    int32_t bos, eos, unk; /* -1: none; none, too, where the vocabulary is smaller */
};

/* ERR_MODEL names the file, the key and the element: arrays that are missing or of another size,
 * tokens that are not UTF-8 text of at most GGUF_VOCAB_BYTES_MAX, or that are there twice, unknown
 * types, ids that are not in the vocabulary. */
enum status gguf_vocab_open(const struct gguf *g, const struct gguf_vocab_defaults *defaults,
                            struct gguf_vocab *out, struct err *err) MUST_USE;
void gguf_vocab_free(struct gguf_vocab *v);
/* Id of a token; -1: there is none. */
int32_t gguf_vocab_find(const struct gguf_vocab *v, const char *text, size_t n);
/* Was it only written to fill the vocabulary to the model's size? */
bool gguf_vocab_is_filler(const struct gguf_vocab *v, int32_t id);
/* Is it found in a text before any other is made? */
bool gguf_vocab_is_added(const struct gguf_vocab *v, int32_t id);

bool gguf_vocab_is_text(const char *bytes, size_t n); /* UTF-8 without NUL */
/* As messages show what a file says: what does not print is a '?'. */
struct gguf_vocab_shown {
    char text[64];
};
struct gguf_vocab_shown gguf_vocab_show(struct gguf_string s);

#endif
