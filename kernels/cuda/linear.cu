/* DESIGN: y[T, out] = x[T, in] w[out, in]^T in two ways.
 * Few rows: the weight is read once, at memory speed. A warp owns OUTPUTS rows of w and all T rows
 * of x; lane l takes vectors l, l + 32, ... of 16 bytes, sums in fp32 and folds over the lanes at
 * the end. Every output has the same order of addition whatever T is, so a row's bits do not depend
 * on the others among these. x stays fp32 there.
 * Many rows: cuBLAS on tensor cores, x rounded to the weight's type first (fp32 weights: neither
 * rounding nor tf32), fp32 accumulation. The leaves of the weight's spec are for the bits of the
 * CPU variants and are not used here. */
#include "kernels/cuda/device.cuh"

#include "kernels/cuda/blas.h"

#define THREADS 128
#define OUTPUTS 2        /* per warp: each x that was loaded serves so many */
#define GEMV_ROWS_MAX 16 /* from here on tensor cores win */

/* ---- few rows ---- */

/* Elements [k, k + N) of a row of x, zeros beyond its end. */
template <int N, bool ALIGNED> DEVICE void load_x(float *v, const float *x, int32_t k, int32_t in)
{
    if (ALIGNED) {
#pragma unroll
        for (int i = 0; i < N; i += 4) /* in is a multiple of 4: whole or not at all */
            *(pack<float, 4> *)(v + i) =
                k + i < in ? *(const pack<float, 4> *)(x + k + i) : pack<float, 4>{};
    } else {
#pragma unroll
        for (int i = 0; i < N; i++)
            v[i] = k + i < in ? x[k + i] : 0.0f;
    }
}

struct gemv_args {
    float *y;
    const float *x;
    int32_t rows, in, out; /* rows <= ROWS */
    int64_t pitch;         /* of w, in elements; its tail is zero */
};

/* Up to 4 rows 80 registers hold everything; left alone, the compiler aims lower and spills. */
template <typename E, int ROWS, bool ALIGNED>
__global__ void __launch_bounds__(THREADS, ROWS <= 4 ? 6 : 1)
    gemv_kernel(struct gemv_args a, const E *w)
{
    constexpr int N = 16 / sizeof(E);
    const int32_t lane = threadIdx.x % WARP;
    const int32_t first = (int32_t)((blockIdx.x * blockDim.x + threadIdx.x) / WARP) * OUTPUTS;
    float sum[ROWS][OUTPUTS] = {};
    if (first >= a.out)
        return;             /* a whole warp */
    const E *from[OUTPUTS]; /* a row beyond the end stands for the last one */
#pragma unroll
    for (int o = 0; o < OUTPUTS; o++)
        from[o] = w + (first + o < a.out ? first + o : a.out - 1) * a.pitch;
#pragma unroll(ROWS <= 4 ? 4 : 1)
    for (int32_t k = lane * N; k < a.pitch; k += WARP * N) {
        pack<E, N> v[OUTPUTS];
#pragma unroll
        for (int o = 0; o < OUTPUTS; o++)
            v[o] = *(const pack<E, N> *)(from[o] + k);
#pragma unroll
        for (int t = 0; t < ROWS; t++) {
            alignas(16) float x[N];
            load_x<N, ALIGNED>(x, a.x + (int64_t)(t < a.rows ? t : 0) * a.in, k, a.in);
#pragma unroll
            for (int o = 0; o < OUTPUTS; o++)
#pragma unroll
                for (int i = 0; i < N; i++)
                    sum[t][o] = fmaf(x[i], to_float(v[o].e[i]), sum[t][o]);
        }
    }
#pragma unroll
    for (int t = 0; t < ROWS; t++)
#pragma unroll
        for (int o = 0; o < OUTPUTS; o++) {
            const float total = reduce_lanes<WARP>(sum[t][o], plus());
            if (lane == 0 && t < a.rows && first + o < a.out)
                a.y[(int64_t)t * a.out + first + o] = total;
        }
}

template <typename E, int ROWS>
static void gemv_rows(struct cuda_backend *c, const struct gemv_args &a, const E *w)
{
    const unsigned grid = blocks_for((size_t)a.out, THREADS / WARP * OUTPUTS);
    const bool aligned = a.in % 4 == 0 && (uintptr_t)a.x % 16 == 0;
    if (aligned)
        LAUNCH(c, (gemv_kernel<E, ROWS, true>), grid, THREADS, 0, a, w);
    else
        LAUNCH(c, (gemv_kernel<E, ROWS, false>), grid, THREADS, 0, a, w);
}

template <typename E>
static void gemv(struct cuda_backend *c, const struct gemv_args &a, const E *w)
{
    if (a.rows <= 1)
        gemv_rows<E, 1>(c, a, w);
    else if (a.rows <= 2)
        gemv_rows<E, 2>(c, a, w);
    else if (a.rows <= 4)
        gemv_rows<E, 4>(c, a, w);
    else if (a.rows <= 8)
        gemv_rows<E, 8>(c, a, w);
    else
        gemv_rows<E, 16>(c, a, w);
}

/* ---- many rows ---- */

/* x[rows, in] fp32 to y[rows, pitch] in the weight's type, zeros in the tail. */
template <typename E>
__global__ void convert_kernel(E *y, const float *x, int32_t in, int64_t pitch, int64_t count)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count)
        return;
    const int64_t row = i / pitch, col = i % pitch;
    from_float(y + i, col < in ? x[row * in + col] : 0.0f);
}

template <typename E>
static void gemm(struct cuda_backend *c, struct view y, struct cview x, const struct weight *w)
{
    const int64_t pitch = (int64_t)cuda_pitch(w->spec.in, w->spec.dtype), n = y.rows * pitch;
    const void *rows = x.data;
    if (w->spec.dtype != DTYPE_F32 || pitch != x.cols) {
        LAUNCH(c, convert_kernel<E>, blocks_for((size_t)n, 256), 256, 0, (E *)c->x.data,
               (const float *)x.data, x.cols, pitch, n);
        rows = c->x.data;
    }
    const struct blas_product p = {y.rows,          y.cols, (int32_t)pitch, w->spec.dtype,
                                   (float *)y.data, rows,   w->storage};
    blas_multiply(c, &p);
}

void linear_run(struct backend *b, struct view y, struct cview x, const struct weight *w)
{
    struct cuda_backend *c = cuda_of(b);
    if (y.rows == 0 || y.cols == 0)
        return;
    if (x.cols == 0) {
        cuda_note(c, "linear",
                  cudaMemsetAsync(y.data, 0, (size_t)y.rows * (size_t)y.cols * 4,
                                  (cudaStream_t)c->stream));
        return;
    }
    if (y.rows > GEMV_ROWS_MAX) {
        WITH_TYPE(w->spec.dtype, gemm<E>(c, y, x, w));
        return;
    }
    const struct gemv_args a = {(float *)y.data, (const float *)x.data,
                                y.rows,          x.cols,
                                y.cols,          (int64_t)cuda_pitch(x.cols, w->spec.dtype)};
    WITH_TYPE(w->spec.dtype, gemv<E>(c, a, (const E *)w->storage));
}
