/* DESIGN: a group of collectives is a list that each rank lays open; when all have met, each works
 * out what it receives from the lists of its peers, when all have met again it stores that, and
 * they part at a third meeting. A call outside a group is a list of one. Sends and receives concern
 * two ranks only: a send lies in the mail until its receiver has copied it. */
#include "tests/emulate/nccl.h"

#include "tests/emulate/cuda_runtime.h"

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

enum kind { ALL_REDUCE, REDUCE, BROADCAST, ALL_GATHER, SEND, RECV };

struct call { /* collectives and mail are not mixed in a group */
    enum kind kind;
    const float *src;
    float *dst;
    size_t n;
    int peer; /* or root */
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

struct emulated_nccl {
    std::shared_ptr<meeting> m;
    int rank;
    ncclResult_t result;
};

static std::mutex registry_lock;
static std::map<std::string, std::shared_ptr<meeting>> registry;
static thread_local int depth;
static thread_local ncclComm_t group_comm;
static thread_local cudaStream_t group_stream;
static thread_local std::vector<call> group_calls;

static void meet(meeting *m)
{
    std::unique_lock<std::mutex> hold(m->lock);
    const unsigned round = m->round;
    if (++m->here == m->ranks) {
        m->here = 0;
        m->round++;
        m->all_here.notify_all();
    }
    m->all_here.wait(hold, [&] { return m->round != round; });
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

/* In the order of the tree of sum_tree, so that tests can demand its bits. */
static float sum_of(const meeting *m, size_t at, size_t i)
{
    std::vector<float> v;
    for (int r = 0; r < m->ranks; r++)
        v.push_back((*m->lists[(size_t)r])[at].src[i]);
    for (size_t step = 1; step < v.size(); step *= 2)
        for (size_t j = 0; j + step < v.size(); j += 2 * step)
            v[j] += v[j + step];
    return v[0];
}

static bool receive(const emulated_nccl *c, const std::vector<call> &mine, size_t at,
                    std::vector<float> *out)
{
    const call &k = mine[at];
    const meeting *m = c->m.get();
    if (k.kind == REDUCE && k.peer != c->rank)
        return true;
    for (int r = 0; r < m->ranks; r++) {
        const std::vector<call> &theirs = *m->lists[(size_t)r];
        if (at >= theirs.size() || theirs[at].kind != k.kind || theirs[at].n != k.n ||
            theirs[at].peer != k.peer)
            return false;
        if (k.kind == ALL_GATHER || (k.kind == BROADCAST && r == k.peer))
            out->insert(out->end(), theirs[at].src, theirs[at].src + k.n);
    }
    if (k.kind == ALL_REDUCE || k.kind == REDUCE)
        for (size_t i = 0; i < k.n; i++)
            out->push_back(sum_of(m, at, i));
    return true;
}

static ncclResult_t exchange_mail(emulated_nccl *c, const std::vector<call> &mine)
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
        m->posted.wait(hold, [&] { return !box.empty(); });
        good = good && box.front()->n == k.n;
        memcpy(k.dst, box.front()->src, std::min(k.n, box.front()->n) * sizeof(float));
        box.pop_front();
        m->taken.notify_all();
    }
    for (const call &k : mine)
        if (k.kind == SEND)
            m->taken.wait(hold, [&] { return m->mail[{c->rank, k.peer}].empty(); });
    return good ? ncclSuccess : ncclInvalidUsage;
}

static ncclResult_t exchange(emulated_nccl *c, const std::vector<call> &mine)
{
    if (mine[0].kind == SEND || mine[0].kind == RECV)
        return exchange_mail(c, mine);
    std::vector<std::vector<float>> got(mine.size());
    bool good = true;
    c->m->lists[(size_t)c->rank] = &mine;
    meet(c->m.get());
    for (size_t i = 0; i < mine.size(); i++)
        good = receive(c, mine, i, &got[i]) && good;
    meet(c->m.get());
    for (size_t i = 0; i < mine.size(); i++)
        if (!got[i].empty())
            memcpy(mine[i].dst, got[i].data(), got[i].size() * sizeof(float));
    meet(c->m.get());
    return good ? ncclSuccess : ncclInvalidUsage;
}

/* Of a captured exchange the result is found out with the graph's launch, and told after it. */
static ncclResult_t exchange_in_order(cudaStream_t s, ncclComm_t c, const std::vector<call> &calls)
{
    emulate_enqueue(s, [=] { c->result = std::max(c->result, exchange(c, calls)); });
    return c->result;
}

static ncclResult_t enqueue(ncclComm_t c, cudaStream_t s, const call &k)
{
    if (depth == 0)
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
    depth++;
    return ncclSuccess;
}

/* A group in which this rank has nothing to do is no call: then no peer expects anything of it. */
ncclResult_t ncclGroupEnd(void)
{
    if (--depth > 0)
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
    return enqueue(c, s, {ALL_REDUCE, (const float *)src, (float *)dst, n, 0});
}

ncclResult_t ncclReduce(const void *src, void *dst, size_t n, ncclDataType_t, ncclRedOp_t, int root,
                        ncclComm_t c, cudaStream_t s)
{
    return enqueue(c, s, {REDUCE, (const float *)src, (float *)dst, n, root});
}

ncclResult_t ncclBroadcast(const void *src, void *dst, size_t n, ncclDataType_t, int root,
                           ncclComm_t c, cudaStream_t s)
{
    return enqueue(c, s, {BROADCAST, (const float *)src, (float *)dst, n, root});
}

ncclResult_t ncclAllGather(const void *src, void *dst, size_t n, ncclDataType_t, ncclComm_t c,
                           cudaStream_t s)
{
    return enqueue(c, s, {ALL_GATHER, (const float *)src, (float *)dst, n, 0});
}

ncclResult_t ncclSend(const void *src, size_t n, ncclDataType_t, int peer, ncclComm_t c,
                      cudaStream_t s)
{
    return enqueue(c, s, {SEND, (const float *)src, nullptr, n, peer});
}

ncclResult_t ncclRecv(void *dst, size_t n, ncclDataType_t, int peer, ncclComm_t c, cudaStream_t s)
{
    return enqueue(c, s, {RECV, nullptr, (float *)dst, n, peer});
}

/* ---- life ---- */

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
    *version = 22807;
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

ncclResult_t ncclCommInitRank(ncclComm_t *c, int ranks, ncclUniqueId id, int rank)
{
    *c = new emulated_nccl{meeting_of(id.internal, ranks), rank, ncclSuccess};
    meet((*c)->m.get());
    return ncclSuccess;
}

ncclResult_t ncclCommSplit(ncclComm_t c, int color, int key, ncclComm_t *out, ncclConfig_t *)
{
    meeting *m = c->m.get();
    int ranks = 0, rank = 0;
    if (color < 0)
        return ncclInvalidArgument;
    m->color[(size_t)c->rank] = color;
    m->key[(size_t)c->rank] = key;
    meet(m);
    for (int r = 0; r < m->ranks; r++) {
        if (m->color[(size_t)r] != color)
            continue;
        ranks++;
        rank += m->key[(size_t)r] < key || (m->key[(size_t)r] == key && r < c->rank);
    }
    const std::string name =
        std::to_string((uintptr_t)m) + " " + std::to_string(m->round) + " " + std::to_string(color);
    *out = new emulated_nccl{meeting_of(name, ranks), rank, ncclSuccess};
    meet(m);
    return ncclSuccess;
}

ncclResult_t ncclCommUserRank(ncclComm_t c, int *rank)
{
    *rank = c->rank;
    return ncclSuccess;
}

ncclResult_t ncclCommCount(ncclComm_t c, int *ranks)
{
    *ranks = c->m->ranks;
    return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *r)
{
    *r = c->result;
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t c)
{
    delete c;
    return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t c)
{
    return ncclCommAbort(c);
}
