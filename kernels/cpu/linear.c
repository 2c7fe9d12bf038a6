/* DESIGN: y = x w^T. Rows of x are packed once per call, some hundred at a time, and threads take
 * panels (product.c); leaves are folded as they finish: after leaf l, one fold for each trailing
 * one bit of l, which is the tree of stride 1, 2, 4, ... with at most four sums alive. */
#include "kernels/cpu/product.h"

#include <string.h>

#define CHUNK_FLOATS (1 << 20) /* of x packed at a time, to stay in the cache, */
#define CHUNK_ROWS_MIN 96      /* but not fewer rows than this, */
#define CHUNK_ROWS_MAX 480     /* nor more (both are whole tiles) */
#define LEVELS 4               /* sums alive while folding 8 leaves */

struct job {
    struct product p;
    const float *x; /* [rows][in] */
    float *y;       /* [rows][out] */
    float *packed;  /* scratch */
    float *partial;
    size_t partial_floats;
};

static size_t partial_floats(int32_t group, int32_t rows)
{
    return (size_t)LEVELS * (size_t)group * (size_t)rows * CPU_PANEL;
}

static int32_t chunk_rows(int32_t in)
{
    const int32_t rows = CHUNK_FLOATS / (in + 1) / CPU_TILE_ROWS * CPU_TILE_ROWS;
    return rows < CHUNK_ROWS_MIN ? CHUNK_ROWS_MIN : rows > CHUNK_ROWS_MAX ? CHUNK_ROWS_MAX : rows;
}

/* Bounds that grow with rows and in, so that a reserve for the maxima covers every smaller shape.
 */
enum status linear_reserve(struct cpu_backend *c, int32_t rows, int32_t in, struct err *err)
{
    const int32_t chunk = rows < CHUNK_ROWS_MAX ? rows : CHUNK_ROWS_MAX;
    size_t partial = partial_floats(1, chunk), cap = (size_t)CHUNK_ROWS_MIN * product_words(in);
    for (int32_t r = 1; r <= CPU_WIDE_ROWS; r++) {
        size_t n = partial_floats(c->isa->wide_panels[r], r);
        partial = n > partial ? n : partial;
    }
    const size_t tiles = (size_t)product_tiles(chunk);
    const size_t all = tiles * CPU_TILE_ROWS * product_words(in);
    cap = cap > CHUNK_FLOATS ? cap : CHUNK_FLOATS;
    return cpu_grow(c, (all < cap ? all : cap) + tiles * PRODUCT_SLACK, partial, 0, err);
}

/* Some runs of a tile, item i of all of x: a row alone is shared by threads, too. */
static void pack_slices(void *arg, int32_t worker, int64_t begin, int64_t end)
{
    const struct job *j = arg;
    const struct product *p = &j->p;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        const int32_t tile = (int32_t)i / p->slices, slice = (int32_t)i % p->slices;
        const int32_t row = product_tile(p, tile), rows = product_tile(p, tile + 1) - row;
        float *dst = j->packed + (size_t)tile * p->tile_floats;
        for (int32_t r = 0; r < rows; r++)
            product_pack_runs(p, dst, rows, r, j->x + ((ptrdiff_t)row + r) * p->w->spec.in, slice);
    }
}

static void pack_tiles(void *arg, int32_t worker, int64_t begin, int64_t end)
{
    const struct job *j = arg;
    (void)worker;
    const size_t stride = (size_t)j->p.w->spec.in;
    for (int32_t t = (int32_t)begin; t < (int32_t)end; t++) {
        const int32_t row = product_tile(&j->p, t), n = product_tile(&j->p, t + 1) - row;
        float *dst = j->packed + (size_t)t * j->p.tile_floats;
        product_pack(&j->p, dst, j->x + (size_t)row * stride, stride, n);
    }
}

static void write_out(const struct job *j, const float *acc, int32_t first_panel, int32_t panels)
{
    const int32_t out = j->p.w->spec.out;
    for (int32_t q = 0; q < panels; q++) {
        const int32_t col = (first_panel + q) * CPU_PANEL;
        const size_t n = (size_t)(out - col < CPU_PANEL ? out - col : CPU_PANEL) * sizeof *acc;
        for (int32_t r = 0; r < j->p.rows; r++, acc += CPU_PANEL)
            memcpy(j->y + (size_t)r * (size_t)out + col, acc, n);
    }
}

static void group_run(const struct job *j, float *partial, int32_t first_panel, int32_t panels)
{
    const struct weight_spec *spec = &j->p.w->spec;
    const size_t n = (size_t)panels * (size_t)j->p.rows * CPU_PANEL;
    float *top = partial; /* the next free sum */
    for (int32_t l = 0; l < spec->leaves; l++, top += n) {
        product_leaf(&j->p, top, first_panel, panels, l);
        for (int32_t full = l; (full & 1) != 0; full >>= 1, top -= n)
            j->p.isa->add(top - n, top, (int64_t)n);
    }
    for (top -= n; top > partial; top -= n)
        j->p.isa->add(top - n, top, (int64_t)n);
    write_out(j, partial, first_panel, panels);
}

static void panels_run(void *arg, int32_t worker, int64_t begin, int64_t end)
{
    const struct job *j = arg;
    float *partial = j->partial + (size_t)worker * j->partial_floats;
    const int32_t panels = product_panels(j->p.w), group = j->p.group;
    for (int64_t i = begin; i < end; i++) {
        int32_t first = (int32_t)i * group;
        if (panels - first >= group) {
            group_run(j, partial, first, group);
            continue;
        }
        for (; first < panels; first++)
            group_run(j, partial, first, 1);
    }
}

static void chunk_run(struct cpu_backend *c, struct job *j, const struct weight *w, int32_t rows)
{
    j->p = product_of(c->isa, w, rows);
    j->packed = c->packed;
    j->partial = c->partial;
    j->partial_floats = c->partial_floats;
    j->p.packed = j->p.packs ? c->packed : j->x;
    if (j->p.ints)
        pool_run(c->pool, (int64_t)j->p.tiles * j->p.slices, 1, pack_slices, j);
    else if (j->p.packs)
        pool_run(c->pool, j->p.tiles, 1, pack_tiles, j);
    pool_run(c->pool, (product_panels(w) + j->p.group - 1) / j->p.group, 1, panels_run, j);
}

void linear_run(struct backend *b, struct view y, struct cview x, const struct weight *w)
{
    struct cpu_backend *c = cpu_of(b);
    struct err err;
    const int32_t in = w->spec.in, out = w->spec.out;
    if (x.rows == 0 || out == 0)
        return;
    CHECK(linear_reserve(c, x.rows, in, &err) == OK);
    const int32_t chunks = (x.rows - 1) / chunk_rows(in) + 1; /* even shares */
    const int32_t chunk = product_tiles((x.rows - 1) / chunks + 1) * CPU_TILE_ROWS;
    for (int32_t row = 0; row < x.rows; row += chunk) {
        struct job j = {.x = (const float *)x.data + (size_t)row * (size_t)in,
                        .y = (float *)y.data + (size_t)row * (size_t)out};
        chunk_run(c, &j, w, x.rows - row < chunk ? x.rows - row : chunk);
    }
}
