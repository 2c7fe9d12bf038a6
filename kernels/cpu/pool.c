/* DESIGN: a job is published by one store to `gate` = job number, OPEN bit, count of helpers
 * inside. A helper joins by compare-and-swap while OPEN is set; the caller works too, then clears
 * OPEN and waits only for helpers that joined. So with more threads than cores nobody waits for a
 * thread that has not been scheduled yet, and a late helper can never see the fields of another
 * job. Sleeping: futex on `epoch` (a new job) and on `left` (the last helper has gone). */
#include "kernels/cpu/pool.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SPINS 2000 /* pauses before sleeping: some 20 to 80 microseconds */
#define GATE_INSIDE 0xffffull
#define GATE_OPEN 0x10000ull
#define GATE_JOB 0x20000ull

struct helper {
    struct pool *pool;
    int32_t index;
    pthread_t thread;
};

struct pool {
    ALIGNED64 _Atomic uint64_t gate;
    _Atomic uint32_t epoch;          /* changes with every job */
    _Atomic uint32_t sleepers;       /* helpers in or near futex wait */
    ALIGNED64 _Atomic uint32_t left; /* changes when the last helper leaves a closed gate */
    _Atomic bool caller_sleeps, stop;
    ALIGNED64 _Atomic int64_t next; /* first item nobody has taken */
    ALIGNED64 pool_fn fn;           /* the job: written while the gate is closed and empty */
    void *arg;
    int64_t count, grain;
    int32_t threads, started;
    struct helper *helpers;
};

static void futex_wait(_Atomic uint32_t *word, uint32_t seen)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static void take_chunks(struct pool *p, int32_t worker)
{
    for (;;) {
        int64_t begin = atomic_fetch_add_explicit(&p->next, p->grain, memory_order_relaxed);
        if (begin >= p->count)
            return;
        int64_t end = p->count - begin < p->grain ? p->count : begin + p->grain;
        p->fn(p->arg, worker, begin, end);
    }
}

/* Joins the open job, if it is not the one already done. */
static bool gate_enter(struct pool *p, uint64_t *done)
{
    uint64_t g = atomic_load_explicit(&p->gate, memory_order_acquire);
    while ((g & GATE_OPEN) != 0 && g / GATE_JOB != *done) {
        if (atomic_compare_exchange_weak_explicit(&p->gate, &g, g + 1, memory_order_acq_rel,
                                                  memory_order_acquire)) {
            *done = g / GATE_JOB;
            return true;
        }
    }
    return false;
}

static void gate_leave(struct pool *p)
{
    uint64_t g = atomic_fetch_sub_explicit(&p->gate, 1, memory_order_seq_cst) - 1;
    if ((g & (GATE_OPEN | GATE_INSIDE)) != 0)
        return;
    atomic_fetch_add_explicit(&p->left, 1, memory_order_seq_cst);
    if (atomic_load_explicit(&p->caller_sleeps, memory_order_seq_cst))
        futex_wake(&p->left);
}

/* Returns when `epoch` is not `seen` any more; its new value. */
static uint32_t wait_epoch(struct pool *p, uint32_t seen)
{
    for (int i = 0; i < SPINS; i++) {
        uint32_t e = atomic_load_explicit(&p->epoch, memory_order_acquire);
        if (e != seen)
            return e;
        base_relax();
    }
    atomic_fetch_add_explicit(&p->sleepers, 1, memory_order_seq_cst);
    uint32_t e;
    while ((e = atomic_load_explicit(&p->epoch, memory_order_seq_cst)) == seen)
        futex_wait(&p->epoch, seen);
    atomic_fetch_sub_explicit(&p->sleepers, 1, memory_order_seq_cst);
    return e;
}

static void *helper_main(void *arg)
{
    struct helper *h = arg;
    struct pool *p = h->pool;
    uint32_t seen = 0;
    uint64_t done = 0;
    while (!atomic_load_explicit(&p->stop, memory_order_acquire)) {
        if (gate_enter(p, &done)) {
            take_chunks(p, h->index);
            gate_leave(p);
            continue;
        }
        seen = wait_epoch(p, seen);
    }
    return NULL;
}

static void announce(struct pool *p)
{
    atomic_fetch_add_explicit(&p->epoch, 1, memory_order_seq_cst);
    if (atomic_load_explicit(&p->sleepers, memory_order_seq_cst) != 0)
        futex_wake(&p->epoch);
}

static bool gate_empty(struct pool *p)
{
    return (atomic_load_explicit(&p->gate, memory_order_seq_cst) & GATE_INSIDE) == 0;
}

static void wait_empty(struct pool *p)
{
    for (int i = 0; i < SPINS; i++) {
        if (gate_empty(p))
            return;
        base_relax();
    }
    atomic_store_explicit(&p->caller_sleeps, true, memory_order_seq_cst);
    for (;;) {
        uint32_t seen = atomic_load_explicit(&p->left, memory_order_seq_cst);
        if (gate_empty(p))
            break;
        futex_wait(&p->left, seen);
    }
    atomic_store_explicit(&p->caller_sleeps, false, memory_order_seq_cst);
}

void pool_run(struct pool *p, int64_t count, int64_t grain, pool_fn fn, void *arg)
{
    if (count <= 0)
        return;
    if (p->threads == 1 || count <= grain) {
        fn(arg, 0, 0, count);
        return;
    }
    p->fn = fn;
    p->arg = arg;
    p->count = count;
    p->grain = grain;
    atomic_store_explicit(&p->next, 0, memory_order_relaxed);
    atomic_fetch_add_explicit(&p->gate, GATE_JOB + GATE_OPEN, memory_order_seq_cst);
    announce(p);
    take_chunks(p, 0);
    atomic_fetch_sub_explicit(&p->gate, GATE_OPEN, memory_order_seq_cst);
    wait_empty(p);
}

static enum status start_helpers(struct pool *p, struct err *err)
{
    sigset_t all, old; /* signals belong to the threads that exist already */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = 0;
    while (rc == 0 && p->started < p->threads - 1) {
        struct helper *h = &p->helpers[p->started];
        h->pool = p;
        h->index = p->started + 1;
        rc = pthread_create(&h->thread, NULL, helper_main, h);
        p->started += rc == 0;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc != 0)
        return base_fail_start(err, rc, "thread %d of %d of the CPU backend", (int)p->started + 2,
                               (int)p->threads);
    return OK;
}

enum status pool_open(int32_t threads, struct pool **out, struct err *err)
{
    CHECK(threads >= 1);
    struct pool *p = aligned_alloc(64, base_align(sizeof *p, 64));
    struct helper *helpers = calloc((size_t)threads, sizeof *helpers);
    if (p == NULL || helpers == NULL) {
        free(p);
        free(helpers);
        return base_fail(err, ERR_NOMEM, "no memory for a pool of %d threads", (int)threads);
    }
    *p = (struct pool){.threads = threads, .helpers = helpers};
    enum status st = start_helpers(p, err);
    if (st != OK) {
        pool_close(p);
        return st;
    }
    *out = p;
    return OK;
}

void pool_close(struct pool *p)
{
    if (p == NULL)
        return;
    atomic_store_explicit(&p->stop, true, memory_order_seq_cst);
    announce(p);
    for (int32_t i = 0; i < p->started; i++)
        pthread_join(p->helpers[i].thread, NULL);
    free(p->helpers);
    free(p);
}

int32_t pool_threads(const struct pool *p)
{
    return p->threads;
}

struct share {
    void (*fn)(void *arg, int64_t begin, int64_t end);
    void *arg;
};

static void take_share(void *arg, int32_t worker, int64_t begin, int64_t end)
{
    const struct share *s = arg;
    (void)worker;
    s->fn(s->arg, begin, end);
}

void pool_share(struct pool *p, int64_t count, int64_t grain,
                void (*fn)(void *arg, int64_t begin, int64_t end), void *arg)
{
    struct share s = {fn, arg};
    pool_run(p, count, grain, take_share, &s);
}
