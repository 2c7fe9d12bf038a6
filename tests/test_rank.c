/* Sampling rules and logprobs through whole ranks: against numpy (tests/oracle/sampling_numpy.py)
 * and Hugging Face's prompt logits, and the same bits at any number of ranks, alone or among
 * others, drawn or greedy, by both samplers. */
#include "tests/cluster.h"
#include "weights/safetensors.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define MODEL TEST_DATA_DIR "/golden/tied_gqa2_f32"
#define DEMO TEST_DATA_DIR "/../deploy/demo/model"

enum { MIXES = 5, STEPS = 40, TOP = 5, SLOTS = 16, ROUNDS = 2, PROMPT_MAX = 64 };

/* A sequence to run, and what came of it. */
struct mix {
    struct sample_params params;
    struct sample_rules rules;
    int32_t *prompt, prompt_len;
    bool silent; /* wants no logprobs */
};

struct outcome {
    int32_t ids[STEPS];
    float logprob[STEPS];
    struct token_top best[STEPS][TOP];
};

/* A tensor of a golden file; the caller frees it. */
static void *tensor(const char *file, const char *name, int32_t *n)
{
    char path[1024];
    struct safetensors st;
    struct err err;
    snprintf(path, sizeof path, "%s/%s", MODEL, file);
    if (safetensors_open(path, &st, &err) != OK)
        fail_msg("%s", err.text);
    const struct safetensors_entry *e = safetensors_find(&st, name);
    assert_non_null(e);
    void *data = malloc(e->bytes + 1);
    assert_non_null(data);
    assert_int_equal(safetensors_read(&st, e->offset, data, e->bytes, &err), OK);
    *n = (int32_t)(e->bytes / 4);
    safetensors_close(&st);
    return data;
}

static void *of_mix(int32_t i, const char *what, int32_t *n)
{
    char name[32];
    snprintf(name, sizeof name, "%s%d", what, i);
    return tensor("sampling.safetensors", name, n);
}

static void open_mix(struct mix *m, int32_t i)
{
    int32_t n;
    float *rules = of_mix(i, "rules", &n);
    *m = (struct mix){.prompt = of_mix(i, "prompt", &n)};
    m->prompt_len = n;
    m->rules = (struct sample_rules){.prompt = m->prompt_len,
                                     .repetition = rules[0],
                                     .frequency = rules[1],
                                     .presence = rules[2],
                                     .min_tokens = (int32_t)rules[3]};
    m->rules.ban = of_mix(i, "ban", &m->rules.bans);
    m->rules.bad = of_mix(i, "bad", &n);
    m->rules.bad_end = of_mix(i, "bad_end", &m->rules.bads);
    int32_t *ids = of_mix(i, "bias_ids", &m->rules.biases);
    float *values = of_mix(i, "bias_values", &n);
    struct token_bias *bias = calloc((size_t)n + 1, sizeof *bias);
    assert_non_null(bias);
    for (int32_t k = 0; k < n; k++)
        bias[k] = (struct token_bias){ids[k], values[k]};
    m->rules.bias = bias;
    m->params = (struct sample_params){.top_p = 1};
    free(rules);
    free(ids);
    free(values);
}

static void close_mix(struct mix *m)
{
    free(m->prompt);
    free((void *)(uintptr_t)m->rules.ban);
    free((void *)(uintptr_t)m->rules.bad);
    free((void *)(uintptr_t)m->rules.bad_end);
    free((void *)(uintptr_t)m->rules.bias);
}

static struct cluster *open_ranks(const char *model, int32_t ranks, const char *sampler)
{
    char option[32];
    snprintf(option, sizeof option, "--sampler=%s", sampler);
    const char *const args[] = {"--threads-per-rank=1",
                                "--max-num-seqs=16",
                                "--max-num-batched-tokens=1024",
                                "--max-model-len=128",
                                "--kv-cache-memory=8M",
                                option,
                                NULL};
    return cluster_open(model, ranks, args);
}

/* The row added last is sampled, with its best. */
static void ask_best(struct cluster *c, int32_t target)
{
    c->step->target[c->step->samples - 1] = target;
    c->step->top[c->step->samples - 1] = TOP;
}

/* Runs the mixes at once, the last one in slot 0. */
static void run(struct cluster *c, const struct mix *mixes, int32_t count, struct outcome *out)
{
    for (int32_t t = 0; t < STEPS; t++) {
        for (int32_t i = 0; i < count; i++) {
            const struct mix *m = &mixes[i];
            const int32_t slot = count - 1 - i, n = m->prompt_len;
            if (t == 0) {
                cluster_open_slot(c, slot, m->prompt, n, n + STEPS, m->params);
                c->step->open[c->step->opens - 1].rules = m->rules;
            }
            for (int32_t p = 0; t == 0 && p < n; p++)
                cluster_row(c, slot, p, m->prompt[p], p == n - 1);
            if (t > 0)
                cluster_row(c, slot, n + t - 1, STEP_TOKEN_FROM_SLOT, true);
            if (!m->silent)
                ask_best(c, STEP_TARGET_SAMPLE);
        }
        cluster_step(c);
        const struct step_result *r = &c->result[0];
        for (int32_t i = 0; i < count; i++) {
            out[i].ids[t] = r->ids[i];
            if (mixes[i].silent)
                continue;
            out[i].logprob[t] = r->logprob[i];
            memcpy(out[i].best[t], &r->best[i * TOP], sizeof out[i].best[t]);
        }
        for (int32_t rank = 1; rank < c->footprint.ranks; rank++) {
            assert_memory_equal(c->result[rank].ids, r->ids, (size_t)count * sizeof *r->ids);
            assert_null(c->result[rank].logprob); /* only rank 0 answers */
        }
    }
}

static void compare(const struct outcome *got, int32_t i)
{
    int32_t n;
    int32_t *tokens = of_mix(i, "tokens", &n), *top_ids = of_mix(i, "top_ids", &n);
    float *logprobs = of_mix(i, "logprobs", &n), *top = of_mix(i, "top_logprobs", &n);
    assert_int_equal(n, STEPS * TOP);
    for (int32_t t = 0; t < STEPS; t++) {
        if (got->ids[t] != tokens[t])
            fail_msg("mix %d: token %d is %d, numpy has %d", i, t, got->ids[t], tokens[t]);
        assert_true(fabsf(got->logprob[t] - logprobs[t]) < 5e-5f);
        for (int32_t k = 0; k < TOP; k++) {
            assert_int_equal(got->best[t][k].token, top_ids[t * TOP + k]);
            assert_true(fabsf(got->best[t][k].logprob - top[t * TOP + k]) < 5e-5f);
            if (got->best[t][k].token == tokens[t])
                assert_true(got->best[t][k].logprob == got->logprob[t]);
        }
    }
    free(tokens);
    free(top_ids);
    free(logprobs);
    free(top);
}

static void test_rules_as_numpy(void **state)
{
    (void)state;
    struct mix mixes[MIXES];
    struct outcome out[MIXES];
    struct cluster *c = open_ranks(MODEL, 2, "gather");
    for (int32_t i = 0; i < MIXES; i++)
        open_mix(&mixes[i], i);
    run(c, mixes, MIXES, out);
    for (int32_t i = 0; i < MIXES; i++) {
        compare(&out[i], i);
        close_mix(&mixes[i]);
    }
    cluster_close(c);
}

/* The five mixes greedy, then drawn twice, and one more. */
static void make_crowd(struct mix crowd[SLOTS], const struct mix mixes[MIXES])
{
    for (int32_t i = 0; i < SLOTS; i++) {
        crowd[i] = mixes[i % MIXES];
        if (i < MIXES)
            continue;
        crowd[i].params = (struct sample_params){.temperature = 0.9f,
                                                 .top_p = i % 2 ? 0.8f : 1,
                                                 .top_k = i % 3 ? 40 : 0,
                                                 .min_p = i % 4 ? 0 : 0.02f,
                                                 .seed = (uint64_t)i,
                                                 .choice = i % 2};
    }
}

static void assert_same(const struct outcome *a, const struct outcome *b, int32_t ranks, int32_t i)
{
    if (memcmp(a, b, sizeof *a) != 0)
        fail_msg("sequence %d at %d ranks: other tokens or logprobs", i, ranks);
}

static void test_same_bits(void **state)
{
    (void)state;
    static const int32_t counts[] = {1, 2, 3, 4, 8};
    static struct outcome first[SLOTS], out[SLOTS];
    struct mix mixes[MIXES], crowd[SLOTS];
    int32_t different = 0;
    for (int32_t i = 0; i < MIXES; i++)
        open_mix(&mixes[i], i);
    make_crowd(crowd, mixes);
    for (size_t p = 0; p < ARRAY_LEN(counts); p++) {
        struct cluster *c = open_ranks(MODEL, counts[p], p % 2 ? "distributed" : "gather");
        run(c, crowd, SLOTS, out);
        for (int32_t i = 0; i < SLOTS && p > 0 && counts[p] != 3; i++)
            assert_same(&out[i], &first[i], counts[p], i);
        if (p == 0)
            memcpy(first, out, sizeof out);
        for (int32_t i = 0; i < SLOTS; i++) { /* alone, in slot 0 */
            struct outcome alone;
            run(c, &crowd[i], 1, &alone);
            assert_same(&alone, &out[i], counts[p], i);
            different += memcmp(out[i].ids, out[i % MIXES].ids, sizeof alone.ids) != 0;
        }
        cluster_close(c);
    }
    assert_true(different >= 5 * 10); /* drawing does draw */
    for (int32_t i = 0; i < MIXES; i++)
        close_mix(&mixes[i]);
}

/* ---- both samplers ---- */

/* Uniform in [0, 1). */
static float roll(uint64_t *dice)
{
    ++*dice;
    return (float)(base_hash(BASE_HASH_INIT, dice, sizeof *dice) >> 40) * 0x1p-24f;
}

/* What clients ask of a model of text, and who wants logprobs too. */
static void make_asked(struct mix *m, uint64_t *dice)
{
    static int32_t bos = 1;
    static const int32_t end = 2;
    *m = (struct mix){.prompt = &bos, .prompt_len = 1, .silent = roll(dice) < 0.8f};
    m->params = (struct sample_params){
        .temperature = roll(dice) < 0.2f ? 0 : 0.3f + 0.9f * roll(dice),
        .top_p = roll(dice) < 0.4f ? 1 : 0.5f + 0.48f * roll(dice),
        .top_k = roll(dice) < 0.6f ? 0 : 1 + (int32_t)(100 * roll(dice)),
        .min_p = roll(dice) < 0.7f ? 0 : 0.2f * roll(dice),
        .seed = *dice,
    };
    m->rules = (struct sample_rules){.prompt = 1, .repetition = 1, .bans = 1, .ban = &end};
    m->rules.min_tokens = STEPS; /* a story that has ended is not like text */
    if (roll(dice) < 0.3f)
        m->rules.repetition = 1 + 0.3f * roll(dice);
    if (roll(dice) < 0.3f)
        m->rules.presence = roll(dice) - 0.3f;
    if (roll(dice) < 0.3f)
        m->rules.frequency = roll(dice) - 0.3f;
}

/* 160 mixes of parameters, each for 40 tokens; few rows are gathered because they must be. */
static void test_samplers(void **state)
{
    (void)state;
    static const int32_t counts[] = {1, 2, 3, 4, 8};
    static struct outcome want[SLOTS], got[SLOTS];
    uint64_t dice = 1;
    for (size_t p = 0; p < ARRAY_LEN(counts); p++) {
        struct cluster *gather = open_ranks(DEMO, counts[p], "gather");
        struct cluster *distributed = open_ranks(DEMO, counts[p], "distributed");
        for (int32_t round = 0; round < ROUNDS; round++) {
            struct mix crowd[SLOTS];
            for (int32_t i = 0; i < SLOTS; i++)
                make_asked(&crowd[i], &dice);
            memset(want, 0, sizeof want);
            memset(got, 0, sizeof got);
            run(gather, crowd, SLOTS, want);
            run(distributed, crowd, SLOTS, got);
            for (int32_t i = 0; i < SLOTS; i++)
                assert_same(&got[i], &want[i], counts[p], i);
        }
        const uint64_t lost = atomic_load(&distributed->board->rank[0].sampler_fallbacks);
        print_message("%d ranks: %d of %d rows undecided\n", counts[p], (int)lost,
                      ROUNDS * SLOTS * STEPS);
        assert_true(lost * 100 <= ROUNDS * SLOTS * STEPS);
        for (int32_t r = 1; r < counts[p]; r++)
            assert_int_equal(atomic_load(&distributed->board->rank[r].sampler_fallbacks), lost);
        assert_int_equal(atomic_load(&gather->board->rank[0].sampler_fallbacks), 0);
        cluster_close(gather);
        cluster_close(distributed);
    }
}

/* A model of nothing, whose nuclei are larger than the places: rows are counted as lost, and get
 * the same tokens. */
static void test_fallback(void **state)
{
    (void)state;
    static const char model[] = TEST_DATA_DIR "/golden/llama31_rope_f32"; /* 509 ids */
    static struct outcome want[3], got[3];
    int32_t bos = 1;
    struct mix asked[3];
    for (int32_t i = 0; i < 3; i++) {
        asked[i] = (struct mix){.prompt = &bos, .prompt_len = 1, .silent = true};
        asked[i].params = (struct sample_params){.temperature = 2, .top_p = 1, .seed = 3};
        asked[i].rules = (struct sample_rules){.prompt = 1, .repetition = 1};
    }
    asked[1].params.top_p = 0.95f;
    asked[2].params.top_k = 100;
    struct cluster *gather = open_ranks(model, 1, "gather");
    struct cluster *distributed = open_ranks(model, 1, "distributed");
    run(gather, asked, 3, want);
    run(distributed, asked, 3, got);
    for (int32_t i = 0; i < 3; i++)
        assert_same(&got[i], &want[i], 1, i);
    const struct comm_stats *stats = &distributed->board->rank[0].comm;
    const uint64_t lost = atomic_load(&distributed->board->rank[0].sampler_fallbacks);
    assert_in_range(lost, STEPS / 2, STEPS); /* those of top-p alone */
    /* surveys and ballots; of a row that is lost the only rank has all */
    assert_int_equal(atomic_load(&stats->op[COMM_ALL_GATHER].calls), 2 * STEPS);
    cluster_close(gather);
    cluster_close(distributed);
}

/* Marks a few ids of a vocabulary: those that i % 17 says. */
static void few_ids(uint32_t *mask, int32_t vocab, int32_t i)
{
    memset(mask, 0, (size_t)sample_mask_words(vocab) * sizeof *mask);
    for (int32_t id = i % 17; id < vocab; id += 17)
        mask[id / 32] |= 1u << id % 32;
}

/* The same rows as `run`, of which every second draws by a mask, another one at each step: masks
 * are numbered the other way round than the rows. */
static void run_masked(struct cluster *c, const struct mix *mixes, int32_t count,
                       struct outcome *out)
{
    struct step *s = c->step;
    const int32_t vocab = c->footprint.limits.vocab, masks = count / 2;
    const size_t words = (size_t)sample_mask_words(vocab);
    for (int32_t t = 0; t < STEPS; t++) {
        for (int32_t i = 0; i < count; i++) {
            const struct mix *m = &mixes[i];
            const int32_t n = m->prompt_len;
            if (t == 0) {
                cluster_open_slot(c, i, m->prompt, n, n + STEPS, m->params);
                s->open[s->opens - 1].rules = m->rules;
            }
            for (int32_t p = 0; t == 0 && p < n; p++)
                cluster_row(c, i, p, m->prompt[p], p == n - 1);
            if (t > 0)
                cluster_row(c, i, n + t - 1, STEP_TOKEN_FROM_SLOT, true);
            if (i % 2)
                s->mask[i] = masks - 1 - i / 2;
        }
        s->mask_count = masks;
        for (int32_t i = 1; i < count; i += 2)
            few_ids(s->masks + (size_t)(masks - 1 - i / 2) * words, vocab, i + t);
        cluster_step(c);
        for (int32_t i = 0; i < count; i++) {
            out[i].ids[t] = c->result[0].ids[i];
            if (i % 2)
                assert_int_equal(out[i].ids[t] % 17, (i + t) % 17);
        }
    }
}

/* A masked row draws what its mask allows, its neighbours what they drew without it, at any number
 * of ranks and by both samplers; and the next step's masks are its own. */
static void test_masks(void **state)
{
    (void)state;
    static struct outcome plain[SLOTS], first[SLOTS], out[SLOTS];
    static const int32_t counts[] = {1, 2, 2, 4};
    struct mix mixes[MIXES], crowd[SLOTS];
    for (int32_t i = 0; i < MIXES; i++)
        open_mix(&mixes[i], i);
    make_crowd(crowd, mixes);
    for (int32_t i = 0; i < SLOTS; i++)
        crowd[i].silent = true;
    for (size_t p = 0; p < ARRAY_LEN(counts); p++) {
        struct cluster *c = open_ranks(MODEL, counts[p], p % 2 ? "distributed" : "gather");
        if (p == 0)
            run(c, crowd, SLOTS, plain);
        run_masked(c, crowd, SLOTS, p == 0 ? first : out);
        for (int32_t i = 0; i < SLOTS; i++) {
            if (i % 2 == 0)
                assert_memory_equal(first[i].ids, plain[i].ids, sizeof first[i].ids);
            if (p > 0)
                assert_same(&out[i], &first[i], counts[p], i);
        }
        run(c, crowd, SLOTS, out); /* nothing is left of the masks */
        for (int32_t i = 0; i < SLOTS; i++)
            assert_memory_equal(out[i].ids, plain[i].ids, sizeof out[i].ids);
        cluster_close(c);
    }
    for (int32_t i = 0; i < MIXES; i++)
        close_mix(&mixes[i]);
}

/* Every prompt token but the first, in chunks of the sample places, the last row sampled. */
static void score_prompt(struct cluster *c, const int32_t *prompt, int32_t n, int32_t chunk,
                         struct outcome *out)
{
    const struct sample_params greedy = {.top_p = 1};
    cluster_open_slot(c, 3, prompt, n, n, greedy);
    for (int32_t at = 0; at < n; at += chunk) {
        int32_t rows = n - at < chunk ? n - at : chunk;
        for (int32_t i = 0; i < rows; i++) {
            cluster_row(c, 3, at + i, prompt[at + i], true);
            ask_best(c, at + i + 1 < n ? prompt[at + i + 1] : STEP_TARGET_SAMPLE);
        }
        cluster_step(c);
        for (int32_t i = 0; i < rows; i++) {
            out->ids[at + i] = c->result[0].ids[i];
            out->logprob[at + i] = c->result[0].logprob[i];
            memcpy(out->best[at + i], &c->result[0].best[i * TOP], sizeof out->best[0]);
        }
    }
}

/* Log-softmax of Hugging Face's logits, in doubles. */
static double logprob_of(const float *logits, int32_t vocab, int32_t id)
{
    double max = -INFINITY, sum = 0;
    for (int32_t i = 0; i < vocab; i++)
        max = (double)logits[i] > max ? (double)logits[i] : max;
    for (int32_t i = 0; i < vocab; i++)
        sum += exp((double)logits[i] - max);
    return (double)logits[id] - max - log(sum);
}

static void test_prompt_as_transformers(void **state)
{
    (void)state;
    static struct outcome out, again;
    int32_t n, count, vocab;
    int32_t *prompt = tensor("golden.safetensors", "prompt0", &n);
    int32_t *greedy = tensor("golden.safetensors", "greedy0", &count);
    float *logits = tensor("golden.safetensors", "logits0", &count);
    double most = 0;
    vocab = count / n;
    for (int32_t i = 0; i < count; i++)
        most = fabs((double)logits[i]) > most ? fabs((double)logits[i]) : most;
    struct cluster *c = open_ranks(MODEL, 2, "distributed");
    score_prompt(c, prompt, n, SLOTS, &out);
    score_prompt(c, prompt, n, 7, &again);
    for (int32_t i = 0; i < n; i++) {
        const float *row = logits + (ptrdiff_t)i * vocab;
        const int32_t id = i + 1 < n ? prompt[i + 1] : greedy[0];
        assert_int_equal(out.ids[i], id);
        assert_true(fabs((double)out.logprob[i] - logprob_of(row, vocab, id)) < 1e-4 * most);
        for (int32_t k = 0; k < TOP; k++) {
            double want = logprob_of(row, vocab, out.best[i][k].token);
            assert_true(fabs((double)out.best[i][k].logprob - want) < 1e-4 * most);
        }
        for (int32_t id2 = 0; id2 < vocab; id2++) { /* nothing else is among the five best */
            bool among = false;
            for (int32_t k = 0; k < TOP; k++)
                among |= out.best[i][k].token == id2;
            assert_true(among || logprob_of(row, vocab, id2) <
                                     (double)out.best[i][TOP - 1].logprob + 1e-4 * most);
        }
    }
    assert_memory_equal(out.ids, again.ids, (size_t)n * sizeof out.ids[0]);
    assert_memory_equal(out.logprob, again.logprob, (size_t)n * sizeof out.logprob[0]);
    assert_memory_equal(out.best, again.best, (size_t)n * sizeof out.best[0]);
    cluster_close(c);
    free(prompt);
    free(greedy);
    free(logits);
}

/* A slot opened with prompt and produced tokens goes on as if nothing had happened: what a new
 * group is told after a loss. */
static void test_open_with_history(void **state)
{
    (void)state;
    struct mix m;
    struct outcome out;
    int32_t tokens[PROMPT_MAX + STEPS];
    open_mix(&m, 3);
    m.params = (struct sample_params){.temperature = 1, .top_p = 0.9f, .seed = 5};
    struct cluster *c = open_ranks(MODEL, 2, "distributed");
    run(c, &m, 1, &out);
    const int32_t made = 4, n = m.prompt_len + made; /* before min_tokens */
    memcpy(tokens, m.prompt, (size_t)m.prompt_len * sizeof *tokens);
    memcpy(tokens + m.prompt_len, out.ids, (size_t)made * sizeof *tokens);
    cluster_open_slot(c, 7, tokens, n, n + STEPS, m.params);
    c->step->open[0].rules = m.rules;
    for (int32_t t = made; t < STEPS; t++) {
        for (int32_t p = 0; t == made && p < n; p++)
            cluster_row(c, 7, p, tokens[p], p == n - 1);
        if (t > made)
            cluster_row(c, 7, m.prompt_len + t - 1, STEP_TOKEN_FROM_SLOT, true);
        cluster_step(c);
        assert_int_equal(c->result[0].ids[0], out.ids[t]);
    }
    cluster_close(c);
    close_mix(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rules_as_numpy),
        cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_samplers),
        cmocka_unit_test(test_fallback),
        cmocka_unit_test(test_masks),
        cmocka_unit_test(test_prompt_as_transformers),
        cmocka_unit_test(test_open_with_history),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
