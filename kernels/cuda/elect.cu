/* DESIGN: distributed sampling (backend.h), one block for a row. Each shard lists its first ids in
 * the order of z, so an entry's place in the order of all is the number of entries before it, found
 * by a binary search in each list. One thread then walks the order for as long as it is certain:
 * where the first list ends that was cut, it is unknown what comes next. The masses are those of
 * the whole row, because the largest z of all shards is known when they are taken. */
#include "kernels/cuda/draw.cuh"

extern "C" {
#include "kernels/election.h"
}

/* ---- survey ---- */

/* The largest of v(i) that is a number; *bad: there is a NaN or +inf. */
template <typename V> DEVICE float largest(int32_t n, bool *bad, V v)
{
    float max = -INFINITY;
    int any = 0;
    FOR_EACH(i, 0, n) {
        const float x = v(i);
        any |= !(x <= FLT_MAX);
        max = x > max ? x : max;
    }
    *bad = __syncthreads_or(any) != 0;
    return reduce_block(max, maximum());
}

DEVICE struct draw draw_of(const struct drawn_rows *a, int32_t r, const float *x, float z_max)
{
    const struct draw d = {
        x,     NULL, a->cols,   a->first, a->slots.params[a->rows.slot[r]].temperature,
        z_max, 0,    INT32_MAX, 0};
    return d;
}

DEVICE void survey_row(struct sample_survey *s, const struct drawn_rows *a, int32_t r,
                       int32_t row_places)
{
    const struct sample_params p = a->slots.params[a->rows.slot[r]];
    const float *raw = a->logits + (int64_t)r * a->cols, *x = ruled(a, r);
    bool bad, bad_too, bad_z = false;
    s->raw_max = largest(a->cols, &bad, [&](int32_t i) { return raw[i]; });
    s->max = largest(a->cols, &bad_too, [&](int32_t i) { return x[i]; });
    bad = bad || bad_too;
    const struct draw d = draw_of(a, r, x, 0);
    if (p.temperature > 0)
        s->z_max = largest(a->cols, &bad_z, [&](int32_t i) { return z_of(&d, i); });
    s->flags = (bad ? SURVEY_BAD : 0) | (bad_z ? SURVEY_BAD_Z : 0) |
               (a->cols > row_places ? SURVEY_MORE : 0);
    if (!bad && numerics_is_finite(s->max))
        s->argmax = a->first + id_of(best_of(x, a->cols));
    if (p.temperature > 0 && row_places == 0 && !bad && !bad_z) {
        const struct winner w = gumbel_max(&d, numerics_key(p.seed, p.choice, a->rows.position[r]),
                                           -INFINITY, {-DBL_MAX, -1});
        s->value = w.value;
        s->id = w.id;
    }
}

__global__ void __launch_bounds__(THREADS, 2)
    survey_kernel(struct sample_survey *out, struct drawn_rows a, struct sample_election e)
{
    const int32_t r = a.row + (int32_t)blockIdx.x;
    struct sample_survey s = election_silence();
    if (is_drawn(&a.rows, r))
        survey_row(&s, &a, r, election_places(&e, r));
    if (threadIdx.x == 0)
        out[r] = s;
}

/* ---- nominate ---- */

/* What d keeps, at most SAMPLE_PLACES_MAX entries, in its order. */
DEVICE void list_kept(const struct draw *d, union sample_ballot *to)
{
    __shared__ struct sample_candidate list[SAMPLE_PLACES_MAX];
    __shared__ int32_t count;
    if (threadIdx.x == 0)
        count = 0;
    __syncthreads();
    FOR_EACH(i, 0, d->n) {
        const float z = z_of(d, i);
        if (is_kept(d, z, i)) {
            const struct sample_candidate c = {z, d->first + i};
            list[atomicAdd(&count, 1)] = c;
        }
    }
    __syncthreads();
    FOR_EACH(i, 0, count) {
        int32_t at = 0;
        for (int32_t j = 0; j < count; j++)
            at += election_precedes(list[j], list[i]);
        to[at].candidate = list[i];
    }
    __syncthreads(); /* the list may be written again */
}

DEVICE uint64_t nominate_row(union sample_ballot *to, const struct drawn_rows *a, int32_t r,
                             const struct sample_election *e)
{
    const struct sample_params p = a->slots.params[a->rows.slot[r]];
    const struct sample_survey all = election_sum(e, r);
    uint64_t mass = 0;
    if (election_is_refused(&all) || election_is_greedy(&all, &p))
        return 0;
    struct draw d = draw_of(a, r, ruled(a, r), all.z_max);
    FOR_EACH(i, 0, election_is_whole(&p, e->vocab) ? d.n : 0)
        mass += mass_of(&d, z_of(&d, i));
    mass = reduce_block(mass, plus());
    if (d.n > election_places(e, r))
        keep_prefix(&d, true, (uint64_t)election_places(e, r));
    list_kept(&d, to);
    return mass;
}

__global__ void __launch_bounds__(THREADS)
    nominate_kernel(union sample_ballot *ballot, struct drawn_rows a, struct sample_election e)
{
    const int32_t r = a.row + (int32_t)blockIdx.x, count = election_places(&e, r);
    union sample_ballot *to = ballot + e.rows + e.begin[r];
    uint64_t mass = 0;
    FOR_EACH(i, 0, count) {
        const struct sample_candidate empty = {0, -1};
        to[i].candidate = empty;
    }
    __syncthreads();
    if (is_drawn(&a.rows, r) && count > 0)
        mass = nominate_row(to, &a, r, &e);
    if (threadIdx.x == 0)
        ballot[r].mass = mass;
}

/* ---- elect ---- */

/* The lists of one row. */
struct ballots {
    const struct sample_election *e;
    int32_t r, places;
    struct sample_candidate *order; /* scratch: all entries in their order */
    int32_t count, certain;         /* entries; of which this many are certain */
};

DEVICE const union sample_ballot *list_of(const struct ballots *b, int32_t shard)
{
    const struct sample_election *e = b->e;
    return e->ballots + shard * election_words(e) + e->rows + e->begin[b->r];
}

/* So many of a list come before c; an empty place comes after everything. */
DEVICE int32_t before(const union sample_ballot *list, int32_t n, struct sample_candidate c)
{
    int32_t low = 0, high = n;
    while (low < high) {
        const int32_t middle = (low + high) / 2;
        const struct sample_candidate m = list[middle].candidate;
        if (m.id >= 0 && election_precedes(m, c))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Fills the order; at c = the last entry of a list that was cut, certainty ends. */
DEVICE void merge(struct ballots *b)
{
    const struct sample_election *e = b->e;
    int32_t count = 0, certain = INT32_MAX;
    FOR_EACH(i, 0, b->places * e->shards) {
        const int32_t shard = i / b->places, place = i % b->places;
        const struct sample_candidate c = list_of(b, shard)[place].candidate;
        int32_t at = 0;
        if (c.id < 0)
            continue;
        for (int32_t s = 0; s < e->shards; s++)
            at += before(list_of(b, s), b->places, c);
        b->order[at] = c;
        count++;
        if (place + 1 == b->places &&
            (e->surveys[(int64_t)shard * e->rows + b->r].flags & SURVEY_MORE) != 0)
            certain = at + 1 < certain ? at + 1 : certain;
    }
    b->count = reduce_block(count, plus());
    b->certain = reduce_block(certain, minimum());
}

/* The entries [0, end) of the order that have at least the mass `least` are kept. */
struct kept {
    int32_t end; /* -1: it is unknown what comes next */
    float z_max;
    double least;
};

DEVICE bool is_light(const struct kept *k, float e)
{
    return k->least > 0 && (double)numerics_mass(e) < k->least;
}

/* By one thread. */
DEVICE struct kept collect(const struct ballots *b, const struct sample_params *p, float z_max,
                           uint64_t need)
{
    const int32_t vocab = b->e->vocab, limit = election_has_top_k(p, vocab) ? p->top_k : vocab;
    struct kept k = {0, z_max, p->min_p > 0 ? (double)p->min_p * NUMERICS_MASS_ONE : 0};
    uint64_t sum = 0;
    for (; k.end < limit && sum < need; k.end++) {
        if (k.end >= b->certain)
            k.end = -1;
        if (k.end < 0 || k.end >= b->count)
            return k;
        const float e = numerics_exp(b->order[k.end].z - z_max);
        if (is_light(&k, e) && (double)e * ELECTION_EXP_MARGIN * NUMERICS_MASS_ONE < k.least)
            return k;
        sum += is_light(&k, e) ? 0 : numerics_mass(e);
    }
    return k;
}

/* To the shortest prefix with a share of the mass. */
DEVICE void shorten(const struct ballots *b, struct kept *k, float top_p)
{
    uint64_t total = 0, need = 0, sum = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (int32_t i = 0; i < k->end; i++) {
            const float e = numerics_exp(b->order[i].z - k->z_max);
            const uint64_t mass = is_light(k, e) ? 0 : numerics_mass(e);
            if (pass == 0)
                total += mass;
            else if ((sum += mass) >= need)
                k->end = i + 1;
        }
        need = numerics_nucleus(top_p, total);
    }
}

DEVICE struct winner draw_kept(const struct ballots *b, const struct kept *k, uint64_t key)
{
    double best = -DBL_MAX;
    int32_t id = -1;
    FOR_EACH(i, 0, k->end) {
        const struct sample_candidate c = b->order[i];
        if (is_light(k, numerics_exp(c.z - k->z_max)))
            continue;
        const double value = (double)c.z + numerics_gumbel(numerics_bits(key, c.id));
        if (value > best || (value == best && c.id < id)) {
            best = value;
            id = c.id;
        }
    }
    return win(best, id);
}

DEVICE int32_t elect_nucleus(struct ballots *b, const struct sample_params *p, float z_max,
                             uint64_t key)
{
    __shared__ struct kept shared;
    const struct sample_election *e = b->e;
    const bool whole = election_is_whole(p, e->vocab);
    uint64_t need = UINT64_MAX, mass = 0;
    merge(b);
    for (int32_t i = 0; i < e->shards; i++)
        mass += e->ballots[i * election_words(e) + b->r].mass;
    if (whole)
        need = numerics_nucleus(p->top_p, mass);
    if (threadIdx.x == 0) {
        struct kept k = collect(b, p, z_max, need);
        if (p->top_p < 1 && !whole)
            shorten(b, &k, p->top_p);
        shared = k;
    }
    __syncthreads();
    return shared.end < 0 ? -1 : draw_kept(b, &shared, key).id;
}

/* Of rows and slots only what is needed: the kernel has no register to spare. */
struct elect_args {
    struct sample_election e;
    const int32_t *slot, *position, *target;
    const struct sample_params *params;
    int32_t *history;
    int32_t history_cols;
    int32_t row;                     /* of block 0 */
    struct sample_candidate *orders; /* [blocks, vocab] */
};

DEVICE int32_t elect_row(const struct elect_args &a, int32_t r)
{
    const struct sample_params p = a.params[a.slot[r]];
    const struct sample_survey all = election_sum(&a.e, r);
    struct ballots b = {
        &a.e, r, election_places(&a.e, r), a.orders + (int64_t)blockIdx.x * a.e.vocab, 0, 0};
    if (election_is_refused(&all))
        return -1;
    if (election_is_greedy(&all, &p))
        return all.argmax;
    if (b.places == 0)
        return all.id;
    return elect_nucleus(&b, &p, all.z_max, numerics_key(p.seed, p.choice, a.position[r]));
}

__global__ void __launch_bounds__(THREADS, 2) elect_kernel(int32_t *ids, struct elect_args a)
{
    const int32_t r = a.row + (int32_t)blockIdx.x;
    const int32_t slot = a.slot[r];
    const bool drawn = slot >= 0 && a.target[r] < 0;
    const int32_t id = drawn ? elect_row(a, r) : -1;
    if (threadIdx.x != 0)
        return;
    ids[r] = id >= 0 || slot < 0 ? id : a.target[r]; /* which may say how it is still to be drawn */
    if (drawn && id >= 0 && a.target[r] != SAMPLE_CHECK)
        a.history[(int64_t)slot * a.history_cols + a.position[r]] = id;
}

/* ---- ops ---- */

void elect_survey(struct backend *b, struct sample_survey *out, struct cview logits, int32_t first,
                  const struct sample_election *e, const struct sample_rows *rows,
                  const struct sample_slots *slots)
{
    struct cuda_backend *c = cuda_of(b);
    struct drawn_rows a = drawn_rows_of(c, logits, first, rows, slots);
    const int32_t step = rows_at_once(c, logits.cols);
    for (; a.row < e->rows; a.row += step) {
        const int32_t left = e->rows - a.row;
        LAUNCH(c, survey_kernel, (unsigned)(left < step ? left : step), THREADS, 0, out, a, *e);
    }
}

void elect_nominate(struct backend *b, union sample_ballot *ballot, struct cview logits,
                    int32_t first, const struct sample_election *e, const struct sample_rows *rows,
                    const struct sample_slots *slots)
{
    struct cuda_backend *c = cuda_of(b);
    struct drawn_rows a = drawn_rows_of(c, logits, first, rows, slots);
    const int32_t step = rows_at_once(c, logits.cols);
    for (; a.row < e->rows; a.row += step) {
        const int32_t left = e->rows - a.row;
        LAUNCH(c, nominate_kernel, (unsigned)(left < step ? left : step), THREADS, 0, ballot, a,
               *e);
    }
}

void elect_run(struct backend *b, int32_t *ids, const struct sample_election *e,
               const struct sample_rows *rows, const struct sample_slots *slots)
{
    struct cuda_backend *c = cuda_of(b);
    const int32_t step = rows_at_once(c, e->vocab);
    struct elect_args a = {*e,
                           rows->slot,
                           rows->position,
                           rows->target,
                           slots->params,
                           slots->history,
                           slots->history_cols,
                           0,
                           (struct sample_candidate *)c->sample.data};
    for (; a.row < e->rows; a.row += step) {
        const int32_t left = e->rows - a.row;
        LAUNCH(c, elect_kernel, (unsigned)(left < step ? left : step), THREADS, 0, ids, a);
    }
}
