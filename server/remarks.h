/* What a start says beside its table: sizes that are less than was asked for or could be, and a
 * command to try. */
#ifndef TESSERA_SERVER_REMARKS_H
#define TESSERA_SERVER_REMARKS_H

#include "config/buf.h"
#include "engine/cores.h"
#include "server/setup.h"

/* Warns of a context that the automatic KV cache made shorter than the model's, and of sequences
 * that --max-num-batched-tokens leaves no rows for. */
void remarks_on_sizes(const struct setup *s, const struct footprint *f);
/* Warns when ranks on processors of this machine must share cores. */
void remarks_on_cores(const struct options *o);
/* Says where ranks are on a machine of several NUMA nodes. */
void remarks_on_nodes(const struct options *o, const struct cores_plan *plan);
/* Keeps ranks away from processors that those of other servers on this machine keep to: *o gets a
 * cpu_list, whose text is in `list`, or, where too few are left, with a warning, no binding. */
void remarks_on_neighbours(struct options *o, int32_t threads, struct buf *list);
/* Says in one line where ranks are on a machine of one node. */
void remarks_on_places(const struct options *o, const struct cores_plan *plan);
/* Says that GPUs are left alone; gpus: the folder in which NVIDIA's driver has one for each. */
#define REMARKS_GPUS "/proc/driver/nvidia/gpus"
void remarks_on_gpus(const struct options *o, const char *gpus);
/* A command that asks the server for a completion, or a vector; key_file: where its keys are, NULL:
 * nowhere. */
void remarks_try(const char *host, int32_t port, const char *key_file, bool has_tokenizer,
                 bool pools, struct buf *out);
/* The URL of the server's chat page. */
void remarks_page(const char *host, int32_t port, struct buf *out);

#endif
