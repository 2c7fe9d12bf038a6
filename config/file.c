#include "config/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SHOWN(f) (f)->what ? (f)->what : "", (f)->path

/* Is it what was asked for? */
static enum status check(const struct file_spec *f, const struct stat *s, struct err *err)
{
    if (S_ISDIR(s->st_mode))
        return base_fail(err, f->failure, "%s%.300s: is a directory", SHOWN(f));
    if (!S_ISREG(s->st_mode) && !f->pipes)
        return base_fail(err, f->failure, "%s%.300s: not a regular file", SHOWN(f));
    if (s->st_mode & f->forbidden)
        return base_fail(err, f->failure,
                         "%s%.300s has mode %04o and others can use it: chmod 600 it", SHOWN(f),
                         (unsigned)s->st_mode & 07777);
    if (S_ISREG(s->st_mode) && (uint64_t)s->st_size > f->bytes_max)
        return base_fail(err, f->failure, "%s%.300s: %lld bytes, at most %zu are read", SHOWN(f),
                         (long long)s->st_size, f->bytes_max);
    return OK;
}

/* Up to cap bytes, fewer only at the end of the file; -1 with errno. */
static ssize_t read_up_to(int fd, char *bytes, size_t cap)
{
    size_t n = 0;
    while (n < cap) {
        ssize_t r = read(fd, bytes + n, cap - n);
        if (r < 0 && errno == EINTR)
            continue;
        if (r < 0)
            return -1;
        if (r == 0)
            break;
        n += (size_t)r;
    }
    return (ssize_t)n;
}

bool file_is_lfs_pointer(const char *bytes, size_t n)
{
    static const char first[] = FILE_LFS_POINTER;
    return n >= sizeof first - 1 && memcmp(bytes, first, sizeof first - 1) == 0;
}

static enum status read_bytes(const struct file_spec *f, int fd, char **out, size_t *n,
                              struct err *err)
{
    struct stat s;
    if (fstat(fd, &s) != 0)
        return base_fail_errno(err, f->failure, "%s%.300s", SHOWN(f));
    enum status st = check(f, &s, err);
    if (st != OK)
        return st;
    const bool regular = S_ISREG(s.st_mode);
    const size_t cap = regular ? (size_t)s.st_size : f->bytes_max + 1;
    char *bytes = malloc(cap + 1);
    if (!bytes)
        return base_fail(err, ERR_NOMEM, "%s%.300s: no memory for %zu bytes", SHOWN(f), cap);
    const ssize_t got = read_up_to(fd, bytes, cap);
    if (got < 0)
        st = base_fail_errno(err, f->failure, "%s%.300s", SHOWN(f));
    else if (regular && (size_t)got < cap)
        st =
            base_fail(err, f->failure, "%s%.300s: ends after %zd of %zu bytes", SHOWN(f), got, cap);
    else if ((size_t)got > f->bytes_max)
        st = base_fail(err, f->failure, "%s%.300s: more than %zu bytes", SHOWN(f), f->bytes_max);
    else if (f->failure == ERR_MODEL && file_is_lfs_pointer(bytes, (size_t)got))
        st = base_fail(err, f->failure, "%s%.300s " FILE_LFS_MEANING, SHOWN(f));
    if (st != OK) {
        free(bytes);
        return st;
    }
    bytes[got] = '\0';
    *out = bytes;
    *n = (size_t)got;
    return OK;
}

enum status file_read(const struct file_spec *f, char **out, size_t *n, struct err *err)
{
    const int fd = open(f->path, O_RDONLY | O_CLOEXEC | (f->pipes ? 0 : O_NONBLOCK));
    if (fd < 0 && errno == ENOENT && f->optional) {
        *out = NULL;
        *n = 0;
        return OK;
    }
    if (fd < 0)
        return base_fail_errno(err, f->failure, "%s%.300s", SHOWN(f));
    enum status st = read_bytes(f, fd, out, n, err);
    close(fd);
    return st;
}
