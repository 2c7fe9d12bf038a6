/* The tensors of a GGUF file by their names in Hugging Face's checkpoints. Names:
 * gguf-py/gguf/tensor_mapping.py of https://github.com/ggml-org/llama.cpp; what its converter does
 * to values: conversion/ there. */
#ifndef TESSERA_WEIGHTS_GGUF_GGUF_MODEL_H
#define TESSERA_WEIGHTS_GGUF_GGUF_MODEL_H

#include "config/dtype.h"
#include "weights/gguf/gguf.h"
#include "weights/gguf/gguf_order.h"

/* The type that loses least: that of the file's matrices where all have one of F32, F16 and BF16;
 * else, of codes, BF16. */
enum dtype gguf_model_dtype(const struct gguf *g);

/* Where a tensor of the checkpoint is in the file. */
struct gguf_source {
    const struct gguf_tensor *tensor;
    const struct gguf_tensor *behind; /* whose rows count as if they followed; NULL: none */
    int64_t behind_rows;              /* that it has to have */
    int64_t first; /* its first row there: of an expert's, or of another part; else 0 */
    int64_t rows, cols;
    enum gguf_order_kind order;   /* of rows; of values, where the tensor is a vector */
    enum gguf_order_kind columns; /* where the file's belong */
    int32_t head_dim; /* of a head's rows neighbours turn together there: row 2 j + s is row
                         s * head_dim / 2 + j in the checkpoint; 0: rows are where they are */
    float less;       /* what was added to each value there */
    bool exact;       /* fp32 in every checkpoint */
    bool decay;       /* -exp() of each value is there */
    bool convolution; /* has a dimension of one in the middle */
    bool by_head; /* of each head columns of `tensor`, which are rows, and rows of `behind`; both
                     have a matrix for each head, and the orders are none */
};

/* By its name in the checkpoint, of a file that gguf_config_put understood; m: what model_config
 * reads of that. False: the file has no such tensor. */
bool gguf_model_source(const struct gguf *g, const char *name, const struct model_config *m,
                       struct gguf_source *out);
/* No tensor of the checkpoint comes from it: factors of rotations, which config.json has in it, and
 * layers that guess. */
bool gguf_model_is_left_out(const struct gguf *g, const char *tensor);

#endif
