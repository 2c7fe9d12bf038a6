/* DESIGN: few rows. The weight is read once, and its bytes are what takes time. They come through a
 * ring in shared memory that each thread fills and empties for itself, without a barrier: a block
 * of 8 warps has up to 40 KiB under way while it computes, whatever registers that takes, and some
 * 25 KiB on a multiprocessor cover the latency of an H200's memory.
 *
 * The warps of a block share its outputs, and each has a turn of the steps (product.cuh): rows are
 * read in runs of 512 bytes. The ring fills while the kernel that makes x is still running.
 *
 * Rejected: a pass that splits x ahead (a launch more; splitting hides behind the loads), and
 * splitting k over blocks (small weights would like it, but sums would need a second pass). */
#include "kernels/cuda/product.cuh"

#define WARPS TURNS
#define SLOTS 6 /* vectors of a thread in the ring, times two */

/* ---- the product ---- */

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

/* The sums of all warps, in their order, to y; `shared` has room for them. */
template <typename F, int GROUPS, int N>
DEVICE void write_out(const struct product &p, struct leaf l, const float (&sum)[GROUPS][N],
                      int32_t first, void *shared)
{
    typedef float sums[GROUPS * N][WARP];
    sums *of_warp = (sums *)shared;
    float *y = p.y + blockIdx.y * p.leaf_pitch;
    const int32_t warp = (int32_t)threadIdx.x / WARP, lane = (int32_t)threadIdx.x % WARP;
    __syncthreads(); /* nobody needs the ring any more */
#pragma unroll
    for (int i = 0; i < GROUPS * N; i++)
        of_warp[warp][i][lane] = sum[i / N][i % N];
    __syncthreads();
    for (int32_t i = warp; i < GROUPS * N; i += WARPS) {
        const int32_t o = output_of(first, i % N), t = i / N * GROUP + lane / PART;
        float total = of_warp[0][i][lane];
        for (int32_t from = 1; from < WARPS; from++)
            total += of_warp[from][i][lane];
        if (o < p.out && t < p.rows)
            y[(int64_t)t * p.out + o] =
                F::SCALES == PER_ROW ? total * f8_scale(p, l, o, l.begin) : total;
    }
}

/* Block (outputs, leaf). GROUPS: of rows of x. More of them want more outputs, among which their
 * splitting is shared. */
template <typename F, int GROUPS, bool ALIGNED>
__global__ void __launch_bounds__(WARPS *WARP, 2) gemv_kernel(struct product p)
{
    constexpr int OUTPUTS = 2 * GROUPS, STAGES = SLOTS / GROUPS, ROUND = WARPS * PART * F::K;
    __shared__ pack<uint32_t, 4> ring[STAGES][OUTPUTS][WARPS * WARP];
    const int32_t warp = (int32_t)threadIdx.x / WARP, lane = (int32_t)threadIdx.x % WARP;
    const int32_t first = (int32_t)blockIdx.x * COLUMNS * OUTPUTS;
    const struct leaf l = leaf_of(p, (int32_t)blockIdx.y);
    const float *x[GROUPS]; /* a row that is not there is the first: nobody takes its sums */
    float sum[GROUPS][OUTPUTS * 2] = {};
    const unsigned char *w[OUTPUTS];
#pragma unroll
    for (int o = 0; o < OUTPUTS; o++)
        w[o] = output_row(p, first + o * COLUMNS + lane / PART);
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        const int32_t t = g * GROUP + lane / PART;
        x[g] = p.x + (int64_t)(t < p.rows ? t : 0) * p.x_pitch;
    }
    /* mine: the lane's first column of a step; the next one of the warp's turn is ROUND on */
    const auto fetch = [&](int32_t mine, int32_t stage) {
#pragma unroll
        for (int o = 0; o < OUTPUTS; o++)
            copy_weight<F, ALIGNED>(&ring[stage][o][threadIdx.x], p, l, w[o], mine);
        mma_copy_group();
    };
    int32_t mine = l.begin + (warp * PART + lane % PART) * F::K, stage = 0;
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++)
        fetch(mine + s * ROUND, s);
    launch_wait(); /* the weight is no kernel's result, x is */
    for (; mine - lane % PART * F::K < l.end; mine += ROUND) {
        fetch(mine + (STAGES - 1) * ROUND, stage == 0 ? STAGES - 1 : stage - 1);
        mma_copy_wait<STAGES - 1>();
        pack<uint32_t, 4> v[OUTPUTS];
#pragma unroll
        for (int o = 0; o < OUTPUTS; o++)
            v[o] = ring[stage][o][threadIdx.x];
        float part[GROUPS][OUTPUTS][4] = {};
        multiply<F, GROUPS, OUTPUTS>(part, v, p, l, first, mine, [&](float(&f)[4], int g, int i) {
            load_x<ALIGNED>(f, x[g], l.end, mine + i);
        });
        add_step<F, GROUPS, OUTPUTS>(sum, part, p, l, first, mine - lane % PART * F::K);
        stage = stage + 1 < STAGES ? stage + 1 : 0;
    }
    mma_copy_wait<0>();
    write_out<F, GROUPS>(p, l, sum, first, ring);
}

/* ---- launches ---- */

template <typename F, int GROUPS>
static void launch(struct cuda_backend *c, const struct product &p)
{
    const dim3 grid(blocks_for((size_t)p.out, COLUMNS * 2 * GROUPS), (unsigned)p.leaves);
    if (is_aligned<F>(p))
        LAUNCH_AHEAD(c, (gemv_kernel<F, GROUPS, true>), grid, WARPS * WARP, 0, p);
    else
        LAUNCH_AHEAD(c, (gemv_kernel<F, GROUPS, false>), grid, WARPS * WARP, 0, p);
}

/* As many rows at once as the form takes. */
template <typename F> static void passes(struct cuda_backend *c, struct product p)
{
    for (int32_t left = p.rows; left > 0; left -= F::AT_ONCE) {
        p.rows = left < F::AT_ONCE ? left : F::AT_ONCE;
        if (p.rows <= GROUP)
            launch<F, 1>(c, p);
        else
            launch<F, F::AT_ONCE / GROUP>(c, p);
        p.x += (int64_t)F::AT_ONCE * p.x_pitch;
        p.y += (int64_t)F::AT_ONCE * p.out;
    }
}

void gemv_run(struct cuda_backend *c, const struct weight_spec *s, const struct product *p)
{
    with_form(s, *p, [&](auto form) { passes<decltype(form)>(c, *p); });
}
