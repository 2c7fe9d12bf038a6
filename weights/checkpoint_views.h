/* Views: tensors that a file has in another shape than models are described in, as what they hold,
 * without a copy: where elements lie one after the other the same way, a part of a tensor is a
 * tensor. Private to weights/.
 *
 *   X.mlp.experts.gate_up_proj [E, 2 F, D]   X.mlp.experts.N.gate_proj.weight and up_proj, [F, D]
 *   X.mlp.experts.down_proj [E, D, F]        X.mlp.experts.N.down_proj.weight [D, F]
 *   X.mlp.experts.gate_up_proj_scale_inv [E, R, C] and [E, 1, C], which is both's, and
 *   X.mlp.experts.down_proj_scale_inv [E, R, C]: of codes, likewise
 *   X.conv1d.weight [C, 1, taps]             the same name, a vector [C * taps]
 *
 * as transformers 5, Qwen3.5 and Mistral Small 4 have experts, and as PyTorch has convolutions of
 * single channels. */
#ifndef TESSERA_WEIGHTS_CHECKPOINT_VIEWS_H
#define TESSERA_WEIGHTS_CHECKPOINT_VIEWS_H

#include "weights/placement.h"
#include "weights/safetensors.h"

struct checkpoint_view {
    char name[PLACEMENT_NAME_MAX];
    int32_t ndim;
    int64_t shape[2]; /* as in struct checkpoint_piece */
    uint64_t offset;  /* from the entry's first byte */
};

/* How many views an entry is seen through, by its name and shape; 0: it is what it is, as one of an
 * odd number of rows is that would be gates and ups, or one of more than BACKEND_EXPERTS_MAX. */
int32_t checkpoint_views_count(const struct safetensors_entry *e);
/* View `index` of them. name: the entry's, as a model that makes tokens has it. False: the view's
 * would be too long. */
bool checkpoint_views_get(const struct safetensors_entry *e, const char *name, int32_t index,
                          struct checkpoint_view *out);

#endif
