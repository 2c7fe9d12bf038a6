/* A GGUF file written as the directory that Hugging Face would have of its model. */
#ifndef TESSERA_WEIGHTS_GGUF_GGUF_CONVERT_H
#define TESSERA_WEIGHTS_GGUF_GGUF_CONVERT_H

#include "config/model_config.h"
#include "weights/gguf/gguf.h"
#include "weights/synth.h"

/* Writes DIR (new or empty; removed again on failure): config.json as given, the tokenizer's files
 * and model.safetensors with `wanted` in `dtype` (F32, F16, BF16), values of codes dequantised.
 * *count: of these, and then of the tensors that are written, as some are one for all experts.
 * m: what config.json says. ERR_MODEL: the file lacks one of these or has it in another shape, or
 * has one that nobody wants. Logs progress when it takes over a second. Memory: a few megabytes
 * and, a row at a time, what `threads` threads work on. */
enum status gguf_convert(const struct gguf *g, const char *dir, const char *config_json,
                         const struct synth_tensor *wanted, int32_t *count,
                         const struct model_config *m, enum dtype dtype, int32_t threads,
                         struct err *err) MUST_USE;

#endif
