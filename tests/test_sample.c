/* DESIGN: sampling and logprobs on every variant (subjects.h): twins by bits, sets and rules
 * against their definitions in doubles, frequencies against probabilities. */
#include "tests/only.h"
#include "tests/subjects.h"

#include <float.h>

enum { POSITIONS = 40960 };

static const struct sample_rules no_rules = {.repetition = 1};

/* The token of one row at `position` of a slot with this history (of POSITIONS). */
static int32_t draw_ruled(struct backend *b, const float *logits, int32_t vocab,
                          struct sample_params params, const struct sample_rules *rules,
                          int32_t *history, int32_t position)
{
    const int32_t slot = 0, target = -1;
    int32_t id = 77;
    struct cview v = {logits, DTYPE_F32, 1, vocab};
    const struct sample_rows rows = {&slot, &position, &target, NULL};
    const struct sample_slots slots = {
        .params = &params, .rules = rules, .history = history, .history_cols = POSITIONS};
    ok(backend_sample(b, &id, v, &rows, &slots, &err));
    assert_int_equal(history[position], id < 0 ? 0 : id);
    return id;
}

static bool allows(const uint32_t *mask, int32_t id)
{
    return (mask[id / 32] >> (id % 32) & 1) != 0;
}

static int32_t draw(struct backend *b, const float *logits, int32_t vocab,
                    struct sample_params params, int32_t position)
{
    static int32_t history[POSITIONS];
    const int32_t id = draw_ruled(b, logits, vocab, params, &no_rules, history, position);
    history[position] = 0;
    return id;
}

/* ---- twins ---- */

struct sample_case {
    int32_t rows, vocab;
    float spread;
    bool ruled, masked;
};

/* What the slots of a case hold. */
enum { COLS = 64, SLOTS = 301, LISTED = 5 };
struct slots_of {
    struct sample_params params[SLOTS];
    struct sample_rules rules[SLOTS];
    int32_t history[SLOTS][COLS], ban[SLOTS][LISTED], bad[SLOTS][LISTED], bad_end[SLOTS][2];
    struct token_bias bias[SLOTS][LISTED];
};

static int32_t pick(uint64_t seed, size_t i, int32_t n)
{
    return (int32_t)((double)(gen(seed, i) + 1) / 2 * n);
}

/* Slot r: every kind of rule in some slots, histories with repetitions, often of likely tokens. */
static void make_rules(struct slots_of *s, size_t r, int32_t vocab)
{
    struct sample_rules *q = &s->rules[r];
    *q = (struct sample_rules){.prompt = 1 + pick(70, r, 30),
                               .min_tokens = pick(71, r, 20),
                               .repetition = r % 2 ? 1 : 0.5f + (float)(r % 9) / 4,
                               .frequency = r % 3 ? 0 : 0.3f * (float)(r % 5) - 0.5f,
                               .presence = r % 5 ? 0 : 0.4f * (float)(r % 7) - 0.9f,
                               .biases = r % 4 == 1 ? LISTED : 0,
                               .bans = r % 4 < 2 ? LISTED : 0,
                               .bads = r % 3 == 1 ? 2 : 0,
                               .bias = s->bias[r],
                               .ban = s->ban[r],
                               .bad_end = s->bad_end[r],
                               .bad = s->bad[r]};
    for (size_t i = 0; i < COLS; i++)
        s->history[r][i] = pick(72, r * COLS + i, i % 2 ? vocab : (vocab + 9) / 10);
    for (size_t i = 0; i < LISTED; i++) {
        s->bias[r][i] = (struct token_bias){pick(73, r * LISTED + i, vocab), 4 * gen(74, r + i)};
        s->ban[r][i] = pick(75, r * LISTED + i, vocab);
        s->bad[r][i] = pick(76, r * LISTED + i, vocab);
    }
    s->bad_end[r][0] = 1; /* a word of one id, one of two that has often begun */
    s->bad_end[r][1] = 3;
    s->bad[r][1] = s->history[r][COLS / 2 - 1];
}

static void make_slots(struct slots_of *s, const struct sample_case *c)
{
    memset(s, 0, sizeof *s);
    for (size_t r = 0; r < SLOTS; r++) {
        s->params[r] =
            (struct sample_params){.temperature = r % 5 ? 0.3f + 0.2f * (float)(r % 7) : 0,
                                   .top_p = r % 3 ? (float)(r % 13 + 1) / 14 : 1,
                                   .top_k = r % 4 ? 0 : (int32_t)(r % 9) * 3,
                                   .min_p = r % 6 ? 0 : 0.05f * (float)(r % 5),
                                   .seed = r,
                                   .choice = 2};
        s->rules[r] = no_rules;
        if (c->ruled)
            make_rules(s, r, c->vocab);
    }
}

/* Rounded: many equal values. */
static float *make_logits(const struct sample_case *c)
{
    const size_t n = (size_t)c->rows * (size_t)c->vocab;
    float *logits = generated(41, n);
    for (size_t i = 0; i < n; i++)
        logits[i] = roundf(logits[i] * 64) / 64 * c->spread;
    logits[n - 1] = c->vocab > 1 ? -INFINITY : 1;
    return logits;
}

/* What the history has where row r draws. */
static int32_t guess_of(size_t r, int32_t vocab)
{
    return (int32_t)(r * 31) % vocab;
}

static void sample_case(struct backend *b, const void *arg, float *out)
{
    const struct sample_case *c = arg;
    const size_t n = (size_t)c->rows * (size_t)c->vocab, rows = (size_t)c->rows;
    float *logits = make_logits(c), *copy = must(malloc(n * sizeof *copy));
    struct slots_of *s = must(malloc(sizeof *s));
    int32_t slot[300], position[300], target[300], mask[300], *ids = guarded(rows);
    const size_t words = (size_t)sample_mask_words(c->vocab);
    uint32_t *masks = must(calloc((rows + 1) * words, sizeof *masks));
    static int32_t history[POSITIONS];
    make_slots(s, c);
    memcpy(copy, logits, n * sizeof *copy);
    for (size_t r = 0; r < rows; r++) {
        slot[r] = r % 11 == 10 ? -1 : (int32_t)(rows - r);
        position[r] = COLS / 2 + (int32_t)r % 8;
        target[r] = r % 17 == 16 ? (int32_t)r % c->vocab : r % 5 == 3 ? SAMPLE_CHECK : SAMPLE_DRAW;
        if (slot[r] >= 0)
            s->history[slot[r]][position[r]] = guess_of(r, c->vocab);
        mask[r] = r % 3 == 1 ? (int32_t)(rows - 1 - r) : -1;
        for (int32_t i = 0; i < c->vocab; i++) /* from all to none */
            if (gen(88, r * 4099 + (size_t)i) < (float)(r % 9) / 3 - 1.1f)
                masks[r * words + (size_t)i / 32] |= 1u << (i % 32);
    }
    const struct sample_slots slots = {s->params, s->rules, s->history[0],
                                       COLS,      masks,    (int32_t)words};
    const struct sample_rows wanted = {slot, position, target, c->masked ? mask : NULL};
    struct cview v = {logits, DTYPE_F32, c->rows, c->vocab};
    ok(backend_sample(b, ids, v, &wanted, &slots, &err));
    assert_memory_equal(logits, copy, n * sizeof *copy);
    for (size_t r = 0; r < rows; r++) {
        out[r] = (float)ids[r];
        if (slot[r] < 0 || target[r] >= 0) {
            assert_int_equal(ids[r], slot[r] < 0 ? -1 : target[r]);
            continue;
        }
        const size_t at = (size_t)slot[r];
        const int32_t left = target[r] == SAMPLE_CHECK ? guess_of(r, c->vocab)
                             : ids[r] < 0              ? 0
                                                       : ids[r];
        assert_int_equal(s->history[at][position[r]], left);
        if (c->masked && mask[r] >= 0) {
            assert_true(ids[r] < 0 || allows(masks + (size_t)mask[r] * words, ids[r]));
            continue;
        }
        memcpy(history, s->history[at], sizeof s->history[at]);
        assert_int_equal(ids[r], draw_ruled(b, logits + r * (size_t)c->vocab, c->vocab,
                                            s->params[at], &s->rules[at], history, position[r]));
    }
    free(s);
    free(copy);
    free(masks);
    guarded_free(ids, rows);
    guarded_free(logits, n);
}

static void test_sample_twins(void **state UNUSED)
{
    static const struct sample_case cases[] = {
        {1, 1, 1, false, false},     {90, 2, 3, false, false},    {300, 37, 6, false, false},
        {80, 1000, 9, false, false}, {40, 5003, 4, false, false}, {3, 200000, 12, false, false},
        {300, 37, 6, true, false},   {300, 1000, 5, true, false}, {40, 5003, 4, true, false},
        {20, 2, 1, true, false},     {300, 37, 6, true, true},    {90, 1000, 5, true, true},
        {40, 5003, 4, false, true},  {50, 64, 3, false, true},    {60, 5003, 0, false, false},
        {50, 3001, 0.1f, true, true}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        run_case("sample", sample_case, &cases[i], (size_t)cases[i].rows, 0, 0);
}

/* ---- rules against vLLM's formulas, in doubles ---- */

/* vllm/v1/sample: bias and bans, then bad words over what was produced, then repetition over prompt
 * and produced, then frequency and presence over produced. */
static void rule_by_hand(double *x, int32_t vocab, const struct sample_rules *r,
                         const int32_t *history, int32_t position)
{
    const int32_t *produced = history + r->prompt, made = position - r->prompt;
    for (int32_t i = 0; i < r->biases; i++)
        x[r->bias[i].token] += (double)r->bias[i].value;
    for (int32_t i = 0; i < r->bans; i++)
        x[r->ban[i]] = made < r->min_tokens ? -INFINITY : x[r->ban[i]];
    for (int32_t i = 0; i < r->bads; i++) {
        const int32_t *word = r->bad + (i ? r->bad_end[i - 1] : 0);
        const int32_t prefix = r->bad_end[i] - (i ? r->bad_end[i - 1] : 0) - 1;
        bool begun = prefix <= made;
        for (int32_t k = 0; begun && k < prefix; k++)
            begun = word[k] == produced[made - prefix + k];
        x[word[prefix]] = begun ? -INFINITY : x[word[prefix]];
    }
    for (int32_t id = 0; id < vocab; id++) {
        int32_t in_prompt = 0, count = 0;
        for (int32_t i = 0; i < position; i++)
            *(i < r->prompt ? &in_prompt : &count) += history[i] == id;
        if (in_prompt + count > 0)
            x[id] = x[id] > 0 ? x[id] / (double)r->repetition : x[id] * (double)r->repetition;
        x[id] -= (double)r->frequency * count + (count > 0 ? (double)r->presence : 0);
    }
}

/* Greedy draws are the largest by hand, to the rounding of floats. */
static void test_rules(void **state UNUSED)
{
    const struct sample_case c = {SLOTS - 1, 53, 3, true, false};
    float *logits = make_logits(&c);
    struct slots_of *s = must(malloc(sizeof *s));
    static int32_t history[POSITIONS];
    int32_t changed = 0;
    make_slots(s, &c);
    for (size_t r = 0; r < SLOTS - 1; r++) {
        double x[53];
        int32_t best = 0;
        const float *row = logits + r * 53;
        const int32_t position = s->rules[r].prompt + pick(77, r, 30);
        for (size_t i = 0; i < 53; i++)
            x[i] = (double)row[i];
        rule_by_hand(x, 53, &s->rules[r], s->history[r], position);
        for (int32_t i = 1; i < 53; i++)
            best = x[i] > x[best] ? i : best;
        memcpy(history, s->history[r], sizeof s->history[r]);
        for (int b = 0; nth_backend(b); b++) {
            int32_t id = draw_ruled(nth_backend(b), row, 53, (struct sample_params){.top_p = 1},
                                    &s->rules[r], history, position);
            if (!(x[id] >= x[best] - 1e-5))
                fail_msg("slot %zu: token %d has %g, %d has %g", r, id, x[id], best, x[best]);
            changed += id != draw(ref, row, 53, (struct sample_params){.top_p = 1}, 0);
        }
    }
    assert_true(changed > 100 * subject_count);
    free(s);
    guarded_free(logits, (size_t)c.rows * 53);
}

/* The borders, one by one. */
static void test_rule_edges(void **state UNUSED)
{
    static int32_t history[POSITIONS] = {1, 1, 1, 2, 2, 0};
    const struct sample_params greedy = {.top_p = 1};
    const int32_t ban[] = {3}, word[] = {2, 2, 3}, ends[] = {3};
    const float logits[] = {1, 1.5f, 2, 2.5f};
    struct backend *b = subjects[subject_count - 1];
    struct sample_rules r = {.prompt = 3, .repetition = 1, .presence = 5};
    assert_int_equal(draw_ruled(b, logits, 4, greedy, &r, history, 3), 3);
    const float no_three[] = {1, 1.5f, 2, -9};
    history[3] = 2;
    /* produced 2: presence counts it, and not the 1 of the prompt */
    assert_int_equal(draw_ruled(b, no_three, 4, greedy, &r, history, 4), 1);
    r.presence = 0;
    r.repetition = 1.6f; /* 1 / 1.6 of the prompt's, 2 / 1.6 of the produced */
    assert_int_equal(draw_ruled(b, no_three, 4, greedy, &r, history, 4), 2);
    r = (struct sample_rules){.prompt = 3, .repetition = 1, .min_tokens = 2, .bans = 1, .ban = ban};
    memcpy(history, (const int32_t[]){1, 1, 1, 2, 2, 2}, 6 * sizeof *history);
    assert_int_equal(draw_ruled(b, logits, 4, greedy, &r, history, 4), 2); /* the second */
    assert_int_equal(draw_ruled(b, logits, 4, greedy, &r, history, 5), 3); /* the third */
    r = (struct sample_rules){
        .prompt = 3, .repetition = 1, .bads = 1, .bad = word, .bad_end = ends};
    memcpy(history, (const int32_t[]){1, 1, 2, 2, 2, 2}, 6 * sizeof *history);
    assert_int_equal(draw_ruled(b, logits, 4, greedy, &r, history, 4), 3); /* begun in the prompt */
    memcpy(history, (const int32_t[]){1, 1, 2, 2, 2, 2}, 6 * sizeof *history);
    assert_int_equal(draw_ruled(b, logits, 4, greedy, &r, history, 5), 2);
    const struct sample_rules small = {.prompt = 3, .repetition = FLT_MIN};
    const float large[] = {1, FLT_MAX, 2, 2};
    assert_int_equal(draw_ruled(b, large, 4, greedy, &small, history, 3), 1); /* stays finite */
}

/* Frequencies of the draws against softmax(logits / t): chi-square of 19 degrees of freedom is
 * below 60 but for one case in 10^5, and this case is fixed. */
static void test_sample_distribution(void **state UNUSED)
{
    enum { V = 20, N = 40000 };
    float logits[V];
    double p[V], total = 0;
    const struct sample_params params = {.temperature = 0.7f, .top_p = 1};
    for (size_t i = 0; i < V; i++) {
        logits[i] = 2 * gen(50, i);
        total += p[i] = exp((double)logits[i] / 0.7);
    }
    for (int kind = 0; kind < 3; kind++) { /* independent over seeds, positions and choices */
        int count[V] = {0};
        double chi = 0;
        for (int i = 0; i < N; i++) {
            struct sample_params q = params;
            q.seed = kind == 0 ? (uint64_t)i : 5;
            q.choice = kind == 1 ? i : 0;
            count[draw(subjects[subject_count - 1], logits, V, q, kind == 2 ? i : 9)]++;
        }
        for (int i = 0; i < V; i++) {
            double want = N * p[i] / total;
            chi += (count[i] - want) * (count[i] - want) / want;
        }
        print_message("sample: chi-square %.1f (19 degrees of freedom)\n", chi);
        assert_true(chi < 60 && chi > 3);
    }
}

/* The set that top-k, min-p and top-p keep, from its definition, in doubles. */
static void kept_set(const float *logits, int32_t n, struct sample_params p, bool *keep)
{
    double mass[64], total = 0, sum = 0;
    int32_t order[64];
    for (int32_t i = 0; i < n; i++) {
        int32_t at = i;
        for (; at > 0 && logits[order[at - 1]] < logits[i]; at--)
            order[at] = order[at - 1];
        order[at] = i;
    }
    int32_t count = p.top_k > 0 && p.top_k < n ? p.top_k : n;
    for (int32_t i = 0; i < count; i++) {
        mass[i] =
            exp(((double)logits[order[i]] - (double)logits[order[0]]) / (double)p.temperature);
        if (mass[i] < (double)p.min_p)
            count = i;
        else
            total += mass[i];
    }
    memset(keep, 0, (size_t)n * sizeof *keep);
    for (int32_t i = 0; i < count && (i == 0 || sum < (double)p.top_p * total); i++) {
        keep[order[i]] = true;
        sum += mass[i];
    }
}

static void test_sample_sets(void **state UNUSED)
{
    enum { V = 12, N = 6000 };
    static const struct sample_params cases[] = {
        {1.5f, 0.8f, 0, 0, 0, 0},  {1.5f, 1, 0, 5, 0, 0},      {1.5f, 1, 0.3f, 0, 0, 0},
        {2, 0.7f, 0.25f, 9, 0, 0}, {2, 0.01f, 0, 0, 0, 0},     {1, 0.5f, 0, 1, 0, 0},
        {1, 1, 1, 0, 0, 0},        {1.5f, 0.97f, 0, 100, 0, 0}};
    for (size_t c = 0; c < ARRAY_LEN(cases); c++) {
        float logits[V];
        bool keep[V], seen[V] = {0};
        for (size_t i = 0; i < V; i++)
            logits[i] = roundf(gen(60 + c, i) * 8) / 4; /* with ties */
        kept_set(logits, V, cases[c], keep);
        for (int i = 0; i < N; i++) {
            struct sample_params p = cases[c];
            p.seed = (uint64_t)i;
            seen[draw(subjects[subject_count - 1], logits, V, p, 1)] = true;
        }
        assert_memory_equal(seen, keep, sizeof keep);
    }
}

static void test_sample_edges(void **state UNUSED)
{
    float flat[50] = {0}, tail[3] = {1, 2, 3};
    const struct sample_params greedy = {.top_p = 1}, hot = {1, 1, 0, 0, 1, 0};
    for (int s = 0; nth_backend(s); s++) {
        struct backend *b = nth_backend(s);
        assert_int_equal(draw(b, flat, 50, greedy, 0), 0); /* ties: lowest id */
        assert_int_equal(draw(b, tail, 3, greedy, 0), 2);
        for (uint64_t seed = 0; seed < 50; seed++) {
            assert_in_range(draw(b, flat, 50, (struct sample_params){1, 1, 0, 2, seed, 0}, 0), 0,
                            1);
            assert_in_range(draw(b, flat, 50, (struct sample_params){1, 0.09f, 0, 0, seed, 0}, 0),
                            0, 4);
            assert_int_equal(draw(b, tail, 3, (struct sample_params){9, 1, 0, 1, seed, 0}, 0), 2);
            assert_int_equal(draw(b, tail, 1, (struct sample_params){1, 1, 0, 0, seed, 0}, 0), 0);
        }
        assert_int_equal(draw(b, tail, 3, (struct sample_params){1e-45f, 1, 0, 0, 3, 0}, 0), 2);
        float x[] = {-INFINITY, 5, -INFINITY}, nan[] = {1, NAN, 2}, inf[] = {1, INFINITY, 2};
        float none[] = {-INFINITY, -INFINITY};
        assert_int_equal(draw(b, x, 3, hot, 4), 1);
        assert_int_equal(draw(b, nan, 3, hot, 4), -1);
        assert_int_equal(draw(b, nan, 3, greedy, 4), -1);
        assert_int_equal(draw(b, inf, 3, hot, 4), -1);
        assert_int_equal(draw(b, none, 2, greedy, 4), -1);
    }
}

/* ---- rows that are hard to part ---- */

enum hard { NEAR, EQUAL, TWO, NEAR_BUT_FEW, TWO_BUT_FEW, TINY, HALF, HEAPS, SPREAD };

static float hard_logit(enum hard kind, size_t i)
{
    const float near = roundf(gen(90, i) * 8000) * 0x1p-20f, two = gen(91, i) > 0.2f ? 1 : 0.999f;
    const float wide = 4 * (gen(92, i) + gen(93, i) + gen(94, i));
    switch (kind) {
    case NEAR:
        return near;
    case TWO:
        return two;
    case NEAR_BUT_FEW: /* are far away: the others are in one of the steps between */
        return i == 7001 ? 3 : i == 11 ? -40 : near;
    case TWO_BUT_FEW:
        return i == 5 ? 1.5f : i == 12000 ? -1e30f : two;
    case TINY:
        return near * 0x1p-120f;
    case HALF:
        return i % 2 ? -INFINITY : 2;
    case HEAPS:
        return roundf(wide * 2) / 2;
    case SPREAD:
        return wide;
    case EQUAL:
    default:
        return -3;
    }
}

/* Many columns are near the last of the prefix, or equal to it. */
static void test_sample_hard(void **state UNUSED)
{
    enum { V = 20011 };
    static const struct sample_params cases[] = {
        {0.8f, 0.9f, 0, 0, 1, 0},     {1, 0.3f, 0, 0, 2, 0},       {0.7f, 1, 0, 0, 3, 1},
        {1, 0.9f, 0, 50, 4, 0},       {0.8f, 0.5f, 0, 2000, 5, 0}, {1.3f, 1, 0.02f, 9000, 6, 0},
        {0.8f, 0.9f, 0.99f, 0, 7, 0}, {100, 0.6f, 0, 0, 8, 0},     {1, 0x1.fffffep-1f, 0, 0, 9, 0},
        {1, 1e-6f, 0, 0, 10, 0},      {1, 0.2f, 0, V - 1, 11, 0},  {0.01f, 0.9f, 0, 3, 12, 0},
    };
    float *logits = must(malloc(V * sizeof *logits));
    for (int kind = 0; kind <= SPREAD; kind++) {
        for (size_t i = 0; i < V; i++)
            logits[i] = hard_logit((enum hard)kind, i);
        for (size_t c = 0; c < 2 * ARRAY_LEN(cases); c++) {
            const struct sample_params p = cases[c % ARRAY_LEN(cases)];
            const int32_t want = draw(ref, logits, V, p, (int32_t)c);
            for (int s = 0; nth_backend(s); s++)
                if (draw(nth_backend(s), logits, V, p, (int32_t)c) != want)
                    fail_msg("row %d, case %zu: backend %d draws another token", kind, c, s);
        }
    }
    free(logits);
}

/* ---- logprobs ---- */

enum { STRIDE = 20 };

static void logprobs_case(struct backend *b, const void *arg, float *out)
{
    const struct sample_case *c = arg;
    const size_t n = (size_t)c->rows * (size_t)c->vocab, rows = (size_t)c->rows;
    float *logits = make_logits(c), *logprob = guarded(rows);
    struct token_top *best = guarded(2 * STRIDE * rows);
    int32_t ids[300], top[300];
    for (size_t r = 0; r < rows; r++) {
        ids[r] = pick(80, r, c->vocab);
        top[r] = (int32_t)r % (STRIDE + 2) - 1;
        top[r] = top[r] < c->vocab ? top[r] : c->vocab;
    }
    struct cview v = {logits, DTYPE_F32, c->rows, c->vocab};
    ok(backend_logprobs(b, logprob, best, STRIDE, v, ids, top, &err));
    for (size_t r = 0; r < rows; r++) {
        const int32_t *words = (const int32_t *)(const void *)(best + r * STRIDE);
        for (int32_t i = 2 * (top[r] < 0 ? 0 : top[r]); i < 2 * STRIDE; i++)
            assert_int_equal(words[i], CANARY);
        out[r] = top[r] < 0 ? 0 : logprob[r];
        if (out[r] < -FLT_MAX)
            out[r] = -1e6f; /* ref has it, too */
        for (int32_t i = 0; i < STRIDE; i++) {
            const struct token_top *t = &best[r * STRIDE + (size_t)i];
            const bool filled = i < top[r];
            out[rows + (r * STRIDE + (size_t)i) * 2] = filled ? (float)t->token : 0;
            out[rows + (r * STRIDE + (size_t)i) * 2 + 1] =
                filled && t->logprob >= -FLT_MAX ? t->logprob : 0;
            if (filled && t->token == ids[r])
                assert_true(t->logprob == logprob[r]); /* the same float in both places */
        }
    }
    guarded_free(best, 2 * STRIDE * rows);
    guarded_free(logprob, rows);
    guarded_free(logits, n);
}

static void test_logprobs_twins(void **state UNUSED)
{
    static const struct sample_case cases[] = {
        {1, 1, 1, false, false},     {90, 2, 3, false, false},     {300, 37, 6, false, false},
        {80, 1000, 9, false, false}, {44, 5003, 40, false, false}, {22, 200000, 3, false, false}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        run_case("logprobs", logprobs_case, &cases[i], (size_t)cases[i].rows * (1 + 2 * STRIDE),
                 1e-6, 2e-7);
}

static void test_logprobs_edges(void **state UNUSED)
{
    const float rows[5][4] = {{0, 0, 0, 0},
                              {1, NAN, 0, 0},
                              {1, INFINITY, 0, 0},
                              {-INFINITY, -INFINITY, -INFINITY, -INFINITY},
                              {5, -INFINITY, 5, 2}};
    const int32_t ids[] = {2, 0, 0, 0, 1}, top[] = {4, 2, 0, 2, 3};
    for (int s = 0; nth_backend(s); s++) {
        struct backend *b = nth_backend(s);
        struct token_top best[5][4];
        float logprob[5];
        struct cview v = {rows, DTYPE_F32, 5, 4};
        ok(backend_logprobs(b, logprob, best[0], 4, v, ids, top, &err));
        assert_true(fabs((double)logprob[0] + log(4)) < 1e-6);
        for (int32_t i = 0; i < 4; i++) /* ties: ids ascend */
            assert_true(best[0][i].token == i && best[0][i].logprob == logprob[0]);
        assert_true(isnan(logprob[1]) && isnan(logprob[2]) && isnan(logprob[3]));
        assert_true(logprob[4] == -INFINITY);
        assert_true(best[4][0].token == 0 && best[4][1].token == 2 && best[4][2].token == 3);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sample_twins),        cmocka_unit_test(test_rules),
        cmocka_unit_test(test_rule_edges),          cmocka_unit_test(test_sample_sets),
        cmocka_unit_test(test_sample_edges),        cmocka_unit_test(test_sample_hard),
        cmocka_unit_test(test_sample_distribution), cmocka_unit_test(test_logprobs_twins),
        cmocka_unit_test(test_logprobs_edges)};
    only(argc, argv);
    return cmocka_run_group_tests(tests, open_subjects, close_subjects);
}
