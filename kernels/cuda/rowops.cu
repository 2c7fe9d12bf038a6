/* DESIGN: one block per row, or one thread per element. These ops move few bytes beside the
 * weights; they are kept plain. Sums over a row are per thread in ascending order, then a tree over
 * the block of fixed size, so a row's bits do not depend on the other rows. */
#include "kernels/cuda/device.cuh"

#include "kernels/cuda/entry.h"
#include "kernels/numerics.h"

#define THREADS 256
#define AT_ONCE 8
#define COPY_COLS 4096     /* of a row, by one block */
#define NORM_THREADS 1024  /* few rows wait for every pass of theirs */
#define PART (2 * THREADS) /* columns of a block that multiplies gates */

/* ---- embed, select ---- */

template <typename E>
__global__ void embed_kernel(float *y, const int32_t *ids, const E *w, int32_t first, int32_t out,
                             int32_t in, int64_t pitch, float scale)
{
    const int64_t row = (int64_t)ids[blockIdx.x] - first;
    const bool mine = row >= 0 && row < out;
    for (int32_t k = (int32_t)threadIdx.x; k < in; k += (int32_t)blockDim.x)
        y[(int64_t)blockIdx.x * in + k] = mine ? to_float(w[row * pitch + k]) * scale : 0.0f;
}

/* Where rows have codes and scales. */
struct coded {
    const unsigned char *w;
    int64_t row_bytes, scales_at;
    int32_t scale_skip;
};

__global__ void embed_int8_kernel(float *y, const int32_t *ids, struct coded from, int32_t first,
                                  int32_t out, int32_t in, float scale)
{
    const int64_t row = (int64_t)ids[blockIdx.x] - first;
    const bool mine = row >= 0 && row < out;
    const unsigned char *codes = from.w + (mine ? row : 0) * from.row_bytes;
    const bf16 *scales = (const bf16 *)(codes + from.scales_at);
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
    const struct coded from = {w->storage, (int64_t)cuda_row_bytes(s), (int64_t)cuda_put_bytes(s),
                               s->scale_skip};
    CHECK(s->dtype == DTYPE_I8 && s->scale_cols == BACKEND_GROUP && !s->scales_f32);
    LAUNCH(c, embed_int8_kernel, (unsigned)y.rows, THREADS, 0, (float *)y.data, ids, from, first,
           s->out, s->in, scale);
}

void rowops_embed(struct backend *b, struct view y, const int32_t *ids, const struct weight *w,
                  int32_t first, float scale)
{
    struct cuda_backend *c = cuda_of(b);
    const int64_t pitch = (int64_t)cuda_pitch(w->spec.in, w->spec.dtype);
    if (y.rows == 0 || y.cols == 0)
        return;
    if (dtype_is_int(w->spec.dtype)) {
        embed_int8(c, y, ids, w, first, scale);
        return;
    }
    CHECK(dtype_is_compute(w->spec.dtype)); /* no layout has it in fp8 */
    WITH_TYPE(w->spec.dtype,
              LAUNCH(c, embed_kernel<E>, (unsigned)y.rows, THREADS, 0, (float *)y.data, ids,
                     (const E *)w->storage, first, w->spec.out, w->spec.in, pitch, scale));
}

__global__ void select_kernel(float *y, const float *x, const int32_t *index, int32_t cols)
{
    launch_release();
    const float *from = x + (int64_t)index[blockIdx.x] * cols;
    for (int32_t i = (int32_t)threadIdx.x; i < cols; i += (int32_t)blockDim.x)
        y[(int64_t)blockIdx.x * cols + i] = from[i];
}

void rowops_select(struct backend *b, struct view y, struct cview x, const int32_t *index)
{
    if (y.rows > 0 && y.cols > 0)
        LAUNCH(cuda_of(b), select_kernel, (unsigned)y.rows, THREADS, 0, (float *)y.data,
               (const float *)x.data, index, y.cols);
}

/* A block copies a part of a row: rows may be weights on the move, which are long. */
__global__ void copy_kernel(float *dst, int64_t dst_stride, const float *src, int64_t src_stride,
                            int32_t cols, int32_t parts)
{
    const int64_t row = blockIdx.x / (unsigned)parts;
    const int32_t begin = (int32_t)(blockIdx.x % (unsigned)parts) * COPY_COLS;
    const int32_t past = cols - begin < COPY_COLS ? cols : begin + COPY_COLS;
    const float *from = src != nullptr ? src + row * src_stride : nullptr;
    float *to = dst + row * dst_stride;
    for (int32_t first = begin + (int32_t)threadIdx.x; first < past; first += AT_ONCE * THREADS) {
        float v[AT_ONCE]; /* loads under way together */
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++)
            v[k] = from != nullptr && first + k * THREADS < past ? from[first + k * THREADS] : 0.0f;
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++)
            if (first + k * THREADS < past)
                to[first + k * THREADS] = v[k];
    }
}

void rowops_copy(struct backend *b, float *dst, size_t dst_stride, const float *src,
                 size_t src_stride, int32_t rows, int32_t cols)
{
    if (rows <= 0 || cols <= 0)
        return;
    const int32_t parts = (cols - 1) / COPY_COLS + 1;
    LAUNCH(cuda_of(b), copy_kernel, (unsigned)rows * (unsigned)parts, THREADS, 0, dst,
           (int64_t)dst_stride, src, (int64_t)src_stride, cols, parts);
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
        LAUNCH(cuda_of(b), add_bias_kernel, bias_grid(y), THREADS, 0, a);
}

void rowops_expert_bias(struct backend *b, struct view y, const float *bias,
                        const struct routing *r)
{
    float *data = (float *)y.data;
    const struct biased a = {data, data, bias, r->expert, nullptr, r->chosen, y.cols};
    if (y.rows > 0 && y.cols > 0)
        LAUNCH(cuda_of(b), add_bias_kernel, bias_grid(y), THREADS, 0, a);
}

void rowops_expert_bias_sum(struct backend *b, struct view y, struct cview x, const float *bias,
                            const struct routing *r)
{
    const struct biased a = {
        (float *)y.data, (const float *)x.data, bias, r->expert, r->share, r->chosen, y.cols};
    if (y.rows > 0 && y.cols > 0)
        LAUNCH(cuda_of(b), expert_bias_sum_kernel, bias_grid(y), THREADS, 0, a);
}

/* ---- norms ---- */

#define HELD 8 /* elements of a row that a thread keeps, with their gains */

/* y may be x or delta: each thread reads an element before it writes it, and no other's. What a
 * thread has is loaded at once; of rows longer than HELD * NORM_THREADS the rest comes after. */
__global__ void __launch_bounds__(NORM_THREADS)
    rmsnorm_kernel(float *y, float *x, const float *delta, const float *gain, float eps,
                   int32_t cols)
{
    const int64_t row = (int64_t)blockIdx.x * cols;
    const int32_t first = (int32_t)threadIdx.x;
    float v[HELD], d[HELD], g[HELD], sum = 0;
    launch_release();
#pragma unroll
    for (int k = 0; k < HELD; k++) {
        const int32_t i = first + k * NORM_THREADS;
        v[k] = i < cols ? x[row + i] : 0.0f;
        d[k] = delta != nullptr && i < cols ? delta[row + i] : 0.0f;
        g[k] = i < cols ? gain[i] : 0.0f;
    }
#pragma unroll
    for (int k = 0; k < HELD; k++) {
        const int32_t i = first + k * NORM_THREADS;
        if (i < cols) {
            if (delta != nullptr)
                x[row + i] = v[k] += d[k];
            sum = fmaf(v[k], v[k], sum);
        }
    }
    for (int32_t i = first + HELD * NORM_THREADS; i < cols; i += NORM_THREADS) {
        float w = x[row + i];
        if (delta != nullptr)
            x[row + i] = w += delta[row + i];
        sum = fmaf(w, w, sum);
    }
    const float scale = 1 / sqrtf(reduce_block(sum, plus()) / (float)cols + eps);
#pragma unroll
    for (int k = 0; k < HELD; k++)
        if (first + k * NORM_THREADS < cols)
            y[row + first + k * NORM_THREADS] = v[k] * scale * g[k];
    for (int32_t i = first + HELD * NORM_THREADS; i < cols; i += NORM_THREADS)
        y[row + i] = x[row + i] * scale * gain[i];
}

void rowops_rmsnorm(struct backend *b, struct view y, struct cview x, const float *gain, float eps)
{
    if (x.rows > 0 && x.cols > 0) /* without a delta x is only read */
        LAUNCH(cuda_of(b), rmsnorm_kernel, (unsigned)x.rows, NORM_THREADS, 0, (float *)y.data,
               (float *)const_cast<void *>(x.data), (const float *)nullptr, gain, eps, x.cols);
}

void rowops_add_rmsnorm(struct backend *b, struct view y, struct view x, struct cview delta,
                        const float *gain, float eps)
{
    if (x.rows > 0 && x.cols > 0)
        LAUNCH(cuda_of(b), rmsnorm_kernel, (unsigned)x.rows, NORM_THREADS, 0, (float *)y.data,
               (float *)x.data, (const float *)delta.data, gain, eps, x.cols);
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

/* ---- element-wise ---- */

/* Block (row, part of it). */
template <enum activation ACT>
__global__ void act_mul_kernel(float *__restrict__ y, const float *__restrict__ gu, int32_t cols)
{
    const float *gate = gu + (int64_t)blockIdx.x * 2 * cols;
    float *to = y + (int64_t)blockIdx.x * cols;
    const int32_t begin = (int32_t)(blockIdx.y * PART + threadIdx.x);
    constexpr int N = PART / THREADS;
    float g[N], u[N];
    launch_release();
#pragma unroll
    for (int k = 0; k < N; k++) { /* loads under way together */
        const int32_t i = begin + k * THREADS;
        const bool there = i < cols;
        g[k] = there ? gate[ACT == ACT_SWIGLU_PAIRS ? 2 * i : i] : 0.0f;
        u[k] = there ? gate[ACT == ACT_SWIGLU_PAIRS ? 2 * i + 1 : cols + i] : 0.0f;
    }
#pragma unroll
    for (int k = 0; k < N; k++)
        if (begin + k * THREADS < cols)
            to[begin + k * THREADS] = ACT == ACT_SWIGLU_PAIRS ? numerics_swiglu(g[k], u[k])
                                      : ACT == ACT_SILU       ? g[k] / (1 + expf(-g[k])) * u[k]
                                                              : numerics_gelu(g[k]) * u[k];
}

template <enum activation ACT>
static void launch_act_mul(struct cuda_backend *c, struct view y, struct cview gu)
{
    const dim3 grid((unsigned)y.rows, blocks_for((size_t)y.cols, PART));
    LAUNCH(c, act_mul_kernel<ACT>, grid, THREADS, 0, (float *)y.data, (const float *)gu.data,
           y.cols);
}

void rowops_act_mul(struct backend *b, struct view y, struct cview gu, enum activation act)
{
    if (y.rows == 0 || y.cols == 0)
        return;
    if (act == ACT_SILU)
        launch_act_mul<ACT_SILU>(cuda_of(b), y, gu);
    else if (act == ACT_GELU_TANH)
        launch_act_mul<ACT_GELU_TANH>(cuda_of(b), y, gu);
    else
        launch_act_mul<ACT_SWIGLU_PAIRS>(cuda_of(b), y, gu);
}

__global__ void scale_kernel(float *y, const float *x, float by, int64_t n)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    launch_release();
    if (i < n)
        y[i] = x[i] * by;
}

void rowops_scale(struct backend *b, struct view y, struct cview x, float by)
{
    const int64_t n = (int64_t)y.rows * y.cols;
    if (n > 0)
        LAUNCH(cuda_of(b), scale_kernel, blocks_for((size_t)n, THREADS), THREADS, 0,
               (float *)y.data, (const float *)x.data, by, n);
}

__global__ void softcap_kernel(float *x, float cap, int64_t n)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    launch_release();
    if (i < n)
        x[i] = numerics_softcap(x[i], cap);
}

void rowops_softcap(struct backend *b, struct view x, float cap)
{
    const int64_t n = (int64_t)x.rows * x.cols;
    if (n > 0)
        LAUNCH(cuda_of(b), softcap_kernel, blocks_for((size_t)n, THREADS), THREADS, 0,
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
