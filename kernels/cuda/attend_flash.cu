/* DESIGN: runs of rows (chunks of prompts) by tensor cores. One block per (some rows, KV head): the
 * query heads that read the KV head are rows of the same tile, so that keys and values are loaded
 * once for all of them. Each warp has 16 * TILES rows of the tile, with their scores, maxima, sums
 * and output in registers; keys and values pass through shared memory in steps of KEYS, the next
 * step being copied while this one is computed.
 *
 * Queries and weights are rounded to the type of the keys (bf16 where those are narrower), sums are
 * fp32. A row takes its keys in the same steps wherever it lies in a tile, and steps in which it
 * sees nothing change no bit of it: its result depends on no other row. */
#include "kernels/cuda/attend_flash.cuh"

#define THREADS 128
#define WARPS (THREADS / WARP)

/* E: as stored; C: as multiplied. Rows in shared memory are padded by 16 bytes: eight that lie
 * below each other are in different banks. */
template <typename E_, typename C_, int DIM_, int TILES_, int KEYS_> struct plan {
    typedef E_ E;
    typedef C_ C;
    static constexpr int DIM = DIM_, TILES = TILES_, KEYS = KEYS_;
    static constexpr int ROWS = WARPS * 16 * TILES, PITCH = DIM + 8;
    static constexpr int QUERY = ROWS * PITCH, STAGE = 2 * KEYS * PITCH; /* elements */
    static constexpr size_t BYTES = (QUERY + 2 * STAGE) * sizeof(C);
    static constexpr int VEC = 16 / (int)sizeof(E), CHUNKS = DIM / VEC; /* loads of a key */
};

/* Of queries of type Q. The loads of some pairs are under way together; instead of a row that the
 * run does not have the tile's first one is read. */
template <typename P, typename Q>
DEVICE void load_pairs(typename P::C *q, const struct attend_args &a, const struct span &s)
{
    constexpr int PAIRS = P::DIM / 2, ALL = P::ROWS * PAIRS / THREADS, ONCE = 4;
    static_assert(P::ROWS * PAIRS % THREADS == 0 && ALL % ONCE == 0, "a thread has whole ones");
#pragma unroll 1
    for (int32_t i = 0; i < ALL; i += ONCE) {
        pack<Q, 2> x[ONCE];
#pragma unroll
        for (int u = 0; u < ONCE; u++) {
            const int32_t n = (int32_t)threadIdx.x + (i + u) * THREADS, r = n / PAIRS;
            const int32_t there = span_has(s, r) ? r : 0;
            const int64_t from =
                attend_query(&a, s.tile + there / s.heads, s.first + there % s.heads);
            x[u] = *(const pack<Q, 2> *)((const Q *)a.qkv.data + from + n % PAIRS * 2);
        }
#pragma unroll
        for (int u = 0; u < ONCE; u++) {
            const int32_t n = (int32_t)threadIdx.x + (i + u) * THREADS, r = n / PAIRS;
            float v[2];
            widen(v, x[u]);
            *(uint32_t *)(q + r * P::PITCH + n % PAIRS * 2) =
                span_has(s, r) ? mma_pair(v[0], v[1], typename P::C()) : 0;
        }
    }
}

template <typename P>
DEVICE void load_queries(typename P::C *q, const struct attend_args &a, const struct span &s)
{
    WITH_TYPE(a.qkv.dtype, load_pairs<P, E>(q, a, s));
}

/* The nth KEYS keys, then their values; zeros beyond the last, where nothing was ever written, and
 * in blocks before the window, which are others' by now. A cache block's keys lie together. */
template <typename P>
DEVICE void load_keys(typename P::C *stage, const struct attend_args &a, const typename P::E *cache,
                      const struct span &s, int32_t nth)
{
    constexpr int BLOCK = BACKEND_BLOCK_TOKENS, LOADS = BLOCK * P::CHUNKS;
    const int32_t seen = attend_first(&a, s.run->least) / BLOCK * BLOCK;
#pragma unroll
    for (int32_t b = 0; b < P::KEYS; b += BLOCK) {
        const int32_t first = nth * P::KEYS + b;
        const int32_t at = first < seen           ? seen
                           : first <= s.run->last ? first
                                                  : s.run->last; /* a block there is in any case */
        const int32_t block = kv_block(&a.rows, s.run->slot, at / BLOCK);
        const typename P::E *key = cache + kv_index(&a.kv, block, s.kv_head, false);
#pragma unroll
        for (int i = 0; i < LOADS; i += THREADS) {
            const uint32_t n = threadIdx.x + i, j = n / P::CHUNKS, e = n % P::CHUNKS * P::VEC;
            if (LOADS % THREADS != 0 && n >= LOADS)
                break;
            const bool there = first >= seen && first + (int32_t)j <= s.run->last;
            typename P::C *to = stage + (b + j) * P::PITCH + e;
            load_chunk(to, key + n * P::VEC, there);
            load_chunk(to + P::KEYS * P::PITCH, key + BLOCK * P::DIM + n * P::VEC, there);
        }
    }
    mma_copy_group();
}

/* Scores of the lane's rows against the keys of a stage. */
template <typename P>
DEVICE void multiply_keys(struct rows_of_lane<P> &l, const typename P::C *q,
                          const typename P::C *keys)
{
    const int32_t lane = (int32_t)threadIdx.x % WARP, warp = (int32_t)threadIdx.x / WARP;
    const typename P::C *row = q + (warp * P::TILES * 16 + lane % 16) * P::PITCH + lane / 16 * 8;
    const typename P::C *key = keys + (lane / 16 * 8 + lane % 8) * P::PITCH + lane / 8 % 2 * 8;
#pragma unroll
    for (int t = 0; t < P::TILES; t++)
#pragma unroll
        for (int n = 0; n < P::KEYS / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                l.score[t][n][i] = 0;
#pragma unroll
    for (int e = 0; e < P::DIM; e += 16) {
        uint32_t x[P::TILES][4];
#pragma unroll
        for (int t = 0; t < P::TILES; t++)
            mma_load(x[t], row + t * 16 * P::PITCH + e);
#pragma unroll
        for (int n = 0; n < P::KEYS / 8; n += 2) {
            uint32_t k[4];
            mma_load(k, key + n * 8 * P::PITCH + e);
#pragma unroll
            for (int t = 0; t < P::TILES; t++) {
                mma_multiply(l.score[t][n], x[t], k[0], k[1], typename P::C());
                mma_multiply(l.score[t][n + 1], x[t], k[2], k[3], typename P::C());
            }
        }
    }
}

/* out += weights * values. Two 16 x 8 results side by side are, rounded, a 16 x 16 factor. */
template <typename P>
DEVICE void multiply_values(struct rows_of_lane<P> &l, const typename P::C *values)
{
    const int32_t lane = (int32_t)threadIdx.x % WARP;
    const typename P::C *value = values + lane % 16 * P::PITCH + lane / 16 * 8;
#pragma unroll
    for (int j = 0; j < P::KEYS / 8; j += 2) {
        uint32_t x[P::TILES][4];
#pragma unroll
        for (int t = 0; t < P::TILES; t++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float *pair = l.score[t][j + i / 2] + i % 2 * 2;
                x[t][i] = mma_pair(pair[0], pair[1], typename P::C());
            }
#pragma unroll
        for (int n = 0; n < P::DIM / 8; n += 2) {
            uint32_t v[4];
            mma_load_transposed(v, value + j * 8 * P::PITCH + n * 8);
#pragma unroll
            for (int t = 0; t < P::TILES; t++) {
                mma_multiply(l.out[t][n], x[t], v[0], v[1], typename P::C());
                mma_multiply(l.out[t][n + 1], x[t], v[2], v[3], typename P::C());
            }
        }
    }
}

template <typename P>
DEVICE void attend_span(typename P::C *shared, const struct attend_args &a,
                        const typename P::E *cache, const struct span &s)
{
    typename P::C *q = shared, *stage = shared + P::QUERY;
    struct rows_of_lane<P> l = {
    };
#pragma unroll
    for (int t = 0; t < P::TILES; t++)
#pragma unroll
        for (int half = 0; half < 2; half++)
            l.max[t][half] = -INFINITY;
    const int32_t begin = attend_first(&a, s.run->least) / P::KEYS;
    const int32_t whole =
        attend_first(&a, s.run->last); /* all rows see the keys from here to s.run->least */
    const float scale = a.softcap > 0 ? 1 : a.scale;
    load_keys<P>(stage + begin % 2 * P::STAGE, a, cache, s, begin);
    load_queries<P>(q, a, s);
    for (int32_t nth = begin; nth <= s.run->last / P::KEYS; nth++) {
        typename P::C *now = stage + nth % 2 * P::STAGE, *next = stage + (nth + 1) % 2 * P::STAGE;
        if (nth < s.run->last / P::KEYS)
            load_keys<P>(next, a, cache, s, nth + 1);
        else
            mma_copy_group(); /* an empty one: the wait counts groups */
        mma_copy_wait<1>();
        __syncthreads();
        multiply_keys<P>(l, q, now);
        if (a.softcap > 0)
            cap_scores<P>(l, a);
        if (nth * P::KEYS + P::KEYS - 1 > s.run->least || nth * P::KEYS < whole)
            mask<P>(l, a, s, nth * P::KEYS);
#pragma unroll
        for (int t = 0; t < P::TILES; t++)
#pragma unroll
            for (int half = 0; half < 2; half++)
                shrink<P>(l, t, half, weigh<P>(l, t, half, scale));
        multiply_values<P>(l, now + P::KEYS * P::PITCH);
        __syncthreads(); /* the stage is copied into again */
    }
    write_rows<P>(l, a, s, scale);
}

/* Block (`rows` rows, KV head). Those that see most begin first, so that none ends late. */
template <typename P>
__global__ void __launch_bounds__(THREADS)
    attend_flash_kernel(struct attend_args a, const typename P::E *cache, int32_t rows)
{
    typedef pack<uint32_t, 4> aligned;
    __shared__ struct runs<P::ROWS> all;
    SHARED_DYNAMIC(aligned, memory);
    const int32_t tile = (int32_t)(gridDim.x - 1 - blockIdx.x) * rows, most = P::ROWS / rows;
    const int32_t past = tile + rows < a.rows.count ? tile + rows : a.rows.count;
    const int32_t mine = tile + (int32_t)threadIdx.x;
    static_assert(P::ROWS <= THREADS, "a thread looks at each row");
    if (!__syncthreads_or(mine < past && attend_is_in_run(&a, mine)))
        return;
    find_runs(all, a, tile, past);
    walk_spans(all, tile, most,
               [&](const struct span &s) { attend_span<P>((typename P::C *)memory, a, cache, s); });
}

template <typename P>
static void launch(struct cuda_backend *c, const struct attend_args *a, const void *cache)
{
    const int32_t rows = flash_rows(a, P::ROWS);
    const dim3 grid(blocks_for((size_t)a->rows.count, (unsigned)rows), (unsigned)a->kv.heads);
    cuda_note(c, "attend",
              cudaFuncSetAttribute(attend_flash_kernel<P>,
                                   cudaFuncAttributeMaxDynamicSharedMemorySize, (int)P::BYTES));
    LAUNCH(c, attend_flash_kernel<P>, grid, THREADS, P::BYTES, *a, (const typename P::E *)cache,
           rows);
}

template <typename E, typename C>
static bool launch_dim(struct cuda_backend *c, const struct attend_args *a, const void *cache)
{
    switch (a->kv.dim) {
    case 64:
        launch<plan<E, C, 64, 2, 64>>(c, a, cache);
        return true;
    case 80:
        launch<plan<E, C, 80, 2, 64>>(c, a, cache);
        return true;
    case 96:
        launch<plan<E, C, 96, 2, 32>>(c, a, cache);
        return true;
    case 128:
        launch<plan<E, C, 128, 2, 32>>(c, a, cache);
        return true;
    case 256:
        launch<plan<E, C, 256, 1, 32>>(c, a, cache);
        return true;
    default:
        return false;
    }
}

bool attend_flash_run(struct cuda_backend *c, const struct attend_args *a, enum dtype dtype,
                      const void *cache)
{
    if (dtype == DTYPE_BF16)
        return launch_dim<bf16, bf16>(c, a, cache);
    if (dtype == DTYPE_F16)
        return launch_dim<__half, __half>(c, a, cache);
    return dtype == DTYPE_F8_E4M3 && launch_dim<e4m3, bf16>(c, a, cache);
}
