/* What is said about layouts: the moves of the one in use, and all layouts and meshes of a number
 * of ranks side by side, from config and plans alone; and which one is picked by --auto. */
#ifndef TESSERA_SERVER_PLAN_MODES_H
#define TESSERA_SERVER_PLAN_MODES_H

#include "server/setup.h"

/* Mesh, then what is moved at each point in each form of a step of so many rows: bytes, and the
 * formula beside each number (plan_explain.c). */
void plan_modes_explain(const struct setup *s, int32_t rows, struct buf *out);
/* A line per layout and mesh of s->options.tp ranks, the least bytes of each column marked. Layouts
 * that do not suit the model are left out. rows: of the largest step. Where s is priced also
 * modelled times, and every layout changes form where those cross; otherwise where bytes do. */
enum status plan_modes_table(const struct setup *s, int32_t rows, struct buf *out,
                             struct err *err) MUST_USE;
/* Of s, which is priced and whose plan is not open yet: sets the mode and mesh whose step of one
 * row and step of max_num_batched_tokens rows have the least product of modelled times: a layout
 * twice as slow in one must be twice as fast in the other. Logs the choice. */
enum status plan_modes_pick(struct setup *s, struct err *err) MUST_USE;
/* Sets the price of s: of this machine, for its options and dtype. */
enum status plan_modes_measure(struct setup *s, struct err *err) MUST_USE;
/* That price, in words. */
void plan_modes_price(const struct setup *s, struct buf *out);

#endif
