/* DESIGN: y[T, out] = x[T, in] w[out, in]^T in three ways, and in a fourth if bits are not to
 * depend on T (below). Few rows: own kernels at the speed of memory, x in fp32 (gemv.cu), or in two
 * bf16 and as many bits (narrow.cu: integers from 9 rows on). Many rows: cuBLAS on tensor cores, x
 * rounded to the weight's type first (fp32 weights: neither rounding nor tf32), fp32 accumulation.
 * Bytes count then, so whoever makes x may write it rounded (linear_in), and a result may be
 * rounded to 16 bits, once (linear_out). The leaves of the weight's spec are not used here. Codes
 * of 4 and 8 bits become bf16 in registers for up to NARROW_ROWS rows, x rounded to bf16
 * (narrow.cu). Beyond, F8_E4M3 weights with a scale per row, where cuBLAS has a kernel for that
 * (sm_90 with 12.9 or newer): x becomes E4M3, too, with a scale per row of its own. Else, and of
 * integers, the weight is widened to bf16, a tile of its rows at a time; that moves five to nine
 * times the bytes of the codes.
 *
 * The fourth way: our own kernels for many rows, too (narrow.cu, gemm.cu), whose results have the
 * bits of those for few; and each leaf is a product of its own, as if it were another rank's. */
#include "kernels/cuda/product.cuh"

#include "kernels/cuda/blas.h"

#define THREADS 256
#define SPAN (8 * THREADS) /* columns of a block that converts */
#define TILE_OUTPUTS 64    /* a tile is a multiple: y's rows begin at 16 bytes if they did before */

/* ---- x in the weight's type ---- */

/* x[rows, in] fp32 to y[rows, pitch] in the weight's type, zeros in the tail. Block (row, part). */
template <typename E, bool ALIGNED>
__global__ void convert_kernel(E *y, const float *x, int32_t in, int32_t pitch)
{
    const float *from = x + (int64_t)blockIdx.x * in;
    const int32_t first = (int32_t)(blockIdx.y * SPAN + threadIdx.x * 8);
    pack<float, 4> v[2] = {};
    pack<E, 8> to;
    launch_release();
    launch_wait();
    if (first >= pitch)
        return;
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (ALIGNED && i % 4 == 0)
            v[i / 4] = *(const pack<float, 4> *)(from + first + i);
        else if (!ALIGNED && first + i < in)
            v[i / 4].e[i % 4] = from[first + i];
#pragma unroll
    for (int i = 0; i < 8; i++)
        from_float(to.e + i, v[i / 4].e[i % 4]);
    E *at = y + (int64_t)blockIdx.x * pitch + first;
    if (sizeof to <= 16) {
        *(pack<E, 8> *)at = to;
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (first + i < pitch) /* which is whole fours */
                at[i] = to.e[i];
    }
}

/* x in that type, with `pitch` columns: itself, or what becomes of it in c->x. */
template <typename E>
static const void *convert(struct cuda_backend *c, struct cview x, enum dtype dtype, int32_t pitch)
{
    if (x.dtype == dtype && pitch == x.cols)
        return x.data;
    CHECK(x.dtype == DTYPE_F32);
    const dim3 grid((unsigned)x.rows, blocks_for((size_t)pitch, SPAN));
    E *to = (E *)c->x.data;
    const float *from = (const float *)x.data;
    if (x.cols % 8 == 0 && (uintptr_t)from % 16 == 0)
        LAUNCH_AHEAD(c, (convert_kernel<E, true>), grid, THREADS, 0, to, from, x.cols, pitch);
    else
        LAUNCH_AHEAD(c, (convert_kernel<E, false>), grid, THREADS, 0, to, from, x.cols, pitch);
    return to;
}

/* What a row is divided by so that its largest magnitude, given by its bits, is E4M3's largest. */
DEVICE float scale_of(uint32_t most)
{
    const float largest = __uint_as_float(most) / DTYPE_E4M3_MAX;
    return largest < FLT_MIN ? FLT_MIN : largest;
}

DEVICE uint32_t magnitude_of(float x)
{
    return __float_as_uint(x) & 0x7fffffffu;
}

/* A block per row: its scale takes the largest magnitude to E4M3's. A NaN or an infinity makes the
 * scale one, and so all of the row's products. */
template <typename E>
__global__ void quantize_kernel(e4m3 *y, float *scale, const E *x, int32_t in, int32_t pitch)
{
    const E *row = x + (int64_t)blockIdx.x * in;
    e4m3 *codes = y + (int64_t)blockIdx.x * pitch;
    uint32_t most = 0; /* magnitudes in the order of their bits; NaN on top */
    for (int32_t k = (int32_t)threadIdx.x; k < in; k += THREADS)
        most = maximum()(most, magnitude_of(to_float(row[k])));
    const float by = scale_of(reduce_block(most, maximum()));
    for (int32_t k = (int32_t)threadIdx.x; k < pitch; k += THREADS)
        from_float(codes + k, k < in ? to_float(row[k]) / by : 0.0f);
    if (threadIdx.x == 0)
        scale[blockIdx.x] = by;
}

/* x / by, rounded as a division rounds, for a `by` that is far from the ends of what floats can be:
 * the first quotient is off by two units in its last place at most, and what it leaves of x puts it
 * right. Quotients that are zero in E4M3 may be off; their sign is right. */
DEVICE float divided(float x, float by, float inverse)
{
    float y = x * inverse;
#pragma unroll
    for (int i = 0; i < 2; i++)
        y = fmaf(fmaf(-y, by, x), inverse, y);
    return copysignf(y, x);
}

DEVICE bool is_moderate(float by)
{
    return by > 0x1p-80f && by < 0x1p100f;
}

/* Eight codes of x / by. */
DEVICE pack<e4m3, 8> codes_of(const float (&x)[8], float by, float inverse)
{
    pack<uint32_t, 2> words = {};
    pack<e4m3, 8> codes;
    if (is_moderate(by)) {
#pragma unroll
        for (int i = 0; i < 8; i += 2) {
            const float first = divided(x[i], by, inverse), second = divided(x[i + 1], by, inverse);
            words.e[i / 4] |= mma_codes(first, second) << (i % 4 * 8);
        }
        memcpy(&codes, &words, sizeof codes);
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++)
            from_float(codes.e + i, x[i] / by);
    }
    return codes;
}

/* The same, with the same bits but for the tail of a row with a NaN, of rows that are read once: a
 * thread holds VECTORS of eight. */
template <typename E, int VECTORS>
__global__ void __launch_bounds__(THREADS)
    quantize_held_kernel(e4m3 *y, float *scale, const E *x, int32_t in, int32_t pitch)
{
    const E *row = x + (int64_t)blockIdx.x * in;
    e4m3 *codes = y + (int64_t)blockIdx.x * pitch;
    pack<E, 8> held[VECTORS] = {};
    uint32_t most = 0;
    float v[8];
#pragma unroll
    for (int n = 0; n < VECTORS; n++) {
        const int32_t k = (int32_t)(n * THREADS + threadIdx.x) * 8;
        if (k < in)
            held[n] = *(const pack<E, 8> *)(row + k);
    }
#pragma unroll
    for (int n = 0; n < VECTORS; n++) {
        widen(v, held[n]);
#pragma unroll
        for (int i = 0; i < 8; i++)
            most = maximum()(most, magnitude_of(v[i]));
    }
    const float by = scale_of(reduce_block(most, maximum())), inverse = 1 / by;
#pragma unroll
    for (int n = 0; n < VECTORS; n++) {
        const int32_t k = (int32_t)(n * THREADS + threadIdx.x) * 8;
        widen(v, held[n]);
        if (k < pitch)
            *(pack<e4m3, 8> *)(codes + k) = codes_of(v, by, inverse);
    }
    if (threadIdx.x == 0)
        scale[blockIdx.x] = by;
}

/* x[rows, in] to y[rows, pitch], zeros in the tail, with a scale per row. */
template <typename E>
static void quantize(struct cuda_backend *c, e4m3 *y, float *scale, struct cview x, int32_t pitch)
{
    const E *from = (const E *)x.data;
    const unsigned rows = (unsigned)x.rows, vectors = blocks_for((size_t)pitch, SPAN);
    const bool aligned = x.cols % 8 == 0 && (uintptr_t)from % sizeof(pack<E, 8>) == 0 &&
                         pitch % 8 == 0 && (uintptr_t)y % 8 == 0;
    if (!aligned || vectors > 8)
        LAUNCH(c, quantize_kernel<E>, rows, THREADS, 0, y, scale, from, x.cols, pitch);
    else if (vectors > 4)
        LAUNCH(c, (quantize_held_kernel<E, 8>), rows, THREADS, 0, y, scale, from, x.cols, pitch);
    else if (vectors > 2)
        LAUNCH(c, (quantize_held_kernel<E, 4>), rows, THREADS, 0, y, scale, from, x.cols, pitch);
    else
        LAUNCH(c, (quantize_held_kernel<E, 2>), rows, THREADS, 0, y, scale, from, x.cols, pitch);
}

/* ---- products of cuBLAS ---- */

template <typename E>
static void gemm(struct cuda_backend *c, struct view y, struct cview x, const struct weight *w)
{
    const int32_t pitch = (int32_t)cuda_pitch(w->spec.in, w->spec.dtype);
    const void *rows = convert<E>(c, x, w->spec.dtype, pitch);
    const struct blas_product p = {y.rows,  y.cols, pitch, pitch,      y.cols,  w->spec.dtype,
                                   y.dtype, y.data, rows,  w->storage, nullptr, nullptr};
    blas_multiply(c, &p);
}

/* false: there is no kernel for this, and nothing has been done. */
static bool gemm_f8(struct cuda_backend *c, struct view y, struct cview x, const struct weight *w)
{
    const int64_t pitch = (int64_t)cuda_pitch(x.cols, DTYPE_F8_E4M3);
    const struct cuda_layout layout = cuda_layout_of(&w->spec);
    const int64_t row_bytes = (int64_t)layout.pitch;
    const float *w_scale = (const float *)(w->storage + layout.groups_at);
    float *x_scale = (float *)c->tile.data;
    const struct blas_product p = {y.rows,    y.cols,        (int32_t)pitch, row_bytes,
                                   y.cols,    DTYPE_F8_E4M3, y.dtype,        y.data,
                                   c->x.data, w->storage,    x_scale,        w_scale};
    if (backend_scales(&w->spec) != 1 || (size_t)y.rows * sizeof(float) > CUDA_TILE_BYTES ||
        !blas_knows(c, &p))
        return false;
    WITH_TYPE(x.dtype, quantize<E>(c, (e4m3 *)c->x.data, x_scale, x, (int32_t)pitch));
    blas_multiply(c, &p);
    return true;
}

/* ---- widened tiles ---- */

/* The rows of p's weight to [rows, pitch]. A block per row, 8 columns a thread. */
__global__ void widen_f8_kernel(bf16 *to, struct product p, int32_t in, int32_t pitch)
{
    const unsigned char *row = p.w + blockIdx.x * p.row_bytes;
    const float *scale = (const float *)groups_row(p, (int32_t)blockIdx.x);
    for (int32_t k = (int32_t)threadIdx.x * 8; k < pitch; k += THREADS * 8) {
        const pack<e4m3, 8> codes = *(const pack<e4m3, 8> *)(row + k);
        int32_t group = (p.scale_skip + k) / p.scale_cols;
        int64_t end = ((int64_t)group + 1) * p.scale_cols - p.scale_skip;
        pack<bf16, 8> wide;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            if (k + i >= end) {
                group++;
                end += p.scale_cols;
            }
            from_float(wide.e + i, k + i < in ? to_float(codes.e[i]) * scale[group] : 0.0f);
        }
        *(pack<bf16, 8> *)(to + (int64_t)blockIdx.x * pitch + k) = wide;
    }
}

/* The same of integers: what a form makes of eight columns that begin anywhere in a vector. */
template <typename F>
__global__ void widen_int_kernel(bf16 *to, struct product p, int32_t in, int32_t pitch)
{
    const unsigned char *row = p.w + blockIdx.x * p.row_bytes;
    for (int32_t k = (int32_t)threadIdx.x * 8; k < pitch; k += THREADS * 8) {
        const auto ready = F::prepare(p, {0, in}, (int32_t)blockIdx.x, k);
        pack<uint32_t, 4> wide;
#pragma unroll
        for (int sub = 0; sub < 2; sub++) {
            uint32_t pairs[1][2];
            F::unpack(pairs, (const uint32_t *)(row + k * CUDA_VECTOR / F::K), sub, ready);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int32_t left = in - k - 4 * sub - 2 * i;
                wide.e[2 * sub + i] = left > 1 ? pairs[0][i] : left > 0 ? pairs[0][i] & 0xffffu : 0;
            }
        }
        *(pack<uint32_t, 4> *)(to + (int64_t)blockIdx.x * pitch + k) = wide;
    }
}

static void widen(struct cuda_backend *c, const struct weight_spec *s, const struct product &p,
                  int32_t pitch, unsigned rows)
{
    bf16 *to = (bf16 *)c->tile.data;
    if (s->dtype == DTYPE_F8_E4M3)
        LAUNCH(c, widen_f8_kernel, rows, THREADS, 0, to, p, s->in, pitch);
    else
        with_int_form(s, p, [&](auto form) {
            LAUNCH(c, widen_int_kernel<decltype(form)>, rows, THREADS, 0, to, p, s->in, pitch);
        });
}

static void gemm_widened(struct cuda_backend *c, struct view y, struct cview x,
                         const struct weight *w)
{
    const int32_t pitch = (int32_t)cuda_pitch(w->spec.in, DTYPE_BF16);
    const int64_t fit = (int64_t)CUDA_TILE_BYTES / (pitch * 2) / TILE_OUTPUTS * TILE_OUTPUTS;
    struct product tile = product_of(&w->spec, w->storage, x.data, y.data, y.rows);
    CHECK(fit > 0);
    const void *rows = convert<bf16>(c, x, DTYPE_BF16, pitch);
    for (int32_t first = 0, out; first < y.cols; first += out) {
        out = y.cols - first < fit ? y.cols - first : (int32_t)fit;
        widen(c, &w->spec, tile, pitch, (unsigned)out);
        void *to = (unsigned char *)y.data + (size_t)first * dtype_size(y.dtype);
        const struct blas_product p = {y.rows,  out, pitch, pitch,        y.cols,  DTYPE_BF16,
                                       y.dtype, to,  rows,  c->tile.data, nullptr, nullptr};
        blas_multiply(c, &p);
        skip_outputs(&tile, out);
    }
}

/* ---- the op ---- */

static bool is_of_blas(const struct weight *w, int32_t rows)
{
    return rows > (dtype_is_compute(w->spec.dtype) ? GEMV_ROWS : NARROW_ROWS);
}

/* What cuBLAS multiplies; E4M3 is made of rows that are rounded to bf16 first. Not where rows get a
 * tail of zeros. */
enum dtype linear_in(struct backend *, const struct weight *w, int32_t rows)
{
    const enum dtype dtype = dtype_is_compute(w->spec.dtype) ? w->spec.dtype : DTYPE_BF16;
    const bool whole = cuda_pitch(w->spec.in, dtype) == (size_t)w->spec.in;
    return is_of_blas(w, rows) && whole ? dtype : DTYPE_F32;
}

/* Not of fp16, which ends at 65,504: a gate beyond would be an infinity, and its activation no
 * number. */
enum dtype linear_out(struct backend *, const struct weight *w, int32_t rows)
{
    const enum dtype dtype = w->spec.dtype;
    const bool wide = dtype == DTYPE_F32 || dtype == DTYPE_F16;
    return is_of_blas(w, rows) && !wide ? DTYPE_BF16 : DTYPE_F32;
}

/* Our own kernels have fp32. */
enum dtype linear_invariant_type(struct backend *, const struct weight *, int32_t)
{
    return DTYPE_F32;
}

/* A product of one leaf, or of all of them in one form, with the bits of few rows. */
static void multiply_rows(struct cuda_backend *c, const struct weight_spec *s,
                          const struct product *p)
{
    if (p->rows > GEMV_ROWS / 2 && narrow_exact(c, s, p))
        return;
    if (p->rows <= GEMV_ROWS)
        gemv_run(c, s, p);
    else
        gemm_run(c, s, p);
}

/* What has no elements; and zeros, if there is nothing to add up. */
static bool is_nothing(struct cuda_backend *c, struct view y, struct cview x)
{
    const size_t bytes = (size_t)y.rows * (size_t)y.cols * dtype_size(y.dtype);
    if (bytes > 0 && x.cols == 0)
        cuda_note(c, "linear", cudaMemsetAsync(y.data, 0, bytes, (cudaStream_t)c->stream));
    return bytes == 0 || x.cols == 0;
}

void linear_run(struct backend *b, struct view y, struct cview x, const struct weight *w)
{
    struct cuda_backend *c = cuda_of(b);
    const struct product p = product_of(&w->spec, w->storage, x.data, y.data, y.rows);
    if (is_nothing(c, y, x))
        return;
    if (y.rows <= GEMV_ROWS) {
        multiply_rows(c, &w->spec, &p);
    } else if (dtype_is_compute(w->spec.dtype)) {
        WITH_TYPE(w->spec.dtype, gemm<E>(c, y, x, w));
    } else if (y.rows <= NARROW_ROWS && narrow_run(c, &w->spec, &p)) {
        return;
    } else if (w->spec.dtype == DTYPE_F8_E4M3 && gemm_f8(c, y, x, w)) {
        return;
    } else {
        gemm_widened(c, y, x, w);
    }
}

bool linear_fuses(struct backend *, const struct weight *w, int32_t rows,
                  const struct linear_fusion *f)
{
    const struct product p = product_of(&w->spec, w->storage, nullptr, nullptr, rows);
    const bool is_plain = f->gain == nullptr && f->end == LINEAR_STORE;
    const bool takes_turns = f->end == LINEAR_ACT && f->act == ACT_SWIGLU_PAIRS;
    return w->spec.in > 0 && w->spec.out > 1 && !is_plain && !takes_turns &&
           gemv_fuses(&w->spec, &p, f);
}

void linear_fused(struct backend *b, struct view y, struct cview x, const struct weight *w,
                  const struct linear_fusion *f)
{
    const struct product p = product_of(&w->spec, w->storage, x.data, y.data, y.rows);
    gemv_fused(cuda_of(b), &w->spec, &p, f);
}

/* ---- the same bits at any number of rows and ranks ---- */

/* Where the form depends on where a leaf begins, each has its own: that which it has on a rank of
 * its own. */
static void multiply_leaves(struct cuda_backend *c, const struct weight_spec *s,
                            const struct product *p)
{
    if (is_alike(s, *p)) {
        multiply_rows(c, s, p);
        return;
    }
    for (int32_t l = 0; l < p->leaves; l++) {
        struct product one = *p;
        one.leaves = 1;
        one.cut[0] = p->cut[l];
        one.cut[1] = p->cut[l + 1];
        one.y += l * p->leaf_pitch;
        multiply_rows(c, s, &one);
    }
}

/* The leaves side by side in scratch, for as many rows at a time as fit there, then their tree. */
static void fold_leaves(struct cuda_backend *c, const struct weight_spec *s, struct product p)
{
    const float *leaf[BACKEND_LEAVES_MAX];
    float *y = p.y;
    const size_t row = (size_t)s->leaves * (size_t)p.out * sizeof(float);
    const int32_t rows = p.rows, most = (int32_t)(CUDA_TILE_BYTES / row);
    CHECK(most > 0);
    p.leaves = s->leaves;
    memcpy(p.cut, s->cut, sizeof p.cut);
    p.y = (float *)c->tile.data;
    for (int32_t at = 0; at < rows; at += most) {
        p.rows = rows - at < most ? rows - at : most;
        p.leaf_pitch = (int64_t)p.rows * p.out;
        for (int32_t l = 0; l < p.leaves; l++)
            leaf[l] = p.y + l * p.leaf_pitch;
        multiply_leaves(c, s, &p);
        rowops_sum_tree(&c->base, y, leaf, p.leaves, (size_t)p.leaf_pitch);
        p.x += (int64_t)most * p.x_pitch;
        y += (int64_t)most * p.out;
    }
}

void linear_invariant(struct backend *b, struct view y, struct cview x, const struct weight *w)
{
    struct cuda_backend *c = cuda_of(b);
    const struct product p = product_of(&w->spec, w->storage, x.data, y.data, y.rows);
    if (is_nothing(c, y, x))
        return;
    if (w->spec.leaves > 1)
        fold_leaves(c, &w->spec, p);
    else
        multiply_rows(c, &w->spec, &p);
}

/* Not a norm, which would round otherwise than that of many rows does. */
bool linear_invariant_fuses(struct backend *b, const struct weight *w, int32_t rows,
                            const struct linear_fusion *f)
{
    return f->gain == nullptr && w->spec.leaves <= 1 && linear_fuses(b, w, rows, f);
}
