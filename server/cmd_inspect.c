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

/* What a rank holds of a tensor: some runs of its rows, and of these some columns. */
struct held {
    struct span rows[HELD_MAX], cols;
    int32_t count; /* 0: nothing, and the tensor is not the model's */
};

/* Rows that follow those of a run, or overlap them as blocks of scales do, lengthen it. */
static void add_rows(struct held *h, struct span rows)
{
    for (int32_t i = 0; i < h->count; i++) {
        struct span *run = &h->rows[i];
        if (span_len(*run) == 0)
            *run = rows;
        if (rows.begin < run->begin || (rows.begin > run->end && i + 1 < HELD_MAX))
            continue;
        run->end = rows.end > run->end ? rows.end : run->end;
        return;
    }
    if (h->count < HELD_MAX && (span_len(rows) > 0 || h->count == 0))
        h->rows[h->count++] = rows;
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
            if (!k)
                continue;
            add_rows(&h, k->rows);
            h.cols = k->cols;
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
        if (h.count == 1 && span_len(h.rows[0]) == t->rows && span_len(h.cols) == t->cols) {
            printf("  %d: all", r);
            continue;
        }
        if (t->ndim == 1)
            printf("  %d: [%lld:%lld]", r, (long long)h.cols.begin, (long long)h.cols.end);
        for (int32_t i = 0; t->ndim > 1 && i < h.count && i < SHOWN_MAX; i++)
            printf("  %d: [%lld:%lld, %lld:%lld]", r, (long long)h.rows[i].begin,
                   (long long)h.rows[i].end, (long long)h.cols.begin, (long long)h.cols.end);
        if (t->ndim > 1 && h.count > SHOWN_MAX)
            printf(" and %d more", h.count - SHOWN_MAX);
    }
    printf("\n");
}

static void print_json(const struct setup *s, const struct checkpoint_tensor *t, bool last)
{
    const char *comma = "";
    printf("  {\"name\": \"%s\", \"dtype\": \"%s\", ", t->name, dtype_name(t->dtype));
    if (t->ndim == 1)
        printf("\"shape\": [%lld], \"slices\": [", (long long)t->cols);
    else
        printf("\"shape\": [%lld, %lld], \"slices\": [", (long long)t->rows, (long long)t->cols);
    for (int32_t r = 0; r < s->options.tp; r++) {
        const struct held h = held(s, r, t->name);
        for (int32_t i = 0; i < h.count; i++, comma = ", ")
            printf("%s{\"rank\": %d, \"rows\": [%lld, %lld], \"cols\": [%lld, %lld]}", comma, r,
                   (long long)h.rows[i].begin, (long long)h.rows[i].end, (long long)h.cols.begin,
                   (long long)h.cols.end);
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
