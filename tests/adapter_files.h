/* Directories of adapters, and small files of tensors, for cmocka tests. */
#ifndef TESSERA_TESTS_ADAPTER_FILES_H
#define TESSERA_TESTS_ADAPTER_FILES_H

#include "tests/scratch.h"
#include "weights/safetensors.h"

#include <string.h>

struct adapter_tensor {
    const char *name;
    enum dtype dtype;
    int32_t ndim;
    int64_t shape[3];
    const float *values; /* NULL: zeros */
};

static inline size_t adapter_elements(const struct adapter_tensor *t)
{
    size_t n = 1;
    for (int32_t d = 0; d < t->ndim; d++)
        n *= (size_t)t->shape[d];
    return n;
}

static inline void adapter_put_tensors(const char *path, const struct adapter_tensor *tensors,
                                       int32_t count)
{
    struct safetensors_entry *entries = calloc((size_t)count + 1, sizeof *entries);
    struct safetensors_writer *w = NULL;
    struct err err = {{0}};
    assert_non_null(entries);
    unlink(path); /* some file systems wait when a file is written over */
    for (int32_t i = 0; i < count; i++) {
        entries[i] = (struct safetensors_entry){
            .name = strdup(tensors[i].name), .dtype = tensors[i].dtype, .ndim = tensors[i].ndim};
        memcpy(entries[i].shape, tensors[i].shape, sizeof tensors[i].shape);
    }
    if (safetensors_create(path, entries, count, NULL, &w, &err) != OK)
        fail_msg("%s", err.text);
    for (int32_t i = 0; i < count; i++) {
        const size_t n = adapter_elements(&tensors[i]), item = dtype_size(tensors[i].dtype);
        void *bytes = calloc(n + 1, item);
        assert_non_null(bytes);
        for (size_t k = 0; tensors[i].values && k < n; k++)
            dtype_store(bytes, tensors[i].dtype, k, tensors[i].values[k]);
        assert_int_equal(safetensors_write(w, bytes, n * item, &err), OK);
        free(bytes);
        free(entries[i].name);
    }
    assert_int_equal(safetensors_finish(w, &err), OK);
    free(entries);
}

/* A directory with both files; config NULL: as it is. */
static inline void adapter_put(const char *dir, const char *config,
                               const struct adapter_tensor *tensors, int32_t count)
{
    char path[PATH_MAX + 32];
    mkdir(dir, 0777);
    snprintf(path, sizeof path, "%s/adapter_config.json", dir);
    if (config) {
        unlink(path);
        scratch_write(path, config, strlen(config));
    }
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", dir);
    adapter_put_tensors(path, tensors, count);
}

#endif
