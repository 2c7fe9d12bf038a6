/* The accuracy oracle: scalar, double accumulation, plain storage, never optimised. */
#ifndef TESSERA_KERNELS_REF_REF_H
#define TESSERA_KERNELS_REF_REF_H

#include "kernels/handles.h"

extern const struct backend_ops ref_ops;

enum status ref_open(struct backend **out, struct err *err) MUST_USE;

/* ref_recurrent.c */
void ref_delta_rule(struct backend *b, struct view out, struct view a, struct cview gates,
                    const struct recurrent_heads *h, const struct recurrent_rules *rules,
                    const struct rows *rows, const struct recurrent_state *state);
void ref_gate(struct backend *b, struct view y, struct cview x);

/* ref_sample.c */
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
