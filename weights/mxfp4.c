#include "weights/mxfp4.h"

#include <math.h>

#define SCALE_BIAS 128 /* that of E8M0, and one more for codes that are doubled */
#define SCALE_LEAST 2  /* 2^-126: what is held is a normal number of bf16, */
#define SCALE_MOST 251 /* and what is meant one of fp32 */

/* Twice the value of each code. */
static const int8_t doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

struct span mxfp4_groups(struct span cols)
{
    if (span_len(cols) == 0)
        return (struct span){0, 0};
    return (struct span){cols.begin / MXFP4_GROUP, (cols.end - 1) / MXFP4_GROUP + 1};
}

bool mxfp4_is_source(const struct local_weight *w)
{
    return w->quant.kind == QUANT_FILE && w->quant.code == DTYPE_F4_E2M1;
}

struct tensor_slice mxfp4_bytes(const struct tensor_slice *s)
{
    const struct span groups = mxfp4_groups(s->cols);
    struct tensor_slice bytes = *s;
    bytes.shape[1] = s->shape[1] / MXFP4_GROUP * MXFP4_BLOCK;
    bytes.cols = (struct span){groups.begin * MXFP4_BLOCK, groups.end * MXFP4_BLOCK};
    return bytes;
}

/* Of one element, by its column behind the first group's. */
static int8_t code_at(const uint8_t *blocks, int64_t i)
{
    return doubled[blocks[i / 2] >> i % 2 * 4 & 15];
}

static float scale_of(uint8_t exponent)
{
    return ldexpf(1, (exponent < SCALE_LEAST ? SCALE_LEAST : exponent) - SCALE_BIAS);
}

/* A scale that is too small to be held does where all that has it is zero. */
static bool is_sound(uint8_t exponent, const uint8_t *block)
{
    bool zeros = true;
    for (int i = 0; i < MXFP4_BLOCK; i++)
        zeros = zeros && (block[i] & 0x77) == 0;
    return exponent <= SCALE_MOST && (exponent >= SCALE_LEAST || zeros);
}

bool mxfp4_codes(int8_t *codes, float *scales, const uint8_t *blocks, const uint8_t *exponents,
                 struct span cols)
{
    const struct span groups = mxfp4_groups(cols);
    const int64_t first = cols.begin - groups.begin * MXFP4_GROUP;
    bool sound = true;
    for (int64_t i = 0; i < span_len(cols); i++)
        codes[i] = code_at(blocks, first + i);
    for (int64_t g = 0; g < span_len(groups); g++) {
        sound = sound && is_sound(exponents[g], blocks + g * MXFP4_BLOCK);
        scales[g] = scale_of(exponents[g]);
    }
    return sound;
}

bool mxfp4_values(float *values, const uint8_t *blocks, const uint8_t *exponents, struct span cols)
{
    const struct span groups = mxfp4_groups(cols);
    const int64_t first = cols.begin - groups.begin * MXFP4_GROUP;
    bool sound = true;
    for (int64_t g = 0; g < span_len(groups); g++)
        sound = sound && is_sound(exponents[g], blocks + g * MXFP4_BLOCK);
    for (int64_t i = 0; i < span_len(cols); i++)
        values[i] =
            (float)code_at(blocks, first + i) * scale_of(exponents[(first + i) / MXFP4_GROUP]);
    return sound;
}

/* ---- synthetic weights ---- */

/* Ties to the smaller one. */
static int8_t nearest(float x)
{
    static const float above[] = {0.5f, 1.5f, 2.5f, 3.5f, 5, 7, 10}; /* half-way to the next code */
    const float size = fabsf(x);
    int code = 0;
    for (size_t i = 0; i < ARRAY_LEN(above); i++)
        code += size > above[i];
    return (int8_t)(x < 0 ? -doubled[code] : doubled[code]);
}

bool mxfp4_quantize(int8_t *codes, float *scales, const void *row, enum dtype dtype,
                    struct span read, struct span cols)
{
    const struct span groups = mxfp4_groups(cols);
    for (int64_t g = groups.begin; g < groups.end; g++) {
        const int64_t begin = g * MXFP4_GROUP, end = begin + MXFP4_GROUP;
        float max = 0;
        for (int64_t i = begin; i < end && i < read.end; i++) {
            const float size = fabsf(dtype_load(row, dtype, (size_t)(i - read.begin)));
            if (!isfinite(size))
                return false;
            max = fmaxf(max, size);
        }
        int exponent = 0;
        frexpf(max, &exponent); /* max < 2^exponent, and the largest code is near 2^4 */
        const float scale = ldexpf(1, exponent < -100 ? -104 : exponent - 4);
        scales[g - groups.begin] = scale;
        for (int64_t i = begin > cols.begin ? begin : cols.begin; i < end && i < cols.end; i++)
            codes[i - cols.begin] =
                nearest(dtype_load(row, dtype, (size_t)(i - read.begin)) / scale);
    }
    return true;
}
