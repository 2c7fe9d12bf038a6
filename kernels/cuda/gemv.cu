/* DESIGN: few rows. The weight is read once, and its bytes are what takes time. They come through a
 * ring in shared memory that each thread fills and empties for itself, without a barrier: a block
 * of 8 warps has up to 40 KiB under way while it computes, whatever registers that takes, and some
 * 25 KiB on a multiprocessor cover the latency of an H200's memory.
 *
 * From 6 rows on fp32 arithmetic would take longer than the memory, so tensor cores multiply, and
 * for one row too: then a row has the same bits among 16 as alone. They take bf16. A weight is the
 * sum of one bf16 (bf16; E4M3 before its scale), two (fp16) or three (fp32). So is x: of three with
 * fp32 weights, which is all of it, of two with the others, which is 16 bits of it. Two pieces of 8
 * rows are the 16 rows of one product. Where scales of E4M3 change within a step, codes times
 * scales are cut to 16 bits, too. Products that count beside those are added up in fp32.
 *
 * The warps of a block share its outputs and take the steps of k in turns: rows are read in runs of
 * 512 bytes. Each step is a sum of its own, so that the tensor cores need not wait for the one
 * before. The ring fills while the kernel that makes x is still running. Which k a lane's elements
 * have is free as long as those of w and x agree: so a lane takes 16 bytes of a row for several
 * products, instead of the scattered pairs of the manual.
 *
 * Rejected: a pass that splits x ahead (a launch more; splitting hides behind the loads), and
 * splitting k over blocks (small weights would like it, but sums would need a second pass). */
#include "kernels/cuda/mma.cuh"

#define WARPS 8
#define COLUMNS 8 /* outputs of a product */
#define GROUP 8   /* rows of x of a product, in two pieces */
#define PART 4    /* lanes that share a row of the weight */
#define SLOTS 6   /* vectors of a thread in the ring, times two */

struct gemv_args {
    float *y;
    const float *x;
    const unsigned char *w;
    int64_t row_bytes;
    int32_t rows, in, out, vectors; /* vectors: 16 bytes each, of a row without scales */
    int32_t scale_cols, scale_skip; /* scale_cols > 0 */
};

/* ---- how weights become bf16 ---- */

/* a and b, each as the sum of N bf16: exact up to 8 bits a piece, the last is rounded. */
template <int N, int STRIDE> DEVICE void split(uint32_t *word, float a, float b)
{
#pragma unroll
    for (int i = 0; i < N - 1; i++) {
        const uint32_t high_a = __float_as_uint(a) & 0xffff0000u,
                       high_b = __float_as_uint(b) & 0xffff0000u;
        word[i * STRIDE] = high_a >> 16 | high_b;
        a -= __uint_as_float(high_a);
        b -= __uint_as_float(high_b);
    }
    word[(N - 1) * STRIDE] = mma_pair(a, b, bf16());
}

/* A form has K elements a vector; four of them, the sub-th, become PIECES times two words: elements
 * 0 and MATE, then the others. X_PIECES: of x. */
enum scales { NONE, PER_ROW, PER_STEP }; /* that are left to do after unpack */

struct form_bf16 {
    static constexpr int K = 8, PIECES = 1, X_PIECES = 2, MATE = 1;
    static constexpr enum scales SCALES = NONE;
    static DEVICE void unpack(uint32_t (&to)[PIECES][2], const uint32_t *v, int sub,
                              const struct gemv_args &, int32_t, int32_t)
    {
        to[0][0] = v[2 * sub];
        to[0][1] = v[2 * sub + 1];
    }
};

struct form_f16 {
    static constexpr int K = 8, PIECES = 2, X_PIECES = 2, MATE = 1;
    static constexpr enum scales SCALES = NONE;
    static DEVICE void unpack(uint32_t (&to)[PIECES][2], const uint32_t *v, int sub,
                              const struct gemv_args &, int32_t, int32_t)
    {
        pack<__half, 4> h;
        memcpy(&h, v + 2 * sub, sizeof h);
        split<PIECES, 2>(&to[0][0], to_float(h.e[0]), to_float(h.e[1]));
        split<PIECES, 2>(&to[0][1], to_float(h.e[2]), to_float(h.e[3]));
    }
};

struct form_f32 {
    static constexpr int K = 4, PIECES = 3, X_PIECES = 3, MATE = 1;
    static constexpr enum scales SCALES = NONE;
    static DEVICE void unpack(uint32_t (&to)[PIECES][2], const uint32_t *v, int,
                              const struct gemv_args &, int32_t, int32_t)
    {
        split<PIECES, 2>(&to[0][0], __uint_as_float(v[0]), __uint_as_float(v[1]));
        split<PIECES, 2>(&to[0][1], __uint_as_float(v[2]), __uint_as_float(v[3]));
    }
};

#ifndef MMA_EMULATED
/* Both bf16 of a word times those of another; subnormal ones count. */
DEVICE uint32_t mma_times(uint32_t a, uint32_t b)
{
    uint32_t y;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(b), "r"(0x80008000u));
    return y;
}
#endif

/* Two codes, in the high bytes of a word's halves, as bf16. Their exponent lands where it counts
 * 2^-120 too few. */
DEVICE uint32_t f8_pair(uint32_t codes)
{
    return mma_times((codes & 0x80008000u) | (codes >> 4 & 0x07f007f0u), 0x7b807b80u);
}

template <enum scales WHICH> struct form_f8 {
    static constexpr int K = 16, PIECES = 1, X_PIECES = 2, MATE = 2;
    static constexpr enum scales SCALES = WHICH;
    static DEVICE void unpack(uint32_t (&to)[PIECES][2], const uint32_t *v, int sub,
                              const struct gemv_args &, int32_t, int32_t)
    {
        to[0][0] = f8_pair(v[sub] << 8);
        to[0][1] = f8_pair(v[sub]);
    }
};

/* One beyond the end stands for the last. */
DEVICE const unsigned char *output_row(const struct gemv_args &a, int32_t o)
{
    return a.w + (o < a.out ? o : a.out - 1) * a.row_bytes;
}

/* Of an output's column, which may be one of the tail. */
DEVICE float f8_scale(const struct gemv_args &a, int32_t o, int32_t k)
{
    const int32_t last = k < a.in ? k : a.in - 1;
    const float *scale = (const float *)(output_row(a, o) + (int64_t)a.vectors * CUDA_VECTOR);
    return scale[(a.scale_skip + last) / a.scale_cols];
}

/* Scales that change within a step, at columns that are multiples of RUN. */
template <int RUN> struct form_f8_mixed {
    static constexpr int K = 16, PIECES = 2, X_PIECES = 2, MATE = 2;
    static constexpr enum scales SCALES = NONE;
    static DEVICE void unpack(uint32_t (&to)[PIECES][2], const uint32_t *v, int sub,
                              const struct gemv_args &a, int32_t o, int32_t k)
    {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t pair = f8_pair(i == 0 ? v[sub] << 8 : v[sub]);
            const int at = 4 * sub + i;
            split<PIECES, 2>(
                &to[0][i], __uint_as_float(pair << 16) * f8_scale(a, o, k + at / RUN * RUN),
                __uint_as_float(pair & 0xffff0000u) * f8_scale(a, o, k + (at + MATE) / RUN * RUN));
        }
    }
};

/* ---- the product ---- */

/* Elements [k, k + 4) of a row of x that has `in`, or 0 where there is no such row. */
template <bool ALIGNED> DEVICE void load_x(float (&v)[4], const float *row, int32_t in, int32_t k)
{
    if (ALIGNED) { /* in is a multiple of 4: whole or not at all */
        *(pack<float, 4> *)v = k < in ? *(const pack<float, 4> *)(row + k) : pack<float, 4>{};
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++)
            v[i] = k + i < in ? row[k + i] : 0.0f;
    }
}

/* A lane's rows of x: one of each group. */
template <int GROUPS> struct x_rows {
    const float *row[GROUPS];
    int32_t in[GROUPS];
};

/* sum[g][o] += one step: the vectors v of the lane's outputs, times x from column k on. Of the four
 * the first two are the sums of one piece of x, the others of the next. */
template <typename F, int GROUPS, int OUTPUTS, bool ALIGNED>
DEVICE void multiply(float (&sum)[GROUPS][OUTPUTS][4], const pack<uint32_t, 4> (&v)[OUTPUTS],
                     const struct x_rows<GROUPS> &x, const struct gemv_args &a, int32_t first,
                     int32_t k)
{
    constexpr int PAIRS = (F::X_PIECES + 1) / 2; /* of pieces */
#pragma unroll
    for (int sub = 0; sub < F::K / 4; sub++) {
        uint32_t rows[GROUPS][PAIRS][4] = {};
#pragma unroll
        for (int g = 0; g < GROUPS; g++) {
            alignas(16) float f[4];
            uint32_t word[2][F::X_PIECES];
            load_x<ALIGNED>(f, x.row[g], x.in[g], k + 4 * sub);
            split<F::X_PIECES, 1>(word[0], f[0], f[F::MATE]);
            split<F::X_PIECES, 1>(word[1], f[3 - F::MATE], f[3]);
#pragma unroll
            for (int i = 0; i < F::X_PIECES * 2; i++)
                rows[g][i / 2 / 2][i % 2 * 2 + i / 2 % 2] = word[i % 2][i / 2];
        }
#pragma unroll
        for (int o = 0; o < OUTPUTS; o++) {
            const int32_t out = first + o * COLUMNS + (int32_t)threadIdx.x % WARP / PART;
            uint32_t to[F::PIECES][2];
            F::unpack(to, v[o].e, sub, a, out, k);
#pragma unroll
            for (int p = F::PIECES - 1; p >= 0; p--) /* what is small first */
#pragma unroll
                for (int i = PAIRS - 1; i >= 0; i--)
#pragma unroll
                    for (int g = 0; g < GROUPS; g++)
                        if (p + 2 * i < 3)
                            mma_multiply(sum[g][o], rows[g][i], to[p][0], to[p][1], bf16());
        }
    }
}

/* Output i of those that a lane sums up, of which a product leaves it two: 2 * j and the next. */
DEVICE int32_t output_of(int32_t first, int i)
{
    return first + i / 2 * COLUMNS + (int32_t)threadIdx.x % PART * 2 + i % 2;
}

/* sum += part, which has its first column's scales. */
template <typename F, int GROUPS, int OUTPUTS>
DEVICE void add_step(float (&sum)[GROUPS][OUTPUTS * 2], const float (&part)[GROUPS][OUTPUTS][4],
                     const struct gemv_args &a, int32_t first, int32_t k)
{
#pragma unroll
    for (int i = 0; i < OUTPUTS * 2; i++) {
        const float scale = F::SCALES == PER_STEP ? f8_scale(a, output_of(first, i), k) : 1.0f;
#pragma unroll
        for (int g = 0; g < GROUPS; g++) {
            const float *pieces = part[g][i / 2] + i % 2;
            sum[g][i] = fmaf(pieces[0] + pieces[2], scale, sum[g][i]);
        }
    }
}

/* The sums of all warps, in their order, to y; `shared` has room for them. */
template <typename F, int GROUPS, int N>
DEVICE void write_out(const struct gemv_args &a, const float (&sum)[GROUPS][N], int32_t first,
                      void *shared)
{
    typedef float sums[GROUPS * N][WARP];
    sums *of_warp = (sums *)shared;
    const int32_t warp = (int32_t)threadIdx.x / WARP, lane = (int32_t)threadIdx.x % WARP;
    __syncthreads(); /* nobody needs the ring any more */
#pragma unroll
    for (int i = 0; i < GROUPS * N; i++)
        of_warp[warp][i][lane] = sum[i / N][i % N];
    __syncthreads();
    for (int32_t i = warp; i < GROUPS * N; i += WARPS) {
        const int32_t o = output_of(first, i % N), t = i / N * GROUP + lane / PART;
        float total = of_warp[0][i][lane];
        for (int32_t from = 1; from < WARPS; from++)
            total += of_warp[from][i][lane];
        if (o < a.out && t < a.rows)
            a.y[(int64_t)t * a.out + o] = F::SCALES == PER_ROW ? total * f8_scale(a, o, 0) : total;
    }
}

/* GROUPS: of rows of x. More of them want more outputs, among which their splitting is shared. */
template <typename F, int GROUPS, bool ALIGNED>
__global__ void __launch_bounds__(WARPS *WARP, 2) gemv_kernel(struct gemv_args a)
{
    constexpr int OUTPUTS = 2 * GROUPS, STAGES = SLOTS / GROUPS;
    __shared__ pack<uint32_t, 4> ring[STAGES][OUTPUTS][WARPS * WARP];
    const int32_t warp = (int32_t)threadIdx.x / WARP, lane = (int32_t)threadIdx.x % WARP;
    const int32_t first = (int32_t)blockIdx.x * COLUMNS * OUTPUTS;
    const int32_t steps = (a.vectors + PART - 1) / PART;
    struct x_rows<GROUPS> x;
    float sum[GROUPS][OUTPUTS * 2] = {};
    const unsigned char *w[OUTPUTS];
#pragma unroll
    for (int o = 0; o < OUTPUTS; o++)
        w[o] = output_row(a, first + o * COLUMNS + lane / PART) + lane % PART * CUDA_VECTOR;
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        const int32_t t = g * GROUP + lane / PART;
        x.row[g] = a.x + (int64_t)t * a.in;
        x.in[g] = t < a.rows ? a.in : 0;
    }
    const auto fetch = [&](int32_t step, int32_t stage) {
        const int32_t i = step * PART;
#pragma unroll
        for (int o = 0; o < OUTPUTS; o++)
            mma_copy(&ring[stage][o][threadIdx.x], w[o] + (int64_t)i * CUDA_VECTOR,
                     i + lane % PART < a.vectors);
        mma_copy_group();
    };
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++)
        fetch(warp + s * WARPS, s);
    launch_wait(); /* the weight is no kernel's result, x is */
    for (int32_t step = warp, stage = 0; step < steps; step += WARPS) {
        fetch(step + (STAGES - 1) * WARPS, stage == 0 ? STAGES - 1 : stage - 1);
        mma_copy_wait<STAGES - 1>();
        pack<uint32_t, 4> v[OUTPUTS];
#pragma unroll
        for (int o = 0; o < OUTPUTS; o++)
            v[o] = ring[stage][o][threadIdx.x];
        float part[GROUPS][OUTPUTS][4] = {};
        multiply<F, GROUPS, OUTPUTS, ALIGNED>(part, v, x, a, first,
                                              (step * PART + lane % PART) * F::K);
        add_step<F, GROUPS, OUTPUTS>(sum, part, a, first, step * PART * F::K);
        stage = stage + 1 < STAGES ? stage + 1 : 0;
    }
    mma_copy_wait<0>();
    write_out<F, GROUPS>(a, sum, first, ring);
}

/* ---- launches ---- */

template <typename F, int GROUPS> static void launch(struct cuda_backend *c, struct gemv_args a)
{
    const unsigned grid = blocks_for((size_t)a.out, COLUMNS * 2 * GROUPS);
    if (a.in % 4 == 0 && (uintptr_t)a.x % 16 == 0)
        LAUNCH_AHEAD(c, (gemv_kernel<F, GROUPS, true>), grid, WARPS * WARP, 0, a);
    else
        LAUNCH_AHEAD(c, (gemv_kernel<F, GROUPS, false>), grid, WARPS * WARP, 0, a);
}

/* MOST rows at once. */
template <typename F, int MOST = GEMV_ROWS>
static void passes(struct cuda_backend *c, struct gemv_args a)
{
    for (int32_t left = a.rows; left > 0; left -= MOST) {
        a.rows = left < MOST ? left : MOST;
        if (a.rows <= GROUP)
            launch<F, 1>(c, a);
        else
            launch<F, MOST / GROUP>(c, a);
        a.x += (int64_t)MOST * a.in;
        a.y += (int64_t)MOST * a.out;
    }
}

void gemv_run(struct cuda_backend *c, struct view y, struct cview x, const struct weight *w)
{
    const struct weight_spec *s = &w->spec;
    const size_t bytes = cuda_pitch(s->in, s->dtype) * cuda_element_bytes(s->dtype);
    const struct gemv_args a = {(float *)y.data,
                                (const float *)x.data,
                                w->storage,
                                (int64_t)cuda_row_bytes(s),
                                y.rows,
                                s->in,
                                s->out,
                                (int32_t)(bytes / CUDA_VECTOR),
                                s->scale_cols > 0 ? s->scale_cols : INT32_MAX,
                                s->scale_skip};
    constexpr int32_t VECTOR = form_f8<PER_STEP>::K, STEP = VECTOR * PART;
    if (s->dtype == DTYPE_BF16)
        passes<form_bf16>(c, a);
    else if (s->dtype == DTYPE_F16)
        passes<form_f16>(c, a);
    else if (s->dtype == DTYPE_F32)
        passes<form_f32>(c, a);
    else if (s->scale_cols == 0)
        passes<form_f8<PER_ROW>>(c, a);
    else if (s->scale_cols % STEP == 0 && s->scale_skip % STEP == 0)
        passes<form_f8<PER_STEP>>(c, a);
    else if (s->scale_cols % VECTOR == 0 && s->scale_skip % VECTOR == 0)
        passes<form_f8_mixed<VECTOR>>(c, a);
    else
        passes<form_f8_mixed<1>, GROUP>(c, a); /* registers are too few for more */
}
