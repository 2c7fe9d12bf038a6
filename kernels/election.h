/* What the surveys of distributed sampling (backend.h) say about a row, as the CPU and the CUDA
 * kernels share it. kernels/ref has its own words for it, because it judges both. */
#ifndef TESSERA_KERNELS_ELECTION_H
#define TESSERA_KERNELS_ELECTION_H

#include "kernels/backend.h"
#include "kernels/numerics.h"

/* numerics.h: exp has an error below 1.1 ulp, so a z whose mass is smaller than the least by this
 * factor has only smaller ones behind it. */
#define ELECTION_EXP_MARGIN (1 + 0x1p-20)

/* The survey of a row, or of a part of one, that has nothing to say. */
NUMERICS_FN struct sample_survey election_silence(void)
{
    struct sample_survey s;
    s.raw_max = s.max = s.z_max = -INFINITY;
    s.argmax = s.id = -1;
    s.value = -DBL_MAX;
    s.flags = 0;
    return s;
}

/* All shards' surveys of row r as one. */
NUMERICS_FN struct sample_survey election_sum(const struct sample_election *e, int64_t r)
{
    struct sample_survey all = election_silence();
    for (int32_t i = 0; i < e->shards; i++) {
        const struct sample_survey *s = &e->surveys[(int64_t)i * e->rows + r];
        all.flags |= s->flags;
        all.raw_max = s->raw_max > all.raw_max ? s->raw_max : all.raw_max;
        all.z_max = s->z_max > all.z_max ? s->z_max : all.z_max;
        if (s->max > all.max || (s->max == all.max && s->argmax < all.argmax)) {
            all.max = s->max;
            all.argmax = s->argmax;
        }
        if (s->value > all.value || (s->value == all.value && s->id < all.id)) {
            all.value = s->value;
            all.id = s->id;
        }
    }
    return all;
}

/* Places of a row in each ballot. */
NUMERICS_FN int32_t election_places(const struct sample_election *e, int64_t r)
{
    return e->begin[r + 1] - e->begin[r];
}

/* 8-byte words of a shard's ballot. */
NUMERICS_FN int64_t election_words(const struct sample_election *e)
{
    return e->rows + (int64_t)e->begin[e->rows];
}

NUMERICS_FN bool election_is_refused(const struct sample_survey *all)
{
    return (all->flags & SURVEY_BAD) != 0 || !numerics_is_finite(all->raw_max) ||
           !numerics_is_finite(all->max);
}

NUMERICS_FN bool election_is_greedy(const struct sample_survey *all, const struct sample_params *p)
{
    return p->temperature == 0 || (all->flags & SURVEY_BAD_Z) != 0 ||
           !numerics_is_finite(all->z_max);
}

NUMERICS_FN bool election_has_top_k(const struct sample_params *p, int32_t vocab)
{
    return p->top_k > 0 && p->top_k < vocab;
}

/* Is top-p a share of the mass of the whole row, and not of what other filters have left? */
NUMERICS_FN bool election_is_whole(const struct sample_params *p, int32_t vocab)
{
    return p->top_p < 1 && !election_has_top_k(p, vocab) && !(p->min_p > 0);
}

/* Does a come before b in the order (z descending, then id ascending)? */
NUMERICS_FN bool election_precedes(struct sample_candidate a, struct sample_candidate b)
{
    return a.z > b.z || (a.z == b.z && a.id < b.id);
}

#endif
