/* What the instructions of kernels/cuda/wgmma.cuh mean. A product happens when the thread waits for
 * its group, in every other block when it is begun, as copies do; elements are found where the
 * hardware looks for them, by the address that a matrix begins at and its strides. */
#ifndef TESSERA_TESTS_EMULATE_EMULATE_WGMMA_H
#define TESSERA_TESTS_EMULATE_EMULATE_WGMMA_H

#include <deque>

inline uint32_t mma_address(const void *shared)
{
    return (uint32_t)(uintptr_t)shared;
}

/* ---- products ---- */

struct wgmma_place {
    const unsigned char *begin;
    uint32_t leading, stride;
};

inline wgmma_place emulate_place(const void *shared, uint32_t leading, uint32_t stride)
{
    if ((uintptr_t)shared % 16 != 0)
        emulate_fail("a matrix that is not aligned to 16 bytes");
    return {(const unsigned char *)shared, leading, stride};
}

inline wgmma_place wgmma_along(const void *shared)
{
    return emulate_place(shared, 16, 1024);
}

inline wgmma_place wgmma_across(const void *shared, int lines)
{
    return emulate_place(shared, (uint32_t)lines * 128, 1024);
}

inline wgmma_place wgmma_further(wgmma_place p, uint32_t bytes)
{
    return emulate_place(p.begin + bytes, p.leading, p.stride);
}

/* The element so many bytes from the beginning: 16-byte pieces of each 128 bytes change places. */
template <typename C> float emulate_element_at(const wgmma_place &m, size_t bytes)
{
    C element;
    const uintptr_t at = (uintptr_t)m.begin + bytes;
    memcpy(&element, (const void *)(at ^ (at >> 7 & 7) << 4), sizeof element);
    return to_float(element);
}

/* Element k of row n, elements of a row lie together. */
template <typename C> float emulate_along(const wgmma_place &m, unsigned n, unsigned k)
{
    return emulate_element_at<C>(m, (size_t)(n / 8) * m.stride + n % 8 * 128 + k * 2);
}

/* The same where rows' elements of the same k lie together. */
template <typename C> float emulate_across(const wgmma_place &m, unsigned n, unsigned k)
{
    return emulate_element_at<C>(m, (size_t)(n / 64) * m.leading + (size_t)(k / 8) * m.stride +
                                        k % 8 * 128 + n % 64 * 2);
}

/* One thread's products that have not happened yet. */
struct emulated_products {
    std::deque<std::function<void()>> work;
    std::deque<size_t> groups;
};

inline emulated_products &emulate_products()
{
    static emulated_products all[1024];
    if (all[threadIdx.x].groups.empty())
        all[threadIdx.x].groups.push_back(0);
    return all[threadIdx.x];
}

inline void emulate_product(const std::function<void()> &work)
{
    if (emulate_early) {
        work();
        return;
    }
    emulate_products().work.push_back(work);
    emulate_products().groups.back()++;
}

inline void wgmma_fence()
{
}

inline void wgmma_publish()
{
}

inline void wgmma_group()
{
    emulate_products().groups.push_back(0);
}

template <int n> void wgmma_wait()
{
    emulated_products &p = emulate_products();
    for (; p.groups.size() > n + 1; p.groups.pop_front())
        for (size_t i = 0; i < p.groups.front(); i++, p.work.pop_front())
            p.work.front()();
}

template <typename V, int N> void wgmma_hold(V (&)[N][4])
{
}

inline void wgmma_after(const float (&)[2])
{
}

/* a[2][16] are the thread's two rows. */
template <int N, typename C, typename F>
void emulate_rows(float (&c)[N][4], const float (&a)[2][16], bool add, F b)
{
    for (unsigned n = 0; n < N; n++)
        for (unsigned i = 0; i < 4; i++) {
            float sum = add ? c[n][i] : 0;
            for (unsigned k = 0; k < 16; k++)
                sum = fmaf(a[i / 2][k], b(n * 8 + threadIdx.x % 4 * 2 + i % 2, k), sum);
            c[n][i] = sum;
        }
}

template <int N, typename C>
void wgmma_multiply(float (&c)[N][4], wgmma_place a, wgmma_place b, bool add, C)
{
    float(*const to)[N][4] = &c;
    emulate_product([=] {
        float x[2][16];
        const unsigned row = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
        for (unsigned i = 0; i < 2; i++)
            for (unsigned k = 0; k < 16; k++)
                x[i][k] = emulate_along<C>(a, row + 8 * i, k);
        emulate_rows<N, C>(*to, x, add,
                           [=](unsigned n, unsigned k) { return emulate_along<C>(b, n, k); });
    });
}

template <int N, typename C>
void wgmma_multiply(float (&c)[N][4], const uint32_t (&a)[4], wgmma_place b, C)
{
    float(*const to)[N][4] = &c;
    const uint32_t(*const from)[4] = &a;
    emulate_product([=] {
        float mine[8], x[2][16];
        emulate_elements<C>(mine, *from);
        const float(*all)[8] = emulate_share(mine);
        for (unsigned k = 0; k < 16; k++)
            for (unsigned i = 0; i < 2; i++)
                x[i][k] = all[threadIdx.x % 32 / 4 * 4 + k % 8 / 2][2 * (k / 8 * 2 + i) + k % 2];
        emulate_rows<N, C>(*to, x, true,
                           [=](unsigned n, unsigned k) { return emulate_across<C>(b, n, k); });
    });
}

/* ---- barriers ---- */

struct alignas(8) emulated_barrier {
    uint32_t phase;
    uint16_t count, missing;
};

inline void barrier_init(uint64_t *b, uint32_t count)
{
    const emulated_barrier fresh = {0, (uint16_t)count, (uint16_t)count};
    memcpy(b, &fresh, sizeof fresh);
}

inline void barrier_arrive(uint64_t *b)
{
    emulated_barrier *at = (emulated_barrier *)(void *)b;
    if (--at->missing == 0) {
        at->missing = at->count;
        at->phase++;
    }
}

inline void barrier_arrive_copied(uint64_t *b)
{
    mma_copy_group();
    mma_copy_wait<0>();
    barrier_arrive(b);
}

inline void barrier_wait(uint64_t *b, uint32_t parity)
{
    emulate_phase(&((emulated_barrier *)(void *)b)->phase, parity);
}

/* They outlive blocks. */
inline emulated_barrier *emulate_meeting(int place, int threads)
{
    static emulated_barrier all[15];
    if (all[place].missing == 0)
        all[place].count = all[place].missing = (uint16_t)threads;
    return all + place;
}

inline void group_arrive(int place, int threads)
{
    barrier_arrive((uint64_t *)(void *)emulate_meeting(place, threads));
}

inline void group_sync(int place, int threads)
{
    emulated_barrier *const b = emulate_meeting(place, threads);
    const uint32_t parity = b->phase & 1u;
    group_arrive(place, threads);
    emulate_phase(&b->phase, parity);
}

template <int n> void registers_more()
{
}

template <int n> void registers_fewer()
{
}

#endif
