/* DESIGN: numerics.h, step by step, over a sorted copy of the row; logprobs from their formula, in
 * doubles. */
#include "kernels/numerics.h"
#include "kernels/ref/ref.h"

#include <float.h>
#include <stdlib.h>

struct entry {
    float z;
    int32_t id;
    uint64_t mass;
};

static int by_order(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    if (x->z != y->z)
        return x->z > y->z ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* The prefix of n sorted entries that top-k, min-p and top-p keep. */
static int32_t prefix(const struct entry *e, int32_t n, const struct sample_params *p)
{
    if (p->top_k > 0 && p->top_k < n)
        n = p->top_k;
    while (p->min_p > 0 && (double)e[n - 1].mass < (double)p->min_p * NUMERICS_MASS_ONE)
        n--;
    if (!(p->top_p < 1))
        return n;
    uint64_t total = 0, sum = 0;
    for (int32_t i = 0; i < n; i++)
        total += e[i].mass;
    const uint64_t need = numerics_nucleus(p->top_p, total);
    for (int32_t i = 0; i < n; i++) {
        sum += e[i].mass;
        if (sum >= need)
            return i + 1;
    }
    return n;
}

static int32_t draw(const struct entry *e, int32_t n, uint64_t key)
{
    double best = -DBL_MAX;
    int32_t id = -1;
    for (int32_t i = 0; i < n; i++) {
        double value = (double)e[i].z + numerics_gumbel(numerics_bits(key, e[i].id));
        if (value > best || (value == best && e[i].id < id)) {
            best = value;
            id = e[i].id;
        }
    }
    return id;
}

static int32_t argmax(const float *x, int32_t n)
{
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        if (x[i] > x[best])
            best = i;
    return best;
}

/* No NaN, no +inf, not only -inf. */
static bool is_drawable(const float *logits, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        if (isnan(logits[i]) || logits[i] > FLT_MAX)
            return false;
    return logits[argmax(logits, n)] >= -FLT_MAX;
}

/* Where `word` of n ids ends in v[0, count), its last id not counted. */
static bool ends_with(const int32_t *v, int32_t count, const int32_t *word, int32_t n)
{
    for (int32_t i = 1; i < n; i++)
        if (i > count || v[count - i] != word[n - 1 - i])
            return false;
    return true;
}

static void apply_rules(float *x, int32_t n, const struct sample_rules *r, const int32_t *history,
                        int32_t position)
{
    const int32_t produced = position - r->prompt;
    for (int32_t i = 0; i < r->biases; i++)
        x[r->bias[i].token] += r->bias[i].value;
    for (int32_t i = 0; i < r->bans && produced < r->min_tokens; i++)
        x[r->ban[i]] = -INFINITY;
    for (int32_t i = 0; i < r->bads; i++) {
        const int32_t begin = i > 0 ? r->bad_end[i - 1] : 0, end = r->bad_end[i];
        if (ends_with(history + r->prompt, produced, r->bad + begin, end - begin))
            x[r->bad[end - 1]] = -INFINITY;
    }
    int32_t *seen = calloc((size_t)n, sizeof *seen), *count = calloc((size_t)n, sizeof *count);
    CHECK(seen != NULL && count != NULL);
    for (int32_t i = 0; i < position; i++) {
        seen[history[i]] = 1;
        count[history[i]] += i >= r->prompt;
    }
    for (int32_t i = 0; i < n; i++)
        if (seen[i])
            x[i] = numerics_penalise(x[i], count[i], r->repetition, r->frequency, r->presence);
    free(seen);
    free(count);
}

/* What may be drawn in row r, by its mask. */
static bool allows(const struct sample_rows *rows, const struct sample_slots *s, int32_t r,
                   int32_t id)
{
    if (rows->mask == NULL || rows->mask[r] < 0)
        return true;
    const uint32_t *mask = s->masks + (size_t)rows->mask[r] * (size_t)s->mask_words;
    return (mask[id / 32] & 1u << (id % 32)) != 0;
}

static void apply_mask(float *x, int32_t n, const struct sample_rows *rows,
                       const struct sample_slots *s, int32_t r)
{
    for (int32_t i = 0; i < n; i++)
        if (!allows(rows, s, r, i))
            x[i] = -INFINITY;
}

static int32_t sample_row(const float *logits, int32_t n, const struct sample_params *p,
                          int32_t position)
{
    if (!is_drawable(logits, n))
        return -1;
    const int32_t greedy = argmax(logits, n);
    if (p->temperature == 0)
        return greedy;
    struct entry *e = malloc((size_t)n * sizeof *e);
    CHECK(e != NULL);
    for (int32_t i = 0; i < n; i++)
        e[i] = (struct entry){logits[i] / p->temperature + 0.0f, i, 0};
    qsort(e, (size_t)n, sizeof *e, by_order);
    int32_t id = greedy;
    if (fabsf(e[0].z) <= FLT_MAX) {
        for (int32_t i = n - 1; i >= 0; i--)
            e[i].mass = numerics_mass(numerics_exp(e[i].z - e[0].z));
        id = draw(e, prefix(e, n, p), numerics_key(p->seed, p->choice, position));
    }
    free(e);
    return id;
}

/* The token of row r from a copy of it that the rules have changed. */
static int32_t ruled_row(const float *logits, int32_t n, const struct sample_rows *rows,
                         const struct sample_slots *s, int32_t r)
{
    const int32_t slot = rows->slot[r], position = rows->position[r];
    const int32_t *history = s->history + (size_t)slot * (size_t)s->history_cols;
    if (!is_drawable(logits, n))
        return -1;
    float *x = malloc((size_t)n * sizeof *x);
    CHECK(x != NULL);
    memcpy(x, logits, (size_t)n * sizeof *x);
    apply_rules(x, n, &s->rules[slot], history, position);
    apply_mask(x, n, rows, s, r);
    const int32_t id = sample_row(x, n, &s->params[slot], position);
    free(x);
    return id;
}

void ref_sample(struct backend *b, int32_t *ids, struct cview logits,
                const struct sample_rows *rows, const struct sample_slots *s)
{
    (void)b;
    for (int32_t r = 0; r < logits.rows; r++) {
        const float *row = (const float *)logits.data + (size_t)r * (size_t)logits.cols;
        const int32_t slot = rows->slot[r], position = rows->position[r];
        ids[r] = slot < 0 ? -1 : rows->target[r];
        if (slot < 0 || ids[r] >= 0)
            continue;
        ids[r] = ruled_row(row, logits.cols, rows, s, r);
        if (rows->target[r] != SAMPLE_CHECK)
            s->history[(size_t)slot * (size_t)s->history_cols + (size_t)position] =
                ids[r] < 0 ? 0 : ids[r];
    }
}

/* ---- distributed sampling -------------------------------------------------------------------- */

/* Columns [first, first + cols) of a row as rules and mask leave them, at their ids. */
static float *ruled_part(struct cview logits, int32_t first, int32_t vocab, int32_t r,
                         const struct sample_rows *rows, const struct sample_slots *s)
{
    const int32_t slot = rows->slot[r];
    float *x = calloc((size_t)vocab, sizeof *x);
    CHECK(x != NULL);
    memcpy(x + first, (const float *)logits.data + (size_t)r * (size_t)logits.cols,
           (size_t)logits.cols * sizeof *x);
    apply_rules(x, vocab, &s->rules[slot], s->history + (size_t)slot * (size_t)s->history_cols,
                rows->position[r]);
    apply_mask(x, vocab, rows, s, r);
    return x;
}

static bool is_drawn(const struct sample_rows *rows, int32_t r)
{
    return rows->slot[r] >= 0 && rows->target[r] < 0;
}

static int32_t places(const struct sample_election *e, int32_t r)
{
    return e->begin[r + 1] - e->begin[r];
}

static float largest(const float *x, int32_t n, uint32_t bad, uint32_t *flags)
{
    float max = -INFINITY;
    for (int32_t i = 0; i < n; i++) {
        max = x[i] > max ? x[i] : max;
        *flags |= isnan(x[i]) || x[i] > FLT_MAX ? bad : 0;
    }
    return max;
}

/* The part's entries, sorted; masses relative to z_max, none where nothing can be drawn. The caller
 * frees it. */
static struct entry *entries(const float *x, int32_t first, int32_t n, float temperature,
                             float z_max)
{
    struct entry *e = malloc(((size_t)n + 1) * sizeof *e);
    const bool any = numerics_is_finite(z_max);
    CHECK(e != NULL);
    for (int32_t i = 0; i < n; i++) {
        const float z = x[i] / temperature + 0.0f;
        const uint64_t mass = any ? numerics_mass(numerics_exp(z - z_max)) : 0;
        e[i] = (struct entry){z, first + i, mass};
    }
    qsort(e, (size_t)n, sizeof *e, by_order);
    return e;
}

static void survey_row(struct sample_survey *s, const float *raw, const float *x, int32_t first,
                       int32_t n, const struct sample_params *p, int32_t position,
                       int32_t row_places)
{
    s->raw_max = largest(raw, n, SURVEY_BAD, &s->flags);
    s->max = largest(x, n, SURVEY_BAD, &s->flags);
    s->flags |= n > row_places ? SURVEY_MORE : 0;
    if ((s->flags & SURVEY_BAD) == 0 && s->max >= -FLT_MAX)
        s->argmax = first + argmax(x, n);
    if (p->temperature <= 0)
        return;
    for (int32_t i = 0; i < n; i++) {
        const float z = x[i] / p->temperature + 0.0f;
        s->z_max = z > s->z_max ? z : s->z_max;
        s->flags |= isnan(z) || z > FLT_MAX ? SURVEY_BAD_Z : 0;
    }
    if (row_places > 0 || (s->flags & (SURVEY_BAD | SURVEY_BAD_Z)) != 0)
        return;
    struct entry *e = entries(x, first, n, p->temperature, s->z_max);
    const uint64_t key = numerics_key(p->seed, p->choice, position);
    s->id = draw(e, n, key);
    for (int32_t i = 0; i < n; i++)
        if (e[i].id == s->id)
            s->value = (double)e[i].z + numerics_gumbel(numerics_bits(key, s->id));
    free(e);
}

void ref_survey(struct backend *b, struct sample_survey *out, struct cview logits, int32_t first,
                const struct sample_election *e, const struct sample_rows *rows,
                const struct sample_slots *s)
{
    (void)b;
    for (int32_t r = 0; r < e->rows; r++) {
        out[r] = (struct sample_survey){-INFINITY,    -INFINITY,         -INFINITY,
                                        .argmax = -1, .value = -DBL_MAX, .id = -1};
        if (!is_drawn(rows, r))
            continue;
        float *x = ruled_part(logits, first, e->vocab, r, rows, s);
        survey_row(&out[r], (const float *)logits.data + (size_t)r * (size_t)logits.cols, x + first,
                   first, logits.cols, &s->params[rows->slot[r]], rows->position[r], places(e, r));
        free(x);
    }
}

/* What all shards say: the row's token when no nucleus is needed, -1 when it is refused, or
 * UNDECIDED with the largest z. */
#define UNDECIDED (-2)
static int32_t decide(const struct sample_election *e, int32_t r, const struct sample_params *p,
                      float *z_max)
{
    float raw_max = -INFINITY, max = -INFINITY;
    int32_t greedy = -1, id = -1;
    double value = -DBL_MAX;
    uint32_t flags = 0;
    *z_max = -INFINITY;
    for (int32_t i = 0; i < e->shards; i++) {
        const struct sample_survey *s = &e->surveys[(ptrdiff_t)i * e->rows + r];
        flags |= s->flags;
        raw_max = fmaxf(raw_max, s->raw_max);
        *z_max = fmaxf(*z_max, s->z_max);
        if (s->max >= max)
            greedy = s->max > max || s->argmax < greedy ? s->argmax : greedy;
        if (s->value >= value)
            id = s->value > value || s->id < id ? s->id : id;
        max = fmaxf(max, s->max);
        value = fmax(value, s->value);
    }
    if ((flags & SURVEY_BAD) != 0 || raw_max < -FLT_MAX || max < -FLT_MAX)
        return -1;
    if (p->temperature <= 0 || (flags & SURVEY_BAD_Z) != 0 || *z_max < -FLT_MAX)
        return greedy;
    return places(e, r) == 0 ? id : UNDECIDED;
}

void ref_nominate(struct backend *b, union sample_ballot *ballot, struct cview logits,
                  int32_t first, const struct sample_election *e, const struct sample_rows *rows,
                  const struct sample_slots *s)
{
    (void)b;
    const int32_t n = logits.cols;
    for (int32_t r = 0; r < e->rows; r++) {
        const struct sample_params *p = &s->params[is_drawn(rows, r) ? rows->slot[r] : 0];
        union sample_ballot *to = ballot + e->rows + e->begin[r];
        float z_max;
        ballot[r].mass = 0;
        for (int32_t i = 0; i < places(e, r); i++)
            to[i].candidate = (struct sample_candidate){0, -1};
        if (!is_drawn(rows, r) || decide(e, r, p, &z_max) != UNDECIDED)
            continue;
        float *x = ruled_part(logits, first, e->vocab, r, rows, s);
        struct entry *all = entries(x + first, first, n, p->temperature, z_max);
        for (int32_t i = 0; i < n && i < places(e, r); i++)
            to[i].candidate = (struct sample_candidate){all[i].z, all[i].id};
        const bool alone = !(p->top_k > 0 && p->top_k < e->vocab) && !(p->min_p > 0);
        for (int32_t i = 0; i < n && alone && p->top_p < 1; i++)
            ballot[r].mass += all[i].mass;
        free(all);
        free(x);
    }
}

/* Has some shard more columns than it could nominate? */
static bool is_cut(const struct sample_election *e, int32_t r)
{
    uint32_t flags = 0;
    for (int32_t i = 0; i < e->shards; i++)
        flags |= e->surveys[(ptrdiff_t)i * e->rows + r].flags;
    return (flags & SURVEY_MORE) != 0;
}

/* All candidates of a row, sorted; *count of them, of which *certain are the first of the row. */
static struct entry *merged(const struct sample_election *e, int32_t r, float z_max, int32_t *count,
                            int32_t *certain)
{
    const int32_t n = places(e, r), words = e->rows + e->begin[e->rows];
    struct entry *all = malloc(((size_t)n * (size_t)e->shards + 1) * sizeof *all), last = {0};
    bool cut = false;
    CHECK(all != NULL);
    *count = 0;
    for (int32_t i = 0; i < e->shards; i++) {
        const union sample_ballot *list = e->ballots + (ptrdiff_t)i * words + e->rows + e->begin[r];
        struct entry c = {0};
        for (int32_t k = 0; k < n && list[k].candidate.id >= 0; k++) {
            const float z = list[k].candidate.z;
            c = (struct entry){z, list[k].candidate.id, numerics_mass(numerics_exp(z - z_max))};
            all[(*count)++] = c;
        }
        if ((e->surveys[(ptrdiff_t)i * e->rows + r].flags & SURVEY_MORE) != 0) {
            last = !cut || by_order(&c, &last) < 0 ? c : last;
            cut = true;
        }
    }
    qsort(all, (size_t)*count, sizeof *all, by_order);
    *certain = 0;
    while (*certain < *count && (!cut || by_order(&all[*certain], &last) <= 0))
        ++*certain;
    return all;
}

/* How many of `certain` sorted entries are kept; -1: cannot be told. whole: mass of the row. */
static int32_t kept(const struct entry *all, int32_t certain, bool complete, int32_t vocab,
                    const struct sample_params *p, uint64_t whole)
{
    const bool top_k = p->top_k > 0 && p->top_k < vocab;
    if (top_k && p->top_k <= certain) {
        certain = p->top_k;
        complete = true;
    }
    if (!top_k && !(p->min_p > 0)) { /* top-p of the row */
        uint64_t sum = 0;
        for (int32_t i = 0; i < certain; i++)
            if ((sum += all[i].mass) >= numerics_nucleus(p->top_p, whole))
                return i + 1;
        return complete ? certain : -1;
    }
    const double least = (double)p->min_p * NUMERICS_MASS_ONE;
    if (!complete && !((double)all[certain - 1].mass < least * (1 - 0x1p-19)))
        return -1;
    struct sample_params rest = *p;
    rest.top_k = 0;
    return prefix(all, certain, &rest);
}

void ref_elect(struct backend *b, int32_t *ids, const struct sample_election *e,
               const struct sample_rows *rows, const struct sample_slots *s)
{
    (void)b;
    for (int32_t r = 0; r < e->rows; r++) {
        const int32_t slot = rows->slot[r], position = rows->position[r];
        int32_t count, certain;
        float z_max;
        ids[r] = slot < 0 ? -1 : rows->target[r];
        if (!is_drawn(rows, r))
            continue;
        const struct sample_params *p = &s->params[slot];
        ids[r] = decide(e, r, p, &z_max);
        if (ids[r] == UNDECIDED) {
            uint64_t whole = 0;
            struct entry *all = merged(e, r, z_max, &count, &certain);
            for (int32_t i = 0; i < e->shards; i++)
                whole += e->ballots[(ptrdiff_t)i * (e->rows + e->begin[e->rows]) + r].mass;
            const int32_t n =
                kept(all, certain, certain == count && !is_cut(e, r), e->vocab, p, whole);
            ids[r] = n < 0 ? -1 : draw(all, n, numerics_key(p->seed, p->choice, position));
            free(all);
        }
        if (ids[r] < 0)
            ids[r] = rows->target[r];
        else if (rows->target[r] != SAMPLE_CHECK)
            s->history[(size_t)slot * (size_t)s->history_cols + (size_t)position] = ids[r];
    }
}

/* ---- logprobs -------------------------------------------------------------------------------- */

static void logprobs_row(float *logprob, struct token_top *best, const float *x, int32_t n,
                         int32_t id, int32_t top)
{
    double sum = 0;
    *logprob = NAN;
    if (id < 0 || !is_drawable(x, n))
        return;
    const double max = (double)x[argmax(x, n)];
    for (int32_t i = 0; i < n; i++)
        sum += exp((double)x[i] - max);
    *logprob = (float)((double)x[id] - max - log(sum));
    struct entry *e = malloc((size_t)n * sizeof *e);
    CHECK(e != NULL);
    for (int32_t i = 0; i < n; i++)
        e[i] = (struct entry){x[i], i, 0};
    qsort(e, (size_t)n, sizeof *e, by_order);
    for (int32_t i = 0; i < top; i++)
        best[i] = (struct token_top){e[i].id, (float)((double)e[i].z - max - log(sum))};
    free(e);
}

void ref_logprobs(struct backend *b, float *logprob, struct token_top *best, int32_t stride,
                  struct cview logits, const int32_t *ids, const int32_t *top)
{
    (void)b;
    for (int32_t r = 0; r < logits.rows; r++)
        if (top[r] >= 0)
            logprobs_row(&logprob[r], best + (ptrdiff_t)r * stride,
                         (const float *)logits.data + (size_t)r * (size_t)logits.cols, logits.cols,
                         ids[r], top[r]);
}
