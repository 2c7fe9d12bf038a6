/* DESIGN: a stream is a thread that runs what was enqueued, as late as it can: when somebody waits
 * for it, or after a while, as a device would. So what the host does too early goes wrong here
 * every time: memory that a copy to the device still reads is compared when it is copied, and
 * memory that a copy to the host will write holds rubbish until somebody has waited. */
#include "tests/emulate/calls.h"
#include "tests/emulate/cuda_runtime.h"
#include "tests/emulate/emulate_ahead.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <set>
#include <thread>
#include <vector>

#define DEVICES 8
#define DEVICE_BYTES ((size_t)4 << 30)
#define IDLE_MS 5 /* nobody waits: work begins nevertheless */
#define ASK_US 500

struct work_item {
    std::function<void()> work;
    bool is_kernel;
};

struct emulated_graph {
    int device;
    std::vector<work_item> work;
};

struct emulated_exec {
    std::shared_ptr<const emulated_graph> graph; /* launches in flight keep it */
};

struct emulated_stream {
    int device;
    emulated_graph *capture; /* NULL: none */
    bool spoilt;
    std::mutex lock;
    std::condition_variable changed;
    std::deque<work_item> queue;
    uint64_t enqueued, done, wanted; /* items so far */
    bool closing;
    std::thread worker;
};

/* The work before it. */
struct emulated_event {
    emulated_stream *stream; /* NULL: never recorded */
    uint64_t at;
};

static thread_local emulated_stream *captured; /* by this thread */
static thread_local int device_now;
static std::mutex streams_lock;
static std::set<emulated_stream *> streams;

static struct {
    std::atomic<uint64_t> launches, graphs, copies, records, waits, allocations;
    std::atomic<bool> context[DEVICES];
} calls;

extern "C" __attribute__((visibility("default"))) emulated_calls_fn emulated_calls;
void emulated_calls(struct emulated_calls *out)
{
    *out = {calls.launches,
            calls.graphs,
            calls.copies,
            calls.records,
            calls.waits,
            calls.allocations,
            0,
            emulate_collectives,
            emulate_narrow_products,
            emulate_conversions,
            emulate_meetings};
    for (const std::atomic<bool> &c : calls.context)
        out->contexts += c;
}

static emulated_stream *stream_of(cudaStream_t s)
{
    return (emulated_stream *)s;
}

[[noreturn]] static void give_up(const char *what)
{
    fprintf(stderr, "emulated device: %s\n", what);
    abort();
}

/* Of a call that must not be made while this thread captures. EMULATED_DEVICE_BROKEN: a kernel
 * went astray, which every later call tells. */
static cudaError_t not_captured()
{
    if (captured == nullptr)
        return getenv("EMULATED_DEVICE_BROKEN") == nullptr ? cudaSuccess : cudaErrorIllegalAddress;
    captured->spoilt = true;
    return cudaErrorStreamCaptureUnsupported;
}

/* ---- streams ---- */

/* All but kernels waits for all, and all for it. */
static void run(const work_item &item)
{
    if (!item.is_kernel)
        ahead_settle();
    item.work();
}

static void work(emulated_stream *s)
{
    std::unique_lock<std::mutex> hold(s->lock);
    for (;;) {
        s->changed.wait(hold, [=] { return s->closing || !s->queue.empty(); });
        if (s->queue.empty())
            return;
        s->changed.wait_for(hold, std::chrono::milliseconds(IDLE_MS),
                            [=] { return s->closing || s->wanted > s->done; });
        const work_item item = std::move(s->queue.front());
        s->queue.pop_front();
        hold.unlock();
        run(item);
        hold.lock();
        s->done++;
        s->changed.notify_all();
    }
}

static void enqueue(emulated_stream *s, work_item item)
{
    if (s->capture != nullptr) {
        s->capture->work.push_back(std::move(item));
        return;
    }
    std::lock_guard<std::mutex> hold(s->lock);
    s->queue.push_back(std::move(item));
    s->enqueued++;
    s->changed.notify_all();
}

void emulate_enqueue(cudaStream_t stream, std::function<void()> item)
{
    enqueue(stream_of(stream), {std::move(item), false});
}

/* A kernel is launched on the thread's own device. */
void emulate_kernel(cudaStream_t stream, std::function<void()> item)
{
    if (stream_of(stream)->device != device_now)
        give_up("a kernel is launched on a stream of another device");
    calls.launches += stream_of(stream)->capture == nullptr;
    enqueue(stream_of(stream), {std::move(item), true});
}

static void await(emulated_stream *s, uint64_t until)
{
    std::unique_lock<std::mutex> hold(s->lock);
    s->wanted = until > s->wanted ? until : s->wanted;
    s->changed.notify_all();
    s->changed.wait(hold, [=] { return s->done >= until; });
}

static uint64_t enqueued(emulated_stream *s)
{
    std::lock_guard<std::mutex> hold(s->lock);
    return s->enqueued;
}

/* Asking is some waiting: what is asked for begins, and those who ask in a loop leave it a core. */
static cudaError_t ask(emulated_stream *s, uint64_t until)
{
    std::unique_lock<std::mutex> hold(s->lock);
    if (s->done >= until)
        return cudaSuccess;
    s->wanted = until > s->wanted ? until : s->wanted;
    s->changed.notify_all();
    s->changed.wait_for(hold, std::chrono::microseconds(ASK_US), [=] { return s->done >= until; });
    return cudaErrorNotReady;
}

/* Shared by those who wait for streams of other threads, which are not deleted meanwhile. */
static std::shared_mutex lives;

/* Freeing memory waits for its device. */
static void drain(int device)
{
    std::vector<emulated_stream *> found;
    const std::shared_lock<std::shared_mutex> alive(lives);
    {
        std::lock_guard<std::mutex> hold(streams_lock);
        for (emulated_stream *s : streams)
            if (s->device == device)
                found.push_back(s);
    }
    for (emulated_stream *s : found)
        await(s, enqueued(s));
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned)
{
    emulated_stream *made = new emulated_stream();
    made->device = device_now;
    made->worker = std::thread(work, made);
    std::lock_guard<std::mutex> hold(streams_lock);
    streams.insert(made);
    *s = made;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    emulated_stream *s = stream_of(stream);
    {
        std::lock_guard<std::mutex> hold(streams_lock);
        streams.erase(s);
    }
    {
        std::lock_guard<std::mutex> hold(s->lock);
        s->closing = true;
        s->changed.notify_all();
    }
    s->worker.join();
    const std::lock_guard<std::shared_mutex> alone(lives);
    delete s;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    const cudaError_t e = not_captured();
    calls.waits++;
    if (e == cudaSuccess)
        await(stream_of(s), enqueued(stream_of(s)));
    return e;
}

cudaError_t cudaStreamQuery(cudaStream_t s)
{
    const cudaError_t e = not_captured();
    return e == cudaSuccess ? ask(stream_of(s), enqueued(stream_of(s))) : e;
}

/* ---- events: recorded by the product for the host to wait for ---- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned)
{
    *e = new emulated_event();
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    delete (emulated_event *)e;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
    const cudaError_t st = not_captured();
    calls.records++;
    if (st == cudaSuccess)
        *(emulated_event *)e = {stream_of(s), enqueued(stream_of(s))};
    return st;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    const emulated_event *e = (emulated_event *)event;
    const cudaError_t st = not_captured();
    calls.waits++;
    if (st == cudaSuccess && e->stream != nullptr)
        await(e->stream, e->at);
    return st;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    const emulated_event *e = (emulated_event *)event;
    const cudaError_t st = not_captured();
    return st == cudaSuccess && e->stream != nullptr ? ask(e->stream, e->at) : st;
}

/* ---- graphs ---- */

/* Does the environment name this device? */
static bool is_named(const char *variable, int device)
{
    const char *value = getenv(variable);
    return value != nullptr && strtol(value, nullptr, 10) == device;
}

/* A test may name a device on which something spoils every capture. */
cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode)
{
    if (captured != nullptr)
        return not_captured();
    captured = stream_of(s);
    captured->capture = new emulated_graph{captured->device, {}};
    captured->spoilt = is_named("EMULATED_DEVICE_SPOILS_GRAPHS", captured->device);
    return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t s, cudaStreamCaptureStatus *status)
{
    *status = stream_of(s)->capture == nullptr ? cudaStreamCaptureStatusNone
              : stream_of(s)->spoilt           ? cudaStreamCaptureStatusInvalidated
                                               : cudaStreamCaptureStatusActive;
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *graph)
{
    *graph = stream_of(s)->capture;
    stream_of(s)->capture = nullptr;
    captured = nullptr;
    if (!stream_of(s)->spoilt)
        return cudaSuccess;
    delete *graph;
    *graph = nullptr;
    return cudaErrorStreamCaptureInvalidated;
}

/* A test may name a device that takes no graph. */
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *exec, cudaGraph_t graph,
                                          unsigned long long)
{
    if (is_named("EMULATED_DEVICE_WITHOUT_GRAPHS", graph->device))
        return cudaErrorMemoryAllocation;
    *exec = new emulated_exec{std::make_shared<emulated_graph>(*graph)};
    return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t)
{
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t s)
{
    const cudaError_t e = not_captured();
    const std::shared_ptr<const emulated_graph> graph = exec->graph;
    calls.graphs++;
    if (e == cudaSuccess)
        emulate_enqueue(s, [=] {
            for (const work_item &item : graph->work)
                run(item);
            ahead_settle();
        });
    return e;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    delete graph;
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    delete exec;
    return cudaSuccess;
}

/* ---- devices and memory ---- */

struct allocation {
    int device;
    size_t bytes;
};

static std::mutex memory_lock;
static std::map<void *, allocation> allocations, pinned; /* the device's, the host's */
static std::set<void *> silent;                          /* in the place of peers' memory */
static unsigned mappings;                                /* of peers' memory */

/* EMULATED_DRIVER: its version; EMULATED_DEVICES: so many. */
cudaError_t cudaGetDeviceCount(int *n)
{
    int driver = 0, runtime = 0;
    if (cudaDriverGetVersion(&driver) != cudaSuccess ||
        cudaRuntimeGetVersion(&runtime) != cudaSuccess || driver < runtime)
        return cudaErrorInsufficientDriver;
    const char *named = getenv("EMULATED_DEVICES");
    *n = named != nullptr ? (int)strtol(named, nullptr, 10) : DEVICES;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    if (device < 0 || device >= DEVICES)
        return cudaErrorInvalidDevice;
    device_now = device;
    calls.context[device] = true;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device)
{
    *device = device_now;
    return cudaSuccess;
}

/* Of all threads: nobody may be using the device. */
cudaError_t cudaDeviceReset(void)
{
    std::lock_guard<std::mutex> hold(memory_lock);
    for (const auto &a : allocations)
        if (a.second.device == device_now)
            give_up("a device is reset that is in use");
    calls.context[device_now] = false;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    const char *named = getenv("EMULATED_DRIVER");
    *version = named != nullptr ? (int)strtol(named, nullptr, 10) : 13000;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = 13000;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *out, int)
{
    snprintf(out->name, sizeof out->name, "emulated device");
    return cudaSuccess;
}

/* EMULATED_MAJOR: it is of another generation. So few multiprocessors that a small product has more
 * blocks than they hold at once, and another has not. */
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr what, int)
{
    const char *named = getenv("EMULATED_MAJOR");
    const int major = named != nullptr ? named[0] - '0' : 9;
    *value = what == cudaDevAttrComputeCapabilityMajor             ? major
             : what == cudaDevAttrMultiProcessorCount              ? 2
             : what == cudaDevAttrMaxSharedMemoryPerMultiprocessor ? (major == 9 ? 228 : 164) << 10
                                                                   : 0;
    return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    *can = device != peer;
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
    std::lock_guard<std::mutex> hold(memory_lock);
    *free_bytes = *total = DEVICE_BYTES;
    for (const auto &a : allocations)
        *free_bytes -= a.second.device == device_now ? a.second.bytes : 0;
    return cudaSuccess;
}

const char *cudaGetErrorString(cudaError_t e)
{
    return e == cudaSuccess ? "no error" : "emulated error";
}

cudaError_t cudaGetLastError(void)
{
    return cudaSuccess;
}

static cudaError_t allocate(std::map<void *, allocation> *all, void **p, size_t bytes)
{
    const cudaError_t e = not_captured();
    calls.allocations++;
    const bool watched = all == &allocations && ahead_watches();
    const size_t whole = ahead_whole(bytes), page = ahead_whole(1);
    if (e != cudaSuccess || posix_memalign(p, watched ? page : 256, watched ? whole : bytes) != 0)
        return e != cudaSuccess ? e : cudaErrorMemoryAllocation;
    if (watched)
        ahead_add(*p, bytes);
    std::lock_guard<std::mutex> hold(memory_lock);
    (*all)[*p] = {device_now, bytes};
    return cudaSuccess;
}

static cudaError_t release(std::map<void *, allocation> *all, void *p)
{
    const cudaError_t e = not_captured();
    int device;
    if (e != cudaSuccess || p == nullptr)
        return e;
    {
        std::lock_guard<std::mutex> hold(memory_lock);
        const auto found = all->find(p);
        if (found == all->end())
            give_up("memory is freed that was not allocated");
        device = found->second.device;
        all->erase(found);
    }
    drain(device);
    if (all == &allocations)
        ahead_remove(p);
    free(p);
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **p, size_t bytes)
{
    return allocate(&allocations, p, bytes);
}

cudaError_t cudaFree(void *p)
{
    return release(&allocations, p);
}

cudaError_t cudaMallocHost(void **p, size_t bytes)
{
    return allocate(&pinned, p, bytes);
}

cudaError_t cudaFreeHost(void *p)
{
    return release(&pinned, p);
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *p)
{
    std::lock_guard<std::mutex> hold(memory_lock);
    const auto found = allocations.find(p);
    if (found == allocations.end())
        give_up("memory is shown to peers that is only part of an allocation");
    memcpy(handle->reserved, &p, sizeof p);
    memcpy(handle->reserved + sizeof p, &found->second.bytes, sizeof found->second.bytes);
    return cudaSuccess;
}

cudaError_t cudaIpcOpenMemHandle(void **p, cudaIpcMemHandle_t handle, unsigned)
{
    const char *how = getenv("EMULATED_PEERS");
    size_t bytes;
    if (how == nullptr)
        return cudaErrorInvalidDevice;
    memcpy(p, handle.reserved, sizeof *p);
    memcpy(&bytes, handle.reserved + sizeof *p, sizeof bytes);
    std::lock_guard<std::mutex> hold(memory_lock);
    if (strcmp(how, "silent") == 0 && posix_memalign(p, 256, bytes) == 0)
        silent.insert(*p);
    mappings++;
    return cudaSuccess;
}

cudaError_t cudaIpcCloseMemHandle(void *p)
{
    std::lock_guard<std::mutex> hold(memory_lock);
    if (mappings-- == 0)
        give_up("memory of peers is closed twice");
    if (silent.erase(p) > 0)
        free(p);
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t s)
{
    calls.copies++;
    if (p != nullptr && p == emulate_broken)
        return cudaErrorIllegalAddress;
    emulate_enqueue(s, [=] { memset(p, value, bytes); });
    return cudaSuccess;
}

static void must_be_pinned(const void *p, size_t bytes)
{
    std::lock_guard<std::mutex> hold(memory_lock);
    const auto after = pinned.upper_bound((void *)(uintptr_t)p);
    if (after != pinned.begin()) {
        const auto found = std::prev(after);
        if ((const char *)p + bytes <= (const char *)found->first + found->second.bytes)
            return;
    }
    give_up("a copy of host memory that is not pinned would wait");
}

static void to_device(void *dst, const void *src, size_t bytes, cudaStream_t s)
{
    std::vector<char> seen((const char *)src, (const char *)src + bytes);
    emulate_enqueue(s, [=] {
        if (memcmp(src, seen.data(), bytes) != 0)
            give_up("host memory was written while a copy had still to read it");
        memcpy(dst, src, bytes);
    });
}

static void to_host(void *dst, const void *src, size_t bytes, cudaStream_t s)
{
    memset(dst, 0xa5, bytes);
    emulate_enqueue(s, [=] { memcpy(dst, src, bytes); });
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t s)
{
    calls.copies++;
    if (kind == cudaMemcpyDeviceToDevice) {
        emulate_enqueue(s, [=] { memcpy(dst, src, bytes); });
        return cudaSuccess;
    }
    if (not_captured() != cudaSuccess) /* a graph would copy what is there later */
        return cudaErrorStreamCaptureUnsupported;
    must_be_pinned(kind == cudaMemcpyHostToDevice ? src : dst, bytes);
    (kind == cudaMemcpyHostToDevice ? to_device : to_host)(dst, src, bytes, s);
    return cudaSuccess;
}

cudaError_t cudaMemcpy2DAsync(void *dst, size_t dst_pitch, const void *src, size_t src_pitch,
                              size_t width, size_t height, cudaMemcpyKind, cudaStream_t s)
{
    calls.copies++;
    emulate_enqueue(s, [=] {
        for (size_t y = 0; y < height; y++)
            memcpy((char *)dst + y * dst_pitch, (const char *)src + y * src_pitch, width);
    });
    return cudaSuccess;
}
