/* Layout: a family's parameters under a plan. All ranks share the flow; the layout of one says
 * which local weights it holds, cut from which checkpoint tensors. Pure: model_config + plan ->
 * flow, model_config + flow + rank -> data. */
#ifndef TESSERA_ENGINE_MODEL_LAYOUT_H
#define TESSERA_ENGINE_MODEL_LAYOUT_H

#include "config/model_config.h"
#include "engine/parallel/flow.h"
#include "weights/checkpoint.h"
#include "weights/synth.h"

/* What a local weight is for: those that a plan places, in the order of enum plan_part, and those
 * that go with one of them. One each of the model-wide roles, one per layer of the others; of a
 * mixture one of GATE_UP and DOWN for each expert, and of what heads have one for each. */
enum role {
    ROLE_EMBED,
    ROLE_ATTN_NORM,
    ROLE_QKV,
    ROLE_O,
    ROLE_MLP_NORM,
    ROLE_GATE_UP,
    ROLE_DOWN,
    ROLE_FINAL_NORM,
    ROLE_HEAD,          /* absent when tied: the embedding serves */
    ROLE_DENSE_GATE_UP, /* of a mixture's layers without experts */
    ROLE_DENSE_DOWN,
    ROLE_LATENT, /* what latents are made by: [query | value | turns] of struct latent_config */
    ROLE_ATTENTION_GATE,  /* of layers that attend: an output for each of attention's result */
    ROLE_RECURRENT,       /* of layers that recur, of this rank's heads: [q | k | v | z] */
    ROLE_RECURRENT_GATES, /* [b | a], an output of each for each value head; never in codes */
    ROLE_RECURRENT_OUT,   /* [D, V * value_dim] */
    ROLE_GLOBAL_QKV,      /* of layers that do not slide, where their heads are others */
    ROLE_GLOBAL_O,
    ROLE_QUERY, /* of layers with the keys and values of others, in the place of QKV, */
    ROLE_GLOBAL_QUERY,
    ROLE_LAYER_INPUTS,      /* what makes of a row those that layers take: [own layers * P, D] */
    ROLE_QKV_BIAS,          /* of this rank's heads in attention: [Q heads | K heads | V heads] */
    ROLE_QUERY_LATENT_NORM, /* [latent.query] */
    ROLE_VALUE_LATENT_NORM, /* [latent.value] */
    ROLE_KEY_UP,            /* one for each head of this rank: [latent.value, latent.plain] */
    ROLE_VALUE_UP,          /* [latent.head, latent.value] */
    ROLE_CONV,              /* [C, taps] of this rank's channels (backend_channels) */
    ROLE_DECAY,             /* [V] of this rank's value heads: A_log, */
    ROLE_DECAY_BIAS,        /* and dt_bias */
    ROLE_RECURRENT_NORM,    /* [value_dim], the same for every head; its gains are as they come */
    ROLE_Q_NORM,            /* [head_dim], the same for every head */
    ROLE_K_NORM,
    ROLE_ROUTER,         /* of a mixture, [backend_route_logits, D] and whole on every rank */
    ROLE_ATTN_POST_NORM, /* of what attention makes, before it is added */
    ROLE_MLP_POST_NORM,
    ROLE_ROUTER_SCALE,    /* [D] gains of the norm of what the router takes */
    ROLE_EXPERT_SCALE,    /* [E] factors of shares */
    ROLE_EXPERTS_NORM,    /* of what experts take, where it is not what an MLP does, */
    ROLE_DENSE_POST_NORM, /* and of what each of the two makes, before they are added */
    ROLE_EXPERTS_POST_NORM,
    ROLE_INPUTS_TABLE,    /* [vocabulary of inputs, own layers * P] */
    ROLE_INPUTS_NORM,     /* [P] of what LAYER_INPUTS makes for each layer */
    ROLE_INPUT_GATE,      /* [P, D] and */
    ROLE_INPUT_OUT,       /* [D, P] of a layer, whole on every rank */
    ROLE_INPUT_POST_NORM, /* of what it makes, before it is added */
    ROLE_LAYER_SCALE,     /* [1] what the residual stream is multiplied with at the layer's end */
    ROLE_O_BIAS,          /* [D] */
    ROLE_SINKS,           /* [heads of this rank in attention] */
    ROLE_ROUTER_BIAS,
    ROLE_CORRECTION,   /* [E] what is added to scores for the choice alone */
    ROLE_GATE_UP_BIAS, /* of a mixture, [E, outputs that this rank has] */
    ROLE_DOWN_BIAS,    /* [E, D] */
};

struct layout {
    int32_t rank;
    const struct flow *flow; /* borrowed */
    struct span heads;       /* query heads of this rank in attention */
    /* In layers of each kind (model_config_kind) every KV head those touch; shared ones are held by
     * several ranks. And [heads], the local KV head of each local query head. */
    struct span kv_heads[MODEL_KINDS];
    int32_t *kv_of[MODEL_KINDS];
    struct span mlp, vocab; /* MLP columns and vocabulary rows of the weights it holds */

    struct local_weight *weights;
    struct tensor_slice *slices; /* of all weights */
    enum role *roles;
    int32_t *layers;  /* of each weight, -1 for model-wide ones */
    int32_t *experts; /* of each weight, or its head; 0 for those that are neither's */
    int32_t count;
    char ahead[PLACEMENT_NAME_MAX]; /* tensors of a layer behind the last, which guesses; or "" */
    int32_t behind, sharing;        /* that layer's number, and model_config's */
    size_t arena_bytes;             /* of all weights, with alignment */
};

/* Which linears a checkpoint of packed integers has as values, by its first layer of a kind; the
 * others are to be alike, which checkpoint_check sees. Before the flow is made. */
void layout_left_out(const struct checkpoint *c, struct model_config *m);

/* Proves the plan on the family and works out the flow. dtype: what linears are stored in. The flow
 * is closed after all layouts that have it. ERR_USAGE when the plan does not fit the family. */
enum status layout_flow(const struct model_config *m, const struct plan *plan, enum dtype dtype,
                        const struct backend_ops *ops, struct flow **out, struct err *err) MUST_USE;

/* What a rank has, without a list of its weights: query heads in attention, every KV head those
 * touch, KV bytes of one token in one layer and in all, and bytes of all weights with alignment. */
struct span layout_heads(const struct model_config *m, const struct flow *f, int32_t rank);
struct span layout_kv_heads(const struct model_config *m, const struct flow *f, int32_t rank,
                            int32_t kind);
size_t layout_kv_layer_bytes(const struct model_config *m, const struct flow *f, int32_t rank,
                             int32_t kind, enum dtype kv_dtype);
size_t layout_kv_bytes_per_token(const struct model_config *m, const struct flow *f, int32_t rank,
                                 enum dtype kv_dtype);
/* Its heads in layers that recur. */
struct recurrent_heads layout_recurrent_heads(const struct model_config *m, const struct flow *f,
                                              int32_t rank);
enum status layout_arena_bytes(const struct model_config *m, const struct flow *f, int32_t rank,
                               size_t *bytes, struct err *err) MUST_USE;

/* f: of that model; borrowed. */
enum status layout_open(const struct model_config *m, const struct flow *f, int32_t rank,
                        struct layout **out, struct err *err) MUST_USE;
void layout_close(struct layout *l);

/* Index of a weight; -1 when there is none. layer = -1 for model-wide roles. Of experts, and of
 * heads: the first, which the others follow. */
int32_t layout_find(const struct layout *l, enum role role, int32_t layer);
/* checkpoint_check of all its weights, with what a checkpoint may hold that we do not read. */
enum status layout_check(const struct layout *l, const struct checkpoint *c, int32_t *ignored_count,
                         struct err *err) MUST_USE;

/* What synthetic weights of this model look like: for `synth` and --load-format dummy. */
struct synth_rules layout_synth_rules(const struct model_config *m, uint64_t seed);

#endif
