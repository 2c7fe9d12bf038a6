/* What the instructions of kernels/cuda/mma.cuh mean, lane by lane. Matrices are put together from
 * all lanes of the warp as the PTX manual draws them, multiplied plainly, and taken apart again.
 * Copies in the background happen as late as they may: when the thread waits for their group, so
 * that reading before it finds what was there before. */
#ifndef TESSERA_TESTS_EMULATE_EMULATE_MMA_H
#define TESSERA_TESTS_EMULATE_EMULATE_MMA_H

#include <deque>
#include <vector>

#define MMA_EMULATED

/* Every lane's words to every lane. */
template <int N> inline void emulate_share(uint32_t (&all)[32][N], const uint32_t (&mine)[N])
{
    static uint32_t words[1024][N];
    const unsigned lane = threadIdx.x % 32, first = threadIdx.x - lane;
    memcpy(words[threadIdx.x], mine, sizeof mine);
    __syncwarp();
    memcpy(all, words[first], sizeof all);
    __syncwarp(); /* the words may be written again */
}

/* ---- copies ---- */

struct emulated_copy {
    void *to;
    const void *from;
    bool there;
};

/* Groups of the running thread; the last one is open. */
inline std::deque<std::vector<emulated_copy>> &emulate_groups()
{
    static std::deque<std::vector<emulated_copy>> groups[1024];
    if (groups[threadIdx.x].empty())
        groups[threadIdx.x].emplace_back();
    return groups[threadIdx.x];
}

inline void mma_copy(void *shared, const void *global, bool there)
{
    if ((uintptr_t)shared % 16 != 0 || (uintptr_t)global % 16 != 0)
        emulate_fail("a copy that is not aligned to its 16 bytes");
    emulate_groups().back().push_back({shared, global, there});
}

inline void mma_copy_group()
{
    emulate_groups().emplace_back();
}

template <int n> inline void mma_copy_wait()
{
    std::deque<std::vector<emulated_copy>> &groups = emulate_groups();
    while (groups.size() > n + 1) {
        for (const emulated_copy &c : groups.front())
            if (c.there)
                memcpy(c.to, c.from, 16);
            else
                memset(c.to, 0, 16);
        groups.pop_front();
    }
}

/* ---- matrices ---- */

/* m[j] of lane i: elements 2 * (i % 4) and the next of row i / 4, or of that column. */
inline void emulate_load(uint32_t (&m)[4], const void *row, bool transposed)
{
    uint32_t mine[4], rows[32][4];
    if ((uintptr_t)row % 16 != 0)
        emulate_fail("a matrix row that is not aligned to its 16 bytes");
    memcpy(mine, row, sizeof mine);
    emulate_share(rows, mine);
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

/* Element `which` of two in a register; C: their type. */
template <typename C> float emulate_element(uint32_t word, unsigned which)
{
    const uint16_t bits = (uint16_t)(word >> (16 * which));
    C element;
    memcpy(&element, &bits, sizeof bits);
    return to_float(element);
}

template <typename C>
void mma_multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, C)
{
    float x[16][16], y[16][8];
    uint32_t all[32][6];
    const uint32_t mine[6] = {a[0], a[1], a[2], a[3], b0, b1};
    emulate_share(all, mine);
    for (unsigned i = 0; i < 32; i++) {
        const unsigned r = i / 4, p = 2 * (i % 4);
        for (unsigned n = 0; n < 2; n++) {
            for (unsigned j = 0; j < 4; j++)
                x[r + j % 2 * 8][p + j / 2 * 8 + n] = emulate_element<C>(all[i][j], n);
            for (unsigned j = 0; j < 2; j++)
                y[p + j * 8 + n][r] = emulate_element<C>(all[i][4 + j], n);
        }
    }
    const unsigned r = threadIdx.x % 32 / 4, p = 2 * (threadIdx.x % 4);
    for (unsigned j = 0; j < 4; j++)
        for (unsigned k = 0; k < 16; k++)
            c[j] = fmaf(x[r + j / 2 * 8][k], y[k][p + j % 2], c[j]);
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

inline float mma_exp2(float x)
{
    const float y = exp2f(x);
    return y < FLT_MIN ? 0 : y;
}

#endif
