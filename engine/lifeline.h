/* Lifeline: a thread of a rank that the front end did not start and so cannot kill. While the rank
 * loads, when it neither reads nor writes its link, the thread reports how far it is. When the
 * front end is gone it ends the process: at once while loading, else after LIFELINE_LEAVE_S, in
 * which a rank that is well leaves by itself. */
#ifndef TESSERA_ENGINE_LIFELINE_H
#define TESSERA_ENGINE_LIFELINE_H

#include "engine/board.h"

/* For messages on their way, a step that runs and the end of MPI, on a machine that is busy. */
enum { LIFELINE_LEAVE_S = 15 };

struct lifeline;

/* Borrows both for the rest of the process, and reports through `link` until lifeline_loaded. */
enum status lifeline_open(int link, const struct board_rank *board, struct lifeline **out,
                          struct err *err) MUST_USE;
/* The rank has loaded: from here on the link is the caller's alone. NULL is fine. */
void lifeline_loaded(struct lifeline *l);
/* Waits until the other end of a link is closed, for up to so many seconds. */
bool lifeline_closed(int link, double seconds);

#endif
