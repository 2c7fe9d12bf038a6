/* The accuracy oracle: scalar, double accumulation, plain storage, never optimised. */
#ifndef TESSERA_KERNELS_REF_REF_H
#define TESSERA_KERNELS_REF_REF_H

#include "kernels/handles.h"

extern const struct backend_ops ref_ops;

enum status ref_open(struct backend **out, struct err *err) MUST_USE;

/* ref_sample.c */
void ref_sample(struct backend *b, int32_t *ids, struct cview logits, const int32_t *slot,
                const int32_t *position, const struct sample_params *params, int32_t *last);

#endif
