/* DESIGN: attention over latents whose keys are fp32, or where a multiprocessor has no room for
 * what tensor cores work on (attend_latent.cu): exact to what fp32 is, and no more than that. A
 * block has four query heads of a row, a warp each, and a cache block of keys in shared memory, in
 * fp32, that all of them read. Splits are those of attend_latent.cu. */
#include "kernels/cuda/attend_latent.cuh"

#define HEADS 4 /* of a block, a warp each */
#define THREADS (HEADS * WARP)
#define KEYS BACKEND_BLOCK_TOKENS
#define EACH ((BACKEND_KEY_DIM_MAX + WARP - 1) / WARP) /* elements of a lane: every 32nd */

/* What a warp knows of its head: outputs are those of the value's elements. */
struct plain_state {
    float out[EACH];
    struct ends ends;
};

/* Zeros for what the row does not see. */
template <typename E>
DEVICE void load_keys(float *keys, const struct latent_args &l, const struct latent_work &w,
                      const E *cache, int32_t first)
{
    const int32_t dim = l.a.kv.dim, seen = attend_first(&l.a, w.position);
    const int32_t block = kv_block(&l.a.rows, w.slot, first / KEYS);
    const E *from = cache + kv_latent_index(&l.a.kv, block, w.kv_head);
    for (int32_t row = (int32_t)threadIdx.x / WARP; row < KEYS; row += HEADS) {
        const bool there = first + row >= seen && first + row <= w.position;
        for (int32_t e = (int32_t)threadIdx.x % WARP; e < dim; e += WARP)
            keys[row * dim + e] = there ? to_float(from[row * dim + e]) : 0;
    }
}

/* A cache block, of which the row sees one key at least; each key's score is one lane's. */
DEVICE void take_keys(struct plain_state &s, const float (&q)[EACH], const float *keys,
                      const struct latent_args &l, const struct latent_work &w, int32_t first)
{
    const int32_t lane = (int32_t)threadIdx.x % WARP, dim = l.a.kv.dim, key = first + lane;
    float score = 0;
#pragma unroll 4
    for (int32_t j = 0; j < KEYS; j++) {
        float dot = 0;
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if (lane + WARP * i < dim)
                dot = fmaf(q[i], keys[j * dim + lane + WARP * i], dot);
        dot = reduce_lanes<WARP>(dot, plus());
        score = lane == j ? dot : score;
    }
    if (l.a.softcap > 0)
        score = attend_capped(l.a, score);
    if (lane >= KEYS || key < attend_first(&l.a, w.position) || key > w.position)
        score = -INFINITY;
    const float top = reduce_lanes<WARP>(
        fmaxf(s.ends.max, score), [](float a, float b) { return fmaxf(a, b); }); /* past a NaN */
    const float old = s.ends.max == top ? 1 : mma_exp2(s.ends.max - top);
    const float weight = mma_exp2(score - top);
    s.ends.max = top;
    s.ends.sum = fmaf(s.ends.sum, old, reduce_lanes<WARP>(weight, plus()));
#pragma unroll
    for (int i = 0; i < EACH; i++)
        s.out[i] *= old;
#pragma unroll 4
    for (int32_t j = 0; j < KEYS; j++) {
        const float by = __shfl_sync(ALL_LANES, weight, j),
                    *value = keys + (j + 1) * dim - l.latent;
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if (lane + WARP * i < l.latent)
                s.out[i] = fmaf(by, value[lane + WARP * i], s.out[i]);
    }
}

/* `more` behind what there is. */
DEVICE void fold_behind(struct plain_state &all, const struct plain_state &more)
{
    const struct folding f = fold_ends(&all.ends, more.ends);
#pragma unroll
    for (int i = 0; i < EACH; i++)
        all.out[i] = fold(all.out[i], more.out[i], f);
}

DEVICE void put_plain(const struct plain_state &s, const struct latent_args &l,
                      const struct latent_work &w, int32_t head)
{
    const int32_t lane = (int32_t)threadIdx.x % WARP;
    float *to = w.place < 0 ? nullptr : partial_at(&l, w.place, w.split, head);
    const float sum = attend_sum(l.a, head, s.ends.sum, s.ends.max);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int32_t e = lane + WARP * i;
        if (e >= l.latent)
            continue;
        if (to == nullptr)
            put_element(l.a.out, latent_out(l, w.t, head) + e, s.out[i] / sum);
        else
            to[e] = s.out[i];
    }
    if (to != nullptr && lane == 0) {
        to[l.latent] = s.ends.max;
        to[l.latent + 1] = s.ends.sum;
    }
}

template <typename E>
__global__ void __launch_bounds__(THREADS)
    attend_latent_plain_kernel(struct latent_args l, const E *cache, int32_t tiles)
{
    SHARED_DYNAMIC(float, keys);
    const struct latent_work w = work_of(l, tiles);
    const int32_t own = w.first + (int32_t)threadIdx.x / WARP;
    const int32_t head = own < w.past ? own : w.first, dim = l.a.kv.dim;
    float q[EACH] = {};
    struct plain_state all = {};
    launch_release();
    launch_wait();
    if (w.first >= w.past || w.split >= w.end)
        return;
    if (w.slot < 0) {
        put_zeros(l, w);
        return;
    }
    for (int i = 0; i < EACH; i++) {
        const int32_t e = (int32_t)threadIdx.x % WARP + WARP * i;
        if (e < dim)
            q[i] = get_elements<1>(l.a.qkv, latent_query(l, w.t, head) + e).e[0] * l.a.scale;
    }
    for (int32_t split = w.split; split < w.end; split++) {
        const struct key_range r = latent_split_range(w.keys, split);
        struct plain_state s = {{}, {-INFINITY, 0}};
        for (int32_t first = r.begin; first < r.end; first += KEYS) {
            __syncthreads(); /* the block before has been used */
            load_keys(keys, l, w, cache, first);
            __syncthreads();
            take_keys(s, q, keys, l, w, first);
        }
        if (split == w.split)
            all = s;
        else
            fold_behind(all, s);
    }
    if (own < w.past)
        put_plain(all, l, w, head);
}

template <typename E>
static void launch_plain(struct cuda_backend *c, struct latent_args l, const void *cache)
{
    l.heads_tile = HEADS;
    const int32_t tiles = (l.a.heads + HEADS - 1) / HEADS;
    const dim3 grid((unsigned)l.a.rows.count, (unsigned)(l.a.kv.heads * tiles),
                    l.room > 0 ? (unsigned)l.most : 1);
    LAUNCH_AHEAD(c, attend_latent_plain_kernel<E>, grid, THREADS,
                 (size_t)(KEYS * l.a.kv.dim) * sizeof(float), l, (const E *)cache, tiles);
}

void attend_latent_plain(struct cuda_backend *c, const struct latent_args *l, enum dtype dtype,
                         const void *cache)
{
    WITH_KV_TYPE(dtype, launch_plain<E>(c, *l, cache));
}
