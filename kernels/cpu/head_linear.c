/* DESIGN: heads with a matrix each. An item is some panels of one head, so that a row alone is work
 * for many threads; it packs the head's part of x itself, into its thread's scratch, which is
 * little beside the products. Rows are taken in chunks that the cache holds, and each output is the
 * chain that linear has. Rejected: packing for all heads first (scratch for all of x, and a second
 * round of threads, which takes as long as the products of a row). */
#include "kernels/cpu/product.h"

#include <string.h>

#define CHUNK_ROWS 48 /* whole tiles */
#define PANELS 8      /* of an item */

struct job {
    struct cpu_backend *c;
    const struct experts *w;
    const float *x;
    float *y;
    int32_t rows, x_cols, y_cols, kept;
};

/* Floats of the accumulators of so many rows, with as many panels as are multiplied at once. */
static size_t acc_floats(const struct cpu_isa *isa, int32_t rows)
{
    const int32_t group = rows <= CPU_WIDE_ROWS ? isa->wide_panels[rows] : 1;
    return (size_t)group * (size_t)rows * CPU_PANEL;
}

enum status head_linear_reserve(struct cpu_backend *c, const struct weight_spec *spec, int32_t rows,
                                struct err *err)
{
    const int32_t most = base_min32(rows, CHUNK_ROWS);
    const size_t tile = product_words(spec->in) * CPU_TILE_ROWS + PRODUCT_SLACK;
    size_t acc = acc_floats(c->isa, most);
    for (int32_t few = 1; few <= base_min32(rows, CPU_WIDE_ROWS); few++)
        acc = acc_floats(c->isa, few) > acc ? acc_floats(c->isa, few) : acc;
    return cpu_grow(c, 0, acc + (size_t)product_tiles(most) * tile, 0, err);
}

static void pack(struct product *p, float *packed, const float *x, size_t stride)
{
    p->packed = p->packs ? packed : x;
    for (int32_t i = 0; p->packs && i < p->tiles; i++) {
        const int32_t row = product_tile(p, i), rows = product_tile(p, i + 1) - row;
        product_pack(p, packed + (size_t)i * p->tile_floats, x + (size_t)row * stride, stride,
                     rows);
    }
}

/* Panels [first, last) of a head, of p->rows rows; y: the first output of all. */
static void multiply(const struct job *j, const struct product *p, float *acc, float *y,
                     int32_t first, int32_t last)
{
    for (int32_t panel = first, n; panel < last; panel += n) {
        n = last - panel >= p->group ? p->group : 1;
        product_leaf(p, acc, panel, n, 0);
        for (int32_t i = 0; i < n * p->rows; i++) {
            const int32_t out = (panel + i / p->rows) * CPU_PANEL;
            memcpy(y + (ptrdiff_t)(i % p->rows) * j->y_cols + out, acc + (ptrdiff_t)i * CPU_PANEL,
                   (size_t)base_min32(p->w->spec.out - out, CPU_PANEL) * sizeof *y);
        }
    }
}

static int32_t item_count(const struct job *j)
{
    const int32_t panels = product_panels(j->w->weight[0]);
    return panels > 0 ? (panels - 1) / PANELS + 1 : 1; /* what is kept has to be copied */
}

/* Item i: some panels of a head, and what it keeps, with the first of them. */
static void run_items(void *arg, int32_t worker, int64_t begin, int64_t end)
{
    const struct job *j = arg;
    const int32_t in = j->w->spec.in, kept = j->kept, items = item_count(j);
    const int32_t panels = product_panels(j->w->weight[0]);
    float *acc = j->c->partial + (size_t)worker * j->c->partial_floats;
    for (int64_t i = begin; i < end; i++) {
        const int32_t head = (int32_t)(i / items), first = (int32_t)(i % items) * PANELS;
        const float *x = j->x + (ptrdiff_t)head * (in + kept);
        float *y = j->y + (ptrdiff_t)head * (kept + j->w->spec.out);
        for (int32_t t = 0; first == 0 && t < j->rows; t++)
            memcpy(y + (ptrdiff_t)t * j->y_cols, x + (ptrdiff_t)t * j->x_cols + in,
                   (size_t)kept * sizeof *y);
        for (int32_t row = 0; row < j->rows; row += CHUNK_ROWS) {
            const int32_t rows = base_min32(j->rows - row, CHUNK_ROWS);
            struct product p = product_of(j->c->isa, j->w->weight[head], rows);
            pack(&p, acc + acc_floats(j->c->isa, rows), x + (ptrdiff_t)row * j->x_cols,
                 (size_t)j->x_cols);
            multiply(j, &p, acc, y + (ptrdiff_t)row * j->y_cols + kept, first,
                     base_min32(first + PANELS, panels));
        }
    }
}

void head_linear_run(struct backend *b, struct view y, struct cview x, const struct experts *w,
                     int32_t kept)
{
    CHECK(y.dtype == DTYPE_F32 && x.dtype == DTYPE_F32);
    struct job j = {cpu_of(b), w, x.data, y.data, x.rows, x.cols, y.cols, kept};
    if (x.rows > 0)
        pool_run(j.c->pool, (int64_t)w->count * item_count(&j), 1, run_items, &j);
}
