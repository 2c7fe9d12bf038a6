/* DESIGN: weights of 4 and 8 bits for more rows than gemv.cu takes and too few to widen the weight
 * for (linear.cu). Such a product reads a quarter or half of what bf16 would, if codes become bf16
 * in registers, once for all rows of a block: A of a tensor core's product are 16 outputs, B are 8
 * rows of x. x is rounded to bf16, as for cuBLAS, by a pass of its own, which puts it down in the
 * order in which lanes want it: what a lane loads from shared memory, 16 bytes, is what it needs of
 * one row for two products. So a lane can take 16 bytes of a row of the weight for several
 * products, as in product.cuh, whose forms these are.
 *
 * A block has 128 outputs and up to 64 rows: all weights and x pass through shared memory in
 * stages of 64 bytes of each row of the weight. Two blocks fit on a multiprocessor. Where there are
 * fewer of them than that, several share the inner dimension, and one more launch adds them up. */
#include "kernels/cuda/product.cuh"

#define WARPS 4
#define THREADS (WARPS * WARP)
#define TILES 2 /* of 16 outputs, of a warp */
#define OUTPUTS (WARPS * TILES * 16)
#define SPLITS 8       /* most */
#define PROCESSORS 132 /* of an H100 */

typedef pack<uint32_t, 4> quad;

/* ---- forms, read ahead ---- */

/* A form with its scales: what is read of them, and what unpack takes. */
struct narrow_e2m1 : form_e2m1<false> {
    typedef uint32_t words;
    static DEVICE words read(const struct product &p, const unsigned char *row, int32_t group)
    {
        return row[p.scales_at + group];
    }
    static DEVICE ready finish(words w)
    {
        ready r;
        r.first.take(w);
        return r;
    }
};

/* Integers of a file: scales of 4 bytes, or zeros. */
template <typename F> struct narrow_file : F {
    typedef int_group::words words;
    static DEVICE words read(const struct product &p, const unsigned char *row, int32_t group)
    {
        return int_group::read(p, row, (uint32_t)group);
    }
};

/* Integers as they are made here: scales of 2 bytes, and no zeros. */
template <typename F> struct narrow_made : F {
    typedef uint32_t words;
    static DEVICE words read(const struct product &p, const unsigned char *row, int32_t group)
    {
        return ((const uint16_t *)(row + p.scales_at))[group];
    }
};

struct narrow_file_int4 : narrow_file<form_int4<false>> {
    static DEVICE ready finish(const words &w)
    {
        ready r;
        r.first.take(w);
        return r;
    }
};

struct narrow_int4 : narrow_made<form_int4<false>> {
    typedef uint32_t ready;
    static DEVICE ready finish(words w)
    {
        return twice(w);
    }
    static DEVICE void unpack(uint32_t (&to)[1][2], const uint32_t *v, int sub, ready scale)
    {
#pragma unroll
        for (int i = 0; i < 2; i++)
            to[0][i] = mma_times(int4_pair(v, 2 * sub + i, INT4_CENTRE), scale);
    }
};

struct narrow_file_int8 : narrow_file<form_int8<false>> {
    static DEVICE ready finish(const words &w)
    {
        struct int_group g;
        g.take(w);
        return {g.as_float(), 0, K};
    }
};

struct narrow_int8 : narrow_made<form_int8<false>> {
    static DEVICE ready finish(words w)
    {
        return {__uint_as_float(w << 16), 0, K};
    }
};

/* A scale is two bf16, 16 bits of it. */
struct narrow_f8 {
    static constexpr int K = 16, MATE = 2;
    static constexpr enum scales SCALES = GROUPED;
    typedef float words;
    struct ready {
        uint32_t scale, more;
    };
    static DEVICE words read(const struct product &p, const unsigned char *row, int32_t group)
    {
        return ((const float *)(row + p.scales_at))[group];
    }
    static DEVICE ready finish(words w)
    {
        uint32_t piece[2];
        split<2, 1>(piece, w, w);
        return {piece[0], piece[1]};
    }
    static DEVICE void unpack(uint32_t (&to)[1][2], const uint32_t *v, int sub, ready r)
    {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t pair = f8_pair(i == 0 ? v[sub] << 8 : v[sub]);
            to[0][i] = mma_times_plus(pair, r.scale, mma_times(pair, r.more));
        }
    }
};

struct narrow_f8_row : form_f8<PER_ROW> {
    typedef ready words;
    static DEVICE words read(const struct product &, const unsigned char *, int32_t)
    {
        return {};
    }
    static DEVICE ready finish(words w)
    {
        return w;
    }
};

/* ---- x ---- */

/* Of 8 rows of x (a group) and a step of columns (PART vectors of the weight): of each pair of
 * products what lane after lane needs. */
template <typename F> constexpr int PAIRS = F::K / 8;

/* to[steps][groups][PAIRS][lane]; zeros where x has nothing. */
template <typename F>
__global__ void arrange_kernel(quad *to, const float *x, int32_t rows, int32_t in, int32_t groups,
                               int32_t count)
{
    const int32_t i = (int32_t)(blockIdx.x * blockDim.x + threadIdx.x);
    const int32_t lane = i % WARP, pair = i / WARP % PAIRS<F>, part = i / (WARP * PAIRS<F>);
    const int32_t t = part % groups * GROUP + lane / PART;
    const int32_t k = (part / groups * PART + lane % PART) * F::K + pair * 8;
    float v[8];
    quad word;
    launch_wait();
    if (i >= count)
        return;
#pragma unroll
    for (int j = 0; j < 8; j++)
        v[j] = t < rows && k + j < in ? x[(int64_t)t * in + k + j] : 0.0f;
#pragma unroll
    for (int j = 0; j < 8; j += 4) {
        word.e[j / 2] = mma_pair(v[j], v[j + F::MATE], bf16());
        word.e[j / 2 + 1] = mma_pair(v[j + 3 - F::MATE], v[j + 3], bf16());
    }
    to[i] = word;
}

/* ---- the product ---- */

/* GROUPS: of 8 rows of x, of a block. */
template <typename F, int GROUPS> struct stage {
    quad w[OUTPUTS][PART];
    quad x[GROUPS][PAIRS<F>][WARP];
};

struct job {
    const quad *x;
    float *y;                         /* [splits][rows, out] */
    int32_t groups, steps, per_split; /* steps of a split */
};

/* The scale that a lane's column has, moved on from step to step. */
struct scale_place {
    int32_t group, rest;
    DEVICE void move(int32_t columns, int32_t scale_cols)
    {
        for (rest += columns; rest >= scale_cols; rest -= scale_cols)
            group++;
    }
};

/* What a warp makes of a stage. */
template <typename F, int GROUPS>
DEVICE void take_stage(float (&sum)[TILES][GROUPS][4], const struct stage<F, GROUPS> &s,
                       const typename F::ready (&ready)[TILES][2])
{
    const int32_t lane = (int32_t)threadIdx.x % WARP;
    const int32_t first = (int32_t)threadIdx.x / WARP * TILES * 16 + lane / PART;
    quad v[TILES][2];
#pragma unroll
    for (int i = 0; i < TILES * 2; i++)
        v[i / 2][i % 2] = s.w[first + i * 8][lane % PART];
#pragma unroll
    for (int pair = 0; pair < PAIRS<F>; pair++) {
        uint32_t a[2][TILES][4];
#pragma unroll
        for (int i = 0; i < 2 * TILES * 2; i++) {
            const int sub = i / (2 * TILES), tile = i / 2 % TILES, half = i % 2;
            uint32_t to[1][2];
            F::unpack(to, v[tile][half].e, 2 * pair + sub, ready[tile][half]);
            a[sub][tile][half] = to[0][0];
            a[sub][tile][2 + half] = to[0][1];
        }
#pragma unroll
        for (int g = 0; g < GROUPS; g++) {
            const quad b = s.x[g][pair][lane];
#pragma unroll
            for (int i = 0; i < 2 * TILES; i++)
                mma_multiply(sum[i % TILES][g], a[i / TILES][i % TILES], b.e[i / TILES * 2],
                             b.e[i / TILES * 2 + 1], bf16());
        }
    }
}

/* What a thread copies: one vector of each of several rows of the weight, and of x. */
template <typename F, int GROUPS> struct copier {
    static constexpr int ROWS = OUTPUTS * PART / THREADS, QUADS = GROUPS * PAIRS<F> * WARP;
    const unsigned char *w[ROWS];
    const quad *x;
    int32_t k, end; /* the vector's first column */
    int32_t x_step; /* quads from one step to the next */
    DEVICE copier(const struct product &p, const struct job &j, int32_t first, int32_t group,
                  int32_t step)
    {
        const int32_t vector = step * PART + (int32_t)threadIdx.x % PART;
#pragma unroll
        for (int i = 0; i < ROWS; i++)
            w[i] = output_row(p, first + (i * THREADS + (int32_t)threadIdx.x) / PART) +
                   (int64_t)vector * CUDA_VECTOR;
        k = vector * F::K;
        end = p.cut[1];
        x_step = j.groups * PAIRS<F> * WARP;
        x = j.x + (int64_t)step * x_step + group * PAIRS<F> * WARP + threadIdx.x;
    }
    DEVICE void copy_weights(struct stage<F, GROUPS> *to)
    {
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            mma_copy_far(&to->w[0][0] + i * THREADS + threadIdx.x, w[i], k < end);
            w[i] += PART * CUDA_VECTOR;
        }
        k += PART * F::K;
    }
    DEVICE void copy_x(struct stage<F, GROUPS> *to)
    {
#pragma unroll
        for (int i = 0; i < QUADS; i += THREADS)
            mma_copy(&to->x[0][0][0] + i + threadIdx.x, x + i, true);
        x += x_step;
    }
};

template <typename F, int GROUPS>
DEVICE void write_out(const struct product &p, float *y, const float (&sum)[TILES][GROUPS][4],
                      int32_t first, int32_t row)
{
    const int32_t lane = (int32_t)threadIdx.x % WARP;
#pragma unroll
    for (int i = 0; i < TILES * 2; i++) {
        const int32_t o = first + i * 8;
        const float scale =
            F::SCALES == PER_ROW ? *(const float *)(output_row(p, o) + p.scales_at) : 1.0f;
#pragma unroll
        for (int g = 0; g < GROUPS * 2; g++) {
            const int32_t t = row + g / 2 * GROUP + lane % PART * 2 + g % 2;
            if (o < p.out && t < p.rows)
                y[(int64_t)t * p.out + o] = sum[i / 2][g / 2][i % 2 * 2 + g % 2] * scale;
        }
    }
}

/* Block (outputs, rows, split). */
template <typename F, int GROUPS, int STAGES, int RESIDENT>
__global__ void __launch_bounds__(THREADS, RESIDENT) narrow_kernel(struct product p, struct job j)
{
    SHARED_DYNAMIC(quad, memory);
    struct stage<F, GROUPS> *stages = (struct stage<F, GROUPS> *)memory;
    const int32_t warp = (int32_t)threadIdx.x / WARP, lane = (int32_t)threadIdx.x % WARP;
    const int32_t first = (int32_t)blockIdx.x * OUTPUTS, group = (int32_t)blockIdx.y * GROUPS;
    const int32_t mine = first + warp * TILES * 16 + lane / PART; /* of the lane's outputs */
    const int32_t begin = (int32_t)blockIdx.z * j.per_split, left = j.steps - begin;
    const int32_t steps = left < j.per_split ? left : j.per_split;
    struct copier<F, GROUPS> copier(p, j, first, group, begin);
    const int32_t column = p.scale_skip + (begin * PART + lane % PART) * F::K;
    struct scale_place at = {column / p.scale_cols, column % p.scale_cols};
    const int32_t last_group = (p.scale_skip + p.cut[1] - 1) / p.scale_cols;
    float sum[TILES][GROUPS][4] = {};
    const unsigned char *row[TILES][2];
    typename F::words words[TILES][2];
#pragma unroll
    for (int i = 0; i < TILES * 2; i++)
        row[i / 2][i % 2] = output_row(p, mine + i * 8);
    const auto read = [&] {
        const int32_t here = at.group < last_group ? at.group : last_group;
#pragma unroll
        for (int i = 0; i < TILES * 2; i++)
            words[i / 2][i % 2] = F::read(p, row[i / 2][i % 2], here);
        at.move(PART * F::K, p.scale_cols);
    };
#pragma unroll
    for (int nth = 0; nth < STAGES - 1; nth++)
        if (nth < steps)
            copier.copy_weights(stages + nth);
    read();
    launch_wait(); /* the weight is no kernel's result, x is */
#pragma unroll
    for (int nth = 0; nth < STAGES - 1; nth++) {
        if (nth < steps)
            copier.copy_x(stages + nth);
        mma_copy_group();
    }
    int32_t now = 0, next = STAGES - 1;
    for (int32_t nth = 0; nth < steps; nth++) {
        mma_copy_wait<STAGES - 2>();
        __syncthreads(); /* the stage is there, and the one before has been used */
        if (nth + STAGES - 1 < steps) {
            copier.copy_weights(stages + next);
            copier.copy_x(stages + next);
        }
        mma_copy_group(); /* an empty one, too: the wait counts groups */
        typename F::ready ready[TILES][2];
#pragma unroll
        for (int i = 0; i < TILES * 2; i++)
            ready[i / 2][i % 2] = F::finish(words[i / 2][i % 2]);
        read();
        take_stage(sum, stages[now], ready);
        now = now + 1 < STAGES ? now + 1 : 0;
        next = next + 1 < STAGES ? next + 1 : 0;
    }
    mma_copy_wait<0>();
    write_out<F, GROUPS>(p, j.y + (int64_t)blockIdx.z * p.rows * p.out, sum, mine, group * GROUP);
}

/* The sums of all splits, in their order. */
__global__ void fold_kernel(float *y, const float *split, int32_t splits, int64_t count)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    launch_wait();
    if (i >= count)
        return;
    float sum = split[i];
    for (int32_t s = 1; s < splits; s++)
        sum += split[s * count + i];
    y[i] = sum;
}

/* ---- launches ---- */

/* How many blocks share the inner dimension: such that all are done soonest, where it is steps that
 * take time. */
static int32_t splits_of(const struct product &p, int32_t blocks, int32_t steps, int32_t at_once)
{
    const int64_t sums = (int64_t)p.rows * p.out * (int64_t)sizeof(float);
    int64_t least = INT64_MAX;
    int32_t best = 1;
    for (int32_t n = 1; n <= SPLITS && (n == 1 || n * sums <= (int64_t)CUDA_TILE_BYTES); n++) {
        const int32_t waves = (blocks * n + at_once - 1) / at_once;
        const int64_t time = (int64_t)waves * ((steps + n - 1) / n + 3) + (n > 1 ? 2 + n / 4 : 0);
        best = time < least ? n : best;
        least = time < least ? time : least;
    }
    return best;
}

template <typename F, int GROUPS, int STAGES, int RESIDENT>
static void multiply_narrow(struct cuda_backend *c, const struct product &p, int32_t splits = 0)
{
    typedef struct stage<F, GROUPS> S;
    const int32_t row_tiles = (int32_t)blocks_for((size_t)p.rows, GROUPS * GROUP);
    const int32_t out_tiles = (int32_t)blocks_for((size_t)p.out, OUTPUTS);
    const int32_t steps = (int32_t)blocks_for((size_t)p.cut[1], F::K * PART);
    const int32_t quads = steps * row_tiles * GROUPS * PAIRS<F> * WARP;
    if (splits == 0)
        splits = splits_of(p, row_tiles * out_tiles, steps, RESIDENT * PROCESSORS);
    struct job j = {(const quad *)c->x.data, p.y, row_tiles * GROUPS, steps,
                    (steps + splits - 1) / splits};
    splits = (steps + j.per_split - 1) / j.per_split; /* none has nothing to do */
    const dim3 grid((unsigned)out_tiles, (unsigned)row_tiles, (unsigned)splits);
    const size_t shared = STAGES * sizeof(S);
    const int64_t count = (int64_t)p.rows * p.out;
    static_assert(STAGES * sizeof(S) <= 96 << 10, "what every device has");
    CHECK((size_t)quads * sizeof(quad) <= c->x.bytes);
    if (splits > 1)
        j.y = (float *)c->tile.data;
    const auto kernel = narrow_kernel<F, GROUPS, STAGES, RESIDENT>;
    cuda_note(
        c, "linear",
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared));
    LAUNCH_AHEAD(c, arrange_kernel<F>, blocks_for((size_t)quads, THREADS), THREADS, 0,
                 (quad *)c->x.data, p.x, p.rows, p.cut[1], j.groups, quads);
    LAUNCH_AHEAD(c, kernel, grid, THREADS, shared, p, j);
    if (splits > 1)
        LAUNCH_AHEAD(c, fold_kernel, blocks_for((size_t)count, THREADS), THREADS, 0, p.y,
                     (const float *)j.y, splits, count);
}

template <typename F> static bool run_form(struct cuda_backend *c, const struct product &p)
{
    if (p.rows <= 4 * GROUP)
        multiply_narrow<F, 4, 4, 3>(c, p);
    else
        multiply_narrow<F, 8, 4, 2>(c, p);
    return true;
}

bool narrow_run(struct cuda_backend *c, const struct weight_spec *s, const struct product *p)
{
    const bool file = p->zeros_at > 0 || p->scale_bytes == 4;
    if (s->dtype == DTYPE_F8_E4M3 && s->scale_cols == 0)
        return run_form<narrow_f8_row>(c, *p);
    if (!scales_change_every(*p, s->dtype == DTYPE_F8_E4M3 ? narrow_f8::K : BACKEND_GROUP))
        return false;
    switch (s->dtype) {
    case DTYPE_F8_E4M3:
        return run_form<narrow_f8>(c, *p);
    case DTYPE_F4_E2M1:
        return run_form<narrow_e2m1>(c, *p);
    case DTYPE_I8:
        return file ? run_form<narrow_file_int8>(c, *p) : run_form<narrow_int8>(c, *p);
    default:
        return file ? run_form<narrow_file_int4>(c, *p) : run_form<narrow_int4>(c, *p);
    }
}
