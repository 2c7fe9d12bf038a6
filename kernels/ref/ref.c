/* DESIGN: what each op means, in the fewest words: row-major weights [out][in], cache
 * [layer][block][head][k, v][16][head_dim], sums in double, results rounded once to fp32. It shares
 * no code with the backends it judges, except the definitions of sampling in numerics.h. */
#include "kernels/host_memory.h"
#include "kernels/ref/ref.h"

#include <math.h>
#include <stdlib.h>

static float at(struct cview m, int32_t row, int32_t col)
{
    return dtype_load(m.data, m.dtype, (size_t)row * (size_t)m.cols + (size_t)col);
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static float *cell(struct view m, int32_t row, int32_t col)
{
    CHECK(m.dtype == DTYPE_F32);
    return (float *)m.data + (size_t)row * (size_t)m.cols + (size_t)col;
}

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

static size_t kv_bytes(const struct kv_spec *s)
{
    const size_t sides = s->latent > 0 ? 1 : 2;
    return base_align((size_t)s->layers * (size_t)s->blocks * (size_t)s->heads * sides *
                          BACKEND_BLOCK_TOKENS * (size_t)s->head_dim * dtype_size(s->dtype),
                      64);
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

static struct kv_cache *kv_open(struct backend *b, const struct kv_spec *spec, void *storage)
{
    struct kv_cache *kv = malloc(sizeof *kv);
    if (kv != NULL)
        *kv = (struct kv_cache){*spec, b, storage};
    return kv;
}

static void kv_close(struct kv_cache *kv)
{
    free(kv);
}

enum side { KEY, VALUE };

/* First element of one head's key or value at a position of a row's sequence. */
static size_t kv_index(const struct kv_cache *kv, int32_t layer, const struct rows *rows, int32_t t,
                       int32_t position, int32_t head, enum side side)
{
    const struct kv_spec *s = &kv->spec;
    size_t entry = (size_t)rows->slot[t] * (size_t)rows->table_cols;
    size_t block = (size_t)rows->table[entry + (size_t)(position / BACKEND_BLOCK_TOKENS)];
    size_t index = ((size_t)layer * (size_t)s->blocks + block) * (size_t)s->heads + (size_t)head;
    index = s->latent > 0 ? index : index * 2 + side;
    index = index * BACKEND_BLOCK_TOKENS + (size_t)(position % BACKEND_BLOCK_TOKENS);
    const int32_t skipped = s->latent > 0 && side == VALUE ? s->head_dim - s->latent : 0;
    return index * (size_t)s->head_dim + (size_t)skipped;
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
            *cell(y, t, k) = mine ? weight_at(w, (int32_t)row, k) * scale : 0.0f;
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
static void row_of(double *row, struct cview x, int32_t t, const struct weight_spec *s)
{
    for (int32_t k = 0; k < x.cols; k++)
        row[k] = (double)(s->dtype == DTYPE_BF16 ? dtype_from_bf16(dtype_to_bf16(at(x, t, k)))
                                                 : at(x, t, k));
    for (int32_t l = 0; l < s->leaves && dtype_is_int(s->dtype); l++) {
        for (int32_t k = s->cut[l], end; k < s->cut[l + 1]; k = end) {
            end = backend_scale_end(s, k);
            end = end < s->cut[l + 1] ? end : s->cut[l + 1];
            round_run(row + k, end - k);
        }
    }
}

static double *row_open(int32_t n)
{
    double *row = calloc((size_t)n + 1, sizeof *row);
    CHECK(row != NULL);
    return row;
}

static double dot(const double *row, const struct weight *w, int32_t out)
{
    double sum = 0;
    for (int32_t k = 0; k < w->spec.in; k++)
        sum += row[k] * (double)weight_at(w, out, k);
    return sum;
}

static void linear(struct backend *b, struct view y, struct cview x, const struct weight *w)
{
    (void)b;
    double *row = row_open(x.cols);
    for (int32_t t = 0; t < y.rows; t++) {
        row_of(row, x, t, &w->spec);
        for (int32_t n = 0; n < y.cols; n++)
            *cell(y, t, n) = (float)dot(row, w, n);
    }
    free(row);
}

static void head_linear(struct backend *b, struct view y, struct cview x, const struct experts *w,
                        int32_t kept)
{
    (void)b;
    const int32_t in = w->spec.in, out = w->spec.out;
    const struct cview heads = {x.data, x.dtype, x.rows * w->count, in + kept};
    double *row = row_open(in + kept);
    for (int32_t i = 0; i < heads.rows; i++) {
        const int32_t t = i / w->count, head = i % w->count, first = head * (kept + out);
        row_of(row, heads, i, &w->spec);
        for (int32_t n = 0; n < kept; n++)
            *cell(y, t, first + n) = at(heads, i, in + n);
        for (int32_t n = 0; n < out; n++)
            *cell(y, t, first + kept + n) = (float)dot(row, w->weight[head], n);
    }
    free(row);
}

/* ---- experts --------------------------------------------------------------------------------- */

/* What experts of row t are chosen by. */
static float choice_key(struct cview logits, int32_t t, int32_t e,
                        const struct routing_rules *rules)
{
    if (!rules->correction)
        return at(logits, t, e);
    return (float)sigmoid((double)at(logits, t, e)) + rules->correction[e];
}

/* Of n keys the largest that is not taken; nothing is greater than a NaN that comes first. */
static int32_t largest(const float *key, const bool *taken, int32_t n)
{
    int32_t best = -1;
    for (int32_t e = 0; e < n; e++)
        if (!taken[e] && (best < 0 || key[e] > key[best]))
            best = e;
    return best;
}

/* Takes all experts of groups that are not kept. */
static void take_groups(bool *taken, const float *key, int32_t n, const struct routing_rules *rules)
{
    const int32_t groups = rules->groups, each = n / groups;
    float score[BACKEND_EXPERTS_MAX];
    bool kept[BACKEND_EXPERTS_MAX] = {false};
    for (int32_t g = 0; g < groups; g++) {
        bool first[BACKEND_EXPERTS_MAX] = {false};
        const int32_t best = largest(key + g * each, first, each);
        score[g] = key[g * each + best];
        first[best] = true;
        if (rules->correction && each > 1)
            score[g] += key[g * each + largest(key + g * each, first, each)];
    }
    for (int32_t i = 0; i < rules->kept; i++)
        kept[largest(score, kept, groups)] = true;
    for (int32_t e = 0; e < n; e++)
        taken[e] = !kept[e / each];
}

/* The `count` of n experts with the largest keys, ascending. */
static void choose(struct cview logits, int32_t t, int32_t n, const struct routing_rules *rules,
                   int32_t *expert, int32_t count)
{
    bool taken[BACKEND_EXPERTS_MAX] = {false}, chosen[BACKEND_EXPERTS_MAX] = {false};
    float key[BACKEND_EXPERTS_MAX];
    int32_t found = 0;
    for (int32_t e = 0; e < n; e++)
        key[e] = choice_key(logits, t, e, rules);
    if (rules->groups > 0)
        take_groups(taken, key, n, rules);
    for (int32_t i = 0; i < count; i++) {
        const int32_t best = largest(key, taken, n);
        taken[best] = chosen[best] = true;
    }
    for (int32_t e = 0; e < n; e++)
        if (chosen[e])
            expert[found++] = e;
}

/* An expert's score, but for what is the same for all of the row's. */
static double score_of(struct cview logits, int32_t t, int32_t e, const struct routing_rules *rules,
                       double max)
{
    const double logit = (double)at(logits, t, e);
    return rules->sigmoid ? sigmoid(logit) : exp(logit - max);
}

static void route(struct backend *b, const struct routing *r, struct cview logits,
                  const struct routing_rules *rules)
{
    (void)b;
    const int32_t routed = r->experts - rules->shared, count = r->chosen - rules->shared;
    for (int32_t t = 0; t < logits.rows; t++) {
        int32_t *expert = r->expert + (ptrdiff_t)t * r->chosen;
        float *share = r->share + (ptrdiff_t)t * r->chosen;
        double total = rules->sigmoid ? 1e-20 : 0, max = -INFINITY;
        choose(logits, t, routed, rules, expert, count);
        for (int32_t e = 0; e < routed; e++)
            max = fmax(max, (double)at(logits, t, e));
        for (int32_t i = 0; i < (rules->among ? count : routed); i++)
            total += score_of(logits, t, rules->among ? expert[i] : i, rules, max);
        if (rules->sigmoid && !rules->among)
            total = 1;
        for (int32_t i = 0; i < count; i++)
            share[i] =
                (float)(score_of(logits, t, expert[i], rules, max) / total * (double)rules->scale);
        for (int32_t i = count; i < r->chosen; i++) {
            expert[i] = routed + i - count;
            share[i] = rules->gated ? (float)sigmoid((double)at(logits, t, routed)) : 1;
        }
    }
}

static void expert_linear(struct backend *b, struct view y, struct cview x, const struct experts *w,
                          const struct routing *r)
{
    (void)b;
    double *row = row_open(x.cols);
    for (int32_t t = 0; t < y.rows; t++) {
        row_of(row, x, t, &w->spec);
        for (int32_t n = 0; n < y.cols; n++) {
            const int32_t e = r->expert[t * r->chosen + n / w->spec.out];
            *cell(y, t, n) = (float)dot(row, w->weight[e], n % w->spec.out);
        }
    }
    free(row);
}

static void expert_sum(struct backend *b, struct view y, struct cview x, const struct experts *w,
                       const struct routing *r)
{
    (void)b;
    const struct cview parts = {x.data, x.dtype, x.rows * r->chosen, w->spec.in};
    double *rows = row_open(x.cols);
    for (int32_t t = 0; t < y.rows; t++) {
        for (int32_t i = 0; i < r->chosen; i++)
            row_of(rows + (ptrdiff_t)i * w->spec.in, parts, t * r->chosen + i, &w->spec);
        for (int32_t n = 0; n < y.cols; n++) {
            double sum = 0;
            for (int32_t i = 0; i < r->chosen; i++) {
                const int32_t at = t * r->chosen + i;
                sum += (double)r->share[at] *
                       dot(rows + (ptrdiff_t)i * w->spec.in, w->weight[r->expert[at]], n);
            }
            *cell(y, t, n) = (float)sum;
        }
    }
    free(rows);
}

static void add_bias(struct backend *b, struct view y, struct cview x, const float *bias)
{
    (void)b;
    for (int32_t t = 0; t < y.rows; t++)
        for (int32_t i = 0; i < y.cols; i++)
            *cell(y, t, i) = at(x, t, i) + bias[i];
}

static void expert_bias(struct backend *b, struct view y, const float *bias,
                        const struct routing *r)
{
    (void)b;
    const int32_t out = y.cols / r->chosen;
    for (int32_t t = 0; t < y.rows; t++)
        for (int32_t i = 0; i < y.cols; i++)
            *cell(y, t, i) += bias[r->expert[t * r->chosen + i / out] * out + i % out];
}

static void expert_bias_sum(struct backend *b, struct view y, struct cview x, const float *bias,
                            const struct routing *r)
{
    (void)b;
    for (int32_t t = 0; t < y.rows; t++)
        for (int32_t i = 0; i < y.cols; i++) {
            double sum = (double)at(x, t, i);
            for (int32_t c = t * r->chosen; c < (t + 1) * r->chosen; c++)
                sum += (double)r->share[c] * (double)bias[r->expert[c] * y.cols + i];
            *cell(y, t, i) = (float)sum;
        }
}

static void norm(float *y, const float *x, const float *gain, float eps, int32_t n)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    double r = 1 / sqrt(sum / n + (double)eps);
    for (int32_t i = 0; i < n; i++)
        y[i] = (float)((double)x[i] * r * (double)gain[i]);
}

static void latent(struct backend *b, struct view query, struct view qkv, struct cview a,
                   const struct latent_rules *r)
{
    (void)b;
    for (int32_t t = 0; t < a.rows; t++) {
        const float *from = (const float *)a.data + (ptrdiff_t)t * a.cols;
        float *key = cell(qkv, t, qkv.cols - r->turns - r->value);
        if (r->query > 0)
            norm(cell(query, t, 0), from, r->query_gain, r->eps, r->query);
        memcpy(key, from + r->query + r->value, (size_t)r->turns * sizeof *key);
        norm(key + r->turns, from + r->query, r->value_gain, r->eps, r->value);
    }
}

static void rmsnorm(struct backend *b, struct view y, struct cview x, const float *gain, float eps)
{
    (void)b;
    for (int32_t t = 0; t < y.rows; t++)
        norm(cell(y, t, 0), (const float *)x.data + (size_t)t * (size_t)x.cols, gain, eps, x.cols);
}

static void add_rmsnorm(struct backend *b, struct view y, struct view x, struct cview delta,
                        const float *gain, float eps)
{
    for (int32_t t = 0; t < x.rows; t++)
        for (int32_t i = 0; i < x.cols; i++)
            *cell(x, t, i) += at(delta, t, i);
    rmsnorm(b, y, cview_of(x), gain, eps);
}

static void square_sum(struct backend *b, float *sums, struct view x, struct cview delta,
                       struct pieces pieces)
{
    (void)b, (void)pieces;
    for (int32_t t = 0; t < x.rows; t++) {
        double sum = 0;
        for (int32_t i = 0; i < x.cols; i++) {
            *cell(x, t, i) += delta.data != NULL ? at(delta, t, i) : 0;
            sum += (double)*cell(x, t, i) * (double)*cell(x, t, i);
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
            *cell(y, t, i) = (float)((double)at(x, t, i) * r * (double)gain[i]);
    }
}

static void add(struct backend *b, struct view x, struct cview delta)
{
    (void)b;
    for (int32_t t = 0; t < x.rows; t++)
        for (int32_t i = 0; i < x.cols; i++)
            *cell(x, t, i) += at(delta, t, i);
}

static void joint_squares(struct backend *b, struct view squares, struct cview qkv,
                          const struct joint_norm *n, const struct heads *h)
{
    (void)b;
    for (int32_t t = 0; t < qkv.rows; t++) {
        for (int32_t i = 0; i < squares.cols; i++)
            *cell(squares, t, i) = 0;
        for (int32_t i = 0; i < h->heads + h->kv_heads; i++) {
            const bool of_k = i >= h->heads;
            const int32_t to = of_k ? n->heads + n->first_kv + i - h->heads : n->first + i;
            double sum = 0;
            for (int32_t e = 0; e < h->head_dim; e++) {
                const double x = (double)at(qkv, t, i * h->head_dim + e);
                sum += x * x;
            }
            if (!(n->shared && i == h->heads))
                *cell(squares, t, to) = (float)sum;
        }
    }
}

static void joint_scale(struct backend *b, struct view qkv, struct cview squares,
                        const struct joint_norm *n, const struct heads *h)
{
    (void)b;
    const int32_t dim = h->head_dim, q = h->heads * dim, k = h->kv_heads * dim;
    for (int32_t t = 0; t < qkv.rows; t++) {
        double of_q = 0, of_k = 0;
        for (int32_t i = 0; i < squares.cols; i++)
            *(i < n->heads ? &of_q : &of_k) += (double)at(squares, t, i);
        of_q = 1 / sqrt(of_q / n->heads / dim + (double)n->eps);
        of_k = 1 / sqrt(of_k / n->kv_heads / dim + (double)n->eps);
        for (int32_t i = 0; i < q + k; i++) {
            const double by = i < q ? of_q * (double)n->q_gain[i] : of_k * (double)n->k_gain[i - q];
            *cell(qkv, t, i) = (float)((double)at(cview_of(qkv), t, i) * by);
        }
    }
}

static void rope_table(struct backend *b, struct view table, const int32_t *position,
                       const float *inv_freq, float scale)
{
    (void)b;
    const int32_t half = table.cols / 2;
    for (int32_t t = 0; t < table.rows; t++) {
        for (int32_t i = 0; i < half; i++) {
            float angle = (float)position[t] * inv_freq[i];
            *cell(table, t, i) = (float)cos((double)angle) * scale;
            *cell(table, t, half + i) = (float)sin((double)angle) * scale;
        }
    }
}

static void rotate(float *head, struct cview table, int32_t t, bool interleaved)
{
    const int32_t half = table.cols / 2;
    for (int32_t i = 0; i < half; i++) {
        float *first = head + (interleaved ? 2 * i : i);
        float *second = head + (interleaved ? 2 * i + 1 : half + i);
        double c = (double)at(table, t, i), s = (double)at(table, t, half + i);
        double low = (double)*first, high = (double)*second;
        *first = (float)(low * c - high * s);
        *second = (float)(high * c + low * s);
    }
}

static void apply(const struct qkv_rules *r, float *row, const struct heads *h)
{
    const int32_t dim = h->head_dim, sides = h->latent > 0 ? 1 : 2;
    for (int32_t i = 0; r->bias != NULL && i < (h->heads + sides * h->kv_heads) * dim; i++)
        row[i] += r->bias[i];
    for (int32_t i = 0; r->q_norm != NULL && i < h->heads + h->kv_heads; i++)
        norm(row + i * dim, row + i * dim, i < h->heads ? r->q_norm : r->k_norm, r->eps, dim);
}

static void rope_kv(struct backend *b, struct view qkv, const struct qkv_rules *rules,
                    struct cview table, const struct heads *h, const struct rows *rows,
                    struct kv_cache *kv, int32_t layer)
{
    (void)b;
    const int32_t dim = h->head_dim;
    const bool narrow = kv->spec.dtype == DTYPE_F8_E4M3;
    for (int32_t t = 0; t < rows->count; t++) {
        if (rows->slot[t] < 0)
            continue;
        apply(rules, cell(qkv, t, 0), h);
        for (int32_t i = 0; i < h->heads + h->kv_heads; i++)
            rotate(cell(qkv, t, i * dim), table, t, rules->interleaved);
        for (int32_t i = 0; i < (h->latent > 0 ? 1 : 2) * h->kv_heads; i++) {
            const float *src = cell(qkv, t, (h->heads + i) * dim);
            size_t to = kv_index(kv, layer, rows, t, rows->position[t], i % h->kv_heads,
                                 i < h->kv_heads ? KEY : VALUE);
            for (int32_t e = 0; e < dim; e++)
                dtype_store(kv->storage, kv->spec.dtype, to + (size_t)e,
                            narrow ? dtype_saturate_e4m3(src[e]) : src[e]);
        }
    }
}

static double score(const float *q, const struct kv_cache *kv, const struct attention *how,
                    size_t key)
{
    double sum = 0;
    for (int32_t e = 0; e < kv->spec.head_dim; e++)
        sum += (double)q[e] * (double)dtype_load(kv->storage, kv->spec.dtype, key + (size_t)e);
    sum *= (double)how->scale;
    return how->softcap > 0 ? (double)how->softcap * tanh(sum / (double)how->softcap) : sum;
}

/* Two passes over the keys: the maximum, then the weighted values. */
static void attend_head(float *out, const float *q, const struct kv_cache *kv,
                        const struct attention *how, int32_t layer, const struct rows *rows,
                        int32_t t, int32_t head, int32_t kv_head)
{
    const int32_t dim = kv->spec.latent > 0 ? kv->spec.latent : kv->spec.head_dim;
    const int32_t last = rows->position[t];
    const int32_t first = how->window > 0 && last >= how->window ? last + 1 - how->window : 0;
    double max = how->sink ? (double)how->sink[head] : -INFINITY;
    double sum, o[BACKEND_KEY_DIM_MAX] = {0};
    for (int32_t p = first; p <= last; p++)
        max = fmax(max, score(q, kv, how, kv_index(kv, layer, rows, t, p, kv_head, KEY)));
    sum = how->sink ? exp((double)how->sink[head] - max) : 0;
    for (int32_t p = first; p <= last; p++) {
        double weight = exp(score(q, kv, how, kv_index(kv, layer, rows, t, p, kv_head, KEY)) - max);
        size_t value = kv_index(kv, layer, rows, t, p, kv_head, VALUE);
        sum += weight;
        for (int32_t e = 0; e < dim; e++)
            o[e] += weight * (double)dtype_load(kv->storage, kv->spec.dtype, value + (size_t)e);
    }
    for (int32_t e = 0; e < dim; e++)
        out[e] = (float)(o[e] / sum);
}

static void attend(struct backend *b, struct view out, struct cview qkv, const struct heads *h,
                   const struct attention *how, const struct rows *rows, const struct kv_cache *kv,
                   int32_t layer)
{
    (void)b;
    for (int32_t t = 0; t < rows->count; t++) {
        for (int32_t i = 0; rows->slot[t] < 0 && i < out.cols; i++)
            *cell(out, t, i) = 0;
        for (int32_t i = 0; rows->slot[t] >= 0 && i < h->heads; i++)
            attend_head(cell(out, t, i * backend_value_dim(h)),
                        (const float *)qkv.data + (size_t)t * (size_t)qkv.cols +
                            (size_t)(i * h->head_dim),
                        kv, how, layer, rows, t, i, h->kv_of[i]);
    }
}

static double activate(double g, double up, enum activation act)
{
    const double u = sqrt(2 / acos(-1.0)) * (g + 0.044715 * g * g * g);
    const double limit = 7, most = fmin(g, limit);
    if (act == ACT_SWIGLU_PAIRS)
        return (fmax(fmin(up, limit), -limit) + 1) * most * sigmoid(1.702 * most);
    return up * (act == ACT_SILU ? g * sigmoid(g) : 0.5 * g * (1 + tanh(u)));
}

static void act_mul(struct backend *b, struct view y, struct cview gu, enum activation act)
{
    (void)b;
    const bool pairs = act == ACT_SWIGLU_PAIRS;
    for (int32_t t = 0; t < y.rows; t++)
        for (int32_t i = 0; i < y.cols; i++) {
            const float gate = at(gu, t, pairs ? 2 * i : i);
            const float up = at(gu, t, pairs ? 2 * i + 1 : y.cols + i);
            *cell(y, t, i) = (float)activate((double)gate, (double)up, act);
        }
}

static void scale(struct backend *b, struct view y, struct cview x, float by)
{
    (void)b;
    for (int32_t t = 0; t < y.rows; t++)
        for (int32_t i = 0; i < y.cols; i++)
            *cell(y, t, i) = at(x, t, i) * by;
}

static void softcap(struct backend *b, struct view x, float cap)
{
    (void)b;
    for (int32_t t = 0; t < x.rows; t++)
        for (int32_t i = 0; i < x.cols; i++)
            *cell(x, t, i) = (float)((double)cap * tanh((double)*cell(x, t, i) / (double)cap));
}

static void select_rows(struct backend *b, struct view y, struct cview x, const int32_t *index)
{
    (void)b;
    for (int32_t r = 0; r < y.rows; r++)
        for (int32_t i = 0; i < y.cols; i++)
            *cell(y, r, i) = at(x, index[r], i);
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
    .kv_bytes = kv_bytes,
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
    .kv_open = kv_open,
    .kv_close = kv_close,
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
    .route = route,
    .expert_linear = expert_linear,
    .expert_sum = expert_sum,
    .head_linear = head_linear,
    .latent = latent,
    .add_bias = add_bias,
    .expert_bias = expert_bias,
    .expert_bias_sum = expert_bias_sum,
    .rmsnorm = rmsnorm,
    .add_rmsnorm = add_rmsnorm,
    .square_sum = square_sum,
    .rms_scale = rms_scale,
    .add = add,
    .joint_squares = joint_squares,
    .joint_scale = joint_scale,
    .rope_table = rope_table,
    .rope_kv = rope_kv,
    .attend = attend,
    .rope_attend = host_memory_rope_attend,
    .delta_rule = ref_delta_rule,
    .gate = ref_gate,
    .act_mul = act_mul,
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
