/* CUDA C++ on the host, for tests: what the kernels of kernels/cuda use of the language. A block
 * runs as fibers, one per thread, that are switched at barriers and shuffles only, in changing
 * orders; blocks run one after the other (emulate.cc), when the host waits (emulate_stream.cc).
 * What goes wrong on a device by luck goes wrong here every time: a barrier that not all threads
 * reach, a lane missing from a shuffle, and, under the address sanitizer, every access out of
 * bounds. */
#ifndef TESSERA_TESTS_EMULATE_CUDA_RUNTIME_H
#define TESSERA_TESTS_EMULATE_CUDA_RUNTIME_H

#include <atomic>
#include <cfloat>
#include <climits>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>

#include "tests/emulate/cuda_runtime_api.h"

#define __global__ static
#define __device__
#define __host__
#define __forceinline__ inline
#define __shared__ static /* blocks do not overlap */
#define __launch_bounds__(...)
#define __grid_constant__

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_)
    {
    }
};

extern dim3 threadIdx, blockIdx, blockDim, gridDim;
extern bool emulate_early; /* copies in the background happen at once in this block, else late */

/* After what was enqueued before, or, while the stream is captured, with every launch of the graph.
 */
void emulate_enqueue(cudaStream_t stream, std::function<void()> work);
void emulate_kernel(cudaStream_t stream, std::function<void()> work);
struct emulated_launch {
    const char *kernel;
    dim3 grid, block;
    size_t shared_bytes;
    unsigned cluster;
    bool ahead; /* it may begin before those before it have ended */
};
void emulate_launch(const emulated_launch &how, const std::function<void()> &body);
void *emulate_shared(); /* the launch's shared memory */
/* The block waits for what another kernel, or another block of its cluster, has yet to do; now its
 * threads have to return. It begins again later, unless it is not patient and has done so often.
 * Then it has stored already: a peer that got it may be gone. */
void emulate_later(bool patient);
/* Stored when other kernels have been able to run; the place has to outlive the launch. */
void emulate_store_late(uint64_t *to, uint64_t value);
extern bool emulate_again;
extern thread_local uint64_t emulate_collectives;     /* that this thread has asked NCCL for */
extern std::atomic<uint64_t> emulate_narrow_products; /* of cuBLAS, with results of 16 bits */
extern std::atomic<uint64_t> emulate_conversions;     /* launches of convert_kernel */
extern std::atomic<uint64_t> emulate_meetings;        /* of blocks with their clusters */
extern thread_local const void *emulate_broken;       /* memory that cannot be set; NULL: none */

/* A kernel with its arguments as they are now: a graph knows no others. */
template <typename... P, typename... A>
std::function<void()> emulate_bind(void (*kernel)(P...), A... arguments)
{
    return [=] { kernel(arguments...); };
}

#define LAUNCH(c, kernel, grid, block, shared, ...)                                                \
    EMULATE_LAUNCH(c, 1, false, kernel, grid, block, shared, __VA_ARGS__)
#define LAUNCH_AHEAD(c, kernel, grid, block, shared, ...)                                          \
    EMULATE_LAUNCH(c, 1, (c)->recording, kernel, grid, block, shared, __VA_ARGS__)
#define LAUNCH_CLUSTERS(c, size, kernel, grid, block, shared, ...)                                 \
    EMULATE_LAUNCH(c, size, (c)->recording, kernel, grid, block, shared, __VA_ARGS__)
#define LAUNCH_BEHIND(c, kernel, grid, block, shared, ...)                                         \
    EMULATE_LAUNCH(c, 1, true, kernel, grid, block, shared, __VA_ARGS__)
#define EMULATE_LAUNCH(c, size, ahead, kernel, grid, block, shared, ...)                           \
    do {                                                                                           \
        const std::function<void()> body_ = emulate_bind(kernel, __VA_ARGS__);                     \
        const emulated_launch how_ = {#kernel, grid, block, shared, (unsigned)(size), ahead};      \
        const void *const kernel_ = (const void *)(kernel);                                        \
        emulate_clock(#kernel);                                                                    \
        emulate_conversions += strstr(#kernel, "convert_kernel") != nullptr;                       \
        emulate_kernel((c)->stream, [=] {                                                          \
            emulate_allowed(kernel_, how_.shared_bytes);                                           \
            emulate_launch(how_, body_);                                                           \
        });                                                                                        \
        cuda_note(c, #kernel, 0);                                                                  \
    } while (0)
#define SHARED_DYNAMIC(type, name) type *name = (type *)emulate_shared()

/* Time that a test wants a kernel to take, by the clock of trials (emulate_nccl.cc). */
void emulate_clock(const char *kernel);

/* ---- threads together ---- */

/* All threads of the block; the sum of their values. */
int emulate_block(int value);
/* All 32 lanes of the warp; the value of lane `from`. */
uint64_t emulate_warp(uint64_t value, unsigned from);
/* The block runs ahead until its threads wait here; the next kernel may begin. */
void emulate_wait();
void emulate_release();
/* Until the last bit of *phase is not `parity`. */
void emulate_phase(const uint32_t *phase, uint32_t parity);

static inline void __syncthreads()
{
    emulate_block(0);
}

static inline int __syncthreads_or(int value)
{
    return emulate_block(value != 0) != 0;
}

static inline int __syncthreads_count(int value)
{
    return emulate_block(value != 0);
}

static inline void __syncwarp()
{
    emulate_warp(0, 0);
}

template <typename V> V __shfl_sync(unsigned, V value, int from)
{
    static_assert(sizeof(V) <= sizeof(uint64_t), "");
    uint64_t word = 0;
    memcpy(&word, &value, sizeof value);
    word = emulate_warp(word, (unsigned)from % 32);
    memcpy(&value, &word, sizeof value);
    return value;
}

/* The first `by` lanes get their own. */
template <typename V> V __shfl_up_sync(unsigned, V value, int by)
{
    static_assert(sizeof(V) <= sizeof(uint64_t), "");
    const unsigned lane = threadIdx.x % 32;
    uint64_t word = 0;
    memcpy(&word, &value, sizeof value);
    word = emulate_warp(word, lane < (unsigned)by ? lane : lane - (unsigned)by);
    memcpy(&value, &word, sizeof value);
    return value;
}

template <typename V> V __shfl_xor_sync(unsigned lanes, V value, int mask)
{
    return __shfl_sync(lanes, value, (int)(threadIdx.x % 32) ^ mask);
}

/* What every lane has, to be read until its next call. All 32 have to make the same calls. A lane
 * can be one ahead of another that still reads, and then writes to the other of two places. */
template <typename V> const V *emulate_share(const V &mine)
{
    alignas(64) static unsigned char places[2][1024][sizeof(V)];
    static bool turns[1024];
    const unsigned thread = threadIdx.x;
    const bool turn = turns[thread] = !turns[thread];
    memcpy(places[turn][thread], &mine, sizeof mine);
    __syncwarp();
    return (const V *)places[turn][thread / 32 * 32];
}

static inline void __threadfence()
{
}

static inline unsigned __ballot_sync(unsigned, int value)
{
    const int *all = emulate_share(value);
    unsigned ballot = 0;
    for (unsigned i = 0; i < 32; i++)
        ballot |= (unsigned)(all[i] != 0) << i;
    return ballot;
}

static inline int __any_sync(unsigned lanes, int value)
{
    return __ballot_sync(lanes, value) != 0;
}

static inline unsigned __reduce_max_sync(unsigned, unsigned value)
{
    const unsigned *all = emulate_share(value);
    for (unsigned i = 0; i < 32; i++)
        value = all[i] > value ? all[i] : value;
    return value;
}

#define LANES_EMULATED

extern bool emulate_shuffles; /* in this block: one of eight, so that every test has some */

/* What the shuffles of reduce_lanes come to in this lane, after a single meeting. */
template <int lanes, typename V, typename Op> V emulate_reduce(V v, Op op)
{
    const V *all = emulate_share(v);
    V of[lanes]; /* by what its lane's number is xored with to be this one's */
    for (unsigned i = 0; i < lanes; i++)
        of[i] = all[threadIdx.x % 32 ^ i];
    for (int step = lanes / 2; step > 0; step /= 2)
        for (int i = 0; i < step; i++)
            of[i] = op(of[i], of[i + step]);
    return of[0];
}

static inline int __popc(unsigned word)
{
    return __builtin_popcount(word);
}

template <typename V> V atomicAdd(V *at, V value)
{
    const V old = *at;
    *at = old + value;
    return old;
}

template <typename V> V atomicExch(V *at, V value)
{
    const V old = *at;
    *at = value;
    return old;
}

static inline void launch_wait()
{
    emulate_wait();
}

static inline void launch_release()
{
    emulate_release();
}

/* Ends the program: a device would have failed, or would be wrong. */
[[noreturn]] void emulate_fail(const char *what);

#include "tests/emulate/emulate_mma.h"
#include "tests/emulate/emulate_wgmma.h"

/* ---- clusters, of kernels/cuda/cluster.cuh ---- */

#define CLUSTER_EMULATED

/* For all threads of a block. False: others of the cluster have yet to come here, or to end. */
bool emulate_meet();
void emulate_have_read();
void emulate_leave();
/* Where that block of the cluster has what this one has at `mine`, `bytes` of it. */
const void *emulate_of_block(const void *mine, size_t bytes, unsigned block);

static inline bool cluster_meet()
{
    return emulate_meet();
}

static inline void cluster_have_read()
{
    emulate_have_read();
}

static inline void cluster_leave()
{
    emulate_leave();
}

template <int N> void cluster_load(float (&y)[N], const float *mine, unsigned block)
{
    memcpy(y, emulate_of_block(mine, sizeof y, block), sizeof y);
}

template <typename... P> unsigned cluster_size(void (*)(P...), dim3, dim3, size_t, unsigned most)
{
    return most < 16 ? most : 16;
}

/* ---- memory that several devices use at once, of kernels/cuda/oneshot.cu ---- */

#define WORDS_EMULATED

/* Either may come first, and a peer may look between them. */
static inline void words_store(uint64_t *to, const uint64_t (&w)[2])
{
    const int first = emulate_early;
    if (emulate_again)
        return;
    __atomic_store_n(to + first, w[first], __ATOMIC_RELAXED);
    emulate_store_late(to + !first, w[!first]);
}

static inline void words_load(uint64_t (&w)[2], const uint64_t *from)
{
    for (int i = 0; i < 2; i++)
        w[i] = __atomic_load_n(from + i, __ATOMIC_RELAXED);
}

static inline void word_store(uint64_t *to, uint64_t w)
{
    if (emulate_early)
        __atomic_store_n(to, w, __ATOMIC_RELAXED);
    else
        emulate_store_late(to, w);
}

static inline uint64_t word_load(const uint64_t *from)
{
    return __atomic_load_n(from, __ATOMIC_RELAXED);
}

static inline bool words_wait(uint32_t, uint32_t patience, const uint32_t *stop, uint32_t *)
{
    if (__atomic_load_n(stop, __ATOMIC_RELAXED) == 0)
        emulate_later(patience == 0);
    return false;
}

/* ---- bits ---- */

static inline unsigned __float_as_uint(float x)
{
    unsigned u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float __uint_as_float(unsigned u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* Four bytes of both words, by number; each has four bits of `which`. */
static inline unsigned __byte_perm(unsigned low, unsigned high, unsigned which)
{
    const uint64_t all = (uint64_t)high << 32 | low;
    unsigned y = 0;
    for (unsigned i = 0; i < 4; i++)
        y |= (unsigned)(all >> 8 * (which >> 4 * i & 7u) & 0xffu) << 8 * i;
    return y;
}

static inline float __fdividef(float x, float y)
{
    return x / y;
}

/* ---- arithmetic of kernels/cuda/gemv.cu ---- */

static inline void prefetch_line(const void *)
{
}

/* Rounds to fp32 such that what is cut off still shows in the last bit, then to bf16. */
static inline uint32_t emulate_bf16(double x)
{
    const float f = (float)x;
    uint32_t bits = __float_as_uint(f);
    if ((double)f != x && !std::isnan(x)) {
        if (std::fabs((double)f) > std::fabs(x))
            bits--;
        bits |= 1u;
    }
    return (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
}

static inline uint32_t mma_times_plus(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t y = 0;
    for (unsigned half = 0; half < 2; half++) {
        const float x = __uint_as_float((a >> 16 * half & 0xffffu) << 16);
        const float by = __uint_as_float((b >> 16 * half & 0xffffu) << 16);
        const float plus = __uint_as_float((c >> 16 * half & 0xffffu) << 16);
        y |= emulate_bf16((double)x * (double)by + (double)plus) << 16 * half;
    }
    return y;
}

static inline uint32_t mma_and_or(uint32_t a, uint32_t b, uint32_t c)
{
    return (a & b) | c;
}

#endif
