/* adapter_config.json of a LoRA adapter, as PEFT writes it (peft/tuners/lora/config.py): the rank
 * of each module's matrices, and what their product is multiplied by. */
#ifndef TESSERA_CONFIG_LORA_CONFIG_H
#define TESSERA_CONFIG_LORA_CONFIG_H

#include "config/jdoc.h"

#define LORA_CONFIG_NAME "adapter_config.json"
#define LORA_CONFIG_RANK_MAX 4096

struct lora_config {
    int32_t rank;
    double alpha;
    bool rank_stabilized; /* alpha / sqrt(rank) instead of alpha / rank (arXiv 2312.03732) */
    const struct jdoc *ranks, *alphas; /* of modules that have their own; NULL: none has */
    const struct jdoc *targets;        /* list of names; NULL: any */
    struct jdoc *root;                 /* owned */
};

/* ERR_MODEL with file and key for what changes a model otherwise than by products of two matrices:
 * DoRA, biases, layers that stand for several, starts that change the model itself, and patterns of
 * modules that are more than names. lora_config_close afterwards, also on failure. */
enum status lora_config_load(const char *dir, struct lora_config *out, struct err *err) MUST_USE;
void lora_config_close(struct lora_config *c);

/* Of a module by its whole name, as model.layers.0.self_attn.q_proj. */
bool lora_config_targets(const struct lora_config *c, const char *module);
int32_t lora_config_rank(const struct lora_config *c, const char *module);
double lora_config_scale(const struct lora_config *c, const char *module);

#endif
