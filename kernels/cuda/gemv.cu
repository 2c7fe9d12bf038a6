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
 * to 122, with all of the shared memory; with prefetches to the cache of all multiprocessors
 * instead it was 9 us slower than without. Some of it is left, so that a block of the kernel behind
 * is there, and its weight on the way, when these end.
 *
 * The warps of a block share its outputs, and each has a turn of the steps (product.cuh): rows are
 * read in runs of 512 bytes.
 *
 * Rejected: splitting k over blocks (sums would need a second pass), and measured as slower: bulk
 * copies by a warp of their own, blocks that stay for several outputs, warps with rows of their
 * own, loads to registers. */
#include "kernels/cuda/gemv_launch.cuh"

/* ---- rows of a mixture ---- */

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

/* The product of the block's expert, and the pairs of the lane's rows. rows 0: there is none. */
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

/* ---- launches ---- */

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
template <typename F>
static void passes(struct cuda_backend *c, struct product p, const struct alone &which)
{
    for (int32_t left = p.rows; left > 0; left -= F::AT_ONCE) {
        p.rows = left < F::AT_ONCE ? left : F::AT_ONCE;
        launch_few<F>(c, p, which, p.rows, 1);
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
    with_form(s, *p, [&](auto form) { passes<decltype(form)>(c, *p, alone()); });
}

void gemv_add(struct cuda_backend *c, const struct weight_spec *s, const struct product *p)
{
    with_form(s, *p, [&](auto form) { passes<decltype(form)>(c, *p, alone{true}); });
}

void gemv_experts(struct cuda_backend *c, const struct weight_spec *s, const struct product *p,
                  const struct mixture *m)
{
    with_form(s, *p, [&](auto form) { expert_passes<decltype(form)>(c, *p, *m); });
}
