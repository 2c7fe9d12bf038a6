/* One row of logits, or the part of it that one rank has, on its way to a token: what sample.c and
 * elect.c share. Lives on the stack of a work item; its scratch belongs to the thread. */
#ifndef TESSERA_KERNELS_CPU_DRAW_H
#define TESSERA_KERNELS_CPU_DRAW_H

#include "kernels/cpu/cpu.h"
#include "kernels/numerics.h"

struct draw {
    const struct cpu_isa *isa;
    const struct sample_params *params;
    uint64_t key;
    int32_t first, n; /* ids [first, first + n); columns count from 0 */
    const float *x;   /* logits as the rules leave them; gone once `mass` is filled */
    float *z;         /* over temperature; not when greedy */
    float *mass;      /* exp(z - max) by column, where somebody fills it */
    float raw_max, max, z_max;
    bool bad, bad_z; /* a NaN or +inf among the logits (before or after the rules), among z */
    int32_t *list;   /* scratch of n columns; filled: `count` of them, ascending */
    int32_t count;
    bool listed; /* false: list stands for all columns */
    bool unit;   /* every mass counts as one */
};

/* Row r of the logits, by the rules and the temperature of its slot. */
void draw_open(struct draw *d, const struct cpu_backend *c, int32_t worker, struct cview logits,
               int32_t first, int64_t r, const struct sample_rows *rows,
               const struct sample_slots *slots);
/* First id of the largest logit. */
int32_t draw_argmax(const struct draw *d);
void draw_list_all(struct draw *d);
uint64_t draw_mass(const struct draw *d, int32_t column);
/* Shortens the list to the shortest prefix of the order whose mass is at least need >= 1; the list
 * has that much. */
void draw_keep_prefix(struct draw *d, uint64_t need);

/* The largest z + noise so far, ties to the lowest id. */
struct draw_winner {
    double value;
    int32_t id; /* -1: none */
};
static inline struct draw_winner draw_nobody(void)
{
    return (struct draw_winner){-DBL_MAX, -1};
}
void draw_compete(struct draw_winner *w, uint64_t key, int32_t id, float z);
/* Among what is listed. */
struct draw_winner draw_winner(const struct draw *d);

#endif
