/* DESIGN: cuBLAS thinks in columns: a row-major matrix is its transpose there. So y^T = w x^T, with
 * w read as [in, out] and transposed back. */
#include "kernels/cuda/blas.h"

#include <cublas_v2.h>

static cudaDataType_t type_of(enum dtype t)
{
    return t == DTYPE_F32 ? CUDA_R_32F : t == DTYPE_F16 ? CUDA_R_16F : CUDA_R_16BF;
}

enum status blas_open(struct cuda_backend *c, struct err *err)
{
    cublasHandle_t handle = NULL;
    cublasStatus_t s = cublasCreate(&handle);
    c->blas = handle;
    if (s == CUBLAS_STATUS_SUCCESS)
        s = cublasSetStream(handle, c->stream);
    if (s == CUBLAS_STATUS_SUCCESS) /* after the stream, which sets the default one */
        s = cublasSetWorkspace(handle, c->workspace.data, c->workspace.bytes);
    if (s == CUBLAS_STATUS_SUCCESS)
        s = cublasSetMathMode(handle, CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION);
    return s == CUBLAS_STATUS_SUCCESS
               ? OK
               : base_fail(err, ERR_DEVICE, "cuBLAS: %s", cublasGetStatusString(s));
}

void blas_close(struct cuda_backend *c)
{
    if (c->blas != NULL)
        cublasDestroy(c->blas);
    c->blas = NULL;
}

void blas_multiply(struct cuda_backend *c, const struct blas_product *p)
{
    const float one = 1, zero = 0;
    const cudaDataType_t type = type_of(p->dtype);
    const cublasStatus_t s = cublasGemmEx(
        c->blas, CUBLAS_OP_T, CUBLAS_OP_N, p->out, p->rows, p->in, &one, p->w, type, p->in, p->x,
        type, p->in, &zero, p->y, CUDA_R_32F, p->out, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
    if (s != CUBLAS_STATUS_SUCCESS)
        cuda_note_text(c, "linear (cuBLAS)", cublasGetStatusString(s));
}
