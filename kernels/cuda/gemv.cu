/* DESIGN: few rows. The weight is read once and its bytes are what takes time: a lane has 8 loads
 * of 16 bytes under way before it uses the first, so a block of 8 warps has 32 KiB, and two or more
 * blocks fit on a multiprocessor; some 25 KiB there cover the latency of an H200's memory.
 *
 * From 6 rows on fp32 arithmetic would take longer than the memory, so tensor cores multiply, and
 * for one row too: then a row has the same bits among 16 as alone. They take bf16. An x is the sum
 * of three bf16 without rest, a weight of one (bf16; E4M3 before its scale), two (fp16) or three
 * (fp32; E4M3 whose scale changes somewhere in a step); all products that count in fp32 are added
 * up, in fp32.
 *
 * The warps of a block share its outputs and take the steps of k in turns: rows are read in runs of
 * 512 bytes. Which k a lane's elements have is free as long as those of w and x agree, so a lane
 * takes 16 bytes of a row, in four mma and fewer, instead of the scattered pairs of the manual.
 *
 * Rejected: a pass that splits x ahead (a launch more; splitting hides behind the loads), and
 * splitting k over blocks (small weights would like it, but sums would need a second pass). */
#include "kernels/cuda/mma.cuh"

#define WARPS 8
#define TILE 16    /* outputs of an mma */
#define COLUMNS 8  /* rows of x of an mma */
#define PART 4     /* lanes that share a row */
#define X_PIECES 3 /* bf16 that an fp32 is the sum of */

struct gemv_args {
    float *y;
    const float *x;
    const unsigned char *w;
    int64_t row_bytes;
    int32_t rows, in, out, vectors; /* vectors: 16 bytes each, of a row without scales */
    int32_t scale_cols, scale_skip;
};

/* ---- how weights become bf16 ---- */

/* a and b, each as a sum of N bf16: exact up to 8 bits a piece. */
template <int N, int STRIDE> DEVICE void split(uint32_t *word, float a, float b)
{
#pragma unroll
    for (int i = 0; i < N; i++) {
        const uint32_t high_a = __float_as_uint(a) & 0xffff0000u,
                       high_b = __float_as_uint(b) & 0xffff0000u;
        word[i * STRIDE] = high_a >> 16 | high_b;
        a -= __uint_as_float(high_a);
        b -= __uint_as_float(high_b);
    }
}

/* A form has K elements a vector; four of them, the sub-th, become PIECES times two words: elements
 * 0 and MATE, then the others. SCALED: a step has one scale, that of its first column. */
struct form_bf16 {
    static constexpr int K = 8, PIECES = 1, MATE = 1;
    static constexpr bool SCALED = false;
    static DEVICE void unpack(uint32_t (&to)[PIECES][2], const uint32_t *v, int sub,
                              const struct gemv_args &, const unsigned char *, int32_t)
    {
        to[0][0] = v[2 * sub];
        to[0][1] = v[2 * sub + 1];
    }
};

struct form_f16 {
    static constexpr int K = 8, PIECES = 2, MATE = 1;
    static constexpr bool SCALED = false;
    static DEVICE void unpack(uint32_t (&to)[PIECES][2], const uint32_t *v, int sub,
                              const struct gemv_args &, const unsigned char *, int32_t)
    {
        pack<__half, 4> h;
        memcpy(&h, v + 2 * sub, sizeof h);
        split<PIECES, 2>(&to[0][0], to_float(h.e[0]), to_float(h.e[1]));
        split<PIECES, 2>(&to[0][1], to_float(h.e[2]), to_float(h.e[3]));
    }
};

struct form_f32 {
    static constexpr int K = 4, PIECES = 3, MATE = 1;
    static constexpr bool SCALED = false;
    static DEVICE void unpack(uint32_t (&to)[PIECES][2], const uint32_t *v, int,
                              const struct gemv_args &, const unsigned char *, int32_t)
    {
        split<PIECES, 2>(&to[0][0], __uint_as_float(v[0]), __uint_as_float(v[1]));
        split<PIECES, 2>(&to[0][1], __uint_as_float(v[2]), __uint_as_float(v[3]));
    }
};

/* Two codes, in the high bytes of a word's halves, as bf16. Their exponent lands where it counts
 * 2^-120 too few. */
DEVICE uint32_t f8_pair(uint32_t codes)
{
    return mma_times((codes & 0x80008000u) | (codes >> 4 & 0x07f007f0u), 0x7b807b80u);
}

struct form_f8 {
    static constexpr int K = 16, PIECES = 1, MATE = 2;
    static constexpr bool SCALED = true;
    static DEVICE void unpack(uint32_t (&to)[PIECES][2], const uint32_t *v, int sub,
                              const struct gemv_args &, const unsigned char *, int32_t)
    {
        to[0][0] = f8_pair(v[sub] << 8);
        to[0][1] = f8_pair(v[sub]);
    }
};

/* Of a column of a row of F8_E4M3, which may be one of its tail. */
DEVICE float f8_scale(const struct gemv_args &a, const unsigned char *row, int32_t k)
{
    const int32_t last = k < a.in ? k : a.in - 1;
    const int32_t i = a.scale_cols == 0 ? 0 : (a.scale_skip + last) / a.scale_cols;
    return ((const float *)(row + (int64_t)a.vectors * CUDA_VECTOR))[i];
}

/* Scales as they come: an element is its code times its scale, rounded to fp32. */
struct form_f8_mixed {
    static constexpr int K = 16, PIECES = 3, MATE = 1;
    static constexpr bool SCALED = false;
    static DEVICE void unpack(uint32_t (&to)[PIECES][2], const uint32_t *v, int sub,
                              const struct gemv_args &a, const unsigned char *row, int32_t k)
    {
        float f[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            f[i] = to_float(e4m3{(uint8_t)(v[sub] >> 8 * i)}) * f8_scale(a, row, k + 4 * sub + i);
        split<PIECES, 2>(&to[0][0], f[0], f[1]);
        split<PIECES, 2>(&to[0][1], f[2], f[3]);
    }
};

/* ---- the product ---- */

/* Elements [k, k + 4) of row t of x, zeros beyond it. */
template <bool ALIGNED>
DEVICE void load_x(float (&v)[4], const struct gemv_args &a, int32_t t, int32_t k)
{
    const float *x = a.x + (int64_t)t * a.in + k;
    if (ALIGNED) { /* in is a multiple of 4: whole or not at all */
        *(pack<float, 4> *)v =
            t < a.rows && k < a.in ? *(const pack<float, 4> *)x : pack<float, 4>{};
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++)
            v[i] = t < a.rows && k + i < a.in ? x[i] : 0.0f;
    }
}

/* sum[m][n] += one step: the vectors v of a lane's rows, those of x from column k on. */
template <typename F, int TILES, bool ALIGNED>
DEVICE void multiply(float (&sum)[TILES][TILES][4], const pack<uint32_t, 4> *v,
                     const struct gemv_args &a, const unsigned char *const *row, int32_t k)
{
    const int32_t t = (int32_t)threadIdx.x % WARP / PART;
#pragma unroll
    for (int sub = 0; sub < F::K / 4; sub++) {
        uint32_t x[TILES][X_PIECES][2];
#pragma unroll
        for (int n = 0; n < TILES; n++) {
            alignas(16) float f[4];
            load_x<ALIGNED>(f, a, n * COLUMNS + t, k + 4 * sub);
            split<X_PIECES, 2>(&x[n][0][0], f[0], f[F::MATE]);
            split<X_PIECES, 2>(&x[n][0][1], f[3 - F::MATE], f[3]);
        }
#pragma unroll
        for (int m = 0; m < TILES; m++) {
            uint32_t low[F::PIECES][2], high[F::PIECES][2];
            F::unpack(low, v[2 * m].e, sub, a, row[2 * m], k);
            F::unpack(high, v[2 * m + 1].e, sub, a, row[2 * m + 1], k);
#pragma unroll
            for (int p = F::PIECES - 1; p >= 0; p--) { /* what is small first */
                const uint32_t w[4] = {low[p][0], high[p][0], low[p][1], high[p][1]};
#pragma unroll
                for (int n = 0; n < TILES; n++)
#pragma unroll
                    for (int i = X_PIECES - 1 - p; i >= 0; i--)
                        mma_multiply(sum[m][n], w, x[n][i][0], x[n][i][1], bf16());
            }
        }
    }
}

/* The sums of all warps, in their order, to y. */
template <int TILES>
DEVICE void write_out(const struct gemv_args &a, const float (&sum)[TILES][TILES][4], int32_t first)
{
    constexpr int SUMS = TILES * TILES * 4;
    __shared__ float of_warp[WARPS][SUMS][WARP];
    const int32_t warp = (int32_t)threadIdx.x / WARP, lane = (int32_t)threadIdx.x % WARP;
#pragma unroll
    for (int i = 0; i < SUMS; i++)
        of_warp[warp][i][lane] = sum[i / 4 / TILES][i / 4 % TILES][i % 4];
    __syncthreads();
    for (int32_t i = warp; i < SUMS; i += WARPS) {
        float total = of_warp[0][i][lane];
        for (int32_t from = 1; from < WARPS; from++)
            total += of_warp[from][i][lane];
        const int32_t o = first + i / 4 / TILES * TILE + lane / PART + i % 4 / 2 * 8;
        const int32_t t = i / 4 % TILES * COLUMNS + lane % PART * 2 + i % 2;
        if (o < a.out && t < a.rows)
            a.y[(int64_t)t * a.out + o] = total;
    }
}

/* TILES: of rows of x, and of outputs. */
template <typename F, int TILES, bool ALIGNED>
__global__ void __launch_bounds__(WARPS *WARP, 2) gemv_kernel(struct gemv_args a)
{
    constexpr int ROWS = 2 * TILES, STEPS = 8 / ROWS;
    const int32_t warp = (int32_t)threadIdx.x / WARP, lane = (int32_t)threadIdx.x % WARP;
    const int32_t first = (int32_t)blockIdx.x * TILE * TILES;
    const unsigned char *row[ROWS]; /* one beyond the end stands for the last */
    float sum[TILES][TILES][4] = {};
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const int32_t o = first + r * 8 + lane / PART;
        row[r] = a.w + (o < a.out ? o : a.out - 1) * a.row_bytes;
    }
    for (int32_t step = warp; step * PART < a.vectors; step += WARPS * STEPS) {
        pack<uint32_t, 4> v[STEPS][ROWS];
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            const int32_t i = (step + s * WARPS) * PART + lane % PART;
#pragma unroll
            for (int r = 0; r < ROWS; r++)
                v[s][r] = i < a.vectors ? load_once(row[r] + (int64_t)i * CUDA_VECTOR)
                                        : pack<uint32_t, 4>{};
        }
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            const int32_t i = (step + s * WARPS) * PART;
            const int32_t k = (i + lane % PART) * F::K;
            if (i >= a.vectors) /* for the whole warp */
                break;
            if (!F::SCALED) {
                multiply<F, TILES, ALIGNED>(sum, v[s], a, row, k);
                continue;
            }
            float part[TILES][TILES][4] = {};
            multiply<F, TILES, ALIGNED>(part, v[s], a, row, k);
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                const float scale = f8_scale(a, row[r], i * F::K);
#pragma unroll
                for (int n = 0; n < TILES; n++)
#pragma unroll
                    for (int e = r % 2 * 2; e < r % 2 * 2 + 2; e++)
                        sum[r / 2][n][e] = fmaf(part[r / 2][n][e], scale, sum[r / 2][n][e]);
            }
        }
    }
    write_out<TILES>(a, sum, first);
}

/* ---- launches ---- */

template <typename F, int TILES> static void launch(struct cuda_backend *c, struct gemv_args a)
{
    const unsigned grid = blocks_for((size_t)a.out, TILE * TILES);
    if (a.in % 4 == 0 && (uintptr_t)a.x % 16 == 0)
        LAUNCH(c, (gemv_kernel<F, TILES, true>), grid, WARPS * WARP, 0, a);
    else
        LAUNCH(c, (gemv_kernel<F, TILES, false>), grid, WARPS * WARP, 0, a);
}

template <typename F> static void passes(struct cuda_backend *c, struct gemv_args a)
{
    for (int32_t left = a.rows; left > 0; left -= GEMV_ROWS) {
        a.rows = left < GEMV_ROWS ? left : GEMV_ROWS;
        if (a.rows <= COLUMNS)
            launch<F, 1>(c, a);
        else
            launch<F, 2>(c, a);
        a.x += (int64_t)GEMV_ROWS * a.in;
        a.y += (int64_t)GEMV_ROWS * a.out;
    }
}

void gemv_run(struct cuda_backend *c, struct view y, struct cview x, const struct weight *w)
{
    const struct weight_spec *s = &w->spec;
    const size_t bytes = cuda_pitch(s->in, s->dtype) * cuda_element_bytes(s->dtype);
    const struct gemv_args a = {(float *)y.data, (const float *)x.data,
                                w->storage,      (int64_t)cuda_row_bytes(s),
                                y.rows,          s->in,
                                s->out,          (int32_t)(bytes / CUDA_VECTOR),
                                s->scale_cols,   s->scale_skip};
    const int32_t step = form_f8::K * PART;
    if (s->dtype == DTYPE_BF16)
        passes<form_bf16>(c, a);
    else if (s->dtype == DTYPE_F16)
        passes<form_f16>(c, a);
    else if (s->dtype == DTYPE_F32)
        passes<form_f32>(c, a);
    else if (s->scale_cols % step == 0 && s->scale_skip % step == 0)
        passes<form_f8>(c, a);
    else
        passes<form_f8_mixed>(c, a);
}
