/* DESIGN: a tensor's name is a row. Names are looked up from the checkpoint's side, so whoever
 * knows which tensors a model has (engine/model/layout) asks for each, and what nobody asked for is
 * an error there. */
#include "weights/gguf/gguf_model.h"

#include "weights/gguf/gguf_arch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
            all = t->ndim < 2 || t->block == plain[i].block || strstr(t->name, "ffn_gate_inp");
        }
        if (all)
            return plain[i].dtype;
    }
    return DTYPE_BF16;
}

/* ---- tensors ---- */

#define HEADS 1 /* rows of heads */
#define NORM 2  /* gains */
#define EXACT 3 /* fp32 whatever the others are */

/* In a block of the file, and in a layer of the checkpoint, where "%d" is the expert. */
struct name_row {
    const char *hf, *gguf;
    int what;
    const char *only; /* as in key_row */
};

static const struct name_row whole_rows[] = {
    {"model.embed_tokens.weight", "token_embd.weight", 0, NULL},
    {"model.norm.weight", "output_norm.weight", NORM, NULL},
    {"lm_head.weight", "output.weight", 0, NULL},
};

#define GEMMAS " gemma2 gemma3 "

/* The first row that fits counts. */
static const struct name_row layer_rows[] = {
    {"input_layernorm.weight", "attn_norm.weight", NORM, NULL},
    {"self_attn.q_proj.weight", "attn_q.weight", HEADS, NULL},
    {"self_attn.k_proj.weight", "attn_k.weight", HEADS, NULL},
    {"self_attn.v_proj.weight", "attn_v.weight", 0, NULL},
    {"self_attn.qkv_proj.weight", "attn_qkv.weight", 0, NULL},
    {"self_attn.q_proj.bias", "attn_q.bias", HEADS, NULL},
    {"self_attn.k_proj.bias", "attn_k.bias", HEADS, NULL},
    {"self_attn.v_proj.bias", "attn_v.bias", 0, NULL},
    {"self_attn.o_proj.weight", "attn_output.weight", 0, NULL},
    {"self_attn.o_proj.bias", "attn_output.bias", 0, NULL},
    {"self_attn.q_norm.weight", "attn_q_norm.weight", NORM, NULL},
    {"self_attn.k_norm.weight", "attn_k_norm.weight", NORM, NULL},
    {"post_attention_layernorm.weight", "post_attention_norm.weight", NORM, GEMMAS},
    {"post_attention_layernorm.weight", "post_attention_norm.weight", 0, " seed_oss glm4moe "},
    {"post_attention_layernorm.weight", "ffn_norm.weight", NORM, NULL},
    {"pre_feedforward_layernorm.weight", "ffn_norm.weight", NORM, NULL},
    {"post_feedforward_layernorm.weight", "post_ffw_norm.weight", NORM, NULL},
    {"post_self_attn_layernorm.weight", "post_attention_norm.weight", 0, NULL},
    {"post_mlp_layernorm.weight", "post_ffw_norm.weight", 0, NULL},
    {"mlp.gate_proj.weight", "ffn_gate.weight", 0, NULL},
    {"mlp.up_proj.weight", "ffn_up.weight", 0, NULL},
    {"mlp.gate_up_proj.weight", "ffn_up.weight", 0, NULL},
    {"mlp.down_proj.weight", "ffn_down.weight", 0, NULL},
    {"mlp.gate.weight", "ffn_gate_inp.weight", 0, NULL},
    {"mlp.gate.e_score_correction_bias", "exp_probs_b.bias", EXACT, NULL},
    {"mlp.shared_expert_gate.weight", "ffn_gate_inp_shexp.weight", 0, NULL},
    {"mlp.shared_expert.gate_proj.weight", "ffn_gate_shexp.weight", 0, NULL},
    {"mlp.shared_expert.up_proj.weight", "ffn_up_shexp.weight", 0, NULL},
    {"mlp.shared_expert.down_proj.weight", "ffn_down_shexp.weight", 0, NULL},
    {"mlp.shared_experts.gate_proj.weight", "ffn_gate_shexp.weight", 0, NULL},
    {"mlp.shared_experts.up_proj.weight", "ffn_up_shexp.weight", 0, NULL},
    {"mlp.shared_experts.down_proj.weight", "ffn_down_shexp.weight", 0, NULL},
    {"mlp.experts.%d.gate_proj.weight", "ffn_gate_exps.weight", 0, NULL},
    {"mlp.experts.%d.up_proj.weight", "ffn_up_exps.weight", 0, NULL},
    {"mlp.experts.%d.down_proj.weight", "ffn_down_exps.weight", 0, NULL},
    {"block_sparse_moe.gate.weight", "ffn_gate_inp.weight", 0, NULL},
    {"block_sparse_moe.experts.%d.w1.weight", "ffn_gate_exps.weight", 0, NULL},
    {"block_sparse_moe.experts.%d.w3.weight", "ffn_up_exps.weight", 0, NULL},
    {"block_sparse_moe.experts.%d.w2.weight", "ffn_down_exps.weight", 0, NULL},
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

static const struct name_row *find_row(const struct gguf_arch *a, const char *name, int32_t *layer,
                                       int32_t *expert)
{
    static const char layers[] = "model.layers.";
    const bool in_layer = strncmp(name, layers, sizeof layers - 1) == 0;
    const struct name_row *rows = in_layer ? layer_rows : whole_rows;
    const size_t count = in_layer ? ARRAY_LEN(layer_rows) : ARRAY_LEN(whole_rows);
    *layer = -1;
    if (in_layer) {
        name += sizeof layers - 1;
        *layer = take_number(&name);
        if (*layer < 0 || *name++ != '.')
            return NULL;
    }
    for (size_t i = 0; i < count; i++) {
        const bool its = !rows[i].only || gguf_arch_is(a, rows[i].only);
        if (its && fits(rows[i].hf, name, expert))
            return &rows[i];
    }
    return NULL;
}

bool gguf_model_source(const struct gguf *g, const char *name, int32_t head_dim,
                       struct gguf_source *out)
{
    int32_t layer, expert;
    char full[128];
    struct err ignored;
    const struct gguf_arch *a = gguf_arch_find(g, &ignored);
    const struct name_row *row = a ? find_row(a, name, &layer, &expert) : NULL;
    if (!row)
        return false;
    if (layer >= 0)
        snprintf(full, sizeof full, "blk.%d.%s", (int)layer, row->gguf);
    else
        snprintf(full, sizeof full, "%s", row->gguf);
    const struct gguf_tensor *t = gguf_find_tensor(g, full);
    const bool experts = expert >= 0;
    if (!t || t->ndim != (experts ? 3 : t->ndim == 1 ? 1 : 2) || (experts && expert >= t->shape[0]))
        return false;
    *out = (struct gguf_source){
        .tensor = t,
        .rows = t->ndim == 1 ? 1 : t->shape[t->ndim - 2],
        .cols = t->shape[t->ndim - 1],
        .head_dim = row->what == HEADS && a->pairs ? head_dim : 0,
        .less = row->what == NORM && a->gemma ? 1 : 0,
        .exact = row->what == EXACT,
    };
    out->first = experts ? expert * out->rows : 0;
    return true;
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
    return blocks > 0 && layer < blocks && layer >= blocks - gguf_arch_guessing(g, a);
}
