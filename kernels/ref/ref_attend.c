/* DESIGN: what is between the products of a layer that attends. The cache is [layer][block][head]
 * [k, v][16][head_dim], of latents without [k, v], and with a stride [block][layer]...; kv_index
 * alone knows that. */
#include "kernels/ref/ref.h"
#include "kernels/ref/ref_math.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

size_t ref_kv_bytes(const struct kv_spec *s)
{
    const size_t sides = s->latent > 0 ? 1 : 2;
    if (s->stride > 0)
        return (size_t)s->blocks * s->stride;
    return base_align((size_t)s->layers * (size_t)s->blocks * (size_t)s->heads * sides *
                          BACKEND_BLOCK_TOKENS * (size_t)s->head_dim * dtype_size(s->dtype),
                      64);
}

struct kv_cache *ref_kv_open(struct backend *b, const struct kv_spec *spec, void *storage)
{
    struct kv_cache *kv = malloc(sizeof *kv);
    if (kv != NULL)
        *kv = (struct kv_cache){*spec, b, storage};
    return kv;
}

void ref_kv_close(struct kv_cache *kv)
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
    const size_t before = s->stride > 0 ? 0 : block; /* of the layer's blocks */
    size_t index =
        ((size_t)layer * (s->stride > 0 ? 1 : (size_t)s->blocks) + before) * (size_t)s->heads +
        (size_t)head;
    index = s->latent > 0 ? index : index * 2 + side;
    index = index * BACKEND_BLOCK_TOKENS + (size_t)(position % BACKEND_BLOCK_TOKENS);
    const int32_t skipped = s->latent > 0 && side == VALUE ? s->head_dim - s->latent : 0;
    return block * (s->stride / dtype_size(s->dtype)) + index * (size_t)s->head_dim +
           (size_t)skipped;
}

void ref_latent(struct backend *b, struct view query, struct view qkv, struct cview a,
                const struct latent_rules *r)
{
    (void)b;
    for (int32_t t = 0; t < a.rows; t++) {
        const float *from = (const float *)a.data + (ptrdiff_t)t * a.cols;
        float *key = ref_cell(qkv, t, qkv.cols - r->turns - r->value);
        if (r->query > 0)
            ref_norm(ref_cell(query, t, 0), from, r->query_gain, r->eps, r->query);
        memcpy(key, from + r->query + r->value, (size_t)r->turns * sizeof *key);
        ref_norm(key + r->turns, from + r->query, r->value_gain, r->eps, r->value);
    }
}

void ref_joint_squares(struct backend *b, struct view squares, struct cview qkv,
                       const struct joint_norm *n, const struct heads *h)
{
    (void)b;
    for (int32_t t = 0; t < qkv.rows; t++) {
        for (int32_t i = 0; i < squares.cols; i++)
            *ref_cell(squares, t, i) = 0;
        for (int32_t i = 0; i < h->heads + h->kv_heads; i++) {
            const bool of_k = i >= h->heads;
            const int32_t to = of_k ? n->heads + n->first_kv + i - h->heads : n->first + i;
            double sum = 0;
            for (int32_t e = 0; e < h->head_dim; e++) {
                const double x = (double)ref_at(qkv, t, i * h->head_dim + e);
                sum += x * x;
            }
            if (!(n->shared && i == h->heads))
                *ref_cell(squares, t, to) = (float)sum;
        }
    }
}

void ref_joint_scale(struct backend *b, struct view qkv, struct cview squares,
                     const struct joint_norm *n, const struct heads *h)
{
    (void)b;
    const int32_t dim = h->head_dim, q = h->heads * dim, k = h->kv_heads * dim;
    for (int32_t t = 0; t < qkv.rows; t++) {
        double of_q = 0, of_k = 0;
        for (int32_t i = 0; i < squares.cols; i++)
            *(i < n->heads ? &of_q : &of_k) += (double)ref_at(squares, t, i);
        of_q = 1 / sqrt(of_q / n->heads / dim + (double)n->eps);
        of_k = 1 / sqrt(of_k / n->kv_heads / dim + (double)n->eps);
        for (int32_t i = 0; i < q + k; i++) {
            const double by = i < q ? of_q * (double)n->q_gain[i] : of_k * (double)n->k_gain[i - q];
            *ref_cell(qkv, t, i) = (float)((double)ref_at(cview_of(qkv), t, i) * by);
        }
    }
}

void ref_scale_queries(struct backend *b, struct view qkv, const struct heads *h,
                       const int32_t *position, float beta, int32_t original)
{
    (void)b;
    for (int32_t t = 0; t < qkv.rows; t++) {
        const double steps = floor((double)position[t] / original);
        for (int32_t i = 0; i < h->heads * h->head_dim; i++)
            *ref_cell(qkv, t, i) *= (float)(1 + (double)beta * log(1 + steps));
    }
}

void ref_rope_table(struct backend *b, struct view table, const int32_t *position,
                    const float *inv_freq, float scale)
{
    (void)b;
    const int32_t half = table.cols / 2;
    for (int32_t t = 0; t < table.rows; t++) {
        for (int32_t i = 0; i < half; i++) {
            float angle = (float)position[t] * inv_freq[i];
            *ref_cell(table, t, i) = (float)cos((double)angle) * scale;
            *ref_cell(table, t, half + i) = (float)sin((double)angle) * scale;
        }
    }
}

static void rotate(float *head, struct cview table, int32_t t, bool interleaved)
{
    const int32_t half = table.cols / 2;
    for (int32_t i = 0; i < half; i++) {
        float *first = head + (interleaved ? 2 * i : i);
        float *second = head + (interleaved ? 2 * i + 1 : half + i);
        double c = (double)ref_at(table, t, i), s = (double)ref_at(table, t, half + i);
        double low = (double)*first, high = (double)*second;
        *first = (float)(low * c - high * s);
        *second = (float)(high * c + low * s);
    }
}

static void apply(const struct qkv_rules *r, float *row, const struct heads *h)
{
    const int32_t dim = h->head_dim, sides = h->latent > 0 ? 1 : 2, kv = backend_kv_given(h);
    for (int32_t i = 0; r->bias != NULL && i < (h->heads + sides * kv) * dim; i++)
        row[i] += r->bias[i];
    for (int32_t i = 0; r->q_norm != NULL && i < h->heads + kv; i++)
        ref_norm(row + i * dim, row + i * dim, i < h->heads ? r->q_norm : r->k_norm, r->eps, dim);
    row += (h->heads + kv) * dim;
    for (int32_t i = 0; r->v_norm != NULL && i < kv; i++)
        ref_norm(row + i * dim, row + i * dim, r->v_norm, r->eps, dim);
}

void ref_rope_kv(struct backend *b, struct view qkv, const struct qkv_rules *rules,
                 struct cview table, const struct heads *h, const struct rows *rows,
                 struct kv_cache *kv, int32_t layer)
{
    (void)b;
    const int32_t dim = h->head_dim, given = backend_kv_given(h);
    const bool narrow = kv->spec.dtype == DTYPE_F8_E4M3;
    for (int32_t t = 0; t < rows->count; t++) {
        if (rows->slot[t] < 0)
            continue;
        apply(rules, ref_cell(qkv, t, 0), h);
        for (int32_t i = 0; i < h->heads + given; i++)
            rotate(ref_cell(qkv, t, i * dim), table, t, rules->interleaved);
        for (int32_t i = 0; i < (h->latent > 0 ? 1 : 2) * given; i++) {
            const float *src = ref_cell(qkv, t, (h->heads + i) * dim);
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

void ref_attend(struct backend *b, struct view out, struct cview qkv, const struct heads *h,
                const struct attention *how, const struct rows *rows, const struct kv_cache *kv,
                int32_t layer)
{
    (void)b;
    for (int32_t t = 0; t < rows->count; t++) {
        for (int32_t i = 0; rows->slot[t] < 0 && i < out.cols; i++)
            *ref_cell(out, t, i) = 0;
        for (int32_t i = 0; rows->slot[t] >= 0 && i < h->heads; i++)
            attend_head(ref_cell(out, t, i * backend_value_dim(h)),
                        (const float *)qkv.data + (size_t)t * (size_t)qkv.cols +
                            (size_t)(i * h->head_dim),
                        kv, how, layer, rows, t, i, h->kv_of[i]);
    }
}
