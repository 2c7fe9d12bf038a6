/* What --deterministic promises of a device (the CUDA module beside the test, emulated or real):
 * the logits of a sequence have the same bits alone and among others, however its prompt is cut
 * into chunks, down to one row; in 1d and 1d_sp on 1, 2, 4 and 8 ranks. The emulated NCCL adds in
 * an order that depends on the size of the message meanwhile. */
#include "kernels/module.h"
#include "tests/cluster.h"
#include "tests/only.h"

enum { SLOTS = 2, PROMPT = 19, DECODES = 1, LENGTH = PROMPT + DECODES, LOGITS_MAX = 600 };

/* Of every sequence at the positions from PROMPT - 1 on. */
struct outcome {
    int32_t vocab, token[SLOTS][DECODES + 1];
    float logits[SLOTS][DECODES + 1][LOGITS_MAX];
};

static const struct {
    const char *name, *option;
    int32_t ranks; /* 1: what the next cases of 1d and 1d_sp are compared with */
} cases[] = {
    {"tied_gqa2_f32", "--dtype=auto", 1},
    {"tied_gqa2_f32", "--parallel-mode=1d_sp", 4},
    {"untied_mha_bf16", "--quantization=fp8", 1},
    {"untied_mha_bf16", "--quantization=fp8", 8},
    {"untied_mha_bf16", "--quantization=int4", 1},
    {"untied_mha_bf16", "--quantization=int4", 8},
    {"tied_gqa2_f32", "--quantization=int8", 1},
    {"tied_gqa2_f32", "--quantization=int8", 4},
    {"tied_gqa2_f32", "--parallel-mode=2d", 4},
    {"qwen3_moe_bf16", "--dtype=auto", 1},
    {"qwen3_moe_bf16", "--dtype=auto", 8},
    {"glm4_moe_bf16", "--dtype=auto", 1},
    {"glm4_moe_bf16", "--dtype=auto", 8},
    {"gpt_oss_bf16", "--dtype=auto", 1},
    {"gpt_oss_bf16", "--parallel-mode=1d_sp", 4},
    {"gpt_oss_bf16", "--dtype=auto", 8},
    {"gemma2_f32", "--dtype=auto", 1},
    {"gemma2_f32", "--dtype=auto", 4},
};

static int32_t devices_here(void)
{
    static struct module_report report;
    struct err err;
    const struct module *m = NULL;
    return module_find(&m, &err) == OK && m->report(&report, &err) == OK ? report.devices : 0;
}

static struct cluster *open_case(size_t i)
{
    char path[1024];
    const char *const args[] = {"--device=cuda",
                                "--deterministic",
                                "--threads-per-rank=1",
                                "--max-num-seqs=4",
                                "--max-num-batched-tokens=64",
                                "--kv-cache-memory=1M",
                                cases[i].option,
                                NULL};
    snprintf(path, sizeof path, "%s/golden/%s", TEST_DATA_DIR, cases[i].name);
    return cluster_open(path, cases[i].ranks, args);
}

static void open_slot(struct cluster *c, int32_t s)
{
    static int32_t prompt[SLOTS][PROMPT];
    const struct sample_params p = {.temperature = 0.8f, .top_p = 0.9f, .seed = (uint64_t)s};
    for (int32_t i = 0; i < PROMPT; i++)
        prompt[s][i] = 3 + 7 * s + i;
    cluster_open_slot(c, s, prompt[s], PROMPT, LENGTH, p);
}

/* Rows [begin, end) of a slot's sequence; what follows the prompt has been drawn. */
static void rows(struct cluster *c, int32_t s, int32_t begin, int32_t end)
{
    for (int32_t i = begin; i < end; i++)
        cluster_row(c, s, i, i < PROMPT ? 3 + 7 * s + i : STEP_TOKEN_FROM_SLOT, i >= PROMPT - 1);
}

/* Runs the step; slot of each of its samples in turn, all at `position`. */
static void step(struct cluster *c, struct outcome *o, const int32_t *slot, int32_t position)
{
    const int32_t at = position - (PROMPT - 1), samples = c->step->samples;
    cluster_step(c);
    for (int32_t i = 0; i < samples; i++) {
        const struct cview *y = &c->logits[0];
        const size_t bytes = (size_t)y->cols * sizeof(float);
        assert_true(y->cols <= LOGITS_MAX);
        o->vocab = y->cols;
        memcpy(o->logits[slot[i]][at], (const float *)y->data + (ptrdiff_t)i * y->cols, bytes);
        o->token[slot[i]][at] = c->result[0].ids[i];
        for (int32_t r = 1; r < c->footprint.ranks; r++)
            assert_memory_equal(c->logits[r].data, y->data, (size_t)samples * bytes);
    }
}

/* One sequence after the other, its prompt in a chunk or, of odd slots, in two, of which the second
 * is one row. */
static void alone(struct cluster *c, struct outcome *o)
{
    for (int32_t s = 0; s < SLOTS; s++) {
        open_slot(c, s);
        if (s % 2 == 1) {
            rows(c, s, 0, PROMPT - 1);
            step(c, o, &s, 0);
        }
        rows(c, s, s % 2 * (PROMPT - 1), PROMPT);
        step(c, o, &s, PROMPT - 1);
        for (int32_t i = PROMPT; i < LENGTH; i++) {
            rows(c, s, i, i + 1);
            step(c, o, &s, i);
        }
    }
}

/* All together, prompts cut in different places. */
static void together(struct cluster *c, struct outcome *o)
{
    static const int32_t all[SLOTS] = {0, 1};
    for (int32_t s = 0; s < SLOTS; s++) {
        open_slot(c, s);
        rows(c, s, 0, 3 + 6 * s);
    }
    step(c, o, all, 0);
    for (int32_t s = 0; s < SLOTS; s++)
        rows(c, s, 3 + 6 * s, PROMPT);
    step(c, o, all, PROMPT - 1);
    for (int32_t i = PROMPT; i < LENGTH; i++) {
        for (int32_t s = 0; s < SLOTS; s++)
            rows(c, s, i, i + 1);
        step(c, o, all, i);
    }
}

static void assert_same(const char *what, const struct outcome *a, const struct outcome *b)
{
    for (int32_t s = 0; s < SLOTS; s++)
        for (int32_t i = 0; i <= DECODES; i++) {
            const size_t bytes = (size_t)a->vocab * sizeof(float);
            if (a->token[s][i] != b->token[s][i] ||
                memcmp(a->logits[s][i], b->logits[s][i], bytes) != 0)
                fail_msg("%s: sequence %d differs at position %d", what, s, PROMPT - 1 + i);
        }
}

static void test_bits(void **state)
{
    static struct outcome first, other;
    const int32_t devices = devices_here();
    char what[160];
    (void)state;
    if (devices == 0)
        skip();
    setenv("EMULATED_NCCL_CHAINS", "1", 1);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        if (cases[i].ranks > devices)
            continue;
        if (i % 2 == 0) /* sums go through NCCL in every other case */
            setenv("EMULATED_PEERS", "fast", 1);
        else
            unsetenv("EMULATED_PEERS");
        struct cluster *c = open_case(i);
        snprintf(what, sizeof what, "%s %s, %d ranks", cases[i].name, cases[i].option,
                 cases[i].ranks);
        const bool alike = cases[i].ranks > 1 && flow_keeps_order(c->setup.flow);
        alone(c, alike ? &other : &first);
        if (alike)
            assert_same(what, &other, &first);
        together(c, &other);
        assert_same(what, &other, &first);
        cluster_close(c);
    }
    unsetenv("EMULATED_PEERS");
    unsetenv("EMULATED_NCCL_CHAINS");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bits)};
    only(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
