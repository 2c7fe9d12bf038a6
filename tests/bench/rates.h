/* Timing of a backend's ops, with arrays in its own memory, and the two rates that are limits to a
 * model: a copy's bytes and a linear's operations. Failures end the program with a line. One thread
 * uses a backend. */
#ifndef TESSERA_TESTS_BENCH_RATES_H
#define TESSERA_TESTS_BENCH_RATES_H

#include "kernels/backend.h"
#include "kernels/numerics.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

enum { RATES_RUNS = 5 };

static inline void rates_must(enum status st, const struct err *err)
{
    if (st == OK)
        return;
    fprintf(stderr, "%s: %s\n", program_invocation_short_name, err->text);
    exit(1);
}

/* On the device, filled with small numbers, as bf16, as fp32 or as E4M3. The caller frees it. */
static inline void *rates_array(struct backend *b, size_t bytes)
{
    enum { PIECE = 1 << 20 };
    static uint16_t pattern[PIECE / 2];
    char *p = b->ops->alloc(b, bytes);
    if (!p) {
        fprintf(stderr, "%s: no memory for %zu bytes\n", program_invocation_short_name, bytes);
        exit(1);
    }
    for (size_t i = 0; i < ARRAY_LEN(pattern); i++)
        pattern[i] = (uint16_t)((numerics_mix(i) & 0x803f) + 0x3c00);
    for (size_t at = 0, n; at < bytes; at += n) {
        n = bytes - at < PIECE ? bytes - at : PIECE;
        b->ops->upload(b, p + at, pattern, n);
    }
    return p;
}

/* Best seconds of one call, over several that follow each other. */
static inline double rates_best(struct backend *b, void (*fn)(void *arg), void *arg, int32_t calls)
{
    double least = 1e30;
    struct err err;
    char told;
    fn(arg);
    for (int i = 0; i < RATES_RUNS; i++) {
        b->ops->sync(b);
        double t = base_now();
        for (int32_t n = 0; n < calls; n++)
            fn(arg);
        b->ops->sync(b);
        t = (base_now() - t) / calls;
        least = t < least ? t : least;
    }
    void *p = rates_array(b, 1);
    rates_must(b->ops->download(b, &told, p, 1, &err), &err); /* tells of failures */
    b->ops->free(b, p);
    return least;
}

/* ---- a copy ---- */

struct rates_copying {
    struct backend *b;
    float *dst, *src;
    int32_t rows;
};

enum { RATES_COPY_COLS = 4096 };

static inline void rates_copy_all(void *arg)
{
    const struct rates_copying *c = arg;
    c->b->ops->copy(c->b, c->dst, RATES_COPY_COLS, c->src, RATES_COPY_COLS, c->rows,
                    RATES_COPY_COLS);
}

/* Seconds to pass over `span` bytes: half of them read, half written. */
static inline double rates_copy(struct backend *b, size_t span)
{
    struct rates_copying c = {b, rates_array(b, span / 2), rates_array(b, span / 2),
                              (int32_t)(span / 2 / sizeof(float) / RATES_COPY_COLS)};
    const double t = rates_best(b, rates_copy_all, &c, 4);
    b->ops->free(b, c.dst);
    b->ops->free(b, c.src);
    return t;
}

/* ---- a linear ---- */

/* x and y of the types that a step has. */
struct rates_linear {
    struct backend *b;
    int32_t copies, next;
    struct weight *weight[64];
    struct view x, y;
};

static inline void rates_linear_next(void *arg)
{
    struct rates_linear *l = arg;
    struct err err;
    rates_must(backend_linear(l->b, l->y, cview_of(l->x), l->weight[l->next++ % l->copies], &err),
               &err);
}

/* The caller frees its data. */
static inline struct view rates_rows(struct backend *b, enum dtype dtype, int32_t rows,
                                     int32_t cols)
{
    const size_t bytes = (size_t)rows * (size_t)cols * dtype_size(dtype);
    return (struct view){rates_array(b, bytes), dtype, rows, cols};
}

/* Seconds of a product of so many rows; weights cycle through `span` bytes. */
static inline double rates_linear(struct backend *b, size_t span, const struct weight_spec *spec,
                                  int32_t rows)
{
    const size_t bytes = b->ops->weight_bytes(spec);
    struct rates_linear l = {.b = b, .copies = (int32_t)(span / bytes)};
    struct err err;
    l.copies = l.copies < 1 ? 1 : l.copies > 64 ? 64 : l.copies;
    unsigned char *storage = rates_array(b, bytes * (size_t)l.copies);
    for (int32_t i = 0; i < l.copies; i++)
        l.weight[i] = b->ops->weight_open(b, spec, storage + (size_t)i * bytes);
    rates_must(backend_reserve(b, rows, spec->in, spec->out, &err), &err);
    l.x = rates_rows(b, b->ops->linear_in(b, l.weight[0], rows), rows, spec->in);
    l.y = rates_rows(b, b->ops->linear_out(b, l.weight[0], rows), rows, spec->out);
    const double t = rates_best(b, rates_linear_next, &l, 2 * l.copies);
    for (int32_t i = 0; i < l.copies; i++)
        b->ops->weight_close(l.weight[i]);
    b->ops->free(b, storage);
    b->ops->free(b, l.x.data);
    b->ops->free(b, l.y.data);
    return t;
}

#endif
