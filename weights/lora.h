/* LoRA adapters: tensors of a checkpoint get scale * B A added while they are read, so that every
 * rank adds to its own part, in any layout, and steps cost what they did. A is [rank, in], B is
 * [out, rank] (Hu et al. 2021, arXiv 2106.09685); files and names as PEFT saves them:
 * adapter_config.json, and adapter_model.safetensors with base_model.model.MODULE.lora_A.weight and
 * lora_B. What it has whole (modules_to_save, the layer beneath an adapted head) is read in the
 * place of the checkpoint's. Immutable after opening: any thread reads. */
#ifndef TESSERA_WEIGHTS_LORA_H
#define TESSERA_WEIGHTS_LORA_H

#include "config/buf.h"
#include "config/dtype.h"
#include "weights/placement.h"
#include "weights/safetensors.h"

#define LORA_ADAPTERS_MAX 16
#define LORA_LIST_MAX 4096 /* bytes */

struct lora;

/* What one adapter does to one tensor of a checkpoint: adds to it, or is read instead. */
struct lora_part {
    char tensor[PLACEMENT_NAME_MAX]; /* MODULE.weight, as checkpoint_find takes it */
    int32_t adapter, ndim;
    int64_t rows, cols; /* of the tensor; of one of one dimension rows is 1 */
    int32_t rank;
    float scale;
    const struct safetensors_entry *a, *b; /* of the adapter's file, NULL: nothing is added */
    const struct safetensors_entry *whole; /* NULL: the checkpoint's is read */
};

/* list: directories with commas between, each with or without :SCALE, which multiplies what its
 * files say. Reads and checks their headers and no values. ERR_USAGE for the list; ERR_MODEL names
 * file, tensor, expected and found: every tensor has to be one of a pair, or whole. */
enum status lora_open(const char *list, struct lora **out, struct err *err) MUST_USE;
void lora_close(struct lora *l);
/* Cuts the ":SCALE" of an item of such a list off and returns it, 1 without one. What is a
 * directory as it stands has none: paths may have colons, too. */
double lora_cut_scale(char *item);

/* All parts, by tensor: first the one that is whole, if there is one, then in the order of their
 * adapters. */
int32_t lora_count(const struct lora *l);
const struct lora_part *lora_at(const struct lora *l, int32_t i);
/* Those of one tensor, *count of them; NULL: there are none. */
const struct lora_part *lora_find(const struct lora *l, const char *tensor, int32_t *count);
/* The directory of an adapter, and its tensors. */
const char *lora_adapter(const struct lora *l, int32_t adapter);
const struct safetensors *lora_file(const struct lora *l, int32_t adapter);
/* Continues a hash with names, lengths and times of their files, and with the scales. */
uint64_t lora_stamp(const struct lora *l, uint64_t hash);
/* A line for each adapter: what it adds to how many tensors. */
void lora_describe(const struct lora *l, struct buf *out);

/* Is there anything for this tensor? l NULL: no. */
bool lora_adapts(const struct lora *l, const char *tensor);
/* Has it no need of the checkpoint's values? l NULL: no. */
bool lora_replaces(const struct lora *l, const char *tensor);
/* values, of type `as`: rows x cols of that tensor, row-major, and what is done to it. there: the
 * same in the tensor's own type, `dtype`, which are read only where they are not replaced; may lie
 * in values. Sums are made in float, the same in every cut of the tensor, and rounded once.
 * ERR_MODEL for one that is not finite in `dtype`. A tensor for which there is nothing is left
 * alone. */
enum status lora_apply(const struct lora *l, const char *tensor, enum dtype dtype, struct span rows,
                       struct span cols, const void *there, enum dtype as, void *values,
                       struct err *err) MUST_USE;

#endif
