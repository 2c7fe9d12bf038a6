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

struct rates_linear {
    struct backend *b;
    int32_t rows, in, out, copies, next;
    struct weight *weight[64];
    float *x, *y;
};

static inline void rates_linear_next(void *arg)
{
    struct rates_linear *l = arg;
    struct err err;
    rates_must(backend_linear(l->b, view_f32(l->y, l->rows, l->out),
                              (struct cview){l->x, DTYPE_F32, l->rows, l->in},
                              l->weight[l->next++ % l->copies], &err),
               &err);
}

/* Seconds of a product of so many rows; weights cycle through `span` bytes. */
static inline double rates_linear(struct backend *b, size_t span, const struct weight_spec *spec,
                                  int32_t rows)
{
    const size_t bytes = b->ops->weight_bytes(spec);
    struct rates_linear l = {
        .b = b, .rows = rows, .in = spec->in, .out = spec->out, .copies = (int32_t)(span / bytes)};
    struct err err;
    l.copies = l.copies < 1 ? 1 : l.copies > 64 ? 64 : l.copies;
    unsigned char *storage = rates_array(b, bytes * (size_t)l.copies);
    for (int32_t i = 0; i < l.copies; i++)
        l.weight[i] = b->ops->weight_open(b, spec, storage + (size_t)i * bytes);
    rates_must(backend_reserve(b, rows, l.in, l.out, &err), &err);
    l.x = rates_array(b, (size_t)rows * (size_t)l.in * sizeof(float));
    l.y = rates_array(b, (size_t)rows * (size_t)l.out * sizeof(float));
    const double t = rates_best(b, rates_linear_next, &l, 2 * l.copies);
    for (int32_t i = 0; i < l.copies; i++)
        b->ops->weight_close(l.weight[i]);
    b->ops->free(b, storage);
    b->ops->free(b, l.x);
    b->ops->free(b, l.y);
    return t;
}

#endif
