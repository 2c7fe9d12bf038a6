/* DESIGN: kernels/numerics.h says what is drawn; this file says how it is found without sorting V
 * logits. Both top-k and top-p keep a prefix of the order (z descending, id ascending) that is the
 * shortest to reach some mass (k with unit masses), so one radix selection over the bits of z finds
 * both: three histograms of masses, 11 + 11 + 10 bits. The Gumbel pass needs a logarithm only where
 * an upper bound of the noise, from the leading zeros of its random bits, could beat the best so
 * far; the bound is rigorous, so the winner is the same as without it. */
#include "kernels/cpu/draw.h"

#define DIGITS 3
#define BINS 2048
#define LN2_UP 0.69315 /* above ln 2 by more than any rounding here */

/* The row as rules and mask leave it: the logits themselves, or a copy in `own`. */
static const float *ruled(const struct draw *d, const float *logits, int64_t r,
                          const struct sample_rows *rows, const struct sample_slots *slots,
                          float *own)
{
    const int32_t slot = rows->slot[r], position = rows->position[r];
    const struct sample_rules *rules = &slots->rules[slot];
    const uint32_t *mask = rules_mask(rows, slots, r);
    if (!mask && !rules_change(rules, position))
        return logits;
    memcpy(own, logits, (size_t)d->n * sizeof *own);
    rules_apply(own, d->first, d->n, rules,
                slots->history + (size_t)slot * (size_t)slots->history_cols, position, d->list);
    if (mask)
        rules_apply_mask(own, d->first, d->n, mask);
    return own;
}

void draw_open(struct draw *d, const struct cpu_backend *c, int32_t worker, struct cview logits,
               int32_t first, int64_t r, const struct sample_rows *rows,
               const struct sample_slots *slots)
{
    const int32_t slot = rows->slot[r], position = rows->position[r];
    const struct sample_params *p = &slots->params[slot];
    const float *raw = (const float *)logits.data + (size_t)r * (size_t)logits.cols;
    float *scratch = c->partial + (size_t)worker * c->partial_floats;
    bool bad = false;
    *d = (struct draw){.isa = c->isa,
                       .params = p,
                       .key = numerics_key(p->seed, p->choice, position),
                       .first = first,
                       .n = logits.cols,
                       .z = scratch,
                       .mass = scratch + c->partial_floats / 2,
                       .list = c->list + (size_t)worker * c->list_ids};
    d->raw_max = d->max = d->isa->maximum(raw, d->n, &d->bad);
    d->x = ruled(d, raw, r, rows, slots, d->mass);
    if (d->x != raw)
        d->max = d->isa->maximum(d->x, d->n, &bad);
    d->bad |= bad;
    d->z_max = -INFINITY;
    if (p->temperature > 0) {
        d->isa->scale(d->z, d->x, p->temperature, d->n);
        d->z_max = d->isa->maximum(d->z, d->n, &d->bad_z);
    }
}

int32_t draw_argmax(const struct draw *d)
{
    return d->first + d->isa->find(d->x, d->n, d->max);
}

/* Orders as the float does; z has no NaN and no -0. */
static uint32_t sort_key(float z)
{
    uint32_t u;
    memcpy(&u, &z, sizeof u);
    return (u >> 31) != 0 ? ~u : u | 0x80000000u;
}

uint64_t draw_mass(const struct draw *d, int32_t column)
{
    return d->unit ? 1 : numerics_mass(d->mass[column]);
}

/* The digit where the mass from the top first reaches *need; *need loses what lies above it. */
static uint32_t select_digit(const struct draw *d, uint32_t key, uint32_t mask, int shift,
                             uint32_t bins, uint64_t *need)
{
    uint64_t histogram[BINS] = {0};
    for (int32_t i = 0; i < d->count; i++) {
        uint32_t k = sort_key(d->z[d->list[i]]);
        if ((k & mask) == key)
            histogram[(k >> shift) & (bins - 1)] += draw_mass(d, d->list[i]);
    }
    uint32_t digit = bins - 1;
    while (digit > 0 && histogram[digit] < *need)
        *need -= histogram[digit--];
    return digit;
}

void draw_keep_prefix(struct draw *d, uint64_t need)
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
        const int32_t column = d->list[i];
        const uint32_t k = sort_key(d->z[column]);
        if (k < key || (k == key && need == 0))
            continue;
        if (k == key) { /* equal z: ids ascending until the mass is reached */
            const uint64_t m = draw_mass(d, column);
            need = need > m ? need - m : 0;
        }
        d->list[kept++] = column;
    }
    d->count = kept;
}

void draw_list_all(struct draw *d)
{
    for (int32_t i = 0; i < d->n; i++)
        d->list[i] = i;
    d->count = d->n;
    d->listed = true;
}

/* An upper bound of numerics_gumbel(bits): with v = 1 - u, -log(-log(u)) <= -log(v), and v is at
 * least 2^-(n + 1) when the complement of the bits has n leading zeros. */
static double gumbel_bound(uint64_t bits)
{
    return LN2_UP * (__builtin_clzll(~bits | 1) + 1);
}

static inline void compete(struct draw_winner *w, uint64_t key, int32_t id, float z)
{
    const uint64_t bits = numerics_bits(key, id);
    if ((double)z + gumbel_bound(bits) < w->value)
        return;
    const double value = (double)z + numerics_gumbel(bits);
    if (value > w->value || (value == w->value && id < w->id))
        *w = (struct draw_winner){value, id};
}

void draw_compete(struct draw_winner *w, uint64_t key, int32_t id, float z)
{
    compete(w, key, id, z);
}

struct draw_winner draw_winner(const struct draw *d)
{
    struct draw_winner w = draw_nobody();
    const int32_t count = d->listed ? d->count : d->n;
    for (int32_t i = 0; i < count; i++) {
        const int32_t column = d->listed ? d->list[i] : i;
        compete(&w, d->key, d->first + column, d->z[column]);
    }
    return w;
}
