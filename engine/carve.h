/* Cuts one piece of memory into arrays. The same calls are made twice: without memory, for how much
 * there has to be, and with it, for where each array lies. */
#ifndef TESSERA_ENGINE_CARVE_H
#define TESSERA_ENGINE_CARVE_H

#include "config/base.h"

/* Gives out 64-byte aligned pieces; counts only while base is NULL. */
struct carver {
    char *base;
    size_t used;
};

static inline void *carve(struct carver *c, int64_t rows, int64_t cols, size_t size)
{
    void *at = c->base ? c->base + c->used : NULL;
    c->used += base_align((size_t)(rows * cols) * size, 64);
    return at;
}

static inline float *carve_floats(struct carver *c, int64_t rows, int64_t cols)
{
    return carve(c, rows, cols, sizeof(float));
}

#endif
