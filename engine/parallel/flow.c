/* DESIGN: columns of fused weights are cut once, at the finest pieces their outputs end in: block x
 * of QKV is [Q heads x | K heads they read | V heads they read], of gate/up [gate x | up x]. A rank
 * that holds several pieces holds whole blocks one after the other, so every cut on the way is a
 * cut between blocks and no redistribution ever has to know what is in them. */
#include "engine/parallel/flow.h"

#include <stdlib.h>
#include <string.h>

const enum plan_part flow_linears[FLOW_LINEARS] = {PLAN_QKV,
                                                   PLAN_LATENT,
                                                   PLAN_ATTENTION_GATE,
                                                   PLAN_O,
                                                   PLAN_GATE_UP,
                                                   PLAN_DOWN,
                                                   PLAN_DENSE_GATE_UP,
                                                   PLAN_DENSE_DOWN,
                                                   PLAN_RECURRENT,
                                                   PLAN_RECURRENT_GATES,
                                                   PLAN_RECURRENT_OUT,
                                                   PLAN_GLOBAL_QKV,
                                                   PLAN_GLOBAL_O,
                                                   PLAN_QUERY,
                                                   PLAN_GLOBAL_QUERY,
                                                   PLAN_LAYER_INPUTS};

const enum plan_part flow_of_layer[FLOW_OF_LAYER] = {PLAN_QKV, PLAN_LATENT,  PLAN_ATTENTION_GATE,
                                                     PLAN_O,   PLAN_GATE_UP, PLAN_DOWN};

/* Rows for which routes are chosen: a route suits all steps of its form. */
static const int32_t typical_rows[PLAN_PHASES] = {16, 1024};

struct matrix flow_matrix(int32_t rows, struct extent cols)
{
    return (struct matrix){{{.units = rows, .unit = 1}, cols}};
}

int32_t flow_homes(const struct flow *f)
{
    return spread_pieces(&f->mesh, &f->attention, SPREAD_ROWS);
}

int32_t flow_home_rows(const struct flow *f, int32_t rows)
{
    const int32_t homes = flow_homes(f);
    return (rows + homes - 1) / homes;
}

enum plan_phase flow_phase_of(const struct flow *f, int32_t rows)
{
    return rows >= f->prefill_rows ? PLAN_PREFILL : PLAN_DECODE;
}

/* ---- columns ---- */

static struct extent columns(int64_t units, int32_t unit)
{
    return (struct extent){.units = units, .unit = unit};
}

/* Query heads of piece x, and the KV heads they read: width of its block of QKV. */
static int64_t qkv_width(const struct model_config *m, int32_t kind, int32_t pieces, int32_t x)
{
    const struct head_shape shape = model_config_shape(m, kind);
    const int32_t group = m->heads / shape.kv_heads;
    const struct span q = placement_block(m->heads, pieces, x);
    const int64_t kv = span_len(q) > 0 ? (q.end - 1) / group + 1 - q.begin / group : 0;
    return (span_len(q) + 2 * kv) * shape.head_dim;
}

/* Columns of QKV of each kind of layers. */
static enum status cut_qkv(struct flow *f, const struct model_config *m,
                           struct extent qkv[MODEL_KINDS], struct err *err)
{
    const int32_t n = spread_pieces(&f->mesh, &f->attention, SPREAD_COLS);
    qkv[0] = columns(m->heads, model_config_query_dim(m));
    qkv[1] = columns(0, 1);
    for (int32_t i = 0; i < model_config_kinds(m) && m->latent.value == 0; i++) {
        int64_t *cut = f->qkv_cut[i] = calloc((size_t)n + 1, sizeof *cut);
        if (!cut)
            return base_fail(err, ERR_NOMEM, "flow: no memory");
        for (int32_t x = 0; x < n; x++)
            cut[x + 1] = cut[x] + qkv_width(m, i, n, x);
        qkv[i] = (struct extent){.units = cut[n], .unit = 1, .pieces = n, .cut = cut};
    }
    return OK;
}

/* ---- routes ---- */

struct course {
    const struct flow *f;
    int32_t rows;
    struct err *err;
};

static enum status route(const struct course *r, struct extent cols, struct spread from,
                         struct spread to, struct route *out)
{
    const struct matrix x = flow_matrix(r->rows, cols);
    return redistribute_route(&r->f->mesh, &x, from, to, out, r->err);
}

/* in, out and uses are set. */
static enum status linear(const struct course *r, struct flow_linear *l,
                          const struct plan_choice *c, struct spread from, struct spread to)
{
    enum status st = OK;
    l->uses = c->uses;
    l->product = l->summa ? c->uses : plan_product(c);
    TRY(route(r, l->in, from, l->uses, &l->before));
    TRY(route(r, l->out, l->product, to, &l->after));
out:
    return st;
}

/* What latents are made by, of rows that are at `from`, and queries, of these or beside them. */
static enum status latents(const struct course *r, struct flow_phase *p,
                           const struct plan_choice *c, struct extent queries)
{
    enum status st = OK;
    const struct flow *f = r->f;
    struct flow_linear *l = &p->linear[PLAN_LATENT], *q = &p->linear[PLAN_QKV];
    l->in = f->hidden;
    l->out = columns((int64_t)f->latent.query + f->latent.value + f->latent.turns, 1);
    q->out = queries;
    if (f->latent.query == 0) {
        TRY(linear(r, q, c, p->rest, f->attention));
        TRY(linear(r, l, c, q->uses, f->latents));
        goto out;
    }
    TRY(linear(r, l, c, p->rest, f->latents));
    q->in = columns(f->latent.query, 1);
    q->uses = f->latents;
    q->product = f->attention;
    TRY(route(r, q->in, q->uses, q->uses, &q->before));
    TRY(route(r, q->out, q->product, q->product, &q->after));
out:
    return st;
}

/* Outputs for each key head of a layer that recurs: of what is made of a row, [q | k | v | z], of
 * gates, [b | a], and of what it leaves. */
struct recurrent_widths {
    int32_t all, gates, left;
};

static struct recurrent_widths recurrent_widths(const struct recurrent_config *x)
{
    if (x->keys == 0)
        return (struct recurrent_widths){1, 1, 1};
    const int32_t group = x->values / x->keys, value = group * x->value_dim;
    return (struct recurrent_widths){2 * (x->key_dim + value), 2 * group, value};
}

/* What is made of rows that are at `from` by QKV or in its place, and gates, of the same rows and
 * before it. */
static enum status gated(const struct course *r, struct flow_linear *gates, struct flow_linear *l,
                         const struct plan_choice *c, struct spread from)
{
    enum status st = OK;
    gates->in = l->in = r->f->hidden;
    TRY(linear(r, gates, c, from, r->f->attention));
    TRY(linear(r, l, c, gates->uses, r->f->attention));
out:
    return st;
}

static enum status recurrent(const struct course *r, struct flow_phase *p,
                             const struct plan_choice *in, const struct plan_choice *out)
{
    enum status st = OK;
    const struct recurrent_config *x = &r->f->recurrent;
    const struct recurrent_widths n = recurrent_widths(x);
    struct flow_linear *l = &p->linear[PLAN_RECURRENT], *gates = &p->linear[PLAN_RECURRENT_GATES];
    struct flow_linear *left = &p->linear[PLAN_RECURRENT_OUT];
    l->out = columns(x->keys, n.all);
    gates->out = columns(x->keys, n.gates);
    left->in = columns(x->keys, n.left);
    left->out = r->f->hidden;
    TRY(gated(r, gates, l, in, p->rest));
    TRY(linear(r, left, out, r->f->attention, p->rest));
out:
    return st;
}

/* What mixes a sequence's rows takes: attention, and what is in its place. */
static enum status mixing(const struct course *r, struct flow_phase *p,
                          const struct plan_choice c[PLAN_LINEARS], struct extent qkv)
{
    enum status st = OK;
    const struct flow *f = r->f;
    struct flow_linear *gate = &p->linear[PLAN_ATTENTION_GATE];
    if (f->recurrent.keys > 0)
        TRY(recurrent(r, p, &c[PLAN_RECURRENT], &c[PLAN_RECURRENT_OUT]));
    if (f->gated_heads > 0)
        gate->out = columns(f->gated_heads, f->head_dim);
    static const enum plan_part made[] = {PLAN_GLOBAL_QKV, PLAN_QUERY, PLAN_GLOBAL_QUERY};
    for (size_t i = 0; i < ARRAY_LEN(made); i++)
        if (f->layers[made[i]] > 0)
            TRY(linear(r, &p->linear[made[i]], &c[made[i]], p->rest, f->attention));
    if (f->layers[PLAN_GLOBAL_O] > 0)
        TRY(linear(r, &p->linear[PLAN_GLOBAL_O], &c[PLAN_GLOBAL_O], f->attention, p->rest));
    TRY(f->latent.value > 0 ? latents(r, p, &c[PLAN_LATENT], qkv)
        : f->gated_heads > 0
            ? gated(r, gate, &p->linear[PLAN_QKV], &c[PLAN_QKV], p->rest)
            : linear(r, &p->linear[PLAN_QKV], &c[PLAN_QKV], p->rest, f->attention));
out:
    return st;
}

/* Of the head without a product: sampled rows, whole on every rank. */
static enum status pool(const struct course *r, struct flow_linear *l, struct spread from)
{
    enum status st = OK;
    const struct spread whole = {0};
    l->out = l->in;
    l->uses = l->product = whole;
    l->summa = l->gathered = false;
    TRY(route(r, l->in, from, whole, &l->before));
    TRY(route(r, l->out, whole, whole, &l->after));
out:
    return st;
}

/* Of what the ranks have to add of their columns of `rest`: one axis after the other, the innermost
 * first. */
static enum status route_sums(const struct course *r, struct extent cols, const struct spread *rest,
                              struct route *out)
{
    enum status st = OK;
    struct spread at = *rest;
    struct route step;
    for (int32_t i = 0; i < rest->count[SPREAD_COLS]; i++)
        at =
            spread_partial(spread_copy(at, rest->axis[SPREAD_COLS][i]), rest->axis[SPREAD_COLS][i]);
    *out = (struct route){.from = at};
    for (int32_t i = rest->count[SPREAD_COLS] - 1; i >= 0; i--) {
        const struct spread next = spread_copy(at, rest->axis[SPREAD_COLS][i]);
        TRY(route(r, cols, at, next, &step));
        CHECK(out->count + step.count <= REDISTRIBUTE_MOVES_MAX);
        memcpy(out->move + out->count, step.move, (size_t)step.count * sizeof *step.move);
        out->count += step.count;
        at = next;
    }
    out->to = at;
out:
    return st;
}

/* Of the MLP of layers with another one; where there are none, of no more than others have. */
static struct extent dense_columns(const struct model_config *m)
{
    const int32_t other = model_config_other_mlp(m);
    return columns(other > 0 ? other : m->mlp, 1);
}

/* What heads of another kind, and layers that make queries alone, take and make. */
static void heads_columns(const struct flow *f, const struct model_config *m,
                          const struct extent qkv[MODEL_KINDS], struct flow_phase *p)
{
    const struct {
        enum plan_part part;
        struct extent in, out;
    } made[] = {
        {PLAN_GLOBAL_QKV, f->hidden, qkv[1]},
        {PLAN_GLOBAL_O, columns(m->heads, m->global.head_dim), f->hidden},
        {PLAN_QUERY, f->hidden, columns(m->heads, m->head_dim)},
        {PLAN_GLOBAL_QUERY, f->hidden, columns(m->heads, m->global.head_dim)},
        {PLAN_LAYER_INPUTS, f->hidden, columns(m->layers, m->inputs.dim)},
    };
    for (size_t i = 0; i < ARRAY_LEN(made); i++) { /* nothing, where there is none */
        const bool any = f->layers[made[i].part] > 0;
        p->linear[made[i].part].in = any ? made[i].in : columns(0, 1);
        p->linear[made[i].part].out = any ? made[i].out : columns(0, 1);
    }
}

static enum status open_phase(struct flow *f, const struct model_config *m, enum plan_phase phase,
                              const struct plan *plan, const struct extent qkv[MODEL_KINDS],
                              struct err *err)
{
    enum status st = OK;
    const struct course r = {f, typical_rows[phase], err};
    const struct course few = {f, typical_rows[PLAN_DECODE], err}; /* rows that are sampled */
    struct flow_phase *p = &f->phase[phase];
    struct plan_choice c[PLAN_LINEARS];
    for (int32_t i = 0; i < PLAN_LINEARS; i++) {
        c[i] = phase == PLAN_PREFILL ? plan_many(plan, &f->choice[i]) : f->choice[i];
        p->linear[i].summa =
            phase == PLAN_PREFILL && plan_is_summa(plan) && c[i].style == STYLE_LIN3D;
        p->linear[i].gathered = c[i].gathered && f->mesh.axis[c[i].over].size > 1;
        p->linear[i].in = p->linear[i].out = f->hidden;
    }
    struct flow_linear *embed = &p->linear[PLAN_EMBED], *head = &p->linear[PLAN_HEAD];
    p->rest = c[PLAN_EMBED].gives;
    p->linear[PLAN_QKV].out = qkv[0];
    static const enum plan_part special[] = {PLAN_LATENT, PLAN_ATTENTION_GATE, PLAN_RECURRENT,
                                             PLAN_RECURRENT_GATES, PLAN_RECURRENT_OUT};
    for (size_t i = 0; i < ARRAY_LEN(special); i++) /* nothing, where there is none */
        p->linear[special[i]].in = p->linear[special[i]].out = columns(0, 1);
    p->linear[PLAN_O].in = columns(m->heads, model_config_value_dim(m));
    heads_columns(f, m, qkv, p);
    const int32_t experts = flow_passes(&m->mixture);
    const struct extent dense = dense_columns(m);
    p->linear[PLAN_GATE_UP].out = columns(m->mlp, 2 * experts);
    p->linear[PLAN_DOWN].in = columns(m->mlp, experts);
    p->linear[PLAN_DENSE_GATE_UP].out = columns(dense.units, 2 * dense.unit);
    p->linear[PLAN_DENSE_DOWN].in = dense;
    embed->in = head->out = columns(m->vocab, 1);

    embed->product = plan_found(&c[PLAN_EMBED]);
    TRY(route(&r, embed->out, embed->product, p->rest, &embed->after));
    if (f->inputs.dim > 0)
        TRY(linear(&r, &p->linear[PLAN_LAYER_INPUTS], &c[PLAN_LAYER_INPUTS], p->rest, p->rest));
    TRY(mixing(&r, p, c, qkv[0]));
    TRY(linear(&r, &p->linear[PLAN_O], &c[PLAN_O], f->attention, p->rest));
    TRY(linear(&r, &p->linear[PLAN_GATE_UP], &c[PLAN_GATE_UP], p->rest, c[PLAN_GATE_UP].gives));
    TRY(linear(&r, &p->linear[PLAN_DOWN], &c[PLAN_DOWN], c[PLAN_GATE_UP].gives, p->rest));
    TRY(linear(&r, &p->linear[PLAN_DENSE_GATE_UP], &c[PLAN_GATE_UP], p->rest,
               c[PLAN_GATE_UP].gives));
    TRY(linear(&r, &p->linear[PLAN_DENSE_DOWN], &c[PLAN_DOWN], c[PLAN_GATE_UP].gives, p->rest));
    if (f->pooling)
        TRY(pool(&few, head, p->rest));
    else
        TRY(linear(&few, head, &c[PLAN_HEAD], p->rest, f->logits));

    TRY(route_sums(&r, columns(1, 1), &p->rest, &p->sums));
out:
    return st;
}

/* Forms whose pieces do not nest are what a plan can say and no built-in plan does: each then has
 * its own sums. */
static void cut_rows(struct flow *f)
{
    for (int32_t i = 0; i < PLAN_PHASES; i++) {
        const int32_t n = spread_pieces(&f->mesh, &f->phase[i].rest, SPREAD_COLS);
        f->pieces = n > f->pieces ? n : f->pieces;
    }
}

struct pieces flow_pieces(const struct flow *f, const struct flow_phase *phase, int32_t rank)
{
    const int32_t n = spread_pieces(&f->mesh, &phase->rest, SPREAD_COLS);
    const int32_t each = f->pieces % n == 0 ? f->pieces / n : 1;
    const int32_t index = spread_index(&f->mesh, &phase->rest, SPREAD_COLS, rank);
    return (struct pieces){(int32_t)f->hidden.units, n * each, index * each, each};
}

/* Columns of the logits as the table splits them, and further by all other axes: what several ranks
 * had alike would be counted more than once where ranks elect a token (sampler.h). */
static enum status open_logits(struct flow *f, const struct model_config *m, struct err *err)
{
    const struct spread *table = &f->choice[PLAN_HEAD].weight, whole = {0};
    const struct course r = {f, typical_rows[PLAN_DECODE], err};
    int32_t dim, place;
    for (int32_t d = 0; d < SPREAD_DIMS; d++)
        for (int32_t i = 0; i < table->count[d]; i++)
            f->logits = spread_shard(f->logits, SPREAD_COLS, table->axis[d][i]);
    for (int32_t axis = 0; axis < f->mesh.axes; axis++)
        if (spread_along(&f->logits, axis, &dim, &place) == SPREAD_COPY)
            f->logits = spread_shard(f->logits, SPREAD_COLS, axis);
    return route(&r, columns(m->vocab, 1), f->logits, whole, &f->whole);
}

/* Queries of latents are made where their heads are; beside them, as keys and values of others. */
static void open_latents(struct flow *f, const struct model_config *m)
{
    f->latent = m->latent;
    f->latents = f->attention;
    for (int32_t axis = 0; axis < f->mesh.axes; axis++) {
        int32_t dim, place;
        if (spread_along(&f->latents, axis, &dim, &place) == SPREAD_SHARD && dim == SPREAD_COLS)
            f->latents = spread_copy(f->latents, axis);
    }
    if (m->latent.value == 0)
        return;
    f->choice[PLAN_LATENT] = f->choice[PLAN_QKV];
    if (m->latent.query > 0)
        f->choice[PLAN_QKV] = (struct plan_choice){
            .style = STYLE_COLWISE, .takes = f->latents, .uses = f->latents, .gives = f->attention};
}

/* Has the layer that linear? */
static bool is_in(const struct model_config *m, int32_t layer, enum plan_part part)
{
    const bool recurs = model_config_recurs(m, layer), global = model_config_kind(m, layer) > 0;
    const bool stores = model_config_stores(m, layer);
    const bool other = model_config_has_other_mlp(m, layer);
    if (part == PLAN_DENSE_GATE_UP || part == PLAN_DENSE_DOWN)
        return other;
    if (part == PLAN_GATE_UP || part == PLAN_DOWN)
        return !other || mixture_is_beside(&m->mixture);
    if (part == PLAN_RECURRENT || part == PLAN_RECURRENT_GATES || part == PLAN_RECURRENT_OUT)
        return recurs;
    if (part == PLAN_LAYER_INPUTS)
        return layer == 0 && m->inputs.dim > 0;
    if (part == PLAN_O || part == PLAN_GLOBAL_O)
        return !recurs && global == (part == PLAN_GLOBAL_O);
    if (part == PLAN_QKV || part == PLAN_GLOBAL_QKV)
        return stores && global == (part == PLAN_GLOBAL_QKV);
    if (part == PLAN_QUERY || part == PLAN_GLOBAL_QUERY)
        return !recurs && !stores && global == (part == PLAN_GLOBAL_QUERY);
    return !recurs; /* what goes with attention */
}

static void count_layers(struct flow *f, const struct model_config *m)
{
    for (int32_t part = 0; part < PLAN_LINEARS; part++)
        for (int32_t i = 0; i < m->layers; i++)
            f->layers[part] += is_in(m, i, (enum plan_part)part);
}

/* Layers that recur, and gates, are placed as attention is: what stands in the place of QKV as QKV.
 */
static void open_gates(struct flow *f, const struct model_config *m)
{
    f->head_dim = m->head_dim;
    f->gated_heads = m->attention_gate ? m->heads : 0;
    f->recurrent = m->recurrent;
    static const enum plan_part as_qkv[] = {PLAN_GLOBAL_QKV, PLAN_QUERY, PLAN_GLOBAL_QUERY,
                                            PLAN_LAYER_INPUTS};
    for (size_t i = 0; i < ARRAY_LEN(as_qkv); i++)
        if (f->layers[as_qkv[i]] > 0)
            f->choice[as_qkv[i]] = f->choice[PLAN_QKV];
    if (f->layers[PLAN_GLOBAL_O] > 0)
        f->choice[PLAN_GLOBAL_O] = f->choice[PLAN_O];
    if (f->gated_heads > 0)
        f->choice[PLAN_ATTENTION_GATE] = f->choice[PLAN_QKV];
    if (f->layers[PLAN_RECURRENT] == 0)
        return;
    f->choice[PLAN_RECURRENT] = f->choice[PLAN_RECURRENT_GATES] = f->choice[PLAN_QKV];
    f->choice[PLAN_RECURRENT_OUT] = f->choice[PLAN_O];
}

static enum status open_joint(struct flow *f, const struct model_config *m, struct err *err)
{
    const struct course r = {f, typical_rows[PLAN_DECODE], err};
    if (!m->joint_norm)
        return OK;
    f->joint.heads = columns((int64_t)m->heads + m->kv_heads, 1);
    const enum status st = route_sums(&r, f->joint.heads, &f->attention, &f->joint.sums);
    for (int32_t i = 0; i < f->joint.sums.count; i++)
        CHECK(f->joint.sums.move[i].kind == MOVE_REDUCE); /* or they would overwrite q and k */
    return st;
}

/* ---- weights ---- */

static struct span held(const struct flow *f, const struct spread *s, struct extent cols,
                        int32_t rank)
{
    const struct matrix x = flow_matrix(0, cols);
    return redistribute_held(&f->mesh, &x, s, SPREAD_COLS, rank);
}

/* Columns that a weight has of what its linear takes or makes: those of one expert. */
static struct extent of_weight(const struct flow *f, struct extent cols, bool experts)
{
    if (experts && f->mixture.kind != MIXTURE_NONE)
        cols.unit /= mixture_chosen(&f->mixture);
    return cols;
}

/* Of the first form: both forms hold the same. */
struct span flow_outputs(const struct flow *f, enum plan_part part, int32_t rank)
{
    const struct flow_linear *l = &f->phase[PLAN_DECODE].linear[part];
    if (part == PLAN_EMBED) /* a table: its rows are looked up */
        return spread_span(&f->mesh, &f->choice[part].weight, SPREAD_ROWS, l->in.units, rank);
    return held(f, &l->product, of_weight(f, l->out, part == PLAN_GATE_UP), rank);
}

struct span flow_inputs(const struct flow *f, enum plan_part part, int32_t rank)
{
    const struct flow_linear *l = &f->phase[PLAN_DECODE].linear[part];
    if (part == PLAN_EMBED)
        return held(f, &f->choice[part].weight, f->hidden, rank);
    return held(f, &l->uses, of_weight(f, l->in, part == PLAN_DOWN), rank);
}

/* Quantised are the linears inside the layers; with integers made here the head, too, of which
 * every step reads all, but not to fewer than 8 bits. */
static enum dtype type_of(const struct flow *f, enum plan_part part)
{
    /* what decays, for all rows to come; and small ones */
    if (part == PLAN_RECURRENT_GATES || part == PLAN_LAYER_INPUTS)
        return f->dtype;
    const bool head = !f->pooling && (part == PLAN_HEAD || (part == PLAN_EMBED && f->tied));
    if (f->quant.kind == QUANT_NONE || f->quant.widened || (f->quant.left_out >> part & 1))
        return f->dtype;
    if (f->quant.code == DTYPE_F4_E2M1)
        return part == PLAN_GATE_UP || part == PLAN_DOWN ? DTYPE_F4_E2M1 : f->dtype;
    if (part != PLAN_EMBED && part != PLAN_HEAD)
        return f->quant.code;
    const bool makes = f->quant.kind == QUANT_LOAD; /* of a file the head is as it comes */
    return head && makes && dtype_is_int(f->quant.code) ? DTYPE_I8 : f->dtype;
}

struct weight_spec flow_weight(const struct flow *f, enum plan_part part, int32_t rank)
{
    const struct span out = flow_outputs(f, part, rank), in = flow_inputs(f, part, rank);
    const struct extent cols =
        part == PLAN_EMBED ? f->hidden
                           : of_weight(f, f->phase[PLAN_DECODE].linear[part].in, part == PLAN_DOWN);
    struct weight_spec s = {
        .out = (int32_t)span_len(out), .in = (int32_t)span_len(in), .leaves = 1};
    s.cut[1] = s.in;
    s.dtype = type_of(f, part);
    if (dtype_is_scaled(s.dtype)) {
        s.scale_cols = dtype_is_int(s.dtype) ? BACKEND_GROUP : f->quant.cols;
        s.scale_skip = s.scale_cols > 0 ? (int32_t)(in.begin % s.scale_cols) : 0;
        s.scales_f32 = f->quant.form != QUANT_BYTES; /* those of a file have any type */
    }
    if (f->choice[part].weight.count[SPREAD_COLS] > 0)
        placement_leaves(cols.units, cols.unit,
                         (struct span){in.begin / cols.unit, in.end / cols.unit}, &s);
    return s;
}

struct weight_spec flow_head_weight(const struct flow *f, bool keys)
{
    const struct latent_config *l = &f->latent;
    struct weight_spec s = {.out = keys ? l->value : l->head,
                            .in = keys ? l->plain : l->value,
                            .dtype = f->dtype,
                            .leaves = 1};
    s.cut[1] = s.in;
    return s;
}

int32_t flow_heads(const struct flow *f, int32_t rank)
{
    return (int32_t)span_len(spread_span(&f->mesh, &f->attention, SPREAD_COLS, f->heads, rank));
}

struct span flow_stored_outputs(const struct flow *f, enum plan_part part, int32_t rank)
{
    const int64_t out = span_len(flow_outputs(f, part, rank));
    const int32_t axis = f->choice[part].over;
    if (!f->phase[PLAN_DECODE].linear[part].gathered)
        return (struct span){0, out};
    return placement_tiles(out, f->mesh.axis[axis].size, mesh_coord(&f->mesh, rank, axis));
}

struct weight_spec flow_stored(const struct flow *f, enum plan_part part, int32_t rank)
{
    struct weight_spec s = flow_weight(f, part, rank);
    s.out = (int32_t)span_len(flow_stored_outputs(f, part, rank));
    return s;
}

/* Norms over whole rows; inputs uncut, or cut as a single rank cuts them into leaves. */
bool flow_keeps_order(const struct flow *f)
{
    static const enum plan_part uncut[] = {PLAN_QKV, PLAN_LATENT, PLAN_GATE_UP, PLAN_HEAD};
    static const enum plan_part leaves[] = {PLAN_O, PLAN_DOWN};
    for (size_t i = 0; i < ARRAY_LEN(uncut); i++)
        if (f->choice[uncut[i]].weight.count[SPREAD_COLS] > 0)
            return false;
    for (size_t i = 0; i < ARRAY_LEN(leaves); i++)
        if (BACKEND_LEAVES_MAX % spread_pieces(&f->mesh, &f->choice[leaves[i]].weight, SPREAD_COLS))
            return false;
    return f->phase[PLAN_DECODE].rest.count[SPREAD_COLS] == 0;
}

/* ---- open ---- */

static double bytes_cost(const struct flow *f, enum plan_phase phase, int32_t rows, int32_t rank,
                         const void *ctx)
{
    (void)ctx;
    return (double)flow_layer_bytes(f, phase, rows, rank);
}

/* Scales do not lie tile by tile in every backend's storage. */
static enum status check_gathered(const struct flow *f, const struct plan *plan,
                                  const struct plan_layer *layer, struct err *err)
{
    for (int32_t part = 0; part < PLAN_LINEARS; part++)
        if (f->phase[PLAN_DECODE].linear[part].gathered &&
            dtype_is_scaled(type_of(f, (enum plan_part)part)))
            return base_fail(err, ERR_USAGE,
                             "%s: %s: quantised weights are not gathered; use cached weights, or "
                             "none that are quantised",
                             plan_where(plan),
                             part < PLAN_PARTS ? layer->name[part] : layer->name[PLAN_QKV]);
    return OK;
}

/* Rows take different experts, so they have to be whole where experts are, and stay there. */
static enum status check_mixture(const struct flow *f, const struct plan *plan, struct err *err)
{
    for (int32_t phase = 0; phase < PLAN_PHASES && f->mixture.kind != MIXTURE_NONE; phase++) {
        const struct flow_linear *gate_up = &f->phase[phase].linear[PLAN_GATE_UP];
        const struct flow_linear *down = &f->phase[phase].linear[PLAN_DOWN];
        const struct spread *uses = &gate_up->uses;
        if (mixture_is_beside(&f->mixture) && gate_up->before.count > 0)
            return base_fail(err, ERR_USAGE,
                             "%s: experts beside an MLP need whole rows on every rank; 1d is the "
                             "layout that has them",
                             plan_where(plan));
        if (uses->count[SPREAD_ROWS] + uses->count[SPREAD_COLS] + gate_up->after.count +
                    down->before.count >
                0 ||
            gate_up->summa || gate_up->gathered || down->summa || down->gathered)
            return base_fail(err, ERR_USAGE,
                             "%s: a mixture of experts needs whole rows in front of its experts; "
                             "1d and 1d_sp are layouts that have them",
                             plan_where(plan));
    }
    return OK;
}

/* Of the rows that queries are made of, latents are made, too, afterwards. (Today's models are all
 * mixtures, which are refused before in the layouts where this is not so.) */
static enum status check_latents(const struct flow *f, const struct plan *plan, struct err *err)
{
    for (int32_t phase = 0; phase < PLAN_PHASES && f->latent.value > 0; phase++)
        if (f->latent.query == 0 && f->phase[phase].linear[PLAN_QKV].after.count > 0)
            return base_fail(err, ERR_USAGE,
                             "%s: queries that are made of the row itself, not of a latent "
                             "(q_lora_rank), have to stay where they are made; 1d and 1d_sp are "
                             "layouts where they do",
                             plan_where(plan));
    return OK;
}

/* The product behind gates takes what they took, which a move of them might overwrite, and heads
 * have to stay where they are made. */
static enum status check_gates(const struct flow *f, const struct plan *plan, struct err *err)
{
    const bool asked =
        f->gated_heads > 0 || f->recurrent.keys > 0 || f->layers[PLAN_GLOBAL_QKV] > 0;
    for (int32_t phase = 0; phase < PLAN_PHASES && asked; phase++)
        if (f->phase[phase].linear[PLAN_QKV].after.count > 0 ||
            f->phase[phase].linear[PLAN_QKV].summa || f->phase[phase].linear[PLAN_QKV].gathered ||
            flow_homes(f) > 1)
            return base_fail(
                err, ERR_USAGE,
                "%s: heads with gates, or of two sizes, and layers that recur, have to "
                "stay where they are made, for all sequences; 1d and 1d_sp are layouts "
                "where they do",
                plan_where(plan));
    return OK;
}

/* Rows that layers take of each token are whole where the residual stream is. */
static enum status check_inputs(const struct flow *f, const struct plan *plan, struct err *err)
{
    for (int32_t phase = 0; phase < PLAN_PHASES && f->inputs.dim > 0; phase++)
        if (f->phase[phase].rest.count[SPREAD_COLS] > 0)
            return base_fail(err, ERR_USAGE,
                             "%s: rows that layers take of each token need whole rows of the "
                             "residual stream; 1d and 1d_sp are layouts that have them",
                             plan_where(plan));
    return OK;
}

/* The groups of a tensor's columns that have a scale together, 0: all of them, have to begin where
 * experts do that are parts of one. */
static enum status check_shared(const struct flow *f, int32_t mlp, struct err *err)
{
    const bool ints = dtype_is_int(f->quant.code);
    const int32_t cols = f->quant.cols > 0 || !ints ? f->quant.cols : BACKEND_GROUP;
    if (f->quant.kind == QUANT_NONE || f->mixture.shared < 2 || cols == 0 || mlp % cols == 0)
        return OK;
    return base_fail(err, f->quant.kind == QUANT_FILE ? ERR_MODEL : ERR_USAGE,
                     "%s weights have a scale for each %d columns: shared experts of %d columns, "
                     "moe_intermediate_size, would have to be a multiple",
                     model_config_code_name(f->quant.code), cols, mlp);
}

enum status flow_open(const struct plan *plan, const struct model_config *m,
                      const struct plan_layer *layer, enum dtype dtype,
                      const struct backend_ops *ops, struct flow **out, struct err *err)
{
    enum status st = OK;
    struct extent qkv[MODEL_KINDS];
    struct flow *f = calloc(1, sizeof *f);
    if (!f)
        return base_fail(err, ERR_NOMEM, "flow: no memory");
    f->hash = base_hash(plan_hash(plan), &m->hash, sizeof m->hash);
    f->mesh = *plan_mesh(plan);
    memcpy(f->choice, layer->choice, sizeof layer->choice);
    f->choice[PLAN_DENSE_GATE_UP] = f->choice[PLAN_GATE_UP];
    f->choice[PLAN_DENSE_DOWN] = f->choice[PLAN_DOWN];
    f->inputs = m->inputs;
    count_layers(f, m);
    open_gates(f, m);
    f->attention = plan_attention(plan, &f->choice[PLAN_QKV]);
    f->mlp = f->choice[PLAN_GATE_UP].gives;
    f->heads = m->heads;
    open_latents(f, m);
    f->hidden = columns(m->hidden, 1);
    f->dtype = dtype;
    f->quant = m->quant;
    f->mixture = m->mixture;
    f->tied = m->tied;
    f->pooling = m->pooling;
    f->post_norms = m->post_norms != POST_NORMS_NONE;
    f->norms = f->post_norms && m->post_norms != POST_NORMS_OLMO ? 4 : 2;
    f->o_bias = m->o_bias;
    f->scaled = m->residual_scale != 1;
    f->ops = ops;
    TRY(cut_qkv(f, m, qkv, err));
    TRY(open_joint(f, m, err));
    if (!f->pooling)
        TRY(open_logits(f, m, err));
    for (int32_t phase = 0; phase < PLAN_PHASES; phase++)
        TRY(open_phase(f, m, (enum plan_phase)phase, plan, qkv, err));
    cut_rows(f);
    TRY(check_gathered(f, plan, layer, err));
    TRY(check_mixture(f, plan, err));
    TRY(check_latents(f, plan, err));
    TRY(check_gates(f, plan, err));
    TRY(check_inputs(f, plan, err));
    TRY(check_shared(f, m->mlp, err));
    f->prefill_rows = INT32_MAX;
    if (plan_has_prefill(plan)) {
        const int32_t said = plan_prefill_rows(plan);
        const int32_t rows = said > 0 ? said : flow_crossover(f, bytes_cost, NULL);
        f->prefill_rows = rows < FLOW_ROWS_MAX ? rows : INT32_MAX;
    }
    *out = f;
    f = NULL;
out:
    flow_close(f);
    return st;
}

void flow_close(struct flow *f)
{
    if (!f)
        return;
    for (int32_t i = 0; i < MODEL_KINDS; i++)
        free(f->qkv_cut[i]);
    free(f);
}
