/* What staged.h stages arguments with: the device's copies of arrays of the host, of just their
 * size, until an op ends. */
#ifndef TESSERA_TESTS_STAGED_MEMORY_H
#define TESSERA_TESTS_STAGED_MEMORY_H

#include "kernels/handles.h"

#include <stdio.h>
#include <stdlib.h>

struct staged_piece {
    void *host, *device;
    size_t bytes;
};

struct staged {
    struct backend base;
    struct backend_ops ops;
    struct backend *inner;
    struct staged_piece piece[1024];
    int count;
};

static inline struct staged *staged_of(struct backend *b)
{
    return (struct staged *)b;
}

static inline void staged_check(enum status st, const struct err *e)
{
    if (st != OK) {
        fprintf(stderr, "%s\n", e->text);
        abort();
    }
}

/* The device's copy of an array of the host; NULL stays NULL. */
static inline void *staged_in(struct staged *s, const void *host, size_t bytes)
{
    if (host == NULL)
        return NULL;
    for (int i = 0; i < s->count; i++)
        if (s->piece[i].host == host && s->piece[i].bytes == bytes)
            return s->piece[i].device;
    void *device = s->inner->ops->alloc(s->inner, bytes);
    if (device == NULL || s->count == (int)ARRAY_LEN(s->piece))
        abort();
    s->inner->ops->upload(s->inner, device, host, bytes);
    s->piece[s->count++] = (struct staged_piece){(void *)(uintptr_t)host, device, bytes};
    return device;
}

static inline void staged_out(struct staged *s, void *host)
{
    struct err e;
    for (int i = 0; i < s->count; i++)
        if (s->piece[i].host == host)
            staged_check(
                s->inner->ops->download(s->inner, host, s->piece[i].device, s->piece[i].bytes, &e),
                &e);
}

/* Ends an op: `host` is what it wrote, NULL when told already. */
static inline void staged_end(struct staged *s, void *host)
{
    struct err e;
    staged_out(s, host);
    staged_check(s->inner->ops->download(s->inner, NULL, NULL, 0, &e), &e);
    while (s->count > 0)
        s->inner->ops->free(s->inner, s->piece[--s->count].device);
}

static inline struct view staged_view(struct staged *s, struct view v)
{
    v.data = staged_in(s, v.data, (size_t)v.rows * (size_t)v.cols * dtype_size(v.dtype));
    return v;
}

static inline struct cview staged_cview(struct staged *s, struct cview v)
{
    v.data = staged_in(s, v.data, (size_t)v.rows * (size_t)v.cols * dtype_size(v.dtype));
    return v;
}

static inline size_t staged_slots(const int32_t *slot, int32_t n)
{
    int32_t most = -1;
    for (int32_t i = 0; i < n; i++)
        most = slot[i] > most ? slot[i] : most;
    return (size_t)(most + 1);
}

static inline struct rows staged_rows(struct staged *s, const struct rows *r)
{
    struct rows d = *r;
    const size_t n = (size_t)r->count * 4;
    const size_t table = staged_slots(r->slot, r->count) * (size_t)r->table_cols * 4;
    d.slot = staged_in(s, r->slot, n);
    d.position = staged_in(s, r->position, n);
    d.table = staged_in(s, r->table, table);
    return d;
}

static inline struct heads staged_heads(struct staged *s, const struct heads *h)
{
    struct heads d = *h;
    d.kv_of = staged_in(s, h->kv_of, (size_t)h->heads * 4);
    return d;
}

#endif
