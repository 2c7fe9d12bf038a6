/* DESIGN: every schema in the schema becomes one rule, found by its place in the document, so that
 * references may go in circles and a schema that is used twice is there once. */
#include "server/grammar/json_schema.h"

#include "server/grammar/json_array.h"
#include "server/grammar/json_literal.h"
#include "server/grammar/json_names.h"
#include "server/grammar/json_number.h"
#include "server/grammar/json_object.h"
#include "server/grammar/json_patterns.h"
#include "server/grammar/json_scope.h"
#include "server/grammar/json_string.h"
#include "server/grammar/json_unique.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SCHEMAS_MAX = 4096, DEPTH_MAX = 64 };

#define FAIL(s, err, fmt, ...) JSON_SCOPE_FAIL(&(s)->in, err, fmt, __VA_ARGS__)

struct schema {
    struct json_scope in;
    struct {
        const struct jdoc *schema;
        int32_t rule;
    } known[SCHEMAS_MAX];
    int32_t known_count, depth;
};

static enum status rule_of(struct schema *s, const struct jdoc *v, int32_t *rule, struct err *err);

/* The rule of a schema that is a step further in the document. */
static enum status rule_below(struct schema *s, const char *keyword, const char *key,
                              const struct jdoc *v, int32_t *rule, struct err *err)
{
    const size_t here = json_scope_enter(&s->in, keyword, key);
    const enum status st = rule_of(s, v, rule, err);
    s->in.path.len = here;
    return st;
}

/* ---- numbers ---- */

static enum status read_bound(const struct schema *s, const struct jdoc *v, const char *keyword,
                              bool lower, bool exclusive, struct json_bound *out, struct err *err)
{
    const struct jdoc *n = jdoc_get(v, keyword);
    if (!n)
        return OK;
    if (jdoc_type(n) != JDOC_INT && jdoc_type(n) != JDOC_REAL)
        return FAIL(s, err, "%s must be a number", keyword);
    const double value = jdoc_number(n);
    if (lower ? value <= -JSON_NUMBER_END : value >= JSON_NUMBER_END)
        return OK; /* as all numbers are */
    const int64_t exact = (int64_t)1 << 53;
    if (jdoc_type(n) == JDOC_INT && (jdoc_int(n) > exact || jdoc_int(n) < -exact))
        return FAIL(s, err, "%s is beyond 2^53, which is not supported", keyword);
    const bool tighter = lower ? value > out->value : value < out->value;
    if (!out->set || tighter || (value == out->value && exclusive))
        *out = (struct json_bound){true, exclusive, value};
    return OK;
}

static enum status build_number(struct schema *s, const struct jdoc *v, bool integer,
                                int32_t *first, struct err *err)
{
    enum status st = OK;
    struct json_number n = {.integer = integer};
    struct err why;
    const struct jdoc *multiple = jdoc_get(v, "multipleOf");
    TRY(read_bound(s, v, "minimum", true, false, &n.lo, err));
    TRY(read_bound(s, v, "exclusiveMinimum", true, true, &n.lo, err));
    TRY(read_bound(s, v, "maximum", false, false, &n.hi, err));
    TRY(read_bound(s, v, "exclusiveMaximum", false, true, &n.hi, err));
    if (multiple)
        st = json_number_step(multiple, &n.step, &why);
    const bool any_step =
        n.step.factor == 0 || (integer && n.step.factor == 1 && n.step.exponent <= 0);
    *first = grammar_call(s->in.t.g, integer ? s->in.t.integer : s->in.t.number, GRAMMAR_END);
    if (st == OK && (n.lo.set || n.hi.set || !any_step))
        st = json_number_build(&s->in.t, &n, GRAMMAR_END, first, &why);
    if (st != OK)
        return json_scope_fail(&s->in, st, &why, err);
out:
    return st;
}

/* ---- arrays ---- */

static enum status build_prefix(struct schema *s, const struct jdoc *prefix, int32_t *rules,
                                struct err *err)
{
    enum status st = OK;
    char key[24];
    for (size_t i = 0; st == OK && i < jdoc_size(prefix); i++) {
        snprintf(key, sizeof key, "%zu", i);
        st = rule_below(s, "prefixItems", key, jdoc_at(prefix, i), &rules[i], err);
    }
    return st;
}

static enum status build_array(struct schema *s, const struct jdoc *v, int32_t *first,
                               struct err *err)
{
    enum status st = OK;
    struct json_elements e = {.max = -1, .item = s->in.t.value};
    const struct jdoc *items = jdoc_get(v, "items"), *prefix = jdoc_get(v, "prefixItems");
    const struct jdoc *unique = jdoc_get(v, "uniqueItems");
    int32_t *rules = NULL;
    TRY(json_scope_count(&s->in, v, "minItems", &e.min, err));
    TRY(json_scope_count(&s->in, v, "maxItems", &e.max, err));
    if (prefix && jdoc_type(prefix) != JDOC_ARRAY)
        return FAIL(s, err, "prefixItems must be a list, got %s",
                    jdoc_type_name(jdoc_type(prefix)));
    if (unique && jdoc_type(unique) != JDOC_BOOL)
        return FAIL(s, err, "%s", "uniqueItems must be true or false");
    if (items && jdoc_type(items) == JDOC_ARRAY)
        return FAIL(s, err, "%s", "items must be a schema; lists of them are prefixItems");
    if (items)
        TRY(rule_below(s, "items", NULL, items, &e.item, err));
    e.prefix_count = prefix ? (int64_t)jdoc_size(prefix) : 0;
    e.prefix = rules = calloc((size_t)e.prefix_count + 1, sizeof *rules);
    if (!rules)
        return base_fail(err, ERR_NOMEM, "no memory for a schema");
    if (prefix)
        TRY(build_prefix(s, prefix, rules, err));
    if (unique && jdoc_bool(unique) && (e.max < 0 || e.max > 1))
        TRY(json_unique_build(&s->in, v, e.min, e.max, first, err));
    else
        *first = json_array_build(&s->in.t, &e);
out:
    free(rules);
    return st;
}

/* ---- objects ---- */

/* Is the name one of the first n? */
static bool is_among(const struct jdoc *required, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(jdoc_string(jdoc_at(required, i)), name) == 0)
            return true;
    return false;
}

static enum status check_object(const struct schema *s, const struct jdoc *properties,
                                const struct jdoc *required, struct err *err)
{
    if (properties && jdoc_type(properties) != JDOC_OBJECT)
        return FAIL(s, err, "properties must be an object, got %s",
                    jdoc_type_name(jdoc_type(properties)));
    if (required && jdoc_type(required) != JDOC_ARRAY)
        return FAIL(s, err, "required must be a list, got %s", jdoc_type_name(jdoc_type(required)));
    for (size_t i = 0; required && i < jdoc_size(required); i++)
        if (jdoc_type(jdoc_at(required, i)) != JDOC_STRING ||
            strlen(jdoc_string(jdoc_at(required, i))) != jdoc_string_len(jdoc_at(required, i)))
            return FAIL(s, err, "%s", "required must be a list of names");
    return OK;
}

struct object {
    const struct jdoc *properties, *required;
    struct json_names names;
    struct json_patterns patterns;
    struct json_members all;
    struct json_member *list; /* those of `all` */
    bool again;               /* other names may be those of required members, too */
    int32_t value;            /* the rule of the values of all others; < 0: none */
};

static bool is_required(const struct object *o, const char *name)
{
    return is_among(o->required, o->required ? jdoc_size(o->required) : 0, name);
}

static enum status add_member(struct schema *s, struct object *o, const char *name, bool required,
                              struct err *err)
{
    o->list[o->all.count++] = (struct json_member){name, required, o->value};
    return json_names_check(&s->in, &o->names, name, err);
}

/* Names that propertyNames lists: each may be there once. */
static enum status list_names(struct schema *s, struct object *o, struct err *err)
{
    enum status st = OK;
    const int32_t before = o->all.count;
    const int64_t required = o->required ? (int64_t)jdoc_size(o->required) : 0;
    bool end = o->names.kind != JSON_NAMES_LISTED || o->value < 0;
    for (size_t i = 0; !end; i++) {
        const char *name = json_names_listed(&o->names, i, &end);
        bool known = !name || (o->properties && jdoc_get(o->properties, name));
        for (int32_t k = before; k < o->all.count && !known; k++)
            known = strcmp(o->list[k].name, name) == 0;
        TRY(json_scope_compare(&s->in, o->all.count - before + required, err));
        if (!known) /* and allowed, being listed */
            o->list[o->all.count++] = (struct json_member){name, is_required(o, name), o->value};
    }
out:
    return st;
}

/* A member that is required without being described. */
static enum status add_required(struct schema *s, struct object *o, const char *name, int32_t which,
                                struct err *err)
{
    enum status st = OK;
    if (which < 0 && o->value < 0)
        return FAIL(s, err, "\"%.64s\" is required, but is none of the properties", name);
    if (o->names.kind == JSON_NAMES_LISTED) /* is there already, or must not be */
        return json_names_check(&s->in, &o->names, name, err);
    TRY(add_member(s, o, name, true, err));
    if (which >= 0)
        o->list[o->all.count - 1].rule = o->patterns.list[which].value;
    o->again = o->again || which >= 0 || o->names.kind == JSON_NAMES_WRITTEN;
out:
    return st;
}

/* Members in the order of the document, then those that are required without being described. */
static enum status list_members(struct schema *s, struct object *o, struct err *err)
{
    enum status st = OK;
    const char *name;
    const struct jdoc *value;
    if (o->properties)
        for (void *i = jdoc_iter(o->properties, NULL, &name, &value); i;
             i = jdoc_iter(o->properties, i, &name, &value)) {
            TRY(add_member(s, o, name, is_required(o, name), err));
            TRY(rule_below(s, "properties", name, value, &o->list[o->all.count - 1].rule, err));
        }
    TRY(list_names(s, o, err));
    for (size_t i = 0; o->required && i < jdoc_size(o->required); i++) {
        name = jdoc_string(jdoc_at(o->required, i));
        if (!(o->properties && jdoc_get(o->properties, name)) && !is_among(o->required, i, name))
            TRY(add_required(s, o, name, o->patterns.of_required[i], err));
    }
out:
    return st;
}

/* Members by names that are not listed. */
static enum status build_others(struct schema *s, struct object *o, struct err *err)
{
    enum status st = OK;
    struct err why;
    struct grammar *g = s->in.t.g;
    if (o->patterns.count > 0)
        return json_patterns_build(&s->in, &o->patterns, &o->all.other, err);
    if (o->value < 0 || o->names.kind == JSON_NAMES_LISTED)
        return OK;
    if (o->names.kind == JSON_NAMES_ANY) {
        st = json_object_other(&s->in.t, o->list, o->all.count, o->value, &o->all.other, &why);
        return st == OK ? OK : json_scope_fail(&s->in, st, &why, err);
    }
    if (o->properties && jdoc_size(o->properties) > 0)
        return FAIL(s, err, "%s",
                    "propertyNames beside properties and additionalProperties is not supported, "
                    "but where it is an enum");
    const int32_t value = json_text_word(&s->in.t, ":", grammar_call(g, o->value, GRAMMAR_END));
    o->all.other = grammar_rule(g);
    grammar_define(g, o->all.other, grammar_call(g, o->names.rule, value));
    return OK;
}

/* How many there may be. Nothing in a grammar knows that a name was there before, so not more than
 * one of the least number may be left to names that are free. */
static enum status read_counts(const struct schema *s, const struct jdoc *v, struct object *o,
                               struct err *err)
{
    enum status st = OK;
    TRY(json_scope_count(&s->in, v, "minProperties", &o->all.min, err));
    TRY(json_scope_count(&s->in, v, "maxProperties", &o->all.max, err));
    int32_t required = 0;
    for (int32_t i = 0; i < o->all.count; i++)
        required += o->list[i].required;
    const bool unsaid = !jdoc_get(v, "additionalProperties") &&
                        !jdoc_get(v, "unevaluatedProperties") && o->patterns.count == 0;
    if (unsaid && o->all.other < 0 && o->names.kind != JSON_NAMES_LISTED &&
        o->all.min > o->all.count)
        return FAIL(s, err,
                    "minProperties is %lld, but members that can be written are %d: others only "
                    "where additionalProperties allows them",
                    (long long)o->all.min, o->all.count);
    if (o->all.other >= 0 && o->all.min - required > (o->again ? 0 : 1))
        return FAIL(s, err,
                    "minProperties of %lld is not supported beside %d required members: names "
                    "that are free may be written twice",
                    (long long)o->all.min, required);
out:
    return st;
}

static enum status build_members(struct schema *s, const struct jdoc *v, struct object *o,
                                 int32_t *first, struct err *err)
{
    enum status st = OK;
    struct err why;
    size_t most =
        (o->properties ? jdoc_size(o->properties) : 0) + (o->required ? jdoc_size(o->required) : 0);
    if (o->names.values && jdoc_type(o->names.values) == JDOC_ARRAY)
        most += jdoc_size(o->names.values);
    if (most > SCHEMAS_MAX)
        return FAIL(s, err, "it has more than %d members", SCHEMAS_MAX);
    o->all.list = o->list = calloc(most + 2, sizeof *o->list);
    if (!o->list)
        return base_fail(err, ERR_NOMEM, "no memory for a schema");
    TRY(list_members(s, o, err));
    TRY(build_others(s, o, err));
    TRY(read_counts(s, v, o, err));
    st = json_object_build(&s->in.t, &o->all, first, &why);
    if (st != OK)
        st = json_scope_fail(&s->in, st, &why, err);
out:
    free(o->list);
    return st;
}

/* The rules of values by names that match, and of all others. */
static enum status build_other_values(struct schema *s, const struct jdoc *v, struct object *o,
                                      struct err *err)
{
    enum status st = OK;
    const struct jdoc *additional = jdoc_get(v, "additionalProperties");
    const char *keyword = additional ? "additionalProperties" : "unevaluatedProperties";
    if (!additional) /* the same, as no other schema is about the members */
        additional = jdoc_get(v, keyword);
    o->value = o->properties || o->patterns.count > 0 ? -1 : s->in.t.value;
    if (additional && jdoc_type(additional) == JDOC_BOOL)
        o->value = jdoc_bool(additional) ? s->in.t.value : -1;
    else if (additional)
        TRY(rule_below(s, keyword, NULL, additional, &o->value, err));
    if (o->patterns.count > 0 && o->value >= 0)
        return FAIL(s, err, "%s",
                    "patternProperties are supported only where additionalProperties is false");
    for (int32_t i = 0; i < o->patterns.count; i++)
        TRY(rule_below(s, "patternProperties", o->patterns.list[i].text, o->patterns.list[i].schema,
                       &o->patterns.list[i].value, err));
out:
    return st;
}

static enum status build_object(struct schema *s, const struct jdoc *v, int32_t *first,
                                struct err *err)
{
    enum status st = OK;
    struct object o = {.properties = jdoc_get(v, "properties"),
                       .required = jdoc_get(v, "required"),
                       .all = {.other = -1, .max = -1}};
    TRY(check_object(s, o.properties, o.required, err));
    TRY(json_names_read(&s->in, jdoc_get(v, "propertyNames"), &o.names, err));
    TRY(json_patterns_open(&s->in, v, &o.patterns, err));
    if (o.patterns.count > 0 && o.names.kind != JSON_NAMES_ANY)
        st = FAIL(s, err, "%s", "propertyNames beside patternProperties is not supported");
    else
        TRY(build_other_values(s, v, &o, err));
    if (st == OK)
        st = build_members(s, v, &o, first, err);
out:
    json_patterns_close(&o.patterns);
    return st;
}

/* ---- any schema ---- */

static enum status build_values(struct schema *s, const struct jdoc *values, uint32_t types,
                                int32_t *first, struct err *err)
{
    if (jdoc_type(values) != JDOC_ARRAY || jdoc_size(values) == 0)
        return FAIL(s, err, "enum must be a list with at least one value, got %s",
                    jdoc_type_name(jdoc_type(values)));
    *first = GRAMMAR_NEVER;
    for (size_t i = jdoc_size(values); i-- > 0 && !grammar_failed(s->in.t.g);)
        if ((json_types_of_value(jdoc_at(values, i)) & types) != 0)
            *first = grammar_either(
                s->in.t.g, json_literal(&s->in.t, jdoc_at(values, i), GRAMMAR_END), *first);
    return OK;
}

static enum status build_type(struct schema *s, const struct jdoc *v, uint32_t type, int32_t *first,
                              struct err *err)
{
    switch ((enum json_type)type) {
    case JSON_OBJECT:
        return build_object(s, v, first, err);
    case JSON_ARRAY:
        return build_array(s, v, first, err);
    case JSON_STRING:
        return json_string_build(&s->in, v, first, err);
    case JSON_INTEGER:
        return build_number(s, v, true, first, err);
    case JSON_NUMBER:
        return build_number(s, v, false, first, err);
    case JSON_TRUTH:
        *first = grammar_either(s->in.t.g, grammar_text(s->in.t.g, "true", 4, GRAMMAR_END),
                                grammar_text(s->in.t.g, "false", 5, GRAMMAR_END));
        return OK;
    case JSON_NOTHING:
        *first = grammar_text(s->in.t.g, "null", 4, GRAMMAR_END);
        return OK;
    case JSON_ANY_TYPE:
        break;
    }
    return ERR_INTERNAL;
}

static enum status build_types(struct schema *s, const struct jdoc *v,
                               const struct json_keywords *k, int32_t *first, struct err *err)
{
    enum status st = OK;
    uint32_t types = k->types;
    *first = GRAMMAR_NEVER;
    if (types == JSON_ANY_TYPE && !k->others) {
        *first = grammar_call(s->in.t.g, s->in.t.value, GRAMMAR_END);
        return OK;
    }
    if ((types & JSON_NUMBER) != 0) /* of which integers are some */
        types &= ~(uint32_t)JSON_INTEGER;
    for (uint32_t type = 1; type < JSON_ANY_TYPE; type <<= 1) {
        int32_t one;
        if ((types & type) == 0)
            continue;
        TRY(build_type(s, v, type, &one, err));
        *first = grammar_either(s->in.t.g, one, *first);
    }
out:
    return st;
}

static enum status build_choice(struct schema *s, const struct jdoc *v, const char *keyword,
                                int32_t *first, struct err *err)
{
    enum status st = OK;
    char key[24];
    const struct jdoc *list = jdoc_get(v, keyword);
    if (jdoc_type(list) != JDOC_ARRAY || jdoc_size(list) == 0)
        return FAIL(s, err, "%s must be a list with at least one schema", keyword);
    const size_t n = jdoc_size(list);
    if (strcmp(keyword, "allOf") == 0 && n > 1)
        return FAIL(s, err, "allOf with %zu schemas is not supported, only with one", n);
    if (strcmp(keyword, "oneOf") == 0 && n > JSON_ALTERNATIVES_MAX)
        return FAIL(s, err, "oneOf has %zu schemas, at most are %d", n, JSON_ALTERNATIVES_MAX);
    size_t a, b;
    if (strcmp(keyword, "oneOf") == 0 && !json_are_apart(&s->in.search, list, &a, &b))
        return FAIL(s, err,
                    "oneOf: a value might fulfil both number %zu and number %zu; what tells them "
                    "apart must be their types, or a required member with other constants "
                    "(anyOf does without)",
                    a, b);
    *first = GRAMMAR_NEVER;
    for (size_t i = n; i-- > 0;) {
        int32_t rule;
        snprintf(key, sizeof key, "%zu", i);
        TRY(rule_below(s, keyword, key, jdoc_at(list, i), &rule, err));
        *first = grammar_either(s->in.t.g, grammar_call(s->in.t.g, rule, GRAMMAR_END), *first);
    }
out:
    return st;
}

/* Only nothing, as generators write it. */
static enum status build_not(struct schema *s, const struct jdoc *v, int32_t *first,
                             struct err *err)
{
    const bool all =
        jdoc_type(v) == JDOC_BOOL ? jdoc_bool(v) : jdoc_type(v) == JDOC_OBJECT && jdoc_size(v) == 0;
    if (!all)
        return FAIL(s, err, "%s", "not is not supported, but for not: {}, which nothing fulfils");
    *first = GRAMMAR_NEVER;
    return OK;
}

static enum status build_ref(struct schema *s, const struct jdoc *v, int32_t *first,
                             struct err *err)
{
    enum status st = OK;
    int32_t rule;
    const struct jdoc *target = json_ref(s->in.root, jdoc_get(v, "$ref"));
    if (!target)
        return FAIL(s, err, "%s", "$ref must name a part of this schema, as in #/$defs/name");
    TRY(rule_of(s, target, &rule, err));
    *first = grammar_call(s->in.t.g, rule, GRAMMAR_END);
out:
    return st;
}

static enum status build(struct schema *s, const struct jdoc *v, int32_t *first, struct err *err)
{
    enum status st = OK;
    struct err why;
    struct json_keywords k;
    if (jdoc_type(v) == JDOC_BOOL) {
        *first = jdoc_bool(v) ? grammar_call(s->in.t.g, s->in.t.value, GRAMMAR_END) : GRAMMAR_NEVER;
        return OK;
    }
    if (json_keywords_read(v, &k, &why) != OK)
        return FAIL(s, err, "%s", why.text);
    if (v != s->in.root && jdoc_get(v, "$id"))
        return FAIL(s, err, "%s", "$id within a schema is not supported, only at its beginning");
    if (k.leading && strcmp(k.leading, "$ref") == 0)
        return build_ref(s, v, first, err);
    if (k.leading && strcmp(k.leading, "enum") == 0)
        return build_values(s, jdoc_get(v, "enum"), k.types, first, err);
    if (k.leading && strcmp(k.leading, "const") == 0) {
        const bool fits = (json_types_of_value(jdoc_get(v, "const")) & k.types) != 0;
        *first = fits ? json_literal(&s->in.t, jdoc_get(v, "const"), GRAMMAR_END) : GRAMMAR_NEVER;
        return OK;
    }
    if (k.leading && strcmp(k.leading, "not") == 0)
        return build_not(s, jdoc_get(v, "not"), first, err);
    if (k.leading)
        return build_choice(s, v, k.leading, first, err);
    TRY(build_types(s, v, &k, first, err));
out:
    return st;
}

static enum status rule_of(struct schema *s, const struct jdoc *v, int32_t *rule, struct err *err)
{
    enum status st = OK;
    int32_t first;
    for (int32_t i = 0; i < s->known_count; i++)
        if (s->known[i].schema == v) {
            *rule = s->known[i].rule;
            return OK;
        }
    if (grammar_check(s->in.t.g, err) == ERR_NOMEM)
        return ERR_NOMEM;
    if (s->known_count == SCHEMAS_MAX || grammar_failed(s->in.t.g))
        return FAIL(s, err, "it is too large (more than %d schemas or %d states)", SCHEMAS_MAX,
                    GRAMMAR_NODES_MAX);
    if (s->depth == DEPTH_MAX)
        return FAIL(s, err, "it is the %dth schema within another", DEPTH_MAX + 1);
    *rule = grammar_rule(s->in.t.g);
    s->known[s->known_count].schema = v;
    s->known[s->known_count++].rule = *rule;
    s->depth++;
    TRY(build(s, v, &first, err));
    s->depth--;
    grammar_define(s->in.t.g, *rule, first);
out:
    return st;
}

enum status json_schema_build(const struct json_text *t, const struct jdoc *schema, int32_t *rule,
                              struct err *err)
{
    struct schema *s = calloc(1, sizeof *s);
    if (!s)
        return base_fail(err, ERR_NOMEM, "no memory for a schema");
    json_scope_open(&s->in, t, schema);
    const enum status st = rule_of(s, schema, rule, err);
    buf_free(&s->in.path);
    free(s);
    return st;
}
