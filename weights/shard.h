/* Writes the sharded form of a checkpoint: what each rank of a plan holds, loadable at any rank
 * count. DIR/model-rank-RRRRR-part-PPPPP.safetensors per rank with DCP_SHARDING_INFO metadata
 * ({tensor: {"saved_offsets": [row, col]}}, one number for a 1-d tensor), DIR/shards.json (version,
 * the files of each rank, per tensor its dtype and whole shape), and copies of the other files of
 * the model directory (config, tokenizer, chat template). There is one part per rank, unless a rank
 * holds several rectangles of one tensor (a fused one): the second goes to part 00001, and so on.
 * Deterministic: the same tensors and ranks give the same bytes, whatever the source's form, so
 * N -> M -> N is byte-identical. */
#ifndef TESSERA_WEIGHTS_SHARD_H
#define TESSERA_WEIGHTS_SHARD_H

#include "weights/checkpoint.h"

/* weights[r] has counts[r] entries: the local weights of rank r. Refuses a non-empty out_dir; on
 * failure removes what it wrote. Tensors no slice names are left out. Memory: about a megabyte. */
enum status shard_write(const char *model_dir, const struct checkpoint *source,
                        struct local_weight *const *weights, const int32_t *counts, int32_t ranks,
                        const char *out_dir, struct err *err) MUST_USE;

#endif
