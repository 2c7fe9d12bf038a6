/* DESIGN: fused weights (QKV, gate/up) are stacked from the rank's own part of each matrix, whether
 * the file has it in a tensor of its own or in one with the others: [Q heads | K heads | V heads].
 * A shared expert is some columns of an MLP that all of its layer are together. */
#include "engine/model/layout_fill.h"

#include <stdio.h>

void layout_fill_name(char *dst, const char *pattern, struct which at)
{
    const char *gap = strstr(pattern, "%d");
    size_t n = 0;
    if (at.layer >= 0)
        n += (size_t)snprintf(dst, PLACEMENT_NAME_MAX, "model.layers.%d.", at.layer);
    if (gap) {
        n += (size_t)snprintf(dst + n, PLACEMENT_NAME_MAX - n, "%.*s%d", (int)(gap - pattern),
                              pattern, at.expert);
        pattern = gap + 2;
    }
    snprintf(dst + n, PLACEMENT_NAME_MAX - n, "%s", pattern);
}

static void add_slice(struct local_weight *w, const char *pattern, struct which at, int64_t rows,
                      int64_t cols, struct span mine_rows, struct span mine_cols)
{
    struct tensor_slice *s = &w->slices[w->slice_count++];
    layout_fill_name(s->tensor, pattern, at);
    s->shape[0] = rows;
    s->shape[1] = cols;
    s->ndim = 2;
    s->rows = mine_rows;
    s->cols = mine_cols;
    s->dst_row = w->spec.out;
    w->spec.out += (int32_t)span_len(mine_rows);
    w->spec.in = (int32_t)span_len(mine_cols);
}

/* The same of one of as many matrices as there are experts, all in one tensor. */
static void add_expert(struct local_weight *w, const char *pattern, struct which at,
                       const struct model_config *m, int64_t rows, int64_t cols,
                       struct span mine_rows, struct span mine_cols)
{
    const int32_t experts = m->mixture.experts;
    const int64_t before = at.expert * rows;
    mine_rows = (struct span){before + mine_rows.begin, before + mine_rows.end};
    add_slice(w, pattern, at, experts * rows, cols, mine_rows, mine_cols);
    w->slices[w->slice_count - 1].stack = experts;
}

/* Elements `mine` of a row of [rows, n], behind those that are there. */
static void add_row(struct local_weight *w, const char *pattern, struct which at, int64_t rows,
                    int64_t row, int64_t n, struct span mine)
{
    struct tensor_slice *s = &w->slices[w->slice_count++];
    layout_fill_name(s->tensor, pattern, at);
    s->shape[0] = rows;
    s->shape[1] = n;
    s->ndim = 2;
    s->rows = (struct span){row, row + 1};
    s->cols = mine;
    s->dst_row = w->spec.in;
    w->spec.in += (int32_t)span_len(mine);
}

/* The same of a vector. */
static void add_elements(struct local_weight *w, const char *pattern, struct which at, int64_t n,
                         struct span mine)
{
    add_row(w, pattern, at, 1, 0, n, mine);
    w->slices[w->slice_count - 1].ndim = 1;
}

static struct span scaled(struct span s, int64_t unit)
{
    return (struct span){s.begin * unit, s.end * unit};
}

/* A fused weight's outputs are redistributed to `end`, which cuts them into *n blocks. Returns the
 * blocks that this rank's product makes. */
static struct span blocks_of(const struct layout *l, enum plan_part part, const struct spread *end,
                             int32_t *n)
{
    const struct flow *f = l->flow;
    const struct spread *product = &f->phase[PLAN_DECODE].linear[part].product;
    const int32_t each =
        spread_pieces(&f->mesh, end, SPREAD_COLS) / spread_pieces(&f->mesh, product, SPREAD_COLS);
    const int32_t index = spread_index(&f->mesh, product, SPREAD_COLS, l->rank);
    *n = spread_pieces(&f->mesh, end, SPREAD_COLS);
    return (struct span){(int64_t)index * each, ((int64_t)index + 1) * each};
}

static struct span moved(struct span s, int64_t by)
{
    return (struct span){s.begin + by, s.end + by};
}

/* What a tensor has for a head are `together` rows, and of these `count` from `before` on. */
struct head_part {
    int64_t before, count, together;
};

/* That part of each of these heads, of so many in the tensor. */
static void add_heads(struct local_weight *w, const char *tensor, struct which at, int64_t heads,
                      int64_t cols, struct span mine, struct head_part part, struct span in)
{
    const int64_t rows = heads * part.together;
    if (span_len(mine) == 0) /* its tensor belongs to the model all the same */
        add_slice(w, tensor, at, rows, cols, (struct span){0, 0}, in);
    for (int64_t h = mine.begin; h < mine.end; h++)
        add_slice(w, tensor, at, rows, cols,
                  moved((struct span){0, part.count}, h * part.together + part.before), in);
}

/* Rows of the t-th of some matrices that have a tensor each, or one all together. */
static void add_part(struct local_weight *w, const struct param *p, struct which at,
                     const int64_t *sizes, size_t count, size_t t, int64_t cols, struct span rows,
                     struct span in)
{
    int64_t before = 0, all = 0;
    for (size_t i = 0; i < count; i++) {
        before += i < t ? sizes[i] : 0;
        all += sizes[i];
    }
    if (param_is_fused(p))
        add_slice(w, p->tensors[0], at, all, cols,
                  (struct span){before + rows.begin, before + rows.end}, in);
    else
        add_slice(w, p->tensors[t], at, sizes[t], cols, rows, in);
}

static void fill_qkv(const struct layout *l, const struct model_config *m, const struct param *p,
                     struct which at, struct local_weight *w)
{
    const int32_t kind = p->role == ROLE_GLOBAL_QKV;
    const enum plan_part part = kind > 0 ? PLAN_GLOBAL_QKV : PLAN_QKV;
    const struct head_shape shape = model_config_shape(m, kind);
    const struct span in = flow_inputs(l->flow, part, l->rank);
    const int64_t dh = shape.head_dim;
    const int64_t sizes[] = {m->heads * dh, shape.kv_heads * dh, shape.kv_heads * dh};
    int32_t n;
    const struct span mine = blocks_of(l, part, &l->flow->attention, &n);
    for (int32_t x = (int32_t)mine.begin; x < mine.end; x++) {
        const struct span q = layout_fill_query_heads(m, n, x),
                          kv = layout_fill_kv_heads(m, kind, q);
        const struct span mine_of[] = {scaled(q, dh), scaled(kv, dh), scaled(kv, dh)};
        for (size_t t = 0; t < ARRAY_LEN(mine_of); t++) {
            if (t == 0 && m->attention_gate) /* each query has its gate behind it */
                add_heads(w, p->tensors[0], at, m->heads, m->hidden, q,
                          (struct head_part){0, dh, 2 * dh}, in);
            else
                add_part(w, p, at, sizes, ARRAY_LEN(sizes), t, m->hidden, mine_of[t], in);
        }
    }
}

/* Of each query head what stands behind its query. */
static void fill_attention_gate(const struct layout *l, const struct model_config *m,
                                const struct param *p, struct which at, struct local_weight *w)
{
    const struct span in = flow_inputs(l->flow, PLAN_ATTENTION_GATE, l->rank);
    const int64_t dh = m->head_dim;
    add_heads(w, p->tensors[0], at, m->heads, m->hidden, l->heads,
              (struct head_part){dh, dh, 2 * dh}, in);
}

struct span layout_fill_recurrent_heads(const struct model_config *m, const struct flow *f,
                                        int32_t rank)
{
    return placement_block(m->recurrent.keys, spread_pieces(&f->mesh, &f->attention, SPREAD_COLS),
                           spread_index(&f->mesh, &f->attention, SPREAD_COLS, rank));
}

/* Outputs of a layer that recurs, of this rank's heads: [q | k | v | z]. */
static void fill_recurrent(const struct layout *l, const struct model_config *m,
                           const struct param *p, struct which at, struct local_weight *w)
{
    const struct recurrent_config *x = &m->recurrent;
    const struct span in = flow_inputs(l->flow, PLAN_RECURRENT, l->rank);
    const struct span mine = layout_fill_recurrent_heads(m, l->flow, l->rank);
    const int64_t key = x->key_dim, value = (int64_t)(x->values / x->keys) * x->value_dim;
    const int64_t sizes[] = {key, key, value, value}; /* of a key head */
    const int64_t together = x->by_head ? 2 * key + 2 * value : 2 * key + value;
    int64_t before = 0;
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        if (x->by_head)
            add_heads(w, p->tensors[0], at, x->keys, m->hidden, mine,
                      (struct head_part){before, sizes[i], together}, in);
        else if (before < together)
            add_slice(w, p->tensors[0], at, x->keys * together, m->hidden,
                      moved(scaled(mine, sizes[i]), x->keys * before), in);
        else
            add_slice(w, p->tensors[1], at, x->keys * value, m->hidden, scaled(mine, value), in);
        before += sizes[i];
    }
}

/* [b | a] of their value heads. */
static void fill_recurrent_gates(const struct layout *l, const struct model_config *m,
                                 const struct param *p, struct which at, struct local_weight *w)
{
    const struct recurrent_config *x = &m->recurrent;
    const struct span in = flow_inputs(l->flow, PLAN_RECURRENT_GATES, l->rank);
    const struct span mine = layout_fill_recurrent_heads(m, l->flow, l->rank);
    const int64_t group = x->values / x->keys;
    for (int32_t i = 0; i < 2; i++) {
        if (x->by_head)
            add_heads(w, p->tensors[0], at, x->keys, m->hidden, mine,
                      (struct head_part){i * group, group, 2 * group}, in);
        else
            add_slice(w, p->tensors[i], at, x->values, m->hidden, scaled(mine, group), in);
    }
}

static int64_t clamped(int64_t x, struct span s)
{
    return x < s.begin ? s.begin : x > s.end ? s.end : x;
}

/* Keeps these rows of the local weight and drops the others. Slices that lose all their rows stay,
 * empty, because their tensor still belongs to the model. */
static void keep(struct local_weight *w, struct span rows)
{
    for (int32_t i = 0; i < w->slice_count; i++) {
        struct tensor_slice *s = &w->slices[i];
        const struct span filled = {s->dst_row, s->dst_row + span_len(s->rows)};
        const int64_t begin = clamped(rows.begin, filled), end = clamped(rows.end, filled);
        s->rows.end = s->rows.begin + end - filled.begin;
        s->rows.begin += begin - filled.begin;
        s->dst_row = clamped(begin, rows) - rows.begin;
    }
    w->spec.out = (int32_t)span_len(rows);
}

/* Queries alone: of latents or beside them, or of layers with the keys and values of others. */
static void fill_queries(const struct layout *l, const struct model_config *m,
                         const struct param *p, struct which at, struct local_weight *w)
{
    const struct span in = flow_inputs(l->flow, (enum plan_part)p->role, l->rank);
    const int64_t dim =
        p->role == ROLE_GLOBAL_QUERY ? m->global.head_dim : model_config_query_dim(m);
    const int64_t cols = m->latent.query > 0 ? m->latent.query : m->hidden;
    add_slice(w, p->tensors[0], at, m->heads * dim, cols, scaled(l->heads, dim), in);
}

/* Outputs of the latents' product, [query | value | turns], that this rank makes. */
static void fill_latents(const struct layout *l, const struct model_config *m,
                         const struct param *p, struct which at, struct local_weight *w)
{
    const struct span in = flow_inputs(l->flow, PLAN_LATENT, l->rank);
    const int64_t query = m->latent.query, key = (int64_t)m->latent.value + m->latent.turns;
    if (query > 0)
        add_slice(w, p->tensors[0], at, query, m->hidden, (struct span){0, query}, in);
    add_slice(w, p->tensors[query > 0], at, key, m->hidden, (struct span){0, key}, in);
    keep(w, flow_outputs(l->flow, PLAN_LATENT, l->rank));
}

/* A head's part of the matrix that makes keys and values of latents: [plain | head] rows. Keys' is
 * for queries, from the other side. */
static void fill_head(const struct layout *l, const struct model_config *m, const struct param *p,
                      struct which at, struct local_weight *w)
{
    const struct latent_config *c = &m->latent;
    const bool keys = p->role == ROLE_KEY_UP;
    const int64_t each = (int64_t)c->plain + c->head, before = at.expert * each;
    const struct span in = {0, c->value};
    struct span rows = keys ? (struct span){before, before + c->plain}
                            : (struct span){before + c->plain, before + each};
    if (span_len(l->heads) == 0) /* its tensor belongs to the model all the same */
        rows.end = rows.begin;
    add_slice(w, p->tensors[0], at, m->heads * each, c->value, rows, in);
    w->spec = flow_head_weight(l->flow, keys);
    w->transposed = keys;
    *(keys ? &w->spec.in : &w->spec.out) = (int32_t)span_len(rows);
    w->spec.cut[1] = w->spec.in;
    if (m->quant.kind == QUANT_FILE && param_is_coded(m, p))
        w->quant = m->quant;
}

/* An MLP's columns in its tensors: so many, from `before` on, of `all`. */
struct mlp_columns {
    int64_t count, before, all;
};

static struct mlp_columns mlp_columns(const struct model_config *m, const struct param *p,
                                      struct which at)
{
    const struct mixture_config *x = &m->mixture;
    const int32_t other = model_config_other_mlp(m);
    if (param_is_dense(p->role))
        return (struct mlp_columns){other, 0, other};
    if (param_is_shared(p))
        return (struct mlp_columns){m->mlp, (at.expert - x->experts) * (int64_t)m->mlp,
                                    x->shared * (int64_t)m->mlp};
    return (struct mlp_columns){m->mlp, 0, m->mlp};
}

static void fill_gate_up(const struct layout *l, const struct model_config *m,
                         const struct param *p, struct which at, struct local_weight *w)
{
    const struct span in = flow_inputs(l->flow, PLAN_GATE_UP, l->rank);
    const struct mlp_columns c = mlp_columns(m, p, at);
    const int64_t sizes[] = {c.all, c.all};
    int32_t n;
    const struct span mine = blocks_of(l, PLAN_GATE_UP, &l->flow->mlp, &n);
    for (int32_t x = (int32_t)mine.begin; x < mine.end; x++)
        for (size_t t = 0; t < ARRAY_LEN(sizes); t++)
            add_part(w, p, at, sizes, ARRAY_LEN(sizes), t, m->hidden,
                     moved(placement_block(c.count, n, x), c.before), in);
}

/* The same with gates and ups in turns. */
static void fill_pairs(const struct layout *l, const struct model_config *m, const struct param *p,
                       struct which at, struct local_weight *w)
{
    const struct span in = flow_inputs(l->flow, PLAN_GATE_UP, l->rank);
    int32_t n;
    const struct span mine = blocks_of(l, PLAN_GATE_UP, &l->flow->mlp, &n);
    for (int32_t x = (int32_t)mine.begin; x < mine.end; x++)
        add_expert(w, p->tensors[0], at, m, 2 * (int64_t)m->mlp, m->hidden,
                   scaled(placement_block(m->mlp, n, x), 2), in);
}

/* Biases of all experts, one after the other. */
static void fill_expert_bias(const struct layout *l, const struct model_config *m,
                             const struct param *p, struct which at, struct local_weight *w)
{
    const bool down = p->role == ROLE_DOWN_BIAS;
    const int64_t each = down ? m->hidden : 2 * (int64_t)m->mlp;
    int32_t n;
    const struct span mine = blocks_of(l, PLAN_GATE_UP, &l->flow->mlp, &n);
    for (int32_t e = 0; e < m->mixture.experts; e++) {
        if (down)
            add_row(w, p->tensors[0], at, m->mixture.experts, e, each, (struct span){0, each});
        for (int32_t x = (int32_t)mine.begin; x < mine.end && !down; x++)
            add_row(w, p->tensors[0], at, m->mixture.experts, e, each,
                    scaled(placement_block(m->mlp, n, x), 2));
    }
}

/* Taps of this rank's channels: of q, of k and of v. */
static void fill_conv(const struct layout *l, const struct model_config *m, const struct param *p,
                      struct which at, struct local_weight *w)
{
    const struct recurrent_config *x = &m->recurrent;
    const struct span mine = layout_fill_recurrent_heads(m, l->flow, l->rank);
    const int64_t value = (int64_t)(x->values / x->keys) * x->value_dim;
    const int64_t sizes[] = {x->key_dim, x->key_dim, value}; /* channels of a key head */
    const int64_t channels = x->keys * (2 * x->key_dim + value);
    int64_t before = 0;
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        const struct span of = moved(scaled(mine, sizes[i]), before);
        add_elements(w, p->tensors[0], at, channels * x->taps, scaled(of, x->taps));
        w->slices[w->slice_count - 1].stack = (int32_t)channels;
        before += x->keys * sizes[i];
    }
}

static void fill_recurrent_vector(const struct layout *l, const struct model_config *m,
                                  const struct param *p, struct which at, struct local_weight *w)
{
    const struct recurrent_config *x = &m->recurrent;
    const struct span heads = layout_fill_recurrent_heads(m, l->flow, l->rank);
    if (p->role == ROLE_CONV)
        fill_conv(l, m, p, at, w);
    else if (p->role == ROLE_RECURRENT_NORM)
        add_elements(w, p->tensors[0], at, x->value_dim, (struct span){0, x->value_dim});
    else
        add_elements(w, p->tensors[0], at, x->values, scaled(heads, x->values / x->keys));
}

/* Norms are whole on every rank: each form of a step scales with another part of them. A bias is
 * added where the heads are whole, in attention. */
static void fill_vector(const struct layout *l, const struct model_config *m, const struct param *p,
                        struct which at, struct local_weight *w)
{
    const int64_t dh =
        model_config_shape(m, model_config_kind(m, at.layer < 0 ? 0 : at.layer)).head_dim;
    w->kind = LOCAL_VECTOR;
    w->plus = m->norm_offset && !param_is_bias(p->role) && !param_is_recurrent(p->role) ? 1 : 0;
    w->spec = (struct weight_spec){.out = 1, .dtype = DTYPE_F32, .leaves = 1};
    if (p->role == ROLE_QKV_BIAS) {
        add_elements(w, p->tensors[0], at, m->heads * dh, scaled(l->heads, dh));
        add_elements(w, p->tensors[1], at, m->kv_heads * dh, scaled(l->kv_heads[0], dh));
        add_elements(w, p->tensors[2], at, m->kv_heads * dh, scaled(l->kv_heads[0], dh));
    } else if (p->role == ROLE_Q_NORM && m->joint_norm) {
        add_elements(w, p->tensors[0], at, m->heads * dh, scaled(l->heads, dh));
    } else if (p->role == ROLE_K_NORM && m->joint_norm) {
        add_elements(w, p->tensors[0], at, m->kv_heads * dh, scaled(l->kv_heads[0], dh));
    } else if (p->role == ROLE_INPUTS_NORM) {
        add_elements(w, p->tensors[0], at, m->inputs.dim, (struct span){0, m->inputs.dim});
    } else if (p->role == ROLE_LAYER_SCALE) {
        add_elements(w, p->tensors[0], at, 1, (struct span){0, 1});
    } else if (p->role == ROLE_SINKS) {
        add_elements(w, p->tensors[0], at, m->heads, l->heads);
    } else if (p->role == ROLE_GATE_UP_BIAS || p->role == ROLE_DOWN_BIAS) {
        fill_expert_bias(l, m, p, at, w);
    } else if (param_is_recurrent(p->role)) {
        fill_recurrent_vector(l, m, p, at, w);
    } else {
        const bool of_experts = p->role == ROLE_ROUTER_BIAS || p->role == ROLE_CORRECTION ||
                                p->role == ROLE_EXPERT_SCALE;
        const int64_t n = param_goes_with_qkv(p->role)        ? dh
                          : of_experts                        ? m->mixture.experts
                          : p->role == ROLE_QUERY_LATENT_NORM ? m->latent.query
                          : p->role == ROLE_VALUE_LATENT_NORM ? m->latent.value
                                                              : m->hidden;
        add_elements(w, p->tensors[0], at, n, (struct span){0, n});
        if (p->role == ROLE_CORRECTION && m->mixture.corrections == CORRECTIONS_STATICS)
            w->slices[w->slice_count - 1].ndim = 2; /* [1, E] */
    }
    w->spec.cut[1] = w->spec.in;
}

static bool is_vector(enum role role)
{
    return role == ROLE_ATTN_NORM || role == ROLE_MLP_NORM || role == ROLE_FINAL_NORM ||
           param_is_post_norm(role) || param_is_aside(role) || param_goes_with_qkv(role) ||
           param_is_bias(role) || param_is_latent_norm(role) || role == ROLE_INPUTS_NORM ||
           role == ROLE_INPUT_POST_NORM || role == ROLE_LAYER_SCALE || role == ROLE_CONV ||
           role == ROLE_DECAY || role == ROLE_DECAY_BIAS || role == ROLE_RECURRENT_NORM;
}

/* Never quantised: what it chooses changes at once. MiniMax publishes it in F32 beside other types,
 * and ERNIE's class keeps it so. */
static void fill_router(const struct layout *l, const struct model_config *m, const struct param *p,
                        struct which at, struct local_weight *w)
{
    const struct span all = {0, m->mixture.experts}, in = {0, m->hidden};
    add_slice(w, p->tensors[0], at, m->mixture.experts, m->hidden, all, in);
    if (p->tensors[1]) /* the gate of the shared experts */
        add_slice(w, p->tensors[1], at, 1, m->hidden, (struct span){0, 1}, in);
    const bool exact =
        m->mixture.kind == MIXTURE_MINIMAX ||
        (m->mixture.kind == MIXTURE_GLM && m->mixture.corrections == CORRECTIONS_STATICS);
    w->spec.dtype = exact ? DTYPE_F32 : l->flow->dtype;
    w->spec.leaves = 1;
    w->spec.cut[1] = w->spec.in;
}

/* What is never quantised and no part of a plan: a table of all ids, whose columns are cut as what
 * is made of rows, and what layers do with them, whole on every rank. */
static void fill_input(const struct layout *l, const struct model_config *m, const struct param *p,
                       struct which at, struct local_weight *w)
{
    const int64_t dim = m->inputs.dim, hidden = m->hidden;
    const struct span own = flow_outputs(l->flow, PLAN_LAYER_INPUTS, l->rank);
    if (p->role == ROLE_INPUTS_TABLE)
        add_slice(w, p->tensors[0], at, m->inputs.vocab, m->layers * dim,
                  (struct span){0, m->inputs.vocab}, own);
    else if (p->role == ROLE_INPUT_GATE)
        add_slice(w, p->tensors[0], at, dim, hidden, (struct span){0, dim},
                  (struct span){0, hidden});
    else
        add_slice(w, p->tensors[0], at, hidden, dim, (struct span){0, hidden},
                  (struct span){0, dim});
    w->spec.dtype = l->flow->dtype;
    w->spec.leaves = 1;
    w->spec.cut[1] = w->spec.in;
}

void layout_fill(const struct layout *l, const struct model_config *m, const struct param *p,
                 struct which at, struct local_weight *w)
{
    const enum plan_part part = (enum plan_part)p->role;
    if (is_vector(p->role)) {
        fill_vector(l, m, p, at, w);
        return;
    }
    if (p->role == ROLE_ROUTER) {
        fill_router(l, m, p, at, w);
        return;
    }
    if (p->role == ROLE_INPUTS_TABLE || p->role == ROLE_INPUT_GATE || p->role == ROLE_INPUT_OUT) {
        fill_input(l, m, p, at, w);
        return;
    }
    if (param_is_head(p->role)) {
        fill_head(l, m, p, at, w);
        return;
    }
    const struct span out = flow_outputs(l->flow, part, l->rank);
    const struct span in = flow_inputs(l->flow, part, l->rank);
    const struct mlp_columns columns = mlp_columns(m, p, at);
    if ((p->role == ROLE_QKV && m->latent.value > 0) || param_is_query(p->role))
        fill_queries(l, m, p, at, w);
    else if (p->role == ROLE_QKV || p->role == ROLE_GLOBAL_QKV)
        fill_qkv(l, m, p, at, w);
    else if (p->role == ROLE_LATENT)
        fill_latents(l, m, p, at, w);
    else if (p->role == ROLE_ATTENTION_GATE)
        fill_attention_gate(l, m, p, at, w);
    else if (p->role == ROLE_RECURRENT)
        fill_recurrent(l, m, p, at, w);
    else if (p->role == ROLE_RECURRENT_GATES)
        fill_recurrent_gates(l, m, p, at, w);
    else if (p->role == ROLE_RECURRENT_OUT)
        add_slice(w, p->tensors[0], at, m->hidden,
                  (int64_t)m->recurrent.values * m->recurrent.value_dim, out, in);
    else if (p->role == ROLE_GATE_UP && param_in_turns(m))
        fill_pairs(l, m, p, at, w);
    else if (p->role == ROLE_GATE_UP || p->role == ROLE_DENSE_GATE_UP)
        fill_gate_up(l, m, p, at, w);
    else if (p->role == ROLE_O)
        add_slice(w, p->tensors[0], at, m->hidden, (int64_t)m->heads * model_config_value_dim(m),
                  out, in);
    else if (p->role == ROLE_LAYER_INPUTS)
        add_slice(w, p->tensors[0], at, (int64_t)m->layers * m->inputs.dim, m->hidden, out, in);
    else if (p->role == ROLE_GLOBAL_O)
        add_slice(w, p->tensors[0], at, m->hidden, (int64_t)m->heads * m->global.head_dim, out, in);
    else if (p->role == ROLE_DOWN && param_in_turns(m))
        add_expert(w, p->tensors[0], at, m, m->hidden, m->mlp, out, in);
    else if (p->role == ROLE_DOWN || p->role == ROLE_DENSE_DOWN)
        add_slice(w, p->tensors[0], at, m->hidden, columns.all, out, moved(in, columns.before));
    else
        add_slice(w, p->tensors[0], at, m->vocab, m->hidden, out, in);
    const struct weight_spec spec = flow_weight(l->flow, part, l->rank);
    CHECK(spec.out == w->spec.out);
    CHECK(spec.in == w->spec.in);
    w->spec = spec;
    keep(w, flow_stored_outputs(l->flow, part, l->rank));
    if (dtype_is_scaled(spec.dtype) || (m->quant.widened && param_is_coded(m, p)))
        w->quant = m->quant;
}

/* How many slices a weight has: a fused one has its two or three in each block. */
size_t layout_fill_slices(const struct layout *l, enum role role)
{
    const size_t experts = (size_t)l->flow->mixture.experts;
    const enum plan_part part = (enum plan_part)role;
    int32_t n;
    if (role == ROLE_QKV ||
        role == ROLE_GLOBAL_QKV) /* where there are gates, each query head has a slice for itself */
        return (3 + (size_t)l->flow->gated_heads) *
               (size_t)span_len(blocks_of(l, part, &l->flow->attention, &n));
    if (role == ROLE_ATTENTION_GATE)
        return 1 + (size_t)l->flow->gated_heads;
    if (role == ROLE_RECURRENT || role == ROLE_RECURRENT_GATES)
        return 4 * ((size_t)l->flow->recurrent.keys + 1); /* by head, or a few in all */
    if (role == ROLE_CONV)
        return 3;
    if (role == ROLE_GATE_UP || role == ROLE_DENSE_GATE_UP)
        return 2 * (size_t)span_len(blocks_of(l, part, &l->flow->mlp, &n));
    if (role == ROLE_QKV_BIAS)
        return 3;
    if (role == ROLE_ROUTER || role == ROLE_LATENT)
        return 2;
    if (role == ROLE_DOWN_BIAS)
        return experts;
    if (role == ROLE_GATE_UP_BIAS)
        return experts * (size_t)span_len(blocks_of(l, PLAN_GATE_UP, &l->flow->mlp, &n));
    return 1;
}
