/* DESIGN: a backend is one device, one stream and the scratch that ops need, allocated at open and
 * in reserve only. Ops are asynchronous in the stream's order; the first failure is kept and told
 * by the next download or land. The host waits there, in sync, and in an upload while all pinned
 * buffers are under way. */
#include "kernels/cuda/cuda.h"

#include "kernels/cpu/pool.h"
#include "kernels/cuda/blas.h"
#include "kernels/cuda/entry.h"

#include <cuda_runtime_api.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* ---- failures -------------------------------------------------------------------------------- */

static void remember(struct cuda_backend *c, enum status st, const struct err *e)
{
    pthread_mutex_lock(&c->failure_lock);
    if (c->failed == OK) {
        c->failed = st;
        c->failure = *e;
    }
    pthread_mutex_unlock(&c->failure_lock);
}

void cuda_note_text(struct cuda_backend *c, const char *what, const char *text)
{
    struct err e;
    if (c->recording) {
        c->unrecordable = true;
        return;
    }
    const enum status st =
        base_fail(&e, ERR_DEVICE, "device %d: %s: %s", (int)c->device, what, text);
    remember(c, st, &e);
}

void cuda_note(struct cuda_backend *c, const char *what, int code)
{
    if (code != cudaSuccess)
        cuda_note_text(c, what, cudaGetErrorString((cudaError_t)code));
}

enum status cuda_told(struct cuda_backend *c, struct err *err)
{
    pthread_mutex_lock(&c->failure_lock);
    const enum status st = c->failed;
    if (st != OK)
        *err = c->failure;
    pthread_mutex_unlock(&c->failure_lock);
    return st;
}

/* ---- waiting --------------------------------------------------------------------------------- */

void cuda_watch(struct backend *b, enum status (*fn)(void *arg, struct err *err), void *arg)
{
    cuda_of(b)->watch = fn;
    cuda_of(b)->watch_arg = arg;
}

/* The watcher can end what the stream waits for, so that the wait that asks here ends too. */
static void watch(struct cuda_backend *c)
{
    const int64_t now = base_now_ns();
    struct err failure;
    if (c->watch == NULL || pthread_mutex_trylock(&c->watching) != 0)
        return;
    if (now - c->watched >= CUDA_WATCH_NS) {
        const enum status st = c->watch(c->watch_arg, &failure);
        if (st != OK)
            remember(c, st, &failure);
        c->watched = now;
    }
    pthread_mutex_unlock(&c->watching);
}

/* e: of a query. */
static bool is_done(struct cuda_backend *c, cudaError_t e, const char *what)
{
    if (e == cudaErrorNotReady) {
        (void)cudaGetLastError(); /* no error, but it would be taken for the next launch's */
        watch(c);
        return false;
    }
    cuda_note(c, what, (int)e);
    return true;
}

bool cuda_passed(struct cuda_backend *c, void *event, const char *what)
{
    return is_done(c, cudaEventQuery(event), what);
}

void cuda_wait(struct cuda_backend *c, const char *what)
{
    if (c->watch == NULL)
        cuda_note(c, what, (int)cudaStreamSynchronize(c->stream));
    else
        while (!is_done(c, cudaStreamQuery(c->stream), what))
            ;
}

void cuda_wait_event(struct cuda_backend *c, void *event, const char *what)
{
    if (c->watch == NULL)
        cuda_note(c, what, (int)cudaEventSynchronize(event));
    else
        while (!cuda_passed(c, event, what))
            ;
}

/* ---- devices --------------------------------------------------------------------------------- */

enum status cuda_count_devices(int *count, struct err *err)
{
    int driver = 0, runtime = 0; /* no driver: 0, and it is as insufficient as an old one */
    const cudaError_t e = cudaGetDeviceCount(count);
    if (e == cudaErrorInsufficientDriver && cudaDriverGetVersion(&driver) == cudaSuccess &&
        driver > 0 && cudaRuntimeGetVersion(&runtime) == cudaSuccess)
        return base_fail(err, ERR_DEVICE,
                         "--device cuda: the NVIDIA driver is for CUDA %d.%d, the module was built "
                         "with %d.%d: install a newer driver",
                         driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    if (e == cudaErrorInsufficientDriver || e == cudaErrorNoDevice || (e == cudaSuccess && !*count))
        return base_fail(
            err, ERR_DEVICE,
            "--device cuda: no NVIDIA %s is usable here; nvidia-smi -L should list a GPU",
            e == cudaErrorInsufficientDriver ? "driver" : "GPU");
    if (e != cudaSuccess)
        return base_fail(err, ERR_DEVICE, "--device cuda: %s", cudaGetErrorString(e));
    return OK;
}

/* This process has opened a backend. */
static _Atomic bool opened;

/* A process that only asks keeps no context: ranks need that memory, and on a device for one
 * process at a time its place. */
static cudaError_t ask_memory(int device, size_t *free_bytes)
{
    size_t total = 0;
    cudaError_t e = cudaSetDevice(device);
    if (e == cudaSuccess)
        e = cudaMemGetInfo(free_bytes, &total);
    if (e == cudaSuccess && !atomic_load(&opened))
        e = cudaDeviceReset();
    return e;
}

static enum status cuda_probe(int32_t devices, size_t *bytes, struct err *err)
{
    enum status st = OK;
    int count = 0;
    size_t least = SIZE_MAX;
    TRY(cuda_count_devices(&count, err));
    if (count < devices) {
        st = base_fail(err, ERR_DEVICE,
                       "--device cuda: %d ranks need as many GPUs, %d are here; lower "
                       "--tensor-parallel-size",
                       (int)devices, count);
        goto out;
    }
    for (int d = 0; d < devices; d++) {
        size_t free_bytes = 0;
        const cudaError_t e = ask_memory(d, &free_bytes);
        if (e != cudaSuccess) {
            st = base_fail(err, ERR_DEVICE, "device %d: %s", d, cudaGetErrorString(e));
            goto out;
        }
        least = free_bytes < least ? free_bytes : least;
    }
    *bytes = least;
out:
    return st;
}

/* ---- the instance ---------------------------------------------------------------------------- */

static void cuda_close(struct backend *b)
{
    struct cuda_backend *c = cuda_of(b);
    blas_close(c);
    cuda_memory_close(c);
    if (c->stream != NULL)
        cudaStreamDestroy(c->stream);
    pool_close(c->pool);
    pthread_mutex_destroy(&c->failure_lock);
    pthread_mutex_destroy(&c->watching);
    free(c);
}

static void cuda_sync(struct backend *b)
{
    cuda_wait(cuda_of(b), "sync");
}

static enum status cuda_reserve(struct backend *b, int32_t rows_max, int32_t in_max,
                                int32_t out_max, struct err *err)
{
    enum status st = OK;
    struct cuda_backend *c = cuda_of(b);
    const struct cuda_sizes sizes = cuda_memory_sizes(rows_max, in_max, out_max);
    TRY(cuda_memory_grow(c, &c->sample, sizes.sample, err));
    TRY(cuda_memory_grow(c, &c->x, sizes.x, err));
out:
    return st;
}

static void cuda_parallel(struct backend *b, int64_t count, int64_t grain,
                          void (*fn)(void *arg, int64_t begin, int64_t end), void *arg)
{
    pool_share(cuda_of(b)->pool, count, grain, fn, arg);
}

static struct weight *weight_open(struct backend *b, const struct weight_spec *spec, void *storage)
{
    struct weight *w = malloc(sizeof *w);
    if (w != NULL)
        *w = (struct weight){*spec, b, storage};
    return w;
}

static void weight_close(struct weight *w)
{
    free(w);
}

static struct kv_cache *kv_open(struct backend *b, const struct kv_spec *spec, void *storage)
{
    struct kv_cache *kv = malloc(sizeof *kv);
    if (kv != NULL)
        *kv = (struct kv_cache){*spec, b, storage};
    return kv;
}

static void kv_close(struct kv_cache *kv)
{
    free(kv);
}

/* What the two differ in: name, linear, what it takes in and its types, expert_sum, attend. */
#define OPS(NAME, LINEAR, LINEAR_FUSES, LINEAR_IN, LINEAR_OUT, EXPERT_SUM, ATTEND)                 \
    {                                                                                              \
        .name = NAME, .weight_bytes = cuda_memory_weight_bytes, .kv_bytes = cuda_memory_kv_bytes,  \
        .probe = cuda_probe, .scratch_bytes = cuda_memory_scratch_bytes, .record = record_begin,   \
        .record_end = record_end, .replay = record_replay, .recording_close = record_close,        \
        .close = cuda_close, .sync = cuda_sync, .reserve = cuda_reserve,                           \
        .parallel = cuda_parallel, .alloc = cuda_memory_alloc, .free = cuda_memory_free,           \
        .upload = cuda_memory_upload, .download = cuda_memory_download,                            \
        .fetch = cuda_memory_fetch, .landed = cuda_memory_landed, .land = cuda_memory_land,        \
        .weight_open = weight_open, .weight_close = weight_close,                                  \
        .weight_put = cuda_memory_weight_put, .weight_scale = cuda_memory_weight_scale,            \
        .weight_get = cuda_memory_weight_get, .kv_open = kv_open, .kv_close = kv_close,            \
        .experts_open = experts_open, .experts_close = experts_close,                              \
        .experts_bytes = experts_bytes, .route = route_run, .expert_linear = experts_linear,       \
        .expert_sum = EXPERT_SUM, .head_linear = head_linear_run, .latent = rowops_latent,         \
        .resolve = sample_resolve, .embed = rowops_embed, .linear = LINEAR,                        \
        .linear_fuses = LINEAR_FUSES, .linear_fused = linear_fused, .linear_in = LINEAR_IN,        \
        .linear_out = LINEAR_OUT, .add_bias = rowops_add_bias, .expert_bias = rowops_expert_bias,  \
        .expert_bias_sum = rowops_expert_bias_sum, .rmsnorm = rowops_rmsnorm,                      \
        .add_rmsnorm = rowops_add_rmsnorm, .square_sum = rowops_square_sum,                        \
        .rms_scale = rowops_rms_scale, .rope_table = rope_table,                                   \
        .scale_queries = rope_scale_queries, .add = rowops_add,                                    \
        .joint_squares = rowops_joint_squares, .joint_scale = rowops_joint_scale,                  \
        .rope_kv = rope_kv, .attend = ATTEND, .rope_attend = attend_rope_run,                      \
        .delta_rule = delta_rule_run, .gate = act_gate, .act_mul = act_mul, .scale = rowops_scale, \
        .softcap = rowops_softcap, .select = rowops_select, .copy = rowops_copy,                   \
        .sum_tree = rowops_sum_tree, .sample = sample_run, .survey = elect_survey,                 \
        .nominate = elect_nominate, .elect = elect_run, .logprobs = sample_logprobs,               \
        .act_by = act_by,                                                                          \
    }

const struct backend_ops cuda_ops =
    OPS("cuda", linear_run, linear_fuses, linear_in, linear_out, experts_sum, attend_run);
const struct backend_ops cuda_invariant_ops =
    OPS("cuda-deterministic", linear_invariant, linear_invariant_fuses, linear_invariant_type,
        linear_invariant_type, experts_sum_invariant, attend_invariant);

/* N of "NAME:N", 0 of "NAME". */
static int32_t device_of(const char *name)
{
    const char *colon = strchr(name, ':');
    return colon != NULL ? (int32_t)strtol(colon + 1, NULL, 10) : 0;
}

const struct backend_ops *cuda_find(const char *name)
{
    const size_t n = strcspn(name, ":");
    const bool invariant =
        strncmp(name, cuda_invariant_ops.name, n) == 0 && cuda_invariant_ops.name[n] == '\0';
    return invariant ? &cuda_invariant_ops : &cuda_ops;
}

enum status cuda_open(const char *name, int32_t threads, struct backend **out, struct err *err)
{
    enum status st = OK;
    cudaStream_t stream = NULL;
    struct cuda_backend *c = calloc(1, sizeof *c);
    if (c == NULL)
        return base_fail(err, ERR_NOMEM, "no memory for backend %s", name);
    atomic_store(&opened, true);
    c->base.ops = cuda_find(name);
    c->device = device_of(name);
    pthread_mutex_init(&c->failure_lock, NULL);
    pthread_mutex_init(&c->watching, NULL);
    int count = 0;
    TRY(cuda_count_devices(&count, err));
    if (c->device >= count) {
        st = base_fail(err, ERR_DEVICE, "no device %s: %d are here", name, count);
        goto out;
    }
    cudaError_t e = cudaSetDevice(c->device);
    if (e == cudaSuccess)
        e = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (e == cudaSuccess)
        e = cudaDeviceGetAttribute(&c->processors, cudaDevAttrMultiProcessorCount, c->device);
    if (e == cudaSuccess)
        e = cudaDeviceGetAttribute(&c->shared, cudaDevAttrMaxSharedMemoryPerMultiprocessor,
                                   c->device);
    if (e != cudaSuccess) {
        st = base_fail(err, ERR_DEVICE, "opening %s: %s", name, cudaGetErrorString(e));
        goto out;
    }
    c->stream = stream;
    TRY(pool_open(threads, &c->pool, err));
    TRY(cuda_memory_open(c, err));
    TRY(blas_open(c, err));
    *out = &c->base;
    c = NULL;
out:
    if (c != NULL)
        cuda_close(&c->base);
    return st;
}
