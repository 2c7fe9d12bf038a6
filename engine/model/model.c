/* DESIGN: model_forward reads like the model. x is this rank's part of the residual stream, n the
 * normed input of the next linear; every addition to x is fused with the norm that follows it.
 * Where the parts lie is the parallel layer's business, in every layout. */
#include "engine/model/model.h"

#include "engine/carve.h"
#include "engine/model/rope.h"

#include <stdlib.h>
#include <string.h>

struct layer {
    struct parallel_weight qkv, o, gate_up, down;
    const float *attn_norm, *mlp_norm, *o_bias; /* NULL: none */
    struct {                                    /* of what attention and MLP make */
        const float *attn, *mlp;                /* NULL: none */
    } post_norm;
    struct qkv_rules rules;
    struct joint_norm joint; /* instead of norms in the rules; heads 0: none */
    struct {                 /* what queries, keys and values are made of */
        bool there;
        struct parallel_weight down;
        struct latent_rules rules;
        struct experts *key_up, *value_up; /* NULL where this rank has no heads */
    } latent;
    struct attention attention;
    struct kv_group_place kv;
    const float *rope; /* the model's, or its local one */
    int32_t rotary;    /* elements of a head that turn; 0: the layer has no rotation */
    struct {           /* instead of gate_up and down */
        const struct weight *router; /* NULL: there is none, also in a mixture's dense layers */
        struct experts *gate_up, *down;
        const float *router_bias, *correction, *gate_up_bias, *down_bias; /* NULL: none */
    } mixture;
};

struct model {
    const struct model_config *config;
    struct backend *b;
    struct parallel *parallel;
    struct kv_cache *kv;
    struct kv_groups groups;
    struct heads heads;         /* local */
    enum activation activation; /* of the MLP's gate */
    int32_t rows_max, context;
    _Atomic uint64_t *progress;

    struct parallel_weight embed, head;
    const float *final_norm;
    struct layer *layers;

    void *memory;   /* on the device: all of the following */
    int32_t *kv_of; /* [H] */
    struct rotation {
        float *inv_freq; /* [E/2]; E: of a head, what turns */
        float *table;    /* [rows in attention, E] */
    } rope, local_rope;  /* local: of layers that slide, NULLs where it is the same */
    struct {             /* of rows in attention, of models that have latents */
        float *query;    /* [rows, latent.query] */
        float *qkv;      /* [rows, own query heads and the key, each head_dim] */
        float *values;   /* [rows, own query heads, latent.value] */
    } latent;
    float *x; /* this rank's part of [T, D] */
};

/* Do layers that slide turn otherwise? */
static bool has_local_rope(const struct model_config *cfg)
{
    return cfg->window > 0 && memcmp(&cfg->rope, &cfg->local_rope, sizeof cfg->rope) != 0;
}

static size_t carve_all(struct model *m, const struct model_config *cfg, const struct flow *f,
                        int32_t rank, char *base)
{
    struct carver c = {base, 0};
    const int64_t e = cfg->rotary_dim, rows = flow_home_rows(f, m->rows_max);
    m->kv_of = carve(&c, 1, m->heads.heads, sizeof *m->kv_of);
    m->rope = (struct rotation){carve_floats(&c, 1, e / 2), carve_floats(&c, rows, e)};
    if (has_local_rope(cfg))
        m->local_rope = (struct rotation){carve_floats(&c, 1, e / 2), carve_floats(&c, rows, e)};
    const int64_t heads = m->heads.heads, key = heads > 0 ? cfg->head_dim : 0;
    if (cfg->latent.value > 0) {
        m->latent.query = carve_floats(&c, rows, cfg->latent.query);
        m->latent.qkv = carve_floats(&c, rows, heads * cfg->head_dim + key);
        m->latent.values = carve_floats(&c, rows, heads * cfg->latent.value);
    }
    m->x = carve_floats(&c, 1, (int64_t)parallel_rest_size(f, rank, m->rows_max));
    return c.used;
}

/* Sizes of the largest product, for which the backend reserves scratch: then no step allocates. */
static void largest(const struct model_config *m, const struct flow *f, int32_t rank, int32_t *in,
                    int32_t *out)
{
    static const enum plan_part products[] = {PLAN_QKV,           PLAN_LATENT,    PLAN_O,
                                              PLAN_GATE_UP,       PLAN_DOWN,      PLAN_HEAD,
                                              PLAN_DENSE_GATE_UP, PLAN_DENSE_DOWN};
    *in = 0;
    *out = m->vocab;
    for (size_t i = 0; i < ARRAY_LEN(products); i++) {
        const struct weight_spec w = flow_weight(f, products[i], rank);
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

/* Uploads the constants of the model. */
static enum status upload_constants(struct model *m, const struct layout *l, struct err *err)
{
    const int32_t dim = m->config->rotary_dim;
    const size_t half = (size_t)dim / 2;
    float *inv_freq = calloc(half, sizeof *inv_freq);
    if (!inv_freq)
        return base_fail(err, ERR_NOMEM, "model: no memory for %zu frequencies", half);
    rope_frequencies(&m->config->rope, dim, m->context, inv_freq);
    m->b->ops->upload(m->b, m->rope.inv_freq, inv_freq, half * sizeof *inv_freq);
    if (m->local_rope.table) {
        rope_frequencies(&m->config->local_rope, dim, m->context, inv_freq);
        m->b->ops->upload(m->b, m->local_rope.inv_freq, inv_freq, half * sizeof *inv_freq);
    }
    free(inv_freq);
    m->b->ops->upload(m->b, m->kv_of, l->kv_of, (size_t)m->heads.heads * sizeof *l->kv_of);
    m->heads.kv_of = m->kv_of;
    return OK;
}

size_t model_comm_bytes(const struct flow *f, int32_t rows_max, int32_t samples_max)
{
    return parallel_arena_bytes(f, rows_max, samples_max);
}

size_t model_activation_bytes(const struct model_config *m, const struct flow *f, int32_t rank,
                              int32_t rows_max, int32_t samples_max)
{
    const int32_t heads = (int32_t)span_len(layout_heads(m, f, rank));
    struct model sizes = {.rows_max = rows_max, .heads = {.heads = heads}};
    return carve_all(&sizes, m, f, rank, NULL) +
           parallel_local_bytes(f, rank, rows_max, samples_max);
}

/* NULL: the family has none. */
static const float *vector_of(const struct model_parts *p, enum role role, int32_t layer)
{
    int32_t i = layout_find(p->layout, role, layer);
    return i >= 0 ? p->weights->vector[i] : NULL;
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
    if (m->heads.heads == 0)
        return OK;
    CHECK(first >= 0);
    return backend_experts_open(m->b, (const struct weight *const *)&p->weights->linear[first],
                                m->heads.heads, 0, rows, out, err);
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
    const bool mixture = m->config->mixture.kind != MIXTURE_NONE;
    l->gate_up.part = PLAN_GATE_UP;
    l->down.part = PLAN_DOWN;
    if (model_config_is_dense(m->config, layer)) {
        const enum role gate_up = mixture ? ROLE_DENSE_GATE_UP : ROLE_GATE_UP;
        const enum role down = mixture ? ROLE_DENSE_DOWN : ROLE_DOWN;
        TRY(bind_linear(m, p, gate_up, layer, &l->gate_up, err));
        TRY(bind_linear(m, p, down, layer, &l->down, err));
    } else {
        l->mixture.router = p->weights->linear[layout_find(p->layout, ROLE_ROUTER, layer)];
        TRY(bind_experts(m, p, ROLE_GATE_UP, layer, &l->mixture.gate_up, err));
        TRY(bind_experts(m, p, ROLE_DOWN, layer, &l->mixture.down, err));
        l->mixture.router_bias = vector_of(p, ROLE_ROUTER_BIAS, layer);
        l->mixture.correction = vector_of(p, ROLE_CORRECTION, layer);
        l->mixture.gate_up_bias = vector_of(p, ROLE_GATE_UP_BIAS, layer);
        l->mixture.down_bias = vector_of(p, ROLE_DOWN_BIAS, layer);
    }
out:
    return st;
}

static void bind_attention(const struct model *m, const struct model_parts *p, int32_t layer,
                           struct layer *l)
{
    const struct model_config *cfg = m->config;
    const bool slides = model_config_slides(cfg, layer);
    l->attention = (struct attention){cfg->attention_scale, cfg->attention_softcap,
                                      slides ? cfg->window : 0, vector_of(p, ROLE_SINKS, layer)};
    l->kv = kv_groups_place(&m->groups, cfg, layer);
    l->rope = slides && m->local_rope.table ? m->local_rope.table : m->rope.table;
    l->rotary = model_config_turns(cfg, layer) ? cfg->rotary_dim : 0;
}

/* Norms of q and k: of each head, or of those of all ranks together. */
static void bind_rules(const struct model *m, const struct model_parts *p, int32_t layer,
                       struct layer *l)
{
    const struct model_config *cfg = m->config;
    const struct span heads = p->layout->heads, kv = p->layout->kv_heads;
    const float *q = vector_of(p, ROLE_Q_NORM, layer), *k = vector_of(p, ROLE_K_NORM, layer);
    l->rules = (struct qkv_rules){.bias = vector_of(p, ROLE_QKV_BIAS, layer),
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

static enum status bind_weights(struct model *m, const struct model_parts *p, struct err *err)
{
    enum status st = OK;
    TRY(bind_linear(m, p, ROLE_EMBED, -1, &m->embed, err));
    m->head = m->embed;
    m->head.part = PLAN_HEAD;
    if (!m->config->tied)
        TRY(bind_linear(m, p, ROLE_HEAD, -1, &m->head, err));
    m->final_norm = vector_of(p, ROLE_FINAL_NORM, -1);
    for (int32_t i = 0; i < m->config->layers; i++) {
        struct layer *l = &m->layers[i];
        bind_norms(m, p, i, l);
        l->o_bias = vector_of(p, ROLE_O_BIAS, i);
        bind_attention(m, p, i, l);
        bind_rules(m, p, i, l);
        TRY(bind_linear(m, p, ROLE_QKV, i, &l->qkv, err));
        TRY(bind_latent(m, p, i, err));
        TRY(bind_linear(m, p, ROLE_O, i, &l->o, err));
        TRY(bind_mlp(m, p, i, err));
    }
out:
    return st;
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
    m->groups = parts->groups;
    CHECK(kv_groups_count(&m->groups) <= KV_GROUPS_MAX);
    m->progress = parts->progress;
    m->activation = cfg->mixture.kind == MIXTURE_GPT_OSS ? ACT_SWIGLU_PAIRS
                    : cfg->gelu                          ? ACT_GELU_TANH
                                                         : ACT_SILU;
    m->rows_max = parts->rows_max;
    m->context = parts->context;
    const struct layout *l = parts->layout;
    m->heads = (struct heads){(int32_t)span_len(l->heads), (int32_t)span_len(l->kv_heads),
                              cfg->head_dim, NULL, cfg->latent.value};
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
    TRY(bind_weights(m, parts, err));
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

struct parallel *model_parallel(struct model *m)
{
    return m->parallel;
}

static int32_t within(int64_t rows, int32_t most)
{
    return (int32_t)(rows < 0 ? 0 : rows < most ? rows : most);
}

/* Those rows of a step for which this rank computes attention, with the block tables of each group
 * of layers. */
static void find_attended(const struct model *m, const struct model_input *in,
                          struct rows attended[KV_GROUPS_MAX])
{
    const struct span mine = parallel_attended(m->parallel);
    struct rows rows = in->rows;
    const int64_t before = mine.begin, behind = in->rows.count - mine.end;
    rows.count = (int32_t)span_len(mine);
    rows.head = within(in->rows.head - before, rows.count);
    rows.tail = within(in->rows.tail - behind, rows.count - rows.head);
    rows.slot += mine.begin;
    rows.position += mine.begin;
    for (int32_t g = 0; g < kv_groups_count(&m->groups); g++) {
        attended[g] = rows;
        rows.table += (ptrdiff_t)in->table_rows * rows.table_cols;
    }
}

static enum status mlp_forward(struct model *m, const struct layer *l, struct view *delta,
                               struct cview n, struct err *err)
{
    enum status st = OK;
    struct parallel *p = m->parallel;
    struct view act;
    TRY(parallel_linear_act(p, &act, n, l->gate_up, m->activation, l->down, err));
    TRY(parallel_linear(p, delta, cview_of(act), l->down, err));
out:
    return st;
}

/* The same with the MLPs of those experts that the router chooses for each row. */
static enum status mixture_forward(struct model *m, const struct layer *l, struct view *delta,
                                   struct cview n, struct err *err)
{
    enum status st = OK;
    struct parallel *p = m->parallel;
    const struct parallel_router router = {l->mixture.router, l->mixture.router_bias,
                                           l->mixture.correction};
    struct routing chosen;
    struct cview used;
    struct view gu, act;
    TRY(parallel_route(p, &used, &chosen, n, &router, err));
    TRY(parallel_expert_linear(p, &gu, used, l->mixture.gate_up, &chosen, err));
    if (l->mixture.gate_up_bias)
        TRY(backend_expert_bias(m->b, gu, l->mixture.gate_up_bias, &chosen, err));
    TRY(parallel_act_mul(p, &act, cview_of(gu), m->activation, l->gate_up.part, l->down, err));
    TRY(parallel_expert_sum(p, delta, cview_of(act), l->mixture.down, &chosen, err));
    if (l->mixture.down_bias)
        TRY(parallel_expert_bias(p, delta, l->mixture.down_bias, &chosen, err));
out:
    return st;
}

/* Queries of latents, which are multiplied with their heads' keys' matrix, so that keys are latents
 * themselves. */
static enum status queries(struct model *m, const struct layer *l, struct cview from,
                           struct err *err)
{
    enum status st = OK;
    struct view q;
    TRY(parallel_linear(m->parallel, &q, from, l->qkv, err));
    const int32_t cols = m->heads.heads * m->heads.head_dim;
    if (cols > 0)
        TRY(backend_head_linear(m->b, view_f32(m->latent.qkv, q.rows, cols + m->heads.head_dim),
                                cview_of(q), l->latent.key_up, l->latent.rules.turns, err));
out:
    return st;
}

/* Attention over latents (DeepSeek-V2): what a query makes of keys and values is the same whether
 * these are made of their latents or the query, and the result, are brought to where latents are.
 */
static enum status latent_forward(struct model *m, const struct layer *l, const struct rows *rows,
                                  struct cview rope, struct cview n, struct view *attn,
                                  struct err *err)
{
    enum status st = OK;
    struct parallel *p = m->parallel;
    const struct heads *h = &m->heads;
    const bool queried = l->latent.rules.query > 0; /* else queries are made of the row itself */
    const int32_t cols = (h->heads + h->kv_heads) * h->head_dim;
    const struct view query = view_f32(m->latent.query, rows->count, l->latent.rules.query);
    const struct view qkv = view_f32(m->latent.qkv, rows->count, cols);
    const struct view values = view_f32(m->latent.values, rows->count, h->heads * h->latent);
    struct view a;
    if (!queried)
        TRY(queries(m, l, n, err));
    TRY(parallel_linear(p, &a, queried ? n : parallel_used(p), l->latent.down, err));
    if (h->heads > 0)
        TRY(backend_latent(m->b, query, qkv, cview_of(a), &l->latent.rules, err));
    if (queried)
        TRY(queries(m, l, cview_of(query), err));
    TRY(backend_rope_attend(m->b, values, qkv, &l->rules, rope, h, &l->attention, rows, m->kv,
                            l->kv.layer, err));
    *attn = parallel_input(p, l->o);
    if (h->heads > 0)
        TRY(backend_head_linear(m->b, *attn, cview_of(values), l->latent.value_up, 0, err));
out:
    return st;
}

static enum status attention_forward(struct model *m, const struct layer *l,
                                     const struct rows *rows, struct cview rope, struct cview n,
                                     struct view *attn, struct err *err)
{
    enum status st = OK;
    struct parallel *p = m->parallel;
    struct view qkv;
    TRY(parallel_linear(p, &qkv, n, l->qkv, err));
    if (l->joint.heads > 0)
        TRY(parallel_joint_norm(p, qkv, &l->joint, &m->heads, err));
    *attn = parallel_input(p, l->o);
    TRY(backend_rope_attend(m->b, *attn, qkv, &l->rules, rope, &m->heads, &l->attention, rows,
                            m->kv, l->kv.layer, err));
out:
    return st;
}

/* What takes the input of a layer; one of two products that do is not named, so that the norm is
 * made before both. */
static struct parallel_weight first_of(const struct layer *l)
{
    const struct parallel_weight both = {.part = PLAN_QKV};
    if (!l->latent.there)
        return l->qkv;
    return l->latent.rules.query > 0 ? l->latent.down : both;
}

/* One decoder layer. x: the residual stream; rows: those of this rank in attention, for the layer's
 * group. *n is the input of first_of on entry, and on return that of `next`, normed with `gain`. */
static enum status layer_forward(struct model *m, const struct layer *l, const struct rows *rows,
                                 struct view x, struct view *n, const float *gain,
                                 struct parallel_weight next, struct err *err)
{
    enum status st = OK;
    struct parallel *p = m->parallel;
    const struct cview rope = {l->rope, DTYPE_F32, rows->count, l->rotary};
    const float eps = m->config->norm_eps, scale = m->config->residual_scale;
    struct view attn, delta;

    TRY(l->latent.there ? latent_forward(m, l, rows, rope, cview_of(*n), &attn, err)
                        : attention_forward(m, l, rows, rope, cview_of(*n), &attn, err));
    TRY(parallel_linear(p, &delta, cview_of(attn), l->o, err));
    if (l->o_bias)
        TRY(parallel_bias(p, &delta, l->o_bias, err));
    if (l->post_norm.attn)
        TRY(parallel_post_norm(p, &delta, l->post_norm.attn, eps, err));
    if (scale != 1)
        TRY(parallel_scale(p, &delta, scale, err));
    TRY(parallel_norm(p, n, x, cview_of(delta), l->mlp_norm, eps, l->gate_up, err));

    TRY(l->mixture.router ? mixture_forward(m, l, &delta, cview_of(*n), err)
                          : mlp_forward(m, l, &delta, cview_of(*n), err));
    if (l->post_norm.mlp)
        TRY(parallel_post_norm(p, &delta, l->post_norm.mlp, eps, err));
    if (scale != 1)
        TRY(parallel_scale(p, &delta, scale, err));
    TRY(parallel_norm(p, n, x, cview_of(delta), gain, eps, next, err));
out:
    return st;
}

/* The table of this step's rotation. */
static enum status rotate(struct model *m, const struct rope_config *cfg, const struct rotation *r,
                          const struct rows *rows, struct err *err)
{
    const bool scaled = cfg->kind == ROPE_YARN || cfg->kind == ROPE_LONG;
    const float scale = scaled ? (float)cfg->attention_factor : 1;
    if (!r->table)
        return OK;
    return backend_rope_table(m->b, view_f32(r->table, rows->count, m->config->rotary_dim),
                              rows->position, r->inv_freq, scale, err);
}

/* Of the sampled rows. */
static enum status logits(struct model *m, const struct model_input *in, struct cview n,
                          struct view *scores, struct err *err)
{
    enum status st = OK;
    const struct model_config *cfg = m->config;
    TRY(parallel_head(m->parallel, n, in->sample, in->sample_host, in->samples, m->head, scores,
                      err));
    if (cfg->logit_scale != 1)
        TRY(backend_scale(m->b, *scores, cview_of(*scores), cfg->logit_scale, err));
    if (cfg->final_softcap > 0)
        TRY(backend_softcap(m->b, *scores, cfg->final_softcap, err));
out:
    return st;
}

enum status model_forward(struct model *m, const struct model_input *in, struct cview *out,
                          struct err *err)
{
    enum status st = OK;
    struct parallel *p = m->parallel;
    const struct model_config *cfg = m->config;
    const int32_t last = cfg->layers - 1;
    const struct cview nothing = {0};

    parallel_begin(p, in->rows.count, in->home_cut);
    struct rows rows[KV_GROUPS_MAX];
    find_attended(m, in, rows);
    struct view x = parallel_rest(p, m->x), n, wanted;
    TRY(rotate(m, &cfg->rope, &m->rope, rows, err));
    TRY(rotate(m, &cfg->local_rope, &m->local_rope, rows, err));
    TRY(parallel_embed(p, x, in->ids, m->embed, cfg->embed_scale, err));
    TRY(parallel_norm(p, &n, x, nothing, m->layers[0].attn_norm, cfg->norm_eps,
                      first_of(&m->layers[0]), err));
    for (int32_t i = 0; i <= last; i++) {
        const float *gain = i < last ? m->layers[i + 1].attn_norm : m->final_norm;
        const struct layer *l = &m->layers[i];
        const struct parallel_weight next = i < last ? first_of(l + 1) : m->head;
        TRY(layer_forward(m, l, &rows[l->kv.group], x, &n, gain, next, err));
        if (m->progress)
            atomic_fetch_add_explicit(m->progress, 1, memory_order_relaxed);
    }
    *out = (struct cview){NULL, DTYPE_F32, 0, 0};
    if (in->samples == 0)
        goto out;
    TRY(cfg->pooling
            ? parallel_pool(p, cview_of(n), in->sample, in->sample_host, in->samples, &wanted, err)
            : logits(m, in, cview_of(n), &wanted, err));
    *out = cview_of(wanted);
out:
    return st;
}
