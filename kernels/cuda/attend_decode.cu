/* DESIGN: rows alone whose keys are 16 or 8 bits wide, in heads of a usual size (attend.cu says
 * which rows are alone, and has the others). All time is that of reading keys and values, so these
 * are on their way all the time: each warp has a ring of stages in shared memory, takes every
 * WARPS-th cache block of the row, and begins to copy the next one into a stage as soon as it has
 * taken what was there. Warps meet at ends of splits only.
 *
 * How the keys that a row sees, from the first's cache block on, are cut into splits depends on
 * their number only. A split is some keys of each warp, folded in the order of the warps, and
 * splits are folded in ascending order, so a row's bits depend on nothing else in the step. Which
 * block takes a split changes no bit: of gridDim.z blocks of a (row, KV head) each takes every
 * gridDim.z-th, and the last one that is done folds what all of them have left in memory. A single
 * one folds as it goes. */
#include "kernels/cuda/attend_decode.cuh"

#define SPLITS ATTEND_SPLITS
#define SPLIT_KEYS_LOG2 7   /* keys of a split, at least, */
#define SPLIT_KEYS_FEW 2048 /* and the double from more than these on */
#ifndef DECODE_BLOCKS
#define DECODE_BLOCKS 2048 /* so many fill a device, and end about together */
#endif

/* A block's part of the work. */
struct part {
    int32_t t, slot, kv_head;
    struct attend_heads heads;
    struct visible visible;
    int32_t first_block, blocks; /* of the row's cache blocks those that it sees */
    int32_t split_log2, splits;  /* keys of a split */
    int32_t split, step;         /* its first split, and from one to the next */
};

/* How many cache blocks of a split a warp takes. */
template <typename L> DEVICE int32_t turns_log2(const struct part &p)
{
    static_assert(BLOCK == 16, "the keys of a cache block");
    return p.split_log2 - 4 - L::WARPS_LOG2;
}

/* The nth cache block of the warp: which of those that the row sees, or one behind them. */
template <typename L> DEVICE int32_t block_of(const struct part &p, int32_t nth)
{
    const int32_t log2 = turns_log2<L>(p), split = p.split + (nth >> log2) * p.step;
    const int32_t turn = (split << log2) + (nth & ((1 << log2) - 1));
    return turn * L::WARPS + (int32_t)threadIdx.x / WARP;
}

/* Heads that read the KV head. A lane looks at each, where attend_heads_of has to wait for one look
 * after the other. */
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

/* ---- ends of splits ---- */

/* What all warps know of a split, and the block of those before. */
template <typename L> struct known {
    float max[L::WARPS][GROUP], sum[L::WARPS][GROUP];
    float all_max[2][GROUP], all_sum[2][GROUP], all[GROUP * L::DIM]; /* 2: in turns */
};

template <typename L>
DEVICE float *partial_at(const struct attend_args &a, int32_t head, int32_t split)
{
    const int64_t row_head = (int64_t)blockIdx.x * a.heads + head;
    return a.partial + (row_head * SPLITS + split) * (L::DIM + ATTEND_PARTIAL_MORE);
}

/* A sum of all splits so far with one more. */
HOST_DEVICE float added(float all, float shrink, float more, float weight)
{
    return fmaf(all, shrink, more * weight);
}

/* A warp's results to where others find them: outputs in the stage that it has just taken. */
template <typename L>
DEVICE void show(struct known<L> &k, float *outputs, const struct state<L> &s, int32_t count)
{
    const int32_t lane = (int32_t)threadIdx.x % WARP, head = lane / QUAD;
    const int32_t warp = (int32_t)threadIdx.x / WARP;
    const float sum = reduce_lanes<QUAD>(s.sum, plus());
    if (lane % QUAD == 0) {
        k.max[warp][head] = s.max;
        k.sum[warp][head] = sum;
    }
    if (head >= count)
        return;
#pragma unroll
    for (int n = 0; n < L::DIM / 8; n++)
#pragma unroll
        for (int i = 0; i < 2; i++)
            outputs[head * L::OUT_PITCH + element<L>::of_output(n, i)] =
                s.out[n][i] + s.out[n][i + 2];
}

/* One element of the output of a split. */
struct folded {
    float out, max, sum;
};

template <typename L>
DEVICE struct folded fold_warps(const struct known<L> &k, const typename L::E *ring, int32_t stage,
                                int32_t g, int32_t e)
{
    struct folded f = {0, -INFINITY, 0};
#pragma unroll
    for (int w = 0; w < L::WARPS; w++)
        f.max = fmaxf(f.max, k.max[w][g]);
#pragma unroll
    for (int w = 0; w < L::WARPS; w++) {
        const float weight = mma_exp2(k.max[w][g] - f.max);
        const float *outputs = (const float *)(ring + (w * L::STAGES + stage) * L::STAGE);
        f.sum = fmaf(k.sum[w][g], weight, f.sum);
        f.out = fmaf(outputs[g * L::OUT_PITCH + e], weight, f.out);
    }
    return f;
}

/* Ends a split of heads [first, first + count): leaves it in memory for merge, or folds it. */
template <typename L>
DEVICE void end_split(struct known<L> &k, const typename L::E *ring, int32_t stage,
                      const struct attend_args &a, const struct part &p, int32_t split,
                      int32_t first, int32_t count)
{
    const int now = split % 2;
    __syncthreads();
    for (int32_t n = (int32_t)threadIdx.x; n < count * L::DIM; n += L::THREADS) {
        const int32_t g = n / L::DIM, e = n % L::DIM;
        const struct folded f = fold_warps<L>(k, ring, stage, g, e);
        if (p.step > 1) {
            float *to = partial_at<L>(a, first + g, split);
            to[e] = f.out;
            if (e == 0) {
                to[L::DIM] = f.max;
                to[L::DIM + 1] = f.sum;
            }
            continue;
        }
        const float max = split == 0 ? -INFINITY : k.all_max[now][g], top = fmaxf(max, f.max);
        const float shrink = mma_exp2(max - top), weight = mma_exp2(f.max - top);
        const float sum = added(split == 0 ? 0 : k.all_sum[now][g], shrink, f.sum, weight);
        k.all[n] = added(split == 0 ? 0 : k.all[n], shrink, f.out, weight);
        if (e == 0) {
            k.all_max[!now][g] = top;
            k.all_sum[!now][g] = sum;
        }
        if (split == p.splits - 1)
            attend_out(&a, p.t, first + g)[e] = k.all[n] / attend_sum(a, first + g, sum, top);
    }
    __syncthreads(); /* the stages are copied into again */
}

/* ---- splits of several blocks ---- */

/* Whether all other blocks of the row and KV head are done; then what they stored is there. */
DEVICE bool is_last(int32_t *ticket, int32_t blocks)
{
    __shared__ int32_t done;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        done = atomicAdd(ticket, 1) + 1;
        if (done == blocks)
            *ticket = 0;
        __threadfence();
    }
    __syncthreads();
    return done == blocks;
}

/* What is to be done with the splits of a head. */
struct merging {
    float shrink[SPLITS], weight[SPLITS], sum[SPLITS], max;
};

/* A lane for each split, which learns the maximum up to it from those before. */
template <typename L>
DEVICE void plan_merge(struct merging *m, const struct attend_args &a, int32_t head, int32_t splits)
{
    const int32_t lane = (int32_t)threadIdx.x % WARP;
    float of[4] = {-INFINITY}, top;
    static_assert(SPLITS == WARP, "a lane for each split");
    if (lane < splits)
        mma_load_fresh(of, partial_at<L>(a, head, lane) + L::DIM);
    top = of[0];
#pragma unroll
    for (int step = 1; step < WARP; step *= 2)
        top = fmaxf(__shfl_sync(ALL_LANES, top, lane < step ? lane : lane - step), top);
    const float before = __shfl_sync(ALL_LANES, top, lane == 0 ? lane : lane - 1);
    m->shrink[lane] = mma_exp2((lane == 0 ? -INFINITY : before) - top);
    m->weight[lane] = mma_exp2(of[0] - top);
    m->sum[lane] = of[1];
    if (lane == splits - 1)
        m->max = top;
}

/* Folds the splits of heads [first, first + count), with the bits of end_split. */
template <typename L>
DEVICE void merge(struct merging (&m)[GROUP], const struct attend_args &a, const struct part &p,
                  int32_t first, int32_t count)
{
    constexpr int TOGETHER = 4, PARTS = L::DIM / TOGETHER;
    for (int32_t g = (int32_t)threadIdx.x / WARP; g < count; g += L::WARPS)
        plan_merge<L>(&m[g], a, first + g, p.splits);
    __syncthreads();
    for (int32_t n = (int32_t)threadIdx.x; n < count * PARTS; n += L::THREADS) {
        const int32_t g = n / PARTS, e = n % PARTS * TOGETHER;
        const float *from = partial_at<L>(a, first + g, 0) + e;
        float out[TOGETHER] = {}, sum = 0;
#pragma unroll 16 /* loads under way together */
        for (int32_t s = 0; s < p.splits; s++) {
            float more[TOGETHER];
            mma_load_fresh(more, from + (int64_t)s * (L::DIM + ATTEND_PARTIAL_MORE));
            sum = added(sum, m[g].shrink[s], m[g].sum[s], m[g].weight[s]);
#pragma unroll
            for (int i = 0; i < TOGETHER; i++)
                out[i] = added(out[i], m[g].shrink[s], more[i], m[g].weight[s]);
        }
        const float all = attend_sum(a, first + g, sum, m[g].max);
        float *to = attend_out(&a, p.t, first + g) + e;
#pragma unroll
        for (int i = 0; i < TOGETHER; i++)
            to[i] = out[i] / all;
    }
    __syncthreads(); /* m is written again */
}

/* ---- the kernel ---- */

/* A warp's way through the cache blocks of its part. */
template <typename L> struct walk {
    typename L::E *ring; /* the warp's */
    const typename L::E *cache;
    int32_t count, number; /* cache blocks; each lane has one's number */
};

/* Begins to copy the nth into a stage; nth ascends by 1. */
template <typename L>
DEVICE void fetch_nth(struct walk<L> &w, const struct attend_args &a, const struct part &p,
                      int32_t nth, int32_t stage)
{
    if (nth < w.count) {
        if (nth % WARP == 0) {
            const int32_t b = block_of<L>(p, nth + (int32_t)threadIdx.x % WARP);
            w.number = b < p.blocks ? kv_block(&a.rows, p.slot, p.first_block + b) : 0;
        }
        const int32_t number = __shfl_sync(ALL_LANES, w.number, nth % WARP);
        const int32_t b = block_of<L>(p, nth);
        if (b < p.blocks)
            fetch<L>(w.ring + stage * L::STAGE, w.cache + kv_index(&a.kv, number, p.kv_head, false),
                     (p.first_block + b) * BLOCK, p.visible);
    }
    mma_copy_group(); /* an empty one, too: the wait counts groups */
}

/* All splits of the block for heads [first, first + count). */
template <typename L>
DEVICE void attend_part(struct known<L> &k, typename L::E *ring, const struct attend_args &a,
                        const typename L::E *cache, const struct part &p, int32_t first,
                        int32_t count)
{
    const int32_t log2 = turns_log2<L>(p), splits = (p.splits - p.split + p.step - 1) / p.step;
    typename L::E *mine = ring + (int32_t)threadIdx.x / WARP * L::STAGES * L::STAGE;
    struct walk<L> w = {
        mine, cache, splits << log2, 0
    };
    uint32_t q[L::DIM / 16][4];
    struct state<L> s;
#pragma unroll
    for (int i = 0; i < L::STAGES; i++)
        fetch_nth<L>(w, a, p, i, i);
    const float back = load_queries<L>(q, a, p.t, first, count);
    clear<L>(s);
    for (int32_t nth = 0, stage = 0; nth < w.count; nth++) {
        typename L::E *now = mine + stage * L::STAGE;
        const int32_t b = block_of<L>(p, nth);
        mma_copy_wait<L::STAGES - 1>();
        __syncwarp();
        if (b < p.blocks)
            take<L>(s, a, p.visible, q, back, now, (p.first_block + b) * BLOCK);
        __syncwarp();
        if (((nth + 1) & ((1 << log2) - 1)) == 0) {
            show<L>(k, (float *)now, s, count);
            end_split<L>(k, ring, stage, a, p, p.split + (nth >> log2) * p.step, first, count);
            clear<L>(s);
        }
        fetch_nth<L>(w, a, p, nth + L::STAGES, stage);
        stage = stage + 1 == L::STAGES ? 0 : stage + 1;
    }
}

/* What the block works on; false: nothing. */
template <typename L> DEVICE bool part_of(struct part &p, const struct attend_args &a)
{
    const int32_t position = a.rows.position[p.t], first = attend_first(&a, position);
    p.visible = {first, position};
    p.first_block = first / BLOCK;
    p.blocks = position / BLOCK + 1 - p.first_block;
    const int32_t keys = position + 1 - p.first_block * BLOCK;
    p.split_log2 = keys > SPLIT_KEYS_FEW ? SPLIT_KEYS_LOG2 + 1 : SPLIT_KEYS_LOG2;
    while (keys > SPLITS << p.split_log2)
        p.split_log2++;
    p.splits = (keys + (1 << p.split_log2) - 1) >> p.split_log2;
    p.split = (int32_t)blockIdx.z;
    p.step = p.splits == 1 ? 1 : (int32_t)gridDim.z;
    const bool others = a.partial == nullptr && keys >= ATTEND_LONG_KEYS;
    return p.split < p.splits && attend_is_alone(&a, p.t) && !(others && attend_is_picked(&a, p.t));
}

/* Block (place, KV head, its first split). */
template <typename L>
__global__ void __launch_bounds__(L::THREADS, 3) /* three are in the middle while others begin */
    attend_decode_kernel(struct attend_args a, const typename L::E *cache)
{
    typedef pack<uint32_t, 4> aligned;
    SHARED_DYNAMIC(aligned, memory);
    __shared__ struct known<L> k;
    const int32_t place = (int32_t)blockIdx.x;
    struct part p = {};
    launch_release();
    p.t = a.partial != nullptr && a.picked != nullptr ? a.picked[place] : place;
    p.kv_head = (int32_t)blockIdx.y;
    p.heads = heads_at_once(a, p.kv_head);
    if (p.t < 0)
        return;
    p.slot = a.rows.slot[p.t];
    if (p.slot < 0) {
        float *to = attend_out(&a, p.t, p.heads.first);
        const int32_t count = blockIdx.z > 0 ? 0 : p.heads.past - p.heads.first;
        launch_wait();
        for (int32_t n = (int32_t)threadIdx.x; n < count * L::DIM; n += L::THREADS)
            to[n] = 0;
        return;
    }
    if (!part_of<L>(p, a))
        return;
    launch_wait();
    for (int32_t g = p.heads.first; g < p.heads.past; g += GROUP)
        attend_part<L>(k, (typename L::E *)memory, a, cache, p, g,
                       p.heads.past - g < GROUP ? p.heads.past - g : GROUP);
    const int32_t blocks = p.splits < p.step ? p.splits : p.step;
    if (p.step == 1 || !is_last(a.tickets + (int64_t)place * a.kv.heads + p.kv_head, blocks))
        return;
    for (int32_t g = p.heads.first; g < p.heads.past; g += GROUP)
        merge<L>(*(struct merging(*)[GROUP])memory, a, p, g,
                 p.heads.past - g < GROUP ? p.heads.past - g : GROUP);
}

/* ---- the host's part ---- */

template <typename L>
static void launch_places(struct cuda_backend *c, const struct attend_args &a, const void *cache,
                          int32_t places)
{
    const unsigned longest = (unsigned)a.rows.table_cols * BLOCK;
    const unsigned most = blocks_for(longest, 1u << SPLIT_KEYS_LOG2);
    const unsigned wanted = blocks_for(DECODE_BLOCKS, (unsigned)places * (unsigned)a.kv.heads);
    const unsigned several = most < wanted ? most : wanted;
    const dim3 grid((unsigned)places, (unsigned)a.kv.heads,
                    a.partial == nullptr ? 1
                    : several < SPLITS   ? several
                                         : SPLITS);
    cuda_note(c, "attend",
              cudaFuncSetAttribute(attend_decode_kernel<L>,
                                   cudaFuncAttributeMaxDynamicSharedMemorySize, (int)L::BYTES));
    LAUNCH(c, attend_decode_kernel<L>, grid, L::THREADS, L::BYTES, a, (const typename L::E *)cache);
}

template <typename L>
static void launch(struct cuda_backend *c, const struct attend_args &a, const void *cache)
{
    struct attend_args whole = a;
    if (a.picked == nullptr) {
        launch_places<L>(c, a, cache, a.rows.count);
        return;
    }
    if (a.picks > 0)
        launch_places<L>(c, a, cache, a.picks);
    whole.partial = nullptr;
    launch_places<L>(c, whole, cache, a.rows.count);
}

template <typename E, typename C>
static bool launch_dim(struct cuda_backend *c, const struct attend_args &a, const void *cache)
{
    switch (a.kv.dim) {
    case 64:
        launch<layout<E, C, 64, 2, 2>>(c, a, cache);
        return true;
    case 80:
        launch<layout<E, C, 80, 2, 2>>(c, a, cache);
        return true;
    case 96:
        launch<layout<E, C, 96, 2, 2>>(c, a, cache);
        return true;
    case 128:
        launch<layout<E, C, 128, 2, 2>>(c, a, cache);
        return true;
    case 256:
        launch<layout<E, C, 256, 1, 2>>(c, a, cache);
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
