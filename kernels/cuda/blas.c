/* DESIGN: cuBLASLt thinks in columns: a row-major matrix is its transpose there. So y^T = w x^T,
 * with w read as [in, out] and transposed back.
 * Its heuristics are asked once per shape and class of rows, for the most rows of the class, and
 * the answer is kept: so products of (2^n, 2^(n+1)] rows run the same algorithm, and a step asks
 * nothing, unless what was named refuses its rows: for these it is asked each time. A row's bits
 * may still depend on the rows, since some algorithms cut k by the number of tiles; --deterministic
 * does without cuBLAS. Descriptors live on the stack.
 * The table of answers is bounded; when it is full, new shapes take each other's place. */
#include "kernels/cuda/blas.h"

#include <cublasLt.h>
#include <stdlib.h>
#include <string.h>

#define ANSWERS 256 /* a model has about five shapes in ten classes of rows */

struct question {
    int64_t rows, out, in, w_pitch, y_pitch, dtype, y_dtype, alignment;
};

struct answer {
    struct question question;
    cublasStatus_t status; /* SUCCESS: there is an algorithm */
    cublasLtMatmulAlgo_t algorithm;
};

struct blas {
    cublasLtHandle_t handle;
    struct answer answers[ANSWERS];
};

/* What the library wants to know of a product. */
struct call {
    cublasLtMatmulDescOpaque_t product;
    cublasLtMatrixLayoutOpaque_t w, x, y;
};

static cudaDataType_t type_of(enum dtype t)
{
    return t == DTYPE_F32       ? CUDA_R_32F
           : t == DTYPE_F16     ? CUDA_R_16F
           : t == DTYPE_F8_E4M3 ? CUDA_R_8F_E4M3
                                : CUDA_R_16BF;
}

#if CUBLAS_VERSION >= 120900
static cublasStatus_t scale_rows(struct call *l, const struct blas_product *p)
{
    const int32_t mode = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
    const struct {
        cublasLtMatmulDescAttributes_t what;
        const void *value;
        size_t bytes;
    } set[] = {
        {CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &mode, sizeof mode},
        {CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &mode, sizeof mode},
        {CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &p->w_scale, sizeof p->w_scale},
        {CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &p->x_scale, sizeof p->x_scale},
    };
    cublasStatus_t s = CUBLAS_STATUS_SUCCESS;
    for (size_t i = 0; i < ARRAY_LEN(set) && s == CUBLAS_STATUS_SUCCESS; i++)
        s = cublasLtMatmulDescSetAttribute(&l->product, set[i].what, set[i].value, set[i].bytes);
    return s;
}
#else
static cublasStatus_t scale_rows(struct call *l, const struct blas_product *p)
{
    (void)l, (void)p;
    return CUBLAS_STATUS_NOT_SUPPORTED;
}
#endif

static cublasStatus_t describe(struct call *l, const struct blas_product *p, int64_t rows)
{
    const int32_t transposed = CUBLAS_OP_T;
    const uint64_t out = (uint64_t)p->out, in = (uint64_t)p->in;
    const cudaDataType_t type = type_of(p->dtype);
    cublasStatus_t s = cublasLtMatmulDescInit(&l->product, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (s == CUBLAS_STATUS_SUCCESS)
        s = cublasLtMatmulDescSetAttribute(&l->product, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                           sizeof transposed);
    if (s == CUBLAS_STATUS_SUCCESS && p->dtype == DTYPE_F8_E4M3)
        s = scale_rows(l, p);
    if (s == CUBLAS_STATUS_SUCCESS)
        s = cublasLtMatrixLayoutInit(&l->w, type, in, out, p->w_pitch);
    if (s == CUBLAS_STATUS_SUCCESS)
        s = cublasLtMatrixLayoutInit(&l->x, type, in, (uint64_t)rows, p->in);
    if (s == CUBLAS_STATUS_SUCCESS)
        s = cublasLtMatrixLayoutInit(&l->y, type_of(p->y_dtype), out, (uint64_t)rows, p->y_pitch);
    return s;
}

/* ---- which algorithm ------------------------------------------------------------------------- */

static struct question question_of(const struct blas_product *p)
{
    const uintptr_t bits = (uintptr_t)p->y | (uintptr_t)p->x | (uintptr_t)p->w;
    struct question q = {.rows = 1,
                         .out = p->out,
                         .in = p->in,
                         .w_pitch = p->w_pitch,
                         .y_pitch = p->y_pitch,
                         .dtype = (int64_t)p->dtype,
                         .y_dtype = (int64_t)p->y_dtype,
                         .alignment = bits % 16 == 0  ? 16
                                      : bits % 4 == 0 ? 4
                                                      : 2}; /* y of 16 bits */
    while (q.rows < p->rows)
        q.rows *= 2;
    return q;
}

/* Parts of a sum are added in fp32, not in y, also where y is narrower. */
static cublasStatus_t prefer(cublasLtMatmulPreferenceOpaque_t *like, uint32_t alignment,
                             bool narrow)
{
    static const cublasLtMatmulPreferenceAttributes_t aligned[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    const uint64_t workspace = CUDA_WORKSPACE_BYTES;
    const uint32_t sums = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    cublasStatus_t s = cublasLtMatmulPreferenceInit(like);
    if (s == CUBLAS_STATUS_SUCCESS)
        s = cublasLtMatmulPreferenceSetAttribute(like, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                 &workspace, sizeof workspace);
    if (s == CUBLAS_STATUS_SUCCESS && narrow)
        s = cublasLtMatmulPreferenceSetAttribute(like, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                                 &sums, sizeof sums);
    for (size_t i = 0; i < ARRAY_LEN(aligned) && s == CUBLAS_STATUS_SUCCESS; i++)
        s = cublasLtMatmulPreferenceSetAttribute(like, aligned[i], &alignment, sizeof alignment);
    return s;
}

static void ask(struct blas *b, const struct blas_product *p, const struct question *q,
                struct answer *a)
{
    struct call l;
    cublasLtMatmulPreferenceOpaque_t like;
    cublasLtMatmulHeuristicResult_t best;
    int found = 0;
    cublasStatus_t s = describe(&l, p, q->rows);
    if (s == CUBLAS_STATUS_SUCCESS)
        s = prefer(&like, (uint32_t)q->alignment, p->y_dtype != DTYPE_F32);
    if (s == CUBLAS_STATUS_SUCCESS)
        s = cublasLtMatmulAlgoGetHeuristic(b->handle, &l.product, &l.w, &l.x, &l.y, &l.y, &like, 1,
                                           &best, &found);
    if (s == CUBLAS_STATUS_SUCCESS)
        s = found > 0 ? best.state : CUBLAS_STATUS_NOT_SUPPORTED;
    a->question = *q;
    a->status = s;
    if (s == CUBLAS_STATUS_SUCCESS)
        a->algorithm = best.algo;
}

/* Would it be the same if asked again? Older GPUs refuse fp8 in one of three ways. */
static bool is_final(cublasStatus_t s)
{
    return s == CUBLAS_STATUS_SUCCESS || s == CUBLAS_STATUS_NOT_SUPPORTED ||
           s == CUBLAS_STATUS_ARCH_MISMATCH || s == CUBLAS_STATUS_INVALID_VALUE;
}

static const struct answer *answer_to(struct blas *b, const struct blas_product *p)
{
    const struct question q = question_of(p);
    int64_t word[sizeof q / sizeof(int64_t)];
    uint64_t hash = 0;
    memcpy(word, &q, sizeof q);
    for (size_t i = 0; i < ARRAY_LEN(word); i++)
        hash = (hash ^ (uint64_t)word[i]) * 0x9e3779b97f4a7c15u;
    struct answer *a = NULL;
    for (size_t i = 0; i < ANSWERS; i++) { /* the next place where one is another's */
        a = &b->answers[((hash >> 32) + i) % ANSWERS];
        if (a->question.rows == 0 || memcmp(&a->question, &q, sizeof q) == 0)
            break;
    }
    if (memcmp(&a->question, &q, sizeof q) != 0 || !is_final(a->status))
        ask(b, p, &q, a);
    return a;
}

/* ---- the door -------------------------------------------------------------------------------- */

enum status blas_open(struct cuda_backend *c, struct err *err)
{
    struct blas *b = calloc(1, sizeof *b); /* no question has 0 rows */
    if (b == NULL)
        return base_fail(err, ERR_NOMEM, "no memory for cuBLAS");
    const cublasStatus_t s = cublasLtCreate(&b->handle);
    if (s != CUBLAS_STATUS_SUCCESS) {
        free(b);
        return base_fail(err, ERR_DEVICE, "cuBLAS: %s", cublasLtGetStatusString(s));
    }
    c->blas = b;
    return OK;
}

void blas_close(struct cuda_backend *c)
{
    if (c->blas != NULL)
        cublasLtDestroy(c->blas->handle);
    free(c->blas);
    c->blas = NULL;
}

bool blas_knows(struct cuda_backend *c, const struct blas_product *p)
{
    return answer_to(c->blas, p)->status == CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t run(struct cuda_backend *c, const struct blas_product *p, struct call *l,
                          const cublasLtMatmulAlgo_t *algorithm)
{
    const float one = 1, zero = 0;
    return cublasLtMatmul(c->blas->handle, &l->product, &one, p->w, &l->w, p->x, &l->x, &zero, p->y,
                          &l->y, p->y, &l->y, algorithm, c->workspace.data, c->workspace.bytes,
                          c->stream);
}

/* With what is answered for just so many rows. */
static cublasStatus_t run_own(struct cuda_backend *c, const struct blas_product *p, struct call *l)
{
    struct question q = question_of(p);
    struct answer own;
    q.rows = p->rows;
    ask(c->blas, p, &q, &own);
    return own.status == CUBLAS_STATUS_SUCCESS ? run(c, p, l, &own.algorithm) : own.status;
}

void blas_multiply(struct cuda_backend *c, const struct blas_product *p)
{
    const struct answer *a = answer_to(c->blas, p);
    struct call l;
    cublasStatus_t s = a->status;
    if (s == CUBLAS_STATUS_SUCCESS)
        s = describe(&l, p, p->rows);
    if (s == CUBLAS_STATUS_SUCCESS) {
        s = run(c, p, &l, &a->algorithm);
        /* it does not suit so few of the class's rows */
        if (s == CUBLAS_STATUS_NOT_SUPPORTED || s == CUBLAS_STATUS_INVALID_VALUE)
            s = run_own(c, p, &l);
    }
    if (s != CUBLAS_STATUS_SUCCESS)
        cuda_note_text(c, "linear (cuBLAS)", cublasLtGetStatusString(s));
}
