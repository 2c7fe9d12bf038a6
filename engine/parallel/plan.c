/* DESIGN: the plan is read once into a short list of rules; binding walks parameters x rules, which
 * is a few thousand comparisons at start-up. Rejected: styles hard-wired in the model, because then
 * a layout would be code and could not be checked before a byte is read. */
#include "engine/parallel/plan.h"

#include "config/jdoc.h"
#include "engine/parallel/plan_builtin.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RULES_MAX = 64, PATTERN_MAX = 128 };

struct rule {
    char match[PATTERN_MAX];
    struct plan_choice choice;
    int32_t literals; /* characters that are not wildcards: the specificity */
};

struct plan {
    char where[128];
    int32_t ranks, rule_count;
    uint64_t hash;
    struct rule rules[RULES_MAX];
};

static const char *const style_names[] = {"colwise", "rowwise", "vocab", "norm"};
static const char *const unit_names[] = {"column", "head", "kv_group"};

const char *plan_style_name(enum style s)
{
    return style_names[s];
}

static int word_index(const char *const *names, size_t count, const char *word)
{
    for (size_t i = 0; word && i < count; i++)
        if (strcmp(names[i], word) == 0)
            return (int)i;
    return -1;
}

static const char *member(const struct jdoc *o, const char *key)
{
    const struct jdoc *v = jdoc_type(o) == JDOC_OBJECT ? jdoc_get_value(o, key) : NULL;
    return v && jdoc_type(v) == JDOC_STRING ? jdoc_string(v) : NULL;
}

/* Every key of an object must be one of `allowed` ("|a|b|"): nothing is read past in silence. */
static enum status check_keys(const struct jdoc *o, const char *allowed, const char *where,
                              struct err *err)
{
    const char *key = NULL;
    const struct jdoc *value = NULL;
    if (jdoc_type(o) != JDOC_OBJECT)
        return base_fail(err, ERR_USAGE, "%s: expected a JSON object", where);
    for (void *it = jdoc_iter(o, NULL, &key, &value); it; it = jdoc_iter(o, it, &key, &value)) {
        char word[64];
        snprintf(word, sizeof word, "|%.60s|", key);
        if (strchr(key, '|') || !strstr(allowed, word))
            return base_fail(err, ERR_USAGE, "%s: key \"%.60s\" is not known, expected one of %s",
                             where, key, allowed);
    }
    return OK;
}

/* `section`.`key`, when there, must be the one value this build computes with. */
static enum status check_only(const struct jdoc *doc, const char *section, const char *key,
                              const char *only, const struct plan *p, struct err *err)
{
    const struct jdoc *o = jdoc_get_value(doc, section);
    const struct jdoc *v = o && jdoc_type(o) == JDOC_OBJECT ? jdoc_get_value(o, key) : NULL;
    if (v && (jdoc_type(v) != JDOC_STRING || strcmp(jdoc_string(v), only) != 0))
        return base_fail(err, ERR_USAGE, "%s: %s.%s must be \"%s\"", p->where, section, key, only);
    return OK;
}

static enum status check_fixed(const struct jdoc *doc, const struct plan *p, struct err *err)
{
    enum status st = OK;
    const struct jdoc *attention = jdoc_get_value(doc, "attention");
    const struct jdoc *logits = jdoc_get_value(doc, "logits");
    TRY(check_keys(doc, "|version|mode|mesh|uneven|plan|attention|logits|", p->where, err));
    if (attention)
        TRY(check_keys(attention, "|placement|kv_replication|", p->where, err));
    if (logits)
        TRY(check_keys(logits, "|gather|dtype|", p->where, err));
    TRY(check_only(doc, "attention", "placement", "heads", p, err));
    TRY(check_only(doc, "attention", "kv_replication", "auto", p, err));
    TRY(check_only(doc, "logits", "gather", "full", p, err));
    TRY(check_only(doc, "logits", "dtype", "f32", p, err));
out:
    return st;
}

static enum status read_rule(const struct jdoc *entry, size_t i, struct plan *p, struct err *err)
{
    char where[192];
    snprintf(where, sizeof where, "%s: plan[%zu]", p->where, i);
    enum status st = check_keys(entry, "|match|style|unit|", where, err);
    if (st != OK)
        return st;
    const char *match = member(entry, "match"), *style = member(entry, "style");
    const char *unit = member(entry, "unit");
    if (!match || strlen(match) >= PATTERN_MAX)
        return base_fail(err, ERR_USAGE, "%s: plan[%zu]: match must be a pattern", p->where, i);
    int s = word_index(style_names, ARRAY_LEN(style_names), style);
    if (s < 0)
        return base_fail(
            err, ERR_USAGE,
            "%s: plan[%zu] (%s): style is %s, expected colwise, rowwise, vocab or norm", p->where,
            i, match, style ? style : "missing");
    int u = unit ? word_index(unit_names, ARRAY_LEN(unit_names), unit) : (int)UNIT_COLUMN;
    if (u < 0)
        return base_fail(err, ERR_USAGE,
                         "%s: plan[%zu] (%s): unit is %s, expected column, head or kv_group",
                         p->where, i, match, unit);
    struct rule *r = &p->rules[p->rule_count++];
    memcpy(r->match, match, strlen(match) + 1);
    r->choice = (struct plan_choice){(enum style)s, (enum unit)u};
    for (const char *c = match; *c; c++)
        r->literals += *c != '*';
    return OK;
}

/* One axis is enough for 1d; its size is a number or "ranks". */
static enum status read_mesh(const struct jdoc *doc, struct plan *p, struct err *err)
{
    const struct jdoc *mesh = jdoc_get_value(doc, "mesh");
    if (!mesh || jdoc_type(mesh) != JDOC_ARRAY || jdoc_size(mesh) != 1 ||
        jdoc_type(jdoc_at(mesh, 0)) != JDOC_OBJECT)
        return base_fail(err, ERR_USAGE, "%s: mesh must be a list with one axis", p->where);
    const struct jdoc *size = jdoc_get_value(jdoc_at(mesh, 0), "size");
    if (size && jdoc_type(size) == JDOC_STRING && strcmp(jdoc_string(size), "ranks") == 0)
        return OK;
    if (!size || jdoc_type(size) != JDOC_INT)
        return base_fail(err, ERR_USAGE, "%s: mesh size must be a number or \"ranks\"", p->where);
    if (jdoc_int(size) != p->ranks)
        return base_fail(err, ERR_USAGE, "%s: the mesh has %lld members, -tp says %d", p->where,
                         (long long)jdoc_int(size), p->ranks);
    return OK;
}

static enum status read_plan(const struct jdoc *doc, struct plan *p, struct err *err)
{
    if (jdoc_type(doc) != JDOC_OBJECT)
        return base_fail(err, ERR_USAGE, "%s: expected a JSON object", p->where);
    const struct jdoc *version = jdoc_get_value(doc, "version");
    if (!version || jdoc_type(version) != JDOC_INT || jdoc_int(version) != 1)
        return base_fail(err, ERR_USAGE, "%s: version must be 1", p->where);
    const char *mode = member(doc, "mode"), *uneven = member(doc, "uneven");
    if (!mode || strcmp(mode, "1d") != 0)
        return base_fail(err, ERR_USAGE, "%s: mode is %s, expected 1d", p->where,
                         mode ? mode : "missing");
    if (uneven && strcmp(uneven, "balanced") != 0)
        return base_fail(err, ERR_USAGE, "%s: uneven is %s, expected balanced", p->where, uneven);
    enum status st = check_fixed(doc, p, err);
    if (st == OK)
        st = read_mesh(doc, p, err);
    if (st != OK)
        return st;
    const struct jdoc *list = jdoc_get_value(doc, "plan");
    if (!list || jdoc_type(list) != JDOC_ARRAY || jdoc_size(list) > RULES_MAX)
        return base_fail(err, ERR_USAGE, "%s: plan must be a list of at most %d entries", p->where,
                         RULES_MAX);
    for (size_t i = 0; i < jdoc_size(list) && st == OK; i++)
        st = read_rule(jdoc_at(list, i), i, p, err);
    return st;
}

enum status plan_open(const char *text, size_t n, const char *where, int32_t ranks,
                      struct plan **out, struct err *err)
{
    struct jdoc *doc = NULL;
    struct plan *p = calloc(1, sizeof *p);
    if (!p)
        return base_fail(err, ERR_NOMEM, "%s: no memory", where);
    snprintf(p->where, sizeof p->where, "%s", where);
    p->ranks = ranks;
    enum status st = jdoc_parse(text, n, &jdoc_limits_config, where, &doc, err);
    if (st != OK)
        st = ERR_USAGE;
    else
        st = read_plan(doc, p, err);
    jdoc_close(doc);
    if (st != OK) {
        free(p);
        return st;
    }
    p->hash = base_hash(BASE_HASH_INIT, &ranks, sizeof ranks);
    for (int32_t i = 0; i < p->rule_count; i++) {
        p->hash = base_hash(p->hash, p->rules[i].match, strlen(p->rules[i].match));
        p->hash = base_hash(p->hash, &p->rules[i].choice, sizeof p->rules[i].choice);
    }
    *out = p;
    return OK;
}

enum status plan_load(const char *mode, const char *path, int32_t ranks, struct plan **out,
                      struct err *err)
{
    if (!path) {
        if (strcmp(mode, "1d") != 0)
            return base_fail(err, ERR_USAGE, "--parallel-mode %s: expected 1d", mode);
        return plan_open(plan_builtin_1d, plan_builtin_1d_size, "built-in plan 1d", ranks, out,
                         err);
    }
    static const size_t cap = 1u << 20;
    FILE *f = fopen(path, "re");
    if (!f)
        return base_fail_errno(err, ERR_USAGE, "--plan %s", path);
    char *text = malloc(cap);
    size_t n = text ? fread(text, 1, cap, f) : 0;
    fclose(f);
    enum status st = text ? plan_open(text, n, path, ranks, out, err)
                          : base_fail(err, ERR_NOMEM, "%s: no memory", path);
    free(text);
    return st;
}

void plan_close(struct plan *p)
{
    free(p);
}

int32_t plan_ranks(const struct plan *p)
{
    return p->ranks;
}

uint64_t plan_hash(const struct plan *p)
{
    return p->hash;
}

/* Component by component, so that `*` never crosses a dot. */
static bool matches(const char *pattern, const char *name)
{
    char a[PATTERN_MAX], b[PATTERN_MAX];
    for (;;) {
        size_t na = strcspn(pattern, "."), nb = strcspn(name, ".");
        if (na >= sizeof a || nb >= sizeof b)
            return false;
        memcpy(a, pattern, na);
        a[na] = '\0';
        memcpy(b, name, nb);
        b[nb] = '\0';
        if (fnmatch(a, b, FNM_NOESCAPE) != 0 || (pattern[na] == '.') != (name[nb] == '.'))
            return false;
        if (pattern[na] == '\0')
            return true;
        pattern += na + 1;
        name += nb + 1;
    }
}

enum status plan_bind(const struct plan *p, const char *const *names, int32_t count,
                      struct plan_choice *choices, struct err *err)
{
    bool used[RULES_MAX] = {false};
    for (int32_t i = 0; i < count; i++) {
        const struct rule *best = NULL, *tie = NULL;
        for (int32_t j = 0; j < p->rule_count; j++) {
            const struct rule *r = &p->rules[j];
            if (!matches(r->match, names[i]))
                continue;
            used[j] = true;
            if (best && r->literals == best->literals)
                tie = r;
            if (!best || r->literals > best->literals) {
                best = r;
                tie = NULL;
            }
        }
        if (!best)
            return base_fail(err, ERR_USAGE, "%s: no pattern matches parameter %s", p->where,
                             names[i]);
        if (tie)
            return base_fail(err, ERR_USAGE, "%s: %s and %s match parameter %s equally well",
                             p->where, best->match, tie->match, names[i]);
        choices[i] = best->choice;
    }
    for (int32_t j = 0; j < p->rule_count; j++)
        if (!used[j] && strcmp(p->rules[j].match, "lm_head") != 0) /* absent when tied */
            return base_fail(err, ERR_USAGE, "%s: pattern %s matches no parameter", p->where,
                             p->rules[j].match);
    return OK;
}
