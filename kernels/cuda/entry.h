/* What the module's table points to. */
#ifndef TESSERA_KERNELS_CUDA_ENTRY_H
#define TESSERA_KERNELS_CUDA_ENTRY_H

#include "kernels/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* "cuda", or "cuda-deterministic": the bits of a row depend neither on the other rows of a step nor
 * on how leaves lie on ranks (linear.cu, attend.cu). */
extern const struct backend_ops cuda_ops, cuda_invariant_ops;
/* Either; name may end in ":N". */
const struct backend_ops *cuda_find(const char *name);

/* name: of the table, on the first device, or NAME:N. ERR_DEVICE: no driver, no such device. */
enum status cuda_open(const char *name, int32_t threads, struct backend **out,
                      struct err *err) MUST_USE;

/* The stream (a cudaStream_t) every op of b is enqueued on, for the communicator. */
void *cuda_stream(struct backend *b);
/* fn(arg) is called about every millisecond while the host waits for the device, by the waiting
 * thread. A failure it returns is told as that of the ops; it then has to end what they wait for.
 * fn NULL: no more. */
void cuda_watch(struct backend *b, enum status (*fn)(void *arg, struct err *err), void *arg);

/* dst[rows, sum of cols] = `count` blocks of [rows, cols[i]] that lie one after the other, side by
 * side. All on the device but cols. */
#define ROWOPS_BLOCKS_MAX 64
void rowops_interleave(struct backend *b, float *dst, const float *blocks, int32_t rows,
                       const int32_t *cols, int32_t count);

#ifdef __cplusplus
}
#endif

#endif
