/* Symmetric memory of NCCL (2.27 and newer): buffers that peers on one host read and write in
 * place, so that a small all-reduce is one exchange instead of a walk around a ring. Opened by all
 * ranks of a communicator together, tested and measured before it is used; all use it or none does.
 * One thread (the rank's); errors are those of the exchange between the ranks, which end the
 * opening. */
#ifndef TESSERA_ENGINE_COMM_COMM_NCCL_WINDOW_H
#define TESSERA_ENGINE_COMM_COMM_NCCL_WINDOW_H

#include "engine/comm/comm.h"

struct comm_window {
    void *memory; /* zeroed, 4096-byte aligned; NULL: there is no window */
    void *handle; /* ncclWindow_t */
};

/* Collective over `bootstrap`, whose ranks are those of `nccl` (a ncclComm_t). One log line says
 * what came of it. Everything is borrowed. */
enum status comm_window_open(struct comm *bootstrap, void *nccl, struct backend *b, size_t bytes,
                             struct comm_window *out, struct err *err) MUST_USE;
/* nccl: NULL when it was aborted. Nothing that uses the memory is under way. */
void comm_window_close(struct comm_window *w, void *nccl);

#endif
