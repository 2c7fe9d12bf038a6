/* Sampler: from each rank's columns of the logits to tokens, the same ones on every rank, in one of
 * two ways that give the same tokens.
 *   gather       all-gather of the logits; every rank samples whole rows
 *   distributed  ranks exchange surveys and candidates (kernels/backend.h): 32 bytes a row, and 8 +
 *                8 per place where a nucleus is kept. Rows they cannot decide, and rows that want
 *                logprobs, are gathered.
 * One thread (the rank's) calls; all ranks of the group call with the same rows. */
#ifndef TESSERA_ENGINE_PARALLEL_SAMPLER_H
#define TESSERA_ENGINE_PARALLEL_SAMPLER_H

#include "engine/parallel/parallel.h"

struct sampler;

/* Bytes a rank receives for one row of the distributed sampler that has `places` places; 0: in a
 * step where no row has any. */
static inline uint64_t sampler_row_bytes(int32_t ranks, int32_t places)
{
    const uint64_t ballot = places > 0 ? (1 + (uint64_t)places) * sizeof(union sample_ballot) : 0;
    return (uint64_t)(ranks - 1) * (sizeof(struct sample_survey) + ballot);
}
/* Bytes of communicator arena per rank that sampler_open will take. */
size_t sampler_arena_bytes(bool distributed, int32_t ranks, int32_t samples_max);
/* Memory it takes besides. */
size_t sampler_local_bytes(bool distributed, int32_t samples_max, int32_t vocab);

/* b, c and p are borrowed and must outlive it. */
enum status sampler_open(bool distributed, struct backend *b, struct comm *c, struct parallel *p,
                         int32_t samples_max, int32_t vocab, struct sampler **out,
                         struct err *err) MUST_USE;
void sampler_close(struct sampler *s);

/* R rows to sample, R > 0. */
struct sampler_input {
    struct cview logits; /* this rank's columns, of parallel_head */
    struct sample_rows rows;
    struct sample_slots slots;
    const int32_t *begin;  /* [R + 1] as in struct sample_election, on the device */
    int32_t places;        /* begin[R] */
    const int32_t *top;    /* [R] >= 0: logprobs are wanted; on the host */
    int32_t *elected;      /* [R] scratch, on the device */
    int32_t *elected_host; /* [R] scratch, on the host */
};

/* ids[R] as backend_sample gives them. *whole = [R, V], valid until the next call: all rows
 * (gather), or only those that were gathered. *undecided = rows that should have been decided and
 * were not. */
enum status sampler_run(struct sampler *s, const struct sampler_input *in, int32_t *ids,
                        struct cview *whole, int32_t *undecided, struct err *err) MUST_USE;

#endif
