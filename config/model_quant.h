/* What config.json says in quantization_config: which codes a checkpoint's linears are in, and how
 * they lie in it. */
#ifndef TESSERA_CONFIG_MODEL_QUANT_H
#define TESSERA_CONFIG_MODEL_QUANT_H

#include "config/model_config.h"
#include "config/reader.h"

/* Fills in quant, which stays QUANT_NONE without that key; the shape and mixture of m are there
 * already, but where the description of the model is one of several. Failures are the reader's. */
void model_quant_read(struct reader *r, struct model_config *m);

#endif
