/* Groups of layers: those of a group have one block table, and a block has the keys and values of
 * 16 positions in as many layers as a group has. Layers that attend to everything are in other
 * groups than those that slide; these give a block back when no row to come sees it. Layers that
 * recur have no keys and values and are in no group. All groups
 * take their blocks from one pool, so whatever a text needs more of is what it gets.
 *
 * As vLLM's hybrid KV cache manager does it (vllm/v1/core/kv_cache_utils.py). */
#ifndef TESSERA_ENGINE_KV_GROUPS_H
#define TESSERA_ENGINE_KV_GROUPS_H

#include "config/model_config.h"
#include "kernels/backend.h"

/* Of layers that all have the same heads no more than the second: more are more block tables. */
enum { KV_GROUPS_MAX = 24, KV_GROUPS_ALIKE = 8 };

struct kv_groups {
    int32_t keep, slide; /* how many there are: first those that keep all, then those that slide */
    int32_t layers;      /* of each; the last of either kind may have fewer */
    int32_t window;      /* positions that a row sees in those that slide, its own among them */
    int32_t keep_layers; /* of those that keep all, where it is another number, because their heads
                            are others (model_config's global); 0: it is not */
};

/* Those with which a text of the whole context, computed up to `rows` positions at a time, takes
 * least memory; of equals the fewest. Blocks have room that no layer uses where the layers of a
 * kind do not divide, so with short contexts that is one group, unless layers that slide have other
 * heads. bytes: of a block of one layer, of each kind of heads. */
struct kv_groups kv_groups_find(const struct model_config *m, const size_t bytes[MODEL_KINDS],
                                int32_t context, int32_t rows);
/* Those of so many layers; 0: one of all layers, which keeps all; so it is where none slides.
 * keep_layers: as in the struct. */
struct kv_groups kv_groups_of(const struct model_config *m, int32_t layers, int32_t keep_layers);
/* A block's layers of that kind of heads, and its bytes. */
int32_t kv_groups_layers(const struct kv_groups *g, int32_t kind);
size_t kv_groups_bytes(const struct kv_groups *g, const size_t bytes[MODEL_KINDS]);
static inline int32_t kv_groups_count(const struct kv_groups *g)
{
    return g->keep + g->slide;
}

/* Where the keys and values of a layer that attends are. */
struct kv_group_place {
    int32_t group, layer; /* layer: of those of a block */
};
struct kv_group_place kv_groups_place(const struct kv_groups *g, const struct model_config *m,
                                      int32_t layer);

/* Blocks for this many positions, in one group. */
int32_t kv_blocks_for(int32_t positions);
/* The first block that a row at this position sees in groups that slide. */
int32_t kv_groups_first(const struct kv_groups *g, int32_t position);
/* Blocks of all groups that a text of so many positions has at most, while it is computed up to
 * `rows` positions at a time. */
int64_t kv_groups_need(const struct kv_groups *g, int32_t positions, int32_t rows);
/* The longest text, up to `longest`, that needs no more than so many blocks. */
int32_t kv_groups_longest(const struct kv_groups *g, int64_t blocks, int32_t rows, int32_t longest);

#endif
