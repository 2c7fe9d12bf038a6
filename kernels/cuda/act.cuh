/* What an MLP makes of a gate and an up, for the kernels that do: act.cu, gemv_launch.cuh. */
#ifndef TESSERA_KERNELS_CUDA_ACT_CUH
#define TESSERA_KERNELS_CUDA_ACT_CUH

#include "kernels/cuda/device.cuh"

#include "kernels/numerics.h"

DEVICE float activate(enum activation act, float gate, float up)
{
    return act == ACT_SWIGLU_PAIRS ? numerics_swiglu(gate, up)
           : act == ACT_SILU       ? gate / (1 + expf(-gate)) * up
                                   : numerics_gelu(gate) * up;
}

#endif
