/* DESIGN: a row has one scale over all its columns, whichever of them a rank holds, so that a row
 * is the same numbers under every layout; the price is that a rank with some columns reads the
 * whole row. Scales over the part of each rank were rejected: results would depend on the ranks.
 * Elements go in blocks of 16 so that compilers vectorise them. */
#include "weights/fp8.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK 16

bool fp8_scale(const void *row, enum dtype dtype, int64_t n, float *scale)
{
    uint32_t most[BLOCK] = {0}, largest = 0; /* magnitudes in the order of their bits; NaN on top */
    for (int64_t at = 0; at < n; at += BLOCK) {
        float v[BLOCK] = {0};
        uint32_t u[BLOCK];
        dtype_load_n(v, row, dtype, (size_t)at, (size_t)base_min64(BLOCK, n - at));
        memcpy(u, v, sizeof u);
        for (int i = 0; i < BLOCK; i++)
            most[i] = (u[i] & 0x7fffffffu) > most[i] ? u[i] & 0x7fffffffu : most[i];
    }
    for (int i = 0; i < BLOCK; i++)
        largest = most[i] > largest ? most[i] : largest;
    float max;
    memcpy(&max, &largest, sizeof max);
    max /= DTYPE_E4M3_MAX;
    *scale = max < FLT_MIN ? FLT_MIN : max;
    return max <= BACKEND_SCALE_MAX;
}

void fp8_quantize(uint8_t *codes, const void *row, enum dtype dtype, struct span range, float scale)
{
    for (int64_t at = range.begin; at < range.end; at += BLOCK, codes += BLOCK) {
        const int64_t n = base_min64(BLOCK, range.end - at);
        float v[BLOCK] = {0};
        uint8_t c[BLOCK];
        dtype_load_n(v, row, dtype, (size_t)at, (size_t)n);
        for (int i = 0; i < BLOCK; i++)
            c[i] = dtype_to_e4m3(v[i] / scale);
        memcpy(codes, c, (size_t)n);
    }
}

void fp8_values(float *values, const uint8_t *codes, struct span range, int32_t group,
                const float *scale)
{
    const int64_t first = group > 0 ? range.begin / group : 0;
    for (int64_t k = range.begin; k < range.end; k++) {
        const int64_t i = k - range.begin;
        values[i] =
            dtype_load(codes, DTYPE_F8_E4M3, (size_t)i) * scale[group > 0 ? k / group - first : 0];
    }
}

bool fp8_finite(const uint8_t *codes, size_t n)
{
    unsigned bad = 0;
    for (size_t i = 0; i < n; i++)
        bad |= (codes[i] & 0x7fu) == DTYPE_E4M3_NAN;
    return bad == 0;
}

enum status fp8_scales_read(const struct checkpoint *c, const struct local_weight *w,
                            const struct tensor_slice *s, int32_t rank, struct fp8_scales *out,
                            struct err *err)
{
    struct tensor_slice part;
    const struct checkpoint_tensor *t;
    memset(out, 0, sizeof *out);
    enum status st = checkpoint_scale(c, w, s, &t, &part, err);
    if (st != OK)
        return st;
    const struct placement_box box = placement_scales(w, s);
    const size_t n = (size_t)(span_len(box.rows) * span_len(box.cols));
    *out = (struct fp8_scales){
        .value = calloc(n + 1, sizeof(float)),
        .rows = span_len(box.rows),
        .cols = span_len(box.cols),
        .first_row = box.rows.begin,
        .block_rows = w->quant.rows,
        .bytes = n * dtype_size(t->dtype),
    };
    if (!out->value)
        return base_fail(err, ERR_NOMEM, "%s: no memory for %zu scales", t->name_in_file, n);
    st = checkpoint_read(c, t, part.rows, part.cols, rank, out->value, err);
    for (size_t i = n; i-- > 0 && st == OK;) { /* from the end: the file's type is not wider */
        const float v = dtype_load(out->value, t->dtype, i);
        if (!(v >= 0 && v <= BACKEND_SCALE_MAX))
            st = base_fail(err, ERR_MODEL, "tensor %s: a scale is %g, expected 0 to %g",
                           t->name_in_file, (double)v, (double)BACKEND_SCALE_MAX);
        out->value[i] = v;
    }
    return st;
}

void fp8_scales_close(struct fp8_scales *s)
{
    free(s->value);
    *s = (struct fp8_scales){0};
}

const float *fp8_scales_row(const struct fp8_scales *s, int64_t row)
{
    const int64_t block = s->block_rows == 0 ? 0 : row / s->block_rows - s->first_row;
    CHECK(block >= 0 && block < s->rows);
    return s->value + block * s->cols;
}
