/* What the rules of a slot do to its copy of a row of logits, by kernels/numerics.h. Called by all
 * threads of a block. */
#ifndef TESSERA_KERNELS_CUDA_RULES_CUH
#define TESSERA_KERNELS_CUDA_RULES_CUH

#include "kernels/cuda/device.cuh"

extern "C" {
#include "kernels/numerics.h"
}

/* for (i = begin + thread; i < end; i += threads) */
#define FOR_EACH(i, begin, end)                                                                    \
    for (int32_t i = (begin) + (int32_t)threadIdx.x; i < (end); i += (int32_t)blockDim.x)

DEVICE bool penalises(const struct sample_rules *r)
{
    return r->repetition != 1 || r->frequency != 0 || r->presence != 0;
}

DEVICE bool bans(const struct sample_rules *r, int32_t position)
{
    return r->bans > 0 && position - r->prompt < r->min_tokens;
}

DEVICE bool rules_change(const struct sample_rules *r, int32_t position)
{
    return r->biases > 0 || r->bads > 0 || bans(r, position) || penalises(r);
}

/* Were all ids of the word but the last the latest of those produced? */
DEVICE bool is_begun(const int32_t *word, int32_t n, const int32_t *produced, int32_t count)
{
    if (n - 1 > count)
        return false;
    for (int32_t i = 0; i < n - 1; i++)
        if (word[i] != produced[count - (n - 1) + i])
            return false;
    return true;
}

/* The counters need no clean state: those that will be used are cleared first. The thread that
 * takes an id's counter changes its logit, so each is changed once. */
DEVICE void penalise(float *x, const struct sample_rules *r, const int32_t *history,
                     int32_t position, int32_t *count)
{
    /* with repetition off, what is only in the prompt does not change */
    const int32_t begin = r->repetition != 1 ? 0 : r->prompt;
    FOR_EACH(i, begin, position)
    count[history[i]] = 0;
    __syncthreads();
    FOR_EACH(i, r->prompt, position)
    atomicAdd(&count[history[i]], 1);
    __syncthreads();
    FOR_EACH(i, begin, position)
    {
        const int32_t id = history[i], n = atomicExch(&count[id], -1);
        if (n >= 0)
            x[id] = numerics_penalise(x[id], n, r->repetition, r->frequency, r->presence);
    }
    __syncthreads();
}

/* x: the copy; count: as many counters. The tokens of the biases are distinct. */
DEVICE void rules_apply(float *x, const struct sample_rules *r, const int32_t *history,
                        int32_t position, int32_t *count)
{
    FOR_EACH(i, 0, r->biases)
    atomicAdd(&x[r->bias[i].token], r->bias[i].value);
    __syncthreads();
    FOR_EACH(i, 0, bans(r, position) ? r->bans : 0)
    x[r->ban[i]] = -INFINITY;
    FOR_EACH(i, 0, r->bads)
    {
        const int32_t begin = i > 0 ? r->bad_end[i - 1] : 0, end = r->bad_end[i];
        if (is_begun(r->bad + begin, end - begin, history + r->prompt, position - r->prompt))
            x[r->bad[end - 1]] = -INFINITY;
    }
    __syncthreads();
    if (penalises(r))
        penalise(x, r, history, position, count);
}

#endif
