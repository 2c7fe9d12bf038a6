/* DESIGN: numerics.h, step by step, over a sorted copy of the row. */
#include "kernels/numerics.h"
#include "kernels/ref/ref.h"

#include <float.h>
#include <stdlib.h>

struct entry {
    float z;
    int32_t id;
    uint64_t mass;
};

static int by_order(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    if (x->z != y->z)
        return x->z > y->z ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

/* The prefix kept by top-k and top-p of n sorted entries. */
static int32_t prefix(const struct entry *e, int32_t n, const struct sample_params *p)
{
    if (p->top_k > 0 && p->top_k < n)
        n = p->top_k;
    if (!(p->top_p < 1))
        return n;
    uint64_t total = 0, sum = 0;
    for (int32_t i = 0; i < n; i++)
        total += e[i].mass;
    const uint64_t need = numerics_nucleus(p->top_p, total);
    for (int32_t i = 0; i < n; i++) {
        sum += e[i].mass;
        if (sum >= need)
            return i + 1;
    }
    return n;
}

static int32_t draw(const struct entry *e, int32_t n, const struct sample_params *p, uint64_t key)
{
    double best = -DBL_MAX;
    int32_t id = -1;
    for (int32_t i = 0; i < n; i++) {
        if (p->min_p > 0 && (double)e[i].mass < (double)p->min_p * NUMERICS_MASS_ONE)
            continue;
        double value = (double)e[i].z + numerics_gumbel(numerics_bits(key, e[i].id));
        if (value > best || (value == best && e[i].id < id)) {
            best = value;
            id = e[i].id;
        }
    }
    return id;
}

static int32_t argmax(const float *x, int32_t n)
{
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        if (x[i] > x[best])
            best = i;
    return best;
}

static int32_t sample_row(const float *logits, int32_t n, const struct sample_params *p,
                          int32_t position)
{
    for (int32_t i = 0; i < n; i++)
        if (isnan(logits[i]) || logits[i] > FLT_MAX)
            return -1;
    const int32_t greedy = argmax(logits, n);
    if (logits[greedy] < -FLT_MAX)
        return -1;
    if (p->temperature == 0)
        return greedy;
    struct entry *e = malloc((size_t)n * sizeof *e);
    CHECK(e != NULL);
    for (int32_t i = 0; i < n; i++)
        e[i] = (struct entry){logits[i] / p->temperature + 0.0f, i, 0};
    qsort(e, (size_t)n, sizeof *e, by_order);
    int32_t id = greedy;
    if (fabsf(e[0].z) <= FLT_MAX) {
        for (int32_t i = n - 1; i >= 0; i--)
            e[i].mass = numerics_mass(numerics_exp(e[i].z - e[0].z));
        id = draw(e, prefix(e, n, p), p, numerics_key(p->seed, p->choice, position));
    }
    free(e);
    return id;
}

void ref_sample(struct backend *b, int32_t *ids, struct cview logits, const int32_t *slot,
                const int32_t *position, const struct sample_params *params, int32_t *last)
{
    (void)b;
    for (int32_t r = 0; r < logits.rows; r++) {
        const float *row = (const float *)logits.data + (size_t)r * (size_t)logits.cols;
        ids[r] = -1;
        if (slot[r] < 0)
            continue;
        ids[r] = sample_row(row, logits.cols, &params[slot[r]], position[r]);
        last[slot[r]] = ids[r];
    }
}
