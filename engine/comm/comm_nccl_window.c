/* DESIGN: NCCL adds up what lies in a window by other kernels than the rest; which of them, and
 * whether they are any good on this machine, is for a trial at start to say. The time of a decode
 * step's size decides for all sums, which lie in one arena. What can still hang is NCCL's
 * registration, whose ranks wait for each other until the start's deadline.
 *
 * A trial cannot see everything: kernels for windows start before what ran ahead of them has ended,
 * and NCCL 2.28.3 to 2.30.6 forgot to wait for its memory (2.30.7 waits again: its commit 2948185d,
 * release notes "point of coherency"). There are no windows with those. */
#include "engine/comm/comm_nccl_window.h"

#include "kernels/cuda/entry.h"

#include <cuda_runtime_api.h>
#include <nccl.h>

#if NCCL_VERSION_CODE < NCCL_VERSION(2, 27, 0)
#error "NCCL 2.27 or newer is wanted"
#endif

/* Of the library that is loaded, which is the same for all ranks. */
static bool waits_for_memory(void)
{
    int version = 0;
    return ncclGetVersion(&version) == ncclSuccess &&
           (version < NCCL_VERSION(2, 28, 3) || version >= NCCL_VERSION(2, 30, 7));
}

struct judgement {
    const char *why; /* NULL, or what is wrong with the window */
    struct comm_times with, without;
};

static void tell_log(const struct judgement *j)
{
    char text[240];
    comm_times_tell(&j->with, &j->without, "without", text, sizeof text);
    if (j->why != NULL)
        base_log(LOG_INFO, "all-reduce without symmetric memory: %s%s", j->why, text);
    else
        base_log(LOG_INFO, "all-reduce in symmetric memory%s", text);
}

static enum status judge(struct comm_trial *t, ncclComm_t nccl, const struct comm_way *way,
                         struct comm_window *w, size_t bytes, struct judgement *out,
                         struct err *err)
{
    enum status st = OK;
    bool good;
    ncclWindow_t handle = NULL;
    comm_trial_use(t, w->memory);
    TRY(comm_trial_time(t, way, SIZE_MAX, &out->without, err));
    good = ncclCommWindowRegister(nccl, w->memory, bytes, &handle, NCCL_WIN_COLL_SYMMETRIC) ==
           ncclSuccess;
    w->handle = handle;
    TRY(comm_trial_agree(t, good && handle != NULL, &good, err));
    out->why = "NCCL has none here";
    if (!good)
        goto out;
    TRY(comm_trial_check(t, way, SIZE_MAX, &good, err));
    out->why = "its sums are wrong";
    if (!good)
        goto out;
    TRY(comm_trial_time(t, way, SIZE_MAX, &out->with, err));
    out->why = out->with.ns[0] < out->without.ns[0] ? NULL : "it is no faster";
out:
    return st;
}

enum status comm_window_open(struct comm_trial *t, void *nccl, const struct comm_way *nccl_way,
                             size_t bytes, struct comm_window *out, struct err *err)
{
    enum status st = OK;
    struct backend *b = comm_trial_backend(t);
    struct comm_window w = {0};
    struct judgement j = {.why = "there is no memory for it"};
    *out = (struct comm_window){0};
    if (!waits_for_memory()) {
        if (comm_trial_bootstrap(t)->rank == 0)
            base_log(LOG_INFO,
                     "all-reduce without symmetric memory: NCCL 2.28.3 to 2.30.6 add what "
                     "may not have been written yet");
        return OK;
    }
    bool good = ncclMemAlloc(&w.memory, bytes) == ncclSuccess &&
                cudaMemsetAsync(w.memory, 0, bytes, cuda_stream(b)) == cudaSuccess;
    (void)cudaGetLastError(); /* no op's */
    TRY(comm_trial_agree(t, good, &good, err));
    if (good)
        TRY(judge(t, nccl, nccl_way, &w, bytes, &j, err));
    if (comm_trial_bootstrap(t)->rank == 0)
        tell_log(&j);
    w.is_good = j.why == NULL;
    if (w.is_good && cudaMemsetAsync(w.memory, 0, bytes, cuda_stream(b)) != cudaSuccess)
        st = base_fail(err, ERR_DEVICE, "symmetric memory cannot be cleared");
out:
    b->ops->sync(b);
    *out = w; /* its owner knows whether NCCL has been given up, and still needs the memory */
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
