/* One rank: its shards, its KV blocks, and how it runs a step. No queue, no HTTP, no policy. */
#ifndef TESSERA_ENGINE_RANK_H
#define TESSERA_ENGINE_RANK_H

#include "config/options.h"
#include "engine/board.h"
#include "engine/footprint.h"
#include "engine/model/model.h"
#include "engine/step.h"

/* Memory a rank works in; mappings of the group's files, or plain memory in tests. weights and kv
 * are NULL when the footprint says on_device: the rank allocates them there. */
struct rank_memory {
    void *weights; /* layout's arena_bytes, zeroed */
    void *kv;      /* footprint's kv bytes */
    void *comm;    /* communicator region, initialised; NULL with --comm mpi */
    struct board_rank *board;
    /* Called when the weights are loaded and before ranks meet; a failure ends the opening. NULL:
     * nothing is to be done. */
    enum status (*loaded)(void *ctx, struct err *err);
    void *loaded_ctx;
};

struct rank;

/* Loads this rank's weights and reserves everything. layout and footprint as the front end has
 * them. Collective: all ranks of the group open together. After a failure *out may be a rank, too,
 * to be closed once the failure has been told: closing may wait for ranks that know nothing of it.
 */
enum status rank_open(const struct options *o, const struct model_config *m, const struct layout *l,
                      const struct footprint *f, const struct rank_memory *memory,
                      struct rank **out, struct err *err) MUST_USE;
void rank_close(struct rank *r);

/* Runs one step: slot changes, forward pass, sampling. *result = what came of its samples (the
 * logprobs on rank 0 only; empty when the step fails); *logits (may be NULL) = the rows they came
 * from, as far as the sampler gathers them. Both valid until the next step. */
enum status rank_step(struct rank *r, const struct step *step, struct step_result *result,
                      struct cview *logits, struct err *err) MUST_USE;
/* The same in two parts: rank_launch prepares and enqueues a step, rank_land waits for its result.
 * Steps land in the order of their launches; a step whose launch fails does not land. With
 * rank_flies one step may be launched before the previous one has landed, so that the host prepares
 * it while the device works. */
bool rank_flies(const struct rank *r);
enum status rank_launch(struct rank *r, const struct step *step, struct cview *logits,
                        struct err *err) MUST_USE;
/* True when rank_land would not wait, or nothing is launched. */
bool rank_landed(const struct rank *r);
enum status rank_land(struct rank *r, struct step_result *result, struct err *err) MUST_USE;
/* The rank's backend, with which those logits can be downloaded. */
struct backend *rank_backend(struct rank *r);
/* model_states of a rank in the host's memory; NULL on a device. */
void *rank_states(struct rank *r, size_t *bytes);

/* What a process that a launcher started for a rank other than 0 does: finds the front end, hears
 * its options and becomes `tessera rank`. Returns only on failure, and with ERR_CANCELLED when the
 * front end left before there was anything to do. */
enum status rank_join(const struct options *o, int32_t rank, struct err *err);

/* The process `tessera rank`: maps the inherited files, opens, answers, loops until the link
 * closes. Returns the exit code. */
int rank_main(const struct options *o);

#endif
