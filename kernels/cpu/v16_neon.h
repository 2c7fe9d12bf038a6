/* Sixteen floats in four 128-bit registers; the meaning of each operation is in v16_generic.h. With
 * V16_DOTPROD codes of 8 bits are multiplied by SDOT. */
#ifndef TESSERA_KERNELS_CPU_V16_NEON_H
#define TESSERA_KERNELS_CPU_V16_NEON_H

#include "kernels/cpu/e2m1.h"
#include "kernels/cpu/foreach.h"

#include <arm_neon.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef V16_DOTPROD
#define V16_NAME "cpu-dotprod"
#else
#define V16_NAME "cpu-neon"
#endif
#define V16_ROWS 6 /* 24 accumulators, 4 of a line, 1 broadcast of 32 registers */
#define V16_COLS 1
#define V16_WIDE1 2
#define V16_WIDE2 1
#define V16_WIDE3 1
#define V16_WIDE4 1
#define V16_BF16_WORD 1
#define V16_KEYS 1
#define V16_INLINE static inline __attribute__((always_inline))
#define V16_TEMPLATE V16_INLINE /* const arguments are constants */

typedef struct {
    float32x4_t q[4];
} v16;

/* What is done with each quarter i; not a loop, since a compiler that has to unroll thousands of
 * them takes minutes. */
#define V16_EACH(expr)                                                                             \
    v16 r;                                                                                         \
    EACH_QUARTER(r.q[i] = (expr));                                                                 \
    return r
#define EACH_QUARTER(statement)                                                                    \
    WITH_QUARTER(0, statement)                                                                     \
    WITH_QUARTER(1, statement)                                                                     \
    WITH_QUARTER(2, statement)                                                                     \
    WITH_QUARTER(3, statement)
#define WITH_QUARTER(n, statement)                                                                 \
    {                                                                                              \
        enum { i = (n) };                                                                          \
        statement;                                                                                 \
    }

V16_INLINE uint32x4_t v16_bits(float32x4_t a)
{
    return vreinterpretq_u32_f32(a);
}

V16_INLINE float32x4_t v16_float(uint32x4_t a)
{
    return vreinterpretq_f32_u32(a);
}

V16_INLINE v16 v16_set1(float f)
{
    V16_EACH(vdupq_n_f32(f));
}

V16_INLINE v16 v16_zero(void)
{
    return v16_set1(0.0f);
}

V16_INLINE v16 v16_load(const float *p)
{
    V16_EACH(vld1q_f32(p + 4 * i));
}

/* The first n of four floats; none where n is not positive. */
V16_INLINE float32x4_t v16_quarter(const float *p, ptrdiff_t n)
{
    const float32x4_t zero = vdupq_n_f32(0.0f);
    if (n >= 4)
        return vld1q_f32(p);
    if (n == 3)
        return vld1q_lane_f32(p + 2, vcombine_f32(vld1_f32(p), vget_high_f32(zero)), 2);
    if (n == 2)
        return vcombine_f32(vld1_f32(p), vget_high_f32(zero));
    return n == 1 ? vld1q_lane_f32(p, zero, 0) : zero;
}

V16_INLINE v16 v16_load_n(const float *p, int32_t n)
{
    if (n >= 16)
        return v16_load(p);
    V16_EACH(v16_quarter(p + 4 * i, n - 4 * i));
}

V16_INLINE void v16_store(float *p, v16 a)
{
    EACH_QUARTER(vst1q_f32(p + 4 * i, a.q[i]));
}

V16_INLINE void v16_store_quarter(float *p, float32x4_t a, ptrdiff_t n)
{
    if (n >= 4) {
        vst1q_f32(p, a);
        return;
    }
    if (n >= 2)
        vst1_f32(p, vget_low_f32(a));
    if (n == 3)
        vst1q_lane_f32(p + 2, a, 2);
    if (n == 1)
        vst1q_lane_f32(p, a, 0);
}

V16_INLINE void v16_store_n(float *p, v16 a, int32_t n)
{
    EACH_QUARTER(v16_store_quarter(p + 4 * i, a.q[i], n - 4 * i));
}

V16_INLINE v16 v16_add(v16 a, v16 b)
{
    V16_EACH(vaddq_f32(a.q[i], b.q[i]));
}

V16_INLINE v16 v16_sub(v16 a, v16 b)
{
    V16_EACH(vsubq_f32(a.q[i], b.q[i]));
}

V16_INLINE v16 v16_mul(v16 a, v16 b)
{
    V16_EACH(vmulq_f32(a.q[i], b.q[i]));
}

V16_INLINE v16 v16_div(v16 a, v16 b)
{
    V16_EACH(vdivq_f32(a.q[i], b.q[i]));
}

V16_INLINE v16 v16_fma(v16 a, v16 b, v16 c)
{
    V16_EACH(vfmaq_f32(c.q[i], a.q[i], b.q[i]));
}

/* (FMAX has NaN where either is.) */
V16_INLINE float32x4_t v16_max4(float32x4_t a, float32x4_t b)
{
    return vbslq_f32(vcgtq_f32(a, b), a, b);
}

V16_INLINE v16 v16_max(v16 a, v16 b)
{
    V16_EACH(v16_max4(a.q[i], b.q[i]));
}

V16_INLINE v16 v16_min(v16 a, v16 b)
{
    V16_EACH(vbslq_f32(vcltq_f32(a.q[i], b.q[i]), a.q[i], b.q[i]));
}

V16_INLINE float v16_fold_add(v16 a)
{
    const float32x4_t h = vaddq_f32(vaddq_f32(a.q[0], a.q[2]), vaddq_f32(a.q[1], a.q[3]));
    const float32x2_t q = vadd_f32(vget_low_f32(h), vget_high_f32(h));
    return vget_lane_f32(q, 0) + vget_lane_f32(q, 1);
}

V16_INLINE float v16_fold_max(v16 a)
{
    float32x4_t h = v16_max4(v16_max4(a.q[0], a.q[2]), v16_max4(a.q[1], a.q[3]));
    h = v16_max4(h, vextq_f32(h, h, 2));
    return vgetq_lane_f32(v16_max4(h, vextq_f32(h, h, 1)), 0);
}

V16_INLINE v16 v16_zero_below(v16 x, v16 c, v16 a)
{
    V16_EACH(v16_float(vbicq_u32(v16_bits(a.q[i]), vcltq_f32(x.q[i], c.q[i]))));
}

/* All ones in the first n of four lanes. */
V16_INLINE uint32x4_t v16_lanes(ptrdiff_t n)
{
    static const int32_t index[4] = {0, 1, 2, 3};
    return vcltq_s32(vld1q_s32(index), vdupq_n_s32((int32_t)n));
}

V16_INLINE v16 v16_fill_from(v16 a, int32_t n, float fill)
{
    V16_EACH(vbslq_f32(v16_lanes(n - 4 * i), a.q[i], vdupq_n_f32(fill)));
}

V16_INLINE v16 v16_scale2(v16 p, v16 t)
{
    V16_EACH(v16_float(vaddq_u32(v16_bits(p.q[i]), vshlq_n_u32(v16_bits(t.q[i]), 23))));
}

/* Bit i: lane i is all ones; they are that or zeros. */
V16_INLINE uint32_t v16_mask(const uint32x4_t *lanes)
{
    static const uint8_t place[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    const uint16x8_t lo = vcombine_u16(vmovn_u32(lanes[0]), vmovn_u32(lanes[1]));
    const uint16x8_t hi = vcombine_u16(vmovn_u32(lanes[2]), vmovn_u32(lanes[3]));
    const uint8x16_t bits = vandq_u8(vcombine_u8(vmovn_u16(lo), vmovn_u16(hi)), vld1q_u8(place));
    return (uint32_t)vaddv_u8(vget_low_u8(bits)) | (uint32_t)vaddv_u8(vget_high_u8(bits)) << 8;
}

V16_INLINE uint32_t v16_bad(v16 a)
{
    const float32x4_t inf = vdupq_n_f32(INFINITY);
    uint32x4_t lanes[4];
    EACH_QUARTER(lanes[i] = vmvnq_u32(vcltq_f32(a.q[i], inf)));
    return v16_mask(lanes);
}

V16_INLINE uint32_t v16_equal(v16 a, v16 b)
{
    uint32x4_t lanes[4];
    EACH_QUARTER(lanes[i] = vceqq_f32(a.q[i], b.q[i]));
    return v16_mask(lanes);
}

V16_INLINE v16 v16_load_bf16(const uint16_t *p)
{
    V16_EACH(v16_float(vshll_n_u16(vld1_u16(p + 4 * i), 16)));
}

V16_INLINE v16 v16_load_f16(const uint16_t *p)
{
    V16_EACH(vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i))));
}

/* Nearest, ties to even; NaN keeps its upper bits and becomes quiet. In 32-bit lanes. */
V16_INLINE uint32x4_t v16_round_bf16(float32x4_t a)
{
    const uint32x4_t u = v16_bits(a), top = vshrq_n_u32(u, 16);
    const uint32x4_t odd = vandq_u32(top, vdupq_n_u32(1));
    const uint32x4_t r = vaddq_u32(u, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
    const uint32x4_t quiet = vorrq_u32(top, vdupq_n_u32(0x40));
    return vbslq_u32(vceqq_f32(a, a), vshrq_n_u32(r, 16), quiet);
}

V16_INLINE void v16_store_bf16(uint16_t *p, v16 a)
{
    EACH_QUARTER(vst1_u16(p + 4 * i, vmovn_u32(v16_round_bf16(a.q[i]))));
}

V16_INLINE void v16_store_f16(uint16_t *p, v16 a)
{
    EACH_QUARTER(vst1_u16(p + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(a.q[i]))));
}

V16_INLINE uint32x4_t v16_line(const unsigned char *p)
{
    return vreinterpretq_u32_u8(vld1q_u8(p));
}

V16_INLINE v16 v16_even_bf16(const unsigned char *p)
{
    V16_EACH(v16_float(vshlq_n_u32(v16_line(p + 16 * i), 16)));
}

V16_INLINE v16 v16_odd_bf16(const unsigned char *p)
{
    V16_EACH(v16_float(vandq_u32(v16_line(p + 16 * i), vdupq_n_u32(0xffff0000u))));
}

V16_INLINE v16 v16_words_bf16(const float *p, int32_t n)
{
    const v16 a = v16_load_n(p, n);
    V16_EACH(v16_float(vshlq_n_u32(v16_round_bf16(a.q[i]), 16)));
}

/* Eight codes as halves. */
V16_INLINE float16x8_t v16_half_f8(int8x8_t codes)
{
    const int16x8_t h = vshlq_n_s16(vmovl_s8(codes), 7);
    return vreinterpretq_f16_s16(vandq_s16(h, vdupq_n_s16((int16_t)0xbfff)));
}

V16_INLINE v16 v16_load_f8(const unsigned char *p)
{
    const int8x16_t codes = vreinterpretq_s8_u8(vld1q_u8(p));
    const float16x8_t lo = v16_half_f8(vget_low_s8(codes)), hi = v16_half_f8(vget_high_s8(codes));
    return (v16){{vcvt_f32_f16(vget_low_f16(lo)), vcvt_high_f32_f16(lo),
                  vcvt_f32_f16(vget_low_f16(hi)), vcvt_high_f32_f16(hi)}};
}

V16_INLINE v16 v16_nan_f8(v16 a, const unsigned char *p)
{
    const uint8x16_t low = vdupq_n_u8(0x7f); /* all ones are a NaN */
    const int8x16_t nan = vreinterpretq_s8_u8(vceqq_u8(vandq_u8(vld1q_u8(p), low), low));
    const int16x8_t lo = vmovl_s8(vget_low_s8(nan)), hi = vmovl_high_s8(nan);
    const int32x4_t lanes[4] = {vmovl_s16(vget_low_s16(lo)), vmovl_high_s16(lo),
                                vmovl_s16(vget_low_s16(hi)), vmovl_high_s16(hi)};
    V16_EACH(v16_float(vorrq_u32(v16_bits(a.q[i]), vreinterpretq_u32_s32(lanes[i]))));
}

/* Byte `at` of each lane as the upper one of four. */
V16_INLINE int32x4_t v16_byte_up(uint32x4_t a, ptrdiff_t at)
{
    const uint32x4_t up = at == 0   ? vshlq_n_u32(a, 24)
                          : at == 1 ? vshlq_n_u32(a, 16)
                          : at == 2 ? vshlq_n_u32(a, 8)
                                    : a;
    return vreinterpretq_s32_u32(up);
}

V16_INLINE v16 v16_line_f8(const unsigned char *p, ptrdiff_t line, ptrdiff_t side)
{
    const uint32x4_t kept = vdupq_n_u32(0x87f00000u);
    V16_EACH(v16_float(vandq_u32(
        vreinterpretq_u32_s32(vshrq_n_s32(v16_byte_up(v16_line(p + 16 * i), 2 * side + line), 4)),
        kept)));
}

V16_INLINE v16 v16_low_halves(v16 a, v16 b)
{
    V16_EACH(v16_float(vsliq_n_u32(v16_bits(a.q[i]), v16_bits(b.q[i]), 16)));
}

V16_INLINE v16 v16_high_halves(v16 a, v16 b)
{
    V16_EACH(v16_float(vsriq_n_u32(v16_bits(b.q[i]), v16_bits(a.q[i]), 16)));
}

V16_INLINE v16 v16_swap_halves(v16 a)
{
    V16_EACH(vreinterpretq_f32_u16(vrev32q_u16(vreinterpretq_u16_f32(a.q[i]))));
}

V16_INLINE v16 v16_pair(const uint16_t *lo, const uint16_t *hi)
{
    V16_EACH(v16_float(
        vsliq_n_u32(vmovl_u16(vld1_u16(lo + 4 * i)), vmovl_u16(vld1_u16(hi + 4 * i)), 16)));
}

V16_INLINE float32x4_t v16_lower_pairs(float32x4_t a, float32x4_t b)
{
    return vreinterpretq_f32_f64(vtrn1q_f64(vreinterpretq_f64_f32(a), vreinterpretq_f64_f32(b)));
}

V16_INLINE float32x4_t v16_upper_pairs(float32x4_t a, float32x4_t b)
{
    return vreinterpretq_f32_f64(vtrn2q_f64(vreinterpretq_f64_f32(a), vreinterpretq_f64_f32(b)));
}

/* 16 x 16 as 4 x 4 squares, each of them in registers. */
V16_INLINE void v16_transpose(v16 *r)
{
    v16 t[16];
    for (ptrdiff_t i = 0; i < 4; i++) {
        const v16 *in = r + 4 * i;
        foreach(j, 4) {
            const float32x4_t a = vtrn1q_f32(in[0].q[j], in[1].q[j]);
            const float32x4_t b = vtrn2q_f32(in[0].q[j], in[1].q[j]);
            const float32x4_t c = vtrn1q_f32(in[2].q[j], in[3].q[j]);
            const float32x4_t d = vtrn2q_f32(in[2].q[j], in[3].q[j]);
            t[4 * j].q[i] = v16_lower_pairs(a, c);
            t[4 * j + 1].q[i] = v16_lower_pairs(b, d);
            t[4 * j + 2].q[i] = v16_upper_pairs(a, c);
            t[4 * j + 3].q[i] = v16_upper_pairs(b, d);
        }
    }
    memcpy(r, t, sizeof t);
}

typedef struct {
    int32x4_t q[4];
} q16;

#define Q16_EACH(expr)                                                                             \
    q16 r;                                                                                         \
    EACH_QUARTER(r.q[i] = (expr));                                                                 \
    return r

V16_INLINE uint8x16_t q16_codes(int32x4_t a)
{
    return vreinterpretq_u8_s32(a);
}

V16_INLINE q16 q16_set1(int32_t n)
{
    Q16_EACH(vdupq_n_s32(n));
}

V16_INLINE q16 q16_load(const unsigned char *p)
{
    Q16_EACH(vreinterpretq_s32_u8(vld1q_u8(p + 16 * i)));
}

V16_INLINE q16 q16_bytes(const unsigned char *p)
{
    const uint8x16_t bytes = vld1q_u8(p);
    const uint16x8_t lo = vmovl_u8(vget_low_u8(bytes)), hi = vmovl_high_u8(bytes);
    return (q16){{vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(lo))),
                  vreinterpretq_s32_u32(vmovl_high_u16(lo)),
                  vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(hi))),
                  vreinterpretq_s32_u32(vmovl_high_u16(hi))}};
}

V16_INLINE q16 q16_times(q16 a, int32_t n)
{
    Q16_EACH(vmulq_n_s32(a.q[i], n));
}

#define Q16_CODE8_OFFSET 0
V16_INLINE q16 q16_code8(q16 a)
{
    return a;
}

V16_INLINE q16 q16_low(q16 a)
{
    Q16_EACH(vreinterpretq_s32_u8(vandq_u8(q16_codes(a.q[i]), vdupq_n_u8(15))));
}

V16_INLINE q16 q16_high(q16 a)
{
    Q16_EACH(vreinterpretq_s32_u8(vshrq_n_u8(q16_codes(a.q[i]), 4)));
}

V16_INLINE q16 q16_e2m1(q16 a)
{
    static const uint8_t codes[16] = {E2M1_CODES};
    Q16_EACH(vreinterpretq_s32_u8(vqtbl1q_u8(vld1q_u8(codes), q16_codes(a.q[i]))));
}

#ifdef V16_DOTPROD

V16_INLINE q16 q16_dot8(q16 sum, q16 w, int32_t x)
{
    const int8x8_t quad = vcreate_s8((uint32_t)x); /* of which the lower half counts */
    Q16_EACH(vdotq_lane_s32(sum.q[i], vreinterpretq_s8_s32(w.q[i]), quad, 0));
}

#else

/* Codes are -128 to 127 and -127 to 127: two products fit in 16 bits. */
V16_INLINE int32x4_t q16_dot(int32x4_t sum, int8x16_t w, int8x16_t x)
{
    const int16x8_t lo = vmull_s8(vget_low_s8(w), vget_low_s8(x)), hi = vmull_high_s8(w, x);
    return vpadalq_s16(sum, vpaddq_s16(lo, hi));
}

V16_INLINE q16 q16_dot8(q16 sum, q16 w, int32_t x)
{
    const int8x16_t quad = vreinterpretq_s8_s32(vdupq_n_s32(x));
    Q16_EACH(q16_dot(sum.q[i], vreinterpretq_s8_s32(w.q[i]), quad));
}

#endif

V16_INLINE q16 q16_dot4(q16 sum, q16 w, int32_t x)
{
    return q16_dot8(sum, w, x);
}

V16_INLINE v16 q16_to_v16(q16 a)
{
    V16_EACH(vcvtq_f32_s32(a.q[i]));
}

V16_INLINE void v16_prefetch(const unsigned char *p)
{
    __builtin_prefetch(p, 0, 2);
}

V16_INLINE void v16_stream(float *p, v16 a)
{
    v16_store(p, a);
}

V16_INLINE void v16_stream_end(void)
{
}

#endif
