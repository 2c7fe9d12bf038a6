/* Bodies of the opaque handles, for backend.c and backends only: they are the same for all, so that
 * backend.c can check shapes without knowing how a backend lays out the storage. */
#ifndef TESSERA_KERNELS_HANDLES_H
#define TESSERA_KERNELS_HANDLES_H

#include "kernels/backend.h"

struct weight {
    struct weight_spec spec;
    struct backend *backend; /* who made it; borrowed */
    unsigned char *storage;  /* borrowed */
};

struct experts {
    struct weight_spec spec; /* of each */
    struct backend *backend;
    int32_t count;
    int32_t rows_max, chosen;     /* for which there is scratch */
    const struct weight **weight; /* [count] */
};

struct kv_cache {
    struct kv_spec spec;
    struct backend *backend;
    unsigned char *storage;
};

#endif
