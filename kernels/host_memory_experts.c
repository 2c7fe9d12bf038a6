#include "kernels/handles.h"
#include "kernels/host_memory.h"

#include <stdlib.h>
#include <string.h>

struct experts *host_memory_experts_open(struct backend *b, const struct weight *const *weight,
                                         int32_t count, int32_t chosen, int32_t rows_max)
{
    struct experts *e = malloc(sizeof *e);
    const struct weight **own = calloc((size_t)count, sizeof(void *));
    if (!e || !own) {
        free(e);
        free(own);
        return NULL;
    }
    memcpy(own, weight, (size_t)count * sizeof(void *));
    *e = (struct experts){weight[0]->spec, b, count, rows_max, chosen, own};
    return e;
}

void host_memory_experts_close(struct experts *e)
{
    if (!e)
        return;
    free(e->weight);
    free(e);
}

size_t host_memory_experts_bytes(const struct weight_spec *spec, int32_t count, int32_t chosen,
                                 int32_t rows_max)
{
    (void)spec, (void)count, (void)chosen, (void)rows_max;
    return 0;
}
