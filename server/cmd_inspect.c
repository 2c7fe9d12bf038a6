/* tessera inspect: the tensors of a checkpoint and which part of each every rank holds. */
#include "server/commands.h"
#include "server/setup.h"
#include "weights/mxfp4.h"
#include "weights/packed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HELD_MAX BACKEND_EXPERTS_MAX /* runs: a tensor has three matrices, or all experts */
#define SHOWN_MAX 4

static const struct tensor_slice *packed_of(const struct local_weight *w,
                                            const struct tensor_slice *slice, const char *tensor,
                                            struct tensor_slice *room)
{
    const size_t same = strlen(slice->tensor) - strlen("weight");
    for (int i = 0; i < PACKED_PARTS && strncmp(slice->tensor, tensor, same) == 0; i++)
        if (packed_part(w, slice, (enum packed_part)i, room) && strcmp(room->tensor, tensor) == 0)
            return room;
    return NULL;
}

/* The slice, or the part of its scales, when it is of this tensor. */
static const struct tensor_slice *part_of(const struct setup *s, const struct local_weight *w,
                                          const struct tensor_slice *slice, const char *tensor,
                                          struct tensor_slice *room)
{
    const struct checkpoint_tensor *t;
    struct err ignored; /* checked by setup_open */
    const bool blocks = mxfp4_is_source(w);
    const size_t same = strlen(slice->tensor) - (blocks ? strlen(MXFP4_CODES) : 0);
    if (packed_is_source(w))
        return packed_of(w, slice, tensor, room);
    if (strcmp(slice->tensor, tensor) == 0) {
        *room = blocks ? mxfp4_bytes(slice) : *slice;
        return room;
    }
    if (w->quant.kind != QUANT_FILE || strncmp(slice->tensor, tensor, same) != 0)
        return NULL;
    return checkpoint_scale(s->checkpoint, w, slice, &t, room, &ignored) == OK &&
                   strcmp(t->name, tensor) == 0
               ? room
               : NULL;
}

/* The layer in a tensor's name, -1 when there is none. */
static int32_t layer_of(const char *tensor)
{
    static const char before[] = "model.layers.";
    const size_t n = sizeof before - 1;
    return strncmp(tensor, before, n) == 0 ? (int32_t)strtol(tensor + n, NULL, 10) : -1;
}

/* The first weight of a layer or a later one: weights are listed by layer. */
static int32_t first_of(const struct layout *l, int32_t layer)
{
    int32_t low = 0, high = l->count;
    while (low < high) {
        const int32_t middle = low + (high - low) / 2;
        if (l->layers[middle] < layer)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* What a rank holds of a tensor: some boxes of it. */
struct held {
    struct placement_box boxes[HELD_MAX];
    int32_t count; /* 0: nothing, and the tensor is not the model's */
};

static bool is_empty(const struct placement_box *b)
{
    return span_len(b->rows) == 0 || span_len(b->cols) == 0;
}

/* Does b follow a, or overlap its end as blocks of scales do? Then a becomes longer. */
static bool joins(struct span *a, struct span b)
{
    if (b.begin < a->begin || b.begin > a->end)
        return false;
    a->end = b.end > a->end ? b.end : a->end;
    return true;
}

static bool is_same(struct span a, struct span b)
{
    return a.begin == b.begin && a.end == b.end;
}

/* Rows of the same columns are joined, and columns of the same rows. */
static void add_box(struct held *h, struct placement_box box)
{
    if (h->count == 1 && is_empty(&h->boxes[0]))
        h->count = 0;
    for (int32_t i = 0; i < h->count; i++) {
        struct placement_box *b = &h->boxes[i];
        if (is_empty(&box) || (is_same(b->cols, box.cols) && joins(&b->rows, box.rows)) ||
            (is_same(b->rows, box.rows) && joins(&b->cols, box.cols)))
            return;
    }
    if (h->count < HELD_MAX)
        h->boxes[h->count++] = box;
}

static struct held held(const struct setup *s, int32_t rank, const char *tensor)
{
    struct held h = {.count = 0};
    struct tensor_slice room;
    const struct layout *l = s->layouts[rank];
    const int32_t layer = layer_of(tensor);
    for (int32_t i = first_of(l, layer); i < l->count && l->layers[i] == layer; i++) {
        for (int32_t j = 0; j < l->weights[i].slice_count; j++) {
            const struct tensor_slice *k =
                part_of(s, &l->weights[i], &l->weights[i].slices[j], tensor, &room);
            if (k)
                add_box(&h, (struct placement_box){k->rows, k->cols});
        }
    }
    return h;
}

static void print_text(const struct setup *s, const struct checkpoint_tensor *t)
{
    if (t->ndim == 1)
        printf("%-52s %-4s [%lld]", t->name, dtype_name(t->dtype), (long long)t->cols);
    else
        printf("%-52s %-4s [%lld, %lld]", t->name, dtype_name(t->dtype), (long long)t->rows,
               (long long)t->cols);
    for (int32_t r = 0; r < s->options.tp; r++) {
        const struct held h = held(s, r, t->name);
        if (h.count == 0) {
            printf("  not used");
            break;
        }
        const struct placement_box *b = h.boxes;
        if (h.count == 1 && span_len(b->rows) == t->rows && span_len(b->cols) == t->cols) {
            printf("  %d: all", r);
            continue;
        }
        for (int32_t i = 0; i < h.count && i < SHOWN_MAX; i++) {
            if (t->ndim == 1)
                printf("  %d: [%lld:%lld]", r, (long long)b[i].cols.begin,
                       (long long)b[i].cols.end);
            else
                printf("  %d: [%lld:%lld, %lld:%lld]", r, (long long)b[i].rows.begin,
                       (long long)b[i].rows.end, (long long)b[i].cols.begin,
                       (long long)b[i].cols.end);
        }
        if (h.count > SHOWN_MAX)
            printf(" and %d more", h.count - SHOWN_MAX);
    }
    printf("\n");
}

/* A tensor's name as JSON; one with control characters is refused when its file is opened. */
static void print_name(const char *name)
{
    putchar('"');
    for (; *name; name++)
        printf(*name == '"' || *name == '\\' ? "\\%c" : "%c", *name);
    putchar('"');
}

static void print_json(const struct setup *s, const struct checkpoint_tensor *t, bool last)
{
    const char *comma = "";
    printf("  {\"name\": ");
    print_name(t->name);
    printf(", \"dtype\": \"%s\", ", dtype_name(t->dtype));
    if (t->ndim == 1)
        printf("\"shape\": [%lld], \"slices\": [", (long long)t->cols);
    else
        printf("\"shape\": [%lld, %lld], \"slices\": [", (long long)t->rows, (long long)t->cols);
    for (int32_t r = 0; r < s->options.tp; r++) {
        const struct held h = held(s, r, t->name);
        for (int32_t i = 0; i < h.count; i++, comma = ", ")
            printf("%s{\"rank\": %d, \"rows\": [%lld, %lld], \"cols\": [%lld, %lld]}", comma, r,
                   (long long)h.boxes[i].rows.begin, (long long)h.boxes[i].rows.end,
                   (long long)h.boxes[i].cols.begin, (long long)h.boxes[i].cols.end);
    }
    printf("]}%s\n", last ? "" : ",");
}

enum status commands_inspect(const struct options *o, struct err *err)
{
    enum status st = OK;
    struct setup s = {0};
    char size[32];
    TRY(setup_open(o, &s, err));
    int32_t n = checkpoint_count(s.checkpoint);
    if (o->json)
        printf("[\n");
    else
        printf("%d tensors, %s, %s\n", n,
               base_human_bytes(size, sizeof size, checkpoint_bytes(s.checkpoint)),
               checkpoint_ranks(s.checkpoint) ? "sharded form" : "plain form");
    for (int32_t i = 0; i < n; i++) {
        if (o->json)
            print_json(&s, checkpoint_at(s.checkpoint, i), i + 1 == n);
        else
            print_text(&s, checkpoint_at(s.checkpoint, i));
    }
    if (o->json)
        printf("]\n");
out:
    setup_close(&s);
    return st;
}
