/* DESIGN: what an adapter's product is added to is a rectangle that somebody reads of a tensor, and
 * nothing else of the product is made: B's rows and A's columns are read with it, from files that
 * are small beside the model's. Every element is one chain of additions in the order of the rank,
 * so it has the same bits in every rectangle, and therefore on every rank. It is rounded once, to
 * the type in which it is held or written: half a step of the file's type can be more than what is
 * added. */
#include "weights/lora.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    TILE = 64
}; /* columns that are added together: a known number, so that it becomes vectors */

/* What one call works in. `width`: its columns, rounded up to tiles; beyond them are zeros. */
struct work {
    struct span rows, cols;
    int64_t width;
    float *memory; /* all of the following: one piece, which malloc keeps for the next call */
    float *sum;    /* [rows, width] */
    float *a;      /* [rank, width] */
    float *tile;   /* [rank, TILE]: of a, together, so that it stays in the cache */
    float *b;      /* [rows, rank] */
    float *raw;    /* any of them as the file has it */
};

static enum status open_work(struct work *w, const struct lora_part *all, int32_t count,
                             struct span rows, struct span cols, struct err *err)
{
    size_t rank = 0;
    const size_t height = (size_t)span_len(rows), width = base_align((size_t)span_len(cols), TILE);
    for (int32_t i = 0; i < count; i++)
        rank = base_max_size(rank, (size_t)all[i].rank);
    const size_t sum = height * width, a = rank * width, tile = rank * TILE, b = height * rank;
    const size_t raw = base_max_size(rank * base_max_size(height, width), all->whole ? sum : 0);
    *w = (struct work){.rows = rows, .cols = cols, .width = (int64_t)width};
    w->memory = malloc((sum + a + tile + b + raw) * sizeof(float));
    if (!w->memory)
        return base_fail(err, ERR_NOMEM, "%s: no memory to add an adapter", all->tensor);
    w->sum = w->memory;
    w->a = w->sum + sum;
    w->tile = w->a + a;
    w->b = w->tile + tile;
    w->raw = w->b + b;
    if (width != (size_t)span_len(cols))
        memset(w->memory, 0, (sum + a) * sizeof(float));
    return OK;
}

/* rows x cols of a tensor into rows of `width` floats. */
static enum status read_part(const struct safetensors *st, const struct safetensors_entry *e,
                             struct span rows, struct span cols, void *raw, float *out,
                             int64_t width, struct err *err)
{
    const int64_t there = e->shape[e->ndim - 1], n = span_len(cols);
    const int64_t together = n == there ? span_len(rows) : 1; /* rows of one read */
    const size_t item = dtype_size(e->dtype);
    for (int64_t r = 0; r < span_len(rows); r += together) {
        const uint64_t at = (uint64_t)((rows.begin + r) * there + cols.begin) * item;
        const enum status s =
            safetensors_read(st, e->offset + at, raw, (size_t)(together * n) * item, err);
        if (s != OK)
            return s;
        for (int64_t k = 0; k < together; k++)
            dtype_load_n(out + (r + k) * width, raw, e->dtype, (size_t)(k * n), (size_t)n);
    }
    return OK;
}

/* sum[TILE] += scale * (b[0] a[0] + b[1] a[1] + ...), added from the left; a: [rank, TILE]. */
static void add_tile(float *sum, const float *a, const float *b, int32_t rank, float scale)
{
    float part[TILE] = {0};
    int32_t k = 0;
    for (; k + 4 <= rank; k += 4) {
        const float *a0 = a + (ptrdiff_t)k * TILE, *a1 = a0 + TILE, *a2 = a1 + TILE,
                    *a3 = a2 + TILE;
        for (int i = 0; i < TILE; i++)
            part[i] =
                part[i] + b[k] * a0[i] + b[k + 1] * a1[i] + b[k + 2] * a2[i] + b[k + 3] * a3[i];
    }
    for (; k < rank; k++)
        for (int i = 0; i < TILE; i++)
            part[i] = part[i] + b[k] * a[(ptrdiff_t)k * TILE + i];
    for (int i = 0; i < TILE; i++)
        sum[i] += scale * part[i];
}

static enum status add_part(const struct safetensors *st, const struct lora_part *p,
                            const struct work *w, struct err *err)
{
    const struct span all = {0, p->rank};
    if (p->whole)
        return read_part(st, p->whole, w->rows, w->cols, w->raw, w->sum, w->width, err);
    enum status s = read_part(st, p->a, all, w->cols, w->raw, w->a, w->width, err);
    if (s == OK)
        s = read_part(st, p->b, w->rows, all, w->raw, w->b, p->rank, err);
    for (int64_t col = 0; col < w->width && s == OK; col += TILE) {
        for (int32_t k = 0; k < p->rank; k++)
            memcpy(w->tile + (ptrdiff_t)k * TILE, w->a + k * w->width + col,
                   TILE * sizeof *w->tile);
        for (int64_t row = 0; row < span_len(w->rows); row++)
            add_tile(w->sum + row * w->width + col, w->tile, w->b + row * p->rank, p->rank,
                     p->scale);
    }
    return s;
}

/* n sums, rounded, from element `at` on. */
static void store(void *values, enum dtype as, size_t at, const float *sum, size_t n)
{
    if (as == DTYPE_F32)
        memcpy((float *)values + at, sum, n * sizeof *sum);
    else if (as == DTYPE_BF16)
        for (size_t i = 0; i < n; i++)
            ((uint16_t *)values)[at + i] = dtype_to_bf16(sum[i]);
    else
        for (size_t i = 0; i < n; i++)
            ((uint16_t *)values)[at + i] = dtype_to_f16(sum[i]);
}

/* Would all be finite in that type? */
static bool is_finite(const float *sum, size_t n, enum dtype dtype)
{
    const float bound = dtype == DTYPE_F16 ? 65520 : dtype == DTYPE_BF16 ? 0x1.ffp127f : INFINITY;
    int beyond = 0;
    for (size_t i = 0; i < n; i++)
        beyond |= !(fabsf(sum[i]) < bound);
    return !beyond;
}

enum status lora_apply(const struct lora *l, const char *tensor, enum dtype dtype, struct span rows,
                       struct span cols, const void *there, enum dtype as, void *values,
                       struct err *err)
{
    enum status st = OK;
    int32_t count = 0;
    struct work w;
    const struct lora_part *all = lora_find(l, tensor, &count);
    if (!all || span_len(rows) == 0 || span_len(cols) == 0)
        return OK;
    CHECK(dtype_is_compute(dtype));
    CHECK(dtype_is_compute(as));
    const size_t n = (size_t)span_len(cols);
    TRY(open_work(&w, all, count, rows, cols, err));
    for (int64_t r = 0; r < span_len(rows) && !all->whole; r++)
        dtype_load_n(w.sum + r * w.width, there, dtype, (size_t)r * n, n);
    for (int32_t i = 0; i < count; i++)
        TRY(add_part(lora_file(l, all[i].adapter), &all[i], &w, err));
    for (int64_t r = 0; r < span_len(rows); r++) {
        const float *sum = w.sum + r * w.width;
        if (!is_finite(sum, n, dtype))
            TRY(base_fail(err, ERR_MODEL, "%.200s: makes a value of %s, row %lld, not finite as %s",
                          lora_adapter(l, all->adapter), tensor, (long long)(rows.begin + r),
                          dtype_name(dtype)));
        store(values, as, (size_t)r * n, sum, n);
    }
out:
    free(w.memory);
    return st;
}
