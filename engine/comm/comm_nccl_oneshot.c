/* DESIGN: each rank shows its inbox to the others by CUDA's handles for memory of other processes,
 * which travel over the bootstrap communicator. Whether devices really reach each other is not what
 * the driver says but what a trial finds: its kernels give up by themselves. Sums go this way up to
 * the first size at which they take longer than otherwise. */
#include "engine/comm/comm_nccl_oneshot.h"

#include "kernels/cuda/cuda.h"

#include <cuda_runtime_api.h>

#define PATIENCE (1u << 22) /* looks at an inbox, a few seconds */

/* What a rank tells of itself, in words. */
struct card {
    int32_t device;
    cudaIpcMemHandle_t memory;
};

struct judgement {
    const char *why; /* NULL, or why no sum goes this way */
    struct comm_times ours, other;
};

size_t comm_oneshot_bytes(int32_t ranks)
{
    const bool fits = ranks > 1 && ranks <= ONESHOT_RANKS_MAX;
    return fits ? base_align(oneshot_inbox_bytes(ranks), 256) : 0;
}

static bool sum(void *arg, float *dst, const float *src, size_t n)
{
    struct comm_trial *t = ((void **)arg)[0];
    const struct comm_oneshot *o = ((void **)arg)[1];
    comm_oneshot_sum(o, comm_trial_backend(t), dst, src, n);
    return true;
}

/* The memory of all ranks, where this one reaches it. */
static bool map_peers(struct comm_oneshot *o, const struct card *cards, size_t offset)
{
    for (int32_t r = 0; r < o->with.ranks; r++) {
        int reaches = 0;
        if (r == o->with.rank)
            continue;
        if (cudaDeviceCanAccessPeer(&reaches, cards[o->with.rank].device, cards[r].device) !=
                cudaSuccess ||
            !reaches ||
            cudaIpcOpenMemHandle(&o->mapped[r], cards[r].memory, cudaIpcMemLazyEnablePeerAccess) !=
                cudaSuccess)
            return false;
        o->with.inbox[r] = (char *)o->mapped[r] + offset;
    }
    return true;
}

/* *good: every rank's inbox is empty, and open to all. */
static enum status meet(struct comm_trial *t, struct comm_oneshot *o, char *staging, size_t offset,
                        bool *good, struct err *err)
{
    enum status st = OK;
    struct comm *bootstrap = comm_trial_bootstrap(t);
    struct backend *b = comm_trial_backend(t);
    struct card *mine = comm_buffer(bootstrap, sizeof *mine);
    struct card *all = comm_buffer(bootstrap, (size_t)bootstrap->ranks * sizeof *all);
    int32_t words[ONESHOT_RANKS_MAX];
    if (mine == NULL || all == NULL)
        return base_fail(err, ERR_INTERNAL, "the bootstrap communicator has no room for handles");
    for (int32_t r = 0; r < bootstrap->ranks; r++)
        words[r] = sizeof *mine / 4;
    *mine = (struct card){.device = cuda_of(b)->device};
    *good = cudaMallocHost((void **)&o->stop, sizeof *o->stop) == cudaSuccess &&
            cudaMemsetAsync(staging + offset, 0, comm_oneshot_bytes(bootstrap->ranks),
                            cuda_of(b)->stream) == cudaSuccess &&
            cudaIpcGetMemHandle(&mine->memory, staging) == cudaSuccess;
    if (o->stop != NULL)
        *o->stop = 0;
    b->ops->sync(b); /* before a peer hears of it */
    TRY(comm_all_gather(bootstrap, all, mine, 1, words, err));
    TRY(comm_trial_agree(t, *good, good, err));
    if (!*good)
        goto out;
    o->with = (struct oneshot){
        .rank = bootstrap->rank, .ranks = bootstrap->ranks, .stop = o->stop, .patience = PATIENCE};
    o->with.inbox[o->with.rank] = staging + offset;
    TRY(comm_trial_agree(t, map_peers(o, all, offset), good, err));
out:
    (void)cudaGetLastError(); /* no op's */
    return st;
}

static enum status judge(struct comm_trial *t, const struct comm_way *other, struct comm_oneshot *o,
                         struct judgement *j, struct err *err)
{
    enum status st = OK;
    void *mine[] = {t, o};
    const struct comm_way ours = {sum, mine};
    bool good;
    TRY(comm_trial_check(t, &ours, ONESHOT_MAX, &good, err));
    j->why = "its sums are wrong";
    if (!good)
        goto out;
    TRY(comm_trial_time(t, other, ONESHOT_MAX, &j->other, err));
    TRY(comm_trial_time(t, &ours, ONESHOT_MAX, &j->ours, err));
    TRY(comm_trial_check(t, &ours, ONESHOT_MAX, &good, err));
    if (!good) /* one that was given up meanwhile has left the ranks out of step */
        goto out;
    for (size_t i = 0; i < COMM_TRIAL_SIZES && j->ours.n[i] > 0; i++) {
        if (j->ours.ns[i] >= j->other.ns[i])
            break;
        o->max = j->ours.n[i];
    }
    j->why = o->max > 0 ? NULL : "it is no faster";
out:
    return st;
}

static void tell_log(const struct comm_oneshot *o, const struct judgement *j)
{
    char text[240];
    comm_times_tell(&j->ours, &j->other, "without", text, sizeof text);
    if (j->why != NULL)
        base_log(LOG_INFO, "all-reduce without our one-shot kernel: %s%s", j->why, text);
    else
        base_log(LOG_INFO, "all-reduce of up to %zu KiB by our one-shot kernel%s", o->max / 256,
                 text);
}

enum status comm_oneshot_open(struct comm_trial *t, const struct comm_way *other, void *staging,
                              size_t bytes, struct comm_oneshot *out, struct err *err)
{
    enum status st = OK;
    const struct comm *bootstrap = comm_trial_bootstrap(t);
    const size_t offset = bytes - comm_oneshot_bytes(bootstrap->ranks);
    struct judgement j = {.why = "a device does not reach another's memory"};
    bool good;
    *out = (struct comm_oneshot){.max = 0};
    TRY(meet(t, out, staging, offset, &good, err));
    if (good)
        TRY(judge(t, other, out, &j, err));
    out->with.patience = 0;
    if (bootstrap->rank == 0)
        tell_log(out, &j);
out:
    return st;
}

void comm_oneshot_sum(const struct comm_oneshot *o, struct backend *b, float *dst, const float *src,
                      size_t n)
{
    oneshot_sum(b, &o->with, dst, src, n);
}

void comm_oneshot_stop(struct comm_oneshot *o)
{
    if (o->stop != NULL)
        __atomic_store_n(o->stop, 1, __ATOMIC_RELAXED);
}

void comm_oneshot_close(struct comm_oneshot *o)
{
    comm_oneshot_stop(o); /* for nobody answers any more */
    for (int32_t r = 0; r < ONESHOT_RANKS_MAX; r++)
        if (o->mapped[r] != NULL)
            (void)cudaIpcCloseMemHandle(o->mapped[r]);
    if (o->stop != NULL)
        (void)cudaFreeHost(o->stop);
    *o = (struct comm_oneshot){.max = 0};
}
