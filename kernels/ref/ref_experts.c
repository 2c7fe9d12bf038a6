/* DESIGN: routing as its rules say it, a largest key at a time; an expert's product is that of any
 * weight, a row at a time. */
#include "kernels/ref/ref.h"
#include "kernels/ref/ref_math.h"

#include <math.h>
#include <stdlib.h>

/* Score of expert e of row t among n. */
static double score_of(struct cview logits, int32_t t, int32_t e, int32_t n,
                       const struct routing_rules *rules)
{
    double max = -INFINITY, sum = 0;
    if (rules->sigmoid)
        return ref_sigmoid((double)ref_at(logits, t, e));
    for (int32_t i = 0; i < n; i++)
        max = fmax(max, (double)ref_at(logits, t, i));
    for (int32_t i = 0; i < n; i++)
        sum += exp((double)ref_at(logits, t, i) - max);
    return exp((double)ref_at(logits, t, e) - max) / sum;
}

/* What experts of row t are chosen by. */
static float choice_key(struct cview logits, int32_t t, int32_t e, int32_t n,
                        const struct routing_rules *rules)
{
    if (!rules->correction)
        return ref_at(logits, t, e);
    return (float)score_of(logits, t, e, n, rules) + rules->correction[e];
}

/* Of n keys the largest that is not taken; nothing is greater than a NaN that comes first. */
static int32_t largest(const float *key, const bool *taken, int32_t n)
{
    int32_t best = -1;
    for (int32_t e = 0; e < n; e++)
        if (!taken[e] && (best < 0 || key[e] > key[best]))
            best = e;
    return best;
}

/* Takes all experts of groups that are not kept. */
static void take_groups(bool *taken, const float *key, int32_t n, const struct routing_rules *rules)
{
    const int32_t groups = rules->groups, each = n / groups;
    float score[BACKEND_EXPERTS_MAX];
    bool kept[BACKEND_EXPERTS_MAX] = {false};
    for (int32_t g = 0; g < groups; g++) {
        bool first[BACKEND_EXPERTS_MAX] = {false};
        const int32_t best = largest(key + g * each, first, each);
        score[g] = key[g * each + best];
        first[best] = true;
        if (rules->correction && each > 1)
            score[g] += key[g * each + largest(key + g * each, first, each)];
    }
    for (int32_t i = 0; i < rules->kept; i++)
        kept[largest(score, kept, groups)] = true;
    for (int32_t e = 0; e < n; e++)
        taken[e] = !kept[e / each];
}

/* The `count` of n experts with the largest keys, ascending. */
static void choose(struct cview logits, int32_t t, int32_t n, const struct routing_rules *rules,
                   int32_t *expert, int32_t count)
{
    bool taken[BACKEND_EXPERTS_MAX] = {false}, chosen[BACKEND_EXPERTS_MAX] = {false};
    float key[BACKEND_EXPERTS_MAX];
    int32_t found = 0;
    for (int32_t e = 0; e < n; e++)
        key[e] = choice_key(logits, t, e, n, rules);
    if (rules->groups > 0)
        take_groups(taken, key, n, rules);
    for (int32_t i = 0; i < count; i++) {
        const int32_t best = largest(key, taken, n);
        taken[best] = chosen[best] = true;
    }
    for (int32_t e = 0; e < n; e++)
        if (chosen[e])
            expert[found++] = e;
}

void ref_route(struct backend *b, const struct routing *r, struct cview logits,
               const struct routing_rules *rules)
{
    (void)b;
    const int32_t routed = r->experts - rules->shared, count = r->chosen - rules->shared;
    for (int32_t t = 0; t < logits.rows; t++) {
        int32_t *expert = r->expert + (ptrdiff_t)t * r->chosen;
        float *share = r->share + (ptrdiff_t)t * r->chosen;
        double total = rules->sigmoid ? 1e-20 : 0;
        choose(logits, t, routed, rules, expert, count);
        for (int32_t i = 0; i < count; i++)
            total += score_of(logits, t, expert[i], routed, rules);
        if (rules->correction && !rules->sigmoid)
            total = fmax(total, 1e-12);
        for (int32_t i = 0; i < count; i++)
            share[i] = (float)(score_of(logits, t, expert[i], routed, rules) /
                               (rules->among ? total : 1) * (double)rules->scale *
                               (rules->expert_scale ? (double)rules->expert_scale[expert[i]] : 1));
        for (int32_t i = count; i < r->chosen; i++) {
            expert[i] = routed + i - count;
            share[i] = rules->gated ? (float)ref_sigmoid((double)ref_at(logits, t, routed)) : 1;
        }
    }
}

void ref_expert_linear(struct backend *b, struct view y, struct cview x, const struct experts *w,
                       const struct routing *r)
{
    (void)b;
    double *row = ref_row_open(x.cols);
    for (int32_t t = 0; t < y.rows; t++) {
        ref_row_of(row, x, t, &w->spec);
        for (int32_t n = 0; n < y.cols; n++) {
            const int32_t e = r->expert[t * r->chosen + n / w->spec.out];
            *ref_cell(y, t, n) = (float)ref_dot(row, w->weight[e], n % w->spec.out);
        }
    }
    free(row);
}

void ref_expert_sum(struct backend *b, struct view y, struct cview x, const struct experts *w,
                    const struct routing *r)
{
    (void)b;
    const struct cview parts = {x.data, x.dtype, x.rows * r->chosen, w->spec.in};
    double *rows = ref_row_open(x.cols);
    for (int32_t t = 0; t < y.rows; t++) {
        for (int32_t i = 0; i < r->chosen; i++)
            ref_row_of(rows + (ptrdiff_t)i * w->spec.in, parts, t * r->chosen + i, &w->spec);
        for (int32_t n = 0; n < y.cols; n++) {
            double sum = 0;
            for (int32_t i = 0; i < r->chosen; i++) {
                const int32_t at = t * r->chosen + i;
                sum += (double)r->share[at] *
                       ref_dot(rows + (ptrdiff_t)i * w->spec.in, w->weight[r->expert[at]], n);
            }
            *ref_cell(y, t, n) = (float)sum;
        }
    }
    free(rows);
}

void ref_expert_bias(struct backend *b, struct view y, const float *bias, const struct routing *r)
{
    (void)b;
    const int32_t out = y.cols / r->chosen;
    for (int32_t t = 0; t < y.rows; t++)
        for (int32_t i = 0; i < y.cols; i++)
            *ref_cell(y, t, i) += bias[r->expert[t * r->chosen + i / out] * out + i % out];
}

void ref_expert_bias_sum(struct backend *b, struct view y, struct cview x, const float *bias,
                         const struct routing *r)
{
    (void)b;
    for (int32_t t = 0; t < y.rows; t++)
        for (int32_t i = 0; i < y.cols; i++) {
            double sum = (double)ref_at(x, t, i);
            for (int32_t c = t * r->chosen; c < (t + 1) * r->chosen; c++)
                sum += (double)r->share[c] * (double)bias[r->expert[c] * y.cols + i];
            *ref_cell(y, t, i) = (float)sum;
        }
}
