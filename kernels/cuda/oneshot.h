/* A sum over ranks on devices that reach each other's memory, in one exchange: every rank writes
 * its addends into the inboxes of all others, each beside the number of the round, and adds up what
 * has come to its own. No barrier and no second trip; for small sums. The bits are those of the
 * tree of sum_tree. The norm of what a sum is added to may come from the same kernel. */
#ifndef TESSERA_KERNELS_CUDA_ONESHOT_H
#define TESSERA_KERNELS_CUDA_ONESHOT_H

#include "kernels/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ONESHOT_RANKS_MAX 8
#define ONESHOT_MAX 65536 /* elements of a sum */

/* All memory is the device's, except `stop`. */
struct oneshot {
    int32_t rank, ranks;
    /* Of each rank, as this one reaches it: oneshot_inbox_bytes, zeroed before any rank's first
     * sum. A part of the own one is kept for what this rank knows of the rounds. */
    void *inbox[ONESHOT_RANKS_MAX];
    /* Pinned memory of the host. Not 0: what waits for peers ends, its sum is not written, and no
     * later one will be right. */
    const uint32_t *stop;
    uint32_t patience; /* looks at the inbox before a thread gives up by itself; 0: without end */
};

size_t oneshot_inbox_bytes(int32_t ranks);
/* dst[n] = the sum of the ranks' src[n], n <= ONESHOT_MAX, in b's order. Every rank calls, with the
 * same n; dst is not src. At most one sum of an inbox is under way on a rank. */
void oneshot_sum(struct backend *b, const struct oneshot *o, float *dst, const float *src,
                 size_t n);

/* What counts as the size of a sum [rows, cols] with the norm behind it: at least its elements. */
size_t oneshot_norm_size(int32_t rows, int32_t cols);
/* The same with the sum of src[rows, cols], of that size, and add_rmsnorm of it. The squares of a
 * row are not added in the order of add_rmsnorm, but on all ranks in the same. */
void oneshot_norm(struct backend *b, const struct oneshot *o, const struct add_norm *to,
                  const float *src);

#ifdef __cplusplus
}
#endif

#endif
