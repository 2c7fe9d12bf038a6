/* DESIGN: these ops do nothing but move bytes, so a thread takes four elements at a time where rows
 * allow it, and all that it reads is under way before it uses any: of few rows the latency of one
 * read is what takes time. Sums over a row are of four neighbours, of the 128 of a warp, then of
 * those, in the same order however many threads a row has; so its bits do not depend on the other
 * rows. */
#include "kernels/cuda/rows.cuh"

#include "kernels/cuda/entry.h"
#include "kernels/numerics.h"

#define NORM_THREADS 1024

/* ---- embed, select ---- */

/* Rows of w begin at, and consist of, whole vectors. */
template <typename E, bool ALIGNED>
__global__ void embed_kernel(float *y, const int32_t *ids, const E *w, int32_t first, int32_t out,
                             int32_t in, int64_t pitch, float scale)
{
    const int32_t k = part_column();
    pack<E, FOUR> v = {};
    launch_release();
    launch_wait();
    const int64_t row = (int64_t)ids[blockIdx.x] - first;
    if (k >= in)
        return;
    if (row >= 0 && row < out)
        v = *(const pack<E, FOUR> *)(w + row * pitch + k);
    four wide;
#pragma unroll
    for (int i = 0; i < FOUR; i++)
        wide.e[i] = to_float(v.e[i]) * scale;
    store_four<ALIGNED>(y + (int64_t)blockIdx.x * in, k, in, wide);
}

template <typename E>
static void embed_values(struct cuda_backend *c, struct view y, const int32_t *ids,
                         const struct weight *w, int32_t first, float scale)
{
    const struct weight_spec *s = &w->spec;
    const int64_t pitch = (int64_t)cuda_pitch(s->in, s->dtype);
    const E *values = (const E *)w->storage;
    float *to = (float *)y.data;
    const dim3 grid = parts_of(y.rows, s->in);
    if (are_fours(s->in, to))
        LAUNCH_AHEAD(c, (embed_kernel<E, true>), grid, THREADS, 0, to, ids, values, first, s->out,
                     s->in, pitch, scale);
    else
        LAUNCH_AHEAD(c, (embed_kernel<E, false>), grid, THREADS, 0, to, ids, values, first, s->out,
                     s->in, pitch, scale);
}

/* Where rows have codes and scales. */
struct coded {
    const unsigned char *w;
    int64_t row_bytes, scales_at, scales_pitch; /* the first row's scales, and the next's */
    int32_t scale_skip;
};

__global__ void embed_int8_kernel(float *y, const int32_t *ids, struct coded from, int32_t first,
                                  int32_t out, int32_t in, float scale)
{
    const int64_t row = (int64_t)ids[blockIdx.x] - first;
    const bool mine = row >= 0 && row < out;
    const int64_t at = mine ? row : 0;
    const unsigned char *codes = from.w + at * from.row_bytes;
    const bf16 *scales = (const bf16 *)(from.w + from.scales_at + at * from.scales_pitch);
    for (int32_t k = (int32_t)threadIdx.x; k < in; k += (int32_t)blockDim.x) {
        const int32_t group = (from.scale_skip + k) / BACKEND_GROUP;
        const float value = (float)(signed char)codes[k] * to_float(scales[group]);
        y[(int64_t)blockIdx.x * in + k] = mine ? value * scale : 0.0f;
    }
}

/* An embedding that is the head, too, may have 8 bits, which are made here. */
static void embed_int8(struct cuda_backend *c, struct view y, const int32_t *ids,
                       const struct weight *w, int32_t first, float scale)
{
    const struct weight_spec *s = &w->spec;
    const struct cuda_layout l = cuda_layout_of(s);
    const struct coded from = {w->storage, (int64_t)l.pitch, (int64_t)l.groups_at,
                               (int64_t)l.groups_pitch, s->scale_skip};
    CHECK(s->dtype == DTYPE_I8 && s->scale_cols == BACKEND_GROUP && !s->scales_f32);
    LAUNCH(c, embed_int8_kernel, (unsigned)y.rows, THREADS, 0, (float *)y.data, ids, from, first,
           s->out, s->in, scale);
}

void rowops_embed(struct backend *b, struct view y, const int32_t *ids, const struct weight *w,
                  int32_t first, float scale)
{
    struct cuda_backend *c = cuda_of(b);
    if (y.rows == 0 || y.cols == 0)
        return;
    if (dtype_is_int(w->spec.dtype)) {
        embed_int8(c, y, ids, w, first, scale);
        return;
    }
    CHECK(dtype_is_compute(w->spec.dtype)); /* no layout has it in fp8 */
    WITH_TYPE(w->spec.dtype, embed_values<E>(c, y, ids, w, first, scale));
}

template <bool ALIGNED>
__global__ void select_kernel(float *y, const float *x, const int32_t *index, int32_t cols)
{
    const int32_t i = part_column();
    launch_release();
    launch_wait();
    const four v = load_four<ALIGNED>(x + (int64_t)index[blockIdx.x] * cols, i, cols);
    store_four<ALIGNED>(y + (int64_t)blockIdx.x * cols, i, cols, v);
}

void rowops_select(struct backend *b, struct view y, struct cview x, const int32_t *index)
{
    float *to = (float *)y.data;
    const float *from = (const float *)x.data;
    const dim3 grid = parts_of(y.rows, y.cols);
    if (y.rows == 0 || y.cols == 0)
        return;
    if (are_fours(y.cols, to, from))
        LAUNCH_AHEAD(cuda_of(b), select_kernel<true>, grid, THREADS, 0, to, from, index, y.cols);
    else
        LAUNCH_AHEAD(cuda_of(b), select_kernel<false>, grid, THREADS, 0, to, from, index, y.cols);
}

#define COPIES 2 /* fours of a thread */

/* A block copies a part of a row: rows may be weights on the move, which are long. */
template <bool ALIGNED>
__global__ void copy_kernel(float *dst, int64_t dst_stride, const float *src, int64_t src_stride,
                            int32_t cols, int32_t parts)
{
    const int64_t row = blockIdx.x / (unsigned)parts;
    const int32_t part = (int32_t)(blockIdx.x % (unsigned)parts);
    const int32_t first = part * COPIES * PART + (int32_t)threadIdx.x * FOUR;
    four v[COPIES] = {}; /* loads under way together */
    launch_release();
    launch_wait();
#pragma unroll
    for (int k = 0; k < COPIES; k++)
        if (src != nullptr)
            v[k] = load_four<ALIGNED>(src + row * src_stride, first + k * PART, cols);
#pragma unroll
    for (int k = 0; k < COPIES; k++)
        store_four<ALIGNED>(dst + row * dst_stride, first + k * PART, cols, v[k]);
}

void rowops_copy(struct backend *b, float *dst, size_t dst_stride, const float *src,
                 size_t src_stride, int32_t rows, int32_t cols)
{
    if (rows <= 0 || cols <= 0)
        return;
    const int32_t parts = (cols - 1) / (COPIES * PART) + 1;
    const unsigned blocks = (unsigned)rows * (unsigned)parts;
    if (are_fours((int64_t)(dst_stride | src_stride) | cols, dst, src))
        LAUNCH_AHEAD(cuda_of(b), copy_kernel<true>, blocks, THREADS, 0, dst, (int64_t)dst_stride,
                     src, (int64_t)src_stride, cols, parts);
    else
        LAUNCH_AHEAD(cuda_of(b), copy_kernel<false>, blocks, THREADS, 0, dst, (int64_t)dst_stride,
                     src, (int64_t)src_stride, cols, parts);
}

struct blocks {
    int32_t begin[ROWOPS_BLOCKS_MAX + 1]; /* columns */
};

__global__ void interleave_kernel(float *dst, const float *from, struct blocks b, int32_t total)
{
    const int32_t begin = b.begin[blockIdx.y], cols = b.begin[blockIdx.y + 1] - begin;
    const float *row = from + (int64_t)begin * gridDim.x + (int64_t)cols * blockIdx.x;
    for (int32_t i = (int32_t)threadIdx.x; i < cols; i += (int32_t)blockDim.x)
        dst[(int64_t)blockIdx.x * total + begin + i] = row[i];
}

void rowops_interleave(struct backend *b, float *dst, const float *blocks, int32_t rows,
                       const int32_t *cols, int32_t count)
{
    struct blocks all = {};
    CHECK(count <= ROWOPS_BLOCKS_MAX);
    for (int32_t i = 0; i < count; i++)
        all.begin[i + 1] = all.begin[i] + cols[i];
    LAUNCH(cuda_of(b), interleave_kernel, dim3((unsigned)rows, (unsigned)count), THREADS, 0, dst,
           blocks, all, all.begin[count]);
}

/* ---- biases ---- */

/* Block (row, part of it); without experts a row has one bias. */
struct biased {
    float *y;
    const float *x, *bias;
    const int32_t *expert;
    const float *share;
    int32_t chosen, cols;
};

__global__ void add_bias_kernel(struct biased a)
{
    const int64_t row = blockIdx.x;
    const int32_t i = (int32_t)(blockIdx.y * THREADS + threadIdx.x), each = a.cols / a.chosen;
    launch_release();
    launch_wait();
    if (i >= a.cols)
        return;
    const int64_t e = a.expert != nullptr ? a.expert[row * a.chosen + i / each] : 0;
    a.y[row * a.cols + i] = a.x[row * a.cols + i] + a.bias[e * each + i % each];
}

__global__ void expert_bias_sum_kernel(struct biased a)
{
    const int64_t row = blockIdx.x;
    const int32_t i = (int32_t)(blockIdx.y * THREADS + threadIdx.x);
    launch_release();
    launch_wait();
    if (i >= a.cols)
        return;
    float sum = a.x[row * a.cols + i];
    for (int64_t c = row * a.chosen; c < (row + 1) * a.chosen; c++)
        sum += a.share[c] * a.bias[(int64_t)a.expert[c] * a.cols + i];
    a.y[row * a.cols + i] = sum;
}

static dim3 bias_grid(struct view y)
{
    return dim3((unsigned)y.rows, blocks_for((size_t)y.cols, THREADS));
}

void rowops_add_bias(struct backend *b, struct view y, struct cview x, const float *bias)
{
    const struct biased a = {(float *)y.data, (const float *)x.data, bias, nullptr, nullptr, 1,
                             y.cols};
    if (y.rows > 0 && y.cols > 0)
        LAUNCH_AHEAD(cuda_of(b), add_bias_kernel, bias_grid(y), THREADS, 0, a);
}

void rowops_expert_bias(struct backend *b, struct view y, const float *bias,
                        const struct routing *r)
{
    float *data = (float *)y.data;
    const struct biased a = {data, data, bias, r->expert, nullptr, r->chosen, y.cols};
    if (y.rows > 0 && y.cols > 0)
        LAUNCH_AHEAD(cuda_of(b), add_bias_kernel, bias_grid(y), THREADS, 0, a);
}

void rowops_expert_bias_sum(struct backend *b, struct view y, struct cview x, const float *bias,
                            const struct routing *r)
{
    const struct biased a = {
        (float *)y.data, (const float *)x.data, bias, r->expert, r->share, r->chosen, y.cols};
    if (y.rows > 0 && y.cols > 0)
        LAUNCH_AHEAD(cuda_of(b), expert_bias_sum_kernel, bias_grid(y), THREADS, 0, a);
}

/* ---- norms ---- */

#define NORM_HELD 4 /* fours of a row that a thread keeps, where rows are many or long */
#ifndef NORM_FEW
#define NORM_FEW 264 /* rows that are not many: as many threads as a row has fours */
#endif

struct norm {
    struct elements y, delta; /* no data of delta: none */
    float *x;
    const float *gain;
    float eps;
    int32_t cols;
};

/* The sum of count sums, the same in every thread of a warp that calls; zeros at the end change
 * nothing. */
DEVICE float sum_warps(const float *of_warp, int32_t count)
{
    float sum = 0;
    for (int32_t i = (int32_t)threadIdx.x % WARP; i < count; i += WARP)
        sum += of_warp[i];
    return reduce_lanes<WARP>(sum, plus());
}

DEVICE float squares(four v)
{
    float sum = v.e[0] * v.e[0];
#pragma unroll
    for (int i = 1; i < FOUR; i++)
        sum = fmaf(v.e[i], v.e[i], sum);
    return sum;
}

DEVICE four add_fours(four a, four b)
{
#pragma unroll
    for (int i = 0; i < FOUR; i++)
        a.e[i] += b.e[i];
    return a;
}

/* Elements [i, i + 4) of y's row that begins at `row`. */
template <bool ALIGNED>
DEVICE void store_normed(const struct norm &a, int64_t row, int32_t i, four v, float scale,
                         four gain)
{
#pragma unroll
    for (int k = 0; k < FOUR; k++)
        v.e[k] = v.e[k] * scale * gain.e[k];
    put_row<ALIGNED>(a.y, row, i, a.cols, v);
}

/* y may be x or delta, of one type: each thread reads an element before it writes it, and no
 * other's. A thread keeps the first N fours that it has; of rows longer than that the rest comes
 * after, with its squares in one sum of the warp. */
template <int N, bool ALIGNED>
__global__ void __launch_bounds__(NORM_THREADS) rmsnorm_kernel(struct norm a)
{
    __shared__ float of_warp[(N + 1) * WARP];
    const int64_t row = (int64_t)blockIdx.x * a.cols;
    const int32_t step = (int32_t)blockDim.x * FOUR, warps = (int32_t)blockDim.x / WARP;
    const int32_t first = (int32_t)threadIdx.x * FOUR, warp = (int32_t)threadIdx.x / WARP;
    constexpr bool ALL = N == 1 && ALIGNED; /* it is not used for longer rows */
    const bool longer = !ALL && N * step < a.cols;
    const int32_t rest = longer ? first + N * step : a.cols;
    four v[N], d[N], g = {};
    if (N == 1) /* it is no kernel's result; of many rows it comes out of the cache */
        g = load_four<ALIGNED>(a.gain, first, a.cols);
    launch_release();
    launch_wait();
#pragma unroll
    for (int k = 0; k < N; k++) {
        v[k] = load_four<ALIGNED>(a.x + row, first + k * step, a.cols);
        if (a.delta.data != nullptr)
            d[k] = get_four<ALIGNED>(a.delta, row, first + k * step, a.cols);
    }
#pragma unroll
    for (int k = 0; k < N; k++) {
        if (a.delta.data != nullptr) {
            v[k] = add_fours(v[k], d[k]);
            store_four<ALIGNED>(a.x + row, first + k * step, a.cols, v[k]);
        }
        const float sum = reduce_lanes<WARP>(squares(v[k]), plus());
        if (threadIdx.x % WARP == 0)
            of_warp[k * warps + warp] = sum;
    }
    float more = 0;
    for (int32_t i = rest; i < a.cols; i += step) {
        four w = load_four<ALIGNED>(a.x + row, i, a.cols);
        if (a.delta.data != nullptr) {
            w = add_fours(w, get_four<ALIGNED>(a.delta, row, i, a.cols));
            store_four<ALIGNED>(a.x + row, i, a.cols, w);
        }
        more += squares(w);
    }
    if (longer)
        more = reduce_lanes<WARP>(more, plus());
    if (longer && threadIdx.x % WARP == 0)
        of_warp[N * warps + warp] = more;
    __syncthreads();
    const float mean = sum_warps(of_warp, (N + longer) * warps) / (float)a.cols;
    const float scale = 1 / sqrtf(mean + a.eps);
#pragma unroll
    for (int k = 0; k < N; k++)
        store_normed<ALIGNED>(a, row, first + k * step, v[k], scale,
                              N == 1 ? g : load_four<ALIGNED>(a.gain, first + k * step, a.cols));
    for (int32_t i = rest; i < a.cols; i += step)
        store_normed<ALIGNED>(a, row, i, load_four<ALIGNED>(a.x + row, i, a.cols), scale,
                              load_four<ALIGNED>(a.gain, i, a.cols));
}

/* Threads of a block for a row of which each keeps N fours. */
static unsigned norm_threads(int32_t cols, int32_t n)
{
    const unsigned warps = blocks_for((size_t)cols, (unsigned)(n * FOUR * WARP));
    return warps * WARP < NORM_THREADS ? warps * WARP : NORM_THREADS;
}

static void run_norm(struct cuda_backend *c, struct norm a, struct view y)
{
    const unsigned one = norm_threads(y.cols, 1), many = norm_threads(y.cols, NORM_HELD);
    const unsigned rows = (unsigned)y.rows;
    if (y.rows == 0 || y.cols == 0)
        return;
    a.y = elements_of(y);
    a.cols = y.cols;
    if (!are_fours(y.cols, y.data, a.x, a.delta.data, a.gain))
        LAUNCH_AHEAD(c, (rmsnorm_kernel<1, false>), rows, one, 0, a);
    else if (y.rows <= NORM_FEW && y.cols <= NORM_THREADS * FOUR)
        LAUNCH_AHEAD(c, (rmsnorm_kernel<1, true>), rows, one, 0, a);
    else
        LAUNCH_AHEAD(c, (rmsnorm_kernel<NORM_HELD, true>), rows, many, 0, a);
}

void rowops_rmsnorm(struct backend *b, struct view y, struct cview x, const float *gain, float eps)
{
    struct norm a = {};
    a.x = (float *)const_cast<void *>(x.data); /* without a delta it is only read */
    a.gain = gain;
    a.eps = eps;
    run_norm(cuda_of(b), a, y);
}

void rowops_add_rmsnorm(struct backend *b, struct view y, struct view x, struct cview delta,
                        const float *gain, float eps)
{
    struct norm a = {};
    a.x = (float *)x.data;
    a.delta = elements_of(delta);
    a.gain = gain;
    a.eps = eps;
    run_norm(cuda_of(b), a, y);
}

__global__ void square_sum_kernel(float *sums, float *x, const float *delta, struct pieces pieces)
{
    __shared__ float of_piece[PIECES_MAX];
    const int64_t row = (int64_t)blockIdx.x * pieces_begin(&pieces, pieces.count);
    for (int32_t k = 0; k < pieces.count; k++) {
        const int32_t end = pieces_begin(&pieces, k + 1);
        float sum = 0;
        for (int32_t i = pieces_begin(&pieces, k) + (int32_t)threadIdx.x; i < end;
             i += (int32_t)blockDim.x) {
            float v = x[row + i];
            if (delta != nullptr)
                x[row + i] = v += delta[row + i];
            sum = fmaf(v, v, sum);
        }
        sum = reduce_block(sum, plus());
        if (threadIdx.x == 0)
            of_piece[k] = sum;
    }
    if (threadIdx.x == 0)
        sums[blockIdx.x] = pieces_sum(of_piece, pieces.count);
}

void rowops_square_sum(struct backend *b, float *sums, struct view x, struct cview delta,
                       struct pieces pieces)
{
    if (x.rows > 0)
        LAUNCH(cuda_of(b), square_sum_kernel, (unsigned)x.rows, NORM_THREADS, 0, sums,
               (float *)x.data, (const float *)delta.data, pieces);
}

__global__ void rms_scale_kernel(float *y, const float *x, const float *sums, float width,
                                 const float *gain, float eps, int32_t cols)
{
    const int64_t row = (int64_t)blockIdx.x * cols;
    launch_release();
    const float scale = 1 / sqrtf(sums[blockIdx.x] / width + eps);
    for (int32_t i = (int32_t)threadIdx.x; i < cols; i += (int32_t)blockDim.x)
        y[row + i] = x[row + i] * scale * gain[i];
}

void rowops_rms_scale(struct backend *b, struct view y, struct cview x, const float *sums,
                      int32_t width, const float *gain, float eps)
{
    if (x.rows > 0 && x.cols > 0)
        LAUNCH(cuda_of(b), rms_scale_kernel, (unsigned)x.rows, NORM_THREADS, 0, (float *)y.data,
               (const float *)x.data, sums, (float)width, gain, eps, x.cols);
}

/* ---- latents ---- */

#define LATENT_SUMS (NORM_HELD * WARP) /* of 128 columns each; those of more are added up */

/* What a block makes of a row: one of the two norms, and beside that of the value the copy. */
struct latents {
    const float *a;
    float *query, *qkv;
    struct latent_rules rules;
    int32_t qkv_cols;
};

/* As rmsnorm_kernel has it, to the bit. */
template <bool ALIGNED>
DEVICE void norm_latent(float *y, const float *x, const float *gain, float eps, int32_t cols)
{
    __shared__ float of_warp[LATENT_SUMS + WARP];
    const int32_t warps = (int32_t)blockDim.x / WARP, warp = (int32_t)threadIdx.x / WARP;
    const int32_t first = (int32_t)threadIdx.x * FOUR, step = (int32_t)blockDim.x * FOUR;
    float more = 0;
    for (int32_t n = warp, i = first; n * WARP * FOUR < cols; n += warps, i += step) {
        const float sum = reduce_lanes<WARP>(squares(load_four<ALIGNED>(x, i, cols)), plus());
        if (n >= LATENT_SUMS)
            more += sum;
        else if (threadIdx.x % WARP == 0)
            of_warp[n] = sum;
    }
    const int32_t sums = (cols + WARP * FOUR - 1) / (WARP * FOUR);
    if (threadIdx.x % WARP == 0 && sums > LATENT_SUMS)
        of_warp[LATENT_SUMS + warp] = more;
    __syncthreads();
    const float mean =
        sum_warps(of_warp, sums > LATENT_SUMS ? LATENT_SUMS + warps : sums) / (float)cols;
    const float scale = 1 / sqrtf(mean + eps);
    for (int32_t i = first; i < cols; i += step) {
        four v = load_four<ALIGNED>(x, i, cols), g = load_four<ALIGNED>(gain, i, cols);
#pragma unroll
        for (int k = 0; k < FOUR; k++)
            v.e[k] = v.e[k] * scale * g.e[k];
        store_four<ALIGNED>(y, i, cols, v);
    }
}

/* Block (row, its value and what turns, or its query). */
template <bool ALIGNED>
__global__ void __launch_bounds__(NORM_THREADS) latent_kernel(struct latents l)
{
    const struct latent_rules &r = l.rules;
    const int64_t row = blockIdx.x;
    const float *x = l.a + row * (r.query + r.value + r.turns);
    float *key = l.qkv + (row + 1) * l.qkv_cols - r.turns - r.value;
    launch_release();
    launch_wait();
    if (blockIdx.y == 1) {
        norm_latent<ALIGNED>(l.query + row * r.query, x, r.query_gain, r.eps, r.query);
        return;
    }
    for (int32_t i = (int32_t)threadIdx.x; i < r.turns; i += (int32_t)blockDim.x)
        key[i] = x[r.query + r.value + i];
    norm_latent<ALIGNED>(key + r.turns, x + r.query, r.value_gain, r.eps, r.value);
}

void rowops_latent(struct backend *b, struct view query, struct view qkv, struct cview a,
                   const struct latent_rules *rules)
{
    const struct latents l = {(const float *)a.data, (float *)query.data, (float *)qkv.data, *rules,
                              qkv.cols};
    const int32_t most = rules->query > rules->value ? rules->query : rules->value;
    const unsigned threads = norm_threads(most, a.rows <= NORM_FEW ? 1 : NORM_HELD);
    const dim3 grid((unsigned)a.rows, rules->query > 0 ? 2 : 1);
    const int32_t odd = rules->query | rules->value | rules->turns;
    if (a.rows == 0)
        return;
    if (are_fours(odd, a.data, query.data, qkv.data, rules->query_gain) &&
        are_fours(qkv.cols, rules->value_gain))
        LAUNCH_AHEAD(cuda_of(b), latent_kernel<true>, grid, threads, 0, l);
    else
        LAUNCH_AHEAD(cuda_of(b), latent_kernel<false>, grid, threads, 0, l);
}

/* ---- norms of all heads together ---- */

/* Block (row, head of all ranks' q and k), of one warp. */
__global__ void joint_squares_kernel(float *squares, const float *qkv, struct joint_norm n,
                                     int32_t heads, int32_t kv_heads, int32_t dim)
{
    const int32_t head = (int32_t)blockIdx.y, kv = head - n.heads - n.first_kv;
    const bool of_k = head >= n.heads;
    const int32_t own = of_k ? kv : head - n.first;
    const bool mine = own >= (of_k && n.shared ? 1 : 0) && own < (of_k ? kv_heads : heads);
    const int64_t at =
        ((int64_t)blockIdx.x * (heads + 2 * kv_heads) + (of_k ? heads : 0) + own) * (int64_t)dim;
    float sum = 0;
    launch_release();
    launch_wait();
    for (int32_t i = (int32_t)threadIdx.x; mine && i < dim; i += WARP)
        sum = fmaf(qkv[at + i], qkv[at + i], sum);
    sum = reduce_lanes<WARP>(sum, plus());
    if (threadIdx.x == 0)
        squares[(int64_t)blockIdx.x * gridDim.y + blockIdx.y] = sum;
}

/* Block (row, head of this rank's q and k). */
__global__ void joint_scale_kernel(float *qkv, const float *squares, struct joint_norm n,
                                   int32_t heads, int32_t kv_heads, int32_t dim)
{
    const int32_t head = (int32_t)blockIdx.y;
    const bool of_k = head >= heads;
    const int32_t all = of_k ? n.kv_heads : n.heads;
    const float *gain = of_k ? n.k_gain + (int64_t)(head - heads) * dim : n.q_gain + head * dim;
    const float *of_head =
        squares + (int64_t)blockIdx.x * (n.heads + n.kv_heads) + (of_k ? n.heads : 0);
    float *x = qkv + ((int64_t)blockIdx.x * (heads + 2 * kv_heads) + head) * dim;
    float sum = 0;
    launch_release();
    launch_wait();
    for (int32_t i = 0; i < all; i++)
        sum += of_head[i];
    const float scale = 1 / sqrtf(sum / ((float)all * (float)dim) + n.eps);
    for (int32_t i = (int32_t)threadIdx.x; i < dim; i += (int32_t)blockDim.x)
        x[i] = x[i] * scale * gain[i];
}

void rowops_joint_squares(struct backend *b, struct view squares, struct cview qkv,
                          const struct joint_norm *n, const struct heads *h)
{
    if (squares.rows > 0)
        LAUNCH_AHEAD(cuda_of(b), joint_squares_kernel,
                     dim3((unsigned)squares.rows, (unsigned)squares.cols), WARP, 0,
                     (float *)squares.data, (const float *)qkv.data, *n, h->heads, h->kv_heads,
                     h->head_dim);
}

void rowops_joint_scale(struct backend *b, struct view qkv, struct cview squares,
                        const struct joint_norm *n, const struct heads *h)
{
    const int32_t normed = h->heads + h->kv_heads;
    if (qkv.rows > 0 && normed > 0)
        LAUNCH_AHEAD(cuda_of(b), joint_scale_kernel, dim3((unsigned)qkv.rows, (unsigned)normed),
                     WARP, 0, (float *)qkv.data, (const float *)squares.data, *n, h->heads,
                     h->kv_heads, h->head_dim);
}

/* ---- element-wise ---- */

__global__ void add_kernel(float *x, const float *delta, const float *scale, int64_t n)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    launch_release();
    launch_wait();
    if (i < n)
        x[i] = (x[i] + delta[i]) * (scale != nullptr ? *scale : 1);
}

void rowops_add(struct backend *b, struct view x, struct cview delta, const float *scale)
{
    const int64_t n = (int64_t)x.rows * x.cols;
    if (n > 0)
        LAUNCH_AHEAD(cuda_of(b), add_kernel, blocks_for((size_t)n, THREADS), THREADS, 0,
                     (float *)x.data, (const float *)delta.data, scale, n);
}

__global__ void scale_kernel(float *y, const float *x, float by, int64_t n)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    launch_release();
    launch_wait();
    if (i < n)
        y[i] = x[i] * by;
}

void rowops_scale(struct backend *b, struct view y, struct cview x, float by)
{
    const int64_t n = (int64_t)y.rows * y.cols;
    if (n > 0)
        LAUNCH_AHEAD(cuda_of(b), scale_kernel, blocks_for((size_t)n, THREADS), THREADS, 0,
                     (float *)y.data, (const float *)x.data, by, n);
}

__global__ void softcap_kernel(float *x, float cap, int64_t n)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    launch_release();
    launch_wait();
    if (i < n)
        x[i] = numerics_softcap(x[i], cap);
}

void rowops_softcap(struct backend *b, struct view x, float cap)
{
    const int64_t n = (int64_t)x.rows * x.cols;
    if (n > 0)
        LAUNCH_AHEAD(cuda_of(b), softcap_kernel, blocks_for((size_t)n, THREADS), THREADS, 0,
                     (float *)x.data, cap, n);
}

struct addends {
    const float *of[BACKEND_PEERS_MAX];
};

/* Stride 1, 2, 4, ...: the tree is walked as a binary counter, so that it needs log2 sums. Leaf l
 * closes as many subtrees as l + 1 has factors of two; what is left at the end folds from the
 * right.
 */
__global__ void sum_tree_kernel(float *y, struct addends a, int32_t count, int64_t n)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    float open[8]; /* subtrees of 1, 2, 4, ... 64 leaves */
    if (i >= n)
        return;
    for (int32_t l = 0; l < count; l++) {
        float sum = a.of[l][i];
        int32_t level = 0;
        for (; (l >> level & 1) != 0; level++)
            sum = open[level] + sum;
        open[level] = sum;
    }
    int32_t level = 0;
    while ((count >> level & 1) == 0)
        level++;
    float total = open[level++];
    for (; level < 8; level++)
        if ((count >> level & 1) != 0)
            total = open[level] + total;
    y[i] = total;
}

void rowops_sum_tree(struct backend *b, float *y, const float *const *list, int32_t count, size_t n)
{
    struct addends a;
    for (int32_t i = 0; i < count; i++)
        a.of[i] = list[i];
    if (n > 0 && count > 0)
        LAUNCH(cuda_of(b), sum_tree_kernel, blocks_for(n, THREADS), THREADS, 0, y, a, count,
               (int64_t)n);
}
