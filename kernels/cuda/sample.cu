/* DESIGN: kernels/numerics.h says what is drawn; one block finds it for one row, without sorting.
 * What top-k, min-p and top-p keep is a prefix of the order (z descending, id ascending), so it is
 * always "sort key above K, or equal to K with an id up to C" and two numbers describe it. A prefix
 * of a given mass is found by three histograms over the bits of the keys, 11 + 11 + 10. Masses are
 * integers: sums have no order, and neither threads nor atomics show in the result. Masses are
 * computed anew in every pass; that is cheaper than keeping them. */
#include "kernels/cuda/device.cuh"

#include "kernels/cuda/rules.cuh"

#define THREADS 512
#define BINS 2048

/* ---- resolve ---- */

__global__ void resolve_kernel(int32_t *ids, const int32_t *token, struct rows rows,
                               struct sample_slots s)
{
    const int32_t t = (int32_t)(blockIdx.x * blockDim.x + threadIdx.x);
    if (t >= rows.count)
        return;
    const int32_t slot = rows.slot[t];
    ids[t] = slot < 0        ? -1
             : token[t] >= 0 ? token[t]
                             : s.history[(int64_t)slot * s.history_cols + rows.position[t]];
}

void sample_resolve(struct backend *b, int32_t *ids, const int32_t *token, const struct rows *rows,
                    const struct sample_slots *slots)
{
    if (rows->count > 0)
        LAUNCH(cuda_of(b), resolve_kernel, blocks_for((size_t)rows->count, 128), 128, 0, ids, token,
               *rows, *slots);
}

/* ---- order ---- */

/* Orders as the float does; no NaN. -0 counts as +0. */
HOST_DEVICE uint32_t sort_key(float z)
{
    uint32_t u;
    z += 0.0f;
    memcpy(&u, &z, sizeof u);
    return (u >> 31) != 0 ? ~u : u | 0x80000000u;
}

HOST_DEVICE float from_sort_key(uint32_t key)
{
    const uint32_t u = (key >> 31) != 0 ? key & 0x7fffffffu : ~key;
    float z;
    memcpy(&z, &u, sizeof z);
    return z;
}

/* Value and id in one number whose maximum is the largest value and among those the lowest id. */
HOST_DEVICE uint64_t place_of(float z, int32_t id)
{
    return (uint64_t)sort_key(z) << 32 | (uint32_t)~id;
}

HOST_DEVICE int32_t id_of(uint64_t place)
{
    return (int32_t) ~(uint32_t)place;
}

HOST_DEVICE float value_of(uint64_t place)
{
    return from_sort_key((uint32_t)(place >> 32));
}

/* The place of the largest logit; 0 for a row with a NaN or +inf, or with nothing but -inf. */
DEVICE uint64_t best_of(const float *x, int32_t vocab)
{
    uint64_t best = 0;
    int bad = 0;
    FOR_EACH(i, 0, vocab)
    {
        bad |= !(x[i] <= FLT_MAX);
        best = maximum()(best, place_of(x[i], i));
    }
    bad = __syncthreads_or(bad);
    best = reduce_block(best, maximum());
    return bad || value_of(best) < -FLT_MAX ? 0 : best;
}

/* ---- the kept set ---- */

struct draw {
    const float *x; /* logits after the rules */
    int32_t vocab;
    float temperature, max; /* of z */
    uint32_t key;           /* kept: above it, or equal with an id up to `last` */
    int32_t last;
    double least; /* and with at least this mass, from min-p on */
};

DEVICE float z_of(const struct draw *d, int32_t id)
{
    return d->x[id] / d->temperature + 0.0f;
}

DEVICE uint64_t mass_of(const struct draw *d, float z)
{
    return numerics_mass(numerics_exp(z - d->max));
}

DEVICE bool is_kept(const struct draw *d, float z, int32_t id)
{
    const uint32_t key = sort_key(z);
    return (key > d->key || (key == d->key && id <= d->last)) &&
           (d->least <= 0 || (double)mass_of(d, z) >= d->least);
}

/* The bin where the mass from the top first reaches *need; *need loses what lies above it. */
DEVICE uint32_t select_bin(const unsigned long long *bins, uint32_t count, uint64_t *need)
{
    __shared__ unsigned long long of_lane[WARP], left;
    __shared__ uint32_t found;
    const uint32_t part = count / WARP;
    if (threadIdx.x < WARP) {
        unsigned long long sum = 0;
        for (uint32_t i = 0; i < part; i++)
            sum += bins[threadIdx.x * part + i];
        of_lane[threadIdx.x] = sum;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        uint32_t lane = WARP - 1;
        left = *need;
        while (lane > 0 && of_lane[lane] < left)
            left -= of_lane[lane--];
        found = lane * part + part - 1;
        while (found > lane * part && bins[found] < left)
            left -= bins[found--];
    }
    __syncthreads();
    const uint32_t bin = found;
    *need = left;
    __syncthreads(); /* both may be written again */
    return bin;
}

/* The nth (from 1) id of those with this key, ascending; all are kept so far. */
DEVICE int32_t nth_equal(const struct draw *d, uint32_t key, uint64_t nth)
{
    __shared__ unsigned char equal[THREADS];
    __shared__ int32_t id;
    uint64_t seen = 0;
    for (int32_t base = 0; base < d->vocab; base += THREADS) {
        const int32_t i = base + (int32_t)threadIdx.x;
        const float z = i < d->vocab ? z_of(d, i) : 0;
        equal[threadIdx.x] = i < d->vocab && sort_key(z) == key && is_kept(d, z, i);
        const uint64_t here = (uint64_t)__syncthreads_count(equal[threadIdx.x]);
        if (seen + here >= nth) { /* the same in all threads */
            if (threadIdx.x == 0)
                for (int32_t n = 0; n < THREADS && seen < nth; n++) {
                    seen += equal[n];
                    id = base + n;
                }
            break;
        }
        seen += here;
        __syncthreads(); /* `equal` is written again */
    }
    __syncthreads();
    const int32_t last = id;
    __syncthreads();
    return last;
}

/* Shortens what is kept to the shortest prefix of the order whose mass (unit: number) is at least
 * need >= 1; there is that much. */
DEVICE void keep_prefix(struct draw *d, bool unit, uint64_t need)
{
    __shared__ unsigned long long bins[BINS];
    uint32_t key = 0, mask = 0;
    for (int pass = 0; pass < 3; pass++) {
        const int shift = pass == 0 ? 21 : pass == 1 ? 10 : 0;
        const uint32_t count = pass < 2 ? BINS : BINS / 2;
        FOR_EACH(i, 0, BINS)
        bins[i] = 0;
        __syncthreads();
        FOR_EACH(i, 0, d->vocab)
        {
            const float z = z_of(d, i);
            const uint32_t k = sort_key(z);
            if ((k & mask) == key && is_kept(d, z, i))
                atomicAdd(&bins[k >> shift & (count - 1)],
                          (unsigned long long)(unit ? 1 : mass_of(d, z)));
        }
        __syncthreads();
        key |= select_bin(bins, count, &need) << shift;
        mask |= (count - 1) << shift;
    }
    /* Equal z have equal masses: so many of them, lowest ids first, reach what is still needed. */
    const uint64_t each = unit ? 1 : mass_of(d, from_sort_key(key));
    const int32_t last = nth_equal(d, key, (need + each - 1) / each);
    d->key = key;
    d->last = last;
}

/* top-k, min-p, top-p. */
DEVICE void filter(struct draw *d, const struct sample_params *p)
{
    if (p->top_k > 0 && p->top_k < d->vocab)
        keep_prefix(d, true, (uint64_t)p->top_k);
    if (p->min_p > 0)
        d->least = (double)p->min_p * NUMERICS_MASS_ONE;
    if (!(p->top_p < 1))
        return;
    uint64_t total = 0;
    FOR_EACH(i, 0, d->vocab)
    {
        const float z = z_of(d, i);
        if (is_kept(d, z, i))
            total += mass_of(d, z);
    }
    keep_prefix(d, false, numerics_nucleus(p->top_p, reduce_block(total, plus())));
}

struct minimum {
    DEVICE int32_t operator()(int32_t a, int32_t b) const
    {
        return b < a ? b : a;
    }
};

DEVICE int32_t gumbel_max(const struct draw *d, uint64_t key)
{
    double best = -DBL_MAX;
    int32_t id = INT32_MAX;
    FOR_EACH(i, 0, d->vocab)
    {
        const float z = z_of(d, i);
        if (!is_kept(d, z, i))
            continue;
        const double value = (double)z + numerics_gumbel(numerics_bits(key, i));
        if (value > best) {
            best = value;
            id = i;
        }
    }
    const double most = reduce_block(best, maximum());
    return reduce_block(best == most ? id : INT32_MAX, minimum());
}

/* ---- sample ---- */

struct sample_args {
    int32_t *ids;
    const float *logits;
    int32_t vocab, first; /* row of block 0 */
    struct sample_rows rows;
    struct sample_slots slots;
    float *copies; /* [blocks, vocab] */
    int32_t *counts;
};

DEVICE int32_t sample_row(const struct sample_args &a, int32_t slot, int32_t position,
                          const float *x)
{
    const struct sample_params p = a.slots.params[slot];
    const struct sample_rules *rules = &a.slots.rules[slot];
    uint64_t best = best_of(x, a.vocab);
    if (best != 0 && rules_change(rules, position)) {
        float *copy = a.copies + (int64_t)blockIdx.x * a.vocab;
        FOR_EACH(i, 0, a.vocab)
        copy[i] = x[i];
        __syncthreads();
        rules_apply(copy, rules, a.slots.history + (int64_t)slot * a.slots.history_cols, position,
                    a.counts + (int64_t)blockIdx.x * a.vocab);
        x = copy;
        best = best_of(x, a.vocab);
    }
    if (best == 0)
        return -1;
    struct draw d = {x,         a.vocab, p.temperature, value_of(best) / p.temperature + 0.0f, 0,
                     INT32_MAX, 0};
    if (p.temperature == 0 || !(fabsf(d.max) <= FLT_MAX))
        return id_of(best);
    filter(&d, &p);
    return gumbel_max(&d, numerics_key(p.seed, p.choice, position));
}

__global__ void __launch_bounds__(THREADS) sample_kernel(struct sample_args a)
{
    const int32_t r = a.first + (int32_t)blockIdx.x;
    const int32_t slot = a.rows.slot[r], target = slot < 0 ? -1 : a.rows.target[r];
    int32_t id = target;
    if (slot >= 0 && target < 0)
        id = sample_row(a, slot, a.rows.position[r], a.logits + (int64_t)r * a.vocab);
    if (threadIdx.x != 0)
        return;
    a.ids[r] = id;
    if (slot >= 0 && target < 0)
        a.slots.history[(int64_t)slot * a.slots.history_cols + a.rows.position[r]] =
            id < 0 ? 0 : id;
}

void sample_run(struct backend *b, int32_t *ids, struct cview logits,
                const struct sample_rows *rows, const struct sample_slots *slots)
{
    struct cuda_backend *c = cuda_of(b);
    if (logits.rows == 0)
        return;
    /* As many rows at once as there are copies; the reserve has room for one at least. */
    const int32_t at_once = (int32_t)(c->sample.bytes / ((size_t)logits.cols * 8));
    const int32_t step = at_once < CUDA_SAMPLE_ROWS ? at_once : CUDA_SAMPLE_ROWS;
    float *copies = (float *)c->sample.data;
    struct sample_args a = {ids,         (const float *)logits.data,
                            logits.cols, 0,
                            *rows,       *slots,
                            copies,      (int32_t *)(copies + (int64_t)step * logits.cols)};
    for (; a.first < logits.rows; a.first += step) {
        const int32_t left = logits.rows - a.first;
        LAUNCH(c, sample_kernel, (unsigned)(left < step ? left : step), THREADS, 0, a);
    }
}

/* ---- logprobs ---- */

struct logprobs_args {
    float *logprob;
    struct token_top *best;
    int32_t stride, vocab;
    const float *logits;
    const int32_t *ids, *top;
};

__global__ void __launch_bounds__(THREADS) logprobs_kernel(struct logprobs_args a)
{
    const int32_t r = (int32_t)blockIdx.x, count = a.top[r];
    const float *x = a.logits + (int64_t)r * a.vocab;
    if (count < 0)
        return;
    uint64_t place = best_of(x, a.vocab), total = 0;
    if (place == 0 || a.ids[r] < 0) {
        if (threadIdx.x == 0)
            a.logprob[r] = NAN;
        return;
    }
    const float max = value_of(place);
    FOR_EACH(i, 0, a.vocab)
    total += numerics_mass(numerics_exp(x[i] - max));
    const double log_total = numerics_log_total(reduce_block(total, plus()));
    if (threadIdx.x == 0)
        a.logprob[r] = numerics_logprob(x[a.ids[r]], max, log_total);
    for (int32_t n = 0; n < count; n++) {
        if (threadIdx.x == 0) {
            const struct token_top best = {id_of(place),
                                           numerics_logprob(value_of(place), max, log_total)};
            a.best[(int64_t)r * a.stride + n] = best;
        }
        uint64_t next = 0; /* the best below this one */
        FOR_EACH(i, 0, a.vocab)
        {
            const uint64_t at = place_of(x[i], i);
            next = at < place && at > next ? at : next;
        }
        place = reduce_block(next, maximum());
    }
}

void sample_logprobs(struct backend *b, float *logprob, struct token_top *best, int32_t stride,
                     struct cview logits, const int32_t *ids, const int32_t *top)
{
    const struct logprobs_args a = {logprob, best, stride, logits.cols, (const float *)logits.data,
                                    ids,     top};
    if (logits.rows > 0)
        LAUNCH(cuda_of(b), logprobs_kernel, (unsigned)logits.rows, THREADS, 0, a);
}
