/* DESIGN: distributed sampling on every variant (subjects.h): for thousands of mixes of parameters
 * and rules and any number of shards, the token elected is the one that sample draws from whole
 * rows; every variant and ref write the same surveys and ballots; and what cannot be decided is
 * rare where rows look like a language model's, and is said where it must be. */
#include "tests/only.h"
#include "tests/subjects.h"

#include <float.h>

enum { ROWS = 50, COLS = 48, LISTED = 4, VOCAB_MAX = 5003, SHARDS_MAX = 8 };

/* The slots of a trial: row r is slot r, at position at[r]. */
struct trial {
    int32_t vocab, slot[ROWS], at[ROWS], target[ROWS], begin[ROWS + 1];
    float *logits; /* [ROWS, vocab] */
    struct sample_params params[ROWS];
    struct sample_rules rules[ROWS];
    int32_t history[ROWS][COLS], ban[ROWS][LISTED], bad[ROWS][LISTED], bad_end[ROWS][2];
    struct token_bias bias[ROWS][LISTED];
    int32_t mask[ROWS];                       /* row r has mask r or none */
    uint32_t masks[ROWS][VOCAB_MAX / 32 + 1]; /* the first words of each, one after the other */
};

/* Uniform in [0, 1), another one at each call. */
static uint64_t dice;
static float roll(void)
{
    return (gen(17, dice++) + 1) / 2;
}

static int32_t below(int32_t n)
{
    return (int32_t)(roll() * (float)n);
}

/* One row: `flat` as of an untrained model; else Zipf's law, as of text, with some noise. */
static void make_row(float *x, int32_t vocab, bool flat)
{
    const float slope = flat ? 0 : 1.4f + 2 * roll(), noise = flat ? 1.5f : 0.7f;
    const int32_t stride = vocab > 1 ? 1 + below(vocab - 1) : 1, ties = below(3);
    for (int32_t i = 0; i < vocab; i++) {
        const int32_t rank = (int32_t)((int64_t)i * stride % vocab);
        x[i] = -slope * logf((float)(rank + 1)) + noise * (2 * roll() - 1);
        if (ties == 0)
            x[i] = roundf(x[i] * 8) / 8;
    }
}

static void make_rules(struct trial *t, int32_t r)
{
    struct sample_rules *q = &t->rules[r];
    *q = (struct sample_rules){
        .prompt = 1 + below(20), .repetition = 1, .bias = t->bias[r], .ban = t->ban[r]};
    q->bad_end = t->bad_end[r];
    q->bad = t->bad[r];
    t->at[r] = q->prompt + below(COLS - 1 - q->prompt);
    for (int32_t i = 0; i < COLS; i++)
        t->history[r][i] = below(below(2) ? t->vocab : (t->vocab + 19) / 20);
    for (int32_t i = 0; i < LISTED; i++) {
        t->bias[r][i] = (struct token_bias){below(t->vocab), 6 * roll() - 3};
        t->ban[r][i] = below(t->vocab);
        t->bad[r][i] = below(t->vocab);
    }
    if (below(3) > 0)
        return;
    t->bad_end[r][0] = 1;
    t->bad_end[r][1] = 3;
    q->repetition = below(2) ? 0.7f + roll() : 1;
    q->frequency = below(2) ? roll() - 0.3f : 0;
    q->presence = below(2) ? roll() - 0.3f : 0;
    q->biases = below(2) * LISTED;
    q->bads = below(2) * 2;
    q->bans = below(2) * LISTED;
    q->min_tokens = below(30);
}

static uint32_t *mask_of(struct trial *t, int32_t r)
{
    return (uint32_t *)t->masks + r * sample_mask_words(t->vocab);
}

static void allow(struct trial *t, int32_t r, int32_t id)
{
    mask_of(t, r)[id / 32] |= 1u << (id % 32);
}

/* A third of the rows: none, one, a run (so that shards may have none), most ids or all. */
static void make_mask(struct trial *t, int32_t r)
{
    const int32_t kind = below(5), begin = below(t->vocab),
                  end = begin + 1 + below(t->vocab / 8 + 1);
    t->mask[r] = below(3) ? -1 : r;
    for (int32_t i = 0; i < t->vocab; i++)
        if (kind == 4 || (kind == 3 && below(10)) || (kind == 2 && i >= begin && i < end) ||
            (kind == 1 && i == begin))
            allow(t, r, i);
}

static struct sample_params make_params(void)
{
    static const int32_t ks[] = {1, 2, 20, 40, 50, 100, 250};
    return (struct sample_params){.temperature = below(6) ? 0.2f + 1.1f * roll() : 0,
                                  .top_p = below(2) ? 0.5f + 0.5f * roll() : 1,
                                  .top_k = below(3) ? 0 : ks[below((int32_t)ARRAY_LEN(ks))],
                                  .min_p = below(4) ? 0 : 0.01f + 0.2f * roll(),
                                  .seed = dice,
                                  .choice = below(3)};
}

static struct trial *make_trial(int32_t vocab, bool flat)
{
    struct trial *t = must(calloc(1, sizeof *t));
    t->vocab = vocab;
    t->logits = must(malloc(sizeof(float) * (size_t)vocab * ROWS));
    for (int32_t r = 0; r < ROWS; r++) {
        t->slot[r] = r;
        t->target[r] = r % 5 == 4 ? SAMPLE_CHECK : SAMPLE_DRAW;
        t->params[r] = make_params();
        make_row(t->logits + (size_t)r * (size_t)vocab, vocab, flat);
        make_rules(t, r);
        make_mask(t, r);
        t->begin[r + 1] = t->begin[r] + sample_places(&t->params[r], vocab);
    }
    return t;
}

static void free_trial(struct trial *t)
{
    free(t->logits);
    free(t);
}

static struct sample_rows rows_of(const struct trial *t)
{
    return (struct sample_rows){t->slot, t->at, t->target, t->mask};
}

static struct sample_slots slots_of(struct trial *t)
{
    return (struct sample_slots){t->params, t->rules,    t->history[0],
                                 COLS,      t->masks[0], sample_mask_words(t->vocab)};
}

/* What the shards write. */
struct papers {
    struct sample_survey *surveys; /* [shards, ROWS] */
    union sample_ballot *ballots;
    size_t survey_bytes, ballot_bytes;
};

/* Shards cut the vocabulary evenly, or the second of several has nothing and the last ids come
 * first. */
static int32_t cut(const struct trial *t, int32_t shards, int32_t i, bool uneven)
{
    if (uneven && shards > 2 && i == 2)
        i = 1;
    return (int32_t)((int64_t)t->vocab * i / shards);
}

/* Elects with `shards` shards; the papers are the caller's to free. */
static struct papers elect(struct backend *b, struct trial *t, int32_t shards, bool uneven,
                           int32_t *ids)
{
    struct papers p;
    const size_t words = ROWS + (size_t)t->begin[ROWS], n = (size_t)shards;
    const struct sample_rows rows = rows_of(t);
    const struct sample_slots slots = slots_of(t);
    p.survey_bytes = n * ROWS * sizeof *p.surveys;
    p.ballot_bytes = n * words * sizeof *p.ballots;
    p.surveys = guarded(p.survey_bytes / 4);
    p.ballots = guarded(p.ballot_bytes / 4);
    const struct sample_election e = {ROWS, shards, t->vocab, t->begin, p.surveys, p.ballots};
    for (int pass = 0; pass < 2; pass++)
        for (int32_t i = 0; i < shards; i++) {
            const int32_t at = uneven ? shards - 1 - i : i, first = cut(t, shards, at, uneven);
            const int32_t cols = cut(t, shards, at + 1, uneven) - first;
            float *part = guarded(ROWS * (size_t)cols);
            for (size_t r = 0; r < ROWS; r++)
                memcpy(part + r * (size_t)cols, t->logits + r * (size_t)t->vocab + first,
                       (size_t)cols * sizeof *part);
            const struct cview v = {part, DTYPE_F32, ROWS, cols};
            if (pass == 0)
                ok(backend_survey(b, p.surveys + (size_t)i * ROWS, v, first, &e, &rows, &slots,
                                  &err));
            else
                ok(backend_nominate(b, p.ballots + (size_t)i * words, v, first, &e, &rows, &slots,
                                    &err));
            guarded_free(part, ROWS * (size_t)cols);
        }
    ok(backend_elect(b, ids, &e, &rows, &slots, &err));
    return p;
}

static void free_papers(struct papers *p)
{
    guarded_free(p->surveys, p->survey_bytes / 4);
    guarded_free(p->ballots, p->ballot_bytes / 4);
}

static const int32_t shard_counts[] = {1, 2, 3, 4, 8};

/* Every row: the token of sample, or none. How many have none. */
static int32_t compare(struct backend *b, struct trial *t, int32_t shards, bool uneven)
{
    int32_t want[ROWS], got[ROWS], all[ROWS], none = 0, next[ROWS];
    const struct sample_rows rows = rows_of(t);
    struct sample_rows rest = rows; /* what is left is drawn as the ids say */
    const struct sample_slots slots = slots_of(t);
    const struct cview v = {t->logits, DTYPE_F32, ROWS, t->vocab};
    for (int32_t r = 0; r < ROWS; r++)
        next[r] = t->history[r][t->at[r]];
    struct papers p = elect(b, t, shards, uneven, got);
    for (int32_t r = 0; r < ROWS; r++) { /* written with the token, left alone without one */
        const bool written = got[r] >= 0 && t->slot[r] >= 0 && t->target[r] == SAMPLE_DRAW;
        assert_int_equal(t->history[r][t->at[r]], written ? got[r] : next[r]);
    }
    rest.target = got;
    ok(backend_sample(b, all, v, &rest, &slots, &err));
    for (int32_t r = 0; r < ROWS; r++)
        if (t->target[r] == SAMPLE_CHECK)
            assert_int_equal(t->history[r][t->at[r]], next[r]);
    ok(backend_sample(b, want, v, &rows, &slots, &err));
    assert_memory_equal(all, want, sizeof all);
    for (int32_t r = 0; r < ROWS; r++) {
        none += got[r] < 0 && want[r] >= 0; /* refused by both: everything was banned */
        if (want[r] >= 0 && t->mask[r] >= 0)
            assert_true(mask_of(t, r)[want[r] / 32] >> (want[r] % 32) & 1);
        if (got[r] >= 0 && got[r] != want[r])
            fail_msg("%d shards, vocabulary %d, row %d: elected %d, sampled %d", shards, t->vocab,
                     r, got[r], want[r]);
    }
    free_papers(&p);
    return none;
}

/* 6,250 mixes, each at 1, 2, 3, 4 and 8 shards. */
static void test_mixes(void **state UNUSED)
{
    static const int32_t vocabs[] = {1, 2, 37, 259, VOCAB_MAX};
    struct backend *b = subjects[subject_count - 1];
    int32_t none = 0, all = 0;
    dice = 0;
    for (int32_t i = 0; i < 125; i++) {
        struct trial *t = make_trial(vocabs[i % 5], false);
        for (size_t k = 0; k < ARRAY_LEN(shard_counts); k++, all += ROWS)
            none += compare(b, t, shard_counts[k], i % 3 == 0);
        free_trial(t);
    }
    print_message("elect: %d of %d rows undecided\n", none, all);
    assert_true(none * 100 <= all);
    assert_true(none > 0); /* else nothing was near the edge */
}

/* An untrained model's rows: much is undecided, nothing is wrong. */
static void test_flat(void **state UNUSED)
{
    struct backend *b = subjects[subject_count - 1];
    int32_t none = 0;
    dice = 0;
    for (int32_t i = 0; i < 10; i++) {
        struct trial *t = make_trial(VOCAB_MAX, true);
        none += compare(b, t, 2, false);
        free_trial(t);
    }
    assert_true(none > 50 && none < 300);
}

/* All variants and ref, to the bit. */
static void test_twins(void **state UNUSED)
{
    static const int32_t vocabs[] = {1, 5, 300, 2001};
    dice = 1 << 20;
    for (size_t i = 0; i < ARRAY_LEN(vocabs) * 2; i++) {
        struct trial *t = make_trial(vocabs[i / 2], i % 2 != 0);
        const int32_t shards = shard_counts[(i + 1) % ARRAY_LEN(shard_counts)];
        int32_t want[ROWS], got[ROWS];
        t->slot[3] = -1;
        t->target[7] = t->vocab - 1;
        t->params[9].temperature = 1e-39f; /* z overflows: greedy */
        struct papers first = elect(ref, t, shards, true, want);
        assert_int_equal(want[3], -1);
        assert_int_equal(want[7], t->vocab - 1);
        for (int s = 0; nth_backend(s); s++) {
            struct papers p = elect(nth_backend(s), t, shards, true, got);
            assert_memory_equal(got, want, sizeof got);
            assert_memory_equal(p.surveys, first.surveys, p.survey_bytes);
            assert_memory_equal(p.ballots, first.ballots, p.ballot_bytes);
            free_papers(&p);
        }
        free_papers(&first);
        free_trial(t);
    }
}

/* Rows that sample refuses, wherever the reason is, and rows with one finite logit. */
static void test_refused(void **state UNUSED)
{
    dice = 5;
    struct trial *t = make_trial(40, false);
    for (int32_t r = 0; r < ROWS; r++) {
        float *x = t->logits + r * 40;
        t->rules[r] = (struct sample_rules){.prompt = 1, .repetition = 1};
        t->mask[r] = -1;
        for (int32_t i = 0; i < 40 && r % 4 < 2; i++)
            x[i] = -INFINITY;
        if (r % 4 == 1)
            x[r % 40] = -3;
        if (r % 4 > 1)
            x[(r * 7) % 40] = r % 4 == 2 ? NAN : INFINITY;
    }
    for (int s = 0; nth_backend(s); s++) {
        int32_t got[ROWS];
        struct papers p = elect(nth_backend(s), t, 3, false, got);
        for (int32_t r = 0; r < ROWS; r++)
            assert_int_equal(got[r], r % 4 == 1 ? r % 40 : t->target[r]);
        free_papers(&p);
    }
    free_trial(t);
}

/* The edge: 600 equal logits on each of two shards, 256 places each. The nucleus of n ids is known
 * up to the first list that ends: here the lists are taken one after the other. */
static void test_edge(void **state UNUSED)
{
    enum { V = 1200, PLACES = SAMPLE_PLACES_MAX };
    dice = 9;
    struct trial *t = make_trial(V, false);
    for (int32_t r = 0; r < ROWS; r++) {
        for (int32_t i = 0; i < V; i++)
            t->logits[r * V + i] = 0;
        t->rules[r] = (struct sample_rules){.prompt = 1, .repetition = 1};
        t->mask[r] = -1;
        t->params[r] = (struct sample_params){.temperature = 1, .top_p = 1, .seed = (uint64_t)r};
    }
    t->params[0].top_k = PLACES;
    t->params[1].top_k = PLACES + 1;
    t->params[2].top_p = (PLACES - 0.5f) / V;
    t->params[3].top_p = (PLACES + 0.5f) / V;
    t->params[4].min_p = 0.5f;
    for (int32_t r = 0; r < ROWS; r++)
        t->begin[r + 1] = t->begin[r] + sample_places(&t->params[r], V);
    assert_int_equal(t->begin[5], 5 * PLACES);
    for (int s = 0; nth_backend(s); s++) {
        int32_t got[ROWS];
        struct papers p = elect(nth_backend(s), t, 2, false, got);
        assert_in_range(got[0], 0, PLACES - 1);
        assert_int_equal(got[1], -1);
        assert_in_range(got[2], 0, PLACES - 1);
        assert_int_equal(got[3], -1);
        assert_int_equal(got[4], t->target[4]);
        assert_in_range(got[5], 0, V - 1);
        free_papers(&p);
    }
    free_trial(t);
}

/* A mask leaves one id, or those of one shard, or none: what is drawn is never another. */
static void test_masked(void **state UNUSED)
{
    enum { V = 70 };
    dice = 11;
    struct trial *t = make_trial(V, false);
    for (int32_t r = 0; r < ROWS; r++) {
        t->rules[r] = (struct sample_rules){.prompt = 1, .repetition = 1};
        memset(mask_of(t, r), 0, sizeof(uint32_t) * (size_t)sample_mask_words(V));
        t->mask[r] = r % 4 == 3 ? -1 : r;
        if (r % 4 == 0)
            allow(t, r, (r * 7) % V);
        for (int32_t i = 0; i < V / 3 && r % 4 == 1; i++)
            allow(t, r, i);
    }
    for (int s = 0; nth_backend(s); s++) {
        int32_t got[ROWS];
        struct papers p = elect(nth_backend(s), t, 3, false, got);
        for (int32_t r = 0; r < ROWS; r++) {
            if (r % 4 == 0)
                assert_int_equal(got[r], (r * 7) % V);
            else if (r % 4 == 1)
                assert_in_range(got[r], 0, V / 3 - 1);
            else
                assert_int_equal(got[r] < 0, r % 4 == 2);
        }
        free_papers(&p);
    }
    free_trial(t);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_mixes), cmocka_unit_test(test_flat),
                                       cmocka_unit_test(test_twins), cmocka_unit_test(test_refused),
                                       cmocka_unit_test(test_edge),  cmocka_unit_test(test_masked)};
    only(argc, argv);
    return cmocka_run_group_tests(tests, open_subjects, close_subjects);
}
