/* DESIGN: a tensor's name is a row. Names are looked up from the checkpoint's side, so whoever
 * knows which tensors a model has (engine/model/layout) asks for each, and what nobody asked for is
 * an error there. */
#include "weights/gguf/gguf_model.h"

#include "weights/gguf/gguf_arch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A matrix that the converter leaves in fp32 whatever the others are. */
static bool stays_wide(const char *tensor)
{
    return strstr(tensor, "ffn_gate_inp") || strstr(tensor, "ssm_conv1d") ||
           strstr(tensor, "exp_probs_b");
}

enum dtype gguf_model_dtype(const struct gguf *g)
{
    static const struct {
        enum gguf_block block;
        enum dtype dtype;
    } plain[] = {{GGUF_BLOCK_F32, DTYPE_F32}, {GGUF_BLOCK_F16, DTYPE_F16}};
    for (size_t i = 0; i < ARRAY_LEN(plain); i++) {
        bool all = true;
        for (int32_t j = 0; j < gguf_tensor_count(g) && all; j++) {
            const struct gguf_tensor *t = gguf_tensor_at(g, j);
            all = t->ndim < 2 || t->block == plain[i].block || stays_wide(t->name);
        }
        if (all)
            return plain[i].dtype;
    }
    return DTYPE_BF16;
}

/* ---- tensors ---- */

/* What a tensor is. */
enum what {
    PLAIN,
    HEADS,  /* rows of heads */
    NORM,   /* gains */
    EXACT,  /* fp32 whatever the others are */
    DECAY,  /* that, and of value heads; minus its exponential */
    VALUES, /* of layers that recur, as in enum gguf_order_kind */
    VALUE_ROWS,
    VALUE_COLS,
    CHANNELS,
    CONVOLUTION, /* the same */
    BY_KEY_HEAD, /* with attn_gate.weight behind it */
    BY_HEAD,     /* keys and values of latents, transposed keys; with attn_v_b.weight behind it */
    /* Rows that count only where the file has the tensor: */
    WHOLE, /* as in the checkpoint */
    GATES, /* the first half of each expert's rows, */
    UPS,   /* the second */
};

/* In a block of the file, and in a layer of the checkpoint, where "%d" is the expert. */
struct name_row {
    const char *hf, *gguf;
    enum what what;
    const char *only; /* as in key_row */
};

static const struct name_row whole_rows[] = {
    {"model.embed_tokens.weight", "token_embd.weight", PLAIN, NULL},
    {"model.norm.weight", "output_norm.weight", NORM, NULL},
    {"lm_head.weight", "output.weight", PLAIN, NULL},
    {"model.embed_tokens_per_layer.weight", "per_layer_token_embd.weight", PLAIN, NULL},
    {"model.per_layer_model_projection.weight", "per_layer_model_proj.weight", PLAIN, NULL},
    {"model.per_layer_projection_norm.weight", "per_layer_proj_norm.weight", NORM, NULL},
};

#define GEMMAS " gemma2 gemma3 " GGUF_ARCH_GEMMA4
#define LINEAR "linear_attn."

/* The first row that fits counts. */
static const struct name_row layer_rows[] = {
    {"input_layernorm.weight", "attn_norm.weight", NORM, NULL},
    {"self_attn.q_proj.weight", "attn_q.weight", HEADS, NULL},
    {"self_attn.k_proj.weight", "attn_k.weight", HEADS, NULL},
    {"self_attn.v_proj.weight", "attn_v.weight", PLAIN, NULL},
    {"self_attn.qkv_proj.weight", "attn_qkv.weight", PLAIN, NULL},
    {"self_attn.q_proj.bias", "attn_q.bias", HEADS, NULL},
    {"self_attn.k_proj.bias", "attn_k.bias", HEADS, NULL},
    {"self_attn.v_proj.bias", "attn_v.bias", PLAIN, NULL},
    {"self_attn.o_proj.weight", "attn_output.weight", PLAIN, NULL},
    {"self_attn.q_a_proj.weight", "attn_q_a.weight", PLAIN, NULL},
    {"self_attn.q_a_layernorm.weight", "attn_q_a_norm.weight", PLAIN, NULL},
    {"self_attn.q_b_proj.weight", "attn_q_b.weight", PLAIN, NULL},
    {"self_attn.kv_a_proj_with_mqa.weight", "attn_kv_a_mqa.weight", PLAIN, NULL},
    {"self_attn.kv_a_layernorm.weight", "attn_kv_a_norm.weight", PLAIN, NULL},
    {"self_attn.kv_b_proj.weight", "attn_kv_b.weight", WHOLE, NULL}, /* the same */
    {"self_attn.kv_b_proj.weight", "attn_k_b.weight", BY_HEAD, NULL},
    {"self_attn.o_proj.bias", "attn_output.bias", PLAIN, NULL},
    {"self_attn.q_norm.weight", "attn_q_norm.weight", NORM, NULL},
    {"self_attn.k_norm.weight", "attn_k_norm.weight", NORM, NULL},
    {LINEAR "in_proj_qkvz.weight", "ssm_in.weight", WHOLE, NULL}, /* llama.cpp's first form */
    {LINEAR "in_proj_qkvz.weight", "attn_qkv.weight", BY_KEY_HEAD, NULL},
    {LINEAR "in_proj_ba.weight", "ssm_ba.weight", PLAIN, NULL},
    {LINEAR "in_proj_qkv.weight", "attn_qkv.weight", CHANNELS, NULL},
    {LINEAR "in_proj_z.weight", "attn_gate.weight", VALUE_ROWS, NULL},
    {LINEAR "in_proj_b.weight", "ssm_beta.weight", VALUES, NULL},
    {LINEAR "in_proj_a.weight", "ssm_alpha.weight", VALUES, NULL},
    {LINEAR "conv1d.weight", "ssm_conv1d.weight", CONVOLUTION, NULL},
    {LINEAR "A_log", "ssm_a", DECAY, NULL},
    {LINEAR "dt_bias", "ssm_dt.bias", VALUES, NULL},
    {LINEAR "norm.weight", "ssm_norm.weight", EXACT, NULL},
    {LINEAR "out_proj.weight", "ssm_out.weight", VALUE_COLS, NULL},
    {"post_attention_layernorm.weight", "post_attention_norm.weight", NORM,
     GEMMAS GGUF_ARCH_HYBRIDS},
    {"post_attention_layernorm.weight", "post_attention_norm.weight", PLAIN,
     " seed_oss glm4moe exaone4 "},
    {"post_attention_layernorm.weight", "ffn_norm.weight", NORM, NULL},
    {"pre_feedforward_layernorm.weight", "ffn_norm.weight", NORM, NULL},
    {"post_feedforward_layernorm.weight", "post_ffw_norm.weight", NORM, NULL},
    {"pre_feedforward_layernorm_2.weight", "pre_ffw_norm_2.weight", NORM, NULL},
    {"post_feedforward_layernorm_1.weight", "post_ffw_norm_1.weight", NORM, NULL},
    {"post_feedforward_layernorm_2.weight", "post_ffw_norm_2.weight", NORM, NULL},
    {"per_layer_input_gate.weight", "inp_gate.weight", PLAIN, NULL},
    {"per_layer_projection.weight", "proj.weight", PLAIN, NULL},
    {"post_per_layer_input_norm.weight", "post_norm.weight", NORM, NULL},
    {"layer_scalar", "layer_output_scale.weight", PLAIN, NULL},
    {"post_self_attn_layernorm.weight", "post_attention_norm.weight", PLAIN, NULL},
    {"post_mlp_layernorm.weight", "post_ffw_norm.weight", PLAIN, NULL},
    {"mlp.gate_proj.weight", "ffn_gate.weight", PLAIN, NULL},
    {"mlp.up_proj.weight", "ffn_up.weight", PLAIN, NULL},
    {"mlp.gate_up_proj.weight", "ffn_up.weight", PLAIN, NULL},
    {"mlp.down_proj.weight", "ffn_down.weight", PLAIN, NULL},
    {"mlp.gate.weight", "ffn_gate_inp.weight", EXACT, " ernie4_5-moe "},
    {"mlp.gate.weight", "ffn_gate_inp.weight", PLAIN, NULL},
    {"mlp.gate.e_score_correction_bias", "exp_probs_b.bias", EXACT, NULL},
    {"mlp.e_score_correction_bias", "exp_probs_b.bias", EXACT, NULL},
    {"mlp.moe_statics.e_score_correction_bias", "exp_probs_b.bias", EXACT, NULL},
    {"mlp.shared_expert_gate.weight", "ffn_gate_inp_shexp.weight", PLAIN, NULL},
    {"mlp.shared_expert.gate_proj.weight", "ffn_gate_shexp.weight", PLAIN, NULL},
    {"mlp.shared_expert.up_proj.weight", "ffn_up_shexp.weight", PLAIN, NULL},
    {"mlp.shared_expert.down_proj.weight", "ffn_down_shexp.weight", PLAIN, NULL},
    {"mlp.shared_experts.gate_proj.weight", "ffn_gate_shexp.weight", PLAIN, NULL},
    {"mlp.shared_experts.up_proj.weight", "ffn_up_shexp.weight", PLAIN, NULL},
    {"mlp.shared_experts.down_proj.weight", "ffn_down_shexp.weight", PLAIN, NULL},
    {"mlp.experts.%d.gate_proj.weight", "ffn_gate_up_exps.weight", GATES, NULL},
    {"mlp.experts.%d.up_proj.weight", "ffn_gate_up_exps.weight", UPS, NULL},
    {"mlp.experts.%d.gate_proj.weight", "ffn_gate_exps.weight", PLAIN, NULL},
    {"mlp.experts.%d.up_proj.weight", "ffn_up_exps.weight", PLAIN, NULL},
    {"mlp.experts.%d.down_proj.weight", "ffn_down_exps.weight", PLAIN, NULL},
    {"router.proj.weight", "ffn_gate_inp.weight", PLAIN, NULL},
    {"router.scale", "ffn_gate_inp.scale", PLAIN, NULL},
    {"router.per_expert_scale", "ffn_down_exps.scale", PLAIN, NULL},
    {"experts.%d.gate_proj.weight", "ffn_gate_up_exps.weight", GATES, NULL},
    {"experts.%d.up_proj.weight", "ffn_gate_up_exps.weight", UPS, NULL},
    {"experts.%d.gate_proj.weight", "ffn_gate_exps.weight", PLAIN, NULL},
    {"experts.%d.up_proj.weight", "ffn_up_exps.weight", PLAIN, NULL},
    {"experts.%d.down_proj.weight", "ffn_down_exps.weight", PLAIN, NULL},
    {"block_sparse_moe.gate.weight", "ffn_gate_inp.weight", PLAIN, NULL},
    {"block_sparse_moe.experts.%d.w1.weight", "ffn_gate_exps.weight", PLAIN, NULL},
    {"block_sparse_moe.experts.%d.w3.weight", "ffn_up_exps.weight", PLAIN, NULL},
    {"block_sparse_moe.experts.%d.w2.weight", "ffn_down_exps.weight", PLAIN, NULL},
};

/* A run of digits below 10^9 at *text, which is moved behind it; -1: none. */
static int32_t take_number(const char **text)
{
    const size_t n = strspn(*text, "0123456789");
    const long v = n > 0 && n < 10 ? strtol(*text, NULL, 10) : -1;
    *text += n;
    return (int32_t)v;
}

/* *expert is -1 where the pattern has none. */
static bool fits(const char *pattern, const char *name, int32_t *expert)
{
    const char *number = strstr(pattern, "%d");
    const size_t n = number ? (size_t)(number - pattern) : 0;
    *expert = -1;
    if (!number)
        return strcmp(pattern, name) == 0;
    if (strncmp(pattern, name, n) != 0)
        return false;
    name += n;
    *expert = take_number(&name);
    return *expert >= 0 && strcmp(number + 2, name) == 0;
}

/* A tensor's name in a checkpoint, taken apart. */
struct parsed {
    const char *in_layer; /* behind the layer's number; of no layer's: the name */
    int32_t layer;        /* -1: of no layer's */
};

static bool parse(const char *name, struct parsed *out)
{
    static const char layers[] = "model.layers.";
    *out = (struct parsed){name, -1};
    if (strncmp(name, layers, sizeof layers - 1) != 0)
        return true;
    out->in_layer += sizeof layers - 1;
    out->layer = take_number(&out->in_layer);
    return out->layer >= 0 && *out->in_layer++ == '.';
}

/* By its name within a layer; NULL when absent. */
static const struct gguf_tensor *find_tensor(const struct gguf *g, int32_t layer, const char *name)
{
    char full[128];
    if (layer >= 0)
        snprintf(full, sizeof full, "blk.%d.%s", (int)layer, name);
    else
        snprintf(full, sizeof full, "%s", name);
    return gguf_find_tensor(g, full);
}

static const struct name_row *find_row(const struct gguf *g, const struct gguf_arch *a,
                                       const struct parsed *p, int32_t *expert)
{
    const struct name_row *rows = p->layer >= 0 ? layer_rows : whole_rows;
    const size_t count = p->layer >= 0 ? ARRAY_LEN(layer_rows) : ARRAY_LEN(whole_rows);
    for (size_t i = 0; i < count; i++) {
        const struct name_row *r = &rows[i];
        const bool its = !r->only || gguf_arch_is(a, r->only);
        if (its && fits(r->hf, p->in_layer, expert) &&
            (r->what < WHOLE || find_tensor(g, p->layer, r->gguf)))
            return r;
    }
    return NULL;
}

/* How the rows are ordered of an architecture that is `tiled`. */
static const enum gguf_order_kind order_kinds[] = {
    [DECAY] = GGUF_ORDER_VALUES,          [VALUES] = GGUF_ORDER_VALUES,
    [VALUE_ROWS] = GGUF_ORDER_VALUE_ROWS, [CHANNELS] = GGUF_ORDER_CHANNELS,
    [CONVOLUTION] = GGUF_ORDER_CHANNELS,  [UPS] = GGUF_ORDER_NONE,
};

/* Which rows and columns of the tensor it is. False: another one is missing. */
static bool arrange(const struct gguf *g, const struct gguf_arch *a, enum what what, int32_t layer,
                    const struct model_config *m, struct gguf_source *out)
{
    const struct recurrent_config *r = &m->recurrent;
    if (what == GATES || what == UPS) { /* an odd number is not that of any experts */
        out->first += what == UPS ? out->rows / 2 : 0;
        out->rows = out->rows % 2 == 0 ? out->rows / 2 : out->rows;
    }
    if (a->tiled && r->values > r->keys) {
        out->order = order_kinds[what];
        out->columns = what == VALUE_COLS ? GGUF_ORDER_VALUE_COLS : GGUF_ORDER_NONE;
    }
    if (what == BY_KEY_HEAD) {
        out->order = GGUF_ORDER_BY_KEY_HEAD;
        out->behind = find_tensor(g, layer, "attn_gate.weight");
        out->behind_rows = (int64_t)r->values * r->value_dim;
        out->rows += out->behind_rows;
        return out->behind != NULL;
    }
    if (what == BY_HEAD) {
        out->by_head = true;
        out->behind = find_tensor(g, layer, "attn_v_b.weight");
        return out->behind != NULL;
    }
    return true;
}

bool gguf_model_source(const struct gguf *g, const char *name, const struct model_config *m,
                       struct gguf_source *out)
{
    int32_t expert = -1;
    struct parsed p;
    struct err ignored;
    const struct gguf_arch *a = gguf_arch_find(g, &ignored);
    const struct name_row *row = a && parse(name, &p) ? find_row(g, a, &p, &expert) : NULL;
    const struct gguf_tensor *t = row ? find_tensor(g, p.layer, row->gguf) : NULL;
    const bool experts = expert >= 0, several = experts || (t && row->what == BY_HEAD);
    if (!t || t->ndim != (several ? 3 : t->ndim == 1 ? 1 : 2) || (experts && expert >= t->shape[0]))
        return false;
    *out = (struct gguf_source){
        .tensor = t,
        .rows = t->ndim == 1 ? 1 : t->shape[t->ndim - 2],
        .cols = t->shape[t->ndim - 1],
        .head_dim = row->what == HEADS && a->pairs ? m->head_dim : 0,
        .less = row->what == NORM && a->more ? 1 : 0,
        .exact = row->what == EXACT || row->what == DECAY,
        .decay = row->what == DECAY,
        .convolution = row->what == CONVOLUTION,
    };
    out->first = experts ? expert * out->rows : 0;
    return arrange(g, a, row->what, p.layer, m, out);
}

/* Layers with the keys and values of others may have what makes their own, too. */
static bool is_unused(const struct gguf *g, const struct gguf_arch *a, int64_t blocks,
                      int32_t layer, const char *tensor)
{
    static const char *const names[] = {".attn_k.weight", ".attn_v.weight", ".attn_k_norm.weight"};
    bool its = false;
    if (!gguf_arch_is(a, GGUF_ARCH_GEMMA4))
        return false;
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        its = its || strcmp(tensor, names[i]) == 0;
    return its && layer >= blocks - gguf_arch_sharing(g, a) && layer < blocks;
}

bool gguf_model_is_left_out(const struct gguf *g, const char *tensor)
{
    static const char *const settings[] = {"rope_freqs.weight", "rope_factors_long.weight",
                                           "rope_factors_short.weight"};
    struct err ignored;
    const struct gguf_arch *a = gguf_arch_find(g, &ignored);
    int64_t blocks = 0;
    for (size_t i = 0; i < ARRAY_LEN(settings); i++)
        if (strcmp(tensor, settings[i]) == 0)
            return true;
    if (strncmp(tensor, "blk.", 4) != 0 || !a)
        return false;
    tensor += 4;
    gguf_int(gguf_arch_get(g, a, "block_count"), &blocks);
    const int32_t layer = take_number(&tensor);
    if (is_unused(g, a, blocks, layer, tensor))
        return true;
    return blocks > 0 && layer < blocks && layer >= blocks - gguf_arch_guessing(g, a);
}
