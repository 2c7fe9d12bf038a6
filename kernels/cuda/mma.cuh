/* Tensor cores, and other instructions that CUDA C++ has no word for; tests/emulate has its own. */
#ifndef TESSERA_KERNELS_CUDA_MMA_CUH
#define TESSERA_KERNELS_CUDA_MMA_CUH

#include "kernels/cuda/device.cuh"

#ifndef MMA_EMULATED

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

/* Both bf16 of a word times those of another; subnormal ones count. */
DEVICE uint32_t mma_times(uint32_t a, uint32_t b)
{
    uint32_t y;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(b), "r"(0x80008000u));
    return y;
}

#endif

#endif
