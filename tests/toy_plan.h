/* A hand-made plan for tests of weights/: one transformer layer with fused, column, row, vocabulary
 * and replicated weights, for any sizes and rank count. The real plans are engine/parallel's. */
#ifndef TESSERA_TESTS_TOY_PLAN_H
#define TESSERA_TESTS_TOY_PLAN_H

#include "weights/placement.h"
#include "weights/synth.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct toy {
    int64_t hidden, heads, kv_heads, head_dim, mlp, vocab;
};

enum { TOY_EMBED, TOY_NORM, TOY_QKV, TOY_O, TOY_GATE_UP, TOY_DOWN, TOY_HEAD, TOY_WEIGHTS };
#define TOY_TENSORS 9

static inline void toy_tensors(const struct toy *m, struct synth_tensor out[TOY_TENSORS])
{
    const int64_t q = m->heads * m->head_dim, kv = m->kv_heads * m->head_dim, d = m->hidden;
    const struct synth_tensor t[TOY_TENSORS] = {
        {"embed.weight", 2, m->vocab, d}, {"l.norm.weight", 1, 1, d},
        {"l.q.weight", 2, q, d},          {"l.k.weight", 2, kv, d},
        {"l.v.weight", 2, kv, d},         {"l.o.weight", 2, d, q},
        {"l.gate.weight", 2, m->mlp, d},  {"l.up.weight", 2, m->mlp, d},
        {"l.down.weight", 2, d, m->mlp},
    };
    memcpy(out, t, sizeof t);
}

/* Room for the slices of a weight, kept until the test ends. */
static inline struct tensor_slice *toy_room(void)
{
    static struct room {
        struct room *next;
        struct tensor_slice slices[3];
    } * all;
    struct room *r = calloc(1, sizeof *r);
    CHECK(r != NULL);
    r->next = all;
    all = r;
    return r->slices;
}

static inline void toy_begin(struct local_weight *w, const char *name, int64_t in, enum dtype dtype)
{
    memset(w, 0, sizeof *w);
    w->slices = toy_room();
    snprintf(w->name, sizeof w->name, "%s", name);
    w->spec.dtype = dtype;
    w->spec.in = (int32_t)in;
    w->spec.leaves = 1;
    w->spec.cut[1] = (int32_t)in;
}

/* Adds rows x cols of a [height, width] tensor below what is there. */
static inline void toy_slice(struct local_weight *w, const char *tensor, int64_t height,
                             int64_t width, struct span rows, struct span cols)
{
    struct tensor_slice *s = &w->slices[w->slice_count++];
    *s = (struct tensor_slice){
        .shape = {height, width}, .ndim = 2, .rows = rows, .cols = cols, .dst_row = w->spec.out};
    snprintf(s->tensor, sizeof s->tensor, "%s", tensor);
    w->spec.out += (int32_t)span_len(rows);
}

static inline struct span toy_scaled(struct span s, int64_t by)
{
    return (struct span){s.begin * by, s.end * by};
}

/* The local weights of one rank. dtype: of the linears. */
static inline void toy_plan(const struct toy *m, int32_t rank, int32_t ranks, enum dtype dtype,
                            struct local_weight out[TOY_WEIGHTS])
{
    const int64_t d = m->hidden, q = m->heads * m->head_dim, kv = m->kv_heads * m->head_dim;
    const int64_t group = m->heads / m->kv_heads;
    const struct span all = {0, d};
    struct span heads = placement_block(m->heads, ranks, rank);
    struct span kv_heads = {heads.begin / group, (heads.end + group - 1) / group};
    struct span mlp = placement_block(m->mlp, ranks, rank);
    struct span vocab = placement_block(m->vocab, ranks, rank);
    if (span_len(heads) == 0)
        kv_heads.end = kv_heads.begin;
    struct span q_rows = toy_scaled(heads, m->head_dim),
                kv_rows = toy_scaled(kv_heads, m->head_dim);

    toy_begin(&out[TOY_EMBED], "embed", d, dtype);
    toy_slice(&out[TOY_EMBED], "embed.weight", m->vocab, d, vocab, all);
    toy_begin(&out[TOY_NORM], "l.norm", d, DTYPE_F32);
    out[TOY_NORM].kind = LOCAL_VECTOR;
    toy_slice(&out[TOY_NORM], "l.norm.weight", 1, d, (struct span){0, 1}, all);
    out[TOY_NORM].slices[0].ndim = 1;
    toy_begin(&out[TOY_QKV], "l.qkv", d, dtype);
    toy_slice(&out[TOY_QKV], "l.q.weight", q, d, q_rows, all);
    toy_slice(&out[TOY_QKV], "l.k.weight", kv, d, kv_rows, all);
    toy_slice(&out[TOY_QKV], "l.v.weight", kv, d, kv_rows, all);
    toy_begin(&out[TOY_O], "l.o", span_len(q_rows), dtype);
    toy_slice(&out[TOY_O], "l.o.weight", d, q, all, q_rows);
    placement_leaves(m->heads, m->head_dim, heads, &out[TOY_O].spec);
    toy_begin(&out[TOY_GATE_UP], "l.gate_up", d, dtype);
    toy_slice(&out[TOY_GATE_UP], "l.gate.weight", m->mlp, d, mlp, all);
    toy_slice(&out[TOY_GATE_UP], "l.up.weight", m->mlp, d, mlp, all);
    toy_begin(&out[TOY_DOWN], "l.down", span_len(mlp), dtype);
    toy_slice(&out[TOY_DOWN], "l.down.weight", d, m->mlp, all, mlp);
    placement_leaves(m->mlp, 1, mlp, &out[TOY_DOWN].spec);
    toy_begin(&out[TOY_HEAD], "head", d, dtype); /* tied: the embedding's rows again */
    toy_slice(&out[TOY_HEAD], "embed.weight", m->vocab, d, vocab, all);
}

#endif
