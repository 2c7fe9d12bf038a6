/* Step: what the front end tells every rank to do next, and what a rank answers. Plain data with a
 * length, magic, version, epoch and sequence number; all ranks get the same bytes.
 *
 * Wire form of a step: struct step_header, then its slot changes in order (opens, appends, closes),
 * then the rows as arrays [T] of slot, position, token and, where states are kept, keep, then the
 * sample list as arrays [R] of row, target, top, then, where there are masks, mask [R] and these.
 * All 32-bit.
 *   open   struct open_wire (step.c), then `history` token ids: everything the sequence holds so
 *          far; then biases, bans, ends of the bad words, their ids. A new group gets the same
 *          records, so recovery has no other path.
 *   append {slot, group, index, block}: entry `index` of the slot's block table for these layers
 *   close  {slot}
 * Rows ascend by the home of their slot, and samples by row.
 * Order on a rank: closes, opens, appends, then the rows. */
#ifndef TESSERA_ENGINE_STEP_H
#define TESSERA_ENGINE_STEP_H

#include "engine/engine.h"
#include "engine/kv_groups.h"

#define STEP_MAGIC 0x53455354u /* "TSES" */
#define STEP_VERSION 7
#define STEP_TOKEN_FROM_SLOT (-1)      /* the rank takes the token from the slot's history */
#define STEP_TARGET_SAMPLE SAMPLE_DRAW /* the row's next token is drawn, not given */
#define STEP_TARGET_CHECK SAMPLE_CHECK /* drawn, to be compared with a guess */
#define STEP_BANS_MAX (8 + ENGINE_STOP_IDS_MAX) /* end tokens and stop ids of a sequence */

struct step_header {
    uint32_t magic, version;
    uint32_t epoch; /* of the group; 1 for the first */
    uint32_t bytes; /* of the whole message, header included */
    uint64_t seq;   /* previous + 1 */
    int32_t rows, samples;
    int32_t opens, appends, closes, masks;
    int32_t stop; /* 1: leave; nothing follows */
    int32_t zero; /* so that there is no hole */
};

struct step_open {
    int32_t slot, history, home; /* home: where its KV is */
    int32_t state; /* the kept one it begins with, -1: none. Rows of this step may replace that */
    struct sample_params params;
    struct sample_rules rules; /* its arrays and tokens follow the record on the wire */
    const int32_t *tokens;     /* [history] */
};

struct step_append {
    int32_t slot, group, index, block;
};

/* Capacities, fixed at start. Where the KV cache is placed by home, each sequence keeps its KV in
 * one of `homes` pools of blocks, and a step has at most home_rows rows of each, in ascending order
 * of home: a rank then holds 1 / homes of the activations and of the KV, even while a single prompt
 * fills the steps, which is why that prompt runs in smaller chunks. */
struct step_limits {
    int32_t slots;   /* <= rows */
    int32_t samples; /* >= slots: more where guesses are checked; <= rows */
    int32_t rows, table_cols, vocab;
    int32_t blocks; /* of each home, numbered from 0 */
    struct kv_groups groups;
    int32_t history_max;
    int32_t homes;     /* 1: all sequences are everywhere */
    int32_t home_rows; /* rows divided by homes, rounded up */
    int32_t columns;   /* what is sampled are vectors of so many floats; 0: tokens */
    bool recurs;       /* there are layers that do, and no cached prefix without their state, */
    int32_t states;    /* of which so many are kept beside those of slots (states.h) */
};

/* A step as its two ends see it: arrays of fixed capacity, owned. */
struct step {
    struct step_limits limits;
    uint32_t epoch;
    uint64_t seq;
    int32_t rows, samples, opens, appends, closes, mask_count;
    bool stop;
    int32_t *slot, *position, *token; /* [rows_max] */
    int32_t *keep;                    /* [rows_max] the place of the state after it, -1: none; no
                                         place twice. Not looked at where no states are kept */
    int32_t *sample;                  /* [samples] row indices, ascending */
    int32_t *target;                  /* [samples] token to score there, or STEP_TARGET_... */
    int32_t *top;               /* [samples] how many best logprobs are wanted; -1: none at all */
    int32_t *mask;              /* [samples] which mask says what may be drawn; -1: anything;
                                   not looked at in a step without masks */
    uint32_t *masks;            /* [samples, sample_mask_words(vocab)], as in struct sample_slots */
    struct step_open *open;     /* [slots] */
    struct step_append *append; /* [append_max] */
    int32_t append_max;
    int32_t *close; /* [2 * slots] */
    bool *named;    /* [states], all false but in step_decode */
};

enum status step_open_new(const struct step_limits *limits, struct step **out,
                          struct err *err) MUST_USE;
void step_free(struct step *s);
void step_clear(struct step *s);

/* Largest message these limits allow. */
size_t step_bytes_max(const struct step_limits *limits);
/* Writes the wire form to dst (step_bytes_max long); returns its length. */
size_t step_encode(const struct step *s, void *dst);
/* Checks every number against the limits and fills s; tokens of opens point into src, which must
 * outlive their use. ERR_COMM says which field is off. */
enum status step_decode(struct step *s, const void *src, size_t n, struct err *err) MUST_USE;

/* ---- the answer ---- */
#define STEP_ANSWER_MAGIC 0x52534e41u /* "ANSR" */

/* From every rank; rank 0 appends ids[ids], then logprob[logprobs] and best[logprobs, stride], or
 * vector[ids, columns].
 * status != OK: text follows instead (text_bytes). */
struct step_answer {
    uint32_t magic, epoch;
    uint64_t seq;
    uint64_t hash; /* of the ids; equal on all ranks or the group is lost */
    int32_t rank, status;
    int32_t ids; /* count that follows */
    int32_t text_bytes;
    int32_t logprobs, stride; /* logprobs: 0 or ids */
    int32_t columns, zero;    /* columns: of the vectors; 0: there are none */
};
uint64_t step_hash(const int32_t *ids, int32_t count);

/* What came of a step's samples, in their order; borrowed. */
struct step_result {
    int32_t count;
    const int32_t *ids;           /* [count] drawn, or the target; -1: the row failed */
    const float *logprob;         /* [count] where top >= 0; NULL: the step wants none */
    const struct token_top *best; /* [count, stride] of which `top` are filled */
    int32_t stride;
    const float *vector; /* [count, columns] the hidden states instead of tokens, ids being those
                            that the step names; NULL: tokens it is */
    int32_t columns;
};
/* The largest `top` of the step's samples; -1: none wants logprobs. */
int32_t step_stride(const struct step *s);
/* Sets the counts in the head of rank 0's answer. */
void step_answer_counts(struct step_answer *h, const struct step_result *r);
/* Bytes that follow the head, text not included; the caller has checked that counts are >= 0. */
size_t step_answer_bytes(const struct step_answer *h);
/* Checks that r, as it came over a link, can be the result of s. ERR_COMM says what is wrong. A row
 * without finite logits has a NaN logprob; what vectors are is not looked at. */
enum status step_check_result(const struct step *s, int32_t vocab, const struct step_result *r,
                              struct err *err) MUST_USE;

#endif
