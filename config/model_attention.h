/* How a model's layers attend, as config.json says it in either dialect: rotation, windows, scores.
 */
#ifndef TESSERA_CONFIG_MODEL_ATTENTION_H
#define TESSERA_CONFIG_MODEL_ATTENTION_H

#include "config/family.h"
#include "config/reader.h"

/* Fills in rope, local_rope, no_rope, window, slides and what attention does to scores, and
 * stretches max_position; the shape of m is there already. Failures are the reader's. */
void model_attention_read(struct reader *r, const struct family *f, struct model_config *m);

#endif
