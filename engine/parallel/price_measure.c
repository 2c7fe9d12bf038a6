/* DESIGN: two points each. A small and a large collective give the time of meeting and of a byte; a
 * linear of one row and one of many give the time of reading a weight and of multiplying with it.
 * A trial lasts from the first rank's begin to the last one's end, since ranks that outnumber the
 * cores take turns. The least of several counts: what else the machine does only adds. */
#include "engine/parallel/price.h"

#include "engine/comm/comm.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum {
    TRIALS = 15,
    PAIRS = 10,                 /* of collectives in a trial */
    LARGE_ELEMENTS = 256 << 10, /* of all ranks together */
    ROWS = 32,                  /* of the larger linear */
    WIDTH = 2048,               /* inputs of the weight */
    OUTPUTS = 16384,            /* of all ranks together: more than caches hold */
    ARENA = 2 * LARGE_ELEMENTS * 4 + (64 << 10),
};

#define ENOUGH_SECONDS 0.5 /* for the trials of a kind */

/* What is timed: pairs of collectives, linears of one row and of many. */
enum kind { SMALL, LARGE, ONE, MANY, KINDS };

/* One rank. Owns what it points to, but for the region. */
struct trial {
    struct backend *backend;
    struct comm *comm;
    struct comm_stats stats;
    struct weight_spec spec;
    struct weight *weight;
    void *storage, *part, *whole;
    float *x, *y;
    double begin[KINDS][TRIALS], end[KINDS][TRIALS];
    struct trial *first;          /* rank 0, which says when it is enough: */
    _Atomic int32_t count[KINDS]; /* trials made */
    enum status st;
    struct err err;
};

static int32_t part_elements(const struct trial *t, int32_t size)
{
    const int32_t n = size / t->comm->ranks;
    return n > 0 ? n : 1;
}

/* What the layouts' collectives are made of: a gather, and a scatter that adds. */
static enum status pair(struct trial *t, int32_t size, struct err *err)
{
    enum status st = OK;
    int32_t cols[COMM_RANKS_MAX];
    size_t counts[COMM_RANKS_MAX];
    for (int32_t r = 0; r < t->comm->ranks; r++)
        counts[r] = (size_t)(cols[r] = part_elements(t, size));
    TRY(comm_all_gather(t->comm, t->whole, t->part, 1, cols, err));
    TRY(comm_reduce_scatter(t->comm, t->part, t->whole, counts, err));
out:
    return st;
}

static enum status linear(struct trial *t, int32_t rows, struct err *err)
{
    const enum dtype type = t->backend->ops->linear_in(t->backend, t->weight, rows);
    enum status st = backend_linear(t->backend, view_f32(t->y, rows, t->spec.out),
                                    (struct cview){t->x, type, rows, t->spec.in}, t->weight, err);
    t->backend->ops->sync(t->backend);
    return st;
}

static enum status perform(struct trial *t, enum kind kind, struct err *err)
{
    enum status st = OK;
    if (kind == ONE || kind == MANY)
        return linear(t, kind == ONE ? 1 : ROWS, err);
    for (int32_t i = 0; i < PAIRS; i++)
        TRY(pair(t, kind == SMALL ? 0 : LARGE_ELEMENTS, err));
out:
    return st;
}

/* Ranks stop together: the count is set before the barrier after which it is read. */
static enum status time_kind(struct trial *t, enum kind kind, struct err *err)
{
    enum status st = OK;
    _Atomic int32_t *count = &t->first->count[kind];
    const double start = base_now();
    for (int32_t i = 0;; i++) {
        if (t == t->first && (i == TRIALS || base_now() - start > ENOUGH_SECONDS) && i > 0)
            atomic_store(count, i);
        TRY(comm_barrier(t->comm, err));
        if (i == atomic_load(count))
            break;
        t->begin[kind][i] = base_now();
        TRY(perform(t, kind, err));
        t->end[kind][i] = base_now();
    }
out:
    return st;
}

static void *trial_main(void *arg)
{
    struct trial *t = arg;
    enum status st = OK;
    for (int kind = 0; kind < KINDS && st == OK; kind++)
        st = time_kind(t, (enum kind)kind, &t->err);
    t->st = st;
    if (st != OK)
        comm_abort(t->comm);
    return NULL;
}

/* ---- open, close ---- */

static enum status trial_open(struct trial *t, const char *device, int32_t rank, int32_t ranks,
                              int32_t threads, enum dtype dtype, void *region, struct err *err)
{
    enum status st = OK;
    const int32_t out = OUTPUTS / ranks;
    t->spec = (struct weight_spec){.out = out, .in = WIDTH, .dtype = dtype, .leaves = 1};
    t->spec.cut[1] = WIDTH;
    t->spec.scale_cols = dtype_is_int(dtype) ? BACKEND_GROUP : 0;
    for (int kind = 0; kind < KINDS; kind++)
        atomic_init(&t->count[kind], TRIALS);
    TRY(backend_open(device, threads, &t->backend, err));
    TRY(backend_reserve(t->backend, ROWS, WIDTH, out, err));
    TRY(comm_shm_open(region, rank, t->backend, &t->stats, &t->comm, err));
    const struct backend_ops *ops = t->backend->ops;
    t->part = comm_buffer(t->comm, 4 * (size_t)LARGE_ELEMENTS);
    t->whole = comm_buffer(t->comm, 4 * (size_t)LARGE_ELEMENTS);
    t->storage = ops->alloc(t->backend, ops->weight_bytes(&t->spec));
    t->x = ops->alloc(t->backend, 4 * (size_t)ROWS * WIDTH);
    t->y = ops->alloc(t->backend, 4 * (size_t)ROWS * (size_t)out);
    if (t->storage)
        t->weight = ops->weight_open(t->backend, &t->spec, t->storage);
    if (!t->part || !t->whole || !t->x || !t->y || !t->weight)
        st = base_fail(err, ERR_NOMEM, "no memory to measure rank %d", rank);
    else /* pages that were never written share one page of zeros */
        memset(t->storage, 0, ops->weight_bytes(&t->spec));
out:
    return st;
}

static void trial_close(struct trial *t)
{
    if (!t->backend)
        return;
    const struct backend_ops *ops = t->backend->ops;
    if (t->weight)
        ops->weight_close(t->weight);
    ops->free(t->backend, t->storage);
    ops->free(t->backend, t->x);
    ops->free(t->backend, t->y);
    comm_close(t->comm);
    backend_close(t->backend);
}

/* All ranks at once; those that started are waited for. */
static enum status run_all(struct trial *trials, int32_t ranks, struct err *err)
{
    enum status st = OK;
    pthread_t threads[COMM_RANKS_MAX];
    int32_t started = 0;
    while (started < ranks &&
           pthread_create(&threads[started], NULL, trial_main, &trials[started]) == 0)
        started++;
    if (started < ranks) {
        st = base_fail(err, ERR_NOMEM, "no thread to measure rank %d", started);
        comm_abort(trials[0].comm);
    }
    for (int32_t r = 0; r < started; r++) {
        pthread_join(threads[r], NULL);
        if (st == OK && trials[r].st != OK)
            st = base_fail(err, trials[r].st, "measuring rank %d: %s", r, trials[r].err.text);
    }
    return st;
}

static double least(const struct trial *trials, int32_t ranks, enum kind kind)
{
    double best = INFINITY;
    for (int32_t i = 0; i < trials[0].count[kind]; i++) {
        double begin = INFINITY, end = 0;
        for (int32_t r = 0; r < ranks; r++) {
            begin = fmin(begin, trials[r].begin[kind][i]);
            end = fmax(end, trials[r].end[kind][i]);
        }
        best = fmin(best, end - begin);
    }
    return best;
}

static struct price conclude(const struct trial *trials, int32_t ranks)
{
    const struct trial *t = &trials[0];
    const double small = least(trials, ranks, SMALL) / PAIRS;
    const double large = least(trials, ranks, LARGE) / PAIRS;
    const double one = least(trials, ranks, ONE), many = least(trials, ranks, MANY);
    const double elements = (double)t->spec.out * t->spec.in;
    const double bytes = (double)t->backend->ops->weight_bytes(&t->spec);
    const double moved = 2.0 * 4 * part_elements(t, LARGE_ELEMENTS) * (ranks - 1);
    struct price p = {.meet = small / 2};
    p.byte = moved > 0 ? fmax(large - small, 0) / moved : 0;
    p.mac = fmax(many - one, 0) / (elements * (ROWS - 1));
    p.weight = fmax(one - elements * p.mac, 0) / bytes;
    return p;
}

enum status price_measure(const char *device, int32_t ranks, int32_t threads, enum dtype dtype,
                          struct price *out, struct err *err)
{
    enum status st = OK;
    const size_t bytes = base_align(comm_shm_bytes(ranks, ARENA), 4096);
    struct trial *trials = NULL;
    void *region = MAP_FAILED;
    if (strncmp(device, "cuda", 4) == 0)
        return base_fail(err, ERR_USAGE,
                         "device %s is not measured, only ranks on the CPU are; say what things "
                         "cost with --prices FILE",
                         device);
    trials = calloc((size_t)ranks, sizeof *trials);
    region = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (!trials || region == MAP_FAILED) {
        st = base_fail(err, ERR_NOMEM, "no memory to measure %d ranks", ranks);
        goto out;
    }
    comm_shm_init(region, ranks, ARENA);
    for (int32_t r = 0; r < ranks; r++) {
        trials[r].first = &trials[0];
        TRY(trial_open(&trials[r], device, r, ranks, threads, dtype, region, err));
    }
    TRY(run_all(trials, ranks, err));
    *out = conclude(trials, ranks);
out:
    for (int32_t r = 0; trials && r < ranks; r++)
        trial_close(&trials[r]);
    if (region != MAP_FAILED)
        munmap(region, bytes);
    free(trials);
    return st;
}
