/* DESIGN: kernels/numerics.h, steps 1 to 6, over whole rows. One row is one work item. */
#include "kernels/cpu/draw.h"

struct job {
    const struct cpu_backend *c;
    int32_t *ids;
    struct cview logits;
    const struct sample_rows *rows;
    const struct sample_slots *slots;
};

enum status sample_reserve(struct cpu_backend *c, int32_t vocab, struct err *err)
{
    const size_t n = ((size_t)vocab + 15) / 16 * 16;
    return cpu_grow(c, 0, 2 * n, n, err);
}

/* top-k, min-p, top-p. */
static void filter(struct draw *d)
{
    const struct sample_params *p = d->params;
    const bool top_k = p->top_k > 0 && p->top_k < d->n, top_p = p->top_p<1, min_p = p->min_p> 0;
    if (!top_k && !top_p && !min_p)
        return;
    draw_list_all(d);
    if (top_k) {
        d->unit = true;
        draw_keep_prefix(d, (uint64_t)p->top_k);
        d->unit = false;
    }
    if (!top_p && !min_p)
        return;
    d->isa->exp(d->mass, d->z, d->z_max, d->n);
    if (min_p) {
        const double least = (double)p->min_p * NUMERICS_MASS_ONE;
        int32_t kept = 0;
        for (int32_t i = 0; i < d->count; i++)
            if ((double)draw_mass(d, d->list[i]) >= least)
                d->list[kept++] = d->list[i];
        d->count = kept;
    }
    if (top_p) {
        uint64_t total = 0;
        for (int32_t i = 0; i < d->count; i++)
            total += draw_mass(d, d->list[i]);
        draw_keep_prefix(d, numerics_nucleus(p->top_p, total));
    }
}

static int32_t sample_row(const struct job *j, int32_t worker, int64_t r)
{
    struct draw d;
    draw_open(&d, j->c, worker, j->logits, 0, r, j->rows, j->slots);
    if (d.bad || !numerics_is_finite(d.raw_max) || !numerics_is_finite(d.max))
        return -1;
    if (d.params->temperature == 0 || d.bad_z || !numerics_is_finite(d.z_max))
        return draw_argmax(&d);
    filter(&d);
    return draw_winner(&d).id;
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
        j->ids[r] = sample_row(j, worker, r);
        if (j->rows->target[r] != SAMPLE_CHECK)
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
    struct job j = {c, ids, logits, rows, slots};
    pool_run(c->pool, logits.rows, 1, sample_rows, &j);
}
