/* Layout: a family's parameters under a plan, for one rank: which local weights it holds, cut from
 * which checkpoint tensors. Pure: model_config + plan + rank -> data. */
#ifndef TESSERA_ENGINE_MODEL_LAYOUT_H
#define TESSERA_ENGINE_MODEL_LAYOUT_H

#include "config/model_config.h"
#include "engine/parallel/flow.h"
#include "weights/placement.h"
#include "weights/synth.h"

/* What a local weight is for: those that a plan places, in the order of enum plan_part, and those
 * that go where the QKV product does. One each of the model-wide roles, one per layer of the
 * others. */
enum role {
    ROLE_EMBED,
    ROLE_ATTN_NORM,
    ROLE_QKV,
    ROLE_O,
    ROLE_MLP_NORM,
    ROLE_GATE_UP,
    ROLE_DOWN,
    ROLE_FINAL_NORM,
    ROLE_HEAD,     /* absent when tied: the embedding serves */
    ROLE_QKV_BIAS, /* of this rank's heads in attention: [Q heads | K heads | V heads] */
    ROLE_Q_NORM,   /* [head_dim], the same for every head */
    ROLE_K_NORM,
};

struct layout {
    int32_t rank, ranks;
    uint64_t hash; /* of the plan and the model's sizes: equal on all ranks */
    struct flow *flow;
    struct span heads;      /* query heads of this rank in attention */
    struct span kv_heads;   /* every KV head those touch; shared ones are held by several ranks */
    struct span mlp, vocab; /* MLP columns and vocabulary rows of the weights it holds */
    int32_t *kv_of;         /* [heads] local KV head of each local query head */

    struct local_weight *weights;
    struct tensor_slice *slices; /* of all weights */
    enum role *roles;
    int32_t *layers; /* of each weight, -1 for model-wide ones */
    struct plan_choice *choices;
    int32_t count;
    size_t arena_bytes; /* of all weights, with alignment */
};

/* ERR_USAGE when the plan does not fit the family. dtype: what linears are stored in. */
enum status layout_open(const struct model_config *m, const struct plan *plan, int32_t rank,
                        enum dtype dtype, const struct backend_ops *ops, struct layout **out,
                        struct err *err) MUST_USE;
void layout_close(struct layout *l);

/* Index of a weight; -1 when there is none. layer = -1 for model-wide roles. */
int32_t layout_find(const struct layout *l, enum role role, int32_t layer);
/* KV bytes one token takes on this rank. */
size_t layout_kv_bytes_per_token(const struct layout *l, const struct model_config *m,
                                 enum dtype kv_dtype);
/* Tensors a checkpoint may hold that we do not read. */
extern const char *const layout_ignored[];
extern const int32_t layout_ignored_count;

/* What synthetic weights of this model look like: for `synth` and --load-format dummy. */
struct synth_rules layout_synth_rules(const struct model_config *m, uint64_t seed);

#endif
