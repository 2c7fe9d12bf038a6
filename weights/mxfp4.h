/* MXFP4 as gpt-oss is published in (OCP Microscaling Formats 1.0): a row is groups of 32 elements,
 * each of 16 bytes with two codes of E2M1, the first in the lower half, and a scale of E8M0 in a
 * tensor of its own. */
#ifndef TESSERA_WEIGHTS_MXFP4_H
#define TESSERA_WEIGHTS_MXFP4_H

#include "weights/placement.h"

#define MXFP4_GROUP 32
#define MXFP4_BLOCK 16 /* bytes of a group's codes */

/* The name ends of a weight's codes and scales in a checkpoint. */
#define MXFP4_CODES "_blocks"
#define MXFP4_SCALES "_scales"

/* Is the weight made of such rows? */
bool mxfp4_is_source(const struct local_weight *w);
/* Groups of a row that columns [cols.begin, cols.end) touch. */
struct span mxfp4_groups(struct span cols);
/* A slice of elements as one of the tensor of codes: its columns are bytes. */
struct tensor_slice mxfp4_bytes(const struct tensor_slice *s);

/* Codes of these columns, each twice the element (F4_E2M1), and the scales of those groups, for
 * them: half of what the file means. blocks, exponents: of the groups. False when a scale is NaN,
 * above 2^124, or below 2^-125 beside codes that are not zero. */
bool mxfp4_codes(int8_t *codes, float *scales, const uint8_t *blocks, const uint8_t *exponents,
                 struct span cols);
/* The elements themselves, exactly. */
bool mxfp4_values(float *values, const uint8_t *blocks, const uint8_t *exponents, struct span cols);

/* The nearest codes and scales of columns `cols` of a row of which `row` holds `read`, whole
 * groups: for synthetic weights. False when a value is not finite. */
bool mxfp4_quantize(int8_t *codes, float *scales, const void *row, enum dtype dtype,
                    struct span read, struct span cols);

#endif
