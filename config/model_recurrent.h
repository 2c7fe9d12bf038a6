/* Which of a model's layers recur, and what these keep, as config.json says it. */
#ifndef TESSERA_CONFIG_MODEL_RECURRENT_H
#define TESSERA_CONFIG_MODEL_RECURRENT_H

#include "config/family.h"
#include "config/reader.h"

/* Fills in recurs, recurrent and attention_gate; the shape of m is there already. Failures are the
 * reader's. */
void model_recurrent_read(struct reader *r, const struct family *f, struct model_config *m);

#endif
