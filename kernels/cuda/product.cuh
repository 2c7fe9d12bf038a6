/* What gemv.cu and gemm.cu share: y[T, out] = x[T, in] w[out, in]^T by tensor cores, such that a
 * row has the same bits alone, among few and among many.
 *
 * From 6 rows on fp32 arithmetic would take longer than the memory, so tensor cores multiply, and
 * for one row too. They take bf16. A weight is the sum of one bf16, two (fp16) or three (fp32). So
 * is x: of three with fp32 weights, which is all of it, of two with the others, which is 16 bits of
 * it. Two pieces of 8 rows are the 16 rows of one product; those of up to 4 rows its 8 columns, and
 * 16 outputs its rows: the bits are the same (gemv.cuh). E4M3 before its scale is one fp16, and
 * x two. Where its scales change within a step, codes times scales are cut to two bf16; those
 * of E2M1, whose scales are powers of two, are bf16, and those of integers are rounded to it.
 * Products that count beside those are added up in fp32.
 *
 * The order of a result's sum: a step is 64 bytes of a row of the weight, and a sum of its own, so
 * that the tensor cores need not wait for the one before; step s belongs to turn s % TURNS; a turn
 * adds its steps in ascending order, and the turns are added in theirs. Which k a lane's elements
 * have is free as long as those of w and x agree: so a lane takes 16 bytes of a row for several
 * products, instead of the scattered pairs of the manual. */
#ifndef TESSERA_KERNELS_CUDA_PRODUCT_CUH
#define TESSERA_KERNELS_CUDA_PRODUCT_CUH

#include "kernels/cuda/forms.cuh"

#define TURNS 8
#define COLUMNS 8                    /* outputs of a product of tensor cores */
#define GROUP 8                      /* rows of x of one, in two pieces */
#define PART 4                       /* lanes that share a row of the weight */
#define F8_STEP (CUDA_VECTOR * PART) /* columns of a step of E4M3 */

/* ---- rows of several weights ---- */

/* Which rows a block has: all of one weight, */
struct alone {
    bool adds; /* results to what y holds */
};

/* or those that take an expert. A pair is a row and one of its experts, row * chosen + place. */
struct tile {
    int32_t expert, begin, rows; /* pairs order[begin ..] */
};

struct mixture {
    const unsigned char *const *weight; /* [experts] of one shape */
    const int32_t *expert;              /* of each pair */
    int32_t rows, chosen, experts;
    int32_t together;          /* pairs that have a row of x in common */
    int32_t skip;              /* rows of each expert that others have seen to */
    const struct tile *tile;   /* nullptr: there are few rows, among which a block finds its own */
    const int32_t *tiles;      /* how many */
    const int32_t *order;      /* [pairs] by expert */
    int32_t tile_rows, places; /* no more than so many in a tile, and tiles */
};

/* ---- copies ---- */

/* Columns of 4 bits from k on, wherever that is in a word, as a vector that begins there. */
DEVICE void gather_nibbles(pack<uint32_t, 4> *to, struct leaf l, const unsigned char *row,
                           int32_t k)
{
    pack<uint32_t, 4> v = {};
    for (int32_t i = 0; i < 32 && k + i < l.end; i++) {
        const uint32_t word = ((const uint32_t *)row)[(k + i) / 8];
        const uint32_t code = word >> (16 * ((k + i) % 2) + 4 * ((k + i) % 8 / 2)) & 15u;
        v.e[i / 8] |= code << (16 * (i % 2) + 4 * (i % 8 / 2));
    }
    memcpy(to, &v, sizeof v);
}

/* The vector of a row of the weight that begins with column k, into shared memory; zeros behind the
 * leaf. ALIGNED: all vectors begin at their size, as those of the first leaf do. */
template <typename F, bool ALIGNED>
DEVICE void copy_weight(pack<uint32_t, 4> *to, const struct product &p, struct leaf l,
                        const unsigned char *row, int32_t k)
{
    const int64_t at = (int64_t)k * CUDA_VECTOR / F::K;
    if constexpr (!ALIGNED && F::K > CUDA_VECTOR) {
        if (k % F::K != 0) {
            gather_nibbles(to, l, row, k);
            return;
        }
    } else if constexpr (!ALIGNED) {
        if (at % CUDA_VECTOR != 0) {
            pack<unsigned char, CUDA_VECTOR> v;
            for (int b = 0; b < CUDA_VECTOR; b++)
                v.e[b] = k < l.end && at + b < p.codes ? row[at + b] : 0;
            memcpy(to, &v, sizeof v);
            return;
        }
    }
    mma_copy(to, row + at, k < l.end);
}

/* ---- a step ---- */

/* fp16 has a small range: what a row has in a step is divided by a power of two, its unit, that
 * takes the largest number to 2^14 or more, unless it is below 2^-112. Pieces are 22 bits of it
 * then, and of what is up to 2^28 times less. */
template <typename F> constexpr bool HAS_UNITS = std::is_same<typename F::element, __half>::value;

/* most: the largest magnitude; NaN leaves it to the others. */
DEVICE float unit_of(float most)
{
    const uint32_t power = __float_as_uint(fmaxf(most, 0x1p-112f)) & 0x7f800000u;
    return __uint_as_float(power - (14u << 23));
}

/* 1 / unit */
DEVICE float inverse_of(float unit)
{
    return __uint_as_float((254u << 23) - __float_as_uint(unit));
}

DEVICE float most_of(float most, const float (&f)[4])
{
    return fmaxf(fmaxf(fmaxf(most, fabsf(f[0])), fmaxf(fabsf(f[1]), fabsf(f[2]))), fabsf(f[3]));
}

/* Of a lane's columns of a row to those of all PART lanes that share it. */
DEVICE float unit_of_row(float most)
{
    return unit_of(reduce_lanes<PART>(most, [](float a, float b) { return fmaxf(a, b); }));
}

template <typename F> constexpr int X_PAIRS = (F::X_PIECES + 1) / 2; /* of pieces */

/* Four elements of a row of x, or, if it has units, in its unit: a lane's part of the factor that
 * each pair of pieces is. */
template <typename F>
DEVICE void split_x(uint32_t (&row)[X_PAIRS<F>][4], const float (&x)[4], float unit)
{
    uint32_t word[2][F::X_PIECES];
    float f[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        f[i] = HAS_UNITS<F> ? x[i] * inverse_of(unit) : x[i];
    split_pair(word[0], f[0], f[F::MATE], typename F::element());
    split_pair(word[1], f[3 - F::MATE], f[3], typename F::element());
#pragma unroll
    for (int i = 0; i < X_PAIRS<F> * 4; i++)
        row[i / 2 / 2][i % 2 * 2 + i / 2 % 2] = i < F::X_PIECES * 2 ? word[i % 2][i / 2] : 0;
}

/* The outputs of a block, COLUMNS for each of a lane's: neighbours, */
struct neighbours {
    int32_t first;
    DEVICE int32_t at(int o) const
    {
        return first + o * COLUMNS;
    }
};

/* or from HALF on others, which are neighbours, too. */
template <int HALF> struct halves {
    int32_t first, others;
    DEVICE int32_t at(int o) const
    {
        return o < HALF ? first + o * COLUMNS : others + (o - HALF) * COLUMNS;
    }
};

/* sum[g][o] += one step: the vectors v of the lane's outputs, times x from column k on, of which
 * take(row, g, sub) gives the sub-th four elements of the lane's row in group g, split. Of the four
 * sums the first two are those of one piece of x, the others of the next. */
template <typename F, int GROUPS, int OUTPUTS, typename Outputs, typename Take>
DEVICE void multiply(float (&sum)[GROUPS][OUTPUTS][4], const pack<uint32_t, 4> (&v)[OUTPUTS],
                     const struct product &p, struct leaf l, const Outputs &out, int32_t k,
                     Take take)
{
    typename F::ready ready[OUTPUTS];
#pragma unroll
    for (int o = 0; o < OUTPUTS; o++)
        ready[o] = F::prepare(p, l, out.at(o) + (int32_t)threadIdx.x % WARP / PART, k);
#pragma unroll
    for (int sub = 0; sub < F::K / 4; sub++) {
        uint32_t rows[GROUPS][X_PAIRS<F>][4];
#pragma unroll
        for (int g = 0; g < GROUPS; g++)
            take(rows[g], g, sub);
#pragma unroll
        for (int o = 0; o < OUTPUTS; o++) {
            uint32_t to[F::PIECES][2];
            F::unpack(to, v[o].e, sub, ready[o]);
#pragma unroll
            for (int j = F::PIECES - 1; j >= 0; j--) /* what is small first */
#pragma unroll
                for (int i = X_PAIRS<F> - 1; i >= 0; i--)
#pragma unroll
                    for (int g = 0; g < GROUPS; g++)
                        if (j + 2 * i < 3)
                            mma_multiply(sum[g][o], rows[g][i], to[j][0], to[j][1],
                                         typename F::element());
        }
    }
}

/* Output i of those that a lane sums up, of which a product leaves it two: 2 * j and the next. */
template <typename Outputs> DEVICE int32_t output_of(const Outputs &out, int i)
{
    return out.at(i / 2) + (int32_t)threadIdx.x % PART * 2 + i % 2;
}

/* What the step that begins with column k is to be multiplied by, of output o. */
template <typename F>
DEVICE float step_scale(const struct product &p, struct leaf l, int32_t o, int32_t k)
{
    return F::SCALES == PER_STEP ? f8_scale(p, l, o, k) : 1.0f;
}

/* That of a lane's outputs. */
template <typename F, int OUTPUTS> struct step_scales {
    float of[OUTPUTS * 2];
    template <typename Outputs>
    DEVICE void look(const struct product &p, struct leaf l, const Outputs &out, int32_t k)
    {
#pragma unroll
        for (int i = 0; i < OUTPUTS * 2; i++)
            of[i] = step_scale<F>(p, l, output_of(out, i), k);
    }
};

/* What sums of a row's pieces are multiplied by. */
template <typename F> DEVICE float times_of(float unit)
{
    return HAS_UNITS<F> ? unit * F8_LESS : 1.0f;
}

/* sum += a step's sums of two pieces. */
template <typename F> DEVICE void add_both(float *sum, float first, float second, float scale)
{
    *sum = fmaf(fmaf(second, NEXT<typename F::element>, first), scale, *sum);
}

/* sum += part, in the units of the lane's rows. */
template <typename F, int GROUPS, int OUTPUTS>
DEVICE void add_step(float (&sum)[GROUPS][OUTPUTS * 2], const float (&part)[GROUPS][OUTPUTS][4],
                     const struct step_scales<F, OUTPUTS> &scale, const float (&unit)[GROUPS])
{
#pragma unroll
    for (int i = 0; i < OUTPUTS * 2; i++) {
#pragma unroll
        for (int g = 0; g < GROUPS; g++) {
            const float *pieces = part[g][i / 2] + i % 2;
            add_both<F>(&sum[g][i], pieces[0], pieces[2], scale.of[i] * times_of<F>(unit[g]));
        }
    }
}

/* ---- the host's part ---- */

/* y = x w^T, where w has this shape. Without leaves: one for all columns. */
static inline struct product product_of(const struct weight_spec *s, const unsigned char *w,
                                        const void *x, void *y, int32_t rows)
{
    const struct cuda_layout layout = cuda_layout_of(s);
    struct product p = {};
    CHECK(!dtype_is_int(s->dtype) || s->scale_cols == BACKEND_GROUP);
    p.y = (float *)y;
    p.x = (const float *)x;
    p.w = w;
    p.row_bytes = (int64_t)layout.pitch;
    p.groups_at = (int64_t)layout.groups_at;
    p.codes = (int32_t)layout.codes;
    p.groups = (int32_t)layout.groups;
    p.groups_pitch = (int32_t)layout.groups_pitch;
    p.rows = rows;
    p.out = s->out;
    p.x_pitch = s->in;
    p.scale_cols = s->scale_cols > 0 ? s->scale_cols : INT32_MAX;
    p.scale_skip = s->scale_skip;
    p.scale_bytes = (int32_t)cuda_scale_bytes(s);
    p.zeros = (int32_t)layout.zeros;
    p.leaves = 1;
    p.cut[1] = s->in;
    return p;
}

/* From the next output on, or one that is further. */
static inline void skip_outputs(struct product *p, int32_t n)
{
    p->w += n * p->row_bytes;
    p->groups_at += n * (p->groups_pitch - p->row_bytes); /* counted from w */
}

/* Whether all vectors of x and w begin at their size, and x's last one is whole. */
template <typename F> static bool is_aligned(const struct product &p)
{
    bool whole = p.x_pitch % 4 == 0 && (uintptr_t)p.x % 16 == 0 && p.cut[p.leaves] % 4 == 0;
    for (int32_t l = 0; l < p.leaves; l++)
        whole = whole && p.cut[l] % F::K == 0;
    return whole;
}

/* Whether the scales change at multiples of n columns of every leaf only. */
static inline bool scales_change_every(const struct product &p, int32_t n)
{
    bool so = p.scale_cols % n == 0;
    for (int32_t l = 0; l < p.leaves; l++)
        so = so && (p.scale_skip + p.cut[l]) % n == 0;
    return so;
}

/* Whether the bits of all leaves are those of one form. Integers have the same in any. */
static inline bool is_alike(const struct weight_spec *s, const struct product &p)
{
    return s->dtype != DTYPE_F8_E4M3 || s->scale_cols == 0 || scales_change_every(p, F8_STEP);
}

/* run(form) with that of the weight. */
template <typename Run>
static void with_int_form(const struct weight_spec *s, const struct product &p, Run run)
{
    if (s->dtype == DTYPE_I8 && scales_change_every(p, form_int8<false>::K))
        run(form_int8<false>());
    else if (s->dtype == DTYPE_I8)
        run(form_int8<true>());
    else if (s->dtype == DTYPE_F4_E2M1 && scales_change_every(p, BACKEND_GROUP))
        run(form_e2m1<false>());
    else if (s->dtype == DTYPE_F4_E2M1)
        run(form_e2m1<true>());
    else if (scales_change_every(p, BACKEND_GROUP))
        run(form_int4<false>());
    else
        run(form_int4<true>());
}

template <typename Run>
static void with_form(const struct weight_spec *s, const struct product &p, Run run)
{
    constexpr int32_t VECTOR = form_f8<PER_STEP>::K;
    if (dtype_is_int(s->dtype))
        with_int_form(s, p, run);
    else if (s->dtype == DTYPE_BF16)
        run(form_bf16());
    else if (s->dtype == DTYPE_F16)
        run(form_f16());
    else if (s->dtype == DTYPE_F32)
        run(form_f32());
    else if (s->scale_cols == 0)
        run(form_f8<PER_ROW>());
    else if (scales_change_every(p, F8_STEP))
        run(form_f8<PER_STEP>());
    else if (scales_change_every(p, VECTOR))
        run(form_f8_mixed<VECTOR>());
    else
        run(form_f8_mixed<1>());
}

#endif
