/* Heads of layers that attend to everything, where these are others than those of layers that
 * slide, as config.json says it: Gemma 4's. */
#ifndef TESSERA_CONFIG_MODEL_GLOBAL_H
#define TESSERA_CONFIG_MODEL_GLOBAL_H

#include "config/family.h"
#include "config/reader.h"

/* Fills in global and keys_as_values; the shape of m and which layers slide are there already.
 * Failures are the reader's. */
void model_global_read(struct reader *r, const struct family *f, struct model_config *m);

#endif
