/* DESIGN: what attention over latents wants of a device, against ref and, of rows that are alone,
 * against themselves among others, to the bit: keys whose ends are their values, products of heads,
 * norms of latents, and experts of the best groups. The cache has NaN wherever nothing is stored.
 */
#include "tests/made_weight.h"
#include "tests/only.h"

#define ROWS_MAX 40
#define HEADS_MAX 128

/* ref against the device, in both ways of working. */
static void compare(const char *what, case_fn fn, const void *arg, size_t n, double abs, double eps)
{
    char where[200];
    float *want = guarded(n);
    fn(ref, arg, want);
    for (int i = subject_count + 1; nth_backend(i) != NULL; i++) {
        float *got = guarded(n);
        snprintf(where, sizeof where, "%.150s, %s", what, nth_backend(i)->ops->name);
        fn(nth_backend(i), arg, got);
        assert_near(where, got, want, n, abs, eps);
        guarded_free(got, n);
    }
    guarded_free(want, n);
}

/* ref has fp32 alone. */
static enum dtype type_of(const struct backend *b, enum dtype dtype)
{
    return b == ref ? DTYPE_F32 : dtype;
}

/* ---- attention ---- */

/* Rows of a step, in order, ends with slot -2. Padding: slot -1. */
struct step_row {
    int32_t slot, position;
};

struct attend_case {
    int32_t heads, kv_heads, dim, latent;
    enum dtype kv, qkv, out;
    const struct step_row *rows;
    int32_t window;
    float softcap;
    bool sink, bias, norm, interleaved, apart, by_one;
    int32_t head, tail, rotary; /* rotary 0: all that may turn; -1: nothing */
};

static const struct step_row ends[] = {{0, 0}, {1, 15}, {2, 16}, {-1, 0}, {3, 17}, {-2, 0}};
static const struct step_row splits[] = {{0, 255}, {1, 256}, {-1, 0}, {2, 257},
                                         {3, 127}, {4, 128}, {5, 3},  {-2, 0}};
static const struct step_row longer[] = {{0, 1000}, {1, 300}, {2, 47}, {-2, 0}};
static const struct step_row longest[] = {{0, 4500}, {-2, 0}};
static const struct step_row one[] = {{0, 600}, {-2, 0}};
static const struct step_row many[] = {
    {0, 31},  {1, 32}, {2, 140},  {3, 259}, {4, 500},  {-1, 0},   {5, 100},  {6, 1}, {7, 128},
    {8, 400}, {9, 2},  {10, 200}, {11, 95}, {12, 513}, {13, 288}, {14, 639}, {-2, 0}};
/* Chunks of prompts around a decode. */
static const struct step_row prompts[] = {{0, 14},  {0, 15},  {0, 16},  {0, 17},  {1, 300},
                                          {-1, 0},  {2, 254}, {2, 255}, {2, 256}, {2, 257},
                                          {2, 258}, {2, 259}, {2, 260}, {-2, 0}};

struct scene {
    const struct attend_case *c;
    int32_t slot[ROWS_MAX], position[ROWS_MAX], kv_of[HEADS_MAX], rows, slots, cols, width, out;
    int32_t *table;
    float *angles, *bias, *gain, *sinks;
    struct kv_spec spec;
    struct rows step;
    struct heads heads;
    struct attention how;
};

static void scene_open(struct scene *s, const struct attend_case *c)
{
    int32_t most = 0;
    *s = (struct scene){.c = c, .width = (c->heads + c->kv_heads) * c->dim};
    for (; c->rows[s->rows].slot != -2; s->rows++) {
        const struct step_row r = c->rows[s->rows];
        s->slot[s->rows] = r.slot;
        s->position[s->rows] = r.slot < 0 ? 1 << 30 : r.position;
        s->slots = r.slot >= s->slots ? r.slot + 1 : s->slots;
        most = r.position > most ? r.position : most;
    }
    s->cols = most / BACKEND_BLOCK_TOKENS + 1;
    s->table = guarded((size_t)(s->slots * s->cols));
    for (int32_t i = 0; i < s->slots * s->cols; i++) /* backwards, so scattered */
        s->table[i] = s->slots * s->cols - 1 - i;
    for (int32_t h = 0; h < c->heads; h++) /* uneven groups */
        s->kv_of[h] = h == 0 ? 0 : (h - 1) * c->kv_heads / c->heads;
    s->angles = generated(52, (size_t)(s->rows * c->dim));
    s->bias = generated(53, (size_t)s->width);
    s->gain = generated(54, (size_t)(2 * c->dim));
    s->sinks = generated(55, HEADS_MAX);
    s->spec = (struct kv_spec){.layers = 2,
                               .heads = c->kv_heads,
                               .head_dim = c->dim,
                               .latent = c->latent,
                               .blocks = s->slots * s->cols,
                               .dtype = c->kv};
    s->step =
        (struct rows){s->rows, s->slot, s->position, s->table, s->cols, c->apart, c->head, c->tail};
    s->heads = (struct heads){c->heads, c->kv_heads, c->dim, s->kv_of, c->latent, false};
    s->out = c->heads * backend_value_dim(&s->heads);
    s->how = (struct attention){4 / sqrtf((float)c->dim), c->softcap, c->window,
                                c->sink ? s->sinks : NULL};
}

static void scene_close(struct scene *s)
{
    guarded_free(s->table, (size_t)(s->slots * s->cols));
    guarded_free(s->angles, (size_t)(s->rows * s->c->dim));
    guarded_free(s->bias, (size_t)s->width);
    guarded_free(s->gain, (size_t)(2 * s->c->dim));
    guarded_free(s->sinks, HEADS_MAX);
}

/* Stores the keys of all positions before the first of each slot in the step. */
static void fill(struct backend *b, const struct scene *s, struct kv_cache *kv)
{
    static const struct qkv_rules nothing;
    const struct heads none = {0, s->c->kv_heads, s->c->dim, s->kv_of, s->c->latent, false};
    const int32_t cols = s->c->kv_heads * s->c->dim;
    for (int32_t t = 0; t < s->rows; t++) {
        const bool first = t == 0 || s->slot[t] != s->slot[t - 1];
        const int32_t n = s->slot[t] >= 0 && first ? s->position[t] : 0;
        float *qkv = generated((uint64_t)(60 + t), (size_t)(n * cols + 1));
        int32_t *slot = guarded((size_t)(2 * n + 1)), *position = slot + n;
        for (int32_t p = 0; p < n; p++) {
            slot[p] = s->slot[t];
            position[p] = p;
        }
        const struct rows rows = {n, slot, position, s->table, s->cols, false, 0, 0};
        const struct cview table = {s->angles, DTYPE_F32, n, 0};
        if (n > 0)
            ok(backend_rope_kv(b, view_f32(qkv, n, cols), &nothing, table, &none, &rows, kv, 1,
                               &err));
        guarded_free(qkv, (size_t)(n * cols + 1));
        guarded_free(slot, (size_t)(2 * n + 1));
    }
}

/* The rows alone have the bits that they have in the step, whatever they are beside there. */
static void attend_alone(struct backend *b, const struct scene *s, const struct kv_cache *kv,
                         const unsigned char *qkv, const unsigned char *out)
{
    const size_t q_bytes = (size_t)s->width * dtype_size(type_of(b, s->c->qkv));
    const size_t y_bytes = (size_t)s->out * dtype_size(type_of(b, s->c->out));
    unsigned char *y = aligned_bytes(y_bytes, 0x5a);
    for (int32_t t = 0; t < s->rows; t++) {
        const struct rows row = {1, s->slot + t, s->position + t, s->table, s->cols, t % 2 == 0, 0,
                                 0};
        const struct cview q = {qkv + (size_t)t * q_bytes, type_of(b, s->c->qkv), 1, s->width};
        ok(backend_attend(b, (struct view){y, type_of(b, s->c->out), 1, s->out}, q, &s->heads,
                          &s->how, &row, kv, 1, &err));
        assert_bits("row alone", y, out + (size_t)t * y_bytes, y_bytes / 4);
    }
    free(y);
}

/* Results, then q as it has turned. */
static void attend_case(struct backend *b, const void *arg, float *out)
{
    const struct attend_case *c = arg;
    struct scene s;
    scene_open(&s, c);
    const size_t n = (size_t)(s.rows * s.width), outs = (size_t)(s.rows * s.out);
    const int32_t rotary = c->rotary > 0 ? c->rotary : c->rotary < 0 ? 0 : c->dim - c->latent;
    void *storage = aligned_bytes(b->ops->kv_bytes(&s.spec), 0xff);
    struct kv_cache *kv = must(b->ops->kv_open(b, &s.spec, storage));
    void *data = aligned_bytes(n * 4, 0), *results = aligned_bytes(outs * 4, 0x5a);
    float *given = generated(51, n);
    for (size_t i = 0; i < n; i++) {
        dtype_store(data, c->qkv, i, given[i]);
        given[i] = dtype_load(data, c->qkv, i);
    }
    for (size_t i = 0; i < n; i++)
        dtype_store(data, type_of(b, c->qkv), i, given[i]);
    const struct view qkv = {data, type_of(b, c->qkv), s.rows, s.width},
                      y = {results, type_of(b, c->out), s.rows, s.out};
    const struct cview table = {s.angles, DTYPE_F32, s.rows, rotary};
    const struct qkv_rules rules = {c->bias ? s.bias : NULL,
                                    c->norm ? s.gain : NULL,
                                    c->norm ? s.gain + c->dim : NULL,
                                    NULL,
                                    1e-5f,
                                    c->interleaved};
    fill(b, &s, kv);
    if (c->by_one) {
        ok(backend_rope_attend(b, y, qkv, &rules, table, &s.heads, &s.how, &s.step, kv, 1, &err));
    } else {
        ok(backend_rope_kv(b, qkv, &rules, table, &s.heads, &s.step, kv, 1, &err));
        ok(backend_attend(b, y, cview_of(qkv), &s.heads, &s.how, &s.step, kv, 1, &err));
        if (b != ref)
            attend_alone(b, &s, kv, data, results);
    }
    for (size_t i = 0; i < outs; i++)
        out[i] = dtype_load(results, type_of(b, c->out), i);
    for (size_t i = 0; i < n; i++)
        out[outs + i] = c->by_one ? 0 : dtype_load(data, type_of(b, c->qkv), i);
    b->ops->kv_close(kv);
    free(storage);
    free(data);
    free(results);
    guarded_free(given, n);
    scene_close(&s);
}

static void check_attend(const struct attend_case *c)
{
    char what[200];
    struct scene s;
    scene_open(&s, c);
    snprintf(what, sizeof what, "%d/%d heads of %d/%d from %d, %s of %s to %s%s%s%s%s, window %d",
             c->heads, c->kv_heads, c->dim, c->latent, c->rows[0].position, dtype_name(c->kv),
             dtype_name(c->qkv), dtype_name(c->out), c->bias ? ", bias" : "",
             c->norm ? ", norm" : "", c->sink ? ", sinks" : "",
             c->interleaved ? ", interleaved" : "", c->window);
    const size_t n = (size_t)s.rows * (size_t)(s.out + s.width);
    scene_close(&s);
    /* Narrow keys: a last-bit difference of a rotated key may round to the other neighbour. */
    const bool narrow = c->qkv != DTYPE_F32 || c->out != DTYPE_F32;
    const double abs = c->kv == DTYPE_F32 ? 3e-6 : 2e-3;
    compare(what, attend_case, c, n, abs, narrow ? 0x1p-7 : 2e-6);
}

#define F32 DTYPE_F32
#define F16 DTYPE_F16
#define BF16 DTYPE_BF16
#define F8 DTYPE_F8_E4M3

static void check_all(const struct attend_case *cases, size_t count)
{
    for (size_t i = 0; i < count; i++)
        check_attend(&cases[i]);
}

static void test_decodes(void **state UNUSED)
{
    static const struct attend_case cases[] = {
        {1, 1, 48, 32, BF16, F32, F32, ends, .apart = true},
        {2, 1, 48, 32, F16, F32, F32, ends, .apart = true, .interleaved = true},
        {5, 1, 48, 32, F8, F32, F32, .rows = ends},
        {5, 1, 48, 32, F32, F32, F32, ends, .apart = true},
        {16, 1, 48, 32, BF16, BF16, BF16, splits, .apart = true},
        {20, 1, 48, 32, F16, F32, F16, splits, .apart = true},
        {20, 1, 48, 32, F8, BF16, F32, .rows = splits},
        {3, 1, 48, 32, F32, F32, F32, splits, .apart = true, .interleaved = true},
        {128, 1, 48, 32, BF16, F32, F32, splits, .apart = true},
        {2, 1, 48, 32, F8, F32, F32, longer, .apart = true},
        {33, 1, 48, 32, F16, F32, F32, longer, .apart = true},
        {1, 1, 48, 32, F32, F32, F32, longer, .apart = true},
        {2, 1, 48, 32, BF16, F32, F32, longest, .apart = true},
        {1, 1, 576, 512, BF16, F32, F32, ends, .apart = true, .interleaved = true},
        {16, 1, 576, 512, BF16, BF16, BF16, splits, .apart = true},
        {16, 1, 576, 512, F16, F32, F32, one, .apart = true},
        {20, 1, 576, 512, F8, F32, F32, one, .apart = true},
        {128, 1, 576, 512, BF16, F32, F32, one, .apart = true},
        {5, 1, 576, 512, F32, F32, F32, one, .apart = true},
        {2, 1, 576, 512, F8, BF16, F32, longer, .apart = true}};
    check_all(cases, ARRAY_LEN(cases));
}

/* Sizes in between, what takes the kernel without tensor cores, KV heads of some heads each, or of
 * none. */
static void test_shapes(void **state UNUSED)
{
    static const struct attend_case cases[] = {
        {3, 1, 576, 496, BF16, F32, F32, ends, .apart = true},
        {3, 1, 528, 512, F8, BF16, F16, .rows = ends},
        {6, 1, 288, 256, BF16, F32, F32, splits, .apart = true},
        {40, 2, 48, 32, BF16, F32, F32, ends, .apart = true},
        {9, 3, 64, 48, F8, F32, F32, .rows = splits},
        {7, 2, 80, 16, F16, F32, F32, splits, .apart = true},
        {3, 5, 48, 32, F32, F32, F32, .rows = ends},
        {0, 1, 48, 32, BF16, F32, F32, .rows = ends},
        {4, 1, 48, 32, BF16, F32, F32, ends, .rotary = -1},
        {4, 1, 48, 32, BF16, F32, F32, ends, .rotary = 8, .interleaved = true},
        {4, 1, 48, 32, F16, BF16, F32, ends, .rotary = 6},
        {4, 1, 48, 32, BF16, F32, F32, ends, .bias = true, .norm = true},
        {4, 2, 96, 64, F32, F32, F32, ends, .norm = true, .interleaved = true},
        {4, 1, 48, 32, BF16, F32, F32, ends, .apart = true, .by_one = true},
        {4, 1, 144, 128, F8, BF16, F32, ends, .apart = true, .by_one = true}};
    check_all(cases, ARRAY_LEN(cases));
}

static void test_rules(void **state UNUSED)
{
    static const struct attend_case cases[] = {
        {5, 1, 48, 32, BF16, F32, F32, splits, 1, .apart = true},
        {5, 1, 48, 32, F8, F32, F32, splits, 17, 2, .apart = true},
        {18, 1, 48, 32, F16, F32, F32, longer, 250, .sink = true},
        {5, 1, 48, 32, F32, F32, F32, longer, 130, 3, .sink = true},
        {128, 1, 48, 32, BF16, F32, F32, splits, .sink = true},
        {2, 1, 576, 512, BF16, F32, F32, splits, 140, 4, .sink = true, .apart = true}};
    check_all(cases, ARRAY_LEN(cases));
}

/* Chunks, among which a decode is; and so many rows that few of them have places. */
static void test_many(void **state UNUSED)
{
    static const struct attend_case cases[] = {
        {5, 1, 48, 32, BF16, F32, F32, prompts, .head = 4, .tail = 7},
        {16, 1, 48, 32, F8, BF16, BF16, prompts, .head = 4, .tail = 7, .interleaved = true},
        {3, 1, 48, 32, F32, F32, F32, prompts, 20, .head = 4, .tail = 7},
        {70, 1, 48, 32, F16, F32, F32, prompts, .head = 4},
        {16, 1, 576, 512, BF16, F32, F32, prompts, .head = 4, .tail = 7},
        {20, 1, 48, 32, BF16, F32, F32, many, .apart = true},
        {128, 1, 48, 32, F8, F32, F32, many, .apart = true},
        {40, 1, 48, 32, F32, F32, F32, .rows = many},
        {100, 1, 272, 256, BF16, F32, F32, many, .sink = true}};
    check_all(cases, ARRAY_LEN(cases));
}

/* ---- products of heads ---- */

struct product_case {
    int32_t rows, heads, in, out, kept;
    enum dtype weight, y;
    int32_t more; /* columns of y that stay as they are */
};

struct product {
    const struct product_case *c;
    struct experts *experts;
    const struct weight *weight[HEADS_MAX];
    void *storage[HEADS_MAX];
};

static void multiply(struct backend *b, const struct product *p, const float *x, int32_t first,
                     int32_t rows, void *y)
{
    const struct product_case *c = p->c;
    const int32_t cols = c->heads * (c->in + c->kept),
                  y_cols = c->heads * (c->kept + c->out) + c->more;
    const struct cview from = {x + (ptrdiff_t)first * cols, F32, rows, cols};
    ok(backend_head_linear(b, (struct view){y, type_of(b, c->y), rows, y_cols}, from, p->experts,
                           c->kept, &err));
}

static void product_case(struct backend *b, const void *arg, float *out)
{
    const struct product_case *c = arg;
    const struct weight_spec spec = {
        .out = c->out, .in = c->in, .dtype = c->weight, .leaves = 1, .cut = {0, c->in}};
    const size_t row = (size_t)(c->heads * (c->kept + c->out) + c->more);
    const size_t n = (size_t)c->rows * row, bytes = row * dtype_size(type_of(b, c->y));
    const size_t words = (size_t)c->rows * (size_t)(c->heads * (c->in + c->kept));
    struct product p = {.c = c};
    for (int32_t h = 0; h < c->heads; h++)
        p.weight[h] = made(b, &spec, 200 + (uint64_t)h, c->weight, 0, &p.storage[h]);
    ok(backend_experts_open(b, p.weight, c->heads, 0, c->rows, &p.experts, &err));
    float *x = generated(3, words);
    unsigned char *y = aligned_bytes(n * 4, 0x3a), *alone = aligned_bytes(n * 4, 0x3a);
    multiply(b, &p, x, 0, c->rows, y);
    for (int32_t t = 0; t < c->rows; t += 1 + c->rows / 3) { /* the same bits */
        unsigned char *at = alone + (size_t)t * bytes;
        multiply(b, &p, x, t, 1, at);
        if (memcmp(at, y + (size_t)t * bytes, bytes) != 0)
            fail_msg("row %d of %d has other bits alone", t, c->rows);
    }
    for (size_t i = 0; i < n; i++)
        out[i] = dtype_load(y, type_of(b, c->y), i);
    b->ops->experts_close(p.experts);
    for (int32_t h = 0; h < c->heads; h++) {
        b->ops->weight_close((struct weight *)(uintptr_t)p.weight[h]);
        free(p.storage[h]);
    }
    free(y);
    free(alone);
    guarded_free(x, words);
}

static void test_products(void **state UNUSED)
{
    static const struct product_case cases[] = {
        {1, 1, 16, 16, 0, BF16, .y = F32},     {2, 2, 128, 512, 64, BF16, F32, 576},
        {5, 3, 512, 128, 0, BF16, .y = BF16},  {16, 2, 192, 128, 16, F16, F32, 7},
        {17, 2, 128, 512, 64, BF16, .y = F32}, {64, 1, 128, 128, 16, F32, F32, 3},
        {17, 5, 512, 16, 0, F16, .y = F16},    {64, 2, 16, 512, 64, F16, BF16, 80},
        {5, 16, 128, 16, 64, F32, .y = F32},   {2, 128, 16, 16, 16, BF16, F32, 16},
        {1, 20, 192, 128, 0, F32, .y = BF16},  {17, 2, 20, 33, 3, BF16, F32, 1},
        {3, 2, 37, 30, 5, F32, .y = F32},      {40, 3, 77, 31, 0, F16, .y = F16},
        {3, 2, 0, 16, 16, BF16, .y = F32},     {3, 2, 16, 0, 16, BF16, .y = F32},
        {0, 2, 16, 16, 0, BF16, .y = F32},     {33, 2, 512, 128, 0, BF16, .y = BF16}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const struct product_case *c = &cases[i];
        char what[120];
        snprintf(what, sizeof what, "%d rows, %d heads, %d to %d, %d kept, %s to %s", c->rows,
                 c->heads, c->in, c->out, c->kept, dtype_name(c->weight), dtype_name(c->y));
        const double exact = 1e-6 + 6e-8 * c->in;
        compare(what, product_case, c,
                (size_t)c->rows * (size_t)(c->heads * (c->kept + c->out) + c->more),
                device_bound(1, c->in, c->weight, exact),
                c->y == F32   ? 1e-6
                : c->y == F16 ? 0x1p-11
                              : 0x1p-8);
    }
}

/* ---- norms of latents ---- */

struct norm_case {
    int32_t rows, query, value, turns, heads; /* heads: of queries in front of the key */
};

/* Queries, then rows of qkv; on a device the bits of rmsnorm, too. */
static void norm_case(struct backend *b, const void *arg, float *out)
{
    const struct norm_case *c = arg;
    const int32_t cols = c->query + c->value + c->turns, key = c->value + c->turns;
    const int32_t qkv_cols = (c->heads + 1) * key;
    float *a = generated(71, (size_t)(c->rows * cols));
    float *gain = generated(72, (size_t)(c->query + c->value));
    float *x = guarded((size_t)(c->rows * c->query));
    float *y = out + (ptrdiff_t)c->rows * c->query;
    const struct latent_rules rules = {c->query, c->value, c->turns, gain, gain + c->query, 1e-6f};
    for (int32_t i = 0; i < c->rows * qkv_cols; i++)
        y[i] = 7;
    ok(backend_latent(b, view_f32(out, c->rows, c->query), view_f32(y, c->rows, qkv_cols),
                      (struct cview){a, F32, c->rows, cols}, &rules, &err));
    for (int32_t t = 0; t < c->rows; t++)
        memcpy(x + t * c->query, a + (ptrdiff_t)t * cols, (size_t)c->query * sizeof *x);
    if (b != ref && c->query > 0 && c->rows > 0) {
        float *normed = guarded((size_t)(c->rows * c->query));
        ok(backend_rmsnorm(b, view_f32(normed, c->rows, c->query),
                           (struct cview){x, F32, c->rows, c->query}, gain, 1e-6f, &err));
        assert_bits("rmsnorm", out, normed, (size_t)(c->rows * c->query));
        guarded_free(normed, (size_t)(c->rows * c->query));
    }
    guarded_free(x, (size_t)(c->rows * c->query));
    guarded_free(a, (size_t)(c->rows * cols));
    guarded_free(gain, (size_t)(c->query + c->value));
}

static void test_norms(void **state UNUSED)
{
    static const struct norm_case cases[] = {
        {1, 1536, 512, 64, 2},  {5, 0, 512, 64, 1}, {3, 48, 32, 16, 0},
        {300, 768, 256, 32, 1}, {2, 5, 32, 16, 3},  {4, 0, 33, 7, 1},
        {2, 5000, 48, 6, 0},    {0, 16, 16, 16, 1}, {1, 20000, 16, 0, 0}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const struct norm_case *c = &cases[i];
        char what[80];
        snprintf(what, sizeof what, "latent of %d rows, %d, %d, %d", c->rows, c->query, c->value,
                 c->turns);
        compare(what, norm_case, c,
                (size_t)c->rows * (size_t)(c->query + (c->heads + 1) * (c->value + c->turns)), 1e-6,
                2e-6);
    }
}

/* ---- groups of experts ---- */

struct group_case {
    int32_t rows, experts, chosen, shared, groups, kept;
    bool sigmoid, corrects, ties, not_a_number;
};

static double key_of(const struct group_case *c, const float *logit, const float *more, int32_t e)
{
    return !c->corrects ? (double)logit[e] : 1 / (1 + exp(-(double)logit[e])) + (double)more[e];
}

/* The lowest of the largest that is not taken. */
static int32_t best_of(const double *key, const bool *taken, int32_t n)
{
    int32_t best = -1;
    for (int32_t i = 0; i < n; i++)
        if (!taken[i] && (best < 0 || key[i] > key[best]))
            best = i;
    return best;
}

/* taken[e]: by the words of struct routing_rules. */
static void take_experts(const struct group_case *c, const float *logit, const float *more,
                         bool *taken)
{
    const int32_t n = c->experts - c->shared, each = n / c->groups;
    double key[BACKEND_EXPERTS_MAX], score[BACKEND_EXPERTS_MAX];
    bool kept[BACKEND_EXPERTS_MAX] = {false}, out[BACKEND_EXPERTS_MAX] = {false};
    for (int32_t e = 0; e < n; e++)
        key[e] = key_of(c, logit, more, e);
    for (int32_t g = 0; g < c->groups; g++) {
        bool first[BACKEND_EXPERTS_MAX] = {false};
        const int32_t best = best_of(key + g * each, first, each);
        first[best] = true;
        const int32_t second = c->corrects ? best_of(key + g * each, first, each) : -1;
        score[g] = key[g * each + best] + (second < 0 ? 0 : key[g * each + second]);
    }
    for (int32_t i = 0; i < c->kept; i++)
        kept[best_of(score, kept, c->groups)] = true;
    for (int32_t e = 0; e < n; e++)
        out[e] = !kept[e / each];
    for (int32_t i = c->shared; i < c->chosen; i++) {
        const int32_t best = best_of(key, out, n);
        out[best] = taken[best] = true;
    }
}

static void check_groups(struct backend *b, const struct group_case *c)
{
    const int32_t n = c->experts - c->shared;
    const size_t pairs = (size_t)(c->rows * c->chosen);
    float *logits = generated(81, (size_t)(c->rows * n)), *more = generated(82, (size_t)n);
    float *share = guarded(pairs);
    int32_t *expert = guarded(pairs);
    for (int32_t i = 0; i < c->rows * n; i++)
        logits[i] = c->not_a_number && i % 3 != 1 ? NAN
                    : c->ties                     ? floorf(logits[i] * 2)
                                                  : logits[i] * 5;
    const struct routing_rules rules = {.sigmoid = c->sigmoid,
                                        .among = true,
                                        .scale = 1,
                                        .correction = c->corrects ? more : NULL,
                                        .groups = c->groups,
                                        .kept = c->kept,
                                        .shared = c->shared};
    const struct routing r = {c->experts, c->chosen, expert, share};
    ok(backend_route(b, &r, (struct cview){logits, F32, c->rows, n}, &rules, &err));
    for (int32_t t = 0; t < c->rows; t++) {
        bool taken[BACKEND_EXPERTS_MAX] = {false};
        double sum = 0;
        if (!c->not_a_number)
            take_experts(c, logits + t * n, more, taken);
        for (int32_t i = 0; i < c->chosen; i++) {
            const int32_t e = expert[t * c->chosen + i];
            assert_true(e >= 0 && e < c->experts && (i == 0 || e > expert[t * c->chosen + i - 1]));
            if (!c->not_a_number && taken[e] != (e < n))
                fail_msg("row %d of %d experts in %d groups takes %d", t, n, c->groups, e);
            sum += e < n ? (double)share[t * c->chosen + i] : 0;
        }
        assert_true(c->not_a_number || fabs(sum - 1) < 1e-5);
    }
    guarded_free(logits, (size_t)(c->rows * n));
    guarded_free(more, (size_t)n);
    guarded_free(share, pairs);
    guarded_free(expert, pairs);
}

static void test_groups(void **state UNUSED)
{
    static const struct group_case cases[] = {
        {9, 256, 8, 0, 8, 4, .sigmoid = true, .corrects = true},
        {33, 160, 6, 0, 8, 3, .sigmoid = false},
        {5, 161, 7, 1, 8, 3, .sigmoid = true},
        {7, 64, 4, 0, 1, 1, .corrects = true, .sigmoid = true},
        {6, 64, 4, 0, 64, 4, .corrects = true, .sigmoid = true},
        {6, 72, 8, 0, 36, 5, .sigmoid = false},
        {3, 1024, 20, 0, 128, 3, .corrects = true, .sigmoid = true},
        {40, 48, 6, 0, 6, 2, .ties = true},
        {4, 80, 5, 0, 5, 2, .ties = true, .sigmoid = true},
        {5, 62, 6, 2, 4, 2, .not_a_number = true},
        {5, 64, 6, 0, 8, 2, .not_a_number = true, .corrects = true, .sigmoid = true}};
    for (int i = subject_count + 1; nth_backend(i) != NULL; i++)
        for (size_t k = 0; k < ARRAY_LEN(cases); k++)
            check_groups(nth_backend(i), &cases[k]);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decodes),  cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_rules),    cmocka_unit_test(test_many),
        cmocka_unit_test(test_products), cmocka_unit_test(test_norms),
        cmocka_unit_test(test_groups)};
    only(argc, argv);
    return cmocka_run_group_tests(tests, open_invariant_too, close_subjects);
}
