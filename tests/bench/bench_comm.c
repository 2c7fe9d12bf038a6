/* DESIGN: what one all_reduce costs between processes. Ranks are forked, each maps the region on
 * its own and calls back to back, alternating two sources as the reuse rule asks; every call is
 * timed on rank 0, so the numbers contain the wait for the slower rank. Ranks are pinned to CPUs of
 * their own when there are enough: a busy machine's scheduler may keep two ranks on one CPU, which
 * costs several times more. Rows of 2048 fp32 (one decode row is 8 KiB). GB/s counts the payload
 * (4n bytes), not what is moved.
 *
 * Usage: bench_comm [ranks [threads per rank [backend]]]; default 2 1 cpu. */
#include "config/base.h"
#include "engine/comm/comm.h"
#include "kernels/backend.h"

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define HIDDEN 2048
#define ROWS_MAX 512
#define CALLS_MAX 20000
#define PHASE_NS (400 * 1000 * 1000ll) /* measured per size */
#define ARENA (3 * (size_t)ROWS_MAX * HIDDEN * sizeof(float) + 4096)

struct bench {
    struct comm *c;
    float *src[2], *dst, *go; /* go: rank 0 says how many calls to make */
    int64_t *ns;
};

static int compare(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void must(enum status st, const struct err *err)
{
    if (st == OK)
        return;
    fprintf(stderr, "bench_comm: %s\n", err->text);
    exit(1);
}

static void repeat(struct bench *b, size_t n, int32_t calls)
{
    struct err err = {""};
    must(comm_barrier(b->c, &err), &err);
    for (int32_t i = 0; i < calls; i++) {
        int64_t start = base_now_ns();
        must(comm_all_reduce(b->c, b->dst, b->src[i & 1], n, &err), &err);
        b->ns[i] = base_now_ns() - start;
    }
}

/* All ranks must make the same number of calls: rank 0 chooses from a short trial. */
static int32_t choose_calls(struct bench *b, size_t n)
{
    struct err err = {""};
    const int32_t trial = 20;
    repeat(b, n, trial);
    qsort(b->ns, (size_t)trial, sizeof b->ns[0], compare);
    int64_t calls = PHASE_NS / (b->ns[trial / 2] + 1);
    b->src[0][0] = (float)(calls < 50 ? 50 : calls > CALLS_MAX ? CALLS_MAX : calls);
    must(comm_broadcast(b->c, b->go, b->src[0], 1, 0, &err), &err);
    return (int32_t)b->go[0];
}

static void measure(struct bench *b, int32_t rows)
{
    size_t n = (size_t)rows * HIDDEN;
    int32_t calls = choose_calls(b, n);
    repeat(b, n, calls);
    if (b->c->rank != 0)
        return;
    qsort(b->ns, (size_t)calls, sizeof b->ns[0], compare);
    double us = (double)b->ns[calls / 2] / 1e3, p95 = (double)b->ns[calls * 95 / 100] / 1e3;
    printf("%5d rows %8zu KiB %9.2f us median %9.2f us p95 %7.2f GB/s %6d calls\n", (int)rows,
           n * 4 / 1024, us, p95, (double)n * 4 / us / 1e3, (int)calls);
    (void)fflush(stdout);
}

/* To `threads` CPUs of its own, when there are enough. */
static void pin(int32_t rank, int32_t threads)
{
    cpu_set_t all, own;
    int32_t seen = 0, first = rank * threads;
    CPU_ZERO(&own);
    CHECK(sched_getaffinity(0, sizeof all, &all) == 0);
    for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &all))
            continue;
        if (seen >= first && seen < first + threads)
            CPU_SET(cpu, &own);
        seen++;
    }
    if (seen >= first + threads)
        CHECK(sched_setaffinity(0, sizeof own, &own) == 0);
}

static void rank_main(int fd, int32_t ranks, int32_t rank, int32_t threads, const char *name)
{
    struct err err = {""};
    struct backend *backend = NULL;
    struct comm_stats stats = {.group = ""};
    struct bench b = {.c = NULL};
    void *region =
        mmap(NULL, comm_shm_bytes(ranks, ARENA), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    pin(rank, threads);
    b.ns = calloc(CALLS_MAX, sizeof b.ns[0]);
    CHECK(region != MAP_FAILED);
    CHECK(b.ns != NULL);
    must(backend_open(name, threads, &backend, &err), &err);
    must(comm_shm_open(region, rank, backend, &stats, &b.c, &err), &err);
    for (int i = 0; i < 2; i++) {
        b.src[i] = comm_buffer(b.c, (size_t)ROWS_MAX * HIDDEN * sizeof(float));
        for (size_t k = 0; k < (size_t)ROWS_MAX * HIDDEN; k++)
            b.src[i][k] = 1.0f;
    }
    b.dst = comm_buffer(b.c, (size_t)ROWS_MAX * HIDDEN * sizeof(float));
    b.go = comm_buffer(b.c, sizeof(float));
    memset(b.dst, 0, (size_t)ROWS_MAX * HIDDEN * sizeof(float));
    for (int32_t rows = 1; rows <= ROWS_MAX; rows *= 2)
        measure(&b, rows);
    comm_close(b.c);
    backend_close(backend);
    free(b.ns);
}

int main(int argc, char **argv)
{
    int32_t ranks = argc > 1 ? (int32_t)strtol(argv[1], NULL, 10) : 2;
    int32_t threads = argc > 2 ? (int32_t)strtol(argv[2], NULL, 10) : 1;
    const char *name = argc > 3 ? argv[3] : "cpu";
    if (ranks < 1 || ranks > COMM_RANKS_MAX || threads < 1) {
        fprintf(stderr, "usage: bench_comm [ranks [threads per rank [backend]]]\n");
        return 2;
    }
    size_t bytes = comm_shm_bytes(ranks, ARENA);
    int fd = memfd_create("bench_comm", MFD_CLOEXEC), failed = 0;
    CHECK(fd >= 0);
    CHECK(ftruncate(fd, (off_t)bytes) == 0);
    void *region = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(region != MAP_FAILED);
    comm_shm_init(region, ranks, ARENA);
    pid_t pid[COMM_RANKS_MAX];
    for (int32_t i = 0; i < ranks; i++) {
        pid[i] = fork();
        CHECK(pid[i] >= 0);
        if (pid[i] == 0) {
            CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
            rank_main(fd, ranks, i, threads, name);
            _exit(0);
        }
    }
    for (int32_t left = ranks; left > 0; left--) {
        int how = -1;
        pid_t ended = wait(&how);
        CHECK(ended > 0);
        failed |= how != 0;
        for (int32_t i = 0; i < ranks; i++) {
            if (pid[i] == ended)
                pid[i] = 0;
            else if (pid[i] != 0 && how != 0) /* a group that lost a rank waits forever */
                (void)kill(pid[i], SIGKILL);
        }
    }
    return failed;
}
