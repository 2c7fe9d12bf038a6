/* What the kernels of runs of rows share (attend_flash.cu, attend_wgmma.cu): which rows and query
 * heads a tile has, and what a lane does with its scores. P: the kernel's plan. */
#ifndef TESSERA_KERNELS_CUDA_ATTEND_FLASH_CUH
#define TESSERA_KERNELS_CUDA_ATTEND_FLASH_CUH

#include "kernels/cuda/attend.cuh"

#include "kernels/cuda/mma.cuh"

#define QUAD 4 /* lanes that have a row of a 16 x 8 result */

/* Rows [begin, end) of the step, neighbours of one slot. */
struct run {
    int32_t begin, end, slot, least, last; /* first and last position */
};

/* The runs of a block's rows, and the query heads of its KV head. In shared memory: registers are
 * scarce. */
template <int ROWS> struct runs {
    struct run run[ROWS];
    int32_t count;
    struct attend_heads heads;
};

/* What the block works on: a run's rows, for some query heads of a KV head. Row r of the tile is
 * query head first + r % heads of row tile + r / heads. */
struct span {
    const struct run *run;
    int32_t tile, first, heads, kv_head;
};

HOST_DEVICE bool span_has(const struct span &s, int32_t r)
{
    const int32_t t = s.tile + r / s.heads;
    return t >= s.run->begin && t < s.run->end;
}

/* The rows from `begin` on that are of one slot. By a warp, which looks at 32 at once. */
DEVICE struct run run_of(const struct rows &rows, int32_t begin, int32_t past)
{
    struct run r = {begin, past, rows.slot[begin], INT32_MAX, 0};
    for (int32_t first = begin; first < r.end; first += WARP) {
        const int32_t t = first + (int32_t)threadIdx.x % WARP;
        const int32_t position = t < past ? rows.position[t] : 0;
        const unsigned others = ~__ballot_sync(ALL_LANES, t < past && rows.slot[t] == r.slot);
        const int32_t end = first + __popc((others & (0 - others)) - 1); /* of zeros at its end */
        if (others != 0)
            r.end = end;
        if (t < end) {
            r.least = position < r.least ? position : r.least;
            r.last = position > r.last ? position : r.last;
        }
    }
    r.least = -reduce_lanes<WARP>(-r.least, maximum());
    r.last = reduce_lanes<WARP>(r.last, maximum());
    return r;
}

/* The block's threads call; they find the same runs. */
template <int ROWS>
DEVICE void find_runs(struct runs<ROWS> &all, const struct attend_args &a, int32_t tile,
                      int32_t past)
{
    if (threadIdx.x < WARP) {
        int32_t count = 0;
        const struct attend_heads heads = attend_heads_at_once(a, (int32_t)blockIdx.y);
        for (int32_t begin = tile; begin < past;) {
            const struct run r = run_of(a.rows, begin, past);
            if (attend_is_in_run(&a, begin) && threadIdx.x == 0)
                all.run[count] = r;
            count += attend_is_in_run(&a, begin);
            begin = r.end;
        }
        if (threadIdx.x == 0) {
            all.count = count;
            all.heads = heads;
        }
    }
    __syncthreads();
}

/* Each run with at most so many heads is worked on. */
template <int ROWS, typename Work>
DEVICE void walk_spans(const struct runs<ROWS> &all, int32_t tile, int32_t most, Work work)
{
    struct span s = {all.run, tile};
    s.kv_head = (int32_t)blockIdx.y;
    for (; s.run != all.run + all.count; s.run++)
        for (s.first = all.heads.first; s.first < all.heads.past; s.first += s.heads) {
            const int32_t left = all.heads.past - s.first;
            s.heads = left < most ? left : most;
            work(s);
        }
}

/* Scores, weights and output of a lane: rows lane / 4 and that + 8 of each tile of its warp. */
template <typename P> struct rows_of_lane {
    float score[P::TILES][P::KEYS / 8][4], out[P::TILES][P::DIM / 8][4];
    float max[P::TILES][2], sum[P::TILES][2]; /* sum: of the lane's own keys */
};

/* Row of the tile that a lane's results 0 and 1 (half 0), or 2 and 3 (half 1), belong to. */
template <typename P> DEVICE int32_t row_of(int tile, int half)
{
    const int32_t warp = (int32_t)threadIdx.x / WARP, lane = (int32_t)threadIdx.x % WARP;
    return (warp * P::TILES + tile) * 16 + half * 8 + lane / QUAD;
}

/* 16 bytes of keys or values: as they are, or widened on the way. */
template <typename C> DEVICE void load_chunk(C *to, const C *from, bool there)
{
    mma_copy(to, from, there);
}

/* 16 codes as bf16. */
DEVICE void widen_codes(pack<uint32_t, 4> (&words)[2], const pack<e4m3, 16> &codes)
{
    uint32_t code[4], nan = 0;
    memcpy(code, &codes, sizeof code);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        nan |= (code[i] & 0x7f7f7f7fu) + 0x01010101u;
        words[i / 2].e[i % 2 * 2] = f8_pair(__byte_perm(code[i], 0, 0x1404));
        words[i / 2].e[i % 2 * 2 + 1] = f8_pair(__byte_perm(code[i], 0, 0x3424));
    }
    if ((nan & 0x80808080u) == 0)
        return;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float first = to_float(codes.e[2 * i]), second = to_float(codes.e[2 * i + 1]);
        words[i / 4].e[i % 4] = mma_pair(first, second, bf16());
    }
}

DEVICE pack<e4m3, 16> fetch_codes(const e4m3 *from, bool there)
{
    pack<e4m3, 16> codes = {};
    if (there)
        codes = *(const pack<e4m3, 16> *)from;
    return codes;
}

DEVICE void store_codes(bf16 *to, bf16 *next, const pack<e4m3, 16> &codes)
{
    pack<uint32_t, 4> words[2];
    widen_codes(words, codes);
    *(pack<uint32_t, 4> *)to = words[0];
    *(pack<uint32_t, 4> *)next = words[1];
}

DEVICE void load_chunk(bf16 *to, const e4m3 *from, bool there)
{
    store_codes(to, to + 8, fetch_codes(from, there));
}

/* Keys from first_key on that a row does not see yet, or not any more, score -inf. */
template <typename P>
DEVICE void mask(struct rows_of_lane<P> &l, const struct attend_args &a, const struct span &s,
                 int32_t first_key)
{
#pragma unroll
    for (int t = 0; t < P::TILES; t++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int32_t r = row_of<P>(t, half), mine = (int32_t)threadIdx.x % QUAD * 2;
            const int32_t visible = span_has(s, r) ? a.rows.position[s.tile + r / s.heads] : 0;
            const int32_t seen = attend_first(&a, visible);
#pragma unroll
            for (int n = 0; n < P::KEYS / 8; n++)
#pragma unroll
                for (int i = 0; i < 2; i++)
                    if (first_key + mine + n * 8 + i > visible ||
                        first_key + mine + n * 8 + i < seen)
                        l.score[t][n][2 * half + i] = -INFINITY;
        }
}

/* attend_capped, without branches. */
template <typename P> DEVICE void cap_scores(struct rows_of_lane<P> &l, const struct attend_args &a)
{
    const float by = a.scale * (2 * ATTEND_LOG2E / a.softcap);
#pragma unroll
    for (int t = 0; t < P::TILES; t++)
#pragma unroll
        for (int n = 0; n < P::KEYS / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float x = l.score[t][n][i] * by;
                const float e = mma_exp2(126 < x ? 126 : x); /* a NaN stays one */
                l.score[t][n][i] = fmaf(-2 * a.softcap, __fdividef(1, e + 1), a.softcap);
            }
}

/* Scores become weights. Returned: by how much what was summed before shrinks as the maximum grows.
 * A row that has seen no key yet has zeros, and no maximum to shrink by. */
template <typename P> DEVICE float weigh(struct rows_of_lane<P> &l, int t, int half, float scale)
{
    float top = l.max[t][half], add = 0;
#pragma unroll
    for (int n = 0; n < P::KEYS / 8; n++)
        top = fmaxf(top, fmaxf(l.score[t][n][2 * half], l.score[t][n][2 * half + 1]));
    top = reduce_lanes<QUAD>(top, maximum());
    const bool any = top != -INFINITY;
    const float shift = any ? -top * scale : 0;
    const float old = any ? mma_exp2((l.max[t][half] - top) * scale) : 1;
#pragma unroll
    for (int n = 0; n < P::KEYS / 8; n++)
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; i++) {
            l.score[t][n][i] = mma_exp2(fmaf(l.score[t][n][i], scale, shift));
            add += l.score[t][n][i];
        }
    l.max[t][half] = top;
    l.sum[t][half] = fmaf(l.sum[t][half], old, add);
    return old;
}

template <typename P> DEVICE void shrink(struct rows_of_lane<P> &l, int t, int half, float old)
{
    if (!__any_sync(ALL_LANES, old != 1)) /* no maximum of the warp's has grown, as most times */
        return;
#pragma unroll
    for (int n = 0; n < P::DIM / 8; n++)
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; i++)
            l.out[t][n][i] *= old;
}

template <typename P, typename E>
DEVICE void write_row(E *to, const struct rows_of_lane<P> &l, int t, int half, float share)
{
#pragma unroll
    for (int n = 0; n < P::DIM / 8; n++) {
        const float *pair = l.out[t][n] + 2 * half;
        put_rounded<E, 2>(to + n * 8, {{pair[0] * share, pair[1] * share}});
    }
}

template <typename P>
DEVICE void write_rows(struct rows_of_lane<P> &l, const struct attend_args &a, const struct span &s,
                       float scale)
{
#pragma unroll
    for (int t = 0; t < P::TILES; t++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float sum = reduce_lanes<QUAD>(l.sum[t][half], plus());
            const int32_t r = row_of<P>(t, half), head = s.first + r % s.heads;
            if (!span_has(s, r))
                continue;
            const float share = 1 / attend_sum(a, head, sum, l.max[t][half] * scale);
            const int64_t to = attend_out(&a, s.tile + r / s.heads, head) + threadIdx.x % QUAD * 2;
            WITH_TYPE(a.out.dtype, write_row<P>((E *)a.out.data + to, l, t, half, share));
        }
}

/* So many rows of a step that with the query heads of a usual KV head they fill a tile. */
static inline int32_t flash_rows(const struct attend_args *a, int32_t tile)
{
    const int32_t group = (a->heads + a->kv.heads - 1) / a->kv.heads;
    return group < tile ? tile / group : 1;
}

#endif
