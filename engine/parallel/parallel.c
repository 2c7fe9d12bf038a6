/* DESIGN: rowwise products go to one of two source buffers in turn, because a peer may still read
 * the previous one (comm.h, reuse rule); so no barrier follows a collective. Every rank takes part
 * in every collective, also one that owns nothing of a weight: its addend is zeros. */
#include "engine/parallel/parallel.h"

#include <stdlib.h>
#include <string.h>

struct parallel {
    struct backend *b;
    struct comm *comm;
    int32_t rows_max, hidden, samples_max, vocab;
    float *source[2]; /* [rows_max, hidden] */
    int32_t turn;
    float *local_logits, *logits; /* [samples_max, own part], [samples_max, vocab] */
    int32_t *parts;               /* [ranks] vocabulary rows of each rank */
};

static size_t matrix_bytes(int32_t rows, int32_t cols)
{
    return base_align((size_t)rows * (size_t)cols * sizeof(float), 64);
}

/* Two sources, two results (residual, delta), the local logits at most a whole row set, the
 * gathered. */
size_t parallel_arena_bytes(int32_t rows_max, int32_t hidden, int32_t samples_max, int32_t vocab)
{
    return 4 * matrix_bytes(rows_max, hidden) + 2 * matrix_bytes(samples_max, vocab);
}

enum status parallel_open(struct backend *b, struct comm *c, int32_t rows_max, int32_t hidden,
                          int32_t samples_max, int32_t vocab, struct parallel **out,
                          struct err *err)
{
    struct parallel *p = calloc(1, sizeof *p);
    int32_t *parts = calloc((size_t)c->ranks, sizeof *parts);
    if (!p || !parts) {
        free(p);
        free(parts);
        return base_fail(err, ERR_NOMEM, "parallel layer: no memory");
    }
    *p = (struct parallel){b, c, rows_max, hidden, samples_max, vocab, {0}, 0, 0, 0, parts};
    for (int32_t r = 0; r < c->ranks; r++)
        parts[r] = (int32_t)span_len(parallel_vocab(p, r));
    p->source[0] = comm_buffer(c, matrix_bytes(rows_max, hidden));
    p->source[1] = comm_buffer(c, matrix_bytes(rows_max, hidden));
    p->local_logits = comm_buffer(c, matrix_bytes(samples_max, vocab));
    p->logits = comm_buffer(c, matrix_bytes(samples_max, vocab));
    if (!p->source[0] || !p->source[1] || !p->local_logits || !p->logits) {
        parallel_close(p);
        return base_fail(err, ERR_LIMIT, "parallel layer: the communicator's arena is too small");
    }
    *out = p;
    return OK;
}

void parallel_close(struct parallel *p)
{
    if (!p)
        return;
    free(p->parts);
    free(p);
}

struct span parallel_vocab(const struct parallel *p, int32_t rank)
{
    return placement_block(p->vocab, p->comm->ranks, rank);
}

float *parallel_buffer(struct parallel *p)
{
    return comm_buffer(p->comm, matrix_bytes(p->rows_max, p->hidden));
}

/* The source that no peer reads any more. */
static struct view next_source(struct parallel *p, int32_t rows)
{
    p->turn ^= 1;
    return view_f32(p->source[p->turn], rows, p->hidden);
}

static enum status all_reduce(struct parallel *p, struct view y, struct view partial,
                              struct err *err)
{
    return comm_all_reduce(p->comm, y.data, partial.data, (size_t)y.rows * (size_t)y.cols, err);
}

enum status parallel_embed(struct parallel *p, struct view y, const int32_t *ids,
                           struct parallel_weight w, struct err *err)
{
    enum status st = OK;
    struct view partial = next_source(p, y.rows);
    const int32_t first = (int32_t)parallel_vocab(p, p->comm->rank).begin;
    TRY(backend_embed(p->b, partial, ids, w.local, first, err));
    TRY(all_reduce(p, y, partial, err));
out:
    return st;
}

enum status parallel_linear(struct parallel *p, struct view y, struct cview x,
                            struct parallel_weight w, struct err *err)
{
    enum status st = OK;
    if (w.style == STYLE_COLWISE)
        return backend_linear(p->b, y, x, w.local, err);
    CHECK(w.style == STYLE_ROWWISE);
    struct view partial = next_source(p, y.rows);
    TRY(backend_linear(p->b, partial, x, w.local, err));
    TRY(all_reduce(p, y, partial, err));
out:
    return st;
}

enum status parallel_head(struct parallel *p, struct cview x, struct parallel_weight w,
                          struct cview *logits, struct err *err)
{
    struct view local = view_f32(p->local_logits, x.rows, p->parts[p->comm->rank]);
    *logits = cview_of(local);
    return backend_linear(p->b, local, x, w.local, err);
}

enum status parallel_gather(struct parallel *p, int32_t begin, int32_t end, struct cview *whole,
                            struct err *err)
{
    const size_t own = (size_t)p->parts[p->comm->rank], first = (size_t)begin;
    CHECK(begin >= 0 && begin <= end && end <= p->samples_max);
    *whole = cview_of(view_f32(p->logits, end, p->vocab));
    if (begin == end)
        return OK;
    return comm_all_gather(p->comm, p->logits + first * (size_t)p->vocab,
                           p->local_logits + first * own, end - begin, p->parts, err);
}
