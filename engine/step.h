/* Step: what the front end tells every rank to do next, and what a rank answers. Plain data with a
 * length, magic, version, epoch and sequence number; all ranks get the same bytes.
 *
 * Wire form of a step: struct step_header, then its slot changes in order (opens, appends, closes),
 * then the rows as arrays [T] of slot, position, token, then the sample list [R]. All 32-bit.
 *   open   {slot, choice, top_k, history, temperature, top_p, min_p, home, seed (2 words)},
 *          then `history` token ids: everything the sequence holds so far. A new group gets the
 *          same records, so recovery has no other path.
 *   append {slot, index, block}: entry `index` of the slot's block table
 *   close  {slot}
 * Order on a rank: closes, opens, appends, then the rows. */
#ifndef TESSERA_ENGINE_STEP_H
#define TESSERA_ENGINE_STEP_H

#include "config/base.h"
#include "kernels/backend.h"

#define STEP_MAGIC 0x53455354u /* "TSES" */
#define STEP_VERSION 1
#define STEP_TOKEN_FROM_SLOT (-1) /* the rank takes the slot's last token from its own memory */

struct step_header {
    uint32_t magic, version;
    uint32_t epoch; /* of the group; 1 for the first */
    uint32_t bytes; /* of the whole message, header included */
    uint64_t seq;   /* previous + 1 */
    int32_t rows, samples;
    int32_t opens, appends, closes;
    int32_t stop; /* 1: leave; nothing follows */
};

struct step_open {
    int32_t slot, history, home; /* home: KV home of the sequence, 0 in 1d */
    struct sample_params params;
    const int32_t *tokens; /* [history], not on the wire itself */
};

struct step_append {
    int32_t slot, index, block;
};

/* Capacities, fixed at start. */
struct step_limits {
    int32_t slots, rows, table_cols, vocab, blocks, history_max;
};

/* A step as its two ends see it: arrays of fixed capacity, owned. */
struct step {
    struct step_limits limits;
    uint32_t epoch;
    uint64_t seq;
    int32_t rows, samples, opens, appends, closes;
    bool stop;
    int32_t *slot, *position, *token; /* [rows_max] */
    int32_t *sample;                  /* [slots] row indices, ascending */
    struct step_open *open;           /* [slots] */
    struct step_append *append;       /* [append_max] */
    int32_t append_max;
    int32_t *close; /* [2 * slots] */
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

/* From every rank; rank 0 appends ids[samples]. status != OK: text follows instead (text_bytes). */
struct step_answer {
    uint32_t magic, epoch;
    uint64_t seq;
    uint64_t hash; /* of the sampled ids; equal on all ranks or the group is lost */
    int32_t rank, status;
    int32_t ids; /* count that follows */
    int32_t text_bytes;
};
uint64_t step_hash(const int32_t *ids, int32_t count);

#endif
