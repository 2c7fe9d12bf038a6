/* DESIGN: a slot's history is by position, so the token that a row samples goes where the row that
 * computes it will look, and penalties need nothing else. */
#include "engine/rank_state.h"

#include <stdlib.h>
#include <string.h>

/* Gives out 64-byte aligned pieces; counts only while base is NULL. */
struct carver {
    char *base;
    size_t used;
};

static void *carve(struct carver *c, int64_t rows, int64_t cols, size_t size)
{
    void *at = c->base ? c->base + c->used : NULL;
    c->used += base_align((size_t)(rows * cols) * size, 64);
    return at;
}

static size_t carve_all(struct rank_state *s, char *base)
{
    struct carver c = {base, 0};
    const struct step_limits *l = &s->limits;
    s->table = carve(&c, l->slots, l->table_cols, sizeof *s->table);
    s->params = carve(&c, l->slots, 1, sizeof *s->params);
    s->rules = carve(&c, l->slots, 1, sizeof *s->rules);
    s->bias = carve(&c, l->slots, ENGINE_BIAS_MAX, sizeof *s->bias);
    s->ban = carve(&c, l->slots, STEP_BANS_MAX, sizeof *s->ban);
    s->bad_end = carve(&c, l->slots, ENGINE_BAD_IDS_MAX, sizeof *s->bad_end);
    s->bad = carve(&c, l->slots, ENGINE_BAD_IDS_MAX, sizeof *s->bad);
    s->history = carve(&c, l->slots, l->history_max, sizeof *s->history);
    s->ids = carve(&c, l->rows, 1, sizeof *s->ids);
    s->sample_slot = carve(&c, l->slots, 1, sizeof *s->sample_slot);
    s->sample_next = carve(&c, l->slots, 1, sizeof *s->sample_next);
    s->begin = carve(&c, l->slots + 1, 1, sizeof *s->begin);
    s->elected = carve(&c, l->slots, 1, sizeof *s->elected);
    s->sampled = carve(&c, l->slots, 1, sizeof *s->sampled);
    s->logprob = carve(&c, l->slots, 1, sizeof *s->logprob);
    s->best = carve(&c, l->slots, ENGINE_LOGPROBS_MAX, sizeof *s->best);
    return c.used;
}

size_t rank_state_bytes(const struct step_limits *limits)
{
    struct rank_state sizes = {.limits = *limits};
    return base_align(sizeof sizes, 64) + carve_all(&sizes, NULL);
}

enum status rank_state_open(const struct step_limits *limits, struct rank_state **out,
                            struct err *err)
{
    const size_t bytes = rank_state_bytes(limits);
    struct rank_state *s = aligned_alloc(64, bytes);
    if (!s)
        return base_fail(err, ERR_NOMEM, "rank: no memory for %zu bytes of %d slots", bytes,
                         limits->slots);
    memset(s, 0, bytes); /* touched before ready */
    s->limits = *limits;
    carve_all(s, (char *)s + base_align(sizeof *s, 64));
    *out = s;
    return OK;
}

void rank_state_close(struct rank_state *s)
{
    free(s);
}

static void copy(void *dst, const void *src, int32_t n, size_t size)
{
    if (n > 0)
        memcpy(dst, src, (size_t)n * size);
}

static void open_slot(struct rank_state *s, const struct step_open *o)
{
    const size_t slot = (size_t)o->slot;
    const int32_t bad_ids = o->rules.bads > 0 ? o->rules.bad_end[o->rules.bads - 1] : 0;
    struct token_bias *bias = s->bias + slot * ENGINE_BIAS_MAX;
    int32_t *ban = s->ban + slot * STEP_BANS_MAX;
    int32_t *bad_end = s->bad_end + slot * ENGINE_BAD_IDS_MAX;
    int32_t *bad = s->bad + slot * ENGINE_BAD_IDS_MAX;
    copy(s->history + slot * (size_t)s->limits.history_max, o->tokens, o->history,
         sizeof *o->tokens);
    copy(bias, o->rules.bias, o->rules.biases, sizeof *bias);
    copy(ban, o->rules.ban, o->rules.bans, sizeof *ban);
    copy(bad_end, o->rules.bad_end, o->rules.bads, sizeof *bad_end);
    copy(bad, o->rules.bad, bad_ids, sizeof *bad);
    s->params[slot] = o->params;
    s->rules[slot] = o->rules;
    s->rules[slot].bias = bias;
    s->rules[slot].ban = ban;
    s->rules[slot].bad_end = bad_end;
    s->rules[slot].bad = bad;
}

/* Closes need no work here: a closed slot's state is overwritten by the next open. */
void rank_state_change(struct rank_state *s, const struct step *step)
{
    for (int32_t i = 0; i < step->opens; i++)
        open_slot(s, &step->open[i]);
    for (int32_t i = 0; i < step->appends; i++) {
        const struct step_append *a = &step->append[i];
        s->table[(size_t)a->slot * (size_t)s->limits.table_cols + (size_t)a->index] = a->block;
    }
}

struct sample_slots rank_state_slots(const struct rank_state *s)
{
    return (struct sample_slots){s->params, s->rules, s->history, s->limits.history_max};
}

struct sample_rows rank_state_samples(struct rank_state *s, const struct step *step)
{
    for (int32_t i = 0; i < step->samples; i++) {
        s->sample_slot[i] = step->slot[step->sample[i]];
        s->sample_next[i] = step->position[step->sample[i]] + 1;
        const struct sample_params *p = &s->params[s->sample_slot[i]];
        s->begin[i + 1] =
            s->begin[i] + (step->target[i] < 0 ? sample_places(p, s->limits.vocab) : 0);
    }
    return (struct sample_rows){s->sample_slot, s->sample_next, step->target};
}
