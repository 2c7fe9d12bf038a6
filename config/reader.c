#include "config/reader.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

void reader_fail(struct reader *r, const char *key, const char *wanted)
{
    if (r->st != OK)
        return;
    const struct jdoc *v = jdoc_get(r->object, key);
    char value[64] = "missing";
    if (v && jdoc_type(v) == JDOC_INT)
        snprintf(value, sizeof value, "%lld", (long long)jdoc_int(v));
    else if (v && jdoc_type(v) == JDOC_REAL)
        snprintf(value, sizeof value, "%g", jdoc_number(v));
    else if (v && jdoc_type(v) == JDOC_STRING)
        snprintf(value, sizeof value, "\"%.40s\"", jdoc_string(v));
    else if (v && jdoc_type(v) == JDOC_BOOL)
        snprintf(value, sizeof value, "%s", jdoc_bool(v) ? "true" : "false");
    else if (v)
        snprintf(value, sizeof value, "%s", jdoc_type_name(jdoc_type(v)));
    r->st = base_fail(r->err, ERR_MODEL, "%s: %s is %s, expected %s", r->where, key, value, wanted);
}

int32_t reader_int(struct reader *r, const char *key, int64_t min, int64_t max, int64_t fallback)
{
    char wanted[80];
    snprintf(wanted, sizeof wanted, "an integer from %lld to %lld", (long long)min, (long long)max);
    const struct jdoc *v = jdoc_get_value(r->object, key);
    if (!v) {
        if (fallback < 0)
            reader_fail(r, key, wanted);
        return (int32_t)fallback;
    }
    int64_t n;
    if (!jdoc_whole(v, &n) || n < min || n > max) {
        reader_fail(r, key, wanted);
        return (int32_t)min;
    }
    return (int32_t)n;
}

double reader_number(struct reader *r, const char *key, double min, double max, double fallback)
{
    char wanted[80];
    snprintf(wanted, sizeof wanted, "a number from %g to %g", min, max);
    const struct jdoc *v = jdoc_get_value(r->object, key);
    if (!v) {
        if (isnan(fallback))
            reader_fail(r, key, wanted);
        return fallback;
    }
    bool number = jdoc_type(v) == JDOC_INT || jdoc_type(v) == JDOC_REAL;
    double x = number ? jdoc_number(v) : NAN;
    if (!(x >= min && x <= max)) {
        reader_fail(r, key, wanted);
        return min;
    }
    return x;
}

bool reader_bool(struct reader *r, const char *key, bool fallback)
{
    const struct jdoc *v = jdoc_get_value(r->object, key);
    if (!v)
        return fallback;
    if (jdoc_type(v) != JDOC_BOOL) {
        reader_fail(r, key, "true or false");
        return fallback;
    }
    return jdoc_bool(v);
}

const char *reader_string(struct reader *r, const char *key)
{
    const struct jdoc *v = jdoc_get_value(r->object, key);
    if (v && jdoc_type(v) != JDOC_STRING) {
        reader_fail(r, key, "a string");
        return NULL;
    }
    return v ? jdoc_string(v) : NULL;
}

const struct jdoc *reader_enter(struct reader *r, const char *key)
{
    const struct jdoc *v = jdoc_get_value(r->object, key);
    if (!v || jdoc_type(v) != JDOC_OBJECT) {
        reader_fail(r, key, "an object");
        return NULL;
    }
    r->object = v;
    return v;
}

void reader_layers(struct reader *r, const struct jdoc *types, int32_t layers, const char *type,
                   uint32_t *bits)
{
    if (jdoc_type(types) != JDOC_ARRAY || jdoc_size(types) != (size_t)layers) {
        reader_fail(r, "layer_types", "a list of as many as num_hidden_layers");
        return;
    }
    for (int32_t i = 0; i < layers && r->st == OK; i++) {
        const struct jdoc *v = jdoc_at(types, (size_t)i);
        const char *is = jdoc_type(v) == JDOC_STRING ? jdoc_string(v) : "no string";
        if (strcmp(is, type) == 0)
            reader_set_layer(bits, i);
        else if (strcmp(is, "full_attention") != 0)
            r->st = base_fail(r->err, ERR_MODEL,
                              "%s: layer_types[%d] is %.40s, expected full_attention or %s",
                              r->where, i, is, type);
    }
}

void reader_expect(struct reader *r, const char *key, const char *value)
{
    const char *text = reader_string(r, key);
    char wanted[64];
    snprintf(wanted, sizeof wanted, "\"%s\"", value);
    if (!text || strcmp(text, value) != 0)
        reader_fail(r, key, wanted);
}

bool reader_is_null(const struct reader *r, const char *key)
{
    return jdoc_get(r->object, key) && !jdoc_get_value(r->object, key);
}
