/* What layers of Gemma 4's models differ in, as config.json says it: heads of those that attend to
 * everything, keys and values of others, and rows of each token that each takes. */
#ifndef TESSERA_CONFIG_MODEL_GLOBAL_H
#define TESSERA_CONFIG_MODEL_GLOBAL_H

#include "config/family.h"
#include "config/reader.h"

/* Fills in global, keys_as_values, sharing, sharing_mlp and inputs; the shape of m, its mixture and
 * which layers slide are there already. Failures are the reader's. */
void model_global_read(struct reader *r, const struct family *f, struct model_config *m);

#endif
