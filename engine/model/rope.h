/* Rotation: by which frequency each pair of a head's elements turns. Pure. */
#ifndef TESSERA_ENGINE_MODEL_ROPE_H
#define TESSERA_ENGINE_MODEL_ROPE_H

#include "config/model_config.h"

/* inv_freq[dim / 2]: of a head whose first `dim` elements turn, in a context of so many positions.
 */
void rope_frequencies(const struct rope_config *r, int32_t dim, int32_t context, float *inv_freq);

#endif
