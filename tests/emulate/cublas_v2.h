/* The part of cuBLAS that kernels/cuda calls. */
#ifndef TESSERA_TESTS_EMULATE_CUBLAS_V2_H
#define TESSERA_TESTS_EMULATE_CUBLAS_V2_H

#include "tests/emulate/cuda_runtime_api.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef void *cublasHandle_t;
typedef enum { CUBLAS_STATUS_SUCCESS, CUBLAS_STATUS_NOT_SUPPORTED = 15 } cublasStatus_t;
typedef enum { CUBLAS_OP_N, CUBLAS_OP_T } cublasOperation_t;
typedef enum { CUDA_R_32F, CUDA_R_16F, CUDA_R_16BF } cudaDataType_t;
typedef cudaDataType_t cudaDataType;
enum { CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION = 16 };
typedef enum { CUBLAS_COMPUTE_32F } cublasComputeType_t;
typedef enum { CUBLAS_GEMM_DEFAULT } cublasGemmAlgo_t;

cublasStatus_t cublasCreate(cublasHandle_t *h);
cublasStatus_t cublasDestroy(cublasHandle_t h);
cublasStatus_t cublasSetStream(cublasHandle_t h, cudaStream_t s);
cublasStatus_t cublasSetWorkspace(cublasHandle_t h, void *workspace, size_t bytes);
cublasStatus_t cublasSetMathMode(cublasHandle_t h, int mode);
const char *cublasGetStatusString(cublasStatus_t s);
/* Only what is called: transposed a, plain b, alpha 1, beta 0, fp32 results. */
cublasStatus_t cublasGemmEx(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m,
                            int n, int k, const void *alpha, const void *a, cudaDataType_t a_type,
                            int lda, const void *b, cudaDataType_t b_type, int ldb,
                            const void *beta, void *c, cudaDataType_t c_type, int ldc,
                            cublasComputeType_t compute, cublasGemmAlgo_t algorithm);

#ifdef __cplusplus
}
#endif

#endif
