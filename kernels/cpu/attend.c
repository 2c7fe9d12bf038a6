/* DESIGN: one work item is one row and one local KV head; the query heads that read it share every
 * load, at most CPU_HEADS at a time. Keys are reduced in ascending segments of 256 positions
 * whatever the rows and threads: scores, maximum, exp, sum and weighted values of the segment; then
 * it is merged into the running state (M, L, O) in this order of operations: m' = max(M, m), a =
 * exp(M - m'), b = exp(m - m'), L = fma(L, a, l * b), O = fma(O, a, o * b) The first segment
 * initialises the state; the result is O / L. Positions beyond the row's are never part of it:
 * their score is -inf before the maximum and their values are not read. */
#include "kernels/cpu/cpu.h"
#include "kernels/numerics.h"

#include <string.h>

#define SEGMENT_BLOCKS (BACKEND_SEGMENT / BACKEND_BLOCK_TOKENS)

struct job {
    const struct cpu_isa *isa;
    const struct kv_cache *kv;
    const struct heads *heads;
    const struct rows *rows;
    float *qkv; /* rope_kv */
    const float *table;
    const float *q; /* attend */
    float *out;
    int32_t layer, cols; /* cols of qkv */
};

/* ---- rope and store -------------------------------------------------------------------------- */

/* n elements, each `step` bytes after the one before. */
static void scatter(unsigned char *dst, size_t step, const unsigned char *src, size_t size,
                    int32_t n)
{
    if (size == 2)
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
    ALIGNED64 unsigned char line[BACKEND_HEAD_DIM_MAX * sizeof(float)];
    for (int32_t h = 0; h < spec->heads; h++, k += dim, v += dim) {
        unsigned char *keys = layout_kv_block(j->kv, j->layer, block, h);
        unsigned char *values = keys + layout_kv_half(spec);
        j->isa->convert(line, spec->dtype, k, DTYPE_F32, dim);
        scatter(keys + (size_t)lane * size, BACKEND_BLOCK_TOKENS * size, line, size, dim);
        j->isa->convert(values + (size_t)lane * (size_t)layout_kv_dim(spec) * size, spec->dtype, v,
                        DTYPE_F32, dim);
    }
}

static void rope_rows(void *arg, int32_t worker, int64_t begin, int64_t end)
{
    const struct job *j = arg;
    (void)worker;
    const int32_t dim = j->heads->head_dim, rotated = j->heads->heads + j->heads->kv_heads;
    for (int64_t t = begin; t < end; t++) {
        if (j->rows->slot[t] < 0)
            continue;
        float *row = j->qkv + (size_t)t * (size_t)j->cols;
        for (int32_t h = 0; h < rotated; h++)
            j->isa->rotate(row + (size_t)h * (size_t)dim, j->table + (size_t)t * (size_t)dim,
                           dim / 2);
        const int32_t position = j->rows->position[t];
        const int32_t *table =
            j->rows->table + (size_t)j->rows->slot[t] * (size_t)j->rows->table_cols;
        const float *k = row + (size_t)j->heads->heads * (size_t)dim;
        store_row(j, k, k + (size_t)j->heads->kv_heads * (size_t)dim,
                  table[position / BACKEND_BLOCK_TOKENS], position % BACKEND_BLOCK_TOKENS);
    }
}

void attend_rope_kv(struct backend *b, struct view qkv, struct cview table, const struct heads *h,
                    const struct rows *rows, struct kv_cache *kv, int32_t layer)
{
    struct cpu_backend *c = cpu_of(b);
    struct job j = {.isa = c->isa, .kv = kv, .heads = h, .rows = rows, .qkv = qkv.data};
    j.table = table.data;
    j.layer = layer;
    j.cols = qkv.cols;
    pool_run(c->pool, rows->count, 1 + 8192 / ((int64_t)qkv.cols + 1), rope_rows, &j);
}

/* ---- attention ------------------------------------------------------------------------------- */

/* Query heads of one item that go through the segments together. */
struct state {
    struct cpu_scores a;
    int32_t head[CPU_HEADS];
    float max[CPU_HEADS], sum[CPU_HEADS];
    ALIGNED64 float s[CPU_HEADS][BACKEND_SEGMENT];
    ALIGNED64 float o[CPU_HEADS][BACKEND_HEAD_DIM_MAX];    /* running */
    ALIGNED64 float more[CPU_HEADS][BACKEND_HEAD_DIM_MAX]; /* of this segment */
};

/* Softmax of each head's scores, in place; then the weighted values, merged into the state. */
static void segment_merge(const struct cpu_isa *isa, struct state *s, bool first, int32_t dim)
{
    float max[CPU_HEADS] = {0}, sum[CPU_HEADS] = {0};
    for (int32_t h = 0; h < s->a.heads; h++)
        sum[h] = isa->softmax(s->s[h], s->a.keys, &max[h]);
    s->a.o = first ? s->o[0] : s->more[0];
    isa->weigh(&s->a);
    for (int32_t h = 0; h < s->a.heads; h++) {
        if (first) {
            s->max[h] = max[h];
            s->sum[h] = sum[h];
            continue;
        }
        const float both = s->max[h] > max[h] ? s->max[h] : max[h];
        const float a = numerics_exp(s->max[h] - both), b = numerics_exp(max[h] - both);
        s->sum[h] = fmaf(s->sum[h], a, sum[h] * b);
        s->max[h] = both;
        isa->merge(s->o[h], s->more[h], a, b, dim);
    }
}

static void attend_heads(const struct job *j, struct state *s, int32_t row, int32_t kv_head)
{
    const struct kv_spec *spec = &j->kv->spec;
    const int32_t dim = spec->head_dim, keys = j->rows->position[row] + 1;
    const size_t half = layout_kv_half(spec);
    const int32_t *table =
        j->rows->table + (size_t)j->rows->slot[row] * (size_t)j->rows->table_cols;
    const unsigned char *k[SEGMENT_BLOCKS], *v[SEGMENT_BLOCKS];
    for (int32_t from = 0; from < keys; from += BACKEND_SEGMENT) {
        s->a.keys = keys - from < BACKEND_SEGMENT ? keys - from : BACKEND_SEGMENT;
        const int32_t blocks = (s->a.keys + BACKEND_BLOCK_TOKENS - 1) / BACKEND_BLOCK_TOKENS;
        for (int32_t i = 0; i < blocks; i++) {
            k[i] =
                layout_kv_block(j->kv, j->layer, table[from / BACKEND_BLOCK_TOKENS + i], kv_head);
            v[i] = k[i] + half;
        }
        s->a.blocks = k;
        s->a.dim = dim;
        j->isa->scores(&s->a);
        s->a.blocks = v;
        s->a.dim = layout_kv_dim(spec);
        segment_merge(j->isa, s, from == 0, dim);
    }
    float *out = j->out + (size_t)row * (size_t)(j->heads->heads * dim);
    for (int32_t h = 0; h < s->a.heads; h++)
        j->isa->divide(out + (size_t)(s->head[h] * dim), s->o[h], s->sum[h], dim);
}

static void attend_item(const struct job *j, int32_t row, int32_t kv_head)
{
    const int32_t dim = j->heads->head_dim;
    const float *q = j->q + (size_t)row * (size_t)j->cols;
    struct state s;
    s.a = (struct cpu_scores){.s = s.s[0], .dtype = j->kv->spec.dtype};
    s.a.scale = 1.0f / sqrtf((float)dim);
    for (int32_t h = 0; h < j->heads->heads; h++) {
        if (j->heads->kv_of[h] == kv_head) {
            s.head[s.a.heads] = h;
            s.a.q[s.a.heads++] = q + (size_t)(h * dim);
        }
        if (s.a.heads == CPU_HEADS || (s.a.heads > 0 && h == j->heads->heads - 1)) {
            attend_heads(j, &s, row, kv_head);
            s.a.heads = 0;
        }
    }
}

static void attend_items(void *arg, int32_t worker, int64_t begin, int64_t end)
{
    const struct job *j = arg;
    (void)worker;
    for (int64_t i = begin; i < end; i++) { /* rows of one head in turn: they share its cache */
        const int32_t row = (int32_t)(i % j->rows->count);
        if (j->rows->slot[row] >= 0)
            attend_item(j, row, (int32_t)(i / j->rows->count));
    }
}

void attend_run(struct backend *b, struct view out, struct cview qkv, const struct heads *h,
                const struct rows *rows, const struct kv_cache *kv, int32_t layer)
{
    struct cpu_backend *c = cpu_of(b);
    const size_t row_bytes = (size_t)out.cols * sizeof(float);
    for (int32_t t = 0; t < rows->count; t++)
        if (rows->slot[t] < 0)
            memset((unsigned char *)out.data + (size_t)t * row_bytes, 0, row_bytes);
    struct job j = {.isa = c->isa, .kv = kv, .heads = h, .rows = rows, .q = qkv.data};
    j.out = out.data;
    j.layer = layer;
    j.cols = qkv.cols;
    pool_run(c->pool, (int64_t)rows->count * h->kv_heads, 1, attend_items, &j);
}
