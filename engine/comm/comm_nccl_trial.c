/* DESIGN: the ranks decide by what all of them tell each other over the bootstrap communicator, a
 * word at a time; so a rank that fails alone is no deadlock. */
#include "engine/comm/comm_nccl_trial.h"

#include "kernels/numerics.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECKED_MAX 65537 /* elements of the largest sum that is compared */

static const size_t timed[COMM_TRIAL_SIZES] = {4096, 16384, 65536, 524288};
#ifndef TRIAL_CALLS
#define TRIAL_CALLS 50, 20, 10, 10
#endif
#ifdef TRIAL_CLOCK
int64_t TRIAL_CLOCK(void); /* a test's */
#else
#define TRIAL_CLOCK base_now_ns
#endif
static const int calls[COMM_TRIAL_SIZES] = {TRIAL_CALLS}; /* after as many to warm up */

struct comm_trial {
    struct comm *bootstrap;
    struct backend *b;
    float *src, *dst, *host; /* on the device, on the device, and `room` elements here */
    size_t space, room;      /* elements of src and of dst; of a sum that is compared */
    uint32_t *mine[2], *all; /* words of each rank; `mine` in turns, as comm.h asks */
    int32_t told;
};

enum status comm_trial_open(struct comm *bootstrap, struct backend *b, size_t space,
                            struct comm_trial **out, struct err *err)
{
    struct comm_trial *t = calloc(1, sizeof *t);
    if (t == NULL)
        return base_fail(err, ERR_NOMEM, "no memory to try sums");
    t->bootstrap = bootstrap;
    t->b = b;
    t->space = space;
    t->room = space < CHECKED_MAX ? space : CHECKED_MAX;
    t->host = calloc(t->room + 1, sizeof *t->host);
    for (int i = 0; i < 2; i++)
        t->mine[i] = comm_buffer(bootstrap, sizeof *t->mine[i]);
    t->all = comm_buffer(bootstrap, (size_t)bootstrap->ranks * sizeof *t->all);
    if (t->host == NULL || t->mine[0] == NULL || t->mine[1] == NULL || t->all == NULL) {
        comm_trial_close(t);
        return base_fail(err, ERR_NOMEM, "no memory to try sums");
    }
    *out = t;
    return OK;
}

void comm_trial_close(struct comm_trial *t)
{
    if (t == NULL)
        return;
    free(t->host);
    free(t);
}

void comm_trial_use(struct comm_trial *t, float *memory)
{
    t->src = memory;
    t->dst = memory + t->space;
}

struct comm *comm_trial_bootstrap(struct comm_trial *t)
{
    return t->bootstrap;
}

struct backend *comm_trial_backend(struct comm_trial *t)
{
    return t->b;
}

/* ---- what the ranks tell each other ---- */

/* The first rank's word is then in all[0]. */
enum status comm_trial_same(struct comm_trial *t, uint32_t word, bool *same, struct err *err)
{
    enum status st = OK;
    uint32_t *mine = t->mine[t->told++ % 2];
    int32_t one[COMM_RANKS_MAX];
    for (int32_t i = 0; i < t->bootstrap->ranks; i++)
        one[i] = 1;
    *mine = word;
    TRY(comm_all_gather(t->bootstrap, t->all, mine, 1, one, err));
    *same = true;
    for (int32_t i = 0; i < t->bootstrap->ranks; i++)
        *same = *same && t->all[i] == t->all[0];
out:
    return st;
}

enum status comm_trial_agree(struct comm_trial *t, bool mine, bool *all, struct err *err)
{
    bool same;
    const enum status st = comm_trial_same(t, mine, &same, err);
    *all = st == OK && same && mine;
    return st;
}

/* ---- are they right? ---- */

static float value(int32_t rank, size_t round, size_t i)
{
    const uint64_t x = numerics_mix(((uint64_t)rank << 48) ^ ((uint64_t)round << 32) ^ i);
    return (float)(int32_t)(uint32_t)x * 0x1p-31f;
}

/* One sum of n elements; *good: near the truth, and its bits are those of all other ranks. */
static enum status check_sum(struct comm_trial *t, const struct comm_way *way, size_t round,
                             size_t n, bool *good, struct err *err)
{
    enum status st = OK;
    const int32_t ranks = t->bootstrap->ranks;
    bool near = true, same;
    for (size_t i = 0; i < n; i++)
        t->host[i] = value(t->bootstrap->rank, round, i);
    t->b->ops->upload(t->b, t->src, t->host, n * sizeof *t->host);
    near = way->sum(way->arg, t->dst, t->src, n);
    TRY(t->b->ops->download(t->b, t->host, t->dst, n * sizeof *t->host, err));
    for (size_t i = 0; i < n; i++) {
        double exact = 0;
        for (int32_t r = 0; r < ranks; r++)
            exact += (double)value(r, round, i);
        near = near && fabs((double)t->host[i] - exact) <= 1e-6 * ranks;
    }
    TRY(comm_trial_same(t, (uint32_t)base_hash(BASE_HASH_INIT, t->host, n * sizeof *t->host), &same,
                        err));
    *good = *good && same;
    TRY(comm_trial_agree(t, near, &same, err));
    *good = *good && same;
out:
    return st;
}

/* Again and again, so that what an earlier sum left behind shows. */
enum status comm_trial_check(struct comm_trial *t, const struct comm_way *way, size_t most,
                             bool *good, struct err *err)
{
    static const size_t sizes[] = {1, 2, 3, 4095, 4096, 4099, 1, CHECKED_MAX, 17, 65536};
    enum status st = OK;
    most = most < t->room ? most : t->room;
    *good = true;
    for (size_t i = 0; i < ARRAY_LEN(sizes) && *good; i++)
        TRY(check_sum(t, way, i, sizes[i] < most ? sizes[i] : most, good, err));
out:
    return st;
}

/* ---- what do they take? ---- */

/* Nanoseconds of a sum of n elements, as the first rank has them. */
static enum status time_sum(struct comm_trial *t, const struct comm_way *way, size_t n, int count,
                            uint32_t *ns, struct err *err)
{
    enum status st = OK;
    bool same;
    int64_t start = 0;
    for (int call = 0; call < 2 * count; call++) {
        if (call == count) {
            TRY(t->b->ops->download(t->b, t->host, t->dst, sizeof *t->host, err));
            start = TRIAL_CLOCK();
        }
        (void)way->sum(way->arg, t->dst, t->src, n); /* a failure is the check's to find */
    }
    TRY(t->b->ops->download(t->b, t->host, t->dst, sizeof *t->host, err));
    const int64_t each = (TRIAL_CLOCK() - start) / count;
    TRY(comm_trial_same(t, each < UINT32_MAX ? (uint32_t)each : UINT32_MAX, &same, err));
    *ns = t->all[0];
out:
    return st;
}

enum status comm_trial_time(struct comm_trial *t, const struct comm_way *way, size_t most,
                            struct comm_times *out, struct err *err)
{
    enum status st = OK;
    most = most < t->space ? most : t->space;
    *out = (struct comm_times){{0}, {0}};
    for (size_t i = 0; i < COMM_TRIAL_SIZES; i++) {
        const size_t n = i == 0 && most < timed[0] ? most : timed[i];
        if (n > most || n == 0)
            break;
        TRY(time_sum(t, way, n, calls[i], &out->ns[i], err));
        out->n[i] = n;
    }
out:
    return st;
}

void comm_times_tell(const struct comm_times *ours, const struct comm_times *other,
                     const char *word, char *text, size_t n)
{
    size_t at = 0;
    text[0] = '\0';
    for (size_t i = 0; i < COMM_TRIAL_SIZES && ours->n[i] > 0 && at < n; i++)
        at +=
            (size_t)snprintf(text + at, n - at, "%s%zu KiB %.1f us (%.1f %s)", i > 0 ? ", " : ": ",
                             ours->n[i] / 256, ours->ns[i] * 1e-3, other->ns[i] * 1e-3, word);
}
