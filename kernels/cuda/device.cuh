/* What the kernels share: launches that remember their failure, element types, sums and maxima over
 * a block. Nothing here but plain CUDA C++, so that tests/emulate can run every kernel on the host.
 */
#ifndef TESSERA_KERNELS_CUDA_DEVICE_CUH
#define TESSERA_KERNELS_CUDA_DEVICE_CUH

#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#ifndef _Noreturn
#define _Noreturn /* C11's word in our C headers */
#endif
#ifndef _Atomic
#define _Atomic /* no .cu file touches such a member */
#endif
extern "C" {
#include "kernels/cuda/cuda.h"
}

#define HOST_DEVICE __host__ __device__ __forceinline__
#define DEVICE __device__ __forceinline__

#ifndef LAUNCH
#define LAUNCH(c, kernel, grid, block, shared, ...)                                                \
    do {                                                                                           \
        kernel<<<grid, block, shared, (cudaStream_t)(c)->stream>>>(__VA_ARGS__);                   \
        cuda_note(c, #kernel, cudaGetLastError());                                                 \
    } while (0)
/* A kernel that calls launch_wait, in every thread, before it touches what other kernels write or
 * read, and so before it ends: its end is then that of all before it. (Blocks that touch nothing of
 * it may end without, where others of the grid always wait.) In a recording, whose weights
 * stay where and what they are, it may begin as soon as all blocks of the kernel before it have
 * called launch_release or ended; what follows without it waits for all. Releasing before waiting
 * is right: who begins then has the wait of this kernel before it. What other kernels write is not
 * __restrict__, since compilers may read what is constant before the wait. */
#define LAUNCH_AHEAD(c, kernel, grid, block, shared, ...)                                          \
    LAUNCH_CLUSTERS(c, 1, kernel, grid, block, shared, __VA_ARGS__)
/* The same in clusters of so many blocks (cluster.cuh), of which grid.z is a multiple. */
#define LAUNCH_CLUSTERS(c, size, kernel, grid, block, shared, ...)                                 \
    cuda_note(c, #kernel,                                                                          \
              launch_ahead(c, size, (c)->recording, kernel, grid, block, shared, __VA_ARGS__))
/* The same, recorded or not, of a kernel that touches no memory at all before it waits. */
#define LAUNCH_BEHIND(c, kernel, grid, block, shared, ...)                                         \
    cuda_note(c, #kernel, launch_ahead(c, 1, true, kernel, grid, block, shared, __VA_ARGS__))
#define SHARED_DYNAMIC(type, name) extern __shared__ type name[]

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
DEVICE void launch_wait()
{
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

DEVICE void launch_release()
{
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
#else
DEVICE void launch_wait()
{
}

DEVICE void launch_release()
{
}
#endif

/* Has the code launch_wait? All kernels are built for the same devices, so it is asked once. */
static bool launch_waits(const void *kernel)
{
    cudaFuncAttributes code;
    return cudaFuncGetAttributes(&code, kernel) == cudaSuccess && code.ptxVersion >= 90;
}

template <typename... P, typename... A>
static cudaError_t launch_ahead(struct cuda_backend *c, unsigned cluster, bool ahead,
                                void (*kernel)(P...), dim3 grid, dim3 block, size_t shared,
                                const A &...arguments)
{
    static const bool waits = launch_waits((const void *)kernel);
    cudaLaunchAttribute attrs[2] = {};
    cudaLaunchConfig_t how = {};
    how.gridDim = grid;
    how.blockDim = block;
    how.dynamicSmemBytes = shared;
    how.stream = (cudaStream_t)c->stream;
    how.attrs = attrs;
    if (cluster > 1) {
        attrs[how.numAttrs].id = cudaLaunchAttributeClusterDimension;
        attrs[how.numAttrs++].val.clusterDim = {1, 1, cluster};
    }
    /* How much of a multiprocessor's memory is shared memory changes only when it is idle. So
     * kernels that want much, in a recording, all want most of it, not as much as each of them
     * needs: else blocks of the next one would have no room beside those of this one. */
    if (c->recording && waits && shared > 0)
        (void)cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                   cudaSharedmemCarveoutMaxShared);
    if (ahead && waits) {
        attrs[how.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attrs[how.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
    }
    const cudaError_t e = cudaLaunchKernelEx(&how, kernel, arguments...);
    (void)cudaGetLastError(); /* told here; not to be found by the next launch */
    return e;
}
#endif

/* Bytes of shared memory of a multiprocessor of sm_90, those that each block takes beside its own,
 * and what products of few rows leave to the attention behind them. */
#define HOPPER_SHARED (228 << 10)
#define BLOCK_SHARED 1024
#define ATTEND_SHARED 57984

#define WARP 32
#define ALL_LANES 0xffffffffu

/* ---- element types ---- */

struct bf16 {
    uint16_t bits;
};

DEVICE float to_float(float x)
{
    return x;
}

DEVICE float to_float(__half x)
{
    return __half2float(x);
}

DEVICE float to_float(bf16 x)
{
    return __uint_as_float((uint32_t)x.bits << 16);
}

DEVICE void from_float(float *y, float x)
{
    *y = x;
}

DEVICE void from_float(__half *y, float x)
{
    *y = __float2half_rn(x);
}

/* dtype_to_bf16 of config/dtype.h. */
DEVICE void from_float(bf16 *y, float x)
{
    const uint32_t u = __float_as_uint(x);
    const bool nan = (u & 0x7fffffffu) > 0x7f800000u;
    y->bits = (uint16_t)((nan ? u | 0x400000u : u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

/* Of keys and values: E4M3 without a scale. */
struct e4m3 {
    uint8_t bits;
};

/* The bits in a float's places mean 2^120 times less; NaN by its exponent, without a branch. */
DEVICE float to_float(e4m3 x)
{
    const uint32_t sign = x.bits & 0x80u, magnitude = x.bits & 0x7fu;
    const uint32_t nan = (0u - ((magnitude + 1) >> 7)) & 0x7f800000u;
    return __uint_as_float(sign << 24 | magnitude << 20 | nan) * 0x1p120f;
}

/* dtype_to_e4m3 of config/dtype.h, saturated. */
DEVICE void from_float(e4m3 *y, float x)
{
    const uint32_t u = __float_as_uint(x), sign = u >> 24 & 0x80u;
    const uint32_t most = __float_as_uint(DTYPE_E4M3_MAX), m = u & 0x7fffffffu;
    const uint32_t magnitude = m > 0x7f800000u ? m : m < most ? m : most;
    const uint32_t normal = (magnitude + 0x7ffffu + (magnitude >> 20 & 1u)) >> 20;
    /* below 2^-6 the addition rounds to multiples of 2^-9 */
    const uint32_t small = __float_as_uint(__uint_as_float(magnitude) + 0x1p14f) - 0x46800000u;
    const uint32_t code = magnitude < 0x3c800000u ? small : normal - (120u << 3);
    y->bits = (uint8_t)(sign | (magnitude > most ? DTYPE_E4M3_NAN : code));
}

/* N elements that lie together, N times their size aligned. */
template <typename E, int N> struct alignas(sizeof(E) * N) pack {
    E e[N];
};

template <typename E, int N> DEVICE void widen(float (&y)[N], const pack<E, N> &x)
{
#pragma unroll
    for (int i = 0; i < N; i++)
        y[i] = to_float(x.e[i]);
}

/* Pairs of 16 bits by words, or the compiler loads each element on its own. */
template <int N> DEVICE void widen(float (&y)[N], pack<bf16, N> x)
{
    if constexpr (N % 2 == 0) {
        uint32_t word[N / 2];
        memcpy(word, &x, sizeof word);
#pragma unroll
        for (int i = 0; i < N; i++)
            y[i] = __uint_as_float(i % 2 == 0 ? word[i / 2] << 16 : word[i / 2] & 0xffff0000u);
    } else {
        widen<bf16, N>(y, x);
    }
}

template <int N> DEVICE void widen(float (&y)[N], pack<__half, N> x)
{
    if constexpr (N % 2 == 0) {
        uint32_t word[N / 2];
        memcpy(word, &x, sizeof word);
#pragma unroll
        for (int i = 0; i < N; i++) {
            const uint16_t bits = (uint16_t)(word[i / 2] >> (i % 2 * 16));
            __half h;
            memcpy(&h, &bits, sizeof h);
            y[i] = __half2float(h);
        }
    } else {
        widen<__half, N>(y, x);
    }
}

/* Runs `call` with E standing for the element type. */
#define WITH_TYPE(dtype, ...)                                                                      \
    do {                                                                                           \
        if ((dtype) == DTYPE_F32) {                                                                \
            typedef float E;                                                                       \
            __VA_ARGS__;                                                                           \
        } else if ((dtype) == DTYPE_F16) {                                                         \
            typedef __half E;                                                                      \
            __VA_ARGS__;                                                                           \
        } else {                                                                                   \
            typedef bf16 E;                                                                        \
            __VA_ARGS__;                                                                           \
        }                                                                                          \
    } while (0)

/* The same for keys and values. */
#define WITH_KV_TYPE(dtype, ...)                                                                   \
    do {                                                                                           \
        if ((dtype) == DTYPE_F8_E4M3) {                                                            \
            typedef e4m3 E;                                                                        \
            __VA_ARGS__;                                                                           \
        } else                                                                                     \
            WITH_TYPE(dtype, __VA_ARGS__);                                                         \
    } while (0)

/* ---- elements of a type that only the host knows ---- */

struct elements {
    void *data;
    enum dtype dtype; /* F32, F16 or BF16 */
};

template <typename V> HOST_DEVICE struct elements elements_of(V view) /* view or cview */
{
    const struct elements e = {const_cast<void *>((const void *)view.data), view.dtype};
    return e;
}

/* N neighbours, from a multiple of N on, up to 4; stores: up to 8. */
template <int N> DEVICE pack<float, N> get_elements(const struct elements &from, int64_t at)
{
    pack<float, N> v;
    if (from.dtype == DTYPE_F32)
        v = *(const pack<float, N> *)((const float *)from.data + at);
    else if (from.dtype == DTYPE_F16)
        widen(v.e, *(const pack<__half, N> *)((const __half *)from.data + at));
    else
        widen(v.e, *(const pack<bf16, N> *)((const bf16 *)from.data + at));
    return v;
}

template <typename E, int N> DEVICE void put_rounded(E *to, const pack<float, N> &v)
{
    pack<E, N> rounded;
#pragma unroll
    for (int i = 0; i < N; i++)
        from_float(rounded.e + i, v.e[i]);
    *(pack<E, N> *)to = rounded;
}

template <int N>
DEVICE void put_elements(const struct elements &to, int64_t at, const pack<float, N> &v)
{
    constexpr int WORDS = N < 4 ? N : 4; /* of one store */
    if (to.dtype == DTYPE_F32) {
#pragma unroll
        for (int i = 0; i < N; i += WORDS)
            *(pack<float, WORDS> *)((float *)to.data + at + i) =
                *(const pack<float, WORDS> *)(v.e + i);
    } else if (to.dtype == DTYPE_F16) {
        put_rounded((__half *)to.data + at, v);
    } else {
        put_rounded((bf16 *)to.data + at, v);
    }
}

DEVICE void put_element(const struct elements &to, int64_t at, float x)
{
    put_elements<1>(to, at, {{x}});
}

/* ---- reductions ---- */

struct plus {
    template <typename V> DEVICE V operator()(V a, V b) const
    {
        return a + b;
    }
};

struct maximum {
    template <typename V> DEVICE V operator()(V a, V b) const
    {
        return b > a ? b : a;
    }
};

/* Over groups of `lanes` neighbouring lanes (a power of two); every lane gets the result. */
template <int lanes, typename V, typename Op> DEVICE V reduce_lanes(V v, Op op)
{
#ifdef LANES_EMULATED /* where this would take the tests' device too long */
    if (!emulate_shuffles)
        return emulate_reduce<lanes>(v, op);
#endif
#pragma unroll
    for (int step = lanes / 2; step > 0; step /= 2)
        v = op(v, __shfl_xor_sync(ALL_LANES, v, step));
    return v;
}

/* Over a block of whole warps, at most 32; every thread calls and gets the result. */
template <typename V, typename Op> DEVICE V reduce_block(V v, Op op)
{
    __shared__ V of_warp[WARP];
    v = reduce_lanes<WARP>(v, op);
    if (threadIdx.x % WARP == 0)
        of_warp[threadIdx.x / WARP] = v;
    __syncthreads();
    v = of_warp[0];
    for (unsigned w = 1; w < blockDim.x / WARP; w++)
        v = op(v, of_warp[w]);
    __syncthreads(); /* of_warp may be written again */
    return v;
}

static inline unsigned blocks_for(size_t items, unsigned per_block)
{
    return (unsigned)((items + per_block - 1) / per_block);
}

#endif
