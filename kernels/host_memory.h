/* Ops of backends whose device is the host: plain memory, copies at once, nothing to record, and
 * fp32 everywhere. */
#ifndef TESSERA_KERNELS_HOST_MEMORY_H
#define TESSERA_KERNELS_HOST_MEMORY_H

#include "kernels/backend.h"

enum status host_memory_probe(int32_t devices, size_t *bytes, struct err *err);
size_t host_memory_scratch_bytes(int32_t rows_max, int32_t in_max, int32_t out_max);
void *host_memory_alloc(struct backend *b, size_t bytes);
void host_memory_free(struct backend *b, void *p);
/* The handle alone. */
struct experts *host_memory_experts_open(struct backend *b, const struct weight *const *weight,
                                         int32_t count, int32_t chosen, int32_t rows_max);
void host_memory_experts_close(struct experts *e);
size_t host_memory_experts_bytes(const struct weight_spec *spec, int32_t count, int32_t chosen,
                                 int32_t rows_max);
void host_memory_upload(struct backend *b, void *dst, const void *src, size_t bytes);
enum status host_memory_download(struct backend *b, void *dst, const void *src, size_t bytes,
                                 struct err *err);
void host_memory_fetch(struct backend *b, int32_t flight, void *dst, const void *src, size_t bytes);
bool host_memory_landed(struct backend *b, int32_t flight);
enum status host_memory_land(struct backend *b, int32_t flight, struct err *err);
bool host_memory_record(struct backend *b);
struct recording *host_memory_record_end(struct backend *b);
void host_memory_replay(struct backend *b, const struct recording *r);
void host_memory_recording_close(struct recording *r);

/* The backend's own two, one after the other. */
static inline void host_memory_rope_attend(struct backend *b, struct view out, struct view qkv,
                                           const struct qkv_rules *rules, struct cview table,
                                           const struct heads *h, const struct attention *how,
                                           const struct rows *rows, struct kv_cache *kv,
                                           int32_t layer)
{
    b->ops->rope_kv(b, qkv, rules, table, h, rows, kv, layer);
    b->ops->attend(b, out, cview_of(qkv), h, how, rows, kv, layer);
}

/* linear_in and linear_out: processors' caches and instructions have fp32. */
static inline enum dtype host_memory_linear_type(struct backend *b, const struct weight *w,
                                                 int32_t rows)
{
    (void)b, (void)w, (void)rows;
    return DTYPE_F32;
}

/* linear_fuses: nothing is gained where an op costs no launch. */
static inline bool host_memory_linear_fuses(struct backend *b, const struct weight *w, int32_t rows,
                                            const struct linear_fusion *f)
{
    (void)b, (void)w, (void)rows, (void)f;
    return false;
}

static inline void host_memory_linear_fused(struct backend *b, struct view y, struct cview x,
                                            const struct weight *w, const struct linear_fusion *f)
{
    (void)b, (void)y, (void)x, (void)w, (void)f;
    CHECK(false);
}

#endif
