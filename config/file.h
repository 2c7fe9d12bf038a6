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

/* What a clone without Git LFS has in the place of a large file: its first line, the test for it,
 * and what is said of it behind its name. file_read refuses one where failure is ERR_MODEL. */
#define FILE_LFS_POINTER "version https://git-lfs.github.com/spec/v1"
#define FILE_LFS_MEANING "is a Git LFS pointer, not the file itself: git lfs pull fetches it"
bool file_is_lfs_pointer(const char *bytes, size_t n);

#endif
