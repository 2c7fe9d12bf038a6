/* Some rows of x times one weight: how x is packed, and the sums of one leaf for some panels. For
 * linear.c and experts.c, which cut the work, fold the leaves and own the scratch. */
#ifndef TESSERA_KERNELS_CPU_PRODUCT_H
#define TESSERA_KERNELS_CPU_PRODUCT_H

#include "kernels/cpu/cpu.h"

#define PRODUCT_SLACK 16 /* floats that the pack kernel may write behind a tile */

struct product {
    const struct cpu_isa *isa;
    const struct weight *w;
    const float *packed; /* tile_floats from one tile to the next; the caller sets it */
    size_t tile_floats;  /* room for a whole tile, and the slack */
    size_t row_words;    /* of a packed row */
    int32_t rows, tiles;
    int32_t group;                       /* panels at once, or one */
    int32_t block;                       /* k per block; of I8 and I4: groups */
    bool widens;                         /* F8_E4M3: a block becomes F32 once for all tiles */
    bool rounds;                         /* BF16: x to it */
    int32_t word;                        /* columns in a packed word; of integers not said */
    bool ints;                           /* I8, I4 */
    bool packs;                          /* false: a row that is used where it is */
    int32_t run[BACKEND_LEAVES_MAX + 1]; /* then: the first of each leaf, and how many in all, */
    int32_t slices;                      /* which are packed in so many slices */
};

struct product product_of(const struct cpu_isa *isa, const struct weight *w, int32_t rows);
/* Packed words per row, at most, for any type. */
size_t product_words(int32_t in);
int32_t product_panels(const struct weight *w);
int32_t product_tiles(int32_t rows);
/* The first row of a tile; of the one behind the last: how many there are. */
int32_t product_tile(const struct product *p, int32_t tile);
/* Floats: packs `rows` rows of x, `stride` apart, as a tile. */
void product_pack(const struct product *p, float *tile, const float *x, size_t stride,
                  int32_t rows);
/* Integers: packs one slice of x as row `row` of a tile of `rows`. */
void product_pack_runs(const struct product *p, float *tile, int32_t rows, int32_t row,
                       const float *x, int32_t slice);
/* acc = the chains of leaf l; acc[panels][rows][32] when there is one tile, [rows][32] else (then
 * panels is 1). panels: 1 or group. */
void product_leaf(const struct product *p, float *acc, int32_t first_panel, int32_t panels,
                  int32_t l);

#endif
