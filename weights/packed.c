/* DESIGN: the forms differ in which of row and column (or group) runs along a tensor's rows, and
 * which of them words run along; struct places says both, so that one set of loops reads all. */
#include "weights/packed.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define WEIGHT "weight"    /* a slice's tensor is X.weight */
#define AWQ_ROWS 8         /* in a word */
#define SCALE_MAX 0x1p100f /* products of what is larger may not be finite */

/* ---- tensors and parts of them ---- */

bool packed_is_source(const struct local_weight *w)
{
    return w->quant.kind == QUANT_FILE && w->quant.form != QUANT_BYTES;
}

static int32_t bits_of(const struct local_weight *w)
{
    return w->quant.code == DTYPE_I8 ? 8 : 4;
}

static const char *name_of(const struct local_weight *w, enum packed_part part)
{
    static const char *const names[][PACKED_PARTS] = {
        [QUANT_PACKED] = {"weight_packed", "weight_scale", "weight_zero_point", "weight_g_idx",
                          "weight_shape", NULL},
        [QUANT_GPTQ] = {"qweight", "scales", "qzeros", "g_idx", NULL, "bias"},
        [QUANT_AWQ] = {"qweight", "scales", "qzeros", NULL, NULL, NULL}};
    const bool none =
        w->quant.form == QUANT_PACKED && part == PACKED_ZEROS && w->quant.code != DTYPE_U4;
    return none ? NULL : names[w->quant.form][part];
}

bool packed_part_type(enum packed_part part, enum dtype dtype)
{
    const bool floats = part == PACKED_SCALES || part == PACKED_BIAS;
    return floats                 ? dtype_is_compute(dtype)
           : part == PACKED_SHAPE ? dtype == DTYPE_I64 || dtype == DTYPE_I32
                                  : dtype == DTYPE_I32;
}

const char *packed_part_types(enum packed_part part)
{
    const bool floats = part == PACKED_SCALES || part == PACKED_BIAS;
    return floats                 ? "F32, F16 or BF16"
           : part == PACKED_SHAPE ? "I64 or I32"
                                  : "I32, by quantization_config";
}

bool packed_fits(const struct local_weight *w, const struct tensor_slice *s)
{
    const int64_t p = 32 / bits_of(w);
    return w->quant.form == QUANT_PACKED ||
           (s->shape[0] % p == 0 && (w->quant.form == QUANT_AWQ || s->shape[1] % p == 0));
}

/* How a tensor has the numbers of a matrix: so many rows or columns of it in one place, and rows of
 * the matrix along the tensor's columns or not. */
struct places {
    int64_t rows, cols;
    bool turned;
};

/* Of scales and zeros columns are groups: g columns of the weight. */
static struct places places_of(const struct local_weight *w, enum packed_part part)
{
    const int64_t p = 32 / bits_of(w), g = w->quant.cols > 0 ? w->quant.cols : INT64_MAX;
    const bool turned = w->quant.form != QUANT_PACKED, awq = w->quant.form == QUANT_AWQ;
    if (part == PACKED_CODES)
        return (struct places){awq ? p : 1, awq ? 1 : p, turned};
    return (struct places){part == PACKED_ZEROS ? p : 1, g, turned};
}

static struct span within(struct span s, int64_t each)
{
    return span_len(s) == 0 ? (struct span){0, 0}
                            : (struct span){s.begin / each, (s.end - 1) / each + 1};
}

/* The rectangle of a tensor that has these rows and columns of the matrix. */
static struct placement_box box_of(const struct places *p, struct span rows, struct span cols)
{
    rows = within(rows, p->rows);
    cols = within(cols, p->cols);
    if (span_len(rows) == 0 || span_len(cols) == 0)
        return (struct placement_box){{0, 0}, {0, 0}};
    return p->turned ? (struct placement_box){cols, rows} : (struct placement_box){rows, cols};
}

/* Of a tensor with one dimension. */
static struct tensor_slice list_of(const struct tensor_slice *s, enum packed_part part, bool empty)
{
    struct tensor_slice list = {.ndim = 1, .shape = {1, 2}, .rows = {0, !empty}};
    const struct span both = {0, 2}, none = {0, 0};
    if (part != PACKED_SHAPE)
        list.shape[1] = s->shape[part == PACKED_ORDER];
    list.cols = empty                  ? none
                : part == PACKED_ORDER ? s->cols
                : part == PACKED_BIAS  ? s->rows
                                       : both;
    return list;
}

bool packed_part(const struct local_weight *w, const struct tensor_slice *s, enum packed_part part,
                 struct tensor_slice *out)
{
    const char *name = name_of(w, part);
    const size_t n = strlen(s->tensor), end = sizeof WEIGHT - 1;
    const bool empty = span_len(s->rows) == 0 || span_len(s->cols) == 0;
    CHECK(n > end && strcmp(s->tensor + n - end, WEIGHT) == 0);
    if (!name)
        return false;
    const struct places p = places_of(w, part);
    const struct placement_box box = box_of(&p, s->rows, s->cols);
    const struct placement_box whole =
        box_of(&p, (struct span){0, s->shape[0]}, (struct span){0, s->shape[1]});
    *out = (struct tensor_slice){.ndim = 2, .rows = box.rows, .cols = box.cols};
    out->shape[0] = whole.rows.end;
    out->shape[1] = whole.cols.end;
    if (part >= PACKED_ORDER)
        *out = list_of(s, part, empty);
    const int used =
        snprintf(out->tensor, sizeof out->tensor, "%.*s%s", (int)(n - end), s->tensor, name);
    CHECK(used > 0 && used < PLACEMENT_NAME_MAX);
    return true;
}

/* ---- numbers ---- */

/* Where a part begins with a row's numbers, and how far apart the places along it are. */
struct line {
    int64_t first, step;
    struct span cols; /* places */
};

static struct line line_of(const struct packed_rows *p, enum packed_part part, int64_t row)
{
    const struct places at = places_of(p->weight, part);
    const struct placement_box box = box_of(&at, p->slice.rows, p->slice.cols);
    if (at.turned)
        return (struct line){row / at.rows - box.cols.begin, span_len(box.cols), box.rows};
    return (struct line){(row / at.rows - box.rows.begin) * span_len(box.cols), 1, box.cols};
}

/* Which number of its word row `row` has, where words run along rows. */
static int32_t place_in_word(const struct packed_rows *p, int64_t row)
{
    static const int32_t awq[AWQ_ROWS] = {0, 4, 1, 5, 2, 6, 3, 7};
    return p->weight->quant.form == QUANT_AWQ ? awq[row % AWQ_ROWS]
                                              : (int32_t)(row % (32 / bits_of(p->weight)));
}

/* Codes of columns [from, to) of a row. */
static void read_codes(const struct packed_rows *p, const struct line *l, int64_t row, int64_t from,
                       int64_t to, uint8_t *codes)
{
    const int32_t bits = bits_of(p->weight);
    const uint32_t mask = (1u << bits) - 1;
    if (p->weight->quant.form == QUANT_AWQ) {
        const int32_t shift = bits * place_in_word(p, row);
        const uint32_t *word = p->codes + l->first + (from - l->cols.begin) * l->step;
        for (int64_t k = from; k < to; k++, word += l->step)
            *codes++ = (uint8_t)(*word >> shift & mask);
        return;
    }
    const int32_t each = 32 / bits;
    for (int64_t k = from; k < to;) {
        const uint32_t word = p->codes[l->first + (k / each - l->cols.begin) * l->step];
        for (int32_t i = (int32_t)(k % each); i < each && k < to; i++, k++)
            *codes++ = (uint8_t)(word >> bits * i & mask);
    }
}

/* The zero of a row's group. False: it is another than is held. */
static bool read_zero(const struct packed_rows *p, const struct line *l, int64_t row, int64_t group,
                      int32_t *zero)
{
    const int32_t bits = bits_of(p->weight), half = 1 << (bits - 1);
    *zero = half;
    if (!p->zeros)
        return true;
    const uint32_t mask = (1u << bits) - 1, ones = UINT32_MAX / mask; /* one in each place */
    const uint32_t more = (uint32_t)p->weight->quant.zero_more * ones;
    const uint32_t word = p->zeros[l->first + (group - l->cols.begin) * l->step];
    *zero = (int32_t)((word + more) >> bits * place_in_word(p, row) & mask);
    if (p->weight->quant.code == DTYPE_U4)
        return true;
    const bool second = more > 0 && *zero == half + 1; /* as version 2 has it */
    *zero = second ? half : *zero;
    return *zero == half;
}

/* What becomes of a row: codes and scales, or values. */
struct target {
    int8_t *codes;
    float *scales, *values;
};

/* Columns [from, end), which lie in one group of BACKEND_GROUP. */
static void put_group(const struct packed_rows *p, const struct target *to, const uint8_t *codes,
                      int64_t from, int64_t end, int32_t zero, float scale)
{
    const int64_t first = from - p->slice.cols.begin, n = end - from;
    if (to->values) {
        for (int64_t i = 0; i < n; i++)
            to->values[first + i] = scale * (float)(codes[i] - zero);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        to->codes[first + i] = (int8_t)(codes[i] - zero);
    const int64_t before = p->slice.cols.begin / BACKEND_GROUP;
    to->scales[from / BACKEND_GROUP - before] = scale;
}

static enum packed_fault read_row(const struct packed_rows *p, int64_t row, const struct target *to)
{
    const int64_t g = p->weight->quant.cols, end = p->slice.cols.end;
    const struct line codes = line_of(p, PACKED_CODES, row), zeros = line_of(p, PACKED_ZEROS, row),
                      scales = line_of(p, PACKED_SCALES, row);
    uint8_t some[BACKEND_GROUP];
    for (int64_t k = p->slice.cols.begin, next; k < end; k = next) {
        const int64_t group = g > 0 ? k / g : 0;
        int32_t zero;
        next = base_min64(end, (k / BACKEND_GROUP + 1) * BACKEND_GROUP);
        const float scale =
            dtype_load(p->scales, p->scales_type,
                       (size_t)(scales.first + (group - scales.cols.begin) * scales.step));
        if (!(fabsf(scale) <= SCALE_MAX))
            return PACKED_BAD_SCALE;
        if (!read_zero(p, &zeros, row, group, &zero))
            return PACKED_BAD_ZERO;
        read_codes(p, &codes, row, k, next, some);
        put_group(p, to, some, k, next, zero, scale);
    }
    return PACKED_SOUND;
}

enum packed_fault packed_codes(const struct packed_rows *p, int64_t row, int8_t *codes,
                               float *scales)
{
    return read_row(p, row, &(struct target){.codes = codes, .scales = scales});
}

enum packed_fault packed_values(const struct packed_rows *p, int64_t row, float *values)
{
    return read_row(p, row, &(struct target){.values = values});
}
