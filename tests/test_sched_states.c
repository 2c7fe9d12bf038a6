/* The scheduler of models with layers that recur: runs of its simulation, in which the ranks know
 * of what text each state is. A text goes on only from a state of its own tokens, whatever was
 * kept, replaced, promised or lost meanwhile; and states are where they are of use. */
#include "tests/sched_sim.h"

static const struct setting settings[] = {
    {8, 64, 256, 160, 48, true, false, true, 0, {0}},   /* room for all */
    {8, 8, 256, 160, 48, true, false, false, 0, {0}},   /* as many rows as slots */
    {1, 1, 12, 160, 10, true, false, false, 0, {0}},    /* one of each */
    {16, 40, 24, 160, 40, true, false, true, 0, {0}},   /* short of blocks */
    {16, 40, 24, 160, 40, false, false, false, 0, {0}}, /* the same without the prefix cache */
    {3, 200, 256, 33, 30, true, true, false, 0, {0}},   /* short contexts, a prompt in one step */
    {16, 64, 40, 160, 48, true, true, true, 0, {0}},    /* priorities, and short of blocks */
    {16, 40, 13, 200, 40, true, false, true, 0, {0}},   /* the longest request fills the cache */
};

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
        for (int32_t k = below(500) == 0 ? below(5) : -1; k >= 0; k--) {
            outlive(m);
            for (int32_t n = below(6); n > 0; n--)
                advance(m);
        }
    }
    while (advance(m))
        continue;
    assert_int_equal(m->live, 0);
    assert_int_equal(sched_stats(m->sched).blocks_used, 0);
    if (sched_states(m->sched))
        assert_int_equal(states_owned(sched_states(m->sched)), 0);
}

static void test_simulation(void **state)
{
    (void)state;
    static const int32_t states[] = {0, 1, 2, 7, 64};
    for (size_t i = 0; i < ARRAY_LEN(states); i++) {
        int64_t recalls = 0, keeps = 0, hits = 0, preempted = 0;
        for (size_t c = 0; c < ARRAY_LEN(settings); c++) {
            seed = 100 * i + c;
            struct sim *m = sim_open_with(&settings[c], 1, 0, states[i]);
            play(m, 4000);
            recalls += m->recalls;
            keeps += m->keeps;
            hits += m->hits;
            preempted += m->preempted;
            sim_close(m);
        }
        assert_true(states[i] > 0 ? keeps > 1000 : keeps == 0);
        assert_true(states[i] > 0 ? recalls > 20 : recalls == 0);
        assert_int_equal(recalls, hits);
        assert_true(preempted > 100);
        print_message("%d states: %lld kept, %lld gone on from\n", states[i], (long long)keeps,
                      (long long)recalls);
    }
}

/* ---- where states are ---- */

static const struct setting large = {8, 400, 256, 200, 48, true, false, false, 0, {0}};

static struct request *new_request(struct sim *m, int32_t max_tokens)
{
    struct request *r = find(m, 0);
    *r =
        (struct request){.id = ++m->next_id, .scored = 1, .slot = -1, .home = -1, .cancel_age = -1};
    r->params = request_params_default();
    r->params.max_tokens = r->budget = max_tokens;
    r->params.ignore_eos = true;
    r->params.seed = r->id;
    return r;
}

static void submit_request(struct sim *m, struct request *r)
{
    struct sequence *s;
    struct err err;
    assert_int_equal(sequence_open(&m->config, &r->params, r->prompt, r->prompt_len, &s, &err), OK);
    s->id = r->id;
    s->user = r;
    r->sequence = s;
    sched_submit(m->sched, s);
    m->live++;
}

/* A prompt of `common` tokens that all have and others of that text. Only to one of 50 tokens comes
 * a long answer. */
static void submit(struct sim *m, int32_t common, int32_t own, int32_t text)
{
    struct request *r = new_request(m, common + own == 50 ? 70 : 1);
    r->prompt_len = common + own;
    for (int32_t i = 0; i < common + own; i++)
        r->prompt[i] = (i < common ? i : 31 * text + i) % VOCAB;
    submit_request(m, r);
}

static int32_t rows_of_next(struct sim *m)
{
    assert_true(build(m));
    commit(m);
    return m->wire->rows;
}

static void finish(struct sim *m)
{
    while (advance(m))
        continue;
}

/* A prompt again: it goes on from the tail, the last end of a block that leaves 8 tokens. */
static void test_tail(void **state)
{
    (void)state;
    struct sim *m = sim_open_with(&large, 1, 0, 8);
    submit(m, 150, 0, 1);
    assert_int_equal(rows_of_next(m), 150);
    finish(m);
    submit(m, 150, 0, 2);
    assert_int_equal(rows_of_next(m), 150 - 128);
    finish(m);
    submit(m, 128, 40, 3); /* goes on otherwise from there */
    assert_int_equal(rows_of_next(m), 40);
    finish(m);
    assert_int_equal(sched_stats(m->sched).prefix_hits, 128 + 128);
    sim_close(m);
}

/* What begins alike and goes on otherwise: the second leaves a state where it leaves the first. */
static void test_branch(void **state)
{
    (void)state;
    struct sim *m = sim_open_with(&large, 1, 0, 8);
    submit(m, 100, 50, 4);
    assert_int_equal(rows_of_next(m), 150);
    finish(m);
    submit(m, 100, 60, 5);
    assert_int_equal(rows_of_next(m), 160);
    finish(m);
    submit(m, 100, 70, 6);
    assert_int_equal(rows_of_next(m), 170 - 96);
    finish(m);
    sim_close(m);
}

/* The same, all at once: one computes, the second the branch, and for that the others wait. */
static void test_promise(void **state)
{
    (void)state;
    struct sim *m = sim_open_with(&large, 1, 0, 8);
    submit(m, 100, 50, 7);
    for (int32_t i = 0; i < 5; i++)
        submit(m, 100, 60, 10 + i);
    assert_int_equal(rows_of_next(m), 150);
    assert_int_equal(rows_of_next(m), 160);
    assert_int_equal(rows_of_next(m), 4 * 64);
    finish(m);
    sim_close(m);
}

/* Who promised one goes: the next one promises it, nobody waits for ever. */
static void test_broken_promise(void **state)
{
    (void)state;
    struct sim *m =
        sim_open_with(&(struct setting){8, 20, 256, 200, 48, true, false, false, 0, {0}}, 1, 0, 8);
    submit(m, 100, 50, 9);
    finish(m);
    submit(m, 100, 60, 10);
    submit(m, 100, 70, 11);
    assert_int_equal(rows_of_next(m), 20); /* of the first of both, the other one waits */
    sched_cancel(m->sched, m->next_id - 1);
    find(m, m->next_id - 1)->cancel_age = 0;
    assert_int_equal(rows_of_next(m), 20);
    finish(m);
    submit(m, 100, 80, 12);
    assert_int_equal(rows_of_next(m), 20);
    finish(m);
    assert_int_equal(sched_stats(m->sched).prefix_hits, 96);
    sim_close(m);
}

/* What text 0 of 50 tokens and the answer to it are the begin of, and then others, `count` in all.
 */
static void submit_next(struct sim *m, uint64_t first, int32_t count)
{
    struct request *r = new_request(m, 1);
    r->prompt_len = count;
    for (int32_t i = 0; i < count; i++)
        r->prompt[i] = i < 50 ? i : i < 120 ? token_of(first, i - 50) : 400;
    submit_request(m, r);
}

/* The next turn of a conversation: its prompt is the last one and the answer to it, up to the last
 * end of a block of which nothing is computed again. */
static void test_answer(void **state)
{
    (void)state;
    struct sim *m = sim_open_with(&large, 1, 0, 4);
    submit(m, 50, 0, 0);
    const uint64_t first = m->next_id;
    finish(m);
    submit_next(m, first, 150);
    assert_int_equal(rows_of_next(m), 150 - 112);
    finish(m);
    sim_close(m);
}

/* Who begins like a conversation that goes on: before the state of its answer moves, in the step
 * that moves it, while the one before that is in flight, and when that conversation has been left
 * meanwhile. */
static void test_moving_answer(void **state)
{
    (void)state;
    struct sim *m = sim_open_with(&large, 1, 0, 4);
    submit(m, 50, 0, 0);
    const uint64_t first = m->next_id;
    while (m->slots[0].next < 94)
        (void)rows_of_next(m);
    submit_next(m, first, 90);
    assert_true(build(m)); /* 80 of its tokens are in the cache, and the state behind them */
    assert_int_equal(m->wire->rows, 1 + 10);
    commit(m);
    finish(m);
    sim_close(m);

    for (int32_t left = 0; left < 2; left++) {
        m = sim_open_with(&large, 1, 0, 4);
        submit(m, 50, 0, 0);
        while (m->slots[0].next < 94)
            (void)rows_of_next(m);
        assert_true(build(m));
        if (left == 0)
            submit_next(m, first, 90);
        assert_true(build(m)); /* with row 95, which ends a block */
        assert_int_equal(m->wire->position[0], 95);
        assert_true(m->wire->keep[0] >= 0 && m->wire->opens == 1 - left);
        if (left == 1) {
            sched_cancel(m->sched, first);
            find(m, first)->cancel_age = 0;
            commit(m);
            submit_next(m, first, 90);
            assert_true(build(m));
            assert_int_equal(m->wire->rows, 90);
        }
        finish(m);
        sim_close(m);
    }
}

/* Two have one text, and one of them is known to be the state of that: no third fills its place in
 * the same step. */
static void test_twice(void **state)
{
    (void)state;
    static const int32_t texts[] = {0, 0, 5};
    struct sim *m =
        sim_open_with(&(struct setting){8, 60, 256, 200, 48, true, false, false, 0, {0}}, 1, 0, 2);
    for (uint64_t i = 0; i < ARRAY_LEN(texts); i++) {
        struct request *r = new_request(m, 1);
        r->params.client = i;
        r->prompt_len = 140;
        for (int32_t k = 0; k < 140; k++)
            r->prompt[k] = (k + 20 * texts[i]) % VOCAB;
        submit_request(m, r);
    }
    finish(m); /* the simulation sees to it */
    sim_close(m);
}

/* The one not used for longest goes first. */
static void test_places(void **state)
{
    (void)state;
    /* text, and how many of its 100 rows are computed: the state is of the first 80, or, where its
     * place was taken meanwhile, of the first 96, which others may have begun with, too */
    static const int32_t order[][2] = {{1, 100}, {2, 100}, {1, 20},  {3, 100},
                                       {1, 20},  {2, 100}, {3, 100}, {2, 4}};
    struct sim *m = sim_open_with(&large, 1, 0, 2);
    for (size_t i = 0; i < ARRAY_LEN(order); i++) {
        submit(m, 0, 100, order[i][0]);
        assert_int_equal(rows_of_next(m), order[i][1]);
        finish(m);
    }
    assert_int_equal(states_kept(sched_states(m->sched)), 2);
    sim_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_simulation),     cmocka_unit_test(test_tail),
        cmocka_unit_test(test_branch),         cmocka_unit_test(test_promise),
        cmocka_unit_test(test_broken_promise), cmocka_unit_test(test_answer),
        cmocka_unit_test(test_moving_answer),  cmocka_unit_test(test_twice),
        cmocka_unit_test(test_places)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
