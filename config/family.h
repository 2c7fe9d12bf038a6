/* Families: what transformers' configuration classes say where config.json does not, and what their
 * models compute whatever it says. */
#ifndef TESSERA_CONFIG_FAMILY_H
#define TESSERA_CONFIG_FAMILY_H

#include "config/model_config.h"

#define FAMILY_NO_WINDOW (-1)

/* What a mixture's numbers are called; NULL: as DeepSeek has it. */
struct mixture_keys {
    const char *experts; /* n_routed_experts */
    const char *chosen;  /* num_experts_per_tok */
    const char *shared;  /* n_shared_experts; under another name there may be none */
    const char *dense;   /* first_k_dense_replace */
};

struct family {
    const char *model_type;
    const char *inner;    /* the text_config of a model that also sees has this model_type; NULL:
                             config.json itself describes the model. Where it may have several,
                             there is one of each. */
    bool flat;            /* without a text_config config.json itself does so, too */
    int32_t vocab, heads; /* 0: config.json has to say */
    int32_t max_position;
    bool reaches;     /* max_position is the stretched one, where the rotation is */
    int32_t kv_heads; /* 0: as many as query heads, which null means in all of them */
    int32_t head_dim; /* 0: hidden_size / num_attention_heads */
    bool tied;
    bool fused_qkv, fused_gate_up, qkv_bias, o_bias, head_norm, joint_norm, sinks, interleaved;
    const char *head_norm_key;             /* what says whether it has one; NULL: nothing does */
    const char *qkv_bias_key, *o_bias_key; /* what says whether it has such biases, where it may
                                              have them or not; NULL: nothing does */
    bool gemma; /* as model_config has gelu, norm_offset and embed_scale */
    bool norm_offset, attention_gate;
    enum post_norms post_norms;
    double theta, norm_eps;        /* 0: 10000 and 1e-6 */
    enum dtype dtype;              /* of a config.json that says none; F32 is transformers' */
    struct mixture_config mixture; /* chosen, shared -1: config.json has to say */
    struct mixture_keys keys;
    struct latent_config latent;
    const char *interleaved_key; /* what says whether they are that; NULL: nothing does */
    int32_t expert_mlp; /* moe_intermediate_size; 0: intermediate_size is that of experts */
    int32_t shared_mlp; /* QWEN2: shared_expert_intermediate_size */
    bool plain_too;     /* with num_experts 0 it is no mixture */
    bool always_among;  /* norm_topk_prob is not theirs: shares are of the chosen ones */
    struct recurrent_config recurrent;
    int32_t attends; /* full_attention_interval: every so manieth layer, the others recur; 0: all */

    /* Which layers slide: all; those from max_window_layers on; with a period, all but every
     * period-th; or, where some do not turn, these. */
    int32_t window;      /* sliding_window; 0: the key is not theirs */
    bool window_off;     /* unless use_sliding_window is set */
    int32_t window_from; /* max_window_layers; 0: the key is not theirs */
    int32_t period;
    int32_t no_rope_interval; /* every so manieth layer does not turn; 0: the keys are not theirs */
    bool window_turns;        /* with a window only layers that slide turn */
    bool query_beta;          /* the rotation says llama_4_scaling_beta */
    int32_t original;         /* original_max_position_embeddings; 0: max_position */
    double partial;           /* partial_rotary_factor, which may be less than 1; 0: may not */
    bool rotary_key;          /* rotary_dim is theirs, so many elements; a factor wins */
    bool multipliers;         /* Granite's three, and logits_scaling */
    bool sections;            /* places have several numbers, all alike for texts */
    double local_theta;       /* of the layers that slide; 0: theta */
    bool local_plain;         /* layers that slide turn by theta alone, unless said of them */
    double query_scalar;      /* query_pre_attn_scalar; 0: head_dim */
    double attention_softcap, final_softcap; /* 0: the keys are not theirs */
    int32_t global_dim;  /* Gemma 4's global_head_dim; 0: all layers have the same heads */
    int32_t layer_input; /* theirs: hidden_size_per_layer_input; 0: the key is not theirs */
};

/* The one of this model_type, or the nearest, which differs in *distance letters. */
const struct family *family_find(const char *model_type, int *distance);
/* The one of the same model_type whose text_config has that one; NULL: there is none. */
const struct family *family_inner(const struct family *f, const char *inner);
#define FAMILY_NAMES_MAX 512
/* All of them but those that are the texts of another one, for messages: "a, b or c". */
void family_names(char *to, size_t size);
/* The text_configs that one of this model_type may have: "\"a\" or \"b\"". */
void family_inner_names(const struct family *f, char *to, size_t size);

#endif
