/* DESIGN: the scheduler resumes fibers until each waits or is done, then lets those go on that wait
 * for the same thing, if all who must wait for it do. It walks the threads forwards and backwards
 * in turns, so a kernel that lacks a barrier gives another result, and usually a wrong one. Fibers
 * are made once and kept; a switch is a longjmp, without a system call (and unchecked: the
 * library's check of -D_FORTIFY_SOURCE takes another stack for a corrupt one). */
#undef _FORTIFY_SOURCE
#include "tests/emulate/cublasLt.h"
#include "tests/emulate/cuda_runtime.h"

#include "tests/emulate/cuda_fp16.h"

#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <setjmp.h>
#include <ucontext.h>
#include <vector>

#define FIBERS_MAX 1024
#define STACK_BYTES (64 << 10)
#define LANES 32

enum state { READY, AT_BLOCK, AT_WARP, DONE };

struct fiber {
    jmp_buf resume;
    ucontext_t start;
    bool started;
    enum state state;
    dim3 index;
    int value; /* given to the block's barrier, then its sum */
    uint64_t word;
    unsigned from;
};

dim3 threadIdx, blockIdx, blockDim, gridDim;
static struct fiber fibers[FIBERS_MAX];
static struct fiber *running;
static jmp_buf scheduler;
static const std::function<void()> *body;
static void *shared;

[[noreturn]] void emulate_fail(const char *what)
{
    fprintf(stderr, "emulated device: %s; block (%u, %u, %u), thread %u of %u\n", what, blockIdx.x,
            blockIdx.y, blockIdx.z, running != nullptr ? running->index.x : 0, blockDim.x);
    abort();
}

/* ---- switching ---- */

static void leave(enum state why)
{
    running->state = why;
    if (_setjmp(running->resume) == 0)
        _longjmp(scheduler, 1);
}

static void fiber_main()
{
    for (;;) { /* one turn per block that the fiber is a thread of */
        (*body)();
        leave(DONE);
    }
}

static void start(struct fiber *f)
{
    f->started = true;
    getcontext(&f->start);
    f->start.uc_stack.ss_sp = malloc(STACK_BYTES);
    f->start.uc_stack.ss_size = STACK_BYTES;
    makecontext(&f->start, fiber_main, 0);
    setcontext(&f->start);
}

static void resume(struct fiber *f)
{
    running = f;
    threadIdx = f->index;
    if (_setjmp(scheduler) != 0)
        return;
    if (f->started)
        _longjmp(f->resume, 1);
    start(f);
}

int emulate_block(int value)
{
    struct fiber *f = running;
    f->value = value;
    leave(AT_BLOCK);
    return f->value;
}

uint64_t emulate_warp(uint64_t value, unsigned from)
{
    struct fiber *f = running;
    f->word = value;
    f->from = from;
    leave(AT_WARP);
    return f->word;
}

/* ---- scheduling ---- */

static unsigned count(const struct fiber *f, unsigned n, enum state s)
{
    unsigned found = 0;
    for (unsigned i = 0; i < n; i++)
        found += f[i].state == s;
    return found;
}

static void release_warp(struct fiber *f)
{
    uint64_t words[LANES];
    const unsigned waiting = count(f, LANES, AT_WARP);
    if (waiting > 0 && count(f, LANES, DONE) > 0)
        emulate_fail("a shuffle for lanes that have returned");
    if (waiting < LANES)
        return;
    for (unsigned i = 0; i < LANES; i++)
        words[i] = f[f[i].from].word;
    for (unsigned i = 0; i < LANES; i++) {
        f[i].word = words[i];
        f[i].state = READY;
    }
}

static void release_block(unsigned threads)
{
    int sum = 0;
    if (count(fibers, threads, AT_BLOCK) + count(fibers, threads, DONE) < threads)
        return;
    for (unsigned i = 0; i < threads; i++)
        sum += fibers[i].state == AT_BLOCK ? fibers[i].value : 0;
    for (unsigned i = 0; i < threads; i++)
        if (fibers[i].state == AT_BLOCK) {
            fibers[i].value = sum;
            fibers[i].state = READY;
        }
}

static void run_block(unsigned threads)
{
    static unsigned turn;
    for (unsigned i = 0; i < threads; i++) {
        fibers[i].state = READY;
        fibers[i].index = dim3(i, 0, 0);
    }
    while (count(fibers, threads, DONE) < threads) {
        turn++;
        for (unsigned n = 0; n < threads; n++) {
            struct fiber *f = &fibers[turn % 2 ? n : threads - 1 - n];
            if (f->state == READY)
                resume(f);
        }
        for (unsigned i = 0; i < threads; i += LANES)
            release_warp(&fibers[i]);
        release_block(threads);
        if (count(fibers, threads, READY) == 0 && count(fibers, threads, DONE) < threads)
            emulate_fail("threads wait at different barriers");
    }
}

void emulate_launch(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()> &fn)
{
    static std::mutex one_at_a_time;
    std::lock_guard<std::mutex> lock(one_at_a_time);
    gridDim = grid;
    blockDim = block;
    body = &fn;
    running = nullptr;
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.y > 65535 || grid.z > 65535 ||
        block.x % LANES != 0 || block.x > FIBERS_MAX || block.y * block.z != 1 ||
        shared_bytes > 227 << 10)
        emulate_fail("a launch that no device takes");
    for (unsigned z = 0; z < grid.z; z++)
        for (unsigned y = 0; y < grid.y; y++)
            for (unsigned x = 0; x < grid.x; x++) {
                blockIdx = dim3(x, y, z);
                shared = malloc(shared_bytes + 1);
                memset(shared, 0xff, shared_bytes);
                run_block(block.x);
                free(shared);
            }
}

void *emulate_shared()
{
    return shared;
}

/* ---- cuBLAS ---- */

cublasStatus_t cublasLtCreate(cublasLtHandle_t *h)
{
    *h = new int();
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t h)
{
    delete (int *)h;
    return CUBLAS_STATUS_SUCCESS;
}

const char *cublasLtGetStatusString(cublasStatus_t)
{
    return "emulated status";
}

cublasStatus_t cublasLtMatmulDescInit(cublasLtMatmulDesc_t d, cublasComputeType_t, cudaDataType_t)
{
    *d = {};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d,
                                              cublasLtMatmulDescAttributes_t what,
                                              const void *value, size_t bytes)
{
    void *const place[] = {&d->transposed[0], &d->mode[0], &d->mode[1], &d->scale[0], &d->scale[1]};
    memcpy(place[what], value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutInit(cublasLtMatrixLayout_t l, cudaDataType_t type,
                                        uint64_t rows, uint64_t cols, int64_t ld)
{
    *l = {type, rows, cols, ld};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceInit(cublasLtMatmulPreference_t p)
{
    *p = {};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                    cublasLtMatmulPreferenceAttributes_t what,
                                                    const void *value, size_t bytes)
{
    if (what == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES)
        memcpy(&p->alignment, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

/* FP8 as on sm_90: all sides in whole vectors, a scale for each row of both. */
static cublasStatus_t suits(const cublasLtMatmulDescOpaque_t *d,
                            const cublasLtMatrixLayoutOpaque_t *a,
                            const cublasLtMatrixLayoutOpaque_t *b,
                            const cublasLtMatrixLayoutOpaque_t *y)
{
    const bool f8 = a->type == CUDA_R_8F_E4M3;
    if (d->transposed[0] != CUBLAS_OP_T || d->transposed[1] != CUBLAS_OP_N || a->type != b->type ||
        y->type != CUDA_R_32F || a->rows != b->rows || a->cols != y->rows || b->cols != y->cols ||
        a->ld < (int64_t)a->rows || b->ld < (int64_t)b->rows || y->ld < (int64_t)y->rows)
        return CUBLAS_STATUS_INVALID_VALUE;
    for (int i = 0; i < 2 && f8; i++)
        if (d->mode[i] != CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F || d->scale[i] == nullptr ||
            (uintptr_t)d->scale[i] % 16 != 0)
            return CUBLAS_STATUS_INVALID_VALUE;
    const bool whole = a->rows % 16 == 0 && a->cols % 16 == 0 && a->ld % 16 == 0 && b->ld % 16 == 0;
    return f8 && !whole ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t d,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t y,
                                              cublasLtMatmulPreference_t p, int,
                                              cublasLtMatmulHeuristicResult_t *results, int *found)
{
    const cublasStatus_t s = suits(d, a, b, y);
    *found = s == CUBLAS_STATUS_SUCCESS;
    results->state = s;
    results->algo.alignment = p->alignment;
    return s;
}

static float element(const void *p, cudaDataType_t t, size_t i)
{
    static const enum dtype of[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_F8_E4M3};
    return dtype_load(p, of[t], i);
}

static void multiply(const cublasLtMatmulDescOpaque_t &d, const void *a,
                     const cublasLtMatrixLayoutOpaque_t &la, const void *b,
                     const cublasLtMatrixLayoutOpaque_t &lb, float *y,
                     const cublasLtMatrixLayoutOpaque_t &ly)
{
    for (size_t i = 0; i < ly.rows; i++)
        for (size_t j = 0; j < ly.cols; j++) {
            float sum = 0;
            for (size_t l = 0; l < la.rows; l++)
                sum = fmaf(element(a, la.type, i * (size_t)la.ld + l),
                           element(b, lb.type, j * (size_t)lb.ld + l), sum);
            if (d.scale[0] != nullptr)
                sum = sum * ((const float *)d.scale[0])[i] * ((const float *)d.scale[1])[j];
            y[j * (size_t)ly.ld + i] = sum;
        }
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t d, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t la, const void *b,
                              cublasLtMatrixLayout_t lb, const void *beta, const void *,
                              cublasLtMatrixLayout_t, void *y, cublasLtMatrixLayout_t ly,
                              const cublasLtMatmulAlgo_t *algo, void *, size_t, cudaStream_t s)
{
    const cublasStatus_t st = suits(d, la, lb, ly);
    if (st != CUBLAS_STATUS_SUCCESS)
        return st;
    if (*(const float *)alpha != 1 || *(const float *)beta != 0)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (algo != nullptr && ((uintptr_t)a | (uintptr_t)b | (uintptr_t)y) % algo->alignment != 0)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (algo != nullptr && ly->cols % 5 == 0) /* one that does not suit every number of rows */
        return CUBLAS_STATUS_NOT_SUPPORTED;
    emulate_enqueue(s, [=, d = *d, la = *la, lb = *lb, ly = *ly] {
        multiply(d, a, la, b, lb, (float *)y, ly);
    });
    return CUBLAS_STATUS_SUCCESS;
}
