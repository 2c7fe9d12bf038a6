#include "kernels/module.h"

enum status module_find(const struct module **out, struct err *err)
{
    static const struct plugin_want want = {
        .file = "libtessera_cuda.so",
        .entry = MODULE_ENTRY,
        .option = "--device cuda",
        .hint = "build with -DTESSERA_CUDA=ON where the CUDA toolkit and NCCL are installed",
        .bytes = sizeof(struct module),
    };
    static const struct plugin *loaded; /* CUDA cannot be unloaded cleanly: it stays */
    enum status st = loaded != NULL ? OK : plugin_open(&want, &loaded, err);
    if (st == OK)
        *out = (const struct module *)(const void *)loaded;
    return st;
}
