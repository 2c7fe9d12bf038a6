/* DESIGN: a rank's files hold exactly the rectangles its plan gives it, under the tensors' own
 * names and with their offsets, so that a reader needs no plan to put them together again. Fused
 * per-rank tensors (vLLM's sharded_state) were rejected: they load at one rank count only. The
 * order is that of the types' sizes, of the plan and of the names, never of the source, which makes
 * N -> M -> N byte-identical. shards.json comes last: a directory without it is not a checkpoint.
 * Invariant: the plan was proved to cover every tensor before the first byte is written. */
#include "weights/shard.h"

#include "config/buf.h"
#include "config/pooling.h"
#include "weights/checkpoint_files.h"
#include "weights/mxfp4.h"
#include "weights/outdir.h"
#include "weights/packed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define STAGING_BYTES (1u << 20)
#define TEXT_MAX (64u << 20)

/* A rectangle to write. */
struct piece {
    struct tensor_slice slice;
    const struct checkpoint_tensor *tensor;
    int32_t part;
    int32_t earlier; /* the previous piece of the same tensor, -1: none */
    int32_t order;   /* by the plan */
};

struct sharder {
    const struct checkpoint *source;
    const struct outdir *out;
    struct piece *pieces; /* of the current rank */
    int32_t piece_count, part_count;
    int32_t *last;   /* [tensors] latest piece of each tensor in this rank, -1: none */
    char *used;      /* [tensors] named by any rank */
    char *staging;   /* STAGING_BYTES or one row */
    struct buf list; /* "files" of shards.json */
    struct outdir_progress progress;
};

/* ---- which pieces a rank writes ---- */

static bool same_box(const struct tensor_slice *a, const struct tensor_slice *b)
{
    return a->rows.begin == b->rows.begin && a->rows.end == b->rows.end &&
           a->cols.begin == b->cols.begin && a->cols.end == b->cols.end;
}

/* Empty slices and repeated ones (tied weights, scales of several slices) are left out. */
static void add_piece(struct sharder *s, const struct checkpoint_tensor *t,
                      const struct tensor_slice *slice)
{
    int32_t index = (int32_t)(t - checkpoint_at(s->source, 0)), part = 0;
    if (span_len(slice->rows) == 0 || span_len(slice->cols) == 0)
        return;
    for (int32_t i = s->last[index]; i >= 0; i = s->pieces[i].earlier, part++) {
        if (same_box(&s->pieces[i].slice, slice))
            return;
    }
    s->pieces[s->piece_count] = (struct piece){*slice, t, part, s->last[index], s->piece_count};
    s->last[index] = s->piece_count++;
    s->used[index] = 1;
    if (part >= s->part_count)
        s->part_count = part + 1;
}

/* With codes go the scales of all blocks that they touch: a block across a cut is in both files. */
static enum status add_slice(struct sharder *s, const struct local_weight *w,
                             const struct tensor_slice *slice, struct err *err)
{
    const struct checkpoint_tensor *t;
    const struct tensor_slice bytes = mxfp4_is_source(w) ? mxfp4_bytes(slice) : *slice;
    struct tensor_slice scales;
    for (int i = 0; packed_is_source(w) && i < PACKED_PARTS; i++) {
        if (packed_part(w, slice, (enum packed_part)i, &scales) &&
            (t = checkpoint_find(s->source, scales.tensor)) != NULL)
            add_piece(s, t, &scales);
    }
    if (packed_is_source(w))
        return OK;
    add_piece(s, checkpoint_find(s->source, slice->tensor), &bytes);
    if (w->quant.kind != QUANT_FILE)
        return OK;
    enum status st = checkpoint_scale(s->source, w, slice, &t, &scales, err);
    if (st == OK)
        add_piece(s, t, &scales);
    return st;
}

/* Widest elements first, so that every tensor of a file is aligned. */
static int by_width(const void *a, const void *b)
{
    const struct piece *x = a, *y = b;
    const size_t m = dtype_size(x->tensor->dtype), n = dtype_size(y->tensor->dtype);
    return m != n ? (m < n ? 1 : -1) : x->order - y->order;
}

static enum status list_pieces(struct sharder *s, const struct local_weight *weights, int32_t count,
                               struct err *err)
{
    free(s->pieces);
    s->pieces = calloc(PACKED_PARTS * placement_slices(weights, count) + 1, sizeof *s->pieces);
    if (!s->pieces)
        return base_fail(err, ERR_NOMEM, "no memory for %d weights", count);
    s->piece_count = 0;
    s->part_count = 1; /* a rank that owns nothing has an empty file */
    for (int32_t i = 0; i < checkpoint_count(s->source); i++)
        s->last[i] = -1;
    enum status st = OK;
    for (int32_t i = 0; i < count && st == OK; i++) {
        for (int32_t k = 0; k < weights[i].slice_count && st == OK; k++)
            st = add_slice(s, &weights[i], &weights[i].slices[k], err);
    }
    qsort(s->pieces, (size_t)s->piece_count, sizeof *s->pieces, by_width);
    return st;
}

/* ---- one file ---- */

static void add_offsets(struct buf *b, const struct tensor_slice *s)
{
    buf_json(b, s->tensor, strlen(s->tensor));
    if (s->ndim == 0)
        buf_puts(b, ":{\"saved_offsets\":[]}");
    else if (s->ndim == 1)
        buf_printf(b, ":{\"saved_offsets\":[%lld]}", (long long)s->cols.begin);
    else
        buf_printf(b, ":{\"saved_offsets\":[%lld,%lld]}", (long long)s->rows.begin,
                   (long long)s->cols.begin);
}

/* The keys torch's distributed checkpoints use; the info is JSON inside a JSON string. */
static enum status make_metadata(const struct sharder *s, int32_t part, struct buf *metadata,
                                 struct err *err)
{
    struct buf info;
    bool first = true;
    buf_init(&info, TEXT_MAX);
    buf_puts(&info, "{");
    for (int32_t i = 0; i < s->piece_count; i++) {
        if (s->pieces[i].part != part)
            continue;
        buf_puts(&info, first ? "" : ",");
        add_offsets(&info, &s->pieces[i].slice);
        first = false;
    }
    buf_puts(&info, "}");
    buf_puts(metadata, "{\"DCP_SHARDING_INFO\":");
    buf_json(metadata, info.data ? info.data : "", info.len);
    buf_puts(metadata, ",\"DCP_VERSION\":\"1.0\",\"format\":\"pt\"}");
    bool failed = info.failed || metadata->failed;
    buf_free(&info);
    return failed ? base_fail(err, ERR_NOMEM, "no memory for the offsets of a shard") : OK;
}

/* The caller frees *out; the names are borrowed from the pieces. */
static enum status make_entries(const struct sharder *s, int32_t part,
                                struct safetensors_entry **out, int32_t *count, struct err *err)
{
    struct safetensors_entry *entries = calloc((size_t)s->piece_count + 1, sizeof *entries);
    int32_t n = 0;
    if (!entries)
        return base_fail(err, ERR_NOMEM, "no memory for %d tensors", s->piece_count);
    for (int32_t i = 0; i < s->piece_count; i++) {
        const struct piece *p = &s->pieces[i];
        if (p->part != part)
            continue;
        struct safetensors_entry *e = &entries[n++];
        e->name = (char *)(uintptr_t)p->slice.tensor; /* the writer only reads it */
        e->dtype = p->tensor->dtype;
        e->ndim = p->slice.ndim;
        e->shape[0] = span_len(e->ndim == 1 ? p->slice.cols : p->slice.rows);
        e->shape[1] = span_len(p->slice.cols);
    }
    *out = entries;
    *count = n;
    return OK;
}

static enum status copy_piece(struct sharder *s, const struct piece *p, int32_t rank,
                              struct safetensors_writer *w, struct err *err)
{
    const struct tensor_slice *t = &p->slice;
    size_t row_bytes = (size_t)span_len(t->cols) * dtype_size(p->tensor->dtype);
    int64_t step = row_bytes < STAGING_BYTES ? (int64_t)(STAGING_BYTES / row_bytes) : 1;
    for (int64_t row = t->rows.begin; row < t->rows.end; row += step) {
        struct span rows = {row, row + step < t->rows.end ? row + step : t->rows.end};
        const size_t bytes = row_bytes * (size_t)span_len(rows);
        enum status st =
            checkpoint_read(s->source, p->tensor, rows, t->cols, rank, s->staging, err);
        if (st == OK)
            st = safetensors_write(w, s->staging, bytes, err);
        if (st != OK)
            return st;
        outdir_advance(&s->progress, bytes);
    }
    return OK;
}

static enum status write_part(struct sharder *s, int32_t rank, int32_t part, struct err *err)
{
    enum status st = OK;
    struct safetensors_writer *w = NULL;
    struct safetensors_entry *entries = NULL;
    struct buf metadata;
    char name[64], path[PATH_MAX];
    int32_t count = 0;
    buf_init(&metadata, TEXT_MAX);
    snprintf(name, sizeof name, "model-rank-%05d-part-%05d.safetensors", rank, part);
    TRY(outdir_member(s->out, name, path, err));
    TRY(make_metadata(s, part, &metadata, err));
    TRY(make_entries(s, part, &entries, &count, err));
    TRY(safetensors_create(path, entries, count, metadata.data, &w, err));
    for (int32_t i = 0; i < s->piece_count; i++) {
        if (s->pieces[i].part == part)
            TRY(copy_piece(s, &s->pieces[i], rank, w, err));
    }
    buf_printf(&s->list, "%s\"%s\"", part ? ", " : "", name);
    st = safetensors_finish(w, err);
    w = NULL;
out:
    safetensors_discard(w);
    free(entries);
    buf_free(&metadata);
    return st;
}

/* Every rank has about as much to write as this one. */
static void expect(struct sharder *s, int32_t rank, int32_t ranks)
{
    uint64_t bytes = 0;
    for (int32_t i = 0; i < s->piece_count; i++) {
        const struct tensor_slice *t = &s->pieces[i].slice;
        bytes += (uint64_t)span_len(t->rows) * (uint64_t)span_len(t->cols) *
                 dtype_size(s->pieces[i].tensor->dtype);
    }
    s->progress.done = (uint64_t)rank * bytes;
    s->progress.total = (uint64_t)ranks * bytes;
}

static enum status write_rank(struct sharder *s, const struct local_weight *weights, int32_t count,
                              int32_t rank, int32_t ranks, struct err *err)
{
    enum status st = OK;
    TRY(list_pieces(s, weights, count, err));
    expect(s, rank, ranks);
    buf_puts(&s->list, rank ? ",\n    [" : "\n    [");
    for (int32_t part = 0; part < s->part_count; part++)
        TRY(write_part(s, rank, part, err));
    buf_puts(&s->list, "]");
out:
    return st;
}

/* ---- the rest of the directory ---- */

/* A member, if there is one of that name. */
static enum status copy_member(const char *model_dir, const char *name, struct outdir *out,
                               struct err *err)
{
    char link[PATH_MAX], path[PATH_MAX];
    struct stat sb;
    snprintf(link, sizeof link, "%s/%s", model_dir, name);
    if (lstat(link, &sb) != 0)
        return OK;
    const enum status st = checkpoint_files_path(model_dir, name, path, err);
    return st == OK ? outdir_copy(out, name, path, err) : st;
}

static enum status copy_others(const char *model_dir, struct outdir *out, struct err *err)
{
    static const char *const names[] = {"config.json",
                                        "generation_config.json",
                                        "tokenizer.model",
                                        "tokenizer.json",
                                        "tokenizer_config.json",
                                        "special_tokens_map.json",
                                        "chat_template.jinja",
                                        POOLING_MODULES,
                                        "sentence_bert_config.json",
                                        "config_sentence_transformers.json"};
    enum status st = OK;
    struct pooling p;
    struct err why;
    char name[80];
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        TRY(copy_member(model_dir, names[i], out, err));
    if (pooling_load(model_dir, &p, &why) != OK) /* what cannot be served may be kept */
        base_log(LOG_WARN, "%s", why.text);
    if (!p.folder[0])
        goto out;
    snprintf(name, sizeof name, "%s/config.json", p.folder);
    TRY(outdir_make_folder(out, p.folder, err));
    TRY(copy_member(model_dir, name, out, err));
out:
    return st;
}

static void add_tensor(struct buf *b, const struct checkpoint_tensor *t, bool first)
{
    buf_puts(b, first ? "\n    " : ",\n    ");
    buf_json(b, t->name, strlen(t->name));
    buf_printf(b, ": {\"dtype\": \"%s\", \"shape\": [", dtype_name(t->dtype));
    if (t->ndim > 1)
        buf_printf(b, "%lld, ", (long long)t->rows);
    if (t->ndim > 0)
        buf_printf(b, "%lld", (long long)t->cols);
    buf_puts(b, "]}");
}

static enum status write_list(struct sharder *s, int32_t ranks, struct err *err)
{
    struct buf b;
    bool first = true;
    buf_init(&b, TEXT_MAX);
    buf_printf(&b, "{\n  \"version\": 1,\n  \"ranks\": %d,\n  \"files\": [", ranks);
    buf_add(&b, s->list.data, s->list.len);
    buf_puts(&b, "\n  ],\n  \"tensors\": {");
    for (int32_t i = 0; i < checkpoint_count(s->source); i++) {
        if (!s->used[i])
            continue;
        add_tensor(&b, checkpoint_at(s->source, i), first);
        first = false;
    }
    buf_puts(&b, "\n  }\n}\n");
    enum status st = OK;
    if (b.failed || s->list.failed)
        st = base_fail(err, ERR_NOMEM, "no memory for shards.json");
    else
        st = outdir_put(s->out, "shards.json", b.data, b.len, err);
    buf_free(&b);
    return st;
}

/* The plan covers every tensor it names, and the checkpoint has them in these shapes. */
static enum status check_plan(const struct checkpoint *source, struct local_weight *const *weights,
                              const int32_t *counts, int32_t ranks, struct err *err)
{
    static const char *const anything[] = {"**"};
    enum status st = placement_prove(weights, counts, ranks, err);
    for (int32_t r = 0; r < ranks && st == OK; r++)
        st = checkpoint_check(source, weights[r], counts[r], anything, 1, NULL, err);
    return st;
}

static size_t staging_bytes(const struct checkpoint *c)
{
    size_t most = STAGING_BYTES;
    for (int32_t i = 0; i < checkpoint_count(c); i++) {
        const struct checkpoint_tensor *t = checkpoint_at(c, i);
        size_t row = (size_t)t->cols * dtype_size(t->dtype);
        if (row > most)
            most = row;
    }
    return most;
}

static enum status sharder_init(struct sharder *s, const struct checkpoint *source,
                                const struct outdir *out, struct err *err)
{
    size_t tensors = (size_t)checkpoint_count(source) + 1, bytes = staging_bytes(source);
    *s = (struct sharder){
        .source = source,
        .out = out,
        .last = calloc(tensors, sizeof *s->last),
        .used = calloc(tensors, 1),
        .staging = malloc(bytes),
        .progress = {.path = out->path, .shown = base_now()},
    };
    buf_init(&s->list, TEXT_MAX);
    if (!s->last || !s->used || !s->staging)
        return base_fail(err, ERR_NOMEM, "no memory for %zu bytes of staging", bytes);
    return OK;
}

static void sharder_free(struct sharder *s)
{
    free(s->pieces);
    free(s->last);
    free(s->used);
    free(s->staging);
    buf_free(&s->list);
}

enum status shard_write(const char *model_dir, const struct checkpoint *source,
                        struct local_weight *const *weights, const int32_t *counts, int32_t ranks,
                        const char *out_dir, struct err *err)
{
    struct outdir out;
    struct sharder s;
    if (ranks < 1 || ranks > CHECKPOINT_FILES_MAX)
        return base_fail(err, ERR_USAGE, "%d ranks: expected 1 to %d", ranks, CHECKPOINT_FILES_MAX);
    enum status st = check_plan(source, weights, counts, ranks, err);
    if (st == OK)
        st = outdir_open(out_dir, &out, err);
    if (st != OK)
        return st;
    TRY(sharder_init(&s, source, &out, err));
    for (int32_t r = 0; r < ranks; r++)
        TRY(write_rank(&s, weights[r], counts[r], r, ranks, err));
    TRY(copy_others(model_dir, &out, err));
    TRY(write_list(&s, ranks, err));
out:
    sharder_free(&s);
    outdir_close(&out, st == OK);
    return st;
}
