/* DESIGN: runs of rows on Hopper, by products of four warps whose factors lie in shared memory
 * (wgmma.cuh). Tiles are those of attend_flash.cu, and so are the rules of rounding; each group of
 * four warps has 64 rows of one. A group more does nothing but load: what it has copied it tells by
 * a barrier, and by another it is told which stage it may fill again. While a group weighs its
 * scores, products run: its own of the weights before them, and the other's. They fall into step by
 * themselves: made to begin theirs in turns, a layer of a prompt of 8,192 took 1.27 ms on an H200
 * instead of 0.9. */
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
    static constexpr size_t BYTES = WGMMA_ALIGNED + (QUERY + STAGES * STAGE) * sizeof(C);
    static constexpr int VEC = 16 / (int)sizeof(E), CHUNKS = DIM / VEC; /* loads of a key */
    static constexpr int FEW = 56, MORE = 224;
    static_assert(GROUPS == 2 && FEW + 2 * MORE <= 65536 / THREADS / 8 * 8 * 3, "registers");
};

template <typename P> struct barriers {
    uint64_t full[P::STAGES], empty[P::STAGES];
};

/* A stage has keys or values, as they come: a span's first keys, then the nth and the values of
 * those before them, its last values. So they are multiplied, too. */
template <typename P> struct memory {
    typename P::C *query, *stages;
    struct barriers<P> *barriers;
};

template <typename P> DEVICE typename P::C *stage_of(const struct memory<P> &m, int32_t stage)
{
    return m.stages + stage * P::STAGE;
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

/* What a thread of those who load copies of a span. It is made once: who loads takes turns with the
 * others of its scheduler, whose instructions are what is scarce. Places are counted in units: the
 * keys, or the values, of a block's head. */
template <typename P> struct copying {
    static constexpr int BLOCK = BACKEND_BLOCK_TOKENS, LINE = P::DIM * (int)sizeof(typename P::E);
    static constexpr int UNIT = BLOCK * LINE; /* bytes */
    const unsigned char *from;                /* its first piece of keys in block 0 */
    int32_t to;                               /* that piece's element in a stage */
    uint32_t apart;                           /* units from block to block */
    int32_t key, seen;                        /* of that piece; from here on keys are there.. */
    uint32_t most;                            /* ..so many more */
};

template <typename P>
DEVICE struct copying<P> copying_of(const struct attend_args &a, const typename P::E *cache,
                                    const struct span &s) {
    constexpr int BLOCK = BACKEND_BLOCK_TOKENS;
    const int32_t thread = (int32_t)threadIdx.x % GROUP, chunk = thread % P::CHUNKS;
    const typename P::E *from = cache + kv_index(&a.kv, 0, s.kv_head, false);
    struct copying<P> c;
    c.key = thread / P::CHUNKS;
    c.from = (const unsigned char *)(from + c.key * P::DIM + chunk * P::VEC);
    c.to = place<P::KEYS>(c.key, chunk *P::VEC / PIECE);
    c.apart = (uint32_t)(a.kv.step / (BLOCK * P::DIM));
    c.seen = attend_first(&a, s.run->least) / BLOCK * BLOCK;
    c.most = (uint32_t)(s.run->last - c.seen);
    return c;
}

/* Lane b: where the bth 16 of the nth keys lie, or ones there are. */
template <typename P>
DEVICE uint32_t unit_of_lane(const struct attend_args &a, const struct span &s,
                             const struct copying<P> &c, int32_t nth)
{
    constexpr int BLOCK = BACKEND_BLOCK_TOKENS;
    const int32_t b = (int32_t)threadIdx.x % WARP % (P::KEYS / BLOCK);
    const int32_t seen = attend_first(&a, s.run->least), first = nth * P::KEYS + b * BLOCK;
    const int32_t at = first < seen ? seen : first <= s.run->last ? first : s.run->last;
    return (uint32_t)kv_block(&a.rows, s.run->slot, at / BLOCK) * c.apart;
}

/* ALL: they are there. */
template <typename P, bool ALL>
DEVICE void copy_stage(typename P::C *to, const unsigned char *from, const struct copying<P> &c,
                       uint32_t at, uint32_t units)
{
    constexpr int BLOCK = BACKEND_BLOCK_TOKENS, PASS = GROUP / P::CHUNKS; /* keys at once */
    static_assert(PASS % 8 == 0 && BLOCK % PASS == 0, "pieces lie in the same order; whole blocks");
#pragma unroll
    for (int b = 0; b < P::KEYS; b += BLOCK) {
        const uint32_t unit = __shfl_sync(ALL_LANES, units, b / BLOCK);
        const unsigned char *line = from + (uint64_t)unit * copying<P>::UNIT;
        mma_keep(line);
#pragma unroll
        for (int i = 0; i < BLOCK; i += PASS)
            mma_copy(to + (b + i) * 64, line + i * copying<P>::LINE,
                     ALL || at + (uint32_t)(b + i) <= c.most);
    }
}

/* The nth KEYS keys or their values, with zeros where load_keys of attend_flash.cu has them. */
template <typename P>
DEVICE void load_stage(const struct memory<P> &m, struct turn &t, const struct copying<P> &c,
                       int values, int32_t nth, uint32_t units)
{
    const int32_t first = nth * P::KEYS - c.seen;
    const unsigned char *from = c.from + values * copying<P>::UNIT;
    typename P::C *to = stage_of(m, t.stage) + c.to;
    barrier_wait(&m.barriers->empty[t.stage], t.parity ^ 1);
    if (first >= 0 && (uint32_t)first + P::KEYS - 1 <= c.most)
        copy_stage<P, true>(to, from, c, 0, units);
    else
        copy_stage<P, false>(to, from, c, (uint32_t)(first + c.key), units);
    barrier_arrive_copied(&m.barriers->full[t.stage]);
    t = after<P>(t);
}

template <typename P>
DEVICE void feed_span(const struct memory<P> &m, const struct attend_args &a,
                      const typename P::E *cache, const struct span &s, struct turn &t)
{
    const int32_t begin = attend_first(&a, s.run->least) / P::KEYS, end = s.run->last / P::KEYS + 1;
    const struct copying<P> c = copying_of<P>(a, cache, s);
    uint32_t before = 0, units = unit_of_lane(a, s, c, begin);
#pragma unroll 1
    for (int32_t nth = begin; nth <= end; nth++) {
        const uint32_t next = unit_of_lane(a, s, c, nth + 1); /* known when it is wanted */
        if (nth < end)
            load_stage(m, t, c, 0, nth, units);
        if (nth > begin)
            load_stage(m, t, c, 1, nth - 1, before);
        before = units;
        units = next;
    }
}

/* ---- who multiplies ---- */

/* 8 elements as they are multiplied. */
template <typename C, typename Q> DEVICE pack<uint32_t, 4> fetch_piece(const Q *from)
{
    const pack<Q, 4> x[2] = {*(const pack<Q, 4> *)from, *(const pack<Q, 4> *)(from + 4)};
    pack<uint32_t, 4> words;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const Q *pair = x[i / 2].e + i % 2 * 2;
        words.e[i] = mma_pair(to_float(pair[0]), to_float(pair[1]), C());
    }
    return words;
}

/* A row that the span does not have is like another: nobody takes what comes of it. So no branch is
 * in the way of fetching what several pieces are made of at once. */
template <typename P, typename Q>
DEVICE void load_queries(typename P::C *query, const struct attend_args &a, const Q *qkv,
                         const struct span &s)
{
    constexpr int PIECES = P::DIM / PIECE, COUNT = 4; /* at once */
    const int32_t group = (int32_t)threadIdx.x / GROUP, last = s.run->end - 1;
    static_assert(GROUP_ROWS * PIECES % (COUNT * GROUP) == 0, "all threads have as many");
#pragma unroll 1
    for (int32_t n = (int32_t)threadIdx.x % GROUP; n < GROUP_ROWS * PIECES; n += COUNT * GROUP) {
        pack<uint32_t, 4> words[COUNT];
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            const int32_t r = group * GROUP_ROWS + (n + i * GROUP) / PIECES;
            const int32_t t = s.tile + r / s.heads, there = t < last ? t : last;
            const int64_t from = attend_query(&a, there < s.run->begin ? s.run->begin : there,
                                              s.first + r % s.heads);
            words[i] = fetch_piece<typename P::C>(qkv + from + n % PIECES * PIECE);
        }
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            *(pack<uint32_t, 4> *)(query + place<GROUP_ROWS>((n + i * GROUP) / PIECES,
                                                             n % PIECES)) = words[i];
    }
}

template <typename P>
DEVICE void load_queries(typename P::C *query, const struct attend_args &a, const struct span &s)
{
    static_assert(GROUP % (P::DIM / PIECE) == 0, "a thread's pieces are of one column");
    WITH_TYPE(a.qkv.dtype, load_queries<P>(query, a, (const E *)a.qkv.data, s));
    wgmma_publish();
    group_sync((int32_t)threadIdx.x / GROUP, GROUP);
}

/* What a group has read, warp by warp. */
template <typename P> DEVICE void give_back(const struct memory<P> &m, const struct turn &t)
{
    __syncwarp();
    if (threadIdx.x % WARP == 0)
        barrier_arrive(&m.barriers->empty[t.stage]);
}

template <typename P> DEVICE void wait_full(const struct memory<P> &m, const struct turn &t)
{
    barrier_wait(&m.barriers->full[t.stage], t.parity);
}

template <typename P>
DEVICE void begin_scores(struct rows_of_lane<P> &l, wgmma_place query, const typename P::C *stage)
{
    const wgmma_place keys = wgmma_along(stage);
    wgmma_fence();
#pragma unroll
    for (int e = 0; e < P::DIM; e += 16)
        wgmma_multiply(l.score[0], wgmma_further(query, (e / 64 * GROUP_ROWS * 64 + e % 64) * 2),
                       wgmma_further(keys, (e / 64 * P::KEYS * 64 + e % 64) * 2), e > 0,
                       typename P::C());
    wgmma_group();
}

/* Weights are the scores, rounded: two 8 columns side by side are a factor of 16. */
template <typename P> struct weights {
    uint32_t of[P::KEYS / 16][4];
};

template <typename P>
DEVICE void begin_output(struct rows_of_lane<P> &l, const struct weights<P> &w,
                         const typename P::C *stage)
{
    const wgmma_place values = wgmma_across(stage, P::KEYS);
    wgmma_fence();
#pragma unroll
    for (int j = 0; j < P::KEYS; j += 16)
        wgmma_multiply(l.out[0], w.of[j / 16], wgmma_further(values, j * 64 * 2), typename P::C());
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

/* The first scores of a span: there are no weights yet whose products run beside. */
template <typename P>
DEVICE void attend_first_keys(const struct memory<P> &m, const struct attend_args &a,
                              const struct span &s, struct rows_of_lane<P> &l, struct weights<P> &w,
                              wgmma_place query, struct turn &t)
{
    float old[2]; /* nothing is summed that would shrink */
    wait_full(m, t);
    wgmma_publish(); /* what others have copied */
    begin_scores<P>(l, query, stage_of(m, t.stage));
    wgmma_wait<0>();
    wgmma_hold(l.score[0]);
    give_back(m, t);
    weigh_keys<P>(l, a, s, attend_first(&a, s.run->least) / P::KEYS, old);
    round_weights<P>(w, l);
    t = after<P>(t);
}

/* The nth scores, and the products of the weights before them, which are in `w`. */
template <typename P>
DEVICE void attend_keys(const struct memory<P> &m, const struct attend_args &a,
                        const struct span &s, struct rows_of_lane<P> &l, struct weights<P> &w,
                        wgmma_place query, struct turn &t, int32_t nth)
{
    const struct turn values = after<P>(t);
    float old[2];
    wait_full(m, t);
    wait_full(m, values);
    wgmma_publish();
    begin_scores<P>(l, query, stage_of(m, t.stage));
    begin_output<P>(l, w, stage_of(m, values.stage));
    wgmma_wait<1>();
    wgmma_hold(l.score[0]);
    give_back(m, t);
    weigh_keys<P>(l, a, s, nth, old);
    wgmma_hold(l.score[0]);
    wgmma_after(l.sum[0]);
    wgmma_wait<0>();
    wgmma_hold(l.out[0]);
    give_back(m, values);
    round_weights<P>(w, l);
#pragma unroll
    for (int half = 0; half < 2; half++)
        shrink<P>(l, 0, half, old[half]);
    t = after<P>(values);
}

template <typename P>
DEVICE void attend_span(const struct memory<P> &m, const struct attend_args &a,
                        const struct span &s, struct turn &t)
{
    const int32_t begin = attend_first(&a, s.run->least) / P::KEYS, end = s.run->last / P::KEYS + 1;
    const int group = (int)threadIdx.x / GROUP;
    typename P::C *rows = m.query + group * GROUP_ROWS * P::DIM;
    const wgmma_place query = wgmma_along(rows);
    struct rows_of_lane<P> l = {
    };
    struct weights<P> w;
    l.max[0][0] = l.max[0][1] = -INFINITY;
    load_queries<P>(rows, a, s);
    attend_first_keys<P>(m, a, s, l, w, query, t);
    for (int32_t nth = begin + 1; nth < end; nth++)
        attend_keys<P>(m, a, s, l, w, query, t, nth);
    wait_full(m, t);
    wgmma_publish();
    begin_output<P>(l, w, stage_of(m, t.stage));
    wgmma_wait<0>();
    wgmma_hold(l.out[0]);
    give_back(m, t);
    t = after<P>(t);
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
    if (threadIdx.x < P::STAGES) {
        barrier_init(barriers.full + threadIdx.x, GROUP);
        barrier_init(barriers.empty + threadIdx.x, P::GROUPS * GROUP / WARP);
    }
    find_runs(all, a, tile, past);
    if (threadIdx.x / GROUP == P::GROUPS) {
        registers_fewer<P::FEW>();
        walk_spans(all, tile, most, [&](const struct span &s) { feed_span<P>(m, a, cache, s, t); });
    } else {
        registers_more<P::MORE>();
        walk_spans(all, tile, most, [&](const struct span &s) { attend_span<P>(m, a, s, t); });
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
        return launch<plan<E, 64, 2, 128, 6>>(c, a, cache);
    return a->kv.dim == 128 && launch<plan<E, 128, 2, 128, 5>>(c, a, cache);
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
    const bool whole = a->kv.step % (BACKEND_BLOCK_TOKENS * a->kv.dim) == 0; /* units */
    if (!is_hopper(c) || !whole)
        return false;
    if (dtype == DTYPE_BF16)
        return launch_dim<bf16>(c, a, cache);
    return dtype == DTYPE_F16 && launch_dim<__half>(c, a, cache);
}
