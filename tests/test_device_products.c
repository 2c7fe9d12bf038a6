/* What steps on a device do around their products: they write rows in 16 bits where many are read,
 * and take launches in where few are. */
#include "tests/device_ranks.h"

/* ---- 16 bits ---- */

/* Such products of a prompt of all slots, then of a decode of them; *converted: launches of the
 * prompt that did nothing but round rows; *logits: the prompt's. */
static void count_narrow(const struct module *m, struct cluster *c, uint64_t *prompt,
                         uint64_t *decoded, uint64_t *converted, struct cview *logits)
{
    struct emulated_calls before, between, after;
    int32_t at[SLOTS];
    begin(at);
    (void)count_calls(m, &before);
    prefill(c);
    (void)count_calls(m, &between);
    *prompt = between.narrow - before.narrow;
    *converted = between.converted - before.converted;
    *logits = c->logits[0];
    logits->data =
        memcpy(malloc((size_t)logits->rows * (size_t)logits->cols * sizeof(float)), logits->data,
               (size_t)logits->rows * (size_t)logits->cols * sizeof(float));
    decode(c, SLOTS, at);
    (void)count_calls(m, &after);
    *decoded = after.narrow - between.narrow;
}

/* They are near those of our own kernels, which write fp32: as near as bf16 is, in which many rows
 * are multiplied either way. */
static void assert_near_fp32(const struct module *m, size_t i, int32_t ranks, struct cview logits)
{
    struct cluster *c = open_with(i, ranks, (const char *const[2]){"--deterministic", NULL});
    struct cview want;
    uint64_t prompt, decoded, converted;
    float most = 0, off = 0;
    count_narrow(m, c, &prompt, &decoded, &converted, &want);
    assert_int_equal(prompt + decoded + converted, 0);
    assert_true(want.rows == logits.rows && want.cols == logits.cols);
    for (int32_t e = 0; e < want.rows * want.cols; e++) {
        const float w = ((const float *)want.data)[e], g = ((const float *)logits.data)[e];
        most = fmaxf(most, fabsf(w));
        off = fmaxf(off, fabsf(w - g));
    }
    print_message("%s: logits up to %g, off by %g\n", cases[i].name, (double)most, (double)off);
    assert_true(off <= most * 0x1p-5f);
    free((void *)(uintptr_t)want.data);
    cluster_close(c);
}

/* Collectives of the first rank. */
static uint64_t collectives_of(const struct cluster *c)
{
    const struct board_rank *board = c->memory[0].board;
    uint64_t n = 0;
    for (int32_t op = 0; op < COMM_OP_COUNT; op++) {
        n += atomic_load(&board->comm.op[op].calls);
        for (int32_t i = 0; i < MESH_AXES_MAX; i++)
            n += atomic_load(&board->axis[i].op[op].calls);
    }
    return n;
}

/* Products of a prompt on each rank in each layer behind which nothing is exchanged and nothing
 * made but a norm: of qkv and of gate and up, on one rank, which asks for no collective, also of O
 * and down. Not of few rows, fp32 weights, codes, mixtures. */
static void test_prompts_have_narrow_products(void **state)
{
    static const struct {
        size_t i;
        int32_t ranks, narrow; /* 0 ranks: the case's; narrow of a layer */
    } with[] = {{0, 0, 0},  {1, 0, 2},  {1, 1, 4},  {4, 0, 0},  {6, 0, 0}, {7, 0, 0},
                {12, 0, 2}, {12, 1, 2}, {17, 0, 0}, {19, 0, 0}, {25, 0, 0}};
    (void)state;
    struct module_report report;
    struct emulated_calls calls;
    const struct module *m = module_here(&report);
    if (!m || !count_calls(m, &calls))
        skip();
    for (size_t k = 0; k < ARRAY_LEN(with); k++) {
        const size_t i = with[k].i;
        const int32_t ranks = with[k].ranks > 0 ? with[k].ranks : cases[i].ranks;
        struct cview logits;
        uint64_t prompt, decoded, converted;
        struct cluster *c = open_case(i, ranks, true);
        count_narrow(m, c, &prompt, &decoded, &converted, &logits);
        /* norms, attention and activations have rounded, but where rows of weights have tails */
        const struct model_config *cfg = &c->setup.model;
        const int32_t tails =
            2 * (cfg->hidden % 8 > 0) + (cfg->mlp % 8 > 0) + (cfg->heads * cfg->head_dim % 8 > 0);
        assert_int_equal(collectives_of(c) > 0, ranks > 1);
        if ((with[k].narrow > 0 || i == 25) && ranks == 1)
            assert_int_equal(converted, tails * cfg->layers);
        assert_int_equal(prompt, with[k].narrow * ranks * c->setup.model.layers);
        assert_int_equal(decoded, 0);
        cluster_close(c);
        if (with[k].narrow > 0)
            assert_near_fp32(m, i, ranks, logits);
        free((void *)(uintptr_t)logits.data);
    }
}

/* ---- launches ---- */

/* In a layer on one rank the norms, the additions to the residual stream and the activation are no
 * launches of their own: of 3 rows of bf16; of more, for which a gain has no room, the norms are.
 * Nor is the rotation of heads of 64 elements; those of 8 have another that folds splits. Logits
 * are near those of --deterministic, whose norms are. Prompts' attention is what differs. */
static void test_products_take_launches_in(void **state)
{
    /* tokens, embedding, angles; the last norm, its rows, the head, four that sample */
    enum { AROUND = 10 };
    static const struct {
        size_t i;
        int32_t rows, layer;
    } with[] = {{0, 3, 7}, {0, 5, 9}, {TURNED_HEADS, 3, 5}, {TURNED_HEADS, 5, 7}};
    static const char *const options[][2] = {{"--dtype=bfloat16", "--enforce-eager"},
                                             {"--dtype=bfloat16", "--deterministic"}};
    (void)state;
    struct module_report report;
    struct emulated_calls before, after;
    const struct module *m = module_here(&report);
    if (!m || !count_calls(m, &before))
        skip();
    for (size_t k = 0; k < ARRAY_LEN(with); k++) {
        int32_t at[SLOTS];
        struct cluster *c = open_with(with[k].i, 1, options[0]);
        struct cluster *apart = open_with(with[k].i, 1, options[1]);
        prefill_apart(c);
        prefill_apart(apart);
        begin(at);
        count_calls(m, &before);
        decode(c, with[k].rows, at);
        count_calls(m, &after);
        begin(at);
        decode(apart, with[k].rows, at);
        const struct cview x = c->logits[0], y = apart->logits[0];
        float off = 0;
        for (int32_t e = 0; e < x.rows * x.cols; e++)
            off = fmaxf(off, fabsf(((const float *)x.data)[e] - ((const float *)y.data)[e]));
        assert_int_equal(after.launches - before.launches,
                         AROUND + with[k].layer * c->setup.model.layers);
        assert_true(off < 5e-3f);
        cluster_close(c);
        cluster_close(apart);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prompts_have_narrow_products),
        cmocka_unit_test(test_products_take_launches_in),
    };
    only(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
