/* The rotation, which rope.cu does, and attend_decode.cu of decodes, with the same bits. */
#ifndef TESSERA_KERNELS_CUDA_ROPE_CUH
#define TESSERA_KERNELS_CUDA_ROPE_CUH

#include "kernels/cuda/device.cuh"

/* Two elements that turn together, by an angle whose cosine and sine these are. */
DEVICE void rope_turn(float &low, float &high, float c, float s)
{
    const float turned = low * c - high * s;
    high = high * c + low * s;
    low = turned;
}

#endif
