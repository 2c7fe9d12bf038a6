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

/* 16 bytes, both sides aligned to them; zeros when not `there`. Done after mma_copy_wait. */
DEVICE void mma_copy(void *shared, const void *global, bool there)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(mma_address(shared)),
                 "l"(global), "r"(there ? 16 : 0)
                 : "memory");
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
