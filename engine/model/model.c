/* DESIGN: model_forward reads like the model. x is this rank's part of the residual stream, n the
 * normed input of the next linear; every addition to x is fused with the norm that follows it.
 * Where the parts lie is the parallel layer's business, in every layout. */
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

/* Elements of a head that turn: where layers that slide have other heads they have a table, too. */
static int32_t rotary_dim(const struct model_config *cfg, bool local)
{
    return model_config_shape(cfg, local ? 0 : model_config_kinds(cfg) - 1).rotary_dim;
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
    m->rope = carve_rotation(&c, rows, rotary_dim(cfg, false));
    if (has_local_rope(cfg))
        m->local_rope = carve_rotation(&c, rows, rotary_dim(cfg, true));
    if (cfg->value_norm)
        m->ones = carve_floats(&c, 1, BACKEND_HEAD_DIM_MAX);
    const int64_t x = (int64_t)parallel_rest_size(f, rank, m->rows_max);
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

/* Uploads the constants of the model. */
static enum status upload_constants(struct model *m, const struct layout *l, struct err *err)
{
    enum status st = OK;
    const struct model_config *cfg = m->config;
    float ones[BACKEND_HEAD_DIM_MAX];
    for (size_t i = 0; i < ARRAY_LEN(ones); i++)
        ones[i] = 1;
    TRY(upload_rotation(m, &cfg->rope, rotary_dim(cfg, false), &m->rope, err));
    if (m->local_rope.table)
        TRY(upload_rotation(m, &cfg->local_rope, rotary_dim(cfg, true), &m->local_rope, err));
    const float half_root = sqrtf(0.5f);
    if (m->ones)
        m->b->ops->upload(m->b, m->ones, ones, sizeof ones);
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

/* What a mixture's experts, which are no weights of their own, are to the parallel layer. */
static const struct parallel_weight experts_gate_up = {.part = PLAN_GATE_UP};
static const struct parallel_weight experts_down = {.part = PLAN_DOWN};

/* The same with the MLPs of those experts that the router chooses for each row. */
static enum status mixture_forward(struct model *m, const struct layer *l, struct view x,
                                   struct view *delta, struct cview n, struct err *err)
{
    enum status st = OK;
    struct parallel *p = m->parallel;
    const bool beside = l->mixture.norm != NULL; /* n is for the router alone */
    const struct cview nothing = {0};
    const struct parallel_router router = {l->mixture.router, l->mixture.router_bias,
                                           l->mixture.correction, l->mixture.expert_scale,
                                           beside ? 1 / sqrtf((float)m->config->hidden) : 1};
    struct routing chosen;
    struct cview used;
    struct view gu, act, own;
    TRY(parallel_route(p, &used, &chosen, n, &router, err));
    if (beside) {
        TRY(parallel_norm(p, &own, x, nothing, l->mixture.norm, m->config->norm_eps,
                          experts_gate_up, err));
        used = cview_of(own);
    }
    TRY(parallel_expert_linear(p, &gu, used, l->mixture.gate_up, &chosen, err));
    if (l->mixture.gate_up_bias)
        TRY(backend_expert_bias(m->b, gu, l->mixture.gate_up_bias, &chosen, err));
    TRY(parallel_act_mul(p, &act, cview_of(gu), m->activation, PLAN_GATE_UP, experts_down, err));
    TRY(parallel_expert_sum(p, delta, cview_of(act), l->mixture.down, &chosen, err));
    if (l->mixture.down_bias)
        TRY(parallel_expert_bias(p, delta, l->mixture.down_bias, &chosen, err));
out:
    return st;
}

/* Both, of the same rows, each with norms of its own (Gemma 4). */
static enum status beside_forward(struct model *m, const struct layer *l, struct view x,
                                  struct view *delta, struct cview n, struct err *err)
{
    enum status st = OK;
    struct parallel *p = m->parallel;
    const struct cview nothing = {0};
    const float eps = m->config->norm_eps;
    struct view routed;
    TRY(mlp_forward(m, l, delta, n, err));
    TRY(parallel_post_norm(p, delta, l->mixture.mlp_post_norm, eps, err));
    parallel_put_aside(p, delta);
    TRY(parallel_norm(p, &routed, x, nothing, l->mixture.router_norm, eps, experts_gate_up, err));
    TRY(mixture_forward(m, l, x, delta, cview_of(routed), err));
    TRY(parallel_post_norm(p, delta, l->mixture.post_norm, eps, err));
    TRY(parallel_add_aside(p, delta, err));
out:
    return st;
}

/* With their positions, where a context may be that long. */
static enum status grow_queries(struct model *m, const struct layer *l, struct view qkv,
                                const struct rows *rows, struct err *err)
{
    return m->query_beta > 0
               ? backend_scale_queries(m->b, qkv, l->heads, rows->position, m->query_beta,
                                       m->config->rope.original_max_position, err)
               : OK;
}

/* Queries of latents, which are multiplied with their heads' keys' matrix, so that keys are latents
 * themselves. */
static enum status queries(struct model *m, const struct layer *l, struct cview from,
                           struct err *err)
{
    enum status st = OK;
    struct view q;
    TRY(parallel_linear(m->parallel, &q, from, l->qkv, err));
    const int32_t dim = l->heads->head_dim, cols = l->heads->heads * dim;
    if (cols > 0)
        TRY(backend_head_linear(m->b, view_f32(m->latent.qkv, q.rows, cols + dim), cview_of(q),
                                l->latent.key_up, l->latent.rules.turns, err));
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
    const struct heads *h = l->heads;
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
    TRY(grow_queries(m, l, qkv, rows, err));
    TRY(backend_rope_attend(m->b, values, qkv, &l->rules, rope, h, &l->attention, rows, l->cache,
                            l->kv.layer, err));
    *attn = parallel_input(p, l->o);
    if (h->heads > 0)
        TRY(backend_head_linear(m->b, *attn, cview_of(values), l->latent.value_up, 0, err));
out:
    return st;
}

/* Outputs that are used behind another product of the same rows, which would take their place. */
static enum status gates_of(struct model *m, struct parallel_weight w, struct cview n,
                            struct view *gates, struct err *err)
{
    enum status st = OK;
    struct view y;
    TRY(parallel_linear(m->parallel, &y, n, w, err));
    *gates = view_f32(m->gates, y.rows, y.cols);
    if (y.cols > 0)
        TRY(backend_scale(m->b, *gates, cview_of(y), 1, err));
out:
    return st;
}

/* In the place of attention: what a layer remembers of a sequence is one matrix of each head, not
 * keys and values of all positions. */
static enum status recurrent_forward(struct model *m, const struct layer *l,
                                     const struct rows *rows, struct cview n, struct view *out,
                                     struct err *err)
{
    enum status st = OK;
    struct parallel *p = m->parallel;
    struct view a, gates;
    TRY(gates_of(m, l->gate, n, &gates, err));
    TRY(parallel_linear(p, &a, parallel_used(p), l->qkv, err));
    *out = parallel_input(p, l->o);
    struct recurrent_state state = l->recurrent.state;
    state.keep = m->keep;
    if (m->recurrent.keys > 0)
        TRY(backend_delta_rule(m->b, *out, a, cview_of(gates), &m->recurrent, &l->recurrent.rules,
                               rows, &state, err));
out:
    return st;
}

static enum status attention_forward(struct model *m, const struct layer *l,
                                     const struct rows *rows, struct cview rope, struct cview n,
                                     struct view *attn, struct err *err)
{
    enum status st = OK;
    struct parallel *p = m->parallel;
    const bool gated = l->gate.local != NULL;
    struct view qkv, gates;
    if (gated)
        TRY(gates_of(m, l->gate, n, &gates, err));
    TRY(parallel_linear(p, &qkv, gated ? parallel_used(p) : n, l->qkv, err));
    if (l->joint.heads > 0)
        TRY(parallel_joint_norm(p, qkv, &l->joint, l->heads, err));
    TRY(grow_queries(m, l, qkv, rows, err));
    *attn = parallel_input(p, l->o);
    TRY(backend_rope_attend(m->b, *attn, qkv, &l->rules, rope, l->heads, &l->attention, rows,
                            l->cache, l->kv.layer, err));
    if (gated && gates.cols > 0)
        TRY(backend_gate(m->b, *attn, cview_of(gates), err));
out:
    return st;
}

/* What takes the input of a layer; one of two products that do is not named, so that the norm is
 * made before both. */
static struct parallel_weight first_of(const struct layer *l)
{
    const struct parallel_weight both = {.part = l->gate.local ? l->gate.part : PLAN_QKV};
    if (l->gate.local)
        return both;
    if (!l->latent.there)
        return l->qkv;
    return l->latent.rules.query > 0 ? l->latent.down : both;
}

/* x += delta, and *delta is what the layer makes of its own row of each token, and of x. */
static enum status take_input(struct model *m, const struct layer *l, struct view x,
                              struct view *delta, struct err *err)
{
    enum status st = OK;
    const struct model_config *cfg = m->config;
    const struct parallel_input_weights w = {l->input.gate, l->input.out, m->activation};
    const float *take = m->taken + (l - m->layers) * cfg->inputs.dim;
    const size_t stride = (size_t)cfg->layers * (size_t)cfg->inputs.dim;
    TRY(parallel_add_scaled(m->parallel, x, delta, NULL, err));
    TRY(parallel_layer_input(m->parallel, delta, x, take, stride, &w, err));
    TRY(parallel_post_norm(m->parallel, delta, l->input.post_norm, cfg->norm_eps, err));
out:
    return st;
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

    TRY(l->recurrent.there ? recurrent_forward(m, l, rows, cview_of(*n), &attn, err)
        : l->latent.there  ? latent_forward(m, l, rows, rope, cview_of(*n), &attn, err)
                           : attention_forward(m, l, rows, rope, cview_of(*n), &attn, err));
    TRY(parallel_linear(p, &delta, cview_of(attn), l->o, err));
    if (l->o_bias)
        TRY(parallel_bias(p, &delta, l->o_bias, err));
    if (l->post_norm.attn)
        TRY(parallel_post_norm(p, &delta, l->post_norm.attn, eps, err));
    if (scale != 1)
        TRY(parallel_scale(p, &delta, scale, err));
    TRY(parallel_norm(p, n, x, cview_of(delta), l->mlp_norm, eps, l->gate_up, err));

    TRY(l->mixture.norm     ? beside_forward(m, l, x, &delta, cview_of(*n), err)
        : l->mixture.router ? mixture_forward(m, l, x, &delta, cview_of(*n), err)
                            : mlp_forward(m, l, &delta, cview_of(*n), err));
    if (l->post_norm.mlp)
        TRY(parallel_post_norm(p, &delta, l->post_norm.mlp, eps, err));
    if (scale != 1)
        TRY(parallel_scale(p, &delta, scale, err));
    if (l->input.gate)
        TRY(take_input(m, l, x, &delta, err));
    if (l->scale)
        TRY(parallel_add_scaled(p, x, &delta, l->scale, err));
    TRY(parallel_norm(p, n, x, cview_of(delta), gain, eps, next, err));
out:
    return st;
}

/* The table of this step's rotation. */
static enum status rotate(struct model *m, const struct rope_config *cfg, int32_t dim,
                          const struct rotation *r, const struct rows *rows, struct err *err)
{
    const bool scaled = cfg->kind == ROPE_YARN || cfg->kind == ROPE_LONG;
    const float scale = scaled ? (float)cfg->attention_factor : 1;
    if (!r->table)
        return OK;
    return backend_rope_table(m->b, view_f32(r->table, rows->count, dim), rows->position,
                              r->inv_freq, scale, err);
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
    m->keep = in->keep;
    struct rows rows[KV_GROUPS_MAX];
    find_attended(m, in, rows);
    struct view x = parallel_rest(p, m->x), n, wanted;
    TRY(rotate(m, &cfg->rope, rotary_dim(cfg, false), &m->rope, rows, err));
    TRY(rotate(m, &cfg->local_rope, rotary_dim(cfg, true), &m->local_rope, rows, err));
    TRY(parallel_embed(p, x, in->ids, m->embed, cfg->embed_scale, err));
    if (m->taken)
        TRY(parallel_layer_inputs(p, view_f32(m->taken, x.rows, cfg->layers * cfg->inputs.dim), x,
                                  in->ids, &m->inputs, err));
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
