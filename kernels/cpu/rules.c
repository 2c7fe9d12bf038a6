/* DESIGN: what the rules of a slot do to its copy of a row, by kernels/numerics.h. Penalties walk
 * the history and never the vocabulary: the first walk clears the counters it will use, so that
 * they need no clean state between rows. */
#include "kernels/cpu/cpu.h"
#include "kernels/numerics.h"

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

static void ban_words(float *x, const struct sample_rules *r, const int32_t *history,
                      int32_t position)
{
    for (int32_t i = 0, begin = 0; i < r->bads; begin = r->bad_end[i++])
        if (is_begun(r->bad + begin, r->bad_end[i] - begin, history + r->prompt,
                     position - r->prompt))
            x[r->bad[r->bad_end[i] - 1]] = -INFINITY;
}

static void penalise(float *x, const struct sample_rules *r, const int32_t *history,
                     int32_t position, int32_t *count)
{
    /* with repetition off, what is only in the prompt does not change */
    const int32_t begin = r->repetition != 1 ? 0 : r->prompt;
    for (int32_t i = begin; i < position; i++)
        count[history[i]] = 0;
    for (int32_t i = r->prompt; i < position; i++)
        count[history[i]]++;
    for (int32_t i = begin; i < position; i++) {
        const int32_t id = history[i];
        if (count[id] < 0)
            continue;
        x[id] = numerics_penalise(x[id], count[id], r->repetition, r->frequency, r->presence);
        count[id] = -1; /* done */
    }
}

void rules_apply(float *x, const struct sample_rules *r, const int32_t *history, int32_t position,
                 int32_t *count)
{
    for (int32_t i = 0; i < r->biases; i++)
        x[r->bias[i].token] += r->bias[i].value;
    for (int32_t i = 0; bans(r, position) && i < r->bans; i++)
        x[r->ban[i]] = -INFINITY;
    ban_words(x, r, history, position);
    if (penalises(r))
        penalise(x, r, history, position, count);
}
