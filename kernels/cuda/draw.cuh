/* DESIGN: kernels/numerics.h says what is drawn; one block finds it for one row, or for what other
 * blocks have left of it (sample.cu), without sorting. What top-k, min-p and top-p keep is a prefix
 * of the order (z descending, id ascending), so it is always "sort key above K, or equal to K with
 * a column up to C" and two numbers describe it. A prefix of a given mass is found by three
 * histograms over the bits of the keys, 11 + 11 + 10, and two over those of the columns, 11 + 10,
 * if only some of the last key are in it: never more, however many are equal. Masses are integers:
 * sums have no order, and neither threads nor atomics show in the result. Masses are computed anew
 * in every pass; that is cheaper than keeping them. Most of a row falls into few bins, and shared
 * memory adds 32 bits in one go but 64 in a loop that spins on such: so a bin is some words, each
 * of as many bits of the masses as its sum has room for. */
#ifndef TESSERA_KERNELS_CUDA_DRAW_CUH
#define TESSERA_KERNELS_CUDA_DRAW_CUH

#include "kernels/cuda/device.cuh"

#include "kernels/cuda/rules.cuh"

#define THREADS 512
#define BINS 2048
#define WORDS 4      /* of a bin */
#define ID_BITS 21   /* rows have at most 2^21 columns, */
#define WORD_BITS 11 /* so that the sum of a word has room */

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
    const float *x;      /* logits after the rules, of ids from `first` on */
    const int32_t *list; /* [n] the columns that matter, in any order; NULL: [0, n) */
    int32_t n, first;
    float temperature, max; /* of z */
    uint32_t key;           /* kept: above it, or equal with an id up to `last` */
    int32_t last;
    double least; /* and with at least this mass, from min-p on */
};

DEVICE int32_t entry_of(const struct draw *d, int32_t i)
{
    return d->list != NULL ? d->list[i] : i;
}

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

/* run(z, id) for what is kept, a few loads of a thread at a time. */
template <typename Run> DEVICE void for_kept(const struct draw *d, Run run)
{
    constexpr int AT_ONCE = 8;
    for (int32_t i = (int32_t)threadIdx.x; i < d->n; i += AT_ONCE * THREADS) {
        int32_t id[AT_ONCE];
        float x[AT_ONCE];
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++)
            id[j] = i + j * THREADS < d->n ? entry_of(d, i + j * THREADS) : -1;
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++)
            x[j] = id[j] >= 0 ? d->x[id[j]] : 0;
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            const float z = x[j] / d->temperature + 0.0f;
            if (id[j] >= 0 && is_kept(d, z, id[j]))
                run(z, id[j]);
        }
    }
}

typedef uint32_t histogram[WORDS][BINS];

static_assert(NUMERICS_MASS_ONE < (double)(1ull << WORDS * WORD_BITS), "a mass has its words");

/* What a thread has of a bin and not yet added. Where most of a row is in one bin, it is mostly the
 * same for the next column, and threads that add to one word wait for each other. */
struct held {
    uint32_t bin;
    uint64_t mass;
};

template <int bits, int words, int count>
DEVICE void add_held(uint32_t (&bins)[words][count], const struct held *h)
{
#pragma unroll
    for (int i = 0; i < words; i++) {
        const uint64_t rest = h->mass >> i * bits;
        const uint32_t word = (uint32_t)(i < words - 1 ? rest & ((1u << bits) - 1) : rest);
        if (word != 0)
            atomicAdd(&bins[i][h->bin], word);
    }
}

template <int bits, int words, int count>
DEVICE void add_to_bin(uint32_t (&bins)[words][count], struct held *h, uint32_t bin, uint64_t mass)
{
    if (bin != h->bin) {
        add_held<bits>(bins, h);
        *h = {bin, 0};
    }
    h->mass += mass;
}

DEVICE uint64_t mass_in_bin(const histogram &bins, uint32_t bin)
{
    uint64_t mass = 0;
#pragma unroll
    for (int i = 0; i < WORDS; i++)
        mass += (uint64_t)bins[i][bin] << i * WORD_BITS;
    return mass;
}

/* The sum of what threads before this one have; *total: of all. */
DEVICE uint64_t sum_before(uint64_t mine, uint64_t *total)
{
    __shared__ uint64_t of_warp[THREADS / WARP];
    const int32_t lane = (int32_t)threadIdx.x % WARP, warp = (int32_t)threadIdx.x / WARP;
    uint64_t sum = mine;
#pragma unroll
    for (int by = 1; by < WARP; by *= 2) {
        const uint64_t other = __shfl_up_sync(ALL_LANES, sum, by);
        sum += lane >= by ? other : 0;
    }
    if (lane == WARP - 1)
        of_warp[warp] = sum;
    __syncthreads();
    sum -= mine;
    *total = 0;
    for (int32_t w = 0; w < THREADS / WARP; w++) {
        sum += w < warp ? of_warp[w] : 0;
        *total += of_warp[w];
    }
    __syncthreads(); /* of_warp may be written again */
    return sum;
}

/* The place where the sum of all threads' values, in their order, first reaches *need, which loses
 * what comes before it; the last place if it is not reached. before, total: of sum_before. */
template <int EACH>
DEVICE int32_t reach(const uint64_t (&value)[EACH], uint64_t before, uint64_t total, uint64_t *need)
{
    __shared__ uint64_t left;
    __shared__ int32_t found;
    if (threadIdx.x == 0 && total < *need) {
        found = THREADS * EACH - 1;
        left = 0; /* nobody asks */
    }
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        if (before < *need && before + value[i] >= *need) {
            found = (int32_t)threadIdx.x * EACH + i;
            left = *need - before;
        }
        before += value[i];
    }
    __syncthreads();
    const int32_t at = found;
    *need = left;
    __syncthreads(); /* both may be written again */
    return at;
}

/* The bin where the mass from the top first reaches *need; *need loses what lies above it. */
DEVICE uint32_t select_bin(const histogram &bins, uint32_t count, uint64_t *need)
{
    constexpr uint32_t EACH = BINS / THREADS;
    uint64_t mass[EACH], mine = 0, total;
#pragma unroll
    for (uint32_t i = 0; i < EACH; i++) {
        const uint32_t from_top = threadIdx.x * EACH + i;
        mine += mass[i] = from_top < count ? mass_in_bin(bins, count - 1 - from_top) : 0;
    }
    const uint64_t before = sum_before(mine, &total);
    return count - 1 - (uint32_t)reach(mass, before, total, need);
}

/* Shortens what is kept to the shortest prefix of the order whose mass (unit: number) is at least
 * need >= 1; there is that much. Of equal z, the last passes look for the last id. */
DEVICE void keep_prefix(struct draw *d, bool unit, uint64_t need)
{
    __shared__ histogram bins;
    uint64_t place = 0, mask = 0;
    int32_t last = INT32_MAX;
    for (int pass = 0; pass < 5; pass++) {
        const int shift = pass == 0 ? 53 : pass == 1 ? 42 : pass == 2 ? 32 : pass == 3 ? 10 : 0;
        const uint32_t count = pass == 2 || pass == 4 ? BINS / 2 : BINS;
        __syncthreads(); /* all know what they asked of the bins */
        FOR_EACH(i, 0, WORDS * BINS)
            bins[i / BINS][i % BINS] = 0;
        __syncthreads();
        struct held held = {0, 0};
        for_kept(d, [&](float z, int32_t id) {
            const uint64_t at = place_of(z, id);
            if ((at & mask) == place)
                add_to_bin<WORD_BITS>(bins, &held, (uint32_t)(at >> shift) & (count - 1),
                                      unit ? 1 : mass_of(d, z));
        });
        add_held<WORD_BITS>(bins, &held);
        __syncthreads();
        const uint32_t bin = select_bin(bins, count, &need);
        place |= (uint64_t)bin << shift;
        mask |= (uint64_t)(count - 1) << shift;
        /* Mostly all of the same z are kept: what is missing at the end is less than one of them.
         */
        if (pass == 2 && mass_in_bin(bins, bin) - need < (unit ? 1 : mass_of(d, value_of(place)))) {
            last = (uint32_t)(place >> 32) == d->key ? d->last : INT32_MAX;
            break;
        }
        if (pass == 4)
            last = id_of(place | ~((1ull << ID_BITS) - 1));
    }
    d->key = (uint32_t)(place >> 32);
    d->last = last;
}

/* top-k, which there is, min-p, top-p. */
DEVICE void filter(struct draw *d, const struct sample_params *p)
{
    keep_prefix(d, true, (uint64_t)p->top_k);
    if (p->min_p > 0)
        d->least = (double)p->min_p * NUMERICS_MASS_ONE;
    if (!(p->top_p < 1))
        return;
    uint64_t total = 0;
    for_kept(d, [&](float z, int32_t) { total += mass_of(d, z); });
    keep_prefix(d, false, numerics_nucleus(p->top_p, reduce_block(total, plus())));
}

struct minimum {
    template <typename V> DEVICE V operator()(V a, V b) const
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

/* Less than a value, so that what is below it is below the value. */
DEVICE float floor_of(double value)
{
    return (float)(value - fabs(value) * 1e-6);
}

/* What is larger by its noise becomes the best; of equal ones the lowest id. Below the floor there
 * is no winner, and most are seen to be so without the logarithms of doubles: noise is
 * -log(-log(u)) <= -log(1 - u), and 1 - u >= high / 2^32; the rest is for roundings. */
DEVICE void take_noise(struct winner *best, float floor, float z, int32_t id, uint64_t bits)
{
    const uint32_t high = (uint32_t)(~bits >> 32);
    const float most = z + (22.19f - logf((float)high));
    if (high != 0 && most + fabsf(most) * 1e-6f < floor)
        return;
    const double value = (double)z + numerics_gumbel(bits);
    if (value > best->value || (value == best->value && id < best->id))
        *best = {value, id};
}

/* The largest z + noise of what is kept, and of what each thread has. */
DEVICE struct winner gumbel_max(const struct draw *d, uint64_t key, float floor, struct winner best)
{
    for_kept(d, [&](float z, int32_t at) {
        take_noise(&best, floor, z, d->first + at, numerics_bits(key, d->first + at));
    });
    return win(best.value, best.id);
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

DEVICE bool is_ruled(const struct drawn_rows *a, int32_t r)
{
    return mask_of(&a->rows, &a->slots, r) != NULL ||
           rules_change(&a->slots.rules[a->rows.slot[r]], a->rows.position[r]);
}

/* Part of row r, x, as rules and mask leave it. */
DEVICE void copy_ruled(const struct part *to, const struct drawn_rows *a, int32_t r, const float *x)
{
    const int32_t slot = a->rows.slot[r];
    const uint32_t *mask = mask_of(&a->rows, &a->slots, r);
    FOR_EACH(i, 0, to->n)
        to->x[i] = x[i];
    __syncthreads();
    rules_apply(to, &a->slots.rules[slot], a->slots.history + (int64_t)slot * a->slots.history_cols,
                a->rows.position[r]);
    if (mask != NULL)
        apply_mask(to, mask);
}

/* Row r as rules and mask leave it: the logits themselves, or a copy. */
DEVICE const float *ruled(const struct drawn_rows *a, int32_t r)
{
    const float *x = a->logits + (int64_t)r * a->cols;
    float *copy = a->copies + (int64_t)blockIdx.x * a->cols;
    const struct part part = {copy, a->first, a->cols, a->counts + (int64_t)blockIdx.x * a->cols};
    if (!is_ruled(a, r))
        return x;
    copy_ruled(&part, a, r, x);
    return copy;
}

/* As many rows at once as there is scratch for; the reserve has room for one at least. */
static inline int32_t rows_at_once(const struct cuda_backend *c, int32_t cols)
{
    const size_t fit =
        cols > 0 ? c->sample.bytes / CUDA_SAMPLE_BYTES((size_t)cols) : CUDA_SAMPLE_ROWS;
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
