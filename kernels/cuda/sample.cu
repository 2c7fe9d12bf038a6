/* The sampling ops for whole rows; draw.cuh says how. */
#include "kernels/cuda/draw.cuh"

/* ---- resolve ---- */

__global__ void resolve_kernel(int32_t *ids, const int32_t *token, struct rows rows,
                               struct sample_slots s)
{
    const int32_t t = (int32_t)(blockIdx.x * blockDim.x + threadIdx.x);
    if (t >= rows.count)
        return;
    const int32_t slot = rows.slot[t];
    if (slot < 0) {
        ids[t] = -1;
        return;
    }
    int32_t *known = s.history + (int64_t)slot * s.history_cols + rows.position[t];
    if (token[t] >= 0)
        *known = token[t];
    ids[t] = *known;
}

void sample_resolve(struct backend *b, int32_t *ids, const int32_t *token, const struct rows *rows,
                    const struct sample_slots *slots)
{
    if (rows->count > 0)
        LAUNCH(cuda_of(b), resolve_kernel, blocks_for((size_t)rows->count, 128), 128, 0, ids, token,
               *rows, *slots);
}

/* ---- sample ---- */

DEVICE int32_t sample_row(const struct drawn_rows *a, int32_t r)
{
    const struct sample_params p = a->slots.params[a->rows.slot[r]];
    const float *raw = a->logits + (int64_t)r * a->cols;
    uint64_t best = best_of(raw, a->cols);
    if (best == 0)
        return -1;
    const float *x = ruled(a, r);
    if (x != raw)
        best = best_of(x, a->cols);
    if (best == 0)
        return -1;
    struct draw d = {x, a->cols,   0, p.temperature, value_of(best) / p.temperature + 0.0f,
                     0, INT32_MAX, 0};
    if (p.temperature == 0 || !(fabsf(d.max) <= FLT_MAX))
        return id_of(best);
    filter(&d, &p);
    return gumbel_max(&d, numerics_key(p.seed, p.choice, a->rows.position[r])).id;
}

/* There are fewer rows than multiprocessors: registers count, not blocks side by side. */
__global__ void __launch_bounds__(THREADS, 2) sample_kernel(int32_t *ids, struct drawn_rows a)
{
    const int32_t r = a.row + (int32_t)blockIdx.x, slot = a.rows.slot[r];
    const bool drawn = is_drawn(&a.rows, r);
    const int32_t id = drawn ? sample_row(&a, r) : slot < 0 ? -1 : a.rows.target[r];
    if (threadIdx.x != 0)
        return;
    ids[r] = id;
    if (drawn && a.rows.target[r] != SAMPLE_CHECK)
        a.slots.history[(int64_t)slot * a.slots.history_cols + a.rows.position[r]] =
            id < 0 ? 0 : id;
}

void sample_run(struct backend *b, int32_t *ids, struct cview logits,
                const struct sample_rows *rows, const struct sample_slots *slots)
{
    struct cuda_backend *c = cuda_of(b);
    struct drawn_rows a = drawn_rows_of(c, logits, 0, rows, slots);
    const int32_t step = rows_at_once(c, logits.cols);
    for (; a.row < logits.rows; a.row += step) {
        const int32_t left = logits.rows - a.row;
        LAUNCH(c, sample_kernel, (unsigned)(left < step ? left : step), THREADS, 0, ids, a);
    }
}

/* ---- logprobs ---- */

struct logprobs_args {
    float *logprob;
    struct token_top *best;
    int32_t stride, vocab;
    const float *logits;
    const int32_t *ids, *top;
};

__global__ void __launch_bounds__(THREADS) logprobs_kernel(struct logprobs_args a)
{
    const int32_t r = (int32_t)blockIdx.x, count = a.top[r];
    const float *x = a.logits + (int64_t)r * a.vocab;
    if (count < 0)
        return;
    uint64_t place = best_of(x, a.vocab), total = 0;
    if (place == 0 || a.ids[r] < 0) {
        if (threadIdx.x == 0)
            a.logprob[r] = NAN;
        return;
    }
    const float max = value_of(place);
    FOR_EACH(i, 0, a.vocab)
        total += numerics_mass(numerics_exp(x[i] - max));
    const double log_total = numerics_log_total(reduce_block(total, plus()));
    if (threadIdx.x == 0)
        a.logprob[r] = numerics_logprob(x[a.ids[r]], max, log_total);
    for (int32_t n = 0; n < count; n++) {
        if (threadIdx.x == 0) {
            const struct token_top best = {id_of(place),
                                           numerics_logprob(value_of(place), max, log_total)};
            a.best[(int64_t)r * a.stride + n] = best;
        }
        uint64_t next = 0; /* the best below this one */
        FOR_EACH(i, 0, a.vocab) {
            const uint64_t at = place_of(x[i], i);
            next = at < place && at > next ? at : next;
        }
        place = reduce_block(next, maximum());
    }
}

void sample_logprobs(struct backend *b, float *logprob, struct token_top *best, int32_t stride,
                     struct cview logits, const int32_t *ids, const int32_t *top)
{
    const struct logprobs_args a = {logprob, best, stride, logits.cols, (const float *)logits.data,
                                    ids,     top};
    if (logits.rows > 0)
        LAUNCH(cuda_of(b), logprobs_kernel, (unsigned)logits.rows, THREADS, 0, a);
}
