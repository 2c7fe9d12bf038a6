/* What serve, plan, inspect and shard have in common: a model directory, a plan and the layouts of
 * all ranks, from headers alone. */
#ifndef TESSERA_SERVER_SETUP_H
#define TESSERA_SERVER_SETUP_H

#include "config/model_config.h"
#include "config/options.h"
#include "config/pooling.h"
#include "engine/footprint.h"
#include "engine/parallel/price.h"
#include "weights/checkpoint.h"

struct setup {
    struct options options; /* with what --auto and --prices decided */
    char mesh[40];          /* of that */
    struct model_config model;
    struct generation_defaults defaults;
    struct pooling pooling; /* of what a model's directory says of vectors */
    struct price price;     /* where one was asked for */
    bool priced;
    struct plan *plan;
    const char *form_reason; /* why steps change form at plan_prefill_rows; static */
    struct flow *flow;       /* of all ranks */
    struct layout *layouts[COMM_RANKS_MAX];
    const struct backend_ops *ops;
    struct checkpoint *checkpoint; /* NULL with --load-format dummy */
    int32_t ignored;               /* tensors of the checkpoint that are not used */
};

/* Everything but memory is checked here: config, headers, coverage of every tensor over all ranks.
 * Closes nothing on failure that setup_close would not. */
enum status setup_open(const struct options *o, struct setup *out, struct err *err) MUST_USE;
void setup_close(struct setup *s);

/* The head that a tied checkpoint repeats must be the embedding: reads both. ERR_MODEL otherwise.
 */
enum status setup_check_head(const struct setup *s, struct err *err) MUST_USE;

/* Checkpoint bytes rank r reads; 0 for dummy weights. */
uint64_t setup_read_bytes(const struct setup *s, int32_t rank);
/* The table of ranks that `plan` prints and `serve` shows at start; lines to `out`. */
struct buf;
void setup_table(const struct setup *s, const struct footprint *f, struct buf *out);
/* Last component of the model directory. */
void setup_model_name(const struct options *o, char *name, size_t cap);

#endif
