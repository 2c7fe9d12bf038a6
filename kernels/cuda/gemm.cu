/* DESIGN: many rows, with the bits that each of them has alone: the products of gemv.cu, in its
 * order (product.cuh). A block has some outputs of some rows, and walks through all turns, which
 * the warps of gemv.cu share; x and weights pass through shared memory in steps, the next ones
 * being copied while one is computed. Slower than cuBLAS: x counts twice on tensor cores, in two
 * pieces, and its splitting is done again for all outputs of a warp.
 *
 * Blocks are numbered in bands of rows, so that those which run at the same time read few rows and
 * few outputs, which stay in the cache. */
#include "kernels/cuda/product.cuh"

#define ROW_WARPS 2
#define OUT_WARPS 4
#define THREADS (ROW_WARPS * OUT_WARPS * WARP)
#define GROUPS 4 /* of rows, of a warp */
#define TILE_ROWS GEMM_ROWS
#ifndef GEMM_BAND
#define GEMM_BAND 16 /* row tiles */
#endif
#ifndef GEMM_BLOCKS
#define GEMM_BLOCKS 256 /* fill a device about twice */
#endif

static_assert(TILE_ROWS == ROW_WARPS * GROUPS * GROUP, "what warps have");

/* One step of x and of the weight. Rows of x are padded by 16 bytes, and so is, of longer vectors,
 * each lane's part: what a warp reads at once lies in different banks. STAGES: at once, within
 * 96 KiB. */
template <typename F, int OUTPUTS> struct stage {
    static constexpr int STEP = F::K * PART, OUTS = OUT_WARPS * OUTPUTS * COLUMNS;
    static constexpr int STAGES = STEP > 64 ? 2 : 3, PAD = F::K > 8 ? 4 : 0;
    float x[TILE_ROWS][STEP + (PAD > 0 ? PART * PAD : 4)];
    pack<uint32_t, 4> w[OUTS][PART];
};

/* Where a row of x has column k of the step. */
template <typename S, typename F> DEVICE int32_t place_of_x(int32_t k)
{
    return k + k / F::K * S::PAD;
}

/* Tiles of rows and outputs of a block. */
struct place {
    int32_t row, out;
};

HOST_DEVICE struct place place_of(int32_t block, int32_t row_tiles, int32_t out_tiles)
{
    const int32_t band = block / (GEMM_BAND * out_tiles), rest = block % (GEMM_BAND * out_tiles);
    const int32_t left = row_tiles - band * GEMM_BAND, rows = left < GEMM_BAND ? left : GEMM_BAND;
    return {band * GEMM_BAND + rest % rows, rest / rows};
}

/* ---- a block's rows ---- */

/* Where the rows of a tile are, in units of rows. */
struct places {
    int32_t x[TILE_ROWS], y[TILE_ROWS];
};

DEVICE int32_t x_row(alone, const struct places &, int32_t t)
{
    return t;
}

DEVICE int32_t x_row(const struct mixture &, const struct places &of, int32_t t)
{
    return of.x[t];
}

DEVICE int32_t y_row(alone, const struct places &, int32_t t)
{
    return t;
}

DEVICE int32_t y_row(const struct mixture &, const struct places &of, int32_t t)
{
    return of.y[t];
}

/* The block's product, of whose rows its own are those of a tile from *first on. */
DEVICE const struct product &product_here(const struct product &all, alone, struct places *,
                                          int32_t tile, int32_t *first)
{
    *first = tile * TILE_ROWS;
    return all;
}

DEVICE struct product product_here(const struct product &all, const struct mixture &m,
                                   struct places *of, int32_t tile, int32_t *first)
{
    struct product p = all;
    const bool there = tile < *m.tiles;
    const struct tile t = m.tile[there ? tile : 0];
    *first = 0;
    p.rows = there ? t.rows : 0;
    p.w = m.weight[t.expert];
    if ((int32_t)threadIdx.x < p.rows) {
        const int32_t pair = m.order[t.begin + (int32_t)threadIdx.x];
        of->x[threadIdx.x] = pair / m.together;
        of->y[threadIdx.x] = pair;
    }
    __syncthreads();
    return p;
}

/* ---- steps ---- */

/* A walk through the steps in the order of their turns. */
struct walk {
    int32_t turn, step;
};

DEVICE void next_step(struct walk *w, int32_t steps)
{
    w->step += TURNS;
    if (w->step >= steps)
        w->step = ++w->turn;
}

/* Elements [k, k + 4) of row t of x; zeros where there are none. */
template <bool ALIGNED, typename Which>
DEVICE void copy_x(float *to, const struct product &p, struct leaf l, const Which &which,
                   const struct places &of, int32_t t, int32_t k)
{
    const float *row = p.x + (int64_t)x_row(which, of, t < p.rows ? t : 0) * p.x_pitch;
    if constexpr (ALIGNED) { /* end is a multiple of 4: whole or not at all */
        mma_copy(to, row + k, t < p.rows && k < l.end);
    } else {
        for (int i = 0; i < 4; i++)
            to[i] = t < p.rows && k + i < l.end ? row[k + i] : 0.0f;
    }
}

template <typename F, int OUTPUTS, bool ALIGNED, typename Which>
DEVICE void copy_step(struct stage<F, OUTPUTS> *s, const struct product &p, struct leaf l,
                      const Which &which, const struct places &of, int32_t first_row,
                      int32_t first_out, int32_t step)
{
    typedef struct stage<F, OUTPUTS> S;
    constexpr int QUADS = S::STEP / 4;
    const int32_t begin = l.begin + step * S::STEP;
    static_assert(TILE_ROWS * QUADS % THREADS == 0 && S::OUTS * PART % THREADS == 0,
                  "no thread is idle");
#pragma unroll
    for (int i = 0; i < TILE_ROWS * QUADS; i += THREADS) {
        const int32_t n = i + (int32_t)threadIdx.x, t = n / QUADS, k = n % QUADS * 4;
        copy_x<ALIGNED>(&s->x[t][place_of_x<S, F>(k)], p, l, which, of, first_row + t, begin + k);
    }
#pragma unroll
    for (int i = 0; i < S::OUTS * PART; i += THREADS) {
        const int32_t n = i + (int32_t)threadIdx.x, o = n / PART, v = n % PART;
        copy_weight<F, ALIGNED>(&s->w[o][v], p, l, output_row(p, first_out + o), begin + v * F::K);
    }
}

/* sum += one step; row and out: the warp's first ones in the block. */
template <typename F, int OUTPUTS>
DEVICE void take_step(float (&sum)[GROUPS][OUTPUTS * 2], const struct stage<F, OUTPUTS> *s,
                      const struct product &p, struct leaf l, int32_t row, int32_t out,
                      int32_t first_out, int32_t step)
{
    typedef struct stage<F, OUTPUTS> S;
    const int32_t lane = (int32_t)threadIdx.x % WARP, k = lane % PART * F::K;
    const int32_t begin = l.begin + step * PART * F::K, at = place_of_x<S, F>(k);
    pack<uint32_t, 4> v[OUTPUTS];
    float part[GROUPS][OUTPUTS][4] = {};
    struct step_scales<F, OUTPUTS> scales;
    const struct neighbours outputs = {first_out + out};
    scales.look(p, l, outputs, begin);
#pragma unroll
    for (int o = 0; o < OUTPUTS; o++)
        v[o] = s->w[out + o * COLUMNS + lane / PART][lane % PART];
    const auto x_at = [&](int g, int sub) {
        return *(const pack<float, 4> *)&s->x[row + g * GROUP + lane / PART][at + 4 * sub];
    };
    float unit[GROUPS];
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        float most = 0;
#pragma unroll
        for (int sub = 0; sub < F::K / 4 && HAS_UNITS<F>; sub++)
            most = most_of(most, x_at(g, sub).e);
        unit[g] = HAS_UNITS<F> ? unit_of_row(most) : 1;
    }
    multiply<F, GROUPS, OUTPUTS>(
        part, v, p, l, outputs, begin + k,
        [&](auto &split, int g, int sub) { split_x<F>(split, x_at(g, sub).e, unit[g]); });
    add_step(sum, part, scales, unit);
}

/* Block (place, leaf). */
template <typename F, int OUTPUTS, bool ALIGNED, typename Which>
__global__ void __launch_bounds__(THREADS, 1)
    gemm_kernel(const __grid_constant__ struct product all, Which which, int32_t row_tiles,
                int32_t out_tiles)
{
    typedef struct stage<F, OUTPUTS> S;
    typedef pack<uint32_t, 4> aligned;
    SHARED_DYNAMIC(aligned, memory);
    __shared__ struct places of;
    S *stages = (S *)memory;
    const struct leaf l = leaf_of(all, (int32_t)blockIdx.y);
    const struct place at = place_of((int32_t)blockIdx.x, row_tiles, out_tiles);
    int32_t first_row;
    const auto &p = product_here(all, which, &of, at.row, &first_row);
    if (p.rows == 0)
        return;
    float *y = p.y + blockIdx.y * p.leaf_pitch;
    const int32_t warp = (int32_t)threadIdx.x / WARP, lane = (int32_t)threadIdx.x % WARP;
    const int32_t row = warp / OUT_WARPS * GROUPS * GROUP;
    const int32_t out = warp % OUT_WARPS * OUTPUTS * COLUMNS, first_out = at.out * S::OUTS;
    const int32_t steps = (l.end - l.begin + S::STEP - 1) / S::STEP;
    float total[GROUPS][OUTPUTS * 2] = {}, sum[GROUPS][OUTPUTS * 2] = {};
    struct walk ahead = {}, now = {};
    const auto fetch = [&](int32_t nth) {
        if (nth < steps) {
            copy_step<F, OUTPUTS, ALIGNED>(stages + nth % S::STAGES, p, l, which, of, first_row,
                                           first_out, ahead.step);
            next_step(&ahead, steps);
        }
        mma_copy_group(); /* an empty one, too: the wait counts groups */
    };
#pragma unroll
    for (int nth = 0; nth < S::STAGES - 1; nth++)
        fetch(nth);
    for (int32_t nth = 0; nth < steps; nth++) {
        mma_copy_wait<S::STAGES - 2>();
        __syncthreads(); /* the step is there, and the one before has been used */
        fetch(nth + S::STAGES - 1);
        take_step<F, OUTPUTS>(sum, stages + nth % S::STAGES, p, l, row, out, first_out, now.step);
        const bool first = now.turn == 0, turned = now.step + TURNS >= steps;
        next_step(&now, steps);
        if (!turned)
            continue;
#pragma unroll
        for (int i = 0; i < GROUPS * OUTPUTS * 2; i++) {
            float *t = &total[i / (OUTPUTS * 2)][i % (OUTPUTS * 2)];
            float *s = &sum[i / (OUTPUTS * 2)][i % (OUTPUTS * 2)];
            *t = first ? *s : *t + *s;
            *s = 0;
        }
    }
#pragma unroll
    for (int g = 0; g < GROUPS; g++)
#pragma unroll
        for (int i = 0; i < OUTPUTS * 2; i++) {
            const int32_t o = output_of(neighbours{first_out + out}, i);
            const int32_t t = first_row + row + g * GROUP + lane / PART;
            const float v =
                steps < TURNS ? total[g][i] + 0.0f : total[g][i]; /* turns without one */
            if (o < p.out && t < p.rows)
                y[(int64_t)y_row(which, of, t) * p.out + o] =
                    F::SCALES == PER_ROW ? v * row_scale(p, o) : v;
        }
}

/* ---- launches ---- */

/* rows: how many tiles of them. */
template <typename F, int OUTPUTS, bool ALIGNED, typename Which>
static void launch(struct cuda_backend *c, const struct product &p, const Which &which,
                   unsigned rows)
{
    typedef struct stage<F, OUTPUTS> S;
    const unsigned outs = blocks_for((size_t)p.out, S::OUTS);
    const auto kernel = gemm_kernel<F, OUTPUTS, ALIGNED, Which>;
    const size_t shared = S::STAGES * sizeof(S);
    cuda_note(
        c, "linear",
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared));
    LAUNCH(c, kernel, dim3(rows * outs, (unsigned)p.leaves), THREADS, shared, p, which,
           (int32_t)rows, (int32_t)outs);
}

/* Outputs of a lane, most; as registers allow. */
template <typename F> constexpr int WIDE = F::AT_ONCE == 16 ? 4 : 2;
template <> constexpr int WIDE<form_int4<false>> = 2;

/* Wide blocks read less, where there are enough of them. */
template <typename F, typename Which>
static void launch_form(struct cuda_backend *c, const struct product &p, const Which &which,
                        unsigned rows)
{
    const size_t wide =
        (size_t)rows * (size_t)p.leaves * blocks_for((size_t)p.out, stage<F, WIDE<F>>::OUTS);
    if (!is_aligned<F>(p))
        launch<F, 2, false>(c, p, which, rows);
    else if (wide >= GEMM_BLOCKS)
        launch<F, WIDE<F>, true>(c, p, which, rows);
    else
        launch<F, 2, true>(c, p, which, rows);
}

void gemm_run(struct cuda_backend *c, const struct weight_spec *s, const struct product *p)
{
    const unsigned rows = blocks_for((size_t)p->rows, TILE_ROWS);
    with_form(s, *p, [&](auto form) { launch_form<decltype(form)>(c, *p, alone(), rows); });
}

void gemm_experts(struct cuda_backend *c, const struct weight_spec *s, const struct product *p,
                  const struct mixture *m)
{
    with_form(s, *p,
              [&](auto form) { launch_form<decltype(form)>(c, *p, *m, (unsigned)m->places); });
}
