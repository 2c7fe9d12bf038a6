/* Values of a GGUF file as config.json has them. */
#ifndef TESSERA_WEIGHTS_GGUF_GGUF_PUT_H
#define TESSERA_WEIGHTS_GGUF_GGUF_PUT_H

#include "config/buf.h"
#include "weights/gguf/gguf_arch.h"

/* The shortest text that reads as this float: keys are stored in fp32. */
void gguf_put_float(struct buf *b, float v);
/* layer_types: of which kind each layer is, by the file's list of truth values. One of layers that
 * recur counts those that guess, too; one of layers that slide may leave them out. */
enum status gguf_put_kinds(const struct gguf *g, const struct gguf_arch *a, const char *key,
                           const char *kind, struct buf *b, struct err *err) MUST_USE;

#endif
