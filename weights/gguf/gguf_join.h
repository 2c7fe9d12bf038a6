/* Tensors of all experts of a layer, where a checkpoint has them so. */
#ifndef TESSERA_WEIGHTS_GGUF_GGUF_JOIN_H
#define TESSERA_WEIGHTS_GGUF_GGUF_JOIN_H

#include "weights/gguf/gguf_arch.h"
#include "weights/safetensors.h"

/* Joins what is to be written of experts, whose bytes follow each other: gates and ups, and downs.
 * Returns how many entries there are then. names: of the joined ones, a place for each entry. */
enum { GGUF_JOIN_NAME = 64 };
int32_t gguf_join_experts(const struct gguf_arch *a, struct safetensors_entry *entries,
                          int32_t count, char (*names)[GGUF_JOIN_NAME]);

#endif
