/* The parallel layer as its parts know it: parallel.c works through a step, parallel_sizes.c says
 * how large what it works in has to be. Nobody else's. */
#ifndef TESSERA_ENGINE_PARALLEL_PARALLEL_STATE_H
#define TESSERA_ENGINE_PARALLEL_PARALLEL_STATE_H

#include "engine/parallel/moving.h"
#include "engine/parallel/parallel.h"

struct parallel {
    const struct flow *flow;
    struct backend *b;
    int32_t rank, rows_max;
    struct groups groups;
    struct redistribute *moves;
    struct moving *moving;

    const struct flow_phase *now; /* of this step */
    const struct route *due;   /* NULL, or how the addend is summed that parallel_norm is given */
    struct view stream;        /* the residual stream */
    struct cview used;         /* what the last product took */
    struct linear_fusion owed; /* gain NULL, or the norm of x that the next product makes */
    struct extent rows;        /* cut where sequences have homes */
    struct extent samples;     /* the sampled rows, which lie on the ranks of their rows: */
    int64_t *cut;              /* [ranks + 1] where those of each piece of the rows begin */
    int32_t *index;            /* [samples_max] rows of this rank that are sampled, on the device */
    int32_t *index_host;       /* the same on the host, which finds them */

    void *memory; /* all of the following */
    float *input, *product, *sampled, *sums, *gate_up, *act;
    float *delta;   /* of parallel_post_norm */
    float *aside;   /* of parallel_put_aside, as large */
    float *found;   /* of parallel_layer_inputs: [rows, own columns], */
    float *gated;   /* and of parallel_layer_input: [rows, P] */
    float *made;    /* [rows, D] */
    float *squares; /* of parallel_joint_norm: [rows, query and KV heads] */
    float *router;  /* [rows, backend_route_logits] */
    struct routing routing;
};

/* Is something made of what O and the MLP give, before it is added? */
static inline bool parallel_makes_delta(const struct flow *f)
{
    return f->post_norms || f->o_bias || f->scaled;
}

/* But for the corrections, which each layer has. */
static inline struct routing_rules parallel_rules(const struct mixture_config *x)
{
    const bool glm = x->kind == MIXTURE_GLM && !x->softmax;
    return (struct routing_rules){.sigmoid = glm || x->kind == MIXTURE_MINIMAX,
                                  .groups = x->groups,
                                  .kept = x->kept,
                                  .among = x->among,
                                  .scale = x->scale,
                                  .shared = x->shared,
                                  .gated = x->kind == MIXTURE_QWEN2};
}

/* ---- parallel_sizes.c ---- */

/* Does any linear's weight travel, in any form of a step? */
bool parallel_moves_weights(const struct flow *f);
/* A rank's part of x that lies so, at `data`. */
struct view parallel_part(const struct flow *f, int32_t rank, const struct matrix *x,
                          const struct spread *s, float *data);
/* The largest parts that travel in steps of up to so many rows and samples. */
struct redistribute_sizes parallel_move_sizes(const struct flow *f, int32_t rows_max,
                                              int32_t samples_max);
struct moving_sizes parallel_moving_sizes(const struct flow *f, int32_t rows_max);
/* Gives out p's buffers from `base` on; counts only where that is NULL. Returns the bytes taken. */
size_t parallel_carve(struct parallel *p, const struct flow *f, int32_t rank, int32_t rows_max,
                      int32_t samples_max, char *base);

#endif
