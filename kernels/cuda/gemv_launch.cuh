/* The kernel of few rows and its launches (gemv.cu, gemv_fused.cu): what a block has of rows and
 * outputs, and how sums become results. */
#ifndef TESSERA_KERNELS_CUDA_GEMV_LAUNCH_CUH
#define TESSERA_KERNELS_CUDA_GEMV_LAUNCH_CUH

#include "kernels/cuda/act.cuh"
#include "kernels/cuda/gemv.cuh"

#define STAGES_MOST 11  /* of a ring whose blocks fit at once */
#define RINGS_MAX 98304 /* bytes of a block: all devices have them, an H200 twice */

/* Bytes of a block where all fit at once, on Hopper: of three what leaves room for a block of
 * attention, and of two what leaves room for one of the product behind, but for no third. */
#ifndef THIRD
#define THIRD ((HOPPER_SHARED - ATTEND_SHARED) / 3 - BLOCK_SHARED)
#endif
#ifndef HALF
#define HALF (76 << 10)
#endif

/* With what a product of one weight is done in one go: a norm of x before it; and of outputs that
 * are [gates | ups], their activation. */
template <bool NORMED, bool GATED> struct fused : alone {
    const float *gain;
    float eps;
    enum activation act;
};

template <typename Which> constexpr bool IS_NORMED = false;
template <bool GATED> constexpr bool IS_NORMED<struct fused<true, GATED>> = true;
template <typename Which> constexpr bool IS_GATED = false;
template <bool NORMED> constexpr bool IS_GATED<struct fused<NORMED, true>> = true;

/* ---- a block's rows ---- */

DEVICE int32_t y_row(const struct alone &, int32_t t, int32_t)
{
    return t;
}

template <int GROUPS>
DEVICE const struct product &product_here(const struct product &all, const struct alone &,
                                          int32_t (&)[GROUPS], void *)
{
    return all;
}

/* ---- a block's outputs ---- */

/* Sums that become a result. */
template <typename Which> constexpr int PARTS = IS_GATED<Which> ? 2 : 1;

template <int OUTPUTS, typename Which> DEVICE auto outputs_here(const struct product &p)
{
    static_assert(OUTPUTS % PARTS<Which> == 0, "a block has as many gates as ups");
    const int32_t first = (int32_t)blockIdx.x * COLUMNS * OUTPUTS / PARTS<Which>;
    if constexpr (IS_GATED<Which>)
        return halves<OUTPUTS / 2>{first, p.out / 2 + first};
    else
        return neighbours{first};
}

/* ---- results ---- */

/* What all warps know in the end. */
template <typename F, typename S> struct known {
    float sum[WARPS][S::COUNT][WARP];
    float squares[WARPS][PART]; /* of each row of x */
};

/* A sum of all warps, in their order. */
template <typename F, typename S>
DEVICE float total_of(const struct known<F, S> &k, int32_t i, float scale)
{
    const int32_t lane = (int32_t)threadIdx.x % WARP;
    float total = k.sum[0][i][lane];
    for (int32_t from = 1; from < WARPS; from++)
        total += k.sum[from][i][lane];
    return F::SCALES == PER_ROW ? total * scale : total;
}

/* What the norm multiplies row t with, beside its gain. */
template <typename F, typename S>
DEVICE float norm_of(const struct known<F, S> &k, const struct product &p, int32_t t, float eps)
{
    float sum = k.squares[0][t];
    for (int32_t from = 1; from < WARPS; from++)
        sum += k.squares[from][t];
    return 1 / sqrtf(sum / (float)p.x_pitch + eps);
}

/* What a result is made of beside sums: the scales of its outputs, and what it is added to. */
template <typename Which> struct beside {
    float scale[PARTS<Which>], before;
};

/* The lane's ith result, of row t. */
template <typename F, typename S, typename Which>
DEVICE float result_of(const struct known<F, S> &k, const struct product &p, const Which &which,
                       int32_t i, int32_t t, const struct beside<Which> &by)
{
    float y = total_of(k, i, by.scale[0]), norm = 1;
    if constexpr (IS_NORMED<Which>) {
        norm = norm_of(k, p, t, which.eps);
        y *= norm;
    }
    if constexpr (IS_GATED<Which>)
        y = activate(which.act, y, total_of(k, i + S::COUNT / 2, by.scale[1]) * norm);
    return y + by.before;
}

/* Where that is; -1: there is none. All lanes call. */
template <typename S, typename Outputs, typename Which, int GROUPS>
DEVICE int64_t place_of(const struct product &p, const Outputs &out, const Which &which,
                        const int32_t (&pair)[GROUPS], int32_t i)
{
    const int32_t o = S::output(out, i), t = S::row(i), cols = p.out / PARTS<Which>;
    const int64_t row = y_row(which, t, S::pair(pair, i));
    return o < cols && t < p.rows ? blockIdx.y * p.leaf_pitch + row * cols + o : -1;
}

/* Rows without a ring need the registers. */
template <typename X> constexpr bool LOOKS_EARLY = X::BYTES > 0;

/* Of the lane's ith result. What y holds is read past the multiprocessor's cache: once, and half a
 * line of it would be old when the product behind reads all of y. */
template <typename F, typename S, typename Outputs, typename Which, int GROUPS>
DEVICE void look_beside(struct beside<Which> &by, const struct product &p, const Outputs &out,
                        const Which &which, const int32_t (&pair)[GROUPS], int32_t i)
{
    const int64_t at = place_of<S>(p, out, which, pair, i);
    const int32_t o = S::output(out, i);
#pragma unroll
    for (int part = 0; F::SCALES == PER_ROW && part < PARTS<Which>; part++)
        by.scale[part] = at < 0 ? 0 : row_scale(p, o + part * (p.out / 2));
    by.before = -0.0f; /* which no sum is changed by */
    if constexpr (std::is_base_of<alone, Which>::value)
        if (which.adds && at >= 0)
            by.before = mma_load_fresh(p.y + at);
}

/* The results to y. k: no longer used for anything else. */
template <typename F, typename S, typename X, typename Outputs, typename Which, int GROUPS>
DEVICE void write_out(struct known<F, S> &k, const struct product &p, const S &sums, const X &x,
                      const Outputs &out, const Which &which, const int32_t (&pair)[GROUPS],
                      struct beside<Which> &by)
{
    const int32_t warp = (int32_t)threadIdx.x / WARP, lane = (int32_t)threadIdx.x % WARP;
    __syncthreads(); /* nobody needs the ring any more */
#pragma unroll
    for (int i = 0; i < S::COUNT; i++)
        k.sum[warp][i][lane] = sums.get(i);
    if constexpr (IS_NORMED<Which>)
        x.show_squares(k.squares[warp]);
    __syncthreads();
    for (int32_t i = warp; i < S::COUNT / PARTS<Which>; i += WARPS) {
        const int64_t at = place_of<S>(p, out, which, pair, i);
        if (!LOOKS_EARLY<X> || i != warp)
            look_beside<F, S>(by, p, out, which, pair, i);
        if (at >= 0)
            p.y[at] = result_of(k, p, which, i, S::row(i), by);
    }
}

/* ---- sizes ---- */

/* Of a lane, among which the splitting of x is shared: the more the fewer bytes a weight has, since
 * instructions take longer than the memory then; as registers allow. */
template <typename F, int GROUPS>
constexpr int OUTPUTS_OF = F::SCALES == GROUPED ? 5 - GROUPS
                           : F::K > 8           ? (F::PIECES *GROUPS < 4 ? 4 : 3)
                                                : 2 * GROUPS;
template <> inline constexpr int OUTPUTS_OF<form_int4<true>, 1> = 2;
template <> inline constexpr int OUTPUTS_OF<form_f8<PER_STEP>, 2> = 3;
/* The same of one row where there would be fewer blocks than two for each multiprocessor. */
template <typename F, int GROUPS>
constexpr int OUTPUTS_FEW = GROUPS == 1 && OUTPUTS_OF<F, GROUPS> > 2 ? 2 : OUTPUTS_OF<F, GROUPS>;

/* Blocks of a multiprocessor, for which there have to be registers. */
template <typename F, int GROUPS, typename Which, bool ALIGNED>
constexpr int RESIDENT = F::AT_ONCE == GROUP || (!ALIGNED && F::K > CUDA_VECTOR) ? 1 : 2;
template <typename F, int GROUPS> constexpr int RESIDENT<F, GROUPS, mixture, false> = 1;
template <> inline constexpr int RESIDENT<form_f8<PER_STEP>, 2, mixture, true> = 1;
template <> inline constexpr int RESIDENT<form_f8<PER_STEP>, 2, alone, false> = 1;
template <> inline constexpr int RESIDENT<form_bf16, 1, alone, true> = 4;
template <> inline constexpr int RESIDENT<form_f8<PER_ROW>, 1, alone, true> = 3;
template <typename Which>
using rows_of = std::conditional_t<std::is_base_of<alone, Which>::value, struct alone, Which>;

/* ---- the kernel ---- */

/* Block (outputs, leaf, expert or tile). GROUPS: of rows of x. Parameters that are indexed would be
 * copied to memory by every thread if they were not __grid_constant__. */
template <typename F, int GROUPS, int OUTPUTS, bool ALIGNED, typename X, typename Which>
__global__ void __launch_bounds__(WARPS *WARP, RESIDENT<F, GROUPS, rows_of<Which>, ALIGNED>)
    gemv_kernel(const __grid_constant__ struct product all, Which which)
{
    constexpr int STAGES = X::STAGES;
    typedef struct w_ring<F, OUTPUTS, ALIGNED, STAGES> W;
    typedef pack<uint32_t, 4> vector;
    SHARED_DYNAMIC(vector, memory);
    const int32_t warp = (int32_t)threadIdx.x / WARP, part = (int32_t)threadIdx.x % PART;
    const auto out = outputs_here<OUTPUTS, Which>(all);
    const struct leaf l = leaf_of(all, (int32_t)blockIdx.y);
    int32_t pair[GROUPS] = {};
    launch_release();
    const auto &p = product_here(all, which, pair, memory);
    if (p.rows == 0) /* of a mixture, for which this has waited */
        return;
    typedef typename X::template sums<OUTPUTS> S;
    static_assert(sizeof(known<F, S>) <= RING<OUTPUTS, STAGES>, "sums lie where the ring was");
    S sums;
    /* The lane's first column of a step; the next one of the warp's turn is ROUND on. */
    int32_t mine = l.begin + (warp * PART + part) * F::K;
    W w;
    X x;
    w.open(p, out, mine, memory);
    x.open(p, which, pair, mine - part * F::K, memory + STAGES * OUTPUTS * WARPS * WARP);
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++)
        w.copy(p, l, mine + s * W::ROUND, s);
    launch_wait(); /* the weight is no kernel's result, x is */
    x.begin(l.end, mine);
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) { /* the first group has all of the weight's copies */
        x.copy(l.end, mine - part * F::K + s * W::ROUND, s);
        mma_copy_group();
    }
    struct beside<Which> by; /* of the lane's first result, early: it takes as long as a step */
    if (LOOKS_EARLY<X> && warp < S::COUNT / PARTS<Which>)
        look_beside<F, S>(by, p, out, which, pair, warp);
    int32_t stage = 0, empty = STAGES - 1;
    for (; mine - part * F::K < l.end; mine += W::ROUND) {
        const int32_t ahead = mine + (STAGES - 1) * W::ROUND;
        w.copy(p, l, ahead, empty);
        x.turn(l.end, mine, mine + W::ROUND);
        typename S::scales scales; /* on their way while the weight is waited for */
        scales.look(p, l, out, mine - part * F::K);
        mma_copy_wait<STAGES - 2>();
        x.settle(stage);
        x.copy(l.end, ahead - part * F::K, empty); /* with which all lanes are done now */
        mma_copy_group();
        vector v[OUTPUTS];
        w.take(v, stage);
        sums.add_step_of(v, scales, p, l, out, mine, x, stage);
        empty = stage;
        stage = stage + 1 < STAGES ? stage + 1 : 0;
    }
    mma_copy_wait<0>();
    write_out(*(struct known<F, S> *)memory, p, sums, x, out, which, pair, by);
}

/* ---- launches ---- */

template <int OUTPUTS, typename Which> static dim3 grid_of(const struct product &p, unsigned blocks)
{
    const size_t cols = (size_t)(p.out / PARTS<Which>);
    return dim3(blocks_for(cols, COLUMNS * OUTPUTS / PARTS<Which>), (unsigned)p.leaves, blocks);
}

/* Bytes of shared memory that a kernel here may have: one bound for all, since a function keeps the
 * last that was set, and launches of other sizes may stand in a recording. */
constexpr size_t ALLOWED = RINGS_MAX > HALF ? RINGS_MAX : HALF;

/* share: bytes of shared memory that a block has at least. */
template <typename F, int GROUPS, int OUTPUTS, bool ALIGNED, typename X, typename Which>
static void launch_x(struct cuda_backend *c, const struct product &p, const Which &which,
                     unsigned blocks, size_t share)
{
    constexpr size_t needed = RING<OUTPUTS, X::STAGES> + X::BYTES;
    static_assert(needed <= ALLOWED && THIRD <= ALLOWED, "it is allowed");
    const size_t bytes = needed > share ? needed : share;
    const auto kernel = gemv_kernel<F, GROUPS, OUTPUTS, ALIGNED, X, Which>;
    if (bytes > 48 << 10)
        cuda_note(c, "linear",
                  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       (int)ALLOWED));
    const dim3 grid = grid_of<OUTPUTS, Which>(p, blocks);
    LAUNCH_AHEAD(c, kernel, grid, WARPS * WARP, bytes, p, which);
}

/* Stages of rings in so many bytes. */
template <typename F, int OUTPUTS, int ROWS, bool NORMED> constexpr int stages_in(size_t bytes)
{
    const int n = (int)(bytes / (RING<OUTPUTS, 1> + x_ring<F, ROWS, 1, NORMED>::BYTES));
    return n < STAGES_MOST ? n : STAGES_MOST;
}

/* true: launched with deep rings, since all blocks fit at once, so many on a multiprocessor. */
template <typename F, int OUTPUTS, int ROWS, int EACH, int SHARE, typename Which>
static bool launch_deep(struct cuda_backend *c, const struct product &p, const Which &which)
{
    constexpr int STAGES = stages_in<F, OUTPUTS, ROWS, IS_NORMED<Which>>(SHARE);
    const dim3 grid = grid_of<OUTPUTS, Which>(p, 1);
    /* of those whose scales change anywhere, registers are too few for so many blocks */
    if constexpr (STAGES >= STAGES_USUAL && F::AT_ONCE > GROUP &&
                  std::is_base_of<alone, Which>::value)
        if (grid.x * grid.y <= (unsigned)(EACH * c->processors) &&
            EACH * (SHARE + BLOCK_SHARED) <= c->shared) {
            typedef x_ring<F, ROWS, STAGES, IS_NORMED<Which>> X;
            launch_x<F, 1, OUTPUTS, true, X>(c, p, which, 1, SHARE);
            return true;
        }
    return false;
}

/* Of a ring whose blocks take each other's place; one less where so many more of them fit at once
 * as there are registers for. */
template <typename F, int OUTPUTS, int ROWS, typename Which> constexpr int stages_of()
{
    constexpr size_t stage = RING<OUTPUTS, 1> + x_ring<F, ROWS, 1, IS_NORMED<Which>>::BYTES;
    constexpr size_t blocks = RESIDENT<F, 1, rows_of<Which>, true>;
    constexpr bool all = blocks * (STAGES_USUAL * stage + BLOCK_SHARED) <= HOPPER_SHARED;
    constexpr bool less = blocks * ((STAGES_USUAL - 1) * stage + BLOCK_SHARED) <= HOPPER_SHARED;
    return ROWS == 1 && !all && less ? STAGES_USUAL - 1 : STAGES_USUAL;
}

template <typename F, int OUTPUTS, int ROWS, typename Which>
static void launch_ring(struct cuda_backend *c, const struct product &p, const Which &which,
                        unsigned blocks)
{
    constexpr bool NORMED = IS_NORMED<Which>;
    constexpr bool fits = stages_in<F, OUTPUTS, ROWS, NORMED>(RINGS_MAX) >= STAGES_USUAL;
    static_assert(fits || !NORMED, "a gain comes through the ring");
    if (launch_deep<F, OUTPUTS, ROWS, 2, HALF>(c, p, which) ||
        launch_deep<F, OUTPUTS, ROWS, 3, THIRD>(c, p, which))
        return;
    typedef x_ring<F, ROWS, stages_of<F, OUTPUTS, ROWS, Which>(), NORMED> ring;
    typedef std::conditional_t<fits, ring, x_rows<F, 1, true>> X;
    launch_x<F, 1, OUTPUTS, true, X>(c, p, which, blocks, 0);
}

/* Few of 8 rows: as many as there is room for; else of two the ring is not used. */
template <typename F, int OUTPUTS, bool NORMED, int ROWS>
constexpr bool FITS = stages_in<F, OUTPUTS, ROWS, NORMED>(RINGS_MAX) >= STAGES_USUAL;
template <typename F, int OUTPUTS, bool NORMED>
constexpr int SOME = FITS<F, OUTPUTS, NORMED, 4>              ? 4
                     : FITS<F, OUTPUTS, NORMED, 2> || !NORMED ? 2
                                                              : 1;

/* Of vectors that all begin at their size. MOST: rows of one weight, of those that are launched
 * here; blocks: of every output and leaf. */
template <typename F, int GROUPS, int OUTPUTS, int MOST, typename Which>
static void launch_outputs(struct cuda_backend *c, const struct product &p, const Which &which,
                           int32_t rows, unsigned blocks)
{
    constexpr int FEW = SOME<F, OUTPUTS, IS_NORMED<Which>>;
    if constexpr (MOST > GROUP)
        launch_x<F, GROUPS, OUTPUTS, true, x_rows<F, GROUPS, true>>(c, p, which, blocks, 0);
    else if constexpr (MOST == 1)
        launch_ring<F, OUTPUTS, 1>(c, p, which, blocks);
    else if (rows == 1)
        launch_ring<F, OUTPUTS, 1>(c, p, which, blocks);
    else if (IS_NORMED<Which> || rows <= FEW)
        launch_ring<F, OUTPUTS, FEW>(c, p, which, blocks);
    else if constexpr (!IS_NORMED<Which>)
        launch_ring<F, OUTPUTS, GROUP>(c, p, which, blocks);
}

template <typename F, int GROUPS, typename Which>
static void launch(struct cuda_backend *c, const struct product &p, const Which &which,
                   int32_t rows, unsigned blocks)
{
    constexpr int USUAL = OUTPUTS_OF<F, GROUPS>, FEW = OUTPUTS_FEW<F, GROUPS>;
    constexpr int MOST = GROUPS * GROUP, MOST_FEW = FEW == USUAL ? MOST : 1;
    const size_t usual = blocks_for((size_t)p.out, COLUMNS * USUAL) * (size_t)p.leaves * blocks;
    if constexpr (!IS_NORMED<Which> && !IS_GATED<Which>)
        if (!is_aligned<F>(p)) {
            launch_x<F, GROUPS, USUAL, false, x_rows<F, GROUPS, false>>(c, p, which, blocks, 0);
            return;
        }
    if (FEW == USUAL || rows > 1 || usual > 2 * (size_t)c->processors)
        launch_outputs<F, GROUPS, USUAL, MOST>(c, p, which, rows, blocks);
    else
        launch_outputs<F, GROUPS, FEW, MOST_FEW>(c, p, which, rows, blocks);
}

#endif
