/* Weights with generated values, on any backend, for tests of products. */
#ifndef TESSERA_TESTS_MADE_WEIGHT_H
#define TESSERA_TESTS_MADE_WEIGHT_H

#include "tests/subjects.h"

/* Some of 0.001 to 0.02, all bits of the mantissa in use; of integers values of bf16, and of
 * either sign; of E2M1 powers of two. */
static inline float *scales_of(const struct weight_spec *spec)
{
    const size_t n = (size_t)spec->out * (size_t)backend_scales(spec);
    float *scale = aligned_bytes(n * sizeof *scale, 0xff);
    for (size_t i = 0; i < n; i++) {
        scale[i] = 0.0105f + 0.0095f * gen(8, i);
        if (spec->dtype == DTYPE_F4_E2M1)
            scale[i] = ldexpf(1, (int)(gen(9, i) * 3) - 8);
        else if (dtype_is_int(spec->dtype) && !spec->scales_f32)
            scale[i] = dtype_from_bf16(dtype_to_bf16(gen(9, i) < 0 ? -scale[i] : scale[i]));
    }
    return scale;
}

/* What a backend keeps of a scale of integers: a GPU 11 bits of one in F32. */
UNUSED static float kept_scale(const struct backend *b, const struct weight_spec *spec, float scale)
{
    int exponent;
    if ((b != device && b != invariant) || !spec->scales_f32)
        return scale;
    const float mantissa = frexpf(scale, &exponent);
    return ldexpf(nearbyintf(mantissa * 0x1p11f), exponent - 11);
}

/* The type that weight_put takes for a storage type, and the range of its values. */
static inline enum dtype put_dtype(enum dtype storage)
{
    return dtype_is_int(storage) ? DTYPE_I8 : storage;
}

/* Twice the values of E2M1 (OCP Microscaling Formats 1.0, table 5.3.3). */
static const int8_t e2m1[15] = {-12, -8, -6, -4, -3, -2, -1, 0, 1, 2, 3, 4, 6, 8, 12};

static inline float put_range(enum dtype storage)
{
    return storage == DTYPE_F8_E4M3 ? 96.0f
           : storage == DTYPE_I8    ? 127.9f
           : storage == DTYPE_I4    ? 7.9f
                                    : 1.0f;
}

/* Such a value, of one from -1 to 1. */
static inline float put_value(enum dtype storage, float unit)
{
    if (storage == DTYPE_F4_E2M1)
        return e2m1[(int)((unit + 1) * 7.49f)];
    if (storage == DTYPE_U4)
        return unit * 7.9f - 1.9f; /* -9 to 6 */
    return unit * put_range(storage);
}

static inline struct weight *made(struct backend *b, const struct weight_spec *spec, uint64_t seed,
                                  enum dtype src_dtype, int32_t seam, void **storage)
{
    const size_t size = dtype_size(src_dtype), stride = (size_t)spec->in * size + 2 * size;
    unsigned char *src = aligned_bytes((size_t)spec->out * stride, 0xff);
    for (int32_t r = 0; r < spec->out; r++)
        for (int32_t k = 0; k < spec->in; k++)
            dtype_store(src + (size_t)r * stride, src_dtype, (size_t)k,
                        put_value(spec->dtype, gen(seed, (size_t)r * 100003 + (size_t)k)));
    const size_t bytes = b->ops->weight_bytes(spec);
    *storage = aligned_bytes(bytes, 0);
    memset((unsigned char *)*storage + bytes, 0xa5, 64);
    struct weight *w = must(b->ops->weight_open(b, spec, *storage));
    b->ops->weight_put(w, seam, spec->out - seam, src + (size_t)seam * stride, src_dtype, stride);
    b->ops->weight_put(w, 0, seam, src, src_dtype, stride);
    if (dtype_is_scaled(spec->dtype)) {
        float *scale = scales_of(spec);
        const ptrdiff_t at = (ptrdiff_t)seam * backend_scales(spec);
        b->ops->weight_scale(w, 0, seam, scale);
        b->ops->weight_scale(w, seam, spec->out - seam, scale + at);
        free(scale);
    }
    for (size_t i = 0; i < 64; i++)
        assert_int_equal(((unsigned char *)*storage)[bytes + i], 0xa5);
    free(src);
    return w;
}

/* What rank r of `ranks` has of a weight that made() fills: some leaves of it. */
UNUSED static struct weight *made_part(struct backend *b, const struct weight_spec *whole,
                                       uint64_t seed, int32_t ranks, int32_t r, void **storage)
{
    const int32_t leaves = whole->leaves / ranks, first = leaves * r, at = whole->cut[first];
    const size_t size = dtype_size(put_dtype(whole->dtype));
    struct weight_spec spec = *whole;
    spec.leaves = leaves;
    spec.in = whole->cut[first + leaves] - at;
    for (int32_t l = 0; l <= leaves; l++)
        spec.cut[l] = whole->cut[first + l] - at;
    spec.scale_skip = whole->scale_cols > 0 ? at % whole->scale_cols : 0;
    const size_t stride = (size_t)spec.in * size;
    unsigned char *src = aligned_bytes((size_t)spec.out * stride, 0xff);
    for (int32_t o = 0; o < spec.out; o++)
        for (int32_t k = 0; k < spec.in; k++)
            dtype_store(src + (size_t)o * stride, put_dtype(whole->dtype), (size_t)k,
                        put_value(whole->dtype, gen(seed, (size_t)o * 100003 + (size_t)(at + k))));
    *storage = aligned_bytes(b->ops->weight_bytes(&spec), 0);
    struct weight *w = must(b->ops->weight_open(b, &spec, *storage));
    b->ops->weight_put(w, 0, spec.out, src, put_dtype(whole->dtype), stride);
    free(src);
    if (dtype_is_scaled(whole->dtype)) {
        const int32_t all = backend_scales(whole), some = backend_scales(&spec);
        float *scale = scales_of(whole), *mine = aligned_bytes((size_t)(spec.out * some) * 4, 0xff);
        for (int32_t o = 0; o < spec.out; o++)
            for (int32_t i = 0; i < some; i++)
                mine[o * some + i] = scale[o * all + backend_scale_of(whole, at) + i];
        b->ops->weight_scale(w, 0, spec.out, mine);
        free(scale);
        free(mine);
    }
    return w;
}

/* Up to here a device promises the bits of a row alone. */
#define DEVICE_FEW_ROWS 16

/* The same of one leaf. */
static inline struct weight *made_whole(struct backend *b, int32_t out, int32_t in,
                                        enum dtype dtype, int32_t scale_cols, void **storage)
{
    struct weight_spec spec = {.out = out, .in = in, .dtype = dtype, .leaves = 1, .cut = {0, in}};
    spec.scale_cols = scale_cols;
    return made(b, &spec, 7, put_dtype(dtype), 0, storage);
}

/* 32 bits each, of n elements. */
static inline size_t words_of(size_t n, enum dtype dtype)
{
    return (n * dtype_size(dtype) + 3) / 4;
}

/* Six standard deviations of a sum of `in` products of these tests whose x are rounded: to 16 bits
 * for few rows, else to 8 (bf16) or 4 (E4M3: 2.6 % of an x, x 0.58 and weights 1.1 in root mean
 * square where the scale is largest). With bf16, and with integers, whose values are up to 2.5, ref
 * rounds them, too, to 8 bits. */
static inline double device_bound(int32_t rows, int32_t in, enum dtype dtype, double exact)
{
    if (dtype == DTYPE_F32)
        return exact;
    if (dtype_is_int(dtype))
        return sqrt(in) * 0x1p-6;
    return sqrt(in) * (dtype == DTYPE_BF16       ? 0x1p-8
                       : rows <= DEVICE_FEW_ROWS ? 0x1p-16
                       : dtype == DTYPE_F8_E4M3  ? 0.1
                                                 : 0x1p-8);
}

#endif
