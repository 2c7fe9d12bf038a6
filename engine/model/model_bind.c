/* DESIGN: a layer is what its weights are: what a family does not have is NULL, or not there, and
 * the forward pass leaves it out. */
#include "engine/model/model_state.h"

/* NULL: the family has none. */
static const float *vector_of(const struct model_parts *p, enum role role, int32_t layer)
{
    int32_t i = layout_find(p->layout, role, layer);
    return i >= 0 ? p->weights->vector[i] : NULL;
}

static const struct weight *weight_of(const struct model_parts *p, enum role role, int32_t layer)
{
    int32_t i = layout_find(p->layout, role, layer);
    return i >= 0 ? p->weights->linear[i] : NULL;
}

static enum status bind_linear(struct model *m, const struct model_parts *p, enum role role,
                               int32_t layer, struct parallel_weight *out, struct err *err)
{
    int32_t i = layout_find(p->layout, role, layer);
    CHECK(i >= 0);
    return parallel_weight_open(m->parallel, (enum plan_part)role, p->weights->linear[i], out, err);
}

/* The experts of one of a layer's linears. */
static enum status bind_experts(struct model *m, const struct model_parts *p, enum role role,
                                int32_t layer, struct experts **out, struct err *err)
{
    const struct mixture_config *x = &m->config->mixture;
    const int32_t first = layout_find(p->layout, role, layer);
    CHECK(first >= 0);
    return backend_experts_open(m->b, (const struct weight *const *)&p->weights->linear[first],
                                mixture_experts(x), mixture_chosen(x), m->rows_max, out, err);
}

/* The matrices of this rank's heads. */
static enum status bind_heads(struct model *m, const struct model_parts *p, enum role role,
                              int32_t layer, struct experts **out, struct err *err)
{
    const int32_t rows = flow_home_rows(p->layout->flow, m->rows_max);
    const int32_t first = layout_find(p->layout, role, layer);
    *out = NULL;
    if (m->heads[0].heads == 0)
        return OK;
    CHECK(first >= 0);
    return backend_experts_open(m->b, (const struct weight *const *)&p->weights->linear[first],
                                m->heads[0].heads, 0, rows, out, err);
}

static enum status bind_latent(struct model *m, const struct model_parts *p, int32_t layer,
                               struct err *err)
{
    enum status st = OK;
    const struct latent_config *c = &m->config->latent;
    struct layer *l = &m->layers[layer];
    l->latent.there = c->value > 0;
    if (!l->latent.there)
        return OK;
    TRY(bind_linear(m, p, ROLE_LATENT, layer, &l->latent.down, err));
    TRY(bind_heads(m, p, ROLE_KEY_UP, layer, &l->latent.key_up, err));
    TRY(bind_heads(m, p, ROLE_VALUE_UP, layer, &l->latent.value_up, err));
    l->latent.rules =
        (struct latent_rules){.query = c->query,
                              .value = c->value,
                              .turns = c->turns,
                              .query_gain = vector_of(p, ROLE_QUERY_LATENT_NORM, layer),
                              .value_gain = vector_of(p, ROLE_VALUE_LATENT_NORM, layer),
                              .eps = c->latent_eps};
out:
    return st;
}

static enum status bind_mlp(struct model *m, const struct model_parts *p, int32_t layer,
                            struct err *err)
{
    enum status st = OK;
    struct layer *l = &m->layers[layer];
    const bool dense = model_config_is_dense(m->config, layer);
    const bool other = model_config_has_other_mlp(m->config, layer);
    l->gate_up.part = PLAN_GATE_UP;
    l->down.part = PLAN_DOWN;
    if (dense || other) {
        const enum role gate_up = other ? ROLE_DENSE_GATE_UP : ROLE_GATE_UP;
        const enum role down = other ? ROLE_DENSE_DOWN : ROLE_DOWN;
        TRY(bind_linear(m, p, gate_up, layer, &l->gate_up, err));
        TRY(bind_linear(m, p, down, layer, &l->down, err));
    }
    if (!dense) {
        l->mixture.router = p->weights->linear[layout_find(p->layout, ROLE_ROUTER, layer)];
        TRY(bind_experts(m, p, ROLE_GATE_UP, layer, &l->mixture.gate_up, err));
        TRY(bind_experts(m, p, ROLE_DOWN, layer, &l->mixture.down, err));
        l->mixture.router_bias = vector_of(p, ROLE_ROUTER_BIAS, layer);
        l->mixture.correction = vector_of(p, ROLE_CORRECTION, layer);
        l->mixture.gate_up_bias = vector_of(p, ROLE_GATE_UP_BIAS, layer);
        l->mixture.down_bias = vector_of(p, ROLE_DOWN_BIAS, layer);
        l->mixture.router_norm = vector_of(p, ROLE_ROUTER_SCALE, layer);
        l->mixture.norm = vector_of(p, ROLE_EXPERTS_NORM, layer);
        l->mixture.mlp_post_norm = vector_of(p, ROLE_DENSE_POST_NORM, layer);
        l->mixture.post_norm = vector_of(p, ROLE_EXPERTS_POST_NORM, layer);
        l->mixture.expert_scale = vector_of(p, ROLE_EXPERT_SCALE, layer);
    }
out:
    return st;
}

static void bind_scores(const struct model *m, const struct model_parts *p, int32_t layer,
                        struct layer *l)
{
    const struct model_config *cfg = m->config;
    const bool slides = model_config_slides(cfg, layer);
    l->attention = (struct attention){cfg->attention_scale, cfg->attention_softcap,
                                      slides ? cfg->window : 0, vector_of(p, ROLE_SINKS, layer)};
    const int32_t kind = model_config_kind(cfg, layer);
    l->heads = model_config_stores(cfg, layer) ? &m->heads[kind] : &m->sharing[kind];
    l->cache = m->kv[kind];
    l->kv = kv_groups_place(&m->groups, cfg, layer);
    l->rope = slides && m->local_rope.table ? m->local_rope.table : m->rope.table;
    l->rotary = model_config_turns(cfg, layer) ? model_config_shape(cfg, kind).rotary_dim : 0;
}

/* Norms of q and k: of each head, or of those of all ranks together. */
static void bind_rules(const struct model *m, const struct model_parts *p, int32_t layer,
                       struct layer *l)
{
    const struct model_config *cfg = m->config;
    const struct span heads = p->layout->heads, kv = p->layout->kv_heads[0];
    const float *q = vector_of(p, ROLE_Q_NORM, layer), *k = vector_of(p, ROLE_K_NORM, layer);
    l->rules = (struct qkv_rules){.bias = vector_of(p, ROLE_QKV_BIAS, layer),
                                  .v_norm = model_config_stores(cfg, layer) ? m->ones : NULL,
                                  .eps = cfg->norm_eps,
                                  .interleaved = cfg->interleaved};
    CHECK(!cfg->joint_norm || !l->rules.bias); /* it would come behind the norm */
    if (cfg->joint_norm) {
        const bool shared = heads.begin > kv.begin * (cfg->heads / cfg->kv_heads);
        l->joint = (struct joint_norm){cfg->heads,
                                       cfg->kv_heads,
                                       (int32_t)heads.begin,
                                       (int32_t)kv.begin,
                                       shared && span_len(heads) > 0,
                                       q,
                                       k,
                                       cfg->norm_eps};
    } else {
        l->rules.q_norm = q;
        l->rules.k_norm = k;
    }
}

static enum status bind_attention(struct model *m, const struct model_parts *p, int32_t layer,
                                  struct err *err)
{
    enum status st = OK;
    struct layer *l = &m->layers[layer];
    l->o_bias = vector_of(p, ROLE_O_BIAS, layer);
    bind_scores(m, p, layer, l);
    bind_rules(m, p, layer, l);
    const bool global = model_config_kind(m->config, layer) > 0;
    const bool stores = model_config_stores(m->config, layer);
    const enum role own = global ? ROLE_GLOBAL_QKV : ROLE_QKV;
    const enum role query = global ? ROLE_GLOBAL_QUERY : ROLE_QUERY;
    TRY(bind_linear(m, p, stores ? own : query, layer, &l->qkv, err));
    if (m->config->attention_gate)
        TRY(bind_linear(m, p, ROLE_ATTENTION_GATE, layer, &l->gate, err));
    TRY(bind_latent(m, p, layer, err));
    TRY(bind_linear(m, p, global ? ROLE_GLOBAL_O : ROLE_O, layer, &l->o, err));
out:
    return st;
}

/* Where layer number `index` of those that recur has what it remembers. */
static struct recurrent_state state_of(const struct model *m, int32_t index)
{
    const struct recurrent_heads *h = &m->recurrent;
    const size_t slots = (size_t)m->places, matrices = slots * model_matrix_size(h);
    float *base = m->states + (size_t)index * (matrices + slots * model_rows_size(h));
    return (struct recurrent_state){base, base + matrices, NULL};
}

static enum status bind_recurrent(struct model *m, const struct model_parts *p, int32_t layer,
                                  struct err *err)
{
    enum status st = OK;
    struct layer *l = &m->layers[layer];
    int32_t before = 0; /* that recur, too */
    for (int32_t i = 0; i < layer; i++)
        before += model_config_recurs(m->config, i);
    l->recurrent.there = true;
    l->recurrent.state = state_of(m, before);
    l->recurrent.rules =
        (struct recurrent_rules){.conv = vector_of(p, ROLE_CONV, layer),
                                 .decay = vector_of(p, ROLE_DECAY, layer),
                                 .decay_bias = vector_of(p, ROLE_DECAY_BIAS, layer),
                                 .gain = vector_of(p, ROLE_RECURRENT_NORM, layer),
                                 .eps = m->config->norm_eps};
    TRY(bind_linear(m, p, ROLE_RECURRENT_GATES, layer, &l->gate, err));
    TRY(bind_linear(m, p, ROLE_RECURRENT, layer, &l->qkv, err));
    TRY(bind_linear(m, p, ROLE_RECURRENT_OUT, layer, &l->o, err));
out:
    return st;
}

static void bind_norms(const struct model *m, const struct model_parts *p, int32_t layer,
                       struct layer *l)
{
    const float *attn = vector_of(p, ROLE_ATTN_NORM, layer);
    const float *mlp = vector_of(p, ROLE_MLP_NORM, layer);
    if (m->config->post_norms == POST_NORMS_OLMO) {
        l->post_norm.attn = attn;
        l->post_norm.mlp = mlp;
    } else {
        l->attn_norm = attn;
        l->mlp_norm = mlp;
        l->post_norm.attn = vector_of(p, ROLE_ATTN_POST_NORM, layer);
        l->post_norm.mlp = vector_of(p, ROLE_MLP_POST_NORM, layer);
    }
}

/* What makes the rows that layers take of each token. */
static enum status bind_inputs(struct model *m, const struct model_parts *p, struct err *err)
{
    if (m->config->inputs.dim == 0)
        return OK;
    m->inputs.table = weight_of(p, ROLE_INPUTS_TABLE, -1);
    m->inputs.gain = vector_of(p, ROLE_INPUTS_NORM, -1);
    m->inputs.half_root = m->half_root;
    m->inputs.eps = m->config->norm_eps;
    return bind_linear(m, p, ROLE_LAYER_INPUTS, -1, &m->inputs.weight, err);
}

enum status model_bind(struct model *m, const struct model_parts *p, struct err *err)
{
    enum status st = OK;
    TRY(bind_linear(m, p, ROLE_EMBED, -1, &m->embed, err));
    m->head = m->embed;
    m->head.part = PLAN_HEAD;
    if (!m->config->tied)
        TRY(bind_linear(m, p, ROLE_HEAD, -1, &m->head, err));
    TRY(bind_inputs(m, p, err));
    m->final_norm = vector_of(p, ROLE_FINAL_NORM, -1);
    for (int32_t i = 0; i < m->config->layers; i++) {
        struct layer *l = &m->layers[i];
        bind_norms(m, p, i, l);
        l->scale = vector_of(p, ROLE_LAYER_SCALE, i);
        l->input.gate = weight_of(p, ROLE_INPUT_GATE, i);
        l->input.out = weight_of(p, ROLE_INPUT_OUT, i);
        l->input.post_norm = vector_of(p, ROLE_INPUT_POST_NORM, i);
        TRY(model_config_recurs(m->config, i) ? bind_recurrent(m, p, i, err)
                                              : bind_attention(m, p, i, err));
        TRY(bind_mlp(m, p, i, err));
    }
out:
    return st;
}
