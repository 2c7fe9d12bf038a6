/* Rates of the kernels of any backend, with its arrays in its own memory: bench_device [BACKEND
 * [MiB [PART...]]], "cuda" without; with PARTs only the lines in whose names one of them is. A line
 * of a markdown table each. The limit is a copy's bytes, read and written, measured in the same
 * run, and for products of attention the fastest linear's; weights cycle through so many MiB that
 * no cache holds them. */
#include "tests/bench/rates.h"

static struct backend *backend;
static size_t span = (size_t)1024 << 20; /* bytes that are passed over */
static char **parts;                     /* of names of lines that are wanted, NULL behind them */
static double limit;                     /* bytes per second */
static double fastest;                   /* operations per second of a linear */

static void *array(size_t bytes)
{
    return rates_array(backend, bytes);
}

static void *uploaded(const void *src, size_t bytes)
{
    void *p = backend->ops->alloc(backend, bytes);
    CHECK(p != NULL);
    backend->ops->upload(backend, p, src, bytes);
    return p;
}

static void drop(const void *p)
{
    backend->ops->free(backend, (void *)(uintptr_t)p);
}

static bool is_wanted(const char *what)
{
    bool found = *parts == NULL;
    for (char **p = parts; *p; p++)
        found = found || strstr(what, *p);
    return found;
}

static void row(const char *what, double seconds, double bytes, double flops)
{
    printf("| %s | %.1f us | %.1f GB/s | %.0f %% | ", what, seconds * 1e6, bytes / seconds * 1e-9,
           limit > 0 ? 100 * bytes / seconds / limit : 100.0);
    if (flops > 0)
        printf("%.2f TFLOP/s", flops / seconds * 1e-12);
    if (flops > 0 && fastest > 0)
        printf(", %.0f %% of the fastest linear", 100 * flops / seconds / fastest);
    printf(flops > 0 ? " |\n" : "|\n");
    fflush(stdout);
}

static int32_t least(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

/* ---- limit ---- */

static void copying(void)
{
    const double t = rates_copy(backend, span);
    limit = (double)span / t;
    row("copy", t, (double)span, 0);
}

/* ---- linear ---- */

struct held {
    enum dtype dtype;
    int32_t scale_cols; /* that share a scale; 0: all of a row */
    bool scales_f32;    /* of integers, as those of a file have them */
};

/* Returns operations per second. */
static double linear(const struct held *h, int32_t rows, int32_t in, int32_t out)
{
    const struct weight_spec spec = {.out = out,
                                     .in = in,
                                     .dtype = h->dtype,
                                     .leaves = 1,
                                     .cut = {0, in},
                                     .scale_cols = h->scale_cols,
                                     .scales_f32 = h->scales_f32};
    char what[64];
    (void)snprintf(what, sizeof what, "linear %s%s%s, %d rows, %d -> %d", dtype_name(h->dtype),
                   h->scale_cols > 0 ? " in blocks" : "", h->scales_f32 ? " of a file" : "", rows,
                   in, out);
    if (!is_wanted(what))
        return 0;
    const double t = rates_linear(backend, span, &spec, rows), flops = 2.0 * rows * in * out;
    row(what, t, (double)backend->ops->weight_bytes(&spec), flops);
    return flops / t;
}

/* The types that so many rows have between products with bf16 weights. */
struct types {
    enum dtype in, out; /* of a product's x, and of its y */
};

static struct types types_of(int32_t rows)
{
    enum { D = 4096 };
    const struct weight_spec spec = {
        .out = D, .in = D, .dtype = DTYPE_BF16, .leaves = 1, .cut = {0, D}};
    void *storage = array(backend->ops->weight_bytes(&spec));
    struct weight *w = backend->ops->weight_open(backend, &spec, storage);
    const struct types t = {backend->ops->linear_in(backend, w, rows),
                            backend->ops->linear_out(backend, w, rows)};
    backend->ops->weight_close(w);
    drop(storage);
    return t;
}

static struct view rows_of(enum dtype dtype, int32_t rows, int32_t cols)
{
    return rates_rows(backend, dtype, rows, cols);
}

/* ---- attention ---- */

struct attending {
    struct heads heads;
    struct attention how;
    struct rows rows;
    struct kv_cache *kv;
    struct view qkv, out;
};

static void attend_once(void *arg)
{
    struct attending *a = arg;
    struct err err;
    rates_must(backend_attend(backend, a->out, cview_of(a->qkv), &a->heads, &a->how, &a->rows,
                              a->kv, 0, &err),
               &err);
}

/* The last `rows` of `keys` positions of so many sequences; 32 query heads over 8, of 128. A chunk
 * of a prompt is bound by multiplications, a decode by the bytes of the cache. */
static void attention(int32_t slots, int32_t rows, int32_t keys, enum dtype dtype)
{
    enum { H = 32, K = 8, E = 128 };
    const int32_t cols = (keys + BACKEND_BLOCK_TOKENS - 1) / BACKEND_BLOCK_TOKENS;
    const int32_t count = slots * rows;
    const struct kv_spec spec = {1, K, E, 0, slots * cols, dtype, 0};
    char what[64];
    (void)snprintf(what, sizeof what, "attend %d x %d rows, %d keys, %s", slots, rows, keys,
                   dtype_name(dtype));
    if (!is_wanted(what) || backend->ops->kv_bytes(&spec) > span || count > (int32_t)(span >> 18))
        return;
    int32_t kv_of[H], *host = calloc((size_t)(2 * count + slots * cols), sizeof *host);
    int32_t *slot = host, *position = host + count, *table = host + 2 * count;
    double pairs = 0;
    CHECK(host != NULL);
    for (int32_t i = 0; i < H; i++)
        kv_of[i] = i / (H / K);
    for (int32_t i = 0; i < slots * cols; i++)
        table[i] = i;
    for (int32_t i = 0; i < count; i++) {
        slot[i] = i / rows;
        position[i] = keys - rows + i % rows;
        pairs += position[i] + 1;
    }
    const size_t n = (size_t)count, bytes = backend->ops->kv_bytes(&spec);
    const struct types types = types_of(count);
    void *storage = array(bytes);
    struct attending a = {
        .heads = {.heads = H, .kv_heads = K, .head_dim = E, .kv_of = uploaded(kv_of, sizeof kv_of)},
        .how = {.scale = 1.0f / sqrtf(E)},
        .rows = {count, uploaded(slot, n * 4), uploaded(position, n * 4),
                 uploaded(table, (size_t)(slots * cols) * 4), cols, rows == 1,
                 rows == 1 ? 0 : count, 0},
        .kv = backend->ops->kv_open(backend, &spec, storage),
        .qkv = rows_of(types.out, count, (H + 2 * K) * E),
        .out = rows_of(types.in, count, H * E),
    };
    row(what, rates_best(backend, attend_once, &a, 8), (double)bytes, pairs * H * E * 4);
    backend->ops->kv_close(a.kv);
    const void *const all[] = {storage,      a.heads.kv_of, a.rows.slot, a.rows.position,
                               a.rows.table, a.qkv.data,    a.out.data};
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        drop(all[i]);
    free(host);
}

/* ---- what moves few bytes ---- */

struct rowwise {
    struct view x, y, delta, gu;
    const float *gain;
};

static void norm_once(void *arg)
{
    struct rowwise *r = arg;
    struct err err;
    rates_must(backend_add_rmsnorm(backend, r->y, r->x, cview_of(r->delta), r->gain, 1e-5f, &err),
               &err);
}

static void silu_once(void *arg)
{
    struct rowwise *r = arg;
    struct err err;
    rates_must(backend_act_mul(backend, r->y, cview_of(r->gu), ACT_SILU, &err), &err);
}

static void rowwise(int32_t rows)
{
    enum { D = 4096 };
    const struct types t = types_of(rows);
    const double n = (double)rows * D, in = (double)dtype_size(t.in),
                 out = (double)dtype_size(t.out);
    struct rowwise r = {rows_of(DTYPE_F32, rows, D), rows_of(t.in, rows, D),
                        rows_of(t.out, rows, D), rows_of(t.out, rows, 2 * D), array(D * 4)};
    char what[64];
    (void)snprintf(what, sizeof what, "add and norm, %d rows of %d", rows, D);
    if (is_wanted(what))
        row(what, rates_best(backend, norm_once, &r, 64), n * (8 + in + out), 0);
    (void)snprintf(what, sizeof what, "silu and multiply, %d rows of %d", rows, D);
    if (is_wanted(what))
        row(what, rates_best(backend, silu_once, &r, 64), n * (in + 2 * out), 0);
    drop(r.x.data);
    drop(r.y.data);
    drop(r.delta.data);
    drop(r.gu.data);
    drop(r.gain);
}

enum { V = 128256, SAMPLED = 64 };

struct sampling {
    int32_t *ids;
    struct cview logits;
    struct sample_rows rows;
    struct sample_slots slots;
};

static void sample_once(void *arg)
{
    struct sampling *s = arg;
    struct err err;
    rates_must(backend_sample(backend, s->ids, s->logits, &s->rows, &s->slots, &err), &err);
}

/* Nearly of a normal distribution with this deviation: each is 12 uniform numbers, summed. */
static void *logits_of(float deviation)
{
    enum { PIECE = 1 << 16 };
    static float x[PIECE];
    const size_t n = (size_t)SAMPLED * V;
    float *p = backend->ops->alloc(backend, n * sizeof *x);
    CHECK(p != NULL);
    for (size_t at = 0, left; at < n; at += left) {
        left = n - at < PIECE ? n - at : PIECE;
        for (size_t i = 0; i < left; i++) {
            uint64_t sum = 0;
            for (size_t word = 0; word < 3; word++) {
                const uint64_t bits = numerics_mix(3 * (at + i) + word);
                sum +=
                    (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48);
            }
            x[i] = ((float)sum * 0x1p-16f - 6) * deviation;
        }
        backend->ops->upload(backend, p + at, x, left * sizeof *x);
    }
    return p;
}

/* deviation 0: flat logits, most of them within 0.01; outlier: and one per row far below. */
static void sampling(const char *what, struct sample_params params, float deviation, bool outlier)
{
    static const float far = -40;
    struct sample_params p[SAMPLED];
    struct sample_rules rules[SAMPLED];
    int32_t slot[SAMPLED], zero[SAMPLED] = {0}, none[SAMPLED];
    struct err err;
    if (!is_wanted(what))
        return;
    for (int32_t i = 0; i < SAMPLED; i++) {
        p[i] = params;
        rules[i] = (struct sample_rules){.repetition = 1};
        slot[i] = i;
        none[i] = -1;
    }
    rates_must(backend_reserve(backend, SAMPLED, 0, V, &err), &err);
    float *logits = deviation > 0 ? logits_of(deviation) : array((size_t)SAMPLED * V * 4);
    for (size_t i = 0; outlier && i < SAMPLED; i++)
        backend->ops->upload(backend, logits + i * V, &far, sizeof far);
    struct sampling s = {
        .ids = array(sizeof slot),
        .logits = {logits, DTYPE_F32, SAMPLED, V},
        .rows = {uploaded(slot, sizeof slot), uploaded(zero, sizeof zero),
                 uploaded(none, sizeof none), NULL},
        .slots = {.params = uploaded(p, sizeof p),
                  .rules = uploaded(rules, sizeof rules),
                  .history = array(sizeof slot),
                  .history_cols = 1},
    };
    row(what, rates_best(backend, sample_once, &s, 8), (double)SAMPLED * V * 4, 0);
    const void *const all[] = {s.ids,         s.logits.data,  s.rows.slot,   s.rows.position,
                               s.rows.target, s.slots.params, s.slots.rules, s.slots.history};
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        drop(all[i]);
}

int main(int argc, char **argv)
{
    static const int32_t rows[] = {1, 2, 4, 8, 16, 32, 64, 512, 4096};
    static const struct held types[] = {{.dtype = DTYPE_BF16},
                                        {.dtype = DTYPE_F16},
                                        {.dtype = DTYPE_F8_E4M3},
                                        {DTYPE_F8_E4M3, 128, false},
                                        {DTYPE_F4_E2M1, BACKEND_GROUP, false},
                                        {DTYPE_I8, BACKEND_GROUP, false},
                                        {DTYPE_I4, BACKEND_GROUP, false},
                                        {DTYPE_U4, BACKEND_GROUP, true}};
    struct err err;
    double most = 0;
    if (argc > 2)
        span = (size_t)strtoul(argv[2], NULL, 10) << 20;
    parts = argv + (argc > 3 ? 3 : argc);
    rates_must(backend_open(argc > 1 ? argv[1] : "cuda", 1, &backend, &err), &err);
    printf("| %s | time | bytes | of the copy | operations |\n| --- | --- | --- | --- | --- |\n",
           backend->ops->name);
    copying();
    for (size_t i = 0; i < ARRAY_LEN(rows) && (size_t)rows[i] <= span >> 18; i++) {
        for (size_t t = 0; t < ARRAY_LEN(types); t++) {
            const double wide = linear(&types[t], rows[i], 4096, 14336);
            const double deep = linear(&types[t], rows[i], 14336, 4096);
            const double rate = wide > deep ? wide : deep;
            most = types[t].dtype == DTYPE_BF16 && rate > most ? rate : most;
        }
    }
    fastest = most;
    for (int narrow = 0; narrow < 2; narrow++) {
        const enum dtype kv = narrow ? DTYPE_F8_E4M3 : DTYPE_BF16;
        attention(1, 1, 1024, kv);
        attention(64, 1, 1024, kv);
        attention(1, 1, 8192, kv);
        attention(64, 1, 4096, kv);
        attention(1, 512, 1024, kv);
        attention(1, 4096, 8192, kv);
    }
    rowwise(1);
    rowwise(64);
    rowwise(least(8192, (int32_t)(span >> 18)));
    const struct sample_params nucleus = {0.8f, 0.9f, 0, 0, 1, 0}, greedy = {0, 1, 0, 0, 1, 0};
    sampling("sample greedy, 64 rows of 128256", greedy, 4, false);
    sampling("sample top-p 0.9, 64 rows", nucleus, 4, false);
    sampling("sample top-p 0.9, 64 flat rows", nucleus, 0, false);
    sampling("sample top-p 0.9, 64 flat rows but for one id", nucleus, 0, true);
    backend_close(backend);
    return 0;
}
