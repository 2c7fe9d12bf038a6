/* What a warp of attend_decode.cu does with 16 keys: products by tensor cores, softmax in fp32.
 *
 * A factor of tensor cores has 16 rows. Queries are fp32, which bf16 or fp16 would cut: so a query
 * head is two rows, its high part and what that leaves, 16 bits or more together, and 8 heads are
 * one factor. The two results of a head, which one lane has, are added. The same with weights.
 *
 * Codes of E4M3 are fp16 before they are multiplied, without loss; so are queries then. Their range
 * is small: each head's are brought to [1, 2) by a power of two, which scores get back. */
#ifndef TESSERA_KERNELS_CUDA_ATTEND_DECODE_CUH
#define TESSERA_KERNELS_CUDA_ATTEND_DECODE_CUH

#include "kernels/cuda/attend.cuh"

#include "kernels/cuda/mma.cuh"

#include <type_traits>

#define BLOCK BACKEND_BLOCK_TOKENS
#define QUAD 4  /* lanes that have a row of a 16 x 8 result */
#define GROUP 8 /* query heads at once */

/* E: as stored; C: as multiplied. Each warp has STAGES stages, each a cache block of one head: its
 * keys, then its values. Rows are padded by 16 bytes: eight that lie below each other are in
 * different banks. The outputs of a warp fit a stage, too. */
template <typename E_, typename C_, int DIM_, int WARPS_LOG2_, int STAGES_> struct layout {
    typedef E_ E;
    typedef C_ C;
    static constexpr int DIM = DIM_, STAGES = STAGES_;
    static constexpr int WARPS_LOG2 = WARPS_LOG2_, WARPS = 1 << WARPS_LOG2, THREADS = WARPS * WARP;
    static constexpr int VEC = 16 / (int)sizeof(E), CHUNKS = DIM / VEC; /* copies of a row */
    static constexpr int PITCH = DIM + VEC, STAGE = 2 * BLOCK * PITCH;  /* elements */
    static constexpr int OUT_PITCH = DIM + 8;                           /* floats */
    static constexpr size_t BYTES = (size_t)WARPS * STAGES * STAGE * sizeof(E);
    static_assert(GROUP * OUT_PITCH * sizeof(float) <= STAGE * sizeof(E), "outputs fit a stage");
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

/* A head's maximum, sum and output; head lane / 4 of the group. `sum` is of the lane's own keys,
 * out[n][i] and out[n][i + 2] are to be added. */
template <typename L> struct state {
    float out[L::DIM / 8][4], max, sum;
};

/* Which element a lane's results and factors are. Of 16 bits: as tensor cores have them. Of codes,
 * a word is four neighbouring keys' elements or two of two keys: their order is another one. */
template <typename L> struct element {
    static constexpr bool CODES = sizeof(typename L::E) == 1;
    /* i of 4 in a step of 16 of the product with keys. */
    DEVICE static uint32_t of_query(int i)
    {
        const uint32_t q = threadIdx.x % QUAD;
        return CODES ? 4 * q + i : 2 * q + i % 2 + i / 2 * 8;
    }
    /* Result i of 2 in tile n of the output. */
    DEVICE static uint32_t of_output(int n, int i)
    {
        const uint32_t q = threadIdx.x % QUAD;
        return CODES ? n / 2 * 16 + 4 * q + 2 * i + n % 2 : n * 8 + 2 * q + i;
    }
};

/* ---- two parts of a number ---- */

DEVICE float half_of(uint32_t pair, int which, bf16)
{
    return __uint_as_float(which == 0 ? pair << 16 : pair & 0xffff0000u);
}

DEVICE float half_of(uint32_t pair, int which, __half)
{
    const uint16_t bits = (uint16_t)(pair >> (16 * which));
    __half h;
    memcpy(&h, &bits, sizeof h);
    return __half2float(h);
}

template <typename C> DEVICE void cut(uint32_t &high, uint32_t &low, float x, float y)
{
    high = mma_pair(x, y, C());
    low = mma_pair(x - half_of(high, 0, C()), y - half_of(high, 1, C()), C());
}

/* The heads [first, first + count) as factors, times the scale; what their scores are to be
 * multiplied by. */
template <typename L>
DEVICE float load_queries(uint32_t (&q)[L::DIM / 16][4], const struct attend_args &a, int32_t t,
                          int32_t first, int32_t count)
{
    const int32_t head = (int32_t)threadIdx.x % WARP / QUAD;
    const float *from = attend_query(&a, t, head < count ? first + head : first);
    float x[L::DIM / 16][4], top = 0, unit = 1, back = 1;
#pragma unroll
    for (int s = 0; s < L::DIM / 16; s++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            x[s][i] = from[16 * s + element<L>::of_query(i)] * a.scale;
            x[s][i] = head < count ? x[s][i] : 0;
            top = fmaxf(top, fabsf(x[s][i]));
        }
    if (std::is_same<typename L::C, __half>::value) {
        const uint32_t two = __float_as_uint(reduce_lanes<QUAD>(top, maximum())) & 0x7f800000u;
        if (two > 0 && two < 254u << 23) {
            unit = __uint_as_float((254u << 23) - two);
            back = __uint_as_float(two);
        }
    }
#pragma unroll
    for (int s = 0; s < L::DIM / 16; s++)
#pragma unroll
        for (int i = 0; i < 4; i += 2)
            cut<typename L::C>(q[s][i], q[s][i + 1], x[s][i] * unit, x[s][i + 1] * unit);
    return back;
}

/* ---- products ---- */

/* Scores of 16 keys: score[0] of the first 8, score[1] of the others. */
template <typename L>
DEVICE void multiply_keys(float (&score)[2][4], const uint32_t (&q)[L::DIM / 16][4],
                          const typename L::E *keys)
{
    constexpr int STEPS = L::DIM / 16;
    typedef typename L::C C;
    const uint32_t lane = threadIdx.x % WARP;
    const typename L::E *key = keys + (lane / 16 * 8 + lane % 8) * L::PITCH;
    if constexpr (element<L>::CODES) {
#pragma unroll
        for (int s = 0; s < STEPS; s += 2) { /* a matrix of 16 bytes a row is one step */
            const int steps = s + 1 < STEPS ? 2 : 1;
            uint32_t k[4], pair[2];
            mma_load(k, key + s * 16 + (steps == 2 ? lane / 8 % 2 * 16 : 0));
#pragma unroll
            for (int i = 0; i < steps; i++)
#pragma unroll
                for (int n = 0; n < 2; n++) {
                    mma_widen(pair, k[2 * n + i], e4m3(), C());
                    mma_multiply(score[n], q[s + i], pair[0], pair[1], C());
                }
        }
    } else {
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            uint32_t k[4];
            mma_load(k, key + s * 16 + lane / 8 % 2 * 8);
            mma_multiply(score[0], q[s], k[0], k[1], C());
            mma_multiply(score[1], q[s], k[2], k[3], C());
        }
    }
}

/* out += weights x of 16 keys * values. */
template <typename L>
DEVICE void multiply_values(float (&out)[L::DIM / 8][4], const uint32_t (&x)[4],
                            const typename L::E *values)
{
    constexpr int STEPS = L::DIM / 16;
    typedef typename L::C C;
    const uint32_t lane = threadIdx.x % WARP;
    const typename L::E *value = values + lane % 16 * L::PITCH;
    if constexpr (element<L>::CODES) {
#pragma unroll
        for (int s = 0; s < STEPS; s += 2) {
            const int steps = s + 1 < STEPS ? 2 : 1;
            uint32_t v[4], low[2], high[2]; /* keys: of even and of odd elements */
            mma_load_transposed(v, value + s * 16 + (steps == 2 ? lane / 16 * 16 : 0));
#pragma unroll
            for (int i = 0; i < steps; i++) {
                mma_widen(low, mma_exchange(v[2 * i]), e4m3(), C());
                mma_widen(high, mma_exchange(v[2 * i + 1]), e4m3(), C());
                mma_multiply(out[2 * (s + i)], x, low[0], high[0], C());
                mma_multiply(out[2 * (s + i) + 1], x, low[1], high[1], C());
            }
        }
    } else {
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            uint32_t v[4];
            mma_load_transposed(v, value + s * 16 + lane / 16 * 8);
            mma_multiply(out[2 * s], x, v[0], v[1], C());
            mma_multiply(out[2 * s + 1], x, v[2], v[3], C());
        }
    }
}

/* ---- a cache block ---- */

/* Begins to copy the keys and values at `from`, those of positions first_key and on, into a stage:
 * zeros for those that the row does not see, where anything may be. */
template <typename L>
DEVICE void fetch(typename L::E *stage, const typename L::E *from, int32_t first_key,
                  const struct visible &v)
{
    const uint32_t lane = threadIdx.x % WARP;
    if (!sees_block(v, first_key)) {
#pragma unroll 1
        for (int i = 0; i < L::CHUNKS; i++) {
            const uint32_t n = lane + i * WARP, row = n / L::CHUNKS, e = n % L::CHUNKS * L::VEC;
            mma_copy(stage + row * L::PITCH + e, from + n * L::VEC,
                     sees(v, first_key + (int32_t)(row % BLOCK)));
        }
        return;
    }
    from += lane * L::VEC;
    if constexpr (WARP % L::CHUNKS == 0) { /* so that offsets are constants */
        stage += lane / L::CHUNKS * L::PITCH + lane % L::CHUNKS * L::VEC;
#pragma unroll
        for (int i = 0; i < L::CHUNKS; i++)
            mma_copy(stage + i * (WARP / L::CHUNKS) * L::PITCH, from + i * WARP * L::VEC, true);
    } else {
#pragma unroll
        for (int i = 0; i < L::CHUNKS; i++) {
            const uint32_t n = lane + i * WARP;
            mma_copy(stage + n / L::CHUNKS * L::PITCH + n % L::CHUNKS * L::VEC,
                     from + i * WARP * L::VEC, true);
        }
    }
}

template <typename L> DEVICE void clear(struct state<L> &s)
{
    s.max = -INFINITY;
    s.sum = 0;
#pragma unroll
    for (int n = 0; n < L::DIM / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            s.out[n][i] = 0;
}

/* Takes the keys of a stage, of which the row sees one at least. */
template <typename L>
DEVICE void take(struct state<L> &s, const struct attend_args &a, const struct visible &v,
                 const uint32_t (&q)[L::DIM / 16][4], float back, const typename L::E *stage,
                 int32_t first_key)
{
    float score[2][4] = {}, weight[2][2], top = s.max, add = 0;
    uint32_t x[4];
    multiply_keys<L>(score, q, stage);
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int32_t key = first_key + n * 8 + (int32_t)threadIdx.x % QUAD * 2 + i;
            float y = (score[n][i] + score[n][i + 2]) * back;
            if (a.softcap > 0)
                y = attend_capped(a, y);
            weight[n][i] = sees(v, key) ? y : -INFINITY;
            top = fmaxf(top, weight[n][i]);
        }
    top = reduce_lanes<QUAD>(top, maximum());
    const float old = mma_exp2(s.max - top);
#pragma unroll
    for (int n = 0; n < 2; n++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            weight[n][i] = mma_exp2(weight[n][i] - top);
            add += weight[n][i];
        }
        cut<typename L::C>(x[2 * n], x[2 * n + 1], weight[n][0], weight[n][1]);
    }
    s.sum = fmaf(s.sum, old, add);
    s.max = top;
    if (__any_sync(ALL_LANES, old != 1)) { /* else no maximum has grown, as most times */
#pragma unroll
        for (int n = 0; n < L::DIM / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                s.out[n][i] *= old;
    }
    multiply_values<L>(s.out, x, stage + BLOCK * L::PITCH);
}

#endif
