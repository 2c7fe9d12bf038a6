/* DESIGN: the scheduler resumes fibers until each waits or is done, then lets those go on that wait
 * for the same thing, if all who must wait for it do. It walks the threads forwards and backwards
 * in turns, so a kernel that lacks a barrier gives another result, and usually a wrong one. Fibers
 * are made once and kept; a switch is a longjmp, without a system call (and unchecked: the
 * library's check of -D_FORTIFY_SOURCE takes another stack for a corrupt one). */
#undef _FORTIFY_SOURCE
#include "tests/emulate/cublas_v2.h"
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

/* A handle is the place of its stream. */
cublasStatus_t cublasCreate(cublasHandle_t *h)
{
    *h = new cudaStream_t();
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy(cublasHandle_t h)
{
    delete (cudaStream_t *)h;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream(cublasHandle_t h, cudaStream_t s)
{
    *(cudaStream_t *)h = s;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetWorkspace(cublasHandle_t, void *, size_t)
{
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetMathMode(cublasHandle_t, int)
{
    return CUBLAS_STATUS_SUCCESS;
}

const char *cublasGetStatusString(cublasStatus_t)
{
    return "emulated status";
}

static float element(const void *p, cudaDataType t, size_t i)
{
    return dtype_load(p, t == CUDA_R_32F ? DTYPE_F32 : t == CUDA_R_16F ? DTYPE_F16 : DTYPE_BF16, i);
}

static void multiply(int m, int n, int k, const void *a, cudaDataType a_type, int lda,
                     const void *b, cudaDataType b_type, int ldb, float *c, int ldc)
{
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            float sum = 0;
            for (int l = 0; l < k; l++)
                sum = fmaf(element(a, a_type, (size_t)i * (size_t)lda + (size_t)l),
                           element(b, b_type, (size_t)j * (size_t)ldb + (size_t)l), sum);
            c[(size_t)j * (size_t)ldc + (size_t)i] = sum;
        }
}

cublasStatus_t cublasGemmEx(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m,
                            int n, int k, const void *alpha, const void *a, cudaDataType a_type,
                            int lda, const void *b, cudaDataType b_type, int ldb, const void *beta,
                            void *c, cudaDataType c_type, int ldc, cublasComputeType_t,
                            cublasGemmAlgo_t)
{
    if (ta != CUBLAS_OP_T || tb != CUBLAS_OP_N || *(const float *)alpha != 1 ||
        *(const float *)beta != 0 || c_type != CUDA_R_32F || lda < k || ldb < k || ldc < m)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    emulate_enqueue(*(cudaStream_t *)h,
                    [=] { multiply(m, n, k, a, a_type, lda, b, b_type, ldb, (float *)c, ldc); });
    return CUBLAS_STATUS_SUCCESS;
}
