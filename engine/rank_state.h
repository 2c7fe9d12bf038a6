/* The arrays of a rank, per slot and per step, as the kernels want them: one allocation of a size
 * that `plan` knows. One thread (the rank's). */
#ifndef TESSERA_ENGINE_RANK_STATE_H
#define TESSERA_ENGINE_RANK_STATE_H

#include "engine/step.h"

struct rank_state {
    struct step_limits limits;
    /* per slot */
    int32_t *table; /* [slots, table_cols] */
    struct sample_params *params;
    struct sample_rules *rules; /* their arrays are the next four */
    struct token_bias *bias;    /* [slots, ENGINE_BIAS_MAX] */
    int32_t *ban;               /* [slots, STEP_BANS_MAX] */
    int32_t *bad_end, *bad;     /* [slots, ENGINE_BAD_IDS_MAX] */
    int32_t *history;           /* [slots, history_max] */
    /* per step */
    int32_t *ids;                       /* [rows] */
    int32_t *sample_slot, *sample_next; /* [slots] slot, and position of the token to come */
    int32_t *begin;                     /* [slots + 1] where each sample's places begin */
    int32_t *elected, *sampled;         /* [slots] */
    float *logprob;                     /* [slots] */
    struct token_top *best;             /* [slots, ENGINE_LOGPROBS_MAX] */
};

size_t rank_state_bytes(const struct step_limits *limits);
enum status rank_state_open(const struct step_limits *limits, struct rank_state **out,
                            struct err *err) MUST_USE;
void rank_state_close(struct rank_state *s);

/* Makes the slot changes of a decoded step. */
void rank_state_change(struct rank_state *s, const struct step *step);
/* The slots and the samples of a step for the sampling ops; valid until the next step. */
struct sample_slots rank_state_slots(const struct rank_state *s);
struct sample_rows rank_state_samples(struct rank_state *s, const struct step *step);

#endif
