/* What a whole step takes where it matters: the decode of one sequence and of many with so much
 * context, and a long prompt, as a share of what the device can do: bench_forward MODEL
 * [OPTION...], whose options are those of `tessera plan`. One rank without links, a decode launched
 * while the one before runs; --max-num-seqs is the batch, --max-num-batched-tokens the prompt.
 *
 * A decode must read all weights but the embedding, of which it looks up rows, and the keys and
 * values of its context: that over the time is its share of a copy's bytes, read and written. The
 * products' share is of the fastest of the model's own on so many rows of bf16. Both are measured
 * in the same run, by our own kernels. bench_torch.py prints the same lines for PyTorch, and takes
 * the shares of all lines of one limit. */
#include "tests/bench/rates.h"
#include "tests/cluster.h"

#include <float.h>

enum { CONTEXT = 1024, RUNS = 3, WARM = 8, DECODES = 32, STEPS = WARM + RUNS * DECODES };
#define SPAN_MAX ((size_t)1 << 30)

struct limits {
    double bytes, operations; /* per second */
};

static void launch(struct cluster *c)
{
    struct err err;
    rates_must(rank_launch(c->ranks[0], c->step, NULL, &err), &err);
    step_clear(c->step);
}

static void land(struct cluster *c)
{
    struct err err;
    struct step_result result;
    rates_must(rank_land(c->ranks[0], &result, &err), &err);
    for (int32_t i = 0; i < result.count; i++)
        CHECK(result.ids[i] >= 0); /* the logits were finite */
}

/* A prompt of n tokens in slot `slot`, in one step, with blocks for so many positions, out of one
 * of `shares` parts of all. */
static void prompt(struct cluster *c, int32_t slot, int32_t n, int32_t positions, int32_t shares)
{
    const int32_t blocks = c->footprint.limits.blocks / shares;
    struct step *s = c->step;
    int32_t *tokens = calloc((size_t)n, sizeof *tokens);
    CHECK(tokens != NULL && n <= c->footprint.limits.rows);
    for (int32_t i = 0; i < n; i++)
        tokens[i] =
            (int32_t)(numerics_mix((uint64_t)(slot * n + i)) % (uint64_t)c->footprint.limits.vocab);
    s->open[s->opens++] = (struct step_open){.slot = slot,
                                             .history = n,
                                             .state = -1,
                                             .tokens = tokens,
                                             .params = {.top_p = 1},
                                             .rules = {.prompt = n, .repetition = 1}};
    cluster_append(c, slot, positions, slot * blocks, blocks);
    for (int32_t i = 0; i < n; i++)
        cluster_row(c, slot, i, tokens[i], i == n - 1);
    launch(c);
    land(c);
    free(tokens);
}

static void finish(struct cluster *c, int32_t slots)
{
    for (int32_t i = 0; i < slots; i++)
        c->step->close[c->step->closes++] = i; /* in the next step that is launched */
}

/* ---- the steps ---- */

/* Best seconds of a decode of so many sequences, each with `context` positions on the average. */
static double decode(struct cluster *c, int32_t batch, int32_t context)
{
    const int32_t first = context - STEPS / 2;
    double best = DBL_MAX, begin = 0;
    for (int32_t slot = 0; slot < batch; slot++)
        prompt(c, slot, first, first + STEPS + 1, c->footprint.limits.slots);
    for (int32_t i = 0; i < STEPS; i++) {
        for (int32_t slot = 0; slot < batch; slot++)
            cluster_row(c, slot, first + i, STEP_TOKEN_FROM_SLOT, true);
        launch(c);
        if (i > 0)
            land(c);
        if (i >= WARM && (i - WARM) % DECODES == 0) {
            const double now = base_now();
            best = i > WARM && now - begin < best ? now - begin : best;
            begin = now;
        }
    }
    land(c);
    best = base_now() - begin < best ? base_now() - begin : best;
    finish(c, batch);
    return best / DECODES;
}

/* Best seconds of a prompt, opening and answer included. */
static double prefill(struct cluster *c, int32_t rows)
{
    double best = DBL_MAX;
    for (int i = 0; i < RUNS + 1; i++) {
        const double begin = base_now();
        prompt(c, 0, rows, rows + 1, 1);
        const double t = base_now() - begin;
        best = i > 0 && t < best ? t : best;
        finish(c, 1);
    }
    return best;
}

/* ---- what they take ---- */

/* Bytes of the weights that a step multiplies with. */
static size_t multiplied(const struct layout *l, bool tied)
{
    size_t bytes = 0;
    for (int32_t i = 0; i < l->count; i++)
        bytes += l->roles[i] == ROLE_EMBED && !tied ? 0 : l->weights[i].bytes;
    return bytes;
}

/* Operations of a step of so many rows, whose attention meets so many pairs of query and key. */
static double operations(const struct model_config *m, double rows, double samples, double pairs)
{
    const double heads = (double)m->heads + 2 * m->kv_heads, D = m->hidden, F = m->mlp;
    const double layer = D * heads * m->head_dim + D * m->heads * m->head_dim + 3 * D * F;
    return 2 * rows * m->layers * layer + 2 * samples * D * m->vocab +
           4 * pairs * m->layers * m->heads * m->head_dim;
}

static void row(const struct cluster *c, const struct limits *limits, const char *kind,
                int32_t batch, int32_t length, double seconds)
{
    const struct model_config *m = &c->setup.model;
    const bool decodes = strcmp(kind, "decode") == 0;
    const double pairs = decodes ? (double)batch * length : length * (length + 1.0) / 2;
    const double rows = decodes ? batch : length;
    const double bytes = (double)multiplied(c->setup.layouts[0], m->tied) +
                         (decodes ? pairs * (double)c->footprint.rank[0].kv_per_token : 0);
    const double done = operations(m, rows, batch, pairs);
    printf("| %s, %d x %d | tessera %s | %.3f ms | %.1f | %.1f GB/s | %.1f %% | %.3f TFLOP/s "
           "| %.1f %% | %.2f GiB |\n",
           kind, (int)batch, (int)length,
           dtype_name(m->quant.kind == QUANT_NONE ? c->footprint.dtype : m->quant.code),
           seconds * 1e3, rows / seconds, bytes / seconds * 1e-9,
           100 * bytes / seconds / limits->bytes, done / seconds * 1e-12,
           100 * done / seconds / limits->operations, (double)c->footprint.total * 0x1p-30);
    fflush(stdout);
}

/* ---- the program ---- */

static struct weight_spec product(int32_t in, int32_t out)
{
    return (struct weight_spec){
        .out = out, .in = in, .dtype = DTYPE_BF16, .leaves = 1, .cut = {0, in}};
}

/* Beside the model, in what memory it leaves. */
static struct limits measure_limits(const char *device, const struct model_config *m, int32_t rows)
{
    struct backend *b;
    struct err err;
    const size_t layer = (size_t)m->hidden * (size_t)m->mlp * 16;
    const size_t span = layer < SPAN_MAX ? layer : SPAN_MAX;
    const struct weight_spec wide = product(m->hidden, m->mlp), deep = product(m->mlp, m->hidden);
    rates_must(backend_open(device, 1, &b, &err), &err);
    const double t_wide = rates_linear(b, span, &wide, rows);
    const double t_deep = rates_linear(b, span, &deep, rows);
    const double flops = 2.0 * rows * m->hidden * m->mlp;
    const struct limits limits = {(double)span / rates_copy(b, span),
                                  flops / (t_wide < t_deep ? t_wide : t_deep)};
    backend_close(b);
    return limits;
}

static int32_t least(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

int main(int argc, char **argv)
{
    const char *args[16] = {"--device=cuda"};
    struct model_config m;
    struct err err;
    if (argc < 2 || argc - 2 > (int)ARRAY_LEN(args) - 2) {
        fprintf(stderr, "bench_forward MODEL [OPTION...]\n");
        return 2;
    }
    for (int i = 2; i < argc; i++)
        args[i - 1] = argv[i];
    rates_must(model_config_load(argv[1], &m, NULL, &err), &err);
    struct cluster *c = cluster_open(argv[1], 1, args);
    const struct step_limits *l = &c->footprint.limits;
    const int32_t rows = least(l->rows, c->footprint.max_model_len - 1);
    const int32_t context = least(CONTEXT, c->footprint.max_model_len - STEPS);
    const struct limits limits = measure_limits("cuda", &m, rows);
    printf("limits: %.1f GB/s, %.3f TFLOP/s\n\n"
           "| step | by | time | tokens/s | bytes | of the copy | operations | of the products "
           "| memory |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
           limits.bytes * 1e-9, limits.operations * 1e-12);
    row(c, &limits, "decode", 1, context, decode(c, 1, context));
    row(c, &limits, "decode", l->slots, context, decode(c, l->slots, context));
    row(c, &limits, "prompt", 1, rows, prefill(c, rows));
    cluster_close(c);
    return 0;
}
