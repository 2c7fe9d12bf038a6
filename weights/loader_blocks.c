/* DESIGN: a part of loader.c: rows of MXFP4 into a weight that holds their codes, or their values.
 */
#include "weights/loader_job.h"
#include "weights/mxfp4.h"

/* Bytes of one row of blocks in staging: as it is read, its codes, its scales or values. */
size_t loader_blocks_row_bytes(const struct local_weight *w)
{
    const size_t in = (size_t)w->spec.in, groups = in / MXFP4_GROUP + 2;
    const size_t wide = in > groups ? in : groups;
    return groups * (MXFP4_BLOCK + 1) + in + wide * sizeof(float);
}

/* Where a thread has rows of it: as they are in the file, and what they become. */
struct blocks {
    uint8_t *codes, *scales;
    int8_t *out;
    float *factors; /* scales, or values where these are held */
};

static struct blocks blocks_in(const struct local_weight *w, char *staging, size_t rows,
                               size_t groups)
{
    const size_t in = (size_t)w->spec.in, wide = in > groups ? in : groups;
    struct blocks b = {.codes = (uint8_t *)staging};
    b.factors = (float *)(void *)(staging + base_align(rows * groups * MXFP4_BLOCK, 64));
    b.scales = (uint8_t *)(b.factors + rows * wide);
    b.out = (int8_t *)b.scales + rows * groups;
    return b;
}

/* Rows of codes, or of values, into the weight from its row `at` on. */
static enum status put_blocks(struct job *j, int32_t weight, const struct tensor_slice *s,
                              struct span rows, int64_t at, const struct blocks *b, struct err *err)
{
    const struct backend_ops *ops = j->backend->ops;
    const struct local_weight *w = &j->weights[weight];
    struct weight *to = j->l->linear[weight];
    const bool values = !dtype_is_scaled(w->spec.dtype);
    const size_t n = (size_t)span_len(rows), in = (size_t)w->spec.in;
    const size_t groups = (size_t)span_len(mxfp4_groups(s->cols));
    for (size_t r = 0; r < n; r++) {
        const uint8_t *codes = b->codes + r * groups * MXFP4_BLOCK,
                      *scales = b->scales + r * groups;
        if (!(values
                  ? mxfp4_values(b->factors + r * in, codes, scales, s->cols)
                  : mxfp4_codes(b->out + r * in, b->factors + r * groups, codes, scales, s->cols)))
            return base_fail(
                err, ERR_MODEL,
                "tensor %s: row %lld has a scale that is NaN, below 2^-125 or above 2^124",
                s->tensor, (long long)rows.begin + (long long)r);
    }
    if (values) {
        ops->weight_put(to, (int32_t)at, (int32_t)n, b->factors, DTYPE_F32, in * sizeof(float));
    } else {
        ops->weight_put(to, (int32_t)at, (int32_t)n, b->out, DTYPE_I8, in);
        ops->weight_scale(to, (int32_t)at, (int32_t)n, b->factors);
    }
    return OK;
}

enum status loader_blocks_fill(struct job *j, int32_t weight, const struct tensor_slice *s,
                               struct span rows, int64_t at, const struct worker *own,
                               struct err *err)
{
    enum status st = OK;
    const struct local_weight *w = &j->weights[weight];
    const struct checkpoint_tensor *t = checkpoint_find(j->c, s->tensor), *scale;
    const struct span groups = mxfp4_groups(s->cols);
    const struct span bytes = mxfp4_bytes(s).cols;
    struct tensor_slice part;
    const struct blocks b =
        blocks_in(w, own->staging, (size_t)span_len(rows), (size_t)span_len(groups));
    TRY(checkpoint_scale(j->c, w, s, &scale, &part, err));
    TRY(loader_read(j, t, rows, bytes, b.codes, own, err));
    TRY(loader_read(j, scale, rows, groups, b.scales, own, err));
    TRY(put_blocks(j, weight, s, rows, at, &b, err));
    loader_count(j, (uint64_t)(span_len(rows) * (span_len(bytes) + span_len(groups))));
out:
    return st;
}
