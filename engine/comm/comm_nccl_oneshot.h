/* Small sums without NCCL, through the memory of peers on the same host (kernels/cuda/oneshot.h).
 * Opened by all ranks together, tested and measured before it is used; all use it, for the same
 * sizes, or none does. One thread (the rank's), but for comm_oneshot_stop. */
#ifndef TESSERA_ENGINE_COMM_COMM_NCCL_ONESHOT_H
#define TESSERA_ENGINE_COMM_COMM_NCCL_ONESHOT_H

#include "engine/comm/comm_nccl_trial.h"
#include "kernels/cuda/oneshot.h"

struct comm_oneshot {
    struct oneshot with;
    size_t max;      /* elements of the largest sum that goes this way; 0: none does */
    size_t norm_max; /* oneshot_norm_size of the largest with the norm behind it; likewise */
    uint32_t *stop;  /* pinned; NULL: closed */
    void *mapped[ONESHOT_RANKS_MAX]; /* memory of peers */
};

/* Bytes at the end of every rank's staging that become its inbox; 0: too many ranks for it. */
size_t comm_oneshot_bytes(int32_t ranks);
/* staging[bytes]: device memory by itself, not a part of other, all of it used for the trial.
 * other: how sums go without. norms: a sum may be added to a row and normed by the same kernel.
 * Log lines say what came of it. Everything is borrowed. */
enum status comm_oneshot_open(struct comm_trial *t, const struct comm_way *other, void *staging,
                              size_t bytes, bool norms, struct comm_oneshot *out,
                              struct err *err) MUST_USE;
/* dst[n] = the sum, n <= max. */
void comm_oneshot_sum(const struct comm_oneshot *o, struct backend *b, float *dst, const float *src,
                      size_t n);
bool comm_oneshot_has_norm(const struct comm_oneshot *o, int32_t rows, int32_t cols);
/* comm_all_reduce_norm, where it has that. */
void comm_oneshot_norm(const struct comm_oneshot *o, struct backend *b, const struct add_norm *to,
                       const float *src);
/* What waits for peers ends. Any thread, while it is open. */
void comm_oneshot_stop(struct comm_oneshot *o);
/* Nothing that uses it is under way here. Zeroed memory is fine. */
void comm_oneshot_close(struct comm_oneshot *o);

#endif
