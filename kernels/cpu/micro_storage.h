/* Storage of weights, keys and values: conversions, and lines of panels from rows. A part of
 * micro.h, which includes it. */
#ifndef TESSERA_KERNELS_CPU_MICRO_STORAGE_H
#define TESSERA_KERNELS_CPU_MICRO_STORAGE_H

/* F8_E4M3 as v16_load_f8 has it, but NaN codes are NaN. */
V16_INLINE v16 load_as(enum dtype t, const void *p)
{
    if (t == DTYPE_F32)
        return v16_load(p);
    if (t == DTYPE_F8_E4M3)
        return v16_nan_f8(v16_load_f8(p), p);
    return t == DTYPE_BF16 ? v16_load_bf16(p) : v16_load_f16(p);
}

V16_INLINE void store_as(enum dtype t, void *p, v16 a)
{
    if (t == DTYPE_F32)
        v16_store(p, a);
    else if (t == DTYPE_BF16)
        v16_store_bf16(p, a);
    else
        v16_store_f16(p, a);
}

static void convert(void *dst, enum dtype to, const void *src, enum dtype from, int32_t n)
{
    if (from == to) {
        memcpy(dst, src, (size_t)n * dtype_size(to));
        return;
    }
    if (to == DTYPE_F8_E4M3) { /* only from F32: keys and values */
        for (int32_t i = 0; i < n; i++)
            ((uint8_t *)dst)[i] = dtype_to_e4m3(dtype_saturate_e4m3(((const float *)src)[i]));
        return;
    }
    const size_t from_size = from == DTYPE_F32 ? 4 : 2, to_size = to == DTYPE_F32 ? 4 : 2;
    unsigned char *d = dst;
    const unsigned char *s = src;
    for (; n >= 16; n -= 16, s += 16 * from_size, d += 16 * to_size)
        store_as(to, d, load_as(from, s));
    if (n > 0) {
        ALIGNED64 unsigned char in[64] = {0}, out[64];
        memcpy(in, s, (size_t)n * from_size);
        store_as(to, out, load_as(from, in));
        memcpy(d, out, (size_t)n * to_size);
    }
}

/* 64 k of 32 staged rows become pairs of lines: four codes of a row travel as a word. */
static void interleave_f8(unsigned char *panel, const unsigned char *stage, size_t pitch, int32_t k)
{
    v16 r[2][16];
    for (int32_t c = 0; c < k; c += 64) {
        const int32_t pairs = ((k - c < 64 ? k - c : 64) + 1) / 2;
        for (int32_t j = 0; j < CPU_PANEL; j++)
            r[j / 16][j % 16] = v16_load((const void *)(stage + (size_t)j * pitch + c));
        v16_transpose(r[0]);
        v16_transpose(r[1]);
        float *pair = (float *)(void *)(panel + (size_t)c * CPU_PANEL);
        for (int32_t i = 0; i < pairs; i++, pair += 16) {
            const v16 a = r[0][i / 2], b = r[1][i / 2];
            v16_stream(pair, i % 2 == 0 ? v16_low_halves(a, b) : v16_high_halves(a, b));
        }
    }
    v16_stream_end();
}

/* 32 k of 32 staged rows become pairs of lines: two values of a row travel as a word. */
static void interleave_bf16(unsigned char *panel, const unsigned char *stage, size_t pitch,
                            int32_t k)
{
    v16 r[16];
    for (int32_t c = 0; c < k; c += 32) {
        const int32_t pairs = ((k - c < 32 ? k - c : 32) + 1) / 2;
        for (int32_t side = 0; side < 2; side++) {
            for (int32_t j = 0; j < 16; j++) {
                const unsigned char *row = stage + (size_t)(16 * side + j) * pitch;
                r[j] = v16_swap_halves(v16_load((const void *)(row + (size_t)c * 2)));
            }
            v16_transpose(r);
            float *pair = (float *)(void *)(panel + (size_t)c * CPU_LINE) + side * 16;
            for (int32_t i = 0; i < pairs; i++, pair += 32)
                v16_stream(pair, r[i]);
        }
    }
    v16_stream_end();
}

/* Sixteen k of 32 staged rows become lines. F16 travels as pairs of outputs in 32-bit lanes. */
static void interleave(unsigned char *panel, const unsigned char *stage, size_t pitch, int32_t k,
                       enum dtype dtype)
{
    if (dtype == DTYPE_F8_E4M3 || dtype == DTYPE_BF16) {
        (dtype == DTYPE_BF16 ? interleave_bf16 : interleave_f8)(panel, stage, pitch, k);
        return;
    }
    const int32_t halves = dtype == DTYPE_F32 ? 2 : 1, size = dtype == DTYPE_F32 ? 4 : 2;
    const int32_t step = dtype == DTYPE_F16 ? 2 : 1;
    v16 r[16];
    for (int32_t c = 0; c < k; c += 16) {
        int32_t n = k - c < 16 ? k - c : 16;
        for (int32_t half = 0; half < halves; half++) {
            for (int32_t j = 0; j < 16; j++) {
                const unsigned char *p =
                    stage + (size_t)(16 * half + step * j) * pitch + (size_t)(c * size);
                r[j] = dtype == DTYPE_F32 ? v16_load((const float *)(const void *)p)
                                          : v16_pair((const uint16_t *)(const void *)p,
                                                     (const uint16_t *)(const void *)(p + pitch));
            }
            v16_transpose(r);
            float *line = (float *)(void *)(panel + (size_t)c * CPU_PANEL * (size_t)size);
            for (int32_t i = 0; i < n; i++)
                v16_stream(line + (size_t)(i * halves + half) * 16, r[i]);
        }
    }
    v16_stream_end();
}

#endif
