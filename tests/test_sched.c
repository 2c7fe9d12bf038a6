/* The scheduler: runs of its simulation, then particular cases. */
#include "tests/sched_sim.h"

#include <math.h>

static const struct setting settings[] = {
    {8, 64, 256, 160, 48, true, false, true, 7, {0}},   /* room for all */
    {8, 8, 256, 160, 48, true, false, false, 0, {0}},   /* as many rows as slots */
    {1, 1, 12, 160, 10, true, false, false, 3, {0}},    /* one of each */
    {16, 40, 24, 160, 40, true, false, true, 5, {0}},   /* short of blocks */
    {16, 40, 24, 160, 40, false, false, false, 0, {0}}, /* the same without the prefix cache */
    {4, 16, 9, 160, 8, true, true, true, 2, {0}},       /* some never fit, the queue overflows */
    {3, 200, 256, 33, 30, true, true, false, 7, {0}},   /* short contexts, a prompt in one step */
    {16, 17, 64, 48, 48, false, true, false, 4, {0}},   /* hardly more rows than slots */
    {16, 64, 40, 160, 48, true, true, true, 3, {0}},    /* priorities, and short of blocks */
    {16, 40, 13, 200, 40, true, false, true, 7, {0}},   /* the longest request fills the cache */
    {16, 40, 13, 200, 40, false, true, false, 1, {0}},  /* likewise */
    /* layers that slide: beside others, alone, in several groups, and short of blocks */
    {8, 64, 256, 160, 48, true, false, true, 7, {1, 1, 1, 40, 0}},
    {16, 40, 26, 160, 40, true, false, true, 5, {1, 1, 1, 16, 0}},
    {16, 40, 24, 160, 40, false, true, false, 3, {1, 2, 1, 20, 0}},
    {16, 17, 14, 200, 40, true, false, false, 7, {0, 1, 1, 33, 0}},
    {16, 64, 60, 200, 48, true, true, true, 3, {2, 3, 1, 24, 0}},
    {13, 13, 96, 193, 40, true, false, false, 6, {2, 2, 1, 25, 0}},
};

static const int32_t homes[] = {1, 2, 3, 4, 8};

/* Arrivals, cancels, steps, deaths and restarts until so many requests were accepted. */
static void play(struct sim *m, int64_t requests)
{
    while (m->accepted < requests) {
        /* bursts, then quiet until nothing is left now and then */
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
}

static void add_up(struct sim *sum, const struct sim *m)
{
    sum->accepted += m->accepted;
    for (int32_t i = 0; i <= FINISH_ERROR; i++)
        sum->ended[i] += m->ended[i];
    sum->multi_chunk += m->multi_chunk;
    sum->reused_slots += m->reused_slots;
    sum->preempted += m->preempted;
    sum->hits += m->hits;
    sum->overlaps += m->overlaps;
    sum->deaths += m->deaths;
    sum->restarts += m->restarts;
    sum->given_up += m->given_up;
    sum->scores += m->scores;
    sum->limited += m->limited;
    sum->filled += m->filled;
    sum->moved += m->moved;
    sum->balanced += m->balanced;
    sum->masks += m->masks;
    sum->guesses += m->guesses;
    sum->right += m->right;
    sum->guided_guesses += m->guided_guesses;
}

/* All settings, as many requests in each. */
static void simulate(int32_t home_count, int64_t requests, struct sim *sum)
{
    for (size_t c = 0; c < ARRAY_LEN(settings); c++) {
        seed = 100 + c;
        struct sim *m = sim_open(&settings[c], home_count);
        play(m, requests);
        assert_int_equal(m->live, 0);
        assert_int_equal(sched_stats(m->sched).blocks_used, 0);
        assert_int_equal(sched_stats(m->sched).guesses, m->guesses);
        /* Of those live at once, each can be ahead of a request once, with all its rows, and one
         * row a step is made at least; those that give way are computed twice. */
        if (!settings[c].priorities)
            assert_true(m->longest < 2 * LIVE_MAX * LEN_MAX);
        add_up(sum, m);
        sim_close(m);
    }
}

static void test_simulation(void **state)
{
    (void)state;
    struct sim sum = {0};
    simulate(1, 3000, &sum);
    assert_true(sum.accepted >= 30000);        /* and the cases that matter did occur */
    for (int32_t i = 0; i < FINISH_ERROR; i++) /* which ends those of sum.deaths */
        assert_true(sum.ended[i] > 50);
    assert_true(sum.multi_chunk > 1000 && sum.reused_slots > 10000 && sum.preempted > 300);
    assert_true(sum.hits > 800 && sum.overlaps > 100000 && sum.deaths > 50);
    assert_true(sum.restarts > 150 && sum.given_up > 5 && sum.masks > 1000);
    assert_true(sum.scores > 10000 && sum.limited > 1000);
    assert_true(sum.right > 1000 && sum.guesses > sum.right + 1000 && sum.guided_guesses > 50);
}

static void test_simulation_of_homes(void **state)
{
    (void)state;
    for (size_t i = 1; i < ARRAY_LEN(homes); i++) {
        struct sim sum = {0};
        simulate(homes[i], 600, &sum);
        assert_true(sum.accepted >= 6000 && sum.overlaps > 20000 && sum.restarts > 80);
        assert_true(sum.preempted > 80 && sum.hits > 50);
        assert_true(sum.filled > 5000 && sum.moved > 100 && sum.balanced > 500);
        assert_true(sum.right > 300 && sum.guesses > sum.right + 100);
    }
}

/* ---- scoring, stop ids, prompts only ---- */

/* What one client of test_scoring asks and got. */
struct scored {
    struct request_params params;
    int32_t prompt[40], prompt_len;
    int32_t prompts, produced, ends; /* events */
    enum finish_reason finish;
};

static void submit_scored(struct sim *m, struct scored *r, uint64_t id)
{
    struct sequence *s = NULL;
    struct err err = {""};
    for (int32_t i = 0; i < r->prompt_len; i++)
        r->prompt[i] = 10 * (int32_t)id + i;
    if (sequence_open(&m->config, &r->params, r->prompt, r->prompt_len, &s, &err) != OK)
        fail_msg("%s", err.text);
    s->id = id;
    s->user = r;
    sched_submit(m->sched, s);
}

/* Scored rows are given the tokens they must score; what is drawn is 100, 101, ... */
static void check_scored_step(const struct step *s, int32_t *ids, const struct scored *all,
                              float *logprob, struct token_top *best)
{
    for (int32_t i = 0; i < s->samples; i++) {
        const int32_t row = s->sample[i], position = s->position[row];
        if (s->target[i] >= 0) { /* prompts tell themselves apart by their tokens */
            const struct scored *r = &all[((s->token[row] - position) / 10 - 1) / 4];
            assert_int_equal(s->target[i], r->prompt[position + 1]);
            assert_int_equal(s->top[i], r->params.prompt_logprobs);
        }
        ids[i] = s->target[i] >= 0 ? s->target[i] : 100 + position;
        logprob[i] = -(float)(ids[i] + 1);
        best[i * 3] = (struct token_top){ids[i], 0};
    }
}

static void take_scored(const struct token_event *e)
{
    struct scored *r = e->user;
    int32_t wanted = e->prompt ? r->params.prompt_logprobs : r->params.logprobs;
    wanted = e->token < 0 ? -1 : wanted;
    assert_int_equal(r->ends, 0);
    if (e->prompt) { /* in order, all before the first produced */
        assert_int_equal(r->produced, 0);
        assert_int_equal(e->token, r->prompt[++r->prompts]);
        assert_int_equal(e->finish, FINISH_NONE);
    }
    assert_int_equal(e->top_count, wanted > 0 ? wanted : 0);
    if (wanted >= 0)
        assert_true(e->logprob == -(float)(e->token + 1));
    if (wanted > 0)
        assert_int_equal(e->top[0].token, e->token);
    r->produced += !e->prompt && e->token >= 0;
    r->ends += e->finish != FINISH_NONE;
    r->finish = e->finish;
}

static void test_scoring(void **state)
{
    (void)state;
    static const int32_t stop[] = {7, 136};
    struct sim *m = sim_open(&(struct setting){4, 16, 64, 160, 16, false, false, false, 0, {0}}, 1);
    struct scored all[6];
    float logprob[4];
    struct token_top best[12];
    struct step *const step = m->steps_built[0];
    int32_t ids[4], count, most = 0, steps = 0;
    /* prompt, max_tokens, logprobs, prompt_logprobs */
    static const int32_t asked[6][4] = {{3, 20, -1, -1}, {30, 3, 2, 3}, {5, 0, -1, -1},
                                        {9, 0, -1, 0},   {1, 0, 1, 1},  {35, 9, 0, -1}};
    memset(all, 0, sizeof all);
    for (int32_t i = 0; i < 6; i++) {
        all[i].params = request_params_default();
        all[i].params.max_tokens = asked[i][1];
        all[i].params.logprobs = asked[i][2];
        all[i].params.prompt_logprobs = asked[i][3];
        all[i].prompt_len = asked[i][0];
        all[i].params.stop_ids = stop;
        all[i].params.stop_id_count = i == 5 ? 2 : 0;
        submit_scored(m, &all[i], (uint64_t)(4 * i + 1)); /* prompts of at most 40 apart */
    }
    while (sched_build(m->sched, step, m->events, &count)) {
        assert_int_equal(count, 0);
        assert_true(step->samples <= 4);
        assert_true(step->rows > 0 && ++steps < 100);
        most = step->samples > most ? step->samples : most;
        check_scored_step(step, ids, all, logprob, best);
        const struct step_result result = {step->samples, ids, logprob, best, 3, NULL, 0};
        sched_commit(m->sched, step, &result, m->events, &count);
        assert_true(count <= sched_events_max(&m->config));
        for (int32_t i = 0; i < count; i++)
            take_scored(&m->events[i]);
    }
    assert_int_equal(most, 4); /* every place was used */
    for (int32_t i = 0; i < 6; i++) {
        assert_int_equal(all[i].ends, 1);
        assert_int_equal(all[i].prompts, asked[i][3] >= 0 ? asked[i][0] - 1 : 0);
        assert_int_equal(all[i].produced, i == 5 ? 3 : asked[i][1]); /* 134, 135, 136: stop */
        assert_int_equal(all[i].finish, i == 5 ? FINISH_STOP : FINISH_LENGTH);
    }
    assert_int_equal(sched_stats(m->sched).blocks_used, 0);
    sim_close(m);
}

/* A lost group or a stop: whatever the state, everything ends once and nothing is kept. */
static void test_end_all(void **state)
{
    (void)state;
    for (int32_t round = 0; round < 300; round++) {
        seed = (uint64_t)round;
        struct sim *m = sim_open(&settings[round % (int32_t)ARRAY_LEN(settings)], homes[round % 5]);
        for (int32_t i = below(30); i >= 0; i--) {
            arrive(m);
            if (below(2))
                advance(m);
        }
        die(m);
        sim_close(m);
    }
}

/* Freed by sched_close, for the leak sanitizer. */
static void test_close_with_work(void **state)
{
    (void)state;
    struct sim *m = sim_open(&settings[5], 1);
    seed = 5;
    for (int32_t i = 0; i < 12; i++)
        arrive(m);
    build(m);
    assert_true(sched_stats(m->sched).running > 0 && sched_stats(m->sched).waiting > 0);
    sim_close(m);
    sched_close(NULL);
    sequence_free(NULL);
}

/* ---- particular cases ---- */

static void submit(struct sim *m, int32_t prompt_len, int32_t max_tokens, uint64_t client,
                   int32_t first_token)
{
    struct request *r = find(m, 0);
    struct sequence *s;
    struct err err;
    *r =
        (struct request){.id = ++m->next_id, .scored = 1, .slot = -1, .home = -1, .cancel_age = -1};
    r->params = request_params_default();
    r->params.max_tokens = r->budget = max_tokens;
    r->params.ignore_eos = true;
    r->params.client = client;
    r->params.seed = r->id;
    r->prompt_len = prompt_len;
    for (int32_t i = 0; i < prompt_len; i++)
        r->prompt[i] = (first_token + i) % VOCAB;
    assert_int_equal(sequence_open(&m->config, &r->params, r->prompt, prompt_len, &s, &err), OK);
    s->id = r->id;
    s->user = r;
    r->sequence = s;
    sched_submit(m->sched, s);
    m->live++;
}

/* Four equal prompts at once: the first is computed, the others share its six full blocks with the
 * next step and compute only the rest. */
static void test_equal_prompts(void **state)
{
    (void)state;
    struct sim *m =
        sim_open(&(struct setting){8, 150, 256, 160, 48, true, false, false, 0, {0}}, 1);
    for (int32_t i = 0; i < 4; i++)
        submit(m, 100, 4, 0, 3);
    assert_true(build(m));
    assert_int_equal(m->wire->rows, 100);
    assert_true(build(m)); /* while the first is in flight */
    assert_int_equal(m->wire->rows, 1 + 3 * (100 - 96));
    assert_int_equal(m->wire->samples, 4);
    commit(m);
    commit(m);
    assert_int_equal(sched_stats(m->sched).prefix_queries, 400);
    assert_int_equal(sched_stats(m->sched).prefix_hits, 3 * 96);
    assert_int_equal(kv_used(sched_kv(m->sched, 0)), 7 + 3);
    while (advance(m))
        continue;
    /* all is kept: six shared blocks; of the last, not full, nothing */
    assert_int_equal(kv_kept(sched_kv(m->sched, 0)), 6);
    submit(m, 96, 1, 0, 3); /* one token at least is computed */
    assert_true(build(m));
    assert_int_equal(m->wire->rows, 16);
    sim_close(m);
}

/* Fifty requests of one client, then one of another: it is the next to be admitted. */
static void test_clients_take_turns(void **state)
{
    (void)state;
    struct sim *m =
        sim_open(&(struct setting){2, 16, 256, 160, 200, false, false, false, 0, {0}}, 1);
    for (int32_t i = 0; i < 50; i++)
        submit(m, 16, 3, 1, i);
    for (int32_t i = 0; i < 3; i++) {
        assert_true(build(m));
        commit(m);
    }
    submit(m, 16, 3, 2, 99);
    submit(m, 16, 3, 2, 98);
    uint64_t first = m->next_id - 1, order[4];
    for (int32_t n = 0; n < 4;) {
        assert_true(build(m));
        for (int32_t i = 0; i < m->wire->opens; i++)
            order[n++] = m->wire->open[i].params.seed;
        commit(m);
    }
    assert_true((order[0] == first) + (order[1] == first) == 1);
    assert_true((order[2] == first + 1) + (order[3] == first + 1) == 1);
    sim_close(m);
}

/* A long prompt of one client shares the row budget by turns with a short one of another. */
static void test_long_prompt_shares_rows(void **state)
{
    (void)state;
    struct sim *m =
        sim_open(&(struct setting){4, 16, 256, 160, 20, false, false, false, 0, {0}}, 1);
    submit(m, 150, 1, 1, 3);
    assert_true(build(m));
    submit(m, 16, 1, 2, 7);
    commit(m);
    assert_true(build(m));
    commit(m);
    assert_true(build(m)); /* at the end of the ring it came, and there is one before it */
    assert_int_equal(m->wire->opens, 1);
    assert_int_equal(m->wire->samples, 1);
    sim_close(m);
}

/* A long prompt among streams: as many rows as their step has time for, and all of them once it is
 * alone. */
static void test_prompt_leaves_time(void **state)
{
    (void)state;
    struct sim *m =
        sim_open(&(struct setting){4, 100, 256, 160, 20, false, false, true, 0, {0}}, 1);
    int32_t left = 150;
    for (int32_t i = 0; i < 3; i++)
        submit(m, 1, 8, 1, i);
    assert_true(build(m));
    submit(m, 150, 1, 1, 3);
    for (int32_t i = 1; i < 8; i++) {
        assert_true(build(m));
        commit(m);
        /* 2 * (8 + 3 + 3 * i / 64) seconds, of which the three take half */
        assert_in_range(m->wire->rows, 3 + 5, 3 + 11);
        left -= m->wire->rows - 3;
    }
    assert_true(build(m));
    assert_int_equal(m->wire->rows, left);
    sim_close(m);
}

/* Guesses where a row more costs nothing, or little, and none where it costs as much as a step.
 * Each that is right saves a step. */
static void test_guesses_pay(void **state)
{
    (void)state;
    static const struct costs costs[] = {{0},
                                         {.count = 2, .rows = {1, 2}, .seconds = {1, 1}},
                                         {.count = 2, .rows = {1, 2}, .seconds = {1, 1.3}},
                                         {.count = 2, .rows = {1, 2}, .seconds = {1, 2}}};
    for (size_t i = 0; i < 2 * ARRAY_LEN(costs); i++) {
        const int32_t slots = i % 2 ? 1 : 4, requests = i % 2 ? 3 : 1; /* of which two wait */
        struct sim *m =
            sim_open(&(struct setting){slots, 16, 64, 160, 16, false, false, false, 3, {0}}, 1);
        sched_set_costs(m->sched, &costs[i / 2]);
        for (int32_t k = 0; k < requests; k++)
            submit(m, 1, 60, 0, 7); /* the first request repeats itself */
        while (build(m) || m->built > m->answered)
            commit(m);
        assert_int_equal(m->ended[FINISH_LENGTH], requests);
        assert_int_equal(m->steps + m->right, 60 * requests);
        assert_true(i / 2 == 3 ? m->guesses == 0 : m->right > 20);
        sim_close(m);
    }
}

/* ---- homes ---- */

/* A lone prompt has the rows of its home; the rest of the step is for those behind it, of the same
 * client too. */
static void test_prompts_fill_homes(void **state)
{
    (void)state;
    struct sim *m =
        sim_open(&(struct setting){8, 16, 256, 160, 20, false, false, false, 0, {0}}, 4);
    submit(m, 40, 1, 1, 3);
    assert_true(build(m));
    assert_int_equal(m->wire->rows, 4);
    for (int32_t i = 0; i < 5; i++)
        submit(m, 40, 1, 1, i);
    for (int32_t n = 0; n < 8; n++) { /* 36 rows are left in home 0, 40 in the others */
        commit(m);
        assert_true(build(m));
        assert_int_equal(m->wire->opens, n == 0 ? 3 : 0);
        for (int32_t h = 0; h < 4; h++)
            assert_int_equal(m->home_rows[h], 4);
    }
    while (advance(m))
        continue;
    assert_int_equal(m->live, 0);
    sim_close(m);
}

/* Prompts in two homes beside a stream in one: each takes what time its home has, for a step takes
 * as long as the fullest. */
static void test_prompts_take_time_of_homes(void **state)
{
    (void)state;
    struct sim *m =
        sim_open(&(struct setting){4, 100, 256, 160, 20, false, false, true, 0, {0}}, 2);
    submit(m, 1, 8, 1, 0);
    assert_true(build(m));
    submit(m, 150, 1, 2, 3);
    submit(m, 150, 1, 3, 4);
    assert_true(build(m));
    /* 3 * (8 + 1 + 1 / 64) seconds: n rows of a prompt alone take 8 + n + (n * (n - 1) / 2) / 64,
     * beside the stream (1 + 1 / 64) more; 17 would be too many here and there */
    assert_int_equal(m->home_rows[0], 1 + 16);
    assert_int_equal(m->home_rows[1], 16);
    sim_close(m);
}

/* Home of the only request that the next step takes in, and how much it finds there. */
static int32_t home_of_next(struct sim *m, int32_t *cached)
{
    assert_true(build(m));
    commit(m);
    assert_int_equal(m->wire->opens, 1);
    const struct request *r = find(m, m->next_id);
    *cached = r ? r->cached : -1;
    return m->wire->open[0].home;
}

/* A prefix is worth the blocks it saves: as long as its home is not fuller by more than that. */
static void test_prefix_draws_to_its_home(void **state)
{
    (void)state;
    struct sim *m = sim_open(&(struct setting){8, 320, 80, 160, 20, true, false, false, 0, {0}}, 2);
    int32_t cached;
    submit(m, 100, 1, 1, 3); /* six full blocks, which stay in home 0 */
    while (advance(m))
        continue;
    submit(m, 1, 100, 1, 400); /* nothing runs: the first home; one block */
    assert_int_equal(home_of_next(m, &cached), 0);
    submit(m, 100, 50, 1, 3); /* six saved, against one there and one for it to grow */
    assert_int_equal(home_of_next(m, &cached), 0);
    assert_int_equal(cached, 96);
    submit(m, 100, 50, 1, 3); /* six saved, against 1 + 7 and one each to grow */
    assert_int_equal(home_of_next(m, &cached), 1);
    assert_int_equal(cached, 0);
    submit(m, 100, 50, 1, 3); /* in both now, and home 1 has a sequence less */
    assert_int_equal(home_of_next(m, &cached), 1);
    assert_int_equal(cached, 96);
    sim_close(m);
}

/* Small requests keep coming and would fit; one that needs a home for itself waits only until those
 * that run in one of them have ended. */
static void test_large_request_gets_a_home(void **state)
{
    (void)state;
    struct sim *m = sim_open(&(struct setting){8, 64, 20, 160, 40, false, false, false, 0, {0}}, 2);
    int32_t steps = 0;
    for (int32_t i = 0; i < 8; i++)
        submit(m, 17, 15, 1, i);
    assert_true(build(m));
    commit(m);
    submit(m, 150, 2, 2, 9);
    const struct request *large = find(m, m->next_id);
    for (; !large->admitted; steps++) {
        if (m->live < 12)
            submit(m, 17, 15, 1, steps);
        assert_true(build(m));
        commit(m);
        assert_true(steps < 20); /* a prompt and 15 tokens take 16 */
    }
    assert_true(steps > 5);
    while (advance(m))
        continue;
    sim_close(m);
}

static void test_refused_sequences(void **state)
{
    (void)state;
    struct sim *m = sim_open(&settings[5], 1); /* 9 blocks of 16, contexts of 160 */
    int32_t prompt[LEN_MAX] = {0};
    const struct {
        int32_t prompt_len, max_tokens, token;
        const char *wanted; /* NULL: taken */
    } cases[] = {
        {0, 1, 0, "This model's maximum context length is 160 tokens."},
        {160, 1, 0, "This model's maximum context length is 160 tokens."},
        {-1, 1, 0, "This model's maximum context length is 160 tokens."},
        {159, 1, 0, "needs 10 KV blocks, the cache has 9"},
        {144, 1, 0, "needs 10 KV blocks, the cache has 9"},
        {143, 1, 0, NULL},
        {1, 1000000, 0, "needs 10 KV blocks"}, /* cut to the context */
        {100, INT32_MAX, 0, "needs 10 KV blocks"},
        {5, 0, 0, NULL},
        {160, 0, 0, "needs 10 KV blocks"}, /* no more than computed */
        {161, 0, 0, "This model's maximum context length is 160 tokens."},
        {5, -3, 0, "max_tokens"},
        {5, 1, -1, "token id -1"},
        {5, 1, VOCAB, "token id 500"},
        {5, 1, VOCAB - 1, NULL},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct request_params p = request_params_default();
        p.max_tokens = cases[i].max_tokens;
        struct sequence *s = NULL;
        struct err err = {""};
        prompt[4] = cases[i].token;
        enum status st = sequence_open(&m->config, &p, prompt, cases[i].prompt_len, &s, &err);
        if (st != (cases[i].wanted ? ERR_INPUT : OK))
            fail_msg("case %zu: status %d %s", i, st, err.text);
        if (cases[i].wanted && !strstr(err.text, cases[i].wanted))
            fail_msg("case %zu: \"%s\"", i, err.text);
        sequence_free(s);
    }
    sim_close(m);
}

/* Every request fits the home it gets, wherever that is. */
static void test_refused_by_homes(void **state)
{
    (void)state;
    struct sim *m = sim_open(&(struct setting){4, 16, 18, 160, 8, false, false, false, 0, {0}}, 2);
    const int32_t prompt[LEN_MAX] = {0};
    struct sequence *s = NULL;
    struct err err = {""};
    struct request_params p = request_params_default();
    m->config.limits.blocks = 9;
    p.max_tokens = 1;
    assert_int_equal(sequence_open(&m->config, &p, prompt, 144, &s, &err), ERR_INPUT);
    assert_string_equal(err.text, "the request needs 10 KV blocks, a home of the cache has 9");
    assert_int_equal(sequence_open(&m->config, &p, prompt, 143, &s, &err), OK);
    sequence_free(s);
    sim_close(m);
}

/* Every field of a request that a rank would refuse is refused before, by name. */
static void test_refused_rules(void **state)
{
    (void)state;
    static const struct token_bias outside[] = {{VOCAB, 1}}, loud[] = {{1, 101}},
                                   fine[] = {{1, 100}};
    static const int32_t ids[] = {1, VOCAB, 2}, ends[] = {1, 1}, far[] = {ENGINE_BAD_IDS_MAX + 1};
    struct sim *m = sim_open(&settings[5], 1);
    const struct request_params p = request_params_default();
    struct request_params cases[16];
    const char *const wanted[16] = {
        "logit_bias",     "logit_bias",      "logit_bias",       "stop_token_ids",
        "stop_token_ids", "bad_words",       "bad_words",        "bad_words",
        "logprobs",       "prompt_logprobs", "min_tokens",       "repetition_penalty",
        "temperature",    "top_p",           "presence_penalty", NULL};
    for (size_t i = 0; i < 16; i++)
        cases[i] = p;
    cases[0].bias = outside, cases[0].bias_count = 1;
    cases[1].bias = loud, cases[1].bias_count = 1;
    cases[2].bias = fine, cases[2].bias_count = ENGINE_BIAS_MAX + 1;
    cases[3].stop_ids = ids, cases[3].stop_id_count = 2;
    cases[4].stop_ids = ids, cases[4].stop_id_count = ENGINE_STOP_IDS_MAX + 1;
    cases[5].bad_ids = ids, cases[5].bad_ends = ends, cases[5].bad_count = 2;
    cases[6].bad_ids = ids, cases[6].bad_ends = far, cases[6].bad_count = 1;
    cases[7].bad_ids = ids + 1, cases[7].bad_ends = ends, cases[7].bad_count = 1;
    cases[8].logprobs = ENGINE_LOGPROBS_MAX + 1;
    cases[9].prompt_logprobs = -2;
    cases[10].min_tokens = -1;
    cases[11].repetition_penalty = 0;
    cases[12].temperature = NAN;
    cases[13].top_p = 1.5f;
    cases[14].presence_penalty = INFINITY;
    cases[15].bias = fine, cases[15].bias_count = 1;
    for (size_t i = 0; i < 16; i++) {
        struct sequence *s = NULL;
        struct err err = {""};
        enum status st = sequence_open(&m->config, &cases[i], ids, 1, &s, &err);
        if (st != (wanted[i] ? ERR_INPUT : OK) || (wanted[i] && !strstr(err.text, wanted[i])))
            fail_msg("case %zu: status %d \"%s\"", i, st, err.text);
        sequence_free(s);
    }
    sim_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_simulation),
        cmocka_unit_test(test_simulation_of_homes),
        cmocka_unit_test(test_end_all),
        cmocka_unit_test(test_close_with_work),
        cmocka_unit_test(test_equal_prompts),
        cmocka_unit_test(test_clients_take_turns),
        cmocka_unit_test(test_long_prompt_shares_rows),
        cmocka_unit_test(test_prompt_leaves_time),
        cmocka_unit_test(test_guesses_pay),
        cmocka_unit_test(test_prompts_fill_homes),
        cmocka_unit_test(test_prompts_take_time_of_homes),
        cmocka_unit_test(test_prefix_draws_to_its_home),
        cmocka_unit_test(test_large_request_gets_a_home),
        cmocka_unit_test(test_refused_sequences),
        cmocka_unit_test(test_refused_by_homes),
        cmocka_unit_test(test_refused_rules),
        cmocka_unit_test(test_scoring),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
