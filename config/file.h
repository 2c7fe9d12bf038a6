/* Small files whole: settings, plans, keys, JSON of a model. Checkpoints are read in pieces
 * elsewhere. */
#ifndef TESSERA_CONFIG_FILE_H
#define TESSERA_CONFIG_FILE_H

#include "config/base.h"

#include <sys/stat.h>

struct file_spec {
    const char *path;
    const char *what;    /* said before the path in messages, as "key file "; NULL: nothing */
    size_t bytes_max;    /* a larger file is refused, not cut */
    enum status failure; /* what every failure but that of memory is */
    mode_t forbidden;    /* permissions that a secret may not have */
    bool pipes;          /* the user may name a pipe, which is waited for; else regular files only:
                          * a FIFO would block for ever, a device never end */
    bool optional;       /* OK with *out = NULL where there is no such file */
};

/* All bytes, and a NUL behind the *n of them; the caller frees *out. Safe from any thread. */
enum status file_read(const struct file_spec *f, char **out, size_t *n, struct err *err) MUST_USE;

#endif
