/* Every layout through the whole model: logits and greedy tokens of small checkpoints against
 * transformers' (tests/golden), on meshes of up to 16 ranks, in both forms of a step, with
 * batches smaller than the mesh, with the KV cache placed by heads and by home; replicas agree bit
 * for bit, 1d and 1d_sp have the bits of one rank, gathered weights those of cached ones, and a
 * sequence the same bits at every home, whoever else is at which. */
#include "tests/cluster.h"
#include "tests/scratch.h"
#include "weights/safetensors.h"

#include <math.h>

enum { GREEDY = 24, ROWS = 64, HOME_ROWS = 1024 };

static const char *const goldens[] = {"tied_gqa2_f32", "untied_mha_bf16",  "untied_mqa_f16",
                                      "headdim_bf16",  "llama31_rope_f32", "qwen2_gqa_bf16",
                                      "qwen3_bf16",    "gemma2_f32"};

/* mode: of a built-in plan. rows: steps of so many rows take the prefill form; 0: as the plan says.
 * mesh: sizes of (w, a, b) instead of a mode. */
static const struct mode_case {
    const char *mode;
    int32_t ranks, rows, mesh[3];
    const char *scatter;
    const char *sizes; /* --mesh of a built-in plan */
    bool distributed;  /* the sampler */
    bool home;         /* --kv-placement */
} cases[] = {
    {.mode = "1d_sp", .ranks = 3},
    {.mode = "1d_sp", .ranks = 8},
    {.mode = "2d", .ranks = 1},
    {.mode = "2d", .ranks = 4},
    {.mode = "2d", .ranks = 9},
    {.mode = "2d", .ranks = 1, .rows = 1},
    {.mode = "2d", .ranks = 4, .rows = 1}, /* summa for decode too: a batch of one on a grid */
    {.mode = "2d", .ranks = 4, .rows = 8},
    {.mode = "2d", .ranks = 9, .rows = 2},
    {.mode = "2.5d", .ranks = 4},
    {.mode = "2.5d", .ranks = 8},
    {.mode = "2.5d", .ranks = 8, .rows = 1},
    {.mode = "2.5d", .ranks = 12, .rows = 5},
    {.mode = "3d", .ranks = 1},
    {.mode = "3d", .ranks = 8},
    {.mode = "3d", .ranks = 8, .rows = 1}, /* rows of the stream, for decode too */
    {.mode = "3d", .ranks = 12, .rows = 5, .sizes = "2,3,2"},
    {.mode = "3d_gathered", .ranks = 8},
    {.mode = "3d_gathered", .ranks = 8, .rows = 1},
    {.mode = "3d_gathered", .ranks = 6, .sizes = "3,2,1"},
    {.mode = "mesh", .ranks = 6, .mesh = {1, 2, 3}, .scatter = "hidden"},
    {.mode = "mesh", .ranks = 6, .mesh = {1, 3, 2}, .scatter = "rows"},
    {.mode = "mesh", .ranks = 5, .mesh = {5, 1, 1}, .scatter = "hidden"},
    {.mode = "mesh", .ranks = 5, .mesh = {1, 5, 1}, .scatter = "rows"},
    {.mode = "mesh", .ranks = 3, .mesh = {1, 1, 3}, .scatter = "rows"},
    {.mode = "mesh", .ranks = 12, .mesh = {2, 3, 2}, .scatter = "hidden"},
    {.mode = "mesh", .ranks = 12, .mesh = {3, 2, 2}, .scatter = "rows"},
    {.mode = "mesh", .ranks = 12, .mesh = {3, 1, 4}, .scatter = "rows"},
    {.mode = "mesh", .ranks = 16, .mesh = {1, 1, 16}, .scatter = "hidden"},
    {.mode = "mesh", .ranks = 16, .mesh = {16, 1, 1}, .scatter = "hidden"},
    {.mode = "2d", .ranks = 1, .home = true},
    {.mode = "2d", .ranks = 4, .home = true},
    {.mode = "2d", .ranks = 9, .home = true},
    {.mode = "2d", .ranks = 4, .rows = 1, .home = true},
    {.mode = "2d", .ranks = 9, .rows = 2, .home = true},
    {.mode = "2.5d", .ranks = 8, .home = true},
    {.mode = "2.5d", .ranks = 12, .rows = 5, .home = true},
    {.mode = "3d", .ranks = 8, .home = true},
    {.mode = "3d_gathered", .ranks = 6, .sizes = "3,1,2", .home = true},
    {.mode = "mesh", .ranks = 6, .mesh = {1, 2, 3}, .scatter = "hidden", .home = true},
    {.mode = "mesh", .ranks = 12, .mesh = {3, 2, 2}, .scatter = "rows", .home = true},
    {.mode = "mesh", .ranks = 16, .mesh = {1, 1, 16}, .scatter = "hidden", .home = true},
};

/* A plan file for a case that is not a built-in one as it stands; NULL when it is. */
static const char *plan_of(const struct mode_case *c)
{
    static char text[4096];
    struct plan *p = NULL;
    struct err err;
    if (*c->mode == 'm') {
        const bool rows = strcmp(c->scatter, "rows") == 0;
        static const char *const linears[][3] = {{"self_attn.qkv_proj", "in", "kv_group"},
                                                 {"self_attn.o_proj", "out", "head"},
                                                 {"mlp.gate_up_proj", "in", "column"},
                                                 {"mlp.down_proj", "out", "column"}};
        int n = snprintf(text, sizeof text,
                         "{\"version\": 1, \"mode\": \"custom\", \"mesh\": [{\"name\": \"w\", "
                         "\"size\": %d}, {\"name\": \"a\", \"size\": %d}, {\"name\": \"b\", "
                         "\"size\": %d}], \"plan\": [{\"match\": \"model.embed_tokens\", "
                         "\"style\": \"vocab\", \"vocab\": [\"a\", \"w\"], \"hidden\": \"b\", "
                         "\"rows\": %s, \"output\": \"S(1)\"},",
                         c->mesh[0], c->mesh[1], c->mesh[2], rows ? "[\"w\", \"a\"]" : "\"w\"");
        for (size_t i = 0; i < ARRAY_LEN(linears); i++)
            n += snprintf(text + n, sizeof text - (size_t)n,
                          "{\"match\": \"model.layers.*.%s\", \"style\": \"lin3d\", \"dir\": "
                          "\"%s\", \"unit\": \"%s\", \"w\": \"w\", \"scatter\": \"%s\"},",
                          linears[i][0], linears[i][1], linears[i][2], c->scatter);
        snprintf(text + n, sizeof text - (size_t)n,
                 "{\"match\": \"model.norm\", \"style\": \"norm\"},"
                 "{\"match\": \"model.layers.*.*norm\", \"style\": \"norm\"},"
                 "{\"match\": \"lm_head\", \"style\": \"vocab\", \"vocab\": [\"a\", \"w\"], "
                 "\"hidden\": \"b\"}], \"attention\": {\"placement\": \"heads\"}}");
        return text;
    }
    if (c->rows == 0)
        return NULL;
    assert_int_equal(plan_load(c->mode, c->sizes, NULL, c->ranks, &p, &err), OK);
    const char *whole = plan_text(p), *key = "\"linears\": ", *at = strstr(whole, key);
    assert_non_null(at);
    snprintf(text, sizeof text, "%.*s\"rows\": %d, %s", (int)(at - whole), whole, c->rows, at);
    plan_close(p);
    return text;
}

static struct cluster *open_case(const struct mode_case *c, const char *golden, const char *dtype)
{
    char model[1024], mode[64], plan[1100], type[32], mesh[32], rows[64];
    snprintf(model, sizeof model, "%s/golden/%s", TEST_DATA_DIR, golden);
    const char *text = plan_of(c);
    if (text) {
        scratch_write(scratch_path("plan.json"), text, strlen(text));
        snprintf(plan, sizeof plan, "--plan=%s", scratch_path("plan.json"));
    }
    snprintf(mode, sizeof mode, "--parallel-mode=%s", c->mode);
    snprintf(type, sizeof type, "--dtype=%s", dtype);
    snprintf(mesh, sizeof mesh, "--mesh=%s", c->sizes ? c->sizes : "");
    snprintf(rows, sizeof rows, "--max-num-batched-tokens=%d", c->home ? HOME_ROWS : ROWS);
    const char *const args[] = {text ? plan : mode,
                                type,
                                "--threads-per-rank=1",
                                "--max-num-seqs=64",
                                rows,
                                c->home ? "--kv-placement=home" : "--kv-placement=heads",
                                "--kv-cache-memory=16M",
                                c->distributed ? "--sampler=distributed" : "--sampler=gather",
                                c->sizes && !text ? mesh : NULL,
                                NULL};
    return cluster_open(model, c->ranks, args);
}

static void *golden_tensor(const char *name, const char *tensor, size_t *n)
{
    char path[1024];
    struct safetensors st;
    struct err err;
    snprintf(path, sizeof path, "%s/golden/%s/golden.safetensors", TEST_DATA_DIR, name);
    if (safetensors_open(path, &st, &err) != OK)
        fail_msg("%s", err.text);
    const struct safetensors_entry *e = safetensors_find(&st, tensor);
    assert_non_null(e);
    void *data = malloc(e->bytes);
    assert_non_null(data);
    assert_int_equal(safetensors_read(&st, e->offset, data, e->bytes, &err), OK);
    *n = e->bytes / 4;
    safetensors_close(&st);
    return data;
}

static void assert_replicas(const struct cluster *c, int32_t rows)
{
    const size_t bytes = (size_t)rows * (size_t)c->setup.model.vocab * sizeof(float);
    for (int32_t r = 1; r < c->footprint.ranks; r++)
        assert_memory_equal(c->logits[r].data, c->logits[0].data, bytes);
}

static const struct sample_params greedy = {.temperature = 0, .top_p = 1};

/* A prompt in one step, its logits at every position; then tokens one by one. */
static float *run_prompt(struct cluster *c, const int32_t *prompt, int32_t n, int32_t *tokens)
{
    const size_t vocab = (size_t)c->setup.model.vocab;
    float *logits = malloc((size_t)n * vocab * sizeof *logits);
    assert_non_null(logits);
    cluster_open_slot(c, 0, prompt, n, n + GREEDY, greedy);
    for (int32_t i = 0; i < n; i++)
        cluster_row(c, 0, i, prompt[i], true);
    cluster_step(c);
    assert_replicas(c, n);
    memcpy(logits, c->logits[0].data, (size_t)n * vocab * sizeof *logits);
    tokens[0] = c->result[0].ids[n - 1];
    for (int32_t i = 1; i < GREEDY; i++) {
        cluster_row(c, 0, n + i - 1, STEP_TOKEN_FROM_SLOT, true);
        cluster_step(c);
        assert_replicas(c, 1);
        tokens[i] = c->result[0].ids[0];
    }
    return logits;
}

static void check_case(const struct mode_case *k, const char *golden)
{
    size_t n, wanted_n, count;
    int32_t tokens[GREEDY];
    double most = 0, error = 0;
    struct cluster *c = open_case(k, golden, "float32");
    int32_t *prompt = golden_tensor(golden, "prompt0", &n);
    float *wanted = golden_tensor(golden, "logits0", &wanted_n);
    int32_t *ids = golden_tensor(golden, "greedy0", &count);
    assert_true((c->footprint.limits.homes > 1) == (k->home && k->ranks > 1));
    c->home = c->footprint.limits.homes / 2;
    float *got = run_prompt(c, prompt, (int32_t)n, tokens);
    for (size_t i = 0; i < wanted_n; i++) {
        const double d = fabs((double)got[i] - (double)wanted[i]);
        error = d > error || isnan(d) ? d : error;
        most = fabs((double)wanted[i]) > most ? fabs((double)wanted[i]) : most;
    }
    if (!(error <= 1e-4 * most))
        fail_msg("%s, %s at %d ranks (%d, %d, %d), rows %d: logits off by %g of the largest",
                 golden, k->mode, k->ranks, k->mesh[0], k->mesh[1], k->mesh[2], k->rows,
                 error / most);
    for (int32_t i = 0; i < GREEDY; i++)
        if (tokens[i] != ids[i])
            fail_msg("%s, %s at %d ranks, rows %d: token %d is %d, transformers has %d", golden,
                     k->mode, k->ranks, k->rows, i, tokens[i], ids[i]);
    free(prompt);
    free(wanted);
    free(ids);
    free(got);
    cluster_close(c);
}

static void test_modes(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        for (size_t g = 0; g < ARRAY_LEN(goldens); g++)
            check_case(&cases[i], goldens[g]);
}

/* Every one of `others` has the bits of the first, with weights as the checkpoint has them. */
static void check_bits(const struct mode_case *first, const struct mode_case *others, size_t count,
                       bool keeps_order)
{
    for (size_t g = 0; g < ARRAY_LEN(goldens); g++) {
        size_t n;
        int32_t tokens[2][GREEDY], *prompt = golden_tensor(goldens[g], "prompt0", &n);
        struct cluster *c = open_case(first, goldens[g], "auto");
        float *wanted = run_prompt(c, prompt, (int32_t)n, tokens[0]);
        const size_t bytes = n * (size_t)c->setup.model.vocab * sizeof *wanted;
        cluster_close(c);
        for (size_t i = 0; i < count; i++) {
            c = open_case(&others[i], goldens[g], "auto");
            assert_int_equal(flow_keeps_order(c->setup.flow), keeps_order);
            float *got = run_prompt(c, prompt, (int32_t)n, tokens[1]);
            assert_memory_equal(got, wanted, bytes);
            assert_memory_equal(tokens[1], tokens[0], sizeof tokens[0]);
            free(got);
            cluster_close(c);
        }
        free(wanted);
        free(prompt);
    }
}

/* Sequence parallelism adds in the order of 1d, and both in that of a single rank. */
static void test_bits_of_one_rank(void **state)
{
    (void)state;
    static const struct mode_case one = {.mode = "1d", .ranks = 1},
                                  others[] = {
                                      {.mode = "1d", .ranks = 2},    {.mode = "1d", .ranks = 4},
                                      {.mode = "1d", .ranks = 8},    {.mode = "1d_sp", .ranks = 1},
                                      {.mode = "1d_sp", .ranks = 2}, {.mode = "1d_sp", .ranks = 4},
                                      {.mode = "1d_sp", .ranks = 8}};
    check_bits(&one, others, ARRAY_LEN(others), true);
}

/* A weight put together from its parts is the weight. */
static void test_bits_of_gathered_weights(void **state)
{
    (void)state;
    static const struct {
        int32_t ranks;
        const char *sizes;
    } meshes[] = {{8, "2,2,2"}, {6, "3,1,2"}, {5, "5,1,1"}};
    for (size_t i = 0; i < ARRAY_LEN(meshes); i++) {
        const struct mode_case cached = {"3d", meshes[i].ranks, .sizes = meshes[i].sizes};
        const struct mode_case gathered = {"3d_gathered", meshes[i].ranks,
                                           .sizes = meshes[i].sizes};
        check_bits(&cached, &gathered, 1, false);
    }
}

/* Rows of a neighbour's at each home: uneven, and none at one. */
static int32_t neighbours(int32_t home)
{
    static const int32_t rows[] = {3, 0, 5, 1};
    return rows[home % (int32_t)ARRAY_LEN(rows)];
}

/* In one step the rows of a neighbour at every home and the prompt, in slot 32, at home `mine`;
 * then a token of each. The prompt's logits. */
static float *run_among(struct cluster *c, const int32_t *prompt, int32_t n, int32_t mine)
{
    const size_t width = (size_t)c->setup.model.vocab;
    float *logits = malloc(((size_t)n + 1) * width * sizeof *logits);
    assert_non_null(logits);
    for (int32_t pass = 0; pass < 2; pass++) {
        int32_t first = 0, before = 0;
        for (int32_t home = 0; home < c->footprint.limits.homes; home++) {
            const int32_t length = neighbours(home), others = pass == 0 ? length : length > 0;
            c->home = home;
            if (pass == 0 && length > 0)
                cluster_open_slot(c, home, prompt, length, n, greedy);
            for (int32_t i = 0; i < others; i++)
                cluster_row(c, home, pass == 0 ? i : length, prompt[pass == 0 ? i : length], true);
            before += others;
            if (home != mine)
                continue;
            first = before;
            if (pass == 0)
                cluster_open_slot(c, 32, prompt, n, n + 1, greedy);
            for (int32_t i = pass == 0 ? 0 : n; i < (pass == 0 ? n : n + 1); i++)
                cluster_row(c, 32, i, i < n ? prompt[i] : prompt[0], true);
            before += pass == 0 ? n : 1;
        }
        cluster_step(c);
        assert_replicas(c, before);
        memcpy(logits + (pass == 0 ? 0 : (size_t)n * width),
               (const float *)c->logits[0].data + (size_t)first * width,
               (pass == 0 ? (size_t)n : 1) * width * sizeof *logits);
    }
    return logits;
}

/* Where a sequence is at home, in which slot, and who is where besides, it has the same bits. */
static void test_any_home(void **state)
{
    (void)state;
    enum { NEVER = 1 << 20 };
    static const struct mode_case layouts[] = {
        {.mode = "2d", .ranks = 4, .rows = NEVER, .home = true},
        {.mode = "2d", .ranks = 9, .rows = 1, .home = true},
        {.mode = "2.5d", .ranks = 8, .rows = NEVER, .home = true},
        {.mode = "2.5d", .ranks = 8, .rows = 1, .home = true},
        {.mode = "3d", .ranks = 8, .home = true},
        {.mode = "3d_gathered", .ranks = 6, .sizes = "3,1,2", .home = true},
        {.mode = "mesh", .ranks = 12, .mesh = {3, 2, 2}, .scatter = "rows", .home = true}};
    for (size_t i = 0; i < ARRAY_LEN(layouts); i++) {
        size_t n;
        int32_t tokens[GREEDY], *prompt = golden_tensor(goldens[0], "prompt0", &n);
        struct cluster *c = open_case(&layouts[i], goldens[0], "auto");
        const int32_t homes = c->footprint.limits.homes;
        const size_t bytes = n * (size_t)c->setup.model.vocab * sizeof(float);
        float *alone = run_prompt(c, prompt, (int32_t)n, tokens);
        cluster_close(c);
        for (int32_t home = 0; home < homes; home++) {
            c = open_case(&layouts[i], goldens[0], "auto");
            float *among = run_among(c, prompt, (int32_t)n, home);
            assert_memory_equal(among, alone, bytes);
            free(among);
            cluster_close(c);
        }
        free(alone);
        free(prompt);
    }
}

/* A step of many rows has the bits of steps of few: who shares a step with a request
 * changes nothing. Weights that travel, rows at rest instead of columns, and a step of each
 * form. */
static void test_bits_of_both_forms(void **state)
{
    (void)state;
    static const struct {
        const char *mode;
        int32_t ranks;
        const char *sizes;
        bool home;
    } layouts[] = {
        {"2d", 4, NULL, false},     {"2d", 9, NULL, false},     {"2d", 16, NULL, false},
        {"2.5d", 8, NULL, false},   {"2.5d", 12, NULL, false},  {"3d", 8, NULL, false},
        {"3d", 12, "2,3,2", false}, {"3d", 12, "1,3,4", false}, {"3d", 16, "2,4,2", false},
        {"2d", 9, NULL, true},      {"2.5d", 8, NULL, true},    {"3d", 12, "2,3,2", true}};
    for (size_t i = 0; i < ARRAY_LEN(layouts); i++) {
        struct mode_case few = {layouts[i].mode, layouts[i].ranks, .rows = 1 << 20,
                                .sizes = layouts[i].sizes, .home = layouts[i].home};
        struct mode_case many[] = {few, few};
        many[0].rows = 1;
        many[1].rows = 2; /* the prompt */
        check_bits(&few, many, ARRAY_LEN(many), false);
    }
}

/* Not all rows of a prompt want logprobs: the distributed sampler gathers these alone, in
 * several turns, and has what the other one has. */
static void test_rows_gathered_apart(void **state)
{
    (void)state;
    enum { TOP = 4 };
    static const struct mode_case layouts[] = {{.mode = "1d", .ranks = 3},
                                               {.mode = "1d_sp", .ranks = 4},
                                               {.mode = "2d", .ranks = 4},
                                               {.mode = "3d", .ranks = 8}};
    for (size_t i = 0; i < ARRAY_LEN(layouts); i++) {
        size_t n;
        int32_t *prompt = golden_tensor(goldens[0], "prompt0", &n);
        struct token_top best[2][ROWS][TOP] = {0};
        for (int k = 0; k < 2; k++) {
            struct mode_case m = layouts[i];
            m.distributed = k == 1;
            struct cluster *c = open_case(&m, goldens[0], "float32");
            cluster_open_slot(c, 0, prompt, (int32_t)n, (int32_t)n + 1, greedy);
            for (int32_t r = 0; r < (int32_t)n; r++) {
                cluster_row(c, 0, r, prompt[r], true);
                c->step->top[r] = r % 6 != 1 ? TOP : -1;
            }
            cluster_step(c);
            assert_int_equal(c->result[0].stride, TOP);
            for (size_t r = 0; r < n; r++)
                if (r % 6 != 1)
                    memcpy(best[k][r], c->result[0].best + r * TOP, sizeof best[k][r]);
            cluster_close(c);
        }
        for (size_t r = 0; r < n; r++)
            for (int t = 0; t < TOP; t++)
                if (best[1][r][t].token != best[0][r][t].token ||
                    best[1][r][t].logprob != best[0][r][t].logprob)
                    fail_msg("%s at %d ranks: row %zu, token %d is %d (%g), not %d (%g)",
                             layouts[i].mode, layouts[i].ranks, r, t, best[1][r][t].token,
                             (double)best[1][r][t].logprob, best[0][r][t].token,
                             (double)best[0][r][t].logprob);
        free(prompt);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_modes),
        cmocka_unit_test(test_bits_of_one_rank),
        cmocka_unit_test(test_bits_of_gathered_weights),
        cmocka_unit_test(test_bits_of_both_forms),
        cmocka_unit_test(test_any_home),
        cmocka_unit_test(test_rows_gathered_apart),
    };
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
