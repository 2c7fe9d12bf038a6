/* Ranks whose memory is a device's, emulated or real (the CUDA module beside the test), and what
 * they are told to do. */
#ifndef TESSERA_TESTS_DEVICE_RANKS_H
#define TESSERA_TESTS_DEVICE_RANKS_H

#include "kernels/module.h"
#include "tests/cluster.h"
#include "tests/emulate/calls.h"
#include "tests/only.h"

/* Of steps that are replayed the sizes are 1, 2, 4 and, for want of slots, 7. */
enum { SLOTS = 7, PROMPT = 5, POSITIONS = 48, TURNED_HEADS = 26 };

static const struct {
    const char *name;
    int32_t ranks;
    const char *options[2];
} cases[] = {
    {"tied_gqa2_f32", 1, {"--sampler=gather"}},
    {"untied_mha_bf16", 3, {"--sampler=gather"}},
    {"headdim_bf16", 2, {"--sampler=distributed"}},
    {"tied_gqa2_f32", 4, {"--parallel-mode=1d_sp"}},
    {"untied_mha_bf16", 4, {"--parallel-mode=2d"}},
    {"headdim_bf16", 4, {"--plan=" TEST_DATA_DIR "/corpus/plans/ok_home.json"}},
    {"untied_mha_bf16", 3, {"--quantization=fp8"}},
    {"qwen2_gqa_bf16", 2, {"--quantization=fp8"}},
    {"qwen3_bf16", 4, {"--parallel-mode=2d"}},
    {"mixtral_f32", 2, {"--sampler=gather"}},
    {"qwen2_window_bf16", 2, {"--dtype=auto"}},
    {"gemma2_f32", 4, {"--parallel-mode=2d"}},
    {"gemma3_bf16", 2, {"--dtype=auto"}},
    {"phi3_longrope_f32", 2, {"--dtype=auto"}},
    {"gpt_oss_bf16", 2, {"--dtype=auto"}},
    {"gpt_oss_f32", 1, {"--dtype=auto"}},
    {"gpt_oss_bf16", 4, {"--parallel-mode=1d_sp"}},
    {"qwen3_moe_bf16", 4, {"--parallel-mode=1d_sp"}},
    {"qwen3_moe_bf16", 1, {"--quantization=fp8"}},
    {"glm4_moe_bf16", 2, {"--dtype=auto"}},
    {"glm4_moe_f32", 3, {"--quantization=int8"}},
    {"qwen2_moe_f32", 4, {"--parallel-mode=1d_sp"}},
    {"untied_mha_bf16", 2, {"--quantization=int8"}},
    {"qwen3_moe_bf16", 3, {"--quantization=int4"}},
    {"untied_mha_bf16", 4, {"--parallel-mode=2d", "--quantization=int4"}},
    {"untied_mha_bf16", 1, {"--dtype=float16"}},
    {"../corpus/models/heads64_bf16", 1, {"--load-format=dummy"}}, /* heads that attention turns */
    {"../corpus/models/heads64_bf16", 2, {"--load-format=dummy", "--kv-cache-dtype=fp8"}},
    {"gemma4_bf16", 2, {"--dtype=auto"}},
    {"gemma4_moe_bf16", 3, {"--dtype=auto"}},
    {"gemma4_ple_bf16", 4, {"--parallel-mode=1d_sp"}},
    {"gemma4_ple_f32", 1, {"--quantization=fp8"}},
};

static inline const struct module *module_here(struct module_report *report)
{
    struct err err;
    const struct module *m = NULL;
    if (module_find(&m, &err) != OK || m->report(report, &err) != OK) {
        print_message("skipped: %s\n", err.text);
        return NULL;
    }
    return m;
}

/* As many as the case wants or, with fewer devices, one, which layouts of several are not for: 0.
 */
static inline int32_t ranks_here(const struct module *m, size_t i)
{
    struct err err;
    size_t bytes;
    if (m->find("cuda")->probe(cases[i].ranks, &bytes, &err) == OK)
        return cases[i].ranks;
    return strncmp(cases[i].options[0], "--p", 3) != 0;
}

static inline struct cluster *open_with(size_t i, int32_t ranks, const char *const more[2])
{
    char path[1024];
    const char *args[10] = {"--device=cuda",        "--threads-per-rank=1",
                            "--max-num-seqs=7",     "--max-num-batched-tokens=64",
                            "--kv-cache-memory=1M", cases[i].options[0]};
    size_t n = 6;
    if (cases[i].options[1])
        args[n++] = cases[i].options[1];
    args[n++] = more[0];
    args[n] = more[1];
    snprintf(path, sizeof path, "%s/golden/%s", TEST_DATA_DIR, cases[i].name);
    return cluster_open(path, ranks, args);
}

static inline struct cluster *open_case(size_t i, int32_t ranks, bool eager)
{
    return open_with(i, ranks, (const char *const[2]){eager ? "--enforce-eager" : NULL, NULL});
}

static inline void prompt_of(struct cluster *c, int32_t s)
{
    static int32_t prompt[SLOTS][PROMPT];
    const struct sample_params p = {.temperature = 0.8f, .top_p = 0.9f, .seed = (uint64_t)s};
    for (int32_t i = 0; i < PROMPT; i++)
        prompt[s][i] = 3 + 7 * s + i;
    c->home = s * c->footprint.limits.homes / SLOTS;
    cluster_open_slot(c, s, prompt[s], PROMPT, POSITIONS, p);
    for (int32_t i = 0; i < PROMPT; i++)
        cluster_row(c, s, i, prompt[s][i], i + 1 == PROMPT);
}

/* Prompts of all slots in one step, or each in one of its own. */
static inline void prefill(struct cluster *c)
{
    for (int32_t s = 0; s < SLOTS; s++)
        prompt_of(c, s);
    cluster_step(c);
}

static inline void prefill_apart(struct cluster *c)
{
    for (int32_t s = 0; s < SLOTS; s++) {
        prompt_of(c, s);
        cluster_step(c);
    }
}

static inline void begin(int32_t *at)
{
    for (int32_t s = 0; s < SLOTS; s++)
        at[s] = PROMPT;
}

/* A decode of the first `slots` slots, with `more` rows for a guess in each; *at: positions so far.
 */
static inline void decode_guesses(struct cluster *c, int32_t slots, int32_t more, int32_t *at)
{
    for (int32_t s = 0; s < slots; s++) {
        cluster_row(c, s, at[s]++, STEP_TOKEN_FROM_SLOT, true);
        for (int32_t i = 0; i < more; i++)
            cluster_row(c, s, at[s]++, 5 + s, true);
    }
    cluster_step(c);
}

static inline void decode(struct cluster *c, int32_t rows, int32_t *at)
{
    decode_guesses(c, rows, 0, at);
}

/* *calls = what the emulated device has been asked to do; false: it is a real one. */
static inline bool count_calls(const struct module *m, struct emulated_calls *calls)
{
    emulated_calls_fn *count = emulated_calls_of(m->find("cuda"));
    if (count)
        count(calls);
    return count != NULL;
}

#endif
