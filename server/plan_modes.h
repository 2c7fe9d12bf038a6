/* What `tessera plan` says about layouts: the moves of the one in use, and all layouts and meshes
 * of a number of ranks side by side. Pure: from config and plans alone. */
#ifndef TESSERA_SERVER_PLAN_MODES_H
#define TESSERA_SERVER_PLAN_MODES_H

#include "server/setup.h"

/* Mesh, then what is moved at each point of a layer in each form of a step, with formulas. */
void plan_modes_explain(const struct setup *s, struct buf *out);
/* A line per layout and mesh of s->options.tp ranks, the least bytes of each column marked. Layouts
 * that do not suit the model are left out. rows: of the largest step. */
enum status plan_modes_table(const struct setup *s, int32_t rows, struct buf *out,
                             struct err *err) MUST_USE;

#endif
