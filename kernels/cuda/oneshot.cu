/* DESIGN: an element travels as one word of 64 bits, its value below and the round above, which a
 * device stores and loads whole: who finds the round's number has the value, so nothing needs a
 * fence (NCCL calls it LL; Hu et al., "Demystifying NCCL", 2025). Blocks are independent: block i
 * of a rank hears from the blocks i of the others only, and counts its rounds by itself, so that it
 * does not matter how many blocks a sum has, and a graph can hold it. A block sends all its words
 * in every round, so an old one never carries a number that comes again.
 *
 * There are two inboxes in turns. A rank sends round r + 2 when it has heard from all in round
 * r + 1, and they had read round r before they sent that: nothing is overwritten unread.
 *
 * With a norm behind it a block has a part of a row, and hears from the row's other blocks on its
 * own device, too, what their squares add up to. So all blocks have to run at once: they are few,
 * and nothing else runs. The words for that carry the number of the launch, since blocks may have
 * had different numbers of rounds. A block writes nothing else before it has all it waits for. */
#include "kernels/cuda/device.cuh"

extern "C" {
#include "kernels/cuda/oneshot.h"
}

#define THREADS 256
#define PART (2 * THREADS) /* elements of a block */
#define BLOCKS (ONESHOT_MAX / PART)
#define LOOKS 1024 /* at the inbox, for one at the host's memory */

/* ---- memory that several devices use at once ---- */

#ifndef WORDS_EMULATED

/* Both words, each at once; aligned to 16 bytes. */
DEVICE void words_store(uint64_t *to, const uint64_t (&w)[2])
{
    asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(to), "l"(w[0]), "l"(w[1])
                 : "memory");
}

DEVICE void words_load(uint64_t (&w)[2], const uint64_t *from)
{
    asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];"
                 : "=l"(w[0]), "=l"(w[1])
                 : "l"(from)
                 : "memory");
}

/* One, seen by this device. */
DEVICE void word_store(uint64_t *to, uint64_t w)
{
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(to), "l"(w) : "memory");
}

DEVICE uint64_t word_load(const uint64_t *from)
{
    uint64_t w;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(w) : "l"(from) : "memory");
    return w;
}

/* Whether to look again after so many looks. Who has lost patience takes it from all that come
 * after, which would wait in vain, too. */
DEVICE bool words_wait(uint32_t looks, uint32_t patience, const uint32_t *stop, uint32_t *given_up)
{
    if (looks % LOOKS == 0 &&
        (*(const volatile uint32_t *)stop != 0 || *(const volatile uint32_t *)given_up != 0))
        return false;
    if (patience == 0 || looks != patience)
        return true;
    *(volatile uint32_t *)given_up = 1;
    return false;
}

#endif

DEVICE uint64_t word_of(float value, uint32_t round)
{
    return (uint64_t)round << 32 | __float_as_uint(value);
}

/* ---- the sum ---- */

/* What a rank keeps for itself, behind the words that peers write. */
struct own {
    uint64_t square[BLOCKS]; /* words of its blocks */
    uint32_t round[BLOCKS];  /* the last one of each */
    uint32_t call, done;     /* the last launch with a norm; blocks of this one that are done */
    uint32_t given_up;
};

struct inboxes {
    uint64_t *words[ONESHOT_RANKS_MAX]; /* [2][ranks][ONESHOT_MAX] */
    struct own *own;
    const uint32_t *stop;
    uint32_t patience;
    int32_t rank, ranks;
};

DEVICE size_t place_of(const struct inboxes &in, uint32_t round, int32_t from, int32_t i)
{
    return ((size_t)(round % 2) * (size_t)in.ranks + (size_t)from) * ONESHOT_MAX + (size_t)i;
}

/* w[r] = the words of elements i and i + 1 of rank r; false: some will not come. All inboxes are
 * looked at together, for a look takes as long as the rest of the sum. */
DEVICE bool receive(const struct inboxes &in, uint32_t round, int32_t i,
                    uint64_t (&w)[ONESHOT_RANKS_MAX][2])
{
    const uint64_t *own = in.words[in.rank];
    for (uint32_t looks = 1;; looks++) {
        bool all = true;
#pragma unroll
        for (int32_t r = 0; r < ONESHOT_RANKS_MAX; r++)
            if (r < in.ranks && r != in.rank)
                words_load(w[r], own + place_of(in, round, r, i));
#pragma unroll
        for (int32_t r = 0; r < ONESHOT_RANKS_MAX; r++)
            if (r < in.ranks && r != in.rank)
                all &= (w[r][0] >> 32 == round) & (w[r][1] >> 32 == round);
        if (all)
            return true;
        if (!words_wait(looks, in.patience, in.stop, &in.own->given_up))
            return false;
    }
}

/* Of rank 0's in v[0] and so on; stride 1, 2, 4. */
DEVICE float sum_of(float (&v)[ONESHOT_RANKS_MAX], int32_t ranks)
{
#pragma unroll
    for (int32_t step = 1; step < ONESHOT_RANKS_MAX; step *= 2)
#pragma unroll
        for (int32_t r = 0; r + step < ONESHOT_RANKS_MAX; r += 2 * step)
            if (r + step < ranks)
                v[r] += v[r + step];
    return v[0];
}

/* Elements i and i + 1 of the sum; false: not all of it came. */
DEVICE bool exchange(const struct inboxes &in, uint32_t round, int32_t i, const float (&mine)[2],
                     float (&sum)[2])
{
    uint64_t w[ONESHOT_RANKS_MAX][2] = {};
    const uint64_t own[2] = {word_of(mine[0], round), word_of(mine[1], round)};
#pragma unroll
    for (int32_t r = 0; r < ONESHOT_RANKS_MAX; r++)
        if (r < in.ranks && r != in.rank)
            words_store(in.words[r] + place_of(in, round, in.rank, i), own);
    if (!receive(in, round, i, w))
        return false;
#pragma unroll
    for (int32_t k = 0; k < 2; k++) {
        float v[ONESHOT_RANKS_MAX];
#pragma unroll
        for (int32_t r = 0; r < ONESHOT_RANKS_MAX; r++)
            v[r] = r == in.rank ? mine[k] : __uint_as_float((uint32_t)w[r][k]);
        sum[k] = sum_of(v, in.ranks);
    }
    return true;
}

__global__ void __launch_bounds__(THREADS)
    oneshot_kernel(float *dst, const float *src, int32_t n, const __grid_constant__ inboxes in)
{
    const int32_t i = (int32_t)(blockIdx.x * PART + 2 * threadIdx.x);
    const uint32_t round = in.own->round[blockIdx.x] + 1;
    const float mine[2] = {i < n ? src[i] : 0.0f, i + 1 < n ? src[i + 1] : 0.0f};
    float sum[2] = {};
    const bool all = exchange(in, round, i, mine, sum);
    if (__syncthreads_or(!all)) /* all threads have read the round */
        return;
    if (i < n)
        dst[i] = sum[0];
    if (i + 1 < n)
        dst[i + 1] = sum[1];
    if (threadIdx.x == 0)
        in.own->round[blockIdx.x] = round;
}

/* ---- with the norm behind it ---- */

/* What the squares of another block's part of the row add up to; false: it will not come. */
DEVICE bool receive_square(const struct inboxes &in, uint32_t call, int32_t block, float *square)
{
    for (uint32_t looks = 1;; looks++) {
        const uint64_t w = word_load(in.own->square + block);
        *square = __uint_as_float((uint32_t)w);
        if (w >> 32 == call)
            return true;
        if (!words_wait(looks, in.patience, in.stop, &in.own->given_up))
            return false;
    }
}

/* 1 / sqrt(mean + eps) of this block's row, of which the thread has v; false: not all came. Every
 * thread calls, and all get the same. */
DEVICE bool norm_of_row(const struct inboxes &in, const struct add_norm &a, uint32_t call,
                        const float (&v)[2], float *scale)
{
    const int32_t first = (int32_t)(blockIdx.y * gridDim.x);
    const float own = reduce_block(fmaf(v[1], v[1], v[0] * v[0]), plus());
    if (threadIdx.x == 0)
        word_store(in.own->square + first + blockIdx.x, word_of(own, call));
    float square = 0;
    const bool all =
        threadIdx.x >= gridDim.x || receive_square(in, call, first + (int32_t)threadIdx.x, &square);
    if (__syncthreads_or(!all))
        return false;
    *scale = 1 / sqrtf(reduce_block(square, plus()) / (float)a.x.cols + a.eps);
    return true;
}

/* Block (part of a row, row). Without a bound on how many run at once registers are spilt for more.
 */
__global__ void __launch_bounds__(THREADS, 2)
    oneshot_norm_kernel(const __grid_constant__ add_norm a, const float *src,
                        const __grid_constant__ inboxes in)
{
    const int32_t block = (int32_t)(blockIdx.y * gridDim.x + blockIdx.x), cols = a.x.cols;
    const int32_t col = (int32_t)(blockIdx.x * PART + 2 * threadIdx.x);
    const int64_t at = (int64_t)blockIdx.y * cols + col;
    const uint32_t round = in.own->round[block] + 1, call = in.own->call + 1;
    float *x = (float *)a.x.data;
    float mine[2] = {}, before[2] = {}, gain[2] = {}, v[2] = {}, scale;
    launch_release();
    for (int32_t k = 0; k < 2 && col + k < cols; k++) { /* all of it on its way with the exchange */
        mine[k] = src[at + k];
        before[k] = x[at + k];
        gain[k] = a.gain[col + k];
    }
    const bool all = exchange(in, round, block * PART + 2 * (int32_t)threadIdx.x, mine, v);
    if (__syncthreads_or(!all))
        return;
    for (int32_t k = 0; k < 2 && col + k < cols; k++)
        v[k] += before[k];
    if (!norm_of_row(in, a, call, v, &scale))
        return;
    for (int32_t k = 0; k < 2 && col + k < cols; k++) {
        x[at + k] = v[k];
        put_element(elements_of(a.y), at + k, v[k] * scale * gain[k]);
    }
    if (threadIdx.x != 0)
        return;
    in.own->round[block] = round;
    if (atomicAdd(&in.own->done, 1u) + 1 == gridDim.x * gridDim.y) {
        in.own->done = 0;
        in.own->call = call;
    }
}

/* ---- launches ---- */

static size_t words_bytes(int32_t ranks)
{
    return 2 * (size_t)ranks * ONESHOT_MAX * sizeof(uint64_t);
}

size_t oneshot_inbox_bytes(int32_t ranks)
{
    return words_bytes(ranks) + sizeof(struct own);
}

static struct inboxes inboxes_of(const struct oneshot *o)
{
    struct inboxes in = {};
    CHECK(o->ranks <= ONESHOT_RANKS_MAX);
    for (int32_t r = 0; r < o->ranks; r++)
        in.words[r] = (uint64_t *)o->inbox[r];
    in.own = (struct own *)((char *)o->inbox[o->rank] + words_bytes(o->ranks));
    in.stop = o->stop;
    in.patience = o->patience;
    in.rank = o->rank;
    in.ranks = o->ranks;
    return in;
}

size_t oneshot_norm_size(int32_t rows, int32_t cols)
{
    return (size_t)rows * blocks_for((size_t)cols, PART) * PART;
}

void oneshot_norm(struct backend *b, const struct oneshot *o, const struct add_norm *to,
                  const float *src)
{
    if (to->x.rows == 0 || to->x.cols == 0)
        return;
    const struct inboxes in = inboxes_of(o);
    const dim3 grid(blocks_for((size_t)to->x.cols, PART), (unsigned)to->x.rows);
    CHECK(oneshot_norm_size(to->x.rows, to->x.cols) <= ONESHOT_MAX);
    LAUNCH(cuda_of(b), oneshot_norm_kernel, grid, THREADS, 0, *to, src, in);
}

void oneshot_sum(struct backend *b, const struct oneshot *o, float *dst, const float *src, size_t n)
{
    if (n == 0) /* nothing may be open */
        return;
    const struct inboxes in = inboxes_of(o);
    CHECK(n <= ONESHOT_MAX);
    LAUNCH(cuda_of(b), oneshot_kernel, blocks_for(n, PART), THREADS, 0, dst, src, (int32_t)n, in);
}
