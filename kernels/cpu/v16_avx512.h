/* Sixteen floats in one 512-bit register; the meaning of each operation is in v16_generic.h. With
 * V16_VNNI integers are multiplied by the instructions made for it, with V16_BF16 BF16 is, too. */
#ifndef TESSERA_KERNELS_CPU_V16_AVX512_H
#define TESSERA_KERNELS_CPU_V16_AVX512_H

#include "kernels/cpu/e2m1.h"
#include "kernels/cpu/foreach.h"

#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(V16_BF16)
#define V16_NAME "cpu-bf16"
#define V16_BF16_WORD 2
#elif defined(V16_VNNI)
#define V16_NAME "cpu-vnni"
#define V16_BF16_WORD 1
#else
#define V16_NAME "cpu-avx512"
#define V16_BF16_WORD 1
#endif
#define V16_ROWS 12 /* 24 accumulators, 2 lines, 1 broadcast of 32 registers */
#define V16_COLS 2
#define V16_WIDE1 4
#define V16_WIDE2 4
#define V16_WIDE3 3
#define V16_WIDE4 2
#define V16_KEYS 4
#define V16_INLINE static inline __attribute__((always_inline))
#define V16_TEMPLATE V16_INLINE /* const arguments are constants */

typedef __m512 v16;

V16_INLINE __mmask16 v16_lanes(int32_t n)
{
    return (__mmask16)((1u << n) - 1);
}

V16_INLINE v16 v16_set1(float f)
{
    return _mm512_set1_ps(f);
}

V16_INLINE v16 v16_zero(void)
{
    return _mm512_setzero_ps();
}

V16_INLINE v16 v16_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

V16_INLINE v16 v16_load_n(const float *p, int32_t n)
{
    return _mm512_maskz_loadu_ps(v16_lanes(n), p);
}

V16_INLINE void v16_store(float *p, v16 a)
{
    _mm512_storeu_ps(p, a);
}

V16_INLINE void v16_store_n(float *p, v16 a, int32_t n)
{
    _mm512_mask_storeu_ps(p, v16_lanes(n), a);
}

V16_INLINE v16 v16_add(v16 a, v16 b)
{
    return _mm512_add_ps(a, b);
}

V16_INLINE v16 v16_sub(v16 a, v16 b)
{
    return _mm512_sub_ps(a, b);
}

V16_INLINE v16 v16_mul(v16 a, v16 b)
{
    return _mm512_mul_ps(a, b);
}

V16_INLINE v16 v16_div(v16 a, v16 b)
{
    return _mm512_div_ps(a, b);
}

V16_INLINE v16 v16_fma(v16 a, v16 b, v16 c)
{
    return _mm512_fmadd_ps(a, b, c);
}

V16_INLINE v16 v16_max(v16 a, v16 b)
{
    return _mm512_max_ps(a, b);
}

V16_INLINE v16 v16_min(v16 a, v16 b)
{
    return _mm512_min_ps(a, b);
}

V16_INLINE float v16_fold_add(v16 a)
{
    __m256 h = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}

V16_INLINE float v16_fold_max(v16 a)
{
    __m256 h = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}

V16_INLINE v16 v16_zero_below(v16 x, v16 c, v16 a)
{
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, c, _CMP_NLT_UQ), a);
}

V16_INLINE v16 v16_fill_from(v16 a, int32_t n, float fill)
{
    return _mm512_mask_mov_ps(_mm512_set1_ps(fill), v16_lanes(n), a);
}

V16_INLINE v16 v16_scale2(v16 p, v16 t)
{
    __m512i shift = _mm512_slli_epi32(_mm512_castps_si512(t), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p), shift));
}

V16_INLINE uint32_t v16_bad(v16 a)
{
    return _mm512_cmp_ps_mask(a, _mm512_set1_ps(INFINITY), _CMP_NLT_UQ);
}

V16_INLINE uint32_t v16_equal(v16 a, v16 b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ);
}

V16_INLINE __m256i v16_halves(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

V16_INLINE v16 v16_load_bf16(const uint16_t *p)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v16_halves(p)), 16));
}

V16_INLINE v16 v16_load_f16(const uint16_t *p)
{
    return _mm512_cvtph_ps(v16_halves(p));
}

/* Nearest, ties to even; NaN keeps its upper bits and becomes quiet. In 32-bit lanes. */
V16_INLINE __m512i v16_round_bf16(v16 a)
{
    __m512i u = _mm512_castps_si512(a);
    __m512i top = _mm512_srli_epi32(u, 16);
    __m512i odd = _mm512_and_si512(top, _mm512_set1_epi32(1));
    __m512i r = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    r = _mm512_srli_epi32(r, 16);
    __mmask16 nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
    return _mm512_mask_or_epi32(r, nan, top, _mm512_set1_epi32(0x40));
}

V16_INLINE void v16_store_bf16(uint16_t *p, v16 a)
{
    _mm256_storeu_si256((__m256i *)(void *)p, _mm512_cvtepi32_epi16(v16_round_bf16(a)));
}

V16_INLINE void v16_store_f16(uint16_t *p, v16 a)
{
    __m256i h = _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm256_storeu_si256((__m256i *)(void *)p, h);
}

V16_INLINE v16 v16_even_bf16(const unsigned char *p)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16));
}

V16_INLINE v16 v16_odd_bf16(const unsigned char *p)
{
    __m512i high = _mm512_set1_epi32((int)0xffff0000u);
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), high));
}

#ifdef V16_BF16

/* (VCVTNE2PS2BF16 takes subnormal numbers for zeros before it rounds, others round them up.) */
V16_INLINE v16 v16_words_bf16(const float *p, int32_t n)
{
    const v16 first = v16_load_n(p, n < 16 ? n : 16);
    const v16 second = n > 16 ? v16_load_n(p + 16, n - 16) : v16_zero();
    const __m256i low = _mm512_cvtepi32_epi16(v16_round_bf16(first));
    const __m256i high = _mm512_cvtepi32_epi16(v16_round_bf16(second));
    const __m512i pairs = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
    return _mm512_castsi512_ps(_mm512_rol_epi32(pairs, 16));
}

/* sum + the products of the upper halves, then + those of the lower: two fused multiply-adds to
 * which subnormal numbers are zeros (Intel 64 and IA-32 Architectures Software Developer's Manual,
 * VDPBF16PS). */
V16_INLINE v16 v16_dot_bf16(v16 sum, v16 w, v16 x)
{
    return _mm512_dpbf16_ps(sum, (__m512bh)_mm512_castps_si512(w),
                            (__m512bh)_mm512_castps_si512(x));
}

#else

V16_INLINE v16 v16_words_bf16(const float *p, int32_t n)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(v16_round_bf16(v16_load_n(p, n)), 16));
}

#endif

V16_INLINE v16 v16_load_f8(const unsigned char *p)
{
    const __m128i codes = _mm_loadu_si128((const __m128i *)(const void *)p);
    const __m256i h = _mm256_slli_epi16(_mm256_cvtepi8_epi16(codes), 7);
    return _mm512_cvtph_ps(_mm256_and_si256(h, _mm256_set1_epi16((short)0xbfff)));
}

V16_INLINE v16 v16_nan_f8(v16 a, const unsigned char *p)
{
    const __m128i codes = _mm_loadu_si128((const __m128i *)(const void *)p);
    const __m128i low = _mm_set1_epi8(0x7f);
    const __mmask16 nan = _mm_cmpeq_epi8_mask(_mm_and_si128(codes, low), low);
    return _mm512_mask_mov_ps(a, nan, _mm512_set1_ps(NAN));
}

V16_INLINE v16 v16_line_f8(const unsigned char *p, ptrdiff_t line, ptrdiff_t side)
{
    const __m512i codes = _mm512_loadu_si512(p);
    __m512i h = _mm512_srai_epi16(line == 0 ? _mm512_slli_epi16(codes, 8) : codes, 4);
    h = _mm512_and_si512(h, _mm512_set1_epi16((short)0x87f0));
    return _mm512_castsi512_ps(side == 0
                                   ? _mm512_slli_epi32(h, 16)
                                   : _mm512_and_si512(h, _mm512_set1_epi32((int)0xffff0000u)));
}

V16_INLINE v16 v16_low_halves(v16 a, v16 b)
{
    __m512i high = _mm512_slli_epi32(_mm512_castps_si512(b), 16);
    return _mm512_castsi512_ps(_mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_castps_si512(a), high));
}

V16_INLINE v16 v16_high_halves(v16 a, v16 b)
{
    __m512i low = _mm512_srli_epi32(_mm512_castps_si512(a), 16);
    return _mm512_castsi512_ps(_mm512_mask_blend_epi16(0xaaaaaaaa, low, _mm512_castps_si512(b)));
}

V16_INLINE v16 v16_swap_halves(v16 a)
{
    return _mm512_castsi512_ps(_mm512_rol_epi32(_mm512_castps_si512(a), 16));
}

V16_INLINE v16 v16_pair(const uint16_t *lo, const uint16_t *hi)
{
    __m512i l = _mm512_cvtepu16_epi32(v16_halves(lo)), h = _mm512_cvtepu16_epi32(v16_halves(hi));
    return _mm512_castsi512_ps(_mm512_or_si512(l, _mm512_slli_epi32(h, 16)));
}

/* 16 x 16: two steps within lanes of 128 bits, two between them. */
V16_INLINE void v16_transpose(v16 *r)
{
    __m512 t[16];
    foreach(i, 8) {
        t[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    foreach(i, 4) {
        const __m512 *q = t + 4 * i;
        r[4 * i] = _mm512_shuffle_ps(q[0], q[2], 0x44);
        r[4 * i + 1] = _mm512_shuffle_ps(q[0], q[2], 0xee);
        r[4 * i + 2] = _mm512_shuffle_ps(q[1], q[3], 0x44);
        r[4 * i + 3] = _mm512_shuffle_ps(q[1], q[3], 0xee);
    }
    foreach(i, 4) {
        t[i] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xdd);
    }
    foreach(i, 4) {
        r[i] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88);
        r[i + 4] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0x88);
        r[i + 8] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd);
        r[i + 12] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0xdd);
    }
}

typedef __m512i q16;

V16_INLINE q16 q16_set1(int32_t n)
{
    return _mm512_set1_epi32(n);
}

V16_INLINE q16 q16_load(const unsigned char *p)
{
    return _mm512_loadu_si512(p);
}

V16_INLINE q16 q16_bytes(const unsigned char *p)
{
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
}

/* The upper 16 bits of a are zeros, so those of n do not count. */
V16_INLINE q16 q16_times(q16 a, int32_t n)
{
    return _mm512_madd_epi16(a, _mm512_set1_epi32(n));
}

V16_INLINE q16 q16_low(q16 a)
{
    return _mm512_and_si512(a, _mm512_set1_epi8(15));
}

V16_INLINE q16 q16_high(q16 a)
{
    return q16_low(_mm512_srli_epi16(a, 4));
}

V16_INLINE q16 q16_e2m1(q16 a)
{
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_setr_epi8(E2M1_CODES)), a);
}

#ifdef V16_VNNI

/* Unsigned codes times signed ones is what there is. */
#define Q16_CODE8_OFFSET 128
V16_INLINE q16 q16_code8(q16 a)
{
    return _mm512_xor_si512(a, _mm512_set1_epi8((char)0x80));
}

V16_INLINE q16 q16_dot8(q16 sum, q16 w, int32_t x)
{
    return _mm512_dpbusd_epi32(sum, w, _mm512_set1_epi32(x));
}

V16_INLINE q16 q16_dot4(q16 sum, q16 w, int32_t x)
{
    return q16_dot8(sum, w, x);
}

#else

#define Q16_CODE8_OFFSET 0
V16_INLINE q16 q16_code8(q16 a)
{
    return a;
}

/* Codes of w 0 to 128: two products fit in 16 bits. */
V16_INLINE q16 q16_dot(q16 sum, q16 w, q16 x)
{
    const q16 pairs = _mm512_maddubs_epi16(w, x);
    return _mm512_add_epi32(sum, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
}

/* The sign of w goes to x. */
V16_INLINE q16 q16_dot8(q16 sum, q16 w, int32_t x)
{
    const q16 quad = _mm512_set1_epi32(x);
    const __mmask64 negative = _mm512_movepi8_mask(w);
    const q16 turned = _mm512_mask_sub_epi8(quad, negative, _mm512_setzero_si512(), quad);
    return q16_dot(sum, _mm512_abs_epi8(w), turned);
}

V16_INLINE q16 q16_dot4(q16 sum, q16 w, int32_t x)
{
    return q16_dot(sum, w, _mm512_set1_epi32(x));
}

#endif

V16_INLINE v16 q16_to_v16(q16 a)
{
    return _mm512_cvtepi32_ps(a);
}

V16_INLINE void v16_prefetch(const unsigned char *p)
{
    _mm_prefetch((const char *)p, _MM_HINT_T1);
}

V16_INLINE void v16_stream(float *p, v16 a)
{
    _mm512_stream_ps(p, a);
}

V16_INLINE void v16_stream_end(void)
{
    _mm_sfence();
}

#endif
