/* Replay: the forward pass of a step of few rows is recorded once for each number of rows and then
 * run as one piece (backend.h, record), which spares the host hundreds of launches per step. What
 * runs is what would run without: the same ops with the same arguments, so the same bits.
 * One thread (the rank's) calls. */
#ifndef TESSERA_ENGINE_REPLAY_H
#define TESSERA_ENGINE_REPLAY_H

#include "engine/board.h"
#include "engine/model/model.h"

#define REPLAY_ROWS_MAX                                                                            \
    64 /* bigger steps keep the device busy for longer than their launches take */

struct replay;

/* All borrowed; they must outlive it. enabled: false runs every step op by op. Collectives that are
 * replayed count in `board` as the others do, but for their time. */
enum status replay_open(bool enabled, struct backend *b, struct model *m, struct board_rank *board,
                        int32_t layers, struct replay **out, struct err *err) MUST_USE;
void replay_close(struct replay *r);
/* As model_forward; all arrays of `in` lie where they lay for every step of its sizes. */
enum status replay_forward(struct replay *r, const struct model_input *in, struct cview *logits,
                           struct err *err) MUST_USE;

#endif
