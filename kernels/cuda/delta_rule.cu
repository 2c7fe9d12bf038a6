/* DESIGN: layers that recur. What is serial in them is a run, the rows of a sequence in a step, and
 * only in what a head's state does. So the convolution goes first, by a kernel of its own in which
 * a block walks a run of one head of queries, keys or values in place, a thread for each channel
 * with the rows before in registers. Then a block walks a run of one value head whose state it has
 * in registers, read and written once: eight lanes share four columns of it, so that what they add
 * up takes three exchanges, and memory is read in whole sectors. The next AHEAD rows are copied to
 * shared memory meanwhile, and warps meet twice in so many. What a row's result still lacks is done
 * during the next row, which does not wait for it. In decodes, whose time is that of reading states
 * (to the nearest cache before the kernels in front are done), who walks norms the results, too. In
 * prompts time is one row after the other: there are more blocks with fewer columns each, whose
 * results a third kernel norms, a warp each as the second does. No sum's order depends on which way
 * is gone, or on what else the step holds.
 *
 * The host does not know where runs begin: a recorded step holds for others. A block looks at some
 * rows and walks those runs that begin there. Rejected: the convolution by who walks a state (value
 * heads share keys: all would have to read the rows before, the last one to replace them); a state
 * times many keys at once by tensor cores, whose bits are not those of one row after the other. */
#include "kernels/cuda/mma.cuh"

#include "kernels/numerics.h"

#define AHEAD 8        /* rows that are under way together */
#define CONVOLVED 4    /* rows that are convolved together, */
#define PROMPTED 16    /* and in prompts */
#define WINDOW 8       /* rows that a block looks at, in prompts */
#define PROMPT_ROWS 64 /* so many have their results normed apart */
#define WIDTH 16       /* columns of a warp */
#define WARPS 8        /* of a block, at most */
#define COLUMNS (WARPS * WIDTH)
#define PROMPT_COLUMNS 64 /* of a block, in prompts */
#define PIECE 32          /* elements of a column that its eight lanes have, four each */

typedef pack<float, 4> four;

struct delta_args {
    struct elements out; /* [T, V * value_dim] */
    float *a;            /* [T, pitch] */
    const float *gates;  /* [T, 2V] */
    struct recurrent_heads h;
    struct recurrent_rules rules;
    struct recurrent_state state;
    const int32_t *slot, *position;
    int64_t pitch;
    int32_t rows, channels;
    int32_t window;  /* rows that a block looks at */
    int32_t columns; /* of a block; less than value_dim: the third kernel norms */
};

/* Is it the first row of a run? */
DEVICE bool begins(const struct delta_args &p, int32_t t)
{
    return p.slot[t] >= 0 && (t == 0 || p.slot[t - 1] != p.slot[t]);
}

/* Rows of the slot from t on, up to MOST. A whole warp asks. */
template <int MOST> DEVICE int32_t rows_ahead(const struct delta_args &p, int32_t t, int32_t slot)
{
    const int32_t lane = (int32_t)threadIdx.x % WARP, row = t + lane;
    const bool same = lane < MOST && row < p.rows && p.slot[row] == slot;
    return __popc(__ballot_sync(ALL_LANES, same));
}

/* Of the n rows from t on those that are kept, a bit each. A whole warp asks. */
DEVICE uint32_t kept_ahead(const struct delta_args &p, int32_t t, int32_t n)
{
    const int32_t lane = (int32_t)threadIdx.x % WARP;
    return __ballot_sync(ALL_LANES, lane < n && p.state.keep && p.state.keep[t + lane] >= 0);
}

/* Without the branch of an exact division, so that those of many rows overlap. */
DEVICE float silu(float x)
{
    return __fdividef(x, 1 + expf(-x));
}

/* ---- convolution ---- */

/* Neighbouring channels of a row that are one head's. */
struct channels {
    int32_t first, count;
    bool query, normed;
};

DEVICE struct channels channels_of(const struct recurrent_heads &h, int32_t head)
{
    const int32_t keys = 2 * h.keys, value = head - keys;
    if (head < keys)
        return {head * h.key_dim, h.key_dim, head < h.keys, true};
    return {keys * h.key_dim + value * h.value_dim, h.value_dim, false, false};
}

/* y of each row times 1 / sqrt(the sum of its squares). Buffers take turns, so that one barrier
 * suffices. */
template <int ROWS> DEVICE void normalise(float (&y)[ROWS], float (&sums)[WARPS][ROWS], float by)
{
    const int32_t warp = (int32_t)threadIdx.x / WARP, warps = (int32_t)blockDim.x / WARP;
    const int32_t lane = (int32_t)threadIdx.x % WARP, own = lane % ROWS;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const float sum = reduce_lanes<WARP>(y[r] * y[r], plus());
        if (lane == 0)
            sums[warp][r] = sum;
    }
    __syncthreads();
    float sum = sums[0][own]; /* a lane has a row's */
    for (int32_t w = 1; w < warps; w++)
        sum += sums[w][own];
    const float root = 1 / sqrtf(sum + NUMERICS_SQUARES_LEAST);
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        y[r] = y[r] * __shfl_sync(ALL_LANES, root, r) * by;
}

/* x: of the thread's channel in the run's next rows. */
template <int ROWS>
DEVICE void load_rows(float (&x)[ROWS], const struct delta_args &p, const float *from, int32_t n)
{
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        x[r] = r < n ? from[r * p.pitch] : 0;
}

template <int TAPS>
DEVICE void put_before(const struct delta_args &p, int32_t slot, int32_t channel,
                       const float (&before)[TAPS - 1])
{
    float *to = p.state.rows + (int64_t)slot * (TAPS - 1) * p.channels + channel;
#pragma unroll
    for (int i = 0; i < TAPS - 1; i++)
        to[(int64_t)i * p.channels] = before[i];
}

/* The n rows become their results. `before` has those before them, and then those before the next.
 * Calls fn(r) when they are those before the row that follows r. */
template <int TAPS, int ROWS, typename Fn>
DEVICE void convolve(float (&x)[ROWS], int32_t n, float (&before)[TAPS - 1],
                     const float (&tap)[TAPS], Fn fn)
{
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const float own = x[r];
        float sum = 0;
#pragma unroll
        for (int i = 0; i < TAPS - 1; i++)
            sum = fmaf(tap[i], before[i], sum);
        x[r] = silu(fmaf(tap[TAPS - 1], own, sum));
        if (r >= n)
            continue;
#pragma unroll
        for (int i = 0; i < TAPS - 1; i++)
            before[i] = i < TAPS - 2 ? before[i + 1] : own;
        fn(r);
    }
}

template <int TAPS, int ROWS>
DEVICE void convolve_run(const struct delta_args &p, int32_t t, int32_t head)
{
    __shared__ float sums[2][WARPS][ROWS];
    const struct channels c = channels_of(p.h, head);
    const bool is_there = (int32_t)threadIdx.x < c.count;
    const int32_t channel = c.first + (is_there ? (int32_t)threadIdx.x : 0), slot = p.slot[t];
    const float *old = p.state.rows + (int64_t)slot * (TAPS - 1) * p.channels + channel;
    float *a = p.a + channel;
    float tap[TAPS], before[TAPS - 1], x[ROWS], later[ROWS];
    int32_t n = rows_ahead<ROWS>(p, t, slot), more = rows_ahead<ROWS>(p, t + n, slot);
    const bool fresh = p.position[t] == 0;
#pragma unroll
    for (int i = 0; i < TAPS; i++)
        tap[i] = is_there ? p.rules.conv[(int64_t)channel * TAPS + i] : 0;
#pragma unroll
    for (int i = 0; i < TAPS - 1; i++)
        before[i] = fresh ? 0 : old[(int64_t)i * p.channels];
    launch_wait(); /* what came before is of earlier steps */
    load_rows(x, p, a + t * p.pitch, n);
    for (int32_t turn = 0; n > 0; turn ^= 1) {
        const uint32_t kept = kept_ahead(p, t, n);
        float *to = a + t * p.pitch;
        load_rows(later, p, to + n * p.pitch, more);
        convolve<TAPS>(x, n, before, tap, [&](int r) {
            if (kept >> r & 1 && is_there)
                put_before<TAPS>(p, p.state.keep[t + r], channel, before);
        });
        if (c.normed)
            normalise(x, sums[turn], c.query ? 1 / sqrtf((float)p.h.key_dim) : 1);
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            if (r < n && is_there)
                to[r * p.pitch] = x[r];
        t += n;
        n = more;
        more = rows_ahead<ROWS>(p, t + n, slot);
        memcpy(x, later, sizeof x);
    }
    if (is_there)
        put_before<TAPS>(p, slot, channel, before);
    __syncthreads(); /* another run of the block may have the same turns */
}

/* Block (rows it looks at, head: of queries, keys, then values). */
template <int TAPS, int ROWS>
__global__ void __launch_bounds__(BACKEND_STATE_DIM_MAX, 2)
    delta_convolve_kernel(struct delta_args p)
{
    const int32_t heads = 2 * p.h.keys + p.h.values, block = (int32_t)blockIdx.x;
    const int32_t first = block / heads * p.window;
    launch_release();
    for (int32_t t = first; t < first + p.window && t < p.rows; t++)
        if (begins(p, t))
            convolve_run<TAPS, ROWS>(p, t, block % heads);
    launch_wait(); /* where no run begins, too */
}

/* ---- a head's rows ---- */

/* What a lane has of a row of a head: four columns of each 128. */
template <int N> struct lane_row {
    four of[N];
};

template <int N> DEVICE lane_row<N> load_lane(const float *from, int32_t cols)
{
    const int32_t column = (int32_t)threadIdx.x % WARP * 4;
    lane_row<N> v = {};
#pragma unroll
    for (int i = 0; i < N; i++)
        if (column + i * WARP * 4 < cols)
            v.of[i] = *(const four *)(from + column + i * WARP * 4);
    return v;
}

DEVICE const float *gate_of(const struct delta_args &p, int32_t t, int32_t head)
{
    return p.a + t * p.pitch + p.channels + (int64_t)head * p.h.value_dim;
}

/* A head's norm of a row's results, times gains and silu(z), by a warp; cols 0: of nothing. */
template <int N>
DEVICE void put_normed(const struct delta_args &p, int32_t t, int32_t head, int32_t cols,
                       const lane_row<N> &o, const lane_row<N> &z)
{
    const int32_t column = (int32_t)threadIdx.x % WARP * 4;
    const int64_t at = ((int64_t)t * p.h.values + head) * p.h.value_dim;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < N; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            sum = fmaf(o.of[i].e[j], o.of[i].e[j], sum);
    sum = reduce_lanes<WARP>(sum, plus());
    const float scale = 1 / sqrtf(sum / (float)p.h.value_dim + p.rules.eps);
    const lane_row<N> gain = load_lane<N>(p.rules.gain, cols);
#pragma unroll
    for (int i = 0; i < N; i++) {
        four y;
#pragma unroll
        for (int j = 0; j < 4; j++)
            y.e[j] = o.of[i].e[j] * scale * gain.of[i].e[j] * silu(z.of[i].e[j]);
        if (column + i * WARP * 4 < cols)
            put_elements(p.out, at + column + i * WARP * 4, y);
    }
}

/* Of padding. */
template <int N> DEVICE void put_zeros(const struct delta_args &p, int32_t t, int32_t head)
{
    const int32_t cols = p.h.value_dim, column = (int32_t)threadIdx.x % WARP * 4;
#pragma unroll
    for (int i = 0; i < N; i++)
        if (column + i * WARP * 4 < cols)
            put_elements(p.out, ((int64_t)t * p.h.values + head) * cols + column + i * WARP * 4,
                         four());
}

/* Warp (row, head); of rows whose results lie where their values were. */
__global__ void __launch_bounds__(WARPS *WARP) delta_norm_kernel(struct delta_args p)
{
    constexpr int N = BACKEND_STATE_DIM_MAX / COLUMNS;
    const int64_t warp = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP;
    const int32_t t = (int32_t)(warp / p.h.values), head = (int32_t)(warp % p.h.values);
    launch_release();
    launch_wait();
    if (t >= p.rows)
        return;
    if (p.slot[t] < 0) {
        put_zeros<N>(p, t, head);
        return;
    }
    const float *o = gate_of(p, t, head) - (int64_t)p.h.values * p.h.value_dim;
    put_normed<N>(p, t, head, p.h.value_dim, load_lane<N>(o, p.h.value_dim),
                  load_lane<N>(gate_of(p, t, head), p.h.value_dim));
}

/* ---- recurrence ---- */

/* Rows in shared memory; zeros behind the end of a head. Results take the place of values. */
template <int PIECES> struct delta_chunk {
    alignas(16) float q[AHEAD][PIECES * PIECE];
    alignas(16) float k[AHEAD][PIECES * PIECE];
    alignas(16) float v[AHEAD][COLUMNS];
    float decay[AHEAD], strength[AHEAD];
};

/* Of a column element 32 n + 4 (lane / 4) + i, of column 4 (lane % 4) + j of the warp's. */
template <int PIECES> struct delta_state {
    four of[PIECES][4];
};

/* A run's head, and the columns of it that the block has. */
struct delta_place {
    int32_t slot, head, first;
};

/* Which of its four columns a lane has the sum of. */
DEVICE int32_t own_column()
{
    return (int32_t)(threadIdx.x / 16 % 2 * 2 + threadIdx.x / 8 % 2);
}

/* The sums of that column over its eight lanes, of x and of y, neither waiting for the other: lanes
 * give away what they do not keep. */
DEVICE pack<float, 2> sums_own(const float (&x)[4], const float (&y)[4])
{
    const bool high = threadIdx.x / 16 % 2 != 0, odd = threadIdx.x / 8 % 2 != 0;
    float of[2][4];
#pragma unroll
    for (int j = 0; j < 4; j++) {
        of[0][j] = x[j];
        of[1][j] = y[j];
    }
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < 2; j++)
            of[i][j] = (high ? of[i][2 + j] : of[i][j]) +
                       __shfl_xor_sync(ALL_LANES, high ? of[i][j] : of[i][2 + j], 16);
#pragma unroll
    for (int i = 0; i < 2; i++)
        of[i][0] =
            (odd ? of[i][1] : of[i][0]) + __shfl_xor_sync(ALL_LANES, odd ? of[i][0] : of[i][1], 8);
#pragma unroll
    for (int i = 0; i < 2; i++)
        of[i][0] += __shfl_xor_sync(ALL_LANES, of[i][0], 4);
    return {{of[0][0], of[1][0]}};
}

/* A row: the state is what it is after it then, and `asked` the lane's parts of its result. Those
 * of the row before are summed up meanwhile, which nothing here waits for: the lane's own column.
 */
template <int PIECES>
DEVICE float step(struct delta_state<PIECES> &s, const struct delta_chunk<PIECES> &c, int32_t r,
                  float v, float (&asked)[4])
{
    const int32_t at = (int32_t)threadIdx.x % WARP / 4 * 4;
    const int32_t from = (int32_t)threadIdx.x % 4;
    const float decay = c.decay[r];
    float sum[4] = {}, u[4];
    four k[PIECES];
#pragma unroll
    for (int n = 0; n < PIECES; n++) {
        k[n] = *(const four *)(c.k[r] + n * PIECE + at);
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                s.of[n][i].e[j] *= decay;
                sum[j] = fmaf(s.of[n][i].e[j], k[n].e[i], sum[j]);
            }
    }
    const pack<float, 2> sums = sums_own(sum, asked);
    const float own = (v - sums.e[0]) * c.strength[r];
#pragma unroll
    for (int j = 0; j < 4; j++) {
        u[j] = __shfl_sync(ALL_LANES, own, from + j / 2 * 16 + j % 2 * 8);
        asked[j] = 0;
    }
#pragma unroll
    for (int n = 0; n < PIECES; n++) {
        const four q = *(const four *)(c.q[r] + n * PIECE + at);
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                s.of[n][i].e[j] = fmaf(k[n].e[i], u[j], s.of[n][i].e[j]);
                asked[j] = fmaf(s.of[n][i].e[j], q.e[i], asked[j]);
            }
    }
    return sums.e[1];
}

/* Calls fn(four of the state, where they are in memory) for what there is of the lane's part. */
template <int PIECES, typename Fn>
DEVICE void for_state(struct delta_state<PIECES> &s, const struct delta_args &p,
                      const struct delta_place &at, Fn fn)
{
    const int32_t lane = (int32_t)threadIdx.x % WARP, row = lane / 4 * 4;
    const int32_t column = at.first + (int32_t)threadIdx.x / WARP * WIDTH + lane % 4 * 4;
    float *matrix =
        p.state.matrix +
        (((int64_t)at.slot * p.h.values + at.head) * p.h.key_dim + row) * p.h.value_dim + column;
#pragma unroll
    for (int n = 0; n < PIECES; n++)
        if (n * PIECE + row < p.h.key_dim && column < p.h.value_dim)
#pragma unroll
            for (int i = 0; i < 4; i++)
                fn(s.of[n][i], *(four *)(matrix + (n * PIECE + i) * p.h.value_dim));
}

template <int PIECES>
DEVICE void put_state(struct delta_state<PIECES> &s, const struct delta_args &p,
                      const struct delta_place &at)
{
    for_state(s, p, at, [](const four &of, four &memory) { memory = of; });
}

/* Begins to copy the n rows from t on, a warp each of them. */
template <int PIECES>
DEVICE void fetch_rows(struct delta_chunk<PIECES> &c, const struct delta_args &p, int32_t t,
                       int32_t n, const struct delta_place &at)
{
    const int32_t warp = (int32_t)threadIdx.x / WARP, warps = (int32_t)blockDim.x / WARP;
    const int32_t lane = (int32_t)threadIdx.x % WARP, keys = p.h.keys * p.h.key_dim;
    const float *q = p.a + at.head / (p.h.values / p.h.keys) * p.h.key_dim;
    const float *v = p.a + 2 * keys + at.head * p.h.value_dim + at.first;
#pragma unroll 1 /* registers are the states' */
    for (int32_t r = warp; r < n; r += warps) {
        const int64_t row = (t + r) * p.pitch;
        for (int32_t i = lane * 4; i < PIECES * PIECE; i += WARP * 4) {
            const bool is_there = i < p.h.key_dim;
            mma_copy(c.q[r] + i, q + row + (is_there ? i : 0), is_there);
            mma_copy(c.k[r] + i, q + keys + row + (is_there ? i : 0), is_there);
        }
        if (lane * 4 < p.columns && at.first + lane * 4 < p.h.value_dim)
            mma_copy(c.v[r] + lane * 4, v + row + lane * 4, true);
    }
    mma_copy_group();
}

/* The same of z, which a warp norms those rows with that it has copied it of. */
DEVICE void fetch_gates(float (&z)[AHEAD][COLUMNS], const struct delta_args &p, int32_t t,
                        int32_t n, int32_t head)
{
    const int32_t warp = (int32_t)threadIdx.x / WARP, warps = (int32_t)blockDim.x / WARP;
    const int32_t column = (int32_t)threadIdx.x % WARP * 4;
#pragma unroll 1
    for (int32_t r = warp; r < n; r += warps)
        if (column < p.h.value_dim)
            mma_copy(z[r] + column, gate_of(p, t + r, head) + column, true);
    mma_copy_group();
}

/* b and a of the row t + the thread's number, of those n that there are. */
DEVICE pack<float, 2> load_gates(const struct delta_args &p, int32_t t, int32_t n, int32_t head)
{
    pack<float, 2> g = {};
    const float *gates = p.gates + ((int64_t)t + threadIdx.x) * 2 * p.h.values + head;
    if ((int32_t)threadIdx.x < n)
        g = {{gates[0], gates[p.h.values]}};
    return g;
}

template <int PIECES>
DEVICE void put_gates(struct delta_chunk<PIECES> &c, const struct delta_args &p, int32_t head,
                      const pack<float, 2> &g)
{
    if (threadIdx.x >= AHEAD)
        return;
    c.decay[threadIdx.x] = numerics_decay(p.rules.decay[head], g.e[1], p.rules.decay_bias[head]);
    c.strength[threadIdx.x] = numerics_sigmoid(g.e[0]);
}

/* The n rows that are in c, from t on. Where the block does not norm them they go to memory. */
template <int PIECES, bool NORMS>
DEVICE void step_rows(struct delta_state<PIECES> &s, struct delta_chunk<PIECES> &c,
                      const struct delta_args &p, int32_t t, int32_t n,
                      const struct delta_place &at)
{
    const int32_t lane = (int32_t)threadIdx.x % WARP, warp = (int32_t)threadIdx.x / WARP;
    const int32_t column = warp * WIDTH + lane % 4 * 4 + own_column();
    const bool puts = lane / 4 % 2 == 0 && at.first + column < p.h.value_dim; /* two have it */
    const uint32_t kept = kept_ahead(p, t, n);
    float *to = NORMS ? c.v[0] + column
                      : (float *)gate_of(p, t, at.head) - (int64_t)p.h.values * p.h.value_dim +
                            at.first + column;
    const int64_t pitch = NORMS ? COLUMNS : p.pitch;
    float asked[4] = {};
#pragma unroll 1
    for (int32_t r = 0; r < n; r++) {
        const float o = step(s, c, r, c.v[r][column], asked);
        if (puts && r > 0)
            to[(r - 1) * pitch] = o;
        if (kept >> r & 1)
            put_state(s, p, {p.state.keep[t + r], at.head, at.first});
    }
    const float o = sums_own(asked, asked).e[0];
    if (puts)
        to[(n - 1) * pitch] = o;
}

template <int PIECES, bool NORMS>
DEVICE void recur_run(const struct delta_args &p, int32_t t, struct delta_place at)
{
    __shared__ struct delta_chunk<PIECES> chunks[2];
    alignas(16) __shared__ float z[AHEAD][COLUMNS];
    const int32_t warp = (int32_t)threadIdx.x / WARP, warps = (int32_t)blockDim.x / WARP;
    delta_state<PIECES> s = {};
    at.slot = p.slot[t];
    if (p.position[t] > 0)
        for_state(s, p, at, [](four &of, const four &memory) { of = memory; });
    int32_t n = rows_ahead<AHEAD>(p, t, at.slot);
    fetch_rows(chunks[0], p, t, n, at);
    pack<float, 2> gates = load_gates(p, t, n, at.head);
    for (int32_t turn = 0; n > 0; turn ^= 1) {
        struct delta_chunk<PIECES> &c = chunks[turn];
        const int32_t next = t + n, more = rows_ahead<AHEAD>(p, next, at.slot);
        put_gates(c, p, at.head, gates);
        mma_copy_wait<0>();
        __syncthreads(); /* all have done with the other chunk, too */
        if (NORMS)
            fetch_gates(z, p, t, n, at.head);
        fetch_rows(chunks[turn ^ 1], p, next, more, at);
        gates = load_gates(p, next, more, at.head);
        step_rows<PIECES, NORMS>(s, c, p, t, n, at);
        if (NORMS) {
            mma_copy_wait<1>();
            __syncthreads();
#pragma unroll 1
            for (int32_t r = 0; r < n; r += warps) {
                /* all warps as often, or compilers have shuffles ask who is there */
                const int32_t row = r + warp, cols = row < n ? p.h.value_dim : 0;
                put_normed<1>(p, t + row, at.head, cols, load_lane<1>(c.v[row % AHEAD], cols),
                              load_lane<1>(z[row % AHEAD], cols));
            }
        }
        t = next;
        n = more;
    }
    put_state(s, p, at);
    __syncthreads(); /* another run of the block begins with the first chunk */
}

/* Block (rows it looks at, value head, part of its columns). */
template <int PIECES, bool NORMS>
__global__ void __launch_bounds__(NORMS ? WARPS *WARP : PROMPT_COLUMNS / WIDTH * WARP,
                                  PIECES <= 4 ? 2 : 1) delta_recur_kernel(struct delta_args p)
{
    const int32_t parts = (p.h.value_dim + p.columns - 1) / p.columns;
    const int32_t block = (int32_t)blockIdx.x, head = block / parts % p.h.values;
    const int32_t first = block / parts / p.h.values * p.window;
    struct delta_place at = {-1, head, block % parts * p.columns};
    launch_release();
    if (p.window == 1 && begins(p, first) && p.position[first] > 0) {
        const int64_t size = (int64_t)p.h.key_dim * p.h.value_dim;
        const float *matrix = p.state.matrix + (p.slot[first] * (int64_t)p.h.values + head) * size;
        for (int64_t i = threadIdx.x * 32; i < size; i += blockDim.x * 32)
            mma_announce(matrix + i);
    }
    launch_wait();
    for (int32_t t = first; t < first + p.window && t < p.rows; t++)
        if (begins(p, t))
            recur_run<PIECES, NORMS>(p, t, at);
        else if (p.slot[t] < 0 && NORMS && threadIdx.x < WARP)
            put_zeros<1>(p, t, head);
}

/* ---- launches ---- */

template <int TAPS> static void launch_convolve(struct cuda_backend *c, const struct delta_args &p)
{
    const int32_t heads = 2 * p.h.keys + p.h.values;
    const int32_t dim = p.h.key_dim > p.h.value_dim ? p.h.key_dim : p.h.value_dim;
    const unsigned grid = blocks_for((size_t)p.rows, (unsigned)p.window) * (unsigned)heads;
    const unsigned threads = blocks_for((size_t)dim, WARP) * WARP;
    if (p.window > 1)
        LAUNCH_AHEAD(c, (delta_convolve_kernel<TAPS, PROMPTED>), grid, threads, 0, p);
    else
        LAUNCH_AHEAD(c, (delta_convolve_kernel<TAPS, CONVOLVED>), grid, threads, 0, p);
}

template <int PIECES, bool NORMS>
static void launch_recur(struct cuda_backend *c, const struct delta_args &p)
{
    const unsigned parts = blocks_for((size_t)p.h.value_dim, (unsigned)p.columns);
    const unsigned grid =
        blocks_for((size_t)p.rows, (unsigned)p.window) * (unsigned)p.h.values * parts;
    LAUNCH_AHEAD(c, (delta_recur_kernel<PIECES, NORMS>), grid, (unsigned)p.columns / WIDTH * WARP,
                 0, p);
    if (!NORMS) {
        const size_t warps = (size_t)p.rows * (size_t)p.h.values;
        LAUNCH_AHEAD(c, delta_norm_kernel, blocks_for(warps, WARPS), WARPS * WARP, 0, p);
    }
}

static void convolve_of(struct cuda_backend *c, const struct delta_args &p)
{
    static void (*const launch[])(struct cuda_backend *, const struct delta_args &) = {
        launch_convolve<2>, launch_convolve<3>, launch_convolve<4>, launch_convolve<5>,
        launch_convolve<6>, launch_convolve<7>, launch_convolve<8>};
    launch[p.h.taps - 2](c, p);
}

template <bool NORMS> static void recur_of(struct cuda_backend *c, const struct delta_args &p)
{
    if (p.h.key_dim <= PIECE)
        launch_recur<1, NORMS>(c, p);
    else if (p.h.key_dim <= 2 * PIECE)
        launch_recur<2, NORMS>(c, p);
    else if (p.h.key_dim <= 4 * PIECE)
        launch_recur<4, NORMS>(c, p);
    else
        launch_recur<8, NORMS>(c, p);
}

void delta_rule_run(struct backend *b, struct view out, struct view a, struct cview gates,
                    const struct recurrent_heads *h, const struct recurrent_rules *rules,
                    const struct rows *rows, const struct recurrent_state *state)
{
    struct cuda_backend *c = cuda_of(b);
    const bool prompt = rows->head + rows->tail >= PROMPT_ROWS;
    const bool split = h->value_dim > COLUMNS || (prompt && h->value_dim > PROMPT_COLUMNS);
    const struct delta_args p = {elements_of(out),
                                 (float *)a.data,
                                 (const float *)gates.data,
                                 *h,
                                 *rules,
                                 *state,
                                 rows->slot,
                                 rows->position,
                                 a.cols,
                                 rows->count,
                                 backend_channels(h),
                                 prompt ? WINDOW : 1,
                                 split ? PROMPT_COLUMNS : h->value_dim};
    if (rows->count == 0 || h->values == 0)
        return;
    convolve_of(c, p);
    if (split)
        recur_of<false>(c, p);
    else
        recur_of<true>(c, p);
}
