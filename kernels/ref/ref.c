/* DESIGN: what each op means, in the fewest words: row-major weights [out][in], sums in
 * double, results rounded once to fp32. It shares no code with the backends it judges, except the
 * definitions of sampling in numerics.h. Here are storage, products and what goes by elements. */
#include "kernels/host_memory.h"
#include "kernels/ref/ref.h"
#include "kernels/ref/ref_math.h"

#include <math.h>
#include <stdlib.h>

/* ---- storage --------------------------------------------------------------------------------- */

/* Integers of 4 bits are held as I8. */
static enum dtype stored(const struct weight_spec *spec)
{
    return dtype_is_int(spec->dtype) ? DTYPE_I8 : spec->dtype;
}

static size_t values_bytes(const struct weight_spec *spec)
{
    return base_align((size_t)spec->out * (size_t)spec->in * dtype_size(stored(spec)), 64);
}

/* The values, then scale[out][scales]. */
static size_t weight_bytes(const struct weight_spec *spec)
{
    const size_t scales = (size_t)spec->out * (size_t)backend_scales(spec);
    return values_bytes(spec) + base_align(scales * sizeof(float), 64);
}

static void ref_close(struct backend *b)
{
    free(b);
}

static void ref_sync(struct backend *b)
{
    (void)b;
}

static enum status ref_reserve(struct backend *b, int32_t rows_max, int32_t in_max, int32_t out_max,
                               struct err *err)
{
    (void)b, (void)rows_max, (void)in_max, (void)out_max, (void)err;
    return OK;
}

static void ref_parallel(struct backend *b, int64_t count, int64_t grain,
                         void (*fn)(void *arg, int64_t begin, int64_t end), void *arg)
{
    (void)b, (void)grain;
    if (count > 0)
        fn(arg, 0, count);
}

static struct weight *weight_open(struct backend *b, const struct weight_spec *spec, void *storage)
{
    struct weight *w = malloc(sizeof *w);
    if (w != NULL)
        *w = (struct weight){*spec, b, storage};
    return w;
}

static void weight_close(struct weight *w)
{
    free(w);
}

static float *scale_at(const struct weight *w, int32_t row, int32_t scale)
{
    float *all = (float *)(void *)(w->storage + values_bytes(&w->spec));
    return all + (size_t)row * (size_t)backend_scales(&w->spec) + scale;
}

static float weight_at(const struct weight *w, int32_t row, int32_t k)
{
    const float v =
        dtype_load(w->storage, stored(&w->spec), (size_t)row * (size_t)w->spec.in + (size_t)k);
    return dtype_is_scaled(w->spec.dtype) ? v * *scale_at(w, row, backend_scale_of(&w->spec, k))
                                          : v;
}

static void weight_put(struct weight *w, int32_t row, int32_t rows, const void *src,
                       enum dtype src_dtype, size_t stride)
{
    for (int32_t r = 0; r < rows; r++)
        for (int32_t k = 0; k < w->spec.in; k++)
            dtype_store(
                w->storage, stored(&w->spec), (size_t)(row + r) * (size_t)w->spec.in + (size_t)k,
                dtype_load((const unsigned char *)src + (size_t)r * stride, src_dtype, (size_t)k));
}

static void weight_scale(struct weight *w, int32_t row, int32_t rows, const float *scale)
{
    const size_t n = (size_t)rows * (size_t)backend_scales(&w->spec);
    memcpy(scale_at(w, row, 0), scale, n * sizeof *scale);
}

static void weight_get(const struct weight *w, int32_t row, float *dst)
{
    for (int32_t k = 0; k < w->spec.in; k++)
        dst[k] = weight_at(w, row, k);
}

/* ---- ops ------------------------------------------------------------------------------------- */

static void resolve(struct backend *b, int32_t *ids, const int32_t *token, const struct rows *rows,
                    const struct sample_slots *slots)
{
    (void)b;
    for (int32_t t = 0; t < rows->count; t++) {
        const int32_t slot = rows->slot[t];
        ids[t] = -1;
        if (slot < 0)
            continue;
        int32_t *known =
            slots->history + (size_t)slot * (size_t)slots->history_cols + (size_t)rows->position[t];
        if (token[t] >= 0)
            *known = token[t];
        ids[t] = *known;
    }
}

static void embed(struct backend *b, struct view y, const int32_t *ids, const struct weight *w,
                  int32_t first, float scale)
{
    (void)b;
    for (int32_t t = 0; t < y.rows; t++) {
        int64_t row = (int64_t)ids[t] - first;
        const bool mine = row >= 0 && row < w->spec.out;
        for (int32_t k = 0; k < y.cols; k++)
            *ref_cell(y, t, k) = mine ? weight_at(w, (int32_t)row, k) * scale : 0.0f;
    }
}

/* x over a run, as weights of I8 and I4 meet it. */
static void round_run(double *x, int32_t n)
{
    float max = 0;
    bool finite = true;
    for (int32_t k = 0; k < n; k++) {
        finite = finite && isfinite(x[k]);
        max = fabsf((float)x[k]) > max ? fabsf((float)x[k]) : max;
    }
    for (int32_t k = 0; k < n; k++) {
        const float code = rintf((float)x[k] * (NUMERICS_CODE_MAX / max));
        x[k] = max < NUMERICS_CODE_SMALL ? 0 : (double)code * (double)(max / NUMERICS_CODE_MAX);
        if (!finite)
            x[k] = NAN;
    }
}

/* Row t of x, in double. */
void ref_row_of(double *row, struct cview x, int32_t t, const struct weight_spec *s)
{
    for (int32_t k = 0; k < x.cols; k++)
        row[k] = (double)(s->dtype == DTYPE_BF16 ? dtype_from_bf16(dtype_to_bf16(ref_at(x, t, k)))
                                                 : ref_at(x, t, k));
    for (int32_t l = 0; l < s->leaves && dtype_is_int(s->dtype); l++) {
        for (int32_t k = s->cut[l], end; k < s->cut[l + 1]; k = end) {
            end = backend_scale_end(s, k);
            end = end < s->cut[l + 1] ? end : s->cut[l + 1];
            round_run(row + k, end - k);
        }
    }
}

double *ref_row_open(int32_t n)
{
    double *row = calloc((size_t)n + 1, sizeof *row);
    CHECK(row != NULL);
    return row;
}

double ref_dot(const double *row, const struct weight *w, int32_t out)
{
    double sum = 0;
    for (int32_t k = 0; k < w->spec.in; k++)
        sum += row[k] * (double)weight_at(w, out, k);
    return sum;
}

static void linear(struct backend *b, struct view y, struct cview x, const struct weight *w)
{
    (void)b;
    double *row = ref_row_open(x.cols);
    for (int32_t t = 0; t < y.rows; t++) {
        ref_row_of(row, x, t, &w->spec);
        for (int32_t n = 0; n < y.cols; n++)
            *ref_cell(y, t, n) = (float)ref_dot(row, w, n);
    }
    free(row);
}

static void head_linear(struct backend *b, struct view y, struct cview x, const struct experts *w,
                        int32_t kept)
{
    (void)b;
    const int32_t in = w->spec.in, out = w->spec.out;
    const struct cview heads = {x.data, x.dtype, x.rows * w->count, in + kept};
    double *row = ref_row_open(in + kept);
    for (int32_t i = 0; i < heads.rows; i++) {
        const int32_t t = i / w->count, head = i % w->count, first = head * (kept + out);
        ref_row_of(row, heads, i, &w->spec);
        for (int32_t n = 0; n < kept; n++)
            *ref_cell(y, t, first + n) = ref_at(heads, i, in + n);
        for (int32_t n = 0; n < out; n++)
            *ref_cell(y, t, first + kept + n) = (float)ref_dot(row, w->weight[head], n);
    }
    free(row);
}

static void add_bias(struct backend *b, struct view y, struct cview x, const float *bias)
{
    (void)b;
    for (int32_t t = 0; t < y.rows; t++)
        for (int32_t i = 0; i < y.cols; i++)
            *ref_cell(y, t, i) = ref_at(x, t, i) + bias[i];
}

void ref_norm(float *y, const float *x, const float *gain, float eps, int32_t n)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    double r = 1 / sqrt(sum / n + (double)eps);
    for (int32_t i = 0; i < n; i++)
        y[i] = (float)((double)x[i] * r * (double)gain[i]);
}

static void rmsnorm(struct backend *b, struct view y, struct cview x, const float *gain, float eps)
{
    (void)b;
    for (int32_t t = 0; t < y.rows; t++)
        ref_norm(ref_cell(y, t, 0), (const float *)x.data + (size_t)t * (size_t)x.cols, gain, eps,
                 x.cols);
}

static void add_rmsnorm(struct backend *b, struct view y, struct view x, struct cview delta,
                        const float *gain, float eps)
{
    for (int32_t t = 0; t < x.rows; t++)
        for (int32_t i = 0; i < x.cols; i++)
            *ref_cell(x, t, i) += ref_at(delta, t, i);
    rmsnorm(b, y, cview_of(x), gain, eps);
}

static void square_sum(struct backend *b, float *sums, struct view x, struct cview delta,
                       struct pieces pieces)
{
    (void)b, (void)pieces;
    for (int32_t t = 0; t < x.rows; t++) {
        double sum = 0;
        for (int32_t i = 0; i < x.cols; i++) {
            *ref_cell(x, t, i) += delta.data != NULL ? ref_at(delta, t, i) : 0;
            sum += (double)*ref_cell(x, t, i) * (double)*ref_cell(x, t, i);
        }
        sums[t] = (float)sum;
    }
}

static void rms_scale(struct backend *b, struct view y, struct cview x, const float *sums,
                      int32_t width, const float *gain, float eps)
{
    (void)b;
    for (int32_t t = 0; t < y.rows; t++) {
        double r = 1 / sqrt((double)sums[t] / width + (double)eps);
        for (int32_t i = 0; i < x.cols; i++)
            *ref_cell(y, t, i) = (float)((double)ref_at(x, t, i) * r * (double)gain[i]);
    }
}

static void add(struct backend *b, struct view x, struct cview delta, const float *scale)
{
    (void)b;
    for (int32_t t = 0; t < x.rows; t++) {
        for (int32_t i = 0; i < x.cols; i++) {
            *ref_cell(x, t, i) += ref_at(delta, t, i);
            if (scale != NULL)
                *ref_cell(x, t, i) *= *scale;
        }
    }
}

static double activate(double g, double up, enum activation act)
{
    const double u = sqrt(2 / acos(-1.0)) * (g + 0.044715 * g * g * g);
    const double limit = 7, most = fmin(g, limit);
    if (act == ACT_SWIGLU_PAIRS)
        return (fmax(fmin(up, limit), -limit) + 1) * most * ref_sigmoid(1.702 * most);
    return up * (act == ACT_SILU ? g * ref_sigmoid(g) : 0.5 * g * (1 + tanh(u)));
}

static void act_mul(struct backend *b, struct view y, struct cview gu, enum activation act)
{
    (void)b;
    const bool pairs = act == ACT_SWIGLU_PAIRS;
    for (int32_t t = 0; t < y.rows; t++)
        for (int32_t i = 0; i < y.cols; i++) {
            const float gate = ref_at(gu, t, pairs ? 2 * i : i);
            const float up = ref_at(gu, t, pairs ? 2 * i + 1 : y.cols + i);
            *ref_cell(y, t, i) = (float)activate((double)gate, (double)up, act);
        }
}

static void act_by(struct backend *b, struct view y, struct cview x, const float *by, size_t stride,
                   enum activation act)
{
    (void)b;
    for (int32_t t = 0; t < y.rows; t++)
        for (int32_t i = 0; i < y.cols; i++) {
            const float up = by[(size_t)t * stride + (size_t)i];
            *ref_cell(y, t, i) = (float)activate((double)ref_at(x, t, i), (double)up, act);
        }
}

static void scale(struct backend *b, struct view y, struct cview x, float by)
{
    (void)b;
    for (int32_t t = 0; t < y.rows; t++)
        for (int32_t i = 0; i < y.cols; i++)
            *ref_cell(y, t, i) = ref_at(x, t, i) * by;
}

static void softcap(struct backend *b, struct view x, float cap)
{
    (void)b;
    for (int32_t t = 0; t < x.rows; t++)
        for (int32_t i = 0; i < x.cols; i++)
            *ref_cell(x, t, i) =
                (float)((double)cap * tanh((double)*ref_cell(x, t, i) / (double)cap));
}

static void select_rows(struct backend *b, struct view y, struct cview x, const int32_t *index)
{
    (void)b;
    for (int32_t r = 0; r < y.rows; r++)
        for (int32_t i = 0; i < y.cols; i++)
            *ref_cell(y, r, i) = ref_at(x, index[r], i);
}

static void copy(struct backend *b, float *dst, size_t dst_stride, const float *src,
                 size_t src_stride, int32_t rows, int32_t cols)
{
    (void)b;
    for (int32_t r = 0; r < rows; r++)
        for (int32_t i = 0; i < cols; i++)
            dst[(size_t)r * dst_stride + (size_t)i] =
                src ? src[(size_t)r * src_stride + (size_t)i] : 0;
}

static void sum_tree(struct backend *b, float *y, const float *const *addends, int32_t count,
                     size_t n)
{
    (void)b;
    for (size_t i = 0; i < n; i++) {
        double sum = 0;
        for (int32_t l = 0; l < count; l++)
            sum += (double)addends[l][i];
        y[i] = (float)sum;
    }
}

const struct backend_ops ref_ops = {
    .name = "ref",
    .weight_bytes = weight_bytes,
    .kv_bytes = ref_kv_bytes,
    .probe = host_memory_probe,
    .scratch_bytes = host_memory_scratch_bytes,
    .record = host_memory_record,
    .record_end = host_memory_record_end,
    .replay = host_memory_replay,
    .recording_close = host_memory_recording_close,
    .alloc = host_memory_alloc,
    .free = host_memory_free,
    .upload = host_memory_upload,
    .download = host_memory_download,
    .fetch = host_memory_fetch,
    .landed = host_memory_landed,
    .land = host_memory_land,
    .close = ref_close,
    .sync = ref_sync,
    .reserve = ref_reserve,
    .parallel = ref_parallel,
    .weight_open = weight_open,
    .weight_close = weight_close,
    .weight_put = weight_put,
    .weight_scale = weight_scale,
    .weight_get = weight_get,
    .kv_open = ref_kv_open,
    .kv_close = ref_kv_close,
    .resolve = resolve,
    .embed = embed,
    .linear = linear,
    .linear_fuses = host_memory_linear_fuses,
    .linear_fused = host_memory_linear_fused,
    .linear_in = host_memory_linear_type,
    .linear_out = host_memory_linear_type,
    .experts_open = host_memory_experts_open,
    .experts_close = host_memory_experts_close,
    .experts_bytes = host_memory_experts_bytes,
    .route = ref_route,
    .expert_linear = ref_expert_linear,
    .expert_sum = ref_expert_sum,
    .head_linear = head_linear,
    .latent = ref_latent,
    .add_bias = add_bias,
    .expert_bias = ref_expert_bias,
    .expert_bias_sum = ref_expert_bias_sum,
    .rmsnorm = rmsnorm,
    .add_rmsnorm = add_rmsnorm,
    .square_sum = square_sum,
    .rms_scale = rms_scale,
    .add = add,
    .joint_squares = ref_joint_squares,
    .joint_scale = ref_joint_scale,
    .scale_queries = ref_scale_queries,
    .rope_table = ref_rope_table,
    .rope_kv = ref_rope_kv,
    .attend = ref_attend,
    .rope_attend = host_memory_rope_attend,
    .delta_rule = ref_delta_rule,
    .gate = ref_gate,
    .act_mul = act_mul,
    .act_by = act_by,
    .scale = scale,
    .softcap = softcap,
    .select = select_rows,
    .copy = copy,
    .sum_tree = sum_tree,
    .sample = ref_sample,
    .survey = ref_survey,
    .nominate = ref_nominate,
    .elect = ref_elect,
    .logprobs = ref_logprobs,
};

enum status ref_open(struct backend **out, struct err *err)
{
    struct backend *b = malloc(sizeof *b);
    if (b == NULL)
        return base_fail(err, ERR_NOMEM, "no memory for backend ref");
    b->ops = &ref_ops;
    *out = b;
    return OK;
}
