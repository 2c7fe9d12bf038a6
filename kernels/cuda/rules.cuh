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

/* Part of a row: ids [first, first + n). */
struct part {
    float *x;
    int32_t first, n;
    int32_t *count; /* scratch, [n] */
};

/* The column of an id, -1 when it is another part's. */
DEVICE int32_t column_of(const struct part *p, int32_t id)
{
    return id >= p->first && id < p->first + p->n ? id - p->first : -1;
}

DEVICE void ban(const struct part *p, int32_t id)
{
    const int32_t at = column_of(p, id);
    if (at >= 0)
        p->x[at] = -INFINITY;
}

/* The counters need no clean state: those that will be used are cleared first. The thread that
 * takes an id's counter changes its logit, so each is changed once. */
DEVICE void penalise(const struct part *p, const struct sample_rules *r, const int32_t *history,
                     int32_t position)
{
    /* with repetition off, what is only in the prompt does not change */
    const int32_t begin = r->repetition != 1 ? 0 : r->prompt;
    FOR_EACH(i, begin, position) {
        const int32_t at = column_of(p, history[i]);
        if (at >= 0)
            p->count[at] = 0;
    }
    __syncthreads();
    FOR_EACH(i, r->prompt, position) {
        const int32_t at = column_of(p, history[i]);
        if (at >= 0)
            atomicAdd(&p->count[at], 1);
    }
    __syncthreads();
    FOR_EACH(i, begin, position) {
        const int32_t at = column_of(p, history[i]);
        const int32_t n = at >= 0 ? atomicExch(&p->count[at], -1) : -1;
        if (n >= 0)
            p->x[at] = numerics_penalise(p->x[at], n, r->repetition, r->frequency, r->presence);
    }
    __syncthreads();
}

/* A token that is there several times is added up by the thread of the first, in their order. */
DEVICE void add_biases(const struct part *p, const struct sample_rules *r)
{
    FOR_EACH(i, 0, r->biases) {
        const int32_t token = r->bias[i].token, at = column_of(p, token);
        bool first = at >= 0;
        for (int32_t j = 0; j < i && first; j++)
            first = r->bias[j].token != token;
        for (int32_t j = i; j < r->biases && first; j++)
            if (r->bias[j].token == token)
                p->x[at] += r->bias[j].value;
    }
}

DEVICE void rules_apply(const struct part *p, const struct sample_rules *r, const int32_t *history,
                        int32_t position)
{
    add_biases(p, r);
    __syncthreads();
    FOR_EACH(i, 0, bans(r, position) ? r->bans : 0)
        ban(p, r->ban[i]);
    FOR_EACH(i, 0, r->bads) {
        const int32_t begin = i > 0 ? r->bad_end[i - 1] : 0, end = r->bad_end[i];
        if (is_begun(r->bad + begin, end - begin, history + r->prompt, position - r->prompt))
            ban(p, r->bad[end - 1]);
    }
    __syncthreads();
    if (penalises(r))
        penalise(p, r, history, position);
}

/* The mask of row r; NULL: it has none. */
DEVICE const uint32_t *mask_of(const struct sample_rows *rows, const struct sample_slots *slots,
                               int32_t r)
{
    if (rows->mask == NULL || rows->mask[r] < 0)
        return NULL;
    return slots->masks + (int64_t)rows->mask[r] * slots->mask_words;
}

DEVICE void apply_mask(const struct part *p, const uint32_t *mask)
{
    FOR_EACH(i, 0, p->n) {
        const int32_t id = p->first + i;
        if ((mask[id / 32] >> (id % 32) & 1) == 0)
            p->x[i] = -INFINITY;
    }
    __syncthreads();
}

#endif
