/* DESIGN: runs of rows (chunks of prompts) by tensor cores. One block per (some rows, KV head): the
 * query heads that read the KV head are rows of the same tile, so that keys and values are loaded
 * once for all of them. Each warp has 16 * TILES rows of the tile, with their scores, maxima, sums
 * and output in registers; keys and values pass through shared memory in steps of KEYS, the next
 * step being copied while this one is computed.
 *
 * Queries and weights are rounded to the type of the keys (bf16 where those are narrower), sums are
 * fp32. A row takes its keys in the same steps wherever it lies in a tile, and steps in which it
 * sees nothing change no bit of it: its result depends on no other row. */
#include "kernels/cuda/attend.cuh"

#include "kernels/cuda/mma.cuh"

#define THREADS 128
#define WARPS (THREADS / WARP)
#define QUAD 4 /* lanes that have a row of a 16 x 8 result */

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

/* What the block works on: rows [begin, end) of one slot, for some query heads of a KV head. Row r
 * of the tile is query head first + r % heads of row tile + r / heads. */
struct span {
    int32_t tile, begin, end, first, heads, kv_head;
    int32_t slot, least, last; /* first and last position */
};

HOST_DEVICE bool span_has(const struct span &s, int32_t r)
{
    const int32_t t = s.tile + r / s.heads;
    return t >= s.begin && t < s.end;
}

/* Scores, weights and output of a lane: rows lane / 4 and that + 8 of each tile of its warp. */
template <typename P> struct rows_of_lane {
    float score[P::TILES][P::KEYS / 8][4], out[P::TILES][P::DIM / 8][4];
    float max[P::TILES][2], sum[P::TILES][2]; /* sum: of the lane's own keys */
};

/* Row of the tile that a lane's results 0 and 1 (half 0), or 2 and 3 (half 1), belong to. */
template <typename P> DEVICE int32_t row_of(int tile, int half)
{
    const int32_t warp = (int32_t)threadIdx.x / WARP, lane = (int32_t)threadIdx.x % WARP;
    return (warp * P::TILES + tile) * 16 + half * 8 + lane / QUAD;
}

template <typename P>
DEVICE void load_queries(typename P::C *q, const struct attend_args &a, const struct span &s)
{
    constexpr int PAIRS = P::DIM / 2;
    for (int32_t n = (int32_t)threadIdx.x; n < P::ROWS * PAIRS; n += THREADS) {
        const int32_t r = n / PAIRS, e = n % PAIRS * 2;
        float x = 0, y = 0;
        if (span_has(s, r)) {
            const float *from = attend_query(&a, s.tile + r / s.heads, s.first + r % s.heads) + e;
            x = from[0];
            y = from[1];
        }
        *(uint32_t *)(q + r * P::PITCH + e) = mma_pair(x, y, typename P::C());
    }
}

/* 16 bytes of keys or values: as they are, or widened on the way. */
template <typename C> DEVICE void load_chunk(C *to, const C *from, bool there)
{
    mma_copy(to, from, there);
}

template <typename C> DEVICE void load_chunk(C *to, const e4m3 *from, bool there)
{
    pack<e4m3, 16> codes = {};
    pack<uint32_t, 4> words[2];
    if (there)
        codes = *(const pack<e4m3, 16> *)from;
#pragma unroll
    for (int i = 0; i < 8; i++)
        words[i / 4].e[i % 4] =
            mma_pair(to_float(codes.e[2 * i]), to_float(codes.e[2 * i + 1]), C());
    *(pack<uint32_t, 4> *)to = words[0];
    *(pack<uint32_t, 4> *)(to + 8) = words[1];
}

/* The nth KEYS keys, then their values; zeros beyond the last, where nothing was ever written, and
 * in blocks before the window, which are others' by now. A cache block's keys lie together. */
template <typename P>
DEVICE void load_keys(typename P::C *stage, const struct attend_args &a, const typename P::E *cache,
                      const struct span &s, int32_t nth)
{
    constexpr int BLOCK = BACKEND_BLOCK_TOKENS, LOADS = BLOCK * P::CHUNKS;
    const int32_t seen = attend_first(&a, s.least) / BLOCK * BLOCK;
#pragma unroll
    for (int32_t b = 0; b < P::KEYS; b += BLOCK) {
        const int32_t first = nth * P::KEYS + b;
        const int32_t at = first < seen      ? seen
                           : first <= s.last ? first
                                             : s.last; /* a block there is in any case */
        const int32_t block = kv_block(&a.rows, s.slot, at / BLOCK);
        const typename P::E *key = cache + kv_index(&a.kv, block, s.kv_head, false);
#pragma unroll
        for (int i = 0; i < LOADS; i += THREADS) {
            const uint32_t n = threadIdx.x + i, j = n / P::CHUNKS, e = n % P::CHUNKS * P::VEC;
            if (LOADS % THREADS != 0 && n >= LOADS)
                break;
            const bool there = first >= seen && first + (int32_t)j <= s.last;
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

/* Keys from first_key on that a row does not see yet, or not any more, score -inf. */
template <typename P>
DEVICE void mask(struct rows_of_lane<P> &l, const struct attend_args &a, const struct span &s,
                 int32_t first_key)
{
#pragma unroll
    for (int t = 0; t < P::TILES; t++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int32_t r = row_of<P>(t, half), mine = (int32_t)threadIdx.x % QUAD * 2;
            const int32_t visible = span_has(s, r) ? a.rows.position[s.tile + r / s.heads] : 0;
            const int32_t seen = attend_first(&a, visible);
#pragma unroll
            for (int n = 0; n < P::KEYS / 8; n++)
#pragma unroll
                for (int i = 0; i < 2; i++)
                    if (first_key + mine + n * 8 + i > visible ||
                        first_key + mine + n * 8 + i < seen)
                        l.score[t][n][2 * half + i] = -INFINITY;
        }
}

template <typename P> DEVICE void cap_scores(struct rows_of_lane<P> &l, const struct attend_args &a)
{
#pragma unroll
    for (int t = 0; t < P::TILES; t++)
#pragma unroll
        for (int n = 0; n < P::KEYS / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                l.score[t][n][i] = attend_capped(a, l.score[t][n][i] * a.scale);
}

/* Scores become weights; what was summed before shrinks as the maximum grows. A row that has seen
 * no key yet has zeros, and no maximum to shrink by. */
template <typename P> DEVICE void weigh(struct rows_of_lane<P> &l, int t, int half, float scale)
{
    float top = l.max[t][half], add = 0;
#pragma unroll
    for (int n = 0; n < P::KEYS / 8; n++)
        top = fmaxf(top, fmaxf(l.score[t][n][2 * half], l.score[t][n][2 * half + 1]));
    top = reduce_lanes<QUAD>(top, maximum());
    const bool any = top != -INFINITY;
    const float shift = any ? -top * scale : 0;
    const float old = any ? mma_exp2((l.max[t][half] - top) * scale) : 1;
#pragma unroll
    for (int n = 0; n < P::KEYS / 8; n++)
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; i++) {
            l.score[t][n][i] = mma_exp2(fmaf(l.score[t][n][i], scale, shift));
            add += l.score[t][n][i];
        }
    l.max[t][half] = top;
    l.sum[t][half] = fmaf(l.sum[t][half], old, add);
    if (!__any_sync(ALL_LANES, old != 1)) /* no maximum of the warp's has grown, as most times */
        return;
#pragma unroll
    for (int n = 0; n < P::DIM / 8; n++)
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; i++)
            l.out[t][n][i] *= old;
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
DEVICE void write_rows(struct rows_of_lane<P> &l, const struct attend_args &a, const struct span &s,
                       float scale)
{
#pragma unroll
    for (int t = 0; t < P::TILES; t++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float sum = reduce_lanes<QUAD>(l.sum[t][half], plus());
            const int32_t r = row_of<P>(t, half), head = s.first + r % s.heads;
            if (!span_has(s, r))
                continue;
            const float share = 1 / attend_sum(a, head, sum, l.max[t][half] * scale);
            float *to = attend_out(&a, s.tile + r / s.heads, head) + threadIdx.x % QUAD * 2;
#pragma unroll
            for (int n = 0; n < P::DIM / 8; n++) {
                to[n * 8] = l.out[t][n][2 * half] * share;
                to[n * 8 + 1] = l.out[t][n][2 * half + 1] * share;
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
    const int32_t begin = attend_first(&a, s.least) / P::KEYS;
    const int32_t whole = attend_first(&a, s.last); /* all rows see the keys from here to s.least */
    const float scale = a.softcap > 0 ? 1 : a.scale;
    load_keys<P>(stage + begin % 2 * P::STAGE, a, cache, s, begin);
    load_queries<P>(q, a, s);
    for (int32_t nth = begin; nth <= s.last / P::KEYS; nth++) {
        typename P::C *now = stage + nth % 2 * P::STAGE, *next = stage + (nth + 1) % 2 * P::STAGE;
        if (nth < s.last / P::KEYS)
            load_keys<P>(next, a, cache, s, nth + 1);
        else
            mma_copy_group(); /* an empty one: the wait counts groups */
        mma_copy_wait<1>();
        __syncthreads();
        multiply_keys<P>(l, q, now);
        if (a.softcap > 0)
            cap_scores<P>(l, a);
        if (nth * P::KEYS + P::KEYS - 1 > s.least || nth * P::KEYS < whole)
            mask<P>(l, a, s, nth * P::KEYS);
#pragma unroll
        for (int t = 0; t < P::TILES; t++)
#pragma unroll
            for (int half = 0; half < 2; half++)
                weigh<P>(l, t, half, scale);
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
    SHARED_DYNAMIC(aligned, memory);
    const int32_t tile = (int32_t)(gridDim.x - 1 - blockIdx.x) * rows, most = P::ROWS / rows;
    const int32_t past = tile + rows < a.rows.count ? tile + rows : a.rows.count;
    const int32_t mine = tile + (int32_t)threadIdx.x;
    static_assert(P::ROWS <= THREADS, "a thread looks at each row");
    if (!__syncthreads_or(mine < past && attend_is_in_run(&a, mine)))
        return;
    const struct attend_heads h = attend_heads_of(&a, (int32_t)blockIdx.y);
    struct span s = {tile};
    s.kv_head = (int32_t)blockIdx.y;
    for (s.begin = tile; s.begin < past; s.begin = s.end) {
        s.end = attend_run_end(&a.rows, s.begin, past);
        s.slot = a.rows.slot[s.begin];
        if (!attend_is_in_run(&a, s.begin))
            continue;
        s.least = INT32_MAX;
        s.last = 0;
        for (int32_t t = s.begin; t < s.end; t++) {
            s.least = a.rows.position[t] < s.least ? a.rows.position[t] : s.least;
            s.last = a.rows.position[t] > s.last ? a.rows.position[t] : s.last;
        }
        for (s.first = h.first; s.first < h.past; s.first += s.heads) {
            s.heads = h.past - s.first < most ? h.past - s.first : most;
            attend_span<P>((typename P::C *)memory, a, cache, s);
        }
    }
}

template <typename P>
static void launch(struct cuda_backend *c, const struct attend_args *a, const void *cache)
{
    /* So many rows that with the query heads of a usual KV head they fill a tile. */
    const int32_t group = (a->heads + a->kv.heads - 1) / a->kv.heads;
    const int32_t rows = group < P::ROWS ? P::ROWS / group : 1;
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
