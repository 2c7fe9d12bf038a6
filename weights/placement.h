/* Placement: pure slicing arithmetic, no I/O and no device. Which rows and columns of which
 * checkpoint tensors make up a rank's local weight. The loader, `shard`, `inspect`, `plan` and the
 * parallel layer all use it. Split rule everywhere: block x of n gets units
 * [floor(N x / n), floor(N (x+1) / n)); unit = head, KV head, column or vocabulary row. */
#ifndef TESSERA_WEIGHTS_PLACEMENT_H
#define TESSERA_WEIGHTS_PLACEMENT_H

#include "config/base.h"
#include "config/model_config.h"
#include "kernels/backend.h"

#define PLACEMENT_NAME_MAX 128

struct span {
    int64_t begin, end; /* half-open; begin == end: nothing */
};

/* Block `index` of `parts` of N units by the balanced rule. */
struct span placement_block(int64_t units, int32_t parts, int32_t index);
/* The same in whole tiles of outputs: the stored blocks one after another are the stored whole. */
#define PLACEMENT_TILE 32
struct span placement_tiles(int64_t outputs, int32_t parts, int32_t index);
static inline int64_t span_len(struct span s)
{
    return s.end - s.begin;
}

/* A part of one checkpoint tensor and where it goes in the local weight.
 * Vectors (norm gains, biases) are [1, n]. */
struct tensor_slice {
    char tensor[PLACEMENT_NAME_MAX]; /* name in the checkpoint */
    int64_t shape[2];                /* its whole shape */
    int32_t ndim;                    /* 1 or 2 in the file */
    int32_t stack; /* of matrices one after the other in a tensor of more dimensions; 0: it is one.
                      Of a vector: rows of one column, [stack, 1, n / stack] (checkpoint_views.h) */
    struct span rows, cols; /* the part this rank holds */
    int64_t dst_row;        /* first row in the local weight; first element of a LOCAL_VECTOR */
};

enum local_kind {
    LOCAL_LINEAR, /* [out, in], stored by the backend */
    LOCAL_VECTOR, /* fp32 [in] */
};

/* One local weight of a rank: its slices stacked by rows. */
struct local_weight {
    char name[PLACEMENT_NAME_MAX]; /* e.g. model.layers.0.self_attn.qkv_proj */
    enum local_kind kind;
    struct weight_spec spec; /* LOCAL_VECTOR: out = 1, in = n, dtype F32 */
    int32_t slice_count;
    struct tensor_slice *slices; /* borrowed */
    size_t offset, bytes;        /* in the rank's arena, by placement_layout */
    float plus;                  /* LOCAL_VECTOR: added to each element that is loaded */
    /* LOCAL_LINEAR, of values: rows of the slices are columns here, and the other way round. It is
       put as a whole, so such weights are small. */
    bool transposed;
    struct quant_config quant; /* kind is QUANT_NONE unless spec.dtype or what is read for it
                                  has scales */
};

/* What slices fill one after the other: rows of theirs, or elements of a LOCAL_VECTOR. */
static inline int64_t placement_rows(const struct local_weight *w)
{
    return w->kind == LOCAL_LINEAR && !w->transposed ? w->spec.out : w->spec.in;
}
/* LOCAL_LINEAR: columns of each slice. */
static inline int32_t placement_cols(const struct local_weight *w)
{
    return w->transposed ? w->spec.out : w->spec.in;
}

/* Assigns 64-byte aligned offsets in order and returns the arena's size. */
enum status placement_layout(const struct backend_ops *ops, struct local_weight *weights,
                             int32_t count, size_t *arena_bytes, struct err *err) MUST_USE;

/* Leaf cuts of a row-parallel weight whose K consists of `units` units of `unit_size` columns and
 * whose rank holds units [mine.begin, mine.end): the global cuts floor(units * l / 8), clipped.
 * Kept is the smallest aligned power-of-two window of leaves that holds `mine`, so that the local
 * fold is exactly a subtree of the fold over all 8: leaves is 8, 4, 2, 1 at 1, 2, 4, 8 ranks. */
void placement_leaves(int64_t units, int64_t unit_size, struct span mine, struct weight_spec *spec);

/* Bytes of the checkpoint this weight's slices need (what the rank must read), without scales:
 * what they cover, or the whole rows, or groups of columns, that are to be quantised. */
size_t placement_read_bytes(const struct local_weight *w, enum dtype file_dtype);

/* Slices of all weights together. */
size_t placement_slices(const struct local_weight *weights, int32_t count);

/* Columns of a slice that are read to quantise it: all that share a scale with some of its own. */
struct span placement_read_cols(const struct local_weight *w, const struct tensor_slice *s);

/* A rectangle of a tensor. */
struct placement_box {
    struct span rows, cols;
};
/* QUANT_FILE: the blocks, by row and column of the tensor's scales, that a slice touches; and how
 * many there are in all: shape[0] x shape[1]. */
struct placement_box placement_scales(const struct local_weight *w, const struct tensor_slice *s);
void placement_scales_shape(const struct local_weight *w, const struct tensor_slice *s,
                            int64_t shape[2]);
/* True when the boxes together hold every element of `whole`; else *gap is a missing rectangle. */
bool placement_covered(const struct placement_box *boxes, int32_t count, struct placement_box whole,
                       struct placement_box *gap);

/* Checks one local weight: its slices lie inside their tensors, have its width, and tile its rows
 * (a vector: its elements) exactly once. ERR_INTERNAL names weight and range. */
enum status placement_tiled(const struct local_weight *w, struct err *err) MUST_USE;

/* Proof over all ranks: every element of every tensor named by the slices is held at least once,
 * and within one rank each local weight's rows are tiled exactly once. weights[r] has counts[r]
 * entries. ERR_INTERNAL names tensor, rank and range. */
enum status placement_prove(struct local_weight *const *weights, const int32_t *counts,
                            int32_t ranks, struct err *err) MUST_USE;

#endif
