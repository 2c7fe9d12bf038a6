#include "weights/outdir.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static volatile sig_atomic_t is_stopped;

void outdir_stop(void)
{
    is_stopped = 1;
}

void outdir_advance(struct outdir_progress *p, size_t more)
{
    const double now = base_now();
    p->done += more;
    if (now - p->shown < 1 || p->done >= p->total)
        return;
    p->shown = now;
    base_log(LOG_INFO, "%s: %.0f %% written", p->path, 100 * (double)p->done / (double)p->total);
}

static bool is_dots(const char *name)
{
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

/* Makes the name `path` durable, in the directory that holds it. */
static enum status sync_name(const char *path, struct err *err)
{
    enum status st = OK;
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s", path);
    const int fd = open(dirname(folder), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || (fsync(fd) != 0 && errno != EINVAL)) /* some file systems cannot, and need not */
        st = base_fail_errno(err, ERR_OUTPUT, "%s: its directory", path);
    if (fd >= 0)
        close(fd);
    return st;
}

/* A name in it; NULL: it is empty. */
static const char *any_name(DIR *dir)
{
    const struct dirent *d = readdir(dir);
    while (d && is_dots(d->d_name))
        d = readdir(dir);
    return d ? d->d_name : NULL;
}

enum status outdir_open(const char *path, struct outdir *out, struct err *err)
{
    enum status st = OK;
    const bool created = mkdir(path, 0777) == 0;
    if (!created && errno != EEXIST)
        return base_fail_errno(err, ERR_USAGE, "%s: cannot create the output directory", path);
    DIR *dir = opendir(path);
    const bool locked = dir && flock(dirfd(dir), LOCK_EX | LOCK_NB) == 0;
    const bool taken = dir && !locked && errno == EWOULDBLOCK; /* else it cannot be locked */
    const char *found = dir && !taken ? any_name(dir) : NULL;
    if (!dir)
        st = base_fail_errno(err, ERR_USAGE, "%s: expected a new or empty directory", path);
    else if (taken)
        st = base_fail(err, ERR_USAGE, "%s: another program writes to it", path);
    else if (found)
        st =
            base_fail(err, ERR_USAGE,
                      "%.300s: expected a new or empty directory, found %.100s in it", path, found);
    else if (created)
        st = sync_name(path, err);
    if (st == OK) {
        *out = (struct outdir){.path = path, .created = created, .dir = dir};
        return OK;
    }
    if (dir)
        closedir(dir);
    if (created && !taken)
        rmdir(path);
    return st;
}

enum status outdir_member(const struct outdir *d, const char *name, char out[PATH_MAX],
                          struct err *err)
{
    int n = snprintf(out, PATH_MAX, "%s/%s", d->path, name);
    if (n < 0 || n >= PATH_MAX)
        return base_fail(err, ERR_USAGE, "%.300s...: path too long", d->path);
    return OK;
}

enum status outdir_make_folder(struct outdir *d, const char *name, struct err *err)
{
    char path[PATH_MAX];
    const size_t n = strlen(name);
    CHECK(!d->folder[0] && n < sizeof d->folder && !strchr(name, '/'));
    enum status st = outdir_member(d, name, path, err);
    if (st != OK)
        return st;
    if (mkdir(path, 0777) != 0)
        return base_fail_errno(err, ERR_OUTPUT, "%s", path);
    memcpy(d->folder, name, n + 1);
    return sync_name(path, err);
}

enum status outdir_write(int fd, const char *path, const void *bytes, size_t n, struct err *err)
{
    const char *from = bytes;
    while (n > 0) {
        if (is_stopped)
            return base_fail(err, ERR_CANCELLED, "%s: stopped", path);
        ssize_t w = write(fd, from, n);
        if (w < 0 && errno == EINTR)
            continue;
        if (w < 0)
            return base_fail_errno(err, ERR_OUTPUT, "%s: writing", path);
        from += w;
        n -= (size_t)w;
    }
    return OK;
}

enum status outdir_publish(int fd, const char *partial, const char *path, struct err *err)
{
    if (is_stopped) { /* rather than wait for the disk */
        close(fd);
        return base_fail(err, ERR_CANCELLED, "%s: stopped", path);
    }
    const bool written = fsync(fd) == 0;
    const int saved = errno;
    const bool closed = close(fd) == 0;
    if (!written)
        errno = saved;
    if (!written || !closed || rename(partial, path) != 0)
        return base_fail_errno(err, ERR_OUTPUT, "%s", path);
    return sync_name(path, err);
}

/* A member while it is written. */
struct growing {
    char path[PATH_MAX], partial[PATH_MAX + 8];
    int fd;
};

static enum status begin(const struct outdir *d, const char *name, struct growing *g,
                         struct err *err)
{
    enum status st = outdir_member(d, name, g->path, err);
    if (st != OK)
        return st;
    snprintf(g->partial, sizeof g->partial, "%s.partial", g->path);
    g->fd = open(g->partial, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    return g->fd >= 0 ? OK : base_fail_errno(err, ERR_OUTPUT, "%s", g->partial);
}

/* What is not published is removed by outdir_close. */
static enum status end(const struct growing *g, enum status written, struct err *err)
{
    if (written == OK)
        return outdir_publish(g->fd, g->partial, g->path, err);
    close(g->fd);
    return written;
}

enum status outdir_put(const struct outdir *d, const char *name, const void *bytes, size_t n,
                       struct err *err)
{
    struct growing g;
    enum status st = begin(d, name, &g, err);
    return st == OK ? end(&g, outdir_write(g.fd, g.partial, bytes, n, err), err) : st;
}

static enum status copy_bytes(int in, const char *from, const struct growing *g, struct err *err)
{
    char chunk[1 << 16];
    enum status st = OK;
    while (st == OK) {
        const ssize_t r = read(in, chunk, sizeof chunk);
        if (r < 0 && errno == EINTR)
            continue;
        if (r < 0)
            return base_fail_errno(err, ERR_IO, "%s: reading", from);
        if (r == 0)
            break;
        st = outdir_write(g->fd, g->partial, chunk, (size_t)r, err);
    }
    return st;
}

enum status outdir_copy(const struct outdir *d, const char *name, const char *from, struct err *err)
{
    struct growing g;
    const int in = open(from, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (in < 0)
        return base_fail_errno(err, ERR_IO, "%s", from);
    enum status st = begin(d, name, &g, err);
    if (st == OK)
        st = end(&g, copy_bytes(in, from, &g, err), err);
    close(in);
    return st;
}

/* We make files only, and one folder of them: others stay. */
static void remove_files(DIR *dir)
{
    rewinddir(dir);
    for (const struct dirent *e = readdir(dir); e; e = readdir(dir))
        if (!is_dots(e->d_name))
            unlinkat(dirfd(dir), e->d_name, 0);
}

static void remove_folder(const struct outdir *d)
{
    const int fd = openat(dirfd(d->dir), d->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    if (dir)
        remove_files(dir);
    if (dir)
        closedir(dir);
    else if (fd >= 0)
        close(fd);
    unlinkat(dirfd(d->dir), d->folder, AT_REMOVEDIR);
}

void outdir_close(struct outdir *d, bool keep)
{
    if (!keep)
        remove_files(d->dir);
    if (!keep && d->folder[0])
        remove_folder(d);
    closedir(d->dir);
    if (!keep && d->created)
        rmdir(d->path);
}
