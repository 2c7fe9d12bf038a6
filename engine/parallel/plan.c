/* DESIGN: the plan is read once into a short list of rules; binding walks parameters x rules, which
 * is a few thousand comparisons at start-up. Rejected: styles hard-wired in the model, because then
 * a layout would be code and could not be checked before a byte is read. */
#include "engine/parallel/plan.h"

#include "engine/parallel/plan_builtin.h"
#include "engine/parallel/plan_rules.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const size_t file_max = 1u << 20;

static const struct {
    const char *mode;
    const char *text;
    const size_t *size;
} builtin[] = {
    {"1d", plan_builtin_1d, &plan_builtin_1d_size},
    {"1d_sp", plan_builtin_1d_sp, &plan_builtin_1d_sp_size},
};

static uint64_t hash_of(const struct plan *p)
{
    uint64_t h = base_hash(BASE_HASH_INIT, &p->mesh, sizeof p->mesh);
    h = base_hash(h, &p->ranks, sizeof p->ranks);
    for (int32_t i = 0; i < p->rule_count; i++) {
        const struct plan_rule *r = &p->rules[i];
        h = base_hash(h, r->match, strlen(r->match));
        h = base_hash(h, &r->use, sizeof r->use);
        h = base_hash(h, &r->choice, sizeof r->choice);
        h = base_hash(h, &r->from, sizeof r->from);
        h = base_hash(h, &r->to, sizeof r->to);
    }
    return h;
}

enum status plan_open(const char *text, size_t n, const char *where, int32_t ranks,
                      struct plan **out, struct err *err)
{
    enum status st = OK;
    struct jdoc *doc = NULL;
    struct plan *p = calloc(1, sizeof *p);
    if (!p)
        return base_fail(err, ERR_NOMEM, "%s: no memory", where);
    snprintf(p->where, sizeof p->where, "%s", where);
    p->ranks = ranks;
    p->text = strndup(text, n);
    if (!p->text) {
        st = base_fail(err, ERR_NOMEM, "%s: no memory", where);
        goto out;
    }
    st = jdoc_parse(text, n, &jdoc_limits_config, where, &doc, err);
    if (st != OK) {
        st = st == ERR_NOMEM ? st : ERR_USAGE;
        goto out;
    }
    TRY(plan_file_read(doc, p, err));
    p->hash = hash_of(p);
    *out = p;
    p = NULL;
out:
    jdoc_close(doc);
    plan_close(p);
    return st;
}

static enum status load_file(const char *path, int32_t ranks, struct plan **out, struct err *err)
{
    FILE *f = fopen(path, "re");
    if (!f)
        return base_fail_errno(err, ERR_USAGE, "--plan %s", path);
    char *text = malloc(file_max + 1);
    size_t n = text ? fread(text, 1, file_max + 1, f) : 0;
    bool failed = ferror(f) != 0;
    fclose(f);
    enum status st;
    if (!text)
        st = base_fail(err, ERR_NOMEM, "%s: no memory", path);
    else if (failed || n > file_max)
        st = base_fail(err, ERR_USAGE, "--plan %s: %s", path,
                       failed ? "cannot be read" : "more than 1 MiB");
    else
        st = plan_open(text, n, path, ranks, out, err);
    free(text);
    return st;
}

enum status plan_load(const char *mode, const char *path, int32_t ranks, struct plan **out,
                      struct err *err)
{
    char where[64];
    if (path)
        return load_file(path, ranks, out, err);
    for (size_t i = 0; i < ARRAY_LEN(builtin); i++) {
        if (strcmp(mode, builtin[i].mode) != 0)
            continue;
        snprintf(where, sizeof where, "built-in plan %s", mode);
        return plan_open(builtin[i].text, *builtin[i].size, where, ranks, out, err);
    }
    return base_fail(err, ERR_USAGE, "--parallel-mode %s: expected 1d or 1d_sp", mode);
}

void plan_close(struct plan *p)
{
    if (!p)
        return;
    free(p->text);
    free(p);
}

int32_t plan_ranks(const struct plan *p)
{
    return p->ranks;
}

const struct mesh *plan_mesh(const struct plan *p)
{
    return &p->mesh;
}

const char *plan_text(const struct plan *p)
{
    return p->text;
}

const char *plan_mode(const struct plan *p)
{
    return p->mode;
}

const char *plan_where(const struct plan *p)
{
    return p->where;
}

uint64_t plan_hash(const struct plan *p)
{
    return p->hash;
}

struct spread plan_product(const struct plan_choice *c)
{
    struct spread s = c->uses;
    for (int32_t i = 0; i < c->weight.count[SPREAD_COLS]; i++)
        s = spread_partial(spread_copy(s, c->weight.axis[SPREAD_COLS][i]),
                           c->weight.axis[SPREAD_COLS][i]);
    for (int32_t i = 0; i < c->weight.count[SPREAD_ROWS]; i++)
        s = spread_shard(s, SPREAD_COLS, c->weight.axis[SPREAD_ROWS][i]);
    return s;
}

bool plan_matches(const char *pattern, const char *name)
{
    char a[PLAN_PATTERN_MAX], b[PLAN_PATTERN_MAX];
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

/* Whether the rule means this parameter, or for a prepare entry the module it belongs to. */
static bool concerns(const struct plan_rule *r, const char *name)
{
    char module[PLAN_PATTERN_MAX];
    const char *dot = strrchr(name, '.');
    if (r->use == PLAN_PARAMETER)
        return plan_matches(r->match, name);
    snprintf(module, sizeof module, "%.*s", dot ? (int)(dot - name) : (int)strlen(name), name);
    return plan_matches(r->match, module);
}

static enum status bind_one(const struct plan *p, const char *name, bool *used,
                            struct plan_choice *choice, struct err *err)
{
    const struct plan_rule *best = NULL, *tie = NULL;
    for (int32_t j = 0; j < p->rule_count; j++) {
        const struct plan_rule *r = &p->rules[j];
        if (!concerns(r, name))
            continue;
        used[j] = true;
        if (r->use != PLAN_PARAMETER)
            continue;
        if (best && r->literals == best->literals)
            tie = r;
        if (!best || r->literals > best->literals) {
            best = r;
            tie = NULL;
        }
    }
    if (!best)
        return base_fail(err, ERR_USAGE, "%s: E04 no pattern matches parameter %s", p->where, name);
    if (tie)
        return base_fail(err, ERR_USAGE,
                         "%s: E03 plan[%d] (%s) and plan[%d] (%s) match parameter %s equally well",
                         p->where, best->entry, best->match, tie->entry, tie->match, name);
    *choice = best->choice;
    return OK;
}

enum status plan_find(const struct plan *p, const char *name, const struct plan_choice *fallback,
                      struct plan_choice *choice, struct err *err)
{
    bool used[PLAN_RULES_MAX] = {false};
    *choice = *fallback;
    for (int32_t j = 0; j < p->rule_count; j++)
        if (p->rules[j].use == PLAN_PARAMETER && concerns(&p->rules[j], name))
            return bind_one(p, name, used, choice, err);
    return OK;
}

enum status plan_bind(const struct plan *p, const char *const *names, int32_t count,
                      struct plan_choice *choices, struct err *err)
{
    bool used[PLAN_RULES_MAX] = {false};
    for (int32_t i = 0; i < count; i++) {
        enum status st = bind_one(p, names[i], used, &choices[i], err);
        if (st != OK)
            return st;
    }
    for (int32_t j = 0; j < p->rule_count; j++)
        if (!used[j] && strcmp(p->rules[j].match, "lm_head") != 0) /* absent when tied */
            return base_fail(err, ERR_USAGE, "%s: E02 plan[%d]: pattern %s matches no parameter",
                             p->where, p->rules[j].entry, p->rules[j].match);
    return OK;
}
