/* Footprint: what a configuration needs, from config and headers alone: weights, KV cache,
 * activations and communicator memory per rank, and the sizes everything is allocated with.
 * `plan` prints it, `serve` reserves it, ranks are told its numbers. Pure but for the question how
 * much memory is free. */
#ifndef TESSERA_ENGINE_FOOTPRINT_H
#define TESSERA_ENGINE_FOOTPRINT_H

#include "config/model_config.h"
#include "config/options.h"
#include "engine/comm/comm.h"
#include "engine/model/layout.h"
#include "engine/step.h"

struct footprint {
    int32_t ranks, threads; /* per rank */
    uint64_t plan_hash;     /* of plan and config.json: all ranks must have the same */
    int32_t left_out;       /* linears that are not packed though others are (quant_config) */
    uint64_t weights_stamp; /* checkpoint_stamp() at the start, the caller's to fill in; 0: none */
    enum dtype dtype, kv_dtype;
    int32_t max_model_len;
    struct step_limits limits;
    bool on_device;    /* weights, KV cache and arenas lie in the ranks' own device memory */
    size_t comm_bytes; /* communicator arena per rank */
    struct {
        size_t weights, kv, kv_per_token; /* the last: in all layers */
        size_t activations;               /* with the state of slots and steps */
        size_t state;                     /* of that, what layers that recur keep of a slot */
        size_t scratch;                   /* of backend and communicator, on a device */
    } rank[COMM_RANKS_MAX];
    size_t kv_block[MODEL_KINDS]; /* of one layer, on the rank that has most of it */
    size_t total;                 /* all ranks, with communicator arenas */
    size_t available;             /* memory that is free now */
};

/* flow: of that model on the options' ranks. ERR_LIMIT says what is needed and what is there; *out
 * is filled even then. ERR_DEVICE: devices are missing. */
enum status footprint_plan(const struct options *o, const struct model_config *m,
                           const struct flow *flow, struct footprint *out,
                           struct err *err) MUST_USE;
/* KV blocks of a text of the whole context. */
int32_t footprint_context_blocks(const struct footprint *f);
/* What layers that recur keep of a sequence on the rank that keeps most; 0: none recurs. */
size_t footprint_state(const struct footprint *f);
/* Arena per rank of the shared memory communicator. */
size_t footprint_shared_bytes(const struct footprint *f);
/* KV spec of one rank, of layers with that kind of heads; of several kinds all are over the same
 * memory. */
struct kv_spec footprint_kv(const struct footprint *f, const struct model_config *m,
                            const struct flow *flow, int32_t rank, int32_t kind);
/* Free memory by the kernel's account, within the limits of the control groups (quota.h).
 * ERR_DEVICE: it has none to be read. */
#define FOOTPRINT_MEMINFO "/proc/meminfo"
enum status footprint_available(const char *meminfo, size_t *out, struct err *err) MUST_USE;

/* Sample places of a step: one for each of so many sequences, and at least those of one that checks
 * all the guesses it may make. */
int32_t footprint_samples(const struct options *o, int32_t slots);
/* Threads of each rank: --threads-per-rank, or its share of the cores, of which a container's limit
 * of time (quota.h) may leave fewer. */
int32_t footprint_threads(const struct options *o);

#endif
