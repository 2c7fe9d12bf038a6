/* Numbers of fp32 as two of 16 bits, the second of which is what the first leaves: for attention's
 * queries and weights. */
#ifndef TESSERA_KERNELS_CUDA_HALVES_CUH
#define TESSERA_KERNELS_CUDA_HALVES_CUH

#include "kernels/cuda/mma.cuh"

DEVICE float half_of(uint32_t pair, int which, bf16)
{
    return __uint_as_float(which == 0 ? pair << 16 : pair & 0xffff0000u);
}

DEVICE float half_of(uint32_t pair, int which, __half)
{
    const uint16_t bits = (uint16_t)(pair >> (16 * which));
    __half h;
    memcpy(&h, &bits, sizeof h);
    return __half2float(h);
}

template <typename C> DEVICE void cut(uint32_t &high, uint32_t &low, float x, float y)
{
    high = mma_pair(x, y, C());
    low = mma_pair(x - half_of(high, 0, C()), y - half_of(high, 1, C()), C());
}

#endif
