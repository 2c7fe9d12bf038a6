/* Threads of one backend. One thread (the caller, worker 0) drives a pool and takes part in the
 * work; helpers spin briefly after a job, then sleep, so an idle pool uses no CPU. */
#ifndef TESSERA_KERNELS_CPU_POOL_H
#define TESSERA_KERNELS_CPU_POOL_H

#include "config/base.h"

struct pool;

/* worker: 0 .. threads - 1, for per-thread scratch. */
typedef void (*pool_fn)(void *arg, int32_t worker, int64_t begin, int64_t end);

/* threads >= 1 includes the caller; 1 creates no thread. */
enum status pool_open(int32_t threads, struct pool **out, struct err *err) MUST_USE;
void pool_close(struct pool *p);
int32_t pool_threads(const struct pool *p);

/* fn over [0, count) in chunks of `grain` items, taken by whichever thread is free. Returns when
 * all is done; what the helpers wrote is visible then. Not reentrant. */
void pool_run(struct pool *p, int64_t count, int64_t grain, pool_fn fn, void *arg);
/* The same for work that asks for no scratch: backend_parallel. */
void pool_share(struct pool *p, int64_t count, int64_t grain,
                void (*fn)(void *arg, int64_t begin, int64_t end), void *arg);

#endif
