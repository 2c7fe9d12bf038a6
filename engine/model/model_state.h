/* What a model is made of, for the two files that make and run it: model_bind.c finds the weights
 * of a layer, model.c has the rest. */
#ifndef TESSERA_ENGINE_MODEL_MODEL_STATE_H
#define TESSERA_ENGINE_MODEL_MODEL_STATE_H

#include "engine/model/model.h"

struct layer {
    struct parallel_weight qkv, o, gate_up, down; /* qkv, o: or what recurs has in their place */
    struct parallel_weight gate;                /* beside qkv; no weight where there are no gates */
    const float *attn_norm, *mlp_norm, *o_bias; /* NULL: none */
    struct {                             /* what it makes of the row that it takes of each token */
        const struct weight *gate, *out; /* NULL: there are no such rows */
        const float *post_norm;
    } input;
    const float *scale;          /* [1] of the residual stream at the layer's end; NULL: none */
    struct {                     /* of what attention and MLP make */
        const float *attn, *mlp; /* NULL: none */
    } post_norm;
    struct qkv_rules rules;
    struct joint_norm joint; /* instead of norms in the rules; heads 0: none */
    struct {                 /* what queries, keys and values are made of */
        bool there;
        struct parallel_weight down;
        struct latent_rules rules;
        struct experts *key_up, *value_up; /* NULL where this rank has no heads */
    } latent;
    struct { /* instead of attention */
        bool there;
        struct recurrent_rules rules;
        struct recurrent_state state;
    } recurrent;
    struct attention attention;
    const struct heads *heads; /* the model's, of the layer's kind */
    struct kv_cache *cache;    /* borrowed, likewise */
    struct kv_group_place kv;
    const float *rope; /* the model's, or its local one */
    int32_t rotary;    /* elements of a head that turn; 0: the layer has no rotation */
    struct {           /* instead of gate_up and down */
        const struct weight *router; /* NULL: there is none, also in a mixture's dense layers */
        struct experts *gate_up, *down;
        const float *router_bias, *correction, *gate_up_bias, *down_bias; /* NULL: none */
        /* Beside an MLP: gains of what router and experts take, and of what MLP and experts make
         * before it is added; factors of shares. NULL where experts are instead of it. */
        const float *router_norm, *norm, *mlp_post_norm, *post_norm, *expert_scale;
    } mixture;
};

struct model {
    const struct model_config *config;
    struct backend *b;
    struct parallel *parallel;
    struct kv_cache *kv[MODEL_KINDS];
    struct kv_groups groups;
    struct heads heads[MODEL_KINDS];   /* local, of layers of each kind, */
    struct heads sharing[MODEL_KINDS]; /* and of those with the keys and values of others */
    struct recurrent_heads recurrent;  /* likewise */
    enum activation activation;        /* of the MLP's gate */
    int32_t rows_max, samples_max, context, places;
    float query_beta; /* the config's, 0 where no context gets so long that it matters */
    _Atomic uint64_t *progress;

    struct parallel_weight embed, head;
    struct parallel_inputs inputs; /* no weight where there are none */
    const float *final_norm;
    struct layer *layers;

    void *memory;                /* on the device: all of the following */
    int32_t *kv_of[MODEL_KINDS]; /* [H] */
    float *ones;                 /* [E] gains of values' norms; NULL: there are none */
    float *half_root;            /* [1] sqrt(1 / 2), of inputs */
    float *taken;                /* [rows of x, layers, P] inputs of this step's rows */
    const float *take;           /* of those rows that the next layer has: these, or few's */
    /* Of the sampled rows alone, which are all that layers without keys and values of their own
     * need have; NULLs where there are no such layers, or those rows are divided. */
    struct {
        float *x, *taken;         /* [samples, D], [samples, layers, P] */
        int32_t *slot, *position; /* [samples] */
        int32_t *all;             /* [samples] 0, 1, 2, ... */
    } few;
    struct rotation {
        float *inv_freq; /* [E/2]; E: of a head, what turns */
        float *table;    /* [rows in attention, E] */
    } rope, local_rope;  /* local: of layers that slide, NULLs where it is the same */
    struct {             /* of rows in attention, of models that have latents */
        float *query;    /* [rows, latent.query] */
        float *qkv;      /* [rows, own query heads and the key, each head_dim] */
        float *values;   /* [rows, own query heads, latent.value] */
    } latent;
    float *gates;  /* [rows in attention, own query heads * head_dim, or own value heads * 2] */
    float *states; /* of all layers that recur, one after the other: struct recurrent_state */
    const int32_t *keep; /* of this step's rows, likewise */
    float *x;            /* this rank's part of [T, D] */
};

/* What a layer that recurs remembers of a sequence, in elements of the two arrays of struct
 * recurrent_state. */
static inline size_t model_matrix_size(const struct recurrent_heads *h)
{
    return (size_t)h->values * (size_t)h->key_dim * (size_t)h->value_dim;
}
static inline size_t model_rows_size(const struct recurrent_heads *h)
{
    return (size_t)(h->taps - 1) * (size_t)backend_channels(h);
}

static inline size_t model_state_size(const struct recurrent_heads *h)
{
    return model_matrix_size(h) + model_rows_size(h);
}

/* Elements of a head that turn: where layers that slide have other heads they have a table, too. */
static inline int32_t model_rotary_dim(const struct model_config *cfg, bool local)
{
    return model_config_shape(cfg, local ? 0 : model_config_kinds(cfg) - 1).rotary_dim;
}

/* Binds the weights of the parts to the model and its layers; memory is carved already. */
enum status model_bind(struct model *m, const struct model_parts *p, struct err *err) MUST_USE;

#endif
