/* Module: the CUDA and NCCL part of the program, a plugin (config/plugin.h). */
#ifndef TESSERA_KERNELS_MODULE_H
#define TESSERA_KERNELS_MODULE_H

#include "config/plugin.h"
#include "kernels/backend.h"

struct comm;
struct comm_stats;

/* What the driver and the libraries say of this machine, for `tessera doctor`. */
#define MODULE_DEVICES_MAX 16
struct module_report {
    int32_t driver, runtime; /* CUDA versions, 1000 * major + 10 * minor */
    int32_t nccl;            /* 10000 * major + 100 * minor + patch */
    int32_t devices;         /* of which the first MODULE_DEVICES_MAX are described */
    struct module_device {
        char name[64];
        int32_t major, minor; /* compute capability */
        size_t total, free;
        uint32_t peers; /* bit d: reaches the memory of device d */
    } device[MODULE_DEVICES_MAX];
};

struct module {
    struct plugin head;
    /* As backend_table and backend_open; name is "cuda" or "cuda-deterministic", and may end in
     * ":N" for open. */
    const struct backend_ops *(*find)(const char *name);
    enum status (*open)(const char *name, int32_t threads, struct backend **out, struct err *err);
    /* As comm_device_open in engine/comm/comm.h, of two ranks and more. */
    enum status (*comm_open)(struct comm *bootstrap, struct backend *b, size_t arena_bytes,
                             uint32_t how, struct comm_stats *stats, struct comm **out,
                             struct err *err);
    /* Versions are filled in even when a driver or a device is missing: ERR_DEVICE. */
    enum status (*report)(struct module_report *out, struct err *err);
};

#define MODULE_ENTRY "module_entry"
__attribute__((visibility("default"))) plugin_entry module_entry;

/* Opens libtessera_cuda.so, once. Main thread first. ERR_DEVICE as plugin_open. */
enum status module_find(const struct module **out, struct err *err) MUST_USE;

#endif
