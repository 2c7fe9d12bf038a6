/* What Gemma 4's files say in more than single keys: layers of two kinds, whose heads and rotations
 * differ. conversion/gemma.py of https://github.com/ggml-org/llama.cpp has it. */
#ifndef TESSERA_WEIGHTS_GGUF_GGUF_GEMMA4_H
#define TESSERA_WEIGHTS_GGUF_GGUF_GEMMA4_H

#include "weights/gguf/gguf_arch.h"

struct buf;

/* Adds these lines of config.json; nothing of another architecture. ERR_MODEL: what there are no
 * words for there. */
enum status gguf_gemma4_put(const struct gguf *g, const struct gguf_arch *a, struct buf *b,
                            struct err *err) MUST_USE;

#endif
