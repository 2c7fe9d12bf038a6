/* DESIGN: the model's own list of tensors drives it: each is looked up, checked and streamed, a
 * batch of rows at a time; what the file has beyond that list is refused, because a model is not
 * what its file says without it. All of that is checked before the first byte is written. Loading
 * the file where it is, as llama.cpp does, was rejected: a checkpoint on the disk is read by every
 * layout, cut for ranks and quantised by what is there already. */
#include "weights/gguf/gguf_convert.h"

#include "config/buf.h"
#include "config/pooling.h"
#include "kernels/backend.h"
#include "weights/gguf/gguf_arch.h"
#include "weights/gguf/gguf_join.h"
#include "weights/gguf/gguf_model.h"
#include "weights/gguf/gguf_tokenizer.h"
#include "weights/outdir.h"
#include "weights/safetensors.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BATCH_BYTES (4u << 20) /* of rows as they are in the file */
#define F16_TOO_LARGE 65520.0f /* is rounded to infinity */
#define PIECE 2048             /* values at a time: whole blocks of every form */

struct converter {
    const struct gguf *g;
    const struct synth_tensor *wanted;
    struct gguf_source *sources; /* [count] */
    int32_t count, written;      /* so many are, when some of them are one */
    enum dtype dtype;
    const struct model_config *m;
    struct backend *pool; /* only for its threads */
    char *raw, *values;   /* a batch of rows, as it is read and as it is written */
    _Atomic bool *beyond; /* values of the file's were too large for the type */
    struct outdir_progress progress;
};

/* ---- what comes from where ---- */

/* Rows and columns of a tensor, of which a vector has one row. */
struct extent {
    int64_t rows, cols;
};

static enum status wrong_shape(const struct converter *c, const struct gguf_tensor *t,
                               const char *name, struct extent wanted, struct extent found,
                               struct err *err)
{
    return base_fail(err, ERR_MODEL, "%s: %s: expected %lld x %lld values for %s, got %lld x %lld",
                     gguf_path(c->g), t->name, (long long)wanted.rows, (long long)wanted.cols, name,
                     (long long)found.rows, (long long)found.cols);
}

/* The layout has a convolution as a vector, and the file a row for each channel. */
static struct extent wanted_extent(const struct synth_tensor *w, const struct gguf_source *s,
                                   const struct model_config *m)
{
    const int32_t taps = m->recurrent.taps;
    if (s->convolution && taps > 0)
        return (struct extent){w->cols / taps, taps};
    return (struct extent){w->ndim == 1 ? 1 : w->rows, w->cols};
}

/* Of what each head has a matrix. */
static enum status check_heads(const struct converter *c, const struct synth_tensor *w,
                               const struct gguf_source *s, struct err *err)
{
    const struct latent_config *l = &c->m->latent;
    const struct gguf_tensor *const tensors[] = {s->tensor, s->behind};
    const struct extent wanted[] = {{l->value, l->plain}, {l->head, l->value}};
    for (size_t i = 0; i < ARRAY_LEN(tensors); i++) {
        const struct gguf_tensor *t = tensors[i];
        const int64_t heads = t->ndim == 3 ? t->shape[0] : 1;
        const struct extent found = {t->ndim == 1 ? 1 : t->shape[t->ndim - 2],
                                     t->shape[t->ndim - 1]};
        if (heads != c->m->heads || t->ndim > 3)
            return base_fail(err, ERR_MODEL, "%s: %s: expected %d matrices for %s, got %lld",
                             gguf_path(c->g), t->name, (int)c->m->heads, w->name, (long long)heads);
        if (found.rows != wanted[i].rows || found.cols != wanted[i].cols)
            return wrong_shape(c, t, w->name, wanted[i], found, err);
    }
    return OK;
}

/* A matrix of one row may have lost that dimension. */
static enum status check_source(const struct converter *c, const struct synth_tensor *w,
                                const struct gguf_source *s, struct err *err)
{
    const struct gguf_tensor *behind = s->behind;
    const struct extent wanted = wanted_extent(w, s, c->m);
    const bool vector = w->ndim == 1 && !s->convolution;
    if (s->by_head)
        return check_heads(c, w, s, err);
    if (behind) {
        const struct extent more = {s->behind_rows, wanted.cols};
        const struct extent found = {behind->ndim == 1 ? 1 : behind->shape[behind->ndim - 2],
                                     behind->shape[behind->ndim - 1]};
        if (behind->ndim != 2 || found.rows != more.rows || found.cols != more.cols)
            return wrong_shape(c, behind, w->name, more, found, err);
    }
    if (s->rows != wanted.rows || s->cols != wanted.cols || (vector && s->tensor->ndim != 1))
        return wrong_shape(c, s->tensor, w->name,
                           (struct extent){wanted.rows - s->behind_rows, wanted.cols},
                           (struct extent){s->rows - s->behind_rows, s->cols}, err);
    if (s->head_dim > 0 && (w->ndim == 1 ? w->cols : w->rows) % s->head_dim != 0)
        return base_fail(err, ERR_MODEL, "%s: %s: expected whole heads of %d", gguf_path(c->g),
                         s->tensor->name, (int)s->head_dim);
    return OK;
}

static enum status find_sources(struct converter *c, bool *used, struct err *err)
{
    for (int32_t i = 0; i < c->count; i++) {
        const struct synth_tensor *w = &c->wanted[i];
        struct gguf_source *s = &c->sources[i];
        if (!gguf_model_source(c->g, w->name, c->m, s))
            return base_fail(err, ERR_MODEL, "%s: no tensor for %s", gguf_path(c->g), w->name);
        enum status st = check_source(c, w, s, err);
        if (st != OK)
            return st;
        used[s->tensor - gguf_tensor_at(c->g, 0)] = true;
        if (s->behind)
            used[s->behind - gguf_tensor_at(c->g, 0)] = true;
    }
    for (int32_t i = 0; i < gguf_tensor_count(c->g); i++) {
        const char *name = gguf_tensor_at(c->g, i)->name;
        if (!used[i] && !gguf_model_is_left_out(c->g, name))
            return base_fail(err, ERR_MODEL, "%s: %s: no such tensor in a model of this kind",
                             gguf_path(c->g), name);
    }
    return OK;
}

/* Ids without an embedding would be refused by who serves it. */
static enum status check_vocabulary(const struct gguf *g, struct err *err)
{
    const struct gguf_tensor *embed = gguf_find_tensor(g, "token_embd.weight");
    const size_t tokens = gguf_array_size(gguf_get(g, "tokenizer.ggml.tokens"));
    if (!embed || tokens <= (size_t)embed->shape[0])
        return OK;
    return base_fail(err, ERR_MODEL, "%s: tokenizer.ggml.tokens: %zu of them, but %s has %lld rows",
                     gguf_path(g), tokens, embed->name, (long long)embed->shape[0]);
}

/* ---- values ---- */

/* False: one of them is finite, and too large for the type. */
static bool store(const float *v, int64_t n, float less, enum dtype dtype, char *dst)
{
    bool fits = true;
    for (int64_t i = 0; i < n; i++) {
        const float value = v[i] - less;
        dtype_store(dst, dtype, (size_t)i, value);
        if (dtype == DTYPE_F16 && fabsf(value) >= F16_TOO_LARGE && isfinite(value))
            fits = false;
    }
    return fits;
}

static void store_bf16(const float *v, int64_t n, float less, char *dst)
{
    for (int64_t i = 0; i < n; i++) {
        const uint16_t h = dtype_to_bf16(v[i] - less);
        memcpy(dst + 2 * i, &h, sizeof h);
    }
}

/* Where row i of the file's belongs; a head at least is in each batch. */
static int64_t place(int64_t i, int32_t head_dim)
{
    if (head_dim == 0)
        return i;
    const int64_t in_head = i % head_dim;
    return i - in_head + in_head % 2 * (head_dim / 2) + in_head / 2;
}

static enum dtype written_as(const struct converter *c, const struct gguf_source *s)
{
    return s->exact ? DTYPE_F32 : c->dtype;
}

struct batch {
    const struct converter *c;
    const struct gguf_source *source;
    struct gguf_order order, columns;
    size_t stride; /* bytes of a row in `raw` */
    int64_t row;   /* the first one */
};

/* The tensor that a row of the checkpoint is in; *run: so many are there from it on. */
static const struct gguf_tensor *row_tensor(const struct batch *b, int64_t row, int64_t *there,
                                            int64_t *run)
{
    const struct gguf_source *s = b->source;
    const int64_t own = s->rows - s->behind_rows, at = gguf_order_at(&b->order, row, run);
    *there = at < own ? s->first + at : at - own;
    return at < own ? s->tensor : s->behind;
}

/* Values of a row from column `at` on, as they are in the file, to where they belong in ours. */
static void store_piece(const struct batch *b, const float *v, int64_t at, int64_t n, char *row)
{
    const struct gguf_source *s = b->source;
    const enum dtype dtype = written_as(b->c, s);
    int64_t run = 0;
    for (int64_t i = 0; i < n; i += run) {
        char *dst = row + (size_t)gguf_order_at(&b->columns, at + i, &run) * dtype_size(dtype);
        run = run < n - i ? run : n - i;
        if (dtype == DTYPE_BF16)
            store_bf16(v + i, run, s->less, dst);
        else if (!store(v + i, run, s->less, dtype, dst))
            atomic_store(b->c->beyond, true);
    }
}

static void convert_rows(void *arg, int64_t begin, int64_t end)
{
    const struct batch *b = arg;
    const struct converter *c = b->c;
    const struct gguf_source *s = b->source;
    const size_t element = dtype_size(written_as(c, s));
    float piece[PIECE];
    int64_t ignored, run;
    for (int64_t i = begin; i < end; i++) {
        const enum gguf_block block = row_tensor(b, b->row + i, &ignored, &run)->block;
        const struct gguf_block_info *info = gguf_block_info(block);
        const char *src = c->raw + (size_t)i * b->stride;
        char *dst = c->values + (size_t)(place(i, s->head_dim) * s->cols) * element;
        for (int64_t at = 0; at < s->cols; at += PIECE) {
            const int64_t n = s->cols - at < PIECE ? s->cols - at : PIECE;
            gguf_dequantize(block, src, n, piece);
            src += n / info->values * info->bytes;
            store_piece(b, piece, at, n, dst);
        }
    }
}

/* Rows of a batch: as many as fit, and of heads whole ones. */
static int64_t batch_rows(const struct gguf_source *s, size_t stride)
{
    const int64_t n = stride < BATCH_BYTES ? (int64_t)(BATCH_BYTES / stride) : 1;
    if (s->head_dim == 0)
        return n;
    return n < s->head_dim ? s->head_dim : n - n % s->head_dim;
}

/* Bytes of a row in the file. */
static size_t file_stride(const struct gguf_tensor *t)
{
    const struct gguf_block_info *info = gguf_block_info(t->block);
    return (size_t)(t->shape[t->ndim - 1] / info->values) * (size_t)info->bytes;
}

/* Of the longer rows where there are two tensors. */
static size_t row_stride(const struct gguf_source *s)
{
    const size_t own = file_stride(s->tensor), other = s->behind ? file_stride(s->behind) : 0;
    return own > other ? own : other;
}

/* The next n rows in the order of the checkpoint. Those that are shorter come one at a time. */
static enum status read_batch(const struct batch *b, int64_t n, struct err *err)
{
    int64_t there = 0, run = 0;
    for (int64_t i = 0; i < n; i += run) {
        const struct gguf_tensor *t = row_tensor(b, b->row + i, &there, &run);
        run = file_stride(t) < b->stride ? 1 : run < n - i ? run : n - i;
        enum status st =
            gguf_read_rows(b->c->g, t, there, run, b->c->raw + (size_t)i * b->stride, err);
        if (st != OK)
            return st;
    }
    return OK;
}

static enum status write_matrix(struct converter *c, const struct gguf_source *s,
                                struct safetensors_writer *w, struct err *err)
{
    struct batch b = {.c = c,
                      .source = s,
                      .order = gguf_order_of(s->order, &c->m->recurrent),
                      .columns = gguf_order_of(s->columns, &c->m->recurrent),
                      .stride = row_stride(s)};
    const size_t row_bytes = (size_t)s->cols * dtype_size(written_as(c, s));
    const int64_t step = batch_rows(s, b.stride);
    for (; b.row < s->rows; b.row += step) {
        const int64_t n = s->rows - b.row < step ? s->rows - b.row : step;
        enum status st = read_batch(&b, n, err);
        if (st != OK)
            return st;
        backend_parallel(c->pool, n, n / 64 + 1, convert_rows, &b);
        st = safetensors_write(w, c->values, (size_t)n * row_bytes, err);
        if (st != OK)
            return st;
        outdir_advance(&c->progress, (size_t)n * row_bytes);
    }
    return OK;
}

/* A head's rows of keys, which are columns in the file, and of values. */
static enum status write_head(struct converter *c, const struct gguf_source *s, int64_t head,
                              float *values, struct err *err)
{
    enum status st = OK;
    const struct latent_config *l = &c->m->latent;
    const struct gguf_tensor *k = s->tensor, *v = s->behind;
    const size_t element = dtype_size(c->dtype);
    bool good = true;
    TRY(gguf_read_rows(c->g, k, head * l->value, l->value, c->raw, err));
    gguf_dequantize(k->block, c->raw, (int64_t)l->value * l->plain, values);
    for (int64_t row = 0; row < l->plain; row++)
        for (int64_t col = 0; col < l->value; col++)
            good &= store(&values[col * l->plain + row], 1, 0, c->dtype,
                          c->values + (size_t)(row * l->value + col) * element);
    TRY(gguf_read_rows(c->g, v, head * l->head, l->head, c->raw, err));
    gguf_dequantize(v->block, c->raw, (int64_t)l->head * l->value, values);
    good &= store(values, (int64_t)l->head * l->value, 0, c->dtype,
                  c->values + (size_t)l->plain * (size_t)l->value * element);
    if (!good)
        atomic_store(c->beyond, true);
out:
    return st;
}

static enum status write_heads(struct converter *c, const struct gguf_source *s,
                               struct safetensors_writer *w, struct err *err)
{
    enum status st = OK;
    const struct latent_config *l = &c->m->latent;
    const size_t most = (size_t)(l->plain > l->head ? l->plain : l->head) * (size_t)l->value;
    const size_t bytes = (size_t)(l->plain + l->head) * (size_t)l->value * dtype_size(c->dtype);
    float *values = malloc(most * sizeof *values);
    if (!values)
        return base_fail(err, ERR_NOMEM, "no memory for %zu values", most);
    for (int64_t head = 0; head < c->m->heads; head++) {
        TRY(write_head(c, s, head, values, err));
        TRY(safetensors_write(w, c->values, bytes, err));
        outdir_advance(&c->progress, bytes);
    }
out:
    free(values);
    return st;
}

/* The logarithms of what the file has of a decay, less than 0 all of them. */
static enum status undo_exp(const struct converter *c, const struct gguf_source *s, float *v,
                            struct err *err)
{
    for (int64_t i = 0; i < s->cols; i++) {
        if (!(v[i] < 0) || !isfinite(v[i]))
            return base_fail(err, ERR_MODEL,
                             "%s: %s: expected values below 0 (each minus an exponential), got %g",
                             gguf_path(c->g), s->tensor->name, (double)v[i]);
        v[i] = (float)log(-(double)v[i]);
    }
    return OK;
}

/* Of a bias the values are what rows are of a matrix. */
static enum status write_vector(struct converter *c, const struct gguf_source *s,
                                struct safetensors_writer *w, struct err *err)
{
    enum status st = OK;
    const enum dtype dtype = written_as(c, s);
    const size_t element = dtype_size(dtype);
    const struct gguf_order order = gguf_order_of(s->order, &c->m->recurrent);
    int64_t run = 0;
    float *values = malloc((size_t)s->cols * sizeof *values);
    if (!values)
        return base_fail(err, ERR_NOMEM, "no memory for %lld values", (long long)s->cols);
    TRY(gguf_read_rows(c->g, s->tensor, 0, 1, c->raw, err));
    gguf_dequantize(s->tensor->block, c->raw, s->cols, values);
    if (s->decay)
        TRY(undo_exp(c, s, values, err));
    for (int64_t i = 0; i < s->cols; i++)
        if (!store(&values[gguf_order_at(&order, i, &run)], 1, s->less, dtype,
                   c->values + (size_t)place(i, s->head_dim) * element))
            atomic_store(c->beyond, true);
    TRY(safetensors_write(w, c->values, (size_t)s->cols * element, err));
    outdir_advance(&c->progress, (size_t)s->cols * element);
out:
    free(values);
    return st;
}

/* ---- files ---- */

/* Bytes of a batch, in the file and in ours. */
static void batch_bytes(const struct converter *c, const struct gguf_source *s, size_t *raw,
                        size_t *values)
{
    const struct latent_config *l = &c->m->latent;
    const size_t stride = row_stride(s), element = dtype_size(written_as(c, s));
    size_t rows = (size_t)batch_rows(s, stride);
    if (rows > (size_t)s->rows)
        rows = (size_t)s->rows;
    *raw = rows * stride;
    *values = rows * (size_t)s->cols * element;
    if (s->by_head) {
        const size_t k = (size_t)l->value * file_stride(s->tensor);
        const size_t v = (size_t)l->head * file_stride(s->behind);
        *raw = k > v ? k : v;
        *values = (size_t)(l->plain + l->head) * (size_t)l->value * element;
    }
}

/* The caller frees *out. Raises the sizes of a batch to what the longest rows take. */
static enum status declare(struct converter *c, struct safetensors_entry **out, size_t *raw,
                           size_t *values, struct err *err)
{
    struct safetensors_entry *entries = calloc((size_t)c->count + 1, sizeof *entries);
    if (!entries)
        return base_fail(err, ERR_NOMEM, "no memory for %d tensors", (int)c->count);
    *raw = *values = 1;
    for (int32_t i = 0; i < c->count; i++) {
        const struct gguf_source *s = &c->sources[i];
        const struct synth_tensor *w = &c->wanted[i];
        struct safetensors_entry *e = &entries[i];
        const int64_t rows = s->by_head ? w->rows : s->rows, cols = s->by_head ? w->cols : s->cols;
        size_t in, ours;
        batch_bytes(c, s, &in, &ours);
        *raw = in > *raw ? in : *raw;
        *values = ours > *values ? ours : *values;
        e->name = (char *)(uintptr_t)w->name; /* the writer only reads it */
        e->dtype = written_as(c, s);
        e->ndim = s->convolution ? 3 : w->ndim;
        e->shape[0] = e->ndim == 1 ? cols : rows;
        e->shape[1] = s->convolution ? 1 : cols;
        e->shape[2] = cols;
        c->progress.total += (size_t)(rows * cols) * dtype_size(e->dtype);
    }
    *out = entries;
    return OK;
}

static enum status write_tensors(struct converter *c, const char *path, struct err *err)
{
    enum status st = OK;
    struct safetensors_entry *entries = NULL;
    struct safetensors_writer *w = NULL;
    char(*names)[GGUF_JOIN_NAME] = calloc((size_t)c->count + 1, sizeof *names);
    size_t raw = 0, values = 0;
    c->progress = (struct outdir_progress){.path = path, .shown = base_now()};
    TRY(declare(c, &entries, &raw, &values, err));
    c->raw = malloc(raw);
    c->values = malloc(values);
    if (!names || !c->raw || !c->values) {
        st = base_fail(err, ERR_NOMEM, "%s: no memory for %zu bytes", path, raw + values);
        goto out;
    }
    c->written = gguf_join_experts(gguf_arch_find(c->g, err), entries, c->count, names);
    TRY(safetensors_create(path, entries, c->written, "{\"format\":\"pt\"}", &w, err));
    for (int32_t i = 0; i < c->count; i++) {
        const struct gguf_source *s = &c->sources[i];
        if (s->by_head)
            TRY(write_heads(c, s, w, err));
        else if (s->tensor->ndim == 1)
            TRY(write_vector(c, s, w, err));
        else
            TRY(write_matrix(c, s, w, err));
        if (atomic_load(c->beyond)) {
            st = base_fail(err, ERR_MODEL,
                           "%s: %s: values beyond 65504, the largest of float16: --dtype bfloat16 "
                           "or float32",
                           gguf_path(c->g), s->tensor->name);
            goto out;
        }
    }
    st = safetensors_finish(w, err);
    w = NULL;
out:
    safetensors_discard(w);
    free(entries);
    free(names);
    free(c->raw);
    free(c->values);
    return st;
}

static bool has_tokenizer(const struct gguf *g)
{
    struct gguf_string s;
    return !gguf_text(gguf_get(g, "tokenizer.ggml.model"), &s) || s.n != 4 ||
           memcmp(s.bytes, "none", 4) != 0;
}

/* Of a model for vectors (enum llama_pooling_type of llama.h), which the directory says in the
 * files of sentence-transformers. What is not served is written all the same: who serves it says
 * so. */
static enum status write_pooling(const struct gguf *g, struct outdir *out, struct err *err)
{
    static const char modules[] = "[{\"idx\":0,\"name\":\"0\",\"path\":\"\","
                                  "\"type\":\"sentence_transformers.models.Transformer\"},\n"
                                  "{\"idx\":1,\"name\":\"1\",\"path\":\"" POOLING_FOLDER "\","
                                  "\"type\":\"sentence_transformers.models.Pooling\"},\n"
                                  "{\"idx\":2,\"name\":\"2\",\"path\":\"2_Normalize\","
                                  "\"type\":\"sentence_transformers.models.Normalize\"}]\n";
    static const char *const ways[] = {NULL, "{\"pooling_mode_mean_tokens\":true}\n",
                                       "{\"pooling_mode_cls_token\":true}\n",
                                       "{\"pooling_mode_lasttoken\":true}\n"};
    enum status st = OK;
    int64_t way = 0;
    const struct gguf_arch *arch = gguf_arch_find(g, err);
    CHECK(arch != NULL);
    TRY(gguf_arch_int(g, arch, "pooling_type", 0, INT32_MAX, &way, err));
    if (way <= 0 || way >= (int64_t)ARRAY_LEN(ways))
        goto out;
    TRY(outdir_make_folder(out, POOLING_FOLDER, err));
    TRY(outdir_put(out, POOLING_CONFIG, ways[way], strlen(ways[way]), err));
    TRY(outdir_put(out, POOLING_MODULES, modules, sizeof modules - 1, err));
out:
    return st;
}

static enum status write_directory(struct converter *c, const char *dir, const char *config_json,
                                   struct err *err)
{
    struct outdir out;
    char path[PATH_MAX];
    enum status st = outdir_open(dir, &out, err);
    if (st != OK)
        return st;
    if (has_tokenizer(c->g))
        TRY(gguf_tokenizer_write(c->g, &out, err));
    else
        base_log(LOG_WARN, "%s: no tokenizer; serve takes prompts of token ids", gguf_path(c->g));
    TRY(write_pooling(c->g, &out, err));
    TRY(outdir_member(&out, "model.safetensors", path, err));
    TRY(write_tensors(c, path, err));
    TRY(outdir_put(&out, "config.json", config_json, strlen(config_json), err));
out:
    outdir_close(&out, st == OK);
    return st;
}

enum status gguf_convert(const struct gguf *g, const char *dir, const char *config_json,
                         const struct synth_tensor *wanted, int32_t *count,
                         const struct model_config *m, enum dtype dtype, int32_t threads,
                         struct err *err)
{
    enum status st = OK;
    _Atomic bool beyond = false;
    struct converter c = {
        .g = g, .wanted = wanted, .count = *count, .dtype = dtype, .m = m, .beyond = &beyond};
    bool *used = calloc((size_t)gguf_tensor_count(g) + 1, sizeof *used);
    c.sources = calloc((size_t)c.count + 1, sizeof *c.sources);
    if (!used || !c.sources) {
        st = base_fail(err, ERR_NOMEM, "%s: no memory for %d tensors", gguf_path(g), (int)*count);
        goto out;
    }
    TRY(find_sources(&c, used, err));
    TRY(check_vocabulary(g, err));
    TRY(backend_open("cpu", threads, &c.pool, err));
    TRY(write_directory(&c, dir, config_json, err));
    *count = c.written;
out:
    backend_close(c.pool);
    free(c.sources);
    free(used);
    return st;
}
