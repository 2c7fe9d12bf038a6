/* F8_E4M3 weights: how a row is quantised, and where the scales of a quantised checkpoint are. */
#ifndef TESSERA_WEIGHTS_FP8_H
#define TESSERA_WEIGHTS_FP8_H

#include "weights/checkpoint.h"

/* Scale of a whole row: its largest magnitude / 448, but no subnormal number. False when that is
 * not finite or more than BACKEND_SCALE_MAX. */
bool fp8_scale(const void *row, enum dtype dtype, int64_t n, float *scale);
/* Codes of elements [range.begin, range.end) of a row: nearest to element / scale, ties to even. */
void fp8_quantize(uint8_t *codes, const void *row, enum dtype dtype, struct span range,
                  float scale);
/* Values of the codes of a row's elements `range`: times their scales, one for each group of so
 * many columns of the tensor (0: one for all), of which scale[0] is that of the first element. */
void fp8_values(float *values, const uint8_t *codes, struct span range, int32_t group,
                const float *scale);
/* No NaN among n codes? */
bool fp8_finite(const uint8_t *codes, size_t n);

/* The scales of one slice of a weight that is quantised in the file, as they are there: one per
 * block of quant.rows x quant.cols. */
struct fp8_scales {
    float *value;       /* [rows][cols] */
    int64_t rows, cols; /* blocks */
    int64_t first_row;  /* block */
    int32_t block_rows; /* 0: all rows */
    uint64_t bytes;     /* read from the file */
};
/* ERR_MODEL when one is negative, not finite or too large. Close in any case. */
enum status fp8_scales_read(const struct checkpoint *c, const struct local_weight *w,
                            const struct tensor_slice *s, int32_t rank, struct fp8_scales *out,
                            struct err *err) MUST_USE;
void fp8_scales_close(struct fp8_scales *s);
/* Those of a row of the tensor, one per group of columns. */
const float *fp8_scales_row(const struct fp8_scales *s, int64_t row);

#endif
