/* The table of parameters that all families share, and what a rank holds of one: its local weight,
 * as slices of the checkpoint's tensors. For layout.c. */
#ifndef TESSERA_ENGINE_MODEL_LAYOUT_FILL_H
#define TESSERA_ENGINE_MODEL_LAYOUT_FILL_H

#include "engine/model/layout.h"

#include <string.h>

/* Llama's names, which Mistral and Qwen kept, as checkpoints have them. %d is the expert. */
struct param {
    enum role role;
    bool per_layer;              /* then all names begin with "model.layers.", its number and "." */
    enum mixture_kind mixture;   /* whose it is; NONE: of all families, or of those without one */
    const char *name, *of_plans; /* of the local weight; as plans know it, alike for all experts */
    const char *tensors[3];      /* of QKV and gate/up the first alone: one has all of it */
};

/* Which of the weights of a parameter; layer -1: the model's. */
struct which {
    int32_t layer, expert; /* or head */
};

#define PARAM_SHARED "mlp.shared_expert"

/* A head's own. */
static inline bool param_is_head(enum role role)
{
    return role == ROLE_KEY_UP || role == ROLE_VALUE_UP;
}

static inline bool param_is_latent_norm(enum role role)
{
    return role == ROLE_QUERY_LATENT_NORM || role == ROLE_VALUE_LATENT_NORM;
}

/* What latents are made by, and what is made of them. */
static inline bool param_is_latent(enum role role)
{
    return role == ROLE_LATENT || param_is_latent_norm(role) || param_is_head(role);
}

/* Of layers that recur. */
static inline bool param_is_recurrent(enum role role)
{
    return role == ROLE_RECURRENT || role == ROLE_RECURRENT_GATES || role == ROLE_RECURRENT_OUT ||
           role == ROLE_CONV || role == ROLE_DECAY || role == ROLE_DECAY_BIAS ||
           role == ROLE_RECURRENT_NORM;
}

/* Of layers that do not slide, and of the others where those have such. */
static inline bool param_is_global(enum role role)
{
    return role == ROLE_GLOBAL_QKV || role == ROLE_GLOBAL_O || role == ROLE_GLOBAL_QUERY;
}

static inline bool param_is_local(enum role role)
{
    return role == ROLE_QKV || role == ROLE_O || role == ROLE_QUERY;
}

/* Of layers with the keys and values of others. */
static inline bool param_is_query(enum role role)
{
    return role == ROLE_QUERY || role == ROLE_GLOBAL_QUERY;
}

/* Of layers with their own, and of no others. */
static inline bool param_is_of_keys(enum role role)
{
    return role == ROLE_QKV || role == ROLE_GLOBAL_QKV || role == ROLE_K_NORM ||
           role == ROLE_QKV_BIAS;
}

/* Of rows that layers take of each token. */
static inline bool param_is_input(enum role role)
{
    return role == ROLE_LAYER_INPUTS || role == ROLE_INPUTS_TABLE || role == ROLE_INPUTS_NORM ||
           role == ROLE_INPUT_GATE || role == ROLE_INPUT_OUT || role == ROLE_INPUT_POST_NORM;
}

/* Of layers that attend. */
static inline bool param_is_attention(enum role role)
{
    return param_is_global(role) || role == ROLE_QUERY || role == ROLE_QKV || role == ROLE_O ||
           role == ROLE_ATTENTION_GATE || role == ROLE_QKV_BIAS || role == ROLE_O_BIAS ||
           role == ROLE_Q_NORM || role == ROLE_K_NORM || role == ROLE_SINKS ||
           param_is_latent(role);
}

/* Those of the attention beside the product. */
static inline bool param_goes_with_qkv(enum role role)
{
    return role == ROLE_QKV_BIAS || role == ROLE_Q_NORM || role == ROLE_K_NORM ||
           role == ROLE_SINKS;
}

static inline bool param_is_bias(enum role role)
{
    return role == ROLE_QKV_BIAS || role == ROLE_O_BIAS || role == ROLE_ROUTER_BIAS ||
           role == ROLE_CORRECTION || role == ROLE_GATE_UP_BIAS || role == ROLE_DOWN_BIAS;
}

static inline bool param_is_post_norm(enum role role)
{
    return role == ROLE_ATTN_POST_NORM || role == ROLE_MLP_POST_NORM;
}

/* Vectors of experts beside an MLP. */
static inline bool param_is_aside(enum role role)
{
    return role == ROLE_ROUTER_SCALE || role == ROLE_EXPERT_SCALE || role == ROLE_EXPERTS_NORM ||
           role == ROLE_DENSE_POST_NORM || role == ROLE_EXPERTS_POST_NORM;
}

static inline bool param_is_expert(const struct param *p)
{
    return p->of_plans != NULL;
}

/* Is it an MLP that all of a layer's shared experts have together? */
static inline bool param_is_shared(const struct param *p)
{
    return param_is_expert(p) && strncmp(p->tensors[0], PARAM_SHARED, strlen(PARAM_SHARED)) == 0;
}

static inline bool param_is_dense(enum role role)
{
    return role == ROLE_DENSE_GATE_UP || role == ROLE_DENSE_DOWN;
}

static inline bool param_is_fused(const struct param *p)
{
    return p->tensors[1] == NULL;
}

/* Do an expert's gates and ups take turns, and have all experts a tensor together? */
static inline bool param_in_turns(const struct model_config *m)
{
    return m->mixture.kind == MIXTURE_GPT_OSS;
}

/* Is it one of those that a quantised checkpoint has in codes? */
static inline bool param_is_coded(const struct model_config *m, const struct param *p)
{
    const enum plan_part part = (enum plan_part)p->role;
    if (param_in_turns(m))
        return param_is_expert(p);
    return (part == PLAN_QKV || part == PLAN_O || part == PLAN_GATE_UP || part == PLAN_DOWN ||
            part == PLAN_LATENT || part == PLAN_ATTENTION_GATE || part == PLAN_RECURRENT ||
            part == PLAN_RECURRENT_OUT || param_is_global(p->role) || part == PLAN_QUERY ||
            param_is_dense(p->role) || param_is_head(p->role)) &&
           !(m->quant.left_out >> part & 1);
}

/* Query heads of piece x of n, and the KV heads they read. */
static inline struct span layout_fill_query_heads(const struct model_config *m, int32_t n,
                                                  int32_t x)
{
    return placement_block(m->heads, n, x);
}

static inline struct span layout_fill_kv_heads(const struct model_config *m, int32_t kind,
                                               struct span query)
{
    const int64_t group = m->heads / model_config_shape(m, kind).kv_heads;
    if (span_len(query) == 0)
        return (struct span){0, 0};
    return (struct span){query.begin / group, (query.end - 1) / group + 1};
}

/* Key heads of a rank in layers that recur. */
struct span layout_fill_recurrent_heads(const struct model_config *m, const struct flow *f,
                                        int32_t rank);
/* The name of one of them, PLACEMENT_NAME_MAX long. */
void layout_fill_name(char *dst, const char *pattern, struct which at);
/* How many slices a weight has, at most. */
size_t layout_fill_slices(const struct layout *l, enum role role);
/* What this rank has of it. */
void layout_fill(const struct layout *l, const struct model_config *m, const struct param *p,
                 struct which at, struct local_weight *w);

#endif
