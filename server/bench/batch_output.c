/* DESIGN: a line is one write behind the end of the file, so what a killed run leaves is whole
 * lines and at most one half. Lines without an answer would come again: a file that has some is
 * written anew beside itself and renamed, so that no answer is lost whenever this ends. */
#include "server/bench/batch_output.h"

#include "server/bench/batch_line.h"
#include "server/bench/lines.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum status batch_output_add(const struct batch_output *o, const char *bytes, size_t n,
                             struct err *err)
{
    while (n > 0) {
        const ssize_t done = write(o->fd, bytes, n);
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0)
            return base_fail_errno(err, ERR_OUTPUT, "the output cannot be written");
        bytes += done;
        n -= (size_t)done;
    }
    return OK;
}

static enum status foreign(const char *path, int64_t line, struct err *err)
{
    return base_fail(err, ERR_USAGE,
                     "-o %s: line %lld is no result of a batch; name a file that is not there yet, "
                     "or the one to go on with",
                     path, (long long)line);
}

/* Is this what is left of a line of ours? */
static bool is_half(const struct buf *text)
{
    const size_t most = sizeof BATCH_LINE_BEGIN - 1;
    return memcmp(text->data, BATCH_LINE_BEGIN, text->len < most ? text->len : most) == 0;
}

/* Counts a whole line, and copies one that stays to copy->fd, unless copy is NULL. */
static enum status take(struct batch_output *o, const struct buf *text, struct batch_ids *ids,
                        const struct batch_output *copy, bool *is_result, struct err *err)
{
    enum status st = OK;
    char *id = NULL;
    size_t n = 0;
    bool answered = false;
    *is_result = batch_line_result(text->data ? text->data : "", text->len, &id, &n, &answered);
    if (answered && ids)
        TRY(batch_ids_answered(ids, id, n, err));
    if (answered && copy) {
        TRY(batch_output_add(copy, text->data, text->len, err));
        TRY(batch_output_add(copy, "\n", 1, err));
    }
    o->answered += answered;
    o->dropped += !answered;
out:
    free(id);
    return st;
}

/* Reads it from its beginning; *whole: bytes of its whole lines. */
static enum status scan(const char *path, struct batch_output *o, struct batch_ids *ids,
                        const struct batch_output *copy, int64_t *whole, struct err *err)
{
    enum status st = OK;
    enum lines_kind kind;
    bool is_result = true;
    struct lines *l = malloc(sizeof *l);
    if (!l)
        return base_fail(err, ERR_NOMEM, "no memory to read %s", path);
    lines_init(l, o->fd, -1, BATCH_LINE_RESULT_BYTES_MAX);
    o->answered = o->dropped = *whole = 0;
    if (lseek(o->fd, 0, SEEK_SET) != 0)
        TRY(base_fail_errno(err, ERR_USAGE, "-o %s", path));
    for (;;) {
        TRY(lines_next(l, &kind, err));
        if (kind == LINES_END)
            break;
        o->cut = kind == LINES_LAST;
        if (kind == LINES_WHOLE)
            TRY(take(o, &l->text, ids, copy, &is_result, err));
        if (!is_result || kind == LINES_LONG || (o->cut && !is_half(&l->text)))
            TRY(foreign(path, l->number, err));
        *whole = o->cut ? *whole : l->end;
    }
out:
    lines_free(l);
    free(l);
    return st == ERR_IO ? ERR_USAGE : st;
}

static enum status lock(int fd, const char *path, struct err *err)
{
    if (flock(fd, LOCK_EX | LOCK_NB) == 0)
        return OK;
    if (errno == EWOULDBLOCK)
        return base_fail(err, ERR_USAGE, "-o %s: another run writes to it", path);
    if (errno == ENOLCK || errno == ENOSYS || errno == EOPNOTSUPP)
        return OK; /* a file system without locks */
    return base_fail_errno(err, ERR_USAGE, "-o %s", path);
}

/* Has another run given the name to another file, before this one had the lock? */
static enum status check_named(int fd, const char *path, struct err *err)
{
    struct stat ours, named;
    if (fstat(fd, &ours) == 0 && stat(path, &named) == 0 && ours.st_ino == named.st_ino &&
        ours.st_dev == named.st_dev)
        return OK;
    return base_fail(err, ERR_USAGE, "-o %s: another run has just written it: try again", path);
}

/* A file beside it with the lines that stay takes its name. */
static enum status write_anew(const char *path, struct batch_output *o, struct err *err)
{
    enum status st = OK;
    char beside[4096];
    int64_t whole;
    struct stat sb;
    struct batch_output copy = {.fd = -1};
    if (snprintf(beside, sizeof beside, "%s.XXXXXX", path) >= (int)sizeof beside)
        return base_fail(err, ERR_USAGE, "-o %.200s...: the name is too long", path);
    copy.fd = mkostemp(beside, O_APPEND | O_CLOEXEC);
    if (copy.fd < 0)
        return base_fail_errno(err, ERR_USAGE, "-o %s: cannot be written anew: %s", path, beside);
    if (fstat(o->fd, &sb) != 0 || fchmod(copy.fd, sb.st_mode & 0777) != 0)
        TRY(base_fail_errno(err, ERR_USAGE, "-o %s", path));
    TRY(lock(copy.fd, beside, err));
    TRY(scan(path, o, NULL, &copy, &whole, err));
    if (fsync(copy.fd) != 0 || rename(beside, path) != 0)
        TRY(base_fail_errno(err, ERR_OUTPUT, "-o %s", path));
    const int old = o->fd;
    o->fd = copy.fd;
    copy.fd = old;
out:
    if (copy.fd >= 0)
        close(copy.fd);
    if (st != OK)
        unlink(beside);
    return st;
}

/* What an earlier run has left in it. */
static enum status go_on(const char *path, struct batch_ids *ids, struct batch_output *o,
                         struct err *err)
{
    enum status st = OK;
    int64_t whole;
    TRY(lock(o->fd, path, err));
    TRY(check_named(o->fd, path, err));
    TRY(scan(path, o, ids, NULL, &whole, err));
    const bool cut = o->cut;
    if (o->dropped > 0)
        TRY(write_anew(path, o, err));
    else if (cut && ftruncate(o->fd, whole) != 0)
        TRY(base_fail_errno(err, ERR_OUTPUT, "-o %s", path));
out:
    return st;
}

enum status batch_output_open(const char *path, struct batch_ids *ids, struct batch_output *out,
                              struct err *err)
{
    enum status st = OK;
    struct stat sb;
    struct batch_output o = {.fd = -1};
    char real[PATH_MAX]; /* a link stays one when its file is written anew */
    if (strcmp(path, "-") != 0 && stat(path, &sb) == 0 && S_ISREG(sb.st_mode) &&
        realpath(path, real))
        path = real;
    if (strcmp(path, "-") == 0)
        o.fd = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
    else if (stat(path, &sb) == 0 && !S_ISREG(sb.st_mode))
        o.fd = open(path, O_WRONLY | O_CLOEXEC); /* a pipe, a terminal */
    else
        o.fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (o.fd < 0)
        TRY(base_fail_errno(err, ERR_USAGE, "-o %s", path));
    if (strcmp(path, "-") != 0 && fstat(o.fd, &sb) == 0 && S_ISREG(sb.st_mode))
        TRY(go_on(path, ids, &o, err));
    *out = o;
    return OK;
out:
    if (o.fd >= 0)
        close(o.fd);
    return st;
}

enum status batch_output_close(struct batch_output *o, struct err *err)
{
    const int fd = o->fd;
    o->fd = -1;
    if (fd >= 0 && close(fd) != 0)
        return base_fail_errno(err, ERR_OUTPUT, "the output cannot be written");
    return OK;
}
