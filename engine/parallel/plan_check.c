/* DESIGN: a layer is type-checked: each operation says what spread it takes and gives, and the walk
 * below is the forward pass with spreads in the place of numbers. What passes here needs no check
 * while it runs. */
#include "engine/parallel/plan_rules.h"

#include <string.h>

struct walk {
    const struct plan *p;
    const struct model_config *m;
    const struct plan_layer *l;
    struct err *err;
};

/* "plan.json: E09 model.layers.0.mlp.down_proj: ..." */
#define REFUSE(w, code, part, fmt, ...)                                                            \
    base_fail((w)->err, ERR_USAGE, "%s: " code " %s: " fmt, (w)->p->where, (w)->l->name[part],     \
              __VA_ARGS__)

/* ---- sizes ---- */

/* Units along the weight's outputs and inputs. */
static void units_of(const struct model_config *m, enum plan_part part, int64_t units[SPREAD_DIMS])
{
    static const enum plan_part out_of_hidden[] = {PLAN_O, PLAN_DOWN};
    units[SPREAD_ROWS] = units[SPREAD_COLS] = m->hidden;
    if (part == PLAN_EMBED || part == PLAN_HEAD)
        units[SPREAD_ROWS] = m->vocab;
    else if (part == PLAN_QKV)
        units[SPREAD_ROWS] = m->kv_heads;
    else if (part == PLAN_GATE_UP)
        units[SPREAD_ROWS] = m->mlp;
    for (size_t i = 0; i < ARRAY_LEN(out_of_hidden); i++)
        if (part == out_of_hidden[i])
            units[SPREAD_COLS] = i == 0 ? m->heads : m->mlp;
}

static enum status check_sizes(const struct walk *w, enum plan_part part)
{
    static const char *const sides[SPREAD_DIMS] = {"outputs", "inputs"};
    const struct plan_choice *c = &w->l->choice[part];
    int64_t units[SPREAD_DIMS];
    units_of(w->m, part, units);
    for (int32_t d = 0; w->p->strict && d < SPREAD_DIMS; d++) {
        const int32_t n = spread_pieces(&w->p->mesh, &c->weight, d);
        if (units[d] % n != 0)
            return REFUSE(w, "E06", part,
                          "%lld units of %s do not divide by %d; uneven must be balanced",
                          (long long)units[d], sides[d], n);
    }
    const int32_t side = part == PLAN_QKV ? SPREAD_ROWS : SPREAD_COLS;
    const int32_t dim =
        part == PLAN_QKV ? model_config_query_dim(w->m) : model_config_value_dim(w->m);
    const int32_t n = spread_pieces(&w->p->mesh, &c->weight, side);
    if ((part != PLAN_QKV && part != PLAN_O) || c->unit != UNIT_COLUMN || n == 1)
        return OK;
    for (int32_t x = 1; x < n; x++) {
        const int64_t cut = placement_block((int64_t)w->m->heads * dim, n, x).begin;
        if (cut % dim != 0)
            return REFUSE(w, "E07", part,
                          "unit column puts a cut at %lld, inside a head of %d columns; expected "
                          "%s",
                          (long long)cut, dim, part == PLAN_O ? "head" : "kv_group");
    }
    return OK;
}

/* Query heads are split in as many blocks as the attention's columns are. */
static enum status check_heads(const struct walk *w)
{
    const struct spread at = plan_attention(w->p, &w->l->choice[PLAN_QKV]);
    const int32_t n = spread_pieces(&w->p->mesh, &at, SPREAD_COLS);
    for (int32_t i = 0; i < model_config_kinds(w->m) && !w->p->kv_replication; i++) {
        const int32_t kv_heads = model_config_shape(w->m, i).kv_heads;
        const int64_t group = w->m->heads / kv_heads;
        if (n > kv_heads)
            return REFUSE(w, "E12", PLAN_QKV,
                          "%d KV heads on %d ranks must be copied; attention.kv_replication must "
                          "be auto",
                          kv_heads, n);
        for (int32_t x = 1; x < n; x++) {
            const int64_t head = placement_block(w->m->heads, n, x).begin;
            if (head % group != 0)
                return REFUSE(w, "E11", PLAN_QKV,
                              "query head %lld would be on another rank than its KV head %lld; "
                              "attention.kv_replication must be auto",
                              (long long)head, (long long)(head / group));
        }
    }
    return OK;
}

/* Attention must have rows to split, or sequences have no homes. */
static enum status check_homes(const struct walk *w)
{
    const struct spread at = plan_attention(w->p, &w->l->choice[PLAN_QKV]);
    char text[SPREAD_TEXT_MAX];
    if (!w->p->home || at.count[SPREAD_ROWS] > 0)
        return OK;
    return REFUSE(w, "E17", PLAN_QKV,
                  "attention.placement is home, but attention would be %s, where rows have no "
                  "homes; expected heads",
                  spread_text(&w->p->mesh, &at, text));
}

/* ---- the walk ---- */

static enum status refuse_partial(const struct walk *w, enum plan_part part, const struct spread *s,
                                  const char *op)
{
    char text[SPREAD_TEXT_MAX];
    if (s->partial == 0)
        return OK;
    return REFUSE(w, "E08", part, "gives %s, but %s needs whole sums",
                  spread_text(&w->p->mesh, s, text), op);
}

/* Applies the prepare entry of the module a parameter belongs to, if there is one. */
static enum status prepare(const struct walk *w, enum plan_part part, enum plan_use use,
                           struct spread *at)
{
    char module[PLAN_PATTERN_MAX], a[SPREAD_TEXT_MAX], b[SPREAD_TEXT_MAX];
    const char *name = w->l->name[part], *dot = strrchr(name, '.');
    const size_t n = dot ? (size_t)(dot - name) : strlen(name);
    if (n >= sizeof module)
        return OK;
    memcpy(module, name, n);
    module[n] = '\0';
    for (int32_t i = 0; i < w->p->rule_count; i++) {
        const struct plan_rule *r = &w->p->rules[i];
        if (r->use != use || !plan_matches(r->match, module) || spread_equal(&r->from, &r->to))
            continue;
        if (!spread_equal(&r->from, at))
            return base_fail(w->err, ERR_USAGE, "%s: E10 plan[%d] (%s): from is %s, but %s has %s",
                             w->p->where, r->entry, r->match, spread_text(&w->p->mesh, &r->from, a),
                             module, spread_text(&w->p->mesh, at, b));
        *at = r->to;
    }
    return OK;
}

static enum status linear(const struct walk *w, enum plan_part part, struct spread *at)
{
    const struct plan_choice *c = &w->l->choice[part];
    char a[SPREAD_TEXT_MAX], b[SPREAD_TEXT_MAX];
    if (c->style != STYLE_COLWISE && c->style != STYLE_ROWWISE && c->style != STYLE_LIN3D)
        return base_fail(w->err, ERR_USAGE,
                         "%s: %s cannot be %s, expected colwise, rowwise or lin3d", w->p->where,
                         w->l->name[part], plan_style_name(c->style));
    if (!spread_equal(&c->takes, at))
        return REFUSE(w, "E10", part, "%s takes %s, but gets %s", plan_style_name(c->style),
                      spread_text(&w->p->mesh, &c->takes, a), spread_text(&w->p->mesh, at, b));
    if (c->gathered && w->p->many == MANY_SUMMA)
        return REFUSE(w, "E16", part,
                      "weights are %s and linears of prefill summa, which hold "
                      "other shards; expected cached",
                      "gathered");
    *at = c->gives;
    return check_sizes(w, part);
}

static enum status norm(const struct walk *w, enum plan_part part, const struct spread *x)
{
    const enum style style = w->l->choice[part].style;
    char text[SPREAD_TEXT_MAX];
    if (style != STYLE_NORM && (style != STYLE_REPLICATE || x->count[SPREAD_COLS] > 0))
        return base_fail(w->err, ERR_USAGE, "%s: %s cannot be %s where x is %s, expected norm",
                         w->p->where, w->l->name[part], plan_style_name(style),
                         spread_text(&w->p->mesh, x, text));
    return OK;
}

static enum status add(const struct walk *w, enum plan_part part, const struct spread *x,
                       const struct spread *delta)
{
    char a[SPREAD_TEXT_MAX], b[SPREAD_TEXT_MAX];
    if (spread_equal(x, delta))
        return OK;
    return REFUSE(w, "E09", part, "gives %s, but the residual it is added to is %s",
                  spread_text(&w->p->mesh, delta, a), spread_text(&w->p->mesh, x, b));
}

/* Fused weights (Q with K with V, gate with up) are interleaved by the pieces their outputs end in,
 * so outputs may be cut further on their way but never joined. */
static enum status only_cut(const struct walk *w, enum plan_part part, const struct spread *at)
{
    const struct plan_choice *c = &w->l->choice[part];
    const int32_t n = c->weight.count[SPREAD_ROWS];
    char text[SPREAD_TEXT_MAX];
    if (at->count[SPREAD_COLS] >= n &&
        memcmp(at->axis[SPREAD_COLS], c->weight.axis[SPREAD_ROWS], (size_t)n) == 0)
        return OK;
    return REFUSE(w, "E10", part, "gives %s, which joins what its weight splits",
                  spread_text(&w->p->mesh, &c->gives, text));
}

/* Norm, linear, what happens between, linear, addition: attention and MLP alike. */
static enum status half(const struct walk *w, enum plan_part first, struct spread *x,
                        const char *between)
{
    enum status st = OK;
    const enum plan_part up = first + 1, down = first + 2;
    struct spread at = *x;
    TRY(norm(w, first, x));
    TRY(prepare(w, up, PLAN_PREPARE_IN, &at));
    TRY(linear(w, up, &at));
    TRY(refuse_partial(w, up, &at, between));
    TRY(only_cut(w, up, &at));
    TRY(linear(w, down, &at));
    TRY(prepare(w, down, PLAN_PREPARE_OUT, &at));
    TRY(refuse_partial(w, down, &at, "the residual sum and the norm after it"));
    TRY(add(w, down, x, &at));
out:
    return st;
}

static enum status vocabulary(const struct walk *w)
{
    const struct plan_choice *e = &w->l->choice[PLAN_EMBED], *h = &w->l->choice[PLAN_HEAD];
    if (e->style != STYLE_VOCAB || h->style != STYLE_VOCAB)
        return base_fail(w->err, ERR_USAGE, "%s: %s cannot be %s here, expected vocab", w->p->where,
                         w->l->name[e->style != STYLE_VOCAB ? PLAN_EMBED : PLAN_HEAD],
                         plan_style_name(e->style != STYLE_VOCAB ? e->style : h->style));
    if (w->m->tied && !spread_equal(&e->weight, &h->weight))
        return REFUSE(w, "E14", PLAN_HEAD,
                      "is tied to %s, which is split otherwise; both need one storage",
                      w->l->name[PLAN_EMBED]);
    return refuse_partial(w, PLAN_EMBED, &e->gives, "the norm after it");
}

/* Steps of many rows move weights over the grid that splits them: every linear and the table must
 * lie on the same two axes, of one size. */
static enum status check_grid(const struct walk *w)
{
    static const enum plan_part parts[] = {PLAN_EMBED, PLAN_QKV, PLAN_O, PLAN_GATE_UP, PLAN_DOWN};
    const struct mesh *m = &w->p->mesh;
    const struct spread *first = &w->l->choice[PLAN_EMBED].weight;
    for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
        const struct plan_choice *c = &w->l->choice[parts[i]];
        const int8_t out = c->weight.axis[c->back][0], in = c->weight.axis[!c->back][0];
        if (c->weight.count[SPREAD_ROWS] != 1 || c->weight.count[SPREAD_COLS] != 1 ||
            (c->style != STYLE_LIN3D && c->style != STYLE_VOCAB))
            return REFUSE(w, "E16", parts[i],
                          "%s holds no block of a grid, which summa in prefill needs; expected "
                          "lin3d, or vocab over one axis and hidden over another",
                          plan_style_name(c->style));
        if (m->axis[out].size != m->axis[in].size)
            return REFUSE(w, "E01", parts[i], "summa needs a square grid, not %d x %d",
                          m->axis[in].size, m->axis[out].size);
        if (out != first->axis[SPREAD_ROWS][0] || in != first->axis[SPREAD_COLS][0])
            return REFUSE(w, "E16", parts[i], "lies on other axes than %s; summa needs one grid",
                          w->l->name[PLAN_EMBED]);
    }
    return OK;
}

static enum status check_layer(const struct walk *w)
{
    enum status st = OK;
    struct spread x = w->l->choice[PLAN_EMBED].gives;
    TRY(half(w, PLAN_ATTN_NORM, &x, "rope and the KV cache"));
    TRY(half(w, PLAN_MLP_NORM, &x, "silu"));
    TRY(norm(w, PLAN_FINAL_NORM, &x));
out:
    return st;
}

enum status plan_check(const struct plan *p, const struct model_config *m, enum dtype dtype,
                       const struct plan_layer *layer, struct err *err)
{
    enum status st = OK;
    struct plan_layer prefill = *layer;
    const struct walk w = {p, m, layer, err}, many = {p, m, &prefill, err};
    if (p->fused_norm)
        return base_fail(
            err, ERR_USAGE,
            dtype == DTYPE_F16
                ? "%s: E19 a fused norm overflows with fp16 weights; norm must be plain"
                : "%s: phases.norm fused is not computed here; norm must be plain",
            p->where);
    TRY(vocabulary(&w));
    TRY(check_sizes(&w, PLAN_EMBED));
    TRY(check_layer(&w));
    TRY(check_heads(&w));
    TRY(check_homes(&w));
    TRY(check_sizes(&w, PLAN_HEAD));
    if (p->many == MANY_SUMMA)
        TRY(check_grid(&w));
    for (int32_t part = 0; part < PLAN_PARTS; part++)
        prefill.choice[part] = plan_many(p, &layer->choice[part]);
    TRY(check_layer(&many));
out:
    return st;
}
