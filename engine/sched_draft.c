/* DESIGN: a sequence has as many guesses as make the step yield most tokens per second, counted
 * with their chances and the measured costs. With few rows a step takes as long as reading the
 * weights, and guesses cost next to nothing; with many each row costs, and only likely guesses get
 * one. */
#include "engine/sched_state.h"

#define LEAST_LIKELY 0.1 /* what is rarer is not worth the wait for the last answer */

/* The step of decodes and guesses so far. */
struct yield {
    int32_t places; /* that are left to sample at */
    int32_t rows;   /* of the home that has most */
    int64_t keys;   /* that they attend to */
    double seconds, tokens;
};

int32_t sched_to_draw(const struct sequence *q)
{
    return q->queued ? 0 : q->params.max_tokens - (q->length - q->prompt_len + q->pending);
}

/* Without guesses. */
static struct yield begin(struct sched *s)
{
    struct yield y = {.places = s->config.limits.samples};
    for (int32_t i = 0; i < s->config.limits.homes; i++) {
        s->homes[i].drafted = 0;
        y.rows = s->homes[i].running > y.rows ? s->homes[i].running : y.rows;
    }
    for (int32_t i = 0; i < s->stats.running; i++) {
        struct sequence *q = s->slots[s->order[i]];
        q->draft = 0;
        if (sched_to_draw(q) <= 0)
            continue;
        y.places--;
        y.tokens++;
        y.keys += q->computed;
    }
    y.seconds = costs_of(&s->config.costs, y.rows, y.keys);
    return y;
}

/* Most guesses that q can have, with the rows and places that the step has left. */
static int32_t room_for(const struct sched *s, const struct sequence *q, const struct yield *y)
{
    const struct sched_home *home = &s->homes[q->home];
    const int32_t rows = s->config.limits.home_rows - home->running - home->drafted;
    const int32_t most = base_min32(sched_to_draw(q) - 1, s->config.speculation.tokens);
    return base_min32(most, base_min32(rows, y->places));
}

static void draft(struct sched *s, struct sequence *q, struct yield *y)
{
    struct sched_home *home = &s->homes[q->home];
    struct yield more = *y;
    const int32_t room = room_for(s, q, y), rows = home->running + home->drafted;
    double likely = 1;
    for (int32_t n = 1; n <= room; n++) {
        likely *= ngram_chance(q->ngram, n - 1);
        if (likely < LEAST_LIKELY)
            break;
        more.places--;
        more.rows = rows + n > more.rows ? rows + n : more.rows;
        more.keys += q->computed;
        more.seconds = costs_of(&s->config.costs, more.rows, more.keys);
        more.tokens += likely;
        if (more.tokens * y->seconds >= y->tokens * more.seconds) {
            q->draft = n;
            *y = more;
        }
    }
    home->drafted += q->draft;
}

/* Of a sequence that has a slot, or there is one for those that wait. */
static bool prompt_may_have_rows(const struct sched *s)
{
    bool has_slot = s->stats.running < s->config.limits.slots;
    for (int32_t i = 0; i < s->stats.running && !has_slot; i++)
        has_slot = s->slots[s->order[i]]->queued;
    return has_slot && queue_count(s->queue) > 0;
}

void sched_plan_drafts(struct sched *s)
{
    if (s->config.speculation.tokens == 0)
        return;
    struct yield y = begin(s);
    if (prompt_may_have_rows(s))
        return;
    for (int32_t i = 0; i < s->stats.running; i++) {
        struct sequence *q = s->slots[s->order[i]];
        if (q->ngram)
            draft(s, q, &y);
    }
}
