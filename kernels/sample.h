/* What the ops that choose tokens are told of a step's slots and rows, and what ranks that have a
 * part of the vocabulary each tell one another. The ops are in backend.h, what they compute exactly
 * in numerics.h. All arrays are the caller's, on the device. */
#ifndef TESSERA_KERNELS_SAMPLE_H
#define TESSERA_KERNELS_SAMPLE_H

#include "config/base.h"

/* Per slot, on the device. Greedy when temperature == 0. */
struct sample_params {
    float temperature;
    float top_p;   /* (0, 1]; 1 = off */
    float min_p;   /* [0, 1]; 0 = off */
    int32_t top_k; /* <= 0: off */
    uint64_t seed;
    int32_t choice; /* index among n */
};

struct token_bias {
    int32_t token;
    float value; /* added to the logit */
};

struct token_top {
    int32_t token;
    float logprob;
};

/* Per slot, on the device, arrays included: what the history and lists do to the logits before a
 * token is drawn. All off: repetition 1, the rest zero. */
struct sample_rules {
    int32_t prompt;     /* length of the prompt in the history; what follows was produced */
    int32_t min_tokens; /* until as many tokens are produced, none of `ban` may be */
    float repetition;   /* > 0 */
    float frequency, presence;
    int32_t biases, bans, bads;
    const struct token_bias *bias; /* [biases] */
    const int32_t *ban;            /* [bans] */
    const int32_t *bad, *bad_end;  /* bad words one after the other; [bads] where each ends */
};

/* What sampling knows of the slots: arrays on the device, indexed by slot. */
struct sample_slots {
    const struct sample_params *params;
    const struct sample_rules *rules;
    int32_t *history; /* [slots, history_cols] token at each position */
    int32_t history_cols;
    /* [.., mask_words] of the step, not of the slots: bit id % 32 of word id / 32: id may be drawn
     */
    const uint32_t *masks;
    int32_t mask_words; /* sample_mask_words(V) */
};
static inline int32_t sample_mask_words(int32_t vocab)
{
    return (vocab + 31) / 32;
}

/* Draws the next token, into the history, too. */
#define SAMPLE_DRAW (-1)
/* Draws it, and leaves the history alone: other rows of this step have guesses there that it is to
 * be checked against. */
#define SAMPLE_CHECK (-2)

/* What is wanted of the R rows of logits. Arrays on the device. */
struct sample_rows {
    const int32_t *slot;     /* -1 = padding */
    const int32_t *position; /* that the new token will have, < history_cols */
    const int32_t *target;   /* SAMPLE_DRAW, SAMPLE_CHECK, or the token: nothing is drawn */
    const int32_t *mask;     /* which of the masks; -1: all ids may be drawn. NULL: in no row one */
};

/* ---- distributed sampling: each of `shards` ranks has some columns of every row ----
 * Three ops, with an exchange between ranks after each of the first two, find the token that
 * `sample` would have drawn from whole rows, or find that they cannot tell:
 *   survey    each shard's maxima, and its best draw where the row keeps all tokens
 *   nominate  for a row that keeps a nucleus (top-k, top-p, min-p): the shard's first ids in order
 *             of z = logit / temperature, as many as the row has places, and the shard's mass
 *   elect     the token, on every rank alike */
#define SAMPLE_PLACES_MAX 256 /* nominees of a row and shard */

struct sample_survey {
    float raw_max, max, z_max; /* largest logit: raw, after the rules, and as z */
    int32_t argmax;            /* lowest id with `max` */
    double value;              /* largest z + noise, where no nucleus is kept, */
    int32_t id;                /* and the id that has it */
    uint32_t flags;            /* SURVEY_... */
};
#define SURVEY_BAD 1u   /* a NaN or +inf among the logits */
#define SURVEY_BAD_Z 2u /* the same among the z */
#define SURVEY_MORE 4u  /* the shard has more columns than the row has places */

struct sample_candidate {
    float z;
    int32_t id; /* -1: the place is empty */
};

/* What the second exchange moves, in 8-byte words: a shard's ballot is mass[R], of each row's
 * columns, then candidate[begin[R]]. */
union sample_ballot {
    uint64_t mass;
    struct sample_candidate candidate;
};

/* Arrays on the device. The surveys are there from the first exchange on, the ballots from the
 * second. */
struct sample_election {
    int32_t rows, shards, vocab;
    const int32_t *begin;                /* [R + 1] where the row's places begin in each ballot */
    const struct sample_survey *surveys; /* [shards, R] */
    const union sample_ballot *ballots;  /* [shards, R + begin[R]] */
};
/* Places of a row: begin[r + 1] - begin[r]. 0: its survey is enough. */
static inline int32_t sample_places(const struct sample_params *p, int32_t vocab)
{
    const bool top_k = p->top_k > 0 && p->top_k < vocab;
    int32_t n = SAMPLE_PLACES_MAX < vocab ? SAMPLE_PLACES_MAX : vocab;
    if (p->temperature <= 0 || !(top_k || p->top_p < 1 || p->min_p > 0))
        return 0;
    return top_k && p->top_k < n ? p->top_k : n;
}

#endif
