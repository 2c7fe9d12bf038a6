/* DESIGN: what the rules of a slot do to its copy of a row, or of a rank's part of a row, by
 * kernels/numerics.h. Penalties walk the history and never the vocabulary: the first walk clears
 * the counters it will use, so that they need no clean state between rows. */
#include "kernels/cpu/cpu.h"
#include "kernels/numerics.h"

/* The part of a row that is here: ids [first, first + n). */
struct part {
    float *x;
    int32_t first, n;
};

/* Column of an id; false when it is on another rank. */
static bool find(const struct part *p, int32_t id, int32_t *column)
{
    *column = id - p->first;
    return *column >= 0 && *column < p->n;
}

static void ban(const struct part *p, int32_t id)
{
    int32_t at;
    if (find(p, id, &at))
        p->x[at] = -INFINITY;
}

static bool penalises(const struct sample_rules *r)
{
    return r->repetition != 1 || r->frequency != 0 || r->presence != 0;
}

static bool bans(const struct sample_rules *r, int32_t position)
{
    return r->bans > 0 && position - r->prompt < r->min_tokens;
}

bool rules_change(const struct sample_rules *r, int32_t position)
{
    return r->biases > 0 || r->bads > 0 || bans(r, position) || penalises(r);
}

/* Were all ids of the word but the last the latest of those produced? */
static bool is_begun(const int32_t *word, int32_t n, const int32_t *produced, int32_t count)
{
    return n - 1 <= count &&
           memcmp(word, produced + count - (n - 1), (size_t)(n - 1) * sizeof *word) == 0;
}

static void ban_words(const struct part *p, const struct sample_rules *r, const int32_t *history,
                      int32_t position)
{
    for (int32_t i = 0, begin = 0; i < r->bads; begin = r->bad_end[i++])
        if (is_begun(r->bad + begin, r->bad_end[i] - begin, history + r->prompt,
                     position - r->prompt))
            ban(p, r->bad[r->bad_end[i] - 1]);
}

static void penalise(const struct part *p, const struct sample_rules *r, const int32_t *history,
                     int32_t position, int32_t *count)
{
    /* with repetition off, what is only in the prompt does not change */
    const int32_t begin = r->repetition != 1 ? 0 : r->prompt;
    int32_t at;
    for (int32_t i = begin; i < position; i++)
        if (find(p, history[i], &at))
            count[at] = 0;
    for (int32_t i = r->prompt; i < position; i++)
        if (find(p, history[i], &at))
            count[at]++;
    for (int32_t i = begin; i < position; i++) {
        if (!find(p, history[i], &at) || count[at] < 0)
            continue;
        p->x[at] = numerics_penalise(p->x[at], count[at], r->repetition, r->frequency, r->presence);
        count[at] = -1; /* done */
    }
}

void rules_apply(float *x, int32_t first, int32_t n, const struct sample_rules *r,
                 const int32_t *history, int32_t position, int32_t *count)
{
    const struct part p = {x, first, n};
    int32_t at;
    for (int32_t i = 0; i < r->biases; i++)
        if (find(&p, r->bias[i].token, &at))
            x[at] += r->bias[i].value;
    for (int32_t i = 0; bans(r, position) && i < r->bans; i++)
        ban(&p, r->ban[i]);
    ban_words(&p, r, history, position);
    if (penalises(r))
        penalise(&p, r, history, position, count);
}

const uint32_t *rules_mask(const struct sample_rows *rows, const struct sample_slots *slots,
                           int64_t r)
{
    if (!rows->mask || rows->mask[r] < 0)
        return NULL;
    return slots->masks + (size_t)rows->mask[r] * (size_t)slots->mask_words;
}

void rules_apply_mask(float *x, int32_t first, int32_t n, const uint32_t *mask)
{
    for (int32_t i = 0; i < n;) {
        const int32_t id = first + i;
        const uint32_t bits = mask[id / 32];
        const int32_t end = i + 32 - id % 32 < n ? i + 32 - id % 32 : n;
        if (bits == UINT32_MAX)
            i = end;
        for (; i < end; i++)
            if ((bits >> ((first + i) % 32) & 1) == 0)
                x[i] = -INFINITY;
    }
}
