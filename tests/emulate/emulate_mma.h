/* What the instructions of kernels/cuda/mma.cuh mean, lane by lane. Matrices are put together from
 * all lanes of the warp as the PTX manual draws them, multiplied plainly, and taken apart again.
 * Copies in the background happen as late as they may in one block, when the thread waits for their
 * group, so that reading before it finds what was there before; and at once in the next, so that
 * reading after it finds what is there next. */
#ifndef TESSERA_TESTS_EMULATE_EMULATE_MMA_H
#define TESSERA_TESTS_EMULATE_EMULATE_MMA_H

#define MMA_EMULATED

/* ---- copies ---- */

struct emulated_copy {
    void *to;
    const void *from;
    bool there;
};

#define EMULATED_COPIES 64 /* of one thread on their way, and as many groups of them */

/* Of one thread: what it has begun to copy, and how much of that when each group was closed. */
struct emulated_copies {
    emulated_copy copies[EMULATED_COPIES];
    unsigned ends[EMULATED_COPIES];
    unsigned begun, done, closed, awaited;
};
inline emulated_copies emulate_copies[1024];

typedef uint64_t emulated_vector __attribute__((vector_size(16), may_alias));

inline void emulate_copy(const emulated_copy &c)
{
    *(emulated_vector *)c.to = c.there ? *(const emulated_vector *)c.from : emulated_vector{};
}

template <typename T> inline void mma_keep(T *&)
{
}

inline void mma_copy(void *shared, const void *global, bool there)
{
    const emulated_copy c = {shared, global, there};
    if ((uintptr_t)shared % 16 != 0 || (uintptr_t)global % 16 != 0)
        emulate_fail("a copy that is not aligned to its 16 bytes");
    if (emulate_early) {
        emulate_copy(c);
        return;
    }
    emulated_copies &all = emulate_copies[threadIdx.x];
    all.copies[all.begun++ % EMULATED_COPIES] = c;
    if (all.begun - all.done > EMULATED_COPIES)
        emulate_fail("more copies on their way than the emulation has room for");
}

inline void mma_copy_near(void *shared, const void *global, bool there)
{
    mma_copy(shared, global, there);
}

inline void mma_announce(const void *)
{
}

inline void mma_copy_group()
{
    emulated_copies &all = emulate_copies[threadIdx.x];
    all.ends[all.closed++ % EMULATED_COPIES] = all.begun;
    if (all.closed - all.awaited > EMULATED_COPIES)
        emulate_fail("more groups of copies than the emulation has room for");
}

template <int n> inline void mma_copy_wait()
{
    emulated_copies &all = emulate_copies[threadIdx.x];
    for (; all.closed - all.awaited > n; all.awaited++)
        for (; all.done != all.ends[all.awaited % EMULATED_COPIES]; all.done++)
            emulate_copy(all.copies[all.done % EMULATED_COPIES]);
}

/* ---- matrices ---- */

/* m[j] of lane i: elements 2 * (i % 4) and the next of row i / 4, or of that column. */
inline void emulate_load(uint32_t (&m)[4], const void *row, bool transposed)
{
    uint32_t mine[4];
    if ((uintptr_t)row % 16 != 0)
        emulate_fail("a matrix row that is not aligned to its 16 bytes");
    memcpy(mine, row, sizeof mine);
    const uint32_t(*rows)[4] = emulate_share(mine);
    const unsigned lane = threadIdx.x % 32;
    for (unsigned j = 0; j < 4; j++) {
        uint16_t e[8][8], pair[2];
        memcpy(e, rows[8 * j], sizeof e);
        for (unsigned i = 0; i < 2; i++) {
            const unsigned r = lane / 4, c = 2 * (lane % 4) + i;
            pair[i] = transposed ? e[c][r] : e[r][c];
        }
        memcpy(&m[j], pair, sizeof pair);
    }
}

inline void mma_load(uint32_t (&m)[4], const void *row)
{
    emulate_load(m, row, false);
}

inline void mma_load_transposed(uint32_t (&m)[4], const void *row)
{
    emulate_load(m, row, true);
}

inline uint32_t mma_transpose(uint32_t pair)
{
    const uint32_t mine[1] = {pair};
    const uint32_t(*rows)[1] = emulate_share(mine);
    const unsigned r = threadIdx.x % 32 / 4, c = 2 * (threadIdx.x % 4);
    uint32_t y = 0;
    for (unsigned i = 0; i < 2; i++)
        y |= (rows[4 * (c + i) + r / 2][0] >> (16 * (r % 2)) & 0xffffu) << (16 * i);
    return y;
}

/* The two elements of each register, of type C. */
template <typename C, int N> void emulate_elements(float *to, const uint32_t (&words)[N])
{
    C pair[2];
    for (int i = 0; i < N; i++) {
        memcpy(pair, &words[i], sizeof pair);
        to[2 * i] = to_float(pair[0]);
        to[2 * i + 1] = to_float(pair[1]);
    }
}

/* Of x and y each lane wants two rows and two columns, which four lanes have of each. */
template <typename C>
void mma_multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, C)
{
    float mine[12], x[2][16], y[2][16];
    emulate_elements<C>(mine, a);
    emulate_elements<C>(mine + 8, {b0, b1});
    const float(*all)[12] = emulate_share(mine);
    const unsigned r = threadIdx.x % 32 / 4, p = 2 * (threadIdx.x % 4);
    for (unsigned k = 0; k < 16; k += 2) { /* pairs of them lie together */
        const unsigned lane = k % 8 / 2, half = k / 8;
        for (unsigned j = 0; j < 2; j++) {
            memcpy(&x[j][k], all[4 * r + lane] + 2 * (2 * half + j), 2 * sizeof(float));
            memcpy(&y[j][k], all[4 * (p + j) + lane] + 8 + 2 * half, 2 * sizeof(float));
        }
    }
    for (unsigned k = 0; k < 16; k++)
        for (unsigned j = 0; j < 4; j++)
            c[j] = fmaf(x[j / 2][k], y[j % 2][k], c[j]);
}

template <typename C> uint32_t mma_pair(float first, float second, C)
{
    C pair[2];
    uint32_t word;
    from_float(&pair[0], first);
    from_float(&pair[1], second);
    memcpy(&word, pair, sizeof word);
    return word;
}

template <typename E, typename C> void mma_widen(uint32_t (&pair)[2], uint32_t codes, E, C)
{
    for (unsigned i = 0; i < 2; i++) {
        float x[2];
        for (unsigned j = 0; j < 2; j++)
            x[j] = to_float(E{(uint8_t)(codes >> (16 * i + 8 * j))});
        pair[i] = mma_pair(x[0], x[1], C());
    }
}

inline uint32_t mma_exchange(uint32_t word)
{
    return (word & 0xff0000ffu) | (word >> 8 & 0xff00u) | (word << 8 & 0xff0000u);
}

inline float mma_load_fresh(const float *from)
{
    return *from;
}

inline void mma_load_fresh(float (&y)[4], const float *from)
{
    if ((uintptr_t)from % 16 != 0)
        emulate_fail("a load that is not aligned to its 16 bytes");
    memcpy(y, from, sizeof y);
}

inline float mma_exp2(float x)
{
    const float y = exp2f(x);
    return y < FLT_MIN ? 0 : y;
}

#endif
