/* Of a mixture of experts how many there are and how tokens choose, as config.json says it. */
#ifndef TESSERA_CONFIG_MODEL_MIXTURE_H
#define TESSERA_CONFIG_MODEL_MIXTURE_H

#include "config/family.h"
#include "config/reader.h"

/* Is it without experts, in a family of mixtures that allows it? */
bool model_mixture_is_plain(struct reader *r, const struct family *f);
/* Fills in mixture; the shape of m is there already. Failures are the reader's. */
void model_mixture_read(struct reader *r, const struct family *f, struct model_config *m);

#endif
