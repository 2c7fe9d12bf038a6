/* DESIGN: one table says which keys each style has; a key that is not in it is an error, because a
 * key read past in silence is a layout other than the one written. Values that this engine does not
 * compute with are refused here, with the rule they break where there is one. */
#include "engine/parallel/plan_rules.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name, *keys;
} styles[] = {
    [STYLE_COLWISE] = {"colwise", "|match|style|axis|unit|input|output|"},
    [STYLE_ROWWISE] = {"rowwise", "|match|style|axis|unit|input|output|bias|"},
    [STYLE_VOCAB] = {"vocab", "|match|style|axis|vocab|hidden|rows|output|"},
    [STYLE_NORM] = {"norm", "|match|style|"},
    [STYLE_REPLICATE] = {"replicate", "|match|style|"},
    [STYLE_LIN3D] = {"lin3d", "|match|style|unit|dir|a|b|w|scatter|weights|"},
};
enum { PAIRWISE = STYLE_LIN3D + 1, PREPARE_IN, PREPARE_OUT, WORDS };
static const char *const words[WORDS] = {"colwise",  "rowwise",    "vocab",
                                         "norm",     "replicate",  "lin3d",
                                         "pairwise", "prepare_in", "prepare_out"};
static const char *const unit_names[] = {"column", "head", "kv_group"};

const char *plan_style_name(enum style s)
{
    return styles[s].name;
}

/* ---- axes and placements ---- */

/* The axis named by a member; `fallback` when absent (NULL: the mesh's only axis). */
static enum status axis_of(const struct plan_at *at, const char *key, const char *fallback,
                           int32_t *axis, struct err *err)
{
    const struct mesh *m = &at->plan->mesh;
    const struct jdoc *v = jdoc_get_value(at->entry, key);
    const char *name = v ? plan_read_member(at->entry, key) : fallback;
    if (!v && !fallback && m->axes == 1)
        name = m->axis[0].name;
    *axis = name ? mesh_find(m, name) : -1;
    if (*axis < 0)
        return base_fail(err, ERR_USAGE, "%s: E05 %s names axis %s, which the mesh does not have",
                         at->where, key, name ? name : "(none)");
    return OK;
}

/* Appends the axes of a member, a name or a list of names, outermost first. */
static enum status axes_of(const struct plan_at *at, const char *key, int32_t dim, struct spread *s,
                           struct err *err)
{
    const struct mesh *m = &at->plan->mesh;
    const struct jdoc *v = jdoc_get_value(at->entry, key);
    const size_t count = v && jdoc_type(v) == JDOC_ARRAY ? jdoc_size(v) : v ? 1 : 0;
    for (size_t i = 0; i < count; i++) {
        const struct jdoc *item = jdoc_type(v) == JDOC_ARRAY ? jdoc_at(v, i) : v;
        const char *name = jdoc_type(item) == JDOC_STRING ? jdoc_string(item) : "(not a name)";
        int32_t axis = mesh_find(m, name), d, place;
        if (axis < 0)
            return base_fail(err, ERR_USAGE,
                             "%s: E05 %s names axis %.40s, which the mesh does not have", at->where,
                             key, name);
        if (spread_along(s, axis, &d, &place) != SPREAD_COPY)
            return base_fail(err, ERR_USAGE, "%s: E18 axis %s splits the same tensor twice",
                             at->where, name);
        *s = spread_shard(*s, dim, axis);
    }
    return OK;
}

/* How the sum over the partial axes is handed on. */
static struct spread resolved(const struct mesh *m, struct spread s, const char *how)
{
    const uint8_t partial = s.partial;
    for (int32_t axis = 0; axis < m->axes && strcmp(how, "P") != 0; axis++) {
        if (!(partial >> axis & 1))
            continue;
        s = spread_copy(s, axis);
        if (strcmp(how, "S(0)") == 0)
            s = spread_shard(s, SPREAD_ROWS, axis);
        else if (strcmp(how, "S(1)") == 0)
            s = spread_shard(s, SPREAD_COLS, axis);
    }
    return s;
}

/* One placement per mesh axis, as DTensor writes them: "R", "S(0)", "S(1)", "P"; a single string
 * stands for a mesh of one axis. Two axes on one dimension need `order`. */
static enum status placements(const struct plan_at *at, const struct jdoc *v, struct spread *out,
                              struct err *err)
{
    static const char *const kinds[] = {"R", "S(0)", "S(1)", "P"};
    const struct mesh *m = &at->plan->mesh;
    const bool list = jdoc_type(v) == JDOC_ARRAY;
    struct spread s = {0};
    if ((list ? jdoc_size(v) : 1) != (size_t)m->axes)
        return base_fail(err, ERR_USAGE, "%s: %d placements are wanted, one per axis of the mesh",
                         at->where, m->axes);
    for (int32_t axis = 0; axis < m->axes; axis++) {
        const struct jdoc *item = list ? jdoc_at(v, (size_t)axis) : v;
        int kind = jdoc_type(item) == JDOC_STRING
                       ? plan_read_index(kinds, ARRAY_LEN(kinds), jdoc_string(item))
                       : -1;
        if (kind < 0)
            return base_fail(err, ERR_USAGE, "%s: a placement is R, S(0), S(1) or P", at->where);
        if (kind == 3)
            s = spread_partial(s, axis);
        else if (kind > 0)
            s = spread_shard(s, kind - 1, axis);
    }
    for (int32_t dim = 0; dim < SPREAD_DIMS; dim++)
        if (s.count[dim] > 1)
            return base_fail(err, ERR_USAGE,
                             "%s: E18 %d axes split dimension %d and their order is not said; use "
                             "\"rows\" and \"cols\" lists in a style instead",
                             at->where, s.count[dim], dim);
    *out = s;
    return OK;
}

/* ---- entries ---- */

static enum status read_colwise(const struct plan_at *at, struct plan_choice *c, struct err *err)
{
    enum status st = OK;
    const char *input, *output;
    int32_t axis;
    const struct spread copy = {0};
    TRY(axis_of(at, "axis", NULL, &axis, err));
    TRY(plan_read_word(at, at->entry, "input", "|R|S(0)|", "R", &input, err));
    TRY(plan_read_word(at, at->entry, "output", "|S(1)|R|", "S(1)", &output, err));
    c->weight = spread_shard(copy, SPREAD_ROWS, axis);
    c->takes = *input == 'R' ? copy : spread_shard(copy, SPREAD_ROWS, axis);
    c->gives = *output == 'R' ? copy : spread_shard(copy, SPREAD_COLS, axis);
out:
    return st;
}

static enum status read_rowwise(const struct plan_at *at, struct plan_choice *c, struct err *err)
{
    enum status st = OK;
    const char *input, *output, *bias;
    int32_t axis;
    const struct spread copy = {0};
    TRY(axis_of(at, "axis", NULL, &axis, err));
    TRY(plan_read_word(at, at->entry, "input", "|S(1)|R|", "S(1)", &input, err));
    TRY(plan_read_word(at, at->entry, "output", "|R|S(0)|S(1)|P|", "R", &output, err));
    TRY(plan_read_word(at, at->entry, "bias", "|after|each|", "after", &bias, err));
    if (strcmp(bias, "each") == 0)
        return base_fail(err, ERR_USAGE,
                         "%s: E13 a bias added by each coordinate before the sum counts %d times; "
                         "expected after",
                         at->where, at->plan->mesh.axis[axis].size);
    c->weight = c->uses = spread_shard(copy, SPREAD_COLS, axis);
    c->takes = *input == 'R' ? copy : c->uses;
    c->gives = resolved(&at->plan->mesh, spread_partial(copy, axis), output);
out:
    return st;
}

static enum status read_vocab(const struct plan_at *at, struct plan_choice *c, struct err *err)
{
    enum status st = OK;
    const char *output;
    int32_t axis;
    struct spread s = {0};
    if (jdoc_get_value(at->entry, "vocab")) {
        TRY(axes_of(at, "vocab", SPREAD_ROWS, &s, err));
        TRY(axes_of(at, "hidden", SPREAD_COLS, &s, err));
    } else {
        TRY(axis_of(at, "axis", NULL, &axis, err));
        s = spread_shard(s, SPREAD_ROWS, axis);
    }
    TRY(plan_read_word(at, at->entry, "output", "|R|S(0)|S(1)|P|", "R", &output, err));
    c->weight = c->uses = s;
    for (int32_t i = 0; i < s.count[SPREAD_ROWS]; i++)
        c->uses = spread_copy(c->uses, s.axis[SPREAD_ROWS][i]);
    struct spread found = plan_found(c);
    TRY(axes_of(at, "rows", SPREAD_ROWS, &c->takes, err));
    for (int32_t i = 0; i < c->takes.count[SPREAD_ROWS]; i++) {
        const int32_t by = c->takes.axis[SPREAD_ROWS][i];
        found = spread_shard(spread_copy(found, by), SPREAD_ROWS, by);
    }
    c->gives = resolved(&at->plan->mesh, found, output);
out:
    return st;
}

/* Rows of w stay where they are. Direction out is in with a and b exchanged: what one linear leaves
 * is what the other takes. */
static enum status read_lin3d(const struct plan_at *at, struct plan_choice *c, struct err *err)
{
    enum status st = OK;
    const char *dir, *scatter, *weights;
    int32_t a, b, w = -1;
    struct spread rows = {0};
    TRY(plan_read_word(at, at->entry, "dir", "|in|out|", NULL, &dir, err));
    TRY(plan_read_word(at, at->entry, "scatter", "|hidden|rows|", "hidden", &scatter, err));
    TRY(plan_read_word(at, at->entry, "weights", "|cached|gathered|", "cached", &weights, err));
    TRY(axis_of(at, "a", "a", &a, err));
    TRY(axis_of(at, "b", "b", &b, err));
    if (jdoc_get_value(at->entry, "w"))
        TRY(axis_of(at, "w", NULL, &w, err));
    if (a == b || a == w || b == w)
        return base_fail(err, ERR_USAGE, "%s: E18 a, b and w must be different axes", at->where);
    c->gathered = strcmp(weights, "gathered") == 0;
    c->over = c->gathered ? (int8_t)w : 0;
    if (c->gathered && w < 0)
        return base_fail(err, ERR_USAGE, "%s: E05 weights are gathered over w, which is not named",
                         at->where);
    c->back = strcmp(dir, "out") == 0;
    if (c->back) {
        int32_t swap = a;
        a = b;
        b = swap;
    }
    if (w >= 0)
        rows = spread_shard(rows, SPREAD_ROWS, w);
    const int32_t dim = strcmp(scatter, "rows") == 0 ? SPREAD_ROWS : SPREAD_COLS;
    c->weight = spread_shard(spread_shard((struct spread){0}, SPREAD_ROWS, a), SPREAD_COLS, b);
    c->uses = spread_shard(rows, SPREAD_COLS, b);
    c->takes = spread_shard(c->uses, dim, a);
    c->gives = spread_shard(spread_shard(rows, SPREAD_COLS, a), dim, b);
out:
    return st;
}

static enum status read_unit(const struct plan_at *at, struct plan_choice *c, struct err *err)
{
    const struct jdoc *v = jdoc_get_value(at->entry, "unit");
    const char *name = plan_read_member(at->entry, "unit");
    int u = v ? plan_read_index(unit_names, ARRAY_LEN(unit_names), name) : (int)UNIT_COLUMN;
    if (u < 0)
        return base_fail(err, ERR_USAGE, "%s: unit is %s, expected column, head or kv_group",
                         at->where, name ? name : "not a word");
    c->unit = (enum unit)u;
    return OK;
}

static enum status read_style(const struct plan_at *at, enum style style, struct plan_choice *out,
                              struct err *err)
{
    enum status st = OK;
    struct plan_choice c = {.style = style};
    TRY(plan_read_keys(at->entry, styles[style].keys, at->where, err));
    TRY(read_unit(at, &c, err));
    if (style == STYLE_COLWISE)
        TRY(read_colwise(at, &c, err));
    else if (style == STYLE_ROWWISE)
        TRY(read_rowwise(at, &c, err));
    else if (style == STYLE_VOCAB)
        TRY(read_vocab(at, &c, err));
    else if (style == STYLE_LIN3D)
        TRY(read_lin3d(at, &c, err));
    *out = c;
out:
    return st;
}

static enum status add_rule(const struct plan_at *at, const char *match, const char *child,
                            int32_t entry, struct plan_rule rule, struct err *err)
{
    struct plan *p = at->plan;
    if (p->rule_count == PLAN_RULES_MAX)
        return base_fail(err, ERR_USAGE, "%s: plan must be a list of at most %d entries", p->where,
                         PLAN_RULES_MAX);
    int n = snprintf(rule.match, sizeof rule.match, "%s%s%s", match, child ? "." : "",
                     child ? child : "");
    if (n < 0 || (size_t)n >= sizeof rule.match)
        return base_fail(err, ERR_USAGE, "%s: match must be a pattern", at->where);
    rule.entry = entry;
    for (const char *c = rule.match; *c; c++)
        rule.literals += *c != '*';
    p->rules[p->rule_count++] = rule;
    return OK;
}

/* The pair in one entry: `first` split by columns, `second` by rows. */
static enum status read_pairwise(const struct plan_at *at, const char *match, int32_t entry,
                                 struct err *err)
{
    enum status st = OK;
    struct plan_rule first = {.choice.style = STYLE_COLWISE}, second = first;
    const char *a = plan_read_member(at->entry, "first"),
               *b = plan_read_member(at->entry, "second");
    second.choice.style = STYLE_ROWWISE;
    TRY(plan_read_keys(at->entry, "|match|style|axis|first|second|", at->where, err));
    if (!a || !b)
        return base_fail(err, ERR_USAGE, "%s: pairwise names its two linears, first and second",
                         at->where);
    TRY(read_colwise(at, &first.choice, err));
    TRY(read_rowwise(at, &second.choice, err));
    TRY(add_rule(at, match, a, entry, first, err));
    TRY(add_rule(at, match, b, entry, second, err));
out:
    return st;
}

/* One element per input of the module, null: untouched. Modules here have one matrix. */
static enum status read_prepare(const struct plan_at *at, const char *match, int32_t entry,
                                enum plan_use use, struct err *err)
{
    enum status st = OK;
    struct plan_rule r = {.use = use};
    const struct jdoc *from = jdoc_get_value(at->entry, "from");
    const struct jdoc *to = jdoc_get_value(at->entry, "to");
    TRY(plan_read_keys(at->entry, "|match|style|from|to|", at->where, err));
    if (!from || !to || jdoc_type(from) != JDOC_ARRAY || jdoc_type(to) != JDOC_ARRAY ||
        jdoc_size(from) != jdoc_size(to) || jdoc_size(from) == 0)
        return base_fail(err, ERR_USAGE,
                         "%s: from and to are lists of equal length, one element "
                         "per matrix, null for one that stays as it is",
                         at->where);
    for (size_t i = 0; i < jdoc_size(from); i++) {
        const bool none = jdoc_type(jdoc_at(from, i)) == JDOC_NULL;
        if (none != (jdoc_type(jdoc_at(to, i)) == JDOC_NULL))
            return base_fail(err, ERR_USAGE, "%s: element %zu is null on one side only", at->where,
                             i);
        if (none)
            continue;
        if (i > 0)
            return base_fail(err, ERR_USAGE, "%s: element %zu: the module has one matrix",
                             at->where, i);
        TRY(placements(at, jdoc_at(from, i), &r.from, err));
        TRY(placements(at, jdoc_at(to, i), &r.to, err));
    }
    TRY(add_rule(at, match, NULL, entry, r, err));
out:
    return st;
}

enum status plan_entry_read(const struct jdoc *entry, size_t i, struct plan *p, struct err *err)
{
    struct plan_at at = {.entry = entry, .plan = p};
    snprintf(at.where, sizeof at.where, "%s: plan[%zu]", p->where, i);
    if (jdoc_type(entry) != JDOC_OBJECT)
        return base_fail(err, ERR_USAGE, "%s: expected a JSON object", at.where);
    const char *match = plan_read_member(entry, "match"), *style = plan_read_member(entry, "style");
    if (!match || !*match || strlen(match) >= PLAN_PATTERN_MAX)
        return base_fail(err, ERR_USAGE, "%s: match must be a pattern", at.where);
    snprintf(at.where, sizeof at.where, "%s: plan[%zu] (%s)", p->where, i, match);
    if (jdoc_get(entry, "when"))
        return base_fail(err, ERR_USAGE,
                         "%s: E23 a condition would keep some ranks out of a collective; every "
                         "member takes part, with empty blocks if need be",
                         at.where);
    int w = plan_read_index(words, WORDS, style);
    if (w < 0)
        return base_fail(err, ERR_USAGE,
                         "%s: style is %s, expected colwise, rowwise, vocab, norm, replicate, "
                         "lin3d, pairwise, prepare_in or prepare_out",
                         at.where, style ? style : "missing");
    if (w == PAIRWISE)
        return read_pairwise(&at, match, (int32_t)i, err);
    if (w == PREPARE_IN || w == PREPARE_OUT)
        return read_prepare(&at, match, (int32_t)i,
                            w == PREPARE_IN ? PLAN_PREPARE_IN : PLAN_PREPARE_OUT, err);
    struct plan_rule r = {.use = PLAN_PARAMETER};
    enum status st = read_style(&at, (enum style)w, &r.choice, err);
    return st == OK ? add_rule(&at, match, NULL, (int32_t)i, r, err) : st;
}
