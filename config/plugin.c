/* DESIGN: two places and no search path: what the program opens is what it was built or installed
 * with. The struct is read only as far as its first two fields until both are the expected ones. */
#include "config/plugin.h"

#include <dlfcn.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The first of the two places that has the file, else the second. */
static void locate(const char *file, char path[PATH_MAX])
{
    char program[PATH_MAX - 64];
    const ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    if (n > 0) {
        program[n] = '\0';
        (void)snprintf(path, PATH_MAX, "%s/%.60s", dirname(program), file);
        if (access(path, F_OK) == 0)
            return;
    }
    (void)snprintf(path, PATH_MAX, "%s/tessera/%.60s", TESSERA_LIBRARY_FOLDER, file);
}

static enum status check(const struct plugin_want *want, const char *path, const struct plugin *p,
                         struct err *err)
{
    const bool known = p != NULL && p->bytes == want->bytes;
    if (known && strcmp(p->build, TESSERA_BUILD) == 0)
        return OK;
    return base_fail(err, ERR_DEVICE,
                     "%s: %.200s is of build %.60s, the program of " TESSERA_BUILD
                     ": build or install both together",
                     want->option, path, known ? p->build : "unknown");
}

enum status plugin_open(const struct plugin_want *want, const struct plugin **out, struct err *err)
{
    char path[PATH_MAX];
    locate(want->file, path);
    if (access(path, F_OK) != 0)
        return base_fail(err, ERR_DEVICE, "%s: no %s beside the program or at %.200s: %s",
                         want->option, want->file, path, want->hint);
    void *handle = dlopen(path, RTLD_NOW | (want->global ? RTLD_GLOBAL : RTLD_LOCAL));
    if (handle == NULL)
        return base_fail(err, ERR_DEVICE, "%s: %.300s", want->option, dlerror());
    void *symbol = dlsym(handle, want->entry);
    plugin_entry *entry = NULL;
    memcpy(&entry, &symbol, sizeof entry); /* ISO C has no cast from object to function */
    const struct plugin *p = entry != NULL ? entry() : NULL;
    enum status st = check(want, path, p, err);
    if (st == OK)
        *out = p;
    else
        dlclose(handle);
    return st;
}
