/* The transformer of one rank: weights by meaning, activations, and the forward pass.
 * One thread (the rank's) calls; nothing is allocated after model_open. */
#ifndef TESSERA_ENGINE_MODEL_MODEL_H
#define TESSERA_ENGINE_MODEL_MODEL_H

#include "engine/kv_groups.h"
#include "engine/model/layout.h"
#include "engine/parallel/parallel.h"
#include "weights/loader.h"

#include <stdatomic.h>

struct model;

/* Everything borrowed must outlive the model. */
struct model_parts {
    const struct model_config *config;
    const struct layout *layout;
    const struct loaded *weights;
    struct backend *backend;
    struct comm *comm;
    struct comm_stats *axis_stats;    /* one per axis of the plan's mesh */
    struct kv_cache *kv[MODEL_KINDS]; /* of layers of each kind of heads, over one memory */
    struct kv_groups groups;          /* of kv */
    int32_t rows_max;                 /* T of the largest step */
    int32_t samples_max;              /* R of the largest step */
    int32_t places;                   /* for what layers that recur remember, of slots first */
    int32_t context;                  /* positions that a sequence may have */
    _Atomic uint64_t *progress;       /* bumped once per layer; may be NULL */
};

/* The rows of one step. Arrays are borrowed, on the device but for the one that says so. */
struct model_input {
    struct rows rows;        /* with the block tables of the first group of layers; */
    int32_t table_rows;      /* after so many rows of those come the ones of the next */
    const int64_t *home_cut; /* [homes + 1] first row of each home, on the host; NULL: one home */
    const int32_t *ids;      /* [T] token ids, -1 = padding */
    const int32_t *keep;     /* as in struct recurrent_state */
    int32_t samples;         /* R */
    const int32_t *sample;   /* [R] row indices whose logits are wanted */
    const int32_t *sample_host; /* the same, on the host */
};

/* Communicator arena a rank needs for these sizes. */
size_t model_comm_bytes(const struct flow *f, int32_t rows_max, int32_t samples_max);
/* What the layers that recur remember of a sequence, on this rank; 0 where none does. */
size_t model_state_bytes(const struct model_config *m, const struct flow *f, int32_t rank);
struct model_sizes {
    int32_t rows, samples, places; /* as in struct model_parts, of the largest step */
};
/* Activation memory a rank allocates outside the communicator, with all states. */
size_t model_activation_bytes(const struct model_config *m, const struct flow *f, int32_t rank,
                              const struct model_sizes *sizes);

/* Memory the backend takes for its scratch; 0 on the host. */
size_t model_scratch_bytes(const struct model_config *m, const struct flow *f, int32_t rank,
                           int32_t rows_max);

enum status model_open(const struct model_parts *parts, struct model **out,
                       struct err *err) MUST_USE;
void model_close(struct model *m);
/* Memory of what layers that recur remember; *bytes 0: there is none. */
void *model_states(const struct model *m, size_t *bytes);
/* What they remember of one slot becomes what they do of another. */
void model_recall(struct model *m, int32_t slot, int32_t from);
/* For the sampler; lives as long as the model. */
struct parallel *model_parallel(struct model *m);

/* *out = fp32 [R, own columns] of the logits (parallel_head), with pooling [R, D] of the last
 * norm's output, whole; valid until the next call. R = 0: empty. */
enum status model_forward(struct model *m, const struct model_input *in, struct cview *out,
                          struct err *err) MUST_USE;

#endif
