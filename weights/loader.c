/* DESIGN: the work is cut up front into items of one local weight's rows, some megabytes each (so
 * that two threads seldom touch the same huge page) and beginning at a multiple of 32 rows, so that
 * weight_put's groups never meet and any thread may take any item. Threads take items in file order
 * from one counter: that balances bytes as well as slow reads, which fixed shares would not. Each
 * thread reads a piece of its item at a time into its own staging buffer, small enough to stay in
 * its cache until it is packed. Invariant: items tile the rows of every weight (placement_tiled
 * before, a count per weight after), so success means every row was written exactly once. */
#include "weights/fp8.h"
#include "weights/intq.h"
#include "weights/loader_job.h"
#include "weights/mxfp4.h"
#include "weights/packed.h"
#include "weights/synth.h"

#include <stdlib.h>
#include <string.h>

#define GROUP 32 /* weight_put is thread-safe for groups of this many rows */
#define ITEM_BYTES ((size_t)8 << 20)
#define PIECE_BYTES ((size_t)1 << 20)
#define TURNED_BYTES ((size_t)32 << 20) /* of item and piece where rows are a tensor's columns */

/* ---- where a thread reads ---- */

#define OFFSET_BITS 48

uint64_t loader_place(int32_t file, uint64_t offset)
{
    return (uint64_t)(file + 1) << OFFSET_BITS | offset;
}

void loader_place_of(uint64_t word, int32_t *file, uint64_t *offset)
{
    *file = (int32_t)(word >> OFFSET_BITS) - 1;
    *offset = word & ((1ull << OFFSET_BITS) - 1);
}

/* ---- handles ---- */

enum status loader_open(struct backend *b, const struct local_weight *weights, int32_t count,
                        void *arena, struct loaded *out, struct err *err)
{
    size_t room = (size_t)count + 1;
    struct loaded l = {
        .linear = calloc(room, sizeof(void *)),
        .vector = calloc(room, sizeof *l.vector),
        .count = count,
    };
    if (!l.linear || !l.vector) {
        loader_close(b, &l);
        return base_fail(err, ERR_NOMEM, "no memory for %d weights", count);
    }
    for (int32_t i = 0; i < count; i++) {
        char *storage = (char *)arena + weights[i].offset;
        if (weights[i].kind == LOCAL_VECTOR) {
            l.vector[i] = (const float *)(const void *)storage;
            continue;
        }
        l.linear[i] = b->ops->weight_open(b, &weights[i].spec, storage);
        if (!l.linear[i]) {
            loader_close(b, &l);
            return base_fail(err, ERR_NOMEM, "weight %s: no memory for its handle",
                             weights[i].name);
        }
    }
    *out = l;
    return OK;
}

void loader_close(struct backend *b, struct loaded *l)
{
    for (int32_t i = 0; l->linear && i < l->count; i++) {
        if (l->linear[i])
            b->ops->weight_close(l->linear[i]);
    }
    free(l->linear);
    free(l->vector);
    *l = (struct loaded){0};
}

/* ---- cutting the work ---- */

/* Are its rows groups of 4 bits a code in the checkpoint, or words of several codes? */
static bool is_blocks(const struct job *j, const struct local_weight *w)
{
    return j->c && mxfp4_is_source(w);
}

static bool is_packed(const struct job *j, const struct local_weight *w)
{
    return j->c && packed_is_source(w);
}

/* Has it scales that are read before its codes? Those of the others are read with them. */
static bool has_scales(const struct job *j, const struct local_weight *w)
{
    return j->c && w->quant.kind == QUANT_FILE && !is_blocks(j, w) && !is_packed(j, w);
}

/* Are its codes made values, which it holds? */
static bool decodes(const struct job *j, const struct local_weight *w)
{
    return has_scales(j, w) && !dtype_is_scaled(w->spec.dtype);
}

/* The type a slice's values come in. */
static enum dtype source_dtype(const struct job *j, const struct local_weight *w,
                               const struct tensor_slice *s)
{
    if (!j->c)
        return dtype_is_scaled(w->spec.dtype) ? DTYPE_BF16 : w->spec.dtype;
    const struct checkpoint_tensor *t = checkpoint_find(j->c, s->tensor);
    return t ? checkpoint_type(j->c, t) : DTYPE_F32;
}

/* Bytes of one of them in the file. */
static size_t item_bytes(const struct job *j, const struct tensor_slice *s, enum dtype dtype)
{
    const struct checkpoint_tensor *t = j->c ? checkpoint_find(j->c, s->tensor) : NULL;
    return dtype_size(t ? t->dtype : dtype);
}

/* Are the slices quantised here? */
static bool quantizes(const struct job *j, const struct local_weight *w)
{
    return w->quant.kind == QUANT_LOAD || (w->quant.kind == QUANT_FILE && !j->c);
}

/* Columns of a slice that are read: of a row or group of it that has one scale, all. */
static struct span source_cols(const struct job *j, const struct local_weight *w,
                               const struct tensor_slice *s)
{
    return quantizes(j, w) ? placement_read_cols(w, s) : s->cols;
}

/* Bytes of one row in staging: the widest of the weight's slices; with scales the codes and those
 * behind it, too. */
static size_t row_bytes(const struct job *j, const struct local_weight *w)
{
    size_t widest = 1;
    if (is_blocks(j, w))
        return loader_blocks_row_bytes(w);
    if (is_packed(j, w))
        return loader_packed_bytes(w, GROUP) / GROUP;
    for (int32_t s = 0; s < w->slice_count; s++) {
        size_t row = dtype_size(source_dtype(j, w, &w->slices[s]));
        if (w->kind == LOCAL_LINEAR)
            row *= (size_t)span_len(source_cols(j, w, &w->slices[s]));
        if (row > widest)
            widest = row;
    }
    if (decodes(j, w))
        widest += (size_t)placement_cols(w) * sizeof(float);
    if (dtype_is_scaled(w->spec.dtype))
        widest += (size_t)w->spec.in + (size_t)backend_scales(&w->spec) * sizeof(float);
    return widest;
}

/* Bytes behind all else in staging, where a weight is transposed. */
static size_t room_bytes(const struct local_weight *w)
{
    const size_t values = (size_t)w->spec.in * (size_t)w->spec.out;
    return w->transposed ? base_align(values * sizeof(float), 64) : 0;
}

/* Rows whose staging takes about so many bytes; a vector is never cut, nor what is transposed. */
static int64_t rows_within(const struct job *j, const struct local_weight *w, size_t bytes)
{
    if (w->kind == LOCAL_VECTOR || w->transposed)
        return placement_rows(w);
    size_t group = row_bytes(j, w) * GROUP;
    size_t groups = group >= bytes ? 1 : bytes / group;
    return (int64_t)groups * GROUP;
}

/* Are its rows columns in the file? Of few a read would have hardly more than a word. */
static bool is_turned(const struct job *j, const struct local_weight *w)
{
    return is_packed(j, w) && w->quant.form != QUANT_PACKED;
}

static int64_t item_rows(const struct job *j, const struct local_weight *w)
{
    return rows_within(j, w, is_turned(j, w) ? TURNED_BYTES : ITEM_BYTES);
}

/* Rows that are read at a time. */
static int64_t piece_rows(const struct job *j, const struct local_weight *w)
{
    return rows_within(j, w, is_turned(j, w) ? TURNED_BYTES : PIECE_BYTES);
}

/* Nothing to read where the rank owns no rows or no columns. */
static bool is_empty(const struct local_weight *w)
{
    return w->spec.out == 0 || w->spec.in == 0;
}

static enum status cut(struct job *j, struct err *err)
{
    int64_t count = 0;
    for (int pass = 0; pass < 2; pass++) { /* count, then fill */
        count = 0;
        for (int32_t i = 0; i < j->l->count; i++) {
            const struct local_weight *w = &j->weights[i];
            if (is_empty(w))
                continue;
            int64_t n = placement_rows(w), step = item_rows(j, w);
            const size_t rows = (size_t)base_min64(n, piece_rows(j, w));
            const size_t need =
                is_packed(j, w) ? loader_packed_bytes(w, rows) : rows * row_bytes(j, w);
            j->staging_bytes = base_max_size(j->staging_bytes, need + room_bytes(w));
            for (int64_t row = 0; row < n; row += step, count++)
                if (pass == 1)
                    j->items[count] = (struct item){i, {row, base_min64(row + step, n)}};
        }
        if (pass == 0)
            j->items = calloc((size_t)count + 1, sizeof *j->items);
        if (!j->items)
            return base_fail(err, ERR_NOMEM, "no memory for %lld load items", (long long)count);
    }
    j->item_count = count;
    j->staging_bytes = base_align(j->staging_bytes + 2 * 64, 64); /* up to three parts of 64 */
    return OK;
}

/* ---- filling ---- */

enum status loader_read(struct job *j, const struct checkpoint_tensor *t, struct span rows,
                        struct span cols, void *to, const struct worker *own, struct err *err)
{
    int32_t file;
    uint64_t offset;
    checkpoint_where(j->c, t, rows.begin, cols.begin, j->rank, &file, &offset);
    if (own->reading)
        atomic_store_explicit(own->reading, loader_place(file, offset), memory_order_relaxed);
    const enum status st = checkpoint_read_exact(j->c, t, rows, cols, j->rank, to, err);
    if (own->reading)
        atomic_store_explicit(own->reading, 0, memory_order_relaxed);
    return st;
}

void loader_count(struct job *j, uint64_t bytes)
{
    atomic_fetch_add_explicit(&j->read_bytes, bytes, memory_order_relaxed);
    if (j->progress)
        atomic_fetch_add_explicit(&j->progress->bytes_done, bytes, memory_order_relaxed);
}

/* Rows of one slice into staging, in its own type. */
static enum status fetch(struct job *j, const struct local_weight *w, const struct tensor_slice *s,
                         struct span rows, struct span cols, enum dtype dtype,
                         const struct worker *own, struct err *err)
{
    char *staging = own->staging;
    size_t stride = (size_t)span_len(cols) * dtype_size(dtype);
    if (!j->c) {
        for (int64_t row = rows.begin; row < rows.end; row++, staging += stride)
            synth_row(j->rules, s->tensor, s->ndim, s->shape[1], row, cols, dtype, staging);
        return OK;
    }
    const struct checkpoint_tensor *t = checkpoint_find(j->c, s->tensor);
    const bool known =
        t && (w->quant.kind == QUANT_FILE ? t->dtype == DTYPE_F8_E4M3 : dtype_is_compute(t->dtype));
    if (!known || t->rows != s->shape[0] || t->cols != s->shape[1])
        return base_fail(err, ERR_MODEL, "weight %s: the checkpoint has no such tensor %s", w->name,
                         s->tensor);
    return loader_read(j, t, rows, cols, staging, own, err);
}

static void put_vector(const struct job *j, int32_t weight, int64_t at, const void *values,
                       enum dtype dtype, int64_t n)
{
    /* Read-only for its users, but it lies in the arena that is being filled here. */
    float *dst = (float *)(uintptr_t)j->l->vector[weight] + at;
    const float plus = j->weights[weight].plus;
    float part[256];
    for (int64_t done = 0, m; done < n; done += m) {
        m = base_min64(n - done, ARRAY_LEN(part));
        for (int64_t i = 0; i < m; i++)
            part[i] = plus + dtype_load(values, dtype, (size_t)(done + i));
        j->backend->ops->upload(j->backend, dst + done, part, (size_t)m * sizeof *part);
    }
}

/* values: [in, out]; the weight is put as a whole. */
static void put_transposed(struct job *j, int32_t weight, const void *values, enum dtype dtype,
                           const struct worker *own)
{
    const struct local_weight *w = &j->weights[weight];
    const size_t in = (size_t)w->spec.in, out = (size_t)w->spec.out, size = dtype_size(dtype);
    char *room = own->staging + j->staging_bytes - room_bytes(w);
    for (size_t i = 0; i < in; i++)
        for (size_t o = 0; o < out; o++)
            memcpy(room + (o * in + i) * size, (const char *)values + (i * out + o) * size, size);
    j->backend->ops->weight_put(j->l->linear[weight], 0, (int32_t)out, room, dtype, in * size);
}

void loader_put(struct job *j, int32_t weight, int64_t at, int64_t rows, const void *values,
                enum dtype dtype, size_t stride, const struct worker *own)
{
    const struct local_weight *w = &j->weights[weight];
    if (!w->transposed) {
        j->backend->ops->weight_put(j->l->linear[weight], (int32_t)at, (int32_t)rows, values, dtype,
                                    stride);
        return;
    }
    CHECK(at == 0 && rows == w->spec.in && stride == (size_t)w->spec.out * dtype_size(dtype));
    put_transposed(j, weight, values, dtype, own);
}

static const struct fp8_scales *scales_of(const struct job *j, int32_t weight,
                                          const struct tensor_slice *s)
{
    return &j->scales[(size_t)weight * j->slices_max + (size_t)(s - j->weights[weight].slices)];
}

static enum status bad_value(const char *tensor, int64_t row, struct err *err)
{
    return base_fail(err, ERR_MODEL,
                     "tensor %s: row %lld has a value that is not finite or too large to quantise",
                     tensor, (long long)row);
}

/* Codes and scales of one row, quantised here. */
static bool quantize_row(const struct job *j, const struct local_weight *w,
                         const struct tensor_slice *s, const char *row, uint8_t *codes,
                         float *scale)
{
    const enum dtype dtype = source_dtype(j, w, s);
    if (w->spec.dtype == DTYPE_F4_E2M1)
        return mxfp4_quantize((int8_t *)codes, scale, row, dtype, source_cols(j, w, s), s->cols);
    if (dtype_is_int(w->spec.dtype))
        return intq_quantize((int8_t *)codes, scale, row, dtype, source_cols(j, w, s), s->cols,
                             w->spec.dtype == DTYPE_I8 ? DTYPE_I8 : DTYPE_I4);
    if (!fp8_scale(row, dtype, s->shape[1], scale))
        return false;
    fp8_quantize(codes, row, dtype, s->cols, *scale);
    for (int32_t g = 1; g < backend_scales(&w->spec); g++)
        scale[g] = *scale;
    return true;
}

/* Values of the codes that staging holds. */
static enum status put_decoded(struct job *j, int32_t weight, const struct tensor_slice *s,
                               struct span rows, int64_t at, const struct worker *own,
                               struct err *err)
{
    const struct local_weight *w = &j->weights[weight];
    const struct fp8_scales *scales = scales_of(j, weight, s);
    const size_t n = (size_t)span_len(rows), cols = (size_t)span_len(s->cols);
    const uint8_t *codes = (const uint8_t *)own->staging;
    float *values = (float *)(void *)(own->staging + base_align(n * cols, 64));
    for (size_t r = 0; r < n; r++) {
        const int64_t row = rows.begin + (int64_t)r;
        if (!fp8_finite(codes + r * cols, cols))
            return bad_value(s->tensor, row, err);
        fp8_values(values + r * cols, codes + r * cols, s->cols, w->quant.cols,
                   fp8_scales_row(scales, row));
    }
    loader_put(j, weight, at, (int64_t)n, values, DTYPE_F32, cols * sizeof(float), own);
    return OK;
}

/* Codes and scales of rows that staging holds as they came from the file. */
static enum status put_codes(struct job *j, int32_t weight, const struct tensor_slice *s,
                             struct span rows, int64_t at, char *staging, struct err *err)
{
    const struct local_weight *w = &j->weights[weight];
    const enum dtype put = w->spec.dtype == DTYPE_F8_E4M3 ? DTYPE_F8_E4M3 : DTYPE_I8;
    const size_t n = (size_t)span_len(rows), in = (size_t)w->spec.in;
    const size_t stride =
        (size_t)span_len(source_cols(j, w, s)) * dtype_size(source_dtype(j, w, s));
    const size_t groups = (size_t)backend_scales(&w->spec);
    const struct fp8_scales *scales = quantizes(j, w) ? NULL : scales_of(j, weight, s);
    uint8_t *codes = (uint8_t *)staging;
    if (quantizes(j, w))
        codes += base_align(n * stride, 64);
    float *scale = (float *)(void *)(codes + base_align(n * in, 64));
    for (size_t r = 0; r < n; r++) {
        const int64_t row = rows.begin + (int64_t)r;
        float *mine = scale + r * groups;
        if (quantizes(j, w)) {
            if (!quantize_row(j, w, s, staging + r * stride, codes + r * in, mine))
                return bad_value(s->tensor, row, err);
        } else {
            memcpy(mine, fp8_scales_row(scales, row), groups * sizeof *mine);
            if (!fp8_finite(codes + r * in, in))
                return bad_value(s->tensor, row, err);
        }
    }
    const struct backend_ops *ops = j->backend->ops;
    ops->weight_put(j->l->linear[weight], (int32_t)at, (int32_t)n, codes, put, in);
    ops->weight_scale(j->l->linear[weight], (int32_t)at, (int32_t)n, scale);
    return OK;
}

/* Dummies count as done, not as read. */
static void count_values(struct job *j, uint64_t bytes)
{
    if (j->c)
        loader_count(j, bytes);
    else if (j->progress)
        atomic_fetch_add_explicit(&j->progress->bytes_done, bytes, memory_order_relaxed);
}

/* The part of one slice that falls into the piece. */
static enum status fill_slice(struct job *j, const struct item *it, const struct tensor_slice *s,
                              const struct worker *own, struct err *err)
{
    char *staging = own->staging;
    const struct local_weight *w = &j->weights[it->weight];
    bool linear = w->kind == LOCAL_LINEAR;
    int64_t n = linear ? span_len(s->rows) : span_len(s->cols);
    int64_t begin = it->rows.begin > s->dst_row ? it->rows.begin : s->dst_row;
    int64_t end = base_min64(it->rows.end, s->dst_row + n);
    if (begin >= end)
        return OK;
    struct span part = {begin - s->dst_row, end - s->dst_row}, rows = s->rows, cols = s->cols;
    if (linear)
        rows = (struct span){s->rows.begin + part.begin, s->rows.begin + part.end};
    else
        cols = (struct span){s->cols.begin + part.begin, s->cols.begin + part.end};
    if (is_blocks(j, w) || is_packed(j, w)) {
        const enum status done = is_blocks(j, w)
                                     ? loader_blocks_fill(j, it->weight, s, rows, begin, own, err)
                                     : loader_packed_fill(j, it->weight, s, rows, begin, own, err);
        if (done == OK)
            atomic_fetch_add_explicit(&j->written[it->weight], end - begin, memory_order_relaxed);
        return done;
    }
    const bool scaled = dtype_is_scaled(w->spec.dtype);
    enum dtype dtype = source_dtype(j, w, s);
    cols = scaled ? source_cols(j, w, s) : cols;
    enum status st = fetch(j, w, s, rows, cols, dtype, own, err);
    if (st == OK && scaled)
        st = put_codes(j, it->weight, s, rows, begin, staging, err);
    else if (st == OK && decodes(j, w))
        st = put_decoded(j, it->weight, s, rows, begin, own, err);
    else if (st == OK && linear)
        loader_put(j, it->weight, begin, end - begin, staging, dtype,
                   (size_t)span_len(cols) * dtype_size(dtype), own);
    else if (st == OK)
        put_vector(j, it->weight, begin, staging, dtype, end - begin);
    if (st != OK)
        return st;
    atomic_fetch_add_explicit(&j->written[it->weight], end - begin, memory_order_relaxed);
    count_values(j, (uint64_t)(span_len(rows) * span_len(cols)) * item_bytes(j, s, dtype));
    return OK;
}

static enum status fill_item(struct job *j, const struct item *it, const struct worker *own,
                             struct err *err)
{
    const struct local_weight *w = &j->weights[it->weight];
    const int64_t step = piece_rows(j, w);
    for (int64_t row = it->rows.begin; row < it->rows.end; row += step) {
        const struct item piece = {it->weight, {row, base_min64(row + step, it->rows.end)}};
        for (int32_t s = 0; s < w->slice_count; s++) {
            enum status st = fill_slice(j, &piece, &w->slices[s], own, err);
            if (st != OK)
                return st;
        }
    }
    return OK;
}

static void set_failed(struct job *j, enum status st, const struct err *err)
{
    if (atomic_exchange(&j->failed, true))
        return; /* the first one is told, by who joins the threads */
    j->st = st;
    *j->err = *err;
}

static struct worker begin_work(struct job *j)
{
    const int32_t n = atomic_fetch_add_explicit(&j->workers, 1, memory_order_relaxed);
    const bool watched = j->progress && n < LOADER_READERS_MAX;
    return (struct worker){aligned_alloc(64, j->staging_bytes),
                           watched ? &j->progress->reading[n] : NULL};
}

/* Takes items until there are none: the first call on a thread does all the work it can get, so the
 * staging buffer is made once per thread. The ranges backend_parallel hands out are not used. */
static void work(void *arg, int64_t begin, int64_t end)
{
    struct job *j = arg;
    struct err err;
    struct worker own = {NULL, NULL};
    (void)begin;
    (void)end;
    for (;;) {
        int64_t i = atomic_fetch_add_explicit(&j->next, 1, memory_order_relaxed);
        if (i >= j->item_count || atomic_load_explicit(&j->failed, memory_order_relaxed))
            break;
        if (!own.staging)
            own = begin_work(j);
        enum status st = OK;
        if (!own.staging)
            st = base_fail(&err, ERR_NOMEM, "no memory for %zu bytes of staging", j->staging_bytes);
        if (st == OK)
            st = fill_item(j, &j->items[i], &own, &err);
        if (st != OK)
            set_failed(j, st, &err);
    }
    free(own.staging);
}

/* All scales of the checkpoint that this rank needs: few bytes, and each is read once. */
static enum status read_scales(struct job *j, struct err *err)
{
    enum status st = OK;
    for (int32_t i = 0; i < j->l->count && st == OK; i++) {
        const struct local_weight *w = &j->weights[i];
        if (!has_scales(j, w) || is_empty(w))
            continue;
        for (int32_t k = 0; k < w->slice_count && st == OK; k++) {
            struct fp8_scales *s = &j->scales[(size_t)i * j->slices_max + (size_t)k];
            st = fp8_scales_read(j->c, w, &w->slices[k], j->rank, s, err);
            loader_count(j, s->bytes);
        }
    }
    return st;
}

static enum status check_written(const struct job *j, struct err *err)
{
    for (int32_t i = 0; i < j->l->count; i++) {
        const struct local_weight *w = &j->weights[i];
        int64_t got = atomic_load(&j->written[i]);
        if (!is_empty(w) && got != placement_rows(w))
            return base_fail(err, ERR_MODEL, "weight %s: %lld of %lld rows were loaded", w->name,
                             (long long)got, (long long)placement_rows(w));
    }
    return OK;
}

static enum status run(struct job *j, struct err *err)
{
    enum status st = OK;
    j->err = err;
    for (int32_t i = 0; i < j->l->count; i++)
        if (has_scales(j, &j->weights[i]) && (size_t)j->weights[i].slice_count > j->slices_max)
            j->slices_max = (size_t)j->weights[i].slice_count;
    const size_t slices = (size_t)j->l->count * j->slices_max;
    j->written = calloc((size_t)j->l->count + 1, sizeof *j->written);
    j->scales = calloc(slices + 1, sizeof *j->scales);
    if (!j->written || !j->scales) {
        free(j->written);
        free(j->scales);
        return base_fail(err, ERR_NOMEM, "no memory to load %d weights", j->l->count);
    }
    for (int32_t i = 0; i < j->l->count; i++)
        TRY(placement_tiled(&j->weights[i], err));
    TRY(read_scales(j, err));
    for (int32_t i = 0; i < j->l->count; i++)
        if (is_packed(j, &j->weights[i]) && !is_empty(&j->weights[i]))
            TRY(loader_packed_check(j, &j->weights[i], err));
    TRY(cut(j, err));
    backend_parallel(j->backend, j->item_count, 1, work, j);
    st = atomic_load(&j->failed) ? j->st : check_written(j, err);
out:
    for (size_t i = 0; i < slices; i++)
        fp8_scales_close(&j->scales[i]);
    free(j->scales);
    free(j->items);
    free(j->written);
    return st;
}

enum status loader_fill(struct backend *b, const struct checkpoint *c,
                        const struct local_weight *weights, struct loaded *l, int32_t rank,
                        struct load_progress *progress, uint64_t *read_bytes, struct err *err)
{
    struct job j = {
        .backend = b,
        .c = c,
        .weights = weights,
        .l = l,
        .rank = rank,
        .progress = progress,
    };
    enum status st = run(&j, err);
    if (st == OK && read_bytes)
        *read_bytes = atomic_load(&j.read_bytes);
    return st;
}

enum status loader_fill_dummy(struct backend *b, const struct synth_rules *rules,
                              const struct local_weight *weights, struct loaded *l,
                              struct load_progress *progress, struct err *err)
{
    struct job j = {
        .backend = b,
        .rules = rules,
        .weights = weights,
        .l = l,
        .progress = progress,
    };
    return run(&j, err);
}
