/* DESIGN: every rank computes by itself, from (rank, iteration, index), what its peers hold, so
 * each result is checked in full on every rank: sums bit for bit against the tree written here once
 * more, and against a double sum. Ranks run as threads of this process (the thread sanitizer sees
 * them) or as forked processes that map one memfd each on its own. Both run the same bodies. What a
 * rank finds wrong is counted in shared memory, because an assertion may only fail on the main
 * thread. Counters are compared with closed forms written here from the documentation. */
#include "tests/comm_ranks.h"

#include "tests/only.h"

/* ---- one collective of every kind, checked ---- */

static void fill_words(struct rank *r, uint32_t it, size_t n)
{
    for (size_t i = 0; i < n; i++)
        memcpy(&r->src[it & 1][i], &(uint32_t){word(r->rank, it, i)}, 4);
}

/* The words dst[at ..] are those of rank `from`, from its element `first` on. */
static bool words_are(const struct rank *r, size_t at, int32_t from, uint32_t it, size_t first,
                      size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t want = word(from, it, first + i);
        if (memcmp(&want, &r->dst[at + i], 4) != 0)
            return false;
    }
    return true;
}

static void do_all_reduce(struct rank *r, uint32_t it, size_t n)
{
    fill_values(r, it, n);
    GOOD(r, comm_all_reduce(r->c, r->dst, r->src[it & 1], n, &err));
    EXPECT(r, sums_are(r, it, 0, n));
    r->hash = base_hash(r->hash, r->dst, n * 4);
    account(r, COMM_ALL_REDUCE, all_reduce_bytes(r, n));
}

/* For the v-forms: often nothing. */
static uint32_t draw_count(struct rank *r, uint32_t below)
{
    return draw(&r->common, 3) == 0 ? 0 : draw(&r->common, below);
}

static void do_all_gather(struct rank *r, uint32_t it, int32_t rows)
{
    int32_t cols[RANKS];
    size_t total = 0, at = 0;
    for (int32_t i = 0; i < r->ranks; i++) {
        cols[i] = (int32_t)draw_count(r, rows == 1 ? CAP / RANKS : 3000);
        total += (size_t)cols[i];
    }
    size_t own = (size_t)cols[r->rank];
    fill_words(r, it, (size_t)rows * own);
    GOOD(r, comm_all_gather(r->c, r->dst, r->src[it & 1], rows, cols, &err));
    for (int32_t i = 0; i < r->ranks; i++) {
        size_t width = (size_t)cols[i];
        for (size_t row = 0; row < (size_t)rows; row++)
            EXPECT(r, words_are(r, row * total + at, i, it, row * width, width));
        at += width;
    }
    r->hash = base_hash(r->hash, r->dst, (size_t)rows * total * 4);
    account(r, COMM_ALL_GATHER, 4 * (size_t)rows * (total - own));
}

static void do_reduce_scatter(struct rank *r, uint32_t it, uint32_t longest)
{
    size_t counts[RANKS], total = 0, first = 0;
    for (int32_t i = 0; i < r->ranks; i++) {
        counts[i] = draw_count(r, longest);
        first += i < r->rank ? counts[i] : 0;
        total += counts[i];
    }
    fill_values(r, it, total);
    GOOD(r, comm_reduce_scatter(r->c, r->dst, r->src[it & 1], counts, &err));
    EXPECT(r, sums_are(r, it, first, counts[r->rank]));
    account(r, COMM_REDUCE_SCATTER, 4 * ((size_t)r->ranks - 1) * counts[r->rank]);
}

static void do_broadcast(struct rank *r, uint32_t it, size_t n)
{
    int32_t root = (int32_t)draw(&r->common, (uint32_t)r->ranks);
    if (root == r->rank)
        fill_words(r, it, n);
    GOOD(r, comm_broadcast(r->c, r->dst, root == r->rank ? r->src[it & 1] : NULL, n, root, &err));
    EXPECT(r, words_are(r, 0, root, it, 0, n));
    r->hash = base_hash(r->hash, r->dst, n * 4);
    account(r, COMM_BROADCAST, root == r->rank ? 0 : 4 * n);
}

static void do_all_to_all(struct rank *r, uint32_t it, uint32_t longest)
{
    size_t counts[RANKS][RANKS]; /* [from][to] */
    size_t send[RANKS], receive[RANKS], total = 0, at = 0;
    for (int32_t from = 0; from < r->ranks; from++)
        for (int32_t to = 0; to < r->ranks; to++)
            counts[from][to] = draw_count(r, longest);
    for (int32_t i = 0; i < r->ranks; i++) {
        send[i] = counts[r->rank][i];
        receive[i] = counts[i][r->rank];
        total += send[i];
    }
    fill_words(r, it, total);
    GOOD(r, comm_all_to_all(r->c, r->dst, receive, r->src[it & 1], send, &err));
    for (int32_t from = 0; from < r->ranks; from++) {
        size_t first = 0;
        for (int32_t to = 0; to < r->rank; to++)
            first += counts[from][to];
        EXPECT(r, words_are(r, at, from, it, first, receive[from]));
        at += receive[from];
    }
    account(r, COMM_ALL_TO_ALL, 4 * (at - receive[r->rank]));
}

/* A size: mostly small, sometimes at the one-shot limit or beyond it. */
static size_t draw_size(struct rank *r)
{
    static const size_t special[] = {0, 1, 2, 3, 17, 2048, 65535, 65536, 65537, 70001, 131072};
    if (draw(&r->common, 3) == 0)
        return special[draw(&r->common, ARRAY_LEN(special))];
    return draw(&r->common, 5000);
}

static void do_any(struct rank *r, uint32_t it)
{
    switch (draw(&r->common, 8)) {
    case 0:
    case 1:
        do_all_reduce(r, it, draw_size(r));
        break;
    case 2:
    case 3:
        do_all_gather(r, it, (int32_t)draw(&r->common, 6));
        break;
    case 4:
        do_reduce_scatter(r, it, draw(&r->common, 2) == 0 ? 9 : CAP / RANKS);
        break;
    case 5:
        do_broadcast(r, it, draw_size(r));
        break;
    case 6:
        do_all_to_all(r, it, draw(&r->common, 2) == 0 ? 5 : CAP / RANKS);
        break;
    default:
        GOOD(r, comm_barrier(r->c, &err));
        account(r, COMM_BARRIER, 0);
    }
}

static void body_any(struct rank *r)
{
    EXPECT(r, !comm_has_norm(r->c, 1, 1));
    static const size_t sizes[] = {0, 1, 65536, 65537, CAP};
    uint32_t it = 0;
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++)
        do_all_reduce(r, it++, sizes[i]);
    for (int i = 0; i < 60; i++)
        do_any(r, it++);
    expect_counters(r);
}

static void run_any(bool processes)
{
    struct shared s;
    for (int32_t ranks = 1; ranks <= RANKS; ranks++) {
        run(ranks, processes, body_any, &s);
        for (int32_t i = 1; i < ranks; i++)
            assert_int_equal(atomic_load(&s.hash[i]), atomic_load(&s.hash[0]));
    }
}

static void test_threads(void **state)
{
    (void)state;
    run_any(false);
}

static void test_processes(void **state)
{
    (void)state;
    run_any(true);
}

/* Sums and large copies split among the backend's threads. */
static void test_threaded_ranks(void **state)
{
    (void)state;
    threads_per_rank = 2;
    run(2, false, body_any, NULL);
    run(3, true, body_any, NULL);
    threads_per_rank = 1;
}

/* ---- reuse of buffers, under random delays ---- */

/* Two sources, one destination. */
static void body_reuse(struct rank *r)
{
    for (uint32_t it = 0; it < 4000; it++) {
        delay(r);
        do_all_reduce(r, it, 1 + it % 64);
    }
    expect_counters(r);
}

static void body_reuse_two_shot(struct rank *r)
{
    for (uint32_t it = 0; it < 60; it++) {
        delay(r);
        do_all_reduce(r, it, it % 3 == 0 ? 100 : 65537 + it);
    }
    expect_counters(r);
}

/* At the wraps everybody must have to sleep: they are in the 1000th phase, and where the counter
 * has seen 3001 arrivals. */
static void body_wrap(struct rank *r)
{
    for (int32_t phase = 1; phase <= 1600; phase++) {
        int32_t arrivals = phase * r->ranks;
        bool near = (phase > 990 && phase < 1010) || (arrivals > 2980 && arrivals < 3020);
        if (near && r->rank == phase % r->ranks)
            usleep(2000);
        GOOD(r, comm_barrier(r->c, &err));
        account(r, COMM_BARRIER, 0);
    }
    expect_counters(r);
}

/* n elements to the next rank, while as many come from the one before. */
static enum status pass_on(struct rank *r, void *dst, const void *src, size_t n, struct err *err)
{
    size_t send[RANKS] = {0}, receive[RANKS] = {0};
    send[(r->rank + 1) % r->ranks] = receive[(r->rank + r->ranks - 1) % r->ranks] = n;
    return comm_all_to_all(r->c, dst, receive, src, send, err);
}

/* What was received is sent on, into what was sent before: the next collective may name the last
 * one's source as its destination. After `ranks` turns everybody has its own words again. */
static void body_reuse_chain(struct rank *r)
{
    const size_t n = 500;
    fill_words(r, 0, n);
    for (uint32_t turn = 0; turn < 1500u * (uint32_t)r->ranks; turn++) {
        delay(r);
        GOOD(r, pass_on(r, r->src[(turn + 1) & 1], r->src[turn & 1], n, &err));
    }
    memcpy(r->dst, r->src[1500 * r->ranks % 2], n * 4);
    EXPECT(r, words_are(r, 0, r->rank, 0, 0, n));
}

static void test_reuse(void **state)
{
    (void)state;
    for (int32_t ranks = 2; ranks <= RANKS; ranks += 3) {
        run(ranks, false, body_reuse, NULL);
        run(ranks, true, body_reuse, NULL);
        run(ranks, false, body_reuse_chain, NULL);
        run(ranks, true, body_reuse_chain, NULL);
    }
    run(2, true, body_wrap, NULL);
    run(3, false, body_wrap, NULL);
    run(3, false, body_reuse_two_shot, NULL);
    run(4, true, body_reuse_two_shot, NULL);
}

/* ---- split ---- */

/* Sums 2^(rank in the world) over the group and compares with the set the test says it has. */
static void expect_group(struct rank *r, struct comm *c, const struct comm_stats *stats,
                         uint32_t members, int32_t rank)
{
    EXPECT(r, c->ranks == __builtin_popcount(members));
    EXPECT(r, c->rank == rank);
    for (int i = 0; i < 50; i++) {
        float *src = r->src[i & 1];
        src[0] = (float)(1u << r->rank);
        delay(r);
        GOOD(r, comm_all_reduce(c, r->dst, src, 1, &err));
        EXPECT(r, r->dst[0] == (float)members);
    }
    EXPECT(r, atomic_load(&stats->op[COMM_ALL_REDUCE].calls) == 50);
    uint32_t each = in_nccls_order() ? 2 * (c->ranks > 1) : (uint32_t)(c->ranks - 1);
    EXPECT(r, atomic_load(&stats->op[COMM_ALL_REDUCE].bytes) == 50u * 4 * each);
}

/* A mesh of 2 columns: rows by key = rank, columns in descending order; then a split of the split.
 */
static void body_mesh(struct rank *r)
{
    struct comm *row = NULL, *column = NULL, *single = NULL;
    struct comm_stats stats[3] = {{.group = ""}};
    int32_t rows = r->ranks / 2, x = r->rank / 2, y = r->rank % 2;
    uint32_t in_column = 0;
    for (int32_t i = 0; i < rows; i++)
        in_column |= 1u << (2 * i + y);
    GOOD(r, comm_split(r->c, x, r->rank, "row", &stats[0], &row, &err));
    GOOD(r, comm_split(r->c, -y, -r->rank, "column", &stats[1], &column, &err));
    EXPECT(r, strcmp(stats[1].group, "column") == 0);
    for (int round = 0; round < 2; round++) {
        atomic_store(&stats[0].op[COMM_ALL_REDUCE].calls, 0);
        atomic_store(&stats[0].op[COMM_ALL_REDUCE].bytes, 0);
        expect_group(r, row, &stats[0], 3u << (2 * x), y);
        GOOD(r, comm_barrier(r->c, &err));
    }
    expect_group(r, column, &stats[1], in_column, rows - 1 - x);
    GOOD(r, comm_barrier(r->c, &err));
    GOOD(r, comm_split(column, x, 0, "single", &stats[2], &single, &err));
    expect_group(r, single, &stats[2], 1u << r->rank, 0);
    do_all_reduce(r, 0, 1000);
    comm_close(single);
    comm_close(column);
    comm_close(row);
}

/* Colors of 1, 2 and 3 members of six, equal keys; then all that is left of the groups. */
static void body_uneven(struct rank *r)
{
    static const int32_t color[6] = {5, -1, 5, 0, -1, 5};
    static const uint32_t members[6] = {37, 18, 37, 8, 18, 37};
    static const int32_t rank[6] = {0, 0, 1, 0, 1, 2};
    const uint32_t all = (1u << r->ranks) - 1;
    struct comm *group[COMM_GROUPS_MAX] = {NULL}, *more = NULL;
    struct comm_stats stats[COMM_GROUPS_MAX] = {{.group = ""}}, unused = {.group = ""};
    struct err why = {""};
    for (int i = 0; i < COMM_GROUPS_MAX; i++) {
        GOOD(r, comm_split(r->c, color[r->rank], 3, "uneven", &stats[i], &group[i], &err));
        expect_group(r, group[i], &stats[i], members[r->rank] & all, rank[r->rank]);
        GOOD(r, comm_barrier(r->c, &err));
    }
    EXPECT(r, comm_split(r->c, 0, 0, "more", &unused, &more, &why) == ERR_LIMIT);
    EXPECT(r, more == NULL);
    do_all_reduce(r, 0, 1000);
    for (int i = 0; i < COMM_GROUPS_MAX; i++)
        comm_close(group[i]);
}

static void test_split(void **state)
{
    (void)state;
    for (int processes = 0; processes < 2; processes++) {
        run(4, processes != 0, body_mesh, NULL);
        run(6, processes != 0, body_mesh, NULL);
        run(6, processes != 0, body_uneven, NULL);
    }
}

/* ---- between devices ---- */

/* The own abort ends the own calls, at once and for good. */
static void body_device_abort(struct rank *r)
{
    struct err err = {""};
    do_all_reduce(r, 0, 10);
    comm_abort(r->c);
    for (int i = 0; i < 2; i++)
        EXPECT(r, comm_all_reduce(r->c, r->dst, r->src[0], 10, &err) == ERR_COMM);
    EXPECT(r, comm_barrier(r->c, &err) == ERR_COMM);
}

/* A call that fails ends its group, too, which the emulation checks when the thread ends. */
static void body_device_failure(struct rank *r)
{
    struct err err = {""};
    EXPECT(r, pass_on(r, r->dst, r->src[0], 4, &err) == ERR_COMM);
    EXPECT(r, comm_barrier(r->c, &err) == ERR_COMM);
}

static void *abort_later(void *c)
{
    usleep(100 * 1000);
    comm_abort(c);
    return NULL;
}

/* The last rank does not come: what the others upload meanwhile waits behind it. */
static void body_device_upload(struct rank *r)
{
    enum { BYTES = 80 << 20, SMALL = 32 << 10 };
    struct err err = {""};
    struct backend *b = r->device;
    pthread_t later;
    void *to = b->ops->alloc(b, BYTES), *from = calloc(1, BYTES);
    CHECK(to && from);
    if (r->rank < r->ranks - 1) {
        EXPECT(r, comm_all_reduce(r->c, r->dst, r->src[0], 10, &err) == OK);
        CHECK(pthread_create(&later, NULL, abort_later, r->c) == 0);
        if (r->rank == 0)
            b->ops->upload(b, to, from, BYTES);
        else
            for (size_t at = 0; at < (4 << 20); at += SMALL)
                b->ops->upload(b, (char *)to + at, from, SMALL);
        pthread_join(later, NULL);
        EXPECT(r, comm_barrier(r->c, &err) == ERR_COMM);
    }
    b->ops->sync(b);
    b->ops->free(b, to);
    free(from);
}

static void test_devices(void **state)
{
    (void)state;
    struct err err = {""};
    struct backend *b = NULL;
    if (backend_open("cuda", 1, &b, &err) != OK) {
        print_message("%s\n", err.text);
        skip();
    }
    backend_close(b);
    between_devices = true;
    run_any(false);
    run(4, false, body_mesh, NULL);
    run(6, false, body_mesh, NULL);
    run(6, false, body_uneven, NULL);
    run(1, false, body_uneven, NULL);
    run(3, false, body_device_abort, NULL);
    run(1, false, body_device_abort, NULL);
    run(3, false, body_device_upload, NULL);
    setenv("EMULATED_NCCL_FAILS", "1", 1);
    run(3, false, body_device_failure, NULL);
    unsetenv("EMULATED_NCCL_FAILS");
    device_how ^= COMM_SHARED_DEVICE;
    run(3, false, body_device_abort, NULL); /* each on its own */
    device_how ^= COMM_SHARED_DEVICE;
    between_devices = false;
}

/* The bits and the counters of shared memory, in whatever order NCCL would have added. */
static void test_fixed_order(void **state)
{
    device_how |= COMM_FIXED_ORDER;
    setenv("EMULATED_NCCL_CHAINS", "1", 1);
    test_devices(state);
    unsetenv("EMULATED_NCCL_CHAINS");
    device_how &= ~(uint32_t)COMM_FIXED_ORDER;
}

static bool windows_are_used; /* set before the ranks start */

/* What was added in a window was added in the order of the ranks, and not in a tree. */
static void body_window(struct rank *r)
{
    const size_t n = 1000;
    size_t unlike = 0;
    fill_values(r, 0, n);
    GOOD(r, comm_all_reduce(r->c, r->dst, r->src[0], n, &err));
    for (size_t i = 0; i < n; i++) {
        float v[RANKS] = {0}, chain = 0;
        for (int32_t k = 0; k < r->ranks; k++) {
            v[k] = value(k, 0, i);
            chain += v[k];
        }
        const float want = windows_are_used ? chain : tree(v, 0, RANKS, r->ranks);
        unlike += memcmp(&want, &r->dst[i], 4) != 0;
    }
    EXPECT(r, unlike == 0);
    r->hash = base_hash(r->hash, r->dst, n * 4);
}

/* Symmetric memory is used where it is faster and all ranks get the same bits from it. */
/* A window that is good and fails at last: its memory is NCCL's for as long as it is registered, as
 * the emulation checks. The ranks' own communicator helps to open one. */
static void body_broken_window(struct rank *r)
{
    char name[16];
    struct err err = {""};
    struct backend *b = NULL;
    struct comm *c = NULL;
    struct comm_stats stats = {.group = ""};
    (void)snprintf(name, sizeof name, "cuda:%d", (int)r->rank);
    CHECK(backend_open(name, 1, &b, &err) == OK);
    EXPECT(r, comm_device_open(r->c, b, ARENA, 0, &stats, &c, &err) == ERR_DEVICE);
    EXPECT(r, strstr(err.text, "symmetric memory") != NULL);
    EXPECT(r, c == NULL);
    backend_close(b);
}

static void test_windows(void **state)
{
    (void)state;
    static const struct {
        const char *emulated;
        uint32_t how;
        const char *version; /* those between have windows that cannot be trusted */
        bool used;
    } cases[] = {{NULL, 0, "23007", false},     {"fast", 0, "23007", true},
                 {"unlike", 0, "23007", false}, {"fast", COMM_NO_WINDOWS, "23007", false},
                 {"fast", 0, "22802", true},    {"fast", 0, "22803", false},
                 {"fast", 0, "23006", false}};
    struct err err = {""};
    struct backend *b = NULL;
    if (backend_open("cuda:7", 1, &b, &err) != OK) {
        print_message("%s\n", err.text);
        skip();
    }
    backend_close(b);
    between_devices = true;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        if (cases[i].emulated != NULL)
            setenv("EMULATED_NCCL_WINDOWS", cases[i].emulated, 1);
        setenv("EMULATED_NCCL_VERSION", cases[i].version, 1);
        device_how = cases[i].how;
        windows_are_used = cases[i].used;
        run(2, false, body_window, NULL);
        run(4, false, body_window, NULL);
        if (!windows_are_used)
            run(4, false, body_mesh, NULL);
    }
    between_devices = false;
    setenv("EMULATED_NCCL_WINDOWS", "broken", 1);
    setenv("EMULATED_NCCL_VERSION", "23007", 1);
    run(2, false, body_broken_window, NULL);
    unsetenv("EMULATED_NCCL_WINDOWS");
    unsetenv("EMULATED_NCCL_VERSION");
    device_how = COMM_SHARED_DEVICE;
}

/* ---- failure ---- */

/* The last rank does not come; the first one gives up later. */
static void body_abort(struct rank *r)
{
    struct err err = {""};
    if (r->rank == r->ranks - 1) {
        usleep(100 * 1000);
        comm_abort(r->c);
    } else {
        EXPECT(r, comm_all_reduce(r->c, r->dst, r->src[0], 10, &err) == ERR_COMM);
        EXPECT(r, strstr(err.text, "all_reduce") != NULL);
        EXPECT(r, atomic_load(&r->stats->op[COMM_ALL_REDUCE].calls) == 0);
    }
    EXPECT(r, comm_barrier(r->c, &err) == ERR_COMM);
}

static void test_abort(void **state)
{
    (void)state;
    for (int32_t ranks = 1; ranks <= RANKS; ranks += 3) {
        run(ranks, false, body_abort, NULL);
        run(ranks, true, body_abort, NULL);
    }
}

/* Rank 1 strays in one of seven ways: somebody notices, nobody hangs, nobody goes on. */
static enum status stray(struct rank *r, int how, struct err *err)
{
    bool odd = r->rank == 1;
    int32_t cols[RANKS] = {3, odd ? 2 : 1, odd ? 1 : 2};
    size_t sizes[RANKS] = {3, odd ? 2 : 1, odd ? 1 : 2}, flat[RANKS] = {2, 2, 2};
    switch (how) {
    case 0:
        return odd ? comm_barrier(r->c, err) : comm_all_reduce(r->c, r->dst, r->src[0], 0, err);
    case 1:
        return comm_all_reduce(r->c, r->dst, r->src[0], odd ? 4 : 5, err);
    case 2:
        return comm_all_reduce(r->c, r->dst, r->src[0], odd ? CAP : 5, err);
    case 3:
        return comm_broadcast(r->c, r->dst, r->src[0], 4, odd, err);
    case 4:
        return comm_all_gather(r->c, r->dst, r->src[0], 2, cols, err);
    case 5:
        return comm_reduce_scatter(r->c, r->dst, r->src[0], sizes, err);
    default:
        return comm_all_to_all(r->c, r->dst, flat, r->src[0], sizes, err);
    }
}

static int stray_how; /* set before the ranks start */

static void body_stray(struct rank *r)
{
    struct err err = {""};
    do_all_reduce(r, 0, 3);
    enum status st = stray(r, stray_how, &err);
    atomic_store(&r->shared->errors[r->rank], (int)st);
    if (st != OK)
        EXPECT(r, strlen(err.text) > 0);
    /* When a pair disagrees the others may not notice, but nobody gets further than this. */
    atomic_fetch_add(&r->shared->done, 1);
    while (atomic_load(&r->shared->done) < r->ranks)
        sched_yield();
    EXPECT(r, comm_barrier(r->c, &err) == ERR_COMM);
}

static void test_divergence(void **state)
{
    (void)state;
    struct shared s;
    for (stray_how = 0; stray_how < 7; stray_how++) {
        for (int processes = 0; processes < 2; processes++) {
            run(3, processes != 0, body_stray, &s);
            int failed = 0;
            for (int i = 0; i < 3; i++)
                failed += atomic_load(&s.errors[i]) == ERR_COMM;
            assert_true(failed >= 3);
        }
    }
}

/* ---- time: of the CPU, which other programs' load does not change ---- */

static int64_t cpu_used_ns(int who)
{
    struct rusage u;
    CHECK(getrusage(who, &u) == 0);
    return (u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1000000000ll +
           (u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1000ll;
}

static void body_crowded(struct rank *r)
{
    for (uint32_t it = 0; it < 500; it++)
        do_all_reduce(r, it, 64);
}

/* More ranks than CPUs, whatever the machine has: they give way instead of spinning. */
static void test_oversubscription(void **state)
{
    (void)state;
    cpu_set_t all, two;
    int kept = 0;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    CPU_ZERO(&two);
    for (size_t cpu = 0; cpu < CPU_SETSIZE && kept < 2; cpu++) {
        if (CPU_ISSET(cpu, &all)) {
            CPU_SET(cpu, &two);
            kept++;
        }
    }
    assert_int_equal(sched_setaffinity(0, sizeof two, &two), 0);
    int64_t before = cpu_used_ns(RUSAGE_SELF) + cpu_used_ns(RUSAGE_CHILDREN);
    run(RANKS, true, body_crowded, NULL);
    run(RANKS, false, body_crowded, NULL);
    int64_t used = cpu_used_ns(RUSAGE_SELF) + cpu_used_ns(RUSAGE_CHILDREN) - before;
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
    assert_true(used < 5ll * 1000 * 1000 * 1000); /* a tenth of a second, where all is well */
}

static void body_idle(struct rank *r)
{
    GOOD(r, comm_barrier(r->c, &err));
    int64_t before = cpu_used_ns(RUSAGE_THREAD);
    if (r->rank == 0)
        usleep(500 * 1000);
    GOOD(r, comm_barrier(r->c, &err));
    EXPECT(r, cpu_used_ns(RUSAGE_THREAD) - before < 150ll * 1000 * 1000);
}

static void test_idle(void **state)
{
    (void)state;
    run(2, true, body_idle, NULL);
    run(4, false, body_idle, NULL);
}

/* ---- opening ---- */

static void test_open(void **state)
{
    (void)state;
    struct err err = {""};
    struct backend *b = NULL;
    struct comm *c = NULL, *again = NULL;
    struct comm_stats stats = {.group = ""};
    size_t bytes = comm_shm_bytes(2, 1000);
    void *region = aligned_alloc(4096, bytes);
    assert_non_null(region);
    memset(region, 0, bytes);
    assert_int_equal(backend_open("cpu-generic", 1, &b, &err), OK);
    assert_int_equal(comm_shm_open(region, 0, b, &stats, &again, &err), ERR_COMM);
    comm_shm_init(region, 2, 1000);
    assert_int_equal(comm_shm_open(region, 2, b, &stats, &again, &err), ERR_COMM);
    assert_int_equal(comm_shm_open(region, -1, b, &stats, &again, &err), ERR_COMM);
    assert_int_equal(comm_shm_open(region, 1, b, &stats, &c, &err), OK);
    assert_int_equal(comm_shm_open(region, 1, b, &stats, &again, &err), ERR_COMM);
    assert_null(again);
    assert_string_equal(stats.group, "world");
    assert_string_equal(c->ops->name, "shm");
    /* 1000 bytes are a page; a buffer takes whole cache lines. */
    char *first = comm_buffer(c, 1), *second = comm_buffer(c, 4096 - 64);
    assert_int_equal((uintptr_t)first % 64, 0);
    assert_ptr_equal(second, first + 64);
    assert_null(comm_buffer(c, 1));
    assert_null(comm_buffer(c, SIZE_MAX));
    assert_string_equal(comm_op_name(COMM_ALL_REDUCE), "all_reduce");
    assert_string_equal(comm_op_name(COMM_BARRIER), "barrier");
    comm_close(c);
    comm_close(NULL);
    backend_close(b);
    free(region);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open),       cmocka_unit_test(test_threads),
        cmocka_unit_test(test_processes),  cmocka_unit_test(test_threaded_ranks),
        cmocka_unit_test(test_reuse),      cmocka_unit_test(test_split),
        cmocka_unit_test(test_devices),    cmocka_unit_test(test_fixed_order),
        cmocka_unit_test(test_windows),    cmocka_unit_test(test_abort),
        cmocka_unit_test(test_divergence), cmocka_unit_test(test_oversubscription),
        cmocka_unit_test(test_idle),
    };
    only(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
