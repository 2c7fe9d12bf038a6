/* DESIGN: everything about the file is known before its first byte: entries are declared, so header
 * and offsets come first and the tensors stream behind them in bounded memory. The file grows under
 * a temporary name; an interrupted writer leaves nothing that looks like a model.
 * Invariant: a file under its own name holds exactly what its header says. */
#include "weights/safetensors.h"

#include "config/buf.h"
#include "weights/outdir.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define HEADER_MAX 100000000
#define ALIGNMENT 8 /* of the first tensor byte, as the format's own writer does */

struct safetensors_writer {
    int fd;
    char *path, *partial;
    uint64_t declared, written; /* tensor bytes */
};

static bool entry_bytes(const struct safetensors_entry *e, size_t *bytes)
{
    size_t n = dtype_size(e->dtype);
    for (int32_t d = 0; d < e->ndim; d++) {
        if (e->shape[d] < 0 || !base_mul(n, (size_t)e->shape[d], &n))
            return false;
    }
    *bytes = n;
    return true;
}

static void add_entry(struct buf *b, const struct safetensors_entry *e, size_t begin, size_t end)
{
    buf_json(b, e->name, strlen(e->name));
    buf_printf(b, ":{\"dtype\":\"%s\",\"shape\":[", dtype_name(e->dtype));
    for (int32_t d = 0; d < e->ndim; d++)
        buf_printf(b, "%s%lld", d ? "," : "", (long long)e->shape[d]);
    buf_printf(b, "],\"data_offsets\":[%zu,%zu]}", begin, end);
}

/* Length and JSON, padded. *declared: tensor bytes that follow. */
static enum status make_header(const char *path, const struct safetensors_entry *entries,
                               int32_t count, const char *metadata, struct buf *b,
                               uint64_t *declared, struct err *err)
{
    static const char zeros[8];
    size_t at = 0;
    buf_add(b, zeros, sizeof zeros);
    buf_puts(b, "{");
    if (metadata)
        buf_printf(b, "\"__metadata__\":%s", metadata);
    for (int32_t i = 0; i < count; i++) {
        size_t bytes, end;
        if (!entry_bytes(&entries[i], &bytes) || !base_add(at, bytes, &end) || end > INT64_MAX)
            return base_fail(err, ERR_INTERNAL, "%s: the size of tensor %s overflows", path,
                             entries[i].name);
        buf_puts(b, i > 0 || metadata ? "," : "");
        add_entry(b, &entries[i], at, end);
        at = end;
    }
    buf_puts(b, "}");
    while (!b->failed && b->len % ALIGNMENT != 0)
        buf_puts(b, " ");
    if (b->failed)
        return base_fail(err, ERR_NOMEM,
                         "%s: no memory for the header of %d tensors, or it is over %d bytes", path,
                         count, HEADER_MAX);
    uint64_t length = b->len - sizeof zeros;
    for (int i = 0; i < 8; i++)
        b->data[i] = (char)(unsigned char)(length >> (8 * i));
    *declared = at;
    return OK;
}

enum status safetensors_create(const char *path, const struct safetensors_entry *entries,
                               int32_t count, const char *metadata, struct safetensors_writer **out,
                               struct err *err)
{
    enum status st = OK;
    struct buf header;
    buf_init(&header, HEADER_MAX + 8);
    struct safetensors_writer *w = calloc(1, sizeof *w);
    if (w)
        *w = (struct safetensors_writer){.fd = -1, .path = strdup(path)};
    if (!w || !w->path || asprintf(&w->partial, "%s.partial", path) < 0) {
        if (w)
            w->partial = NULL;
        st = base_fail(err, ERR_NOMEM, "%s: no memory", path);
        goto out;
    }
    TRY(make_header(path, entries, count, metadata, &header, &w->declared, err));
    w->fd = open(w->partial, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (w->fd < 0) {
        st = base_fail_errno(err, ERR_OUTPUT, "%s", w->partial);
        goto out;
    }
    TRY(outdir_write(w->fd, w->partial, header.data, header.len, err));
    *out = w;
    w = NULL;
out:
    buf_free(&header);
    safetensors_discard(w);
    return st;
}

enum status safetensors_write(struct safetensors_writer *w, const void *bytes, size_t n,
                              struct err *err)
{
    if (n > w->declared - w->written)
        return base_fail(err, ERR_INTERNAL, "%s: %zu bytes more than the %llu declared", w->path,
                         n - (size_t)(w->declared - w->written), (unsigned long long)w->declared);
    enum status st = outdir_write(w->fd, w->partial, bytes, n, err);
    if (st == OK)
        w->written += n;
    return st;
}

enum status safetensors_finish(struct safetensors_writer *w, struct err *err)
{
    enum status st = OK;
    if (w->written != w->declared) {
        st = base_fail(err, ERR_INTERNAL, "%s: %llu of %llu declared bytes were written", w->path,
                       (unsigned long long)w->written, (unsigned long long)w->declared);
        goto out;
    }
    int fd = w->fd;
    w->fd = -1;
    TRY(outdir_publish(fd, w->partial, w->path, err));
    free(w->partial);
    w->partial = NULL; /* nothing left to remove */
out:
    safetensors_discard(w);
    return st;
}

void safetensors_discard(struct safetensors_writer *w)
{
    if (!w)
        return;
    if (w->fd >= 0)
        close(w->fd);
    if (w->partial)
        unlink(w->partial);
    free(w->partial);
    free(w->path);
    free(w);
}
