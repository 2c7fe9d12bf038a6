/* DESIGN: an adapter that is added wrongly answers nearly as well as one that is added rightly, so
 * whatever it asks for that is not done here is refused by its key. */
#include "config/lora_config.h"

#include "config/reader.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* PEFT matches a key as a regular expression behind any number of dotted names: of those that are
 * names themselves this is what it finds (get_pattern_key). */
static bool is_of(const char *key, const char *module)
{
    const size_t n = strlen(key), m = strlen(module);
    if (n > m || (n < m && module[m - n - 1] != '.'))
        return false;
    for (size_t i = 0; i < n; i++)
        if (key[i] != module[m - n + i] && key[i] != '.') /* which stands for anything */
            return false;
    return true;
}

/* The first that fits, as there; NULL: none. */
static const struct jdoc *own(const struct jdoc *patterns, const char *module)
{
    const char *key;
    const struct jdoc *value;
    for (void *i = patterns ? jdoc_iter(patterns, NULL, &key, &value) : NULL; i;
         i = jdoc_iter(patterns, i, &key, &value))
        if (is_of(key, module))
            return value;
    return NULL;
}

/* Names, or the ends of names: PEFT leaves what is in the file of others out (check_target). */
bool lora_config_targets(const struct lora_config *c, const char *module)
{
    for (size_t i = 0; c->targets && i < jdoc_size(c->targets); i++) {
        const char *name = jdoc_string(jdoc_at(c->targets, i));
        const size_t n = strlen(name), m = strlen(module);
        if (n <= m && strcmp(module + m - n, name) == 0 && (n == m || module[m - n - 1] == '.'))
            return true;
    }
    return !c->targets;
}

int32_t lora_config_rank(const struct lora_config *c, const char *module)
{
    const struct jdoc *found = own(c->ranks, module);
    int64_t rank = c->rank;
    return found && jdoc_whole(found, &rank) ? (int32_t)rank : c->rank;
}

double lora_config_scale(const struct lora_config *c, const char *module)
{
    const struct jdoc *alpha = own(c->alphas, module);
    const double rank = lora_config_rank(c, module);
    return (alpha ? jdoc_number(alpha) : c->alpha) / (c->rank_stabilized ? sqrt(rank) : rank);
}

static bool is_name(const char *key)
{
    return *key && key[strcspn(key, "\\^$*+?()[]{}|")] == '\0';
}

static const struct jdoc *read_patterns(struct reader *r, const char *name, double max, bool whole)
{
    const struct jdoc *patterns = jdoc_get_value(r->object, name);
    struct reader inside = {r->where, patterns, r->err, r->st};
    const char *key;
    const struct jdoc *value;
    if (!patterns)
        return NULL;
    if (jdoc_type(patterns) != JDOC_OBJECT) {
        reader_fail(r, name, "an object");
        return NULL;
    }
    for (void *i = jdoc_iter(patterns, NULL, &key, &value); i;
         i = jdoc_iter(patterns, i, &key, &value)) {
        if (!is_name(key) && r->st == OK)
            r->st = base_fail(r->err, ERR_MODEL,
                              "%s: %s has \"%.60s\", expected names of modules (other expressions "
                              "are not supported)",
                              r->where, name, key);
        else if (whole)
            reader_int(&inside, key, 1, (int64_t)max, -1);
        else
            reader_number(&inside, key, -max, max, NAN);
    }
    r->st = r->st == OK ? inside.st : r->st;
    return patterns;
}

/* A list of names; NULL where an expression says which. */
static const struct jdoc *read_targets(struct reader *r)
{
    const struct jdoc *list = jdoc_get_value(r->object, "target_modules");
    if (!list || jdoc_type(list) == JDOC_STRING)
        return NULL;
    bool names = jdoc_type(list) == JDOC_ARRAY;
    for (size_t i = 0; names && i < jdoc_size(list); i++)
        names = jdoc_type(jdoc_at(list, i)) == JDOC_STRING;
    if (!names)
        reader_fail(r, "target_modules", "a string or a list of strings");
    return names ? list : NULL;
}

/* Starting points that are taken off the model itself, which an adapter then does not fit without:
 * all but these. */
static void check_start(struct reader *r)
{
    static const char *const harmless[] = {"gaussian", "eva", "orthogonal"};
    const struct jdoc *start = jdoc_get_value(r->object, "init_lora_weights");
    bool fine = !start || jdoc_type(start) == JDOC_BOOL;
    for (size_t i = 0; !fine && i < ARRAY_LEN(harmless); i++)
        fine = jdoc_type(start) == JDOC_STRING && strcmp(jdoc_string(start), harmless[i]) == 0;
    if (!fine)
        reader_fail(r, "init_lora_weights",
                    "true, false, \"gaussian\", \"eva\" or \"orthogonal\" (others change the model "
                    "itself, too: convert the adapter to plain LoRA)");
}

static void check_kind(struct reader *r)
{
    static const char *const flags[] = {"use_dora", "use_qalora", "use_bdlora", "lora_bias",
                                        "fan_in_fan_out"};
    static const char *const things[] = {
        "layer_replication", "alora_invocation_tokens", "trainable_token_indices", "arrow_config",
        "kasa_config",       "monteclora_config"};
    reader_expect(r, "peft_type", "LORA");
    for (size_t i = 0; i < ARRAY_LEN(flags); i++)
        if (reader_bool(r, flags[i], false))
            reader_fail(r, flags[i], "false (it is not supported)");
    for (size_t i = 0; i < ARRAY_LEN(things); i++)
        if (jdoc_get_value(r->object, things[i]))
            reader_fail(r, things[i], "null (it is not supported)");
    const struct jdoc *fused = jdoc_get_value(r->object, "target_parameters");
    if (fused && (jdoc_type(fused) != JDOC_ARRAY || jdoc_size(fused) > 0))
        reader_fail(r, "target_parameters",
                    "null or an empty list (experts that are one tensor cannot be adapted)");
    if (jdoc_get_value(r->object, "bias"))
        reader_expect(r, "bias", "none");
    check_start(r);
}

enum status lora_config_load(const char *dir, struct lora_config *out, struct err *err)
{
    char path[PATH_MAX];
    *out = (struct lora_config){.rank = 0};
    if (snprintf(path, sizeof path, "%s/" LORA_CONFIG_NAME, dir) >= (int)sizeof path)
        return base_fail(err, ERR_MODEL, "%.100s...: path too long", dir);
    const enum status st = jdoc_load(path, &out->root, err);
    if (st != OK)
        return st == ERR_NOMEM ? st : ERR_MODEL;
    struct reader r = {path, out->root, err, OK};
    if (jdoc_type(out->root) != JDOC_OBJECT)
        return base_fail(err, ERR_MODEL, "%s: expected a JSON object", path);
    check_kind(&r);
    out->targets = read_targets(&r);
    out->rank = reader_int(&r, "r", 1, LORA_CONFIG_RANK_MAX, -1);
    out->alpha = reader_number(&r, "lora_alpha", -1e6, 1e6, NAN);
    out->rank_stabilized = reader_bool(&r, "use_rslora", false);
    out->ranks = read_patterns(&r, "rank_pattern", LORA_CONFIG_RANK_MAX, true);
    out->alphas = read_patterns(&r, "alpha_pattern", 1e6, false);
    return r.st;
}

void lora_config_close(struct lora_config *c)
{
    jdoc_close(c->root);
    *c = (struct lora_config){.rank = 0};
}
