/* The engine over real ranks: the threads of a cluster read steps from socketpair links, run them
 * and answer, as the processes of a group do. A rank can be told to answer wrongly. */
#ifndef TESSERA_TESTS_ENGINE_RANKS_H
#define TESSERA_TESTS_ENGINE_RANKS_H

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
    uint32_t epoch;
    struct engine *engine;
    struct client clients[CLIENTS];
    bool gated, outlived; /* a loss is not final */
    sem_t gate, arrived;  /* gated: a step runs when posted; posted when a step has come */
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
        CHECK(step->epoch == w->g->epoch);
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
    if (!g->outlived)
        engine_lost(g->engine);
}

static void wait_for_ends(struct group *g, int32_t ends)
{
    struct timespec limit;
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec += 600;
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
    bool uncached, gated, measured, outlived;
    int32_t rank; /* whose answer to step fault_seq is wrong */
    enum fault fault;
    uint64_t fault_seq;
};

static void start_workers(struct group *g, struct special how)
{
    struct err err;
    g->epoch++;
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
    assert_int_equal(link_open(g->fds, RANKS, SLOTS, 0, &g->links, &err), OK);
    for (int32_t r = 0; r < RANKS; r++)
        assert_int_equal(pthread_create(&g->workers[r].thread, NULL, work, &g->workers[r]), 0);
}

static void stop_workers(struct group *g)
{
    for (int32_t r = 0; r < RANKS; r++) /* all of them run what is on its way, or none can */
        shutdown(g->fds[r], SHUT_WR);
    for (int32_t r = 0; r < RANKS; r++)
        pthread_join(g->workers[r].thread, NULL);
    link_close(g->links);
}

static struct group *group_start(struct special how)
{
    struct group *g = calloc(1, sizeof *g);
    struct err err;
    assert_non_null(g);
    g->gated = how.gated;
    g->outlived = how.outlived;
    sem_init(&g->gate, 0, 0);
    sem_init(&g->arrived, 0, 0);
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->ended, NULL);
    start_workers(g, how);
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
        .group = {g->epoch, g->links, cluster->board},
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
    stop_workers(g);
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
    uint64_t tokens = 0, steps = 0, counted = 0, finished[FINISH_ERROR + 1] = {0};
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
    for (size_t i = 0; i < ARRAY_LEN(m.step_buckets); i++)
        steps += m.step_buckets[i];
    for (size_t i = 0; i < ARRAY_LEN(m.row_buckets); i++)
        counted += m.row_buckets[i];
    assert_int_equal(steps, m.steps);
    assert_int_equal(counted, m.steps);
    assert_int_equal(m.ranks, RANKS);
}

#endif
