/* Symmetric memory of NCCL (2.27 and newer): buffers that peers on one host read and write in
 * place, so that a small all-reduce is one exchange instead of a walk around a ring. Opened by all
 * ranks of a communicator together, tested and measured before it is used; all use it or none does.
 */
#ifndef TESSERA_ENGINE_COMM_COMM_NCCL_WINDOW_H
#define TESSERA_ENGINE_COMM_COMM_NCCL_WINDOW_H

#include "engine/comm/comm_nccl_trial.h"

struct comm_window {
    void *memory; /* zeroed, 4096-byte aligned; NULL: there is no window */
    void *handle; /* ncclWindow_t; NULL: the memory is not registered */
    bool is_good; /* to be used */
};

/* Collective over the ranks of the trial, which are those of `nccl` (a ncclComm_t); nccl_way adds
 * up by it. One log line says what came of it. Everything is borrowed. *out is to be closed, also
 * after a failure. */
enum status comm_window_open(struct comm_trial *t, void *nccl, const struct comm_way *nccl_way,
                             size_t bytes, struct comm_window *out, struct err *err) MUST_USE;
/* nccl: NULL when it was aborted and that has ended. Nothing that uses the memory is under way. */
void comm_window_close(struct comm_window *w, void *nccl);

#endif
