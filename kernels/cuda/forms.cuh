/* How weights become bf16 or fp16 in registers, which is what tensor cores take (product.cuh): a
 * form for each way in which they are stored. */
#ifndef TESSERA_KERNELS_CUDA_FORMS_CUH
#define TESSERA_KERNELS_CUDA_FORMS_CUH

#include <type_traits>

#include "kernels/cuda/mma.cuh"

/* A sum for each leaf, of columns [cut[i], cut[i + 1]). */
struct product {
    float *y; /* [leaves][rows, out], leaf_pitch elements from one to the next */
    const float *x;
    const unsigned char *w;
    int64_t leaf_pitch, row_bytes, groups_at; /* bytes, as in struct cuda_layout */
    int32_t codes, groups, groups_pitch;
    int32_t rows, out, x_pitch;
    int32_t scale_cols, scale_skip; /* scale_cols > 0 */
    int32_t scale_bytes, zeros; /* bytes of a row's zeros, before its scales; 0: there are none */
    int32_t leaves, cut[BACKEND_LEAVES_MAX + 1];
};

struct leaf {
    int32_t begin, end;
};

DEVICE struct leaf leaf_of(const struct product &p, int32_t i)
{
    return {p.cut[i], p.cut[i + 1]};
}

/* ---- floats ---- */

/* a and b, each as the sum of N bf16: exact up to 8 bits a piece, the last is rounded. */
template <int N, int STRIDE> DEVICE void split(uint32_t *word, float a, float b)
{
#pragma unroll
    for (int i = 0; i < N - 1; i++) {
        const uint32_t high_a = __float_as_uint(a) & 0xffff0000u,
                       high_b = __float_as_uint(b) & 0xffff0000u;
        word[i * STRIDE] = high_a >> 16 | high_b;
        a -= __uint_as_float(high_a);
        b -= __uint_as_float(high_b);
    }
    word[(N - 1) * STRIDE] = mma_pair(a, b, bf16());
}

/* a and b as pieces; two fp16 of what is below 2^15, the second in units of NEXT. */
template <int N> DEVICE void split_pair(uint32_t (&word)[N], float a, float b, bf16)
{
    split<N, 1>(word, a, b);
}

template <typename C> constexpr float NEXT = std::is_same<C, __half>::value ? 0x1p-11f : 1;

DEVICE void split_pair(uint32_t (&word)[2], float a, float b, __half)
{
    constexpr float TIMES = 1 / NEXT<__half>;
    pack<__half, 2> first;
    word[0] = mma_pair(a, b, __half());
    memcpy(&first, word, sizeof first);
    word[1] =
        mma_pair((a - to_float(first.e[0])) * TIMES, (b - to_float(first.e[1])) * TIMES, __half());
}

/* Scales of a form: none, or unpack has applied them (GROUPED: from many), or who calls it is to.
 */
enum scales { NONE, GROUPED, PER_ROW, PER_STEP };

/* What pieces are, of x and of the weight. */
struct of_bf16 {
    typedef bf16 element;
};

/* What unpack is to know of an output's vector that begins with column k, found once: nothing. */
struct unscaled : of_bf16 {
    struct ready {
    };
    static DEVICE struct ready prepare(const struct product &, struct leaf, int32_t, int32_t)
    {
        return {};
    }
};

/* A form has K elements a vector; four of them, the sub-th, become PIECES times two words: elements
 * 0 and MATE, then the others. X_PIECES: of x. AT_ONCE: rows of x, most. */
struct form_bf16 : unscaled {
    static constexpr int K = 8, PIECES = 1, X_PIECES = 2, MATE = 1, AT_ONCE = 16;
    static constexpr enum scales SCALES = NONE;
    static DEVICE void unpack(uint32_t (&to)[PIECES][2], const uint32_t *v, int sub, ready)
    {
        to[0][0] = v[2 * sub];
        to[0][1] = v[2 * sub + 1];
    }
};

struct form_f16 : unscaled {
    static constexpr int K = 8, PIECES = 2, X_PIECES = 2, MATE = 1, AT_ONCE = 16;
    static constexpr enum scales SCALES = NONE;
    static DEVICE void unpack(uint32_t (&to)[PIECES][2], const uint32_t *v, int sub, ready)
    {
        pack<__half, 4> h;
        memcpy(&h, v + 2 * sub, sizeof h);
        split<PIECES, 2>(&to[0][0], to_float(h.e[0]), to_float(h.e[1]));
        split<PIECES, 2>(&to[0][1], to_float(h.e[2]), to_float(h.e[3]));
    }
};

struct form_f32 : unscaled {
    static constexpr int K = 4, PIECES = 3, X_PIECES = 3, MATE = 1, AT_ONCE = 16;
    static constexpr enum scales SCALES = NONE;
    static DEVICE void unpack(uint32_t (&to)[PIECES][2], const uint32_t *v, int, ready)
    {
        split<PIECES, 2>(&to[0][0], __uint_as_float(v[0]), __uint_as_float(v[1]));
        split<PIECES, 2>(&to[0][1], __uint_as_float(v[2]), __uint_as_float(v[3]));
    }
};

#ifndef MMA_EMULATED
/* (a & b) | c as the one instruction that it is; compilers make two of it where b and c are known.
 */
DEVICE uint32_t mma_and_or(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t y;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(y) : "r"(a), "r"(b), "r"(c));
    return y;
}
#endif

DEVICE uint32_t mma_plus(uint32_t a, uint32_t b)
{
    return mma_times_plus(a, 0x3f803f80u, b);
}

#ifndef MMA_EMULATED
/* The line of the cache that this is in will be needed. */
DEVICE void prefetch_line(const void *at)
{
    asm volatile("prefetch.global.L1 [%0];" ::"l"(at));
}
#endif

/* E4M3 is an fp16 as it is, which newer devices have an instruction for; so pieces of x are, too.
 * Others put its bits where those of an fp16 mean 2^8 times LESS, which a row's unit makes up for.
 * Weights have no NaN. */
#if defined(MMA_EMULATED) || __CUDA_ARCH__ >= 890
#define F8_MATE 1
#define F8_LESS 1.0f
DEVICE void f8_unpack(uint32_t (&to)[2], uint32_t codes)
{
    mma_widen(to, codes, e4m3(), __half());
}
#else
#define F8_MATE 2
#define F8_LESS 0x1p8f
DEVICE void f8_unpack(uint32_t (&to)[2], uint32_t codes)
{
    to[0] = (codes << 8 & 0x80008000u) | (codes << 7 & 0x3f803f80u);
    to[1] = (codes & 0x80008000u) | (codes >> 1 & 0x3f803f80u);
}
#endif

template <enum scales WHICH> struct form_f8 : unscaled {
    typedef __half element;
    static constexpr int K = 16, PIECES = 1, X_PIECES = 2, MATE = F8_MATE, AT_ONCE = 16;
    static constexpr enum scales SCALES = WHICH;
    static DEVICE void unpack(uint32_t (&to)[PIECES][2], const uint32_t *v, int sub, ready)
    {
        f8_unpack(to[0], v[sub]);
    }
};

/* One beyond the end stands for the last. */
DEVICE const unsigned char *output_row(const struct product &p, int32_t o)
{
    return p.w + (o < p.out ? o : p.out - 1) * p.row_bytes;
}

/* Its zeros and scales. */
DEVICE const unsigned char *groups_row(const struct product &p, int32_t o)
{
    return p.w + p.groups_at + (int64_t)(o < p.out ? o : p.out - 1) * p.groups_pitch;
}

/* Of an output's column, which may lie behind the leaf. */
DEVICE float f8_scale(const struct product &p, struct leaf l, int32_t o, int32_t k)
{
    const int32_t last = k < l.end ? k : l.end - 1;
    const float *scale = (const float *)groups_row(p, o);
    return scale[(p.scale_skip + last) / p.scale_cols];
}

/* The one of all columns. */
DEVICE float row_scale(const struct product &p, int32_t o)
{
    return *(const float *)groups_row(p, o);
}

/* Scales that change within a step, at columns that are multiples of RUN. */
template <int RUN> struct form_f8_mixed : of_bf16 {
    static constexpr int K = 16, PIECES = 2, X_PIECES = 2, MATE = 2;
    static constexpr int AT_ONCE = RUN == 1 ? 8 : 16; /* registers are too few for more */
    static constexpr enum scales SCALES = NONE;
    struct ready {
        const struct product *p;
        struct leaf l;
        int32_t o, k;
        DEVICE float scale(int at) const
        {
            return f8_scale(*p, l, o, k + at / RUN * RUN);
        }
    };
    static DEVICE ready prepare(const struct product &p, struct leaf l, int32_t o, int32_t k)
    {
        return {&p, l, o, k};
    }
    static DEVICE void unpack(uint32_t (&to)[PIECES][2], const uint32_t *v, int sub, ready r)
    {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t pair = f8_pair(i == 0 ? v[sub] << 8 : v[sub]);
            const int at = 4 * sub + i;
            split<PIECES, 2>(&to[0][i], __uint_as_float(pair << 16) * r.scale(at),
                             __uint_as_float(pair & 0xffff0000u) * r.scale(at + MATE));
        }
    }
};

/* ---- integers in groups ---- */

/* Of a column, which may lie behind the leaf. */
DEVICE uint32_t group_of(const struct product &p, struct leaf l, int32_t k)
{
    return (uint32_t)(p.scale_skip + (k < l.end ? k : l.end - 1)) / BACKEND_GROUP;
}

/* A bf16 twice. */
DEVICE uint32_t twice(uint32_t half)
{
    return half * 0x00010001u;
}

/* What two columns of a group have, read and made of that: of E2M1 the scale; of integers the
 * scale, what is added to it, and what takes 128 and a zero off. Two bf16 each. */
struct e2m1_group {
    typedef uint32_t words;
    uint32_t scale;
    static DEVICE words read(const struct product &, const unsigned char *groups, uint32_t group)
    {
        return groups[group];
    }
    DEVICE void take(words w)
    {
        scale = w * 0x00800080u;
    }
    DEVICE void look(const struct product &p, struct leaf l, int32_t o, int32_t k)
    {
        take(read(p, groups_row(p, o), group_of(p, l, k)));
    }
};

#define INT4_CENTRE 0xc308c308u /* -(128 + 8) */

struct int_group {
    struct words {
        uint32_t scales, zero;
    };
    uint32_t scale, more, centre;
    static DEVICE words read(const struct product &p, const unsigned char *groups, uint32_t group)
    {
        const unsigned char *scales = groups + p.zeros;
        return {p.scale_bytes == 4 ? ((const uint32_t *)scales)[group]
                                   : ((const uint16_t *)scales)[group],
                p.zeros > 0 ? groups[group] : 8u};
    }
    DEVICE void take(words w)
    {
        scale = twice(w.scales & 0xffffu);
        more = twice(w.scales >> 16);
        centre = twice(0xc300u | w.zero);
    }
    DEVICE void look(const struct product &p, struct leaf l, int32_t o, int32_t k)
    {
        take(read(p, groups_row(p, o), group_of(p, l, k)));
    }
    DEVICE float as_float() const
    {
        return __uint_as_float(scale << 16) + __uint_as_float(more << 16);
    }
};

/* The groups of a vector's columns: one or, MIXED, those before `change` and from there on. */
template <typename G, bool MIXED> struct groups_of {
    G first, next;
    int32_t change;
    DEVICE void look(const struct product &p, struct leaf l, int32_t o, int32_t k, int32_t vector)
    {
        first.look(p, l, o, k);
        change = MIXED ? vector - (p.scale_skip + k) % vector : vector;
        if (MIXED)
            next.look(p, l, o, k + vector - 1);
    }
    /* Of columns `at` and the next. */
    DEVICE uint32_t pair(uint32_t G::*which, int at) const
    {
        const uint32_t a = MIXED && at >= change ? next.*which : first.*which;
        const uint32_t b = MIXED && at + 1 >= change ? next.*which : first.*which;
        return MIXED ? (a & 0xffffu) | (b & 0xffff0000u) : a;
    }
};

/* A vector has as many columns as a scale, which changes with it or, MIXED, anywhere in it. A
 * code's exponent lands where it counts 2^-126 too few. */
template <bool MIXED> struct form_e2m1 : of_bf16 {
    static constexpr int K = BACKEND_GROUP, PIECES = 1, X_PIECES = 2, MATE = 1;
    static constexpr int AT_ONCE = MIXED ? 8 : 16; /* as registers allow */
    static constexpr enum scales SCALES = GROUPED;
    typedef struct groups_of<e2m1_group, MIXED> ready;
    static DEVICE ready prepare(const struct product &p, struct leaf l, int32_t o, int32_t k)
    {
        ready r;
        r.look(p, l, o, k, K);
        return r;
    }
    static DEVICE void unpack(uint32_t (&to)[PIECES][2], const uint32_t *v, int sub, const ready &r)
    {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t codes = v[sub / 2] >> (8 * (sub % 2) + 4 * i);
            const uint32_t pair = (codes & 0x00080008u) << 12 | (codes & 0x00070007u) << 6;
            to[0][i] = mma_times(mma_times(pair, 0x7e807e80u),
                                 r.pair(&e2m1_group::scale, 4 * sub + 2 * i));
        }
    }
};

/* The nth two codes of a vector as bf16, of 16: in the last bits of 128 they are so much more,
 * which `centre` takes off, together with their zero. */
DEVICE uint32_t int4_pair(const uint32_t *v, int nth, uint32_t centre)
{
    return mma_plus(mma_and_or(v[nth / 4] >> 4 * (nth % 4), 0x000f000fu, 0x43004300u), centre);
}

/* A code in the last bits of 128 as bf16 is so much more, which `centre` takes off. Codes times
 * scales are rounded to bf16; what is added to a scale has 3 bits, so that its product is exact,
 * and the sum is rounded once. */
template <bool MIXED> struct form_int4 : of_bf16 {
    static constexpr int K = BACKEND_GROUP, PIECES = 1, X_PIECES = 2, MATE = 1;
    static constexpr int AT_ONCE = MIXED ? 8 : 16; /* as registers allow */
    static constexpr enum scales SCALES = GROUPED;
    typedef struct groups_of<int_group, MIXED> ready;
    static DEVICE ready prepare(const struct product &p, struct leaf l, int32_t o, int32_t k)
    {
        ready r;
        r.look(p, l, o, k, K);
        return r;
    }
    static DEVICE void unpack(uint32_t (&to)[PIECES][2], const uint32_t *v, int sub, const ready &r)
    {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int at = 4 * sub + 2 * i;
            const uint32_t pair = int4_pair(v, 2 * sub + i, r.pair(&int_group::centre, at));
            to[0][i] = mma_times_plus(pair, r.pair(&int_group::scale, at),
                                      mma_times(pair, r.pair(&int_group::more, at)));
        }
    }
};

/* A code plus 128 in the last bits of 2^23, so that taking both off leaves it. */
DEVICE float int8_code(uint32_t codes, int i)
{
    return __uint_as_float(0x4b000000u | (codes >> 8 * i & 0xffu)) - 8388736.0f;
}

/* A vector has half the columns of a scale, which changes with it or, MIXED, anywhere in it. */
template <bool MIXED> struct form_int8 : of_bf16 {
    static constexpr int K = 16, PIECES = 1, X_PIECES = 2, MATE = 1;
    static constexpr int AT_ONCE = MIXED ? 8 : 16; /* as registers allow */
    static constexpr enum scales SCALES = GROUPED;
    struct ready {
        float first, next;
        int32_t change;
        DEVICE float scale(int at) const
        {
            return MIXED && at >= change ? next : first;
        }
    };
    static DEVICE ready prepare(const struct product &p, struct leaf l, int32_t o, int32_t k)
    {
        struct groups_of<int_group, MIXED> g;
        g.look(p, l, o, k, K);
        return {g.first.as_float(), MIXED ? g.next.as_float() : 0, g.change};
    }
    static DEVICE void unpack(uint32_t (&to)[PIECES][2], const uint32_t *v, int sub, const ready &r)
    {
        const uint32_t codes = v[sub] ^ 0x80808080u;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int at = 4 * sub + 2 * i;
            to[0][i] = mma_pair(int8_code(codes, 2 * i) * r.scale(at),
                                int8_code(codes, 2 * i + 1) * r.scale(at + 1), bf16());
        }
    }
};

#endif
