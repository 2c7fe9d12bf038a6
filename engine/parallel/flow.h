/* Flow: where the activations lie at each point of the forward pass and how they get from one point
 * to the next, worked out once from model and plan, the same on every rank. Pure; plain data but
 * for one array.
 *
 *   embed -> rest;  per layer: rest -> QKV -> attention -> O -> rest -> gate/up -> MLP -> down ->
 *   rest;  sampled rows of rest -> head -> every rank its own columns of the logits -> whole rows
 *
 * Latents, of which heads make queries, keys and values (DeepSeek-V2), go whole to wherever
 * attention has their rows: rest -> latents -> QKV, which is local then, or rest -> QKV and
 * latents.
 *
 * Layers that recur (Qwen3-Next) have their own product in the place of QKV and of O, and both they
 * and attention may have another one in front, of the same rows, whose outputs are gates.
 *
 * With pooling there is no head: sampled rows of rest go whole to every rank.
 *
 * What a linear leaves goes straight to where the next operation wants it, in one redistribution.
 * Attention lies the same in every form of a step, because the KV cache of a rank does: all rows
 * and a rank's own heads, or the rows of a rank's home and more heads (plan_attention). With homes
 * the rows of every matrix are cut where those of a home end in this step. */
#ifndef TESSERA_ENGINE_PARALLEL_FLOW_H
#define TESSERA_ENGINE_PARALLEL_FLOW_H

#include "engine/parallel/plan.h"
#include "engine/parallel/redistribute.h"

enum { FLOW_ROWS_MAX = 1 << 20 }; /* a step is smaller */

/* Linears inside layers, of any kind, and in front of them; and those of one layer, where a mixture
 * has its experts and attention is what mixes rows. What ranks receive in a layer of another kind
 * is as much. */
enum { FLOW_LINEARS = 16, FLOW_OF_LAYER = 6 };
extern const enum plan_part flow_linears[FLOW_LINEARS], flow_of_layer[FLOW_OF_LAYER];

/* A linear, the table, or the head. */
struct flow_linear {
    struct extent in, out; /* columns it takes and makes */
    struct spread uses, product;
    struct route before;  /* from where its input lies to what it uses; unused for the table */
    struct route after;   /* from the product to where the next operation takes it */
    bool summa, gathered; /* the weight travels (moving.h) */
};

struct flow_phase {
    struct spread rest; /* of the residual stream */
    struct route sums;  /* adds a row's sum of squares for norms, inner axes first; no moves
                           where every rank has whole rows */
    struct flow_linear linear[PLAN_LINEARS]; /* norms: unused */
};

struct flow {
    uint64_t hash; /* of the plan and the model's sizes: equal on all ranks */
    struct mesh mesh;
    struct plan_choice choice[PLAN_LINEARS];
    struct spread logits;          /* every column on one rank */
    struct route whole;            /* from there to all columns on every rank */
    struct spread attention, mlp;  /* mlp: gate/up's output, columns of both side by side */
    int64_t *qkv_cut[MODEL_KINDS]; /* owned; columns of QKV at the finest cut, of each kind */
    struct {
        struct extent heads; /* of q and of k behind them; units 0: there are no joint norms */
        struct route sums;   /* adds squares: of each head one rank has them, all others zero */
    } joint;
    struct latent_config latent; /* value 0: there are none */
    struct spread latents;       /* a row's, whole, where attention has the row */
    int32_t heads;               /* of queries, */
    int32_t gated_heads;         /* and as many, where attention's result has gates; else 0; */
    int32_t head_dim;            /* elements of such a result */
    /* Keys 0: no layer recurs. What ranks receive in one that does is what they do in others. */
    struct recurrent_config recurrent;
    int32_t layers[PLAN_LINEARS];      /* so many have that linear; LAYER_INPUTS: 1 or 0 */
    struct layer_inputs_config inputs; /* dim 0: there are none */
    struct extent hidden;
    enum dtype dtype; /* of the weights */
    struct quant_config quant;
    struct mixture_config mixture;        /* gate/up's outputs and down's inputs: of all experts of
                                             a row, one after the other */
    bool tied;                            /* head and embedding are one weight */
    bool pooling;                         /* the head is no product */
    int32_t norms;                        /* of a layer */
    bool post_norms;                      /* parallel_post_norm, twice in a layer */
    bool o_bias;                          /* parallel_bias, and of a mixture that of its sum */
    bool scaled;                          /* parallel_scale, twice in a layer */
    const struct backend_ops *ops;        /* borrowed */
    struct flow_phase phase[PLAN_PHASES]; /* equal unless the plan has a prefill form */
    int32_t pieces;       /* in which a row's squares are summed: those of the finest rest */
    int32_t prefill_rows; /* least rows of the prefill form; INT32_MAX: none */
};

/* layer: the choices of every layer, proved by plan_check. dtype, ops: of the weights. ERR_USAGE:
 * gathered weights of 8 bits, a mixture of experts in a layout that cuts rows of their inputs or
 * moves them, or queries beside latents, or gates, in one that moves them. */
enum status flow_open(const struct plan *plan, const struct model_config *m,
                      const struct plan_layer *layer, enum dtype dtype,
                      const struct backend_ops *ops, struct flow **out, struct err *err) MUST_USE;
void flow_close(struct flow *f);

/* Homes of sequences; 1 where every rank has all of them. A rank holds the KV of its home's
 * sequences and attends for their rows. */
int32_t flow_homes(const struct flow *f);
/* Most rows of one home in a step of up to `rows` rows. */
int32_t flow_home_rows(const struct flow *f, int32_t rows);

/* The form that a step of `rows` rows takes. */
enum plan_phase flow_phase_of(const struct flow *f, int32_t rows);
/* What one rank's part in a step of `rows` rows costs in that form, in any unit. */
typedef double flow_cost(const struct flow *f, enum plan_phase phase, int32_t rows, int32_t rank,
                         const void *ctx);
/* The fewest rows for which the prefill form costs less than the decode form, each taken on the
 * rank where it costs most; FLOW_ROWS_MAX when there are none. */
int32_t flow_crossover(const struct flow *f, flow_cost *cost, const void *ctx);
/* A matrix of `rows` rows, divided evenly among the homes. */
struct matrix flow_matrix(int32_t rows, struct extent cols);

/* Outputs and inputs of the weight that a rank's product takes, or its look-up, in elements. */
struct span flow_outputs(const struct flow *f, enum plan_part part, int32_t rank);
struct span flow_inputs(const struct flow *f, enum plan_part part, int32_t rank);
/* Spec of that weight; of each expert's. */
struct weight_spec flow_weight(const struct flow *f, enum plan_part part, int32_t rank);
/* Of its outputs those that the rank stores: all but where the weight is gathered. */
struct span flow_stored_outputs(const struct flow *f, enum plan_part part, int32_t rank);
struct weight_spec flow_stored(const struct flow *f, enum plan_part part, int32_t rank);

/* Which pieces of a row of the residual stream a rank holds. Sums of squares are made per piece and
 * added along the inner axes first in all forms of a step, so all have the same bits. */
struct pieces flow_pieces(const struct flow *f, const struct flow_phase *phase, int32_t rank);

/* Whether sums are added in the order of a single rank, so that the outputs have its bits. */
bool flow_keeps_order(const struct flow *f);
/* Collectives of one layer, without those that are local on every rank. */
int32_t flow_meetings(const struct flow *f, enum plan_phase phase);
/* The same for what is before and after the layers. */
int32_t flow_ends_meetings(const struct flow *f, enum plan_phase phase);

/* Bytes a rank receives in one layer for a step of so many rows in that form. */
uint64_t flow_layer_bytes(const struct flow *f, enum plan_phase phase, int32_t rows, int32_t rank);
/* The same before and after the layers: look-up, last norm, and the head for `samples` samples. */
uint64_t flow_ends_bytes(const struct flow *f, enum plan_phase phase, int32_t rows, int32_t samples,
                         int32_t rank);

/* Of these, the panels of x and of the weight that others send for a summa linear. */
uint64_t flow_summa_bytes(const struct flow *f, enum plan_part part, int32_t rows, int32_t rank);
/* Of these, the parts of a gathered weight that others store. */
uint64_t flow_gathered_bytes(const struct flow *f, enum plan_part part, int32_t rank);

/* Spec of a head's matrix of its own: with keys [value, plain], else [head, value]. */
struct weight_spec flow_head_weight(const struct flow *f, bool keys);
/* Query heads of a rank in attention. */
int32_t flow_heads(const struct flow *f, int32_t rank);
/* What a rank does in a linear or the head: bytes of weights it reads, and multiply-adds. QKV: what
 * its heads make of latents, too. */
struct flow_work {
    uint64_t bytes, macs;
};
/* Experts that a row goes through, or the one MLP. */
static inline int32_t flow_passes(const struct mixture_config *x)
{
    return x->kind == MIXTURE_NONE ? 1 : mixture_chosen(x);
}
struct flow_work flow_work(const struct flow *f, enum plan_phase phase, enum plan_part part,
                           int32_t rows, int32_t rank);

#endif
