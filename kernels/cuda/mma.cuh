/* Tensor cores, and other instructions that CUDA C++ has no word for; tests/emulate has its own. */
#ifndef TESSERA_KERNELS_CUDA_MMA_CUH
#define TESSERA_KERNELS_CUDA_MMA_CUH

#include "kernels/cuda/device.cuh"

#ifndef MMA_EMULATED

/* d[16, 8] += a[16, 16] b[16, 8], by a whole warp. Of lane 4 * g + j, words of two bf16 each:
 * a = {(g, 2j), (g + 8, 2j), (g, 2j + 8), (g + 8, 2j + 8)}, b = {(2j, g), (2j + 8, g)}, and
 * d = {(g, 2j), (g, 2j + 1), (g + 8, 2j), (g + 8, 2j + 1)}. */
DEVICE void mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
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
