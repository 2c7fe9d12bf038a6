/* DESIGN: kernels/numerics.h says what is drawn; one block finds it for one row, without sorting.
 * What top-k, min-p and top-p keep is a prefix of the order (z descending, id ascending), so it is
 * always "sort key above K, or equal to K with a column up to C" and two numbers describe it. A
 * prefix of a given mass is found by three histograms over the bits of the keys, 11 + 11 + 10.
 * Masses are integers: sums have no order, and neither threads nor atomics show in the result.
 * Masses are computed anew in every pass; that is cheaper than keeping them. Most of a row falls
 * into few bins, and shared memory adds 32 bits in one go but 64 in a loop that spins on such: so a
 * bin is some words, each of as many bits of the masses as its sum has room for. */
#ifndef TESSERA_KERNELS_CUDA_DRAW_CUH
#define TESSERA_KERNELS_CUDA_DRAW_CUH

#include "kernels/cuda/device.cuh"

#include "kernels/cuda/rules.cuh"

#define THREADS 512
#define BINS 2048
#define WORDS 4      /* of a bin */
#define WORD_BITS 11 /* in rows of up to 2^21 */

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
DEVICE uint64_t best_of(const float *x, int32_t n)
{
    uint64_t best = 0;
    int bad = 0;
    FOR_EACH(i, 0, n) {
        bad |= !(x[i] <= FLT_MAX);
        best = maximum()(best, place_of(x[i], i));
    }
    bad = __syncthreads_or(bad);
    best = reduce_block(best, maximum());
    return bad || value_of(best) < -FLT_MAX ? 0 : best;
}

/* ---- the kept set ---- */

struct draw {
    const float *x; /* logits after the rules, of ids [first, first + n) */
    int32_t n, first;
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

typedef uint32_t histogram[WORDS][BINS];

DEVICE void add_to_bin(histogram &bins, uint32_t bin, uint64_t mass)
{
    static_assert(NUMERICS_MASS_ONE < (double)(1ull << WORDS * WORD_BITS), "a mass has its words");
#pragma unroll
    for (int i = 0; i < WORDS; i++) {
        const uint32_t word = (uint32_t)(mass >> i * WORD_BITS) & ((1u << WORD_BITS) - 1);
        if (word != 0)
            atomicAdd(&bins[i][bin], word);
    }
}

DEVICE uint64_t mass_in_bin(const histogram &bins, uint32_t bin)
{
    uint64_t mass = 0;
#pragma unroll
    for (int i = 0; i < WORDS; i++)
        mass += (uint64_t)bins[i][bin] << i * WORD_BITS;
    return mass;
}

/* The bin where the mass from the top first reaches *need; *need loses what lies above it. */
DEVICE uint32_t select_bin(const histogram &bins, uint32_t count, uint64_t *need)
{
    __shared__ uint64_t of_lane[WARP], left;
    __shared__ uint32_t found;
    const uint32_t part = count / WARP;
    if (threadIdx.x < WARP) {
        uint64_t sum = 0;
        for (uint32_t i = 0; i < part; i++) /* lanes in different banks */
            sum += mass_in_bin(bins, threadIdx.x * part + (i + threadIdx.x) % part);
        of_lane[threadIdx.x] = sum;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        uint32_t lane = WARP - 1;
        left = *need;
        while (lane > 0 && of_lane[lane] < left)
            left -= of_lane[lane--];
        found = lane * part + part - 1;
        while (found > lane * part && mass_in_bin(bins, found) < left)
            left -= mass_in_bin(bins, found--);
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
    for (int32_t base = 0; base < d->n; base += THREADS) {
        const int32_t i = base + (int32_t)threadIdx.x;
        const float z = i < d->n ? z_of(d, i) : 0;
        equal[threadIdx.x] = i < d->n && sort_key(z) == key && is_kept(d, z, i);
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
    __shared__ histogram bins;
    uint32_t key = 0, mask = 0;
    for (int pass = 0; pass < 3; pass++) {
        const int shift = pass == 0 ? 21 : pass == 1 ? 10 : 0;
        const uint32_t count = pass < 2 ? BINS : BINS / 2;
        FOR_EACH(i, 0, WORDS * BINS)
            bins[i / BINS][i % BINS] = 0;
        __syncthreads();
        FOR_EACH(i, 0, d->n) {
            const float z = z_of(d, i);
            const uint32_t k = sort_key(z);
            if ((k & mask) == key && is_kept(d, z, i))
                add_to_bin(bins, k >> shift & (count - 1), unit ? 1 : mass_of(d, z));
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
    if (p->top_k > 0 && p->top_k < d->n)
        keep_prefix(d, true, (uint64_t)p->top_k);
    if (p->min_p > 0)
        d->least = (double)p->min_p * NUMERICS_MASS_ONE;
    if (!(p->top_p < 1))
        return;
    uint64_t total = 0;
    FOR_EACH(i, 0, d->n) {
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

struct winner {
    double value;
    int32_t id; /* -1: none */
};

/* Of all threads' best, ties to the lowest id. */
DEVICE struct winner win(double value, int32_t id)
{
    struct winner w;
    w.value = reduce_block(value, maximum());
    w.id = reduce_block(id >= 0 && value == w.value ? id : INT32_MAX, minimum());
    w.id = w.id == INT32_MAX ? -1 : w.id;
    return w;
}

/* The largest z + noise of what is kept. */
DEVICE struct winner gumbel_max(const struct draw *d, uint64_t key)
{
    double best = -DBL_MAX;
    int32_t id = -1;
    FOR_EACH(i, 0, d->n) {
        const float z = z_of(d, i);
        if (!is_kept(d, z, i))
            continue;
        const double value = (double)z + numerics_gumbel(numerics_bits(key, d->first + i));
        if (value > best) {
            best = value;
            id = d->first + i;
        }
    }
    return win(best, id);
}

/* ---- rows and their rules ---- */

/* Rows of logits, whole or columns [first, first + cols) of them, and scratch for each block. */
struct drawn_rows {
    const float *logits;
    int32_t cols, first;
    int32_t row; /* of block 0 */
    struct sample_rows rows;
    struct sample_slots slots;
    float *copies; /* [blocks, cols] */
    int32_t *counts;
};

DEVICE bool is_drawn(const struct sample_rows *rows, int32_t r)
{
    return rows->slot[r] >= 0 && rows->target[r] < 0;
}

/* Row r as rules and mask leave it: the logits themselves, or a copy. */
DEVICE const float *ruled(const struct drawn_rows *a, int32_t r)
{
    const int32_t slot = a->rows.slot[r], position = a->rows.position[r];
    const struct sample_rules *rules = &a->slots.rules[slot];
    const float *x = a->logits + (int64_t)r * a->cols;
    float *copy = a->copies + (int64_t)blockIdx.x * a->cols;
    const uint32_t *mask = mask_of(&a->rows, &a->slots, r);
    if (mask == NULL && !rules_change(rules, position))
        return x;
    FOR_EACH(i, 0, a->cols)
        copy[i] = x[i];
    __syncthreads();
    const struct part part = {copy, a->first, a->cols, a->counts + (int64_t)blockIdx.x * a->cols};
    rules_apply(&part, rules, a->slots.history + (int64_t)slot * a->slots.history_cols, position);
    if (mask != NULL)
        apply_mask(&part, mask);
    return copy;
}

/* As many rows at once as there is scratch for; the reserve has room for one at least. */
static inline int32_t rows_at_once(const struct cuda_backend *c, int32_t cols)
{
    const size_t fit = cols > 0 ? c->sample.bytes / ((size_t)cols * 8) : CUDA_SAMPLE_ROWS;
    return fit < CUDA_SAMPLE_ROWS ? (int32_t)fit : CUDA_SAMPLE_ROWS;
}

static inline struct drawn_rows drawn_rows_of(const struct cuda_backend *c, struct cview logits,
                                              int32_t first, const struct sample_rows *rows,
                                              const struct sample_slots *slots)
{
    float *copies = (float *)c->sample.data;
    const struct drawn_rows a = {
        (const float *)logits.data,
        logits.cols,
        first,
        0,
        *rows,
        *slots,
        copies,
        (int32_t *)(copies + (int64_t)rows_at_once(c, logits.cols) * logits.cols)};
    return a;
}

#endif
