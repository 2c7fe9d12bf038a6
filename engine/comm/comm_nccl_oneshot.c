/* DESIGN: each rank shows its inbox to the others by CUDA's handles for memory of other processes,
 * which travel over the bootstrap communicator. Whether devices really reach each other is not what
 * the driver says but what a trial finds: its kernels give up by themselves. Sums go this way up to
 * the first size at which they take longer than otherwise; and so with the norm behind them. */
#include "engine/comm/comm_nccl_oneshot.h"

#include "kernels/cuda/cuda.h"

#include <cuda_runtime_api.h>
#include <math.h>
#include <stdlib.h>

#define PATIENCE (1u << 22) /* looks at an inbox, a few seconds */
#define WIDTH 4096          /* of rows in the trial */
#define EPS 1e-6f

/* What a rank tells of itself, in words. */
struct card {
    int32_t device;
    cudaIpcMemHandle_t memory;
};

struct judgement {
    const char *why; /* NULL, or why no sum goes this way */
    struct comm_times ours, other;
};

/* Sums with the norm behind them, and all that they need, in device memory. */
struct normed {
    struct comm_trial *t;
    const struct comm_oneshot *o;
    float *src, *x, *y, *sum, *gain; /* [ONESHOT_MAX] */
    bool apart;                      /* a sum, then the norm */
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

/* The largest of the sizes for which, and for all smaller ones, ours takes less; 0: none. */
static size_t faster_up_to(const struct judgement *j)
{
    size_t most = 0;
    for (size_t i = 0; i < COMM_TRIAL_SIZES && j->ours.n[i] > 0; i++) {
        if (j->ours.ns[i] >= j->other.ns[i])
            break;
        most = j->ours.n[i];
    }
    return most;
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
    o->max = faster_up_to(j);
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

/* ---- with the norm behind it ---- */

static struct add_norm norm_of(const struct normed *w, float *x, int32_t rows, int32_t cols)
{
    return (struct add_norm){view_f32(w->y, rows, cols), view_f32(x, rows, cols), w->gain, EPS};
}

/* x[n] += the sum of src[n]. */
static bool sum_normed(void *arg, float *x, const float *src, size_t n)
{
    const struct normed *w = arg;
    struct backend *b = comm_trial_backend(w->t);
    const int32_t cols = n % WIDTH == 0 ? WIDTH : (int32_t)n, rows = (int32_t)n / cols;
    const struct add_norm to = norm_of(w, x, rows, cols);
    if (!w->apart) {
        oneshot_norm(b, &w->o->with, &to, src);
        return true;
    }
    oneshot_sum(b, &w->o->with, w->sum, src, n);
    b->ops->add_rmsnorm(b, to.y, to.x, cview_of(view_f32(w->sum, rows, cols)), to.gain, EPS);
    return true;
}

/* What rank `of` adds; also what x is before and what the gain is, of ranks that do not exist. */
static float value(int32_t of, size_t i)
{
    return (float)(int32_t)(((uint32_t)i + 1) * 2654435761u ^ ((uint32_t)of << 24)) * 0x1p-31f;
}

static void fill(struct backend *b, float *dst, float *host, size_t n, int32_t of)
{
    for (size_t i = 0; i < n; i++)
        host[i] = value(of, i);
    b->ops->upload(b, dst, host, n * sizeof *host);
}

/* x[n], y[n] from the device, and y as it is made of x apart. */
static bool is_near(const float *x, const float *y, const float *apart, size_t n, int32_t ranks)
{
    bool near = true;
    for (size_t i = 0; i < n; i++) {
        double exact = (double)value(ranks, i);
        for (int32_t r = 0; r < ranks; r++)
            exact += (double)value(r, i);
        near = near && fabs((double)x[i] - exact) <= 1e-6 * (ranks + 1) &&
               fabsf(y[i] - apart[i]) <= 1e-5f * (1 + fabsf(apart[i]));
    }
    return near;
}

/* host: room for three matrices. *good: near the truth, and the bits are those of all ranks. */
static enum status check_norm(const struct normed *w, int32_t rows, int32_t cols, float *host,
                              bool *good, struct err *err)
{
    enum status st = OK;
    struct backend *b = comm_trial_backend(w->t);
    const int32_t ranks = w->o->with.ranks;
    const size_t n = (size_t)rows * (size_t)cols, bytes = n * sizeof *host;
    const struct add_norm to = norm_of(w, w->x, rows, cols);
    bool same;
    fill(b, w->src, host, n, w->o->with.rank);
    fill(b, w->x, host, n, ranks);
    fill(b, w->gain, host, (size_t)cols, ranks + 1);
    oneshot_norm(b, &w->o->with, &to, w->src);
    b->ops->rmsnorm(b, view_f32(w->sum, rows, cols), cview_of(to.x), w->gain, EPS);
    TRY(b->ops->download(b, host, w->x, bytes, err));
    TRY(b->ops->download(b, host + n, w->y, bytes, err));
    TRY(b->ops->download(b, host + 2 * n, w->sum, bytes, err));
    TRY(comm_trial_same(w->t, (uint32_t)base_hash(BASE_HASH_INIT, host, 2 * bytes), &same, err));
    TRY(comm_trial_agree(w->t, is_near(host, host + n, host + 2 * n, n, ranks), good, err));
    *good = *good && same;
out:
    return st;
}

/* Again and again, so that what an earlier one left behind shows. */
static enum status check_norms(const struct normed *w, bool *good, struct err *err)
{
    static const int32_t sizes[][2] = {{1, 1},  {3, 17},     {2, 513},   {1, WIDTH}, {7, 4099},
                                       {1, 17}, {16, WIDTH}, {128, 300}, {2, WIDTH}};
    enum status st = OK;
    float *host = malloc(3 * ONESHOT_MAX * sizeof *host);
    if (host == NULL)
        return base_fail(err, ERR_NOMEM, "no memory to try norms");
    *good = true;
    for (size_t i = 0; i < ARRAY_LEN(sizes) && *good; i++)
        if (oneshot_norm_size(sizes[i][0], sizes[i][1]) <= w->o->max)
            TRY(check_norm(w, sizes[i][0], sizes[i][1], host, good, err));
out:
    free(host);
    return st;
}

static enum status judge_norms(struct normed *w, struct comm_oneshot *o, struct judgement *j,
                               struct err *err)
{
    enum status st = OK;
    const struct comm_way way = {sum_normed, w};
    bool good;
    j->why = "it is wrong";
    TRY(check_norms(w, &good, err));
    if (!good)
        goto out;
    w->apart = true;
    TRY(comm_trial_time(w->t, &way, o->max, &j->other, err));
    w->apart = false;
    TRY(comm_trial_time(w->t, &way, o->max, &j->ours, err));
    TRY(check_norms(w, &good, err));
    if (good) {
        o->norm_max = faster_up_to(j);
        j->why = o->norm_max > 0 ? NULL : "it is no faster";
    }
out:
    return st;
}

static enum status try_norms(struct comm_trial *t, float *memory, struct comm_oneshot *o,
                             struct err *err)
{
    enum status st = OK;
    char text[240];
    struct judgement j = {.why = NULL};
    struct normed w = {.t = t, .o = o};
    float **const parts[] = {&w.src, &w.x, &w.y, &w.sum, &w.gain};
    void *mine[] = {t, o};
    const struct comm_way ours = {sum, mine};
    bool good;
    for (size_t i = 0; i < ARRAY_LEN(parts); i++)
        *parts[i] = memory + i * ONESHOT_MAX;
    TRY(judge_norms(&w, o, &j, err));
    TRY(comm_trial_check(t, &ours, o->max, &good, err));
    if (!good) /* ranks are out of step */
        o->max = o->norm_max = 0;
    comm_times_tell(&j.ours, &j.other, "apart", text, sizeof text);
    if (o->with.rank > 0)
        goto out;
    if (!good)
        base_log(LOG_WARN, "all-reduce without our one-shot kernel: with the norm it is wrong");
    else if (j.why != NULL)
        base_log(LOG_INFO, "norms apart from the all-reduce: %s%s", j.why, text);
    else
        base_log(LOG_INFO, "all-reduce of up to %zu KiB together with the norm behind it%s",
                 o->norm_max / 256, text);
out:
    return st;
}

/* ---- life ---- */

enum status comm_oneshot_open(struct comm_trial *t, const struct comm_way *other, void *staging,
                              size_t bytes, bool norms, struct comm_oneshot *out, struct err *err)
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
    if (bootstrap->rank == 0)
        tell_log(out, &j);
    if (norms && out->max > 0)
        TRY(try_norms(t, staging, out, err));
    out->with.patience = 0;
out:
    return st;
}

void comm_oneshot_sum(const struct comm_oneshot *o, struct backend *b, float *dst, const float *src,
                      size_t n)
{
    oneshot_sum(b, &o->with, dst, src, n);
}

bool comm_oneshot_has_norm(const struct comm_oneshot *o, int32_t rows, int32_t cols)
{
    const size_t size = oneshot_norm_size(rows, cols);
    return size > 0 && size <= o->norm_max;
}

void comm_oneshot_norm(const struct comm_oneshot *o, struct backend *b, const struct add_norm *to,
                       const float *src)
{
    oneshot_norm(b, &o->with, to, src);
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
