/* Parallel layer: the only callers of collectives in the forward pass. A linear is a style around a
 * local product:
 *   colwise  y[T, out/P] = x[T, in] w^T                     no communication
 *   rowwise  y[T, out]   = all-reduce(x[T, in/P] w^T)
 *   vocab    embedding: all-reduce of masked look-ups; head: own columns of the logits, which the
 *            sampler gathers as far as it needs them
 * One thread (the rank's) calls. Results of rowwise and embed lie in communicator buffers and obey
 * its reuse rule; the alternating sources are kept in here. */
#ifndef TESSERA_ENGINE_PARALLEL_PARALLEL_H
#define TESSERA_ENGINE_PARALLEL_PARALLEL_H

#include "engine/comm/comm.h"
#include "engine/parallel/plan.h"
#include "weights/placement.h"

struct parallel;

/* A weight and how it is split. */
struct parallel_weight {
    const struct weight *local; /* borrowed */
    enum style style;
};

/* Bytes of communicator arena per rank that parallel_open will take for up to rows_max rows of
 * `hidden` and samples_max sampled rows of `vocab`. */
size_t parallel_arena_bytes(int32_t rows_max, int32_t hidden, int32_t samples_max, int32_t vocab);

/* b and c are borrowed and must outlive it. */
enum status parallel_open(struct backend *b, struct comm *c, int32_t rows_max, int32_t hidden,
                          int32_t samples_max, int32_t vocab, struct parallel **out,
                          struct err *err) MUST_USE;
void parallel_close(struct parallel *p);

/* A [rows_max, hidden] result buffer peers can read: for the outputs of embed and rowwise. */
float *parallel_buffer(struct parallel *p);

/* y[T, D] = rows ids[t] of the whole table; padding (-1) gives zeros. y from parallel_buffer. */
enum status parallel_embed(struct parallel *p, struct view y, const int32_t *ids,
                           struct parallel_weight w, struct err *err) MUST_USE;
/* y = x w^T in w's style. Colwise: y[T, local out], any memory. Rowwise: y[T, D] from
 * parallel_buffer. */
enum status parallel_linear(struct parallel *p, struct view y, struct cview x,
                            struct parallel_weight w, struct err *err) MUST_USE;
/* *logits = [R, own columns], valid until the next call. */
enum status parallel_head(struct parallel *p, struct cview x, struct parallel_weight w,
                          struct cview *logits, struct err *err) MUST_USE;
/* Ids whose logits a rank has. */
struct span parallel_vocab(const struct parallel *p, int32_t rank);
/* Rows [begin, end) of the last head's logits from all ranks, at their places in *whole = [end, V].
 * begin == end: nothing is moved. Rows stay valid until the next head. */
enum status parallel_gather(struct parallel *p, int32_t begin, int32_t end, struct cview *whole,
                            struct err *err) MUST_USE;

#endif
