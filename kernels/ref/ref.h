/* The accuracy oracle: scalar, double accumulation, plain storage, never optimised. */
#ifndef TESSERA_KERNELS_REF_REF_H
#define TESSERA_KERNELS_REF_REF_H

#include "kernels/handles.h"

extern const struct backend_ops ref_ops;

enum status ref_open(struct backend **out, struct err *err) MUST_USE;

/* ref_attend.c: what is between the products of a layer that attends, and the cache */
size_t ref_kv_bytes(const struct kv_spec *s);
struct kv_cache *ref_kv_open(struct backend *b, const struct kv_spec *spec, void *storage);
void ref_kv_close(struct kv_cache *kv);
void ref_latent(struct backend *b, struct view query, struct view qkv, struct cview a,
                const struct latent_rules *r);
void ref_joint_squares(struct backend *b, struct view squares, struct cview qkv,
                       const struct joint_norm *n, const struct heads *h);
void ref_joint_scale(struct backend *b, struct view qkv, struct cview squares,
                     const struct joint_norm *n, const struct heads *h);
void ref_scale_queries(struct backend *b, struct view qkv, const struct heads *h,
                       const int32_t *position, float beta, int32_t original);
void ref_rope_table(struct backend *b, struct view table, const int32_t *position,
                    const float *inv_freq, float scale);
void ref_rope_kv(struct backend *b, struct view qkv, const struct qkv_rules *rules,
                 struct cview table, const struct heads *h, const struct rows *rows,
                 struct kv_cache *kv, int32_t layer);
void ref_attend(struct backend *b, struct view out, struct cview qkv, const struct heads *h,
                const struct attention *how, const struct rows *rows, const struct kv_cache *kv,
                int32_t layer);

/* ref_experts.c: routing, and the products of experts */
void ref_route(struct backend *b, const struct routing *r, struct cview logits,
               const struct routing_rules *rules);
void ref_expert_linear(struct backend *b, struct view y, struct cview x, const struct experts *w,
                       const struct routing *r);
void ref_expert_sum(struct backend *b, struct view y, struct cview x, const struct experts *w,
                    const struct routing *r);
void ref_expert_bias(struct backend *b, struct view y, const float *bias, const struct routing *r);
void ref_expert_bias_sum(struct backend *b, struct view y, struct cview x, const float *bias,
                         const struct routing *r);

/* ref_recurrent.c: layers that recur, and gates */
void ref_delta_rule(struct backend *b, struct view out, struct view a, struct cview gates,
                    const struct recurrent_heads *h, const struct recurrent_rules *rules,
                    const struct rows *rows, const struct recurrent_state *state);
void ref_gate(struct backend *b, struct view y, struct cview x);

/* ref_sample.c: what is drawn, and logprobs */
void ref_sample(struct backend *b, int32_t *ids, struct cview logits,
                const struct sample_rows *rows, const struct sample_slots *slots);
void ref_survey(struct backend *b, struct sample_survey *out, struct cview logits, int32_t first,
                const struct sample_election *e, const struct sample_rows *rows,
                const struct sample_slots *slots);
void ref_nominate(struct backend *b, union sample_ballot *ballot, struct cview logits,
                  int32_t first, const struct sample_election *e, const struct sample_rows *rows,
                  const struct sample_slots *slots);
void ref_elect(struct backend *b, int32_t *ids, const struct sample_election *e,
               const struct sample_rows *rows, const struct sample_slots *slots);
void ref_logprobs(struct backend *b, float *logprob, struct token_top *best, int32_t stride,
                  struct cview logits, const int32_t *ids, const int32_t *top);

#endif
