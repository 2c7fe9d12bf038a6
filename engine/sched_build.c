/* DESIGN: decodes first, then turns (engine/queue.h) until rows, time, sample places or blocks are
 * used up. Whoever gets a row gets its block just then, so a sequence owns no more blocks than it
 * has rows for. Rows are gathered by home and written out last, so each home's stand together. */
#include "engine/sched_state.h"

#include "engine/request.h"

#include <math.h>
#include <string.h>

enum { PROMPTS_MAX = 7 }; /* that streams wait for at a time */

static struct sched_home *home_of(const struct sched *s, const struct sequence *q)
{
    return &s->homes[q->home];
}

/* A prompt that is scored is computed whole. */
static bool may_share(const struct sched *s, const struct sequence *q)
{
    return s->config.prefix_caching && !sequence_is_scored(q);
}

static struct sched_flight *flight_built(struct sched *s)
{
    return &s->flights[s->steps % SCHED_FLIGHTS];
}

/* Tells the ranks of its blocks for these positions. */
static void append(struct sched *s, const struct sequence *q, int32_t index)
{
    struct step *step = s->step;
    for (int32_t g = 0; g < kv_groups_count(&q->groups); g++) {
        const int32_t block = sequence_block(q, g, index);
        if (block >= 0)
            step->append[step->appends++] = (struct step_append){q->slot, g, index, block};
    }
}

/* Lets the last sequence of q's home behind q in their order give way; false when there is none, or
 * when blocks are on their way already. Rows that are in the step stay there. */
static bool make_room(struct sched *s, const struct sequence *q)
{
    if (home_of(s, q)->leaving > 0)
        return false;
    for (int32_t i = s->stats.running - 1; i >= 0; i--) {
        struct sequence *last = s->slots[s->order[i]];
        if (last == q)
            return false;
        if (last->home != q->home || last->step == s->steps)
            continue;
        s->stats.preemptions++;
        sched_give_way(s, last);
        return true;
    }
    return false;
}

/* Sees to it that q has blocks for its next position. False: not in this step. */
static bool grow(struct sched *s, struct sequence *q)
{
    if (q->computed / BACKEND_BLOCK_TOKENS < q->block_count)
        return true;
    while (!sequence_grow(q, home_of(s, q)->kv))
        if (!make_room(s, q))
            return false;
    append(s, q, q->block_count - 1);
    return true;
}

/* The row that q added last has a sample: `target` is scored there, or q's next token drawn. */
static void add_sample(struct sched *s, struct sequence *q, int32_t target, int32_t top)
{
    const struct sched_home *home = home_of(s, q);
    struct sched_row *row = &home->rows[home->row_count - 1];
    row->sampled = true;
    row->target = target;
    row->top = top;
    s->step->samples++;
}

static int32_t keep_row(struct sched *s, struct sequence *q, int32_t position)
{
    const bool draws = position + 1 >= q->length + q->pending && q->params.max_tokens > 0;
    return sequence_keep_row(q, s->states, position, draws, s->steps);
}

static void add_row(struct sched *s, struct sequence *q)
{
    struct sched_home *home = home_of(s, q);
    const int32_t position = q->computed++;
    CHECK(home->row_count < s->config.limits.home_rows);
    s->step->rows++;
    home->rows[home->row_count++] = (struct sched_row){
        .seq = q,
        .position = position,
        /* what is drawn in flight only the rank knows */
        .token = position < q->length + q->checking ? q->tokens[position] : STEP_TOKEN_FROM_SLOT,
        .keep = s->states ? keep_row(s, q, position) : -1,
    };
    home->keys += position;
    s->most_rows = base_max32(s->most_rows, home->row_count);
    s->most_keys = base_max64(s->most_keys, home->keys);
    if (sequence_is_scored(q) && q->scored == position + 1 && q->scored < q->prompt_len)
        add_sample(s, q, q->tokens[q->scored++], q->params.prompt_logprobs);
}

/* Adds rows for up to n positions from `computed` on, as blocks allow; what ends the tokens there
 * are draws the next one, and so does each guess after it. Returns how many. */
static int32_t add_rows(struct sched *s, struct sequence *q, int32_t n)
{
    struct sched_flight *f = flight_built(s);
    const int32_t known = q->length + q->pending;
    const int32_t target = q->checking > 0 ? STEP_TARGET_CHECK : STEP_TARGET_SAMPLE;
    int32_t added = 0;
    for (; added < n && grow(s, q); added++) {
        add_row(s, q);
        if (q->computed >= known && q->params.max_tokens > 0) {
            add_sample(s, q, target, q->params.logprobs);
            q->pending++;
        } else if (q->computed >= known && q->params.pooled) {
            add_sample(s, q, q->tokens[known - 1], -1);
        }
    }
    if (added == 0)
        return 0;
    q->step = s->steps;
    q->flights++;
    f->named[f->named_count++] = q;
    sched_publish(s, q);
    return added;
}

/* Is there time for so many rows more of this home, which attend to so many positions more? One row
 * is always in time, so that prompts do not starve. */
static bool in_time(const struct sched *s, const struct sched_home *home, int32_t rows,
                    int64_t keys)
{
    const double seconds =
        costs_of(&s->config.costs, base_max32(s->most_rows, home->row_count + rows),
                 base_max64(s->most_keys, home->keys + keys));
    return s->step->rows + rows == s->decodes + 1 || seconds <= s->seconds;
}

/* May this home have another row in this step? */
static bool has_room(const struct sched *s, const struct sched_home *home)
{
    return home->row_count < s->config.limits.home_rows && in_time(s, home, 1, 0);
}

static bool has_room_somewhere(const struct sched *s)
{
    int32_t i = 0;
    while (i < s->config.limits.homes && !has_room(s, &s->homes[i]))
        i++;
    return i < s->config.limits.homes && s->step->rows < s->config.limits.rows;
}

static int32_t free_slot(const struct sched *s)
{
    for (int32_t i = 0; i < s->config.limits.slots; i++)
        if (!s->slots[i])
            return i;
    return -1;
}

/* Blocks of the home that would be left with all of q's tokens there, what was promised to those
 * who came before, and one more position for each of those; negative: it has no room for q. */
static int32_t blocks_left(const struct sched *s, const struct sequence *q, int32_t home)
{
    const struct sched_home *h = &s->homes[home];
    const struct step_limits *l = &s->config.limits;
    int32_t wanted = sequence_wants(q, l->home_rows) + h->running * kv_groups_count(&l->groups);
    for (int32_t i = 0; i < s->stats.running; i++) {
        const struct sequence *other = s->slots[s->order[i]];
        const int32_t promised = sequence_wants(other, l->home_rows);
        wanted += other->home == home && promised > 0 ? promised : 0;
    }
    return kv_free(h->kv) - wanted;
}

/* What a home has for a sequence that needs one. */
struct prospect {
    bool room;
    int32_t blocks, found; /* those left with it, of it the prefix as free; and that prefix */
};

static struct prospect prospect_of(const struct sched *s, struct sequence *q, int32_t home)
{
    int32_t owned = 0;
    const int32_t found = may_share(s, q) ? sequence_find(q, s->homes[home].kv, &owned) : 0;
    const int32_t left = blocks_left(s, q, home);
    return (struct prospect){left + owned >= 0, left + found, found};
}

static bool is_better(const struct prospect *a, const struct prospect *b)
{
    if (a->room != b->room)
        return a->room;
    return a->blocks != b->blocks ? a->blocks > b->blocks : a->found > b->found;
}

/* The home for q: of those with room the one that has most blocks left. Its prefix counts as free
 * where it is, so it draws q there against as much imbalance as it saves. No choice are homes that
 * this step has no room for, or that run as many as can decode in one. -1: there is none. */
static int32_t choose_home(const struct sched *s, struct sequence *q)
{
    const struct step_limits *l = &s->config.limits;
    struct prospect best = {0};
    int32_t chosen = -1;
    if (l->homes == 1)
        return 0;
    for (int32_t i = 0; i < l->homes; i++) {
        const struct sched_home *h = &s->homes[i];
        if (h->running == l->home_rows || !has_room(s, h))
            continue;
        const struct prospect p = prospect_of(s, q, i);
        if (chosen >= 0 && !is_better(&p, &best))
            continue;
        chosen = i;
        best = p;
    }
    return chosen;
}

static void open_slot(struct sched *s, struct sequence *q, int32_t slot)
{
    struct step *step = s->step;
    int32_t at = s->stats.running++;
    for (; at > 0 && sequence_before(q, s->slots[s->order[at - 1]]); at--)
        s->order[at] = s->order[at - 1];
    s->order[at] = slot;
    s->slots[slot] = q;
    home_of(s, q)->running++;
    q->slot = slot;
    step->open[step->opens++] = (struct step_open){
        .slot = slot,
        .history = q->length,
        .home = q->home,
        .state = q->recall,
        .tokens = q->tokens,
        .params = request_draw(&q->params),
        .rules = *q->rules,
    };
    for (int32_t i = 0; i < q->block_count; i++)
        append(s, q, i);
}

static void count_admission(struct sched *s, struct sequence *q)
{
    sched_wait_end(s, q);
    s->preempted -= q->preempted;
    q->preempted = false;
    if (q->admitted)
        return;
    q->admitted = true;
    q->admitted_ns = s->now_ns;
    q->cached = q->computed;
    s->stats.prefix_queries += (uint64_t)q->prompt_len;
    s->stats.prefix_hits += (uint64_t)q->cached;
}

/* Gives q a slot and a home, and the prefix that is there. False: not now. While no home has room
 * for q nobody else is admitted with this step either, so that small requests do not pass a large
 * one for ever. */
static bool admit(struct sched *s, struct sequence *q)
{
    if (!s->admitting || q->leaving || (s->preempted > 0 && !q->preempted))
        return false;
    const int32_t slot = free_slot(s), home = slot >= 0 ? choose_home(s, q) : -1;
    if (home < 0) {
        s->admitting = false;
        return false;
    }
    q->home = home;
    const bool ready =
        !may_share(s, q) || sequence_share(q, s->homes[home].kv, s->states, s->steps);
    if (!ready || blocks_left(s, q, home) < 0) {
        sequence_release(q, s->homes[home].kv, s->states);
        s->admitting = !ready; /* who waits for its prefix keeps nobody out */
        return false;
    }
    count_admission(s, q);
    open_slot(s, q, slot);
    return true;
}

/* Rows that q can add with the rows, the time and the sample places that the step has left: a
 * scored prompt takes a place per row. */
static int32_t rows_for(const struct sched *s, const struct sequence *q)
{
    const int32_t left = q->length - q->computed;
    const int32_t places = s->config.limits.samples - s->step->samples;
    const struct sched_home *home = home_of(s, q);
    const int32_t rows = base_min32(s->config.limits.rows - s->step->rows,
                                    s->config.limits.home_rows - home->row_count);
    int32_t most = base_min32(left, rows), n = 0;
    if (sequence_is_scored(q))
        most = base_min32(most, places);
    else if (most == left && places == 0)
        most--; /* the last would draw */
    for (int64_t keys = 0; n < most; n++) {
        keys += q->computed + n;
        if (!in_time(s, home, n + 1, keys))
            break;
    }
    return n;
}

/* The turn of a sequence whose prompt, or what it had when it gave way, is not computed yet. */
static enum queue_turn offer(void *ctx, struct sequence *q)
{
    struct sched *s = ctx;
    if (!has_room_somewhere(s))
        return QUEUE_STOP;
    if (q->slot >= 0 && !has_room(s, home_of(s, q)))
        return QUEUE_NEXT;
    if (q->step == s->steps || (q->slot < 0 && !admit(s, q)))
        return QUEUE_PASS; /* no second turn in one step */
    const int32_t rows = rows_for(s, q);
    if (rows == 0)
        return QUEUE_STOP; /* places or time are used up, and nobody shall pass it for that */
    if (add_rows(s, q, rows) == 0) /* its home has no block left; others may have */
        return s->config.limits.homes > 1 ? QUEUE_NEXT : QUEUE_PASS;
    if (q->computed < q->length)
        return QUEUE_TAKEN;
    if (q->length == q->prompt_len)
        s->stats.prompt_tokens += (uint64_t)q->prompt_len;
    return QUEUE_DONE;
}

/* Writes q's draft behind its tokens, as far as it has blocks for it or some are free. */
static void begin_check(struct sched *s, struct sequence *q)
{
    const int32_t end = q->computed + 1;
    while (kv_blocks_for(end + q->draft) > q->block_count && sequence_grow(q, home_of(s, q)->kv))
        append(s, q, q->block_count - 1);
    const int32_t guesses = base_min32(q->draft, q->block_count * BACKEND_BLOCK_TOKENS - end);
    for (int32_t i = 0; i < guesses; i++)
        q->tokens[q->length + i] = ngram_guess(q->ngram, i);
    q->checking = sequence_allowed(q, guesses);
    q->checked = 0;
    s->stats.drafts += q->checking > 0;
    s->stats.guesses += (uint64_t)q->checking;
}

/* Returns how many sequences decode. */
static int32_t add_decodes(struct sched *s)
{
    int32_t decoding = 0;
    for (int32_t i = 0; i < s->stats.running; i++) /* before guesses take any block */
        if (sched_to_draw(s->slots[s->order[i]]) > 0)
            (void)grow(s, s->slots[s->order[i]]);
    for (int32_t i = 0; i < s->stats.running && s->step->rows < s->config.limits.rows; i++) {
        struct sequence *q = s->slots[s->order[i]];
        if (sched_to_draw(q) <= 0)
            continue;
        if (q->draft > 0 && grow(s, q))
            begin_check(s, q);
        decoding += add_rows(s, q, 1 + q->checking) > 0;
    }
    return decoding;
}

/* How long the step may take, now that it has its decodes: for each prompt that could be computed
 * they wait as long as they take themselves. */
static void limit_time(struct sched *s, int32_t decoding)
{
    const int32_t prompts = base_min32(queue_count(s->queue), s->config.limits.slots - decoding);
    const double alone = costs_of(&s->config.costs, s->most_rows, s->most_keys);
    s->decodes = s->step->rows;
    s->seconds = decoding > 0 ? alone * (1 + base_min32(prompts, PROMPTS_MAX)) : INFINITY;
}

/* A sequence that is guided draws its next token from a mask, which its last one says; what follows
 * a guess is known when that is checked, and guesses begin at the last token. A step ahead would be
 * one without that sequence; so that it and all others have a row in every step, none is built. */
static bool awaits_answer(const struct sched *s)
{
    for (int32_t i = 0; i < s->stats.running && s->in_flight > 0; i++) {
        const struct sequence *q = s->slots[s->order[i]];
        if (q->pending > 0 && (q->params.guide || q->checking > 0 || q->draft > 0))
            return true;
    }
    return false;
}

/* The mask of what q draws after so many guesses: its number in the step; -1: it needs none. */
static int32_t add_mask(const struct sched *s, struct sequence *q, int32_t guesses)
{
    struct step *step = s->step;
    const int32_t words = sample_mask_words(s->config.limits.vocab);
    uint32_t *mask = step->masks + (size_t)step->mask_count * (size_t)words;
    return sequence_mask(q, guesses, mask, words) ? step->mask_count++ : -1;
}

/* The rows that were gathered, home by home, and their samples. */
static void write_rows(struct sched *s)
{
    struct step *step = s->step;
    struct sequence **samples = flight_built(s)->samples;
    int32_t n = 0, sample = 0;
    for (int32_t i = 0; i < s->config.limits.homes; i++) {
        const struct sched_row *row = s->homes[i].rows, *end = row + s->homes[i].row_count;
        for (; row < end; row++, n++) {
            step->slot[n] = row->seq->slot;
            step->position[n] = row->position;
            step->token[n] = row->token;
            step->keep[n] = row->keep;
            if (!row->sampled)
                continue;
            samples[sample] = row->seq;
            step->sample[sample] = n;
            step->target[sample] = row->target;
            const int32_t guesses = row->position + 1 - row->seq->length;
            step->mask[sample] = row->target < 0 ? add_mask(s, row->seq, guesses) : -1;
            step->top[sample++] = row->top;
        }
    }
    CHECK(n == step->rows);
    CHECK(sample == step->samples);
}

/* Blocks that no row from now on sees are there for everybody in this step. */
static void slide(struct sched *s)
{
    for (int32_t i = 0; i < s->stats.running && s->config.limits.groups.slide > 0; i++) {
        struct sequence *q = s->slots[s->order[i]];
        sequence_slide(q, home_of(s, q)->kv);
    }
}

bool sched_build(struct sched *s, struct step *step, struct token_event *events, int32_t *count)
{
    CHECK(s->in_flight < SCHED_FLIGHTS);
    *count = 0;
    step_clear(step);
    s->steps++;
    s->step = step;
    s->admitting = true;
    s->most_rows = 0;
    s->most_keys = 0;
    for (int32_t i = 0; i < s->config.limits.homes; i++)
        s->homes[i].keys = s->homes[i].row_count = 0;
    flight_built(s)->named_count = 0;
    sched_end_cancelled(s, events, count);
    sched_plan_drafts(s);
    if (!awaits_answer(s)) {
        slide(s);
        limit_time(s, add_decodes(s));
        queue_turns(s->queue, offer, s);
        write_rows(s);
    }
    s->step = NULL;
    if (step->rows == 0) { /* closes wait for the next step that computes */
        CHECK(step->opens == 0);
        s->steps--;
        return false;
    }
    memcpy(step->close, s->closed, (size_t)s->closed_count * sizeof *s->closed);
    step->closes = s->closed_count;
    s->closed_count = 0;
    s->in_flight++;
    return true;
}
