/* DESIGN: weights lie in panels of 32 outputs interleaved by k: [ceil(out/32)][in][32], the last
 * panel zero padded, so that vector lanes hold different outputs and every output is one ascending
 * chain over k. Loading a model is one pass of weight_put over it, so whole panels go through a
 * small staged transpose; parts of a panel (the seam between two tensors fused into one weight)
 * take an element-wise path. Lines of F8_E4M3 lie in pairs of 64 bytes, where each 32 bits hold two
 * outputs of two k, so that shifts alone widen them in place (I8 and I4: layout_int.c). Lines of
 * BF16 lie in pairs of 128 bytes, outputs 0 to 15 first, where each 32 bits hold two k of an
 * output, the first in the upper half, which VDPBF16PS adds first. Behind the
 * codes of a panel are its scales, [scales][32], so that panels stay whole wherever they are sent.
 * Keys are stored transposed, [head_dim][16 positions]: lanes hold keys. Latents, which are the
 * last lines of a key, have no other place.
 */
#include "kernels/cpu/cpu.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14; the C library's headers may be older */
#endif

/* Whole lines; of F8_E4M3 and BF16 whole pairs of them. */
static size_t values_bytes(const struct weight_spec *spec)
{
    const size_t unit = spec->dtype == DTYPE_BF16 ? 2 * CPU_LINE : CPU_LINE;
    return base_align((size_t)spec->in * CPU_PANEL * dtype_size(spec->dtype), unit);
}

size_t layout_panel_bytes(const struct weight_spec *spec)
{
    if (dtype_is_int(spec->dtype))
        return (size_t)backend_scales(spec) * layout_int_group_bytes(spec);
    return values_bytes(spec) + (size_t)backend_scales(spec) * CPU_PANEL * sizeof(float);
}

float *layout_scale(const struct weight_spec *spec, const unsigned char *panel, int32_t k)
{
    const size_t lines = (size_t)backend_scale_of(spec, k) * CPU_PANEL;
    return (float *)(uintptr_t)(panel + values_bytes(spec)) + lines;
}

size_t layout_weight_bytes(const struct weight_spec *spec)
{
    return ((size_t)spec->out + CPU_PANEL - 1) / CPU_PANEL * layout_panel_bytes(spec);
}

size_t layout_place(enum dtype t, int32_t k, int32_t j)
{
    const size_t side = (size_t)j / 16, lane = (size_t)j % 16, line = (size_t)k;
    if (t == DTYPE_F8_E4M3)
        return line / 2 * CPU_LINE + 4 * lane + 2 * side + line % 2;
    if (t == DTYPE_BF16)
        return (line / 2 * 2 + side) * CPU_LINE + 4 * lane + 2 * (1 - line % 2);
    return (line * CPU_PANEL + (size_t)j) * dtype_size(t);
}

size_t layout_line(enum dtype t, int32_t k)
{
    const bool pairs = t == DTYPE_F8_E4M3 || t == DTYPE_BF16;
    return (size_t)(pairs ? k / 2 * 2 : k) * CPU_PANEL * dtype_size(t);
}

struct weight *layout_weight_open(struct backend *b, const struct weight_spec *spec, void *storage)
{
    CHECK((uintptr_t)storage % 64 == 0); /* weight_put streams whole lines */
    CHECK(!dtype_is_int(spec->dtype) || spec->scale_cols == BACKEND_GROUP);
    struct weight *w = malloc(sizeof *w);
    if (w != NULL)
        *w = (struct weight){*spec, b, storage};
    return w;
}

void layout_weight_close(struct weight *w)
{
    free(w);
}

struct source {
    const unsigned char *data;
    enum dtype dtype;
    size_t stride;
};

static void put_panel(struct weight *w, unsigned char *panel, const struct source *src, int32_t n)
{
    const struct cpu_isa *isa = cpu_of(w->backend)->isa;
    const enum dtype t = w->spec.dtype;
    const size_t size = dtype_size(t), from = dtype_size(src->dtype);
    ALIGNED64 unsigned char stage[CPU_PANEL * (CPU_STAGE * sizeof(float) + 64)];
    const size_t pitch = CPU_STAGE * size + 64; /* not a power of two: spreads over the sets */
    for (int32_t c = 0; c < w->spec.in; c += CPU_STAGE) {
        const int32_t k = w->spec.in - c < CPU_STAGE ? w->spec.in - c : CPU_STAGE;
        if (n < CPU_PANEL || k < CPU_STAGE)
            memset(stage, 0, sizeof stage);
        for (int32_t j = 0; j < n; j++) {
            const unsigned char *row = src->data + (size_t)j * src->stride + (size_t)c * from;
            for (size_t i = 0; i < CPU_STAGE * from; i += 64) /* the next step, or harmless */
                __builtin_prefetch(row + CPU_STAGE * from + i);
            isa->convert(stage + (size_t)j * pitch, t, row, src->dtype, k);
        }
        isa->interleave(panel + (size_t)c * CPU_PANEL * size, stage, pitch, k, t);
    }
}

static void put_row(struct weight *w, unsigned char *panel, int32_t j, const unsigned char *src,
                    enum dtype src_dtype)
{
    const struct cpu_isa *isa = cpu_of(w->backend)->isa;
    const enum dtype t = w->spec.dtype;
    const size_t size = dtype_size(t), from = dtype_size(src_dtype);
    ALIGNED64 unsigned char line[CPU_STAGE * sizeof(float)];
    for (int32_t c = 0; c < w->spec.in; c += CPU_STAGE) {
        const int32_t k = w->spec.in - c < CPU_STAGE ? w->spec.in - c : CPU_STAGE;
        isa->convert(line, t, src + (size_t)c * from, src_dtype, k);
        for (int32_t i = 0; i < k; i++)
            memcpy(panel + layout_place(t, c + i, j), line + (size_t)i * size, size);
    }
}

/* Most of a load's time is the first touch of fresh pages: taking a whole piece at once saves a
 * fault per page. Only a hint: a kernel that does not know it lets the stores fault as ever. */
static void populate(const unsigned char *begin, size_t bytes)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)begin & ~(page - 1);
    (void)madvise((void *)at, (uintptr_t)begin + bytes - at, MADV_POPULATE_WRITE);
}

void layout_weight_put(struct weight *w, int32_t row, int32_t rows, const void *src,
                       enum dtype src_dtype, size_t stride)
{
    struct source from = {src, src_dtype, stride};
    const size_t panel_bytes = layout_panel_bytes(&w->spec);
    const int32_t end = row + rows;
    CHECK(row >= 0 && rows >= 0 && rows <= w->spec.out - row);
    const bool ints = dtype_is_int(w->spec.dtype);
    CHECK((w->spec.dtype == DTYPE_F8_E4M3) == (src_dtype == DTYPE_F8_E4M3));
    CHECK(ints == (src_dtype == DTYPE_I8));
    if (rows >= CPU_PANEL)
        populate(w->storage + (size_t)(row / CPU_PANEL) * panel_bytes,
                 (size_t)(rows / CPU_PANEL) * panel_bytes);
    while (row < end) {
        unsigned char *panel = w->storage + (size_t)(row / CPU_PANEL) * panel_bytes;
        int32_t j = row % CPU_PANEL;
        int32_t n = end - row < CPU_PANEL - j ? end - row : CPU_PANEL - j;
        if (ints) {
            layout_int_put(&w->spec, panel, j, n, (const int8_t *)from.data, stride);
        } else if (j == 0 && (n == CPU_PANEL || end == w->spec.out)) {
            put_panel(w, panel, &from, n);
        } else {
            for (int32_t i = 0; i < n; i++)
                put_row(w, panel, j + i, from.data + (size_t)i * stride, src_dtype);
        }
        from.data += (size_t)n * stride;
        row += n;
    }
}

static unsigned char *panel_of(const struct weight *w, int32_t row)
{
    return w->storage + (size_t)(row / CPU_PANEL) * layout_panel_bytes(&w->spec);
}

void layout_weight_scale(struct weight *w, int32_t row, int32_t rows, const float *scale)
{
    const bool ints = dtype_is_int(w->spec.dtype);
    for (int32_t end = row + rows; row < end; row++) {
        if (ints) {
            layout_int_scale(&w->spec, panel_of(w, row), row % CPU_PANEL, scale);
            scale += backend_scales(&w->spec);
            continue;
        }
        float *lane = layout_scale(&w->spec, panel_of(w, row), 0) + row % CPU_PANEL;
        for (int32_t s = 0; s < backend_scales(&w->spec); s++)
            lane[(ptrdiff_t)s * CPU_PANEL] = *scale++;
    }
}

void layout_weight_get(const struct weight *w, int32_t row, float *dst)
{
    const unsigned char *panel = panel_of(w, row);
    if (dtype_is_int(w->spec.dtype)) {
        layout_int_get(&w->spec, panel, row % CPU_PANEL, dst);
        return;
    }
    for (int32_t k = 0; k < w->spec.in; k++) {
        dst[k] =
            dtype_load(panel + layout_place(w->spec.dtype, k, row % CPU_PANEL), w->spec.dtype, 0);
        if (w->spec.dtype == DTYPE_F8_E4M3)
            dst[k] *= layout_scale(&w->spec, panel, k)[row % CPU_PANEL];
    }
}

int32_t layout_kv_dim(const struct kv_spec *spec)
{
    return (spec->head_dim + 15) / 16 * 16;
}

static size_t kv_half(const struct kv_spec *spec)
{
    return (size_t)layout_kv_dim(spec) * BACKEND_BLOCK_TOKENS * dtype_size(spec->dtype);
}

/* Of one block and head. */
static size_t kv_block_bytes(const struct kv_spec *spec)
{
    return (spec->latent > 0 ? 1 : 2) * kv_half(spec);
}

size_t layout_kv_values(const struct kv_spec *spec)
{
    const size_t lines = (size_t)(spec->head_dim - spec->latent);
    return spec->latent > 0 ? lines * BACKEND_BLOCK_TOKENS * dtype_size(spec->dtype)
                            : kv_half(spec);
}

size_t layout_kv_bytes(const struct kv_spec *spec)
{
    if (spec->stride > 0)
        return (size_t)spec->blocks * spec->stride;
    return (size_t)spec->layers * (size_t)spec->blocks * (size_t)spec->heads * kv_block_bytes(spec);
}

struct kv_cache *layout_kv_open(struct backend *b, const struct kv_spec *spec, void *storage)
{
    struct kv_cache *kv = malloc(sizeof *kv);
    if (kv != NULL)
        *kv = (struct kv_cache){*spec, b, storage};
    return kv;
}

void layout_kv_close(struct kv_cache *kv)
{
    free(kv);
}

unsigned char *layout_kv_block(const struct kv_cache *kv, int32_t layer, int32_t block,
                               int32_t head)
{
    const struct kv_spec *s = &kv->spec;
    const size_t of_layer = (size_t)s->heads * kv_block_bytes(s); /* in a block */
    const size_t at = s->stride > 0
                          ? (size_t)layer * of_layer + (size_t)block * s->stride
                          : ((size_t)layer * (size_t)s->blocks + (size_t)block) * of_layer;
    return kv->storage + at + (size_t)head * kv_block_bytes(s);
}
