/* DESIGN: one work item is one row and one local KV head; the query heads that read it share every
 * load, at most CPU_HEADS at a time. With latents, where all heads of a model read the same one, an
 * item is one row and up to CPU_LATENT_HEADS query heads, or CPU_HEADS where that leaves threads
 * idle: a lane each costs less, but a thread for each few of them is sooner done. Where threads
 * are idle and a row is long, one item is one segment of it, and the merges follow. Keys are
 * reduced in ascending segments of 256 positions whatever the rows and threads: scores, maximum,
 * exp, sum and weighted values of the segment; then it is merged into the running state (M, L, O)
 * in this order of operations: m' = max(M, m), a = exp(M - m'), b = exp(m - m'), L = fma(L, a, l *
 * b), O = fma(O, a, o * b) The first segment initialises the state; the result is O / L, the sink
 * added to L. Positions beyond the row's, or before its window, are never part of it: their score
 * is -inf before the maximum and their values are not read. */
#include "kernels/cpu/cpu.h"
#include "kernels/numerics.h"

#include <math.h>
#include <string.h>

#define SEGMENT_BLOCKS (BACKEND_SEGMENT / BACKEND_BLOCK_TOKENS)

struct job {
    const struct cpu_isa *isa;
    const struct kv_cache *kv;
    const struct heads *heads;
    const struct attention *how;
    const struct rows *rows;
    float *qkv; /* rope_kv */
    const struct qkv_rules *rules;
    const float *table; /* [rows, rotary] */
    int32_t rotary;
    const float *q; /* attend */
    float *out;
    int32_t layer, cols; /* cols of qkv */
    int32_t group;       /* with latents: query heads of an item */
    float *parts;        /* few long rows: [rows, heads] parts of the wave of keys `from` .. */
    int32_t from;        /* counted from each row's first segment */
};

/* ---- rope and store -------------------------------------------------------------------------- */

/* n elements, each `step` bytes after the one before. */
static void scatter(unsigned char *dst, size_t step, const unsigned char *src, size_t size,
                    int32_t n)
{
    if (size == 1)
        for (int32_t i = 0; i < n; i++)
            dst[(size_t)i * step] = src[i];
    else if (size == 2)
        for (int32_t i = 0; i < n; i++)
            memcpy(dst + (size_t)i * step, src + 2 * (size_t)i, 2);
    else
        for (int32_t i = 0; i < n; i++)
            memcpy(dst + (size_t)i * step, src + 4 * (size_t)i, 4);
}

static void store_row(const struct job *j, const float *k, const float *v, int32_t block,
                      int32_t lane)
{
    const struct kv_spec *spec = &j->kv->spec;
    const int32_t dim = spec->head_dim;
    const size_t size = dtype_size(spec->dtype);
    ALIGNED64 unsigned char line[BACKEND_KEY_DIM_MAX * sizeof(float)];
    for (int32_t h = 0; h < spec->heads; h++, k += dim, v += dim) {
        unsigned char *keys = layout_kv_block(j->kv, j->layer, block, h);
        unsigned char *values = keys + layout_kv_values(spec);
        j->isa->convert(line, spec->dtype, k, DTYPE_F32, dim);
        scatter(keys + (size_t)lane * size, BACKEND_BLOCK_TOKENS * size, line, size, dim);
        if (spec->latent > 0)
            continue;
        j->isa->convert(values + (size_t)lane * (size_t)layout_kv_dim(spec) * size, spec->dtype, v,
                        DTYPE_F32, dim);
    }
}

static void apply_rules(const struct job *j, float *row)
{
    const struct qkv_rules *r = j->rules;
    const int32_t dim = j->heads->head_dim, keys = j->heads->heads;
    const int32_t kv = backend_kv_given(j->heads), values = keys + kv;
    const int32_t sides = j->heads->latent > 0 ? 1 : 2;
    if (r->bias != NULL)
        j->isa->add(row, r->bias, j->cols);
    for (int32_t h = 0; h < keys + sides * kv; h++) {
        float *x = row + (size_t)h * (size_t)dim;
        const float *gain = h < keys ? r->q_norm : h < values ? r->k_norm : r->v_norm;
        if (gain == NULL)
            continue;
        const float mean = j->isa->sum_squares(x, dim) / (float)dim;
        j->isa->norm(x, x, gain, 1.0f / sqrtf(mean + r->eps), dim);
    }
}

/* Neighbours as halves and back, so that there is one rotation. */
static void rotate_pairs(const struct job *j, float *head, const float *cos_sin)
{
    const int32_t half = j->rotary / 2;
    float halves[BACKEND_KEY_DIM_MAX];
    for (int32_t i = 0; i < half; i++) {
        halves[i] = head[2 * i];
        halves[half + i] = head[2 * i + 1];
    }
    j->isa->rotate(halves, cos_sin, half);
    for (int32_t i = 0; i < half; i++) {
        head[2 * i] = halves[i];
        head[2 * i + 1] = halves[half + i];
    }
}

static void rotate_row(const struct job *j, float *row, const float *cos_sin)
{
    const int32_t rotated = j->heads->heads + backend_kv_given(j->heads);
    for (int32_t h = 0; h < rotated; h++, row += j->heads->head_dim) {
        if (j->rules->interleaved)
            rotate_pairs(j, row, cos_sin);
        else
            j->isa->rotate(row, cos_sin, j->rotary / 2);
    }
}

static void rope_rows(void *arg, int32_t worker, int64_t begin, int64_t end)
{
    const struct job *j = arg;
    (void)worker;
    const int32_t dim = j->heads->head_dim;
    for (int64_t t = begin; t < end; t++) {
        if (j->rows->slot[t] < 0)
            continue;
        float *row = j->qkv + (size_t)t * (size_t)j->cols;
        apply_rules(j, row);
        if (j->rotary > 0) /* else there may be no table */
            rotate_row(j, row, j->table + (size_t)t * (size_t)j->rotary);
        if (j->heads->alone)
            continue;
        const int32_t position = j->rows->position[t];
        const int32_t *table =
            j->rows->table + (size_t)j->rows->slot[t] * (size_t)j->rows->table_cols;
        const float *k = row + (size_t)j->heads->heads * (size_t)dim;
        store_row(j, k, k + (size_t)j->heads->kv_heads * (size_t)dim,
                  table[position / BACKEND_BLOCK_TOKENS], position % BACKEND_BLOCK_TOKENS);
    }
}

void attend_rope_kv(struct backend *b, struct view qkv, const struct qkv_rules *rules,
                    struct cview table, const struct heads *h, const struct rows *rows,
                    struct kv_cache *kv, int32_t layer)
{
    struct cpu_backend *c = cpu_of(b);
    CHECK(qkv.dtype == DTYPE_F32);
    struct job j = {.isa = c->isa, .kv = kv, .heads = h, .rows = rows, .qkv = qkv.data};
    j.rules = rules;
    j.table = table.data;
    j.rotary = table.cols;
    j.layer = layer;
    j.cols = qkv.cols;
    if (j.cols > 0) /* else there may be no matrix */
        pool_run(c->pool, rows->count, 1 + 8192 / ((int64_t)qkv.cols + 1), rope_rows, &j);
}

/* ---- attention ------------------------------------------------------------------------------- */

/* Some query heads of one row that read the same KV head, and what they make of one segment. */
struct state {
    struct cpu_scores a;
    int32_t head[CPU_LATENT_HEADS];
    const float *q[CPU_LATENT_HEADS];
    float max[CPU_LATENT_HEADS], sum[CPU_LATENT_HEADS];
    ALIGNED64 float s[CPU_LATENT_HEADS][BACKEND_SEGMENT];
    ALIGNED64 float o[CPU_LATENT_HEADS][BACKEND_HEAD_DIM_MAX];
};

/* What one head makes of one segment, or of all so far. */
struct part {
    float *o; /* [backend_value_dim] */
    float max, sum;
};

/* The first key that a row sees, and the segment it lies in. */
static int32_t first_key(const struct job *j, int32_t row)
{
    const int32_t keys = j->rows->position[row] + 1, window = j->how->window;
    return window > 0 && keys > window ? keys - window : 0;
}

static int32_t first_segment(const struct job *j, int32_t row)
{
    return first_key(j, row) / BACKEND_SEGMENT * BACKEND_SEGMENT;
}

/* Scores of the segment's keys, those that the row does not see left out. */
static void score_segment(const struct job *j, struct state *s)
{
    j->isa->scores(&s->a);
    for (int32_t h = 0; h < s->a.heads; h++) {
        if (j->how->softcap > 0)
            j->isa->softcap(s->s[h], j->how->softcap, s->a.keys);
        for (int32_t i = 0; i < s->a.skip; i++)
            s->s[h][i] = -INFINITY;
    }
}

/* Keys [segment, segment + BACKEND_SEGMENT) of the row, as far as it sees them, from the block of
 * the first on: maximum, exponentials, their sum and the weighted values of each head. */
static void reduce_segment(const struct job *j, struct state *s, int32_t row, int32_t kv_head,
                           int32_t segment)
{
    const struct kv_spec *spec = &j->kv->spec;
    const int32_t first = first_key(j, row) > segment ? first_key(j, row) : segment;
    const int32_t from = first / BACKEND_BLOCK_TOKENS * BACKEND_BLOCK_TOKENS;
    const int32_t keys = j->rows->position[row] + 1 - from, most = segment + BACKEND_SEGMENT - from;
    const int32_t *table =
        j->rows->table + (size_t)j->rows->slot[row] * (size_t)j->rows->table_cols;
    const unsigned char *k[SEGMENT_BLOCKS], *v[SEGMENT_BLOCKS];
    s->a.keys = keys < most ? keys : most;
    s->a.skip = first - from;
    const int32_t blocks = (s->a.keys + BACKEND_BLOCK_TOKENS - 1) / BACKEND_BLOCK_TOKENS;
    for (int32_t i = 0; i < blocks; i++) {
        k[i] = layout_kv_block(j->kv, j->layer, table[from / BACKEND_BLOCK_TOKENS + i], kv_head);
        v[i] = k[i] + layout_kv_values(spec);
    }
    s->a.blocks = k;
    s->a.dim = spec->head_dim;
    score_segment(j, s);
    for (int32_t h = 0; h < s->a.heads; h++)
        s->sum[h] = j->isa->softmax(s->s[h], s->a.keys, &s->max[h]);
    s->a.blocks = v;
    s->a.dim = spec->latent > 0 ? spec->latent : layout_kv_dim(spec);
    (spec->latent > 0 ? j->isa->weigh_latents : j->isa->weigh)(&s->a);
}

/* all = `more` after all the segments before it. */
static void merge(const struct cpu_isa *isa, struct part *all, struct part more, bool first,
                  int32_t dim)
{
    if (first) {
        memcpy(all->o, more.o, (size_t)dim * sizeof *all->o);
        all->max = more.max;
        all->sum = more.sum;
        return;
    }
    const float both = all->max > more.max ? all->max : more.max;
    const float a = numerics_exp(all->max - both), b = numerics_exp(more.max - both);
    all->sum = fmaf(all->sum, a, more.sum * b);
    all->max = both;
    isa->merge(all->o, more.o, a, b, dim);
}

/* The result of one row and head, of all its segments. */
static void finish(const struct job *j, int32_t row, int32_t head, struct part all)
{
    const int32_t dim = backend_value_dim(j->heads);
    const float *sink = j->how->sink;
    float *out = j->out + ((size_t)row * (size_t)j->heads->heads + (size_t)head) * (size_t)dim;
    j->isa->divide(out, all.o, sink ? numerics_sink(all.sum, all.max, sink[head]) : all.sum, dim);
}

/* Into how many sets the work of a row is cut: KV heads, or groups of query heads. */
static int32_t set_count(const struct job *j)
{
    return j->group > 0 ? (j->heads->heads + j->group - 1) / j->group : j->heads->kv_heads;
}

/* What of a set is still to be done. */
struct cursor {
    int32_t kv_head, kv_end;
    int32_t head, begin, end; /* query heads, those of the set that read kv_head from `head` on */
};

static struct cursor cursor_of(const struct job *j, int32_t set)
{
    if (j->group == 0)
        return (struct cursor){set, set + 1, 0, 0, j->heads->heads};
    const int32_t begin = set * j->group;
    const int32_t end = base_min32(begin + j->group, j->heads->heads);
    return (struct cursor){0, j->heads->kv_heads, begin, begin, end};
}

/* The next heads that read the same KV head; false when there are none. */
static bool next_heads(const struct job *j, struct state *s, int32_t row, struct cursor *c)
{
    const int32_t dim = j->heads->head_dim, most = j->group > 0 ? j->group : CPU_HEADS;
    const float *q = j->q + (size_t)row * (size_t)j->cols;
    s->a = (struct cpu_scores){.s = s->s[0], .o = s->o[0], .q = s->q, .scale = j->how->scale};
    s->a.dtype = j->kv->spec.dtype;
    for (; c->kv_head < c->kv_end; c->kv_head++, c->head = c->begin) {
        for (; c->head < c->end && s->a.heads < most; c->head++)
            if (j->heads->kv_of[c->head] == c->kv_head) {
                s->head[s->a.heads] = c->head;
                s->q[s->a.heads++] = q + (size_t)(c->head * dim);
            }
        if (s->a.heads > 0)
            return true;
    }
    return false;
}

static void attend_item(const struct job *j, int32_t row, int32_t set)
{
    const int32_t dim = backend_value_dim(j->heads), keys = j->rows->position[row] + 1;
    const int32_t first = first_segment(j, row);
    ALIGNED64 float o[CPU_LATENT_HEADS][BACKEND_HEAD_DIM_MAX];
    struct part all[CPU_LATENT_HEADS];
    struct state s;
    for (int32_t h = 0; h < CPU_LATENT_HEADS; h++)
        all[h] = (struct part){.o = o[h]};
    for (struct cursor c = cursor_of(j, set); next_heads(j, &s, row, &c);) {
        for (int32_t from = first; from < keys; from += BACKEND_SEGMENT) {
            reduce_segment(j, &s, row, c.kv_head, from);
            for (int32_t h = 0; h < s.a.heads; h++)
                merge(j->isa, &all[h], (struct part){s.o[h], s.max[h], s.sum[h]}, from == first,
                      dim);
        }
        for (int32_t h = 0; h < s.a.heads; h++)
            finish(j, row, s.head[h], all[h]);
    }
}

static void attend_items(void *arg, int32_t worker, int64_t begin, int64_t end)
{
    const struct job *j = arg;
    (void)worker;
    for (int64_t i = begin; i < end; i++) { /* rows of one set in turn: they share its cache */
        const int32_t row = (int32_t)(i % j->rows->count);
        if (j->rows->slot[row] >= 0)
            attend_item(j, row, (int32_t)(i / j->rows->count));
    }
}

/* ---- few long rows --------------------------------------------------------------------------- */

#define WAVE 8             /* segments of a row reduced between two rounds of merges, */
#define WAVE_KEYS_MIN 1024 /* where the longest row has so many keys */

/* Floats of a part, and of all parts of one head of one row: the running one, then the wave's. */
static size_t part_floats(int32_t dim)
{
    return (size_t)dim + 2;
}

static size_t wave_floats(int32_t dim)
{
    return (1 + WAVE) * part_floats(dim);
}

/* Part `i` of a head: 0 is the running one. */
static float *part_of(const struct job *j, int64_t row_head, int32_t i)
{
    const int32_t dim = backend_value_dim(j->heads);
    return j->parts + (size_t)row_head * wave_floats(dim) + (size_t)i * part_floats(dim);
}

static void wave_reduce(void *arg, int32_t worker, int64_t begin, int64_t end)
{
    const struct job *j = arg;
    const int32_t dim = backend_value_dim(j->heads), rows = j->rows->count;
    struct state s;
    (void)worker;
    for (int64_t n = begin; n < end; n++) {
        const int32_t i = (int32_t)(n % WAVE), row = (int32_t)(n / WAVE % rows);
        const int32_t set = (int32_t)(n / WAVE / rows);
        if (j->rows->slot[row] < 0)
            continue;
        const int32_t from = first_segment(j, row) + j->from + i * BACKEND_SEGMENT;
        if (from > j->rows->position[row])
            continue;
        for (struct cursor c = cursor_of(j, set); next_heads(j, &s, row, &c);) {
            reduce_segment(j, &s, row, c.kv_head, from);
            for (int32_t h = 0; h < s.a.heads; h++) {
                float *part = part_of(j, (int64_t)row * j->heads->heads + s.head[h], 1 + i);
                memcpy(part, s.o[h], (size_t)dim * sizeof *part);
                part[dim] = s.max[h];
                part[dim + 1] = s.sum[h];
            }
        }
    }
}

static void wave_merge(void *arg, int32_t worker, int64_t begin, int64_t end)
{
    const struct job *j = arg;
    const int32_t dim = backend_value_dim(j->heads);
    (void)worker;
    for (int64_t n = begin; n < end; n++) {
        const int32_t row = (int32_t)(n / j->heads->heads), head = (int32_t)(n % j->heads->heads);
        const int32_t position = j->rows->position[row];
        float *running = part_of(j, n, 0);
        struct part all = {running, running[dim], running[dim + 1]};
        if (j->rows->slot[row] < 0)
            continue;
        const int32_t first = first_segment(j, row);
        if (first + j->from > position)
            continue;
        for (int32_t i = 0, from = first + j->from; i < WAVE && from <= position; i++) {
            float *part = part_of(j, n, 1 + i);
            merge(j->isa, &all, (struct part){part, part[dim], part[dim + 1]}, from == first, dim);
            from += BACKEND_SEGMENT;
        }
        running[dim] = all.max;
        running[dim + 1] = all.sum;
        finish(j, row, head, all); /* the last wave's stays */
    }
}

/* Most keys that a row sees, in whole segments from the first on, when its segments shall be shared
 * out; 0: there are items for all threads, or no scratch was reserved that is large enough. */
static int32_t split_keys(const struct cpu_backend *c, const struct job *j)
{
    const int32_t rows = j->rows->count;
    const size_t parts = (size_t)rows * (size_t)j->heads->heads;
    int32_t most = 0;
    if ((int64_t)rows * set_count(j) >= pool_threads(c->pool) ||
        parts * wave_floats(backend_value_dim(j->heads)) > c->packed_floats)
        return 0;
    for (int32_t t = 0; t < rows; t++) {
        if (j->rows->slot[t] < 0)
            continue;
        const int32_t keys = j->rows->position[t] + 1 - first_segment(j, t);
        most = keys > most ? keys : most;
    }
    return most >= WAVE_KEYS_MIN ? most : 0;
}

void attend_run(struct backend *b, struct view out, struct cview qkv, const struct heads *h,
                const struct attention *how, const struct rows *rows, const struct kv_cache *kv,
                int32_t layer)
{
    struct cpu_backend *c = cpu_of(b);
    const size_t row_bytes = (size_t)out.cols * sizeof(float);
    CHECK(out.dtype == DTYPE_F32 && qkv.dtype == DTYPE_F32);
    for (int32_t t = 0; t < rows->count; t++)
        if (rows->slot[t] < 0)
            memset((unsigned char *)out.data + (size_t)t * row_bytes, 0, row_bytes);
    struct job j = {.isa = c->isa, .kv = kv, .heads = h, .rows = rows, .q = qkv.data};
    j.how = how;
    j.out = out.data;
    j.layer = layer;
    j.cols = qkv.cols;
    j.group = h->latent > 0 ? CPU_LATENT_HEADS : 0;
    const int32_t keys = split_keys(c, &j);
    if (keys == 0 && j.group > 0 && (int64_t)rows->count * set_count(&j) < pool_threads(c->pool))
        j.group = CPU_HEADS;
    const int64_t items = (int64_t)rows->count * set_count(&j);
    j.parts = c->packed;
    for (; j.from < keys; j.from += WAVE * BACKEND_SEGMENT) {
        pool_run(c->pool, items * WAVE, 1, wave_reduce, &j);
        pool_run(c->pool, (int64_t)rows->count * h->heads, 1, wave_merge, &j);
    }
    if (keys == 0)
        pool_run(c->pool, items, 1, attend_items, &j);
}
