/* The memory ops of backends whose device is the host: plain memory, copies at once. */
#ifndef TESSERA_KERNELS_HOST_MEMORY_H
#define TESSERA_KERNELS_HOST_MEMORY_H

#include "kernels/backend.h"

enum status host_memory_probe(int32_t devices, size_t *bytes, struct err *err);
void *host_memory_alloc(struct backend *b, size_t bytes);
void host_memory_free(struct backend *b, void *p);
void host_memory_upload(struct backend *b, void *dst, const void *src, size_t bytes);
enum status host_memory_download(struct backend *b, void *dst, const void *src, size_t bytes,
                                 struct err *err);

#endif
