/* What a warp of attend_decode.cu does with 16 keys: products by tensor cores, softmax in fp32.
 *
 * Keys, and values transposed, are the factors of 16 rows; 8 query heads are the 8 columns of the
 * other. That one is bf16 or fp16, and queries are fp32: so each is two numbers, its high part and
 * what that leaves, 16 bits or more together, and there are two products. So it is with weights.
 *
 * Codes of E4M3 are fp16 before they are multiplied, without loss; so are queries then. Their range
 * is small: each head's are brought to [1, 2) by a power of two, which scores get back. */
#ifndef TESSERA_KERNELS_CUDA_ATTEND_DECODE_CUH
#define TESSERA_KERNELS_CUDA_ATTEND_DECODE_CUH

#include "kernels/cuda/attend.cuh"
#include "kernels/cuda/halves.cuh"

#include <type_traits>

#define BLOCK BACKEND_BLOCK_TOKENS
#define QUAD 4  /* lanes that have a row of a result, two columns each */
#define GROUP 8 /* query heads at once */
#define SLACK 8 /* weights are 2^8 at most */

/* E: as stored; C: as multiplied. Each warp has a ring of HALVES, each the keys or the values of a
 * cache block of one head. Rows are padded by 16 bytes: eight that lie below each other are in
 * different banks. The outputs of a warp fit one of them, or two where elements are bytes. */
template <typename E_, typename C_, int DIM_, int WARPS_LOG2_, int HALVES_> struct layout {
    typedef E_ E;
    typedef C_ C;
    static constexpr bool CODES = sizeof(E) == 1;
    static constexpr int DIM = DIM_, STEPS = DIM / 16, HALVES = HALVES_;
    static constexpr int WARPS_LOG2 = WARPS_LOG2_, WARPS = 1 << WARPS_LOG2, THREADS = WARPS * WARP;
    static constexpr int VEC = 16 / (int)sizeof(E), CHUNKS = DIM / VEC; /* copies of a row */
    static constexpr int PITCH = DIM + VEC, HALF = BLOCK * PITCH;       /* elements */
    static constexpr int RING = HALVES * HALF, OUT_PITCH = DIM + 4;     /* elements; floats */
    static constexpr size_t BYTES = (size_t)WARPS * RING * sizeof(E);
    static_assert(HALVES == 3 || HALVES == 4, "attend_part has the order of these");
    static_assert(GROUP * OUT_PITCH * sizeof(float) <= (HALVES - 2) * HALF * sizeof(E),
                  "outputs fit what is free at the end of a split");
};

/* The keys that a row sees, positions [first, last]. */
struct visible {
    int32_t first, last;
};

HOST_DEVICE bool sees(const struct visible &v, int32_t key)
{
    return key >= v.first && key <= v.last;
}

HOST_DEVICE bool sees_block(const struct visible &v, int32_t key)
{
    return key >= v.first && key + BLOCK - 1 <= v.last;
}

/* Queries, or weights, as the second factor: of a lane's column lane / 4 the high parts of four
 * elements, and what they leave. */
struct parts {
    uint32_t high[2], low[2];
};

/* Of two heads, 2 * (lane % 4) and the next: what weights are relative to, the sum of those of the
 * lane's own keys, and outputs: out[s][i] of head i % 2. */
template <typename L> struct state {
    float out[L::STEPS][4], max[2], sum[2];
};

/* Which elements a lane has: of 16 bits, those that tensor cores mean. A word of codes is four
 * elements of a key, or two of two keys: so their order is another one. */
template <typename L> struct element {
    /* i of 4 in a step of 16 of the product with keys. */
    DEVICE static uint32_t of_query(int i)
    {
        const uint32_t q = threadIdx.x % QUAD;
        return L::CODES ? 4 * q + i : 2 * q + i % 2 + i / 2 * 8;
    }
    /* Row lane / 4 of step s, or the one 8 below. */
    DEVICE static uint32_t of_output(int s, int below)
    {
        const uint32_t r = threadIdx.x % WARP / QUAD;
        return s * 16 + (L::CODES ? 2 * r + below : r + 8 * below);
    }
};

/* A lane's elements of a query. All loads are under way together: so the type is looked at once. */
template <typename L, typename Q>
DEVICE void load_query(float (&x)[L::STEPS][4], const void *qkv, int64_t from)
{
    const Q *query = (const Q *)qkv + from;
#pragma unroll
    for (int s = 0; s < L::STEPS; s++)
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
            const pack<Q, 2> two = *(const pack<Q, 2> *)(query + 16 * s + element<L>::of_query(i));
            float pair[2];
            widen(pair, two);
            x[s][i] = pair[0];
            x[s][i + 1] = pair[1];
        }
}

/* `count` heads as factors, of whose elements a lane has x, times the scale; back[i]: what the
 * scores of the lane's head i of two are to be multiplied by. */
template <typename L>
DEVICE void cut_queries(struct parts (&q)[L::STEPS], float (&back)[2], float (&x)[L::STEPS][4],
                        float scale, int32_t count)
{
    const int32_t head = (int32_t)threadIdx.x % WARP / QUAD, of = (int32_t)threadIdx.x % QUAD * 2;
    float top = 0, unit = 1, inverse = 1;
#pragma unroll
    for (int s = 0; s < L::STEPS; s++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            x[s][i] = head < count ? x[s][i] * scale : 0;
            top = fmaxf(top, fabsf(x[s][i]));
        }
    if (std::is_same<typename L::C, __half>::value) {
        const uint32_t two = __float_as_uint(reduce_lanes<QUAD>(top, maximum())) & 0x7f800000u;
        if (two > 0 && two < 254u << 23) {
            unit = __uint_as_float((254u << 23) - two);
            inverse = __uint_as_float(two);
        }
    }
#pragma unroll
    for (int s = 0; s < L::STEPS; s++)
#pragma unroll
        for (int i = 0; i < 2; i++)
            cut<typename L::C>(q[s].high[i], q[s].low[i], x[s][2 * i] * unit,
                               x[s][2 * i + 1] * unit);
#pragma unroll
    for (int i = 0; i < 2; i++)
        back[i] = __shfl_sync(ALL_LANES, inverse, (of + i) * QUAD);
}

/* ---- products ---- */

/* A step of 16 elements of 16 keys. Codes have two steps a load. */
template <typename L> DEVICE void load_keys(uint32_t (&k)[2][4], const typename L::E *keys, int s)
{
    const uint32_t lane = threadIdx.x % WARP;
    const typename L::E *key = keys + lane % 16 * L::PITCH + s * 16;
    if constexpr (L::CODES) {
        uint32_t word[4], pair[2];
        mma_load(word, key + (s + 1 < L::STEPS ? lane / 16 * 16 : 0));
#pragma unroll
        for (int i = 0; i < 4; i++) {
            mma_widen(pair, word[i], e4m3(), __half());
            k[i / 2][i % 2] = pair[0];
            k[i / 2][i % 2 + 2] = pair[1];
        }
    } else {
        mma_load(k[0], key + lane / 16 * 8);
        if (s + 1 < L::STEPS)
            mma_load(k[1], key + lane / 16 * 8 + 16);
    }
}

/* The same of values, transposed: 16 rows of elements. */
template <typename L>
DEVICE void load_values(uint32_t (&v)[2][4], const typename L::E *values, int s)
{
    const uint32_t lane = threadIdx.x % WARP;
    const typename L::E *value = values + s * 16;
    if constexpr (L::CODES) {
        uint32_t word[4], pair[2];
        mma_load_transposed(word,
                            value + lane % 16 * L::PITCH + (s + 1 < L::STEPS ? lane / 16 * 16 : 0));
#pragma unroll
        for (int i = 0; i < 4; i++) { /* 8 keys; even elements, then odd ones */
            mma_widen(pair, mma_exchange(word[i]), e4m3(), __half());
            v[i / 2][i % 2 * 2] = pair[0];
            v[i / 2][i % 2 * 2 + 1] = pair[1];
        }
    } else {
        value += (lane / 16 * 8 + lane % 8) * L::PITCH + lane / 8 % 2 * 8;
        mma_load_transposed(v[0], value);
        if (s + 1 < L::STEPS)
            mma_load_transposed(v[1], value + 16);
    }
}

/* Scores of 16 keys, rows, by 8 heads. Four sums, so that none waits long for itself. */
template <typename L>
DEVICE void multiply_keys(float (&score)[4], const struct parts (&q)[L::STEPS],
                          const typename L::E *keys)
{
    typedef typename L::C C;
    float sum[2][2][4] = {};
#pragma unroll
    for (int s = 0; s < L::STEPS; s += 2) {
        uint32_t k[2][4];
        load_keys<L>(k, keys, s);
#pragma unroll
        for (int i = 0; i < 2; i++)
            if (s + i < L::STEPS) {
                mma_multiply(sum[i][0], k[i], q[s + i].high[0], q[s + i].high[1], C());
                mma_multiply(sum[i][1], k[i], q[s + i].low[0], q[s + i].low[1], C());
            }
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        score[i] = sum[0][0][i] + sum[1][0][i] + (sum[0][1][i] + sum[1][1][i]);
}

/* out += values * weights of 16 keys. */
template <typename L>
DEVICE void multiply_values(float (&out)[L::STEPS][4], const struct parts &x,
                            const typename L::E *values)
{
    typedef typename L::C C;
#pragma unroll
    for (int s = 0; s < L::STEPS; s += 2) {
        uint32_t v[2][4];
        load_values<L>(v, values, s);
#pragma unroll
        for (int i = 0; i < 2; i++)
            if (s + i < L::STEPS)
                mma_multiply(out[s + i], v[i], x.low[0], x.low[1], C());
#pragma unroll
        for (int i = 0; i < 2; i++)
            if (s + i < L::STEPS)
                mma_multiply(out[s + i], v[i], x.high[0], x.high[1], C());
    }
}

/* ---- a cache block ---- */

/* Begins to copy the keys, or values, of positions first_key and on into a half: zeros for those
 * that the row does not see, where anything may be. */
template <typename L>
DEVICE void fetch(typename L::E *half, const typename L::E *from, int32_t first_key,
                  const struct visible &v)
{
    constexpr int COPIES = BLOCK * L::CHUNKS / WARP, MORE = BLOCK * L::CHUNKS % WARP;
    const uint32_t lane = threadIdx.x % WARP;
    if (!sees_block(v, first_key) || MORE != 0) {
#pragma unroll 1
        for (uint32_t n = lane; n < BLOCK * L::CHUNKS; n += WARP) {
            const uint32_t row = n / L::CHUNKS, e = n % L::CHUNKS * L::VEC;
            mma_copy(half + row * L::PITCH + e, from + n * L::VEC,
                     sees(v, first_key + (int32_t)row));
        }
        return;
    }
    from += lane * L::VEC;
    if constexpr (WARP % L::CHUNKS == 0) { /* so that offsets are constants */
        half += lane / L::CHUNKS * L::PITCH + lane % L::CHUNKS * L::VEC;
#pragma unroll
        for (int i = 0; i < COPIES; i++)
            mma_copy(half + i * (WARP / L::CHUNKS) * L::PITCH, from + i * WARP * L::VEC, true);
    } else {
#pragma unroll
        for (int i = 0; i < COPIES; i++) {
            const uint32_t n = lane + i * WARP;
            mma_copy(half + n / L::CHUNKS * L::PITCH + n % L::CHUNKS * L::VEC,
                     from + i * WARP * L::VEC, true);
        }
    }
}

template <typename L> DEVICE void clear(struct state<L> &s)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        s.max[i] = -INFINITY;
        s.sum[i] = 0;
    }
#pragma unroll
    for (int n = 0; n < L::STEPS; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            s.out[n][i] = 0;
}

/* Over the keys of a head, which lanes have that are a multiple of QUAD apart. */
template <typename Op> DEVICE float reduce_keys(float x, Op op)
{
#pragma unroll
    for (int step = QUAD; step < WARP; step *= 2)
        x = op(x, __shfl_xor_sync(ALL_LANES, x, step));
    return x;
}

/* New maxima, for all heads of the warp. */
template <typename L> DEVICE void raise(struct state<L> &s, const float (&score)[4])
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float top = reduce_keys(fmaxf(score[i], score[i + 2]), maximum());
        const float max = fmaxf(s.max[i], top);
        const float old = s.max[i] == max ? 1 : mma_exp2(s.max[i] - max);
        s.max[i] = max;
        s.sum[i] *= old;
#pragma unroll
        for (int n = 0; n < L::STEPS; n++) {
            s.out[n][i] *= old;
            s.out[n][i + 2] *= old;
        }
    }
}

/* Weights of the keys of a half, of which the row sees one at least. They are relative to a maximum
 * that is not always the last one: it is raised when weights would grow large, and that is seldom.
 */
template <typename L>
DEVICE void weigh(struct parts &x, struct state<L> &s, const struct attend_args &a,
                  const struct visible &v, const struct parts (&q)[L::STEPS],
                  const float (&back)[2], const typename L::E *keys, int32_t first_key)
{
    const int32_t key = first_key + (int32_t)threadIdx.x % WARP / QUAD;
    float score[4];
    multiply_keys<L>(score, q, keys);
    if (!std::is_same<typename L::C, bf16>::value) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            score[i] *= back[i % 2];
    }
    if (a.softcap > 0) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            score[i] = attend_capped(a, score[i]);
    }
    if (!sees_block(v, first_key)) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            score[i] = sees(v, key + i / 2 * 8) ? score[i] : -INFINITY;
    }
    const bool large = fmaxf(score[0], score[2]) > s.max[0] + SLACK ||
                       fmaxf(score[1], score[3]) > s.max[1] + SLACK;
    if (__any_sync(ALL_LANES, large))
        raise<L>(s, score);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        score[i] = mma_exp2(score[i] - s.max[i % 2]);
        s.sum[i % 2] += score[i];
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        cut<typename L::C>(x.high[i], x.low[i], score[2 * i], score[2 * i + 1]);
        x.high[i] = mma_transpose(x.high[i]);
        x.low[i] = mma_transpose(x.low[i]);
    }
}

#endif
