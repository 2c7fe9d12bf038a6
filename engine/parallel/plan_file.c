/* What a plan file says besides its entries (plan_entry.c): mesh, phases, and the sections whose
 * values are fixed. */
#include "engine/parallel/plan_rules.h"

#include <stdio.h>
#include <string.h>

static enum status read_axis(const struct jdoc *axis, int32_t i, struct plan *p, struct err *err)
{
    struct mesh_axis *a = &p->mesh.axis[i];
    char where[160];
    snprintf(where, sizeof where, "%s: mesh[%d]", p->where, i);
    enum status st = plan_read_keys(axis, "|name|size|", where, err);
    if (st != OK)
        return st;
    const char *name = plan_read_member(axis, "name");
    const struct jdoc *size = jdoc_get_value(axis, "size");
    if (!name || !*name || strlen(name) >= MESH_NAME_MAX || mesh_find(&p->mesh, name) >= 0)
        return base_fail(err, ERR_USAGE, "%s: name must be a new word of at most %d bytes", where,
                         MESH_NAME_MAX - 1);
    if (size && jdoc_type(size) == JDOC_STRING) {
        struct err inner = {""};
        if (mesh_size(jdoc_string(size), p->ranks, &a->size, &inner) != OK)
            return base_fail(err, ERR_USAGE, "%s: E01 axis %s: %s", where, name, inner.text);
    } else if (size && jdoc_type(size) == JDOC_INT && jdoc_int(size) >= 1 && jdoc_int(size) <= 64) {
        a->size = (int32_t)jdoc_int(size);
    } else {
        return base_fail(err, ERR_USAGE,
                         "%s: size must be a number from 1 to 64 or a word about ranks", where);
    }
    memcpy(a->name, name, strlen(name) + 1);
    p->mesh.axes = i + 1;
    return OK;
}

static enum status read_mesh(const struct jdoc *doc, struct plan *p, struct err *err)
{
    enum status st = OK;
    struct plan_at at = {.entry = doc, .plan = p};
    const struct jdoc *mesh = jdoc_get_value(doc, "mesh");
    const char *order;
    if (!mesh || jdoc_type(mesh) != JDOC_ARRAY || jdoc_size(mesh) < 1 ||
        jdoc_size(mesh) > MESH_AXES_MAX)
        return base_fail(err, ERR_USAGE, "%s: mesh must be a list of 1 to %d axes", p->where,
                         MESH_AXES_MAX);
    snprintf(at.where, sizeof at.where, "%s", p->where);
    TRY(plan_read_word(&at, doc, "rank_order", "|last-fastest|first-fastest|", "last-fastest",
                       &order, err));
    p->mesh.first_fastest = strcmp(order, "first-fastest") == 0;
    for (size_t i = 0; i < jdoc_size(mesh); i++)
        TRY(read_axis(jdoc_at(mesh, i), (int32_t)i, p, err));
    if (mesh_ranks(&p->mesh) != p->ranks)
        return base_fail(err, ERR_USAGE, "%s: E01 the mesh has %d members, -tp says %d", p->where,
                         mesh_ranks(&p->mesh), p->ranks);
out:
    return st;
}

/* One phase: what prefill or decode does other than the styles say. *attention and *norm are what
 * they are when it does not say. */
static enum status read_phase(const struct jdoc *phases, const char *name, struct plan *p,
                              const char **attention, const char **norm, struct err *err)
{
    enum status st = OK;
    struct plan_at at = {.plan = p};
    const struct jdoc *phase = jdoc_get_value(phases, name);
    const char *weights;
    snprintf(at.where, sizeof at.where, "%s: phases.%s", p->where, name);
    if (!phase)
        return OK;
    TRY(plan_read_keys(phase,
                       strcmp(name, "decode") == 0
                           ? "|weights|attention|norm|linears|"
                           : "|weights|attention|norm|linears|scatter|o_down|rows|",
                       at.where, err));
    TRY(plan_read_word(&at, phase, "weights", "|cached|", "cached", &weights, err));
    TRY(plan_read_word(&at, phase, "attention", "|heads|home|", *attention, attention, err));
    TRY(plan_read_word(&at, phase, "norm", "|plain|fused|", *norm, norm, err));
out:
    return st;
}

/* The form of steps of many rows. What summa needs of o_proj and down_proj is the transposed grid
 * of what decode holds: their activations change places, which the plan has to say. */
static enum status read_linears(const struct jdoc *phases, struct plan *p, struct err *err)
{
    enum status st = OK;
    const struct jdoc *prefill = jdoc_get_value(phases, "prefill");
    const struct jdoc *decode = jdoc_get_value(phases, "decode");
    const char *linears, *o_down, *scatter, *other = "stationary";
    struct plan_at at = {.plan = p};
    snprintf(at.where, sizeof at.where, "%s: phases", p->where);
    if (decode)
        TRY(plan_read_word(&at, decode, "linears", "|stationary|", "stationary", &other, err));
    if (!prefill)
        return OK;
    TRY(plan_read_word(&at, prefill, "linears", "|stationary|summa|", "stationary", &linears, err));
    TRY(plan_read_word(&at, prefill, "o_down", "|transpose|keep|", "keep", &o_down, err));
    TRY(plan_read_word(&at, prefill, "scatter", "|hidden|rows|", "hidden", &scatter, err));
    p->many = strcmp(linears, "summa") == 0  ? MANY_SUMMA
              : strcmp(scatter, "rows") == 0 ? MANY_ROWS
                                             : MANY_ALIKE;
    if (p->many == MANY_SUMMA && strcmp(scatter, "rows") == 0)
        return base_fail(err, ERR_USAGE, "%s: linears that are summa in prefill scatter nothing",
                         at.where);
    if (p->many == MANY_SUMMA && strcmp(o_down, "transpose") != 0)
        return base_fail(
            err, ERR_USAGE,
            "%s: E16 linears are summa in prefill and stationary in decode, which hold "
            "other shards of o_proj and down_proj; prefill must say o_down: transpose",
            at.where);
    const struct jdoc *rows = jdoc_get_value(prefill, "rows");
    if (rows && (jdoc_type(rows) != JDOC_INT || jdoc_int(rows) < 1 || jdoc_int(rows) > 1 << 30))
        return base_fail(err, ERR_USAGE, "%s: rows must be a number from 1 to 2^30", at.where);
    p->prefill_rows = rows ? (int32_t)jdoc_int(rows) : 0;
out:
    return st;
}

static enum status read_phases(const struct jdoc *doc, struct plan *p, struct err *err)
{
    enum status st = OK;
    const struct jdoc *phases = jdoc_get_value(doc, "phases");
    const struct jdoc *section = jdoc_get_value(doc, "attention");
    const char *said = section ? plan_read_member(section, "placement") : NULL;
    const char *placement = said ? said : "heads", *attention[2] = {placement, placement};
    const char *norm[2] = {"plain", "plain"};
    char where[160];
    p->home = strcmp(placement, "home") == 0;
    if (!phases)
        return OK;
    snprintf(where, sizeof where, "%s: phases", p->where);
    TRY(plan_read_keys(phases, "|prefill|decode|", where, err));
    TRY(read_phase(phases, "prefill", p, &attention[0], &norm[0], err));
    TRY(read_phase(phases, "decode", p, &attention[1], &norm[1], err));
    if (strcmp(attention[0], attention[1]) != 0)
        return base_fail(err, ERR_USAGE,
                         "%s: E17 attention is %s in prefill and %s in decode: it decides where "
                         "the KV cache lives, so both must agree",
                         where, attention[0], attention[1]);
    if (said && strcmp(attention[0], said) != 0)
        return base_fail(err, ERR_USAGE,
                         "%s: E17 attention is %s, attention.placement %s: it decides where the KV "
                         "cache lives, so both must agree",
                         where, attention[0], said);
    p->home = strcmp(attention[0], "home") == 0;
    TRY(read_linears(phases, p, err));
    p->fused_norm = strcmp(norm[0], "fused") == 0 || strcmp(norm[1], "fused") == 0;
out:
    return st;
}

/* Sections whose values this engine computes with one way; another value breaks a rule. */
static enum status read_fixed(const struct jdoc *doc, struct plan *p, struct err *err)
{
    static const struct {
        const char *section, *key, *allowed, *rule;
    } fixed[] = {
        {"attention", "placement", "|heads|home|", ""},
        {"attention", "kv_replication", "|auto|none|", ""},
        {"logits", "gather", "|full|", ""},
        {"logits", "dtype", "|f32|", "E22 logits travel unquantised: "},
        {"comm", "reduce_dtype", "|f32|", "E22 sums of squares and of products are fp32: "},
        {"comm", "wire_dtype", "|f32|", "E22 logits and sums travel unquantised: "},
    };
    enum status st = OK;
    const char *value;
    TRY(plan_read_keys(doc,
                       "|version|mode|mesh|rank_order|uneven|plan|attention|logits|phases|comm|",
                       p->where, err));
    for (size_t i = 0; i < ARRAY_LEN(fixed); i++) {
        const struct jdoc *o = jdoc_get_value(doc, fixed[i].section);
        struct plan_at at = {.plan = p};
        if (!o)
            continue;
        snprintf(at.where, sizeof at.where, "%s: %s", p->where, fixed[i].section);
        TRY(plan_read_keys(o,
                           *fixed[i].section == 'a'   ? "|placement|kv_replication|"
                           : *fixed[i].section == 'l' ? "|gather|dtype|"
                                                      : "|reduce_dtype|wire_dtype|",
                           at.where, err));
        snprintf(at.where, sizeof at.where, "%s: %s%s", p->where, fixed[i].rule, fixed[i].section);
        if (jdoc_get_value(o, fixed[i].key))
            TRY(plan_read_word(&at, o, fixed[i].key, fixed[i].allowed, NULL, &value, err));
    }
out:
    return st;
}

static enum status read_head(const struct jdoc *doc, struct plan *p, struct err *err)
{
    enum status st = OK;
    struct plan_at at = {.entry = doc, .plan = p};
    const struct jdoc *version = jdoc_get_value(doc, "version");
    const struct jdoc *attention = jdoc_get_value(doc, "attention");
    const char *mode, *uneven;
    snprintf(at.where, sizeof at.where, "%s", p->where);
    if (!version || jdoc_type(version) != JDOC_INT || jdoc_int(version) != 1)
        return base_fail(err, ERR_USAGE, "%s: version must be 1", p->where);
    TRY(plan_read_word(&at, doc, "mode", "|1d|1d_sp|2d|2.5d|3d|3d_gathered|custom|", NULL, &mode,
                       err));
    memcpy(p->mode, mode, strlen(mode) + 1);
    TRY(plan_read_word(&at, doc, "uneven", "|balanced|strict|pad|", "balanced", &uneven, err));
    if (strcmp(uneven, "pad") == 0)
        return base_fail(err, ERR_USAGE,
                         "%s: E15 padded vocabulary rows would be sampled unless masked; uneven "
                         "must be balanced or strict",
                         p->where);
    p->strict = strcmp(uneven, "strict") == 0;
    const char *kv = attention ? plan_read_member(attention, "kv_replication") : NULL;
    p->kv_replication = !kv || strcmp(kv, "none") != 0;
out:
    return st;
}

enum status plan_file_read(const struct jdoc *doc, struct plan *p, struct err *err)
{
    enum status st = OK;
    if (jdoc_type(doc) != JDOC_OBJECT)
        return base_fail(err, ERR_USAGE, "%s: expected a JSON object", p->where);
    TRY(read_head(doc, p, err));
    TRY(read_fixed(doc, p, err));
    TRY(read_mesh(doc, p, err));
    TRY(read_phases(doc, p, err));
    const struct jdoc *list = jdoc_get_value(doc, "plan");
    if (!list || jdoc_type(list) != JDOC_ARRAY || jdoc_size(list) > PLAN_RULES_MAX)
        return base_fail(err, ERR_USAGE, "%s: plan must be a list of at most %d entries", p->where,
                         PLAN_RULES_MAX);
    for (size_t i = 0; i < jdoc_size(list); i++)
        TRY(plan_entry_read(jdoc_at(list, i), i, p, err));
out:
    return st;
}
