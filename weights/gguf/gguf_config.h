/* What a GGUF file says of its model, in the words of Hugging Face's config.json. */
#ifndef TESSERA_WEIGHTS_GGUF_GGUF_CONFIG_H
#define TESSERA_WEIGHTS_GGUF_GGUF_CONFIG_H

#include "config/dtype.h"
#include "weights/gguf/gguf.h"

struct buf;

/* Adds config.json to *json, as text; `dtype`: of the checkpoint (F32, F16, BF16). What the values
 * mean is model_config's to check. ERR_MODEL: an architecture that is none of ours, which names
 * those that are; a key that is missing or of the wrong type; what we cannot put in words. */
enum status gguf_config_put(const struct gguf *g, enum dtype dtype, struct buf *json,
                            struct err *err) MUST_USE;

#endif
