/* What the files of this backend share: elements of matrices, and the sums that ops are made of.
 * Private to kernels/ref. */
#ifndef TESSERA_KERNELS_REF_REF_MATH_H
#define TESSERA_KERNELS_REF_REF_MATH_H

#include "kernels/handles.h"

#include <math.h>

static inline float ref_at(struct cview m, int32_t row, int32_t col)
{
    return dtype_load(m.data, m.dtype, (size_t)row * (size_t)m.cols + (size_t)col);
}

static inline float *ref_cell(struct view m, int32_t row, int32_t col)
{
    CHECK(m.dtype == DTYPE_F32);
    return (float *)m.data + (size_t)row * (size_t)m.cols + (size_t)col;
}

static inline double ref_sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* ref.c. Room for a row of n, which the caller frees. */
double *ref_row_open(int32_t n);
/* Row t of x as a weight of this kind meets it: rounded as it is before a product. */
void ref_row_of(double *row, struct cview x, int32_t t, const struct weight_spec *s);
/* Output `out` of w for such a row. */
double ref_dot(const double *row, const struct weight *w, int32_t out);
/* y may be x. */
void ref_norm(float *y, const float *x, const float *gain, float eps, int32_t n);

#endif
