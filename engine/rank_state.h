/* The arrays of a rank, per slot and per step, as the kernels want them: one allocation on the
 * device, and the same on the host, where a step's changes are made before they are uploaded. One
 * thread (the rank's). */
#ifndef TESSERA_ENGINE_RANK_STATE_H
#define TESSERA_ENGINE_RANK_STATE_H

#include "engine/step.h"

struct rank_arrays {
    /* per slot */
    int32_t *table; /* [groups, slots, table_cols] */
    struct sample_params *params;
    struct sample_rules *rules; /* their arrays are the next four */
    struct token_bias *bias;    /* [slots, ENGINE_BIAS_MAX] */
    int32_t *ban;               /* [slots, STEP_BANS_MAX] */
    int32_t *bad_end, *bad;     /* [slots, ENGINE_BAD_IDS_MAX] */
    int32_t *history;           /* [slots, history_max]; written by sample on the device */
    uint32_t *masks;            /* [samples, sample_mask_words(vocab)] of this step */
    /* results of a step */
    int32_t *ids;               /* [rows] */
    int32_t *elected, *sampled; /* [samples] */
    float *logprob;             /* [samples] */
    struct token_top *best;     /* [samples, ENGINE_LOGPROBS_MAX] */
    float *vector;              /* [samples, columns]; used on the host only */
    /* inputs of a step, packed for one upload: their addresses depend on its T and R */
    int32_t *slot, *position, *token;   /* [T] */
    int32_t *keep;                      /* [T], as in struct recurrent_state; NULL without states */
    int32_t *sample, *target;           /* [R] */
    int32_t *top, *mask;                /* [R] */
    int32_t *sample_slot, *sample_next; /* [R] slot, and position of the token to come */
    int32_t *begin;                     /* [R + 1] where each sample's places begin */
};

struct rank_state {
    struct step_limits limits;
    struct backend *backend; /* borrowed */
    char *host_memory, *device_memory;
    size_t step;   /* where in them the arrays of a step begin */
    int32_t *home; /* [slots] */
    int64_t *cut;  /* [homes + 1] first row of each home in this step, then the end */
    struct rank_arrays host, device;
};

/* Bytes of the arrays on device and host together; elsewhere: of those on the device only. */
size_t rank_state_bytes(const struct step_limits *limits, bool elsewhere);
enum status rank_state_open(struct backend *b, const struct step_limits *limits,
                            struct rank_state **out, struct err *err) MUST_USE;
void rank_state_close(struct rank_state *s);

/* Makes the slot changes of a decoded step and uploads it, followed by `padding` rows of padding,
 * which count as sampled. *arrays: those on the device, for the ops of this step. ERR_COMM: its
 * rows are not in the order of their homes, or too many are of one. */
enum status rank_state_change(struct rank_state *s, const struct step *step, int32_t padding,
                              const struct rank_arrays **arrays, struct err *err) MUST_USE;
/* Where the rows of that step are cut between homes; NULL: there is one. */
const int64_t *rank_state_cut(const struct rank_state *s);
/* The slots for the sampling ops. */
struct sample_slots rank_state_slots(const struct rank_state *s);
/* Starts the download of the step's results, in a flight (backend.h): `samples` ids, and logprobs
 * when stride >= 0. */
void rank_state_fetch(struct rank_state *s, int32_t flight, int32_t samples, int32_t stride);
/* Waits for it; the same numbers. Valid until the next landing. ERR_DEVICE: an op failed. */
enum status rank_state_land(struct rank_state *s, int32_t flight, int32_t samples, int32_t stride,
                            struct step_result *out, struct err *err) MUST_USE;

#endif
