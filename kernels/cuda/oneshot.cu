/* DESIGN: an element travels as one word of 64 bits, its value below and the round above, which a
 * device stores and loads whole: who finds the round's number has the value, so nothing needs a
 * fence (NCCL calls it LL; Hu et al., "Demystifying NCCL", 2025). Blocks are independent: block i
 * of a rank hears from the blocks i of the others only, and counts its rounds by itself, so that it
 * does not matter how many blocks a sum has, and a graph can hold it. A block sends all its words
 * in every round, so an old one never carries a number that comes again.
 *
 * There are two inboxes in turns. A rank sends round r + 2 when it has heard from all in round
 * r + 1, and they had read round r before they sent that: nothing is overwritten unread. */
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

/* Whether to look again after so many looks. */
DEVICE bool words_wait(uint32_t looks, uint32_t patience, const uint32_t *stop)
{
    if (looks % LOOKS == 0 && *(const volatile uint32_t *)stop != 0)
        return false;
    return patience == 0 || looks != patience;
}

#endif

DEVICE uint64_t word_of(float value, uint32_t round)
{
    return (uint64_t)round << 32 | __float_as_uint(value);
}

/* ---- the sum ---- */

struct inboxes {
    uint64_t *words[ONESHOT_RANKS_MAX]; /* [2][ranks][ONESHOT_MAX] */
    uint32_t *round;                    /* [BLOCKS] the last one, of this rank */
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
        if (!words_wait(looks, in.patience, in.stop))
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
    const uint32_t round = in.round[blockIdx.x] + 1;
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
        in.round[blockIdx.x] = round;
}

static size_t words_bytes(int32_t ranks)
{
    return 2 * (size_t)ranks * ONESHOT_MAX * sizeof(uint64_t);
}

size_t oneshot_inbox_bytes(int32_t ranks)
{
    return words_bytes(ranks) + BLOCKS * sizeof(uint32_t);
}

void oneshot_sum(struct backend *b, const struct oneshot *o, float *dst, const float *src, size_t n)
{
    struct inboxes in = {};
    CHECK(n <= ONESHOT_MAX && o->ranks <= ONESHOT_RANKS_MAX);
    for (int32_t r = 0; r < o->ranks; r++)
        in.words[r] = (uint64_t *)o->inbox[r];
    in.round = (uint32_t *)((char *)o->inbox[o->rank] + words_bytes(o->ranks));
    in.stop = o->stop;
    in.patience = o->patience;
    in.rank = o->rank;
    in.ranks = o->ranks;
    if (n > 0)
        LAUNCH(cuda_of(b), oneshot_kernel, blocks_for(n, PART), THREADS, 0, dst, src, (int32_t)n,
               in);
}
