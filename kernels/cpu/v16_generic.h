/* Sixteen floats in plain C: states what every v16 operation means. Included by one .c only. */
#ifndef TESSERA_KERNELS_CPU_V16_GENERIC_H
#define TESSERA_KERNELS_CPU_V16_GENERIC_H

#include "config/dtype.h"
#include "kernels/cpu/e2m1.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#define V16_NAME "cpu-generic"
#define V16_ROWS 12 /* rows of one register block of linear */
#define V16_COLS 2  /* v16 per row of it */
#define V16_WIDE1 2 /* panels at once for 1, 2, 3 and 4 rows */
#define V16_WIDE2 2
#define V16_WIDE3 1
#define V16_WIDE4 1
#define V16_BF16_WORD                                                                              \
    1              /* columns in a word of x, where the weight is BF16: 1, or 2 and v16_dot_bf16 */
#define V16_KEYS 1 /* blocks of keys, and vectors of values, per head in flight */
#define V16_INLINE static inline
#define V16_TEMPLATE static __attribute__((noinline)) /* the others specialise */
/* A loop that the others unroll, so that its arrays of v16 are registers. */
/* NOLINTNEXTLINE(bugprone-macro-parentheses): i is declared here */
#define foreach(i, n) for (ptrdiff_t i = 0; i < (n); i++)

typedef struct {
    float l[16];
} v16;

#define V16_EACH(expr)                                                                             \
    v16 r;                                                                                         \
    for (ptrdiff_t i = 0; i < 16; i++)                                                             \
        r.l[i] = (expr);                                                                           \
    return r

V16_INLINE uint32_t v16_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

V16_INLINE float v16_float(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

V16_INLINE v16 v16_set1(float f)
{
    V16_EACH(f);
}

V16_INLINE v16 v16_zero(void)
{
    return v16_set1(0.0f);
}

V16_INLINE v16 v16_load(const float *p)
{
    v16 r;
    memcpy(r.l, p, sizeof r.l);
    return r;
}

/* The first n elements, zeros behind. */
V16_INLINE v16 v16_load_n(const float *p, int32_t n)
{
    V16_EACH(i < n ? p[i] : 0.0f);
}

V16_INLINE void v16_store(float *p, v16 a)
{
    memcpy(p, a.l, sizeof a.l);
}

V16_INLINE void v16_store_n(float *p, v16 a, int32_t n)
{
    for (int i = 0; i < n; i++)
        p[i] = a.l[i];
}

V16_INLINE v16 v16_add(v16 a, v16 b)
{
    V16_EACH(a.l[i] + b.l[i]);
}

V16_INLINE v16 v16_sub(v16 a, v16 b)
{
    V16_EACH(a.l[i] - b.l[i]);
}

V16_INLINE v16 v16_mul(v16 a, v16 b)
{
    V16_EACH(a.l[i] * b.l[i]);
}

V16_INLINE v16 v16_div(v16 a, v16 b)
{
    V16_EACH(a.l[i] / b.l[i]);
}

/* a * b + c, rounded once */
V16_INLINE v16 v16_fma(v16 a, v16 b, v16 c)
{
    V16_EACH(fmaf(a.l[i], b.l[i], c.l[i]));
}

/* b where either is NaN */
V16_INLINE v16 v16_max(v16 a, v16 b)
{
    V16_EACH(a.l[i] > b.l[i] ? a.l[i] : b.l[i]);
}

V16_INLINE v16 v16_min(v16 a, v16 b)
{
    V16_EACH(a.l[i] < b.l[i] ? a.l[i] : b.l[i]);
}

/* Stride 8, 4, 2, 1. */
V16_INLINE float v16_fold_add(v16 a)
{
    for (int s = 8; s > 0; s /= 2)
        for (int i = 0; i < s; i++)
            a.l[i] = a.l[i] + a.l[i + s];
    return a.l[0];
}

V16_INLINE float v16_fold_max(v16 a)
{
    for (int s = 8; s > 0; s /= 2)
        for (int i = 0; i < s; i++)
            a.l[i] = a.l[i] > a.l[i + s] ? a.l[i] : a.l[i + s];
    return a.l[0];
}

/* +0 where x < c, else a */
V16_INLINE v16 v16_zero_below(v16 x, v16 c, v16 a)
{
    V16_EACH(x.l[i] < c.l[i] ? 0.0f : a.l[i]);
}

/* Lanes n and above replaced by fill. */
V16_INLINE v16 v16_fill_from(v16 a, int32_t n, float fill)
{
    V16_EACH(i < n ? a.l[i] : fill);
}

/* p * 2^n, where the low bits of t hold n. */
V16_INLINE v16 v16_scale2(v16 p, v16 t)
{
    V16_EACH(v16_float(v16_bits(p.l[i]) + (v16_bits(t.l[i]) << 23)));
}

/* Bit i: lane i is NaN or +inf. */
V16_INLINE uint32_t v16_bad(v16 a)
{
    uint32_t m = 0;
    for (int i = 0; i < 16; i++)
        m |= (uint32_t) !(a.l[i] < INFINITY) << i;
    return m;
}

V16_INLINE uint32_t v16_equal(v16 a, v16 b)
{
    uint32_t m = 0;
    for (int i = 0; i < 16; i++)
        m |= (uint32_t)(a.l[i] == b.l[i]) << i;
    return m;
}

V16_INLINE v16 v16_load_bf16(const uint16_t *p)
{
    V16_EACH(dtype_from_bf16(p[i]));
}

V16_INLINE v16 v16_load_f16(const uint16_t *p)
{
    V16_EACH(dtype_from_f16(p[i]));
}

V16_INLINE void v16_store_bf16(uint16_t *p, v16 a)
{
    for (int i = 0; i < 16; i++)
        p[i] = dtype_to_bf16(a.l[i]);
}

V16_INLINE void v16_store_f16(uint16_t *p, v16 a)
{
    for (int i = 0; i < 16; i++)
        p[i] = dtype_to_f16(a.l[i]);
}

/* Of 32 interleaved bf16: the even places, the odd places. */
V16_INLINE v16 v16_even_bf16(const unsigned char *p)
{
    uint16_t u[32];
    memcpy(u, p, sizeof u);
    V16_EACH(dtype_from_bf16(u[2 * i]));
}

V16_INLINE v16 v16_odd_bf16(const unsigned char *p)
{
    uint16_t u[32];
    memcpy(u, p, sizeof u);
    V16_EACH(dtype_from_bf16(u[2 * i + 1]));
}

/* n floats, <= 16 * V16_BF16_WORD, zeros behind: rounded to BF16, then in words. Of two in a word
 * the first has the upper half. */
V16_INLINE v16 v16_words_bf16(const float *p, int32_t n)
{
    V16_EACH(i < n ? dtype_from_bf16(dtype_to_bf16(p[i])) : 0.0f);
}

/* Sixteen E4M3 codes times 2^-8: the bits of the halves that mean that. NaN codes are not known.
 * (Bits put straight into a float's places would do, but subnormal floats are slow to multiply.) */
V16_INLINE v16 v16_load_f8(const unsigned char *p)
{
    V16_EACH(dtype_from_f16((uint16_t)((p[i] & 0x80u) << 8 | (p[i] & 0x7fu) << 7)));
}

/* a, with NaN where the code is one. */
V16_INLINE v16 v16_nan_f8(v16 a, const unsigned char *p)
{
    V16_EACH((p[i] & 0x7fu) == DTYPE_E4M3_NAN ? NAN : a.l[i]);
}

/* Half a line of a pair of E4M3 lines, times 2^-120: the codes' bits in a float's places. NaN codes
 * are not known. Subnormal codes are subnormal floats, which some processors multiply slowly; they
 * are rare, one in thousands of a normal distribution. */
V16_INLINE v16 v16_line_f8(const unsigned char *p, ptrdiff_t line, ptrdiff_t side)
{
    p += 2 * side + line;
    V16_EACH(v16_float((p[4 * i] & 0x80u) << 24 | (p[4 * i] & 0x7fu) << 20));
}

/* Lanes of 32 bits: the low or the high halves of b << 16 | those of a. */
V16_INLINE v16 v16_low_halves(v16 a, v16 b)
{
    V16_EACH(v16_float(v16_bits(b.l[i]) << 16 | (v16_bits(a.l[i]) & 0xffffu)));
}

V16_INLINE v16 v16_high_halves(v16 a, v16 b)
{
    V16_EACH(v16_float((v16_bits(b.l[i]) & 0xffff0000u) | v16_bits(a.l[i]) >> 16));
}

/* Lanes of 32 bits. */
V16_INLINE v16 v16_swap_halves(v16 a)
{
    V16_EACH(v16_float(v16_bits(a.l[i]) << 16 | v16_bits(a.l[i]) >> 16));
}

/* Lanes of 32 bits, hi << 16 | lo. */
V16_INLINE v16 v16_pair(const uint16_t *lo, const uint16_t *hi)
{
    V16_EACH(v16_float((uint32_t)hi[i] << 16 | lo[i]));
}

V16_INLINE void v16_transpose(v16 *r)
{
    for (int i = 0; i < 16; i++) {
        for (int j = 0; j < i; j++) {
            uint32_t u = v16_bits(r[i].l[j]);
            memcpy(&r[i].l[j], &r[j].l[i], sizeof u);
            memcpy(&r[j].l[i], &u, sizeof u);
        }
    }
}

/* Sixteen integers of 32 bits, or 64 codes: four in each. */
typedef struct {
    uint32_t l[16];
} q16;

#define Q16_EACH(expr)                                                                             \
    q16 r;                                                                                         \
    for (ptrdiff_t i = 0; i < 16; i++)                                                             \
        r.l[i] = (expr);                                                                           \
    return r

V16_INLINE q16 q16_set1(int32_t n)
{
    Q16_EACH((uint32_t)n);
}

V16_INLINE q16 q16_load(const unsigned char *p)
{
    q16 r;
    memcpy(r.l, p, sizeof r.l);
    return r;
}

/* Sixteen bytes, 0 to 255; those times n, -32768 to 32767. */
V16_INLINE q16 q16_bytes(const unsigned char *p)
{
    Q16_EACH(p[i]);
}

V16_INLINE q16 q16_times(q16 a, int32_t n)
{
    Q16_EACH(a.l[i] * (uint32_t)n);
}

/* Codes of 8 bits as q16_dot8 wants them: each plus this. */
#define Q16_CODE8_OFFSET 0
V16_INLINE q16 q16_code8(q16 a)
{
    return a;
}

/* Codes of 4 bits: the low half of each byte, the high half. */
V16_INLINE q16 q16_low(q16 a)
{
    Q16_EACH(a.l[i] & 0x0f0f0f0fu);
}

V16_INLINE q16 q16_high(q16 a)
{
    Q16_EACH(a.l[i] >> 4 & 0x0f0f0f0fu);
}

/* Those as F4_E2M1 has them: E2M1_CODES. */
V16_INLINE q16 q16_e2m1(q16 a)
{
    static const uint8_t codes[16] = {E2M1_CODES};
    Q16_EACH((uint32_t)codes[a.l[i] & 15] | (uint32_t)codes[a.l[i] >> 8 & 15] << 8 |
             (uint32_t)codes[a.l[i] >> 16 & 15] << 16 | (uint32_t)codes[a.l[i] >> 24 & 15] << 24);
}

V16_INLINE int32_t q16_byte(uint32_t word, int at)
{
    return (int8_t)(word >> 8 * at & 0xffu);
}

/* sum + the products of four codes of w with those of x; of 4 bits: codes of w are 0 to 15. */
V16_INLINE q16 q16_dot8(q16 sum, q16 w, int32_t x)
{
    for (ptrdiff_t i = 0; i < 16; i++)
        for (int b = 0; b < 4; b++)
            sum.l[i] += (uint32_t)(q16_byte(w.l[i], b) * q16_byte((uint32_t)x, b));
    return sum;
}

V16_INLINE q16 q16_dot4(q16 sum, q16 w, int32_t x)
{
    return q16_dot8(sum, w, x);
}

V16_INLINE v16 q16_to_v16(q16 a)
{
    V16_EACH((float)(int32_t)a.l[i]);
}

V16_INLINE void v16_prefetch(const unsigned char *p)
{
    __builtin_prefetch(p, 0, 2);
}

/* A store to a multiple of 64 bytes that need not stay in the cache; v16_stream_end before others
 * may read it. */
V16_INLINE void v16_stream(float *p, v16 a)
{
    v16_store(p, a);
}

V16_INLINE void v16_stream_end(void)
{
}

#endif
