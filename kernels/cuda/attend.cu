/* DESIGN: a row is either alone (no neighbour of its slot: a decoding sequence) or part of a run (a
 * chunk of a prompt). Which it is only the device knows, so both kernels are launched for all rows
 * and each block leaves at once when its rows belong to the other; a launch depends on host scalars
 * only, as a graph needs it.
 *
 * Rows alone: attend_split_kernel, one block per (row, KV head, split of its keys). A team of lanes
 * holds one key at a time, 16 bytes a lane, for up to GROUP query heads, with its own running
 * (maximum, sum, output) in registers; nothing is shared until the end. attend_merge_kernel folds
 * the splits; with one split the block writes the result itself.
 *
 * Runs: attend_tile_kernel, one block per (32 rows, query head, 128 columns), keys of one cache
 * block at a time through shared memory. It also writes the zeros of padding. */
#include "kernels/cuda/device.cuh"

#include "kernels/cuda/kv_index.cuh"

#define THREADS 128
#define SPLITS_MAX 32
#define SPLIT_KEYS_MIN 64 /* shorter ones are not worth the fold */
#define TILE_ROWS 32
#define KEYS BACKEND_BLOCK_TOKENS

struct attend_args {
    float *out;       /* [rows, heads * dim] */
    const float *qkv; /* [rows, (heads + 2 kv heads) * dim] */
    struct rows rows;
    struct kv_place kv;
    const int32_t *kv_of;
    int32_t heads, splits;
    float scale;
    float *partial; /* [rows][heads][splits][dim + 2]: output, maximum, sum; with several splits */
};

/* A sequence row whose neighbours are of other slots. */
HOST_DEVICE bool is_alone(const struct rows *r, int32_t t)
{
    const int32_t s = r->slot[t];
    return s >= 0 && (t == 0 || r->slot[t - 1] != s) && (t + 1 == r->count || r->slot[t + 1] != s);
}

struct key_range {
    int32_t begin, end;
};

/* The keys of one split: even parts of whole cache blocks, the last ones may be empty. */
HOST_DEVICE struct key_range split_range(int32_t length, int32_t splits, int32_t split)
{
    int32_t part = ((length + splits - 1) / splits + KEYS - 1) / KEYS * KEYS;
    part = splits > 1 && part < SPLIT_KEYS_MIN ? SPLIT_KEYS_MIN : part;
    const int64_t begin = (int64_t)split * part, end = begin + part;
    struct key_range r;
    r.begin = (int32_t)(begin < length ? begin : length);
    r.end = (int32_t)(end < length ? end : length);
    return r;
}

HOST_DEVICE float *partial_at(const struct attend_args *a, int32_t t, int32_t head, int32_t split)
{
    return a->partial + (((int64_t)t * a->heads + head) * a->splits + split) * (a->kv.dim + 2);
}

HOST_DEVICE float *out_at(const struct attend_args *a, int32_t t, int32_t head)
{
    return a->out + ((int64_t)t * a->heads + head) * a->kv.dim;
}

HOST_DEVICE const float *query_at(const struct attend_args *a, int32_t t, int32_t head)
{
    return a->qkv + ((int64_t)t * (a->heads + 2 * a->kv.heads) + head) * a->kv.dim;
}

/* ---- rows alone ---- */

/* How a team of LANES lanes holds a vector of dim elements: ITER times VEC together. */
template <typename E_, int VEC_, int LANES_, int ITER_, int GROUP_> struct shape {
    typedef E_ E;
    static constexpr int VEC = VEC_, LANES = LANES_, ITER = ITER_, GROUP = GROUP_;
    static constexpr int WIDTH = VEC * LANES * ITER, TEAMS = THREADS / LANES;
    DEVICE static int32_t element(int i)
    {
        return (i * LANES + (int32_t)(threadIdx.x % LANES)) * VEC;
    }
};

/* What a team knows of its keys, per query head. */
template <typename S> struct state {
    float max[S::GROUP], sum[S::GROUP], out[S::GROUP][S::ITER][S::VEC];
};

template <typename S>
DEVICE void load_vector(float (&v)[S::ITER][S::VEC], const typename S::E *from, int32_t dim)
{
#pragma unroll
    for (int i = 0; i < S::ITER; i++) {
        if (S::element(i) >= dim)
            continue; /* stays zero; dim is a multiple of VEC */
        const auto p = *(const pack<typename S::E, S::VEC> *)(from + S::element(i));
#pragma unroll
        for (int j = 0; j < S::VEC; j++)
            v[i][j] = to_float(p.e[j]);
    }
}

/* One key for the team; `valid` is the same for all of its lanes, but teams of a warp may differ.
 */
template <typename S>
DEVICE void take_key(struct state<S> &s, const float (&q)[S::GROUP][S::ITER][S::VEC],
                     const typename S::E *key, const typename S::E *value, bool valid, int32_t dim)
{
    float k[S::ITER][S::VEC] = {}, v[S::ITER][S::VEC] = {};
    if (valid) {
        load_vector<S>(k, key, dim);
        load_vector<S>(v, value, dim);
    }
#pragma unroll
    for (int g = 0; g < S::GROUP; g++) {
        float dot = 0;
#pragma unroll
        for (int i = 0; i < S::ITER; i++)
#pragma unroll
            for (int j = 0; j < S::VEC; j++)
                dot = fmaf(q[g][i][j], k[i][j], dot);
        dot = reduce_lanes<S::LANES>(dot, plus());
        if (!valid)
            continue;
        const float max = fmaxf(s.max[g], dot);
        const float old = expf(s.max[g] - max), weight = expf(dot - max);
        s.max[g] = max;
        s.sum[g] = fmaf(s.sum[g], old, weight);
#pragma unroll
        for (int i = 0; i < S::ITER; i++)
#pragma unroll
            for (int j = 0; j < S::VEC; j++)
                s.out[g][i][j] = fmaf(weight, v[i][j], s.out[g][i][j] * old);
    }
}

/* Folds the teams of the block, in their order, and writes the heads [first, past). */
template <typename S>
DEVICE void fold_teams(const struct attend_args &a, const struct state<S> &s, int32_t t,
                       int32_t split, int32_t first, int32_t past)
{
    __shared__ float max[S::TEAMS][S::GROUP], sum[S::TEAMS][S::GROUP];
    __shared__ float out[S::TEAMS][S::GROUP][S::WIDTH];
    const int team = (int)threadIdx.x / S::LANES;
    const int32_t dim = a.kv.dim, count = (past - first) * dim;
#pragma unroll
    for (int g = 0; g < S::GROUP; g++) {
        max[team][g] = s.max[g]; /* the same in every lane */
        sum[team][g] = s.sum[g];
#pragma unroll
        for (int i = 0; i < S::ITER; i++)
#pragma unroll
            for (int j = 0; j < S::VEC; j++)
                out[team][g][S::element(i) + j] = s.out[g][i][j];
    }
    __syncthreads();
    for (int32_t n = (int32_t)threadIdx.x; n < count; n += THREADS) {
        const int32_t g = n / dim, e = n % dim;
        float m = -INFINITY, total = 0, o = 0;
        for (int i = 0; i < S::TEAMS; i++)
            m = fmaxf(m, max[i][g]);
        for (int i = 0; i < S::TEAMS; i++) {
            const float weight = max[i][g] == -INFINITY ? 0 : expf(max[i][g] - m);
            total = fmaf(sum[i][g], weight, total);
            o = fmaf(out[i][g][e], weight, o);
        }
        if (a.splits == 1) {
            out_at(&a, t, first + g)[e] = o / total;
            continue;
        }
        float *p = partial_at(&a, t, first + g, split);
        p[e] = o;
        if (e == 0) {
            p[dim] = m;
            p[dim + 1] = total;
        }
    }
    __syncthreads(); /* the next heads write these again */
}

template <typename S>
__global__ void __launch_bounds__(THREADS)
    attend_split_kernel(struct attend_args a, const typename S::E *cache)
{
    const int32_t t = (int32_t)blockIdx.x, kv_head = (int32_t)blockIdx.y, dim = a.kv.dim;
    if (!is_alone(&a.rows, t))
        return;
    const int32_t slot = a.rows.slot[t], team = (int32_t)threadIdx.x / S::LANES;
    const struct key_range r = split_range(a.rows.position[t] + 1, a.splits, (int32_t)blockIdx.z);
    int32_t first = 0, past;
    while (first < a.heads && a.kv_of[first] < kv_head)
        first++;
    for (; first < a.heads && a.kv_of[first] == kv_head; first = past) {
        for (past = first; past < a.heads && past < first + S::GROUP; past++)
            if (a.kv_of[past] != kv_head)
                break;
        float q[S::GROUP][S::ITER][S::VEC] = {};
        struct state<S> s = {
        };
#pragma unroll
        for (int g = 0; g < S::GROUP; g++) {
            s.max[g] = -INFINITY;
            const float *from = query_at(&a, t, first + g < past ? first + g : first);
#pragma unroll
            for (int i = 0; i < S::ITER; i++)
#pragma unroll
                for (int j = 0; j < S::VEC; j++)
                    if (S::element(i) < dim)
                        q[g][i][j] = from[S::element(i) + j] * a.scale;
        }
        for (int32_t base = r.begin; base < r.end; base += S::TEAMS) {
            const int32_t p = base + team;
            const bool valid = p < r.end;
            const int32_t block = kv_block(&a.rows, slot, (valid ? p : r.begin) / KEYS);
            const int64_t at = kv_index(&a.kv, block, kv_head, false) + (int64_t)(p % KEYS) * dim;
            take_key<S>(s, q, cache + at, cache + at + (int64_t)KEYS * dim, valid, dim);
        }
        fold_teams<S>(a, s, t, (int32_t)blockIdx.z, first, past);
    }
}

__global__ void attend_merge_kernel(struct attend_args a)
{
    const int32_t t = (int32_t)blockIdx.x, head = (int32_t)blockIdx.y, dim = a.kv.dim;
    if (!is_alone(&a.rows, t))
        return;
    const float *p = partial_at(&a, t, head, 0);
    const int32_t step = dim + 2;
    float m = -INFINITY;
    for (int32_t s = 0; s < a.splits; s++)
        m = fmaxf(m, p[s * step + dim]);
    for (int32_t e = (int32_t)threadIdx.x; e < dim; e += (int32_t)blockDim.x) {
        float total = 0, o = 0;
        for (int32_t s = 0; s < a.splits; s++) {
            const float max = p[s * step + dim], weight = max == -INFINITY ? 0 : expf(max - m);
            total = fmaf(p[s * step + dim + 1], weight, total);
            o = fmaf(p[s * step + e], weight, o);
        }
        out_at(&a, t, head)[e] = o / total;
    }
}

/* ---- runs ---- */

/* Keys of a tile: four threads share a row of queries, thread c of them takes keys and output
 * elements c, c + 4, ... of the SPAN columns that are the block's. Those of bigger heads have a
 * block each, which computes the scores again: that costs less than sums that leave registers. */
#define QUAD 4
#define SPAN 128
#define SUMS (SPAN / QUAD) /* of a thread */
#define CHUNK 8            /* sums that are guarded together, QUAD * CHUNK columns */

struct tile {
    float *q, *k, *v, *weight; /* shared: [32][pitch], [16][pitch] twice, [32][17] */
    int32_t pitch;             /* odd, so that rows lie in different banks; whole chunks fit */
};

HOST_DEVICE int32_t tile_pitch(int32_t dim)
{
    return (dim + QUAD * CHUNK - 1) / (QUAD * CHUNK) * (QUAD * CHUNK) | 1;
}

static size_t tile_bytes(int32_t dim)
{
    return ((size_t)(TILE_ROWS + 2 * KEYS) * (size_t)tile_pitch(dim) + TILE_ROWS * (KEYS + 1)) *
           sizeof(float);
}

DEVICE struct tile tile_over(float *memory, int32_t dim)
{
    struct tile s;
    s.pitch = tile_pitch(dim);
    s.q = memory;
    s.k = s.q + TILE_ROWS * s.pitch;
    s.v = s.k + KEYS * s.pitch;
    s.weight = s.v + KEYS * s.pitch;
    return s;
}

/* Keys and values of one cache block; zeros beyond `last`, where nothing was ever written. */
template <typename E>
DEVICE void load_keys(const struct tile &s, const struct attend_args &a, const E *cache,
                      int32_t slot, int32_t kv_head, int32_t nth, int32_t last)
{
    const int32_t dim = a.kv.dim;
    const E *k = cache + kv_index(&a.kv, kv_block(&a.rows, slot, nth), kv_head, false);
    const E *v = k + KEYS * dim;
    for (int32_t n = (int32_t)threadIdx.x; n < KEYS * dim; n += THREADS) {
        const int32_t j = n / dim, e = n % dim;
        const bool there = nth * KEYS + j <= last;
        s.k[j * s.pitch + e] = there ? to_float(k[n]) : 0.0f;
        s.v[j * s.pitch + e] = there ? to_float(v[n]) : 0.0f;
    }
}

/* One cache block for one row of queries whose last visible key is `visible` (-1: none); sums of
 * columns from `first` on. */
DEVICE void take_keys(const struct tile &s, float (&out)[SUMS], float *max, float *sum, int32_t r,
                      int32_t c, int32_t first_key, int32_t visible, int32_t dim, int32_t first)
{
    float score[KEYS / QUAD], top = *max, add = 0;
#pragma unroll
    for (int i = 0; i < KEYS / QUAD; i++) {
        const int32_t j = c + QUAD * i;
        float dot = 0;
        for (int32_t e = 0; e < dim; e++)
            dot = fmaf(s.q[r * s.pitch + e], s.k[j * s.pitch + e], dot);
        score[i] = first_key + j <= visible ? dot : -INFINITY;
        top = fmaxf(top, score[i]);
    }
    top = reduce_lanes<QUAD>(top, maximum());
    const bool any = top != -INFINITY; /* else nothing is visible yet: weights are zero */
#pragma unroll
    for (int i = 0; i < KEYS / QUAD; i++) {
        const float weight = any ? expf(score[i] - top) : 0;
        s.weight[r * (KEYS + 1) + c + QUAD * i] = weight;
        add += weight;
    }
    add = reduce_lanes<QUAD>(add, plus());
    const float old = any ? expf(*max - top) : 0;
    *max = top;
    *sum = fmaf(*sum, old, add);
    __syncwarp(); /* the four threads of a row are of one warp */
#pragma unroll
    for (int i = 0; i < SUMS; i++)
        out[i] *= old;
    for (int32_t j = 0; j < KEYS; j++) {
        const float weight = s.weight[r * (KEYS + 1) + j], *v = s.v + j * s.pitch + first + c;
#pragma unroll
        for (int i = 0; i < SUMS; i++) /* columns beyond dim are never written out */
            if (first + i / CHUNK * CHUNK * QUAD < dim)
                out[i] = fmaf(weight, v[QUAD * i], out[i]);
    }
}

/* Rows [begin, end) of the tile, all of one slot. */
template <typename E>
DEVICE void attend_span(const struct tile &s, const struct attend_args &a, const E *cache,
                        int32_t tile, int32_t begin, int32_t end, int32_t head, int32_t first)
{
    const int32_t r = (int32_t)threadIdx.x / QUAD, c = (int32_t)threadIdx.x % QUAD;
    const int32_t dim = a.kv.dim, slot = a.rows.slot[tile + begin];
    const bool mine = r >= begin && r < end;
    const int32_t visible = mine ? a.rows.position[tile + r] : -1;
    float out[SUMS] = {}, max = -INFINITY, sum = 0;
    int32_t last = 0;
    for (int32_t t = begin; t < end; t++)
        last = a.rows.position[tile + t] > last ? a.rows.position[tile + t] : last;
    for (int32_t nth = 0; nth <= last / KEYS; nth++) {
        __syncthreads(); /* the block before has been used */
        load_keys(s, a, cache, slot, a.kv_of[head], nth, last);
        __syncthreads();
        take_keys(s, out, &max, &sum, r, c, nth * KEYS, visible, dim, first);
    }
#pragma unroll
    for (int i = 0; i < SUMS; i++)
        if (mine && first + c + QUAD * i < dim)
            out_at(&a, tile + r, head)[first + c + QUAD * i] = out[i] / sum;
}

template <typename E>
__global__ void __launch_bounds__(THREADS) attend_tile_kernel(struct attend_args a, const E *cache)
{
    SHARED_DYNAMIC(float, memory);
    const int32_t tile = (int32_t)blockIdx.x * TILE_ROWS, head = (int32_t)blockIdx.y;
    const int32_t dim = a.kv.dim, first = (int32_t)blockIdx.z * SPAN;
    const int32_t count = a.rows.count - tile < TILE_ROWS ? a.rows.count - tile : TILE_ROWS;
    const struct tile s = tile_over(memory, dim);
    for (int32_t n = (int32_t)threadIdx.x; n < TILE_ROWS * dim; n += THREADS) {
        const int32_t r = n / dim, e = n % dim;
        s.q[r * s.pitch + e] = r < count ? query_at(&a, tile + r, head)[e] * a.scale : 0.0f;
    }
    for (int32_t begin = 0, end; begin < count; begin = end) {
        const int32_t slot = a.rows.slot[tile + begin];
        for (end = begin + 1; end < count && a.rows.slot[tile + end] == slot;)
            end++;
        if (is_alone(&a.rows, tile + begin))
            continue;
        if (slot >= 0) {
            attend_span<E>(s, a, cache, tile, begin, end, head, first);
            continue;
        }
        for (int32_t n = (int32_t)threadIdx.x; n < (end - begin) * dim; n += THREADS)
            out_at(&a, tile + begin + n / dim, head)[n % dim] = 0;
    }
}

/* ---- launches ---- */

template <typename S>
static void launch_split(struct cuda_backend *c, const struct attend_args &a, const void *cache)
{
    const dim3 grid((unsigned)a.rows.count, (unsigned)a.kv.heads, (unsigned)a.splits);
    LAUNCH(c, attend_split_kernel<S>, grid, THREADS, 0, a, (const typename S::E *)cache);
    if (a.splits > 1)
        LAUNCH(c, attend_merge_kernel, dim3(grid.x, (unsigned)a.heads), THREADS, 0, a);
}

/* 16-bit keys of the usual sizes: 16 bytes a lane, four query heads at once. */
template <typename E>
static void launch_wide(struct cuda_backend *c, const struct attend_args &a, const void *cache)
{
    if (a.kv.dim == 64)
        launch_split<shape<E, 8, 8, 1, 4>>(c, a, cache);
    else if (a.kv.dim == 128)
        launch_split<shape<E, 8, 16, 1, 4>>(c, a, cache);
    else if (a.kv.dim == 256)
        launch_split<shape<E, 8, 32, 1, 4>>(c, a, cache);
    else
        launch_split<shape<E, 1, WARP, BACKEND_HEAD_DIM_MAX / WARP, 1>>(c, a, cache);
}

template <typename E>
static void launch_tile(struct cuda_backend *c, const struct attend_args &a, const void *cache)
{
    const dim3 grid(blocks_for((size_t)a.rows.count, TILE_ROWS), (unsigned)a.heads,
                    blocks_for((size_t)a.kv.dim, SPAN));
    const size_t shared = tile_bytes(a.kv.dim);
    if (shared > 48 << 10)
        cuda_note(c, "attend",
                  cudaFuncSetAttribute(attend_tile_kernel<E>,
                                       cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared));
    LAUNCH(c, attend_tile_kernel<E>, grid, THREADS, shared, a, (const E *)cache);
}

/* As many splits as the room for their results allows; 1 needs none. */
static int32_t splits_for(const struct cuda_backend *c, const struct attend_args &a)
{
    const size_t each = (size_t)a.rows.count * (size_t)a.heads * ((size_t)a.kv.dim + 2) * 4;
    const size_t fit = c->partial.bytes / each;
    return fit < 1 ? 1 : fit < SPLITS_MAX ? (int32_t)fit : SPLITS_MAX;
}

void attend_run(struct backend *b, struct view out, struct cview qkv, const struct heads *h,
                const struct rows *rows, const struct kv_cache *kv, int32_t layer)
{
    struct cuda_backend *c = cuda_of(b);
    if (rows->count == 0 || h->heads == 0)
        return;
    struct attend_args a = {(float *)out.data,
                            (const float *)qkv.data,
                            *rows,
                            kv_place_of(&kv->spec, layer),
                            h->kv_of,
                            h->heads,
                            1,
                            1 / sqrtf((float)h->head_dim),
                            (float *)c->partial.data};
    a.splits = splits_for(c, a);
    if (kv->spec.dtype == DTYPE_F32)
        launch_split<shape<float, 1, WARP, BACKEND_HEAD_DIM_MAX / WARP, 1>>(c, a, kv->storage);
    else if (kv->spec.dtype == DTYPE_F16)
        launch_wide<__half>(c, a, kv->storage);
    else if (kv->spec.dtype == DTYPE_F8_E4M3)
        launch_wide<e4m3>(c, a, kv->storage);
    else
        launch_wide<bf16>(c, a, kv->storage);
    WITH_KV_TYPE(kv->spec.dtype, launch_tile<E>(c, a, kv->storage));
}
