/* DESIGN: NCCL adds up what lies in a window by other kernels than the rest; which of them, and
 * whether they are any good on this machine, is for a test at start to say. Sums of odd sizes are
 * compared with fp64 and, bit for bit, between the ranks, for all ranks must draw the same token.
 * Then sums of three sizes are timed with the window and without, and that of a decode step's size
 * decides for all, which lie in one arena. Ranks decide by what all of them tell each other over
 * the bootstrap communicator; so one that fails alone is no deadlock, but inside NCCL's
 * registration, whose ranks wait for each other until the start's deadline. */
#include "engine/comm/comm_nccl_window.h"

#include "kernels/cuda/entry.h"
#include "kernels/numerics.h"

#include <cuda_runtime_api.h>
#include <math.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>

#if NCCL_VERSION_CODE < NCCL_VERSION(2, 27, 0)
#error "NCCL 2.27 or newer is wanted"
#endif

/* Elements: a row or two, a batch of decodes, part of a prompt. Those that the arena has room for
 * are timed. */
static const size_t timed[] = {4096, 65536, 524288};
static const int calls[] = {50, 10, 10}; /* after as many to warm up */

struct trial {
    struct comm *bootstrap;
    ncclComm_t nccl;
    struct backend *b;
    float *src, *dst, *host; /* on the device, on the device, and `room` elements here */
    size_t room;
    size_t space;                     /* elements of src and of dst */
    uint32_t ns[ARRAY_LEN(timed)][2]; /* of a sum without and with the window */
    uint32_t *mine[2], *all;          /* words of each rank; `mine` in turns, as comm.h asks */
    int32_t told;
};

/* *same: all ranks said the same word. The first rank's is in all[0]. */
static enum status tell(struct trial *t, uint32_t word, bool *same, struct err *err)
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

/* Whether all ranks could. */
static enum status all_could(struct trial *t, bool mine, bool *all, struct err *err)
{
    bool same;
    const enum status st = tell(t, mine, &same, err);
    *all = st == OK && same && mine;
    return st;
}

static float value(int32_t rank, size_t round, size_t i)
{
    const uint64_t x = numerics_mix(((uint64_t)rank << 48) ^ ((uint64_t)round << 32) ^ i);
    return (float)(int32_t)(uint32_t)x * 0x1p-31f;
}

static bool reduce(struct trial *t, size_t n)
{
    return ncclAllReduce(t->src, t->dst, n, ncclFloat32, ncclSum, t->nccl, cuda_stream(t->b)) ==
           ncclSuccess;
}

/* One sum of n elements; *good: near the truth, and its bits are those of all other ranks. */
static enum status try_sum(struct trial *t, size_t round, size_t n, bool *good, struct err *err)
{
    enum status st = OK;
    const int32_t ranks = t->bootstrap->ranks;
    bool near = true, same;
    for (size_t i = 0; i < n; i++)
        t->host[i] = value(t->bootstrap->rank, round, i);
    t->b->ops->upload(t->b, t->src, t->host, n * sizeof *t->host);
    near = reduce(t, n);
    TRY(t->b->ops->download(t->b, t->host, t->dst, n * sizeof *t->host, err));
    for (size_t i = 0; i < n; i++) {
        double exact = 0;
        for (int32_t r = 0; r < ranks; r++)
            exact += (double)value(r, round, i);
        near = near && fabs((double)t->host[i] - exact) <= 1e-6 * ranks;
    }
    TRY(tell(t, (uint32_t)base_hash(BASE_HASH_INIT, t->host, n * sizeof *t->host), &same, err));
    *good = *good && same;
    TRY(all_could(t, near, &same, err));
    *good = *good && same;
out:
    return st;
}

/* Again and again, so that what an earlier sum left behind shows. */
static enum status try_sums(struct trial *t, bool *good, struct err *err)
{
    static const size_t sizes[] = {1, 2, 3, 4095, 4096, 4099, 1, 65537, 17, 65536};
    enum status st = OK;
    *good = true;
    for (size_t i = 0; i < ARRAY_LEN(sizes) && *good; i++)
        TRY(try_sum(t, i, sizes[i] < t->room ? sizes[i] : t->room, good, err));
out:
    return st;
}

/* The i-th size; the first is cut to a small arena, and 0 ends them. */
static size_t size_timed(const struct trial *t, size_t i)
{
    const size_t n = i < ARRAY_LEN(timed) ? timed[i] : SIZE_MAX;
    return n <= t->space ? n : i == 0 ? t->space : 0;
}

/* Nanoseconds of the i-th sum, as the first rank has them. */
static enum status time_sum(struct trial *t, size_t i, uint32_t *ns, struct err *err)
{
    enum status st = OK;
    bool same;
    int64_t start = 0;
    for (int call = 0; call < 2 * calls[i]; call++) {
        if (call == calls[i]) {
            TRY(t->b->ops->download(t->b, t->host, t->dst, sizeof *t->host, err));
            start = base_now_ns();
        }
        (void)reduce(t, size_timed(t, i)); /* a failure is the test's to find */
    }
    TRY(t->b->ops->download(t->b, t->host, t->dst, sizeof *t->host, err));
    TRY(tell(t, (uint32_t)((base_now_ns() - start) / calls[i]), &same, err));
    *ns = t->all[0];
out:
    return st;
}

static enum status time_sums(struct trial *t, int with, struct err *err)
{
    enum status st = OK;
    for (size_t i = 0; size_timed(t, i) > 0; i++)
        TRY(time_sum(t, i, &t->ns[i][with], err));
out:
    return st;
}

/* Which way sums go, and what both take. */
static void tell_log(const struct trial *t, const char *why)
{
    char text[200] = "";
    for (size_t i = 0, n = 0; size_timed(t, i) > 0 && t->ns[i][1] > 0; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%zu KiB %.1f us (%.1f without)",
                              i > 0 ? ", " : ": ", size_timed(t, i) / 256, t->ns[i][1] * 1e-3,
                              t->ns[i][0] * 1e-3);
    if (why != NULL)
        base_log(LOG_INFO, "all-reduce without symmetric memory: %s%s", why, text);
    else
        base_log(LOG_INFO, "all-reduce in symmetric memory%s", text);
}

/* *why: NULL, or what is wrong with the window. */
static enum status judge(struct trial *t, struct comm_window *w, size_t bytes, const char **why,
                         struct err *err)
{
    enum status st = OK;
    bool good;
    ncclWindow_t handle = NULL;
    t->src = w->memory;
    t->dst = t->src + t->space;
    TRY(time_sums(t, 0, err));
    good = ncclCommWindowRegister(t->nccl, w->memory, bytes, &handle, NCCL_WIN_COLL_SYMMETRIC) ==
           ncclSuccess;
    w->handle = handle;
    TRY(all_could(t, good && handle != NULL, &good, err));
    *why = "NCCL has none here";
    if (!good)
        goto out;
    TRY(try_sums(t, &good, err));
    *why = "its sums are wrong";
    if (!good)
        goto out;
    TRY(time_sums(t, 1, err));
    *why = t->ns[0][1] < t->ns[0][0] ? NULL : "it is no faster";
out:
    return st;
}

static enum status open_trial(struct trial *t, size_t bytes, struct err *err)
{
    const size_t most = 65537;
    t->space = bytes / 2 / 64 * 64 / sizeof *t->host;
    t->room = t->space < most ? t->space : most;
    t->host = calloc(t->room + 1, sizeof *t->host);
    for (int i = 0; i < 2; i++)
        t->mine[i] = comm_buffer(t->bootstrap, sizeof *t->mine[i]);
    t->all = comm_buffer(t->bootstrap, (size_t)t->bootstrap->ranks * sizeof *t->all);
    if (t->host == NULL || t->mine[0] == NULL || t->mine[1] == NULL || t->all == NULL)
        return base_fail(err, ERR_NOMEM, "no memory to test symmetric memory");
    return OK;
}

enum status comm_window_open(struct comm *bootstrap, void *nccl, struct backend *b, size_t bytes,
                             struct comm_window *out, struct err *err)
{
    enum status st = OK;
    struct trial t = {.bootstrap = bootstrap, .nccl = nccl, .b = b};
    struct comm_window w = {0};
    const char *why = "there is no memory for it";
    bool good;
    *out = w;
    TRY(open_trial(&t, bytes, err));
    good = t.room > 0 && ncclMemAlloc(&w.memory, bytes) == ncclSuccess &&
           cudaMemsetAsync(w.memory, 0, bytes, cuda_stream(b)) == cudaSuccess;
    (void)cudaGetLastError(); /* no op's */
    TRY(all_could(&t, good, &good, err));
    if (good)
        TRY(judge(&t, &w, bytes, &why, err));
    if (bootstrap->rank == 0)
        tell_log(&t, why);
    if (why == NULL && cudaMemsetAsync(w.memory, 0, bytes, cuda_stream(b)) != cudaSuccess) {
        st = base_fail(err, ERR_DEVICE, "symmetric memory cannot be cleared");
    } else if (why == NULL) {
        *out = w;
        w = (struct comm_window){0};
    }
out:
    b->ops->sync(b);
    comm_window_close(&w, st == OK ? nccl : NULL); /* it may have been given up */
    free(t.host);
    return st;
}

void comm_window_close(struct comm_window *w, void *nccl)
{
    if (w->handle != NULL && nccl != NULL)
        (void)ncclCommWindowDeregister(nccl, w->handle);
    if (w->memory != NULL)
        (void)ncclMemFree(w->memory);
    *w = (struct comm_window){0};
}
