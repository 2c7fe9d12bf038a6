/* DESIGN: numerics.h, step by step, over a sorted copy of the row; logprobs from their formula, in
 * doubles. */
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

/* The prefix of n sorted entries that top-k, min-p and top-p keep. */
static int32_t prefix(const struct entry *e, int32_t n, const struct sample_params *p)
{
    if (p->top_k > 0 && p->top_k < n)
        n = p->top_k;
    while (p->min_p > 0 && (double)e[n - 1].mass < (double)p->min_p * NUMERICS_MASS_ONE)
        n--;
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

static int32_t draw(const struct entry *e, int32_t n, uint64_t key)
{
    double best = -DBL_MAX;
    int32_t id = -1;
    for (int32_t i = 0; i < n; i++) {
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

/* No NaN, no +inf, not only -inf. */
static bool is_drawable(const float *logits, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        if (isnan(logits[i]) || logits[i] > FLT_MAX)
            return false;
    return logits[argmax(logits, n)] >= -FLT_MAX;
}

/* Where `word` of n ids ends in v[0, count), its last id not counted. */
static bool ends_with(const int32_t *v, int32_t count, const int32_t *word, int32_t n)
{
    for (int32_t i = 1; i < n; i++)
        if (i > count || v[count - i] != word[n - 1 - i])
            return false;
    return true;
}

static void apply_rules(float *x, int32_t n, const struct sample_rules *r, const int32_t *history,
                        int32_t position)
{
    const int32_t produced = position - r->prompt;
    for (int32_t i = 0; i < r->biases; i++)
        x[r->bias[i].token] += r->bias[i].value;
    for (int32_t i = 0; i < r->bans && produced < r->min_tokens; i++)
        x[r->ban[i]] = -INFINITY;
    for (int32_t i = 0; i < r->bads; i++) {
        const int32_t begin = i > 0 ? r->bad_end[i - 1] : 0, end = r->bad_end[i];
        if (ends_with(history + r->prompt, produced, r->bad + begin, end - begin))
            x[r->bad[end - 1]] = -INFINITY;
    }
    int32_t *seen = calloc((size_t)n, sizeof *seen), *count = calloc((size_t)n, sizeof *count);
    CHECK(seen != NULL && count != NULL);
    for (int32_t i = 0; i < position; i++) {
        seen[history[i]] = 1;
        count[history[i]] += i >= r->prompt;
    }
    for (int32_t i = 0; i < n; i++)
        if (seen[i])
            x[i] = numerics_penalise(x[i], count[i], r->repetition, r->frequency, r->presence);
    free(seen);
    free(count);
}

static int32_t sample_row(const float *logits, int32_t n, const struct sample_params *p,
                          int32_t position)
{
    if (!is_drawable(logits, n))
        return -1;
    const int32_t greedy = argmax(logits, n);
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
        id = draw(e, prefix(e, n, p), numerics_key(p->seed, p->choice, position));
    }
    free(e);
    return id;
}

/* The token of row r from a copy of it that the rules have changed. */
static int32_t ruled_row(const float *logits, int32_t n, const struct sample_slots *s, int32_t slot,
                         int32_t position)
{
    const int32_t *history = s->history + (size_t)slot * (size_t)s->history_cols;
    if (!is_drawable(logits, n))
        return -1;
    float *x = malloc((size_t)n * sizeof *x);
    CHECK(x != NULL);
    memcpy(x, logits, (size_t)n * sizeof *x);
    apply_rules(x, n, &s->rules[slot], history, position);
    const int32_t id = sample_row(x, n, &s->params[slot], position);
    free(x);
    return id;
}

void ref_sample(struct backend *b, int32_t *ids, struct cview logits,
                const struct sample_rows *rows, const struct sample_slots *s)
{
    (void)b;
    for (int32_t r = 0; r < logits.rows; r++) {
        const float *row = (const float *)logits.data + (size_t)r * (size_t)logits.cols;
        const int32_t slot = rows->slot[r], position = rows->position[r];
        ids[r] = slot < 0 ? -1 : rows->target[r];
        if (slot < 0 || ids[r] >= 0)
            continue;
        ids[r] = ruled_row(row, logits.cols, s, slot, position);
        s->history[(size_t)slot * (size_t)s->history_cols + (size_t)position] =
            ids[r] < 0 ? 0 : ids[r];
    }
}

/* ---- logprobs -------------------------------------------------------------------------------- */

static void logprobs_row(float *logprob, struct token_top *best, const float *x, int32_t n,
                         int32_t id, int32_t top)
{
    double sum = 0;
    *logprob = NAN;
    if (id < 0 || !is_drawable(x, n))
        return;
    const double max = (double)x[argmax(x, n)];
    for (int32_t i = 0; i < n; i++)
        sum += exp((double)x[i] - max);
    *logprob = (float)((double)x[id] - max - log(sum));
    struct entry *e = malloc((size_t)n * sizeof *e);
    CHECK(e != NULL);
    for (int32_t i = 0; i < n; i++)
        e[i] = (struct entry){x[i], i, 0};
    qsort(e, (size_t)n, sizeof *e, by_order);
    for (int32_t i = 0; i < top; i++)
        best[i] = (struct token_top){e[i].id, (float)((double)e[i].z - max - log(sum))};
    free(e);
}

void ref_logprobs(struct backend *b, float *logprob, struct token_top *best, int32_t stride,
                  struct cview logits, const int32_t *ids, const int32_t *top)
{
    (void)b;
    for (int32_t r = 0; r < logits.rows; r++)
        if (top[r] >= 0)
            logprobs_row(&logprob[r], best + (ptrdiff_t)r * stride,
                         (const float *)logits.data + (size_t)r * (size_t)logits.cols, logits.cols,
                         ids[r], top[r]);
}
