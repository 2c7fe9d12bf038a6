/* DESIGN: the families share one table of parameters (name, role, source tensors), of which each
 * has some; the loops below know roles, not families. Fused weights (QKV, gate/up) are stacked from
 * the rank's own part of each matrix, whether the file has it in a tensor of its own or in one with
 * the others: [Q heads | K heads | V heads]. */
#include "engine/model/layout.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Llama's names, which Mistral and Qwen kept, as checkpoints have them. %d is the expert. */
struct param {
    enum role role;
    bool per_layer;              /* then all names begin with "model.layers.", its number and "." */
    enum mixture_kind mixture;   /* whose it is; NONE: of all families, or of those without one */
    const char *name, *of_plans; /* of the local weight; as plans know it, alike for all experts */
    const char *tensors[3];      /* of QKV and gate/up the first alone: one has all of it */
};

#define ATTN "self_attn."
#define QWEN "mlp.experts.%d."
#define MIXTRAL "block_sparse_moe.experts.%d."
#define GPT_OSS "mlp.experts."
#define GATE_UP "mlp.gate_up_proj"
#define DOWN "mlp.down_proj"
#define GEMMA_NORM "pre_feedforward_layernorm"
#define GEMMA_POST_NORM "post_feedforward_layernorm"
#define GLM4_ATTN_NORM "post_self_attn_layernorm"
#define GLM4_MLP_NORM "post_mlp_layernorm"

/* clang-format off */
static const struct param params[] = {
    {ROLE_EMBED, false, MIXTURE_NONE, "model.embed_tokens", NULL, {"model.embed_tokens.weight"}},
    {ROLE_ATTN_NORM, true, MIXTURE_NONE, "input_layernorm", NULL, {"input_layernorm.weight"}},
    {ROLE_QKV, true, MIXTURE_NONE, ATTN "qkv_proj", NULL,
     {ATTN "q_proj.weight", ATTN "k_proj.weight", ATTN "v_proj.weight"}},
    {ROLE_QKV, true, MIXTURE_NONE, ATTN "qkv_proj", NULL, {ATTN "qkv_proj.weight"}},
    {ROLE_QKV_BIAS, true, MIXTURE_NONE, ATTN "qkv_proj.bias", NULL,
     {ATTN "q_proj.bias", ATTN "k_proj.bias", ATTN "v_proj.bias"}},
    {ROLE_Q_NORM, true, MIXTURE_NONE, ATTN "q_norm", NULL, {ATTN "q_norm.weight"}},
    {ROLE_K_NORM, true, MIXTURE_NONE, ATTN "k_norm", NULL, {ATTN "k_norm.weight"}},
    {ROLE_SINKS, true, MIXTURE_NONE, ATTN "sinks", NULL, {ATTN "sinks"}},
    {ROLE_O, true, MIXTURE_NONE, ATTN "o_proj", NULL, {ATTN "o_proj.weight"}},
    {ROLE_O_BIAS, true, MIXTURE_NONE, ATTN "o_proj.bias", NULL, {ATTN "o_proj.bias"}},
    {ROLE_ATTN_POST_NORM, true, MIXTURE_NONE, "post_attention_layernorm", NULL,
     {"post_attention_layernorm.weight"}},
    {ROLE_ATTN_POST_NORM, true, MIXTURE_NONE, GLM4_ATTN_NORM, NULL, {GLM4_ATTN_NORM ".weight"}},
    {ROLE_MLP_NORM, true, MIXTURE_NONE, "post_attention_layernorm", NULL,
     {"post_attention_layernorm.weight"}},
    {ROLE_MLP_NORM, true, MIXTURE_NONE, GEMMA_NORM, NULL, {GEMMA_NORM ".weight"}},

    {ROLE_GATE_UP, true, MIXTURE_NONE, GATE_UP, NULL,
     {"mlp.gate_proj.weight", "mlp.up_proj.weight"}},
    {ROLE_GATE_UP, true, MIXTURE_NONE, GATE_UP, NULL, {GATE_UP ".weight"}},
    {ROLE_DOWN, true, MIXTURE_NONE, DOWN, NULL, {"mlp.down_proj.weight"}},
    {ROLE_GATE_UP, true, MIXTURE_QWEN, QWEN "gate_up_proj", GATE_UP,
     {QWEN "gate_proj.weight", QWEN "up_proj.weight"}},
    {ROLE_ROUTER, true, MIXTURE_QWEN, "mlp.gate", NULL, {"mlp.gate.weight"}},
    {ROLE_DOWN, true, MIXTURE_QWEN, QWEN "down_proj", DOWN, {QWEN "down_proj.weight"}},
    {ROLE_GATE_UP, true, MIXTURE_MIXTRAL, QWEN "gate_up_proj", GATE_UP,
     {MIXTRAL "w1.weight", MIXTRAL "w3.weight"}},
    {ROLE_ROUTER, true, MIXTURE_MIXTRAL, "mlp.gate", NULL, {"block_sparse_moe.gate.weight"}},
    {ROLE_DOWN, true, MIXTURE_MIXTRAL, QWEN "down_proj", DOWN, {MIXTRAL "w2.weight"}},
    {ROLE_GATE_UP, true, MIXTURE_GPT_OSS, QWEN "gate_up_proj", GATE_UP,
     {GPT_OSS "gate_up_proj_blocks"}},
    {ROLE_GATE_UP_BIAS, true, MIXTURE_GPT_OSS, GPT_OSS "gate_up_proj.bias", NULL,
     {GPT_OSS "gate_up_proj_bias"}},
    {ROLE_ROUTER, true, MIXTURE_GPT_OSS, "mlp.router", NULL, {"mlp.router.weight"}},
    {ROLE_ROUTER_BIAS, true, MIXTURE_GPT_OSS, "mlp.router.bias", NULL, {"mlp.router.bias"}},
    {ROLE_DOWN, true, MIXTURE_GPT_OSS, QWEN "down_proj", DOWN, {GPT_OSS "down_proj_blocks"}},
    {ROLE_DOWN_BIAS, true, MIXTURE_GPT_OSS, GPT_OSS "down_proj.bias", NULL,
     {GPT_OSS "down_proj_bias"}},

    {ROLE_MLP_POST_NORM, true, MIXTURE_NONE, GEMMA_POST_NORM, NULL, {GEMMA_POST_NORM ".weight"}},
    {ROLE_MLP_POST_NORM, true, MIXTURE_NONE, GLM4_MLP_NORM, NULL, {GLM4_MLP_NORM ".weight"}},
    {ROLE_FINAL_NORM, false, MIXTURE_NONE, "model.norm", NULL, {"model.norm.weight"}},
    {ROLE_HEAD, false, MIXTURE_NONE, "lm_head", NULL, {"lm_head.weight"}},
};
/* clang-format on */

/* Those of the attention beside the product. */
static bool goes_with_qkv(enum role role)
{
    return role == ROLE_QKV_BIAS || role == ROLE_Q_NORM || role == ROLE_K_NORM ||
           role == ROLE_SINKS;
}

static bool is_bias(enum role role)
{
    return role == ROLE_QKV_BIAS || role == ROLE_O_BIAS || role == ROLE_ROUTER_BIAS ||
           role == ROLE_GATE_UP_BIAS || role == ROLE_DOWN_BIAS;
}

static bool is_post_norm(enum role role)
{
    return role == ROLE_ATTN_POST_NORM || role == ROLE_MLP_POST_NORM;
}

/* The plan says nothing about these. */
static bool is_beside(enum role role)
{
    return goes_with_qkv(role) || role == ROLE_ROUTER || is_post_norm(role) || is_bias(role);
}

static bool is_expert(const struct param *p)
{
    return p->of_plans != NULL;
}

static bool is_fused(const struct param *p)
{
    return p->tensors[1] == NULL;
}

/* Do an expert's gates and ups take turns, and have all experts a tensor together? */
static bool in_turns(const struct model_config *m)
{
    return m->mixture.kind == MIXTURE_GPT_OSS;
}

/* Of the norms around the MLP, and of those behind attention and MLP: some have the name that
 * others have elsewhere. */
static bool has_norm(const struct model_config *m, const struct param *p)
{
    static const char *const names[][3] = {
        [POST_NORMS_NONE] = {NULL, "post_attention_layernorm", NULL},
        [POST_NORMS_GEMMA] = {"post_attention_layernorm", GEMMA_NORM, GEMMA_POST_NORM},
        [POST_NORMS_GLM4] = {GLM4_ATTN_NORM, "post_attention_layernorm", GLM4_MLP_NORM},
    };
    const char *name = names[m->post_norms][p->role == ROLE_ATTN_POST_NORM ? 0
                                            : p->role == ROLE_MLP_NORM     ? 1
                                                                           : 2];
    return name && strcmp(p->name, name) == 0;
}

static bool has_param(const struct model_config *m, const struct param *p)
{
    if (p->role == ROLE_HEAD)
        return !m->tied;
    if (p->role == ROLE_QKV_BIAS)
        return m->qkv_bias;
    if (p->role == ROLE_O_BIAS)
        return m->o_bias;
    if (p->role == ROLE_SINKS)
        return m->sinks;
    if (p->role == ROLE_Q_NORM || p->role == ROLE_K_NORM)
        return m->head_norm;
    if (p->role == ROLE_GATE_UP || p->role == ROLE_DOWN || p->mixture != MIXTURE_NONE)
        if (p->mixture != m->mixture.kind)
            return false;
    if (p->role == ROLE_QKV)
        return is_fused(p) == m->fused_qkv;
    if (p->role == ROLE_GATE_UP && !in_turns(m))
        return is_fused(p) == m->fused_gate_up;
    if (is_post_norm(p->role) || p->role == ROLE_MLP_NORM)
        return has_norm(m, p);
    return true;
}

/* Old checkpoints carry the rotary frequencies; a tied one may repeat the embedding as its head;
 * quantised ones may have scales for activations, which stay as they are; a model that also sees
 * has more than its texts take. */
const char *const layout_ignored[] = {"model.layers.*.self_attn.rotary_emb.inv_freq",
                                      "model.rotary_emb.inv_freq",
                                      "model.layers.*.*.*.input_scale",
                                      "lm_head.weight",
                                      "vision_tower.**",
                                      "multi_modal_projector.**",
                                      "model.vision_tower.**",
                                      "model.multi_modal_projector.**",
                                      "visual.**",
                                      "model.visual.**"};
const int32_t layout_ignored_count = ARRAY_LEN(layout_ignored);

/* Which of the weights of a parameter; layer -1: the model's. */
struct which {
    int32_t layer, expert;
};

static void name_at(char *dst, const char *pattern, struct which at)
{
    const char *gap = strstr(pattern, "%d");
    size_t n = 0;
    if (at.layer >= 0)
        n += (size_t)snprintf(dst, PLACEMENT_NAME_MAX, "model.layers.%d.", at.layer);
    if (gap) {
        n += (size_t)snprintf(dst + n, PLACEMENT_NAME_MAX - n, "%.*s%d", (int)(gap - pattern),
                              pattern, at.expert);
        pattern = gap + 2;
    }
    snprintf(dst + n, PLACEMENT_NAME_MAX - n, "%s", pattern);
}

static void add_slice(struct local_weight *w, const char *pattern, struct which at, int64_t rows,
                      int64_t cols, struct span mine_rows, struct span mine_cols)
{
    struct tensor_slice *s = &w->slices[w->slice_count++];
    name_at(s->tensor, pattern, at);
    s->shape[0] = rows;
    s->shape[1] = cols;
    s->ndim = 2;
    s->rows = mine_rows;
    s->cols = mine_cols;
    s->dst_row = w->spec.out;
    w->spec.out += (int32_t)span_len(mine_rows);
    w->spec.in = (int32_t)span_len(mine_cols);
}

/* The same of one of as many matrices as there are experts, all in one tensor. */
static void add_expert(struct local_weight *w, const char *pattern, struct which at,
                       const struct model_config *m, int64_t rows, int64_t cols,
                       struct span mine_rows, struct span mine_cols)
{
    const int32_t experts = m->mixture.experts;
    const int64_t before = at.expert * rows;
    mine_rows = (struct span){before + mine_rows.begin, before + mine_rows.end};
    add_slice(w, pattern, at, experts * rows, cols, mine_rows, mine_cols);
    w->slices[w->slice_count - 1].stack = experts;
}

/* Elements `mine` of a row of [rows, n], behind those that are there. */
static void add_row(struct local_weight *w, const char *pattern, struct which at, int64_t rows,
                    int64_t row, int64_t n, struct span mine)
{
    struct tensor_slice *s = &w->slices[w->slice_count++];
    name_at(s->tensor, pattern, at);
    s->shape[0] = rows;
    s->shape[1] = n;
    s->ndim = 2;
    s->rows = (struct span){row, row + 1};
    s->cols = mine;
    s->dst_row = w->spec.in;
    w->spec.in += (int32_t)span_len(mine);
}

/* The same of a vector. */
static void add_elements(struct local_weight *w, const char *pattern, struct which at, int64_t n,
                         struct span mine)
{
    add_row(w, pattern, at, 1, 0, n, mine);
    w->slices[w->slice_count - 1].ndim = 1;
}

static struct span scaled(struct span s, int64_t unit)
{
    return (struct span){s.begin * unit, s.end * unit};
}

/* Query heads of piece x of n, and the KV heads they read. */
static struct span query_heads(const struct model_config *m, int32_t n, int32_t x)
{
    return placement_block(m->heads, n, x);
}

static struct span kv_heads(const struct model_config *m, struct span query)
{
    const int64_t group = m->heads / m->kv_heads;
    if (span_len(query) == 0)
        return (struct span){0, 0};
    return (struct span){query.begin / group, (query.end - 1) / group + 1};
}

struct span layout_heads(const struct model_config *m, const struct flow *f, int32_t rank)
{
    return query_heads(m, spread_pieces(&f->mesh, &f->attention, SPREAD_COLS),
                       spread_index(&f->mesh, &f->attention, SPREAD_COLS, rank));
}

struct span layout_kv_heads(const struct model_config *m, const struct flow *f, int32_t rank)
{
    return kv_heads(m, layout_heads(m, f, rank));
}

/* A fused weight's outputs are redistributed to `end`, which cuts them into *n blocks. Returns the
 * blocks that this rank's product makes. */
static struct span blocks_of(const struct layout *l, enum plan_part part, const struct spread *end,
                             int32_t *n)
{
    const struct flow *f = l->flow;
    const struct spread *product = &f->phase[PLAN_DECODE].linear[part].product;
    const int32_t each =
        spread_pieces(&f->mesh, end, SPREAD_COLS) / spread_pieces(&f->mesh, product, SPREAD_COLS);
    const int32_t index = spread_index(&f->mesh, product, SPREAD_COLS, l->rank);
    *n = spread_pieces(&f->mesh, end, SPREAD_COLS);
    return (struct span){(int64_t)index * each, ((int64_t)index + 1) * each};
}

/* Rows of the t-th of some matrices that have a tensor each, or one all together. */
static void add_part(struct local_weight *w, const struct param *p, struct which at,
                     const int64_t *sizes, size_t count, size_t t, int64_t cols, struct span rows,
                     struct span in)
{
    int64_t before = 0, all = 0;
    for (size_t i = 0; i < count; i++) {
        before += i < t ? sizes[i] : 0;
        all += sizes[i];
    }
    if (is_fused(p))
        add_slice(w, p->tensors[0], at, all, cols,
                  (struct span){before + rows.begin, before + rows.end}, in);
    else
        add_slice(w, p->tensors[t], at, sizes[t], cols, rows, in);
}

static void fill_qkv(const struct layout *l, const struct model_config *m, const struct param *p,
                     struct which at, struct local_weight *w)
{
    const struct span in = flow_inputs(l->flow, PLAN_QKV, l->rank);
    const int64_t dh = m->head_dim;
    const int64_t sizes[] = {m->heads * dh, m->kv_heads * dh, m->kv_heads * dh};
    int32_t n;
    const struct span mine = blocks_of(l, PLAN_QKV, &l->flow->attention, &n);
    for (int32_t x = (int32_t)mine.begin; x < mine.end; x++) {
        const struct span q = query_heads(m, n, x), kv = kv_heads(m, q);
        const struct span mine_of[] = {scaled(q, dh), scaled(kv, dh), scaled(kv, dh)};
        for (size_t t = 0; t < ARRAY_LEN(mine_of); t++)
            add_part(w, p, at, sizes, ARRAY_LEN(sizes), t, m->hidden, mine_of[t], in);
    }
}

static void fill_gate_up(const struct layout *l, const struct model_config *m,
                         const struct param *p, struct which at, struct local_weight *w)
{
    const struct span in = flow_inputs(l->flow, PLAN_GATE_UP, l->rank);
    const int64_t sizes[] = {m->mlp, m->mlp};
    int32_t n;
    const struct span mine = blocks_of(l, PLAN_GATE_UP, &l->flow->mlp, &n);
    for (int32_t x = (int32_t)mine.begin; x < mine.end; x++)
        for (size_t t = 0; t < ARRAY_LEN(sizes); t++)
            add_part(w, p, at, sizes, ARRAY_LEN(sizes), t, m->hidden, placement_block(m->mlp, n, x),
                     in);
}

/* The same with gates and ups in turns. */
static void fill_pairs(const struct layout *l, const struct model_config *m, const struct param *p,
                       struct which at, struct local_weight *w)
{
    const struct span in = flow_inputs(l->flow, PLAN_GATE_UP, l->rank);
    int32_t n;
    const struct span mine = blocks_of(l, PLAN_GATE_UP, &l->flow->mlp, &n);
    for (int32_t x = (int32_t)mine.begin; x < mine.end; x++)
        add_expert(w, p->tensors[0], at, m, 2 * (int64_t)m->mlp, m->hidden,
                   scaled(placement_block(m->mlp, n, x), 2), in);
}

/* Biases of all experts, one after the other. */
static void fill_expert_bias(const struct layout *l, const struct model_config *m,
                             const struct param *p, struct which at, struct local_weight *w)
{
    const bool down = p->role == ROLE_DOWN_BIAS;
    const int64_t each = down ? m->hidden : 2 * (int64_t)m->mlp;
    int32_t n;
    const struct span mine = blocks_of(l, PLAN_GATE_UP, &l->flow->mlp, &n);
    for (int32_t e = 0; e < m->mixture.experts; e++) {
        if (down)
            add_row(w, p->tensors[0], at, m->mixture.experts, e, each, (struct span){0, each});
        for (int32_t x = (int32_t)mine.begin; x < mine.end && !down; x++)
            add_row(w, p->tensors[0], at, m->mixture.experts, e, each,
                    scaled(placement_block(m->mlp, n, x), 2));
    }
}

static int64_t clamped(int64_t x, struct span s)
{
    return x < s.begin ? s.begin : x > s.end ? s.end : x;
}

/* Keeps these rows of the local weight and drops the others. Slices that lose all their rows stay,
 * empty, because their tensor still belongs to the model. */
static void keep(struct local_weight *w, struct span rows)
{
    for (int32_t i = 0; i < w->slice_count; i++) {
        struct tensor_slice *s = &w->slices[i];
        const struct span filled = {s->dst_row, s->dst_row + span_len(s->rows)};
        const int64_t begin = clamped(rows.begin, filled), end = clamped(rows.end, filled);
        s->rows.end = s->rows.begin + end - filled.begin;
        s->rows.begin += begin - filled.begin;
        s->dst_row = clamped(begin, rows) - rows.begin;
    }
    w->spec.out = (int32_t)span_len(rows);
}

/* Norms are whole on every rank: each form of a step scales with another part of them. A bias is
 * added where the heads are whole, in attention. */
static void fill_vector(const struct layout *l, const struct model_config *m, const struct param *p,
                        struct which at, struct local_weight *w)
{
    const int64_t dh = m->head_dim;
    w->kind = LOCAL_VECTOR;
    w->plus = m->norm_offset && !is_bias(p->role) ? 1 : 0;
    w->spec = (struct weight_spec){.out = 1, .dtype = DTYPE_F32, .leaves = 1};
    if (p->role == ROLE_QKV_BIAS) {
        add_elements(w, p->tensors[0], at, m->heads * dh, scaled(l->heads, dh));
        add_elements(w, p->tensors[1], at, m->kv_heads * dh, scaled(l->kv_heads, dh));
        add_elements(w, p->tensors[2], at, m->kv_heads * dh, scaled(l->kv_heads, dh));
    } else if (p->role == ROLE_SINKS) {
        add_elements(w, p->tensors[0], at, m->heads, l->heads);
    } else if (p->role == ROLE_GATE_UP_BIAS || p->role == ROLE_DOWN_BIAS) {
        fill_expert_bias(l, m, p, at, w);
    } else {
        const int64_t n = goes_with_qkv(p->role)        ? dh
                          : p->role == ROLE_ROUTER_BIAS ? m->mixture.experts
                                                        : m->hidden;
        add_elements(w, p->tensors[0], at, n, (struct span){0, n});
    }
    w->spec.cut[1] = w->spec.in;
}

static bool is_vector(enum role role)
{
    return role == ROLE_ATTN_NORM || role == ROLE_MLP_NORM || role == ROLE_FINAL_NORM ||
           is_post_norm(role) || goes_with_qkv(role) || is_bias(role);
}

/* Never quantised: what it chooses changes at once. */
static void fill_router(const struct layout *l, const struct model_config *m, const struct param *p,
                        struct which at, struct local_weight *w)
{
    const struct span all = {0, m->mixture.experts}, in = {0, m->hidden};
    add_slice(w, p->tensors[0], at, m->mixture.experts, m->hidden, all, in);
    w->spec.dtype = l->flow->dtype;
    w->spec.leaves = 1;
    w->spec.cut[1] = w->spec.in;
}

/* Is it one of those that a quantised checkpoint has in codes? */
static bool is_coded(const struct model_config *m, const struct param *p)
{
    const enum plan_part part = (enum plan_part)p->role;
    if (in_turns(m))
        return is_expert(p);
    return (part == PLAN_QKV || part == PLAN_O || part == PLAN_GATE_UP || part == PLAN_DOWN) &&
           !(m->quant.left_out >> part & 1);
}

void layout_left_out(const struct checkpoint *c, struct model_config *m)
{
    char name[PLACEMENT_NAME_MAX];
    for (size_t i = 0; i < ARRAY_LEN(params) && m->quant.form != QUANT_BYTES; i++) {
        const struct param *p = &params[i];
        if (!has_param(m, p) || !is_coded(m, p))
            continue;
        name_at(name, p->tensors[0], (struct which){0, 0});
        if (checkpoint_find(c, name))
            m->quant.left_out |= 1 << p->role;
    }
}

static void fill(const struct layout *l, const struct model_config *m, const struct param *p,
                 struct which at, struct local_weight *w)
{
    const enum plan_part part = (enum plan_part)p->role;
    if (is_vector(p->role)) {
        fill_vector(l, m, p, at, w);
        return;
    }
    if (p->role == ROLE_ROUTER) {
        fill_router(l, m, p, at, w);
        return;
    }
    const struct span out = flow_outputs(l->flow, part, l->rank);
    const struct span in = flow_inputs(l->flow, part, l->rank);
    if (p->role == ROLE_QKV)
        fill_qkv(l, m, p, at, w);
    else if (p->role == ROLE_GATE_UP && in_turns(m))
        fill_pairs(l, m, p, at, w);
    else if (p->role == ROLE_GATE_UP)
        fill_gate_up(l, m, p, at, w);
    else if (p->role == ROLE_O)
        add_slice(w, p->tensors[0], at, m->hidden, (int64_t)m->heads * m->head_dim, out, in);
    else if (p->role == ROLE_DOWN && in_turns(m))
        add_expert(w, p->tensors[0], at, m, m->hidden, m->mlp, out, in);
    else if (p->role == ROLE_DOWN)
        add_slice(w, p->tensors[0], at, m->hidden, m->mlp, out, in);
    else
        add_slice(w, p->tensors[0], at, m->vocab, m->hidden, out, in);
    const struct weight_spec spec = flow_weight(l->flow, part, l->rank);
    CHECK(spec.out == w->spec.out);
    CHECK(spec.in == w->spec.in);
    w->spec = spec;
    keep(w, flow_stored_outputs(l->flow, part, l->rank));
    if (dtype_is_scaled(spec.dtype) || (m->quant.widened && is_coded(m, p)))
        w->quant = m->quant;
}

/* All layers must be split alike, because one flow serves them all. */
static enum status check_alike(const struct plan *plan, const struct layout *l,
                               const struct plan_choice *choices, struct err *err)
{
    for (int32_t i = 0; i < l->count; i++) {
        const int32_t first = l->layers[i] > 0 ? layout_find(l, l->roles[i], 0) : i;
        if (memcmp(&choices[i], &choices[first], sizeof choices[i]) != 0)
            return base_fail(err, ERR_USAGE,
                             "%s: %s is split differently from %s; all layers must be split alike",
                             plan_where(plan), l->weights[i].name, l->weights[first].name);
    }
    return OK;
}

/* How many slices a weight has: a fused one has its two or three in each block. */
static size_t slices_of(const struct layout *l, enum role role)
{
    const size_t experts = (size_t)l->flow->mixture.experts;
    const enum plan_part part = (enum plan_part)role;
    int32_t n;
    if (role == ROLE_QKV)
        return 3 * (size_t)span_len(blocks_of(l, part, &l->flow->attention, &n));
    if (role == ROLE_GATE_UP)
        return 2 * (size_t)span_len(blocks_of(l, part, &l->flow->mlp, &n));
    if (role == ROLE_QKV_BIAS)
        return 3;
    if (role == ROLE_DOWN_BIAS)
        return experts;
    if (role == ROLE_GATE_UP_BIAS)
        return experts * (size_t)span_len(blocks_of(l, PLAN_GATE_UP, &l->flow->mlp, &n));
    return 1;
}

static enum status slices_open(struct layout *l, struct err *err)
{
    size_t n = 0;
    for (int32_t i = 0; i < l->count; i++)
        n += slices_of(l, l->roles[i]);
    l->slices = calloc(n, sizeof *l->slices);
    if (!l->slices)
        return base_fail(err, ERR_NOMEM, "layout: no memory for %zu slices", n);
    for (int32_t i = l->count - 1; i >= 0; i--)
        l->weights[i].slices = l->slices + (n -= slices_of(l, l->roles[i]));
    return OK;
}

/* The parameters of the first layer and around it, with what they are bound to; roles are in the
 * order of enum plan_part. */
static enum status first_layer(const struct plan *plan, const struct layout *l,
                               const struct plan_choice *choices, struct plan_layer *out,
                               struct err *err)
{
    enum status st = OK;
    for (int32_t part = 0; part < PLAN_PARTS; part++) {
        const enum role role = (enum role)part;
        int32_t i = layout_find(l, role, 0);
        i = i >= 0 ? i : layout_find(l, role, -1);
        if (i >= 0) {
            out->name[part] = l->weights[i].name;
            out->choice[part] = choices[i];
        } else { /* tied: the embedding serves, if the plan's entry for the head allows it */
            out->name[part] = "lm_head";
            TRY(plan_find(plan, "lm_head", &out->choice[PLAN_EMBED], &out->choice[part], err));
        }
    }
out:
    return st;
}

/* What goes with a product has its choice: the table lists it behind that. */
static enum status bind(const struct plan *plan, const struct layout *l,
                        struct plan_choice *choices, struct err *err)
{
    const char **names = calloc((size_t)l->count, sizeof *names);
    if (!names)
        return base_fail(err, ERR_NOMEM, "layout: no memory");
    for (int32_t i = 0; i < l->count; i++)
        names[i] = is_beside(l->roles[i]) ? names[i - 1] : l->weights[i].name;
    enum status st = plan_bind(plan, names, l->count, choices, err);
    free(names);
    return st;
}

static void split(struct layout *l, const struct model_config *m)
{
    const int32_t group = m->heads / m->kv_heads;
    l->heads = layout_heads(m, l->flow, l->rank);
    l->kv_heads = layout_kv_heads(m, l->flow, l->rank);
    l->mlp = flow_inputs(l->flow, PLAN_DOWN, l->rank);
    l->vocab = flow_outputs(l->flow, PLAN_EMBED, l->rank);
    for (int64_t h = l->heads.begin; h < l->heads.end; h++)
        l->kv_of[h - l->heads.begin] = (int32_t)(h / group - l->kv_heads.begin);
}

/* Name, role and place of every weight of the first `layers`; what a rank holds of it is filled in
 * later. planned: as plans know them, all experts as one. of: room for as many as weights. */
static void list_weights(struct layout *l, const struct model_config *m, int32_t layers,
                         bool planned, enum dtype dtype, const struct param **of)
{
    for (int32_t layer = -1; layer < layers; layer++) {
        for (size_t i = 0; i < ARRAY_LEN(params); i++) {
            const struct param *p = &params[i];
            if (p->per_layer != (layer >= 0) || !has_param(m, p))
                continue;
            const bool experts = p->of_plans && !planned;
            const int32_t count = experts ? m->mixture.experts : 1;
            for (int32_t expert = 0; expert < count; expert++) {
                struct local_weight *w = &l->weights[l->count];
                name_at(w->name, p->of_plans && planned ? p->of_plans : p->name,
                        (struct which){layer, expert});
                w->spec.dtype = dtype;
                of[l->count] = p;
                l->roles[l->count] = p->role;
                l->experts[l->count] = expert;
                l->layers[l->count++] = layer;
            }
        }
    }
}

/* *of: each weight's; the caller frees it, too. */
static enum status open_list(const struct model_config *m, int32_t layers, bool planned,
                             enum dtype dtype, struct layout **out, const struct param ***of,
                             struct err *err)
{
    enum status st = OK;
    const size_t experts = planned ? 0 : (size_t)m->mixture.experts;
    const size_t most = (ARRAY_LEN(params) + 2 * experts) * ((size_t)layers + 1);
    struct layout *l = calloc(1, sizeof *l);
    *of = calloc(most, sizeof **of);
    if (!l || !*of) {
        st = base_fail(err, ERR_NOMEM, "layout: no memory");
        goto out;
    }
    l->weights = calloc(most, sizeof *l->weights);
    l->roles = calloc(most, sizeof *l->roles);
    l->layers = calloc(most, sizeof *l->layers);
    l->experts = calloc(most, sizeof *l->experts);
    if (!l->weights || !l->roles || !l->layers || !l->experts) {
        st = base_fail(err, ERR_NOMEM, "layout: no memory for %zu weights", most);
        goto out;
    }
    list_weights(l, m, layers, planned, dtype, *of);
    *out = l;
    l = NULL;
out:
    layout_close(l);
    return st;
}

enum status layout_flow(const struct model_config *m, const struct plan *plan, enum dtype dtype,
                        const struct backend_ops *ops, struct flow **out, struct err *err)
{
    enum status st = OK;
    struct layout *l = NULL;
    const struct param **of = NULL;
    struct plan_choice *choices = NULL;
    struct plan_layer layer;
    TRY(open_list(m, m->layers, true, dtype, &l, &of, err));
    choices = calloc((size_t)l->count, sizeof *choices);
    if (!choices) {
        st = base_fail(err, ERR_NOMEM, "layout: no memory");
        goto out;
    }
    TRY(bind(plan, l, choices, err));
    TRY(first_layer(plan, l, choices, &layer, err));
    TRY(plan_check(plan, m, dtype, &layer, err));
    TRY(check_alike(plan, l, choices, err));
    TRY(flow_open(plan, m, &layer, dtype, ops, out, err));
out:
    free(choices);
    free(of);
    layout_close(l);
    return st;
}

/* With the weights of the first `layers` layers. */
static enum status open_layers(const struct model_config *m, const struct flow *f, int32_t rank,
                               int32_t layers, struct layout **out, struct err *err)
{
    enum status st = OK;
    struct layout *l = NULL;
    const struct param **of = NULL;
    TRY(open_list(m, layers, false, f->dtype, &l, &of, err));
    l->rank = rank;
    l->flow = f;
    l->kv_of = calloc((size_t)m->heads, sizeof *l->kv_of);
    if (!l->kv_of) {
        st = base_fail(err, ERR_NOMEM, "layout: no memory");
        goto out;
    }
    split(l, m);
    TRY(slices_open(l, err));
    for (int32_t i = 0; i < l->count; i++)
        fill(l, m, of[i], (struct which){l->layers[i], l->experts[i]}, &l->weights[i]);
    TRY(placement_layout(f->ops, l->weights, l->count, &l->arena_bytes, err));
    *out = l;
    l = NULL;
out:
    free(of);
    layout_close(l);
    return st;
}

enum status layout_open(const struct model_config *m, const struct flow *f, int32_t rank,
                        struct layout **out, struct err *err)
{
    return open_layers(m, f, rank, m->layers, out, err);
}

void layout_close(struct layout *l)
{
    if (!l)
        return;
    free(l->kv_of);
    free(l->weights);
    free(l->slices);
    free(l->roles);
    free(l->layers);
    free(l->experts);
    free(l);
}

/* Every layer has the bytes of the first. */
enum status layout_arena_bytes(const struct model_config *m, const struct flow *f, int32_t rank,
                               size_t *bytes, struct err *err)
{
    struct layout *l = NULL;
    const enum status st = open_layers(m, f, rank, 1, &l, err);
    *bytes = 0;
    for (int32_t i = 0; st == OK && i < l->count; i++)
        *bytes += base_align(l->weights[i].bytes, 64) * (l->layers[i] < 0 ? 1 : (size_t)m->layers);
    layout_close(l);
    return st;
}

size_t layout_kv_bytes_per_token(const struct model_config *m, const struct flow *f, int32_t rank,
                                 enum dtype kv_dtype)
{
    return 2 * (size_t)m->layers * (size_t)span_len(layout_kv_heads(m, f, rank)) *
           (size_t)m->head_dim * dtype_size(kv_dtype);
}

int32_t layout_find(const struct layout *l, enum role role, int32_t layer)
{
    for (int32_t i = 0; i < l->count; i++)
        if (l->roles[i] == role && l->layers[i] == layer)
            return i;
    return -1;
}

struct synth_rules layout_synth_rules(const struct model_config *m, uint64_t seed)
{
    /* <unk>, <s>, </s> and 256 bytes come first in a SentencePiece vocabulary with byte fallback */
    enum { CONTROL_AND_BYTES = 259, SMALLEST_WITH_TOKENIZER = 262 };
    return (struct synth_rules){
        .seed = seed,
        .std = 0.02f, /* transformers' initializer_range */
        .embed = "model.embed_tokens.weight",
        .head = m->tied ? NULL : "lm_head.weight",
        .tiny_rows = m->vocab >= SMALLEST_WITH_TOKENIZER ? CONTROL_AND_BYTES : 0,
        .less_one = m->norm_offset,
    };
}
