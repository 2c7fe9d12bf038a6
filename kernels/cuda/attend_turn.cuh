/* What rope.cu does to a row, done by the warps of attend_decode.cu to what each of them has of it,
 * with the same bits: so a step of decodes is one launch, and q does not wait for memory twice.
 * Elements of a query that turn together are in one lane, where halves of heads are whole steps;
 * what comes of them is rounded to the type of qkv, as if it had been there in between. The row's
 * own key and value are those of the warp that takes the row's last cache block. It stores them,
 * and puts them among the older ones that it has copied by then: a copy in the background need not
 * see what the same kernel stores. */
#ifndef TESSERA_KERNELS_CUDA_ATTEND_TURN_CUH
#define TESSERA_KERNELS_CUDA_ATTEND_TURN_CUH

#include "kernels/cuda/attend_decode.cuh"
#include "kernels/cuda/rope.cuh"

/* A row, one of its KV heads, and the number of its last cache block, for a warp that stores. */
struct own_row {
    int32_t t, kv_head, position, number;
    bool stores;
};

/* ---- the row's own key and value ---- */

/* As the cache has them. */
template <typename L> struct own {
    alignas(16) typename L::E key[L::DIM], value[L::DIM];
};

/* Of both a lane has N elements, and those half a head behind them. */
template <typename L> struct fresh {
    static constexpr int N = L::DIM > 128 ? 4 : 2, HALF = L::DIM / 2, LANES = HALF / N;
    pack<float, N> key[2], value[2];
    float c[N], s[N]; /* of the pairs of the key */
    DEVICE static uint32_t first()
    {
        return threadIdx.x % WARP % LANES * N; /* LANES and on go along with the others */
    }
};

/* Interleaved, pairs are half of them among the first elements. */
template <typename L>
DEVICE void load_own_angles(struct fresh<L> &x, const struct attend_args &a, int32_t t)
{
    typedef struct fresh<L> F;
    const float *table = a.rope.table + (int64_t)t * L::DIM;
#pragma unroll
    for (int j = 0; j < F::N; j++) {
        const uint32_t pair = F::first() / 2 + j % (F::N / 2) + j / (F::N / 2) * (F::HALF / 2);
        const uint32_t at = a.rope.interleaved ? pair : F::first() + j;
        x.c[j] = table[at];
        x.s[j] = table[F::HALF + at];
    }
}

/* The loads of a key and a value alone, so that others may be begun before these are done. */
template <typename L, typename Q>
DEVICE void load_own(pack<Q, fresh<L>::N> (&x)[4], const struct attend_args &a, int32_t t,
                     int32_t kv_head)
{
    const Q *key = (const Q *)a.qkv.data + attend_query(&a, t, a.heads + kv_head);
    const Q *value = key + (int64_t)a.kv.heads * L::DIM;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t at = fresh<L>::first() + i * fresh<L>::HALF;
        x[i] = *(const pack<Q, fresh<L>::N> *)(key + at);
        x[2 + i] = *(const pack<Q, fresh<L>::N> *)(value + at);
    }
}

template <typename L, typename Q>
DEVICE void widen_own(struct fresh<L> &y, const pack<Q, fresh<L>::N> (&x)[4])
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        widen(y.key[i].e, x[i]);
        widen(y.value[i].e, x[2 + i]);
    }
}

template <typename L>
DEVICE void add_own_bias(pack<float, fresh<L>::N> (&x)[2], const float *bias, int32_t head)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int64_t at = (int64_t)head * L::DIM + fresh<L>::first() + i * fresh<L>::HALF;
        const pack<float, fresh<L>::N> add = *(const pack<float, fresh<L>::N> *)(bias + at);
#pragma unroll
        for (int j = 0; j < fresh<L>::N; j++)
            x[i].e[j] += add.e[j];
    }
}

template <typename L>
DEVICE void put_own(typename L::E *row, const pack<float, fresh<L>::N> (&x)[2])
{
    if (threadIdx.x % WARP < fresh<L>::LANES)
#pragma unroll
        for (int i = 0; i < 2; i++)
            put_rounded(row + fresh<L>::first() + i * fresh<L>::HALF, x[i]);
}

/* Ends the way of both, to the cache and to where they are kept for the products. */
template <typename L>
DEVICE void turn_own(struct own<L> &kept, typename L::E *cache, struct fresh<L> &x,
                     const struct attend_args &a, const struct own_row &r)
{
    constexpr int N = fresh<L>::N;
    if (a.rope.bias != nullptr) {
        add_own_bias<L>(x.key, a.rope.bias, a.heads + r.kv_head);
        add_own_bias<L>(x.value, a.rope.bias, a.heads + a.kv.heads + r.kv_head);
    }
#pragma unroll
    for (int j = 0; j < N; j++) {
        pack<float, N> &half = x.key[2 * j / N];
        if (a.rope.interleaved)
            rope_turn(half.e[2 * j % N], half.e[2 * j % N + 1], x.c[j], x.s[j]);
        else
            rope_turn(x.key[0].e[j], x.key[1].e[j], x.c[j], x.s[j]);
    }
    typename L::E *to =
        cache + kv_index(&a.kv, r.number, r.kv_head, false) + r.position % BLOCK * L::DIM;
    put_own<L>(kept.key, x.key);
    put_own<L>(kept.value, x.value);
    put_own<L>(to, x.key);
    put_own<L>(to + BLOCK * L::DIM, x.value);
}

/* Of a KV head that no query head reads. */
template <typename L, typename Q>
DEVICE void load_unread(struct fresh<L> &x, const struct attend_args &a, int32_t t, int32_t kv_head)
{
    pack<Q, fresh<L>::N> raw[4];
    load_own<L, Q>(raw, a, t, kv_head);
    widen_own<L, Q>(x, raw);
}

/* ---- queries ---- */

/* Cosines or sines of the lane's pairs, in the order of turn_query. */
template <typename L, bool INTERLEAVED>
DEVICE void load_angles(float (&y)[2 * L::STEPS], const float *table)
{
#pragma unroll
    for (int n = 0; n < L::STEPS; n++) {
        if (INTERLEAVED) {
            y[2 * n] = table[(16 * n + element<L>::of_query(0)) / 2];
            y[2 * n + 1] = table[(16 * n + element<L>::of_query(2)) / 2];
        } else {
            const uint32_t e = 16 * (n / 2) + element<L>::of_query(n % 2 * 2);
            const pack<float, 2> two = *(const pack<float, 2> *)(table + e);
            y[2 * n] = two.e[0];
            y[2 * n + 1] = two.e[1];
        }
    }
}

template <typename L, bool INTERLEAVED>
DEVICE void turn_query(float (&x)[L::STEPS][4], const float (&c)[2 * L::STEPS],
                       const float (&s)[2 * L::STEPS])
{
#pragma unroll
    for (int n = 0; n < 2 * L::STEPS; n++) {
        if (INTERLEAVED)
            rope_turn(x[n / 2][n % 2 * 2], x[n / 2][n % 2 * 2 + 1], c[n], s[n]);
        else
            rope_turn(x[n / 4][n % 4], x[n / 4 + L::STEPS / 2][n % 4], c[n], s[n]);
    }
}

/* To the type of qkv. */
template <typename L, typename Q> DEVICE void round_query(float (&x)[L::STEPS][4])
{
    if constexpr (!std::is_same<Q, float>::value) {
#pragma unroll
        for (int s = 0; s < L::STEPS; s++)
#pragma unroll
            for (int i = 0; i < 4; i += 2) {
                const uint32_t pair = mma_pair(x[s][i], x[s][i + 1], Q());
                x[s][i] = half_of(pair, 0, Q());
                x[s][i + 1] = half_of(pair, 1, Q());
            }
    }
}

/* A query, and what the warp stores, as they come. */
template <typename L, typename Q>
DEVICE void load_raw(float (&x)[L::STEPS][4], struct fresh<L> &mine, const struct attend_args &a,
                     const struct own_row &r, int32_t head)
{
    pack<Q, fresh<L>::N> raw[4] = {};
    if (r.stores)
        load_own<L, Q>(raw, a, r.t, r.kv_head);
    load_query<L, Q>(x, a.qkv.data, attend_query(&a, r.t, head));
    widen_own<L, Q>(mine, raw);
}

/* The lane's elements of a query, turned; and the row's own key and value, which are stored. All
 * loads are under way together, but for those of a bias. */
template <typename L>
DEVICE void load_turning(float (&x)[L::STEPS][4], struct own<L> &kept, typename L::E *cache,
                         const struct attend_args &a, const struct own_row &r, int32_t head)
{
    const float *table = a.rope.table + (int64_t)r.t * L::DIM;
    struct fresh<L> fresh = {
    };
    float c[2 * L::STEPS], s[2 * L::STEPS];
    if (r.stores)
        load_own_angles<L>(fresh, a, r.t);
    if (a.rope.interleaved) {
        load_angles<L, true>(c, table);
        load_angles<L, true>(s, table + L::DIM / 2);
    } else {
        load_angles<L, false>(c, table);
        load_angles<L, false>(s, table + L::DIM / 2);
    }
    WITH_TYPE(a.qkv.dtype, load_raw<L, E>(x, fresh, a, r, head));
    if (a.rope.bias != nullptr) {
        float bias[L::STEPS][4];
        load_query<L, float>(bias, a.rope.bias, (int64_t)head * L::DIM);
#pragma unroll
        for (int n = 0; n < 4 * L::STEPS; n++)
            x[n / 4][n % 4] += bias[n / 4][n % 4];
    }
    if (a.rope.interleaved)
        turn_query<L, true>(x, c, s);
    else
        turn_query<L, false>(x, c, s);
    WITH_TYPE(a.qkv.dtype, round_query<L, E>(x));
    if (r.stores)
        turn_own<L>(kept, cache, fresh, a, r);
}

#endif
