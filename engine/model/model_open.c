/* Opening a model: its memory and its constants, what it needs of both, and what it remembers of
 * sequences. The forward pass is model.c's. */
#include "engine/model/model_state.h"

#include "engine/carve.h"
#include "engine/model/rope.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Do layers that slide turn otherwise? */
static bool has_local_rope(const struct model_config *cfg)
{
    return model_config_kinds(cfg) > 1 ||
           (cfg->window > 0 && memcmp(&cfg->rope, &cfg->local_rope, sizeof cfg->rope) != 0);
}

static struct rotation carve_rotation(struct carver *c, int64_t rows, int32_t dim)
{
    return (struct rotation){carve_floats(c, 1, dim / 2), carve_floats(c, rows, dim)};
}

static size_t carve_all(struct model *m, const struct model_config *cfg, const struct flow *f,
                        int32_t rank, char *base)
{
    struct carver c = {base, 0};
    const int64_t rows = flow_home_rows(f, m->rows_max);
    for (int32_t i = 0; i < model_config_kinds(cfg); i++)
        m->kv_of[i] = carve(&c, 1, m->heads[0].heads, sizeof *m->kv_of[i]);
    m->rope = carve_rotation(&c, rows, model_rotary_dim(cfg, false));
    if (has_local_rope(cfg))
        m->local_rope = carve_rotation(&c, rows, model_rotary_dim(cfg, true));
    if (cfg->value_norm)
        m->ones = carve_floats(&c, 1, BACKEND_HEAD_DIM_MAX);
    const int64_t x = (int64_t)parallel_rest_size(f, rank, m->rows_max);
    if (parallel_narrows(f, cfg)) {
        m->few.x = carve_floats(&c, m->samples_max, cfg->hidden);
        m->few.taken = carve_floats(&c, m->samples_max, (int64_t)cfg->layers * cfg->inputs.dim);
        m->few.slot = carve(&c, 1, m->samples_max, sizeof(int32_t));
        m->few.position = carve(&c, 1, m->samples_max, sizeof(int32_t));
        m->few.all = carve(&c, 1, m->samples_max, sizeof(int32_t));
    }
    if (cfg->inputs.dim > 0) {
        m->half_root = carve_floats(&c, 1, 1);
        m->taken = carve_floats(&c, x / cfg->hidden, (int64_t)cfg->layers * cfg->inputs.dim);
    }
    const int64_t heads = m->heads[0].heads, key = heads > 0 ? cfg->head_dim : 0;
    if (cfg->latent.value > 0) {
        m->latent.query = carve_floats(&c, rows, cfg->latent.query);
        m->latent.qkv = carve_floats(&c, rows, heads * cfg->head_dim + key);
        m->latent.values = carve_floats(&c, rows, heads * cfg->latent.value);
    }
    const struct recurrent_heads *r = &m->recurrent;
    const int64_t gates = cfg->attention_gate ? heads * cfg->head_dim : 0;
    m->gates = carve_floats(&c, rows, gates > 2 * r->values ? gates : 2 * r->values);
    m->states = carve_floats(&c, model_config_recurring(cfg),
                             (int64_t)((size_t)m->places * model_state_size(r)));
    m->x = carve_floats(&c, 1, x);
    return c.used;
}

/* Sizes of the largest product, for which the backend reserves scratch: then no step allocates. */
static void largest(const struct model_config *m, const struct flow *f, int32_t rank, int32_t *in,
                    int32_t *out)
{
    *in = 0;
    *out = m->vocab;
    for (size_t i = 0; i <= FLOW_LINEARS; i++) {
        const struct weight_spec w =
            flow_weight(f, i < FLOW_LINEARS ? flow_linears[i] : PLAN_HEAD, rank);
        *in = base_max32(*in, w.in);
        *out = base_max32(*out, w.out);
    }
}

static enum status reserve(const struct model *m, const struct layout *l, struct err *err)
{
    int32_t in, out;
    largest(m->config, l->flow, l->rank, &in, &out);
    return backend_reserve(m->b, m->rows_max, in, out, err);
}

/* Of heads' own matrices. */
static size_t head_bytes(const struct flow *f, int32_t rank, int32_t rows_max)
{
    const int32_t heads = flow_heads(f, rank), rows = flow_home_rows(f, rows_max);
    const struct weight_spec keys = flow_head_weight(f, true), values = flow_head_weight(f, false);
    if (f->latent.value == 0 || heads == 0)
        return 0;
    return base_max_size(f->ops->experts_bytes(&keys, heads, 0, rows),
                         f->ops->experts_bytes(&values, heads, 0, rows));
}

static size_t experts_bytes(const struct model_config *m, const struct flow *f, int32_t rank,
                            int32_t rows_max)
{
    const struct mixture_config *x = &m->mixture;
    const struct weight_spec gate_up = flow_weight(f, PLAN_GATE_UP, rank);
    const struct weight_spec down = flow_weight(f, PLAN_DOWN, rank);
    if (x->kind == MIXTURE_NONE)
        return 0;
    const int32_t experts = mixture_experts(x), chosen = mixture_chosen(x);
    const size_t first = f->ops->experts_bytes(&gate_up, experts, chosen, rows_max);
    const size_t second = f->ops->experts_bytes(&down, experts, chosen, rows_max);
    return first > second ? first : second;
}

size_t model_scratch_bytes(const struct model_config *m, const struct flow *f, int32_t rank,
                           int32_t rows_max)
{
    int32_t in, out;
    largest(m, f, rank, &in, &out);
    return f->ops->scratch_bytes(rows_max, in, out) +
           base_max_size(experts_bytes(m, f, rank, rows_max), head_bytes(f, rank, rows_max));
}

static enum status upload_rotation(struct model *m, const struct rope_config *cfg, int32_t dim,
                                   const struct rotation *r, struct err *err)
{
    const size_t half = (size_t)dim / 2;
    float *inv_freq = calloc(half, sizeof *inv_freq);
    if (!inv_freq)
        return base_fail(err, ERR_NOMEM, "model: no memory for %zu frequencies", half);
    rope_frequencies(cfg, dim, m->context, inv_freq);
    m->b->ops->upload(m->b, r->inv_freq, inv_freq, half * sizeof *inv_freq);
    free(inv_freq);
    return OK;
}

/* 0, 1, 2, ...: which of the sampled rows are sampled. */
static enum status upload_numbers(struct model *m, struct err *err)
{
    int32_t *all = calloc((size_t)m->samples_max, sizeof *all);
    if (!all)
        return base_fail(err, ERR_NOMEM, "model: no memory for %d numbers", (int)m->samples_max);
    for (int32_t i = 0; i < m->samples_max; i++)
        all[i] = i;
    m->b->ops->upload(m->b, m->few.all, all, (size_t)m->samples_max * sizeof *all);
    free(all);
    return OK;
}

/* Uploads the constants of the model. */
static enum status upload_constants(struct model *m, const struct layout *l, struct err *err)
{
    enum status st = OK;
    const struct model_config *cfg = m->config;
    float ones[BACKEND_HEAD_DIM_MAX];
    for (size_t i = 0; i < ARRAY_LEN(ones); i++)
        ones[i] = 1;
    TRY(upload_rotation(m, &cfg->rope, model_rotary_dim(cfg, false), &m->rope, err));
    if (m->local_rope.table)
        TRY(upload_rotation(m, &cfg->local_rope, model_rotary_dim(cfg, true), &m->local_rope, err));
    const float half_root = sqrtf(0.5f);
    if (m->ones)
        m->b->ops->upload(m->b, m->ones, ones, sizeof ones);
    if (m->few.all)
        TRY(upload_numbers(m, err));
    if (m->half_root)
        m->b->ops->upload(m->b, m->half_root, &half_root, sizeof half_root);
    for (int32_t i = 0; i < model_config_kinds(cfg); i++) {
        m->b->ops->upload(m->b, m->kv_of[i], l->kv_of[i],
                          (size_t)m->heads[i].heads * sizeof *l->kv_of[i]);
        m->heads[i].kv_of = m->kv_of[i];
        m->sharing[i] = m->heads[i];
        m->sharing[i].alone = true;
    }
out:
    return st;
}

size_t model_comm_bytes(const struct flow *f, int32_t rows_max, int32_t samples_max)
{
    return parallel_arena_bytes(f, rows_max, samples_max);
}

size_t model_state_bytes(const struct model_config *m, const struct flow *f, int32_t rank)
{
    const struct recurrent_heads h = layout_recurrent_heads(m, f, rank);
    return (size_t)model_config_recurring(m) * model_state_size(&h) * sizeof(float);
}

size_t model_activation_bytes(const struct model_config *m, const struct flow *f, int32_t rank,
                              const struct model_sizes *sizes)
{
    const int32_t heads = (int32_t)span_len(layout_heads(m, f, rank));
    struct model model = {.rows_max = sizes->rows,
                          .samples_max = sizes->samples,
                          .places = sizes->places,
                          .heads = {{.heads = heads}},
                          .recurrent = layout_recurrent_heads(m, f, rank)};
    return carve_all(&model, m, f, rank, NULL) +
           parallel_local_bytes(f, rank, sizes->rows, sizes->samples);
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
    memcpy(m->kv, parts->kv, sizeof m->kv);
    m->groups = parts->groups;
    CHECK(kv_groups_count(&m->groups) <= KV_GROUPS_MAX);
    m->progress = parts->progress;
    m->activation = cfg->mixture.kind == MIXTURE_GPT_OSS ? ACT_SWIGLU_PAIRS
                    : cfg->gelu                          ? ACT_GELU_TANH
                                                         : ACT_SILU;
    m->rows_max = parts->rows_max;
    m->samples_max = parts->samples_max;
    m->places = parts->places;
    m->context = parts->context;
    m->query_beta = m->context > cfg->rope.original_max_position ? (float)cfg->rope.query_beta : 0;
    const struct layout *l = parts->layout;
    for (int32_t i = 0; i < model_config_kinds(cfg); i++)
        m->heads[i] = (struct heads){.heads = (int32_t)span_len(l->heads),
                                     .kv_heads = (int32_t)span_len(l->kv_heads[i]),
                                     .head_dim = model_config_shape(cfg, i).head_dim,
                                     .latent = cfg->latent.value};
    m->recurrent = layout_recurrent_heads(cfg, l->flow, l->rank);
    size_t bytes = carve_all(m, cfg, l->flow, l->rank, NULL);
    m->memory = m->b->ops->alloc(m->b, bytes);
    m->layers = calloc((size_t)cfg->layers, sizeof *m->layers);
    if (!m->memory || !m->layers) {
        st = base_fail(err, ERR_NOMEM, "model: no memory for %zu bytes of activations", bytes);
        goto out;
    }
    carve_all(m, cfg, l->flow, l->rank, m->memory);
    TRY(upload_constants(m, l, err));
    TRY(reserve(m, l, err));
    TRY(parallel_open(l->flow, m->b, parts->comm, parts->axis_stats, m->rows_max,
                      parts->samples_max, &m->parallel, err));
    TRY(model_bind(m, parts, err));
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
    for (int32_t i = 0; m->layers && i < m->config->layers; i++) {
        struct layer *l = &m->layers[i];
        parallel_weight_close(&l->qkv);
        parallel_weight_close(&l->latent.down);
        m->b->ops->experts_close(l->latent.key_up);
        m->b->ops->experts_close(l->latent.value_up);
        parallel_weight_close(&l->gate);
        parallel_weight_close(&l->o);
        parallel_weight_close(&l->gate_up);
        parallel_weight_close(&l->down);
        m->b->ops->experts_close(l->mixture.gate_up);
        m->b->ops->experts_close(l->mixture.down);
    }
    parallel_close(m->parallel);
    free(m->layers);
    if (m->memory)
        m->b->ops->free(m->b, m->memory);
    free(m);
}

void *model_states(const struct model *m, size_t *bytes)
{
    const size_t each = (size_t)m->places * model_state_size(&m->recurrent);
    *bytes = (size_t)model_config_recurring(m->config) * each * sizeof *m->states;
    return m->states;
}

/* The same part of the states of two slots, in all layers. */
static void copy_states(struct model *m, float *first, size_t size, int32_t slot, int32_t from)
{
    const size_t stride = (size_t)m->places * model_state_size(&m->recurrent);
    if (size > 0)
        m->b->ops->copy(m->b, first + (size_t)slot * size, stride, first + (size_t)from * size,
                        stride, model_config_recurring(m->config), (int32_t)size);
}

void model_recall(struct model *m, int32_t slot, int32_t from)
{
    const size_t matrix = model_matrix_size(&m->recurrent);
    copy_states(m, m->states, matrix, slot, from);
    copy_states(m, m->states + (size_t)m->places * matrix, model_rows_size(&m->recurrent), slot,
                from);
}

struct parallel *model_parallel(struct model *m)
{
    return m->parallel;
}
