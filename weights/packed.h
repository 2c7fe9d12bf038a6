/* Integers of 4 or 8 bits in words of 32, as quantisers publish them. Of a linear X [N, K] with a
 * scale for each g columns (G groups, the last may be shorter) and p = 32 / bits, in the order of
 * enum packed_part:
 *
 *   PACKED  X.weight_packed [N, K/p]  X.weight_scale [N, G]  X.weight_zero_point [N/p, G]
 *           X.weight_g_idx [K]        X.weight_shape [2]
 *   GPTQ    X.qweight [K/p, N]        X.scales [G, N]        X.qzeros [G, N/p]        X.g_idx [K]
 *   AWQ     X.qweight [K, N/p]        X.scales [G, N]        X.qzeros [G, N/p]
 *
 * The first number of a word is in its lowest bits; AWQ has those of even place first, then the
 * others. A weight is scale * (code - zero). Version 1 of GPTQ stores zeros less one, taken from
 * whole words (GPTQModel), so that a zero of 0 borrows from the next; AutoGPTQ itself spoilt the
 * rest of such a word. Where zeros are not in the file, or U4 is not the type that is held, they
 * are half of what the bits can say, and files that call themselves version 1 may have them as
 * version 2 does. PACKED rounds K/p and N/p up; the others have whole words. Older versions of
 * AutoGPTQ give every linear an X.bias [N], of zeros where the model has none. (compressed-tensors'
 * pack_quantized, AutoGPTQ's QuantLinear, AutoAWQ's WQLinear_GEMM.) */
#ifndef TESSERA_WEIGHTS_PACKED_H
#define TESSERA_WEIGHTS_PACKED_H

#include "weights/placement.h"

enum packed_part {
    PACKED_CODES,
    PACKED_SCALES,
    PACKED_ZEROS,
    PACKED_ORDER, /* the group of each column: k / g; the tensor may be missing */
    PACKED_SHAPE, /* N and K */
    PACKED_BIAS,  /* may be missing, too */
    PACKED_PARTS
};

/* Is the weight made of such words? */
bool packed_is_source(const struct local_weight *w);
/* The part of a slice as one of the tensor that has it; false: the form has no such tensor. */
bool packed_part(const struct local_weight *w, const struct tensor_slice *s, enum packed_part part,
                 struct tensor_slice *out);
static inline bool packed_is_optional(enum packed_part part)
{
    return part == PACKED_ORDER || part == PACKED_BIAS;
}
/* May that tensor be of this type? And those that may, for messages. */
bool packed_part_type(enum packed_part part, enum dtype dtype);
const char *packed_part_types(enum packed_part part);
/* Can the matrix be in whole words, where the form has only these? */
bool packed_fits(const struct local_weight *w, const struct tensor_slice *s);

/* The parts of some rows of a slice, as packed_part cuts them out of their tensors. */
struct packed_rows {
    const struct local_weight *weight;
    struct tensor_slice slice;
    const uint32_t *codes, *zeros; /* zeros: NULL where there are none */
    const void *scales;
    enum dtype scales_type;
};

/* What is wrong with a row. */
enum packed_fault { PACKED_SOUND, PACKED_BAD_SCALE, PACKED_BAD_ZERO };

/* Codes less their zeros of the slice's columns of a row (of the tensor), and the scales of all
 * groups of BACKEND_GROUP columns that these touch. */
enum packed_fault packed_codes(const struct packed_rows *p, int64_t row, int8_t *codes,
                               float *scales) MUST_USE;
/* The elements themselves, in fp32. */
enum packed_fault packed_values(const struct packed_rows *p, int64_t row, float *values) MUST_USE;

#endif
