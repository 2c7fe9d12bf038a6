/* DESIGN: runs of rows on Hopper, by products of four warps whose factors lie in shared memory
 * (wgmma.cuh). Tiles are those of attend_flash.cu, and so are the rules of rounding; each group of
 * four warps has 64 rows of one. A group more does nothing but load: what it has copied it tells by
 * a barrier, and by another it is told which stage it may fill again, keys and values apart. While
 * one of the groups that multiply weighs its scores, the other's products run. Products of a group
 * that run beside its own weighing were no faster. */
#include "kernels/cuda/attend_flash.cuh"

#include "kernels/cuda/wgmma.cuh"

#define GROUP 128 /* threads that multiply together */
#define GROUP_ROWS 64
#define PIECE 8 /* elements that stay together when lines are swizzled */

/* E: as stored and multiplied; codes of 8 bits, which would have to be widened on the way, are no
 * faster here. Of the registers that a group has at first, who loads gives most to the others. */
template <typename E_, int DIM_, int GROUPS_, int KEYS_, int STAGES_> struct plan {
    typedef E_ E;
    typedef E_ C;
    static constexpr int DIM = DIM_, TILES = 1, KEYS = KEYS_, GROUPS = GROUPS_, STAGES = STAGES_;
    static constexpr int ROWS = GROUPS * GROUP_ROWS, THREADS = (GROUPS + 1) * GROUP;
    static constexpr int QUERY = ROWS * DIM, STAGE = KEYS * DIM; /* elements */
    static constexpr size_t BYTES = WGMMA_ALIGNED + (QUERY + 2 * STAGES * STAGE) * sizeof(C);
    static constexpr int VEC = 16 / (int)sizeof(E), CHUNKS = DIM / VEC; /* loads of a key */
    static constexpr int FEW = 56, MORE = 224;
    static_assert(GROUPS == 2 && FEW + 2 * MORE <= 65536 / THREADS / 8 * 8 * 3, "registers");
};

/* Barriers of a stage's keys, and of its values. */
template <typename P> struct barriers {
    uint64_t full[2][P::STAGES], empty[2][P::STAGES];
};

template <typename P> struct memory {
    typename P::C *query, *stages; /* of keys, then of values */
    struct barriers<P> *barriers;
};

template <typename P>
DEVICE typename P::C *stage_of(const struct memory<P> &m, int values, int32_t stage)
{
    return m.stages + (values * P::STAGES + stage) * P::STAGE;
}

/* Which stage it is the turn of, and the parity of the phase in which it is filled. */
struct turn {
    int32_t stage;
    uint32_t parity;
};

template <typename P> DEVICE struct turn after(struct turn t)
{
    const bool last = t.stage == P::STAGES - 1;
    const struct turn next = {last ? 0 : t.stage + 1, t.parity ^ (uint32_t)last};
    return next;
}

/* Where a piece of a row lies in a matrix of so many rows: columns of 64 elements lie one after the
 * other. */
template <int ROWS> DEVICE int32_t place(int32_t row, int32_t piece)
{
    return (piece / 8 * ROWS + row) * 64 + (piece % 8 ^ row % 8) * PIECE;
}

/* ---- who loads ---- */

/* Lane b: number of the cache block that has the bth 16 of the nth keys, or of one there is. */
template <typename P>
DEVICE int32_t block_of_lane(const struct attend_args &a, const struct span &s, int32_t nth)
{
    constexpr int BLOCK = BACKEND_BLOCK_TOKENS;
    const int32_t b = (int32_t)threadIdx.x % WARP % (P::KEYS / BLOCK);
    const int32_t seen = attend_first(&a, s.run->least), first = nth * P::KEYS + b * BLOCK;
    const int32_t at = first < seen ? seen : first <= s.run->last ? first : s.run->last;
    return kv_block(&a.rows, s.run->slot, at / BLOCK);
}

/* The nth KEYS keys or their values, with zeros where load_keys of attend_flash.cu has them. */
template <typename P>
DEVICE void load_stage(typename P::C *stage, const struct attend_args &a,
                       const typename P::E *cache, const struct span &s, int32_t nth,
                       int32_t blocks)
{
    constexpr int BLOCK = BACKEND_BLOCK_TOKENS, PASS = GROUP / P::CHUNKS; /* keys at once */
    static_assert(PASS % 8 == 0, "pieces of a thread's keys lie in the same order");
    const int32_t thread = (int32_t)threadIdx.x % GROUP, chunk = thread % P::CHUNKS;
    const int32_t j = thread / P::CHUNKS, piece = chunk * P::VEC / PIECE;
    const int32_t seen = attend_first(&a, s.run->least) / BLOCK * BLOCK;
    const uint32_t most = (uint32_t)(s.run->last - seen), at = (uint32_t)(nth * P::KEYS + j - seen);
    const int64_t apart = kv_index(&a.kv, 1, 0, false) - kv_index(&a.kv, 0, 0, false);
    typename P::C *to = stage + place<P::KEYS>(j, piece);
    const auto from = [&](int32_t i) {
        const int64_t block = __shfl_sync(ALL_LANES, blocks, (j + i) / BLOCK);
        return cache + block * apart + (j + i) % BLOCK * P::DIM + chunk * P::VEC;
    };
#pragma unroll 4
    for (int32_t i = 0; i < P::KEYS; i += PASS)
        mma_copy(to + i * 64, from(i), at + (uint32_t)i <= most);
}

template <typename P>
DEVICE void feed_span(const struct memory<P> &m, const struct attend_args &a,
                      const typename P::E *cache, const struct span &s, struct turn &t)
{
    const int32_t begin = attend_first(&a, s.run->least) / P::KEYS, end = s.run->last / P::KEYS + 1;
    int32_t blocks = block_of_lane<P>(a, s, begin);
    for (int32_t nth = begin; nth < end; nth++) {
        const int32_t next = block_of_lane<P>(a, s, nth + 1); /* known when it is wanted */
#pragma unroll 1
        for (int values = 0; values < 2; values++) {
            uint64_t *full = &m.barriers->full[values][t.stage];
            barrier_wait(&m.barriers->empty[values][t.stage], t.parity ^ 1);
            load_stage<P>(stage_of(m, values, t.stage), a,
                          cache + kv_index(&a.kv, 0, s.kv_head, values), s, nth, blocks);
            barrier_arrive_copied(full);
        }
        blocks = next;
        t = after<P>(t);
    }
}

/* ---- who multiplies ---- */

template <typename P>
DEVICE void load_queries(typename P::C *query, const struct attend_args &a, const struct span &s)
{
    constexpr int PIECES = P::DIM / PIECE;
    const int32_t group = (int32_t)threadIdx.x / GROUP;
#pragma unroll 2
    for (int32_t n = (int32_t)threadIdx.x % GROUP; n < GROUP_ROWS * PIECES; n += GROUP) {
        const int32_t row = n / PIECES, piece = n % PIECES, r = group * GROUP_ROWS + row;
        pack<float, 4> x[2] = {};
        pack<uint32_t, 4> words;
        if (span_has(s, r)) {
            const int64_t from = attend_query(&a, s.tile + r / s.heads, s.first + r % s.heads);
            x[0] = get_elements<4>(a.qkv, from + PIECE * piece);
            x[1] = get_elements<4>(a.qkv, from + PIECE * piece + 4);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float *pair = x[i / 2].e + i % 2 * 2;
            words.e[i] = mma_pair(pair[0], pair[1], typename P::C());
        }
        *(pack<uint32_t, 4> *)(query + place<GROUP_ROWS>(row, piece)) = words;
    }
    wgmma_publish();
    group_sync(group, GROUP);
}

/* What a group has read, warp by warp. */
DEVICE void give_back(uint64_t *empty)
{
    __syncwarp();
    if (threadIdx.x % WARP == 0)
        barrier_arrive(empty);
}

DEVICE void wait_full(uint64_t *full, uint32_t parity)
{
    barrier_wait(full, parity);
    wgmma_publish(); /* what others have copied */
}

template <typename P>
DEVICE void begin_scores(struct rows_of_lane<P> &l, const typename P::C *query,
                         const typename P::C *keys)
{
    wgmma_fence();
#pragma unroll
    for (int e = 0; e < P::DIM; e += 16)
        wgmma_multiply(l.score[0], wgmma_along(query + e / 64 * GROUP_ROWS * 64 + e % 64),
                       wgmma_along(keys + e / 64 * P::KEYS * 64 + e % 64), e > 0, typename P::C());
    wgmma_group();
}

/* Weights are the scores, rounded: two 8 columns side by side are a factor of 16. */
template <typename P> struct weights {
    uint32_t of[P::KEYS / 16][4];
};

template <typename P>
DEVICE void begin_output(struct rows_of_lane<P> &l, const struct weights<P> &w,
                         const typename P::C *values)
{
    wgmma_fence();
#pragma unroll
    for (int j = 0; j < P::KEYS; j += 16)
        wgmma_multiply(l.out[0], w.of[j / 16], wgmma_across(values + j * 64, P::KEYS),
                       typename P::C());
    wgmma_group();
}

template <typename P>
DEVICE void round_weights(struct weights<P> &w, const struct rows_of_lane<P> &l)
{
#pragma unroll
    for (int j = 0; j < P::KEYS / 8; j += 2)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float *pair = l.score[0][j + i / 2] + i % 2 * 2;
            w.of[j / 2][i] = mma_pair(pair[0], pair[1], typename P::C());
        }
}

/* The scores of the nth keys become weights. */
template <typename P>
DEVICE void weigh_keys(struct rows_of_lane<P> &l, const struct attend_args &a, const struct span &s,
                       int32_t nth, float (&old)[2])
{
    const int32_t first = nth * P::KEYS;
    if (a.softcap > 0)
        cap_scores<P>(l, a);
    if (first + P::KEYS - 1 > s.run->least || first < attend_first(&a, s.run->last))
        mask<P>(l, a, s, first);
#pragma unroll
    for (int half = 0; half < 2; half++)
        old[half] = weigh<P>(l, 0, half, a.softcap > 0 ? 1 : a.scale);
}

/* The two groups begin their scores in turns, so that one weighs while the other multiplies. */
DEVICE void turn_wait(int group)
{
    group_sync(2 + group, 2 * GROUP);
}

DEVICE void turn_pass(int group)
{
    group_arrive(2 + 1 - group, 2 * GROUP);
}

template <typename P>
DEVICE void attend_span(const struct memory<P> &m, const struct attend_args &a,
                        const struct span &s, struct turn &t)
{
    const int32_t begin = attend_first(&a, s.run->least) / P::KEYS, end = s.run->last / P::KEYS + 1;
    const int group = (int)threadIdx.x / GROUP;
    typename P::C *query = m.query + group * GROUP_ROWS * P::DIM;
    struct rows_of_lane<P> l = {
    };
    struct weights<P> w;
    float old[2];
    l.max[0][0] = l.max[0][1] = -INFINITY;
    load_queries<P>(query, a, s);
    for (int32_t nth = begin; nth < end; nth++, t = after<P>(t)) {
        wait_full(&m.barriers->full[0][t.stage], t.parity);
        turn_wait(group);
        begin_scores<P>(l, query, stage_of(m, 0, t.stage));
        wgmma_wait<0>();
        wgmma_hold(l.score[0]);
        turn_pass(group);
        give_back(&m.barriers->empty[0][t.stage]);
        weigh_keys<P>(l, a, s, nth, old);
        round_weights<P>(w, l);
#pragma unroll
        for (int half = 0; half < 2; half++)
            shrink<P>(l, 0, half, old[half]);
        wait_full(&m.barriers->full[1][t.stage], t.parity);
        begin_output<P>(l, w, stage_of(m, 1, t.stage));
        wgmma_wait<0>();
        wgmma_hold(l.out[0]);
        give_back(&m.barriers->empty[1][t.stage]);
    }
    group_sync(group, GROUP); /* the queries are overwritten */
    write_rows<P>(l, a, s, a.softcap > 0 ? 1 : a.scale);
}

/* Block (`rows` rows, KV head). Those that see most begin first, so that none ends late. */
template <typename P>
__global__ void __launch_bounds__(P::THREADS, 1)
    attend_wgmma_kernel(struct attend_args a, const typename P::E *cache, int32_t rows)
{
    SHARED_DYNAMIC(unsigned char, bytes);
    __shared__ struct runs<P::ROWS> all;
    __shared__ struct barriers<P> barriers;
    const int32_t tile = (int32_t)(gridDim.x - 1 - blockIdx.x) * rows, most = P::ROWS / rows;
    const int32_t past = tile + rows < a.rows.count ? tile + rows : a.rows.count;
    const int32_t mine = tile + (int32_t)threadIdx.x;
    typename P::C *const begin = (typename P::C *)wgmma_align(bytes);
    const struct memory<P> m = {
        begin, begin + P::QUERY, &barriers
    };
    struct turn t = {0, 0};
    static_assert(P::ROWS <= P::THREADS, "a thread looks at each row");
    if (!__syncthreads_or(mine < past && attend_is_in_run(&a, mine)))
        return;
    if (threadIdx.x < 2 * P::STAGES) {
        barrier_init(barriers.full[0] + threadIdx.x, GROUP);
        barrier_init(barriers.empty[0] + threadIdx.x, P::GROUPS * GROUP / WARP);
    }
    find_runs(all, a, tile, past);
    if (threadIdx.x / GROUP == P::GROUPS) {
        registers_fewer<P::FEW>();
        walk_spans(all, tile, most, [&](const struct span &s) { feed_span<P>(m, a, cache, s, t); });
    } else {
        const int group = (int)threadIdx.x / GROUP;
        registers_more<P::MORE>();
        if (group == 1)
            turn_pass(group);
        walk_spans(all, tile, most, [&](const struct span &s) { attend_span<P>(m, a, s, t); });
        if (group == 0)
            turn_wait(group); /* the last one, which nobody has taken */
    }
}

template <typename P>
static bool launch(struct cuda_backend *c, const struct attend_args *a, const void *cache)
{
    const int32_t rows = flash_rows(a, P::ROWS);
    const dim3 grid(blocks_for((size_t)a->rows.count, (unsigned)rows), (unsigned)a->kv.heads);
    cuda_note(c, "attend",
              cudaFuncSetAttribute(attend_wgmma_kernel<P>,
                                   cudaFuncAttributeMaxDynamicSharedMemorySize, (int)P::BYTES));
    LAUNCH(c, attend_wgmma_kernel<P>, grid, P::THREADS, P::BYTES, *a, (const typename P::E *)cache,
           rows);
    return true;
}

template <typename E>
static bool launch_dim(struct cuda_backend *c, const struct attend_args *a, const void *cache)
{
    if (a->kv.dim == 64)
        return launch<plan<E, 64, 2, 128, 3>>(c, a, cache);
    return a->kv.dim == 128 && launch<plan<E, 128, 2, 128, 2>>(c, a, cache);
}

static bool is_hopper(const struct cuda_backend *c)
{
    int major = 0, minor = 0;
    return cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, c->device) ==
               cudaSuccess &&
           cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, c->device) ==
               cudaSuccess &&
           major == 9 && minor == 0;
}

bool attend_wgmma_run(struct cuda_backend *c, const struct attend_args *a, enum dtype dtype,
                      const void *cache)
{
    if (!is_hopper(c))
        return false;
    if (dtype == DTYPE_BF16)
        return launch_dim<bf16>(c, a, cache);
    return dtype == DTYPE_F16 && launch_dim<__half>(c, a, cache);
}
