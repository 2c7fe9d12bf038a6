/* DESIGN: weights of 4 and 8 bits for more rows than gemv.cu takes well and too few to widen the
 * weight for (linear.cu). Such a product reads a quarter or half of what bf16 would, if codes
 * become bf16 in registers once for all rows of a block: A of a tensor core's product are 16
 * outputs, B are 8 rows of x. A pass of its own makes bf16 of x and puts it down in the order in
 * which lanes want it: what a lane loads from shared memory, 16 bytes, is what it needs of one row
 * for two products. So a lane can take 16 bytes of a row of the weight for several products, as in
 * product.cuh, whose forms these are. x is rounded, as for cuBLAS; or it is two pieces, which count
 * as two rows, and sums are those of product.cuh: then each row has the bits that it has alone.
 *
 * A block has 128 outputs and up to 64 rows or pieces: weights and x pass through shared memory in
 * stages of 64 bytes of each row of the weight. Two or three blocks fit on a multiprocessor. Where
 * there are fewer of them than that, several share the inner dimension, and one more launch adds
 * them up; with two pieces each turn is a share. */
#include "kernels/cuda/product.cuh"

#define WARPS 4
#define THREADS (WARPS * WARP)
#define TILES 2 /* of 16 outputs, of a warp */
#define OUTPUTS (WARPS * TILES * 16)
#define SHARES 8       /* of the inner dimension, most */
#define PROCESSORS 132 /* of an H100 */

typedef pack<uint32_t, 4> quad;

/* ---- forms, read ahead ---- */

/* A form with its scales: what is read of them, and what unpack takes. */
struct narrow_e2m1 : form_e2m1<false> {
    typedef uint32_t words;
    static DEVICE words read(const struct product &, const unsigned char *groups, int32_t group)
    {
        return groups[group];
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
    static DEVICE words read(const struct product &p, const unsigned char *groups, int32_t group)
    {
        return int_group::read(p, groups, (uint32_t)group);
    }
};

/* Integers as they are made here: scales of 2 bytes, and no zeros. */
template <typename F> struct narrow_made : F {
    typedef uint32_t words;
    static DEVICE words read(const struct product &, const unsigned char *groups, int32_t group)
    {
        return ((const uint16_t *)groups)[group];
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
    static DEVICE words read(const struct product &, const unsigned char *groups, int32_t group)
    {
        return ((const float *)groups)[group];
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

struct narrow_f8_row : unscaled {
    static constexpr int K = 16, MATE = 2;
    static constexpr enum scales SCALES = PER_ROW;
    typedef ready words;
    static DEVICE words read(const struct product &, const unsigned char *, int32_t)
    {
        return {};
    }
    static DEVICE ready finish(words w)
    {
        return w;
    }
    static DEVICE void unpack(uint32_t (&to)[1][2], const uint32_t *v, int sub, ready)
    {
        to[0][0] = f8_pair(v[sub] << 8);
        to[0][1] = f8_pair(v[sub]);
    }
};

/* ---- x ---- */

/* Of 8 rows of x (a group) and a step of columns (PART vectors of the weight): of each pair of
 * products what lane after lane needs. */
template <typename F> constexpr int PAIRS = F::K / 8;

/* to[steps][groups][PAIRS][lane]; zeros where x has nothing. x is rounded or, of two PIECES, as in
 * product.cuh: of each `tile` groups the first half is one piece of some rows, the rest the next.
 */
template <typename F, int PIECES>
__global__ void arrange_kernel(quad *to, const float *x, int32_t rows, int32_t in, int32_t groups,
                               int32_t tile, int32_t count)
{
    const int32_t i = (int32_t)(blockIdx.x * blockDim.x + threadIdx.x);
    const int32_t lane = i % WARP, pair = i / WARP % PAIRS<F>, part = i / (WARP * PAIRS<F>);
    const int32_t group = part % groups, here = tile / PIECES; /* groups of rows of a tile */
    const int32_t t = (group / tile * here + group % here) * GROUP + lane / PART;
    const int32_t k = (part / groups * PART + lane % PART) * F::K + pair * 8;
    const bool second = group % tile >= here;
    float v[8];
    uint32_t word[4][PIECES];
    launch_wait();
    if (i >= count)
        return;
#pragma unroll
    for (int j = 0; j < 8; j++)
        v[j] = t < rows && k + j < in ? x[(int64_t)t * in + k + j] : 0.0f;
#pragma unroll
    for (int j = 0; j < 8; j += 4) {
        split<PIECES, 1>(word[j / 2], v[j], v[j + F::MATE]);
        split<PIECES, 1>(word[j / 2 + 1], v[j + 3 - F::MATE], v[j + 3]);
    }
    quad q;
#pragma unroll
    for (int j = 0; j < 4; j++)
        q.e[j] = second ? word[j][PIECES - 1] : word[j][0];
    to[i] = q;
}

/* ---- the product ---- */

/* GROUPS: of 8 rows of x, of a block. */
template <typename F, int GROUPS> struct stage {
    quad w[OUTPUTS][PART];
    quad x[GROUPS][PAIRS<F>][WARP];
};

/* How a kernel is made: x in PIECES, of which there are GROUPS in a block; stages of the ring, and
 * blocks of a multiprocessor, for which there have to be registers. */
template <int PIECES_, int GROUPS_, int STAGES_, int RESIDENT_> struct make {
    static constexpr int PIECES = PIECES_, GROUPS = GROUPS_, STAGES = STAGES_;
    static constexpr int RESIDENT = RESIDENT_;
};

/* A share has steps share * begin and every stride-th from there on, of all or `most`. */
struct job {
    const quad *x;
    float *y; /* [shares][rows, out] */
    int32_t groups, steps, shares, begin, stride, most;
};

DEVICE int32_t steps_of(const struct job &j, int32_t share)
{
    const int32_t left = (j.steps - share * j.begin + j.stride - 1) / j.stride;
    return left < j.most ? left : j.most;
}

/* The first of the lane's outputs, which are 8 from each other, in the block. */
DEVICE int32_t warp_output()
{
    const int32_t warp = (int32_t)threadIdx.x / WARP, lane = (int32_t)threadIdx.x % WARP;
    return warp * TILES * 16 + lane / PART;
}

/* Reads scales of the lane's outputs, a step ahead. */
template <typename F> struct reader {
    const unsigned char *groups[TILES][2];
    typename F::words words[TILES][2];
    int32_t group, rest,
        last; /* of the lane's next column: its group of columns, and where in it */
    DEVICE reader(const struct product &p, int32_t first, int32_t step)
    {
        const int32_t k = p.scale_skip + (step * PART + (int32_t)threadIdx.x % PART) * F::K;
        group = k / p.scale_cols;
        rest = k % p.scale_cols;
        last = (p.scale_skip + p.cut[1] - 1) / p.scale_cols;
#pragma unroll
        for (int i = 0; i < TILES * 2; i++)
            groups[i / 2][i % 2] = groups_row(p, first + i * 8);
    }
    DEVICE void read(const struct product &p, int32_t steps)
    {
#pragma unroll
        for (int i = 0; i < TILES * 2; i++)
            words[i / 2][i % 2] = F::read(p, groups[i / 2][i % 2], group < last ? group : last);
        for (rest += steps * PART * F::K; rest >= p.scale_cols; rest -= p.scale_cols)
            group++;
    }
    DEVICE void finish(typename F::ready (&ready)[TILES][2]) const
    {
#pragma unroll
        for (int i = 0; i < TILES * 2; i++)
            ready[i / 2][i % 2] = F::finish(words[i / 2][i % 2]);
    }
};

/* What a warp makes of a stage. */
template <typename F, int GROUPS>
DEVICE void take_stage(float (&sum)[TILES][GROUPS][4], const struct stage<F, GROUPS> &s,
                       const typename F::ready (&ready)[TILES][2])
{
    const int32_t lane = (int32_t)threadIdx.x % WARP;
    const int32_t first = warp_output();
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
        for (int i = 0; i < ROWS; i++)
            mma_copy(&to->w[0][0] + i * THREADS + threadIdx.x, w[i], k < end);
    }
    DEVICE void copy_x(struct stage<F, GROUPS> *to)
    {
#pragma unroll
        for (int i = 0; i < QUADS; i += THREADS)
            mma_copy(&to->x[0][0][0] + i + threadIdx.x, x + i, true);
    }
    DEVICE void move(int32_t steps)
    {
#pragma unroll
        for (int i = 0; i < ROWS; i++)
            w[i] += (int64_t)steps * (PART * CUDA_VECTOR);
        k += steps * (PART * F::K);
        x += (int64_t)steps * x_step;
    }
};

/* sum += a step, of whose groups the first half has one piece of x, the rest the next. */
template <int GROUPS>
DEVICE void add_pieces(float (&sum)[TILES][GROUPS / 2][4], const float (&part)[TILES][GROUPS][4])
{
#pragma unroll
    for (int i = 0; i < TILES * GROUPS / 2 * 4; i++) {
        const int tile = i / (GROUPS / 2 * 4), g = i / 4 % (GROUPS / 2), n = i % 4;
        sum[tile][g][n] += part[tile][g][n] + part[tile][g + GROUPS / 2][n];
    }
}

/* N groups of rows of y, from `row` on. */
template <typename F, int N>
DEVICE void write_out(const struct product &p, float *y, const float (&sum)[TILES][N][4],
                      int32_t first, int32_t row)
{
    const int32_t lane = (int32_t)threadIdx.x % WARP;
#pragma unroll
    for (int i = 0; i < TILES * 2; i++) {
        const int32_t o = first + i * 8;
        const float scale = F::SCALES == PER_ROW ? row_scale(p, o) : 1.0f;
#pragma unroll
        for (int g = 0; g < N * 2; g++) {
            const int32_t t = row + g / 2 * GROUP + lane % PART * 2 + g % 2;
            if (o < p.out && t < p.rows)
                y[(int64_t)t * p.out + o] = sum[i / 2][g / 2][i % 2 * 2 + g % 2] * scale;
        }
    }
}

/* Block (outputs, rows, share of the inner dimension). */
template <typename F, typename S>
__global__ void __launch_bounds__(THREADS, S::RESIDENT)
    narrow_kernel(struct product p, struct job j)
{
    constexpr int GROUPS = S::GROUPS, STAGES = S::STAGES, HERE = GROUPS / S::PIECES;
    SHARED_DYNAMIC(quad, memory);
    struct stage<F, GROUPS> *stages = (struct stage<F, GROUPS> *)memory;
    const int32_t share = (int32_t)blockIdx.z, tile = (int32_t)blockIdx.y;
    const int32_t first = (int32_t)blockIdx.x * OUTPUTS + warp_output();
    const int32_t steps = steps_of(j, share), begin = share * j.begin;
    struct copier<F, GROUPS> copier(p, j, (int32_t)blockIdx.x * OUTPUTS, tile * GROUPS, begin);
    struct reader<F> reader(p, first, begin);
    float sum[TILES][HERE][4] = {};
#pragma unroll
    for (int nth = 0; nth < STAGES - 1; nth++, copier.move(j.stride))
        if (nth < steps)
            copier.copy_weights(stages + nth);
    reader.read(p, j.stride);
    launch_wait(); /* the weight is no kernel's result, x is */
    copier.move((1 - STAGES) * j.stride);
#pragma unroll
    for (int nth = 0; nth < STAGES - 1; nth++, copier.move(j.stride)) {
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
            copier.move(j.stride);
        }
        mma_copy_group(); /* an empty one, too: the wait counts groups */
        typename F::ready ready[TILES][2];
        reader.finish(ready);
        reader.read(p, j.stride);
        if constexpr (S::PIECES == 1) {
            take_stage(sum, stages[now], ready);
        } else {
            float part[TILES][GROUPS][4] = {};
            take_stage(part, stages[now], ready);
            add_pieces(sum, part);
        }
        now = now + 1 < STAGES ? now + 1 : 0;
        next = next + 1 < STAGES ? next + 1 : 0;
    }
    mma_copy_wait<0>();
    write_out<F>(p, j.y + (int64_t)share * p.rows * p.out, sum, first, tile * HERE * GROUP);
}

/* The sums of all shares, in their order. */
__global__ void fold_kernel(float *y, const float *share, int32_t shares, int64_t count)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    launch_wait();
    if (i >= count)
        return;
    float sum = share[i];
    for (int32_t s = 1; s < shares; s++)
        sum += share[s * count + i];
    y[i] = sum;
}

/* ---- launches ---- */

/* How many shares: such that all blocks are done soonest, where it is steps that take time. */
static int32_t shares_of(const struct product &p, int32_t blocks, int32_t steps, int32_t at_once)
{
    const int64_t sums = (int64_t)p.rows * p.out * (int64_t)sizeof(float);
    int64_t least = INT64_MAX;
    int32_t best = 1;
    for (int32_t n = 1; n <= SHARES && (n == 1 || n * sums <= (int64_t)CUDA_TILE_BYTES); n++) {
        const int32_t waves = (blocks * n + at_once - 1) / at_once;
        const int64_t time = (int64_t)waves * ((steps + n - 1) / n + 3) + (n > 1 ? 2 + n / 4 : 0);
        best = time < least ? n : best;
        least = time < least ? time : least;
    }
    return best;
}

/* Shares are runs of steps, as many as are good; of two pieces they are the turns of product.cuh.
 */
template <typename S>
static struct job job_of(const struct product &p, int32_t steps, int32_t row_tiles)
{
    const int32_t blocks = row_tiles * (int32_t)blocks_for((size_t)p.out, OUTPUTS);
    if (S::PIECES == 2)
        return {nullptr, nullptr, row_tiles * S::GROUPS, steps, TURNS, 1, TURNS, steps};
    const int32_t shares = shares_of(p, blocks, steps, S::RESIDENT * PROCESSORS);
    const int32_t most = (steps + shares - 1) / shares;
    return {nullptr, nullptr, row_tiles * S::GROUPS, steps, (steps + most - 1) / most, most,
            1,       most};
}

template <typename F, typename S>
static void launch(struct cuda_backend *c, const struct product &p)
{
    const int32_t row_tiles = (int32_t)blocks_for((size_t)p.rows, S::GROUPS / S::PIECES * GROUP);
    const int32_t steps = (int32_t)blocks_for((size_t)p.cut[1], F::K * PART);
    const int32_t quads = steps * row_tiles * S::GROUPS * PAIRS<F> * WARP;
    const int64_t count = (int64_t)p.rows * p.out;
    constexpr size_t SHARED = S::STAGES * sizeof(struct stage<F, S::GROUPS>);
    struct job j = job_of<S>(p, steps, row_tiles);
    const dim3 grid(blocks_for((size_t)p.out, OUTPUTS), (unsigned)row_tiles, (unsigned)j.shares);
    static_assert(SHARED <= 96 << 10, "what every device has");
    CHECK((size_t)quads * sizeof(quad) <= c->x.bytes);
    j.x = (const quad *)c->x.data;
    j.y = j.shares > 1 ? (float *)c->tile.data : p.y;
    const auto kernel = narrow_kernel<F, S>;
    cuda_note(
        c, "linear",
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)SHARED));
    LAUNCH_AHEAD(c, (arrange_kernel<F, S::PIECES>), blocks_for((size_t)quads, THREADS), THREADS, 0,
                 (quad *)c->x.data, p.x, p.rows, p.cut[1], j.groups, S::GROUPS, quads);
    LAUNCH_AHEAD(c, kernel, grid, THREADS, SHARED, p, j);
    if (j.shares > 1)
        LAUNCH_AHEAD(c, fold_kernel, blocks_for((size_t)count, THREADS), THREADS, 0, p.y,
                     (const float *)j.y, j.shares, count);
}

template <typename F> static void run_form(struct cuda_backend *c, const struct product &p)
{
    if (p.rows <= 4 * GROUP)
        launch<F, make<1, 4, 4, 3>>(c, p);
    else
        launch<F, make<1, 8, 4, 2>>(c, p);
}

template <typename F> static void run_exact(struct cuda_backend *c, const struct product &p)
{
    if (p.rows <= 2 * GROUP)
        launch<F, make<2, 4, 4, 3>>(c, p);
    else
        launch<F, make<2, 8, 4, 2>>(c, p);
}

/* run(form) with that of integers whose scales change at vectors; false: they do not. */
template <typename Run>
static bool with_narrow_int(const struct weight_spec *s, const struct product &p, Run run)
{
    const bool file = p.zeros > 0 || p.scale_bytes == 4;
    if (!dtype_is_int(s->dtype) || !scales_change_every(p, BACKEND_GROUP))
        return false;
    if (s->dtype == DTYPE_F4_E2M1)
        run(narrow_e2m1());
    else if (s->dtype == DTYPE_I8 && file)
        run(narrow_file_int8());
    else if (s->dtype == DTYPE_I8)
        run(narrow_int8());
    else if (file)
        run(narrow_file_int4());
    else
        run(narrow_int4());
    return true;
}

bool narrow_run(struct cuda_backend *c, const struct weight_spec *s, const struct product *p)
{
    const bool f8 = s->dtype == DTYPE_F8_E4M3;
    if (f8 && s->scale_cols == 0)
        run_form<narrow_f8_row>(c, *p);
    else if (f8 && scales_change_every(*p, narrow_f8::K))
        run_form<narrow_f8>(c, *p);
    else
        return with_narrow_int(s, *p, [&](auto form) { run_form<decltype(form)>(c, *p); });
    return true;
}

bool narrow_exact(struct cuda_backend *c, const struct weight_spec *s, const struct product *p)
{
    const bool whole = p->leaves == 1 && p->cut[0] == 0;
    return whole && (size_t)p->rows * (size_t)p->out * TURNS * sizeof(float) <= CUDA_TILE_BYTES &&
           with_narrow_int(s, *p, [&](auto form) { run_exact<decltype(form)>(c, *p); });
}
