/* Synthetic values: a pure function of (seed, tensor name, global element index), equal in every
 * layout, for `--load-format dummy` and `tessera synth`. */
#ifndef TESSERA_WEIGHTS_SYNTH_H
#define TESSERA_WEIGHTS_SYNTH_H

#include "weights/placement.h"

/* Matrices, and vectors named *.bias: uniform with standard deviation `std`. Other vectors (norm
 * gains): 1 + j / 128, |j| <= 12, which every dtype holds exactly; but for those of layers that
 * recur: *.A_log with deviation 1, *.conv1d.weight with 0.5. In the tensors named embed or
 * head the first tiny_rows rows are scaled by 2^-10, so that control and byte tokens never win.
 * Matrix values are rounded to a dtype: that of the checkpoint in synth_write, that of the local
 * weight in loader_fill_dummy. The two are equal when these dtypes are. */
struct synth_rules {
    uint64_t seed;
    float std;
    const char *embed, *head; /* tensor names; head may be NULL (tied) */
    int64_t tiny_rows;
    int64_t taps;  /* of convolutions, which are written as [channels, 1, taps]; 0: as vectors */
    bool less_one; /* gains are stored less one, but for those of norms in layers that recur */
};

/* Elements [range.begin, range.end) of a row of a tensor in `dtype` (F32, F16, BF16), rounded to
 * it. A 1-d tensor is row 0. Pure, so any slicing and any thread gives the same values. */
void synth_row(const struct synth_rules *rules, const char *tensor, int32_t ndim, int64_t cols,
               int64_t row, struct span range, enum dtype dtype, void *dst);

/* Writes DIR (new or empty): config.json (text as given), model.safetensors with all tensors whole,
 * generation_config.json, tokenizer.model and tokenizer_config.json of `vocab` pieces: 0 <unk>,
 * 1 <s>, 2 </s>, 3..258 bytes, then printable characters and words (fewer when vocab is small;
 * below 262 no tokenizer is written). Logs progress when it takes over a second. */
struct synth_tensor {
    const char *name;
    int32_t ndim;
    int64_t rows, cols;
};
enum status synth_write(const char *dir, const char *config_json, const struct synth_rules *rules,
                        const struct synth_tensor *tensors, int32_t count, enum dtype dtype,
                        int32_t vocab, int32_t threads, struct err *err) MUST_USE;
/* The tokenizer.model bytes of `vocab` pieces (SentencePiece BPE with byte fallback). */
struct buf;
enum status synth_tokenizer(int32_t vocab, struct buf *out, struct err *err) MUST_USE;

#endif
