/* DESIGN: a file from the internet is read by rules first, bytes later. The header alone decides:
 * entries are sorted by offset and must touch from 0 to the end of the file, so no two tensors
 * overlap, none reaches outside, and a truncated file is found before any bulk read. mmap was
 * rejected: a file that shrinks while it is read must be an error, not a SIGBUS.
 * Invariant: every entry of an open file lies inside file_bytes. */
#include "weights/safetensors.h"

#include "config/buf.h"
#include "config/file.h"
#include "config/jdoc.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define LENGTH_BYTES 8
#define HEADER_MAX 100000000

/* What the rules are being applied to, for messages. */
struct context {
    const char *where, *tensor;
    struct err *err;
};

/* "FILE: tensor NAME: " is put in front; long names are cut so that the reason stays readable. */
static enum status PRINTF_LIKE(2, 3) refuse(const struct context *c, const char *fmt, ...)
{
    struct err reason;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(reason.text, sizeof reason.text, fmt, ap);
    va_end(ap);
    if (!c->tensor)
        return base_fail(c->err, ERR_MODEL, "%.200s: %.200s", c->where, reason.text);
    return base_fail(c->err, ERR_MODEL, "%.200s: tensor %.120s: %.140s", c->where, c->tensor,
                     reason.text);
}

static bool is(const struct jdoc *v, enum jdoc_type type)
{
    return v && jdoc_type(v) == type;
}

static const char *type_of(const struct jdoc *v)
{
    return v ? jdoc_type_name(jdoc_type(v)) : "nothing";
}

static bool has_control(const char *text)
{
    for (; *text; text++) {
        if ((unsigned char)*text < 0x20 || *text == 0x7f)
            return true;
    }
    return false;
}

static enum status parse_dtype(const struct context *c, const struct jdoc *v,
                               struct safetensors_entry *e)
{
    if (!is(v, JDOC_STRING))
        return refuse(c, "expected \"dtype\" to be a string, found %s", type_of(v));
    if (has_control(jdoc_string(v)) || !dtype_parse(jdoc_string(v), &e->dtype))
        return refuse(c, "unknown dtype \"%.20s\"",
                      has_control(jdoc_string(v)) ? "?" : jdoc_string(v));
    return OK;
}

/* *bytes: what the shape and the dtype need. */
static enum status parse_shape(const struct context *c, const struct jdoc *v,
                               struct safetensors_entry *e, size_t *bytes)
{
    if (!is(v, JDOC_ARRAY))
        return refuse(c, "expected \"shape\" to be an array, found %s", type_of(v));
    if (jdoc_size(v) > SAFETENSORS_DIMS_MAX)
        return refuse(c, "%zu dimensions, at most %d are read", jdoc_size(v), SAFETENSORS_DIMS_MAX);
    size_t n = dtype_size(e->dtype);
    e->ndim = (int32_t)jdoc_size(v);
    for (int32_t d = 0; d < e->ndim; d++) {
        const struct jdoc *x = jdoc_at(v, (size_t)d);
        if (!is(x, JDOC_INT) || jdoc_int(x) < 0)
            return refuse(c, "expected shape[%d] to be an integer >= 0, found %s", d,
                          is(x, JDOC_INT) ? "a negative one" : type_of(x));
        e->shape[d] = jdoc_int(x);
        if (!base_mul(n, (size_t)e->shape[d], &n) || n > INT64_MAX)
            return refuse(c, "the size of its shape overflows at dimension %d (%lld)", d,
                          (long long)e->shape[d]);
    }
    *bytes = n;
    return OK;
}

/* Leaves e->offset relative to the end of the header. */
static enum status parse_offsets(const struct context *c, const struct jdoc *v, size_t bytes,
                                 struct safetensors_entry *e)
{
    if (!is(v, JDOC_ARRAY) || jdoc_size(v) != 2 || !is(jdoc_at(v, 0), JDOC_INT) ||
        !is(jdoc_at(v, 1), JDOC_INT))
        return refuse(c, "expected \"data_offsets\" to be two integers, found %s", type_of(v));
    int64_t begin = jdoc_int(jdoc_at(v, 0)), end = jdoc_int(jdoc_at(v, 1));
    if (begin < 0 || end < begin)
        return refuse(c, "expected 0 <= begin <= end in data_offsets, found [%lld, %lld]",
                      (long long)begin, (long long)end);
    if ((uint64_t)(end - begin) != bytes)
        return refuse(c, "expected %zu bytes by dtype and shape, data_offsets give %lld", bytes,
                      (long long)(end - begin));
    e->offset = (uint64_t)begin;
    e->bytes = bytes;
    return OK;
}

static enum status parse_entry(const struct context *file, const char *name, const struct jdoc *v,
                               struct safetensors_entry *e)
{
    struct context c = {file->where, name, file->err};
    size_t bytes = 0;
    if (name[0] == '\0' || has_control(name))
        return refuse(file, "a tensor's name is empty or holds control characters");
    if (!is(v, JDOC_OBJECT))
        return refuse(&c, "expected an object, found %s", type_of(v));
    enum status st = parse_dtype(&c, jdoc_get(v, "dtype"), e);
    if (st == OK)
        st = parse_shape(&c, jdoc_get(v, "shape"), e, &bytes);
    if (st == OK)
        st = parse_offsets(&c, jdoc_get(v, "data_offsets"), bytes, e);
    if (st != OK)
        return st;
    e->name = strdup(name);
    return e->name ? OK : base_fail(file->err, ERR_NOMEM, "%s: no memory", file->where);
}

/* String values only; kept as JSON text. */
static enum status parse_metadata(const struct context *c, const struct jdoc *v, size_t header,
                                  char **out)
{
    const char *key;
    const struct jdoc *value;
    struct buf text;
    size_t len;
    if (!is(v, JDOC_OBJECT))
        return refuse(c, "expected __metadata__ to be an object, found %s", type_of(v));
    buf_init(&text, 6 * header + 16); /* escaping makes at most 6 of 1 */
    buf_puts(&text, "{");
    for (void *i = jdoc_iter(v, NULL, &key, &value); i; i = jdoc_iter(v, i, &key, &value)) {
        if (!is(value, JDOC_STRING)) {
            buf_free(&text);
            return refuse(c, "expected __metadata__ to hold strings, found %s", type_of(value));
        }
        buf_puts(&text, text.len > 1 ? "," : "");
        buf_json(&text, key, strlen(key));
        buf_puts(&text, ":");
        buf_json(&text, jdoc_string(value), jdoc_string_len(value));
    }
    buf_puts(&text, "}");
    *out = buf_take(&text, &len);
    return *out ? OK : base_fail(c->err, ERR_NOMEM, "%s: no memory", c->where);
}

static int by_offset(const void *a, const void *b)
{
    const struct safetensors_entry *x = a, *y = b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    if (x->bytes != y->bytes) /* empty tensors come before the one they touch */
        return x->bytes < y->bytes ? -1 : 1;
    return strcmp(x->name, y->name);
}

/* Sorts; demands that the tensors touch, from the header's end to the file's; makes offsets
 * absolute. */
static enum status check_coverage(const struct context *file, struct safetensors_entry *entries,
                                  int32_t count, uint64_t header_bytes, uint64_t file_bytes)
{
    uint64_t at = 0, room = file_bytes - header_bytes;
    if (count > 0)
        qsort(entries, (size_t)count, sizeof *entries, by_offset);
    for (int32_t i = 0; i < count; i++) {
        struct context c = {file->where, entries[i].name, file->err};
        if (entries[i].offset != at)
            return refuse(&c, "%s: expected its bytes to begin at offset %llu, found %llu",
                          entries[i].offset < at ? "overlap" : "hole", (unsigned long long)at,
                          (unsigned long long)entries[i].offset);
        if (entries[i].bytes > room - at)
            return refuse(&c,
                          "its bytes end at offset %llu, but the file holds %llu after its header "
                          "(truncated?)",
                          (unsigned long long)(at + entries[i].bytes), (unsigned long long)room);
        at += entries[i].bytes;
        entries[i].offset += header_bytes;
    }
    if (at != room)
        return refuse(file, "expected %llu bytes after the header, found %llu",
                      (unsigned long long)at, (unsigned long long)room);
    return OK;
}

static void free_entries(struct safetensors *st)
{
    for (int32_t i = 0; i < st->count; i++)
        free(st->entries[i].name);
    free(st->entries);
    free(st->metadata);
}

/* Fills `st` member by member, so that the caller can free whatever came of it. */
static enum status parse_root(const struct context *c, const struct jdoc *root, size_t n,
                              struct safetensors *st)
{
    const char *key;
    const struct jdoc *value;
    if (jdoc_size(root) > SAFETENSORS_TENSORS_MAX + 1)
        return refuse(c, "%zu tensors, at most %d are read", jdoc_size(root),
                      SAFETENSORS_TENSORS_MAX);
    st->entries = calloc(jdoc_size(root) + 1, sizeof *st->entries);
    if (!st->entries)
        return base_fail(c->err, ERR_NOMEM, "%s: no memory", c->where);
    for (void *i = jdoc_iter(root, NULL, &key, &value); i; i = jdoc_iter(root, i, &key, &value)) {
        enum status s = OK;
        if (strcmp(key, "__metadata__") == 0)
            s = parse_metadata(c, value, n, &st->metadata);
        else
            s = parse_entry(c, key, value, &st->entries[st->count]);
        if (s != OK)
            return s;
        if (strcmp(key, "__metadata__") != 0)
            st->count++;
    }
    if (st->count > SAFETENSORS_TENSORS_MAX)
        return refuse(c, "%d tensors, at most %d are read", st->count, SAFETENSORS_TENSORS_MAX);
    return OK;
}

enum status safetensors_parse(const char *header, size_t n, uint64_t file_bytes, const char *where,
                              struct safetensors *out, struct err *err)
{
    enum status st = OK;
    struct jdoc *root = NULL;
    struct safetensors parsed = {.fd = -1};
    struct context c = {where, NULL, err};
    if (file_bytes < LENGTH_BYTES || n > file_bytes - LENGTH_BYTES)
        return refuse(&c, "header of %zu bytes does not fit a file of %llu (truncated?)", n,
                      (unsigned long long)file_bytes);
    if (n == 0 || header[0] != '{')
        return refuse(&c, "expected the header to start with '{'");
    TRY(jdoc_parse(header, n, &jdoc_limits_file, where, &root, err));
    if (!is(root, JDOC_OBJECT)) {
        st = refuse(&c, "expected the header to be an object");
        goto out;
    }
    TRY(parse_root(&c, root, n, &parsed));
    TRY(check_coverage(&c, parsed.entries, parsed.count, LENGTH_BYTES + n, file_bytes));
    out->entries = parsed.entries;
    out->count = parsed.count;
    out->metadata = parsed.metadata;
    parsed = (struct safetensors){.fd = -1};
out:
    free_entries(&parsed);
    jdoc_close(root);
    return st == ERR_INPUT ? ERR_MODEL : st;
}

/* ---- files ---- */

static enum status read_at(int fd, const char *path, uint64_t offset, void *dst, size_t n,
                           struct err *err)
{
    size_t got = 0;
    while (got < n) {
        ssize_t r = pread(fd, (char *)dst + got, n - got, (off_t)(offset + got));
        if (r < 0 && errno == EINTR)
            continue;
        if (r < 0)
            return base_fail_errno(err, ERR_IO, "%s: reading %zu bytes at %llu", path, n - got,
                                   (unsigned long long)(offset + got));
        if (r == 0)
            return base_fail(err, ERR_MODEL,
                             "%s: expected %zu bytes at %llu, found %zu: the file was truncated",
                             path, n, (unsigned long long)offset, got);
        got += (size_t)r;
    }
    return OK;
}

static bool is_lfs_pointer(int fd, const char *path, uint64_t file_bytes)
{
    char text[sizeof FILE_LFS_POINTER - 1];
    struct err err;
    return file_bytes >= sizeof text && read_at(fd, path, 0, text, sizeof text, &err) == OK &&
           file_is_lfs_pointer(text, sizeof text);
}

/* The header's length n from the first 8 bytes, and its text. */
static enum status read_header(int fd, const char *path, uint64_t file_bytes, char **header,
                               size_t *n, struct err *err)
{
    unsigned char raw[LENGTH_BYTES];
    uint64_t length = 0;
    if (file_bytes < LENGTH_BYTES)
        return base_fail(err, ERR_MODEL, "%s: %llu bytes is too short for a safetensors file", path,
                         (unsigned long long)file_bytes);
    enum status st = read_at(fd, path, 0, raw, sizeof raw, err);
    if (st != OK)
        return st;
    for (int i = LENGTH_BYTES - 1; i >= 0; i--)
        length = length << 8 | raw[i];
    if (length > HEADER_MAX && is_lfs_pointer(fd, path, file_bytes))
        return base_fail(err, ERR_MODEL, "%s " FILE_LFS_MEANING, path);
    if (length > HEADER_MAX)
        return base_fail(err, ERR_MODEL, "%s: header of %llu bytes, at most %d are read", path,
                         (unsigned long long)length, HEADER_MAX);
    if (length > file_bytes - LENGTH_BYTES)
        return base_fail(err, ERR_MODEL,
                         "%s: header of %llu bytes does not fit a file of %llu (truncated?)", path,
                         (unsigned long long)length, (unsigned long long)file_bytes);
    char *text = malloc((size_t)length + 1);
    if (!text)
        return base_fail(err, ERR_NOMEM, "%s: no memory for its header", path);
    st = read_at(fd, path, LENGTH_BYTES, text, (size_t)length, err);
    if (st != OK) {
        free(text);
        return st;
    }
    *header = text;
    *n = (size_t)length;
    return OK;
}

enum status safetensors_adopt(int fd, const char *path, struct safetensors *out, struct err *err)
{
    enum status st = OK;
    struct stat sb;
    char *header = NULL;
    size_t n = 0;
    struct safetensors opened = {.fd = fd, .path = strdup(path)};
    if (!opened.path) {
        close(fd);
        return base_fail(err, ERR_NOMEM, "%s: no memory", path);
    }
    if (fstat(fd, &sb) != 0) {
        st = base_fail_errno(err, ERR_IO, "%s", path);
        goto out;
    }
    if (!S_ISREG(sb.st_mode)) {
        st = base_fail(err, ERR_MODEL, "%s: not a regular file", path);
        goto out;
    }
    opened.file_bytes = (uint64_t)sb.st_size;
    opened.modified_ns = (int64_t)sb.st_mtim.tv_sec * 1000000000 + sb.st_mtim.tv_nsec;
    TRY(read_header(fd, path, opened.file_bytes, &header, &n, err));
    opened.header_bytes = LENGTH_BYTES + n;
    TRY(safetensors_parse(header, n, opened.file_bytes, path, &opened, err));
    *out = opened;
    opened = (struct safetensors){.fd = -1};
out:
    free(header);
    safetensors_close(&opened);
    return st;
}

enum status safetensors_open(const char *path, struct safetensors *out, struct err *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not hang us */
    if (fd < 0)
        return base_fail_errno(err, errno == ENOENT ? ERR_MODEL : ERR_IO, "%s", path);
    return safetensors_adopt(fd, path, out, err);
}

void safetensors_close(struct safetensors *st)
{
    if (!st || !st->path)
        return;
    close(st->fd);
    free_entries(st);
    free(st->path);
    *st = (struct safetensors){.fd = -1};
}

const struct safetensors_entry *safetensors_find(const struct safetensors *st, const char *name)
{
    for (int32_t i = 0; i < st->count; i++) {
        if (strcmp(st->entries[i].name, name) == 0)
            return &st->entries[i];
    }
    return NULL;
}

enum status safetensors_read(const struct safetensors *st, uint64_t offset, void *dst, size_t n,
                             struct err *err)
{
    if (offset > st->file_bytes || n > st->file_bytes - offset)
        return base_fail(err, ERR_INTERNAL, "%s: read of %zu bytes at %llu is outside its %llu",
                         st->path, n, (unsigned long long)offset,
                         (unsigned long long)st->file_bytes);
    return read_at(st->fd, st->path, offset, dst, n, err);
}
