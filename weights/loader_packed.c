/* DESIGN: a part of loader.c: rows of integers in words into a weight that holds their codes, or
 * their values. Scales and zeros are read with their rows, so that what is in memory at a time is
 * bounded; words that the rows before have part of are read again, but counted once. */
#include "weights/loader_job.h"
#include "weights/packed.h"

#include <string.h>

#define WORD sizeof(uint32_t)
#define CHECKED 1024 /* columns whose order is read at a time */

/* Where a thread has rows of it: as they are in the file, and what they become. */
struct packed {
    void *part[PACKED_PARTS]; /* codes, scales and zeros */
    int8_t *codes;
    float *scales, *values; /* either */
};

/* Bytes of rows of a part in staging, wherever the first of them begins in a word. */
static size_t part_bytes(const struct local_weight *w, enum packed_part part, size_t rows)
{
    const size_t p = w->quant.code == DTYPE_I8 ? 4 : 8, in = (size_t)placement_cols(w);
    const size_t groups = w->quant.cols > 0 ? in / (size_t)w->quant.cols + 2 : 1;
    if (part == PACKED_CODES && w->quant.form == QUANT_AWQ)
        return in * (rows / p + 2) * WORD;
    if (part == PACKED_CODES)
        return (in / p + 2) * rows * WORD;
    return groups * (part == PACKED_ZEROS ? rows / p + 2 : rows) * WORD;
}

static bool holds_values(const struct local_weight *w)
{
    return !dtype_is_scaled(w->spec.dtype);
}

/* Cuts staging up; staging NULL: how many bytes that takes. */
static size_t cut(const struct local_weight *w, char *staging, size_t rows, struct packed *p)
{
    const size_t in = (size_t)placement_cols(w), scales = (size_t)backend_scales(&w->spec);
    size_t at = 0;
    for (int i = PACKED_CODES; i <= PACKED_ZEROS; i++) {
        p->part[i] = staging ? staging + at : NULL;
        at += base_align(part_bytes(w, (enum packed_part)i, rows), 64);
    }
    float *floats = staging ? (float *)(void *)(staging + at) : NULL;
    p->values = holds_values(w) ? floats : NULL;
    p->scales = holds_values(w) ? NULL : floats;
    at += base_align((holds_values(w) ? in : scales) * rows * sizeof(float), 64);
    p->codes = staging ? (int8_t *)staging + at : NULL;
    return at + (holds_values(w) ? 0 : in * rows);
}

size_t loader_packed_bytes(const struct local_weight *w, size_t rows)
{
    struct packed p;
    return cut(w, NULL, rows, &p);
}

static uint64_t bytes_of(const struct local_weight *w, const struct tensor_slice *s,
                         struct span rows, enum packed_part part, enum dtype dtype)
{
    struct tensor_slice some = *s, box;
    some.rows = rows;
    if (!packed_part(w, &some, part, &box))
        return 0;
    return (uint64_t)(span_len(box.rows) * span_len(box.cols)) * dtype_size(dtype);
}

/* One part of these rows; *tensor: NULL where the form has no such part. */
static enum status read_part(struct job *j, const struct local_weight *w,
                             const struct tensor_slice *s, struct span rows, enum packed_part part,
                             void *to, const struct checkpoint_tensor **tensor,
                             const struct worker *own, struct err *err)
{
    struct tensor_slice some = *s, box;
    some.rows = rows;
    *tensor = NULL;
    if (!packed_part(w, &some, part, &box))
        return OK;
    const struct checkpoint_tensor *t = checkpoint_find(j->c, box.tensor);
    if (!t || t->rows != box.shape[0] || t->cols != box.shape[1] ||
        !packed_part_type(part, t->dtype))
        return base_fail(err, ERR_MODEL, "weight %s: the checkpoint has no such tensor %s", w->name,
                         box.tensor);
    enum status st = loader_read(j, t, box.rows, box.cols, to, own, err);
    const struct span before = {s->rows.begin, rows.begin}, all = {s->rows.begin, rows.end};
    if (st == OK)
        loader_count(j,
                     bytes_of(w, s, all, part, t->dtype) - bytes_of(w, s, before, part, t->dtype));
    *tensor = t;
    return st;
}

static enum status refuse(enum packed_fault fault, const struct tensor_slice *s, int64_t row,
                          const struct checkpoint_tensor *const *tensors, struct err *err)
{
    if (fault == PACKED_BAD_SCALE)
        return base_fail(err, ERR_MODEL,
                         "tensor %s: a scale of output %lld is not finite, or too large",
                         tensors[PACKED_SCALES]->name, (long long)row);
    return base_fail(err, ERR_MODEL,
                     "tensor %s: a zero of output %lld is not that of symmetric codes, as "
                     "quantization_config says they are (sym, symmetric)",
                     tensors[PACKED_ZEROS] ? tensors[PACKED_ZEROS]->name : s->tensor,
                     (long long)row);
}

enum status loader_packed_fill(struct job *j, int32_t weight, const struct tensor_slice *s,
                               struct span rows, int64_t at, const struct worker *own,
                               struct err *err)
{
    enum status st = OK;
    const struct backend_ops *ops = j->backend->ops;
    const struct local_weight *w = &j->weights[weight];
    const size_t n = (size_t)span_len(rows), in = (size_t)placement_cols(w);
    const size_t scales = (size_t)backend_scales(&w->spec);
    const struct checkpoint_tensor *tensors[PACKED_PARTS] = {NULL};
    struct weight *to = j->l->linear[weight];
    struct packed p;
    cut(w, own->staging, n, &p);
    for (int i = PACKED_CODES; i <= PACKED_ZEROS; i++)
        TRY(read_part(j, w, s, rows, (enum packed_part)i, p.part[i], &tensors[i], own, err));
    struct packed_rows from = {.weight = w,
                               .slice = *s,
                               .codes = p.part[PACKED_CODES],
                               .zeros = tensors[PACKED_ZEROS] ? p.part[PACKED_ZEROS] : NULL,
                               .scales = p.part[PACKED_SCALES],
                               .scales_type = tensors[PACKED_SCALES]->dtype};
    from.slice.rows = rows;
    for (size_t r = 0; r < n; r++) {
        const int64_t row = rows.begin + (int64_t)r;
        const enum packed_fault fault =
            p.values ? packed_values(&from, row, p.values + r * in)
                     : packed_codes(&from, row, p.codes + r * in, p.scales + r * scales);
        if (fault != PACKED_SOUND)
            return refuse(fault, s, row, tensors, err);
    }
    if (p.values) {
        loader_put(j, weight, at, (int64_t)n, p.values, DTYPE_F32, in * sizeof(float), own);
    } else {
        ops->weight_put(to, (int32_t)at, (int32_t)n, p.codes, DTYPE_I8, in);
        ops->weight_scale(to, (int32_t)at, (int32_t)n, p.scales);
    }
out:
    return st;
}

/* ---- what is beside them ---- */

static int64_t integer_at(const void *data, enum dtype dtype, int64_t i)
{
    return dtype == DTYPE_I64 ? ((const int64_t *)data)[i] : ((const int32_t *)data)[i];
}

/* The tensor's two numbers. */
static enum status check_shape(struct job *j, const struct tensor_slice *s,
                               const struct tensor_slice *part, struct err *err)
{
    int64_t found[2];
    const struct worker alone = {NULL, NULL};
    const struct checkpoint_tensor *t = checkpoint_find(j->c, part->tensor);
    CHECK(t && t->cols == 2 && t->rows == 1);
    enum status st = loader_read(j, t, part->rows, part->cols, found, &alone, err);
    if (st != OK)
        return st;
    const int64_t rows = integer_at(found, t->dtype, 0), cols = integer_at(found, t->dtype, 1);
    loader_count(j, 2 * dtype_size(t->dtype));
    if (rows != s->shape[0] || cols != s->shape[1])
        return base_fail(err, ERR_MODEL, "tensor %s: expected %lld and %lld, found %lld and %lld",
                         t->name_in_file, (long long)s->shape[0], (long long)s->shape[1],
                         (long long)rows, (long long)cols);
    return OK;
}

/* The group of each column. */
static enum status check_order(struct job *j, const struct local_weight *w,
                               const struct tensor_slice *part, struct err *err)
{
    int32_t group[CHECKED];
    const struct worker alone = {NULL, NULL};
    const struct checkpoint_tensor *t = checkpoint_find(j->c, part->tensor);
    for (int64_t k = part->cols.begin, n; t && k < part->cols.end; k += n) {
        n = part->cols.end - k < CHECKED ? part->cols.end - k : CHECKED;
        enum status st = loader_read(j, t, part->rows, (struct span){k, k + n}, group, &alone, err);
        if (st != OK)
            return st;
        loader_count(j, (uint64_t)n * dtype_size(t->dtype));
        for (int64_t i = 0; i < n; i++) {
            const int64_t wanted = w->quant.cols > 0 ? (k + i) / w->quant.cols : 0;
            if (group[i] != wanted)
                return base_fail(err, ERR_MODEL,
                                 "tensor %s: column %lld is in group %d, expected %lld: columns in "
                                 "the order of their activations are not supported; quantise again "
                                 "with desc_act false",
                                 t->name_in_file, (long long)(k + i), group[i], (long long)wanted);
        }
    }
    return OK;
}

static bool is_taken(const struct job *j, const char *tensor)
{
    for (int32_t i = 0; i < j->l->count; i++)
        for (int32_t k = 0; k < j->weights[i].slice_count; k++)
            if (strcmp(j->weights[i].slices[k].tensor, tensor) == 0)
                return true;
    return false;
}

/* Zeros, unless the model has a bias there. */
static enum status check_bias(struct job *j, const struct tensor_slice *part, struct err *err)
{
    float values[CHECKED];
    const struct worker alone = {NULL, NULL};
    const struct checkpoint_tensor *t = checkpoint_find(j->c, part->tensor);
    const bool taken = t && is_taken(j, t->name);
    for (int64_t at = part->cols.begin, n; t && at < part->cols.end; at += n) {
        n = part->cols.end - at < CHECKED ? part->cols.end - at : CHECKED;
        enum status st =
            loader_read(j, t, part->rows, (struct span){at, at + n}, values, &alone, err);
        if (st != OK)
            return st;
        loader_count(j, (uint64_t)n * dtype_size(t->dtype));
        for (int64_t i = 0; i < n && !taken; i++)
            if (dtype_load(values, t->dtype, (size_t)i) != 0)
                return base_fail(err, ERR_MODEL,
                                 "tensor %s: element %lld is %g, expected zeros: this model has no "
                                 "bias there",
                                 t->name_in_file, (long long)(at + i),
                                 (double)dtype_load(values, t->dtype, (size_t)i));
    }
    return OK;
}

enum status loader_packed_check(struct job *j, const struct local_weight *w, struct err *err)
{
    enum status st = OK;
    for (int32_t i = 0; i < w->slice_count; i++) {
        struct tensor_slice part;
        const struct tensor_slice *s = &w->slices[i];
        if (span_len(s->rows) == 0 || span_len(s->cols) == 0)
            continue;
        if (packed_part(w, s, PACKED_SHAPE, &part))
            TRY(check_shape(j, s, &part, err));
        if (packed_part(w, s, PACKED_ORDER, &part))
            TRY(check_order(j, w, &part, err));
        if (packed_part(w, s, PACKED_BIAS, &part))
            TRY(check_bias(j, &part, err));
    }
out:
    return st;
}
