/* DESIGN: the program starts itself under mpirun, one process per rank. Each process plays a script
 * of collectives, drawn from a seed, over MPI, and once more over shared memory with all ranks as
 * its threads; whatever its own rank received must be the same bits, and the counters the same
 * numbers. What shared memory gives is held against formulas in test_comm.c. */
#include "config/base.h"
#include "engine/comm/comm.h"

#include <setjmp.h>
#include <stdio.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define RANKS 4
#define CAP 140000 /* elements per buffer: more than two rounds of a sum */
#define ARENA (3 * (CAP + 16) * sizeof(float))
#define CALLS 150

/* What one rank saw. */
struct trace {
    uint64_t hash[CALLS]; /* of its destination after each call */
    int32_t op[CALLS];
    struct comm_stats stats, column; /* of all ranks, and of its column of the mesh */
    bool failed;
};

struct player {
    struct comm *c;
    struct trace *trace;
    uint64_t state; /* random; the same on all ranks */
    float *src[2], *dst;
};

static uint32_t draw(struct player *p, uint32_t below)
{
    p->state = p->state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(p->state >> 33) % below;
}

/* Values whose sums depend on the order of addition. */
static void fill(float *src, int32_t rank, uint32_t call)
{
    uint32_t x = 1 + (uint32_t)rank * 2654435761u + call * 40503u;
    for (size_t i = 0; i < CAP; i++) {
        x = x * 1664525u + 1013904223u;
        src[i] = (float)(int32_t)x * (x & 64 ? 0x1p-31f : 0x1p-20f);
    }
}

static size_t draw_size(struct player *p)
{
    static const size_t special[] = {0, 1, 3, 65535, 65536, 65537, 131072, 131073, CAP};
    return draw(p, 2) == 0 ? special[draw(p, ARRAY_LEN(special))] : draw(p, 5000);
}

/* Counts for each rank, often zero; returns the sum. */
static size_t draw_counts(struct player *p, int32_t ranks, uint32_t below, size_t *counts)
{
    size_t total = 0;
    for (int32_t r = 0; r < ranks; r++)
        total += counts[r] = draw(p, 3) == 0 ? 0 : draw(p, below);
    return total;
}

static enum status all_gather(struct player *p, struct comm *c, const float *src, struct err *err)
{
    size_t counts[RANKS];
    int32_t cols[RANKS];
    const int32_t rows = (int32_t)draw(p, 6);
    (void)draw_counts(p, c->ranks, rows > 1 ? CAP / RANKS / 6 : CAP / RANKS, counts);
    for (int32_t r = 0; r < c->ranks; r++)
        cols[r] = (int32_t)counts[r];
    return comm_all_gather(c, p->dst, src, rows, cols, err);
}

static enum status all_to_all(struct player *p, struct comm *c, const float *src, struct err *err)
{
    size_t counts[RANKS][RANKS], receive[RANKS]; /* counts[from][to] */
    for (int32_t from = 0; from < c->ranks; from++)
        (void)draw_counts(p, c->ranks, CAP / RANKS, counts[from]);
    for (int32_t from = 0; from < c->ranks; from++)
        receive[from] = counts[from][c->rank];
    return comm_all_to_all(c, p->dst, receive, src, counts[c->rank], err);
}

static enum status one_call(struct player *p, struct comm *c, int32_t op, const float *src,
                            struct err *err)
{
    size_t counts[RANKS];
    switch (op) {
    case COMM_ALL_REDUCE:
        return comm_all_reduce(c, p->dst, src, draw_size(p), err);
    case COMM_ALL_GATHER:
        return all_gather(p, c, src, err);
    case COMM_REDUCE_SCATTER:
        (void)draw_counts(p, c->ranks, c->ranks > 1 ? CAP / (uint32_t)c->ranks : CAP, counts);
        return comm_reduce_scatter(c, p->dst, src, counts, err);
    case COMM_BROADCAST:
        return comm_broadcast(c, p->dst, src, draw_size(p), (int32_t)draw(p, (uint32_t)c->ranks),
                              err);
    case COMM_ALL_TO_ALL:
        return all_to_all(p, c, src, err);
    default:
        return comm_barrier(c, err);
    }
}

/* The same calls on any communicator; a third of them on the columns of a mesh of two. */
static void play(struct comm *c, struct trace *t)
{
    struct err err = {""};
    struct comm *column = NULL;
    struct player p = {.c = c, .trace = t, .state = 7};
    for (int i = 0; i < 2; i++)
        p.src[i] = comm_buffer(c, CAP * sizeof(float));
    p.dst = comm_buffer(c, CAP * sizeof(float));
    CHECK(p.dst != NULL);
    CHECK(comm_buffer(c, ARENA) == NULL);
    enum status st = comm_split(c, -(c->rank % 2), -c->rank, "column", &t->column, &column, &err);
    for (uint32_t i = 0; i < CALLS && st == OK; i++) {
        float *src = p.src[i & 1];
        fill(src, c->rank, i);
        memset(p.dst, 0, CAP * sizeof(float));
        t->op[i] = (int32_t)draw(&p, COMM_OP_COUNT);
        /* columns differ in size when the ranks are odd: they draw the same from a copy */
        struct player mine = p;
        st = one_call(&mine, draw(&p, 3) == 0 ? column : c, t->op[i], src, &err);
        if (st == OK) /* all members of c are done with the buffers */
            st = comm_barrier(c, &err);
        p.state += 0x9e3779b97f4a7c15ull;
        t->hash[i] = base_hash(BASE_HASH_INIT, p.dst, CAP * sizeof(float));
    }
    t->failed = st != OK;
    if (st != OK)
        fprintf(stderr, "rank %d over %s: %s\n", (int)c->rank, c->ops->name, err.text);
    comm_close(column);
}

/* ---- shared memory, all ranks as threads ---- */

struct thread {
    pthread_t id;
    void *region;
    int32_t rank;
    struct trace trace;
};

static void *thread_main(void *arg)
{
    struct thread *t = arg;
    struct err err = {""};
    struct backend *b = NULL;
    struct comm *c = NULL;
    CHECK(backend_open("cpu-generic", 1, &b, &err) == OK);
    CHECK(comm_shm_open(t->region, t->rank, b, &t->trace.stats, &c, &err) == OK);
    play(c, &t->trace);
    comm_close(c);
    backend_close(b);
    return NULL;
}

/* What `rank` of `ranks` sees over shared memory. */
static void play_shm(int32_t rank, int32_t ranks, struct trace *out)
{
    const size_t bytes = base_align(comm_shm_bytes(ranks, ARENA), 4096);
    struct thread *t = calloc((size_t)ranks, sizeof *t);
    void *region = aligned_alloc(4096, bytes);
    CHECK(t != NULL);
    CHECK(region != NULL);
    memset(region, 0, bytes);
    comm_shm_init(region, ranks, ARENA);
    for (int32_t r = 0; r < ranks; r++) {
        t[r].region = region;
        t[r].rank = r;
        CHECK(pthread_create(&t[r].id, NULL, thread_main, &t[r]) == 0);
    }
    for (int32_t r = 0; r < ranks; r++)
        CHECK(pthread_join(t[r].id, NULL) == 0);
    *out = t[rank].trace;
    free(region);
    free(t);
}

/* ---- a process under mpirun ---- */

static int32_t number(const char *name)
{
    const char *text = getenv(name);
    CHECK(text != NULL);
    return (int32_t)strtol(text, NULL, 10);
}

static bool stats_equal(const struct comm_stats *a, const struct comm_stats *b)
{
    bool equal = strcmp(a->group, b->group) == 0;
    for (int op = 0; op < COMM_OP_COUNT; op++)
        equal = equal && a->op[op].calls == b->op[op].calls && a->op[op].bytes == b->op[op].bytes;
    return equal;
}

static struct comm *open_mpi(struct backend **b, struct comm_stats *stats)
{
    struct err err = {""};
    struct comm *c = NULL;
    CHECK(backend_open("cpu-generic", 1, b, &err) == OK);
    if (comm_mpi_open(number("OMPI_COMM_WORLD_RANK"), number("OMPI_COMM_WORLD_SIZE"), *b, ARENA,
                      stats, &c, &err) != OK)
        fprintf(stderr, "%s\n", err.text);
    return c;
}

static int rank_same_bits(void)
{
    static struct trace got, want;
    struct backend *b = NULL;
    struct comm *c = open_mpi(&b, &got.stats);
    if (c == NULL)
        return 1;
    const int32_t rank = c->rank, ranks = c->ranks;
    int wrong = strcmp(c->ops->name, "mpi") != 0;
    play(c, &got);
    comm_close(c);
    backend_close(b);
    play_shm(rank, ranks, &want);
    wrong += got.failed || want.failed;
    for (int i = 0; i < CALLS; i++) {
        if (got.op[i] == want.op[i] && got.hash[i] == want.hash[i])
            continue;
        fprintf(stderr, "rank %d of %d: call %d (%s) gives other bits than shared memory\n",
                (int)rank, (int)ranks, i, comm_op_name((enum comm_op)got.op[i]));
        wrong++;
    }
    if (!stats_equal(&got.stats, &want.stats) || !stats_equal(&got.column, &want.column)) {
        fprintf(stderr, "rank %d of %d: other counters than shared memory\n", (int)rank,
                (int)ranks);
        wrong++;
    }
    return wrong > 0;
}

/* Rank 1 strays; everybody who hears of it says so. */
static int rank_stray(int how)
{
    struct comm_stats stats = {.group = ""};
    struct err err = {""};
    struct backend *b = NULL;
    struct comm *c = open_mpi(&b, &stats);
    if (c == NULL)
        return 1;
    float *src = comm_buffer(c, CAP * 4), *dst = comm_buffer(c, CAP * 4);
    memset(src, 0, CAP * 4);
    const bool odd = c->rank == 1;
    const int32_t cols[3] = {3, odd ? 2 : 1, odd ? 1 : 2};
    const size_t fives[3] = {5, 5, 5}; /* the same messages as of an all_reduce of 5 */
    enum status st = how == 0   ? comm_all_reduce(c, dst, src, odd ? 4 : 5, &err)
                     : how == 1 ? comm_all_reduce(c, dst, src, odd ? CAP : 5, &err)
                     : how == 2 ? comm_all_gather(c, dst, src, 2, cols, &err)
                     : !odd     ? comm_all_reduce(c, dst, src, 5, &err)
                     : how == 3 ? comm_barrier(c, &err)
                                : comm_reduce_scatter(c, dst, src, fives, &err);
    if (st == ERR_COMM && strstr(err.text, "diverged") != NULL)
        printf("noticed\n");
    else
        printf("rank %d: status %d: %s\n", (int)c->rank, (int)st, err.text);
    (void)fflush(stdout);
    usleep(500 * 1000); /* the launcher ends the others when one ends like this */
    comm_close(c);
    backend_close(b);
    return 1;
}

/* The other ranks wait for rank 0, which never comes; they give up themselves. */
static void *give_up(void *arg)
{
    usleep(100 * 1000);
    comm_abort(arg);
    return NULL;
}

static int rank_abort(void)
{
    struct comm_stats stats = {.group = ""};
    struct err err = {""};
    struct backend *b = NULL;
    pthread_t id;
    struct comm *c = open_mpi(&b, &stats);
    if (c == NULL)
        return 1;
    CHECK(pthread_create(&id, NULL, give_up, c) == 0);
    enum status st = c->rank == 0 ? ERR_COMM : comm_barrier(c, &err);
    CHECK(pthread_join(id, NULL) == 0);
    if (st == ERR_COMM && comm_barrier(c, &err) == ERR_COMM && strstr(err.text, "aborted") != NULL)
        printf("noticed\n");
    (void)fflush(stdout);
    usleep(500 * 1000);
    return 1;
}

/* ---- the launcher ---- */

#define PATIENCE_S 200 /* such a launch takes seconds */

/* mpirun's exit status, and how many of its processes "noticed". */
static int launch(int ranks, const char *mode, int *noticed)
{
    char self[4096], command[5000], line[512];
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    assert_true(n > 0);
    self[n] = '\0';
    (void)snprintf(command, sizeof command,
                   "timeout -k 9 %d mpirun --allow-run-as-root --oversubscribe -n %d '%s' %s 2>&1",
                   PATIENCE_S, ranks, self, mode);
    (void)setenv("HOME", "/tmp", 0); /* PMIx of Open MPI 4 wants one */
    FILE *f = popen(command, "r");
    assert_non_null(f);
    *noticed = 0;
    while (fgets(line, sizeof line, f)) {
        *noticed += strncmp(line, "noticed", 7) == 0;
        if (strcmp(mode, "bits") == 0)
            print_message("%s", line);
    }
    const int how = pclose(f);
    if (how == -1 || (WIFEXITED(how) && WEXITSTATUS(how) == 124))
        fail_msg("mpirun -n %d of \"%s\" has not ended in %d s", ranks, mode, PATIENCE_S);
    return how;
}

static bool can_run(void)
{
#if defined(__SANITIZE_THREAD__)
    print_message("Open MPI is not made for the thread sanitizer: skipped\n");
    return false;
#endif
    if (access(TESSERA_MPI_MODULE, F_OK) != 0) {
        print_message("the MPI module is not built: skipped\n");
        return false;
    }
    FILE *f = popen("command -v mpirun", "r");
    char line[512];
    const bool found = f != NULL && fgets(line, sizeof line, f) != NULL;
    if (f != NULL)
        pclose(f);
    if (!found)
        print_message("mpirun is not installed: skipped\n");
    return found;
}

static void test_same_bits(void **state)
{
    (void)state;
    int noticed;
    if (!can_run())
        skip();
    for (int ranks = 1; ranks <= RANKS; ranks++)
        assert_int_equal(launch(ranks, "bits", &noticed), 0);
}

static void test_divergence(void **state)
{
    (void)state;
    int noticed;
    if (!can_run())
        skip();
    for (int how = 0; how < 5; how++) {
        char mode[2] = {(char)('0' + how), '\0'};
        assert_int_not_equal(launch(3, mode, &noticed), 0);
        assert_int_equal(noticed, 3);
    }
}

static void test_abort(void **state)
{
    (void)state;
    int noticed;
    if (!can_run())
        skip();
    assert_int_not_equal(launch(3, "abort", &noticed), 0);
    assert_int_equal(noticed, 3);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_divergence),
        cmocka_unit_test(test_abort),
    };
    if (argc > 1 && strcmp(argv[1], "bits") == 0)
        return rank_same_bits();
    if (argc > 1 && strcmp(argv[1], "abort") == 0)
        return rank_abort();
    if (argc > 1)
        return rank_stray(argv[1][0] - '0');
    /* what Open MPI keeps until exit is not ours to count */
    setenv("ASAN_OPTIONS", "detect_leaks=0", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
