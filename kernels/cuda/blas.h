/* Matrix products of many rows: the door to cuBLAS. */
#ifndef TESSERA_KERNELS_CUDA_BLAS_H
#define TESSERA_KERNELS_CUDA_BLAS_H

#include "kernels/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* y[rows, out] fp32 = x[rows, in] w[out, in]^T, x and w of one type, row-major, contiguous, on the
 * device. Sums in fp32; fp32 products stay fp32 (no tf32). */
struct blas_product {
    int32_t rows, out, in;
    enum dtype dtype;
    float *y;
    const void *x, *w;
};

/* Opens c->blas on the backend's stream with its workspace, so that products allocate nothing. */
enum status blas_open(struct cuda_backend *c, struct err *err) MUST_USE;
void blas_close(struct cuda_backend *c);
void blas_multiply(struct cuda_backend *c, const struct blas_product *p);

#ifdef __cplusplus
}
#endif

#endif
