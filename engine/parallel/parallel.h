/* Parallel layer: the only callers of collectives in the forward pass. Each operation takes its
 * input where the one before left it and leaves its output where the next one wants it, as the flow
 * of the plan says (flow.h); the model reads the same in every layout. Views are this rank's parts:
 * their sizes come from here. One thread (the rank's) calls; nothing is allocated after opening. */
#ifndef TESSERA_ENGINE_PARALLEL_PARALLEL_H
#define TESSERA_ENGINE_PARALLEL_PARALLEL_H

#include "engine/parallel/flow.h"
#include "engine/parallel/groups.h"

struct moving_weight;
struct parallel;

/* A linear's weight: which one, and moving, the form in which it travels, owned, NULL where it
 * never does. Of what has no weight of its own (a mixture's experts) there is only the part. */
struct parallel_weight {
    enum plan_part part;
    const struct weight *local; /* borrowed */
    struct moving_weight *moving;
};

/* Communicator arena per rank, the same on all, for steps of up to rows_max rows, of which
 * samples_max are sampled. */
size_t parallel_arena_bytes(const struct flow *f, int32_t rows_max, int32_t samples_max);
/* Activations a rank keeps outside of it. */
size_t parallel_local_bytes(const struct flow *f, int32_t rank, int32_t rows_max,
                            int32_t samples_max);
/* Elements of the largest part of the residual stream. */
size_t parallel_rest_size(const struct flow *f, int32_t rank, int32_t rows_max);

/* f, b, c and stats (one per axis of the mesh) are borrowed. Collective. */
enum status parallel_open(const struct flow *f, struct backend *b, struct comm *c,
                          struct comm_stats stats[MESH_AXES_MAX], int32_t rows_max,
                          int32_t samples_max, struct parallel **out, struct err *err) MUST_USE;
void parallel_close(struct parallel *p);
/* local: the weight of a linear, as loaded. */
enum status parallel_weight_open(struct parallel *p, enum plan_part part,
                                 const struct weight *local, struct parallel_weight *out,
                                 struct err *err) MUST_USE;
void parallel_weight_close(struct parallel_weight *w);

/* Is a step nothing but ops on the device, the same ones for every step of this many rows
 * (backend.h, record)? Not where the rows of the residual stream are split, because the host looks
 * up the sampled ones; not where weights move; and not with homes, because the ranks' parts differ
 * from step to step. */
bool parallel_is_recordable(const struct parallel *p);
/* Begins a step of `rows` rows, on which alone its form depends. cut: with homes, row cut[x] is the
 * first of home x and cut[homes] = rows; borrowed until the next step. NULL without homes. */
void parallel_begin(struct parallel *p, int32_t rows, const int64_t *cut);
/* Can a step go on with some of its rows, where layers need no others? Not where rows are divided
 * among ranks, nor where the form of a step depends on how many there are. */
bool parallel_narrows(const struct flow *f, const struct model_config *m);
/* It does, in a residual stream of their own. Not while anything is owed. */
void parallel_narrow(struct parallel *p, struct view x);
/* The rows of the step that this rank has in attention. */
struct span parallel_attended(const struct parallel *p);
/* The residual stream of this step over memory of parallel_rest_size elements. */
struct view parallel_rest(const struct parallel *p, float *data);
/* Where the input of a linear is best written, and in what type: F32 or, where nothing is exchanged
 * before the product, what linear_in (backend.h) names. */
struct view parallel_input(struct parallel *p, struct parallel_weight w);

/* x = rows ids[t] of the whole table, times scale; padding (-1) gives zeros. ids: of all rows of
 * the step. */
enum status parallel_embed(struct parallel *p, struct view x, const int32_t *ids,
                           struct parallel_weight w, float scale, struct err *err) MUST_USE;
/* out[rows of the residual stream, L * P] = the rows that layers take of each token: (rmsnorm of
 * each layer's part of x w^T / sqrt(D), and of rows ids[t] of the table, times its scale) /
 * sqrt(2). x: as parallel_embed has left it, ids likewise. */
struct parallel_inputs {
    struct parallel_weight weight;
    const struct weight *table; /* [ids, own columns] */
    const float *gain;          /* [P] of the norm */
    const float *half_root;     /* [1] sqrt(1 / 2), on the device */
    float eps;
};
enum status parallel_layer_inputs(struct parallel *p, struct view out, struct view x,
                                  const int32_t *ids, const struct parallel_inputs *inputs,
                                  struct err *err) MUST_USE;
/* What a layer makes of its part of them, `take`, whose rows begin `stride` apart: *delta = (act(x
 * gate^T) * take) out^T. Valid until the next linear. gate, out: whole. */
struct parallel_input_weights {
    const struct weight *gate, *out;
    enum activation act;
};
enum status parallel_layer_input(struct parallel *p, struct view *delta, struct view x,
                                 const float *take, size_t stride,
                                 const struct parallel_input_weights *w, struct err *err) MUST_USE;
/* *delta, the result of parallel_linear or parallel_expert_sum, gets a bias, of all columns; or
 * those [E, D] of each row's experts by their shares. Valid until the next linear or norm. */
enum status parallel_bias(struct parallel *p, struct view *delta, const float *bias,
                          struct err *err) MUST_USE;
enum status parallel_expert_bias(struct parallel *p, struct view *delta, const float *bias,
                                 const struct routing *r, struct err *err) MUST_USE;
/* *delta, as from any of those, is multiplied. Valid until the next linear or norm. */
enum status parallel_scale(struct parallel *p, struct view *delta, float by,
                           struct err *err) MUST_USE;
/* What the last parallel_post_norm has made stays for parallel_add_aside, which adds it to *delta,
 * which another one has. Of mixtures beside an MLP. */
void parallel_put_aside(struct parallel *p, const struct view *delta);
enum status parallel_add_aside(struct parallel *p, struct view *delta, struct err *err) MUST_USE;
/* x = (x + *delta) * scale[0], which is on the device; then *delta is nothing. delta: what the last
 * norm of a product has made. */
enum status parallel_add_scaled(struct parallel *p, struct view x, struct view *delta,
                                const float *scale, struct err *err) MUST_USE;
/* *delta, as from any of those, becomes its rmsnorm over whole rows. gain: of all columns. Valid
 * until the next linear or norm. */
enum status parallel_post_norm(struct parallel *p, struct view *delta, const float *gain, float eps,
                               struct err *err) MUST_USE;
/* Norms of q and k in qkv, the result of parallel_linear, over all heads of all ranks, in place. */
enum status parallel_joint_norm(struct parallel *p, struct view qkv, const struct joint_norm *norm,
                                const struct heads *h, struct err *err) MUST_USE;
/* x += delta when it has data; *n = rmsnorm(x) over whole rows, as the product with `next` takes it
 * (parallel_input); of the head, F32. gain: of all columns. delta: what the last linear, bias or
 * norm of a product has made. *n may be x as it is: then that product makes the norm, too, which
 * has to be the next thing that happens. Without a gain there is no norm, and *n is x. */
enum status parallel_norm(struct parallel *p, struct view *n, struct view x, struct cview delta,
                          const float *gain, float eps, struct parallel_weight next,
                          struct err *err) MUST_USE;
/* *y = x w^T where the next operation wants it; valid until the next linear or norm. x from
 * parallel_input, parallel_norm or an activation. It may be of the type that linear_out
 * (backend.h) names. Of O and down, where nothing but parallel_norm follows, it may be this rank's
 * addend: then the norm makes the sum, too; or without data: then it is in the residual stream
 * already. */
enum status parallel_linear(struct parallel *p, struct view *y, struct cview x,
                            struct parallel_weight w, struct err *err) MUST_USE;
/* What the last parallel_linear took, which another may take, too, before anything is exchanged:
 * whole rows where they were gathered for it. */
struct cview parallel_used(const struct parallel *p);
/* What a layer chooses experts by: [backend_route_logits, D], and, or NULL, what is added to its
 * logits, and to scores for the choice alone (struct routing_rules). */
struct parallel_router {
    const struct weight *weight;
    const float *bias, *correction;
    const float *expert_scale; /* likewise; NULL: none */
    float scale;               /* of its logits; 1 for most */
};
/* A mixture of experts instead of the two linears of an MLP. route: *used = n as experts take it,
 * valid until the next parallel_norm; *r = the experts of its rows, until the next route. */
enum status parallel_route(struct parallel *p, struct cview *used, struct routing *r,
                           struct cview n, const struct parallel_router *router,
                           struct err *err) MUST_USE;
/* *gu = the gate/up of each expert of a row, one after the other. */
enum status parallel_expert_linear(struct parallel *p, struct view *gu, struct cview used,
                                   const struct experts *w, const struct routing *r,
                                   struct err *err) MUST_USE;
/* *y = the sum of the experts' outputs by their shares, where the next operation wants it. */
enum status parallel_expert_sum(struct parallel *p, struct view *y, struct cview x,
                                const struct experts *w, const struct routing *r,
                                struct err *err) MUST_USE;
/* *y = act(gate) * up, gu being the output of gate/up, as the product with `down` takes it. */
enum status parallel_act_mul(struct parallel *p, struct view *y, struct cview gu,
                             enum activation act, enum plan_part gate_up,
                             struct parallel_weight down, struct err *err) MUST_USE;
/* The product of x and gate/up, then the same of it. */
enum status parallel_linear_act(struct parallel *p, struct view *y, struct cview x,
                                struct parallel_weight gate_up, enum activation act,
                                struct parallel_weight down, struct err *err) MUST_USE;
/* *logits = [R, own columns] of the rows sample[R] of n, ascending; valid until the next step.
 * sample is on the device, sample_host the same on the host. */
enum status parallel_head(struct parallel *p, struct cview n, const int32_t *sample,
                          const int32_t *sample_host, int32_t samples, struct parallel_weight w,
                          struct view *logits, struct err *err) MUST_USE;
/* *whole = those rows themselves, of all columns, on every rank; valid until the next step. With
 * pooling, instead of the head. */
enum status parallel_pool(struct parallel *p, struct cview n, const int32_t *sample,
                          const int32_t *sample_host, int32_t samples, struct view *whole,
                          struct err *err) MUST_USE;
/* Ids whose logits a rank has: every id is on one rank. */
struct span parallel_vocab(const struct parallel *p, int32_t rank);
/* *whole = rows [begin, end) of these logits from all ranks, [end - begin, V], valid until the next
 * call; begin < end. */
enum status parallel_gather(struct parallel *p, struct cview logits, int32_t begin, int32_t end,
                            struct cview *whole, struct err *err) MUST_USE;

#endif
