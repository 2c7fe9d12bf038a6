/* DESIGN: the plan is read once into a short list of rules; binding walks parameters x rules, which
 * is a few thousand comparisons at start-up. Rejected: styles hard-wired in the model, because then
 * a layout would be code and could not be checked before a byte is read. */
#include "engine/parallel/plan.h"

#include "config/buf.h"
#include "config/file.h"
#include "engine/comm/comm.h"
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
} builtin[] = {
    {"1d", plan_builtin_1d}, {"1d_sp", plan_builtin_1d_sp},
    {"2d", plan_builtin_2d}, {"2.5d", plan_builtin_2p5d},
    {"3d", plan_builtin_3d}, {"3d_gathered", plan_builtin_3d_gathered},
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
    h = base_hash(h, &p->home, sizeof p->home);
    h = base_hash(h, &p->many, sizeof p->many);
    h = base_hash(h, &p->prefill_rows, sizeof p->prefill_rows);
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
    const struct file_spec f = {.path = path,
                                .what = "--plan ",
                                .bytes_max = file_max,
                                .failure = ERR_USAGE,
                                .pipes = true};
    char *text = NULL;
    size_t n = 0;
    enum status st = file_read(&f, &text, &n, err);
    if (st == OK)
        st = plan_open(text, n, path, ranks, out, err);
    free(text);
    return st;
}

/* Sizes from "1,4,2"; their number, -1 when a part is no number from 1 to 64. */
static int32_t read_sizes(const char *mesh, long sizes[MESH_AXES_MAX])
{
    int32_t n = 0;
    for (const char *at = mesh;; at++) {
        char *end;
        const long size = strtol(at, &end, 10);
        if (end == at || size < 1 || size > COMM_RANKS_MAX || (*end && *end != ','))
            return -1;
        if (n < MESH_AXES_MAX)
            sizes[n] = size;
        n++;
        at = end;
        if (!*at)
            return n;
    }
}

/* The text of a built-in plan with these sizes: its axes are the only members called so. */
static enum status resized(const char *text, const char *mode, const char *mesh, struct buf *out,
                           struct err *err)
{
    static const char key[] = "\"size\": ";
    long sizes[MESH_AXES_MAX];
    const int32_t count = read_sizes(mesh, sizes);
    int32_t axes = 0;
    for (const char *at = strstr(text, key); at; at = strstr(at + 1, key))
        axes++;
    if (count < 0)
        return base_fail(err, ERR_USAGE, "--mesh %s: expected numbers from 1 to 64, as 1,4,2",
                         mesh);
    if (count != axes)
        return base_fail(err, ERR_USAGE,
                         "--mesh %s: got %d sizes, expected %d, as layout %s has axes", mesh,
                         (int)count, (int)axes, mode);
    for (int32_t i = 0; i < axes; i++) {
        const char *at = strstr(text, key) + sizeof key - 1;
        buf_add(out, text, (size_t)(at - text));
        buf_printf(out, "%ld", sizes[i]);
        text = at + strcspn(at, "}");
    }
    buf_puts(out, text);
    return out->failed ? base_fail(err, ERR_NOMEM, "--mesh: no memory") : OK;
}

static enum status load_builtin(const char *mode, const char *text, const char *mesh, int32_t ranks,
                                struct plan **out, struct err *err)
{
    enum status st = OK;
    char where[64];
    struct buf b;
    snprintf(where, sizeof where, "built-in plan %s", mode);
    if (!mesh)
        return plan_open(text, strlen(text), where, ranks, out, err);
    buf_init(&b, file_max);
    TRY(resized(text, mode, mesh, &b, err));
    TRY(plan_open(b.data, b.len, where, ranks, out, err));
out:
    buf_free(&b);
    return st;
}

enum status plan_load(const char *mode, const char *mesh, const char *path, int32_t ranks,
                      struct plan **out, struct err *err)
{
    if (mesh && path)
        return base_fail(err, ERR_USAGE, "--mesh and --plan: a plan file has its own sizes");
    if (path)
        return load_file(path, ranks, out, err);
    for (size_t i = 0; i < ARRAY_LEN(builtin); i++)
        if (strcmp(mode, builtin[i].mode) == 0)
            return load_builtin(mode, builtin[i].text, mesh, ranks, out, err);
    return base_fail(err, ERR_USAGE,
                     "--parallel-mode %s: expected 1d, 1d_sp, 2d, 2.5d, 3d or "
                     "3d_gathered",
                     mode);
}

/* p becomes what its text says once `word` stands in it instead of the `old` bytes at `at`. */
static enum status edit(struct plan *p, const char *at, size_t old, const char *word,
                        struct err *err)
{
    enum status st = OK;
    struct plan *changed = NULL;
    struct buf b;
    buf_init(&b, file_max + 64);
    buf_add(&b, p->text, (size_t)(at - p->text));
    buf_printf(&b, "%s%s", word, at + old);
    if (b.failed) {
        st = base_fail(err, ERR_NOMEM, "%s: no memory", p->where);
        goto out;
    }
    TRY(plan_open(b.data, b.len, p->where, p->ranks, &changed, err));
    const struct plan before = *p;
    *p = *changed;
    *changed = before;
out:
    plan_close(changed);
    buf_free(&b);
    return st;
}

enum status plan_set_prefill_rows(struct plan *p, int32_t rows, struct err *err)
{
    static const char key[] = "\"prefill\": {"; /* as the built-in plans have it */
    const char *at = strstr(p->text, key);
    char word[32];
    if (!plan_has_prefill(p))
        return base_fail(err, ERR_USAGE, "--prefill-rows: %s has one form for steps of all sizes",
                         p->where);
    if (p->prefill_rows > 0 || !at)
        return base_fail(err, ERR_USAGE,
                         "--prefill-rows: %s says itself from how many rows on steps take its form "
                         "of many rows, in phases.prefill.rows",
                         p->where);
    snprintf(word, sizeof word, "\"rows\": %d, ", rows);
    return edit(p, at + sizeof key - 1, 0, word, err);
}

enum status plan_set_placement(struct plan *p, const char *placement, struct err *err)
{
    static const char key[] = "\"placement\": \""; /* likewise */
    const char *at = strstr(p->text, key);
    if (p->home == (strcmp(placement, "home") == 0))
        return OK;
    if (!at)
        return base_fail(err, ERR_USAGE,
                         "--kv-placement: %s does not say \"placement\": \"...\", written with one "
                         "blank; set attention.placement there",
                         p->where);
    at += sizeof key - 1;
    return edit(p, at, strcspn(at, "\""), placement, err);
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

bool plan_is_home(const struct plan *p)
{
    return p->home;
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

struct spread plan_found(const struct plan_choice *c)
{
    struct spread s = c->uses;
    for (int32_t i = 0; i < c->weight.count[SPREAD_ROWS]; i++)
        s = spread_partial(s, c->weight.axis[SPREAD_ROWS][i]);
    return s;
}

static struct spread at_home(const struct plan_choice *qkv)
{
    struct spread s = plan_product(qkv);
    for (int32_t axis = 0; axis < MESH_AXES_MAX; axis++)
        if (s.partial >> axis & 1)
            s = spread_shard(spread_copy(s, axis), SPREAD_ROWS, axis);
    return s;
}

struct spread plan_attention(const struct plan *p, const struct plan_choice *qkv)
{
    struct spread s = qkv->gives;
    if (p->home)
        return at_home(qkv);
    for (int32_t i = 0; i < qkv->gives.count[SPREAD_ROWS]; i++) {
        const int32_t axis = qkv->gives.axis[SPREAD_ROWS][i];
        s = spread_shard(spread_copy(s, axis), SPREAD_COLS, axis);
    }
    return s;
}

bool plan_has_prefill(const struct plan *p)
{
    return p->many != MANY_ALIKE;
}

bool plan_is_summa(const struct plan *p)
{
    return p->many == MANY_SUMMA;
}

int32_t plan_prefill_rows(const struct plan *p)
{
    return p->prefill_rows;
}

/* Rows by the axis that splits the inputs, columns by the one that splits the outputs, after what
 * splits rows anyway. */
static struct spread grid(const struct plan_choice *c, int8_t rows, int8_t cols)
{
    struct spread s = {0};
    for (int32_t i = 0; i < c->takes.count[SPREAD_ROWS]; i++)
        s = spread_shard(s, SPREAD_ROWS, c->takes.axis[SPREAD_ROWS][i]);
    return spread_shard(spread_shard(s, SPREAD_ROWS, rows), SPREAD_COLS, cols);
}

static struct plan_choice summa(const struct plan_choice *c)
{
    struct plan_choice s = *c;
    const int8_t out = c->weight.axis[SPREAD_ROWS][0], in = c->weight.axis[SPREAD_COLS][0];
    if (c->style == STYLE_VOCAB) {
        s.gives = grid(c, in, out);
    } else if (c->style == STYLE_LIN3D) {
        s.uses = grid(c, in, out); /* of direction out: the transposed grid */
        s.takes = s.gives = c->back ? grid(c, out, in) : s.uses;
    }
    return s;
}

/* Axes that cut columns further than the weight does cut rows instead: of the stream at rest. What
 * lies between two linears stays: as many bytes either way, and it is where the weights' blocks
 * are. */
static struct spread by_rows(struct spread s, struct spread weight, int32_t weight_dim)
{
    while (s.count[SPREAD_COLS] > weight.count[weight_dim]) {
        const int32_t axis = s.axis[SPREAD_COLS][s.count[SPREAD_COLS] - 1];
        s = spread_shard(spread_copy(s, axis), SPREAD_ROWS, axis);
    }
    return s;
}

static struct plan_choice scattered(const struct plan_choice *c)
{
    struct plan_choice s = *c;
    if (c->style == STYLE_VOCAB) {
        s.gives = by_rows(c->gives, c->weight, SPREAD_COLS);
    } else if (c->style == STYLE_LIN3D) {
        s.takes = c->back ? c->takes : by_rows(c->takes, c->weight, SPREAD_COLS);
        s.gives = c->back ? by_rows(c->gives, c->weight, SPREAD_ROWS) : c->gives;
    }
    return s;
}

struct plan_choice plan_many(const struct plan *p, const struct plan_choice *c)
{
    return p->many == MANY_SUMMA ? summa(c) : p->many == MANY_ROWS ? scattered(c) : *c;
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
