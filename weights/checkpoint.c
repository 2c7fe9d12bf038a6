/* DESIGN: a tensor is a list of rectangles in files; a whole tensor in one file is the list of one.
 * So plain and sharded checkpoints read alike, and resharding needs no code of its own. The index
 * of tensors is a sorted array: it is built once and searched a few thousand times. Invariant:
 * after open the pieces of every tensor cover it, so a read of a range inside a tensor can fail
 * only by I/O. */
#include "weights/checkpoint.h"

#include "weights/checkpoint_files.h"
#include "weights/mxfp4.h"
#include "weights/packed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct checkpoint {
    struct checkpoint_files files;
    struct checkpoint_tensor *tensors; /* by name */
    int32_t *first;                    /* [count + 1] first piece of each tensor */
    int32_t count;
    uint64_t bytes;
    struct lora *lora; /* NULL: no adapters */
};

/* ---- opening ---- */

static void group_pieces(struct checkpoint *c)
{
    const struct checkpoint_piece *pieces = c->files.pieces;
    for (int32_t i = 0; i < c->files.piece_count; i++) {
        const struct checkpoint_piece *p = &pieces[i];
        if (i > 0 && strcmp(pieces[i - 1].name, p->name) == 0)
            continue;
        c->tensors[c->count] = (struct checkpoint_tensor){
            .name = p->name,
            .name_in_file = p->name_in_file,
            .dtype = p->dtype,
            .ndim = p->ndim,
            .column = p->column,
            .rows = p->shape[0],
            .cols = p->shape[1],
            .dims = p->dims,
        };
        c->first[c->count++] = i;
    }
    c->first[c->count] = c->files.piece_count;
}

static enum status check_covered(const struct checkpoint *c, struct err *err)
{
    struct placement_box *boxes = calloc((size_t)c->files.file_count + 1, sizeof *boxes);
    if (!boxes)
        return base_fail(err, ERR_NOMEM, "%s: no memory", c->files.dir);
    enum status st = OK;
    for (int32_t i = 0; i < c->count && st == OK; i++) {
        const struct checkpoint_tensor *t = &c->tensors[i];
        struct placement_box whole = {{0, t->rows}, {0, t->cols}}, gap;
        int32_t n = c->first[i + 1] - c->first[i]; /* <= files: names are unique in a file */
        for (int32_t k = 0; k < n; k++)
            boxes[k] = c->files.pieces[c->first[i] + k].box;
        if (!placement_covered(boxes, n, whole, &gap))
            st =
                base_fail(err, ERR_MODEL,
                          "%.200s: tensor %.100s: rows [%lld, %lld) columns [%lld, %lld) are in no "
                          "file",
                          c->files.dir, t->name, (long long)gap.rows.begin, (long long)gap.rows.end,
                          (long long)gap.cols.begin, (long long)gap.cols.end);
    }
    free(boxes);
    return st;
}

enum status checkpoint_open(const char *dir, struct checkpoint **out, struct err *err)
{
    enum status st = OK;
    struct checkpoint *c = calloc(1, sizeof *c);
    if (!c)
        return base_fail(err, ERR_NOMEM, "%s: no memory", dir);
    TRY(checkpoint_files_open(dir, &c->files, err));
    size_t room = (size_t)c->files.piece_count + 1;
    c->tensors = calloc(room, sizeof *c->tensors);
    c->first = calloc(room, sizeof *c->first);
    if (!c->tensors || !c->first) {
        st = base_fail(err, ERR_NOMEM, "%s: no memory for %zu tensors", dir, room);
        goto out;
    }
    group_pieces(c);
    TRY(check_covered(c, err));
    for (int32_t i = 0; i < c->count; i++)
        c->bytes += (uint64_t)c->tensors[i].rows * (uint64_t)c->tensors[i].cols *
                    dtype_size(c->tensors[i].dtype);
    *out = c;
out:
    if (st != OK)
        checkpoint_close(c);
    return st;
}

void checkpoint_close(struct checkpoint *c)
{
    if (!c)
        return;
    checkpoint_files_close(&c->files);
    lora_close(c->lora);
    free(c->tensors);
    free(c->first);
    free(c);
}

/* ---- adapters ---- */

static enum status holds_codes(const struct checkpoint *c, const char *adapter,
                               const struct checkpoint_tensor *t, struct err *err)
{
    return base_fail(err, ERR_MODEL,
                     "%.120s: adapts %.100s, which is %s in %.120s: nothing can be added to codes; "
                     "take the model as it was before they were made",
                     adapter, t->name, dtype_name(t->dtype), c->files.dir);
}

/* Why a tensor that an adapter is for is not there. */
static enum status not_there(const struct checkpoint *c, const char *adapter, const char *name,
                             struct err *err)
{
    static const char *const codes[] = {"qweight", "weight_packed"};
    const char *nearest = checkpoint_nearest(c, name); /* looks at all of them */
    char other[PLACEMENT_NAME_MAX + 16];
    for (size_t i = 0; i < ARRAY_LEN(codes); i++) {
        const size_t module = strlen(name) > 6 ? strlen(name) - strlen("weight") : 0;
        snprintf(other, sizeof other, "%.*s%s", (int)module, name, codes[i]);
        const struct checkpoint_tensor *t = checkpoint_find(c, other);
        if (t)
            return holds_codes(c, adapter, t, err);
    }
    if (strcmp(name, "lm_head.weight") == 0)
        return base_fail(err, ERR_MODEL,
                         "%.120s: adapts lm_head.weight, which %.120s has not; a head that is tied "
                         "to the embedding cannot be adapted",
                         adapter, c->files.dir);
    return base_fail(err, ERR_MODEL,
                     "%.120s: adapts %.100s, which %.120s has not (nearest: %.80s): is the adapter "
                     "of this model?",
                     adapter, name, c->files.dir, nearest ? nearest : "none");
}

static enum status fits(const struct checkpoint *c, const struct lora_part *l, struct err *err)
{
    const char *adapter = lora_adapter(c->lora, l->adapter), *name = l->tensor;
    const struct checkpoint_tensor *t = checkpoint_find(c, name);
    if (!t)
        return not_there(c, adapter, name, err);
    if (!dtype_is_compute(t->dtype))
        return holds_codes(c, adapter, t, err);
    if (t->ndim != l->ndim || t->rows != l->rows || t->cols != l->cols)
        return base_fail(err, ERR_MODEL,
                         "%.120s: adapts %.100s as [%lld, %lld], which is [%lld, %lld] in %.120s: "
                         "is the adapter of this model?",
                         adapter, name, (long long)l->rows, (long long)l->cols, (long long)t->rows,
                         (long long)t->cols, c->files.dir);
    return OK;
}

enum status checkpoint_adapt(struct checkpoint *c, const char *list, struct err *err)
{
    CHECK(!c->lora);
    enum status st = list ? lora_open(list, &c->lora, err) : OK;
    for (int32_t i = 0; c->lora && i < lora_count(c->lora) && st == OK; i++)
        st = fits(c, lora_at(c->lora, i), err);
    return st;
}

const struct lora *checkpoint_lora(const struct checkpoint *c)
{
    return c->lora;
}

/* ---- questions ---- */

enum { CALLED_BYTES = 256 };

/* What messages call a tensor: as its file does, and as what it is read where that is another. */
static const char *called(const struct checkpoint_tensor *t, char to[CALLED_BYTES])
{
    char room[PLACEMENT_NAME_MAX];
    const bool same = strcmp(checkpoint_files_name(t->name_in_file, room), t->name) == 0;
    snprintf(to, CALLED_BYTES, "%.110s%s%.110s", t->name_in_file, same ? "" : ", read as ",
             same ? "" : t->name);
    return to;
}

int32_t checkpoint_count(const struct checkpoint *c)
{
    return c->count;
}

const struct checkpoint_tensor *checkpoint_at(const struct checkpoint *c, int32_t i)
{
    CHECK(i >= 0);
    CHECK(i < c->count);
    return &c->tensors[i];
}

static int compare_name(const void *key, const void *tensor)
{
    const struct checkpoint_tensor *t = tensor;
    return strcmp(key, t->name);
}

const struct checkpoint_tensor *checkpoint_find(const struct checkpoint *c, const char *name)
{
    return bsearch(name, c->tensors, (size_t)c->count, sizeof *c->tensors, compare_name);
}

const char *checkpoint_nearest(const struct checkpoint *c, const char *name)
{
    const char *best = NULL;
    int least = 0;
    for (int32_t i = 0; i < c->count; i++) {
        int d = base_edit_distance(name, c->tensors[i].name);
        if (!best || d < least) {
            best = c->tensors[i].name_in_file;
            least = d;
        }
    }
    return best;
}

uint64_t checkpoint_bytes(const struct checkpoint *c)
{
    return c->bytes;
}

uint64_t checkpoint_stamp(const struct checkpoint *c)
{
    uint64_t stamp = BASE_HASH_INIT;
    for (int32_t i = 0; i < c->files.file_count; i++) {
        const struct checkpoint_file *f = &c->files.files[i];
        stamp = base_hash(stamp, f->name, strlen(f->name) + 1);
        stamp = base_hash(stamp, &f->st.file_bytes, sizeof f->st.file_bytes);
        stamp = base_hash(stamp, &f->st.modified_ns, sizeof f->st.modified_ns);
    }
    return c->lora ? lora_stamp(c->lora, stamp) : stamp;
}

int32_t checkpoint_ranks(const struct checkpoint *c)
{
    return c->files.ranks;
}

/* ---- reading ---- */

struct request {
    const struct checkpoint *c;
    const struct checkpoint_tensor *t;
    int32_t prefer_rank;
    size_t item, stride; /* bytes of an element, of a row of dst */
    struct err *err;
};

static bool contains(struct span outer, struct span inner)
{
    return outer.begin <= inner.begin && inner.end <= outer.end;
}

/* Of the pieces that hold the region's first corner the best: one that holds all of it, the
 * preferred rank's, the first. */
static const struct checkpoint_piece *choose(const struct request *r, struct placement_box region)
{
    const struct checkpoint_piece *best = NULL;
    int32_t index = (int32_t)(r->t - r->c->tensors), most = -1;
    for (int32_t i = r->c->first[index]; i < r->c->first[index + 1]; i++) {
        const struct checkpoint_piece *p = &r->c->files.pieces[i];
        struct span row = {region.rows.begin, region.rows.begin + 1};
        struct span col = {region.cols.begin, region.cols.begin + 1};
        if (!contains(p->box.rows, row) || !contains(p->box.cols, col))
            continue;
        bool whole = contains(p->box.rows, region.rows) && contains(p->box.cols, region.cols);
        int32_t score = 2 * whole + (p->rank == r->prefer_rank);
        if (score > most) {
            best = p;
            most = score;
        }
    }
    return best;
}

static uint64_t offset_in(const struct checkpoint_piece *p, int64_t row, int64_t col, size_t item)
{
    const int64_t before = (row - p->box.rows.begin) * span_len(p->box.cols);
    return p->offset + (uint64_t)(before + col - p->box.cols.begin) * item;
}

/* A part of one piece; dst is where its first element goes. */
static enum status read_part(const struct request *r, const struct checkpoint_piece *p,
                             struct placement_box part, char *dst)
{
    const struct safetensors *st = &r->c->files.files[p->file].st;
    size_t width = (size_t)span_len(p->box.cols) * r->item;
    size_t bytes = (size_t)span_len(part.cols) * r->item;
    uint64_t offset = offset_in(p, part.rows.begin, part.cols.begin, r->item);
    int64_t rows = span_len(part.rows);
    if (bytes == width && bytes == r->stride)
        return safetensors_read(st, offset, dst, bytes * (size_t)rows, r->err);
    for (int64_t i = 0; i < rows; i++) {
        enum status s = safetensors_read(st, offset, dst, bytes, r->err);
        if (s != OK)
            return s;
        offset += width;
        dst += r->stride;
    }
    return OK;
}

/* Piece by piece: the part at the first corner, what is right of it, then the rows below. */
static enum status read_region(const struct request *r, struct placement_box region, char *dst)
{
    while (region.rows.begin < region.rows.end) {
        const struct checkpoint_piece *p = choose(r, region);
        if (!p)
            return base_fail(r->err, ERR_MODEL,
                             "%.200s: tensor %.100s: row %lld column %lld is in "
                             "no file",
                             r->c->files.dir, r->t->name, (long long)region.rows.begin,
                             (long long)region.cols.begin);
        struct placement_box part = region;
        if (p->box.rows.end < part.rows.end)
            part.rows.end = p->box.rows.end;
        if (p->box.cols.end < part.cols.end)
            part.cols.end = p->box.cols.end;
        enum status st = read_part(r, p, part, dst);
        if (st == OK && part.cols.end < region.cols.end) {
            struct placement_box right = {part.rows, {part.cols.end, region.cols.end}};
            st = read_region(r, right, dst + (size_t)span_len(part.cols) * r->item);
        }
        if (st != OK)
            return st;
        dst += (size_t)span_len(part.rows) * r->stride;
        region.rows.begin = part.rows.end;
    }
    return OK;
}

void checkpoint_where(const struct checkpoint *c, const struct checkpoint_tensor *t, int64_t row,
                      int64_t col, int32_t prefer_rank, int32_t *file, uint64_t *offset)
{
    const struct request r = {.c = c, .t = t, .prefer_rank = prefer_rank};
    const struct placement_box corner = {{row, row + 1}, {col, col + 1}};
    const struct checkpoint_piece *p = choose(&r, corner);
    *file = p ? p->file : -1;
    *offset = p ? offset_in(p, row, col, dtype_size(t->dtype)) : 0;
}

const char *checkpoint_file(const struct checkpoint *c, int32_t file)
{
    return file >= 0 && file < c->files.file_count ? c->files.files[file].name : NULL;
}

/* dst is of type `as`, the tensor's own or F32: there is room in it for its own. */
static enum status read_as(const struct checkpoint *c, const struct checkpoint_tensor *t,
                           struct span rows, struct span cols, int32_t prefer_rank, enum dtype as,
                           void *dst, struct err *err)
{
    if (!contains((struct span){0, t->rows}, rows) || !contains((struct span){0, t->cols}, cols))
        return base_fail(
            err, ERR_INTERNAL,
            "tensor %s: read of rows [%lld, %lld) columns [%lld, %lld) of [%lld, %lld]", t->name,
            (long long)rows.begin, (long long)rows.end, (long long)cols.begin, (long long)cols.end,
            (long long)t->rows, (long long)t->cols);
    enum status st = OK;
    const size_t item = dtype_size(t->dtype), n = (size_t)(span_len(rows) * span_len(cols));
    struct request r = {c, t, prefer_rank, item, (size_t)span_len(cols) * item, err};
    char *there = (char *)dst + n * (dtype_size(as) - item);
    if (span_len(cols) == 0)
        return OK;
    if (!lora_replaces(c->lora, t->name))
        st = read_region(&r, (struct placement_box){rows, cols}, there);
    if (st == OK && c->lora)
        st = lora_apply(c->lora, t->name, t->dtype, rows, cols, there, as, dst, err);
    return st;
}

enum status checkpoint_read(const struct checkpoint *c, const struct checkpoint_tensor *t,
                            struct span rows, struct span cols, int32_t prefer_rank, void *dst,
                            struct err *err)
{
    return read_as(c, t, rows, cols, prefer_rank, t->dtype, dst, err);
}

enum dtype checkpoint_type(const struct checkpoint *c, const struct checkpoint_tensor *t)
{
    return lora_adapts(c->lora, t->name) ? DTYPE_F32 : t->dtype;
}

enum status checkpoint_read_exact(const struct checkpoint *c, const struct checkpoint_tensor *t,
                                  struct span rows, struct span cols, int32_t prefer_rank,
                                  void *dst, struct err *err)
{
    return read_as(c, t, rows, cols, prefer_rank, checkpoint_type(c, t), dst, err);
}

enum { COMPARED_BYTES = 1 << 20 }; /* at a time, or one row */

enum status checkpoint_same(const struct checkpoint *c, const struct checkpoint_tensor *a,
                            const struct checkpoint_tensor *b, bool *same, struct err *err)
{
    enum status st = OK;
    *same = a->dtype == b->dtype && a->ndim == b->ndim && a->rows == b->rows && a->cols == b->cols;
    const size_t row = (size_t)a->cols * dtype_size(a->dtype);
    const int64_t step = row < COMPARED_BYTES && row > 0 ? (int64_t)(COMPARED_BYTES / row) : 1;
    char *both = *same ? malloc(2 * (size_t)step * row + 1) : NULL;
    if (*same && !both)
        return base_fail(err, ERR_NOMEM, "%s: no memory", c->files.dir);
    for (int64_t at = 0; *same && at < a->rows; at += step) {
        const struct span rows = {at, at + step < a->rows ? at + step : a->rows};
        const struct span cols = {0, a->cols};
        const size_t bytes = (size_t)span_len(rows) * row;
        TRY(checkpoint_read(c, a, rows, cols, 0, both, err));
        TRY(checkpoint_read(c, b, rows, cols, 0, both + bytes, err));
        *same = memcmp(both, both + bytes, bytes) == 0;
    }
out:
    free(both);
    return st;
}

/* ---- checking against a plan ---- */

/* Dotted names: `*` is one component, `**` any number of them. */
static bool matches(const char *pattern, const char *name)
{
    for (;;) {
        size_t p = strcspn(pattern, "."), n = strcspn(name, ".");
        if (p == 2 && memcmp(pattern, "**", 2) == 0) {
            if (pattern[2] == '\0' || matches(pattern + 3, name))
                return true;
            if (name[n] == '\0')
                return false;
            name += n + 1;
            continue;
        }
        bool any = p == 1 && pattern[0] == '*';
        if (!any && (p != n || memcmp(pattern, name, n) != 0))
            return false;
        if (name[n] == '\0')
            return pattern[p] == '\0' || strcmp(pattern + p + 1, "**") == 0;
        if (pattern[p] == '\0')
            return false;
        pattern += p + 1;
        name += n + 1;
    }
}

static enum status missing(const struct checkpoint *c, const char *name, struct err *err)
{
    const char *near = checkpoint_nearest(c, name);
    return base_fail(err, ERR_MODEL, "%.200s: tensor %s is missing (nearest: %.100s)", c->files.dir,
                     name, near ? near : "none");
}

/* Of codes whose name ends in one way, or begins that of the scales. */
static void scale_name(char name[PLACEMENT_NAME_MAX], const struct checkpoint *c,
                       const struct local_weight *w, const struct tensor_slice *s)
{
    static const char inverse[] = "_inv";
    const size_t n = strlen(s->tensor), end = sizeof MXFP4_CODES - 1;
    const bool blocks = mxfp4_is_source(w);
    CHECK(!blocks || base_ends_with(s->tensor, MXFP4_CODES));
    const int used =
        snprintf(name, PLACEMENT_NAME_MAX, "%.*s%s", (int)(blocks ? n - end : n), s->tensor,
                 blocks             ? MXFP4_SCALES
                 : w->quant.inverse ? "_scale_inv"
                                    : "_scale");
    CHECK(used > 0 && used + (int)sizeof inverse <= PLACEMENT_NAME_MAX);
    if (!w->quant.either || checkpoint_find(c, name))
        return;
    memcpy(name + used, inverse, sizeof inverse);
    if (!checkpoint_find(c, name))
        name[used] = '\0';
}

/* [6, 192, 2, 16] */
static void write_dims(char text[80], int32_t ndim, const int64_t *dims)
{
    size_t at = 0;
    text[0] = '\0';
    for (int32_t i = 0; i < ndim && at < 60; i++)
        at += (size_t)snprintf(text + at, 80 - at, "%s%lld", i ? ", " : "[", (long long)dims[i]);
    snprintf(text + at, 80 - at, "%s", at >= 60 ? ", ...]" : at > 0 ? "]" : "[]");
}

/* Codes or scales of MXFP4: [experts, rows, groups] and, of codes, the bytes of a group; those that
 * are cut for ranks have two dimensions. */
static enum status check_blocks(const struct checkpoint *c, const struct checkpoint_tensor *t,
                                const struct tensor_slice *s, bool codes, struct err *err)
{
    char expected[80], found[80];
    const int32_t stack = s->stack > 0 ? s->stack : 1;
    const int64_t groups = s->shape[1] / MXFP4_GROUP;
    const int64_t whole[] = {stack, s->shape[0] / stack, groups, MXFP4_BLOCK};
    const int64_t cut[] = {s->shape[0], codes ? groups * MXFP4_BLOCK : groups};
    const int64_t flat[] = {t->rows, t->cols}, *dims = t->dims ? t->dims : flat;
    const int64_t *want = t->dims ? whole : cut;
    const int32_t ndim = !t->dims ? 2 : codes ? 4 : 3;
    if (t->ndim != ndim || memcmp(dims, want, (size_t)ndim * sizeof *dims) != 0) {
        write_dims(expected, ndim, want);
        write_dims(found, t->dims ? t->ndim : 2, dims);
        return base_fail(err, ERR_MODEL, "%.200s: tensor %s: expected %s%s, found %s", c->files.dir,
                         t->name_in_file, expected, codes ? "" : " scales", found);
    }
    if (t->dtype != DTYPE_U8)
        return base_fail(err, ERR_MODEL, "%.200s: tensor %s: expected U8%s, found %s", c->files.dir,
                         t->name_in_file, codes ? ", by quantization_config" : "",
                         dtype_name(t->dtype));
    return OK;
}

enum status checkpoint_scale(const struct checkpoint *c, const struct local_weight *w,
                             const struct tensor_slice *s, const struct checkpoint_tensor **tensor,
                             struct tensor_slice *part, struct err *err)
{
    const struct placement_box box = placement_scales(w, s);
    *part = (struct tensor_slice){.ndim = 2, .rows = box.rows, .cols = box.cols};
    placement_scales_shape(w, s, part->shape);
    scale_name(part->tensor, c, w, s);
    const struct checkpoint_tensor *t = checkpoint_find(c, part->tensor);
    if (!t)
        return missing(c, part->tensor, err);
    *tensor = t;
    if (mxfp4_is_source(w))
        return check_blocks(c, t, s, false, err);
    if (t->ndim < 2 && part->shape[1] == 1) { /* a column may be written as a list */
        part->ndim = t->ndim;
        part->shape[1] = part->shape[0];
        part->shape[0] = 1;
        part->cols = part->rows;
        part->rows = (struct span){0, span_len(part->cols) > 0};
    }
    const int32_t rows = w->quant.rows;
    if (base_ends_with(t->name_in_file, "gate_up_proj_scale_inv") && rows > 0 &&
        s->shape[0] % rows != 0)
        return base_fail(err, ERR_MODEL,
                         "%.200s: tensor %s: blocks of %d rows, expected ones that end with the "
                         "gates, which have %lld rows",
                         c->files.dir, t->name_in_file, (int)rows, (long long)s->shape[0]);
    if (t->ndim > 2 || t->rows != part->shape[0] || t->cols != part->shape[1])
        return base_fail(err, ERR_MODEL,
                         "%.200s: tensor %s: expected [%lld, %lld] scales, found %d-d [%lld, %lld]",
                         c->files.dir, t->name_in_file, (long long)part->shape[0],
                         (long long)part->shape[1], t->ndim, (long long)t->rows,
                         (long long)t->cols);
    if (!dtype_is_compute(t->dtype))
        return base_fail(err, ERR_MODEL, "%.200s: tensor %s: expected F32, F16 or BF16, found %s",
                         c->files.dir, t->name_in_file, dtype_name(t->dtype));
    return OK;
}

static size_t part_bytes(const struct checkpoint_tensor *t, const struct tensor_slice *part)
{
    return t ? (size_t)(span_len(part->rows) * span_len(part->cols)) * dtype_size(t->dtype) : 0;
}

/* What a slice has beside its values, or all that it is packed in. */
static size_t other_bytes(const struct checkpoint *c, const struct local_weight *w,
                          const struct tensor_slice *s)
{
    size_t n = 0;
    const struct checkpoint_tensor *t = NULL;
    struct tensor_slice part;
    struct err ignored; /* checked long before */
    for (int i = 0; packed_is_source(w) && i < PACKED_PARTS; i++)
        if (packed_part(w, s, (enum packed_part)i, &part))
            n += part_bytes(checkpoint_find(c, part.tensor), &part);
    if (!packed_is_source(w) && w->spec.in > 0 &&
        checkpoint_scale(c, w, s, &t, &part, &ignored) == OK)
        n += part_bytes(t, &part);
    return n;
}

uint64_t checkpoint_read_bytes(const struct checkpoint *c, const struct local_weight *w)
{
    const struct checkpoint_tensor *t =
        w->slice_count > 0 ? checkpoint_find(c, w->slices[0].tensor) : NULL;
    uint64_t n = t ? placement_read_bytes(w, t->dtype) : 0;
    for (int32_t i = 0; i < w->slice_count && w->quant.kind == QUANT_FILE; i++)
        n += other_bytes(c, w, &w->slices[i]);
    return n;
}

static enum status check_shape(const struct checkpoint *c, const struct checkpoint_tensor *t,
                               const struct tensor_slice *s, struct err *err)
{
    char name[CALLED_BYTES];
    if (t->column && s->stack > 0) {
        const int64_t want[] = {s->stack, 1, s->shape[1] / s->stack};
        char expected[80], found[80];
        write_dims(expected, ARRAY_LEN(want), want);
        write_dims(found, ARRAY_LEN(want), t->column);
        if (memcmp(t->column, want, sizeof want) != 0)
            return base_fail(err, ERR_MODEL, "%.200s: tensor %s: expected %s, found %s",
                             c->files.dir, called(t, name), expected, found);
    }
    if (t->ndim != s->ndim || t->rows != s->shape[0] || t->cols != s->shape[1])
        return base_fail(err, ERR_MODEL,
                         "%.200s: tensor %s: expected %d-d [%lld, %lld], found %d-d [%lld, %lld]",
                         c->files.dir, called(t, name), s->ndim, (long long)s->shape[0],
                         (long long)s->shape[1], t->ndim, (long long)t->rows, (long long)t->cols);
    return OK;
}

/* Values, or codes of F8_E4M3. */
static enum status check_values(const struct checkpoint *c, const struct checkpoint_tensor *t,
                                const struct tensor_slice *s, bool codes, struct err *err)
{
    char name[CALLED_BYTES];
    enum status st = check_shape(c, t, s, err);
    if (st != OK)
        return st;
    if (codes ? t->dtype != DTYPE_F8_E4M3 : !dtype_is_compute(t->dtype))
        return base_fail(err, ERR_MODEL, "%.200s: tensor %s: expected %s, found %s", c->files.dir,
                         called(t, name),
                         codes ? "F8_E4M3, by quantization_config"
                         : t->dtype == DTYPE_F8_E4M3
                             ? "F32, F16 or BF16, as config.json names no codes or the first layer "
                               "has none there"
                             : "F32, F16 or BF16",
                         dtype_name(t->dtype));
    return OK;
}

/* Words: all tensors that a slice is in. */
static enum status check_packed(const struct checkpoint *c, const struct local_weight *w,
                                const struct tensor_slice *s, char *used, struct err *err)
{
    struct tensor_slice part;
    if (!packed_fits(w, s))
        return base_fail(err, ERR_MODEL,
                         "%.200s: tensor %s: [%lld, %lld] is in no whole words, as quant_method "
                         "has them",
                         c->files.dir, s->tensor, (long long)s->shape[0], (long long)s->shape[1]);
    for (int i = 0; i < PACKED_PARTS; i++) {
        if (!packed_part(w, s, (enum packed_part)i, &part))
            continue;
        const struct checkpoint_tensor *t = checkpoint_find(c, part.tensor);
        if (!t && packed_is_optional((enum packed_part)i))
            continue;
        if (!t && i == PACKED_CODES && checkpoint_find(c, s->tensor))
            return base_fail(
                err, ERR_MODEL,
                "%.200s: tensor %s is not quantised, as others are that are held as it is (the "
                "first layer\'s, those of one product, experts beside shared ones); expected %s",
                c->files.dir, s->tensor, part.tensor);
        if (!t)
            return missing(c, part.tensor, err);
        enum status st = check_shape(c, t, &part, err);
        if (st != OK)
            return st;
        if (!packed_part_type((enum packed_part)i, t->dtype))
            return base_fail(err, ERR_MODEL, "%.200s: tensor %s: expected %s, found %s",
                             c->files.dir, t->name_in_file, packed_part_types((enum packed_part)i),
                             dtype_name(t->dtype));
        used[t - c->tensors] = 1;
    }
    return OK;
}

static enum status check_slice(const struct checkpoint *c, const struct local_weight *w,
                               const struct tensor_slice *s, char *used, struct err *err)
{
    const struct checkpoint_tensor *t = checkpoint_find(c, s->tensor), *scale = NULL;
    const bool codes = w->quant.kind == QUANT_FILE;
    enum status st = OK;
    struct tensor_slice part;
    if (packed_is_source(w))
        return check_packed(c, w, s, used, err);
    if (!t)
        return missing(c, s->tensor, err);
    TRY(mxfp4_is_source(w) ? check_blocks(c, t, s, true, err) : check_values(c, t, s, codes, err));
    used[t - c->tensors] = 1;
    if (!codes)
        goto out;
    TRY(checkpoint_scale(c, w, s, &scale, &part, err));
    used[scale - c->tensors] = 1;
out:
    return st;
}

static bool is_ignored(const char *name, const char *const *ignore, int32_t ignore_count)
{
    for (int32_t i = 0; i < ignore_count; i++) {
        if (matches(ignore[i], name))
            return true;
    }
    return false;
}

enum status checkpoint_check(const struct checkpoint *c, const struct local_weight *weights,
                             int32_t count, const char *const *ignore, int32_t ignore_count,
                             int32_t *ignored_count, struct err *err)
{
    enum status st = OK;
    int32_t ignored = 0, unknown = 0;
    const struct checkpoint_tensor *first_unknown = NULL;
    char called_unknown[CALLED_BYTES];
    char *used = calloc((size_t)c->count + 1, 1);
    if (!used)
        return base_fail(err, ERR_NOMEM, "%s: no memory", c->files.dir);
    for (int32_t i = 0; i < count; i++) {
        for (int32_t s = 0; s < weights[i].slice_count; s++)
            TRY(check_slice(c, &weights[i], &weights[i].slices[s], used, err));
    }
    for (int32_t i = 0; i < c->count; i++) {
        if (used[i])
            continue;
        const char *name = c->tensors[i].name;
        if (lora_adapts(c->lora, name))
            TRY(base_fail(
                err, ERR_MODEL,
                "--lora: an adapter is for %.100s, which is not used here: leave out that "
                "adapter",
                name));
        if (is_ignored(name, ignore, ignore_count))
            ignored++;
        else if (unknown++ == 0)
            first_unknown = &c->tensors[i];
    }
    if (unknown > 0) {
        st = base_fail(
            err, ERR_MODEL,
            "%.160s: unexpected tensor %s: this model has no place for it (%d such tensors)",
            c->files.dir, called(first_unknown, called_unknown), unknown);
        goto out;
    }
    if (ignored_count)
        *ignored_count = ignored;
out:
    free(used);
    return st;
}
