/* DESIGN: a slot's history is by position, so the token that a row samples goes where the row that
 * computes it will look, and penalties need nothing else. Both copies have one layout, so an offset
 * finds the place on the device of what was changed on the host. */
#include "engine/rank_state.h"

#include "engine/carve.h"

#include <stdlib.h>
#include <string.h>

/* The arrays that stay where they are; those of a step begin after them. */
static size_t carve_all(struct rank_arrays *a, const struct step_limits *l, char *base)
{
    struct carver c = {base, 0};
    a->table =
        carve(&c, (int64_t)kv_groups_count(&l->groups) * l->slots, l->table_cols, sizeof *a->table);
    a->params = carve(&c, l->slots, 1, sizeof *a->params);
    a->rules = carve(&c, l->slots, 1, sizeof *a->rules);
    a->bias = carve(&c, l->slots, ENGINE_BIAS_MAX, sizeof *a->bias);
    a->ban = carve(&c, l->slots, STEP_BANS_MAX, sizeof *a->ban);
    a->bad_end = carve(&c, l->slots, ENGINE_BAD_IDS_MAX, sizeof *a->bad_end);
    a->bad = carve(&c, l->slots, ENGINE_BAD_IDS_MAX, sizeof *a->bad);
    a->history = carve(&c, l->slots, l->history_max, sizeof *a->history);
    a->masks = carve(&c, l->samples, sample_mask_words(l->vocab), sizeof *a->masks);
    a->ids = carve(&c, l->rows, 1, sizeof *a->ids);
    a->elected = carve(&c, l->samples, 1, sizeof *a->elected);
    a->sampled = carve(&c, l->samples, 1, sizeof *a->sampled);
    a->logprob = carve(&c, l->samples, 1, sizeof *a->logprob);
    a->best = carve(&c, l->samples, ENGINE_LOGPROBS_MAX, sizeof *a->best);
    a->vector = carve(&c, l->samples, l->columns, sizeof *a->vector);
    return c.used;
}

/* The arrays of a step of so many rows and samples, from `base` on; returns their bytes. */
static size_t carve_step(struct rank_arrays *a, const struct step_limits *l, int32_t rows,
                         int32_t samples, char *base)
{
    struct carver c = {base, 0};
    a->slot = carve(&c, rows, 1, sizeof *a->slot);
    a->position = carve(&c, rows, 1, sizeof *a->position);
    a->token = carve(&c, rows, 1, sizeof *a->token);
    a->keep = l->states > 0 ? carve(&c, rows, 1, sizeof *a->keep) : NULL;
    a->sample = carve(&c, samples, 1, sizeof *a->sample);
    a->target = carve(&c, samples, 1, sizeof *a->target);
    a->top = carve(&c, samples, 1, sizeof *a->top);
    a->mask = carve(&c, samples, 1, sizeof *a->mask);
    a->sample_slot = carve(&c, samples, 1, sizeof *a->sample_slot);
    a->sample_next = carve(&c, samples, 1, sizeof *a->sample_next);
    a->begin = carve(&c, samples + 1, 1, sizeof *a->begin);
    return c.used;
}

static size_t bytes_of(const struct step_limits *l)
{
    struct rank_arrays sizes;
    return carve_all(&sizes, l, NULL) + carve_step(&sizes, l, l->rows, l->samples, NULL);
}

size_t rank_state_bytes(const struct step_limits *limits, bool elsewhere)
{
    return (elsewhere ? 1 : 2) * bytes_of(limits);
}

enum status rank_state_open(struct backend *b, const struct step_limits *limits,
                            struct rank_state **out, struct err *err)
{
    const size_t bytes = bytes_of(limits);
    struct rank_state *s = calloc(1, sizeof *s);
    if (!s)
        return base_fail(err, ERR_NOMEM, "rank: no memory");
    s->limits = *limits;
    s->backend = b;
    s->host_memory = aligned_alloc(64, bytes);
    s->device_memory = b->ops->alloc(b, bytes);
    s->home = calloc((size_t)limits->slots, sizeof *s->home);
    s->cut = calloc((size_t)limits->homes + 1, sizeof *s->cut);
    if (!s->host_memory || !s->device_memory || !s->home || !s->cut) {
        rank_state_close(s);
        return base_fail(err, ERR_NOMEM, "rank: no memory for %zu bytes of %d slots", bytes,
                         limits->slots);
    }
    memset(s->host_memory, 0, bytes); /* touched before ready */
    s->step = carve_all(&s->host, limits, s->host_memory);
    carve_all(&s->device, limits, s->device_memory);
    *out = s;
    return OK;
}

void rank_state_close(struct rank_state *s)
{
    if (!s)
        return;
    if (s->device_memory)
        s->backend->ops->free(s->backend, s->device_memory);
    free(s->host_memory);
    free(s->home);
    free(s->cut);
    free(s);
}

/* Uploads [at, at + bytes) of the host's arrays to the same place on the device. */
static void send(struct rank_state *s, const void *at, size_t bytes)
{
    const size_t offset = (size_t)((const char *)at - s->host_memory);
    if (bytes > 0)
        s->backend->ops->upload(s->backend, s->device_memory + offset, at, bytes);
}

/* n elements into a slot's place, on the host and on the device. */
static void put(struct rank_state *s, void *at, const void *src, int32_t n, size_t size)
{
    if (n > 0) {
        memcpy(at, src, (size_t)n * size);
        send(s, at, (size_t)n * size);
    }
}

static void open_slot(struct rank_state *s, const struct step_open *o)
{
    const struct rank_arrays *h = &s->host, *d = &s->device;
    const size_t slot = (size_t)o->slot, bias = slot * ENGINE_BIAS_MAX, ban = slot * STEP_BANS_MAX;
    const size_t bad = slot * ENGINE_BAD_IDS_MAX;
    s->home[slot] = o->home;
    const int32_t bad_ids = o->rules.bads > 0 ? o->rules.bad_end[o->rules.bads - 1] : 0;
    struct sample_rules rules = o->rules;
    put(s, h->history + slot * (size_t)s->limits.history_max, o->tokens, o->history,
        sizeof *o->tokens);
    put(s, h->bias + bias, rules.bias, rules.biases, sizeof *h->bias);
    put(s, h->ban + ban, rules.ban, rules.bans, sizeof *h->ban);
    put(s, h->bad_end + bad, rules.bad_end, rules.bads, sizeof *h->bad_end);
    put(s, h->bad + bad, rules.bad, bad_ids, sizeof *h->bad);
    rules.bias = d->bias + bias;
    rules.ban = d->ban + ban;
    rules.bad_end = d->bad_end + bad;
    rules.bad = d->bad + bad;
    put(s, h->rules + slot, &rules, 1, sizeof rules);
    put(s, h->params + slot, &o->params, 1, sizeof o->params);
}

static int32_t *table_of(const struct rank_state *s, int32_t slot, int32_t group)
{
    const struct step_limits *l = &s->limits;
    return s->host.table +
           ((size_t)group * (size_t)l->slots + (size_t)slot) * (size_t)l->table_cols;
}

/* What is appended to one slot one after the other travels together, a table at a time; between the
 * entries that are new are, where layers slide, some that nobody looks at. */
static void append_blocks(struct rank_state *s, const struct step *step)
{
    for (int32_t i = 0, end; i < step->appends; i = end) {
        const struct step_append *a = step->append;
        const int32_t slot = a[i].slot;
        int32_t first = a[i].index, last = first;
        for (end = i; end < step->appends && a[end].slot == slot; end++) {
            table_of(s, slot, a[end].group)[a[end].index] = a[end].block;
            first = a[end].index < first ? a[end].index : first;
            last = a[end].index > last ? a[end].index : last;
        }
        for (int32_t g = 0; g < kv_groups_count(&s->limits.groups); g++)
            send(s, table_of(s, slot, g) + first,
                 (size_t)(last - first + 1) * sizeof *s->host.table);
    }
}

static void copy(int32_t *dst, const int32_t *src, int32_t n)
{
    memcpy(dst, src, (size_t)n * sizeof *dst);
}

static void pad(const struct rank_arrays *h, const struct step *step, int32_t padding)
{
    for (int32_t i = 0; i < padding; i++) {
        const int32_t row = step->rows + i, sample = step->samples + i;
        h->slot[row] = -1;
        h->position[row] = 0;
        h->token[row] = -1;
        if (h->keep)
            h->keep[row] = -1;
        h->sample[sample] = row;
        h->mask[sample] = -1;
    }
}

/* A row that is padding goes with the one before it. */
static enum status cut_rows(struct rank_state *s, const struct step *step, struct err *err)
{
    const int32_t homes = s->limits.homes;
    int32_t home = 0;
    for (int32_t i = 0; i < step->rows; i++) {
        const int32_t next = step->slot[i] < 0 ? home : s->home[step->slot[i]];
        if (next < home)
            return base_fail(err, ERR_COMM,
                             "step message: row %d is of home %d and comes after one of home %d", i,
                             next, home);
        while (home < next)
            s->cut[++home] = i;
    }
    while (home < homes)
        s->cut[++home] = step->rows;
    for (int32_t x = 0; x < homes; x++)
        if (s->cut[x + 1] - s->cut[x] > s->limits.home_rows)
            return base_fail(err, ERR_COMM, "step message: %lld rows of home %d, at most are %d",
                             (long long)(s->cut[x + 1] - s->cut[x]), x, s->limits.home_rows);
    return OK;
}

const int64_t *rank_state_cut(const struct rank_state *s)
{
    return s->limits.homes > 1 ? s->cut : NULL;
}

/* Closes need no work here: a closed slot's state is overwritten by the next open. */
enum status rank_state_change(struct rank_state *s, const struct step *step, int32_t padding,
                              const struct rank_arrays **arrays, struct err *err)
{
    enum status st = OK;
    const struct rank_arrays *h = &s->host;
    const int32_t rows = step->rows + padding, samples = step->samples + padding;
    for (int32_t i = 0; i < step->opens; i++)
        open_slot(s, &step->open[i]);
    TRY(cut_rows(s, step, err));
    append_blocks(s, step);
    const size_t bytes = carve_step(&s->host, &s->limits, rows, samples, s->host_memory + s->step);
    carve_step(&s->device, &s->limits, rows, samples, s->device_memory + s->step);
    pad(h, step, padding);
    copy(h->slot, step->slot, step->rows);
    copy(h->position, step->position, step->rows);
    copy(h->token, step->token, step->rows);
    for (int32_t i = 0; h->keep && i < step->rows; i++) /* they are behind those of slots */
        h->keep[i] = step->keep[i] < 0 ? -1 : s->limits.slots + step->keep[i];
    copy(h->sample, step->sample, step->samples);
    copy(h->target, step->target, step->samples);
    copy(h->top, step->top, step->samples);
    copy(h->mask, step->mask, step->samples);
    put(s, h->masks, step->masks, step->mask_count * sample_mask_words(s->limits.vocab),
        sizeof *h->masks);
    h->begin[0] = 0;
    for (int32_t i = 0; i < step->samples; i++) {
        h->sample_slot[i] = step->slot[step->sample[i]];
        h->sample_next[i] = step->position[step->sample[i]] + 1;
        const struct sample_params *p = &h->params[h->sample_slot[i]];
        h->begin[i + 1] =
            h->begin[i] + (step->target[i] < 0 ? sample_places(p, s->limits.vocab) : 0);
    }
    send(s, s->host_memory + s->step, bytes);
    *arrays = &s->device;
out:
    return st;
}

struct sample_slots rank_state_slots(const struct rank_state *s)
{
    const struct rank_arrays *d = &s->device;
    return (struct sample_slots){.params = d->params,
                                 .rules = d->rules,
                                 .history = d->history,
                                 .history_cols = s->limits.history_max,
                                 .masks = d->masks,
                                 .mask_words = sample_mask_words(s->limits.vocab)};
}

void rank_state_fetch(struct rank_state *s, int32_t flight, int32_t samples, int32_t stride)
{
    const struct rank_arrays *h = &s->host, *d = &s->device;
    struct backend *b = s->backend;
    const size_t n = (size_t)samples;
    b->ops->fetch(b, flight, h->sampled, d->sampled, n * sizeof *h->sampled);
    if (stride < 0)
        return;
    b->ops->fetch(b, flight, h->logprob, d->logprob, n * sizeof *h->logprob);
    b->ops->fetch(b, flight, h->best, d->best, n * (size_t)stride * sizeof *h->best);
}

enum status rank_state_land(struct rank_state *s, int32_t flight, int32_t samples, int32_t stride,
                            struct step_result *out, struct err *err)
{
    const struct rank_arrays *h = &s->host;
    const enum status st = s->backend->ops->land(s->backend, flight, err);
    if (st != OK)
        return st;
    *out = (struct step_result){.count = samples, .ids = h->sampled};
    if (stride >= 0) {
        out->logprob = h->logprob;
        out->best = h->best;
        out->stride = stride;
    }
    return OK;
}
