/* DESIGN: distributed sampling (backend.h). Each shard lists its first ids in the order of z, so
 * merging the lists gives the order of the whole row, up to the moment when a list has run out that
 * was cut: what comes next is unknown from there on. If the kept set (numerics.h, steps 2 to 5)
 * ends before that moment, the token is decided. Its masses are those of the whole row, because the
 * largest z of all shards is known when they are taken. One row is one work item. */
#include "kernels/cpu/draw.h"
#include "kernels/election.h"

struct job {
    const struct cpu_backend *c;
    struct cview logits;
    int32_t first;
    const struct sample_election *e;
    const struct sample_rows *rows;
    const struct sample_slots *slots;
    /* one of these is written */
    struct sample_survey *surveys;
    union sample_ballot *ballot;
    int32_t *ids;
};

static bool is_drawn(const struct job *j, int64_t r)
{
    return j->rows->slot[r] >= 0 && j->rows->target[r] < 0;
}

/* ---- survey ---------------------------------------------------------------------------------- */

static void survey_row(struct sample_survey *s, const struct draw *d, int32_t row_places)
{
    s->raw_max = d->raw_max;
    s->max = d->max;
    s->z_max = d->z_max;
    s->flags = (d->bad ? SURVEY_BAD : 0) | (d->bad_z ? SURVEY_BAD_Z : 0) |
               (d->n > row_places ? SURVEY_MORE : 0);
    if (!d->bad && numerics_is_finite(d->max))
        s->argmax = draw_argmax(d);
    if (d->params->temperature > 0 && row_places == 0 && !d->bad && !d->bad_z) {
        const struct draw_winner w = draw_winner(d);
        s->value = w.value;
        s->id = w.id;
    }
}

static void survey_rows(void *arg, int32_t worker, int64_t begin, int64_t end)
{
    const struct job *j = arg;
    for (int64_t r = begin; r < end; r++) {
        struct draw d;
        j->surveys[r] = election_silence();
        if (!is_drawn(j, r))
            continue;
        draw_open(&d, j->c, worker, j->logits, j->first, r, j->rows, j->slots);
        survey_row(&j->surveys[r], &d, election_places(j->e, r));
    }
}

/* ---- nominate -------------------------------------------------------------------------------- */

/* Shell's sort: at most SAMPLE_PLACES_MAX, and nothing is allocated. */
static void sort(struct sample_candidate *list, int32_t n)
{
    static const int32_t gaps[] = {57, 23, 10, 4, 1};
    for (size_t g = 0; g < ARRAY_LEN(gaps); g++)
        for (int32_t i = gaps[g]; i < n; i++) {
            const struct sample_candidate c = list[i];
            int32_t at = i;
            for (; at >= gaps[g] && election_precedes(c, list[at - gaps[g]]); at -= gaps[g])
                list[at] = list[at - gaps[g]];
            list[at] = c;
        }
}

static void nominate_row(const struct job *j, int32_t worker, int64_t r,
                         struct sample_candidate *list, int32_t count)
{
    const struct sample_survey all = election_sum(j->e, r);
    struct draw d;
    if (election_is_refused(&all) || election_is_greedy(&all, &j->slots->params[j->rows->slot[r]]))
        return;
    draw_open(&d, j->c, worker, j->logits, j->first, r, j->rows, j->slots);
    if (election_is_whole(d.params, j->e->vocab)) {
        d.isa->exp(d.mass, d.z, all.z_max, d.n);
        for (int32_t i = 0; i < d.n; i++)
            j->ballot[r].mass += draw_mass(&d, i);
    }
    draw_list_all(&d);
    d.unit = true;
    if (d.n > count)
        draw_keep_prefix(&d, (uint64_t)count);
    for (int32_t i = 0; i < d.count; i++)
        list[i] = (struct sample_candidate){d.z[d.list[i]], d.first + d.list[i]};
    sort(list, d.count);
}

static void nominate_rows(void *arg, int32_t worker, int64_t begin, int64_t end)
{
    const struct job *j = arg;
    const struct sample_election *e = j->e;
    for (int64_t r = begin; r < end; r++) {
        struct sample_candidate list[SAMPLE_PLACES_MAX];
        const int32_t count = election_places(e, r);
        union sample_ballot *to = j->ballot + e->rows + e->begin[r];
        for (int32_t i = 0; i < count; i++)
            list[i] = (struct sample_candidate){0, -1};
        j->ballot[r].mass = 0;
        if (is_drawn(j, r) && count > 0)
            nominate_row(j, worker, r, list, count);
        for (int32_t i = 0; i < count; i++)
            to[i].candidate = list[i];
    }
}

/* ---- elect ----------------------------------------------------------------------------------- */

/* The lists of one row being merged. */
struct merge {
    const struct sample_election *e;
    int64_t r;
    int32_t at[BACKEND_PEERS_MAX];
};

enum next { NEXT_TAKEN, NEXT_NONE, NEXT_UNKNOWN };

static enum next next(struct merge *m, struct sample_candidate *out)
{
    const struct sample_election *e = m->e;
    const int32_t count = election_places(e, m->r);
    const int64_t words = election_words(e);
    int32_t best = -1;
    for (int32_t i = 0; i < e->shards; i++) {
        const union sample_ballot *list = e->ballots + i * words + e->rows + e->begin[m->r];
        if (m->at[i] == count && (e->surveys[i * (int64_t)e->rows + m->r].flags & SURVEY_MORE) != 0)
            return NEXT_UNKNOWN;
        if (m->at[i] == count || list[m->at[i]].candidate.id < 0)
            continue;
        if (best < 0 || election_precedes(list[m->at[i]].candidate, *out)) {
            *out = list[m->at[i]].candidate;
            best = i;
        }
    }
    if (best < 0)
        return NEXT_NONE;
    m->at[best]++;
    return NEXT_TAKEN;
}

static uint64_t whole_mass(const struct sample_election *e, int64_t r)
{
    const int64_t words = election_words(e);
    uint64_t sum = 0;
    for (int32_t i = 0; i < e->shards; i++)
        sum += e->ballots[i * words + r].mass;
    return sum;
}

/* The kept set in its order, in a thread's scratch. */
struct kept {
    float *z;
    int32_t *ids;
    int32_t count;
    uint64_t mass;
};

/* Takes the first entries of the order until top-k, min-p or `need` ends the row; false when it is
 * unknown what comes next. */
static bool collect(struct merge *m, const struct sample_params *p, float z_max, uint64_t need,
                    struct kept *k)
{
    const int32_t limit = election_has_top_k(p, m->e->vocab) ? p->top_k : m->e->vocab;
    const double least = (double)p->min_p * NUMERICS_MASS_ONE;
    struct sample_candidate c = {0, -1};
    for (int32_t seen = 0; seen < limit && k->mass < need; seen++) {
        const enum next found = next(m, &c);
        if (found != NEXT_TAKEN)
            return found == NEXT_NONE;
        const float e = numerics_exp(c.z - z_max);
        const uint64_t mass = numerics_mass(e);
        if (p->min_p > 0 && (double)mass < least) {
            if ((double)e * ELECTION_EXP_MARGIN * NUMERICS_MASS_ONE < least)
                return true;
            continue;
        }
        k->z[k->count] = c.z;
        k->ids[k->count++] = c.id;
        k->mass += mass;
    }
    return true;
}

/* The shortest prefix of the kept set that has the mass `need`. */
static void shorten(struct kept *k, float z_max, uint64_t need)
{
    uint64_t sum = 0;
    int32_t n = 0;
    while (n < k->count && sum < need)
        sum += numerics_mass(numerics_exp(k->z[n++] - z_max));
    k->count = n;
}

static int32_t elect_nucleus(const struct job *j, int32_t worker, int64_t r, float z_max)
{
    const struct sample_election *e = j->e;
    const struct sample_params *p = &j->slots->params[j->rows->slot[r]];
    struct merge m = {.e = e, .r = r};
    struct kept k = {.z = j->c->partial + (size_t)worker * j->c->partial_floats,
                     .ids = j->c->list + (size_t)worker * j->c->list_ids};
    const bool whole = election_is_whole(p, e->vocab);
    const uint64_t need = whole ? numerics_nucleus(p->top_p, whole_mass(e, r)) : UINT64_MAX;
    if (!collect(&m, p, z_max, need, &k))
        return -1;
    if (p->top_p < 1 && !whole)
        shorten(&k, z_max, numerics_nucleus(p->top_p, k.mass));
    struct draw_winner w = draw_nobody();
    const uint64_t key = numerics_key(p->seed, p->choice, j->rows->position[r]);
    for (int32_t i = 0; i < k.count; i++)
        draw_compete(&w, key, k.ids[i], k.z[i]);
    return w.id;
}

static int32_t elect_row(const struct job *j, int32_t worker, int64_t r)
{
    const struct sample_survey all = election_sum(j->e, r);
    if (election_is_refused(&all))
        return -1;
    if (election_is_greedy(&all, &j->slots->params[j->rows->slot[r]]))
        return all.argmax;
    return election_places(j->e, r) == 0 ? all.id : elect_nucleus(j, worker, r, all.z_max);
}

static void elect_rows(void *arg, int32_t worker, int64_t begin, int64_t end)
{
    const struct job *j = arg;
    const struct sample_slots *s = j->slots;
    for (int64_t r = begin; r < end; r++) {
        const int32_t slot = j->rows->slot[r];
        j->ids[r] = slot < 0 ? -1 : j->rows->target[r];
        if (!is_drawn(j, r))
            continue;
        const int32_t id = elect_row(j, worker, r);
        if (id < 0)
            continue; /* its target says how it is still to be drawn */
        j->ids[r] = id;
        if (j->rows->target[r] != SAMPLE_CHECK)
            s->history[(size_t)slot * (size_t)s->history_cols + (size_t)j->rows->position[r]] =
                j->ids[r];
    }
}

/* ---- ops ------------------------------------------------------------------------------------- */

void elect_survey(struct backend *b, struct sample_survey *out, struct cview logits, int32_t first,
                  const struct sample_election *e, const struct sample_rows *rows,
                  const struct sample_slots *slots)
{
    struct cpu_backend *c = cpu_of(b);
    struct job j = {c, logits, first, e, rows, slots, .surveys = out};
    pool_run(c->pool, e->rows, 1, survey_rows, &j);
}

void elect_nominate(struct backend *b, union sample_ballot *ballot, struct cview logits,
                    int32_t first, const struct sample_election *e, const struct sample_rows *rows,
                    const struct sample_slots *slots)
{
    struct cpu_backend *c = cpu_of(b);
    struct job j = {c, logits, first, e, rows, slots, .ballot = ballot};
    pool_run(c->pool, e->rows, 1, nominate_rows, &j);
}

void elect_run(struct backend *b, int32_t *ids, const struct sample_election *e,
               const struct sample_rows *rows, const struct sample_slots *slots)
{
    struct cpu_backend *c = cpu_of(b);
    struct job j = {.c = c, .e = e, .rows = rows, .slots = slots, .ids = ids};
    pool_run(c->pool, e->rows, 1, elect_rows, &j);
}
