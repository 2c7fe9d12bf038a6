/* DESIGN: rows alone whose keys are 16 or 8 bits wide, in heads of a usual size (attend.cu says
 * which rows are alone, and has the others). All time is that of reading keys and values, so these
 * are on their way all the time: each warp has a ring of stages in shared memory, takes every
 * WARPS-th cache block of the row, and begins to copy the next one into a stage as soon as it has
 * taken what was there. Warps meet at ends of splits only.
 *
 * How the keys that a row sees, from the first's cache block on, are cut into splits depends on
 * their number only. A split is some keys of each warp, folded in the order of the warps, and
 * splits are folded in ascending order, so a row's bits depend on nothing else in the step. Which
 * block takes a split changes no bit: of n blocks of a (row, KV head) each takes every nth, and the
 * last one that is done folds what all of them have left in memory. A single one folds as it goes.
 * Where the blocks are a cluster, and have a split each, none waits for memory: each folds a part
 * of the outputs, from the others' shared memory.
 *
 * In a step of decodes these kernels also do what rope.cu would do before them (attend_turn.cuh),
 * with TURNS: a launch less in each layer. What they have to wait for then is q, and the row's own
 * key and value; all older ones are on their way before. */
#include "kernels/cuda/attend_decode.cuh"
#include "kernels/cuda/attend_turn.cuh"
#include "kernels/cuda/cluster.cuh"

#define SPLITS ATTEND_SPLITS
#define TOGETHER 4          /* elements of an output, 16 bytes */
#define SPLIT_KEYS_LOG2 7   /* keys of a split, at least, */
#define SPLIT_KEYS_FEW 2048 /* and the double from more than these on */
#ifndef DECODE_BLOCKS
#define DECODE_BLOCKS 528 /* four on each of 132 processors */
#endif
#define LONG_BLOCKS 4 /* that a long row has at least, lest the others wait for it */
#ifndef CLUSTERED_BLOCKS
#define CLUSTERED_BLOCKS 264 /* that share rows by clusters: more rows fill the device anyway */
#endif

/* A block's part of the work. */
struct part {
    int32_t t, slot, kv_head;
    struct attend_heads heads;
    struct visible visible;
    int32_t first_block, blocks; /* of the row's cache blocks those that it sees */
    int32_t split_log2, splits;  /* keys of a split */
    int32_t split, step;         /* its first split, and from one to the next */
    bool meets;                  /* it has one, and the others of its cluster the others */
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

/* ---- ends of splits ---- */

/* What the block knows of the splits before. */
template <typename L> struct known {
    union {
        struct {
            float max, sum;
        } ends[2][GROUP]; /* in turns; or, for the cluster, of this one: [0] */
        int32_t done;     /* blocks, where all splits are left in memory */
    };
    pack<float, TOGETHER> before[GROUP * L::DIM / TOGETHER]; /* or of this one */
};

/* Where a warp shows its results of a head: outputs, then their maximum and sum. */
template <typename L> DEVICE float *shown_at(typename L::E *outputs, int32_t warp, int32_t head)
{
    static_assert(L::OUT_PITCH >= L::DIM + 2, "there is room behind the outputs");
    return (float *)(outputs + warp * L::RING) + head * L::OUT_PITCH;
}

template <typename L>
DEVICE float *partial_at(const struct attend_args &a, int32_t head, int32_t split)
{
    const int64_t row_head = (int64_t)blockIdx.x * a.heads + head;
    return a.partial + (row_head * SPLITS + split) * (L::DIM + ATTEND_PARTIAL_MORE);
}

/* A warp's results to where others find them, in its ring. */
template <typename L> DEVICE void show(float *own, const struct state<L> &s, int32_t count)
{
    const int32_t lane = (int32_t)threadIdx.x % WARP;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int32_t head = lane % QUAD * 2 + i;
        const float sum = reduce_keys(s.sum[i], plus());
        float *to = own + head * L::OUT_PITCH;
        if (head < count) {
            if (lane < QUAD)
                *(pack<float, 2> *)(to + L::DIM) = {s.max[i], sum};
#pragma unroll
            for (int n = 0; n < L::STEPS; n++)
#pragma unroll
                for (int below = 0; below < 2; below++)
                    to[element<L>::of_output(n, below)] = s.out[n][i + 2 * below];
        }
    }
}

/* TOGETHER neighbouring elements of the output of a head, of a split or of all so far. */
struct folded {
    float out[TOGETHER], max, sum;
};

template <typename L> DEVICE struct folded fold_warps(typename L::E *outputs, int32_t g, int32_t e)
{
    struct folded f = {{}, -INFINITY, 0};
    pack<float, 2> end[L::WARPS]; /* maximum and sum */
#pragma unroll
    for (int w = 0; w < L::WARPS; w++) {
        end[w] = *(const pack<float, 2> *)(shown_at<L>(outputs, w, g) + L::DIM);
        f.max = fmaxf(f.max, end[w].e[0]);
    }
#pragma unroll
    for (int w = 0; w < L::WARPS; w++) {
        const float weight = mma_exp2(end[w].e[0] - f.max);
        const pack<float, TOGETHER> more =
            *(const pack<float, TOGETHER> *)(shown_at<L>(outputs, w, g) + e);
        f.sum = fmaf(end[w].e[1], weight, f.sum);
#pragma unroll
        for (int i = 0; i < TOGETHER; i++)
            f.out[i] = fmaf(more.e[i], weight, f.out[i]);
    }
    return f;
}

/* all = `more` after all the keys before it. */
DEVICE void add_split(struct folded &all, float shrink, const struct folded &more, float weight)
{
    all.sum = fmaf(all.sum, shrink, more.sum * weight);
#pragma unroll
    for (int i = 0; i < TOGETHER; i++)
        all.out[i] = fmaf(all.out[i], shrink, more.out[i] * weight);
}

DEVICE void fold_behind(struct folded &all, const struct folded &more)
{
    const float max = fmaxf(all.max, more.max);
    add_split(all, mma_exp2(all.max - max), more, mma_exp2(more.max - max));
    all.max = max;
}

DEVICE void write_out(const struct attend_args &a, int32_t t, int32_t head, int32_t e,
                      const struct folded &all)
{
    const float sum = attend_sum(a, head, all.sum, all.max);
    pack<float, TOGETHER> v;
#pragma unroll
    for (int i = 0; i < TOGETHER; i++)
        v.e[i] = all.out[i] / sum;
    put_elements(a.out, attend_out(&a, t, head) + e, v);
}

/* A split that the block folds behind those before it. */
template <typename L>
DEVICE void fold_split(struct known<L> &k, const struct attend_args &a, const struct part &p,
                       int32_t split, int32_t first, int32_t n, const struct folded &f)
{
    const int32_t now = split % 2, g = n / (L::DIM / TOGETHER), e = n % (L::DIM / TOGETHER);
    struct folded all = {{}, -INFINITY, 0};
    if (split > 0) {
        all.max = k.ends[now][g].max;
        all.sum = k.ends[now][g].sum;
        memcpy(all.out, &k.before[n], sizeof all.out);
    }
    fold_behind(all, f);
    if (split == p.splits - 1) {
        write_out(a, p.t, first + g, e * TOGETHER, all);
        return;
    }
    memcpy(&k.before[n], all.out, sizeof all.out);
    if (e == 0)
        k.ends[!now][g] = {all.max, all.sum};
}

/* A split of the block to where the cluster, or whoever is last, finds it. */
template <typename L>
DEVICE void leave_split(struct known<L> &k, const struct attend_args &a, const struct part &p,
                        int32_t split, int32_t first, int32_t n, const struct folded &f)
{
    const int32_t g = n / (L::DIM / TOGETHER), e = n % (L::DIM / TOGETHER);
    if (p.meets) {
        memcpy(&k.before[n], f.out, sizeof f.out);
        if (e == 0)
            k.ends[0][g] = {f.max, f.sum};
        return;
    }
    float *to = partial_at<L>(a, first + g, split);
    *(pack<float, TOGETHER> *)(to + e * TOGETHER) = *(const pack<float, TOGETHER> *)f.out;
    if (e == 0) {
        to[L::DIM] = f.max;
        to[L::DIM + 1] = f.sum;
    }
}

/* Ends a split of heads [first, first + count): leaves it for merge, or folds it. */
template <typename L>
DEVICE void end_split(struct known<L> &k, typename L::E *outputs, const struct attend_args &a,
                      const struct part &p, int32_t split, int32_t first, int32_t count)
{
    constexpr int EACH = L::DIM / TOGETHER;
    __syncthreads();
    for (int32_t n = (int32_t)threadIdx.x; n < count * EACH; n += L::THREADS) {
        const int32_t g = n / EACH, e = n % EACH;
        const struct folded f = fold_warps<L>(outputs, g, e * TOGETHER);
        if (p.step == 1)
            fold_split<L>(k, a, p, split, first, n, f);
        else
            leave_split<L>(k, a, p, split, first, n, f);
    }
    __syncthreads(); /* the outputs are copied over */
}

/* ---- splits of several blocks ---- */

/* Whether all other blocks of the row and KV head are done; then what they stored is there. */
DEVICE bool is_last(int32_t &done, int32_t *ticket, int32_t blocks)
{
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        done = atomicAdd(ticket, 1) + 1;
        __threadfence();
        if (done == blocks)
            *ticket = 0; /* behind the fence, which would wait for it */
    }
    __syncthreads();
    return done == blocks;
}

/* What is to be done with the splits of a head. */
struct merging {
    float shrink[SPLITS], weight[SPLITS], sum[SPLITS], max;
};

/* A lane for each split, whose maximum and sum are `of`, learns the maximum up to it. */
DEVICE void plan_merge(struct merging *m, const float (&of)[4], int32_t splits)
{
    const int32_t lane = (int32_t)threadIdx.x % WARP;
    float top = of[0];
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

/* Folds the splits of heads [first, first + count), with the bits of fold_split. All loads are
 * under way before the first one is waited for, if there are not many. */
template <typename L>
DEVICE void merge(struct merging (&m)[GROUP], const struct attend_args &a, const struct part &p,
                  int32_t first, int32_t count)
{
    constexpr int EACH = L::DIM / TOGETHER, AT_ONCE = 8 /* splits */, PLANS = GROUP / L::WARPS;
    const int32_t lane = (int32_t)threadIdx.x % WARP, warp = (int32_t)threadIdx.x / WARP;
    float of[PLANS][4];
    bool planned = false;
    static_assert(SPLITS == WARP, "a lane for each split");
#pragma unroll
    for (int i = 0; i < PLANS; i++) {
        const int32_t g = warp + i * L::WARPS;
        of[i][0] = -INFINITY;
        of[i][1] = 0;
        if (g < count && lane < p.splits)
            mma_load_fresh(of[i], partial_at<L>(a, first + g, lane) + L::DIM);
    }
    for (int32_t n = (int32_t)threadIdx.x; n < count * EACH || !planned; n += L::THREADS) {
        const int32_t g = n / EACH % count, e = n % EACH * TOGETHER;
        const float *from = partial_at<L>(a, first + g, 0) + e;
        struct folded all = {{}, 0, 0};
        for (int32_t s = 0; s < p.splits; s += AT_ONCE) {
            struct folded more[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++)
                if (s + i < p.splits)
                    mma_load_fresh(more[i].out, from + (s + i) * (L::DIM + ATTEND_PARTIAL_MORE));
            if (!planned) {
#pragma unroll
                for (int i = 0; i < PLANS; i++)
                    if (warp + i * L::WARPS < count)
                        plan_merge(&m[warp + i * L::WARPS], of[i], p.splits);
                __syncthreads();
                planned = true;
            }
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++)
                if (s + i < p.splits) {
                    more[i].sum = m[g].sum[s + i];
                    add_split(all, m[g].shrink[s + i], more[i], m[g].weight[s + i]);
                }
        }
        all.max = m[g].max;
        if (n < count * EACH)
            write_out(a, p.t, first + g, e, all);
    }
    __syncthreads(); /* m is written again */
}

/* A block's share of the outputs, of all splits of its cluster; where the rings were. */
template <typename L> struct shared_out {
    pack<float, TOGETHER> out[GROUP * L::DIM / TOGETHER + CLUSTER_MOST]; /* [splits][share] */
    pack<float, 2> ends[CLUSTER_MOST][GROUP];
};

/* x / y for small numbers: a division of integers takes as long as a load from another block. */
DEVICE int32_t quotient(int32_t x, int32_t y)
{
    return (int32_t)__fdividef((float)x + 0.5f, (float)y);
}

/* What the cluster's blocks have, each a split of all heads. Each folds as much of it, from copies:
 * all loads are under way together. */
template <typename L>
DEVICE void merge_cluster(struct shared_out<L> &copy, const struct known<L> &k,
                          const struct attend_args &a, const struct part &p)
{
    constexpr int EACH = L::DIM / TOGETHER, ENDS = CLUSTER_MOST * GROUP / L::THREADS;
    const int32_t heads = p.heads.past - p.heads.first, outputs = heads * EACH;
    const int32_t share = quotient(outputs + p.splits - 1, p.splits), first = p.split * share;
    pack<float, 2> end[ENDS];
    static_assert(sizeof(struct shared_out<L>) <= L::BYTES, "");
    if (!cluster_meet())
        return;
#pragma unroll
    for (int n = 0; n < ENDS; n++) {
        const int32_t i = n * L::THREADS + (int32_t)threadIdx.x;
        if (i / GROUP < p.splits && i % GROUP < heads)
            cluster_load(end[n].e, (const float *)&k.ends[0][i % GROUP], (uint32_t)(i / GROUP));
    }
    for (int32_t i = (int32_t)threadIdx.x; i < share * p.splits; i += L::THREADS) {
        const int32_t split = quotient(i, share), at = first + i - split * share;
        if (at < outputs)
            cluster_load(copy.out[i].e, k.before[at].e, (uint32_t)split);
    }
#pragma unroll
    for (int n = 0; n < ENDS; n++) {
        const int32_t i = n * L::THREADS + (int32_t)threadIdx.x;
        copy.ends[i / GROUP][i % GROUP] = end[n];
    }
    __syncthreads();
    cluster_have_read();
    for (int32_t i = (int32_t)threadIdx.x; i < share && first + i < outputs; i += L::THREADS) {
        const int32_t g = (first + i) / EACH, e = (first + i) % EACH * TOGETHER;
        struct folded all = {{}, -INFINITY, 0}, more;
        for (int32_t split = 0; split < p.splits; split++) {
            memcpy(more.out, &copy.out[split * share + i], sizeof more.out);
            more.max = copy.ends[split][g].e[0];
            more.sum = copy.ends[split][g].e[1];
            fold_behind(all, more);
        }
        write_out(a, p.t, p.heads.first + g, e, all);
    }
    cluster_leave();
}

/* ---- the kernel ---- */

/* A warp's way through the cache blocks of its part. */
template <typename L> struct walk {
    const typename L::E *cache;
    int32_t count, number; /* cache blocks; each lane has one's number */
};

/* Begins to copy keys or values of the nth cache block; `nth` of keys ascends by 1. TURNS: all but
 * the row's own, which are not there yet. */
template <typename L, bool TURNS>
DEVICE void fetch_nth(struct walk<L> &w, typename L::E *half, const struct attend_args &a,
                      const struct part &p, int32_t nth, bool value)
{
    if (nth < w.count) {
        if (nth % WARP == 0 && !value) {
            const int32_t b = block_of<L>(p, nth + (int32_t)threadIdx.x % WARP);
            w.number = b < p.blocks ? kv_block(&a.rows, p.slot, p.first_block + b) : 0;
        }
        const int32_t number = __shfl_sync(ALL_LANES, w.number, nth % WARP);
        const int32_t b = block_of<L>(p, nth);
        if (b < p.blocks)
            fetch<L>(half, w.cache + kv_index(&a.kv, number, p.kv_head, value),
                     (p.first_block + b) * BLOCK, {p.visible.first, p.visible.last - TURNS});
    }
    mma_copy_group(); /* an empty one, too: the wait counts groups */
}

/* The values of the second cache block of the warp, for which there is no free half yet. */
template <typename L>
DEVICE void announce_values(const struct walk<L> &w, const struct attend_args &a,
                            const struct part &p)
{
    constexpr int32_t LINE = 128 / (int)sizeof(typename L::E);
    const int32_t at = (int32_t)threadIdx.x % WARP * LINE;
    const int32_t number = __shfl_sync(ALL_LANES, w.number, 1);
    if (w.count > 1 && block_of<L>(p, 1) < p.blocks && at < BLOCK * L::DIM)
        mma_announce(w.cache + kv_index(&a.kv, number, p.kv_head, true) + at);
}

/* Whether the warp takes the last cache block of the row, and so stores into it. */
template <typename L>
DEVICE void find_own(struct own_row &row, const struct attend_args &a, const struct part &p)
{
    row.stores = (p.splits - 1 - p.split) % p.step == 0 &&
                 (p.blocks - 1) % L::WARPS == (int32_t)threadIdx.x / WARP;
    if (row.stores)
        row.number = kv_block(&a.rows, p.slot, p.visible.last / BLOCK);
}

/* The heads [first, first + count) as factors (cut_queries). */
template <typename L, bool TURNS>
DEVICE void load_queries(struct parts (&q)[L::STEPS], float (&back)[2], struct own<L> &own,
                         typename L::E *cache, const struct attend_args &a,
                         const struct own_row &row, int32_t first, int32_t count)
{
    const int32_t nth = (int32_t)threadIdx.x % WARP / QUAD;
    const int32_t head = nth < count ? first + nth : first;
    float x[L::STEPS][4];
    if constexpr (TURNS)
        load_turning<L>(x, own, cache, a, row, head);
    else
        WITH_TYPE(a.qkv.dtype, load_query<L, E>(x, a.qkv.data, attend_query(&a, row.t, head)));
    cut_queries<L>(q, back, x, a.scale, count);
}

/* Into a half that has the row's last cache block: the row's own. */
template <typename L>
DEVICE void put_last(typename L::E *half, const struct part &p, int32_t b, const typename L::E *row)
{
    typedef pack<uint32_t, 4> vector;
    const int32_t at = (int32_t)threadIdx.x % WARP * L::VEC;
    if (b != p.blocks - 1)
        return;
    if (at < L::DIM)
        *(vector *)(half + p.visible.last % BLOCK * L::PITCH + at) = *(const vector *)(row + at);
    __syncwarp();
}

/* All splits of the block for heads [first, first + count). Of three halves one is being copied
 * into while the two of a cache block are taken; of four, two. */
template <typename L, bool TURNS>
DEVICE void attend_part(struct known<L> &k, struct own<L> &own, typename L::E *rings,
                        const struct attend_args &a, typename L::E *cache, const struct part &p,
                        int32_t first, int32_t count)
{
    const int32_t log2 = turns_log2<L>(p), splits = (p.splits - p.split + p.step - 1) / p.step;
    const int32_t warp = (int32_t)threadIdx.x / WARP;
    typename L::E *ring = rings + warp * L::RING;
    struct walk<L> w = {
        cache, splits << log2, 0
    };
    struct parts q[L::STEPS], x = {};
    struct state<L> s;
    float back[2];
    constexpr bool FIRST = L::DIM > 128; /* either way registers suffice for some sizes only */
    struct own_row row = {p.t, p.kv_head, p.visible.last, 0, false};
    if (TURNS && FIRST)
        find_own<L>(row, a, p);
#pragma unroll
    for (int i = 0; i < L::HALVES; i++) {
        /* What this step writes of keys and values is in the row's last cache block only; with
         * TURNS it is not copied from there. */
        if (!TURNS && (!a.early || block_of<L>(p, i / 2) >= p.blocks - 1))
            launch_wait();
        fetch_nth<L, TURNS>(w, ring + i * L::HALF, a, p, i / 2, i % 2 == 1);
    }
    if (L::HALVES == 3)
        announce_values<L>(w, a, p);
    launch_wait();
    if (TURNS && !FIRST)
        find_own<L>(row, a, p);
    load_queries<L, TURNS>(q, back, own, cache, a, row, first, count);
    clear<L>(s);
    for (int32_t nth = 0, half = 0; nth < w.count; nth++) {
        const int32_t b = block_of<L>(p, nth), next = half + 1 == L::HALVES ? 0 : half + 1;
        typename L::E *keys = ring + half * L::HALF, *values = ring + next * L::HALF;
        mma_copy_wait<L::HALVES - 1>();
        __syncwarp();
        if constexpr (TURNS)
            put_last<L>(keys, p, b, own.key);
        if (b < p.blocks)
            weigh<L>(x, s, a, p.visible, q, back, keys, (p.first_block + b) * BLOCK);
        if (L::HALVES == 3) {
            __syncwarp(); /* all lanes have taken the keys */
            fetch_nth<L, TURNS>(w, keys, a, p, nth + 1, true);
        }
        mma_copy_wait<2>();
        __syncwarp();
        if constexpr (TURNS)
            put_last<L>(values, p, b, own.value);
        if (b < p.blocks)
            multiply_values<L>(s.out, x, values);
        __syncwarp();
        if (((nth + 1) & ((1 << log2) - 1)) == 0) {
            typename L::E *outputs = rings + (L::HALVES == 3 ? next : half) * L::HALF;
            show<L>((float *)(outputs + warp * L::RING), s, count);
            end_split<L>(k, outputs, a, p, p.split + (nth >> log2) * p.step, first, count);
            clear<L>(s);
        }
        fetch_nth<L, TURNS>(w, L::HALVES == 3 ? values : keys, a, p, nth + 2, false);
        if (L::HALVES == 4)
            fetch_nth<L, TURNS>(w, values, a, p, nth + 2, true);
        half = next + 1 == L::HALVES ? 0 : next + 1;
    }
}

/* What the block works on; false: nothing. */
DEVICE bool find_splits(struct part &p, const struct attend_args &a, int32_t position, int32_t few,
                        int32_t cluster)
{
    const int32_t first = attend_first(&a, position);
    p.visible = {first, position};
    p.first_block = first / BLOCK;
    p.blocks = position / BLOCK + 1 - p.first_block;
    const int32_t keys = position + 1 - p.first_block * BLOCK;
    p.split_log2 = keys > SPLIT_KEYS_FEW ? SPLIT_KEYS_LOG2 + 1 : SPLIT_KEYS_LOG2;
    while (keys > SPLITS << p.split_log2)
        p.split_log2++;
    p.splits = (keys + (1 << p.split_log2) - 1) >> p.split_log2;
    p.split = (int32_t)blockIdx.z;
    const bool is_long = keys >= ATTEND_LONG_KEYS, others = is_long && a.partial == nullptr;
    const int32_t blocks = is_long ? (int32_t)gridDim.z : few;
    p.step = blocks < p.splits ? blocks : p.splits;
    p.meets = p.step == p.splits && p.splits > 1 && p.splits <= cluster &&
              p.heads.past - p.heads.first <= GROUP;
    return p.split < p.step && attend_is_alone(&a, p.t) && !(others && attend_is_picked(&a, p.t));
}

template <typename L> DEVICE void write_zeros(const struct attend_args &a, const struct part &p)
{
    const int32_t count = (p.heads.past - p.heads.first) * L::DIM;
    for (int32_t n = (int32_t)threadIdx.x; n < count; n += L::THREADS)
        put_element(a.out, attend_out(&a, p.t, p.heads.first) + n, 0);
}

/* What is left to do for a row whose KV head is read by none of these heads. */
template <typename L>
DEVICE void store_unread(struct own<L> &own, const struct attend_args &a, typename L::E *cache,
                         const struct part &p, int32_t position)
{
    struct fresh<L> fresh;
    if (threadIdx.x >= WARP)
        return;
    const struct own_row row = {p.t, p.kv_head, position,
                                kv_block(&a.rows, p.slot, position / BLOCK), true};
    load_own_angles<L>(fresh, a, p.t);
    WITH_TYPE(a.qkv.dtype, load_unread<L, E>(fresh, a, p.t, p.kv_head));
    turn_own<L>(own, cache, fresh, a, row);
}

/* Blocks of a multiprocessor, for which there have to be registers: 16 warps hide what each waits
 * for. Before sm_90 there is no shared memory for so many. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define WARPS_OF_128 12
#else
#define WARPS_OF_128 16
#endif
template <typename L>
constexpr int RESIDENT = L::DIM > 128    ? 4
                         : L::DIM == 128 ? WARPS_OF_128 / L::WARPS
                                         : 16 / L::WARPS;

/* Block (place, KV head, its first split). `few`: blocks of a row that is not long; cluster: blocks
 * of one, or 1. TURNS: q, k and v are as the product has left them. */
template <typename L, bool TURNS>
__global__ void __launch_bounds__(L::THREADS, RESIDENT<L>)
    attend_decode_kernel(struct attend_args a, typename L::E *cache, int32_t few, int32_t cluster)
{
    typedef pack<uint32_t, 4> aligned;
    SHARED_DYNAMIC(aligned, memory);
    struct known<L> &k = *(struct known<L> *)((char *)memory + L::BYTES); /* others look at it */
    __shared__ struct own<L> own;
    const int32_t place = (int32_t)blockIdx.x;
    struct part p = {};
    launch_release();
    if (a.picks > 0)
        launch_wait(); /* which rows are picked is a kernel's result */
    p.t = attend_row_of_place(&a);
    p.kv_head = (int32_t)blockIdx.y;
    if (p.t < 0)
        return;
    const int32_t position = a.rows.position[p.t]; /* with what is loaded next */
    p.slot = a.rows.slot[p.t];
    p.heads = attend_heads_at_once(a, p.kv_head);
    const bool is_read = p.heads.first < p.heads.past;
    const bool works = p.slot >= 0 && is_read && find_splits(p, a, position, few, cluster);
    if (!works) {
        if (blockIdx.z > 0) /* others wait: what it holds is wanted by the product behind */
            return;
        launch_wait();
        if (p.slot < 0)
            write_zeros<L>(a, p);
        else if constexpr (TURNS) {
            if (!is_read)
                store_unread<L>(own, a, cache, p, position);
        }
        return;
    }
    for (int32_t g = p.heads.first; g < p.heads.past; g += GROUP)
        attend_part<L, TURNS>(k, own, (typename L::E *)memory, a, cache, p, g,
                              p.heads.past - g < GROUP ? p.heads.past - g : GROUP);
    if (p.meets) {
        merge_cluster<L>(*(struct shared_out<L> *)memory, k, a, p);
        return;
    }
    if (p.step == 1 ||
        !is_last(k.done, a.tickets + (int64_t)place * a.kv.heads + p.kv_head, p.step))
        return;
    for (int32_t g = p.heads.first; g < p.heads.past; g += GROUP)
        merge<L>(*(struct merging(*)[GROUP])memory, a, p, g,
                 p.heads.past - g < GROUP ? p.heads.past - g : GROUP);
}

/* ---- the host's part ---- */

/* How many blocks of a row and KV head are a cluster. */
template <typename L, bool TURNS>
static unsigned cluster_of(struct cuda_backend *c, dim3 grid, size_t bytes)
{
    struct cuda_clusters *last = &c->clusters;
    const auto kernel = attend_decode_kernel<L, TURNS>;
    const unsigned clusters = grid.x * grid.y, room = CLUSTERED_BLOCKS / clusters;
    unsigned most = 1;
    if (last->kernel == (const void *)kernel && last->x == grid.x && last->y == grid.y &&
        last->z == grid.z)
        return last->size;
    while (most < grid.z && 2 * most <= room)
        most *= 2;
    const unsigned size = cluster_size(kernel, grid, L::THREADS, bytes, most);
    *last = {(const void *)kernel, grid.x, grid.y, grid.z, size};
    return size;
}

template <typename L, bool TURNS>
static void launch_places(struct cuda_backend *c, const struct attend_args &a, void *cache,
                          int32_t places)
{
    constexpr size_t BYTES = L::BYTES + sizeof(struct known<L>);
    constexpr size_t ALL = (BYTES + sizeof(struct own<L>) + BLOCK_SHARED + 127) / 128 * 128;
    static_assert(ALL <= ATTEND_SHARED || L::DIM > 128, "it runs beside the product before it");
    static_assert(RESIDENT<L> * ALL <= HOPPER_SHARED || L::DIM > 128,
                  "so many have room on a multiprocessor of sm_90");
    const unsigned longest = (unsigned)a.rows.table_cols * BLOCK;
    const unsigned splits = blocks_for(longest, 1u << SPLIT_KEYS_LOG2);
    const unsigned most = a.partial == nullptr ? 1 : splits < SPLITS ? splits : SPLITS;
    const unsigned filling = DECODE_BLOCKS / ((unsigned)places * (unsigned)a.kv.heads);
    const unsigned least = longest < ATTEND_LONG_KEYS ? 1 : LONG_BLOCKS;
    const unsigned wanted = filling < least ? least : filling, few = filling < 1 ? 1 : filling;
    dim3 grid((unsigned)places, (unsigned)a.kv.heads, most < wanted ? most : wanted);
    cuda_note(c, "attend",
              cudaFuncSetAttribute(attend_decode_kernel<L, TURNS>,
                                   cudaFuncAttributeMaxDynamicSharedMemorySize, (int)BYTES));
    const unsigned cluster = a.picked == nullptr ? cluster_of<L, TURNS>(c, grid, BYTES) : 1;
    grid.z = grid.z > cluster ? grid.z / cluster * cluster : cluster;
    const int32_t blocks = (int32_t)(few < grid.z ? few : grid.z);
    if (a.picked == nullptr)
        LAUNCH_CLUSTERS(c, cluster, (attend_decode_kernel<L, TURNS>), grid, L::THREADS, BYTES, a,
                        (typename L::E *)cache, blocks, (int32_t)cluster);
    else /* the list is the result of a kernel */
        LAUNCH(c, (attend_decode_kernel<L, TURNS>), grid, L::THREADS, BYTES, a,
               (typename L::E *)cache, blocks, 1);
}

template <typename L, bool TURNS>
static void launch_all(struct cuda_backend *c, const struct attend_args &a, void *cache)
{
    struct attend_args whole = a;
    if (a.picked == nullptr) {
        launch_places<L, TURNS>(c, a, cache, attend_between(&a));
        return;
    }
    if (a.picks > 0)
        launch_places<L, TURNS>(c, a, cache, a.picks);
    whole.partial = nullptr;
    launch_places<L, TURNS>(c, whole, cache, attend_between(&a));
}

/* Heads whose halves are whole steps; but with 96 elements registers would be spilled. */
static constexpr bool turns(int32_t dim)
{
    return dim == 64 || dim == 128 || dim == 256;
}

template <typename L>
static void launch(struct cuda_backend *c, const struct attend_args &a, void *cache)
{
    if constexpr (turns(L::DIM)) {
        if (a.rope.table != nullptr) {
            launch_all<L, true>(c, a, cache);
            return;
        }
    }
    launch_all<L, false>(c, a, cache);
}

template <typename E, typename C>
static bool launch_dim(struct cuda_backend *c, const struct attend_args &a, void *cache)
{
    switch (a.kv.dim) {
    case 64:
        launch<layout<E, C, 64, 2, sizeof(E) == 1 ? 4 : 3>>(c, a, cache);
        return true;
    case 80:
        launch<layout<E, C, 80, 2, sizeof(E) == 1 ? 4 : 3>>(c, a, cache);
        return true;
    case 96:
        launch<layout<E, C, 96, 2, sizeof(E) == 1 ? 4 : 3>>(c, a, cache);
        return true;
    case 128:
        launch<layout<E, C, 128, 2, sizeof(E) == 1 ? 4 : 3>>(c, a, cache);
        return true;
    case 256:
        launch<layout<E, C, 256, 1, sizeof(E) == 1 ? 4 : 3>>(c, a, cache);
        return true;
    default:
        return false;
    }
}

bool attend_decode_run(struct cuda_backend *c, const struct attend_args *a, enum dtype dtype,
                       void *cache)
{
    if (dtype == DTYPE_BF16)
        return launch_dim<bf16, bf16>(c, *a, cache);
    if (dtype == DTYPE_F16)
        return launch_dim<__half, __half>(c, *a, cache);
    return dtype == DTYPE_F8_E4M3 && launch_dim<e4m3, __half>(c, *a, cache);
}

bool attend_decode_turns(int32_t dim, enum dtype dtype)
{
    const bool is_narrow = dtype == DTYPE_BF16 || dtype == DTYPE_F16 || dtype == DTYPE_F8_E4M3;
    return is_narrow && turns(dim);
}
