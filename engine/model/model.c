/* DESIGN: model_forward reads like the model. The residual stream x is replicated; n is the normed
 * input of the next linear; every addition to x is fused with the norm that follows it. Buffers are
 * carved from one allocation at model_open. */
#include "engine/model/model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct layer {
    struct parallel_weight qkv, o, gate_up, down;
    const float *attn_norm, *mlp_norm;
};

struct model {
    const struct model_config *config;
    struct backend *b;
    struct parallel *parallel;
    struct kv_cache *kv;
    struct heads heads; /* local */
    int32_t mlp;        /* local F */
    int32_t rows_max, samples_max;
    _Atomic uint64_t *progress;

    struct parallel_weight embed, head;
    const float *final_norm;
    struct layer *layers;

    void *memory;     /* on the device: all of the following */
    int32_t *kv_of;   /* [H] */
    float *inv_freq;  /* [E/2] */
    float *rope;      /* [T, E] */
    float *n;         /* [T, D] normed input */
    float *qkv;       /* [T, (H + 2K) E] */
    float *attn;      /* [T, H E] */
    float *gu;        /* [T, 2F] */
    float *act;       /* [T, F] */
    float *sampled;   /* [R, D] */
    float *x, *delta; /* [T, D] in communicator buffers */
};

size_t model_comm_bytes(const struct model_config *m, int32_t rows_max, int32_t samples_max)
{
    return parallel_arena_bytes(rows_max, m->hidden, samples_max, m->vocab);
}

/* Inverse frequencies as transformers computes them (modeling_rope_utils: default and llama3), in
 * fp32 steps, so that long positions round the same way. */
static void rope_frequencies(const struct model_config *m, float *inv_freq)
{
    const struct rope_config *r = &m->rope;
    const double pi = 3.14159265358979323846;
    for (int32_t i = 0; i < m->head_dim / 2; i++) {
        float exponent = (float)(2 * i) / (float)m->head_dim;
        float f = 1.0f / (float)pow(r->theta, (double)exponent);
        if (r->kind == ROPE_LLAMA3) {
            double original = r->original_max_position, wavelength = 2 * pi / (double)f;
            if (wavelength > original / r->low_freq_factor) {
                f = (float)((double)f / r->factor);
            } else if (wavelength >= original / r->high_freq_factor) {
                double smooth = (original / wavelength - r->low_freq_factor) /
                                (r->high_freq_factor - r->low_freq_factor);
                f = (float)((1 - smooth) * (double)f / r->factor + smooth * (double)f);
            }
        }
        inv_freq[i] = f;
    }
}

/* Gives out 64-byte aligned pieces; counts only while base is NULL. */
struct carver {
    char *base;
    size_t used;
};

static float *carve(struct carver *c, int64_t rows, int64_t cols)
{
    float *at = c->base ? (float *)(void *)(c->base + c->used) : NULL;
    c->used += base_align((size_t)(rows * cols) * sizeof(float), 64);
    return at;
}

static size_t carve_all(struct model *m, const struct model_config *cfg, char *base)
{
    struct carver c = {base, 0};
    const int64_t t = m->rows_max, e = cfg->head_dim;
    m->kv_of = (int32_t *)(void *)carve(&c, 1, m->heads.heads);
    m->inv_freq = carve(&c, 1, e / 2);
    m->rope = carve(&c, t, e);
    m->n = carve(&c, t, cfg->hidden);
    m->qkv = carve(&c, t, (m->heads.heads + 2 * (int64_t)m->heads.kv_heads) * e);
    m->attn = carve(&c, t, m->heads.heads * e);
    m->gu = carve(&c, t, 2 * (int64_t)m->mlp);
    m->act = carve(&c, t, m->mlp);
    m->sampled = carve(&c, m->samples_max, cfg->hidden);
    return c.used;
}

static int32_t max32(int32_t a, int32_t b)
{
    return a > b ? a : b;
}

/* Scratch of the backend for the largest product, so that no step allocates. */
static enum status reserve(const struct model *m, struct err *err)
{
    const struct model_config *c = m->config;
    const int32_t heads = m->heads.heads, kv = m->heads.kv_heads, e = m->heads.head_dim;
    int32_t in = max32(max32(c->hidden, heads * e), m->mlp);
    int32_t out = max32(max32(c->hidden, (heads + 2 * kv) * e), max32(2 * m->mlp, c->vocab));
    return backend_reserve(m->b, m->rows_max, in, out, err);
}

/* The constants of the model, to the device. */
static enum status upload_constants(struct model *m, const struct layout *l, struct err *err)
{
    const size_t half = (size_t)m->config->head_dim / 2;
    float *inv_freq = calloc(half, sizeof *inv_freq);
    if (!inv_freq)
        return base_fail(err, ERR_NOMEM, "model: no memory for %zu frequencies", half);
    rope_frequencies(m->config, inv_freq);
    m->b->ops->upload(m->b, m->inv_freq, inv_freq, half * sizeof *inv_freq);
    free(inv_freq);
    m->b->ops->upload(m->b, m->kv_of, l->kv_of, (size_t)m->heads.heads * sizeof *l->kv_of);
    m->heads.kv_of = m->kv_of;
    return OK;
}

static void set_sizes(struct model *m, const struct model_config *cfg, const struct layout *l,
                      int32_t rows_max, int32_t samples_max)
{
    m->heads = (struct heads){(int32_t)span_len(l->heads), (int32_t)span_len(l->kv_heads),
                              cfg->head_dim, NULL};
    m->mlp = (int32_t)span_len(l->mlp);
    m->rows_max = rows_max;
    m->samples_max = samples_max;
}

size_t model_activation_bytes(const struct model_config *m, const struct layout *l,
                              int32_t rows_max, int32_t samples_max)
{
    struct model sizes = {0};
    set_sizes(&sizes, m, l, rows_max, samples_max);
    return carve_all(&sizes, m, NULL);
}

static struct parallel_weight linear_of(const struct model_parts *p, enum role role, int32_t layer)
{
    int32_t i = layout_find(p->layout, role, layer);
    CHECK(i >= 0);
    return (struct parallel_weight){p->weights->linear[i], p->layout->choices[i].style};
}

static const float *vector_of(const struct model_parts *p, enum role role, int32_t layer)
{
    int32_t i = layout_find(p->layout, role, layer);
    CHECK(i >= 0);
    return p->weights->vector[i];
}

static void bind_weights(struct model *m, const struct model_parts *p)
{
    m->embed = linear_of(p, ROLE_EMBED, -1);
    m->head = m->config->tied ? m->embed : linear_of(p, ROLE_HEAD, -1);
    m->final_norm = vector_of(p, ROLE_FINAL_NORM, -1);
    for (int32_t i = 0; i < m->config->layers; i++) {
        m->layers[i] = (struct layer){
            .attn_norm = vector_of(p, ROLE_ATTN_NORM, i),
            .qkv = linear_of(p, ROLE_QKV, i),
            .o = linear_of(p, ROLE_O, i),
            .mlp_norm = vector_of(p, ROLE_MLP_NORM, i),
            .gate_up = linear_of(p, ROLE_GATE_UP, i),
            .down = linear_of(p, ROLE_DOWN, i),
        };
    }
}

enum status model_open(const struct model_parts *parts, struct model **out, struct err *err)
{
    enum status st = OK;
    const struct model_config *cfg = parts->config;
    struct model *m = calloc(1, sizeof *m);
    if (!m)
        return base_fail(err, ERR_NOMEM, "model: no memory");
    m->config = cfg;
    m->b = parts->backend;
    m->kv = parts->kv;
    m->progress = parts->progress;
    set_sizes(m, cfg, parts->layout, parts->rows_max, parts->samples_max);
    size_t bytes = carve_all(m, cfg, NULL);
    m->memory = m->b->ops->alloc(m->b, bytes);
    m->layers = calloc((size_t)cfg->layers, sizeof *m->layers);
    if (!m->memory || !m->layers) {
        st = base_fail(err, ERR_NOMEM, "model: no memory for %zu bytes of activations", bytes);
        goto out;
    }
    carve_all(m, cfg, m->memory);
    TRY(upload_constants(m, parts->layout, err));
    TRY(reserve(m, err));
    TRY(parallel_open(m->b, parts->comm, m->rows_max, cfg->hidden, m->samples_max, cfg->vocab,
                      &m->parallel, err));
    m->x = parallel_buffer(m->parallel);
    m->delta = parallel_buffer(m->parallel);
    if (!m->x || !m->delta) {
        st = base_fail(err, ERR_LIMIT, "model: the communicator's arena is too small");
        goto out;
    }
    bind_weights(m, parts);
    *out = m;
    m = NULL;
out:
    model_close(m);
    return st;
}

void model_close(struct model *m)
{
    if (!m)
        return;
    parallel_close(m->parallel);
    free(m->layers);
    if (m->memory)
        m->b->ops->free(m->b, m->memory);
    free(m);
}

struct parallel *model_parallel(struct model *m)
{
    return m->parallel;
}

/* The activations of one step, as views of its T rows. */
struct activations {
    struct view x, n, delta, rope, qkv, attn, gu, act;
};

static struct activations activations_of(struct model *m, int32_t rows)
{
    const int32_t e = m->heads.head_dim, h = m->heads.heads, k = m->heads.kv_heads;
    const int32_t d = m->config->hidden;
    return (struct activations){
        .x = view_f32(m->x, rows, d),
        .n = view_f32(m->n, rows, d),
        .delta = view_f32(m->delta, rows, d),
        .rope = view_f32(m->rope, rows, e),
        .qkv = view_f32(m->qkv, rows, (h + 2 * k) * e),
        .attn = view_f32(m->attn, rows, h * e),
        .gu = view_f32(m->gu, rows, 2 * m->mlp),
        .act = view_f32(m->act, rows, m->mlp),
    };
}

/* In: a->n = attention norm of a->x. Out: a->n = `next` norm of a->x after the layer. */
static enum status layer_forward(struct model *m, int32_t index, const struct rows *rows,
                                 const struct activations *a, const float *next, struct err *err)
{
    enum status st = OK;
    const struct layer *l = &m->layers[index];
    const float eps = m->config->norm_eps;

    TRY(parallel_linear(m->parallel, a->qkv, cview_of(a->n), l->qkv, err));
    TRY(backend_rope_kv(m->b, a->qkv, cview_of(a->rope), &m->heads, rows, m->kv, index, err));
    TRY(backend_attend(m->b, a->attn, cview_of(a->qkv), &m->heads, rows, m->kv, index, err));
    TRY(parallel_linear(m->parallel, a->delta, cview_of(a->attn), l->o, err));
    TRY(backend_add_rmsnorm(m->b, a->n, a->x, cview_of(a->delta), l->mlp_norm, eps, err));

    TRY(parallel_linear(m->parallel, a->gu, cview_of(a->n), l->gate_up, err));
    TRY(backend_silu_mul(m->b, a->act, cview_of(a->gu), err));
    TRY(parallel_linear(m->parallel, a->delta, cview_of(a->act), l->down, err));
    TRY(backend_add_rmsnorm(m->b, a->n, a->x, cview_of(a->delta), next, eps, err));
out:
    return st;
}

enum status model_forward(struct model *m, const struct model_input *in, struct cview *logits,
                          struct err *err)
{
    enum status st = OK;
    const struct model_config *cfg = m->config;
    const struct activations a = activations_of(m, in->rows.count);

    TRY(backend_rope_table(m->b, a.rope, in->rows.position, m->inv_freq, err));
    TRY(parallel_embed(m->parallel, a.x, in->ids, m->embed, err));
    TRY(backend_rmsnorm(m->b, a.n, cview_of(a.x), m->layers[0].attn_norm, cfg->norm_eps, err));
    for (int32_t i = 0; i < cfg->layers; i++) {
        const float *next = i + 1 < cfg->layers ? m->layers[i + 1].attn_norm : m->final_norm;
        TRY(layer_forward(m, i, &in->rows, &a, next, err));
        if (m->progress)
            atomic_fetch_add_explicit(m->progress, 1, memory_order_relaxed);
    }
    *logits = (struct cview){NULL, DTYPE_F32, 0, 0};
    if (in->samples > 0) {
        struct view sampled = view_f32(m->sampled, in->samples, cfg->hidden);
        TRY(backend_select(m->b, sampled, cview_of(a.n), in->sample, err));
        TRY(parallel_head(m->parallel, cview_of(sampled), m->head, logits, err));
    }
out:
    return st;
}
