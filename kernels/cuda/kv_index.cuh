/* Where keys and values lie: [layer][block][head][key, value][16 positions][head_dim]; or of
 * latents, whose values are ends of keys, [layer][block][head][16 positions][head_dim]; or where
 * blocks have a stride, [block][layer]... */
#ifndef TESSERA_KERNELS_CUDA_KV_INDEX_CUH
#define TESSERA_KERNELS_CUDA_KV_INDEX_CUH

#include "kernels/cuda/device.cuh"

/* One layer of a cache. */
struct kv_place {
    int64_t first, step; /* elements: where its block 0 begins, and from a block to the next */
    int32_t heads, dim;
    int32_t latent; /* elements of a key that are its value, the last ones; 0: values are apart */
};

static inline struct kv_place kv_place_of(const struct kv_spec *s, int32_t layer)
{
    const int64_t of_layer =
        (int64_t)s->heads * (s->latent > 0 ? 1 : 2) * BACKEND_BLOCK_TOKENS * s->head_dim;
    const int64_t stride = (int64_t)(s->stride / dtype_size(s->dtype));
    const struct kv_place p = {layer * of_layer * (stride > 0 ? 1 : s->blocks),
                               stride > 0 ? stride : of_layer, s->heads, s->head_dim, s->latent};
    return p;
}

/* Element where one head's keys (or values) of a block begin; 64-bit throughout. */
HOST_DEVICE int64_t kv_index(const struct kv_place *p, int32_t block, int32_t head, bool value)
{
    return p->first + block * p->step + (int64_t)(head * 2 + value) * BACKEND_BLOCK_TOKENS * p->dim;
}

/* The same of keys whose ends are their values. */
HOST_DEVICE int64_t kv_latent_index(const struct kv_place *p, int32_t block, int32_t head)
{
    return p->first + block * p->step + (int64_t)head * BACKEND_BLOCK_TOKENS * p->dim;
}

/* Number of the nth block of a slot. */
HOST_DEVICE int32_t kv_block(const struct rows *rows, int32_t slot, int32_t nth)
{
    return rows->table[(int64_t)slot * rows->table_cols + nth];
}

#endif
