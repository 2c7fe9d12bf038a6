/* The forms in which a GGUF file holds a row of values: plain floats, or blocks of 32 or 256 with
 * scales of their own.
 * Formats: ggml-common.h and ggml-quants.c of https://github.com/ggml-org/ggml */
#ifndef TESSERA_WEIGHTS_GGUF_GGUF_BLOCKS_H
#define TESSERA_WEIGHTS_GGUF_GGUF_BLOCKS_H

#include "config/base.h"

/* The values' numbers are ggml's own (enum ggml_type). */
enum gguf_block {
    GGUF_BLOCK_F32 = 0,
    GGUF_BLOCK_F16 = 1,
    GGUF_BLOCK_Q4_0 = 2,
    GGUF_BLOCK_Q4_1 = 3,
    GGUF_BLOCK_Q5_0 = 6,
    GGUF_BLOCK_Q5_1 = 7,
    GGUF_BLOCK_Q8_0 = 8,
    GGUF_BLOCK_Q2_K = 10,
    GGUF_BLOCK_Q3_K = 11,
    GGUF_BLOCK_Q4_K = 12,
    GGUF_BLOCK_Q5_K = 13,
    GGUF_BLOCK_Q6_K = 14,
    GGUF_BLOCK_IQ4_NL = 20,
    GGUF_BLOCK_IQ4_XS = 23,
    GGUF_BLOCK_BF16 = 30,
    GGUF_BLOCK_MXFP4 = 39,
};

/* What is known of a form; NULL where ggml's number is none that can be read here. */
struct gguf_block_info {
    const char *name; /* as llama.cpp prints it: "Q4_K" */
    int32_t values;   /* of a block */
    int32_t bytes;    /* of a block */
};
const struct gguf_block_info *gguf_block_info(uint32_t ggml_type);
/* The name of a form that cannot be read here, "?" where it is unknown: for messages. */
const char *gguf_block_name(uint32_t ggml_type);

/* n values, a multiple of the block's, from their blocks: the same fp32 bits as the reference
 * implementation. `src` needs no alignment. Pure. */
void gguf_dequantize(enum gguf_block block, const void *src, int64_t n, float *dst);

#endif
