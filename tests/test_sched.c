/* The scheduler, simulated: tens of thousands of seeded arrivals, cancels, ends of sequence and KV
 * shortages. The test keeps what a rank keeps (slots, block tables, last tokens) and what a client
 * keeps (its tokens, its one end), and compares after every step. */
#include "engine/sched.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { SLOTS_MAX = 16, BLOCKS_MAX = 256, LEN_MAX = 200, LIVE_MAX = 64, VOCAB = 500, EOS = 2 };

/* What a client knows of its request. */
struct request {
    uint64_t id; /* 0: this entry is free */
    struct request_params params;
    int32_t prompt[LEN_MAX], prompt_len, budget; /* tokens it may get */
    int32_t got, slot;                           /* slot -1: waiting */
    int32_t blocks;                              /* appended */
    int32_t cancel_age;                          /* steps built since the cancel, -1: none */
    int64_t deadline;                            /* step by which it must have been admitted */
};

/* What a rank knows of a slot. */
struct slot {
    bool open;
    uint64_t request;
    int32_t table[LEN_MAX / BACKEND_BLOCK_TOKENS + 1], blocks;
    int32_t next; /* position of the next row */
    int32_t tokens[LEN_MAX], history, known;
};

struct sim {
    struct sched_config config;
    struct sched *sched;
    struct step *step, *wire;
    char *message;
    struct token_event *events;
    int32_t *ids;
    struct request requests[LIVE_MAX];
    uint64_t order[LIVE_MAX]; /* ids that wait, first come first */
    int32_t waiting, live;
    struct slot slots[SLOTS_MAX];
    int32_t owner[BLOCKS_MAX]; /* slot that has the block in its table, -1: none */
    uint64_t next_id;
    int64_t steps;
    int64_t ended[FINISH_ERROR + 1], multi_chunk, short_of_blocks, reused_slots;
};

static uint64_t seed;

static int32_t below(int32_t n) /* splitmix64 */
{
    uint64_t z = seed += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return (int32_t)((z >> 33) % (uint64_t)n);
}

/* The model: token k of request id; about 1 in 40 ends the sequence, 1 in 2000 fails. */
static int32_t token_of(uint64_t id, int32_t k)
{
    uint64_t h = base_hash(base_hash(BASE_HASH_INIT, &id, sizeof id), &k, sizeof k);
    if (h % 2000 == 1)
        return -1;
    return h % 40 == 0 ? EOS : 3 + (int32_t)(h % (VOCAB - 3));
}

static struct request *find(struct sim *m, uint64_t id)
{
    for (int32_t i = 0; i < LIVE_MAX; i++)
        if (m->requests[i].id == id)
            return &m->requests[i];
    return NULL;
}

/* ---- the client's side ---- */

static void forget_waiting(struct sim *m, uint64_t id)
{
    int32_t i = 0;
    while (i < m->waiting && m->order[i] != id)
        i++;
    assert_true(i < m->waiting);
    memmove(&m->order[i], &m->order[i + 1], (size_t)(--m->waiting - i) * sizeof m->order[0]);
}

/* How the request must end with this token; FINISH_NONE: it goes on. */
static enum finish_reason wanted_finish(const struct request *r, int32_t token)
{
    if (token < 0)
        return FINISH_ERROR;
    if ((token == EOS || token == VOCAB - 1) && !r->params.ignore_eos)
        return FINISH_STOP;
    return r->got + 1 == r->budget ? FINISH_LENGTH : FINISH_NONE;
}

static void take_event(struct sim *m, const struct token_event *e)
{
    struct request *r = find(m, e->request);
    assert_non_null(r); /* NULL: an event after the end */
    assert_ptr_equal(e->user, r);
    if (e->finish == FINISH_CANCELLED) {
        assert_int_equal(e->token, -1);
        assert_true(r->cancel_age >= 0);
        if (r->slot < 0)
            forget_waiting(m, r->id);
    } else {
        assert_true(r->slot >= 0 && r->cancel_age < 0);
        int32_t token = token_of(r->id, r->got);
        assert_int_equal(e->token, token);
        assert_int_equal(e->finish, wanted_finish(r, token));
        r->got++;
    }
    m->ended[e->finish]++;
    if (e->finish == FINISH_NONE)
        return;
    r->id = 0;
    m->live--;
}

static void arrive(struct sim *m)
{
    struct request *r = find(m, 0);
    struct sequence *s = NULL;
    struct err err;
    if (!r)
        return;
    const int32_t len_max = m->config.max_model_len;
    *r = (struct request){.id = ++m->next_id, .slot = -1, .cancel_age = -1};
    r->prompt_len =
        below(4) == 0 ? 1 + below(len_max - 1) : 1 + below(20 < len_max ? 20 : len_max - 1);
    for (int32_t i = 0; i < r->prompt_len; i++)
        r->prompt[i] = (int32_t)((r->id * 7 + (uint64_t)i) % VOCAB);
    r->params = request_params_default();
    r->params.max_tokens = below(6) == 0 ? 1 : 1 + below(below(5) == 0 ? 2 * len_max : 30);
    r->params.ignore_eos = below(3) == 0;
    r->params.seed = r->id * 1000003;
    int32_t room = len_max - r->prompt_len;
    r->budget = r->params.max_tokens < room ? r->params.max_tokens : room;
    enum status st = sched_sequence(&m->config, &r->params, r->prompt, r->prompt_len, &s, &err);
    if (kv_blocks_for(r->prompt_len + r->budget) > m->config.limits.blocks) {
        assert_int_equal(st, ERR_INPUT);
        r->id = 0;
        return;
    }
    assert_int_equal(st, OK);
    s->id = r->id;
    s->user = r;
    bool room_to_wait = sched_waiting(m->sched) < m->config.waiting_max;
    assert_int_equal(sched_submit(m->sched, s), room_to_wait);
    if (!room_to_wait) {
        sched_sequence_free(s);
        r->id = 0;
        return;
    }
    /* Every step the oldest that runs gets a row at least, so those before this one are done after
     * as many steps as they have rows left. */
    r->deadline = m->steps + 1;
    for (int32_t i = 0; i < LIVE_MAX; i++)
        if (m->requests[i].id)
            r->deadline += m->requests[i].prompt_len + m->requests[i].budget;
    m->order[m->waiting++] = r->id;
    m->live++;
}

static void cancel_some(struct sim *m)
{
    struct request *r = &m->requests[below(LIVE_MAX)];
    sched_cancel(m->sched, m->next_id + 17); /* unknown */
    if (!r->id)
        return;
    sched_cancel(m->sched, r->id);
    if (below(2))
        sched_cancel(m->sched, r->id);
    if (r->cancel_age < 0)
        r->cancel_age = 0;
}

/* ---- the rank's side ---- */

static void apply_closes(struct sim *m, const struct step *s)
{
    for (int32_t i = 0; i < s->closes; i++) {
        struct slot *t = &m->slots[s->close[i]];
        assert_true(t->open); /* closed once */
        for (int32_t j = 0; j < t->blocks; j++)
            m->owner[t->table[j]] = -1;
        t->open = false;
        const struct request *r = find(m, t->request);
        assert_true(!r || r->slot != s->close[i]); /* only what has ended */
    }
}

static void apply_opens(struct sim *m, const struct step *s)
{
    for (int32_t i = 0; i < s->opens; i++) {
        const struct step_open *o = &s->open[i];
        struct slot *t = &m->slots[o->slot];
        assert_false(t->open); /* never reopened before it was closed */
        assert_true(m->waiting > 0);
        struct request *r = find(m, m->order[0]); /* first come, first served */
        assert_non_null(r);
        assert_true(m->steps <= r->deadline);
        assert_int_equal(o->history, r->prompt_len);
        assert_memory_equal(o->tokens, r->prompt, (size_t)o->history * sizeof *o->tokens);
        assert_true(o->params.seed == r->params.seed);
        forget_waiting(m, r->id);
        r->slot = o->slot;
        m->reused_slots += t->request != 0;
        *t = (struct slot){
            .open = true, .request = r->id, .history = o->history, .known = o->history};
        memcpy(t->tokens, o->tokens, (size_t)o->history * sizeof *o->tokens);
    }
}

static void apply_appends(struct sim *m, const struct step *s)
{
    for (int32_t i = 0; i < s->appends; i++) {
        const struct step_append *a = &s->append[i];
        struct slot *t = &m->slots[a->slot];
        assert_true(t->open);
        assert_int_equal(a->index, t->blocks);
        assert_in_range(a->block, 0, m->config.limits.blocks - 1);
        assert_int_equal(m->owner[a->block], -1); /* in no other live table */
        m->owner[a->block] = a->slot;
        t->table[t->blocks++] = a->block;
        find(m, t->request)->blocks++;
    }
}

static void apply_rows(struct sim *m, const struct step *s)
{
    int32_t sample = 0;
    assert_true(s->rows > 0 && s->rows <= m->config.limits.rows);
    for (int32_t i = 0; i < s->rows; i++) {
        struct slot *t = &m->slots[s->slot[i]];
        int32_t position = s->position[i];
        assert_true(t->open);
        assert_int_equal(position, t->next++);
        assert_true(position < t->known);
        assert_true(position / BACKEND_BLOCK_TOKENS < t->blocks);
        bool last = position == t->known - 1;
        /* what the rank sampled it is not told, and it knows only the last */
        bool from_slot = position >= t->history;
        assert_true(last || !from_slot);
        assert_int_equal(s->token[i], from_slot ? STEP_TOKEN_FROM_SLOT : t->tokens[position]);
        bool sampled = sample < s->samples && s->sample[sample] == i;
        assert_int_equal(sampled, last);
        sample += sampled;
        m->multi_chunk += position > 0 && (i == 0 || s->slot[i - 1] != s->slot[i]) && !last;
    }
    assert_int_equal(sample, s->samples); /* ascending, none else */
}

/* What is not used is not usable: with rows left everything that runs is computed up to its last
 * token, and the first that waits lacks a slot or blocks. */
static void check_work_conserved(struct sim *m, const struct step *s)
{
    int32_t open = 0;
    for (int32_t i = 0; i < m->config.limits.slots; i++) {
        const struct slot *t = &m->slots[i];
        open += t->open;
        if (s->rows < m->config.limits.rows && t->open)
            assert_int_equal(t->next, t->known);
    }
    if (s->rows == m->config.limits.rows || m->waiting == 0 || open == m->config.limits.slots)
        return;
    const struct request *r = find(m, m->order[0]);
    const struct kv_pool *kv = sched_kv(m->sched);
    assert_true(kv_blocks_for(r->prompt_len + r->budget) >
                kv_total(kv) - kv_used(kv) - kv_reserved(kv));
    m->short_of_blocks++;
}

/* Blocks in use and promised are exactly those of the requests that run. */
static void check_blocks(struct sim *m)
{
    int32_t used = 0, reserved = 0, running = 0;
    const struct kv_pool *kv = sched_kv(m->sched);
    kv_check(kv);
    for (int32_t i = 0; i < LIVE_MAX; i++) {
        const struct request *r = &m->requests[i];
        if (!r->id || r->slot < 0)
            continue;
        running++;
        used += r->blocks;
        reserved += kv_blocks_for(r->prompt_len + r->budget) - r->blocks;
    }
    assert_int_equal(kv_used(kv), used);
    assert_int_equal(kv_reserved(kv), reserved);
    assert_int_equal(sched_running(m->sched), running);
    assert_int_equal(sched_waiting(m->sched), m->waiting);
    assert_int_equal(m->live, m->waiting + running);
}

static void take_events(struct sim *m, int32_t count)
{
    assert_true(count <= sched_events_max(&m->config));
    for (int32_t i = 0; i < count; i++)
        take_event(m, &m->events[i]);
}

static void sample_all(struct sim *m, const struct step *s)
{
    for (int32_t i = 0; i < s->samples; i++) {
        struct slot *t = &m->slots[s->slot[s->sample[i]]];
        struct request *r = find(m, t->request);
        /* cancelled while in flight: the rank samples all the same */
        m->ids[i] = token_of(t->request, r ? r->got : 0);
        assert_true(t->known < LEN_MAX);
        t->tokens[t->known++] = m->ids[i];
    }
}

static bool do_step(struct sim *m)
{
    struct err err;
    int32_t count;
    bool work = sched_build(m->sched, m->step, m->events, &count);
    for (int32_t i = 0; i < LIVE_MAX; i++)
        m->requests[i].cancel_age += m->requests[i].cancel_age >= 0;
    take_events(m, count);
    for (int32_t i = 0; i < LIVE_MAX; i++) /* a cancel ends with the next step that is built */
        assert_true(!m->requests[i].id || m->requests[i].cancel_age < 0);
    if (!work) {
        assert_int_equal(m->live, 0); /* never idle with work */
        check_blocks(m);
        return false;
    }
    size_t n = step_encode(m->step, m->message);
    if (step_decode(m->wire, m->message, n, &err) != OK)
        fail_msg("%s", err.text);
    apply_closes(m, m->wire);
    apply_opens(m, m->wire);
    apply_appends(m, m->wire);
    apply_rows(m, m->wire);
    check_blocks(m);
    check_work_conserved(m, m->wire);
    while (below(8) == 0)
        cancel_some(m); /* while the step is in flight */
    sample_all(m, m->wire);
    const struct step_result result = {.count = m->step->samples, .ids = m->ids};
    sched_commit(m->sched, m->step, &result, m->events, &count);
    take_events(m, count);
    check_blocks(m);
    m->steps++;
    return true;
}

/* ---- runs ---- */

static struct sim *sim_open(const int32_t c[5])
{
    struct sim *m = calloc(1, sizeof *m);
    struct err err;
    assert_non_null(m);
    m->config = (struct sched_config){
        .limits = {.slots = c[0],
                   .rows = c[1],
                   .table_cols = kv_blocks_for(c[3]),
                   .vocab = VOCAB,
                   .blocks = c[2],
                   .history_max = c[3]},
        .waiting_max = c[4],
        .max_model_len = c[3],
        .eos = {VOCAB - 1, EOS},
        .eos_count = 2,
    };
    assert_int_equal(sched_open(&m->config, &m->sched, &err), OK);
    assert_int_equal(step_open_new(&m->config.limits, &m->step, &err), OK);
    assert_int_equal(step_open_new(&m->config.limits, &m->wire, &err), OK);
    m->message = malloc(step_bytes_max(&m->config.limits));
    m->events = calloc((size_t)sched_events_max(&m->config), sizeof *m->events);
    m->ids = calloc((size_t)c[0], sizeof *m->ids);
    for (int32_t i = 0; i < BLOCKS_MAX; i++)
        m->owner[i] = -1;
    return m;
}

static void sim_close(struct sim *m)
{
    sched_close(m->sched);
    step_free(m->step);
    step_free(m->wire);
    free(m->message);
    free(m->events);
    free(m->ids);
    free(m);
}

/* slots, rows, blocks, max_model_len, waiting_max */
static const int32_t configs[][5] = {
    {8, 64, 256, 160, 48}, /* room for all */
    {8, 8, 256, 160, 48},  /* as many rows as slots */
    {1, 1, 12, 160, 10},   /* one of each */
    {16, 40, 24, 160, 40}, /* short of blocks */
    {4, 16, 9, 160, 8},    /* some never fit, the queue overflows */
    {3, 200, 256, 33, 30}, /* short contexts, a prompt in one step */
    {16, 17, 64, 48, 48},
};

static void test_simulation(void **state)
{
    (void)state;
    int64_t arrivals = 0, ended[FINISH_ERROR + 1] = {0}, chunks = 0, shortage = 0, reused = 0;
    for (size_t c = 0; c < ARRAY_LEN(configs); c++) {
        seed = 1000 + c;
        struct sim *m = sim_open(configs[c]);
        while (m->next_id < 5000) {
            /* bursts, then quiet until nothing is left now and then */
            for (int32_t n = below(200) == 0 ? 40 : below(4) - 1; n > 0; n--)
                arrive(m);
            if (below(10) == 0)
                cancel_some(m);
            do_step(m);
            while (below(400) == 0 && do_step(m))
                continue;
        }
        while (do_step(m))
            continue;
        assert_int_equal(m->waiting + m->live, 0);
        assert_int_equal(kv_used(sched_kv(m->sched)) + kv_reserved(sched_kv(m->sched)), 0);
        arrivals += (int64_t)m->next_id;
        for (int32_t i = 0; i <= FINISH_ERROR; i++)
            ended[i] += m->ended[i];
        chunks += m->multi_chunk;
        shortage += m->short_of_blocks;
        reused += m->reused_slots;
        sim_close(m);
    }
    assert_true(arrivals > 30000); /* and the cases that matter did occur */
    for (int32_t i = 0; i <= FINISH_ERROR; i++)
        assert_true(ended[i] > 50);
    assert_true(chunks > 1000 && shortage > 1000 && reused > 10000);
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
    if (sched_sequence(&m->config, &r->params, r->prompt, r->prompt_len, &s, &err) != OK)
        fail_msg("%s", err.text);
    s->id = id;
    s->user = r;
    assert_true(sched_submit(m->sched, s));
}

/* Scored rows are given the tokens they must score; what is drawn is 100, 101, ... */
static void check_scored_step(struct sim *m, const struct scored *all, float *logprob,
                              struct token_top *best)
{
    const struct step *s = m->step;
    for (int32_t i = 0; i < s->samples; i++) {
        const int32_t row = s->sample[i], position = s->position[row];
        if (s->target[i] >= 0) { /* prompts tell themselves apart by their tokens */
            const struct scored *r = &all[((s->token[row] - position) / 10 - 1) / 4];
            assert_int_equal(s->target[i], r->prompt[position + 1]);
            assert_int_equal(s->top[i], r->params.prompt_logprobs);
        }
        m->ids[i] = s->target[i] >= 0 ? s->target[i] : 100 + position;
        logprob[i] = -(float)(m->ids[i] + 1);
        best[i * 3] = (struct token_top){m->ids[i], 0};
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
    static const int32_t config[] = {4, 16, 64, 160, 16};
    static const int32_t stop[] = {7, 136};
    struct sim *m = sim_open(config);
    struct scored all[6];
    float logprob[4];
    struct token_top best[12];
    int32_t count, most = 0, steps = 0;
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
    while (sched_build(m->sched, m->step, m->events, &count)) {
        assert_int_equal(count, 0);
        assert_true(m->step->samples <= 4);
        assert_true(m->step->rows > 0 && ++steps < 100);
        most = m->step->samples > most ? m->step->samples : most;
        check_scored_step(m, all, logprob, best);
        const struct step_result result = {m->step->samples, m->ids, logprob, best, 3};
        sched_commit(m->sched, m->step, &result, m->events, &count);
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
    assert_int_equal(kv_used(sched_kv(m->sched)) + kv_reserved(sched_kv(m->sched)), 0);
    sim_close(m);
}

/* A lost group or a stop: whatever the state, everything ends once and nothing is kept. */
static void test_end_all(void **state)
{
    (void)state;
    for (int32_t round = 0; round < 300; round++) {
        seed = (uint64_t)round;
        struct sim *m = sim_open(configs[round % (int32_t)ARRAY_LEN(configs)]);
        int32_t count, ends = 0;
        for (int32_t i = below(30); i >= 0; i--) {
            arrive(m);
            if (below(2))
                do_step(m);
        }
        if (round % 2) /* with a step in flight */
            ends += sched_build(m->sched, m->step, m->events, &count) ? count : 0;
        int32_t live = m->live;
        sched_end_all(m->sched, FINISH_ERROR, m->events, &count);
        for (int32_t i = 0; i < count; i++) {
            struct request *r = find(m, m->events[i].request);
            assert_non_null(r);
            assert_int_equal(m->events[i].finish, FINISH_ERROR);
            assert_int_equal(m->events[i].token, -1);
            r->id = 0;
        }
        assert_int_equal(count + ends, live);
        kv_check(sched_kv(m->sched));
        assert_int_equal(kv_used(sched_kv(m->sched)) + kv_reserved(sched_kv(m->sched)), 0);
        assert_int_equal(sched_running(m->sched) + sched_waiting(m->sched), 0);
        sched_end_all(m->sched, FINISH_ERROR, m->events, &count);
        assert_int_equal(count, 0);
        sim_close(m);
    }
}

/* Freed by sched_close, for the leak sanitizer. */
static void test_close_with_work(void **state)
{
    (void)state;
    struct sim *m = sim_open(configs[4]);
    seed = 5;
    for (int32_t i = 0; i < 12; i++)
        arrive(m);
    do_step(m);
    assert_true(sched_running(m->sched) > 0 && sched_waiting(m->sched) > 0);
    sim_close(m);
    sched_close(NULL);
    sched_sequence_free(NULL);
}

static void test_refused_sequences(void **state)
{
    (void)state;
    struct sim *m = sim_open(configs[4]); /* 9 blocks of 16, contexts of 160 */
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
        enum status st = sched_sequence(&m->config, &p, prompt, cases[i].prompt_len, &s, &err);
        if (st != (cases[i].wanted ? ERR_INPUT : OK))
            fail_msg("case %zu: status %d %s", i, st, err.text);
        if (cases[i].wanted && !strstr(err.text, cases[i].wanted))
            fail_msg("case %zu: \"%s\"", i, err.text);
        sched_sequence_free(s);
    }
    sim_close(m);
}

/* Every field of a request that a rank would refuse is refused before, by name. */
static void test_refused_rules(void **state)
{
    (void)state;
    static const struct token_bias outside[] = {{VOCAB, 1}}, loud[] = {{1, 101}},
                                   fine[] = {{1, 100}};
    static const int32_t ids[] = {1, VOCAB, 2}, ends[] = {1, 1}, far[] = {ENGINE_BAD_IDS_MAX + 1};
    struct sim *m = sim_open(configs[4]);
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
        enum status st = sched_sequence(&m->config, &cases[i], ids, 1, &s, &err);
        if (st != (wanted[i] ? ERR_INPUT : OK) || (wanted[i] && !strstr(err.text, wanted[i])))
            fail_msg("case %zu: status %d \"%s\"", i, st, err.text);
        sched_sequence_free(s);
    }
    sim_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_simulation),        cmocka_unit_test(test_scoring),
        cmocka_unit_test(test_end_all),           cmocka_unit_test(test_close_with_work),
        cmocka_unit_test(test_refused_sequences), cmocka_unit_test(test_refused_rules),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
