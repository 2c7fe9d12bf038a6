/* The scheduler where vectors are wanted: runs of its simulation. Each request ends once, with the
 * vector of what its own last row computed, whatever its prompt went through before: chunks, other
 * homes, giving way, groups that were lost, blocks of others that began like it. */
#include "tests/sched_sim.h"

static const struct setting settings[] = {
    {8, 64, 256, 160, 48, true, false, true, 0, {0}}, /* room for all */
    {8, 8, 256, 160, 48, true, false, false, 3, {0}}, /* as many rows as slots; no guess is made */
    {1, 1, 12, 160, 10, true, false, false, 0, {0}},  /* one of each */
    {16, 40, 24, 160, 40, true, false, true, 0, {0}}, /* short of blocks */
    {16, 40, 24, 160, 40, false, false, false, 0, {0}}, /* the same without the prefix cache */
    {4, 16, 9, 160, 8, true, true, true, 0, {0}},       /* some never fit, the queue overflows */
    {3, 200, 256, 33, 30, true, true, false, 0, {0}},   /* short contexts, a prompt in one step */
    {16, 64, 40, 160, 48, true, true, true, 0, {0}},    /* priorities, and short of blocks */
    {16, 40, 13, 200, 40, false, true, false, 0, {0}},  /* the longest request fills the cache */
    {8, 64, 256, 160, 48, true, false, true, 0, {1, 1, 1, 40, 0}}, /* layers that slide */
    {16, 40, 26, 160, 40, true, false, true, 0, {1, 1, 1, 16, 0}},
};

/* Arrivals, cancels, steps, deaths and restarts until so many requests were accepted. */
static void play(struct sim *m, int64_t requests)
{
    while (m->accepted < requests) {
        for (int32_t n = below(200) == 0 ? 40 : below(4) - 1; n > 0; n--)
            arrive(m);
        if (below(20) == 0)
            cancel_some(m);
        for (int32_t n = below(8); n >= 0; n--)
            advance(m);
        while (below(400) == 0 && advance(m))
            continue;
        if (below(1000) == 0)
            die(m);
        for (int32_t k = below(200) == 0 ? below(5) : -1; k >= 0; k--) {
            outlive(m);
            for (int32_t n = below(6); n > 0; n--)
                advance(m);
        }
    }
    while (advance(m))
        continue;
    assert_int_equal(m->live, 0);
    assert_int_equal(sched_stats(m->sched).blocks_used, 0);
}

struct seen {
    int64_t vectors, failed, errors, cancelled, chunks, hits, overlaps, restarts;
};

static void add_up(struct seen *sum, const struct sim *m)
{
    sum->vectors += m->ended[FINISH_STOP];
    sum->failed += m->ended[FINISH_FAILED];
    sum->errors += m->given_up;
    sum->cancelled += m->ended[FINISH_CANCELLED];
    sum->chunks += m->multi_chunk;
    sum->hits += m->hits;
    sum->overlaps += m->overlaps;
    sum->restarts += m->restarts;
    assert_int_equal(m->ended[FINISH_LENGTH], 0);
    assert_int_equal(m->scores + m->masks + m->guesses, 0);
}

static void test_simulation(void **state)
{
    (void)state;
    static const int32_t homes[] = {1, 2, 3};
    for (size_t h = 0; h < ARRAY_LEN(homes); h++) {
        struct seen sum = {0};
        for (size_t c = 0; c < ARRAY_LEN(settings); c++) {
            seed = 100 * h + c;
            struct sim *m = sim_open_pooled(&settings[c], homes[h], COLUMNS);
            play(m, 1500);
            add_up(&sum, m);
            sim_close(m);
        }
        /* and the cases that matter did occur; nobody gives way but to a lost group, since blocks
         * for all of its prompt are free when one is let in */
        assert_true(sum.vectors > 10000 && sum.failed > 400 && sum.errors > 20);
        assert_true(sum.cancelled > 300 && sum.chunks > 30000 && sum.hits > 400);
        assert_true(sum.overlaps > 30000 && sum.restarts > 300);
    }
}

/* An engine gives one of the two, and says so to who wants the other. */
static void test_refused(void **state)
{
    (void)state;
    static const struct {
        int32_t columns;
        bool pooled;
        int32_t prompt_len, max_tokens;
        const char *wanted; /* NULL: taken */
    } cases[] = {
        {0, false, 5, 1, NULL},
        {0, false, 5, 0, NULL},
        {0, true, 5, 0, "this model gives tokens, no vectors"},
        {0, true, 5, 1, "this model gives tokens, no vectors"},
        {COLUMNS, true, 5, 0, NULL},
        {COLUMNS, true, 160, 0, NULL}, /* the whole context */
        {COLUMNS, true, 161, 0, "This model's maximum context length is 160 tokens."},
        {COLUMNS, true, 0, 0, "This model's maximum context length is 160 tokens."},
        {COLUMNS, true, 5, 1, "this model gives vectors, no tokens"},
        {COLUMNS, false, 5, 1, "this model gives vectors, no tokens"},
        {COLUMNS, false, 5, 0, "this model gives vectors, no tokens"},
    };
    const int32_t prompt[LEN_MAX] = {0};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct sim *m = sim_open_pooled(&settings[0], 1, cases[i].columns);
        struct request_params p = request_params_default();
        struct sequence *s = NULL;
        struct err err = {""};
        p.pooled = cases[i].pooled;
        p.max_tokens = cases[i].max_tokens;
        enum status st = sequence_open(&m->config, &p, prompt, cases[i].prompt_len, &s, &err);
        if (st != (cases[i].wanted ? ERR_INPUT : OK) ||
            (cases[i].wanted && !strstr(err.text, cases[i].wanted)))
            fail_msg("case %zu: status %d \"%s\"", i, st, err.text);
        sequence_free(s);
        sim_close(m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_simulation),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
