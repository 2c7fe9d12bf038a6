/* DESIGN: runs of any head size and type. One block per (32 rows, query head, 128 columns), keys of
 * one cache block at a time through shared memory, in fp32. Of the largest heads a block has 16
 * rows, because the smallest devices (86, 89, 120) give it 99 KiB. */
#include "kernels/cuda/attend.cuh"

#define MANY_ROWS 32 /* of a tile */
#define FEW_ROWS 16
#define FEW_BEYOND 384 /* elements of a head */
#define KEYS BACKEND_BLOCK_TOKENS

/* Keys of a tile: four threads share a row of queries, thread c of them takes keys and output
 * elements c, c + 4, ... of the SPAN columns that are the block's. Those of bigger heads have a
 * block each, which computes the scores again: that costs less than sums that leave registers. */
#define QUAD 4
#define SPAN 128
#define SUMS (SPAN / QUAD) /* of a thread */
#define CHUNK 8            /* sums that are guarded together, QUAD * CHUNK columns */

struct tile {
    float *q, *k, *v, *weight; /* shared: [rows][pitch], [16][pitch] twice, [rows][17] */
    int32_t pitch;             /* odd, so that rows lie in different banks; whole chunks fit */
};

HOST_DEVICE int32_t tile_pitch(int32_t dim)
{
    return (dim + QUAD * CHUNK - 1) / (QUAD * CHUNK) * (QUAD * CHUNK) | 1;
}

static size_t tile_bytes(int32_t rows, int32_t dim)
{
    return ((size_t)(rows + 2 * KEYS) * (size_t)tile_pitch(dim) + (size_t)rows * (KEYS + 1)) *
           sizeof(float);
}

DEVICE struct tile tile_over(float *memory, int32_t rows, int32_t dim)
{
    struct tile s;
    s.pitch = tile_pitch(dim);
    s.q = memory;
    s.k = s.q + rows * s.pitch;
    s.v = s.k + KEYS * s.pitch;
    s.weight = s.v + KEYS * s.pitch;
    return s;
}

/* Keys and values of one cache block; zeros beyond `last`, where nothing was ever written. */
template <typename E>
DEVICE void load_keys(const struct tile &s, const struct attend_args &a, const E *cache,
                      int32_t slot, int32_t kv_head, int32_t nth, int32_t last)
{
    const int32_t dim = a.kv.dim;
    const E *k = cache + kv_index(&a.kv, kv_block(&a.rows, slot, nth), kv_head, false);
    const E *v = k + KEYS * dim;
    for (int32_t n = (int32_t)threadIdx.x; n < KEYS * dim; n += (int32_t)blockDim.x) {
        const int32_t j = n / dim, e = n % dim;
        const bool there = nth * KEYS + j <= last;
        s.k[j * s.pitch + e] = there ? to_float(k[n]) : 0.0f;
        s.v[j * s.pitch + e] = there ? to_float(v[n]) : 0.0f;
    }
}

/* What a row of queries sees: keys seen .. visible (-1: none). */
struct sight {
    int32_t seen, visible;
};

/* One cache block for one row of queries; sums of columns from `first` on. */
DEVICE void take_keys(const struct attend_args &a, const struct tile &s, float (&out)[SUMS],
                      float *max, float *sum, int32_t r, int32_t c, int32_t first_key,
                      struct sight sight, int32_t dim, int32_t first)
{
    float score[KEYS / QUAD], top = *max, add = 0;
#pragma unroll
    for (int i = 0; i < KEYS / QUAD; i++) {
        const int32_t j = c + QUAD * i;
        float dot = 0;
        for (int32_t e = 0; e < dim; e++)
            dot = fmaf(s.q[r * s.pitch + e], s.k[j * s.pitch + e], dot);
        if (a.softcap > 0)
            dot = attend_capped(a, dot);
        const int32_t key = first_key + j;
        score[i] = key >= sight.seen && key <= sight.visible ? dot : -INFINITY;
        top = fmaxf(top, score[i]);
    }
    top = reduce_lanes<QUAD>(top, maximum());
    const bool any = top != -INFINITY; /* else nothing is visible yet: weights are zero */
#pragma unroll
    for (int i = 0; i < KEYS / QUAD; i++) {
        const float weight = any ? exp2f(score[i] - top) : 0;
        s.weight[r * (KEYS + 1) + c + QUAD * i] = weight;
        add += weight;
    }
    add = reduce_lanes<QUAD>(add, plus());
    const float old = any ? exp2f(*max - top) : 1;
    *max = top;
    *sum = fmaf(*sum, old, add);
    __syncwarp(); /* the four threads of a row are of one warp */
#pragma unroll
    for (int i = 0; i < SUMS; i++)
        out[i] *= old;
    for (int32_t j = 0; j < KEYS; j++) {
        const float weight = s.weight[r * (KEYS + 1) + j], *v = s.v + j * s.pitch + first + c;
#pragma unroll
        for (int i = 0; i < SUMS; i++) /* columns beyond dim are never written out */
            if (first + i / CHUNK * CHUNK * QUAD < dim)
                out[i] = fmaf(weight, v[QUAD * i], out[i]);
    }
}

/* Rows [begin, end) of the tile, all of one slot. */
template <typename E>
DEVICE void attend_span(const struct tile &s, const struct attend_args &a, const E *cache,
                        int32_t tile, int32_t begin, int32_t end, int32_t head, int32_t first)
{
    const int32_t r = (int32_t)threadIdx.x / QUAD, c = (int32_t)threadIdx.x % QUAD;
    const int32_t dim = a.kv.dim, slot = a.rows.slot[tile + begin];
    const bool mine = r >= begin && r < end;
    const int32_t visible = mine ? a.rows.position[tile + r] : -1;
    const struct sight sight = {attend_first(&a, visible), visible};
    float out[SUMS] = {}, max = -INFINITY, sum = 0;
    int32_t least = INT32_MAX, last = 0;
    for (int32_t t = begin; t < end; t++) {
        least = a.rows.position[tile + t] < least ? a.rows.position[tile + t] : least;
        last = a.rows.position[tile + t] > last ? a.rows.position[tile + t] : last;
    }
    for (int32_t nth = attend_first(&a, least) / KEYS; nth <= last / KEYS; nth++) {
        __syncthreads(); /* the block before has been used */
        load_keys(s, a, cache, slot, a.kv_of[head], nth, last);
        __syncthreads();
        take_keys(a, s, out, &max, &sum, r, c, nth * KEYS, sight, dim, first);
    }
    sum = attend_sum(a, head, sum, max);
#pragma unroll
    for (int i = 0; i < SUMS; i++)
        if (mine && first + c + QUAD * i < dim)
            put_element(a.out, attend_out(&a, tile + r, head) + first + c + QUAD * i, out[i] / sum);
}

template <typename E, int ROWS>
__global__ void __launch_bounds__(ROWS *QUAD)
    attend_tile_kernel(struct attend_args a, const E *cache)
{
    SHARED_DYNAMIC(float, memory);
    const int32_t tile = (int32_t)blockIdx.x * ROWS, head = (int32_t)blockIdx.y;
    const int32_t dim = a.kv.dim, first = (int32_t)blockIdx.z * SPAN;
    const int32_t count = a.rows.count - tile < ROWS ? a.rows.count - tile : ROWS;
    const struct tile s = tile_over(memory, ROWS, dim);
    for (int32_t n = (int32_t)threadIdx.x; n < ROWS * dim; n += ROWS * QUAD) {
        const int32_t r = n / dim, e = n % dim;
        const float q =
            r < count ? get_elements<1>(a.qkv, attend_query(&a, tile + r, head) + e).e[0] : 0;
        s.q[r * s.pitch + e] = q * a.scale;
    }
    for (int32_t begin = 0, end; begin < count; begin = end) {
        end = attend_run_end(&a.rows, tile + begin, tile + count) - tile;
        if (attend_is_in_run(&a, tile + begin))
            attend_span<E>(s, a, cache, tile, begin, end, head, first);
    }
}

template <typename E, int ROWS>
static void launch_rows(struct cuda_backend *c, const struct attend_args &a, const void *cache)
{
    void (*const kernel)(struct attend_args, const E *) = attend_tile_kernel<E, ROWS>;
    const dim3 grid(blocks_for((size_t)a.rows.count, ROWS), (unsigned)a.heads,
                    blocks_for((size_t)a.kv.dim, SPAN));
    const size_t shared = tile_bytes(ROWS, a.kv.dim);
    if (shared > 48 << 10)
        cuda_note(
            c, "attend",
            cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared));
    LAUNCH(c, kernel, grid, ROWS * QUAD, shared, a, (const E *)cache);
}

template <typename E>
static void launch_tile(struct cuda_backend *c, const struct attend_args &a, const void *cache)
{
    if (a.kv.dim > FEW_BEYOND)
        launch_rows<E, FEW_ROWS>(c, a, cache);
    else
        launch_rows<E, MANY_ROWS>(c, a, cache);
}

void attend_tile_run(struct cuda_backend *c, const struct attend_args *a, enum dtype dtype,
                     const void *cache)
{
    WITH_KV_TYPE(dtype, launch_tile<E>(c, *a, cache));
}
