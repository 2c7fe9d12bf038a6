/* Ranks of a communicator as threads of the test or as processes of their own, for tests of them:
 * each runs a body and counts in shared memory what it finds wrong. */
#ifndef TESSERA_TESTS_COMM_RANKS_H
#define TESSERA_TESTS_COMM_RANKS_H

#include "config/base.h"
#include "engine/comm/comm.h"

#include <setjmp.h>
#include <stdio.h>
#include <cmocka.h>

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define RANKS 8
#define CAP 140000 /* elements per buffer */
#define ARENA (3 * (CAP + 16) * sizeof(float))

/* Seen by all ranks and the main thread. */
struct shared {
    _Atomic int wrong;
    _Atomic uint64_t hash[RANKS]; /* of everything that must be equal on all ranks */
    _Atomic int done;
    _Atomic int errors[RANKS]; /* enum status a rank ended with */
};

struct rank {
    struct comm *c;
    struct backend *device; /* NULL: host memory */
    struct comm_stats *stats;
    int32_t rank, ranks;
    struct shared *shared;
    float *src[2], *dst;
    uint64_t common, own; /* random states: equal on all ranks, and this rank's */
    uint64_t hash;
    uint64_t calls[COMM_OP_COUNT], bytes[COMM_OP_COUNT]; /* by the closed forms */
};

typedef void body(struct rank *r);

struct world {
    int32_t ranks;
    int fd;
    body *run;
    void *region;
    struct shared *shared;
};

#define EXPECT(r, cond)                                                                            \
    do {                                                                                           \
        if (!(cond) && atomic_fetch_add(&(r)->shared->wrong, 1) < 10)                              \
            fprintf(stderr, "rank %d of %d: %s is false (line %d)\n", (r)->rank, (r)->ranks,       \
                    #cond, __LINE__);                                                              \
    } while (0)

/* Prints why a collective failed that should not have; on a device it is waited for. */
#define GOOD(r, call)                                                                              \
    do {                                                                                           \
        struct err err = {""};                                                                     \
        bool good = (call) == OK;                                                                  \
        if ((r)->device)                                                                           \
            (r)->device->ops->sync((r)->device);                                                   \
        if (!good)                                                                                 \
            fprintf(stderr, "rank %d: %s\n", (r)->rank, err.text);                                 \
        EXPECT(r, good);                                                                           \
    } while (0)

static uint32_t draw(uint64_t *state, uint32_t below)
{
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(*state >> 33) % below;
}

/* Any bits, for what is moved. */
static uint32_t word(int32_t rank, uint32_t it, size_t i)
{
    uint32_t x = (uint32_t)rank * 40503u ^ it * 2654435761u ^ (uint32_t)i * 2246822519u;
    x = (x ^ x >> 15) * 0x2c1b3c6du;
    x = (x ^ x >> 12) * 0x297a2d39u;
    return x ^ x >> 15;
}

/* In [-1, 1), for what is summed. */
static float value(int32_t rank, uint32_t it, size_t i)
{
    return (float)(int32_t)word(rank, it, i) * 0x1p-31f;
}

static float tree(const float *v, int32_t low, int32_t width, int32_t ranks)
{
    if (width == 1)
        return v[low];
    int32_t half = width / 2;
    float left = tree(v, low, half, ranks);
    return low + half < ranks ? left + tree(v, low + half, half, ranks) : left;
}

/* dst[0 .. n) holds the sums over ranks of their elements from `first` on. */
static bool sums_are(const struct rank *r, uint32_t it, size_t first, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float v[RANKS] = {0};
        double exact = 0;
        for (int32_t k = 0; k < r->ranks; k++) {
            v[k] = value(k, it, first + i);
            exact += (double)v[k];
        }
        float want = tree(v, 0, RANKS, r->ranks);
        if (memcmp(&want, &r->dst[i], 4) != 0 || fabs((double)want - exact) > 8e-7)
            return false;
    }
    return true;
}

/* ---- running ranks ---- */

static int32_t threads_per_rank = 1; /* all set before the ranks start */
static bool between_devices;         /* NCCL, on the emulated device whose memory is the host's */
static uint32_t device_how =
    COMM_SHARED_DEVICE; /* without it each rank has a device that the others reach */

/* The communicator of the ranks over the devices of `device`; `shared` only helps to open it. */
static struct comm *device_comm(struct comm *shared, struct backend *device,
                                struct comm_stats *stats)
{
    struct err err = {""};
    struct comm *c = NULL;
    if (comm_device_open(shared, device, ARENA, device_how, stats, &c, &err) != OK)
        fprintf(stderr, "%s\n", err.text);
    CHECK(c != NULL);
    return c;
}

static void start_rank(struct rank *r, struct world *w, void *region, int32_t rank)
{
    struct err err = {""};
    struct backend *b = NULL, *device = NULL;
    struct comm *shared = NULL;
    struct comm_stats unused = {.group = ""};
    *r = (struct rank){.rank = rank, .ranks = w->ranks, .shared = w->shared, .common = 7};
    r->own = 1000 + (uint64_t)rank;
    r->hash = BASE_HASH_INIT;
    r->stats = calloc(1, sizeof *r->stats);
    CHECK(r->stats != NULL);
    CHECK(backend_open("cpu-generic", threads_per_rank, &b, &err) == OK);
    CHECK(comm_shm_open(region, rank, b, between_devices ? &unused : r->stats, &shared, &err) ==
          OK);
    r->c = shared;
    if (between_devices) {
        char name[16];
        snprintf(name, sizeof name, "cuda:%d", device_how & COMM_SHARED_DEVICE ? 0 : (int)rank);
        CHECK(backend_open(name, 1, &device, &err) == OK);
        r->c = device_comm(shared, device, r->stats);
        r->device = device;
    }
    for (int i = 0; i < 2; i++)
        r->src[i] = comm_buffer(r->c, CAP * sizeof(float));
    r->dst = comm_buffer(r->c, CAP * sizeof(float));
    CHECK(r->dst != NULL);
    if (device)
        device->ops->sync(device); /* the buffers are zeroed in its time */
    w->run(r);
    atomic_store(&w->shared->hash[rank], r->hash);
    comm_close(r->c);
    if (between_devices)
        comm_close(shared);
    backend_close(device);
    backend_close(b);
    free(r->stats);
}

struct thread {
    pthread_t id;
    struct world *world;
    int32_t rank;
};

static void *thread_main(void *arg)
{
    struct thread *t = arg;
    struct rank r;
    start_rank(&r, t->world, t->world->region, t->rank);
    return NULL;
}

static void run_threads(struct world *w)
{
    struct thread t[RANKS];
    for (int32_t i = 0; i < w->ranks; i++) {
        t[i] = (struct thread){.world = w, .rank = i};
        assert_int_equal(pthread_create(&t[i].id, NULL, thread_main, &t[i]), 0);
    }
    for (int32_t i = 0; i < w->ranks; i++)
        assert_int_equal(pthread_join(t[i].id, NULL), 0);
}

static _Noreturn void process_main(struct world *w, int32_t rank)
{
    struct rank r;
    alarm(300); /* for tests/watchdog.c: that of the parent is not the child's */
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    /* A gap before the mapping, so that every process has it at another address. */
    (void)mmap(NULL, (size_t)(1 + rank) << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    void *region =
        mmap(NULL, comm_shm_bytes(w->ranks, ARENA), PROT_READ | PROT_WRITE, MAP_SHARED, w->fd, 0);
    CHECK(region != MAP_FAILED);
    start_rank(&r, w, region, rank);
    _exit(0);
}

static void run_processes(struct world *w)
{
    pid_t pid[RANKS];
    for (int32_t i = 0; i < w->ranks; i++) {
        pid[i] = fork();
        assert_true(pid[i] >= 0);
        if (pid[i] == 0)
            process_main(w, i);
    }
    for (int32_t i = 0; i < w->ranks; i++) {
        int how = -1;
        assert_int_equal(waitpid(pid[i], &how, 0), pid[i]);
        assert_int_equal(how, 0);
    }
}

/* Runs the body on all ranks; the shared results stay readable in *out. */
static void run(int32_t ranks, bool processes, body *run_body, struct shared *out)
{
    size_t bytes = comm_shm_bytes(ranks, ARENA);
    struct world w = {.ranks = ranks, .run = run_body, .fd = memfd_create("comm", MFD_CLOEXEC)};
    assert_true(w.fd >= 0);
    assert_int_equal(ftruncate(w.fd, (off_t)bytes), 0);
    w.region = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, w.fd, 0);
    w.shared =
        mmap(NULL, sizeof *w.shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(w.region, MAP_FAILED);
    assert_ptr_not_equal(w.shared, MAP_FAILED);
    comm_shm_init(w.region, ranks, ARENA);
    if (processes)
        run_processes(&w);
    else
        run_threads(&w);
    if (out != NULL)
        memcpy(out, w.shared, sizeof *out);
    int wrong = atomic_load(&w.shared->wrong);
    munmap(w.shared, sizeof *w.shared);
    munmap(w.region, bytes);
    close(w.fd);
    assert_int_equal(wrong, 0);
}

static inline void account(struct rank *r, enum comm_op op, uint64_t bytes)
{
    r->calls[op]++;
    r->bytes[op] += bytes;
}

static inline void expect_counters(struct rank *r)
{
    for (int op = 0; op < COMM_OP_COUNT; op++) {
        EXPECT(r, atomic_load(&r->stats->op[op].calls) == r->calls[op]);
        EXPECT(r, atomic_load(&r->stats->op[op].bytes) == r->bytes[op]);
        EXPECT(r, (atomic_load(&r->stats->op[op].nanoseconds) > 0) == (r->calls[op] > 0));
    }
}

static inline void fill_values(struct rank *r, uint32_t it, size_t n)
{
    for (size_t i = 0; i < n; i++)
        r->src[it & 1][i] = value(r->rank, it, i);
}

/* Sums are NCCL's, as are the bytes of them. */
static inline bool in_nccls_order(void)
{
    return between_devices && !(device_how & COMM_FIXED_ORDER);
}

/* Bytes of an all_reduce of n elements, by comm.h. */
static inline uint64_t all_reduce_bytes(const struct rank *r, size_t n)
{
    size_t ranks = (size_t)r->ranks, peers = ranks - 1;
    size_t own = n * (size_t)(r->rank + 1) / ranks - n * (size_t)r->rank / ranks;
    bool oneshot = r->ranks == 2 || n * 4 <= 262144;
    if (in_nccls_order())
        return 4 * 2 * (n - n / ranks);
    return r->ranks == 1 ? 0 : 4 * (oneshot ? peers * n : peers * own + (n - own));
}

static inline void delay(struct rank *r)
{
    uint32_t x = draw(&r->own, 40);
    if (x == 0)
        usleep(draw(&r->own, 300));
    else if (x < 4)
        sched_yield();
}

#endif
