/* DESIGN: few rows. The weight is read once, and its bytes are what takes time. They come through a
 * ring in shared memory that each thread fills and empties for itself, without a barrier, whatever
 * registers computing takes; some 32 KiB under way on a multiprocessor cover the latency of an
 * H200's memory. The ring fills while the kernel that makes x is still running.
 *
 * What a warp does between two vectors must not wait, or its share of the memory does. A load of x
 * would: it queues behind all that is under way of the weight. So x comes through a ring of its
 * own, in the same groups of copies, by way of the multiprocessor's cache, for which the rings
 * leave room. Where that ring would be too large x is loaded to registers, one step ahead if they
 * suffice.
 *
 * Most products have so many blocks that some end early and others take their place: they share
 * the memory evenly. Where all fit at once, as those of the widths in a model, the slowest
 * multiprocessor decides. So each block asks for such a part of the shared memory that no
 * multiprocessor has more of them than another, and makes its ring as deep as that: most of a small
 * weight is there when x is. On an H200 that took a layer of a decode, Llama 3.1 8B's, from 127 us
 * to 122; with prefetches to the cache of all multiprocessors instead it was 9 us slower than
 * without.
 *
 * The warps of a block share its outputs, and each has a turn of the steps (product.cuh): rows are
 * read in runs of 512 bytes.
 *
 * Rejected: splitting k over blocks (sums would need a second pass), and measured as slower: bulk
 * copies by a warp of their own, blocks that stay for several outputs, warps with rows of their
 * own, loads to registers. */
#include "kernels/cuda/gemv.cuh"

#define STAGES_MOST 11   /* of a ring whose blocks fit at once: of a multiprocessor's memory */
#define HALF (112 << 10) /* each of two has so many bytes, on Hopper, */
#define THIRD (68 << 10) /* or of three, which leaves some to kernels between two products */
#define RESERVED 1024    /* of each block, not its own */
#define RINGS_MAX 98304  /* bytes of a block: all devices have them, an H200 twice */

/* ---- a block's rows ---- */

DEVICE int32_t y_row(alone, int32_t t, int32_t)
{
    return t;
}

DEVICE int32_t y_row(const struct mixture &, int32_t, int32_t pair)
{
    return pair;
}

/* The pairs of few rows that take the block's expert, from the skip-th on, of which a lane gets its
 * own; returns how many. Blocks are those of all experts or, if these are fewer, of all pairs, of
 * which the first of an expert has its rows. */
template <int GROUPS>
DEVICE int32_t find_rows(int32_t *expert, int32_t (&mine)[GROUPS], const struct mixture &m,
                         int32_t *pair_of)
{
    const int32_t pairs = m.rows * m.chosen, block = (int32_t)blockIdx.z;
    const bool by_pair = pairs < m.experts;
    int32_t n = 0, first = 0;
    if (m.rows == 1) { /* as many blocks as it has experts, in their order */
        *expert = m.expert[block];
        mine[0] = block;
        return 1;
    }
    *expert = by_pair ? m.expert[block] : block;
    if (threadIdx.x < GEMV_ROWS)
        pair_of[threadIdx.x] = -1;
    __syncthreads();
    for (int32_t i = (int32_t)threadIdx.x; i < pairs; i += WARPS * WARP)
        if (m.expert[i] == *expert)
            pair_of[i / m.chosen] = i;
    __syncthreads();
    for (int32_t t = 0; t < m.rows; t++) {
        const int32_t pair = pair_of[t];
        if (pair < 0)
            continue;
        first = n == 0 ? pair : first;
#pragma unroll
        for (int g = 0; g < GROUPS; g++)
            if (n - m.skip == g * GROUP + (int32_t)threadIdx.x % WARP / PART)
                mine[g] = pair;
        n++;
    }
    __syncthreads(); /* pair_of is used for other things */
    return (by_pair && first != block) || n < m.skip ? 0 : n - m.skip;
}

template <int GROUPS>
DEVICE const struct product &product_here(const struct product &all, alone, int32_t (&)[GROUPS],
                                          void *)
{
    return all;
}

/* That of the block's expert, and the pairs of the lane's rows. rows 0: there is none. */
template <int GROUPS>
DEVICE struct product product_here(const struct product &all, const struct mixture &m,
                                   int32_t (&mine)[GROUPS], void *shared)
{
    struct product p = all;
    int32_t expert = 0;
    p.rows = 0;
    launch_wait(); /* the experts are a kernel's result */
    if (m.tile == nullptr) {
        p.rows = find_rows<GROUPS>(&expert, mine, m, (int32_t *)shared);
    } else if ((int32_t)blockIdx.z < *m.tiles) {
        const struct tile t = m.tile[blockIdx.z];
        expert = t.expert;
        p.rows = t.rows < m.skip ? 0 : t.rows - m.skip;
#pragma unroll
        for (int g = 0; g < GROUPS; g++) {
            const int32_t at = g * GROUP + (int32_t)threadIdx.x % WARP / PART;
            if (at < p.rows)
                mine[g] = m.order[t.begin + m.skip + at];
        }
    }
    p.w = m.weight[expert];
    return p;
}

/* ---- the product ---- */

/* The sums of all warps, in their order, to y; `shared` has room for them. */
template <typename F, typename S, int GROUPS, typename Which>
DEVICE void write_out(const struct product &p, const S &sums, int32_t first, void *shared,
                      const Which &which, const int32_t (&pair)[GROUPS])
{
    typedef float of_lanes[S::COUNT][WARP];
    of_lanes *of_warp = (of_lanes *)shared;
    float *y = p.y + blockIdx.y * p.leaf_pitch;
    const int32_t warp = (int32_t)threadIdx.x / WARP, lane = (int32_t)threadIdx.x % WARP;
    __syncthreads(); /* nobody needs the ring any more */
#pragma unroll
    for (int i = 0; i < S::COUNT; i++)
        of_warp[warp][i][lane] = sums.get(i);
    __syncthreads();
    for (int32_t i = warp; i < S::COUNT; i += WARPS) {
        const int32_t o = S::output(first, i), t = S::row(i), its = S::pair(pair, i);
        float total = of_warp[0][i][lane];
        for (int32_t from = 1; from < WARPS; from++)
            total += of_warp[from][i][lane];
        if (o < p.out && t < p.rows)
            y[(int64_t)y_row(which, t, its) * p.out + o] =
                F::SCALES == PER_ROW ? total * row_scale(p, o) : total;
    }
}

/* Of a lane, among which the splitting of x is shared: the more the fewer bytes a weight has, since
 * instructions take longer than the memory then; as registers allow. */
template <typename F, int GROUPS>
constexpr int OUTPUTS_OF = F::SCALES == GROUPED ? 5 - GROUPS
                           : F::K > 8           ? (F::PIECES *GROUPS < 4 ? 4 : 3)
                                                : 2 * GROUPS;
template <> constexpr int OUTPUTS_OF<form_int4<true>, 1> = 2;
template <> constexpr int OUTPUTS_OF<form_f8<PER_STEP>, 2> = 3;
/* The same of one row where there would be fewer blocks than two for each multiprocessor. */
template <typename F, int GROUPS>
constexpr int OUTPUTS_FEW = GROUPS == 1 && OUTPUTS_OF<F, GROUPS> > 2 ? 2 : OUTPUTS_OF<F, GROUPS>;

/* Blocks of a multiprocessor, for which there have to be registers. */
template <typename F, int GROUPS, typename Which, bool ALIGNED>
constexpr int RESIDENT = F::AT_ONCE == GROUP || (!ALIGNED && F::K > CUDA_VECTOR) ? 1 : 2;
template <typename F, int GROUPS> constexpr int RESIDENT<F, GROUPS, mixture, false> = 1;
template <> constexpr int RESIDENT<form_f8<PER_STEP>, 2, mixture, true> = 1;
template <> constexpr int RESIDENT<form_f8<PER_STEP>, 2, alone, false> = 1;
template <> constexpr int RESIDENT<form_bf16, 1, alone, true> = 4;
template <> constexpr int RESIDENT<form_f8<PER_ROW>, 1, alone, true> = 3;

/* ---- the kernel ---- */

/* Block (outputs, leaf, expert or tile). GROUPS: of rows of x. Parameters that are indexed would be
 * copied to memory by every thread if they were not __grid_constant__. */
template <typename F, int GROUPS, int OUTPUTS, bool ALIGNED, typename X, typename Which>
__global__ void __launch_bounds__(WARPS *WARP, RESIDENT<F, GROUPS, Which, ALIGNED>)
    gemv_kernel(const __grid_constant__ struct product all, Which which)
{
    constexpr int STAGES = X::STAGES;
    typedef struct w_ring<F, OUTPUTS, ALIGNED, STAGES> W;
    typedef pack<uint32_t, 4> vector;
    SHARED_DYNAMIC(vector, memory);
    const int32_t warp = (int32_t)threadIdx.x / WARP, part = (int32_t)threadIdx.x % PART;
    const int32_t first = (int32_t)blockIdx.x * COLUMNS * OUTPUTS;
    const struct leaf l = leaf_of(all, (int32_t)blockIdx.y);
    int32_t pair[GROUPS] = {};
    launch_release();
    const auto &p = product_here(all, which, pair, memory);
    if (p.rows == 0) /* of a mixture, for which this has waited */
        return;
    typename X::template sums<OUTPUTS> sums;
    /* The lane's first column of a step; the next one of the warp's turn is ROUND on. */
    int32_t mine = l.begin + (warp * PART + part) * F::K;
    W w;
    X x;
    w.open(p, first, mine, memory);
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
    int32_t stage = 0, empty = STAGES - 1;
    for (; mine - part * F::K < l.end; mine += W::ROUND) {
        const int32_t ahead = mine + (STAGES - 1) * W::ROUND;
        w.copy(p, l, ahead, empty);
        x.turn(l.end, mine, mine + W::ROUND);
        typename decltype(sums)::scales scales; /* on their way while the weight is waited for */
        scales.look(p, l, first, mine - part * F::K);
        mma_copy_wait<STAGES - 2>();
        x.settle(stage);
        x.copy(l.end, ahead - part * F::K, empty); /* with which all lanes are done now */
        mma_copy_group();
        vector v[OUTPUTS];
        w.take(v, stage);
        sums.add_step_of(v, scales, p, l, first, mine, x, stage);
        empty = stage;
        stage = stage + 1 < STAGES ? stage + 1 : 0;
    }
    mma_copy_wait<0>();
    write_out<F>(p, sums, first, memory, which, pair);
}

/* ---- launches ---- */

template <int OUTPUTS> static dim3 grid_of(const struct product &p, unsigned blocks)
{
    return dim3(blocks_for((size_t)p.out, COLUMNS * OUTPUTS), (unsigned)p.leaves, blocks);
}

/* share: bytes of shared memory that a block has at least. */
template <typename F, int GROUPS, int OUTPUTS, bool ALIGNED, typename X, typename Which>
static void launch_x(struct cuda_backend *c, const struct product &p, const Which &which,
                     unsigned blocks, size_t share)
{
    constexpr size_t needed = RING<OUTPUTS, X::STAGES> + X::BYTES;
    const size_t bytes = needed > share ? needed : share;
    const auto kernel = gemv_kernel<F, GROUPS, OUTPUTS, ALIGNED, X, Which>;
    if (bytes > 48 << 10)
        cuda_note(
            c, "linear",
            cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
    LAUNCH_AHEAD(c, kernel, grid_of<OUTPUTS>(p, blocks), WARPS * WARP, bytes, p, which);
}

/* Stages of rings in so many bytes. */
template <typename F, int OUTPUTS, int ROWS> constexpr int stages_in(size_t bytes)
{
    const int n = (int)(bytes / (RING<OUTPUTS, 1> + x_ring<F, ROWS, 1>::BYTES));
    return n < STAGES_MOST ? n : STAGES_MOST;
}

/* true: launched with deep rings, since all blocks fit at once, so many on a multiprocessor. */
template <typename F, int OUTPUTS, int ROWS, int EACH, int SHARE, typename Which>
static bool launch_deep(struct cuda_backend *c, const struct product &p, const Which &which)
{
    constexpr int STAGES = stages_in<F, OUTPUTS, ROWS>(SHARE);
    const dim3 grid = grid_of<OUTPUTS>(p, 1);
    /* of those whose scales change anywhere, registers are too few for so many blocks */
    if constexpr (STAGES > STAGES_USUAL && F::AT_ONCE > GROUP && std::is_same<Which, alone>::value)
        if (grid.x * grid.y <= (unsigned)(EACH * c->processors) &&
            EACH * (SHARE + RESERVED) <= c->shared) {
            launch_x<F, 1, OUTPUTS, true, x_ring<F, ROWS, STAGES>>(c, p, which, 1, SHARE);
            return true;
        }
    return false;
}

template <typename F, int OUTPUTS, int ROWS, typename Which>
static void launch_ring(struct cuda_backend *c, const struct product &p, const Which &which,
                        unsigned blocks)
{
    constexpr bool fits = stages_in<F, OUTPUTS, ROWS>(RINGS_MAX) >= STAGES_USUAL;
    if (launch_deep<F, OUTPUTS, ROWS, 2, HALF>(c, p, which) ||
        launch_deep<F, OUTPUTS, ROWS, 3, THIRD>(c, p, which))
        return;
    typedef std::conditional_t<fits, x_ring<F, ROWS, STAGES_USUAL>, x_rows<F, 1, true>> X;
    launch_x<F, 1, OUTPUTS, true, X>(c, p, which, blocks, 0);
}

/* MOST: rows of one weight, of those that are launched here; blocks: of every output and leaf. */
template <typename F, int GROUPS, int OUTPUTS, int MOST, typename Which>
static void launch_outputs(struct cuda_backend *c, const struct product &p, const Which &which,
                           int32_t rows, unsigned blocks)
{
    constexpr int SOME = stages_in<F, OUTPUTS, 4>(RINGS_MAX) >= STAGES_USUAL ? 4 : 2;
    if (!is_aligned<F>(p))
        launch_x<F, GROUPS, OUTPUTS, false, x_rows<F, GROUPS, false>>(c, p, which, blocks, 0);
    else if constexpr (MOST > GROUP)
        launch_x<F, GROUPS, OUTPUTS, true, x_rows<F, GROUPS, true>>(c, p, which, blocks, 0);
    else if constexpr (MOST == 1)
        launch_ring<F, OUTPUTS, 1>(c, p, which, blocks);
    else if (rows == 1)
        launch_ring<F, OUTPUTS, 1>(c, p, which, blocks);
    else if (rows <= SOME)
        launch_ring<F, OUTPUTS, SOME>(c, p, which, blocks);
    else
        launch_ring<F, OUTPUTS, GROUP>(c, p, which, blocks);
}

template <typename F, int GROUPS, typename Which>
static void launch(struct cuda_backend *c, const struct product &p, const Which &which,
                   int32_t rows, unsigned blocks)
{
    constexpr int USUAL = OUTPUTS_OF<F, GROUPS>, FEW = OUTPUTS_FEW<F, GROUPS>;
    constexpr int MOST = GROUPS * GROUP, MOST_FEW = FEW == USUAL ? MOST : 1;
    const size_t usual = blocks_for((size_t)p.out, COLUMNS * USUAL) * (size_t)p.leaves * blocks;
    if (FEW == USUAL || rows > 1 || usual > 2 * (size_t)c->processors)
        launch_outputs<F, GROUPS, USUAL, MOST>(c, p, which, rows, blocks);
    else
        launch_outputs<F, GROUPS, FEW, MOST_FEW>(c, p, which, rows, blocks);
}

/* rows: most of one weight, for which there are kernels. */
template <typename F, typename Which>
static void launch_few(struct cuda_backend *c, const struct product &p, const Which &which,
                       int32_t rows, unsigned blocks)
{
    if (rows <= GROUP)
        launch<F, 1>(c, p, which, rows, blocks);
    else
        launch<F, F::AT_ONCE / GROUP>(c, p, which, rows, blocks);
}

/* As many rows at once as the form takes. */
template <typename F> static void passes(struct cuda_backend *c, struct product p)
{
    for (int32_t left = p.rows; left > 0; left -= F::AT_ONCE) {
        p.rows = left < F::AT_ONCE ? left : F::AT_ONCE;
        launch_few<F>(c, p, alone(), p.rows, 1);
        p.x += (int64_t)F::AT_ONCE * p.x_pitch;
        p.y += (int64_t)F::AT_ONCE * p.out;
    }
}

/* The same of each expert's rows. */
template <typename F>
static void expert_passes(struct cuda_backend *c, const struct product &p, struct mixture m)
{
    const int32_t rows = m.tile != nullptr ? m.tile_rows : m.rows;
    for (m.skip = 0; m.skip < rows; m.skip += F::AT_ONCE)
        launch_few<F>(c, p, m, rows - m.skip, (unsigned)m.places);
}

void gemv_run(struct cuda_backend *c, const struct weight_spec *s, const struct product *p)
{
    with_form(s, *p, [&](auto form) { passes<decltype(form)>(c, *p); });
}

void gemv_experts(struct cuda_backend *c, const struct weight_spec *s, const struct product *p,
                  const struct mixture *m)
{
    with_form(s, *p, [&](auto form) { expert_passes<decltype(form)>(c, *p, *m); });
}
