/* DESIGN: a group of collectives is a list that each rank lays open; when all have met, each works
 * out what it receives from the lists of its peers, when all have met again it stores that, and
 * they part at a third meeting. A call outside a group is a list of one. Sends and receives concern
 * two ranks only: a send lies in the mail until its receiver has copied it. */
#include "tests/emulate/nccl.h"

#include "tests/emulate/cuda_runtime.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#define SLOW_NS                                                                                    \
    4000000000 /* added to what a test wants slow, by the clock of trials: more than a             \
                * busy machine takes for the emulation of what is fast */

enum kind { ALL_REDUCE, REDUCE, BROADCAST, ALL_GATHER, SEND, RECV };

struct call { /* collectives and mail are not mixed in a group */
    enum kind kind;
    const float *src;
    float *dst;
    size_t n;
    int peer; /* or root */
    bool captured;
};

/* What the ranks of a communicator share. */
struct meeting {
    std::mutex lock;
    std::condition_variable all_here;
    int ranks = 0, here = 0, joined = 0;
    unsigned round = 0;
    std::vector<const std::vector<call> *> lists;
    std::vector<int> color, key;
    std::map<std::pair<int, int>, std::deque<const call *>> mail; /* by sender and receiver */
    std::condition_variable posted, taken;
};

/* A rank of it, alive for as long as something enqueued needs it. */
struct member {
    std::shared_ptr<meeting> m;
    int rank;
    std::atomic<ncclResult_t> result;
    std::atomic<bool> aborted;              /* what waits for peers ends */
    std::atomic<const char *> window, past; /* its memory; NULL: none */
};

struct emulated_nccl {
    std::shared_ptr<member> my;
    int device;
};

/* What NCCL would let pass, and break by later. */
static void refuse(const char *what)
{
    fprintf(stderr, "NCCL: %s\n", what);
    abort();
}

/* Of a thread. */
struct open_groups {
    int depth;
    ~open_groups()
    {
        if (depth != 0)
            refuse("a thread has left a group open");
    }
};

static std::mutex registry_lock;
static std::map<std::string, std::shared_ptr<meeting>> registry;
static thread_local open_groups groups;
static std::map<const void *, ncclComm_t> windows; /* under registry_lock */
static thread_local ncclComm_t group_comm;
static thread_local cudaStream_t group_stream;
static thread_local std::vector<call> group_calls;

static std::atomic<int64_t> lost;
thread_local uint64_t emulate_collectives;
thread_local const void *emulate_broken;

extern "C" __attribute__((visibility("default"))) int64_t emulated_now(void);
int64_t emulated_now(void)
{
    const auto since = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::nanoseconds>(since).count() + lost;
}

/* Sums with the norm behind them are the slower way, unless a test wants it otherwise. */
void emulate_clock(const char *kernel)
{
    const char *norms = getenv("EMULATED_NORMS");
    const bool apart_is_slow = norms != nullptr && strcmp(norms, "apart_is_slow") == 0;
    if (strstr(kernel, apart_is_slow ? "rmsnorm_kernel" : "oneshot_norm_kernel") != nullptr)
        lost += SLOW_NS;
}

/* Waits for the others. Who is aborted does not come, or leaves again: then false. Those who have
 * met to exchange something stay, whatever happens, because the others read what is theirs. */
static bool meet(const member *c, bool stays = false)
{
    meeting *m = c->m.get();
    std::unique_lock<std::mutex> hold(m->lock);
    if (c->aborted && !stays)
        return false;
    const unsigned round = m->round;
    if (++m->here == m->ranks) {
        m->here = 0;
        m->round++;
        m->all_here.notify_all();
    }
    m->all_here.wait(hold, [&] { return m->round != round || (c->aborted && !stays); });
    if (m->round != round)
        return true;
    m->here--;
    return false;
}

static std::shared_ptr<meeting> meeting_of(const std::string &name, int ranks)
{
    std::lock_guard<std::mutex> hold(registry_lock);
    std::shared_ptr<meeting> &m = registry[name];
    if (m == nullptr) {
        m = std::make_shared<meeting>();
        m->ranks = ranks;
        m->lists.resize((size_t)ranks);
        m->color.resize((size_t)ranks);
        m->key.resize((size_t)ranks);
    }
    std::shared_ptr<meeting> got = m;
    if (++got->joined == ranks)
        registry.erase(name);
    return got;
}

/* ---- exchange ---- */

/* Adds in the order of the tree of sum_tree, so that tests can demand its bits. */
static float tree_of(std::vector<float> &v)
{
    for (size_t step = 1; step < v.size(); step *= 2)
        for (size_t j = 0; j + step < v.size(); j += 2 * step)
            v[j] += v[j + step];
    return v[0];
}

/* As NCCL's kernels for windows do: one after the other, from rank `first` on. */
static float chain_of(const std::vector<float> &v, size_t first)
{
    float sum = v[first];
    for (size_t r = 1; r < v.size(); r++)
        sum += v[(first + r) % v.size()];
    return sum;
}

static void reduce(const member *c, const call &k, size_t at, std::vector<float> *out)
{
    const char *how = getenv("EMULATED_NCCL_WINDOWS"), *src = (const char *)k.src;
    const size_t ranks = (size_t)c->m->ranks;
    size_t first = 0;
    bool chain = how != nullptr && src >= c->window && src < c->past;
    if (chain && strcmp(how, "unlike") == 0)
        first = (size_t)c->rank;
    if (getenv("EMULATED_NCCL_CHAINS") != nullptr) { /* an order of its own, by the size */
        chain = true;
        first = k.n % ranks;
    }
    std::vector<float> v(ranks);
    out->reserve(k.n);
    for (size_t i = 0; i < k.n; i++) {
        for (size_t r = 0; r < ranks; r++)
            v[r] = (*c->m->lists[r])[at].src[i];
        out->push_back(chain ? chain_of(v, first) : tree_of(v));
    }
}

static bool receive(const member *c, const std::vector<call> &mine, size_t at,
                    std::vector<float> *out)
{
    const call &k = mine[at];
    const meeting *m = c->m.get();
    if (k.kind == REDUCE && k.peer != c->rank)
        return true;
    for (int r = 0; r < m->ranks; r++) {
        const std::vector<call> &theirs = *m->lists[(size_t)r];
        if (at >= theirs.size() || theirs[at].kind != k.kind || theirs[at].n != k.n ||
            theirs[at].peer != k.peer || theirs[at].captured != k.captured)
            return false;
        if (k.kind == ALL_GATHER || (k.kind == BROADCAST && r == k.peer))
            out->insert(out->end(), theirs[at].src, theirs[at].src + k.n);
    }
    if (k.kind == ALL_REDUCE || k.kind == REDUCE)
        reduce(c, k, at, out);
    return true;
}

static ncclResult_t exchange_mail(member *c, const std::vector<call> &mine)
{
    meeting *m = c->m.get();
    bool good = true;
    std::unique_lock<std::mutex> hold(m->lock);
    for (const call &k : mine)
        if (k.kind == SEND)
            m->mail[{c->rank, k.peer}].push_back(&k);
    m->posted.notify_all();
    for (const call &k : mine) {
        if (k.kind != RECV)
            continue;
        std::deque<const call *> &box = m->mail[{k.peer, c->rank}];
        m->posted.wait(hold, [&] { return !box.empty() || c->aborted; });
        if (box.empty())
            return ncclSystemError;
        good = good && box.front()->n == k.n;
        memcpy(k.dst, box.front()->src, std::min(k.n, box.front()->n) * sizeof(float));
        box.pop_front();
        m->taken.notify_all();
    }
    for (const call &k : mine)
        if (k.kind == SEND)
            m->taken.wait(hold, [&] { return m->mail[{c->rank, k.peer}].empty() || c->aborted; });
    return good ? ncclSuccess : ncclInvalidUsage;
}

static ncclResult_t exchange(member *c, const std::vector<call> &mine)
{
    if (mine[0].kind == SEND || mine[0].kind == RECV)
        return exchange_mail(c, mine);
    std::vector<std::vector<float>> got(mine.size());
    const bool slow = (getenv("EMULATED_NCCL_WINDOWS") != nullptr && c->window == nullptr) ||
                      getenv("EMULATED_PEERS") != nullptr;
    if (slow)
        lost += SLOW_NS;
    bool good = true;
    c->m->lists[(size_t)c->rank] = &mine;
    if (!meet(c))
        return ncclSystemError;
    for (size_t i = 0; i < mine.size() && !c->aborted; i++)
        good = receive(c, mine, i, &got[i]) && good;
    meet(c, true);
    for (size_t i = 0; i < mine.size() && !c->aborted; i++)
        if (!got[i].empty())
            memcpy(mine[i].dst, got[i].data(), got[i].size() * sizeof(float));
    meet(c, true);
    return good ? ncclSuccess : ncclInvalidUsage;
}

/* The result is found out later, and told after it. */
static ncclResult_t exchange_in_order(cudaStream_t s, ncclComm_t c, const std::vector<call> &calls)
{
    const std::shared_ptr<member> my = c->my;
    emulate_enqueue(s, [=] {
        const ncclResult_t r = my->aborted ? ncclSystemError : exchange(my.get(), calls);
        if (r != ncclSuccess)
            my->result = r;
    });
    return my->result;
}

/* On a stream whose capture is spoilt the call fails, and the communicator with it. */
static ncclResult_t enqueue(ncclComm_t c, cudaStream_t s, call k)
{
    cudaStreamCaptureStatus capture;
    if (cudaStreamIsCapturing(s, &capture) != cudaSuccess ||
        capture == cudaStreamCaptureStatusInvalidated)
        return c->my->result = ncclUnhandledCudaError;
    k.captured = capture == cudaStreamCaptureStatusActive;
    emulate_collectives++;
    if (k.kind == RECV && getenv("EMULATED_NCCL_FAILS") != nullptr)
        return c->my->result = ncclSystemError;
    if (groups.depth == 0)
        return exchange_in_order(s, c, {k});
    if (group_comm != nullptr && group_comm != c)
        return ncclInvalidUsage;
    group_comm = c;
    group_stream = s;
    group_calls.push_back(k);
    return ncclSuccess;
}

ncclResult_t ncclGroupStart(void)
{
    groups.depth++;
    return ncclSuccess;
}

/* A group in which this rank has nothing to do is no call: then no peer expects anything of it. */
ncclResult_t ncclGroupEnd(void)
{
    if (--groups.depth > 0)
        return ncclSuccess;
    const ncclComm_t c = group_comm;
    const std::vector<call> calls = std::move(group_calls);
    group_comm = nullptr;
    group_calls.clear();
    return c != nullptr ? exchange_in_order(group_stream, c, calls) : ncclSuccess;
}

ncclResult_t ncclAllReduce(const void *src, void *dst, size_t n, ncclDataType_t, ncclRedOp_t,
                           ncclComm_t c, cudaStream_t s)
{
    return enqueue(c, s, {ALL_REDUCE, (const float *)src, (float *)dst, n, 0, false});
}

ncclResult_t ncclReduce(const void *src, void *dst, size_t n, ncclDataType_t, ncclRedOp_t, int root,
                        ncclComm_t c, cudaStream_t s)
{
    return enqueue(c, s, {REDUCE, (const float *)src, (float *)dst, n, root, false});
}

ncclResult_t ncclBroadcast(const void *src, void *dst, size_t n, ncclDataType_t, int root,
                           ncclComm_t c, cudaStream_t s)
{
    return enqueue(c, s, {BROADCAST, (const float *)src, (float *)dst, n, root, false});
}

ncclResult_t ncclAllGather(const void *src, void *dst, size_t n, ncclDataType_t, ncclComm_t c,
                           cudaStream_t s)
{
    return enqueue(c, s, {ALL_GATHER, (const float *)src, (float *)dst, n, 0, false});
}

ncclResult_t ncclSend(const void *src, size_t n, ncclDataType_t, int peer, ncclComm_t c,
                      cudaStream_t s)
{
    return enqueue(c, s, {SEND, (const float *)src, nullptr, n, peer, false});
}

ncclResult_t ncclRecv(void *dst, size_t n, ncclDataType_t, int peer, ncclComm_t c, cudaStream_t s)
{
    return enqueue(c, s, {RECV, nullptr, (float *)dst, n, peer, false});
}

/* ---- life ---- */

/* Ranks are threads here: what they set for NCCL would move the environment that others read. */
__attribute__((constructor)) static void make_room()
{
    for (const char *name : {"NCCL_SOCKET_IFNAME", "NCCL_HOSTID", "NCCL_NET", "NCCL_P2P_DISABLE",
                             "NCCL_SHM_DISABLE", "NCCL_MNNVL_ENABLE"})
        setenv(name, "", 0);
}

const char *ncclGetErrorString(ncclResult_t r)
{
    return r == ncclSuccess ? "no error" : "emulated error";
}

const char *ncclGetLastError(ncclComm_t)
{
    return "";
}

ncclResult_t ncclGetVersion(int *version)
{
    const char *other = getenv("EMULATED_NCCL_VERSION");
    *version = other != nullptr ? (int)strtol(other, nullptr, 10) : NCCL_VERSION_CODE;
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    static int made;
    std::lock_guard<std::mutex> hold(registry_lock);
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "group %d", made++);
    return ncclSuccess;
}

static ncclComm_t join(std::shared_ptr<meeting> m, int rank)
{
    const std::shared_ptr<member> my = std::make_shared<member>();
    my->m = m;
    my->rank = rank;
    int device = 0;
    (void)cudaGetDevice(&device);
    return new emulated_nccl{my, device};
}

ncclResult_t ncclCommInitRank(ncclComm_t *c, int ranks, ncclUniqueId id, int rank)
{
    if (ranks < 2) /* a rank alone has no use for NCCL */
        return ncclInvalidUsage;
    *c = join(meeting_of(id.internal, ranks), rank);
    meet((*c)->my.get());
    return ncclSuccess;
}

ncclResult_t ncclCommSplit(ncclComm_t c, int color, int key, ncclComm_t *out, ncclConfig_t *)
{
    const member *my = c->my.get();
    meeting *m = my->m.get();
    int ranks = 0, rank = 0;
    if (color < 0)
        return ncclInvalidArgument;
    m->color[(size_t)my->rank] = color;
    m->key[(size_t)my->rank] = key;
    meet(my);
    for (int r = 0; r < m->ranks; r++) {
        if (m->color[(size_t)r] != color)
            continue;
        ranks++;
        rank += m->key[(size_t)r] < key || (m->key[(size_t)r] == key && r < my->rank);
    }
    const std::string name =
        std::to_string((uintptr_t)m) + " " + std::to_string(m->round) + " " + std::to_string(color);
    *out = join(meeting_of(name, ranks), rank);
    meet(my);
    return ncclSuccess;
}

ncclResult_t ncclCommUserRank(ncclComm_t c, int *rank)
{
    *rank = c->my->rank;
    return ncclSuccess;
}

ncclResult_t ncclCommCount(ncclComm_t c, int *ranks)
{
    *ranks = c->my->m->ranks;
    return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *r)
{
    *r = c->my->result;
    return ncclSuccess;
}

ncclResult_t ncclMemAlloc(void **p, size_t bytes)
{
    return cudaMalloc(p, bytes) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t ncclMemFree(void *p)
{
    std::lock_guard<std::mutex> hold(registry_lock);
    if (windows.count(p) > 0)
        refuse("memory is freed that is registered");
    return cudaFree(p) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t ncclCommWindowRegister(ncclComm_t c, void *p, size_t bytes, ncclWindow_t *w, int)
{
    meet(c->my.get());
    *w = nullptr;
    if (getenv("EMULATED_NCCL_WINDOWS") == nullptr)
        return ncclSuccess;
    c->my->past = (const char *)p + bytes;
    c->my->window = (const char *)p;
    *w = (ncclWindow_t)p;
    std::lock_guard<std::mutex> hold(registry_lock);
    windows[p] = c;
    if (strcmp(getenv("EMULATED_NCCL_WINDOWS"), "broken") == 0)
        emulate_broken = p;
    return ncclSuccess;
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t c, ncclWindow_t w)
{
    meet(c->my.get());
    std::lock_guard<std::mutex> hold(registry_lock);
    windows.erase(w);
    c->my->window = c->my->past = nullptr;
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t c)
{
    meeting *m = c->my->m.get();
    int device = 0;
    (void)cudaGetDevice(&device);
    if (device != c->device)
        refuse("a communicator is aborted on a device that is not its own");
    {
        std::lock_guard<std::mutex> hold(m->lock);
        c->my->aborted = true;
        m->all_here.notify_all();
        m->posted.notify_all();
        m->taken.notify_all();
    }
    return ncclCommDestroy(c);
}

/* What was enqueued goes on. */
ncclResult_t ncclCommDestroy(ncclComm_t c)
{
    {
        std::lock_guard<std::mutex> hold(registry_lock);
        for (auto w = windows.begin(); w != windows.end();)
            w = w->second == c ? windows.erase(w) : std::next(w);
    }
    delete c;
    return ncclSuccess;
}
