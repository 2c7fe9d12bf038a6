/* Group: the rank processes of one server. Spawned from the same binary, given memory files
 * (weights, KV cache, communicator, board) and a link each, watched by pidfd. A group is never
 * repaired: when a rank is lost all are killed. Only the main thread calls (the parent-death signal
 * of a child belongs to the thread that started it). */
#ifndef TESSERA_ENGINE_GROUP_H
#define TESSERA_ENGINE_GROUP_H

#include "engine/board.h"
#include "engine/footprint.h"
#include "engine/link.h"

/* Descriptors a rank finds at start. With --comm mpi there is no file of a communicator, and a rank
 * that the front end did not start finds its link only. */
enum group_fd { GROUP_FD_LINK = 3, GROUP_FD_COMM, GROUP_FD_WEIGHTS, GROUP_FD_KV, GROUP_FD_BOARD };

struct group;

/* Makes the memory files and starts the ranks (--comm mpi: starts rank 0 and waits for the others
 * to come; tick may end that wait); returns before they have loaded. Nothing is named in /dev/shm.
 * `o` and `f` are passed on as arguments. */
enum status group_open(const struct options *o, const struct footprint *f, link_patience *tick,
                       void *ctx, struct group **out, struct err *err) MUST_USE;
/* Starts new ranks in place of lost ones, with the next epoch, new links and a new board. With
 * keep_weights they find their weights in memory, if the lost ranks had loaded them and they are
 * not on a device. After a failure it can be tried again. Not with --comm mpi. */
enum status group_reopen(const struct options *o, const struct footprint *f, bool keep_weights,
                         struct group *g, struct err *err) MUST_USE;
/* The ranks need not load: the weights were kept. */
bool group_has_weights(const struct group *g);
/* Ends all ranks and frees everything. Those here are killed and reaped; with --comm mpi, where a
 * rank that has met the others must leave as they do, after it had LIFELINE_LEAVE_S to do so. */
void group_close(struct group *g);

struct link_set *group_links(struct group *g);
const struct board *group_board(const struct group *g);
uint32_t group_epoch(const struct group *g);
/* Has an event when the rank has ended; then group_check says how. */
struct pollfd;
void group_poll(const struct group *g, int32_t rank, struct pollfd *out);

/* Waits for every rank's first answer (weights loaded, buffers reserved). `tick` is called about
 * every 50 ms and may end the wait (a signal came). ERR_COMM or the rank's own status and text. */
enum status group_wait_ready(struct group *g, link_patience *tick, void *ctx,
                             struct err *err) MUST_USE;
/* ERR_COMM with "rank 1 (pid 17) was killed by signal 9" when a rank has ended, or "rank 1 is gone"
 * where only its link shows it; OK otherwise. Waits up to wait_ms for one to end: a dying rank
 * closes its link before it can be reaped. */
enum status group_check(struct group *g, int wait_ms, struct err *err) MUST_USE;
/* SIGKILL to all; they are reaped by group_close. Safe from any thread. */
void group_kill(struct group *g);

#endif
