/* Module: the CUDA and NCCL part of the program, a shared object opened at run time, so that one
 * binary installs and serves on machines without them. Program and module agree by the build id, a
 * digest of the contract headers: a module of another build is refused, never called. */
#ifndef TESSERA_KERNELS_MODULE_H
#define TESSERA_KERNELS_MODULE_H

#include "kernels/backend.h"

struct comm;
struct comm_stats;

struct module {
    uint32_t bytes;    /* sizeof(struct module) of the module's build */
    const char *build; /* TESSERA_BUILD of the module's build */
    const struct backend_ops *ops;
    /* As backend_open; name is "cuda" or "cuda:N". */
    enum status (*open)(const char *name, int32_t threads, struct backend **out, struct err *err);
    /* As comm_device_open in engine/comm/comm.h. */
    enum status (*comm_open)(struct comm *bootstrap, struct backend *b, size_t arena_bytes,
                             bool shared_device, struct comm_stats *stats, struct comm **out,
                             struct err *err);
};

#define MODULE_ENTRY "module_entry" /* const struct module *module_entry(void) */

/* Opens libtessera_cuda.so beside the program, then in the library folder; once, it stays open.
 * Main thread first. ERR_DEVICE names what was looked for and what is wrong with it. */
enum status module_find(const struct module **out, struct err *err) MUST_USE;

#endif
