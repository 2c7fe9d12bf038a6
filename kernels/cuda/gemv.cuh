/* What gemv.cu keeps under way: rings in shared memory, of a weight and of x, which each thread
 * fills and empties for itself; what a lane adds up; and the forms that differ for few rows. */
#ifndef TESSERA_KERNELS_CUDA_GEMV_CUH
#define TESSERA_KERNELS_CUDA_GEMV_CUH

#include "kernels/cuda/product.cuh"

#define WARPS TURNS
#define STAGES_USUAL 4   /* of a ring whose blocks take each other's place */
#define AHEAD_COLUMNS 16 /* of x that a lane splits ahead, most */

/* ---- sums ---- */

/* What a lane adds up: outputs of its row in each group, of which a product of tensor cores has two
 * pieces as its rows (product.cuh). */
template <typename F, int GROUPS, int OUTPUTS> struct by_rows {
    static constexpr int EACH = OUTPUTS * 2, COUNT = GROUPS * EACH;
    typedef struct step_scales<F, OUTPUTS> scales;
    float sum[GROUPS][EACH] = {};

    template <typename X, typename Outputs>
    DEVICE void add_step_of(const pack<uint32_t, 4> (&v)[OUTPUTS], const scales &by,
                            const struct product &p, struct leaf l, const Outputs &out, int32_t k,
                            X &x, int32_t stage)
    {
        float step[GROUPS][OUTPUTS][4] = {};
        multiply<F, GROUPS, OUTPUTS>(step, v, p, l, out, k, [&](auto &row, int g, int sub) {
            x.take(row, g, sub, l.end, k, stage);
        });
        add_step(sum, step, by, x.unit);
    }
    /* The ith sum of the lane: itself, its output, its row of x and that row's pair. */
    DEVICE float get(int i) const
    {
        return sum[i / EACH][i % EACH];
    }
    template <typename Outputs> DEVICE static int32_t output(const Outputs &out, int i)
    {
        return output_of(out, i % EACH);
    }
    DEVICE static int32_t row(int i)
    {
        return i / EACH * GROUP + (int32_t)threadIdx.x % WARP / PART;
    }
    DEVICE static int32_t pair(const int32_t (&mine)[GROUPS], int i)
    {
        return i < EACH ? mine[0] : mine[GROUPS - 1];
    }
};

/* The same of up to 4 rows, whose pieces are a product's columns, and 16 outputs its rows: half as
 * many products. A lane's sums are all of one row. Each is over the same k in the same order as
 * above, so no bit differs. */
template <typename F, int OUTPUTS> struct by_outputs {
    static_assert(OUTPUTS % 2 == 0 && F::X_PIECES == 2, "products are of 16 outputs");
    static constexpr int COUNT = OUTPUTS;
    struct scales {
        float of[OUTPUTS];
        template <typename Outputs>
        DEVICE void look(const struct product &p, struct leaf l, const Outputs &out, int32_t k)
        {
#pragma unroll
            for (int i = 0; i < OUTPUTS; i++)
                of[i] = step_scale<F>(p, l, output(out, i), k);
        }
    };
    float sum[OUTPUTS] = {};

    template <typename X, typename Outputs>
    DEVICE void add_step_of(const pack<uint32_t, 4> (&v)[OUTPUTS], const scales &by,
                            const struct product &p, struct leaf l, const Outputs &out, int32_t k,
                            X &x, int32_t stage)
    {
        float step[OUTPUTS / 2][4] = {};
        typename F::ready ready[OUTPUTS];
#pragma unroll
        for (int i = 0; i < OUTPUTS; i++)
            ready[i] = F::prepare(p, l, output(out, i), k);
#pragma unroll
        for (int sub = 0; sub < F::K / 4; sub++) {
            uint32_t piece[2];
            x.take_piece(piece, sub, stage);
#pragma unroll
            for (int i = 0; i < OUTPUTS; i += 2) {
                uint32_t to[2][F::PIECES][2];
                F::unpack(to[0], v[i].e, sub, ready[i]);
                F::unpack(to[1], v[i + 1].e, sub, ready[i + 1]);
#pragma unroll
                for (int j = F::PIECES - 1; j >= 0; j--) { /* what is small first */
                    const uint32_t w[4] = {to[0][j][0], to[1][j][0], to[0][j][1], to[1][j][1]};
                    mma_multiply(step[i / 2], w, piece[0], piece[1], typename F::element());
                }
            }
        }
#pragma unroll
        for (int i = 0; i < OUTPUTS; i++) {
            const float *pieces = step[i / 2] + i % 2 * 2;
            add_both<F>(&sum[i], pieces[0], pieces[1], by.of[i] * times_of<F>(x.unit[0]));
        }
    }
    DEVICE float get(int i) const
    {
        return sum[i];
    }
    template <typename Outputs> DEVICE static int32_t output(const Outputs &out, int i)
    {
        return out.at(i) + (int32_t)threadIdx.x % WARP / PART;
    }
    DEVICE static int32_t row(int)
    {
        return (int32_t)threadIdx.x % PART;
    }
    DEVICE static int32_t pair(const int32_t (&mine)[1], int)
    {
        return __shfl_sync(ALL_LANES, mine[0], (int32_t)threadIdx.x % PART * PART);
    }
};

/* ---- x ---- */

/* Row t of x, or another one where there is none: nobody takes its sums. */
DEVICE int32_t x_row(const struct product &p, alone, int32_t t, int32_t)
{
    return t < p.rows ? t : 0;
}

DEVICE int32_t x_row(const struct product &, const struct mixture &m, int32_t, int32_t pair)
{
    return pair / m.together;
}

/* Elements [k, k + 4) of a row of x, of those before `end`. */
template <bool ALIGNED> DEVICE void load_x(float (&v)[4], const float *row, int32_t end, int32_t k)
{
    if (ALIGNED) { /* end is a multiple of 4: whole or not at all */
        *(pack<float, 4> *)v = k < end ? *(const pack<float, 4> *)(row + k) : pack<float, 4>{};
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++)
            v[i] = k + i < end ? row[k + i] : 0.0f;
    }
}

/* Rows of x, which come with the weight, through a ring of their own: so no step waits for them.
 * Of less than 8 rows each of a step's vectors is copied by one lane of the warp and, if two pieces
 * become of it, split by that lane, into its place, one behind the other. Rows that x does not have
 * are copies of one that it has; lanes beyond ROWS have zeros or, of pieces, copies, too. The unit
 * is that of the row whose sums the lane has.
 *
 * NORMED: a norm's gain comes behind them, as one more row, and is multiplied before a vector is
 * split. What the norm divides by is known in the end: so sums are divided by it. */
template <typename F, int ROWS, int STAGES_, bool NORMED = false> struct x_ring {
    static constexpr int VECTORS = F::K / 4, STAGES = STAGES_;
    static constexpr int COPIED = ROWS * PART, OF_X = COPIED * VECTORS; /* of a step */
    static constexpr int EACH = OF_X + (NORMED ? PART * VECTORS : 0);
    static constexpr int PASSES = (EACH + WARP - 1) / WARP, STAGE = WARPS * EACH;
    static constexpr bool OWN = ROWS == GROUP;                 /* each lane copies what it takes */
    static constexpr bool IN_PLACE = !OWN && F::X_PIECES == 2; /* what a vector becomes fits */
    static constexpr size_t BYTES = STAGES * STAGE * sizeof(pack<float, 4>);
    typedef pack<float, 4> vector;
    typedef pack<uint32_t, 2> piece;
    template <int OUTPUTS>
    using sums = std::conditional_t<IN_PLACE, by_outputs<F, OUTPUTS>, by_rows<F, 1, OUTPUTS>>;
    const float *next[PASSES];        /* what is copied next */
    vector *own;                      /* the lane's first one in the first stage */
    const piece *taken;               /* the same of what it takes */
    float unit[1] = {1}, squares = 0; /* of the lane's vectors */

    template <typename Which>
    DEVICE void open(const struct product &p, const Which &which, const int32_t (&pair)[1],
                     int32_t k, void *memory)
    {
        const int32_t lane = (int32_t)threadIdx.x % WARP;
        vector *of_warp = (vector *)memory + (int32_t)threadIdx.x / WARP * EACH;
        own = of_warp + lane;
        taken = (const piece *)(of_warp + lane / PART / 2 % ROWS * PART + lane % PART) +
                lane / PART % 2;
#pragma unroll
        for (int i = 0; i < PASSES; i++) {
            const int32_t n = i * WARP + lane, row = n % COPIED / PART;
            const int32_t its = __shfl_sync(ALL_LANES, pair[0], row * PART);
            next[i] = p.x + (int64_t)x_row(p, which, row, its) * p.x_pitch + k + column(n);
            if constexpr (NORMED)
                if (n >= OF_X)
                    next[i] = which.gain + k + column(n);
        }
    }
    /* Has a step a vector for this lane in the ith pass? */
    DEVICE static bool copies(int i)
    {
        return (i + 1) * WARP <= EACH || i * WARP + (int32_t)threadIdx.x % WARP < EACH;
    }
    /* Is it one of x? */
    DEVICE static bool splits(int i)
    {
        return (i + 1) * WARP <= OF_X || i * WARP + (int32_t)threadIdx.x % WARP < OF_X;
    }
    /* Of a vector, in a step. */
    DEVICE static int32_t column(int32_t n)
    {
        return n % PART * F::K + (n < OF_X ? n / COPIED : (n - OF_X) / PART) * 4;
    }
    /* k: the step's first column */
    DEVICE void copy(int32_t end, int32_t k, int32_t stage)
    {
#pragma unroll
        for (int i = 0; i < PASSES; i++) {
            const int32_t at = k + column(i * WARP + (int32_t)threadIdx.x % WARP);
            if (copies(i))
                mma_copy_near(own + stage * STAGE + i * WARP, next[i], at < end);
            next[i] += WARPS * PART * F::K;
        }
    }
    DEVICE void begin(int32_t, int32_t)
    {
    }
    DEVICE void turn(int32_t, int32_t, int32_t)
    {
    }
    /* Of the lane's vectors to those of all lanes that have the same row. */
    DEVICE static float most_of_row(float most)
    {
        if constexpr (ROWS == 1) {
            return __uint_as_float(__reduce_max_sync(ALL_LANES, __float_as_uint(most)));
        } else {
#pragma unroll
            for (int step = WARP / 2; step > 0; step /= 2)
                if (step < PART || step >= COPIED)
                    most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, step));
            return most;
        }
    }
    /* What has been copied is there for the lanes that take it, split. */
    DEVICE void settle(int32_t stage)
    {
        static_assert(IN_PLACE || !HAS_UNITS<F>, "units are found where vectors are split");
        vector *at = own + stage * STAGE, v[PASSES] = {};
        float most = 0, mine = 1;
        if (NORMED)
            __syncwarp(); /* other lanes have copied the gain */
#pragma unroll
        for (int i = 0; i < PASSES; i++) {
            if (IN_PLACE && splits(i))
                v[i] = at[i * WARP];
            if (NORMED)
                apply_gain(v[i], at, i * WARP + (int32_t)threadIdx.x % WARP);
            most = most_of(most, v[i].e);
        }
        if (HAS_UNITS<F>)
            mine = unit_of(most_of_row(most));
#pragma unroll
        for (int i = 0; i < PASSES; i++) {
            uint32_t to[X_PAIRS<F>][4];
            split_x<F>(to, v[i].e, mine);
            const uint32_t words[4] = {to[0][0], to[0][2], to[0][1], to[0][3]};
            if (IN_PLACE && splits(i))
                memcpy(at + i * WARP, words, sizeof words);
        }
        if (HAS_UNITS<F>)
            unit[0] = ROWS == 1 ? mine : __shfl_sync(ALL_LANES, mine, lane_of_sums());
        if (!OWN)
            __syncwarp();
    }
    /* Of the step's nth vector, or of zeros where x has none; at: the lane's first one. */
    DEVICE void apply_gain(vector &v, const vector *at, int32_t n)
    {
        const int32_t first = OF_X - (int32_t)threadIdx.x % WARP;
        const vector gain = at[first + n % OF_X / COPIED * PART + n % PART];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            squares = fmaf(v.e[i], v.e[i], squares);
            v.e[i] *= gain.e[i];
        }
    }
    /* The warp's squares of each row, to where others find them. */
    DEVICE void show_squares(float *of_row) const
    {
        const int32_t lane = (int32_t)threadIdx.x % WARP;
        float sum = squares;
#pragma unroll
        for (int step = WARP / 2; step > 0; step /= 2)
            if (step < PART || step >= COPIED)
                sum += __shfl_xor_sync(ALL_LANES, sum, step);
        if (lane < COPIED && lane % PART == 0)
            of_row[lane / PART] = sum;
    }
    /* One that has split what the lane sums up. */
    DEVICE static int32_t lane_of_sums()
    {
        return (int32_t)threadIdx.x % PART * PART;
    }
    DEVICE void take(uint32_t (&to)[X_PAIRS<F>][4], int, int sub, int32_t, int32_t, int32_t stage)
    {
        const vector *at = own + stage * STAGE;
        vector v = {};
        if (OWN || (int32_t)threadIdx.x % WARP < COPIED)
            v = at[sub * COPIED];
        split_x<F>(to, v.e, unit[0]);
    }
    /* Column lane / PART of a product has piece lane / PART % 2 of row lane / PART / 2. */
    DEVICE void take_piece(uint32_t (&to)[2], int sub, int32_t stage)
    {
        memcpy(to, taken + (stage * STAGE + sub * COPIED) * 2, sizeof to);
    }
};

/* A lane's row in each group where that ring would be too large. A step of few columns is split
 * while the next one is on its way. */
template <typename F, int GROUPS, bool ALIGNED> struct x_rows {
    static constexpr int SUBS = F::K / 4, STAGES = STAGES_USUAL;
    static constexpr bool AHEAD = GROUPS * F::K <= AHEAD_COLUMNS;
    static constexpr bool HELD = AHEAD || HAS_UNITS<F>; /* a step's vectors, all at once */
    static constexpr size_t BYTES = 0;
    template <int OUTPUTS> using sums = by_rows<F, GROUPS, OUTPUTS>;
    const float *row[GROUPS];
    uint32_t split[SUBS][GROUPS][X_PAIRS<F>][4];
    alignas(16) float next[SUBS][GROUPS][4];
    float unit[GROUPS];

    template <typename Which>
    DEVICE void open(const struct product &p, const Which &which, const int32_t (&pair)[GROUPS],
                     int32_t, void *)
    {
#pragma unroll
        for (int g = 0; g < GROUPS; g++) {
            const int32_t t = g * GROUP + (int32_t)threadIdx.x % WARP / PART;
            row[g] = p.x + (int64_t)x_row(p, which, t, pair[g]) * p.x_pitch;
            unit[g] = 1;
        }
    }
    DEVICE void copy(int32_t, int32_t, int32_t)
    {
    }
    DEVICE void load(int32_t end, int32_t k)
    {
#pragma unroll
        for (int i = 0; i < SUBS * GROUPS; i++)
            load_x<ALIGNED>(next[i / GROUPS][i % GROUPS], row[i % GROUPS], end, k + i / GROUPS * 4);
    }
    DEVICE void find_units()
    {
#pragma unroll
        for (int g = 0; g < GROUPS; g++) {
            float most = 0;
#pragma unroll
            for (int sub = 0; sub < SUBS; sub++)
                most = most_of(most, next[sub][g]);
            unit[g] = HAS_UNITS<F> ? unit_of_row(most) : 1;
        }
    }
    DEVICE void begin(int32_t end, int32_t k)
    {
        if (AHEAD)
            load(end, k);
    }
    /* k: of the step that begins; next_k: of the one behind it */
    DEVICE void turn(int32_t end, int32_t k, int32_t next_k)
    {
        if (HELD && !AHEAD)
            load(end, k);
        if (AHEAD)
            find_units();
#pragma unroll
        for (int i = 0; AHEAD && i < SUBS * GROUPS; i++)
            split_x<F>(split[i / GROUPS][i % GROUPS], next[i / GROUPS][i % GROUPS],
                       unit[i % GROUPS]);
        begin(end, next_k);
    }
    DEVICE void settle(int32_t)
    {
        if (HELD && !AHEAD)
            find_units();
    }
    DEVICE void take(uint32_t (&to)[X_PAIRS<F>][4], int g, int sub, int32_t end, int32_t k, int32_t)
    {
        alignas(16) float f[4];
        if (AHEAD) {
            memcpy(to, split[sub][g], sizeof to);
        } else if (HELD) {
            split_x<F>(to, next[sub][g], unit[g]);
        } else {
            load_x<ALIGNED>(f, row[g], end, k + 4 * sub);
            split_x<F>(to, f, 1);
        }
    }
};

/* ---- the weight ---- */

/* A thread's vectors of the weight; sums lie there in the end. */
template <int OUTPUTS, int STAGES>
constexpr size_t RING = sizeof(pack<uint32_t, 4>[STAGES][OUTPUTS][WARPS * WARP]);

/* A thread's vectors of the weight, of which each stage has one of each of its outputs. */
template <typename F, int OUTPUTS, bool ALIGNED, int STAGES> struct w_ring {
    static constexpr int ROUND = WARPS * PART * F::K; /* columns of all warps' steps */
    typedef pack<uint32_t, 4> vector;
    const unsigned char *next[OUTPUTS]; /* what is copied next or, if not ALIGNED, rows */
    vector *own;                        /* the thread's in the first stage */

    /* k: column */
    template <typename Outputs>
    DEVICE void open(const struct product &p, const Outputs &out, int32_t k, vector *memory)
    {
        const int32_t lane = (int32_t)threadIdx.x % WARP;
        own = memory + threadIdx.x;
        if (F::SCALES == PER_ROW && threadIdx.x < COLUMNS * OUTPUTS) /* wanted when all is done */
            prefetch_line(
                groups_row(p, out.at((int)threadIdx.x / COLUMNS) + (int32_t)threadIdx.x % COLUMNS));
#pragma unroll
        for (int o = 0; o < OUTPUTS; o++) {
            next[o] = output_row(p, out.at(o) + lane / PART);
            const int32_t line = ((int32_t)threadIdx.x / WARP * PART + lane % PART) * CUDA_LINE;
            if (F::SCALES == GROUPED && line < p.groups)
                prefetch_line(groups_row(p, out.at(o) + lane / PART) + line);
            if (ALIGNED) {
                next[o] += (int64_t)k * CUDA_VECTOR / F::K;
                mma_keep(next[o]);
            }
        }
    }
    DEVICE void copy(const struct product &p, struct leaf l, int32_t k, int32_t stage)
    {
#pragma unroll
        for (int o = 0; o < OUTPUTS; o++) {
            vector *to = own + (stage * OUTPUTS + o) * (WARPS * WARP);
            if (ALIGNED) {
                mma_copy(to, next[o], k < l.end);
                next[o] += ROUND * CUDA_VECTOR / F::K;
            } else {
                copy_weight<F, ALIGNED>(to, p, l, next[o], k);
            }
        }
    }
    DEVICE void take(vector (&v)[OUTPUTS], int32_t stage)
    {
#pragma unroll
        for (int o = 0; o < OUTPUTS; o++)
            v[o] = own[(stage * OUTPUTS + o) * (WARPS * WARP)];
    }
};

#endif
