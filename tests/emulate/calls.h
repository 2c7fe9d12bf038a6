/* What the emulated device was asked to do, for tests: of all threads and devices, so far. The
 * module exports it as `emulated_calls`. */
#ifndef TESSERA_TESTS_EMULATE_CALLS_H
#define TESSERA_TESTS_EMULATE_CALLS_H

#include <stdint.h>

struct emulated_calls {
    uint64_t launches, graphs, copies, records, waits, allocations;
    uint64_t contexts;    /* devices that this process has one on, now */
    uint64_t collectives; /* of NCCL, that this thread has asked for */
};

typedef void emulated_calls_fn(struct emulated_calls *out);

#endif
