/* DESIGN: a value is a hash of (seed, tensor, row, column) and nothing else, so every rank makes
 * its slice alone and any layout holds the same model. Per row a 64-bit key is made; per element
 * one 32-bit mix, in blocks of 16 so that compilers vectorise it. A stateful generator was
 * rejected: its values would depend on the order of the draws. Invariant: one multiplication per
 * value and no additions of floats, so that every compiler and instruction set gives the same bits.
 */
#include "weights/synth.h"

#include "config/buf.h"
#include "kernels/numerics.h"
#include "weights/outdir.h"
#include "weights/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK 16
#define TOKENIZER_VOCAB_MIN 262
#define TOKENIZER_BYTES_MAX (64u << 20)

/* ---- values ---- */

static uint64_t row_key(const struct synth_rules *rules, const char *tensor, int64_t row)
{
    uint64_t h = numerics_mix(rules->seed + 0x9e3779b97f4a7c15ull);
    h = base_hash(BASE_HASH_INIT ^ h, tensor, strlen(tensor));
    return numerics_mix(numerics_mix(h) + (uint64_t)row * 0x9e3779b97f4a7c15ull);
}

/* Both halves of the key enter, so that no two rows of a tensor run alike. The mix is lowbias32
 * (Wellons, "Prospecting for hash functions") with the second half added in the middle. */
static inline uint32_t element(uint64_t key, uint32_t col)
{
    uint32_t x = (col * 0x9e3779b1u) ^ (uint32_t)key;
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = ((x ^ (x >> 15)) + (uint32_t)(key >> 32)) * 0x846ca68bu;
    return x ^ (x >> 16);
}

static void matrix_block(uint64_t key, uint32_t col, float scale, float out[BLOCK])
{
    for (uint32_t i = 0; i < BLOCK; i++)
        out[i] = (float)((int32_t)element(key, col + i) >> 8) * scale;
}

static void gains_block(uint64_t key, uint32_t col, bool less_one, float out[BLOCK])
{
    for (uint32_t i = 0; i < BLOCK; i++) {
        int32_t j = (int32_t)((uint64_t)element(key, col + i) * 25 >> 32) - 12;
        out[i] = (float)((less_one ? 0 : 128) + j) * 0x1p-7f;
    }
}

static void store_block(const float *v, int64_t n, enum dtype dtype, char *dst)
{
    if (dtype == DTYPE_F32) {
        memcpy(dst, v, (size_t)n * sizeof *v);
    } else if (dtype == DTYPE_BF16 && n == BLOCK) {
        uint16_t h[BLOCK];
        for (int i = 0; i < BLOCK; i++)
            h[i] = dtype_to_bf16(v[i]);
        memcpy(dst, h, sizeof h);
    } else {
        for (int64_t i = 0; i < n; i++)
            dtype_store(dst, dtype, (size_t)i, v[i]);
    }
}

static bool is_named(const char *tensor, const char *name)
{
    return name && strcmp(tensor, name) == 0;
}

/* Layers that recur have vectors beside gains; and those of their norms are as they come. */
static bool is_decay(const char *tensor)
{
    return base_ends_with(tensor, ".A_log");
}

static bool is_convolution(const char *tensor)
{
    return base_ends_with(tensor, ".conv1d.weight");
}

static bool is_gain(const char *tensor, int32_t ndim)
{
    return ndim == 1 && !base_ends_with(tensor, "bias") && !is_decay(tensor) &&
           !is_convolution(tensor);
}

void synth_row(const struct synth_rules *rules, const char *tensor, int32_t ndim, int64_t cols,
               int64_t row, struct span range, enum dtype dtype, void *dst)
{
    CHECK(range.end <= cols);
    CHECK(cols <= INT32_MAX);
    uint64_t key = row_key(rules, tensor, row);
    const float std = is_decay(tensor) ? 1.0f : is_convolution(tensor) ? 0.5f : rules->std;
    const bool less_one = rules->less_one && !strstr(tensor, ".linear_attn.");
    float scale = std * 1.7320508f * 0x1p-23f; /* uniform in +-a has deviation a / sqrt 3 */
    if (row < rules->tiny_rows && (is_named(tensor, rules->embed) || is_named(tensor, rules->head)))
        scale *= 0x1p-10f;
    char *out = dst;
    for (int64_t col = range.begin; col < range.end; col += BLOCK) {
        float block[BLOCK];
        int64_t n = range.end - col < BLOCK ? range.end - col : BLOCK;
        if (is_gain(tensor, ndim))
            gains_block(key, (uint32_t)col, less_one, block);
        else
            matrix_block(key, (uint32_t)col, scale, block);
        store_block(block, n, dtype, out);
        out += (size_t)n * dtype_size(dtype);
    }
}

/* ---- files ---- */

struct batch {
    const struct synth_rules *rules;
    const struct synth_tensor *tensor;
    enum dtype dtype;
    int64_t first; /* row */
    char *bytes;
};

static int64_t tensor_rows(const struct synth_tensor *t)
{
    return t->ndim == 1 ? 1 : t->rows;
}

static void fill_rows(void *arg, int64_t begin, int64_t end)
{
    const struct batch *b = arg;
    const struct synth_tensor *t = b->tensor;
    size_t stride = (size_t)t->cols * dtype_size(b->dtype);
    for (int64_t i = begin; i < end; i++)
        synth_row(b->rules, t->name, t->ndim, t->cols, b->first + i, (struct span){0, t->cols},
                  b->dtype, b->bytes + (size_t)i * stride);
}

#define BATCH_BYTES (8u << 20)

static enum status write_tensor(struct backend *pool, struct batch *b, struct safetensors_writer *w,
                                struct outdir_progress *p, struct err *err)
{
    int64_t rows = tensor_rows(b->tensor);
    size_t stride = (size_t)b->tensor->cols * dtype_size(b->dtype);
    int64_t step = stride < BATCH_BYTES && stride > 0 ? (int64_t)(BATCH_BYTES / stride) : 1;
    int64_t grain = step / 64 + 1;
    for (b->first = 0; b->first < rows; b->first += step) {
        int64_t n = rows - b->first < step ? rows - b->first : step;
        backend_parallel(pool, n, grain, fill_rows, b);
        enum status st = safetensors_write(w, b->bytes, (size_t)n * stride, err);
        if (st != OK)
            return st;
        outdir_advance(p, (size_t)n * stride);
    }
    return OK;
}

/* What reads published checkpoints wants a convolution of single channels as PyTorch has it, though
 * its values are those of a vector. */
static void set_shape(struct safetensors_entry *e, const struct synth_tensor *t, int64_t taps)
{
    if (t->ndim == 1 && taps > 0 && is_convolution(t->name)) {
        CHECK(t->cols % taps == 0);
        e->ndim = 3;
        e->shape[0] = t->cols / taps;
        e->shape[1] = 1;
        e->shape[2] = taps;
        return;
    }
    e->ndim = t->ndim;
    e->shape[0] = t->ndim == 1 ? t->cols : t->rows;
    e->shape[1] = t->cols;
}

/* *widest is raised to the longest row. The caller frees *out; the names are borrowed. */
static enum status declare(const struct synth_rules *rules, const struct synth_tensor *tensors,
                           int32_t count, enum dtype dtype, struct safetensors_entry **out,
                           size_t *widest, uint64_t *total, struct err *err)
{
    struct safetensors_entry *entries = calloc((size_t)count + 1, sizeof *entries);
    if (!entries)
        return base_fail(err, ERR_NOMEM, "no memory for %d tensors", count);
    *total = 0;
    for (int32_t i = 0; i < count; i++) {
        const struct synth_tensor *t = &tensors[i];
        struct safetensors_entry *e = &entries[i];
        CHECK(t->ndim == 1 || t->ndim == 2);
        e->name = (char *)(uintptr_t)t->name; /* the writer only reads it */
        e->dtype = dtype;
        set_shape(e, t, rules->taps);
        size_t stride = (size_t)t->cols * dtype_size(dtype);
        if (stride > *widest)
            *widest = stride;
        *total += stride * (size_t)tensor_rows(t);
    }
    *out = entries;
    return OK;
}

static enum status write_model(const char *path, const struct synth_rules *rules,
                               const struct synth_tensor *tensors, int32_t count, enum dtype dtype,
                               struct backend *pool, struct err *err)
{
    enum status st = OK;
    struct safetensors_entry *entries = NULL;
    struct safetensors_writer *w = NULL;
    struct batch b = {.rules = rules, .dtype = dtype};
    struct outdir_progress p = {.path = path, .shown = base_now()};
    size_t widest = BATCH_BYTES;
    TRY(declare(rules, tensors, count, dtype, &entries, &widest, &p.total, err));
    b.bytes = malloc(widest);
    if (!b.bytes) {
        st = base_fail(err, ERR_NOMEM, "%s: no memory for %zu bytes of staging", path, widest);
        goto out;
    }
    TRY(safetensors_create(path, entries, count, "{\"format\":\"pt\"}", &w, err));
    for (int32_t i = 0; i < count; i++) {
        b.tensor = &tensors[i];
        TRY(write_tensor(pool, &b, w, &p, err));
    }
    st = safetensors_finish(w, err);
    w = NULL;
out:
    safetensors_discard(w);
    free(b.bytes);
    free(entries);
    return st;
}

static enum status write_tokenizer(const struct outdir *out, int32_t vocab, struct err *err)
{
    static const char config[] = "{\n"
                                 "  \"add_bos_token\": true,\n"
                                 "  \"add_eos_token\": false,\n"
                                 "  \"bos_token\": \"<s>\",\n"
                                 "  \"eos_token\": \"</s>\",\n"
                                 "  \"unk_token\": \"<unk>\",\n"
                                 "  \"tokenizer_class\": \"LlamaTokenizer\"\n"
                                 "}\n";
    enum status st = OK;
    struct buf model;
    buf_init(&model, TOKENIZER_BYTES_MAX);
    if (vocab < TOKENIZER_VOCAB_MIN)
        goto out;
    TRY(synth_tokenizer(vocab, &model, err));
    TRY(outdir_put(out, "tokenizer.model", model.data, model.len, err));
    TRY(outdir_put(out, "tokenizer_config.json", config, sizeof config - 1, err));
out:
    buf_free(&model);
    return st;
}

enum status synth_write(const char *dir, const char *config_json, const struct synth_rules *rules,
                        const struct synth_tensor *tensors, int32_t count, enum dtype dtype,
                        int32_t vocab, int32_t threads, struct err *err)
{
    static const char generation[] = "{\n  \"bos_token_id\": 1,\n  \"eos_token_id\": 2\n}\n";
    struct backend *pool = NULL; /* only for its threads */
    struct outdir out;
    char path[PATH_MAX];
    enum status st = outdir_open(dir, &out, err);
    if (st != OK)
        return st;
    TRY(backend_open("cpu", threads, &pool, err));
    TRY(outdir_put(&out, "config.json", config_json, strlen(config_json), err));
    TRY(outdir_put(&out, "generation_config.json", generation, sizeof generation - 1, err));
    TRY(write_tokenizer(&out, vocab, err));
    TRY(outdir_member(&out, "model.safetensors", path, err));
    TRY(write_model(path, rules, tensors, count, dtype, pool, err));
out:
    backend_close(pool);
    outdir_close(&out, st == OK);
    return st;
}
