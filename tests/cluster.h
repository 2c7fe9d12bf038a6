/* A rank group as threads of the test process, running the product's rank_open and rank_step over
 * plain memory: what the processes of `tessera serve` run, visible to the sanitizers. */
#ifndef TESSERA_TESTS_CLUSTER_H
#define TESSERA_TESTS_CLUSTER_H

#include "engine/rank.h"
#include "server/setup.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Of a rank's thread: whose it is, and how its last task went. */
struct cluster_call {
    struct cluster *c;
    int32_t rank;
    enum status st;
    struct err err;
};

struct cluster {
    struct setup setup;
    struct footprint footprint;
    struct rank_memory memory[COMM_RANKS_MAX];
    size_t comm_bytes; /* of all of memory's comm */
    struct board *board;
    struct rank *ranks[COMM_RANKS_MAX];
    struct step *step;
    int32_t home; /* of slots that are opened */
    uint64_t seq;
    /* a thread for each rank, from open to close: the step begins when they and the caller have met
     * at the gate, and ends when they meet again */
    pthread_t threads[COMM_RANKS_MAX];
    struct cluster_call calls[COMM_RANKS_MAX];
    pthread_barrier_t gate;
    enum { CLUSTER_OPEN, CLUSTER_STEP, CLUSTER_END } task;
    /* of the last step, per rank */
    struct step_result result[COMM_RANKS_MAX];
    struct cview logits[COMM_RANKS_MAX];
    void *fetched[COMM_RANKS_MAX]; /* logits that were on a device */
};

enum { CLUSTER_PAGE = 4096 };

/* Fresh pages are zeros, and cost nothing until they are touched, as most of a KV cache never is.
 * Behind them is one that nobody can touch. */
static void *cluster_map(size_t bytes)
{
    const size_t n = base_align(bytes + 1, CLUSTER_PAGE);
    char *p =
        mmap(NULL, n + CLUSTER_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED);
    CHECK(mprotect(p + n, CLUSTER_PAGE, PROT_NONE) == 0);
    return p;
}

static void cluster_unmap(void *p, size_t bytes)
{
    CHECK(!p || munmap(p, base_align(bytes + 1, CLUSTER_PAGE) + CLUSTER_PAGE) == 0);
}

static enum status cluster_work(struct cluster *c, int32_t r, struct err *err)
{
    if (c->task == CLUSTER_OPEN)
        return rank_open(&c->setup.options, &c->setup.model, c->setup.layouts[r], &c->footprint,
                         &c->memory[r], &c->ranks[r], err);
    return rank_step(c->ranks[r], c->step, &c->result[r], &c->logits[r], err);
}

static void *cluster_thread(void *arg)
{
    struct cluster_call *k = arg;
    for (;;) {
        pthread_barrier_wait(&k->c->gate);
        if (k->c->task == CLUSTER_END)
            return NULL;
        k->st = cluster_work(k->c, k->rank, &k->err);
        pthread_barrier_wait(&k->c->gate);
    }
}

static void cluster_start(struct cluster *c)
{
    CHECK(pthread_barrier_init(&c->gate, NULL, (unsigned)c->footprint.ranks + 1) == 0);
    for (int32_t r = 0; r < c->footprint.ranks; r++) {
        c->calls[r] = (struct cluster_call){.c = c, .rank = r};
        CHECK(pthread_create(&c->threads[r], NULL, cluster_thread, &c->calls[r]) == 0);
    }
}

static void cluster_end(struct cluster *c)
{
    c->task = CLUSTER_END;
    pthread_barrier_wait(&c->gate);
    for (int32_t r = 0; r < c->footprint.ranks; r++)
        pthread_join(c->threads[r], NULL);
    pthread_barrier_destroy(&c->gate);
}

/* Opens all ranks, or runs c->step on them. */
static void cluster_run(struct cluster *c, bool open)
{
    c->task = open ? CLUSTER_OPEN : CLUSTER_STEP;
    pthread_barrier_wait(&c->gate);
    pthread_barrier_wait(&c->gate);
    for (int32_t r = 0; r < c->footprint.ranks; r++) {
        if (c->calls[r].st != OK)
            fprintf(stderr, "rank %d: %s\n", r, c->calls[r].err.text);
        CHECK(c->calls[r].st == OK);
    }
}

/* Of steps that give whole tables to all slots, where layers slide, too. */
static inline struct step_limits cluster_limits(const struct cluster *c)
{
    struct step_limits limits = c->footprint.limits;
    limits.groups = (struct kv_groups){.keep = kv_groups_count(&limits.groups)};
    return limits;
}

/* args: extra options, NULL-terminated. */
static struct cluster *cluster_open(const char *model, int32_t ranks, const char *const *args)
{
    struct cluster *c = calloc(1, sizeof *c);
    CHECK(c != NULL);
    struct err err = {""};
    struct options o;
    bool help;
    char tp[32], plan[] = "plan", path[1024];
    char *argv[24] = {plan, path, tp};
    int argc = 3;
    snprintf(tp, sizeof tp, "-tp=%d", ranks);
    snprintf(path, sizeof path, "%s", model);
    for (; args && *args; args++)
        argv[argc++] = (char *)(uintptr_t)*args;
    enum status st = options_parse(argc, argv, &o, &help, &err);
    if (st == OK)
        st = setup_open(&o, &c->setup, &err);
    if (st == OK)
        st = footprint_plan(&c->setup.options, &c->setup.model, c->setup.flow, &c->footprint, &err);
    options_close(&o);
    if (st != OK)
        fprintf(stderr, "%s: %s\n", model, err.text);
    CHECK(st == OK);
    c->comm_bytes = comm_shm_bytes(ranks, footprint_shared_bytes(&c->footprint));
    void *comm = cluster_map(c->comm_bytes);
    comm_shm_init(comm, ranks, footprint_shared_bytes(&c->footprint));
    c->board = cluster_map(sizeof *c->board);
    for (int32_t r = 0; r < ranks; r++) {
        c->memory[r] = (struct rank_memory){.comm = comm, .board = &c->board->rank[r]};
        if (c->footprint.on_device)
            continue;
        c->memory[r].weights = cluster_map(c->footprint.rank[r].weights);
        c->memory[r].kv = cluster_map(c->footprint.rank[r].kv);
    }
    const struct step_limits limits = cluster_limits(c);
    st = step_open_new(&limits, &c->step, &err);
    CHECK(st == OK);
    cluster_start(c);
    cluster_run(c, true);
    return c;
}

static void cluster_close(struct cluster *c)
{
    const struct footprint *f = &c->footprint;
    cluster_end(c);
    for (int32_t r = 0; r < f->ranks; r++) {
        rank_close(c->ranks[r]);
        cluster_unmap(c->memory[r].weights, f->rank[r].weights);
        cluster_unmap(c->memory[r].kv, f->rank[r].kv);
        free(c->fetched[r]);
    }
    cluster_unmap(c->memory[0].comm, c->comm_bytes);
    cluster_unmap(c->board, sizeof *c->board);
    step_free(c->step);
    setup_close(&c->setup);
    free(c);
}

/* Block tables of a slot for so many positions, out of `most` blocks from `first` on. Where layers
 * slide a few blocks take turns: whoever looked back beyond the window would see what is ahead. */
static inline void cluster_append(struct cluster *c, int32_t slot, int32_t positions, int32_t first,
                                  int32_t most)
{
    struct step *s = c->step;
    const struct step_limits *l = &c->footprint.limits;
    const struct kv_groups *groups = &l->groups;
    const struct kv_groups sliding = {.slide = 1, .window = groups->window};
    const int32_t blocks = kv_blocks_for(positions);
    const int32_t turn = (int32_t)kv_groups_need(&sliding, positions, l->home_rows);
    CHECK(groups->keep * blocks + groups->slide * turn <= most);
    for (int32_t g = 0; g < kv_groups_count(groups); g++) {
        const int32_t count = g < groups->keep ? blocks : turn;
        for (int32_t i = 0; i < blocks; i++) {
            CHECK(s->appends < s->append_max);
            s->append[s->appends++] = (struct step_append){slot, g, i, first + i % count};
        }
        first += count;
    }
}

/* Opens slot `slot` with the prompt given and a private range of blocks. */
static inline void cluster_open_slot(struct cluster *c, int32_t slot, const int32_t *tokens,
                                     int32_t n, int32_t positions, struct sample_params params)
{
    struct step *s = c->step;
    s->open[s->opens++] = (struct step_open){.slot = slot,
                                             .history = n,
                                             .home = c->home,
                                             .state = -1,
                                             .tokens = tokens,
                                             .params = params,
                                             .rules = {.prompt = n, .repetition = 1}};
    const int32_t per_slot = c->footprint.limits.blocks / c->footprint.limits.slots;
    cluster_append(c, slot, positions, slot * per_slot, per_slot);
}

static void cluster_row(struct cluster *c, int32_t slot, int32_t position, int32_t token,
                        bool sample)
{
    struct step *s = c->step;
    s->slot[s->rows] = slot;
    s->position[s->rows] = position;
    s->token[s->rows] = token;
    s->keep[s->rows] = -1;
    if (sample) {
        s->sample[s->samples] = s->rows;
        s->target[s->samples] = s->limits.columns == 0 ? STEP_TARGET_SAMPLE : 0;
        s->mask[s->samples] = -1;
        s->top[s->samples++] = -1;
    }
    s->rows++;
}

/* Logits of a device, to host memory of the cluster. */
static void cluster_fetch_logits(struct cluster *c)
{
    struct err err;
    for (int32_t r = 0; r < c->footprint.ranks && c->footprint.on_device; r++) {
        struct backend *b = rank_backend(c->ranks[r]);
        const size_t bytes = (size_t)c->logits[r].rows * (size_t)c->logits[r].cols * sizeof(float);
        c->fetched[r] = realloc(c->fetched[r], bytes + 1);
        CHECK(c->fetched[r] != NULL);
        CHECK(b->ops->download(b, c->fetched[r], c->logits[r].data, bytes, &err) == OK);
        c->logits[r].data = c->fetched[r];
    }
}

/* Runs the step on all ranks through its wire form and clears it. */
static inline void cluster_step(struct cluster *c)
{
    struct err err;
    struct step *wire;
    const struct step_limits limits = cluster_limits(c);
    void *bytes = malloc(step_bytes_max(&limits));
    CHECK(bytes != NULL);
    CHECK(step_open_new(&limits, &wire, &err) == OK);
    c->step->epoch = 1;
    c->step->seq = ++c->seq;
    size_t n = step_encode(c->step, bytes);
    CHECK(step_decode(wire, bytes, n, &err) == OK);
    struct step *mine = c->step;
    c->step = wire;
    cluster_run(c, false);
    cluster_fetch_logits(c);
    c->step = mine;
    step_clear(mine);
    step_free(wire);
    free(bytes);
}

#endif
