/* DESIGN: two places and no search path: what the program opens is what it was built or installed
 * with. The struct is read only as far as its first two fields until both are the expected ones. */
#include "kernels/module.h"

#include <dlfcn.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define FILE_NAME "libtessera_cuda.so"

/* The first of the two places that has the file, else the second. */
static void locate(char path[PATH_MAX])
{
    char program[PATH_MAX - sizeof "/" FILE_NAME];
    const ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    if (n > 0) {
        program[n] = '\0';
        snprintf(path, PATH_MAX, "%s/" FILE_NAME, dirname(program));
        if (access(path, F_OK) == 0)
            return;
    }
    snprintf(path, PATH_MAX, "%s/tessera/" FILE_NAME, TESSERA_LIBRARY_FOLDER);
}

static enum status check(const char *path, const struct module *m, struct err *err)
{
    if (m == NULL || m->bytes != sizeof *m || strcmp(m->build, TESSERA_BUILD) != 0)
        return base_fail(err, ERR_DEVICE,
                         "--device cuda: %s is of build %.60s, the program of " TESSERA_BUILD
                         ": build or install both together",
                         path, m != NULL && m->bytes == sizeof *m ? m->build : "unknown");
    return OK;
}

static enum status load(const struct module **out, struct err *err)
{
    char path[PATH_MAX];
    locate(path);
    if (access(path, F_OK) != 0)
        return base_fail(err, ERR_DEVICE,
                         "--device cuda: no " FILE_NAME " beside the program or at %.200s: build "
                         "with -DTESSERA_CUDA=ON where the CUDA toolkit and NCCL are installed",
                         path);
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL)
        return base_fail(err, ERR_DEVICE, "--device cuda: %s", dlerror());
    void *symbol = dlsym(handle, MODULE_ENTRY);
    const struct module *(*entry)(void) = NULL;
    memcpy(&entry, &symbol, sizeof entry); /* ISO C has no cast from object to function */
    const struct module *m = entry != NULL ? entry() : NULL;
    enum status st = check(path, m, err);
    if (st == OK)
        *out = m;
    else
        dlclose(handle);
    return st;
}

enum status module_find(const struct module **out, struct err *err)
{
    static const struct module *loaded; /* CUDA cannot be unloaded cleanly: it stays */
    enum status st = loaded != NULL ? OK : load(&loaded, err);
    if (st == OK)
        *out = loaded;
    return st;
}
