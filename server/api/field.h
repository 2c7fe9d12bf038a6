/* The validation of request fields: one row per field says its type, its range and its default, and
 * one function applies the rows. What a row does not allow cannot reach the engine. Pure. */
#ifndef TESSERA_SERVER_API_FIELD_H
#define TESSERA_SERVER_API_FIELD_H

#include "config/base.h"
#include "config/jdoc.h"
#include "server/api/api_error.h"

enum field_kind {
    FIELD_INT,    /* integral floats are accepted; stored as int64_t */
    FIELD_NUMBER, /* finite; stored as double */
    FIELD_BOOL,
    FIELD_STRING, /* stored as const char *, borrowed from the document */
    FIELD_ARRAY,  /* arrays and objects: stored as const struct jdoc * */
    FIELD_OBJECT,
    FIELD_ANY, /* checked elsewhere; stored as const struct jdoc *, NULL when absent */
};

enum field_use {
    FIELD_USED,        /* stored */
    FIELD_IGNORED,     /* has no effect on the answer; any value is fine */
    FIELD_UNSUPPORTED, /* 400 unless absent, null or neutral */
};

struct field {
    const char *name;
    enum field_kind kind;
    enum field_use use;
    /* FIELD_INT */
    int64_t int_min, int_max;
    /* FIELD_NUMBER */
    double min, max;
    bool above_min; /* min itself is refused */
    /* FIELD_UNSUPPORTED: the value that asks for nothing. Numbers and booleans: this one (NaN:
     * there is none). Strings, arrays and objects: the empty one. */
    double neutral;
    /* FIELD_USED: where in the target. The target holds the default already. */
    size_t offset;
};

/* The row of a name, NULL when there is none. */
const struct field *field_find(const struct field *rows, size_t count, const char *name);
/* Checks a value (not null) against its row and stores it into target. ERR_INPUT with the field's
 * name, its value and the limit in *e. */
enum status field_apply(const struct field *row, const struct jdoc *value, void *target,
                        struct api_error *e) MUST_USE;
/* True when v is an integer in [min, max], written as an integer or as an integral float. */
bool field_int(const struct jdoc *v, int64_t min, int64_t max, int64_t *out) MUST_USE;
/* The value as a client would write it, cut to cap bytes; returns text. */
const char *field_text(const struct jdoc *v, char *text, size_t cap);

#endif
