/* DESIGN: pages that a kernel writes are found by the fault that its first write is, and kept as
 * they were before. While a block runs ahead, none of them can be read and nothing can be written.
 * A page may hold what nobody has written as well. When that is read, the rest of the page can be,
 * too, but has NaNs where it is new. */
#include "tests/emulate/emulate_ahead.h"

#include "tests/emulate/cuda_runtime.h"

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>
#include <vector>

#define WORD ((uintptr_t)4) /* is old or new as a whole */

/* What a page was before this kernel, by its number, wrote it. */
struct before {
    uint64_t kernel;
    std::vector<char> bytes;
};

static const uintptr_t page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
static std::mutex lock;                                /* copies of other streams settle, too */
static std::map<uintptr_t, size_t> regions;            /* bytes, by where they begin */
static std::map<uintptr_t, std::vector<before>> dirty; /* by kernels that may not have ended */
static std::map<uintptr_t, std::vector<char>> aside;   /* pages of which some is hidden */
static struct {
    bool watching, running, hidden;
    uint64_t kernel; /* that runs, or has run last */
    const char *name;
} now;
static thread_local bool in_kernel;

size_t ahead_whole(size_t bytes)
{
    return (bytes + page_bytes - 1) / page_bytes * page_bytes;
}

bool ahead_watches()
{
    static const bool watches = getenv("EMULATED_AHEAD") != nullptr;
    return watches;
}

static void protect(uintptr_t from, size_t bytes, int how)
{
    if (mprotect((void *)from, bytes, how) != 0)
        emulate_fail("memory that cannot be watched");
}

static bool is_known(uintptr_t at)
{
    auto found = regions.upper_bound(at);
    return found != regions.begin() && (--found, at - found->first < found->second);
}

static int seen_as(const std::vector<before> &page)
{
    const bool its_own = now.running && page.back().kernel == now.kernel;
    return now.hidden ? PROT_NONE : its_own ? PROT_READ | PROT_WRITE : PROT_READ;
}

/* Neighbours that are seen alike are one call. */
static void protect_dirty()
{
    uintptr_t from = 0, end = 0;
    int how = 0;
    for (const auto &page : dirty) {
        const int its = seen_as(page.second);
        if (page.first != end || its != how) {
            if (end > from)
                protect(from, end - from, how);
            from = page.first;
            how = its;
        }
        end = page.first + page_bytes;
    }
    if (end > from)
        protect(from, end - from, how);
}

static void protect_all(int how)
{
    for (const auto &r : regions)
        protect(r.first, r.second, how);
    now.watching = how == PROT_READ;
}

/* Lets the rest of the page be read until the block has waited, with NaNs for what is new. False:
 * what is there is new itself. */
static bool show_old(uintptr_t at, const before &old)
{
    const uintptr_t page = at / page_bytes * page_bytes, word = at / WORD * WORD;
    char *const is = (char *)page;
    protect(page, page_bytes, PROT_READ | PROT_WRITE);
    if (memcmp((const void *)word, old.bytes.data() + (word - page), WORD) != 0)
        return false;
    aside.emplace(page, std::vector<char>(is, is + page_bytes));
    for (size_t i = 0; i < page_bytes; i += WORD)
        if (memcmp(is + i, old.bytes.data() + i, WORD) != 0)
            memset(is + i, 0xff, WORD);
    protect(page, page_bytes, PROT_READ);
    return true;
}

static void put_back()
{
    for (const auto &page : aside) {
        protect(page.first, page_bytes, PROT_READ | PROT_WRITE);
        memcpy((void *)page.first, page.second.data(), page_bytes);
    }
    aside.clear();
}

static void settle()
{
    put_back();
    if (now.watching)
        protect_all(PROT_READ | PROT_WRITE);
    dirty.clear();
}

[[noreturn]] static void fail_ahead(const char *what)
{
    char line[200];
    snprintf(line, sizeof line, "%s %s before it waits for the kernels before it", now.name, what);
    emulate_fail(line);
}

static void keep(uintptr_t page)
{
    std::vector<before> &all = dirty[page];
    if (all.empty() || all.back().kernel != now.kernel)
        all.push_back({now.kernel, std::vector<char>((char *)page, (char *)page + page_bytes)});
    protect(page, page_bytes, PROT_READ | PROT_WRITE);
}

/* A page that lies aside can be read. */
static void fault(uintptr_t at, bool writes)
{
    const uintptr_t page = at / page_bytes * page_bytes;
    if (!in_kernel) /* a copy, say, which waits for kernels and which kernels wait for */
        settle();
    else if (now.watching && !now.hidden)
        keep(page);
    else if (now.watching && (writes || dirty.count(page) == 0 || aside.count(page) > 0))
        fail_ahead("writes");
    else if (now.watching && !show_old(at, dirty.at(page).front()))
        fail_ahead("reads what one of them has written");
}

/* On a stack of its own: those of a kernel's threads are small. Nothing is under way in them that
 * could not be interrupted. */
static void on_fault(int, siginfo_t *info, void *context)
{
    bool writes = false;
#ifdef REG_ERR
    writes = (((ucontext_t *)context)->uc_mcontext.gregs[REG_ERR] & 2) != 0;
#else
    (void)context;
#endif
    std::lock_guard<std::mutex> hold(lock);
    if (is_known((uintptr_t)info->si_addr))
        fault((uintptr_t)info->si_addr, writes);
    else
        signal(SIGSEGV, SIG_DFL); /* and once more */
}

void ahead_add(const void *memory, size_t bytes)
{
    if (!ahead_watches())
        return;
    std::lock_guard<std::mutex> hold(lock);
    settle();
    regions[(uintptr_t)memory] = ahead_whole(bytes);
}

void ahead_remove(const void *memory)
{
    if (!ahead_watches())
        return;
    std::lock_guard<std::mutex> hold(lock);
    settle();
    regions.erase((uintptr_t)memory);
}

void ahead_settle()
{
    if (!ahead_watches())
        return;
    std::lock_guard<std::mutex> hold(lock);
    settle();
}

/* Again each time: frameworks of tests have handlers of their own. */
static void catch_faults()
{
    static thread_local std::vector<char> stack;
    struct sigaction act = {};
    if (stack.empty()) {
        stack.resize(256 << 10);
        const stack_t its = {stack.data(), 0, stack.size()};
        sigaltstack(&its, nullptr);
    }
    act.sa_sigaction = on_fault;
    act.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &act, nullptr);
}

void ahead_begin(uint64_t number, const char *kernel, bool behind)
{
    if (!ahead_watches())
        return;
    std::lock_guard<std::mutex> hold(lock);
    catch_faults();
    now.kernel = number;
    now.name = kernel;
    now.running = in_kernel = true;
    if (!now.watching)
        protect_all(PROT_READ);
    if (behind)
        dirty.clear();
}

void ahead_hide()
{
    if (!ahead_watches())
        return;
    std::lock_guard<std::mutex> hold(lock);
    now.hidden = true;
    protect_dirty();
}

void ahead_show()
{
    if (!now.hidden)
        return;
    std::lock_guard<std::mutex> hold(lock);
    put_back();
    now.hidden = false;
    protect_dirty();
}

void ahead_end(bool at_once)
{
    if (!ahead_watches())
        return;
    std::lock_guard<std::mutex> hold(lock);
    now.running = in_kernel = false;
    protect_dirty();
    for (auto page = dirty.begin(); page != dirty.end() && !at_once;) {
        std::vector<before> &all = page->second;
        while (!all.empty() && all.front().kernel < now.kernel)
            all.erase(all.begin());
        page = all.empty() ? dirty.erase(page) : std::next(page);
    }
}
