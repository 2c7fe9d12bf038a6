#include "engine/grammar/vocabulary.h"

#include "config/buf.h"

#include <stdlib.h>
#include <string.h>

struct vocabulary {
    int32_t vocab;
    char *bytes;     /* of all tokens */
    int32_t *begin;  /* [vocab + 1] where each one's are */
    int32_t *same;   /* [vocab] */
    int32_t *sorted; /* [vocab] while it is built */
    struct vocabulary_node *nodes;
    int32_t node_count;
};

enum { TEXT_BYTES_MAX = 1 << 28 };

static enum status read_texts(struct vocabulary *v, vocabulary_text *text, const void *ctx,
                              struct err *err)
{
    struct buf all;
    buf_init(&all, TEXT_BYTES_MAX);
    for (int32_t id = 0; id < v->vocab; id++) {
        int32_t n;
        const char *bytes = text(ctx, id, &n);
        v->begin[id] = (int32_t)all.len;
        if (n <= VOCABULARY_TOKEN_BYTES_MAX)
            buf_add(&all, bytes, (size_t)n);
    }
    v->begin[v->vocab] = (int32_t)all.len;
    v->node_count = (int32_t)all.len; /* at most */
    size_t bytes;
    v->bytes = buf_take(&all, &bytes);
    if (!v->bytes)
        return base_fail(err, ERR_NOMEM, "no memory for the texts of %d tokens", v->vocab);
    return OK;
}

const char *vocabulary_bytes(const struct vocabulary *v, int32_t token, int32_t *n)
{
    *n = v->begin[token + 1] - v->begin[token];
    return v->bytes + v->begin[token];
}

static int by_text(const void *a, const void *b, void *ctx)
{
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    int32_t nx, ny;
    const char *tx = vocabulary_bytes(ctx, x, &nx), *ty = vocabulary_bytes(ctx, y, &ny);
    const int order = memcmp(tx, ty, (size_t)(nx < ny ? nx : ny));
    if (order != 0)
        return order;
    return nx != ny ? (nx > ny) - (nx < ny) : (x > y) - (x < y);
}

static int32_t common(const char *a, int32_t na, const char *b, int32_t nb)
{
    int32_t n = 0;
    while (n < na && n < nb && a[n] == b[n])
        n++;
    return n;
}

/* Nodes for the bytes of each token that its forerunner in the order has not; a node is closed when
 * a token comes that does not begin with it. */
static void grow_tree(struct vocabulary *v)
{
    int32_t path[VOCABULARY_TOKEN_BYTES_MAX], depth = 0, count = 0, before = -1, n, nb = 0;
    const char *b = "";
    for (int32_t i = 0; i < v->vocab; i++) {
        const int32_t token = v->sorted[i];
        const char *text = vocabulary_bytes(v, token, &n);
        v->same[token] = -1;
        if (n == 0)
            continue;
        const int32_t kept = common(text, n, b, nb);
        if (kept == n && kept == nb) {
            v->same[before] = token;
        } else {
            while (depth > kept)
                v->nodes[path[--depth]].end = count;
            for (; depth < n; depth++) {
                path[depth] = count;
                v->nodes[count++] = (struct vocabulary_node){
                    .token = -1, .depth = (uint16_t)(depth + 1), .byte = (uint8_t)text[depth]};
            }
            v->nodes[count - 1].token = token;
        }
        before = token;
        b = text;
        nb = n;
    }
    while (depth > 0)
        v->nodes[path[--depth]].end = count;
    v->node_count = count;
}

enum status vocabulary_open(int32_t vocab, vocabulary_text *text, const void *ctx,
                            struct vocabulary **out, struct err *err)
{
    enum status st = OK;
    struct vocabulary *v = calloc(1, sizeof *v);
    if (!v)
        return base_fail(err, ERR_NOMEM, "no memory for a vocabulary");
    const size_t n = (size_t)vocab;
    v->vocab = vocab;
    v->begin = calloc(n + 1, sizeof *v->begin);
    v->same = calloc(n + 1, sizeof *v->same);
    v->sorted = calloc(n + 1, sizeof *v->sorted);
    if (!v->begin || !v->same || !v->sorted)
        st = base_fail(err, ERR_NOMEM, "no memory for a vocabulary of %d tokens", vocab);
    TRY(st);
    TRY(read_texts(v, text, ctx, err));
    v->nodes = calloc((size_t)v->node_count + 1, sizeof *v->nodes);
    if (!v->nodes) {
        st = base_fail(err, ERR_NOMEM, "no memory for a vocabulary of %d tokens", vocab);
        goto out;
    }
    for (int32_t id = 0; id < vocab; id++)
        v->sorted[id] = id;
    qsort_r(v->sorted, n, sizeof *v->sorted, by_text, v);
    grow_tree(v);
    free(v->sorted);
    v->sorted = NULL;
    *out = v;
    v = NULL;
out:
    vocabulary_close(v);
    return st;
}

void vocabulary_close(struct vocabulary *v)
{
    if (!v)
        return;
    free(v->bytes);
    free(v->begin);
    free(v->same);
    free(v->sorted);
    free(v->nodes);
    free(v);
}

int32_t vocabulary_count(const struct vocabulary *v)
{
    return v->vocab;
}

const struct vocabulary_node *vocabulary_nodes(const struct vocabulary *v, int32_t *count)
{
    *count = v->node_count;
    return v->nodes;
}

int32_t vocabulary_same(const struct vocabulary *v, int32_t token)
{
    return v->same[token];
}
