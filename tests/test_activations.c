/* A rank's activations take the bytes that were planned, to the byte, in every layout: what it
 * allocates is counted here, below the ranks, and each allocation ends at a page that nobody may
 * touch, so that a write past the plan is a fault. The communicator's arena has no page to spare:
 * with one less no rank opens. */
#include "tests/cluster.h"
#include "tests/scratch.h"

#include "engine/rank_state.h"
#include "kernels/host_memory.h"

#include <math.h>
#include <sys/mman.h>

enum { ROWS = 48, PAGE = 4096, LINE = 64 };

/* ---- the memory of the ranks, in place of kernels/host_memory.c ---- */

static struct {
    pthread_mutex_t lock;
    struct {
        const struct backend *owner;
        size_t bytes;
    } of[COMM_RANKS_MAX];
} taken = {.lock = PTHREAD_MUTEX_INITIALIZER};

static size_t *taken_by(const struct backend *b)
{
    int i = 0;
    while (taken.of[i].owner != b && taken.of[i].owner != NULL)
        i++;
    taken.of[i].owner = b;
    return &taken.of[i].bytes;
}

enum status host_memory_probe(int32_t devices, size_t *bytes, struct err *err)
{
    (void)devices, (void)err;
    *bytes = 0;
    return OK;
}

/* [size of all][the bytes, up to the end of a page][a page of its own that faults] */
void *host_memory_alloc(struct backend *b, size_t bytes)
{
    const size_t used = base_align(bytes, LINE), room = base_align(used + 1, PAGE);
    const size_t all = PAGE + room + PAGE;
    char *base = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(base != MAP_FAILED);
    CHECK(mprotect(base + PAGE + room, PAGE, PROT_NONE) == 0);
    memcpy(base, &all, sizeof all);
    pthread_mutex_lock(&taken.lock);
    *taken_by(b) += used;
    pthread_mutex_unlock(&taken.lock);
    return base + PAGE + room - used;
}

void host_memory_free(struct backend *b, void *p)
{
    (void)b;
    if (p == NULL)
        return;
    char *base = (char *)p - (uintptr_t)p % PAGE - PAGE;
    size_t all;
    memcpy(&all, base, sizeof all);
    munmap(base, all);
}

void host_memory_upload(struct backend *b, void *dst, const void *src, size_t bytes)
{
    (void)b;
    if (bytes > 0)
        memcpy(dst, src, bytes);
}

enum status host_memory_download(struct backend *b, void *dst, const void *src, size_t bytes,
                                 struct err *err)
{
    (void)err;
    host_memory_upload(b, dst, src, bytes);
    return OK;
}

size_t host_memory_scratch_bytes(int32_t rows_max, int32_t in_max, int32_t out_max)
{
    (void)rows_max, (void)in_max, (void)out_max;
    return 0;
}

void host_memory_fetch(struct backend *b, int32_t flight, void *dst, const void *src, size_t bytes)
{
    (void)flight;
    host_memory_upload(b, dst, src, bytes);
}

bool host_memory_landed(struct backend *b, int32_t flight)
{
    (void)b, (void)flight;
    return true;
}

enum status host_memory_land(struct backend *b, int32_t flight, struct err *err)
{
    (void)b, (void)flight, (void)err;
    return OK;
}

bool host_memory_record(struct backend *b)
{
    (void)b;
    return false;
}

struct recording *host_memory_record_end(struct backend *b)
{
    (void)b;
    return NULL;
}

void host_memory_replay(struct backend *b, const struct recording *r)
{
    (void)b, (void)r;
    CHECK(false);
}

void host_memory_recording_close(struct recording *r)
{
    CHECK(r == NULL);
}

/* ---- layouts ---- */

/* rows: steps of so many rows have the prefill form; 0: as the plan says. */
static const struct layout_case {
    const char *mode, *mesh;
    int32_t ranks, rows;
    bool home;
    const char *model; /* NULL: tied_gqa2_f32 */
    bool pools;
} cases[] = {
    {"1d", NULL, 1, 0, false, NULL, false},
    {"1d", NULL, 3, 0, false, NULL, false},
    {"1d", NULL, 8, 0, false, NULL, false},
    {"1d_sp", NULL, 4, 0, false, NULL, false},
    {"2d", NULL, 4, 0, false, NULL, false},
    {"2d", NULL, 9, 0, false, NULL, false},
    {"2d", NULL, 4, 1, false, NULL, false},
    {"2d", NULL, 4, 8, false, NULL, false},
    {"2.5d", NULL, 8, 0, false, NULL, false},
    {"2.5d", NULL, 8, 5, false, NULL, false},
    {"3d", NULL, 8, 0, false, NULL, false},
    {"3d", "1,4,2", 8, 0, false, NULL, false},
    {"3d", "3,2,1", 6, 0, false, NULL, false},
    {"3d_gathered", NULL, 8, 0, false, NULL, false},
    {"3d_gathered", "3,2,1", 6, 0, false, NULL, false},
    {"3d_gathered", "5,1,1", 5, 0, false, NULL, false},
    {"2d", NULL, 4, 0, true, NULL, false},
    {"2d", NULL, 9, 1, true, NULL, false},
    {"2d", NULL, 4, 8, true, NULL, false},
    {"2.5d", NULL, 8, 5, true, NULL, false},
    {"3d", NULL, 8, 0, true, NULL, false},
    {"3d", "1,2,5", 10, 0, true, NULL, false},
    {"3d_gathered", "3,2,1", 6, 0, true, NULL, false},
    {"1d", NULL, 3, 0, false, "mixtral_f32", false},
    {"1d", NULL, 8, 0, false, "qwen3_moe_bf16", false},
    {"1d_sp", NULL, 4, 0, false, "mixtral_f32", false},
    {"1d", NULL, 5, 0, false, "glm4_moe_f32", false},
    {"1d_sp", NULL, 2, 0, false, "glm4_moe_bf16", false},
    {"1d", NULL, 3, 0, false, "qwen2_moe_f32", false},
    {"1d", NULL, 2, 0, false, "gemma3_f32", false},
    {"1d", NULL, 3, 0, false, "gemma4_f32", false},
    {"1d_sp", NULL, 4, 0, false, "gemma4_kv_f32", false},
    {"1d", NULL, 3, 0, false, "gemma4_moe_f32", false},
    {"1d", NULL, 8, 0, false, "gemma4_ple_f32", false},
    {"1d_sp", NULL, 4, 0, false, "gemma4_ple_f32", false},
    {"2d", NULL, 4, 0, false, "gemma2_f32", false},
    {"1d", NULL, 5, 0, false, "olmo2_f32", false},
    {"1d_sp", NULL, 4, 0, false, "olmo3_f32", false},
    {"2d", NULL, 4, 0, false, "olmo2_f32", false},
    {"2d", NULL, 4, 8, true, "olmo3_f32", false},
    {"2.5d", NULL, 8, 5, false, "olmo2_f32", false},
    {"3d", NULL, 8, 0, true, "olmo2_f32", false},
    {"3d_gathered", NULL, 8, 0, false, "olmo3_f32", false},
    {"1d", NULL, 3, 0, false, "minimax_m2_f32", false},
    {"1d", NULL, 3, 0, false, "deepseek_v3_f32", false},
    {"1d", NULL, 8, 0, false, "deepseek_v3_f32", false},
    {"1d_sp", NULL, 4, 0, false, "deepseek_v2_f32", false},
    {"1d", NULL, 3, 0, false, "qwen3_next_f32", false},
    {"1d", NULL, 8, 0, false, "qwen3_5_moe_f32", false},
    {"1d_sp", NULL, 4, 0, false, "qwen3_5_f32", false},
    {"1d", NULL, 1, 0, false, NULL, true},
    {"1d", NULL, 4, 0, false, NULL, true},
    {"1d_sp", NULL, 4, 0, false, NULL, true},
    {"2d", NULL, 4, 0, false, NULL, true},
    {"2d", NULL, 4, 8, true, NULL, true},
    {"3d_gathered", NULL, 8, 0, false, NULL, true},
    {"1d", NULL, 3, 0, false, "mixtral_f32", true},
};

static struct cluster *open_layout(const struct layout_case *k)
{
    char model[1024], mode[64], mesh[64], rows[64], path[1100], text[8192];
    const char *args[] = {mode,
                          "--dtype=float32",
                          "--threads-per-rank=1",
                          "--max-num-seqs=8",
                          rows,
                          "--kv-cache-memory=1M",
                          k->home ? "--kv-placement=home" : "--kv-placement=heads",
                          k->pools ? "--runner=pooling" : "--runner=generate",
                          k->mesh ? mesh : NULL,
                          NULL};
    snprintf(model, sizeof model, "%s/golden/%s", TEST_DATA_DIR,
             k->model ? k->model : "tied_gqa2_f32");
    snprintf(mode, sizeof mode, "--parallel-mode=%s", k->mode);
    snprintf(mesh, sizeof mesh, "--mesh=%s", k->mesh ? k->mesh : "");
    snprintf(rows, sizeof rows, "--max-num-batched-tokens=%d", ROWS);
    if (k->rows > 0) {
        struct plan *p = NULL;
        struct err err;
        assert_int_equal(plan_load(k->mode, k->mesh, NULL, k->ranks, &p, &err), OK);
        const char *whole = plan_text(p), *at = strstr(whole, "\"linears\": \"summa\"");
        assert_non_null(at);
        snprintf(text, sizeof text, "%.*s\"rows\": %d, %s", (int)(at - whole), whole, k->rows, at);
        plan_close(p);
        scratch_write(scratch_path("plan.json"), text, strlen(text));
        snprintf(path, sizeof path, "--plan=%s", scratch_path("plan.json"));
        args[0] = path;
    }
    memset(taken.of, 0, sizeof taken.of);
    return cluster_open(model, k->ranks, args);
}

/* As many rows as one home can have, the last 8 sampled, at `homes` homes from `first` on. */
static void run_step(struct cluster *c, int32_t first, int32_t homes)
{
    const struct sample_params greedy = {.temperature = 0, .top_p = 1};
    const struct step_limits *l = &c->footprint.limits;
    const int32_t rows = homes * l->home_rows < l->rows ? homes * l->home_rows : l->rows;
    int32_t prompt[ROWS], done = 0;
    for (int32_t i = 0; i < ROWS; i++)
        prompt[i] = 3 + i;
    for (int32_t slot = 0; slot < homes; slot++) {
        const int32_t left = rows - done, n = left < l->home_rows ? left : l->home_rows;
        c->home = first + slot;
        if (n > 0)
            cluster_open_slot(c, slot, prompt, n, n + 1, greedy);
        for (int32_t i = 0; i < n; i++)
            cluster_row(c, slot, i, prompt[i], ++done > rows - 8);
    }
    cluster_step(c);
}

/* Every home with all it can have; one alone, the first and the last; and a single row. */
static void run_largest_steps(struct cluster *c)
{
    const int32_t homes = c->footprint.limits.homes;
    run_step(c, 0, homes);
    run_step(c, 0, 1);
    run_step(c, homes - 1, 1);
    cluster_row(c, 0, c->footprint.limits.home_rows, STEP_TOKEN_FROM_SLOT, true);
    cluster_step(c);
}

/* Of the last step: one row. Rank 0 tells of its vector, where that is what the model gives, and
 * room for requests that wait is found accordingly. */
static void check_result(const struct cluster *c, bool pools)
{
    assert_int_equal(c->footprint.limits.columns, pools ? c->setup.model.hidden : 0);
    assert_int_equal(c->setup.options.max_num_queued_reqs,
                     pools ? OPTIONS_QUEUED_VECTORS : OPTIONS_QUEUED_DEFAULT);
    for (int32_t r = 0; r < c->footprint.ranks; r++) {
        const struct step_result *result = &c->result[r];
        assert_int_equal(result->count, 1);
        assert_int_equal(result->vector != NULL, pools && r == 0);
        assert_int_equal(result->columns, c->footprint.limits.columns);
        if (pools)
            assert_int_equal(result->ids[0], 0); /* the step's own word */
    }
    double squares = 0;
    for (int32_t i = 0; i < c->result[0].columns; i++)
        squares += (double)c->result[0].vector[i] * (double)c->result[0].vector[i];
    assert_true(!pools || (isfinite(squares) && squares > 0));
}

static void test_as_planned(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct cluster *c = open_layout(&cases[i]);
        /* the host's half of a rank's state is not the backend's */
        const struct step_limits *limits = &c->footprint.limits;
        const size_t elsewhere = rank_state_bytes(limits, false) - rank_state_bytes(limits, true);
        for (int32_t r = 0; r < cases[i].ranks; r++) {
            const size_t got = *taken_by(rank_backend(c->ranks[r]));
            const size_t wanted = c->footprint.rank[r].activations - elsewhere;
            if (got != wanted)
                fail_msg("%s %s at %d ranks: rank %d took %zu bytes, planned are %zu",
                         cases[i].mode, cases[i].mesh ? cases[i].mesh : "", cases[i].ranks, r, got,
                         wanted);
        }
        run_largest_steps(c);
        check_result(c, cases[i].pools);
        cluster_close(c);
    }
}

static void *open_rank(void *arg)
{
    struct cluster_call *k = arg;
    struct cluster *c = k->c;
    k->st = rank_open(&c->setup.options, &c->setup.model, c->setup.layouts[k->rank], &c->footprint,
                      &c->memory[k->rank], &c->ranks[k->rank], &k->err);
    return NULL;
}

/* Ranks are opened again over an arena that lacks its last page. */
static void test_arena_is_full(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        pthread_t threads[COMM_RANKS_MAX];
        struct cluster_call calls[COMM_RANKS_MAX];
        const int32_t ranks = cases[i].ranks;
        if (ranks == 1) /* it has none */
            continue;
        struct cluster *c = open_layout(&cases[i]);
        for (int32_t r = 0; r < ranks; r++) {
            rank_close(c->ranks[r]);
            c->ranks[r] = NULL;
        }
        c->footprint.comm_bytes = base_align(c->footprint.comm_bytes, PAGE) - PAGE;
        memset(c->memory[0].comm, 0, comm_shm_bytes(ranks, c->footprint.comm_bytes));
        comm_shm_init(c->memory[0].comm, ranks, c->footprint.comm_bytes);
        for (int32_t r = 0; r < ranks; r++) {
            calls[r] = (struct cluster_call){.c = c, .rank = r};
            CHECK(pthread_create(&threads[r], NULL, open_rank, &calls[r]) == 0);
        }
        for (int32_t r = 0; r < ranks; r++) {
            pthread_join(threads[r], NULL);
            if (calls[r].st != ERR_LIMIT || !strstr(calls[r].err.text, "arena is too small"))
                fail_msg("%s at %d ranks: rank %d opens in less than its arena: %s", cases[i].mode,
                         ranks, r, calls[r].err.text);
        }
        cluster_close(c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_as_planned),
        cmocka_unit_test(test_arena_is_full),
    };
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
