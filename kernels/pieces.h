/* Pieces of a row: the columns that a rank holds, as the CPU and the CUDA kernels share it. A sum
 * over a row that is made piece by piece has the same bits whichever rank makes it, and however
 * many of the pieces it holds. */
#ifndef TESSERA_KERNELS_PIECES_H
#define TESSERA_KERNELS_PIECES_H

#include "kernels/numerics.h"

#include <stdint.h>

#define PIECES_MAX 64

/* Pieces [first, first + count) of the `of` into which `units` columns are cut: piece k ends where
 * floor(units (k + 1) / of) columns do. */
struct pieces {
    int32_t units, of, first, count;
};

/* Where the kth of them begins among these columns; k = count: how many they are. */
NUMERICS_FN int32_t pieces_begin(const struct pieces *p, int32_t k)
{
    const int64_t from = (int64_t)p->units * p->first / p->of;
    return (int32_t)((int64_t)p->units * (p->first + k) / p->of - from);
}

/* Adds in the order of backend.h's sum_tree; overwrites. n >= 1. */
NUMERICS_FN float pieces_sum(float *sums, int32_t n)
{
    for (int32_t stride = 1; stride < n; stride *= 2)
        for (int32_t k = 0; k + stride < n; k += 2 * stride)
            sums[k] += sums[k + stride];
    return sums[0];
}

#endif
