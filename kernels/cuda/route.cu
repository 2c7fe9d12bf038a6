/* DESIGN: a warp per row, each lane with every 32nd of its experts. As often as experts are chosen,
 * the warp finds the best one left; only the lane that had it looks for its next. Where a row has a
 * NaN, the rule is that of a walk from the first expert to the last (kernels/cpu/experts.c): a NaN
 * stays where no other is left before it, and is no largest otherwise. So experts are valid and
 * different ones, whatever the logits are. Groups are chosen first, in the same way by their
 * scores, which make the lanes leave out experts of the others; a NaN counts for no group. */
#include "kernels/cuda/device.cuh"

#include "kernels/numerics.h"

#define WARPS 4
#define NONE_LEFT INT32_MAX

struct routes {
    const float *logits;
    int32_t *expert;
    float *share;
    int32_t rows, experts, chosen; /* without those that every row takes */
    struct routing_rules rules;
};

/* A row's scores: sigmoids, or exponentials of logits less `max` over `all`. */
struct scores {
    const float *logit;
    bool sigmoid;
    float max, all;
};

DEVICE float score_of(const struct scores &s, int32_t e)
{
    return s.sigmoid ? numerics_sigmoid(s.logit[e]) : numerics_exp(s.logit[e] - s.max) / s.all;
}

/* For a choice by softmax that is corrected, which has to know them. By a warp. */
DEVICE void find_scores(struct scores *s, int32_t experts)
{
    const int32_t lane = (int32_t)threadIdx.x % WARP;
    float max = -INFINITY, all = 0;
    for (int32_t e = lane; e < experts; e += WARP)
        max = maximum()(max, s->logit[e]);
    s->max = reduce_lanes<WARP>(max, maximum());
    for (int32_t e = lane; e < experts; e += WARP)
        all += score_of(*s, e);
    s->all = reduce_lanes<WARP>(all, plus());
}

/* What each expert is chosen by, made once: for the warp, in shared memory. */
DEVICE void find_keys(float *key, const struct scores &s, const struct routes &r)
{
    const float *correction = r.rules.correction;
    for (int32_t e = (int32_t)threadIdx.x % WARP; e < r.experts; e += WARP)
        key[e] = correction == nullptr ? s.logit[e] : score_of(s, e) + correction[e];
    __syncwarp();
}

/* Greater for a greater key, then for a lower expert; any beats a NaN's, that beats 0. */
DEVICE uint64_t rank_of(float key, int32_t expert)
{
    const uint32_t u = __float_as_uint(key + 0.0f); /* one zero */
    const uint32_t order = key != key ? 0 : (u & 0x80000000u) != 0 ? ~u : u | 0x80000000u;
    return (uint64_t)order << 32 | ~(uint32_t)expert;
}

DEVICE bool is_nan(float x)
{
    return x != x;
}

DEVICE bool is_taken(uint32_t taken, int32_t expert)
{
    return (taken >> expert / WARP & 1) != 0;
}

/* ---- groups ---- */

/* The two largest keys; -inf where there are fewer. */
struct two {
    float first, second;
};

DEVICE struct two two_of(struct two a, struct two b)
{
    const float least = a.first < b.first ? a.first : b.first;
    const float more = a.second > b.second ? a.second : b.second;
    return {a.first > b.first ? a.first : b.first, least > more ? least : more};
}

/* By a warp, of experts [begin, end). */
DEVICE float group_score(const float *key, const struct routes &r, int32_t begin, int32_t end)
{
    struct two best = {-INFINITY, -INFINITY};
    for (int32_t e = begin + (int32_t)threadIdx.x % WARP; e < end; e += WARP)
        if (!is_nan(key[e]))
            best = two_of(best, {key[e], -INFINITY});
#pragma unroll
    for (int step = WARP / 2; step > 0; step /= 2)
        best = two_of(best, {__shfl_xor_sync(ALL_LANES, best.first, step),
                             __shfl_xor_sync(ALL_LANES, best.second, step)});
    return r.rules.correction != nullptr && end - begin > 1 ? best.first + best.second : best.first;
}

/* Marks the lane's experts of groups that are not kept; score: of the groups, room of the warp. */
DEVICE uint32_t leave_out(const float *key, const struct routes &r, float *score)
{
    const int32_t lane = (int32_t)threadIdx.x % WARP, each = r.experts / r.rules.groups;
    uint32_t out = 0, kept = 0;
    for (int32_t g = 0; g < r.rules.groups; g++) {
        const float of_group = group_score(key, r, g * each, (g + 1) * each);
        if (g % WARP == lane)
            score[g] = of_group;
    }
    for (int32_t i = 0; i < r.rules.kept; i++) {
        uint64_t best = 0;
        for (int32_t g = lane; g < r.rules.groups; g += WARP)
            if (!is_taken(kept, g))
                best = maximum()(best, rank_of(score[g], g));
        const int32_t group = (int32_t) ~(uint32_t)reduce_lanes<WARP>(best, maximum());
        if (group % WARP == lane)
            kept |= 1u << group / WARP;
    }
    for (int32_t g = lane; g < r.rules.groups; g += WARP)
        score[g] = is_taken(kept, g);
    __syncwarp();
    for (int32_t e = lane; e < r.experts; e += WARP)
        if (score[e / each] == 0)
            out |= 1u << e / WARP;
    return out;
}

/* ---- experts ---- */

/* The lane's best expert that is not taken; *first: its first. */
DEVICE uint64_t best_left(const float *key, const struct routes &r, uint32_t taken, int32_t *first)
{
    uint64_t best = 0;
    *first = NONE_LEFT;
    for (int32_t e = (int32_t)threadIdx.x % WARP; e < r.experts; e += WARP)
        if (!is_taken(taken, e)) {
            best = maximum()(best, rank_of(key[e], e));
            *first = *first == NONE_LEFT ? e : *first;
        }
    return best;
}

/* Marks the chosen ones of the lane, of those that are not `out`; *max: the first choice's logit.
 */
DEVICE uint32_t choose(const float *key, const float *logit, const struct routes &r, uint32_t out,
                       float *max)
{
    const int32_t lane = (int32_t)threadIdx.x % WARP;
    uint32_t taken = out;
    int32_t first;
    int odd = 0;
    for (int32_t e = lane; e < r.experts; e += WARP)
        odd |= is_nan(key[e]);
    odd = __any_sync(ALL_LANES, odd);
    uint64_t mine = best_left(key, r, taken, &first);
    for (int32_t i = 0; i < r.chosen; i++) {
        int32_t best = (int32_t) ~(uint32_t)reduce_lanes<WARP>(mine, maximum());
        if (odd) { /* a NaN, if it comes first */
            const int32_t next = -reduce_lanes<WARP>(-first, maximum());
            best = is_nan(key[next]) ? next : best;
        }
        *max = i == 0 ? logit[best] : *max;
        if (best % WARP == lane) {
            taken |= 1u << best / WARP;
            mine = best_left(key, r, taken, &first);
        }
    }
    return taken & ~out;
}

__global__ void route_kernel(struct routes r)
{
    const int32_t lane = (int32_t)threadIdx.x % WARP;
    const int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP;
    __shared__ float of_expert[WARPS][BACKEND_EXPERTS_MAX], of_group[WARPS][BACKEND_EXPERTS_MAX];
    float *key = of_expert[threadIdx.x / WARP], *score = of_group[threadIdx.x / WARP];
    launch_release();
    launch_wait();
    if (row >= r.rows)
        return;
    const int32_t shared = r.rules.shared, chosen = r.chosen + shared;
    const float *logit = r.logits + row * (r.experts + r.rules.gated);
    const float *own = r.rules.expert_scale;
    struct scores s = {logit, r.rules.sigmoid, 0, 1};
    const bool known = r.rules.correction != nullptr && !s.sigmoid;
    float max = 0, total = 0;
    if (known)
        find_scores(&s, r.experts);
    find_keys(key, s, r);
    const uint32_t out = r.rules.groups > 0 ? leave_out(key, r, score) : 0;
    const uint32_t taken = choose(key, logit, r, out, &max);
    s.max = known ? s.max : max;
    for (int32_t e = lane; e < r.experts; e += WARP)
        if (is_taken(taken, e) || !r.rules.among)
            total += score_of(s, e);
    total = numerics_divisor(reduce_lanes<WARP>(total, plus()), r.rules.among, s.sigmoid, known);
    int32_t n = 0;
    for (int32_t begin = 0; begin < r.experts; begin += WARP) {
        const bool mine = is_taken(taken, begin);
        const uint32_t all = __ballot_sync(ALL_LANES, mine);
        const int64_t at = row * chosen + n + __popc(all & ((1u << lane) - 1));
        if (mine) {
            r.expert[at] = begin + lane;
            const float share = score_of(s, begin + lane) / total * r.rules.scale;
            r.share[at] = own == nullptr ? share : share * own[begin + lane];
        }
        n += __popc(all);
    }
    for (int32_t i = lane; i < shared; i += WARP) {
        r.expert[row * chosen + r.chosen + i] = r.experts + i;
        r.share[row * chosen + r.chosen + i] =
            r.rules.gated ? numerics_sigmoid(logit[r.experts]) : 1.0f;
    }
}

void route_run(struct backend *b, const struct routing *r, struct cview logits,
               const struct routing_rules *rules)
{
    const struct routes a = {
        (const float *)logits.data, r->expert, r->share, logits.rows, r->experts - rules->shared,
        r->chosen - rules->shared,  *rules};
    if (logits.rows > 0)
        LAUNCH_AHEAD(cuda_of(b), route_kernel, blocks_for((size_t)logits.rows, WARPS), WARPS * WARP,
                     0, a);
}
