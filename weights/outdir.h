/* A directory that is written as a whole: it is new or empty at the start, and what was written is
 * removed again when something fails. Files are written where they belong rather than in a
 * temporary directory, because the target may be a mount point (a container's volume), which cannot
 * be renamed over; whoever writes puts the file that makes it a model last. Each file is on the
 * disk under its name before the next begins: after a crash or a power cut, too, what looks like a
 * model is a whole one. */
#ifndef TESSERA_WEIGHTS_OUTDIR_H
#define TESSERA_WEIGHTS_OUTDIR_H

#include "config/base.h"

#include <dirent.h>
#include <limits.h>

struct outdir {
    const char *path; /* borrowed */
    bool created;     /* by us */
    DIR *dir; /* open and locked, so that cleaning up needs no memory, and nobody else does */
    char folder[64]; /* in it, made by us; "": none */
};

/* ERR_USAGE when it exists and is not an empty directory, or another program has it open so. */
enum status outdir_open(const char *path, struct outdir *out, struct err *err) MUST_USE;
/* Full path of a member. */
enum status outdir_member(const struct outdir *d, const char *name, char out[PATH_MAX],
                          struct err *err) MUST_USE;
/* One folder in it, whose members are "folder/file" in what follows. */
enum status outdir_make_folder(struct outdir *d, const char *name, struct err *err) MUST_USE;
enum status outdir_put(const struct outdir *d, const char *name, const void *bytes, size_t n,
                       struct err *err) MUST_USE;
/* Copies a file under `name`; `from` is its path. */
enum status outdir_copy(const struct outdir *d, const char *name, const char *from,
                        struct err *err) MUST_USE;
/* All n bytes to fd; path is for messages. */
enum status outdir_write(int fd, const char *path, const void *bytes, size_t n,
                         struct err *err) MUST_USE;
/* The file that grew as `partial` gets its name: its bytes reach the disk first, its name after.
 * Closes fd. On failure a partial file may be left. */
enum status outdir_publish(int fd, const char *partial, const char *path, struct err *err) MUST_USE;
/* From now on whatever is written fails with ERR_CANCELLED, which takes the usual way out. For the
 * handler of a signal. */
void outdir_stop(void);

/* What a command that writes for long tells each second. */
struct outdir_progress {
    const char *path; /* borrowed */
    double shown;     /* when it was last; at first, the start */
    uint64_t done, total;
};
void outdir_advance(struct outdir_progress *p, size_t more);

/* keep = false removes every file in it, and the directory when outdir_open created it. */
void outdir_close(struct outdir *d, bool keep);

#endif
