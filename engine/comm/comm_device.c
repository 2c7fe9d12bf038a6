/* The collectives between devices live in the CUDA module; a device alone needs none of them. */
#include "engine/comm/comm.h"

#include "kernels/module.h"

enum status comm_device_open(struct comm *bootstrap, struct backend *b, size_t arena_bytes,
                             uint32_t how, struct comm_stats *stats, struct comm **out,
                             struct err *err)
{
    const struct module *module = NULL;
    if (bootstrap->ranks == 1)
        return comm_alone_open(b, arena_bytes, stats, out, err);
    enum status st = module_find(&module, err);
    return st != OK ? st : module->comm_open(bootstrap, b, arena_bytes, how, stats, out, err);
}
