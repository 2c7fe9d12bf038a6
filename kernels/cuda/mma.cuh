/* Tensor cores, copies into shared memory that run in the background, powers of two; sm_80 and
 * newer: PTX, each instruction one function. tests/emulate states what they mean, lane by lane. */
#ifndef TESSERA_KERNELS_CUDA_MMA_CUH
#define TESSERA_KERNELS_CUDA_MMA_CUH

#include "kernels/cuda/device.cuh"

#ifndef MMA_EMULATED

DEVICE uint32_t mma_address(const void *shared)
{
    return (uint32_t)__cvta_generic_to_shared(shared);
}

/* Compilers keep the pointer in a register instead of finding it anew from what it was made of. */
template <typename T> DEVICE void mma_keep(T *&at)
{
    asm volatile("" : "+l"(at));
}

/* 16 bytes, both sides aligned to them; zeros when not `there`. Done after mma_copy_wait. The cache
 * fetches the 256 bytes around them, which others are about to ask for. */
DEVICE void mma_copy(void *shared, const void *global, bool there)
{
    asm volatile(
        "cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"(mma_address(shared)),
        "l"(global), "r"(there ? 16 : 0)
        : "memory");
}

/* The same of what others of the multiprocessor read, too: it stays in their cache. */
DEVICE void mma_copy_near(void *shared, const void *global, bool there)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" ::"r"(mma_address(shared)),
                 "l"(global), "r"(there ? 16 : 0)
                 : "memory");
}

/* The 128 bytes there are about to be read: to the cache that all share, so they may change yet. */
DEVICE void mma_announce(const void *global)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(global));
}

/* The thread's copies since the last call are a group. */
DEVICE void mma_copy_group()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Until all but the last `n` groups of the thread are done. */
template <int n> DEVICE void mma_copy_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory");
}

/* Four 8 x 8 matrices of 16-bit elements: lane i names 16 bytes, row i % 8 of matrix i / 8. m[j] of
 * lane i: elements 2 * (i % 4) and the next of row i / 4 of matrix j. */
DEVICE void mma_load(uint32_t (&m)[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(mma_address(row))
                 : "memory");
}

/* The same of the transposed matrices. */
DEVICE void mma_load_transposed(uint32_t (&m)[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(mma_address(row))
                 : "memory");
}

/* c[16 x 8] += a[16 x 16] * b[16 x 8]. Lane i has, with r = i / 4 and p = 2 * (i % 4): of c (r, p),
 * (r, p + 1), (r + 8, p), (r + 8, p + 1); of a pairs from (r, p), (r + 8, p), (r, p + 8),
 * (r + 8, p + 8) along the row; of b pairs from (p, r), (p + 8, r) down the column. */
DEVICE void mma_multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, bf16)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

DEVICE void mma_multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, __half)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Two elements as a register holds them, the first in the lower half. */
DEVICE uint32_t mma_pair(float first, float second, bf16)
{
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
    return pair;
}

DEVICE uint32_t mma_pair(float first, float second, __half)
{
    uint32_t pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
    return pair;
}

/* The 8 x 8 matrix of 16-bit elements of which lane i has 2 * (i % 4) and the next of row i / 4,
 * transposed. */
DEVICE uint32_t mma_transpose(uint32_t pair)
{
    uint32_t y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(pair));
    return y;
}

/* Four E4M3 as fp16: the first two, and the others. Before sm_89 by their bits, which mean 2^8
 * times less where those of fp16 are; NaN has its own code. */
DEVICE void mma_widen(uint32_t (&pair)[2], uint32_t codes, e4m3, __half)
{
#if __CUDA_ARCH__ >= 890
    asm("{.reg .b16 a, b; mov.b32 {a, b}, %2; cvt.rn.f16x2.e4m3x2 %0, a; "
        "cvt.rn.f16x2.e4m3x2 %1, b;}"
        : "=r"(pair[0]), "=r"(pair[1])
        : "r"(codes));
#else
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t t = __byte_perm(codes, 0, i == 0 ? 0x1404 : 0x3424), m = t & 0x7f007f00u;
        const uint32_t nan = (m + 0x01000100u) & 0x80008000u;
        uint32_t y;
        asm("mul.rn.f16x2 %0, %1, %2;"
            : "=r"(y)
            : "r"((t & 0x80008000u) | m >> 1), "r"(0x5c005c00u));
        pair[i] = y | (nan - (nan >> 6));
    }
#endif
}

/* The two middle bytes change places. */
DEVICE uint32_t mma_exchange(uint32_t word)
{
    return __byte_perm(word, 0, 0x3120);
}

/* What others have stored, lately, past the cache of the multiprocessor: 4 bytes, and 16. */
DEVICE float mma_load_fresh(const float *from)
{
    return __ldcg(from);
}

DEVICE void mma_load_fresh(float (&y)[4], const float *from)
{
    const float4 v = __ldcg((const float4 *)from);
    y[0] = v.x;
    y[1] = v.y;
    y[2] = v.z;
    y[3] = v.w;
}

/* Both bf16 of a word times those of another, plus those of a third; subnormal ones count. */
DEVICE uint32_t mma_times_plus(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t y;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(b), "r"(c));
    return y;
}

/* 2^x, off by two units in its last place at most; 0 where that is no normal number. */
DEVICE float mma_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#endif

/* Two numbers, no NaN, as E4M3 (saturated), the first in the lower byte. */
DEVICE uint32_t mma_codes(float first, float second)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    uint16_t pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(second), "f"(first));
    return pair;
#else
    e4m3 low, high;
    from_float(&low, first);
    from_float(&high, second);
    return low.bits | (uint32_t)high.bits << 8;
#endif
}

DEVICE uint32_t mma_times(uint32_t a, uint32_t b)
{
    return mma_times_plus(a, b, 0x80008000u);
}

/* Two codes, in the high bytes of a word's halves, as bf16, but for NaN. Their exponent lands where
 * it counts 2^-120 too few. */
DEVICE uint32_t f8_pair(uint32_t codes)
{
    return mma_times((codes & 0x80008000u) | (codes >> 4 & 0x07f007f0u), 0x7b807b80u);
}

#endif
