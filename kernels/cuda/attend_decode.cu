#include "kernels/cuda/attend.cuh"

#include "kernels/cuda/mma.cuh"

#include <type_traits>

#define BLOCK BACKEND_BLOCK_TOKENS
#define QUAD 4  /* lanes that have a row of a 16 x 8 result */
#define GROUP 8 /* query heads at once, each a row of high parts and one of low parts */
#define SPLITS ATTEND_SPLITS
#define SPLIT_KEYS_MIN 128
#define SPLIT_KEYS_FEW 2048 /* more keys than this have longer splits */
#ifndef DECODE_BLOCKS
#define DECODE_BLOCKS 2048
#endif

/* E: as stored; C: as multiplied. A stage is a cache block of one head: keys, then values. */
template <typename E_, typename C_, int DIM_, int WARPS_, int STAGES_> struct plan {
    typedef E_ E;
    typedef C_ C;
    static constexpr int DIM = DIM_, WARPS = WARPS_, STAGES = STAGES_, THREADS = WARPS * WARP;
    static constexpr int VEC = 16 / (int)sizeof(E), CHUNKS = DIM / VEC, PITCH = DIM + VEC;
    static constexpr int STAGE = 2 * BLOCK * PITCH; /* elements */
    static constexpr int OUT_PITCH = DIM + 8;       /* of outputs in a stage that is free */
    static constexpr size_t BYTES = (size_t)WARPS * STAGES * STAGE * sizeof(E);
    static_assert(GROUP * OUT_PITCH * sizeof(float) <= STAGE * sizeof(E), "outputs fit a stage");
};

/* Keys of a split: a power of two, at least SPLIT_KEYS_MIN. */
HOST_DEVICE int32_t split_keys_log2(int32_t length)
{
    int32_t n = length > SPLIT_KEYS_FEW ? 8 : 7;
    while (length > SPLITS << n)
        n++;
    return n;
}

/* What a block works on. */
struct work {
    int32_t t, slot, position, seen; /* the row, and the first key it sees */
    int32_t begin, length;           /* keys from the first's cache block on */
    int32_t shift, splits;           /* keys of a split, as a power of two */
    int32_t z, step;                 /* the block takes splits z, z + step, ... */
    struct attend_heads heads;
    int32_t kv_head;
};

/* How many heads read KV heads before these two: a lane looks at each head. */
DEVICE struct attend_heads heads_at_once(const struct attend_args &a, int32_t kv_head)
{
    struct attend_heads h = {0, 0};
    for (int32_t i = 0; i < a.heads; i += WARP) {
        const int32_t head = i + (int32_t)threadIdx.x % WARP;
        const int32_t of = head < a.heads ? a.kv_of[head] : INT32_MAX;
        h.first += __popc(__ballot_sync(ALL_LANES, of < kv_head));
        h.past += __popc(__ballot_sync(ALL_LANES, of <= kv_head));
    }
    return h;
}

template <typename P> struct state {
    float out[P::DIM / 8][4], max, sum; /* of head lane / 4; sum: of the lane's own keys */
};

/* Tile k of the warp: which of the row's cache blocks, from the first it sees on. */
template <typename P> DEVICE int32_t tile_of(const struct work &w, int32_t k)
{
    const int32_t shift = w.shift - (4 + (P::WARPS == 4 ? 2 : P::WARPS == 2 ? 1 : 3));
    const int32_t split = w.z + (k >> shift) * w.step, nth = k & ((1 << shift) - 1);
    return (((split << shift) + nth) * P::WARPS) + (int32_t)threadIdx.x / WARP;
}

template <typename P>
DEVICE void fetch(typename P::E *stage, const typename P::E *from, int32_t first,
                  const struct work &w)
{
    const uint32_t lane = threadIdx.x % WARP;
    if (first >= w.seen && first + BLOCK <= w.position + 1) {
        from += lane * P::VEC;
        if constexpr (WARP % P::CHUNKS == 0) {
            stage += lane / P::CHUNKS * P::PITCH + lane % P::CHUNKS * P::VEC;
#pragma unroll
            for (int i = 0; i < P::CHUNKS; i++)
                mma_copy(stage + i * (WARP / P::CHUNKS) * P::PITCH, from + i * WARP * P::VEC, true);
        } else {
#pragma unroll
            for (int i = 0; i < P::CHUNKS; i++) {
                const uint32_t n = lane + i * WARP;
                mma_copy(stage + n / P::CHUNKS * P::PITCH + n % P::CHUNKS * P::VEC,
                         from + i * WARP * P::VEC, true);
            }
        }
        return;
    }
#pragma unroll 1
    for (int i = 0; i < P::CHUNKS; i++) {
        const uint32_t n = lane + i * WARP, row = n / P::CHUNKS, e = n % P::CHUNKS * P::VEC;
        const int32_t key = first + (int32_t)(row % BLOCK);
        mma_copy(stage + row * P::PITCH + e, from + n * P::VEC,
                 key >= w.seen && key <= w.position);
    }
}

DEVICE float piece(uint32_t pair, int which, bf16)
{
    return __uint_as_float(which == 0 ? pair << 16 : pair & 0xffff0000u);
}

DEVICE float piece(uint32_t pair, int which, __half)
{
    const uint16_t bits = (uint16_t)(which == 0 ? pair : pair >> 16);
    __half h;
    memcpy(&h, &bits, sizeof h);
    return __half2float(h);
}

/* Two numbers as high parts and what those leave. */
template <typename C> DEVICE void cut(uint32_t &high, uint32_t &low, float x, float y, C)
{
    high = mma_pair(x, y, C());
    low = mma_pair(x - piece(high, 0, C()), y - piece(high, 1, C()), C());
}

/* Dims of the lane's elements of a step of 16: pairs from `first` and from `second`. */
template <typename E> struct order {
    DEVICE static int first(int q)
    {
        return 2 * q;
    }
    DEVICE static int second(int q)
    {
        return 2 * q + 8;
    }
    /* Element of the output that is result i of tile j. */
    DEVICE static int out(int j, int i, int q)
    {
        return 8 * j + 2 * q + i;
    }
};
template <> struct order<e4m3> {
    DEVICE static int first(int q)
    {
        return 4 * q;
    }
    DEVICE static int second(int q)
    {
        return 4 * q + 2;
    }
    DEVICE static int out(int j, int i, int q)
    {
        return j / 2 * 16 + 4 * q + 2 * i + j % 2;
    }
};

template <typename P>
DEVICE float load_query(uint32_t (&q)[P::DIM / 16][4], const struct attend_args &a, int32_t t,
                        int32_t first, int32_t count)
{
    typedef order<typename P::E> O;
    const uint32_t lane = threadIdx.x % WARP, head = lane / QUAD;
    const float *from = attend_query(&a, t, first + (head < count ? head : 0));
    const float scale = head < count ? a.scale : 0;
    float x[P::DIM / 16][4], top = 0, unit = 1, back = 1;
#pragma unroll
    for (int s = 0; s < P::DIM / 16; s++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int e = i < 2 ? O::first(lane % QUAD) : O::second(lane % QUAD) - 2;
            x[s][i] = head < count ? from[16 * s + e + i] * scale : 0;
            top = fmaxf(top, fabsf(x[s][i]));
        }
    if (!std::is_same<typename P::C, bf16>::value) {
        top = reduce_lanes<QUAD>(top, maximum());
        const uint32_t exponent = __float_as_uint(top) & 0x7f800000u;
        if (exponent > 0 && exponent < 254u << 23) {
            unit = __uint_as_float((254u << 23) - exponent);
            back = __uint_as_float(exponent);
        }
    }
#pragma unroll
    for (int s = 0; s < P::DIM / 16; s++) {
        cut(q[s][0], q[s][1], x[s][0] * unit, x[s][1] * unit, typename P::C());
        cut(q[s][2], q[s][3], x[s][2] * unit, x[s][3] * unit, typename P::C());
    }
    return back;
}

template <typename P>
DEVICE void multiply_keys(float (&score)[2][4], const uint32_t (&q)[P::DIM / 16][4],
                          const typename P::E *keys, bf16)
{
    const uint32_t lane = threadIdx.x % WARP;
    const typename P::E *key = keys + (lane / 16 * 8 + lane % 8) * P::PITCH + lane / 8 % 2 * 8;
#pragma unroll
    for (int s = 0; s < P::DIM / 16; s++) {
        uint32_t k[4];
        mma_load(k, key + s * 16);
        mma_multiply(score[0], q[s], k[0], k[1], typename P::C());
        mma_multiply(score[1], q[s], k[2], k[3], typename P::C());
    }
}

template <typename P>
DEVICE void multiply_keys(float (&score)[2][4], const uint32_t (&q)[P::DIM / 16][4],
                          const typename P::E *keys, __half)
{
    multiply_keys<P>(score, q, keys, bf16());
}

template <typename P>
DEVICE void multiply_keys(float (&score)[2][4], const uint32_t (&q)[P::DIM / 16][4],
                          const typename P::E *keys, e4m3)
{
    const uint32_t lane = threadIdx.x % WARP;
    const typename P::E *key = keys + (lane / 16 * 8 + lane % 8) * P::PITCH;
#pragma unroll
    for (int s = 0; s < P::DIM / 16; s += 2) {
        const bool two = s + 1 < P::DIM / 16;
        uint32_t k[4];
        mma_load(k, key + s * 16 + (two ? lane / 8 % 2 * 16 : 0));
#pragma unroll
        for (int i = 0; i < (two ? 2 : 1); i++)
#pragma unroll
            for (int n = 0; n < 2; n++) {
                uint32_t pair[2];
                mma_widen(pair, k[2 * n + i], e4m3(), __half());
                mma_multiply(score[n], q[s + i], pair[0], pair[1], typename P::C());
            }
    }
}

template <typename P>
DEVICE void multiply_values(float (&out)[P::DIM / 8][4], const uint32_t (&x)[4],
                            const typename P::E *values, bf16)
{
    const uint32_t lane = threadIdx.x % WARP;
    const typename P::E *value = values + lane % 16 * P::PITCH + lane / 16 * 8;
#pragma unroll
    for (int n = 0; n < P::DIM / 8; n += 2) {
        uint32_t v[4];
        mma_load_transposed(v, value + n * 8);
        mma_multiply(out[n], x, v[0], v[1], typename P::C());
        mma_multiply(out[n + 1], x, v[2], v[3], typename P::C());
    }
}

template <typename P>
DEVICE void multiply_values(float (&out)[P::DIM / 8][4], const uint32_t (&x)[4],
                            const typename P::E *values, __half)
{
    multiply_values<P>(out, x, values, bf16());
}

template <typename P>
DEVICE void multiply_values(float (&out)[P::DIM / 8][4], const uint32_t (&x)[4],
                            const typename P::E *values, e4m3)
{
    const uint32_t lane = threadIdx.x % WARP;
    const typename P::E *value = values + lane % 16 * P::PITCH;
#pragma unroll
    for (int n = 0; n < P::DIM / 16; n += 2) {
        const bool two = n + 1 < P::DIM / 16;
        uint32_t v[4];
        mma_load_transposed(v, value + n * 16 + (two ? lane / 16 * 16 : 0));
#pragma unroll
        for (int i = 0; i < (two ? 2 : 1); i++) {
            uint32_t low[2], high[2]; /* keys: of even and odd elements */
            mma_widen(low, mma_exchange(v[2 * i]), e4m3(), __half());
            mma_widen(high, mma_exchange(v[2 * i + 1]), e4m3(), __half());
            mma_multiply(out[2 * (n + i)], x, low[0], high[0], typename P::C());
            mma_multiply(out[2 * (n + i) + 1], x, low[1], high[1], typename P::C());
        }
    }
}

/* The keys of a stage, the first of which is `first`. */
template <typename P>
DEVICE void take(struct state<P> &s, const struct attend_args &a, const struct work &w,
                 const uint32_t (&q)[P::DIM / 16][4], float back, const typename P::E *stage,
                 int32_t first)
{
    float score[2][4] = {}, weight[2][2], top = s.max, add = 0;
    const uint32_t lane = threadIdx.x % WARP;
    const bool whole = first >= w.seen && first + BLOCK <= w.position + 1;
    multiply_keys<P>(score, q, stage, typename P::E());
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int32_t key = first + n * 8 + lane % QUAD * 2 + i;
            float x = (score[n][i] + score[n][i + 2]) * back;
            if (a.softcap > 0)
                x = attend_capped(a, x);
            weight[n][i] = whole || (key >= w.seen && key <= w.position) ? x : -INFINITY;
            top = fmaxf(top, weight[n][i]);
        }
    top = reduce_lanes<QUAD>(top, maximum());
    const float old = mma_exp2(s.max - top);
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            weight[n][i] = mma_exp2(weight[n][i] - top);
            add += weight[n][i];
        }
    s.sum = fmaf(s.sum, old, add);
    s.max = top;
    if (__any_sync(ALL_LANES, old != 1)) {
#pragma unroll
        for (int n = 0; n < P::DIM / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                s.out[n][i] *= old;
    }
    uint32_t x[4];
    cut(x[0], x[1], weight[0][0], weight[0][1], typename P::C());
    cut(x[2], x[3], weight[1][0], weight[1][1], typename P::C());
    multiply_values<P>(s.out, x, stage + BLOCK * P::PITCH, typename P::E());
}

template <typename P> DEVICE void clear(struct state<P> &s)
{
    s.max = -INFINITY;
    s.sum = 0;
#pragma unroll
    for (int n = 0; n < P::DIM / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            s.out[n][i] = 0;
}

/* What the warps of a block know of its heads. */
template <typename P> struct shared_state {
    float max[P::WARPS][GROUP], sum[P::WARPS][GROUP];
    float all_max[2][GROUP], all_sum[2][GROUP], all[GROUP * P::DIM];
};

#define PARTIAL_MORE ATTEND_PARTIAL_MORE

template <typename P>
DEVICE float *partial_at(const struct attend_args &a, int32_t head, int32_t split)
{
    return a.partial +
           (((int64_t)blockIdx.x * a.heads + head) * SPLITS + split) * (P::DIM + PARTIAL_MORE);
}

/* One number of a split after those before. */
DEVICE float after(float all, float shrink, float more, float weight)
{
    return fmaf(all, shrink, more * weight);
}

template <typename P>
DEVICE void end_split(struct state<P> &s, struct shared_state<P> &h, const struct attend_args &a,
                      const struct work &w, typename P::E *ring, int32_t stage, int32_t split,
                      int32_t first, int32_t count)
{
    typedef order<typename P::E> O;
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int32_t head = lane / QUAD;
    float *mine = (float *)(ring + (warp * P::STAGES + stage) * P::STAGE) + head * P::OUT_PITCH;
    const float sum = reduce_lanes<QUAD>(s.sum, plus());
    if (head < count) {
#pragma unroll
        for (int n = 0; n < P::DIM / 8; n++)
#pragma unroll
            for (int i = 0; i < 2; i++)
                mine[O::out(n, i, lane % QUAD)] = s.out[n][i] + s.out[n][i + 2];
    }
    if (lane % QUAD == 0) {
        h.max[warp][head] = s.max;
        h.sum[warp][head] = sum;
    }
    __syncthreads();
    const bool ends = split == w.splits - 1;
    for (int32_t n = (int32_t)threadIdx.x; n < count * P::DIM; n += P::THREADS) {
        const int32_t g = n / P::DIM, e = n % P::DIM;
        float max = -INFINITY, add = 0, out = 0;
#pragma unroll
        for (int j = 0; j < P::WARPS; j++)
            max = fmaxf(max, h.max[j][g]);
#pragma unroll
        for (int j = 0; j < P::WARPS; j++) {
            const float weight = mma_exp2(h.max[j][g] - max);
            const float *of = (const float *)(ring + (j * P::STAGES + stage) * P::STAGE);
            add = fmaf(h.sum[j][g], weight, add);
            out = fmaf(of[g * P::OUT_PITCH + e], weight, out);
        }
        if (w.step > 1) {
            float *to = partial_at<P>(a, first + g, split);
            to[e] = out;
            if (e == 0) {
                to[P::DIM] = max;
                to[P::DIM + 1] = add;
            }
            continue;
        }
        const float before = split == 0 ? -INFINITY : h.all_max[split % 2][g];
        const float top = fmaxf(before, max);
        const float shrink = mma_exp2(before - top), weight = mma_exp2(max - top);
        const float total = after(split == 0 ? 0 : h.all_sum[split % 2][g], shrink, add, weight);
        out = after(split == 0 ? 0 : h.all[n], shrink, out, weight);
        h.all[n] = out;
        if (e == 0) {
            h.all_max[(split + 1) % 2][g] = top;
            h.all_sum[(split + 1) % 2][g] = total;
        }
        if (ends)
            attend_out(&a, w.t, first + g)[e] = out / attend_sum(a, first + g, total, top);
    }
    __syncthreads();
}

/* The block's splits for heads [first, first + count). */
template <typename P>
DEVICE void attend_heads_alone(typename P::E *ring, struct shared_state<P> &h,
                               const struct attend_args &a, const typename P::E *cache,
                               const struct work &w, int32_t first, int32_t count)
{
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int32_t shift = w.shift - (4 + (P::WARPS == 4 ? 2 : P::WARPS == 2 ? 1 : 3));
    const int32_t own = (w.splits - w.z + w.step - 1) / w.step, turns = own << shift;
    const int32_t tiles = (w.length + BLOCK - 1) / BLOCK;
    typename P::E *mine = ring + warp * P::STAGES * P::STAGE;
    uint32_t q[P::DIM / 16][4];
    struct state<P> s;
    int32_t block = 0, nth = 0, split = w.z, stage = 0;
    auto next = [&](int32_t k, int32_t stage) { /* k ascends */
        if (k < turns) {
            if (k % WARP == 0) {
                const int32_t tile = tile_of<P>(w, k + (int32_t)lane);
                block = tile < tiles ? kv_block(&a.rows, w.slot, w.begin / BLOCK + tile) : 0;
            }
            const int32_t b = __shfl_sync(ALL_LANES, block, k % WARP), tile = tile_of<P>(w, k);
            if (tile < tiles)
                fetch<P>(mine + stage * P::STAGE, cache + kv_index(&a.kv, b, w.kv_head, false),
                         w.begin + tile * BLOCK, w);
        }
        mma_copy_group();
    };
#pragma unroll
    for (int i = 0; i < P::STAGES; i++)
        next(i, i);
    const float back = load_query<P>(q, a, w.t, first, count);
    clear<P>(s);
    for (int32_t k = 0; k < turns; k++) {
        const int32_t tile = tile_of<P>(w, k);
        mma_copy_wait<P::STAGES - 1>();
        __syncwarp();
        if (tile < tiles)
            take<P>(s, a, w, q, back, mine + stage * P::STAGE, w.begin + tile * BLOCK);
        __syncwarp();
        if (++nth == 1 << shift) {
            end_split<P>(s, h, a, w, ring, stage, split, first, count);
            clear<P>(s);
            nth = 0;
            split += w.step;
        }
        next(k + P::STAGES, stage);
        stage = stage + 1 == P::STAGES ? 0 : stage + 1;
    }
}

/* Whether all others are done with the row and KV head; what they wrote can be read then. */
DEVICE bool is_last(int32_t *ticket, int32_t blocks)
{
    __shared__ int32_t taken;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        taken = atomicAdd(ticket, 1);
        if (taken == blocks - 1)
            *ticket = 0;
        __threadfence();
    }
    __syncthreads();
    return taken == blocks - 1;
}

/* How outputs of splits are added up. */
struct merging {
    float shrink[SPLITS], weight[SPLITS], sum[SPLITS], max;
};

template <typename P>
DEVICE void merge(struct merging *m, const struct attend_args &a, const struct work &w,
                  int32_t first, int32_t count)
{
    constexpr int PARTS = P::DIM / 4;
    const int32_t lane = (int32_t)threadIdx.x % WARP;
    static_assert(SPLITS == WARP, "a lane for each split");
    for (int32_t g = (int32_t)threadIdx.x / WARP; g < count; g += P::WARPS) {
        float of[4] = {-INFINITY};
        if (lane < w.splits)
            mma_load_fresh(of, partial_at<P>(a, first + g, lane) + P::DIM);
        const float max = of[0], sum = of[1];
        float top = max;
#pragma unroll
        for (int step = 1; step < WARP; step *= 2) {
            const float other = __shfl_sync(ALL_LANES, top, lane >= step ? lane - step : lane);
            top = fmaxf(other, top);
        }
        float before = __shfl_sync(ALL_LANES, top, lane > 0 ? lane - 1 : 0);
        before = lane > 0 ? before : -INFINITY;
        m[g].shrink[lane] = mma_exp2(before - top);
        m[g].weight[lane] = mma_exp2(max - top);
        m[g].sum[lane] = sum;
        if (lane == w.splits - 1)
            m[g].max = top;
    }
    __syncthreads();
    for (int32_t n = (int32_t)threadIdx.x; n < count * PARTS; n += P::THREADS) {
        const int32_t g = n / PARTS, e = n % PARTS * 4;
        const float *p = partial_at<P>(a, first + g, 0) + e;
        float out[4] = {}, sum = 0;
#pragma unroll 16
        for (int32_t i = 0; i < w.splits; i++) {
            float v[4];
            mma_load_fresh(v, p + (int64_t)i * (P::DIM + PARTIAL_MORE));
            const float shrink = m[g].shrink[i], weight = m[g].weight[i];
            sum = after(sum, shrink, m[g].sum[i], weight);
#pragma unroll
            for (int j = 0; j < 4; j++)
                out[j] = after(out[j], shrink, v[j], weight);
        }
        const float total = attend_sum(a, first + g, sum, m[g].max);
        float *to = attend_out(&a, w.t, first + g) + e;
#pragma unroll
        for (int i = 0; i < 4; i++)
            to[i] = out[i] / total;
    }
    __syncthreads();
}

template <typename P>
__global__ void __launch_bounds__(P::THREADS, 3) attend_decode_kernel(struct attend_args a,
                                                                   const typename P::E *cache)
{
    typedef pack<uint32_t, 4> aligned;
    SHARED_DYNAMIC(aligned, memory);
    __shared__ struct shared_state<P> h;
    typename P::E *ring = (typename P::E *)memory;
    struct work w = {};
    const int32_t place = (int32_t)blockIdx.x;
    w.t = a.partial != nullptr && a.picked != nullptr ? a.picked[place] : place;
    w.kv_head = (int32_t)blockIdx.y;
    w.z = (int32_t)blockIdx.z;
    w.step = (int32_t)gridDim.z;
    w.heads = heads_at_once(a, w.kv_head);
    launch_release();
    if (w.t < 0)
        return;
    w.slot = a.rows.slot[w.t];
    w.position = a.rows.position[w.t];
    if (w.slot < 0) {
        launch_wait();
        for (int32_t n = (int32_t)threadIdx.x;
             w.z == 0 && n < (w.heads.past - w.heads.first) * P::DIM; n += P::THREADS)
            attend_out(&a, w.t, w.heads.first)[n] = 0;
        return;
    }
    w.seen = attend_first(&a, w.position);
    w.begin = w.seen - w.seen % BLOCK;
    w.length = w.position + 1 - w.begin;
    w.shift = split_keys_log2(w.length);
    w.splits = (w.length + (1 << w.shift) - 1) >> w.shift;
    if (w.z >= w.splits || !attend_is_alone(&a, w.t) ||
        (a.partial == nullptr && w.length >= ATTEND_LONG_KEYS && attend_is_picked(&a, w.t)))
        return;
    if (w.splits == 1)
        w.step = 1;
    launch_wait();
    for (int32_t g = w.heads.first; g < w.heads.past; g += GROUP)
        attend_heads_alone<P>(ring, h, a, cache, w, g,
                              w.heads.past - g < GROUP ? w.heads.past - g : GROUP);
    if (w.step == 1)
        return;
    const int32_t blocks = w.splits < w.step ? w.splits : w.step;
    if (!is_last(a.tickets + (int64_t)place * a.kv.heads + w.kv_head, blocks))
        return;
    for (int32_t g = w.heads.first; g < w.heads.past; g += GROUP)
        merge<P>((struct merging *)memory, a, w, g,
                 w.heads.past - g < GROUP ? w.heads.past - g : GROUP);
}

/* One launch for `places` rows. */
template <typename P>
static void launch_places(struct cuda_backend *c, const struct attend_args &a, const void *cache,
                          int32_t places)
{
    const unsigned longest = (unsigned)a.rows.table_cols * BLOCK;
    const unsigned most = blocks_for(longest, SPLIT_KEYS_MIN);
    const unsigned wanted = blocks_for(DECODE_BLOCKS, (unsigned)places * (unsigned)a.kv.heads);
    const unsigned z = most < wanted ? most : wanted;
    const dim3 grid((unsigned)places, (unsigned)a.kv.heads,
                    a.partial == nullptr ? 1 : z < SPLITS ? z : SPLITS);
    cuda_note(c, "attend",
              cudaFuncSetAttribute(attend_decode_kernel<P>,
                                   cudaFuncAttributeMaxDynamicSharedMemorySize, (int)P::BYTES));
    LAUNCH(c, attend_decode_kernel<P>, grid, P::THREADS, P::BYTES, a, (const typename P::E *)cache);
}

template <typename P>
static void launch(struct cuda_backend *c, const struct attend_args &a, const void *cache)
{
    struct attend_args whole = a;
    if (a.picked == nullptr) {
        launch_places<P>(c, a, cache, a.rows.count);
        return;
    }
    if (a.picks > 0)
        launch_places<P>(c, a, cache, a.picks);
    whole.partial = nullptr;
    launch_places<P>(c, whole, cache, a.rows.count);
}

template <typename E, typename C>
static bool launch_dim(struct cuda_backend *c, const struct attend_args &a, const void *cache)
{
    switch (a.kv.dim) {
    case 64:
        launch<plan<E, C, 64, 4, 2>>(c, a, cache);
        return true;
    case 80:
        launch<plan<E, C, 80, 4, 2>>(c, a, cache);
        return true;
    case 96:
        launch<plan<E, C, 96, 4, 2>>(c, a, cache);
        return true;
    case 128:
        launch<plan<E, C, 128, 4, 2>>(c, a, cache);
        return true;
    case 256:
        launch<plan<E, C, 256, 2, 2>>(c, a, cache);
        return true;
    default:
        return false;
    }
}

bool attend_decode_run(struct cuda_backend *c, const struct attend_args *a, enum dtype dtype,
                       const void *cache)
{
    if (dtype == DTYPE_BF16)
        return launch_dim<bf16, bf16>(c, *a, cache);
    if (dtype == DTYPE_F16)
        return launch_dim<__half, __half>(c, *a, cache);
    return dtype == DTYPE_F8_E4M3 && launch_dim<e4m3, __half>(c, *a, cache);
}
