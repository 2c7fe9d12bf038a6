/* DESIGN: a family is a table of parameters (name, role, source tensors); the loops below know
 * roles, not families. Fused weights (QKV, gate/up) are stacked from the rank's own part of each
 * source tensor, never sliced from a concatenation: [Q heads | K heads | V heads]. */
#include "engine/model/layout.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Llama (2, 3, 3.1, 3.2): transformers' tensor names. %d is the layer. */
struct param {
    enum role role;
    bool per_layer;
    const char *name; /* of the local weight, as plans know it */
    const char *tensors[PLACEMENT_SLICES_MAX];
};

static const struct param llama[] = {
    {ROLE_EMBED, false, "model.embed_tokens", {"model.embed_tokens.weight"}},
    {ROLE_ATTN_NORM,
     true,
     "model.layers.%d.input_layernorm",
     {"model.layers.%d.input_layernorm.weight"}},
    {ROLE_QKV,
     true,
     "model.layers.%d.self_attn.qkv_proj",
     {"model.layers.%d.self_attn.q_proj.weight", "model.layers.%d.self_attn.k_proj.weight",
      "model.layers.%d.self_attn.v_proj.weight"}},
    {ROLE_O, true, "model.layers.%d.self_attn.o_proj", {"model.layers.%d.self_attn.o_proj.weight"}},
    {ROLE_MLP_NORM,
     true,
     "model.layers.%d.post_attention_layernorm",
     {"model.layers.%d.post_attention_layernorm.weight"}},
    {ROLE_GATE_UP,
     true,
     "model.layers.%d.mlp.gate_up_proj",
     {"model.layers.%d.mlp.gate_proj.weight", "model.layers.%d.mlp.up_proj.weight"}},
    {ROLE_DOWN, true, "model.layers.%d.mlp.down_proj", {"model.layers.%d.mlp.down_proj.weight"}},
    {ROLE_FINAL_NORM, false, "model.norm", {"model.norm.weight"}},
    {ROLE_HEAD, false, "lm_head", {"lm_head.weight"}},
};

/* Old checkpoints carry the rotary frequencies; a tied one may repeat the head. */
const char *const layout_ignored[] = {"model.layers.*.self_attn.rotary_emb.inv_freq",
                                      "model.rotary_emb.inv_freq"};
const int32_t layout_ignored_count = ARRAY_LEN(layout_ignored);

static void name_at(char *dst, const char *pattern, int32_t layer)
{
    const char *at = strstr(pattern, "%d");
    if (at)
        snprintf(dst, PLACEMENT_NAME_MAX, "%.*s%d%s", (int)(at - pattern), pattern, layer, at + 2);
    else
        snprintf(dst, PLACEMENT_NAME_MAX, "%s", pattern);
}

static void add_slice(struct local_weight *w, const char *pattern, int32_t layer, int64_t rows,
                      int64_t cols, struct span mine_rows, struct span mine_cols)
{
    struct tensor_slice *s = &w->slices[w->slice_count++];
    name_at(s->tensor, pattern, layer);
    s->shape[0] = rows;
    s->shape[1] = cols;
    s->ndim = w->kind == LOCAL_VECTOR ? 1 : 2;
    s->rows = mine_rows;
    s->cols = mine_cols;
    s->dst_row = w->spec.out;
    w->spec.out += (int32_t)span_len(mine_rows);
    w->spec.in = (int32_t)span_len(mine_cols);
    w->spec.leaves = 1;
    w->spec.cut[1] = w->spec.in;
}

static struct span scaled(struct span s, int64_t unit)
{
    return (struct span){s.begin * unit, s.end * unit};
}

static void fill(const struct layout *l, const struct model_config *m, const struct param *p,
                 int32_t layer, struct local_weight *w)
{
    const struct span hidden = {0, m->hidden}, one = {0, 1};
    const int64_t dh = m->head_dim;
    switch (p->role) {
    case ROLE_EMBED:
    case ROLE_HEAD:
        add_slice(w, p->tensors[0], layer, m->vocab, m->hidden, l->vocab, hidden);
        break;
    case ROLE_ATTN_NORM:
    case ROLE_MLP_NORM:
    case ROLE_FINAL_NORM:
        w->kind = LOCAL_VECTOR;
        w->spec.dtype = DTYPE_F32;
        add_slice(w, p->tensors[0], layer, 1, m->hidden, one, hidden);
        break;
    case ROLE_QKV:
        add_slice(w, p->tensors[0], layer, m->heads * dh, m->hidden, scaled(l->heads, dh), hidden);
        add_slice(w, p->tensors[1], layer, m->kv_heads * dh, m->hidden, scaled(l->kv_heads, dh),
                  hidden);
        add_slice(w, p->tensors[2], layer, m->kv_heads * dh, m->hidden, scaled(l->kv_heads, dh),
                  hidden);
        break;
    case ROLE_O:
        add_slice(w, p->tensors[0], layer, m->hidden, m->heads * dh, hidden, scaled(l->heads, dh));
        placement_leaves(m->heads, dh, l->heads, &w->spec);
        break;
    case ROLE_GATE_UP:
        add_slice(w, p->tensors[0], layer, m->mlp, m->hidden, l->mlp, hidden);
        add_slice(w, p->tensors[1], layer, m->mlp, m->hidden, l->mlp, hidden);
        break;
    case ROLE_DOWN:
        add_slice(w, p->tensors[0], layer, m->hidden, m->mlp, hidden, l->mlp);
        placement_leaves(m->mlp, 1, l->mlp, &w->spec);
        break;
    }
}

/* The parameters of the first layer, as the plan's check walks them; roles are in its order. */
static enum status check(const struct plan *plan, const struct model_config *m, enum dtype dtype,
                         const struct layout *l, struct err *err)
{
    enum status st = OK;
    struct plan_layer layer;
    for (int32_t part = 0; part < PLAN_PARTS; part++) {
        const enum role role = (enum role)part;
        int32_t i = layout_find(l, role, 0);
        i = i >= 0 ? i : layout_find(l, role, -1);
        if (i >= 0) {
            layer.name[part] = l->weights[i].name;
            layer.choice[part] = l->choices[i];
        } else { /* tied: the embedding serves, if the plan's entry for the head allows it */
            layer.name[part] = "lm_head";
            TRY(plan_find(plan, "lm_head", &layer.choice[PLAN_EMBED], &layer.choice[part], err));
        }
    }
    TRY(plan_check(plan, m, dtype, &layer, err));
out:
    return st;
}

static enum status bind(const struct plan *plan, struct layout *l, struct err *err)
{
    const char **names = calloc((size_t)l->count, sizeof *names);
    if (!names)
        return base_fail(err, ERR_NOMEM, "layout: no memory");
    for (int32_t i = 0; i < l->count; i++)
        names[i] = l->weights[i].name;
    enum status st = plan_bind(plan, names, l->count, l->choices, err);
    free(names);
    return st;
}

static void split(struct layout *l, const struct model_config *m)
{
    int32_t group = m->heads / m->kv_heads;
    l->heads = placement_block(m->heads, l->ranks, l->rank);
    l->mlp = placement_block(m->mlp, l->ranks, l->rank);
    l->vocab = placement_block(m->vocab, l->ranks, l->rank);
    if (span_len(l->heads) > 0)
        l->kv_heads = (struct span){l->heads.begin / group, (l->heads.end - 1) / group + 1};
    for (int64_t h = l->heads.begin; h < l->heads.end; h++)
        l->kv_of[h - l->heads.begin] = (int32_t)(h / group - l->kv_heads.begin);
}

enum status layout_open(const struct model_config *m, const struct plan *plan, int32_t rank,
                        enum dtype dtype, const struct backend_ops *ops, struct layout **out,
                        struct err *err)
{
    enum status st = OK;
    size_t most = 3 + 6 * (size_t)m->layers;
    struct layout *l = calloc(1, sizeof *l);
    if (!l)
        return base_fail(err, ERR_NOMEM, "layout: no memory");
    l->rank = rank;
    l->ranks = plan_ranks(plan);
    l->kv_of = calloc((size_t)m->heads, sizeof *l->kv_of);
    l->weights = calloc(most, sizeof *l->weights);
    l->roles = calloc(most, sizeof *l->roles);
    l->layers = calloc(most, sizeof *l->layers);
    l->choices = calloc(most, sizeof *l->choices);
    if (!l->kv_of || !l->weights || !l->roles || !l->layers || !l->choices) {
        st = base_fail(err, ERR_NOMEM, "layout: no memory for %zu weights", most);
        goto out;
    }
    split(l, m);
    for (int32_t layer = -1; layer < m->layers; layer++) {
        for (size_t i = 0; i < ARRAY_LEN(llama); i++) {
            const struct param *p = &llama[i];
            if (p->per_layer != (layer >= 0) || (p->role == ROLE_HEAD && m->tied))
                continue;
            struct local_weight *w = &l->weights[l->count];
            name_at(w->name, p->name, layer);
            w->spec.dtype = dtype;
            fill(l, m, p, layer, w);
            l->roles[l->count] = p->role;
            l->layers[l->count++] = layer;
        }
    }
    TRY(bind(plan, l, err));
    TRY(check(plan, m, dtype, l, err));
    TRY(placement_layout(ops, l->weights, l->count, &l->arena_bytes, err));
    *out = l;
    l = NULL;
out:
    layout_close(l);
    return st;
}

void layout_close(struct layout *l)
{
    if (!l)
        return;
    free(l->kv_of);
    free(l->weights);
    free(l->roles);
    free(l->layers);
    free(l->choices);
    free(l);
}

int32_t layout_find(const struct layout *l, enum role role, int32_t layer)
{
    for (int32_t i = 0; i < l->count; i++)
        if (l->roles[i] == role && l->layers[i] == layer)
            return i;
    return -1;
}

size_t layout_kv_bytes_per_token(const struct layout *l, const struct model_config *m,
                                 enum dtype kv_dtype)
{
    return 2 * (size_t)m->layers * (size_t)span_len(l->kv_heads) * (size_t)m->head_dim *
           dtype_size(kv_dtype);
}

struct synth_rules layout_synth_rules(const struct model_config *m, uint64_t seed)
{
    /* <unk>, <s>, </s> and 256 bytes come first in a SentencePiece vocabulary with byte fallback */
    enum { CONTROL_AND_BYTES = 259, SMALLEST_WITH_TOKENIZER = 262 };
    return (struct synth_rules){
        .seed = seed,
        .std = 0.02f, /* transformers' initializer_range */
        .embed = "model.embed_tokens.weight",
        .head = m->tied ? NULL : "lm_head.weight",
        .tiny_rows = m->vocab >= SMALLEST_WITH_TOKENIZER ? CONTROL_AND_BYTES : 0,
    };
}
