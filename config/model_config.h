/* A model's config.json, validated: the one place where its numbers are range-checked.
 * Both dialects are read: rope_parameters/dtype and rope_theta + rope_scaling/torch_dtype. */
#ifndef TESSERA_CONFIG_MODEL_CONFIG_H
#define TESSERA_CONFIG_MODEL_CONFIG_H

#include "config/base.h"
#include "config/dtype.h"

#include <math.h>

enum rope_kind { ROPE_DEFAULT, ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN, ROPE_LONG, ROPE_PROPORTIONAL };
#define ROPE_PAIRS_MAX 256

/* As transformers' modeling_rope_utils has them. */
struct rope_config {
    enum rope_kind kind;
    double theta;
    double factor;                 /* but DEFAULT; by how much the context is stretched */
    int32_t original_max_position; /* LLAMA3, YARN, LONG */
    double low_freq_factor, high_freq_factor; /* LLAMA3 (Llama 3.1's model card) */
    /* YARN (arXiv 2309.00071): where the ramp begins and ends, in turns within the original
     * context, whether in whole pairs, and what cosines and sines are multiplied with. */
    double beta_fast, beta_slow, attention_factor; /* the last: LONG's, too */
    int32_t truncate;
    /* Queries are multiplied with 1 + this * ln(1 + floor(position / original_max_position)); 0: as
     * they are. Ministral 3's llama_4_scaling_beta. */
    double query_beta;
    double score_factor; /* but DEFAULT: what scores are multiplied with where there are latents */
    /* LONG (arXiv 2402.13753): by how much each pair is slowed, in contexts of up to the original
     * length and in longer ones. */
    float short_factor[ROPE_PAIRS_MAX], long_factor[ROPE_PAIRS_MAX];
    double part; /* PROPORTIONAL: only this part of the pairs turns, the first ones, by the same
                    frequencies as if all did */
};

/* How layers of a kind attend. */
struct head_shape {
    int32_t kv_heads;   /* Hkv, divides Hq */
    int32_t head_dim;   /* dh, even */
    int32_t rotary_dim; /* even; so many elements of a head turn, the first ones */
};

/* The linears inside the layers (flow_weight: and others) as codes of F8_E4M3, I8, I4 or U4: each
 * times the scale of its block of rows x cols (0: as many as the tensor has). Of F4_E2M1 only those
 * of experts. */
enum quant_kind {
    QUANT_NONE,
    QUANT_LOAD, /* while loading: a scale per row, or per group of it of I8 and I4 */
    QUANT_FILE, /* as they come in the checkpoint */
};

/* How they come there. */
enum quant_form {
    /* F8_E4M3, and the scales of X in X_scale or X_scale_inv; or MXFP4 (weights/mxfp4.h), the codes
     * in X_blocks and the scales in X_scales */
    QUANT_BYTES,
    /* I8, I4 or U4, several in a word of 32 bits (weights/packed.h) */
    QUANT_PACKED, /* as compressed-tensors' pack-quantized has them */
    QUANT_GPTQ,
    QUANT_AWQ
};

struct quant_config {
    enum quant_kind kind;
    enum quant_form form; /* of QUANT_FILE */
    enum dtype code;      /* F8_E4M3, I8, I4, U4 or F4_E2M1 */
    int32_t rows, cols;
    int32_t inverse;   /* X_scale_inv; what is multiplied with all the same */
    int32_t either;    /* X_scale, or where there is none X_scale_inv */
    int32_t zero_more; /* GPTQ: zeros are stored less one, modulo 2^bits */
    int32_t left_out;  /* bit by enum role: linears that come as values all the same */
    int32_t widened;   /* integers and F4_E2M1 of a file: held as values, not as codes */
};

/* A mixture of experts in every layer's place of an MLP, by how its family names it. */
enum mixture_kind {
    MIXTURE_NONE,
    MIXTURE_QWEN,  /* Qwen3's */
    MIXTURE_QWEN2, /* the same with a shared expert that has a gate */
    MIXTURE_GLM, /* GLM-4.5's, DeepSeek's and alike: shared experts, the first layers without any */
    MIXTURE_MIXTRAL,
    MIXTURE_MINIMAX, /* MiniMax-M2's: Mixtral's names, scores by sigmoid with corrections */
    /* All experts in one tensor, gates and ups in turns; biases of router and experts;
       ACT_SWIGLU_PAIRS */
    MIXTURE_GPT_OSS,
    /* Gemma 4's: experts beside an MLP that every layer has, each with norms of its own; the shares
       of experts have factors */
    MIXTURE_GEMMA
};

/* Where the checkpoint has what is added to scores for the choice alone. */
enum corrections {
    CORRECTIONS_GATE,    /* beside the router */
    CORRECTIONS_MLP,     /* beside the experts */
    CORRECTIONS_STATICS, /* in ERNIE's moe_statics, [1, E] */
    CORRECTIONS_NONE
};

struct mixture_config {
    enum mixture_kind kind;
    int32_t experts; /* E; 0 without a mixture */
    int32_t chosen;  /* that a token goes through, 1 to E */
    int32_t among;   /* shares are of the chosen ones, not of all */
    /* S more, behind the others, that every token goes through, too. The checkpoint has them as one
       MLP, S times as wide, and with QWEN2 what they are multiplied with. */
    int32_t shared;
    float scale;                  /* of the shares of those that are chosen */
    int32_t softmax;              /* GLM: scores are by softmax, not by sigmoid */
    enum corrections corrections; /* of GLM and MINIMAX */
    /* GLM: experts are in so many groups, of which a token keeps some and chooses among theirs; 0:
       it chooses among all */
    int32_t groups, kept;
    int32_t dense;     /* so many layers, the first ones, have a plain MLP, */
    int32_t dense_mlp; /* this wide; of GEMMA the MLPs beside experts are */
};
/* What a layer of a mixture has, and a token goes through, shared experts among them. */
static inline int32_t mixture_experts(const struct mixture_config *x)
{
    return x->experts + x->shared;
}
static inline int32_t mixture_chosen(const struct mixture_config *x)
{
    return x->chosen + x->shared;
}

/* Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): keys and values of all heads are
 * made of one latent, which is what the cache holds. */
struct latent_config {
    int32_t query;    /* columns of the latent that queries are made of; 0: of the row itself */
    int32_t value;    /* of the one that keys and values are made of, kv_lora_rank; 0: no latents */
    int32_t turns;    /* qk_rope_head_dim: of a query and of what all heads' keys share */
    int32_t plain;    /* qk_nope_head_dim: of a query and of each head's key */
    int32_t head;     /* v_head_dim: of each head's value */
    float latent_eps; /* of the norms of both latents */
};

/* Gated delta rule (arXiv 2412.06464): layers that recur keep one matrix of each value head instead
 * of keys and values (transformers' linear_attention). */
struct recurrent_config {
    int32_t keys;               /* linear_num_key_heads: of queries and keys; 0: no layer recurs */
    int32_t values;             /* linear_num_value_heads, a multiple of it, up to 1024 */
    int32_t key_dim, value_dim; /* linear_key_head_dim, linear_value_head_dim */
    int32_t taps;               /* linear_conv_kernel_dim */
    int32_t by_head; /* the checkpoint has what is made of a row by key head, all of one together */
};

/* What attention and MLP make is normed before it is added, and where, by names of the norms. With
 * OLMO those are all: attention and MLP take the residual stream as it is. */
enum post_norms { POST_NORMS_NONE, POST_NORMS_GEMMA, POST_NORMS_GLM4, POST_NORMS_OLMO };

/* Gemma 4's small models: each layer takes, of each token, a row of its own, of a table and of the
 * token's embedding. */
struct layer_inputs_config {
    int32_t dim;   /* P, of such a row; 0: there are none */
    int32_t vocab; /* rows of the table, at least V */
    float scale;   /* of what is in it */
};

#define MODEL_EXPERTS_MAX 65536 /* of all layers together */
#define MODEL_LAYERS_MAX 1024
#define MODEL_EOS_MAX 8

struct model_config {
    char model_type[32];  /* a family, e.g. "llama" */
    int32_t hidden;       /* D */
    int32_t layers;       /* L */
    int32_t heads;        /* Hq */
    int32_t kv_heads;     /* Hkv, divides Hq; 1 with latents */
    int32_t head_dim;     /* dh, even; with latents that of a key in the cache, [turns | value] */
    int32_t rotary_dim;   /* even; so many elements of a head turn, the first ones */
    int32_t mlp;          /* F; of a mixture: of each expert */
    int32_t vocab;        /* V */
    int32_t max_position; /* stretched, where the rotation is */
    float norm_eps;
    bool fused_qkv;     /* the checkpoint has q, k and v in one tensor, */
    bool fused_gate_up; /* and gate and up */
    bool qkv_bias;      /* q, k and v have a bias, */
    bool o_bias;        /* and o has one */
    bool sinks;         /* each query head has the score of a key without a value */
    bool head_norm;     /* an RMS norm of each head of q and of k before the rotation, */
    bool joint_norm;    /* or rather one of all heads of q together, and one of all of k */
    bool interleaved;   /* neighbours in a head turn together, not an element of each half */
    bool tied;          /* head shares the embedding's storage */
    bool headless;    /* config.json describes a model that makes no tokens: its class is XModel */
    bool pooling;     /* vectors are wanted of it, not tokens: there is no head */
    bool gelu;        /* the MLP's gate: gelu by tanh; else silu */
    bool norm_offset; /* the checkpoint has gains of norms less one */
    enum post_norms post_norms;
    float embed_scale;    /* of the embedding's rows; 1 for most */
    float residual_scale; /* of what attention and MLP make, before it is added; 1 for most */
    float logit_scale;    /* 1 for most */
    float final_softcap;  /* of logits: cap * tanh(logit / cap); 0: none */
    enum dtype dtype;     /* of the checkpoint, as config.json says */
    struct mixture_config mixture;
    struct latent_config latent;
    struct recurrent_config recurrent;
    bool attention_gate; /* attention's result times the sigmoid of what is made beside queries, of
                            each head [query | gate] */
    struct quant_config quant;

    /* Layers that recur; the others attend. */
    uint32_t recurs[MODEL_LAYERS_MAX / 32];
    /* Layers that slide attend to the last `window` positions, the row's own among them, and turn
     * by local_rope; the others to all, by rope. Those without rotation do not turn at all. */
    int32_t window; /* 0: no layer slides */
    uint32_t slides[MODEL_LAYERS_MAX / 32];
    uint32_t no_rope[MODEL_LAYERS_MAX / 32];
    struct head_shape global; /* heads of layers that do not slide; head_dim 0: as of the others */
    bool keys_as_values;      /* there, values are what keys are made of, too */
    bool value_norm;          /* an RMS norm of each value, without gains */
    bool layer_scale;         /* the residual stream is multiplied at a layer's end */
    /* So many of the last layers make queries alone: keys and values are those of the last of their
     * kind before them. */
    int32_t sharing;
    int32_t sharing_mlp; /* columns of their MLPs, where these are others; 0: they are not */
    struct layer_inputs_config inputs;
    float attention_scale;   /* of the products of queries and keys */
    float attention_softcap; /* of these; 0: none */
    struct rope_config rope, local_rope;

    int32_t bos;                /* -1: none */
    int32_t eos[MODEL_EOS_MAX]; /* union of config.json and generation_config.json */
    int32_t eos_count;
    uint64_t hash; /* of every field that ranks must agree on */
};

/* Defaults of a request, from generation_config.json; NaN or -1 where it does not say. */
struct generation_defaults {
    float temperature, top_p, min_p, repetition_penalty;
    int32_t top_k;
};
static inline struct generation_defaults model_config_no_defaults(void)
{
    return (struct generation_defaults){NAN, NAN, NAN, NAN, -1};
}

/* Reads DIR/config.json and, when present, DIR/generation_config.json.
 * Fails with ERR_MODEL naming file, key, value and what is wanted. */
enum status model_config_load(const char *dir, struct model_config *out,
                              struct generation_defaults *defaults, struct err *err) MUST_USE;
/* The same from config.json text, for tests and fuzzing; `where` names it in messages. */
enum status model_config_parse(const char *text, size_t n, const char *where,
                               struct model_config *out, struct err *err) MUST_USE;

static inline bool model_config_slides(const struct model_config *m, int32_t layer)
{
    return (m->slides[layer / 32] >> layer % 32 & 1) != 0;
}
static inline bool model_config_recurs(const struct model_config *m, int32_t layer)
{
    return (m->recurs[layer / 32] >> layer % 32 & 1) != 0;
}
/* How many layers do. */
static inline int32_t model_config_recurring(const struct model_config *m)
{
    int32_t n = 0;
    for (int32_t i = 0; i < m->layers; i++)
        n += model_config_recurs(m, i);
    return n;
}
/* Kinds of layers that attend, by their heads; and which of them a layer is of. */
#define MODEL_KINDS 2
static inline int32_t model_config_kinds(const struct model_config *m)
{
    return m->global.head_dim > 0 ? MODEL_KINDS : 1;
}
static inline int32_t model_config_kind(const struct model_config *m, int32_t layer)
{
    return m->global.head_dim > 0 && !model_config_slides(m, layer);
}
static inline struct head_shape model_config_shape(const struct model_config *m, int32_t kind)
{
    return kind > 0 ? m->global : (struct head_shape){m->kv_heads, m->head_dim, m->rotary_dim};
}
/* Has the layer keys and values of its own? */
static inline bool model_config_stores(const struct model_config *m, int32_t layer)
{
    return !model_config_recurs(m, layer) && layer < m->layers - m->sharing;
}
/* The layer whose keys and values it attends to. */
static inline int32_t model_config_source(const struct model_config *m, int32_t layer)
{
    int32_t i = layer;
    while (i >= m->layers - m->sharing ||
           model_config_slides(m, i) != model_config_slides(m, layer))
        i--;
    return i;
}
/* How many layers of a kind have keys and values; and how many that slide, or do not. */
static inline int32_t model_config_storing(const struct model_config *m, int32_t kind)
{
    int32_t n = 0;
    for (int32_t i = 0; i < m->layers; i++)
        n += model_config_stores(m, i) && model_config_kind(m, i) == kind;
    return n;
}
static inline int32_t model_config_storing_window(const struct model_config *m, bool slides)
{
    int32_t n = 0;
    for (int32_t i = 0; i < m->layers; i++)
        n += model_config_stores(m, i) && model_config_slides(m, i) == slides;
    return n;
}
/* Elements of a head's query and of its value. */
static inline int32_t model_config_query_dim(const struct model_config *m)
{
    return m->latent.value > 0 ? m->latent.plain + m->latent.turns : m->head_dim;
}
static inline int32_t model_config_value_dim(const struct model_config *m)
{
    return m->latent.value > 0 ? m->latent.head : m->head_dim;
}
/* Has the layer a plain MLP, and no experts? */
static inline bool model_config_is_dense(const struct model_config *m, int32_t layer)
{
    return m->mixture.kind == MIXTURE_NONE || layer < m->mixture.dense;
}
/* Has it both? */
static inline bool mixture_is_beside(const struct mixture_config *x)
{
    return x->kind == MIXTURE_GEMMA;
}
/* Columns of the plain MLP of those layers in which it is another than in the others, or stands in
 * the place of experts or beside them; 0: of none. */
static inline int32_t model_config_other_mlp(const struct model_config *m)
{
    const bool any = m->mixture.dense > 0 || mixture_is_beside(&m->mixture);
    return any ? m->mixture.dense_mlp : m->sharing_mlp;
}
static inline bool model_config_has_other_mlp(const struct model_config *m, int32_t layer)
{
    return mixture_is_beside(&m->mixture) || layer < m->mixture.dense ||
           (m->sharing_mlp > 0 && layer >= m->layers - m->sharing);
}
static inline bool model_config_turns(const struct model_config *m, int32_t layer)
{
    return (m->no_rope[layer / 32] >> layer % 32 & 1) == 0;
}

/* How many layers slide. */
static inline int32_t model_config_sliding(const struct model_config *m)
{
    int32_t n = 0;
    for (int32_t i = 0; i < m->layers; i++)
        n += model_config_slides(m, i);
    return n;
}

/* --quantization, as options_quantization has it. It has no effect on a model that is quantised so
 * already; others cannot be had of one that is quantised: ERR_USAGE. widen: codes that can be are
 * held as values (--quantization none). */
enum status model_config_quantize(struct model_config *m, enum dtype code, bool widen,
                                  struct err *err) MUST_USE;
/* From now on it is a model whose last hidden states are wanted, and has no head. */
void model_config_pool(struct model_config *m);
/* "fp8", "int8", "int4", "mxfp4". */
static inline const char *model_config_code_name(enum dtype code)
{
    return code == DTYPE_F8_E4M3                  ? "fp8"
           : code == DTYPE_I8                     ? "int8"
           : code == DTYPE_I4 || code == DTYPE_U4 ? "int4"
                                                  : "mxfp4";
}
/* The name of the codes it is held in, or NULL where it has none. */
static inline const char *model_config_codes(const struct model_config *m)
{
    const bool values = m->quant.kind == QUANT_NONE || m->quant.widened;
    return values ? NULL : model_config_code_name(m->quant.code);
}

#endif
