/* What the emulated device was asked to do, for tests: of all threads and devices, so far. The
 * module exports it as `emulated_calls`. */
#ifndef TESSERA_TESTS_EMULATE_CALLS_H
#define TESSERA_TESTS_EMULATE_CALLS_H

#include <stdint.h>

struct emulated_calls {
    uint64_t launches, graphs, copies, records, waits, allocations;
    uint64_t contexts;    /* devices that this process has one on, now */
    uint64_t collectives; /* of NCCL, that this thread has asked for */
    uint64_t narrow;      /* products of cuBLAS whose results have 16 bits */
    uint64_t converted;   /* launches that do nothing but round rows for a product */
    uint64_t meetings;    /* of blocks with the others of their cluster */
};

typedef void emulated_calls_fn(struct emulated_calls *out);

#ifndef __cplusplus
#include <dlfcn.h>
#include <string.h>

/* Of the module that `inside` is a part of, which stays open; NULL: its devices are real. */
static inline emulated_calls_fn *emulated_calls_of(const void *inside)
{
    Dl_info where;
    emulated_calls_fn *found = NULL;
    void *handle = dladdr(inside, &where) ? dlopen(where.dli_fname, RTLD_NOW | RTLD_NOLOAD) : NULL;
    if (!handle)
        return NULL;
    void *symbol = dlsym(handle, "emulated_calls");
    memcpy(&found, &symbol, sizeof found);
    dlclose(handle);
    return found;
}
#endif

#endif
