/* The half type of the emulated device, by the conversions of config/dtype.h. */
#ifndef TESSERA_TESTS_EMULATE_CUDA_FP16_H
#define TESSERA_TESTS_EMULATE_CUDA_FP16_H

#ifndef _Noreturn
#define _Noreturn /* C11's word */
#endif
extern "C" {
#include "config/dtype.h"
}

struct __half {
    uint16_t bits;
};

static inline float __half2float(__half x)
{
    return dtype_from_f16(x.bits);
}

static inline __half __float2half_rn(float x)
{
    return __half{dtype_to_f16(x)};
}

#endif
