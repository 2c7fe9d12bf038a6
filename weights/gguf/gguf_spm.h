/* tokenizer.model of a vocabulary with scores. */
#ifndef TESSERA_WEIGHTS_GGUF_GGUF_SPM_H
#define TESSERA_WEIGHTS_GGUF_GGUF_SPM_H

#include "config/buf.h"
#include "weights/gguf/gguf_vocab.h"

/* The whole file: byte pair encoding by score, with byte tokens if there are any, and a space
 * before a text unless tokenizer.ggml.add_space_prefix is false. ERR_MODEL where scores are missing
 * or not finite, byte tokens are not all 256, or none is the unknown token; ERR_NOMEM. */
enum status gguf_spm_write(const struct gguf_vocab *v, struct buf *out, struct err *err) MUST_USE;

#endif
