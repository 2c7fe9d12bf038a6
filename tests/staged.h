/* A backend whose ops take the host's memory, over one that works in a device's: every op copies
 * what it reads to allocations of just that size, runs, and copies back what it writes. So the twin
 * tests, written for arrays of the host, are those of a device too. Arguments that are the same
 * array stay so. */
#ifndef TESSERA_TESTS_STAGED_H
#define TESSERA_TESTS_STAGED_H

#include "tests/staged_memory.h"

struct staged_weight {
    struct weight base;
    struct weight *inner;
    void *device;
};

struct staged_cache {
    struct kv_cache base;
    struct kv_cache *inner;
    void *device;
};

/* ---- storage ---- */

static inline struct weight *staged_weight_open(struct backend *b, const struct weight_spec *spec,
                                                void *storage)
{
    struct backend *inner = staged_of(b)->inner;
    struct staged_weight *w = calloc(1, sizeof *w);
    const size_t bytes = inner->ops->weight_bytes(spec);
    w->base = (struct weight){*spec, b, storage};
    w->device = inner->ops->alloc(inner, bytes);
    inner->ops->upload(inner, w->device, storage, bytes);
    w->inner = inner->ops->weight_open(inner, spec, w->device);
    return &w->base;
}

static inline struct weight *staged_inner(const struct weight *w)
{
    return ((const struct staged_weight *)(const void *)w)->inner;
}

static inline void staged_weight_close(struct weight *base)
{
    struct staged_weight *w = (struct staged_weight *)base;
    struct backend *inner = staged_of(base->backend)->inner;
    inner->ops->weight_close(w->inner);
    inner->ops->free(inner, w->device);
    free(w);
}

static inline void staged_weight_put(struct weight *w, int32_t row, int32_t rows, const void *src,
                                     enum dtype src_dtype, size_t stride)
{
    staged_of(w->backend)
        ->inner->ops->weight_put(staged_inner(w), row, rows, src, src_dtype, stride);
}

static inline void staged_weight_scale(struct weight *w, int32_t row, int32_t rows,
                                       const float *scale)
{
    staged_of(w->backend)->inner->ops->weight_scale(staged_inner(w), row, rows, scale);
}

static inline void staged_weight_get(const struct weight *w, int32_t row, float *dst)
{
    staged_of(w->backend)->inner->ops->weight_get(staged_inner(w), row, dst);
}

static inline struct kv_cache *staged_kv_open(struct backend *b, const struct kv_spec *spec,
                                              void *storage)
{
    struct backend *inner = staged_of(b)->inner;
    struct staged_cache *kv = calloc(1, sizeof *kv);
    const size_t bytes = inner->ops->kv_bytes(spec);
    kv->base = (struct kv_cache){*spec, b, storage};
    kv->device = inner->ops->alloc(inner, bytes);
    inner->ops->upload(inner, kv->device, storage, bytes);
    kv->inner = inner->ops->kv_open(inner, spec, kv->device);
    return &kv->base;
}

static inline void staged_kv_close(struct kv_cache *base)
{
    struct staged_cache *kv = (struct staged_cache *)base;
    struct backend *inner = staged_of(base->backend)->inner;
    inner->ops->kv_close(kv->inner);
    inner->ops->free(inner, kv->device);
    free(kv);
}

struct staged_experts {
    struct experts base;
    struct experts *inner;
};

static inline struct experts *staged_experts_open(struct backend *b,
                                                  const struct weight *const *weight, int32_t count,
                                                  int32_t chosen, int32_t rows_max)
{
    struct backend *inner = staged_of(b)->inner;
    struct staged_experts *e = calloc(1, sizeof *e);
    const struct weight **all = calloc((size_t)count, sizeof *all);
    for (int32_t i = 0; i < count; i++)
        all[i] = staged_inner(weight[i]);
    e->base = (struct experts){weight[0]->spec, b, count, rows_max, chosen, NULL};
    e->inner = inner->ops->experts_open(inner, all, count, chosen, rows_max);
    free(all);
    if (e->inner == NULL)
        abort();
    return &e->base;
}

static inline void staged_experts_close(struct experts *base)
{
    struct staged_experts *e = (struct staged_experts *)base;
    staged_of(base->backend)->inner->ops->experts_close(e->inner);
    free(e);
}

/* ---- ops ---- */

static inline void staged_embed(struct backend *b, struct view y, const int32_t *ids,
                                const struct weight *w, int32_t first, float scale)
{
    struct staged *s = staged_of(b);
    s->inner->ops->embed(s->inner, staged_view(s, y), staged_in(s, ids, (size_t)y.rows * 4),
                         staged_inner(w), first, scale);
    staged_end(s, y.data);
}

static inline void staged_linear(struct backend *b, struct view y, struct cview x,
                                 const struct weight *w)
{
    struct staged *s = staged_of(b);
    s->inner->ops->linear(s->inner, staged_view(s, y), staged_cview(s, x), staged_inner(w));
    staged_end(s, y.data);
}

static inline bool staged_linear_fuses(struct backend *b, const struct weight *w, int32_t rows,
                                       const struct linear_fusion *f)
{
    struct backend *inner = staged_of(b)->inner;
    return inner->ops->linear_fuses(inner, staged_inner(w), rows, f);
}

static inline void staged_linear_fused(struct backend *b, struct view y, struct cview x,
                                       const struct weight *w, const struct linear_fusion *f)
{
    struct staged *s = staged_of(b);
    struct linear_fusion there = *f;
    there.gain = staged_in(s, f->gain, (size_t)x.cols * 4);
    s->inner->ops->linear_fused(s->inner, staged_view(s, y), staged_cview(s, x), staged_inner(w),
                                &there);
    staged_end(s, y.data);
}

static inline enum dtype staged_linear_in(struct backend *b, const struct weight *w, int32_t rows)
{
    struct backend *inner = staged_of(b)->inner;
    return inner->ops->linear_in(inner, staged_inner(w), rows);
}

static inline enum dtype staged_linear_out(struct backend *b, const struct weight *w, int32_t rows)
{
    struct backend *inner = staged_of(b)->inner;
    return inner->ops->linear_out(inner, staged_inner(w), rows);
}

static inline struct routing staged_routing(struct staged *s, const struct routing *r, int32_t rows)
{
    struct routing d = *r;
    const size_t bytes = (size_t)rows * (size_t)r->chosen * 4;
    d.expert = staged_in(s, r->expert, bytes);
    d.share = staged_in(s, r->share, bytes);
    return d;
}

static inline void staged_route(struct backend *b, const struct routing *r, struct cview logits,
                                const struct routing_rules *rules)
{
    struct staged *s = staged_of(b);
    const struct routing dr = staged_routing(s, r, logits.rows);
    struct routing_rules on_device = *rules;
    const size_t routed = (size_t)(r->experts - rules->shared) * sizeof(float);
    on_device.correction = staged_in(s, rules->correction, routed);
    on_device.expert_scale = staged_in(s, rules->expert_scale, routed);
    s->inner->ops->route(s->inner, &dr, staged_cview(s, logits), &on_device);
    staged_out(s, r->expert);
    staged_end(s, r->share);
}

static inline void staged_expert_linear(struct backend *b, struct view y, struct cview x,
                                        const struct experts *w, const struct routing *r)
{
    struct staged *s = staged_of(b);
    const struct routing dr = staged_routing(s, r, x.rows);
    s->inner->ops->expert_linear(s->inner, staged_view(s, y), staged_cview(s, x),
                                 ((const struct staged_experts *)(const void *)w)->inner, &dr);
    staged_end(s, y.data);
}

static inline void staged_expert_sum(struct backend *b, struct view y, struct cview x,
                                     const struct experts *w, const struct routing *r)
{
    struct staged *s = staged_of(b);
    const struct routing dr = staged_routing(s, r, x.rows);
    s->inner->ops->expert_sum(s->inner, staged_view(s, y), staged_cview(s, x),
                              ((const struct staged_experts *)(const void *)w)->inner, &dr);
    staged_end(s, y.data);
}

static inline void staged_head_linear(struct backend *b, struct view y, struct cview x,
                                      const struct experts *w, int32_t kept)
{
    struct staged *s = staged_of(b);
    s->inner->ops->head_linear(s->inner, staged_view(s, y), staged_cview(s, x),
                               ((const struct staged_experts *)(const void *)w)->inner, kept);
    staged_end(s, y.data);
}

static inline void staged_latent(struct backend *b, struct view query, struct view qkv,
                                 struct cview a, const struct latent_rules *rules)
{
    struct staged *s = staged_of(b);
    struct latent_rules there = *rules;
    there.query_gain = staged_in(s, rules->query_gain, (size_t)rules->query * 4);
    there.value_gain = staged_in(s, rules->value_gain, (size_t)rules->value * 4);
    s->inner->ops->latent(s->inner, staged_view(s, query), staged_view(s, qkv), staged_cview(s, a),
                          &there);
    staged_out(s, query.data);
    staged_end(s, qkv.data);
}

static inline void staged_add_bias(struct backend *b, struct view y, struct cview x,
                                   const float *bias)
{
    struct staged *s = staged_of(b);
    s->inner->ops->add_bias(s->inner, staged_view(s, y), staged_cview(s, x),
                            staged_in(s, bias, (size_t)x.cols * 4));
    staged_end(s, y.data);
}

static inline void staged_expert_bias(struct backend *b, struct view y, const float *bias,
                                      const struct routing *r)
{
    struct staged *s = staged_of(b);
    const struct routing dr = staged_routing(s, r, y.rows);
    const size_t n = (size_t)r->experts * (size_t)(y.cols / r->chosen);
    s->inner->ops->expert_bias(s->inner, staged_view(s, y), staged_in(s, bias, n * 4), &dr);
    staged_end(s, y.data);
}

static inline void staged_expert_bias_sum(struct backend *b, struct view y, struct cview x,
                                          const float *bias, const struct routing *r)
{
    struct staged *s = staged_of(b);
    const struct routing dr = staged_routing(s, r, y.rows);
    const size_t n = (size_t)r->experts * (size_t)y.cols;
    s->inner->ops->expert_bias_sum(s->inner, staged_view(s, y), staged_cview(s, x),
                                   staged_in(s, bias, n * 4), &dr);
    staged_end(s, y.data);
}

static inline void staged_rmsnorm(struct backend *b, struct view y, struct cview x,
                                  const float *gain, float eps)
{
    struct staged *s = staged_of(b);
    s->inner->ops->rmsnorm(s->inner, staged_view(s, y), staged_cview(s, x),
                           staged_in(s, gain, (size_t)x.cols * 4), eps);
    staged_end(s, y.data);
}

static inline void staged_add_rmsnorm(struct backend *b, struct view y, struct view x,
                                      struct cview delta, const float *gain, float eps)
{
    struct staged *s = staged_of(b);
    s->inner->ops->add_rmsnorm(s->inner, staged_view(s, y), staged_view(s, x),
                               staged_cview(s, delta), staged_in(s, gain, (size_t)x.cols * 4), eps);
    staged_out(s, x.data);
    staged_end(s, y.data);
}

static inline void staged_square_sum(struct backend *b, float *sums, struct view x,
                                     struct cview delta, struct pieces pieces)
{
    struct staged *s = staged_of(b);
    s->inner->ops->square_sum(s->inner, staged_in(s, sums, (size_t)x.rows * 4), staged_view(s, x),
                              staged_cview(s, delta), pieces);
    staged_out(s, x.data);
    staged_end(s, sums);
}

static inline void staged_rms_scale(struct backend *b, struct view y, struct cview x,
                                    const float *sums, int32_t width, const float *gain, float eps)
{
    struct staged *s = staged_of(b);
    s->inner->ops->rms_scale(s->inner, staged_view(s, y), staged_cview(s, x),
                             staged_in(s, sums, (size_t)x.rows * 4), width,
                             staged_in(s, gain, (size_t)x.cols * 4), eps);
    staged_end(s, y.data);
}

static inline void staged_add(struct backend *b, struct view x, struct cview delta,
                              const float *scale)
{
    struct staged *s = staged_of(b);
    s->inner->ops->add(s->inner, staged_view(s, x), staged_cview(s, delta),
                       staged_in(s, scale, sizeof *scale));
    staged_end(s, x.data);
}

static inline struct joint_norm staged_joint(struct staged *s, const struct joint_norm *n,
                                             const struct heads *h)
{
    const size_t head = (size_t)h->head_dim * 4;
    struct joint_norm there = *n;
    there.q_gain = staged_in(s, n->q_gain, (size_t)h->heads * head);
    there.k_gain = staged_in(s, n->k_gain, (size_t)h->kv_heads * head);
    return there;
}

static inline void staged_joint_squares(struct backend *b, struct view squares, struct cview qkv,
                                        const struct joint_norm *n, const struct heads *h)
{
    struct staged *s = staged_of(b);
    const struct joint_norm there = staged_joint(s, n, h);
    s->inner->ops->joint_squares(s->inner, staged_view(s, squares), staged_cview(s, qkv), &there,
                                 h);
    staged_end(s, squares.data);
}

static inline void staged_joint_scale(struct backend *b, struct view qkv, struct cview squares,
                                      const struct joint_norm *n, const struct heads *h)
{
    struct staged *s = staged_of(b);
    const struct joint_norm there = staged_joint(s, n, h);
    s->inner->ops->joint_scale(s->inner, staged_view(s, qkv), staged_cview(s, squares), &there, h);
    staged_end(s, qkv.data);
}

static inline void staged_scale_queries(struct backend *b, struct view qkv, const struct heads *h,
                                        const int32_t *position, float beta, int32_t original)
{
    struct staged *s = staged_of(b);
    s->inner->ops->scale_queries(s->inner, staged_view(s, qkv), h,
                                 staged_in(s, position, (size_t)qkv.rows * 4), beta, original);
    staged_end(s, qkv.data);
}

static inline void staged_rope_table(struct backend *b, struct view table, const int32_t *position,
                                     const float *inv_freq, float scale)
{
    struct staged *s = staged_of(b);
    s->inner->ops->rope_table(s->inner, staged_view(s, table),
                              staged_in(s, position, (size_t)table.rows * 4),
                              staged_in(s, inv_freq, (size_t)table.cols / 2 * 4), scale);
    staged_end(s, table.data);
}

static inline struct qkv_rules staged_rules(struct staged *s, const struct qkv_rules *rules,
                                            int32_t cols, int32_t head_dim)
{
    const size_t head = (size_t)head_dim * 4;
    return (struct qkv_rules){staged_in(s, rules->bias, (size_t)cols * 4),
                              staged_in(s, rules->q_norm, head),
                              staged_in(s, rules->k_norm, head),
                              staged_in(s, rules->v_norm, head),
                              rules->eps,
                              rules->interleaved};
}

static inline void staged_rope_kv(struct backend *b, struct view qkv, const struct qkv_rules *rules,
                                  struct cview table, const struct heads *h,
                                  const struct rows *rows, struct kv_cache *kv, int32_t layer)
{
    struct staged *s = staged_of(b);
    const struct qkv_rules dq = staged_rules(s, rules, qkv.cols, h->head_dim);
    const struct heads dh = staged_heads(s, h);
    const struct rows dr = staged_rows(s, rows);
    s->inner->ops->rope_kv(s->inner, staged_view(s, qkv), &dq, staged_cview(s, table), &dh, &dr,
                           ((struct staged_cache *)kv)->inner, layer);
    staged_end(s, qkv.data);
}

static inline void staged_attend(struct backend *b, struct view out, struct cview qkv,
                                 const struct heads *h, const struct attention *how,
                                 const struct rows *rows, const struct kv_cache *kv, int32_t layer)
{
    struct staged *s = staged_of(b);
    const struct heads dh = staged_heads(s, h);
    const struct rows dr = staged_rows(s, rows);
    struct attention there = *how;
    there.sink = staged_in(s, how->sink, (size_t)h->heads * 4);
    s->inner->ops->attend(s->inner, staged_view(s, out), staged_cview(s, qkv), &dh, &there, &dr,
                          ((const struct staged_cache *)(const void *)kv)->inner, layer);
    staged_end(s, out.data);
}

/* What is in qkv then stays on the device: nothing may be relied on. */
static inline void staged_rope_attend(struct backend *b, struct view out, struct view qkv,
                                      const struct qkv_rules *rules, struct cview table,
                                      const struct heads *h, const struct attention *how,
                                      const struct rows *rows, struct kv_cache *kv, int32_t layer)
{
    struct staged *s = staged_of(b);
    const struct qkv_rules dq = staged_rules(s, rules, qkv.cols, h->head_dim);
    const struct heads dh = staged_heads(s, h);
    const struct rows dr = staged_rows(s, rows);
    struct attention there = *how;
    there.sink = staged_in(s, how->sink, (size_t)h->heads * 4);
    s->inner->ops->rope_attend(s->inner, staged_view(s, out), staged_view(s, qkv), &dq,
                               staged_cview(s, table), &dh, &there, &dr,
                               ((struct staged_cache *)kv)->inner, layer);
    staged_end(s, out.data);
}

static inline void staged_delta_rule(struct backend *b, struct view out, struct view a,
                                     struct cview gates, const struct recurrent_heads *h,
                                     const struct recurrent_rules *rules, const struct rows *rows,
                                     const struct recurrent_state *state)
{
    struct staged *s = staged_of(b);
    const size_t values = (size_t)h->values, channels = (size_t)backend_channels(h);
    const size_t own = staged_slots(rows->slot, rows->count);
    const size_t others = state->keep ? staged_slots(state->keep, rows->count) : 0;
    const size_t slots = own > others ? own : others;
    const size_t keeps = state->keep ? (size_t)rows->count : 0;
    const size_t matrix = values * (size_t)h->key_dim * (size_t)h->value_dim;
    const size_t kept = (size_t)(h->taps - 1) * channels;
    const struct recurrent_rules there = {
        staged_in(s, rules->conv, channels * (size_t)h->taps * 4),
        staged_in(s, rules->decay, values * 4), staged_in(s, rules->decay_bias, values * 4),
        staged_in(s, rules->gain, (size_t)h->value_dim * 4), rules->eps};
    const struct recurrent_state kept_there = {staged_in(s, state->matrix, slots * matrix * 4),
                                               staged_in(s, state->rows, slots * kept * 4),
                                               staged_in(s, state->keep, keeps * 4)};
    const struct rows dr = staged_rows(s, rows);
    s->inner->ops->delta_rule(s->inner, staged_view(s, out), staged_view(s, a),
                              staged_cview(s, gates), h, &there, &dr, &kept_there);
    staged_out(s, state->matrix);
    staged_out(s, state->rows);
    staged_out(s, a.data);
    staged_end(s, out.data);
}

static inline void staged_gate(struct backend *b, struct view y, struct cview x)
{
    struct staged *s = staged_of(b);
    s->inner->ops->gate(s->inner, staged_view(s, y), staged_cview(s, x));
    staged_end(s, y.data);
}

static inline void staged_act_mul(struct backend *b, struct view y, struct cview gu,
                                  enum activation act)
{
    struct staged *s = staged_of(b);
    s->inner->ops->act_mul(s->inner, staged_view(s, y), staged_cview(s, gu), act);
    staged_end(s, y.data);
}

static inline void staged_act_by(struct backend *b, struct view y, struct cview x, const float *by,
                                 size_t stride, enum activation act)
{
    struct staged *s = staged_of(b);
    const size_t last = y.rows > 0 ? (size_t)y.rows - 1 : 0,
                 width = y.rows > 0 ? (size_t)y.cols : 0;
    s->inner->ops->act_by(s->inner, staged_view(s, y), staged_cview(s, x),
                          staged_in(s, by, (last * stride + width) * 4), stride, act);
    staged_end(s, y.data);
}

static inline void staged_scale(struct backend *b, struct view y, struct cview x, float by)
{
    struct staged *s = staged_of(b);
    s->inner->ops->scale(s->inner, staged_view(s, y), staged_cview(s, x), by);
    staged_end(s, y.data);
}

static inline void staged_softcap(struct backend *b, struct view x, float cap)
{
    struct staged *s = staged_of(b);
    s->inner->ops->softcap(s->inner, staged_view(s, x), cap);
    staged_end(s, x.data);
}

static inline void staged_select(struct backend *b, struct view y, struct cview x,
                                 const int32_t *index)
{
    struct staged *s = staged_of(b);
    s->inner->ops->select(s->inner, staged_view(s, y), staged_cview(s, x),
                          staged_in(s, index, (size_t)y.rows * 4));
    staged_end(s, y.data);
}

static inline void staged_copy(struct backend *b, float *dst, size_t dst_stride, const float *src,
                               size_t src_stride, int32_t rows, int32_t cols)
{
    struct staged *s = staged_of(b);
    const size_t last = rows > 0 ? (size_t)rows - 1 : 0, width = rows > 0 ? (size_t)cols : 0;
    s->inner->ops->copy(s->inner, staged_in(s, dst, (last * dst_stride + width) * 4), dst_stride,
                        staged_in(s, src, (last * src_stride + width) * 4), src_stride, rows, cols);
    staged_end(s, dst);
}

static inline void staged_sum_tree(struct backend *b, float *y, const float *const *addends,
                                   int32_t count, size_t n)
{
    struct staged *s = staged_of(b);
    const float *list[BACKEND_PEERS_MAX];
    for (int32_t i = 0; i < count; i++)
        list[i] = staged_in(s, addends[i], n * 4);
    s->inner->ops->sum_tree(s->inner, staged_in(s, y, n * 4), list, count, n);
    staged_end(s, y);
}

/* ---- sampling ---- */

/* The first n slots and masks; the history comes to lie in *history. */
static inline struct sample_slots staged_sample_slots(struct staged *s,
                                                      const struct sample_slots *h, size_t n)
{
    struct sample_slots d = *h;
    d.history = staged_in(s, h->history, n * (size_t)h->history_cols * 4);
    if (h->params == NULL) /* resolve */
        return d;
    struct sample_rules *rules = calloc(n + 1, sizeof *rules);
    for (size_t i = 0; i < n; i++) {
        rules[i] = h->rules[i];
        const struct sample_rules *r = &h->rules[i];
        const int32_t bad_ids = r->bads > 0 ? r->bad_end[r->bads - 1] : 0;
        if (r->biases > 0)
            rules[i].bias = staged_in(s, r->bias, (size_t)r->biases * sizeof *r->bias);
        if (r->bans > 0)
            rules[i].ban = staged_in(s, r->ban, (size_t)r->bans * 4);
        if (r->bads > 0)
            rules[i].bad_end = staged_in(s, r->bad_end, (size_t)r->bads * 4);
        if (bad_ids > 0)
            rules[i].bad = staged_in(s, r->bad, (size_t)bad_ids * 4);
    }
    d.params = staged_in(s, h->params, n * sizeof *h->params);
    if (h->masks)
        d.masks = staged_in(s, h->masks, n * (size_t)h->mask_words * sizeof *h->masks);
    d.rules = staged_in(s, rules, n * sizeof *rules);
    free(rules);
    return d;
}

static inline struct sample_rows staged_sample_rows(struct staged *s, const struct sample_rows *r,
                                                    int32_t rows)
{
    const size_t n = (size_t)rows * 4;
    return (struct sample_rows){staged_in(s, r->slot, n), staged_in(s, r->position, n),
                                staged_in(s, r->target, n),
                                r->mask ? staged_in(s, r->mask, n) : NULL};
}

static inline void staged_resolve(struct backend *b, int32_t *ids, const int32_t *token,
                                  const struct rows *rows, const struct sample_slots *slots)
{
    struct staged *s = staged_of(b);
    const size_t n = (size_t)rows->count * 4;
    const struct rows dr = staged_rows(s, rows);
    const struct sample_slots ds =
        staged_sample_slots(s, slots, staged_slots(rows->slot, rows->count));
    s->inner->ops->resolve(s->inner, staged_in(s, ids, n), staged_in(s, token, n), &dr, &ds);
    staged_out(s, slots->history);
    staged_end(s, ids);
}

static inline void staged_sample(struct backend *b, int32_t *ids, struct cview logits,
                                 const struct sample_rows *rows, const struct sample_slots *slots)
{
    struct staged *s = staged_of(b);
    const size_t n = (size_t)logits.rows * 4;
    const struct sample_slots ds =
        staged_sample_slots(s, slots, staged_slots(rows->slot, logits.rows));
    const struct sample_rows dr = staged_sample_rows(s, rows, logits.rows);
    s->inner->ops->sample(s->inner, staged_in(s, ids, n), staged_cview(s, logits), &dr, &ds);
    staged_out(s, slots->history);
    staged_end(s, ids);
}

static inline void staged_logprobs(struct backend *b, float *logprob, struct token_top *best,
                                   int32_t stride, struct cview logits, const int32_t *ids,
                                   const int32_t *top)
{
    struct staged *s = staged_of(b);
    const size_t n = (size_t)logits.rows;
    s->inner->ops->logprobs(s->inner, staged_in(s, logprob, n * 4),
                            staged_in(s, best, n * (size_t)stride * sizeof *best), stride,
                            staged_cview(s, logits), staged_in(s, ids, n * 4),
                            staged_in(s, top, n * 4));
    staged_out(s, best);
    staged_end(s, logprob);
}

static inline struct sample_election staged_election(struct staged *s,
                                                     const struct sample_election *e)
{
    struct sample_election d = *e;
    const size_t rows = (size_t)e->rows, shards = (size_t)e->shards;
    const size_t words = rows + (size_t)e->begin[rows];
    d.begin = staged_in(s, e->begin, (rows + 1) * 4);
    d.surveys = staged_in(s, e->surveys, shards * rows * sizeof *e->surveys);
    d.ballots = staged_in(s, e->ballots, shards * words * sizeof *e->ballots);
    return d;
}

static inline void staged_survey(struct backend *b, struct sample_survey *out, struct cview logits,
                                 int32_t first, const struct sample_election *e,
                                 const struct sample_rows *rows, const struct sample_slots *slots)
{
    struct staged *s = staged_of(b);
    /* of the papers, which may hold `out`, nothing is read yet */
    struct sample_election de = *e;
    de.surveys = NULL;
    de.ballots = NULL;
    de = staged_election(s, &de);
    const struct sample_rows dr = staged_sample_rows(s, rows, e->rows);
    const struct sample_slots ds = staged_sample_slots(s, slots, staged_slots(rows->slot, e->rows));
    s->inner->ops->survey(s->inner, staged_in(s, out, (size_t)e->rows * sizeof *out),
                          staged_cview(s, logits), first, &de, &dr, &ds);
    staged_end(s, out);
}

static inline void staged_nominate(struct backend *b, union sample_ballot *ballot,
                                   struct cview logits, int32_t first,
                                   const struct sample_election *e, const struct sample_rows *rows,
                                   const struct sample_slots *slots)
{
    struct staged *s = staged_of(b);
    struct sample_election de = *e;
    de.ballots = NULL;
    de = staged_election(s, &de);
    const struct sample_rows dr = staged_sample_rows(s, rows, e->rows);
    const struct sample_slots ds = staged_sample_slots(s, slots, staged_slots(rows->slot, e->rows));
    const size_t words = (size_t)e->rows + (size_t)e->begin[e->rows];
    s->inner->ops->nominate(s->inner, staged_in(s, ballot, words * sizeof *ballot),
                            staged_cview(s, logits), first, &de, &dr, &ds);
    staged_end(s, ballot);
}

static inline void staged_elect(struct backend *b, int32_t *ids, const struct sample_election *e,
                                const struct sample_rows *rows, const struct sample_slots *slots)
{
    struct staged *s = staged_of(b);
    const struct sample_election de = staged_election(s, e);
    const struct sample_rows dr = staged_sample_rows(s, rows, e->rows);
    const struct sample_slots ds = staged_sample_slots(s, slots, staged_slots(rows->slot, e->rows));
    s->inner->ops->elect(s->inner, staged_in(s, ids, (size_t)e->rows * 4), &de, &dr, &ds);
    staged_out(s, slots->history);
    staged_end(s, ids);
}

/* ---- life ---- */

static inline void staged_close(struct backend *b)
{
    backend_close(staged_of(b)->inner);
    free(b);
}

static inline void staged_sync(struct backend *b)
{
    staged_of(b)->inner->ops->sync(staged_of(b)->inner);
}

static inline enum status staged_reserve(struct backend *b, int32_t rows, int32_t in, int32_t out,
                                         struct err *e)
{
    return backend_reserve(staged_of(b)->inner, rows, in, out, e);
}

static inline void staged_parallel(struct backend *b, int64_t count, int64_t grain,
                                   void (*fn)(void *arg, int64_t begin, int64_t end), void *arg)
{
    backend_parallel(staged_of(b)->inner, count, grain, fn, arg);
}

/* Takes inner. */
static inline struct backend *staged_open(struct backend *inner)
{
    struct staged *s = calloc(1, sizeof *s);
    s->inner = inner;
    s->ops = *inner->ops; /* name, sizes and memory stay the device's */
    s->ops.close = staged_close;
    s->ops.sync = staged_sync;
    s->ops.reserve = staged_reserve;
    s->ops.parallel = staged_parallel;
    s->ops.weight_open = staged_weight_open;
    s->ops.weight_close = staged_weight_close;
    s->ops.weight_put = staged_weight_put;
    s->ops.weight_scale = staged_weight_scale;
    s->ops.weight_get = staged_weight_get;
    s->ops.experts_open = staged_experts_open;
    s->ops.experts_close = staged_experts_close;
    s->ops.route = staged_route;
    s->ops.expert_linear = staged_expert_linear;
    s->ops.expert_sum = staged_expert_sum;
    s->ops.head_linear = staged_head_linear;
    s->ops.latent = staged_latent;
    s->ops.kv_open = staged_kv_open;
    s->ops.kv_close = staged_kv_close;
    s->ops.resolve = staged_resolve;
    s->ops.embed = staged_embed;
    s->ops.linear = staged_linear;
    s->ops.linear_fuses = staged_linear_fuses;
    s->ops.linear_fused = staged_linear_fused;
    s->ops.linear_in = staged_linear_in;
    s->ops.linear_out = staged_linear_out;
    s->ops.add_bias = staged_add_bias;
    s->ops.expert_bias = staged_expert_bias;
    s->ops.expert_bias_sum = staged_expert_bias_sum;
    s->ops.rmsnorm = staged_rmsnorm;
    s->ops.add_rmsnorm = staged_add_rmsnorm;
    s->ops.square_sum = staged_square_sum;
    s->ops.rms_scale = staged_rms_scale;
    s->ops.add = staged_add;
    s->ops.joint_squares = staged_joint_squares;
    s->ops.joint_scale = staged_joint_scale;
    s->ops.scale_queries = staged_scale_queries;
    s->ops.rope_table = staged_rope_table;
    s->ops.rope_kv = staged_rope_kv;
    s->ops.attend = staged_attend;
    s->ops.rope_attend = staged_rope_attend;
    s->ops.delta_rule = staged_delta_rule;
    s->ops.gate = staged_gate;
    s->ops.act_mul = staged_act_mul;
    s->ops.act_by = staged_act_by;
    s->ops.scale = staged_scale;
    s->ops.softcap = staged_softcap;
    s->ops.select = staged_select;
    s->ops.copy = staged_copy;
    s->ops.sum_tree = staged_sum_tree;
    s->ops.survey = staged_survey;
    s->ops.nominate = staged_nominate;
    s->ops.elect = staged_elect;
    s->ops.sample = staged_sample;
    s->ops.logprobs = staged_logprobs;
    s->base.ops = &s->ops;
    return &s->base;
}

#endif
