/* What ops on rows share (rowops.cu, act.cu): vectors of elements, whatever their type. */
#ifndef TESSERA_KERNELS_CUDA_ROWS_CUH
#define TESSERA_KERNELS_CUDA_ROWS_CUH

#include "kernels/cuda/device.cuh"

#define THREADS 256
#define FOUR 4
#define PART (THREADS * FOUR) /* columns of a row, by one block */

/* ---- vectors ---- */

typedef pack<float, FOUR> four;

/* Elements [i, i + N) of those before `end`, zeros behind it. ALIGNED: they are all before it, or
 * none is. */
template <int N, bool ALIGNED, typename E>
DEVICE pack<E, N> load_vector(const E *from, int32_t i, int32_t end)
{
    pack<E, N> v = {};
    if (ALIGNED) {
        if (i < end)
            v = *(const pack<E, N> *)(from + i);
    } else {
#pragma unroll
        for (int k = 0; k < N; k++)
            if (i + k < end)
                v.e[k] = from[i + k];
    }
    return v;
}

template <bool ALIGNED> DEVICE four load_four(const float *from, int32_t i, int32_t end)
{
    return load_vector<FOUR, ALIGNED>(from, i, end);
}

template <bool ALIGNED> DEVICE void store_four(float *to, int32_t i, int32_t end, four v)
{
    if (ALIGNED) {
        if (i < end)
            *(four *)(to + i) = v;
    } else {
#pragma unroll
        for (int k = 0; k < FOUR; k++)
            if (i + k < end)
                to[i + k] = v.e[k];
    }
}

/* Do rows of so many columns, of all of these that are not NULL, consist of whole fours? */
static inline bool are_fours(int64_t cols, const void *a, const void *b = nullptr,
                             const void *c = nullptr, const void *d = nullptr)
{
    const uintptr_t bits = (uintptr_t)a | (uintptr_t)b | (uintptr_t)c | (uintptr_t)d;
    return cols % FOUR == 0 && bits % sizeof(four) == 0;
}

/* Blocks (row, part of it). */
static inline dim3 parts_of(int32_t rows, int32_t cols)
{
    return dim3((unsigned)rows, blocks_for((size_t)cols, PART));
}

DEVICE int32_t part_column()
{
    return (int32_t)(blockIdx.y * PART + threadIdx.x * FOUR);
}

/* Elements [i, i + N) of the row that begins at `row`, of those before `end`. */
template <bool ALIGNED, int N>
DEVICE void put_row(const struct elements &to, int64_t row, int32_t i, int32_t end,
                    const pack<float, N> &v)
{
    if (ALIGNED) {
        if (i < end)
            put_elements(to, row + i, v);
    } else {
#pragma unroll
        for (int k = 0; k < N; k++)
            if (i + k < end)
                put_element(to, row + i + k, v.e[k]);
    }
}

/* The same of one; zeros behind the end. */
template <bool ALIGNED>
DEVICE four get_four(const struct elements &from, int64_t row, int32_t i, int32_t end)
{
    four v = {};
    if (ALIGNED) {
        if (i < end)
            v = get_elements<FOUR>(from, row + i);
    } else {
#pragma unroll
        for (int k = 0; k < FOUR; k++)
            if (i + k < end)
                v.e[k] = get_elements<1>(from, row + i + k).e[0];
    }
    return v;
}

#endif
