/* DESIGN: a row is either alone (no neighbour of its slot: a decoding sequence) or part of a run (a
 * chunk of a prompt). Which it is only the device knows, unless the step has nothing but decodes:
 * so the kernels of both are launched for all rows and each block leaves at once when its rows
 * belong to the other; a launch depends on host scalars only, as a graph needs it. Where there is
 * no graph the host knows of chunks before and behind the decodes, and rows alone are looked for
 * between them only: in a step of nothing but prompts, nowhere. Runs: attend_flash.cu and
 * attend_tile.cu.
 *
 * Rows alone are bound by the reads of keys and values. Those of usual heads are
 * attend_decode.cu's, the others are here. The keys that a row sees, from the cache block of the
 * first on, are cut into splits by their own number only, and splits are folded in ascending order,
 * so its bits do not depend on other rows. attend_split_kernel, one block per (row, KV head,
 * split): a team of lanes takes AT_ONCE keys at a time, all their loads under way together, for up
 * to GROUP query heads, with its own running (maximum, sum, output) in registers; nothing is shared
 * until the end. attend_merge_kernel folds the splits. In steps of so many rows that there is no
 * room for all splits' results, a block takes all splits of its row one after the other: these fill
 * the device without being split, but for a few long rows that would keep the others waiting.
 * attend_pick_kernel picks such, and they are split as ever. That changes no bit, so it does not
 * matter which are picked. Padding gets its zeros here. Latents are attend_latent.cu's. */
#include "kernels/cuda/attend.cuh"

#include "kernels/cuda/mma.cuh"

#define THREADS 128
#define SPLITS ATTEND_SPLITS
#define SPLIT_KEYS_MIN 64  /* shorter ones are not worth the fold */
#define PICKED_BLOCKS 2048 /* for so many blocks at most */
#define PICK_THREADS 1024

struct key_range {
    int32_t begin, end;
};

/* Keys of a split: even parts of whole cache blocks. */
HOST_DEVICE int32_t split_size(int32_t length)
{
    const int32_t even = (length + SPLITS - 1) / SPLITS;
    const int32_t blocks = (even + BACKEND_BLOCK_TOKENS - 1) / BACKEND_BLOCK_TOKENS;
    const int32_t part = blocks * BACKEND_BLOCK_TOKENS;
    return part < SPLIT_KEYS_MIN ? SPLIT_KEYS_MIN : part;
}

/* At most SPLITS. */
HOST_DEVICE int32_t split_count(int32_t length)
{
    const int32_t size = split_size(length);
    return (length + size - 1) / size;
}

HOST_DEVICE struct key_range split_range(struct key_range all, int32_t split)
{
    const int32_t size = split_size(all.end - all.begin), begin = all.begin + split * size;
    const struct key_range r = {begin, all.end - begin < size ? all.end : begin + size};
    return r;
}

/* The keys that row t is given: those it sees, and what is before them in the first's block. */
HOST_DEVICE struct key_range keys_of(const struct attend_args *a, int32_t t)
{
    const int32_t position = a->rows.position[t], first = attend_first(a, position);
    const struct key_range r = {first - first % BACKEND_BLOCK_TOKENS, position + 1};
    return r;
}

HOST_DEVICE int32_t keys_count(const struct attend_args *a, int32_t t)
{
    const struct key_range r = keys_of(a, t);
    return r.end - r.begin;
}

/* Output, maximum and sum of one split. */
HOST_DEVICE float *partial_at(const struct attend_args *a, int32_t place, int32_t head,
                              int32_t split)
{
    return a->partial + (((int64_t)place * a->heads + head) * SPLITS + split) *
                            (a->kv.dim + ATTEND_PARTIAL_MORE);
}

/* One block: some rows that are alone and long. */
__global__ void __launch_bounds__(PICK_THREADS) attend_pick_kernel(struct attend_args a)
{
    __shared__ int32_t count;
    if (threadIdx.x == 0)
        count = 0;
    for (int32_t i = (int32_t)threadIdx.x; i < a.picks; i += PICK_THREADS)
        a.picked[i] = -1;
    __syncthreads();
    const int32_t end = a.rows.count - a.rows.tail;
    for (int32_t t = a.rows.head + (int32_t)threadIdx.x; t < end; t += PICK_THREADS) {
        if (!attend_is_alone(&a, t) || keys_count(&a, t) < ATTEND_LONG_KEYS)
            continue;
        const int32_t place = atomicAdd(&count, 1);
        if (place < a.picks)
            a.picked[place] = t;
    }
}

/* How a team of LANES lanes holds a vector of up to WIDTH elements: ITER times VEC together. */
template <typename E_, int VEC_, int LANES_, int ITER_, int GROUP_, int AT_ONCE_> struct shape {
    typedef E_ E;
    static constexpr int VEC = VEC_, LANES = LANES_, ITER = ITER_, GROUP = GROUP_;
    static constexpr int AT_ONCE = AT_ONCE_; /* divides a cache block: one look into its table */
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

/* A lane's part of some keys, or of their values, as stored. */
template <typename S> struct vectors {
    pack<typename S::E, S::VEC> of[S::AT_ONCE][S::ITER];
};

/* The first `count` (at least one), and the last of them again for the rest; a lane without
 * elements of its own takes the first ones again. So every load is done, and finds what was stored:
 * weights and queries of what is not asked for are zero. dim is a multiple of VEC. */
template <typename S>
DEVICE void load_vectors(struct vectors<S> &v, const typename S::E *from, int32_t count,
                         int32_t dim)
{
#pragma unroll
    for (int u = 0; u < S::AT_ONCE; u++)
#pragma unroll
        for (int i = 0; i < S::ITER; i++) {
            const int32_t key = u < count ? u : count - 1;
            const int32_t e = S::element(i) < dim ? S::element(i) : 0;
            v.of[u][i] = *(const pack<typename S::E, S::VEC> *)(from + key * dim + e);
        }
}

/* fn(key, i, j, x) with every element. */
template <typename S, typename F> DEVICE void for_elements(const struct vectors<S> &v, F fn)
{
#pragma unroll
    for (int u = 0; u < S::AT_ONCE; u++)
#pragma unroll
        for (int i = 0; i < S::ITER; i++) {
            float x[S::VEC];
            widen(x, v.of[u][i]);
#pragma unroll
            for (int j = 0; j < S::VEC; j++)
                fn(u, i, j, x[j]);
        }
}

/* Of AT_ONCE keys those from `skip` on, below `count`: the same for all lanes of the team, but
 * teams of a warp may differ. */
template <typename S>
DEVICE void take_keys(const struct attend_args &a, struct state<S> &s,
                      const float (&q)[S::GROUP][S::ITER][S::VEC], const struct vectors<S> &k,
                      const struct vectors<S> &v, int32_t skip, int32_t count)
{
    const bool any = count > 0 && skip < count && skip < S::AT_ONCE;
    float score[S::AT_ONCE][S::GROUP] = {};
    for_elements<S>(k, [&](int u, int i, int j, float key) {
#pragma unroll
        for (int g = 0; g < S::GROUP; g++)
            score[u][g] = fmaf(q[g][i][j], key, score[u][g]);
    });
#pragma unroll
    for (int g = 0; g < S::GROUP; g++) {
        float max = s.max[g], add = 0;
#pragma unroll
        for (int u = 0; u < S::AT_ONCE; u++) {
            score[u][g] = reduce_lanes<S::LANES>(score[u][g], plus());
            if (a.softcap > 0)
                score[u][g] = attend_capped(a, score[u][g]);
            max = u >= skip && u < count ? fmaxf(max, score[u][g]) : max;
        }
        const float old = any ? mma_exp2(s.max[g] - max) : 1;
#pragma unroll
        for (int u = 0; u < S::AT_ONCE; u++) {
            score[u][g] = u >= skip && u < count ? mma_exp2(score[u][g] - max) : 0;
            add += score[u][g];
        }
        s.max[g] = max;
        s.sum[g] = fmaf(s.sum[g], old, add);
#pragma unroll
        for (int i = 0; i < S::ITER; i++)
#pragma unroll
            for (int j = 0; j < S::VEC; j++)
                s.out[g][i][j] *= old;
    }
    for_elements<S>(v, [&](int u, int i, int j, float value) {
#pragma unroll
        for (int g = 0; g < S::GROUP; g++)
            s.out[g][i][j] = fmaf(score[u][g], value, s.out[g][i][j]);
    });
}

/* One element of the output, or of a part of it. */
struct folded {
    float out, max, sum;
};

/* all = `more` after all the keys before it. */
DEVICE struct folded fold(struct folded all, struct folded more)
{
    const float max = fmaxf(all.max, more.max);
    const float a = mma_exp2(all.max - max), b = mma_exp2(more.max - max);
    all.out = fmaf(all.out, a, more.out * b);
    all.sum = fmaf(all.sum, a, more.sum * b);
    all.max = max;
    return all;
}

/* Folds the teams of the block, in their order, into each element of the heads [first, past). With
 * partial they are written there, else folded behind the splits before, in `all`; the last split
 * writes the output. */
template <typename S>
DEVICE void fold_teams(const struct attend_args &a, const struct state<S> &s, int32_t t,
                       int32_t split, int32_t first, int32_t past, bool last)
{
    __shared__ float max[S::TEAMS][S::GROUP], sum[S::TEAMS][S::GROUP];
    __shared__ float out[S::TEAMS][S::GROUP][S::WIDTH];
    __shared__ struct folded all[S::GROUP * S::WIDTH];
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
        struct folded f = {0, -INFINITY, 0};
        for (int i = 0; i < S::TEAMS; i++)
            f.max = fmaxf(f.max, max[i][g]);
        for (int i = 0; i < S::TEAMS; i++) {
            const float weight = mma_exp2(max[i][g] - f.max);
            f.sum = fmaf(sum[i][g], weight, f.sum);
            f.out = fmaf(out[i][g][e], weight, f.out);
        }
        if (a.partial != nullptr) {
            float *p = partial_at(&a, (int32_t)blockIdx.x, first + g, split);
            p[e] = f.out;
            if (e == 0) {
                p[dim] = f.max;
                p[dim + 1] = f.sum;
            }
            continue;
        }
        all[n] = split == 0 ? f : fold(all[n], f);
        if (last)
            put_element(a.out, attend_out(&a, t, first + g) + e,
                        all[n].out / attend_sum(a, first + g, all[n].sum, all[n].max));
    }
    __syncthreads(); /* the next split or heads write these again */
}

/* One split of a row for the heads [first, past), at most GROUP. */
template <typename S>
DEVICE void attend_split(const struct attend_args &a, const typename S::E *cache, int32_t t,
                         int32_t split, struct key_range r, int32_t first, int32_t past)
{
    const int32_t dim = a.kv.dim, kv_head = a.kv_of[first], slot = a.rows.slot[t];
    const int32_t seen = attend_first(&a, a.rows.position[t]);
    constexpr int TOGETHER = S::VEC < 4 ? S::VEC : 4;
    float q[S::GROUP][S::ITER][S::VEC] = {};
    struct state<S> s = {
    };
#pragma unroll
    for (int g = 0; g < S::GROUP; g++) {
        s.max[g] = -INFINITY;
        const int64_t from = attend_query(&a, t, first + g < past ? first + g : first);
#pragma unroll
        for (int i = 0; i < S::ITER; i++)
#pragma unroll
            for (int j = 0; j < S::VEC; j += TOGETHER) {
                if (S::element(i) >= dim)
                    continue;
                const pack<float, TOGETHER> v =
                    get_elements<TOGETHER>(a.qkv, from + S::element(i) + j);
#pragma unroll
                for (int k = 0; k < TOGETHER; k++)
                    q[g][i][j + k] = v.e[k] * a.scale;
            }
    }
    for (int32_t base = r.begin; base < r.end; base += S::TEAMS * S::AT_ONCE) {
        const int32_t p = base + (int32_t)threadIdx.x / S::LANES * S::AT_ONCE, left = r.end - p;
        const int32_t at = left > 0 ? p : base, count = left > 0 ? left : 1; /* of what is there */
        const int32_t block = kv_block(&a.rows, slot, at / BACKEND_BLOCK_TOKENS);
        const typename S::E *key = cache + kv_index(&a.kv, block, kv_head, false) +
                                   (int64_t)(at % BACKEND_BLOCK_TOKENS) * dim;
        struct vectors<S> k, v;
        load_vectors<S>(k, key, count, dim);
        load_vectors<S>(v, key + BACKEND_BLOCK_TOKENS * dim, count, dim);
        take_keys<S>(a, s, q, k, v, seen - p, left);
    }
    fold_teams<S>(a, s, t, split, first, past, r.end == a.rows.position[t] + 1);
}

template <typename S>
__global__ void __launch_bounds__(THREADS, 3) /* three hide the latency of loads */
    attend_split_kernel(struct attend_args a, const typename S::E *cache)
{
    const int32_t t = attend_row_of_place(&a);
    if (t < 0 || attend_is_in_run(&a, t))
        return;
    const bool padding = a.rows.slot[t] < 0;
    const struct key_range all = padding ? key_range{0, 1} : keys_of(&a, t);
    const int32_t length = all.end - all.begin, splits = split_count(length);
    const int32_t one = (int32_t)blockIdx.z, past = a.partial != nullptr ? one + 1 : splits;
    if (one >= splits ||
        (a.partial == nullptr && length >= ATTEND_LONG_KEYS && attend_is_picked(&a, t)))
        return; /* at once: there are many such */
    const struct attend_heads h = attend_heads_of(&a, (int32_t)blockIdx.y);
    if (padding) {
        for (int32_t n = (int32_t)threadIdx.x; n < (h.past - h.first) * a.kv.dim; n += THREADS)
            put_element(a.out, attend_out(&a, t, h.first) + n, 0);
        return;
    }
    for (int32_t first = h.first; first < h.past; first += S::GROUP) {
        const int32_t end = first + S::GROUP < h.past ? first + S::GROUP : h.past;
        for (int32_t split = one; split < past; split++)
            attend_split<S>(a, cache, t, split, split_range(all, split), first, end);
    }
}

__global__ void attend_merge_kernel(struct attend_args a)
{
    const int32_t t = attend_row_of_place(&a), head = (int32_t)blockIdx.y, dim = a.kv.dim;
    launch_release();
    if (t < 0 || !attend_is_alone(&a, t))
        return;
    const int32_t splits = split_count(keys_count(&a, t));
    const float *first = partial_at(&a, (int32_t)blockIdx.x, head, 0);
    for (int32_t e = (int32_t)threadIdx.x; e < dim; e += (int32_t)blockDim.x) {
        struct folded all = {first[e], first[dim], first[dim + 1]};
#pragma unroll 8 /* loads under way together */
        for (int32_t s = 1; s < splits; s++) {
            const float *p = first + (int64_t)s * (dim + ATTEND_PARTIAL_MORE);
            all = fold(all, {p[e], p[dim], p[dim + 1]});
        }
        put_element(a.out, attend_out(&a, t, head) + e,
                    all.out / attend_sum(a, head, all.sum, all.max));
    }
}

/* Each place by as many blocks as it may have splits. */
template <typename S>
static void launch_places(struct cuda_backend *c, const struct attend_args &a, const void *cache,
                          int32_t places)
{
    const unsigned longest = (unsigned)a.rows.table_cols * BACKEND_BLOCK_TOKENS;
    const unsigned splits = blocks_for(longest, SPLIT_KEYS_MIN);
    const dim3 grid((unsigned)places, (unsigned)a.kv.heads, splits < SPLITS ? splits : SPLITS);
    LAUNCH(c, attend_split_kernel<S>, grid, THREADS, 0, a, (const typename S::E *)cache);
    LAUNCH(c, attend_merge_kernel, dim3(grid.x, (unsigned)a.heads), THREADS, 0, a);
}

template <typename S>
static void launch_split(struct cuda_backend *c, const struct attend_args &a, const void *cache)
{
    struct attend_args whole = a;
    if (a.picked == nullptr) {
        launch_places<S>(c, a, cache, attend_between(&a));
        return;
    }
    if (a.picks > 0)
        launch_places<S>(c, a, cache, a.picks);
    whole.partial = nullptr;
    LAUNCH(c, attend_split_kernel<S>, dim3((unsigned)attend_between(&a), (unsigned)a.kv.heads),
           THREADS, 0, whole, (const typename S::E *)cache);
}

/* 16-bit and narrower keys: 16 or 8 bytes a lane, four query heads at once. */
template <typename E>
static void launch_wide(struct cuda_backend *c, const struct attend_args &a, const void *cache)
{
    const int32_t dim = a.kv.dim;
    if (dim % 8 == 0 && dim <= 64)
        launch_split<shape<E, 8, 8, 1, 4, 4>>(c, a, cache);
    else if (dim % 8 == 0 && dim <= 128)
        launch_split<shape<E, 8, 16, 1, 4, 4>>(c, a, cache);
    else if (dim % 8 == 0 && dim <= 256)
        launch_split<shape<E, 8, 32, 1, 4, 4>>(c, a, cache);
    else
        launch_split<shape<E, 1, WARP, BACKEND_HEAD_DIM_MAX / WARP, 1, 1>>(c, a, cache);
}

static void launch_alone(struct cuda_backend *c, const struct attend_args &a, enum dtype dtype,
                         void *cache)
{
    if (a.picks > 0)
        LAUNCH(c, attend_pick_kernel, 1, PICK_THREADS, 0, a);
    if (attend_decode_run(c, &a, dtype, cache))
        return;
    if (dtype == DTYPE_F32)
        launch_split<shape<float, 1, WARP, BACKEND_HEAD_DIM_MAX / WARP, 1, 1>>(c, a, cache);
    else if (dtype == DTYPE_F16)
        launch_wide<__half>(c, a, cache);
    else if (dtype == DTYPE_F8_E4M3)
        launch_wide<e4m3>(c, a, cache);
    else
        launch_wide<bf16>(c, a, cache);
}

/* The list lies behind the places that it leaves. */
static void pick(struct attend_args *a, size_t places)
{
    const int32_t longest = a->rows.table_cols * BACKEND_BLOCK_TOKENS;
    const size_t most = PICKED_BLOCKS / (SPLITS * (size_t)a->kv.heads), left = places - 1;
    a->picks = longest < ATTEND_LONG_KEYS || places < 2 ? 0 : (int32_t)(most < left ? most : left);
    a->picked = (int32_t *)partial_at(a, a->picks, 0, 0);
}

static void run(struct cuda_backend *c, struct view out, struct cview qkv, const struct heads *h,
                const struct attention *how, const struct rows *rows, const struct kv_cache *kv,
                int32_t layer, bool apart, const struct attend_rope &rope)
{
    if (rows->count == 0 || h->heads == 0)
        return;
    struct attend_args a = {elements_of(out),
                            elements_of(qkv),
                            *rows,
                            kv_place_of(&kv->spec, layer),
                            h->kv_of,
                            h->heads,
                            how->window > 0 ? how->window : INT32_MAX,
                            how->scale * ATTEND_LOG2E,
                            how->softcap * ATTEND_LOG2E,
                            (float *)c->partial.data,
                            nullptr,
                            0,
                            apart,
                            rows->apart,
                            how->sink,
                            nullptr,
                            rope,
                            h->heads + 2 * backend_kv_given(h)};
    const size_t place =
        (size_t)h->heads * SPLITS * ((size_t)h->head_dim + ATTEND_PARTIAL_MORE) * sizeof(float);
    const size_t tickets = c->partial.bytes / 2048 / 16 * 16;
    const size_t places = (c->partial.bytes - tickets) / place;
    a.tickets = (int32_t *)((char *)c->partial.data + c->partial.bytes - tickets);
    if (h->latent > 0) {
        attend_latent_run(c, &a, c->partial.bytes - tickets, kv->spec.dtype, kv->storage);
        return;
    }
    if (apart)
        a.rows.head = a.rows.tail = 0; /* also for rows that are of runs elsewhere */
    if ((size_t)attend_between(&a) > places)
        pick(&a, places);
    if (attend_between(&a) > 0)
        launch_alone(c, a, kv->spec.dtype, kv->storage);
    if (rows->count < 2 || apart)
        return;
    if (!attend_wgmma_run(c, &a, kv->spec.dtype, kv->storage) &&
        !attend_flash_run(c, &a, kv->spec.dtype, kv->storage))
        attend_tile_run(c, &a, kv->spec.dtype, kv->storage);
}

void attend_run(struct backend *b, struct view out, struct cview qkv, const struct heads *h,
                const struct attention *how, const struct rows *rows, const struct kv_cache *kv,
                int32_t layer)
{
    run(cuda_of(b), out, qkv, h, how, rows, kv, layer, rows->apart, {});
}

void attend_invariant(struct backend *b, struct view out, struct cview qkv, const struct heads *h,
                      const struct attention *how, const struct rows *rows,
                      const struct kv_cache *kv, int32_t layer)
{
    run(cuda_of(b), out, qkv, h, how, rows, kv, layer, true, {});
}

/* Whether a kernel of attention does it all: of whole heads without norms, in decodes whose keys
 * and values are beside the queries. */
static bool is_one_launch(struct cview qkv, const struct qkv_rules *rules, struct cview table,
                          const struct heads *h, const struct rows *rows,
                          const struct kv_spec *spec)
{
    const uintptr_t bits = (uintptr_t)qkv.data | (uintptr_t)table.data | (uintptr_t)rules->bias;
    return rows->apart && h->heads > 0 && !h->alone && h->latent == 0 && rules->q_norm == nullptr &&
           rules->v_norm == nullptr && table.cols == h->head_dim && bits % 16 == 0 &&
           attend_decode_turns(h->head_dim, spec->dtype);
}

void attend_rope_run(struct backend *b, struct view out, struct view qkv,
                     const struct qkv_rules *rules, struct cview table, const struct heads *h,
                     const struct attention *how, const struct rows *rows, struct kv_cache *kv,
                     int32_t layer)
{
    const struct cview from = cview_of(qkv);
    const struct attend_rope rope = {(const float *)table.data, rules->bias, rules->interleaved};
    if (is_one_launch(from, rules, table, h, rows, &kv->spec)) {
        run(cuda_of(b), out, from, h, how, rows, kv, layer, true, rope);
        return;
    }
    b->ops->rope_kv(b, qkv, rules, table, h, rows, kv, layer);
    b->ops->attend(b, out, from, h, how, rows, kv, layer);
}
