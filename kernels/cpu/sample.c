/* DESIGN: kernels/numerics.h says what is drawn; this file says how it is found without sorting V
 * logits. Both top-k and top-p keep a prefix of the order (z descending, id ascending) that is the
 * shortest to reach some mass (k with unit masses), so one radix selection over the bits of z finds
 * both: three histograms of masses, 11 + 11 + 10 bits. The Gumbel pass needs a logarithm only where
 * an upper bound of the noise, from the leading zeros of its random bits, could beat the best so
 * far; the bound is rigorous, so the winner is the same as without it.
 * One row is one work item; its scratch belongs to the thread. */
#include "kernels/cpu/cpu.h"
#include "kernels/numerics.h"

#include <float.h>

#define DIGITS 3
#define BINS 2048
#define LN2_UP 0.69315 /* above ln 2 by more than any rounding here */

struct job {
    const struct cpu_backend *c;
    int32_t *ids;
    const float *logits;
    int32_t vocab;
    const struct sample_rows *rows;
    const struct sample_slots *slots;
};

/* A row being sampled. `list` holds ids in ascending order; NULL stands for all of them. */
struct draw {
    const struct cpu_isa *isa;
    const float *z;
    float *mass; /* exp(z - max) by id, of the whole row */
    int32_t *list;
    int32_t count;
    bool unit; /* every mass counts as one */
};

enum status sample_reserve(struct cpu_backend *c, int32_t vocab, struct err *err)
{
    const size_t n = ((size_t)vocab + 15) / 16 * 16;
    return cpu_grow(c, 0, 2 * n, n, err);
}

/* Orders as the float does; z has no NaN and no -0. */
static uint32_t sort_key(float z)
{
    uint32_t u;
    memcpy(&u, &z, sizeof u);
    return (u >> 31) != 0 ? ~u : u | 0x80000000u;
}

static uint64_t mass_of(const struct draw *d, int32_t id)
{
    return d->unit ? 1 : numerics_mass(d->mass[id]);
}

/* The digit where the mass from the top first reaches *need; *need loses what lies above it. */
static uint32_t select_digit(const struct draw *d, uint32_t key, uint32_t mask, int shift,
                             uint32_t bins, uint64_t *need)
{
    uint64_t histogram[BINS] = {0};
    for (int32_t i = 0; i < d->count; i++) {
        uint32_t k = sort_key(d->z[d->list[i]]);
        if ((k & mask) == key)
            histogram[(k >> shift) & (bins - 1)] += mass_of(d, d->list[i]);
    }
    uint32_t digit = bins - 1;
    while (digit > 0 && histogram[digit] < *need)
        *need -= histogram[digit--];
    return digit;
}

/* Shortens the list to the shortest prefix of the order whose mass is at least need >= 1; the list
 * has that much. */
static void keep_prefix(struct draw *d, uint64_t need)
{
    static const int shifts[DIGITS] = {21, 10, 0};
    uint32_t key = 0, mask = 0;
    for (int i = 0; i < DIGITS; i++) {
        const uint32_t bins = i < 2 ? BINS : BINS / 2;
        key |= select_digit(d, key, mask, shifts[i], bins, &need) << shifts[i];
        mask |= (bins - 1) << shifts[i];
    }
    int32_t kept = 0;
    for (int32_t i = 0; i < d->count; i++) {
        const int32_t id = d->list[i];
        const uint32_t k = sort_key(d->z[id]);
        if (k < key || (k == key && need == 0))
            continue;
        if (k == key) { /* equal z: ids ascending until the mass is reached */
            const uint64_t m = mass_of(d, id);
            need = need > m ? need - m : 0;
        }
        d->list[kept++] = id;
    }
    d->count = kept;
}

static void list_all(struct draw *d, int32_t *list, int32_t vocab)
{
    for (int32_t i = 0; i < vocab; i++)
        list[i] = i;
    d->list = list;
    d->count = vocab;
}

/* top-k, min-p, top-p. */
static void filter(struct draw *d, int32_t *list, int32_t vocab, float max,
                   const struct sample_params *p)
{
    const bool top_k = p->top_k > 0 && p->top_k < vocab, top_p = p->top_p<1, min_p = p->min_p> 0;
    d->count = vocab;
    if (!top_k && !top_p && !min_p)
        return;
    list_all(d, list, vocab);
    if (top_k) {
        d->unit = true;
        keep_prefix(d, (uint64_t)p->top_k);
        d->unit = false;
    }
    if (!top_p && !min_p)
        return;
    d->isa->exp(d->mass, d->z, max, vocab);
    if (min_p) {
        const double least = (double)p->min_p * NUMERICS_MASS_ONE;
        int32_t kept = 0;
        for (int32_t i = 0; i < d->count; i++)
            if ((double)mass_of(d, d->list[i]) >= least)
                d->list[kept++] = d->list[i];
        d->count = kept;
    }
    if (top_p) {
        uint64_t total = 0;
        for (int32_t i = 0; i < d->count; i++)
            total += mass_of(d, d->list[i]);
        keep_prefix(d, numerics_nucleus(p->top_p, total));
    }
}

/* An upper bound of numerics_gumbel(bits): with v = 1 - u, -log(-log(u)) <= -log(v), and v is at
 * least 2^-(n + 1) when the complement of the bits has n leading zeros. */
static double gumbel_bound(uint64_t bits)
{
    return LN2_UP * (__builtin_clzll(~bits | 1) + 1);
}

static int32_t gumbel_max(const struct draw *d, uint64_t key)
{
    double best = -DBL_MAX;
    int32_t best_id = -1;
    for (int32_t i = 0; i < d->count; i++) {
        const int32_t id = d->list == NULL ? i : d->list[i];
        const uint64_t bits = numerics_bits(key, id);
        const double z = (double)d->z[id];
        if (z + gumbel_bound(bits) < best)
            continue;
        const double value = z + numerics_gumbel(bits);
        if (value > best) {
            best = value;
            best_id = id;
        }
    }
    return best_id;
}

/* The row as the rules leave it: the logits themselves, or a copy in `own` that they changed. */
static const float *ruled(const struct job *j, const float *logits, int32_t slot, int32_t position,
                          float *own, int32_t *count)
{
    const struct sample_rules *rules = &j->slots->rules[slot];
    const int32_t *history = j->slots->history + (size_t)slot * (size_t)j->slots->history_cols;
    if (!rules_change(rules, position))
        return logits;
    memcpy(own, logits, (size_t)j->vocab * sizeof *own);
    rules_apply(own, rules, history, position, count);
    return own;
}

static bool is_drawable(const struct cpu_isa *isa, const float *x, int32_t n, float *max)
{
    bool bad;
    *max = isa->maximum(x, n, &bad);
    return !bad && *max >= -FLT_MAX;
}

static int32_t sample_row(const struct job *j, int32_t worker, int32_t slot, int64_t r)
{
    const struct cpu_isa *isa = j->c->isa;
    const struct sample_params *p = &j->slots->params[slot];
    const int32_t vocab = j->vocab, position = j->rows->position[r];
    float *z = j->c->partial + (size_t)worker * j->c->partial_floats;
    float *mass = z + j->c->partial_floats / 2;
    int32_t *list = j->c->list + (size_t)worker * j->c->list_ids;
    const float *x = j->logits + (size_t)r * (size_t)vocab;
    float max, z_max;
    if (!is_drawable(isa, x, vocab, &max))
        return -1;
    const float *raw = x;
    x = ruled(j, x, slot, position, mass, list);
    if (x != raw && !is_drawable(isa, x, vocab, &max))
        return -1;
    if (p->temperature == 0)
        return isa->find(x, vocab, max);
    isa->scale(z, x, p->temperature, vocab);
    if (!is_drawable(isa, z, vocab, &z_max))
        return isa->find(x, vocab, max);
    struct draw d = {.isa = isa, .z = z, .mass = mass};
    filter(&d, list, vocab, z_max, p);
    return gumbel_max(&d, numerics_key(p->seed, p->choice, position));
}

static void sample_rows(void *arg, int32_t worker, int64_t begin, int64_t end)
{
    const struct job *j = arg;
    const struct sample_slots *s = j->slots;
    for (int64_t r = begin; r < end; r++) {
        const int32_t slot = j->rows->slot[r];
        j->ids[r] = slot < 0 ? -1 : j->rows->target[r];
        if (slot < 0 || j->rows->target[r] >= 0)
            continue;
        j->ids[r] = sample_row(j, worker, slot, r);
        s->history[(size_t)slot * (size_t)s->history_cols + (size_t)j->rows->position[r]] =
            j->ids[r] < 0 ? 0 : j->ids[r];
    }
}

void sample_run(struct backend *b, int32_t *ids, struct cview logits,
                const struct sample_rows *rows, const struct sample_slots *slots)
{
    struct cpu_backend *c = cpu_of(b);
    struct err err;
    CHECK(sample_reserve(c, logits.cols, &err) == OK);
    struct job j = {c, ids, logits.data, logits.cols, rows, slots};
    pool_run(c->pool, logits.rows, 1, sample_rows, &j);
}
