/* tokenizer.json of a vocabulary with merges. */
#ifndef TESSERA_WEIGHTS_GGUF_GGUF_BPE_H
#define TESSERA_WEIGHTS_GGUF_GGUF_BPE_H

#include "config/buf.h"
#include "weights/gguf/gguf_pre.h"
#include "weights/gguf/gguf_vocab.h"

/* The whole file. pre NULL: of characters with U+2581 for spaces and bytes as tokens <0xNN>, as
 * Gemma 4's; else of bytes. ERR_MODEL where merges are missing or one is not of two tokens that
 * make a third; ERR_NOMEM. */
enum status gguf_bpe_write(const struct gguf_vocab *v, const struct gguf_pre *pre, struct buf *out,
                           struct err *err) MUST_USE;

#endif
