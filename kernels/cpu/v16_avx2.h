/* Sixteen floats in two 256-bit registers; the meaning of each operation is in v16_generic.h. */
#ifndef TESSERA_KERNELS_CPU_V16_AVX2_H
#define TESSERA_KERNELS_CPU_V16_AVX2_H

#include "kernels/cpu/e2m1.h"
#include "kernels/cpu/foreach.h"

#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#define V16_NAME "cpu-avx2"
#define V16_ROWS 6 /* 12 accumulators, 2 of a line, 1 broadcast of 16 registers */
#define V16_COLS 1
#define V16_WIDE1 3
#define V16_WIDE2 1
#define V16_WIDE3 1
#define V16_WIDE4 1
#define V16_BF16_WORD 1
#define V16_KEYS 1
#define V16_INLINE static inline __attribute__((always_inline))
#define V16_TEMPLATE V16_INLINE /* const arguments are constants */

typedef struct {
    __m256 lo, hi;
} v16;

V16_INLINE v16 v16_of(__m256 lo, __m256 hi)
{
    return (v16){lo, hi};
}

V16_INLINE v16 v16_of_int(__m256i lo, __m256i hi)
{
    return (v16){_mm256_castsi256_ps(lo), _mm256_castsi256_ps(hi)};
}

/* All ones in the first n of 8 lanes from `lane` on. */
V16_INLINE __m256i v16_lanes(int32_t n, int32_t lane)
{
    __m256i index =
        _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(lane));
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), index);
}

V16_INLINE v16 v16_set1(float f)
{
    return v16_of(_mm256_set1_ps(f), _mm256_set1_ps(f));
}

V16_INLINE v16 v16_zero(void)
{
    return v16_of(_mm256_setzero_ps(), _mm256_setzero_ps());
}

V16_INLINE v16 v16_load(const float *p)
{
    return v16_of(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8));
}

V16_INLINE v16 v16_load_n(const float *p, int32_t n)
{
    return v16_of(_mm256_maskload_ps(p, v16_lanes(n, 0)),
                  n > 8 ? _mm256_maskload_ps(p + 8, v16_lanes(n, 8)) : _mm256_setzero_ps());
}

V16_INLINE void v16_store(float *p, v16 a)
{
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
}

V16_INLINE void v16_store_n(float *p, v16 a, int32_t n)
{
    _mm256_maskstore_ps(p, v16_lanes(n, 0), a.lo);
    if (n > 8)
        _mm256_maskstore_ps(p + 8, v16_lanes(n, 8), a.hi);
}

V16_INLINE v16 v16_add(v16 a, v16 b)
{
    return v16_of(_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi));
}

V16_INLINE v16 v16_sub(v16 a, v16 b)
{
    return v16_of(_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi));
}

V16_INLINE v16 v16_mul(v16 a, v16 b)
{
    return v16_of(_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi));
}

V16_INLINE v16 v16_div(v16 a, v16 b)
{
    return v16_of(_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi));
}

V16_INLINE v16 v16_fma(v16 a, v16 b, v16 c)
{
    return v16_of(_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi));
}

V16_INLINE v16 v16_max(v16 a, v16 b)
{
    return v16_of(_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi));
}

V16_INLINE v16 v16_min(v16 a, v16 b)
{
    return v16_of(_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi));
}

V16_INLINE float v16_fold_add(v16 a)
{
    __m256 h = _mm256_add_ps(a.lo, a.hi);
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}

V16_INLINE float v16_fold_max(v16 a)
{
    __m256 h = _mm256_max_ps(a.lo, a.hi);
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}

V16_INLINE v16 v16_zero_below(v16 x, v16 c, v16 a)
{
    return v16_of(_mm256_andnot_ps(_mm256_cmp_ps(x.lo, c.lo, _CMP_LT_OQ), a.lo),
                  _mm256_andnot_ps(_mm256_cmp_ps(x.hi, c.hi, _CMP_LT_OQ), a.hi));
}

V16_INLINE v16 v16_fill_from(v16 a, int32_t n, float fill)
{
    __m256 f = _mm256_set1_ps(fill);
    return v16_of(_mm256_blendv_ps(f, a.lo, _mm256_castsi256_ps(v16_lanes(n, 0))),
                  _mm256_blendv_ps(f, a.hi, _mm256_castsi256_ps(v16_lanes(n, 8))));
}

V16_INLINE __m256 v16_scale2_half(__m256 p, __m256 t)
{
    __m256i shift = _mm256_slli_epi32(_mm256_castps_si256(t), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), shift));
}

V16_INLINE v16 v16_scale2(v16 p, v16 t)
{
    return v16_of(v16_scale2_half(p.lo, t.lo), v16_scale2_half(p.hi, t.hi));
}

V16_INLINE uint32_t v16_mask(__m256 lo, __m256 hi)
{
    return (uint32_t)_mm256_movemask_ps(lo) | (uint32_t)_mm256_movemask_ps(hi) << 8;
}

V16_INLINE uint32_t v16_bad(v16 a)
{
    __m256 inf = _mm256_set1_ps(INFINITY);
    return v16_mask(_mm256_cmp_ps(a.lo, inf, _CMP_NLT_UQ), _mm256_cmp_ps(a.hi, inf, _CMP_NLT_UQ));
}

V16_INLINE uint32_t v16_equal(v16 a, v16 b)
{
    return v16_mask(_mm256_cmp_ps(a.lo, b.lo, _CMP_EQ_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_EQ_OQ));
}

V16_INLINE __m128i v16_quarter(const uint16_t *p)
{
    return _mm_loadu_si128((const __m128i *)(const void *)p);
}

V16_INLINE __m256i v16_widen(const uint16_t *p)
{
    return _mm256_cvtepu16_epi32(v16_quarter(p));
}

V16_INLINE v16 v16_load_bf16(const uint16_t *p)
{
    return v16_of_int(_mm256_slli_epi32(v16_widen(p), 16), _mm256_slli_epi32(v16_widen(p + 8), 16));
}

V16_INLINE v16 v16_load_f16(const uint16_t *p)
{
    return v16_of(_mm256_cvtph_ps(v16_quarter(p)), _mm256_cvtph_ps(v16_quarter(p + 8)));
}

/* Nearest, ties to even; NaN keeps its upper bits and becomes quiet. In 32-bit lanes. */
V16_INLINE __m256i v16_round_bf16(__m256 a)
{
    __m256i u = _mm256_castps_si256(a);
    __m256i top = _mm256_srli_epi32(u, 16);
    __m256i odd = _mm256_and_si256(top, _mm256_set1_epi32(1));
    __m256i r = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    r = _mm256_srli_epi32(r, 16);
    __m256i quiet = _mm256_or_si256(top, _mm256_set1_epi32(0x40));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(r, quiet, nan);
}

V16_INLINE void v16_store_bf16(uint16_t *p, v16 a)
{
    __m256i r = _mm256_packus_epi32(v16_round_bf16(a.lo), v16_round_bf16(a.hi));
    _mm256_storeu_si256((__m256i *)(void *)p, _mm256_permute4x64_epi64(r, 0xd8));
}

V16_INLINE void v16_store_f16(uint16_t *p, v16 a)
{
    _mm_storeu_si128((__m128i *)(void *)p, _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128((__m128i *)(void *)(p + 8), _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT));
}

V16_INLINE __m256i v16_line(const unsigned char *p)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}

V16_INLINE v16 v16_even_bf16(const unsigned char *p)
{
    return v16_of_int(_mm256_slli_epi32(v16_line(p), 16), _mm256_slli_epi32(v16_line(p + 32), 16));
}

V16_INLINE v16 v16_odd_bf16(const unsigned char *p)
{
    __m256i high = _mm256_set1_epi32((int)0xffff0000u);
    return v16_of_int(_mm256_and_si256(v16_line(p), high),
                      _mm256_and_si256(v16_line(p + 32), high));
}

V16_INLINE v16 v16_words_bf16(const float *p, int32_t n)
{
    const v16 a = v16_load_n(p, n);
    return v16_of_int(_mm256_slli_epi32(v16_round_bf16(a.lo), 16),
                      _mm256_slli_epi32(v16_round_bf16(a.hi), 16));
}

V16_INLINE v16 v16_load_f8(const unsigned char *p)
{
    const __m128i codes = _mm_loadu_si128((const __m128i *)(const void *)p);
    __m256i h = _mm256_slli_epi16(_mm256_cvtepi8_epi16(codes), 7);
    h = _mm256_and_si256(h, _mm256_set1_epi16((short)0xbfff));
    return v16_of(_mm256_cvtph_ps(_mm256_castsi256_si128(h)),
                  _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1)));
}

V16_INLINE v16 v16_nan_f8(v16 a, const unsigned char *p)
{
    const __m128i codes = _mm_loadu_si128((const __m128i *)(const void *)p);
    const __m128i low = _mm_set1_epi8(0x7f);
    const __m128i nan = _mm_cmpeq_epi8(_mm_and_si128(codes, low), low); /* all ones are a NaN */
    const __m256i lo = _mm256_cvtepi8_epi32(nan), hi = _mm256_cvtepi8_epi32(_mm_srli_si128(nan, 8));
    return v16_of(_mm256_or_ps(a.lo, _mm256_castsi256_ps(lo)),
                  _mm256_or_ps(a.hi, _mm256_castsi256_ps(hi)));
}

V16_INLINE __m256i v16_half_f8(const unsigned char *p, ptrdiff_t line, ptrdiff_t side)
{
    const __m256i codes = v16_line(p);
    __m256i h = _mm256_srai_epi16(line == 0 ? _mm256_slli_epi16(codes, 8) : codes, 4);
    h = _mm256_and_si256(h, _mm256_set1_epi16((short)0x87f0));
    return side == 0 ? _mm256_slli_epi32(h, 16)
                     : _mm256_and_si256(h, _mm256_set1_epi32((int)0xffff0000u));
}

V16_INLINE v16 v16_line_f8(const unsigned char *p, ptrdiff_t line, ptrdiff_t side)
{
    return v16_of_int(v16_half_f8(p, line, side), v16_half_f8(p + 32, line, side));
}

V16_INLINE __m256i v16_low_half(__m256 a, __m256 b)
{
    __m256i high = _mm256_slli_epi32(_mm256_castps_si256(b), 16);
    return _mm256_blend_epi16(_mm256_castps_si256(a), high, 0xaa);
}

V16_INLINE v16 v16_low_halves(v16 a, v16 b)
{
    return v16_of_int(v16_low_half(a.lo, b.lo), v16_low_half(a.hi, b.hi));
}

V16_INLINE __m256i v16_high_half(__m256 a, __m256 b)
{
    __m256i low = _mm256_srli_epi32(_mm256_castps_si256(a), 16);
    return _mm256_blend_epi16(low, _mm256_castps_si256(b), 0xaa);
}

V16_INLINE v16 v16_high_halves(v16 a, v16 b)
{
    return v16_of_int(v16_high_half(a.lo, b.lo), v16_high_half(a.hi, b.hi));
}

V16_INLINE v16 v16_swap_halves(v16 a)
{
    const __m256i lo = _mm256_castps_si256(a.lo), hi = _mm256_castps_si256(a.hi);
    return v16_of_int(_mm256_or_si256(_mm256_slli_epi32(lo, 16), _mm256_srli_epi32(lo, 16)),
                      _mm256_or_si256(_mm256_slli_epi32(hi, 16), _mm256_srli_epi32(hi, 16)));
}

V16_INLINE v16 v16_pair(const uint16_t *lo, const uint16_t *hi)
{
    __m256i a = _mm256_slli_epi32(v16_widen(hi), 16), b = _mm256_slli_epi32(v16_widen(hi + 8), 16);
    return v16_of_int(_mm256_or_si256(v16_widen(lo), a), _mm256_or_si256(v16_widen(lo + 8), b));
}

/* 8 x 8 in registers: two steps within lanes of 128 bits, one between them. */
V16_INLINE void v16_transpose8(__m256 *r)
{
    __m256 t[8];
    foreach(i, 4) {
        t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    foreach(i, 2) {
        const __m256 *q = t + 4 * i;
        r[4 * i] = _mm256_shuffle_ps(q[0], q[2], 0x44);
        r[4 * i + 1] = _mm256_shuffle_ps(q[0], q[2], 0xee);
        r[4 * i + 2] = _mm256_shuffle_ps(q[1], q[3], 0x44);
        r[4 * i + 3] = _mm256_shuffle_ps(q[1], q[3], 0xee);
    }
    foreach(i, 4) {
        const __m256 low = r[i], high = r[i + 4];
        r[i] = _mm256_permute2f128_ps(low, high, 0x20);
        r[i + 4] = _mm256_permute2f128_ps(low, high, 0x31);
    }
}

/* 16 x 16 as four quarters, the two off the diagonal changing places. */
V16_INLINE void v16_transpose(v16 *r)
{
    __m256 q[4][8];
    foreach(i, 8) {
        q[0][i] = r[i].lo;
        q[1][i] = r[i].hi;
        q[2][i] = r[i + 8].lo;
        q[3][i] = r[i + 8].hi;
    }
    foreach(i, 4)
        v16_transpose8(q[i]);
    foreach(i, 8) {
        r[i] = v16_of(q[0][i], q[2][i]);
        r[i + 8] = v16_of(q[1][i], q[3][i]);
    }
}

typedef struct {
    __m256i lo, hi;
} q16;

V16_INLINE q16 q16_set1(int32_t n)
{
    return (q16){_mm256_set1_epi32(n), _mm256_set1_epi32(n)};
}

V16_INLINE q16 q16_load(const unsigned char *p)
{
    return (q16){v16_line(p), v16_line(p + 32)};
}

V16_INLINE q16 q16_bytes(const unsigned char *p)
{
    const __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)p);
    return (q16){_mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8))};
}

/* The upper 16 bits of a are zeros, so those of n do not count. */
V16_INLINE q16 q16_times(q16 a, int32_t n)
{
    const __m256i by = _mm256_set1_epi32(n);
    return (q16){_mm256_madd_epi16(a.lo, by), _mm256_madd_epi16(a.hi, by)};
}

#define Q16_CODE8_OFFSET 0
V16_INLINE q16 q16_code8(q16 a)
{
    return a;
}

V16_INLINE q16 q16_low(q16 a)
{
    const __m256i mask = _mm256_set1_epi8(15);
    return (q16){_mm256_and_si256(a.lo, mask), _mm256_and_si256(a.hi, mask)};
}

V16_INLINE q16 q16_high(q16 a)
{
    return q16_low((q16){_mm256_srli_epi16(a.lo, 4), _mm256_srli_epi16(a.hi, 4)});
}

V16_INLINE q16 q16_e2m1(q16 a)
{
    const __m256i codes = _mm256_broadcastsi128_si256(_mm_setr_epi8(E2M1_CODES));
    return (q16){_mm256_shuffle_epi8(codes, a.lo), _mm256_shuffle_epi8(codes, a.hi)};
}

/* Products of u, 0 to 128, with s, -127 to 127: two of them fit in 16 bits. */
V16_INLINE __m256i q16_half(__m256i sum, __m256i u, __m256i s)
{
    const __m256i pairs = _mm256_maddubs_epi16(u, s);
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

/* The sign of w goes to x. */
V16_INLINE __m256i q16_half8(__m256i sum, __m256i w, __m256i x)
{
    return q16_half(sum, _mm256_sign_epi8(w, w), _mm256_sign_epi8(x, w));
}

V16_INLINE q16 q16_dot8(q16 sum, q16 w, int32_t x)
{
    const __m256i quad = _mm256_set1_epi32(x);
    return (q16){q16_half8(sum.lo, w.lo, quad), q16_half8(sum.hi, w.hi, quad)};
}

V16_INLINE q16 q16_dot4(q16 sum, q16 w, int32_t x)
{
    const __m256i quad = _mm256_set1_epi32(x);
    return (q16){q16_half(sum.lo, w.lo, quad), q16_half(sum.hi, w.hi, quad)};
}

V16_INLINE v16 q16_to_v16(q16 a)
{
    return v16_of(_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi));
}

V16_INLINE void v16_prefetch(const unsigned char *p)
{
    _mm_prefetch((const char *)p, _MM_HINT_T1);
}

V16_INLINE void v16_stream(float *p, v16 a)
{
    _mm256_stream_ps(p, a.lo);
    _mm256_stream_ps(p + 8, a.hi);
}

V16_INLINE void v16_stream_end(void)
{
    _mm_sfence();
}

#endif
