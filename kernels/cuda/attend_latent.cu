/* DESIGN: attention over latents (MLA): a key of 576 elements, whose last 512 are its value, for up
 * to 128 query heads of a row. A key has 2 * (576 + 512) floating point operations for each head
 * and 1,152 bytes in bf16: 30 operations a byte with 16 heads of a rank, 240 with 128, where an
 * H200 has about 200 for one. So few heads are bound by memory and many by the tensor cores, and
 * what counts either way is that a key is read once, into shared memory, for scores and for values.
 *
 * A block has a row and 16 of its query heads, the rows of tensor cores' products, or twice 16,
 * which read the same shared memory; and 32 keys at a time, of which the next ones are copied while
 * these are used. Four warps share 16 heads. In scores each has every fourth step of 16 elements,
 * so that its part of the queries stays in registers, and the parts are added up in the warps'
 * order, by each of them; of the output each has every fourth step of 16 columns, so that each
 * element of a key comes out of shared memory twice, once for scores and once as a value.
 *
 * Queries and weights are two numbers each, as in attend_decode.cuh, which doubles the products: 16
 * heads take about half of an H200's memory rate then, and rows must be many to fill it. Codes of
 * E4M3 lie in shared memory as they are and become fp16 on the way to the tensor cores. Keys of
 * fp32, and devices with little shared memory, have a kernel without tensor cores.
 *
 * How a row's keys are cut into splits depends on their number only, splits are folded in ascending
 * order, and all rows are treated alike, in prompts as in decodes: so a row's bits depend on
 * nothing else in the step. Few rows have a block for each split, whose results are merged by
 * another launch; rows find their places in memory by counting the splits of those before them. For
 * what finds none, and of many rows for all but long ones of decodes, one block folds as it goes:
 * the device is full anyway. Rejected: tiles of several rows of a prompt, which would read keys
 * less often than once a row; those that run together find them in the cache. */
#include "kernels/cuda/attend_latent.cuh"
#include "kernels/cuda/halves.cuh"

#include <type_traits>

#define QUAD 4   /* lanes that have a row of a result */
#define TILE 16  /* heads */
#define WARPS 4  /* that share them */
#define KEYS 32  /* of a tile */
#define STAGES 2 /* tiles in shared memory */
#define VALUE_MOST BACKEND_HEAD_DIM_MAX
#define STEPS (BACKEND_KEY_DIM_MAX / TILE / WARPS) /* of 16 elements of a key, of a warp */
#define COLUMNS (VALUE_MOST / TILE / WARPS)        /* the same of a value */

static_assert(SPLIT_KEYS_MIN % KEYS == 0 && KEYS % BACKEND_BLOCK_TOKENS == 0, "whole tiles");

/* E: as stored; C: as multiplied. TILES: of heads. */
template <typename E_, typename C_, int TILES_> struct latent_shape {
    typedef E_ E;
    typedef C_ C;
    static constexpr bool CODES = sizeof(E) == 1;
    static constexpr int TILES = TILES_, THREADS = TILES * WARPS * WARP;
    static constexpr int CHUNK = 16 / (int)sizeof(E); /* elements that are copied together */
};

/* What each warp has of scores, as its lanes hold them. */
struct latent_parts {
    pack<float, 4> of[WARPS][KEYS / 8][WARP];
};

/* Shared memory: parts of scores of each tile of heads, keys, and outputs so far where a block
 * folds. Keys lie in rows of whole eights of chunks, in an order that depends on the row: so eight
 * rows below each other are in different banks. */
template <typename S> struct latent_memory {
    struct latent_parts *parts;
    float *top; /* [tiles][warps][16] */
    typename S::E *keys;
    int32_t pitch;
    pack<float, 4> *so_far;
};

struct alignas(16) sixteen {
    unsigned char bytes[16];
};

template <typename S> HOST_DEVICE int32_t latent_pitch(int32_t dim)
{
    return (dim + 8 * S::CHUNK - 1) / (8 * S::CHUNK) * (8 * S::CHUNK);
}

template <typename S>
DEVICE struct latent_memory<S> memory_over(unsigned char *memory, int32_t dim) {
    struct latent_memory<S> m;
    m.pitch = latent_pitch<S>(dim);
    m.parts = (struct latent_parts *)memory;
    m.top = (float *)(m.parts + S::TILES);
    m.keys = (typename S::E *)(m.top + S::TILES * WARPS * TILE);
    m.so_far = (pack<float, 4> *)(m.keys + STAGES * KEYS * m.pitch);
    return m;
}

template <typename S>
static size_t memory_bytes(int32_t dim, bool folds)
{
    return S::TILES * (sizeof(struct latent_parts) + WARPS * TILE * sizeof(float)) +
           (size_t)(STAGES * KEYS * latent_pitch<S>(dim)) * sizeof(typename S::E) +
           (folds ? S::TILES * TILE * VALUE_MOST * sizeof(float) : 0);
}

/* Where a row of keys has a chunk. */
template <typename S> DEVICE int32_t chunk_at(int32_t row, int32_t chunk, int32_t pitch)
{
    return row * pitch + (chunk ^ (row & 7)) * S::CHUNK;
}

/* ---- queries ---- */

/* Of a step of 16 elements the two, of four, that a lane has in a factor's half: E4M3 come in the
 * order of their words. */
template <typename S> DEVICE int32_t query_element(int half)
{
    const int32_t q = (int32_t)threadIdx.x % QUAD;
    return S::CODES ? 4 * q + 2 * half : 2 * q + 8 * half;
}

/* A warp's steps of 16 heads: high parts, and what they leave. */
struct latent_queries {
    uint32_t high[STEPS][4], low[STEPS][4];
    float back[2]; /* what scores of rows lane / 4, and + 8, are to be multiplied by */
};

/* Which heads of a tile a lane's rows are, and which warp of it this is. */
struct lane_place {
    int32_t tile, warp, lane;
};

DEVICE struct lane_place place_of_lane()
{
    const int32_t warp = (int32_t)threadIdx.x / WARP;
    return {warp / WARPS, warp % WARPS, (int32_t)threadIdx.x % WARP};
}

DEVICE int32_t head_of(const struct latent_work &w, const struct lane_place &p, int half)
{
    return w.first + p.tile * TILE + p.lane / QUAD + 8 * half;
}

/* Of a step a lane's elements of row lane / 4, four, and of the one 8 below, times the scale. */
template <typename S>
DEVICE void load_step(float (&x)[8], const struct latent_args &l, const struct latent_work &w,
                      const struct lane_place &p, int32_t s)
{
    const int32_t step = s * WARPS + p.warp;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int32_t head = head_of(w, p, i / 2);
        pack<float, 2> two = {};
        if (head < w.past && step * 16 < l.a.kv.dim)
            two = get_elements<2>(l.a.qkv,
                                  latent_query(l, w.t, head) + step * 16 + query_element<S>(i % 2));
        x[2 * i] = two.e[0] * l.a.scale;
        x[2 * i + 1] = two.e[1] * l.a.scale;
    }
}

/* fp16 has a small range: each head is brought to [1, 2) by a power of two. */
template <typename S>
DEVICE void find_units(float (&unit)[2], float (&back)[2], const struct latent_args &l,
                       const struct latent_work &w, const struct lane_place &p, float *top)
{
    float *of_tile = top + p.tile * WARPS * TILE, most[2] = {};
#pragma unroll 1
    for (int32_t s = 0; s < STEPS; s++) {
        float x[8];
        load_step<S>(x, l, w, p, s);
#pragma unroll
        for (int i = 0; i < 8; i++)
            most[i / 4] = fmaxf(most[i / 4], fabsf(x[i]));
    }
#pragma unroll
    for (int half = 0; half < 2; half++)
        of_tile[p.warp * TILE + p.lane / QUAD + 8 * half] =
            reduce_lanes<QUAD>(most[half], maximum());
    __syncthreads();
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float all = 0;
#pragma unroll
        for (int warp = 0; warp < WARPS; warp++)
            all = fmaxf(all, of_tile[warp * TILE + p.lane / QUAD + 8 * half]);
        const uint32_t two = __float_as_uint(all) & 0x7f800000u;
        if (two > 0 && two < 254u << 23) {
            unit[half] = __uint_as_float((254u << 23) - two);
            back[half] = __uint_as_float(two);
        }
    }
}

template <typename S>
DEVICE void load_queries(struct latent_queries &q, const struct latent_args &l,
                         const struct latent_work &w, const struct lane_place &p, float *top)
{
    float unit[2] = {1, 1};
    q.back[0] = q.back[1] = 1;
    if (std::is_same<typename S::C, __half>::value)
        find_units<S>(unit, q.back, l, w, p, top);
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        float x[8];
        load_step<S>(x, l, w, p, s);
#pragma unroll
        for (int i = 0; i < 4; i++) { /* of a factor: row r, row r + 8, and again */
            const int from = i % 2 * 4 + i / 2 * 2;
            cut<typename S::C>(q.high[s][i], q.low[s][i], x[from] * unit[i % 2],
                               x[from + 1] * unit[i % 2]);
        }
    }
}

/* ---- keys ---- */

/* Begins to copy the tile whose first key this is: zeros for what the row does not see, where
 * anything may be. */
template <typename S>
DEVICE void fetch(typename S::E *to, int32_t pitch, const struct latent_args &l,
                  const struct latent_work &w, const typename S::E *cache, int32_t first)
{
    const int32_t dim = l.a.kv.dim, chunks = dim / S::CHUNK, seen = attend_first(&l.a, w.position);
#pragma unroll
    for (int part = 0; part < KEYS / BACKEND_BLOCK_TOKENS; part++) {
        const int32_t key = first + part * BACKEND_BLOCK_TOKENS;
        const bool any = key < w.keys.end;
        const int32_t block = any ? kv_block(&l.a.rows, w.slot, key / BACKEND_BLOCK_TOKENS) : 0;
        const typename S::E *from = cache + (any ? kv_latent_index(&l.a.kv, block, w.kv_head) : 0);
        for (int32_t row = (int32_t)threadIdx.x / WARP; row < BACKEND_BLOCK_TOKENS;
             row += S::THREADS / WARP) {
            const bool there = any && key + row >= seen && key + row <= w.position;
            const int32_t at = part * BACKEND_BLOCK_TOKENS + row;
            for (int32_t c = (int32_t)threadIdx.x % WARP; c < chunks; c += WARP)
                mma_copy(to + chunk_at<S>(at, c, pitch), from + row * dim + c * S::CHUNK, there);
        }
    }
    mma_copy_group();
}

/* Where a lane finds what it loads of a warp's steps: the n-th one's chunks are a multiple of eight
 * behind those of one of the first, so in the same order. */
template <typename S> struct latent_lane {
    static constexpr int FIRST = S::CODES ? 2 : 1; /* steps */
    int32_t keys[FIRST], values[FIRST];
    DEVICE static int32_t behind(int n)
    {
        return n / FIRST * 8 * S::CHUNK;
    }
};

template <typename S>
DEVICE struct latent_lane<S> lane_of(const struct lane_place &p, int32_t pitch, int32_t turns) {
    const int32_t lane = p.lane;
    struct latent_lane<S> at;
#pragma unroll
    for (int n = 0; n < latent_lane<S>::FIRST; n++) {
        const int32_t key = n * WARPS + p.warp, value = turns / 16 + key;
        if (S::CODES) {
            at.keys[n] = chunk_at<S>(lane, key, pitch);
            at.values[n] = chunk_at<S>(lane, value, pitch);
        } else {
            at.keys[n] = chunk_at<S>(lane % 8 + lane / 16 * 8, 2 * key + lane / 8 % 2, pitch);
            at.values[n] = chunk_at<S>(lane % 16, 2 * value + lane / 16, pitch);
        }
    }
    return at;
}

/* The warp's n-th step of 16 elements of all keys, as second factors: b[j] of keys 8 * j and on. */
template <typename S>
DEVICE void load_keys(uint32_t (&b)[KEYS / 8][2], const typename S::E *keys,
                      const struct latent_lane<S> &at, int32_t pitch, int n)
{
    const typename S::E *from = keys + at.keys[n % at.FIRST] + at.behind(n);
    uint32_t m[4];
    if constexpr (S::CODES) {
        mma_load(m, from);
#pragma unroll
        for (int j = 0; j < 4; j++)
            mma_widen(b[j], m[j], e4m3(), __half());
    } else {
#pragma unroll
        for (int j = 0; j < 4; j += 2) {
            mma_load(m, from + j * 8 * pitch);
#pragma unroll
            for (int i = 0; i < 4; i++)
                b[j + i / 2][i % 2] = m[i];
        }
    }
}

/* The same of 16 columns of values, transposed: b[k][j] of keys 16 * k and on and the j-th 8
 * columns, which of E4M3 are every other one. */
template <typename S>
DEVICE void load_values(uint32_t (&b)[KEYS / 16][2][2], const typename S::E *keys,
                        const struct latent_lane<S> &at, int32_t pitch, int n)
{
    const typename S::E *from = keys + at.values[n % at.FIRST] + at.behind(n);
    uint32_t m[4], pair[2];
    if constexpr (S::CODES) {
        mma_load_transposed(m, from);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            mma_widen(pair, mma_exchange(m[i]), e4m3(), __half());
            b[i / 2][0][i % 2] = pair[0];
            b[i / 2][1][i % 2] = pair[1];
        }
    } else {
#pragma unroll
        for (int k = 0; k < KEYS / 16; k++) {
            mma_load_transposed(m, from + k * 16 * pitch);
#pragma unroll
            for (int i = 0; i < 4; i++)
                b[k][i / 2][i % 2] = m[i];
        }
    }
}

/* ---- a tile of keys ---- */

/* Outputs, of a warp's columns, of two heads: as tensor cores have them. Sums are of the lane's own
 * keys. */
struct latent_state {
    float out[COLUMNS][2][4];
    struct ends ends[2];
};

DEVICE void clear(struct latent_state &s)
{
#pragma unroll
    for (int i = 0; i < COLUMNS * 8; i++)
        s.out[i / 8][i / 4 % 2][i % 4] = 0;
#pragma unroll
    for (int half = 0; half < 2; half++)
        s.ends[half] = {-INFINITY, 0};
}

/* A warp's part of the scores, for all warps of its heads. */
template <typename S>
DEVICE void multiply_keys(struct latent_parts *parts, const struct latent_queries &q,
                          const struct lane_place &p, const struct latent_lane<S> &at,
                          const typename S::E *keys, int32_t pitch, int32_t dim)
{
    float score[KEYS / 8][4] = {};
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        if ((s * WARPS + p.warp) * 16 >= dim)
            continue;
        uint32_t b[KEYS / 8][2];
        load_keys<S>(b, keys, at, pitch, s);
#pragma unroll
        for (int j = 0; j < KEYS / 8; j++)
            mma_multiply(score[j], q.low[s], b[j][0], b[j][1], typename S::C());
#pragma unroll
        for (int j = 0; j < KEYS / 8; j++)
            mma_multiply(score[j], q.high[s], b[j][0], b[j][1], typename S::C());
    }
#pragma unroll
    for (int j = 0; j < KEYS / 8; j++)
        parts[p.tile].of[p.warp][j][p.lane] = *(const pack<float, 4> *)score[j];
}

/* Scores of all keys, from the parts; -inf of those that the row does not see. */
DEVICE void add_parts(float (&score)[KEYS / 8][4], const struct latent_parts *parts,
                      const struct latent_args &l, const struct latent_work &w,
                      const struct latent_queries &q, const struct lane_place &p, int32_t first)
{
    const int32_t seen = attend_first(&l.a, w.position);
    const bool whole = first >= seen && first + KEYS - 1 <= w.position;
#pragma unroll
    for (int j = 0; j < KEYS / 8; j++) {
        pack<float, 4> sum = parts[p.tile].of[0][j][p.lane];
#pragma unroll
        for (int warp = 1; warp < WARPS; warp++) {
            const pack<float, 4> more = parts[p.tile].of[warp][j][p.lane];
#pragma unroll
            for (int i = 0; i < 4; i++)
                sum.e[i] += more.e[i];
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int32_t key = first + 8 * j + p.lane % QUAD * 2 + i % 2;
            score[j][i] = sum.e[i] * q.back[i / 2];
            if (l.a.softcap > 0)
                score[j][i] = attend_capped(l.a, score[j][i]);
            if (!whole && (key < seen || key > w.position))
                score[j][i] = -INFINITY;
        }
    }
}

/* Scores become weights, of which the row sees one at least. */
DEVICE void weigh(float (&score)[KEYS / 8][4], struct latent_state &s)
{
    float old[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float top = s.ends[half].max;
#pragma unroll
        for (int j = 0; j < KEYS / 8; j++)
            top = fmaxf(top, fmaxf(score[j][2 * half], score[j][2 * half + 1]));
        top = reduce_lanes<QUAD>(top, maximum());
        old[half] = s.ends[half].max == top ? 1 : mma_exp2(s.ends[half].max - top);
        s.ends[half].max = top;
        s.ends[half].sum *= old[half];
#pragma unroll
        for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
            for (int i = 2 * half; i < 2 * half + 2; i++) {
                score[j][i] = mma_exp2(score[j][i] - top);
                s.ends[half].sum += score[j][i];
            }
    }
    if (__any_sync(ALL_LANES, old[0] != 1 || old[1] != 1)) {
#pragma unroll
        for (int i = 0; i < COLUMNS * 8; i++)
            s.out[i / 8][i / 4 % 2][i % 4] *= old[i % 4 / 2];
    }
}

/* out += weights * values. */
template <typename S>
DEVICE void multiply_values(struct latent_state &s, const float (&weight)[KEYS / 8][4],
                            const struct lane_place &p, const struct latent_lane<S> &at,
                            const typename S::E *keys, int32_t pitch, int32_t latent)
{
    uint32_t high[KEYS / 16][4], low[KEYS / 16][4];
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float *pair = weight[2 * k + i / 2] + i % 2 * 2;
            cut<typename S::C>(high[k][i], low[k][i], pair[0], pair[1]);
        }
#pragma unroll
    for (int n = 0; n < COLUMNS; n++) {
        if ((n * WARPS + p.warp) * 16 >= latent)
            continue;
        uint32_t b[KEYS / 16][2][2];
        load_values<S>(b, keys, at, pitch, n);
#pragma unroll
        for (int k = 0; k < KEYS / 16; k++)
#pragma unroll
            for (int j = 0; j < 2; j++) {
                mma_multiply(s.out[n][j], low[k], b[k][j][0], b[k][j][1], typename S::C());
                mma_multiply(s.out[n][j], high[k], b[k][j][0], b[k][j][1], typename S::C());
            }
    }
}

/* ---- ends of splits ---- */

/* fn(column, two results), of a row's: neighbours from that column on. */
template <typename S, typename F>
DEVICE void for_pairs(const struct latent_state &s, const struct lane_place &p, int half,
                      int32_t latent, F fn)
{
    const int32_t first = p.warp * 16 + p.lane % QUAD * (S::CODES ? 4 : 2);
#pragma unroll
    for (int n = 0; n < COLUMNS; n++) {
        const float(*of)[4] = s.out[n];
        if ((n * WARPS + p.warp) * 16 >= latent)
            continue;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const pack<float, 2> two = {S::CODES ? of[0][2 * half + i] : of[i][2 * half],
                                        S::CODES ? of[1][2 * half + i] : of[i][2 * half + 1]};
            fn(first + n * WARPS * 16 + i * (S::CODES ? 2 : 8), two);
        }
    }
}

/* What the block has so far, in shared memory: this split behind those before it. The results are
 * the state's then. */
template <typename S>
DEVICE void fold_split(struct latent_state &s, struct ends (&all)[2], pack<float, 4> *so_far,
                       bool first, bool last)
{
    struct folding f[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        f[half] = {0, 1};
        if (first)
            all[half] = s.ends[half];
        else
            f[half] = fold_ends(&all[half], s.ends[half]);
        s.ends[half] = all[half];
    }
#pragma unroll
    for (int n = 0; n < COLUMNS * 2; n++) {
        pack<float, 4> *at = so_far + n * S::THREADS + threadIdx.x, sum;
        float *out = s.out[n / 2][n % 2];
        if (!first) {
            sum = *at;
#pragma unroll
            for (int i = 0; i < 4; i++)
                out[i] = fold(sum.e[i], out[i], f[i / 2]);
        }
        if (!last)
            *at = {out[0], out[1], out[2], out[3]};
    }
}

/* Those of a split for the merge, or of all of them. */
template <typename S>
DEVICE void put_results(const struct latent_state &s, const struct latent_args &l,
                        const struct latent_work &w, const struct lane_place &p)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int32_t head = head_of(w, p, half);
        if (head >= w.past)
            continue;
        if (w.place < 0) {
            const float sum = attend_sum(l.a, head, s.ends[half].sum, s.ends[half].max);
            const int64_t to = latent_out(l, w.t, head);
            for_pairs<S>(s, p, half, l.latent, [&](int32_t column, const pack<float, 2> &x) {
                put_elements<2>(l.a.out, to + column, {x.e[0] / sum, x.e[1] / sum});
            });
            continue;
        }
        float *to = partial_at(&l, w.place, w.split, head);
        for_pairs<S>(s, p, half, l.latent, [&](int32_t column, const pack<float, 2> &x) {
            *(pack<float, 2> *)(to + column) = x;
        });
        if (p.warp == 0 && p.lane % QUAD == 0)
            *(pack<float, 2> *)(to + l.latent) = {s.ends[half].max, s.ends[half].sum};
    }
}

/* ---- the kernel ---- */

/* Keys of one split, whose first tile is on its way. */
template <typename S>
DEVICE void take_split(struct latent_state &s, const struct latent_memory<S> &m,
                       const struct latent_args &l, const struct latent_work &w,
                       const struct latent_queries &q, const struct lane_place &p,
                       const typename S::E *cache, struct key_range keys)
{
    const int32_t size = KEYS * m.pitch;
    const struct latent_lane<S> at = lane_of<S>(p, m.pitch, l.a.kv.dim - l.latent);
    clear(s);
    for (int32_t first = keys.begin, stage = 0; first < keys.end; first += KEYS, stage ^= 1) {
        const typename S::E *tile = m.keys + stage * size;
        float score[KEYS / 8][4];
        mma_copy_wait<0>();
        __syncthreads(); /* the tile is there, and the one before has been used */
        if (first + KEYS < keys.end)
            fetch<S>(m.keys + (stage ^ 1) * size, m.pitch, l, w, cache, first + KEYS);
        multiply_keys<S>(m.parts, q, p, at, tile, m.pitch, l.a.kv.dim);
        __syncthreads();
        add_parts(score, m.parts, l, w, q, p, first);
        weigh(score, s);
        multiply_values<S>(s, score, p, at, tile, m.pitch, l.latent);
    }
    __syncthreads(); /* the next split's first tile is copied over */
#pragma unroll
    for (int half = 0; half < 2; half++)
        s.ends[half].sum = reduce_lanes<QUAD>(s.ends[half].sum, plus());
}

template <typename S>
__global__ void __launch_bounds__(S::THREADS, 2 / S::TILES)
    attend_latent_kernel(struct latent_args l, const typename S::E *cache, int32_t tiles)
{
    SHARED_DYNAMIC(struct sixteen, memory);
    launch_release();
    const struct latent_work w = work_of(l, tiles);
    const struct lane_place p = place_of_lane();
    const struct latent_memory<S> m = memory_over<S>((unsigned char *)memory, l.a.kv.dim);
    const auto fetch_first = [&](int32_t first) { fetch<S>(m.keys, m.pitch, l, w, cache, first); };
    const int32_t first = latent_split_range(w.keys, w.split).begin;
    const bool older = w.slot >= 0 && l.a.early && first + KEYS <= w.position; /* than this step */
    struct latent_state s;
    struct latent_queries q;
    struct ends all[2];
    if (w.first >= w.past || w.split >= w.end) /* others wait: for those of the first split */
        return;
    if (older)
        fetch_first(first);
    launch_wait();
    if (w.slot < 0) {
        put_zeros(l, w);
        return;
    }
    if (!older)
        fetch_first(first);
    load_queries<S>(q, l, w, p, m.top);
    for (int32_t split = w.split; split < w.end; split++) {
        take_split<S>(s, m, l, w, q, p, cache, latent_split_range(w.keys, split));
        if (split + 1 < w.end)
            fetch_first(latent_split_range(w.keys, split + 1).begin);
        if (w.place < 0 && w.end > 1)
            fold_split<S>(s, all, m.so_far, split == 0, split == w.end - 1);
    }
    put_results<S>(s, l, w, p);
}

/* Block (row, head): folds the splits of a row that has places. */
__global__ void __launch_bounds__(WARPS *WARP) attend_latent_merge_kernel(struct latent_args l)
{
    const int32_t t = (int32_t)blockIdx.x, head = (int32_t)blockIdx.y;
    const int32_t place = place_of(l, t);
    launch_release();
    launch_wait();
    if (place < 0)
        return;
    const int32_t splits = splits_wanted(&l, t);
    const int64_t pitch = (int64_t)l.a.heads * (l.latent + ATTEND_PARTIAL_MORE);
    const float *first = partial_at(&l, place, 0, head);
    for (int32_t e = (int32_t)threadIdx.x; e < l.latent; e += WARPS * WARP) {
        struct ends all = {first[l.latent], first[l.latent + 1]};
        float out = first[e];
#pragma unroll 8 /* loads under way together */
        for (int32_t s = 1; s < splits; s++) {
            const float *p = first + s * pitch;
            const struct folding f = fold_ends(&all, {p[l.latent], p[l.latent + 1]});
            out = fold(out, p[e], f);
        }
        put_element(l.a.out, latent_out(l, t, head) + e,
                    out / attend_sum(l.a, head, all.sum, all.max));
    }
}

/* ---- the host's part ---- */

/* Blocks for tiles of so many heads of each KV head, and for splits if a row may have several. */
static dim3 grid_of(const struct latent_args &l, int32_t tiles)
{
    return dim3((unsigned)l.a.rows.count, (unsigned)(l.a.kv.heads * tiles),
                l.room > 0 ? (unsigned)l.most : 1);
}

template <typename S>
static void launch_shape(struct cuda_backend *c, struct latent_args l, const void *cache)
{
    void (*const kernel)(struct latent_args, const typename S::E *, int32_t) =
        attend_latent_kernel<S>;
    l.heads_tile = S::TILES * TILE;
    const int32_t tiles = (l.a.heads + l.heads_tile - 1) / l.heads_tile;
    const size_t shared = memory_bytes<S>(l.a.kv.dim, l.most > 1 && !(l.all && l.few));
    const size_t most = memory_bytes<S>(l.a.kv.dim, true);
    cuda_note(c, "attend", /* one bound: launches of other sizes may stand in a recording */
              cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)most));
    LAUNCH_AHEAD(c, kernel, grid_of(l, tiles), S::THREADS, shared, l, (const typename S::E *)cache,
                 tiles);
}

/* Whether a block of such a shape has room on the device, whatever it does. */
template <typename S> static bool fits(const struct cuda_backend *c, const struct latent_args &l)
{
    return memory_bytes<S>(l.a.kv.dim, true) + BLOCK_SHARED <= (size_t)c->shared;
}

/* false: the device's shared memory is too small (86, 89, 120: 100 KiB). */
template <typename E, typename C>
static bool launch_tiles(struct cuda_backend *c, const struct latent_args &l, const void *cache)
{
    typedef latent_shape<E, C, 1> one;
    typedef latent_shape<E, C, 2> two;
    if (!fits<one>(c, l))
        return false;
    if (l.a.heads > TILE && fits<two>(c, l))
        launch_shape<two>(c, l, cache);
    else
        launch_shape<one>(c, l, cache);
    return true;
}

static bool launch_type(struct cuda_backend *c, const struct latent_args &l, enum dtype dtype,
                        const void *cache)
{
    if (dtype == DTYPE_F16)
        return launch_tiles<__half, __half>(c, l, cache);
    if (dtype == DTYPE_F8_E4M3)
        return launch_tiles<e4m3, __half>(c, l, cache);
    return dtype == DTYPE_BF16 && launch_tiles<bf16, bf16>(c, l, cache);
}

/* How many rows are shared by several blocks, and where their results may lie. */
static void find_room(struct latent_args *l, size_t bytes)
{
    const size_t split =
        (size_t)l->a.heads * (size_t)(l->latent + ATTEND_PARTIAL_MORE) * sizeof(float);
    const int32_t longest = l->a.rows.table_cols * BACKEND_BLOCK_TOKENS;
    const int64_t blocks =
        (int64_t)l->a.rows.count * l->a.kv.heads * ((l->a.heads + 2 * TILE - 1) / (2 * TILE));
    l->most = latent_split_count(longest);
    l->few = blocks < LATENT_BLOCKS;
    l->room = l->most < 2 || (!l->few && longest < ATTEND_LONG_KEYS) ? 0 : (int32_t)(bytes / split);
    l->all = (int64_t)l->a.rows.count * l->most <= l->room;
}

void attend_latent_run(struct cuda_backend *c, const struct attend_args *a, size_t partial_bytes,
                       enum dtype dtype, const void *cache)
{
    struct latent_args l = {*a, a->kv.latent, WARPS, 0, 0, false, false};
    find_room(&l, partial_bytes);
    if (!launch_type(c, l, dtype, cache))
        attend_latent_plain(c, &l, dtype, cache);
    if (l.room > 0)
        LAUNCH_AHEAD(c, attend_latent_merge_kernel,
                     dim3((unsigned)a->rows.count, (unsigned)a->heads), WARPS * WARP, 0, l);
}
