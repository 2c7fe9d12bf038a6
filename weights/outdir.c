#include "weights/outdir.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool is_dots(const char *name)
{
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

enum status outdir_open(const char *path, struct outdir *out, struct err *err)
{
    bool created = mkdir(path, 0777) == 0;
    if (!created && errno != EEXIST)
        return base_fail_errno(err, ERR_USAGE, "%s: cannot create the output directory", path);
    DIR *dir = opendir(path);
    if (!dir) {
        enum status st =
            base_fail_errno(err, ERR_USAGE, "%s: expected a new or empty directory", path);
        if (created)
            rmdir(path);
        return st;
    }
    const struct dirent *d = readdir(dir);
    while (d && is_dots(d->d_name))
        d = readdir(dir);
    if (d) {
        enum status st = base_fail(err, ERR_USAGE,
                                   "%.300s: expected a new or empty directory, found %.100s in it",
                                   path, d->d_name);
        closedir(dir);
        return st;
    }
    *out = (struct outdir){path, created, dir};
    return OK;
}

enum status outdir_member(const struct outdir *d, const char *name, char out[PATH_MAX],
                          struct err *err)
{
    int n = snprintf(out, PATH_MAX, "%s/%s", d->path, name);
    if (n < 0 || n >= PATH_MAX)
        return base_fail(err, ERR_USAGE, "%.300s...: path too long", d->path);
    return OK;
}

static enum status write_all(int fd, const char *path, const char *bytes, size_t n, struct err *err)
{
    while (n > 0) {
        ssize_t w = write(fd, bytes, n);
        if (w < 0 && errno == EINTR)
            continue;
        if (w < 0)
            return base_fail_errno(err, ERR_IO, "%s: writing", path);
        bytes += w;
        n -= (size_t)w;
    }
    return OK;
}

static enum status create(const struct outdir *d, const char *name, char path[PATH_MAX], int *fd,
                          struct err *err)
{
    enum status st = outdir_member(d, name, path, err);
    if (st != OK)
        return st;
    *fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    return *fd >= 0 ? OK : base_fail_errno(err, ERR_IO, "%s", path);
}

enum status outdir_put(const struct outdir *d, const char *name, const void *bytes, size_t n,
                       struct err *err)
{
    char path[PATH_MAX];
    int fd;
    enum status st = create(d, name, path, &fd, err);
    if (st != OK)
        return st;
    st = write_all(fd, path, bytes, n, err);
    if (close(fd) != 0 && st == OK)
        st = base_fail_errno(err, ERR_IO, "%s", path);
    return st;
}

enum status outdir_copy(const struct outdir *d, const char *name, const char *from, struct err *err)
{
    enum status st = OK;
    char path[PATH_MAX], chunk[1 << 16];
    int in = -1, out = -1;
    in = open(from, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (in < 0)
        return base_fail_errno(err, ERR_IO, "%s", from);
    TRY(create(d, name, path, &out, err));
    for (;;) {
        ssize_t r = read(in, chunk, sizeof chunk);
        if (r < 0 && errno == EINTR)
            continue;
        if (r < 0) {
            st = base_fail_errno(err, ERR_IO, "%s: reading", from);
            goto out;
        }
        if (r == 0)
            break;
        TRY(write_all(out, path, chunk, (size_t)r, err));
    }
out:
    close(in);
    if (out >= 0 && close(out) != 0 && st == OK)
        st = base_fail_errno(err, ERR_IO, "%s", path);
    return st;
}

void outdir_close(struct outdir *d, bool keep)
{
    rewinddir(d->dir);
    for (const struct dirent *e = keep ? NULL : readdir(d->dir); e; e = readdir(d->dir)) {
        if (!is_dots(e->d_name))
            unlinkat(dirfd(d->dir), e->d_name, 0); /* we make files only: others stay */
    }
    closedir(d->dir);
    if (!keep && d->created)
        rmdir(d->path);
}
