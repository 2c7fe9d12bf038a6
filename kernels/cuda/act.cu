/* DESIGN: between the two products of an MLP, and what gates attention. Prompts make this a matter
 * of bytes: what cuBLAS has made comes in 16 bits (linear_out) and leaves in them (linear_in). A
 * thread takes a vector of gates and one of ups, whatever their type, which it computes with in
 * fp32. */
#include "kernels/cuda/rows.cuh"

#include "kernels/cuda/act.cuh"

/* Block (row, part of it). */
template <enum activation ACT, bool ALIGNED, typename E>
__global__ void act_mul_kernel(struct elements y, const E *gu, int32_t cols)
{
    constexpr int N = CUDA_VECTOR / (int)sizeof(E);
    constexpr bool PAIRS = ACT == ACT_SWIGLU_PAIRS;
    const E *gate = gu + (int64_t)blockIdx.x * 2 * cols;
    const int32_t i = (int32_t)(blockIdx.y * THREADS + threadIdx.x) * N;
    const int64_t row = (int64_t)blockIdx.x * cols;
    float a[N], b[N];
    pack<float, N> v;
    launch_release();
    launch_wait();
    widen(a, load_vector<N, ALIGNED>(gate, PAIRS ? 2 * i : i, PAIRS ? 2 * cols : cols));
    widen(b, PAIRS ? load_vector<N, ALIGNED>(gate, 2 * i + N, 2 * cols)
                   : load_vector<N, ALIGNED>(gate + cols, i, cols));
#pragma unroll
    for (int k = 0; k < N; k++) {
        const float(&from)[N] = k < N / 2 ? a : b; /* of pairs */
        const float g = PAIRS ? from[2 * k % N] : a[k], u = PAIRS ? from[2 * k % N + 1] : b[k];
        v.e[k] = activate(ACT, g, u);
    }
    put_row<ALIGNED>(y, row, i, cols, v);
}

template <enum activation ACT, typename E>
static void launch_act_mul(struct cuda_backend *c, struct view y, struct cview gu)
{
    constexpr int N = CUDA_VECTOR / (int)sizeof(E);
    const struct elements to = elements_of(y);
    const E *from = (const E *)gu.data;
    const dim3 grid((unsigned)y.rows, blocks_for((size_t)y.cols, THREADS * N));
    if (y.cols % N == 0 && are_fours(y.cols, y.data, from))
        LAUNCH_AHEAD(c, (act_mul_kernel<ACT, true, E>), grid, THREADS, 0, to, from, y.cols);
    else
        LAUNCH_AHEAD(c, (act_mul_kernel<ACT, false, E>), grid, THREADS, 0, to, from, y.cols);
}

template <typename E>
static void act_mul_of(struct cuda_backend *c, struct view y, struct cview gu, enum activation act)
{
    if (act == ACT_SILU)
        launch_act_mul<ACT_SILU, E>(c, y, gu);
    else if (act == ACT_GELU_TANH)
        launch_act_mul<ACT_GELU_TANH, E>(c, y, gu);
    else
        launch_act_mul<ACT_SWIGLU_PAIRS, E>(c, y, gu);
}

void act_mul(struct backend *b, struct view y, struct cview gu, enum activation act)
{
    struct cuda_backend *c = cuda_of(b);
    if (y.rows == 0 || y.cols == 0)
        return;
    if (gu.dtype == DTYPE_BF16)
        act_mul_of<bf16>(c, y, gu, act);
    else
        act_mul_of<float>(c, y, gu, act);
}

/* Block (row, part of it). */
template <bool ALIGNED>
__global__ void act_by_kernel(float *y, const float *x, const float *by, int64_t stride,
                              int32_t cols, enum activation act)
{
    const int64_t row = (int64_t)blockIdx.x * cols;
    const int32_t i = part_column();
    launch_release();
    launch_wait();
    four v = load_four<ALIGNED>(x + row, i, cols);
    const four up = load_four<ALIGNED>(by + blockIdx.x * stride, i, cols);
#pragma unroll
    for (int k = 0; k < FOUR; k++)
        v.e[k] = activate(act, v.e[k], up.e[k]);
    store_four<ALIGNED>(y + row, i, cols, v);
}

void act_by(struct backend *b, struct view y, struct cview x, const float *by, size_t stride,
            enum activation act)
{
    struct cuda_backend *c = cuda_of(b);
    float *to = (float *)y.data;
    const float *from = (const float *)x.data;
    const int64_t step = (int64_t)stride;
    if (y.rows == 0 || y.cols == 0)
        return;
    const dim3 parts = parts_of(y.rows, y.cols);
    if (are_fours(y.cols, to, from, by) && step % FOUR == 0)
        LAUNCH_AHEAD(c, act_by_kernel<true>, parts, THREADS, 0, to, from, by, step, y.cols, act);
    else
        LAUNCH_AHEAD(c, act_by_kernel<false>, parts, THREADS, 0, to, from, by, step, y.cols, act);
}

/* Block (row, part of it). */
template <bool ALIGNED> __global__ void gate_kernel(struct elements y, const float *x, int32_t cols)
{
    const int64_t row = (int64_t)blockIdx.x * cols;
    const int32_t i = part_column();
    launch_release();
    launch_wait();
    const four by = load_four<ALIGNED>(x + row, i, cols);
    four v = get_four<ALIGNED>(y, row, i, cols);
#pragma unroll
    for (int k = 0; k < FOUR; k++)
        v.e[k] *= 1 / (1 + expf(-by.e[k]));
    put_row<ALIGNED>(y, row, i, cols, v);
}

void act_gate(struct backend *b, struct view y, struct cview x)
{
    struct cuda_backend *c = cuda_of(b);
    const struct elements to = elements_of(y);
    const float *from = (const float *)x.data;
    if (y.rows == 0 || y.cols == 0)
        return;
    if (are_fours(y.cols, y.data, from))
        LAUNCH_AHEAD(c, gate_kernel<true>, parts_of(y.rows, y.cols), THREADS, 0, to, from, y.cols);
    else
        LAUNCH_AHEAD(c, gate_kernel<false>, parts_of(y.rows, y.cols), THREADS, 0, to, from, y.cols);
}
