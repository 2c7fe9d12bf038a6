/* DESIGN: tiles of at most 12 rows x 32 outputs. Rows of x are packed into [tile][k][row], so that
 * the inner kernel reads them in order whatever the row stride; K is cut into blocks that keep one
 * block of a panel in the L1 cache while all tiles pass over it. Between blocks the accumulators
 * rest in fp32 memory, which is exact, so each output stays one ascending chain per leaf. With
 * weights of I8 and I4 x is packed as runs of codes instead, and blocks are of whole groups.
 * Rejected: lanes over k (needs a fold whose shape would be the instruction set's), and splitting k
 * over threads (the chain would depend on their number). */
#include "kernels/cpu/product.h"
#include "kernels/cpu/flush.h"

#include <string.h>

#define BLOCK_BYTES 16384 /* of a panel per block of K */
#define PACK_RUNS 64      /* of I8 and I4 that a thread packs at a time */

int32_t product_tiles(int32_t rows)
{
    return (rows + CPU_TILE_ROWS - 1) / CPU_TILE_ROWS;
}

/* Tiles share the rows as evenly as possible: 13 rows are 7 + 6. */
int32_t product_tile(const struct product *p, int32_t tile)
{
    int32_t base = p->rows / p->tiles, extra = p->rows % p->tiles;
    return tile * base + (tile < extra ? tile : extra);
}

/* The leaves of a weight cut at most so many groups. */
size_t product_words(int32_t in)
{
    const size_t runs = (size_t)in / BACKEND_GROUP + 2 + BACKEND_LEAVES_MAX;
    return runs * CPU_RUN_WORDS > (size_t)in ? runs * CPU_RUN_WORDS : (size_t)in;
}

int32_t product_panels(const struct weight *w)
{
    return (w->spec.out + CPU_PANEL - 1) / CPU_PANEL;
}

/* Groups of leaf l, [begin, end). */
static void leaf_groups(const struct weight_spec *s, int32_t l, int32_t *begin, int32_t *end)
{
    const int32_t from = s->scale_skip + s->cut[l], to = s->scale_skip + s->cut[l + 1];
    *begin = from / BACKEND_GROUP;
    *end = to > from ? (to - 1) / BACKEND_GROUP + 1 : *begin;
}

/* How x is packed, and by how much of K. */
static void choose_form(struct product *p)
{
    const struct weight_spec *spec = &p->w->spec;
    size_t unit = CPU_PANEL * dtype_size(p->widens ? DTYPE_F32 : spec->dtype);
    p->row_words = (size_t)((spec->in + p->word - 1) / p->word);
    if (p->ints) {
        unit = layout_int_group_bytes(spec);
        for (int32_t l = 0, begin, end; l < spec->leaves; l++) {
            leaf_groups(spec, l, &begin, &end);
            p->run[l + 1] = p->run[l] + end - begin;
        }
        p->slices = (p->run[spec->leaves] + PACK_RUNS - 1) / PACK_RUNS;
        p->row_words = (size_t)p->run[spec->leaves] * CPU_RUN_WORDS;
    }
    p->tile_floats = p->row_words * CPU_TILE_ROWS + (p->ints ? 0 : PRODUCT_SLACK);
    p->block = BLOCK_BYTES / (int32_t)unit;
    if (p->tiles == 1 && (p->isa->tile_streams || p->rows <= 2))
        p->block = spec->in > 0 ? spec->in : 1; /* all of K */
}

struct product product_of(const struct cpu_isa *isa, const struct weight *w, int32_t rows)
{
    struct product p = {.isa = isa, .w = w, .rows = rows, .tiles = product_tiles(rows)};
    p.ints = dtype_is_int(w->spec.dtype);
    p.rounds = w->spec.dtype == DTYPE_BF16;
    p.packs = p.ints || p.rounds || rows > 1;
    p.word = p.rounds ? isa->bf16_word : 1;
    p.group = rows <= CPU_WIDE_ROWS ? isa->wide_panels[rows] : 1;
    p.widens = w->spec.dtype == DTYPE_F8_E4M3 && p.tiles > 2;
    choose_form(&p);
    return p;
}

void product_pack(const struct product *p, float *tile, const float *x, size_t stride, int32_t rows)
{
    (p->rounds ? p->isa->pack_bf16 : p->isa->pack)(tile, x, stride, rows, p->w->spec.in);
}

void product_pack_runs(const struct product *p, float *tile, int32_t rows, int32_t row,
                       const float *x, int32_t slice)
{
    const struct weight_spec *s = &p->w->spec;
    const int32_t first = slice * PACK_RUNS;
    for (int32_t l = 0; l < s->leaves; l++) {
        int32_t g, end, run = base_max32(first, p->run[l]);
        leaf_groups(s, l, &g, &end);
        for (; run < base_min32(first + PACK_RUNS, p->run[l + 1]); run++) {
            int32_t *dst = (int32_t *)(void *)tile + (ptrdiff_t)run * CPU_RUN_WORDS * rows;
            const int32_t place = (g + run - p->run[l]) * BACKEND_GROUP - s->scale_skip;
            const int32_t from = base_max32(place, s->cut[l]);
            const int32_t to = base_min32(place + BACKEND_GROUP, s->cut[l + 1]);
            p->isa->pack_run(dst, rows, row, x + from, from - place, to - place);
        }
    }
}

/* All rows of one block of k. */
static void block_run(const struct product *p, const struct cpu_tile *block, enum dtype t,
                      int32_t panels, int32_t k)
{
    for (int32_t i = 0; i < p->tiles; i++) {
        const int32_t row = product_tile(p, i), rows = product_tile(p, i + 1) - row;
        struct cpu_tile tile = *block;
        tile.acc += (size_t)row * CPU_PANEL;
        tile.x = p->packed + (size_t)i * p->tile_floats + (size_t)(k / p->word) * (size_t)rows;
        cpu_tile_fn kernel = panels == 1 ? p->isa->tile[t][rows] : p->isa->wide[t][rows];
        kernel(&tile);
    }
}

static void leaf_float(const struct product *p, float *acc, const unsigned char *panel,
                       int32_t panels, int32_t l)
{
    const struct weight_spec *spec = &p->w->spec;
    const int32_t from = spec->cut[l], to = spec->cut[l + 1];
    ALIGNED64 float lines[BLOCK_BYTES / sizeof(float)];
    if (from == to)
        memset(acc, 0, (size_t)panels * (size_t)p->rows * CPU_PANEL * sizeof *acc);
    for (int32_t k = from, n; k < to; k += n) {
        n = base_min32(base_min32(to, backend_scale_end(spec, k)) - k, p->block);
        struct cpu_tile block = {
            .acc = acc,
            .w = panel + layout_line(spec->dtype, k),
            .scale = layout_scale(spec, panel, k),
            .panel_bytes = layout_panel_bytes(spec),
            .k = n,
            .first = k == from,
            .odd = k % 2 != 0,
        };
        if (p->widens) {
            p->isa->widen(lines, block.w, block.scale, block.odd, n);
            block.w = (const unsigned char *)lines;
        }
        block_run(p, &block, p->widens ? DTYPE_F32 : spec->dtype, panels, k);
    }
}

static enum cpu_bits bits_of(enum dtype dtype)
{
    return dtype == DTYPE_I8   ? CPU_BITS_8
           : dtype == DTYPE_I4 ? CPU_BITS_4
           : dtype == DTYPE_U4 ? CPU_BITS_U4
                               : CPU_BITS_E2M1;
}

static void leaf_int(const struct product *p, float *acc, const unsigned char *panel,
                     int32_t panels, int32_t l)
{
    const struct weight_spec *spec = &p->w->spec;
    const enum cpu_bits bits = bits_of(spec->dtype);
    int32_t first, end;
    leaf_groups(spec, l, &first, &end);
    if (first == end)
        memset(acc, 0, (size_t)panels * (size_t)p->rows * CPU_PANEL * sizeof *acc);
    for (int32_t g = first, n; g < end; g += n) {
        n = base_min32(end - g, p->block);
        for (int32_t i = 0; i < p->tiles; i++) {
            const int32_t row = product_tile(p, i), rows = product_tile(p, i + 1) - row;
            const float *x = p->packed + (size_t)i * p->tile_floats;
            const ptrdiff_t run = p->run[l] + g - first;
            const struct cpu_run_tile tile = {
                .acc = acc + (size_t)row * CPU_PANEL,
                .x = (const int32_t *)(const void *)x + run * CPU_RUN_WORDS * rows,
                .w = panel + (size_t)g * layout_int_group_bytes(spec),
                .panel_bytes = layout_panel_bytes(spec),
                .runs = n,
                .first = g == first,
                .scales_f32 = spec->scales_f32 != 0,
            };
            cpu_run_fn kernel =
                panels == 1 ? p->isa->run_tile[bits][rows] : p->isa->run_wide[bits][rows];
            kernel(&tile);
        }
    }
}

void product_leaf(const struct product *p, float *acc, int32_t first_panel, int32_t panels,
                  int32_t l)
{
    uint64_t mode = 0;
    const unsigned char *panel =
        p->w->storage + (size_t)first_panel * layout_panel_bytes(&p->w->spec);
    if (p->rounds)
        mode = flush_begin();
    if (p->ints)
        leaf_int(p, acc, panel, panels, l);
    else
        leaf_float(p, acc, panel, panels, l);
    if (p->rounds)
        flush_end(mode);
}
