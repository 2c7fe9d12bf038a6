/* DESIGN: log-softmax by kernels/numerics.h: the sum of exponentials is a sum of integers, so it
 * has no order. The best are found in one walk with a short sorted list, because few of the logits
 * that come later beat its last one. One row is one work item. */
#include "kernels/cpu/cpu.h"
#include "kernels/numerics.h"

#include <float.h>

struct job {
    const struct cpu_backend *c;
    float *logprob;
    struct token_top *best;
    int32_t stride;
    struct cview logits;
    const int32_t *ids, *top;
};

static uint64_t mass_total(const float *e, int32_t n)
{
    uint64_t total = 0;
    for (int32_t i = 0; i < n; i++)
        total += numerics_mass(e[i]);
    return total;
}

/* best[0, count) = the largest of x with their values. */
static void find_best(struct token_top *best, int32_t count, const float *x, int32_t n)
{
    int32_t have = 0;
    for (int32_t i = 0; i < n; i++) {
        if (have == count && !(x[i] > best[count - 1].logprob))
            continue;
        int32_t at = have < count ? have++ : count - 1;
        for (; at > 0 && best[at - 1].logprob < x[i]; at--)
            best[at] = best[at - 1];
        best[at] = (struct token_top){i, x[i]};
    }
}

static void logprobs_row(const struct job *j, int32_t worker, int64_t r)
{
    const struct cpu_isa *isa = j->c->isa;
    const int32_t vocab = j->logits.cols, count = j->top[r];
    const float *x = (const float *)j->logits.data + (size_t)r * (size_t)vocab;
    struct token_top *best = j->best + r * j->stride;
    float *e = j->c->partial + (size_t)worker * j->c->partial_floats;
    bool bad;
    const float max = isa->maximum(x, vocab, &bad);
    j->logprob[r] = NAN;
    if (bad || max < -FLT_MAX || j->ids[r] < 0)
        return;
    isa->exp(e, x, max, vocab);
    const double log_total = numerics_log_total(mass_total(e, vocab));
    j->logprob[r] = numerics_logprob(x[j->ids[r]], max, log_total);
    if (count == 0)
        return;
    find_best(best, count, x, vocab);
    for (int32_t i = 0; i < count; i++)
        best[i].logprob = numerics_logprob(best[i].logprob, max, log_total);
}

static void logprobs_rows(void *arg, int32_t worker, int64_t begin, int64_t end)
{
    const struct job *j = arg;
    for (int64_t r = begin; r < end; r++)
        if (j->top[r] >= 0)
            logprobs_row(j, worker, r);
}

void logprobs_run(struct backend *b, float *logprob, struct token_top *best, int32_t stride,
                  struct cview logits, const int32_t *ids, const int32_t *top)
{
    struct cpu_backend *c = cpu_of(b);
    struct err err;
    CHECK(sample_reserve(c, logits.cols, &err) == OK);
    struct job j = {c, logprob, best, stride, logits, ids, top};
    pool_run(c->pool, logits.rows, 1, logprobs_rows, &j);
}
