/* Matrix products of many rows: the door to cuBLAS. */
#ifndef TESSERA_KERNELS_CUDA_BLAS_H
#define TESSERA_KERNELS_CUDA_BLAS_H

#include "kernels/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* y[rows, out] = x[rows, in] w[out, in]^T, x and w of one type, row-major, on the device, rows of x
 * contiguous. Sums in fp32; fp32 products stay fp32 (no tf32). Elements of F8_E4M3 are codes times
 * the scale of their row of x or w. y is F32 or, of BF16 and F8_E4M3, BF16: the sums
 * rounded once. */
struct blas_product {
    int32_t rows, out, in;
    int64_t w_pitch, y_pitch; /* elements from row to row */
    enum dtype dtype, y_dtype;
    void *y;
    const void *x, *w;
    const float *x_scale, *w_scale; /* F8_E4M3 only, at 16 bytes */
};

/* Opens c->blas, whose products use the backend's workspace and allocate nothing. */
enum status blas_open(struct cuda_backend *c, struct err *err) MUST_USE;
void blas_close(struct cuda_backend *c);
/* Has the library a kernel for this on this device? Always but with F8_E4M3. */
bool blas_knows(struct cuda_backend *c, const struct blas_product *p);
void blas_multiply(struct cuda_backend *c, const struct blas_product *p);

#ifdef __cplusplus
}
#endif

#endif
