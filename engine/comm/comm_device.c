/* The collectives between devices live in the CUDA module. */
#include "engine/comm/comm.h"

#include "kernels/module.h"

enum status comm_device_open(struct comm *bootstrap, struct backend *b, size_t arena_bytes,
                             uint32_t how, struct comm_stats *stats, struct comm **out,
                             struct err *err)
{
    const struct module *module = NULL;
    enum status st = module_find(&module, err);
    return st != OK ? st : module->comm_open(bootstrap, b, arena_bytes, how, stats, out, err);
}
