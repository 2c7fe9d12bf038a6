/* The step message: what goes in comes out, and whatever else arrives is an error or a step whose
 * every number is in range; the sanitizers watch the reads. */
#include "engine/step.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static const struct step_limits limits = {.slots = 5,
                                          .samples = 7,
                                          .rows = 24,
                                          .groups = {.keep = 1, .slide = 2, .window = 20},
                                          .table_cols = 6,
                                          .vocab = 1000,
                                          .blocks = 40,
                                          .history_max = 90,
                                          .homes = 3,
                                          .home_rows = 8,
                                          .recurs = true,
                                          .states = 9};

static uint64_t seed;

static int32_t below(int32_t n) /* splitmix64 */
{
    uint64_t z = seed += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return (int32_t)((z >> 33) % (uint64_t)n);
}

static struct step *new_step_of(int32_t columns)
{
    struct step_limits l = limits;
    struct step *s;
    struct err err;
    l.columns = columns;
    assert_int_equal(step_open_new(&l, &s, &err), OK);
    return s;
}

static struct step *new_step(void)
{
    return new_step_of(0);
}

/* Tokens and lists of opens point into these. */
static int32_t history[5][90], ban[5][STEP_BANS_MAX];
static struct token_bias bias[5][ENGINE_BIAS_MAX];
static int32_t bad_end[5][ENGINE_BAD_IDS_MAX], bad[5][ENGINE_BAD_IDS_MAX];

/* As many entries as they can have when full. */
static void random_rules(struct sample_rules *r, int32_t i, bool full)
{
    int32_t ids = full ? ENGINE_BAD_IDS_MAX : below(20);
    *r = (struct sample_rules){.min_tokens = below(100),
                               .repetition = (float)(1 + below(100)) / 50,
                               .frequency = (float)below(100) / 50 - 1,
                               .presence = (float)below(100) / 50 - 1,
                               .biases = full ? ENGINE_BIAS_MAX : below(10),
                               .bans = full ? STEP_BANS_MAX : below(10),
                               .bias = bias[i],
                               .ban = ban[i],
                               .bad_end = bad_end[i],
                               .bad = bad[i]};
    for (int32_t j = 0; j < r->biases; j++)
        bias[i][j] = (struct token_bias){below(limits.vocab), (float)below(201) - 100};
    for (int32_t j = 0; j < r->bans; j++)
        ban[i][j] = below(limits.vocab);
    for (int32_t j = 0; j < ids; j++) {
        bad[i][j] = below(limits.vocab);
        if (full || j == ids - 1 || below(2))
            bad_end[i][r->bads++] = j + 1;
    }
}

static void random_open(struct step_open *o, int32_t i, bool full)
{
    o->slot = below(limits.slots);
    o->history = full ? limits.history_max : 1 + below(limits.history_max);
    random_rules(&o->rules, i, full);
    o->rules.prompt = 1 + below(o->history);
    o->home = below(limits.homes);
    o->state = below(limits.states + 1) - 1;
    o->params = (struct sample_params){.temperature = (float)below(100) / 50,
                                       .top_p = (float)below(100) / 100,
                                       .min_p = (float)below(100) / 100,
                                       .top_k = below(50) - 1,
                                       .seed = (uint64_t)below(1 << 30) << 33,
                                       .choice = below(8)};
    for (int32_t j = 0; j < o->history; j++)
        history[i][j] = below(limits.vocab);
    o->tokens = history[i];
}

/* Of what is drawn, every sample or some. */
static void random_masks(struct step *s, bool full)
{
    const int32_t words = sample_mask_words(limits.vocab);
    for (int32_t i = 0; i < s->samples; i++) {
        s->mask[i] = -1;
        if (full)
            s->target[i] = STEP_TARGET_SAMPLE;
        if (s->target[i] >= 0 || (!full && below(2)))
            continue;
        for (int32_t id = 0; id < limits.vocab; id++) {
            uint32_t *word = &s->masks[s->mask_count * words + id / 32];
            *word = (id % 32 ? *word : 0) | (uint32_t)below(2) << (id % 32);
        }
        s->mask[i] = s->mask_count++;
    }
}

/* full: every count at its limit. */
static void random_step(struct step *s, bool full)
{
    step_clear(s);
    s->epoch = (uint32_t)below(1 << 30);
    s->seq = (uint64_t)below(1 << 30) << 20;
    s->rows = full ? limits.rows : below(limits.rows + 1);
    s->opens = full ? limits.slots : below(limits.slots + 1);
    s->appends = full ? s->append_max : below(s->append_max + 1);
    const int32_t first = below(limits.states);
    s->closes = full ? 2 * limits.slots : below(2 * limits.slots + 1);
    for (int32_t i = 0; i < s->opens; i++)
        random_open(&s->open[i], i, full);
    for (int32_t i = 0; i < s->appends; i++)
        s->append[i] = (struct step_append){below(limits.slots), below(3), below(limits.table_cols),
                                            below(limits.blocks)};
    for (int32_t i = 0; i < s->closes; i++)
        s->close[i] = below(limits.slots);
    for (int32_t i = 0; i < s->rows; i++) {
        s->slot[i] = below(limits.slots + 1) - 1;
        s->position[i] = below(limits.history_max - 1);
        s->token[i] = below(limits.vocab + 1) - 1;
        s->keep[i] = i < limits.states && below(4) ? (i + first) % limits.states : -1;
        if (s->slot[i] < 0 || s->samples == limits.samples || (!full && below(3)))
            continue;
        s->sample[s->samples] = i;
        s->target[s->samples] = below(limits.vocab + 2) - 2;
        s->top[s->samples++] = below(ENGINE_LOGPROBS_MAX + 2) - 1;
    }
    random_masks(s, full);
}

static void assert_ints_equal(const int32_t *a, const int32_t *b, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        assert_int_equal(a[i], b[i]);
}

static void assert_rules_equal(const struct sample_rules *a, const struct sample_rules *b)
{
    assert_int_equal(a->prompt, b->prompt);
    assert_int_equal(a->min_tokens, b->min_tokens);
    assert_true(a->repetition == b->repetition && a->frequency == b->frequency);
    assert_true(a->presence == b->presence);
    assert_int_equal(a->biases, b->biases);
    assert_int_equal(a->bans, b->bans);
    assert_int_equal(a->bads, b->bads);
    assert_memory_equal(a->bias, b->bias, (size_t)a->biases * sizeof *a->bias);
    assert_ints_equal(a->ban, b->ban, a->bans);
    assert_ints_equal(a->bad_end, b->bad_end, a->bads);
    if (a->bads > 0)
        assert_ints_equal(a->bad, b->bad, a->bad_end[a->bads - 1]);
}

static void assert_steps_equal(const struct step *a, const struct step *b)
{
    assert_true(a->epoch == b->epoch && a->seq == b->seq && a->stop == b->stop);
    assert_int_equal(a->rows, b->rows);
    assert_int_equal(a->samples, b->samples);
    assert_int_equal(a->opens, b->opens);
    assert_int_equal(a->appends, b->appends);
    assert_int_equal(a->closes, b->closes);
    assert_ints_equal(a->slot, b->slot, a->rows);
    assert_ints_equal(a->position, b->position, a->rows);
    assert_ints_equal(a->token, b->token, a->rows);
    assert_ints_equal(a->keep, b->keep, a->rows);
    assert_ints_equal(a->sample, b->sample, a->samples);
    assert_ints_equal(a->target, b->target, a->samples);
    assert_ints_equal(a->top, b->top, a->samples);
    assert_int_equal(a->mask_count, b->mask_count);
    for (int32_t i = 0; i < a->samples; i++)
        assert_int_equal(b->mask[i], a->mask_count > 0 ? a->mask[i] : -1);
    assert_memory_equal(a->masks, b->masks,
                        (size_t)(a->mask_count * sample_mask_words(limits.vocab)) * 4);
    assert_ints_equal(a->close, b->close, a->closes);
    assert_memory_equal(a->append, b->append, (size_t)a->appends * sizeof *a->append);
    for (int32_t i = 0; i < a->opens; i++) {
        const struct step_open *x = &a->open[i], *y = &b->open[i];
        assert_true(x->slot == y->slot && x->history == y->history && x->home == y->home);
        assert_int_equal(x->state, y->state);
        assert_true(x->params.seed == y->params.seed && x->params.choice == y->params.choice);
        assert_true(x->params.temperature == y->params.temperature);
        assert_true(x->params.top_p == y->params.top_p && x->params.min_p == y->params.min_p);
        assert_int_equal(x->params.top_k, y->params.top_k);
        assert_ints_equal(x->tokens, y->tokens, x->history);
        assert_rules_equal(&x->rules, &y->rules);
    }
}

static void check_ints(const int32_t *v, int32_t n, int32_t min, int32_t max)
{
    for (int32_t i = 0; i < n; i++)
        assert_true(v[i] >= min && v[i] <= max);
}

static void check_rules_in_range(const struct sample_rules *r)
{
    int32_t end = 0;
    assert_in_range(r->biases, 0, ENGINE_BIAS_MAX);
    assert_in_range(r->bans, 0, STEP_BANS_MAX);
    assert_in_range(r->bads, 0, ENGINE_BAD_IDS_MAX);
    assert_true(r->repetition > 0 && isfinite(r->repetition));
    assert_true(isfinite(r->frequency) && isfinite(r->presence));
    for (int32_t i = 0; i < r->biases; i++) {
        assert_in_range(r->bias[i].token, 0, limits.vocab - 1);
        assert_true(isfinite(r->bias[i].value));
    }
    check_ints(r->ban, r->bans, 0, limits.vocab - 1);
    for (int32_t i = 0; i < r->bads; end = r->bad_end[i++])
        assert_in_range(r->bad_end[i], end + 1, ENGINE_BAD_IDS_MAX);
    check_ints(r->bad, end, 0, limits.vocab - 1);
}

/* All that a rank uses as an index. */
static void check_in_range(const struct step *s)
{
    assert_in_range(s->rows, 0, limits.rows);
    assert_in_range(s->samples, 0, limits.samples);
    assert_in_range(s->opens, 0, limits.slots);
    assert_in_range(s->appends, 0, s->append_max);
    assert_in_range(s->closes, 0, 2 * limits.slots);
    check_ints(s->slot, s->rows, -1, limits.slots - 1);
    check_ints(s->position, s->rows, 0, limits.history_max - 1);
    check_ints(s->token, s->rows, STEP_TOKEN_FROM_SLOT, limits.vocab - 1);
    check_ints(s->keep, s->rows, -1, limits.states - 1);
    check_ints(s->sample, s->samples, 0, s->rows - 1);
    check_ints(s->close, s->closes, 0, limits.slots - 1);
    const bool draws = s->limits.columns == 0;
    check_ints(s->target, s->samples, draws ? STEP_TARGET_CHECK : 0, limits.vocab - 1);
    check_ints(s->top, s->samples, -1, ENGINE_LOGPROBS_MAX);
    for (int32_t i = 0; i < s->samples; i++) { /* a padded row has no slot to sample for */
        assert_true(s->slot[s->sample[i]] >= 0);
        assert_true(!draws || s->position[s->sample[i]] + 1 < limits.history_max);
        assert_true(i == 0 || s->sample[i] > s->sample[i - 1]);
    }
    for (int32_t i = 0; i < s->appends; i++) {
        assert_in_range(s->append[i].slot, 0, limits.slots - 1);
        assert_in_range(s->append[i].group, 0, 2);
        assert_in_range(s->append[i].index, 0, limits.table_cols - 1);
        assert_in_range(s->append[i].block, 0, limits.blocks - 1);
    }
    for (int32_t i = 0; i < s->opens; i++) {
        assert_in_range(s->open[i].slot, 0, limits.slots - 1);
        assert_in_range(s->open[i].history, 1, limits.history_max);
        assert_in_range(s->open[i].home, 0, limits.homes - 1);
        check_ints(&s->open[i].state, 1, -1, limits.states - 1);
        assert_in_range(s->open[i].rules.prompt, 1, s->open[i].history);
        check_ints(s->open[i].tokens, s->open[i].history, 0, limits.vocab - 1);
        check_rules_in_range(&s->open[i].rules);
    }
}

/* Decodes a copy that ends where the allocation ends. */
static bool decodes(struct step *s, const void *bytes, size_t n)
{
    struct err err = {""};
    void *copy = malloc(n > 0 ? n : 1);
    assert_non_null(copy);
    memcpy(copy, bytes, n);
    enum status st = step_decode(s, copy, n, &err);
    if (st == OK) {
        check_in_range(s);
    } else {
        assert_int_equal(st, ERR_COMM);
        assert_non_null(strstr(err.text, "step message: "));
    }
    free(copy);
    return st == OK;
}

static void test_round_trip(void **state)
{
    (void)state;
    struct step *out = new_step(), *in = new_step();
    struct err err;
    char *bytes = malloc(step_bytes_max(&limits));
    for (int32_t i = 0; i < 3000; i++) {
        random_step(out, i % 10 == 0);
        size_t n = step_encode(out, bytes);
        assert_true(n <= step_bytes_max(&limits));
        if (i % 10 == 0)
            assert_int_equal(n, step_bytes_max(&limits));
        if (step_decode(in, bytes, n, &err) != OK)
            fail_msg("step %d: %s", i, err.text);
        assert_steps_equal(out, in);
    }
    step_clear(out);
    out->stop = true;
    assert_int_equal(step_decode(in, bytes, step_encode(out, bytes), &err), OK);
    assert_true(in->stop && in->rows == 0 && in->opens == 0);
    step_free(out);
    step_free(in);
    step_free(NULL);
    free(bytes);
}

static void test_truncated(void **state)
{
    (void)state;
    struct step *out = new_step(), *in = new_step();
    char *bytes = malloc(step_bytes_max(&limits));
    for (int32_t i = 0; i < 20; i++) {
        random_step(out, i == 0);
        size_t n = step_encode(out, bytes);
        for (size_t cut = 0; cut < n; cut++) {
            assert_false(decodes(in, bytes, cut));
            if (cut < sizeof(struct step_header))
                continue;
            struct step_header h; /* a header that agrees with the length */
            memcpy(&h, bytes, sizeof h);
            h.bytes = (uint32_t)cut;
            memcpy(bytes, &h, sizeof h);
            assert_false(decodes(in, bytes, cut));
            h.bytes = (uint32_t)n;
            memcpy(bytes, &h, sizeof h);
        }
        assert_true(decodes(in, bytes, n));
    }
    step_free(out);
    step_free(in);
    free(bytes);
}

static void test_flipped(void **state)
{
    (void)state;
    static const unsigned char flips[] = {0x01, 0x02, 0x10, 0x7f, 0x80, 0xff};
    struct step *out = new_step(), *in = new_step();
    char *bytes = malloc(step_bytes_max(&limits));
    int32_t survived = 0;
    for (int32_t i = 0; i < 12; i++) {
        random_step(out, false);
        size_t n = step_encode(out, bytes);
        for (size_t at = 0; at < n; at++) {
            for (size_t f = 0; f < sizeof flips; f++) {
                bytes[at] = (char)(bytes[at] ^ flips[f]);
                survived += decodes(in, bytes, n);
                bytes[at] = (char)(bytes[at] ^ flips[f]);
            }
        }
    }
    for (int32_t i = 0; i < 20000; i++) { /* several words at once */
        random_step(out, false);
        size_t n = step_encode(out, bytes);
        for (int32_t j = below(4); j >= 0; j--) {
            int32_t word = below(2) ? below(60) - 2 : below(1 << 30) - (1 << 29);
            size_t at = 4 * (size_t)below((int32_t)(n / 4));
            if (at >= 16) /* past magic, version and length */
                memcpy(bytes + at, &word, 4);
        }
        survived += decodes(in, bytes, n);
    }
    assert_true(survived > 100); /* the check of what is accepted was reached */
    step_free(out);
    step_free(in);
    free(bytes);
}

/* The same for reals: a NaN and an infinity never pass. */
static void check_reals(struct step *s, struct step *in, char *bytes, float *bias_value)
{
    const float all = FLT_MAX;
    const struct {
        float *field, min, max, below, above;
    } fields[] = {{&s->open[0].params.temperature, 0, all, -0.1f, INFINITY},
                  {&s->open[0].params.top_p, 0, 1, -0.1f, 1.1f},
                  {&s->open[0].params.min_p, 0, 1, -0.1f, 1.1f},
                  {&s->open[0].rules.repetition, FLT_MIN, all, 0, INFINITY},
                  {&s->open[0].rules.frequency, -all, all, -INFINITY, INFINITY},
                  {&s->open[0].rules.presence, -all, all, -INFINITY, INFINITY},
                  {bias_value, -all, all, -INFINITY, INFINITY}};
    for (size_t i = 0; i < ARRAY_LEN(fields); i++) {
        const float before = *fields[i].field;
        const float values[] = {fields[i].min, fields[i].max, fields[i].below, fields[i].above,
                                NAN};
        for (size_t v = 0; v < ARRAY_LEN(values); v++) {
            *fields[i].field = values[v];
            if (decodes(in, bytes, step_encode(s, bytes)) != (v < 2))
                fail_msg("real %zu with value %g", i, (double)values[v]);
        }
        *fields[i].field = before;
    }
}

/* One number of a valid step set to a value: at its limit it is read, past it not. */
static void test_limits(void **state)
{
    (void)state;
    struct step *s = new_step(), *in = new_step();
    char *bytes = malloc(step_bytes_max(&limits));
    int32_t tokens[] = {0, 999}, banned[] = {7, 8}, words[] = {1, 2, 3}, ends[] = {1, 3};
    struct token_bias biased[] = {{5, 1}, {6, 1}};
    s->opens = s->appends = s->closes = s->rows = s->samples = s->mask_count = 1;
    s->target[0] = STEP_TARGET_SAMPLE;
    s->mask[0] = -1;
    s->open[0] = (struct step_open){.history = 2, .state = -1, .tokens = tokens};
    s->open[0].rules = (struct sample_rules){.prompt = 1, .repetition = 1, .biases = 2};
    s->open[0].rules.bans = s->open[0].rules.bads = 2;
    s->open[0].rules.bias = biased;
    s->open[0].rules.ban = banned;
    s->open[0].rules.bad_end = ends;
    s->open[0].rules.bad = words;
    const struct {
        int32_t *field, min, max;
    } fields[] = {
        {&s->open[0].slot, 0, limits.slots - 1},
        {&s->open[0].home, 0, limits.homes - 1},
        {&s->open[0].state, -1, limits.states - 1},
        {&tokens[1], 0, limits.vocab - 1},
        {&s->open[0].rules.prompt, 1, 2},
        {&s->open[0].rules.min_tokens, 0, INT32_MAX},
        {&biased[1].token, 0, limits.vocab - 1},
        {&banned[1], 0, limits.vocab - 1},
        {&words[2], 0, limits.vocab - 1},
        {&ends[0], 1, 2}, /* the next word ends at 3 */
        {&s->append[0].slot, 0, limits.slots - 1},
        {&s->append[0].group, 0, 2},
        {&s->append[0].index, 0, limits.table_cols - 1},
        {&s->append[0].block, 0, limits.blocks - 1},
        {&s->close[0], 0, limits.slots - 1},
        {&s->slot[0], 0, limits.slots - 1},           /* of a sampled row */
        {&s->position[0], 0, limits.history_max - 2}, /* of a sampled row */
        {&s->token[0], STEP_TOKEN_FROM_SLOT, limits.vocab - 1},
        {&s->keep[0], -1, limits.states - 1},
        {&s->sample[0], 0, 0},
        {&s->target[0], STEP_TARGET_CHECK, limits.vocab - 1},
        {&s->top[0], -1, ENGINE_LOGPROBS_MAX},
        {&s->mask[0], -1, 0},
        {(int32_t *)&s->masks[sample_mask_words(limits.vocab) - 1], 0, 255}, /* 1000 % 32 = 8 */
    };
    for (size_t i = 0; i < ARRAY_LEN(fields); i++) {
        const int32_t min = fields[i].min, max = fields[i].max, before = *fields[i].field;
        const int32_t values[] = {min,       max,      min - 1, max < INT32_MAX ? max + 1 : -1,
                                  INT32_MIN, INT32_MAX};
        for (size_t v = 0; v < ARRAY_LEN(values); v++) {
            *fields[i].field = values[v];
            if (decodes(in, bytes, step_encode(s, bytes)) != (values[v] >= min && values[v] <= max))
                fail_msg("field %zu with value %d", i, values[v]);
        }
        *fields[i].field = before;
    }
    check_reals(s, in, bytes, &biased[1].value);
    s->mask[0] = 0;
    assert_true(decodes(in, bytes, step_encode(s, bytes)));
    s->target[0] = 5; /* which is given, and not drawn */
    assert_false(decodes(in, bytes, step_encode(s, bytes)));
    s->samples = 0; /* more masks than samples */
    assert_false(decodes(in, bytes, step_encode(s, bytes)));
    s->mask_count = 0;
    s->position[0] = limits.history_max - 1; /* the last, when nothing comes after it */
    assert_true(decodes(in, bytes, step_encode(s, bytes)));
    s->slot[0] = -1; /* padding, not sampled */
    assert_true(decodes(in, bytes, step_encode(s, bytes)));
    step_free(s);
    step_free(in);
    free(bytes);
}

/* With vectors nothing is drawn, and so the last place of a history is sampled, too. */
static void test_samples_of_vectors(void **state)
{
    (void)state;
    static const struct {
        int32_t columns, position, target;
        bool good;
    } cases[] = {
        {0, 88, STEP_TARGET_SAMPLE, true},
        {0, 88, STEP_TARGET_CHECK, true},
        {0, 88, 999, true},
        {0, 89, STEP_TARGET_SAMPLE, false},
        {0, 89, 999, false},
        {4, 88, 0, true},
        {4, 89, 0, true},
        {4, 89, 999, true},
        {4, 90, 0, false},
        {4, 0, STEP_TARGET_SAMPLE, false},
        {4, 0, STEP_TARGET_CHECK, false},
        {4, 0, 1000, false},
        {4, 89, STEP_TARGET_SAMPLE, false},
    };
    char *bytes = malloc(step_bytes_max(&limits));
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct step *s = new_step(), *in = new_step_of(cases[i].columns);
        s->rows = s->samples = 1;
        s->position[0] = cases[i].position;
        s->target[0] = cases[i].target;
        s->top[0] = s->mask[0] = -1;
        if (decodes(in, bytes, step_encode(s, bytes)) != cases[i].good)
            fail_msg("case %zu", i);
        step_free(s);
        step_free(in);
    }
    free(bytes);
}

static void test_samples_ascend(void **state)
{
    (void)state;
    struct step *s = new_step(), *in = new_step();
    char *bytes = malloc(step_bytes_max(&limits));
    s->rows = 3;
    s->samples = 2;
    s->sample[0] = 1;
    s->target[0] = s->target[1] = s->top[0] = s->top[1] = -1;
    for (int32_t second = 0; second < 3; second++) {
        s->sample[1] = second;
        assert_int_equal(decodes(in, bytes, step_encode(s, bytes)), second == 2);
    }
    step_free(s);
    step_free(in);
    free(bytes);
}

/* Two rows would fill it at once. */
static void test_kept_once(void **state)
{
    (void)state;
    struct step *s = new_step(), *in = new_step();
    char *bytes = malloc(step_bytes_max(&limits));
    s->rows = 3;
    s->keep[0] = 4;
    s->keep[1] = -1;
    for (int32_t last = -1; last < limits.states; last++) {
        s->keep[2] = last;
        assert_int_equal(decodes(in, bytes, step_encode(s, bytes)), last != 4);
    }
    step_free(s);
    step_free(in);
    free(bytes);
}

static void test_header(void **state)
{
    (void)state;
    struct step *s = new_step();
    struct err err;
    char *bytes = malloc(step_bytes_max(&limits));
    struct step_header h;
    size_t n = step_encode(s, bytes);
    memcpy(&h, bytes, sizeof h);
    assert_int_equal(n, sizeof h);
    struct step_header wrong[3] = {h, h, h};
    wrong[0].magic++;
    wrong[1].version++;
    wrong[2].bytes += 4;
    static const char *const messages[] = {"magic 53455355 version 7, expected 53455354 7",
                                           "magic 53455354 version 8", "says 60 bytes, has 56"};
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(step_decode(s, &wrong[i], n, &err), ERR_COMM);
        assert_non_null(strstr(err.text, messages[i]));
    }
    h.rows = limits.rows + 1;
    assert_int_equal(step_decode(s, &h, n, &err), ERR_COMM);
    assert_non_null(strstr(err.text, "a count is out of range"));
    assert_int_equal(step_decode(s, &h, 3, &err), ERR_COMM);
    assert_non_null(strstr(err.text, "only 3 bytes"));
    assert_true(step_hash(&limits.slots, 1) == base_hash(BASE_HASH_INIT, &limits.slots, 4));
    assert_true(step_hash(NULL, 0) == BASE_HASH_INIT);
    step_free(s);
    free(bytes);
}

/* What rank 0 may answer to a step of one drawn and one scored row. */
static void test_result(void **state)
{
    (void)state;
    struct step *s = new_step();
    struct err err;
    s->samples = 2;
    s->target[0] = STEP_TARGET_SAMPLE;
    s->target[1] = 40;
    s->top[0] = 2;
    s->top[1] = 0;
    assert_int_equal(step_stride(s), 2);
    int32_t ids[] = {999, 40};
    float logprob[] = {-2, -INFINITY};
    struct token_top best[4] = {{4, -1}, {999, -1}, {-7, 7}, {-7, 7}}; /* two are unused */
    struct step_result r = {2, ids, logprob, best, 2, NULL, 0};
    assert_int_equal(step_check_result(s, 1000, &r, &err), OK);
    const struct {
        void *field;
        int32_t word; /* what is put there */
    } wrong[] = {{&r.count, 1},
                 {&r.stride, 1},
                 {&ids[0], -2},
                 {&ids[0], 1000},
                 {&ids[1], 41},
                 {&ids[1], -1},
                 {&logprob[0], 1},
                 {&logprob[1], 1},
                 {&best[0].token, -1},
                 {&best[1].token, 1000},
                 {&best[0].logprob, 1},
                 {&best[1].logprob, 1},
                 {&best[1].logprob, INT32_MAX /* a NaN */}};
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
        int32_t before;
        memcpy(&before, wrong[i].field, 4);
        memcpy(wrong[i].field, &wrong[i].word, 4);
        if (step_check_result(s, 1000, &r, &err) != ERR_COMM)
            fail_msg("wrong answer %zu", i);
        memcpy(wrong[i].field, &before, 4);
    }
    ids[0] = -1; /* a row without finite logits */
    logprob[0] = NAN;
    assert_int_equal(step_check_result(s, 1000, &r, &err), OK);
    r.logprob = NULL;
    assert_int_equal(step_check_result(s, 1000, &r, &err), ERR_COMM);
    s->top[0] = s->top[1] = -1;
    assert_int_equal(step_stride(s), -1);
    assert_int_equal(step_check_result(s, 1000, &r, &err), OK);
    struct step_answer h = {0};
    r.logprob = logprob;
    step_answer_counts(&h, &r);
    assert_int_equal(step_answer_bytes(&h), 2 * 4 + 2 * 4 + 4 * 8);
    step_free(s);
}

/* What rank 0 may answer to a step of two rows whose vectors are wanted. */
static void test_result_of_vectors(void **state)
{
    (void)state;
    struct step *s = new_step_of(3), *tokens = new_step();
    struct err err;
    const int32_t ids[] = {7, 8};
    const float vectors[2 * 3] = {NAN, 1, 2, 3, 4, INFINITY}; /* which are not looked at */
    const struct step_result good = {.count = 2, .ids = ids, .vector = vectors, .columns = 3};
    struct step_result r = good;
    tokens->samples = s->samples = 2;
    for (int32_t i = 0; i < 2; i++) {
        s->target[i] = tokens->target[i] = ids[i];
        s->top[i] = tokens->top[i] = -1;
    }
    assert_int_equal(step_check_result(s, 1000, &r, &err), OK);
    r.columns = 2;
    assert_int_equal(step_check_result(s, 1000, &r, &err), ERR_COMM);
    assert_string_equal(err.text, "the answer has vectors of 2, expected 3");
    r = good, r.vector = NULL;
    assert_int_equal(step_check_result(s, 1000, &r, &err), ERR_COMM);
    assert_string_equal(err.text, "the answer has vectors of 0, expected 3");
    r.columns = 0;
    assert_int_equal(step_check_result(s, 1000, &r, &err), ERR_COMM);
    assert_int_equal(step_check_result(tokens, 1000, &r, &err), OK);
    assert_int_equal(step_check_result(tokens, 1000, &good, &err), ERR_COMM);
    assert_string_equal(err.text, "the answer has vectors of 3, expected 0");
    s->target[1] = 9; /* of another row */
    assert_int_equal(step_check_result(s, 1000, &good, &err), ERR_COMM);
    s->samples = 0; /* a step of rows alone has no vector, and needs none */
    assert_int_equal(step_check_result(s, 1000, &good, &err), ERR_COMM);
    r = (struct step_result){.count = 0};
    assert_int_equal(step_check_result(s, 1000, &r, &err), OK);

    struct step_answer h = {.columns = 99};
    step_answer_counts(&h, &good);
    assert_int_equal(h.ids, 2);
    assert_int_equal(h.columns, 3);
    assert_int_equal(h.logprobs, 0);
    assert_int_equal(step_answer_bytes(&h), 2 * 4 + 2 * 3 * 4);
    r = good, r.vector = NULL;
    step_answer_counts(&h, &r);
    assert_int_equal(h.columns, 0);
    assert_int_equal(step_answer_bytes(&h), 2 * 4);
    step_free(s);
    step_free(tokens);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_truncated),
        cmocka_unit_test(test_flipped),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_samples_ascend),
        cmocka_unit_test(test_kept_once),
        cmocka_unit_test(test_header),
        cmocka_unit_test(test_result),
        cmocka_unit_test(test_samples_of_vectors),
        cmocka_unit_test(test_result_of_vectors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
