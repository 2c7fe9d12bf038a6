/* Price: seconds of a step in any layout, modelled from four numbers measured on this machine. What
 * every layout does alike (attention, norms, sampling) is left out: a price is for comparing. */
#ifndef TESSERA_ENGINE_PARALLEL_PRICE_H
#define TESSERA_ENGINE_PARALLEL_PRICE_H

#include "config/buf.h"
#include "engine/parallel/flow.h"

/* Seconds. */
struct price {
    double meet;   /* of a collective that carries next to nothing: alpha */
    double byte;   /* of each byte that a rank receives: beta */
    double weight; /* of each byte of weights that a linear reads */
    double mac;    /* of each element of the weight for each row */
};

/* Ranks run as threads of this process, on a backend of that name with so many threads each, and do
 * the collectives and linears of a layer all at once, as they would when serving: ranks that
 * outnumber the cores show in every number. Two seconds, or a trial of each more.
 * ERR_USAGE: the device is not a CPU. */
enum status price_measure(const char *device, int32_t ranks, int32_t threads, enum dtype dtype,
                          struct price *out, struct err *err) MUST_USE;
/* The same from a file, as price_write has it. ERR_USAGE names file, member and range. */
enum status price_load(const char *path, struct price *out, struct err *err) MUST_USE;
void price_write(const struct price *p, struct buf *out);

/* Of a rank's part in a step of so many rows in that form, one of them sampled. The step takes as
 * long as the rank that takes longest. Pure. */
double price_step(const struct price *p, const struct flow *f, enum plan_phase phase,
                  int32_t layers, int32_t rows, int32_t rank);
/* The fewest rows for which a step takes less time in the form of many rows. Pure. */
int32_t price_crossover(const struct price *p, const struct flow *f, int32_t layers);

#endif
