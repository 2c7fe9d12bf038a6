/* Module: the CUDA and NCCL part of the program, a plugin (config/plugin.h). */
#ifndef TESSERA_KERNELS_MODULE_H
#define TESSERA_KERNELS_MODULE_H

#include "config/plugin.h"
#include "kernels/backend.h"

struct comm;
struct comm_stats;

struct module {
    struct plugin head;
    const struct backend_ops *ops;
    /* As backend_open; name is "cuda" or "cuda:N". */
    enum status (*open)(const char *name, int32_t threads, struct backend **out, struct err *err);
    /* As comm_device_open in engine/comm/comm.h. */
    enum status (*comm_open)(struct comm *bootstrap, struct backend *b, size_t arena_bytes,
                             bool shared_device, struct comm_stats *stats, struct comm **out,
                             struct err *err);
};

#define MODULE_ENTRY "module_entry"
__attribute__((visibility("default"))) plugin_entry module_entry;

/* Opens libtessera_cuda.so, once. Main thread first. ERR_DEVICE as plugin_open. */
enum status module_find(const struct module **out, struct err *err) MUST_USE;

#endif
