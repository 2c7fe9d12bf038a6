/* Plugin: a part of the program that is a shared object opened at run time, so that one binary
 * installs and runs where the libraries behind it are missing. Program and plugin agree by the
 * build id, a digest of the contract headers: a plugin of another build is refused, never called.
 */
#ifndef TESSERA_CONFIG_PLUGIN_H
#define TESSERA_CONFIG_PLUGIN_H

#include "config/base.h"

/* First member of what a plugin's entry returns. */
struct plugin {
    uint32_t bytes;    /* of the whole struct, in the plugin's build */
    const char *build; /* TESSERA_BUILD of the plugin's build */
};

typedef const struct plugin *plugin_entry(void);

/* What the program expects. */
struct plugin_want {
    const char *file;   /* "libtessera_mpi.so" */
    const char *entry;  /* name of its plugin_entry */
    const char *option; /* what the user asked for: "--comm mpi" */
    const char *hint;   /* what to do where the file is missing */
    uint32_t bytes;     /* sizeof of the whole struct */
    bool global;        /* its libraries open plugins of their own, which need its symbols */
};

/* Opens the file beside the program, else in the library folder; it stays open. Main thread.
 * ERR_DEVICE says where it was looked for and what is wrong with it. */
enum status plugin_open(const struct plugin_want *want, const struct plugin **out,
                        struct err *err) MUST_USE;

#endif
