/* DESIGN: model_forward reads like the model. x is this rank's part of the residual stream, n the
 * normed input of the next linear; every addition to x is fused with the norm that follows it.
 * Where the parts lie is the parallel layer's business, in every layout. */
#include "engine/model/model_state.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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
    const float *take = m->take + (l - m->layers) * cfg->inputs.dim;
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

/* Both of them. */
static enum status rotate_all(struct model *m, const struct rows *rows, struct err *err)
{
    enum status st = OK;
    const struct model_config *cfg = m->config;
    TRY(rotate(m, &cfg->rope, model_rotary_dim(cfg, false), &m->rope, rows, err));
    TRY(rotate(m, &cfg->local_rope, model_rotary_dim(cfg, true), &m->local_rope, rows, err));
out:
    return st;
}

/* From here on no row to come looks at this step's, so the step goes on with those that are
 * sampled. */
static enum status narrow(struct model *m, struct model_input *in, struct rows rows[KV_GROUPS_MAX],
                          struct view *x, struct err *err)
{
    enum status st = OK;
    struct backend *b = m->b;
    const int32_t few = in->samples, cols = m->config->layers * m->config->inputs.dim;
    const struct rows all = in->rows;
    const struct view to = view_f32(m->few.x, few, x->cols);
    TRY(backend_select(b, to, cview_of(*x), in->sample, err));
    TRY(backend_select(b, view_f32((float *)m->few.slot, few, 1),
                       (struct cview){all.slot, DTYPE_F32, all.count, 1}, in->sample, err));
    TRY(backend_select(b, view_f32((float *)m->few.position, few, 1),
                       (struct cview){all.position, DTYPE_F32, all.count, 1}, in->sample, err));
    if (m->taken)
        TRY(backend_select(b, view_f32(m->few.taken, few, cols),
                           (struct cview){m->taken, DTYPE_F32, all.count, cols}, in->sample, err));
    m->take = m->few.taken;
    for (int32_t g = 0; g < kv_groups_count(&m->groups); g++) {
        struct rows *r = &rows[g];
        *r = (struct rows){few, m->few.slot, m->few.position, r->table, r->table_cols, r->apart, 0,
                           0};
    }
    TRY(rotate_all(m, rows, err));
    parallel_narrow(m->parallel, to);
    in->sample = m->few.all;
    *x = to;
out:
    return st;
}

/* Embedding, and what layers take of it. */
static enum status embed(struct model *m, const struct model_input *in, struct view x,
                         struct err *err)
{
    enum status st = OK;
    const struct model_config *cfg = m->config;
    const int32_t cols = cfg->layers * cfg->inputs.dim;
    TRY(parallel_embed(m->parallel, x, in->ids, m->embed, cfg->embed_scale, err));
    m->take = m->taken;
    if (m->taken)
        TRY(parallel_layer_inputs(m->parallel, view_f32(m->taken, x.rows, cols), x, in->ids,
                                  &m->inputs, err));
out:
    return st;
}

/* All layers, from the embedding to the last norm. *in: its rows become the sampled ones where that
 * is enough; with none of these it ends there. */
static enum status layers_forward(struct model *m, struct model_input *in, struct view *n,
                                  struct err *err)
{
    enum status st = OK;
    struct parallel *p = m->parallel;
    const struct model_config *cfg = m->config;
    const struct cview nothing = {0};
    const int32_t last = cfg->layers - 1;
    const int32_t narrowed = m->few.x && in->samples < in->rows.count ? last - cfg->sharing : -1;
    struct rows rows[KV_GROUPS_MAX];
    struct view x = parallel_rest(p, m->x);
    find_attended(m, in, rows);
    TRY(rotate_all(m, rows, err));
    TRY(embed(m, in, x, err));
    TRY(parallel_norm(p, n, x, nothing, m->layers[0].attn_norm, cfg->norm_eps,
                      first_of(&m->layers[0]), err));
    for (int32_t i = 0; i <= last; i++) {
        const float *gain = i < last ? m->layers[i + 1].attn_norm : m->final_norm;
        const struct layer *l = &m->layers[i];
        const struct parallel_weight next = i < last ? first_of(l + 1) : m->head;
        TRY(layer_forward(m, l, &rows[l->kv.group], x, n, i == narrowed ? NULL : gain, next, err));
        if (m->progress)
            atomic_fetch_add_explicit(m->progress, 1, memory_order_relaxed);
        if (i == narrowed && in->samples == 0)
            break;
        if (i == narrowed) {
            TRY(narrow(m, in, rows, &x, err));
            TRY(parallel_norm(p, n, x, nothing, gain, cfg->norm_eps, next, err));
        }
    }
out:
    return st;
}

enum status model_forward(struct model *m, const struct model_input *step, struct cview *out,
                          struct err *err)
{
    enum status st = OK;
    struct model_input in = *step;
    struct view n, wanted;
    parallel_begin(m->parallel, in.rows.count, in.home_cut);
    m->keep = in.keep;
    *out = (struct cview){NULL, DTYPE_F32, 0, 0};
    TRY(layers_forward(m, &in, &n, err));
    if (in.samples == 0)
        goto out;
    TRY(m->config->pooling ? parallel_pool(m->parallel, cview_of(n), in.sample, in.sample_host,
                                           in.samples, &wanted, err)
                           : logits(m, &in, cview_of(n), &wanted, err));
    *out = cview_of(wanted);
out:
    return st;
}
