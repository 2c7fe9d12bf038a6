/* Element types of tensors and their exact conversions to float. Pure. */
#ifndef TESSERA_CONFIG_DTYPE_H
#define TESSERA_CONFIG_DTYPE_H

#include "config/base.h"

#include <string.h>

/* The safetensors names. F32, F16 and BF16 are computed with, F8_E4M3 where a scale comes with it,
 * U8 is read where it holds codes of MXFP4, I32 where it has codes of 4 or 8 bits; the rest is
 * recognised so that a header can be checked and refused by name. I8, I4, U4 and F4_E2M1 are also
 * what a backend can hold weights in, as codes with scales; those of 4 bits are no type of a file
 * and have no size. */
enum dtype {
    DTYPE_F32,
    DTYPE_F16,
    DTYPE_BF16,
    DTYPE_F64,
    DTYPE_F8_E4M3,
    DTYPE_F8_E5M2,
    DTYPE_I64,
    DTYPE_I32,
    DTYPE_I16,
    DTYPE_I8,
    DTYPE_U64,
    DTYPE_U32,
    DTYPE_U16,
    DTYPE_U8,
    DTYPE_BOOL,
    DTYPE_I4,
    DTYPE_U4,      /* 0 to 15, less the zero of its group */
    DTYPE_F4_E2M1, /* codes are twice the value */
    DTYPE_COUNT
};

/* Bytes of one element; 0 of those of 4 bits. */
size_t dtype_size(enum dtype t);
/* safetensors name: "F32", "BF16", ... */
const char *dtype_name(enum dtype t);
/* By safetensors name; false when unknown. */
bool dtype_parse(const char *name, enum dtype *out);
/* True for the types linears may be stored in: F32, F16, BF16. */
bool dtype_is_compute(enum dtype t);
/* Integer codes with a scale per group. */
static inline bool dtype_is_int(enum dtype t)
{
    return t == DTYPE_I8 || t == DTYPE_I4 || t == DTYPE_U4 || t == DTYPE_F4_E2M1;
}
/* Those, or F8_E4M3: codes that mean something with their scale only. */
static inline bool dtype_is_scaled(enum dtype t)
{
    return t == DTYPE_F8_E4M3 || dtype_is_int(t);
}

static inline float dtype_from_bf16(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* Round to nearest, ties to even; NaN stays NaN. */
static inline uint16_t dtype_to_bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((u >> 16) | 0x40u);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

float dtype_from_f16(uint16_t h);
/* Round to nearest, ties to even; overflow gives infinity. */
uint16_t dtype_to_f16(float f);
/* OCP E4M3 ("fn"): bias 7, no infinities, largest 448, NaN is 0x7f and 0xff. */
#define DTYPE_E4M3_MAX 448.0f
#define DTYPE_E4M3_NAN 0x7fu
float dtype_from_e4m3(uint8_t c);
/* Round to nearest, ties to even; what rounds beyond 448 gives NaN. */
static inline uint8_t dtype_to_e4m3(float f)
{
    uint32_t u, small;
    memcpy(&u, &f, sizeof u);
    const uint32_t sign = u >> 24 & 0x80u, magnitude = u & 0x7fffffffu;
    const uint32_t normal = (magnitude + 0x7ffffu + (magnitude >> 20 & 1u)) >> 20;
    float a; /* below 2^-6 the FPU rounds to multiples of 2^-9 */
    memcpy(&a, &magnitude, sizeof a);
    a += 0x1p14f;
    memcpy(&small, &a, sizeof small);
    const uint32_t finite = magnitude < 0x3c800000u ? small - 0x46800000u : normal - (120u << 3);
    return (uint8_t)(sign | (magnitude > 0x43e80000u ? DTYPE_E4M3_NAN : finite));
}
/* What rounds beyond 448 becomes that, for values without a scale of their own; NaN stays NaN. */
static inline float dtype_saturate_e4m3(float f)
{
    return f > DTYPE_E4M3_MAX ? DTYPE_E4M3_MAX : f < -DTYPE_E4M3_MAX ? -DTYPE_E4M3_MAX : f;
}
/* Element i of an array of type t (F32, F16, BF16, F8_E4M3, I8) as float. */
float dtype_load(const void *data, enum dtype t, size_t i);
/* The n of them from element `at` on. */
void dtype_load_n(float *out, const void *data, enum dtype t, size_t at, size_t n);
void dtype_store(void *data, enum dtype t, size_t i, float v);

#endif
