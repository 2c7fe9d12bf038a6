/* The engine over real ranks: the threads of a cluster read steps from socketpair links, run them
 * and answer, as the processes of a group do. What a client gets must not depend on the crowd, and
 * every request ends exactly once whatever happens to the group. */
#include "engine/engine_thread.h"
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function" /* the cluster's own way to run steps */
#include "tests/cluster.h"
#pragma GCC diagnostic pop
#include "weights/safetensors.h"

#include <poll.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cmocka.h>

enum {
    RANKS = 2,
    SLOTS = 12,
    ROWS = 64,
    WAITING = 40,
    REQUESTS = SLOTS + WAITING, /* at most, at a time */
    QUEUED_TOKENS = 1100,
    CLIENTS = 56,
    TOKENS_MAX = 128,
    VOCAB = 259
};

static struct cluster *cluster; /* opened once; every test has its own links, engine, threads */
static int32_t *prompt0, *prompt1, *greedy0, *greedy1;
enum { PROMPT0 = 37, PROMPT1 = 5 };

/* ---- a rank as a thread ---- */

enum fault { HEALTHY, WRONG_HASH, WRONG_SEQ, WRONG_RANK, FAILS, CLOSES, SHORT, SILENT };

struct group;
struct worker {
    struct group *g;
    int32_t rank;
    int fd;
    enum fault fault;
    uint64_t fault_seq; /* the step whose answer is wrong */
    pthread_t thread;
};

struct client {
    uint64_t id;
    int32_t tokens[TOKENS_MAX], count;
    uint64_t scores; /* hash of all logprobs, of the prompt too */
    enum finish_reason finish;
    int32_t ends;      /* terminal events: 1 in the end */
    int32_t cancel_at; /* cancels itself after so many tokens; 0: never */
    int32_t prompts;   /* scored tokens of the prompt */
    int32_t prompt[TOKENS_MAX];
    float logprob[TOKENS_MAX], prompt_logprob[TOKENS_MAX];
    struct token_top best[TOKENS_MAX]; /* the first of the best of each token */
};

struct group {
    struct worker workers[RANKS];
    int fds[RANKS]; /* the links' */
    struct link_set *links;
    struct engine *engine;
    struct client clients[CLIENTS];
    bool gated;
    sem_t gate, arrived; /* gated: a step runs when posted; posted when a step has come */
    pthread_mutex_t lock;
    pthread_cond_t ended;
    int32_t ends, lost;
};

static bool answer(struct worker *w, const struct step *step, const struct step_result *result)
{
    static const char text[] = "out of luck";
    const struct step_result none = {0};
    struct err err;
    bool now = step->seq == w->fault_seq;
    enum fault fault = now ? w->fault : HEALTHY;
    struct step_answer head = {
        .magic = STEP_ANSWER_MAGIC,
        .epoch = step->epoch,
        .seq = step->seq + (fault == WRONG_SEQ),
        .hash = step_hash(result->ids, result->count) ^ (fault == WRONG_HASH),
        .rank = fault == WRONG_RANK ? 7 : w->rank,
    };
    if (w->rank == 0)
        step_answer_counts(&head, result);
    if (fault == CLOSES) /* it computes what is on its way: others of this process wait for it */
        return shutdown(w->fd, SHUT_WR) == 0;
    if (fault == SILENT)
        return true;
    if (fault == SHORT)
        head.ids--;
    if (fault == FAILS) {
        head.status = ERR_DEVICE;
        step_answer_counts(&head, &none);
        head.text_bytes = (int32_t)sizeof text - 1;
    }
    return link_answer(w->fd, &head, result, text, &err) == OK;
}

static void *work(void *arg)
{
    struct worker *w = arg;
    struct step *step;
    struct err err;
    struct step_result result;
    uint64_t last = 0;
    size_t n, cap = step_bytes_max(&cluster->footprint.limits);
    void *message = malloc(cap);
    CHECK(step_open_new(&cluster->footprint.limits, &step, &err) == OK);
    while (link_receive(w->fd, message, cap, &n, &err) == OK) {
        CHECK(step_decode(step, message, n, &err) == OK);
        CHECK(step->seq == ++last);
        CHECK(step->epoch == 1);
        if (w->g->gated && w->rank == 0) {
            sem_post(&w->g->arrived);
            sem_wait(&w->g->gate);
        }
        CHECK(rank_step(cluster->ranks[w->rank], step, &result, NULL, &err) == OK);
        if (!answer(w, step, &result))
            break;
    }
    close(w->fd);
    step_free(step);
    free(message);
    return NULL;
}

/* ---- the client's side ---- */

static void take_token(struct client *c, const struct token_event *e)
{
    int32_t *n = e->prompt ? &c->prompts : &c->count;
    if (e->token < 0)
        return;
    CHECK(*n < TOKENS_MAX);
    (e->prompt ? c->prompt : c->tokens)[*n] = e->token;
    (e->prompt ? c->prompt_logprob : c->logprob)[*n] = e->logprob;
    if (!e->prompt && e->top_count > 0)
        c->best[*n] = e->top[0];
    ++*n;
}

static void sink(void *ctx, const struct token_event *events, int32_t count)
{
    struct group *g = ctx;
    pthread_mutex_lock(&g->lock);
    for (int32_t i = 0; i < count; i++) {
        struct client *c = events[i].user;
        CHECK(c->ends == 0); /* nothing comes after the end */
        CHECK(c->id == 0 || c->id == events[i].request);
        take_token(c, &events[i]);
        c->scores = base_hash(c->scores, &events[i].logprob, sizeof events[i].logprob);
        if (events[i].top_count > 0)
            c->scores = base_hash(c->scores, events[i].top,
                                  (size_t)events[i].top_count * sizeof *events[i].top);
        if (c->cancel_at > 0 && c->count == c->cancel_at)
            engine_cancel(g->engine, events[i].request);
        if (events[i].finish == FINISH_NONE)
            continue;
        c->finish = events[i].finish;
        c->ends++;
        g->ends++;
    }
    pthread_cond_signal(&g->ended);
    pthread_mutex_unlock(&g->lock);
}

static void on_lost(void *ctx)
{
    struct group *g = ctx;
    pthread_mutex_lock(&g->lock);
    g->lost++;
    pthread_mutex_unlock(&g->lock);
}

static void wait_for_ends(struct group *g, int32_t ends)
{
    struct timespec limit;
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec += 120;
    int timed_out = 0;
    pthread_mutex_lock(&g->lock);
    while (g->ends < ends && timed_out == 0)
        timed_out = pthread_cond_timedwait(&g->ended, &g->lock, &limit);
    pthread_mutex_unlock(&g->lock);
    if (timed_out)
        fail_msg("%d of %d requests ended", g->ends, ends);
}

/* What is special about a group; {0}: nothing. */
struct special {
    int32_t blocks; /* of the KV cache, 0: all there are */
    bool uncached, gated, measured;
    int32_t rank; /* whose answer to step fault_seq is wrong */
    enum fault fault;
    uint64_t fault_seq;
};

static struct group *group_start(struct special how)
{
    struct group *g = calloc(1, sizeof *g);
    struct err err;
    assert_non_null(g);
    g->gated = how.gated;
    sem_init(&g->gate, 0, 0);
    sem_init(&g->arrived, 0, 0);
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->ended, NULL);
    for (int32_t r = 0; r < RANKS; r++) {
        int pair[2];
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
        g->fds[r] = pair[0];
        g->workers[r] = (struct worker){.g = g, .rank = r, .fd = pair[1]};
        if (r == how.rank) {
            g->workers[r].fault = how.fault;
            g->workers[r].fault_seq = how.fault_seq;
        }
    }
    assert_int_equal(link_open(g->fds, RANKS, SLOTS, &g->links, &err), OK);
    for (int32_t r = 0; r < RANKS; r++)
        assert_int_equal(pthread_create(&g->workers[r].thread, NULL, work, &g->workers[r]), 0);
    struct engine_config config = {
        .sched = {.limits = cluster->footprint.limits,
                  .prefix_caching = !how.uncached,
                  .waiting_max = WAITING,
                  .max_model_len = cluster->footprint.max_model_len,
                  .eos = {2},
                  .eos_count = 1},
        .measure_costs = how.measured,
        .queued_tokens_max = QUEUED_TOKENS,
        .ranks = RANKS,
        .epoch = 1,
        .links = g->links,
        .board = cluster->board,
        .step_timeout = how.fault == SILENT ? 2 : 100,
        .sink = sink,
        .sink_ctx = g,
        .on_lost = on_lost,
        .on_lost_ctx = g,
    };
    if (how.blocks > 0)
        config.sched.limits.blocks = how.blocks;
    assert_int_equal(engine_open(&config, &g->engine, &err), OK);
    return g;
}

static void group_stop(struct group *g)
{
    for (int32_t i = 0; g->gated && i < 1000; i++)
        sem_post(&g->gate);
    engine_close(g->engine);
    for (int32_t r = 0; r < RANKS; r++) /* all of them run what is on its way, or none can */
        shutdown(g->fds[r], SHUT_WR);
    for (int32_t r = 0; r < RANKS; r++)
        pthread_join(g->workers[r].thread, NULL);
    link_close(g->links);
    sem_destroy(&g->gate);
    sem_destroy(&g->arrived);
    pthread_mutex_destroy(&g->lock);
    pthread_cond_destroy(&g->ended);
    free(g);
}

/* Lets `steps` steps run and waits until the next one has reached rank 0. The one after that is
 * sent when the last answer has been worked off. */
static void let_run(struct group *g, int32_t steps)
{
    for (int32_t i = 0; i < steps; i++) {
        sem_post(&g->gate);
        sem_wait(&g->arrived);
    }
}

static enum status submit(struct group *g, int32_t client, const struct request_params *p,
                          const int32_t *prompt, int32_t n)
{
    struct err err = {""};
    uint64_t id = 0;
    enum status st = engine_submit(g->engine, p, prompt, n, &g->clients[client], &id, &err);
    pthread_mutex_lock(&g->lock);
    g->clients[client].id = id;
    pthread_mutex_unlock(&g->lock);
    if (st != OK)
        assert_true(err.text[0] != '\0');
    return st;
}

static struct request_params greedy_params(int32_t max_tokens)
{
    struct request_params p = request_params_default();
    p.max_tokens = max_tokens;
    p.temperature = 0;
    p.ignore_eos = true;
    return p;
}

static struct engine_metrics metrics_of(const struct group *g)
{
    struct engine_metrics m;
    engine_metrics(g->engine, &m);
    return m;
}

/* Nothing is left, and the sums agree with what the clients saw. */
static void check_metrics(const struct group *g, int32_t clients)
{
    struct engine_metrics m = metrics_of(g);
    uint64_t tokens = 0, buckets = 0, finished[FINISH_ERROR + 1] = {0};
    for (int32_t i = 0; i < clients; i++) {
        assert_int_equal(g->clients[i].ends, 1);
        tokens += (uint64_t)g->clients[i].count;
        finished[g->clients[i].finish]++;
    }
    for (int32_t i = FINISH_STOP; i <= FINISH_ERROR; i++)
        assert_int_equal(m.finished[i], finished[i]);
    assert_int_equal(m.generation_tokens, tokens);
    assert_int_equal(m.running + m.waiting, 0);
    assert_int_equal(m.kv_blocks_used, 0);
    assert_true(m.kv_usage == 0);
    for (int32_t i = 0; i < 16; i++)
        buckets += m.step_buckets[i];
    assert_int_equal(buckets, m.steps);
    assert_int_equal(m.ranks, RANKS);
}

/* ---- tests ---- */

static void test_crowd(void **state)
{
    (void)state;
    enum { CROWD = 40, SAMPLED = 20 };
    struct group *g = group_start((struct special){0});
    struct request_params params[CROWD];
    static struct client alone[CROWD];
    uint64_t prompts = 0, rows = 0;
    memset(alone, 0, sizeof alone);
    for (int32_t i = 0; i < CROWD; i++) {
        params[i] = greedy_params(i < 2 ? TOKENS_MAX : 10 + i);
        if (i < SAMPLED)
            continue;
        params[i].temperature = 0.9f;
        params[i].top_p = i % 2 ? 0.8f : 1;
        params[i].top_k = i % 3 ? 40 : 0;
        params[i].seed = 77 + (uint64_t)i / 2;
        params[i].choice = i % 2;
        params[i].max_tokens = 24;
        params[i].ignore_eos = i % 4 != 0;
        assert_int_equal(
            submit(g, i, &params[i], i % 2 ? prompt0 : prompt1, i % 2 ? PROMPT0 : PROMPT1), OK);
        wait_for_ends(g, i - SAMPLED + 1);
        alone[i] = g->clients[i];
        g->clients[i] = (struct client){0};
    }
    struct engine_metrics before = metrics_of(g);
    for (int32_t i = 0; i < CROWD; i++) {
        int32_t n = i % 2 ? PROMPT0 : PROMPT1;
        prompts += (uint64_t)n;
        assert_int_equal(submit(g, i, &params[i], i % 2 ? prompt0 : prompt1, n), OK);
    }
    wait_for_ends(g, CROWD + SAMPLED);
    for (int32_t i = 0; i < CROWD; i++) {
        const struct client *c = &g->clients[i];
        const int32_t *want = i < SAMPLED ? (i % 2 ? greedy0 : greedy1) : alone[i].tokens;
        assert_int_equal(c->ends, 1);
        assert_int_equal(c->count, i < SAMPLED ? params[i].max_tokens : alone[i].count);
        assert_int_equal(c->finish, i < SAMPLED ? FINISH_LENGTH : alone[i].finish);
        for (int32_t t = 0; t < c->count; t++)
            if (c->tokens[t] != want[t])
                fail_msg("request %d: token %d is %d, expected %d", i, t, c->tokens[t], want[t]);
        rows += (uint64_t)c->count - 1; /* the last token is never computed */
    }
    struct engine_metrics after = metrics_of(g);
    assert_int_equal(after.prompt_tokens - before.prompt_tokens, prompts);
    /* what was found is not computed; an end token is found when one row more is on its way */
    uint64_t found = after.prefix_hits - before.prefix_hits, all = prompts - found + rows;
    uint64_t late = after.finished[FINISH_STOP] - before.finished[FINISH_STOP];
    assert_true(found > 0);
    assert_in_range(after.step_rows - before.step_rows, all, all + late);
    assert_int_equal(after.kv_blocks_used, 0);
    assert_true(after.rank[1].up && after.rank[1].comm[COMM_ALL_REDUCE].calls > 0);
    assert_true(after.steps < before.steps + 700); /* they ran together */
    group_stop(g);
}

/* Requests of all kinds (greedy, sampled, with penalties, with logprobs) and with common
 * beginnings, each alone and then all at once where the KV cache holds a fifth of them: they share
 * blocks, give way to each other, and get the same tokens and logprobs, bit for bit. */
static void test_shortage(void **state)
{
    (void)state;
    enum { CROWD = 48, BLOCKS_FEW = 24 };
    static struct client alone[CROWD];
    static int32_t prompts[CROWD][96];
    struct request_params params[CROWD];
    struct group *g = group_start((struct special){.uncached = true});
    memset(alone, 0, sizeof alone);
    for (int32_t i = 0; i < CROWD; i++) {
        for (int32_t t = 0; t < 96; t++) /* four families, then each its own */
            prompts[i][t] = t < 40 ? prompt0[(t + i % 4) % PROMPT0] : 3 + (t * 7 + i) % 200;
        params[i] = greedy_params(20 + i);
        params[i].client = (uint64_t)i % 5;
        params[i].priority = i % 3;
        if (i % 2) {
            params[i].temperature = 0.9f;
            params[i].top_p = 0.8f;
            params[i].seed = 77 + (uint64_t)i;
        }
        if (i % 3 == 1) {
            params[i].frequency_penalty = 0.4f;
            params[i].repetition_penalty = 1.2f;
        }
        params[i].logprobs = i % 5 == 0 ? 3 : -1;
        params[i].prompt_logprobs = i % 7 == 0 ? 2 : -1;
        assert_int_equal(submit(g, i, &params[i], prompts[i], 41 + i), OK);
        wait_for_ends(g, i + 1);
        alone[i] = g->clients[i];
    }
    assert_int_equal(metrics_of(g).prefix_hits, 0);
    group_stop(g);
    g = group_start((struct special){.blocks = BLOCKS_FEW});
    for (int32_t i = 0, sent = 0; i < CROWD; i++) {
        while (submit(g, i, &params[i], prompts[i], 41 + i) != OK)
            wait_for_ends(g, ++sent); /* the queue is full */
    }
    wait_for_ends(g, CROWD);
    for (int32_t i = 0; i < CROWD; i++) {
        const struct client *c = &g->clients[i];
        assert_int_equal(c->count, alone[i].count);
        assert_int_equal(c->finish, alone[i].finish);
        assert_true(c->scores == alone[i].scores);
        for (int32_t t = 0; t < c->count; t++)
            if (c->tokens[t] != alone[i].tokens[t])
                fail_msg("request %d: token %d is %d, expected %d", i, t, c->tokens[t],
                         alone[i].tokens[t]);
    }
    struct engine_metrics m = metrics_of(g);
    assert_true(m.preemptions > 0);
    assert_true(m.prefix_hits > 0);
    assert_int_equal(m.kv_blocks, BLOCKS_FEW);
    check_metrics(g, CROWD);
    group_stop(g);
}

/* What has been sent to rank 0 behind the step it has read. */
static void peek_step(struct group *g, struct step *out, void *message, size_t cap)
{
    struct step_header h = {0};
    struct err err;
    struct pollfd p = {.fd = g->workers[0].fd, .events = POLLIN};
    ssize_t n = 0;
    assert_int_equal(poll(&p, 1, 60000), 1);
    do
        n = recv(p.fd, message, cap, MSG_PEEK);
    while (n >= (ssize_t)sizeof h && (memcpy(&h, message, sizeof h), (ssize_t)h.bytes > n));
    assert_true(n >= (ssize_t)sizeof h);
    assert_int_equal(step_decode(out, message, h.bytes, &err), OK);
}

/* While a rank is at step n, step n + 1 is there already, and its token is the rank's to know. */
static void test_overlap(void **state)
{
    (void)state;
    struct group *g = group_start((struct special){.gated = true});
    const struct request_params p = greedy_params(20);
    const size_t cap = step_bytes_max(&cluster->footprint.limits);
    void *message = malloc(cap);
    struct step *next;
    struct err err;
    assert_int_equal(step_open_new(&cluster->footprint.limits, &next, &err), OK);
    assert_int_equal(submit(g, 0, &p, prompt1, PROMPT1), OK);
    sem_wait(&g->arrived);
    for (uint64_t answered = 0; answered < 5; answered++) {
        peek_step(g, next, message, cap);
        assert_int_equal(next->seq, answered + 2);
        assert_int_equal(next->rows, 1);
        assert_int_equal(next->token[0], STEP_TOKEN_FROM_SLOT);
        assert_int_equal(metrics_of(g).steps, answered);
        let_run(g, 1);
    }
    for (int32_t i = 0; i < 100; i++)
        sem_post(&g->gate);
    wait_for_ends(g, 1);
    assert_memory_equal(g->clients[0].tokens, greedy1, 20 * sizeof *greedy1);
    assert_int_equal(metrics_of(g).step_rows, PROMPT1 + 19); /* no row is wasted at max_tokens */
    check_metrics(g, 1);
    group_stop(g);
    step_free(next);
    free(message);
}

/* Measured first, and then as ever. */
static void test_measured(void **state)
{
    (void)state;
    struct group *g = group_start((struct special){.measured = true});
    struct request_params p = greedy_params(TOKENS_MAX);
    assert_int_equal(submit(g, 0, &p, prompt0, PROMPT0), OK);
    assert_int_equal(submit(g, 1, &p, prompt1, PROMPT1), OK);
    wait_for_ends(g, 2);
    assert_memory_equal(g->clients[0].tokens, greedy0, TOKENS_MAX * sizeof *greedy0);
    assert_memory_equal(g->clients[1].tokens, greedy1, TOKENS_MAX * sizeof *greedy1);
    check_metrics(g, 2);
    group_stop(g);
}

static void test_stop_token(void **state)
{
    (void)state;
    struct group *g = group_start((struct special){0});
    struct request_params p = greedy_params(TOKENS_MAX);
    int32_t stop = 0;
    p.ignore_eos = false;
    while (stop < TOKENS_MAX && greedy0[stop] != 2)
        stop++;
    assert_int_equal(submit(g, 0, &p, prompt0, PROMPT0), OK);
    p.max_tokens = 1;
    assert_int_equal(submit(g, 1, &p, prompt0, PROMPT0), OK);
    wait_for_ends(g, 2);
    /* the token that ends a sequence is counted and carried */
    assert_int_equal(g->clients[0].count, stop < TOKENS_MAX ? stop + 1 : TOKENS_MAX);
    assert_int_equal(g->clients[0].finish, stop < TOKENS_MAX ? FINISH_STOP : FINISH_LENGTH);
    assert_int_equal(g->clients[1].count, 1);
    check_metrics(g, 2);
    group_stop(g);
}

/* Scored prompts and logprobs come with the right tokens, whoever else is there; and stop ids end a
 * request, but not before min_tokens. */
static void test_logprobs(void **state)
{
    (void)state;
    struct group *g = group_start((struct special){0});
    struct request_params p = greedy_params(6);
    const int32_t stop[] = {greedy1[2], greedy1[3]};
    p.logprobs = 1;
    p.prompt_logprobs = 0;
    assert_int_equal(submit(g, 0, &p, prompt0, PROMPT0), OK);
    p.max_tokens = 0;
    p.prompt_logprobs = 3;
    assert_int_equal(submit(g, 1, &p, prompt0, PROMPT0), OK);
    p = greedy_params(6);
    assert_int_equal(submit(g, 2, &p, prompt1, PROMPT1), OK);
    p.stop_ids = stop;
    p.stop_id_count = 1;
    assert_int_equal(submit(g, 3, &p, prompt1, PROMPT1), OK);
    p.min_tokens = 3;
    p.stop_id_count = 2;
    assert_int_equal(submit(g, 4, &p, prompt1, PROMPT1), OK);
    wait_for_ends(g, 5);
    const struct client *c = g->clients;
    assert_int_equal(c[0].count, 6);
    assert_memory_equal(c[0].tokens, greedy0, 6 * sizeof *greedy0);
    for (int32_t i = 0; i < 6; i++) /* greedy: the token is the best */
        assert_true(c[0].best[i].token == c[0].tokens[i] &&
                    c[0].best[i].logprob == c[0].logprob[i]);
    assert_int_equal(c[1].count, 0);
    assert_int_equal(c[1].finish, FINISH_LENGTH);
    for (int32_t k = 0; k < 2; k++) {
        assert_int_equal(c[k].prompts, PROMPT0 - 1);
        assert_memory_equal(c[k].prompt, prompt0 + 1, (PROMPT0 - 1) * sizeof *prompt0);
        assert_memory_equal(c[k].prompt_logprob, c[0].prompt_logprob,
                            (PROMPT0 - 1) * sizeof(float));
    }
    assert_true(c[0].prompt_logprob[0] < 0);
    assert_memory_equal(c[2].tokens, greedy1, 6 * sizeof *greedy1);
    assert_int_equal(c[3].finish, FINISH_STOP);
    assert_int_equal(c[3].count, 3); /* the stop id is carried and counted */
    assert_memory_equal(c[3].tokens, greedy1, 3 * sizeof *greedy1);
    assert_true(c[4].count > 3 && c[4].tokens[2] != stop[0]);
    check_metrics(g, 5);
    group_stop(g);
}

static void check_cancelled(const struct client *c, int32_t least, int32_t most)
{
    assert_int_equal(c->ends, 1);
    assert_int_equal(c->finish, FINISH_CANCELLED);
    assert_in_range(c->count, least, most);
}

static void test_cancel(void **state)
{
    (void)state;
    struct group *g = group_start((struct special){.gated = true});
    const struct request_params p = greedy_params(20);
    static int32_t long_prompt[300]; /* five steps of 64 rows */
    for (int32_t i = 0; i < 300; i++)
        long_prompt[i] = 3 + i % 200;
    g->clients[2].cancel_at = 5;
    assert_int_equal(submit(g, 0, &p, long_prompt, 300), OK);
    sem_wait(&g->arrived); /* step 1 is in flight: the first chunk of request 0 */
    for (int32_t i = 1; i < SLOTS + 4; i++)
        assert_int_equal(submit(g, i, &p, prompt1, PROMPT1), OK);
    let_run(g, 1);
    assert_int_equal(metrics_of(g).running, 1); /* the prompt in front takes all rows */
    engine_cancel(g->engine, g->clients[0].id); /* prefilling, a chunk in flight */
    engine_cancel(g->engine, g->clients[0].id);
    engine_cancel(g->engine, g->clients[3].id); /* waiting */
    engine_cancel(g->engine, 1000000);          /* unknown */
    let_run(g, 2);
    assert_int_equal(g->ends, 2); /* within two steps */
    check_cancelled(&g->clients[0], 0, 0);
    check_cancelled(&g->clients[3], 0, 0);
    for (int32_t i = 0; i < 1000; i++)
        sem_post(&g->gate);
    wait_for_ends(g, SLOTS + 4);
    check_cancelled(&g->clients[2], 5, 6); /* from the sink, decoding */
    for (int32_t i = 0; i < SLOTS + 4; i++) {
        engine_cancel(g->engine, g->clients[i].id); /* has ended */
        if (i == 0 || i == 2 || i == 3)
            continue;
        assert_int_equal(g->clients[i].finish, FINISH_LENGTH);
        assert_memory_equal(g->clients[i].tokens, greedy1, 20 * sizeof *greedy1);
    }
    check_metrics(g, SLOTS + 4);
    group_stop(g);
}

static void test_limits(void **state)
{
    (void)state;
    struct group *g = group_start((struct special){.gated = true});
    struct request_params p = greedy_params(2);
    struct err err;
    uint64_t id = 0;
    static int32_t prompt[1024];
    int32_t context = cluster->footprint.max_model_len;
    for (int32_t i = 0; i < 1024; i++)
        prompt[i] = 3;
    assert_int_equal(engine_submit(g->engine, &p, prompt, context, NULL, &id, &err), ERR_INPUT);
    assert_int_equal(strncmp(err.text, "This model's maximum context length is ", 39), 0);
    assert_int_equal(submit(g, 0, &p, prompt, 0), ERR_INPUT);
    prompt[1] = VOCAB;
    assert_int_equal(submit(g, 0, &p, prompt, 3), ERR_INPUT);
    p.max_tokens = -1;
    assert_int_equal(submit(g, 0, &p, prompt1, PROMPT1), ERR_INPUT);
    p.max_tokens = 2;
    assert_int_equal(submit(g, 0, &p, prompt1, PROMPT1), OK);
    sem_wait(&g->arrived); /* it runs, and the engine thread is inside a step */
    prompt[1] = 3;
    for (int32_t i = 1; i <= 2; i++)
        assert_int_equal(submit(g, i, &p, prompt, 400), OK);
    assert_int_equal(engine_submit(g->engine, &p, prompt, 301, NULL, &id, &err), ERR_LIMIT);
    assert_non_null(strstr(err.text, "800 prompt tokens are waiting already, with 301 more"));
    for (int32_t i = 3; i < REQUESTS; i++) /* a burst: none is refused while seats are free */
        assert_int_equal(submit(g, i, &p, prompt1, PROMPT1), OK);
    assert_int_equal(metrics_of(g).waiting, REQUESTS - 1);
    assert_int_equal(engine_check_room(g->engine, &err), ERR_LIMIT);
    assert_int_equal(engine_submit(g->engine, &p, prompt1, PROMPT1, NULL, &id, &err), ERR_LIMIT);
    assert_non_null(strstr(err.text, "52 requests are running or waiting"));
    assert_int_equal(id, 0);
    for (int32_t i = 0; i < 1000; i++)
        sem_post(&g->gate);
    wait_for_ends(g, REQUESTS);
    assert_int_equal(engine_check_room(g->engine, &err), OK); /* room again */
    assert_int_equal(submit(g, REQUESTS, &p, prompt1, PROMPT1), OK);
    wait_for_ends(g, REQUESTS + 1);
    check_metrics(g, REQUESTS + 1);
    group_stop(g);
}

/* Opens the gate once the engine stops: from then on even a full queue is a lost group's. */
static void *open_gate_at_stop(void *arg)
{
    struct group *g = arg;
    const struct request_params p = greedy_params(1);
    struct err err;
    uint64_t id;
    while (engine_submit(g->engine, &p, prompt1, PROMPT1, NULL, &id, &err) == ERR_LIMIT)
        usleep(1000);
    for (int32_t i = 0; i < 1000; i++)
        sem_post(&g->gate);
    return NULL;
}

static void test_stop_with_work(void **state)
{
    (void)state;
    struct group *g = group_start((struct special){.gated = true});
    const struct request_params p = greedy_params(TOKENS_MAX);
    pthread_t thread;
    for (int32_t i = 0; i < SLOTS; i++)
        assert_int_equal(submit(g, i, &p, prompt1, PROMPT1), OK);
    sem_wait(&g->arrived);
    let_run(g, 2);
    for (int32_t i = SLOTS; i < SLOTS + WAITING; i++)
        assert_int_equal(submit(g, i, &p, prompt1, PROMPT1), OK);
    assert_int_equal(pthread_create(&thread, NULL, open_gate_at_stop, g), 0);
    engine_stop(g->engine);
    engine_stop(g->engine);
    pthread_join(thread, NULL);
    for (int32_t i = 0; i < SLOTS + WAITING; i++)
        check_cancelled(&g->clients[i], 0, i < SLOTS ? 4 : 0);
    check_metrics(g, SLOTS + WAITING);
    assert_int_equal(submit(g, SLOTS + WAITING, &p, prompt1, PROMPT1), ERR_COMM);
    assert_int_equal(g->lost, 0);
    group_stop(g);
}

/* A rank whose answer to step 4 is not what it must be. */
static void check_fault(int32_t rank, enum fault fault, bool outside)
{
    const int32_t clients = SLOTS + 6;
    struct group *g = group_start((struct special){
        .gated = true, .rank = rank, .fault = fault, .fault_seq = outside ? 0 : 4});
    const struct request_params p = greedy_params(60);
    for (int32_t i = 0; i < clients; i++)
        assert_int_equal(submit(g, i, &p, prompt1, PROMPT1), OK);
    sem_wait(&g->arrived);
    let_run(g, 2);
    if (outside)
        engine_lost(g->engine);
    for (int32_t i = 0; i < 1000; i++)
        sem_post(&g->gate);
    wait_for_ends(g, clients);
    assert_int_equal(submit(g, clients, &p, prompt1, PROMPT1), ERR_COMM);
    engine_stop(g->engine);
    for (int32_t i = 0; i < clients; i++) {
        assert_int_equal(g->clients[i].finish, FINISH_ERROR);
        assert_true(g->clients[i].count <= 3);
        assert_memory_equal(g->clients[i].tokens, greedy1, (size_t)g->clients[i].count * 4);
    }
    check_metrics(g, clients);
    assert_false(metrics_of(g).rank[0].up);
    assert_true(outside ? g->lost <= 1 : g->lost == 1);
    group_stop(g);
}

static void test_faults(void **state)
{
    (void)state;
    base_log_level((enum log_level)(LOG_ERROR - 1)); /* the lost groups are wanted here */
    for (int32_t rank = 0; rank < RANKS; rank++)
        for (int fault = WRONG_HASH; fault <= CLOSES; fault++)
            check_fault(rank, (enum fault)fault, false);
    check_fault(0, SHORT, false);
    check_fault(1, SILENT, false); /* no progress within the step timeout */
    check_fault(0, HEALTHY, true);
    base_log_level(LOG_INFO);
}

/* ---- */

static int32_t *golden(const char *tensor, size_t count)
{
    struct safetensors st;
    struct err err;
    CHECK(safetensors_open(TEST_DATA_DIR "/golden/tied_gqa2_f32/golden.safetensors", &st, &err) ==
          OK);
    const struct safetensors_entry *e = safetensors_find(&st, tensor);
    CHECK(e != NULL);
    CHECK(e->bytes == count * 4);
    int32_t *data = malloc(e->bytes);
    CHECK(safetensors_read(&st, e->offset, data, e->bytes, &err) == OK);
    safetensors_close(&st);
    return data;
}

static int open_all(void **state)
{
    (void)state;
    const char *const args[] = {"--max-num-seqs=12", "--max-num-batched-tokens=64",
                                "--threads-per-rank=1", "--kv-cache-memory=2M", NULL};
    prompt0 = golden("prompt0", PROMPT0);
    prompt1 = golden("prompt1", PROMPT1);
    greedy0 = golden("greedy0", TOKENS_MAX);
    greedy1 = golden("greedy1", TOKENS_MAX);
    cluster = cluster_open(TEST_DATA_DIR "/golden/tied_gqa2_f32", RANKS, args);
    CHECK(cluster->footprint.limits.slots == SLOTS);
    CHECK(cluster->footprint.limits.rows == ROWS);
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    cluster_close(cluster);
    free(prompt0);
    free(prompt1);
    free(greedy0);
    free(greedy1);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_crowd),      cmocka_unit_test(test_shortage),
        cmocka_unit_test(test_overlap),    cmocka_unit_test(test_measured),
        cmocka_unit_test(test_stop_token), cmocka_unit_test(test_logprobs),
        cmocka_unit_test(test_cancel),     cmocka_unit_test(test_limits),
        cmocka_unit_test(test_faults),     cmocka_unit_test(test_stop_with_work),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
