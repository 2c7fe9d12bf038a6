/* A checkpoint directory as a set of whole tensors, whatever the files look like: one
 * model.safetensors (which wins over an index, as in transformers), an index with several files, or
 * our sharded form (shards.json and model-rank-RRRRR-part-PPPPP.safetensors, every piece with its
 * offsets in DCP_SHARDING_INFO). Opening reads and checks every header and no tensor data. Names in
 * an index are plain basenames; a symbolic link must end in the directory or in the blobs of its
 * Hugging Face cache. Immutable once opened, and adapted where adapters are given. */
#ifndef TESSERA_WEIGHTS_CHECKPOINT_H
#define TESSERA_WEIGHTS_CHECKPOINT_H

#include "weights/lora.h"
#include "weights/placement.h"
#include "weights/safetensors.h"

struct checkpoint;

/* A whole tensor; a 1-d one has rows = 1, one of more than 2-d has rows = the product of its first
 * two sizes and cols = that of the rest. */
struct checkpoint_tensor {
    const char *name; /* as a model that makes tokens has it */
    enum dtype dtype;
    int32_t ndim;
    int64_t rows, cols;
    const int64_t *dims; /* [ndim] as the file has it; NULL in a sharded checkpoint, and of views */
    const int64_t *column; /* of a vector that the file has as rows of one column, [n, 1, m], these
                              sizes; else NULL */
    const char *name_in_file; /* of a view that of the tensor it is a part of */
};

/* ERR_MODEL within milliseconds, naming file, tensor, expected, found. */
enum status checkpoint_open(const char *dir, struct checkpoint **out, struct err *err) MUST_USE;
void checkpoint_close(struct checkpoint *c);
/* From here on tensors are read with these adapters added (weights/lora.h): nobody who reads need
 * know. list NULL: there are none. Once, before anything is read. ERR_MODEL for one that fits no
 * tensor, or one that holds codes. */
enum status checkpoint_adapt(struct checkpoint *c, const char *list, struct err *err) MUST_USE;
/* Those adapters; NULL: there are none. */
const struct lora *checkpoint_lora(const struct checkpoint *c);

int32_t checkpoint_count(const struct checkpoint *c);
/* In name order. */
const struct checkpoint_tensor *checkpoint_at(const struct checkpoint *c, int32_t i);
const struct checkpoint_tensor *checkpoint_find(const struct checkpoint *c, const char *name);
/* Of the tensor of the nearest name what its file calls it, for messages; NULL when the checkpoint
 * is empty. */
const char *checkpoint_nearest(const struct checkpoint *c, const char *name);
/* Sum of tensor bytes (each tensor once). */
uint64_t checkpoint_bytes(const struct checkpoint *c);
/* Of names, lengths and times of its files and adapters: another one when they were written
 * again. */
uint64_t checkpoint_stamp(const struct checkpoint *c);
/* Ranks of a sharded checkpoint, 0 for a plain one. */
int32_t checkpoint_ranks(const struct checkpoint *c);

/* The scales of a slice whose weight is QUANT_FILE: their tensor, and the part that the slice needs
 * as that tensor has it (1-d or 2-d; of MXFP4 rows and groups). ERR_MODEL when it is missing or has
 * another shape or type. */
enum status checkpoint_scale(const struct checkpoint *c, const struct local_weight *w,
                             const struct tensor_slice *s, const struct checkpoint_tensor **tensor,
                             struct tensor_slice *part, struct err *err) MUST_USE;

/* Bytes that are read for a weight: of its slices, of scales and whatever else they need. */
uint64_t checkpoint_read_bytes(const struct checkpoint *c, const struct local_weight *w);

/* Where a read that begins at this row and column begins: a file by its number, and the offset. */
void checkpoint_where(const struct checkpoint *c, const struct checkpoint_tensor *t, int64_t row,
                      int64_t col, int32_t prefer_rank, int32_t *file, uint64_t *offset);
/* Name of a file by its number; NULL: there is none. */
const char *checkpoint_file(const struct checkpoint *c, int32_t file);

/* Reads rows x cols of a tensor into dst, row-major and contiguous, in the file's dtype. Reads just
 * those bytes, and what adapters add to them. `prefer_rank` chooses among copies in a sharded
 * checkpoint. Thread-safe. */
enum status checkpoint_read(const struct checkpoint *c, const struct checkpoint_tensor *t,
                            struct span rows, struct span cols, int32_t prefer_rank, void *dst,
                            struct err *err) MUST_USE;

/* The same in the type of checkpoint_type: F32 for what adapters change, whose sums whoever holds
 * them rounds, once; for all else the file's. */
enum dtype checkpoint_type(const struct checkpoint *c, const struct checkpoint_tensor *t);
enum status checkpoint_read_exact(const struct checkpoint *c, const struct checkpoint_tensor *t,
                                  struct span rows, struct span cols, int32_t prefer_rank,
                                  void *dst, struct err *err) MUST_USE;

/* Have both tensors the same shape, type and bytes? Reads both. Thread-safe. */
enum status checkpoint_same(const struct checkpoint *c, const struct checkpoint_tensor *a,
                            const struct checkpoint_tensor *b, bool *same,
                            struct err *err) MUST_USE;

/* Checks that the slices name existing tensors of the expected shape and a dtype we compute with
 * (those of a QUANT_FILE weight F8_E4M3, U8 or I32, with scales), and that every tensor of the
 * checkpoint is named by a slice or matches an ignore pattern
 * (`*` = one dotted component, `**` = any number), which no adapter may add to. *ignored_count: how
 * many were ignored, for the log (may be NULL). */
enum status checkpoint_check(const struct checkpoint *c, const struct local_weight *weights,
                             int32_t count, const char *const *ignore, int32_t ignore_count,
                             int32_t *ignored_count, struct err *err) MUST_USE;

#endif
