/* DESIGN: both ends use the same struct and the same walk over 32-bit words, once writing and once
 * reading; the reader trusts nothing, because a lost byte on a link must end as one clear line and
 * not as a wild index in a kernel. */
#include "engine/step.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* An open record without its arrays. */
struct open_wire {
    int32_t slot, history, home, state, choice, top_k;
    float temperature, top_p, min_p;
    int32_t prompt, min_tokens;
    float repetition, frequency, presence;
    int32_t biases, bans, bads, bad_ids;
    uint32_t seed[2];
};

enum {
    OPEN_WORDS = sizeof(struct open_wire) / 4,
    LIST_WORDS = 2 * ENGINE_BIAS_MAX + STEP_BANS_MAX + 2 * ENGINE_BAD_IDS_MAX,
};

static size_t mask_bytes(const struct step_limits *l)
{
    return (size_t)sample_mask_words(l->vocab) * sizeof(uint32_t);
}

static void *array(size_t n, size_t size)
{
    return calloc(n > 0 ? n : 1, size);
}

/* A step may give every slot all blocks that it can have at once. */
static int32_t appends_max(const struct step_limits *l)
{
    const int32_t positions = l->table_cols * BACKEND_BLOCK_TOKENS;
    const int64_t most = l->slots * kv_groups_need(&l->groups, positions, l->home_rows);
    return (int32_t)(most < INT32_MAX ? most : INT32_MAX);
}

enum status step_open_new(const struct step_limits *limits, struct step **out, struct err *err)
{
    struct step *s = calloc(1, sizeof *s);
    if (!s)
        return base_fail(err, ERR_NOMEM, "step: no memory");
    const size_t slots = (size_t)limits->slots, rows = (size_t)limits->rows;
    const size_t samples = (size_t)limits->samples;
    s->limits = *limits;
    s->append_max = appends_max(limits);
    s->slot = array(rows, sizeof *s->slot);
    s->position = array(rows, sizeof *s->position);
    s->token = array(rows, sizeof *s->token);
    s->keep = array(rows, sizeof *s->keep);
    s->sample = array(samples, sizeof *s->sample);
    s->target = array(samples, sizeof *s->target);
    s->top = array(samples, sizeof *s->top);
    s->mask = array(samples, sizeof *s->mask);
    s->masks = array(samples, mask_bytes(limits));
    s->open = array(slots, sizeof *s->open);
    s->append = array((size_t)s->append_max, sizeof *s->append);
    s->close = array(2 * slots, sizeof *s->close);
    s->named = array((size_t)limits->states, sizeof *s->named);
    if (!s->slot || !s->position || !s->token || !s->keep || !s->sample || !s->target || !s->top ||
        !s->mask || !s->masks || !s->open || !s->append || !s->close || !s->named) {
        step_free(s);
        return base_fail(err, ERR_NOMEM, "step: no memory for %d rows", limits->rows);
    }
    memset(s->keep, 0xff, rows * sizeof *s->keep); /* nothing is, by who does not say it */
    *out = s;
    return OK;
}

void step_free(struct step *s)
{
    if (!s)
        return;
    free(s->slot);
    free(s->position);
    free(s->token);
    free(s->keep);
    free(s->sample);
    free(s->target);
    free(s->top);
    free(s->mask);
    free(s->masks);
    free(s->open);
    free(s->append);
    free(s->close);
    free(s->named);
    free(s);
}

void step_clear(struct step *s)
{
    s->rows = s->samples = s->opens = s->appends = s->closes = s->mask_count = 0;
    s->stop = false;
}

size_t step_bytes_max(const struct step_limits *l)
{
    size_t slots = (size_t)l->slots, rows = (size_t)l->rows, samples = (size_t)l->samples;
    size_t words = slots * (OPEN_WORDS + LIST_WORDS + (size_t)l->history_max) +
                   4 * (size_t)appends_max(l) + 2 * slots + (l->states > 0 ? 4 : 3) * rows +
                   4 * samples;
    return sizeof(struct step_header) + 4 * words + samples * mask_bytes(l);
}

/* ---- writing ---- */

static char *put(char *at, const void *src, size_t n)
{
    if (n > 0)
        memcpy(at, src, n);
    return at + n;
}

static int32_t bad_ids(const struct sample_rules *r)
{
    return r->bads > 0 ? r->bad_end[r->bads - 1] : 0;
}

static char *put_open(char *at, const struct step_open *o)
{
    const struct sample_params *p = &o->params;
    const struct sample_rules *r = &o->rules;
    const struct open_wire w = {
        .slot = o->slot,
        .history = o->history,
        .home = o->home,
        .state = o->state,
        .choice = p->choice,
        .top_k = p->top_k,
        .temperature = p->temperature,
        .top_p = p->top_p,
        .min_p = p->min_p,
        .prompt = r->prompt,
        .min_tokens = r->min_tokens,
        .repetition = r->repetition,
        .frequency = r->frequency,
        .presence = r->presence,
        .biases = r->biases,
        .bans = r->bans,
        .bads = r->bads,
        .bad_ids = bad_ids(r),
        .seed = {(uint32_t)p->seed, (uint32_t)(p->seed >> 32)},
    };
    at = put(at, &w, sizeof w);
    at = put(at, o->tokens, (size_t)o->history * sizeof *o->tokens);
    at = put(at, r->bias, (size_t)r->biases * sizeof *r->bias);
    at = put(at, r->ban, (size_t)r->bans * sizeof *r->ban);
    at = put(at, r->bad_end, (size_t)r->bads * sizeof *r->bad_end);
    return put(at, r->bad, (size_t)w.bad_ids * sizeof *r->bad);
}

size_t step_encode(const struct step *s, void *dst)
{
    const size_t rows = (size_t)s->rows * 4;
    char *at = (char *)dst + sizeof(struct step_header);
    for (int32_t i = 0; i < s->opens; i++)
        at = put_open(at, &s->open[i]);
    at = put(at, s->append, (size_t)s->appends * sizeof *s->append);
    at = put(at, s->close, (size_t)s->closes * 4);
    at = put(at, s->slot, rows);
    at = put(at, s->position, rows);
    at = put(at, s->token, rows);
    at = put(at, s->keep, s->limits.states > 0 ? rows : 0);
    at = put(at, s->sample, (size_t)s->samples * 4);
    at = put(at, s->target, (size_t)s->samples * 4);
    at = put(at, s->top, (size_t)s->samples * 4);
    at = put(at, s->mask, s->mask_count > 0 ? (size_t)s->samples * 4 : 0);
    at = put(at, s->masks, (size_t)s->mask_count * mask_bytes(&s->limits));
    const struct step_header h = {
        .magic = STEP_MAGIC,
        .version = STEP_VERSION,
        .epoch = s->epoch,
        .bytes = (uint32_t)(at - (char *)dst),
        .seq = s->seq,
        .rows = s->rows,
        .samples = s->samples,
        .opens = s->opens,
        .appends = s->appends,
        .closes = s->closes,
        .masks = s->mask_count,
        .stop = s->stop,
    };
    memcpy(dst, &h, sizeof h);
    return h.bytes;
}

/* ---- reading ---- */

struct cursor {
    const char *at, *end;
    bool short_of; /* ran over the end */
};

static void get(struct cursor *c, void *dst, size_t n)
{
    if ((size_t)(c->end - c->at) < n) {
        c->short_of = true;
        memset(dst, 0, n);
        return;
    }
    if (n > 0)
        memcpy(dst, c->at, n);
    c->at += n;
}

static bool in(int32_t v, int32_t min, int32_t end)
{
    return v >= min && v < end;
}

static bool all_in(const int32_t *v, int32_t n, int32_t min, int32_t end)
{
    for (int32_t i = 0; i < n; i++)
        if (!in(v[i], min, end))
            return false;
    return true;
}

/* `count` elements of the message itself, which is 4-byte aligned: only words lie before them. */
static const void *borrow(struct cursor *c, int32_t count, size_t size)
{
    const void *at = c->at;
    if ((size_t)(c->end - c->at) / size < (size_t)count) {
        c->short_of = true;
        return NULL;
    }
    c->at += (size_t)count * size;
    return at;
}

static bool within(float v, float min, float max) /* false for a NaN */
{
    return v >= min && v <= max;
}

static bool counts_fit(const struct open_wire *w, const struct step_limits *l)
{
    return in(w->slot, 0, l->slots) && in(w->home, 0, l->homes) && in(w->state, -1, l->states) &&
           in(w->history, 1, l->history_max + 1) && in(w->prompt, 1, w->history + 1) &&
           w->min_tokens >= 0 && in(w->biases, 0, ENGINE_BIAS_MAX + 1) &&
           in(w->bans, 0, STEP_BANS_MAX + 1) && in(w->bad_ids, 0, ENGINE_BAD_IDS_MAX + 1) &&
           in(w->bads, 0, w->bad_ids + 1);
}

static bool reals_fit(const struct open_wire *w)
{
    return within(w->temperature, 0, FLT_MAX) && within(w->top_p, 0, 1) && within(w->min_p, 0, 1) &&
           within(w->repetition, FLT_MIN, FLT_MAX) && within(w->frequency, -FLT_MAX, FLT_MAX) &&
           within(w->presence, -FLT_MAX, FLT_MAX);
}

/* Ids in the vocabulary, values finite, no empty word and the last one ends with the ids. */
static bool lists_fit(const struct sample_rules *r, int32_t ids, int32_t vocab)
{
    for (int32_t i = 0; i < r->biases; i++)
        if (!in(r->bias[i].token, 0, vocab) || !within(r->bias[i].value, -FLT_MAX, FLT_MAX))
            return false;
    for (int32_t i = 0; i < r->bads; i++)
        if (!in(r->bad_end[i], i > 0 ? r->bad_end[i - 1] + 1 : 1, ids + 1))
            return false;
    return bad_ids(r) == ids && all_in(r->ban, r->bans, 0, vocab) && all_in(r->bad, ids, 0, vocab);
}

static bool get_open(struct cursor *c, const struct step_limits *l, struct step_open *o)
{
    struct open_wire w;
    get(c, &w, sizeof w);
    if (c->short_of || !counts_fit(&w, l) || !reals_fit(&w))
        return false;
    o->slot = w.slot;
    o->history = w.history;
    o->home = w.home;
    o->state = w.state;
    o->params = (struct sample_params){.temperature = w.temperature,
                                       .top_p = w.top_p,
                                       .min_p = w.min_p,
                                       .top_k = w.top_k,
                                       .seed = w.seed[0] | (uint64_t)w.seed[1] << 32,
                                       .choice = w.choice};
    o->tokens = borrow(c, w.history, sizeof *o->tokens);
    o->rules = (struct sample_rules){.prompt = w.prompt,
                                     .min_tokens = w.min_tokens,
                                     .repetition = w.repetition,
                                     .frequency = w.frequency,
                                     .presence = w.presence,
                                     .biases = w.biases,
                                     .bans = w.bans,
                                     .bads = w.bads};
    o->rules.bias = borrow(c, w.biases, sizeof *o->rules.bias);
    o->rules.ban = borrow(c, w.bans, sizeof *o->rules.ban);
    o->rules.bad_end = borrow(c, w.bads, sizeof *o->rules.bad_end);
    o->rules.bad = borrow(c, w.bad_ids, sizeof *o->rules.bad);
    return !c->short_of && all_in(o->tokens, w.history, 0, l->vocab) &&
           lists_fit(&o->rules, w.bad_ids, l->vocab);
}

static enum status bad(struct err *err, const char *what)
{
    return base_fail(err, ERR_COMM, "step message: %s is out of range", what);
}

static enum status check_header(const struct step *s, const struct step_header *h, size_t n,
                                struct err *err)
{
    if (h->magic != STEP_MAGIC || h->version != STEP_VERSION)
        return base_fail(err, ERR_COMM, "step message: magic %08x version %u, expected %08x %u",
                         h->magic, h->version, STEP_MAGIC, STEP_VERSION);
    if (h->bytes != n)
        return base_fail(err, ERR_COMM, "step message: says %u bytes, has %zu", h->bytes, n);
    const struct step_limits *l = &s->limits;
    if (!in(h->rows, 0, l->rows + 1) || !in(h->samples, 0, l->samples + 1) ||
        !in(h->opens, 0, l->slots + 1) || !in(h->appends, 0, s->append_max + 1) ||
        !in(h->closes, 0, 2 * l->slots + 1) || !in(h->masks, 0, h->samples + 1))
        return bad(err, "a count");
    return OK;
}

/* Rows ascend, none is padding, and the next token, if there will be one, has a place in the
 * history. With vectors nothing is drawn. */
static bool samples_fit(const struct step *s, const struct step_header *h)
{
    const bool draws = s->limits.columns == 0;
    for (int32_t i = 0; i < h->samples; i++) {
        const int32_t row = s->sample[i];
        if (!in(row, i > 0 ? s->sample[i - 1] + 1 : 0, h->rows) || s->slot[row] < 0 ||
            (draws && s->position[row] + 1 >= s->limits.history_max))
            return false;
    }
    return all_in(s->target, h->samples, draws ? STEP_TARGET_CHECK : 0, s->limits.vocab) &&
           all_in(s->top, h->samples, -1, ENGINE_LOGPROBS_MAX + 1);
}

/* Only what is drawn has a mask, and no mask has ids that there are not. */
static bool masks_fit(const struct step *s, const struct step_header *h)
{
    const int32_t words = sample_mask_words(s->limits.vocab), over = s->limits.vocab % 32;
    const uint32_t beyond = over > 0 ? UINT32_MAX << over : 0;
    for (int32_t i = 0; i < h->samples; i++)
        if (!in(s->mask[i], -1, s->target[i] < 0 ? h->masks : 0))
            return false;
    for (int32_t i = 0; i < h->masks; i++)
        if ((s->masks[(size_t)(i + 1) * (size_t)words - 1] & beyond) != 0)
            return false;
    return true;
}

/* Places in range, and none twice: two rows would fill it at once. */
static bool keeps_fit(struct step *s, int32_t rows)
{
    bool once = true;
    if (!all_in(s->keep, rows, -1, s->limits.states))
        return false;
    for (int32_t i = 0; i < rows; i++)
        if (s->keep[i] >= 0) {
            once = once && !s->named[s->keep[i]];
            s->named[s->keep[i]] = true;
        }
    for (int32_t i = 0; i < rows; i++)
        if (s->keep[i] >= 0)
            s->named[s->keep[i]] = false;
    return once;
}

enum status step_decode(struct step *s, const void *src, size_t n, struct err *err)
{
    struct step_header h;
    struct cursor c = {src, (const char *)src + n, false};
    const struct step_limits *l = &s->limits;
    get(&c, &h, sizeof h);
    if (c.short_of)
        return base_fail(err, ERR_COMM, "step message: only %zu bytes", n);
    enum status st = check_header(s, &h, n, err);
    if (st != OK)
        return st;
    for (int32_t i = 0; i < h.opens; i++)
        if (!get_open(&c, l, &s->open[i]))
            return bad(err, "an open record");
    get(&c, s->append, (size_t)h.appends * sizeof *s->append);
    for (int32_t i = 0; i < h.appends; i++)
        if (!in(s->append[i].slot, 0, l->slots) ||
            !in(s->append[i].group, 0, kv_groups_count(&l->groups)) ||
            !in(s->append[i].index, 0, l->table_cols) || !in(s->append[i].block, 0, l->blocks))
            return bad(err, "an append record");
    get(&c, s->close, (size_t)h.closes * 4);
    get(&c, s->slot, (size_t)h.rows * 4);
    get(&c, s->position, (size_t)h.rows * 4);
    get(&c, s->token, (size_t)h.rows * 4);
    memset(s->keep, 0xff, (size_t)h.rows * 4);
    get(&c, s->keep, l->states > 0 ? (size_t)h.rows * 4 : 0);
    get(&c, s->sample, (size_t)h.samples * 4);
    get(&c, s->target, (size_t)h.samples * 4);
    get(&c, s->top, (size_t)h.samples * 4);
    memset(s->mask, 0xff, (size_t)h.samples * 4);
    get(&c, s->mask, h.masks > 0 ? (size_t)h.samples * 4 : 0);
    get(&c, s->masks, (size_t)h.masks * mask_bytes(l));
    if (c.short_of || c.at != c.end)
        return bad(err, "its length");
    if (!all_in(s->close, h.closes, 0, l->slots) || !all_in(s->slot, h.rows, -1, l->slots))
        return bad(err, "a slot");
    if (!all_in(s->position, h.rows, 0, l->history_max))
        return bad(err, "a position");
    if (!all_in(s->token, h.rows, STEP_TOKEN_FROM_SLOT, l->vocab))
        return bad(err, "a token");
    if (!keeps_fit(s, h.rows))
        return bad(err, "a kept state");
    if (!samples_fit(s, &h))
        return bad(err, "a sample row");
    if (!masks_fit(s, &h))
        return bad(err, "a mask");
    s->epoch = h.epoch;
    s->seq = h.seq;
    s->rows = h.rows;
    s->samples = h.samples;
    s->opens = h.opens;
    s->appends = h.appends;
    s->closes = h.closes;
    s->mask_count = h.masks;
    s->stop = h.stop != 0;
    return OK;
}

uint64_t step_hash(const int32_t *ids, int32_t count)
{
    return base_hash(BASE_HASH_INIT, ids, (size_t)count * sizeof *ids);
}

/* ---- the answer ---- */

int32_t step_stride(const struct step *s)
{
    int32_t stride = -1;
    for (int32_t i = 0; i < s->samples; i++)
        stride = s->top[i] > stride ? s->top[i] : stride;
    return stride;
}

void step_answer_counts(struct step_answer *h, const struct step_result *r)
{
    h->ids = r->count;
    h->logprobs = r->logprob ? r->count : 0;
    h->stride = r->logprob ? r->stride : 0;
    h->columns = r->vector ? r->columns : 0;
}

size_t step_answer_bytes(const struct step_answer *h)
{
    return (size_t)h->ids * (sizeof(int32_t) + (size_t)h->columns * sizeof(float)) +
           (size_t)h->logprobs * (sizeof(float) + (size_t)h->stride * sizeof(struct token_top));
}

/* A logprob, and its best descending. */
static bool is_scored(float logprob, const struct token_top *best, int32_t top, int32_t vocab)
{
    if (!(logprob <= 0))
        return false;
    for (int32_t i = 0; i < top; i++)
        if (!in(best[i].token, 0, vocab) || !(best[i].logprob <= (i > 0 ? best[i - 1].logprob : 0)))
            return false;
    return true;
}

enum status step_check_result(const struct step *s, int32_t vocab, const struct step_result *r,
                              struct err *err)
{
    const int32_t stride = step_stride(s);
    if (r->count != s->samples || (r->logprob != NULL) != (stride >= 0) ||
        (r->logprob && r->stride != stride))
        return base_fail(err, ERR_COMM, "the answer has %d tokens and %d best, expected %d and %d",
                         r->count, r->logprob ? r->stride : -1, s->samples, stride);
    if (r->vector ? r->columns != s->limits.columns : s->limits.columns > 0 && r->count > 0)
        return base_fail(err, ERR_COMM, "the answer has vectors of %d, expected %d",
                         r->vector ? r->columns : 0, s->limits.columns);
    for (int32_t i = 0; i < r->count; i++) {
        const int32_t target = s->target[i], top = s->top[i];
        if (target >= 0 ? r->ids[i] != target : !in(r->ids[i], -1, vocab))
            return base_fail(err, ERR_COMM, "the answer has token %d for row %d", r->ids[i], i);
        if (top >= 0 && !isnan(r->logprob[i]) &&
            !is_scored(r->logprob[i], r->best + (ptrdiff_t)i * stride, top, vocab))
            return base_fail(err, ERR_COMM, "the answer has logprobs out of order for row %d", i);
    }
    return OK;
}
