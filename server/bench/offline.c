#include "server/bench/offline.h"

#include "engine/engine_thread.h"
#include "engine/group.h"
#include "server/bench/samples.h"
#include "server/setup.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { REPEATS = 3 }; /* of a request alone; the median is printed */

struct request {
    int64_t sent, first, last;
    int32_t tokens;
    enum finish_reason finish;
};

struct offline {
    const struct options *bench;
    struct setup setup;
    struct footprint footprint;
    struct group *group;
    struct engine *engine;
    int over; /* eventfd: one per ended request */
    int32_t *prompt;
    struct request *requests; /* [num_prompts]; the sink writes until engine_stop */
    _Atomic bool lost;
};

/* On the engine thread; the eventfd orders its writes before the reader's look. */
static void count(void *ctx, const struct token_event *events, int32_t n)
{
    struct offline *o = ctx;
    int64_t now = base_now_ns();
    uint64_t ended = 0;
    for (int32_t i = 0; i < n; i++) {
        struct request *r = events[i].user;
        if (events[i].token >= 0 && !events[i].prompt) {
            r->first = r->tokens++ == 0 ? now : r->first;
            r->last = now;
        }
        r->finish = events[i].finish;
        ended += events[i].finish != FINISH_NONE;
    }
    if (ended > 0)
        CHECK(write(o->over, &ended, sizeof ended) == (ssize_t)sizeof ended);
}

static void on_lost(void *ctx)
{
    struct offline *o = ctx;
    uint64_t one = 1;
    atomic_store(&o->lost, true);
    CHECK(write(o->over, &one, sizeof one) == (ssize_t)sizeof one);
}

static enum status check_group(void *ctx, struct err *err)
{
    struct offline *o = ctx;
    return group_check(o->group, 0, err);
}

static enum status open_engine(struct offline *o, const struct options *serve, struct err *err)
{
    enum status st = OK;
    TRY(setup_open(serve, &o->setup, err));
    TRY(footprint_plan(&o->setup.options, &o->setup.model, o->setup.flow, &o->footprint, err));
    TRY(group_open(&o->setup.options, &o->footprint, NULL, NULL, &o->group, err));
    TRY(group_wait_ready(o->group, check_group, o, err));
    struct engine_config c = {
        .sched = {.limits = o->footprint.limits,
                  .waiting_max = o->bench->bench.num_prompts,
                  .max_model_len = o->footprint.max_model_len,
                  .prefix_caching = o->setup.options.prefix_caching,
                  .speculation = serve->speculation},
        .measure_costs = true,
        .queued_tokens_max = INT64_MAX,
        .ranks = o->footprint.ranks,
        .group = {group_epoch(o->group), group_links(o->group), group_board(o->group)},
        .step_timeout = serve->step_timeout,
        .sink = count,
        .sink_ctx = o,
        .on_lost = on_lost,
        .on_lost_ctx = o,
    };
    TRY(engine_open(&c, &o->engine, err));
out:
    return st;
}

/* Token ids that differ from request to request and from round to round. */
static void fill_prompt(struct offline *o, uint64_t request)
{
    const int32_t vocab = o->setup.model.vocab;
    for (int32_t i = 0; i < o->bench->bench.input_len; i++) {
        const uint64_t key[3] = {(uint64_t)o->bench->seed, request, (uint64_t)i};
        uint64_t hash = base_hash(BASE_HASH_INIT, key, sizeof key);
        o->prompt[i] = (int32_t)(hash % (uint64_t)vocab);
    }
}

static enum status submit(struct offline *o, uint64_t number, struct request *r, struct err *err)
{
    uint64_t id;
    struct request_params params = request_params_default();
    params.max_tokens = o->bench->bench.output_len;
    params.temperature = 0;
    params.ignore_eos = true;
    fill_prompt(o, number);
    *r = (struct request){.sent = base_now_ns()};
    return engine_submit(o->engine, &params, o->prompt, o->bench->bench.input_len, r, &id, err);
}

/* Until the first `wanted` requests have ended. */
static enum status wait_for(struct offline *o, int32_t wanted, struct err *err)
{
    for (uint64_t ended = 0, n; ended < (uint64_t)wanted;) {
        if (read(o->over, &n, sizeof n) == (ssize_t)sizeof n)
            ended += n;
        if (atomic_load(&o->lost))
            return group_check(o->group, 100, err) == OK
                       ? base_fail(err, ERR_COMM, "the rank group is lost")
                       : ERR_COMM;
    }
    for (int32_t i = 0; i < wanted; i++)
        if (o->requests[i].finish != FINISH_LENGTH)
            return base_fail(err, ERR_INTERNAL, "request %d ended early, after %d tokens", i,
                             o->requests[i].tokens);
    return OK;
}

static double seconds(int64_t from, int64_t to)
{
    return (double)(to - from) * 1e-9;
}

/* One request alone, a few times. */
static enum status latency(struct offline *o, struct err *err)
{
    enum status st = OK;
    struct request *r = o->requests;
    double prompt[REPEATS], decode[REPEATS];
    for (int32_t i = 0; i < REPEATS; i++) {
        TRY(submit(o, UINT64_MAX - (uint64_t)i, r, err));
        TRY(wait_for(o, 1, err));
        prompt[i] = seconds(r->sent, r->first);
        decode[i] = r->tokens > 1 ? seconds(r->first, r->last) / (r->tokens - 1) : 0;
    }
    double first = samples_stats(prompt, REPEATS).p50, each = samples_stats(decode, REPEATS).p50;
    printf("latency     one request alone, prompt of %d, median of %d\n"
           "  prompt    %.2f ms, %.1f tokens/s\n",
           o->bench->bench.input_len, REPEATS, first * 1e3, o->bench->bench.input_len / first);
    if (each > 0)
        printf("  answer    %.3f ms per token, %.1f tokens/s\n", each * 1e3, 1 / each);
out:
    return st;
}

/* All requests at once. */
static enum status throughput(struct offline *o, struct err *err)
{
    enum status st = OK;
    const int32_t n = o->bench->bench.num_prompts;
    int64_t produced = 0, prompts = (int64_t)n * o->bench->bench.input_len;
    int64_t begin = base_now_ns();
    for (int32_t i = 0; i < n; i++)
        TRY(submit(o, (uint64_t)i, &o->requests[i], err));
    TRY(wait_for(o, n, err));
    double spent = seconds(begin, base_now_ns());
    for (int32_t i = 0; i < n; i++)
        produced += o->requests[i].tokens;
    printf("throughput  %d requests of %d + %d tokens at once in %.2f s\n"
           "  requests  %.2f/s\n  tokens    %.1f produced/s, %.1f/s with the prompts\n",
           n, o->bench->bench.input_len, o->bench->bench.output_len, spent, n / spent,
           (double)produced / spent, (double)(produced + prompts) / spent);
out:
    return st;
}

enum status offline_run(const struct options *bench, const struct options *serve, struct err *err)
{
    enum status st = OK;
    struct offline o = {.bench = bench, .over = eventfd(0, EFD_CLOEXEC)};
    o.prompt = calloc((size_t)bench->bench.input_len, sizeof *o.prompt);
    o.requests = calloc((size_t)bench->bench.num_prompts, sizeof *o.requests);
    if (o.over < 0 || !o.prompt || !o.requests) {
        st = base_fail_errno(err, ERR_NOMEM, "cannot begin");
        goto out;
    }
    TRY(open_engine(&o, serve, err));
    if (bench->bench.latency)
        TRY(latency(&o, err));
    if (bench->bench.throughput)
        TRY(throughput(&o, err));
out:
    engine_stop(o.engine);
    engine_close(o.engine);
    group_close(o.group);
    setup_close(&o.setup);
    if (o.over >= 0)
        close(o.over);
    free(o.prompt);
    free(o.requests);
    return st;
}
