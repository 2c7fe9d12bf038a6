/* What steps cost on this machine: measured once on the ranks before they serve, so that the
 * scheduler, which reads no clock, can keep the steps of running streams short. */
#ifndef TESSERA_ENGINE_COSTS_H
#define TESSERA_ENGINE_COSTS_H

#include "engine/link.h"

enum { COSTS_MAX = 16 };

/* Rows and positions are of the home that has most of them: a step takes as long as that one. */
struct costs {
    int32_t count;             /* 0: unknown */
    int32_t rows[COSTS_MAX];   /* 1, then ascending */
    double seconds[COSTS_MAX]; /* of a step of so many rows; never descending */
    double per_key;            /* in addition, for each earlier position that a row attends to */
};

/* Seconds of a step with these rows, which attend to so many positions in all; between the measured
 * points and beyond them by straight lines. 0 when unknown. */
double costs_of(const struct costs *c, int32_t rows, int64_t keys);

/* Runs steps of more and more rows, until one takes twice as long as a single row: from there on
 * time grows with the rows. *seq: of the last step sent; counted on. All homes have as many. The
 * KV cache and the slots are used, and hold nothing worth keeping.
 * ERR_COMM as link_exchange, or when a rank fails. */
enum status costs_measure(struct link_set *links, const struct step_limits *limits, uint32_t epoch,
                          uint64_t *seq, link_patience *patience, void *ctx, struct costs *out,
                          struct err *err) MUST_USE;

#endif
