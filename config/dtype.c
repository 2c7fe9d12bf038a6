#include "config/dtype.h"

#include <math.h>

static const struct {
    const char *name;
    size_t size;
} dtypes[DTYPE_COUNT] = {
    [DTYPE_F32] = {"F32", 4}, [DTYPE_F16] = {"F16", 2},         [DTYPE_BF16] = {"BF16", 2},
    [DTYPE_F64] = {"F64", 8}, [DTYPE_F8_E4M3] = {"F8_E4M3", 1}, [DTYPE_F8_E5M2] = {"F8_E5M2", 1},
    [DTYPE_I64] = {"I64", 8}, [DTYPE_I32] = {"I32", 4},         [DTYPE_I16] = {"I16", 2},
    [DTYPE_I8] = {"I8", 1},   [DTYPE_U64] = {"U64", 8},         [DTYPE_U32] = {"U32", 4},
    [DTYPE_U16] = {"U16", 2}, [DTYPE_U8] = {"U8", 1},           [DTYPE_BOOL] = {"BOOL", 1},
    [DTYPE_I4] = {"I4", 0},   [DTYPE_U4] = {"U4", 0},           [DTYPE_F4_E2M1] = {"F4_E2M1", 0},
};

size_t dtype_size(enum dtype t)
{
    return dtypes[t].size;
}

const char *dtype_name(enum dtype t)
{
    return dtypes[t].name;
}

bool dtype_parse(const char *name, enum dtype *out)
{
    for (int i = 0; i < DTYPE_COUNT; i++) {
        if (dtypes[i].size > 0 && strcmp(dtypes[i].name, name) == 0) {
            *out = (enum dtype)i;
            return true;
        }
    }
    return false;
}

bool dtype_is_compute(enum dtype t)
{
    return t == DTYPE_F32 || t == DTYPE_F16 || t == DTYPE_BF16;
}

float dtype_from_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = (h >> 10) & 31u, mantissa = h & 1023u;
    uint32_t u;
    if (exponent == 31) {
        u = sign | 0x7f800000u | mantissa << 13;
    } else if (exponent != 0) {
        u = sign | (exponent + 112) << 23 | mantissa << 13;
    } else { /* subnormal: mantissa x 2^-24, exact in fp32 */
        float f = (float)mantissa * 0x1p-24f;
        memcpy(&u, &f, sizeof u);
        u |= sign;
    }
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

uint16_t dtype_to_f16(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    uint32_t sign = (u >> 16) & 0x8000u, magnitude = u & 0x7fffffffu;
    if (magnitude > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u);
    if (magnitude >= 0x477ff000u) /* rounds to 65536 or more */
        return (uint16_t)(sign | 0x7c00u);
    if (magnitude < 0x38800000u) { /* subnormal: the FPU rounds to multiples of 2^-24 */
        float a;
        memcpy(&a, &magnitude, sizeof a);
        a += 0.5f;
        uint32_t r;
        memcpy(&r, &a, sizeof r);
        return (uint16_t)(sign | (r - 0x3f000000u));
    }
    uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    return (uint16_t)(sign | ((rounded >> 13) - (112u << 10)));
}

/* The bits as those of a half, whose exponent has one more bit and a bias larger by 8. */
float dtype_from_e4m3(uint8_t c)
{
    if ((c & 0x7fu) == DTYPE_E4M3_NAN)
        return NAN;
    return dtype_from_f16((uint16_t)((c & 0x80u) << 8 | (c & 0x7fu) << 7)) * 0x1p8f;
}

float dtype_load(const void *data, enum dtype t, size_t i)
{
    if (t == DTYPE_F32)
        return ((const float *)data)[i];
    if (t == DTYPE_F8_E4M3)
        return dtype_from_e4m3(((const uint8_t *)data)[i]);
    if (t == DTYPE_I8)
        return ((const int8_t *)data)[i];
    uint16_t h = ((const uint16_t *)data)[i];
    return t == DTYPE_BF16 ? dtype_from_bf16(h) : dtype_from_f16(h);
}

void dtype_load_n(float *out, const void *data, enum dtype t, size_t at, size_t n)
{
    if (t == DTYPE_F32) {
        memcpy(out, (const float *)data + at, n * sizeof *out);
    } else if (t == DTYPE_BF16) {
        const uint16_t *h = (const uint16_t *)data + at;
        for (; n >= 16; n -= 16, h += 16, out += 16)
            for (int i = 0; i < 16; i++) /* of a known length, so that it becomes vectors */
                out[i] = dtype_from_bf16(h[i]);
        for (size_t i = 0; i < n; i++)
            out[i] = dtype_from_bf16(h[i]);
    } else {
        for (size_t i = 0; i < n; i++)
            out[i] = dtype_load(data, t, at + i);
    }
}

void dtype_store(void *data, enum dtype t, size_t i, float v)
{
    if (t == DTYPE_F32)
        ((float *)data)[i] = v;
    else if (t == DTYPE_F8_E4M3)
        ((uint8_t *)data)[i] = dtype_to_e4m3(v);
    else if (t == DTYPE_I8)
        ((int8_t *)data)[i] = (int8_t)v;
    else
        ((uint16_t *)data)[i] = t == DTYPE_BF16 ? dtype_to_bf16(v) : dtype_to_f16(v);
}
