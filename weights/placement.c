/* DESIGN: slicing is arithmetic on half-open ranges, apart from files and devices, so that the
 * loader, `shard`, `plan` and the forward pass cannot disagree. One split rule serves everything,
 * uneven sizes included; padding every shard to the largest was rejected because it would reach the
 * files and the wire. Invariant: whatever the plan made, placement_prove has seen every element. */
#include "weights/placement.h"

#include <stdlib.h>
#include <string.h>

/* floor(units * x / parts) without the product, which could wrap. */
static int64_t share(int64_t units, int32_t parts, int32_t x)
{
    return units / parts * x + units % parts * x / parts;
}

struct span placement_block(int64_t units, int32_t parts, int32_t index)
{
    CHECK(units >= 0);
    CHECK(index >= 0);
    CHECK(index < parts);
    return (struct span){share(units, parts, index), share(units, parts, index + 1)};
}

struct span placement_tiles(int64_t outputs, int32_t parts, int32_t index)
{
    const int64_t tiles = (outputs + PLACEMENT_TILE - 1) / PLACEMENT_TILE;
    struct span s = placement_block(tiles, parts, index);
    s.begin = s.begin * PLACEMENT_TILE < outputs ? s.begin * PLACEMENT_TILE : outputs;
    s.end = s.end * PLACEMENT_TILE < outputs ? s.end * PLACEMENT_TILE : outputs;
    return s;
}

enum status placement_layout(const struct backend_ops *ops, struct local_weight *weights,
                             int32_t count, size_t *arena_bytes, struct err *err)
{
    size_t total = 0;
    for (int32_t i = 0; i < count; i++) {
        struct local_weight *w = &weights[i];
        w->bytes = w->kind == LOCAL_VECTOR ? (size_t)w->spec.in * sizeof(float)
                                           : ops->weight_bytes(&w->spec);
        w->offset = total;
        /* The margin keeps the rounding below from wrapping. */
        if (w->bytes > SIZE_MAX / 2 || !base_add(total, w->bytes, &total) || total > SIZE_MAX / 2)
            return base_fail(err, ERR_LIMIT, "weight %s: the arena's size overflows", w->name);
        total = base_align(total, 64);
    }
    *arena_bytes = total;
    return OK;
}

static int64_t clip(int64_t x, struct span s)
{
    return x < s.begin ? s.begin : x > s.end ? s.end : x;
}

void placement_leaves(int64_t units, int64_t unit_size, struct span mine, struct weight_spec *spec)
{
    int64_t cut[BACKEND_LEAVES_MAX + 1]; /* in units of this rank */
    for (int32_t l = 0; l <= BACKEND_LEAVES_MAX; l++)
        cut[l] = clip(share(units, BACKEND_LEAVES_MAX, l), mine) - mine.begin;
    int32_t first = 0, last = BACKEND_LEAVES_MAX; /* leaves with columns here: [first, last) */
    while (first < BACKEND_LEAVES_MAX - 1 && cut[first + 1] == 0)
        first++;
    while (last > first + 1 && cut[last - 1] == span_len(mine))
        last--;
    int32_t width = 1;
    while (first / width * width + width < last)
        width *= 2;
    first = first / width * width;
    spec->leaves = width;
    for (int32_t i = 0; i <= width; i++)
        spec->cut[i] = (int32_t)(cut[first + i] * unit_size);
}

/* Of MXFP4, two elements a byte. */
static bool is_blocks(const struct local_weight *w)
{
    return w->quant.kind == QUANT_FILE && w->quant.code == DTYPE_F4_E2M1;
}

struct span placement_read_cols(const struct local_weight *w, const struct tensor_slice *s)
{
    const bool blocks = is_blocks(w);
    const int64_t group = blocks ? w->quant.cols : w->spec.scale_cols;
    if (group == 0)
        return (struct span){0, s->shape[1]};
    const int64_t end = (s->cols.end + group - 1) / group * group;
    return (struct span){s->cols.begin / group * group, end < s->shape[1] ? end : s->shape[1]};
}

size_t placement_read_bytes(const struct local_weight *w, enum dtype file_dtype)
{
    const bool blocks = is_blocks(w);
    size_t elements = 0;
    for (int32_t i = 0; i < w->slice_count; i++) {
        const struct tensor_slice *s = &w->slices[i];
        const bool more = (w->quant.kind == QUANT_LOAD || blocks) && span_len(s->cols) > 0;
        const struct span cols = more ? placement_read_cols(w, s) : s->cols;
        elements += (size_t)(span_len(s->rows) * span_len(cols));
    }
    return blocks ? elements / 2 : elements * dtype_size(file_dtype);
}

static struct span blocks(struct span s, int32_t block)
{
    if (span_len(s) == 0)
        return (struct span){0, 0};
    return block == 0 ? (struct span){0, 1}
                      : (struct span){s.begin / block, (s.end - 1) / block + 1};
}

struct placement_box placement_scales(const struct local_weight *w, const struct tensor_slice *s)
{
    return (struct placement_box){blocks(s->rows, w->quant.rows), blocks(s->cols, w->quant.cols)};
}

void placement_scales_shape(const struct local_weight *w, const struct tensor_slice *s,
                            int64_t shape[2])
{
    shape[0] = span_len(blocks((struct span){0, s->shape[0]}, w->quant.rows));
    shape[1] = span_len(blocks((struct span){0, s->shape[1]}, w->quant.cols));
}

/* ---- proofs ---- */

static bool holds(struct span s, int64_t x)
{
    return s.begin <= x && x < s.end;
}

/* End of the band of rows from `row` in which no box begins or ends. */
static int64_t band_end(const struct placement_box *boxes, int32_t count, int64_t row, int64_t end)
{
    for (int32_t i = 0; i < count; i++) {
        if (boxes[i].rows.begin > row)
            end = base_min64(end, boxes[i].rows.begin);
        if (boxes[i].rows.end > row)
            end = base_min64(end, boxes[i].rows.end);
    }
    return end;
}

/* First column from `col` on that no box of this row holds, or `end`; *next: where one resumes. */
static int64_t first_gap(const struct placement_box *boxes, int32_t count, int64_t row, int64_t col,
                         int64_t end, int64_t *next)
{
    for (;;) {
        int64_t reach = col;
        *next = end;
        for (int32_t i = 0; i < count; i++) {
            const struct placement_box *b = &boxes[i];
            if (!holds(b->rows, row))
                continue;
            if (holds(b->cols, col) && b->cols.end > reach)
                reach = b->cols.end;
            else if (b->cols.begin > col && span_len(b->cols) > 0)
                *next = base_min64(*next, b->cols.begin);
        }
        if (reach == col || reach >= end)
            return base_min64(reach, end);
        col = reach;
    }
}

bool placement_covered(const struct placement_box *boxes, int32_t count, struct placement_box whole,
                       struct placement_box *gap)
{
    for (int64_t row = whole.rows.begin; row < whole.rows.end;) {
        int64_t stop = band_end(boxes, count, row, whole.rows.end), next;
        int64_t col = first_gap(boxes, count, row, whole.cols.begin, whole.cols.end, &next);
        if (col < whole.cols.end) {
            *gap = (struct placement_box){{row, stop}, {col, next}};
            return false;
        }
        row = stop;
    }
    return true;
}

static bool inside(struct span s, int64_t size)
{
    return 0 <= s.begin && s.begin <= s.end && s.end <= size;
}

static enum status slice_sound(const struct local_weight *w, const struct tensor_slice *s,
                               struct err *err)
{
    if (s->ndim < 1 || s->ndim > 2 || (s->ndim == 1 && s->shape[0] != 1))
        return base_fail(err, ERR_INTERNAL, "weight %s: slice of %s has %d dimensions", w->name,
                         s->tensor, s->ndim);
    if (!inside(s->rows, s->shape[0]) || !inside(s->cols, s->shape[1]))
        return base_fail(err, ERR_INTERNAL,
                         "weight %s: rows [%lld, %lld) columns [%lld, %lld) are outside %s "
                         "[%lld, %lld]",
                         w->name, (long long)s->rows.begin, (long long)s->rows.end,
                         (long long)s->cols.begin, (long long)s->cols.end, s->tensor,
                         (long long)s->shape[0], (long long)s->shape[1]);
    if (w->kind == LOCAL_LINEAR && span_len(s->cols) != placement_cols(w))
        return base_fail(err, ERR_INTERNAL, "weight %s: %lld columns of %s, but its width is %d",
                         w->name, (long long)span_len(s->cols), s->tensor, placement_cols(w));
    return OK;
}

/* What a slice fills: rows of a linear, elements of a vector. */
static struct span filled(const struct local_weight *w, const struct tensor_slice *s)
{
    int64_t n = w->kind == LOCAL_LINEAR ? span_len(s->rows) : span_len(s->rows) * span_len(s->cols);
    return (struct span){s->dst_row, s->dst_row + n};
}

enum status placement_tiled(const struct local_weight *w, struct err *err)
{
    int64_t size = placement_rows(w), sum = 0;
    for (int32_t i = 0; i < w->slice_count; i++) {
        enum status st = slice_sound(w, &w->slices[i], err);
        if (st != OK)
            return st;
        struct span a = filled(w, &w->slices[i]);
        sum += span_len(a);
        if (!inside(a, size))
            return base_fail(err, ERR_INTERNAL, "weight %s: rows [%lld, %lld) of %lld", w->name,
                             (long long)a.begin, (long long)a.end, (long long)size);
        for (int32_t j = 0; j < i; j++) {
            struct span b = filled(w, &w->slices[j]);
            if (a.begin < b.end && b.begin < a.end)
                return base_fail(err, ERR_INTERNAL,
                                 "weight %s: rows [%lld, %lld) of %s overlap rows [%lld, %lld) "
                                 "of %s",
                                 w->name, (long long)a.begin, (long long)a.end, w->slices[i].tensor,
                                 (long long)b.begin, (long long)b.end, w->slices[j].tensor);
        }
    }
    if (sum != size) /* inside and disjoint: anything short of `size` is a gap */
        return base_fail(err, ERR_INTERNAL, "weight %s: slices fill %lld of %lld rows (gap)",
                         w->name, (long long)sum, (long long)size);
    return OK;
}

size_t placement_slices(const struct local_weight *weights, int32_t count)
{
    size_t n = 0;
    for (int32_t i = 0; i < count; i++)
        n += (size_t)weights[i].slice_count;
    return n;
}

struct ref {
    const struct tensor_slice *slice;
    int32_t rank;
};

static int by_tensor(const void *a, const void *b)
{
    const struct ref *x = a, *y = b;
    int order = strcmp(x->slice->tensor, y->slice->tensor);
    return order ? order : x->rank - y->rank;
}

/* All slices of one tensor: same shape, and together the whole of it. boxes: room for n. */
static enum status prove_tensor(const struct ref *refs, int32_t n, struct placement_box *boxes,
                                struct err *err)
{
    const struct tensor_slice *first = refs[0].slice;
    for (int32_t i = 0; i < n; i++) {
        const struct tensor_slice *s = refs[i].slice;
        if (s->ndim != first->ndim || s->shape[0] != first->shape[0] ||
            s->shape[1] != first->shape[1])
            return base_fail(err, ERR_INTERNAL,
                             "tensor %s: rank %d takes it as [%lld, %lld], rank %d as [%lld, %lld]",
                             s->tensor, refs[0].rank, (long long)first->shape[0],
                             (long long)first->shape[1], refs[i].rank, (long long)s->shape[0],
                             (long long)s->shape[1]);
        boxes[i] = (struct placement_box){s->rows, s->cols};
    }
    struct placement_box whole = {{0, first->shape[0]}, {0, first->shape[1]}}, gap;
    if (!placement_covered(boxes, n, whole, &gap))
        return base_fail(err, ERR_INTERNAL,
                         "tensor %s: rows [%lld, %lld) columns [%lld, %lld) are on no rank (ranks "
                         "%d to %d)",
                         first->tensor, (long long)gap.rows.begin, (long long)gap.rows.end,
                         (long long)gap.cols.begin, (long long)gap.cols.end, refs[0].rank,
                         refs[n - 1].rank);
    return OK;
}

/* Checks every local weight by itself and lists all slices. refs: room for all of them. */
static enum status collect(struct local_weight *const *weights, const int32_t *counts,
                           int32_t ranks, struct ref *refs, size_t *count, struct err *err)
{
    *count = 0;
    for (int32_t r = 0; r < ranks; r++) {
        for (int32_t i = 0; i < counts[r]; i++) {
            const struct local_weight *w = &weights[r][i];
            enum status st = placement_tiled(w, err);
            if (st != OK) {
                struct err inner = *err;
                return base_fail(err, st, "rank %d: %s", r, inner.text);
            }
            for (int32_t s = 0; s < w->slice_count; s++)
                refs[(*count)++] = (struct ref){&w->slices[s], r};
        }
    }
    return OK;
}

enum status placement_prove(struct local_weight *const *weights, const int32_t *counts,
                            int32_t ranks, struct err *err)
{
    enum status st = OK;
    size_t room = 1, count;
    for (int32_t r = 0; r < ranks; r++)
        room += placement_slices(weights[r], counts[r]);
    struct ref *refs = calloc(room, sizeof *refs);
    struct placement_box *boxes = calloc(room, sizeof *boxes);
    if (!refs || !boxes) {
        st = base_fail(err, ERR_NOMEM, "no memory to prove %zu slices", room);
        goto out;
    }
    TRY(collect(weights, counts, ranks, refs, &count, err));
    qsort(refs, count, sizeof *refs, by_tensor);
    for (size_t i = 0, next; i < count; i = next) {
        for (next = i + 1; next < count; next++) {
            if (strcmp(refs[next].slice->tensor, refs[i].slice->tensor) != 0)
                break;
        }
        TRY(prove_tensor(refs + i, (int32_t)(next - i), boxes, err));
    }
out:
    free(refs);
    free(boxes);
    return st;
}
