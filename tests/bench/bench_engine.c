/* DESIGN: what the engine adds to a step. One rank without a model: a thread that reads a step,
 * works for a given time and answers with zeros. The gap is the time from an answer that is written
 * to the next step that is read: with work to do it is the cost of a read, because that step was
 * sent while the rank worked; without work it is what the engine needs for a step.
 *
 * Usage: bench_engine */
#include "engine/engine_thread.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

enum { SLOTS = 256, CONTEXT = 1024, STEPS = 1000, GAPS_MAX = 2 * CONTEXT };

static const struct step_limits limits = {.slots = SLOTS,
                                          .samples = SLOTS,
                                          .rows = 512,
                                          .groups = {.keep = 1},
                                          .table_cols = CONTEXT / BACKEND_BLOCK_TOKENS,
                                          .vocab = 1000,
                                          .blocks = SLOTS * CONTEXT / BACKEND_BLOCK_TOKENS,
                                          .history_max = CONTEXT,
                                          .homes = 1,
                                          .home_rows = 512};

struct rank {
    int fd;
    int64_t work_ns;
    double gaps[GAPS_MAX];
    int32_t count;
};

static void must(enum status st, const struct err *err)
{
    if (st == OK)
        return;
    fprintf(stderr, "bench_engine: %s\n", err->text);
    exit(1);
}

static void *rank_main(void *arg)
{
    struct rank *r = arg;
    struct step *step;
    struct err err;
    static int32_t ids[SLOTS];
    size_t n, cap = step_bytes_max(&limits);
    void *message = malloc(cap);
    int64_t answered = 0;
    must(step_open_new(&limits, &step, &err), &err);
    while (link_receive(r->fd, message, cap, &n, &err) == OK) {
        const int64_t read = base_now_ns();
        if (answered && r->count < GAPS_MAX)
            r->gaps[r->count++] = (double)(read - answered) / 1e3;
        must(step_decode(step, message, n, &err), &err);
        while (base_now_ns() < read + r->work_ns)
            continue;
        const struct step_result result = {.count = step->samples, .ids = ids};
        struct step_answer head = {.magic = STEP_ANSWER_MAGIC,
                                   .epoch = step->epoch,
                                   .seq = step->seq,
                                   .hash = step_hash(ids, step->samples)};
        step_answer_counts(&head, &result);
        if (link_answer(r->fd, &head, &result, "", &err) != OK)
            break;
        answered = base_now_ns();
    }
    step_free(step);
    free(message);
    close(r->fd);
    return NULL;
}

static void sink(void *ctx, const struct token_event *events, int32_t count)
{
    _Atomic int32_t *ends = ctx;
    for (int32_t i = 0; i < count; i++)
        *ends += events[i].finish != FINISH_NONE;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure(int32_t streams, int64_t work_ns)
{
    static struct board board;
    struct rank *rank = calloc(1, sizeof *rank);
    struct link_set *links;
    struct engine *engine;
    struct err err;
    pthread_t thread;
    _Atomic int32_t ends = 0;
    int pair[2];
    CHECK(rank && socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    rank->fd = pair[1];
    rank->work_ns = work_ns;
    must(link_open(pair, 1, SLOTS, 0, &links, &err), &err);
    CHECK(pthread_create(&thread, NULL, rank_main, rank) == 0);
    const struct engine_config config = {
        .sched = {.limits = limits, .waiting_max = SLOTS, .max_model_len = CONTEXT},
        .queued_tokens_max = INT64_MAX,
        .ranks = 1,
        .group = {.links = links, .board = &board},
        .step_timeout = 100,
        .sink = sink,
        .sink_ctx = &ends,
    };
    must(engine_open(&config, &engine, &err), &err);
    struct request_params p = request_params_default();
    p.max_tokens = STEPS;
    const int32_t prompt = 3;
    for (int32_t i = 0; i < streams; i++) {
        uint64_t id;
        must(engine_submit(engine, &p, &prompt, 1, NULL, &id, &err), &err);
    }
    while (ends < streams)
        usleep(1000);
    engine_close(engine);
    link_close(links);
    pthread_join(thread, NULL);
    qsort(rank->gaps, (size_t)rank->count, sizeof *rank->gaps, compare);
    printf("%4d streams, %4lld us of work a step: gap %6.1f us, p99 %7.1f us\n", streams,
           (long long)(work_ns / 1000), rank->gaps[rank->count / 2],
           rank->gaps[rank->count * 99 / 100]);
    free(rank);
}

int main(void)
{
    static const int32_t streams[] = {1, 16, 256};
    for (size_t i = 0; i < ARRAY_LEN(streams); i++) {
        measure(streams[i], 0);
        measure(streams[i], 2000 * 1000);
    }
    return 0;
}
