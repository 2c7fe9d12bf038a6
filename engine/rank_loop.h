/* The loop of a rank process: steps from its link, answers to it. One thread (the rank's). */
#ifndef TESSERA_ENGINE_RANK_LOOP_H
#define TESSERA_ENGINE_RANK_LOOP_H

#include "engine/rank.h"

/* Runs steps until the front end says stop (OK) or its end of the link is closed (ERR_CANCELLED). A
 * step that fails is answered so. */
enum status rank_loop(struct rank *r, const struct options *o, const struct board_rank *board,
                      const struct step_limits *limits, struct err *err) MUST_USE;

/* An answer outside of it. result: of a step that ran (status OK), else empty. */
enum status rank_loop_answer(const struct options *o, uint32_t epoch, uint64_t seq,
                             const struct step_result *result, enum status status,
                             const struct err *text, struct err *err) MUST_USE;
/* Where there is no shared board, what it would say goes before an answer. */
enum status rank_loop_report(const struct options *o, const struct board_rank *board,
                             struct err *err) MUST_USE;

#endif
