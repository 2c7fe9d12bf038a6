/* Replay: the forward pass of a step of few rows, all of them sampled, is recorded once for each of
 * some sizes and then run as one piece (backend.h, record), which spares the host hundreds of
 * launches per step. A step is padded to the next size; what runs is what would run without, with
 * the same arguments, so the same bits. One thread (the rank's) calls. */
#ifndef TESSERA_ENGINE_REPLAY_H
#define TESSERA_ENGINE_REPLAY_H

#include "engine/board.h"
#include "engine/model/model.h"

#define REPLAY_SIZES 19
/* Bigger steps keep the device busy for longer than their launches take. */
#define REPLAY_ROWS_MAX 256

struct replay;

struct replay_parts {
    struct backend *backend;
    struct model *model;
    struct board_rank *board; /* replayed collectives count as the others do, but for their time */
    /* Of the same ranks, over host memory: by it they agree whether to replay a step. */
    struct comm *bootstrap;
    int32_t layers;
    int32_t rows_max; /* of a step whose rows are all sampled: none is padded beyond */
};

/* All borrowed; they must outlive it. enabled: false runs every step op by op, without padding. */
enum status replay_open(bool enabled, const struct replay_parts *parts, struct replay **out,
                        struct err *err) MUST_USE;
void replay_close(struct replay *r);
/* Whether such a step may be recorded, or run by the recording of another one of its size. */
bool replay_records(const struct replay *r, int32_t rows, int32_t samples);
/* Rows with which a step of these is to run; the added ones are padding, and sampled. The same on
 * all ranks. apart: as in struct rows. */
int32_t replay_rows(const struct replay *r, int32_t rows, int32_t samples, bool apart);
/* As model_forward, for so many rows. All arrays of `in` lie where they lay for every step of its
 * sizes. The second step of a size is collective over the bootstrap communicator, too. */
enum status replay_forward(struct replay *r, const struct model_input *in, struct cview *logits,
                           struct err *err) MUST_USE;

#endif
