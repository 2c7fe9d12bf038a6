/* DESIGN: both ends use the same struct and the same walk over 32-bit words, once writing and once
 * reading; the reader trusts nothing, because a lost byte on a link must end as one clear line and
 * not as a wild index in a kernel. */
#include "engine/step.h"

#include <stdlib.h>
#include <string.h>

enum { OPEN_WORDS = 10 };

static void *array(size_t n, size_t size)
{
    return calloc(n > 0 ? n : 1, size);
}

enum status step_open_new(const struct step_limits *limits, struct step **out, struct err *err)
{
    struct step *s = calloc(1, sizeof *s);
    if (!s)
        return base_fail(err, ERR_NOMEM, "step: no memory");
    const size_t slots = (size_t)limits->slots, rows = (size_t)limits->rows;
    s->limits = *limits;
    s->append_max = limits->slots * limits->table_cols; /* whole tables of shared blocks */
    s->slot = array(rows, sizeof *s->slot);
    s->position = array(rows, sizeof *s->position);
    s->token = array(rows, sizeof *s->token);
    s->sample = array(slots, sizeof *s->sample);
    s->open = array(slots, sizeof *s->open);
    s->append = array((size_t)s->append_max, sizeof *s->append);
    s->close = array(2 * slots, sizeof *s->close);
    if (!s->slot || !s->position || !s->token || !s->sample || !s->open || !s->append ||
        !s->close) {
        step_free(s);
        return base_fail(err, ERR_NOMEM, "step: no memory for %d rows", limits->rows);
    }
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
    free(s->sample);
    free(s->open);
    free(s->append);
    free(s->close);
    free(s);
}

void step_clear(struct step *s)
{
    s->rows = s->samples = s->opens = s->appends = s->closes = 0;
    s->stop = false;
}

size_t step_bytes_max(const struct step_limits *l)
{
    size_t slots = (size_t)l->slots, rows = (size_t)l->rows;
    size_t appends = slots * (size_t)l->table_cols;
    size_t words =
        slots * (OPEN_WORDS + (size_t)l->history_max) + 3 * appends + 2 * slots + 3 * rows + slots;
    return sizeof(struct step_header) + 4 * words;
}

/* ---- writing ---- */

static char *put(char *at, const void *src, size_t n)
{
    if (n > 0)
        memcpy(at, src, n);
    return at + n;
}

static char *put_open(char *at, const struct step_open *o)
{
    const int32_t head[4] = {o->slot, o->params.choice, o->params.top_k, o->history};
    const float reals[3] = {o->params.temperature, o->params.top_p, o->params.min_p};
    at = put(at, head, sizeof head);
    at = put(at, reals, sizeof reals);
    at = put(at, &o->home, sizeof o->home);
    at = put(at, &o->params.seed, sizeof o->params.seed);
    return put(at, o->tokens, (size_t)o->history * 4);
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
    at = put(at, s->sample, (size_t)s->samples * 4);
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

static bool get_open(struct cursor *c, const struct step_limits *l, struct step_open *o)
{
    int32_t head[4];
    float reals[3];
    get(c, head, sizeof head);
    get(c, reals, sizeof reals);
    get(c, &o->home, sizeof o->home);
    get(c, &o->params.seed, sizeof o->params.seed);
    o->slot = head[0];
    o->params.choice = head[1];
    o->params.top_k = head[2];
    o->history = head[3];
    o->params.temperature = reals[0];
    o->params.top_p = reals[1];
    o->params.min_p = reals[2];
    if (c->short_of || !in(o->slot, 0, l->slots) || !in(o->history, 1, l->history_max + 1) ||
        (size_t)(c->end - c->at) < (size_t)o->history * 4)
        return false;
    o->tokens = (const int32_t *)(const void *)c->at; /* 4-byte aligned: only words before it */
    c->at += (size_t)o->history * 4;
    return all_in(o->tokens, o->history, 0, l->vocab) && o->home == 0;
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
    if (!in(h->rows, 0, l->rows + 1) || !in(h->samples, 0, l->slots + 1) ||
        !in(h->opens, 0, l->slots + 1) || !in(h->appends, 0, s->append_max + 1) ||
        !in(h->closes, 0, 2 * l->slots + 1))
        return bad(err, "a count");
    return OK;
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
        if (!in(s->append[i].slot, 0, l->slots) || !in(s->append[i].index, 0, l->table_cols) ||
            !in(s->append[i].block, 0, l->blocks))
            return bad(err, "an append record");
    get(&c, s->close, (size_t)h.closes * 4);
    get(&c, s->slot, (size_t)h.rows * 4);
    get(&c, s->position, (size_t)h.rows * 4);
    get(&c, s->token, (size_t)h.rows * 4);
    get(&c, s->sample, (size_t)h.samples * 4);
    if (c.short_of || c.at != c.end)
        return bad(err, "its length");
    if (!all_in(s->close, h.closes, 0, l->slots) || !all_in(s->slot, h.rows, -1, l->slots))
        return bad(err, "a slot");
    if (!all_in(s->position, h.rows, 0, l->table_cols * BACKEND_BLOCK_TOKENS))
        return bad(err, "a position");
    if (!all_in(s->token, h.rows, STEP_TOKEN_FROM_SLOT, l->vocab))
        return bad(err, "a token");
    for (int32_t i = 0; i < h.samples; i++) /* ascending, none of padding */
        if (!in(s->sample[i], i > 0 ? s->sample[i - 1] + 1 : 0, h.rows) ||
            s->slot[s->sample[i]] < 0)
            return bad(err, "a sample row");
    s->epoch = h.epoch;
    s->seq = h.seq;
    s->rows = h.rows;
    s->samples = h.samples;
    s->opens = h.opens;
    s->appends = h.appends;
    s->closes = h.closes;
    s->stop = h.stop != 0;
    return OK;
}

uint64_t step_hash(const int32_t *ids, int32_t count)
{
    return base_hash(BASE_HASH_INIT, ids, (size_t)count * sizeof *ids);
}
