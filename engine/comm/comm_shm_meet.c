/* DESIGN: ranks run in phases; a collective is one phase, or two. To arrive, a rank fills its post
 * for the phase and stores the phase into the post's stamp (release); peers wait until all stamps
 * say so (acquire). Stamp and call share a cache line, so at P = 2 a meeting moves one line each
 * way. Two posts suffice: a rank that enters phase s + 2 has seen all stamps of s + 1, whose owners
 * had finished reading the posts of s. The same chain orders the data (see comm_shm.c). Sleepers
 * use the door's counter, so one meeting costs one wake, whatever P: an arrival adds 1 and wakes
 * when the count has reached phase * P and someone waits. count >= target implies that all have
 * arrived: nobody can be ahead of a phase in which someone is missing. Counter and waiters are
 * sequentially consistent: either the arrival sees the waiter or the waiter sees the arrival.
 * Rejected: a futex per rank (up to P - 1 sleeps per meeting when ranks exceed cores). */
#include "engine/comm/comm_shm_meet.h"

#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SPIN_NS 50000     /* longer than the usual skew between ranks, shorter than a wake-up */
#define SPINS_PER_LOOK 64 /* pauses between looks at the clock and the abort word */
#define YIELDS 4          /* when crowded: let the others arrive before asking for a wake */
#define YIELD_NS 1000000  /* less than the turn of a program that is always ready to run */
#define SLEEPS 256        /* meetings without yielding after yields that took longer */
#define SLEEP_NS_MAX (50 * 1000 * 1000L) /* bounds how long an abort can go unnoticed */

_Static_assert(ATOMIC_INT_LOCK_FREE == 2, "words are shared between processes");
_Static_assert(sizeof(struct comm_shm_post) == 64, "a post is one cache line");

/* Not FUTEX_PRIVATE: the word is in memory shared between processes. */
static void futex_wait(_Atomic uint32_t *word, uint32_t seen)
{
    const struct timespec limit = {0, SLEEP_NS_MAX};
    /* Woken, changed, interrupted or timed out: the caller looks again in every case. */
    (void)syscall(SYS_futex, word, FUTEX_WAIT, seen, &limit, NULL, 0);
}

static void futex_wake_all(_Atomic uint32_t *word)
{
    (void)syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static struct comm_shm_seat *seat_of(const struct comm_shm *c, int32_t rank)
{
    return &c->seats[c->member[rank]];
}

const struct comm_shm_call *comm_shm_meet_call(const struct comm_shm *c, int32_t rank)
{
    return &seat_of(c, rank)->post[c->phase & 1].call;
}

const uint64_t *comm_shm_meet_counts(const struct comm_shm *c, int32_t rank)
{
    return seat_of(c, rank)->counts[c->phase & 1];
}

static bool is_here(const struct comm_shm *c, int32_t rank)
{
    struct comm_shm_post *post = &seat_of(c, rank)->post[c->phase & 1];
    return atomic_load_explicit(&post->stamp, memory_order_acquire) == c->phase;
}

static bool is_aborted(const struct comm_shm *c)
{
    return atomic_load(&c->home->region->aborted) != 0;
}

static void arrive(struct comm_shm *c, const struct comm_shm_call *call, const size_t *counts)
{
    c->phase++;
    c->target += (uint32_t)c->base.ranks;
    struct comm_shm_seat *seat = seat_of(c, c->base.rank);
    struct comm_shm_post *post = &seat->post[c->phase & 1];
    post->call = *call;
    atomic_store_explicit(&post->cpu, sched_getcpu(), memory_order_relaxed);
    for (int32_t r = 0; counts != NULL && r < c->base.ranks; r++)
        seat->counts[c->phase & 1][r] = counts[r];
    atomic_store_explicit(&post->stamp, c->phase, memory_order_release);
    /* "has reached", not "is": a spinning peer that saw our stamp may be one phase ahead of our
     * addition already. */
    uint32_t count = atomic_fetch_add(&c->door->count, 1) + 1;
    if ((int32_t)(count - c->target) >= 0 && atomic_load(&c->door->waiters) != 0)
        futex_wake_all(&c->door->count);
}

/* The scheduler may have put both of us on one CPU (a wake-up likes the waker's): as long as we
 * spin there the other cannot run. Going to sleep also lets the scheduler part us. */
static bool shares_cpu(const struct comm_shm *c, int32_t rank)
{
    struct comm_shm_post *last = &seat_of(c, rank)->post[(c->phase - 1) & 1];
    return atomic_load_explicit(&last->cpu, memory_order_relaxed) == sched_getcpu();
}

/* To yield is cheaper than to sleep as long as peers alone want the CPU. Another busy program makes
 * each yield cost a whole turn of its own, while a wake-up may cut that turn short. So what yields
 * cost is watched. */
static bool yield_for(const struct comm_shm *c, int32_t rank)
{
    if (c->home->sleeps > 0) {
        c->home->sleeps--;
        return false;
    }
    const int64_t begin = base_now_ns();
    for (int32_t i = 0; i < YIELDS && !is_here(c, rank); i++)
        sched_yield();
    if (base_now_ns() - begin > YIELD_NS)
        c->home->sleeps = SLEEPS;
    return is_here(c, rank);
}

/* True when the rank has arrived, false when it is time to sleep. */
static bool spin_for(const struct comm_shm *c, int32_t rank, int64_t until)
{
    if (c->home->crowded)
        return yield_for(c, rank);
    if (shares_cpu(c, rank))
        return false;
    do {
        for (int32_t i = 0; i < SPINS_PER_LOOK; i++) {
            base_relax();
            if (is_here(c, rank))
                return true;
        }
    } while (base_now_ns() < until && !is_aborted(c));
    return false;
}

/* Until all have arrived: true; or the region is poisoned: false. */
static bool sleep_for_all(struct comm_shm *c)
{
    bool complete = false;
    atomic_fetch_add(&c->door->waiters, 1);
    for (;;) {
        uint32_t seen = atomic_load(&c->door->count);
        complete = (int32_t)(seen - c->target) >= 0;
        if (complete || is_aborted(c))
            break;
        futex_wait(&c->door->count, seen);
    }
    atomic_fetch_sub(&c->door->waiters, 1);
    return complete;
}

static bool wait_for_all(struct comm_shm *c)
{
    int64_t until = 0;
    for (int32_t r = 0; r < c->base.ranks; r++) {
        if (is_here(c, r))
            continue;
        if (until == 0)
            until = base_now_ns() + SPIN_NS;
        if (spin_for(c, r, until))
            continue;
        if (!sleep_for_all(c))
            return false;
        CHECK(is_here(c, r));
    }
    return true;
}

static const char *label(uint32_t op)
{
    return op == COMM_SHM_SPLIT ? "split" : comm_op_name((enum comm_op)op);
}

static enum status fail_aborted(const struct comm_shm *c, uint32_t op, struct err *err)
{
    return base_fail(
        err, ERR_COMM, "%s in group %s, rank %d: the rank group was aborted by rank %d", label(op),
        c->base.stats->group, (int)c->base.rank, (int)atomic_load(&c->home->region->aborted) - 1);
}

static enum status compare_calls(struct comm_shm *c, struct err *err)
{
    const struct comm_shm_call *mine = comm_shm_meet_call(c, c->base.rank);
    for (int32_t r = 0; r < c->base.ranks; r++) {
        const struct comm_shm_call *theirs = comm_shm_meet_call(c, r);
        if (theirs->op != mine->op)
            return comm_shm_meet_diverged(c, r, "another operation", err);
        if (theirs->n != mine->n)
            return comm_shm_meet_diverged(c, r, "another size", err);
        if (theirs->check != mine->check)
            return comm_shm_meet_diverged(c, r, "other counts, root or step", err);
    }
    return OK;
}

/* Once, in the first meeting: now all ranks have opened and entered their CPUs. */
static void count_cpus(struct comm_shm *c)
{
    int32_t cpus = 0;
    for (size_t i = 0; i < COMM_SHM_CPU_WORDS; i++)
        cpus += __builtin_popcountll(atomic_load(&c->home->region->cpus[i]));
    c->home->crowded = cpus < c->home->region->ranks;
    c->home->met = true;
}

enum status comm_shm_meet(struct comm_shm *c, const struct comm_shm_call *call,
                          const size_t *counts, struct err *err)
{
    if (is_aborted(c))
        return fail_aborted(c, call->op, err);
    arrive(c, call, counts);
    if (!wait_for_all(c))
        return fail_aborted(c, call->op, err);
    if (!c->home->met)
        count_cpus(c);
    return compare_calls(c, err);
}

void comm_shm_meet_abort(struct comm_shm *c)
{
    struct comm_shm_region *region = c->home->region;
    uint32_t well = 0;
    atomic_compare_exchange_strong(&region->aborted, &well, 1 + (uint32_t)c->home->rank);
    for (int32_t i = 0; i < (1 + COMM_GROUPS_MAX) * region->ranks; i++)
        if (atomic_load(&region->seats[i].door.waiters) != 0)
            futex_wake_all(&region->seats[i].door.count);
}

enum status comm_shm_meet_diverged(struct comm_shm *c, int32_t peer, const char *what,
                                   struct err *err)
{
    const struct comm_shm_call mine = *comm_shm_meet_call(c, c->base.rank);
    const struct comm_shm_call theirs = *comm_shm_meet_call(c, peer);
    comm_shm_meet_abort(c);
    return base_fail(err, ERR_COMM,
                     "group %s: ranks have diverged (%s): rank %d calls %s of %llu, rank %d calls "
                     "%s of %llu",
                     c->base.stats->group, what, (int)c->base.rank, label(mine.op),
                     (unsigned long long)mine.n, (int)peer, label(theirs.op),
                     (unsigned long long)theirs.n);
}
