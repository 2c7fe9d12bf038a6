/* DESIGN: a thread of a block runs until it waits or is done, then the next one of its warp that
 * may. A warp goes on through its own barriers until it waits for the block's, as far ahead of the
 * other warps as it may be. Lanes and warps are walked forwards and backwards in turns. So a kernel
 * that lacks a barrier gives another result, and usually a wrong one. A thread borrows a stack when
 * it begins and keeps it while it waits; one that is done hands its own to the next that begins,
 * without a switch. Blocks that wait for what a peer's kernel has yet to do end, and begin again
 * later; so do those that wait for others of their cluster, whose shared memory stays as they have
 * left it. A block that may run ahead of the kernels before it does so until no thread can go on
 * (emulate_ahead.h). A switch is gcc's own longjmp, a few instructions. With clang, whose own made
 * kernels go in circles, it is the C library's, without the check of -D_FORTIFY_SOURCE, which takes
 * another stack for a corrupt one. */
#undef _FORTIFY_SOURCE
#include "tests/emulate/cublasLt.h"
#include "tests/emulate/cuda_runtime.h"

#include "tests/emulate/cuda_fp16.h"
#include "tests/emulate/emulate_ahead.h"

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <setjmp.h>
#include <thread>
#include <ucontext.h>
#include <vector>

#define THREADS_MAX 1024
#define STACK_BYTES (64 << 10)
#define LANES 32
#define LATER_US 20 /* until blocks that wait for a peer begin again, */
#define TRIES 20000 /* so often, unless they wait without end */

enum state : uint8_t { NEW, READY, AT_PHASE, AT_WAIT, AT_BLOCK, AT_WARP, DONE };

/* Where a stack is left. */
#ifdef __clang__
typedef jmp_buf place;
#define LEAVE(here) _setjmp(here)
#define RETURN_TO(there) _longjmp(there, 1)
#else
typedef void *place[5];
#define LEAVE(here) __builtin_setjmp(here)
#define RETURN_TO(there) __builtin_longjmp(there, 1)
#endif

struct thread {
    place *at;     /* while it waits: where, on its stack */
    int value;     /* given to the block's barrier, then its sum */
    uint64_t word; /* given to the warp, then what comes from lane `from` */
    unsigned from;
    const uint32_t *phase; /* waited for until its last bit is another */
    uint32_t parity;
};

dim3 threadIdx, blockIdx, blockDim, gridDim;
bool emulate_early, emulate_again, emulate_shuffles;
static struct thread threads[THREADS_MAX];
static enum state states[THREADS_MAX];
static volatile unsigned running; /* reread after a switch, which compilers do not see through */
static struct {
    unsigned round, turn;    /* of all warps, of one: every other is walked backwards */
    unsigned warps, lanes;   /* walked in them */
    unsigned done, at_block; /* threads of the block */
    unsigned at_wait;
    unsigned char at_warp[THREADS_MAX / LANES], gone[THREADS_MAX / LANES]; /* lanes of each warp */
} walk;
static place *free_stacks[THREADS_MAX]; /* each left in live_on */
static unsigned free_count;
static place scheduler;
static const std::function<void()> *body;
static void *shared;
static size_t shared_size;
static bool waits, gives_up; /* the block waits for another; one of the launch does not for ever */
static struct launch {
    const emulated_launch *how;
    uint64_t number;
    bool waited, released; /* by the block: for kernels before this one, the next */
    bool some_waited;      /* of all blocks */
    bool at_once;          /* all blocks have released before they waited */
    unsigned threads;      /* of the block that have waited */
    bool has_waited[THREADS_MAX];
} present;

struct late_word {
    uint64_t *to;
    uint64_t value;
};
static std::vector<late_word> late; /* of the blocks that have run under the lock */

[[noreturn]] void emulate_fail(const char *what)
{
    fprintf(stderr, "emulated device: %s; block (%u, %u, %u), thread %u of %u\n", what, blockIdx.x,
            blockIdx.y, blockIdx.z, running, blockDim.x);
    abort();
}

/* ---- scheduling ---- */

static bool may_run(unsigned i)
{
    return states[i] <= READY ||
           (states[i] == AT_PHASE && (*threads[i].phase & 1u) != threads[i].parity);
}

/* False: not all lanes wait for it. */
static bool release_warp(unsigned warp)
{
    struct thread *lane = threads + warp * LANES;
    uint64_t words[LANES];
    if (walk.at_warp[warp] > 0 && walk.gone[warp] > 0)
        emulate_fail("a shuffle for lanes that have returned");
    if (walk.at_warp[warp] < LANES)
        return false;
    for (unsigned i = 0; i < LANES; i++)
        words[i] = lane[lane[i].from].word;
    for (unsigned i = 0; i < LANES; i++)
        lane[i].word = words[i];
    memset(states + warp * LANES, READY, LANES);
    walk.at_warp[warp] = 0;
    return true;
}

static void release_block()
{
    int sum = 0;
    if (walk.at_block + walk.done < blockDim.x)
        emulate_fail("threads wait at different barriers");
    for (unsigned i = 0; i < blockDim.x; i++)
        sum += states[i] == AT_BLOCK ? threads[i].value : 0;
    for (unsigned i = 0; i < blockDim.x; i++)
        if (states[i] == AT_BLOCK) {
            threads[i].value = sum;
            states[i] = READY;
        }
    walk.at_block = 0;
}

/* The block can go no further ahead. */
static void release_waiting()
{
    ahead_show();
    present.waited = true;
    for (unsigned i = 0; i < blockDim.x; i++)
        if (states[i] == AT_WAIT)
            states[i] = READY;
    walk.at_wait = 0;
}

/* Those whose phase is over, or else those that wait for the kernels before. False: there are none.
 */
static bool release_early()
{
    bool any = false, over = false;
    for (unsigned i = 0; i < blockDim.x; i++)
        if (states[i] == AT_PHASE) {
            any = true;
            over = over || may_run(i);
        }
    if (!over && walk.at_wait > 0) {
        release_waiting();
        return true;
    }
    if (any && !over)
        emulate_fail("threads wait for each other");
    return over;
}

/* Makes `running` the next thread that may run; false: all are done. */
static bool choose()
{
    const unsigned warps = blockDim.x / LANES;
    while (walk.done < blockDim.x) {
        const unsigned warp = walk.round % 2 ? walk.warps : warps - 1 - walk.warps;
        while (walk.lanes < LANES) {
            const unsigned n = walk.lanes++;
            const unsigned i = warp * LANES + (walk.turn % 2 ? n : LANES - 1 - n);
            if (may_run(i)) {
                running = threadIdx.x = i;
                return true;
            }
        }
        walk.lanes = 0;
        walk.turn++;
        if (release_warp(warp) || ++walk.warps < warps)
            continue;
        if (!release_early())
            release_block();
        walk.warps = 0;
        walk.round++;
    }
    return false;
}

/* ---- switching ---- */

/* The address sanitizer marks the frames on a stack until they return, and takes all marks away
 * where a stack is left for good. These functions are left, some for good, but their stacks are
 * not. */
#define SWITCHES __attribute__((noinline, no_sanitize("address"))) static

SWITCHES void jump(place *to)
{
    RETURN_TO(*to);
}

/* Begins threads, one after the other, until the next one waits on another stack. Then this one is
 * free, and left here until it is borrowed. */
SWITCHES void live_on()
{
    place here;
    for (;;) {
        states[running] = READY;
        (*body)();
        states[running] = DONE;
        walk.done++;
        walk.gone[running / LANES]++;
        const bool more = choose();
        if (more && states[running] == NEW)
            continue;
        free_stacks[free_count++] = &here;
        if (LEAVE(here) == 0)
            jump(more ? threads[running].at : &scheduler);
    }
}

SWITCHES void borrow_stack()
{
    if (free_count > 0)
        jump(free_stacks[--free_count]);
    ucontext_t fresh;
    getcontext(&fresh);
    static unsigned made; /* ends a power of two apart would share a few cache lines */
    fresh.uc_stack.ss_size = STACK_BYTES + made++ % 64 * 7 * 64;
    fresh.uc_stack.ss_sp = malloc(fresh.uc_stack.ss_size);
    makecontext(&fresh, live_on, 0);
    setcontext(&fresh);
}

/* The running thread waits; back when it may go on. */
SWITCHES void wait_as(enum state why)
{
    place here;
    threads[running].at = &here;
    states[running] = why;
    choose(); /* there is one: this one is not done */
    if (LEAVE(here) == 0) {
        if (states[running] == NEW)
            borrow_stack();
        jump(threads[running].at);
    }
}

int emulate_block(int value)
{
    threads[running].value = value;
    walk.at_block++;
    wait_as(AT_BLOCK);
    return threads[running].value;
}

uint64_t emulate_warp(uint64_t value, unsigned from)
{
    threads[running].word = value;
    threads[running].from = from;
    walk.at_warp[running / LANES]++;
    wait_as(AT_WARP);
    return threads[running].word;
}

void emulate_wait()
{
    present.threads += !present.has_waited[running];
    present.has_waited[running] = true;
    if (present.waited)
        return;
    walk.at_wait++;
    wait_as(AT_WAIT);
}

void emulate_release()
{
    if (!present.released) /* the first thread of a block counts */
        present.at_once = present.at_once && !present.waited;
    present.released = true;
}

void emulate_phase(const uint32_t *phase, uint32_t parity)
{
    threads[running].phase = phase;
    threads[running].parity = parity;
    if ((*phase & 1u) == parity)
        wait_as(AT_PHASE);
}

SWITCHES void run_block()
{
    memset(states, NEW, blockDim.x);
    walk = {walk.round + 1, walk.turn + 1, 0, 0, 0, 0, 0, {}, {}};
    present.waited = !present.how->ahead;
    present.released = false;
    present.threads = 0;
    memset(present.has_waited, 0, sizeof present.has_waited);
    if (!present.waited)
        ahead_hide();
    if (LEAVE(scheduler) == 0 && choose())
        borrow_stack();
    ahead_show();
    if (present.how->ahead && present.waited && present.threads < blockDim.x)
        emulate_fail("a block in which not all threads wait for the kernels before it");
    present.some_waited = present.some_waited || present.waited;
    present.at_once = present.at_once && (present.released || !present.waited);
}

/* ---- clusters ---- */

/* A block of a launch in clusters. */
struct member {
    void *memory;
    bool met, has_read, left, ended;
};
static struct {
    unsigned size;   /* blocks of one; 1: there are none */
    member *members; /* the launch's, as blocks are counted */
} clusters;

std::atomic<uint64_t> emulate_meetings;

static member &member_at(unsigned z)
{
    return clusters.members[((size_t)z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x];
}

bool emulate_meet()
{
    if (clusters.size < 2)
        emulate_fail("a meeting without a cluster");
    emulate_block(0);
    member_at(blockIdx.z).met = true;
    const unsigned first = blockIdx.z / clusters.size * clusters.size;
    for (unsigned z = first; z < first + clusters.size; z++)
        if (!member_at(z).met && !member_at(z).ended) {
            emulate_later(true);
            return false;
        }
    return true;
}

void emulate_have_read()
{
    emulate_block(0);
    member_at(blockIdx.z).has_read = true;
}

void emulate_leave()
{
    emulate_block(0);
    if (!member_at(blockIdx.z).has_read)
        emulate_fail("a block leaves its cluster without a word that it has read");
    member_at(blockIdx.z).left = true;
}

const void *emulate_of_block(const void *mine, size_t bytes, unsigned block)
{
    const size_t at = (size_t)((const char *)mine - (const char *)shared);
    const member &m = member_at(blockIdx.z / clusters.size * clusters.size + block);
    if (block >= clusters.size || at > shared_size || bytes > shared_size - at)
        emulate_fail("a load from beyond the cluster's shared memory");
    if (at % bytes != 0)
        emulate_fail("a load from another block that is not aligned");
    if (!m.met || !member_at(blockIdx.z).met || member_at(blockIdx.z).has_read)
        emulate_fail("a load from a block before they meet, or after it may have left");
    return (const char *)m.memory + at;
}

static void *new_shared(size_t bytes)
{
    void *memory = malloc(bytes + 1);
    memset(memory, 0xff, bytes);
    return memory;
}

static void end_in_cluster(member &m)
{
    m.ended = !waits;
    if (m.ended && m.met && !m.left)
        emulate_fail("a block has ended that others may still read");
    emulate_meetings += m.ended && m.met;
    m.has_read = m.left = false;
}

/* False: it waits for another, and has to begin again. */
static bool run_block_at(dim3 at, size_t shared_bytes)
{
    blockIdx = at;
    member *m = clusters.size > 1 ? &member_at(at.z) : nullptr;
    shared = m != nullptr && m->memory != nullptr ? m->memory : new_shared(shared_bytes);
    if (m != nullptr)
        m->memory = shared;
    shared_size = shared_bytes;
    static unsigned blocks;
    emulate_early = !emulate_early;
    emulate_shuffles = blocks++ % 8 == 0;
    waits = false;
    run_block();
    if (m != nullptr)
        end_in_cluster(*m);
    else
        free(shared);
    return !waits;
}

void emulate_later(bool patient)
{
    waits = true;
    gives_up = gives_up || !patient;
}

void emulate_store_late(uint64_t *to, uint64_t value)
{
    late.push_back({to, value});
}

/* Runs the blocks once, one launch at a time. Those that have to begin again are left in todo, what
 * they have stored late in *words. False: there is no use in it. */
static bool run_blocks(std::vector<dim3> &todo, size_t shared_bytes, bool again,
                       std::vector<late_word> *words)
{
    std::vector<dim3> left;
    gives_up = false;
    emulate_again = again;
    running = 0;
    for (const dim3 &at : todo)
        if (!run_block_at(at, shared_bytes))
            left.push_back(at);
    todo.swap(left);
    words->clear();
    words->swap(late);
    return !gives_up;
}

/* ---- shared memory beyond 48 KiB, which a kernel has to be allowed ---- */

static std::mutex bounds_lock;
static std::map<const void *, int> bounds;

cudaError_t emulate_allow(const void *kernel, int bytes)
{
    std::lock_guard<std::mutex> lock(bounds_lock);
    if (bytes > 227 << 10)
        return cudaErrorInvalidValue;
    bounds[kernel] = bytes;
    return cudaSuccess;
}

/* Asked when a kernel begins, in a graph each time: what was allowed once must not be taken back.
 */
void emulate_allowed(const void *kernel, size_t bytes)
{
    std::lock_guard<std::mutex> lock(bounds_lock);
    if (bytes > 48 << 10 && (int)bytes > bounds[kernel])
        emulate_fail("a launch with more shared memory than its kernel is allowed");
}

void emulate_launch(const emulated_launch &how, const std::function<void()> &fn)
{
    static std::mutex one_at_a_time;
    const dim3 grid = how.grid, block = how.block;
    const size_t shared_bytes = how.shared_bytes;
    const unsigned cluster = how.cluster;
    std::vector<dim3> todo;
    std::vector<late_word> words;
    static std::atomic<uint64_t> launches;
    launch mine = {};
    mine.how = &how;
    mine.number = ++launches;
    mine.at_once = true;
    bool patient = true;
    for (unsigned z = 0; z < grid.z; z++)
        for (unsigned y = 0; y < grid.y; y++)
            for (unsigned x = 0; x < grid.x; x++)
                todo.push_back(dim3(x, y, z));
    std::vector<member> members(cluster > 1 ? todo.size() : 0);
    if (cluster == 0 || cluster > 16 || grid.z % cluster != 0 || todo.empty() || grid.y > 65535 ||
        grid.z > 65535 || block.x % LANES != 0 || block.x > THREADS_MAX || block.y * block.z != 1 ||
        shared_bytes > 227 << 10)
        emulate_fail("a launch that no device takes");
    for (int tries = 0; !todo.empty() && (patient || tries <= TRIES); tries++) {
        {
            std::lock_guard<std::mutex> lock(one_at_a_time);
            gridDim = grid;
            blockDim = block;
            body = &fn;
            clusters = {cluster, members.data()};
            present = mine;
            ahead_begin(mine.number, how.kernel, !how.ahead && tries == 0);
            patient = run_blocks(todo, shared_bytes, tries > 0, &words);
            ahead_end(present.at_once || !todo.empty());
            mine = present;
        }
        if (!todo.empty() || !words.empty())
            std::this_thread::sleep_for(std::chrono::microseconds(LATER_US));
        for (const late_word &w : words)
            __atomic_store_n(w.to, w.value, __ATOMIC_RELAXED);
    }
    if (!mine.some_waited)
        emulate_fail("a kernel that waits in no block: its end would not be that of those before");
    for (const member &m : members)
        free(m.memory);
}

void *emulate_shared()
{
    return shared;
}

/* ---- cuBLAS ---- */

std::atomic<uint64_t> emulate_narrow_products, emulate_conversions;

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
    if (what == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK)
        memcpy(&p->sums, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

/* FP8 as on sm_90: all sides in whole vectors, a scale for each row of both. */
static cublasStatus_t suits(const cublasLtMatmulDescOpaque_t *d,
                            const cublasLtMatrixLayoutOpaque_t *a,
                            const cublasLtMatrixLayoutOpaque_t *b,
                            const cublasLtMatrixLayoutOpaque_t *y)
{
    const bool f8 = a->type == CUDA_R_8F_E4M3;
    const bool typed = y->type == CUDA_R_32F || y->type == (f8 ? CUDA_R_16BF : a->type);
    if (!typed || d->transposed[0] != CUBLAS_OP_T || d->transposed[1] != CUBLAS_OP_N ||
        a->type != b->type || a->rows != b->rows || a->cols != y->rows || b->cols != y->cols ||
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
    cublasStatus_t s = suits(d, a, b, y);
    if (y->type != CUDA_R_32F && p->sums != CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE)
        s = CUBLAS_STATUS_INVALID_VALUE; /* parts of sums would be rounded */
    *found = s == CUBLAS_STATUS_SUCCESS;
    results->state = s;
    results->algo = {p->alignment, y->cols, y->type};
    return s;
}

static const enum dtype dtype_of[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_F8_E4M3};

static float element(const void *p, cudaDataType_t t, size_t i)
{
    return dtype_load(p, dtype_of[t], i);
}

static void multiply(const cublasLtMatmulDescOpaque_t &d, const void *a,
                     const cublasLtMatrixLayoutOpaque_t &la, const void *b,
                     const cublasLtMatrixLayoutOpaque_t &lb, void *y,
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
            dtype_store(y, dtype_of[ly.type], j * (size_t)ly.ld + i, sum);
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
    if (algo != nullptr && algo->y != ly->type) /* there is no saying what it would do */
        return CUBLAS_STATUS_INTERNAL_ERROR;
    if (algo != nullptr && ((uintptr_t)a | (uintptr_t)b | (uintptr_t)y) % algo->alignment != 0)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (algo != nullptr && algo->cols != ly->cols && ly->cols % 5 == 0)
        return CUBLAS_STATUS_NOT_SUPPORTED; /* it does not suit every number of rows */
    emulate_narrow_products += ly->type != CUDA_R_32F;
    emulate_enqueue(
        s, [=, d = *d, la = *la, lb = *lb, ly = *ly] { multiply(d, a, la, b, lb, y, ly); });
    return CUBLAS_STATUS_SUCCESS;
}
