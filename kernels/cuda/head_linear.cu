/* DESIGN: heads with a matrix of their own each, [512, 128] or [128, 512]: what attention over
 * latents wants before and behind it. Few rows: time is that of reading the matrices, which are
 * read once for 16 rows, by warps that have so many loads under way that an H200's memory need not
 * wait (two to four KiB each), the first ones while the kernel before still runs. Many rows: tiles
 * of 32, by warps with twice the outputs, whose weights come out of the cache; x is read by each
 * warp for itself, and cut to pieces again. What is multiplied, by what pieces, is that of other
 * products (product.cuh); a sum's steps are added in ascending order whatever the number of rows,
 * which so has no part in a row's bits. A matrix has a pointer in a table on the device. Rejected:
 * gemm.cu's tiles, whose rows of y lie one after the other. */
#include "kernels/cuda/product.cuh"

#define WARPS 2

struct head_product {
    struct elements y;
    const float *x;
    const unsigned char *const *weight; /* [heads] */
    int64_t row_bytes;                  /* of a weight */
    int64_t x_pitch, y_pitch;           /* of all heads */
    int32_t rows, in, out, kept;
    bool whole; /* x in vectors */
    bool pairs; /* y in twos */
};

/* GROUPS: eights of rows; OUTPUTS: eights of outputs of a warp; AHEAD: steps loaded together. */
template <typename F_, int GROUPS_, int OUTPUTS_, int AHEAD_> struct head_shape {
    typedef F_ F;
    static constexpr int GROUPS = GROUPS_, OUTPUTS = OUTPUTS_, AHEAD = AHEAD_;
    static constexpr int ROWS = GROUPS * GROUP, OUTS = OUTPUTS * COLUMNS, STEP = F::K * PART;
    typedef pack<uint32_t, 4> vectors[AHEAD][OUTPUTS];
};

/* The lane's vectors of AHEAD steps from `step` on; zeros behind the end. */
template <typename S>
DEVICE void load_steps(typename S::vectors &v, const struct head_product &p, const unsigned char *w,
                       int32_t first, int32_t step)
{
    const int32_t lane = (int32_t)threadIdx.x % WARP;
#pragma unroll
    for (int s = 0; s < S::AHEAD; s++)
#pragma unroll
        for (int o = 0; o < S::OUTPUTS; o++) {
            const int32_t k = (step + s) * S::STEP + lane % PART * S::F::K;
            const int32_t row = first + o * COLUMNS + lane / PART;
            v[s][o] = {};
            if (k < p.in && row < p.out)
                v[s][o] = *(const pack<uint32_t, 4> *)(w + row * p.row_bytes +
                                                       (int64_t)k * CUDA_VECTOR / S::F::K);
        }
}

/* Elements [k, k + 4) of a row; zeros where there are none. */
DEVICE void load_x(float (&x)[4], const struct head_product &p, const float *row, bool there,
                   int32_t k)
{
    if (p.whole) {
        pack<float, 4> v = {};
        if (there && k < p.in)
            v = *(const pack<float, 4> *)(row + k);
        memcpy(x, v.e, sizeof x);
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        x[i] = there && k + i < p.in ? row[k + i] : 0;
}

/* sum += the step that begins with column k. */
template <typename S>
DEVICE void take_step(float (&sum)[S::GROUPS][S::OUTPUTS * 2],
                      const pack<uint32_t, 4> (&v)[S::OUTPUTS], const struct head_product &p,
                      const float *x, int32_t first_row, int32_t k)
{
    const int32_t lane = (int32_t)threadIdx.x % WARP;
    const struct product none = {};
    struct step_scales<typename S::F, S::OUTPUTS> ones;
    float part[S::GROUPS][S::OUTPUTS][4] = {};
    float unit[S::GROUPS];
#pragma unroll
    for (int i = 0; i < S::OUTPUTS * 2; i++)
        ones.of[i] = 1;
#pragma unroll
    for (int g = 0; g < S::GROUPS; g++)
        unit[g] = 1;
    const auto take = [&](uint32_t(&to)[X_PAIRS<typename S::F>][4], int g, int sub) {
        const int32_t row = first_row + g * GROUP + lane / PART;
        float four[4];
        load_x(four, p, x + row * p.x_pitch, row < p.rows, k + lane % PART * S::F::K + 4 * sub);
        split_x<typename S::F>(to, four, 1);
    };
    multiply<typename S::F>(part, v, none, leaf{0, p.in}, neighbours{0}, k, take);
    add_step<typename S::F>(sum, part, ones, unit);
}

/* The lane's results: of its row in each group two neighbours of each eight outputs. */
template <typename S>
DEVICE void put_results(const float (&sum)[S::GROUPS][S::OUTPUTS * 2], const struct head_product &p,
                        int64_t y, int32_t first_row, int32_t first)
{
    const int32_t lane = (int32_t)threadIdx.x % WARP;
#pragma unroll
    for (int g = 0; g < S::GROUPS; g++)
#pragma unroll
        for (int o = 0; o < S::OUTPUTS; o++) {
            const int32_t row = first_row + g * GROUP + lane / PART;
            const int32_t out = first + o * COLUMNS + lane % PART * 2;
            const int64_t at = y + row * p.y_pitch + p.kept + out;
            const pack<float, 2> v = {sum[g][2 * o], sum[g][2 * o + 1]};
            if (row >= p.rows || out >= p.out)
                continue;
            if (p.pairs && out + 1 < p.out) {
                put_elements<2>(p.y, at, v);
                continue;
            }
            put_element(p.y, at, v.e[0]);
            if (out + 1 < p.out)
                put_element(p.y, at + 1, v.e[1]);
        }
}

/* The columns behind `in`, as they are. */
DEVICE void copy_kept(const struct head_product &p, const float *x, int64_t y, int32_t first_row,
                      int32_t rows)
{
    for (int32_t n = (int32_t)threadIdx.x; n < rows * p.kept; n += WARPS * WARP) {
        const int32_t row = first_row + n / p.kept, i = n % p.kept;
        if (row < p.rows)
            put_element(p.y, y + row * p.y_pitch + i, x[row * p.x_pitch + p.in + i]);
    }
}

/* Block (part of the outputs, head, tile of rows). */
template <typename S>
__global__ void __launch_bounds__(WARPS *WARP) head_linear_kernel(struct head_product p)
{
    const int32_t head = (int32_t)blockIdx.y, first_row = (int32_t)blockIdx.z * S::ROWS;
    const int32_t warp = (int32_t)(blockIdx.x * WARPS + threadIdx.x / WARP);
    const int32_t first = warp * S::OUTS, steps = (p.in + S::STEP - 1) / S::STEP;
    const unsigned char *w = p.weight[head];
    const float *x = p.x + (int64_t)head * (p.in + p.kept);
    const int64_t y = (int64_t)head * (p.kept + p.out);
    float sum[S::GROUPS][S::OUTPUTS * 2] = {};
    typename S::vectors v;
    load_steps<S>(v, p, w, first, 0);
    launch_release();
    launch_wait();
    if (blockIdx.x == 0)
        copy_kept(p, x, y, first_row, S::ROWS);
    if (first >= p.out)
        return;
    for (int32_t step = 0; step < steps; step += S::AHEAD) {
#pragma unroll
        for (int s = 0; s < S::AHEAD; s++)
            if (step + s < steps)
                take_step<S>(sum, v[s], p, x, first_row, (step + s) * S::STEP);
        if (step + S::AHEAD < steps)
            load_steps<S>(v, p, w, first, step + S::AHEAD);
    }
    put_results<S>(sum, p, y, first_row, first);
}

template <typename S>
static void launch(struct cuda_backend *c, const struct head_product &p, int32_t heads)
{
    const unsigned parts = blocks_for((size_t)p.out, WARPS * S::OUTS);
    const dim3 grid(parts > 0 ? parts : 1, (unsigned)heads, blocks_for((size_t)p.rows, S::ROWS));
    LAUNCH_AHEAD(c, head_linear_kernel<S>, grid, WARPS * WARP, 0, p);
}

template <typename F>
static void launch_form(struct cuda_backend *c, const struct head_product &p, int32_t heads)
{
    if (p.rows <= GEMV_ROWS)
        launch<head_shape<F, 2, 2, 4>>(c, p, heads);
    else
        launch<head_shape<F, 4, 4, 1>>(c, p, heads);
}

void head_linear_run(struct backend *b, struct view y, struct cview x, const struct experts *w,
                     int32_t kept)
{
    const struct weight_spec *s = &w->spec;
    struct head_product p = {};
    p.y = elements_of(y);
    p.x = (const float *)x.data;
    p.weight = experts_table(w);
    p.row_bytes = (int64_t)cuda_layout_of(s).pitch;
    p.x_pitch = x.cols;
    p.y_pitch = y.cols;
    p.rows = x.rows;
    p.in = s->in;
    p.out = s->out;
    p.kept = kept;
    p.whole = s->in % 4 == 0 && kept % 4 == 0 && (uintptr_t)x.data % 16 == 0;
    p.pairs = y.cols % 2 == 0 && kept % 2 == 0 && s->out % 2 == 0 && (uintptr_t)y.data % 8 == 0;
    if (x.rows == 0 || s->out + kept == 0)
        return;
    if (s->dtype == DTYPE_F32)
        launch_form<form_f32>(cuda_of(b), p, w->count);
    else if (s->dtype == DTYPE_F16)
        launch_form<form_f16>(cuda_of(b), p, w->count);
    else
        launch_form<form_bf16>(cuda_of(b), p, w->count);
}
