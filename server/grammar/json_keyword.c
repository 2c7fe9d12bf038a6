#include "server/grammar/json_keyword.h"

#include <stdlib.h>
#include <string.h>

enum group { ANNOTATION, LEADING, TYPE, STRINGS, NUMBERS, ARRAYS, OBJECTS, REFUSED };

static const struct keyword {
    const char *name;
    enum group group;
} keywords[] = {
    {"$comment", ANNOTATION},
    {"$defs", ANNOTATION},
    {"$id", ANNOTATION},
    {"$schema", ANNOTATION},
    {"contentEncoding", ANNOTATION},
    {"contentMediaType", ANNOTATION},
    {"default", ANNOTATION},
    {"definitions", ANNOTATION},
    {"deprecated", ANNOTATION},
    {"description", ANNOTATION},
    {"discriminator", ANNOTATION}, /* OpenAPI's hint beside oneOf */
    {"example", ANNOTATION},
    {"examples", ANNOTATION},
    {"readOnly", ANNOTATION},
    {"title", ANNOTATION},
    {"writeOnly", ANNOTATION},
    {"$ref", LEADING},
    {"allOf", LEADING},
    {"anyOf", LEADING},
    {"const", LEADING},
    {"enum", LEADING},
    {"not", LEADING},
    {"oneOf", LEADING},
    {"type", TYPE},
    {"format", STRINGS},
    {"maxLength", STRINGS},
    {"minLength", STRINGS},
    {"pattern", STRINGS},
    {"exclusiveMaximum", NUMBERS},
    {"exclusiveMinimum", NUMBERS},
    {"maximum", NUMBERS},
    {"minimum", NUMBERS},
    {"multipleOf", NUMBERS},
    {"items", ARRAYS},
    {"maxItems", ARRAYS},
    {"minItems", ARRAYS},
    {"prefixItems", ARRAYS},
    {"uniqueItems", ARRAYS},
    {"additionalProperties", OBJECTS},
    {"maxProperties", OBJECTS},
    {"minProperties", OBJECTS},
    {"patternProperties", OBJECTS},
    {"properties", OBJECTS},
    {"propertyNames", OBJECTS},
    {"required", OBJECTS},
    {"unevaluatedProperties", OBJECTS},
    {"$dynamicRef", REFUSED},
    {"contains", REFUSED},
    {"dependentRequired", REFUSED},
    {"dependentSchemas", REFUSED},
    {"else", REFUSED},
    {"if", REFUSED},
    {"maxContains", REFUSED},
    {"minContains", REFUSED},
    {"then", REFUSED},
    {"unevaluatedItems", REFUSED},
};

static const struct {
    const char *name;
    enum json_type type;
} types[] = {
    {"object", JSON_OBJECT},   {"array", JSON_ARRAY},   {"string", JSON_STRING},
    {"integer", JSON_INTEGER}, {"number", JSON_NUMBER}, {"boolean", JSON_TRUTH},
    {"null", JSON_NOTHING},
};

static const struct keyword *find(const char *name)
{
    for (size_t i = 0; i < ARRAY_LEN(keywords); i++)
        if (strcmp(name, keywords[i].name) == 0)
            return &keywords[i];
    return NULL;
}

static const char *nearest(const char *name)
{
    const struct keyword *best = &keywords[0];
    for (size_t i = 1; i < ARRAY_LEN(keywords); i++)
        if (keywords[i].group != REFUSED &&
            base_edit_distance(name, keywords[i].name) < base_edit_distance(name, best->name))
            best = &keywords[i];
    return best->name;
}

static enum status unknown(const char *name, struct err *err)
{
    const char *known = nearest(name);
    if (base_edit_distance(name, known) > 3)
        return base_fail(err, ERR_INPUT, "%.64s is not known", name);
    return base_fail(err, ERR_INPUT, "%.64s is not known; did you mean %s?", name, known);
}

/* A keyword that asks for nothing, wherever it stands. */
static bool is_idle(const char *name, const struct jdoc *value)
{
    int64_t n;
    if (strcmp(name, "uniqueItems") == 0)
        return jdoc_type(value) == JDOC_BOOL && !jdoc_bool(value);
    return strcmp(name, "minProperties") == 0 && jdoc_whole(value, &n) && n == 0;
}

/* A string without NUL, behind which more could stand. */
static bool is_text(const struct jdoc *v)
{
    return jdoc_type(v) == JDOC_STRING && strlen(jdoc_string(v)) == jdoc_string_len(v);
}

static enum status read_type(const struct jdoc *type, uint32_t *out, struct err *err)
{
    const bool list = jdoc_type(type) == JDOC_ARRAY;
    const size_t n = list ? jdoc_size(type) : 1;
    *out = 0;
    for (size_t i = 0; i < n; i++) {
        const struct jdoc *one = list ? jdoc_at(type, i) : type;
        size_t t = 0;
        while (t < ARRAY_LEN(types) &&
               (!is_text(one) || strcmp(jdoc_string(one), types[t].name) != 0))
            t++;
        if (t == ARRAY_LEN(types))
            return base_fail(
                err, ERR_INPUT,
                "type must be object, array, string, integer, number, boolean, null or "
                "a list of these, got %.40s",
                jdoc_type(one) == JDOC_STRING ? jdoc_string(one) : jdoc_type_name(jdoc_type(one)));
        *out |= (uint32_t)types[t].type;
    }
    return OK;
}

/* Counts what v has of each group. */
static enum status count_groups(const struct jdoc *v, int32_t counts[REFUSED + 1],
                                struct json_keywords *out, struct err *err)
{
    const char *name;
    const struct jdoc *value;
    for (void *i = jdoc_iter(v, NULL, &name, &value); i; i = jdoc_iter(v, i, &name, &value)) {
        const struct keyword *k = find(name);
        if (!k && strncmp(name, "x-", 2) == 0)
            continue;
        if (!k)
            return unknown(name, err);
        if (is_idle(name, value))
            continue;
        if (k->group == REFUSED)
            return base_fail(err, ERR_INPUT, "%s is not supported", name);
        if (k->group == LEADING && out->leading)
            return base_fail(err, ERR_INPUT, "%s beside %s is not supported", name, out->leading);
        if (k->group == LEADING)
            out->leading = k->name;
        counts[k->group]++;
    }
    return OK;
}

static bool is_value(const char *leading)
{
    return strcmp(leading, "enum") == 0 || strcmp(leading, "const") == 0;
}

enum status json_keywords_read(const struct jdoc *v, struct json_keywords *out, struct err *err)
{
    enum status st = OK;
    int32_t counts[REFUSED + 1] = {0};
    *out = (struct json_keywords){.types = 0};
    if (jdoc_type(v) != JDOC_OBJECT)
        return base_fail(err, ERR_INPUT, "a schema must be an object, true or false, got %s",
                         jdoc_type_name(jdoc_type(v)));
    TRY(count_groups(v, counts, out, err));
    const bool others = counts[STRINGS] + counts[NUMBERS] + counts[ARRAYS] + counts[OBJECTS] > 0;
    out->others = others;
    out->typed = counts[TYPE] > 0;
    if (out->leading && (others || (counts[TYPE] > 0 && !is_value(out->leading))))
        return base_fail(err, ERR_INPUT, "other keywords beside %s are not supported",
                         out->leading);
    if (counts[TYPE] > 0)
        return read_type(jdoc_get(v, "type"), &out->types, err);
    out->types = (counts[STRINGS] > 0 ? JSON_STRING : 0u) |
                 (counts[NUMBERS] > 0 ? JSON_NUMBER : 0u) | (counts[ARRAYS] > 0 ? JSON_ARRAY : 0u) |
                 (counts[OBJECTS] > 0 ? JSON_OBJECT : 0u);
    if (out->types == 0)
        out->types = JSON_ANY_TYPE;
out:
    return st;
}

uint32_t json_types_of_value(const struct jdoc *v)
{
    int64_t whole;
    switch (jdoc_type(v)) {
    case JDOC_NULL:
        return JSON_NOTHING;
    case JDOC_BOOL:
        return JSON_TRUTH;
    case JDOC_INT:
        return JSON_INTEGER | JSON_NUMBER;
    case JDOC_REAL:
        return JSON_NUMBER | (jdoc_whole(v, &whole) ? JSON_INTEGER : 0u);
    case JDOC_STRING:
        return JSON_STRING;
    case JDOC_ARRAY:
        return JSON_ARRAY;
    case JDOC_OBJECT:
        return JSON_OBJECT;
    }
    return 0;
}

/* ---- references ---- */

/* The next name of a pointer, unescaped; where it ends. NULL: too long. */
static const char *next_name(const char *at, char *name, size_t max)
{
    size_t n = 0;
    for (; *at && *at != '/'; at++) {
        char c = *at;
        if (c == '~' && (at[1] == '0' || at[1] == '1'))
            c = *++at == '0' ? '~' : '/';
        if (n + 1 == max)
            return NULL;
        name[n++] = c;
    }
    name[n] = '\0';
    return at;
}

const struct jdoc *json_ref(const struct jdoc *root, const struct jdoc *ref)
{
    char name[256];
    if (!is_text(ref) || jdoc_string(ref)[0] != '#')
        return NULL;
    const char *at = jdoc_string(ref) + 1;
    while (root && *at == '/') {
        at = next_name(at + 1, name, sizeof name);
        if (!at)
            return NULL;
        if (jdoc_type(root) == JDOC_OBJECT) {
            root = jdoc_get(root, name);
        } else if (jdoc_type(root) == JDOC_ARRAY) {
            char *end;
            const unsigned long i = strtoul(name, &end, 10);
            root = name[0] >= '0' && name[0] <= '9' && !*end && i < jdoc_size(root)
                       ? jdoc_at(root, i)
                       : NULL;
        } else {
            root = NULL;
        }
    }
    return *at ? NULL : root;
}

/* ---- alternatives ---- */

enum { REFS_MAX = 16, VALUES_MAX = 64, MEMBERS_MAX = 64 }; /* that are looked at, */
enum { COMPARISONS_MAX = 1 << 24, REF_COST = 64 };         /* of a document (some 100 ms) */

struct json_search json_search(const struct jdoc *root)
{
    return (struct json_search){root, COMPARISONS_MAX};
}

/* False: there have been too many. */
static bool spend(struct json_search *s, int32_t comparisons)
{
    s->left -= s->left > 0 ? comparisons : 0;
    return s->left > 0;
}

static const struct jdoc *follow(struct json_search *s, const struct jdoc *v)
{
    for (int32_t i = 0; i < REFS_MAX && v && jdoc_type(v) == JDOC_OBJECT && jdoc_get(v, "$ref");
         i++)
        v = spend(s, REF_COST) ? json_ref(s->root, jdoc_get(v, "$ref")) : NULL;
    return v;
}

/* The values that a schema names, as a list or as one; NULL: it does not. */
static const struct jdoc *values_of(const struct jdoc *v)
{
    const struct jdoc *one = jdoc_type(v) == JDOC_OBJECT ? jdoc_get(v, "const") : NULL;
    const struct jdoc *many = jdoc_type(v) == JDOC_OBJECT ? jdoc_get(v, "enum") : NULL;
    return one ? one : many && jdoc_type(many) == JDOC_ARRAY ? many : NULL;
}

/* Is a string among them? */
static bool has(const struct jdoc *schema, const struct jdoc *text)
{
    const struct jdoc *values = values_of(schema);
    const bool list = jdoc_get(schema, "const") == NULL;
    for (size_t i = 0; i < (list ? jdoc_size(values) : 1); i++) {
        const struct jdoc *v = list ? jdoc_at(values, i) : values;
        if (jdoc_type(v) == JDOC_STRING && strcmp(jdoc_string(v), jdoc_string(text)) == 0)
            return true;
    }
    return false;
}

/* Do both name values, those of a being strings, and none that the other does? */
static bool values_are_apart(struct json_search *s, const struct jdoc *a, const struct jdoc *b)
{
    const struct jdoc *values = a && b ? values_of(a) : NULL;
    if (!values || !values_of(b))
        return false;
    const bool list = jdoc_get(a, "const") == NULL;
    const size_t n = list ? jdoc_size(values) : 1;
    if (n > VALUES_MAX || (!jdoc_get(b, "const") && jdoc_size(values_of(b)) > VALUES_MAX))
        return false;
    for (size_t i = 0; i < n; i++) {
        const struct jdoc *v = list ? jdoc_at(values, i) : values;
        if (jdoc_type(v) != JDOC_STRING || !spend(s, VALUES_MAX) || has(b, v))
            return false;
    }
    return true;
}

static bool requires(const struct jdoc *v, const char *name)
{
    const struct jdoc *required = jdoc_get(v, "required");
    const size_t n = required && jdoc_type(required) == JDOC_ARRAY ? jdoc_size(required) : 0;
    for (size_t i = 0; i < n && i < MEMBERS_MAX; i++)
        if (jdoc_type(jdoc_at(required, i)) == JDOC_STRING &&
            strcmp(jdoc_string(jdoc_at(required, i)), name) == 0)
            return true;
    return false;
}

static const struct jdoc *property(struct json_search *s, const struct jdoc *v, const char *name)
{
    const struct jdoc *properties = jdoc_get(v, "properties");
    if (!properties || jdoc_type(properties) != JDOC_OBJECT)
        return NULL;
    return follow(s, jdoc_get(properties, name));
}

/* Objects: does a member that both need tell them apart? */
static bool members_are_apart(struct json_search *s, const struct jdoc *a, const struct jdoc *b)
{
    const struct jdoc *properties = jdoc_get(a, "properties"), *value;
    const char *name;
    int32_t seen = 0;
    if (!properties || jdoc_type(properties) != JDOC_OBJECT)
        return false;
    for (void *i = jdoc_iter(properties, NULL, &name, &value); i && seen < MEMBERS_MAX;
         i = jdoc_iter(properties, i, &name, &value), seen++)
        if (spend(s, 2 * MEMBERS_MAX) && requires(a, name) && requires(b, name) &&
            values_are_apart(s, follow(s, value), property(s, b, name)))
            return true;
    return false;
}

/* One of the schemas, where its references lead. */
struct alternative {
    const struct jdoc *schema; /* NULL: it is none, or not supported */
    struct json_keywords keywords;
};

/* Of the values that fulfil it: keywords about one type say nothing of others. */
static uint32_t types_of(const struct alternative *a)
{
    return a->keywords.typed ? a->keywords.types : (uint32_t)JSON_ANY_TYPE;
}

static bool are_apart(struct json_search *s, const struct alternative *a,
                      const struct alternative *b)
{
    const uint32_t numbers = JSON_INTEGER | JSON_NUMBER;
    if (!a->schema || !b->schema)
        return false;
    if ((types_of(a) & types_of(b)) == 0 &&
        ((types_of(a) & numbers) == 0 || (types_of(b) & numbers) == 0))
        return true;
    if (values_are_apart(s, a->schema, b->schema))
        return true;
    /* here an object without `type` will be one, since nothing else is written */
    return a->keywords.types == JSON_OBJECT && b->keywords.types == JSON_OBJECT &&
           !a->keywords.leading && !b->keywords.leading &&
           members_are_apart(s, a->schema, b->schema);
}

bool json_are_apart(struct json_search *s, const struct jdoc *schemas, size_t *a, size_t *b)
{
    struct alternative all[JSON_ALTERNATIVES_MAX] = {{.schema = NULL}};
    const size_t n = jdoc_size(schemas);
    struct err err;
    for (size_t i = 0; i < n && i < JSON_ALTERNATIVES_MAX; i++) {
        const struct jdoc *v = follow(s, jdoc_at(schemas, i));
        const bool fine = v && json_keywords_read(v, &all[i].keywords, &err) == OK;
        all[i].schema = fine ? v : NULL;
    }
    for (*a = 0; *a < n; ++*a)
        for (*b = *a + 1; *b < n; ++*b)
            if (*b >= JSON_ALTERNATIVES_MAX || !are_apart(s, &all[*a], &all[*b]))
                return false;
    return true;
}

static bool is_object(struct json_search *s, const struct jdoc *schema, int32_t depth);

/* All that a choice allows, or the only one. */
static bool all_are_objects(struct json_search *s, const struct jdoc *list, int32_t depth)
{
    for (size_t i = 0; i < jdoc_size(list); i++)
        if (!is_object(s, jdoc_at(list, i), depth))
            return false;
    return jdoc_size(list) > 0;
}

/* depth: of choices within choices, which references may make endless. */
static bool is_object(struct json_search *s, const struct jdoc *schema, int32_t depth)
{
    struct err ignored;
    struct json_keywords k;
    const struct jdoc *v = depth < REFS_MAX ? follow(s, schema) : NULL;
    if (!v || !spend(s, COMPARISONS_MAX / 1024) || json_keywords_read(v, &k, &ignored) != OK)
        return false;
    if (!k.leading)
        return k.types == JSON_OBJECT;
    const struct jdoc *of = jdoc_get(v, k.leading);
    if (strcmp(k.leading, "const") == 0)
        return jdoc_type(of) == JDOC_OBJECT;
    if (jdoc_type(of) != JDOC_ARRAY)
        return false;
    if (strcmp(k.leading, "enum") != 0)
        return all_are_objects(s, of, depth + 1);
    for (size_t i = 0; i < jdoc_size(of); i++)
        if (jdoc_type(jdoc_at(of, i)) != JDOC_OBJECT)
            return false;
    return jdoc_size(of) > 0;
}

bool json_is_object(struct json_search *s, const struct jdoc *schema)
{
    return is_object(s, schema, 0);
}
