/* DESIGN: the families share one table of parameters (name, role, source tensors), of which each
 * has some; the loops below know roles, not families. */
#include "engine/model/layout.h"

#include "engine/model/layout_fill.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ATTN "self_attn."
#define LINEAR "linear_attn."
#define QWEN "mlp.experts.%d."
#define MIXTRAL "block_sparse_moe.experts.%d."
#define GPT_OSS "mlp.experts."
#define GEMMA "experts.%d."
#define GLM PARAM_SHARED "s."
#define QWEN2 PARAM_SHARED "."
#define GATE_UP "mlp.gate_up_proj"
#define DOWN "mlp.down_proj"
#define GEMMA_NORM "pre_feedforward_layernorm"
#define GEMMA_POST_NORM "post_feedforward_layernorm"
#define GLM4_ATTN_NORM "post_self_attn_layernorm"
#define GLM4_MLP_NORM "post_mlp_layernorm"
#define Q_LATENT_NORM ATTN "q_a_layernorm"
#define KV_LATENT_NORM ATTN "kv_a_layernorm"
#define CORRECTION "e_score_correction_bias"
#define Q_UP ATTN "q_b_proj.weight"
#define KV_UP ATTN "kv_b_proj.weight"
#define KEYS ATTN "k_proj.weight"
#define INPUTS "model.per_layer_"

/* clang-format off */
static const struct param params[] = {
    {ROLE_EMBED, false, MIXTURE_NONE, "model.embed_tokens", NULL, {"model.embed_tokens.weight"}},
    {ROLE_ATTN_NORM, true, MIXTURE_NONE, "input_layernorm", NULL, {"input_layernorm.weight"}},
    {ROLE_ATTN_NORM, true, MIXTURE_NONE, "post_attention_layernorm", NULL,
     {"post_attention_layernorm.weight"}},
    {ROLE_QKV, true, MIXTURE_NONE, ATTN "qkv_proj", NULL,
     {ATTN "q_proj.weight", ATTN "k_proj.weight", ATTN "v_proj.weight"}},
    {ROLE_QKV, true, MIXTURE_NONE, ATTN "qkv_proj", NULL, {ATTN "qkv_proj.weight"}},
    {ROLE_QKV, true, MIXTURE_NONE, ATTN "qkv_proj", NULL, {ATTN "q_proj.weight"}},
    {ROLE_QKV, true, MIXTURE_NONE, ATTN "qkv_proj", NULL, {Q_UP}},
    {ROLE_LATENT, true, MIXTURE_NONE, ATTN "latents", NULL,
     {ATTN "q_a_proj.weight", ATTN "kv_a_proj_with_mqa.weight"}},
    {ROLE_LATENT, true, MIXTURE_NONE, ATTN "latents", NULL, {ATTN "kv_a_proj_with_mqa.weight"}},
    {ROLE_QUERY_LATENT_NORM, true, MIXTURE_NONE, Q_LATENT_NORM, NULL, {Q_LATENT_NORM ".weight"}},
    {ROLE_VALUE_LATENT_NORM, true, MIXTURE_NONE, KV_LATENT_NORM, NULL,
     {KV_LATENT_NORM ".weight"}},
    {ROLE_KEY_UP, true, MIXTURE_NONE, ATTN "key_up.%d", NULL, {KV_UP}},
    {ROLE_VALUE_UP, true, MIXTURE_NONE, ATTN "value_up.%d", NULL, {KV_UP}},
    {ROLE_ATTENTION_GATE, true, MIXTURE_NONE, ATTN "gate", NULL, {ATTN "q_proj.weight"}},
    {ROLE_RECURRENT, true, MIXTURE_NONE, LINEAR "in_proj_qkvz", NULL,
     {LINEAR "in_proj_qkv.weight", LINEAR "in_proj_z.weight"}},
    {ROLE_RECURRENT, true, MIXTURE_NONE, LINEAR "in_proj_qkvz", NULL,
     {LINEAR "in_proj_qkvz.weight"}},
    {ROLE_RECURRENT_GATES, true, MIXTURE_NONE, LINEAR "in_proj_ba", NULL,
     {LINEAR "in_proj_b.weight", LINEAR "in_proj_a.weight"}},
    {ROLE_RECURRENT_GATES, true, MIXTURE_NONE, LINEAR "in_proj_ba", NULL,
     {LINEAR "in_proj_ba.weight"}},
    {ROLE_CONV, true, MIXTURE_NONE, LINEAR "conv1d", NULL, {LINEAR "conv1d.weight"}},
    {ROLE_DECAY, true, MIXTURE_NONE, LINEAR "A_log", NULL, {LINEAR "A_log"}},
    {ROLE_DECAY_BIAS, true, MIXTURE_NONE, LINEAR "dt_bias", NULL, {LINEAR "dt_bias"}},
    {ROLE_RECURRENT_NORM, true, MIXTURE_NONE, LINEAR "norm", NULL, {LINEAR "norm.weight"}},
    {ROLE_RECURRENT_OUT, true, MIXTURE_NONE, LINEAR "out_proj", NULL, {LINEAR "out_proj.weight"}},
    {ROLE_QKV_BIAS, true, MIXTURE_NONE, ATTN "qkv_proj.bias", NULL,
     {ATTN "q_proj.bias", ATTN "k_proj.bias", ATTN "v_proj.bias"}},
    {ROLE_Q_NORM, true, MIXTURE_NONE, ATTN "q_norm", NULL, {ATTN "q_norm.weight"}},
    {ROLE_K_NORM, true, MIXTURE_NONE, ATTN "k_norm", NULL, {ATTN "k_norm.weight"}},
    {ROLE_SINKS, true, MIXTURE_NONE, ATTN "sinks", NULL, {ATTN "sinks"}},
    {ROLE_O, true, MIXTURE_NONE, ATTN "o_proj", NULL, {ATTN "o_proj.weight"}},
    {ROLE_GLOBAL_QKV, true, MIXTURE_NONE, ATTN "qkv_proj", NULL,
     {ATTN "q_proj.weight", ATTN "k_proj.weight", ATTN "v_proj.weight"}},
    {ROLE_GLOBAL_QKV, true, MIXTURE_NONE, ATTN "qkv_proj", NULL,
     {ATTN "q_proj.weight", KEYS, KEYS}},
    {ROLE_GLOBAL_O, true, MIXTURE_NONE, ATTN "o_proj", NULL, {ATTN "o_proj.weight"}},
    {ROLE_QUERY, true, MIXTURE_NONE, ATTN "q_proj", NULL, {ATTN "q_proj.weight"}},
    {ROLE_GLOBAL_QUERY, true, MIXTURE_NONE, ATTN "q_proj", NULL, {ATTN "q_proj.weight"}},
    {ROLE_LAYER_INPUTS, false, MIXTURE_NONE, INPUTS "model_projection", NULL,
     {INPUTS "model_projection.weight"}},
    {ROLE_INPUTS_TABLE, false, MIXTURE_NONE, "model.embed_tokens_per_layer", NULL,
     {"model.embed_tokens_per_layer.weight"}},
    {ROLE_INPUTS_NORM, false, MIXTURE_NONE, INPUTS "projection_norm", NULL,
     {INPUTS "projection_norm.weight"}},
    {ROLE_INPUT_GATE, true, MIXTURE_NONE, "per_layer_input_gate", NULL,
     {"per_layer_input_gate.weight"}},
    {ROLE_INPUT_OUT, true, MIXTURE_NONE, "per_layer_projection", NULL,
     {"per_layer_projection.weight"}},
    {ROLE_INPUT_POST_NORM, true, MIXTURE_NONE, "post_per_layer_input_norm", NULL,
     {"post_per_layer_input_norm.weight"}},
    {ROLE_O_BIAS, true, MIXTURE_NONE, ATTN "o_proj.bias", NULL, {ATTN "o_proj.bias"}},
    {ROLE_ATTN_POST_NORM, true, MIXTURE_NONE, "post_attention_layernorm", NULL,
     {"post_attention_layernorm.weight"}},
    {ROLE_ATTN_POST_NORM, true, MIXTURE_NONE, GLM4_ATTN_NORM, NULL, {GLM4_ATTN_NORM ".weight"}},
    {ROLE_MLP_NORM, true, MIXTURE_NONE, "post_attention_layernorm", NULL,
     {"post_attention_layernorm.weight"}},
    {ROLE_MLP_NORM, true, MIXTURE_NONE, GEMMA_NORM, NULL, {GEMMA_NORM ".weight"}},
    {ROLE_MLP_NORM, true, MIXTURE_NONE, GEMMA_POST_NORM, NULL, {GEMMA_POST_NORM ".weight"}},

    {ROLE_GATE_UP, true, MIXTURE_NONE, GATE_UP, NULL,
     {"mlp.gate_proj.weight", "mlp.up_proj.weight"}},
    {ROLE_GATE_UP, true, MIXTURE_NONE, GATE_UP, NULL, {GATE_UP ".weight"}},
    {ROLE_DOWN, true, MIXTURE_NONE, DOWN, NULL, {"mlp.down_proj.weight"}},
    {ROLE_DENSE_GATE_UP, true, MIXTURE_NONE, GATE_UP, NULL,
     {"mlp.gate_proj.weight", "mlp.up_proj.weight"}},
    {ROLE_DENSE_DOWN, true, MIXTURE_NONE, DOWN, NULL, {"mlp.down_proj.weight"}},
    {ROLE_GATE_UP, true, MIXTURE_QWEN, QWEN "gate_up_proj", GATE_UP,
     {QWEN "gate_proj.weight", QWEN "up_proj.weight"}},
    {ROLE_ROUTER, true, MIXTURE_QWEN, "mlp.gate", NULL, {"mlp.gate.weight"}},
    {ROLE_DOWN, true, MIXTURE_QWEN, QWEN "down_proj", DOWN, {QWEN "down_proj.weight"}},
    {ROLE_GATE_UP, true, MIXTURE_QWEN2, QWEN "gate_up_proj", GATE_UP,
     {QWEN "gate_proj.weight", QWEN "up_proj.weight"}},
    {ROLE_GATE_UP, true, MIXTURE_QWEN2, QWEN "gate_up_proj", GATE_UP,
     {QWEN2 "gate_proj.weight", QWEN2 "up_proj.weight"}},
    {ROLE_ROUTER, true, MIXTURE_QWEN2, "mlp.gate", NULL,
     {"mlp.gate.weight", PARAM_SHARED "_gate.weight"}},
    {ROLE_DOWN, true, MIXTURE_QWEN2, QWEN "down_proj", DOWN, {QWEN "down_proj.weight"}},
    {ROLE_DOWN, true, MIXTURE_QWEN2, QWEN "down_proj", DOWN, {QWEN2 "down_proj.weight"}},
    {ROLE_DENSE_GATE_UP, true, MIXTURE_GLM, GATE_UP, NULL,
     {"mlp.gate_proj.weight", "mlp.up_proj.weight"}},
    {ROLE_DENSE_DOWN, true, MIXTURE_GLM, DOWN, NULL, {"mlp.down_proj.weight"}},
    {ROLE_GATE_UP, true, MIXTURE_GLM, QWEN "gate_up_proj", GATE_UP,
     {QWEN "gate_proj.weight", QWEN "up_proj.weight"}},
    {ROLE_GATE_UP, true, MIXTURE_GLM, QWEN "gate_up_proj", GATE_UP,
     {GLM "gate_proj.weight", GLM "up_proj.weight"}},
    {ROLE_ROUTER, true, MIXTURE_GLM, "mlp.gate", NULL, {"mlp.gate.weight"}},
    {ROLE_CORRECTION, true, MIXTURE_GLM, "mlp.gate.correction", NULL,
     {"mlp.gate." CORRECTION}},
    {ROLE_CORRECTION, true, MIXTURE_GLM, "mlp.gate.correction", NULL, {"mlp." CORRECTION}},
    {ROLE_CORRECTION, true, MIXTURE_GLM, "mlp.gate.correction", NULL,
     {"mlp.moe_statics." CORRECTION}},
    {ROLE_DOWN, true, MIXTURE_GLM, QWEN "down_proj", DOWN, {QWEN "down_proj.weight"}},
    {ROLE_DOWN, true, MIXTURE_GLM, QWEN "down_proj", DOWN, {GLM "down_proj.weight"}},
    {ROLE_GATE_UP, true, MIXTURE_MIXTRAL, QWEN "gate_up_proj", GATE_UP,
     {MIXTRAL "w1.weight", MIXTRAL "w3.weight"}},
    {ROLE_ROUTER, true, MIXTURE_MIXTRAL, "mlp.gate", NULL, {"block_sparse_moe.gate.weight"}},
    {ROLE_DOWN, true, MIXTURE_MIXTRAL, QWEN "down_proj", DOWN, {MIXTRAL "w2.weight"}},
    {ROLE_GATE_UP, true, MIXTURE_MINIMAX, QWEN "gate_up_proj", GATE_UP,
     {MIXTRAL "w1.weight", MIXTRAL "w3.weight"}},
    {ROLE_ROUTER, true, MIXTURE_MINIMAX, "mlp.gate", NULL, {"block_sparse_moe.gate.weight"}},
    {ROLE_CORRECTION, true, MIXTURE_MINIMAX, "mlp.gate.correction", NULL,
     {"block_sparse_moe." CORRECTION}},
    {ROLE_DOWN, true, MIXTURE_MINIMAX, QWEN "down_proj", DOWN, {MIXTRAL "w2.weight"}},
    {ROLE_GATE_UP, true, MIXTURE_GPT_OSS, QWEN "gate_up_proj", GATE_UP,
     {GPT_OSS "gate_up_proj_blocks"}},
    {ROLE_GATE_UP_BIAS, true, MIXTURE_GPT_OSS, GPT_OSS "gate_up_proj.bias", NULL,
     {GPT_OSS "gate_up_proj_bias"}},
    {ROLE_ROUTER, true, MIXTURE_GPT_OSS, "mlp.router", NULL, {"mlp.router.weight"}},
    {ROLE_ROUTER_BIAS, true, MIXTURE_GPT_OSS, "mlp.router.bias", NULL, {"mlp.router.bias"}},
    {ROLE_DOWN, true, MIXTURE_GPT_OSS, QWEN "down_proj", DOWN, {GPT_OSS "down_proj_blocks"}},
    {ROLE_DOWN_BIAS, true, MIXTURE_GPT_OSS, GPT_OSS "down_proj.bias", NULL,
     {GPT_OSS "down_proj_bias"}},

    {ROLE_DENSE_GATE_UP, true, MIXTURE_GEMMA, GATE_UP, NULL,
     {"mlp.gate_proj.weight", "mlp.up_proj.weight"}},
    {ROLE_DENSE_DOWN, true, MIXTURE_GEMMA, DOWN, NULL, {"mlp.down_proj.weight"}},
    {ROLE_GATE_UP, true, MIXTURE_GEMMA, GEMMA "gate_up_proj", GATE_UP,
     {GEMMA "gate_proj.weight", GEMMA "up_proj.weight"}},
    {ROLE_ROUTER, true, MIXTURE_GEMMA, "router.proj", NULL, {"router.proj.weight"}},
    {ROLE_ROUTER_SCALE, true, MIXTURE_GEMMA, "router.scale", NULL, {"router.scale"}},
    {ROLE_EXPERT_SCALE, true, MIXTURE_GEMMA, "router.per_expert_scale", NULL,
     {"router.per_expert_scale"}},
    {ROLE_EXPERTS_NORM, true, MIXTURE_GEMMA, GEMMA_NORM "_2", NULL, {GEMMA_NORM "_2.weight"}},
    {ROLE_DENSE_POST_NORM, true, MIXTURE_GEMMA, GEMMA_POST_NORM "_1", NULL,
     {GEMMA_POST_NORM "_1.weight"}},
    {ROLE_EXPERTS_POST_NORM, true, MIXTURE_GEMMA, GEMMA_POST_NORM "_2", NULL,
     {GEMMA_POST_NORM "_2.weight"}},
    {ROLE_DOWN, true, MIXTURE_GEMMA, GEMMA "down_proj", DOWN, {GEMMA "down_proj.weight"}},

    {ROLE_MLP_POST_NORM, true, MIXTURE_NONE, GEMMA_POST_NORM, NULL, {GEMMA_POST_NORM ".weight"}},
    {ROLE_MLP_POST_NORM, true, MIXTURE_NONE, GLM4_MLP_NORM, NULL, {GLM4_MLP_NORM ".weight"}},
    {ROLE_LAYER_SCALE, true, MIXTURE_NONE, "layer_scalar", NULL, {"layer_scalar"}},
    {ROLE_FINAL_NORM, false, MIXTURE_NONE, "model.norm", NULL, {"model.norm.weight"}},
    {ROLE_HEAD, false, MIXTURE_NONE, "lm_head", NULL, {"lm_head.weight"}},
};
/* clang-format on */

/* Roles of linears are their parts of a plan. */
_Static_assert((int)ROLE_HEAD == PLAN_HEAD && (int)ROLE_LAYER_INPUTS == PLAN_LAYER_INPUTS, "roles");
/* Those that may come as codes are bits of left_out. */
_Static_assert(ROLE_VALUE_UP < 31, "bits");

/* The plan says nothing about these. */
static bool is_beside(enum role role)
{
    return param_goes_with_qkv(role) || param_is_latent(role) || role == ROLE_ROUTER ||
           role == ROLE_ATTENTION_GATE || role == ROLE_LAYER_SCALE || param_is_post_norm(role) ||
           param_is_aside(role) || param_is_bias(role);
}

static bool is_norm(enum role role)
{
    return role == ROLE_ATTN_NORM || role == ROLE_MLP_NORM || param_is_post_norm(role);
}

/* Of a layer's norms: some have the name that others have elsewhere. */
static bool has_norm(const struct model_config *m, const struct param *p)
{
    static const char *const names[][4] = {
        [POST_NORMS_NONE] = {"input_layernorm", NULL, "post_attention_layernorm", NULL},
        [POST_NORMS_GEMMA] = {"input_layernorm", "post_attention_layernorm", GEMMA_NORM,
                              GEMMA_POST_NORM},
        [POST_NORMS_GLM4] = {"input_layernorm", GLM4_ATTN_NORM, "post_attention_layernorm",
                             GLM4_MLP_NORM},
        [POST_NORMS_OLMO] = {"post_attention_layernorm", NULL, GEMMA_POST_NORM, NULL},
    };
    const char *name = names[m->post_norms][p->role == ROLE_ATTN_NORM        ? 0
                                            : p->role == ROLE_ATTN_POST_NORM ? 1
                                            : p->role == ROLE_MLP_NORM       ? 2
                                                                             : 3];
    return name && strcmp(p->name, name) == 0;
}

/* Is it the tensor, or the three of them, that this model has? */
static bool makes_queries(const struct model_config *m, const struct param *p)
{
    if (m->latent.value > 0)
        return strcmp(p->tensors[0], m->latent.query > 0 ? Q_UP : ATTN "q_proj.weight") == 0 &&
               param_is_fused(p);
    return strcmp(p->tensors[0], ATTN "qkv_proj.weight") == 0 ? m->fused_qkv
                                                              : !m->fused_qkv && p->tensors[1];
}

/* Is it the tensor that this model has them in? */
static bool has_corrections(const struct model_config *m, const struct param *p)
{
    static const char *const names[] = {
        [CORRECTIONS_GATE] = "mlp.gate." CORRECTION,
        [CORRECTIONS_MLP] = "mlp." CORRECTION,
        [CORRECTIONS_STATICS] = "mlp.moe_statics." CORRECTION,
        [CORRECTIONS_NONE] = "",
    };
    return m->mixture.kind == MIXTURE_MINIMAX ||
           strcmp(p->tensors[0], names[m->mixture.corrections]) == 0;
}

static bool has_param(const struct model_config *m, const struct param *p)
{
    if (p->role == ROLE_HEAD)
        return !m->tied;
    if (p->role == ROLE_QKV_BIAS)
        return m->qkv_bias;
    if (p->role == ROLE_O_BIAS)
        return m->o_bias;
    if (p->role == ROLE_LAYER_SCALE)
        return m->layer_scale;
    if (p->role == ROLE_SINKS)
        return m->sinks;
    if (p->role == ROLE_Q_NORM || p->role == ROLE_K_NORM)
        return m->head_norm;
    if (p->role == ROLE_GATE_UP || p->role == ROLE_DOWN || param_is_dense(p->role) ||
        p->mixture != MIXTURE_NONE)
        if (p->mixture != m->mixture.kind)
            return false;
    if (p->role == ROLE_CORRECTION)
        return has_corrections(m, p);
    if (param_is_dense(p->role))
        return model_config_other_mlp(m) > 0;
    if (param_is_query(p->role) && m->sharing == 0)
        return false;
    if (param_is_input(p->role))
        return m->inputs.dim > 0;
    if (param_is_latent(p->role) && m->latent.value == 0)
        return false;
    if (p->role == ROLE_QUERY_LATENT_NORM)
        return m->latent.query > 0;
    if (p->role == ROLE_LATENT)
        return param_is_fused(p) == (m->latent.query == 0);
    if (p->role == ROLE_QKV)
        return makes_queries(m, p);
    if (param_is_global(p->role) && model_config_kinds(m) == 1)
        return false;
    if (p->role == ROLE_GLOBAL_QKV)
        return (strcmp(p->tensors[2], KEYS) == 0) == m->keys_as_values;
    if (p->role == ROLE_ATTENTION_GATE)
        return m->attention_gate;
    if (p->role == ROLE_RECURRENT || p->role == ROLE_RECURRENT_GATES)
        return param_is_fused(p) == (m->recurrent.by_head != 0);
    if (p->role == ROLE_GATE_UP && !param_in_turns(m))
        return param_is_fused(p) == m->fused_gate_up;
    if (is_norm(p->role))
        return has_norm(m, p);
    return true;
}

/* Has such a layer it? To plans all are alike, and attend. */
static bool is_in_layer(const struct model_config *m, const struct param *p, int32_t layer,
                        bool planned)
{
    if (p->per_layer != (layer >= 0) || !has_param(m, p))
        return false;
    if (planned)
        return !param_is_dense(p->role) && !param_is_shared(p) && !param_is_recurrent(p->role) &&
               !param_is_global(p->role) && !param_is_query(p->role) && !param_is_input(p->role);
    if (layer >= 0 &&
        (model_config_recurs(m, layer) ? param_is_attention(p->role) : param_is_recurrent(p->role)))
        return false;
    if (layer >= 0 &&
        (model_config_kind(m, layer) > 0 ? param_is_local(p->role) : param_is_global(p->role)))
        return false;
    if (layer >= 0 && (model_config_stores(m, layer)
                           ? param_is_query(p->role)
                           : param_is_of_keys(p->role) && !model_config_recurs(m, layer)))
        return false;
    if (mixture_is_beside(&m->mixture))
        return true;
    if (p->mixture == MIXTURE_NONE && (p->role == ROLE_GATE_UP || p->role == ROLE_DOWN))
        return !model_config_has_other_mlp(m, layer);
    if (param_is_dense(p->role))
        return model_config_has_other_mlp(m, layer);
    return p->mixture == MIXTURE_NONE || !model_config_is_dense(m, layer);
}

/* Old checkpoints carry the rotary frequencies; a tied one may repeat the embedding as its head;
 * quantised ones may have scales for activations, which stay as they are; a model that also sees
 * has more than its texts take. */
static const char *const ignored[] = {"model.layers.*.self_attn.rotary_emb.inv_freq",
                                      "model.rotary_emb.inv_freq",
                                      "model.layers.**.input_scale",
                                      "model.layers.**.activation_scale",
                                      "model.layers.**.gate_up_proj_activation_scale",
                                      "model.layers.**.down_proj_activation_scale",
                                      "lm_head.weight",
                                      "vision_tower.**",
                                      "multi_modal_projector.**",
                                      "model.vision_tower.**",
                                      "model.multi_modal_projector.**",
                                      "model.vision_embedder.**", /* Gemma 4's */
                                      "model.embed_vision.**",
                                      "model.audio_tower.**",
                                      "model.embed_audio.**",
                                      "visual.**",
                                      "model.visual.**",
                                      "mtp.**",
                                      "model.mtp_block.**", /* ERNIE's */
                                      "model.mtp_emb_norm.**",
                                      "model.mtp_hidden_norm.**",
                                      "model.mtp_linear_proj.**"};

struct span layout_heads(const struct model_config *m, const struct flow *f, int32_t rank)
{
    return layout_fill_query_heads(m, spread_pieces(&f->mesh, &f->attention, SPREAD_COLS),
                                   spread_index(&f->mesh, &f->attention, SPREAD_COLS, rank));
}

struct span layout_kv_heads(const struct model_config *m, const struct flow *f, int32_t rank,
                            int32_t kind)
{
    return layout_fill_kv_heads(m, kind, layout_heads(m, f, rank));
}

void layout_left_out(const struct checkpoint *c, struct model_config *m)
{
    char name[PLACEMENT_NAME_MAX];
    const bool floats = m->quant.form == QUANT_BYTES; /* codes have the names of values */
    for (size_t i = 0; i < ARRAY_LEN(params); i++) {
        const struct param *p = &params[i];
        if (!has_param(m, p) || !param_is_coded(m, p) || param_is_shared(p))
            continue;
        int32_t layer = 0;
        while (layer < m->layers - 1 && !is_in_layer(m, p, layer, false))
            layer++;
        layout_fill_name(name, p->tensors[0], (struct which){layer, 0});
        const struct checkpoint_tensor *t = checkpoint_find(c, name);
        if (t && (!floats || dtype_is_compute(t->dtype)))
            m->quant.left_out |= 1 << p->role;
    }
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

static enum status slices_open(struct layout *l, struct err *err)
{
    size_t n = 0;
    for (int32_t i = 0; i < l->count; i++)
        n += layout_fill_slices(l, l->roles[i]);
    l->slices = calloc(n, sizeof *l->slices);
    if (!l->slices)
        return base_fail(err, ERR_NOMEM, "layout: no memory for %zu slices", n);
    for (int32_t i = l->count - 1; i >= 0; i--)
        l->weights[i].slices = l->slices + (n -= layout_fill_slices(l, l->roles[i]));
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
    l->heads = layout_heads(m, l->flow, l->rank);
    l->mlp = flow_inputs(l->flow, PLAN_DOWN, l->rank);
    l->vocab = flow_outputs(l->flow, PLAN_EMBED, l->rank);
    for (int32_t i = 0; i < model_config_kinds(m); i++) {
        const int32_t group = m->heads / model_config_shape(m, i).kv_heads;
        l->kv_heads[i] = layout_kv_heads(m, l->flow, l->rank, i);
        for (int64_t h = l->heads.begin; h < l->heads.end; h++)
            l->kv_of[i][h - l->heads.begin] = (int32_t)(h / group - l->kv_heads[i].begin);
    }
}

/* The experts whose weights it is, or the heads; one where it is none's, or there are none, as in
 * plans. Shared experts follow the others. */
static struct span own_experts(const struct model_config *m, const struct param *p, bool planned,
                               struct span heads)
{
    const struct mixture_config *x = &m->mixture;
    if (param_is_head(p->role) && span_len(heads) > 0)
        return heads;
    if (!param_is_expert(p) || planned)
        return (struct span){0, 1};
    return param_is_shared(p) ? (struct span){x->experts, mixture_experts(x)}
                              : (struct span){0, x->experts};
}

/* Name, role and place of every weight of the first `layers`; what a rank holds of it is filled in
 * later. planned: as plans know them, all experts as one. heads: of the rank. of: room for as many
 * as weights. */
static void list_weights(struct layout *l, const struct model_config *m, int32_t layers,
                         bool planned, struct span heads, enum dtype dtype, const struct param **of)
{
    for (int32_t layer = -1; layer < layers; layer++) {
        for (size_t i = 0; i < ARRAY_LEN(params); i++) {
            const struct param *p = &params[i];
            if (!is_in_layer(m, p, layer, planned))
                continue;
            const struct span own = own_experts(m, p, planned, heads);
            for (int32_t expert = (int32_t)own.begin; expert < own.end; expert++) {
                struct local_weight *w = &l->weights[l->count];
                layout_fill_name(w->name, p->of_plans && planned ? p->of_plans : p->name,
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
                             struct span heads, enum dtype dtype, struct layout **out,
                             const struct param ***of, struct err *err)
{
    enum status st = OK;
    const size_t experts = planned ? 0 : (size_t)mixture_experts(&m->mixture);
    const size_t own = experts + (size_t)span_len(heads) + 1;
    const size_t most = (ARRAY_LEN(params) + 2 * own) * ((size_t)layers + 1);
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
    list_weights(l, m, layers, planned, heads, dtype, *of);
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
    const struct span none = {0, 0};
    TRY(open_list(m, m->layers, true, none, dtype, &l, &of, err));
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
    TRY(open_list(m, layers, false, layout_heads(m, f, rank), f->dtype, &l, &of, err));
    l->rank = rank;
    l->flow = f;
    l->behind = m->layers;
    l->sharing = m->sharing;
    for (int32_t i = 0; i < model_config_kinds(m); i++) {
        l->kv_of[i] = calloc((size_t)m->heads, sizeof *l->kv_of[i]);
        if (!l->kv_of[i]) {
            st = base_fail(err, ERR_NOMEM, "layout: no memory");
            goto out;
        }
    }
    split(l, m);
    TRY(slices_open(l, err));
    for (int32_t i = 0; i < l->count; i++)
        layout_fill(l, m, of[i], (struct which){l->layers[i], l->experts[i]}, &l->weights[i]);
    TRY(placement_layout(f->ops, l->weights, l->count, &l->arena_bytes, err));
    if (m->mixture.kind == MIXTURE_GLM)
        snprintf(l->ahead, sizeof l->ahead, "model.layers.%d.**", m->layers);
    *out = l;
    l = NULL;
out:
    free(of);
    layout_close(l);
    return st;
}

struct recurrent_heads layout_recurrent_heads(const struct model_config *m, const struct flow *f,
                                              int32_t rank)
{
    const struct recurrent_config *x = &m->recurrent;
    const int32_t keys = (int32_t)span_len(layout_fill_recurrent_heads(m, f, rank));
    const int32_t values = keys > 0 ? keys * (x->values / x->keys) : 0;
    return (struct recurrent_heads){keys, values, x->key_dim, x->value_dim, x->taps};
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
    for (int32_t i = 0; i < MODEL_KINDS; i++)
        free(l->kv_of[i]);
    free(l->weights);
    free(l->slices);
    free(l->roles);
    free(l->layers);
    free(l->experts);
    free(l);
}

/* Have two layers weights of the same sizes? */
static bool is_alike(const struct model_config *m, int32_t a, int32_t b)
{
    return model_config_has_other_mlp(m, a) == model_config_has_other_mlp(m, b) &&
           model_config_stores(m, a) == model_config_stores(m, b) &&
           model_config_recurs(m, a) == model_config_recurs(m, b) &&
           model_config_kind(m, a) == model_config_kind(m, b);
}

/* Those that are like this one, if it is the first of them; else 0. */
static int32_t first_of_alike(const struct model_config *m, int32_t layer)
{
    int32_t n = 0;
    for (int32_t i = 0; i < layer; i++)
        if (is_alike(m, i, layer))
            return 0;
    for (int32_t i = layer; i < m->layers; i++)
        n += is_alike(m, i, layer);
    return n;
}

/* Without a list of all weights: of layers that are alike the first is looked at. */
enum status layout_arena_bytes(const struct model_config *m, const struct flow *f, int32_t rank,
                               size_t *bytes, struct err *err)
{
    enum status st = OK;
    struct layout *l = NULL;
    int32_t layers = 0;
    for (int32_t i = 0; i < m->layers; i++)
        layers = first_of_alike(m, i) > 0 ? i + 1 : layers;
    *bytes = 0;
    TRY(open_layers(m, f, rank, layers, &l, err));
    for (int32_t i = 0; i < l->count; i++)
        *bytes += base_align(l->weights[i].bytes, 64) *
                  (l->layers[i] < 0 ? 1 : (size_t)first_of_alike(m, l->layers[i]));
out:
    layout_close(l);
    return st;
}

size_t layout_kv_layer_bytes(const struct model_config *m, const struct flow *f, int32_t rank,
                             int32_t kind, enum dtype kv_dtype)
{
    const size_t sides = m->latent.value > 0 ? 1 : 2; /* a latent is key and value */
    return sides * (size_t)span_len(layout_kv_heads(m, f, rank, kind)) *
           (size_t)model_config_shape(m, kind).head_dim * dtype_size(kv_dtype);
}

size_t layout_kv_bytes_per_token(const struct model_config *m, const struct flow *f, int32_t rank,
                                 enum dtype kv_dtype)
{
    size_t bytes = 0;
    for (int32_t i = 0; i < model_config_kinds(m); i++)
        bytes +=
            (size_t)model_config_storing(m, i) * layout_kv_layer_bytes(m, f, rank, i, kv_dtype);
    return bytes;
}

/* Published files have keys and values of layers that take those of others, too. */
static const char *const unread[] = {"k_proj", "v_proj", "k_norm", "v_norm"};

enum status layout_check(const struct layout *l, const struct checkpoint *c, int32_t *ignored_count,
                         struct err *err)
{
    enum status st = OK;
    const size_t known = ARRAY_LEN(ignored), last = (size_t)l->sharing * ARRAY_LEN(unread);
    const char **all = calloc(known + 1 + last, sizeof *all);
    char(*names)[PLACEMENT_NAME_MAX] = calloc(last + 1, sizeof *names);
    size_t n = 0;
    if (!all || !names) {
        st = base_fail(err, ERR_NOMEM, "layout: no memory");
        goto out;
    }
    all[n++] = l->ahead;
    for (size_t i = 0; i < known; i++)
        all[n++] = ignored[i];
    for (size_t i = 0; i < last; i++) {
        snprintf(names[i], sizeof names[i], "model.layers.%d." ATTN "%s.**",
                 l->behind - 1 - (int32_t)(i / ARRAY_LEN(unread)), unread[i % ARRAY_LEN(unread)]);
        all[n++] = names[i];
    }
    st = checkpoint_check(c, l->weights, l->count, all, (int32_t)n, ignored_count, err);
out:
    free(names);
    free(all);
    return st;
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
