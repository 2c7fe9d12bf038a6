/* The cost tables of the layouts' literature beside what the layouts are here. Pure. */
#ifndef TESSERA_SERVER_PLAN_COSTS_H
#define TESSERA_SERVER_PLAN_COSTS_H

#include "server/setup.h"

/* For 1d, 2d, 2.5d and 3d: compute, parameters, activations, bandwidth and latency as the tables
 * state them, as they should, and, where s->options.tp ranks form such a mesh, of the rank that has
 * most in steps of so many rows. */
enum status plan_costs_table(const struct setup *s, int32_t rows, struct buf *out,
                             struct err *err) MUST_USE;

#endif
