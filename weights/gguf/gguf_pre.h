/* How a byte-level model cuts a text before byte pairs are joined: GGUF has only a name for it
 * (tokenizer.ggml.pre), a tokenizer.json the steps.
 * Names, and the patterns behind them: src/llama-vocab.cpp of
 * https://github.com/ggml-org/llama.cpp; steps and normalizers are those of the models' own
 * tokenizer.json. */
#ifndef TESSERA_WEIGHTS_GGUF_GGUF_PRE_H
#define TESSERA_WEIGHTS_GGUF_GGUF_PRE_H

#include "config/buf.h"

struct gguf_pre_form; /* the steps */

enum gguf_pre_flags {
    GGUF_PRE_NFC = 1,           /* texts are in normalization form C */
    GGUF_PRE_IGNORE_MERGES = 2, /* a text that is a token is that one, whatever the merges say */
    GGUF_PRE_ADDS_BOS = 4,      /* where the file does not say */
};

struct gguf_pre {
    const char *name;
    const struct gguf_pre_form *form;
    unsigned flags;
};

/* NULL: unknown. */
const struct gguf_pre *gguf_pre_find(const char *name, size_t n);
/* The known names, i = 0, 1, ...; NULL after the last. */
const struct gguf_pre *gguf_pre_at(int32_t i);
/* The known name that looks most like this one. */
const char *gguf_pre_nearest(const char *name);
/* The value of "pre_tokenizer". */
void gguf_pre_write(const struct gguf_pre *pre, struct buf *out);

#endif
